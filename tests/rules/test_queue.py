"""The queue on a real database: no row is lost or leased twice, and lanes and organizations are served in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from uuid import UUID

import asyncpg
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.queue import holds, leases, timers
from heliograph.queue.backlog import Backlog, claim_once
from heliograph.queue.leases import UNROUTED, Lease, Postponed
from tests.rules.factories import blocked
from tests.rules.machines import Machine, run_machine

LINE = UUID(int=77)


async def fill(pool: Pool, organization: UUID, count: int, *, line: UUID = LINE, lane: int = 0) -> list[UUID]:
    ids = [uuid7() for _ in range(count)]
    await pool.executemany(
        "INSERT INTO queue (kind, line, lane, organization_id, due_at, id) VALUES ('sms', $1, $2, $3, now(), $4)",
        [(line, lane, organization, id) for id in ids],
    )
    return ids


async def claim(pool: Pool, count: int, *, line: UUID = LINE, seconds: float = 60.0) -> list[Lease]:
    async with pool.acquire() as conn:
        return await claim_once(conn, "sms", {line: count}, seconds=seconds)


async def expire(pool: Pool) -> None:
    await pool.execute("UPDATE queue SET lease_until = now() - interval '1 second' WHERE lease_until IS NOT NULL")


# -- order and fairness ------------------------------------------------------------------------------------------------


async def test_a_claim_takes_no_more_than_asked_and_nothing_of_other_kinds_or_lines(pool: Pool) -> None:
    ids = await fill(pool, uuid7(), 5)
    await fill(pool, uuid7(), 5, line=UUID(int=78))
    await pool.execute("UPDATE queue SET kind = 'webhook' WHERE id = $1", ids[0])
    assert len(await claim(pool, 3)) == 3
    assert {lease.id for lease in await claim(pool, 9)} < set(ids[1:])
    assert await claim(pool, 9) == []
    assert await claim(pool, 0) == []


async def test_the_oldest_of_an_organization_goes_first(pool: Pool) -> None:
    ids = await fill(pool, uuid7(), 8)
    await pool.executemany(
        "UPDATE queue SET due_at = now() - make_interval(secs => $2) WHERE id = $1",
        [(id, float(n)) for n, id in enumerate(ids)],
    )
    assert {lease.id for lease in await claim(pool, 3)} == set(ids[-3:])


async def test_what_is_due_later_waits(pool: Pool) -> None:
    ids = await fill(pool, uuid7(), 2)
    await pool.execute("UPDATE queue SET due_at = now() + interval '1 hour' WHERE id = $1", ids[0])
    assert [lease.id for lease in await claim(pool, 9)] == [ids[1]]


async def test_single_sends_go_before_campaigns_whoever_sends_them(pool: Pool) -> None:
    await fill(pool, UUID(int=1), 50, lane=1)
    singles = await fill(pool, UUID(int=2), 3, lane=0)
    claimed = await claim(pool, 5)
    assert set(singles) < {lease.id for lease in claimed}
    assert Counter(lease.lane for lease in claimed) == {0: 3, 1: 2}


async def test_a_backlog_leaves_the_others_their_turn(pool: Pool) -> None:
    large, small = UUID(int=1), [UUID(int=n) for n in (2, 3, 4)]
    await fill(pool, large, 300)
    for organization in small:
        await fill(pool, organization, 2)
    claimed = Counter(lease.organization_id for lease in await claim(pool, 40))
    assert [claimed[one] for one in small] == [2, 2, 2]
    assert claimed[large] >= 20


async def test_work_for_later_takes_no_share(pool: Pool) -> None:
    for n in range(2, 60):
        await fill(pool, UUID(int=n), 1)
    await pool.execute("UPDATE queue SET due_at = now() + interval '1 day'")
    await fill(pool, UUID(int=1), 100)
    assert len(await claim(pool, 50)) == 50


async def test_campaigns_get_one_place_in_sixteen_while_single_sends_are_left(pool: Pool) -> None:
    """Also if an organization may not take all places at once, because others have a share."""
    await fill(pool, UUID(int=1), 60)
    for n in range(2, 9):
        await fill(pool, UUID(int=n), 1)
    await fill(pool, UUID(int=9), 60, lane=1)
    backlog, lanes = Backlog(), []
    async with pool.acquire() as conn:
        await backlog.look(conn, "sms")
        while claimed := await backlog.claim(conn, "sms", {LINE: 8}, seconds=60):
            lanes.append(sum(lease.lane for lease in claimed))
    single = lanes[: 67 // 8]
    assert sum(single) == len(single) // 2
    assert sum(lanes) == 60


async def test_a_lone_organization_gets_all_places(pool: Pool) -> None:
    await fill(pool, uuid7(), 300)
    assert len(await claim(pool, 250)) == 250


async def test_few_places_are_shared_over_time(pool: Pool) -> None:
    """With one place per claim, the one that sorts first must not win each time."""
    organizations = [UUID(int=n) for n in range(1, 5)]
    for organization in organizations:
        await fill(pool, organization, 100)
    won: Counter[UUID] = Counter()
    for _ in range(100):
        won.update(lease.organization_id for lease in await claim(pool, 1))
    assert sum(won.values()) == 100
    # Each wins 25 times on average; fewer than 5 happens by chance once in ten million runs.
    assert min(won[one] for one in organizations) >= 5


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_parallel_claims_never_share_a_row(pool: Pool) -> None:
    ids = await fill(pool, uuid7(), 200)
    claims = await asyncio.gather(*(claim(pool, 30) for _ in range(12)))
    while more := await claim(pool, 50):
        claims.append(more)
    assert sorted(lease.id for some in claims for lease in some) == sorted(ids)


async def test_an_expired_lease_is_taken_over_and_the_old_holder_can_do_nothing(pool: Pool) -> None:
    (id,) = await fill(pool, uuid7(), 1)
    (old,) = await claim(pool, 1)
    await expire(pool)
    (new,) = await claim(pool, 1)
    assert (new.id, new.token != old.token) == (id, True)
    async with pool.acquire() as conn:
        assert await leases.finish(conn, [old]) == 0
        assert await leases.renew(conn, [old], seconds=60) == set()
        await leases.postpone(conn, [Postponed(old, 0.0, UNROUTED)])
        assert await conn.fetchval("SELECT line FROM queue WHERE lease_token = $1", new.token) == LINE
        assert await leases.renew(conn, [new], seconds=60) == {(LINE, id)}
        assert await leases.finish(conn, [new]) == 1
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0


async def test_a_renewed_lease_is_not_taken_over(pool: Pool) -> None:
    await fill(pool, uuid7(), 1)
    (lease,) = await claim(pool, 1)
    await expire(pool)
    async with pool.acquire() as conn:
        await leases.renew(conn, [lease], seconds=60)
    assert await claim(pool, 1) == []


async def test_a_row_that_an_open_session_has_locked_keeps_no_other_lease_from_being_renewed(pool: Pool) -> None:
    """All of them ended, and other workers sent everything again."""
    await fill(pool, uuid7(), 5)
    claimed = await claim(pool, 5)
    await expire(pool)
    locked = [claimed[1].id, claimed[4].id]
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 hour' WHERE id = $1", locked[0])
    async with pool.acquire() as open_session, pool.acquire() as conn, open_session.transaction():
        await open_session.execute("SELECT FROM queue WHERE id = ANY ($1) FOR UPDATE", locked)
        await pool.execute("UPDATE queue SET lease_token = gen_random_uuid() WHERE id = $1", claimed[3].id)
        kept = await leases.renew(conn, claimed, seconds=7200)
        renewed = await pool.fetch("SELECT id FROM queue WHERE lease_until > now() + interval '90 minutes'")
        assert {row["id"] for row in renewed} == {claimed[0].id, claimed[2].id}
        # What is locked is not lost before its lease has ended. Then, another worker takes it once it is free.
        assert kept == {(LINE, one.id) for one in claimed[:3]}
        await pool.execute("DELETE FROM queue WHERE id = $1", claimed[3].id)
        assert await claim(pool, 5) == []
    async with pool.acquire() as conn:
        assert len(await leases.renew(conn, claimed[:3], seconds=60)) == 3
    assert [one.id for one in await claim(pool, 5)] == [claimed[4].id]


async def test_a_deadlock_with_an_open_session_keeps_no_other_lease_from_being_renewed(pool: Pool) -> None:
    """PostgreSQL ends the statement of whoever looks for it first."""
    await fill(pool, uuid7(), 3)
    claimed = await claim(pool, 3)
    await expire(pool)
    async with pool.acquire() as open_session, pool.acquire() as conn:
        open_transaction = open_session.transaction()
        await open_transaction.start()
        await open_session.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", claimed[1].id)
        renewing = asyncio.create_task(leases.renew(conn, claimed, seconds=7200))
        await blocked(pool)
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            await open_session.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", claimed[0].id)
        await open_transaction.rollback()
        await renewing
    renewed = await pool.fetch("SELECT id FROM queue WHERE lease_until > now() + interval '90 minutes'")
    assert claimed[2].id in {row["id"] for row in renewed}


async def test_postponed_rows_come_back_in_their_line_with_their_tries(pool: Pool) -> None:
    await fill(pool, uuid7(), 3)
    one, two, three = await claim(pool, 3)
    other = UUID(int=5)
    async with pool.acquire() as conn:
        back = [Postponed(one, 0.0, LINE), Postponed(two, 0.0, other, counts=False), Postponed(three, 60.0, LINE)]
        await leases.postpone(conn, back)
    assert [(lease.id, lease.tries) for lease in await claim(pool, 9)] == [(one.id, 1)]
    assert [(lease.id, lease.tries) for lease in await claim(pool, 9, line=other)] == [(two.id, 0)]


async def test_a_row_may_be_claimed_any_number_of_times(pool: Pool) -> None:
    await fill(pool, uuid7(), 1)
    await pool.execute("UPDATE queue SET claims = 32767")
    for _ in range(3):
        assert len(await claim(pool, 1)) == 1
        await expire(pool)


async def test_put_leaves_what_is_queued_already(pool: Pool) -> None:
    organization, id = uuid7(), uuid7()
    async with pool.acquire() as conn:
        for pause in (60.0, 0.0):
            await leases.put(conn, "sms", [(LINE, organization, id, pause)])
    assert await claim(pool, 1) == []
    assert await pool.fetchval("SELECT count(*) FROM queue") == 1


async def test_occupied_lines_are_told_in_order_and_in_parts(pool: Pool) -> None:
    lines = [UUID(int=n) for n in range(1, 8)]
    for line in lines:
        await fill(pool, uuid7(), 2, line=line)
    await pool.execute("UPDATE queue SET due_at = now() + interval '1 hour' WHERE line = $1", lines[2])
    await claim(pool, 2, line=lines[3])
    async with pool.acquire() as conn:
        assert await leases.occupied(conn, "sms") == (lines, UNROUTED)
        seen: list[UUID] = []
        after = UNROUTED
        while True:
            some, after = await leases.occupied(conn, "sms", after=after, limit=3)
            seen += some
            if after == UNROUTED:
                break
        assert seen == lines


async def test_the_oldest_waiting_row_tells_the_lag(pool: Pool) -> None:
    async with pool.acquire() as conn:
        assert await leases.oldest(conn, "sms") == 0
        await fill(pool, uuid7(), 1)
        await conn.execute("UPDATE queue SET due_at = now() - interval '90 seconds'")
        assert 89 < await leases.oldest(conn, "sms") < 300


async def test_the_lag_is_that_of_the_oldest_row_that_counts(pool: Pool) -> None:
    """Over lines, lanes and organizations, with rows that are leased, due later, put back to their place, or held."""
    chance = random.Random(3)
    organizations, lines = [uuid7() for _ in range(4)], [UUID(int=n) for n in range(4)]
    for organization in organizations:
        for line in lines:
            for lane in (0, 1):
                await fill(pool, organization, chance.randrange(4), line=line, lane=lane)
    rows = await pool.fetch("SELECT id, line FROM queue")
    chance.shuffle(rows)
    for n, row in enumerate(rows):
        change = (
            "due_at = due_at + interval '1 hour'",
            "lease_until = now()",
            "since = due_at - interval '3 s' * $3, due_at = now() - interval '1 s'",
            "due_at = due_at - interval '1 s' * $3",
            "kind = CASE WHEN $3 > 0 THEN 'webhook' END",
        )[n % 5]
        await pool.execute(f"UPDATE queue SET {change} WHERE id = $1 AND line = $2 AND $3 > 0", *row, float(n + 1))
    await pool.execute(
        "INSERT INTO queue_holds (id, kind, organization_id) VALUES ($1, 'sms', $2)", uuid7(), organizations[0]
    )
    plain = """
SELECT coalesce(extract(epoch FROM now() - min(coalesce(since, due_at))), 0)::float8 FROM queue
 WHERE kind = 'sms' AND due_at <= now() AND lease_until IS NULL AND lane = 0 AND line <> ALL ($1)
   AND organization_id <> ALL ($2)
"""
    async with pool.acquire() as conn:
        for without in ([], lines[:1], lines[:3], lines):
            async with conn.transaction():  # one `now`
                wanted = await conn.fetchval(plain, without, [])
                unheld = await conn.fetchval(plain, without, organizations[:1])
                for looked in (leases.LOOKED, 1):  # the latter polls each place
                    assert await leases.oldest(conn, "sms", without=without, looked=looked) == wanted
                    assert await holds.late(conn, "sms", without=without, looked=looked) == unheld
            assert (wanted > 0) == (without != lines)
        async with conn.transaction():
            late = {
                line: await conn.fetchval(plain, [other for other in lines if other != line], organizations[:1])
                for line in lines
            }
            for looked in (leases.LOOKED, 1):
                found = await holds.late_by_line(conn, "sms", looked=looked)
                assert found == {line: age for line, age in late.items() if age}
            assert len(set(late.values())) > 2


# What a session has read is known at once only within its transaction.
ROWS_READ = "SELECT coalesce(seq_tup_read + idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relname = 'queue'"


@pytest.mark.fresh_database
async def test_the_lag_costs_the_same_however_many_endpoints_and_organizations_wait(pool: Pool) -> None:
    """Without a worker, or with twenty thousand failing endpoints, reading one row for each of them took longer than
    the installation's checks may, so that none was made."""
    async with pool.acquire() as conn, conn.transaction():
        for count in (300, 1200):
            await conn.execute("DELETE FROM queue")
            await conn.execute(
                """
INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
SELECT kind, CASE kind WHEN 'sms' THEN $2::uuid ELSE gen_random_uuid() END, lane, gen_random_uuid(),
       now() - n * interval '1 s', gen_random_uuid()
  FROM generate_series(1, $1) AS n, unnest(ARRAY['sms', 'webhook']) AS kind, generate_series(0, 1) AS lane
""",
                count,
                UUID(int=7),
            )
            for kind in ("sms", "webhook"):
                before = await conn.fetchval(ROWS_READ)
                assert await holds.late(conn, kind, without=(), looked=10, places=50) == count
                assert await conn.fetchval(ROWS_READ) - before < 500


async def test_of_all_workers_one_runs_a_timer(pool: Pool) -> None:
    async def take() -> bool:
        async with pool.acquire() as conn:
            return await timers.take(conn, "t", every=60)

    async with pool.acquire() as conn:
        await timers.ensure(conn, "t")
        await timers.ensure(conn, "t")
    assert sorted(await asyncio.gather(*(take() for _ in range(8)))) == [False] * 7 + [True]
    await pool.execute("UPDATE timers SET next_at = now()")
    assert await take()
    # The clock was a day ahead, and has been set back.
    await pool.execute("UPDATE timers SET next_at = now() + interval '1 day'")
    assert sorted(await asyncio.gather(*(take() for _ in range(8)))) == [False] * 7 + [True]


# -- the machine -------------------------------------------------------------------------------------------------------

ORGANIZATIONS = [UUID(int=n) for n in range(1, 4)]
LINES = [UNROUTED, UUID(int=11), UUID(int=12)]


class Queue(Machine):
    """Workers claim, finish, put back, lose and renew; a model knows which rows must exist and who holds them."""

    tables = ("queue",)

    @initialize()
    def begin(self) -> None:
        self.rows: dict[UUID, int] = {}  # id → lane
        # id → the valid lease: until another worker takes the row, even if it has expired
        self.held: dict[UUID, Lease] = {}
        self.over: set[UUID] = set()
        self.lost: list[Lease] = []

    @rule(
        organization=st.sampled_from(ORGANIZATIONS),
        line=st.sampled_from(LINES),
        lane=st.integers(0, 1),
        n=st.integers(1, 5),
    )
    def put(self, organization: UUID, line: UUID, lane: int, n: int) -> None:
        self.rows |= dict.fromkeys(self.run(fill(self.pool, organization, n, line=line, lane=lane)), lane)

    @rule(free=st.dictionaries(st.sampled_from(LINES), st.integers(0, 6), min_size=1))
    def claim(self, free: dict[UUID, int]) -> None:
        async def work() -> list[Lease]:
            async with self.pool.acquire() as conn:
                return await claim_once(conn, "sms", free, seconds=600)

        due = {line: self.run(self.due(line)) for line in free}
        claimed = self.run(work())
        taken = Counter(lease.line for lease in claimed)
        for line, places in free.items():
            assert taken[line] <= places
            assert taken[line] > 0 or places == 0 or not due[line], "due work was left though there was room"
            lanes = Counter(lane for lane, _ in due[line])
            got = Counter(lease.lane for lease in claimed if lease.line == line)
            if got[1]:
                assert got[0] == lanes[0], "a campaign went before a single send"
            singles = {lease.organization_id for lease in claimed if lease.line == line and lease.lane == 0}
            if places >= len(ORGANIZATIONS):
                assert singles == {one for lane, one in due[line] if lane == 0}, "an organization had no turn"
        for lease in claimed:
            if lease.id in self.held:
                assert lease.id in self.over, "a row was held twice"
                self.lost.append(self.held[lease.id])
            assert self.rows[lease.id] == lease.lane
            self.held[lease.id] = lease
            self.over.discard(lease.id)

    async def due(self, line: UUID) -> list[tuple[int, UUID]]:
        rows = await self.pool.fetch(
            "SELECT lane, organization_id FROM queue WHERE line = $1 AND due_at <= now()"
            " AND (lease_until IS NULL OR lease_until < now())",
            line,
        )
        return [(row[0], row[1]) for row in rows]

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        chosen = self.choose(data)

        async def work() -> int:
            async with self.pool.acquire() as conn:
                return await leases.finish(conn, chosen)

        done = {lease.id for lease in chosen if self.held.get(lease.id) == lease}
        assert self.run(work()) == len(done)
        for id in done:
            del self.rows[id], self.held[id]
            self.over.discard(id)

    @rule(data=st.data(), pause=st.sampled_from([0.0, 3600.0]), line=st.sampled_from(LINES))
    def postpone(self, data: st.DataObject, pause: float, line: UUID) -> None:
        chosen = self.choose(data)

        async def work() -> None:
            async with self.pool.acquire() as conn:
                await leases.postpone(conn, [Postponed(lease, pause, line) for lease in chosen])

        self.run(work())
        for lease in chosen:
            if self.held.get(lease.id) == lease:
                self.lost.append(self.held.pop(lease.id))
                self.over.discard(lease.id)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        chosen = self.choose(data)

        async def work() -> set[tuple[UUID, UUID]]:
            async with self.pool.acquire() as conn:
                return await leases.renew(conn, chosen, seconds=600)

        renewed = self.run(work())
        assert renewed == {(lease.line, lease.id) for lease in chosen if self.held.get(lease.id) == lease}
        self.over -= {id for _, id in renewed}

    @rule()
    def time_passes(self) -> None:
        """All leases end, and everything scheduled for later becomes due."""
        self.run(expire(self.pool))
        self.run(self.pool.execute("UPDATE queue SET due_at = now() WHERE due_at > now()"))
        self.over = set(self.held)

    def choose(self, data: st.DataObject) -> list[Lease]:
        """A mix of some valid and some lost leases."""
        known = [*self.held.values(), *self.lost[-20:]]
        if not known:
            return []
        return data.draw(st.lists(st.sampled_from(known), max_size=6, unique_by=lambda lease: (lease.id, lease.token)))

    @invariant()
    def nothing_is_lost(self) -> None:
        rows = self.run(self.pool.fetch("SELECT id, lease_token FROM queue"))
        assert {row["id"] for row in rows} == set(getattr(self, "rows", {}))
        for row in rows:
            if row["id"] in self.held:
                assert row["lease_token"] == self.held[row["id"]].token


async def test_no_row_is_lost_and_none_is_held_twice(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Queue, database_url)
