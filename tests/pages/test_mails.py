"""Mails on pages: the forgotten password, and the invitation that goes out by mail."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pyotp
import pytest

from heliograph.base.actor import Principal
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.mail import outbox
from heliograph.mail.work import MailWork
from heliograph.people import factors, links, sessions, tries, users
from heliograph.people.mailing import forgotten
from heliograph.people.operators import accounts
from tests.mailbox import Mailbox, listening
from tests.rules.whatsapp_factories import SECRET_KEY

from .conftest import PASSWORD, Api, Browser, Page, Tenant, hashed, link_for, make_person, running, wrong_code

OTHER = "another horse battery staple"


@pytest.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    async with listening(Mailbox()) as found:
        yield found


@pytest.fixture
def configured(mailbox: Mailbox) -> dict[str, str]:
    return {
        "smtp_url": f"smtp://127.0.0.1:{mailbox.port}",
        "mail_from": "no-reply@example.com",
        "public_url": "http://sms.example.com",
    }


@pytest.fixture
async def api(database_url: str, configured: dict[str, str]) -> AsyncIterator[Api]:
    async with running(database_url, **configured) as found:
        yield found


@pytest.fixture
async def work(pool: Pool, configured: dict[str, str]) -> AsyncIterator[MailWork]:
    made = MailWork(pool, Settings(secret_key=SECRET_KEY, **configured), {forgotten.ASKED: forgotten.answer})
    yield made
    await made.close()


async def delivered(work: MailWork) -> None:
    while await work.round():
        pass


async def ask(browser: Browser, email: str) -> str:
    page = await browser.submit(await browser.get("/login/forgotten"), "/login/forgotten", email=email)
    assert page.status == 200
    return page.words.replace(email, "THEM")


async def test_a_forgotten_password_is_chosen_anew(
    pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser, work: MailWork, mailbox: Mailbox
) -> None:
    await make_person(pool, tenant, "ana@example.com")
    assert await ask(browser, "nobody@example.com") == await ask(browser, "ana@example.com")
    await delivered(work)
    (mail,) = mailbox.mails
    link = re.search(r"http://sms\.example\.com/enter#\S+", mail.get_content())
    assert link
    page = await browser.enter(link[0])
    assert page.path == "/account/password"
    page = await browser.submit(page, "/account/password", password=OTHER)
    assert page.status == 200, page.words
    assert (await other_browser.sign_in("ana@example.com", OTHER)).path == "/"
    page = await other_browser.submit(await other_browser.get("/enter"), "/enter", link=link[0])
    assert (page.status, "is too old" in page.words) == (422, True)


async def test_a_mailbox_is_no_second_factor(
    pool: Pool, tenant: Tenant, browser: Browser, work: MailWork, mailbox: Mailbox
) -> None:
    user = await make_person(pool, tenant, "ana@example.com")
    secret, key = factors.new_secret(), factors.seal_key(Settings(secret_key=SECRET_KEY))
    async with pool.acquire() as conn:
        now = pyotp.TOTP(secret).now()
        codes = await factors.enable(conn, tenant.actor, key, user_id=user.id, secret=secret, given=now)
    await ask(browser, "ana@example.com")
    await delivered(work)
    link = re.search(r"/enter#(\S+)", mailbox.mails[0].get_content())
    assert link
    page = await browser.enter(link[1])
    assert (await browser.get("/account")).path == "/login?next=/account"
    page = await browser.submit(page, "/login/code", code=codes[0])
    assert page.path == "/account/password"


async def test_who_has_no_password_confirms_by_a_mailed_link_and_loses_nothing(
    pool: Pool, tenant: Tenant, browser: Browser, work: MailWork, mailbox: Mailbox
) -> None:
    user = await make_person(pool, tenant, "ana@example.com", password=None)
    await browser.enter(await link_for(pool, user, tenant))
    form = await browser.get("/keys/new")
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    await browser.asked_again("/keys/new")
    asked = await browser.submit(form, "/keys", name="web shop", profile="sms")
    assert (asked.status, "Send the link" in asked.words) == (403, True), asked.words
    assert "heliograph user link" not in asked.words
    waiting = await browser.submit(asked, "/keys", _link="send")
    assert "A mail with a link is on its way to ana@example.com" in waiting.words
    await delivered(work)
    (mail,) = mailbox.mails
    assert mail["subject"] == "Confirm that it is you"
    link = re.search(r"http://sms\.example\.com(/enter\?\S+)#(\S+)", mail.get_content())
    assert link
    # No other one follows at once, which is said.
    early = await browser.submit(waiting, "/keys", _link="send")
    assert "No other mail is sent to ana@example.com within five minutes of the last." in early.words
    assert "is on its way" not in early.words
    await delivered(work)
    assert len(mailbox.mails) == 1
    # Until it is opened, nothing can be continued.
    assert (await browser.submit(waiting, "/keys")).status == 403
    session = await pool.fetchval("SELECT id FROM sessions")
    page = await browser.submit(await browser.get(link[1]), "/enter", link=link[2])
    assert (page.status, page.path) == (200, "/keys"), page.words
    assert "Confirmed." in page.words
    assert await pool.fetchval("SELECT id FROM sessions") == session
    made = await browser.submit(waiting, "/keys")
    assert (made.status, 'id="secret"' in made.text) == (200, True), made.words
    assert await pool.fetchval("SELECT count(*) FROM api_keys WHERE name = 'web shop'") == 1


async def test_a_mailed_link_confirms_only_whose_session_it_is_and_no_second_factor(
    pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser, work: MailWork, mailbox: Mailbox
) -> None:
    ana, rui = [await make_person(pool, tenant, f"{name}@example.com", password=None) for name in ("ana", "rui")]
    await browser.enter(await link_for(pool, ana, tenant))
    await other_browser.enter(await link_for(pool, rui, tenant))
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    asked = await browser.asked_again("/keys/new")
    action = "/prove?next=%2Fkeys%2Fnew"
    assert "is on its way" in (await browser.submit(asked, action, _link="send")).words
    await delivered(work)
    link = re.search(r"http://sms\.example\.com(/enter\?\S+)#(\S+)", mailbox.mails[0].get_content())
    assert link
    # In another person's browser, it signs in whom it was made for.
    page = await other_browser.submit(await other_browser.get(link[1]), "/enter", link=link[2])
    assert (page.status, page.path) == (200, "/keys/new"), page.words
    assert "ana@example.com" in (await other_browser.get("/account")).words
    assert (await browser.asked_again("/keys/new")).status == 403
    # Who has a second factor gives its code, too.
    secret, key = factors.new_secret(), factors.seal_key(Settings(secret_key=SECRET_KEY))
    async with pool.acquire() as conn:
        now = pyotp.TOTP(secret).now()
        codes = await factors.enable(conn, tenant.actor, key, user_id=ana.id, secret=secret, given=now)
        token = await links.make(conn, tenant.actor, user_id=ana.id, is_mailed=True)
    page = await browser.submit(await browser.get(link[1]), "/enter", link=token)
    assert (await browser.asked_again("/keys/new")).status == 403
    page = await browser.submit(page, "/login/code", code=codes[0])
    assert page.path == "/keys/new"


async def test_who_confirms_by_link_and_code_loses_nothing_either(
    pool: Pool, tenant: Tenant, browser: Browser, other_browser: Browser
) -> None:
    ana = await make_person(pool, tenant, "ana@example.com", password=None)
    secret, key = factors.new_secret(), factors.seal_key(Settings(secret_key=SECRET_KEY))
    await browser.enter(await link_for(pool, ana, tenant))
    async with pool.acquire() as conn:
        now = pyotp.TOTP(secret).now()
        codes = await factors.enable(conn, tenant.actor, key, user_id=ana.id, secret=secret, given=now)
    form = await browser.get("/keys/new")
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    await browser.asked_again("/keys/new")
    asked = await browser.submit(form, "/keys", name="web shop", profile="sms")
    session = await pool.fetchval("SELECT id FROM sessions")

    async def link() -> str:
        async with pool.acquire() as conn:
            return await links.make(conn, tenant.actor, user_id=ana.id, is_mailed=True)

    # Elsewhere, it begins a session, and confirms nothing to this one.
    page = await other_browser.submit(await other_browser.get("/enter?next=%2Fkeys"), "/enter", link=await link())
    page = await other_browser.submit(page, "/login/code", code=codes[0], confirms="yes")
    assert page.path == "/keys", page.words
    assert (await browser.submit(asked, "/keys")).status == 403
    page = await browser.submit(await browser.get("/enter?next=%2Fkeys"), "/enter", link=await link())
    wrong = await browser.submit(page, "/login/code", code=wrong_code(pyotp.TOTP(secret)))
    assert (wrong.status, (await browser.submit(asked, "/keys")).status) == (422, 403)
    page = await browser.submit(wrong, "/login/code", code=codes[1])
    assert (page.path, "Confirmed." in page.words) == ("/keys", True), page.words
    assert session in {row["id"] for row in await pool.fetch("SELECT id FROM sessions")}
    made = await browser.submit(asked, "/keys")
    assert (made.status, 'id="secret"' in made.text) == (200, True), made.words


async def test_who_asks_for_links_without_pause_waits(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await browser.enter(await link_for(pool, await make_person(pool, tenant, "ana@example.com", password=None), tenant))
    form = await browser.get("/keys/new")
    await pool.execute("UPDATE sessions SET proved_at = now() - interval '11 minutes'")
    await browser.asked_again("/keys/new")
    asked = await browser.submit(form, "/keys", name="web shop", profile="sms")
    for _ in range(tries.FREE_ACCOUNT):
        assert (await browser.submit(asked, "/keys", _link="send")).status == 403
    await pool.execute("UPDATE sign_in_tries SET tried_at = now() + interval '30 seconds', tries = 20")
    answer = await browser.submit(asked, "/keys", _link="send")
    assert (answer.status, "Too many attempts." in answer.words) == (422, True), answer.words
    # The problem leads to the button, and what was typed is kept.
    assert ('href="#_link"' in answer.text, 'id="_link"' in answer.text) == (True, True)
    assert answer.form("/keys")["name"] == "web shop"


async def test_what_is_no_address_is_said(browser: Browser) -> None:
    page = await browser.submit(await browser.get("/login/forgotten"), "/login/forgotten", email="nobody")
    assert (page.status, "This is not an e-mail address" in page.words, 'value="nobody"' in page.text) == (
        422,
        True,
        True,
    )


@pytest.mark.usefixtures("pauses_last")
async def test_asking_too_often_waits(browser: Browser) -> None:
    form = (await browser.get("/login/forgotten")).form("/login/forgotten") | {"email": "ana@example.com"}
    pages = [await browser.post("/login/forgotten", form) for _ in range(7)]
    assert (pages[0].status, pages[-1].status) == (200, 422)
    assert "Too many attempts" in pages[-1].words


async def test_an_invitation_goes_out_and_the_team_sees_it(owner: Browser, work: MailWork, mailbox: Mailbox) -> None:
    page = await owner.submit(await owner.get("/team/invite"), "/team/invite", email="rui@example.com", role="viewer")
    assert "A mail with this link is sent to rui@example.com" in page.words
    link = re.search(r'value="(http://sms\.example\.com/invitation#[^"]+)"', page.text)
    assert link
    assert "about to be sent" in (await owner.get("/team")).words
    await delivered(work)
    assert link[1] in mailbox.mails[0].get_content()
    assert "The mail was sent." in (await owner.get("/team")).words
    mailbox.answers["RCPT"] = "550 unknown"
    team = await owner.get("/team")
    action = re.search(r'action="(/team/invitations/[^"]+/renew)"', team.text)
    assert action
    await owner.submit(team, action[1])
    await delivered(work)
    page = await owner.get("/team")
    assert "The mail could not be sent. The mail server refused the mail or its recipient." in page.words


async def link_in(mailbox: Mailbox, to: str) -> str:
    (mail,) = [one for one in mailbox.mails if one["To"] == to]
    found = re.search(r"http://sms\.example\.com/account/email/confirm#\S+", mail.get_content())
    assert found, mail.get_content()
    return found[0]


async def confirmed(browser: Browser, link: str) -> Page:
    where = "/account/email/confirm"
    return await browser.submit(await browser.get(where), where, link=link)


async def test_another_address_is_confirmed_by_who_reads_it_and_the_former_one_is_told(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, work: MailWork, mailbox: Mailbox
) -> None:
    await make_person(pool, tenant, "rui@example.com")
    await other_browser.sign_in("ana@example.com")
    for email, wrong in (("ANA@example.com", "This is already your e-mail address."), ("ana", "not an e-mail address")):
        page = await owner.submit(await owner.get("/account/email"), "/account/email", email=email)
        assert (page.status, wrong in page.words) == (422, True), page.words
    # Whether somebody has an address is told only to the reader of its mail.
    answers = []
    for email in ("rui@example.com", "first@example.com", "New@example.com"):
        page = await owner.submit(await owner.get("/account/email"), "/account/email", email=email)
        answers.append("A link is sent to the new address." in page.words)
        await delivered(work)
    assert answers == [True] * 3
    assert "new@example.com is not confirmed yet." in (await owner.get("/account/email")).words
    page = await confirmed(other_browser, await link_in(mailbox, "first@example.com"))
    assert (page.status, "was replaced by a newer one" in page.words) == (422, True)
    assert await pool.fetchval("SELECT count(*) FROM users WHERE email = 'ana@example.com'") == 1

    page = await confirmed(owner, await link_in(mailbox, "new@example.com"))
    assert (page.path, "Your e-mail address is new@example.com now." in page.words) == ("/account", True)
    async with asyncio.timeout(60):  # what is known of a session is at most half a second old
        while (await other_browser.get("/account")).path == "/account":
            pass
    await delivered(work)
    *asked, told = [one.get_content() for one in mailbox.mails if one["To"] == "ana@example.com"]
    wanted = ("rui@example.com", "first@example.com", "new@example.com")
    assert [email in text for text, email in zip(asked, wanted, strict=True)] == [True] * 3, (
        "each is told when asked for"
    )
    assert "it was replaced by new@example.com" in told
    rows = await pool.fetch(
        "SELECT action, organization_id FROM audit_log WHERE action ~ 'email' ORDER BY id DESC LIMIT 2"
    )
    assert [tuple(row) for row in rows] == [("user.email_changed", tenant.id), ("user.email_asked", tenant.id)]
    other_browser.session.cookie_jar.clear()
    assert (await other_browser.sign_in("ana@example.com")).status == 422
    assert (await other_browser.sign_in("new@example.com")).path == "/"
    page = await confirmed(owner, await link_in(mailbox, "new@example.com"))
    assert (page.status, "was used already" in page.words) == (422, True)


@pytest.mark.parametrize("how", ["password", "sessions", "operator", "time"])
async def test_who_takes_an_account_back_ends_the_address_that_was_asked_for(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, work: MailWork, mailbox: Mailbox, how: str
) -> None:
    await owner.submit(await owner.get("/account/email"), "/account/email", email="thief@example.com")
    await delivered(work)
    async with pool.acquire() as conn:
        ana = await users.find(conn, email="ana@example.com")
        if how == "password":
            # As from the requesting session: it stays, and its request does not.
            await users.keep_password(conn, tenant.actor, user=ana, hashed=await hashed(PASSWORD))
        elif how == "sessions":
            await sessions.end_all(conn, tenant.actor, user_id=ana.id)
        elif how == "time":
            # Its row stays until retention deletes it.
            await conn.execute("UPDATE sessions SET ends_at = now() WHERE user_id = $1", ana.id)
        else:
            await accounts.add(conn, Principal("cli"), user_id=ana.id, email=ana.email, role="root")
    page = await confirmed(other_browser, await link_in(mailbox, "thief@example.com"))
    assert (page.status, "Ask for the change again." in page.words) == (422, True)
    assert await pool.fetchval("SELECT email FROM users WHERE id = $1", ana.id) == "ana@example.com"


async def test_whoever_opens_the_link_signed_in_as_another_is_told_whose_address_it_is(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, work: MailWork, mailbox: Mailbox
) -> None:
    await make_person(pool, tenant, "rui@example.com")
    await other_browser.sign_in("rui@example.com")
    await owner.submit(await owner.get("/account/email"), "/account/email", email="new@example.com")
    await delivered(work)
    page = await confirmed(other_browser, await link_in(mailbox, "new@example.com"))
    assert "from now on, new@example.com signs in" in page.words
    assert "Your e-mail address" not in page.words


async def test_where_nobody_can_be_told_an_address_is_not_asked_for(
    pool: Pool, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MOST_WAITING", 0)
    page = await owner.submit(await owner.get("/account/email"), "/account/email", email="new@example.com")
    assert (page.status, "nobody could be notified" in page.words) == (422, True)
    assert await pool.fetchval("SELECT count(*) FROM email_changes") == 0


async def test_an_address_of_somebody_else_is_not_taken_over(
    pool: Pool, tenant: Tenant, owner: Browser, work: MailWork, mailbox: Mailbox
) -> None:
    await make_person(pool, tenant, "rui@example.com")
    await owner.submit(await owner.get("/account/email"), "/account/email", email="rui@example.com")
    await delivered(work)
    link = await link_in(mailbox, "rui@example.com")
    page = await confirmed(owner, link)
    assert (page.status, "Somebody else has this e-mail address." in page.words) == (422, True)
    page = await owner.submit(await owner.get("/account/email"), "/account/email/withdraw")
    assert "The e-mail address is not changed." in page.words
    page = await confirmed(owner, link)
    assert (page.status, "is too old" in page.words) == (422, True)
