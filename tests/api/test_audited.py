"""Everything that keys do over HTTP is in the audit log, with the key, the request and its origin; so are attempts with
invalid keys."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from heliograph.base.database.pool import Pool

from .conftest import Api, Tenant, running

ENTRIES = "SELECT * FROM audit_log WHERE who <> 'system' ORDER BY id"


async def test_each_kind_of_change_names_key_request_and_address(api: Api, tenant: Tenant, pool: Pool) -> None:
    told: list[tuple[str, str]] = []

    async def change(method: str, path: str, **options: Any) -> Any:
        headers = tenant.headers | {"x-request-id": f"request-{len(told)}", "user-agent": "shop/1.0"}
        status, _, body = await api.ask(method, path, headers=headers, **options)
        assert status < 300, body
        told.append((f"request-{len(told)}", path))
        return body

    key = (await change("POST", "/api-keys", json={"name": "ci", "profile": "sms"}))["apiKey"]
    await change("DELETE", f"/api-keys/{key['id']}")
    contact = (await change("POST", "/contacts", json={"name": "Ana", "phone": "+258841234567"}))["contact"]
    await change("DELETE", f"/contacts?id={contact['id']}")
    await change("POST", "/sender-ids", json={"value": "SHOP"})
    hook = {"url": "https://example.com/in", "subscribed_events": ["message.failed"]}
    endpoint = (await change("POST", "/webhooks", json=hook))["webhookEndpoint"]
    await change("POST", f"/webhooks/{endpoint['id']}/rotate-secret")
    await change("DELETE", f"/webhooks/{endpoint['id']}")
    spec = {"name": "Sale", "content": "hi", "recipients": ["+258841234567"], "scheduledAt": "2099-01-01T00:00:00Z"}
    status, _, _ = await api.ask("POST", "/campaigns", json=spec, headers=tenant.headers)
    assert status == 400  # a refused request changes nothing
    campaign = (await change("POST", "/campaigns", json=spec | {"scheduledAt": None}))["campaign"]
    await change("DELETE", f"/campaigns/{campaign['id']}")

    rows = await pool.fetch(ENTRIES)
    assert [row["action"] for row in rows] == [
        "api_key.created",
        "api_key.revoked",
        "contact.created",
        "contact.deleted",
        "sender_id.requested",
        "webhook.created",
        "webhook.secret_rotated",
        "webhook.disabled",
        "campaign.created",
        "campaign.moved",
    ]
    assert [row["request_id"] for row in rows] == [request for request, _ in told]
    assert {(row["who"], row["who_id"]) for row in rows} == {("key", tenant.key_id)}
    assert {(row["organization_id"], row["address"], row["device"]) for row in rows} == {
        (tenant.id, "127.0.0.1", "shop/1.0")
    }
    assert rows[0]["object_id"] == key["id"]


async def test_a_replay_changes_nothing_and_records_nothing(api: Api, tenant: Tenant, pool: Pool) -> None:
    headers = tenant.headers | {"idempotency-key": "once"}
    for _ in range(3):
        status, _, _ = await api.ask("POST", "/sender-ids", json={"value": "SHOP"}, headers=headers)
        assert status == 201
    assert len(await pool.fetch(ENTRIES)) == 1


async def test_keys_that_are_none_are_counted_by_address(database_url: str, pool: Pool) -> None:
    async with running(database_url) as api:
        for number in range(5):
            status, _, _ = await api.ask("GET", "/account", headers={"x-api-key": f"hg_live_{number}"})
            assert status == 401
    # A process writes its counts when it ends.
    rows = await pool.fetch("SELECT * FROM audit_log WHERE action = 'authentication.failed' ORDER BY id")
    assert [(row["who"], row["object_id"], row["count"]) for row in rows] == [("unknown", "127.0.0.1", 5)]
    assert UUID(str(rows[0]["id"])).version == 7
