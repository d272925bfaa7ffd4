"""Every page in both themes and at all widths: axe finds no violation, nothing is wider than the screen, and neither
the content security policy nor the console reports a problem.

In `make test` pages take turns: each is shown in one language and checked by axe in one theme and at one width, plus
its colours in the other theme. `make faults` runs axe on every combination.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import aiohttp
import pytest

from tests.processes import until_true

from . import places
from .conftest import LONG, Site, press_key

VENDOR = Path(__file__).with_name("vendor")
#: Without rules that cost a fifth of the time and cannot fail here: our pages have no frames and no sounds, and need no
#: selectors for the elements found.
LEAN = "resultTypes: ['violations'], preload: false, iframes: false, selectors: false, elementRef: true"
#: The violations that `axe.run` with these options finds, with the HTML of their elements. axe itself would serialize
#: each element that it checks, with all that is inside.
VIOLATIONS = """async (options) => {
  axe.configure({ noHtml: true });
  return (await axe.run(document, options)).violations.map(
    (one) => one.id + ': ' + one.nodes.map((node) => node.element.outerHTML.slice(0, 300)).join(', '));
}"""
RUN = f"() => ({VIOLATIONS})({{ {LEAN}, rules: {{'target-size': {{enabled: true}}}} }})"
#: Focuses every control of the page in order, forwards and back: each can be reached with Tab, shows an outline (of 2
#: px), and is not completely hidden below a sticky bar (WCAG 2.4.11). axe checks target sizes in addition.
FOCUS = """() => {
  const found = [], name = (one) => one.outerHTML.slice(0, 120);
  const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary')].filter(
    (one) => !one.disabled && one.type !== 'hidden' && !one.closest('[aria-hidden="true"]')
      && one.checkVisibility({ visibilityProperty: true }));
  const seen = (one) => {
    const { left, top, width, height } = one.getBoundingClientRect();
    for (const x of [0.1, 0.5, 0.9]) for (const y of [0.1, 0.5, 0.9]) {
      const there = document.elementFromPoint(left + x * width, top + y * height);
      if (there && (one.contains(there) || there.contains(one) || one.labels?.[0]?.contains(there))) return true;
    }
    return false;
  };
  for (const one of [...all, ...all.toReversed()]) {
    if (one.tabIndex < 0) { found.push(`${name(one)} is skipped`); continue; }
    if (one.type === 'radio' && !one.checked && document.querySelector(`[name="${one.name}"]:checked`)) continue;
    one.focus();
    if (document.activeElement !== one) { found.push(`${name(one)} takes no focus`); continue; }
    const style = getComputedStyle(one);
    if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 2) found.push(`${name(one)} shows no focus`);
    if (!seen(one)) found.push(`${name(one)} is hidden with the focus`);
  }
  return [...new Set(found)];
}"""


def test_axe_is_as_it_was_published() -> None:
    listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "README.md").read_text(), re.M)
    sums = {name: digest for digest, name in listed}
    assert set(sums) == {path.name for path in VENDOR.iterdir()} - {"README.md"}
    for name, digest in sums.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


#: Language and theme.
LOOKS = (("en", "light"), ("pt", "dark"))
#: Switches the page to the other theme and checks only the colours, which are all that a theme changes.
OTHER_THEME = f"""async () => {{
  const root = document.documentElement;
  const other = {{ light: 'dark', dark: 'light' }}[root.dataset.theme];
  if (!other) return ['it has no theme'];
  root.dataset.theme = other;
  await Promise.all(document.getAnimations().map((one) => one.finished.catch(() => null)));
  return ({VIOLATIONS})({{ {LEAN}, runOnly: ['color-contrast'] }});
}}"""


#: Whether any tabs wrap or scroll vertically: if they do not fit, they should scroll sideways.
TABS = "[...document.querySelectorAll('.tabs')].some((one) => one.scrollHeight > one.clientHeight)"

#: Whether the current page's tab is in view, even if the tabs do not fit.
CURRENT = """[...document.querySelectorAll('.tabs [aria-current]')].every(
    (one) => one.getBoundingClientRect().right <= one.parentElement.getBoundingClientRect().right + 1)"""

#: Buttons of a table's rows that are cut off by its edge.
CUT = """[...document.querySelectorAll('.table .acts .button')].filter(
    (one) => one.getBoundingClientRect().right > one.closest('.table').getBoundingClientRect().right).length"""


@pytest.mark.lasts(60)
@pytest.mark.parametrize("looks", [[one] for one in LOOKS] if LONG else [LOOKS])
async def test_every_page(site: Site, looks: list[tuple[str, str]]) -> None:
    page = site.page
    await site.context.add_init_script(path=VENDOR / "axe.min.js")
    paths, invited = await places.dashboard(site)
    found: list[str] = []
    looked: list[str] = []
    # 640 px is what a screen of 1280 px shows at a zoom of 200 %. Narrow a page that was opened wide, and open the next
    # one wide again.
    widths = [1280, 640, 320]
    await page.set_viewport_size({"width": widths[0], "height": 800})

    async def look(path: str, shows: str = "") -> None:
        # Without locators, of which the first on a page starts thousands of lines of Playwright's in it.
        language, theme = looks[len(looked) % len(looks)]
        own = {"hg-theme": theme, "hg-language": language}
        await site.context.add_cookies([{"name": name, "value": own[name], "url": site.base} for name in own])
        await page.goto(site.base + path)
        if shows:
            await page.locator(shows).wait_for()
            await page.wait_for_load_state("load")
        assert await page.evaluate("document.documentElement.lang") == language
        if not await page.evaluate(CURRENT):
            found.append(f"{path} does not show its tab at {widths[0]}")
        if widths[0] == 1280 and (cut := await page.evaluate(CUT)):
            found.append(f"{path} cuts off {cut} buttons")
        for width in widths:
            if width != widths[0]:
                await page.set_viewport_size({"width": width, "height": 800})
            wide, tabs = await page.evaluate(f"[document.documentElement.scrollWidth, {TABS}]")
            if wide > width:
                found.append(f"{path} is {wide} px wide at {width}")
            if tabs:
                found.append(f"{path} has tabs that scroll downwards at {width}")
            if LONG or width == (1280, 320)[len(looked) // len(looks) % 2]:
                found.extend(f"{path} at {width}: {one}" for one in await page.evaluate(RUN))
                await press_key(page, "Tab")  # keyboard users see where the focus is
                found.extend(f"{path} at {width}: {one}" for one in await page.evaluate(FOCUS))
        if not LONG:
            found.extend(f"{path} not {theme}: {one}" for one in await page.evaluate(OTHER_THEME))
        looked.append(path)
        widths.reverse()

    for path in places.DOOR:
        await look(path)
    # A script sends the text after the `#`, and continues to what is offered.
    await look(f"/invitation#{invited}", shows="form[action='/invitation/accept']")
    await page.goto(await site.link())
    await page.wait_for_url(site.base + "/")
    for path in (*paths, "/messages?q=nothing", "/keys?mode=test", "/account/nothing"):
        await look(path)
    # A form with several errors: each line of the summary leads to its field, and is a large enough target to tap.
    await page.goto(site.base + "/contacts/new")
    for name in ("name", "first_name", "last_name"):
        await page.fill(f"#{name}", "a\x01")
    await page.fill("#phone", "+258841234567")
    await page.click("form[action='/contacts'] button.primary")
    await page.locator("#summary a").nth(2).wait_for()
    found.extend(f"the refused form: {one}" for one in await page.evaluate(RUN))
    assert found == [], "\n".join(found)
    site.expect("404|422")


async def test_the_name_of_an_operation_is_on_one_line(site: Site) -> None:
    headers = {"x-api-key": site.made.key}
    async with aiohttp.ClientSession(site.base, headers=headers) as http:
        async with http.get("/v1/whatsapp/conversations?limit=0") as answer:
            assert answer.status == 400

        async def is_logged() -> bool:
            async with http.get("/v1/requests?operation=listWhatsAppConversations") as answer:
                return bool((await answer.json())["items"])

        await until_true(is_logged)
    await site.enter()
    await site.page.set_viewport_size({"width": 1000, "height": 800})
    await site.page.goto(f"{site.base}/requests")
    name = site.page.locator("section td code", has_text="listWhatsAppConversations")
    assert await name.evaluate("(one) => one.getClientRects().length") == 1
