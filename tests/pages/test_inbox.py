"""The inbox: received messages of both channels, replies while they are allowed, marks."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from urllib.parse import quote
from uuid import UUID

import pytest

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.consent import optouts
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.dashboard.conversations import inbox as screen
from heliograph.overview import inbox
from heliograph.pages.languages import locale
from heliograph.privacy import erasure
from heliograph.queue import timers
from heliograph.sealing import text_keys
from heliograph.sms.accepting import sender_ids
from heliograph.sms.received import inbox as received
from heliograph.why.words import why
from tests.rules import whatsapp_factories as making
from tests.rules.callback_factories import Change, Meta
from tests.rules.callback_factories import message as callback
from tests.rules.test_inbound import handset_message, part, receive
from tests.rules.whatsapp_factories import Made

from .conftest import Browser, Page, Tenant, make_person
from .test_columns import choose

ANA, RUI = "+258841111111", "+258842222222"


@pytest.fixture
async def made(pool: Pool, tenant: Tenant) -> Made:
    """A WhatsApp number, and a sender ID that is a number."""
    async with pool.acquire() as conn:
        await timers.ensure(conn, received.TIMER)
        asked = await sender_ids.request(conn, tenant.actor, value="90210")
        await sender_ids.review(conn, tenant.actor, id=asked.id, status="approved")
    return await making.made(pool, organization_id=tenant.id)


async def write_sms(pool: Pool, text: str, *, by: str = ANA) -> None:
    await receive(pool, handset_message(text, by=by, to="90210"))
    async with pool.acquire() as conn:
        await received.process_due(conn)


async def first(pool: Pool, channel: str) -> UUID:
    id: UUID = await pool.fetchval("SELECT id FROM inbox_threads WHERE channel = $1", channel)
    return id


def order(page: Page, *texts: str) -> bool:
    places = [page.words.index(text) for text in texts]
    return places == sorted(places)


async def test_both_channels_stand_in_one_list_and_are_answered(pool: Pool, owner: Browser, made: Made) -> None:
    page = await owner.get("/inbox")
    assert "Nobody has written yet" in page.words
    meta = Meta(pool)
    await meta.say(made, callback(made, "Where is my order?", by=RUI))
    await write_sms(pool, "Is it late?")
    page = await owner.get("/inbox")
    assert order(page, "Is it late?", "Where is my order?"), "the newest first"
    assert "Amal Bén" in page.words, "what a user calls themselves, who is no contact"
    assert page.text.count('class="unread"') == 2
    # A bar shows how long the window stays open, in the list too; an SMS has none.
    assert re.findall(r'<progress max="24" value="(\d+)"', page.text) == ["24"]
    # It ends tomorrow at the same hour, which the hour alone would not tell.
    ends = await pool.fetchval("SELECT last_inbound_at FROM whatsapp_conversations") + timedelta(days=1)
    assert f"open until {locale('en', 'UTC').moment(ends)}" in page.words
    # On WhatsApp, within a day.
    id = await first(pool, "whatsapp")
    page = await owner.get(f"/inbox/{id}")
    assert "open for 23 h" in page.words or "open for 24 h" in page.words
    form = page.form(f"/inbox/{id}/reply") | {"message": "On its way.\r\nAna"}
    for _ in range(2):
        answer = await owner.post(f"/inbox/{id}/reply", form)
        assert answer.status == 200, answer.words
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE direction = 'outbound'") == 1
    assert order(answer, "Where is my order?", "On its way. Ana")
    assert (await owner.get("/inbox")).text.count('class="unread"') == 1
    # By SMS, from the number that they wrote to.
    id = await first(pool, "sms")
    page = await owner.submit(await owner.get(f"/inbox/{id}"), f"/inbox/{id}/reply", message="Tomorrow.")
    row = await pool.fetchrow("SELECT recipient, sender, body FROM messages")
    assert row is not None
    assert tuple(row) == (ANA, "90210", "Tomorrow.")
    assert order(page, "Is it late?", "Tomorrow.")
    # A fragment is the part that changes.
    fragment = await owner.get(f"/inbox/{id}", HX_Request="true")
    assert "<html" not in fragment.text
    assert "Is it late?" in fragment.words


async def test_a_received_sms_is_found_by_its_id_in_its_conversation(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    for text in ("stop", "Where are you?"):
        await write_sms(pool, text)
    stop, later = await pool.fetch("SELECT id FROM received_messages ORDER BY id")
    page = await choose(owner, await owner.get("/contacts/opt-outs"), "message", list="opt-outs")
    assert f'href="/go/{stop["id"]}"' in page.text
    # As far back as it goes, also from test mode, in which nobody writes.
    for pasted in (f"/go/{stop['id']}", f"/go?q={stop['id']}", f"/go/{stop['id']}?mode=test"):
        page = await owner.get(pasted)
        assert page.path.startswith(f"/inbox/{await first(pool, 'sms')}?before="), pasted
        assert (f"b-{stop['id']}" in page.text, f"b-{later['id']}" in page.text) == (True, False)
    assert "Where are you?" in (await owner.get(f"/go/{later['id']}")).words
    # The time is not a link: a received SMS has no page of its own.
    page = await owner.get(f"/inbox/{await first(pool, 'sms')}")
    assert f'href="#b-{stop["id"]}"' in page.text
    assert f'href="/messages/{stop["id"]}"' not in page.text
    assert (await owner.get(f"/go/{UUID(int=stop['id'].int + 1)}")).status == 404


async def test_who_calls_themselves_by_an_invisible_name_is_shown_by_their_number(
    pool: Pool, owner: Browser, made: Made
) -> None:
    await Meta(pool).say(made, callback(made, "Hello", by=RUI))
    await pool.execute("UPDATE whatsapp_messages SET content = replace(content, 'Amal Bén', E'\\u200b\\u3164')")
    page = await owner.get("/inbox")
    assert "Amal Bén" not in page.words
    assert "<strong>+258 84 222 2222</strong>" in page.text
    page = await owner.get(f"/inbox/{await first(pool, 'whatsapp')}")
    assert '<h2 id="who">+258 84 222 2222</h2>' in page.text


async def test_a_contact_is_called_by_name_however_meta_writes_the_number(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    """Without the ninth digit of Brazil it was a stranger's, and could not be added as a contact, who existed."""
    entry = Entry("+5511987654321", "Bia Contacto")
    async with pool.acquire() as conn:
        await records.create(conn, tenant.actor, entry=entry)
    meta = Meta(pool)
    await meta.say(made, callback(made, "Olá", by="+551187654321"))
    await meta.say(made, callback(made, "Hm", by="+2101234567"))
    page = await owner.get("/inbox")
    assert "Bia Contacto" in page.words, page.words
    for id in await pool.fetch("SELECT id, peer FROM inbox_threads ORDER BY peer"):
        page = await owner.get(f"/inbox/{id['id']}")
        is_known = id["peer"] == "+551187654321"
        assert (page.status, f"/inbox/{id['id']}/contact" in page.text) == (200, not is_known), page.words


async def test_a_contact_who_hides_the_number_now_is_still_called_by_name_and_found_by_it(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    """Meta no longer tells it once they have a username: they were a stranger's user id, and an answer goes there."""
    async with pool.acquire() as conn:
        await records.create(conn, tenant.actor, entry=Entry(RUI, "Rui Contacto"))
    meta = Meta(pool)
    await meta.say(made, callback(made, "Hello", by=RUI, user_id="MZ.1"))
    await meta.say(made, callback(made, "Is it late?", by=None, user_id="MZ.1"))
    await meta.say(made, callback(made, "Who are you?", by=None, user_id="MZ.2"))
    assert people(await owner.get("/inbox")) == ["Amal Bén", "Rui Contacto"]
    for typed in ("contacto", RUI, "84 222", "MZ.1"):
        assert people(await owner.get(f"/inbox?q={quote(typed)}")) == ["Rui Contacto"], typed
    id = await pool.fetchval("SELECT id FROM inbox_threads WHERE peer = 'MZ.1'")
    page = await owner.get(f"/inbox/{id}")
    assert '<h2 id="who">Rui Contacto</h2>' in page.text
    assert "+258 84 222 2222" in page.words
    await owner.submit(page, f"/inbox/{id}/reply", message="No")
    sent = "SELECT recipient FROM whatsapp_messages WHERE direction = 'outbound'"
    assert await pool.fetchval(sent) == "MZ.1"


async def test_whoever_has_a_calling_code_that_is_not_known_can_be_answered(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    """Meta knows it: the answer was a server error."""
    await Meta(pool).say(made, callback(made, "Hm", by="+2101234567"))
    id = await first(pool, "whatsapp")
    page = await owner.get(f"/inbox/{id}")
    page = await owner.post(f"/inbox/{id}/reply", page.form(f"/inbox/{id}/reply") | {"message": "Yes?"})
    assert (page.status, page.path.partition("?")[0]) == (200, f"/inbox/{id}"), page.words
    sent = "SELECT recipient, country FROM whatsapp_messages WHERE direction = 'outbound'"
    assert [tuple(row) for row in await pool.fetch(sent)] == [("+2101234567", "001")]


async def test_an_answer_that_may_not_be_given_says_why(pool: Pool, owner: Browser, made: Made) -> None:
    await Meta(pool).say(made, callback(made, "Hello", clock.now() - timedelta(hours=30), by=RUI))
    id = await first(pool, "whatsapp")
    page = await owner.get(f"/inbox/{id}")
    assert 'disabled placeholder="WhatsApp lets you answer with any text for 24 hours' in page.text
    assert "Send a template" in page.words
    assert "The time to answer with any text ended on" in page.words
    # The window closed while somebody was writing: their text stays.
    page = await owner.post(f"/inbox/{id}/reply", page.form(f"/inbox/{id}/reply") | {"message": "Too late"})
    assert (page.status, "only a template can be sent" in page.words) == (422, True)
    assert ">Too late</textarea>" in page.text
    page = await owner.post(f"/inbox/{id}/reply", page.form(f"/inbox/{id}/reply") | {"message": "\r\n  Too late"})
    # The first line break after the tag is not part of the text.
    assert ">\n\n  Too late</textarea>" in page.text
    for typed, said_of_it in (
        ("\u200b", "Write a text."),
        ("", "Write a text."),
        ("x" * 5_000, "The text is too long."),
    ):
        page = await owner.post(f"/inbox/{id}/reply", page.form(f"/inbox/{id}/reply") | {"message": typed})
        assert (page.status, said_of_it in page.words) == (422, True)
    # Changing the language or reloading the page requests the address that the form posts to.
    for query in ("", "?state=mine"):
        assert (await owner.get(f"/inbox/{id}/reply{query}")).path == f"/inbox/{id}{query}"
    # Somebody who sent STOP.
    await write_sms(pool, "STOP")
    id = await first(pool, "sms")
    page = await owner.get(f"/inbox/{id}")
    assert "This person opted out: nothing can be sent to them." in page.text
    assert "They wrote “stop”." in page.words
    page = await owner.submit(page, f"/inbox/{id}/lift")
    assert "only they can lift it" in page.words


async def test_the_list_does_not_offer_to_answer_who_opted_out(pool: Pool, owner: Browser, made: Made) -> None:
    await Meta(pool).say(made, callback(made, "Where is my order?", by=RUI))
    assert "open until" in (await owner.get("/inbox")).words
    async with pool.acquire() as conn:
        await optouts.add(conn, made.actor, phone=RUI)
    page = await owner.get("/inbox")
    assert "Where is my order?" in page.words
    assert ("open until" in page.words, "<progress" in page.text) == (False, False)
    page = await owner.get("/send?channel=reply")
    assert "Nobody at the moment." in page.words


@pytest.mark.parametrize("author", ["MPESA", "1234", "841111111", "+PROMO"])
async def test_who_wrote_from_no_number_cannot_be_answered(pool: Pool, owner: Browser, made: Made, author: str) -> None:
    """A message to a name used to be accepted, and then no worker could send anything for anybody."""
    await write_sms(pool, "Hello", by=author)
    id = await first(pool, "sms")
    page = await owner.get(f"/inbox/{id}")
    assert "They wrote from a name or a short code, to which nothing can be sent." in page.text
    page = await owner.submit(page, f"/inbox/{id}/reply", message="Who is it?")
    assert (page.status, ">Who is it?</textarea>" in page.text) == (422, True)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0


async def test_an_answer_goes_to_the_number_that_somebody_moved_to(pool: Pool, owner: Browser, made: Made) -> None:
    """Their old number reaches nobody, or some day a stranger."""
    meta, other, newest = Meta(pool), "+258843333333", "+258844444444"

    def moved(old: str, new: str, hours: float) -> Change:
        system = {"type": "user_changed_number", "body": f"User changed from {old} to {new}", "wa_id": new[1:]}
        return callback(made, type="system", at=clock.now() - timedelta(hours=hours), by=old, system=system)

    # Two conversations turn out to belong to one person, each with a thread.
    await meta.say(made, callback(made, "Where is my order?", clock.now() - timedelta(hours=3), by=RUI))
    await meta.say(made, callback(made, "It is late", clock.now() - timedelta(hours=4), by=other))
    await meta.say(made, moved(other, RUI, 2.5), moved(RUI, newest, 2))
    threads = [row["id"] for row in await pool.fetch("SELECT id FROM inbox_threads ORDER BY id")]
    for id in threads:
        page = await owner.submit(await owner.get(f"/inbox/{id}"), f"/inbox/{id}/reply", message="On its way.")
        assert page.status == 200, page.words
    answered = "SELECT array_agg(recipient) FROM whatsapp_messages WHERE direction = 'outbound'"
    assert await pool.fetchval(answered) == [newest] * len(threads)
    # A notification that arrives after they wrote from there changes nothing.
    await meta.say(made, callback(made, "Thank you", clock.now() - timedelta(hours=1), by=newest))
    await meta.say(made, moved(ANA, RUI, 5))
    assert await pool.fetchval("SELECT count(*) FROM inbox_threads WHERE peer <> $1", newest) == 0
    assert await pool.fetchval("SELECT recipient FROM whatsapp_conversations WHERE merged_into IS NULL") == newest


async def test_who_got_the_number_of_somebody_else_gets_a_conversation_of_their_own(
    pool: Pool, owner: Browser, made: Made
) -> None:
    meta, newest = Meta(pool), "+258844444444"
    at = clock.now() - timedelta(hours=20)
    system = {"type": "user_changed_number", "body": "User changed", "wa_id": newest[1:]}
    await meta.say(made, callback(made, "My account is 4711", at - timedelta(hours=2), by=RUI))
    await meta.say(made, callback(made, type="system", at=at, by=RUI, system=system))
    await meta.say(made, callback(made, "Good day", clock.now() - timedelta(hours=1), by=RUI))
    threads = {row["peer"]: row["id"] for row in await pool.fetch("SELECT id, peer FROM inbox_threads")}
    page = await owner.get(f"/inbox/{threads[RUI]}")
    page = await owner.submit(page, f"/inbox/{threads[RUI]}/reply", message="How can we help?")
    assert page.status == 200, page.words
    async with pool.acquire() as conn:
        shown = {
            peer: [one.text for one in (await inbox.get(conn, made.actor, id=id)).bubbles]
            for peer, id in threads.items()
        }
    assert shown[RUI] == ["Good day", "How can we help?"]
    assert not set(shown[newest]) & {"Good day", "How can we help?"}


async def test_whoever_has_two_conversations_is_done_with_once(pool: Pool, owner: Browser, made: Made) -> None:
    """Two numbers turn out to belong to one person: once this thread is closed, older messages from the other number do
    not reopen it."""
    meta, other = Meta(pool), "+258843333333"
    await meta.say(made, callback(made, "It is late", by=other))
    await meta.say(made, callback(made, "Where is my order?", by=RUI))
    system = {"type": "user_changed_number", "body": "User changed", "wa_id": RUI[1:]}
    await meta.say(made, callback(made, type="system", by=other, system=system))
    page = await owner.get("/inbox")
    assert ("Where is my order?" in page.words, "It is late" in page.words) == (True, False)
    newer = await pool.fetchval("SELECT id FROM inbox_threads ORDER BY message_id DESC LIMIT 1")
    page = await owner.get(f"/inbox/{newer}")
    assert "It is late" in page.words
    assert await pool.fetchval("SELECT count(*) FROM inbox_threads WHERE seen_id = message_id") == 2
    page = await owner.submit(page, f"/inbox/{newer}/assign", to="me")
    assert await pool.fetchval("SELECT count(DISTINCT assigned_to) FROM inbox_threads") == 1
    page = await owner.submit(page, f"/inbox/{newer}/close", closed="yes")
    assert "Nothing here." in page.words
    await owner.submit(await owner.get(f"/inbox/{newer}"), f"/inbox/{newer}/close", closed="no")
    assert "Nothing here." in (await owner.get("/inbox?state=closed")).words
    # The tabs say what the conversations are, not what to do.
    assert "Abertas Minhas Fechadas Todas" in (await owner.get("/inbox", Accept_Language="pt")).words
    # A message to the newer one leaves the older as it is.
    await owner.submit(await owner.get(f"/inbox/{newer}"), f"/inbox/{newer}/close", closed="yes")
    await meta.say(made, callback(made, "Hello?", by=RUI))
    page = await owner.get("/inbox")
    assert ("Hello?" in page.words, "It is late" in page.words) == (True, False)


async def test_an_answer_that_failed_says_why_and_what_to_try(pool: Pool, owner: Browser, made: Made) -> None:
    await Meta(pool).say(made, callback(made, "Where is my order?", by=RUI))
    id = await first(pool, "whatsapp")
    page = await owner.get(f"/inbox/{id}")
    left = re.search(r'<progress max="24" value="([0-9.]+)"', page.text)
    assert left
    assert 23 < float(left[1]) <= 24
    page = await owner.submit(page, f"/inbox/{id}/reply", message="On its way.")
    assert "Try as a template" not in page.words
    # A template helps where only a template may be sent, and not whom no message reaches.
    for code in ("recipient_unreachable", "window_closed"):
        known = why("whatsapp_failure", code)
        assert known is not None
        await pool.execute(
            "UPDATE whatsapp_messages SET status = 'failed', failed_at = now(), failure_code = $1"
            " WHERE direction = 'outbound'",
            code,
        )
        page = await owner.get(f"/inbox/{id}")
        assert known.words("en").customer in page.words
        assert ("Try as a template" in page.words) == (code == "window_closed")
    way = re.search(r'href="([^"]+)">Try as a template<', page.text)
    assert way
    form = await owner.get(html.unescape(way[1]))
    assert (form.status, str(made.number_id) in form.text, html.escape(RUI) in form.text) == (200, True, True)
    # What was an inbound keyword is marked in the list.
    await write_sms(pool, "STOP")
    stopped = (await owner.get("/inbox")).text.partition(f'id="t-{await first(pool, "sms")}"')[2].partition("</li>")[0]
    assert '<span class="tag">STOP</span>' in stopped


async def test_marks_are_light(pool: Pool, tenant: Tenant, owner: Browser, made: Made) -> None:
    await write_sms(pool, "Hello")
    id = await first(pool, "sms")
    page = await owner.submit(await owner.get(f"/inbox/{id}"), f"/inbox/{id}/assign", to="me")
    assert "Not mine" in page.words
    assert "Hello" in (await owner.get("/inbox?state=mine")).words
    page = await owner.submit(page, f"/inbox/{id}/assign", to="nobody")
    assert "Nothing here." in (await owner.get("/inbox?state=mine")).words
    page = await owner.submit(page, f"/inbox/{id}/close", closed="yes")
    assert "The conversation is closed." in page.words
    assert "Hello" not in (await owner.get("/inbox")).words
    assert "Hello" in (await owner.get("/inbox?state=closed")).words
    await write_sms(pool, "Me again")
    assert "Me again" in (await owner.get("/inbox")).words, "a new message opens it"
    page = await owner.submit(await owner.get(f"/inbox/{id}"), f"/inbox/{id}/contact", name="Ana Silva")
    assert "The contact is added." in page.words
    assert "Ana Silva" in (await owner.get("/inbox")).words
    page = await owner.submit(await owner.get(f"/inbox/{id}"), f"/inbox/{id}/suppress")
    assert "Nothing more is sent to this person." in page.words
    for _ in range(2):  # two people press it, on pages of the same age
        lifted = await owner.submit(page, f"/inbox/{id}/lift")
        assert "This person can be messaged again." in lifted.words
    rows = await pool.fetch(
        "SELECT action FROM audit_log WHERE action LIKE 'conversation.%' OR action LIKE 'opt_out.%' ORDER BY id"
    )
    assert [row["action"] for row in rows] == [
        "conversation.assigned",
        "conversation.assigned",
        "conversation.closed",
        "opt_out.added",
        "opt_out.lifted",
    ]


async def test_how_often_an_answer_fails_is_counted_among_what_was_sent(pool: Pool, owner: Browser, made: Made) -> None:
    """What they wrote is not to their number, and does not fail."""
    await Meta(pool).say(made, callback(made, "Where is my order?", by=RUI))
    where = f"/inbox/{await first(pool, 'whatsapp')}"
    for sent in (1, 2):
        await owner.submit(await owner.get(where), f"{where}/reply", message=f"On its way ({sent}).")
        id = await pool.fetchval(
            "UPDATE whatsapp_messages SET status = 'failed', failure_code = 'recipient_unreachable', failed_at = now()"
            " WHERE direction = 'outbound' AND status = 'accepted' RETURNING id"
        )
        words = (await owner.get(f"/messages/{id}")).words
        assert ("Of the last" in words, "Of the last 2 to this number, 2 ended" in words) == (sent == 2,) * 2, words
        # What they wrote is listed, too, as what it is.
        assert re.search(r"Others to or from the same person .* Received", words), words


async def test_done_closes_no_message_that_nobody_saw(pool: Pool, owner: Browser, made: Made) -> None:
    """They write while somebody presses the button, on a page that does not show it yet."""
    await write_sms(pool, "Hello")
    id = await first(pool, "sms")
    page = await owner.get(f"/inbox/{id}")
    await write_sms(pool, "One more thing")
    page = await owner.submit(page, f"/inbox/{id}/close", closed="yes")
    assert ("They have written again, so the conversation stays open." in page.words, page.is_refusal) == (True, True)
    assert "One more thing" in page.words, "it is shown what they wrote"
    assert "One more thing" in (await owner.get("/inbox")).words
    # Someone who has seen it closes it; closing it again, in another tab, says that it is closed.
    for _ in range(2):
        assert "The conversation is closed." in (await owner.submit(page, f"/inbox/{id}/close", closed="yes")).words
    page = await owner.submit(await owner.get(f"/inbox/{id}"), f"/inbox/{id}/close", closed="no")
    assert "One more thing" in (await owner.get("/inbox")).words
    acts = await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'conversation.closed'")
    assert acts == 2, "closed once, opened once"


async def test_an_earlier_page_shows_nothing_that_is_new(
    pool: Pool, owner: Browser, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links to a message do not lead to where the conversation continues."""
    monkeypatch.setattr(screen, "BUBBLES", 2)
    for text in ("stop", "Where are you?", "Hello?", "Anybody?"):
        await write_sms(pool, text)
    id = await first(pool, "sms")
    stop = await pool.fetchval("SELECT min(id::text) FROM received_messages")
    page = await owner.get(f"/go/{stop}")
    assert ("stop" in page.words, page.text.count("Anybody?")) == (True, 1), "only the list beside it has the last"
    assert ('class="unread"' in page.text, 'class="unread"' in (await owner.get("/inbox")).text) == (True, True)
    page = await owner.submit(page, f"/inbox/{id}/close", closed="yes")
    assert ("They have written again, so the conversation stays open." in page.words, page.is_refusal) == (True, True)
    assert "Hello?" in page.words
    # Someone who has read the newest message may look back as far as they like.
    assert 'class="unread"' not in (await owner.get("/inbox")).text
    page = await owner.get(f"/go/{stop}")
    assert "The conversation is closed." in (await owner.submit(page, f"/inbox/{id}/close", closed="yes")).words


async def test_an_answer_leads_to_what_it_answers_however_far_back(
    pool: Pool, owner: Browser, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "BUBBLES", 3)
    meta = Meta(pool)
    await meta.say(made, callback(made, "Where is my order?", by=RUI, id="wamid.ASKED"))
    id = await first(pool, "whatsapp")
    answered = f"b-{await pool.fetchval('SELECT id FROM whatsapp_messages')}"
    for text in ("Hello?", "Anybody?"):
        await meta.say(made, callback(made, text, by=RUI, context={"id": "wamid.ASKED"}))
    page = await owner.get(f"/inbox/{id}")
    assert page.text.count(f'href="#{answered}"') == page.text.count("answers an earlier message") == 2
    await meta.say(made, callback(made, "It is late", by=RUI))
    page = await owner.get(f"/inbox/{id}?state=mine&q=amal")
    way = re.search(r'class="quoted small" href="([^"]+)"', page.text)
    assert way
    assert f'id="{answered}"' not in page.text
    address, _, place = html.unescape(way[1]).partition("#")
    assert (place, "state=mine&q=amal" in address) == (answered, True)
    assert f'id="{answered}"' in (await owner.get(address)).text


async def test_what_is_no_text_shows_what_it_consists_of(pool: Pool, owner: Browser, made: Made) -> None:
    """The person who answers drives there, calls that number, packs those items."""
    meta = Meta(pool)

    async def bubble(type: str, **content: object) -> str:
        await meta.say(made, callback(made, type=type, by=RUI, **content))
        page = await owner.get(f"/inbox/{await first(pool, 'whatsapp')}")
        said = page.text.rpartition('<div class="bubble">')[2].partition("</div>")[0]
        listed = page.text.partition('<span class="last">')[2].partition("</span>")[0]
        words = re.sub("<[^>]*>", "", said)
        assert re.sub("<[^>]*>", "", listed).split() == words.split(), "the list says the same"
        (id,) = await pool.fetchrow("SELECT id FROM whatsapp_messages ORDER BY id DESC LIMIT 1")
        own = (await owner.get(f"/messages/{id}")).text.partition('<p class="bubble">')[2].partition("</p>")[0]
        assert re.sub("<[^>]*>", "", own).split() == words.split(), "its own page, too"
        return html.unescape(words)

    point = {"latitude": -25.9655, "longitude": 32.5832}
    assert await bubble("location", location=point) == "Place -25.9655, 32.5832"
    named = point | {"name": "Casa", "address": "Av. Julius Nyerere 12"}
    assert await bubble("location", location=named) == "Place Casa\nAv. Julius Nyerere 12\n-25.9655, 32.5832"
    cards = [
        {"name": {"formatted_name": "João"}, "phones": [{"phone": "+258 84 999 0000"}, {"phone": "+258 82 1"}]},
        {"name": {"formatted_name": "Eva"}},
    ]
    assert await bubble("contacts", contacts=cards) == "Contact João: +258 84 999 0000, +258 82 1\nEva"
    item = {"product_retailer_id": "SKU-1", "quantity": 2, "item_price": 10.5, "currency": "MZN"}
    order = {"text": "By noon", "product_items": [item, {"product_retailer_id": "SKU-2", "quantity": 1}]}
    assert await bubble("order", order=order) == "Order By noon\n2 × SKU-1 (10.5 MZN)\n1 × SKU-2"
    assert await bubble("document", document={"filename": "bill.pdf"}) == "Document bill.pdf"
    assert (await bubble("request_welcome")).strip() == "Opened the chat"
    assert (await bubble("hologram")).strip() == "Something that cannot be shown"
    assert (await bubble("text", text={"body": ""})).strip() == "No text"
    assert (await bubble("text", text={"body": " \n"})).strip() == "No text"
    assert await bubble("reaction", reaction={"emoji": "👍"}) == "Reaction 👍"
    assert (await bubble("reaction", reaction={})).strip() == "Reaction removed"
    given = {"flow_token": "t", "day": "Friday", "seats": 2, "meals": ["fish", "rice"], "note": "", "by": {"car": True}}
    form = {"name": "flow", "body": "Sent", "response_json": json.dumps(given)}
    answers = 'Choice Sent\nday: Friday\nseats: 2\nmeals: fish, rice\nby: {"car":true}'
    assert await bubble("interactive", interactive={"type": "nfm_reply", "nfm_reply": form}) == answers
    # Half an emoji costs neither the other answers nor the rest of its own.
    broken = form | {"response_json": json.dumps({"note": "a\0b\ud83d", "n\0": "c", "day": "Friday"})}
    readable = "Choice Sent\nnote: ab?\nn: c\nday: Friday"
    assert await bubble("interactive", interactive={"type": "nfm_reply", "nfm_reply": broken}) == readable
    for unreadable in ("[1]", "{", "[" * 5_000, r'"\ud83d"'):
        reply = {"type": "nfm_reply", "nfm_reply": form | {"response_json": unreadable}}
        assert await bubble("interactive", interactive=reply) == "Choice Sent"
    chosen = {"type": "button_reply", "button_reply": {"id": "1", "title": "Tomorrow"}}
    assert await bubble("interactive", interactive=chosen) == "Choice Tomorrow"
    # The message's own page and the list of messages show the same content as here.
    id = await pool.fetchval("SELECT id FROM whatsapp_messages ORDER BY id DESC LIMIT 1")
    for page in (await owner.get(f"/messages/{id}"), await owner.get("/messages")):
        assert "Tomorrow" in page.words


async def test_a_message_that_was_received_is_not_called_delivered(
    pool: Pool, owner: Browser, tenant: Tenant, made: Made
) -> None:
    """Nor was the time until its callback arrived its delivery time."""
    async with pool.acquire() as conn:
        contact = await records.create(conn, tenant.actor, entry=Entry(RUI, "Rui"))
    await Meta(pool).say(made, callback(made, "Where is my order?", clock.now() - timedelta(hours=1), by=RUI))
    id = await pool.fetchval("SELECT id FROM whatsapp_messages")
    await choose(owner, await owner.get("/messages"), "status", "took", "delivered")
    for address in ("/messages", f"/messages/{id}", f"/contacts/{contact.id}", "/"):
        text = (await owner.get(address)).text
        shown = re.findall(r'<span class="status[^"]*">.*?</span>([^<]*)</span>', text, re.S)
        assert [one.strip() for one in shown if one.strip() in ("Received", "Delivered")] == ["Received"], address
    listed = (await owner.get("/messages")).text
    empty = re.findall(r'data-name="(?:Took|Delivered)"[^>]*><span>(?:<span[^>]*>)?–<', listed)
    assert len(empty) == 2
    page = await owner.get(f"/messages/{id}")
    assert "data-final" in page.text
    assert not [said for said in ("after it was accepted", "confirmed the delivery") if said in page.words]
    # A filter for delivered messages does not mean received ones.
    for query, count in (("status=delivered", 0), ("status=delivered&direction=inbound", 1)):
        assert (await owner.get(f"/messages?{query}")).text.count(f'id="m-{id}"') == count, query


async def test_of_two_who_take_a_conversation_at_once_the_second_is_told(
    pool: Pool, tenant: Tenant, made: Made, owner: Browser, other_browser: Browser
) -> None:
    await write_sms(pool, "Hello")
    id = await first(pool, "sms")
    await make_person(pool, tenant, "sara@example.com", "sender")
    await other_browser.sign_in("sara@example.com")
    mine, hers = await owner.get(f"/inbox/{id}"), await other_browser.get(f"/inbox/{id}")
    hers = await other_browser.submit(hers, f"/inbox/{id}/assign", to="me")
    mine = await owner.submit(mine, f"/inbox/{id}/assign", to="me")
    said = "It has been assigned to somebody else in the meantime, and stays assigned to them."
    assert (said in mine.words, mine.is_refusal) == (True, True)
    assert "Hello" in (await other_browser.get("/inbox?state=mine")).words
    # Someone who sees its assignee may take it over, but a page older than that does not then give it up for them.
    mine = await owner.submit(mine, f"/inbox/{id}/assign", to="me")
    assert "Not mine" in mine.words
    await other_browser.submit(hers, f"/inbox/{id}/assign", to="nobody")
    assert "Hello" in (await owner.get("/inbox?state=mine")).words


async def test_who_answers_sees_texts_and_nobody_else(
    pool: Pool, tenant: Tenant, made: Made, other_browser: Browser, browser: Browser
) -> None:
    await write_sms(pool, "A secret")
    id = await first(pool, "sms")
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    for path in ("/inbox", f"/inbox/{id}"):
        page = await other_browser.get(path)
        assert (page.status, "A secret" in page.text, ANA in page.text, "••• 1111" in page.words) == (
            200,
            False,
            False,
            True,
        )
    assert await pool.fetchval("SELECT seen_id FROM inbox_threads") is None, "who cannot answer has not seen to it"
    await make_person(pool, tenant, "sara@example.com", "sender")
    await browser.sign_in("sara@example.com")
    assert "A secret" in (await browser.get(f"/inbox/{id}")).words
    assert "Nobody writes in test mode" in (await browser.get("/inbox?mode=test")).words


async def test_pages_parts_and_erasure(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "LINES", 3)
    for number in range(5):
        await write_sms(pool, f"text {number:02}.", by=f"+2588400000{number:02}")
    page = await owner.get("/inbox")
    assert ("text 04." in page.words, "text 01." in page.words) == (True, False)
    older = page.text.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    page = await owner.get(older)
    assert ("text 04." in page.words, "text 01." in page.words, "text 00." in page.words) == (False, True, True)
    # A position from another list leads to the beginning.
    assert (await owner.get(older + "&state=closed")).path == "/inbox?state=closed"
    await receive(pool, part(1, "Hello ", total=3, by=ANA, to="90210"), part(3, "world", total=3, by=ANA, to="90210"))
    await pool.execute("UPDATE inbound_messages SET received_at = received_at - interval '3 days'")
    async with pool.acquire() as conn:
        await received.process_due(conn)
    await pool.execute("UPDATE inbound_messages SET due_at = now() WHERE state = 'waiting'")
    async with pool.acquire() as conn:
        await received.process_due(conn)
    id = await pool.fetchval("SELECT id FROM inbox_threads WHERE peer = $1", ANA)
    page = await owner.get(f"/inbox/{id}")
    assert "Hello [...] world" in page.words
    assert "1 part never arrived" in page.words
    async with pool.acquire() as conn:
        await erasure.erase(conn, tenant.actor, address=ANA)
    assert (await owner.get(f"/inbox/{id}")).status == 404


def people(page: Page) -> list[str]:
    """The users listed."""
    return re.findall(
        r"<strong>(.*?)</strong>", page.text.partition('<section class="threads"')[2].partition("</ul>")[0]
    )


async def test_who_wrote_is_found_by_name_and_by_number(pool: Pool, tenant: Tenant, owner: Browser, made: Made) -> None:
    async with pool.acquire() as conn:
        await records.create(conn, tenant.actor, entry=Entry(name="Ana Conceição", phone=ANA))
    await write_sms(pool, "Is it late?")
    await write_sms(pool, "Anybody?", by="+258843000111")
    await Meta(pool).say(made, callback(made, "Where is it?", by=RUI))
    ana, rui, nobody = "Ana Conceição", "Amal Bén", "+258 84 300 0111"
    assert people(await owner.get("/inbox")) == [rui, nobody, ana]
    for typed, found in (
        ("conceição", [ana]),
        ("conceic\u0327a\u0303o", [ana]),  # the same, as some keyboards encode it
        ("amal", [rui]),
        ("+258 84 111-1111", [ana]),
        ("084 300 0111", [nobody]),
        ("00258843000111", [nobody]),
        ("25884", [rui, nobody, ana]),
        ("0", []),
        ("Ana 84", []),
        ("%", []),
        ("nobody", []),
    ):
        page = await owner.get(f"/inbox?q={quote(typed)}")
        assert people(page) == found, typed
        assert ("Nobody with this name or number has written." in page.words) == (not found)
    # Closed ones can be found too, or alone, and a conversation opens beside the results.
    id = await pool.fetchval("SELECT id FROM inbox_threads WHERE peer = $1", ANA)
    page = await owner.get(f"/inbox/{id}?q=ana")
    await owner.submit(page, f"/inbox/{id}/close?q=ana", closed="yes")
    assert people(await owner.get("/inbox?q=ana")) == [ana]
    page = await owner.get("/inbox?q=ana&state=open")
    assert people(page) == []
    # Somebody has: only not among these.
    assert ("Nothing here." in page.words, "Nobody with this name" in page.words) == (True, False)
    assert people(await owner.get("/inbox?q=ana&state=closed")) == [ana]
    page = await owner.get("/inbox?q=25884")
    assert f'href="/inbox/{id}?q=25884"' in page.text
    assert people(await owner.get(f"/inbox/{id}?q=25884")) == [rui, nobody, ana]
    assert people(await owner.get("/inbox?state=all")) == [rui, nobody, ana]


@pytest.mark.parametrize(
    ("country", "peer", "typed"),
    [
        ("GB", "+442079460958", ("+44 (0)20 7946 0958", "020 7946 0958", "020 7946", "(0)20 7946", "44 20 7946 0958")),
        ("RU", "+79161234567", ("8 (916) 123-45-67", "+7 916 123-45-67", "916 123")),
        (None, "+79161234567", ("+7 (916) 123-45-67", "0079161234567")),
    ],
)
async def test_a_number_is_found_as_it_is_written_at_home(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made, country: str | None, peer: str, typed: tuple[str, ...]
) -> None:
    await pool.execute("UPDATE organizations SET country = $2 WHERE id = $1", tenant.id, country)
    await write_sms(pool, "Is it late?", by=peer)
    await write_sms(pool, "Anybody?")
    for text in typed:
        page = await owner.get(f"/inbox?q={quote(text)}")
        assert people(page) == [phones.spaced(peer)], text


async def test_a_name_without_letters_is_found(pool: Pool, owner: Browser, made: Made) -> None:
    change = callback(made, "Where is it?", by=RUI)
    change[2]["contacts"][0]["profile"]["name"] = "24/7"
    await Meta(pool).say(made, change)
    assert people(await owner.get("/inbox?q=24/7")) == ["24/7"]
    assert people(await owner.get("/inbox?q=007")) == []


async def test_what_is_done_with_a_found_conversation_keeps_the_search(
    pool: Pool, tenant: Tenant, owner: Browser, made: Made
) -> None:
    async with pool.acquire() as conn:
        await records.create(conn, tenant.actor, entry=Entry(name="Ana Conceição", phone=ANA))
    await write_sms(pool, "Is it late?")
    await write_sms(pool, "Anybody?", by="+258843000111")
    id = await pool.fetchval("SELECT id FROM inbox_threads WHERE peer = $1", ANA)
    kept = "?state=open&q=ana"
    page = await owner.get(f"/inbox/{id}{kept}")
    for act, values in (
        ("assign", {"to": "me"}),
        ("reply", {"message": "Tomorrow."}),
        ("suppress", {}),
        ("lift", {}),
        ("close", {"closed": "no"}),
    ):
        page = await owner.submit(page, f"/inbox/{id}/{act}{kept}", **values)
        assert (page.path.partition("#")[0], people(page)) == (f"/inbox/{id}{kept}", ["Ana Conceição"]), act
    page = await owner.submit(page, f"/inbox/{id}/close{kept}", closed="yes")
    assert (page.path, people(page)) == (f"/inbox{kept}", [])
    stranger = await pool.fetchval("SELECT id FROM inbox_threads WHERE peer = '+258843000111'")
    page = await owner.get(f"/inbox/{stranger}?q=8430")
    page = await owner.submit(page, f"/inbox/{stranger}/contact?q=8430", name="Eva")
    assert (page.path, people(page)) == (f"/inbox/{stranger}?q=8430", ["Eva"])
    # A reply that is reloaded.
    assert (await owner.get(f"/inbox/{stranger}/reply?q=8430")).path == f"/inbox/{stranger}?q=8430"


async def test_whoever_may_not_see_numbers_does_not_find_them_out(
    pool: Pool, tenant: Tenant, made: Made, other_browser: Browser
) -> None:
    await write_sms(pool, "Is it late?")
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    for typed in (ANA, "nobody"):
        page = await other_browser.get(f"/inbox?q={quote(typed)}")
        assert (people(page), 'id="q"' in page.text) == (["••• 1111"], False)


async def test_a_search_goes_on_where_its_look_ended(
    pool: Pool, owner: Browser, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "SEARCHED", 2)
    monkeypatch.setattr(screen, "LINES", 1)
    await write_sms(pool, "first", by=ANA)
    await write_sms(pool, "second", by="+258841111122")
    for number in range(3):
        await write_sms(pool, "other", by=f"+2588400000{number:02}")
    address, found, looks = "/inbox?q=8411111", [], 0
    while address:
        page = await owner.get(address)
        found += people(page)
        looks += "Searched the conversations back to" in page.words
        link = re.search(r'href="([^"]+after=[^"]+)"', page.text)
        address = html.unescape(link[1]) if link else ""
    assert (found, looks) == (["+258 84 111 1122", "+258 84 111 1111"], 1)


@pytest.mark.parametrize("channel", ["sms", "whatsapp"])
async def test_a_look_that_ends_early_is_gone_on_with_where_it_ended(
    pool: Pool, owner: Browser, made: Made, monkeypatch: pytest.MonkeyPatch, channel: str
) -> None:
    """Each search also reads rows that do not belong to the thread, so a page may be empty."""
    monkeypatch.setattr(inbox, "LOOK", 3)
    meta = Meta(pool)
    _, another_line, _ = await making.number(pool, made.organization_id, made.account_id)
    for number in range(3):
        for _ in range(4):
            if channel == "sms":
                await write_sms(pool, "other", by=RUI)
            else:
                await meta.say(made, callback(made, "other", by=ANA, graph_id=another_line))
        for text in (f"text {number}a.", f"text {number}b."):
            await (write_sms(pool, text) if channel == "sms" else meta.say(made, callback(made, text, by=ANA)))
    if channel == "sms":
        id = await pool.fetchval("SELECT id FROM inbox_threads WHERE peer = $1", ANA)
    else:
        id = await pool.fetchval("SELECT id FROM inbox_threads WHERE line_id = $1", made.number_id)
    pages, address = [], f"/inbox/{id}"
    while address:
        page = await owner.get(address)
        said = page.text.partition('<ol class="bubbles"')[2].partition("</ol>")[0]
        pages.append(re.findall(r"text \d[ab]\.", said))
        assert "other" not in said
        link = re.search(r'href="([^"]+)">(?:(?!</a>).)*Earlier messages', page.text)
        address = html.unescape(link[1]) if link else ""
    assert [text for some in reversed(pages) for text in some] == [
        f"text {n}{part}." for n in range(3) for part in "ab"
    ]
    assert len(pages) > 3, "no look goes further than it may"
    assert [] in pages


@pytest.mark.usefixtures("armed")
async def test_what_is_sealed_at_rest_is_read_here_as_it_was_written(pool: Pool, owner: Browser, made: Made) -> None:
    async with pool.acquire() as conn:
        await text_keys.switch(conn, organization_id=made.actor.organization_id, on=True)
    await write_sms(pool, "Is it late?")
    body = await pool.fetchval("SELECT body FROM received_messages")
    assert text_keys.is_marked(body)
    assert "Is it late?" in (await owner.get("/inbox")).words
    id = await first(pool, "sms")
    page = await owner.submit(await owner.get(f"/inbox/{id}"), f"/inbox/{id}/reply", message="Tomorrow.")
    assert order(page, "Is it late?", "Tomorrow.")
    assert text_keys.is_marked(await pool.fetchval("SELECT body FROM messages"))
