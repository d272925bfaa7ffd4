"""Operators' decisions about a stuck message: another supplier, an outcome without a receipt, giving up."""

from __future__ import annotations

from uuid import UUID

import pytest

from heliograph.base.actor import Principal
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.campaigns import pausing
from heliograph.overview import intervening
from heliograph.queue import leases
from heliograph.sms import refunds
from heliograph.sms.intervening import passing_over
from heliograph.sms.intervening.deciding import StatusNotDecided
from heliograph.sms.intervening.passing_over import MayNotArriveTwice, MessageNotWaiting, NoOtherSupplier
from heliograph.suppliers.contract import Outcome, Verdict
from heliograph.whatsapp.intervening import WhatsAppMessageNotEnded
from tests.rules import whatsapp_factories
from tests.rules.dispatching import Bench, attempts, queued
from tests.rules.factories import (
    accept_all,
    check_ledger,
    endpoint,
    events_of,
    message,
    organization,
    receipt,
    status_of,
    supplier,
)
from tests.rules.test_queue_holds import accepted

OPERATOR = Principal("operator", name="Eva")
UNKNOWN = Outcome(Verdict.UNKNOWN)
UNREACHED = Outcome(Verdict.UNREACHABLE)


async def elsewhere(pool: Pool, id: UUID, *, twice: bool = False) -> tuple[str, list[str]]:
    async with pool.acquire() as conn:
        return await passing_over.send_elsewhere(conn, OPERATOR, id=id, reason="slow", may_arrive_twice=twice)


async def decide(pool: Pool, id: UUID, status: str) -> str:
    async with pool.acquire() as conn:
        return await intervening.decide(conn, OPERATOR, id=id, status=status, reason="their ticket 4711")


async def give_up(pool: Pool, id: UUID) -> str:
    async with pool.acquire() as conn:
        return await intervening.give_up(conn, OPERATOR, id=id, reason="asked for by phone")


async def audit_entries(pool: Pool, action: str) -> list[tuple[UUID, str]]:
    rows = await pool.fetch("SELECT organization_id, reason FROM audit_log WHERE action = $1 ORDER BY id", action)
    return [tuple(row) for row in rows]


async def two(pool: Pool) -> tuple[Bench, UUID, UUID]:
    """A worker with the suppliers one and two, in this order, both bound."""
    rows = [supplier("one", priority=1), supplier("two", priority=2)]
    for row in rows:
        await pool.execute(
            "INSERT INTO suppliers (id, name, kind, settings, secret, priority, created_at, changed_at)"
            " VALUES ($1, $2, 'smpp', '{}', '', $3, $4, $4)",
            row.id,
            row.name,
            row.priority,
            row.created_at,
        )
    await pool.execute(
        "INSERT INTO supplier_sessions SELECT id, 0, $1, now() + interval '1 min', true, true FROM suppliers", uuid7()
    )
    return Bench(pool, *rows), rows[0].id, rows[1].id


async def test_what_waits_for_a_paused_campaign_is_sent_by_nobody_else(pool: Pool) -> None:
    """It waits in its supplier's line, and was deferred there."""
    bench, one, _ = await two(pool)
    bench.connectors[one].script = lambda submission: UNREACHED
    actor = await organization(pool)
    id = await accepted(pool, actor)
    await bench.round()
    async with pool.acquire() as conn:
        await leases.shift(conn, "sms", [id], by=pausing.AWAY)
    with pytest.raises(MessageNotWaiting):
        await elsewhere(pool, id)
    assert await pool.fetchval("SELECT due_at > now() + interval '1 year' FROM queue")


async def test_what_waits_for_a_supplier_goes_by_another_one_at_once(pool: Pool) -> None:
    actor = await organization(pool)
    bench, one, two_ = await two(pool)
    bench.connectors[one].script = lambda _: UNREACHED
    id = await message(pool, actor)
    await bench.round()
    bench.connectors[one].script = accept_all
    assert await elsewhere(pool, id) == ("one", ["two"])
    await bench.round()
    assert [len(bench.connectors[each].submitted) for each in (one, two_)] == [1, 1]
    assert await status_of(pool, id) == "sent"
    assert await audit_entries(pool, "message.sent_elsewhere") == [(actor.organization_id, "slow")]
    said = await pool.fetchval("SELECT string_agg(said, ' ') FROM route_decisions")
    assert '["%(name)s skipped: %(why)s",{"name":"one","why":["excluded by an operator",{}]}]' in said


async def test_what_was_never_tried_leaves_the_line_of_a_full_supplier(pool: Pool) -> None:
    actor = await organization(pool)
    bench, one, two_ = await two(pool)
    bench.connectors[one].room = 0
    id = await message(pool, actor)
    await bench.round()
    assert await pool.fetchval("SELECT line FROM queue WHERE id = $1", id) == one
    assert await elsewhere(pool, id) == ("one", ["two"])
    await bench.round()
    assert [len(bench.connectors[each].submitted) for each in (one, two_)] == [0, 1]


async def test_an_attempt_in_question_is_sent_again_only_if_somebody_says_so(pool: Pool) -> None:
    actor = await organization(pool)
    bench, one, two_ = await two(pool)
    bench.connectors[one].script = lambda _: UNKNOWN
    id = await message(pool, actor)
    await bench.round()
    with pytest.raises(Invalid, match="may arrive twice"):
        await elsewhere(pool, id)
    bench.connectors[one].script = accept_all
    assert await elsewhere(pool, id, twice=True) == ("one", ["two"])
    await bench.round()
    assert await attempts(pool, id) == [(1, "unknown"), (2, "accepted")]
    assert [len(bench.connectors[each].submitted) for each in (one, two_)] == [1, 1]


async def test_a_receipt_for_the_attempt_in_question_comes_first(pool: Pool) -> None:
    actor = await organization(pool)
    bench, one, _ = await two(pool)
    bench.connectors[one].script = lambda _: UNKNOWN
    id = await message(pool, actor)
    await bench.round()
    await elsewhere(pool, id, twice=True)
    await bench.receive(one, receipt("S77"))
    await bench.round()
    assert await status_of(pool, id) == "delivered"
    assert await attempts(pool, id) == [(1, "accepted")]


async def test_a_promise_that_it_never_arrives_twice_is_kept(pool: Pool) -> None:
    bench, one, _ = await two(pool)
    bench.connectors[one].script = lambda _: UNKNOWN
    id = await message(pool, await organization(pool), guarantee="at_most_once")
    await bench.round()
    with pytest.raises(MayNotArriveTwice):
        await elsewhere(pool, id, twice=True)


async def test_who_was_passed_over_takes_it_if_nobody_else_does(pool: Pool) -> None:
    bench, one, two_ = await two(pool)
    bench.connectors[one].script = lambda _: UNREACHED
    id = await message(pool, await organization(pool))
    await bench.round()
    await elsewhere(pool, id)
    bench.connectors[two_].set_sessions(0)
    bench.connectors[one].script = accept_all
    await bench.round()
    assert await status_of(pool, id) == "sent"
    assert len(bench.connectors[one].submitted) == 2


async def test_without_another_supplier_it_stays(pool: Pool) -> None:
    bench, one, two_ = await two(pool)
    await pool.execute("UPDATE suppliers SET state = 'paused' WHERE id = $1", two_)
    bench.connectors[one].script = lambda _: UNREACHED
    id = await message(pool, await organization(pool))
    await bench.round()
    with pytest.raises(NoOtherSupplier):
        await elsewhere(pool, id)
    assert await pool.fetchval("SELECT passed FROM queue WHERE id = $1", id) is None


async def test_what_waits_for_no_supplier_cannot_be_sent_elsewhere(pool: Pool) -> None:
    actor = await organization(pool)
    await two(pool)
    for id in (
        await message(pool, actor),
        await message(pool, actor, mode="test"),
        await message(pool, actor, status="delivered", queued=False),
    ):
        with pytest.raises(MessageNotWaiting):
            await elsewhere(pool, id)
    with pytest.raises(NotFound):
        await elsewhere(pool, uuid7())


@pytest.mark.parametrize(
    ("status", "code", "kind", "is_refunded"),
    [
        ("delivered", None, "message.delivered", False),
        ("undelivered", "undelivered", "message.failed", True),
        ("failed", "failed", "message.failed", False),
        ("unknown", "no_receipt", None, False),
    ],
)
async def test_an_operator_says_how_it_ended_and_money_follows(
    pool: Pool, status: str, code: str | None, kind: str | None, is_refunded: bool
) -> None:
    actor = await organization(pool)
    id = await accepted(pool, actor)
    bench, *_ = await two(pool)
    await bench.round()
    assert await status_of(pool, id) == "sent"
    async with pool.acquire() as conn:
        await refunds.change_policy(conn, {"undelivered": True})
    used = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id)
    assert await decide(pool, id, status) == status
    assert await decide(pool, id, status) == status, "said twice, it is said once"
    row = await pool.fetchrow("SELECT status, failure_code FROM messages WHERE id = $1", id)
    assert tuple(row) == (status, code)
    assert await events_of(pool, id) == ([kind] if kind else [])
    left = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id)
    assert used - left == int(is_refunded)
    assert await audit_entries(pool, "message.decided") == [(actor.organization_id, "their ticket 4711")]
    await check_ledger(pool, [actor.organization_id])


async def test_what_was_said_goes_no_way_that_a_receipt_could_not_go(pool: Pool) -> None:
    actor = await organization(pool)
    id = await accepted(pool, actor)
    bench, *_ = await two(pool)
    with pytest.raises(StatusNotDecided):  # no supplier was ever given it
        await decide(pool, id, "delivered")
    await bench.round()
    await decide(pool, id, "failed")
    with pytest.raises(StatusNotDecided):
        await decide(pool, id, "delivered")
    with pytest.raises(Invalid, match="do not end that way"):
        await decide(pool, id, "sent")


async def test_what_ended_before_any_supplier_had_it_was_not_delivered(pool: Pool) -> None:
    """It was refunded as a message that was never sent."""
    id = await accepted(pool, await organization(pool))
    bench, one, two_ = await two(pool)
    for each in (one, two_):
        bench.connectors[each].script = lambda _: UNREACHED
    await bench.round()
    await decide(pool, id, "expired")
    with pytest.raises(StatusNotDecided):
        await decide(pool, id, "delivered")
    assert await status_of(pool, id) == "expired"


async def test_an_attempt_in_question_is_said_to_have_ended_and_its_work_ends(pool: Pool) -> None:
    actor = await organization(pool)
    id = await accepted(pool, actor)
    bench, one, _ = await two(pool)
    bench.connectors[one].script = lambda _: UNKNOWN
    await bench.round()
    await endpoint(pool, actor, "message.sent", "message.delivered")
    await decide(pool, id, "delivered")
    assert await events_of(pool, id) == ["message.sent", "message.delivered"]
    assert not await queued(pool, id)
    assert await attempts(pool, id) == [(1, "accepted")]
    row = await pool.fetchrow("SELECT status, supplier_id, sent_at IS NOT NULL FROM messages WHERE id = $1", id)
    assert tuple(row) == ("delivered", one, True)


async def test_what_no_supplier_took_is_refunded_when_it_is_said_to_have_failed(pool: Pool) -> None:
    actor = await organization(pool)
    id = await accepted(pool, actor)
    bench, one, two_ = await two(pool)
    for each in (one, two_):
        bench.connectors[each].script = lambda _: UNREACHED
    await bench.round()
    with pytest.raises(StatusNotDecided):
        await decide(pool, id, "delivered")
    assert await queued(pool, id), "what was refused changed nothing"
    await decide(pool, id, "failed")
    assert not await queued(pool, id)
    assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id) == 0
    await check_ledger(pool, [actor.organization_id])


async def test_a_whatsapp_message_is_given_up_while_meta_cannot_have_it(pool: Pool) -> None:
    who = await whatsapp_factories.made(pool)
    fresh, tried = await whatsapp_factories.message(pool, who), await whatsapp_factories.message(pool, who)
    await doubtful(pool, who.organization_id, tried)
    assert await give_up(pool, fresh) == "canceled"
    assert await give_up(pool, fresh) == "canceled", "given up twice, it is given up once"
    with pytest.raises(WhatsAppMessageNotEnded):
        await give_up(pool, tried)
    rows = await pool.fetch("SELECT id, status FROM whatsapp_messages")
    assert {row["id"]: row["status"] for row in rows} == {fresh: "canceled", tried: "accepted"}
    assert await audit_entries(pool, "message.given_up") == [(who.organization_id, "asked for by phone")]
    assert not await queued(pool, fresh, kind="whatsapp")
    await whatsapp_factories.check_wallets(pool, [who.organization_id])


@pytest.mark.parametrize("status", ["delivered", "read", "failed"])
async def test_how_a_whatsapp_message_ended_is_said_with_its_money(pool: Pool, status: str) -> None:
    who = await whatsapp_factories.made(pool)
    fresh, tried = await whatsapp_factories.message(pool, who), await whatsapp_factories.message(pool, who)
    await doubtful(pool, who.organization_id, tried)
    await endpoint(pool, who.actor, "message.sent", "message.delivered", "message.read", "message.failed")
    with pytest.raises(WhatsAppMessageNotEnded):
        await decide(pool, fresh, status)
    assert await decide(pool, tried, status) == status
    # As after a report from Meta, which would imply that it was sent.
    told = {"failed": ["failed"], "delivered": ["sent", "delivered"], "read": ["sent", "delivered", "read"]}
    assert await events_of(pool, tried) == [f"message.{one}" for one in told[status]]
    charge = await pool.fetchval("SELECT charge FROM whatsapp_messages WHERE id = $1", tried)
    assert charge == ("released" if status == "failed" else "consumed")
    assert not await queued(pool, tried, kind="whatsapp")
    await whatsapp_factories.check_wallets(pool, [who.organization_id])


async def doubtful(pool: Pool, organization_id: UUID, id: UUID) -> None:
    """An attempt of unknown outcome."""
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
        " SELECT $1, $2, 1, number_id, 'unknown', now(), now() FROM whatsapp_messages WHERE id = $2",
        organization_id,
        id,
    )
    await pool.execute("UPDATE queue SET attempt = 1 WHERE id = $1", id)
