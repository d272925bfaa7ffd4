"""Journey 4: a scheduled campaign runs out of quota and says why it is paused, continues once an operator grants more
in the console, and its counts add up whenever the page is read; then failed recipients are found and retried."""

from __future__ import annotations

import re
import time
from datetime import timedelta

import pytest

from heliograph.base.database import clock
from heliograph.campaigns import plan
from heliograph.campaigns.channels import sms
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.why.words import why
from tests.journeys.test_cli import Cli
from tests.processes import GRANT, LONG

from .conftest import MAGIC, NIGHT, Look, Site, looks, press_key
from .test_console import set_up

PEOPLE, AT_FIRST = (10_000, 4_000) if LONG else (300, 120)
#: Contacts created per request.
BATCH = 1_000
#: Numbers of recipients whose messages fail: undelivered, refused by the network, expired.
UNLUCKY = [f"+{MAGIC}0{end:04}" for end in (1, 2, 3)]
#: Failures for which a retry may help: a network that refused will refuse again.
WORTH = (UNLUCKY[0], UNLUCKY[2])
#: The sum of the page's counts by state, and the total that the page shows.
COUNTS = """() => {
    const rows = [...document.querySelectorAll('[aria-labelledby="counts"] tr')];
    const counts = rows.map(row => Number(row.querySelector('td').textContent.replace(/[^0-9]/g, '')));
    return [counts.slice(0, -1).reduce((sum, one) => sum + one, 0), counts.at(-1)];
}"""


async def audience(site: Site) -> None:
    """Create the contacts, some of whom cannot be reached."""
    numbers = UNLUCKY + [f"+25884{1_000_000 + n}" for n in range(PEOPLE - len(UNLUCKY))]
    entries = [Entry(number, f"P{n}", tags=("all",)) for n, number in enumerate(numbers)]
    async with site.pool.acquire() as conn:
        for start in range(0, PEOPLE, BATCH):
            await records.create_many(conn, site.made.actor, entries=entries[start : start + BATCH])


@pytest.mark.lasts(30)
@pytest.mark.parametrize("site", looks(NIGHT), indirect=True, ids=str)
async def test_a_campaign_paused_by_quota_is_granted_more_and_finishes(site: Site, database_url: str) -> None:
    page, says = site.page, site.says
    state, lead = page.locator("#state"), page.locator("#state .lead")
    await audience(site)
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    taken = await cli("quota", "grant", str(AT_FIRST - GRANT), "--org", "Acme")
    assert taken.status == 0, taken.err
    # Meanwhile an operator is signed in to the console.
    desk = Site(site.made, site.context, await site.context.new_page(), site.pool, Look(site.locale.language, "dark"))
    await set_up(desk)
    await site.enter()
    await page.goto(site.base + "/campaigns")
    await page.get_by_role("link", name=says("New campaign")).first.click()
    await page.get_by_label(says("Name"), exact=True).fill("Spring sale")
    await page.locator("#tags").fill("all")
    await page.get_by_label(says("Text"), exact=True).fill("Hello {{name}}")
    # What belongs to a choice is shown once that is made.
    assert [await page.locator(field).is_visible() for field in ("#tags", "#numbers", "#day")] == [True, False, False]
    await page.locator("input[name=when][value=later]").check()
    await page.locator("#day").fill(await site.pool.fetchval("SELECT (now() + interval '2 days')::date::text"))
    await page.locator("#hour").fill("10:30")
    # Unsaved input survives whatever happens to this page.
    await page.get_by_text(says("Saved as a draft.")).wait_for()
    await page.goto(site.base + "/campaigns")
    await page.get_by_role("link", name="Spring sale").click()
    assert await page.locator("#hour").input_value() == "10:30"
    # Even for someone who types without a pause.
    await page.locator("#hour").fill("10:45")
    await page.goto(site.base + "/campaigns")
    while not await site.pool.fetchval("SELECT count(*) FROM campaign_drafts WHERE fields LIKE '%10:45%'"):
        await page.wait_for_timeout(50)
    await page.get_by_role("link", name="Spring sale").click()
    assert await page.locator("#hour").input_value() == "10:45"
    # The cost stays visible beside the form, wherever it is scrolled to.
    await page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert (await page.evaluate("scrollY")) > 300
    assert (await page.evaluate("document.getElementById('check').getBoundingClientRect().top")) > 0
    await page.get_by_role("button", name=says("Check"), exact=True).click()
    await page.get_by_text(says("not enough: it would pause")).wait_for()
    if PEOPLE > 1_000:
        await page.locator("#typed").fill(str(PEOPLE))
    await page.get_by_role("button", name=says("Schedule"), exact=True).click()
    await page.wait_for_url(re.compile(r"/campaigns/[0-9a-f-]{36}$"))
    where = page.url
    await lead.filter(has_text=says("Scheduled")).wait_for()
    began = time.monotonic()
    # Two days pass.
    await site.pool.execute("UPDATE campaigns SET scheduled_at = now(), step_at = now() WHERE status = 'scheduled'")
    stands = why("campaign", "quota_exceeded")
    assert stands is not None
    await lead.filter(has_text=stands.words(site.locale.language).customer).wait_for()
    assert await page.evaluate(COUNTS) == [PEOPLE, PEOPLE]
    await desk.page.goto(f"{site.base}/console/organizations/{site.made.actor.organization_id}")
    await desk.page.locator("#amount").fill(str(PEOPLE))
    await desk.page.locator("#reason").fill("ticket 4")
    await press_key(desk.page, "Enter")
    await desk.page.locator(".notice").wait_for()
    # The page updates itself, and its counts add up to all recipients each time.
    looked = 0
    while not await lead.filter(has_text=says("Completed")).count():
        together, total = await page.evaluate(COUNTS)
        assert together == total == PEOPLE
        looked += 1
        await page.wait_for_timeout(200)
    ended = await site.pool.fetchval("SELECT extract(epoch FROM now() - max(completed_at)) FROM campaigns")
    print(
        f"journey 4: {time.monotonic() - began:.1f} s, {looked} looks, the end was shown {float(ended):.1f} s after it"
    )
    # Nothing is in flight any more.
    await page.locator("#state + .renewed[hidden]").wait_for(state="attached")
    reached = "SELECT count(DISTINCT recipient) FROM messages WHERE status = 'delivered'"
    assert await site.pool.fetchval(reached) == PEOPLE - len(UNLUCKY)
    assert await site.pool.fetchval("SELECT count(*) FROM messages") == PEOPLE
    await page.get_by_role("link", name=says("Undelivered"), exact=True).click()
    await state.get_by_text(UNLUCKY[0]).wait_for()
    assert await state.locator("a.row-link").count() == 1
    # Failed recipients are messaged again, and nobody else is.
    await page.goto(where)
    await page.get_by_role("link", name=says("Send to those who did not get it")).click()
    await page.get_by_role("button", name=says("Check"), exact=True).click()
    await page.get_by_role("button", name=says("Send to all of them")).click()
    await page.wait_for_url(re.compile(r"/campaigns/[0-9a-f-]{36}$"))
    assert page.url != where
    await lead.filter(has_text=says("Completed")).wait_for()
    again = "SELECT recipient FROM messages GROUP BY recipient HAVING count(*) > 1"
    await page.locator("#state + .renewed[hidden]").wait_for(state="attached")
    assert {row["recipient"] for row in await site.pool.fetch(again)} == set(WORTH)
    assert await page.evaluate(COUNTS) == [len(WORTH), len(WORTH)]


@pytest.mark.lasts(8)
async def test_its_page_goes_on_renewing_itself_after_a_wrong_pace_and_takes_the_form_away_at_the_end(
    site: Site,
) -> None:
    page, says = site.page, site.says
    spec = SmsCampaignSpec(
        name="Later", message_template="Hi", recipients=["+258841000001"], scheduled_at=clock.now() + timedelta(days=2)
    )
    async with site.pool.acquire() as conn, conn.transaction():
        made = await sms.create(conn, site.made.actor, spec=spec, request_id="req")
    await site.enter()
    await page.goto(f"{site.base}/campaigns/{made.id}")
    await page.locator("#pace").fill("fast")
    await page.get_by_role("button", name=says("Change the pace")).click()
    await page.locator("#summary").wait_for()
    await page.evaluate("document.addEventListener('renewed', () => document.body.dataset.renewed = 'yes')")
    # What is typed into the form stays, though it is in what renews itself.
    await page.locator("#pace").fill("77")
    await site.pool.execute("UPDATE campaigns SET messages_per_minute = 5")
    await page.locator("body[data-renewed]").wait_for(state="attached")
    assert await page.locator("#pace").input_value() == "77"
    async with site.pool.acquire() as conn, conn.transaction():
        await plan.cancel(conn, site.made.actor, id=made.id)
    await page.locator("#state .lead").filter(has_text=says("Canceled")).wait_for()
    assert await page.locator("#pace").count() == 0
    site.expect("status of 422")
