"""Journey 7 in a browser: a key is rotated while a program keeps sending, and none of its requests is refused; then an
operator revokes the old one in the console."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.processes import until_true

from .conftest import DAY, Look, Site, looks, press_key
from .test_console import set_up


class Program:
    """Sends one message after another with its current key."""

    def __init__(self, site: Site) -> None:
        self._site, self.key, self.statuses = site, site.made.key, list[int]()
        #: Messages sent with the current key.
        self.sent = 0

    def change(self, key: str) -> None:
        """Use this key from the next message on."""
        self.key, self.sent = key, 0

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                self.statuses.append(await self.send(session, self.key))
                self.sent += 1
                await asyncio.sleep(0.1)

    async def send(self, session: aiohttp.ClientSession, key: str) -> int:
        headers = {"x-api-key": key, "idempotency-key": f"{key[-4:]}-{len(self.statuses)}"}
        body = {"to": "+258841234567", "message": "Hello"}
        async with session.post(f"{self._site.base}/v1/sms/send", json=body, headers=headers) as answer:
            return answer.status

    async def has_sent(self) -> bool:
        """Whether it has sent some messages with its current key."""
        return self.sent > 3


@pytest.mark.lasts(25)
@pytest.mark.parametrize("site", looks(DAY), indirect=True)
async def test_a_key_is_rotated_while_a_program_sends(site: Site) -> None:
    page, says, old = site.page, site.says, site.made.key
    desk = Site(site.made, site.context, await site.context.new_page(), site.pool, Look(site.locale.language, "light"))
    await set_up(desk)
    await site.enter()
    program = Program(site)
    running = asyncio.create_task(program.run())
    try:
        await until_true(program.has_sent)
        await page.goto(f"{site.base}/keys/{site.made.key_id}/rotate")
        await page.get_by_role("button", name=says("Rotate the key")).focus()
        await press_key(page, "Enter")
        await page.locator("#secret").wait_for()
        program.sent = 0
        await until_true(program.has_sent)  # still with the old one
        program.change(await page.locator("#secret").input_value())
        assert program.key != old
        await until_true(program.has_sent)
        here = f"/console/organizations/{site.made.actor.organization_id}/keys"
        await desk.page.goto(f"{site.base}{here}/{site.made.key_id}/revoke")
        await desk.page.locator(f"form[action='{here}/{site.made.key_id}/revoke'] button").focus()
        await press_key(desk.page, "Enter")
        await desk.page.locator(".notice").wait_for()
        program.sent = 0
        await until_true(program.has_sent)
    finally:
        running.cancel()
    assert set(program.statuses) == {202}
    async with aiohttp.ClientSession() as session:
        assert await program.send(session, old) == 401
    assert (site.complaints, desk.complaints) == ([], [])
