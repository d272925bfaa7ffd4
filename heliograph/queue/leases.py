"""The queue: rows that represent work, claimed under leases.

A row is one unit of work of a `kind` ("sms", "webhook", …) in a `line` (a supplier, an endpoint), in a `lane` (0 goes
before 1), for one organization. A claim leases rows for a while under a random token; only the holder of a row's token
can finish it or put it back, so a worker that was presumed dead can no longer touch what another has taken over. All
times are the database's. A row is deleted when its work is done. The row of a message also carries the attempt that is
under way (`sending/attempts.py`).

`backlog` and `turns` find and claim rows; this file contains what their holder does with them. A row is never written
with a `due_at` earlier than the beginning of its transaction: workers look for work by reading what became due, in
chronological order. A row that is put back but keeps its place has that place in `since`.

The rule nobody may break: what was claimed under a token is changed only under that token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID, uuid4

import asyncpg
import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid_of

#: An SQL condition: a row is due within a month, as after every pause between two tries. Messages of a paused campaign
#: are postponed for decades.
NOT_PUT_OFF = "due_at < now() + interval '30 days'"

#: The line for work that has no supplier yet.
UNROUTED = UUID(int=0)
#: The line for messages held by the guard: no worker serves it. Their rows are due PARKED after they expire, so that no
#: worker looks at them, and those that have expired are found without reading the others.
GUARDED = UUID(int=3)
PARKED = timedelta(days=3650)
#: Lanes: single messages, and campaigns.
SINGLE, BULK = 0, 1


#: A join that adds, as `holder`, the worker that has leased a row of the queue `q`: the token ends with the same bytes
#: as the worker's id.
HOLDER = "LEFT JOIN workers holder ON right(holder.id::text, 17) = right(q.lease_token::text, 17)"


def new_token(worker: UUID | None = None) -> UUID:
    """A random token; for a worker, one that identifies it."""
    token = uuid4()
    return token if worker is None else uuid_of(token.bytes[:8] + worker.bytes[8:])


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A row that is claimed, or picked, i.e. locked by the transaction that decides about it."""

    kind: str
    #: For a picked row, the token of the lease that it will get if its attempt begins.
    token: UUID
    line: UUID
    lane: int
    organization_id: UUID
    id: UUID
    tries: int
    #: True if it was claimed before: an earlier try may have had effects.
    again: bool
    #: When it became due: its place in the line.
    due_at: datetime
    #: For a message, the last attempt that began (0: none); the fields below describe that attempt.
    attempt: int = 0
    #: When it began, if it is under way; None: it has ended.
    begun_at: datetime | None = None
    target_id: UUID | None = None
    reference: int | None = None
    continues: int | None = None
    parts: int = 1
    #: Its position while it is picked: the block, and the number within it (`ctid`). A locked row does not move.
    place: tuple[int, int] | None = None


# Skips from one line to the next.
OCCUPIED = """
WITH RECURSIVE found (line, n) AS (
    (SELECT line, 1 FROM queue WHERE kind = $1 AND line > $2 ORDER BY line LIMIT 1)
    UNION ALL
    SELECT next.line, found.n + 1 FROM found CROSS JOIN LATERAL (
        SELECT line FROM queue WHERE kind = $1 AND line > found.line ORDER BY line LIMIT 1) next
     WHERE found.n < $3
)
SELECT line FROM found
"""


async def occupied(
    conn: Connection, kind: str, *, after: UUID = UNROUTED, limit: int = 1000
) -> tuple[list[UUID], UUID]:
    """Lines of `kind` that have any work, including future work, in order, and where to continue (UNROUTED: from the
    beginning)."""
    lines = [row["line"] for row in await conn.fetch(OCCUPIED, kind, after, limit)]
    return lines, lines[-1] if len(lines) == limit else UNROUTED


# `line` is written so that no index matches: on a table that the planner believes to be empty, it would read a whole
# line for each row (a skip scan).
HELD = """
WITH held AS MATERIALIZED (
    SELECT mine.place{columns}
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]{arrays}) AS item (id, line, token{names})
           CROSS JOIN LATERAL (
           SELECT ctid AS place FROM queue
            WHERE queue.id = item.id AND queue.line IS NOT DISTINCT FROM item.line AND queue.lease_token = item.token
              FOR UPDATE) mine
)
"""
# Not locked first: nobody else may change a row under a lease. If a worker that took over the lease is writing the row
# right now, this waits for it and then compares the token in the new version. The version that this statement sees
# keeps its position until the statement ends.
FINISH = """
WITH held AS MATERIALIZED (
    SELECT mine.place
      FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS item (id, line, token) CROSS JOIN LATERAL (
           SELECT ctid AS place FROM queue
            WHERE queue.id = item.id AND queue.line IS NOT DISTINCT FROM item.line AND queue.lease_token = item.token
            LIMIT 1) mine
)
DELETE FROM queue WHERE ctid = ANY (ARRAY(SELECT place FROM held)) AND lease_token = ANY ($3)
"""


async def finish(conn: Connection, leases: Sequence[Lease]) -> int:
    """Delete finished rows; returns the number of those whose lease was still held."""
    done: str = await conn.execute(FINISH, *_columns(leases))
    return int(done.removeprefix("DELETE "))


# The positions are joined again, to give each row its own pause: a TID scan of the few rows that are held.
POSTPONE = (
    HELD.format(
        columns=", item.pause, item.counts, item.to_line",
        arrays=", $4::float8[], $5::smallint[], $6::uuid[]",
        names=", pause, counts, to_line",
    )
    + """
UPDATE queue SET due_at = now() + make_interval(secs => greatest(held.pause, 0)), tries = queue.tries + held.counts,
                 since = CASE WHEN held.pause < 0 THEN now() + make_interval(secs => held.pause) END,
                 line = held.to_line, lease_until = NULL, lease_token = NULL, begun_at = NULL
  FROM held WHERE queue.ctid = held.place
"""
)


FINISH_PICKED = "DELETE FROM queue WHERE ctid = ANY ($1)"


async def finish_picked(conn: Connection, picked: Sequence[Lease]) -> None:
    """Delete finished rows that this transaction picked."""
    await conn.execute(FINISH_PICKED, [lease.place for lease in picked])


class Postponed(msgspec.Struct, frozen=True, gc=False):
    """A row to put back: due again in `pause` seconds, in `line`. A negative pause: at once, in its old place."""

    lease: Lease
    pause: float
    line: UUID
    #: Whether this counts as one of the work's tries.
    counts: bool = True


async def postpone(conn: Connection, postponed: Sequence[Postponed]) -> None:
    """Put rows back; those whose lease was lost are left to their new holder."""
    await conn.execute(
        POSTPONE,
        *_columns([item.lease for item in postponed]),
        [item.pause for item in postponed],
        [int(item.counts) for item in postponed],
        [item.line for item in postponed],
    )


POSTPONE_PICKED = """
UPDATE queue SET due_at = now() + make_interval(secs => greatest(item.pause, 0)), tries = queue.tries + item.counts,
                 since = CASE WHEN item.pause < 0 THEN now() + make_interval(secs => item.pause) END,
                 line = item.to_line, lease_until = NULL, lease_token = NULL, begun_at = NULL
  FROM unnest($1::tid[], $2::float8[], $3::smallint[], $4::uuid[]) AS item (place, pause, counts, to_line)
 WHERE queue.ctid = item.place
"""


async def postpone_picked(conn: Connection, postponed: Sequence[Postponed]) -> None:
    """Put back rows that this transaction picked."""
    await conn.execute(
        POSTPONE_PICKED,
        [item.lease.place for item in postponed],
        [item.pause for item in postponed],
        [int(item.counts) for item in postponed],
        [item.line for item in postponed],
    )


RENEW = f"""{HELD.format(columns="", arrays="", names="")}
UPDATE queue SET lease_until = now() + make_interval(secs => $4)
 WHERE ctid = ANY (ARRAY(SELECT place FROM held)) RETURNING line, id
"""
# A row that somebody keeps locked, as in an open session, is left out: if renewing waited for it, all leases would end
# meanwhile, and other workers would do everything again. It is not lost before its lease has ended.
RENEW_FREE = RENEW.replace("FOR UPDATE", "FOR UPDATE SKIP LOCKED")
_STILL = HELD.replace("FOR UPDATE", "AND queue.lease_until > now() LIMIT 1")
STILL = f"{_STILL.format(columns=', item.line, item.id', arrays='', names='')}SELECT line, id FROM held"
PATIENCE = "SET LOCAL lock_timeout = '2s'"


async def renew(conn: Connection, leases: Sequence[Lease], *, seconds: float) -> set[tuple[UUID, UUID]]:
    """Extend leases by `seconds`, except for rows that stay locked; returns those still held, as (line, id)."""
    columns = _columns(leases)
    try:
        async with conn.transaction():
            await conn.execute(PATIENCE)
            rows = await conn.fetch(RENEW, *columns, seconds)
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
        await conn.execute(RENEW_FREE, *columns, seconds)
        rows = await conn.fetch(STILL, *columns)
    return {(line, id) for line, id in rows}


RENEW_PICKED = "UPDATE queue SET lease_until = now() + make_interval(secs => $2) WHERE ctid = ANY ($1)"


async def renew_picked(conn: Connection, picked: Sequence[Lease], *, seconds: float) -> None:
    """Extend the leases of rows that this transaction picked, although they had ended."""
    await conn.execute(RENEW_PICKED, [lease.place for lease in picked], seconds)


PUT = """
INSERT INTO queue (kind, line, organization_id, due_at, id)
SELECT $1, item.line, item.organization_id, now() + make_interval(secs => item.pause), item.id
  FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::float8[]) AS item (line, organization_id, id, pause)
ON CONFLICT DO NOTHING
"""


async def put(conn: Connection, kind: str, items: Sequence[tuple[UUID, UUID, UUID, float]]) -> None:
    """Add work, given as (line, organization_id, id, seconds from now). Work that is already queued stays as it is."""
    await conn.execute(PUT, kind, *(list(column) for column in zip(*items, strict=True)))


# This waits for a claim that is about to be committed, and then sees its rows as they are: leased rows stay. That is
# why rows are not first locked and then deleted by position, as above: a position that is new in that commit would be
# missed. `kind` is written so that no index matches: the look-up has to go by id, not through all rows of a kind.
WITHDRAW = """
DELETE FROM queue
 WHERE id = ANY ($2) AND kind || '' = $1 AND (lease_until IS NULL OR lease_until < now())
   AND CASE $3 WHEN 'untried' THEN attempt = 0 WHEN 'ended' THEN begun_at IS NULL ELSE true END
RETURNING kind, coalesce(lease_token, id), line, lane, organization_id, id, tries, claims > 1 AS again, due_at, attempt,
          begun_at, target_id, reference, continues, parts
"""


async def withdraw(
    conn: Connection, kind: str, ids: Sequence[UUID], *, only: Literal["untried", "ended", "all"]
) -> dict[UUID, Lease]:
    """Delete unleased rows, in any line; returns them by id. `only`: "untried": no attempt ever began; "ended": none is
    under way; "all": any work."""
    return {row["id"]: Lease(*row.values()) for row in await conn.fetch(WITHDRAW, kind, ids, only)}


# As above, look-ups go by id. In one order, so that two transactions with the same rows cannot deadlock.
HOLD_ENDED = """
SELECT id FROM queue
 WHERE id = ANY ($2) AND kind || '' = $1 AND (lease_until IS NULL OR lease_until < now()) AND begun_at IS NULL
 ORDER BY id FOR UPDATE
"""


async def hold_ended(conn: Connection, kind: str, ids: Sequence[UUID]) -> list[UUID]:
    """Lock unleased rows of which no attempt is under way, until the end of the caller's transaction; returns their
    ids."""
    return [row["id"] for row in await conn.fetch(HOLD_ENDED, kind, ids)] if ids else []


LAST_ATTEMPTS = "SELECT id, attempt FROM queue WHERE id = ANY ($2) AND kind || '' = $1 ORDER BY id FOR UPDATE"


async def last_attempts(conn: Connection, kind: str, ids: Sequence[UUID]) -> dict[UUID, int]:
    """Lock these rows, whoever has leased them; returns the number of the last attempt that began, by id."""
    return {row["id"]: row["attempt"] for row in await conn.fetch(LAST_ATTEMPTS, kind, ids)}


# As above, look-ups go by id; rows that a worker has leased are left alone. Rows that would be due in the past become
# due now, since otherwise no worker would read them, and keep that time as their place.
_SHIFTED = """
coalesce(since, due_at) + CASE WHEN coalesce(since, due_at) > $6::timestamptz THEN $7::interval ELSE $3::interval END"""
SHIFT = f"""
UPDATE queue SET due_at = greatest({_SHIFTED}, now()), since = CASE WHEN {_SHIFTED} < now() THEN {_SHIFTED} END
 WHERE id = ANY ($2) AND kind || '' = $1 AND (lease_until IS NULL OR lease_until < now()) AND begun_at IS NULL
   AND ($4::interval IS NULL OR due_at > now() + $4) AND ($5::interval IS NULL OR due_at <= now() + $5)
"""


async def shift(
    conn: Connection,
    kind: str,
    ids: Sequence[UUID],
    *,
    by: timedelta,
    only_beyond: timedelta | None = None,
    only_within: timedelta | None = None,
    later_than: datetime | None = None,
    later_by: timedelta | None = None,
) -> None:
    """Shift the due times of unleased work without an attempt under way; its order is kept.

    `only_beyond`, `only_within`: only work that is due further ahead than this, or no further. `later_by`: the shift of
    work that is due later than `later_than`."""
    await conn.execute(SHIFT, kind, ids, by, only_beyond, only_within, later_than, later_by)


_PLACES = """place (kind, line, lane, organization_id, step, nth) AS (
    SELECT first.*, 1, 1 FROM {kinds} AS asked (kind) CROSS JOIN LATERAL (
        SELECT kind, line, lane, organization_id FROM queue WHERE queue.kind = asked.kind AND {fits}
         ORDER BY line, lane, organization_id LIMIT 1) first
    UNION ALL
    SELECT next.*, place.step + 1,
           CASE WHEN (next.line, next.lane) = (place.line, place.lane) THEN place.nth + 1 ELSE 1 END
      FROM place CROSS JOIN LATERAL (
        SELECT kind, line, lane, organization_id FROM queue
         WHERE queue.kind = place.kind AND {fits} AND (line, lane, organization_id) > (place.line, place.lane,
               CASE WHEN {is_last} THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff' ELSE place.organization_id END)
         ORDER BY line, lane, organization_id LIMIT 1) next
     WHERE {goes_on}
)"""


def places(kinds: str, *, fits: str = "true", is_last: str = "false", goes_on: str = "true") -> str:
    """A recursive CTE `place`: the lines, lanes and organizations that have work, found by skipping from one to the
    next, since a million rows may be waiting in each. `step` numbers those of a kind, `nth` those of a line and lane.

    `kinds`: SQL for a relation of kinds; `fits`: a condition on `queue`; `is_last`: a condition on a place after which
    the other organizations of its lane are left out; `goes_on`: a condition on a place to look for more after it.
    """
    return _PLACES.format(kinds=kinds, fits=fits, is_last=is_last, goes_on=goes_on)


#: A sample of the oldest work: that many rows which became due first are read, and, if there are more, the oldest of
#: that many places of each kind, of up to PER_LINE organizations of a line.
LOOKED, PLACES, PER_LINE = 5_000, 2_000, 100
# Only single messages, or other work of lane 0, count; of campaigns, one organization in each line is passed. No row is
# due before its place. `due_at` is written so that no index matches where a place is read.
SAMPLE = """due AS MATERIALIZED (
    SELECT kind, line, lane, organization_id, id, due_at, since, lease_until
      FROM queue WHERE due_at <= now() ORDER BY due_at LIMIT {looked}
), {places}, sample AS (
    SELECT kind, line, organization_id, id, due_at, since FROM due WHERE lane = 0 AND lease_until IS NULL
    UNION ALL
    SELECT oldest.* FROM place CROSS JOIN LATERAL (
           SELECT kind, line, organization_id, id, due_at, since FROM queue
            WHERE queue.kind = place.kind AND queue.line = place.line AND lane = 0
              AND queue.organization_id = place.organization_id AND coalesce(since, due_at) <= now()
              AND due_at - now() <= interval '0' AND lease_until IS NULL AND {counts}
            ORDER BY coalesce(since, due_at) LIMIT 1) oldest
     WHERE place.lane = 0
)"""


def sample(kinds: str, *, looked: str, most: str, counts: str = "true") -> str:
    """A recursive CTE `sample`: waiting rows, the oldest ones among them, of which no worker has any. A queue can be so
    long that reading it all takes longer than a statement may.

    `kinds`: SQL for a relation of kinds; `looked`, `most`: how many rows and places to look at; `counts`: a condition
    on `queue` for the rows of places."""
    rest = f"(SELECT kind FROM {kinds} AS every (kind) WHERE (SELECT count(*) FROM due) = {looked})"
    last = f"place.lane > 0 OR place.nth >= {PER_LINE}"
    return SAMPLE.format(
        looked=looked, counts=counts, places=places(rest, is_last=last, goes_on=f"place.step < {most}")
    )


OLDEST = f"""
WITH RECURSIVE {sample("(VALUES ($1))", looked="$3", most="$4", counts="{counts}")}
SELECT {{ages}} FROM sample AS queue WHERE kind = $1 AND line <> ALL ($2) AND {{counts}} {{by}}
"""
_AGE = "extract(epoch FROM now() - min(coalesce(since, due_at)))"
#: The result of OLDEST: for all lines together, or for each line that has any work.
OF_ALL = {"ages": f"coalesce({_AGE}, 0)::float8", "by": ""}
OF_EACH = {"ages": f"line, {_AGE}::float8 AS age", "by": "GROUP BY line"}


async def oldest(
    conn: Connection, kind: str, *, without: Collection[UUID] = (), looked: int = LOOKED, places: int = PLACES
) -> float:
    """Age in seconds of the row in lane 0 that has been due longest, in a sample; lane 1 is for work that can wait.
    `without`: lines to ignore."""
    statement = OLDEST.format(counts="true", **OF_ALL)
    age: float = await conn.fetchval(statement, kind, list(without), looked, places)
    return age


def _columns(leases: Sequence[Lease]) -> tuple[list[UUID], list[UUID], list[UUID]]:
    return [one.id for one in leases], [one.line for one in leases], [one.token for one in leases]
