"""Settings: each is changed by its form, applies at once, and is in the audit log; and closing an organization."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from heliograph.accounts import organizations, send_defaults
from heliograph.accounts.api_keys import lifecycle, scopes
from heliograph.base.database.pool import Pool
from heliograph.people import policy, sessions
from heliograph.people.roles import RoleRequired
from tests.api.conftest import Api
from tests.journeys.test_cli import Cli
from tests.rules.test_short_retention import count

from .conftest import Browser, Tenant, app_of, make_person


async def stored(pool: Pool, tenant: Tenant) -> organizations.Organization:
    async with pool.acquire() as conn:
        return await organizations.get(conn, id=tenant.id)


async def test_each_form_changes_its_settings(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.get("/settings")
    page = await owner.submit(page, "/settings/general", name="Acme, Lda", time_zone="Africa/Maputo", country="MZ")
    assert "The settings are saved." in page.words
    page = await owner.submit(page, "/settings/messages", encoding="accents", allowed="mz, ZA mz")
    one = await stored(pool, tenant)
    assert (one.name, one.time_zone, one.country) == ("Acme, Lda", "Africa/Maputo", "MZ")
    assert (one.smart_encoding, one.replace_accents, one.allowed_countries) == (True, True, ["MZ", "ZA"])
    assert "/contacts/opt-outs/words" in page.text
    assert "Africa/Maputo" in (await owner.get("/audit")).words  # members without a zone have the organization's
    page = await owner.submit(page, "/settings/messages", encoding="off", allowed="any")
    one = await stored(pool, tenant)
    assert (one.smart_encoding, one.replace_accents, one.allowed_countries) == (False, False, None)
    told = await pool.fetch("SELECT action, who_name FROM audit_log WHERE action ~ '^organization' ORDER BY id")
    assert [tuple(row) for row in told[1:]] == [
        ("organization.renamed", "Ana"),
        *[("organization.configured", "Ana")] * 3,
    ]


async def test_a_refused_form_keeps_what_was_typed(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    async with pool.acquire() as conn:
        await organizations.create(conn, name="Beta")
    page = await owner.get("/settings")
    for action, typed, said in (
        ("general", {"name": "beta"}, "Another organization has this name."),
        ("general", {"name": " "}, "A name must have 1 to 200 characters."),
        ("general", {"name": "Acme", "time_zone": "Mars/Base"}, "Choose one of the time zones."),
        ("messages", {"allowed": "MZ, Portugal"}, "Enter countries by their ISO codes, such as MZ ZA PT, or any."),
        ("messages", {"allowed": " "}, "Enter countries by their ISO codes, such as MZ ZA PT, or any."),
        ("security", {"factor_required": "yes"}, "Turn on your own second factor first."),
    ):
        before = await stored(pool, tenant)
        refused = await owner.submit(page, f"/settings/{action}", **typed)
        assert (refused.status, said in refused.words) == (422, True), (typed, refused.words)
        assert all(value in refused.text for value in typed.values()), typed
        assert await stored(pool, tenant) == before
    both = await owner.submit(page, "/settings/general", name=" ", time_zone="Mars/Base")
    assert all(one in both.words for one in ("A name must have 1 to", "Choose one of the time zones.")), both.words


async def test_a_second_factor_is_demanded_and_sessions_end(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser, database_url: str
) -> None:
    await make_person(pool, tenant, "rui@example.com", "developer")
    await other_browser.sign_in("rui@example.com")
    assert (await other_browser.get("/messages")).status == 200
    offered = await owner.get("/account/factor")
    page = await owner.submit(offered, "/account/factor", code=app_of(offered).now())
    codes = re.findall("<li>([^<]+)</li>", page.text)
    assert len(codes) == 10
    # They are copied, kept as a file, and the page can be left once they are confirmed as saved.
    assert re.findall('data-(?:copy|text)="([^"]+)"', page.text) == ["\n".join(codes)] * 2
    assert re.search('<form method="get" action="/account"[^>]*>.*type="checkbox" required', page.text, re.S)
    page = await owner.submit(
        await owner.get("/settings"), "/settings/security", factor_required="yes", session_hours="8"
    )
    assert "The settings are saved." in page.words
    one = await stored(pool, tenant)
    assert (one.factor_required, one.session_hours, one.reveals) == (True, 8, False)
    team = (await owner.get("/team")).words
    assert "Members need an authenticator app as a second factor. 1 member has none. Sessions end after 8 hours" in team
    assert (await owner.get("/messages")).path == "/messages"
    await other_browser.submit(await other_browser.get("/account"), "/logout")
    page = await other_browser.sign_in("rui@example.com")
    assert (page.path, "requires a second factor" in page.words) == ("/account/factor", True)
    token = (await owner.get("/account")).form("/account")["_token"]
    kept = await owner.post("/account/factor/off", {"_token": token})
    for answer in (page, kept):
        assert ("requires a second factor" in answer.words, answer.is_refusal) == (True, True)
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    done = await cli(
        *("org", "configure", "Acme", "--no-require-factor", "--session-hours", "0", "--reveal", "--time-zone", "none"),
        "--json",
    )
    assert (done.data["factor_required"], done.data["session_hours"], done.data["reveals"]) == (False, None, True)


async def test_a_session_that_was_not_used_ends(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    (digest,) = (await pool.fetchrow("SELECT token_hash FROM sessions")) or ()
    async with pool.acquire() as conn:
        await organizations.configure(conn, id=tenant.id, session_hours=2)
        for minutes, is_known in ((119, True), (121, False)):
            await conn.execute("UPDATE sessions SET seen_at = now() - make_interval(mins => $1)", minutes)
            assert (digest in await sessions.authenticate_many(conn, [digest])) == is_known
        await organizations.configure(conn, id=tenant.id, session_hours=None)
        assert digest in await sessions.authenticate_many(conn, [digest])


async def test_single_messages_are_revealed_only_where_that_is_allowed(
    pool: Pool, tenant: Tenant, browser: Browser
) -> None:
    await make_person(pool, tenant, "rui@example.com", "developer")
    async with pool.acquire() as conn:
        await organizations.configure(conn, id=tenant.id, reveals=False)
    await browser.sign_in("rui@example.com")
    token = (await browser.get("/account")).form("/account")["_token"]
    page = await browser.post(f"/messages/{tenant.id}/reveal", {"_token": token})
    assert page.status == 403


async def test_an_organization_is_closed_by_its_name(
    pool: Pool, tenant: Tenant, owner: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "eva@example.com", "admin")
    await other_browser.sign_in("eva@example.com")
    assert "/settings/close" not in (await other_browser.get("/settings")).text
    assert (await other_browser.get("/settings/close")).status == 403
    page = await owner.get("/settings/close")
    assert "API keys that can no longer send anything: 1." in page.words
    assert "People who can read what was sent but cannot send anything: 2." in page.words
    refused = await owner.submit(page, "/settings/close", typed="Beta")
    assert (refused.status, (await stored(pool, tenant)).state) == (422, "active")
    page = await owner.submit(page, "/settings/close", typed="acme")
    assert "The organization is closed." in page.words
    assert (await stored(pool, tenant)).state == "closed"
    assert "Only the operator can open it again." in (await owner.get("/settings")).words


async def test_rules_ask_the_database_for_the_role(pool: Pool, tenant: Tenant) -> None:
    eva = await make_person(pool, tenant, "eva@example.com", "viewer", password=None)
    who = tenant.actor.principal.__class__("person", eva.id)
    actor = tenant.actor.__class__(tenant.id, None, "live", frozenset(), "active", by=who)
    async with pool.acquire() as conn:
        for work in (policy.close(conn, actor), policy.rename(conn, actor, name="x"), policy.configure(conn, actor)):
            with pytest.raises(RoleRequired):
                await work


async def test_keys_go_with_who_made_them(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    rui = await make_person(pool, tenant, "rui@example.com", "admin")
    who = tenant.actor.principal.__class__("person", rui.id, name="Rui")
    actor = tenant.actor.__class__(tenant.id, None, "live", frozenset(scopes.SCOPES), "active", by=who)
    async with pool.acquire() as conn:
        key, _ = await lifecycle.issue(conn, actor, name="shop", profile="sms_only", mode="live")
    path = f"/team/members/{rui.id}"
    page = await owner.get(path)
    assert "shop (Live)" in page.words
    page = await owner.submit(page, f"{path}/remove", keys="revoke")
    assert "Rui is no longer a member. 1 key was revoked." in page.words
    states = dict(await pool.fetch("SELECT id, status FROM api_keys"))
    assert states == {key.id: "revoked", tenant.key_id: "active"}


async def test_what_a_send_means_that_says_nothing(pool: Pool, tenant: Tenant, owner: Browser) -> None:
    page = await owner.submit(
        await owner.get("/settings"),
        "/settings/defaults",
        guarantee="at_most_once",
        validity="3600",
        text_days="7",
        message_days="60",
    )
    assert "The settings are saved." in page.words
    chosen = page.form("/settings/defaults")
    assert (chosen["validity"], chosen["text_days"], chosen["message_days"]) == ("3600", "7", "60")
    assert 'value="at_most_once" checked' in page.text
    # Of the three, the second says both itself.
    form = (await owner.get("/send")).form("/send") | {"to": "+258841234567", "message": "Olá"}
    await owner.post("/send", form)
    form = (await owner.get("/send")).form("/send") | {"to": "+258841234567", "message": "Olá"}
    await owner.post("/send", form | {"guarantee": "at_least_once", "validity": "86400"})
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=tenant.id, guarantee="at_least_once", validity_seconds=None)
    rows = await pool.fetch("SELECT guarantee, expires_at - accepted_at FROM messages ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("at_most_once", timedelta(hours=1)),
        ("at_least_once", timedelta(days=1)),
    ], "what was accepted before keeps what it was accepted with"
    before, after = await pool.fetchrow(
        "SELECT before, after FROM audit_log WHERE action = 'organization.configured' ORDER BY at LIMIT 1"
    )
    assert '"at_least_once"' in before
    for changed in ('"guarantee":"at_most_once"', '"text_days":7', '"message_days":60'):
        assert changed in after.replace(" ", "")
    page = await owner.submit(
        await owner.get("/settings"), "/settings/defaults", quiet_hours="own", quiet_from="21:30", quiet_to="07:00"
    )
    assert await pool.fetchval("SELECT quiet_hours FROM organizations WHERE id = $1", tenant.id) == "21:30-07:00"
    chosen = page.form("/settings/defaults")
    assert (chosen["quiet_from"], chosen["quiet_to"]) == ("21:30", "07:00")
    assert 'value="own" checked' in page.text
    page = await owner.submit(page, "/settings/defaults", quiet_hours="own", quiet_from="21:30", quiet_to="21:30")
    assert (page.status, "Enter two different times" in page.words) == (422, True)
    for typed in (
        {"validity": "5"},
        {"text_days": "x"},
        {"guarantee": "maybe"},
        {"text_days": "99999"},
        {"message_days": "29"},
    ):
        page = await owner.submit(await owner.get("/settings"), "/settings/defaults", **typed)
        assert page.status == 422, typed


async def test_a_shorter_time_says_what_it_deletes_before_it_does(
    pool: Pool, tenant: Tenant, owner: Browser, database_url: str
) -> None:
    async def kept() -> tuple[int | None, int | None, str]:
        async with pool.acquire() as conn:
            now = await send_defaults.get(conn, organization_id=tenant.id)
        return now.text_days, now.message_days, now.guarantee

    await count(pool, tenant.id, {20: 1234, 100: 56789})
    page = await owner.get("/settings")
    asked = await owner.submit(page, "/settings/defaults", text_days="7", guarantee="at_most_once")
    assert (asked.status, "about 1,234 that were sent in live mode" in asked.words) == (200, True), asked.words
    assert "This begins within an hour and cannot be undone." in asked.words
    assert await kept() == (None, None, "at_least_once"), "nothing was saved yet"
    # The confirmation applies to what was shown, and to no other time.
    form = asked.form("/settings/defaults")
    other = await owner.post("/settings/defaults", form | {"message_days": "60"})
    assert "Messages from before" in other.words
    assert "about 56,789 that were sent in live mode" in other.words
    assert await kept() == (None, None, "at_least_once")
    page = await owner.submit(asked, "/settings/defaults")
    assert "The settings are saved." in page.words
    assert await kept() == (7, None, "at_most_once")
    # If nothing is deleted, there is no question, and invalid values are refused first.
    page = await owner.submit(page, "/settings/defaults", text_days="14", validity="3600")
    assert "The settings are saved." in page.words
    assert (await owner.submit(page, "/settings/defaults", message_days="29")).status == 422
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    change = ("org", "defaults", str(tenant.id), "--message-days", "60")
    done = await cli(*change, stdin="n\n")
    assert (done.status, "about 56,789 that were sent in live mode" in done.err) == (1, True), done.err
    assert await kept() == (14, None, "at_most_once")
    assert (await cli(*change, "--yes")).status == 0
    assert await kept() == (14, 60, "at_most_once")


async def test_a_repetition_is_one_whatever_the_default_is_now(api: Api, pool: Pool, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one"}
    body = {"to": "+258841234567", "message": "Olá"}
    _, _, first = await api.ask("POST", "/sms/send", json=body, headers=headers)
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=tenant.id, guarantee="at_most_once", validity_seconds=60)
    status, _, second = await api.ask("POST", "/sms/send", json=body, headers=headers)
    assert (status, second) == (202, first)
