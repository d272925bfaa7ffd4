"""Receipts on a real database: matched in whatever order they arrive, and never lost, counted twice or undone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any
from uuid import UUID

import msgspec
import phonenumbers
import pytest

from heliograph.base.database.clock import now
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.base.process import measures
from heliograph.queue import timers
from heliograph.sending.results import Results, UnmatchedReports
from heliograph.sms.dispatch.channel import SmsChannel
from heliograph.sms.reports import keys, parts, receipts, silence, waiting
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.sms.reports.receipts import Applied
from heliograph.sms.status import move_many
from heliograph.suppliers.contract import Outcome, Part, Receipt, ReceiptState, Verdict
from tests.rules.dispatching import Bench
from tests.rules.factories import (
    SENDER,
    TO,
    accepted,
    blocked,
    endpoint,
    events_of,
    message,
    organization,
    receipt,
    sent,
    status_of,
    supplier,
)

ONE, OTHER = UUID(int=101), UUID(int=102)
DELIVERED, UNDELIVERED = ReceiptState.DELIVERED, ReceiptState.UNDELIVERED
EXPIRED, FAILED, REJECTED = ReceiptState.EXPIRED, ReceiptState.FAILED, ReceiptState.REJECTED


async def receive(
    pool: Pool, *some: Receipt, supplier_id: UUID = ONE, policy: str = "all", at: datetime | None = None
) -> Applied:
    async with pool.acquire() as conn, conn.transaction():
        received = [ReceivedReceipt(supplier_id, one, at) for one in some]
        return await receipts.store(conn, received, policies={supplier_id: policy})


def counted() -> Counter[str]:
    """Receipts that this process has counted for its metrics, by result."""
    return Counter({result: int(count) for (result,), count in measures.RECEIPTS.values.items()})


async def sweep(pool: Pool, policies: Mapping[UUID, str] | None = None) -> tuple[int, int]:
    """(matched, orphans)"""
    async with pool.acquire() as conn, conn.transaction():
        applied, orphans = await waiting.sweep(conn, policies=policies or {})
    return applied.matched, orphans


async def close_quiet(pool: Pool, *, most: int = parts.MOST, limit: int = parts.STEP) -> int:
    async with pool.acquire() as conn:
        await timers.ensure(conn, parts.TIMER)
        return await parts.close_quiet(conn, most=most, limit=limit)


async def stored(pool: Pool, id: UUID) -> int:
    """How many receipts of a message are on record."""
    count: int = await pool.fetchval(
        "SELECT (SELECT count(receipt) FROM messages WHERE id = $1)"
        " + (SELECT count(*) FROM receipts WHERE message_id = $1)",
        id,
    )
    return count


async def age_receipts(pool: Pool, by: timedelta) -> None:
    await pool.execute(
        "UPDATE receipts SET received_at = received_at - $1::interval, next_try_at = next_try_at - $1::interval,"
        " received_on = ((received_at - $1::interval) AT TIME ZONE 'UTC')::date",
        by,
    )


# -- one part ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "status", "event"),
    [
        (DELIVERED, "delivered", "message.delivered"),
        (UNDELIVERED, "undelivered", "message.failed"),
        (EXPIRED, "expired", "message.failed"),
        (REJECTED, "rejected", "message.failed"),
        (FAILED, "failed", "message.failed"),
        (ReceiptState.PENDING, "sent", None),
        (ReceiptState.UNKNOWN, "sent", None),
    ],
)
async def test_a_receipt_moves_its_message_and_raises_its_event(
    pool: Pool, state: ReceiptState, status: str, event: str | None
) -> None:
    actor = await organization(pool)
    subscribed = await endpoint(pool, actor, "message.delivered", "message.failed")
    await endpoint(pool, actor, "message.read")
    await endpoint(pool, actor, "message.delivered", "message.failed", status="disabled")
    id = await sent(pool, actor, ONE, "7")
    applied = await receive(pool, receipt("7", state=state))
    assert applied == Applied(deliveries=int(event is not None), matched=1)
    assert await status_of(pool, id) == status
    assert await events_of(pool, id) == ([event] if event else [])
    row = await pool.fetchrow("SELECT delivered_at, failed_at, failure_code FROM messages WHERE id = $1", id)
    assert row is not None
    assert (row["delivered_at"] is not None) == (status == "delivered")
    failed = event == "message.failed"
    assert (row["failed_at"] is not None, row["failure_code"]) == (failed, status if failed else None)
    lines = [row["line"] for row in await pool.fetch("SELECT line FROM queue WHERE kind = 'webhook'")]
    assert lines == ([subscribed] if event else [])


async def test_an_event_is_the_contracts_and_names_no_supplier(pool: Pool) -> None:
    actor = await organization(pool)
    id = await sent(pool, actor, ONE, "secret-id")
    await receive(pool, receipt("secret-id", state=UNDELIVERED, error="supplier says 42"))
    row = await pool.fetchrow("SELECT * FROM events WHERE message_id = $1", id)
    assert row is not None
    assert (row["kind"], row["request_id"], row["organization_id"]) == ("message.failed", "req", actor.organization_id)
    assert "secret-id" not in row["data"]
    assert "supplier says" not in row["data"]
    assert '"failure":{"code":"undelivered","message":"The network could not deliver the message."}' in row["data"]
    assert await pool.fetchval("SELECT event_id FROM messages WHERE id = $1", id) == row["id"]


async def test_a_receipt_that_comes_twice_is_stored_and_applied_once(pool: Pool) -> None:
    id = await sent(pool, await organization(pool), ONE, "7")
    one = receipt("7")
    for _ in range(3):
        await receive(pool, one, one)
    assert await stored(pool, id) == 1
    assert await pool.fetchval("SELECT count(*) FROM receipts") == 0
    assert await events_of(pool, id) == ["message.delivered"]


async def test_the_ids_of_one_supplier_say_nothing_of_anothers(pool: Pool) -> None:
    actor = await organization(pool)
    mine, theirs = await sent(pool, actor, ONE, "7"), await sent(pool, actor, OTHER, "7")
    await receive(pool, receipt("7"), supplier_id=OTHER)
    assert (await status_of(pool, mine), await status_of(pool, theirs)) == ("sent", "delivered")


async def test_an_id_that_comes_again_belongs_to_the_newest_with_this_recipient(pool: Pool) -> None:
    actor = await organization(pool)
    old = await sent(pool, actor, ONE, "7", age=timedelta(days=2))
    new = await sent(pool, actor, ONE, "7", age=timedelta(hours=1))
    other = await sent(pool, actor, ONE, "7", to="+351912345678")
    await receive(pool, receipt("7"))
    assert [await status_of(pool, id) for id in (old, new, other)] == ["sent", "delivered", "sent"]


async def test_the_first_receipt_that_moves_a_message_has_no_row_of_its_own(pool: Pool) -> None:
    id = await sent(pool, await organization(pool), ONE, "7")
    await receive(pool, receipt("7", state=ReceiptState.PENDING))  # says nothing final
    await receive(pool, receipt("7", state=EXPIRED, error="042"))
    await receive(pool, receipt("7"), receipt("7", state=FAILED))
    row = await pool.fetchrow("SELECT receipt_attempt, receipt_state, receipt_error, status FROM messages")
    assert row is not None
    assert tuple(row) == (1, "expired", "042", "delivered")
    others = await pool.fetch("SELECT state, message_id, attempt, part FROM receipts ORDER BY state")
    assert [tuple(one) for one in others] == [(state, id, 1, 1) for state in ("delivered", "failed", "pending")]
    # All of them are stored as they came.
    kept = {bytes(raw) for (some,) in await pool.fetch("SELECT raw FROM receipt_bytes") for raw in some}
    states = (ReceiptState.PENDING, EXPIRED, DELIVERED, FAILED)
    assert kept == {receipt("7", state=state).raw for state in states}
    assert await pool.fetchval("SELECT sum(cardinality(raw)) FROM receipt_bytes") == 4


async def test_two_workers_with_one_message_each_keep_their_receipt(pool: Pool) -> None:
    """Both read before either has moved the message: the second one stores its receipt."""
    id = await sent(pool, await organization(pool), ONE, "7")
    async with pool.acquire() as conn:
        first = conn.transaction()
        await first.start()
        some = [ReceivedReceipt(ONE, receipt("7"))]
        found = await receipts.match(conn, some, policies={})
        moved = await move_many(conn, found.moves)
        receiving = [asyncio.create_task(receive(pool, one)) for one in (receipt("7", state=FAILED), receipt("7"))]
        await blocked(pool)
        await receipts.keep(conn, found, moved)
        await first.commit()
    await asyncio.gather(*receiving)
    assert await status_of(pool, id) == "delivered"
    assert await pool.fetchval("SELECT receipt_state FROM messages") == "delivered"
    assert [row[0] for row in await pool.fetch("SELECT state FROM receipts")] == ["failed"]
    assert len(await events_of(pool, id)) == 1


async def test_a_message_that_was_accepted_long_before_it_was_sent_is_found_too(pool: Pool) -> None:
    """Attempts are searched by the age of their messages, for days; `sendAt` may lie a year ahead."""
    bench = Bench(pool)
    id = await message(pool, await organization(pool))
    old = uuid7_floor(now() - timedelta(days=300))
    for table in ("messages", "queue"):
        await pool.execute(f"UPDATE {table} SET id = $2 WHERE id = $1", id, old)
    bench.only.script = lambda submission: accepted("s9")
    await bench.round()
    assert await pool.fetchval("SELECT id_key FROM sms_parts WHERE message_id = $1", old) == "s9"
    await bench.receive(bench.only_id, receipt("s9"))
    assert await status_of(pool, old) == "delivered"
    assert await pool.fetchval("SELECT receipt_state FROM messages") == "delivered"


async def test_what_came_too_late_to_be_looked_for_matches_nothing(pool: Pool) -> None:
    actor = await organization(pool)
    for days, key in ((9, "young"), (20, "old")):
        id = await sent(pool, actor, ONE, key)
        born = uuid7_floor(now() - timedelta(days=days))
        await pool.execute("UPDATE messages SET id = $2 WHERE id = $1", id, born)
        await pool.execute("UPDATE attempts SET message_id = $2 WHERE message_id = $1", id, born)
    assert (await receive(pool, receipt("young"), receipt("old"))).matched == 1


@pytest.mark.parametrize("to", ["258841234567", "+258841234567", "841234567", "00258841234567"])
async def test_national_and_international_forms_agree(pool: Pool, to: str) -> None:
    id = await sent(pool, await organization(pool), ONE, "7")
    one = receipt("7")
    await receive(pool, Receipt(one.keys, one.state, to, SENDER, one.raw))
    assert await status_of(pool, id) == "delivered"


@pytest.mark.parametrize(
    ("number", "written", "fits"),
    [
        ("+2389911201", "9911201", True),  # Cape Verde: seven digits
        ("+2389911201", "9911202", False),
        ("+9613123456", "03123456", True),  # Lebanon: seven digits after a 0
        ("+298211234", "211234", True),  # the Faroe Islands: six digits
        ("+298211234", "1234", False),
    ],
)
async def test_a_national_number_may_be_shorter_than_what_is_compared(
    pool: Pool, number: str, written: str, fits: bool
) -> None:
    """With a response by its id, and for an attempt without a response by the number alone."""
    id = await sent(pool, await organization(pool), ONE, "7", to=number)
    applied = await receive(pool, receipt("7", to=written))
    assert (applied.matched, await status_of(pool, id)) == ((1, "delivered") if fits else (0, "sent"))

    await receive(pool, receipt("lost", to=written))
    async with pool.acquire() as conn:
        lost = waiting.Uncertain(ONE, now() - timedelta(seconds=1), number[1:], 1)
        assert await waiting.find_for_uncertain(conn, [lost]) == ([["lost"]] if fits else [[]])


# What a session has read is known at once only within its transaction.
READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int FROM pg_stat_xact_user_tables
 WHERE starts_with(relname, $1)
"""


@pytest.mark.fresh_database
@pytest.mark.parametrize("swapped", [False, True])
async def test_lost_answers_do_not_read_all_that_a_supplier_never_matches(pool: Pool, swapped: bool) -> None:
    """Reading it for each of them took longer than a statement may, so nothing was dispatched any more."""
    for n in range(40):
        await receive(pool, *(receipt(f"{n}-{other}", to=f"+25884{n:04d}{other:03d}") for other in range(10)))
    ours = Receipt(("lost",), DELIVERED, SENDER, TO[1:], b"raw") if swapped else receipt("lost")
    await receive(pool, ours)
    began = now() - timedelta(minutes=1)
    lost = [waiting.Uncertain(ONE, began, f"25885{n:07d}", 1) for n in range(50)]
    async with pool.acquire() as conn, conn.transaction():
        found = await waiting.find_for_uncertain(conn, [*lost, waiting.Uncertain(ONE, began, TO[1:], 1)])
        read = await conn.fetchval(READ, "receipts_")
    assert found == [*([] for _ in lost), ["lost"]]
    assert read < 20


@pytest.mark.fresh_database
@pytest.mark.parametrize("count", [1, 2])
async def test_a_supplier_that_gives_all_messages_one_id_holds_up_no_other_receipts(pool: Pool, count: int) -> None:
    """Each of its receipts used to read all of its messages, which took longer than a statement may for those of a
    batch."""
    actor = await organization(pool)
    numbers = [f"+25884{n:07d}" for n in range(40)]
    of = [await sent(pool, actor, ONE, *["0"] * count, to=to) for to in numbers]
    strangers = [receipt("0", to=f"+25885{n:07d}") for n in range(40)]
    async with pool.acquire() as conn, conn.transaction():
        before = await conn.fetchval(READ, "attempts_") + await conn.fetchval(READ, "sms_parts_")
        received = [ReceivedReceipt(ONE, one) for one in (*strangers, receipt("0", to=numbers[7]))]
        found = await receipts.match(conn, received, policies={})
        read = await conn.fetchval(READ, "attempts_") + await conn.fetchval(READ, "sms_parts_") - before
    assert found.matched == 1
    assert await stored(pool, of[7]) == count - 1
    assert read < 400


@pytest.mark.fresh_database
@pytest.mark.parametrize("to", ["", "9911201"])
async def test_receipts_with_one_id_and_no_whole_number_share_what_a_batch_may_search(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setattr(receipts, "MOST_LOOKED", 200)
    actor = await organization(pool)
    for n in range(40):
        await sent(pool, actor, ONE, "0", to=f"+23899{n:05d}")
    other = await sent(pool, actor, ONE, "8", to="+2389911201")
    many = [Receipt(("0",), DELIVERED, to, "", f"raw {n}".encode()) for n in range(40)]
    async with pool.acquire() as conn, conn.transaction():
        before = await conn.fetchval(READ, "attempts_")
        received = [ReceivedReceipt(ONE, one) for one in (*many, Receipt(("8",), DELIVERED, to, "", b"raw"))]
        await receipts.store(conn, received, policies={})
        read = await conn.fetchval(READ, "attempts_") - before
    assert await status_of(pool, other) == "delivered"
    assert read < 2 * 200


@pytest.mark.fresh_database
async def test_answers_with_one_id_read_few_receipts_that_came_before_them(pool: Pool) -> None:
    """Each of them used to read all, and a batch of responses took longer than a statement may."""
    await receive(pool, *(receipt("0", to=f"+25885{n:07d}") for n in range(100)))
    async with pool.acquire() as conn, conn.transaction():
        before = await conn.fetchval(READ, "receipts_")
        assert await waiting.early(conn, [(ONE, "0")] * 100, policies={}) == ([], 0)
        read = await conn.fetchval(READ, "receipts_") - before
    assert read < 1_000


async def test_addresses_may_be_swapped(pool: Pool) -> None:
    id = await sent(pool, await organization(pool), ONE, "7")
    await receive(pool, Receipt(("7",), DELIVERED, SENDER, TO[1:], b"raw"))
    assert await status_of(pool, id) == "delivered"


async def test_another_recipients_receipt_is_not_taken(pool: Pool) -> None:
    id = await sent(pool, await organization(pool), ONE, "7")
    applied = await receive(pool, receipt("7", to="+258849999999"))
    assert (applied.matched, applied.unmatched) == (0, 1)
    assert await status_of(pool, id) == "sent"


async def test_the_first_id_is_trusted_most_and_the_second_is_tried(pool: Pool) -> None:
    """The TLV's id takes precedence over the text's; if it matches nothing, the text's may."""
    actor = await organization(pool)
    tlv, text = await sent(pool, actor, ONE, "1"), await sent(pool, actor, ONE, "2")
    await receive(pool, receipt("1", "2"))
    assert [await status_of(pool, id) for id in (tlv, text)] == ["delivered", "sent"]
    await receive(pool, receipt("unknown", "2"))
    assert await status_of(pool, text) == "delivered"


async def test_without_any_id_the_recipient_decides(pool: Pool) -> None:
    actor = await organization(pool)
    weak, named = await sent(pool, actor, ONE, keys.weak_key(TO)), await sent(pool, actor, ONE, "8")
    await receive(pool, receipt())
    assert [await status_of(pool, id) for id in (weak, named)] == ["delivered", "sent"]


@pytest.mark.fresh_database
async def test_a_number_that_gets_thousands_of_messages_holds_up_no_other_receipts(pool: Pool) -> None:
    """Each of its receipts used to read all of its attempts, which took longer than a statement may for those of a
    batch."""
    actor = await organization(pool)
    for _ in range(30):
        await sent(pool, actor, ONE, keys.weak_key(TO))
    other = await sent(pool, actor, ONE, keys.weak_key("+258849999999"), to="+258849999999")
    many = [Receipt((), DELIVERED, TO[1:], SENDER, f"raw {n}".encode()) for n in range(60)]
    async with pool.acquire() as conn, conn.transaction():
        before = await conn.fetchval(READ, "attempts_")
        received = [ReceivedReceipt(ONE, one) for one in (*many, receipt(to="+258849999999"))]
        applied = await receipts.store(conn, received, policies={})
        read = await conn.fetchval(READ, "attempts_") - before
    assert (applied.matched, await status_of(pool, other)) == (1, "delivered")
    assert read < 20 * 30 + 50


@pytest.mark.parametrize(
    ("number", "written", "fits"),
    [
        ("+2389911201", "9911201", True),  # Cape Verde: seven digits
        ("+2389911201", "9911202", False),
        ("+9613123456", "03123456", True),  # Lebanon: seven digits after a 0
        ("+22601234567", "01234567", True),  # Burkina Faso: eight digits, of which the first is a 0
        ("+298211234", "211234", True),  # the Faroe Islands: six
        ("+67774321", "74321", True),  # the Solomon Islands: five
        ("+6834321", "6834321", True),  # Niue: seven with the calling code
        ("+298211234", "1234", False),
    ],
)
async def test_without_any_id_a_short_national_number_decides(
    pool: Pool, number: str, written: str, fits: bool
) -> None:
    id = await sent(pool, await organization(pool), ONE, keys.weak_key(number[1:]), to=number)
    await receive(pool, receipt(to=written))
    assert await status_of(pool, id) == ("delivered" if fits else "sent")


async def test_without_any_id_a_short_number_of_two_countries_decides_nothing(pool: Pool) -> None:
    actor, numbers = await organization(pool), ("+2389911201", "+2399911201")
    both = [await sent(pool, actor, ONE, keys.weak_key(to[1:]), to=to) for to in numbers]
    assert (await receive(pool, receipt(to="9911201"))).unmatched == 1
    assert [await status_of(pool, id) for id in both] == ["sent", "sent"]


def test_what_precedes_short_numbers_is_what_phonenumbers_knows() -> None:
    """Every mobile number whose national form is that short has its key among those that are searched."""
    for code, regions in phonenumbers.COUNTRY_CODE_TO_REGION_CODE.items():
        for region in regions:
            found = phonenumbers.PhoneMetadata.metadata_for_region(region, None)
            if found is None or found.mobile is None or not found.mobile.national_number_pattern:
                continue
            for length in {*(found.mobile.possible_length or found.general_desc.possible_length)} & {*keys.PRECEDING}:
                number = "9" * length
                assert keys.weak_key(f"{code}{number}") in keys.weak_keys(number), (code, region)


async def test_with_an_id_of_its_own_it_first_waits_for_an_answer_with_that_id(pool: Pool) -> None:
    actor = await organization(pool)
    weak = await sent(pool, actor, ONE, keys.weak_key(TO))
    assert (await receive(pool, receipt("99"))).unmatched == 1
    named = await sent(pool, actor, ONE, "99")
    await age_receipts(pool, timedelta(seconds=2))
    assert await sweep(pool) == (1, 0)
    assert [await status_of(pool, id) for id in (weak, named)] == ["sent", "delivered"]
    # And one with an unknown id is the receipt of the message without an id.
    await receive(pool, receipt("100"))
    await age_receipts(pool, timedelta(seconds=2))
    assert await sweep(pool) == (1, 0)
    assert await status_of(pool, weak) == "delivered"


async def test_of_two_messages_without_an_id_neither_gets_a_receipt_that_could_be_the_others(pool: Pool) -> None:
    actor = await organization(pool)
    key = keys.weak_key(TO)
    one, other = await sent(pool, actor, ONE, key), await sent(pool, actor, ONE, key)
    assert (await receive(pool, receipt())).unmatched == 1
    assert [await status_of(pool, id) for id in (one, other)] == ["sent", "sent"]
    # Once one of them has ended, it belongs to the other.
    await pool.execute("UPDATE messages SET status = 'delivered' WHERE id = $1", one)
    await age_receipts(pool, timedelta(seconds=2))
    assert await sweep(pool) == (1, 0)
    assert await status_of(pool, other) == "delivered"


async def test_sender_reference_and_time_tell_messages_without_an_id_apart(pool: Pool) -> None:
    actor = await organization(pool)
    key = keys.weak_key(TO)
    old = await sent(pool, actor, ONE, key, age=timedelta(days=5))
    one, other, shop = [await sent(pool, actor, ONE, key) for _ in range(3)]
    for id, reference in ((one, 1), (other, 2)):
        await pool.execute("UPDATE attempts SET reference = $2 WHERE message_id = $1", id, reference)
    await pool.execute("UPDATE messages SET sender = '+258820000001' WHERE id = $1", shop)
    ids = (old, one, other, shop)
    for fitting, sender, reference in ((shop, "820000001", None), (other, SENDER.lower(), 2), (one, "", None)):
        before = {id: await status_of(pool, id) for id in ids}
        await receive(pool, Receipt((), DELIVERED, TO[1:], sender, sender.encode(), reference=reference))
        assert {id: await status_of(pool, id) for id in ids} == before | {fitting: "delivered"}


async def test_the_same_receipt_again_is_not_given_to_the_next_message(pool: Pool) -> None:
    actor = await organization(pool)
    first = await sent(pool, actor, ONE, keys.weak_key(TO))
    await receive(pool, receipt())
    second = await sent(pool, actor, ONE, keys.weak_key(TO))
    await receive(pool, receipt())
    assert [await status_of(pool, id) for id in (first, second)] == ["delivered", "sent"]


async def test_parts_without_ids_take_a_receipt_each(pool: Pool) -> None:
    key = keys.weak_key(TO)
    id = await sent(pool, await organization(pool), ONE, key, key, key)
    one = receipt()
    parts = [Receipt((), DELIVERED, one.recipient, one.sender, b"raw %d" % number) for number in range(3)]
    await receive(pool, *parts[:2])
    assert await status_of(pool, id) == "sent"
    await receive(pool, parts[2])
    assert await status_of(pool, id) == "delivered"


async def test_receipts_with_one_id_are_for_one_of_the_parts_without_ids(pool: Pool) -> None:
    """The second part was taken for delivered because the first part's receipt came twice, written differently."""
    key = keys.weak_key(TO)

    async def told(*some: Receipt) -> None:
        await receive(pool, *some)
        await age_receipts(pool, timedelta(seconds=2))
        await sweep(pool)

    actor = await organization(pool)
    id = await sent(pool, actor, ONE, key, key)
    again = msgspec.structs.replace(receipt("K"), raw=b"again")
    await told(receipt("K"))
    await told(again, msgspec.structs.replace(again, raw=b"and again"))
    assert await status_of(pool, id) == "sent"
    await told(receipt("L", state=UNDELIVERED))
    assert await status_of(pool, id) == "undelivered"
    # In one batch; and a part that expired may still be delivered.
    id = await sent(pool, actor, ONE, key, key)
    await told(receipt("M", state=EXPIRED), msgspec.structs.replace(receipt("M"), raw=b"again"))
    await told(receipt("N"))
    assert await status_of(pool, id) == "delivered"


async def test_a_lost_answer_gets_no_receipt_that_may_be_for_a_message_without_an_id(pool: Pool) -> None:
    actor = await organization(pool)
    for _ in range(2):
        await sent(pool, actor, ONE, keys.weak_key(TO))
    began = now() - timedelta(seconds=1)
    lost, other = waiting.Uncertain(ONE, began, TO[1:], 1), waiting.Uncertain(OTHER, began, TO[1:], 1)
    async with pool.acquire() as conn:
        for count, found in ((1, []), (2, []), (3, ["R1"])):
            await receive(pool, receipt(f"R{count}"))
            assert await waiting.find_for_uncertain(conn, [lost, other]) == [found, []]
        # Our reference shows which they are for.
        await receive(pool, receipt("E", reference=1))
        await pool.execute("DELETE FROM receipts WHERE keys[1] <> 'E'")
        await pool.execute("UPDATE attempts SET reference = 2")
        assert await waiting.find_for_uncertain(conn, [lost]) == [["E"]]


@pytest.mark.parametrize("sender", [SENDER, ""])
async def test_an_exact_id_is_enough_where_the_source_address_is_empty(pool: Pool, sender: str) -> None:
    id = await sent(pool, await organization(pool), ONE, "7")
    assert (await receive(pool, Receipt(("8",), DELIVERED, "", sender, b"raw"))).unmatched == 1
    assert (await receive(pool, Receipt(("7",), DELIVERED, "", sender, b"raw"))).matched == 1
    assert await status_of(pool, id) == "delivered"


async def test_an_answer_without_an_id_is_found_by_its_receipt(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: accepted(None)
    id = await message(pool, await organization(pool))
    await bench.round()
    await bench.receive(bench.only_id, receipt())
    assert await status_of(pool, id) == "delivered"


# -- contradictions ----------------------------------------------------------------------------------------------------

WORDS = [DELIVERED, UNDELIVERED, EXPIRED, REJECTED]


@pytest.mark.parametrize("together", [False, True])
async def test_the_first_word_counts_but_for_a_late_delivery_after_expiry(pool: Pool, together: bool) -> None:
    actor = await organization(pool)
    for words in permutations(WORDS, 3):
        key = uuid7().hex
        id = await sent(pool, actor, ONE, key)
        some = [receipt(key, state=word) for word in words]
        for batch in [some] if together else [[one] for one in some]:
            await receive(pool, *batch)
        late = words[0] is EXPIRED and DELIVERED in words
        assert await status_of(pool, id) == ("delivered" if late else words[0].value)
        assert len(await events_of(pool, id)) == 1
        assert await stored(pool, id) == 3  # evidence


@pytest.mark.parametrize(("before", "events"), [("expired", ["message.failed"]), ("unknown", ["message.delivered"])])
async def test_a_late_delivery_takes_back_an_end_that_was_only_a_guess(
    pool: Pool, before: str, events: list[str]
) -> None:
    id = await sent(pool, await organization(pool), ONE, "7")
    if before == "expired":
        await receive(pool, receipt("7", state=EXPIRED))
    else:
        await pool.execute("UPDATE messages SET status = 'unknown'")
    await receive(pool, receipt("7"))
    row = await pool.fetchrow("SELECT status, failed_at, failure_code, delivered_at FROM messages")
    assert row is not None
    assert (row["status"], row["failed_at"], row["failure_code"]) == ("delivered", None, None)
    assert row["delivered_at"] is not None
    assert await events_of(pool, id) == events  # at most one contract event


@pytest.mark.parametrize("before", ["undelivered", "failed", "rejected", "canceled", "delivered"])
async def test_other_ends_stay(pool: Pool, before: str) -> None:
    id = await sent(pool, await organization(pool), ONE, "7", status=before)
    await receive(pool, receipt("7", state=DELIVERED), receipt("7", state=UNDELIVERED))
    assert await status_of(pool, id) == before
    assert await events_of(pool, id) == []


@pytest.mark.parametrize("before", ["unknown", "sent and unknown", "expired"])
async def test_a_delivery_after_an_end_without_news_says_that_it_was_sent(pool: Pool, before: str) -> None:
    """A customer who counts messages by `message.sent` counts this one, too, and once; not one that had failed."""
    actor = await organization(pool)
    id = await sent(pool, actor, ONE, "7", status=before.split()[-1])
    if "sent" in before:
        await pool.execute("UPDATE messages SET sent_at = now()")
    await endpoint(pool, actor, "message.sent", "message.delivered")
    await receive(pool, receipt("7", state=DELIVERED))
    told = {"message.delivered", *(["message.sent"] if before == "unknown" else [])}
    assert set(await events_of(pool, id)) == told


# -- before the answer -------------------------------------------------------------------------------------------------


async def test_a_receipt_before_the_answer_waits_for_it(pool: Pool) -> None:
    bench = Bench(pool)
    actor = await organization(pool)
    await endpoint(pool, actor, "message.sent", "message.delivered")
    bench.only.script = lambda submission: None
    id = await message(pool, actor)
    await bench.round()
    before = counted()
    await bench.receive(bench.only_id, receipt("s9"))
    assert counted() - before == Counter(unmatched=1)
    assert await status_of(pool, id) == "sending"
    await pool.execute("UPDATE receipts SET received_at = received_at - interval '1 second'")
    bench.only.on_outcome(bench.only.submitted[0], accepted("s9"))
    await bench.settle()
    assert counted() - before == Counter(unmatched=1, late=1)
    assert await status_of(pool, id) == "delivered"
    assert await events_of(pool, id) == ["message.sent", "message.delivered"]
    row = await pool.fetchrow("SELECT message_id, attempt, part, next_try_at FROM receipts")
    assert row is not None
    assert tuple(row) == (id, 1, 1, None)
    # It was not sent after it had been delivered.
    assert await pool.fetchval("SELECT sent_at = delivered_at FROM messages")
    # Repeated, it is recognized.
    await bench.receive(bench.only_id, receipt("s9"))
    assert await stored(pool, id) == 1


async def test_answer_and_receipt_in_one_batch_are_in_order(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: None
    id = await message(pool, await organization(pool))
    await bench.round()
    receiving = asyncio.create_task(bench.receive(bench.only_id, receipt("s9")))
    await asyncio.sleep(0)
    bench.only.on_outcome(bench.only.submitted[0], accepted("s9"))
    await receiving
    await bench.settle()
    assert await status_of(pool, id) == "delivered"


async def test_early_receipts_of_a_text_id_are_found_too(pool: Pool) -> None:
    id = await sent(pool, await organization(pool), ONE)
    await receive(pool, receipt("tlv", "text"))
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("UPDATE attempts SET supplier_message_id = 'text' WHERE message_id = $1", id)
        moves, matched = await waiting.early(conn, [(ONE, "text")], policies={})
        await move_many(conn, moves)
    assert matched == 1
    assert await status_of(pool, id) == "delivered"


async def test_two_workers_that_miss_each_other_meet_in_the_sweep(pool: Pool) -> None:
    """The receipt is stored while the transaction of the response, which cannot see it, is not committed yet."""
    actor = await organization(pool)
    async with pool.acquire() as conn:
        answer = conn.transaction(isolation="repeatable_read")
        await answer.start()
        await conn.fetchval("SELECT 1")  # its snapshot is of now
        await receive(pool, receipt("7"))
        id = await sent(pool, actor, ONE, "7")
        assert await waiting.early(conn, [(ONE, "7")], policies={}) == ([], 0)
        await answer.commit()
    assert await status_of(pool, id) == "sent"
    await pool.execute("UPDATE messages SET sent_at = now()")
    await age_receipts(pool, timedelta(seconds=1))
    assert await sweep(pool) == (1, 0)
    assert await status_of(pool, id) == "delivered"
    # It was not delivered before it was sent.
    assert await pool.fetchval("SELECT delivered_at - sent_at FROM messages") == timedelta(microseconds=1)
    event = await pool.fetchval("SELECT created_at = delivered_at FROM messages JOIN events ON event_id = events.id")
    assert event


async def test_one_that_waits_and_is_repeated_before_the_sweep_is_no_orphan(pool: Pool) -> None:
    """One worker stores it while another one records the response. The supplier, which got no acknowledgement in time,
    sends it again, and the repeated one moves the message."""
    before, at = counted(), now()  # on two days, they would be two receipts
    await receive(pool, receipt("7"), at=at)
    id = await sent(pool, await organization(pool), ONE, "7")
    await receive(pool, receipt("7"), at=at)
    assert await status_of(pool, id) == "delivered"
    assert await pool.fetchval("SELECT count(*) FROM receipts WHERE message_id IS NULL") == 1
    await pool.execute("UPDATE receipts SET tries = 6, next_try_at = now()")
    assert (await sweep(pool))[1] == 0
    assert await pool.fetchval("SELECT count(*) FROM receipts") == 0
    assert await stored(pool, id) == 1
    assert await events_of(pool, id) == ["message.delivered"]
    assert (counted() - before)["orphaned"] == 0


# -- fitting nothing ---------------------------------------------------------------------------------------------------


async def test_a_receipt_that_fits_nothing_is_looked_at_again_and_then_is_an_orphan(pool: Pool) -> None:
    before = counted()
    await receive(pool, receipt("7"))
    for after in (1, 5, 30, 300, 3600, 21600, 86400):
        assert await sweep(pool) == (0, 0)
        await pool.execute(
            "UPDATE receipts SET received_at = at, next_try_at = next_try_at - (received_at - at),"
            " received_on = (at AT TIME ZONE 'UTC')::date"  # some time of the day, it is another one by then
            " FROM (SELECT now() - make_interval(secs => $1) AS at) came",
            float(after),
        )
        waits = await pool.fetchval("SELECT next_try_at <= now() FROM receipts")
        assert waits, f"it should be due {after} s after it came"
        assert await sweep(pool) == (0, int(after == 86400))
    assert await pool.fetchval("SELECT tries FROM receipts WHERE next_try_at IS NULL AND message_id IS NULL") == 7
    assert await sweep(pool) == (0, 0)
    assert counted() - before == Counter(orphaned=1)


async def test_one_that_fits_at_its_last_look_is_no_orphan(pool: Pool) -> None:
    before = counted()
    await receive(pool, receipt("7"))
    id = await sent(pool, await organization(pool), ONE, "7")
    await pool.execute("UPDATE receipts SET tries = 6, next_try_at = now()")
    assert await sweep(pool) == (1, 0)
    assert counted() - before == Counter(late=1)
    assert await status_of(pool, id) == "delivered"


async def test_a_sweep_finds_the_row_that_it_looked_at(pool: Pool) -> None:
    """However odd a receipt is, its fingerprint is the same when it is read back."""
    some = [receipt("a\0b", "c", "third"), receipt("k" * 2000), receipt(), receipt("d", to="\0+258841234567")]
    await receive(pool, *some)
    await pool.execute("UPDATE receipts SET next_try_at = now()")
    await sweep(pool)
    assert await pool.fetchval("SELECT count(*) FROM receipts") == len(some)
    assert await pool.fetchval("SELECT sum(tries) FROM receipts") == len(some)


async def test_two_sweepers_do_not_meet(pool: Pool) -> None:
    actor = await organization(pool)
    await receive(pool, *(receipt(str(n)) for n in range(50)))
    for n in range(50):
        await sent(pool, actor, ONE, str(n))
    await pool.execute("UPDATE receipts SET next_try_at = now()")
    found = await asyncio.gather(*(sweep(pool) for _ in range(3)))
    assert sum(matched for matched, _ in found) == 50
    assert await pool.fetchval("SELECT count(*) FROM events") == 50


async def test_receipts_for_a_refused_submit_change_nothing(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: Outcome(Verdict.REFUSED)
    id = await message(pool, await organization(pool))
    await bench.round()
    await bench.receive(bench.only_id, receipt("7"))
    assert await status_of(pool, id) == "rejected"
    assert await events_of(pool, id) == ["message.failed"]


# -- several parts -----------------------------------------------------------------------------------------------------


async def three(pool: Pool) -> UUID:
    return await sent(pool, await organization(pool), ONE, "1", "2", "3")


@pytest.mark.parametrize(
    ("policy", "delivered_by"), [("all", ["3", "1", "2"]), ("any", ["3"]), ("first", ["3", "1"]), ("last", ["1", "3"])]
)
async def test_the_policy_says_whose_word_delivers(pool: Pool, policy: str, delivered_by: list[str]) -> None:
    id = await three(pool)
    for key in delivered_by:
        assert await status_of(pool, id) == "sent"
        await receive(pool, receipt(key), policy=policy)
    assert await status_of(pool, id) == "delivered"
    assert await events_of(pool, id) == ["message.delivered"]


@pytest.mark.parametrize("policy", ["all", "any", "first", "last"])
async def test_one_failed_part_fails_the_message_under_every_policy(pool: Pool, policy: str) -> None:
    id = await three(pool)
    await receive(pool, receipt("2", state=UNDELIVERED), policy=policy)
    assert await status_of(pool, id) == "undelivered"
    await receive(pool, receipt("1"), receipt("2"), receipt("3"), policy=policy)
    assert await events_of(pool, id) == ["message.failed"]


@pytest.mark.parametrize(("last", "wanted"), [(DELIVERED, "delivered"), (UNDELIVERED, "undelivered")])
async def test_parts_of_a_supplier_that_cuts_texts_itself(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, last: ReceiptState, wanted: str
) -> None:
    """It is given one message, and returns an id for each of its parts."""
    bench, actor = Bench(pool), await organization(pool)
    monkeypatch.setattr(bench.only, "parts", lambda submission: 1)
    ids = tuple(Part(number, f"v{number}", "0") for number in (1, 2, 3))
    bench.only.script = lambda submission: Outcome(Verdict.ACCEPTED, ids, "0", total=3)
    id = await message(pool, actor, text="x" * 400, segments=3)
    await bench.round()
    assert await status_of(pool, id) == "sent"
    for key, state in (("v3", DELIVERED), ("v2", DELIVERED), ("v1", last)):
        assert await status_of(pool, id) == "sent", "not before all of them are known"
        await receive(pool, receipt(key, state=state), supplier_id=bench.only_id)
    assert await status_of(pool, id) == wanted
    assert await pool.fetchval("SELECT count(*) FROM receipts WHERE message_id IS NULL") == 0


async def test_one_receipt_may_count_all_parts(pool: Pool) -> None:
    id = await three(pool)
    await receive(pool, receipt("3", submitted=3, delivered=2))
    assert await status_of(pool, id) == "sent"
    await receive(pool, receipt("1", submitted=3, delivered=3))
    assert await status_of(pool, id) == "delivered"


async def test_a_count_of_all_parts_survives_the_wait_for_the_answer(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: None
    id = await message(pool, await organization(pool), text="x" * 400, segments=3)
    await bench.round()
    await bench.receive(bench.only_id, receipt("3", submitted=3, delivered=3))
    bench.only.on_outcome(bench.only.submitted[0], accepted("1", "2", "3"))
    await bench.settle()
    assert await status_of(pool, id) == "delivered"


async def test_parts_in_one_batch_and_twice(pool: Pool) -> None:
    id = await three(pool)
    await receive(pool, *(receipt(key) for key in "123123"))
    assert await status_of(pool, id) == "delivered"
    assert await events_of(pool, id) == ["message.delivered"]


@pytest.mark.parametrize("together", [False, True])
async def test_a_part_that_expired_may_still_be_delivered(pool: Pool, together: bool) -> None:
    id = await three(pool)
    some = [receipt("1", state=EXPIRED), receipt("1"), receipt("2"), receipt("3")]
    for batch in [some] if together else [[one] for one in some]:
        await receive(pool, *batch)
    assert await status_of(pool, id) == "delivered"
    assert len(await events_of(pool, id)) == 1


async def test_parts_whose_receipts_come_to_two_workers_at_once_decide_together(pool: Pool) -> None:
    """Neither part decides alone, and neither transaction sees what the other has not committed."""
    id = await sent(pool, await organization(pool), ONE, "1", "2")
    async with pool.acquire() as conn, conn.transaction():
        await receipts.store(conn, [ReceivedReceipt(ONE, receipt("1"))], policies={})
        other = asyncio.create_task(receive(pool, receipt("2")))
        await blocked(pool)
    await other
    assert await status_of(pool, id) == "delivered"
    assert await events_of(pool, id) == ["message.delivered"]


async def test_early_receipts_of_parts_are_adopted(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: None
    id = await message(pool, await organization(pool), text="x" * 400, segments=3)
    await bench.round()
    await bench.receive(bench.only_id, receipt("2"), receipt("1"))
    bench.only.on_outcome(bench.only.submitted[0], accepted("1", "2", "3"))
    await bench.settle()
    assert await status_of(pool, id) == "sent"
    await bench.receive(bench.only_id, receipt("3"))
    assert await status_of(pool, id) == "delivered"


async def test_parts_whose_last_word_never_comes_are_taken_for_delivered(pool: Pool) -> None:
    actor = await organization(pool)
    old = timedelta(minutes=20)
    quiet = await sent(pool, actor, ONE, "a1", "a2", age=old)
    silent = await sent(pool, actor, ONE, "b1", "b2", age=old)
    failed = await sent(pool, actor, ONE, "c1", "c2", age=old)
    young = await sent(pool, actor, ONE, "d1", "d2")
    talking = await sent(pool, actor, ONE, "e1", "e2", "e3", age=old)
    await receive(pool, receipt("a1"), receipt("c1", state=UNDELIVERED), receipt("d1"))
    await age_receipts(pool, old)
    await receive(pool, receipt("e1"))
    assert await close_quiet(pool) == 1
    states = [await status_of(pool, id) for id in (quiet, silent, failed, young, talking)]
    assert states == ["delivered", "sent", "undelivered", "sent", "sent"]
    assert await events_of(pool, quiet) == ["message.delivered"]
    assert await close_quiet(pool) == 0


async def test_parts_that_wait_are_looked_at_in_steps(pool: Pool) -> None:
    """All messages of a supplier that delivers no receipts wait: reading them all took longer than a statement may, and
    then no message at all became delivered."""
    actor = await organization(pool)
    old = timedelta(minutes=20)
    for n in range(6):
        await sent(pool, actor, ONE, f"{n}a", f"{n}b", age=timedelta(minutes=40 - n))
    late = await sent(pool, actor, ONE, "1", "2", age=old)
    await receive(pool, receipt("1"))
    await age_receipts(pool, old)
    # Each step examines two messages, and parts of the same second stay together.
    assert [await close_quiet(pool, most=1, limit=3) for _ in range(4)] == [0, 0, 0, 1]
    assert await status_of(pool, late) == "delivered"
    early = await pool.fetchval("SELECT message_id FROM sms_parts WHERE id_key = '0a'")
    await receive(pool, receipt("0a"))
    await age_receipts(pool, old)
    assert await close_quiet(pool, most=1, limit=3) == 1  # after the last one comes the first one again
    assert await status_of(pool, early) == "delivered"


# -- never -------------------------------------------------------------------------------------------------------------

DEADLINE, SPAN = timedelta(hours=72), timedelta(hours=1)


async def close_silent(pool: Pool, *, most: int = silence.MOST, limit: int = silence.STEP) -> int:
    async with pool.acquire() as conn:
        return await silence.close_silent(conn, deadline=DEADLINE, span=SPAN, most=most, limit=limit)


async def test_a_message_of_which_nothing_is_heard_becomes_unknown_without_an_event(pool: Pool) -> None:
    actor = await organization(pool)
    overdue = await sent(pool, actor, ONE, "1", age=timedelta(hours=73))
    several = await sent(pool, actor, ONE, "2", "3", age=timedelta(hours=80))
    done = await sent(pool, actor, ONE, "4", age=timedelta(hours=75), status="delivered")
    waiting = await sent(pool, actor, ONE, "5", age=timedelta(hours=71))
    async with pool.acquire() as conn:
        await timers.ensure(conn, "silent")
    assert await close_silent(pool) == 2
    states = [await status_of(pool, id) for id in (overdue, several, done, waiting)]
    assert states == ["unknown", "unknown", "delivered", "sent"]
    ends = await pool.fetch("SELECT failure_code, failed_at, ended_at FROM messages WHERE status = 'unknown'")
    assert [(row["failure_code"], row["failed_at"], row["ended_at"] is None) for row in ends] == [
        ("no_receipt", None, False)
    ] * 2
    assert await pool.fetchval("SELECT count(*) FROM events") == 0
    await receive(pool, receipt("1"))
    assert await events_of(pool, overdue) == ["message.delivered"]
    assert await pool.fetchval("SELECT failure_code FROM messages WHERE id = $1", overdue) is None


async def test_no_message_is_passed_over_while_no_worker_runs(pool: Pool) -> None:
    actor = await organization(pool)
    ids = [await sent(pool, actor, ONE, str(n), age=timedelta(hours=100, minutes=-7 * n)) for n in range(40)]
    await pool.execute("INSERT INTO timers VALUES ('silent', now(), now() - interval '101 hours')")
    closed = [await close_silent(pool, most=1) for _ in range(20)]
    assert max(closed) <= 10  # an hour of messages at a time
    # One run catches up, after two weeks as well.
    await pool.execute("UPDATE timers SET done_until = done_until - interval '14 days'")
    assert sum(closed) + await close_silent(pool) == 40
    assert {await status_of(pool, id) for id in ids} == {"unknown"}


async def test_an_hour_of_messages_without_receipts_is_closed_in_steps(pool: Pool) -> None:
    """A supplier that delivers no receipts may have accepted more in that hour than one statement can move."""
    actor = await organization(pool)
    ids = [await sent(pool, actor, ONE, str(n), age=timedelta(hours=73, seconds=n)) for n in range(10)]
    last = await sent(pool, actor, ONE, "last", age=timedelta(hours=72, minutes=1))
    await pool.execute("INSERT INTO timers VALUES ('silent', now(), now() - interval '73 hours 30 minutes')")
    steps = [await close_silent(pool, most=1, limit=3) for _ in range(3)]
    assert max(steps) == 3  # what a step leaves is not passed over
    assert sum(steps) + await close_silent(pool, limit=3) == 11
    assert {await status_of(pool, id) for id in (*ids, last)} == {"unknown"}


# -- the batches -------------------------------------------------------------------------------------------------------


async def test_receipts_return_only_after_their_commit(pool: Pool) -> None:
    results = Bench(pool).results
    id = await sent(pool, await organization(pool), ONE, "7")
    await results.report([ReceivedReceipt(ONE, receipt("7"))])
    assert await status_of(pool, id) == "delivered"


async def test_a_receipt_that_cannot_be_stored_sinks_no_other(pool: Pool) -> None:
    results = Bench(pool).results
    actor = await organization(pool)
    ids = [await sent(pool, actor, ONE, str(n)) for n in range(5)]
    bad = Receipt(("9",), DELIVERED, "1", "2", "no bytes")  # type: ignore[arg-type]
    outcomes = await asyncio.gather(
        *(results.report([ReceivedReceipt(ONE, one)]) for one in (*(receipt(str(n)) for n in range(5)), bad)),
        return_exceptions=True,
    )
    assert [isinstance(one, Exception) for one in outcomes] == [False] * 5 + [True]
    assert {await status_of(pool, id) for id in ids} == {"delivered"}


async def test_a_receipt_waits_for_the_answers_before_it_and_for_no_others(pool: Pool) -> None:
    bench = Bench(pool)
    bench.only.script = lambda submission: None
    actor = await organization(pool)
    earlier = await sent(pool, actor, bench.only_id, "7")
    later = await message(pool, actor)
    await bench.round()
    async with bench.results.writing:  # answers cannot be recorded
        await asyncio.wait_for(bench.receive(bench.only_id, receipt("7")), 120)
        assert await status_of(pool, earlier) == "delivered"
        bench.answer(bench.only.submitted[0], accepted("8"))
        receiving = asyncio.create_task(bench.receive(bench.only_id, receipt("8")))
        await pool.fetchval("SELECT 1")
        assert not receiving.done()
        assert await status_of(pool, later) == "sending"
    await receiving
    assert await status_of(pool, later) == "delivered"
    assert await pool.fetchval("SELECT count(*) FROM receipts") == 0


class Telling(SmsChannel):
    """Reports when a receipt was found to be ahead of its response."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, dict, grace=90.0)
        self.met = asyncio.Event()

    async def write(self, *batch: Any, alone: bool) -> int:
        try:
            return await super().write(*batch, alone=alone)
        except UnmatchedReports:
            self.met.set()
            raise


async def test_a_receipt_that_fits_nothing_yet_is_stored_while_no_answer_is_recorded(pool: Pool) -> None:
    """Otherwise each might miss the other, and the message would wait for the next search."""
    bench, channel = Bench(pool), Telling(pool)
    bench.results = Results(pool, channel)
    bench.restart()
    bench.only.script = lambda submission: None
    id = await message(pool, await organization(pool))
    await bench.round()
    async with bench.results.writing:
        ahead = asyncio.create_task(bench.receive(bench.only_id, receipt("8")))
        await asyncio.wait_for(channel.met.wait(), 120)
        bench.answer(bench.only.submitted[0], accepted("8"))
        assert await pool.fetchval("SELECT count(*) FROM receipts") == 0
        assert not ahead.done()
    await ahead
    await bench.settle()
    assert await status_of(pool, id) == "delivered"


async def test_any_order_of_answers_and_receipts_ends_the_same(pool: Pool) -> None:
    """Responses and receipts of 60 messages from three sources, shuffled, in arbitrary batches."""
    chance = random.Random(11)
    row = supplier()
    bench = Bench(pool, row)
    bench.only.script = lambda submission: None
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(60)]
    await bench.round()
    steps: list[tuple[str, int]] = [(what, n) for n in range(60) for what in ("answer", "receipt", "again")]
    chance.shuffle(steps)

    async def play(what: str, n: int) -> None:
        submission = bench.only.submitted[n]
        key = f"k{submission.message_id}"
        if what == "answer":
            bench.only.on_outcome(submission, Outcome(Verdict.ACCEPTED, (Part(1, key),)))
        else:
            await bench.receive(row.id, receipt(key))
        await asyncio.sleep(chance.random() / 200)

    for start in range(0, len(steps), 30):
        await asyncio.gather(*(play(*step) for step in steps[start : start + 30]))
    await bench.settle()
    assert {await status_of(pool, id) for id in ids} == {"delivered"}
    assert await pool.fetchval("SELECT count(*) FROM events") == 60
    assert await pool.fetchval("SELECT count(*) FROM receipts WHERE message_id IS NULL") == 0
