"""Debian's Chromium, driven by Playwright, against a whole installation: web, worker, supplier and receiver.

A journey is told in English and speaks to the page in its reader's language (`Site.says`), under the theme that their
system has. In its short form it is made once, some journeys by day and some by night; in its long form in each of both
languages and both themes (`looks`).

A test process starts one browser and one Playwright, 0.7 s of processor time, for all of its tests; each reader has a
context, which shares nothing with those of others: cookies, storage, cache and renderer are its own.
"""

from __future__ import annotations

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
#: Each page is a new world to V8: it optimizes code, in threads of its own, that is hardly run again. Without that, a
#: crawl of all pages takes a fifth less processor time; and another sixth less where the simplest machine code is made
#: at once, not when a function has been interpreted for a while.
LIGHT = ["--js-flags=--no-opt --no-maglev --always-sparkplug"]
PASSWORD = "correct horse battery staple"
#: Milliseconds that a condition of a page is waited for.
PATIENCE = 60_000
#: Numbers that begin so choose by their last four digits what becomes of a message.
MAGIC = "2588499"


class Look(NamedTuple):
    """How a reader sees pages: as their browser says, without a cookie."""

    language: str
    theme: Literal["light", "dark"]


DAY, NIGHT = Look("en", "light"), Look("pt", "dark")


def looks(short: Look) -> list[Look]:
    """`short`, or all of them in the long form."""
    return [DAY, NIGHT, Look("en", "dark"), Look("pt", "light")] if LONG else [short]


def chromium() -> str:
    """Where it is; `make test` installs it where it may. Its headless shell takes two thirds of the processor time."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    assert found, "the browser tests need Chromium: on Debian, apt-get install chromium-headless-shell, or chromium"
    return found


async def press_key(page: Page, key: str) -> None:
    """Press a key once the page has come: what stands in it is seen before its scripts hear keys."""
    await page.wait_for_load_state("load")
    await page.keyboard.press(key)


async def until_says(page: Page, function: str, value: object = None) -> None:
    """Until a function in the page's own language says yes. Playwright's `wait_for_function` has the page evaluate a
    text each time it looks again, which our policy forbids: it fails unless the first look is the last."""
    await until_true(lambda: page.evaluate(function, value))


class Site:
    """An installation, a browser with a page, and what that complained of."""

    def __init__(self, made: Installation, context: BrowserContext, page: Page, pool: Pool, look: Look = DAY) -> None:
        self.made, self.context, self.page, self.pool = made, context, page, pool
        self.locale = languages.locale(look.language)
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

    def says(self, english: str, **values: object) -> str:
        """A text as its reader has it; one that has no twin would be waited for in vain."""
        assert english in languages.catalogue("pt"), english
        return self.locale.text(english, **values)

    async def enter(self) -> None:
        """Sign in as an owner, by a link."""
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
    """The test process's browser: there once somebody wants it, and again after it has crashed."""

    def __init__(self, playwright: Playwright) -> None:
        self._playwright = playwright
        self._browser: Browser | None = None

    async def context(self, look: Look) -> BrowserContext:
        """A new one, of a reader who sees pages like this."""
        if self._browser is None or not self._browser.is_connected():
            arguments = ARGUMENTS + ([] if LONG else LIGHT)
            self._browser = await self._playwright.chromium.launch(executable_path=chromium(), args=arguments)
        return await self._browser.new_context(
            color_scheme=look.theme,
            locale={"en": "en-GB", "pt": "pt-PT"}[look.language],
            # Colours that fade are painted frame by frame, by a processor. The long form sees them fade.
            reduced_motion="no-preference" if LONG else "reduce",
        )

    async def close(self) -> None:
        if self._browser is not None:
            await self._browser.close()


@asynccontextmanager
async def browsing(made: Installation, pool: Pool, browser: Chromium, look: Look = DAY) -> AsyncIterator[Site]:
    """A reader who sees pages like this, with a context and a page."""
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
    """`HELIOGRAPH_…` of the site beyond those of every installation; a file of tests may have its own."""
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
    """`pytest.mark.parametrize("site", looks(…), indirect=True)` says how its reader sees it."""
    async with (
        installation(database_url, tmp_path, smsc={"magic": MAGIC}, **settings_of_site) as made,
        made.serving(),
        made.working(),
        browsing(made, pool, browser, getattr(request, "param", DAY)) as found,
    ):
        yield found
        assert found.complaints == []
