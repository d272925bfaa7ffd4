"""Messages from handsets on a real database: their organization, their text, and the effects of keywords, once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.consent import optouts
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.inbox import threads
from heliograph.queue import timers
from heliograph.queue.backlog import Backlog
from heliograph.retention import forgetting
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.received import at_rest, earlier, inbound, inbox, keyword_effects, replies, unassigned
from heliograph.suppliers.contract import Inbound
from heliograph.suppliers.smpp.codec import texts as forms
from tests.rules.dispatching import Bench
from tests.rules.factories import TO, check_books, endpoint, key, organization, send, sender

NUMBER = "258800001234"
ONE = UUID(int=101)


@pytest.fixture(autouse=True)
async def timer(pool: Pool) -> None:
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)


@pytest.fixture
async def acme(pool: Pool) -> Actor:
    """An organization with a number."""
    actor = await organization(pool)
    await sender(pool, actor, NUMBER)
    return actor


def handset_message(
    text: str = "hello",
    *,
    by: str = TO,
    to: str = NUMBER,
    body: bytes | None = None,
    data_coding: int = 0,
    locking: int = 0,
    single: int = 0,
    **values: Any,
) -> Inbound:
    """As received over SMPP, before parts are joined: `body` in a coding, or the text in the default alphabet."""
    return Inbound(
        **{
            "sender": by.removeprefix("+"),
            "recipient": to,
            "text": None,
            "body": text.encode() if body is None else body,
            "form": forms.form(data_coding, locking, single),
            "raw": b"raw " + text.encode(),
            **values,
        }
    )


def part(number: int, text: str, *, total: int = 3, reference: int = 7, **values: Any) -> Inbound:
    return handset_message(text, concatenation=(reference, total, number), **values)


async def receive(pool: Pool, *some: Inbound, supplier_id: UUID = ONE, answered: bool = True) -> list[UUID]:
    """Store messages as a worker does, and acknowledge them."""
    async with pool.acquire() as conn:
        ids = await inbound.store(conn, supplier_id, some)
        if answered:
            await inbound.acknowledged(conn, ids)
    return ids


async def work(pool: Pool) -> inbox.BatchResult:
    async with pool.acquire() as conn:
        return await inbox.process_due(conn)


async def receive_and_process(pool: Pool, *some: Inbound, **values: Any) -> inbox.BatchResult:
    """Store messages and process them."""
    await receive(pool, *some, **values)
    return await work(pool)


async def reply(pool: Pool) -> list[tuple[str, str]]:
    """Accept the replies that are due; returns all replies so far as (recipient, text), in order."""
    await replies.send(pool, Acceptor(pool), Backlog(), seconds=60)
    rows = await pool.fetch(
        "SELECT recipient, body FROM messages m"
        " WHERE m.id IN (SELECT message_id FROM automatic_replies) ORDER BY m.accepted_at, m.id"
    )
    return [tuple(row) for row in rows]


async def replied(pool: Pool) -> int:
    """How many messages were accepted."""
    await replies.send(pool, Acceptor(pool), Backlog(), seconds=60)
    number: int = await pool.fetchval("SELECT count(*) FROM messages")
    return number


async def event_data(pool: Pool, kind: str = "message.received") -> list[Any]:
    """`data` of the events of a kind, in order."""
    rows = await pool.fetch("SELECT data FROM events WHERE kind = $1 ORDER BY id", kind)
    (name,) = ["message"] if kind.startswith("message") else ["contact"]
    return [msgspec.json.decode(row["data"])[name] for row in rows]


async def texts(pool: Pool) -> list[str]:
    return [one["text"] for one in await event_data(pool)]


async def states(pool: Pool) -> list[str]:
    return [row[0] for row in await pool.fetch("SELECT state FROM inbound_messages ORDER BY id")]


async def age(pool: Pool, by: timedelta) -> None:
    """Move everything received into the past."""
    await pool.execute("UPDATE inbound_messages SET received_at = received_at - $1::interval", by)
    await pool.execute("UPDATE inbound_messages SET due_at = due_at - $1::interval WHERE due_at IS NOT NULL", by)
    await pool.execute("UPDATE automatic_replies SET replied_at = replied_at - $1::interval", by)


async def opted_out(pool: Pool, actor: Actor, phone: str = TO) -> bool:
    async with pool.acquire() as conn:
        return bool(await optouts.current(conn, {(actor.organization_id, phone)}))


# -- one message -------------------------------------------------------------------------------------------------------


async def test_a_message_is_its_organizations_with_text_and_event(pool: Pool, acme: Actor) -> None:
    await endpoint(pool, acme, "message.received")
    (id,) = await receive(pool, handset_message("Hello there"))
    assert await work(pool) == inbox.BatchResult(rows=1, deliveries=1)
    row = await pool.fetchrow("SELECT * FROM received_messages")
    assert row is not None
    assert (row["organization_id"], row["id"], row["sender"], row["recipient"]) == (
        acme.organization_id,
        id,
        TO,
        NUMBER,
    )
    (event,) = await event_data(pool)
    at = event.pop("receivedAt")
    assert at.endswith("Z")
    assert event == {
        "id": str(id),
        "channel": "sms",
        "from": TO,
        "to": NUMBER,
        "text": "Hello there",
        "truncated": False,
        "segments": 1,
        "missingSegments": 0,
        "keyword": None,
    }
    assert await pool.fetchval("SELECT body FROM received_messages WHERE id = $1", id) == "Hello there"
    assert await states(pool) == ["received"]
    assert await work(pool) == inbox.BatchResult()


async def test_who_wrote_before_the_clock_was_set_back_is_heard_again(pool: Pool, acme: Actor) -> None:
    """What they wrote afterwards was never unread, nor opened their conversation again, for as long as the clock had
    been ahead."""
    await receive_and_process(pool, handset_message("Hello"))
    ahead = uuid7_floor(now() + timedelta(days=1))
    await pool.execute("UPDATE inbox_threads SET message_id = $1, seen_id = $1, closed_at = now()", ahead)
    for text in ("Hello?", "Is anybody there?"):
        (id,) = await receive(pool, handset_message(text))
        await work(pool)
        async with pool.acquire() as conn:
            ((thread,), _) = await threads.list_page(conn, acme)
            assert (thread.message_id, thread.is_unread, thread.closed_at) == (id, True, None)
            await threads.see(conn, acme, id=thread.id, message_id=id)
            assert not (await threads.get(conn, acme, id=thread.id)).is_unread


@pytest.mark.parametrize(
    ("body", "coding", "text"),
    [
        (b"\x00\x1b\x65", 0, "@€"),
        ("Olá".encode("utf-16-be"), 8, "Olá"),
        ("😀".encode("utf-16-be"), 8, "😀"),
        ("çã".encode("latin-1"), 3, "çã"),
        (b"a\0b", 1, "a\ufffdb"),
        ("a\ud83d".encode("utf-16-be", "surrogatepass"), 8, "a\ufffd"),
        (b"\x01\x02", 4, None),
        (b"", 0, ""),
    ],
)
async def test_octets_become_text_by_their_coding(
    pool: Pool, acme: Actor, body: bytes, coding: int, text: str | None
) -> None:
    await receive_and_process(pool, handset_message(body=body, data_coding=coding))
    assert await texts(pool) == [text]


async def test_a_suppliers_own_alphabet_is_used(pool: Pool, acme: Actor) -> None:
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        """ VALUES ($1, 'one', 'smpp', '{"default_alphabet":"latin1"}', '', now(), now())""",
        ONE,
    )
    await receive_and_process(pool, handset_message(body="ação @".encode("latin-1")))
    assert await texts(pool) == ["ação @"]


@pytest.mark.parametrize(
    ("by", "to", "shown"),
    [
        ("258841234567", NUMBER, "+258841234567"),
        ("00258841234567", "00" + NUMBER, "+258841234567"),
        ("841", NUMBER, "841"),
        ("Bank", NUMBER, "Bank"),
        ("258841234567", "+" + NUMBER, "+258841234567"),
    ],
)
async def test_addresses_in_any_form(pool: Pool, acme: Actor, by: str, to: str, shown: str) -> None:
    await receive_and_process(pool, handset_message(by=by, to=to))
    assert [(one["from"], one["to"]) for one in await event_data(pool)] == [(shown, NUMBER)]


async def test_a_long_text_is_cut_in_its_event_and_kept_whole(pool: Pool, acme: Actor) -> None:
    text = "\n" * 5000
    await receive_and_process(pool, handset_message(body=text.encode("utf-16-be"), data_coding=8))
    (event,) = await event_data(pool)
    assert (len(event["text"]), event["truncated"]) == (3000, True)
    assert await pool.fetchval("SELECT max(octet_length(data)) FROM events") < 20_000
    assert await pool.fetchval("SELECT length(body) FROM received_messages") == 5000


async def test_what_is_for_nobody_or_for_several_waits_for_an_operator(pool: Pool, acme: Actor) -> None:
    other = await organization(pool)
    shared = "258800005555"
    await sender(pool, acme, shared)
    await sender(pool, other, shared)
    await sender(pool, acme, "258800006666", status="pending")
    await receive_and_process(
        pool,
        handset_message("a", to="258899999999"),
        handset_message("b", to=shared),
        handset_message("c", to="258800006666"),
        handset_message("d"),
    )
    assert await states(pool) == ["unassigned", "unassigned", "unassigned", "received"]
    assert await texts(pool) == ["d"]
    assert not await opted_out(pool, acme)
    async with pool.acquire() as conn:
        assert len(await inbound.unassigned(conn, limit=10)) == 3
        await pool.execute("UPDATE sender_ids SET status = 'approved' WHERE value = '258800006666'")
        await pool.execute(
            "UPDATE sender_ids SET status = 'suspended' WHERE value = $1 AND organization_id = $2",
            shared,
            acme.organization_id,
        )
        assert await inbound.retry(conn) == 3
        await work(pool)
        assert [one.recipient for one in await inbound.unassigned(conn, limit=10)] == ["258899999999"]
        assert [one.text for one in await inbound.received(conn, organization_id=acme.organization_id, limit=9)] == [
            "d",
            "c",
        ]
    async with pool.acquire() as conn:
        (one,) = await inbound.received(conn, organization_id=other.organization_id, limit=9)
        assert one.text == "b"


async def test_a_suspended_organization_is_still_told(pool: Pool, acme: Actor) -> None:
    await pool.execute("UPDATE organizations SET state = 'suspended' WHERE id = $1", acme.organization_id)
    await receive_and_process(pool, handset_message("STOP"))
    assert await opted_out(pool, acme)
    assert await texts(pool) == ["STOP"]
    assert await replied(pool) == 0
    assert await pool.fetchval("SELECT refusal FROM automatic_replies") == "organization_suspended"


# -- repetitions -------------------------------------------------------------------------------------------------------


async def test_the_same_again_counts_if_our_answer_had_been_written(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, handset_message("YES"))
    await receive_and_process(pool, handset_message("YES"))
    assert await texts(pool) == ["YES", "YES"]


@pytest.mark.parametrize("together", [False, True])
async def test_the_same_again_is_a_repetition_if_our_answer_was_lost(pool: Pool, acme: Actor, together: bool) -> None:
    if together:
        await receive_and_process(pool, handset_message("YES"), handset_message("YES"), answered=False)
    else:
        await receive_and_process(pool, handset_message("YES"), answered=False)
        await receive_and_process(pool, handset_message("YES"))
    assert await texts(pool) == ["YES"]
    assert await states(pool) == ["received", "duplicate"]
    await receive_and_process(
        pool,
        handset_message("YES", by="+258840000000"),
        handset_message("NO"),
        handset_message("YES", to=NUMBER, data_coding=1),
    )
    assert len(await texts(pool)) == 4
    await age(pool, timedelta(minutes=11))
    await receive_and_process(pool, handset_message("YES"))
    assert len(await texts(pool)) == 5


async def test_an_id_that_a_supplier_gave_before_is_a_repetition_only_from_the_same_handset(
    pool: Pool, acme: Actor
) -> None:
    await receive_and_process(pool, handset_message("hello", key="1"))
    await receive_and_process(pool, handset_message("hello", key="1"))
    assert await texts(pool) == ["hello"]
    # It counts from 1 again.
    await receive_and_process(
        pool,
        handset_message("STOP", by="+258840000001", key="1"),
        handset_message("to another number", to="41001", key="1"),
    )
    assert await opted_out(pool, acme, "+258840000001")
    assert len(await states(pool)) == 3


async def test_parts_that_a_supplier_gives_one_id_make_one_message(pool: Pool, acme: Actor) -> None:
    await receive_and_process(
        pool, part(1, "ST", total=2, key="7"), part(1, "ST", total=2, key="7"), part(2, "OP", total=2, key="7")
    )
    assert await texts(pool) == ["STOP"]
    assert await opted_out(pool, acme)


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2), (2, 3, 1)])
@pytest.mark.parametrize("together", [False, True])
async def test_parts_in_any_order_make_one_message(
    pool: Pool, acme: Actor, order: tuple[int, ...], together: bool
) -> None:
    some = [part(number, "-ABC"[number]) for number in order]
    for batch in [some] if together else [[one] for one in some]:
        await receive_and_process(pool, *batch)
    (event,) = await event_data(pool)
    assert (event["text"], event["segments"], event["missingSegments"]) == ("ABC", 3, 0)
    assert await states(pool) == ["received"] * 3
    assert await pool.fetchval("SELECT count(*) FROM received_messages") == 1


async def test_parts_of_many_handsets_do_not_mix(pool: Pool, acme: Actor) -> None:
    chance = random.Random(5)
    some = [
        part(number, f"{n:02}{number}", by=f"+25884{n:07}", total=2 + n % 3, reference=n % 2)
        for n in range(30)
        for number in range(1, 3 + n % 3)
    ]
    chance.shuffle(some)
    for start in range(0, len(some), 13):
        await receive_and_process(pool, *some[start : start + 13])
    found = {one["from"]: one["text"] for one in await event_data(pool)}
    assert found == {f"+25884{n:07}": "".join(f"{n:02}{number}" for number in range(1, 3 + n % 3)) for n in range(30)}


async def test_a_character_cut_in_two_is_whole_again(pool: Pool, acme: Actor) -> None:
    octets = "ж😀ж".encode("utf-16-be")
    await receive_and_process(
        pool, *(part(n, "", body=octets[4 * n - 4 : 4 * n], total=2, data_coding=8) for n in (1, 2))
    )
    assert await texts(pool) == ["ж😀ж"]


async def test_what_has_come_is_shown_after_ten_minutes_and_the_rest_completes_it(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, part(1, "A"), part(4, "D", total=5), part(3, "C"))
    await receive_and_process(pool, part(1, "x", total=5), part(5, "y", total=5))
    assert await texts(pool) == []
    await age(pool, timedelta(minutes=9, seconds=50))
    assert (await work(pool)).rows == 0
    await age(pool, timedelta(seconds=11))
    await work(pool)
    found = await event_data(pool)
    assert [(one["text"], one["missingSegments"]) for one in found] == [("A [...] C", 1), ("x [...] Dy", 2)]
    assert await work(pool) == inbox.BatchResult()

    await age(pool, timedelta(hours=20))
    await receive_and_process(pool, part(2, "B"), part(2, "2", total=5))
    last = (await event_data(pool))[2:]
    assert [(one["text"], one["missingSegments"], one["id"]) for one in last] == [("ABC", 0, found[0]["id"])]
    async with pool.acquire() as conn:
        listed = await inbound.received(conn, organization_id=acme.organization_id, limit=9)
    assert sorted((one.text, one.missing) for one in listed) == [("ABC", 0), ("x2 [...] Dy", 1)]
    assert await pool.fetchval("SELECT count(*) FROM received_messages") == 2


async def test_a_part_that_comes_a_day_late_is_a_message_of_its_own(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, part(1, "A", total=2))
    await age(pool, timedelta(hours=25))
    await work(pool)
    await receive_and_process(pool, part(2, "B", total=2))
    await age(pool, timedelta(minutes=11))
    await work(pool)
    assert await texts(pool) == ["A [...]", "[...] B"]


async def test_a_part_twice_is_one_and_a_reference_that_comes_round_is_another_message(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, part(1, "A", total=2), part(1, "A", total=2))
    await receive_and_process(pool, part(2, "B", total=2))
    await receive_and_process(pool, part(2, "B", total=2))
    assert await texts(pool) == ["AB"]
    assert (await states(pool)).count("duplicate") == 2
    await receive_and_process(pool, part(1, "C", total=2), part(2, "D", total=2))
    assert await texts(pool) == ["AB", "CD"]
    await age(pool, timedelta(minutes=11))
    await receive_and_process(pool, part(1, "C", total=2), part(2, "D", total=2))
    assert await texts(pool) == ["AB", "CD", "CD"]


async def test_any_order_and_any_repetition_of_parts_shows_each_text_once(pool: Pool, acme: Actor) -> None:
    chance = random.Random(3)
    for reference in range(12):
        total = chance.randint(2, 5)
        some = [part(n, f"{reference}.{n} ", total=total, reference=reference) for n in range(1, total + 1)]
        some += chance.sample(some, chance.randint(0, total))
        chance.shuffle(some)
        while some:
            size = chance.randint(1, 3)
            await receive_and_process(pool, *some[:size])
            some = some[size:]
    assert len(await texts(pool)) == 12
    assert len(set(await texts(pool))) == 12


# -- words -------------------------------------------------------------------------------------------------------------


async def test_stop_opts_out_with_one_event_and_one_confirmation(pool: Pool, acme: Actor) -> None:
    await endpoint(pool, acme, "message.received", "contact.opted_out")
    (id,) = await receive(pool, handset_message("Stop!"))
    assert await work(pool) == inbox.BatchResult(rows=1, deliveries=2, replies=1)
    (contact,) = await event_data(pool, "contact.opted_out")
    at = contact.pop("optedOutAt")
    assert contact == {"phone": TO, "source": "keyword", "keyword": "stop", "messageId": str(id)}
    ((text, keyword),) = [(one["text"], one["keyword"]) for one in await event_data(pool)]
    assert (text, keyword) == ("Stop!", "stop")
    row = await pool.fetchrow("SELECT * FROM opt_outs")
    assert row is not None
    assert (row["recipient"], row["source"], row["keyword"], row["message_id"]) == (TO, "keyword", "stop", id)
    assert at
    ((to, text),) = await reply(pool)
    assert (to, text.startswith("Acme ")) == (TO, True)
    with pytest.raises(RecipientOptedOut):
        await Acceptor(pool).accept(send(acme))
    await check_books(pool, [acme.organization_id])
    for _ in range(3):
        await receive_and_process(pool, handset_message("STOP"))
    assert await replied(pool) == 1
    assert len(await event_data(pool, "contact.opted_out")) == 1


async def test_the_confirmation_goes_out_though_the_number_opted_out_and_nothing_else_does(
    pool: Pool, acme: Actor
) -> None:
    acceptor = Acceptor(pool)
    before = await acceptor.accept(send(acme, "still on its way"))
    await receive_and_process(pool, handset_message("STOP"))
    await reply(pool)
    bench = Bench(pool)
    await bench.round()
    (out,) = bench.only.submitted
    assert out.sender == NUMBER
    assert b"Reply START" in out.segments[0]
    waiting = msgspec.json.decode(before.body)["message"]["id"]
    row = await pool.fetchrow("SELECT status, failure_code FROM messages WHERE id = $1", UUID(waiting))
    assert row is not None
    assert tuple(row) == ("rejected", "opted_out")
    with pytest.raises(RecipientOptedOut):
        await acceptor.accept(send(acme, "again"))


async def test_start_lifts_it_and_says_so(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, handset_message("STOP"))
    await receive_and_process(pool, handset_message("start"))
    assert not await opted_out(pool, acme)
    assert ": you will get messages" in [text for _, text in await reply(pool)][-1]
    assert (await Acceptor(pool).accept(send(acme))).status == 202
    await receive_and_process(pool, handset_message("START"))
    assert await replied(pool) == 3  # two replies and the message between


async def test_a_start_that_waited_lifts_nothing_that_is_later(pool: Pool, acme: Actor) -> None:
    """Workers were down, or its number had no owner. Meanwhile they told the operator, for example."""
    await receive(pool, handset_message("START"))
    await age(pool, timedelta(minutes=5))
    async with pool.acquire() as conn:
        await optouts.add(conn, acme, phone=TO)
    await work(pool)
    assert await opted_out(pool, acme)
    assert await replied(pool) == 0
    await receive_and_process(pool, handset_message("START"))
    assert not await opted_out(pool, acme)
    assert await replied(pool) == 1


async def test_yes_means_start_only_to_somebody_who_opted_out(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, handset_message("YES"))
    await receive_and_process(pool, handset_message("STOP"))
    await receive_and_process(pool, handset_message("Yes"))
    assert [one["keyword"] for one in await event_data(pool)] == [None, "stop", "start"]
    assert not await opted_out(pool, acme)


async def test_words_of_one_batch_hold_in_their_order(pool: Pool, acme: Actor) -> None:
    other = "+258840000009"
    await receive_and_process(
        pool,
        handset_message("STOP"),
        handset_message("START", by=other),
        handset_message("START"),
        handset_message("STOP", by=other),
        handset_message("stop"),
    )
    assert await opted_out(pool, acme)
    assert await opted_out(pool, acme, other)
    assert len(await event_data(pool, "contact.opted_out")) == 3
    assert await replied(pool) == 3  # stop and start to the one, stop to the other


async def test_many_words_of_one_person_cost_no_look_at_everybody_else(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each of the words, everybody in the batch was looked up."""
    looked: list[int] = []
    current = optouts.current

    async def counted(conn: Any, pairs: Collection[optouts.Pair]) -> set[optouts.Pair]:
        looked.append(len(pairs))
        return await current(conn, pairs)

    monkeypatch.setattr(optouts, "current", counted)
    others = [handset_message("STOP", by=f"+2588400001{n:02}") for n in range(20)]
    await receive_and_process(pool, *others, *[handset_message(word) for word in ("STOP", "START") * 10])
    assert not await opted_out(pool, acme)
    assert sum(looked) < 4 * 40


async def test_help_is_answered_and_changes_nothing(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, handset_message("HELP"))
    await receive_and_process(pool, handset_message("INFO"))
    assert len(await reply(pool)) == 1
    assert not await opted_out(pool, acme)
    await receive_and_process(pool, handset_message("STOP"))
    await age(pool, timedelta(hours=25))
    await receive_and_process(pool, handset_message("help"))
    assert await replied(pool) == 3
    assert await opted_out(pool, acme)


async def test_a_machine_that_answers_everything_is_answered_three_times_a_day(pool: Pool, acme: Actor) -> None:
    for _ in range(5):
        for word in ("STOP", "START", "HELP"):
            await receive_and_process(pool, handset_message(word))
    assert await replied(pool) == 3
    await age(pool, timedelta(hours=24))
    await receive_and_process(pool, handset_message("HELP"))
    assert await replied(pool) == 4


async def test_a_reply_from_before_the_clock_was_set_back_forbids_no_other(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, handset_message("HELP"))
    assert await replied(pool) == 1
    await pool.execute("UPDATE automatic_replies SET replied_at = replied_at + interval '3 days'")
    await receive_and_process(pool, handset_message("INFO"))
    assert await replied(pool) == 2


async def test_an_organizations_own_words_and_texts(pool: Pool, acme: Actor) -> None:
    await pool.execute(
        "UPDATE organizations SET opt_out_words = '{ARRÊT,No More}', stop_reply = 'Adieu.', start_reply = ''"
        " WHERE id = $1",
        acme.organization_id,
    )
    await receive_and_process(
        pool,
        handset_message(body="Arrêt".encode("utf-16-be"), data_coding=8),
        handset_message("no more.", by="+258840000009"),
    )
    assert [one["keyword"] for one in await event_data(pool, "contact.opted_out")] == ["arret", "no more"]
    await receive_and_process(pool, handset_message("START"))
    assert await reply(pool) == [(TO, "Adieu."), ("+258840000009", "Adieu.")]
    other = await organization(pool)
    await sender(pool, other, "258800007777")
    await receive_and_process(pool, handset_message("no more", to="258800007777"))
    assert not await opted_out(pool, other)


async def test_the_usual_replies_are_in_the_language_that_was_chosen(pool: Pool, acme: Actor) -> None:
    assert set(replies.TEXTS) == set(organizations.REPLY_LANGUAGES)
    await pool.execute("UPDATE organizations SET name = 'Acme', country = 'MZ' WHERE id = $1", acme.organization_id)
    await receive_and_process(pool, handset_message("STOP"))
    assert len(await reply(pool)) == 1
    async with pool.acquire() as conn:
        await organizations.configure(conn, id=acme.organization_id, reply_language="fr")
    await receive_and_process(pool, handset_message("STOP", by="+258840000009"))
    assert [text.split(".")[0] for _, text in await reply(pool)] == [
        "Acme: deixa de receber mensagens nossas",
        "Acme: vous ne recevrez plus nos messages",
    ]


async def test_it_is_one_organizations_matter(pool: Pool, acme: Actor) -> None:
    other = await organization(pool)
    await receive_and_process(pool, handset_message("STOP"))
    assert (await Acceptor(pool).accept(send(other))).status == 202


async def test_no_reply_where_the_supplier_answers_itself(pool: Pool, acme: Actor) -> None:
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        """ VALUES ($1, 'one', 'smpp', '{"handles_stop":true}', '', now(), now())""",
        ONE,
    )
    await receive_and_process(pool, handset_message("STOP"))
    assert await opted_out(pool, acme)
    assert await replied(pool) == 0


async def test_what_the_supplier_took_for_a_stop_is_one(pool: Pool, acme: Actor) -> None:
    """Its account has words of its own: they opted nobody out until the next message was refused there."""
    (message,) = await receive(pool, handset_message("Sluta", asked="stop"))
    await work(pool)
    assert await opted_out(pool, acme)
    row = await pool.fetchrow("SELECT keyword, body FROM received_messages WHERE id = $1", message)
    assert row is not None
    assert tuple(row) == ("stop", "Sluta")
    assert await replied(pool) == 0, "it has answered"
    await receive_and_process(pool, handset_message("Börja", asked="start"))
    assert not await opted_out(pool, acme)
    assert [one["keyword"] for one in await event_data(pool)] == ["stop", "start"]
    # What is a STOP here stays one, whatever it is there; a word that needs an answer here does not need one there.
    await receive_and_process(pool, handset_message("STOP", asked="help"))
    assert await opted_out(pool, acme)
    await receive_and_process(pool, handset_message("START"), handset_message("SAIR", asked="stop"))
    assert await opted_out(pool, acme)


async def test_an_old_word_counts_without_a_reply(pool: Pool, acme: Actor) -> None:
    await receive(pool, handset_message("STOP"))
    await age(pool, timedelta(hours=2))
    await work(pool)
    assert await opted_out(pool, acme)
    assert await replied(pool) == 0


async def test_without_quota_the_opt_out_stands_and_the_reply_is_refused(pool: Pool) -> None:
    actor = await organization(pool, quota=0)
    await sender(pool, actor, NUMBER)
    await receive_and_process(pool, handset_message("STOP"))
    assert await replied(pool) == 0
    assert await opted_out(pool, actor)
    assert await pool.fetchval("SELECT refusal FROM automatic_replies") == "quota_exceeded"
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0


async def test_a_word_from_no_number_and_a_word_that_is_not_whole_do_nothing(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, handset_message("STOP", by="841"), part(1, "STOP", total=2))
    await age(pool, timedelta(minutes=11))
    await work(pool)
    assert [one["keyword"] for one in await event_data(pool)] == [None, None]
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 0


async def test_a_word_in_two_parts_is_a_word(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, part(1, "ST", total=2), part(2, "OP", total=2))
    assert await opted_out(pool, acme)


# -- interruptions -----------------------------------------------------------------------------------------------------


async def test_a_reply_whose_end_was_lost_is_accepted_once(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, handset_message("STOP"))
    acceptor = Acceptor(pool)
    row = await pool.fetchrow("SELECT * FROM queue WHERE kind = 'reply'")
    assert row is not None
    await replies.send(pool, acceptor, Backlog(), seconds=60)
    await pool.execute(
        "INSERT INTO queue (kind, line, organization_id, due_at, id) VALUES ('reply', $1, $2, now(), $3)",
        row["line"],
        row["organization_id"],
        row["id"],
    )
    assert await replies.send(pool, acceptor, Backlog(), seconds=60) == 1
    assert await pool.fetchval("SELECT count(*) FROM messages") == 1
    await check_books(pool, [acme.organization_id])


async def test_workers_at_once_do_everything_once(pool: Pool, acme: Actor) -> None:
    some = [handset_message("STOP", by=f"+25884{n:07}") for n in range(40)]
    some += [part(n, str(n), by=f"+25885{m:07}", total=2) for m in range(20) for n in (1, 2)]
    random.Random(1).shuffle(some)

    async def worker() -> None:
        async with asyncio.timeout(120):
            while await pool.fetchval("SELECT EXISTS (SELECT FROM inbound_messages WHERE state = 'new')"):
                async with pool.acquire() as conn:
                    await inbox.process_due(conn, limit=7)

    await receive(pool, *some)
    await asyncio.gather(*(worker() for _ in range(3)))
    assert len(await event_data(pool)) == 60
    assert len(await event_data(pool, "contact.opted_out")) == 40
    acceptor = Acceptor(pool)
    while sum(await asyncio.gather(*(replies.send(pool, acceptor, Backlog(), seconds=60, limit=9) for _ in range(3)))):
        pass
    assert await pool.fetchval("SELECT count(*) FROM messages") == 40


async def test_a_batch_that_fails_leaves_nothing_behind(
    pool: Pool, acme: Actor, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    await receive(pool, handset_message("STOP"))
    await as_owner("ALTER TABLE events RENAME TO elsewhere")
    with pytest.raises(Exception, match="events"):
        await work(pool)
    await as_owner("ALTER TABLE elsewhere RENAME TO events")
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 0
    await work(pool)
    assert await opted_out(pool, acme)


# -- operators, retention ----------------------------------------------------------------------------------------------


async def test_operators_add_and_remove(pool: Pool, acme: Actor) -> None:
    async with pool.acquire() as conn:
        made = await optouts.add(conn, acme, phone="00258 84 123 4567")
        assert (made.recipient, made.source) == (TO, "operator")
        assert await optouts.add(conn, acme, phone=TO) == made
        assert [one for one, _ in await optouts.list_page(conn, acme, limit=2)] == [made]
        with pytest.raises(RecipientOptedOut):
            await Acceptor(pool).accept(send(acme))
        await optouts.remove(conn, acme, phone=TO)
        with pytest.raises(optouts.NotFound):
            await optouts.remove(conn, acme, phone=TO)
        with pytest.raises(optouts.Invalid):
            await optouts.add(conn, acme, phone="841")
    assert len(await event_data(pool, "contact.opted_out")) == 1
    assert (await Acceptor(pool).accept(send(acme, key_name="k", key_hash=key("k")))).status == 202


async def test_what_was_said_is_forgotten_everywhere(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, handset_message('said "text":"here"'), handset_message("STOP"))
    settings = Settings(secret_key="a secret key for tests, long enough", text_retention_days=30)

    async def forget() -> None:
        async with pool.acquire() as conn:
            await forgetting.forget(conn, settings)

    await forget()
    assert await texts(pool) == ['said "text":"here"', "STOP"]
    # Ids tell the time, so old rows are made by giving rows old ids.
    old = "overlay({0}::text placing '01900000-0000' from 1 for 13)::uuid"
    for table, column in (
        ("events", "id"),
        ("inbound_messages", "id"),
        ("received_messages", "id"),
    ):
        await pool.execute(f"UPDATE {table} SET {column} = {old.format(column)}")
    await pool.execute("UPDATE automatic_replies SET replied_at = now() - interval '31 days'")
    # Sweeps continue where the last one ended, and only this test stores anything after that.
    await pool.execute("DELETE FROM retention_places")
    await forget()
    assert await texts(pool) == [None, None]
    assert [one["from"] for one in await event_data(pool)] == [TO, TO]
    for table in ("inbound_messages", "automatic_replies"):
        assert await pool.fetchval(f"SELECT count(*) FROM {table}") == 0, table
    assert await pool.fetchval("SELECT count(*) FROM received_messages") == 2
    assert await opted_out(pool, acme)


async def test_a_wish_is_bound_to_its_number_and_kind(pool: Pool, acme: Actor) -> None:
    at = now()
    some = [
        replies.KeywordReply(acme.organization_id, to, kind, uuid7(), at)
        for to in (TO, "+258840000009")
        for kind in ("stop", "help", "stop")
    ]
    async with pool.acquire() as conn, conn.transaction():
        assert await replies.want(conn, some) == 4
        assert await replies.want(conn, some) == 0
        assert await replies.want(conn, []) == 0


@pytest.mark.fresh_database
async def test_one_handset_that_floods_does_not_slow_the_others_down(pool: Pool, acme: Actor) -> None:
    """Rows that it wrote before are in no index that the next search reads, and parts are found by their reference."""
    flood = [handset_message(f"{n}") for n in range(3000)]
    flood += [part(1 + n % 2, f"{n}", total=2, reference=n // 2 % 256) for n in range(3000)]
    for start in range(0, len(flood), 1000):
        await receive(pool, *flood[start : start + 1000])
    while (await work(pool)).rows:
        pass
    assert len(await event_data(pool)) == 4500
    async with pool.acquire() as conn:
        for name, sql in (("unanswered", earlier.SAME), ("parts", earlier.PARTS)):
            statement = await conn.prepare(sql)
            await conn.execute(f"PREPARE look AS {sql}")
            nothing = ", ".join("NULL" for _ in statement.get_parameters())
            plan = "\n".join(row[0] for row in await conn.fetch(f"EXPLAIN EXECUTE look({nothing})"))
            await conn.execute("DEALLOCATE look")
            assert f"inbound_messages_{name}" in plan, plan
            assert "Filter: (sender" not in plan


# -- whose word it is --------------------------------------------------------------------------------------------------


async def supplier(pool: Pool, **settings: str) -> None:
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, 'one', 'smpp', $2::text::jsonb, '', now(), now())",
        ONE,
        msgspec.json.encode(settings).decode(),
    )


@pytest.mark.parametrize("ton", [0, 2])
async def test_a_national_number_is_nobody_until_its_account_has_a_country(pool: Pool, acme: Actor, ton: int) -> None:
    await receive_and_process(pool, handset_message("STOP", by="841234567", sender_ton=ton))
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 0
    await supplier(pool, country="MZ")
    await receive_and_process(pool, handset_message("STOP", by="841234567", sender_ton=ton))
    assert await pool.fetchval("SELECT recipient FROM opt_outs") == "+258841234567"
    assert await replied(pool) == 1


async def test_our_own_number_may_be_written_nationally_too(pool: Pool, acme: Actor) -> None:
    await supplier(pool, inbound_strip="0", inbound_prepend="258")
    await receive_and_process(pool, handset_message("STOP", to="0" + NUMBER.removeprefix("258"), by="0841234567"))
    assert await pool.fetchval("SELECT recipient FROM opt_outs") == "+258841234567"


async def test_a_number_that_two_organizations_have_in_different_forms_is_shared(pool: Pool, acme: Actor) -> None:
    """Nothing keeps an operator from approving both."""
    other = await organization(pool)
    await sender(pool, other, NUMBER.removeprefix("258"))
    await sender(pool, acme, NUMBER.removeprefix("258"), status="pending")
    await supplier(pool, country="MZ")
    national = NUMBER.removeprefix("258")
    await receive_and_process(pool, handset_message("hello", to=national), handset_message("hi"))
    assert await states(pool) == ["unassigned", "received"], "in full, it can be but one"
    async with pool.acquire() as conn:
        (found,) = await unassigned.listed(conn)
        names = [one.name for one in await organizations.list_all(conn)]
    assert (found.recipient, found.why, sorted(found.organizations)) == (national, "several", sorted(names))
    await receive_and_process(pool, handset_message("STOP", to=national))
    assert [await opted_out(pool, one) for one in (acme, other)] == [True, True]


async def test_an_organization_that_has_a_number_in_two_forms_gets_its_messages_once(pool: Pool, acme: Actor) -> None:
    await sender(pool, acme, NUMBER.removeprefix("258"))
    await supplier(pool, country="MZ")
    await receive_and_process(pool, handset_message("hello", to=NUMBER.removeprefix("258")))
    assert (await states(pool), await texts(pool)) == (["received"], ["hello"])


async def test_a_stop_to_a_shared_number_stops_all_who_share_it(pool: Pool, acme: Actor) -> None:
    other, third = await organization(pool), await organization(pool)
    await sender(pool, other, NUMBER)
    await pool.execute("UPDATE organizations SET opt_out_words = '{FORA}' WHERE id = $1", other.organization_id)
    acceptor = Acceptor(pool)
    assert (await acceptor.accept(send(acme))).status == 202
    await receive_and_process(pool, handset_message("hello"), handset_message("STOP"))
    rows = await pool.fetch("SELECT organization_id FROM opt_outs")
    assert {row[0] for row in rows} == {acme.organization_id, other.organization_id}
    assert {one["keyword"] for one in await event_data(pool)} == {"stop"}
    states = [row[0] for row in await pool.fetch("SELECT state FROM inbound_messages ORDER BY id")]
    assert states == ["unassigned", "received"]
    # Only an organization that has written to the person replies.
    assert len(await reply(pool)) == 1
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE organization_id = $1", other.organization_id) == 0
    for actor in (acme, other):
        with pytest.raises(RecipientOptedOut):
            await acceptor.accept(send(actor))
    assert (await acceptor.accept(send(third))).status == 202
    await receive_and_process(pool, handset_message("START"))
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 0
    await receive_and_process(pool, handset_message("fora"))
    rows = await pool.fetch("SELECT organization_id FROM opt_outs")
    assert [row[0] for row in rows] == [other.organization_id]


# What a session has read is known at once only within its transaction.
READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int FROM pg_stat_xact_user_tables
 WHERE starts_with(relname, $1)
"""


@pytest.mark.parametrize("count", [0, 3, 4, 5])
async def test_unassigned_messages_are_processed_again_in_steps(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A hundred thousand in one statement took longer than a statement may, so their number could not be assigned."""
    monkeypatch.setattr(inbound, "BATCH", 2)
    await receive_and_process(
        pool, *(handset_message(f"{n}", to="258899999999") for n in range(count)), handset_message(to="258877777777")
    )
    async with pool.acquire() as conn:
        assert await inbound.retry(conn, recipient="258899999999") == count
    assert (await states(pool)).count("new") == count
    steps = await pool.fetch("SELECT count(*) FROM inbound_messages WHERE state = 'new' GROUP BY xmin::text")
    assert all(size <= 2 for (size,) in steps)


@pytest.mark.fresh_database
@pytest.mark.parametrize("is_long", [True, False])
async def test_what_a_flood_is_compared_with_is_bounded_for_a_batch(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """Each of its messages used to be compared with all before it, and each part with all of its reference, however
    many parts it declared. A batch took longer than a statement may, so the inbox stood still for everybody."""
    monkeypatch.setattr(earlier, "MOST_LOOKED", 400)
    several = range(2, 42)

    def flood(number: int) -> list[Inbound]:
        return [
            part(number, f"{number} {n}", total=n) if is_long else handset_message(f"{number} {n}") for n in several
        ]

    for number in range(1, 6):
        await receive_and_process(pool, *flood(number), answered=False)
    await receive(pool, *flood(6), handset_message("STOP", by="+258849999999"), answered=False)
    async with pool.acquire() as conn, conn.transaction():
        assert (await inbox.process_due(conn)).rows == 41
        read = await conn.fetchval(READ, "inbound_messages")
    assert await opted_out(pool, acme, "+258849999999")
    assert read < 10_000


async def test_parts_known_of_many_messages_are_bounded_for_a_batch(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier, "MOST_OF_ALL", 40)
    for number in range(1, 7):
        await receive_and_process(pool, *(part(number, "x", total=9, reference=n) for n in range(20)))
    await receive(pool, *(part(7, "x", total=9, reference=n) for n in range(20)))
    async with pool.acquire() as conn:
        due = [at_rest.row_of(row) for row in await conn.fetch("SELECT * FROM inbound_messages WHERE state = 'new'")]
        assert len(await earlier.parts(conn, due)) == 40


@pytest.mark.parametrize("numbers", [(1, 2, 3, 4, 5, 6), (1, 2, 3, 1, 2, 3, 1, 2), (2, 2, 2, 2, 2)])
async def test_parts_that_were_not_all_seen_at_once_do_not_stop_the_inbox(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int]
) -> None:
    """Under a flood some parts of a message were shown while others waited. When the others were due, nothing became of
    them, so they stayed due: first in every batch, which failed again and again, and STOP of all others behind them."""
    monkeypatch.setattr(earlier, "MOST_OF_ALL", 2)
    for place, number in enumerate(numbers):
        await receive_and_process(pool, part(number, f"{place} ", total=9))
        await age(pool, timedelta(minutes=1))
    # Not all of them are due at one time.
    left: dict[UUID, int] = {}
    for _ in range(20):
        await work(pool)
        await age(pool, timedelta(minutes=1))
        missing = dict(await pool.fetch("SELECT id, missing FROM received_messages"))
        assert all(missing[id] <= before for id, before in left.items()), "what was shown is shown no more"
        left = missing
    assert await work(pool) == inbox.BatchResult()
    assert set(await states(pool)) == {"received"}
    await receive_and_process(pool, handset_message("STOP", by="+258849999999"))
    assert await opted_out(pool, acme, "+258849999999")


@pytest.mark.fresh_database
async def test_stops_of_many_to_a_shared_number_search_its_owners_messages_once(pool: Pool, acme: Actor) -> None:
    """A search for each person and owner took longer than a statement may, so the inbox stood still for everybody."""
    other = await organization(pool)
    await sender(pool, other, NUMBER)
    acceptor, handsets = Acceptor(pool), [f"+25884{n:07d}" for n in range(30)]
    for actor in (acme, other):
        for n in range(30):
            await acceptor.accept(send(actor, to=f"+25885{n:07d}"))
    await acceptor.accept(send(acme, to=handsets[7]))
    await receive(pool, *(handset_message("STOP", by=one) for one in handsets))
    async with pool.acquire() as conn, conn.transaction():
        assert (await inbox.process_due(conn)).rows == 30
        read = await conn.fetchval(READ, "messages_")
    assert 61 <= read < 150
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 60
    # Only an organization that has written to the person replies.
    assert [to for to, _ in await reply(pool)] == [handsets[7]]


async def test_the_owners_of_a_shared_number_share_what_a_batch_may_search(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyword_effects, "MOST_LOOKED", 10)
    other = await organization(pool)
    await sender(pool, other, NUMBER)
    acceptor = Acceptor(pool)
    for actor, between in ((acme, 4), (other, 5)):
        await acceptor.accept(send(actor))
        for n in range(between):
            await acceptor.accept(send(actor, to=f"+25885{n:07d}"))
    await receive_and_process(pool, handset_message("STOP"))
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 2
    rows = await pool.fetch("SELECT organization_id FROM automatic_replies")
    assert [row[0] for row in rows] == [acme.organization_id]


@pytest.mark.parametrize(
    "text", ["STOP HELIOGRAPH", "Heliograph: stop!", "STOP au 258800001234", "stop Acme-Shop please"]
)
async def test_stop_with_a_name_is_for_whoever_has_it(pool: Pool, acme: Actor, text: str) -> None:
    await pool.execute("UPDATE organizations SET name = 'Acme Shop' WHERE id = $1", acme.organization_id)
    await receive_and_process(pool, handset_message(text))
    assert await opted_out(pool, acme)
    assert [(one["text"], one["keyword"]) for one in await event_data(pool)] == [(text, "stop")]
    assert await replied(pool) == 1


@pytest.mark.parametrize("name", ["OTHERS", "Marketing"])
async def test_stop_with_a_name_on_a_shared_number_stops_only_whoever_has_it(
    pool: Pool, acme: Actor, name: str
) -> None:
    other = await organization(pool)
    await sender(pool, other, NUMBER)
    await sender(pool, other, name)
    await receive_and_process(pool, handset_message(f"STOP {name}"))
    rows = await pool.fetch("SELECT organization_id FROM opt_outs")
    assert [row[0] for row in rows] == [other.organization_id]


@pytest.mark.parametrize("text", ["STOP OTHERS", "don't stop HELIOGRAPH", "HELIOGRAPH never stop", "cancel HELIOGRAPH"])
async def test_no_name_of_theirs_or_a_sentence_stops_nothing(pool: Pool, acme: Actor, text: str) -> None:
    await sender(pool, await organization(pool), "OTHERS")
    await receive_and_process(pool, handset_message(text))
    assert not await opted_out(pool, acme)
    assert [one["keyword"] for one in await event_data(pool)] == [None]


async def test_a_yes_to_a_shared_number_is_of_those_only_who_were_stopped(pool: Pool, acme: Actor) -> None:
    other = await organization(pool)
    await sender(pool, other, NUMBER)
    await receive_and_process(pool, handset_message("YES"))
    assert await event_data(pool) == []
    assert await pool.fetchval("SELECT count(*) FROM received_messages") == 0
    assert await pool.fetchval("SELECT state FROM inbound_messages") == "unassigned"

    async with pool.acquire() as conn:
        await optouts.add(conn, acme, phone=TO)
    await receive_and_process(pool, handset_message("yes"))
    rows = await pool.fetch("SELECT organization_id, keyword FROM received_messages")
    assert [tuple(row) for row in rows] == [(acme.organization_id, "start")]
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 0


@pytest.mark.parametrize("campaign", [True, False])
async def test_a_word_with_another_meaning_stops_after_a_campaign_and_is_asked_about_otherwise(
    pool: Pool, acme: Actor, campaign: bool
) -> None:
    await pool.execute("UPDATE organizations SET country = 'MZ'")
    acceptor = Acceptor(pool)
    await acceptor.accept(send(acme, campaign_id=uuid7()))
    await acceptor.accept(send(acme, to="+258849999999"))
    if not campaign:
        await acceptor.accept(send(acme))
    await receive_and_process(pool, handset_message("SAIR"))
    assert await opted_out(pool, acme) is campaign
    text = [text for _, text in await reply(pool)][-1]
    assert "Responda START" in text if campaign else "STOP para deixar" in text


async def note_last_message(pool: Pool, actor: Actor) -> None:
    """Their contact knows the message that was sent to TO."""
    async with pool.acquire() as conn:
        person = await records.create(conn, actor, entry=Entry(TO, "Ana"))
    await pool.execute(
        "INSERT INTO contact_last_messages (organization_id, mode, contact_id, message_id)"
        " SELECT organization_id, 'live', $1, id FROM messages WHERE recipient = $2",
        person.id,
        TO,
    )


@pytest.mark.parametrize("known_by", ["contact", "campaign", "not staged", "other message", "nothing"])
async def test_a_word_stops_after_a_large_campaign(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    """Most of whose messages are not among the newest, whoever answers."""
    monkeypatch.setattr(keyword_effects, "MOST_LOOKED", 2)
    await pool.execute("UPDATE organizations SET country = 'MZ'")
    acceptor, campaign = Acceptor(pool), uuid7()
    await acceptor.accept(send(acme, campaign_id=None if known_by == "other message" else campaign))
    for n in range(2):
        await acceptor.accept(send(acme, to=f"+25885{n:07d}", campaign_id=campaign))
    if known_by in ("contact", "other message"):
        await note_last_message(pool, acme)
    elif known_by != "nothing":
        async with pool.acquire() as conn, conn.transaction():
            spec = SmsCampaignSpec(name="Sale", message_template="Hi", recipients=[TO])
            made = await sms_channel.create(conn, acme, spec=spec, request_id="req")
        staged_to = TO if known_by == "campaign" else ""
        await pool.execute("UPDATE campaigns SET status = 'running', staged_to = $2 WHERE id = $1", made.id, staged_to)
    await receive_and_process(pool, handset_message("SAIR"))
    assert await opted_out(pool, acme) is (known_by in ("contact", "campaign"))


@pytest.mark.parametrize("campaign", [True, False])
async def test_whoever_wrote_long_ago_from_a_shared_number_asks_nothing(
    pool: Pool, acme: Actor, monkeypatch: pytest.MonkeyPatch, campaign: bool
) -> None:
    """They would introduce themselves to somebody who means another organization."""
    monkeypatch.setattr(keyword_effects, "MOST_LOOKED", 2)
    await sender(pool, await organization(pool), NUMBER)
    await pool.execute("UPDATE organizations SET country = 'MZ'")
    acceptor = Acceptor(pool)
    for to in (TO, "+258850000001", "+258850000002"):
        await acceptor.accept(send(acme, to=to, campaign_id=uuid7() if campaign else None))
    await note_last_message(pool, acme)
    await receive_and_process(pool, handset_message("SAIR"))
    assert await opted_out(pool, acme) is campaign
    assert len(await reply(pool)) == int(campaign)


async def test_a_text_in_a_national_alphabet_is_read_as_it_was_written(pool: Pool, acme: Actor) -> None:
    portuguese = {"single": 3}
    await receive(
        pool,
        handset_message(body=b"Ol\x1b\x0f, S\x1b{o Jo\x1b{o", **portuguese),
        # The surrogate pair is split between parts, as some senders do.
        part(1, "", total=2, body=b"Amanh\x1b", **portuguese),
        part(2, "", total=2, body=b"{ \x1b\x09", **portuguese),
        handset_message(body=b"\x15\x51\x27", locking=6, by="+258841111111"),
    )
    await work(pool)
    found = {row["body"] for row in await pool.fetch("SELECT body FROM received_messages")}
    assert found == {"Olá, São João", "Amanhã ç", "\u0915\u093f\u0924"}


async def test_eight_bits_that_are_called_ascii_are_read(pool: Pool, acme: Actor) -> None:
    await receive(pool, handset_message(body="ARRÊT".encode("latin-1"), data_coding=1))
    await work(pool)
    assert [row["body"] for row in await pool.fetch("SELECT body FROM received_messages")] == ["ARRÊT"]
