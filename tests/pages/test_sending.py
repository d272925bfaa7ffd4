"""Sending manually: refusals, questions, what is shown before and after; and each form sends once."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

import pytest

from heliograph.accounts import organizations
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process import spans
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut
from heliograph.contacts import records
from heliograph.sms.accepting import sender_ids
from tests.tracing import Exporter, exporter, without_ids

from .conftest import Browser, Page, Tenant, make_person

__all__ = ["exporter"]

SENDS = "SELECT recipient, body, mode, send_at, expires_at, guarantee, client_reference FROM messages ORDER BY id"


@pytest.fixture(autouse=True)
async def country(pool: Pool, tenant: Tenant) -> None:
    """The organization whose national numbers are read."""
    async with pool.acquire() as conn:
        await organizations.configure(conn, id=tenant.actor.organization_id, country="MZ")


async def fill(browser: Browser, mode: str = "", **typed: str) -> dict[str, str]:
    page = await browser.get("/send" + mode)
    return page.form("/send" + mode) | typed


def value(page: Page, name: str) -> str:
    """The text in a text area, or in an input."""
    area = re.search(rf'<textarea id="{name}"[^>]*>(.*?)</textarea>', page.text, re.S)
    return html.unescape(area[1]) if area else page.form("/send")[name]


async def test_a_send_that_is_to_be_traced_is(pool: Pool, owner: Browser, exporter: Exporter) -> None:
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    spans.use(exporter, ratio=0)
    await owner.post("/send", await fill(owner, to="+258841234567", message="Olá"))
    assert await pool.fetchval("SELECT count(*) FROM message_traces") == 0
    form = await fill(owner, to="+258841234567", message="Bom dia")
    await owner.post("/send", form, traceparent=f"00-{trace}-{parent}-01")
    (row,) = await pool.fetch("SELECT t.trace_id, m.body FROM message_traces t JOIN messages m ON m.id = t.message_id")
    assert (row["trace_id"].hex, row["body"]) == (trace, "Bom dia")
    (step,) = exporter.steps
    assert (step.name, step.said["http.route"], step.has_ended) == ("POST /send", "/send", True)
    assert "25884" not in without_ids(str(step.said))


async def test_it_sends_once_and_says_what_becomes_of_it(pool: Pool, owner: Browser) -> None:
    form = await fill(owner, to="+258 84 123 4567", message="Olá\r\nAna", reference="order-7", guarantee="at_most_once")
    first, second = await owner.post("/send", form), await owner.post("/send", form)
    assert first.path == second.path, "a double click sends once"
    assert first.path.startswith("/send?sent=")
    (row,) = await pool.fetch(SENDS)
    assert dict(row) | {"expires_at": None} == {
        "recipient": "+258841234567",
        "body": "Olá\nAna",
        "mode": "live",
        "send_at": None,
        "expires_at": None,
        "guarantee": "at_most_once",
        "client_reference": "order-7",
    }
    assert "Accepted" in first.words
    assert (value(first, "message"), value(first, "to")) == ("Olá\nAna", "+258841234567")
    assert ">Send another<" in first.text.replace("</svg>", "")
    fragment = await owner.get(first.path, HX_Request="true")
    assert fragment.text.lstrip().startswith('<p class="lead" id="state"')
    # Another text in the same form is not a replay: the page says so, and the next attempt sends it.
    page = await owner.post("/send", form | {"message": "Adeus"})
    assert (page.status, "This form was sent before with other values." in page.words) == (422, True)
    page = await owner.post("/send", page.form("/send") | {"message": "Adeus"})
    assert page.status == 200
    assert await pool.fetchval("SELECT count(*) FROM messages") == 2
    # Again, from the list.
    again = await owner.get("/send?again=" + first.path.partition("=")[2])
    assert (value(again, "message"), again.form("/send")["reference"]) == ("Olá\nAna", "order-7")
    said = "Message class: "
    assert said not in first.words, "every message has this class"
    assert f"{said}Transactional messages" in again.words
    assert said not in (await owner.get("/send")).words
    # The form still contains the text that was sent.
    assert "Change the message to see it again." in first.words
    assert "Write a text to see" not in first.words
    await pool.execute("UPDATE messages SET class = 'otp'")
    assert f"{said}One-time codes" in (await owner.get("/send?again=" + first.path.partition("=")[2])).words


async def test_a_preview_stores_nothing_and_shows_what_a_send_would_be(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    form = await fill(owner, to="+258841234567", message="Ação às 5 ✓ " + "x" * 70)
    page = await owner.post("/send/preview", form, HX_Request="true")
    assert "<html" not in page.text
    for said in (
        "2 segments · Unicode",
        "A segment holds 70 characters instead of 160 because of:",
        "Mozambique",
        "+258 84 123 4567",
        "1 message; the quota is 999 after it",
        "HELIOGRAPH",
        "this number cannot be reached yet",
    ):
        assert said in page.words, said
    assert "<mark>✓</mark>" in page.text
    # A supplier for other destinations: nobody waits for another one.
    await pool.execute(
        "INSERT INTO suppliers (id, name, kind, settings, secret, prefixes, created_at, changed_at)"
        " VALUES (gen_random_uuid(), 'main', 'smpp', '{}', '', '{27}', now(), now())"
    )
    elsewhere = await owner.post("/send/preview", form, HX_Request="true")
    assert "this number cannot be reached: the message would fail and be refunded" in elsewhere.words
    assert "Write them plainly" not in page.words, "nothing stands for a tick"
    assert f"curl -sS {owner.base_url}/v1/sms/send" in page.words
    assert "hg_live" not in page.text
    # In PHP, strings in single quotes have only these two escapes.
    quoted = await owner.post("/send/preview", form | {"message": "It's $5 \\ {x}"}, HX_Request="true")
    assert r"'message' => 'It\'s $5 \\ {x}'," in quoted.words
    page = await owner.post("/send/preview", form | {"message": "Ação às 5"}, HX_Request="true")
    assert "Write them plainly: 1 segment" in page.words
    # Without scripts it is a whole page, and a button changes the text.
    page = await owner.post("/send/preview", form | {"message": "Ação às 5", "replace": "1"})
    assert "<html" in page.text
    assert value(page, "message") == "Acao às 5"
    assert "1 segment · GSM-7" in page.words
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0
    # A text alone is counted, and missing input is not an error yet.
    page = await owner.post("/send/preview", form | {"to": "", "message": "Hi"}, HX_Request="true")
    assert ("1 segment · GSM-7" in page.words, 'class="wrong"' in page.text) == (True, False)
    assert (await owner.get("/send/preview")).path == "/send"


async def test_what_a_send_is_refused_for_is_said_at_its_field(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    since = clock.now()
    organization_id = tenant.actor.organization_id
    async with pool.acquire() as conn, conn.transaction():
        said = [
            ("+258840000009", "keyword", "stop"),
            ("+258840000008", "organization", None),
            ("+258840000007", "", None),
        ]
        await optouts.suppress(conn, [OptOut(organization_id, to, since, *whence) for to, *whence in said])
    number = "+258841234567"
    cases: list[tuple[dict[str, str], str, str]] = [
        ({"to": "", "message": "Hi"}, "to", "Enter a phone number or a contact."),
        ({"to": "nobody", "message": "Hi"}, "to", "This is not a phone number, and no contact has this name."),
        ({"to": "+258840000009", "message": "Hi"}, "to", "This person wrote “STOP” on"),
        ({"to": "+258840000008", "message": "Hi"}, "to", "Your organization opted this person out on"),
        ({"to": "+258840000007", "message": "Hi"}, "to", "This person opted out on"),
        ({"to": number, "message": ""}, "message", "Write a text."),
        ({"to": number, "message": "x" * 1601}, "message", "A text can have at most 1,600 characters."),
        ({"to": number, "message": "✓" * 800}, "message", "The text needs more than ten segments."),
        ({"to": number, "message": "Hi", "day": "2026-05-12"}, "day", "Enter both a day and a time."),
        ({"to": number, "message": "Hi", "day": "2020-05-12", "hour": "10:30"}, "day", "The time must be between"),
        ({"to": number, "message": "Hi", "day": "soon", "hour": "now"}, "day", "Enter a day and a time, such as"),
        ({"to": number, "message": "Hi", "validity": "5"}, "validity", "Choose one of those"),
        ({"to": number, "message": "Hi", "guarantee": "maybe"}, "guarantee", "Choose one of those"),
        ({"to": number, "message": "Hi", "sender": "none"}, "sender", "Choose one of those"),
        ({"to": number, "message": "Hi", "sender": str(organization_id)}, "sender", "Choose one of those"),
        ({"to": number, "message": "Hi", "_once": ""}, "form", "This form does not come from this site."),
    ]
    for typed, field, words in cases:
        page = await owner.post("/send", await fill(owner, **typed))
        assert (page.status, words in page.words) == (422, True), (typed, page.words)
        assert f'<a href="#{field}">' in page.text, typed
        assert value(page, "message") == typed["message"], "what was typed is kept"
    await pool.execute("UPDATE quotas SET used = total")
    page = await owner.post("/send", await fill(owner, to=number, message="Hi"))
    assert "The quota does not cover it: 0 left." in page.words
    assert 'href="/usage">See the usage<' in page.text
    await pool.execute("UPDATE organizations SET allowed_countries = '{PT}'")
    await clock_session(owner)
    page = await owner.post("/send", await fill(owner, to=number, message="Hi"))
    assert "This organization may not send to Mozambique." in page.words
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0


async def clock_session(owner: Browser) -> None:
    """Sign in again: a session's data about its organization is cached for half a second."""
    owner.session.cookie_jar.clear()
    await owner.sign_in("ana@example.com")


async def test_whom_a_number_or_name_means_is_never_guessed(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        for name, phone in (("Ana Silva", "+258841111111"), ("Ana Costa", "+258842222222"), ("Rui", "+258843333333")):
            await records.create(conn, tenant.actor, entry=records.Entry(phone=phone, name=name))
    # It is a number at home, and begins like one in Vietnam.
    page = await owner.post("/send", await fill(owner, to="841234567", message="Hi"))
    assert (page.status, "Choose whom you mean." in page.words) == (422, True)
    assert "+258 84 123 4567 · Mozambique" in page.words
    assert "+84 1234567 · Vietnam" in page.words
    page = await owner.post("/send/preview", page.form("/send") | {"message": "Hi", "take": "+258841234567"})
    assert value(page, "to") == "+258841234567"
    # A recipient abroad is asked about, too; one written with + or 00 is not.
    page = await owner.post("/send", await fill(owner, to="351912345678", message="Hi"))
    assert "+351 912 345 678 · Portugal" in page.words
    page = await owner.post("/send", await fill(owner, to="00351912345678", message="Hi"))
    assert page.status == 200
    page = await owner.post("/send", await fill(owner, to="ana", message="Hi"))
    assert "+258 84 111 1111 · Ana Silva" in page.words
    assert "+258 84 222 2222 · Ana Costa" in page.words
    page = await owner.post("/send", await fill(owner, to="rui", message="Hi"))
    assert page.status == 200
    sent = [row["recipient"] for row in await pool.fetch(SENDS)]
    assert sent == ["+351912345678", "+258843333333"]


async def test_later_in_the_readers_zone(pool: Pool, owner: Browser) -> None:
    await pool.execute("UPDATE users SET time_zone = 'Africa/Maputo'")
    await clock_session(owner)
    day = (clock.now() + timedelta(days=2)).date().isoformat()
    page = await owner.post(
        "/send", await fill(owner, to="+258841234567", message="Hi", day=day, hour="10:30", validity="3600")
    )
    assert page.status == 200, page.words
    (row,) = await pool.fetch(SENDS)
    assert row["send_at"].strftime("%H:%M") == "08:30"
    assert (row["expires_at"] - row["send_at"]).total_seconds() == 3600
    assert "waits until" in page.words


async def test_a_time_that_the_clocks_skip_is_refused(pool: Pool, owner: Browser) -> None:
    await pool.execute("UPDATE users SET time_zone = 'Europe/Lisbon'")
    page = await owner.post(
        "/send", await fill(owner, to="+258841234567", message="Hi", day="2026-03-29", hour="01:30")
    )
    assert (page.status, "the clocks go forward past it" in page.words) == (422, True), page.words


async def test_in_test_mode_the_outcome_is_chosen(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    form = await fill(owner, "?mode=test", to="", message="Hi", outcome="0002")
    page = await owner.post("/send?mode=test", form)
    assert page.path.startswith("/send?sent="), page.words
    (row,) = await pool.fetch(SENDS)
    assert (row["mode"], row["recipient"][-4:]) == ("test", "0002")
    # A developer sends there, and only there.
    await make_person(pool, tenant, "dev@example.com", "developer")
    await other_browser.sign_in("dev@example.com")
    assert (await other_browser.get("/send")).status == 403
    form = await fill(other_browser, "?mode=test", to="+258841230000", message="Hi")
    assert (await other_browser.post("/send", form)).status == 403
    page = await other_browser.post("/send?mode=test", form)
    assert page.status == 200
    # What they sent stays hidden from a role that sees no texts.
    assert "+258841230000" not in page.text


async def test_without_a_sender_the_way_to_one_is_shown(owner: Browser, tenant: Tenant, pool: Pool) -> None:
    await pool.execute("DELETE FROM sender_ids")
    page = await owner.get("/send")
    assert "There is no sender yet" in page.words
    assert "Request a sender ID" in page.words
    async with pool.acquire() as conn:
        await sender_ids.request(conn, tenant.actor, value="BAKERY")
        other = await sender_ids.request(conn, tenant.actor, value="SHOP")
    assert "BAKERY: ○ Pending" in (await owner.get("/send")).words
    # Besides one that can be used, those that cannot, with the reason.
    async with pool.acquire() as conn:
        await sender_ids.review(conn, tenant.actor, id=other.id, status="rejected", reason="It is a <brand>.")
        good = await sender_ids.request(conn, tenant.actor, value="ACME")
        await sender_ids.review(conn, tenant.actor, id=good.id, status="approved")
    await pool.execute("UPDATE sender_ids SET created_at = now() - interval '3 hours'")
    page = await owner.get("/send")
    options = re.findall(r"<option disabled>([^<]+)</option>", page.text)
    assert sorted(options) == ["BAKERY (pending, 3 hours ago)", "SHOP (rejected: It is a &lt;brand&gt;.)"]


async def test_without_a_sender_nothing_is_a_dead_end(
    owner: Browser, other_browser: Browser, tenant: Tenant, pool: Pool
) -> None:
    await make_person(pool, tenant, "dev@example.com", "developer")
    await other_browser.sign_in("dev@example.com")
    await pool.execute("DELETE FROM sender_ids")
    page = await other_browser.get("/send?mode=test")
    assert "So do test messages: both modes share the senders." in page.words
    # Someone who may not request one reads who may.
    names = await pool.fetch("SELECT name FROM users JOIN memberships ON user_id = users.id WHERE role = 'owner'")
    assert ("Request a sender ID" in page.words, f"Ask {names[0]['name']}." in page.words) == (False, True)
    assert "So do test messages" not in (await owner.get("/send")).words


async def test_without_a_default_the_sender_that_is_shown_is_meant(owner: Browser, tenant: Tenant, pool: Pool) -> None:
    async with pool.acquire() as conn:
        good = await sender_ids.request(conn, tenant.actor, value="ACME")
        await sender_ids.review(conn, tenant.actor, id=good.id, status="approved")
        former = await pool.fetchval("SELECT id FROM sender_ids WHERE is_default")
        await sender_ids.review(conn, tenant.actor, id=former, status="suspended")
    page = await owner.get("/send?to=%2B258841234567&text=Hello")
    assert "none is approved yet" not in page.words
    assert "From ACME" in page.words
    page = await owner.submit(page, "/send")
    assert await pool.fetchval("SELECT sender FROM messages") == "ACME", page.words


SENDERS = """
INSERT INTO sender_ids (organization_id, id, value, status, created_at, reviewed_at)
SELECT $1, id, 'SENDER ' || n, 'approved', now(), now() FROM unnest($2::uuid[]) WITH ORDINALITY AS made (id, n)
"""


async def test_one_of_very_many_senders_is_found_by_typing(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    usual = await pool.fetchval("SELECT value FROM sender_ids WHERE is_default")
    await pool.execute(SENDERS, tenant.actor.organization_id, [uuid7() for _ in range(60)])
    page = await owner.get("/send")
    assert '<select id="sender"' not in page.text
    assert f'placeholder="{usual}"' in page.text
    assert "<option>SENDER 60</option>" in page.text
    typed = {"to": "+258841234567", "message": "Hello"}
    page = await owner.submit(page, "/send", **typed, sender=" sender 7 ")
    assert page.status == 200
    again = await owner.get("/send?again=" + page.path.partition("=")[2])
    assert again.form("/send")["sender"] == "SENDER 7"
    page = await owner.submit(await owner.get("/send"), "/send", **typed, sender="")
    assert page.status == 200
    sent = await pool.fetch("SELECT sender FROM messages ORDER BY id")
    assert [row["sender"] for row in sent] == ["SENDER 7", usual]
    page = await owner.submit(await owner.get("/send"), "/send", **typed, sender="SENDER 61")
    assert (page.status, page.form("/send")["sender"]) == (422, "SENDER 61")
    assert "Choose one of those that are offered." in page.words

    # A campaign finds it in the same way.
    page = await owner.get("/campaigns/new")
    assert "<option>SENDER 60</option>" in page.text
    looked = {"name": "Sale", "to": "numbers", "numbers": "+258841234567", "text": "Hello", "do": "preview"}
    page = await owner.submit(page, "/campaigns", **looked, sender="sender 9")
    assert (page.status, page.form("/campaigns")["sender"]) == (200, "sender 9"), page.words
    page = await owner.submit(page, "/campaigns", **looked, sender="nobody")
    assert (page.status, 'href="#sender"' in page.text) == (422, True)


async def test_hostile_values_are_inert(owner: Browser) -> None:
    form: dict[str, Any] = await fill(owner, to="<img src=x>", message='"><script>alert(1)</script>{{7*7}}')
    for path in ("/send", "/send/preview"):
        page = await owner.post(path, form)
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
        assert "{{7*7}}" in page.text
