"""Journey 6: an endpoint was down for two hours. The front page shows it, its responses are inspected, its secret is
rotated, and everything it missed is sent again: nothing is lost, and nothing arrives twice with different ids."""

from __future__ import annotations

import re
import time

import aiohttp
import pytest

from heliograph.simulators.receiver import Options, Receiver
from tests.processes import LONG, until_true

from .conftest import DAY, Site, looks

MESSAGES, EARLIER = (500, 20) if LONG else (40, 5)
#: After this many failures somebody looks: responses are stored only for the first ones of a burst.
FIRST = 5
PAGE = re.compile(r"/webhooks/[0-9a-f-]{36}\??$")
#: The response of a broken program.
BROKEN = "the disk is full"


@pytest.fixture
def settings_of_site() -> dict[str, str]:
    """Attempts end soon, so that missed events are no longer in flight."""
    return {"HELIOGRAPH_WEBHOOK_SCHEDULE": "0,0.1"}


async def send(site: Site, first: int, count: int) -> None:
    """Send messages through the API."""
    async with aiohttp.ClientSession(site.base, headers={"authorization": f"Bearer {site.made.key}"}) as session:
        for n in range(first, first + count):
            body, key = {"to": f"+25884{1_000_000 + n}", "message": "Hello"}, {"idempotency-key": f"m-{n}"}
            async with session.post("/v1/sms/send", json=body, headers=key) as answer:
                assert answer.status == 202


@pytest.mark.lasts(20)
@pytest.mark.parametrize("site", looks(DAY), indirect=True, ids=str)
async def test_what_a_dead_endpoint_missed_is_recovered(site: Site) -> None:
    page, says, pool = site.page, site.says, site.pool
    receiver = Receiver(Options(keep=100_000))
    await receiver.start()
    try:
        await site.enter()
        await page.goto(site.base + "/webhooks/new")
        await page.locator("#url").fill(receiver.url + "shop")
        await page.locator("input[name=subscribed_events][value='message.delivered']").check()
        await page.get_by_role("button", name=says("Register endpoint")).click()
        secret = await page.locator("#secret").input_value()
        receiver.options = Options(secrets=(secret,))
        await page.get_by_label(says("I have saved it")).check()
        await page.get_by_role("button", name=says("Continue")).click()
        await page.wait_for_url(PAGE)
        where = page.url.rstrip("?")
        endpoint = where.rsplit("/", 1)[1]
        await send(site, 0, EARLIER)
        await until_true(lambda: _has(receiver, EARLIER))

        receiver.options = Options(secrets=(secret,), status=500, answer=BROKEN.encode())
        began = time.monotonic()

        async def is_given_up(count: int) -> bool:
            ended = "SELECT count(DISTINCT event_id) FROM webhook_attempts WHERE endpoint_id = $1::uuid AND attempt = 2"
            waiting = await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'webhook'")
            return bool(await pool.fetchval(ended, endpoint) == count and not waiting)

        await send(site, EARLIER, FIRST)
        await until_true(lambda: is_given_up(FIRST))
        # Two hours pass.
        moved = "UPDATE webhook_endpoints SET failing_since = failing_since - interval '2 hours' WHERE id = $1::uuid"
        await pool.execute(moved, endpoint)

        # It is shown on the home page, and its response is three clicks away.
        await page.goto(site.base + "/")
        await page.locator(".rail .groups a[href='/webhooks'] .count").wait_for()
        await page.locator(".attention", has_text=receiver.url).get_by_role("link").click()
        await page.wait_for_url(where)
        await page.locator("#live a.row-link").first.click()
        await page.get_by_text(BROKEN).first.wait_for()
        await page.get_by_text("HTTP 500").first.wait_for()

        await send(site, EARLIER + FIRST, MESSAGES - FIRST)
        await until_true(lambda: is_given_up(MESSAGES))
        # After the rotation both secrets sign for a while, and the page says until when.
        await page.goto(where)
        await page.get_by_role("link", name=says("Rotate secret")).click()
        await page.get_by_role("button", name=says("Rotate the secret")).click()
        rotated = await page.locator("#secret").input_value()
        assert rotated != secret
        receiver.options = Options(secrets=(rotated,))
        await page.get_by_label(says("I have saved it")).check()
        await page.get_by_role("button", name=says("Continue")).click()
        await page.wait_for_url(PAGE)
        await page.get_by_role("link", name=says("Recover"), exact=True).click()
        await page.locator("input[name=what][value=failed]").check()
        await page.get_by_role("button", name=says("Send again")).click()
        await until_true(lambda: _has(receiver, EARLIER + MESSAGES))
        print(f"journey 6: {MESSAGES} events recovered {time.monotonic() - began:.1f} s after the first was missed")

        async def is_over() -> bool:
            running = await pool.fetchval("SELECT count(*) FROM webhook_replays WHERE status = 'running'")
            return not (running or await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'webhook'"))

        await until_true(is_over)
        taken = [one for one in receiver.events if one.status == 200]
        ids = {str(row["id"]) for row in await pool.fetch("SELECT id FROM events WHERE kind = 'message.delivered'")}
        assert {one.id for one in taken} == ids
        assert len(taken) == len(ids) == EARLIER + MESSAGES
        assert receiver.counters.duplicates == 0
        assert [one for one in taken if one.problem] == []
        await page.goto(site.base + "/")
        await page.locator("#live").wait_for()
        assert await page.locator(".attention", has_text=receiver.url).count() == 0
    finally:
        await receiver.stop()


async def _has(receiver: Receiver, count: int) -> bool:
    return receiver.counters.received == count
