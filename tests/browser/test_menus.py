"""Menus and dialogs by keyboard: a menu is completely visible at every width, covers nothing that has the focus, and
returns the focus; a dialog that was closed does not carry out its action later."""

from __future__ import annotations

import pytest

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.people import memberships
from heliograph.webhooks import endpoints
from heliograph.webhooks.recording.events import KINDS
from tests.processes import until_true

from .conftest import PASSWORD, Site, press_key

#: Opens each menu of the page, and lists those that extend beyond the page's sides.
OUTSIDE = """() => {
  const found = [];
  for (const one of document.querySelectorAll('details.who')) {
    one.open = true;
    const { left, right } = one.querySelector('.menu').getBoundingClientRect();
    if (left < 0 || right > innerWidth) found.push(`${one.innerText.trim().slice(0, 40)} from ${left} to ${right}`);
    one.open = false;
  }
  return found;
}"""
#: Whether the focused element is covered by another one.
COVERED = """() => {
  const one = document.activeElement, { left, top, width, height } = one.getBoundingClientRect();
  const there = document.elementFromPoint(left + width / 2, top + height / 2);
  return !one.contains(there) && !there.contains(one);
}"""

#: Fields that a phone would zoom into: text fields with a font of less than 16 px.
SMALL = """() => [...document.querySelectorAll("input, select, textarea")].filter((one) =>
  one.offsetWidth > 1 && !/checkbox|radio/.test(one.type) && parseFloat(getComputedStyle(one).fontSize) < 16
).map((one) => one.outerHTML)"""
CUT = """() => {
  const { clientWidth, scrollWidth } = document.querySelector(".bar .organization");
  return scrollWidth > clientWidth;
}"""


@pytest.mark.lasts(20)
async def test_menus_and_dialogs_by_keyboard(site: Site) -> None:
    page = site.page
    await page.goto(await site.link(password=True))
    await page.wait_for_url(site.base + "/")

    # The session ends, and the submitted form waits for a sign-in in a dialog; Escape and a button cancel it.
    await page.goto(site.base + "/contacts/new")
    await page.fill("#name", "Ana")
    await page.fill("#phone", "+258841234567")
    await site.pool.execute("DELETE FROM sessions")

    async def has_ended() -> bool:
        # A session is cached for a second.
        return (await page.request.get(site.base + "/session")).status == 401

    await until_true(has_ended)
    await page.locator("#phone").focus()
    await press_key(page, "Enter")
    dialog = page.locator("#signed-out")
    await dialog.get_by_label("Password").wait_for()
    await press_key(page, "Escape")
    await dialog.wait_for(state="hidden")
    await page.locator("#phone").focus()
    await press_key(page, "Enter")
    await dialog.get_by_role("button", name="Close").click()
    await dialog.wait_for(state="hidden")
    # What a region does when its refresh finds that the session has ended.
    await page.evaluate("document.dispatchEvent(new CustomEvent('signed-out'))")
    await dialog.get_by_label("Password").fill(PASSWORD)
    await press_key(page, "Enter")
    await dialog.wait_for(state="hidden")
    await page.fill("#name", "Rui")
    await page.locator("#phone").focus()
    await press_key(page, "Enter")
    await page.get_by_role("heading", name="Rui").wait_for()
    assert [row["name"] for row in await site.pool.fetch("SELECT name FROM contacts")] == ["Rui"]

    # Each press of the same key moves a column down by one.
    await page.goto(site.base + "/contacts")
    await page.get_by_text("Columns", exact=True).focus()
    await press_key(page, "Enter")
    await page.locator("button[name=down]").first.focus()
    for place in (2, 3):
        await press_key(page, "Enter")
        await page.locator(f".column-menu > .split:nth-of-type({place}) button[name=down]:focus").wait_for()

    # When Tab leaves a menu, the focus stays visible.
    await page.goto(site.base + "/keys")
    await page.locator("details.person > summary").focus()
    await press_key(page, "Enter")
    for stop in ("My account", "Sign out", "Whose key is this?", "New key"):
        await press_key(page, "Tab")
        assert stop in await page.evaluate("document.activeElement.innerText")
        assert not await page.evaluate(COVERED), stop

    # A disclosure within a form is not a menu: neither another field nor Escape closes it.
    await page.goto(site.base + "/send")
    part = page.locator("main details.more")
    await part.locator("summary").focus()
    await press_key(page, "Enter")
    await page.fill("#reference", "order 4711")
    await page.locator("#message").focus()
    await press_key(page, "Escape")
    assert await page.evaluate("document.activeElement.id") == "message"
    assert await page.locator("#reference").is_visible()

    for path in ("/contacts", "/messages", "/requests?range=custom"):
        await page.goto(site.base + path)
        for width in (1280, 1023, 768, 640, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate(OUTSIDE) == [], (path, width)
    site.expect("status of 401")


@pytest.mark.lasts(10)
async def test_a_phone_zooms_into_no_field_and_nothing_is_wider_than_it(site: Site) -> None:
    await site.enter()
    async with site.pool.acquire() as conn:
        about = endpoints.rules(site.made.settings)
        hook, _ = await endpoints.create(
            conn, site.made.actor, url=site.made.receiver.url, subscribed_events=KINDS, rules=about
        )
    browser = site.context.browser
    assert browser is not None
    phone = await browser.new_context(
        has_touch=True, viewport={"width": 320, "height": 640}, storage_state=await site.context.storage_state()
    )
    try:
        page = await phone.new_page()
        site.watch(page)
        for path in (f"/webhooks/{hook.id}", "/send", "/messages", "/contacts/new", "/settings", "/account"):
            await page.goto(site.base + path)
            await page.evaluate("document.querySelectorAll('main details').forEach((one) => { one.open = true; })")
            assert await page.evaluate(SMALL) == [], path
            assert await page.evaluate("document.documentElement.scrollWidth") == 320, path
    finally:
        await phone.close()


@pytest.mark.lasts(10)
async def test_the_name_of_an_organization_has_room_in_the_bar(site: Site) -> None:
    page, name = site.page, "Águas e Saneamento da Beira Lda"
    await site.pool.execute("UPDATE organizations SET name = $1 WHERE id = $2", name, site.made.actor.organization_id)
    await site.enter()
    for width in (768, 1024):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate(CUT) is False, width
    # If it does not fit, it is cut, and its full text is available.
    await page.set_viewport_size({"width": 320, "height": 800})
    assert await page.evaluate(CUT) is True
    await page.get_by_title(name).wait_for()


@pytest.mark.lasts(10)
async def test_the_name_of_one_of_several_organizations_pushes_nothing_out_of_sight(site: Site) -> None:
    """The bell and the menus beside it were to the right of a phone's screen, and every page was wider than that; so
    was the menu, by a name without spaces."""
    page, name = site.page, "Padaria e Pastelaria Central de Maputo, Limitada"
    await site.pool.execute("UPDATE organizations SET name = $1 WHERE id = $2", name, site.made.actor.organization_id)
    link = await site.link()
    async with site.pool.acquire() as conn:
        beta = await organizations.create(conn, name="b" * 60)
        actor = Actor(beta.id, None, "live", frozenset(), "active")
        user = await conn.fetchval("SELECT id FROM users WHERE email = 'owner@example.com'")
        await memberships.add(conn, actor, user_id=user, role="owner")
    await page.goto(link)
    await page.wait_for_url(site.base + "/")
    for width in (1280, 1024, 768, 360, 320):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") == width, width
        assert await page.evaluate(OUTSIDE) == [], width
    assert await page.evaluate(CUT) is True
    await page.get_by_title(name).wait_for()


@pytest.mark.lasts(10)
async def test_the_last_of_many_organizations_is_in_reach(site: Site) -> None:
    """The menu was longer than the screen, and stayed where it was when the page was scrolled."""
    page = site.page
    link = await site.link()
    async with site.pool.acquire() as conn:
        user = await conn.fetchval("SELECT id FROM users WHERE email = 'owner@example.com'")
        for number in range(30):
            made = await organizations.create(conn, name=f"Branch {number}")
            actor = Actor(made.id, None, "live", frozenset(), "active")
            await memberships.add(conn, actor, user_id=user, role="owner")
    await page.goto(link)
    await page.wait_for_url(site.base + "/")
    await page.locator(".organizations summary").click()
    last = page.locator(".organizations .menu button").last
    await last.scroll_into_view_if_needed()
    box, size = await last.bounding_box(), page.viewport_size
    assert box is not None
    assert size is not None
    assert box["y"] + box["height"] <= size["height"]
