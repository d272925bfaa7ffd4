"""POST /v1/sms/send over HTTP: the contract's response, its headers, replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from heliograph.accounts import quota
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool

from .conftest import Api, Tenant, make_tenant

BODY = {"to": "+258841234567", "message": "Hello", "clientReference": "order-1"}


async def test_a_send_is_accepted_as_the_contract_says(api: Api, tenant: Tenant, pool: Pool) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one", "X-Request-Id": "my-request.1"}
    status, answered, body = await api.ask("POST", "/sms/send", json=BODY, headers=headers)
    assert status == 202, body
    message_id = body["message"]["id"]
    assert body == {
        "success": True,
        "queued": True,
        "status": "accepted",
        "count": 1,
        "remainingQuota": 999,
        "message": {"id": message_id, "clientReference": "order-1"},
        "provider": {"code": "heliograph", "messageId": None, "httpStatus": 202},
    }
    assert answered["x-request-id"] == "my-request.1"
    assert answered["x-idempotency-status"] == "stored"
    assert answered["X-RateLimit-Limit"] == "10000"
    assert answered["X-RateLimit-Remaining"] == "9999"
    assert answered["X-RateLimit-Reset"].endswith(":00.000Z")
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE id = $1", message_id) == 1


async def test_a_replay_is_byte_for_byte(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one"}
    bodies = []
    for spelling in (BODY, {"message": "Hello", "clientReference": "order-1", "to": "258841234567", "senderId": None}):
        async with api.session.post(api.base_url + "/v1/sms/send", json=spelling, headers=headers) as answer:
            assert answer.status == 202
            bodies.append((answer.headers["x-idempotency-status"], await answer.read(), answer.headers["x-request-id"]))
    assert [status for status, _, _ in bodies] == ["stored", "replayed"]
    assert bodies[0][1] == bodies[1][1]
    assert bodies[0][2] != bodies[1][2]


async def test_the_same_key_with_another_payload_is_a_conflict(api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one"}
    await api.ask("POST", "/sms/send", json=BODY, headers=headers)
    status, _, body = await api.ask("POST", "/sms/send", json=BODY | {"message": "Other"}, headers=headers)
    assert (status, body["error"]["code"]) == (409, "idempotency_conflict")


async def test_many_identical_posts_make_one_message(api: Api, tenant: Tenant, pool: Pool) -> None:
    async def post(number: int) -> tuple[int, str, bytes]:
        headers = tenant.headers | {"Idempotency-Key": f"twin-{number}"}
        async with api.session.post(api.base_url + "/v1/sms/send", json=BODY, headers=headers) as answer:
            return answer.status, answer.headers["x-idempotency-status"], await answer.read()

    for number in range(3):
        answers = await asyncio.gather(*(post(number) for _ in range(200)))
        assert {status for status, _, _ in answers} == {202}
        assert sorted(kind for _, kind, _ in answers) == ["replayed"] * 199 + ["stored"]
        assert len({body for _, _, body in answers}) == 1
    assert await pool.fetchval("SELECT count(*) FROM messages") == 3


async def test_both_sender_forms_and_the_optional_fields(api: Api, tenant: Tenant, pool: Pool) -> None:
    sender = await pool.fetchval("SELECT id FROM sender_ids")
    forms = (
        {"senderId": str(sender)},
        {"senderName": "heliograph"},
        {"senderId": str(sender), "senderName": "HELIOGRAPH"},
        {"validitySeconds": 60, "deliveryGuarantee": "at_most_once"},
        {"validitySeconds": 3600.0, "sendAt": (clock.now() + timedelta(hours=1)).isoformat()},
    )
    for number, form in enumerate(forms):
        headers = tenant.headers | {"Idempotency-Key": f"form-{number}"}
        status, _, body = await api.ask("POST", "/sms/send", json=BODY | form, headers=headers)
        assert status == 202, body
    scheduled = await pool.fetchval("SELECT count(*) FROM queue WHERE due_at > now() + interval '59 minutes'")
    assert scheduled == 1
    headers = tenant.headers | {"Idempotency-Key": "unknown"}
    status, _, body = await api.ask("POST", "/sms/send", json=BODY | {"senderName": "NOBODY"}, headers=headers)
    assert (status, body["error"]["code"]) == (409, "sender_id_not_approved")
    status, _, body = await api.ask("POST", "/sms/send", json=BODY | {"senderId": str(tenant.id)}, headers=headers)
    assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "senderId")


async def test_without_quota_nothing_is_sent_and_the_key_is_free(api: Api, pool: Pool) -> None:
    tenant = await make_tenant(pool, amount=1)
    for number, expected in ((1, 202), (2, 409)):
        headers = tenant.headers | {"Idempotency-Key": f"key-{number}"}
        status, _, body = await api.ask("POST", "/sms/send", json=BODY, headers=headers)
        assert status == expected
    assert body["error"]["code"] == "quota_exceeded"
    assert body["error"]["details"] == {"remainingQuota": 0, "requested": 1}
    async with pool.acquire() as conn:
        await quota.grant(conn, tenant.id, amount=5, reason="more")
    status, answered, _ = await api.ask("POST", "/sms/send", json=BODY, headers=headers)
    assert (status, answered["x-idempotency-status"]) == (202, "stored")
