"""Both channels in one list, found by number, id and reference; a single message with its history."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import html
import io
import re
import urllib.parse
import uuid
from datetime import timedelta
from uuid import UUID

import msgspec
import pytest
from asyncpg import DeadlockDetectedError

from heliograph import traffic
from heliograph.accounts.api_keys import lifecycle
from heliograph.base.database import bounded_scan, clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns import pausing
from heliograph.campaigns.channels import sms as campaigns
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.overview import explaining
from heliograph.overview.messages import Filters, Message
from heliograph.pages.languages import locale
from heliograph.pages.lists import pagination
from heliograph.people import memberships
from heliograph.queue.leases import GUARDED
from heliograph.sending.listing import MessagePage
from heliograph.sms.arrivals import FAILURES
from heliograph.sms.status import Move, move_many
from heliograph.why.words import Kind, entries
from tests.rules import whatsapp_factories as making
from tests.rules.callback_factories import Meta
from tests.rules.callback_factories import message as callback
from tests.rules.factories import blocked

from .conftest import Api, Browser, Page, Tenant, make_person, make_tenant
from .exported import fetch

NUMBER = "+258841234567"


async def send(api: Api, tenant: Tenant, to: str = NUMBER, message: str = "Your code is 4711", **more: object) -> str:
    status, _, answer = await api.ask(
        "POST",
        "/sms/send",
        json={"to": to, "message": message, **more},
        headers=tenant.headers | {"idempotency-key": str(uuid.uuid4())},
    )
    assert status == 202, answer
    found: str = answer["messageId"] if "messageId" in answer else answer["message"]["id"]
    return found


def shown(page: Page) -> list[str]:
    """Ids of the list's rows."""
    return re.findall(r'<tr id="m-([0-9a-f-]{36})">', page.text)


async def test_a_message_is_found_by_number_id_and_reference(api: Api, tenant: Tenant, owner: Browser) -> None:
    first = await send(api, tenant, clientReference="order-1")
    second = await send(api, tenant, to="+258849999999")
    assert shown(await owner.get("/messages")) == [second, first]
    for query, ids in (
        ("q=%2B258841234567", [first]),
        ("q=258%2084%20123%204567", [first]),
        ("q=order-1", [first]),
        ("q=order-2", []),
        ("status=accepted", [second, first]),
        ("status=delivered", []),
        ("channel=sms&range=1h", [second, first]),
        ("channel=whatsapp", []),
        ("status=none&channel=none&range=none&limit=none", [second, first]),
    ):
        assert shown(await owner.get(f"/messages?{query}")) == ids, query
    assert (await owner.get(f"/messages?q={first}")).path == f"/messages/{first}"
    assert (await owner.get(f"/go/{first.upper()}")).path == f"/messages/{first}"
    assert (await owner.get("/go?q=order-1")).path == "/messages?q=order-1"
    assert (await owner.get(f"/go/{uuid.uuid4()}")).status == 404
    page = await owner.get("/messages?q=%2B1")
    assert "This is not a phone number with a country code" in page.words
    assert 'value="+1"' in page.text


async def test_pages_go_on_where_the_last_one_ended(api: Api, tenant: Tenant, owner: Browser) -> None:
    sent = [await send(api, tenant) for _ in range(27)]
    page = await owner.get("/messages?limit=25")
    found = shown(page)
    older = re.search(r'rel="next" href="([^"]+)"', page.text)
    assert older
    page = await owner.get(older[1].replace("&amp;", "&"))
    found += shown(page)
    assert found == sent[::-1]
    assert 'rel="next"' not in page.text
    newer = re.search(r'rel="prev" href="([^"]+)"', page.text)
    assert newer
    assert shown(await owner.get(newer[1].replace("&amp;", "&"))) == sent[::-1][:25]
    # A tampered position leads back to the beginning.
    assert len(shown(await owner.get("/messages?after=AAAA"))) == 27


async def test_a_message_is_canceled_although_its_change_is_the_victim_of_a_deadlock(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """As with an open session of the operator's. The page said that something had failed here."""
    id = await send(api, tenant)
    page = await owner.get(f"/messages/{id}/cancel")
    async with pool.acquire() as open_session:
        transaction = open_session.transaction()
        await transaction.start()
        await open_session.execute("SELECT FROM quotas FOR UPDATE")
        canceling = asyncio.create_task(owner.submit(page, f"/messages/{id}/cancel"))
        await blocked(pool)
        with contextlib.suppress(DeadlockDetectedError):
            await open_session.execute("SELECT FROM messages FOR UPDATE")
        await transaction.rollback()
    assert "The message is canceled" in (await canceling).words


async def test_a_message_says_what_happened_and_why(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    id = await send(api, tenant, clientReference="order-1")
    page = await owner.get(f"/messages/{id}")
    for said in (NUMBER, "Accepted", "Your code is 4711", "order-1", "HELIOGRAPH", "1 segment", "Waiting; given up"):
        assert said in page.words, said
    etag = page.headers["etag"]
    fragment = await owner.get(f"/messages/{id}", HX_Request="true")
    assert "<html" not in fragment.text
    assert (await owner.get(f"/messages/{id}", HX_Request="true", If_None_Match=fragment.headers["etag"])).status == 304
    assert fragment.headers["etag"] != etag
    page = await owner.get(f"/messages/{id}/cancel")
    assert f"The SMS to {NUMBER} is not sent, and one message goes back to the quota." in page.words
    page = await owner.submit(page, f"/messages/{id}/cancel")
    assert "The message is canceled" in page.words
    assert "It was refunded on " in page.words
    assert f'"/messages/{id}/cancel"' not in page.text
    late = await owner.get(f"/messages/{id}/cancel")
    assert late.path == f"/messages/{id}"
    gone = await owner.get(f"/messages/{id}", HX_Request="true", If_None_Match=fragment.headers["etag"])
    assert (gone.status, "data-final" in gone.text) == (200, True)
    await pool.execute("UPDATE messages SET body = NULL")
    assert "The text was erased" in (await owner.get(f"/messages/{id}")).words


async def test_what_the_network_reported_and_that_an_event_was_recorded_stand_in_the_timeline(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    id = UUID(await send(api, tenant))
    await pool.execute(
        "UPDATE messages SET status = 'delivered', sent_at = now(), delivered_at = now(), receipt = id,"
        " receipt_at = now(), receipt_state = 'delivered', receipt_attempt = 1, event_id = $1",
        (event := uuid7()),
    )
    await pool.execute(
        "INSERT INTO events (organization_id, id, mode, kind, message_id, request_id, data, created_at)"
        " VALUES ($1, $2, 'live', 'message.delivered', $3, '', '{}', now())",
        *(tenant.id, event, id),
    )
    page = await owner.get(f"/messages/{id}")
    assert "The network reports: it arrived" in page.words
    assert "Event recorded message.delivered" in page.words
    # Past states are not shown as if they were current.
    assert "The message reached the handset." in page.words
    assert "waits to be sent" not in page.words
    assert "has not reported its outcome yet" not in page.words


async def test_a_timeline_says_each_day_once_and_each_time_to_the_millisecond(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    id = UUID(await send(api, tenant))
    accepted, sent, delivered = await pool.fetchrow(
        "UPDATE messages SET status = 'delivered', sent_at = accepted_at + interval '1.5 seconds',"
        " delivered_at = accepted_at + interval '2 days' WHERE id = $1 RETURNING accepted_at, sent_at, delivered_at",
        id,
    )
    english = locale("en")
    # Just before midnight the second belongs to another day.
    then = english.clock(sent) if english.day(sent) == english.day(accepted) else english.instant(sent)
    page = await owner.get(f"/messages/{id}")
    told = re.findall(r'class="when"><time[^>]*>([^<]+)</time>', page.text)
    assert told == [english.instant(accepted), then, english.instant(delivered)]


async def test_what_is_written_in_a_message_stays_text(api: Api, tenant: Tenant, owner: Browser) -> None:
    hostile = "<img src=x onerror=alert(1)>{{7*7}}\u202e"
    id = await send(api, tenant, message=hostile, clientReference='"><script>alert(1)</script>')
    for path in (f"/messages/{id}", "/messages", "/"):
        page = await owner.get(path)
        assert "<script>alert" not in page.text
        assert "<img src=x" not in page.text
    assert "{{7*7}}" in (await owner.get(f"/messages/{id}")).words


@pytest.mark.parametrize("role", ["developer", "viewer", "sender"])
async def test_texts_and_whole_numbers_are_for_some_roles(
    api: Api, pool: Pool, tenant: Tenant, browser: Browser, role: str
) -> None:
    id = await send(api, tenant)
    await make_person(pool, tenant, "rui@example.com", role)
    await browser.sign_in("rui@example.com")
    for path in ("/messages", f"/messages/{id}", "/", f"/go/{id}"):
        page = await browser.get(path)
        assert page.status == 200
        assert NUMBER not in page.text, path
        assert "code is 4711" not in page.text, path  # a bare number may be part of an id
        assert "4567" in page.text, path


async def test_a_developer_looks_at_one_message_and_that_is_recorded(
    api: Api, pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    id = await send(api, tenant)
    await make_person(pool, tenant, "rui@example.com", "developer")
    await browser.sign_in("rui@example.com")
    page = await browser.submit(await browser.get(f"/messages/{id}"), f"/messages/{id}/reveal")
    assert NUMBER in page.words
    assert "4711" in page.words
    assert NUMBER not in (await browser.get(f"/messages/{id}")).text
    told = await pool.fetchrow("SELECT object_id, who_name FROM audit_log WHERE action = 'message.revealed'")
    assert told is not None
    assert tuple(told) == (id, "Rui")


async def test_other_organizations_and_modes_have_their_own(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    id = await send(api, tenant)
    assert (await owner.get(f"/messages/{id}?mode=test")).status == 404
    assert shown(await owner.get("/messages?mode=test")) == []
    assert (await owner.get(f"/go/{id}?mode=test")).path == f"/messages/{id}"
    # The link to the other mode keeps the search; a position in a list, and a message, belong to one mode.
    for path, there in (
        (
            f"/messages?status=failed&range=7d&after={UUID(id).hex}",
            "/messages?status=failed&amp;range=7d&amp;mode=test",
        ),
        (f"/messages/{id}", "/messages?mode=test"),
        # So do the objects that a form is filled in from.
        (f"/send?channel=sms&sent={id}&to=841234567", "/send?channel=sms&amp;to=841234567&amp;mode=test"),
        (f"/send?again={id}", "/send?mode=test"),
        (f"/send?channel=reply&number={id}", "/send?channel=reply&amp;mode=test"),
        (f"/send?channel=template&template={id}", "/send?channel=template&amp;mode=test"),
        (f"/campaigns/new?import={id}&tags=vip", "/campaigns/new?tags=vip&amp;mode=test"),
        ("/requests?from=2026-01-01&to=2026-01-02", "/requests?from=2026-01-01&amp;to=2026-01-02&amp;mode=test"),
    ):
        assert f'<a href="{there}">Test</a>' in (await owner.get(path)).text
    await pool.execute("UPDATE messages SET organization_id = gen_random_uuid()")
    page = await owner.get(f"/messages/{id}")
    assert (page.status, NUMBER in page.text) == (404, False)


async def test_the_link_to_the_other_mode_leads_to_what_a_role_sees_there(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    """A developer sends, and changes contacts and keys, in test mode alone."""
    await make_person(pool, tenant, "rui@example.com", "developer")
    await browser.sign_in("rui@example.com")
    for path, there in (
        ("/send?mode=test", "/?mode=live"),
        ("/contacts/new?mode=test", "/contacts?mode=live"),
        ("/keys/new?mode=test", "/keys?mode=live"),
        ("/contacts?q=ana&mode=test", "/contacts?q=ana&amp;mode=live"),
    ):
        page = await browser.get(path)
        assert (page.status, f'<a href="{there}">Live</a>' in page.text) == (200, True), path
        assert (await browser.get(html.unescape(there))).status == 200


async def test_each_filter_of_an_empty_list_can_be_dropped_by_itself(owner: Browser) -> None:
    for path, name, left in (
        ("/messages?q=nothing&channel=sms&range=24h", "Channel: SMS", "/messages?q=nothing&amp;range=24h"),
        ("/messages?channel=sms&range=24h", "Period: Last 24 hours", "/messages?channel=sms"),
        ("/requests?status=4xx&code=not_found", "Status: 4xx", "/requests?code=not_found"),
        ("/contacts?q=nobody&opted=yes", "Opted out: yes", "/contacts?q=nobody"),
    ):
        page = await owner.get(path)
        links = dict(re.findall(r'<li><a class="button small" href="([^"]*)"><svg.*?</svg>([^<]*)</a></li>', page.text))
        assert links.get(left) == name, (path, links)


def message(number: int, channel: str = "sms") -> Message:
    now = clock.now()
    return Message(
        id=UUID(int=number), channel=channel, status="sent", recipient=NUMBER, client_reference=None, accepted_at=now,
        sent_at=now, delivered_at=None, failed_at=None, failure_code=None,
    )  # fmt: skip


def merged(pages: list[tuple[list[Message], UUID | None]], *, limit: int) -> MessagePage[Message]:
    return MessagePage(*bounded_scan.merged(pages, limit=limit))


def test_a_page_of_both_channels_leaves_nothing_out() -> None:
    """A channel whose search stopped at 50 may have something at 40: nothing below 50 of the other one is shown."""
    sms, whatsapp = [message(n) for n in (90, 70, 30)], [message(n, "whatsapp") for n in (80, 60)]
    found = merged([(sms, None), (whatsapp, UUID(int=50))], limit=10)
    assert ([one.id.int for one in found.messages], found.seen) == ([90, 80, 70, 60], UUID(int=50))
    found = merged([(sms, UUID(int=20)), (whatsapp, UUID(int=50))], limit=10)
    assert ([one.id.int for one in found.messages], found.seen) == ([90, 80, 70, 60], UUID(int=50))
    found = merged([(sms, None), (whatsapp, None)], limit=3)
    assert ([one.id.int for one in found.messages], found.seen) == ([90, 80, 70, 60], None)
    found = merged([(sms, None), (whatsapp, UUID(int=50))], limit=2)
    assert ([one.id.int for one in found.messages], found.seen) == ([90, 80, 70], None)
    assert merged([], limit=2).messages == []


async def test_filters_of_both_channels_stand_in_the_address(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await send(api, tenant), await send(api, tenant, to="+351912345678", message="Olá, amanhã às 9?")
    await pool.execute(
        "UPDATE messages SET status = 'failed', failed_at = now(), failure_code = 'expired' WHERE id = $1",
        UUID(first),
    )
    read_on = 'href="/guide/errors#failures-of-messages">Read more<'
    page, other = await owner.get(f"/messages/{first}"), await owner.get(f"/messages/{second}")
    assert (read_on in page.text, read_on in other.text) == (True, False)
    key = await pool.fetchval("SELECT key_id FROM messages LIMIT 1")
    for query, ids in (
        ("status=accepted&status=failed", [second, first]),
        ("status=failed,delivered", [first]),
        ("reason=expired", [first]),
        ("country=pt", [second]),
        ("sender=HELIOGRAPH", [second, first]),
        ("sender=OTHER", []),
        (f"key={key}", [second, first]),
        (f"campaign={uuid.uuid4()}", []),
        (f"far=1&key={uuid.uuid4()}", []),
    ):
        assert shown(await owner.get(f"/messages?{query}")) == ids, query
    page = await owner.get("/messages?key=x&campaign=y")
    assert page.words.count("This is not an id.") == 1
    assert "None of your latest campaigns has this name." in page.words
    assert shown(page) == []
    page = await owner.get("/messages")
    assert "Olá, amanhã às 9?" in page.words
    assert "Portugal" in page.words

    # New ones are counted above the list, and are not inserted while it is read.
    third = await send(api, tenant)
    fragment = await owner.get(f"/messages?top={second}", HX_Request="true")
    assert shown(fragment) == [second, first]
    assert "1 newer" in fragment.words
    assert shown(await owner.get("/messages?top=x", HX_Request="true")) == [third, second, first]
    highest = await owner.get(f"/messages?top={UUID(int=2**128 - 1)}", HX_Request="true")
    assert (shown(highest), "newer" in highest.words) == ([third, second, first], False)
    monkeypatch.setattr(pagination, "MOST_NEWER", 1)
    assert "1 newer" in (await owner.get(f"/messages?top={first}", HX_Request="true")).words


async def test_the_filter_by_reason_has_words_for_each_code(owner: Browser) -> None:
    def offered(page: Page) -> dict[str, str]:
        options = page.text.partition('<select id="reason"')[2].partition("</select>")[0]
        found = re.findall(r'<option value="([a-z_]+)"(?: selected)?>(.*?)</option>', options)
        return {code: html.unescape(text) for code, text in found}

    for query, language, first in (
        ("", "en", "sms_failure"),
        ("?channel=sms", "en", "sms_failure"),
        ("?channel=whatsapp", "en", "whatsapp_failure"),
        ("", "pt", "sms_failure"),
    ):
        both: tuple[Kind, Kind] = ("sms_failure", "whatsapp_failure")
        wanted = {}
        for kind in sorted(both, key=lambda kind: kind == first):
            wanted |= {code: f"{one.words(language).customer} ({code})" for code, one in entries()[kind].items()}
        assert offered(await owner.get(f"/messages{query}", accept_language=language)) == wanted, (query, language)
    # The address contains the code.
    page = await owner.get("/messages?reason=expired")
    assert re.search(
        r'<option value="expired" selected>The message could not be delivered before its validity', page.text
    )


async def test_a_list_has_only_messages_of_a_template_or_category(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """An SMS has neither, so none is listed, and none canceled with the others."""
    sms = await send(api, tenant)
    account = await making.made(pool, organization_id=tenant.id)
    offer = await making.template(pool, tenant.id, account.account_id, name="offer", category="marketing")
    shipped = await making.message(pool, account, to="+258841234568", template_id=account.template_id)
    offered = await making.message(pool, account, to="+258841234568", template_id=offer, category="marketing")
    for query, ids in (
        ("template=offer", [str(offered)]),
        ("template=order_shipped", [str(shipped)]),
        ("template=offer&channel=sms", []),
        ("category=marketing", [str(offered)]),
        ("category=authentication", []),
        ("category=nonsense", [str(offered), str(shipped), sms]),
    ):
        page = await owner.get(f"/messages?{query}")
        assert shown(page) == ids, query
        assert "Cancel all that match" not in page.words, query


async def test_what_the_network_has_is_not_given_up_when_it_expires(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Without a report it stays sent, and counts as unknown after three days."""
    id = await send(api, tenant)
    page = await owner.get(f"/messages/{id}")
    assert ("given up at" in page.words, "counts as unknown" in page.words) == (True, False), page.words
    sent_at = "UPDATE messages SET status = 'sent', sent_at = '2026-03-04 10:00Z' WHERE id = $1"
    await pool.execute(sent_at, uuid.UUID(id))
    page = await owner.get(f"/messages/{id}")
    assert "Without a report, it counts as unknown from 7 Mar 2026, 10:00." in page.words, page.words
    assert "given up at" not in page.words


async def test_what_was_received_comes_before_its_event(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    """The event has the time at which the callback arrived, which waits while no worker runs."""
    account = await making.made(pool, organization_id=tenant.id)
    received = await making.message(pool, account, to=NUMBER, template_id=account.template_id)
    await pool.execute("UPDATE whatsapp_messages SET direction = 'inbound' WHERE id = $1", received)
    event = (
        "INSERT INTO events (organization_id, id, kind, mode, message_id, request_id, data, created_at)"
        " VALUES ($1, $2, 'message.received', 'live', $3, 'r', '{}', now() - interval '1 minute')"
    )
    await pool.execute(event, tenant.id, uuid7(), received)
    happened = (await owner.get(f"/messages/{received}")).words.partition("What happened")[2]
    assert happened.index("Received") < happened.index("Event recorded"), happened[:200]


async def test_a_list_has_only_what_was_sent_or_received(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    sms = await send(api, tenant)
    account = await making.made(pool, organization_id=tenant.id)
    sent = await making.message(pool, account, to=NUMBER, template_id=account.template_id)
    received = await making.message(pool, account, to=NUMBER, template_id=account.template_id)
    await pool.execute("UPDATE whatsapp_messages SET direction = 'inbound' WHERE id = $1", received)
    everything = [str(received), str(sent), sms]
    for query, ids in (
        ("direction=outbound", everything[1:]),
        ("direction=inbound", everything[:1]),
        (f"direction=inbound&q=%2B{NUMBER[1:]}", everything[:1]),
        (f"direction=outbound&q=%2B{NUMBER[1:]}", everything[1:]),
        ("direction=inbound&channel=sms", []),
        ("direction=sideways", everything),
    ):
        page = await owner.get(f"/messages?{query}")
        assert shown(page) == ids, query
        # No received message can be canceled, and none of the others with them; nor all for a filter that is none.
        assert ("Cancel all that match" in page.words) == ("outbound" in query), query
        assert ("Received SMS are only in the inbox." in page.words) == ("inbound" in query), query


async def test_the_head_of_a_list_tells_what_the_roll_ups_know(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    ids = [await send(api, tenant) for _ in range(4)]
    organization, now = tenant.actor.organization_id, clock.now()
    often, once = "undelivered", "destination_unreachable"
    moves = [
        Move(organization, UUID(ids[0]), "undelivered", now, often),
        Move(organization, UUID(ids[1]), "undelivered", now, often),
        Move(organization, UUID(ids[2]), "undelivered", now, once),
        Move(organization, UUID(ids[3]), "delivered", now),
    ]
    async with pool.acquire() as conn:
        await move_many(conn, moves)
        while await traffic.fold(conn):
            pass
    figures = "Accepted 4 Delivered 25.0 %"
    page = await owner.get("/messages")
    assert (figures in page.words, "Failed 3 The last 24 hours. From " in page.words) == (True, True)
    assert "Explain these" in page.words
    told = page.text.partition('id="explained"')[2].partition("</details>")[0]
    assert re.findall(r'class="end">([^<]+)</td>', told) == ["2", "66.7&nbsp;%", "1", "33.3&nbsp;%"]
    # Each reason links to its messages.
    links = [html.unescape(one) for one in re.findall(r'href="([^"]+)"', told)]
    assert [len(shown(await owner.get(one))) for one in links] == [2, 1]
    for query, has_figures, has_reasons in (
        ("range=24h&channel=sms&country=MZ&direction=outbound", True, True),
        ("sender=HELIOGRAPH", True, False),
        (f"reason={often}", False, True),
        ("status=undelivered,failed,expired,rejected", False, True),
        # The roll-ups know nothing about these, or about other messages than the listed ones.
        ("status=failed", False, False),
        (f"q=%2B{NUMBER[1:]}", False, False),
        ("direction=inbound", False, False),
        ("to=2020-01-01", False, False),
        ("range=x&key=x", False, False),
        ("from=yesterday", False, False),
    ):
        page = await owner.get(f"/messages?{query}")
        found = (figures in page.words, '<details class="twin" id="explained">' in page.text)
        assert found == (has_figures, has_reasons), query
    assert "Accepted 0 Delivered –" in (await owner.get("/messages?channel=whatsapp")).words
    assert "Accepted 0 Delivered –" in (await owner.get("/messages?mode=test")).words
    assert "Explicar estas" in (await owner.get("/messages", Accept_Language="pt")).words


async def test_filters_that_roll_ups_do_not_know_are_explained_by_the_latest(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    ids = [await send(api, tenant, clientReference="spring") for _ in range(6)]
    elsewhere = await send(api, tenant, clientReference="autumn")
    organization, now = tenant.actor.organization_id, clock.now()
    codes = ["undelivered", "destination_unreachable", "undelivered", "undelivered", "destination_unreachable"]
    failed = zip([*ids[:4], elsewhere], codes, strict=True)
    moves = [Move(organization, UUID(id), "undelivered", now, code) for id, code in failed]
    moves.append(Move(organization, UUID(ids[4]), "delivered", now))
    async with pool.acquire() as conn:
        await move_many(conn, moves)
        # A search that is full continues from where it ended; one that is not, after the last message it scanned.
        wanted = Filters(client_reference="spring")
        first = await explaining.explain(conn, tenant.actor, filters=wanted, most=2)
        assert ([(one.reason, one.count) for one in first.reasons], first.seen) == ([("undelivered", 2)], UUID(ids[2]))
        second = await explaining.explain(conn, tenant.actor, filters=wanted, after=first.seen, most=2)
        assert ([one.count for one in second.reasons], second.seen, second.back_to) == ([1, 1], None, None)
        short = await explaining.explain(conn, tenant.actor, filters=wanted, look=5)
        assert ([one.count for one in short.reasons], short.seen) == ([2], UUID(ids[2]))
        other = await make_tenant(pool)
        assert (await explaining.explain(conn, other.actor, filters=wanted)).reasons == []
    # It is computed on request, and not with every list.
    page = await owner.get("/messages?q=spring")
    assert "matching messages failed" not in page.words
    (link,) = re.findall(r'<a class="small" href="([^"]+explain=yes[^"]*)"', page.text)
    page = await owner.get(html.unescape(link))
    assert shown(page) == ids[::-1]
    assert "Why messages failed 4 matching messages failed." in page.words
    told = page.text.partition('id="explained"')[2].partition("</section>")[0]
    assert re.findall(r'class="end">([^<]+)</td>', told) == ["3", "75.0&nbsp;%", "1", "25.0&nbsp;%"]
    assert FAILURES["destination_unreachable"] in told
    links = [html.unescape(one) for one in re.findall(r'href="([^"]+)"', told)]
    assert [shown(await owner.get(one)) for one in links] == [[ids[3], ids[2], ids[0]], [ids[1]]]
    # Older ones are shown without being asked for.
    page = await owner.get(f"/messages?q=spring&explain={UUID(ids[2]).hex}")
    assert "Among messages up to" in page.words
    assert "2 matching messages failed." in page.words
    assert "No matching message failed." in (await owner.get("/messages?q=summer&explain=yes")).words
    # Nothing that was received, or delivered, has failed; nothing is shown twice, and it is in no region.
    for query in ("direction=inbound", "status=delivered,read", "q=%2B1", ""):
        page = await owner.get(f"/messages?explain=yes&{query}")
        assert "explained-title" not in page.text, query
    region = await owner.get("/messages?q=spring&explain=yes", HX_Request="true")
    assert "explained-title" not in region.text
    page = await owner.get("/messages?q=spring&explain=yes", Accept_Language="pt")
    assert "Falharam 4 mensagens correspondentes." in page.words


async def test_what_a_list_shows_is_taken_away_as_a_file(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    first = await send(api, tenant, clientReference="=1+1")
    second = await send(api, tenant, to="+351912345678")
    page = await owner.get("/messages")
    file = await fetch(pool, owner, page, "/messages/export", format="csv")
    assert file.headers["content-disposition"] == 'attachment; filename="messages.csv"'
    rows = list(csv.DictReader(io.StringIO(file.text.lstrip("\ufeff"))))
    assert [row["id"] for row in rows] == [second, first]
    assert (rows[1]["to"], rows[1]["reference"], rows[1]["mode"]) == (NUMBER, "'=1+1", "live")
    page = await owner.get("/messages?country=PT")
    lines = (await fetch(pool, owner, page, "/messages/export?country=PT", format="jsonl")).text.splitlines()
    assert [msgspec.json.decode(line)["id"] for line in lines] == [second]
    page = await owner.get("/messages?mode=test")
    assert (await fetch(pool, owner, page, "/messages/export?mode=test")).text.count("\n") == 1
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'messages.exported'") == 3
    await make_person(pool, tenant, "rui@example.com", "viewer")
    await other_browser.sign_in("rui@example.com")
    file = await fetch(pool, other_browser, await other_browser.get("/messages"), "/messages/export")
    assert NUMBER not in file.text
    assert "••• 4567" in file.text


async def test_a_message_says_what_it_waits_for_and_what_stands_beside_it(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    first = await send(api, tenant, message="Olá, amanhã às 9?")
    second = await send(api, tenant, sendAt=clock.iso(clock.now() + timedelta(hours=5)))
    page = await owner.get(f"/messages/{first}")
    assert "It waits for its turn." in page.words
    assert "Not in the GSM alphabet: á ã." in page.words
    assert f'href="/messages/{second}"' in page.text
    assert f'href="/send?again={first}"' in page.text
    assert f'href="/requests/{first}"' in page.text
    assert "It waits for its time," in (await owner.get(f"/messages/{second}")).words
    await pool.execute("UPDATE queue SET tries = 2, due_at = now() + interval '1 hour' WHERE id = $1", UUID(first))
    assert "It could not be handed over yet and is tried again at" in (await owner.get(f"/messages/{first}")).words
    # As a pause of its campaign postpones it.
    await pool.execute("UPDATE messages SET campaign_id = $1 WHERE id = $1", UUID(first))
    await pool.execute("UPDATE queue SET due_at = due_at + $2::interval WHERE id = $1", UUID(first), pausing.AWAY)
    words = (await owner.get(f"/messages/{first}")).words
    assert ("Its campaign is paused." in words, "tried again at" in words) == (True, False)
    await pool.execute(
        "WITH waits AS ("
        "UPDATE messages SET quiet_since = now(), quiet_until = now() + interval '9 hours' WHERE id = $1)"
        " UPDATE queue SET due_at = now() + interval '9 hours' WHERE id = $1",
        UUID(first),
    )
    quiet = (await owner.get(f"/messages/{first}")).words
    assert "Quiet hours where the recipient is: marketing waits until" in quiet
    assert "Waits for the morning" in quiet
    await pool.execute("UPDATE queue SET due_at = now() - interval '1 hour' WHERE id = $1", UUID(first))
    await pool.execute("INSERT INTO queue_holds (id, kind) VALUES ($1, 'sms')", uuid.uuid4())
    assert "Your operator is holding messages back." in (await owner.get(f"/messages/{first}")).words
    guarded = "UPDATE queue SET line = $2, due_at = now() + interval '3650 days' WHERE id = $1"
    await pool.execute(guarded, UUID(first), GUARDED)
    assert "It is held: unusually many messages" in (await owner.get(f"/messages/{first}")).words


async def test_what_is_shown_raw_is_what_the_api_says(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    id = await send(api, tenant, clientReference="order-1")
    page = await owner.get(f"/messages/{id}")
    raw = re.search(r"<pre>(\{.*?\})</pre>", page.text, re.S)
    assert raw
    shown_raw = msgspec.json.decode(html.unescape(raw[1]))
    _, _, answer = await api.ask("GET", f"/sms/messages/{id}", headers=tenant.headers)
    assert {name: answer["message"][name] for name in shown_raw} == shown_raw
    assert len(shown_raw) > 12


async def test_a_key_and_a_person_that_no_list_shows_are_called_by_their_names(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """Names used to be looked up in lists that end: of keys with those of the last 90 days, of the team with a
    thousand."""
    id = await send(api, tenant)
    rui = await make_person(pool, tenant, "rui@example.com", "sender", password=None)
    await pool.execute(
        "UPDATE api_keys SET name = 'shop-2024', status = 'revoked', revoked_at = now() - interval '100 days'"
        " WHERE id = $1",
        tenant.key_id,
    )
    assert ">shop-2024</a></dd>" in (await owner.get(f"/messages/{id}")).text
    page = await owner.get("/messages")
    form = page.form("/columns/messages")
    await owner.post("/columns/messages", {name: form[name] for name in ("_token", "next")} | {"column": "by"})
    assert "shop-2024" in (await owner.get("/messages")).words
    # A filter by somebody who sent nothing shows their name.
    assert "Rui" in (await owner.get(f"/messages?by={rui.id}&country=PT")).words
    async with pool.acquire() as conn:
        known = await memberships.names(conn, tenant.actor, ids=[rui.id, tenant.key_id])
    assert known == {rui.id: "Rui"}


async def test_in_a_large_team_whoever_sent_it_is_found_by_typing(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    rui = await make_person(pool, tenant, "rui@example.com", "sender")
    await send(api, tenant, message="Sent by a key")
    await other_browser.sign_in("rui@example.com")
    form = (await other_browser.get("/send")).form("/send") | {"to": "+258841234567", "message": "Sent by Rui"}
    by_rui = (await other_browser.post("/send", form)).path.partition("=")[2]
    assert '<select id="by"' in (await owner.get("/messages")).text
    await pool.execute(
        "WITH made AS (INSERT INTO users (id, email, name, created_at) SELECT gen_random_uuid(), n || '@example.com',"
        " 'Member ' || n % 250, now() FROM generate_series(1, 251) n RETURNING id)"
        " INSERT INTO memberships (organization_id, user_id, role, created_at)"
        " SELECT $1, id, 'viewer', now() FROM made",
        tenant.id,
    )
    page = await owner.get("/messages")
    assert ('<select id="by"' in page.text, page.text.count('<option value="Member ')) == (False, 197)
    for typed in ("rui", "RUI@example.com", str(rui.id)):
        page = await owner.get(f"/messages?by={typed}")
        assert shown(page) == [by_rui]
        assert 'id="by" name="by" value="Rui"' in page.text
    for typed, said in (
        ("Member+1", "Several people have this name: give the e-mail address."),
        ("Eva", "Nobody on the team has this name or e-mail address."),
    ):
        page = await owner.get(f"/messages?by={typed}")
        assert (shown(page), said in page.words) == ([], True), page.words
    # Two who are not among those offered: the field tells them apart, so that the form can be sent again.
    for email in ("zoe@one.example", "zoe@two.example"):
        await make_person(pool, tenant, email, "viewer", password=None)
    fields = (await owner.get("/messages?by=zoe@one.example")).form("/messages")
    assert fields["by"] == "zoe@one.example"
    assert "Several people" not in (await owner.get(f"/messages?{urllib.parse.urlencode(fields)}")).words
    # Who may not see the team learns nothing about it.
    assert "Nobody on the team" in (await other_browser.get("/messages?by=Member+2")).words


async def test_who_sent_it_on_the_dashboard_is_told_and_sees_it_whole(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """A sender sees number and text of what they sent themselves, and of nothing else."""
    rui = await make_person(pool, tenant, "rui@example.com", "sender")
    by_key = await send(api, tenant, message="Sent by a key")
    await other_browser.sign_in("rui@example.com")
    form = (await other_browser.get("/send")).form("/send") | {"to": "+258841234567", "message": "Sent by Rui"}
    by_rui = (await other_browser.post("/send", form)).path.partition("=")[2]
    assert dict(await pool.fetch("SELECT id::text, person_id FROM messages")) == {by_key: None, by_rui: rui.id}

    for reader, name in ((owner, "Rui"), (other_browser, "Rui")):
        assert shown(await reader.get(f"/messages?by={rui.id}")) == [by_rui]
        page = await reader.get(f"/messages/{by_rui}")
        assert f"Sent on the dashboard by {name}." in page.words
        assert "Sent by Rui" in page.words
        assert "+258841234567" in page.words
    page = await other_browser.get("/messages")
    assert ("Sent by Rui" in page.words, "Sent by a key" in page.words) == (True, False)
    assert page.words.count("+258841234567") == 2  # the row, and its checkbox
    assert "+258841234567" not in (await other_browser.get(f"/messages/{by_key}")).words
    file = await fetch(pool, other_browser, await other_browser.get("/messages"), "/messages/export")
    assert file.text.count("+258841234567") == 1

    # Someone who does not see the team does not see its names.
    await make_person(pool, tenant, "eva@example.com", "viewer")
    await other_browser.post("/logout", (await other_browser.get("/")).form("/logout"))
    await other_browser.sign_in("eva@example.com")
    page = await other_browser.get(f"/messages/{by_rui}")
    assert ("Rui" in page.words, "Sent on the dashboard by a person." in page.words) == (False, True)


async def test_a_message_is_open_beside_its_list(api: Api, pool: Pool, tenant: Tenant, owner: Browser) -> None:
    first, second = await send(api, tenant), await send(api, tenant, to="+351912345678")
    page = await owner.get(f"/messages?country=PT&open={first}")
    assert shown(page) == [second], "the list stays as its filters say"
    assert "is-open" in page.text
    assert first in page.text.partition('id="panel"')[2]
    closed = page.text.partition("data-close")[2].partition('href="')[2].partition('"')[0]
    assert closed == "/messages?country=PT"
    page = await owner.get("/messages")
    assert ("is-open" in page.text, shown(page)) == (False, [second, first])
    for wrong in (str(uuid.uuid4()), "x"):
        assert (await owner.get(f"/messages?open={wrong}")).status == 404
    # Only the list is a region that refreshes.
    assert "panel" not in (await owner.get(f"/messages?open={first}", HX_Request="true")).text


async def test_a_failure_says_how_often_and_a_delay_what_for(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    ids = [await send(api, tenant) for _ in range(4)]
    moves = [Move(tenant.actor.organization_id, UUID(id), "undelivered", clock.now(), "undelivered") for id in ids[:2]]
    async with pool.acquire() as conn:
        await move_many(conn, moves)
        while await traffic.fold(conn):
            pass
    page = await owner.get(f"/messages/{ids[0]}")
    assert "Of messages to Mozambique, 50.0 % ended this way in the last 7 days: 2 of 4." in page.words
    assert "Of the last 4 to this number, 2 ended this way." in page.words
    abroad = await send(api, tenant, to="+888710590000")
    move = Move(tenant.actor.organization_id, UUID(abroad), "undelivered", clock.now(), "undelivered")
    async with pool.acquire() as conn:
        await move_many(conn, [move])
        while await traffic.fold(conn):
            pass
    page = await owner.get(f"/messages/{abroad}")
    assert "Of messages to numbers without a country, 100.0 % ended this way in the last 7 days: 1 of 1." in page.words
    assert "ended this way" not in (await owner.get(f"/messages/{ids[3]}")).words
    await pool.execute(
        "UPDATE messages SET status = 'sent', sent_at = accepted_at + interval '250 seconds' WHERE id = $1",
        UUID(ids[3]),
    )
    assert "of it waiting: others were before it" in (await owner.get(f"/messages/{ids[3]}")).words


async def test_a_sender_that_the_send_did_not_name_is_called_the_default(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    said = "From HELIOGRAPH, the default: the request named none."
    # A single message and a batch are stored by different functions.
    alone, *among = [await send(api, tenant), *await asyncio.gather(*(send(api, tenant) for _ in range(5)))]
    for id in (alone, *among):
        assert said in (await owner.get(f"/messages/{id}")).words
    sender = await pool.fetchval("SELECT id::text FROM sender_ids WHERE is_default")
    for named in ({"senderName": "heliograph"}, {"senderId": sender}):
        assert said not in (await owner.get(f"/messages/{await send(api, tenant, **named)}")).words
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE sender_defaulted") == 6


async def test_what_a_message_cost_is_said_and_whether_it_came_back(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    first, second, canceled = [await send(api, tenant) for _ in range(3)]
    left = await pool.fetchval("SELECT balance_after FROM messages WHERE id = $1", UUID(second))
    said = f"however many segments it has: the quota went from {left + 1:,} to {left:,}."
    page = await owner.get(f"/messages/{second}")
    assert said in page.words
    assert "refunded" not in page.words
    # Nobody accepted it, so it was returned, whatever its status says.
    async with pool.acquire() as conn:
        await move_many(conn, [Move(tenant.id, UUID(second), "expired", clock.now(), "expired", unsent=True)])
        await move_many(conn, [Move(tenant.id, UUID(first), "sent", clock.now())])
        await move_many(conn, [Move(tenant.id, UUID(first), "undelivered", clock.now(), "undelivered")])
    assert f"{said} It was refunded on " in (await owner.get(f"/messages/{second}")).words
    assert "refunded" not in (await owner.get(f"/messages/{first}")).words
    page = await owner.submit(await owner.get(f"/messages/{canceled}/cancel"), f"/messages/{canceled}/cancel")
    assert "It was refunded on " in page.words
    # Balances are for those who see usage.
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    page = await other_browser.get(f"/messages/{second}")
    assert "It cost one message of the quota, however many segments it has. It was refunded on " in page.words
    assert "the quota went from" not in page.words


async def test_a_message_of_a_campaign_says_what_it_is_called(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    id = await send(api, tenant)
    async with pool.acquire() as conn:
        spec = SmsCampaignSpec(name="Spring <sale>", message_template="Hello", recipients=["+258841234599"])
        campaign = await campaigns.create(conn, tenant.actor, spec=spec, request_id="one")
        other = await campaigns.create(conn, (await make_tenant(pool)).actor, spec=spec, request_id="one")
    await pool.execute("UPDATE messages SET campaign_id = $2 WHERE id = $1", UUID(id), campaign.id)
    link = f'<a href="/campaigns/{campaign.id}"><bdi>Spring &lt;sale&gt;</bdi></a>'
    assert link in (await owner.get(f"/messages/{id}")).text
    assert "Spring <sale>" in html.unescape((await owner.get("/usage/ledger")).text)
    await owner.submit(await owner.get("/messages"), "/columns/messages", column="campaign", do="add")
    for query in ("", f"?open={id}"):
        assert link in (await owner.get(f"/messages{query}")).text
    # Not to someone who sees no campaigns, and not of another organization.
    await pool.execute("UPDATE messages SET campaign_id = $2 WHERE id = $1", UUID(id), other.id)
    page = await owner.get(f"/messages/{id}")
    assert ("Spring" in page.words, str(other.id)[:8] in page.words) == (False, True)


async def test_messages_of_a_campaign_are_found_by_its_name(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    id, other = await send(api, tenant), await send(api, tenant)
    made = {}
    async with pool.acquire() as conn:
        for name in ("Spring sale", "Spring clean", "Autumn", "Twins", "Twins", "Promoção"):
            spec = SmsCampaignSpec(name=name, message_template="Hello", recipients=["+258841234599"])
            made[name] = (await campaigns.create(conn, tenant.actor, spec=spec, request_id="one")).id
        spec = SmsCampaignSpec(name="Winter", message_template="Hello", recipients=["+258841234599"])
        await campaigns.create(conn, (await make_tenant(pool)).actor, spec=spec, request_id="one")
    await pool.execute("UPDATE messages SET campaign_id = $2 WHERE id = $1", UUID(id), made["Spring sale"])
    page = await owner.get("/messages")
    assert '<option value="Autumn">' in page.text
    assert page.text.count('<option value="Twins">') == 1
    assert "Winter" not in page.text
    for typed in ("spring SALE", "sale", str(made["Spring sale"])):
        page = await owner.get("/messages?" + urllib.parse.urlencode({"campaign": typed}))
        assert shown(page) == [id], typed
        assert page.form("/messages")["campaign"] == "Spring sale"
        # Links use its id: another campaign may get the name.
        assert f"campaign={made['Spring sale']}" in page.text
    page = await owner.get("/messages?campaign=spring")
    assert shown(page) == []
    assert "Several campaigns have this in their name. Choose one:" in page.words
    assert f'<a href="/messages?campaign={made["Spring clean"]}">Spring clean</a>' in page.text
    page = await owner.get("/messages?" + urllib.parse.urlencode({"campaign": "promoc\u0327a\u0303o"}))
    assert page.form("/messages")["campaign"] == "Promoção", "some keyboards encode accents in this way"
    # A name that two have leads to neither, so the field of one contains its id.
    assert "Choose one:" in (await owner.get("/messages?campaign=twins")).words
    page = await owner.get(f"/messages?campaign={made['Twins']}")
    assert page.form("/messages")["campaign"] == str(made["Twins"])
    # An invalid filter is not treated as no filter.
    page = await owner.get("/messages")
    for path in ("/messages/all", "/messages/export"):
        back = await owner.post(f"{path}?campaign=spring", page.form("/messages/export"))
        assert (back.path, "Choose one:" in back.words) == ("/messages?campaign=spring", True), path
    assert await pool.fetchval("SELECT count(*) FROM exports") == 0
    back = await owner.get("/messages/all?q=%2B12")
    assert back.path == "/messages?q=%2B12"
    assert other not in shown(await owner.get("/messages?campaign=autumn"))


async def test_a_test_message_says_which_digits_chose_its_outcome(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    async with pool.acquire() as conn:
        _, secret = await lifecycle.issue(conn, tenant.actor, name="tests", profile="sms_only", mode="test")
    tests = msgspec.structs.replace(tenant, secret=secret)
    expired, other = await send(api, tests, to="+258841230003"), await send(api, tests, to="+258841231234")
    page = await owner.get(f"/messages/{expired}?mode=test")
    assert "cost nothing. The last four digits of its number, 0003, chose: Expired." in page.words
    page = await owner.get(f"/messages/{other}?mode=test")
    assert "cost nothing. The last four digits of its number choose no other outcome, so it is delivered." in page.words


@pytest.mark.parametrize(
    ("source", "how"),
    [
        (optouts.KEYWORD, "wrote “parar”"),
        (optouts.ORGANIZATION, "added by your organization"),
        (optouts.OPERATOR, "added by the operator"),
        (optouts.SUPPLIER, "reported by the network"),
    ],
)
async def test_a_message_says_that_its_recipient_has_opted_out_since(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, source: str, how: str
) -> None:
    arrived, refused, other = await send(api, tenant), await send(api, tenant), await send(api, tenant, "+258849999999")
    async with pool.acquire() as conn:
        refusal = Move(tenant.id, UUID(refused), "rejected", clock.now(), "opted_out", unsent=True)
        await move_many(conn, [refusal])
        assert "Opted out since" not in (await owner.get(f"/messages/{arrived}")).words
        word = "parar" if source == optouts.KEYWORD else None
        await optouts.suppress(conn, [OptOut(tenant.id, NUMBER, clock.EPOCH + timedelta(days=20_000), source, word)])
    for id in (arrived, refused):
        page = await owner.get(f"/messages/{id}")
        assert f"Opted out since 4 Oct 2024, 00:00 : {how}. The opt-out" in page.words
        link = re.search(r'href="([^"]+)">The opt-out<', page.text)
        assert link
        assert how in (await owner.get(html.unescape(link[1]))).words
        assert "/contacts/opt-outs/add" not in page.text.partition('aria-labelledby="person"')[2]
    assert "Opted out since" not in (await owner.get(f"/messages/{other}")).words
    assert "Cancelou a receção em" in (await owner.get(f"/messages/{arrived}", accept_language="pt")).words


@pytest.mark.parametrize("number", ["+2588412345", "+7001234567", "+1", "12345"])
async def test_a_message_with_a_number_that_cannot_be_has_its_page(
    pool: Pool, tenant: Tenant, owner: Browser, number: str
) -> None:
    """WhatsApp's numbers are stored as received."""
    made = await making.made(pool, organization_id=tenant.id)
    id = await making.message(pool, made, to=number)
    page = await owner.get(f"/messages/{id}")
    assert (page.status, "Opted out since" in page.words) == (200, False)
    async with pool.acquire() as conn:
        await optouts.suppress(conn, [OptOut(tenant.id, number, clock.now(), optouts.KEYWORD, "stop")])
    page = await owner.get(f"/messages/{id}")
    assert (page.status, "Opted out since" in page.words) == (200, True)


async def test_a_message_leads_to_the_one_by_which_its_recipient_opted_out(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    made = await making.made(pool, organization_id=tenant.id)
    by_sms, by_whatsapp = await send(api, tenant), await making.message(pool, made, to=NUMBER)
    await Meta(pool).say(made, callback(made, "STOP", by=NUMBER))
    word = await pool.fetchval("SELECT id FROM whatsapp_messages WHERE direction = 'inbound'")
    for id in (by_sms, by_whatsapp):
        page = await owner.get(f"/messages/{id}")
        assert f'<a href="/messages/{word}">wrote “stop”</a>' in page.text
    page = await owner.get(f"/messages/{word}")
    person = page.text.partition('aria-labelledby="person"')[2].partition("</section>")[0]
    assert ("Who wrote it" in person, "wrote “stop”" in person, f"/messages/{word}" in person) == (True, True, False)
    # An opt-out applies in test mode too.
    async with pool.acquire() as conn:
        _, secret = await lifecycle.issue(conn, tenant.actor, name="tests", profile="sms_only", mode="test")
    tested = await send(api, msgspec.structs.replace(tenant, secret=secret), to="+258849999999")
    async with pool.acquire() as conn:
        await optouts.add(conn, tenant.actor, phone="+258849999999")
    assert "Opted out since" in (await owner.get(f"/messages/{tested}?mode=test")).words


@pytest.mark.parametrize("role", ["viewer", "developer", "sender"])
async def test_an_opt_out_names_no_number_to_who_does_not_see_it(
    api: Api, pool: Pool, tenant: Tenant, browser: Browser, role: str
) -> None:
    id = await send(api, tenant)
    async with pool.acquire() as conn:
        await optouts.suppress(conn, [OptOut(tenant.id, NUMBER, clock.now(), optouts.KEYWORD, "stop")])
    await make_person(pool, tenant, "rui@example.com", role)
    await browser.sign_in("rui@example.com")
    page = await browser.get(f"/messages/{id}")
    assert ("Opted out since" in page.words, "wrote “stop”" in page.words) == (True, True)
    assert (NUMBER[1:] in page.text, "/contacts/opt-outs?q" in page.text) == (False, False)


async def test_the_code_of_a_message_sends_one_like_it(api: Api, tenant: Tenant, owner: Browser) -> None:
    plain, code = await send(api, tenant), await send(api, tenant, deliveryGuarantee="at_most_once", **{"class": "otp"})
    said = ['"class": "otp"', '"deliveryGuarantee": "at_most_once"']
    page = (await owner.get(f"/messages/{code}")).words
    assert [one in page for one in said] == [True, True], page
    page = (await owner.get(f"/messages/{plain}")).words
    assert ("curl -sS" in page, [one.split()[0] in page.split("curl -sS")[1] for one in said]) == (True, [False, False])


async def test_the_recipient_is_kept_or_left_alone_from_a_message(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    id = await send(api, tenant)
    page = await owner.get(f"/messages/{id}")
    assert f'href="/contacts/new?phone=%2B{NUMBER[1:]}"' in page.text
    assert "curl -sS" in page.words
    page = await owner.submit(page, "/contacts/opt-outs/add", reason="By telephone")
    assert "They get no more messages." in page.words
    page = await owner.get(f"/messages/{id}")
    assert ("Opted out" in page.words, "/contacts/opt-outs/add" in page.text) == (True, False)
    async with pool.acquire() as conn:
        contact = await records.create(conn, tenant.actor, entry=Entry(NUMBER, "Ana"))
    assert f'href="/contacts/{contact.id}"' in (await owner.get(f"/messages/{id}")).text
