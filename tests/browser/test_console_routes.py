"""Routes in a browser, by keyboard alone: one is added after a preview of its effect, changed, and removed."""

from __future__ import annotations

import pytest

from heliograph.routes import rules
from heliograph.sms.dispatch import suppliers
from tests.rules.factories import SUM_DAYS

from .conftest import DAY, NIGHT, Site, looks, press_key
from .test_console import set_up


async def press(site: Site, role: str, name: str) -> None:
    """Focus a link or button, and press it."""
    await site.page.get_by_role(role, name=name, exact=True).first.focus()  # type: ignore[arg-type]
    await press_key(site.page, "Enter")


@pytest.mark.lasts(20)
@pytest.mark.parametrize("site", [*looks(DAY), NIGHT][:1], indirect=True)
async def test_a_route_is_added_changed_and_taken_back_by_keyboard(site: Site) -> None:
    page, says = site.page, site.says
    await set_up(site)
    async with site.pool.acquire() as conn:
        backup = await suppliers.add(
            conn, suppliers.seal_key(site.made.settings), name="backup", kind="smpp", settings={}, secret="x"
        )
        (main,) = [one for one in await suppliers.routing.load(conn) if one.name == "main"]
    # Two suppliers would share traffic to Mozambique; a route sends all of it to one of them.
    await site.pool.execute(
        "INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count,"
        " segments, to_sent, to_delivered) VALUES ($1, date_trunc('day', now(), 'UTC') - interval '12 hours', 'sms',"
        " 'live', 'MZ', 'HELIOGRAPH', $2, 'delivered', 100, 100, '{}', '{}')",
        site.made.actor.organization_id,
        main.id,
    )
    await site.pool.execute(SUM_DAYS)
    await press_key(page, "g")
    await press_key(page, "d")
    await page.wait_for_url("**/console/routes")
    await press_key(page, "n")
    await page.wait_for_url("**/console/routes/new")
    await page.locator("#name").focus()
    await page.keyboard.type("moz")
    for name, value in (("country", "MZ"), (f"place-{main.id}", "10")):
        await page.locator(f'[id="{name}"]').focus()
        await page.keyboard.type(value)
    await press_key(page, "Enter")
    await page.get_by_role("heading", name=says("What it moves")).wait_for()
    assert "backup" in await page.locator("section", has_text=says("What it moves")).inner_text()
    await press(site, "button", says("Back to the form"))
    assert await page.locator("#country").input_value() == "MZ"
    await press(site, "button", says("Show what it moves"))
    await press(site, "button", says("Add the route"))
    await page.get_by_role("heading", name="moz").wait_for()
    await press(site, "link", says("Edit"))
    await page.locator(f'[id="place-{backup}"]').focus()
    await page.keyboard.type("20")
    await press_key(page, "Enter")
    await press(site, "button", says("Save"))
    await page.locator(".notice").wait_for()
    async with site.pool.acquire() as conn:
        assert len((await rules.find(conn, route="moz")).route.choices) == 2
    await press(site, "button", says("Undo"))
    await page.get_by_text(says("It is restored: workers apply it within a second.")).wait_for()
    async with site.pool.acquire() as conn:
        assert len((await rules.find(conn, route="moz")).route.choices) == 1
    await press(site, "link", says("Where would this go?"))
    await page.locator("#to").focus()
    await page.keyboard.type("+258841234567")
    await press_key(page, "Enter")
    await page.get_by_text("country MZ (route moz): main").wait_for()
    assert site.complaints == []
