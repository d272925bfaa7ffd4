"""Operators with a second factor, and their browsers."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pyotp
import pytest
from aiohttp.http import SERVER_SOFTWARE

from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.pages.realms import CONSOLE
from heliograph.people import factors, links, users
from heliograph.people.operators import accounts, sessions
from tests.api.conftest import SECRET_KEY, Tenant
from tests.pages.conftest import PASSWORD, Browser, Page, api, browser, hashed, other_browser, running, tenant
from tests.rules.factories import SUM_DAYS

__all__ = ["PASSWORD", "Browser", "Page", "api", "browser", "other_browser", "running", "tenant"]


async def make_operator(pool: Pool, email: str, role: str = "root") -> tuple[Any, str]:
    """(user, token of the link to their setup)"""
    async with pool.acquire() as conn:
        user, _ = await users.ensure(conn, SYSTEM, email=email, name=email.partition("@")[0].title())
        await accounts.add(conn, SYSTEM, user_id=user.id, email=email, role=role)
        return user, await links.make(conn, SYSTEM, user_id=user.id, realm="console")


async def set_up(browser: Browser, token: str, password: str = PASSWORD) -> str:
    """From the link to the last step of the setup; returns the secret of the authenticator app."""
    page = await browser.submit(await browser.get("/console/setup"), "/console/setup", link=token)
    assert page.path == "/console/setup/account", page.words
    page = await browser.submit(page, "/console/setup/account", name="Eva", password=password)
    assert page.path == "/console/setup/factor", page.words
    found = re.search(r'class="mono"><br>([A-Z2-7 ]+)<', page.text)
    assert found, page.text
    secret = found[1].replace(" ", "")
    page = await browser.submit(page, "/console/setup/factor", code=pyotp.TOTP(secret).now())
    assert page.status == 200, page.words
    assert 'class="codes"' in page.text
    return secret


async def signed_in(pool: Pool, browser: Browser, role: str = "root", email: str = "eva@example.com") -> Any:
    """An operator with a role, signed in: as `set_up` leaves them, without its four pages, which have tests of their
    own. They took a fifth of the time of hundreds of tests."""
    user, _ = await make_operator(pool, email, role)
    by, secret = Principal("operator", user.id, name="Eva"), factors.new_secret()
    key = factors.seal_key(Settings(secret_key=SECRET_KEY))
    known = await hashed(PASSWORD)
    async with pool.acquire() as conn:
        token = await sessions.open_for(conn, user_id=user.id, address="127.0.0.1", agent=SERVER_SOFTWARE, how="link")
        await users.keep_password(conn, by, user=user, hashed=known)
        await users.change(conn, by, id=user.id, name="Eva", language=user.language, time_zone=user.time_zone)
        await factors.enable(conn, by, key, user_id=user.id, secret=secret, given=pyotp.TOTP(secret).now())
    browser.is_signed_in(CONSOLE, user, token)
    return user


@pytest.fixture
async def root(pool: Pool, browser: Browser) -> Browser:
    """A root operator's browser, signed in."""
    await signed_in(pool, browser)
    return browser


@pytest.fixture
def settings() -> Settings:
    """Settings with the secrets of these tests' server."""
    return Settings(secret_key=SECRET_KEY)


async def yesterday(pool: Pool, tenant: Tenant, country: str, count: int, sender: str = "ACME") -> None:
    """Yesterday's traffic, in the roll-ups; that of today is the same, as the day may end meanwhile."""
    await pool.execute(
        "INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count,"
        " segments, to_sent, to_delivered) SELECT $1, date_trunc('day', now(), 'UTC') + noon, 'sms', 'live', $3, $2,"
        " $5, 'delivered', $4, $4, '{}', '{}' FROM (VALUES (interval '-12 hours'), ('12 hours')) day (noon)",
        tenant.id,
        sender,
        country,
        count,
        UUID(int=0),
    )
    await pool.execute(SUM_DAYS)
