"""Signing in and out: by link, by password, with a code; what ends a session, and what a stranger learns."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
import time
from datetime import timedelta

import pytest
from yarl import URL

from heliograph.base.actor import SYSTEM
from heliograph.base.database.pool import Pool
from heliograph.pages import cookies, forgery
from heliograph.people import memberships, passwords, sessions, tries, users
from heliograph.people.noticing.guessing import Guesses, Step
from heliograph.people.passkeys import keeping
from heliograph.people.passkeys.challenges import StoredPasskey
from heliograph.people.sessions import SignedInUser
from tests.hooks import until

from .conftest import PASSWORD, Api, Browser, Tenant, app_of, link_for, make_person, offered_app, wrong_code

FAILED = "E-mail or password is not correct."


@pytest.fixture
async def owner(pool: Pool, tenant: Tenant, browser: Browser) -> Browser:
    """An owner's browser, signed in on the page, which these tests are about."""
    await make_person(pool, tenant, "ana@example.com")
    page = await browser.sign_in("ana@example.com")
    assert (page.status, page.path) == (200, "/"), page.words
    return browser


async def test_a_link_signs_in_once(pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser) -> None:
    user = await make_person(pool, tenant, "ana@example.com", password=None)
    token = await link_for(pool, user, tenant)
    page = await browser.enter(f"http://elsewhere/enter#{token}")
    assert (page.status, page.path) == (200, "/")
    assert "Acme" in page.words
    assert "You have no password yet" in page.words
    page = await other_browser.enter(token)
    assert page.status == 422
    assert "This link was used already" in page.words
    assert (await other_browser.get("/account")).path == "/login?next=/account"


async def test_who_has_no_password_is_told_how_to_confirm_before_they_sign_out(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    """Otherwise nothing would let them in again."""
    user = await make_person(pool, tenant, "ana@example.com", password=None)
    await browser.enter(await link_for(pool, user, tenant))
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    page = await browser.asked_again("/keys/new")
    assert (page.status, "heliograph user link ana@example.com" in page.words) == (403, True), page.words
    assert "Sign out" not in page.words
    # If they are signed in, the new link replaces that session.
    page = await browser.enter(await link_for(pool, user, tenant))
    assert (page.status, page.path) == (200, "/")
    assert (await browser.get("/account/password")).status == 200


async def test_a_newer_link_ends_the_one_before(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    user = await make_person(pool, tenant, "ana@example.com", password=None)
    old, new = await link_for(pool, user, tenant), await link_for(pool, user, tenant)
    assert (await browser.enter(old)).status == 422
    assert (await browser.enter(new)).path == "/"


async def test_a_password_signs_in_and_leads_back(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await make_person(pool, tenant, "ana@example.com")
    page = await browser.get("/account")
    assert page.path == "/login?next=/account"
    page = await browser.submit(page, "/login", email=" ANA@example.com ", password=PASSWORD)
    assert page.path == "/account"
    assert page.headers["cache-control"] == "no-store"
    page = await browser.submit(page, "/logout")
    assert page.path == "/login"
    assert (await browser.get("/account")).path == "/login?next=/account"


async def test_an_address_of_others_is_not_led_to(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await make_person(pool, tenant, "ana@example.com")
    for wanted in ("//evil.example/", "https://evil.example/", "/\\evil.example", "/a\nb"):
        page = await browser.submit(
            await browser.get("/login"), "/login", email="ana@example.com", password=PASSWORD, next=wanted
        )
        assert page.path == "/", wanted
        await browser.submit(page, "/logout")


async def test_whoever_signs_in_takes_the_place_of_who_was(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    rui = await make_person(pool, tenant, "rui@example.com")
    page = await owner.enter(await link_for(pool, rui, tenant))
    assert "Rui" in page.words
    assert await pool.fetchval("SELECT count(*) FROM sessions") == 1
    # The path to return to may be in any script.
    await owner.submit(page, "/logout")
    page = await owner.submit(
        await owner.get("/login"), "/login", email="rui@example.com", password=PASSWORD, next="/messages?q=ação"
    )
    assert (page.status, "Messages" in page.words) == (200, True)


async def test_whatever_is_wrong_there_is_one_sentence(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await make_person(pool, tenant, "ana@example.com")
    await make_person(pool, tenant, "new@example.com", password=None)
    for email, password in (
        ("ana@example.com", "wrong"),
        ("nobody@example.com", PASSWORD),
        ("new@example.com", PASSWORD),
        ("new@example.com", ""),
        ("no address", "x" * 5000),
    ):
        page = await browser.sign_in(email, password)
        assert (page.status, FAILED in page.words) == (422, True), email
        assert f'value="{email}"' in page.text  # what was typed is kept
        assert PASSWORD not in page.text


@pytest.mark.usefixtures("pauses_last")
async def test_failures_make_the_next_try_wait_known_account_or_not(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    await make_person(pool, tenant, "ana@example.com")
    for email in ("ana@example.com", "nobody@example.com"):
        for _ in range(tries.FREE_ACCOUNT):
            assert FAILED in (await browser.sign_in(email, "wrong")).words
        page = await browser.sign_in(email, "wrong")
        assert (page.status, "Too many attempts" in page.words) == (422, True)
    # The delay passes by itself, and the right password ends it.
    await pool.execute("UPDATE sign_in_tries SET tried_at = now() - interval '2 minutes'")
    assert (await browser.sign_in("ana@example.com")).path == "/"
    assert await pool.fetchval("SELECT count(*) FROM sign_in_tries WHERE tries > 0") == 2  # the address, and nobody


async def test_tries_to_sign_in_as_somebody_are_told_to_them_and_to_owners(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """Nobody else learns of it, and nothing is written while an attempt is answered."""
    await make_person(pool, tenant, "rui@example.com", "sender")
    told = "SELECT kind, name, user_id = (SELECT id FROM users WHERE email = 'ana@example.com') FROM notices"
    told += " WHERE kind LIKE '%sign_in%' ORDER BY kind"
    for _ in range(tries.FREE_ACCOUNT - 1):
        await other_browser.sign_in("rui@example.com", "wrong")
        await other_browser.sign_in("nobody@example.com", "wrong")
    for email in ("nobody@example.com", "rui@example.com"):
        await other_browser.sign_in(email, "wrong")

    async def rung() -> bool:
        return len(await pool.fetch(told)) == 2

    await until(rung)
    assert await pool.fetch(told) == [("member.sign_in_failed", "Rui", True), ("sign_in.failed", "127.0.0.1", False)]
    page = await owner.get("/notices")
    assert "Several attempts to sign in as Rui have failed. new Last from 127.0.0.1." in page.words
    await pool.execute("UPDATE sign_in_tries SET tried_at = now() - interval '2 minutes'")
    await other_browser.sign_in("rui@example.com")
    page = await other_browser.get("/notices")
    assert "Several attempts to sign in as you have failed." in page.words
    assert "sign in as Rui" not in page.words
    assert "if it was not you, change your password" in page.words


async def test_guessed_codes_say_that_the_password_is_known(pool: Pool, tenant: Tenant) -> None:
    ana, rui = [await make_person(pool, tenant, f"{name}@example.com") for name in ("ana", "rui")]
    guesses = Guesses(pool)
    noted: list[tuple[Step, int]] = [("code", 5), ("password", 9), ("password", 4)]
    for step, tried in noted:
        guesses.note(rui.id, step, address="203.0.113.7", tries=tried)
    await guesses.noted.write()
    rows = await pool.fetch(
        "SELECT kind, object, facts, user_id FROM notices WHERE kind LIKE '%sign_in%' ORDER BY 1, 2"
    )
    assert [(row["kind"], row["user_id"]) for row in rows] == [
        ("member.sign_in_failed", ana.id), ("sign_in.failed", rui.id), ("sign_in.failed", rui.id),
    ]  # fmt: skip
    assert ['"step":"code"' in row["facts"] for row in rows] == [True, True, False]
    guesses.note(rui.id, "code", address="203.0.113.7", tries=6)  # one cause is reported once an hour
    await guesses.noted.write()
    assert await pool.fetchval("SELECT count(*) FROM notices WHERE kind LIKE '%sign_in%'") == 3


async def test_owners_who_were_told_of_guesses_are_told_that_one_was_right(pool: Pool, tenant: Tenant) -> None:
    await make_person(pool, tenant, "ana@example.com")
    rui = await make_person(pool, tenant, "rui@example.com")
    guesses = Guesses(pool)
    told = "SELECT facts FROM notices WHERE kind = 'member.sign_in_failed' ORDER BY id"
    steps: list[Step] = ["password", "code"]
    for step in steps:
        guesses.note(rui.id, step, address="203.0.113.7", tries=5)
        await guesses.noted.write()
    assert [f'"step":"{step}"' in row["facts"] for step, row in zip(steps, await pool.fetch(told), strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("is_code", "waits", "forgotten"),
    [
        (False, [60, 60, 60], timedelta(minutes=16)),
        # Forty a day, so that somebody who has the password needs decades to hit one of the three codes valid at a
        # time.
        (True, [60, 120, 240, 480, 960, 1920, 3600, 3600], timedelta(hours=25)),
    ],
)
@pytest.mark.usefixtures("pauses_last")
async def test_waits_double_to_a_bound_and_are_forgotten(
    pool: Pool, is_code: bool, waits: list[int], forgotten: timedelta
) -> None:
    async def count() -> int:
        async with pool.acquire() as conn:
            try:
                await tries.count(conn, account="a", address=None if is_code else "203.0.113.7", is_code=is_code)
            except tries.TooManyTries as refusal:
                return int(refusal.details["retry_after"])
            return 0

    async def later(by: timedelta) -> None:
        await pool.execute("UPDATE sign_in_tries SET tried_at = tried_at - $1::interval", by)

    for _ in range(tries.FREE_ACCOUNT - 1):
        assert await count() == 0
    for wait in waits:
        assert await count() == 0
        # Some of it may be over.
        assert wait - 30 <= await count() <= wait
        await later(timedelta(seconds=wait))
    await later(forgotten)
    assert (await count(), await count()) == (0, 0)


@pytest.mark.parametrize("is_code", [False, True])
@pytest.mark.usefixtures("pauses_last")
async def test_nobody_waits_for_the_time_that_a_clock_showed_before_it_was_set_back(pool: Pool, is_code: bool) -> None:
    """After failures under a clock that was a day ahead, the right password was refused for a day."""

    async def count() -> int:
        async with pool.acquire() as conn:
            return await tries.count(conn, account="a", is_code=is_code)

    for _ in range(tries.FREE_ACCOUNT):
        await count()
    with pytest.raises(tries.TooManyTries):
        await count()
    await pool.execute("UPDATE sign_in_tries SET tried_at = tried_at + interval '1 day'")
    assert await count() == tries.FREE_ACCOUNT + 1
    # What was counted stays counted.
    with pytest.raises(tries.TooManyTries):
        await count()


@pytest.mark.usefixtures("pauses_last")
async def test_a_thousand_tries_at_once_are_not_free(pool: Pool) -> None:
    async def one() -> bool:
        async with pool.acquire() as conn:
            try:
                await tries.count(conn, account="a", address="203.0.113.7")
            except tries.TooManyTries:
                return False
            return True

    counted = await asyncio.gather(*(one() for _ in range(40)))
    assert sum(counted) == tries.FREE_ACCOUNT


async def test_two_who_try_at_once_do_not_wait(pool: Pool) -> None:
    """Of two colleagues behind one address, one used to be told of too many failures when there had been none."""
    async with pool.acquire() as first, pool.acquire() as second:
        transaction = second.transaction()
        await transaction.start()
        await second.fetchval("SELECT now()")  # it began earlier, and reaches the row later
        await tries.count(first, account="a", address="203.0.113.7")
        await tries.count(second, account="b", address="203.0.113.7")
        await transaction.commit()
    assert await pool.fetchval("SELECT max(tries) FROM sign_in_tries") == 2


async def test_a_code_is_asked_for_and_good_once(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page, app = await offered_app(owner)
    wrong = await owner.submit(page, "/account/factor", code=wrong_code(app))
    assert (wrong.status, app_of(wrong).secret) == (422, app.secret)
    code = app.now()
    page = await owner.submit(wrong, "/account/factor", code=code)
    codes = re.findall(r"<li>([a-z2-9]{4}-[a-z2-9]{4}-[a-z2-9]{4})</li>", page.text)
    assert len(set(codes)) == 10
    # Reloaded, the page shows the same ones: whoever has printed them has those that count.
    page = await owner.submit(wrong, "/account/factor", code=code)
    assert re.findall(r"<li>([a-z2-9]{4}-[a-z2-9]{4}-[a-z2-9]{4})</li>", page.text) == codes
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'user.factor_changed'") == 1
    assert app.secret.encode() not in await pool.fetchval("SELECT totp FROM users")
    await owner.submit(await owner.get("/account"), "/logout")

    page = await owner.sign_in("ana@example.com")
    assert (page.status, page.path) == (200, "/login")
    assert (await owner.get("/account")).path == "/login?next=/account"  # half a sign-in is none
    # The next time step, which may have begun, has another one.
    used = await owner.submit(page, "/login/code", code=code)
    assert used.status == 422  # it turned the app on already
    page = await owner.submit(used, "/login/code", code=codes[0].upper().replace("-", " "))  # as copied from paper
    assert page.path == "/"
    await owner.submit(page, "/logout")
    page = await owner.submit(await owner.sign_in("ana@example.com"), "/login/code", code=codes[0])
    assert page.status == 422
    ticket = page.form("/login/code")["ticket"]
    forged = await owner.post("/login/code", {"ticket": ticket[:-1] + ("0" if ticket[-1] != "0" else "1"), "code": "1"})
    assert (forged.status, "It took too long" in forged.words) == (422, True)


async def test_two_tabs_that_wait_for_a_sign_in_both_get_one(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    """The form of the second one was refused as foreign."""
    await make_person(pool, tenant, "ana@example.com")
    tabs = [await browser.get(f"/login?next=/{where}") for where in ("messages", "contacts")]
    for tab, where in zip(tabs, ("messages", "contacts"), strict=True):
        page = await browser.submit(tab, "/login", email="ana@example.com", password=PASSWORD)
        assert (page.status, page.path) == (200, f"/{where}"), page.words
    assert await pool.fetchval("SELECT count(*) FROM sessions") == 1


async def test_a_write_comes_from_a_page_of_ours(owner: Browser) -> None:
    form = (await owner.get("/account")).form("/account")
    for fields, headers in (
        (form | {"_token": "00" * 48}, {}),
        (form | {"_token": "no hex"}, {}),
        ({name: value for name, value in form.items() if name != "_token"}, {}),
        (form, {"Origin": "http://evil.example"}),
        (form, {"Origin": "null"}),
        (form, {"Sec_Fetch_Site": "cross-site"}),
        (form, {"Sec_Fetch_Site": "same-site"}),
    ):
        page = await owner.post("/account", fields | {"name": "Eve"}, **headers)
        assert (page.status, "did not come from one of our pages" in page.words) == (403, True)
    assert "Eve" not in (await owner.get("/account")).text
    assert (await owner.post("/account", form | {"name": "Ana Maria"})).path == "/account"
    assert "Ana Maria" in (await owner.get("/account")).words


@pytest.mark.parametrize("ago", ["11 minutes", "-3 days"])  # or before the clock was set back
async def test_a_dangerous_act_asks_again_and_loses_nothing(pool: Pool, owner: Browser, ago: str) -> None:
    await pool.execute(f"UPDATE sessions SET proved_at = now() - interval '{ago}'")
    form = {"_token": (await owner.get("/account")).form("/account")["_token"], "password": "a new long passphrase"}
    page = await owner.asked_again("/account/password")
    page = await owner.post("/account/password", form)
    assert (page.status, "a new long passphrase" in page.text) == (403, True)
    page = await owner.submit(page, "/account/password", _password="wrong")
    assert (page.status, "The password is not correct." in page.words) == (422, True)
    page = await owner.submit(page, "/account/password", _password=PASSWORD)
    assert (page.path, "The password is changed" in page.words) == ("/account", True)
    await owner.submit(page, "/logout")
    assert (await owner.sign_in("ana@example.com")).status == 422
    assert (await owner.sign_in("ana@example.com", "a new long passphrase")).path == "/"


async def test_a_password_that_is_guessed_first_is_refused(owner: Browser) -> None:
    for weak in ("short", "aaaaaaaaaaaaaaa", "password123456", "qwertyuiop1234", "123456789012", "Ana123456789"):
        page = await owner.submit(await owner.get("/account/password"), "/account/password", password=weak)
        assert page.status == 422, weak
        assert weak not in page.text


@pytest.mark.parametrize("how", ["password", "others", "one", "membership", "person"])
async def test_a_session_ends_everywhere_within_a_second(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, how: str
) -> None:
    await make_person(pool, tenant, "rui@example.com")
    await other_browser.sign_in("ana@example.com")
    assert (await other_browser.get("/account")).path == "/account"
    async with pool.acquire() as conn:
        user = await users.find(conn, email="ana@example.com")
        if how == "membership":
            await memberships.remove(conn, tenant.actor, user_id=user.id)
        elif how == "person":
            await users.remove(conn, tenant.actor, id=user.id)
    page = await owner.get("/account")
    if how == "password":
        await owner.submit(await owner.get("/account/password"), "/account/password", password="a new long passphrase")
    elif how == "others":
        assert (await owner.submit(page, "/account/sessions/end")).path == "/account"
    elif how == "one":
        action = re.search(r"/account/sessions/[0-9a-f-]{36}/end", page.text)
        assert action
        assert (await owner.submit(page, action[0])).path == "/account"
    ended = asked = time.monotonic()
    while (await other_browser.get("/account")).path != "/login?next=/account":
        assert asked - ended < 1.0
        asked = time.monotonic()
    if how in ("password", "others", "one"):
        assert (await owner.get("/account")).path == "/account"


async def test_sessions_end_by_themselves(pool: Pool, tenant: Tenant) -> None:
    user = await make_person(pool, tenant, "ana@example.com", password=None)

    async def known(token: str) -> SignedInUser | None:
        async with pool.acquire() as conn:
            return next(iter((await sessions.authenticate_many(conn, [sessions.hash_secret(token)])).values()), None)

    async with pool.acquire() as conn:
        short = await sessions.open_for(conn, user_id=user.id, address="", agent="", how="link")
        long = await sessions.open_for(conn, user_id=user.id, address="", agent="", how="link", is_kept=True)
    assert await known(short)
    await pool.execute("UPDATE sessions SET seen_at = seen_at - interval '13 hours'")
    assert await known(short) is None
    assert await known(long)
    await pool.execute("UPDATE sessions SET ends_at = now()")
    assert await known(long) is None
    await pool.execute(sessions.FORGET, await pool.fetchval("SELECT clock_timestamp()"), 10)
    assert await pool.fetchval("SELECT count(*) FROM sessions") == 0


async def test_what_is_kept_gives_nobody_away(pool: Pool, owner: Browser) -> None:
    cookie = next(iter(owner.session.cookie_jar))
    assert (cookie.key, cookie["httponly"], cookie["samesite"]) == ("hg", True, "Lax")
    rows = await pool.fetch("SELECT token_hash FROM sessions")
    assert [bytes(row[0]) for row in rows] == [sessions.hash_secret(cookie.value)]
    assert (await pool.fetchval("SELECT password FROM users")).startswith("$argon2id$v=19$m=19456,t=2,p=1$")


async def test_away_from_this_machine_only_https_signs_in(api: Api, pool: Pool, tenant: Tenant) -> None:
    await make_person(pool, tenant, "ana@example.com")
    fields = f"email=ana%40example.com&password={PASSWORD.replace(' ', '+')}".encode()
    for origin, status, cookie in (
        (b"http://sms.example.com", b" 403 ", b""),
        (b"https://sms.example.com", b" 303 ", b"__Host-hg="),
    ):
        answer = await api.raw(
            b"POST /login HTTP/1.1\r\nhost: sms.example.com\r\norigin: %b\r\ncontent-length: %d\r\n"
            b"content-type: application/x-www-form-urlencoded\r\nconnection: close\r\n\r\n%b"
            % (origin, len(fields), fields)
        )
        assert status in answer.split(b"\r\n")[0]
        assert cookie in answer
        assert (b"; Secure" in answer) == bool(cookie)


async def test_a_form_of_a_page_that_came_over_plain_http_is_refused_where_pages_come_by_https(api: Api) -> None:
    for host, origin, status in (
        (b"sms.example.com", b"http://sms.example.com", b" 403 "),
        (b"sms.example.com", b"https://sms.example.com", b" 303 "),
        # It begins like an address of this machine, and anybody may own it.
        (b"127.example.com", b"http://127.example.com", b" 403 "),
        (b"127.0.0.1", b"http://127.0.0.1", b" 303 "),
    ):
        answer = await api.raw(
            b"POST /preferences HTTP/1.1\r\nhost: %b\r\norigin: %b\r\ncontent-length: 10\r\n"
            b"content-type: application/x-www-form-urlencoded\r\nconnection: close\r\n\r\ntheme=dark" % (host, origin)
        )
        assert status in answer.split(b"\r\n")[0], (host, origin)
        assert (b"needs https" in answer) == (status == b" 403 "), (host, origin)


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("127.0.0.1:8000", True),
        ("127.255.0.9", True),
        ("[::1]:8000", True),
        ("127.example.com", False),
        ("127.0.0.1.example.com", False),
        ("example.localhost", False),
        ("localhost.example.com", False),
        ("192.0.2.1", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_only_localhost_and_addresses_of_this_machine_are_this_machine(host: str, is_here: bool) -> None:
    assert forgery.is_loopback(host) == is_here


async def test_the_first_paint_has_the_theme_and_language_that_were_chosen(browser: Browser) -> None:
    page = await browser.get("/login", Accept_Language="pt-PT, en;q=0.5")
    assert 'lang="pt"' in page.text
    assert "data-theme" not in page.text
    page = await browser.submit(page, "/preferences", theme="dark", language="en")
    assert page.path == "/login"
    page = await browser.get("/login", Accept_Language="pt-PT")
    assert '<html lang="en" data-theme="dark"' in page.text
    # Density is stored in the same way, and separately.
    page = await browser.submit(page, "/preferences", density="compact")
    assert '<html lang="en" class="compact" data-theme="dark"' in page.text
    assert page.form("/preferences")["density"] == "compact"
    page = await browser.submit(page, "/preferences", density="comfortable", theme="system")
    assert ('class="compact"' in page.text, "data-theme" in page.text) == (False, False)
    # The address stays: where a sign-in leads, filters, and the mode, in which live messages would be sent otherwise.
    page = await browser.submit(await browser.get("/login?next=/messages%3Fq%3DAna"), "/preferences", language="pt")
    assert page.form("/login")["next"] == "/messages?q=Ana"


async def test_the_language_at_the_foot_of_a_page_is_that_of_the_account(owner: Browser) -> None:
    """An account's language comes before the browser's, so that the choice changed nothing."""
    page = await owner.submit(await owner.get("/account"), "/account", language="pt")
    older = page.form("/preferences")
    page = await owner.submit(page, "/preferences", language="en")
    assert '<html lang="en"' in page.text
    assert (await owner.get("/account")).form("/account")["language"] == "en"
    # A page that was opened before has the language that it was shown in: its theme is chosen, and no language.
    page = await owner.post("/preferences", older | {"theme": "dark"})
    assert '<html lang="en" data-theme="dark"' in page.text
    # Whoever leaves it to the browser has chosen nothing in their account.
    page = await owner.submit(await owner.get("/account"), "/account", language="")
    page = await owner.submit(page, "/preferences", language="pt")
    assert '<html lang="pt"' in page.text
    assert (await owner.get("/account")).form("/account")["language"] == ""


async def test_whoever_leaves_the_language_to_the_browser_gets_that_of_the_browser(owner: Browser) -> None:
    async def account(**changed: str) -> str:
        page = await owner.get("/account", Accept_Language="en")
        await owner.submit(page, "/account", **changed)
        return (await owner.get("/account", Accept_Language="en")).text

    assert '<html lang="pt"' in await account(language="pt")
    assert '<html lang="en"' in await account(language="")
    # Saving anything else chooses no language, and leaves the one that was chosen at the foot of a page.
    await account(name="Ana Sousa")
    assert '<html lang="pt"' in (await owner.get("/account", Accept_Language="pt")).text
    await owner.submit(await owner.get("/account"), "/preferences", language="pt")
    assert '<html lang="pt"' in await account(name="Ana Silva")


async def test_whoever_chooses_a_theme_or_folds_the_rail_stays_where_they_are(owner: Browser) -> None:
    here = "/messages?status=failed&mode=test"
    for chosen in ({"theme": "dark"}, {"rail": "folded"}, {"keys": "off"}):
        page = await owner.get(here)
        given = set(re.findall(r'name="next" value="([^"]*)"', page.text)) - {""}
        assert {html.unescape(one) for one in given} == {here}
        page = await owner.submit(page, "/preferences", **chosen)
        assert page.path == here
    # A page with longer filters than are carried along led to the front page in live mode.
    for mode, kept in (("", "/messages"), ("&mode=test", "/messages?mode=test")):
        page = await owner.get(f"/messages?sender={'x' * 2_000}{mode}")
        page = await owner.submit(page, "/preferences", theme="dark")
        assert (page.status, page.path) == (200, kept)


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("/messages/marked?mode=test", "/messages?mode=test"),
        ("/messages/0123/reveal", "/messages/0123"),
        ("/messages/a%0d%0ab/reveal", "/messages/a%0D%0Ab"),
        ("/settings/general", "/settings"),
        ("/console/messages/0123/reveal", "/console/messages/0123"),
        ("/console/lookups/0123/try", "/console/lookups/0123"),
        ("/console/organizations/0123/quota", "/console/organizations/0123"),
    ],
)
async def test_the_address_of_a_form_that_was_sent_leads_to_its_page(browser: Browser, address: str, page: str) -> None:
    async with browser.session.get(URL(browser.base_url + address, encoded=True), allow_redirects=False) as answer:
        assert (answer.status, answer.headers["location"]) == (303, page)
    async with browser.session.put(browser.base_url + address, allow_redirects=False) as answer:
        assert answer.status == 405
    assert (await browser.get("/preferences")).status == 405, "it belongs to no page"


async def test_what_is_not_there_says_so_and_tells_nothing(owner: Browser, browser: Browser) -> None:
    for method, path, status in (
        ("GET", "/account/nothing", 404),
        ("GET", "/assets/0000/pages.css", 404),
        ("GET", "/account?x=" + "a&" * 300, 400),
        ("POST", "/account/sessions/no-id/end", 404),
    ):
        token = (await owner.get("/account")).form("/account")["_token"]
        page = await (owner.get(path) if method == "GET" else owner.post(path, {"_token": token}))
        assert page.status == status, path
        assert page.headers["x-request-id"] in page.text
    page = await owner.post("/account", {"x": "a" * 70_000})
    assert page.status == 413


@pytest.mark.parametrize("name", ["[", "[::1", "a]b", "\u00bd", ""])
async def test_an_address_that_is_none_is_a_foreign_one(browser: Browser, name: str) -> None:
    """An unbalanced bracket used to be an unexpected error, shown without the policy that every page has."""
    page = await browser.post("/login", {"email": "a", "password": "b"}, Origin=f"http://{name}")
    assert (page.status, "did not come from one of our pages" in page.words) == (403, True)
    host, port = browser.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"GET /login HTTP/1.1\r\nHost: " + name.encode("latin-1") + b"\r\nConnection: close\r\n\r\n")
        said = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    head = said.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 200")
    assert b"content-security-policy" in head


@pytest.mark.usefixtures("pauses_last")
async def test_making_hashes_costs_nobody_else_a_connection(
    pool: Pool, tenant: Tenant, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight concurrent password changes used to hold all connections of the process, and messages waited for them."""
    assert pool.get_max_size() == 4
    user = await make_person(pool, tenant, "rui@example.com", password=None)
    waiting, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow(password: str) -> str:
        waiting.release()
        await go_on.wait()
        return "hash"

    monkeypatch.setattr(passwords, "hashed", slow)
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(users.set_password(pool, tenant.actor, user=user, password=PASSWORD))
        for _ in range(5):
            await waiting.acquire()
        assert await pool.fetchval("SELECT 1") == 1
        go_on.set()
    # Signed-in users cannot keep the threads busy either, even with correct passwords.
    with pytest.raises(tries.TooManyTries):
        await users.set_password(pool, tenant.actor, user=user, password=PASSWORD)
    for _ in range(tries.FREE_ACCOUNT + 1):
        form = (await owner.get("/account/password")).form("/account/password")
        page = await owner.post("/account/password", form | {"password": "a new long passphrase"})
    assert (page.status, "Too many attempts. Try again in" in page.words) == (422, True)


async def test_another_password_ends_the_link_that_was_made(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    async with pool.acquire() as conn:
        ana = await users.find(conn, email="ana@example.com")
    token = await link_for(pool, ana, tenant)
    await owner.submit(await owner.get("/account/password"), "/account/password", password="a new long passphrase")
    assert (await other_browser.enter(token)).status == 422


async def test_another_password_leaves_passkeys_and_says_so(pool: Pool, owner: Browser) -> None:
    """Someone who knew the old password may have added one, and could still sign in."""
    said = "Passkeys stay valid: remove any below that is not yours."
    page = await owner.submit(await owner.get("/account/password"), "/account/password", password=f"{PASSWORD} 1")
    assert ("The password is changed." in page.words, said in page.words) == (True, False)
    async with pool.acquire() as conn:
        ana = await users.find(conn, email="ana@example.com")
        made = StoredPasskey(b"1", b"key", 0)
        await keeping.add(conn, SYSTEM, user_id=ana.id, made=made, asked=b"once", name="Mallory's")
    page = await owner.submit(await owner.get("/account/password"), "/account/password", password=f"{PASSWORD} 2")
    assert (said in page.words, "Mallory's" in page.words) == (True, True)


async def test_who_is_signed_in_is_asked_before_a_link_takes_their_place(browser: Browser, owner: Browser) -> None:
    """Otherwise an attacker could send somebody a link of their own and have them work in the attacker's name,
    unnoticed."""
    page = await owner.get("/enter")
    assert "You are signed in as ana@example.com" in page.words
    assert 'data-from-address=""' in page.text
    await owner.submit(await owner.get("/account"), "/logout")
    assert 'data-from-address="submit"' in (await browser.get("/enter")).text


@pytest.mark.usefixtures("pauses_last")
async def test_too_many_wrong_passwords_on_the_way_lose_nothing(pool: Pool, owner: Browser) -> None:
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    form = {"_token": (await owner.get("/account")).form("/account")["_token"], "password": "a new long passphrase"}
    await owner.asked_again("/account/password")
    page = await owner.post("/account/password", form)
    for _ in range(tries.FREE_ACCOUNT + 1):
        page = await owner.submit(page, "/account/password", _password="wrong")
    assert (page.status, "Too many attempts" in page.words) == (422, True)
    assert page.form("/account/password")["password"] == "a new long passphrase"


@pytest.mark.usefixtures("pauses_last")
async def test_guessing_from_everywhere_keeps_no_owner_out(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """An attacker who tried as soon as each delay ended was always there before the owner, who never got in."""

    async def guess() -> None:
        for n in range(tries.FREE_ACCOUNT + 2):
            async with pool.acquire() as conn:
                with contextlib.suppress(tries.TooManyTries):
                    await tries.count(conn, account="ana@example.com", address=f"2001:db8:0:{n}::1")

    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    await guess()
    # In a browser of theirs the owner authenticates, and signs in.
    page = await owner.asked_again("/account/password")
    page = await owner.submit(page, "/prove?next=%2Faccount%2Fpassword", _password=PASSWORD)
    assert page.path == "/account/password"
    await owner.submit(await owner.get("/account"), "/logout")
    assert (await owner.sign_in("ana@example.com")).path == "/"
    # A stranger's browser waits, whoever else's mark it sends; and marks are no way to guess for ever.
    await make_person(pool, tenant, "rui@example.com")
    await other_browser.sign_in("rui@example.com")
    await other_browser.submit(await other_browser.get("/account"), "/logout")
    await guess()
    assert "Too many attempts" in (await other_browser.sign_in("ana@example.com")).words
    other_browser.session.cookie_jar.update_cookies({cookies.BROWSER: "00." + "0" * 64})
    assert "Too many attempts" in (await other_browser.sign_in("ana@example.com")).words
    await owner.submit(await owner.get("/account"), "/logout")
    for _ in range(tries.FREE_ACCOUNT):
        assert FAILED in (await owner.sign_in("ana@example.com", "wrong")).words
    assert "Too many attempts" in (await owner.sign_in("ana@example.com")).words


@pytest.mark.usefixtures("pauses_last")
async def test_guesses_from_an_address_do_not_delay_who_is_known_there(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    """An office, a mobile network or a proxy has one address for many."""
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    async with pool.acquire() as conn:
        for n in range(tries.FREE_ADDRESS):
            await tries.count(conn, account=f"nobody{n}@example.com", address="127.0.0.1")
    await make_person(pool, tenant, "rui@example.com")
    assert "Too many attempts" in (await other_browser.sign_in("rui@example.com")).words
    # In a browser of theirs the owner authenticates, and signs in; the address is as it was.
    page = await owner.asked_again("/account/password")
    page = await owner.submit(page, "/prove?next=%2Faccount%2Fpassword", _password=PASSWORD)
    assert page.path == "/account/password"
    await owner.submit(await owner.get("/account"), "/logout")
    assert (await owner.sign_in("ana@example.com")).path == "/"
    assert "Too many attempts" in (await other_browser.sign_in("rui@example.com")).words


async def test_a_page_asks_whether_its_session_stands(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    assert (await browser.get("/session")).status == 401
    await make_person(pool, tenant, "ana@example.com")
    await browser.sign_in("ana@example.com")
    page = await browser.get("/session")
    token = re.search(r'data-token="([^"]+)"', page.text)
    assert token
    assert (page.status, "ana@example.com" in page.text) == (200, False)
    fields = {"_token": token[1], "email": "rui@example.com", "role": "viewer", "_once": "one"}
    assert (await browser.post("/team/invite", fields)).status == 200
    browser.session.cookie_jar.clear()
    # A region's refresh is told so; a typed address redirects to the sign-in page.
    assert (await browser.get("/messages", HX_Request="true")).status == 401
    assert (await browser.get("/messages")).path.startswith("/login")


async def test_keys_can_be_switched_off(owner: Browser) -> None:
    page = await owner.get("/messages")
    assert 'data-keys="on"' in page.text
    fields = {"_token": page.form("/logout")["_token"], "keys": "off", "next": "/messages"}
    assert 'data-keys="off"' in (await owner.post("/preferences", fields)).text


async def test_without_mails_another_address_holds_at_once(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "rui@example.com")
    await other_browser.sign_in("ana@example.com")
    page = await owner.submit(await owner.get("/account/email"), "/account/email", email="rui@example.com")
    assert (page.status, "Somebody else has this e-mail address." in page.words) == (422, True)
    page = await owner.submit(await owner.get("/account/email"), "/account/email", email="new@example.com")
    assert (page.path, "Your other sessions were ended." in page.words) == ("/account", True)
    assert await pool.fetchval("SELECT count(*) FROM sessions") == 1
    other_browser.session.cookie_jar.clear()
    assert (await other_browser.sign_in("new@example.com")).path == "/"
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    await owner.asked_again("/account/email")


async def test_a_passkey_that_is_gone_is_removed_again_without_an_error(pool: Pool, owner: Browser) -> None:
    """A double click, or a second tab."""
    id = await pool.fetchval(
        "INSERT INTO passkeys (user_id, id, credential_id, public_key, uses, name, created_at)"
        " SELECT id, gen_random_uuid(), '\\x01', '\\x02', 0, 'Phone', now() FROM users RETURNING id"
    )
    page = await owner.get("/account")
    for _ in range(2):
        answer = await owner.submit(page, f"/account/passkeys/{id}/remove")
        assert (answer.status, answer.path) == (200, "/account")
        assert "The passkey is no longer valid here." in answer.words
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'user.passkey_removed'") == 1
    assert (
        await owner.post("/account/passkeys/nonsense/remove", page.form(f"/account/passkeys/{id}/remove"))
    ).status == 404
