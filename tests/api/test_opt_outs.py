"""Opt-outs over HTTP: listed in pages, added on request, lifted only by those who added them; and keywords from
handsets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut
from heliograph.queue import timers
from heliograph.sealing import text_keys
from heliograph.sms.received import inbox
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.events import Event
from tests.rules.factories import sender
from tests.rules.test_inbound import NUMBER, handset_message, receive_and_process

from .conftest import Api, Tenant, make_tenant

WRITTEN = """
INSERT INTO received_messages (organization_id, id, supplier_id, sender, recipient, sender_id, segments, missing,
                               keyword, body, received_at)
SELECT $1, $2, $2, $3, 'HELIOGRAPH', s.id, 2, 1, $4, $5, now() FROM sender_ids s WHERE organization_id = $1
"""


async def ask(api: Api, tenant: Tenant, method: str, path: str, **options: Any) -> tuple[int, Any]:
    status, _, answer = await api.ask(method, path, headers=tenant.headers, **options)
    return status, answer


async def test_an_opt_out_is_added_holds_and_is_lifted(api: Api, tenant: Tenant, pool: Pool) -> None:
    body = {"recipient": "+258 84 123 4567", "reason": "asked at the counter"}
    status, answer = await ask(api, tenant, "POST", "/opt-outs", json=body)
    assert status == 201, answer
    assert answer["optOut"] | {"recipient": "+258841234567", "source": "organization"} == answer["optOut"]
    assert (await ask(api, tenant, "POST", "/opt-outs", json=body))[1] == answer
    # Fields have the same names in responses and requests: an opt-out that was read can be added elsewhere as it is.
    assert (await ask(api, tenant, "POST", "/opt-outs", json={"recipient": answer["optOut"]["recipient"]}))[0] == 201
    send = {"to": "+258841234567", "message": "hi"}
    headers = tenant.headers | {"Idempotency-Key": "k"}
    status, _, refused = await api.ask("POST", "/sms/send", json=send, headers=headers)
    assert (status, refused["error"]["code"]) == (409, "recipient_opted_out")
    status, lifted = await ask(api, tenant, "DELETE", "/opt-outs?recipient=%2B258841234567&reason=asked")
    assert (status, lifted) == (200, answer)
    status, gone = await ask(api, tenant, "DELETE", "/opt-outs?recipient=+258841234567")
    assert (status, gone["error"]["code"]) == (404, "not_found")
    assert (await api.ask("POST", "/sms/send", json=send, headers=headers))[0] == 202
    rows = await pool.fetch("SELECT action, reason FROM audit_log WHERE action LIKE 'opt_out%' ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("opt_out.added", "asked at the counter"),
        ("opt_out.lifted", "asked"),
    ]


async def test_nobody_lifts_what_somebody_said_themselves(api: Api, tenant: Tenant, pool: Pool) -> None:
    async with pool.acquire() as conn:
        stop = OptOut(tenant.id, "+258841234567", clock.now(), optouts.KEYWORD, "stop", uuid7())
        await optouts.suppress(conn, [stop])
        await optouts.add(conn, tenant.actor, phone="+258840000001")
    for recipient, source in (("%2B258841234567", "keyword"), ("%2B258840000001", "operator")):
        status, answer = await ask(api, tenant, "DELETE", f"/opt-outs?recipient={recipient}")
        assert (status, answer["error"]["code"]) == (409, "opt_out_not_liftable")
        assert answer["error"]["details"]["source"] == source
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 2


async def test_the_list_has_pages_and_finds_one_person(api: Api, tenant: Tenant, pool: Pool) -> None:
    at = clock.now()
    # Two of the same moment: the page ends between them.
    since = [at, at - timedelta(hours=1), at - timedelta(hours=1), at - timedelta(days=9)]
    wanted = [OptOut(tenant.id, f"+25884123456{n}", each, optouts.OPERATOR) for n, each in enumerate(since)]
    async with pool.acquire() as conn:
        await optouts.suppress(conn, wanted)
        other = await make_tenant(pool)
        await optouts.add(conn, other.actor, phone="+258849999999")
    seen: list[str] = []
    cursor = ""
    while True:
        _, answer = await ask(api, tenant, "GET", f"/opt-outs?limit=2{cursor}")
        seen += [one["recipient"] for one in answer["items"]]
        if not answer["hasMore"]:
            break
        cursor = f"&cursor={answer['nextCursor']}"
    assert seen == [f"+25884123456{n}" for n in (0, 2, 1, 3)]
    _, answer = await ask(api, tenant, "GET", "/opt-outs?recipient=%2B258841234562")
    assert [one["recipient"] for one in answer["items"]] == ["+258841234562"]
    for unknown in ("%2B258849999999", "%2B258841230000"):
        assert (await ask(api, tenant, "GET", f"/opt-outs?recipient={unknown}"))[1]["items"] == []
    status, answer = await ask(api, tenant, "GET", "/opt-outs?recipient=nonsense")
    assert (status, answer["error"]["details"]["fields"][0]["field"]) == (400, "recipient")


async def test_a_test_key_reads_opt_outs_and_changes_none(api: Api, pool: Pool) -> None:
    tester = await make_tenant(pool, mode="test")
    assert (await ask(api, tester, "GET", "/opt-outs"))[0] == 200
    for method, path, body in (
        ("POST", "/opt-outs", {"recipient": "+258841234567"}),
        ("DELETE", "/opt-outs?recipient=%2B258841234567", None),
    ):
        status, answer = await ask(api, tester, method, path, json=body)
        assert (status, answer["error"]["code"]) == (403, "live_key_required")


async def test_what_handsets_wrote_is_listed(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    for owner, number, keyword, text in (
        (tenant, 1, None, "When do you open?"),
        (tenant, 2, "stop", "STOP"),
        (other, 3, None, "not yours"),
    ):
        await pool.execute(WRITTEN, owner.id, uuid7(), f"+25884123456{number}", keyword, text)
    _, answer = await ask(api, tenant, "GET", "/sms/inbound")
    assert [(one["from"], one["keyword"], one["text"]) for one in answer["items"]] == [
        ("+258841234562", "stop", "STOP"),
        ("+258841234561", None, "When do you open?"),
    ]
    one = answer["items"][0]
    assert (one["to"], one["channel"], one["segments"], one["missingSegments"]) == ("HELIOGRAPH", "sms", 2, 1)

    async def found(query: str) -> list[str]:
        status, answer = await ask(api, tenant, "GET", f"/sms/inbound?{query}")
        assert status == 200, answer
        return [one["text"] for one in answer["items"]]

    assert await found("keyword=stop") == ["STOP"]
    assert await found("from=%2B258841234561") == ["When do you open?"]
    # As a client dials it, and as its supplier delivers it.
    await pool.execute(WRITTEN, tenant.id, uuid7(), "+551181234567", None, "Bom dia")
    for typed in ("551181234567", "5511981234567"):
        assert await found(f"from=%2B{typed}") == ["Bom dia"]
    assert await found(f"senderId={one['senderId']}&keyword=stop&limit=1") == ["STOP"]
    assert await found(f"senderId={uuid7()}") == []
    assert await found("dateTo=2026-01-01T00:00:00Z") == []
    status, answer = await ask(api, tenant, "GET", "/sms/inbound?from=nonsense")
    assert (status, answer["error"]["details"]["fields"][0]["field"]) == (400, "from")


async def test_a_test_key_receives_nothing(api: Api, pool: Pool) -> None:
    tester = await make_tenant(pool, mode="test")
    await pool.execute(WRITTEN, tester.id, uuid7(), "+258841234561", None, "for live keys")
    assert (await ask(api, tester, "GET", "/sms/inbound"))[1]["items"] == []


@pytest.mark.usefixtures("armed")
async def test_what_is_sealed_at_rest_is_read_as_it_was_written(api: Api, tenant: Tenant, pool: Pool) -> None:
    await sender(pool, tenant.actor, NUMBER)
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
        await text_keys.switch(conn, organization_id=tenant.id, on=True)
    await receive_and_process(pool, handset_message("hello there"))
    rows = await pool.fetch(
        "SELECT body AS text FROM received_messages UNION ALL SELECT data FROM events WHERE kind = 'message.received'"
    )
    assert [("hello" in row["text"], text_keys.MARK in row["text"]) for row in rows] == [(False, True)] * 2
    _, inbound = await ask(api, tenant, "GET", "/sms/inbound")
    assert [one["text"] for one in inbound["items"]] == ["hello there"]
    # The feed shows what was recorded a moment ago.
    at = clock.now() - timedelta(minutes=1)
    data = msgspec.json.encode({"message": {"text": "hello again"}}).decode()
    old = Event(tenant.id, uuid7_floor(at), "message.received", "req", data, at)
    async with pool.acquire() as conn:
        await events.record(conn, [old])
    _, feed = await ask(api, tenant, "GET", "/events?kind=message.received")
    assert [one["data"] for one in feed["items"]] == [{"message": {"text": "hello again"}}]
