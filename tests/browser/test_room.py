"""Tables have room at every width, whatever is written in them, and what is chosen is seen without colours."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from heliograph.base.database import clock
from heliograph.campaigns.channels import sms
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from tests.rules.factories import message

from .conftest import Site
from .places import TRAFFIC

#: Names the cards of which something reaches beyond their sides.
BEYOND = """() => [...document.querySelectorAll('.card')].filter((card) => {
  const side = card.getBoundingClientRect().right;
  return getComputedStyle(card).overflowX === 'visible'
    && [...card.querySelectorAll('*')].some((one) => one.getBoundingClientRect().right > side);
}).map((card) => card.innerText.slice(0, 40))"""
#: Whether the last heading of a list is in sight.
LAST_IN_SIGHT = """() => {
  const right = (one) => one.getBoundingClientRect().right;
  return right([...document.querySelectorAll('[data-rows] th')].at(-1)) <= right(document.querySelector('.table'));
}"""
#: Whether there is a line around what is chosen.
OUTLINED = """(chosen) => [...document.querySelectorAll(chosen)].map((one) => getComputedStyle(one).outlineStyle)"""


@pytest.mark.lasts(10)
async def test_what_is_beside_something_is_not_written_over_it(site: Site) -> None:
    page = site.page
    await message(site.pool, site.made.actor)
    await site.pool.execute(TRAFFIC, site.made.actor.organization_id, UUID(int=0))
    await site.enter()
    await page.locator("#countries ~ table").wait_for()
    for width in (640, 800, 900, 1000, 1024, 1100, 1280):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate(BEYOND) == [], width


@pytest.mark.lasts(10)
async def test_a_name_without_spaces_leaves_the_other_columns_in_sight(site: Site) -> None:
    page = site.page
    async with site.pool.acquire() as conn:
        await records.create_many(conn, site.made.actor, entries=[Entry("+258841234567", "n" * 200)])
    await site.enter()
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.goto(site.base + "/contacts")
    await page.get_by_text("n" * 200, exact=True).wait_for()
    assert await page.evaluate(LAST_IN_SIGHT)


@pytest.mark.lasts(10)
async def test_a_name_without_spaces_in_what_needs_attention_makes_no_phone_scroll_sideways(site: Site) -> None:
    page, name = site.page, "n" * 80
    spec = SmsCampaignSpec(
        name=name, message_template="Hi", recipients=["+258841000001"], scheduled_at=clock.now() + timedelta(days=7)
    )
    async with site.pool.acquire() as conn, conn.transaction():
        await sms.create(conn, site.made.actor, spec=spec, request_id="req")
    await site.pool.execute("UPDATE campaigns SET status = 'paused', status_reason = 'quota_exceeded', step_at = NULL")
    await page.set_viewport_size({"width": 360, "height": 740})
    await site.enter()
    await page.locator(".attention").filter(has_text=name).wait_for()
    assert await page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.lasts(10)
async def test_what_is_chosen_is_seen_where_colours_are_the_readers_own(site: Site) -> None:
    page = site.page
    await page.emulate_media(forced_colors="active")
    await site.enter()
    await page.goto(site.base + "/messages?mode=test")
    for chosen in (".rail li a[aria-current]", ".bar .modes a[aria-current]"):
        assert await page.evaluate(OUTLINED, chosen) == ["solid"], chosen
    assert await page.evaluate(OUTLINED, ".bar .modes a:not([aria-current])") == ["none"]
