"""Test keys for WhatsApp: the whole process without Meta or charges; the recipient's last digits decide the outcome."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from heliograph.base.database.pool import Pool
from heliograph.queue import leases
from heliograph.queue.backlog import claim_once
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome, CloudSubmission
from heliograph.whatsapp.dispatch import test_mode
from tests.rules.dispatching_whatsapp import Bench, attempts, queued, row_of
from tests.rules.factories import endpoint, events_of, until
from tests.rules.whatsapp_factories import check_wallets, made, message


async def bring(bench: Bench) -> int:
    """What the worker's loop does with due statuses."""
    async with bench.pool.acquire() as conn:
        claimed = await claim_once(conn, test_mode.KIND, {test_mode.LINE: 500}, seconds=60)
        moves = await test_mode.due(conn, [(lease.organization_id, lease.id) for lease in claimed])
        await leases.finish(conn, claimed)
    await bench.results.report(moves)
    return len(claimed)


@pytest.mark.parametrize(
    ("ending", "status", "failure"),
    [
        ("0000", "read", None),
        ("0001", "failed", "recipient_unreachable"),
        ("0002", "failed", "unknown"),
        ("0003", "failed", "expired"),
        ("0004", "sent", None),
        ("0006", "read", None),
        ("0007", "read", None),
        ("4567", "read", None),
    ],
)
async def test_the_last_digits_choose_the_outcome(pool: Pool, ending: str, status: str, failure: str | None) -> None:
    who = await made(pool)
    await endpoint(pool, who.actor, "message.delivered", "message.failed")
    bench = await Bench(pool).start()
    id = await message(pool, who, mode="test", to=f"+25884000{ending}")
    await bench.round()
    assert await attempts(pool, id) == [(1, "accepted")]
    assert bench.only.submitted == []
    await bring(bench)
    row = await row_of(pool, id)
    assert (row["status"], row["failure_code"], row["charge"]) == (status, failure, "none")
    kinds = {"read": ["message.delivered"], "failed": ["message.failed"], "sent": []}
    assert await events_of(pool, id) == kinds[status]
    assert not await queued(pool, id)
    await check_wallets(pool, [who.organization_id])


async def test_0005_is_read_after_a_minute(pool: Pool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who, mode="test", to="+258840000005")
    await bench.round()
    assert await bring(bench) == 0
    await bench.later(seconds=61)
    assert await bring(bench) == 1
    assert (await row_of(pool, id))["status"] == "read"


async def test_a_reply_of_a_test_key_needs_no_window_any_more_and_a_held_number_does_not_stop_it(pool: Pool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    bench.only.hold(60.0)
    id = await message(pool, who, mode="test", type="text")
    await bench.round()
    await bring(bench)
    assert (await row_of(pool, id))["status"] == "read"


async def test_what_is_open_at_the_end_is_unknown_and_what_comes_after_it_is_not_taken() -> None:
    outcomes: list[CloudOutcome] = []

    async def hangs(id: UUID) -> None:
        await asyncio.Event().wait()

    connector = test_mode.Connector(lambda submission, outcome: outcomes.append(outcome), hangs)
    one = CloudSubmission(UUID(int=9), 1, "+258840000007", b"{}")
    connector.submit(one)
    await asyncio.wait_for(connector.stop(grace=0), 120)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.UNKNOWN]
    assert (connector.capacity(), connector.health().usable, connector.health().in_flight) == (0, False, 0)
    connector.submit(one)
    assert len(outcomes) == 1, "never from within"
    await until(lambda: len(outcomes) == 2)
    assert outcomes[1].verdict is Verdict.UNREACHABLE
