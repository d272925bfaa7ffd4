"""Every page, in both themes and at both widths: axe finds nothing, nothing is wider than the screen, and nobody
complains: neither the policy nor the console. `make test` asks axe once a page and look: wide in the one, narrow in the
other, since what it finds is of the colours or of the layout; `make faults` asks it everywhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from . import places
from .conftest import LONG, Site

VENDOR = Path(__file__).with_name("vendor")
RUN = """async () => (await axe.run(document, {
    resultTypes: ['violations'], rules: {'target-size': {enabled: true}}})).violations.map(
    one => one.id + ': ' + one.nodes.map(node => node.target.join(' ')).join(', '))"""
#: Where the focus may go, forwards and back again: whether everything that can be used is on its way, is seen to have
#: it (2 px), and is not wholly below a bar that stays (WCAG 2.4.11). Beside it, axe looks at the size of targets.
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


@pytest.mark.lasts(60)
@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("pt", "dark")])
async def test_every_page(site: Site, language: str, theme: str) -> None:
    page = site.page
    axe = (VENDOR / "axe.min.js").read_text()
    paths, invited = await places.dashboard(site)
    await site.context.add_cookies(
        [
            {"name": "hg-theme", "value": theme, "url": site.base},
            {"name": "hg-language", "value": language, "url": site.base},
        ]
    )
    asked = (1280, 320) if LONG else (1280 if theme == "light" else 320,)
    found: list[str] = []

    async def look(path: str, shows: str = "html") -> None:
        await page.goto(site.base + path)
        await page.locator(shows).wait_for()
        assert await page.locator("html").get_attribute("lang") == language
        await page.evaluate(axe)
        # 640 px are what a screen of 1280 px shows at 200 %.
        for width in (1280, 640, 320):
            await page.set_viewport_size({"width": width, "height": 800})
            wide = await page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                found.append(f"{path} is {wide} px wide at {width}")
            if width in asked:
                found.extend(f"{path} at {width}: {one}" for one in await page.evaluate(RUN))
                await page.keyboard.press("Tab")  # who uses keys sees where they are
                found.extend(f"{path} at {width}: {one}" for one in await page.evaluate(FOCUS))

    for path in places.DOOR:
        await look(path)
    # A script sends what stands after the `#`, and leads to what is offered.
    await look(f"/invitation#{invited}", shows="form[action='/invitation/accept']")
    await page.goto(await site.link())
    await page.wait_for_url(site.base + "/")
    for path in (*paths, "/messages?q=nothing", "/keys?mode=test", "/account/nothing"):
        await look(path)
    assert found == [], "\n".join(found)
    site.complaints = [one for one in site.complaints if "404" not in one]
