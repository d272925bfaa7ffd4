"""Lifetimes of WhatsApp messages: Meta drops silently, so a message without news by its deadline has expired."""

from __future__ import annotations

from datetime import timedelta

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.queue import holds
from heliograph.queue.holds import Selection
from heliograph.whatsapp.callbacks import expiry
from heliograph.whatsapp.status import Move, move_many
from tests.rules.dispatching_whatsapp import Bench, accept_all, queued, status_item, status_of
from tests.rules.factories import events_of
from tests.rules.whatsapp_factories import check_wallets, made, message


async def sweep(pool: Pool, bench: Bench) -> int:
    async with pool.acquire() as conn, conn.transaction():
        ended, _ = await expiry.sweep(conn, bench.rates)
    return ended


async def test_without_a_word_by_the_deadline_a_message_has_expired_and_its_money_is_back(pool: Pool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    late = await message(pool, who, deadline=timedelta(hours=25))
    other = await message(pool, who)
    await bench.round()
    await bench.hear(who, status_item(who, late, "sent"))
    assert await sweep(pool, bench) == 0
    await bench.later(hours=25, minutes=1)
    assert await sweep(pool, bench) == 1
    assert await sweep(pool, bench) == 0
    assert await status_of(pool, late) == ("failed", "expired", "released")
    assert (await status_of(pool, other))[0] == "queued"
    assert await events_of(pool, late) == ["message.failed"]
    # It is delivered after all.
    await bench.hear(who, status_item(who, late, "delivered"))
    assert await status_of(pool, late) == ("delivered", None, "consumed")
    assert await events_of(pool, late) == ["message.failed", "message.delivered"]
    await check_wallets(pool, [who.organization_id])


async def test_what_waits_in_the_queue_past_its_deadline_ends_too(pool: Pool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who)
    bench.only.hold(60.0)
    await bench.later(days=31, minutes=1)
    assert await sweep(pool, bench) == 1
    assert await status_of(pool, id) == ("failed", "expired", "released")
    # Its number may never send again, and would keep the row for ever.
    assert not await queued(pool, id)
    bench.only.release()
    await bench.round()
    assert bench.only.submitted == []


async def test_what_a_restore_holds_past_its_deadline_waits_for_the_operators_decision(pool: Pool) -> None:
    """It may have been sent after the backup was taken, and Meta's statuses from that time do not come again."""
    who = await made(pool)
    bench = await Bench(pool).start()
    id, gone = [await message(pool, who, queued=queued) for queued in (True, False)]
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(), reason="restored", restored=True)
        await bench.later(days=31, minutes=1)
        assert await sweep(pool, bench) == 1
        assert [(await status_of(pool, one))[0] for one in (id, gone)] == ["accepted", "failed"]
        assert await queued(pool, id)
        await holds.release(conn, Selection())
    assert await sweep(pool, bench) == 1
    assert await status_of(pool, id) == ("failed", "expired", "released")


async def test_work_that_is_under_way_at_the_deadline_ends_with_its_answer(pool: Pool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who, deadline=timedelta(hours=25))
    bench.only.script = lambda submission: None
    await bench.round()
    await pool.execute("UPDATE whatsapp_messages SET deadline_at = now()")
    assert await sweep(pool, bench) == 1
    assert await queued(pool, id)
    (submission,) = bench.only.submitted
    bench.only.on_outcome(submission, accept_all(submission))
    await bench.settle()
    assert not await queued(pool, id)
    await bench.hear(who, status_item(who, id, "delivered"))
    assert await status_of(pool, id) == ("delivered", None, "consumed")
    await check_wallets(pool, [who.organization_id])


async def test_what_was_canceled_has_no_deadline(pool: Pool) -> None:
    """Nor is it read for ever: it leaves the index that finds expired messages."""
    who = await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who)
    async with pool.acquire() as conn, conn.transaction():
        await move_many(conn, [Move(who.organization_id, id, "canceled", clock.now(), unsent=True)], rates=None)
    await bench.later(days=40)
    assert await sweep(pool, bench) == 0
    assert await pool.fetchval("SELECT deadline_at FROM whatsapp_messages") is None


async def test_what_arrived_has_no_deadline(pool: Pool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who)
    await bench.round()
    await bench.hear(who, status_item(who, id, "delivered"))
    await bench.later(days=40)
    assert await sweep(pool, bench) == 0
