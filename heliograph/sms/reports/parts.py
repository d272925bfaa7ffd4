"""Messages with several parts: how receipts for parts decide about the whole.

The rule nobody may break: nothing is decided until the supplier has all parts, and one failed part fails the message.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.queue import timers
from heliograph.sms.reports.keys import PartId, ReceivedReceipt
from heliograph.sms.status import BY_RECEIPT, Move, move_many
from heliograph.suppliers.contract import Receipt

#: A message with several parts, some delivered and none failed, counts as delivered after this long without news.
QUIET = timedelta(minutes=15)

KEEP = """
INSERT INTO sms_parts (answered_on, created_at, supplier_id, id_key, message_id, attempt, part, parts, organization_id,
                       recipient_suffix)
SELECT ($1::timestamptz AT TIME ZONE 'UTC')::date, $1, part.*
  FROM unnest($2::uuid[], $3::text[], $4::uuid[], $5::smallint[], $6::smallint[], $7::smallint[], $8::uuid[],
              $9::text[]) AS part
ON CONFLICT DO NOTHING
"""


async def keep(conn: Connection, ids: Sequence[PartId], at: datetime) -> None:
    """Store the ids of parts that have just been answered, except those stored in their attempt."""
    rows = [one for one in ids if not one.is_in_attempt(at)]
    if rows:
        await conn.execute(KEEP, at, *(list(column) for column in zip(*rows, strict=True)))


def decide(policy: str, parts: int, states: Mapping[int, str], taken: int) -> str | None:
    """The status of a message of `parts` parts, from the final states of some of them; None: not yet decided.

    `taken`: number of parts that the supplier has. Nothing is decided until it has all of them: the rest will still be
    sent. One failed part fails the message, since the rest cannot be read.
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


# Receipts for other parts of these messages may be being applied on another connection: neither would see the other's,
# and none would decide. In one order, so that two batches cannot deadlock.
LOCK_PARTS = """
SELECT FROM sms_parts WHERE message_id = ANY ($1) AND parts > 1
 ORDER BY message_id, attempt, part, id_key FOR NO KEY UPDATE
"""
# As with messages, the first state counts, except that `delivered` replaces `expired`.
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


async def apply(
    conn: Connection, several: list[tuple[ReceivedReceipt, asyncpg.Record]], policies: Mapping[UUID, str], at: datetime
) -> list[Move]:
    """Record receipts for parts; returns the moves of the messages that they decide."""
    if not several:
        return []
    # Part 0 stands for all of them: one receipt that counts every part. An UPDATE would apply any one of several rows
    # for the same part, so they are combined here.
    words: dict[tuple[UUID, int, int], str] = {}
    for one, row in several:
        part = (row["message_id"], row["attempt"], 0 if _counts_all(one.receipt, row["parts"]) else row["part"])
        word = BY_RECEIPT[one.receipt.state]
        if overrides(words.setdefault(part, word), word):
            words[part] = word
    words = dict(sorted(words.items()))
    messages = list({row["message_id"] for _, row in several})
    await conn.execute(LOCK_PARTS, messages)
    await conn.execute(
        SET_PARTS,
        [message_id for message_id, _, _ in words],
        [attempt for _, attempt, _ in words],
        [part for _, _, part in words],
        list(words.values()),
    )
    blamed = {row["message_id"] for one, row in several if one.receipt.recipients}
    return await _decided(conn, messages, policies, at, blamed)


# Whether a receipt blamed the recipient is not kept with the part.
BLAMED = "SELECT DISTINCT message_id FROM receipts WHERE message_id = ANY ($1) AND recipients"


async def completed(
    conn: Connection, messages: Sequence[UUID], policies: Mapping[UUID, str], at: datetime
) -> list[Move]:
    """The moves of messages whose last parts have just been stored, as far as receipts for the others, which could not
    decide until now, decide about them."""
    if not messages:
        return []
    await conn.execute(LOCK_PARTS, messages)
    moves = await _decided(conn, messages, policies, at, frozenset())
    if not moves:
        return []
    blamed = {row["message_id"] for row in await conn.fetch(BLAMED, [one.message_id for one in moves])}
    return [msgspec.structs.replace(one, recipients=one.message_id in blamed) for one in moves]


async def _decided(
    conn: Connection, messages: Sequence[UUID], policies: Mapping[UUID, str], at: datetime, blamed: Collection[UUID]
) -> list[Move]:
    groups: dict[tuple[UUID, int], list[asyncpg.Record]] = {}
    for row in await conn.fetch(PARTS, messages):
        groups.setdefault((row["message_id"], row["attempt"]), []).append(row)
    moves = []
    for rows in groups.values():
        # A part that was sent twice has two ids, and has arrived if either has.
        states: dict[int, str] = {}
        for row in rows:
            if row["state"] is not None and states.get(row["part"]) != "delivered":
                states[row["part"]] = row["state"]
        taken = len({row["part"] for row in rows})
        status = decide(policies.get(rows[0]["supplier_id"], "all"), rows[0]["parts"], states, taken)
        if status is not None:
            move = move_to(rows[0]["organization_id"], rows[0]["message_id"], status, at, rows[0]["supplier_id"])
            moves.append(msgspec.structs.replace(move, recipients=move.message_id in blamed))
    return moves


#: The timer that ends quiet messages, which keeps its position.
TIMER = "quiet"
#: Waiting parts that one step looks at, and the maximum steps per run: of a supplier that delivers no receipts, all
#: parts wait.
STEP, MOST = 5_000, 20
PLACE = "SELECT coalesce(done_until, '-infinity') FROM timers WHERE name = $1 FOR UPDATE"
# Starts from waiting parts that are old enough, in the order of time, and reads the states of their messages' other
# parts. All parts must exist: missing ones were never sent.
QUIET_PARTS = """
WITH looked AS MATERIALIZED (
    SELECT organization_id, message_id, created_at FROM sms_parts
     WHERE parts > 1 AND state IS NULL AND created_at > greatest($2, now() - interval '4 days')
       AND created_at <= now() - $1::interval
     ORDER BY created_at FETCH FIRST ($3) ROWS WITH TIES
)
SELECT (SELECT count(*) FROM looked) AS rows, (SELECT max(created_at) FROM looked) AS last,
       ARRAY(SELECT (waiting.organization_id, waiting.message_id)
               FROM (SELECT DISTINCT organization_id, message_id FROM looked) waiting CROSS JOIN LATERAL (
                    SELECT FROM sms_parts WHERE message_id = waiting.message_id AND parts > 1
                     GROUP BY attempt HAVING count(DISTINCT part) = max(parts) AND bool_or(state = 'delivered')
                        AND bool_and(coalesce(state, 'delivered') = 'delivered') LIMIT 1) heard
              WHERE NOT EXISTS (SELECT FROM receipts r
                                 WHERE r.message_id = waiting.message_id AND r.received_at > now() - $1::interval)
       ) AS quiet
"""


async def close_quiet(conn: Connection, *, limit: int = STEP, most: int = MOST) -> int:
    """End messages with several parts of which some were delivered, none failed, and nothing has arrived for a
    while; returns how many.

    Looks at the parts that wait for a receipt, `limit` of them in each of at most `most` steps; the next run continues
    where this one stopped, and after the last part from the beginning. Then it finds again what was left because rows
    of its organization are locked.
    """
    closed = 0
    for _ in range(most):
        async with conn.transaction():
            after = await conn.fetchval(PLACE, TIMER)
            if after is None:
                break
            row = await conn.fetchrow(QUIET_PARTS, QUIET, after, limit)
            assert row is not None
            is_last = row["rows"] < limit
            await timers.reach(conn, TIMER, None if is_last else row["last"])
        quiet = [tuple(one) for one in row["quiet"]]
        done, _ = await timers.end_by_organization(conn, quiet, partial(_close, conn))
        closed += sum(done)
        if is_last:
            break
    return closed


async def _close(conn: Connection, quiet: Sequence[tuple[UUID, UUID]]) -> int:
    at = now()
    # Parts before messages, in the same order as when receipts are applied.
    await conn.execute(
        "UPDATE sms_parts SET state = 'delivered' WHERE message_id = ANY ($1) AND parts > 1 AND state IS NULL",
        [message for _, message in quiet],
    )
    moved = await move_many(conn, [move_to(org, message, "delivered", at) for org, message in quiet])
    return len(moved.ids)


def move_to(
    organization_id: UUID, message_id: UUID, status: str, at: datetime, supplier_id: UUID | None = None
) -> Move:
    """The move for a receipt's state."""
    failure = None if status == "delivered" else status
    return Move(organization_id, message_id, status, at, failure, supplier_id=supplier_id)


def overrides(old: str, new: str) -> bool:
    """True if a second final state of a message replaces the first."""
    return old == "expired" and new == "delivered"


def _counts_all(receipt: Receipt, parts: int) -> bool:
    return receipt.submitted == parts and receipt.delivered == parts
