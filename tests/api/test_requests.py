"""The log of requests: what is stored, what never is, and how accepted sends are reconstructed from their messages."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.requests import Entry, Log, blanking, recording
from heliograph.webhooks.delivery import signing
from tests.hooks import until
from tests.rules.factories import blocked

from .conftest import Api, Tenant, make_tenant

PHONE = "+258841234567"


async def ask(api: Api, tenant: Tenant, method: str, path: str, **more: Any) -> tuple[int, Any, Any]:
    headers = tenant.headers | more.pop("headers", {})
    return await api.ask(method, path, headers=headers, **more)


async def logged(api: Api, tenant: Tenant, count: int, query: str = "") -> list[Any]:
    """The list, once it has this many entries."""
    found: list[Any] = []

    async def is_there() -> bool:
        found[:] = (await ask(api, tenant, "GET", f"/requests?{query}"))[2]["items"]
        return len(found) >= count

    await until(is_there)
    assert len(found) == count
    return found


async def test_refusals_mutations_and_accepted_sends_are_one_list(api: Api, pool: Pool, tenant: Tenant) -> None:
    key = {"idempotency-key": "order-1"}
    body = {"to": PHONE, "message": "Your code is FOUR-SEVEN"}
    status, headers, sent = await ask(api, tenant, "POST", "/sms/send", json=body, headers=key)
    assert status == 202
    assert (await ask(api, tenant, "POST", "/sms/send", json=body, headers=key))[0] == 202
    _, conflict, _ = await ask(api, tenant, "POST", "/sms/send", json=body | {"message": "Other"}, headers=key)
    await ask(api, tenant, "POST", "/contacts", json={"name": "Ana Silva", "phone": PHONE})
    await ask(api, tenant, "GET", f"/sms/messages/{PHONE}")
    await ask(api, tenant, "GET", "/contacts")  # a successful read is only counted
    items = await logged(api, tenant, 5)
    assert [(one["operation"], one["status"], one["errorCode"], one["idempotency"]) for one in items] == [
        ("getSmsMessage", 400, "validation_error", None),
        ("createContact", 200, None, None),
        ("sendSms", 409, "idempotency_conflict", "conflict"),
        ("sendSms", 202, None, "replayed"),
        ("sendSms", 202, None, None),
    ]
    assert items[-1]["id"] == items[-1]["messageId"] == sent["message"]["id"]
    assert items[-1]["requestId"] == headers["x-request-id"]
    for id in (items[-1]["id"], headers["x-request-id"], conflict["x-request-id"]):
        status, _, one = await ask(api, tenant, "GET", f"/requests/{id}")
        assert status == 200
        assert id in (one["request"]["id"], one["request"]["requestId"])
    assert {one["apiKeyId"] for one in items} == {str(await pool.fetchval("SELECT key_id FROM messages"))}
    for query, count in (
        ("statusClass=2xx", 3),
        ("statusClass=4xx", 2),
        ("errorCode=idempotency_conflict", 1),
        ("operation=createContact", 1),
        ("status=202", 2),
        ("status=409", 1),
        ("status=200&statusClass=4xx", 0),
        ("method=GET", 1),
        ("method=POST", 4),
        ("method=POST&status=409", 1),
        ("path=/sms", 4),
        ("path=/sms/send", 3),
        ("path=/sms/sen", 0),
        ("path=/v1/sms/", 4),
        ("path=/sms/send&method=GET", 0),
        ("path=/whatsapp", 0),
        ("path=/sms/send&operation=sendWhatsAppMessage", 0),
        ("operation=sendSms&statusClass=2xx", 2),
        (f"requestId={conflict['x-request-id']}", 1),
        (f"requestId={headers['x-request-id']}", 1),
        (f"apiKeyId={items[0]['apiKeyId']}", 5),
        (f"apiKeyId={uuid.uuid4()}", 0),
        ("dateTo=2026-01-01T00:00:00Z", 0),
    ):
        assert len((await ask(api, tenant, "GET", f"/requests?{query}"))[2]["items"]) == count, query
    for at in {one["at"] for one in items}:
        for query, wanted in (
            (f"dateFrom={at}", [one for one in items if one["at"] >= at]),
            (f"dateTo={at}", [one for one in items if one["at"] < at]),
        ):
            assert (await ask(api, tenant, "GET", f"/requests?{query}"))[2]["items"] == wanted, query
    first = (await ask(api, tenant, "GET", "/requests?limit=3"))[2]
    second = (await ask(api, tenant, "GET", f"/requests?limit=3&cursor={first['nextCursor']}"))[2]
    assert [*first["items"], *second["items"]] == items
    first = (await ask(api, tenant, "GET", "/requests?limit=1&path=/v1/sms/"))[2]
    second = (await ask(api, tenant, "GET", f"/requests?limit=1&path=/sms&cursor={first['nextCursor']}"))[2]
    assert [len(page["items"]) for page in (first, second)] == [1, 1]
    # Each of these is refused, and so is listed itself sooner or later.
    status, _, refused = await ask(api, tenant, "GET", "/requests?path=sms")
    assert (status, refused["error"]["details"]["fields"][0]["field"]) == (400, "path")
    for query, field, message in (
        (
            "errorCode=idempotency-conflict",
            "errorCode",
            "an error code of this API; did you mean `idempotency_conflict`?",
        ),
        ("errorCode=Validation_Eror", "errorCode", "an error code of this API; did you mean `validation_error`?"),
        ("errorCode=zzz", "errorCode", "an error code of this API; the API reference lists them"),
        ("operation=sendSMS", "operation", "an operation of this API; did you mean `sendSms`?"),
        ("operation=/contact", "operation", "an operation of this API; did you mean `/contacts`?"),
    ):
        status, _, refused = await ask(api, tenant, "GET", f"/requests?{query}")
        assert status == 400, query
        expected = {"field": field, "issue": "enum", "message": f"`{field}` is not {message}"}
        assert refused["error"]["details"]["fields"] == [expected]
    assert (await ask(api, tenant, "GET", "/requests?operation=/team/invite"))[2]["items"] == []  # of the dashboard
    counted = await pool.fetch("SELECT operation, sum(count)::int AS n FROM request_counts GROUP BY 1")
    assert {row["operation"]: row["n"] for row in counted}["listContacts"] == 1

    # One of them, by its own id and by its x-request-id, with other requests with the same key.
    for id in (items[2]["id"], items[2]["requestId"]):
        found = (await ask(api, tenant, "GET", f"/requests/{id}"))[2]
        assert found["request"]["errorCode"] == "idempotency_conflict"
        assert [one["idempotency"] for one in found["siblings"]] == ["replayed"]
        assert msgspec.json.decode(found["request"]["body"]) == {"to": "••• (13)", "message": "••• (5)"}
        assert "idempotency_conflict" in found["request"]["answer"]
    assert (await ask(api, tenant, "GET", f"/requests/{sent['message']['id']}"))[2]["request"]["status"] == 202
    assert (await ask(api, tenant, "GET", f"/requests/{uuid.uuid4()}"))[0] == 404

    kept = msgspec.json.encode([dict(row) for row in await pool.fetch("SELECT * FROM requests")]).decode()
    for secret in (PHONE[1:], "FOUR-SEVEN", "Ana", "Other", *tenant.headers.values()):
        assert secret not in kept
    stranger = await make_tenant(pool)
    assert (await ask(api, stranger, "GET", "/requests"))[2]["items"] == []
    assert (await ask(api, stranger, "GET", f"/requests/{items[2]['id']}"))[0] == 404


async def test_messages_are_found_by_what_sent_them(api: Api, pool: Pool, tenant: Tenant) -> None:
    body = {"to": PHONE, "message": "Hello"}
    _, _, sent = await ask(api, tenant, "POST", "/sms/send", json=body, headers={"idempotency-key": "one"})
    (message,) = (await ask(api, tenant, "GET", "/sms/messages"))[2]["items"]
    key = message["apiKeyId"]
    for query, ids in (
        (f"apiKeyId={key}", [sent["message"]["id"]]),
        (f"apiKeyId={uuid.uuid4()}", []),
        ("country=MZ&sender=HELIOGRAPH", [sent["message"]["id"]]),
        ("country=PT", []),
        ("sender=OTHER", []),
        ("failureCode=destination_unreachable", []),
    ):
        found = (await ask(api, tenant, "GET", f"/sms/messages?{query}"))[2]["items"]
        assert [one["id"] for one in found] == ids, query


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"to": PHONE, "type": "text", "sendAt": "2027-01-31T10:00:00Z"}, {"to": "••• (13)", "type": "text"}),
        ({"to": 258841234567, "limit": 50}, {"to": "•••", "limit": 50}),
        ({"clientReference": "call 84 123 4567"}, {"clientReference": "••• (16)"}),
        ({"clientReference": "order-1"}, {"clientReference": "order-1"}),
        ({"senderId": "019c8f5a-0d3e-7b61-8f02-6c1d9a7e4b55"}, {"senderId": "019c8f5a-0d3e-7b61-8f02-6c1d9a7e4b55"}),
        ({"url": "https://x.example/?token=1", "a b": 1}, {"url": "••• (26)", "•••": "•••"}),
        ({"reason": "asked at the counter", "code": "492817"}, {"reason": "••• (20)", "code": "••• (6)"}),
        ({"values": {"Ana": "x"}}, {"values": {"•••": "••• (1)"}}),
        ([PHONE, {"name": "Ana"}], ["••• (13)", {"name": "••• (3)"}]),
        (None, None),
    ],
)
def test_only_the_shape_of_a_body_is_kept(given: Any, kept: Any) -> None:
    found = msgspec.json.decode(blanking.body(msgspec.json.encode(given)))
    if isinstance(found, dict):
        found.pop("sendAt", None)
    assert found == kept


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"[" * 5000 + b"]" * 5000, b'"' + b"x" * 9000 + b'"'])
def test_a_body_that_cannot_be_looked_at_is_not_kept(raw: bytes) -> None:
    assert blanking.body(raw) == ""


def test_a_deep_or_long_body_is_cut() -> None:
    deep: Any = 1
    for _ in range(30):
        deep = [deep]
    assert blanking.BLANK in blanking.body(msgspec.json.encode(deep))
    assert len(blanking.body(msgspec.json.encode({f"f{n}": True for n in range(600)}))) <= blanking.KEPT_CHARACTERS
    assert blanking.path("/contacts/{contactId}", {"contactId": PHONE}) == "/contacts/•••"


def test_a_secret_in_the_wrong_place_is_not_kept(tenant: Tenant) -> None:
    endpoint = signing.new_secret()
    for secret in (tenant.secret, endpoint):
        given = {"class": secret, "tags": [secret, "vip"], secret: 1, "details": {"fields": [{"field": secret}]}}
        kept = blanking.body(msgspec.json.encode(given))
        assert secret not in kept
        assert "vip" in kept
        told = {"error": {"message": f"`{secret}` is not a field", "details": {"fields": [{"field": secret}]}}}
        kept = blanking.answer(msgspec.json.encode(told))
        assert secret not in kept
        assert "is not a field" in kept


def entry(organization_id: UUID, **more: Any) -> Entry:
    values: dict[str, Any] = {
        "organization_id": organization_id,
        "id": uuid7(),
        "mode": "live",
        "method": "POST",
        "path": "/contacts",
        "operation": "createContact",
        "status": 409,
        "error_code": "contact_already_exists",
        "duration_ms": 1,
        "address": "192.0.2.1",
        "agent": "shop\0/1",
        "request_id": "one",
    }
    return Entry(**(values | more))


async def test_a_flood_of_refusals_is_counted_and_bounded(pool: Pool) -> None:
    log, one, other = Log(pool), uuid.uuid4(), uuid.uuid4()
    for _ in range(recording.MOST_OF_ONE + 50):
        log.note(entry(one, body=b'{"name": "x"}'))
    log.note(entry(other, body=b"x" * 100_000))
    await log.close()
    await log.close()
    rows = await pool.fetch("SELECT organization_id, count(*)::int AS n FROM requests GROUP BY 1")
    assert {row["organization_id"]: row["n"] for row in rows} == {one: recording.MOST_OF_ONE, other: 1}
    counted = await pool.fetch("SELECT organization_id, count, first_at <= last_at AS fits FROM request_counts")
    assert {row["organization_id"]: row["count"] for row in counted} == {one: recording.MOST_OF_ONE + 50, other: 1}
    assert all(row["fits"] for row in counted)
    # Two processes that count the same add up.
    log.count(other, "live", "createContact", 409, "contact_already_exists")
    await log.close()
    assert await pool.fetchval("SELECT count FROM request_counts WHERE organization_id = $1", other) == 2
    assert await pool.fetchval("SELECT agent FROM requests WHERE organization_id = $1", other) == "shop/1"


async def test_what_is_being_written_when_its_process_ends_is_counted_once(pool: Pool) -> None:
    """Requests of the last second were missing from the log and its counts, and no line said so."""
    log, one = Log(pool), uuid.uuid4()
    log.note(entry(one))
    async with pool.acquire() as other, other.transaction():
        await other.execute("LOCK TABLE requests")
        writing = asyncio.create_task(log.close())
        await blocked(pool)
        log.note(entry(one))
        # As `serve` ends.
        writing.cancel()
        ending = asyncio.create_task(log.close())
        await asyncio.gather(writing, return_exceptions=True)
    await ending
    assert await pool.fetchval("SELECT count(*) FROM requests") == 2
    assert await pool.fetchval("SELECT sum(count) FROM request_counts") == 2


async def test_a_log_that_cannot_be_written_disturbs_nobody(pool: Pool) -> None:
    log = Log(pool)
    log.note(entry(uuid.uuid4(), status=100_000))
    await log.close()
    assert await pool.fetchval("SELECT count(*) FROM requests") == 0
