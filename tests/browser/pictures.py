"""Takes the README's screenshots again from demo data: `python -m tests.browser.pictures`.

It starts `heliograph up` in a scratch directory, sends what a small customer sends in an afternoon, signs in with the
printed link, and takes a screenshot of each page.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

import aiohttp
from playwright.async_api import Page, async_playwright

from tests.browser.conftest import ARGUMENTS, PATIENCE, chromium
from tests.house.project import DOCS
from tests.up import Up, up

FOLDER = DOCS / "pictures"
WIDTH, HEIGHT = 1280, 860
#: Texts of a small customer, and number endings that choose the message's outcome in the simulated SMSC.
TEXTS = ("Your order {n} is on its way.", "Olá, a sua encomenda {n} chega amanhã.", "Your code is {n}.")
FATES = ("0000",) * 17 + ("0001", "0003", "0002")
MESSAGES = 60


async def send(up: Up) -> None:
    """Send an afternoon's messages."""
    headers = {"authorization": f"Bearer {up.credentials['live_key']}"}
    async with aiohttp.ClientSession(up.url, headers=headers) as http:
        for n in range(MESSAGES):
            country = ("25884", "25882", "25191", "2637")[n % 4]
            fate = FATES[n % len(FATES)]
            to = f"+888{country[3:]}{1000 + n}{fate}" if fate != "0000" else f"+{country}{1_000_000 + n * 7}"[:13]
            body = {"to": to, "message": TEXTS[n % 3].format(n=4711 + n), "clientReference": f"order-{4711 + n}"}
            async with http.post("/v1/sms/send", json=body, headers={"idempotency-key": f"p-{n}"}) as answer:
                await answer.read()


async def take(page: Page, name: str) -> None:
    """Take a screenshot of one page in both themes."""
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        await page.wait_for_timeout(300)
        await page.screenshot(path=FOLDER / f"{name}-{theme}.png")


async def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="heliograph-") as directory:
        place = Path(directory)
        place.chmod(0o755)
        async with up(place) as running, async_playwright() as playwright:
            link = re.search(r"\S+/enter#\S+", running.program.out)
            assert link is not None, "no link was printed"
            context = await playwright.chromium.launch_persistent_context(
                place / "browser",
                executable_path=chromium(),
                args=ARGUMENTS,
                locale="en-GB",
                viewport={"width": WIDTH, "height": HEIGHT},
            )
            page = await context.new_page()
            page.set_default_timeout(PATIENCE)
            await page.goto(link[0])
            await page.wait_for_url(f"{running.url}/")
            await send(running)
            await page.wait_for_timeout(12_000)  # roll-ups are folded every ten seconds
            await page.goto(f"{running.url}/messages")
            await take(page, "messages")
            await page.locator("a.row-link").first.click()
            await page.locator("[data-page]").click()
            await take(page, "message")
            await context.close()


if __name__ == "__main__":
    asyncio.run(main())
