"""Unmatched receipts, for operators: what they name, the likely cause, and what can be done at once.

This covers those that a timer still checks, and orphans, which it gave up. The rule nobody may break: nothing is
matched by guessing; a person who matches one by hand gives a reason, which the audit log records.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from functools import partial
from typing import Literal
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection, despite_deadlocks
from heliograph.base.errors import Invalid, NotFound
from heliograph.sms.dispatch import routing
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.reports import diagnosis, receipts, remedies, waiting
from heliograph.sms.reports.receipts import Applied

#: Receipts per page, and receipts tried again in one go.
PAGE, AT_ONCE = 50, 1000
#: Digits of a number that are shown.
TAIL = 4

Cause = Literal["no_id", "base", "recipient", "unknown"]


class ReceiptKey(msgspec.Struct, frozen=True):
    """Identifies a receipt: its key in the table."""

    received_on: date
    supplier_id: UUID
    fingerprint: UUID


class Unmatched(msgspec.Struct, frozen=True, kw_only=True):
    """An unmatched receipt."""

    place: ReceiptKey
    supplier: str
    keys: Sequence[str]
    state: str
    error: str
    #: The last digits of its recipient.
    tail: str
    received_at: datetime
    tries: int
    #: When it is checked again; None: an orphan.
    next_try_at: datetime | None
    cause: Cause
    #: Settings of its supplier with which it would match.
    cure: dict[str, str]


COLUMNS = (
    "received_on, supplier_id, fingerprint, keys, state, error, recipient, sender, received_at, tries, next_try_at"
)
# Uses the index of unmatched receipts, from the newest on.
LISTED = f"""
SELECT {COLUMNS} FROM receipts
 WHERE message_id IS NULL AND ($1::uuid IS NULL OR supplier_id = $1)
   AND ($2::timestamptz IS NULL OR (received_at, fingerprint) < ($2, $3::uuid))
   AND (NOT $4 OR next_try_at IS NULL)
 ORDER BY received_at DESC, fingerprint DESC LIMIT $5
"""


async def listed(
    conn: Connection,
    *,
    supplier_id: UUID | None = None,
    only_orphans: bool = False,
    after: tuple[datetime, UUID] | None = None,
    limit: int = PAGE,
) -> list[Unmatched]:
    """Unmatched receipts, newest first, each with its likely cause. `after`: the last one of the previous page, by its
    time of arrival and fingerprint."""
    at, fingerprint = after or (None, None)
    rows = await conn.fetch(LISTED, supplier_id, at, fingerprint, only_orphans, limit)
    if not rows:
        return []
    known = {one.id: one for one in await routing.load(conn)}
    of: dict[UUID, list[asyncpg.Record]] = {}
    for row in rows:
        of.setdefault(row["supplier_id"], []).append(row)
    causes: dict[UUID, tuple[Cause, dict[str, str]]] = {}
    for id, some in of.items():
        if id in known:
            causes |= await _causes(conn, known[id], some)
    return [
        Unmatched(
            place=ReceiptKey(row["received_on"], row["supplier_id"], row["fingerprint"]),
            supplier=known[row["supplier_id"]].name if row["supplier_id"] in known else "",
            keys=row["keys"],
            state=row["state"],
            error=row["error"],
            tail=row["recipient"][-TAIL:],
            received_at=row["received_at"],
            tries=row["tries"],
            next_try_at=row["next_try_at"],
            cause=causes.get(row["fingerprint"], ("unknown", {}))[0],
            cure=causes.get(row["fingerprint"], ("unknown", {}))[1],
        )
        for row in rows
    ]


async def _causes(
    conn: Connection, supplier: Supplier, rows: Sequence[asyncpg.Record]
) -> dict[UUID, tuple[Cause, dict[str, str]]]:
    """The likely cause for each of these unmatched receipts of one supplier, by fingerprint."""
    cures = await diagnosis.cures(conn, supplier, rows)
    fitting = await remedies.known_ids(conn, supplier.id, [row["keys"][0] if row["keys"] else "" for row in rows])
    found: dict[UUID, tuple[Cause, dict[str, str]]] = {}
    for place, row in enumerate(rows):
        cause: Cause = "unknown"
        if place in cures:
            cause = "base"
        elif not row["keys"]:
            cause = "no_id"
        elif row["keys"][0] in fitting:
            cause = "recipient"
        found[row["fingerprint"]] = cause, cures.get(place, {})
    return found


# Locked, so that the timer leaves them alone.
TAKE = f"""
SELECT {waiting.COLUMNS}, receipts.received_on, next_try_at FROM receipts
  JOIN unnest($1::date[], $2::uuid[], $3::uuid[]) AS asked (received_on, supplier_id, fingerprint)
       USING (received_on, supplier_id, fingerprint)
 WHERE message_id IS NULL ORDER BY receipts.received_at FOR UPDATE OF receipts
"""
# One that the timer has locked is being checked anyway.
TAKE_FREE = f"{TAKE}SKIP LOCKED"
NEWEST = f"""
SELECT {waiting.COLUMNS}, received_on, next_try_at FROM receipts
 WHERE message_id IS NULL AND supplier_id = $1 ORDER BY received_at DESC LIMIT $2 FOR UPDATE SKIP LOCKED
"""
FOUND = """
SELECT fingerprint FROM receipts
  JOIN unnest($1::date[], $2::uuid[], $3::uuid[]) AS asked (received_on, supplier_id, fingerprint)
       USING (received_on, supplier_id, fingerprint)
 WHERE message_id IS NOT NULL
"""


async def try_again(conn: Connection, places: Sequence[ReceiptKey]) -> Applied:
    """Check these receipts once more, now."""
    async with conn.transaction():
        return await _tried(conn, await conn.fetch(TAKE_FREE, *_columns_of(places)))


async def try_newest(conn: Connection, *, supplier_id: UUID) -> Applied:
    """Check the newest AT_ONCE unmatched receipts of a supplier once more, now."""
    async with conn.transaction():
        return await _tried(conn, await conn.fetch(NEWEST, supplier_id, AT_ONCE))


async def _tried(conn: Connection, rows: Sequence[asyncpg.Record]) -> Applied:
    if not rows:
        return Applied()
    policies = {one.id: one.parts for one in await routing.load(conn)}
    came = sorted(rows, key=lambda row: row["received_at"])
    applied = await receipts.store(conn, [waiting.read(row) for row in came], policies=policies, again=True)
    matched = {row["fingerprint"] for row in await conn.fetch(FOUND, *_columns(rows))}
    await waiting.no_orphans(conn, [row for row in rows if row["fingerprint"] in matched])
    return applied


# What a supplier's receipt can be about: an attempt of a single-part message, or a part that waits for its receipt. A
# message split by its supplier has parts too.
CANDIDATES = """
SELECT found.organization_id, found.message_id, found.attempt, found.part, found.parts
  FROM organizations o CROSS JOIN LATERAL (
       SELECT organization_id, message_id, attempt, part, parts, 0 AS rank FROM sms_parts
        WHERE organization_id = o.id AND message_id = $1 AND supplier_id = $2 AND state IS NULL
        UNION ALL
       SELECT organization_id, message_id, attempt, 1::smallint, 1::smallint, 1 FROM attempts
        WHERE organization_id = o.id AND message_id = $1 AND target_id = $2 AND parts = 1
          AND NOT EXISTS (SELECT FROM sms_parts
                           WHERE message_id = $1 AND attempt = attempts.attempt AND sms_parts.parts > 1)) found
 ORDER BY found.rank, found.attempt DESC, found.part LIMIT 1
"""


async def match_by_hand(
    conn: Connection, place: ReceiptKey, *, message_id: UUID, reason: str, by: Principal = SYSTEM
) -> bool:
    """Assign a receipt to this message by hand. Returns whether the message moved: a final one stays as it is.

    Raises NotFound (receipt), Invalid (message_id: its supplier was not handed it, or the receipt has one; reason).
    """
    why = reasons.normalized(reason)
    if why is None:
        raise Invalid(("reason", "length", "Give a reason of at most 500 characters: it is kept in the audit log."))
    # A late answer locks the attempt before the receipt, this the other way round (docs/locks.md).
    return await despite_deadlocks(partial(_matched, conn, place, message_id, why, by))


async def _matched(conn: Connection, place: ReceiptKey, message_id: UUID, reason: str, by: Principal) -> bool:
    async with conn.transaction():
        taken = await conn.fetch(TAKE, *_columns_of([place]))
        if not taken:
            if await conn.fetch(FOUND, *_columns_of([place])):
                raise Invalid(("message_id", "matched", "This receipt has a message already."))
            raise NotFound("There is no such receipt.", fingerprint=str(place.fingerprint))
        row = await conn.fetchrow(CANDIDATES, message_id, place.supplier_id)
        if row is None:
            raise Invalid(
                ("message_id", "unknown", "This supplier was handed no such message, or has reported on all of it.")
            )
        policies = {one.id: one.parts for one in await routing.load(conn)}
        moved = await receipts.assign(conn, waiting.read(taken[0]), row, policies=policies)
        await waiting.no_orphans(conn, taken)
        await audit.record(
            conn,
            by,
            "receipt.matched",
            object_id=place.fingerprint,
            name=str(message_id),
            after={"message": message_id, "supplier": place.supplier_id, "state": taken[0]["state"]},
            reason=reason,
        )
    return moved


def _columns_of(places: Sequence[ReceiptKey]) -> tuple[list[date], list[UUID], list[UUID]]:
    return (
        [one.received_on for one in places],
        [one.supplier_id for one in places],
        [one.fingerprint for one in places],
    )


def _columns(rows: Sequence[asyncpg.Record]) -> tuple[list[date], list[UUID], list[UUID]]:
    return (
        [row["received_on"] for row in rows],
        [row["supplier_id"] for row in rows],
        [row["fingerprint"] for row in rows],
    )
