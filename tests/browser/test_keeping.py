"""Journeys 5 and 11: from a failed message to its reason in a few steps, and nothing typed is lost or done twice."""

from __future__ import annotations

import re
from uuid import UUID

import aiohttp
import pytest

from tests.processes import until_true

from .conftest import PASSWORD, Site

PHONE = "+258841234567"


async def send(site: Site) -> tuple[str, str]:
    """(id, x-request-id) of a message."""
    headers = {"authorization": f"Bearer {site.made.key}", "idempotency-key": "one"}
    body = {"to": PHONE, "message": "Hello"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(site.base + "/v1/sms/send", json=body, headers=headers) as answer,
    ):
        return (await answer.json())["message"]["id"], answer.headers["x-request-id"]


@pytest.mark.lasts(30)
async def test_a_reason_is_found_and_a_form_survives(site: Site) -> None:
    page = site.page
    await page.goto(await site.link(password=True))
    await page.wait_for_url(site.base + "/")
    id, asked = await send(site)
    await site.pool.execute(
        "UPDATE messages SET status = 'failed', failed_at = now(), failure_code = 'expired' WHERE id = $1", UUID(id)
    )

    # From the customer's number: look, open. From the id of the request: at once.
    await page.goto(site.base + "/messages")
    await page.get_by_label("Search").last.fill("258 84 123 4567")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(r"\?q="))
    await page.locator("h1").click()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile(rf"[?&]open={id}$"))
    await page.get_by_role("link", name="Open as a page").click()
    await page.wait_for_url(f"{site.base}/messages/{id}")
    reason = await page.locator("#state .muted").inner_text()
    assert reason in await page.locator("main").inner_text()
    await page.goto(f"{site.base}/go/{asked}")
    assert page.url == f"{site.base}/messages/{id}"
    await page.keyboard.press("?")
    await page.get_by_role("heading", name="Keys").wait_for()
    await page.keyboard.press("Escape")
    await page.keyboard.press("g")
    await page.keyboard.press("r")
    await page.wait_for_url(site.base + "/requests")

    # The network goes away and comes back while a form is open; then the session ends.
    await page.goto(site.base + "/team/invite")
    await page.get_by_label("E-mail").first.fill("rui@example.com")
    await page.locator('input[name="role"]').last.check()
    await site.context.set_offline(True)
    invite = page.locator("main form button").last
    await invite.click()
    await page.get_by_text("The network is away.").wait_for()
    assert await page.get_by_label("E-mail").first.input_value() == "rui@example.com"
    await site.context.set_offline(False)
    await site.pool.execute("DELETE FROM sessions")

    async def has_ended() -> bool:
        # One that was just looked at is known for a second.
        return (await page.request.get(site.base + "/session")).status == 401

    await until_true(has_ended)
    await invite.click()
    dialog = page.locator("#signed-out")
    await dialog.get_by_label("Password").fill("wrong" + PASSWORD)
    await dialog.get_by_role("button", name="Sign in").click()
    await dialog.get_by_text("E-mail or password is not right.").wait_for()
    await dialog.get_by_label("Password").fill(PASSWORD)
    await dialog.get_by_role("button", name="Sign in").click()
    await page.get_by_label("E-mail").wait_for(state="detached")  # the form went out, and its answer is there
    assert await site.pool.fetchval("SELECT count(*) FROM invitations") == 1
    site.complaints = [
        one for one in site.complaints if not re.search("ERR_INTERNET_DISCONNECTED|status of 4(01|22)", one)
    ]
