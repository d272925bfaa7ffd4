"""Tables have room at every width, whatever is written in them, and what is chosen is seen without colours."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest
from playwright.async_api import Page

from heliograph.base.database import clock
from heliograph.campaigns.channels import sms
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.console.receipts.report import SPLITS
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.people import policy
from heliograph.sms.by_hand import saved_texts
from tests.processes import until_true
from tests.rules.factories import message

from . import places
from .conftest import Look, Site
from .places import TRAFFIC
from .test_console import set_up

#: What widens the columns of endpoints most.
FAILING = """
WITH counted AS (UPDATE webhook_traffic SET count = 12345)
UPDATE webhook_endpoints
   SET consecutive_failures = 12, failing_since = now(), last_success_at = now() - interval '50 days'
"""
#: What widens the columns of messages most, of what is common: one that failed, a reference, and the time it took.
ORDINARY = """
UPDATE messages SET status = 'undelivered', failure_code = 'undelivered', client_reference = 'order-4711',
                    delivered_at = accepted_at + interval '0.35 s'
"""
#: What widens the lists of the console most: an organization with a plan and much of its quota left, and suppliers with
#: many messages, which they charge for.
LARGE = """
WITH named AS (UPDATE organizations SET name = 'Distribuidora do Norte, Lda', country = 'MZ', plan = 'Profissional'),
     spent AS (UPDATE quotas SET used = total - 765434)
INSERT INTO reconciliation_days (day, supplier_id, country, what, currency, count, segments, charged, to_receipt)
SELECT now()::date - n, s.id, country, what, 'EUR', 123456 / divisor, 123456, 5000000000 / divisor, '{}'
  FROM suppliers s, generate_series(1, 2) AS n, unnest(ARRAY['MZ', 'ST']) AS country,
       unnest(ARRAY['accepted', 'delivered', 'undelivered', 'expired'], ARRAY[1, 2, 4, 8]) AS ended (what, divisor)
"""
#: The console's lists, and the ways to divide the report of receipts.
LISTS = (
    *("now", "organizations", "keys", "senders", "messages", "suppliers", "routes", "routes/matrix", "routes/history"),
    *("routes/rules", "routes/registrations", "lookups", "inbound", "guard", "whatsapp", "whatsapp/callbacks", "queue"),
    *("health", "wallets", "refunds", "plans", "rates", "rates/whatsapp", "billing", "margins", "operators", "audit"),
    *(f"receipts{one}" for one in ("", "/unmatched", "/words")),
    *(f"receipts?by={one}" for one in SPLITS),
)
#: Names the cards of which something reaches beyond their sides, once charts have followed the page's width: they do so
#: in its next frame.
BEYOND = """async () => {
  for (let frame = 0; frame < 2; frame += 1) await new Promise((done) => requestAnimationFrame(done));
  return [...document.querySelectorAll('.card')].filter((card) => {
    const side = card.getBoundingClientRect().right;
    return getComputedStyle(card).overflowX === 'visible'
      && [...card.querySelectorAll('*')].some((one) => one.getBoundingClientRect().right > side);
  }).map((card) => card.innerText.slice(0, 40));
}"""
#: Whether the last heading of a list is in sight.
LAST_IN_SIGHT = """() => {
  const right = (one) => one.getBoundingClientRect().right;
  return right([...document.querySelectorAll('[data-rows] th')].at(-1)) <= right(document.querySelector('.table'));
}"""
#: Names the tables that scroll sideways, and the names of places at a phone's bottom that are cut off.
WIDE = """() => [...document.querySelectorAll('.table')].filter((one) => one.scrollWidth > one.clientWidth)
  .map((one) => one.innerText.slice(0, 60))"""
SHORTENED = """() => [...document.querySelectorAll('.rail .groups .word')]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth).map((one) => one.innerText)"""
#: Whether all of an installation's name is in sight, above the list of pages.
NAMED = """(name) => {
  const [rail, word, pages] = ['.rail', '.rail .word', '.rail .brand + *'].map((one) => document.querySelector(one));
  word.textContent = name;
  const box = word.getBoundingClientRect();
  return box.top >= 0 && box.bottom <= pages.getBoundingClientRect().top && rail.scrollWidth === rail.clientWidth;
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


@pytest.mark.lasts(20)
@pytest.mark.parametrize("site", [Look("pt", "light")], indirect=True)
async def test_lists_fit_at_widths_of_laptops_and_tablets_and_names_below_icons_on_phones(site: Site) -> None:
    """In Portuguese, whose words are longer, with figures in every column of the endpoints."""
    page = site.page
    await places.dashboard(site)
    await until_true(lambda: site.pool.fetchval("SELECT count(*) FROM webhook_traffic"))
    await site.pool.execute(ORDINARY)
    await site.enter()
    for path in ("/messages", "/contacts", "/campaigns", "/keys", "/webhooks", "/requests", "/team", "/audit"):
        await _fits(page, site.base + path)
    await site.pool.execute(FAILING)
    await _fits(page, site.base + "/webhooks")
    for width in (390, 360, 320):
        await page.set_viewport_size({"width": width, "height": 740})
        assert await page.evaluate(SHORTENED) == [], width


@pytest.mark.lasts(40)
@pytest.mark.parametrize("site", [Look("pt", "light")], indirect=True)
async def test_lists_of_the_console_fit_at_widths_of_laptops_and_tablets(site: Site) -> None:
    await set_up(site)
    paths = await places.console(site)
    await site.pool.execute(LARGE)
    for path in LISTS:
        assert path.partition("?")[0] in {one.partition("?")[0].removeprefix("/console/") for one in paths}, path
        await _fits(site.page, f"{site.base}/console/{path}")


async def _fits(page: Page, url: str) -> None:
    """No table of the page scrolls sideways on laptops or tablets."""
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.goto(url)
    for width in (1280, 1100, 1024, 768):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate(WIDE) == [], (url, width)


#: The longest names, without a place to break.
ENDLESS = """
WITH organization AS (UPDATE organizations SET name = repeat('o', 200), plan = repeat('p', 100)),
     key AS (UPDATE api_keys SET name = repeat('k', 100)),
     route AS (UPDATE routes SET name = repeat('r', 64), note = repeat('n', 200)),
     tariff AS (UPDATE tariffs SET name = repeat('t', 64)),
     person AS (UPDATE users SET name = repeat('u', 60), email = repeat('e', 50) || left(email, 3) || '@example.com'),
     account AS (UPDATE whatsapp_accounts SET name = repeat('w', 200)),
     invitation AS (UPDATE invitations SET email = repeat('e', 60) || '@example.com')
UPDATE suppliers SET name = repeat('s', 64)
"""


@pytest.mark.lasts(20)
@pytest.mark.parametrize("site", [Look("pt", "light")], indirect=True)
async def test_names_without_spaces_leave_all_columns_in_sight(site: Site) -> None:
    page = site.page
    await set_up(site)
    await places.console(site)
    await places.dashboard(site)
    await site.pool.execute(ENDLESS)
    await site.enter()
    of = site.made.actor.organization_id
    await page.set_viewport_size({"width": 1280, "height": 800})
    lists = ("organizations", f"organizations/{of}", f"organizations/{of}/keys", "keys", "suppliers", "routes", "plans")
    more = ("rates", "senders", "guard", "whatsapp", "operators", "receipts", "receipts/unmatched")
    for path in (*(f"/console/{one}" for one in (*lists, *more)), "/keys", "/team"):
        await page.goto(site.base + path)
        assert await page.evaluate(WIDE) == [], path


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
    # The longest that an installation can have.
    for name in ("Comunicações Municipais de Moçambique SA", "n" * 40):
        assert await page.evaluate(NAMED, name), name


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
async def test_words_without_spaces_make_no_page_wider_than_a_phone(site: Site) -> None:
    """What is open beside a list, a text in a question, and the word that is to be typed were."""
    page, actor = site.page, site.made.actor
    async with site.pool.acquire() as conn:
        await records.create_many(conn, actor, entries=[Entry("+258841234567", "n" * 200)])
        person = await conn.fetchval("SELECT id FROM contacts")
        text = await saved_texts.create(conn, actor, name="Opening", body="n" * 200)
        async with conn.transaction():
            await policy.rename(conn, actor, name="n" * 200)
    await page.set_viewport_size({"width": 360, "height": 740})
    await site.enter()
    for path in (f"/contacts?open={person}", f"/texts/{text.id}/remove", "/settings/close"):
        await page.goto(site.base + path)
        await page.locator("main").get_by_text("n" * 200).first.wait_for()
        assert await page.evaluate("document.documentElement.scrollWidth") == 360, path


@pytest.mark.lasts(10)
async def test_what_is_chosen_is_seen_where_colours_are_the_readers_own(site: Site) -> None:
    page = site.page
    await page.emulate_media(forced_colors="active")
    await site.enter()
    await page.goto(site.base + "/messages?mode=test")
    for chosen in (".rail li a[aria-current]", ".bar .modes a[aria-current]"):
        assert await page.evaluate(OUTLINED, chosen) == ["solid"], chosen
    assert await page.evaluate(OUTLINED, ".bar .modes a:not([aria-current])") == ["none"]
