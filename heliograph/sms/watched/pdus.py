"""Watching a supplier's traffic: an operator starts a watch of some minutes, workers record exchanges, and the latest
can be read.

    begin ──► supplier_watches ──► each worker, every second ──► a batch a second into supplier_pdus ──► seen

While nobody watches, nothing is stored or queried per message: workers read which suppliers are watched in a statement
that they run every second anyway. The rule nobody may break: everything written here has been masked by its connector.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database.pool import BRIEFLY, Connection
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.sms.dispatch import suppliers
from heliograph.suppliers.contract import LAST, Connector, Exchange, WatchableConnector

#: The longest watch.
LONGEST = timedelta(minutes=15)
#: How long exchanges can be read; then retention deletes them.
KEPT = timedelta(hours=1)

#: For the list of a SELECT: the suppliers currently being watched.
WATCHED = "ARRAY(SELECT supplier_id FROM supplier_watches WHERE until > now())"

BEGIN = """
INSERT INTO supplier_watches (supplier_id, until) VALUES ($1, now() + $2)
ON CONFLICT (supplier_id) DO UPDATE SET until = excluded.until
RETURNING until
"""
TURN = "SELECT supplier_id FROM supplier_watches WHERE supplier_id = ANY ($1) ORDER BY supplier_id FOR UPDATE"
KEEP = """
INSERT INTO supplier_pdus (supplier_id, id, at, is_sent, command, sequence, status, fields)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[], $4::boolean[], $5::text[], $6::bigint[], $7::text[],
                     $8::text[])
"""
CUT = f"""
DELETE FROM supplier_pdus USING (
    SELECT supplier_id, id, row_number() OVER (PARTITION BY supplier_id ORDER BY id DESC) AS n
      FROM supplier_pdus WHERE supplier_id = ANY ($1)) known
 WHERE supplier_pdus.supplier_id = known.supplier_id AND supplier_pdus.id = known.id AND known.n > {LAST}
"""
DELETE = """
DELETE FROM supplier_pdus WHERE (supplier_id, id) IN (SELECT supplier_id, id FROM supplier_pdus WHERE at < $1 LIMIT $2)
"""
UNTIL = "SELECT until FROM supplier_watches WHERE supplier_id = $1 AND until > now()"
SEEN = f"""
SELECT id, at, is_sent, command, sequence, status, fields FROM supplier_pdus WHERE supplier_id = $1
 ORDER BY id DESC LIMIT {LAST}
"""


class StoredExchange(Exchange, frozen=True):
    """An exchange as stored; ids increase."""

    id: UUID


class WatchedTraffic(msgspec.Struct, frozen=True):
    """What was recorded of a supplier's traffic; `until`: when its watch ends; None: it is not being watched."""

    until: datetime | None
    #: Newest first, at most LAST, of the last hour.
    kept: list[StoredExchange]


async def begin(conn: Connection, *, supplier: str, lasts: timedelta, by: Principal) -> tuple[UUID, datetime]:
    """Watch a supplier, by name or id, from now on; a watch already running will end when this one does.

    Returns its id, and when the watch ends. Raises NotFound, and Invalid (minutes).
    """
    if not timedelta() < lasts <= LONGEST:
        raise Invalid(("minutes", "range", f"minutes must be 1 to {LONGEST // timedelta(minutes=1)}"))
    async with conn.transaction():
        one = await suppliers.lock(conn, supplier=supplier)
        until: datetime = await conn.fetchval(BEGIN, one.id, lasts)
        told = {"seconds": int(lasts.total_seconds())}
        await audit.record(conn, by, "supplier.watched", object_id=one.id, name=one.name, after=told)
    return one.id, until


async def exchange(conn: Connection, connectors: Mapping[UUID, Connector], watched: Collection[UUID]) -> None:
    """Run by each worker once a second: store exchanges of watched connectors, and start and stop their recording."""
    taken: list[tuple[UUID, Exchange]] = []
    for id, connector in connectors.items():
        if isinstance(connector, WatchableConnector):
            taken += [(id, one) for one in connector.exchanged()]
            connector.watch(id in watched)
    if taken:
        await keep(conn, taken)


async def keep(conn: Connection, taken: list[tuple[UUID, Exchange]]) -> None:
    """Store exchanges, in order for each supplier, and delete all but the latest of each. One worker at a time: if one
    stands still meanwhile, those of others are not stored, since the leases of their slots would end."""
    of = sorted({id for id, _ in taken})
    rows = [
        (id, uuid7(), one.at, one.is_sent, one.command, one.sequence, one.status, _json(one.fields))
        for id, one in taken
    ]
    with contextlib.suppress(asyncpg.LockNotAvailableError):
        async with conn.transaction():
            await conn.execute(BRIEFLY)
            await conn.execute(TURN, of)
            await conn.execute(KEEP, *(list(column) for column in zip(*rows, strict=True)))
            await conn.execute(CUT, of)


async def seen(conn: Connection, supplier_id: UUID) -> WatchedTraffic:
    """Whether a supplier is being watched, and what was recorded of its traffic."""
    until = await conn.fetchval(UNTIL, supplier_id)
    rows = await conn.fetch(SEEN, supplier_id)
    return WatchedTraffic(
        until, [StoredExchange(**dict(row) | {"fields": msgspec.json.decode(row["fields"])}) for row in rows]
    )


def _json(fields: dict[str, Any]) -> str:
    return msgspec.json.encode(fields).decode()
