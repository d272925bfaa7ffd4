"""WhatsApp campaigns over HTTP: progress and counts; ids that do not exist, of SMS campaigns and of others."""

from __future__ import annotations

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from tests.rules import whatsapp_factories

from .conftest import Api, Tenant, make_tenant

COUNTS = (
    "total",
    "pending",
    "queued",
    "sent",
    "delivered",
    "read",
    "failed",
    "canceled",
    "optedOut",
    "recentlyWritten",
    "invalid",
)


async def test_how_it_goes(api: Api, tenant: Tenant, pool: Pool) -> None:
    made = await whatsapp_factories.made(pool, organization_id=tenant.id)
    id = await whatsapp_factories.campaign(pool, made)
    path = f"/whatsapp/campaigns/{id}"
    status, _, answer = await api.ask("GET", path, headers=tenant.headers)
    assert (status, answer["success"]) == (200, True), answer
    shown = answer["campaign"]
    assert shown["startedAt"]
    assert shown == {
        "id": str(id),
        "name": "Delivery day",
        "status": "staging",
        "statusReason": None,
        "templateName": "order_shipped",
        "scheduledAt": None,
        "startedAt": shown["startedAt"],
        "completedAt": None,
        "counts": dict.fromkeys(COUNTS, 0) | {"total": 1, "pending": 1},
    }
    await pool.execute(
        "UPDATE campaigns SET status = 'paused', status_reason = 'wallet_insufficient_funds', total = 9, delivered = 2,"
        " read = 3, opted_out = 2, invalid = 1"
    )
    _, _, answer = await api.ask("GET", path, headers=tenant.headers)
    counts = answer["campaign"]["counts"]
    assert counts == dict.fromkeys(COUNTS, 0) | {
        "total": 9, "pending": 1, "delivered": 2, "read": 3, "optedOut": 2, "invalid": 1
    }  # fmt: skip
    assert counts["total"] == sum(counts.values()) - counts["total"]
    assert answer["campaign"]["statusReason"] == "wallet_insufficient_funds"


async def test_ids_of_others_and_of_nothing(api: Api, tenant: Tenant, pool: Pool) -> None:
    made = await whatsapp_factories.made(pool, organization_id=tenant.id)
    id = str(await whatsapp_factories.campaign(pool, made))
    body = {"name": "Text", "content": "hi", "recipients": ["+258841234567"]}
    _, _, answer = await api.ask("POST", "/campaigns", json=body, headers=tenant.headers)
    sms = answer["campaign"]["id"]
    for unknown in (sms, str(uuid7())):
        status, _, refused = await api.ask("GET", f"/whatsapp/campaigns/{unknown}", headers=tenant.headers)
        assert (status, refused["error"]["code"]) == (404, "not_found")
    for malformed in ("x", id[:-1], id.replace("-", "")):
        status, _, refused = await api.ask("GET", f"/whatsapp/campaigns/{malformed}", headers=tenant.headers)
        assert (status, refused["error"]["code"]) == (400, "validation_error")
    stranger = await make_tenant(pool)
    assert (await api.ask("GET", f"/whatsapp/campaigns/{id}", headers=stranger.headers))[0] == 404
    # SMS campaigns are as they were: those sent on WhatsApp are not among them.
    for method in ("GET", "DELETE"):
        assert (await api.ask(method, f"/campaigns/{id}", headers=tenant.headers))[0] == 404
    _, _, page = await api.ask("GET", "/campaigns", headers=tenant.headers)
    assert [one["id"] for one in page["items"]] == [sms]
    assert "read" not in page["items"][0]["counts"]


async def test_the_scope(api: Api, tenant: Tenant, pool: Pool) -> None:
    made = await whatsapp_factories.made(pool, organization_id=tenant.id)
    id = await whatsapp_factories.campaign(pool, made)
    without = await make_tenant(pool, profile="sms")
    status, _, refused = await api.ask("GET", f"/whatsapp/campaigns/{id}", headers=without.headers)
    assert (status, refused["error"]["code"]) == (403, "api_key_scope_required")
