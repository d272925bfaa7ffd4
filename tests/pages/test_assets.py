"""Static files: vendored ones are as published, pages load little, and no template needs an exception from the
policy."""

from __future__ import annotations

import gzip
import hashlib
import re

from heliograph.pages.assets import FOLDER
from heliograph.pages.serving.rendering import POLICY
from tests.house.project import ROOT

from .conftest import Browser, Page

VENDOR = FOLDER / "vendor"
TEMPLATES = [path for folder in ("pages", "dashboard") for path in (ROOT / "heliograph" / folder).rglob("*.html")]
#: Bytes: of the stylesheet itself, and of a first visit, compressed.
STYLES, FIRST_LOAD, FIRST_LOAD_WITH_CHARTS = 40_000, 60_000, 85_000


def test_vendored_files_are_as_they_were_published() -> None:
    listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "README.md").read_text(), re.M)
    assert {name for _, name in listed} == {path.name for path in VENDOR.iterdir()} - {"README.md"}
    for digest, name in listed:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_no_template_holds_a_script_a_style_or_anything_that_runs() -> None:
    assert len(TEMPLATES) > 20
    for path in TEMPLATES:
        text = path.read_text()
        assert re.search(r"<style|\sstyle=|\son\w+=|javascript:|hx-on|hx-vals|hx-boost|\bjs:", text) is None, path.name
        inline = re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", text)
        assert all('type="application/json"' in one for one in inline), path.name
        # Only what we drew ourselves is not escaped.
        assert re.findall(r"\|\s*safe", text) == (["|safe"] if path.name == "account_factor.html" else []), path.name


def test_a_cell_with_a_second_line_holds_both_in_one_element() -> None:
    """On a phone a cell is a row: its name, and its value. Two elements would be side by side there."""
    for path in (ROOT / "heliograph").rglob("*.html"):
        for inside in re.findall(r'<td[^>]* data-name="(?:[^"{]|\{\{.*?\}\})*">(.*?)</td>', path.read_text(), re.S):
            depth = 0
            for closes, attributes in re.findall(r"<(/?)(?:a|code|div|span|strong)\b([^>]*)>", inside):
                assert closes or depth or 'class="sub' not in attributes, f"{path.name}: {inside}"
                depth += -1 if closes else 1


def test_every_icon_that_is_asked_for_is_there() -> None:
    drawn = set(re.findall(r'<symbol id="([a-z-]+)"', (FOLDER / "icons.svg").read_text()))
    asked = {name for path in TEMPLATES for name in re.findall(r'kit\.icon\("([a-z-]+)"\)', path.read_text())}
    assert asked - drawn == set()


async def test_a_first_visit_is_small_and_comes_under_the_policy(owner: Browser) -> None:
    assert (FOLDER / "pages.css").stat().st_size <= STYLES
    assert "unsafe" not in POLICY
    plain, charted = await owner.get("/messages"), await owner.get("/")
    assert {name.rpartition("/")[2] for name in files(plain)} >= {"pages.css", "pages.js", "htmx.min.js", "icons.svg"}
    assert "uPlot.iife.min.js" not in plain.text
    assert "uPlot.iife.min.js" in charted.text
    assert await weight(owner, plain) <= FIRST_LOAD
    assert await weight(owner, charted) <= FIRST_LOAD_WITH_CHARTS


def files(page: Page) -> set[str]:
    return set(re.findall(r'(?:src|href)="(/assets/[^"#]+)', page.text))


async def weight(owner: Browser, page: Page) -> int:
    """The compressed size of a page with all its files, in bytes."""
    assert page.headers["content-security-policy"] == POLICY
    size = len(gzip.compress(page.text.encode(), 4))
    for file in files(page):
        asked = {"Accept-Encoding": "gzip"}
        async with owner.session.get(owner.base_url + file, headers=asked, auto_decompress=False) as answer:
            assert (answer.status, answer.headers["cache-control"]) == (200, "public, max-age=31536000, immutable")
            assert answer.headers["content-security-policy"] == POLICY
            size += len(await answer.read())
    return size
