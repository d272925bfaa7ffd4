"""Long messages of which a supplier has some segments: the rest follow, and none is mistaken for another."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from heliograph.base.database.pool import Pool
from heliograph.queue import timers
from heliograph.sms.reports import parts
from heliograph.suppliers.contract import Outcome, Part, ReceiptState, Submission, Verdict
from tests.rules.dispatching import Bench, attempts, queued
from tests.rules.factories import accept_all, message, organization, receipt, status_of, supplier

FIVE = "x" * 700
#: The session is lost at the third of five segments: two were answered, the third was written, two were never sent.
LOST_AT_THE_THIRD = Outcome(Verdict.UNKNOWN, (Part(1, "A1"), Part(2, "A2")), total=5, doubtful=(3,))


async def begun(pool: Pool, outcome: Outcome | None, **values: object) -> tuple[Bench, UUID]:
    """A message of five segments whose first attempt ended like that (None: the worker died)."""
    row = supplier()
    bench = Bench(pool, row)
    bench.only.script = lambda submission: outcome
    id = await message(pool, await organization(pool), text=FIVE, segments=5, **values)
    await bench.round()
    assert len(bench.only.submitted) == 1
    if outcome is None:
        await bench.later(seconds=61)
        bench = Bench(pool, row)
    bench.only.script = accept_all
    bench.only.submitted.clear()
    return bench, id


async def again(bench: Bench) -> Submission:
    """The only submission that follows once the grace period is over."""
    await bench.round()
    await bench.later(seconds=91)
    await bench.round()
    (submission,) = bench.only.submitted
    return submission


async def delivered(bench: Bench, id: UUID, *keys: str) -> str:
    for key in keys:
        await bench.receive(bench.only_id, receipt(key))
    return await status_of(bench.pool, id)


async def of_parts(pool: Pool, id: UUID) -> list[tuple[int, int]]:
    rows = await pool.fetch("SELECT part, parts FROM sms_parts WHERE message_id = $1 ORDER BY part", id)
    return [(row["part"], row["parts"]) for row in rows]


@pytest.mark.parametrize("guarantee", ["at_least_once", "at_most_once"])
async def test_a_receipt_for_the_lost_segment_is_of_that_segment_and_the_rest_is_sent(
    pool: Pool, guarantee: str
) -> None:
    bench, id = await begun(pool, LOST_AT_THE_THIRD, guarantee=guarantee)
    reference = await pool.fetchval("SELECT reference FROM attempts")
    assert await delivered(bench, id, "A1", "A2", "A3") == "sending"
    submission = await again(bench)
    assert (submission.held, submission.reference) == ((1, 2, 3), reference)
    assert len(submission.segments) == 5
    assert await status_of(pool, id) == "sent"
    assert await of_parts(pool, id) == [(number, 5) for number in range(1, 6)]
    assert await delivered(bench, id, f"{id}-4") == "sent"
    assert await delivered(bench, id, f"{id}-5") == "delivered"
    assert not await queued(pool, id)


async def test_without_a_receipt_the_lost_segment_is_sent_again_with_the_rest(pool: Pool) -> None:
    bench, id = await begun(pool, LOST_AT_THE_THIRD)
    assert (await again(bench)).held == (1, 2)
    assert await delivered(bench, id, "A1", "A2", f"{id}-3", f"{id}-4") == "sent"
    assert await delivered(bench, id, f"{id}-5") == "delivered"


async def test_at_most_once_sends_no_segment_twice(pool: Pool) -> None:
    bench, id = await begun(pool, LOST_AT_THE_THIRD, guarantee="at_most_once")
    await bench.round()
    await bench.later(seconds=91)
    await bench.round()
    assert bench.only.submitted == []
    assert await status_of(pool, id) == "unknown"


@pytest.mark.parametrize("policy", ["all", "any", "first", "last"])
async def test_no_policy_delivers_a_message_of_which_segments_were_never_sent(pool: Pool, policy: str) -> None:
    bench, id = await begun(pool, LOST_AT_THE_THIRD)
    bench.channel.policies[bench.only_id] = policy
    assert await delivered(bench, id, "A1", "A2") == "sending"
    await pool.execute("UPDATE sms_parts SET created_at = now() - interval '1 hour'")
    await pool.execute("UPDATE sms_parts SET state = NULL WHERE part = 2")
    await pool.execute("UPDATE receipts SET received_at = now() - interval '1 hour'")
    async with pool.acquire() as conn:
        await timers.ensure(conn, parts.TIMER)
        assert await parts.close_quiet(conn) == 0
    assert await status_of(pool, id) == "sending"


async def test_a_segment_that_failed_says_nothing_while_the_rest_is_to_be_sent(pool: Pool) -> None:
    bench, id = await begun(pool, LOST_AT_THE_THIRD)
    await bench.receive(bench.only_id, receipt("A1", state=ReceiptState.EXPIRED))
    assert await status_of(pool, id) == "sending"


async def test_receipts_of_segments_answered_without_an_id_are_not_taken_for_the_lost_ones(pool: Pool) -> None:
    """A segment that never arrived was not sent again, and the message ended as delivered."""
    answered = tuple(Part(number, None) for number in (1, 2, 4, 5))
    bench, _ = await begun(pool, Outcome(Verdict.UNKNOWN, answered, total=5, doubtful=(3,)))
    for key in ("R1", "R2", "R4", "R5"):
        await bench.receive(bench.only_id, receipt(key))
    assert (await again(bench)).held == (1, 2, 4, 5)


@pytest.mark.parametrize("doubtful", [(3,), (3, 4)])
async def test_a_receipt_for_each_segment_shows_that_all_arrived_whichever_have_an_id(
    pool: Pool, doubtful: tuple[int, ...]
) -> None:
    answered = tuple(Part(number, None) for number in range(1, 6) if number not in doubtful)
    bench, id = await begun(pool, Outcome(Verdict.UNKNOWN, answered, total=5, doubtful=doubtful))
    for key in ("R1", "R2", "R3", "R4", "R5"):
        await bench.receive(bench.only_id, receipt(key))
    await bench.later(seconds=91)
    await bench.round()
    assert bench.only.submitted == []
    assert await status_of(pool, id) == "sent"
    assert await of_parts(pool, id) == [(number, 5) for number in range(1, 6)]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("state", [ReceiptState.DELIVERED, ReceiptState.UNDELIVERED])
async def test_the_receipt_that_decides_may_come_before_the_supplier_has_all(
    pool: Pool, state: ReceiptState, is_late: bool
) -> None:
    """Nothing more comes from a supplier that reports on first parts only: the message stayed `sent`."""
    taken = tuple(Part(n, f"A{n}") for n in (1, 2, 3, 4))
    throttled = Outcome(Verdict.BUSY, taken, "0x58", counts=False, total=5)
    silent = Outcome(Verdict.UNKNOWN, taken, total=5, doubtful=(5,))
    bench = Bench(pool, supplier(parts="first"))
    bench.only.script = lambda submission: silent if is_late else throttled
    id = await message(pool, await organization(pool), text=FIVE, segments=5)
    await bench.round()
    (submission,) = bench.only.submitted
    await bench.receive(bench.only_id, receipt("A1", state=state))
    assert await status_of(pool, id) == "sending"
    bench.only.script = accept_all
    if is_late:
        bench.answer(submission, Outcome(Verdict.ACCEPTED, (*taken, Part(5, "A5")), total=5))
        await bench.settle()
    else:
        await bench.later(seconds=2)
        await bench.round()
    assert await status_of(pool, id) == state.value


async def test_a_dead_workers_message_is_taken_for_sent_only_by_a_receipt_for_each_segment(pool: Pool) -> None:
    bench, id = await begun(pool, None)
    for key in ("R1", "R2", "R3", "R4"):
        await bench.receive(bench.only_id, receipt(key))
    await bench.round()
    assert await status_of(pool, id) == "sending"
    assert await of_parts(pool, id) == []
    await bench.receive(bench.only_id, receipt("R5"))
    await bench.later(seconds=30)
    await bench.round()
    assert bench.only.submitted == []
    assert await of_parts(pool, id) == [(number, 5) for number in range(1, 6)]
    assert await status_of(pool, id) == "delivered"


async def test_receipts_of_two_lost_messages_are_not_mixed(pool: Pool) -> None:
    """Five receipts, and ten segments that they may belong to."""
    row = supplier()
    dead = Bench(pool, row)
    dead.only.script = lambda submission: None
    actor = await organization(pool)
    ids = [await message(pool, actor, text=FIVE, segments=5) for _ in range(2)]
    await dead.round()
    await dead.later(seconds=61)
    bench = Bench(pool, row)
    for number in range(5):
        await bench.receive(row.id, receipt(f"R{number}"))
    await bench.round()
    assert [await status_of(pool, id) for id in ids] == ["sending", "sending"]
    # If the supplier echoes our reference, there is no doubt.
    first = await pool.fetchval("SELECT reference FROM attempts WHERE message_id = $1", ids[0])
    for number in range(5):
        await bench.receive(row.id, receipt(f"E{number}", reference=first))
    await pool.execute("DELETE FROM receipts WHERE keys[1] LIKE 'R%'")
    await bench.later(seconds=30)
    await bench.round()
    assert [await status_of(pool, id) for id in ids] == ["delivered", "sent"]
    assert [one.message_id for one in bench.only.submitted] == ids[1:]


async def test_a_throttled_segment_is_sent_again_alone(pool: Pool) -> None:
    throttled = Outcome(Verdict.BUSY, tuple(Part(n, f"A{n}") for n in (1, 2, 3, 5)), "0x58", counts=False, total=5)
    bench, id = await begun(pool, throttled)
    await bench.later(seconds=2)
    await bench.round()
    (submission,) = bench.only.submitted
    assert submission.held == (1, 2, 3, 5)
    assert await attempts(pool, id) == [(1, "busy"), (2, "accepted")]
    assert await status_of(pool, id) == "sent"
    assert await delivered(bench, id, "A1", "A2", "A3", f"{id}-4", "A5") == "delivered"


@pytest.mark.parametrize("between", ["throttled", "busy", "unreachable"])
async def test_a_supplier_that_is_the_only_one_gets_the_rest_however_long_it_defers_it(
    pool: Pool, between: str
) -> None:
    """After 15 s, two counted tries, or a try without a session, it was handed the whole message again, under another
    reference: billed twice, and shown in pieces by phones that keep incomplete messages."""
    deferred = Outcome(Verdict.BUSY, (Part(1, "A1"), Part(2, "A2")), "0x58", counts=False, total=5)
    bench, id = await begun(pool, deferred)
    reference = await pool.fetchval("SELECT reference FROM attempts")
    if between != "throttled":
        verdict = Verdict.BUSY if between == "busy" else Verdict.UNREACHABLE
        bench.only.script = lambda submission: Outcome(verdict, counts=between == "busy", total=5)
        for _ in range(2):
            await bench.later(seconds=60)
            await bench.round()
        assert [one.held for one in bench.only.submitted] == [(1, 2)] * 2
        bench.only.submitted.clear()
        bench.only.script = accept_all
    await bench.later(seconds=300)
    await bench.round()
    (submission,) = bench.only.submitted
    assert (submission.held, submission.reference) == ((1, 2), reference)
    assert await delivered(bench, id, "A1", "A2", *(f"{id}-{number}" for number in (3, 4, 5))) == "delivered"


@pytest.mark.parametrize(
    "meanwhile",
    [
        Outcome(Verdict.UNREACHABLE, counts=False, total=5),
        Outcome(Verdict.REFUSED, failover=True, total=5),
        Outcome(Verdict.BUSY, (Part(1, "B1"),), counts=False, total=5),
    ],
)
async def test_what_a_supplier_has_counts_after_another_one_was_tried_in_vain(pool: Pool, meanwhile: Outcome) -> None:
    """It was handed the whole message again, under another reference."""
    bench, id = await begun(pool, Outcome(Verdict.BUSY, (Part(1, "A1"), Part(2, "A2")), "0x58", counts=False, total=5))
    reference, first = await pool.fetchval("SELECT reference FROM attempts"), bench.only
    other = bench.add(supplier("other", priority=20))
    bench.restart()
    other.script = lambda submission: meanwhile
    await bench.later(seconds=20)
    await bench.round()
    assert [one.held for one in other.submitted] == [()]
    other.sessions = 0
    await bench.later(seconds=60)
    await bench.round()
    (submission,) = first.submitted
    assert (submission.held, submission.reference, submission.attempt) == ((1, 2), reference, 3)
    ids = [one for one in bench.connectors if bench.connectors[one] is first]
    for key in ("A1", "A2", f"{id}-3", f"{id}-4", f"{id}-5"):
        assert await status_of(pool, id) == "sent"
        await bench.receive(ids[0], receipt(key))
    assert await status_of(pool, id) == "delivered"
    # What the other one has of it is charged, and nothing else in addition.
    query = "SELECT coalesce(sum(segments), 0)::int FROM reconciliation_deltas WHERE what = 'doubled'"
    assert await pool.fetchval(query) == len(meanwhile.parts)


@pytest.mark.parametrize("cuts_it", [False, True])
async def test_suppliers_that_defer_in_turn_each_get_the_rest_of_their_own(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, cuts_it: bool
) -> None:
    """The second one was handed the whole message again after the first one had been. And the first one after a second
    one that cuts messages itself, as those over HTTP do."""
    bench, _ = await begun(pool, Outcome(Verdict.BUSY, (Part(1, "A1"), Part(2, "A2")), "0x58", counts=False, total=5))
    first, other = bench.only, bench.add(supplier("other", priority=20))
    bench.restart()
    some, total = ((), 1) if cuts_it else ((Part(1, "B1"),), 5)
    monkeypatch.setattr(other, "parts", lambda submission: total)
    other.script = lambda submission: Outcome(Verdict.BUSY, some, counts=False, total=total)
    first.script = lambda submission: Outcome(Verdict.BUSY, counts=False, total=5)
    for _ in range(3):
        await bench.later(seconds=60)
        await bench.round()
    assert [(one.attempt, one.held) for one in first.submitted] == [(3, (1, 2))]
    assert [(one.attempt, one.held) for one in other.submitted] == [(2, ()), (4, () if cuts_it else (1,))]
    assert cuts_it or len({one.reference for one in other.submitted}) == 1


async def test_a_message_put_off_for_long_goes_to_another_supplier_as_a_whole(pool: Pool) -> None:
    bench, id = await begun(pool, Outcome(Verdict.BUSY, (Part(1, "A1"),), "0x58", counts=False, total=5))
    other = bench.add(supplier("other", priority=20))
    bench.restart()
    await bench.later(seconds=20)
    await bench.round()
    (submission,) = other.submitted
    assert (submission.held, await status_of(pool, id)) == ((), "sent")


@pytest.mark.parametrize("change", ["gone", "edited", "old"])
async def test_elsewhere_or_in_another_form_a_message_is_sent_as_a_whole(pool: Pool, change: str) -> None:
    throttled = Outcome(Verdict.BUSY, (Part(1, "A1"),), "0x58", counts=False, total=5)
    bench, id = await begun(pool, throttled)
    one = bench.accounts[bench.only_id]
    connector = bench.only
    if change == "gone":
        connector.sessions = 0
        connector = bench.add(supplier("other"))
        bench.restart()
    elif change == "edited":
        at = await pool.fetchval("SELECT now()")
        one.supplier = msgspec.structs.replace(one.supplier, changed_at=at)
    else:
        await bench.later(hours=2)
    await bench.later(seconds=2)
    await bench.round()
    (submission,) = connector.submitted
    assert submission.held == ()
    assert await delivered(bench, id, "A1") == "sent" if change != "gone" else True
    assert await status_of(pool, id) == "sent"


async def test_settings_changed_before_the_clock_was_set_back_restart_no_message(pool: Pool) -> None:
    throttled = Outcome(Verdict.BUSY, (Part(1, "A1"),), "0x58", counts=False, total=5)
    bench, _ = await begun(pool, throttled)
    one = bench.accounts[bench.only_id]
    ahead = await pool.fetchval("SELECT now() + interval '1 day'")
    one.supplier = msgspec.structs.replace(one.supplier, changed_at=ahead)
    await bench.later(seconds=2)
    await bench.round()
    assert [one.held for one in bench.only.submitted] == [(1,)]


async def test_a_text_that_the_supplier_cuts_itself_is_delivered_by_its_one_receipt(pool: Pool) -> None:
    """`long_messages=payload`: one submit, one id, one receipt, however many segments were counted at acceptance."""
    bench, id = await begun(pool, Outcome(Verdict.ACCEPTED, (Part(1, "A1"),), total=1))
    assert await of_parts(pool, id) == []
    assert await pool.fetchval("SELECT supplier_message_id FROM attempts WHERE message_id = $1", id) == "A1"
    assert await delivered(bench, id, "A1") == "delivered"
