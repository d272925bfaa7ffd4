"""Receipts that wait for their message: ahead of the answer, or unmatched.

Recording an answer looks for those that came before it (`early`), an attempt whose answer was lost looks for its own
(`find_for_uncertain`), and a timer checks the others again on a schedule (`sweep`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.process import measures
from heliograph.base.retry import receipt_pause
from heliograph.queue import timers
from heliograph.sms.reports import receipts_without_id
from heliograph.sms.reports.keys import SHORTEST, ReceivedReceipt, suffix, suffix_of
from heliograph.sms.reports.receipts import Applied, match, store
from heliograph.sms.status import Move
from heliograph.suppliers.contract import Receipt, ReceiptState
from heliograph.traffic import reconciliation

#: Receipts read for an attempt whose answer was lost.
MOST_FITTING = 20
#: Receipts read for an answer's id, by each of a receipt's two; further ones wait for their next check.
MOST_EARLY = 20


class Named(msgspec.Struct, frozen=True, gc=False):
    """A waiting receipt, and which of the requested ids it names."""

    received_at: datetime
    id: str
    state: str
    error: str


# Worded like EARLY, so that the same indexes are used.
NAMED = """
SELECT received_at, id, state, error FROM (
       SELECT received_at, keys[1] AS id, state, error FROM receipts
        WHERE supplier_id = $1 AND keys[1] = ANY ($2) AND message_id IS NULL AND next_try_at IS NOT NULL
       UNION ALL
       SELECT received_at, keys[2] AS id, state, error FROM receipts
        WHERE supplier_id = $1 AND keys[2] = ANY ($2) AND message_id IS NULL AND next_try_at IS NOT NULL) receipt
 ORDER BY received_at LIMIT 20
"""


async def named(conn: Connection, *, supplier_id: UUID, ids: Sequence[str]) -> list[Named]:
    """Unmatched receipts that name one of these ids, oldest first: for a message that is not stored."""
    return [Named(*row) for row in await conn.fetch(NAMED, supplier_id, list(ids))]


COLUMNS = """supplier_id, fingerprint, keys, state, recipient, sender, reference, error, received_at, submitted,
              delivered, recipients"""
# Receipts with these ids that arrived before their submit's answer, oldest first. Each of a receipt's two ids has an
# index of its own: a supplier whose receipts never match must not make every answer read all of them.
EARLY = f"""
SELECT receipt.* FROM unnest($1::uuid[], $2::text[]) AS answer (supplier_id, id_key) CROSS JOIN LATERAL (
       (SELECT {COLUMNS} FROM receipts
         WHERE supplier_id = answer.supplier_id AND keys[1] = answer.id_key
           AND message_id IS NULL AND next_try_at IS NOT NULL LIMIT {MOST_EARLY})
       UNION ALL
       (SELECT {COLUMNS} FROM receipts
         WHERE supplier_id = answer.supplier_id AND keys[2] = answer.id_key
           AND message_id IS NULL AND next_try_at IS NOT NULL LIMIT {MOST_EARLY})) receipt
 ORDER BY received_at
"""
ANY_UNMATCHED = "SELECT EXISTS (SELECT FROM receipts WHERE message_id IS NULL AND next_try_at IS NOT NULL)"


async def early(
    conn: Connection, answers: Sequence[tuple[UUID, str]], *, policies: Mapping[UUID, str]
) -> tuple[list[Move], int]:
    """Match the receipts that arrived before these answers, given as (supplier, id key). Returns the moves that the
    caller must make, and how many receipts now have a message."""
    if not answers or not await conn.fetchval(ANY_UNMATCHED):
        return [], 0
    distinct = dict.fromkeys(answers)  # some suppliers give all messages the same id
    rows = await conn.fetch(EARLY, [supplier for supplier, _ in distinct], [key for _, key in distinct])
    if not rows:
        return [], 0
    found = await match(conn, [read(row) for row in rows], policies=policies)
    measures.RECEIPTS.add("late", by=found.matched)
    return found.moves, found.matched


ANY_DUE = "EXISTS (SELECT FROM receipts WHERE message_id IS NULL AND next_try_at <= now())"
DUE = """
SELECT received_on, supplier_id, fingerprint, recipient, received_at FROM receipts
 WHERE message_id IS NULL AND next_try_at <= now() ORDER BY next_try_at LIMIT $1
"""
# By their keys: the time is worded so that no other index matches.
HOLD = f"""
SELECT held.* FROM unnest($1::date[], $2::uuid[], $3::uuid[]) AS item (received_on, supplier_id, fingerprint)
       CROSS JOIN LATERAL (
       SELECT {COLUMNS}, received_on, tries FROM receipts
        WHERE received_on = item.received_on AND supplier_id = item.supplier_id AND fingerprint = item.fingerprint
          AND message_id IS NULL AND coalesce(next_try_at <= now(), false) FOR UPDATE SKIP LOCKED) held
"""
WAIT = """
UPDATE receipts SET tries = later.tries, next_try_at = received_at + make_interval(secs => later.pause)
  FROM unnest($1::date[], $2::uuid[], $3::uuid[], $4::smallint[], $5::float8[])
       AS later (received_on, supplier_id, fingerprint, tries, pause)
 WHERE receipts.received_on = later.received_on AND receipts.supplier_id = later.supplier_id
   AND receipts.fingerprint = later.fingerprint AND receipts.message_id IS NULL
"""

# Those whose message is locked would otherwise be tried each second, and take up all of a batch.
PUT_OFF = """
UPDATE receipts r SET next_try_at = now() + $4::interval
  FROM (SELECT item.* FROM unnest($1::date[], $2::uuid[], $3::uuid[]) AS item (received_on, supplier_id, fingerprint)
               CROSS JOIN LATERAL (
               SELECT FROM receipts WHERE received_on = item.received_on AND supplier_id = item.supplier_id
                  AND fingerprint = item.fingerprint AND message_id IS NULL
                  AND coalesce(next_try_at <= now(), false) FOR UPDATE SKIP LOCKED) free) v
 WHERE r.received_on = v.received_on AND r.supplier_id = v.supplier_id AND r.fingerprint = v.fingerprint
"""
#: For how long.
LOCKED = timedelta(minutes=1)

# Of the receipts that were checked for the last time, those that still match nothing.
ORPHANS = """
SELECT receipt.* FROM unnest($1::date[], $2::uuid[], $3::uuid[]) AS last (received_on, supplier_id, fingerprint)
       CROSS JOIN LATERAL (
       SELECT receipts.supplier_id, recipient, received_at FROM receipts
        WHERE received_on = last.received_on AND supplier_id = last.supplier_id
          AND fingerprint = last.fingerprint AND message_id IS NULL) receipt
"""


async def sweep(conn: Connection, *, policies: Mapping[UUID, str], limit: int = 1000) -> tuple[Applied, int]:
    """Check unmatched receipts that are due, those whose messages somebody keeps locked later than the others. Returns
    what was applied and how many became orphans.
    """
    # In order of arrival, and all for one number together: of several states of one message the first counts.
    of: dict[tuple[UUID, str], list[asyncpg.Record]] = {}
    for row in sorted(await conn.fetch(DUE, limit), key=lambda row: row["received_at"]):
        of.setdefault((row["supplier_id"], row["recipient"]), []).append(row)

    async def check(some: Sequence[Sequence[asyncpg.Record]]) -> tuple[Applied, int]:
        return await _check(conn, await conn.fetch(HOLD, *_keys(some)), policies)

    results, locked = await timers.around_locks(conn, list(of.values()), check)
    if locked:
        await conn.execute(PUT_OFF, *_keys(locked), LOCKED)
    orphans = sum(count for _, count in results)
    applied = Applied(*map(sum, zip(*(msgspec.structs.astuple(one) for one, _ in results), strict=True)))
    measures.RECEIPTS.add("late", by=applied.matched)
    measures.RECEIPTS.add("orphaned", by=orphans)
    return applied, orphans


def _keys(some: Sequence[Sequence[asyncpg.Record]]) -> list[list[object]]:
    rows = [row for each in some for row in each]
    return [[row[name] for row in rows] for name in ("received_on", "supplier_id", "fingerprint")]


async def _check(conn: Connection, rows: Sequence[asyncpg.Record], policies: Mapping[UUID, str]) -> tuple[Applied, int]:
    if not rows:
        return Applied(), 0
    # The next check is scheduled first: receipts that match now lose it again in the same transaction.
    pauses = [receipt_pause(row["tries"] + 1) for row in rows]
    await conn.execute(
        WAIT,
        [row["received_on"] for row in rows],
        [row["supplier_id"] for row in rows],
        [row["fingerprint"] for row in rows],
        [row["tries"] + 1 for row in rows],
        pauses,
    )
    came = sorted(rows, key=lambda row: row["received_at"])
    applied = await store(conn, [read(row) for row in came], policies=policies, again=True)
    last = [row for row, pause in zip(rows, pauses, strict=True) if pause is None]
    if not last:
        return applied, 0
    orphans = await conn.fetch(
        ORPHANS,
        [row["received_on"] for row in last],
        [row["supplier_id"] for row in last],
        [row["fingerprint"] for row in last],
    )
    await _count_orphans(conn, orphans, 1)
    return applied, len(orphans)


async def no_orphans(conn: Connection, rows: Sequence[asyncpg.Record]) -> None:
    """Uncount the orphans among these receipts (supplier_id, recipient, received_at, next_try_at)."""
    await _count_orphans(conn, [row for row in rows if row["next_try_at"] is None], -1)


async def _count_orphans(conn: Connection, rows: Sequence[asyncpg.Record], each: int) -> None:
    hours: dict[datetime, list[tuple[UUID, str, str, int]]] = {}
    for row in rows:
        number = phones.parse(f"+{row['recipient']}")
        event = row["supplier_id"], phones.country(number) if number else "", "orphaned", each
        hours.setdefault(reconciliation.hour_of(row["received_at"]), []).append(event)
    for hour, events in hours.items():
        await reconciliation.count(conn, events, hour)


# A number, and each shorter form of a recipient's that counts as the same (`keys.is_same`), has an index of its own. If
# hundreds of attempts met a supplier whose receipts match nothing, reading all receipts since each attempt took longer
# than a statement may.
_OF_NUMBER = f"""
SELECT keys[1] AS id_key, received_at, reference IS NOT NULL AS echoes FROM receipts
 WHERE {{number}} AND message_id IS NULL AND received_at >= attempt.started_at - interval '2 minutes'
   AND supplier_id = attempt.supplier_id AND cardinality(keys) > 0
   AND (reference IS NULL OR reference = attempt.reference)
 ORDER BY received_at LIMIT {MOST_FITTING}
"""
UNCERTAIN = f"""
SELECT attempt.n, fitting.id_key, fitting.echoes
  FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::integer[]) WITH ORDINALITY
       AS attempt (supplier_id, started_at, suffix, reference, n)
       CROSS JOIN LATERAL (
       SELECT receipt.*
         FROM generate_series(least({SHORTEST}, length(attempt.suffix)), length(attempt.suffix)) AS digits
              CROSS JOIN LATERAL (
              {_OF_NUMBER.format(number=f"{suffix_of('recipient')} = right(attempt.suffix, digits)")}) receipt
       UNION ALL
       ({_OF_NUMBER.format(number=f"{suffix_of('sender')} = attempt.suffix")})
       ORDER BY received_at LIMIT {MOST_FITTING}) fitting
 ORDER BY attempt.n, fitting.received_at
"""


class Uncertain(msgspec.Struct, frozen=True, gc=False):
    """An attempt whose answer was lost."""

    supplier_id: UUID
    started_at: datetime
    recipient: str
    reference: int
    #: Segments whose answers were lost.
    count: int = 1


async def find_for_uncertain(conn: Connection, attempts: Sequence[Uncertain]) -> list[list[str]]:
    """For each attempt, the ids of `count` unmatched receipts for it, or none. No receipt is assigned twice.

    They match by account, recipient, time and, if the supplier echoes it, our reference. If several attempts match the
    same receipts, none gets any until there is one for each of them, and for each segment to their number that was
    answered without an id. An attempt with several lost answers gets receipts only if there are exactly as many, and
    they match no other attempt. Assigned to the wrong segment or message, a receipt would hide one that never arrived.
    """
    rows = await conn.fetch(
        UNCERTAIN,
        [one.supplier_id for one in attempts],
        [one.started_at for one in attempts],
        [suffix(one.recipient) for one in attempts],
        [one.reference for one in attempts],
    )
    fitting: list[list[str]] = [[] for _ in attempts]
    anonymous: set[int] = set()
    for n, key, echoes in rows:
        if key not in fitting[n - 1]:
            fitting[n - 1].append(key)
        if not echoes:
            anonymous.add(n - 1)
    some = [n for n, keys in enumerate(fitting) if keys]
    others = await receipts_without_id.awaiting(
        conn,
        [
            (attempts[n].supplier_id, attempts[n].recipient, None if n in anonymous else attempts[n].reference)
            for n in some
        ],
    )
    without_id = dict(zip(some, others, strict=True))
    claims: Counter[tuple[UUID, str]] = Counter()
    for one, keys in zip(attempts, fitting, strict=True):
        claims.update({(one.supplier_id, key): one.count or 1 for key in keys})
    found: list[list[str]] = []
    taken: set[tuple[UUID, str]] = set()
    for n, (one, keys) in enumerate(zip(attempts, fitting, strict=True)):
        free = [key for key in keys if (one.supplier_id, key) not in taken]
        more = without_id.get(n, 0)
        wanted = max((claims[one.supplier_id, key] for key in keys), default=0) + more
        if one.count == 1:
            free = free[:1] if wanted <= len(keys) else []
        elif len(free) != one.count + more or wanted > one.count + more:
            free = []
        free = free[: one.count]
        taken.update((one.supplier_id, key) for key in free)
        found.append(free)
    return found


# Unlike in UNCERTAIN, only the reference proves anything: the answer to another message to this number may be on its
# way.
NAMED_BY_REFERENCE = f"""
SELECT attempt.n
  FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::integer[]) WITH ORDINALITY
       AS attempt (supplier_id, started_at, suffix, reference, n)
 WHERE EXISTS (
       SELECT FROM receipts
        WHERE {suffix_of("recipient")} = attempt.suffix AND message_id IS NULL AND cardinality(keys) > 0
          AND received_at >= attempt.started_at - interval '2 minutes'
          AND supplier_id = attempt.supplier_id AND reference = attempt.reference)
"""


async def named_by_reference(conn: Connection, attempts: Sequence[Uncertain]) -> set[int]:
    """The positions of the attempts that a waiting receipt names by our reference."""
    rows = await conn.fetch(
        NAMED_BY_REFERENCE,
        [one.supplier_id for one in attempts],
        [one.started_at for one in attempts],
        [suffix(one.recipient) for one in attempts],
        [one.reference for one in attempts],
    )
    return {row["n"] - 1 for row in rows}


def read(row: asyncpg.Record) -> ReceivedReceipt:
    """A stored receipt. Its raw bytes are stored elsewhere."""
    receipt = Receipt(
        keys=tuple(row["keys"]),
        state=ReceiptState(row["state"]),
        recipient=row["recipient"],
        sender=row["sender"],
        raw=b"",
        error=row["error"],
        reference=row["reference"],
        submitted=row["submitted"],
        delivered=row["delivered"],
        recipients=row["recipients"],
    )
    return ReceivedReceipt(row["supplier_id"], receipt, row["received_at"], row["fingerprint"])
