"""Journeys 1 and 2, the dashboard's part: from the first link to a colleague who works, and from nothing to a delivered
message and its signed event, all by keyboard."""

from __future__ import annotations

import re
import time

import pyotp
import pytest
from playwright.async_api import Locator, Page

from heliograph.accounts import organizations, quota
from heliograph.base.actor import Actor
from heliograph.sms.accepting import sender_ids

from .conftest import DAY, NIGHT, PASSWORD, Site, looks, press_key


async def press(where: Locator) -> None:
    """Follow a link or press a button by keyboard."""
    await where.focus()
    await press_key(where.page, "Enter")


async def write(where: Locator, text: str) -> None:
    """Type into a field by keyboard."""
    await where.focus()
    await where.page.keyboard.type(text)


async def authenticator(page: Page) -> pyotp.TOTP:
    """The authenticator app, set up with the secret that the page shows."""
    secret = re.search(r"\b(?:[A-Z2-7]{4} ){7}[A-Z2-7]{4}\b", await page.locator("main").inner_text())
    assert secret
    return pyotp.TOTP(secret[0].replace(" ", ""))


async def sign_out(site: Site) -> None:
    await press(site.page.locator("details.who.person > summary"))
    await press(site.page.get_by_role("button", name=site.says("Sign out")))
    await site.page.locator("#email").wait_for()


@pytest.mark.lasts(15)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True, ids=str)
async def test_from_the_first_link_to_a_colleague(site: Site) -> None:
    page, says = site.page, site.says
    began = time.monotonic()
    await site.enter()
    await press(page.get_by_role("link", name=says("Choose a password")))
    await write(page.locator("#password"), PASSWORD)
    await press(page.get_by_role("button", name=says("Save")))
    await page.locator(".notice", has_text=says("The password is changed. Your other sessions were ended.")).wait_for()
    await page.goto(site.base + "/account/factor")
    app = await authenticator(page)
    await write(page.locator("#code"), app.now())
    await press(page.get_by_role("button", name=says("Turn on")))
    await page.locator(".codes li").nth(9).wait_for()
    codes = await page.locator(".codes li").all_inner_texts()
    assert len(codes) == 10

    await page.goto(site.base + "/team/invite")
    await write(page.locator("#email"), "rui@example.com")
    await page.locator("input[name=role][value=sender]").focus()
    await press_key(page, "Space")
    await press(page.get_by_role("button", name=says("Create link")))
    invitation = await page.locator("#link").input_value()
    await sign_out(site)

    await page.goto(invitation)
    await write(page.locator("#name"), "Rui Costa")
    await write(page.locator("#password"), PASSWORD)
    await press(page.get_by_role("button", name=says("Join")))
    await press(page.get_by_role("link", name=says("Not now")))  # a second factor is offered at once
    await page.wait_for_url(site.base + "/")
    assert await page.get_by_role("link", name=says("API keys"), exact=True).count() == 0
    await sign_out(site)
    assert "rui" not in await page.locator("main").inner_text()

    # The owner signs in again with the second factor, a saved recovery code.
    await write(page.locator("#email"), "owner@example.com")
    await write(page.locator("#password"), PASSWORD)
    await press_key(page, "Enter")
    await write(page.locator("#code"), codes[0])
    await press_key(page, "Enter")
    await page.wait_for_url(site.base + "/")
    await page.goto(site.base + "/team")
    row = page.get_by_role("row", name=re.compile("Rui Costa"))
    assert site.says("Sender") in await row.inner_text()
    print(f"journey 1, the dashboard's part: {time.monotonic() - began:.1f} s")


@pytest.mark.lasts(15)
@pytest.mark.parametrize("site", looks(DAY), indirect=True, ids=str)
async def test_steps_are_ticked_by_what_happens(site: Site) -> None:
    page, says = site.page, site.says
    async with site.pool.acquire() as conn:
        fresh = await organizations.create(conn, name="Padaria", state="active")
        site.made.actor = Actor(fresh.id, None, "live", frozenset(), fresh.state)
        await quota.grant(conn, fresh.id, amount=100, reason="test")
        sender = await sender_ids.request(conn, site.made.actor, value="PADARIA")
        await sender_ids.review(conn, site.made.actor, id=sender.id, status="approved")

    # The home page stays open in another tab, is never reloaded, and ticks each step by itself.
    beside = await site.context.new_page()
    site.watch(beside)

    async def ticked(step: str) -> None:
        began = time.monotonic()
        await beside.locator(".steps li.done", has_text=says(step)).wait_for()
        print(f"journey 2: “{step}” was ticked after {time.monotonic() - began:.1f} s")

    await site.enter()
    await beside.goto(site.base + "/?mode=test")
    await beside.evaluate("window.kept = true")
    began = time.monotonic()
    await press(page.locator(".steps li", has_text=says("Create a test key")).get_by_role("link"))
    await write(page.locator("#name"), "first")
    await press(page.get_by_role("button", name=says("Create key")))
    assert (await page.locator("#secret").input_value()).startswith("hg_test_")
    kept = page.get_by_label(says("I have saved it"))
    await kept.focus()
    await press_key(page, "Space")
    await press(page.get_by_role("button", name=says("Continue")))
    await page.get_by_role("cell", name=re.compile("first")).first.wait_for()
    await ticked("Create a test key")
    await page.goto(site.base + "/")

    # Open the catcher before sending, so that it shows the event.
    await press(page.locator(".steps li", has_text=says("Have outcomes sent to your program")).get_by_role("link"))
    await press(page.get_by_role("button", name=says("Open the catcher for an hour")))
    await page.locator("#secret").wait_for()
    await ticked("Have outcomes sent to your program")
    await page.goto(site.base + "/?mode=test")
    await press(page.get_by_role("button", name=says("Send it for me")))
    await ticked("Send a first message with it")
    await page.locator("#state[data-final]", has_text=says("Delivered")).wait_for()
    await ticked("See it delivered")
    assert await beside.evaluate("window.kept")
    await page.goto(site.base + "/webhooks/catcher?mode=test")
    caught = page.locator("section.card", has_text="message.delivered").first
    await caught.get_by_text(says("Signature verified")).wait_for()
    print(f"journey 2: {time.monotonic() - began:.1f} s from home to the signed event")
