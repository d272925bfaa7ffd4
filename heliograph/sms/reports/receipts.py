"""Receipts: stored, matched to their message and applied in one transaction, and only then acknowledged.

A receipt is matched by the supplier's id for the message, together with the recipient's last digits, since suppliers
use ids again; where the answer had no id, by all else that it says (`nameless.py`). It may come before the submit's
answer, twice, on another connection, days later or never:

    before the answer   stored unmatched; recording the answer looks for it (`adopt`)
    twice               meets its own fingerprint, and the state machine moves nothing the second time
    never               `close_silent` ends the message as `unknown` when its time is up
    fitting nothing     looked at again on the schedule of base/retry.py, then an orphan, which is counted

The rule nobody may break: nothing is acknowledged that is not committed, and nothing committed is forgotten.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.clock import now
from heliograph.base.database.pool import RANGED, Connection
from heliograph.base.retry import receipt_pause
from heliograph.sms.reports import nameless
from heliograph.sms.status import BY_RECEIPT, NO_RECEIPT, Move, move_many
from heliograph.suppliers.contract import Receipt, ReceiptState

#: Digits of an address that are compared: national and international forms agree in them.
SUFFIX = 8
#: A message of several parts, some delivered and none failed, is taken for delivered after this long without news.
QUIET = timedelta(minutes=15)


class ReceivedReceipt(msgspec.Struct, frozen=True, gc=False):
    """A receipt and the account that it came from."""

    supplier_id: UUID
    receipt: Receipt
    #: When it came; None: now.
    at: datetime | None = None


class Applied(msgspec.Struct, frozen=True):
    """What became of a batch of receipts."""

    #: Webhook deliveries queued.
    deliveries: int = 0
    matched: int = 0
    unmatched: int = 0


# A match wants one of the receipt's ids (the most trusted first) and an address that ends alike, where the receipt has
# one; of several messages with a recycled id, the newest. What fits none is `nameless` if a message to its recipient
# was answered without an id, for which key3 stands.
# A receipt that is here already is changed only if it now has a message and had none.
STORE = """
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                         $9::text[], $10::text[], $11::integer[], $12::text[], $13::bytea[], $14::timestamptz[],
                         $15::timestamptz[], $16::integer[], $17::integer[])
           WITH ORDINALITY AS item (supplier_id, fingerprint, key1, key2, key3, suffix1, suffix2, state, recipient,
                                    sender, reference, error, raw, received_at, next_try_at, submitted, delivered, n)
), matched AS MATERIALIZED (
    SELECT item.*, part.organization_id, part.message_id, part.attempt, part.part, part.parts
      FROM item LEFT JOIN LATERAL (
           SELECT organization_id, message_id, attempt, part, parts FROM sms_parts
            WHERE supplier_id = item.supplier_id AND id_key IN (item.key1, item.key2)
              AND (recipient_suffix IN (item.suffix1, item.suffix2) OR item.suffix1 = '')
            ORDER BY id_key = item.key1 DESC, id_key = item.key2 DESC, created_at DESC LIMIT 1) part ON true
), stored AS (
    INSERT INTO receipts AS known (received_on, supplier_id, fingerprint, keys, state, recipient, sender, reference,
                                   error, raw, received_at, organization_id, message_id, attempt, part, next_try_at,
                                   submitted, delivered)
    SELECT (received_at AT TIME ZONE 'UTC')::date, supplier_id, fingerprint, array_remove(ARRAY[key1, key2], NULL),
           state, recipient, sender, reference, error, raw, received_at, organization_id, message_id, attempt, part,
           CASE WHEN message_id IS NULL THEN next_try_at END, submitted, delivered
      FROM matched
    ON CONFLICT (received_on, supplier_id, fingerprint) DO UPDATE
       SET organization_id = excluded.organization_id, message_id = excluded.message_id, attempt = excluded.attempt,
           part = excluded.part, next_try_at = NULL
     WHERE known.message_id IS NULL AND excluded.message_id IS NOT NULL
)
SELECT organization_id, message_id, attempt, part, parts,
       message_id IS NULL AND EXISTS (
           SELECT FROM sms_parts WHERE supplier_id = matched.supplier_id AND id_key = matched.key3) AS nameless
  FROM matched ORDER BY n
"""


async def store(
    conn: Connection, received: Sequence[ReceivedReceipt], *, policies: Mapping[UUID, str], again: bool = False
) -> Applied:
    """Store receipts, match them, and move their messages: `match` and the moves it finds."""
    moves, matched = await match(conn, received, policies=policies, again=again)
    _, deliveries = await move_many(conn, moves)
    return Applied(deliveries=deliveries, matched=matched, unmatched=len(received) - matched)


async def match(
    conn: Connection, received: Sequence[ReceivedReceipt], *, policies: Mapping[UUID, str], again: bool = False
) -> tuple[list[Move], int]:
    """Store receipts and match them. Returns the moves that follow, which are the caller's to make in the same
    transaction, and how many receipts have a message.

    `policies`: for each supplier, whose receipts decide a message of several parts ("all", "any", "first", "last").
    `again`: they were looked at before. One that names an id may be ahead of its answer, so only then it is taken for
    that of a message which was answered without one.
    """
    at = now()
    first = at + timedelta(seconds=receipt_pause(0) or 0)
    unique = {_fingerprint(one, one.at or at): one for one in received}
    arrived = list(unique)
    # In one order: a supplier that sends receipts again may do so on another worker's session at the same time.
    unique = dict(sorted(unique.items()))
    items = list(unique.values())
    keys = [_keys(one.receipt, nameless=again or not one.receipt.keys) for one in items]
    rows = await conn.fetch(
        STORE,
        [one.supplier_id for one in items],
        list(unique),
        [key[0] for key in keys],
        [key[1] for key in keys],
        [key[2] for key in keys],
        [suffix(clean(one.receipt.recipient)) for one in items],
        [suffix(clean(one.receipt.sender)) for one in items],
        [one.receipt.state.value for one in items],
        [clean(one.receipt.recipient) for one in items],
        [clean(one.receipt.sender) for one in items],
        [one.receipt.reference for one in items],
        [clean(one.receipt.error) for one in items],
        [one.receipt.raw for one in items],
        [one.at or at for one in items],
        [first for _ in items],
        [one.receipt.submitted for one in items],
        [one.receipt.delivered for one in items],
    )
    if any(row["nameless"] for row in rows):
        rows = await _match_nameless(conn, items, list(unique), keys, rows, at)
    moves: dict[UUID, Move] = {}
    several: list[tuple[ReceivedReceipt, asyncpg.Record]] = []
    matched = 0
    found = dict(zip(unique, rows, strict=True))
    for fingerprint in arrived:
        one, row = unique[fingerprint], found[fingerprint]
        if row["message_id"] is None:
            continue
        matched += 1
        status = BY_RECEIPT.get(one.receipt.state)
        if status is None:
            continue
        if row["parts"] > 1:
            several.append((one, row))
        else:
            move = _move(row["organization_id"], row["message_id"], status, one.at or at, one.supplier_id)
            if _overrides(moves.setdefault(move.message_id, move).status, status):
                moves[move.message_id] = move
    for move in await _decide_parts(conn, several, policies, at):
        moves.setdefault(move.message_id, move)
    return list(moves.values()), matched


async def _match_nameless(
    conn: Connection,
    items: Sequence[ReceivedReceipt],
    fingerprints: Sequence[UUID],
    keys: Sequence[tuple[str | None, str | None, str | None]],
    rows: Sequence[asyncpg.Record],
    at: datetime,
) -> list[asyncpg.Record]:
    """The rows of `STORE`, with those that could be matched without an id."""
    found = await nameless.match(
        conn,
        [
            nameless.Nameless(
                one.supplier_id,
                key[2] or "",
                suffix(clean(one.receipt.sender)),
                one.receipt.reference,
                (one.at or at).astimezone(UTC).date(),
                one.at or at,
                fingerprint,
            )
            for one, key, fingerprint, row in zip(items, keys, fingerprints, rows, strict=True)
            if row["nameless"]
        ],
    )
    return [found.get(fingerprint, row) for fingerprint, row in zip(fingerprints, rows, strict=True)]


# Receipts of these ids that came before their submit's answer, oldest first. Each of a receipt's two ids has an index
# of its own: a supplier whose receipts fit nothing must not make every answer read all of them.
EARLY = """
SELECT receipt.* FROM unnest($1::uuid[], $2::text[]) AS answer (supplier_id, id_key) CROSS JOIN LATERAL (
       SELECT supplier_id, keys, state, recipient, sender, reference, error, raw, received_at, submitted, delivered
         FROM receipts WHERE supplier_id = answer.supplier_id AND keys[1] = answer.id_key
          AND message_id IS NULL AND next_try_at IS NOT NULL
       UNION ALL
       SELECT supplier_id, keys, state, recipient, sender, reference, error, raw, received_at, submitted, delivered
         FROM receipts WHERE supplier_id = answer.supplier_id AND keys[2] = answer.id_key
          AND message_id IS NULL AND next_try_at IS NOT NULL) receipt
 ORDER BY received_at
"""
ANY_UNMATCHED = "SELECT EXISTS (SELECT FROM receipts WHERE message_id IS NULL AND next_try_at IS NOT NULL)"


async def early(
    conn: Connection, answers: Sequence[tuple[UUID, str]], *, policies: Mapping[UUID, str]
) -> tuple[list[Move], int]:
    """Match the receipts that came before these answers: (supplier, id key). Returns what `match` does."""
    if not answers or not await conn.fetchval(ANY_UNMATCHED):
        return [], 0
    rows = await conn.fetch(EARLY, [supplier for supplier, _ in answers], [key for _, key in answers])
    return await match(conn, [_received(row) for row in rows], policies=policies) if rows else ([], 0)


async def adopt(conn: Connection, answers: Sequence[tuple[UUID, str]], *, policies: Mapping[UUID, str]) -> Applied:
    """Apply the receipts that came before these answers. Runs in the caller's transaction."""
    moves, matched = await early(conn, answers, policies=policies)
    _, deliveries = await move_many(conn, moves)
    return Applied(deliveries=deliveries, matched=matched)


ANY_DUE = "EXISTS (SELECT FROM receipts WHERE message_id IS NULL AND next_try_at <= now())"
DUE = """
SELECT supplier_id, keys, state, recipient, sender, reference, error, raw, received_at, submitted, delivered,
       received_on, fingerprint, tries
  FROM receipts WHERE message_id IS NULL AND next_try_at <= now()
 ORDER BY next_try_at LIMIT $1 FOR UPDATE SKIP LOCKED
"""
WAIT = """
UPDATE receipts SET tries = later.tries, next_try_at = received_at + make_interval(secs => later.pause)
  FROM unnest($1::date[], $2::uuid[], $3::uuid[], $4::smallint[], $5::float8[])
       AS later (received_on, supplier_id, fingerprint, tries, pause)
 WHERE receipts.received_on = later.received_on AND receipts.supplier_id = later.supplier_id
   AND receipts.fingerprint = later.fingerprint AND receipts.message_id IS NULL
"""


# Of receipts that were looked at for the last time, those that still fit nothing.
ORPHANS = """
SELECT count(*) FROM unnest($1::date[], $2::uuid[], $3::uuid[]) AS last (received_on, supplier_id, fingerprint)
       CROSS JOIN LATERAL (
       SELECT FROM receipts WHERE received_on = last.received_on AND supplier_id = last.supplier_id
          AND fingerprint = last.fingerprint AND message_id IS NULL) receipt
"""


async def sweep(conn: Connection, *, policies: Mapping[UUID, str], limit: int = 1000) -> tuple[Applied, int]:
    """Look again at unmatched receipts that are due. Returns what was applied and how many became orphans.

    Runs in the caller's transaction.
    """
    rows = await conn.fetch(DUE, limit)
    if not rows:
        return Applied(), 0
    # The next look is set first: what is matched now loses it again in the same transaction.
    pauses = [receipt_pause(row["tries"] + 1) for row in rows]
    await conn.execute(
        WAIT,
        [row["received_on"] for row in rows],
        [row["supplier_id"] for row in rows],
        [row["fingerprint"] for row in rows],
        [row["tries"] + 1 for row in rows],
        pauses,
    )
    applied = await store(conn, [_received(row) for row in rows], policies=policies, again=True)
    last = [row for row, pause in zip(rows, pauses, strict=True) if pause is None]
    if not last:
        return applied, 0
    orphans: int = await conn.fetchval(
        ORPHANS,
        [row["received_on"] for row in last],
        [row["supplier_id"] for row in last],
        [row["fingerprint"] for row in last],
    )
    return applied, orphans


UNCERTAIN = """
SELECT attempt.n, fitting.id_key
  FROM unnest($1::uuid[], $2::timestamptz[], $3::text[], $4::integer[]) WITH ORDINALITY
       AS attempt (supplier_id, started_at, suffix, reference, n)
       CROSS JOIN LATERAL (
       SELECT keys[1] AS id_key FROM receipts
        WHERE supplier_id = attempt.supplier_id AND message_id IS NULL AND cardinality(keys) > 0
          AND received_at >= attempt.started_at - interval '2 minutes'
          AND (right(recipient, 8) = attempt.suffix OR right(sender, 8) = attempt.suffix)
          AND (reference IS NULL OR reference = attempt.reference)
        ORDER BY received_at LIMIT 20) fitting
 ORDER BY attempt.n
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
    """For each attempt, the ids of `count` unmatched receipts that speak of it, or none. No receipt is given out twice.

    They fit by account, recipient, time and, where the supplier echoes it, our reference. An attempt of which several
    answers were lost gets receipts only if there are exactly as many, and they fit no other attempt: taken for the
    wrong segment, or the wrong message, they would hide one that never arrived.
    """
    rows = await conn.fetch(
        UNCERTAIN,
        [one.supplier_id for one in attempts],
        [one.started_at for one in attempts],
        [suffix(one.recipient) for one in attempts],
        [one.reference for one in attempts],
    )
    fitting: list[list[str]] = [[] for _ in attempts]
    for n, key in rows:
        if key not in fitting[n - 1]:
            fitting[n - 1].append(key)
    claims = Counter((one.supplier_id, key) for one, keys in zip(attempts, fitting, strict=True) for key in keys)
    found: list[list[str]] = []
    taken: set[tuple[UUID, str]] = set()
    for one, keys in zip(attempts, fitting, strict=True):
        free = [key for key in keys if (one.supplier_id, key) not in taken]
        if one.count == 1:
            free = free[:1]
        elif len(free) != one.count or any(claims[one.supplier_id, key] > 1 for key in free):
            free = []
        taken.update((one.supplier_id, key) for key in free)
        found.append(free)
    return found


def clean(text: str) -> str:
    """A supplier's word as it can be stored: PostgreSQL takes no NUL, and nobody needs a long one."""
    return text.replace("\0", "")[:255]


def suffix(address: str) -> str:
    """What is compared of an address: its last digits, or a name as it is."""
    return address[-SUFFIX:]


def weak_key(recipient: str) -> str:
    """Stands for the id of a submit that was accepted without one."""
    return f"to:{suffix(recipient)}"


def decide(policy: str, parts: int, states: Mapping[int, str], taken: int) -> str | None:
    """Status of a message of `parts` parts from the final states of some of them; None: not decided yet.

    `taken`: parts that the supplier has. While it has not all of them, nothing is decided: the rest will still be sent.
    One part that failed fails the message, since what arrives of it cannot be read.
    """
    if taken < parts:
        return None
    failed = next((state for _, state in sorted(states.items()) if state != "delivered"), None)
    if failed is not None:
        return failed
    decisive = {"first": 1, "last": parts}.get(policy)
    if decisive is not None:
        return states.get(decisive)
    wanted = 1 if policy == "any" else parts
    return "delivered" if len(states) >= wanted else None


# As with messages, the first word counts, but for `delivered` after `expired`.
SET_PARTS = """
UPDATE sms_parts SET state = v.state
  FROM unnest($1::uuid[], $2::smallint[], $3::smallint[], $4::text[]) AS v (message_id, attempt, part, state)
 WHERE sms_parts.message_id = v.message_id AND sms_parts.parts > 1 AND sms_parts.attempt = v.attempt
   AND (sms_parts.part = v.part OR v.part = 0)
   AND (sms_parts.state IS NULL OR sms_parts.state = 'expired' AND v.state = 'delivered')
"""
PARTS = """
SELECT supplier_id, organization_id, message_id, attempt, part, parts, state FROM sms_parts
 WHERE message_id = ANY ($1) AND parts > 1
"""


async def _decide_parts(
    conn: Connection, several: list[tuple[ReceivedReceipt, asyncpg.Record]], policies: Mapping[UUID, str], at: datetime
) -> list[Move]:
    if not several:
        return []
    # Part 0 stands for all of them: one receipt that counts every part. An UPDATE takes one row for each part.
    words: dict[tuple[UUID, int, int], str] = {}
    for one, row in several:
        part = (row["message_id"], row["attempt"], 0 if _counts_all(one.receipt, row["parts"]) else row["part"])
        word = BY_RECEIPT[one.receipt.state]
        if _overrides(words.setdefault(part, word), word):
            words[part] = word
    words = dict(sorted(words.items()))
    await conn.execute(
        SET_PARTS,
        [message_id for message_id, _, _ in words],
        [attempt for _, attempt, _ in words],
        [part for _, _, part in words],
        list(words.values()),
    )
    groups: dict[tuple[UUID, int], list[asyncpg.Record]] = {}
    for row in await conn.fetch(PARTS, list({row["message_id"] for _, row in several})):
        groups.setdefault((row["message_id"], row["attempt"]), []).append(row)
    moves = []
    for rows in groups.values():
        # A part that was sent twice has two ids, and has arrived if one of them has.
        states: dict[int, str] = {}
        for row in rows:
            if row["state"] is not None and states.get(row["part"]) != "delivered":
                states[row["part"]] = row["state"]
        taken = len({row["part"] for row in rows})
        status = decide(policies.get(rows[0]["supplier_id"], "all"), rows[0]["parts"], states, taken)
        if status is not None:
            moves.append(_move(rows[0]["organization_id"], rows[0]["message_id"], status, at, rows[0]["supplier_id"]))
    return moves


# From the parts that wait and are old enough to their messages, and what the other parts say: all of them are there,
# or some were never sent.
QUIET_PARTS = """
WITH waiting AS MATERIALIZED (
    SELECT DISTINCT organization_id, message_id FROM sms_parts
     WHERE parts > 1 AND state IS NULL AND created_at BETWEEN now() - interval '4 days' AND now() - $1::interval
)
SELECT waiting.organization_id, waiting.message_id
  FROM waiting CROSS JOIN LATERAL (
       SELECT FROM sms_parts WHERE message_id = waiting.message_id AND parts > 1
        GROUP BY attempt HAVING count(DISTINCT part) = max(parts) AND bool_or(state = 'delivered')
           AND bool_and(coalesce(state, 'delivered') = 'delivered') LIMIT 1) heard
 WHERE NOT EXISTS (SELECT FROM receipts r
                    WHERE r.message_id = waiting.message_id AND r.received_at > now() - $1::interval)
 LIMIT 1000
"""


async def close_quiet(conn: Connection) -> int:
    """End messages of several parts of which some were delivered, none failed, and no more was heard for a while."""
    at = now()
    rows = await conn.fetch(QUIET_PARTS, QUIET)
    # Parts before messages, as whoever applies receipts locks them.
    await conn.execute(
        "UPDATE sms_parts SET state = 'delivered' WHERE message_id = ANY ($1) AND parts > 1 AND state IS NULL",
        [message for _, message in rows],
    )
    moved, _ = await move_many(conn, [_move(org, message, "delivered", at) for org, message in rows])
    return len(moved)


# The place in time is kept with the timer; it moves on in the transaction that closes what lies behind it.
ADVANCE = """
UPDATE timers SET done_until = least(place.start + $2::interval, now() - $1::interval)
  FROM (SELECT name, coalesce(done_until, now() - $1::interval - interval '1 day') AS start
          FROM timers WHERE name = 'silent' FOR UPDATE) place
 WHERE timers.name = place.name
RETURNING place.start, done_until
"""
SILENT = """
SELECT DISTINCT part.organization_id, part.message_id
  FROM sms_parts part CROSS JOIN LATERAL (
       SELECT FROM messages WHERE organization_id = part.organization_id AND id = part.message_id AND status = 'sent') m
 WHERE part.created_at > $1 AND part.created_at <= $2
"""


async def close_silent(conn: Connection, *, deadline: timedelta, span: timedelta) -> int:
    """End messages that were sent `deadline` ago and of which no receipt told the end: they become `unknown`.

    Moves over time in steps of `span` and keeps its place in the timers table, so no message is passed over while no
    worker runs. Returns how many were closed. Runs in the caller's transaction.
    """
    place = await conn.fetchrow(ADVANCE, deadline, span)
    if place is None:
        return 0
    await conn.execute(RANGED)
    at = now()
    rows = await conn.fetch(SILENT, place["start"], place["done_until"])
    moved, _ = await move_many(conn, [Move(org, message, "unknown", at, NO_RECEIPT) for org, message in rows])
    return len(moved)


def _move(organization_id: UUID, message_id: UUID, status: str, at: datetime, supplier_id: UUID | None = None) -> Move:
    failure = None if status == "delivered" else status
    return Move(organization_id, message_id, status, at, failure, supplier_id=supplier_id)


def _overrides(old: str, new: str) -> bool:
    """True if of two words on one message, both final, the second is the one to believe."""
    return old == "expired" and new == "delivered"


def _counts_all(receipt: Receipt, parts: int) -> bool:
    return receipt.submitted == parts and receipt.delivered == parts


def _keys(receipt: Receipt, *, nameless: bool) -> tuple[str | None, str | None, str | None]:
    one, two, *_ = (*(clean(key) for key in receipt.keys), None, None)
    return one, two, weak_key(clean(receipt.recipient)) if nameless and receipt.recipient else None


def _fingerprint(one: ReceivedReceipt, at: datetime) -> UUID:
    """The same receipt sent again has the same one; the day keeps recycled ids apart."""
    receipt = one.receipt
    text = "|".join([clean(receipt.recipient), receipt.state, *[clean(key) for key in receipt.keys[:2]], ""])
    day = at.toordinal().to_bytes(4, "big")
    digest = hashlib.blake2b(one.supplier_id.bytes + day + text.encode() + receipt.raw, digest_size=16)
    return UUID(bytes=digest.digest())


def _received(row: asyncpg.Record) -> ReceivedReceipt:
    receipt = Receipt(
        keys=tuple(row["keys"]),
        state=ReceiptState(row["state"]),
        recipient=row["recipient"],
        sender=row["sender"],
        raw=row["raw"],
        error=row["error"],
        reference=row["reference"],
        submitted=row["submitted"],
        delivered=row["delivered"],
    )
    return ReceivedReceipt(row["supplier_id"], receipt, row["received_at"])
