"""The timeline of a WhatsApp message for operators."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from heliograph.base.actor import Principal
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.overview import messages as overview
from heliograph.pages.pieces.timeline import lines
from heliograph.suppliers.whatsapp_cloud.callbacks.items import Pricing
from heliograph.suppliers.whatsapp_cloud.graph import outcome_of
from heliograph.whatsapp import intervening, timeline
from heliograph.why.words import why
from tests.rules.dispatching_whatsapp import Bench, accept_all, fault, status_item, wamid
from tests.rules.factories import endpoint
from tests.rules.whatsapp_factories import made, message

SECOND = timedelta(seconds=1)


async def test_the_whole_way_of_a_message(pool: Pool) -> None:
    who = await made(pool)
    await endpoint(pool, who.actor, "message.delivered")
    bench = await Bench(pool).start()
    bench.only.script = lambda submission: fault(131000) if submission.attempt == 1 else accept_all(submission)
    id = await message(pool, who)
    await bench.round()
    await bench.later(seconds=30)
    async with pool.acquire() as conn:
        waiting = await timeline.of_message(conn, id=id)
    assert [one["kind"] for one in waiting.queued] == ["whatsapp"]
    await bench.round()
    pricing = Pricing(type="regular", category="utility")
    await bench.hear(who, status_item(who, id, "delivered", wamid=wamid(id, 2), pricing=pricing))
    async with pool.acquire() as conn:
        found = await timeline.of_message(conn, id=id, with_text=True)
    assert found.message["status"] == "delivered"
    assert found.message["organization_name"] == f"Acme {who.organization_id}"
    assert (found.message["reserved"], found.message["consumed"]) == ("0.000000", "0.010000")
    assert msgspec.json.decode(found.text or "")["parameters"] == ["Ana", "7"]
    what = [entry.what for entry in found.entries]
    assert sorted(set(what)) == ["accepted", "answer", "attempt", "event", "money", "status", "wamid"]
    answers = [entry.detail for entry in found.entries if entry.what == "answer"]
    assert sorted((one["attempt"], one["state"]) for one in answers) == [(1, "busy"), (2, "accepted")]
    assert {"131000"} <= {one.get("code") for one in answers}
    assert [one.detail["wamid"] for one in found.entries if one.what == "wamid"] == [wamid(id, 2)]
    money = [entry.detail for entry in found.entries if entry.what == "money"]
    assert {one["movement"] for one in money} == {"reserve", "consume"}
    assert [entry.detail["kind"] for entry in found.entries if entry.what == "event"] == ["message.delivered"]
    assert [one["kind"] for one in found.queued] == ["webhook"]


@pytest.mark.parametrize(("number", "account", "held"), [(-1, 2, "credential"), (1, 2, "credential"), (2, 1, "spam")])
async def test_the_hold_that_lasts_longer_is_given_with_its_own_reason(
    pool: Pool, number: int, account: int, held: str
) -> None:
    who = await made(pool)
    id = await message(pool, who)
    for table, hours, reason in (("numbers", number, "spam"), ("accounts", account, "credential")):
        await pool.execute(
            f"UPDATE whatsapp_{table} SET held_until = now() + make_interval(hours => $1), held_reason = $2",
            hours,
            reason,
        )
    async with pool.acquire() as conn:
        (row,) = (await timeline.of_message(conn, id=id)).queued
    assert row["held"] == held
    assert row["held_until"] == await pool.fetchval(
        "SELECT greatest(n.held_until, a.held_until) FROM whatsapp_numbers n, whatsapp_accounts a"
    )


@pytest.mark.parametrize("state", ["accepted", "held_for_quality_assessment", "paused"])
async def test_what_meta_does_with_a_message_that_it_took_is_said(pool: Pool, state: str) -> None:
    """Nobody could see why it stays queued, for an hour or until it expires."""
    who = await made(pool)
    bench = await Bench(pool).start()
    answer = msgspec.json.encode({"messages": [{"id": "wamid.HBgM", "message_status": state}]})
    bench.only.script = lambda submission: outcome_of(200, answer)
    id = await message(pool, who)
    await bench.round()
    async with pool.acquire() as conn:
        found = await timeline.of_message(conn, id=id)
    (said,) = [one.detail for one in found.entries if one.what == "answer"]
    assert (said["state"], said.get("detail")) == ("accepted", None if state == "accepted" else state)
    assert found.message["reserved"] == "0.010000"


async def test_a_message_that_meta_has_is_not_said_to_wait_for_a_worker(pool: Pool) -> None:
    """Meta may hold it for an hour, or say nothing at all."""
    who = await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who)
    told = []
    for _ in range(2):
        async with pool.acquire() as conn:
            told.append((await timeline.of_message(conn, id=id)).why)
        await bench.round()
    assert told == [why("status", "accepted"), why("status", "queued")]


async def test_a_status_stands_behind_the_attempt_that_caused_it(pool: Pool) -> None:
    """Meta's times are whole seconds, and so lie before what caused them."""
    who = await made(pool)
    bench = await Bench(pool).start()
    bench.only.script = lambda submission: fault(131000) if submission.attempt == 1 else accept_all(submission)
    id = await message(pool, who)
    await bench.round()
    await bench.later(seconds=30)
    await bench.round()
    began = (await pool.fetchval("SELECT max(started_at) FROM attempts")).replace(microsecond=400_000)
    await pool.execute("UPDATE attempts SET started_at = $1, ended_at = $2 WHERE attempt = 2", began, began + SECOND)
    await pool.execute("UPDATE attempts SET ended_at = started_at + interval '1 s' WHERE attempt = 1")
    said = began.replace(microsecond=0)
    await bench.hear(
        who, *(status_item(who, id, status, wamid=wamid(id, 2), at=said) for status in ("sent", "delivered"))
    )
    async with pool.acquire() as conn:
        found = await timeline.of_message(conn, id=id)
    what = [(one.what, one.detail.get("status") or one.detail.get("attempt")) for one in found.entries]
    at = what.index(("attempt", 2))
    assert what[at : at + 3] == [("attempt", 2), ("status", "sent"), ("status", "delivered")]
    assert what.index(("answer", 1)) < at < what.index(("answer", 2))
    assert {one.at for one in found.entries if one.what == "status"} == {said}, "as Meta said it"
    gaps = [line.gap for line in lines(found.entries)]
    assert min(gap for gap in gaps if gap is not None) >= 0
    assert sum(gaps[at + 1 : what.index(("answer", 2)) + 1]) == pytest.approx(1)  # type: ignore[arg-type]


async def test_two_ids_of_one_message_are_called_what_they_are(pool: Pool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    bench.only.script = accept_all
    id = await message(pool, who)
    await bench.round()
    await pool.execute(
        'INSERT INTO whatsapp_wamids SELECT (jsonb_populate_record(w, \'{"wamid": "wamid.AGAIN"}\')).*'
        " FROM whatsapp_wamids w WHERE message_id = $1",
        id,
    )
    async with pool.acquire() as conn:
        found = await timeline.of_message(conn, id=id)
    (twice,) = [entry.detail for entry in found.entries if entry.what == "sent twice"]
    assert set(twice["wamids"]) == {wamid(id, 1), "wamid.AGAIN"}


async def test_a_cancellation_is_a_step_and_gone_if_meta_delivered_it_all_the_same(pool: Pool) -> None:
    """For operators and for the organization, whoever withdrew it."""
    who = await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who)
    async with pool.acquire() as conn:
        assert (
            await intervening.give_up(conn, Principal("operator", uuid7(), "Ada"), id=id, reason="It is wrong.")
            == "canceled"
        )
        found = await timeline.of_message(conn, id=id)
        shown = await overview.get(conn, who.actor, id=id)
    (at,) = [one.at for one in found.entries if one.what == "status"]
    assert [one.detail["status"] for one in found.entries if one.what == "status"] == ["canceled"]
    assert [(step.at, step.status) for step in shown.steps] == [
        (shown.message.accepted_at, "accepted"),
        (at, "canceled"),
    ]
    await bench.hear(who, status_item(who, id, "delivered"))
    async with pool.acquire() as conn:
        shown = await overview.get(conn, who.actor, id=id)
    assert [step.status for step in shown.steps] == ["accepted", "sent", "delivered"]


async def test_a_failure_and_an_unknown_id(pool: Pool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    bench.only.script = lambda submission: fault(131026)
    id = await message(pool, who)
    await bench.round()
    async with pool.acquire() as conn:
        found = await timeline.of_message(conn, id=id)
        with pytest.raises(NotFound):
            await timeline.of_message(conn, id=uuid7())
    assert found.text is None
    (failed,) = [entry.detail for entry in found.entries if entry.what == "status"]
    assert failed == {"status": "failed", "failure": "recipient_unreachable"}
    assert str(found.evidence).startswith("Meta's code 131026: "), "what it answered to the attempt"


@pytest.mark.parametrize("is_early", [False, True], ids=["after its answer", "before its answer"])
async def test_the_code_of_a_status_that_reports_a_failure_is_kept(pool: Pool, is_early: bool) -> None:
    who = await made(pool)
    bench = await Bench(pool).start()
    id = await message(pool, who)
    # Before, it names the message by Meta's id alone, which is not known yet.
    failed = status_item(who, None if is_early else id, "failed", wamid=wamid(id), code=131026)
    if is_early:
        await bench.hear(who, failed)
    await bench.round()
    if not is_early:
        await bench.hear(who, failed)
    async with pool.acquire() as conn:
        found = await timeline.of_message(conn, id=id)
    (detail,) = [entry.detail for entry in found.entries if entry.detail.get("failure")]
    assert (detail["status"], detail["failure"], detail["code"]) == ("failed", "recipient_unreachable", "131026")
    assert found.evidence == f"Meta's code 131026: {detail['means']}"
    # A delivery takes it back with the failure.
    await bench.hear(who, status_item(who, id, "delivered"))
    async with pool.acquire() as conn:
        found = await timeline.of_message(conn, id=id)
    assert (found.message["failure_evidence"], found.evidence) == (None, None)
