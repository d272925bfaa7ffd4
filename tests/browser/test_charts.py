"""The text that charts draw beside their axes, which cannot be read from a canvas; and printed pages."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from heliograph.campaigns.channels import sms as campaigns
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from tests.processes import until_true

from .conftest import NIGHT, Site, looks, until_true_in_page

#: Records each text that is drawn, and the last colour used for it.
NOTED = """window.painted = [];
const written = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...where) {
  window.painted.push(String(text));
  window.ink = this.fillStyle;
  return written.call(this, text, ...where);
};"""
#: Records the bars, and where lines of what happened begin: these are dashed alike.
DRAWN = """window.bars = [];
window.lines = [];
const bar = Path2D.prototype.rect, begun = CanvasRenderingContext2D.prototype.moveTo;
Path2D.prototype.rect = function (x, y, width, height) {
  if (width <= 36 * devicePixelRatio) window.bars.push({ x, width, height }); // the plot's own edge is one, too
  return bar.call(this, x, y, width, height);
};
CanvasRenderingContext2D.prototype.moveTo = function (x, y) {
  const [dash] = this.getLineDash();
  if (dash === 3 * devicePixelRatio) window.lines.push(x);
  return begun.call(this, x, y);
};"""
#: Of a hundred messages 92 took 32 to 64 ms, and the others up to 128 ms: the 95th percentile is 0.09 s.
DELIVERED = """
INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                     to_sent, to_delivered)
VALUES ($1, date_trunc('hour', now(), 'UTC') - interval '2 hours', 'sms', 'live', 'MZ', 'HELIOGRAPH', $2, 'delivered',
        100, 100, '{}', array_fill(0, ARRAY[5]) || ARRAY[92, 8] || array_fill(0, ARRAY[25]))
"""


async def test_axes_say_what_their_lines_are(site: Site) -> None:
    await site.pool.execute(DELIVERED, site.made.actor.organization_id, UUID(int=0))
    page = site.page
    await page.add_init_script(NOTED)
    await site.enter()
    # Lines that are a fortieth apart are not labelled three, five and eight hundredths.
    await until_true_in_page(page, "() => window.painted.includes('0.075')")
    painted = await page.evaluate("window.painted")
    assert {"0.025", "0.05"} <= set(painted)
    assert not {"0.03", "0.08"} & set(painted)
    # Days are formatted as everywhere else on the page.
    days = {one for one in painted if re.search("[A-Z]", one)}
    assert days
    assert all(re.fullmatch(r"\d{1,2} [A-Z][a-z]{2,3}", one) for one in days), days


async def test_a_single_minute_has_no_seconds(site: Site) -> None:
    page = site.page
    spec = SmsCampaignSpec(name="Spring sale", message_template="Olá", recipients=["+258841234561"])
    async with site.pool.acquire() as conn:
        campaign = await campaigns.create(conn, site.made.actor, spec=spec, request_id="one")
    await page.add_init_script(NOTED)
    await site.enter()

    async def is_painted() -> bool:
        await page.goto(f"{site.base}/campaigns/{campaign.id}")
        painted: list[str] = await page.evaluate("window.painted")
        return any(":" in one for one in painted)

    await until_true(is_painted)
    times = [one for one in await page.evaluate("window.painted") if ":" in one]
    assert all(re.fullmatch(r"\d\d:\d\d", one) for one in times), times


async def test_all_charts_of_a_page_have_the_same_times(site: Site) -> None:
    await site.pool.execute(DELIVERED, site.made.actor.organization_id, UUID(int=0))
    page = site.page
    await page.add_init_script(NOTED)
    await site.enter()
    times = """() => window.painted.filter((text) => /^\\d\\d:\\d\\d$/.test(text))"""
    for width in (1280, 1100, 768, 390):
        await page.evaluate("window.painted = []")
        await page.set_viewport_size({"width": width, "height": 800})
        await page.reload()
        # Three small charts share an axis; that of the other has the same times.
        await until_true_in_page(page, "() => window.painted.includes('0.075')")
        painted = await page.evaluate(times)
        assert len(painted) >= 4, width
        assert all(painted.count(one) % 2 == 0 for one in painted), (width, painted)


@pytest.mark.parametrize("site", looks(NIGHT), indirect=True, ids=str)
async def test_axes_separate_thousands_as_the_page_does(site: Site) -> None:
    await site.pool.execute(DELIVERED.replace("100, 100", "4700, 4700"), site.made.actor.organization_id, UUID(int=0))
    await site.page.add_init_script(NOTED)
    await site.enter()
    await until_true_in_page(site.page, "(said) => window.painted.includes(said)", site.locale.number(4_000))
    assert "4.000" not in await site.page.evaluate("window.painted")


@pytest.mark.parametrize("site", looks(NIGHT), indirect=True, ids=str)
async def test_paper_is_white_in_either_theme(site: Site) -> None:
    page, ink, paper = (
        site.page,
        {"light": "#5d606b", "dark": "#a0a3ae"},
        {"light": "26, 27, 32", "dark": "236, 237, 240"},
    )
    theme = await page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
    await site.pool.execute(DELIVERED, site.made.actor.organization_id, UUID(int=0))
    await page.add_init_script(NOTED)
    await site.enter()
    colour = "() => getComputedStyle(document.body).color"
    await until_true_in_page(page, "(ink) => window.ink === ink", ink[theme])
    assert await page.evaluate(colour) == f"rgb({paper[theme]})"
    # Links are useless on paper; whose figures they are is not.
    await page.emulate_media(media="print")
    assert await page.evaluate(colour) == f"rgb({paper['light']})"
    assert not await page.locator(".rail").is_visible()
    assert await page.locator(".organization").first.is_visible()
    await page.evaluate("dispatchEvent(new Event('beforeprint'))")
    await until_true_in_page(page, "(ink) => window.ink === ink", ink["light"])
    await page.evaluate("dispatchEvent(new Event('afterprint'))")
    await page.emulate_media(media="screen")
    assert await page.evaluate(colour) == f"rgb({paper[theme]})"


async def test_names_of_what_happened_at_once_are_not_written_over_each_other(site: Site) -> None:
    await site.pool.execute(DELIVERED, site.made.actor.organization_id, UUID(int=0))
    names = "Spring sale", "Autumn sale"
    async with site.pool.acquire() as conn:
        for name in names:
            spec = SmsCampaignSpec(name=name, message_template="Olá", recipients=["+258841234561"])
            await campaigns.create(conn, site.made.actor, spec=spec, request_id=name[:6])
    ended = "SELECT count(*) = 2 FROM campaigns WHERE status = 'completed'"
    await until_true(lambda: site.pool.fetchval(ended))
    # Late in this hour, that is, close to where the plot ends.
    await site.pool.execute(
        "UPDATE campaigns SET started_at = date_trunc('hour', now(), 'UTC') + interval '59 minutes'"
    )
    await site.page.add_init_script(NOTED)
    await site.enter()
    await until_true_in_page(site.page, "(names) => names.some((one) => window.painted.includes(one))", list(names))
    # The table lists both.
    assert await site.page.evaluate("(names) => names.filter((one) => window.painted.includes(one)).length", names) == 1
    listed = site.page.locator("#chart-messages, .chart").first.locator("details")
    assert all([name in (await listed.text_content() or "") for name in names])


async def test_what_happened_late_in_an_interval_stands_at_its_bar(site: Site) -> None:
    await site.pool.execute(DELIVERED, site.made.actor.organization_id, UUID(int=0))
    async with site.pool.acquire() as conn:
        spec = SmsCampaignSpec(name="Spring sale", message_template="Olá", recipients=["+258841234561"])
        await campaigns.create(conn, site.made.actor, spec=spec, request_id="one")
    await until_true(lambda: site.pool.fetchval("SELECT count(*) = 1 FROM campaigns WHERE status = 'completed'"))
    await site.pool.execute(
        "UPDATE campaigns SET started_at = (SELECT hour FROM traffic WHERE count = 100) + interval '59 minutes'"
    )
    await site.page.add_init_script(DRAWN)
    await site.enter()
    await until_true_in_page(site.page, "() => window.lines.length > 0 && window.bars.length > 0")
    # Half the room of a bar, which takes 0.76 of it, to either side.
    assert await site.page.evaluate("""() => {
        const tallest = window.bars.reduce((one, other) => (other.height > one.height ? other : one));
        return Math.abs(window.lines[0] - tallest.x - tallest.width / 2) <= tallest.width / 0.76 / 2 + 1;
    }""")
