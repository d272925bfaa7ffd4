"""Deliveries whose lease, or whose result, was committed although the answer to the commit was lost."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import asyncpg
import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.ids import uuid7
from heliograph.http.client import HttpClient, webhook_rules
from heliograph.queue import leases
from heliograph.queue.backlog import claim_once
from heliograph.simulators.receiver import Receiver
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.attempts import DELIVERED, Attempt, Ended
from heliograph.webhooks.delivery.delivery import Deliverer
from heliograph.webhooks.recording import events, judging, results
from heliograph.webhooks.recording.events import Event
from heliograph.webhooks.recording.handover import abandoned
from heliograph.webhooks.recording.results import Record
from tests.hooks import DATA, KIND, attempts, delivering, endpoint, organization, queued, record, settings, until
from tests.meanwhile import before
from tests.wire import COMMIT, wired_pool

#: A lease that nobody waits for.
UNDER = settings(lease_seconds=600.0)


async def is_empty(pool: Pool) -> bool:
    return not await queued(pool)


async def has_room(deliverer: Deliverer, actor: Actor) -> bool:
    """No claim is under way, whose commit could be taken for ours."""
    return bool(deliverer.handover().room([actor.organization_id]))


async def test_what_was_claimed_is_claimed_again(pool: Pool, database_url: str, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    outbound = HttpClient(webhook_rules(UNDER))
    async with wired_pool(database_url) as (line, weak):
        deliverer = Deliverer(weak, outbound, UNDER, seal_key=endpoints.seal_key(UNDER))
        await record(pool, actor, 1)
        line.lose_answer(COMMIT)
        with pytest.raises(Exception) as error:
            await deliverer.round()
        assert is_down(error.value)
        assert await pool.fetchval("SELECT lease_until > now() + interval '5 minutes' FROM queue")
        assert await deliverer.round() == 1
        await receiver.wait_for(lambda it: it.counters.received == 1)
        await deliverer.drain(60.0)
    await outbound.close()
    assert await is_empty(pool)


async def test_a_failure_whose_recording_is_repeated_counts_once(
    pool: Pool, database_url: str, receiver: Receiver
) -> None:
    receiver.options = msgspec.structs.replace(receiver.options, status=500, latency=0.5)
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    outbound = HttpClient(webhook_rules(UNDER))
    async with wired_pool(database_url) as (line, weak):
        deliverer = Deliverer(weak, outbound, UNDER, seal_key=endpoints.seal_key(UNDER))
        await record(pool, actor, 1)
        assert await deliverer.round() == 1
        line.lose_answer(COMMIT)
        await deliverer.drain(60.0)
    await outbound.close()
    assert [one["status"] for one in await attempts(pool)] == [500]
    assert await pool.fetchval("SELECT consecutive_failures FROM webhook_endpoints") == 1


async def test_a_failure_whose_commit_held_its_own_lock_counts_once_besides_later_ones(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it was set aside, the results that followed were judged in one batch with it."""
    monkeypatch.setattr(results, "ASIDE_RETRY", 0.01)
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, "http://127.0.0.1:9/")
    await record(pool, actor, 2)
    async with pool.acquire() as conn:
        first, second = await claim_once(conn, "webhook", {id: 2}, seconds=600.0)
    ledger = Record(pool, disable_after=1e6, landed=lambda ended, disabled: None)
    write, hanging, ends = ledger._write, asyncio.Event(), asyncio.Event()
    committing: list[asyncio.Task[None]] = []

    async def hangs(items: list[Ended], is_repeated: bool, *, briefly: bool) -> dict[UUID, str]:
        """Its first commit ends once that is set, and nobody learns of it."""
        monkeypatch.setattr(ledger, "_write", waits_briefly)

        async def commit() -> None:
            async with pool.acquire() as conn, conn.transaction():
                await ledger._write_each(conn, items, judging.standings(items), is_repeated)
                hanging.set()
                await ends.wait()

        committing.append(asyncio.create_task(commit()))
        await hanging.wait()
        raise TimeoutError

    async def waits_briefly(items: list[Ended], is_repeated: bool, *, briefly: bool) -> dict[UUID, str]:
        if not briefly:
            raise asyncpg.LockNotAvailableError
        return await write(items, is_repeated, briefly=True)

    async def is_aside() -> bool:
        return ledger.is_aside(id)

    monkeypatch.setattr(ledger, "_write", hangs)
    ledger.put(Ended(first, 3600.0, Attempt(clock.now(), 0.1, 500, "http_error", "")))
    await hanging.wait()
    ledger.put(Ended(second, 3600.0, Attempt(clock.now(), 0.1, 500, "http_error", "")))
    await until(is_aside)
    ends.set()
    await committing[0]
    await ledger.drain()
    assert [one["status"] for one in await attempts(pool)] == [500, 500]
    assert await pool.fetchval("SELECT consecutive_failures FROM webhook_endpoints") == 2


async def test_a_failure_counts_once_although_its_recording_is_repeated_in_halves(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The halves of a batch that failed for another reason when it was repeated did not know that it was."""
    monkeypatch.setattr(results, "RETRY", 0.0)
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, "http://127.0.0.1:9/")
    await record(pool, actor, 2)
    async with pool.acquire() as conn:
        claimed = await claim_once(conn, "webhook", {id: 2}, seconds=600.0)
    ledger = Record(pool, disable_after=1e6, landed=lambda ended, disabled: None)
    write, tries = ledger._write, 0

    async def fails(items: list[Ended], is_repeated: bool, *, briefly: bool) -> dict[UUID, str]:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise ValueError("a mistake")
        done = await write(items, is_repeated, briefly=briefly)
        if tries == 1:
            raise ConnectionResetError
        return done

    monkeypatch.setattr(ledger, "_write", fails)
    for one in claimed:
        ledger.put(Ended(one, 3600.0, Attempt(clock.now(), 0.1, 500, "http_error", "")))
    await ledger.drain()
    assert tries == 4
    assert [one["status"] for one in await attempts(pool)] == [500, 500]
    assert await pool.fetchval("SELECT consecutive_failures FROM webhook_endpoints") == 2


async def test_attempts_in_progress_end_although_the_database_is_away_as_the_worker_begins_to_stop(
    pool: Pool, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were broken off, although their receivers had them, and made again by another worker."""

    async def is_away() -> None:
        raise ConnectionResetError

    receiver.options = msgspec.structs.replace(receiver.options, latency=0.5)
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    outbound = HttpClient(webhook_rules(UNDER))
    deliverer = Deliverer(pool, outbound, UNDER, seal_key=endpoints.seal_key(UNDER))
    await record(pool, actor, 2)
    assert await deliverer.round() == 2
    assert deliverer.in_flight == 1
    before(monkeypatch, leases, "postpone", is_away)
    await deliverer.drain(60.0)
    await outbound.close()
    assert [one["result"] for one in await attempts(pool)] == [DELIVERED]
    assert [row["lease_until"] for row in await pool.fetch("SELECT lease_until FROM queue")] == [None]


async def test_what_is_put_back_beside_a_first_success_is_put_back_when_that_is_repeated(
    pool: Pool, database_url: str
) -> None:
    """The success is recorded by a statement of its own, so that it says nothing about the rest."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, "http://127.0.0.1:9/")
    await record(pool, actor, 2)
    async with pool.acquire() as conn:
        well, shed = await claim_once(conn, "webhook", {id: 2}, seconds=600.0)
    async with wired_pool(database_url) as (line, weak):
        ledger = Record(weak, disable_after=1e6, landed=lambda ended, disabled: None)
        line.end_at(COMMIT)
        ledger.put(Ended(well, None, Attempt(clock.now(), 0.1, 200, DELIVERED, "")))
        ledger.put(Ended(shed, 1.0, None))
        await ledger.drain()
    assert [tuple(row) for row in await pool.fetch("SELECT id, lease_until FROM queue")] == [(shed.id, None)]
    assert [one["result"] for one in await attempts(pool)] == [DELIVERED]


async def test_what_was_handed_over_goes_out_by_a_claim(pool: Pool, database_url: str, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with wired_pool(database_url) as (line, weak), delivering(weak, UNDER) as deliverer:
        # Now the endpoint is known to be well.
        await record(pool, actor, 1)
        await receiver.wait_for(lambda it: it.counters.received == 1)
        await until(lambda: is_empty(pool))
        await until(partial(has_room, deliverer, actor))
        one = Event(actor.organization_id, uuid7(), KIND, "req-1", DATA, clock.now())
        handover = deliverer.handover()
        line.lose_answer(COMMIT)
        with pytest.raises(Exception) as error:
            async with abandoned([handover]), weak.acquire() as conn, conn.transaction():
                assert await events.record(conn, [one], handover=handover) == 0
        assert is_down(error.value)
        await receiver.wait_for(lambda it: it.counters.received == 2)
        await until(lambda: is_empty(pool))
    assert receiver.events[1].id == str(one.id)


async def test_what_was_handed_over_is_put_back_if_its_transaction_is_cancelled_as_it_commits(
    pool: Pool, receiver: Receiver
) -> None:
    """As when a worker stops: nobody would deliver it before the lease ends."""
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool, UNDER) as deliverer:
        await record(pool, actor, 1)
        await receiver.wait_for(lambda it: it.counters.received == 1)
        await until(lambda: is_empty(pool))
        await until(partial(has_room, deliverer, actor))
        one = Event(actor.organization_id, uuid7(), KIND, "req-1", DATA, clock.now())
        handover = deliverer.handover()
        with pytest.raises(asyncio.CancelledError):
            async with abandoned([handover]):
                async with pool.acquire() as conn, conn.transaction():
                    assert await events.record(conn, [one], handover=handover) == 0
                raise asyncio.CancelledError
        await receiver.wait_for(lambda it: it.counters.received == 2)
        await until(lambda: is_empty(pool))
    assert receiver.events[1].id == str(one.id)
