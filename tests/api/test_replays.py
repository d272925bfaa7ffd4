"""Idempotency keys over HTTP: whose they are, and what counts as the same payload."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from heliograph.accounts import api_keys
from heliograph.base.db import Pool
from tests.api.conftest import Api, Tenant

Answer = tuple[int, str | None, Any]


async def another_key(pool: Pool, tenant: Tenant, **wish: Any) -> dict[str, str]:
    """The headers of one more key of the organization."""
    async with pool.acquire() as conn:
        _, secret = await api_keys.issue(conn, tenant.actor, name="another", **({"profile": "full_access"} | wish))
    return {"x-api-key": secret}


async def ask(api: Api, headers: dict[str, str], key: str, method: str, path: str, body: Any = None) -> Answer:
    """(status, x-idempotency-status, body) of a request under an idempotency key"""
    options = {} if body is None else {"json": body}
    status, answered, content = await api.ask(method, path, headers=headers | {"Idempotency-Key": key}, **options)
    return status, answered.get("x-idempotency-status"), content


@pytest.fixture
async def endpoint(api: Api, tenant: Tenant) -> UUID:
    body = {"url": "https://example.com/", "subscribed_events": ["message.failed"]}
    status, _, made = await api.ask("POST", "/webhooks", json=body, headers=tenant.headers)
    assert status == 201
    return UUID(made["webhookEndpoint"]["id"])


async def test_a_secret_is_shown_again_to_the_key_that_asked_first_and_to_no_other(
    api: Api, tenant: Tenant, pool: Pool, endpoint: UUID
) -> None:
    requests: dict[str, Any] = {
        "/api-keys": {"name": "shop", "profile": "full_access"},
        "/webhooks": {"url": "https://example.com/2", "subscribed_events": ["message.sent"]},
        f"/webhooks/{endpoint}/rotate-secret": None,
    }
    other = await another_key(pool, tenant, profile=None, scopes=["api_keys:write", "webhooks:write"])
    for path, body in requests.items():
        status, kind, first = await ask(api, tenant.headers, "one", "POST", path, body)
        assert (status // 100, kind) == (2, "stored"), first
        assert await ask(api, tenant.headers, "one", "POST", path, body) == (status, "replayed", first)
        status, kind, refused = await ask(api, other, "one", "POST", path, body)
        assert (status, kind, refused["error"]["code"]) == (409, None, "idempotency_conflict")
    assert await pool.fetchval("SELECT count(*) FROM api_keys") == 3
    assert await pool.fetchval("SELECT count(*) FROM webhook_endpoints") == 2


async def test_what_holds_no_secret_is_answered_again_to_any_key_of_the_mode(
    api: Api, tenant: Tenant, pool: Pool
) -> None:
    other = await another_key(pool, tenant)
    for path, body in (
        ("/contacts", {"name": "Ana", "phone": "+258841234567"}),
        ("/sms/send", {"to": "+258841234567", "message": "hi"}),
    ):
        status, kind, first = await ask(api, tenant.headers, "one", "POST", path, body)
        assert (status // 100, kind) == (2, "stored")
        assert await ask(api, other, "one", "POST", path, body) == (status, "replayed", first)


async def test_a_test_key_has_idempotency_keys_of_its_own(api: Api, tenant: Tenant, pool: Pool) -> None:
    tester = await another_key(pool, tenant, mode="test")
    body = {"to": "+258841234567", "message": "hi"}
    status, kind, _ = await ask(api, tester, "one", "POST", "/sms/send", body)
    assert (status, kind) == (202, "stored")
    status, kind, live = await ask(api, tenant.headers, "one", "POST", "/sms/send", body)
    assert (status, kind, live["remainingQuota"]) == (202, "stored", 999)
    assert sorted(row["mode"] for row in await pool.fetch("SELECT mode FROM messages")) == ["live", "test"]
    wish = {"name": "shop", "profile": "sms_only", "mode": "test"}
    assert (await ask(api, tenant.headers, "key", "POST", "/api-keys", wish))[:2] == (201, "stored")
    assert (await ask(api, tester, "key", "POST", "/api-keys", wish))[:2] == (201, "stored")
