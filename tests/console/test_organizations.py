"""Organizations: created whole or not at all, found, granted quota once, suspended after a preview of the effects."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime

from heliograph.accounts import organizations, plans, quota
from heliograph.base.actor import Principal
from heliograph.base.database.pool import Pool
from heliograph.overview.installation import notes
from heliograph.overview.installation import organizations as overview
from heliograph.people import invitations, memberships
from heliograph.sms.accepting import sender_ids
from tests.api.conftest import Api, Tenant, make_tenant
from tests.pages.conftest import make_person

from .conftest import PASSWORD, Browser
from .test_messages import sent


async def test_an_organization_is_created_whole(pool: Pool, root: Browser, other_browser: Browser) -> None:
    page = await root.get("/console/organizations/new")
    page = await root.submit(
        page,
        "/console/organizations",
        name="Padaria Sol",
        state="trial",
        country="MZ",
        quota="50 000",
        sender="PADARIA",
        email="dono@example.com",
    )
    link = re.search(r'value="(http[^"]+/invitation#[^"]+)"', page.text)
    assert page.status == 200, page.words
    assert "valid for three days" in page.words
    assert link
    async with pool.acquire() as conn:
        one = await organizations.find(conn, reference="Padaria Sol")
        balance = await quota.get(conn, one.id)
    assert (one.state, one.country, one.allowed_countries, balance.remaining) == ("trial", "MZ", ["MZ"], 50_000)
    # Until it is accepted, anybody who may change organizations can renew it.
    members = await root.get(f"/console/organizations/{one.id}/members")
    assert "dono@example.com" in members.words
    assert "Pending invitations" in members.words
    joining = await other_browser.submit(await other_browser.get("/invitation"), "/invitation", link=link[1])
    joined = await other_browser.submit(joining, "/invitation/accept", name="Dono", password=PASSWORD)
    assert joined.path == "/account/factor?new=yes"
    page = await root.get(f"/console/organizations/{one.id}")
    assert "PADARIA" in page.words
    assert "dono@example.com" in page.words
    assert "Organization created" in page.words
    assert await pool.fetchval("SELECT role FROM memberships WHERE organization_id = $1", one.id) == "owner"


async def test_it_begins_on_a_plan_whose_periods_bring_its_quota(pool: Pool, root: Browser) -> None:
    page = await root.get("/console/organizations/new")
    typed = {"name": "Padaria Sol", "plan": "business", "quota": "50 000", "months": "3"}
    page = await root.submit(page, "/console/organizations", **typed)
    assert page.status == 200, page.words
    async with pool.acquire() as conn:
        one = await organizations.find(conn, reference="Padaria Sol")
        assert (await quota.get(conn, one.id)).remaining == 50_000, "it is given once, with the period"
        (row,) = await conn.fetch("SELECT * FROM organizations WHERE id = $1", one.id)
        assert (row["plan"], row["allowance"], row["period_months"]) == ("business", 50_000, 3)
        _, ends = plans.period(row["period_anchor"], 3, row["period_anchor"])
    assert row["period_end"] == ends
    page = await root.get(f"/console/organizations/{one.id}")
    assert "business" in page.words


async def test_nothing_of_it_is_created_if_a_part_is_refused(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get("/console/organizations/new")
    good = {
        "name": "Padaria",
        "country": "MZ",
        "plan": "small",
        "quota": "10",
        "sender": "PADARIA",
        "email": "dono@example.com",
    }
    for wrong in (
        {"name": "acme"},
        {"country": "XX"},
        {"quota": "many"},
        {"sender": "!"},
        {"email": "nowhere"},
        {"state": "closed"},
        {"months": "121"},
        {"plan": "p" * 101},
    ):
        answer = await root.submit(page, "/console/organizations", **(good | wrong))
        (field,) = wrong
        assert answer.status == 422, wrong
        assert f'href="#{field}"' in answer.text, wrong
        # In the words of the form, not of the API.
        (said,) = re.findall(rf'<li><a href="#{field}">([^<]+)</a>', answer.text)
        assert "`" not in said, said
        # What was typed is kept.
        assert answer.form("/console/organizations")["name"] == (good | wrong)["name"]
    async with pool.acquire() as conn:
        assert [one.name for one in await organizations.list_all(conn)] == ["Acme"]
        assert await conn.fetchval("SELECT count(*) FROM users WHERE email = 'dono@example.com'") == 0


async def test_a_double_click_gets_the_same_link(pool: Pool, root: Browser) -> None:
    page = await root.get("/console/organizations/new")
    typed = {"name": "Padaria Sol", "email": "dono@example.com", "quota": "5"}
    first, second = [await root.submit(page, "/console/organizations", **typed) for _ in range(2)]
    links = [re.findall(r'value="(http[^"]+/invitation#[^"]+)"', one.text) for one in (first, second)]
    assert (first.status, second.status, len(links[0]), links[0]) == (200, 200, 1, links[1]), second.words
    assert await pool.fetchval("SELECT count(*) FROM organizations") == 1
    # A form of its own with the same name is another attempt.
    page = await root.get("/console/organizations/new")
    assert "Another organization has this name." in (await root.submit(page, "/console/organizations", **typed)).words


async def test_all_that_is_wrong_with_a_new_organization_is_said_at_once(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    page = await root.get("/console/organizations/new")
    wrong = {
        "name": "acme",
        "state": "closed",
        "country": "XX",
        "quota": "many",
        "plan": "p" * 101,
        "months": "121",
        "sender": "!",
        "email": "nowhere",
    }
    answer = await root.submit(page, "/console/organizations", **wrong)
    assert answer.status == 422
    # Whether a name is taken can only be said of one that could be inserted.
    assert set(re.findall(r'href="#(\w+)"', answer.text)) >= set(wrong) - {"name"}
    answer = await root.submit(page, "/console/organizations", **(wrong | {"state": "trial", "country": "MZ"}))
    assert set(re.findall(r'href="#(\w+)"', answer.text)) >= set(wrong) - {"state", "country"}
    assert "Another organization has this name." in answer.words
    assert await pool.fetchval("SELECT count(*) FROM organizations") == 1


async def test_all_that_is_wrong_with_the_forms_of_an_organization_is_said_at_once(
    tenant: Tenant, root: Browser
) -> None:
    here = f"/console/organizations/{tenant.actor.organization_id}"
    for path, action, wrong in (
        (here, f"{here}/quota", {"amount": "many", "reason": ""}),
        (f"/console/wallets/{tenant.actor.organization_id}", "", {"amount": "much", "reason": "", "currency": "E"}),
        (f"{here}/members/invite", f"{here}/members/invite", {"email": "nowhere", "role": "king"}),
        (f"{here}/limits", f"{here}/plan", {"plan": "", "allowance": "many", "months": "121"}),
        (f"{here}/limits", f"{here}/spending", {"segments": "0", "above": "many"}),
        (f"{here}/limits", f"{here}/countries", {"country": "XX", "allowed": "MZ nowhere"}),
        (f"{here}/limits", f"{here}/kept", {"text_days": "0", "message_days": "0"}),
        (f"{here}/limits", f"{here}/rates", {"sms_send": "0", "reads": "0"}),
        (f"{here}/settings", f"{here}/settings", {"session_hours": "0", "time_zone": "Nowhere"}),
        (f"{here}/close", f"{here}/close", {"reason": "", "typed": "Other"}),
        (f"{here}/keys/new", f"{here}/keys", {"name": "", "expires_at": "x", "allowed_ips": "x", "mode": "x"}),
    ):
        answer = await root.submit(await root.get(path), action or path, **wrong)
        assert answer.status == 422, (path, answer.words)
        missing = {field for field in wrong if f'href="#{field}"' not in answer.text}
        assert not missing, (path, missing)


async def test_organizations_are_found_and_leafed_through(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        for n in range(60):
            await organizations.create(conn, name=f"Shop {n:02}", state="suspended" if n == 7 else "active")
    page = await root.get("/console/organizations")
    assert "Shop 59" in page.words
    assert "Acme" not in page.words
    # In Portuguese, keyboard keys have a different word.
    assert 'data-name="API keys · Members"' in page.text
    older = re.search(r'rel="next" href="([^"]+)"', page.text)
    assert older
    page = await root.get(older[1].replace("&amp;", "&"))
    assert "Acme" in page.words
    page = await root.get("/console/organizations?search=shop%200&state=suspended")
    assert "Shop 07" in page.words
    assert "Shop 08" not in page.words
    # Wildcard characters stand for themselves.
    assert "No organization matches" in (await root.get("/console/organizations?search=%25")).words


async def test_the_list_says_how_messages_fare(pool: Pool, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        quiet = await organizations.create(conn, name="Quiet")
        # In one transaction, which has one day, even around midnight.
        async with conn.transaction():
            await conn.execute(
                """
                INSERT INTO traffic_organizations (organization_id, day, status, count)
                SELECT $1, (now() AT TIME ZONE 'UTC')::date - ago, status, count
                  FROM (VALUES (0, 'accepted', 40), (0, 'sent', 2), (3, 'read', 300), (3, 'delivered', 630),
                               (3, 'expired', 28), (0, 'canceled', 500), (30, 'failed', 9999))
                       AS known (ago, status, count)
                """,
                tenant.id,
            )
            for n, since in enumerate(("1 hour", "2 days", "20 days")):
                await conn.execute(
                    "INSERT INTO opt_outs (organization_id, recipient, since, source)"
                    " VALUES ($1, $2, now() - $3::text::interval, 'keyword')",
                    tenant.id,
                    f"+25884000000{n}",
                    since,
                )
            busy, still = sorted(await overview.listed(conn), key=lambda one: one.name)
    assert (busy.today, busy.accepted, busy.delivered, busy.failed, busy.opt_outs) == (42, 1000, 930, 28, 2)
    assert (busy.percent(busy.delivered), busy.opted_out, busy.active_at) == (93.0, 2.0, None)
    assert (still.id, still.today, still.percent(0), still.opted_out) == (quiet.id, 0, None, None)
    page = await root.get("/console/organizations")
    for said in ("Sent today", "93.0 %", "2.8 %", "2.00 ‰", "of 1,000", "never"):
        assert said in page.words, said
    assert "Enviadas hoje" in (await root.get("/console/organizations", accept_language="pt")).words


async def test_an_organization_was_active_when_a_member_was_last_seen_in_it(pool: Pool, tenant: Tenant) -> None:
    async with pool.acquire() as conn:
        other = await organizations.create(conn, name="Other")
    await pool.execute(
        """
        WITH made AS (
            INSERT INTO users (id, email, name, created_at)
            SELECT gen_random_uuid(), 'm' || n || '@example.com', 'Member ' || n, now() FROM generate_series(1, 5) AS n
            RETURNING id
        ), numbered AS (
            SELECT id, row_number() OVER (ORDER BY id) AS n FROM made
        ), members AS (
            INSERT INTO memberships (organization_id, user_id, role, created_at)
            SELECT $1, id, 'viewer', now() FROM numbered WHERE n < 5
        )
        INSERT INTO sessions (token_hash, id, user_id, organization_id, created_at, seen_at, idle, ends_at, proved_at,
                              address, agent, reason)
        SELECT sha256(id::text::bytea), gen_random_uuid(), id, CASE n WHEN 4 THEN $2::uuid ELSE $1::uuid END, now(),
               '2026-01-01'::timestamptz + make_interval(days => n::int), '1 hour', now() + interval '1 day', now(),
               '', '', CASE n WHEN 3 THEN 'an operator looks' END
          FROM numbered
        """,
        tenant.id,
        other.id,
    )
    async with pool.acquire() as conn:
        listed = {one.id: one.active_at for one in await overview.listed(conn)}
    # Of its members' own sessions, the second one's is the latest.
    assert listed == {tenant.id: datetime(2026, 1, 3, tzinfo=UTC), other.id: None}


async def test_quota_is_given_once_for_a_form(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}"
    page = await root.get(here)
    fields = page.form(f"{here}/quota") | {"amount": "500", "reason": "paid invoice 7"}
    for _ in range(2):
        assert "1,500 messages are left." in (await root.post(f"{here}/quota", fields)).words
    async with pool.acquire() as conn:
        assert (await quota.get(conn, tenant.id)).remaining == 1_500
    page = await root.get(here)
    wrong = await root.submit(page, f"{here}/quota", amount="-9000", reason="a mistake")
    assert wrong.status == 422
    assert "would subtract more than is left" in wrong.words
    number, why = "Enter a number of messages", "Give a reason of at most 500 characters"
    for amount, reason, says in (("x", "y", number), ("1.5", "y", number), ("0", "y", number), ("5", "\u2800", why)):
        wrong = await root.submit(page, f"{here}/quota", amount=amount, reason=reason)
        assert (wrong.status, says in wrong.words) == (422, True), (amount, reason)


async def test_a_correction_of_the_quota_is_called_so(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}"
    page = await root.get(here)
    assert page.form(f"{here}/quota")["kind"] == "grant"
    for kind, amount in (("grant", "500"), ("adjustment", "20"), ("grant", "-3")):
        page = await root.submit(page, f"{here}/quota", amount=amount, reason="invoice 7", kind=kind)
    kinds = await pool.fetch(
        "SELECT type FROM usage_ledger WHERE organization_id = $1 AND reason = 'invoice 7' ORDER BY id", tenant.id
    )
    assert [row["type"] for row in kinds] == ["grant", "adjustment", "adjustment"]
    # The selection is kept, and so is the input.
    wrong = await root.submit(page, f"{here}/quota", amount="x", reason="y", kind="adjustment")
    assert (wrong.status, wrong.form(f"{here}/quota")["kind"]) == (422, "adjustment")


async def test_what_was_done_is_said_with_large_numbers_too(tenant: Tenant, root: Browser) -> None:
    """In Portuguese a number above 999 has a space that does not break, with which a notice was not shown."""
    here = f"/console/organizations/{tenant.id}"
    form = (await root.get(here)).form(f"{here}/quota") | {"amount": "50000", "reason": "invoice 7"}
    page = await root.post(f"{here}/quota", form, Accept_Language="pt")
    assert re.search(r"Restam \d+ \d{3} mensagens\.", page.words), page.words


async def test_suspended_with_what_it_stops_and_resumed(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}"
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=tenant.id, state="trial")
    await make_person(pool, tenant, "rui@example.com")
    for act in ("close", "suspend"):
        page = await root.get(f"{here}/{act}")
        assert "1 key can only read 1 person can only read on the dashboard" in page.words, page.words
    for nothing in ("", "\u200b", "\u2060\u3164"):
        assert (await root.submit(page, f"{here}/suspend", reason=nothing)).status == 422
    page = await root.submit(page, f"{here}/suspend", reason="bills unpaid since May")
    assert "It is suspended" in page.words
    async with pool.acquire() as conn:
        assert (await organizations.get(conn, id=tenant.id)).state == "suspended"
        told = await conn.fetchrow(
            "SELECT who, reason FROM audit_log WHERE action = 'organization.state_changed' ORDER BY id DESC LIMIT 1"
        )
    assert told is not None
    assert tuple(told) == ("operator", "bills unpaid since May")
    before = page
    page = await root.submit(page, f"{here}/resume")
    assert "It is resumed. Its state is: Trial." in page.words
    page = await root.submit(before, f"{here}/resume")
    assert "Its state is: Trial." in page.words, "a second click makes it no other"
    assert "A name must have 1 to 200 characters." in (await root.submit(page, f"{here}/rename", name=" ")).words
    page = await root.submit(page, f"{here}/rename", name="Acme Lda")
    assert "Acme Lda" in page.words
    assert (await root.get("/console/organizations/00000000-0000-0000-0000-000000000000")).status == 404


async def test_an_owner_who_is_known_is_asked_too(pool: Pool, tenant: Tenant, root: Browser) -> None:
    page = await root.get("/console/organizations/new")
    page = await root.submit(page, "/console/organizations", name="Second", email="eva@example.com")
    assert "Pass this link to eva@example.com." in page.words
    async with pool.acquire() as conn:
        one = await organizations.find(conn, reference="Second")
        actor = tenant.actor.__class__(one.id, None, "live", frozenset(), "active")
        assert await memberships.list_page(conn, actor, limit=1) == []
        assert [each.email for each in await invitations.list_all(conn, actor)] == ["eva@example.com"]
        assert await sender_ids.list_everywhere(conn, organization_id=one.id, limit=5) == []


async def test_notes_are_the_operators_own(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}/notes"
    page = await root.get(here)
    wrong = await root.submit(page, here, body=" ")
    assert (wrong.status, "1 to 2,000 characters" in wrong.words) == (422, True)
    page = await root.submit(page, here, body="Pays by transfer;\nask Ana before suspending. +258 84 123 4567")
    assert "ask Ana before suspending" in page.words
    page = await root.submit(page, here, body="<b>Second</b>")
    assert "&lt;b&gt;Second" in page.text
    # Its people see neither the notes nor that there are any.
    rows = await pool.fetch(
        "SELECT organization_id, after FROM audit_log WHERE action = 'organization.noted' ORDER BY id"
    )
    assert [row["organization_id"] for row in rows] == [None, None]
    assert not any("Ana" in row["after"] for row in rows)
    assert "Note on an organization written" in (await root.get("/console/audit?action=organization.noted")).words
    first = await pool.fetchval("SELECT id FROM organization_notes ORDER BY id LIMIT 1")
    page = await root.submit(page, f"{here}/{first}/remove")
    assert "ask Ana" not in page.words
    assert await pool.fetchval("SELECT count(*) FROM organization_notes") == 1


async def test_a_person_is_erased_from_the_page(pool: Pool, api: Api, tenant: Tenant, root: Browser) -> None:
    async with pool.acquire() as conn:
        await notes.add(conn, organization_id=tenant.id, body="Complains of 84 123 4567", by=Principal("operator"))
        await notes.add(conn, organization_id=tenant.id, body="Pays by transfer", by=Principal("operator"))
    await sent(api, tenant)
    one = f"/console/organizations/{tenant.id}"
    assert f"{one}/close" in (await root.get(one)).text
    page = await root.get(f"{one}/erase")
    assert "Records that bills refer to are kept without text" in page.words
    good = {"address": "+258 84 123 4567", "reason": "asked by mail", "typed": "erase"}
    for wrong in ({"address": "12"}, {"reason": " "}, {"typed": "yes"}):
        answer = await root.submit(page, f"{one}/erase", **(good | wrong))
        assert answer.status == 422, wrong
    answer = await root.submit(page, f"{one}/erase", address="12", reason=" ", typed="yes")
    assert all(f'href="#{field}"' in answer.text for field in good), answer.words
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action LIKE 'person.%'") == 0
    page = await root.submit(page, f"{one}/erase", **good)
    assert "The erasure has begun" in page.words
    while "Person erased" not in page.words:
        await asyncio.sleep(0.05)
        page = await root.get(one)
    assert "asked by mail" in page.words
    assert await pool.fetchval("SELECT count(body) FROM messages") == 0
    assert [row["body"] for row in await pool.fetch("SELECT body FROM organization_notes")] == ["Pays by transfer"]


async def test_an_organization_that_is_not_found_is_told_in_the_readers_language(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    """Forms and filters showed what the command line says: in English, with its option and others' names."""
    await make_tenant(pool)
    for path in ("keys?organization=Nobody", "queue/hold?look=yes&organization=Nobody", "messages?organization=Nobody"):
        page = await root.get(f"/console/{path}", accept_language="pt")
        assert (page.status, "Não há organização com este nome ou id." in page.words) == (422, True), page.words
    page = await root.get("/console/queue/hold?look=yes&supplier=Nobody", accept_language="pt")
    assert "Não há fornecedor com este nome ou id." in page.words
    page = await root.get("/console/whatsapp/new")
    for typed, said in (("", "Choose an organization"), ("Nobody", "There is no organization with this name or id.")):
        wrong = await root.submit(page, "/console/whatsapp/new", do="try", organization=typed)
        assert (wrong.status, said in wrong.words, "--org" in wrong.words) == (422, True, False), wrong.words
