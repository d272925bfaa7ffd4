"""Failures of live messages are counted by code for operators' alerts, on every channel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heliograph.base.database.clock import now
from heliograph.base.database.pool import Pool
from heliograph.base.process import measures
from heliograph.base.process.settings import Settings
from heliograph.sms.arrivals import FAILURES
from heliograph.sms.status import Move, move_many
from heliograph.whatsapp.status import FAILURES as WHATSAPP_FAILURES
from heliograph.worker import Worker
from tests.rules.dispatching import Bench
from tests.rules.dispatching_whatsapp import Bench as WhatsAppBench
from tests.rules.dispatching_whatsapp import fault
from tests.rules.factories import message, organization, status_of, supplier
from tests.rules.whatsapp_factories import made
from tests.rules.whatsapp_factories import message as whatsapp_message

NOWHERE = ("sms", "destination_unreachable")


Lost = Callable[[], dict[tuple[str, ...], float]]


@pytest.fixture
def lost() -> Lost:
    """The failures counted since then."""
    before = dict(measures.LOST.values)

    def counted() -> dict[tuple[str, ...], float]:
        now = {labels: count - before.get(labels, 0) for labels, count in measures.LOST.values.items()}
        return {labels: count for labels, count in now.items() if count}

    return counted


async def test_what_nobody_serves_is_counted_by_its_code(pool: Pool, lost: Lost) -> None:
    bench = Bench(pool, supplier(prefixes=("351",)))
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(3)]
    await bench.round()
    assert {await status_of(pool, id) for id in ids} == {"failed"}
    assert lost() == {NOWHERE: 3}


async def test_what_arrives_and_what_was_a_test_is_not(pool: Pool, lost: Lost) -> None:
    actor = await organization(pool)
    arrived, tried, late = [await message(pool, actor, mode=mode) for mode in ("live", "test", "live")]
    moves = [
        Move(actor.organization_id, arrived, "delivered", now()),
        Move(actor.organization_id, tried, "failed", now(), "destination_unreachable"),
        Move(actor.organization_id, late, "expired", now(), "expired"),
    ]
    for some in (moves, [Move(actor.organization_id, late, "delivered", now())]):
        async with pool.acquire() as conn, conn.transaction():
            await move_many(conn, some)
    assert await status_of(pool, late) == "delivered"
    assert lost() == {("sms", "expired"): 1}


async def test_messages_of_whatsapp_are_counted_too(pool: Pool, lost: Lost) -> None:
    who = await made(pool)
    bench = await WhatsAppBench(pool).start()
    bench.only.script = lambda submission: fault(131026)
    await whatsapp_message(pool, who)
    await bench.round()
    assert lost() == {("whatsapp", "recipient_unreachable"): 1}


async def test_a_worker_shows_zeros_so_that_the_first_one_is_an_increase(pool: Pool) -> None:
    counter = measures.Counter("x", "Of a test", ("channel", "code"))
    counter.add(*NOWHERE)
    counter.expect([NOWHERE, ("sms", "failed")])
    assert counter.values == {NOWHERE: 1, ("sms", "failed"): 0}
    Worker(Settings(secret_key="a secret key for tests, long enough"), pool)
    codes = {("sms", code) for code in FAILURES} | {("whatsapp", code) for code in WHATSAPP_FAILURES}
    assert codes <= measures.LOST.values.keys()
