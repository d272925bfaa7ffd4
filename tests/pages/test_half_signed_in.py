"""A sign-in that is half finished when the password changes, and browsers that several people share."""

from __future__ import annotations

from typing import Any

import pyotp
import pytest

from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.people import factors, links, sessions, signing_in, tries, users
from heliograph.people.noticing.guessing import Guesses
from heliograph.people.operators import sessions as operator_sessions
from heliograph.people.signing_in import MOST_MARKS
from heliograph.people.tries import WrongSignIn
from tests.api.conftest import SECRET_KEY
from tests.console.conftest import make_operator

from .conftest import MARKS, PASSWORD, Browser, Tenant, make_person, running

OTHER = "another horse battery staple"


async def with_app(pool: Pool, user: Any) -> list[str]:
    """Set up an authenticator app for this user; returns the recovery codes."""
    key, secret = factors.seal_key(Settings(secret_key=SECRET_KEY)), factors.new_secret()
    async with pool.acquire() as conn:
        return await factors.enable(conn, SYSTEM, key, user_id=user.id, secret=secret, given=pyotp.TOTP(secret).now())


async def test_a_recovery_code_replaces_an_app_whose_secret_does_not_open_any_more(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    """The secret key was lost: nobody's app is known any more."""
    codes = await with_app(pool, await make_person(pool, tenant, "ana@example.com"))
    await pool.execute(r"UPDATE users SET totp = '\x01' || gen_random_uuid()::text::bytea WHERE totp IS NOT NULL")
    page = await browser.sign_in("ana@example.com")
    page = await browser.submit(page, "/login/code", code="123456")
    assert (page.status, "not correct" in page.words) == (422, True), page.words
    assert (await browser.submit(page, "/login/code", code=codes[0])).path == "/"


@pytest.mark.parametrize("by", ["password", "link"])
async def test_a_change_of_password_stops_whoever_still_has_to_enter_a_code(
    pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser, by: str
) -> None:
    ana = await make_person(pool, tenant, "ana@example.com")
    codes = await with_app(pool, ana)
    if by == "password":
        page = await browser.sign_in("ana@example.com")
    else:
        async with pool.acquire() as conn:
            page = await browser.enter(await links.make(conn, SYSTEM, user_id=ana.id, is_mailed=True))
    await users.set_password(pool, SYSTEM, user=ana, password=OTHER)
    page = await browser.submit(page, "/login/code", code=codes[0])
    assert (page.status, "It took too long" in page.words) == (422, True), page.words
    assert (await browser.get("/account")).path == "/login?next=/account"
    # The code is not used up, and the new password works.
    page = await other_browser.sign_in("ana@example.com", OTHER)
    assert (await other_browser.submit(page, "/login/code", code=codes[0])).path == "/"


async def test_the_same_holds_for_the_console(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    eva, _ = await make_operator(pool, "eva@example.com")
    await users.set_password(pool, SYSTEM, user=eva, password=PASSWORD)
    codes = await with_app(pool, eva)
    page = await browser.submit(
        await browser.get("/console/login"), "/console/login", email="eva@example.com", password=PASSWORD
    )
    await users.set_password(pool, SYSTEM, user=eva, password=OTHER)
    page = await browser.submit(page, "/console/login/code", code=codes[0])
    assert (page.status, "It took too long" in page.words) == (422, True), page.words
    assert (await browser.get("/console/now")).path.startswith("/console/login")


async def test_no_session_begins_with_a_password_that_was_changed_meanwhile(pool: Pool, tenant: Tenant) -> None:
    """The password was verified before the change, and the session would begin after it: nothing would end it."""
    eva, _ = await make_operator(pool, "eva@example.com")
    await users.set_password(pool, SYSTEM, user=eva, password=PASSWORD)
    verified = await signing_in.password(
        pool, MARKS, Guesses(pool), email=eva.email, password=PASSWORD, address="192.0.2.1"
    )
    await users.set_password(pool, SYSTEM, user=eva, password=OTHER)
    async with pool.acquire() as conn:
        for realm in (sessions, operator_sessions):
            with pytest.raises(WrongSignIn):
                await realm.open_for(conn, user_id=eva.id, address="", agent="", how="password", hashed=verified.hashed)
        assert await conn.fetchval("SELECT count(*) FROM sessions") == 0
        assert await conn.fetchval("SELECT count(*) FROM operator_sessions") == 0


@pytest.mark.usefixtures("pauses_last")
async def test_a_browser_is_known_as_that_of_everybody_who_shares_it(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    for name in ("ana", "rui"):
        await make_person(pool, tenant, f"{name}@example.com")
        await browser.sign_in(f"{name}@example.com")
        await browser.submit(await browser.get("/account"), "/logout")
    async with pool.acquire() as conn:
        for name in ("ana", "rui"):
            for n in range(tries.FREE_ACCOUNT):
                await tries.count(conn, account=f"{name}@example.com", address=f"2001:db8:0:{n}::1")
    for name in ("ana", "rui", "ana"):
        page = await browser.sign_in(f"{name}@example.com")
        assert page.path == "/", (name, page.words)
        await browser.submit(page, "/logout")


async def test_whoever_guesses_within_a_session_is_in_the_audit_log(
    database_url: str, pool: Pool, tenant: Tenant
) -> None:
    """Like somebody who found a browser signed in."""
    await make_person(pool, tenant, "ana@example.com")
    async with running(database_url) as api:
        browser = Browser(api.base_url)
        try:
            await browser.sign_in("ana@example.com")
            await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
            page = await browser.asked_again("/account/password")
            for _ in range(tries.FREE_ACCOUNT):
                page = await browser.submit(page, "/prove?next=%2Faccount%2Fpassword", _password="wrong")
                assert page.status == 422, page.words
        finally:
            await browser.session.close()
    # A process writes its counts when it ends.
    rows = await pool.fetch("SELECT object_id, count FROM audit_log WHERE action = 'authentication.failed'")
    assert [tuple(row) for row in rows] == [("127.0.0.1", tries.FREE_ACCOUNT)]
    # The person is told as of guesses at the door.
    told = await pool.fetch("SELECT kind, name FROM notices WHERE kind LIKE '%sign_in%'")
    assert [tuple(row) for row in told] == [("sign_in.failed", "127.0.0.1")]


async def test_a_sign_in_that_took_too_long_is_no_failure_at_either_door(
    database_url: str, pool: Pool, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_operator(pool, "ana@example.com")
    await with_app(pool, await make_person(pool, tenant, "ana@example.com"))
    monkeypatch.setattr(signing_in, "CODE_WITHIN", -1)
    async with running(database_url) as api:
        browser = Browser(api.base_url)
        try:
            for door in ("/login", "/console/login"):
                page = await browser.submit(await browser.get(door), door, email="ana@example.com", password=PASSWORD)
                page = await browser.submit(page, f"{door}/code", code="000000")
                assert (page.status, "It took too long." in page.words) == (422, True), page.words
        finally:
            await browser.session.close()
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'authentication.failed'") == 0


def test_a_browser_carries_one_mark_of_each_of_the_last_people() -> None:
    people = [uuid7() for _ in range(MOST_MARKS + 1)]
    carried = ""
    for user_id in (*people, people[-1], people[1]):
        before, carried = carried, signing_in.mark(MARKS, user_id=user_id, browser=carried)
        assert carried.partition("_")[0] not in before  # each sign-in starts a new count
    known = [signing_in.is_known(MARKS, user_id=user_id, browser=carried) for user_id in people]
    assert known == [False] + [True] * MOST_MARKS
    assert len(carried) < 500
