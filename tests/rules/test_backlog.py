"""How workers find waiting work: nothing is overlooked, whatever becomes visible when, and plans stay good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from asyncpg import Record
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns import pausing
from heliograph.queue import backlog as backlogs
from heliograph.queue import holds, leases
from heliograph.queue.backlog import Backlog
from heliograph.queue.holds import Selection
from heliograph.queue.leases import Lease, Postponed
from tests.rules.machines import Machine, run_machine

pytestmark = pytest.mark.fresh_database

LINE, OTHER = UUID(int=77), UUID(int=78)
#: Longer than any test: work is found by polling.
NEVER = 1e9

PUT = """
INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
SELECT 'sms', $1, $2, $3, now() + make_interval(secs => $5), id FROM unnest($4::uuid[]) AS id
"""

# Rows of the queue read so far by this transaction and the most recent earlier ones, except those fetched by their
# physical position.
READ = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'queue'"


#: An advisory lock that stops a poll while it is reading.
GATE = 4711
#: Whether somebody in this database waits for it: other tests run on the same server.
WAITS = f"""
SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = {GATE}
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""


async def put(
    conn: Connection | Pool, organization: int, count: int, *, line: UUID = LINE, lane: int = 0, pause: float = 0.0
) -> set[UUID]:
    ids = [uuid7() for _ in range(count)]
    await conn.execute(PUT, line, lane, UUID(int=organization), ids, pause)
    return set(ids)


async def take(conn: Connection, backlog: Backlog, count: int = 1000, *, line: UUID = LINE) -> list[Lease]:
    """The result of one poll and one claim."""
    await backlog.look(conn, "sms")
    return await backlog.claim(conn, "sms", {line: count}, seconds=60)


async def ids(conn: Connection, backlog: Backlog, count: int = 1000, *, line: UUID = LINE) -> set[UUID]:
    return {lease.id for lease in await take(conn, backlog, count, line=line)}


@asynccontextmanager
async def knowing(pool: Pool, *, cycle: float = NEVER) -> AsyncIterator[tuple[Connection, Backlog]]:
    """A worker that has read the whole table, and does not do so again."""
    backlog = Backlog(cycle=cycle)
    async with pool.acquire() as conn:
        await backlog.look(conn, "sms")
        yield conn, backlog


# -- looking -----------------------------------------------------------------------------------------------------------


async def test_what_was_there_and_what_comes_is_found(pool: Pool) -> None:
    there = await put(pool, 1, 3)
    async with knowing(pool) as (conn, backlog):
        assert await ids(conn, backlog) == there
        assert await ids(conn, backlog) == set()
        came = await put(pool, 1, 2) | await put(pool, 2, 2)
        assert await ids(conn, backlog) == came


async def test_what_is_committed_late_is_found_however_much_came_in_the_meantime(pool: Pool) -> None:
    async with knowing(pool) as (conn, backlog), pool.acquire() as slow:
        transaction = slow.transaction()
        await transaction.start()
        late = await put(slow, 1, 2)
        for organization in (1, 2, 3):
            came = await put(pool, organization, 2)
            assert await ids(conn, backlog) == came
        await transaction.commit()
        assert await ids(conn, backlog) == late


@pytest.mark.parametrize("is_later", [False, True])
async def test_what_is_committed_while_a_look_is_reading_is_found_by_the_next_one(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, is_later: bool
) -> None:
    """It is neither in the poll's snapshot, nor among the transactions that are still running when the poll has
    read."""
    stopped = backlogs.READ.replace(
        "FROM (VALUES (1)) AS one", f"FROM (SELECT pg_advisory_xact_lock_shared({GATE})) AS one"
    )
    assert stopped != backlogs.READ
    async with knowing(pool) as (conn, backlog), pool.acquire() as slow, pool.acquire() as gate:
        await backlog.look(conn, "sms")  # from here on it knows that nothing is held
        # It takes longer than the polls' margin, like the first message of a process, whose statements are not planned.
        async with slow.transaction():
            there = await put(slow, 1, 1)
            while await slow.fetchval("SELECT clock_timestamp() < now() + interval '5 ms'"):
                pass
            await gate.execute("SELECT pg_advisory_lock($1)", GATE)
            monkeypatch.setattr(backlogs, "READ", stopped)
            looking = asyncio.create_task(backlog.look(conn, "sms"))
            while not await gate.fetchval(WAITS):
                pass
        await gate.execute("SELECT pg_advisory_unlock($1)", GATE)
        await looking
        monkeypatch.undo()
        if is_later:
            await backlog.look(conn, "sms")
        assert await ids(conn, backlog) == there


async def test_what_becomes_due_is_found_by_workers_that_did_not_put_it_back(pool: Pool) -> None:
    await put(pool, 1, 3)
    async with knowing(pool) as (conn, backlog), knowing(pool) as (second, other):
        one, two, three = await take(conn, backlog)
        assert await take(second, other) == []
        back = [Postponed(one, 0.05, LINE), Postponed(two, 0.0, OTHER), Postponed(three, -30.0, OTHER)]
        await leases.postpone(conn, back)
        assert await ids(second, other, line=OTHER) == {two.id, three.id}
        await second.execute("SELECT pg_sleep(0.06)")
        assert await ids(second, other) == {one.id}


async def test_what_was_due_before_its_campaign_was_paused_is_found_at_its_end_in_the_old_order(pool: Pool) -> None:
    """However often that happens: its margin is over by then, and only what becomes due is read."""
    there = [*await put(pool, 1, 1), *await put(pool, 1, 1)]
    await pool.execute("UPDATE queue SET due_at = due_at - interval '10 minutes'")
    async with knowing(pool) as (conn, backlog):
        for _ in range(2):
            await leases.shift(conn, "sms", there, by=pausing.AWAY)
            assert await ids(conn, backlog) == set()
            await leases.shift(conn, "sms", there, by=timedelta(minutes=1) - pausing.AWAY)
        assert [lease.id for lease in await take(conn, backlog)] == there


async def test_what_keeps_its_place_goes_before_what_came_later(pool: Pool) -> None:
    await put(pool, 1, 1)
    async with knowing(pool) as (conn, backlog):
        (first,) = await take(conn, backlog)
        later = await put(pool, 1, 1)
        (second,) = await take(conn, backlog)
        await leases.postpone(conn, [Postponed(second, 0.0, LINE)])
        await leases.postpone(conn, [Postponed(first, -300.0, LINE)])
        (again,) = await take(conn, backlog, 1)
        assert (again.id, second.id) == (first.id, *later)
        assert 200 < (second.due_at - again.due_at).total_seconds() < 305


async def test_what_was_claimed_in_vain_is_claimed_again(pool: Pool) -> None:
    there = await put(pool, 1, 3)
    async with knowing(pool) as (conn, backlog):
        with pytest.raises(ZeroDivisionError):
            async with backlog.transaction(conn):
                assert len(await backlog.claim(conn, "sms", {LINE: 9}, seconds=60)) == 3
                raise ZeroDivisionError
        assert await ids(conn, backlog) == there


async def test_what_is_picked_is_locked_and_nothing_more(pool: Pool) -> None:
    there = await put(pool, 1, 3)
    async with knowing(pool) as (conn, backlog), knowing(pool) as (second, other):
        async with backlog.transaction(conn):
            picked = await backlog.pick(conn, "sms", {LINE: 2})
            assert len({one.id for one in picked} & there) == 2
            assert await ids(second, other) == there - {one.id for one in picked}
            backlog.leave(conn)
        assert await conn.fetchval("SELECT count(*) FROM queue WHERE lease_until IS NULL") == 2
        assert await ids(conn, backlog) == {one.id for one in picked}


async def test_one_look_serves_all_kinds_and_wakes_those_that_get_work(pool: Pool) -> None:
    woken: list[str] = []
    async with knowing(pool) as (conn, backlog):
        for kind in ("sms", "webhook", "test"):
            backlog.on_work(kind, partial(woken.append, kind))
        await put(pool, 1, 2)
        await leases.put(conn, "webhook", [(OTHER, UUID(int=1), uuid7(), 0.0)])
        async with asyncio.timeout(120):
            while len(woken) < 2:
                await backlog.look(conn, "test")
                await asyncio.sleep(0.001)
        assert sorted(set(woken) - {"test"}) == ["sms", "webhook"]
        assert (backlog.lines("sms"), backlog.found("webhook")) == ([LINE], [OTHER])
        assert len(await backlog.claim(conn, "webhook", {OTHER: 5}, seconds=60)) == 1


async def test_who_comes_too_early_for_a_look_is_woken_for_it(pool: Pool) -> None:
    async with knowing(pool) as (conn, backlog):
        wake = asyncio.Event()
        backlog.on_work("sms", wake.set)
        there = await put(pool, 1, 1)
        async with asyncio.timeout(120):
            while not backlog.lines("sms"):
                await backlog.look(conn, "sms")
                if not backlog.lines("sms"):
                    await wake.wait()
                    wake.clear()
        assert {one.id for one in await backlog.claim(conn, "sms", {LINE: 5}, seconds=60)} == there


# -- what only reading the whole table finds ---------------------------------------------------------------------------


async def test_rows_whose_lease_ended_are_found(pool: Pool) -> None:
    there = await put(pool, 1, 3)
    async with knowing(pool) as (conn, backlog), knowing(pool, cycle=0.0) as (second, other):
        assert await ids(conn, backlog) == there
        assert await ids(second, other) == set()
        await conn.execute("UPDATE queue SET lease_until = now() - interval '1 second'")
        assert await ids(second, other) == there


async def test_rows_that_somebody_had_locked_and_let_go_are_found(pool: Pool) -> None:
    there = await put(pool, 1, 3)
    async with knowing(pool, cycle=0.0) as (conn, backlog), pool.acquire() as somebody:
        async with somebody.transaction():
            await somebody.execute("SELECT FROM queue FOR UPDATE")
            assert await ids(conn, backlog) == set()
        assert await ids(conn, backlog) == there


async def test_what_was_held_back_is_found_as_soon_as_it_is_released(pool: Pool) -> None:
    organization = UUID(int=1)
    async with knowing(pool) as (conn, backlog):
        there = await put(pool, 1, 3)
        which = Selection(kinds=("sms",), organization_id=organization)
        await holds.hold(conn, which, reason="asked")
        assert await ids(conn, backlog) == set()
        assert await ids(conn, backlog) == set()
        await holds.release(conn, which)
        assert await ids(conn, backlog) == there


async def test_a_large_table_is_read_in_slices(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.queue.backlog.SLICE", 1)
    there = set()
    for organization in range(1, 4):
        there |= await put(pool, organization, 300)
    async with knowing(pool) as (conn, backlog):
        assert await ids(conn, backlog) == there
        await conn.execute("UPDATE queue SET lease_until = now() - interval '1 second'")
    async with knowing(pool, cycle=0.0) as (conn, backlog):
        assert await ids(conn, backlog) == there


# -- several workers ---------------------------------------------------------------------------------------------------


async def test_slices_shrink_where_many_groups_wait_and_grow_again(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 endpoints with an event each used to be read, and noted, at once."""
    for name, value in (("SLICE", 16), ("GROUPS", 100), ("SMALLEST", 1)):
        monkeypatch.setattr(backlogs, name, value)
    lines = [UUID(int=1000 + n) for n in range(800)]
    for line in lines:
        await put(pool, 1, 1, line=line)
    sizes: list[int] = []

    class Noting(Backlog):
        def _add(self, rows: Sequence[Record], add: backlogs._Add) -> set[str]:
            sizes.append(len(rows))
            return super()._add(rows, add)

    backlog = Noting()
    async with pool.acquire() as conn:
        await backlog.look(conn, "sms")
        assert set(backlog.lines("sms")) == set(lines)
        assert sizes[0] > 100
        backlog.forget()
        sizes.clear()
        await backlog.look(conn, "sms")
        assert set(backlog.lines("sms")) == set(lines)
        assert max(sizes[1:]) <= 100, sizes
        # All wait in one line now, which is one group in each slice.
        await conn.execute("UPDATE queue SET line = $1", LINE)
        for _ in range(2):
            backlog.forget()
            sizes.clear()
            await backlog.look(conn, "sms")
        blocks = await conn.fetchval("SELECT pg_relation_size('queue') / 8192")
        assert len(sizes) <= -(-blocks // 16) + 1, sizes


async def test_workers_at_once_take_everything_once_and_each_has_its_part(pool: Pool) -> None:
    there = set()
    for organization in range(1, 40):
        there |= await put(pool, organization, 20)
    taken: list[list[UUID]] = [[], [], []]
    async with knowing(pool) as one, knowing(pool) as two, knowing(pool) as three:

        async def take(conn: Connection, backlog: Backlog) -> list[UUID]:
            return [lease.id for lease in await backlog.claim(conn, "sms", {LINE: 16}, seconds=60)]

        # In rounds, since a worker that the machine delays would find everything taken.
        while any(claimed := await asyncio.gather(take(*one), take(*two), take(*three))):
            for mine, ids in zip(taken, claimed, strict=True):
                mine.extend(ids)
    assert sorted(id for mine in taken for id in mine) == sorted(there)
    assert all(taken)


# -- plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["finish", "renew", "postpone", "withdraw"])
async def test_a_queue_that_was_analysed_while_it_was_empty_is_read_by_key_when_it_is_full(
    pool: Pool, end: str, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """The statements are planned once, for an empty table whose statistics say so."""
    await as_owner("ANALYZE queue")
    async with knowing(pool) as (conn, backlog):
        await put(pool, 1, 1)
        await close(conn, end, await take(conn, backlog))
        await pool.execute("DELETE FROM queue")
        for organization in range(1, 201):
            await put(pool, organization, 50)
        await backlog.look(conn, "sms")
        async with conn.transaction():
            before = await conn.fetchval(READ)
            claimed = await backlog.claim(conn, "sms", {LINE: 256}, seconds=60)
            after_claim = await conn.fetchval(READ)
            await close(conn, end, claimed)
            after = await conn.fetchval(READ)
        # Of each group its first rows and one more; not the 10,000 that wait.
        assert len(claimed) == 256
        assert after_claim - before < 3 * 256
        assert after - after_claim < 3 * 256


async def close(conn: Connection, end: str, claimed: list[Lease]) -> None:
    match end:
        case "finish":
            assert await leases.finish(conn, claimed) == len(claimed)
        case "renew":
            assert len(await leases.renew(conn, claimed, seconds=60)) == len(claimed)
        case "postpone":
            await leases.postpone(conn, [Postponed(lease, 0.0, OTHER) for lease in claimed])
        case "withdraw":
            assert await leases.withdraw(conn, "sms", [lease.id for lease in claimed], only="all") == {}


# -- the machine -------------------------------------------------------------------------------------------------------

LINES = [LINE, OTHER]


class Workers(Machine):
    """Rows become visible late, in any order; workers poll, claim, put back and fail at any time. None of them ever
    reads the whole table again."""

    tables = ("queue",)

    @initialize()
    def begin(self) -> None:
        self.workers = [Backlog(cycle=NEVER) for _ in range(2)]
        self.late: list[tuple[PoolConnectionProxy[Record], Transaction]] = []
        self.held: list[Lease] = []
        for worker in self.workers:
            self.run(self.look(worker))

    async def look(self, worker: Backlog) -> None:
        async with self.pool.acquire() as conn:
            await worker.look(conn, "sms")

    @rule(organization=st.integers(1, 3), line=st.sampled_from(LINES), lane=st.integers(0, 1), n=st.integers(1, 4))
    def put(self, organization: int, line: UUID, lane: int, n: int) -> None:
        self.run(put(self.pool, organization, n, line=line, lane=lane))

    @rule(organization=st.integers(1, 3), line=st.sampled_from(LINES), lane=st.integers(0, 1), n=st.integers(1, 4))
    def put_late(self, organization: int, line: UUID, lane: int, n: int) -> None:
        async def work() -> None:
            conn = await self.pool.acquire()
            transaction = conn.transaction()
            await transaction.start()
            await put(conn, organization, n, line=line, lane=lane)
            self.late.append((conn, transaction))

        if len(self.late) < 2:
            self.run(work())

    @rule()
    def becomes_visible(self) -> None:
        async def work() -> None:
            conn, transaction = self.late.pop(0)
            await transaction.commit()
            await self.pool.release(conn)

        if self.late:
            self.run(work())

    @rule(number=st.integers(0, 1))
    def looks(self, number: int) -> None:
        self.run(self.look(self.workers[number]))

    @rule(number=st.integers(0, 1), line=st.sampled_from(LINES), places=st.integers(1, 6), fails=st.booleans())
    def claims(self, number: int, line: UUID, places: int, fails: bool) -> None:
        async def work() -> None:
            worker = self.workers[number]
            async with self.pool.acquire() as conn, worker.transaction(conn):
                claimed = await worker.claim(conn, "sms", {line: places}, seconds=600)
                if fails:
                    raise ZeroDivisionError
                self.held += claimed

        try:
            self.run(work())
        except ZeroDivisionError:
            # Nobody else skipped its rows meanwhile.
            self.finds_everything(number)

    @rule(data=st.data(), pause=st.sampled_from([-30.0, 0.0, 0.01]), line=st.sampled_from(LINES))
    def postpone(self, data: st.DataObject, pause: float, line: UUID) -> None:
        async def work(lease: Lease) -> None:
            async with self.pool.acquire() as conn:
                await leases.postpone(conn, [Postponed(lease, pause, line)])
                await conn.execute("SELECT pg_sleep($1)", max(pause, 0.0) + 0.001)

        if self.held:
            lease = data.draw(st.sampled_from(self.held))
            self.held.remove(lease)
            self.run(work(lease))

    @rule(number=st.integers(0, 1))
    def finds_everything(self, number: int) -> None:
        async def work() -> None:
            worker = self.workers[number]
            async with self.pool.acquire() as conn:
                await worker.look(conn, "sms")
                due = {row["id"] for row in await conn.fetch("SELECT id FROM queue WHERE lease_until IS NULL")}
                found = []
                while claimed := await worker.claim(conn, "sms", dict.fromkeys(LINES, 5), seconds=600):
                    found += claimed
                assert {lease.id for lease in found} == due
                self.held += found

        self.run(work())

    def teardown(self) -> None:
        while getattr(self, "late", []):
            self.becomes_visible()


async def test_nothing_is_overlooked(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Workers, database_url)
