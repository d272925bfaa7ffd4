"""O3: what an organization does, tab by tab, as its own dashboard knows it."""

from __future__ import annotations

from uuid import UUID

from heliograph.base.database.pool import Pool
from tests.api.conftest import Tenant
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
    assert "Nothing was accepted in this time." in (await root.get(here)).words
    await pool.execute(ROWS, tenant.id, UUID(int=1))
    await pool.execute(factories.SUM_DAYS)
    await pool.execute(FAILED, tenant.id)
    page = await root.get(here)
    for said in ("107 accepted, 75 delivered, 25 failed.", "75.0 %", "Mozambique", "Portugal", "Why messages failed"):
        assert said in page.words, said
    assert "South Africa" not in page.words
    assert "1,234" not in page.words
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
