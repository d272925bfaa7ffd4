"""Two organizations in two tabs: input is kept, and is submitted to the organization that its page belongs to."""

from __future__ import annotations

import re

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.people import memberships
from tests.processes import until_true

from .conftest import PASSWORD, Site

COUNT = "SELECT count(*) FROM contacts WHERE organization_id = $1"


async def write(site: Site, phone: str) -> None:
    """Fill in a new contact, without saving it."""
    await site.page.goto(site.base + "/contacts/new")
    await site.page.locator("#name").fill("Rui")
    await site.page.locator("#phone").fill(phone)


async def test_a_form_stays_with_its_organization(site: Site) -> None:
    page, own = site.page, site.made.actor.organization_id
    link = await site.link(password=True)
    async with site.pool.acquire() as conn:
        beta = await organizations.create(conn, name="Beta")
        actor = Actor(beta.id, None, "live", frozenset(), "active")
        user = await conn.fetchval("SELECT id FROM users WHERE email = 'owner@example.com'")
        await memberships.add(conn, actor, user_id=user, role="owner")
    await page.goto(link)
    await page.wait_for_url(site.base + "/")
    elsewhere, back = page.locator("#other-organization"), page.locator("#other-organization button")

    # In one tab a contact of the first organization is filled in; in the other the user switches to the second.
    await write(site, "+258841234567")
    other = await site.context.new_page()
    site.watch(other)
    await other.goto(site.base + "/")
    await other.locator(".organizations summary").click()
    await other.locator("[data-filter]").fill("BÉTA")  # with or without accents
    await other.get_by_role("button", name="Beta").click()
    await other.locator(".organizations .organization", has_text="Beta").wait_for()
    await page.get_by_role("button", name="Save", exact=True).click()
    await elsewhere.wait_for()
    assert await page.locator("#phone").input_value() == "+258841234567"
    assert await site.pool.fetchval("SELECT count(*) FROM contacts") == 0
    await back.click()
    await elsewhere.wait_for(state="hidden")
    await page.get_by_role("button", name="Save", exact=True).click()
    await page.wait_for_url(re.compile(r"/contacts(/[0-9a-f-]{36})?$"))
    assert await site.pool.fetchval(COUNT, own) == 1

    # A list that refreshes shows nothing of the other organization, and says why.
    await other.goto(site.base + "/messages")
    await write(site, "+258843333333")
    form = await page.evaluate("navigation.currentEntry.key")
    await page.goto(site.base + "/")
    await page.locator(".organizations summary").click()
    await page.get_by_role("button", name="Beta").click()
    await page.locator(".organizations .organization", has_text="Beta").wait_for()
    await other.locator("#other-organization").wait_for()
    await other.close()

    # What was typed in the first is not in a form of the second, for whoever goes back. By the entry's key, at once: a
    # refresh of Home touches the history too, and would pass for one step back.
    await page.evaluate("key => void navigation.traverseTo(key)", form)
    await page.wait_for_url(site.base + "/contacts/new")
    assert [await page.locator(one).input_value() for one in ("#name", "#phone")] == ["", ""]

    # The session ends in the second one. A new one starts in the first, and the form is submitted to the second.
    await write(site, "+258842222222")
    await site.pool.execute("DELETE FROM sessions")

    async def has_ended() -> bool:
        return (await page.request.get(site.base + "/session")).status == 401

    await until_true(has_ended)
    await page.get_by_role("button", name="Save", exact=True).click()
    await page.locator("#signed-out").get_by_label("Password").fill(PASSWORD)
    await page.locator("#signed-out").get_by_role("button", name="Sign in").click()
    await page.wait_for_url(re.compile(r"/contacts(/[0-9a-f-]{36})?$"))
    assert await site.pool.fetchval(COUNT, own) == 1
    assert await site.pool.fetchval(COUNT, beta.id) == 1
    site.expect("status of (401|409)")
