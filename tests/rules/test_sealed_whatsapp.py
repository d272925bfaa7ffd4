"""WhatsApp messages in both directions of an organization that seals its texts: no table contains them, and they are
gone with the key."""

from __future__ import annotations

import os
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations
from heliograph.base.crypto import derive_key, unseal
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Unavailable
from heliograph.base.process.settings import Settings
from heliograph.campaigns.filling import Filling
from heliograph.consent import optouts
from heliograph.overview import inbox as overview
from heliograph.privacy import holdings
from heliograph.sealing import text_keys
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks import catcher, endpoints, history
from heliograph.whatsapp import messages, timeline
from heliograph.whatsapp.accepting.accept import Acceptor, TemplateSend, TextReply
from heliograph.whatsapp.callbacks import dead_letters
from heliograph.whatsapp.callbacks.processing import retries
from heliograph.whatsapp.callbacks.processing.inbox import LOCKED
from tests import hooks
from tests.rules.callback_factories import Meta, message
from tests.rules.dispatching_whatsapp import Bench, status_of
from tests.rules.factories import TO
from tests.rules.test_accept import id_of
from tests.rules.test_campaigns import run
from tests.rules.test_sealed_texts import MARKER, holding
from tests.rules.test_whatsapp_accept import SHIPPED, send
from tests.rules.test_whatsapp_campaigns import contact, create
from tests.rules.whatsapp_factories import KEY, Made, conversation, made
from tests.sealing import SETTINGS

pytestmark = pytest.mark.usefixtures("armed")

ORDER = TemplateSend("order_shipped", "en", "utility", (MARKER, "7"))
#: The profile name of users in `message`.
NAME = "Amal Bén"
RULES = endpoints.rules(hooks.settings())


async def sealing(pool: Pool, **values: Any) -> Made:
    one = await made(pool, **values)
    async with pool.acquire() as conn:
        await text_keys.switch(conn, organization_id=one.organization_id, on=True)
    return one


def acceptor_of(pool: Pool) -> Acceptor:
    return Acceptor(pool, settings=Settings())


async def damage(pool: Pool, one: Made) -> bytes:
    """Damage an organization's key; returns the original."""
    return await pool.fetchval(
        "UPDATE text_keys k SET sealed = $2 FROM text_keys old WHERE k.organization_id = $1"
        " AND old.organization_id = $1 RETURNING old.sealed",
        one.organization_id,
        os.urandom(60),
    )


async def mend(pool: Pool, one: Made, key: bytes) -> None:
    await pool.execute("UPDATE text_keys SET sealed = $2 WHERE organization_id = $1", one.organization_id, key)


async def read(pool: Pool, one: Made, id: UUID) -> list[dict[str, Any] | None]:
    """The content of a message as each of its readers shows it: a list, its id, its timeline, an export."""
    async with pool.acquire() as conn:
        listed = (await messages.list_page(conn, one.actor, filters=messages.Filters())).messages
        shown = [found for found in listed if found.id == id]
        shown += [await messages.get(conn, one.actor, id=id), *await messages.by_ids(conn, one.actor, ids=[id])]
        told = await timeline.of_message(conn, id=id, with_text=True)
        held = [row async for row in holdings.held(conn, one.actor, address=TO) if row["what"] == "whatsapp_message"]
    raw = [told.text, *(row["content"] for row in held if row["id"] == id)]
    assert (len(shown), len(raw)) == (3, 2)
    plain = {"type", "profileName", "context", "referral"}
    return [found.content for found in shown] + [
        None if text is None else {key: value for key, value in msgspec.json.decode(text).items() if key not in plain}
        for text in raw
    ]


async def test_no_table_holds_what_was_sent_and_meta_gets_it(pool: Pool) -> None:
    one = await sealing(pool)
    await conversation(pool, one)
    acceptor = acceptor_of(pool)
    first = await acceptor.accept(send(one, ORDER, key_name="k"))
    others = await acceptor.accept_many([send(one, ORDER), send(one, TextReply(f"hello {MARKER}"))])
    assert (await acceptor.accept(send(one, ORDER, key_name="k"))).replayed
    assert await holding(pool) == set()
    bench = await Bench(pool).start()
    await bench.round()
    sent = [submission.body.decode() for submission in bench.only.submitted]
    assert [MARKER in body for body in sent] == [True] * 3
    assert await holding(pool) == set()
    template, reply = {"parameters": [MARKER, "7"]}, {"body": f"hello {MARKER}", "previewUrl": False}
    for answer, content in zip((first, *others), (template, template, reply), strict=True):
        assert await read(pool, one, id_of(answer)) == [content] * 5


async def test_no_table_holds_what_was_received_and_readers_have_it(pool: Pool) -> None:
    one, meta = await sealing(pool), Meta(pool)
    await meta.post(one, message(one, f"hello {MARKER}"))
    assert await holding(pool) == set()  # as received
    await meta.work()
    caption = {"id": "1", "mime_type": "image/jpeg", "caption": MARKER}
    await meta.say(one, message(one, type="image", image=caption, referral={"headline": MARKER}))
    assert await holding(pool) | await holding(pool, NAME) == set()
    text, image = [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_messages ORDER BY id")]
    assert await read(pool, one, text) == [{"body": f"hello {MARKER}"}] * 5
    async with pool.acquire() as conn:
        (line,), _ = await overview.list_page(conn, one.actor)
        assert (line.name, line.words) == (NAME, MARKER)
        found = await overview.get(conn, one.actor, id=line.thread.id)
        assert [bubble.text for bubble in found.bubbles] == [f"hello {MARKER}", MARKER]
        assert (await messages.get(conn, one.actor, id=image)).referral == {"headline": MARKER}


async def test_a_campaign_leaves_its_values_and_nothing_else(pool: Pool) -> None:
    one = await sealing(pool)
    await contact(pool, one.actor, TO, first_name="Ana")
    await create(pool, one, parameters=(Filling(column="first_name"), Filling(text=MARKER)))
    await run(pool)
    assert await holding(pool) == {"campaigns"}
    bench = await Bench(pool).start()
    await bench.round()
    (submission,) = bench.only.submitted
    assert MARKER.encode() in submission.body
    (id,) = [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_messages")]
    assert await read(pool, one, id) == [{"parameters": ["Ana", MARKER]}] * 5


async def test_closing_throws_the_key_away_for_good(pool: Pool) -> None:
    one, meta = await sealing(pool), Meta(pool)
    await meta.say(one, message(one, MARKER))
    (received,) = [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_messages")]
    waiting = id_of(await acceptor_of(pool).accept(send(one, ORDER)))
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=one.organization_id, state="closed")
    for id in (received, waiting):
        assert await read(pool, one, id) == [None] * 5
    async with pool.acquire() as conn:
        (line,), _ = await overview.list_page(conn, one.actor)
        assert (line.name, line.words) == ("", "")
        found = await overview.get(conn, one.actor, id=line.thread.id)
        assert [bubble.is_erased for bubble in found.bubbles] == [True, True]
        await organizations.set_state(conn, id=one.organization_id, state="active")
    later = id_of(await acceptor_of(pool).accept(send(one, ORDER)))
    bench = await Bench(pool).start()
    await bench.round()
    assert [submission.message_id for submission in bench.only.submitted] == [later]
    assert await status_of(pool, waiting) == ("failed", "expired", "released")
    assert await read(pool, one, received) == [None] * 5


async def test_messages_from_before_and_after_the_switch_stand_side_by_side(pool: Pool) -> None:
    one, meta = await made(pool), Meta(pool)
    ids = [id_of(await acceptor_of(pool).accept(send(one, ORDER)))]
    for on in (True, False):
        async with pool.acquire() as conn:
            await text_keys.switch(conn, organization_id=one.organization_id, on=on)
        ids.append(id_of(await acceptor_of(pool).accept(send(one, ORDER))))
    await meta.say(one, message(one, "sealed:1:QUJD"))
    rows = await pool.fetch("SELECT id, content FROM whatsapp_messages ORDER BY id")
    assert [text_keys.is_marked(row["content"]) for row in rows] == [False, True, False, False]
    for id in ids:
        assert await read(pool, one, id) == [{"parameters": [MARKER, "7"]}] * 5
    assert await read(pool, one, rows[-1]["id"]) == [{"body": "sealed:1:QUJD"}] * 5


async def test_a_damaged_key_stops_its_own_organization_alone(pool: Pool) -> None:
    one = await sealing(pool)
    other, meta = await sealing(pool, app=one.app), Meta(pool)
    waiting, going = [id_of(await acceptor_of(pool).accept(send(each, ORDER))) for each in (one, other)]
    key = await damage(pool, one)

    acceptor = acceptor_of(pool)
    refused, taken = await acceptor.accept_many([send(one, ORDER), send(other, ORDER)])
    assert isinstance(refused, Unavailable)
    bench = await Bench(pool).start()
    await bench.round()
    ids = {line.message_id for each in bench.connectors.values() for line in each.submitted}
    assert ids == {going, id_of(taken)}
    assert await status_of(pool, waiting) == ("accepted", None, "reserved")
    assert await read(pool, one, waiting) == [None] * 5

    await meta.post(one, message(one, f"STOP {MARKER}"), message(other, f"hello {MARKER}"))
    await meta.work()
    heard = await pool.fetch("SELECT organization_id FROM whatsapp_messages WHERE direction = 'inbound'")
    assert [row[0] for row in heard] == [other.organization_id]
    async with pool.acquire() as conn:
        (letter,) = await dead_letters.list_all(conn, KEY, limit=9)
    assert letter.reason == LOCKED
    assert MARKER.encode() in letter.raw
    assert await retries.retry(pool, KEY) == (1, 0)
    assert await holding(pool) == set()

    await mend(pool, one, key)
    assert await retries.retry(pool, KEY) == (1, 1)
    received = await pool.fetchval(
        "SELECT id FROM whatsapp_messages WHERE organization_id = $1 AND direction = 'inbound'", one.organization_id
    )
    assert await read(pool, one, received) == [{"body": f"STOP {MARKER}"}] * 5
    await bench.later(minutes=2)
    await bench.round()
    assert waiting in {line.message_id for each in bench.connectors.values() for line in each.submitted}


async def test_doctor_names_whose_messages_wait_for_a_key(pool: Pool) -> None:
    one, other = await sealing(pool), await sealing(pool)
    for each in (one, other):
        await acceptor_of(pool).accept(send(each, ORDER))
    await pool.execute("DELETE FROM text_keys WHERE organization_id = $1", one.organization_id)
    await damage(pool, other)
    async with pool.acquire() as conn:
        found = await text_keys.standing(conn)
        names = dict(await conn.fetch("SELECT id, name FROM organizations"))
    assert found == text_keys.Standing(1, [names[other.organization_id]], [names[one.organization_id]])
    bench = await Bench(pool).start()
    assert await bench.round() == 2
    assert [line.submitted for line in bench.connectors.values()] == [[], []]
    assert await bench.round() == 0


async def test_without_the_secret_key_nothing_is_taken_for_erased(pool: Pool) -> None:
    one, open_one = await sealing(pool), await made(pool)
    waiting = id_of(await acceptor_of(pool).accept(send(one, ORDER)))
    text_keys._armed[:] = [derive_key("another secret key for the texts at rest", "text keys")]
    await acceptor_of(pool).accept(send(open_one, SHIPPED))
    bench = await Bench(pool).start()
    await bench.round()
    assert [len(each.submitted) for each in bench.connectors.values()].count(1) == 1
    assert await status_of(pool, waiting) == ("accepted", None, "reserved")
    text_keys.arm(SETTINGS)
    await bench.later(minutes=2)
    await bench.round()
    assert await status_of(pool, waiting) == ("queued", None, "reserved")


async def test_a_sealed_message_opens_in_its_own_row_only(pool: Pool) -> None:
    one = await sealing(pool)
    acceptor = acceptor_of(pool)
    ids = [id_of(await acceptor.accept(send(one, ORDER))) for _ in range(2)]
    await pool.execute(
        "UPDATE whatsapp_messages SET content = (SELECT content FROM whatsapp_messages WHERE id = $2)"
        " WHERE organization_id = $3 AND id = $1",
        *ids,
        one.organization_id,
    )
    assert await read(pool, one, ids[0]) == [None] * 5
    assert await read(pool, one, ids[1]) == [{"parameters": [MARKER, "7"]}] * 5


async def test_who_says_stop_is_heard_whatever_the_key(pool: Pool) -> None:
    one, meta = await sealing(pool), Meta(pool)
    await damage(pool, one)
    await meta.say(one, message(one, "Stop"), message(one, "Please stop writing"))
    (row,) = await pool.fetch("SELECT id, content FROM whatsapp_messages")
    assert row["content"] is None
    event = await pool.fetchval("SELECT data FROM events WHERE kind = 'message.received'")
    assert msgspec.json.decode(event)["message"]["text"] is None
    async with pool.acquire() as conn:
        found = await optouts.find(conn, one.actor, phone=TO)
        assert found is not None
        assert found.keyword == "stop"
        (letter,) = await dead_letters.list_all(conn, KEY, limit=9)
    assert b"Please stop writing" in letter.raw


async def test_a_dead_letter_goes_with_its_organizations_key(pool: Pool) -> None:
    one, meta = await sealing(pool), Meta(pool)
    await meta.say(one, message(one, MARKER, graph_id="4711"))
    row = await pool.fetchrow("SELECT id, body FROM whatsapp_dead_letters")
    assert row is not None
    assert MARKER.encode() not in unseal(KEY, row["body"], dead_letters.context(row["id"]))
    async with pool.acquire() as conn:
        (letter,) = await dead_letters.list_all(conn, KEY, limit=9)
        assert (letter.item is not None, MARKER.encode() in letter.raw) == (True, True)
        assert await dead_letters.get(conn, KEY, id=letter.id) == letter
    await pool.execute("UPDATE whatsapp_numbers SET graph_id = '4711'")
    assert await retries.retry(pool, KEY) == (1, 1)
    await meta.say(one, message(one, MARKER, graph_id="4712"))
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=one.organization_id, state="closed")
        (letter,) = await dead_letters.list_all(conn, KEY, limit=9)
    assert (letter.item, letter.raw) == (None, b"")
    assert await retries.retry(pool, KEY) == (1, 0)


async def test_what_is_kept_of_deliveries_opens_for_who_looks_at_it(pool: Pool) -> None:
    """A receiver that echoes what it got, and a catcher, whose signatures are made over the whole body."""
    one, meta = await sealing(pool), Meta(pool)
    receiver = Receiver(Options(status=500, answer=f"sealed:1: is no {MARKER}".encode()))
    await receiver.start()
    try:
        id, _ = await hooks.endpoint(pool, one.actor, receiver.url, kinds=["message.received"])
        async with pool.acquire() as conn:
            catching, _ = await catcher.open(conn, one.actor, rules=RULES)
        for text, on in ((f'"hello" {MARKER} \\', True), ("sealed:1:QUJD", False)):
            async with pool.acquire() as conn:
                await text_keys.switch(conn, organization_id=one.organization_id, on=on)
            before = len(await hooks.attempts(pool))
            await meta.say(one, message(one, text))
            async with hooks.delivering(pool):
                await hooks.attempted(pool, before + 4)
            if on:
                assert await holding(pool) == set()
    finally:
        await receiver.stop()
    told = {msgspec.json.decode(event.body)["data"]["message"]["text"] for event in receiver.events}
    assert told == {f'"hello" {MARKER} \\', "sealed:1:QUJD"}
    events = [row["id"] for row in await pool.fetch("SELECT id FROM events ORDER BY id")]
    answer = f"sealed:1: is no {MARKER}".encode()

    async def shown() -> tuple[list[tuple[Any, bool]], list[set[bytes]], list[set[str]]]:
        async with pool.acquire() as conn:
            caught = await catcher.caught(conn, one.actor, catcher=catching, rules=RULES, limit=9)
            tried = [await history.delivery(conn, one.actor, endpoint_id=id, event_id=event) for event in events]
        return (
            [(msgspec.json.decode(each.body)["data"]["message"]["text"], each.is_genuine) for each in caught],
            [{kept.body for kept in each.evidence.values()} for each in tried],
            [{attempt.detail for attempt in each.attempts} for each in tried],
        )

    bodies, answers, details = await shown()
    assert bodies == [("sealed:1:QUJD", True), (f'"hello" {MARKER} \\', True)]
    assert answers == [{answer}, {answer}]
    assert details == [{""}, {answer.decode()}]
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=one.organization_id, state="closed")
    bodies, answers, _ = await shown()
    assert bodies == [("sealed:1:QUJD", True), (None, False)]
    assert answers == [{b""}, {answer}]
