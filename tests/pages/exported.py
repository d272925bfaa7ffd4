"""Exports from pages: requested with a form, written by a worker's round, downloaded from the page."""

from __future__ import annotations

import re

from heliograph.base.database.pool import Pool
from heliograph.overview.exports.work import ExportWork

from .conftest import Browser, Page


async def write(pool: Pool) -> None:
    """Write all exports that are waiting."""
    work = ExportWork(pool)
    while await work.round():
        pass


async def fetch(pool: Pool, browser: Browser, page: Page, action: str, **typed: str) -> Page:
    """The file that the form requests."""
    asked = await browser.submit(page, action, **typed)
    assert asked.path.startswith("/exports"), asked.words
    await write(pool)
    listed = await browser.get("/exports")
    found = re.search(r'action="(/exports/[0-9a-f-]+/file)"', listed.text)
    assert found is not None, listed.words
    file = await browser.submit(listed, found[1])
    assert file.status == 200, file.words
    return file
