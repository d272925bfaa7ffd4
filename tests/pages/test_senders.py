"""Sender IDs on a page: requested, decided by an operator, requested again, and the choice of the default."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from heliograph import traffic
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.pages import cookies
from heliograph.people.roles import ROLES
from heliograph.senders import registrations, rules
from heliograph.senders.book import Action, SenderRule
from heliograph.sms.accepting import sender_choice, sender_ids
from tests.rules.factories import sender

from .conftest import Api, Browser, Page, Tenant, make_person, make_tenant
from .test_messages import send

SUPPLIER = UUID(int=77)


async def decide(pool: Pool, actor: Actor, value: str, status: str, reason: str | None = None) -> None:
    async with pool.acquire() as conn:
        known = await sender_choice.named(conn, actor, names=[value])
        assert known is not None
        await sender_ids.review(conn, actor, id=known.id, status=status, reason=reason)


def line(page: Page, value: str) -> str:
    """The row of a sender ID, as shown."""
    rows = re.findall(r"<tr>.*?</tr>", page.text, re.S)
    return next(row for row in rows if f"<strong>{value}</strong>" in row)


async def test_asked_for_rejected_and_asked_for_again(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.submit(await owner.get("/senders/new"), "/senders", value="Shop & Co")
    assert (page.path, "“Shop & Co” waits for the operator's decision." in page.words) == ("/senders", True)
    assert all(said in line(page, "Shop &amp; Co") for said in ("Pending", ">Ana<", "not yet"))
    await decide(pool, tenant.actor, "Shop & Co", "rejected", "This is another company's name.")
    page = await owner.get("/senders")
    assert "This is another company&#39;s name." in line(page, "Shop &amp; Co")
    again = re.search(r'href="(/senders/new[^"]*)"[^>]*>Ask again', page.text)
    assert again
    page = await owner.get(again[1])
    assert page.form("/senders")["value"] == "Shop & Co"
    assert "“Shop & Co” was rejected before. The reason: This is another company's name." in page.words
    page = await owner.submit(page, "/senders", value="SHOP & Co")
    assert "Pending" in line(page, "SHOP &amp; Co")
    assert "another company" not in page.words


async def test_a_double_click_asks_once(pool: Pool, owner: Browser) -> None:
    form = (await owner.get("/senders/new")).form("/senders") | {"value": "BAKERY"}
    first, second = await owner.post("/senders", form), await owner.post("/senders", form)
    assert (first.path, second.path) == ("/senders", "/senders")
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE object_name = 'BAKERY'") == 1
    assert await pool.fetchval("SELECT count(*) FROM idempotency WHERE status = 200") == 1


async def test_what_is_wrong_is_said_and_what_was_typed_is_kept(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    await owner.submit(await owner.get("/senders/new"), "/senders", value="BAKERY")
    await decide(pool, tenant.actor, "BAKERY", "approved")
    for typed, said in (
        ("", "Use 3 to 11 letters"),
        ("AB", "Use 3 to 11 letters"),
        ("<b>bold</b>", "Use 3 to 11 letters"),
        ("bakery", "This sender ID already exists."),
    ):
        page = await owner.submit(await owner.get("/senders/new"), "/senders", value=typed)
        assert (page.status, said in page.words) == (422, True), typed
        assert page.form("/senders")["value"] == typed
        assert 'href="#value"' in page.text
    assert "<b>bold" not in page.text


async def test_no_more_wait_than_an_operator_can_look_at(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_ids, "MAX_PENDING", 1)
    await owner.submit(await owner.get("/senders/new"), "/senders", value="BAKERY")
    page = await owner.submit(await owner.get("/senders/new"), "/senders", value="BUTCHER")
    assert (page.status, "Wait until some have been reviewed." in page.words) == (422, True)


async def test_the_default_is_chosen_among_approved_ones(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    for value in ("BAKERY", "BUTCHER"):
        await owner.submit(await owner.get("/senders/new"), "/senders", value=value)
    pending = await owner.get("/senders")
    assert "Make default" not in line(pending, "BAKERY") + line(pending, "BUTCHER")
    for value in ("BAKERY", "BUTCHER"):
        await decide(pool, tenant.actor, value, "approved")
    page = await owner.get("/senders")
    action = re.search(r'action="([^"]+)"', line(page, "BUTCHER"))
    assert action
    stale = page.form(action[1])
    page = await owner.post(action[1], stale)
    assert "Messages that name no sender are now sent from “BUTCHER”." in page.words
    assert ">default<" in line(page, "BUTCHER")
    assert ">default<" not in line(page, "BAKERY")
    # One that was suspended meanwhile is refused, with the reason.
    await decide(pool, tenant.actor, "BAKERY", "suspended")
    form = stale | {"_once": stale["_once"] + "-other"}
    id = await pool.fetchval("SELECT id FROM sender_ids WHERE value = 'BAKERY'")
    page = await owner.post(f"/senders/{id}/default", form)
    assert "This sender ID is not approved, so it cannot be used." in page.words
    assert ">default<" in line(page, "BUTCHER")


async def test_another_organizations_are_nobodys(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    other = await make_tenant(pool)
    async with pool.acquire() as conn:
        theirs = await sender_ids.request(conn, other.actor, value="THEIRS")
        await sender_ids.review(conn, other.actor, id=theirs.id, status="approved")
    await owner.submit(await owner.get("/senders/new"), "/senders", value="BAKERY")
    await decide(pool, tenant.actor, "BAKERY", "approved")
    await owner.submit(await owner.get("/senders/new"), "/senders", value="BUTCHER")
    page = await owner.get("/senders")
    assert "THEIRS" not in page.text
    token = (await owner.get("/senders/new")).form("/senders")
    assert (await owner.post(f"/senders/{theirs.id}/default", token)).status == 404
    assert "rejected" not in (await owner.get("/senders/new?value=THEIRS")).words


@pytest.mark.parametrize("role", ROLES)
async def test_both_modes_show_the_same_and_ask_the_same_of_a_role(
    pool: Pool, tenant: Tenant, browser: Browser, role: str
) -> None:
    await make_person(pool, tenant, "someone@example.com", role)
    await browser.sign_in("someone@example.com")
    for mode in ("live", "test"):
        page = await browser.get(f"/senders?mode={mode}")
        if role == "billing":
            assert page.status == 403
            continue
        assert ("Request one" in page.words.partition("Sender IDs The names")[2]) == (
            role in ("owner", "admin", "sender")
        )
        asked = await browser.get(f"/senders/new?mode={mode}")
        assert asked.status == (200 if role in ("owner", "admin", "sender") else 403)


async def test_what_it_sent_by_country_and_a_value_judged_while_it_is_typed(
    api: Api, pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    for to in ("+258841234567", "+258841234568", "+351912345678"):
        await send(api, tenant, to=to)
    async with pool.acquire() as conn:
        await traffic.fold(conn)
        (sender,) = [one for one in await sender_ids.list_all(conn, tenant.actor) if one.is_default]
    await pool.execute("UPDATE traffic_days SET status = CASE country WHEN 'PT' THEN 'failed' ELSE 'delivered' END")
    shown = line(await owner.get("/senders"), sender.value)
    for said in (
        "3 accepted, 66.7 % delivered",
        "66.7 % delivered",
        "Mozambique: 2 · 100.0 % delivered",
        "Portugal: 1 · 0.0 % delivered",
    ):
        assert said in shown, shown
    for value, said in (
        ("Shop%20%26%20Co", "✓ This can be requested."),
        ("84", "✕ Use 3 to 11 letters"),
        ("", ""),
    ):
        page = await owner.get("/senders/new?value=" + value, HX_Request="true")
        assert page.words.startswith(said), value
        assert "<html" not in page.text


async def test_where_a_sender_is_registered_is_seen_without_suppliers(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    assert "Where it is registered" not in (await owner.get("/senders")).words, "a column that says nothing"
    async with pool.acquire() as conn:
        await conn.execute(
            "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
            " VALUES ($1, 'aggregator', 'smpp', '{}', '', now(), now())",
            SUPPLIER,
        )
        (one, *_) = await sender_ids.list_all(conn, tenant.actor)
        for country, network, supplier_id, state, note in (
            ("MZ", "643-04", SUPPLIER, "pending", "Papers are there"),
            ("KE", "", None, "refused", "The name is somebody else's"),
            ("KE", "", SUPPLIER, "registered", ""),
        ):
            await registrations.put(
                conn,
                organization_id=tenant.id,
                sender_id=one.id,
                sender=one.value,
                country=country,
                network=network,
                supplier_id=supplier_id,
                state=state,
                note=note,
            )
    page = await owner.get("/senders")
    row = line(page, one.value)
    for said in ("Mozambique (643-04): Being registered", "Papers are there", "Kenya: Registered"):
        assert said in row, said
    assert "aggregator" not in page.text
    assert "somebody else" not in row, "where it is furthest"
    assert "aggregator" not in (await owner.get("/audit")).text


def places(page: Page) -> list[tuple[str, str]]:
    """The form's text about a name, and the countries it lists."""
    found = re.search(r"Where a name is shown.*?</details>", page.text, re.S)
    assert found
    return re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", found[0])


async def test_the_form_says_where_names_are_shown(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/senders/new")
    assert "Shown as it is Angola, France, Germany, Malawi, Portugal, United Kingdom Shown once it is" in page.words
    assert "Not sent" not in page.words
    async with pool.acquire() as conn:
        await conn.execute(
            "INSERT INTO suppliers (id, name, kind, settings, secret, prefixes, created_at, changed_at)"
            " VALUES ($1, 'aggregator', 'smpp', '{}', '', '{258,351,81}', now(), now())",
            SUPPLIER,
        )
        told: dict[str, Action] = {"MZ": "allow", "PT": "refuse", "JP": "register", "KE": "refuse"}
        for country, action in told.items():
            await rules.put(conn, SenderRule(id=uuid7(), supplier_id=SUPPLIER, country=country, action=action))
    # Each page reads the current rules. This supplier carries nothing to Kenya, so its rule says nothing.
    page = await owner.submit(page, "/senders", value="?")
    assert (page.status, "aggregator" in page.text) == (422, False)
    said = places(page)
    assert [one for one, _ in said] == [
        "Shown as it is",
        "Shown once it is registered with the networks",
        "Replaced by a number or another name",
        "Not sent",
    ]
    free, registered, _, refused = (countries.split(", ") for _, countries in said)
    assert "Mozambique" in free
    assert {"Japan", "Kenya"} <= set(registered)
    assert refused == ["Portugal"]
    # Countries that it may not send to are not listed.
    await pool.execute("UPDATE organizations SET allowed_countries = '{MZ,PT}'")
    owner.session.cookie_jar.clear(lambda one: one.key != cookies.BROWSER)
    await owner.sign_in("ana@example.com")
    page = await owner.get("/senders/new")
    assert places(page) == [("Shown as it is", "Mozambique"), ("Not sent", "Portugal")]


async def test_many_are_shown_page_by_page_and_found_by_their_beginning(
    pool: Pool, tenant: Tenant, owner: Browser
) -> None:
    assert 'id="q"' not in (await owner.get("/senders")).text
    for n in range(30):
        await sender(pool, tenant.actor, f"SHOP {n:02}")
    page = await owner.get("/senders?limit=25")
    assert ("SHOP 29" in page.words, "SHOP 05" in page.words, "SHOP 04" in page.words) == (True, True, False)
    older = re.search(r'rel="next" href="([^"]+)"', page.text)
    assert older
    page = await owner.get(older[1].replace("&amp;", "&"))
    assert ("SHOP 05" in page.words, "SHOP 04" in page.words, "SHOP 00" in page.words) == (False, True, True)
    page = await owner.get("/senders?q=shop+0")
    assert ("SHOP 09" in page.words, "SHOP 10" in page.words) == (True, False)
    page = await owner.get("/senders?q=nobody")
    assert "Nothing matches" in page.words
    assert "No sender ID yet" not in page.words
