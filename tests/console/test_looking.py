"""An organization's activity, tab by tab, with the figures of its own dashboard."""

from __future__ import annotations

from uuid import UUID

from heliograph.accounts import organizations, quota
from heliograph.base.database.pool import Pool
from heliograph.people import invitations
from tests.api.conftest import Tenant, make_tenant
from tests.pages.conftest import make_person
from tests.rules import factories, whatsapp_factories

from .conftest import Browser, signed_in

ROWS = """
INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                     to_sent, to_delivered)
SELECT $1, date_trunc('hour', now(), 'UTC') - interval '3 hours', 'sms', mode, country, 'ACME', $2, status, count,
       count, '{}', '{}'
  FROM (VALUES ('live', 'MZ', 'delivered', 75), ('live', 'MZ', 'undelivered', 25), ('live', 'PT', 'sent', 7),
               ('test', 'ZA', 'delivered', 1234)) AS known (mode, country, status, count)
"""
FAILED = """
INSERT INTO failure_counts (organization_id, hour, channel, mode, country, reason, count)
VALUES ($1, date_trunc('hour', now(), 'UTC') - interval '3 hours', 'sms', 'live', 'MZ', 'undelivered', 25)
"""


async def test_traffic_is_that_of_live_messages(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}/traffic"
    assert "Nothing was accepted in this period." in (await root.get(here)).words
    await pool.execute(ROWS, tenant.id, UUID(int=1))
    await pool.execute(factories.SUM_DAYS)
    await pool.execute(FAILED, tenant.id)
    page = await root.get(here)
    for said in ("107 accepted, 75 delivered, 25 failed.", "75.0 %", "Mozambique", "Portugal", "Why messages failed"):
        assert said in page.words, said
    assert "South Africa" not in page.words
    assert "1,234" not in page.words
    # A campaign that began then is marked, as on the organization's own home page.
    made = await whatsapp_factories.made(pool, organization_id=tenant.id)
    await whatsapp_factories.campaign(pool, made, name="Delivery day")
    await pool.execute("UPDATE campaigns SET started_at = now() - interval '1 hour'")
    assert "<bdi>Delivery day</bdi>" in (await root.get(here)).text
    file = await root.get(f"{here}?csv=messages")
    assert file.text.startswith("\ufeffTime,Accepted,Delivered,Failed")
    assert "Porque falharam mensagens" in (await root.get(here, accept_language="pt")).words


async def test_webhooks_campaigns_and_numbers_are_seen_without_secrets(
    pool: Pool, tenant: Tenant, root: Browser
) -> None:
    here = f"/console/organizations/{tenant.id}"
    for tab, empty in (("webhooks", "No endpoint yet"), ("campaigns", "No campaign yet"), ("whatsapp", "None yet.")):
        page = await root.get(f"{here}/{tab}")
        assert (page.status, empty in page.words) == (200, True), tab
    endpoint = await factories.endpoint(pool, tenant.actor, "message.delivered")
    await pool.execute(
        "UPDATE webhook_endpoints SET url = 'https://acme.example/in?key=secret' WHERE id = $1", endpoint
    )
    page = await root.get(f"{here}/webhooks")
    assert "https://acme.example/in?…" in page.words
    assert "Not tried yet" in page.words
    assert "secret" not in page.text
    made = await whatsapp_factories.made(pool, organization_id=tenant.id)
    await whatsapp_factories.campaign(pool, made, name="Delivery day")
    assert "No campaign yet" in (await root.get(f"{here}/campaigns")).words
    assert "Delivery day" in (await root.get(f"{here}/campaigns?channel=whatsapp")).words
    page = await root.get(f"{here}/whatsapp")
    account = await pool.fetchval("SELECT id FROM whatsapp_accounts")
    assert f"/console/whatsapp/accounts/{tenant.id}/{account}" in page.text
    number = await pool.fetchval("SELECT display_phone_number FROM whatsapp_numbers")
    assert number in page.words


async def test_money_is_for_those_who_see_money(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    here = f"/console/organizations/{tenant.id}"
    await whatsapp_factories.wallet(pool, tenant.id, 12_500_000)
    page = await root.get(f"{here}/money")
    for said in ("1,000", "€12.50", "Granted", "Usage by month"):
        assert said in page.words, said
    await signed_in(pool, other_browser, "support", "sue@example.com")
    page = await other_browser.get(here)
    assert f"{here}/traffic" in page.text
    assert f"{here}/money" not in page.text
    assert (await other_browser.get(f"{here}/money")).status == 403
    page = await other_browser.get(f"{here}/traffic", accept_language="pt")
    assert "Tráfego" in page.words


async def test_members_are_those_of_one_organization(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}"
    assert "It has no members." in (await root.get(f"{here}/members")).words
    await make_person(pool, tenant, "ana@example.com", "owner")
    await make_person(pool, await make_tenant(pool), "eve@example.com", "owner")
    async with pool.acquire() as conn:
        await invitations.invite(conn, tenant.actor, email="rui@example.com", role="billing")
    page = await root.get(f"{here}/members")
    for said in ("Ana ana@example.com Owner", "1 member has none.", "rui@example.com Billing", "the operator"):
        assert said in page.words, page.words
    assert "eve@example.com" not in page.words
    assert f'href="{here}/members"' in (await root.get(here)).text
    # Someone who signs in by passkey alone has a second factor, here as in the organization's own list.
    await pool.execute("UPDATE users SET password = NULL WHERE email = 'ana@example.com'")
    await pool.execute(
        "INSERT INTO passkeys (id, user_id, credential_id, public_key, uses, name, created_at)"
        " SELECT id, id, 'x', 'x', 0, 'phone', now() FROM users WHERE email = 'ana@example.com'"
    )
    page = await root.get(f"{here}/members")
    assert "passkey" in page.words
    assert "member has none" not in page.words


async def test_history_is_filtered_and_of_one_organization(
    pool: Pool, tenant: Tenant, root: Browser, other_browser: Browser
) -> None:
    other = await make_tenant(pool)
    here = f"/console/organizations/{tenant.id}"
    for one, name in ((tenant, "Before"), (other, "Foreign")):
        async with pool.acquire() as conn:
            await organizations.rename(conn, id=one.id, name=name)
    async with pool.acquire() as conn:
        await quota.grant(conn, tenant.id, amount=70, reason="a gift")
    page = await root.get(f"{here}/history")
    for said in ("Reason: a gift", "Name: Acme → Before"):
        assert said in page.words, page.words
    assert "Foreign" not in page.words
    page = await root.get(f"{here}/history?action=organization.renamed")
    assert "Name: Acme → Before" in page.words
    assert "a gift" not in page.words
    # Another organization in the address changes nothing.
    assert "Foreign" not in (await root.get(f"{here}/history?organization={other.id}")).words
    assert (await root.get(f"{here}/history?action=nothing")).status == 422
    # A role that sees only its own actions in the audit log has no such tab.
    await signed_in(pool, other_browser, "support", "sue@example.com")
    assert f"{here}/history" not in (await other_browser.get(f"{here}/traffic")).text
    assert (await other_browser.get(f"{here}/history")).status == 403


async def test_an_operator_pauses_resumes_and_cancels_a_campaign(pool: Pool, tenant: Tenant, root: Browser) -> None:
    here = f"/console/organizations/{tenant.id}/campaigns"
    made = await whatsapp_factories.made(pool, organization_id=tenant.id)
    id = await whatsapp_factories.campaign(pool, made, name="Delivery day")
    page = await root.get(f"{here}?channel=whatsapp")
    assert f"{here}/{id}/pause" not in page.text, "it has not begun"
    await pool.execute("UPDATE campaigns SET status = 'running' WHERE id = $1", id)
    page = await root.get(f"{here}?channel=whatsapp")
    page = await root.submit(page, f"{here}/{id}/pause")
    assert (page.path, "The campaign is paused." in page.words) == (f"{here}?channel=whatsapp", True), page.words
    assert f"{here}/{id}/pause" not in page.text
    page = await root.submit(page, f"{here}/{id}/resume")
    assert "The campaign is resumed." in page.words
    # A campaign that waits for quota resumes automatically: the page does not claim that it already does.
    await pool.execute("UPDATE campaigns SET status = 'paused', status_reason = 'quota_exceeded' WHERE id = $1", id)
    page = await root.post(f"{here}/{id}/resume", {"_token": page.form("/console/logout")["_token"]})
    assert "The campaign is resumed." not in page.words
    assert "resumes automatically as soon as it can. Paused: the organization's quota is used up." in page.words
    assert page.is_refusal
    assert await pool.fetchval("SELECT status FROM campaigns WHERE id = $1", id) == "paused"
    page = await root.get(f"{here}?channel=whatsapp")
    page = await root.get(f"{here}/{id}/cancel")
    assert "Delivery day" in page.words
    page = await root.submit(page, f"{here}/{id}/cancel")
    assert "The campaign is canceled" in page.words
    assert "This campaign has ended." in (await root.get(f"{here}/{id}/cancel")).words
    token = page.form("/console/logout")["_token"]
    page = await root.post(f"{here}/{id}/pause", {"_token": token})
    assert ("This campaign is not under way" in page.words, page.is_refusal) == (True, True)
    rows = await pool.fetch("SELECT who, organization_id FROM audit_log WHERE action = 'campaign.moved' ORDER BY id")
    assert [tuple(row) for row in rows] == [("operator", tenant.id)] * 3
    other = await make_tenant(pool)
    assert (await root.get(f"/console/organizations/{other.id}/campaigns/{id}/cancel")).status == 404
