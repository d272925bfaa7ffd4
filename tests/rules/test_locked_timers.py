"""A row that somebody keeps locked, as in an open session of an operator, holds up no periodic work of others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from heliograph.base.database.pool import Pool, open_pool
from heliograph.notices import conditions
from heliograph.queue import holds, timers
from heliograph.queue.holds import Selection
from heliograph.sms.dispatch import held
from heliograph.sms.reports import parts, silence, waiting
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.sms.reports.receipts import store
from heliograph.whatsapp.callbacks import expiry
from heliograph.whatsapp.dispatch import held as whatsapp_held
from tests.rules import whatsapp_factories
from tests.rules.dispatching import Bench
from tests.rules.dispatching_whatsapp import Bench as WhatsAppBench
from tests.rules.dispatching_whatsapp import wamid
from tests.rules.factories import message, organization, receipt, sent, status_of
from tests.rules.test_guard import DAY, PASSED, attack, organization_with_policy
from tests.rules.test_locked_rows import LOCKED, locking
from tests.rules.whatsapp_factories import check_wallets, made

ONE = UUID(int=101)
WALLET = "SELECT FROM wallets WHERE organization_id = $1 FOR UPDATE"


@pytest.fixture
async def hasty(database_url: str) -> AsyncIterator[Pool]:
    """A worker's pool whose statements end sooner: what waits for the lock fails."""
    opened = await open_pool(database_url, size=6, statement=2.0)
    try:
        yield opened
    finally:
        opened.terminate()


async def whatsapp_status(pool: Pool, id: UUID) -> str:
    status: str = await pool.fetchval("SELECT status FROM whatsapp_messages WHERE id = $1", id)
    return status


@pytest.mark.parametrize("full", [False, True])
async def test_whatsapp_messages_of_others_expire(
    pool: Pool, hasty: Pool, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """A locked wallet stopped all of them, and others' wallets, locked meanwhile, accepted no messages."""
    if full:
        monkeypatch.setattr(expiry, "BATCH", 2)  # what is locked comes first, and fills it
    bench = await WhatsAppBench(hasty).start()
    locked, other = await made(pool), await made(pool)
    kept = [await whatsapp_factories.message(pool, locked, deadline=timedelta(hours=25, minutes=n)) for n in range(2)]
    late = await whatsapp_factories.message(pool, other, deadline=timedelta(hours=26))
    await bench.later(hours=26, minutes=1)
    async with locking(pool) as open_session:
        await open_session.execute(WALLET, locked.organization_id)
        async with hasty.acquire() as conn:
            assert (await expiry.sweep(conn, bench.rates))[0] == 1
        assert [await whatsapp_status(pool, id) for id in (*kept, late)] == ["accepted", "accepted", "failed"]
    async with hasty.acquire() as conn:
        assert (await expiry.sweep(conn, bench.rates))[0] == 2
    await check_wallets(pool, [locked.organization_id, other.organization_id])


async def test_an_early_status_whose_message_is_locked_is_applied_once_it_is_not(pool: Pool, hasty: Pool) -> None:
    """It was looked for during a minute. After that, the message counted as one that Meta had dropped."""
    who = await made(pool)
    bench = await WhatsAppBench(hasty).start()
    id = await whatsapp_factories.message(pool, who)
    await bench.round()
    await pool.execute(
        "INSERT INTO whatsapp_early_statuses (number_id, wamid, status, at, received_at)"
        " VALUES ($1, $2, 'delivered', now(), now() - interval '30 seconds')",
        who.number_id,
        wamid(id),
    )
    await pool.execute("UPDATE whatsapp_messages SET deadline_at = now()")
    async with hasty.acquire() as conn:
        async with locking(pool) as open_session:
            await open_session.execute("SELECT FROM whatsapp_messages WHERE id = $1 FOR UPDATE", id)
            await expiry.sweep(conn, bench.rates)
            assert await whatsapp_status(pool, id) == "accepted"
        await pool.execute("UPDATE whatsapp_early_statuses SET received_at = received_at - interval '31 seconds'")
        await expiry.sweep(conn, bench.rates)
    assert await whatsapp_status(pool, id) == "delivered"


async def test_what_the_guard_holds_for_others_expires(pool: Pool, hasty: Pool) -> None:
    bench, actors = Bench(pool), [await organization_with_policy(pool) for _ in range(2)]
    both = [(await attack(pool, actor, 6, first=20 * n))[-1] for n, actor in enumerate(actors)]
    await bench.round(2)
    for id in both:
        await pool.execute(PASSED, id, DAY)
    async with locking(pool) as open_session:
        await open_session.execute(LOCKED, both[:1])
        async with hasty.acquire() as conn:
            await held.expire(conn)
        assert [await status_of(pool, id) for id in both] == ["accepted", "expired"]
    async with hasty.acquire() as conn:
        await held.expire(conn)
    assert await status_of(pool, both[0]) == "expired"


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_what_an_operator_holds_of_others_expires(pool: Pool, hasty: Pool, channel: str) -> None:
    """What was left is found again when the queue has been read to its end."""
    both = [await made(pool) for _ in range(2)]
    for one in both:
        async with pool.acquire() as conn:
            await holds.hold(conn, Selection(organization_id=one.organization_id), reason="a question")
    if channel == "sms":
        ids = [await message(pool, one.actor) for one in both]
        await pool.execute("UPDATE messages SET expires_at = now()")
    else:
        ids = [await whatsapp_factories.message(pool, one, deadline=timedelta(hours=23)) for one in both]

    async def expire() -> list[str]:
        async with hasty.acquire() as conn:
            await timers.ensure(conn, held.TIMER if channel == "sms" else whatsapp_held.TIMER)
            await (held.expire_stalled(conn) if channel == "sms" else whatsapp_held.expire(conn))
        return [await (status_of if channel == "sms" else whatsapp_status)(pool, id) for id in ids]

    ended = "expired" if channel == "sms" else "failed"
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM queue WHERE id = $1 FOR UPDATE", ids[0])
        assert await expire() == ["accepted", ended]
    assert await expire() == [ended] * 2


async def test_receipts_of_other_messages_are_matched(pool: Pool, hasty: Pool) -> None:
    """The locked message's one is checked again a minute later, and does not take up a batch until then."""
    actor = await organization(pool)
    async with pool.acquire() as conn, conn.transaction():
        await store(conn, [ReceivedReceipt(ONE, receipt(key, to=f"+25884000000{key}")) for key in "12"], policies={})
    ids = [await sent(pool, actor, ONE, key, to=f"+25884000000{key}") for key in "12"]
    await pool.execute("UPDATE receipts SET next_try_at = now() - interval '1 minute'")
    async with locking(pool) as open_session:
        await open_session.execute(LOCKED, ids[:1])
        async with hasty.acquire() as conn:
            applied, orphans = await waiting.sweep(conn, policies={})
        assert (applied.matched, orphans) == (1, 0)
        assert [await status_of(pool, id) for id in ids] == ["sent", "delivered"]
        assert not await pool.fetchval(f"SELECT {waiting.ANY_DUE}")
        assert await pool.fetchval("SELECT tries FROM receipts WHERE message_id IS NULL") == 0, "this was none"
    await pool.execute("UPDATE receipts SET next_try_at = now() WHERE next_try_at < now() + interval '2 minutes'")
    async with hasty.acquire() as conn:
        await waiting.sweep(conn, policies={})
    assert await status_of(pool, ids[0]) == "delivered"


async def test_quiet_messages_of_others_end(pool: Pool, hasty: Pool) -> None:
    old = timedelta(minutes=20)
    ids = [await sent(pool, await organization(pool), ONE, f"{n}a", f"{n}b", age=old) for n in range(2)]
    async with pool.acquire() as conn, conn.transaction():
        await store(conn, [ReceivedReceipt(ONE, receipt(f"{n}a")) for n in range(2)], policies={})
    await pool.execute("UPDATE receipts SET received_at = received_at - $1::interval", old)
    async with hasty.acquire() as conn:
        await timers.ensure(conn, parts.TIMER)
        async with locking(pool) as open_session:
            await open_session.execute(LOCKED, ids[:1])
            assert await parts.close_quiet(conn) == 1
            assert await status_of(pool, ids[1]) == "delivered"
        assert await parts.close_quiet(conn) == 1


async def test_silent_messages_of_others_end_and_none_is_passed_over(pool: Pool, hasty: Pool) -> None:
    """Those before the locked one, in the same step, after it, and in later steps."""
    actors = [await organization(pool) for _ in range(2)]
    of = [0, 0, 1, 0, 1]
    ids = [
        await sent(pool, actors[n], ONE, str(key), age=timedelta(hours=80 - key, minutes=-key))
        for key, n in enumerate(of)
    ]

    async def close(limit: int = 1) -> int:
        return await silence.close_silent(conn, deadline=timedelta(hours=72), span=timedelta(hours=1), limit=limit)

    async with hasty.acquire() as conn:
        await timers.ensure(conn, silence.TIMER)
        async with locking(pool) as open_session:
            await open_session.execute(LOCKED, [ids[1]])
            # Of its organization, what comes first ends as well.
            assert await close() == 3
            assert [await status_of(pool, id) for id in ids] == ["unknown", "sent", "unknown", "sent", "unknown"]
            late = await sent(pool, actors[1], ONE, "late", age=timedelta(hours=73))
            assert await close(limit=silence.STEP) == 1
            assert await status_of(pool, late) == "unknown"
        assert await close() == 2


async def test_low_balances_of_others_are_reported(pool: Pool, hasty: Pool) -> None:
    """Nothing was reported to anybody, and others' wallets accepted no messages for as long as each check waited."""
    actors = [await organization(pool) for _ in range(2)]
    for actor in actors:
        await pool.execute(
            "INSERT INTO wallets (organization_id, currency, available, total, alert_below, updated_at)"
            " VALUES ($1, 'EUR', 1, 1, 2, now())",
            actor.organization_id,
        )
    reported = "SELECT organization_id FROM notices WHERE kind = 'wallet.low' ORDER BY id"
    ids = [actor.organization_id for actor in actors]
    async with locking(pool) as open_session:
        await open_session.execute(WALLET, ids[0])
        async with hasty.acquire() as conn, conn.transaction():
            await conditions.report(conn)
        assert [row["organization_id"] for row in await pool.fetch(reported)] == ids[1:]
    async with hasty.acquire() as conn, conn.transaction():
        await conditions.report(conn)
    assert [row["organization_id"] for row in await pool.fetch(reported)] == [ids[1], ids[0]]
