"""Counts of the outcomes of a campaign's messages: maintained, so that no read has to scan the messages.

Messages staged together form one range of ids, a chunk. Chunks that may still change are recounted periodically, soon
after a change and rarely otherwise, and the difference is added to the campaign's row. So a read costs one row, and the
code that moves messages knows nothing about campaigns.

The rule nobody may break: all code locks the campaign's row before its chunks, and the chunk and the campaign change in
one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from time import monotonic
from uuid import UUID

import asyncpg

from heliograph.base.database.pool import ROW_LOCKED, Connection
from heliograph.campaigns import plan
from heliograph.campaigns.channels.contract import DueCampaign
from heliograph.campaigns.channels.table import CHANNELS
from heliograph.queue import leases, timers

#: Chunks counted per transaction: at most some 50,000 messages, 50 ms; and transactions per run, or until it has taken
#: this many seconds. Thousands of small campaigns have thousands of chunks.
CHUNKS = 50
MOST, SECONDS = 20, 0.8
#: For how many seconds no run waits for a lock after one has waited in vain: others' campaigns are locked meanwhile.
LOCKS_FOR = 60.0
#: Pause between two counts of a chunk: half the time since the last change, within these bounds.
SOONEST, LATEST_QUEUED, LATEST_SENT = timedelta(seconds=1), timedelta(seconds=10), timedelta(seconds=60)
#: How often to recheck final statuses that late receipts can still improve, and for how long.
LATE, LATE_UNTIL = timedelta(hours=1), timedelta(days=10)
#: A campaign with missing receipts is completed this long after its last message was handed over.
PATIENCE = timedelta(hours=1)

#: The columns of a chunk that count the outcomes of its messages.
FATES = ("queued", "sent", "delivered", "read", "failed", "unknown", "canceled")
#: Those, and the column that counts part of the failed messages.
COUNTED = (*FATES, "never_sent")

# Ids of two processes, or from before and after the clock was set back, may lie between each other. If those of two
# chunks did, each would count messages of the other, its sum would never be right, and the campaign would not end.
BEGIN = """
INSERT INTO campaign_chunks (organization_id, campaign_id, first_id, last_id, queued, staged_at, changed_at, count_at)
SELECT $1, $2, $3, $4, $5, $6, $6, $6::timestamptz + interval '1 second'
 WHERE NOT coalesce((SELECT last_id >= $3 FROM campaign_chunks
                      WHERE organization_id = $1 AND campaign_id = $2 AND first_id <= $4
                      ORDER BY first_id DESC LIMIT 1), false)
RETURNING true
"""


async def begin(conn: Connection, due: DueCampaign, ids: Sequence[UUID]) -> bool:
    """Begin a chunk of messages with these ids, in order; False: another one has ids between them. Runs in the caller's
    transaction, which holds the campaign's row."""
    return bool(await conn.fetchval(BEGIN, due.organization_id, due.id, ids[0], ids[-1], len(ids), due.at))


ANY_DUE = "EXISTS (SELECT FROM campaign_chunks WHERE count_at <= now())"
DUE = """
SELECT organization_id, campaign_id, first_id FROM campaign_chunks
 WHERE count_at <= now() ORDER BY count_at LIMIT $1
"""
DUE_FREE = f"{DUE} FOR NO KEY UPDATE SKIP LOCKED"
LOCK = """
SELECT organization_id, id, channel FROM campaigns c
 WHERE (organization_id, id) IN (SELECT * FROM unnest($1::uuid[], $2::uuid[])) ORDER BY organization_id, id FOR UPDATE
"""
# The chunks of a campaign that stays locked would otherwise take up all of a batch, each time.
PUT_OFF = """
UPDATE campaign_chunks c SET count_at = now() + $4::interval
  FROM (SELECT organization_id, campaign_id, first_id
          FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS item (organization_id, campaign_id, first_id)
               CROSS JOIN LATERAL (
               SELECT FROM campaign_chunks c WHERE c.organization_id = item.organization_id
                  AND c.campaign_id = item.campaign_id AND c.first_id = item.first_id FOR UPDATE SKIP LOCKED) free) v
 WHERE c.organization_id = v.organization_id AND c.campaign_id = v.campaign_id AND c.first_id = v.first_id
"""


async def count_all_due(
    conn: Connection, *, most: int = MOST, waits: bool = True, locked: Callable[[], object] = lambda: None
) -> int:
    """Count the chunks that are due, as many as a run may; each transaction is a commit. Returns how many, with those
    put off. A campaign of which somebody keeps a row locked, as in an open session, is waited for once, if `waits`, and
    then counted later than others; `locked` is called after that."""
    counted, deadline = 0, monotonic() + SECONDS
    for _ in range(most):
        if waits:
            try:
                async with conn.transaction():
                    done = await count_due(conn)
            except ROW_LOCKED:
                waits, deadline = False, monotonic() + SECONDS
                locked()
                continue
        else:
            done = await _count_around_locks(conn)
        counted += done
        if done < CHUNKS or monotonic() >= deadline:
            break
    return counted


async def count_due(conn: Connection) -> int:
    """Count the chunks that are due, and complete campaigns that have nothing left to do; returns how many chunks were
    counted. Runs in the caller's transaction."""
    due = await conn.fetch(DUE, CHUNKS)
    if due:
        await conn.execute(leases.PATIENCE)  # others' campaigns are locked meanwhile
        await _count(conn, [tuple(row) for row in due])
    return len(due)


async def _count_around_locks(conn: Connection) -> int:
    """The same in transactions of its own, and without those of which a row is locked; returns how many chunks were
    counted or put off."""
    due = [tuple(row) for row in await conn.fetch(DUE_FREE, CHUNKS)]
    units = [list(group) for _, group in groupby(sorted(due), key=lambda chunk: chunk[:2])]
    _, left = await timers.around_locks(conn, units, lambda some: _count(conn, [one for unit in some for one in unit]))
    await _put_off(conn, [chunk for unit in left for chunk in unit])
    return len(due)


async def _count(conn: Connection, due: Sequence[tuple[UUID, UUID, UUID]]) -> None:
    of = sorted({chunk[:2] for chunk in due})
    locked = await conn.fetch(LOCK, [organization_id for organization_id, _ in of], [id for _, id in of])
    channels = {(row["organization_id"], row["id"]): row["channel"] for row in locked}
    await _put_off(conn, [chunk for chunk in due if chunk[:2] not in channels])
    by_channel: dict[str, list[tuple[UUID, UUID, UUID]]] = {}
    for chunk in due:
        if (channel := channels.get(chunk[:2])) is not None:
            by_channel.setdefault(channel, []).append(chunk)
    for channel, chunks in by_channel.items():
        await recount(conn, channel, chunks)


async def _put_off(conn: Connection, chunks: Sequence[tuple[UUID, UUID, UUID]]) -> None:
    if chunks:
        await conn.execute(PUT_OFF, *(list(column) for column in zip(*chunks, strict=True)), LATEST_SENT)


COUNTS = {
    channel.name: f"""
SELECT chunk.*, found.*, now() AS at
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS asked (organization_id, campaign_id, first_id)
       CROSS JOIN LATERAL (
       SELECT * FROM campaign_chunks c WHERE c.organization_id = asked.organization_id
          AND c.campaign_id = asked.campaign_id AND c.first_id = asked.first_id) chunk
       CROSS JOIN LATERAL ({channel.counted}) found
"""
    for channel in CHANNELS.values()
}
KEEP = """
UPDATE campaign_chunks c
   SET queued = v.queued, sent = v.sent, delivered = v.delivered, read = v.read, failed = v.failed,
       unknown = v.unknown, canceled = v.canceled, never_sent = v.never_sent,
       changed_at = v.changed_at, count_at = v.count_at
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[], $9::int[],
              $10::int[], $11::int[], $12::timestamptz[], $13::timestamptz[])
       AS v (organization_id, campaign_id, first_id, queued, sent, delivered, read, failed, unknown, canceled,
             never_sent, changed_at, count_at)
 WHERE c.organization_id = v.organization_id AND c.campaign_id = v.campaign_id AND c.first_id = v.first_id
"""
DROP = """
DELETE FROM campaign_chunks c
 USING unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS v (organization_id, campaign_id, first_id)
 WHERE c.organization_id = v.organization_id AND c.campaign_id = v.campaign_id AND c.first_id = v.first_id
"""
ADD = """
UPDATE campaigns c
   SET queued = c.queued + v.queued, sent = c.sent + v.sent, delivered = c.delivered + v.delivered,
       read = c.read + v.read, failed = c.failed + v.failed, unknown = c.unknown + v.unknown,
       canceled = c.canceled + v.canceled, never_sent = c.never_sent + v.never_sent,
       drained_at = CASE WHEN c.pending + c.queued + v.queued = 0 THEN coalesce(c.drained_at, now()) END
  FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::int[], $6::int[], $7::int[], $8::int[],
              $9::int[], $10::int[])
       AS v (organization_id, id, queued, sent, delivered, read, failed, unknown, canceled, never_sent)
 WHERE c.organization_id = v.organization_id AND c.id = v.id
RETURNING c.organization_id, c.id,
          c.status = 'running' AND c.step_at IS NULL AND c.pending = 0 AND c.queued = 0
          AND (c.sent = 0 OR c.drained_at <= now() - $11::interval) AS done
"""

# Messages handed over, delivered and refused between this count and the previous one: all that a chart needs, without
# reading messages.
MINUTES = """
INSERT INTO campaign_minutes AS known (organization_id, campaign_id, minute, sent, delivered, never_sent)
SELECT organization_id, campaign_id, date_trunc('minute', now()), sent, delivered, never_sent
  FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::int[])
       AS v (organization_id, campaign_id, sent, delivered, never_sent)
    ON CONFLICT (organization_id, campaign_id, minute) DO UPDATE
   SET sent = known.sent + excluded.sent, delivered = known.delivered + excluded.delivered,
       never_sent = known.never_sent + excluded.never_sent
"""


async def recount(conn: Connection, channel: str, chunks: Sequence[tuple[UUID, UUID, UUID]]) -> None:
    """Count chunks of a channel, given as (organization, campaign, first id), and update their campaigns' counts.

    Runs in the caller's transaction, which holds the campaigns' rows.
    """
    rows = await conn.fetch(COUNTS[channel], *(list(column) for column in zip(*chunks, strict=True)))
    kept: list[tuple[object, ...]] = []
    dropped: list[tuple[UUID, UUID, UUID]] = []
    moved: dict[tuple[UUID, UUID], list[int]] = {}
    for row in rows:
        key = (row["organization_id"], row["campaign_id"], row["first_id"])
        before = [row[name] for name in COUNTED]
        after = [row[f"{name}_now"] for name in COUNTED]
        # `never_sent` is part of the failed ones.
        if sum(after[: len(FATES)]) != sum(before[: len(FATES)]):
            after = before  # messages past their retention are gone: keep the last count
        difference = moved.setdefault(key[:2], [0] * len(COUNTED))
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            difference[place] += new - old
        count_at = _next(row, changed=after != before)
        if count_at is None:
            dropped.append(key)
        else:
            kept.append((*key, *after, row["at"] if after != before else row["changed_at"], count_at))
    if kept:
        await conn.execute(KEEP, *(list(column) for column in zip(*kept, strict=True)))
    if dropped:
        await conn.execute(DROP, *(list(column) for column in zip(*dropped, strict=True)))
    course = [(*campaign, *_course(difference)) for campaign, difference in moved.items()]
    if course := [one for one in course if any(one[2:])]:
        await conn.execute(MINUTES, *(list(column) for column in zip(*course, strict=True)))
    if moved:
        added = [(*campaign, *difference) for campaign, difference in moved.items()]
        for organization_id, id, done in await conn.fetch(
            ADD, *(list(column) for column in zip(*added, strict=True)), PATIENCE
        ):
            if done:
                await plan.move(conn, organization_id, id, "completed")


def _course(difference: Sequence[int]) -> tuple[int, int, int]:
    """(handed over, delivered, failed before that) in a difference by COUNTED."""
    change = dict(zip(COUNTED, difference, strict=True))
    delivered, never_sent = change["delivered"] + change["read"], change["never_sent"]
    return change["sent"] + delivered + change["failed"] + change["unknown"] - never_sent, delivered, never_sent


def _next(row: asyncpg.Record, *, changed: bool) -> datetime | None:
    """When to recount a chunk; None: nothing in it can change any more."""
    at: datetime = row["at"]
    if row["queued_now"] or row["sent_now"]:
        latest = LATEST_QUEUED if row["queued_now"] else LATEST_SENT
    elif row["late_now"] and at - row["staged_at"] < LATE_UNTIL:
        latest = LATE
    else:
        return None
    return at + (SOONEST if changed else min(max((at - row["changed_at"]) / 2, SOONEST), latest))
