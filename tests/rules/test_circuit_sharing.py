"""A worker's circuit breakers and the rows that it shares with others, while the database fails."""

from __future__ import annotations

import asyncpg
import pytest

from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.queue.backlog import Backlog
from heliograph.queue.work import Timer
from heliograph.sms.circuits import sharing
from heliograph.sms.dispatch.supplier_pool import PooledSupplier
from heliograph.sms.work import SmsWork
from tests.rules.dispatching import Bench
from tests.rules.factories import TO
from tests.rules.test_guard import Announced
from tests.rules.test_locked_rows import locking

FAILS = "SELECT 1 / (count(*) - 1) FROM unnest($2::uuid[], $3::timestamptz[]) AS item WHERE $1::uuid IS NOT NULL"


async def exchange(pool: Pool, one: PooledSupplier) -> None:
    async with pool.acquire() as conn:
        await sharing.exchange(conn, uuid7(), {one.supplier.id: one}, await sharing.read(conn))


async def shared_supplier(pool: Pool) -> PooledSupplier:
    bench = Bench(pool)
    one = bench.accounts[bench.only_id]
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, 'one', 'smpp', '{}', '', now(), now())",
        one.supplier.id,
    )
    return one


async def test_a_circuit_that_a_probe_closed_stays_closed_though_the_row_could_not_be_written(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await shared_supplier(pool)
    one.breaker.trip()
    await exchange(pool, one)
    one.breaker.grant()
    one.breaker.record(ok=True)
    with monkeypatch.context() as failing, pytest.raises(asyncpg.DivisionByZeroError):
        failing.setattr(sharing, "CLOSE", FAILS)
        await exchange(pool, one)
    await exchange(pool, one)
    assert not one.breaker.open
    assert await pool.fetchval("SELECT opened_at FROM supplier_health") is None


async def test_a_circuit_is_probed_though_the_clock_was_set_back(pool: Pool) -> None:
    """Nobody used to be granted a probe for as long as the clock had been ahead, so that a supplier which had long been
    well got no message until then."""
    one = await shared_supplier(pool)
    one.breaker.trip()
    await exchange(pool, one)
    await pool.execute("UPDATE supplier_health SET opened_at = opened_at + '1 hour', probe_at = probe_at + '1 hour'")
    await exchange(pool, one)
    assert one.breaker.usable()
    assert await pool.fetchval("SELECT probe_at < now() + interval '1 minute' FROM supplier_health"), "one at a time"


async def test_other_workers_learn_of_a_throttle_though_its_row_could_not_be_written_at_first(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await shared_supplier(pool)
    await exchange(pool, one)
    one.connector.throttles, one.connector.pause = 1, 30.0  # type: ignore[attr-defined]
    with monkeypatch.context() as failing, pytest.raises(asyncpg.DivisionByZeroError):
        failing.setattr(sharing, "THROTTLED", FAILS.replace("timestamptz", "float8"))
        await exchange(pool, one)
    await exchange(pool, one)
    assert await pool.fetchval("SELECT paused_until > throttled_at FROM supplier_health")
    at = await pool.fetchval("SELECT throttled_at FROM supplier_health")
    await exchange(pool, one)
    assert await pool.fetchval("SELECT throttled_at FROM supplier_health") == at, "once is enough"


async def test_a_pause_from_before_the_clock_was_set_back_is_not_kept(pool: Pool) -> None:
    """Each throttle used to pause the other workers for a minute, for as long as the clock had been ahead."""
    one = await shared_supplier(pool)
    one.connector.throttles, one.connector.pause = 1, 30.0  # type: ignore[attr-defined]
    await exchange(pool, one)
    await pool.execute("UPDATE supplier_health SET paused_until = paused_until + interval '1 day'")
    one.connector.throttles, one.connector.pause = 2, 0.0  # type: ignore[attr-defined]
    await exchange(pool, one)
    assert await pool.fetchval("SELECT paused_until = throttled_at FROM supplier_health")


async def test_a_supplier_that_throttled_before_the_clock_was_set_back_is_not_said_to_do_so(pool: Pool) -> None:
    """It was for as long as the clock had been ahead, and each worker that started was slow with it for a minute."""
    one = await shared_supplier(pool)
    one.connector.throttles, one.connector.pause = 1, 30.0  # type: ignore[attr-defined]
    await exchange(pool, one)
    async with pool.acquire() as conn:
        assert [*await sharing.avoided(conn)] == [one.supplier.id]
        await conn.execute(
            "UPDATE supplier_health SET throttled_at = throttled_at + '1 day', paused_until = paused_until + '1 day'"
        )
        assert await sharing.avoided(conn) == {}
        assert (await sharing.read(conn))[one.supplier.id]["throttled_at"] is None


async def test_a_circuit_stays_open_though_settings_changed_before_the_clock_was_set_back(pool: Pool) -> None:
    """It used to be closed a second later each time, since it counted as from before the change."""
    one = await shared_supplier(pool)
    await pool.execute("UPDATE suppliers SET changed_at = now() + interval '1 day'")
    one.breaker.trip()
    for _ in range(2):
        await exchange(pool, one)
    assert one.breaker.open
    # Those from before a change are forgotten.
    await pool.execute("UPDATE suppliers SET changed_at = now()")
    await exchange(pool, one)
    assert not one.breaker.open


async def test_a_locked_row_keeps_no_worker_from_renewing_its_sessions(pool: Pool, database_url: str) -> None:
    """It waited for half a minute each time, and other workers took its sessions, which it still had open: more than
    the supplier allows."""
    one = await shared_supplier(pool)
    await pool.execute("INSERT INTO supplier_health (supplier_id) VALUES ($1)", one.supplier.id)
    one.connector.throttles, one.connector.pause = 1, 30.0  # type: ignore[attr-defined]
    one.breaker.trip()
    hasty = await open_pool(database_url, size=1, statement=2.0)
    try:
        async with locking(pool) as open_session:
            await open_session.execute("SELECT FROM supplier_health FOR UPDATE")
            await exchange(hasty, one)
        await exchange(hasty, one)
    finally:
        hasty.terminate()
    written = await pool.fetchrow("SELECT opened_at IS NOT NULL, paused_until > throttled_at FROM supplier_health")
    assert tuple(written or ()) == (True, True)


async def test_a_locked_row_keeps_no_other_notes_from_being_stored_and_prices_are_read(
    pool: Pool, database_url: str
) -> None:
    """A worker learned of no new prices of suppliers, nor of networks, for as long as it was locked."""
    one = await shared_supplier(pool)
    await pool.execute("INSERT INTO supplier_health (supplier_id) VALUES ($1)", one.supplier.id)
    hasty = await open_pool(database_url, size=2, statement=2.0)
    try:
        work = SmsWork(hasty, Settings(), uuid7(), Announced(), Backlog())
        work._last_receipts.note(one.supplier.id)
        work._networks.add(TO, "64304")
        timers = {timer.name: timer.step for timer in work.timers() if isinstance(timer, Timer)}
        async with locking(pool) as open_session:
            await open_session.execute("SELECT FROM supplier_health FOR UPDATE")
            with pytest.raises(asyncpg.QueryCanceledError):
                await timers["notes"]()
            await timers["charges"]()
        assert await pool.fetchval("SELECT network FROM number_networks") == "643-04"
        await timers["notes"]()
    finally:
        hasty.terminate()
    assert await pool.fetchval("SELECT receipt_at IS NOT NULL FROM supplier_health")
