"""Receipts that match nothing: listed with their likely cause, checked at once, matched by hand; and unknown words in
them, explained."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from uuid import UUID

import pytest
from asyncpg import DeadlockDetectedError

from heliograph.base.actor import SYSTEM
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.prices import rows, tariffs
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.reports import receipts, unmatched, waiting, words
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Outcome, Receipt, ReceiptState, Verdict
from tests.rules.dispatching import Bench
from tests.rules.factories import (
    SENDER,
    TO,
    blocked,
    endpoint,
    events_of,
    message,
    organization,
    sent,
    status_of,
    supplier,
)
from tests.rules.test_reconciliation import counts, lines

KEY = derive_key("a secret key of a test installation", "suppliers")


async def added(pool: Pool, name: str = "main", **settings: Any) -> UUID:
    values = {"host": "127.0.0.1", "port": 2775, "system_id": "a"} | settings
    async with pool.acquire() as conn:
        return await suppliers.add(conn, KEY, name=name, kind="smpp", settings=values, secret="s")


async def receive(pool: Pool, id: UUID, *keys: str, to: str = TO, **values: Any) -> None:
    values = {"state": ReceiptState.DELIVERED} | values
    one = Receipt(keys, recipient=to[1:], sender=SENDER, raw=" ".join(keys).encode(), **values)
    async with pool.acquire() as conn, conn.transaction():
        await receipts.store(conn, [ReceivedReceipt(id, one)], policies={})


async def give_up(pool: Pool) -> None:
    """Retry them until the schedule ends."""
    for _ in range(30):
        await pool.execute(
            "UPDATE receipts SET next_try_at = now() - interval '1 minute' WHERE next_try_at IS NOT NULL"
        )
        async with pool.acquire() as conn, conn.transaction():
            await waiting.sweep(conn, policies={})
        if not await pool.fetchval("SELECT count(*) FROM receipts WHERE next_try_at IS NOT NULL"):
            return
    raise AssertionError("the schedule has no end")


async def listed(pool: Pool, **values: Any) -> list[unmatched.Unmatched]:
    async with pool.acquire() as conn:
        return await unmatched.listed(conn, **values)


async def test_each_is_listed_with_its_likely_cause_and_no_whole_number(pool: Pool) -> None:
    id, other, actor = await added(pool), await added(pool, "other"), await organization(pool)
    await sent(pool, actor, id, "33e95179")
    await receive(pool, id, "870928761")
    await receive(pool, id, "33e95179", to="+258829999999")
    await receive(pool, id, to="+258829999998")
    await receive(pool, id, "777")
    await receive(pool, other, "778")
    found = {(one.supplier, tuple(one.keys)): one for one in await listed(pool)}
    assert {key: one.cause for key, one in found.items()} == {
        ("main", ("870928761",)): "base",
        ("main", ("33e95179",)): "recipient",
        ("main", ()): "no_id",
        ("main", ("777",)): "unknown",
        ("other", ("778",)): "unknown",
    }
    assert found["main", ("870928761",)].cure == {"resp_id_base": "hex"}
    assert {one.tail for one in found.values()} == {TO[-4:], "9999", "9998"}
    assert [one.supplier for one in await listed(pool, supplier_id=other)] == ["other"]
    # Page by page, each once.
    seen, after = [], None
    while some := await listed(pool, after=after, limit=2):
        seen += [one.place for one in some]
        after = some[-1].received_at, some[-1].place.fingerprint
    assert len(seen) == len(set(seen)) == 5


async def test_an_orphan_that_fits_when_it_is_tried_again_is_none(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    await receive(pool, id, "abc")
    await receive(pool, id, "of nobody")
    await give_up(pool)
    assert await listed(pool, only_orphans=True) == await listed(pool)
    assert (await counts(pool))["orphaned"] == 2
    # Its message is recorded later than any schedule waits.
    message = await sent(pool, actor, id, "abc")
    (one,) = [one for one in await listed(pool) if one.keys == ["abc"]]
    async with pool.acquire() as conn:
        applied = await unmatched.try_again(conn, [one.place])
        assert (applied.matched, applied.unmatched) == (1, 0)
        assert await status_of(pool, message) == "delivered"
        # The other one waits for nothing; a second press changes nothing.
        assert (await unmatched.try_again(conn, [one.place])).matched == 0
        applied = await unmatched.try_newest(conn, supplier_id=id)
    assert (applied.matched, applied.unmatched) == (0, 1)
    assert [one.keys for one in await listed(pool)] == [["of nobody"]]
    assert (await counts(pool))["orphaned"] == 1


async def test_what_a_supplier_did_not_deliver_is_not_refunded_as_unsent(pool: Pool) -> None:
    """Its receipt, matched while the attempt's response is still awaited, shows that it was sent, and is charged."""
    id, actor = await added(pool), await organization(pool)
    async with pool.acquire() as conn:
        given = rows.read(["country,price,currency\n", "MZ,0.03,EUR\n"])
        await tariffs.import_rates(conn, given, kind="cost", name="main", supplier_id=id)
    bench = Bench(pool, supplier("main", id=id))
    await bench.charges.refresh(pool)
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN)
    message_id = await message(pool, actor)
    await bench.round()
    await endpoint(pool, actor, "message.sent", "message.failed")
    await receive(pool, id, "rewritten", state=ReceiptState.UNDELIVERED)
    await give_up(pool)
    (place,) = [one.place for one in await listed(pool)]
    async with pool.acquire() as conn:
        assert await unmatched.match_by_hand(conn, place, message_id=message_id, reason="the bill says so")
    row = await pool.fetchrow("SELECT status, supplier_id, cost FROM messages WHERE id = $1", message_id)
    assert tuple(row) == ("undelivered", id, 30_000)
    assert await events_of(pool, message_id) == ["message.sent", "message.failed"]
    assert await pool.fetchval("SELECT count(*) FROM usage_ledger WHERE type = 'refund'") == 0
    assert await pool.fetchval("SELECT state FROM attempts") == "accepted"
    found = await counts(pool)
    assert [found.get(name, 0) for name in ("accepted", "undelivered", "unknown")] == [1, 1, 0]
    (one,) = await lines(pool)
    assert one.line.due_back == {"EUR": 30_000}
    # Nobody sends it again.
    await bench.later(seconds=3600)
    await bench.round()
    assert len(bench.only.submitted) == 1


async def test_one_is_matched_by_hand_for_a_reason(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    message, final = await sent(pool, actor, id, "abc"), await sent(pool, actor, id, "def")
    await receive(pool, id, "def")
    await receive(pool, id, "rewritten", state=ReceiptState.UNDELIVERED)
    await receive(pool, id, "another")
    await give_up(pool)
    places = {one.keys[0]: one.place for one in await listed(pool)}
    elsewhere = await sent(pool, actor, await added(pool, "other"), "ghi")
    async with pool.acquire() as conn:
        for wanted, reason, field in ((message, " ", "reason"), (elsewhere, "x", "message_id")):
            with pytest.raises(Invalid) as refused:
                await unmatched.match_by_hand(conn, places["rewritten"], message_id=wanted, reason=reason)
            assert refused.value.details["fields"][0]["field"] == field
        assert await unmatched.match_by_hand(conn, places["rewritten"], message_id=message, reason="the bill says so")
        assert await status_of(pool, message) == "undelivered"
        with pytest.raises(Invalid):
            await unmatched.match_by_hand(conn, places["rewritten"], message_id=final, reason="x")
        # What is final stays so.
        assert not await unmatched.match_by_hand(conn, places["another"], message_id=final, reason="x")
        with pytest.raises(NotFound):
            gone = unmatched.ReceiptKey(places["another"].received_on, id, uuid7())
            await unmatched.match_by_hand(conn, gone, message_id=final, reason="x")
    assert await status_of(pool, final) == "delivered"
    assert await listed(pool) == []
    # Their counts are taken back.
    assert await lines(pool) == []
    told = await pool.fetch(
        "SELECT organization_id, reason FROM audit_log WHERE action = 'receipt.matched' ORDER BY id"
    )
    # The entry names a supplier, so the organization does not see it.
    assert [tuple(row) for row in told] == [(None, "the bill says so"), (None, "x")]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_receipt_that_ends_nothing_shows_that_the_supplier_has_the_message(pool: Pool, is_late: bool) -> None:
    id, actor = await added(pool), await organization(pool)
    bench = Bench(pool, supplier("main", id=id))
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN)
    message_id = await message(pool, actor)
    await bench.round()
    if is_late:  # nothing was reported until its time was up
        await pool.execute("UPDATE messages SET status = 'unknown', failure_code = 'outcome_unknown', ended_at = now()")
        await pool.execute("DELETE FROM queue")
    await receive(pool, id, "rewritten", state=ReceiptState.PENDING)
    (place,) = [one.place for one in await listed(pool)]
    async with pool.acquire() as conn:
        moved = await unmatched.match_by_hand(conn, place, message_id=message_id, reason="its log says so")
    assert (moved, await status_of(pool, message_id)) == (not is_late, "unknown" if is_late else "sent")
    await bench.later(seconds=3600)
    await bench.round()
    assert len(bench.only.submitted) == 1
    # Its id is known from now on.
    await receive(pool, id, "rewritten", state=ReceiptState.DELIVERED)
    assert await status_of(pool, message_id) == "delivered"


async def test_a_match_by_hand_waits_for_the_timer_that_is_checking_the_receipt(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    wanted = await sent(pool, actor, id, "abc")
    await receive(pool, id, "rewritten")
    (place,) = [one.place for one in await listed(pool)]
    async with pool.acquire() as timer, pool.acquire() as conn:
        async with timer.transaction():
            await pool.execute("UPDATE receipts SET next_try_at = now() - interval '1 minute'")
            assert (await waiting.sweep(timer, policies={}))[0].matched == 0
            matching = asyncio.create_task(
                unmatched.match_by_hand(conn, place, message_id=wanted, reason="the bill says so")
            )
            await blocked(pool)
        assert await matching
    assert await status_of(pool, wanted) == "delivered"


async def test_a_match_by_hand_is_made_again_if_a_late_answer_is_in_its_way(pool: Pool) -> None:
    """The response has the attempt and wants the receipt: in the opposite order to matching."""
    id, actor = await added(pool), await organization(pool)
    bench = Bench(pool, supplier("main", id=id))
    bench.only.script = lambda one: Outcome(Verdict.UNKNOWN)
    message_id = await message(pool, actor)
    await bench.round()
    await receive(pool, id, "rewritten")
    (place,) = [one.place for one in await listed(pool)]
    # The first to wait is aborted, unless the machine is so slow that nobody waits yet.
    async with pool.acquire() as conn, pool.acquire() as answering:
        with contextlib.suppress(DeadlockDetectedError):
            async with answering.transaction():
                await answering.execute("UPDATE attempts SET detail = 'late' WHERE message_id = $1", message_id)
                matching = asyncio.create_task(
                    unmatched.match_by_hand(conn, place, message_id=message_id, reason="its log says so")
                )
                await blocked(pool)
                await answering.execute("UPDATE receipts SET next_try_at = now()")
        assert await matching
    assert await status_of(pool, message_id) == "delivered"
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'receipt.matched'") == 1


async def test_a_message_of_several_parts_is_matched_part_by_part(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    message = await sent(pool, actor, id, "a", "b")
    for key in ("x", "y"):
        await receive(pool, id, key)
    async with pool.acquire() as conn:
        first, second = await unmatched.listed(conn)
        assert not await unmatched.match_by_hand(conn, first.place, message_id=message, reason="x")
        assert await unmatched.match_by_hand(conn, second.place, message_id=message, reason="x")
    assert await status_of(pool, message) == "delivered"


async def test_a_message_that_its_supplier_cut_has_no_receipt_beyond_those_of_its_parts(pool: Pool) -> None:
    id, actor = await added(pool), await organization(pool)
    message = await sent(pool, actor, id, "a", "b")
    await pool.execute("UPDATE attempts SET parts = 1")
    for key in ("a", "b", "x"):
        await receive(pool, id, key)
    assert await status_of(pool, message) == "delivered"
    async with pool.acquire() as conn:
        (place,) = [one.place for one in await unmatched.listed(conn)]
        with pytest.raises(Invalid) as refused:
            await unmatched.match_by_hand(conn, place, message_id=message, reason="x")
    assert refused.value.details["fields"][0]["field"] == "message_id"


# -- words -------------------------------------------------------------------------------------------------------------


def saying(state: str = "", error: str = "", of: ReceiptState = ReceiptState.UNKNOWN) -> Receipt:
    return Receipt(("1",), of, TO[1:], SENDER, b"", error=error, unknown_word=state)


async def test_unknown_states_are_counted_by_supplier(pool: Pool) -> None:
    id = await added(pool)
    counter, other = words.Words(), words.Words()
    async with pool.acquire() as conn:
        for one, times in ((counter, 3), (other, 2)):
            for _ in range(times):
                one.add(id, saying("XYZZY"))
            await one.store(conn)
        counter.add(id, saying("ODD"))
        counter.add(UUID(int=9), saying("OF NOBODY"))
        await counter.store(conn)
        await counter.store(conn)
        found = await words.unknown_states(conn)
        assert [(one.word, one.count) for one in found[id]] == [("XYZZY", 5), ("ODD", 1)]
        assert list(found) == [id]
        # Words that the settings explain are no longer unknown.
        await words.say_state(conn, KEY, supplier="main", word="xyzzy", meaning="failed")
        assert [one.word for one in (await words.unknown_states(conn))[id]] == ["ODD"]
        (row,) = await pool.fetch("SELECT settings::text FROM suppliers")
        assert '"final_states": {"XYZZY": "failed"}' in row[0]
        for values in ({"word": "ODD", "meaning": "lost"}, {"word": "", "meaning": "failed"}):
            with pytest.raises(Invalid):
                await words.say_state(conn, KEY, supplier="main", **values)
        with pytest.raises(Invalid) as refused:
            await words.say_state(conn, KEY, supplier="main", word="", meaning="lost")
        assert [one["field"] for one in refused.value.details["fields"]] == ["meaning", "word"]
        with pytest.raises(NotFound):
            await words.say_state(conn, KEY, supplier="nobody", word="ODD", meaning="failed")


async def test_error_codes_are_counted_explained_and_name_nobody(pool: Pool) -> None:
    id = await added(pool)
    counter = words.Words()
    for error, of in (
        ("011", ReceiptState.UNDELIVERED),
        ("011", ReceiptState.UNDELIVERED),
        ("000", ReceiptState.DELIVERED),
        (f"no route to {TO}", ReceiptState.FAILED),
    ):
        counter.add(id, saying(error=error, of=of))
    async with pool.acquire() as conn:
        await counter.store(conn)
        found = (await words.error_codes(conn))[id]
        assert (found[0].word, found[0].count) == ("011", 2)
        assert len(found) == 2
        assert not any(TO[1:] in one.word for one in found)
        await words.say_error(conn, supplier="main", word="011", meaning=" absent subscriber ", by=SYSTEM)
        assert (await words.error_codes(conn))[id][0].meaning == "absent subscriber"
        with pytest.raises(NotFound):
            await words.say_error(conn, supplier="main", word="012", meaning="x")
        with pytest.raises(Invalid):
            await words.say_error(conn, supplier="main", word="011", meaning="x" * 501)
        # Its meaning survives the next count.
        counter.add(id, saying(error="011", of=ReceiptState.UNDELIVERED))
        await counter.store(conn)
        first, *_ = (await words.error_codes(conn))[id]
        assert (first.count, first.meaning) == (3, "absent subscriber")


async def test_codes_that_are_long_numbers_are_told_apart(pool: Pool) -> None:
    """They may be phone numbers, so only their ends are kept."""
    id = await added(pool)
    counter = words.Words()
    for code in ("400012345", "400012345", "400012346", TO):
        counter.add(id, saying(error=code, of=ReceiptState.FAILED))
        counter.answer(id, Outcome(Verdict.REFUSED, code=f"HTTP 400 {code}"))
    async with pool.acquire() as conn:
        await counter.store(conn)
        found = {one.word: one.count for one in (await words.error_codes(conn))[id]}
        (account,) = await routing.load(conn)
        answers = {one.code: one.count for one in await words.answer_codes(conn, account)}
    assert found == {"…2345": 2, "…2346": 1, "…": 1}
    assert answers == {f"HTTP 400 {code}": count for code, count in found.items()}


async def test_a_supplier_that_makes_words_up_fills_no_table(pool: Pool) -> None:
    id = await added(pool)
    counter = words.Words()
    async with pool.acquire() as conn:
        for number in range(300):
            counter.add(id, saying(f"WORD{number:03d}", f"code {number}"))
            if number % 30 == 29:
                await counter.store(conn)
        for kind in ("state", "error"):
            kept = await conn.fetchval("SELECT count(*) FROM receipt_words WHERE kind = $1", kind)
            assert 0 < kept <= 2 * words.WORDS


async def test_words_that_were_stored_make_room_for_new_ones(pool: Pool) -> None:
    id = await added(pool)
    counter = words.Words()
    async with pool.acquire() as conn:
        # From a supplier that quotes each number: all of them are one code.
        for number in range(words.PENDING + 1):
            counter.add(id, saying(error=f"no route to +25884{number:07d}", of=ReceiptState.FAILED))
        await counter.store(conn)
        counter.add(id, saying(error="011", of=ReceiptState.FAILED))
        await counter.store(conn)
        assert [one.count for one in (await words.error_codes(conn))[id] if one.word == "011"] == [1]


async def test_words_that_are_no_longer_listed_make_room_and_what_somebody_explained_stays(pool: Pool) -> None:
    """A supplier that had once made up a hundred states never had an unknown one again, whatever it changed."""
    id = await added(pool)
    counter = words.Words()
    async with pool.acquire() as conn:
        for number in range(words.WORDS):
            counter.add(id, saying(f"WORD{number:03d}", f"code {number}", of=ReceiptState.UNKNOWN))
        await counter.store(conn)
        await words.say_error(conn, supplier="main", word="code 7", meaning="absent subscriber")
        counter.add(id, saying("LATE"))
        await counter.store(conn)
        assert "LATE" not in {one.word for one in (await words.unknown_states(conn))[id]}
        await conn.execute("UPDATE receipt_words SET last_at = now() - make_interval(days => $1)", words.DAYS)
        for error in ("code 7", "code 8", "code new"):
            counter.add(id, saying("LATE", error))
        await counter.store(conn)
        assert {one.word for one in (await words.unknown_states(conn))[id]} == {"LATE"}
        found = {one.word: (one.count, one.meaning) for one in (await words.error_codes(conn))[id]}
        assert found == {"code 7": (2, "absent subscriber"), "code 8": (1, ""), "code new": (1, "")}
        assert await conn.fetchval("SELECT count(*) FROM receipt_words") == 4


async def test_a_state_that_cannot_be_stored_as_it_is_keeps_no_other_from_being_counted(pool: Pool) -> None:
    id = await added(pool)
    counter = words.Words()
    for state in ("\0ODD\0", "\0", "XYZZY"):
        counter.add(id, saying(state))
    async with pool.acquire() as conn:
        await counter.store(conn)
        assert {one.word for one in (await words.unknown_states(conn))[id]} == {"ODD", "XYZZY"}
