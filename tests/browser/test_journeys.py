"""Short journeys in a real browser."""

from __future__ import annotations

import re

import aiohttp
import pytest

from .conftest import PASSWORD, Site, press_key

WHERE = re.compile(r"/messages/[0-9a-f-]{36}$")


@pytest.mark.lasts(20)
async def test_from_the_first_link_to_a_delivered_message(site: Site) -> None:
    """The link signs in, a key is created, a program sends with it, and the page shows the message as delivered by
    itself."""
    page = site.page
    await page.goto(await site.link())
    await page.wait_for_url(site.base + "/")
    assert "#" not in page.url
    await page.get_by_role("link", name="API keys").click()
    await page.get_by_role("link", name="New key").click()
    await page.get_by_label("Name").fill("web shop")
    await page.get_by_role("button", name="Create key").click()
    secret = await page.get_by_label("Secret").input_value()
    assert secret.startswith("hg_live_")
    body = {"to": "+258841234567", "message": "Hello", "clientReference": "order-1"}
    headers = {"authorization": f"Bearer {secret}", "idempotency-key": "order-1"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(site.base + "/v1/sms/send", json=body, headers=headers) as answer,
    ):
        assert answer.status == 202
    # The palette finds it by the pasted id.
    await press_key(page, "Control+k")
    await page.locator(".palette input").fill("order-1")
    await press_key(page, "Enter")
    # It opens beside the list, and from there as a page.
    await page.get_by_role("link", name="+258841234567").click()
    await page.wait_for_url(re.compile(r"[?&]open=[0-9a-f-]{36}$"))
    await page.locator("#panel #state", has_text="Delivered").wait_for()
    await page.get_by_role("link", name="Open as a page").click()
    await page.wait_for_url(WHERE)
    await page.locator("#state", has_text="Delivered").wait_for()
    await page.locator("#state[data-final]").wait_for()


@pytest.mark.lasts(10)
async def test_without_scripts(site: Site) -> None:
    """Journey 12: sign in with a pasted link, choose a password, sign in with it, create a key; send, find and cancel a
    message; register an endpoint: all of it works."""
    link = await site.link()
    page = await site.context.new_page()
    site.watch(page)
    await page.route("**/*.js", lambda route: route.abort())
    await page.goto(site.base + "/enter")
    await page.get_by_label("Link").fill(link)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(site.base + "/")
    await page.get_by_role("link", name="Choose a password").click()
    await page.get_by_label("New password").fill(PASSWORD)
    await page.get_by_role("button", name="Save").click()
    await page.get_by_text("The password is changed.").wait_for()
    await page.locator("summary", has_text="You").click()
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_label("E-mail").fill("owner@example.com")
    await page.get_by_label("Password").fill(PASSWORD)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(site.base + "/")
    await page.get_by_role("link", name="API keys").click()
    await page.get_by_role("link", name="New key").click()
    await page.get_by_label("Name").fill("web shop")
    await page.get_by_role("button", name="Create key").click()
    assert (await page.get_by_label("Secret").input_value()).startswith("hg_live_")
    # Sent for later, found by its number, canceled.
    await page.goto(site.base + "/send")
    await page.locator("#to").fill("+258841234567")
    await page.locator("#message").fill("Hello")
    await page.locator("summary", has_text="Later, validity, reference").click()
    await page.locator("#day").fill(await site.pool.fetchval("SELECT (now() + interval '2 days')::date::text"))
    await page.locator("#hour").fill("10:30")
    await page.locator("[data-send]").click()
    await page.wait_for_url("**/send?sent=*")
    await page.goto(site.base + "/messages")
    await page.locator("#q").fill("258 84 123 4567")
    await page.get_by_role("button", name="Filter", exact=True).click()
    await page.locator("a.row-link").click()
    await page.wait_for_url(WHERE)
    await page.get_by_role("link", name="Cancel the message").click()
    await page.get_by_role("button", name="Cancel the message").click()
    await page.locator("#state", has_text="Canceled").wait_for()
    assert await site.pool.fetchval("SELECT status FROM messages") == "canceled"
    # An endpoint is registered.
    await page.goto(site.base + "/webhooks/new")
    await page.locator("#url").fill(site.made.receiver.url + "shop")
    await page.locator("input[name=subscribed_events][value='message.delivered']").check()
    await page.get_by_role("button", name="Register endpoint").click()
    assert (await page.locator("#secret").input_value()).startswith("whsec_")
    await page.get_by_label("I have saved it").check()
    await page.get_by_role("button", name="Continue").click()
    await page.get_by_role("heading", name=site.made.receiver.url + "shop").wait_for()
    await page.locator("select[name=theme]").select_option("dark")
    await page.get_by_role("button", name="Apply").click()
    assert await page.locator("html").get_attribute("data-theme") == "dark"
    # The console complains of the blocked scripts, and of nothing else.
    site.expect("ERR_FAILED")


async def test_by_keyboard_alone(site: Site) -> None:
    """From the sign-in form to a page of the navigation by keyboard; the skip link leads to the content."""
    page = site.page
    await site.link(password=True)
    await page.goto(site.base + "/login")
    await page.locator("#email:focus").wait_for()  # a loaded page has not focused its first field yet
    await page.keyboard.type("owner@example.com")
    await press_key(page, "Tab")
    await page.keyboard.type(PASSWORD)
    await press_key(page, "Enter")
    await page.wait_for_url(site.base + "/")
    await press_key(page, "Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
    await press_key(page, "Enter")
    assert await page.evaluate("document.activeElement.id") == "main"
    # Tab passes through the search field; typing there opens the palette, which returns the focus to the field when
    # closed.
    field, palette = page.locator("#seek"), page.locator("dialog.palette")
    while not await field.evaluate("node => node === document.activeElement"):
        await press_key(page, "Tab")
    assert await palette.is_hidden()
    await press_key(page, "Tab")
    assert await page.evaluate("document.activeElement.hasAttribute('data-keys-help')")
    await press_key(page, "Shift+Tab")
    await page.keyboard.type("Team")
    assert await palette.locator("input").input_value() == "Team"
    await press_key(page, "Escape")
    await palette.wait_for(state="hidden")
    assert await field.evaluate("node => node === document.activeElement && node.value === ''")
    await page.keyboard.type("Messages")
    await press_key(page, "Enter")
    await page.wait_for_url(site.base + "/messages")
    await press_key(page, "/")
    assert await page.evaluate("document.activeElement.id") == "q"
    # On a phone, which has neither the field nor the keys, the palette is under "More".
    await page.set_viewport_size({"width": 320, "height": 640})
    assert await field.is_hidden()
    await page.locator("details.more > summary").click()
    await page.locator("#seek-more").click()
    await palette.locator("input").fill("Team")
    await palette.get_by_role("option", name="Team", exact=True).click()
    await page.wait_for_url(site.base + "/team")


@pytest.mark.lasts(10)
async def test_a_choice_needs_no_second_click_after_its_list_was_renewed(site: Site) -> None:
    """Below a list that had renewed itself stood a button, and the choice beside it did nothing without it."""
    page = site.page
    await site.enter()
    headers = {"authorization": f"Bearer {site.made.key}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def send(number: int) -> None:
            body = {"to": f"+25884123{number:04}", "message": "Hello"}
            once = {"idempotency-key": str(number)}
            async with session.post(site.base + "/v1/sms/send", json=body, headers=once) as answer:
                assert answer.status == 202

        for number in range(51):
            await send(number)
        await page.goto(site.base + "/messages")
        await page.wait_for_load_state("load")
        await send(51)
        await page.locator("#rows .newer").wait_for()
    rows = page.locator("#rows-of-a-page")
    assert await page.locator("#rows form[data-auto] button:visible").count() == 0
    async with page.expect_navigation():
        await rows.select_option("25")
    assert await page.locator("#rows tbody tr").count() == 25
