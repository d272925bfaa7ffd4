"""How a worker finds waiting work: it reads rows in the order in which they become due, remembers which organizations
wait in which lines, and claims rows by organization, starting from a known place. So the cost of a claim depends only
on the rows that it takes: it reads neither those that stay nor dead index entries, which cannot be vacuumed while a
dump or a report holds an old snapshot.

- `look` reads the rows that became due since the last look. A row may become visible after others that are due later,
  so a look starts again from the beginning of the oldest transaction that could still add one when the last look began.
- Every `cycle` seconds the whole table is read, a slice at a time, for rows that no look can find: rows whose lease
  has expired, that a claim skipped because they were briefly locked, or that an operator had held.
- `claim` asks for the rows of organizations whose turn it is (`turns`) and leases what it finds; `pick` locks the rows
  for a transaction that decides about them and, at its end, leases those to be sent. The database decides which rows
  are free.

The rule nobody may break: what this process remembers is only a hint where to look. Losing all of it costs nothing but
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from time import monotonic
from typing import Any
from uuid import UUID

import asyncpg

from heliograph.base.database.pool import Connection
from heliograph.base.process import measures
from heliograph.base.retry import LOOK, look_pause
from heliograph.queue.leases import Lease, new_token
from heliograph.queue.turns import MORE, LineRequest, Turns

_Add = Callable[[Turns, UUID, int, UUID, datetime, int], None]

#: Seconds within which the whole table is read once.
CYCLE = 20.0
#: Blocks read in one slice, some 20,000 rows: 5 ms.
SLICE = 500
#: Slices shrink while they find more groups than this, down to SMALLEST blocks, and grow again when they find few. Each
#: group costs as much as fifty rows: with one in each of 20,000 endpoints, the event loop stood still for 0.1 s.
GROUPS, SMALLEST = 2_000, 20

#: An SQL condition: the hold `h` applies to this row of `queue`.
FITS = """
h.kind = queue.kind AND (h.line IS NULL OR h.line = queue.line)
    AND (h.organization_id IS NULL OR h.organization_id = queue.organization_id)
    AND (h.before_id IS NULL OR queue.id < h.before_id)
"""
#: An SQL condition: an operator holds this row. Cheap while there are no holds at all.
HELD = f"(SELECT EXISTS (SELECT FROM queue_holds)) AND EXISTS (SELECT FROM queue_holds h WHERE {FITS})"
#: An SQL condition: this row of `queue` waits behind others of an endpoint that fails. Until one of them succeeds, they
#: are tried one at a time, so a receiver that hangs makes its own events late, for days, whatever the workers do.
WAITS_FOR_RECEIVER = """(queue.kind = 'webhook' AND queue.line IN (
    SELECT id FROM webhook_endpoints WHERE status = 'active' AND failing_since IS NOT NULL))"""
#: An SQL condition: this row is held since a restore. It may have been sent after the backup, so it must not expire.
RESTORED = f"EXISTS (SELECT FROM queue_holds h WHERE h.restored AND {FITS})"
_FREE = f"(lease_until IS NULL OR lease_until < now()) AND NOT ({HELD})"

# Every row is written with a `due_at` that is no earlier than the beginning of its transaction (to the millisecond, as
# messages are stamped). So once `settled` is known, all rows that are due before it are visible to the next statement.
# They may not be visible to the statement that reads `settled` itself: its snapshot is older, and a transaction that
# commits in between is neither in it nor still running. A transaction that has not written yet may be about to if it
# began just now; one that began long ago is a dump or a report. Only sessions of roles whose rights this one has are
# ours: a role that sees all others (`pg_read_all_stats`) must not wait for them.
SETTLED = """
SELECT least(now(), min(xact_start)) - interval '2 ms' FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND pg_has_role(usesysid, 'USAGE')
   AND (backend_xid IS NOT NULL OR wait_event_type = 'Lock' OR xact_start > now() - interval '3 seconds')
"""
BEGIN = f"SELECT ({SETTLED}), now()"
# MATERIALIZED keeps the planner from choosing an index for the grouping. Each hold has its own id, so the number of
# holds and the latest id show whether any was released.
READ = f"""
WITH due AS MATERIALIZED (
    SELECT kind, line, lane, organization_id, coalesce(since, due_at) AS place, due_at > $2 AS new FROM queue
     WHERE due_at >= $1 AND due_at <= now() AND {_FREE}
), found AS MATERIALIZED (
    SELECT kind, line, lane, organization_id, min(place) AS place,
           greatest(count(*) FILTER (WHERE new), 1)::int AS count
      FROM due GROUP BY kind, line, lane, organization_id
)
SELECT now() AS read, ({SETTLED}) AS settled,
       (SELECT count(*) || ' ' || coalesce(max(id::text), '') FROM queue_holds) AS holds, found.*
  FROM (VALUES (1)) AS one LEFT JOIN found ON true
"""
# `due_at` is written so that no index matches: the slice is read by its position on disk.
SWEEP = f"""
WITH due AS MATERIALIZED (
    SELECT kind, line, lane, organization_id, coalesce(since, due_at) AS place FROM queue
     WHERE ctid >= $1 AND ctid < $2 AND due_at - now() <= interval '0' AND {_FREE}
), found AS MATERIALIZED (
    SELECT kind, line, lane, organization_id, min(place) AS place, count(*)::int AS count FROM due
     GROUP BY kind, line, lane, organization_id
)
SELECT now() AS began, pg_relation_size('queue') / current_setting('block_size')::int AS blocks, found.*
  FROM (VALUES (1)) AS one LEFT JOIN found ON true
"""

# At most `free` rows of each line: group by group, numbered from `first` to `last` in the arrays $6 to $9, taking each
# group's first free rows, found by key and locked one by one. Rows that another worker has locked are skipped. `due_at`
# is written so that no index matches: a plan made while the table was empty must not read everything that is due for
# each group.
PICK = f"""
SELECT asked.line, mine.lane, mine.organization_id, mine.id, mine.tries, mine.claims > 0 AS again, mine.place,
       mine.attempt, mine.begun_at, mine.target_id, mine.reference, mine.continues, mine.parts, mine.spot
  FROM unnest($2::uuid[], $3::int[], $4::int[], $5::int[]) AS asked (line, free, first, last)
 CROSS JOIN LATERAL (
       SELECT due.* FROM (SELECT generate_series(asked.first, asked.last) AS n) AS numbers
        CROSS JOIN LATERAL (
              SELECT lane, organization_id, id, tries, claims, coalesce(since, due_at) AS place, attempt, begun_at,
                     target_id, reference, continues, parts, ctid AS spot FROM queue
               WHERE kind = $1 AND line = asked.line AND lane = ($6::smallint[])[n]
                 AND organization_id = ($7::uuid[])[n] AND coalesce(since, due_at) >= ($8::timestamptz[])[n]
                 AND due_at - now() <= interval '0' AND {_FREE}
               ORDER BY coalesce(since, due_at) LIMIT ($9::int[])[n] FOR UPDATE SKIP LOCKED) due
        LIMIT asked.free) mine
"""
# Locked rows do not move, so they are changed by their position on disk.
CLAIM = f"""
WITH picked AS MATERIALIZED ({PICK})
UPDATE queue SET lease_until = now() + make_interval(secs => $10), lease_token = $11, claims = least(claims, 9999) + 1
 WHERE ctid = ANY (ARRAY(SELECT spot FROM picked))
RETURNING line, lane, organization_id, id, tries, claims > 1 AS again, coalesce(since, due_at) AS due_at, attempt,
          begun_at, target_id, reference, continues, parts
"""
CLAIM_UNLEASED = CLAIM.replace("(lease_until IS NULL OR lease_until < now())", "lease_until IS NULL")


class Backlog:
    """A process's knowledge of waiting work of all kinds. One per worker; other processes can `claim_once`."""

    def __init__(
        self, *, cycle: float = CYCLE, chance: random.Random | None = None, worker: UUID | None = None
    ) -> None:
        """`cycle`: seconds within which the whole table is read once. `worker`: the worker that it belongs to."""
        self._cycle = cycle
        self._worker = worker
        self._chance = chance or random.Random()
        self._turns: defaultdict[str, Turns] = defaultdict(Turns)
        self._wakes: dict[str, Callable[[], object]] = {}
        self._looking = asyncio.Lock()
        #: Wakes the first caller that came too early for a look.
        self._later: asyncio.TimerHandle | None = None
        #: In event loop time.
        self._look_at = 0.0
        self._slice_at = 0.0
        #: Everything due before this has been seen; None: nothing has.
        self._settled: datetime | None = None
        #: The value of `_settled` after the next look.
        self._settling: datetime | None = None
        #: Everything due until then has been counted, as far as it was visible.
        self._was_read: datetime | None = None
        self._holds = ""
        #: Requests made in transactions that have not ended yet.
        self._open: dict[Connection, list[tuple[Turns, list[LineRequest]]]] = {}
        #: The first block of the next slice, and the number of blocks in it.
        self._block, self._slice = 0, SLICE

    def on_work(self, kind: str, wake: Callable[[], object]) -> None:
        """Call `wake` when a look for another kind has found work of this one, and when a look that was requested too
        early is due."""
        self._wakes[kind] = wake

    def lines(self, kind: str, *, limit: int = 1000) -> list[UUID]:
        """Lines of a kind in which work seems to be waiting; if there are more than `limit`, the next call returns
        others."""
        return self._turns[kind].lines(limit)

    def found(self, kind: str) -> list[UUID]:
        """Lines of a kind in which more work was found since the last call."""
        return self._turns[kind].found()

    def waits(self, kind: str) -> bool:
        """Whether any row of a kind seems to be waiting."""
        return bool(self._turns[kind])

    def wake_waiting(self) -> None:
        """Wake each kind of which work seems to be waiting: it may only be waiting for time to pass."""
        for kind, wake in self._wakes.items():
            if self.waits(kind):
                wake()

    def forget(self) -> None:
        """Forget everything; the next look reads the whole table."""
        for turns in self._turns.values():
            turns.clear()
        self._settled = None
        self._look_at = 0.0

    async def look(self, conn: Connection, kind: str) -> None:
        """Read the work that became due, and wake its kinds, except `kind`, which is about to claim.

        If a look has only just been taken, `kind` is woken when the next one is due (`on_work`).
        """
        loop = asyncio.get_running_loop()
        at = loop.time()
        if kind in self._wakes and (at < self._look_at or self._looking.locked()):
            if self._later is None:
                self._later = loop.call_at(max(self._look_at, at + LOOK), self._again, self._wakes[kind])
            return
        async with self._looking:
            if self._later is not None:
                self._later.cancel()
                self._later = None
            found = await self._begin(conn) if self._settled is None else await self._read(conn)
            if at >= self._slice_at:
                found |= await self._sweep(conn)
            ended = loop.time()
            self._look_at = ended + look_pause(ended - at)
        for other in found - {kind}:
            if other in self._wakes:
                self._wakes[other]()

    async def pick(self, conn: Connection, kind: str, free: Mapping[UUID, int]) -> list[Lease]:
        """Like `claim`, but the rows are only locked by the calling transaction, which then settles them by their
        positions (`leases.finish_picked` and the like); those that it does not settle keep waiting."""
        return await self._ask(conn, kind, free, lambda token, *asked: conn.fetch(PICK, *asked))

    async def claim(
        self, conn: Connection, kind: str, free: Mapping[UUID, int], *, seconds: float, ended: bool = True
    ) -> list[Lease]:
        """Lease due rows of `kind`: at most `free[line]` of each line, for `seconds`. Costs nothing if nothing seems to
        be waiting; call `look` first. `ended`: also those whose lease seems to have ended."""
        claim = CLAIM if ended else CLAIM_UNLEASED
        return await self._ask(conn, kind, free, lambda token, *asked: conn.fetch(claim, *asked, seconds, token))

    async def _ask(
        self,
        conn: Connection,
        kind: str,
        free: Mapping[UUID, int],
        ask: Callable[..., Awaitable[list[asyncpg.Record]]],
    ) -> list[Lease]:
        turns, more, token = self._turns[kind], MORE, new_token(self._worker)
        while asks := turns.ask(free, more=more):
            self._open.get(conn, []).append((turns, asks))
            began = monotonic()
            try:
                rows = await ask(token, kind, *_columns(asks))
            except BaseException:
                turns.give_back(asks)
                raise
            measures.CLAIM_SECONDS.observe(monotonic() - began, kind)
            measures.CLAIMED.add(kind, by=len(rows))
            found = [Lease(kind, token, *row) for row in rows]
            turns.took(asks, _ends(found))
            if found:
                return found
            # None of the groups asked had free rows: other workers were faster. The remaining groups may have some.
            more *= 4
        return []

    def leave(self, conn: Connection) -> None:
        """Leave some of the rows picked in this transaction: they keep waiting."""
        for turns, asks in self._open.get(conn, ()):
            turns.give_back(asks)

    @contextlib.asynccontextmanager
    async def transaction(self, conn: Connection) -> AsyncIterator[None]:
        """A transaction for claims: if it does not commit, the rows claimed in it wait as before."""
        claimed: list[tuple[Turns, list[LineRequest]]] = []
        self._open[conn] = claimed
        try:
            async with conn.transaction():
                yield
        except BaseException:
            self.leave(conn)
            raise
        finally:
            del self._open[conn]

    async def _begin(self, conn: Connection) -> set[str]:
        """Read the whole table."""
        began = await conn.fetchrow(BEGIN)
        assert began is not None
        found: set[str] = set()
        self._block = 0
        while True:
            found |= await self._sweep(conn)
            if self._block == 0:
                self._settled, self._was_read = began
                self._settling = self._settled
                return found

    async def _read(self, conn: Connection) -> set[str]:
        rows = await conn.fetch(READ, self._settled, self._was_read)
        self._settled, self._settling = self._settling, rows[0]["settled"]
        self._was_read = rows[0]["read"]
        if rows[0]["holds"] != self._holds:
            # Released work was due long ago: only reading the whole table finds it.
            self._holds, self._slice_at, self._block = rows[0]["holds"], 0.0, 0
        return self._add(rows, Turns.add)

    async def _sweep(self, conn: Connection) -> set[str]:
        rows = await conn.fetch(SWEEP, (self._block, 0), (self._block + self._slice, 0))
        blocks = rows[0]["blocks"]
        found = self._add(rows, Turns.add_all)
        self._block += self._slice
        if self._block >= blocks:
            self._block = 0
        if len(rows) > GROUPS:
            self._slice = max(self._slice // 2, SMALLEST)
        elif len(rows) < GROUPS / 4:
            self._slice = min(self._slice * 2, SLICE)
        slices = -(-blocks // self._slice) or 1
        self._slice_at = asyncio.get_running_loop().time() + self._cycle / slices
        return found

    def _add(self, rows: Sequence[asyncpg.Record], add: _Add) -> set[str]:
        """Add rows to the turns; returns their kinds."""
        found = [row for row in rows if row["kind"] is not None]
        # Shuffled, so that none of those found together is always first.
        self._chance.shuffle(found)
        for row in found:
            add(self._turns[row["kind"]], row["line"], row["lane"], row["organization_id"], row["place"], row["count"])
        return {row["kind"] for row in found}

    def _again(self, wake: Callable[[], object]) -> None:
        self._later = None
        wake()


async def claim_once(conn: Connection, kind: str, free: Mapping[UUID, int], *, seconds: float) -> list[Lease]:
    """Like `Backlog.claim`, but for occasional use: reads the whole table first."""
    backlog = Backlog()
    await backlog.look(conn, kind)
    return await backlog.claim(conn, kind, free, seconds=seconds)


def _columns(asks: Sequence[LineRequest]) -> tuple[list[Any], ...]:
    """$2 to $9 of PICK."""
    asked = [one for ask in asks for one in ask.asked]
    lasts = list(accumulate(len(ask.asked) for ask in asks))
    return (
        [ask.line for ask in asks],
        [ask.free for ask in asks],
        [last - len(ask.asked) + 1 for ask, last in zip(asks, lasts, strict=True)],
        lasts,
        [one.group.lane for one in asked],
        [one.group.organization_id for one in asked],
        [one.place for one in asked],
        [one.most for one in asked],
    )


def _ends(found: Sequence[Lease]) -> dict[tuple[UUID, int, UUID], tuple[int, datetime]]:
    """By group, the number of rows found and the last place among them."""
    ends: dict[tuple[UUID, int, UUID], tuple[int, datetime]] = {}
    for one in found:
        key = (one.line, one.lane, one.organization_id)
        count, place = ends.get(key, (0, one.due_at))
        ends[key] = (count + 1, max(place, one.due_at))
    return ends
