"""Debian's Chromium, driven by Playwright, against a whole installation: web, worker, supplier and receiver."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, Page, async_playwright

from heliograph.base.database.pool import Pool
from heliograph.people import links, memberships, users
from tests.processes import Installation, installation

ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
PASSWORD = "correct horse battery staple"
#: Milliseconds that a condition of a page is waited for.
PATIENCE = 60_000


def chromium() -> str:
    """Where it is; `make test` installs it where it may."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "the browser tests need Chromium: on Debian, apt-get install chromium"
    return found


class Site:
    """An installation, a browser with a page, and what that complained of."""

    def __init__(self, made: Installation, context: BrowserContext, page: Page, pool: Pool) -> None:
        self.made, self.context, self.page, self.pool = made, context, page, pool
        self.complaints: list[str] = []
        #: Addresses that are its own.
        self.bases = [made.base_url]
        self.watch(page)

    def watch(self, page: Page) -> None:
        """Note what the console says, and every request to elsewhere."""
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: self._asked(asked.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith((*self.bases, "data:")):
            self.complaints.append(f"asked elsewhere: {url}")

    @property
    def base(self) -> str:
        return self.made.base_url

    async def link(self, email: str = "owner@example.com", *, password: bool = False) -> str:
        """A one-time link for an owner."""
        async with self.pool.acquire() as conn:
            user, _ = await users.ensure(conn, self.made.actor, email=email, name="Ana Silva")
            await memberships.add(conn, self.made.actor, user_id=user.id, role="owner")
        if password:
            await users.set_password(self.pool, self.made.actor, user=user, password=PASSWORD)
        async with self.pool.acquire() as conn:
            return links.address(self.base, await links.make(conn, self.made.actor, user_id=user.id))


@pytest.fixture
async def site(database_url: str, pool: Pool, tmp_path: Path) -> AsyncIterator[Site]:
    options: dict[str, Any] = {"executable_path": chromium(), "args": ARGUMENTS, "locale": "en-GB"}
    async with (
        installation(database_url, tmp_path) as made,
        made.serving(),
        made.working(),
        async_playwright() as playwright,
    ):
        context = await playwright.chromium.launch_persistent_context(tmp_path / "browser", **options)
        try:
            found = Site(made, context, await context.new_page(), pool)
            yield found
            assert found.complaints == []
        finally:
            await context.close()
