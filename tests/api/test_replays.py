"""Idempotency keys over HTTP: their scope, and what counts as the same payload."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pytest
from yarl import URL

from heliograph.accounts.api_keys import lifecycle
from heliograph.accounts.idempotency import key_hash, request_hash
from heliograph.api.door.reading import reader
from heliograph.api.operations import campaigns
from heliograph.api.operations.sms.send import SendSms
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from tests.api.conftest import Api, Tenant, running

Answer = tuple[int, str | None, Any]


async def another_key(pool: Pool, tenant: Tenant, **spec: Any) -> dict[str, str]:
    """The headers of another key of the organization."""
    async with pool.acquire() as conn:
        _, secret = await lifecycle.issue(conn, tenant.actor, name="another", **({"profile": "full_access"} | spec))
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
    spec = {"name": "shop", "profile": "sms_only", "mode": "test"}
    assert (await ask(api, tenant.headers, "key", "POST", "/api-keys", spec))[:2] == (201, "stored")
    assert (await ask(api, tester, "key", "POST", "/api-keys", spec))[:2] == (201, "stored")


async def test_two_spellings_of_a_request_are_one_payload(api: Api, tenant: Tenant) -> None:
    soon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    there = soon.astimezone(timezone(timedelta(hours=2)))
    spellings: list[tuple[str, Any, Any]] = [
        (
            "/sms/send",
            {"to": "+258841234567", "message": "hi", "sendAt": soon.isoformat()},
            {
                "to": "258841234567",
                "message": "hi",
                "sendAt": there.isoformat(),
                "deliveryGuarantee": "at_least_once",
                "clientReference": None,
            },
        ),
        (
            "/campaigns",
            {
                "name": "Sale",
                "message_template": "hi",
                "scheduled_at": soon.isoformat(),
                "recipients": ["+258841234567", "+351912345678", "x"],
            },
            {
                "name": " Sale ",
                "content": "hi",
                "scheduledAt": there.isoformat(),
                "recipients": ["x", "+351 912 345 678", "258841234567", "+258841234567"],
                "audience_tag_match_mode": "any",
            },
        ),
        (
            "/campaigns",
            {
                "name": "Tags",
                "message_template": "hi",
                "scheduled_at": soon.isoformat(),
                "audience_tags": ["vip", "jos\u00e9"],
                "excluded_tags": ["staff", "away"],
            },
            {
                "name": "Tags",
                "content": "hi",
                "scheduled_at": soon.isoformat(),
                "audienceTags": ["Jose\u0301", " VIP", "vip"],
                "excludedTags": ["away", "Staff "],
            },
        ),
        (
            "/contacts",
            {
                "name": "Ana Silva",
                "firstName": "Ana",
                "lastName": "Silva",
                "phone": "+258841234567",
                "tags": ["vip", "a b"],
            },
            {
                "firstName": "Ana",
                "lastName": "Silva",
                "phoneNumber": "00258 84 123 4567",
                "tags": ["A  b", "a b", "VIP"],
            },
        ),
        (
            "/api-keys",
            {"name": "shop", "scopes": ["sms:send", "sms:read"], "expires_at": soon.isoformat()},
            {"name": "shop ", "scopes": ["sms:read", "sms:send", "sms:read"], "expires_at": there.isoformat()},
        ),
        (
            "/webhooks",
            {"url": "https://example.com/", "subscribed_events": ["message.failed", "message.delivered"]},
            {"url": "https://example.com/", "subscribed_events": ["message.delivered", "message.failed"] * 2},
        ),
    ]
    hook = {"url": "https://example.com/events", "subscribed_events": ["message.failed", "message.sent"]}
    _, _, made = await api.ask("POST", "/webhooks", json=hook, headers=tenant.headers)
    an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    spellings += [
        ("/opt-outs", {"recipient": "+258841234567"}, {"recipient": " 00258 84 123 4567", "reason": ""}),
        ("/sms/texts", {"name": "Hello", "body": "Hi"}, {"name": " Hello ", "body": "Hi"}),
        ("/exports", {"kind": "contacts", "tag": "vip"}, {"kind": "contacts", "tag": " VIP"}),
        (
            f"/webhooks/{made['webhookEndpoint']['id']}/replay",
            {"from": an_hour_ago, "kinds": ["message.failed", "message.sent"]},
            {"from": an_hour_ago, "kinds": ["message.sent", "message.failed", "message.sent"]},
        ),
    ]
    for number, (path, one, another) in enumerate(spellings):
        status, kind, first = await ask(api, tenant.headers, str(number), "POST", path, one)
        assert (status // 100, kind) == (2, "stored"), first
        assert await ask(api, tenant.headers, str(number), "POST", path, another) == (status, "replayed", first)
    status, _, listed = await ask(api, tenant.headers, "", "GET", "/contacts")
    path = f"/contacts/{listed['items'][0]['id']}"
    _, kind, first = await ask(api, tenant.headers, "change", "PATCH", path, {"tags": ["one", "two"]})
    assert kind == "stored"
    assert await ask(api, tenant.headers, "change", "PATCH", path, {"tags": ["Two", "one"]}) == (200, "replayed", first)
    assert first["contact"]["tags"] == ["one", "two"]
    _, kind, lifted = await ask(api, tenant.headers, "lift", "DELETE", "/opt-outs?recipient=%2B258841234567")
    assert kind == "stored", lifted
    again = await ask(api, tenant.headers, "lift", "DELETE", "/opt-outs?recipient=00258841234567")
    assert again == (200, "replayed", lifted)
    ways = {"notices": {"quota.used": ["bell", "mail"]}}
    _, kind, chosen = await ask(api, tenant.headers, "ways", "PATCH", "/account/settings", ways)
    assert kind == "stored", chosen
    ways = {"notices": {"quota.used": ["mail", "bell", "mail"]}}
    again = await ask(api, tenant.headers, "ways", "PATCH", "/account/settings", ways)
    assert again == (200, "replayed", chosen)


async def test_an_id_in_a_path_is_the_same_in_either_case(api: Api, tenant: Tenant, endpoint: UUID) -> None:
    # Another secret would end the one that the client has stored.
    path = "/webhooks/{}/rotate-secret".format
    status, kind, first = await ask(api, tenant.headers, "one", "POST", path(endpoint))
    assert (status, kind) == (200, "stored"), first
    assert str(endpoint).upper() != str(endpoint)
    again = await ask(api, tenant.headers, "one", "POST", path(str(endpoint).upper()))
    assert again == (200, "replayed", first)


async def test_a_campaign_is_replayed_after_its_time_and_under_other_settings(
    api: Api, tenant: Tenant, pool: Pool
) -> None:
    """What a campaign depends on is checked at once: the time, smart encoding, the sender, the audience."""
    await pool.execute("UPDATE organizations SET smart_encoding = true")
    text = "\u201cQuoted\u201d " + "x" * 900
    body = {"name": "Sale", "content": text, "recipients": ["+258841234567"]}
    status, kind, first = await ask(api, tenant.headers, "one", "POST", "/campaigns", body)
    assert (status, kind) == (201, "stored")
    await pool.execute("UPDATE organizations SET smart_encoding = false, state = 'suspended'")
    await pool.execute("UPDATE sender_ids SET status = 'suspended', is_default = false")
    assert await ask(api, tenant.headers, "one", "POST", "/campaigns", body) == (201, "replayed", first)


async def test_what_was_scheduled_is_replayed_after_its_time(api: Api, tenant: Tenant, pool: Pool) -> None:
    """The API passes the time on as written, and leaves judging it to the code that knows the key."""
    long_ago = "2020-01-01T00:00:00Z"
    send = {"to": "+258841234567", "message": "hi", "sendAt": long_ago}
    # Written out or left out, the defaults are the same spec.
    send |= {"deliveryGuarantee": "at_least_once", "class": "transactional"}
    campaign = {"name": "Sale", "content": "hi", "recipients": ["+258841234567"], "scheduledAt": long_ago}
    spec = await campaigns.canonical(reader(campaigns.CreateCampaign)(msgspec.json.encode(campaign)))
    for path, body, meant, field in (
        ("/sms/send", send, msgspec.convert(send, SendSms), "sendAt"),
        ("/campaigns", campaign, [spec, None, None], "scheduledAt"),
    ):
        status, _, answer = await ask(api, tenant.headers, "one", "POST", path, body)
        assert (status, answer["error"]["details"]["fields"][0]["field"]) == (400, field)
        known = tenant.id, key_hash("live", "POST", path, "one"), request_hash(meant)
        if path == "/sms/send":
            await pool.execute(
                "INSERT INTO send_keys (organization_id, key_hash, made_on, request_hash, message_id, created_at)"
                " VALUES ($1, $2, (now() AT TIME ZONE 'UTC')::date, $3, $4, now())",
                *known,
                id := uuid7(),
            )
            status, kind, answer = await ask(api, tenant.headers, "one", "POST", path, body)
            assert (status, kind, answer["message"]["id"]) == (202, "replayed", str(id))
        else:
            await pool.execute(
                "INSERT INTO idempotency (organization_id, key_hash, request_hash, status, body, created_at)"
                " VALUES ($1, $2, $3, 201, '{}', now())",
                *known,
            )
            assert await ask(api, tenant.headers, "one", "POST", path, body) == (201, "replayed", {})


async def test_a_suspended_organization_is_told_so_before_anything_is_looked_up(
    api: Api, tenant: Tenant, pool: Pool
) -> None:
    await pool.execute("UPDATE organizations SET state = 'suspended'")
    unknown = "019c8f64-1f0a-7d52-8c3b-5a9e2d7f6b10"
    requests: list[tuple[str, Any]] = [
        ("/sms/send", {"to": "+258841234567", "message": "hi", "senderId": unknown}),
        ("/campaigns", {"name": "a", "content": "hi", "sender_id": unknown, "recipients": ["+258841234567"]}),
        (
            "/whatsapp/messages",
            {
                "type": "template",
                "to": "+258841234567",
                "phoneNumberId": unknown,
                "template": {"name": "none", "language": "en", "category": "utility", "parameters": []},
            },
        ),
    ]
    for number, (path, body) in enumerate(requests):
        status, _, answer = await ask(api, tenant.headers, str(number), "POST", path, body)
        assert (status, answer["error"]["code"]) == (403, "organization_suspended"), path
    # Errors in the fields themselves come first, by the order of checks.
    wrong: list[tuple[str, str, Any]] = [
        ("POST", "/campaigns", {"name": "a", "content": "{{nobody}}", "recipients": ["+258841234567"]}),
        ("POST", "/webhooks", {"url": "https://example.com/", "subscribed_events": ["nothing"]}),
        ("POST", "/sender-ids", {"value": "!"}),
        ("POST", "/api-keys", {"name": "a"}),
        ("POST", "/api-keys", {"name": " ", "profile": "sms"}),
        ("POST", "/api-keys", {"name": "a", "profile": "nothing"}),
        ("POST", "/api-keys", {"name": "a", "scopes": ["nothing"]}),
        ("DELETE", "/api-keys/1", None),
        ("DELETE", "/campaigns/1", None),
        ("DELETE", "/sms/messages/1", None),
        ("POST", "/webhooks/1/test", None),
    ]
    for method, path, body in wrong:
        status, _, answer = await ask(api, tenant.headers, "x", method, path, body)
        assert (status, answer["error"]["code"]) == (400, "validation_error"), (path, answer)


async def test_what_is_wrong_now_is_named_together_with_what_is_always_wrong(
    api: Api, tenant: Tenant, endpoint: UUID
) -> None:
    past = "2020-01-01T00:00:00Z"
    private = {"url": "https://10.0.0.1/", "subscribed_events": ["nothing"]}
    campaign = {"name": "a", "recipients": ["+258841234567"], "scheduledAt": past}
    requests: list[tuple[str, str, Any, list[str]]] = [
        ("POST", "/webhooks", private, ["subscribed_events", "url"]),
        ("PATCH", f"/webhooks/{endpoint}", private, ["subscribed_events", "url"]),
        ("POST", f"/webhooks/{endpoint}/replay", {"from": past, "kinds": ["nothing"]}, ["from", "kinds"]),
        ("POST", "/api-keys", {"name": "a", "profile": "nothing", "expires_at": past}, ["expires_at", "profile"]),
        ("POST", "/campaigns", campaign | {"content": "{{nobody}}"}, ["content", "scheduledAt"]),
        ("POST", "/campaigns", campaign | {"content": "a" * 1531}, ["content", "scheduledAt"]),
        ("POST", "/sms/send", {"to": "x", "message": "a" * 1531, "sendAt": past}, ["message", "sendAt", "to"]),
        ("POST", "/sms/send", {"to": "+258841234567", "message": "a" * 1531, "sendAt": past}, ["message", "sendAt"]),
        ("POST", "/sms/preview", {"to": "x", "message": "a", "sendAt": past}, ["sendAt", "to"]),
    ]
    for method, path, body, fields in requests:
        status, _, answer = await ask(api, tenant.headers, "one", method, path, body)
        assert (status, answer["error"]["code"]) == (400, "validation_error"), (path, answer)
        assert sorted(one["field"] for one in answer["error"]["details"]["fields"]) == fields, (path, answer)


async def test_what_is_wrong_at_any_time_is_refused_before_the_key_is_looked_up(
    api: Api, tenant: Tenant, endpoint: UUID
) -> None:
    day, later = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
    recently = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    requests: list[tuple[str, str, Any, list[tuple[Any, set[str]]]]] = [
        (
            "PATCH",
            f"/webhooks/{endpoint}",
            {"description": "mine"},
            [
                ({"recover": True}, {"recover"}),
                ({"disabled": True, "paused": True, "recover": True}, {"recover", "paused"}),
            ],
        ),
        (
            "POST",
            f"/webhooks/{endpoint}/replay",
            {"from": recently},
            [({"from": later, "to": day, "kinds": ["nothing"]}, {"from", "kinds"})],
        ),
        (
            "POST",
            "/exports",
            {"kind": "contacts"},
            [
                ({"kind": "contacts", "tag": "\u200b", "dateFrom": day}, {"tag", "dateFrom"}),
                ({"kind": "messages", "tag": "vip", "dateFrom": later, "dateTo": day}, {"tag", "dateFrom"}),
            ],
        ),
        (
            "PATCH",
            "/account/settings",
            {"quietHours": "off"},
            [({"quietHours": "never", "notices": {"nothing": []}}, {"quietHours", "notices.nothing"})],
        ),
    ]
    for method, path, right, wrong in requests:
        status, kind, answer = await ask(api, tenant.headers, "one", method, path, right)
        assert (status // 100, kind) == (2, "stored"), answer
        for body, fields in wrong:
            status, _, answer = await ask(api, tenant.headers, "one", method, path, body)
            assert (status, answer["error"]["code"]) == (400, "validation_error"), (path, answer)
            assert {one["field"] for one in answer["error"]["details"]["fields"]} == fields


async def test_a_secret_that_the_service_can_no_longer_open_is_not_shown_again(
    database_url: str, tenant: Tenant, pool: Pool
) -> None:
    body = {"name": "shop", "profile": "sms_only"}
    async with running(database_url) as api:
        assert (await ask(api, tenant.headers, "one", "POST", "/api-keys", body))[:2] == (201, "stored")
    async with running(database_url, secret_key="another secret key, which is as long as the first") as api:
        status, _, answer = await ask(api, tenant.headers, "one", "POST", "/api-keys", body)
    assert (status, answer["error"]["code"]) == (409, "idempotency_conflict")
    assert "secret key has changed" in answer["error"]["message"]
    assert await pool.fetchval("SELECT count(*) FROM api_keys") == 2


async def test_a_plus_in_a_dates_zone_need_not_be_encoded(api: Api, tenant: Tenant) -> None:
    body = {"to": "+258841234567", "message": "hi"}
    assert (await ask(api, tenant.headers, "one", "POST", "/sms/send", body))[0] == 202
    for path in ("/sms/messages", "/usage"):
        for zone in ("+02:00", "%2B02:00", "-02:00"):
            url = URL(f"{api.base_url}/v1{path}?dateFrom=2020-01-01T00:00:00{zone}", encoded=True)
            async with api.session.get(url, headers=tenant.headers) as answer:
                assert answer.status == 200, (path, zone, await answer.text())
                assert (await answer.json())["items"]
    url = URL(f"{api.base_url}/v1/usage?dateFrom=2020-01-01T00:00:00%20%2B02:00", encoded=True)
    async with api.session.get(url, headers=tenant.headers) as answer:
        assert answer.status == 400
