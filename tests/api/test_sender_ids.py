"""Sender IDs over HTTP: requested, decided by operators, reported by events, and used."""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.sms.accepting import sender_ids
from tests.rules.factories import endpoint

from .conftest import Api, Tenant, make_tenant

FIELDS = ["id", "value", "status", "is_default", "rejection_reason", "created_at", "reviewed_at"]


async def review(pool: Pool, actor: Actor, id: str, status: str, reason: str | None = None) -> None:
    async with pool.acquire() as conn:
        await sender_ids.review(conn, actor, id=UUID(id), status=status, reason=reason)


async def test_a_sender_id_is_asked_for_decided_on_and_listed(api: Api, tenant: Tenant, pool: Pool) -> None:
    status, headers, body = await api.ask("POST", "/sender-ids", json={"value": "Acme Lda"}, headers=tenant.headers)
    assert (status, list(body), list(body["senderId"])) == (201, ["success", "senderId"], FIELDS)
    assert "x-idempotency-status" not in headers
    asked = body["senderId"]
    expected = {"value": "Acme Lda", "status": "pending", "is_default": False}
    assert asked == asked | expected | {"rejection_reason": None, "reviewed_at": None}
    # Pending: the same record.
    status, _, body = await api.ask("POST", "/sender-ids", json={"value": "ACME LDA"}, headers=tenant.headers)
    assert (status, body["senderId"]) == (201, asked)

    await review(pool, tenant.actor, asked["id"], "rejected", "whose name is it")
    _, _, listed = await api.ask("GET", "/sender-ids", headers=tenant.headers)
    assert list(listed) == ["success", "items"]
    default, rejected = listed["items"]
    assert (default["value"], default["status"], default["is_default"]) == ("HELIOGRAPH", "approved", True)
    assert (rejected["status"], rejected["rejection_reason"]) == ("rejected", "whose name is it")
    assert rejected["reviewed_at"].endswith("Z")
    # Rejected: pending again, with the new spelling.
    status, _, body = await api.ask("POST", "/sender-ids", json={"value": "ACME Lda"}, headers=tenant.headers)
    assert (status, body["senderId"]) == (201, asked | {"value": "ACME Lda"})
    await review(pool, tenant.actor, asked["id"], "approved")
    status, _, body = await api.ask("POST", "/sender-ids", json={"value": "acme lda"}, headers=tenant.headers)
    assert (status, body["error"]["code"]) == (409, "sender_id_already_exists")
    assert body["error"]["details"] == {"id": asked["id"], "status": "approved"}
    send = {"to": "+258841234567", "message": "hi", "senderName": "acme lda"}
    status, _, _ = await api.ask("POST", "/sms/send", json=send, headers=tenant.headers | {"Idempotency-Key": "1"})
    assert status == 202
    assert await pool.fetchval("SELECT sender FROM messages") == "ACME Lda"


async def test_organizations_do_not_see_each_others(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    _, _, body = await api.ask("POST", "/sender-ids", json={"value": "ACME"}, headers=other.headers)
    _, _, listed = await api.ask("GET", "/sender-ids", headers=tenant.headers)
    assert [item["value"] for item in listed["items"]] == ["HELIOGRAPH"]
    status, _, mine = await api.ask("POST", "/sender-ids", json={"value": "ACME"}, headers=tenant.headers)
    assert (status, mine["senderId"]["id"] == body["senderId"]["id"]) == (201, False)


async def test_what_a_value_must_be(api: Api, tenant: Tenant) -> None:
    for value in ("ab", "x" * 12, "12", "1" * 16, " abc", "abc ", "a  b", "Ação", "...", "12-34", "abc\n", "a/b"):
        status, _, body = await api.ask("POST", "/sender-ids", json={"value": value}, headers=tenant.headers)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "value"), value
    for wrong, field in (({}, "value"), ({"value": 5}, "value"), ({"value": "ACME", "name": "x"}, "name")):
        status, _, body = await api.ask("POST", "/sender-ids", json=wrong, headers=tenant.headers)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, field)
    for value in ("abc", "A.B-C_D&E f", "123", "1" * 15, "4ever"):
        status, _, _ = await api.ask("POST", "/sender-ids", json={"value": value}, headers=tenant.headers)
        assert status == 201, value


async def test_a_decision_is_an_event_for_those_who_subscribed(api: Api, tenant: Tenant, pool: Pool) -> None:
    await pool.execute("DELETE FROM events")
    hook = await endpoint(pool, tenant.actor, "sender_id.approved")
    _, _, body = await api.ask("POST", "/sender-ids", json={"value": "ACME"}, headers=tenant.headers)
    id = body["senderId"]["id"]
    for status, reason in (("rejected", "why"), ("approved", None), ("approved", None), ("suspended", "complaints")):
        await review(pool, tenant.actor, id, status, reason)
    rows = await pool.fetch("SELECT id, kind, message_id, data FROM events ORDER BY id")
    assert [row["kind"] for row in rows] == ["sender_id.rejected", "sender_id.approved"]
    rejected, approved = (msgspec.json.decode(row["data"]) for row in rows)
    assert rejected["senderId"] == rejected["senderId"] | {"id": id, "status": "rejected", "rejection_reason": "why"}
    assert list(approved["senderId"]) == FIELDS
    assert (approved["senderId"]["status"], approved["senderId"]["rejection_reason"]) == ("approved", None)
    queued = await pool.fetch("SELECT id, line FROM queue WHERE kind = 'webhook'")
    assert [tuple(row) for row in queued] == [(rows[1]["id"], hook)]
