"""Receipts: matched to their message, stored and applied in one transaction, and only then acknowledged.

A receipt is matched by the supplier's id for the message together with the recipient's last digits, since suppliers
reuse ids; if the answer had no id, by everything else (`receipts_without_id.py`). It may arrive before the submit's
answer, twice, on another connection, days later or never:

    the first             that moves its message is recorded in the message's row, and has none of its own
    twice                 meets its own fingerprint, and the state machine moves nothing the second time
    before the answer     stored unmatched; recording the answer looks for it (`waiting.early`)
    matching nothing      checked again on the schedule of base/retry.py, then an orphan, which is counted
    never                 `silence.close_silent` ends the message as `unknown` when its time is up

Further ones, intermediate ones and those for messages with several parts have rows in `receipts`. The raw bytes of all
are in `receipt_bytes`. The rule nobody may break: nothing is acknowledged before it is committed, and nothing committed
is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.database.text import storable
from heliograph.base.ids import uuid7
from heliograph.base.retry import receipt_pause
from heliograph.base.sentences import said
from heliograph.sending.results import UnmatchedReports
from heliograph.sms.reports import parts, receipts_without_id
from heliograph.sms.reports.keys import (
    SUFFIX,
    ReceivedReceipt,
    fingerprint,
    id_bounds,
    ids,
    same_end,
    suffix,
    weak_keys,
)
from heliograph.sms.status import BY_RECEIPT, Move, Moved, after_all, move_many
from heliograph.webhooks.recording.events import Wanting, wanted


class Applied(msgspec.Struct, frozen=True):
    """The result of a batch of receipts."""

    #: Webhook deliveries queued.
    deliveries: int = 0
    matched: int = 0
    unmatched: int = 0


class Matched(msgspec.Struct, frozen=True):
    """What follows from a batch of receipts, in the transaction that stored them."""

    #: For the caller to make; the result goes to `keep`.
    moves: list[Move]
    #: How many matched a message.
    matched: int
    #: Those to be recorded by their moves, with the message that they match, by fingerprint.
    riding: Mapping[UUID, tuple[ReceivedReceipt, asyncpg.Record]]
    at: datetime
    #: The whole batch, by fingerprint, in order.
    batch: Mapping[UUID, ReceivedReceipt]


async def store(
    conn: Connection, received: Sequence[ReceivedReceipt], *, policies: Mapping[UUID, str], again: bool = False
) -> Applied:
    """Store receipts, match them, and move their messages: `match`, and the moves that it returns."""
    found = await match(conn, received, policies=policies, again=again)
    moved = await move_many(conn, found.moves)
    await keep(conn, found, moved)
    return Applied(moved.deliveries, found.matched, len(received) - found.matched)


#: How many messages are searched for a batch of receipts, divided among them: a supplier that gives many messages to
#: one number the same id must not keep those of others waiting.
MOST_LOOKED = 400_000
# A match needs one of the receipt's ids and, if the receipt has an address, the same suffix; of several messages with a
# recycled id, the newest wins. $1 to $4 limit the search to partitions of the last days: each further one would cost
# another search. Each id is an item of its own: `supplier_message_id IN (…)` is two searches, and a plan made while
# there are a few hundred attempts would prefer one search by the primary key, through all messages since $1.
_FIND = """
SELECT found.organization_id, found.message_id, found.attempt, found.part, found.parts
  FROM unnest($5::uuid[], $6::text[], $7::text[], $8::text[]) WITH ORDINALITY
       AS item (supplier_id, key, suffix1, suffix2, n)
  LEFT JOIN LATERAL (
       SELECT * FROM (
           (SELECT organization_id, message_id, attempt, 1::smallint AS part, 1::smallint AS parts, ended_at AS at,
                   recipient_suffix
              FROM attempts
             WHERE supplier_message_id = item.key AND target_id = item.supplier_id
               AND message_id >= $1 AND message_id < $2{indexed} LIMIT $9)
            UNION ALL
           (SELECT organization_id, message_id, attempt, part, parts, created_at, recipient_suffix
              FROM sms_parts
             WHERE id_key = item.key AND supplier_id = item.supplier_id
               AND answered_on >= $3 AND answered_on < $4{indexed} LIMIT $9)) either
        WHERE {fits}
        ORDER BY at DESC LIMIT 1) found ON true
 ORDER BY item.n
"""
# The suffix is part of the indexes: some suppliers give all messages the same id.
FIND = _FIND.format(indexed=" AND recipient_suffix IN (item.suffix1, item.suffix2)", fits="true")
# For receipts without an address, or with a short one, that the former does not find.
FIND_SHORT = _FIND.format(indexed="", fits=f"item.suffix1 = '' OR {same_end('recipient_suffix', 'item.suffix1')}")


async def match(
    conn: Connection,
    received: Sequence[ReceivedReceipt],
    *,
    policies: Mapping[UUID, str],
    again: bool = False,
    alone: bool = True,
) -> Matched:
    """Match receipts, and store those that no move will record. Raises UnmatchedReports, storing nothing, if one
    matches nothing and answers may be being recorded at the same time (not `alone`).

    `policies`: for each supplier, which receipts decide a message with several parts ("all", "any", "first", "last").
    `again`: they have been checked before. A receipt that names an id may be ahead of its answer, so only then can it
    match a message that was answered without one.
    """
    at = now()
    unique = {fingerprint(one, one.at or at): one for one in received}
    found: dict[UUID, asyncpg.Record] = dict(zip(unique, await _find(conn, list(unique.values()), at), strict=True))
    if not alone and any(row["message_id"] is None for row in found.values()):
        raise UnmatchedReports
    moves = _moves(unique, found, at, by_id=True)
    riding = {move.receipt: (unique[move.receipt], found[move.receipt]) for move in moves.values() if move.receipt}
    rest = {key: unique[key] for key in sorted(unique.keys() - riding.keys())}
    # Those that lost to another one in this batch may be repetitions of the one that moved their message.
    lost = {key for key in rest if found[key]["parts"] == 1 and rest[key].receipt.state in BY_RECEIPT}
    if lost:
        noted = await _noted(conn, {key: found[key] for key in lost})
        for key in noted:
            del rest[key]
        await _settle(conn, {key: unique[key] for key in noted if unique[key].fingerprint is not None}, at)
    if rest:
        await _keep(conn, rest, found, at, _came(unique, at))
        without_id = await _match_without_id(conn, rest, found, at, again=again)
        found |= without_id
        for id, move in _moves({key: unique[key] for key in without_id}, found, at, by_id=False).items():
            moves.setdefault(id, move)
    several = [
        (one, found[key])
        for key, one in unique.items()
        if (found[key]["parts"] or 1) > 1 and one.receipt.state in BY_RECEIPT
    ]
    for move in await parts.apply(conn, several, policies, at):
        moves.setdefault(move.message_id, move)
    matched = sum(row["message_id"] is not None for row in found.values())
    return Matched(list(moves.values()), matched, riding, at, unique)


#: How an attempt is known to have been accepted.
SAID = said("an operator matched its receipt")
# By this id, the supplier's further receipts for the message are matched.
NAME = """
UPDATE attempts SET supplier_message_id = $4, recipient_suffix = $5
 WHERE organization_id = $1 AND message_id = $2 AND attempt = $3 AND supplier_message_id IS NULL
"""


async def assign(conn: Connection, one: ReceivedReceipt, to: asyncpg.Record, *, policies: Mapping[UUID, str]) -> bool:
    """Assign a receipt that waits in `receipts` to this message (a row like those of FIND). In any state it shows that
    its supplier took a message that still waits for an answer; if the message has several parts, enough of them must
    have receipts. Returns whether the message moved."""
    assert one.fingerprint is not None
    at, key = now(), one.fingerprint
    some, found = {key: one}, {key: to}
    await _keep(conn, some, found, at, _came(some, at))
    moves = list(_moves(some, found, at, by_id=False).values())
    if to["parts"] > 1 and one.receipt.state in BY_RECEIPT:
        moves += await parts.apply(conn, [(one, to)], policies, at)
    place = to["organization_id"], to["message_id"], to["attempt"]
    is_taken = moves or to["parts"] == 1
    sent = await after_all(conn, *place, at=one.at or at, detail=SAID) if is_taken else None
    if to["parts"] == 1 and one.receipt.keys:
        await conn.execute(NAME, *place, one.receipt.keys[0], suffix(one.receipt.recipient))
    wanting: Wanting = frozenset()
    if sent is not None:
        moves.insert(0, sent)
        wanting = await wanted(conn, place[:1], "message.sent")
    return bool((await move_many(conn, moves, announce_sent=wanting)).ids)


NOTED = """
SELECT item.receipt FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS item (organization_id, message_id, receipt)
       CROSS JOIN LATERAL (
       SELECT FROM messages
        WHERE organization_id = item.organization_id AND id = item.message_id AND receipt = item.receipt LIMIT 1) m
"""


async def keep(conn: Connection, found: Matched, moved: Moved) -> None:
    """Store the receipts not recorded by their moves, because their messages had moved before, and the bytes of those
    that were recorded."""
    others = {key: found.riding[key] for key in sorted(found.riding.keys() - moved.receipts)}
    await _keep_bytes(conn, {key: one for key, (one, _) in found.riding.items() if key not in others}, found.at)
    if not others:
        return
    rows = {key: row for key, (_, row) in others.items()}
    again = await _noted(conn, rows)
    new = {key: one for key, (one, _) in others.items() if key not in again}
    if new:
        await _keep(conn, new, rows, found.at, _came(found.batch, found.at))


async def _noted(conn: Connection, rows: Mapping[UUID, asyncpg.Record]) -> set[UUID]:
    """Which of these receipts are recorded in their messages, `rows`."""
    places = [row["organization_id"] for row in rows.values()], [row["message_id"] for row in rows.values()]
    return {key for (key,) in await conn.fetch(NOTED, *places, list(rows))}


# The supplier repeated it once its message could be found. Left alone, it would become an orphan, a day later.
SETTLE = """
DELETE FROM receipts USING unnest($1::date[], $2::uuid[], $3::uuid[]) AS item (received_on, supplier_id, fingerprint)
 WHERE receipts.received_on = item.received_on AND receipts.supplier_id = item.supplier_id
   AND receipts.fingerprint = item.fingerprint AND receipts.message_id IS NULL
"""


async def _settle(conn: Connection, some: Mapping[UUID, ReceivedReceipt], at: datetime) -> None:
    """Remove the rows of receipts that were waiting, and that are recorded in their messages."""
    if some:
        await conn.execute(SETTLE, *_places(some, at))


def _moves(
    some: Mapping[UUID, ReceivedReceipt], found: Mapping[UUID, asyncpg.Record], at: datetime, *, by_id: bool
) -> dict[UUID, Move]:
    """The effect of receipts for single-part messages: for each message, the state that counts. `by_id`: they were
    matched by their ids, and have no rows yet."""
    moves: dict[UUID, Move] = {}
    for key, one in some.items():
        row = found[key]
        status = BY_RECEIPT.get(one.receipt.state)
        if status is None or row["parts"] != 1:
            continue
        id = row["message_id"]
        known = moves.get(id)
        if known is not None and not parts.overrides(known.status, status):
            continue
        # A receipt that waited already has a row.
        notes = one.fingerprint is None and by_id
        moves[id] = Move(
            row["organization_id"],
            id,
            status,
            one.at or at,
            None if status == "delivered" else status,
            supplier_id=one.supplier_id,
            receipt=key if notes else None,
            receipt_attempt=row["attempt"] if notes else None,
            receipt_error=storable(one.receipt.error) if notes else None,
            recipients=one.receipt.recipients,
        )
    return moves


def _came(batch: Mapping[UUID, ReceivedReceipt], at: datetime) -> dict[UUID, datetime]:
    """When each arrived, by fingerprint. Those of one batch are a microsecond apart, so that the first state also
    counts among those that wait for their answer together."""
    return {key: one.at or at + timedelta(microseconds=n) for n, (key, one) in enumerate(batch.items())}


async def _find(conn: Connection, items: Sequence[ReceivedReceipt], at: datetime) -> list[asyncpg.Record]:
    """For each receipt the message that its id names, or a row of NULLs. The second id is used if the first finds
    none."""
    keys = [ids(one.receipt) for one in items]
    second = [n for n, (one, two) in enumerate(keys) if two is not None and two != one]
    named = [(one, first) for one, (first, _) in zip(items, keys, strict=True)]
    asked = [
        (one.supplier_id, key, suffix(storable(one.receipt.recipient)), suffix(storable(one.receipt.sender)))
        for one, key in [*named, *((items[n], keys[n][1]) for n in second)]
    ]
    rows = await _search(conn, FIND, asked, at)
    short = [n for n, (_, key, end, _) in enumerate(asked) if len(end) < SUFFIX and key and not rows[n]["message_id"]]
    if short:
        for n, row in zip(short, await _search(conn, FIND_SHORT, [asked[n] for n in short], at), strict=True):
            rows[n] = row
    found = rows[: len(items)]
    for n, row in zip(second, rows[len(items) :], strict=True):
        if found[n]["message_id"] is None:
            found[n] = row
    return found


async def _search(
    conn: Connection, statement: str, asked: Sequence[tuple[UUID, str | None, str, str]], at: datetime
) -> list[asyncpg.Record]:
    columns = zip(*asked, strict=True)
    return await conn.fetch(statement, *id_bounds(at), *map(list, columns), max(MOST_LOOKED // len(asked), 1))


# An existing receipt is changed only if it now has a message and had none.
STORE = """
INSERT INTO receipts AS known (received_on, supplier_id, fingerprint, keys, state, recipient, sender, reference, error,
                               received_at, organization_id, message_id, attempt, part, next_try_at, submitted,
                               delivered, recipients)
SELECT received_on, supplier_id, fingerprint, array_remove(ARRAY[key1, key2], NULL), state, recipient, sender,
       reference, error, received_at, organization_id, message_id, attempt, part,
       CASE WHEN message_id IS NULL THEN $1::timestamptz END, submitted, delivered, recipients
  FROM unnest($2::date[], $3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
              $10::integer[], $11::text[], $12::timestamptz[], $13::uuid[], $14::uuid[], $15::smallint[],
              $16::smallint[], $17::integer[], $18::integer[], $19::boolean[])
       AS item (received_on, supplier_id, fingerprint, key1, key2, state, recipient, sender, reference, error,
                received_at, organization_id, message_id, attempt, part, submitted, delivered, recipients)
ON CONFLICT (received_on, supplier_id, fingerprint) DO UPDATE
   SET organization_id = excluded.organization_id, message_id = excluded.message_id, attempt = excluded.attempt,
       part = excluded.part, next_try_at = NULL
 WHERE known.message_id IS NULL AND excluded.message_id IS NOT NULL
RETURNING fingerprint
"""


async def _keep(
    conn: Connection,
    some: Mapping[UUID, ReceivedReceipt],
    found: Mapping[UUID, asyncpg.Record],
    at: datetime,
    came: Mapping[UUID, datetime],
) -> None:
    """Write receipts into rows of their own, in a fixed order, since a supplier that repeats receipts may do so on
    another worker's session at the same time."""
    items, rows = list(some.values()), [found[key] for key in some]
    keys = [ids(one.receipt) for one in items]
    kept = await conn.fetch(
        STORE,
        at + timedelta(seconds=receipt_pause(0) or 0),
        *_places(some, at),
        [key for key, _ in keys],
        [key for _, key in keys],
        [one.receipt.state.value for one in items],
        [storable(one.receipt.recipient) for one in items],
        [storable(one.receipt.sender) for one in items],
        [one.receipt.reference for one in items],
        [storable(one.receipt.error) for one in items],
        [came[key] for key in some],
        [row["organization_id"] for row in rows],
        [row["message_id"] for row in rows],
        [row["attempt"] for row in rows],
        [row["part"] for row in rows],
        [one.receipt.submitted for one in items],
        [one.receipt.delivered for one in items],
        [one.receipt.recipients for one in items],
    )
    await _keep_bytes(conn, {key: some[key] for (key,) in kept}, at)


BYTES = """
INSERT INTO receipt_bytes (received_on, id, fingerprints, raw, received_at)
VALUES (($1::timestamptz AT TIME ZONE 'UTC')::date, $2, $3, $4, $1)
"""


async def _keep_bytes(conn: Connection, some: Mapping[UUID, ReceivedReceipt], at: datetime) -> None:
    """Store the raw bytes. Those of receipts from `receipts` are stored already."""
    new = {key: one.receipt.raw for key, one in some.items() if one.fingerprint is None}
    if new:
        await conn.execute(BYTES, at, uuid7(), list(new), list(new.values()))


def _places(some: Mapping[UUID, ReceivedReceipt], at: datetime) -> tuple[list[date], list[UUID], list[UUID]]:
    """The primary keys of receipts, as columns."""
    days = [(one.at or at).astimezone(UTC).date() for one in some.values()]
    return days, [one.supplier_id for one in some.values()], list(some)


async def _match_without_id(
    conn: Connection,
    some: Mapping[UUID, ReceivedReceipt],
    found: Mapping[UUID, asyncpg.Record],
    at: datetime,
    *,
    again: bool,
) -> dict[UUID, asyncpg.Record]:
    """The receipts that could be matched without an id, and their messages."""
    wanting = [
        receipts_without_id.ReceiptWithoutId(
            one.supplier_id,
            weak_keys(storable(one.receipt.recipient)),
            suffix(storable(one.receipt.sender)),
            ids(one.receipt)[0] or "",
            one.receipt.reference,
            (one.at or at).astimezone(UTC).date(),
            one.at or at,
            key,
        )
        for key, one in some.items()
        if found[key]["message_id"] is None and one.receipt.recipient and (again or not one.receipt.keys)
    ]
    return await receipts_without_id.match(conn, wanting) if wanting else {}
