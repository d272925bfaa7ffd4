"""Journeys 5 and 11: from a failed message to its reason in a few steps, and no input is lost or submitted twice."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from uuid import UUID

import aiohttp
import pytest
from playwright.async_api import Locator, Page, Route

from heliograph.why.words import entries, why
from tests.processes import until_true

from .conftest import PASSWORD, Site, press_key, until_true_in_page

PHONE = "+258841234567"


async def send(site: Site) -> tuple[str, str]:
    """Send a message; returns its id and x-request-id."""
    headers = {"authorization": f"Bearer {site.made.key}", "idempotency-key": "one"}
    body = {"to": PHONE, "message": "Hello"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(site.base + "/v1/sms/send", json=body, headers=headers) as answer,
    ):
        return (await answer.json())["message"]["id"], answer.headers["x-request-id"]


def holding() -> tuple[Callable[[Route], Awaitable[None]], asyncio.Event, asyncio.Event]:
    """A route handler that delays responses, an event set when a request was made, and one that releases the
    responses."""
    asked, may_come = asyncio.Event(), asyncio.Event()

    async def held(route: Route) -> None:
        asked.set()
        await may_come.wait()
        await route.continue_()

    return held, asked, may_come


#: Types again, and resolves when the request caused by it has begun (250 ms later, sending.js).
TYPED = """() => {
  document.getElementById("message").dispatchEvent(new Event("input", { bubbles: true }));
  return new Promise((then) => setTimeout(then, 500));
}"""

#: Whether the form's token differs from this one.
RENEWED = "old => document.querySelector('form[data-preview] [name=_token]').value !== old"


@pytest.mark.lasts(30)
async def test_a_reason_is_found_and_a_form_survives(site: Site) -> None:
    page = site.page
    browser = await site.context.new_cdp_session(page)
    await browser.send("Emulation.setTimezoneOverride", {"timezoneId": "Pacific/Auckland"})
    await page.goto(await site.link(password=True))
    await page.wait_for_url(site.base + "/")
    id, asked = await send(site)
    await site.pool.execute(
        "UPDATE messages SET status = 'failed', failed_at = now(), failure_code = 'expired' WHERE id = $1", UUID(id)
    )

    # By the customer's number: search, then open. By the request's id: at once.
    await page.goto(site.base + "/messages")
    await page.get_by_label("Search").last.fill("258 84 123 4567")
    await press_key(page, "Enter")
    await page.wait_for_url(re.compile(r"\?q="))
    await page.locator("h1").click()
    await press_key(page, "j")
    await press_key(page, "Enter")
    await page.wait_for_url(re.compile(rf"[?&]open={id}$"))
    await page.get_by_role("link", name="Open as a page").click()
    await page.wait_for_url(f"{site.base}/messages/{id}")
    reason = await page.locator("#state .muted").inner_text()
    assert reason in await page.locator("main").inner_text()
    # The sentence is that of the table, for each code.
    for code in entries()["sms_failure"]:
        await site.pool.execute("UPDATE messages SET failure_code = $2 WHERE id = $1", UUID(id), code)
        await page.reload()
        known = why("sms_failure", code)
        assert known is not None
        said = known.words(site.locale.language)
        assert await page.locator("#state .muted").inner_text() == said.customer
        reasons = await page.locator('[aria-labelledby="why"]').inner_text()
        assert said.cause in reasons
        assert said.remedy in reasons
    await page.goto(f"{site.base}/go/{asked}")
    assert page.url == f"{site.base}/messages/{id}"
    await press_key(page, "?")
    await page.get_by_role("heading", name="Keys").wait_for()
    await press_key(page, "Escape")
    await press_key(page, "g")
    await press_key(page, "r")
    await page.wait_for_url(site.base + "/requests")
    # A region whose refresh failed says so in place, and its button retries.
    renewed = page.locator(".renewed").first
    await renewed.get_by_text("Renewed at").wait_for()
    # 24-hour time, here as everywhere else on the page.
    said = re.search(r"Renewed at (\d\d):(\d\d):\d\d(?!\s?[AP]M)", await renewed.inner_text())
    assert said is not None
    # Like all times of the page, in its time zone and not in that of the browser, which is half a day away.
    now = datetime.now(UTC)
    late = (now.hour * 60 + now.minute - int(said[1]) * 60 - int(said[2])) % 1440
    assert late < 60, (said[0], now)
    await site.context.set_offline(True)
    await renewed.get_by_text("This part could not be refreshed.").wait_for()
    await site.context.set_offline(False)
    await renewed.get_by_role("button", name="Try again").click()
    await renewed.get_by_role("button", name="Pause").wait_for()

    # A failed check of a URL while it is typed is reported in its own place, and retried there; the preview of a send
    # asks a user whose session has ended to sign in, and then appears.
    async def failing(route: Route) -> None:
        await route.fulfill(status=500)

    await page.goto(site.base + "/senders/new")
    said = page.locator("#value-said")
    await page.route("**/senders/new?*", failing)
    await page.locator("#value").fill("WEBSHOP")
    await said.get_by_text("This part could not be refreshed.").wait_for()
    await page.unroute("**/senders/new?*", failing)
    await said.get_by_role("button", name="Try again").click()
    await said.get_by_text("This part could not be refreshed.").wait_for(state="detached")
    assert await said.inner_text() != ""
    dialog = page.locator("#signed-out")

    async def has_ended() -> bool:
        # A session is cached for a second.
        return (await page.request.get(site.base + "/session")).status == 401

    async def elsewhere() -> None:
        """The session ends, and the user signs in again in another tab."""
        await site.pool.execute("DELETE FROM sessions")
        await until_true(has_ended)
        other = await site.context.new_page()
        await other.goto(await site.link())
        await other.wait_for_url(site.base + "/")
        await other.close()

    await page.goto(site.base + "/send")
    await site.pool.execute("DELETE FROM sessions")
    await until_true(has_ended)
    await page.locator("#message").fill("Hello, a whole preview")
    await dialog.get_by_label("Password").fill(PASSWORD)
    # Until the form has the new session's token, no further request is made with the old one.
    held, asked, may_come = holding()
    await page.route("**/session", held)
    await dialog.get_by_role("button", name="Sign in").click()
    await asked.wait()
    await page.evaluate(TYPED)
    may_come.set()
    await page.locator("#preview").get_by_text("Hello, a whole preview").wait_for()
    await page.unroute("**/session", held)
    # A user who signed in again in another tab submits the form that was open before.
    await page.goto(site.base + "/team/invite")
    await page.get_by_label("E-mail").first.fill("eva@example.com")
    await page.locator('input[name="role"]').last.check()
    await elsewhere()
    await page.locator("main form button").last.click()
    await page.locator("#link").wait_for()
    assert await site.pool.fetchval("DELETE FROM invitations RETURNING email") == "eva@example.com"
    # Checks while typing also work again, once they have returned to this tab.
    await page.goto(site.base + "/send")
    await elsewhere()
    token = await page.locator("form[data-preview] input[name=_token]").input_value()
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await until_true_in_page(page, RENEWED, token)
    await page.locator("#message").fill("Hello from two tabs")
    await page.locator("#preview").get_by_text("Hello from two tabs").wait_for()

    # The network goes down and comes back while a form is open; then the session ends.
    await page.goto(site.base + "/team/invite")
    await page.get_by_label("E-mail").first.fill("rui@example.com")
    await page.locator('input[name="role"]').last.check()
    await site.context.set_offline(True)
    invite = page.locator("main form button").last
    await invite.click()
    await page.get_by_text("There is no network connection.").wait_for()
    assert await page.get_by_label("E-mail").first.input_value() == "rui@example.com"
    await site.context.set_offline(False)
    await site.pool.execute("DELETE FROM sessions")
    await until_true(has_ended)
    await invite.click()
    await dialog.get_by_label("Password").fill("wrong" + PASSWORD)
    await dialog.get_by_role("button", name="Sign in").click()
    await dialog.get_by_text("E-mail or password is not right.").wait_for()
    await dialog.get_by_label("Password").fill(PASSWORD)
    await dialog.get_by_role("button", name="Sign in").click()
    await page.get_by_label("E-mail").wait_for(state="detached")  # the form was submitted, and the response has arrived
    assert await site.pool.fetchval("SELECT count(*) FROM invitations") == 1
    site.expect("ERR_INTERNET_DISCONNECTED|status of (4(01|22)|500)")


#: An open panel is beside its list, where it is visible, however long the list is.
BESIDE = """() => {
  const panel = document.getElementById("panel").getBoundingClientRect();
  return panel.left > document.querySelector(".beside > *").getBoundingClientRect().left && panel.top < innerHeight;
}"""
#: Whether each row's checkbox is within its table, and does not overlap what it marks.
MARKS = """() => [...document.querySelectorAll('.mark-row')].every((one) => {
  const box = one.getBoundingClientRect(), table = one.closest('.table').getBoundingClientRect();
  return box.left >= table.left && box.right <= one.nextElementSibling.getBoundingClientRect().left;
})"""
#: Counts clicks on the links of rows.
LED = """window.led = 0;
document.addEventListener("click", (event) => { if (event.target.closest("a.row-link")) window.led += 1; });"""


async def select(page: Page, cell: Locator) -> None:
    """Select a cell's text with the mouse."""
    await cell.scroll_into_view_if_needed()
    box = await cell.locator("span").first.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 1, box["y"] + box["height"] / 2)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2, steps=3)
    await page.mouse.up()


async def counted(site: Site) -> list[int]:
    """The number of objects of each kind that the forms below create."""
    tables = ("contacts", "invitations", "api_keys", "webhook_endpoints", "messages", "campaigns", "saved_texts")
    return [await site.pool.fetchval(f"SELECT count(*) FROM {name}") for name in tables]


@pytest.mark.lasts(20)
async def test_a_second_click_does_nothing_a_second_time(site: Site) -> None:
    """Journey 11: every form that creates something is submitted by a double click; Back, and submitting again from
    another tab, find the existing object."""
    page = site.page
    await site.enter()
    before = await counted(site)
    sent: list[str] = []
    page.on("request", lambda asked: sent.append(asked.url) if asked.method == "POST" else None)
    forms: list[tuple[str, dict[str, str], str, str]] = [
        ("/contacts/new", {"#name": "Ana", "#phone": PHONE}, "Save", ".head [href$='/edit']"),
        ("/team/invite", {"#email": "rui@example.com"}, "Create link", "#link"),
        ("/keys/new", {"#name": "web shop"}, "Create key", "#secret"),
        ("/webhooks/new", {"#url": site.made.receiver.url + "shop"}, "Register endpoint", "#secret"),
        ("/send", {"#to": PHONE, "#message": "Hello"}, "Send", "#state"),
        ("/texts/new", {"#name": "Hello", "#body": "Hello"}, "Save", "main a[href*='/texts/']"),
    ]
    for path, typed, button, after in forms:
        await page.goto(site.base + path)
        for field, text in typed.items():
            await page.locator(field).fill(text)
        if path == "/team/invite":
            await page.locator("input[name=role]").last.check()
        if path == "/webhooks/new":
            await page.locator("input[name=subscribed_events]").first.check()
        await page.locator("main form").first.get_by_role("button", name=button, exact=True).last.dblclick()
        await page.locator(after).first.wait_for()
    # The second click does not go out: its answer would be about what the first one has done, "it has changed already".
    assert [sent.count(url) for url in sent if not url.endswith("/preview")] == [1] * len(forms)
    await page.goto(site.base + "/campaigns/new")
    await page.locator("#name").fill("Spring sale")
    await page.locator("input[name=to][value=numbers]").check()
    await page.locator("#numbers").fill(PHONE)
    await page.locator("#text").fill("Hello")
    await page.get_by_role("button", name="Check", exact=True).dblclick()
    await page.get_by_role("button", name="Send to all of them").dblclick()
    await page.locator("#state .lead", has_text="Completed").wait_for()
    # A campaign with one recipient, and a single message.
    assert [new - old for new, old in zip(await counted(site), before, strict=True)] == [1, 1, 1, 1, 2, 1, 1]

    endpoint = await site.pool.fetchval("SELECT id FROM webhook_endpoints ORDER BY id DESC LIMIT 1")
    await page.goto(f"{site.base}/webhooks/{endpoint}")
    await page.get_by_role("button", name="Send a test event", exact=True).click()
    await page.wait_for_url(re.compile("/events/"))
    await page.goto(f"{site.base}/webhooks/{endpoint}")
    await page.locator("[data-rows] a.row-link").first.wait_for()

    # A message in flight can still change.
    await site.pool.execute("UPDATE messages SET status = 'sent', delivered_at = NULL")
    # Back after a swap: the list is as it was, and the panel that was open is open again.
    for path, inside in (
        (f"/webhooks/{endpoint}", "#panel #delivery-attempts"),
        ("/messages", "#panel #state"),
        ("/requests", "#panel #state"),
        ("/contacts", "#panel #known"),
    ):
        await page.goto(site.base + path)
        here = page.url
        # A click anywhere in a row works like one on its link, but selecting text does not navigate. A cell with a
        # relative time changes when its list refreshes, and then loses its selection.
        last = page.locator("[data-rows] tbody tr").first.locator("td[data-name]:not(:has(time, a))").last
        await page.wait_for_load_state("load")
        await page.evaluate(LED)
        await select(page, last)
        assert await page.evaluate("[getSelection().isCollapsed, led]") == [False, 0]
        await page.evaluate("getSelection().removeAllRanges()")
        await last.click()
        await page.wait_for_url(re.compile(r"[?&]open="))
        assert await page.evaluate("led") == 1
        await page.locator(inside).wait_for()
        await until_true_in_page(page, BESIDE)
        assert await page.evaluate(MARKS)
        await page.go_back()
        await page.wait_for_url(here)
        await page.locator("#panel").wait_for(state="hidden")
        await page.go_forward()
        await page.locator(inside).wait_for()
        # It says when it was refreshed and can be paused, unless nothing can change any more.
        if path == "/messages":
            line = page.locator("#panel .renewed")
            await line.get_by_text("Renewed at").wait_for()
            await line.get_by_role("button", name="Pause").click()
            # What it requests by itself does not count as use of the session.
            async with page.expect_request(lambda asked: bool(re.search(r"/messages/[^?]+", asked.url))) as renewed:
                await line.get_by_role("button", name="Continue").click()
            assert (await renewed.value).headers.get("x-seen") == "-"
            await line.get_by_role("button", name="Pause").wait_for()
        await press_key(page, "Escape")
        await page.locator("#panel").wait_for(state="hidden")

    # On a message's page a key leads to the next one of its list, and another to the reason.
    await page.goto(site.base + "/messages")
    rows = page.locator("[data-rows] a.row-link")
    first, second = [site.base + str(await rows.nth(n).get_attribute("href")) for n in (0, 1)]
    await rows.first.click()
    await page.get_by_role("link", name="Open as a page").click()
    await page.wait_for_url(first)
    await page.wait_for_load_state("load")
    await press_key(page, "]")
    await page.wait_for_url(second)
    await page.wait_for_load_state("load")
    await press_key(page, "w")
    assert await page.evaluate("document.activeElement.id") == "why"
    # Keyboard users can read the exact time behind a relative one.
    exact = page.locator("main time[title]").first
    await exact.focus()
    told = await exact.evaluate("one => getComputedStyle(one, '::after').content")
    assert told == f'"{await exact.get_attribute("title")}"'
    await press_key(page, "[")
    await page.wait_for_url(first)
    await page.goto(site.base + "/contacts")

    # With a page whose scripts have not started yet, the panel named by the URL is open.
    held, asked, may_come = holding()
    await page.locator("[data-rows] a.row-link").first.click()
    await page.wait_for_url(re.compile(r"[?&]open="))
    opened = page.url
    await page.route("**/panel.js*", held)
    await page.go_back(wait_until="commit")
    await asked.wait()
    await page.evaluate("history.forward()")
    await page.wait_for_url(opened, wait_until="commit")
    assert await page.locator("#panel").is_hidden()
    may_come.set()
    await page.locator("#panel #known").wait_for()
    await page.unroute("**/panel.js*", held)
    await press_key(page, "Escape")
    await page.locator("#panel").wait_for(state="hidden")

    # Two tabs: what is deleted in one is reported as gone in the other, which keeps working.
    async with site.pool.acquire() as conn:
        id = await conn.fetchval("SELECT id FROM contacts")
    await page.goto(f"{site.base}/contacts/{id}/edit")
    await page.locator("#name").fill("Ana Maria")
    other = await site.context.new_page()
    site.watch(other)
    await other.goto(site.base + "/contacts")
    await other.wait_for_load_state("load")
    await other.locator("h1").click()
    await press_key(other, "j")
    await press_key(other, "Space")
    await other.locator("input[name=ids]:checked").wait_for()
    await other.locator("button[value=delete]").click()
    await other.get_by_role("button", name="Undo").wait_for()
    await page.get_by_role("button", name="Save").click()
    await page.get_by_role("alert").get_by_text("What you typed is still there when you go back.").wait_for()
    await other.get_by_role("button", name="Undo").click()
    await other.get_by_text("Undone: 1 contact is as before.").wait_for()
    await page.go_back()
    await until_true_in_page(page, "() => document.getElementById('name').value === 'Ana Maria'")
    # Progress is visible while a form is being submitted: here the check of the session that precedes it is slow.
    asked.clear()
    may_come.clear()
    await page.route("**/session", held)
    await page.get_by_role("button", name="Save").click()
    await asked.wait()
    await page.locator("button[aria-busy=true]", has_text="Save").wait_for()
    may_come.set()
    await page.get_by_role("heading", name="Ana Maria").wait_for()
    await page.unroute("**/session", held)
    site.expect("status of 404")
