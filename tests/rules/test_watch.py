"""Polling by an idle worker: one query for everything, and only loops with work are woken."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import asyncpg
import pytest

from heliograph.base.database.pool import Pool
from heliograph.queue import leases, timers
from heliograph.queue.backlog import Backlog
from heliograph.queue.watch import Watch
from heliograph.queue.work import Loop, SharedTimer
from heliograph.worker import Worker
from tests.hooks import settings

ANYBODY = "EXISTS (SELECT FROM workers)"


async def queue(pool: Pool, kind: str, *, pause: float = 0.0) -> None:
    async with pool.acquire() as conn:
        await leases.put(conn, kind, [(leases.UNROUTED, uuid4(), uuid4(), pause)])


async def worker(pool: Pool) -> None:
    await pool.execute("INSERT INTO workers (id, name, started_at, seen_at) VALUES ($1, 'w', now(), now())", uuid4())


async def test_a_loop_is_woken_while_its_condition_holds(pool: Pool) -> None:
    watch, wake = Watch(pool, Backlog(), every=0.0), asyncio.Event()
    watch.loop(ANYBODY, wake.set)
    await watch.step()
    assert not wake.is_set()
    await worker(pool)
    for _ in range(2):
        wake.clear()
        await watch.step()
        assert wake.is_set()


async def test_a_loop_is_woken_no_more_often_than_it_wants(pool: Pool) -> None:
    watch, wake = Watch(pool, Backlog(), every=0.0), asyncio.Event()
    watch.loop(ANYBODY, wake.set, least=3600.0)
    await worker(pool)
    await watch.step()
    assert wake.is_set()
    wake.clear()
    await watch.step()
    assert not wake.is_set()


async def test_a_timer_is_woken_when_its_time_has_come_and_there_is_something_to_do(pool: Pool) -> None:
    watch, woken = Watch(pool, Backlog(), every=0.0), asyncio.Event()
    watch.timer("one", ANYBODY, woken.set, every=3600.0)
    async with pool.acquire() as conn:
        await timers.ensure(conn, "one")
        await timers.ensure(conn, "other")
    await watch.step()
    assert not woken.is_set()  # nothing to do
    await worker(pool)
    async with pool.acquire() as conn:
        assert await timers.take(conn, "one", every=3600.0)
    await watch.step()
    assert not woken.is_set()  # not yet
    async with pool.acquire() as conn:
        await timers.hasten(conn, "one")
    await watch.step()
    assert woken.is_set()
    woken.clear()
    await pool.execute("UPDATE timers SET next_at = now() + interval '1 day' WHERE name = 'one'")
    await watch.step()
    assert woken.is_set()  # it was set by a clock that was ahead


async def test_what_a_timer_asks_is_not_looked_at_before_its_time(pool: Pool) -> None:
    watch, woken = Watch(pool, Backlog(), every=0.0), asyncio.Event()
    watch.timer("one", "1 / (SELECT count(*) FROM timers WHERE name = 'nobody') = 1", woken.set, every=3600.0)
    async with pool.acquire() as conn:
        await timers.ensure(conn, "one")
        with pytest.raises(asyncpg.DivisionByZeroError):
            await watch.step()
        assert await timers.take(conn, "one", every=3600.0)
        await watch.step()
    assert not woken.is_set()


async def test_whose_work_was_queued_is_woken(pool: Pool) -> None:
    backlog = Backlog()
    watch, sms, other = Watch(pool, backlog, every=0.0), asyncio.Event(), asyncio.Event()
    backlog.on_work("sms", sms.set)
    backlog.on_work("webhook", other.set)
    await watch.step()
    await queue(pool, "sms")
    await watch.step()
    assert sms.is_set()
    assert not other.is_set()
    # It was not claimed: it counts as still waiting, and its condition may have come true.
    sms.clear()
    await watch.step()
    assert sms.is_set()


async def test_between_two_questions_only_the_queue_is_looked_at(pool: Pool) -> None:
    backlog = Backlog()
    watch, sms, anybody = Watch(pool, backlog, every=3600.0), asyncio.Event(), asyncio.Event()
    backlog.on_work("sms", sms.set)
    watch.loop(ANYBODY, anybody.set)
    await watch.step()
    await worker(pool)
    await queue(pool, "sms")
    await watch.step()
    assert sms.is_set()
    assert not anybody.is_set()


async def test_a_locked_table_leaves_its_own_conditions_unanswered_and_delays_nothing_else(pool: Pool) -> None:
    """As for as long as VACUUM FULL takes: each message waited for the lock of a table that has nothing to do with it,
    up to the time limit of a statement."""
    backlog = Backlog()
    watch, sms, anybody, exported = Watch(pool, backlog, every=0.0), asyncio.Event(), asyncio.Event(), asyncio.Event()
    backlog.on_work("sms", sms.set)
    watch.loop("EXISTS (SELECT FROM workers UNION ALL SELECT FROM exports)", exported.set)
    watch.loop(ANYBODY, anybody.set)
    await worker(pool)
    async with pool.acquire() as holder:
        async with holder.transaction():
            await holder.execute("LOCK TABLE exports IN SHARE ROW EXCLUSIVE MODE")
            await watch.step()
            assert exported.is_set()  # readers do not wait for this lock
        exported.clear()
        anybody.clear()
        async with holder.transaction():
            await holder.execute("LOCK TABLE exports")
            await queue(pool, "sms")
            for _ in range(2):  # with all conditions together, and one by one
                async with asyncio.timeout(10.0):
                    await watch.step()
                assert sms.is_set()
                assert anybody.is_set()
                assert not exported.is_set()
                sms.clear()
                anybody.clear()


async def test_conditions_of_a_table_are_asked_again_once_it_is_free(pool: Pool) -> None:
    watch, exported = Watch(pool, Backlog(), every=0.0, locked=0.0), asyncio.Event()
    watch.loop("EXISTS (SELECT FROM workers UNION ALL SELECT FROM exports)", exported.set)
    await worker(pool)
    async with pool.acquire() as holder, holder.transaction():
        await holder.execute("LOCK TABLE exports")
        await watch.step()
        assert not exported.is_set()
    await watch.step()
    assert exported.is_set()


def parts_of(pool: Pool) -> list[Loop | SharedTimer]:
    made = Worker(settings(), pool)
    found: list[Loop | SharedTimer] = list(made._loops)
    found += [one for one in made._timers() if isinstance(one, SharedTimer)]
    return found


async def test_every_condition_of_the_worker_is_sql_and_false_of_an_empty_database(pool: Pool) -> None:
    for one in parts_of(pool):
        if one.when is not None and one.when != "true":
            assert await pool.fetchval(f"SELECT ({one.when})") is False, one.name


async def test_what_is_done_every_second_has_a_condition(pool: Pool) -> None:
    """Otherwise an idle installation would commit all the time."""
    for one in parts_of(pool):
        if isinstance(one, SharedTimer) and one.seconds < 10.0:
            assert one.when != "true", one.name
