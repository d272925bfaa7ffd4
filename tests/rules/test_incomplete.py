"""Accepted segments of messages that a supplier never got completely: each is charged for exactly once."""

from __future__ import annotations

import pytest

from heliograph.base.actor import Principal
from heliograph.base.database.pool import Pool
from heliograph.overview import intervening
from heliograph.sms.reports import unmatched
from heliograph.suppliers.contract import Outcome, Part, ReceiptState, Submission, Verdict
from tests.rules.factories import message, organization, receipt, status_of
from tests.rules.test_due_back import UNKNOWN, asked, money, report

SOME = (Part(1, "A1"), Part(2, "A2"))


@pytest.mark.parametrize("end", ["completed", "refused", "elsewhere", "expired"])
async def test_segments_of_a_message_that_a_supplier_did_not_get_whole_are_charged(pool: Pool, end: str) -> None:
    made = await asked(pool)
    main, backup = (made.bench.connectors[row.id] for row in (made.main, made.backup))
    verdict = Verdict.REFUSED if end == "refused" else Verdict.BUSY
    main.script = lambda _: Outcome(verdict, (Part(1, "A1"), Part(2, "A2")), failover=True, counts=False, total=5)
    id = await message(pool, await organization(pool), text="x" * 700, segments=5)
    await made.bench.round()
    if end == "completed":
        main.script = accepted_rest
    elif end == "elsewhere":
        made.bench.accounts.pop(made.main.id)
    elif end == "expired":
        await pool.execute("UPDATE messages SET expires_at = now()")
    await made.bench.later(seconds=2)
    await made.bench.round(2)
    assert await status_of(pool, id) == ("expired" if end == "expired" else "sent")
    found = await report(pool)
    assert await money(pool, "main") == ("0.150000 EUR" if end == "completed" else "0.060000 EUR", None, 0)
    assert found["main"].line["doubled"] == 0
    assert found["main"].line.segments.get("doubled", 0) == (0 if end == "completed" else 2)
    assert len(backup.submitted) == (end in ("refused", "elsewhere"))
    if backup.submitted:
        assert await money(pool, "backup") == ("0.250000 USD", None, 0)


def accepted_rest(one: Submission) -> Outcome:
    """The supplier accepts the segments that it does not have yet."""
    numbers = [number for number in range(1, 6) if number not in one.held]
    return Outcome(Verdict.ACCEPTED, tuple(Part(n, f"A{n}") for n in numbers), "0x00000000", total=5)


@pytest.mark.parametrize("how", ["an operator says so", "a receipt matched by hand"])
async def test_segments_are_charged_by_whoever_had_some_when_a_person_knows_who_got_the_message(
    pool: Pool, how: str
) -> None:
    made = await asked(pool)
    main, backup = (made.bench.connectors[row.id] for row in (made.main, made.backup))
    main.script = lambda _: Outcome(Verdict.REFUSED, SOME, failover=True, total=5)
    backup.script = lambda _: UNKNOWN
    id = await message(pool, await organization(pool), text="x" * 700, segments=5)
    await made.bench.round(2)
    assert [row["state"] for row in await pool.fetch("SELECT state FROM attempts ORDER BY attempt")] == [
        "refused",
        "unknown",
    ]
    assert await money(pool, "main") == (None, None, 0)
    async with pool.acquire() as conn:
        if how == "an operator says so":
            await intervening.decide(
                conn, Principal("operator", name="Ines"), id=id, status="delivered", reason="their bill"
            )
        else:
            # It splits texts itself.
            await pool.execute("UPDATE attempts SET parts = 1 WHERE attempt = 2")
            await made.bench.receive(made.backup.id, receipt("rewritten", state=ReceiptState.DELIVERED))
            (one,) = await unmatched.listed(conn)
            assert await unmatched.match_by_hand(conn, one.place, message_id=id, reason="the bill says so")
    assert await status_of(pool, id) == "delivered"
    found = await report(pool)
    assert await money(pool, "main") == ("0.060000 EUR", None, 0), "two of five"
    assert found["main"].line.segments.get("doubled") == 2
    assert await money(pool, "backup") == ("0.250000 USD", None, 0)
    counts = {name: count for name, count in found["backup"].line.counts.items() if count}
    assert counts == {"accepted": 1, "delivered": 1}


async def test_segments_of_a_message_that_turns_out_to_be_whole_are_charged_once(pool: Pool) -> None:
    made = await asked(pool)
    some = tuple(Part(n, f"A{n}") for n in (1, 2, 3, 4))
    made.bench.connectors[made.main.id].script = lambda _: Outcome(Verdict.UNKNOWN, some, doubtful=(5,), total=5)
    id = await message(pool, await organization(pool), text="x" * 700, segments=5, guarantee="at_most_once")
    await made.bench.round()
    await made.bench.later(seconds=91)
    await made.bench.round()
    assert await status_of(pool, id) == "unknown"
    assert await money(pool, "main") == ("0.120000 EUR", None, 0), "four of five"
    async with pool.acquire() as conn:
        await intervening.decide(
            conn, Principal("operator", name="Ines"), id=id, status="delivered", reason="ticket 4711"
        )
    assert await money(pool, "main") == ("0.150000 EUR", None, 0)
    found = (await report(pool))["main"].line
    assert (found["accepted"], found.segments.get("accepted"), found.segments.get("doubled", 0)) == (1, 5, 0)


@pytest.mark.parametrize("end", ["sent elsewhere", "ended", "ended, and delivered after all"])
async def test_segments_that_were_charged_are_not_charged_again_with_the_late_answer_for_all(
    pool: Pool, end: str
) -> None:
    made = await asked(pool)
    main, whole = made.bench.connectors[made.main.id], tuple(Part(n, f"A{n}") for n in range(1, 6))
    main.script = lambda _: Outcome(Verdict.UNKNOWN, whole[:4], doubtful=(5,), total=5)
    guarantee = "at_least_once" if end == "sent elsewhere" else "at_most_once"
    id = await message(pool, await organization(pool), text="x" * 700, segments=5, guarantee=guarantee)
    await made.bench.round()
    made.bench.accounts.pop(made.main.id)
    await made.bench.later(seconds=91)
    await made.bench.round()
    assert await status_of(pool, id) == ("sent" if end == "sent elsewhere" else "unknown")
    assert await money(pool, "main") == ("0.120000 EUR", None, 0), "four of five"
    made.bench.answer(main.submitted[0], Outcome(Verdict.ACCEPTED, whole, total=5))
    await made.bench.settle()
    assert await money(pool, "main") == ("0.150000 EUR", None, 0)
    found = (await report(pool))["main"].line
    assert (found["doubled"], found.segments["doubled"], found["unknown"]) == (1, 5, 0)
    if end == "sent elsewhere":
        assert await money(pool, "backup") == ("0.250000 USD", None, 0)
    elif end != "ended":
        for part in whole:
            await made.bench.receive(made.main.id, receipt(part.supplier_message_id))
        assert await status_of(pool, id) == "delivered"
        assert await money(pool, "main") == ("0.150000 EUR", None, 0)
        found = (await report(pool))["main"].line
        assert (found["accepted"], found.segments["accepted"]) == (1, 5)
        assert (found["doubled"], found.segments.get("doubled", 0)) == (0, 0)


async def test_segments_are_charged_if_the_late_answer_is_of_an_attempt_before_them(pool: Pool) -> None:
    made = await asked(pool)
    main, backup = (made.bench.connectors[row.id] for row in (made.main, made.backup))
    main.script = lambda _: UNKNOWN
    whole = tuple(Part(n, f"A{n}") for n in range(1, 6))
    backup.script = lambda _: Outcome(Verdict.UNKNOWN, whole[:4], doubtful=(5,), total=5)
    id = await message(pool, await organization(pool), text="x" * 700, segments=5)
    await made.bench.round()
    made.bench.accounts.pop(made.main.id)
    await made.bench.later(seconds=91)
    await made.bench.round()
    assert len(backup.submitted) == 1
    made.bench.answer(main.submitted[0], accepted_rest(main.submitted[0]))
    await made.bench.settle()
    assert await status_of(pool, id) == "sent"
    assert await money(pool, "main") == ("0.150000 EUR", None, 0)
    assert await money(pool, "backup") == ("0.200000 USD", None, 0), "four of five"
    made.bench.answer(backup.submitted[0], Outcome(Verdict.ACCEPTED, whole, total=5))
    await made.bench.settle()
    assert await money(pool, "main") == ("0.150000 EUR", None, 0)
    assert await money(pool, "backup") == ("0.250000 USD", None, 0)
