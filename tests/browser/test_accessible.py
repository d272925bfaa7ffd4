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
RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations.map(
    one => one.id + ': ' + one.nodes.map(node => node.target.join(' ')).join(', '))"""


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
