"""Access to the console: it starts only with a link, a second factor is mandatory, and cookies work only in their
realm."""

from __future__ import annotations

import asyncio
import uuid

import pyotp

from heliograph.base.actor import SYSTEM
from heliograph.base.crypto import seal
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.people import factors, links, passwords
from heliograph.people.operators import accounts
from heliograph.people.passkeys import keeping
from heliograph.people.passkeys.challenges import StoredPasskey
from tests.api.conftest import Tenant
from tests.api.test_guard import BLOCKED
from tests.hooks import until
from tests.pages.conftest import make_person, wrong_code
from tests.ports import held_port

from .conftest import PASSWORD, Browser, make_operator, running, set_up, signed_in


async def test_from_the_link_to_the_console(pool: Pool, browser: Browser, other_browser: Browser) -> None:
    _, token = await make_operator(pool, "eva@example.com")
    page = await browser.get("/console")
    assert page.path == "/console/login"
    assert page.status == 200
    secret = await set_up(browser, token)
    # The last step leads to what an installation needs first, and that to an existing page.
    page = await browser.get("/console/setup/next")
    for path in ("/", "/console/organizations/new", "/console/suppliers/new", "/console"):
        assert f'href="{path}"' in page.text
        assert (await browser.get(path)).status == 200
    page = await browser.get("/console")
    assert (page.status, page.path) == (200, "/console/now"), page.words
    # The link is used up.
    page = await other_browser.submit(await other_browser.get("/console/setup"), "/console/setup", link=token)
    assert page.status == 422
    assert "used already" in page.words
    # From another browser: the password alone is only half of a sign-in.
    page = await other_browser.get("/console/operators")
    assert page.path == "/console/login?next=/console/operators"
    page = await other_browser.submit(page, "/console/login", email="eva@example.com", password=PASSWORD)
    assert "Code from your authenticator app" in page.words
    # A code is valid once; the next one belongs to the next time step.
    wrong = await other_browser.submit(page, "/console/login/code", code=wrong_code(pyotp.TOTP(secret)))
    assert wrong.status == 422
    later = pyotp.TOTP(secret).generate_otp(factors.clock.milliseconds() // 1000 // factors.STEP + 1)
    page = await other_browser.submit(page, "/console/login/code", code=later)
    assert (page.status, page.path) == (200, "/console/operators"), page.words
    page = await other_browser.submit(page, "/console/logout")
    assert page.path == "/console/login"
    assert (await other_browser.get("/console/operators")).path.startswith("/console/login")
    async with pool.acquire() as conn:
        told = [row["action"] for row in await conn.fetch("SELECT action FROM audit_log ORDER BY id")]
    assert told.count("operator.signed_in") == 2
    assert {"operator.added", "user.link_made", "user.password_changed", "user.factor_changed"} <= set(told)


async def test_a_session_without_a_factor_gets_the_setup_and_nothing_else(
    pool: Pool, browser: Browser, other_browser: Browser
) -> None:
    user, token = await make_operator(pool, "eva@example.com")
    page = await browser.submit(await browser.get("/console/setup"), "/console/setup", link=token)
    token_of = page.form("/console/setup/account")["_token"]
    for path in ("/console", "/console/approvals", "/console/operators", "/console/account", "/console/setup/next"):
        assert (await browser.get(path)).path == "/console/setup/factor", path
    page = await browser.post("/console/operators", {"_token": token_of, "email": "x@example.com", "role": "root"})
    assert page.path == "/console/setup/factor"
    # A password is set, and the factor never: guessing the password gets nobody in.
    async with pool.acquire() as conn:
        assert len(await accounts.list_all(conn)) == 1
        found = await conn.fetchrow("SELECT * FROM users WHERE id = $1", user.id)
        assert found is not None
        assert found["password"] is None
        await conn.execute("UPDATE users SET password = $2 WHERE id = $1", user.id, await passwords.hashed(PASSWORD))
    page = await other_browser.submit(
        await other_browser.get("/console/login"), "/console/login", email="eva@example.com", password=PASSWORD
    )
    assert page.status == 422
    assert "Ask for a new link" in page.words
    assert (await other_browser.get("/console/setup/factor")).path.startswith("/console/login")


async def test_no_cookie_of_one_realm_opens_the_other(
    pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser
) -> None:
    # The same person is an owner and a root operator: still two sessions.
    await make_operator(pool, "eva@example.com")
    owner = await make_person(pool, tenant, "eva@example.com")
    page = await browser.sign_in("eva@example.com")
    assert page.path == "/"
    async with pool.acquire() as conn:
        token = await links.make(conn, SYSTEM, user_id=owner.id, realm="console")
    assert (await browser.get("/console/operators")).path.startswith("/console/login")
    # The session's value in the console's cookie is not one of its sessions.
    jar = {cookie.key: cookie.value for cookie in browser.session.cookie_jar}
    assert "hg" in jar
    assert "hgc" not in jar
    other_browser.session.cookie_jar.update_cookies({"hgc": jar["hg"]})
    assert (await other_browser.get("/console/operators")).path.startswith("/console/login")
    # Nor does a link for the console sign in to the dashboard.
    assert (await other_browser.enter(token)).status == 422
    await set_up(other_browser, token)
    jar = {cookie.key: cookie.value for cookie in other_browser.session.cookie_jar}
    assert "hgc" in jar
    assert "hg" not in jar
    assert (await other_browser.get("/messages")).path.startswith("/login")
    async with pool.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM operator_sessions") == 1


async def test_a_member_with_a_factor_is_no_operator(
    pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser
) -> None:
    _, token = await make_operator(pool, "eva@example.com")
    secret = await set_up(browser, token)
    async with pool.acquire() as conn:
        await conn.execute("DELETE FROM operators")
    page = await other_browser.submit(
        await other_browser.get("/console/login"), "/console/login", email="eva@example.com", password=PASSWORD
    )
    later = pyotp.TOTP(secret).generate_otp(factors.clock.milliseconds() // 1000 // factors.STEP + 1)
    page = await other_browser.submit(page, "/console/login/code", code=later)
    assert page.status == 422
    assert "not correct" in page.words
    assert (await browser.get("/console/approvals")).path.startswith("/console/login"), "their session went, too"


async def test_the_dashboard_sets_up_no_factor_that_opens_the_console(
    pool: Pool, settings: Settings, browser: Browser, other_browser: Browser
) -> None:
    # Somebody who has only passkeys, or has not reached the second step: the dashboard accepts a password.
    user, token = await make_operator(pool, "eva@example.com")
    page = await browser.submit(await browser.get("/console/setup"), "/console/setup", link=token)
    await browser.submit(page, "/console/setup/account", name="Eva", password=PASSWORD)
    page = await other_browser.sign_in("eva@example.com")
    assert page.path == "/", page.words
    page = await other_browser.get("/account")
    assert "Eva" in page.text, page.words
    fields = {"_token": page.form("/account")["_token"]}
    for path in ("/account/factor", "/account/passkeys/new"):
        page = await other_browser.get(path)
        assert page.path == "/account", path
        assert "set up authenticator apps and passkeys in the console" in page.words
    # A form from before they became an operator, or one sent without a page.
    secret = factors.new_secret()
    sealed = seal(factors.seal_key(settings), secret.encode(), f"offer/{user.id}").hex()
    given = {"sealed": sealed, "code": pyotp.TOTP(secret).now()}
    for path, form in (("/account/factor", given), ("/account/passkeys", {"name": "Mallory's"})):
        page = await other_browser.post(path, fields | form)
        assert page.path == "/account", (path, page.words)
        assert "set up authenticator apps and passkeys in the console" in page.words
    async with pool.acquire() as conn:
        assert await conn.fetchval("SELECT totp IS NULL FROM users WHERE id = $1", user.id)
        # A former operator sets up their own account.
        await conn.execute("DELETE FROM operators")
    page = await other_browser.post("/account/factor", fields | given)
    assert 'class="codes"' in page.text, page.words


async def test_no_factor_is_set_up_while_somebody_becomes_an_operator(
    pool: Pool, tenant: Tenant, settings: Settings, other_browser: Browser
) -> None:
    """Whoever created the account may have left a sign-in in progress, which would open the console afterwards."""
    user = await make_person(pool, tenant, "eva@example.com")
    token = (await other_browser.sign_in("eva@example.com")).form("/logout")["_token"]
    secret = factors.new_secret()
    sealed = seal(factors.seal_key(settings), secret.encode(), f"offer/{user.id}").hex()
    form = {"_token": token, "sealed": sealed, "code": pyotp.TOTP(secret).now()}

    async def waits() -> bool:
        return bool(await pool.fetchval(BLOCKED))

    async with pool.acquire() as conn, conn.transaction():
        await accounts.add(conn, SYSTEM, user_id=user.id, email=user.email, role="root")
        asking = asyncio.create_task(other_browser.post("/account/factor", form))
        await until(waits)
    page = await asking
    assert 'class="codes"' not in page.text, page.words
    assert await pool.fetchval("SELECT totp IS NULL FROM users WHERE id = $1", user.id)


async def test_who_made_the_account_of_a_later_operator_is_none(
    pool: Pool, tenant: Tenant, settings: Settings, browser: Browser, other_browser: Browser
) -> None:
    """An organization can invite any address, and whoever has the link creates the account."""
    user = await make_person(pool, tenant, "eva@example.com")
    key, secret = factors.seal_key(settings), factors.new_secret()
    async with pool.acquire() as conn:
        codes = await factors.enable(conn, SYSTEM, key, user_id=user.id, secret=secret, given=pyotp.TOTP(secret).now())
        made = StoredPasskey(b"mallory's", b"key", 0)
        await keeping.add(conn, SYSTEM, user_id=user.id, made=made, asked=b"once", name="Mallory's")
    page = await other_browser.sign_in("eva@example.com")
    page = await other_browser.submit(page, "/login/code", code=codes[0])
    assert (await other_browser.get("/account")).status == 200
    _, token = await make_operator(pool, "eva@example.com")
    async with pool.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM sessions") == 0
    page = await other_browser.submit(
        await other_browser.get("/console/login"), "/console/login", email="eva@example.com", password=PASSWORD
    )
    assert "not correct" in page.words
    async with pool.acquire() as conn:
        assert await keeping.list_all(conn, user_id=user.id) == []
        assert await factors.codes_left(conn, user_id=user.id) == 0
    # The operator uses their link, and is a member as before.
    await set_up(browser, token, password="another one that is long")
    assert (await browser.get("/console/operators")).status == 200
    async with pool.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM memberships WHERE user_id = $1", user.id) == 1
        # Adding them once more changes nothing.
        await accounts.add(conn, SYSTEM, user_id=user.id, email="eva@example.com", role="support")
    assert (await browser.get("/console/operators")).status == 200


async def test_forms_of_the_dashboard_are_foreign_here(
    pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "ana@example.com")
    page = await browser.sign_in("ana@example.com")
    token = (await browser.get("/account")).form("/account")["_token"]
    await signed_in(pool, other_browser)
    fields = {"_token": token, "email": "mallory@example.com", "role": "root"}
    page = await other_browser.post("/console/operators", fields)
    assert page.status == 403
    page = await other_browser.post("/console/operators", fields, Origin="http://evil.example")
    assert page.status == 403
    async with pool.acquire() as conn:
        assert len(await accounts.list_all(conn)) == 1


async def test_sessions_end_everywhere(pool: Pool, root: Browser, other_browser: Browser) -> None:
    async with pool.acquire() as conn:
        user_id = await conn.fetchval("SELECT user_id FROM operators")
        token = await links.make(conn, SYSTEM, user_id=user_id, realm="console")
    await other_browser.submit(await other_browser.get("/console/setup"), "/console/setup", link=token)
    page = await root.get("/console/account")
    assert page.status == 200
    assert "this one" in page.words
    page = await root.submit(page, "/console/account/sessions/end")
    assert page.status == 200
    async with pool.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM operator_sessions") == 1


async def test_a_wall_keeps_its_session_and_no_other_page_that_is_left_open_does(
    pool: Pool, root: Browser, other_browser: Browser
) -> None:
    user = await signed_in(pool, other_browser, email="rui@example.com")
    await pool.execute("UPDATE operator_sessions SET seen_at = seen_at - interval '1 hour'")
    used = "SELECT bool_or(seen_at > now() - interval '1 hour') FROM operator_sessions WHERE user_id {} $1"
    part = {"HX_Request": "true", "X_Seen": "0"}
    assert (await root.get("/console/messages", **part)).status == 200
    assert (await root.get("/console/state", HX_Request="true")).status == 200
    # Noted in order: what the first one did would be noted by then.
    assert (await other_browser.get("/console/now", **part)).status == 200
    await until(lambda: pool.fetchval(used.format("="), user.id))
    assert not await pool.fetchval(used.format("<>"), user.id)


async def test_an_address_of_its_own(database_url: str, pool: Pool) -> None:
    with held_port() as port:
        settings = {"console_listen": f"127.0.0.1:{port}"}
        async with running(database_url, **settings) as api:
            await _apart(pool, Browser(api.base_url), Browser(f"http://127.0.0.1:{port}"))


async def _apart(pool: Pool, here: Browser, there: Browser) -> None:
    try:
        page = await there.get("/console/login")
        assert page.status == 200
        style = page.text.partition('href="/assets/')[2].partition('"')[0]
        assert (await there.get(f"/assets/{style}")).status == 200
        assert (await here.get("/console/login")).status == 404
        # Somebody who can only reach the console reads the runbook and its stylesheet there.
        guide = await there.get("/guide/runbook")
        assert (guide.status, "HeliographDown" in guide.words) == (200, True)
        sheet = guide.text.partition('href="/docs/')[2].partition('"')[0]
        assert sheet.endswith("pages.css")
        assert (await there.get(f"/docs/{sheet}")).status == 200
        for path in ("/v1/health", "/login", f"/messages/{uuid.uuid4()}"):
            assert (await there.get(path)).status == 404, path
        _, token = await make_operator(pool, "eva@example.com")
        await set_up(there, token)
        assert (await there.get("/console")).path == "/console/now"
    finally:
        await here.session.close()
        await there.session.close()


async def test_name_language_and_zone_are_the_operators_own(pool: Pool, root: Browser) -> None:
    page = await root.get("/console/account")
    wrong = await root.submit(page, "/console/account", name="Eva Lima", time_zone="Mars/Olympus")
    assert (wrong.status, "There is no such time zone" in wrong.words) == (422, True)
    wrong = await root.submit(page, "/console/account", name="", time_zone="Mars/Olympus")
    assert ('id="name-wrong"' in wrong.text, 'id="time_zone-wrong"' in wrong.text) == (True, True)
    page = await root.submit(page, "/console/account", name="Eva Lima", time_zone="Africa/Maputo", language="pt")
    assert page.path == "/console/account"
    assert "A minha conta" in page.words
    assert await pool.fetchval("SELECT name FROM users") == "Eva Lima"
    told = await pool.fetchrow("SELECT who, organization_id FROM audit_log WHERE action = 'user.changed'")
    assert tuple(told) == ("operator", None)
