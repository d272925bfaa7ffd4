"""POST /v1/whatsapp/messages over HTTP: both bodies, refusals, keys, replay, rate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.base.database.pool import Pool
from heliograph.consent import people
from heliograph.queue.runner import CHANNEL
from tests.rate_windows import hold_windows
from tests.rules import whatsapp_factories
from tests.rules.factories import TO, until
from tests.rules.whatsapp_factories import Made, check_wallets

from .conftest import Api, Tenant, make_tenant, running

PATH = "/whatsapp/messages"


@pytest.fixture
async def made(pool: Pool, tenant: Tenant) -> Made:
    """The tenant's number, templates, rates and wallet, and an open window with TO."""
    found = await whatsapp_factories.made(pool, organization_id=tenant.id)
    await whatsapp_factories.conversation(pool, found)
    return found


def template(one: Made, **changed: Any) -> dict[str, Any]:
    content = {"name": "order_shipped", "language": "en", "category": "utility", "parameters": ["Ana", "7"]}
    content |= changed.pop("template", {})
    body = {"type": "template", "to": TO, "phoneNumberId": str(one.number_id), "template": content}
    return body | {"clientReference": "order-7"} | changed


def text(one: Made, **changed: Any) -> dict[str, Any]:
    return {"type": "text", "to": TO, "phoneNumberId": str(one.number_id), "text": {"body": "hello"}} | changed


async def test_a_template_and_a_reply_are_accepted(api: Api, tenant: Tenant, made: Made, pool: Pool) -> None:
    headers = tenant.headers | {"X-Request-Id": "my-request.1"}
    status, answered, body = await api.ask("POST", PATH, json=template(made), headers=headers)
    assert status == 202, body
    message_id = body["message"]["id"]
    assert body == {
        "success": True,
        "queued": True,
        "status": "accepted",
        "message": {"id": message_id, "clientReference": "order-7"},
    }
    assert answered["x-request-id"] == "my-request.1"
    assert "x-idempotency-status" not in answered
    assert (answered["X-RateLimit-Limit"], answered["X-RateLimit-Remaining"]) == ("6000", "5999")
    await hold_windows(pool)
    status, answered, body = await api.ask("POST", PATH, json=text(made, to=TO[1:]), headers=tenant.headers)
    assert (status, body["message"]["clientReference"]) == (202, None)
    assert answered["X-RateLimit-Remaining"] == "5998"
    rows = await pool.fetch("SELECT type, recipient, request_id FROM whatsapp_messages ORDER BY id")
    assert [row["type"] for row in rows] == ["template", "text"]
    assert {row["recipient"] for row in rows} == {TO}
    assert rows[0]["request_id"] == "my-request.1"
    await check_wallets(pool, [tenant.id])


async def test_a_key_gives_one_message(api: Api, tenant: Tenant, made: Made, pool: Pool) -> None:
    headers = tenant.headers | {"Idempotency-Key": "one"}
    bodies = []
    for spelling in (template(made), template(made, to=TO[1:])):
        async with api.session.post(api.base_url + "/v1" + PATH, json=spelling, headers=headers) as answer:
            bodies.append((answer.status, answer.headers["x-idempotency-status"], await answer.read()))
    assert [(status, kind) for status, kind, _ in bodies] == [(202, "stored"), (202, "replayed")]
    assert bodies[0][2] == bodies[1][2]
    other = template(made, template={"parameters": ["Ana", "8"]})
    status, _, body = await api.ask("POST", PATH, json=other, headers=headers)
    assert (status, body["error"]["code"]) == (409, "idempotency_conflict")
    answers = await asyncio.gather(
        *(
            api.ask("POST", PATH, json=text(made), headers=tenant.headers | {"Idempotency-Key": "two"})
            for _ in range(50)
        )
    )
    assert sorted(answered["x-idempotency-status"] for _, answered, _ in answers) == ["replayed"] * 49 + ["stored"]
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 2


@pytest.mark.parametrize(
    ("changed", "field", "issue"),
    [
        ({"type": "video"}, "type", "enum"),
        ({"type": None}, "type", "type"),
        ({"to": "0841234567"}, "to", "pattern"),
        ({"to": "+999841234567"}, "to", "pattern"),
        ({"phoneNumberId": "one"}, "phoneNumberId", "format"),
        ({"phoneNumberId": "019c8f64-1f0a-7d52-8c3b-5a9e2d7f6b10"}, "phoneNumberId", "unknown"),
        ({"text": {"body": "hello"}}, "text", "unknown"),
        ({"campaignId": "x"}, "campaignId", "unknown"),
        ({"clientReference": "x" * 256}, "clientReference", "length"),
        ({"template": {"category": "marketing"}}, "template.category", "enum"),
        ({"template": {"category": "authentication"}}, "template.category", "disagrees"),
        ({"template": {"parameters": ["x"] * 51}}, "template.parameters", "length"),
        ({"template": {"parameters": ["Ana", "x" * 1025]}}, "template.parameters[1]", "length"),
        ({"template": {"parameters": ["Ana", "a\tb"]}}, "template.parameters[1]", "format"),
        ({"template": {"parameters": ["Ana", 7]}}, "template.parameters[1]", "type"),
        ({"template": {"parameters": ["Ana", "7\0"]}}, "template.parameters[1]", "nul"),
        ({"template": {"version": 1}}, "template.version", "unknown"),
    ],
)
async def test_a_template_that_breaks_a_rule_names_the_field(
    api: Api, tenant: Tenant, made: Made, changed: dict[str, Any], field: str, issue: str
) -> None:
    status, _, body = await api.ask("POST", PATH, json=template(made, **changed), headers=tenant.headers)
    assert (status, body["error"]["code"]) == (400, "validation_error"), body
    assert (body["error"]["details"]["fields"][0]["field"], body["error"]["details"]["fields"][0]["issue"]) == (
        field,
        issue,
    )


async def test_a_template_that_meta_counts_as_marketing_is_not_asked_for_as_marketing(
    api: Api, tenant: Tenant, made: Made, pool: Pool
) -> None:
    await pool.execute("UPDATE whatsapp_templates SET category = 'marketing'")
    status, _, body = await api.ask("POST", PATH, json=template(made), headers=tenant.headers)
    assert (status, body["error"]["message"]) == (
        400,
        "`template` is in Meta's category `marketing`, which is not sent by this service",
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [({"body": ""}, 400), ({"body": "x" * 4096}, 202), ({"body": "x" * 4097}, 400), ({"body": "a", "link": 1}, 400)],
)
async def test_a_text_has_its_bounds(
    api: Api, tenant: Tenant, made: Made, content: dict[str, Any], expected: int
) -> None:
    status, _, body = await api.ask("POST", PATH, json=text(made, text=content), headers=tenant.headers)
    assert status == expected, body


async def test_null_is_what_is_left_out(api: Api, tenant: Tenant, made: Made) -> None:
    headers = tenant.headers | {"Idempotency-Key": "null"}
    asked = text(made, text={"body": "a", "previewUrl": None}, clientReference=None)
    status, _, accepted = await api.ask("POST", PATH, json=asked, headers=headers)
    assert status == 202, accepted
    status, answered, again = await api.ask("POST", PATH, json=text(made, text={"body": "a"}), headers=headers)
    assert (status, answered["x-idempotency-status"], again) == (202, "replayed", accepted)


async def test_what_is_refused_for_how_things_are(api: Api, tenant: Tenant, made: Made, pool: Pool) -> None:
    async def said(body: dict[str, Any]) -> tuple[int, str]:
        status, _, answer = await api.ask("POST", PATH, json=body, headers=tenant.headers)
        return status, answer["error"]["code"]

    assert await said(template(made, template={"name": "none"})) == (400, "whatsapp_template_not_found")
    assert await said(template(made, template={"parameters": []})) == (400, "whatsapp_template_parameter_mismatch")
    assert await said(text(made, to="+258849999999")) == (409, "whatsapp_window_closed")
    await pool.execute("UPDATE wallets SET available = 0, total = reserved + consumed")
    assert await said(template(made)) == (409, "wallet_insufficient_funds")
    await pool.execute("UPDATE whatsapp_accounts SET state = 'paused'")
    async with asyncio.timeout(120):  # a number is cached for half a second
        while await said(template(made)) != (409, "whatsapp_phone_number_unavailable"):
            continue


async def test_a_key_needs_the_scope_and_another_organizations_number_is_unknown(
    api: Api, pool: Pool, made: Made
) -> None:
    other = await make_tenant(pool)
    status, _, body = await api.ask("POST", PATH, json=template(made), headers=other.headers)
    assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "phoneNumberId")
    sms = await make_tenant(pool, profile="sms")
    status, _, body = await api.ask("POST", PATH, json=template(made), headers=sms.headers)
    assert (status, body["error"]["code"]) == (403, "api_key_scope_required")


async def test_sends_count_in_the_window_of_mutations(database_url: str, pool: Pool) -> None:
    tenant = await make_tenant(pool)
    made = await whatsapp_factories.made(pool, organization_id=tenant.id)
    statuses = []
    async with running(database_url, rate_mutations=3) as api:
        while 429 not in statuses:  # if the minute ends meanwhile, more are allowed
            assert len(statuses) < 12
            status, _, body = await api.ask("POST", PATH, json=template(made), headers=tenant.headers)
            statuses.append(status)
    assert statuses[:3] == [202] * 3
    assert body["error"]["details"]["limit"] == "mutations"
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == statuses.count(202)


async def test_workers_are_woken(api: Api, tenant: Tenant, made: Made, pool: Pool) -> None:
    heard: list[str] = []

    def hear(*_: object) -> None:
        heard.append("work")

    async with pool.acquire() as conn:
        await conn.add_listener(CHANNEL, hear)
        await api.ask("POST", PATH, json=template(made), headers=tenant.headers)
        await until(lambda: bool(heard))
        await conn.remove_listener(CHANNEL, hear)


async def test_a_user_id_gets_texts_and_templates_but_no_codes(
    api: Api, tenant: Tenant, made: Made, pool: Pool
) -> None:
    user_id = "MZ.13490000000000000001"
    await whatsapp_factories.conversation(pool, made, to=user_id)
    for body in (template(made, to=user_id), text(made, to=user_id)):
        status, _, answer = await api.ask("POST", PATH, json=body, headers=tenant.headers)
        assert status == 202, answer
    assert {row[0] for row in await pool.fetch("SELECT recipient FROM whatsapp_messages")} == {user_id}
    code = template(made, to=user_id, template={"category": "authentication", "parameters": ["481920"]})
    for body in (code, text(made, to="mz.1"), text(made, to="MZ.")):
        status, _, answer = await api.ask("POST", PATH, json=body, headers=tenant.headers)
        assert (status, answer["error"]["details"]["fields"][0]["field"]) == (400, "to")


async def test_a_users_messages_are_listed_by_any_of_their_names(
    api: Api, tenant: Tenant, made: Made, pool: Pool
) -> None:
    """By conversation: a Brazilian may be messaged with the ninth digit, and writes without it."""
    names = ["+5511987654321", "+551187654321", "BR.1349000000000001"]
    async with pool.acquire() as conn, conn.transaction():
        await people.link(conn, [(tenant.id, names[0], names[2])])
    for name in (*names, TO):
        assert (await api.ask("POST", PATH, json=template(made, to=name), headers=tenant.headers))[0] == 202
    for name in names:
        for limit in (1, 50):
            found: list[str] = []
            query = {"recipient": name, "limit": str(limit)}
            while "cursor" not in query or query["cursor"]:
                status, _, page = await api.ask("GET", PATH, params=query, headers=tenant.headers)
                assert status == 200, page
                found += [message["recipient"] for message in page["items"]]
                query["cursor"] = page["nextCursor"] or ""
            assert found == names[::-1], (name, limit)
