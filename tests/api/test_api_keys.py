"""API keys over HTTP: the contract's shapes, who may grant what, the limit of five, and when a key stops working."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import aiohttp
import msgspec
import pytest

from heliograph.accounts import spending
from heliograph.accounts.api_keys import lifecycle, spelling
from heliograph.accounts.api_keys.scopes import PROFILES, SCOPES
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from tests.rate_windows import hold_windows

from .conftest import Api, Tenant, make_tenant, running
from .test_serve import processes

FIELDS = [
    *("id", "name", "prefix", "last4", "profile", "scopes", "mode", "status", "allowed_ips"),
    *("last_used_at", "created_at", "expires_at", "revoked_at"),
]


async def test_create_list_use_revoke(api: Api, tenant: Tenant) -> None:
    asked = {"name": " web shop ", "profile": "sms"}
    status, headers, created = await api.ask("POST", "/api-keys", json=asked, headers=tenant.headers)
    assert status == 201, created
    assert "x-idempotency-status" not in headers
    assert list(created) == ["success", "apiKey", "secret"]
    key, secret = created["apiKey"], created["secret"]
    assert list(key) == FIELDS
    UUID(key["id"])
    assert secret.startswith("hg_live_")
    assert spelling.is_well_formed(secret)
    expected = {"name": "web shop", "prefix": "hg_live_", "last4": secret[-4:], "profile": "sms", "mode": "live"}
    assert key | expected | {"status": "active", "allowed_ips": [], "scopes": sorted(PROFILES["sms"])} == key
    assert [key[name] for name in ("last_used_at", "expires_at", "revoked_at")] == [None] * 3
    mine = {"x-api-key": secret}
    assert (await api.ask("GET", "/webhooks", headers=mine))[0] == 200
    status, _, body = await api.ask("GET", "/api-keys", headers=mine)
    assert (status, body["error"]["code"]) == (403, "api_key_scope_required")

    status, _, listed = await api.ask("GET", "/api-keys", headers=tenant.headers)
    assert (status, list(listed)) == (200, ["success", "items"])
    assert [item["id"] for item in listed["items"]] == [key["id"], str(tenant.key_id)]
    assert secret not in str(listed)
    revoked = []
    for _ in range(2):
        status, _, body = await api.ask("DELETE", f"/api-keys/{key['id']}", headers=tenant.headers)
        assert (status, list(body)) == (200, ["success", "apiKey"])
        revoked.append(body["apiKey"])
    assert revoked[0] == revoked[1]
    assert (revoked[0]["status"], revoked[0]["revoked_at"] is None) == ("revoked", False)
    await answers_within_a_second(api, secret, 401)


async def answers_within_a_second(api: Api, secret: str, expected: int) -> None:
    changed = asyncio.get_running_loop().time()
    while True:
        asked = asyncio.get_running_loop().time()
        status, _, body = await api.ask("GET", "/webhooks", headers={"x-api-key": secret})
        if status == expected:
            assert status == 200 or body["error"]["code"] == "unauthorized"
            return
        assert asked < changed + 1.0, "the change does not hold after a second"
        await asyncio.sleep(0.02)  # more than 100 refusals a minute would be answered 429


async def test_unknown_malformed_and_foreign_ids(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    answers = []
    for id in (str(other.key_id), str(uuid7())):
        headers = tenant.headers | {"X-Request-Id": "same"}
        status, _, body = await api.ask("DELETE", f"/api-keys/{id}", headers=headers)
        assert (status, body["error"]["code"]) == (404, "not_found")
        answers.append(str(body).replace(id, ""))
    assert answers[0] == answers[1]
    status, _, body = await api.ask("DELETE", "/api-keys/x", headers=tenant.headers)
    assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "apiKeyId")
    assert (await api.ask("GET", "/api-keys", headers=other.headers))[0] == 200


async def test_a_key_grants_only_what_it_holds(api: Api, tenant: Tenant) -> None:
    held = ["api_keys:read", "api_keys:write", "sms:send"]
    _, _, made = await api.ask("POST", "/api-keys", json={"name": "a", "scopes": held}, headers=tenant.headers)
    mine = {"x-api-key": made["secret"]}
    assert (made["apiKey"]["profile"], made["apiKey"]["scopes"]) == (None, held)
    status, _, body = await api.ask("POST", "/api-keys", json={"name": "b", "profile": "sms_only"}, headers=mine)
    assert status == 201, body
    for more in ({"profile": "sms"}, {"scopes": ["sms:send", "contacts:read"]}, {"profile": "full_access"}):
        status, _, body = await api.ask("POST", "/api-keys", json={"name": "c"} | more, headers=mine)
        assert (status, body["error"]["code"]) == (403, "api_key_scope_required")
        assert body["error"]["details"]["required"]
    assert not set(body["error"]["details"]["required"]) & set(held)


async def test_a_test_key_creates_test_keys(api: Api, pool: Pool) -> None:
    tenant = await make_tenant(pool, mode="test")
    status, _, made = await api.ask("POST", "/api-keys", json={"name": "a", "profile": "sms"}, headers=tenant.headers)
    assert (status, made["apiKey"]["mode"], made["secret"][:8]) == (201, "test", "hg_test_")
    wanted = {"name": "a", "profile": "sms", "mode": "live"}
    status, _, body = await api.ask("POST", "/api-keys", json=wanted, headers=tenant.headers)
    assert (status, body["error"]["code"]) == (403, "live_key_required")
    live = await make_tenant(pool)
    _, _, made = await api.ask("POST", "/api-keys", json=wanted | {"mode": "test"}, headers=live.headers)
    assert made["apiKey"]["mode"] == "test"


async def test_what_a_new_key_must_be(api: Api, tenant: Tenant, pool: Pool) -> None:
    for wrong, field in (
        ({"name": " "}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"profile": "nothing"}, "profile"),
        ({"profile": None}, "profile"),
        ({"scopes": ["sms:send"]}, "profile"),
        ({"profile": None, "scopes": []}, "scopes"),
        ({"profile": None, "scopes": ["sms:everything"]}, "scopes"),
        ({"mode": "demo"}, "mode"),
        ({"allowed_ips": ["10.0.0.300"]}, "allowed_ips"),
        ({"allowed_ips": ["fe80::1%eth0"]}, "allowed_ips"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2120-01-01T00:00:00"}, "expires_at"),
        ({"allowedIps": []}, "allowedIps"),
    ):
        asked = {"name": "k", "profile": "sms_only"} | wrong
        status, _, body = await api.ask("POST", "/api-keys", json=asked, headers=tenant.headers)
        assert (status, body["error"]["code"]) == (400, "validation_error"), asked
        assert body["error"]["details"]["fields"][0]["field"] == field, asked
    assert await pool.fetchval("SELECT count(*) FROM api_keys") == 1


async def test_five_active_keys_of_fifty_at_once(api: Api, tenant: Tenant, pool: Pool) -> None:
    async def create(number: int) -> tuple[int, str]:
        asked = {"name": f"key {number}", "profile": "sms_only"}
        status, _, body = await api.ask("POST", "/api-keys", json=asked, headers=tenant.headers)
        return status, body["apiKey"]["id"] if status == 201 else body["error"]["code"]

    answers = await asyncio.gather(*(create(number) for number in range(50)))
    assert sorted(status for status, _ in answers) == [201] * 4 + [409] * 46
    assert {code for status, code in answers if status == 409} == {"api_key_active_limit_reached"}
    assert await pool.fetchval("SELECT count(*) FROM api_keys WHERE status = 'active'") == 5
    created = [id for status, id in answers if status == 201]
    # A revoked, suspended or expired key makes room for another.
    assert (await api.ask("DELETE", f"/api-keys/{created[0]}", headers=tenant.headers))[0] == 200
    assert (await create(51))[0] == 201
    assert (await create(52))[0] == 409
    async with pool.acquire() as conn:
        await lifecycle.suspend(conn, tenant.actor, id=UUID(created[1]))
    assert (await create(53))[0] == 201
    await pool.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", UUID(created[2]))
    assert (await create(54))[0] == 201
    _, _, listed = await api.ask("GET", "/api-keys", headers=tenant.headers)
    statuses = sorted(item["status"] for item in listed["items"])
    assert statuses == ["active"] * 5 + ["expired", "revoked", "suspended"]


async def test_a_replay_shows_the_secret_and_the_database_does_not(api: Api, tenant: Tenant, pool: Pool) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one"}
    asked = {"name": "a", "profile": "sms_only"}

    async def post() -> tuple[int, str, bytes]:
        async with api.session.post(api.base_url + "/v1/api-keys", json=asked, headers=headers) as answer:
            return answer.status, answer.headers["x-idempotency-status"], await answer.read()

    answers = await asyncio.gather(*(post() for _ in range(5)))
    assert sorted(kind for _, kind, _ in answers) == ["replayed"] * 4 + ["stored"]
    assert {(status, body) for status, _, body in answers} == {(201, answers[0][2])}
    assert await pool.fetchval("SELECT count(*) FROM api_keys") == 2
    secret = msgspec.json.decode(answers[0][2])["secret"]
    for table in ("idempotency", "api_keys"):
        assert secret[8:] not in str([dict(row) for row in await pool.fetch(f"SELECT * FROM {table}")])
    status, _, body = await api.ask("POST", "/api-keys", json=asked | {"name": "b"}, headers=headers)
    assert (status, body["error"]["code"]) == (409, "idempotency_conflict")


async def test_null_is_what_is_left_out(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "null"}
    asked = {"name": "a", "profile": "sms_only"}
    left_out = {"scopes": None, "mode": None, "allowed_ips": None, "expires_at": None}
    status, _, made = await api.ask("POST", "/api-keys", json=asked | left_out, headers=headers)
    assert (status, made["apiKey"]["allowed_ips"]) == (201, [])
    status, answered, again = await api.ask("POST", "/api-keys", json=asked, headers=headers)
    assert (status, answered["x-idempotency-status"], again) == (201, "replayed", made)


async def test_addresses_and_dates_bind_a_key(api: Api, tenant: Tenant) -> None:
    async def use(**facts: object) -> int:
        asked = {"name": "a", "profile": "sms"} | facts
        status, _, made = await api.ask("POST", "/api-keys", json=asked, headers=tenant.headers)
        assert status == 201, made
        status, _, _ = await api.ask("GET", "/webhooks", headers={"x-api-key": made["secret"]})
        return status

    assert await use(allowed_ips=["127.0.0.1", "127.0.0.1/32", "2001:db8::/32"]) == 200
    assert await use(allowed_ips=["203.0.113.0/24"]) == 401
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert await use(expires_at=soon.astimezone().isoformat()) == 200
    _, _, listed = await api.ask("GET", "/api-keys", headers=tenant.headers)
    assert [item["allowed_ips"] for item in listed["items"][1:3]] == [
        ["203.0.113.0/24"],
        ["127.0.0.1/32", "2001:db8::/32"],
    ]
    assert listed["items"][0]["expires_at"] == iso(soon)


async def test_what_contains_a_key_contains_what_it_creates(api: Api, tenant: Tenant, pool: Pool) -> None:
    async def create(headers: dict[str, str], **facts: object) -> tuple[int, Any]:
        scopes = {"scopes": ["api_keys:write", "sms:send"]}
        status, _, body = await api.ask("POST", "/api-keys", json={"name": "a"} | scopes | facts, headers=headers)
        return status, body

    # Addresses.
    _, made = await create(tenant.headers, allowed_ips=["127.0.0.0/8", "2001:db8::/32"])
    bound = {"x-api-key": made["secret"]}
    for wider in (["127.0.0.1", "203.0.113.0/24"], ["0.0.0.0/0"], ["::/0"], ["126.0.0.0/7"]):
        status, body = await create(bound, allowed_ips=wider)
        assert (status, body["error"]["details"]["fields"][0]["issue"]) == (400, "outside"), (wider, body)
    for given, has in (
        ({}, ["127.0.0.0/8", "2001:db8::/32"]),
        ({"allowed_ips": []}, ["127.0.0.0/8", "2001:db8::/32"]),
        ({"allowed_ips": ["127.0.0.1", "2001:db8:1::/48"]}, ["127.0.0.1/32", "2001:db8:1::/48"]),
    ):
        status, made = await create(bound, **given)
        assert (status, made["apiKey"]["allowed_ips"]) == (201, has), made
        await api.ask("DELETE", f"/api-keys/{made['apiKey']['id']}", headers=tenant.headers)
    # A daily limit, also that of a key which a limited one would otherwise create to be limited anew.
    async with pool.acquire() as conn:
        await spending.limit(conn, tenant.id, segments=5, key_id=tenant.key_id)
    status, body = await create(tenant.headers)
    assert (status, body["error"]["code"]) == (403, "api_key_limited")
    async with pool.acquire() as conn:
        # A limit of the whole organization includes all of its keys anyway.
        await spending.limit(conn, tenant.id, segments=5)
        await spending.limit(conn, tenant.id, segments=None, key_id=tenant.key_id)
    assert (await create(tenant.headers))[0] == 201


async def test_replacing_keys_makes_no_more_of_a_rate_limit(api: Api, tenant: Tenant, pool: Pool) -> None:
    async def created() -> tuple[str, dict[str, str]]:
        status, _, body = await api.ask(
            "POST", "/api-keys", json={"name": "x", "scopes": ["webhooks:read"]}, headers=tenant.headers
        )
        assert status == 201, body
        return body["apiKey"]["id"], {"x-api-key": body["secret"]}

    async def left(key: dict[str, str]) -> tuple[int, int]:
        status, headers, _ = await api.ask("GET", "/webhooks", headers=key)
        return status, int(headers["x-ratelimit-remaining"])

    id, key = await created()
    status, most = await left(key)
    assert status == 200
    _, other = await created()
    assert await left(other) == (200, most)  # nothing has ended: it has a window of its own
    await pool.execute("UPDATE rate_windows SET taken = $2 WHERE key_id = $1", UUID(id), most + 1)
    await hold_windows(pool)
    assert (await api.ask("DELETE", f"/api-keys/{id}", headers=tenant.headers))[0] == 200
    _, key = await created()
    assert await left(key) == (429, 0)
    assert await left(other) == (200, most - 1)
    # What ended in an earlier minute no longer counts.
    await pool.execute("UPDATE rate_windows SET window_start = window_start - interval '1 hour'")
    _, key = await created()
    assert await left(key) == (200, most)


async def test_suspended_resumed_and_expired_keys(api: Api, tenant: Tenant, pool: Pool) -> None:
    _, _, made = await api.ask("POST", "/api-keys", json={"name": "a", "profile": "sms"}, headers=tenant.headers)
    id, secret = UUID(made["apiKey"]["id"]), made["secret"]
    async with pool.acquire() as conn:
        await lifecycle.suspend(conn, tenant.actor, id=id)
        await answers_within_a_second(api, secret, 401)
        await lifecycle.resume(conn, tenant.actor, id=id)
    await answers_within_a_second(api, secret, 200)
    await pool.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", id)
    await answers_within_a_second(api, secret, 401)
    _, _, listed = await api.ask("GET", "/api-keys", headers=tenant.headers)
    assert listed["items"][0]["status"] == "expired"


async def test_a_revocation_holds_on_every_process_within_a_second(database_url: str, pool: Pool) -> None:
    tenant = await make_tenant(pool)
    async with pool.acquire() as conn:
        key, secret = await lifecycle.issue(conn, tenant.actor, name="a", profile="sms")
    async with (
        processes(database_url, number=1) as (first, _),
        processes(database_url, number=1) as (second, _),
        aiohttp.ClientSession() as session,
    ):

        async def ask(url: str) -> int:
            async with session.get(url + "/webhooks", headers={"x-api-key": secret}) as answer:
                return answer.status

        loop = asyncio.get_running_loop()
        for url in (first, second):
            assert await ask(url) == 200
        async with session.delete(f"{first}/api-keys/{key.id}", headers=tenant.headers) as answer:
            assert answer.status == 200
        revoked = loop.time()
        works_until = dict.fromkeys((first, second), revoked)
        asked = revoked
        while asked < revoked + 1.5:
            for url in (first, second):
                asked = loop.time()
                if await ask(url) == 200:
                    works_until[url] = asked
    assert {url: at - revoked for url, at in works_until.items() if at - revoked > 1.0} == {}


async def test_the_last_use_is_shown(database_url: str, tenant: Tenant) -> None:
    async with running(database_url) as api:
        await api.ask("GET", "/webhooks", headers=tenant.headers)
        deadline = asyncio.get_running_loop().time() + 120
        while asyncio.get_running_loop().time() < deadline:
            _, _, listed = await api.ask("GET", "/api-keys", headers=tenant.headers)
            if listed["items"][0]["last_used_at"] is not None:
                return
    pytest.fail("the key's use was not written")


def test_every_profile_is_made_of_scopes_that_exist() -> None:
    assert all(scopes <= SCOPES.keys() for scopes in PROFILES.values())
    assert {"sms_only", "sms", "whatsapp", "read_only", "full_access"} == PROFILES.keys()
