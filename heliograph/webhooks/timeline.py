"""What operators see of one message, of whatever channel: what happened to it, in order of time.

The rule nobody may break: this is for operators only. What a customer may see of a message is its channel's to say.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.db import Connection


class Entry(msgspec.Struct, frozen=True):
    """Something that happened. `detail` holds only what is known."""

    at: datetime
    what: str
    detail: dict[str, Any]


class Timeline(msgspec.Struct, frozen=True):
    """A message and its story."""

    #: Its row, with its organization's name.
    message: dict[str, Any]
    #: What it says; None unless asked for, or when it was erased.
    text: str | None
    entries: list[Entry]
    #: Its rows in the queue, and those of its webhook deliveries.
    queued: list[dict[str, Any]]


WEBHOOKS = """
SELECT w.event_id, w.endpoint_id, e.url, w.attempt, w.started_at, w.duration_ms, w.status, w.result, w.detail
  FROM webhook_attempts w LEFT JOIN webhook_endpoints e ON e.organization_id = $1 AND e.id = w.endpoint_id
 WHERE w.organization_id = $1 AND w.event_id = ANY ($2)
"""


async def tried(conn: Connection, organization_id: UUID, events: Iterable[asyncpg.Record]) -> list[asyncpg.Record]:
    """The webhook attempts of these events."""
    return await conn.fetch(WEBHOOKS, organization_id, [one["id"] for one in events])


def of_event(row: asyncpg.Record) -> Entry:
    """An event's entry: id, kind and created_at."""
    return Entry(row["created_at"], "event", {"kind": row["kind"], "id": str(row["id"])})


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
    """Without what is empty."""
    return {name: value for name, value in values.items() if value not in (None, "")}
