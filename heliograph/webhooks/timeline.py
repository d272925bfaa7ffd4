"""A message's webhook events and attempts as entries of its timeline (`sending/timeline.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.pool import Connection
from heliograph.webhooks.delivery.attempts import DELIVERED
from heliograph.webhooks.recording import successes


class Entry(msgspec.Struct, frozen=True):
    """Something that happened. `detail` contains only known values. For operators only."""

    at: datetime
    what: str
    detail: dict[str, Any]


# $3: `successes.since` of each event.
WEBHOOKS = f"""
SELECT w.event_id, w.endpoint_id, e.url, w.attempt, w.started_at, w.duration_ms, w.status, w.result, w.detail
  FROM (SELECT tried.*
          FROM unnest($2::uuid[]) AS item (id) CROSS JOIN LATERAL (
               SELECT event_id, endpoint_id, attempt, started_at, duration_ms, status, result, detail
                 FROM webhook_attempts WHERE organization_id = $1 AND event_id = item.id
               OFFSET 0) tried
        UNION ALL
        SELECT item.id, s.endpoint_id, 1, {successes.STARTED.format(at="at")}, s.duration_ms[at], s.status[at],
               '{DELIVERED}', ''
          FROM unnest($2::uuid[], $3::uuid[]) AS item (id, since) CROSS JOIN LATERAL (
               SELECT *, array_position(events, item.id) AS at FROM webhook_successes s
                WHERE {successes.HOLDING.format(organization="$1", since="item.since", id="item.id")}
               OFFSET 0) s) w  -- otherwise all rows of the organization might be scanned
  LEFT JOIN LATERAL (
       SELECT url FROM webhook_endpoints WHERE organization_id = $1 AND id = w.endpoint_id OFFSET 0) e ON true
"""


async def tried(conn: Connection, organization_id: UUID, events: Iterable[asyncpg.Record]) -> list[asyncpg.Record]:
    """The webhook attempts of these events."""
    ids = [one["id"] for one in events]
    return await conn.fetch(WEBHOOKS, organization_id, ids, [successes.since(id) for id in ids])


# By id: `kind` is written so that no index matches.
PENDING = "SELECT EXISTS (SELECT FROM queue WHERE id = ANY ($2) AND organization_id = $1 AND kind || '' = 'webhook')"


async def is_pending(conn: Connection, organization_id: UUID, events: Sequence[UUID]) -> bool:
    """Whether a delivery of one of these events is queued."""
    found: bool = await conn.fetchval(PENDING, organization_id, events) if events else False
    return found


def of_event(row: asyncpg.Record, *, at: datetime | None = None) -> Entry:
    """The entry of an event, from a row with id, kind and created_at. `at`: when it was recorded, if that differs."""
    return Entry(at or row["created_at"], "event", {"kind": row["kind"], "id": str(row["id"])})


def of_webhook(row: asyncpg.Record) -> Entry:
    """The entry of a row of `tried`."""
    values = {
        "result": row["result"],
        "status": row["status"],
        "attempt": row["attempt"],
        "milliseconds": row["duration_ms"],
        "url": row["url"],
        "endpoint": str(row["endpoint_id"]),
        "detail": row["detail"],
    }
    return Entry(row["started_at"], "webhook", known(values))


def known(values: dict[str, Any]) -> dict[str, Any]:
    """The values that are not empty."""
    return {name: value for name, value in values.items() if value not in (None, "")}
