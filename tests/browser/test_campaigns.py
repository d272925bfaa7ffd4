"""A campaign that runs out of quota says why it stands still, goes on once there is more, and adds up all the time."""

from __future__ import annotations

import re

import pytest

from heliograph.contacts import records
from heliograph.contacts.records import Entry
from tests.journeys.test_cli import Cli
from tests.processes import GRANT

from .conftest import Site

PEOPLE, AT_FIRST = 300, 120
#: As the page has them, in every state.
COUNTS = """() => {
    const rows = [...document.querySelectorAll('[aria-labelledby="counts"] tr')];
    const counts = rows.map(row => Number(row.querySelector('td').textContent.replace(/[^0-9]/g, '')));
    return [counts.slice(0, -1).reduce((sum, one) => sum + one, 0), counts.at(-1)];
}"""


@pytest.mark.lasts(25)
async def test_a_campaign_paused_by_quota_is_granted_more_and_finishes(site: Site, database_url: str) -> None:
    page = site.page
    entries = [Entry(f"+25884{1_000_000 + n}", f"P{n}", tags=("all",)) for n in range(PEOPLE)]
    async with site.pool.acquire() as conn:
        await records.create_many(conn, site.made.actor, entries=entries)
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    taken = await cli("quota", "grant", str(AT_FIRST - GRANT), "--org", "Acme")
    assert taken.status == 0, taken.err
    await page.goto(await site.link())
    await page.wait_for_url(site.base + "/")
    await page.goto(site.base + "/campaigns")
    await page.get_by_role("link", name="New campaign").first.click()
    await page.get_by_label("Name", exact=True).fill("Spring sale")
    await page.locator("#tags").fill("all")
    await page.get_by_label("Text", exact=True).fill("Hello {{name}}")
    await page.get_by_role("button", name="Check", exact=True).click()
    await page.get_by_text("not enough: it would pause").wait_for()
    await page.get_by_role("button", name="Send to all of them").click()
    await page.wait_for_url(re.compile(r"/campaigns/[0-9a-f-]{36}$"))
    await page.locator("#state", has_text="The quota does not cover the next message.").wait_for()
    together, total = await page.evaluate(COUNTS)
    assert (together, total) == (PEOPLE, PEOPLE)
    granted = await cli("quota", "grant", "1000", "--org", "Acme")
    assert granted.status == 0, granted.err
    # The page follows by itself, and at every look everybody is somewhere.
    while not await page.locator("#state", has_text="Completed").count():
        together, total = await page.evaluate(COUNTS)
        assert together == total == PEOPLE
        await page.wait_for_timeout(200)
    assert (
        await site.pool.fetchval("SELECT count(DISTINCT recipient) FROM messages WHERE status = 'delivered'") == PEOPLE
    )
    await page.get_by_role("link", name="Delivered", exact=True).click()
    await page.locator("#state", has_text="+258841000299").wait_for()
