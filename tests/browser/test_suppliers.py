"""Journey 8 in a browser: the wizard adds a supplier, a simulated SMSC that writes its ids in hex; the suggested button
fixes them, and the first message is delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from heliograph.sms.dispatch import routing

from .conftest import DAY, NIGHT, Site, looks, press_key
from .test_console import set_up


@pytest.fixture
async def smsc() -> AsyncIterator[Smsc]:
    """It writes ids in hex in its responses, and in decimal in receipts."""
    made = Smsc(SmscOptions(port=0, systems={"acme": "geheim"}, resp_base="hex", dlr_base="dec", form="text"))
    await made.start()
    yield made
    await made.stop()


@pytest.mark.lasts(25)
@pytest.mark.parametrize("site", [*looks(DAY), NIGHT], indirect=True)
async def test_a_supplier_is_added_by_the_wizard(site: Site, smsc: Smsc) -> None:
    page, says = site.page, site.says
    await set_up(site)
    await page.get_by_role("link", name=says("Suppliers"), exact=True).first.click()
    await page.get_by_role("link", name=says("Add a supplier")).click()
    await page.locator("#name").fill("hexadecimal")
    await press_key(page, "Enter")
    await page.wait_for_url("**/connection")
    for name, value in (("option.host", "127.0.0.1"), ("option.port", str(smsc.port)), ("option.system_id", "acme")):
        await page.locator(f'[id="{name}"]').fill(value)
    await page.locator('[id="option.tls"]').select_option("false")
    await page.locator("#secret").fill("geheim")
    await press_key(page, "Enter")
    await page.wait_for_url("**/test")
    await page.get_by_role("button", name=says("Test"), exact=True).click()
    await page.get_by_text(says("Sign out (unbind)")).wait_for()
    assert await page.locator("td .status.bad").count() == 0
    await page.get_by_role("link", name=says("Continue"), exact=True).click()
    for step in ("limits", "dialect"):
        await page.wait_for_url(f"**/{step}")
        await page.get_by_role("button", name=says("Continue"), exact=True).click()
    await page.wait_for_url("**/message")
    await page.locator("#to").fill("+258841234567")
    await page.locator("#sender").fill("ACME")
    await page.get_by_role("button", name=says("Send the message")).click()
    # The page follows the test by itself, up to the ids that differ and the button that fixes them.
    await page.get_by_text("resp_id_base=hex").wait_for()
    await page.get_by_role("button", name=says("Set")).click()
    await page.get_by_text(says("names the same id")).wait_for()
    for step in ("long", "place"):
        await page.get_by_role("link", name=says("Continue"), exact=True).click()
        await page.wait_for_url(f"**/{step}")
    await page.get_by_role("button", name=says("Finish: it carries messages from now on")).click()
    await page.get_by_role("heading", name="hexadecimal").wait_for()
    # A worker connects to it, which the page shows by itself.
    await page.locator(".figure", has_text=says("connected")).wait_for()
    async with site.pool.acquire() as conn:
        (made,) = [one for one in await routing.load(conn) if one.name == "hexadecimal"]
    assert made.settings["resp_id_base"] == "hex"
    assert site.complaints == []
