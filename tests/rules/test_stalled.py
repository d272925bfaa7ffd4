"""Messages that no worker claims, because they are held or their campaign is paused, still expire in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection, Pool
from heliograph.campaigns import plan
from heliograph.queue import holds, stalled, timers
from heliograph.queue.holds import Selection
from heliograph.sms.dispatch import held
from heliograph.whatsapp.dispatch import held as whatsapp_held
from tests.rules import factories, whatsapp_factories
from tests.rules import test_campaigns as campaigns
from tests.rules import test_whatsapp_campaigns as whatsapp_campaigns
from tests.rules.factories import check_ledger, endpoint, events_of, message, organization, status_of
from tests.rules.whatsapp_factories import Made, check_wallets, made

AGO, LATER = timedelta(minutes=-1), timedelta(hours=1)


async def expire(conn: Connection, channel: str = "sms") -> int:
    """One step of the timer; returns the webhook deliveries queued."""
    timer = held.TIMER if channel == "sms" else whatsapp_held.TIMER
    await timers.ensure(conn, timer)
    async with conn.transaction():
        return await (held.expire_stalled(conn) if channel == "sms" else whatsapp_held.expire(conn))


async def valid(pool: Pool, known: Made, channel: str, left: timedelta) -> UUID:
    """A message with this validity."""
    if channel == "sms":
        return await message(pool, known.actor, expires_at=datetime.now(UTC) + left)
    # Its row says a day more, for Meta's statuses.
    return await whatsapp_factories.message(pool, known, deadline=timedelta(days=1) + left)


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_what_an_operator_holds_expires_with_its_event_and_its_money(pool: Pool, channel: str) -> None:
    known = await made(pool)
    await endpoint(pool, known.actor, "message.failed")
    late, good, taken, tried = [await valid(pool, known, channel, left) for left in (AGO, LATER, AGO, AGO)]
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 minute' WHERE id = $1", taken)
    await factories.tried(pool, tried)
    async with pool.acquire() as conn:
        assert not await conn.fetchval(f"SELECT {stalled.ANY}")
        assert await expire(conn, channel) == 0  # nobody holds anything
        await holds.hold(conn, Selection(organization_id=known.organization_id), reason="a question")
        assert await conn.fetchval(f"SELECT {stalled.ANY}")
        assert await expire(conn, channel) == 1
        assert await expire(conn, channel) == 0
    table = "messages" if channel == "sms" else "whatsapp_messages"
    left = await pool.fetch(f"SELECT id, status, failure_code FROM {table} ORDER BY id")
    ended = "expired" if channel == "sms" else "failed"
    assert [tuple(row) for row in left] == [
        (late, ended, "expired"),
        *((id, "accepted", None) for id in (good, taken, tried)),
    ]
    assert await events_of(pool, late) == ["message.failed"]
    assert {row["id"] for row in await pool.fetch("SELECT id FROM queue WHERE kind = $1", channel)} == {
        *(good, taken, tried)
    }
    if channel == "sms":
        assert await pool.fetchval("SELECT count(*) FROM usage_entries WHERE type = 'refund'") == 1
    await check_ledger(pool, [known.organization_id])
    await check_wallets(pool, [known.organization_id])


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_what_a_paused_campaign_put_off_expires(pool: Pool, channel: str) -> None:
    known = await made(pool)
    listed = [campaigns.number(n) for n in range(3)]
    if channel == "sms":
        made_one = await campaigns.create(pool, known.actor, recipients=listed)
        change = "UPDATE messages SET expires_at = now() WHERE recipient = $1"
    else:
        made_one = await whatsapp_campaigns.create(pool, known, audience_tags=None, recipients=listed)
        change = "UPDATE whatsapp_messages SET deadline_at = now() + interval '1 day' WHERE recipient = $1"
    await campaigns.run(pool)
    await pool.execute(change, listed[1])
    async with pool.acquire() as conn:
        assert await expire(conn, channel) == 0
        async with conn.transaction():
            await plan.pause(conn, known.actor, id=made_one.id, channel=channel)
    await campaigns.run(pool)
    async with pool.acquire() as conn:
        assert await conn.fetchval(f"SELECT {stalled.ANY}")
        await expire(conn, channel)
    await campaigns.count(pool)
    shown = campaigns.get if channel == "sms" else whatsapp_campaigns.get
    found = await shown(pool, known.actor if channel == "sms" else known, made_one.id)  # type: ignore[arg-type]
    assert (found.status, found.counts) == ("paused", campaigns.counts(queued=2, failed=1))
    async with pool.acquire() as conn, conn.transaction():
        await plan.resume(conn, known.actor, id=made_one.id, channel=channel)
    await campaigns.run(pool)
    assert not await pool.fetchval(f"SELECT {stalled.ANY}")
    await check_wallets(pool, [known.organization_id])


async def test_a_long_queue_is_read_in_steps_from_end_to_end(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step continues where the last one ended; those of one millisecond are all read."""
    monkeypatch.setattr(stalled, "STEP", 2)
    actor = await organization(pool)
    past = timedelta(days=2)
    first = await made_within_a_millisecond(pool, actor, 5)
    between = [await message(pool, actor) for _ in range(4)]
    last = await message(pool, actor, age=past)
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(kinds=("sms",)), reason="looking")
        assert await steps(conn, last) > 1
        assert {await status_of(pool, id) for id in first} == {"expired"}
        # After the end it starts over.
        await pool.execute("UPDATE messages SET accepted_at = now() - interval '2 days' WHERE id = $1", between[0])
        await steps(conn, between[0])
    assert {await status_of(pool, id) for id in between[1:]} == {"accepted"}


async def steps(conn: Connection, id: UUID) -> int:
    """How many steps it takes until a message has expired."""
    for n in range(1, 12):
        await expire(conn)
        if await conn.fetchval("SELECT status FROM messages WHERE id = $1", id) == "expired":
            return n
    raise AssertionError("it is never reached")


async def made_within_a_millisecond(pool: Pool, actor: Actor, count: int) -> list[UUID]:
    """Messages past their validity whose ids have the same time."""
    ids = []
    for n in range(count):
        id = await message(pool, actor, age=timedelta(days=2))
        one = UUID(int=(0x0198_0000_0000 << 80) | (7 << 76) | (2 << 62) | n)
        await pool.execute("UPDATE messages SET id = $2 WHERE id = $1", id, one)
        await pool.execute("UPDATE queue SET id = $2 WHERE id = $1", id, one)
        ids.append(one)
    return ids


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_what_a_restore_holds_waits_for_the_operators_decision(pool: Pool, channel: str) -> None:
    """It may have been sent after the backup was taken: nobody is told that it was not."""
    id = await valid(pool, await made(pool), channel, AGO)
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(), reason="restored", restored=True)
        assert not await conn.fetchval(f"SELECT {stalled.ANY}")
        await holds.hold(conn, Selection(), reason="looking")
        await expire(conn, channel)
    assert await status(pool, id, channel) == "accepted"


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_what_cannot_be_opened_here_waits(pool: Pool, channel: str) -> None:
    """A key that is missing by mistake must not end what it would open. Other organizations' messages expire."""
    locked, other = await made(pool), await made(pool)
    id, open_one = [await valid(pool, one, channel, AGO) for one in (locked, other)]
    await pool.execute("INSERT INTO text_keys VALUES ($1, 'x', true, now())", locked.organization_id)
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(), reason="looking")
        await expire(conn, channel)
    assert await status(pool, id, channel) == "accepted"
    assert await status(pool, open_one, channel) == ("expired" if channel == "sms" else "failed")


async def status(pool: Pool, id: UUID, channel: str) -> str:
    if channel == "sms":
        return await status_of(pool, id)
    found: str = await pool.fetchval("SELECT status FROM whatsapp_messages WHERE id = $1", id)
    return found
