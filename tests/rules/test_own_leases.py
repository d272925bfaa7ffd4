"""Work that a worker holds is not lost because its leases ended: the process stood still, or the machine was suspended,
so that the database's clock jumped while the process's own did not move."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, follow_clock
from heliograph.http.client import HttpClient, webhook_rules
from heliograph.queue.backlog import claim_once
from heliograph.queue.work import Work
from heliograph.simulators.receiver import Options, Receiver
from heliograph.suppliers.contract import Outcome, Verdict
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery import attempts as deliveries
from heliograph.webhooks.delivery.delivery import Deliverer
from heliograph.webhooks.delivery.holding import Held
from heliograph.webhooks.recording.handover import Handover
from heliograph.worker import Worker
from tests import hooks
from tests.meanwhile import after
from tests.rules import dispatching_whatsapp, factories, whatsapp_factories
from tests.rules.dispatching import Bench, attempts, pause_of, queued
from tests.rules.test_webhook_handover import hand

ENDED = "UPDATE queue SET lease_until = now() - interval '1 second'"
IS_LEASED = "SELECT lease_until > now() FROM queue"
#: Seconds; far more than a lease.
LONG = 1200.0
#: Another worker has claimed everything.
TAKEN = "UPDATE queue SET lease_token = gen_random_uuid(), lease_until = now() + interval '1 hour', claims = 2"


@contextlib.asynccontextmanager
async def acquainted(pool: Pool, receiver: Receiver, actor: Actor) -> AsyncIterator[Deliverer]:
    """A deliverer, without a loop, that has delivered one event to each endpoint."""
    under = hooks.settings(lease_seconds=600.0, webhook_timeout_seconds=60.0)
    outbound = HttpClient(webhook_rules(under))
    deliverer = Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under))
    count = await pool.fetchval("SELECT count(*) FROM webhook_endpoints")
    await hooks.record(pool, actor)
    assert await deliverer.round() == count
    await hooks.until(lambda: is_empty(pool))
    assert receiver.counters.requests == count
    try:
        yield deliverer
    finally:
        await deliverer.drain(0.0)
        await outbound.close()


def stand_still(deliverer: Deliverer, handover: Handover | None = None) -> None:
    """As if the process had stood still for LONG, with this handover still to be delivered."""
    deliverer._held._renewed_at -= LONG
    for one in deliverer._held.every():
        one.claimed_at -= LONG
    if handover is not None:
        at = asyncio.get_running_loop().time() - LONG
        handover._deliver = lambda taken: deliverer._take_over(taken, at)


async def is_empty(pool: Pool) -> bool:
    return await hooks.queued(pool) == 0


async def test_a_delivery_under_way_is_not_sent_again_by_its_own_worker(pool: Pool, receiver: Receiver) -> None:
    actor = await hooks.organization(pool)
    await hooks.endpoint(pool, actor, receiver.url)
    async with acquainted(pool, receiver, actor) as deliverer:
        receiver.options = Options(hang=True)
        await hooks.record(pool, actor)
        assert await deliverer.round() == 1
        assert deliverer.in_flight == 1
        await pool.execute(ENDED)
        await deliverer.round()
        assert deliverer.in_flight == 1
        assert await pool.fetchval(IS_LEASED)
        assert await deliverer.round() == 0


async def test_a_delivery_that_another_worker_has_put_back_is_claimed_although_its_own_attempt_has_not_ended(
    pool: Pool, receiver: Receiver
) -> None:
    actor = await hooks.organization(pool)
    await hooks.endpoint(pool, actor, receiver.url)
    async with acquainted(pool, receiver, actor) as deliverer:
        receiver.options = Options(hang=True)
        await hooks.record(pool, actor)
        assert await deliverer.round() == 1
        await pool.execute("UPDATE queue SET lease_token = NULL, lease_until = NULL, claims = 2, tries = 1")
        assert [await deliverer.round() for _ in range(3)] == [1, 1, 0]
        assert deliverer.in_flight == 2


async def test_a_lost_delivery_stays_lost_when_its_row_is_claimed_again(pool: Pool) -> None:
    actor = await hooks.organization(pool)
    line, _ = await hooks.endpoint(pool, actor, "http://127.0.0.1:9/")
    await hooks.record(pool, actor)
    held = Held(pool, asyncio.Lock(), seconds=600.0)
    for number in (1, 2):
        async with pool.acquire() as conn:
            claimed = await claim_once(conn, "webhook", {line: 1}, seconds=60.0)
            (delivery,) = await deliveries.load(conn, claimed)
        assert isinstance(delivery, deliveries.Delivery)
        held.add(delivery, 0.0)
        if number == 1:
            await pool.execute("UPDATE queue SET lease_token = NULL, lease_until = NULL")  # another has put it back
        await held.renew_all()
    assert [one.lost for one in held.every()] == [True, False]


async def test_what_waits_is_not_begun_until_its_lease_is_renewed(pool: Pool, receiver: Receiver) -> None:
    actor = await hooks.organization(pool)
    ours, _ = await hooks.endpoint(pool, actor, receiver.url)
    theirs, _ = await hooks.endpoint(pool, actor, receiver.url)
    async with acquainted(pool, receiver, actor) as deliverer:
        (event,), handover = await hand(pool, deliverer, actor, deliver=False)
        stand_still(deliverer)
        await pool.execute(ENDED)
        await pool.execute(f"{TAKEN} WHERE line = $1", theirs)
        handover.deliver()
        assert deliverer.in_flight == 0
        await deliverer.renew()
        await hooks.until(lambda: has_only(pool, theirs))
        assert [one.id for one in receiver.events][2:] == [event]
    assert await has_only(pool, theirs)
    assert ours != theirs


async def test_what_was_handed_over_before_this_process_stood_still_is_not_begun(
    pool: Pool, receiver: Receiver
) -> None:
    """Between the commit and here: the rest has been renewed since."""
    actor = await hooks.organization(pool)
    await hooks.endpoint(pool, actor, receiver.url)
    async with acquainted(pool, receiver, actor) as deliverer:
        _, handover = await hand(pool, deliverer, actor, deliver=False)
        await pool.execute(TAKEN)
        stand_still(deliverer, handover)
        await deliverer.renew()
        handover.deliver()
        assert deliverer.in_flight == 0
        await deliverer.renew()
    assert receiver.counters.requests == 1


async def test_what_may_be_another_workers_once_its_endpoint_is_read_is_not_sent(
    pool: Pool, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint is read again after half a second. The process stood still meanwhile, or the database was away."""
    actor = await hooks.organization(pool)
    line, _ = await hooks.endpoint(pool, actor, receiver.url)
    async with acquainted(pool, receiver, actor) as deliverer:

        async def frozen() -> None:
            stand_still(deliverer)
            await pool.execute(TAKEN)

        async def is_idle() -> bool:
            return deliverer.in_flight == 0

        after(monkeypatch, deliveries, "destinations", frozen)
        deliverer._poster.forget(actor.organization_id, line)
        await hooks.record(pool, actor)
        assert await deliverer.round() == 1
        await hooks.until(is_idle)
    assert receiver.counters.requests == 1
    assert await has_only(pool, line)


async def test_what_comes_late_while_the_rest_is_being_renewed_is_not_begun(pool: Pool, receiver: Receiver) -> None:
    actor = await hooks.organization(pool)
    await hooks.endpoint(pool, actor, receiver.url)
    async with acquainted(pool, receiver, actor) as deliverer:
        receiver.options = Options(hang=True)
        await hand(pool, deliverer, actor)
        _, handover = await hand(pool, deliverer, actor, deliver=False)
        await pool.execute(TAKEN)
        stand_still(deliverer, handover)
        async with deliverer._held._writing:
            renewing = asyncio.create_task(deliverer.renew())
            await asyncio.sleep(0)
            handover.deliver()
        await renewing
        assert deliverer.in_flight == 1


async def has_only(pool: Pool, line: UUID) -> bool:
    return [row["line"] for row in await pool.fetch("SELECT line FROM queue")] == [line]


async def test_a_round_renews_first_what_was_not_renewed_in_time(pool: Pool, receiver: Receiver) -> None:
    actor = await hooks.organization(pool)
    await hooks.endpoint(pool, actor, receiver.url)
    async with acquainted(pool, receiver, actor) as deliverer:
        receiver.options = Options(hang=True)
        await hooks.record(pool, actor)
        assert await deliverer.round() == 1
        deliverer._held._renewed_at -= LONG
        await pool.execute(ENDED)
        assert await deliverer.round() == 0
        assert await pool.fetchval(IS_LEASED)


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
async def test_an_sms_under_way_is_not_taken_for_lost_by_its_own_worker(pool: Pool, guarantee: str) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: None
    id = await factories.message(pool, await factories.organization(pool), guarantee=guarantee)
    await bench.round()
    await bench.later(seconds=200)
    await bench.round()
    assert await attempts(pool, id) == [(1, "open")]
    assert await pool.fetchval(IS_LEASED)
    (submission,) = bench.only.submitted
    bench.answer(submission, factories.accept_all(submission))
    await bench.settle()
    assert await attempts(pool, id) == [(1, "accepted")]
    assert (await factories.status_of(pool, id), await queued(pool, id)) == ("sent", False)


async def test_a_whatsapp_message_under_way_is_not_taken_for_lost_by_its_own_worker(pool: Pool) -> None:
    who = await whatsapp_factories.made(pool)
    bench = await dispatching_whatsapp.Bench(pool).start()
    bench.only.script = lambda submission: None
    id = await whatsapp_factories.message(pool, who)
    await bench.round()
    await pool.execute(ENDED)
    await bench.round()
    assert await attempts(pool, id) == [(1, "open")]
    assert await pool.fetchval(IS_LEASED)
    assert len(bench.only.submitted) == 1


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_what_another_worker_has_is_not_lost_because_the_clock_was_set_forward(
    pool: Pool, channel: str, set_forward: Callable[..., None]
) -> None:
    bench: Any
    other: Any
    if channel == "sms":
        row = factories.supplier()
        bench, other = Bench(pool, row), Bench(pool, row)
        id = await factories.message(pool, await factories.organization(pool))
    else:
        id = await whatsapp_factories.message(pool, await whatsapp_factories.made(pool))
        bench, other = [await dispatching_whatsapp.Bench(pool).start() for _ in range(2)]
    bench.only.script = lambda submission: None
    await bench.round()
    (submission,) = bench.only.submitted
    token = await pool.fetchval("SELECT lease_token FROM queue")
    set_forward(LONG)
    await pool.execute(ENDED)
    await other.round(2)
    assert await attempts(pool, id) == [(1, "open")]
    assert await pool.fetchval("SELECT lease_until > now() AND lease_token = $1 FROM queue", token)
    # A lease later, its worker would have renewed it.
    clock.arm("")
    await pool.execute(ENDED)
    await other.round()
    assert await attempts(pool, id) == [(1, "unknown")]
    assert (other.only.submitted, bench.only.submitted) == ([], [submission])


async def test_an_event_that_another_worker_posts_is_not_posted_again_because_the_clock_was_set_forward(
    pool: Pool, receiver: Receiver, set_forward: Callable[..., None]
) -> None:
    actor = await hooks.organization(pool)
    await hooks.endpoint(pool, actor, receiver.url)
    under = hooks.settings(lease_seconds=600.0)
    outbound = HttpClient(webhook_rules(under))
    other = Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under))
    async with acquainted(pool, receiver, actor) as deliverer:
        receiver.options = Options(hang=True)
        await hooks.record(pool, actor)
        assert await deliverer.round() == 1
        set_forward(LONG)
        await pool.execute(ENDED)
        assert await other.round() == 1, "it has not noticed yet"
        assert await other.round() == 0
        receiver.options = Options()
        await hooks.record(pool, actor)
        assert await other.round() == 1, "another event"
        await hooks.until(partial(is_left, pool, 1))
        assert (deliverer.in_flight, receiver.counters.requests) == (1, 3)
        # A lease later, its worker would have renewed it.
        clock.arm("")
        await pool.execute(ENDED)
        assert await other.round() == 1
        await hooks.until(lambda: is_empty(pool))
        assert receiver.counters.requests == 4
    await other.drain(1.0)
    await outbound.close()


async def is_left(pool: Pool, count: int) -> bool:
    return await hooks.queued(pool) == count


async def lost_answer(pool: Pool) -> tuple[Bench, UUID]:
    """A message whose answers are lost: one so far."""
    bench = Bench(pool)
    bench.only.script = lambda submission: Outcome(Verdict.UNKNOWN)
    id = await factories.message(pool, await factories.organization(pool))
    await bench.round()
    return bench, id


async def test_news_of_a_lost_attempt_is_waited_for_as_long_although_the_clock_was_set_forward(
    pool: Pool, set_forward: Callable[..., None]
) -> None:
    bench, id = await lost_answer(pool)
    bench.only.script = factories.accept_all
    set_forward(LONG)
    async with pool.acquire() as conn:
        await follow_clock(conn)
    await bench.later(seconds=LONG)
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown")]
    assert 60 < await pause_of(pool, id) <= 90
    clock.arm("")
    await bench.later(seconds=90)
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown"), (2, "accepted")]


async def test_each_further_loss_is_waited_for_as_long_although_the_clock_was_set_forward(
    pool: Pool, set_forward: Callable[..., None]
) -> None:
    """That is twice as long as for the one before."""
    bench, id = await lost_answer(pool)
    await bench.later(seconds=95)
    await bench.round()
    set_forward(LONG, ago=100)
    await bench.later(seconds=LONG)
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown"), (2, "unknown")]
    assert 40 < await pause_of(pool, id) <= 80


async def test_silence_is_no_sooner_an_answer_because_the_clock_was_set_forward(
    pool: Pool, set_forward: Callable[..., None]
) -> None:
    """A failover keeps callbacks from us as well: Meta repeats them."""
    id = await whatsapp_factories.message(pool, await whatsapp_factories.made(pool))
    await pool.execute("UPDATE whatsapp_apps SET last_callback_at = now() - interval '1 day'")
    bench = await dispatching_whatsapp.Bench(pool).start()
    bench.only.script = lambda submission: dispatching_whatsapp.UNKNOWN
    await bench.round()
    set_forward(LONG, ago=200)
    await bench.later(seconds=LONG)
    await bench.round()
    assert len(await attempts(pool, id)) == 1
    clock.arm("")
    await bench.later(seconds=60)
    await bench.round()
    assert len(await attempts(pool, id)) == 2


class _Renewing(Work):
    """A part whose renewal calls `step`, with the number of calls."""

    def __init__(self, step: Callable[[int], Awaitable[None]]) -> None:
        self.renewals = 0
        self._step = step

    async def renew(self) -> None:
        self.renewals += 1
        await self._step(self.renewals)


async def test_a_part_whose_renewal_fails_or_hangs_keeps_no_other_from_its_own(pool: Pool, database_url: str) -> None:
    failed_again, worked_again = asyncio.Event(), asyncio.Event()

    async def fails(count: int) -> None:
        if count > 1:
            failed_again.set()
        raise ValueError("a mistake")

    async def hangs(count: int) -> None:
        await asyncio.Event().wait()

    async def works(count: int) -> None:
        if count > 1:
            worked_again.set()

    parts = {"failing": _Renewing(fails), "hanging": _Renewing(hangs), "working": _Renewing(works)}
    under = hooks.settings(database_url=database_url, lease_seconds=0.3, drain_seconds=0.1)
    worker = Worker(under, pool, channels={name: partial(_made, part) for name, part in parts.items()})
    with capture_logs() as logged:
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(60):
            await failed_again.wait()
            await worked_again.wait()
        worker.stop()
        await running
    assert parts["hanging"].renewals == 1
    failed = [one for one in logged if one["event"] == "timer failed"]
    assert {(one["timer"], one["log_level"]) for one in failed} == {("renew", "error")}


def _made(part: Work, *_: Any) -> Work:
    return part
