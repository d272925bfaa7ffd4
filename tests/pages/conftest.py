"""A browser without scripts: it requests pages, and fills in and submits the forms on them."""

from __future__ import annotations

import html
import re
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pyotp
import pytest
from aiohttp.http import SERVER_SOFTWARE
from yarl import URL

from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.pages import cookies
from heliograph.pages.realms import DASHBOARD, Realm
from heliograph.people import factors, links, memberships, passwords, sessions, signing_in, tries, users
from tests.api.conftest import SECRET_KEY, Api, Tenant, api, make_tenant, running, tenant
from tests.hooks import until

__all__ = ["api", "running", "tenant"]

PASSWORD = "correct horse battery staple"
#: The key with which these servers sign the marks of browsers in which somebody has signed in.
MARKS = derive_key(Settings(secret_key=SECRET_KEY).secret_keys, "known browsers")


class Page:
    """The response to a request."""

    def __init__(self, answer: aiohttp.ClientResponse, text: str) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.path = answer.url.path_qs
        self.text = text

    @property
    def words(self) -> str:
        """The text that a reader sees."""
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", self.text)).split())

    @property
    def is_refusal(self) -> bool:
        """Whether its notice says why something was not done, and not that it was."""
        return '<div class="attention" role="alert">' in self.text and '<div class="notice"' not in self.text

    def form(self, action: str) -> dict[str, str]:
        """The fields of the form with this action, as filled in."""
        for found, inside in re.findall(r'<form[^>]*action="([^"]*)"[^>]*>(.*?)</form>', self.text, re.S):
            if html.unescape(found) == action:
                fields = {}
                for tag in re.findall(r"<(?:input|textarea)[^>]*>", inside):
                    name = re.search(r'\sname="([^"]*)"', tag)
                    value = re.search(r'\svalue="([^"]*)"', tag)
                    if name and 'type="checkbox"' not in tag and 'type="radio"' not in tag:
                        fields[name[1]] = html.unescape(value[1]) if value else ""
                for name, text in re.findall(r'<textarea[^>]*\sname="([^"]*)"[^>]*>\n?(.*?)</textarea>', inside, re.S):
                    fields[name] = html.unescape(text)
                for name, options in re.findall(r'<select[^>]*\sname="([^"]*)"[^>]*>(.*?)</select>', inside, re.S):
                    values = re.findall(r'<option value="([^"]*)"( selected)?', options)
                    fields[name] = next((value for value, chosen in values if chosen), values[0][0])
                return fields
        raise AssertionError(f"no form for {action} in {self.words[:2000]}")


class Browser:
    """One person's browser."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        # Keeps cookies of IP addresses, too. Compression has a test of its own (`test_live.py`): compressing thousands
        # of pages is a twentieth of their cost.
        self.session = aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True), headers={"Accept-Encoding": "identity"}
        )

    async def get(self, path: str, **headers: str) -> Page:
        accept = {"Accept": "text/html"} | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.get(self.base_url + path, headers=accept) as answer:
            return Page(answer, await answer.text())

    async def post(self, path: str, fields: dict[str, str], **headers: str) -> Page:
        sent = {"Origin": self.base_url, "Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(
            self.base_url + path, data=urllib.parse.urlencode(fields).encode(), headers=sent | FORM
        ) as answer:
            return Page(answer, await answer.text())

    async def submit(self, page: Page, action: str, **typed: str) -> Page:
        """Fill in a page's form, and submit it."""
        return await self.post(action, page.form(action) | typed)

    async def asked_again(self, path: str) -> Page:
        """The form that asks for the password once the last authentication is too old. Session data is cached for up to
        half a second."""
        page = await self.get(path)

        async def asks() -> bool:
            nonlocal page
            page = await self.get(path)
            return "Confirm that it is you" in page.words

        await until(asks)
        return page

    async def enter(self, token: str) -> Page:
        return await self.submit(await self.get("/enter"), "/enter", link=token)

    async def sign_in(self, email: str, password: str = PASSWORD, **typed: str) -> Page:
        return await self.submit(await self.get("/login"), "/login", email=email, password=password, **typed)

    def is_signed_in(self, realm: Realm, user: Any, token: str) -> None:
        """From now on, use the session with this token."""
        known = {cookies.BROWSER: signing_in.mark(MARKS, user_id=user.id)}
        session = {cookies.session_name(realm.cookie, is_secure=False): token}
        self.session.cookie_jar.update_cookies(known | session, URL(self.base_url))


#: The hash of the password that people have in tests.
_HASHES: dict[str, str] = {}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def make_person(
    pool: Pool, tenant: Tenant, email: str, role: str = "owner", password: str | None = PASSWORD
) -> Any:
    """Create a member of the tenant."""
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, tenant.actor, email=email, name=email.partition("@")[0].title())
        await memberships.add(conn, tenant.actor, user_id=user.id, role=role)
        if password:
            await users.keep_password(conn, tenant.actor, user=user, hashed=await hashed(password))
    return user


async def hashed(password: str) -> str:
    """Like the product's, but only once per process: tests sign hundreds of people in, and it takes 40 ms each time."""
    if password not in _HASHES:
        _HASHES[password] = await passwords.hashed(password)
    return _HASHES[password]


async def link_for(pool: Pool, user: Any, tenant: Tenant) -> str:
    async with pool.acquire() as conn:
        return await links.make(conn, tenant.actor, user_id=user.id)


def app_of(page: Page) -> pyotp.TOTP:
    """The authenticator app, set up with the secret that the page shows."""
    secret = re.search(r"\b(?:[A-Z2-7]{4} ){7}[A-Z2-7]{4}\b", page.words)
    assert secret, page.words
    return pyotp.TOTP(secret[0].replace(" ", ""))


async def offered_app(browser: Browser) -> tuple[Page, pyotp.TOTP]:
    """The page that offers an app, with a new secret each time, and the app. It shows no code again while a test lasts:
    once in a million times, a used code would be a good one."""
    while True:
        page = await browser.get("/account/factor")
        app = app_of(page)
        shown = codes_of(app)
        if len(set(shown)) == len(shown):
            return page, app


def codes_of(app: pyotp.TOTP) -> list[str]:
    """What the app shows from half a minute ago until ten minutes from now."""
    step = clock.milliseconds() // 1000 // factors.STEP
    return [app.generate_otp(n) for n in range(step - 1, step + 20)]


def wrong_code(app: pyotp.TOTP) -> str:
    """Six digits that the app does not show while a test lasts."""
    shown = codes_of(app)
    return next(code for code in map("{:06}".format, range(len(shown) + 1)) if code not in shown)


@pytest.fixture
def pauses_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """After too many failures, attempts are delayed by a minute instead of a second: on a busy machine, an attempt
    takes longer than a second, and the delay would be over."""
    for name in ("COUNT_ACCOUNT", "COUNT_ADDRESS", "COUNT_CODE"):
        statement: str = getattr(tries, name)
        assert "2.0 ^" in statement
        monkeypatch.setattr(tries, name, statement.replace("2.0 ^", "60 * 2.0 ^"))


@pytest.fixture
async def browser(api: Api) -> AsyncIterator[Browser]:
    made = Browser(api.base_url)
    try:
        yield made
    finally:
        await made.session.close()


@pytest.fixture
async def other_browser(api: Api) -> AsyncIterator[Browser]:
    made = Browser(api.base_url)
    try:
        yield made
    finally:
        await made.session.close()


async def owner_of(pool: Pool, tenant: Tenant, browser: Browser) -> Browser:
    """The browser with an owner of the tenant signed in, like the page does it, but without the page, which has tests
    of its own. Its check of the password, and the pages after it, took a fifth of the time of hundreds of tests."""
    user = await make_person(pool, tenant, "ana@example.com")
    async with pool.acquire() as conn:
        token = await sessions.open_for(
            conn, user_id=user.id, address="127.0.0.1", agent=SERVER_SOFTWARE, how="password"
        )
    browser.is_signed_in(DASHBOARD, user, token)
    return browser


@pytest.fixture
async def owner(pool: Pool, tenant: Tenant, browser: Browser) -> Browser:
    """An owner's browser, signed in."""
    return await owner_of(pool, tenant, browser)


__all__ += ["Browser", "make_tenant"]
