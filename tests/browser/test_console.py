"""The operator's console in a browser: from the first link to a working organization, an outage that is reported, and
axe on every page in both themes and languages."""

from __future__ import annotations

import re
from pathlib import Path

import pyotp
import pytest

from heliograph.base.actor import SYSTEM
from heliograph.people import links, users
from heliograph.people.operators import accounts
from heliograph.sms.accepting import sender_ids
from heliograph.sms.dispatch import routing
from tests.processes import until_true
from tests.rules.factories import message

from . import places
from .conftest import DAY, LONG, NIGHT, PASSWORD, Chromium, Look, Site, browsing, looks, press_key, until_true_in_page
from .test_accessible import CURRENT, FOCUS, RUN, VENDOR
from .test_passkeys import device


async def setup_link(site: Site) -> str:
    """The link as `heliograph user create --operator` prints it."""
    async with site.pool.acquire() as conn:
        user, _ = await users.ensure(conn, SYSTEM, email="eva@example.com", name="Eva")
        await accounts.add(conn, SYSTEM, user_id=user.id, email=user.email, role="root")
        token = await links.make(conn, SYSTEM, user_id=user.id, realm="console")
    return links.address(site.base, token, realm="console")


async def set_up(site: Site, host: str = "127.0.0.1") -> str:
    """Follow the link, choose a password, set up the authenticator app, save the recovery codes: by keyboard alone.
    Returns one of the codes."""
    page = site.page
    await page.goto((await setup_link(site)).replace("127.0.0.1", host))
    await page.wait_for_url("**/console/setup/account")
    # The focus starts in the field.
    await page.locator("#password:focus").wait_for()
    await page.keyboard.type(PASSWORD)
    await press_key(page, "Enter")
    await page.wait_for_url("**/console/setup/factor")
    key = await page.locator("p.mono").inner_text()
    await page.locator("#code").focus()
    await page.keyboard.type(pyotp.TOTP(key.replace(" ", "").strip()).now())
    await press_key(page, "Enter")
    code = await page.locator(".codes li").first.inner_text()
    # The codes can be copied or downloaded; the page can be left once the box is ticked.
    async with page.expect_download() as kept:
        await page.get_by_role("button", name=site.says("Download")).focus()
        await press_key(page, "Enter")
    assert code in Path(await (await kept.value).path()).read_text().splitlines()
    await page.get_by_label(site.says("I have saved them")).focus()
    await press_key(page, "Space")
    await page.get_by_role("button", name=site.says("Continue")).focus()
    await press_key(page, "Enter")
    await page.wait_for_url(re.compile("/console/setup/next"))
    await page.get_by_role("link", name=site.says("Open the console")).focus()
    await press_key(page, "Enter")
    await page.wait_for_url("**/console/now")
    return code


@pytest.mark.lasts(25)
@pytest.mark.parametrize("site", looks(DAY), indirect=True)
async def test_from_the_first_link_to_an_organization_whose_owner_signs_in(site: Site, browser: Chromium) -> None:
    page = site.page
    await set_up(site)
    await page.get_by_role("link", name=site.says("Organizations")).first.focus()
    await press_key(page, "Enter")
    await page.wait_for_url("**/console/organizations")
    await page.get_by_role("link", name=site.says("New organization")).focus()
    await press_key(page, "Enter")
    await page.wait_for_url("**/console/organizations/new")
    await page.locator("#name").focus()
    await page.keyboard.type("Padaria Sol")
    for name, value in (("country", "MZ"), ("quota", "500"), ("sender", "PADARIA"), ("email", "dono@example.com")):
        await page.locator(f"#{name}").focus()
        await page.keyboard.type(value)
    await press_key(page, "Enter")
    link = await page.locator("#link").input_value()
    async with browsing(site.made, site.pool, browser, Look(site.locale.language, "light")) as theirs:
        # They accept with a name and a password, and later sign in with the password.
        owner = theirs.page
        await owner.goto(link)
        await owner.locator("#name").focus()
        await owner.keyboard.type("Dono")
        await owner.locator("#password").focus()
        await owner.keyboard.type(PASSWORD)
        await press_key(owner, "Enter")
        await owner.get_by_role("link", name=site.says("Not now")).focus()  # a second factor is offered at once
        await press_key(owner, "Enter")
        await owner.wait_for_url(site.base + "/")
        assert "Padaria Sol" in await owner.locator(".organization").inner_text()
        await owner.locator("details.who.person > summary").focus()
        await press_key(owner, "Enter")
        await owner.get_by_role("button", name=site.says("Sign out")).focus()
        await press_key(owner, "Enter")
        await owner.locator("#email").fill("dono@example.com")
        await owner.locator("#password").focus()
        await owner.keyboard.type(PASSWORD)
        await press_key(owner, "Enter")
        await owner.wait_for_url(site.base + "/")
        # The owner's browser is not signed in to the console.
        await theirs.page.goto(site.base + "/console/organizations")
        await theirs.page.wait_for_url("**/console/login?next=**")
        assert theirs.complaints == []
    assert site.complaints == []


@pytest.mark.lasts(25)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True)
async def test_an_outage_is_named_with_what_to_do_and_gone_again(site: Site) -> None:
    page = site.page
    await set_up(site)
    heading = page.locator("#live h1")
    # The supplier goes down, which the wall screen shows by itself.
    async with site.pool.acquire() as conn:
        (supplier, *_) = await routing.load(conn)
    await page.goto(f"{site.base}/console/suppliers/{supplier.id}")
    await page.get_by_role("link", name=site.says("Pause or drain…")).focus()
    await press_key(page, "Enter")
    await page.get_by_role("button", name=site.says("Pause")).focus()
    await press_key(page, "Enter")
    await page.get_by_role("button", name=site.says("Resume")).wait_for()
    await page.goto(site.base + "/console/now")
    await page.locator("td", has_text=site.says("paused")).wait_for()
    trouble = page.locator("article.trouble", has_text=supplier.name)
    await trouble.wait_for()
    assert site.says("What to do") in await trouble.inner_text()
    assert await heading.inner_text() != site.says("Everything works.")
    await page.goto(f"{site.base}/console/suppliers/{supplier.id}")
    await page.get_by_role("button", name=site.says("Resume")).click()
    await page.get_by_role("link", name=site.says("Pause or drain…")).wait_for()
    # It disappears from the wall without a reload.
    await page.goto(site.base + "/console/now")
    await page.locator("td", has_text=site.says("connected")).wait_for()
    await trouble.wait_for(state="detached")
    assert site.complaints == []


@pytest.mark.lasts(25)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True)
async def test_palette_keys_and_a_session_that_ends_over_a_form(site: Site) -> None:
    page = site.page
    code = await set_up(site)
    organization = str(site.made.actor.organization_id)
    await press_key(page, "Control+k")
    await page.locator(".palette input").fill(organization)
    await press_key(page, "Enter")
    await page.wait_for_url(f"**/console/organizations/{organization}")
    await press_key(page, "?")
    await page.locator("#keys dt", has_text="g q").wait_for()
    await press_key(page, "Escape")
    await press_key(page, "g")
    await press_key(page, "o")
    await page.wait_for_url("**/console/organizations")
    await press_key(page, "n")
    await page.wait_for_url("**/console/organizations/new")

    # The session ends while a form is open: a dialog above it asks for password and code, and then the form is
    # submitted.
    await page.locator("#name").fill("Padaria Sol")
    await site.pool.execute("DELETE FROM operator_sessions")

    async def has_ended() -> bool:
        # A session is cached for a second.
        return (await page.request.get(site.base + "/console/session")).status == 401

    await until_true(has_ended)
    await page.locator("main form button").last.click()
    dialog = page.locator("#signed-out")
    await dialog.locator("#again-password").fill(PASSWORD)
    await press_key(page, "Enter")
    await dialog.locator("#again-code").fill("aaaa-aaaa-aaaa")
    await press_key(page, "Enter")
    await dialog.get_by_text(site.says("This code is not correct, or was used already.")).wait_for()
    await dialog.locator("#again-code").fill(code)
    await press_key(page, "Enter")
    await page.locator("main h1", has_text="Padaria Sol").wait_for()
    assert await site.pool.fetchval("SELECT count(*) FROM organizations WHERE name = 'Padaria Sol'") == 1
    site.expect("status of 4(01|22)")
    assert site.complaints == []


@pytest.mark.lasts(20)
async def test_a_passkey_of_the_console_is_made_and_opens_it(site: Site) -> None:
    page = site.page
    base = site.base.replace("127.0.0.1", "localhost")
    site.bases.append(base)
    await device(page)
    await set_up(site, "localhost")
    await page.goto(base + "/console/account")
    await page.get_by_role("link", name="Add a passkey").click()
    await page.fill("#name", "Eva's laptop")
    await page.click("button:has-text('Add a passkey')")
    await page.wait_for_url(base + "/console/account")
    assert "Eva's laptop" in await page.inner_text("main")
    await page.click("details.who > summary")
    await page.click("button:has-text('Sign out')")
    # The field itself asks the authenticator, which responds without a click.
    await page.wait_for_url(base + "/console/now")
    assert await site.pool.fetchval("SELECT count(*) FROM passkeys WHERE used_at IS NOT NULL") == 1
    # The wall switches to full screen and back with the key that `?` lists.
    await page.locator("#live h1").wait_for()
    await press_key(page, "f")
    await until_true_in_page(page, "() => document.fullscreenElement !== null")
    await page.locator(".rail").wait_for(state="hidden")
    await press_key(page, "f")
    await page.locator(".rail").wait_for()
    # A refresh of the page may be in flight while somebody signs out.
    site.expect("status of 401")
    assert site.complaints == []


@pytest.mark.lasts(25)
@pytest.mark.parametrize("site", looks(DAY), indirect=True)
async def test_support_decides_by_keys_and_looks_into_an_organization(site: Site) -> None:
    """Journey 10 and related features: approvals by keyboard, viewing as an organization, both audit logs."""
    page, says = site.page, site.says
    await set_up(site)
    async with site.pool.acquire() as conn:
        await sender_ids.request(conn, site.made.actor, value="PADARIA")
        await sender_ids.request(conn, site.made.actor, value="G00GLE")
    await page.goto(site.base + "/console/approvals")
    await page.locator("article", has_text="G00GLE").wait_for()
    await press_key(page, "j")
    await press_key(page, "a")
    await page.get_by_role("button", name=says("Undo")).wait_for()
    assert await site.pool.fetchval("SELECT status FROM sender_ids WHERE value = 'PADARIA'") == "approved"
    await press_key(page, "x")
    await page.wait_for_url("**/reject")
    organization = str(site.made.actor.organization_id)
    # A message, looked up by the number that a customer gives; its text is revealed for a reason.
    await message(site.pool, site.made.actor, to="+258841234567", text="Your code is 4711")
    await page.goto(site.base + "/console/messages")
    await page.locator("#recipient").fill("+258 84 123 4567")
    await press_key(page, "Enter")
    await page.locator("td a[href^='/console/messages/']").first.focus()
    await press_key(page, "Enter")
    await page.locator("#reason").wait_for()
    assert "Your code is" not in await page.locator("main").inner_text()
    await page.locator("#reason").fill("ticket 814")
    await press_key(page, "Enter")
    await page.locator(".bubble", has_text="Your code is 4711").wait_for()
    await page.goto(f"{site.base}/console/organizations/{organization}/view")
    await page.locator("#reason").fill("ticket 815")
    await press_key(page, "Enter")
    async with page.context.expect_page() as opened:
        await page.get_by_role("link", name=says("Open its dashboard")).click()
    theirs = await opened.value
    await theirs.wait_for_url(site.base + "/")
    band = theirs.locator("aside.band.warn:not([hidden])")
    assert "ticket 815" in await band.inner_text()
    await theirs.goto(site.base + "/audit")
    for ticket in ("ticket 814", "ticket 815"):
        assert ticket in await theirs.locator("main").inner_text()
    await band.get_by_role("button", name=says("Stop viewing")).click()
    await theirs.wait_for_url("**/login")
    # The console is still open and unchanged.
    await page.goto(site.base + "/console/audit?action=organization.viewed")
    assert "ticket 815" in await page.locator("main").inner_text()
    await page.goto(site.base + "/console/audit?action=message.revealed")
    assert "ticket 814" in await page.locator("main").inner_text()
    assert site.complaints == []


@pytest.mark.lasts(40)
@pytest.mark.parametrize("site", [DAY, NIGHT] if LONG else [NIGHT], indirect=True)
async def test_every_page_of_the_console(site: Site) -> None:
    page = site.page
    await site.context.add_init_script(path=VENDOR / "axe.min.js")
    found: list[str] = []
    looked: list[str] = []
    # Narrow a page that was opened wide, and open the next one wide again.
    widths = [1280, 320]
    await page.set_viewport_size({"width": widths[0], "height": 800})

    async def look(path: str) -> None:
        answer = await page.goto(site.base + path)
        if answer is None or answer.status != 200:
            found.append(f"{path} is not there")
        await page.wait_for_load_state("load")
        if not await page.evaluate(CURRENT):
            found.append(f"{path} does not show its tab at {widths[0]}")
        for width in widths:
            if width != widths[0]:
                await page.set_viewport_size({"width": width, "height": 800})
            wide = await page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                found.append(f"{path} is {wide} px wide at {width}")
            # `make faults` checks both widths; otherwise pages take turns.
            if LONG or width == (1280, 320)[len(looked) // 2 % 2]:
                found.extend(f"{path} at {width}: {one}" for one in await page.evaluate(RUN))
                await press_key(page, "Tab")
                found.extend(f"{path} at {width}: {one}" for one in await page.evaluate(FOCUS))
        looked.append(path)
        widths.reverse()

    for path in places.CONSOLE_DOOR:
        await look(path)
    await set_up(site)
    paths = await places.console(site)
    for path in paths:
        await look(path)
    assert found == [], "\n".join(found)
    assert site.complaints == []
