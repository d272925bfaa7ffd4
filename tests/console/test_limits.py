"""An organization's plan, limits, countries, state, keys and senders, and its end."""

from __future__ import annotations

import re

import pytest

from heliograph.accounts import organizations, plans, quota, rate_limits, send_defaults, spending
from heliograph.accounts.api_keys import lifecycle
from heliograph.base.actor import RateLimits
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.sealing import text_keys
from heliograph.sms.accepting import sender_ids
from tests.api.conftest import Api, Tenant, make_tenant
from tests.pages.conftest import make_person
from tests.rules.test_short_retention import count

from .conftest import Browser, signed_in


def here(tenant: Tenant) -> str:
    return f"/console/organizations/{tenant.id}"


async def test_a_plan_brings_its_quota_and_ends(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(f"{here(tenant)}/limits")
    page = await root.submit(page, f"{here(tenant)}/plan", plan="business", allowance="50 000", months="3")
    assert page.path == f"{here(tenant)}/limits"
    assert "business" in page.words
    async with pool.acquire() as conn:
        assert (await quota.get(conn, tenant.id)).remaining == 50_000
    # The page shows its terms, and the form contains them: changing one does not end the others.
    assert "business · 50,000 messages per period · periods of 3 months" in page.words
    await pool.execute("UPDATE quotas SET used = 1 WHERE organization_id = $1", tenant.id)
    page = await root.submit(page, f"{here(tenant)}/plan")
    async with pool.acquire() as conn:
        assert (await quota.get(conn, tenant.id)).remaining == 49_999, "nothing changed, and no period began"
        page = await root.submit(page, f"{here(tenant)}/plan", allowance="60 000")
        assert await plans.terms(conn, tenant.id) == plans.Terms("business", 60_000, 3)
        assert (await quota.get(conn, tenant.id)).remaining == 60_000
    wrong = await root.submit(page, f"{here(tenant)}/plan", plan="business", allowance="many", months="3")
    assert (wrong.status, "Enter a number of messages" in wrong.words) == (422, True)
    assert wrong.form(f"{here(tenant)}/plan")["allowance"] == "many"
    for months in ("0", "x"):
        wrong = await root.submit(page, f"{here(tenant)}/plan", plan="business", allowance="1", months=months)
        assert "A period must have 1 to 120 months." in wrong.words
        assert "Enter a number of messages" not in wrong.words
    form = page.form(f"{here(tenant)}/plan") | {"act": "end"}
    page = await root.post(f"{here(tenant)}/plan", form)
    assert "None: its quota is granted by hand." in page.words
    assert await pool.fetchval("SELECT plan FROM organizations WHERE id = $1", tenant.id) is None
    told = await pool.fetch("SELECT who FROM audit_log WHERE action = 'organization.plan_changed' ORDER BY id")
    assert [row["who"] for row in told] == ["operator"] * 3


async def test_limits_of_a_day_are_set_and_lifted(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(f"{here(tenant)}/limits")
    page = await root.submit(page, f"{here(tenant)}/spending", segments="20,000", above="5000")
    assert "of 20,000 segments are used today." in page.words
    async with pool.acquire() as conn:
        (limit,) = await spending.limits(conn, tenant.id)
        assert (limit.segments, limit.by_operator, await quota.alert(conn, tenant.id)) == (20_000, True, 5_000)
    wrong = await root.submit(page, f"{here(tenant)}/spending", segments="many", above="5000")
    assert ("Enter a whole number of segments" in wrong.words, "a number of messages" in wrong.words) == (True, False)
    page = await root.submit(page, f"{here(tenant)}/spending", segments="", above="")
    assert "No limit is set." in page.words
    async with pool.acquire() as conn:
        assert (await spending.limits(conn, tenant.id), await quota.alert(conn, tenant.id)) == ([], None)


async def test_requests_stand_beside_their_limits(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(f"{here(tenant)}/limits")
    assert "None in this minute." in page.words
    other = await make_tenant(pool)
    windows = [(tenant, "reads", 1500), (tenant, "campaigns", 61), (other, "mutations", 17)]
    # The minute may end before the page is rendered: then it is requested again, with windows of the next.
    while "Sends 2,500" not in page.words:
        await pool.executemany(
            "INSERT INTO rate_windows VALUES ($1, $2, $3, date_trunc('minute', now()), $4)"
            " ON CONFLICT (organization_id, key_id, bucket) DO UPDATE SET window_start = excluded.window_start",
            [(one.id, one.key_id, bucket, taken) for one, bucket, taken in (*windows, (tenant, "sms_send", 2500))],
        )
        page = await root.get(f"{here(tenant)}/limits")
    # The one closest to its limit first, and one beyond it; no other organization's.
    for said in ("Campaigns 61 60 101.7 %", "Reads 1,500 3,000 50.0 %", "Sends 2,500 10,000 25.0 %"):
        assert said in page.words, page.words
    assert page.words.index("101.7 %") < page.words.index("50.0 %") < page.words.index("25.0 %")
    assert "Other changes 17" not in page.words
    counted = [
        (tenant, 0, "listMessages", 200, "", 240),
        (tenant, 1, "sendSms", 202, "", 900),
        (tenant, 1, "sendSms", 429, "rate_limit_exceeded", 300),
        (tenant, 30, "sendSms", 202, "", 5000),
        (tenant, 0, "/campaigns", 200, "", 77),
        (other, 0, "sendSms", 202, "", 4000),
    ]
    await pool.executemany(
        "INSERT INTO request_counts VALUES ($1, date_trunc('hour', now() - make_interval(hours => $2)), 'live', $3, $4,"
        " $5, $6, now(), now())",
        [(one.id, *rest) for one, *rest in counted],
    )
    page = await root.get(f"{here(tenant)}/limits")
    assert "In 24 hours 1,440 A minute of the busiest hour 20 Refused beyond a limit 300" in page.words, page.words


async def test_requests_a_minute_are_limited_for_one_organization(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(f"{here(tenant)}/limits")
    assert "Sends: 10,000 · Campaigns: 60 · Other changes: 6,000 · Reads: 3,000" in page.words
    page = await root.submit(page, f"{here(tenant)}/rates", sms_send="25,000", reads="500")
    assert "Sends: 25,000 (its own) · Campaigns: 60 · Other changes: 6,000 · Reads: 500 (its own)" in page.words
    assert page.form(f"{here(tenant)}/rates").items() >= {"sms_send": "25000", "campaigns": ""}.items()
    async with pool.acquire() as conn:
        assert await rate_limits.get(conn, organization_id=tenant.id) == RateLimits(sms_send=25_000, reads=500)
    # The share is that of its own limit.
    while "Reads 400 500 80.0 %" not in page.words:
        assert "Reads 400 3,000" not in page.words
        await pool.execute(
            "INSERT INTO rate_windows VALUES ($1, $2, 'reads', date_trunc('minute', now()), 400)"
            " ON CONFLICT (organization_id, key_id, bucket) DO UPDATE SET window_start = excluded.window_start",
            tenant.id,
            tenant.key_id,
        )
        page = await root.get(f"{here(tenant)}/limits")
    for wrong in ({"campaigns": "0"}, {"mutations": "many"}, {"reads": "1000001"}, {"sms_send": "-5"}):
        answer = await root.submit(page, f"{here(tenant)}/rates", **wrong)
        assert (answer.status, "Enter a number of requests from 1 to 1,000,000." in answer.words) == (422, True), wrong
        assert answer.form(f"{here(tenant)}/rates").items() >= wrong.items(), "what was typed stays"
    answer = await root.submit(page, f"{here(tenant)}/rates", sms_send="0", reads="many")
    for label in ("Sends", "Reads"):
        assert f"{label}: Enter a number of requests" in answer.words, (label, answer.words)
    page = await root.submit(page, f"{here(tenant)}/rates", sms_send="", reads="")
    assert "its own" not in page.words
    told = await pool.fetch(
        "SELECT who, before, after FROM audit_log WHERE action = 'organization.configured' ORDER BY id"
    )
    own, usual = '{"rate_sms_send":25000,"rate_reads":500}', '{"rate_sms_send":null,"rate_reads":null}'
    assert [tuple(row) for row in told] == [("operator", usual, own), ("operator", own, usual)]


async def test_countries_and_state(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(f"{here(tenant)}/limits")
    page = await root.submit(page, f"{here(tenant)}/countries", country="mz", allowed="MZ, za")
    assert "Mozambique, South Africa." in page.words
    for allowed, said in (("", "Enter countries by their ISO codes"), ("MARS", "Enter countries by their ISO codes")):
        wrong = await root.submit(page, f"{here(tenant)}/countries", country="MZ", allowed=allowed)
        assert (wrong.status, said in wrong.words) == (422, True)
    row = await pool.fetchrow("SELECT country, allowed_countries FROM organizations WHERE id = $1", tenant.id)
    assert tuple(row) == ("MZ", ["MZ", "ZA"])
    page = await root.submit(page, f"{here(tenant)}/state", state="past_due")
    assert await pool.fetchval("SELECT state FROM organizations WHERE id = $1", tenant.id) == "past_due"
    wrong = await root.submit(page, f"{here(tenant)}/state", state="closed")
    assert wrong.status == 422, "closing has a page of its own"


@pytest.mark.usefixtures("armed")
async def test_who_closes_an_organization_reads_that_its_texts_are_lost(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    await make_person(pool, tenant, "ana@example.com")
    await other_browser.sign_in("ana@example.com")
    pages = [(root, f"{here(tenant)}/close"), (other_browser, "/settings/close")]
    said = "nobody can ever read them again"
    for who, path in pages:
        assert said not in (await who.get(path)).words
    async with pool.acquire() as conn:
        await text_keys.switch(conn, organization_id=tenant.id, on=True)
        # What was sealed stays sealed.
        await text_keys.switch(conn, organization_id=tenant.id, on=False)
    for who, path in pages:
        assert said in (await who.get(path)).words


async def test_texts_are_sealed_and_no_longer(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(f"{here(tenant)}/limits")
    assert "Its new texts are stored unencrypted." in page.words
    form = page.form(f"{here(tenant)}/texts")
    page = await root.post(f"{here(tenant)}/texts", form | {"seal": "on"})
    assert page.path == f"{here(tenant)}/limits"
    assert "Its new texts are stored encrypted" in page.words
    async with pool.acquire() as conn:
        assert (await text_keys.get(conn, organization_id=tenant.id)).seals_texts
    page = await root.post(f"{here(tenant)}/texts", form | {"seal": "off"})
    assert "Its new texts are stored unencrypted. Its key was created on" in page.words
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=tenant.id, state="closed")
    page = await root.get(f"{here(tenant)}/limits")
    assert "The key was destroyed" in page.words
    assert f"{here(tenant)}/texts" not in page.text
    wrong = await root.post(f"{here(tenant)}/texts", form | {"seal": "on"})
    assert (wrong.status, "A closed organization seals no texts" in wrong.words) == (422, True)
    told = await pool.fetch("SELECT who, after FROM audit_log WHERE action = 'organization.configured' ORDER BY id")
    assert [(row["who"], row["after"]) for row in told] == [
        ("operator", '{"seals_texts":true}'),
        ("operator", '{"seals_texts":false}'),
    ]


async def test_its_own_rules_are_set(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(f"{here(tenant)}/settings")
    assert "Hours without use" in page.words
    typed = {
        "encoding": "accents",
        "time_zone": "Africa/Maputo",
        "opt_out_words": "FORA, SAIR\nChega",
        "reply_language": "pt",
        "stop_how": "own",
        "stop_reply": "Bye",
        "help_how": "none",
        "factor_required": "yes",
        "session_hours": "8",
    }
    page = await root.submit(page, f"{here(tenant)}/settings", **typed)
    assert (page.path, "Saved." in page.words) == (f"{here(tenant)}/settings", True), page.words
    async with pool.acquire() as conn:
        one = await organizations.get(conn, id=tenant.id)
    assert (one.smart_encoding, one.replace_accents, one.time_zone) == (True, True, "Africa/Maputo")
    assert (one.opt_out_words, one.reply_language) == (["FORA", "SAIR", "Chega"], "pt")
    assert (one.stop_reply, one.start_reply, one.help_reply) == ("Bye", None, "")
    assert (one.factor_required, one.session_hours, one.reveals) == (True, 8, False)
    # It is shown as typed; and the same input again changes nothing.
    shown = page.form(f"{here(tenant)}/settings")
    assert {name: shown[name] for name in ("reply_language", "stop_how", "stop_reply", "help_how")} == {
        name: typed[name] for name in ("reply_language", "stop_how", "stop_reply", "help_how")
    }
    assert shown["time_zone"] == "Africa/Maputo"
    await root.submit(page, f"{here(tenant)}/settings", **typed)
    async with pool.acquire() as conn:
        assert await organizations.get(conn, id=tenant.id) == one
    told = await pool.fetch("SELECT who FROM audit_log WHERE action = 'organization.configured' ORDER BY id")
    assert [row["who"] for row in told] == ["operator"]
    for wrong in (
        {"time_zone": "Mars/Phobos"},
        {"opt_out_words": "!!!"},
        {"reply_language": "la"},
        {"session_hours": "721"},
        {"session_hours": "soon"},
        {"session_hours": "1.5"},
        {"stop_reply": "x" * 269},
    ):
        answer = await root.submit(page, f"{here(tenant)}/settings", **typed | wrong)
        (field,) = wrong
        assert (answer.status, f'id="{field}-wrong"' in answer.text) == (422, True), wrong


async def test_who_may_not_change_its_rules_reads_them(pool: Pool, tenant: Tenant, browser: Browser) -> None:
    await pool.execute(
        "UPDATE organizations SET time_zone = 'Africa/Maputo', opt_out_words = '{FORA,SAIR}', stop_reply = 'Bye',"
        " help_reply = '', session_hours = 8 WHERE id = $1",
        tenant.id,
    )
    await signed_in(pool, browser, "auditor")
    page = await browser.get(f"{here(tenant)}/settings")
    assert (page.status, f'action="{here(tenant)}/settings"' in page.text) == (200, False)
    for told in (
        "Time zone Africa/Maputo",
        "Its own opt-out keywords FORA, SAIR",
        "Language of the standard replies As in its country",
        "After STOP Bye After START The standard reply After HELP None",
        "Require a second factor off",
        "signed out 8",
    ):
        assert told in page.words, page.words


async def test_closing_asks_for_the_name_and_a_reason(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get(f"{here(tenant)}/close")
    for typed, reason in (("Acme", " "), ("Somebody", "unpaid since May")):
        wrong = await root.submit(page, f"{here(tenant)}/close", typed=typed, reason=reason)
        assert wrong.status == 422
        assert await pool.fetchval("SELECT state FROM organizations WHERE id = $1", tenant.id) == "active"
    page = await root.submit(page, f"{here(tenant)}/close", typed="acme", reason="unpaid since May")
    assert page.path == here(tenant)
    assert await pool.fetchval("SELECT state FROM organizations WHERE id = $1", tenant.id) == "closed"
    assert "unpaid since May" in page.words, "its history says why"
    # Its plan stays, and is not renewed while it is closed.
    async with pool.acquire() as conn:
        await plans.subscribe(conn, tenant.id, plans.Terms("Gold", 10), now=clock.now())
    assert "resets" not in (await root.get(here(tenant))).words
    assert "Renews –" in (await root.get(f"{here(tenant)}/money")).words
    assert "never automatically" in (await root.get("/console/plans")).words
    page = await root.submit(page, f"{here(tenant)}/resume")
    assert await pool.fetchval("SELECT state FROM organizations WHERE id = $1", tenant.id) == "active"


async def test_a_key_is_made_suspended_resumed_and_revoked(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    new = await root.get(f"{here(tenant)}/keys/new")
    made = await root.submit(new, f"{here(tenant)}/keys", name="web shop", profile="sms", mode="live")
    found = re.search(r'value="(hg_live_\w+)"', made.text)
    assert found, made.words
    headers = {"authorization": f"Bearer {found[1]}"}
    assert (await api.ask("GET", "/account", headers=headers))[0] == 200
    assert found[1] not in (await root.get(f"{here(tenant)}/keys")).text
    id = await pool.fetchval("SELECT id FROM api_keys WHERE name = 'web shop'")
    for act, status in (("suspend", "suspended"), ("resume", "active"), ("revoke", "revoked")):
        page = await root.get(f"{here(tenant)}/keys" + (f"/{id}/revoke" if act == "revoke" else ""))
        await root.submit(page, f"{here(tenant)}/keys/{id}/{act}")
        assert await pool.fetchval("SELECT status FROM api_keys WHERE id = $1", id) == status
    for wrong in (
        {"name": ""},
        {"profile": "everything"},
        {"profile": ""},
        {"mode": "both"},
        {"expires_at": "2020-01-01"},
        {"expires_at": "soon"},
        {"allowed_ips": "everywhere"},
    ):
        typed = {"name": "web shop", "profile": "sms", "mode": "live"} | wrong
        page = await root.get(f"{here(tenant)}/keys/new")
        answer = await root.submit(page, f"{here(tenant)}/keys", **typed)
        assert answer.status == 422, wrong
    told = await pool.fetch(
        "SELECT who, organization_id FROM audit_log WHERE action LIKE 'api_key.%' AND object_id = $1 ORDER BY id",
        str(id),
    )
    assert {tuple(row) for row in told} == {("operator", tenant.id)}


async def test_a_key_has_scopes_addresses_and_an_end_is_renamed_and_rotated(
    pool: Pool, api: Api, tenant: Tenant, root: Browser
) -> None:
    path = f"{here(tenant)}/keys"
    typed = {"name": "web shop", "profile": "", "scope.sms:send": "yes", "scope.account:read": "yes"}
    typed |= {"mode": "test", "expires_at": "2100-01-31", "allowed_ips": "127.0.0.0/8, 203.0.113.7"}
    made = await root.submit(await root.get(f"{path}/new"), path, **typed)
    assert "hg_test_" in made.text, made.words
    row = await pool.fetchrow("SELECT * FROM api_keys WHERE name = 'web shop'")
    assert (sorted(row["scopes"]), row["mode"], row["profile"]) == (["account:read", "sms:send"], "test", None)
    assert (row["expires_at"].isoformat(), len(row["allowed_ips"])) == ("2100-01-31T00:00:00+00:00", 2)
    key = f"{path}/{row['id']}"
    assert key in (await root.get(path)).text
    page = await root.get(key)
    for said in ("Send SMS", "Read the account and its usage", "203.0.113.7/32", "2100"):
        assert said in page.words, said
    wrong = await root.submit(page, f"{key}/rename", name="")
    assert (wrong.status, "A name must have 1 to 100 characters." in wrong.words) == (422, True)
    page = await root.submit(page, f"{key}/rename", name="kiosk")
    assert (page.path, "kiosk" in page.words) == (key, True)
    wrong = await root.submit(page, f"{key}/rotate", overlap="5")
    assert wrong.status == 422
    made = await root.submit(page, f"{key}/rotate", overlap="24")
    found = re.search(r'value="(hg_test_\w+)"', made.text)
    assert found, made.words
    assert "The old key works until" in made.words
    assert (await api.ask("GET", "/account", headers={"authorization": f"Bearer {found[1]}"}))[0] == 200
    page = await root.get(key)
    assert "Replaced by" in page.words
    assert f"{key}/rotate" not in page.text
    told = await pool.fetch("SELECT action, who FROM audit_log WHERE object_id = $1 ORDER BY id", str(row["id"]))
    assert [tuple(one) for one in told][:2] == [("api_key.created", "operator"), ("api_key.renamed", "operator")]
    assert ("api_key.rotated", "operator") in [tuple(one) for one in told]


async def test_keys_and_senders_of_all_organizations_are_listed(pool: Pool, tenant: Tenant, root: Browser) -> None:
    other = await make_tenant(pool)
    async with pool.acquire() as conn:
        await organizations.rename(conn, id=other.id, name="Beta")
        mine = (await lifecycle.issue(conn, tenant.actor, name="web shop", profile="sms_only"))[0]
        theirs = (await lifecycle.issue(conn, other.actor, name="kiosk", profile="sms_only"))[0]
        await lifecycle.revoke(conn, other.actor, id=theirs.id)
        await sender_ids.request(conn, tenant.actor, value="PADARIA")
        await sender_ids.request(conn, other.actor, value="Padaria 2")
    page = await root.get("/console/keys")
    assert f"{here(tenant)}/keys/{mine.id}" in page.text
    assert "kiosk" not in page.words
    for query in (f"search={theirs.last4}", "search=KIO", "organization=beta"):
        page = await root.get(f"/console/keys?revoked=yes&{query}")
        assert ("kiosk" in page.words, "web shop" in page.words) == (True, False), query
    page = await root.get(f"/console/organizations/{other.id}/keys/{theirs.id}")
    assert ("Revoked" in page.words, "/rotate" in page.text) == (True, False)
    page = await root.get("/console/senders?search=padar")
    assert all(one in page.words for one in ("PADARIA", "Padaria 2", "Beta"))
    page = await root.get("/console/senders?search=padar&organization=Beta&status=pending")
    assert ("PADARIA" in page.words, "Padaria 2" in page.words) == (False, True)
    assert "No sender ID matches." in (await root.get("/console/senders?status=suspended")).words
    for path in ("keys", "senders"):
        assert (await root.get(f"/console/{path}?organization=Nobody")).status == 422


async def test_a_key_is_found_by_its_id_however_many_came_after_it(pool: Pool, tenant: Tenant, root: Browser) -> None:
    other = await make_tenant(pool)
    await pool.execute(
        "INSERT INTO api_keys (id, organization_id, name, prefix, last4, secret_hash, scopes, mode, status, created_at)"
        " SELECT made.id, $1, 'key ' || n, 'hg_live_', 'a1B2', sha256(n::text::bytea), '{}', 'test', 'suspended',"
        " now() FROM unnest($2::uuid[]) WITH ORDINALITY AS made (id, n)",
        tenant.id,
        [uuid7() for _ in range(150)],
    )
    key = f"{here(tenant)}/keys/{tenant.key_id}"
    assert f"{key}/revoke" in (await root.get(f"{key}/revoke")).text
    assert (await root.get(key)).status == 200
    for path in ("", "/revoke"):
        assert (await root.get(f"{here(tenant)}/keys/{other.key_id}{path}")).status == 404
    await pool.execute("UPDATE api_keys SET status = 'revoked' WHERE id = $1", tenant.key_id)
    assert [(await root.get(key + path)).status for path in ("", "/revoke")] == [200, 404]


async def test_a_sixth_key_is_refused_at_its_field(tenant: Tenant, root: Browser) -> None:
    for number in range(4):  # the tenant of these tests has one
        page = await root.get(f"{here(tenant)}/keys/new")
        made = await root.submit(page, f"{here(tenant)}/keys", name=f"key {number}", profile="sms", mode="live")
        assert made.status == 200
    page = await root.get(f"{here(tenant)}/keys/new")
    page = await root.submit(page, f"{here(tenant)}/keys", name="one more", profile="sms", mode="live")
    assert (page.status, "already has five active API keys" in page.words) == (422, True)


async def test_a_key_that_would_be_the_sixth_stays_suspended_and_the_page_says_why(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    async with pool.acquire() as conn:
        await lifecycle.suspend(conn, tenant.actor, id=tenant.key_id)
        for number in range(5):
            await lifecycle.issue(conn, tenant.actor, name=f"key {number}", profile="sms_only")
    page = await root.get(f"{here(tenant)}/keys")
    page = await root.submit(page, f"{here(tenant)}/keys/{tenant.key_id}/resume")
    assert (page.path, "already has five active API keys" in page.words) == (f"{here(tenant)}/keys", True), page.words
    assert await pool.fetchval("SELECT status FROM api_keys WHERE id = $1", tenant.key_id) == "suspended"


async def test_senders_are_asked_for_suspended_approved_and_made_the_default(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    page = await root.get(f"{here(tenant)}/keys")
    page = await root.submit(page, f"{here(tenant)}/senders", value="PADARIA", approved="yes")
    wrong = await root.submit(page, f"{here(tenant)}/senders", value="x")
    assert "Use 3 to 11 letters, digits, spaces" in wrong.words
    page = await root.submit(page, f"{here(tenant)}/senders", value="SOL")
    known = {row["value"]: row for row in await pool.fetch("SELECT value, id, status FROM sender_ids")}
    assert (known["PADARIA"]["status"], known["SOL"]["status"]) == ("approved", "pending")
    again = await root.submit(page, f"{here(tenant)}/senders", value="PADARIA", approved="yes")
    assert again.status == 422
    id = known["PADARIA"]["id"]
    if f"{here(tenant)}/senders/{id}/default" in page.text:
        page = await root.submit(page, f"{here(tenant)}/senders/{id}/default")
    assert await pool.fetchval("SELECT value FROM sender_ids WHERE is_default") == "PADARIA"
    assert f'action="{here(tenant)}/senders/{id}/suspend"' not in page.text, "what it stops is said first"
    page = await root.get(f"{here(tenant)}/senders/{id}/suspend")
    assert "Sends from it are refused within a second" in page.words
    assert "It is the default" in page.words
    page = await root.submit(page, f"{here(tenant)}/senders/{id}/suspend")
    assert await pool.fetchval("SELECT status FROM sender_ids WHERE id = $1", id) == "suspended"
    page = await root.submit(page, f"{here(tenant)}/senders/{id}/approve")
    assert await pool.fetchval("SELECT status FROM sender_ids WHERE id = $1", id) == "approved"


async def test_an_organization_keeps_texts_and_messages_for_a_shorter_time(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    page = await root.get(f"{here(tenant)}/limits")
    assert "Texts: 30 days · messages: 13 months" in page.words
    for wrong in ({"text_days": "0"}, {"text_days": "soon"}, {"message_days": "29"}, {"message_days": "3651"}):
        answer = await root.submit(page, f"{here(tenant)}/kept", **wrong)
        assert (answer.status, "Enter a number of days from" in answer.words) == (422, True), wrong
        assert answer.form(f"{here(tenant)}/kept").items() >= wrong.items(), "what was typed stays"
    page = await root.submit(page, f"{here(tenant)}/kept", text_days="7", message_days="1,000")
    assert "Texts: 7 days · messages: 1,000 days" in page.words
    kept = "SELECT text_days, message_days, guarantee FROM organizations WHERE id = $1"
    assert tuple(await pool.fetchrow(kept, tenant.id)) == (7, 1_000, "at_least_once")
    told = await pool.fetchrow(
        "SELECT who, after FROM audit_log WHERE action = 'organization.configured' AND organization_id = $1"
        " ORDER BY id DESC LIMIT 1",
        tenant.id,
    )
    assert told["who"] == "operator"
    assert '"text_days":7' in told["after"]
    page = await root.submit(page, f"{here(tenant)}/kept", text_days="", message_days="")
    assert tuple(await pool.fetchrow(kept, tenant.id))[:2] == (None, None)


@pytest.mark.parametrize("role", ["finance", "auditor", "support"])
async def test_a_role_finds_only_its_own_forms(tenant: Tenant, pool: Pool, browser: Browser, role: str) -> None:
    await signed_in(pool, browser, role)
    limits, keys = await browser.get(f"{here(tenant)}/limits"), await browser.get(f"{here(tenant)}/keys")
    assert (limits.status, keys.status) == (200, 200)
    assert (f'action="{here(tenant)}/plan"' in limits.text) == (role == "finance")
    for path in ("countries", "state", "close", "kept", "rates"):
        assert f"{here(tenant)}/{path}" not in limits.text
    assert f'action="{here(tenant)}/keys' not in keys.text


async def test_a_shorter_time_is_confirmed_with_what_it_deletes(pool: Pool, tenant: Tenant, root: Browser) -> None:
    await count(pool, tenant.id, {20: 1234, 100: 56789})
    page = await root.get(f"{here(tenant)}/limits")
    asked = await root.submit(page, f"{here(tenant)}/kept", text_days="7", message_days="60")
    for said in (
        "about 56,789 that were sent in live mode",
        "of about 1,234 that were sent in live mode",
        "This begins within an hour and cannot be undone.",
    ):
        assert said in asked.words, asked.words
    assert f'href="{here(tenant)}/limits"' in asked.text, "one can go back"
    async with pool.acquire() as conn:
        assert (await send_defaults.get(conn, organization_id=tenant.id)).message_days is None
        page = await root.submit(asked, f"{here(tenant)}/kept")
        assert "Texts: 7 days · messages: 60 days" in page.words
        kept = await send_defaults.get(conn, organization_id=tenant.id)
    assert (kept.text_days, kept.message_days) == (7, 60)
