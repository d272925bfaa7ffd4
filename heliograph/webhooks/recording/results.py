"""Recording the results of attempts, committed in batches.

The rule nobody may break: an attempt, the end of its queue row and its effect on the endpoint commit together. A result
whose lease was lost is still recorded, but its queue row belongs to the new holder.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

import asyncpg
import structlog

from heliograph.base.database.pool import BRIEFLY, ROW_LOCKED, Connection, Pool, despite_deadlocks, is_down
from heliograph.base.process import measures
from heliograph.base.process.crash import crash_point
from heliograph.queue import leases
from heliograph.queue.leases import Lease, Postponed
from heliograph.sealing.text_keys import Sealing
from heliograph.webhooks.delivery import evidence
from heliograph.webhooks.delivery.attempts import Attempt, Ended
from heliograph.webhooks.recording import at_rest, judging, successes, traffic
from heliograph.webhooks.recording.judging import Standing

log = structlog.get_logger()

#: Results in one transaction.
BATCH = 512
#: Seconds before a batch is retried while the database is down. The responses of receivers exist only here.
RETRY = 0.5
#: Endpoints, at most, whose results are set aside, and the pause before they are retried, in seconds: no lease can be
#: renewed while each waits for its lock.
MOST_ASIDE, ASIDE_RETRY = 4, 2.0

_COLUMNS = "organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result, detail"
#: The columns of a stored row that go into the roll-ups.
_COUNTED = "organization_id, endpoint_id, started_at, result, duration_ms"
_ITEMS = f"""unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::smallint[], $5::timestamptz[], $6::integer[],
              $7::smallint[], $8::text[], $9::text[], $10::uuid[])
       AS item ({_COLUMNS}, since)"""
_SUCCESS = f"""{successes.HOLDING.format(organization="item.organization_id", since="item.since", id="item.event_id")}
          AND s.endpoint_id IS NOT DISTINCT FROM item.endpoint_id"""

# A first attempt may already be among the first successes, if the event is resent.
INSERT = f"""
INSERT INTO webhook_attempts ({_COLUMNS})
SELECT {", ".join(f"item.{name}" for name in _COLUMNS.split(", "))}
  FROM {_ITEMS}
 WHERE item.attempt > 1 OR NOT EXISTS (SELECT FROM webhook_successes s WHERE {_SUCCESS})
ON CONFLICT DO NOTHING
RETURNING {_COUNTED}
"""

# Attempts whose number is taken: the event was queued again (a resend, a replay), or two workers held its row in
# succession. Their numbers continue from the last attempt's. One already stored, by a commit whose answer was lost, is
# recognized by its start time. Few attempts come here, so the common INSERT need not look for the last number.
# (smallint ends at 32,767: further resends of one event are made, but leave no row.)
INSERT_AGAIN = f"""
INSERT INTO webhook_attempts ({_COLUMNS})
SELECT item.organization_id, item.event_id, item.endpoint_id,
       least(known.last + row_number() OVER (PARTITION BY item.organization_id, item.event_id, item.endpoint_id
                                             ORDER BY item.started_at), 32767),
       item.started_at, item.duration_ms, item.status, item.result, item.detail
  FROM {_ITEMS}
       CROSS JOIN LATERAL (
       SELECT max(made.attempt) AS last, bool_or(made.started_at = item.started_at) AS stored FROM (
           SELECT attempt, started_at FROM webhook_attempts
            WHERE organization_id = item.organization_id AND event_id = item.event_id
              AND endpoint_id IS NOT DISTINCT FROM item.endpoint_id
           UNION ALL
           SELECT 1, {successes.STARTED.format(at="array_position(s.events, item.event_id)")} FROM webhook_successes s
            WHERE {_SUCCESS}) made
       ) known
 WHERE NOT known.stored
ON CONFLICT DO NOTHING
RETURNING {_COUNTED}
"""


class Record:
    """Takes results and commits them in batches. `landed` is called for each finished batch, with the endpoints that
    it disabled (id and reason); `held_up` for results that are set aside, before that."""

    def __init__(
        self,
        pool: Pool,
        *,
        disable_after: float,
        landed: Callable[[Sequence[Ended], dict[UUID, str]], None],
        held_up: Callable[[Sequence[Ended]], None] = lambda ended: None,
    ) -> None:
        """`disable_after`: disable an endpoint after this many seconds of nothing but failures."""
        self._pool = pool
        self._disable_after = disable_after
        self._landed, self._held_up = landed, held_up
        self._sealing = Sealing()
        self._waiting: list[Ended] = []
        self._runner: asyncio.Task[None] | None = None
        #: By endpoint, the results that wait because rows of it are locked, and what commits them.
        self._aside: dict[UUID, list[Ended]] = {}
        self._runs_aside: dict[UUID, asyncio.Task[None]] = {}
        #: Held while rows are finished; code that locks several of them takes it first, to avoid deadlocks.
        self.writing = asyncio.Lock()

    def put(self, ended: Ended) -> None:
        """Record this; `landed` will be called. Results that arrive while a batch is being committed go into the next
        one."""
        self._waiting.append(ended)
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())

    @property
    def waiting(self) -> int:
        """How many results are not yet in a batch."""
        return len(self._waiting) + sum(map(len, self._aside.values()))

    async def drain(self, *, aside: bool = True) -> None:
        """Wait until everything is committed; `aside`: also what waits for a locked row."""
        while running := [one for one in (self._runner, *(self._runs_aside.values() if aside else ())) if one]:
            await asyncio.gather(*map(asyncio.shield, running))

    def is_aside(self, line: UUID) -> bool:
        """Whether results of this endpoint wait because rows of it are locked."""
        return line in self._aside

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                for item in batch if self._aside else ():
                    if item.lease.line in self._aside:
                        self._set_aside([item])
                batch = [item for item in batch if item.lease.line not in self._aside] if self._aside else batch
                if batch:
                    await self._commit(batch)
        finally:
            self._runner = None

    def _set_aside(self, items: list[Ended]) -> None:
        """Rows of this endpoint are locked: its results are recorded as soon as they are not, and others' at once."""
        line = items[0].lease.line
        if line not in self._aside:
            log.warning("results wait for a locked row", endpoint_id=str(line))
            self._aside[line] = []
            self._runs_aside[line] = asyncio.create_task(self._run_aside(line))
        self._aside[line] += items
        self._held_up(items)

    async def _run_aside(self, line: UUID) -> None:
        try:
            while items := self._aside[line][:BATCH]:
                # A commit that hung may have been the one that held the lock.
                await self._commit(items, is_repeated=True, briefly=True, is_aside=True)
                del self._aside[line][: len(items)]
        finally:
            del self._aside[line], self._runs_aside[line]

    async def _commit(
        self, items: list[Ended], *, is_repeated: bool = False, briefly: bool = False, is_aside: bool = False
    ) -> None:
        """Commit results. `briefly`: wait for locks only briefly; of a single endpoint, they are then set aside, or are
        already, and tried until the lock is gone."""
        while True:
            try:
                async with self.writing:
                    crash_point("webhook.before_commit")
                    disabled = await despite_deadlocks(partial(self._write, items, is_repeated, briefly=briefly))
                    crash_point("webhook.after_commit")
                counted = Counter(item.attempt.result for item in items if item.attempt is not None)
                for result, count in counted.items():
                    measures.WEBHOOK_ATTEMPTS.add(result, by=count)
                break
            except Exception as error:
                is_locked = isinstance(error, asyncpg.LockNotAvailableError)
                if is_aside and is_locked:
                    await asyncio.sleep(ASIDE_RETRY)
                elif isinstance(error, ROW_LOCKED) and len(self._aside) < MOST_ASIDE and (is_locked or not briefly):
                    if briefly:
                        self._set_aside(items)
                        # They begin as a batch of their own: of what follows and was not tried, nothing is recorded.
                        await asyncio.sleep(0)
                        return
                    lines: defaultdict[UUID, list[Ended]] = defaultdict(list)
                    for item in items:
                        lines[item.lease.line].append(item)
                    for part in lines.values():
                        await self._commit(part, is_repeated=is_repeated, briefly=True)
                    return
                elif is_down(error) or is_locked:
                    is_repeated, briefly = True, is_aside
                    await asyncio.sleep(RETRY)
                elif len(items) > 1:  # one bad result must not fail the others
                    middle = len(items) // 2
                    for part in (items[:middle], items[middle:]):
                        await self._commit(part, is_repeated=is_repeated, briefly=briefly, is_aside=is_aside)
                    return
                else:
                    # Its lease is no longer renewed, so it expires, and the delivery is retried.
                    log.exception("webhook result not recorded", event_id=str(items[0].lease.id))
                    disabled = {}
                    break
        self._landed(items, disabled)

    async def _write(self, items: list[Ended], is_repeated: bool, *, briefly: bool) -> dict[UUID, str]:
        standings = judging.standings(items)
        firsts = [item for item in items if successes.is_first(item)]
        rest = items
        disabled: dict[UUID, str] = {}
        async with self._pool.acquire() as conn, conn.transaction() if briefly else contextlib.nullcontext():
            if briefly:
                await conn.execute(BRIEFLY)
            if firsts:
                alone = len(firsts) == len(items)
                if await successes.store(conn, firsts, sorted(standings) if alone else ()):
                    rest = [] if alone else [item for item in items if not successes.is_first(item)]
            if rest:
                async with conn.transaction():
                    disabled = await self._write_each(conn, rest, standings, is_repeated)
        return disabled

    async def _write_each(
        self, conn: Connection, items: list[Ended], standings: Mapping[tuple[UUID, UUID], Standing], is_repeated: bool
    ) -> dict[UUID, str]:
        await self._sealing.refresh(conn)
        tried = [
            (item.lease, at_rest.sealed_attempt(self._sealing, item.lease, item.attempt))
            for item in items
            if item.attempt is not None
        ]
        tried.sort(key=_beginning)  # the attempts of an event are numbered in this order
        done = [item.lease for item in items if item.pause is None]
        later = [
            Postponed(item.lease, item.pause, item.lease.line, counts=item.attempt is not None)
            for item in items
            if item.pause is not None
        ]
        stored = await _insert(conn, tried) if tried else 0
        if tried:
            await evidence.store(conn, tried)
        if done:
            await leases.finish(conn, done)
        if later:
            await leases.postpone(conn, later)
        if is_repeated and tried and not stored:
            return {}  # the last try was committed, although its connection was lost
        return await judging.judge(conn, standings, disable_after=self._disable_after) if standings else {}


async def _insert(conn: Connection, tried: Sequence[tuple[Lease, Attempt]]) -> int:
    """Store attempts that are not stored yet; returns how many were not."""
    columns = (
        [lease.organization_id for lease, _ in tried],
        [lease.id for lease, _ in tried],
        [lease.line for lease, _ in tried],
        [lease.tries + 1 for lease, _ in tried],
        [attempt.started_at for _, attempt in tried],
        [round(attempt.duration * 1000) for _, attempt in tried],
        [attempt.status for _, attempt in tried],
        [attempt.result for _, attempt in tried],
        [attempt.detail for _, attempt in tried],
        [successes.since(lease.id) for lease, _ in tried],
    )
    stored = await conn.fetch(INSERT, *columns)
    for _ in range(2):  # the second time for those whose number another worker was taking at that moment
        if len(stored) < len(tried):
            stored += await conn.fetch(INSERT_AGAIN, *columns)
    if stored:
        tally = traffic.Tally()
        for organization_id, endpoint_id, began, result, took in stored:
            tally.add(organization_id, endpoint_id, began, result, [took])
        await traffic.record(conn, tally)
    return len(stored)


def _beginning(one: tuple[Lease, Attempt]) -> datetime:
    return one[1].started_at
