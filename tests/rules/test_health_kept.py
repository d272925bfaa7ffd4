"""The recorded health of the installation: findings, sizes with their forecast, web processes."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta

import pytest

from heliograph import doctor
from heliograph.base.database import clock
from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.histogram import LENGTH
from heliograph.base.process import heartbeat
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, quoted, said
from heliograph.health import findings, keys, sizes, webs
from heliograph.health.sizes import Part, Sample
from heliograph.queue import timers
from heliograph.queue.work import SharedTimer
from heliograph.worker import Worker
from tests.processes import until_true

DAY = timedelta(days=1)
GB = 10**9


async def test_a_finding_has_a_beginning_and_an_end(pool: Pool) -> None:
    broken = Check(said("supplier %(name)s", name="main"), "failed", said("no session bound"), quoted("Look."))
    warned = Check(said("backups"), "warning", said("none has ever been taken"))
    fine = Check(said("clocks"), "ok", said("none pending"))

    async def look(*checks: Check) -> list[tuple[str, str, bool]]:
        async with pool.acquire() as conn:
            await findings.keep(conn, checks)
            return [(str(one.check), one.state, one.over_at is None) for one in await findings.history(conn)]

    assert await look(fine) == []
    assert sorted(await look(broken, warned, fine)) == [("backups", "warning", True), ("supplier main", "failed", True)]
    async with pool.acquire() as conn:
        first = await findings.since(conn)
    # As long as it is found it is one finding, with its present text; a name that occurs twice in a check is one as
    # well.
    again = Check(broken.check, "failed", said("no session bound: %(error)s", error="refused"))
    assert len(await look(again, again, warned)) == 2
    async with pool.acquire() as conn:
        assert await findings.since(conn) == first
        (told,) = [one for one in await findings.history(conn) if one.state == "failed"]
    assert (told.check.english, told.detail.values) == ("supplier %(name)s", {"error": "refused"})
    assert await look(warned) == [("backups", "warning", True), ("supplier main", "failed", False)]
    # A problem that comes back is another finding, and so is one that became worse.
    worse = Check(warned.check, "failed", warned.detail)
    assert len(await look(broken, worse)) == 4
    assert await look() == [(name, state, False) for name, state, _ in await look()]
    await pool.execute("UPDATE findings SET over_at = over_at - interval '31 days' WHERE name = 'backups'")
    assert {name for name, _, _ in await look()} == {"supplier main"}


async def test_a_worker_looks_and_a_web_process_does_while_none_lives(pool: Pool, database_url: str) -> None:
    settings = Settings(secret_key="s" * 40, database_url=database_url)
    worker = Worker(settings, pool, channels={})
    async with pool.acquire() as conn:
        await timers.ensure(conn, findings.TIMER)
        assert not await findings.is_overdue(conn)
        await conn.execute("UPDATE timers SET next_at = now() - interval '31 seconds' WHERE name = 'findings'")
        assert await findings.is_overdue(conn)
        # The database's clock was set back.
        await conn.execute("UPDATE timers SET next_at = now() + interval '3 days' WHERE name = 'findings'")
        assert await findings.is_overdue(conn)
        await worker._look(conn)
        names = {name for name, _ in await findings.since(conn)}
        wrong = {str(one.check) for one in await doctor.examine(conn, settings, far=False) if one.state != "ok"}
    assert names == wrong
    assert "workers" in names


async def test_a_rare_timer_that_failed_is_due_again_soon(pool: Pool) -> None:
    """Failed retention would wait for an hour, and an alert on failures would never see it."""
    worker = Worker(Settings(database_url="postgresql://far.example/x"), pool, channels={})

    async def fails(conn: Connection) -> None:
        raise ValueError("a fault of ours")

    async def succeeds(conn: Connection) -> None:
        await conn.execute("SELECT 1")

    for name, step in {"failing": fails, "sound": succeeds}.items():
        await pool.execute(timers.ENSURE, name)
        for in_steps in (True, False):
            await pool.execute(timers.HASTEN, name)
            shared = worker._shared(SharedTimer(name, step, 3600.0, in_steps=in_steps))
            if step is fails:
                with pytest.raises(ValueError, match="a fault of ours"):
                    await shared()
            else:
                await shared()
            due = await pool.fetchval(
                "SELECT extract(epoch FROM next_at - now())::float8 FROM timers WHERE name = $1", name
            )
            assert (due <= timers.AFTER_FAILURE) == (step is fails)
    # Steps that are due earlier stay so.
    await pool.execute(timers.HASTEN, "failing")
    async with pool.acquire() as conn:
        await timers.retry(conn, "failing")
    assert await pool.fetchval("SELECT next_at <= now() FROM timers WHERE name = 'failing'")


async def test_a_sample_a_day_stays(pool: Pool) -> None:
    worker = Worker(Settings(database_url="postgresql://far.example/x"), pool, channels={})
    async with pool.acquire() as conn:
        await worker._sample(conn)
        await sizes.sample(conn, free=5)
        (one,) = await sizes.latest(conn)
        assert one.free == 5
        assert one.bytes == pytest.approx(await conn.fetchval("SELECT pg_database_size(current_database())"), rel=0.1)
        await conn.execute(
            "INSERT INTO database_sizes SELECT day - n, n, NULL FROM database_sizes, generate_series(1, 40) n"
        )
        # The clock was ahead, and has been set back.
        await conn.execute("INSERT INTO database_sizes VALUES (current_date + 90, 1, NULL)")
        listed = await sizes.latest(conn)
    assert len(listed) == sizes.LOOKED
    assert listed[-1] == one
    assert [one.day for one in listed] == sorted(one.day for one in listed)


def samples(days: int, per_day: int) -> list[Sample]:
    today = date(2027, 1, 31)
    return [Sample(today - n * DAY, 100 * GB - n * per_day, None) for n in reversed(range(days))]


def test_when_the_disk_is_full() -> None:
    now = clock.now().replace(year=2027, month=1, day=31, hour=12)
    # Measured: 1 GB a day, none of it ever dropped.
    found = sizes.forecast(samples(11, GB), [], free=60 * GB, now=now)
    assert found is not None
    assert (found.per_day, found.measured, found.levels_off) == (GB, 10, False)
    assert found.full_on == (now + 60 * DAY).date()
    # Partitions that grow by as much and are kept for 90 days: 50 GB more, and then as much is dropped as is added.
    parts = [Part(40 * GB, now - 40 * DAY, 90 * DAY)]
    found = sizes.forecast(samples(11, GB), parts, free=60 * GB, now=now)
    assert found is not None
    assert (found.full_on, found.levels_off, found.until_level) == (None, True, 50 * GB)
    found = sizes.forecast(samples(11, GB), parts, free=45 * GB, now=now)
    assert found is not None
    assert (found.full_on, found.levels_off) == ((now + 45 * DAY).date(), False)
    # Everything else that grows is not dropped.
    found = sizes.forecast(samples(11, 4 * GB), parts, free=60 * GB, now=now)
    assert found is not None
    assert (found.full_on, found.levels_off) == ((now + 15 * DAY).date(), False)
    # Two samples a day apart say little, and today's partitions nothing.
    found = sizes.forecast(samples(2, GB), parts, free=None, now=now)
    assert found is not None
    assert (found.per_day, found.measured, found.full_on) == (GB, None, None)
    assert sizes.forecast([], [Part(GB, now - timedelta(hours=3), DAY)], free=GB, now=now) is None
    # It shrinks, or never fills.
    for per_day, free in ((-GB, GB), (1000, 60 * GB), (8, 60 * GB)):
        found = sizes.forecast(samples(5, per_day), [], free=free, now=now)
        assert found is not None
        assert (found.full_on, found.levels_off) == (None, False)


def test_what_was_added_within_a_minute() -> None:
    recent = webs.Recent()
    assert recent.added([5, 1], 0.0) == [0, 0]
    assert recent.added([7, 1], 30.0) == [2, 0]
    assert recent.added([8, 2], 60.0) == [3, 1]
    assert recent.added([8, 2], 90.0) == [1, 1], "since half a minute after the beginning"
    assert recent.added([8, 2], 155.0) == [0, 0]


async def test_how_long_accepting_takes_is_counted_by_the_batch() -> None:
    took: list[tuple[float, int]] = []
    going = asyncio.Event()

    async def work(items: list[int]) -> list[int]:
        await going.wait()
        return items

    batcher: Batcher[int, int] = Batcher(work, took=lambda seconds, items: took.append((seconds, items)))
    first = batcher.put(1)
    await asyncio.sleep(0)
    others = [batcher.put(n) for n in range(3)]
    waited = asyncio.get_running_loop().time()
    await asyncio.sleep(0.03)
    waited = asyncio.get_running_loop().time() - waited
    going.set()
    await asyncio.gather(first, *others)
    await batcher.drain()
    assert [items for _, items in took] == [1, 3]
    assert all(seconds >= waited * 0.9 for seconds, _ in took), "who came meanwhile waited for the first batch too"


async def test_web_processes_say_that_they_live(pool: Pool) -> None:
    task = asyncio.create_task(webs.attend(pool, metrics="http://127.0.0.1:9464/metrics", secret_keys=[b"1234"]))
    async with pool.acquire() as conn:
        await until_true(lambda: webs.listed(conn))
        (one,) = listed = await webs.listed(conn)
        assert (one.is_gone, one.metrics, len(one.accepting)) == (False, "http://127.0.0.1:9464/metrics", LENGTH)
        assert webs.accepted_within(listed, 0.95) is None
        # Two processes together: 90 within 16 ms, 10 within a second.
        for counts in ([0, 0, 0, 90], [0] * 9 + [10]):
            await conn.execute(
                "INSERT INTO web_processes VALUES (gen_random_uuid(), 'x', now(), now(), '', NULL, '', $1)",
                counts + [0] * (LENGTH - len(counts)),
            )
        found = webs.accepted_within(await webs.listed(conn), 0.95)
        assert found is not None
        assert 0.5 < found < 1.1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert one.id not in {each.id for each in await webs.listed(conn)}, "whoever ends signs off"


async def test_a_process_with_another_secret_key_is_told(pool: Pool, database_url: str) -> None:
    """Its log only says that it cannot open suppliers, which are bound by the other workers."""

    async def told(*processes: tuple[str, str]) -> tuple[str, str]:
        """The check of these processes, given as (secret key, other secret key); each is named by its position."""
        await pool.execute("DELETE FROM workers")
        for place, (key, other) in enumerate(processes):
            settings = Settings(secret_key=key * 40, other_secret_key=other * 40, database_url=database_url)
            worker = Worker(settings, pool, channels={})
            await worker._beat()
            await pool.execute("UPDATE workers SET name = $2 WHERE id = $1", worker.id, f"host:{place}")
        async with pool.acquire() as conn:
            (one,) = await keys.run(conn, settings)
        return one.state, one.detail.removesuffix(" cannot read what other processes encrypt")

    same = ("ok", "the processes have the same")
    assert await told(("a", "")) == same
    assert await told(("a", ""), ("a", "")) == same
    assert await told(("a", ""), ("b", ""), ("a", "")) == ("failed", "host:1")
    assert await told(("a", ""), ("b", "")) == ("failed", "host:0, host:1")
    # While the key is being changed: each process first gets the new key, then encrypts with it, then loses the old
    # one.
    assert await told(("a", "b"), ("a", ""), ("a", "")) == same
    assert await told(("b", "a"), ("a", "b"), ("b", "a")) == same
    assert await told(("b", "a"), ("a", "b"), ("b", "")) == ("failed", "host:2")
    assert await told(("b", "a"), ("a", ""), ("b", "a")) == ("failed", "host:1")
    assert await told(("b", "a"), ("b", ""), ("b", "")) == same
    # Web processes are compared too; one of a version that did not report its keys is not.
    task = asyncio.create_task(webs.attend(pool, metrics="", secret_keys=[b"1234"]))
    async with pool.acquire() as conn:
        await until_true(lambda: webs.listed(conn))
        (one,) = await keys.run(conn, Settings(database_url=database_url))
        assert (one.state, heartbeat.name() in one.detail) == ("failed", True)
        await conn.execute("UPDATE web_processes SET secret_keys = '{}'")
        (one,) = await keys.run(conn, Settings(database_url=database_url))
    assert (one.state, one.detail) == same
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
