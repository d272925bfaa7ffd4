"""History of the quality of numbers and templates, and of the resulting limits: a row for each change.

The rule nobody may break: an unchanged state adds no row, however often Meta is read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection

#: Maximum changes shown per number or template.
SHOWN = 8


class QualityNote(msgspec.Struct, frozen=True):
    """The changed state of a number or template."""

    id: UUID
    quality: str
    #: For a number: people who may be messaged within 24 hours; None: no known limit.
    messaging_limit: int | None = None


class Change(msgspec.Struct, frozen=True):
    """A state, and when it began."""

    at: datetime
    quality: str
    messaging_limit: int | None


NOTE = """
INSERT INTO whatsapp_qualities (organization_id, object_id, at, quality, messaging_limit)
SELECT $1, one.id, $2, one.quality, one.messaging_limit
  FROM unnest($3::uuid[], $4::text[], $5::int[]) AS one (id, quality, messaging_limit)
    ON CONFLICT (organization_id, object_id, at) DO UPDATE
   SET quality = excluded.quality, messaging_limit = excluded.messaging_limit
"""


async def note(conn: Connection, organization_id: UUID, noted: Sequence[QualityNote], at: datetime) -> None:
    """Record changed states. Runs in the transaction that stores them."""
    if noted:
        columns = ([one.id for one in noted], [one.quality for one in noted], [one.messaging_limit for one in noted])
        await conn.execute(NOTE, organization_id, at, *columns)


TREND = """
SELECT given.id, found.at, found.quality, found.messaging_limit
  FROM unnest($2::uuid[]) AS given (id) CROSS JOIN LATERAL (
       SELECT at, quality, messaging_limit FROM whatsapp_qualities
        WHERE organization_id = $1 AND object_id = given.id ORDER BY at DESC LIMIT $3) found
 ORDER BY given.id, found.at DESC
"""


async def trends(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, list[Change]]:
    """The latest changes of each, newest first."""
    found: dict[UUID, list[Change]] = {}
    for row in await conn.fetch(TREND, actor.organization_id, list(ids), SHOWN) if ids else []:
        found.setdefault(row["id"], []).append(Change(row["at"], row["quality"], row["messaging_limit"]))
    return found


# For retention: $1 the time before which rows have expired, $2 how many at once.
FORGET = """
DELETE FROM whatsapp_qualities WHERE ctid IN (SELECT ctid FROM whatsapp_qualities WHERE at < $1 LIMIT $2)
"""
