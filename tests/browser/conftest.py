"""Debian's Chromium, driven by Playwright, against a complete installation: web process, worker, supplier and receiver.

A test is written in English and finds texts in its reader's language (`Site.says`), in the theme that the reader's
system prefers. In the short form each test runs once, some in English with the light theme and some in Portuguese with
the dark one; in the long form it runs in both languages and both themes (`looks`).

A test process starts one browser and one Playwright, 0.7 s of processor time, for all of its tests. Each reader has a
separate browser context, which shares no cookies, storage, cache or renderer with the others.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from playwright.async_api import Browser, BrowserContext, Page, Playwright, async_playwright

from heliograph.base.database.pool import Pool
from heliograph.pages import languages
from heliograph.people import links, memberships, users
from tests.processes import LONG, Installation, installation, until_true

ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
#: V8 starts anew for each page: it optimizes code, in threads of its own, that hardly runs again. Without that, a crawl
#: of all pages takes a fifth less processor time, and another sixth less if baseline code is compiled at once instead
#: of after a warm-up in the interpreter.
LIGHT = ["--js-flags=--no-opt --no-maglev --always-sparkplug"]
PASSWORD = "correct horse battery staple"
#: How long to wait for a condition of a page, in milliseconds.
PATIENCE = 60_000
#: The last four digits of numbers with this prefix choose the message's outcome.
MAGIC = "2588499"


class Look(NamedTuple):
    """How a reader sees pages: as their browser's settings say, without a cookie."""

    language: str
    theme: Literal["light", "dark"]


DAY, NIGHT = Look("en", "light"), Look("pt", "dark")


def looks(short: Look) -> list[Look]:
    """The short form's look, or all of them in the long form."""
    return [DAY, NIGHT, Look("en", "dark"), Look("pt", "light")] if LONG else [short]


def chromium() -> str:
    """The path of the browser; `make test` installs it if it can. The headless shell takes two thirds of the processor
    time."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    assert found, "the browser tests need Chromium: on Debian, apt-get install chromium-headless-shell, or chromium"
    return found


async def press_key(page: Page, key: str) -> None:
    """Press a key once the page has loaded: its content is visible before its scripts handle keys."""
    await page.wait_for_load_state("load")
    await page.keyboard.press(key)


async def until_true_in_page(page: Page, function: str, value: object = None) -> None:
    """Wait until a JavaScript function returns a truthy value. Playwright's `wait_for_function` evaluates a string at
    each poll, which our content security policy forbids: it fails unless the first poll succeeds."""
    await until_true(lambda: page.evaluate(function, value))


class Site:
    """An installation, a browser with a page, and the browser's complaints."""

    def __init__(self, made: Installation, context: BrowserContext, page: Page, pool: Pool, look: Look = DAY) -> None:
        self.made, self.context, self.page, self.pool = made, context, page, pool
        self.locale = languages.locale(look.language)
        self.complaints: list[str] = []
        self._expected: list[str] = []
        #: Origins to which its pages may send requests.
        self.bases = [made.base_url]
        self.watch(page)

    def watch(self, page: Page) -> None:
        """Record console errors and warnings, and requests to other origins."""
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: self._asked(asked.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not any(re.search(one, text) for one in self._expected):
            self.complaints.append(text)

    def expect(self, pattern: str) -> None:
        """Complaints that match the regular expression are no fault, even if they are still to come: the browser
        reports a failed request of a page whenever it pleases, and not before the page has loaded."""
        self._expected.append(pattern)
        self.complaints = [one for one in self.complaints if not re.search(pattern, one)]

    def _asked(self, url: str) -> None:
        if not url.startswith((*self.bases, "data:")):
            self.complaints.append(f"asked elsewhere: {url}")

    @property
    def base(self) -> str:
        return self.made.base_url

    def says(self, english: str, **values: object) -> str:
        """A text in the reader's language. A text without a translation fails here instead of timing out later."""
        assert english in languages.catalogue("pt"), english
        return self.locale.text(english, **values)

    async def enter(self) -> None:
        """Sign in as an owner, with a one-time link."""
        await self.page.goto(await self.link())
        await self.page.wait_for_url(self.base + "/")

    async def link(self, email: str = "owner@example.com", *, password: bool = False) -> str:
        """A one-time link for an owner."""
        async with self.pool.acquire() as conn:
            user, _ = await users.ensure(conn, self.made.actor, email=email, name="Ana Silva")
            await memberships.add(conn, self.made.actor, user_id=user.id, role="owner")
        if password:
            await users.set_password(self.pool, self.made.actor, user=user, password=PASSWORD)
        async with self.pool.acquire() as conn:
            return links.address(self.base, await links.make(conn, self.made.actor, user_id=user.id))


class Chromium:
    """The test process's browser, started on first use and again after a crash."""

    def __init__(self, playwright: Playwright) -> None:
        self._playwright = playwright
        self._browser: Browser | None = None

    async def context(self, look: Look) -> BrowserContext:
        """A new context for a reader with this look."""
        if self._browser is None or not self._browser.is_connected():
            arguments = ARGUMENTS + ([] if LONG else LIGHT)
            self._browser = await self._playwright.chromium.launch(executable_path=chromium(), args=arguments)
        return await self._browser.new_context(
            color_scheme=look.theme,
            locale={"en": "en-GB", "pt": "pt-PT"}[look.language],
            # Animated colours cost processor time for each frame. The long form keeps the animations.
            reduced_motion="no-preference" if LONG else "reduce",
        )

    async def close(self) -> None:
        if self._browser is not None:
            await self._browser.close()


@asynccontextmanager
async def browsing(made: Installation, pool: Pool, browser: Chromium, look: Look = DAY) -> AsyncIterator[Site]:
    """A reader with this look, with a context and a page of their own."""
    context = await browser.context(look)
    try:
        yield Site(made, context, await context.new_page(), pool, look)
    finally:
        await context.close()


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Chromium]:
    async with async_playwright() as playwright:
        found = Chromium(playwright)
        yield found
        await found.close()


@pytest.fixture
def settings_of_site() -> dict[str, str]:
    """Additional `HELIOGRAPH_…` settings of the site; a test module may override this."""
    return {}


@pytest.fixture
async def site(
    request: pytest.FixtureRequest,
    database_url: str,
    pool: Pool,
    browser: Chromium,
    tmp_path: Path,
    settings_of_site: dict[str, str],
) -> AsyncIterator[Site]:
    """`pytest.mark.parametrize("site", looks(…), indirect=True)` sets the reader's language and theme."""
    async with (
        installation(database_url, tmp_path, smsc={"magic": MAGIC}, **settings_of_site) as made,
        made.serving(),
        made.working(),
        browsing(made, pool, browser, getattr(request, "param", DAY)) as found,
    ):
        yield found
        assert found.complaints == []
