"""Messages read, listed, previewed and canceled on a real database; above all, canceling during dispatch."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts.organizations import DestinationNotAllowed, OrganizationSuspended
from heliograph.accounts.quota import QuotaExceeded
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.overview import messages as overview
from heliograph.queue import leases
from heliograph.queue.backlog import claim_once
from heliograph.queue.leases import UNROUTED
from heliograph.sending import listing
from heliograph.sms import messages
from heliograph.sms.accepting import preview
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.accepting.sender_ids import SenderIdNotApproved
from heliograph.sms.messages import Filters, MessageNotCancelable
from heliograph.suppliers.contract import Outcome, Verdict
from tests.rules.dispatching import Bench, queued
from tests.rules.factories import (
    SENDER,
    TO,
    blocked,
    endpoint,
    events_of,
    message,
    organization,
    quiet_now,
    receipt,
    send,
    sender,
    status_of,
)

EVERYTHING = Filters()


async def accepted(pool: Pool, actor: Actor, text: str = "hello", **values: Any) -> UUID:
    """A message accepted in the regular way; returns its id."""
    answer = await Acceptor(pool).accept(send(actor, text, **values))
    return UUID(msgspec.json.decode(answer.body)["message"]["id"])


async def listed(pool: Pool, actor: Actor, filters: Filters = EVERYTHING, **values: Any) -> list[UUID]:
    async with pool.acquire() as conn:
        return [one.id for one in (await messages.list_page(conn, actor, filters=filters, **values)).messages]


async def books(pool: Pool, actor: Actor) -> tuple[int, int]:
    """(remaining quota, the ledger's sum), which must be the same."""
    remaining = await pool.fetchval("SELECT total - used FROM quotas WHERE organization_id = $1", actor.organization_id)
    booked = await pool.fetchval(
        "SELECT sum(quantity)::bigint FROM usage_entries WHERE organization_id = $1", actor.organization_id
    )
    return remaining, booked


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_a_message_is_read_as_it_was_sent(pool: Pool) -> None:
    actor = await organization(pool)
    at = clock.now() + timedelta(hours=2)
    id = await accepted(
        pool, actor, "olá", client_reference="order-1", send_at=at, validity_seconds=600, guarantee="at_most_once"
    )
    async with pool.acquire() as conn:
        detail = await messages.get(conn, actor, id=id)
    found = detail.message
    assert (found.id, found.status, found.mode, found.recipient, found.sender) == (id, "accepted", "live", TO, SENDER)
    assert (found.client_reference, found.guarantee, found.send_at) == ("order-1", "at_most_once", at)
    assert found.expires_at == at + timedelta(seconds=600)
    assert (found.encoding, found.segments, found.failure_code) == ("gsm7", 1, None) or found.encoding == "ucs2"
    assert detail.text == "olá"
    assert [(step.status, step.at) for step in detail.steps] == [("accepted", found.accepted_at)]


async def test_without_a_validity_it_expires_with_the_retry_schedule(pool: Pool) -> None:
    actor = await organization(pool)
    id = await accepted(pool, actor)
    async with pool.acquire() as conn:
        found = (await messages.get(conn, actor, id=id)).message
    assert found.expires_at - found.accepted_at == timedelta(days=1)
    assert found.send_at is None


async def test_the_story_is_told_in_order_and_without_the_supplier(pool: Pool) -> None:
    actor = await organization(pool)
    hook = await endpoint(pool, actor, "message.delivered")
    bench = Bench(pool)
    id = await accepted(pool, actor)
    await bench.round()
    await bench.receive(bench.only_id, receipt(f"{id}-1"))
    (event,) = await pool.fetch("SELECT id FROM events WHERE message_id = $1", id)
    await pool.execute(
        "INSERT INTO webhook_attempts (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms,"
        " status, result, detail) VALUES ($1, $2, $3, 1, now(), 12, 200, 'delivered', '')",
        actor.organization_id,
        event["id"],
        hook,
    )
    async with pool.acquire() as conn:
        detail = await messages.get(conn, actor, id=id)
    assert [step.status for step in detail.steps] == ["accepted", "sending", "sent", "delivered", None]
    assert [step.at for step in detail.steps] == sorted(step.at for step in detail.steps)
    delivery = detail.steps[-1].delivery
    assert delivery is not None
    assert (delivery.event_id, delivery.kind, delivery.endpoint_id) == (event["id"], "message.delivered", hook)
    assert (delivery.attempt, delivery.result, delivery.status, delivery.duration_ms) == (1, "delivered", 200, 12)
    # What only people see: each receipt, and that the event was recorded.
    assert [(step.report.state, step.report.part) for step in detail.behind if step.report] == [("delivered", None)]
    assert [step.event for step in detail.behind if step.event] == ["message.delivered"]
    told = msgspec.json.encode(detail).decode()
    for secret in (str(bench.only_id), f"{id}-1", bench.accounts[bench.only_id].supplier.name + '"'):
        assert secret not in told


async def test_each_report_of_a_part_is_told_to_its_organization_alone(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    id = await accepted(pool, actor)
    for part, state, whose in (
        (2, "pending", actor),
        (2, "delivered", actor),
        (1, "delivered", actor),
        (3, "failed", other),
    ):
        await pool.execute(
            "INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, error, recipient, sender,"
            " received_at, organization_id, message_id, part)"
            " VALUES ((clock_timestamp() AT TIME ZONE 'UTC')::date, $1, $1, '{x}', $2, 'err:021', '1', '1',"
            " clock_timestamp(), $3, $4, $5)",
            *(uuid7(), state, whose.organization_id, id, part),
        )
    async with pool.acquire() as conn:
        detail = await messages.get(conn, actor, id=id)
    came = [(step.report.state, step.report.part) for step in detail.behind if step.report]
    assert came == [("pending", 2), ("delivered", 2), ("delivered", 1)]
    assert "err:021" not in msgspec.json.encode(detail).decode()


async def test_a_failure_is_told_by_its_code_alone(pool: Pool) -> None:
    actor = await organization(pool)
    bench = Bench(pool)
    bench.only.script = lambda submission: Outcome(Verdict.REFUSED, code="0x0000000B", detail="invalid destination")
    id = await accepted(pool, actor)
    await bench.round()
    async with pool.acquire() as conn:
        detail = await messages.get(conn, actor, id=id)
    assert (detail.steps[-1].status, detail.steps[-1].failure_code) == ("rejected", "rejected")
    told = msgspec.json.encode(detail).decode()
    assert "0000000B" not in told
    assert "invalid destination" not in told


async def test_an_end_without_an_answer_has_its_time(pool: Pool) -> None:
    actor = await organization(pool)
    bench = Bench(pool, grace=0.0)
    bench.only.script = lambda submission: Outcome(Verdict.UNKNOWN)
    id = await accepted(pool, actor, guarantee="at_most_once")
    await bench.round(2)
    async with pool.acquire() as conn:
        detail = await messages.get(conn, actor, id=id)
    assert [step.status for step in detail.steps] == ["accepted", "sending", "unknown"]


async def test_forgotten_text_is_none(pool: Pool) -> None:
    actor = await organization(pool)
    id = await message(pool, actor, text=None)
    async with pool.acquire() as conn:
        assert (await messages.get(conn, actor, id=id)).text is None


async def test_a_message_is_found_by_its_organization_only_and_live_ones_not_by_test_keys(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    tester = msgspec.structs.replace(actor, mode="test")
    live, test = await message(pool, actor), await message(pool, actor, mode="test")
    async with pool.acquire() as conn:
        for stranger, id in ((other, live), (other, test), (tester, live), (actor, uuid7())):
            for rule in (messages.get, messages.cancel):
                with pytest.raises(NotFound):
                    await rule(conn, stranger, id=id)
        assert (await messages.get(conn, tester, id=test)).message.mode == "test"
        assert (await messages.get(conn, actor, id=test)).message.mode == "test"
    assert await listed(pool, actor) == [test, live]
    assert await listed(pool, actor, Filters(mode="live")) == [live]
    assert await listed(pool, tester) == [test]
    assert await listed(pool, tester, Filters(mode="live")) == []
    assert await listed(pool, other) == []


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_a_list_is_newest_first_and_its_pages_fit_together_while_messages_come(pool: Pool) -> None:
    actor = await organization(pool)
    before = [await message(pool, actor, queued=False) for _ in range(7)]
    seen: list[UUID] = []
    after = None
    while True:
        page = await listed(pool, actor, after=after, limit=2)
        await message(pool, actor, queued=False)
        seen += page[:2]
        if len(page) <= 2:
            break
        after = page[1]
    assert seen == before[::-1]


async def test_filters_choose(pool: Pool) -> None:
    actor = await organization(pool)
    campaign = uuid7()
    one = await accepted(pool, actor, client_reference="a", to="+258840000001")
    two = await accepted(pool, actor, client_reference="b", campaign_id=campaign)
    three = await message(pool, actor, status="delivered", queued=False)
    assert await listed(pool, actor, Filters(status="accepted")) == [two, one]
    assert await listed(pool, actor, Filters(status="delivered")) == [three]
    assert await listed(pool, actor, Filters(recipient="+258840000001")) == [one]
    assert await listed(pool, actor, Filters(recipient=TO)) == [three, two]
    assert await listed(pool, actor, Filters(client_reference="b")) == [two]
    assert await listed(pool, actor, Filters(campaign_id=campaign)) == [two]
    assert await listed(pool, actor, Filters(campaign_id=uuid7())) == []
    assert await listed(pool, actor, Filters(status="accepted", recipient=TO)) == [two]


async def test_messages_to_a_number_are_found_however_it_is_written(pool: Pool) -> None:
    """Clients send to numbers as they have them; people who look for one write it as it is dialed today."""
    actor = await organization(pool)
    old, new = "+551181234567", "+5511981234567"
    sent = [await accepted(pool, actor, to=to) for to in (old, new)]
    await accepted(pool, actor, to="+5511981234568")
    for number in (old, new):
        assert await listed(pool, actor, Filters(recipient=number)) == sent[::-1], number


async def test_dates_are_of_the_acceptance_from_inclusive_to_exclusive(pool: Pool) -> None:
    actor = await organization(pool)
    ids = []
    for _ in range(3):
        ids.append(await accepted(pool, actor))
        await asyncio.sleep(0.002)  # times are shown in milliseconds
    async with pool.acquire() as conn:
        times = {id: (await messages.get(conn, actor, id=id)).message.accepted_at for id in ids}
    first, second, third = ids
    assert await listed(pool, actor, Filters(date_from=times[second])) == [third, second]
    assert await listed(pool, actor, Filters(date_to=times[second] + timedelta(milliseconds=1))) == [second, first]
    assert await listed(pool, actor, Filters(date_to=times[third])) == [second, first]
    assert await listed(pool, actor, Filters(date_from=times[first], date_to=times[second])) == [first]


@pytest.mark.parametrize("year", [1, 1969, 9999])
async def test_any_date_is_a_date(pool: Pool, year: int) -> None:
    actor = await organization(pool)
    id = await message(pool, actor)
    at = clock.now().replace(year=year, month=6, day=1)
    assert await listed(pool, actor, Filters(date_from=at)) == ([id] if year < 2000 else [])
    assert await listed(pool, actor, Filters(date_to=at)) == ([id] if year > 2000 else [])


async def test_a_look_is_bounded_and_says_how_far_it_came(pool: Pool) -> None:
    actor = await organization(pool)
    wanted = await message(pool, actor, status="failed", queued=False)
    others = [await message(pool, actor, queued=False) for _ in range(5)]
    filters = Filters(status="failed")
    async with pool.acquire() as conn:
        first = await messages.list_page(conn, actor, filters=filters, look=3)
        assert (first.messages, first.seen) == ([], others[2])
        second = await messages.list_page(conn, actor, filters=filters, look=3, after=first.seen)
        # The last message scanned may match: it is in the page, and still the place to continue from.
        assert ([one.id for one in second.messages], second.seen) == ([wanted], wanted)
        third = await messages.list_page(conn, actor, filters=filters, look=3, after=second.seen)
        assert (third.messages, third.seen) == ([], None)
        all_at_once = await messages.list_page(conn, actor, filters=EVERYTHING, look=3, limit=2)
        assert ([one.id for one in all_at_once.messages], all_at_once.seen) == (others[:1:-1], None)


@pytest.mark.fresh_database
async def test_a_page_reads_no_more_than_it_needs(pool: Pool) -> None:
    """By the primary key backwards, without a sort: only the page's rows are read."""
    actor = await organization(pool)
    async with pool.acquire() as conn:
        arguments = [
            actor.organization_id,
            UUID(int=2**128 - 1),
            UUID(int=0),
            3,
            20_000,
            None,
            "{live}",
            *[None] * 11,
            "false",
            None,
        ]
        kinds = (
            "uuid, uuid, uuid, int, int, text[], text[], text[], text, uuid, timestamptz, timestamptz, text[], text,"
            " text, text, uuid, text, boolean, uuid"
        )
        await conn.execute(f"PREPARE page ({kinds}) AS {messages.LIST}")
        values = ", ".join("NULL" if one is None else f"'{one}'" for one in arguments)
        plan = "\n".join(row[0] for row in await conn.fetch(f"EXPLAIN EXECUTE page ({values})"))
    assert "Index Scan Backward" in plan
    assert "Sort Key: m.id DESC" in plan  # of the append, which only merges
    assert "->  Sort" not in plan
    assert "Seq Scan" not in plan


# -- canceling ---------------------------------------------------------------------------------------------------------


async def test_a_message_that_waits_is_canceled_and_its_unit_comes_back(pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    id = await accepted(pool, actor, send_at=clock.now() + timedelta(hours=1))
    assert await books(pool, actor) == (9, 9)
    async with pool.acquire() as conn:
        found = await messages.cancel(conn, actor, id=id)
        assert (found.status, found.ended_at is not None) == ("canceled", True)
        assert await messages.cancel(conn, actor, id=id) == found
        detail = await messages.get(conn, actor, id=id)
    assert [step.status for step in detail.steps] == ["accepted", "canceled"]
    assert await books(pool, actor) == (10, 10)
    refunds = await pool.fetch("SELECT quantity, balance_after FROM usage_entries WHERE type = 'refund'")
    assert [tuple(row) for row in refunds] == [(1, 10)]
    assert not await queued(pool, id)
    bench = Bench(pool)
    assert await bench.round() == 0
    assert await events_of(pool, id) == []


async def test_a_test_message_is_canceled_without_a_refund(pool: Pool) -> None:
    actor = msgspec.structs.replace(await organization(pool, quota=10), mode="test")
    id = await accepted(pool, actor)
    async with pool.acquire() as conn:
        assert (await messages.cancel(conn, actor, id=id)).status == "canceled"
    assert await books(pool, actor) == (10, 10)
    assert not await queued(pool, id)


async def test_a_message_that_a_supplier_put_off_is_canceled(pool: Pool) -> None:
    """No supplier has it, so the next attempt must not send it."""
    actor = await organization(pool, quota=10)
    bench = Bench(pool)
    bench.only.script = lambda submission: Outcome(Verdict.BUSY)
    id = await accepted(pool, actor)
    await bench.dispatcher.round()
    await bench.settle()
    assert await status_of(pool, id) == "sending"
    async with pool.acquire() as conn:
        assert (await messages.cancel(conn, actor, id=id)).status == "canceled"
    assert not await queued(pool, id)
    assert await books(pool, actor) == (10, 10)


@pytest.mark.parametrize("outcome", [None, Outcome(Verdict.UNKNOWN)])
async def test_what_went_out_is_not_canceled(pool: Pool, outcome: Outcome | None) -> None:
    actor = await organization(pool)
    bench = Bench(pool)
    bench.only.script = lambda submission: outcome
    id = await accepted(pool, actor)
    await bench.dispatcher.round()
    if outcome is not None:
        await bench.settle()
    async with pool.acquire() as conn:
        with pytest.raises(MessageNotCancelable) as refused:
            await messages.cancel(conn, actor, id=id)
    assert refused.value.details == {"status": "sending"}
    assert await status_of(pool, id) == "sending"
    assert await queued(pool, id)
    assert (await books(pool, actor))[0] == 999


@pytest.mark.parametrize("status", ["sending", "sent", "delivered", "failed", "expired", "unknown"])
async def test_later_states_refuse(pool: Pool, status: str) -> None:
    actor = await organization(pool)
    id = await message(pool, actor, status=status, queued=False)
    async with pool.acquire() as conn:
        with pytest.raises(MessageNotCancelable) as refused:
            await messages.cancel(conn, actor, id=id)
    assert refused.value.details == {"status": status}
    assert await status_of(pool, id) == status


async def test_a_claim_that_is_about_to_commit_is_waited_for(pool: Pool) -> None:
    """Whichever of claim and cancel locks the row first wins; the other sees the result."""
    actor = await organization(pool)
    taken, put_back = await accepted(pool, actor), await accepted(pool, actor)
    async with pool.acquire() as worker:
        async with worker.transaction():
            claimed = await claim_once(worker, "sms", {UNROUTED: 10}, seconds=60)
            by_id = {lease.id: lease for lease in claimed}
            canceling = [asyncio.create_task(cancel(pool, actor, id)) for id in (taken, put_back)]
            await blocked(pool)
            await leases.postpone(worker, [leases.Postponed(by_id[put_back], 5.0, UNROUTED)])
        outcomes = await asyncio.gather(*canceling)
    assert isinstance(outcomes[0], MessageNotCancelable)
    assert outcomes[1] == "canceled"
    assert await queued(pool, taken)
    assert not await queued(pool, put_back)


async def test_canceling_and_dispatching_at_once_never_does_both(pool: Pool) -> None:
    actor = await organization(pool, quota=100)
    bench = Bench(pool, claim_limit=20)
    ids = [await message(pool, actor) for _ in range(100)]

    async def cancel_all() -> list[str | Refusal]:
        return [await cancel(pool, actor, id) for id in reversed(ids)]

    async def dispatch_all() -> None:
        while await bench.round():
            pass

    canceled, _ = await asyncio.gather(cancel_all(), dispatch_all())
    await dispatch_all()
    submitted = {submission.message_id for submission in bench.only.submitted}
    stopped = {id for id, outcome in zip(reversed(ids), canceled, strict=True) if outcome == "canceled"}
    assert stopped.isdisjoint(submitted)
    assert stopped | submitted == set(ids)
    assert stopped
    assert submitted
    assert await books(pool, actor) == (100 + len(stopped),) * 2
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0


async def test_a_message_canceled_twice_at_once_is_refunded_once(pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    for _ in range(5):
        id = await accepted(pool, actor)
        assert await asyncio.gather(*(cancel(pool, actor, id) for _ in range(4))) == ["canceled"] * 4
    assert await books(pool, actor) == (10, 10)
    assert await pool.fetchval("SELECT count(*) FROM usage_entries WHERE type = 'refund'") == 5


async def test_a_cancel_that_is_rolled_back_leaves_all_as_it_was(pool: Pool) -> None:
    actor = await organization(pool, quota=10)
    id = await accepted(pool, actor)
    async with pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await messages.cancel(conn, actor, id=id)
        await transaction.rollback()
    assert await status_of(pool, id) == "accepted"
    assert await queued(pool, id)
    assert await books(pool, actor) == (9, 9)


async def cancel(pool: Pool, actor: Actor, id: UUID) -> str | Refusal:
    async with pool.acquire() as conn, conn.transaction():
        try:
            return (await messages.cancel(conn, actor, id=id)).status
        except Refusal as refusal:
            return refusal


# -- previews ----------------------------------------------------------------------------------------------------------


async def previewed(pool: Pool, actor: Actor, text: str, **values: Any) -> preview.Preview:
    async with pool.acquire() as conn:
        return await preview.preview(conn, Acceptor(pool), send(actor, text, **values))


@pytest.mark.parametrize(
    ("text", "encoding", "parts"),
    [
        ("hello", "gsm7", [(5, 160)]),
        ("x" * 161, "gsm7", [(153, 153), (8, 153)]),
        ("€" * 80, "gsm7", [(160, 160)]),
        ("x" * 152 + "€" + "y" * 10, "gsm7", [(152, 153), (12, 153)]),
        ("здравствуйте", "ucs2", [(12, 70)]),
        ("ж" * 71, "ucs2", [(67, 67), (4, 67)]),
    ],
)
async def test_a_preview_cuts_as_sending_does(
    pool: Pool, text: str, encoding: str, parts: list[tuple[int, int]]
) -> None:
    actor = await organization(pool)
    found = await previewed(pool, actor, text)
    assert (found.encoding, [(part.units, part.holds) for part in found.parts]) == (encoding, parts)
    assert "".join(part.text for part in found.parts) == found.text == text
    assert found.units == sum(part.units for part in found.parts)
    bench = Bench(pool)
    id = await accepted(pool, actor, text)
    await bench.round()
    (submission,) = bench.only.submitted
    assert submission.message_id == id
    assert (submission.encoding, len(submission.segments)) == (found.encoding, len(found.parts))


async def test_what_a_preview_leaves_out_is_left_out_when_it_is_sent(pool: Pool) -> None:
    """Also if the organization has changed its settings in the meantime: the message is what was counted at
    acceptance."""
    actor = await organization(pool, replace_accents=True)
    text = "Olá João, a sua encomenda chega amanhã. " * 4
    found = await previewed(pool, actor, text)
    assert (found.encoding, found.text, len(found.parts)) == ("gsm7", "Ola Joao, a sua encomenda chega amanha. " * 4, 1)
    bench = Bench(pool)
    await accepted(pool, actor, text)
    await accepted(pool, msgspec.structs.replace(actor, replace_accents=False), text)
    await bench.round()
    plain, whole = sorted(bench.only.submitted, key=lambda one: len(one.segments))
    assert (plain.encoding, b"".join(plain.segments).decode()) == ("gsm7", found.text)
    assert (whole.encoding, b"".join(whole.segments).decode("utf-16-be")) == ("ucs2", text)
    # The text is stored as written.
    assert {row["body"] for row in await pool.fetch("SELECT body FROM messages")} == {text}


async def test_a_preview_says_what_it_would_cost_and_stores_nothing(pool: Pool) -> None:
    actor = await organization(pool, quota=3)
    at = clock.now() + timedelta(hours=1)
    found = await previewed(pool, actor, "hello", send_at=at, validity_seconds=60)
    assert (found.cost, found.remaining, found.remaining_after) == (1, 3, 2)
    assert (found.sender.value, found.to, found.send_at) == (SENDER, TO, at)
    assert found.expires_at == at + timedelta(seconds=60)
    assert found.warnings == []
    assert await books(pool, actor) == (3, 3)
    for table in ("messages", "queue", "send_keys"):
        assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 0


async def test_a_preview_says_until_when_marketing_waits(pool: Pool) -> None:
    actor = await organization(pool, quota=3)
    quiet = await quiet_now(pool, actor)
    found = await previewed(pool, actor, "hello", traffic_class="marketing", validity_seconds=60)
    assert found.quiet_until is not None
    assert abs(found.quiet_until - quiet) < timedelta(minutes=1)
    # Its validity is suspended meanwhile.
    assert found.expires_at == found.quiet_until + timedelta(seconds=60)
    assert [one.code for one in found.warnings] == ["quiet_hours"]
    later = await previewed(pool, actor, "hello", traffic_class="marketing", send_at=quiet + timedelta(hours=1))
    for other in (later, await previewed(pool, actor, "hello")):
        assert (other.quiet_until, other.warnings) == (None, [])
    tester = msgspec.structs.replace(actor, mode="test")
    assert (await previewed(pool, tester, "hello", traffic_class="marketing")).quiet_until is None
    # Nothing waits if only simulators carry messages (`test_daytime`), so the preview does not say so.
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, simulated, created_at, changed_at)"
        " VALUES (gen_random_uuid(), 'played', 'smpp', '{}', '', true, now(), now())"
    )
    found = await previewed(pool, actor, "hello", traffic_class="marketing")
    assert (found.quiet_until, found.warnings) == (None, [])


async def test_a_preview_warns(pool: Pool) -> None:
    actor = await organization(pool, quota=1, smart_encoding=True)

    async def warned(text: str, who: Actor = actor) -> list[str]:
        return [warning.code for warning in (await previewed(pool, who, text)).warnings]

    assert await warned("hello") == ["last_of_quota"]
    assert await warned("“hello”") == ["changed", "last_of_quota"]
    assert await warned("привет" * 20) == ["unicode", "several_segments", "last_of_quota"]
    spare = msgspec.structs.replace(actor, smart_encoding=False, replace_accents=True)
    assert await warned("Amanhã", spare) == ["changed", "last_of_quota"]
    assert (await previewed(pool, spare, "Amanhã, “é”")).text == 'Amanha, "é"'
    assert await warned("Amanhã " * 20) == ["unicode", "shorter", "several_segments", "last_of_quota"]
    tester = msgspec.structs.replace(actor, mode="test")
    found = await previewed(pool, tester, "hello")
    assert (found.cost, found.remaining, found.remaining_after) == (0, 1, 1)
    assert [warning.code for warning in found.warnings] == ["test_key"]
    (told,) = [one.message for one in (await previewed(pool, actor, "ok жж 👋")).warnings if one.code == "unicode"]
    assert told.endswith("not in the GSM alphabet: ж 👋")


async def test_a_preview_refuses_what_a_send_would_refuse_and_in_its_order(pool: Pool) -> None:
    fresh = await organization(pool, quota=0)
    pending = await sender(pool, fresh, "PENDING", status="pending")
    suspended = msgspec.structs.replace(fresh, state="suspended")
    fenced = msgspec.structs.replace(fresh, allowed_countries=frozenset({"PT"}))
    cases: list[tuple[Actor, dict[str, Any], type[Refusal]]] = [
        (suspended, {"text": "x" * 1600}, Invalid),
        (suspended, {"sender_id": uuid7()}, OrganizationSuspended),
        (fenced, {"sender_id": uuid7()}, DestinationNotAllowed),
        (fresh, {"sender_id": uuid7()}, Invalid),
        (fresh, {"sender_id": pending}, SenderIdNotApproved),
        (fresh, {"sender_name": "NOBODY"}, SenderIdNotApproved),
        (fresh, {}, QuotaExceeded),
    ]
    for silent in (False, True):
        if silent:
            await pool.execute("INSERT INTO opt_outs VALUES ($1, $2, now(), 'test')", fresh.organization_id, TO)
        for actor, values, expected in cases:
            asked = send(actor, values.get("text", "hello"), **{k: v for k, v in values.items() if k != "text"})
            with pytest.raises(Refusal) as previewing:
                async with pool.acquire() as conn:
                    await preview.preview(conn, Acceptor(pool), asked)
            with pytest.raises(Refusal) as sending:
                await Acceptor(pool).accept(asked)
            if silent and expected.status == 409:
                expected = RecipientOptedOut
            assert type(previewing.value) is type(sending.value) is expected
            assert previewing.value.details == sending.value.details
            assert previewing.value.message == sending.value.message


@pytest.mark.fresh_database
async def test_withdrawing_reads_no_other_rows(pool: Pool) -> None:
    async with pool.acquire() as conn:
        await conn.execute(f"PREPARE withdraw (text, uuid[], text) AS {leases.WITHDRAW}")
        plan = "\n".join(row[0] for row in await conn.fetch("EXPLAIN EXECUTE withdraw ('sms', '{}', 'all')"))
    assert "Index Scan using queue_pkey" in plan


async def test_a_queue_row_that_is_leased_is_not_withdrawn(pool: Pool) -> None:
    actor = await organization(pool)
    id = await message(pool, actor)
    async with pool.acquire() as conn:
        (lease,) = await claim_once(conn, "sms", {UNROUTED: 1}, seconds=60)
        assert await leases.withdraw(conn, "sms", [id], only="all") == {}
        assert await leases.withdraw(conn, "webhook", [id], only="all") == {}
        await leases.postpone(conn, [leases.Postponed(lease, 0.0, UNROUTED)])
        assert set(await leases.withdraw(conn, "sms", [id, uuid7()], only="untried")) == {id}
        assert await conn.fetchval("SELECT count(*) FROM queue") == 0


async def test_the_message_of_a_request_is_found_at_the_time_in_its_id(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    made = await message(pool, actor, queued=False)
    at = clock.now() - timedelta(hours=1)
    request = str(UUID(int=uuid7_floor(at).int + 1))
    id = UUID(int=uuid7_floor(at + timedelta(seconds=1)).int + 1)
    await pool.execute("UPDATE messages SET id = $2, request_id = $3 WHERE id = $1", made, id, request)
    for _ in range(3):
        await message(pool, actor, queued=False)
    near = {"date_from": at, "date_to": at + timedelta(seconds=5)}
    async with pool.acquire() as conn:
        assert await listing.of_request(conn, actor, request_id=request, look=2) == []
        assert await listing.of_request(conn, actor, request_id=request, look=2, **near) == [id]
        assert await listing.of_request(conn, actor, request_id=request, look=4) == [id]
        assert await listing.of_request(conn, other, request_id=request) == []
        found = await overview.of_request(conn, actor, request_id=request)
    assert found is not None
    assert (found.id, found.request_id) == (id, request)
