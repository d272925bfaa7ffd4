"""Webhook endpoints over HTTP: the contract's shapes, idempotency of a mutation, other organizations' ids."""

from __future__ import annotations

import asyncio
from uuid import UUID

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7

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
    assert endpoint["status"] == "active"
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
    # What is kept for the replay does not show the secret.
    kept = await pool.fetchval("SELECT body FROM idempotency")
    assert "signingSecret" not in kept
    assert "whsec" not in kept
    status, _, body = await api.ask("POST", "/webhooks", json=HOOK | {"url": "https://b.example"}, headers=headers)
    assert (status, body["error"]["code"]) == (409, "idempotency_conflict")


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
