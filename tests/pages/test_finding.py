"""/go/{anything}: a pasted id leads to its page, and never to another organization's."""

from __future__ import annotations

import html
import json
import re
import urllib.parse
import uuid

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from tests.rules import whatsapp_factories

from .conftest import Api, Browser, Tenant, make_person, make_tenant
from .test_campaigns import make
from .test_messages import send, shown
from .test_webhooks import id_in, register

EVENT = """
INSERT INTO events (organization_id, id, kind, mode, message_id, request_id, data, created_at)
VALUES ($1, $2, 'message.delivered', 'live', $3, 'r', '{}', now())
"""
IMPORT = """
INSERT INTO contact_imports (organization_id, id, file, started_at, mode, state, is_uploaded)
VALUES ($1, $2, 'people.csv', now(), 'live', 'finished', $3)
"""


async def palette_target(browser: Browser, what: object) -> str:
    """The page that it leads to; "" if nothing is found."""
    text = urllib.parse.quote(str(what), safe="")
    page = await browser.get(f"/go?q={text}" if "/" in str(what) else f"/go/{text}")
    return "" if page.status == 404 else page.path


async def test_everything_is_found_by_its_id_or_its_name(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    endpoint = id_in(await register(owner, "https://example.com/hooks"))
    async with pool.acquire() as conn:
        await records.create_many(conn, tenant.actor, entries=[Entry("+258841000001", "Ana")])
        contact = await conn.fetchval("SELECT id FROM contacts")
    await make(owner, name="Spring sale", to="numbers", numbers="+258841000001")
    campaign = await pool.fetchval("SELECT id FROM campaigns")
    sender = await pool.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1", tenant.id)
    message, event = await send(api, tenant), uuid7()
    await pool.execute(EVENT, tenant.id, event, uuid.UUID(message))
    person = await make_person(pool, tenant, "vera@example.com", "viewer")
    by_page, by_command = uuid7(), uuid7()
    for id, is_uploaded in ((by_page, True), (by_command, False)):
        await pool.execute(IMPORT, tenant.id, id, is_uploaded)
    number = (await whatsapp_factories.made(pool, organization_id=tenant.id)).number_id
    wanted = {
        endpoint: f"/webhooks/{endpoint}",
        "https://example.com/hooks": f"/webhooks/{endpoint}",
        contact: f"/contacts/{contact}",
        campaign: f"/campaigns/{campaign}",
        "SPRING sale": f"/campaigns/{campaign}",
        sender: "/senders",
        "heliograph": "/senders",
        by_page: f"/contacts/imports/{by_page}",
        # One of the command line is only listed.
        by_command: "/contacts/imports",
        number: "/numbers",
        tenant.key_id: "/keys",
        f"{tenant.secret[:8]}…{tenant.secret[-4:]}": "/keys",
        person.id: "/team",
        "Vera@example.com": "/team",
        event: f"/messages/{message}",
        message: f"/messages/{message}",
    }
    for what, where in wanted.items():
        assert await palette_target(owner, what) == where, what
    # A page is found by its name, as in the palette, in the mode that one is in.
    for what, where in (("settings", "/settings"), ("New Campaign", "/campaigns/new"), ("Team", "/team")):
        assert await palette_target(owner, what) == where
    assert (await owner.get("/go?q=inbox&mode=test")).path == "/inbox?mode=test"
    # What a role does not see does not exist for it; other organizations' objects do not exist for anybody.
    await other_browser.sign_in("vera@example.com")
    assert await palette_target(other_browser, campaign) == f"/campaigns/{campaign}"
    for what in (tenant.key_id, person.id):
        assert await palette_target(other_browser, what) == "", what
    other = await make_tenant(pool)
    await make_person(pool, other, "eve@example.com")
    stranger = Browser(api.base_url)
    try:
        await stranger.sign_in("eve@example.com")
        for what in wanted:
            where = await palette_target(stranger, what)
            if what == "heliograph":
                assert where == "/senders"  # of their own
            else:
                assert not where or where.startswith("/messages?q="), what
    finally:
        await stranger.session.close()


async def test_the_palette_stays_in_the_mode(owner: Browser) -> None:
    """A message meant for nobody's phone would be a live one."""
    for mode in ("live", "test"):
        page = await owner.get("/contacts" + ("?mode=test" if mode == "test" else ""))
        found = re.search(r'id="palette-places"[^>]*>(.*?)</script>', page.text)
        assert found
        paths = {one["label"]: one["path"] for one in json.loads(found[1]) if not one["post"]}
        assert (paths["Send a message"], paths["New campaign"]) == (
            ("/send", "/campaigns/new") if mode == "live" else ("/send?mode=test", "/campaigns/new?mode=test")
        )
        assert (paths["Switch to test mode"], paths["Switch to live mode"]) == ("/?mode=test", "/?mode=live")
        left = [path for path in paths.values() if mode == "test" and "mode=" not in path]
        assert left == []


async def offered(browser: Browser, query: str = "") -> dict[str, str]:
    """What the palette adds: label → address."""
    page = await browser.get(f"/palette?{query}")
    assert page.headers["content-type"] == "application/json"
    return {one["label"]: one["path"] for one in json.loads(page.text)}


async def test_a_number_leads_to_its_person_and_the_palette_offers_what_belongs_to_it(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    number = "+258841000001"
    assert await palette_target(owner, "258 84 100 0001") == "/messages?q=258 84 100 0001"
    assert await offered(owner, "q=%2B258841000001") == {
        f"Add {number} to contacts": "/contacts/new?phone=%2B258841000001",
        f"Messages to {number}": "/messages?q=%2B258841000001",
        f"Send to {number}": "/send?to=%2B258841000001",
    }
    page = await owner.get("/contacts/opt-outs")
    await owner.submit(page, "/contacts/opt-outs/add", phone=number, reason="By telephone")
    assert await palette_target(owner, number) == "/contacts/opt-outs?q=%2B258841000001"
    assert number in (await owner.get("/contacts/opt-outs?q=%2B258841000001")).words
    async with pool.acquire() as conn:
        contact = (await records.create(conn, tenant.actor, entry=Entry(number, "Ana"))).id
    assert await palette_target(owner, number) == f"/contacts/{contact}"
    # An unknown mode is not a third one, in which nothing would be found: it is live, as on every page.
    assert (await owner.get("/go/%2B258841000001?mode=other")).path == f"/contacts/{contact}"
    told = await offered(owner, "q=%2B258841000001")
    assert told["Contact: Ana"] == f"/contacts/{contact}"
    assert [label for label in told if label.startswith("Opted out since")]
    assert await offered(owner, "q=nobody") == {}
    await make_person(pool, tenant, "bill@example.com", "billing")
    await other_browser.sign_in("bill@example.com")
    assert (await other_browser.get("/palette?q=%2B258841000001")).status == 403
    assert 'data-source=""' in (await other_browser.get("/")).text


async def test_a_number_is_read_as_people_of_the_organizations_country_write_it(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    """And if it may be another country's, the list offers that one."""
    here, there = await send(api, tenant, to="+258841234567"), await send(api, tenant, to="+84841234567")
    # Nobody chose a country: it follows from the first digits.
    page = await owner.get("/messages?q=84%20841%20234%20567")
    assert (shown(page), "Searched as +84 841 234 567, Vietnam." in page.words) == ([there], True)
    await pool.execute("UPDATE organizations SET country = 'MZ' WHERE id = $1", tenant.id)
    for typed in ("84 123 4567", "84-123/4567", "258 84 123 4567", "00258841234567", "+258 84 123 4567"):
        page = await owner.get(f"/messages?q={urllib.parse.quote(typed, safe='')}")
        assert shown(page) == [here], typed
        assert ("Searched as +258 84 123 4567, Mozambique." in page.words) == (not typed.startswith(("+", "00"))), typed
    page = await owner.get("/messages?q=84%20123%204567&channel=sms")
    other = re.search(r'id="meant">.*?<a href="([^"]+)">([^<]+)</a>', page.text)
    assert other
    assert other[2] == "Search +84 1234567, Vietnam, instead"
    assert urllib.parse.parse_qs(html.unescape(other[1]).partition("?")[2]) == {"q": ["+841234567"], "channel": ["sms"]}
    async with pool.acquire() as conn:
        contact = (await records.create(conn, tenant.actor, entry=Entry("+258841234567", "Ana"))).id
    assert await palette_target(owner, "84 123 4567") == f"/contacts/{contact}"


async def test_messages_are_found_by_the_number_that_they_show(api: Api, tenant: Tenant, owner: Browser) -> None:
    """A client sends to an old form of a number, which is read as the one that is dialed today."""
    sent = await send(api, tenant, to="+551181234567")
    for typed in ("+551181234567", "+55 11 98123-4567"):
        assert shown(await owner.get(f"/messages?q={urllib.parse.quote(typed, safe='')}")) == [sent], typed


async def test_the_palette_pauses_campaigns_and_lets_them_go_on(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    async with pool.acquire() as conn:
        await records.create_many(conn, tenant.actor, entries=[Entry("+258841000001", "Ana")])
    where = (await make(owner, name="Spring sale", to="numbers", numbers="+258841000001")).path
    assert await offered(owner) == {}
    await pool.execute("UPDATE campaigns SET status = 'running', started_at = now()")
    assert await offered(owner) == {"Pause campaign “Spring sale”": f"{where}/pause"}
    token = (await owner.get(where)).form(f"{where}/pause")["_token"]
    await owner.post(f"{where}/pause", {"_token": token, "_once": "1-palette", "next": "/"})
    assert await offered(owner) == {"Resume campaign “Spring sale”": f"{where}/resume"}
    await make_person(pool, tenant, "vera@example.com", "viewer")
    await other_browser.sign_in("vera@example.com")
    assert await offered(other_browser) == {}
