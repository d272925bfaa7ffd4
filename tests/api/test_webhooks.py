"""Webhook endpoints over HTTP: the contract's shapes, idempotency of a mutation, other organizations' ids."""

from __future__ import annotations

import asyncio
from uuid import UUID

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from tests.hooks import delivering, settings, until
from tests.rules.whatsapp_factories import SECRET_KEY

from .conftest import Api, Tenant, make_tenant

HOOK = {"url": "https://example.com/hooks", "subscribed_events": ["message.delivered", "message.failed"]}


async def test_create_list_disable(api: Api, tenant: Tenant) -> None:
    status, headers, created = await api.ask("POST", "/webhooks", json=HOOK, headers=tenant.headers)
    assert status == 201, created
    assert "x-idempotency-status" not in headers
    assert created["success"] is True
    assert created["signingSecret"]
    endpoint = created["webhookEndpoint"]
    assert endpoint | HOOK == endpoint
    assert (endpoint["status"], endpoint["description"]) == ("active", "")
    UUID(endpoint["id"])
    status, _, listed = await api.ask("GET", "/webhooks", headers=tenant.headers)
    assert (status, listed) == (200, {"success": True, "items": [endpoint]})
    for _ in range(2):
        status, _, disabled = await api.ask("DELETE", f"/webhooks/{endpoint['id']}", headers=tenant.headers)
        assert (status, disabled["webhookEndpoint"]["status"]) == (200, "disabled")


async def test_unknown_malformed_and_foreign_ids(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    _, _, created = await api.ask("POST", "/webhooks", json=HOOK, headers=other.headers)
    foreign = created["webhookEndpoint"]["id"]
    answers = []
    for id in (foreign, str(uuid7())):
        headers = tenant.headers | {"X-Request-Id": "same"}
        status, _, body = await api.ask("DELETE", f"/webhooks/{id}", headers=headers)
        assert (status, body["error"]["code"]) == (404, "not_found")
        answers.append(str(body).replace(id, ""))
    assert answers[0] == answers[1]
    for id in ("x", foreign.replace("-", ""), "{" + foreign[1:-1] + "}"):
        status, _, body = await api.ask("DELETE", f"/webhooks/{id}", headers=tenant.headers)
        assert (status, body["error"]["code"]) == (400, "validation_error"), id
    _, _, listed = await api.ask("GET", "/webhooks", headers=other.headers)
    assert listed["items"][0]["status"] == "active"


async def test_a_mutation_with_a_key_is_done_once(api: Api, tenant: Tenant, pool: Pool) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one"}

    async def post() -> tuple[int, str, bytes]:
        async with api.session.post(api.base_url + "/v1/webhooks", json=HOOK, headers=headers) as answer:
            return answer.status, answer.headers["x-idempotency-status"], await answer.read()

    answers = await asyncio.gather(*(post() for _ in range(6)))
    assert sorted(kind for _, kind, _ in answers) == ["replayed"] * 5 + ["stored"]
    assert {(status, body) for status, _, body in answers} == {(201, answers[0][2])}
    assert await pool.fetchval("SELECT count(*) FROM webhook_endpoints") == 1
    # The response stored for replays does not contain the secret: it is sealed. "whsec_" is not base64, and so does not
    # occur in a seal by chance.
    kept = await pool.fetchval("SELECT body FROM idempotency")
    assert "signingSecret" not in kept
    assert "whsec_" not in kept
    status, _, body = await api.ask("POST", "/webhooks", json=HOOK | {"url": "https://b.example"}, headers=headers)
    assert (status, body["error"]["code"]) == (409, "idempotency_conflict")


async def test_an_endpoint_is_described_from_the_start(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one"}
    status, _, created = await api.ask("POST", "/webhooks", json=HOOK | {"description": " web shop "}, headers=headers)
    assert (status, created["webhookEndpoint"]["description"]) == (201, "web shop")
    again = await api.ask("POST", "/webhooks", json=HOOK | {"description": "web shop"}, headers=headers)
    assert (again[0], again[1]["x-idempotency-status"]) == (201, "replayed")
    _, _, listed = await api.ask("GET", "/webhooks", headers=tenant.headers)
    assert [one["description"] for one in listed["items"]] == ["web shop"]


async def test_a_refused_mutation_frees_its_key(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one"}
    private = HOOK | {"url": "https://127.0.0.1/"}
    status, _, body = await api.ask("POST", "/webhooks", json=private, headers=headers)
    assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "url")
    status, answered, _ = await api.ask("POST", "/webhooks", json=HOOK, headers=headers)
    assert (status, answered["x-idempotency-status"]) == (201, "stored")


async def test_wrong_fields(api: Api, tenant: Tenant) -> None:
    for change, field in (
        ({"subscribed_events": []}, "subscribed_events"),
        ({"subscribed_events": ["nothing"]}, "subscribed_events"),
        ({"subscribed_events": [1]}, "subscribed_events["),
        ({"url": "x" * 2049}, "url"),
        ({"description": "x" * 201}, "description"),
        ({"description": "two\nlines"}, "description"),
        ({"subscribedEvents": []}, "subscribedEvents"),
    ):
        status, _, body = await api.ask("POST", "/webhooks", json=HOOK | change, headers=tenant.headers)
        assert status == 400, body
        assert body["error"]["details"]["fields"][0]["field"].startswith(field)


async def test_the_eleventh_endpoint_is_refused(api: Api, tenant: Tenant) -> None:
    answers = await asyncio.gather(
        *(api.ask("POST", "/webhooks", json=HOOK, headers=tenant.headers) for _ in range(11))
    )
    codes = sorted(status for status, _, _ in answers)
    assert codes == [201] * 10 + [409]


async def test_paused_resumed_and_enabled_with_what_it_missed(api: Api, tenant: Tenant) -> None:
    _, _, created = await api.ask("POST", "/webhooks", json=HOOK, headers=tenant.headers)
    path = f"/webhooks/{created['webhookEndpoint']['id']}"
    status, _, body = await api.ask("PATCH", path, json={"paused": True}, headers=tenant.headers)
    paused = body["webhookEndpoint"]
    assert (status, paused["status"], paused["dropped_deliveries"]) == (200, "paused", 0)
    assert paused["paused_at"] is not None
    for below, asked in (("/test", None), ("/replay", {"from": "2026-01-01T00:00:00Z"})):
        status, _, body = await api.ask("POST", path + below, json=asked, headers=tenant.headers)
        assert (status, body["error"]["code"]) == (409, "webhook_endpoint_paused"), below
    status, _, body = await api.ask("PATCH", path, json={"paused": False}, headers=tenant.headers)
    assert (body["webhookEndpoint"]["status"], body["webhookEndpoint"]["paused_at"]) == ("active", None)
    _, _, listed = await api.ask("GET", path + "/replays", headers=tenant.headers)
    assert [(one["cause"], one["only_failed"]) for one in listed["items"]] == [("return", True)]
    for asked, field in (({"recover": True}, "recover"), ({"disabled": True, "paused": False}, "paused")):
        status, _, body = await api.ask("PATCH", path, json=asked, headers=tenant.headers)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, field)
    await api.ask("DELETE", path, headers=tenant.headers)
    status, _, body = await api.ask("PATCH", path, json={"paused": True}, headers=tenant.headers)
    assert (status, body["error"]["code"]) == (409, "webhook_endpoint_disabled")
    status, _, body = await api.ask("PATCH", path, json={"disabled": False, "recover": True}, headers=tenant.headers)
    assert (status, body["webhookEndpoint"]["status"]) == (200, "active")


async def test_the_catcher_over_the_api(api: Api, tenant: Tenant, pool: Pool) -> None:
    closed = {"success": True, "catcher": None, "items": []}
    assert (await api.ask("GET", "/webhooks/catcher", headers=tenant.headers))[2] == closed
    status, _, opened = await api.ask("POST", "/webhooks/catcher", headers=tenant.headers)
    assert (status, opened["signingSecret"][:6]) == (201, "whsec_")
    _, _, shown = await api.ask("GET", "/webhooks/catcher", headers=tenant.headers)
    assert (shown["catcher"], shown["items"]) == (opened["catcher"], [])
    id = opened["catcher"]["id"]
    assert (await api.ask("POST", f"/webhooks/{id}/test", headers=tenant.headers))[0] == 202
    async with delivering(pool, settings(secret_key=SECRET_KEY)):
        await until(lambda: _any_caught(api, tenant))
    _, _, shown = await api.ask("GET", "/webhooks/catcher?limit=1", headers=tenant.headers)
    (caught,) = shown["items"]
    assert (caught["kind"], caught["is_genuine"]) == ("webhook.test", True)
    assert caught["headers"]["x-service-signature"].startswith("v1=")
    assert caught["event_id"] in caught["body"]
    other = await make_tenant(pool)
    assert (await api.ask("GET", "/webhooks/catcher", headers=other.headers))[2] == closed
    for _ in range(2):
        assert (await api.ask("DELETE", "/webhooks/catcher", headers=tenant.headers))[0] == 200
    assert (await api.ask("GET", "/webhooks/catcher", headers=tenant.headers))[2] == closed


async def _any_caught(api: Api, tenant: Tenant) -> bool:
    return bool((await api.ask("GET", "/webhooks/catcher", headers=tenant.headers))[2]["items"])
