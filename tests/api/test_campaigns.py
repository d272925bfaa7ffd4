"""Campaigns over HTTP: both forms of the request, refusals, pages, cancellation, other organizations' ids."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.campaigns.staging import Stager
from tests.rate_windows import hold_windows

from .conftest import Api, Tenant, make_tenant

TO = "+258841234567"
FIELDS = {
    "id",
    "name",
    "status",
    "status_reason",
    "message_template",
    "sender_id",
    "audience_tags",
    "audience_import",
    "audience_tag_match_mode",
    "excluded_tags",
    "not_written_days",
    "messages_per_minute",
    "class",
    "recipient_count",
    "scheduled_at",
    "started_at",
    "completed_at",
    "approved_at",
    "created_at",
    "counts",
}


async def create(api: Api, tenant: Tenant, **body: Any) -> tuple[int, dict[str, Any]]:
    status, _, answer = await api.ask("POST", "/campaigns", json={"name": "Sale"} | body, headers=tenant.headers)
    return status, answer


def refused(answer: dict[str, Any]) -> tuple[str, str]:
    return answer["error"]["code"], answer["error"]["details"]["fields"][0]["field"]


async def test_words_in_single_braces_are_warned_of(api: Api, tenant: Tenant) -> None:
    for text, said in (("Hi {name}, {name} {code|0}", "{name} {code|0}"), ("Hi {{name}}", None)):
        status, answer = (await create(api, tenant, content=text, recipients=[TO]))[:2]
        assert (status, answer["campaign"]["message_template"]) == (201, text)
        warnings = [(one["code"], one["message"].rpartition(": ")[2]) for one in answer["warnings"]]
        assert warnings == ([("single_braces", said)] if said else [])


async def test_tags_that_no_contact_has_are_warned_of(api: Api, tenant: Tenant) -> None:
    body = {"name": "Ana", "phone": TO, "tags": ["vip"]}
    assert (await api.ask("POST", "/contacts", json=body, headers=tenant.headers))[0] == 200
    status, answer = await create(api, tenant, content="Hi", audience_tags=["vip", "Porto"], excluded_tags=["nobody"])
    assert (status, answer["warnings"]) == (
        201,
        [{"code": "unused_tags", "message": "No contact has the tag porto or nobody"}],
    )
    status, answer = await create(api, tenant, content="Hi", audience_tags=["vip"])
    assert (status, answer["warnings"]) == (201, [])


async def test_the_contracts_form(api: Api, tenant: Tenant, pool: Pool) -> None:
    contact = {"name": "Ana", "phone": TO, "tags": ["VIP"]}
    assert (await api.ask("POST", "/contacts", json=contact, headers=tenant.headers))[0] == 200
    sender_id = str(await pool.fetchval("SELECT id FROM sender_ids"))
    at = iso(datetime.now(UTC) + timedelta(days=1))
    status, answer = await create(
        api,
        tenant,
        message_template="Hi {{name}}",
        scheduled_at=at,
        sender_id=sender_id,
        audience_tags=["vip", "VIP "],
        audience_tag_match_mode="all",
        excludedTags=["Staff"],
        notWrittenDays=7.0,
        messages_per_minute=60,
        **{"class": "transactional"},
    )
    assert (status, answer["success"]) == (201, True), answer
    campaign = answer["campaign"]
    assert campaign.keys() == FIELDS
    UUID(campaign["id"])
    assert (
        campaign
        | {
            "name": "Sale",
            "status": "scheduled",
            "message_template": "Hi {{name}}",
            "sender_id": sender_id,
            "audience_tags": ["vip"],
            "audience_import": None,
            "audience_tag_match_mode": "all",
            "excluded_tags": ["staff"],
            "not_written_days": 7,
            "messages_per_minute": 60,
            "class": "transactional",
            "recipient_count": None,
            "scheduled_at": at,
            "started_at": None,
            "completed_at": None,
            "approved_at": None,
        }
        == campaign
    )
    assert set(campaign["counts"].values()) == {0}


async def test_the_other_form(api: Api, tenant: Tenant) -> None:
    status, answer = await create(
        api, tenant, content="Hi", senderName="heliograph", recipients=[TO, TO[1:], "nobody"], scheduledAt=None
    )
    assert status == 201, answer
    campaign = answer["campaign"]
    assert (campaign["status"], campaign["recipient_count"], campaign["audience_tags"]) == ("staging", 2, None)
    assert campaign["class"] == "marketing"
    assert campaign["started_at"] == campaign["created_at"]
    counts = campaign["counts"]
    assert counts.pop("total") == sum(counts.values()) == counts["pending"] + counts["invalid"] == 2
    status, _, shown = await api.ask("GET", f"/campaigns/{campaign['id']}", headers=tenant.headers)
    made = {"success": True, "campaign": campaign | {"counts": counts | {"total": 2}}}
    assert (status, shown, answer["warnings"]) == (200, made, [])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"recipients": [TO]}, "message_template"),
        ({"content": "a", "message_template": "b", "recipients": [TO]}, "message_template"),
        ({"content": "a", "senderId": str(uuid7()), "sender_id": str(uuid7()), "recipients": [TO]}, "sender_id"),
        ({"content": "a", "sender_id": str(uuid7()), "recipients": [TO]}, "sender_id"),
        ({"content": "a", "sender_id": str(uuid7()), "senderName": "HELIOGRAPH", "recipients": [TO]}, "sender_id"),
        ({"content": "a"}, "audience_tags"),
        ({"content": "a", "recipients": [TO], "audience_tags": ["x"]}, "audience_tags"),
        ({"content": "a", "recipients": [TO], "audienceImport": str(uuid7())}, "audienceImport"),
        ({"content": "a", "recipients": [TO], "excluded_tags": ["x"]}, "excluded_tags"),
        ({"content": "a", "audience_tags": ["x"], "excludedTags": ["y"], "excluded_tags": ["z"]}, "excluded_tags"),
        ({"content": "a", "recipients": [TO], "not_written_days": 366}, "not_written_days"),
        ({"content": "a", "recipients": [TO], "not_written_days": 1, "notWrittenDays": 2}, "not_written_days"),
        # A field is named as the request names it, whichever rule refuses it.
        ({"message_template": "a {{b}}", "recipients": [TO]}, "message_template"),
        ({"content": "a {{b}}", "recipients": [TO]}, "content"),
        ({"content": "ã" * 671, "recipients": [TO]}, "content"),
        ({"content": "a", "recipients": [TO], "scheduledAt": "2020-01-01T00:00:00Z"}, "scheduledAt"),
        (
            {"content": "a", "recipients": [TO], "scheduledAt": None, "scheduled_at": "2020-01-01T00:00:00Z"},
            "scheduled_at",
        ),
        (
            {"content": "a", "recipients": [TO], "scheduled_at": None, "scheduledAt": "2020-01-01T00:00:00Z"},
            "scheduledAt",
        ),
        ({"message_template": None, "content": "a {{b}}", "recipients": [TO]}, "content"),
        ({"content": "a", "recipients": [TO], "senderId": str(uuid7())}, "senderId"),
        ({"content": "a", "audienceTags": ["x"], "recipients": [TO]}, "audienceTags"),
        *(
            ({"content": text, "recipients": [TO]}, "content")
            for text in ("a {{name", "a {{name}", "a name}}", "{{{{name}}}}", "{{name|{{phone}}}}", "{{name|a}b}}")
        ),
        ({"content": "a", "recipients": []}, "recipients"),
        ({"content": "a", "audience_tags": ["x"] * 21}, "audience_tags"),
        ({"content": "a", "audience_tags": ["x"], "audience_tag_match_mode": "some"}, "audience_tag_match_mode"),
        ({"content": "a", "recipients": [TO], "scheduled_at": "2026-01-01T00:00:00"}, "scheduled_at"),
        ({"content": "a", "recipients": [TO], "scheduled_at": "2020-01-01T00:00:00Z"}, "scheduled_at"),
        ({"content": "a", "recipients": [TO], "messages_per_minute": 0}, "messages_per_minute"),
        ({"content": "a", "recipients": [TO], "receivers": [TO]}, "receivers"),
        ({"content": "a", "recipients": [TO], "name": " "}, "name"),
        ({"content": "a\0", "recipients": [TO]}, "content"),
    ],
)
async def test_what_is_refused(api: Api, tenant: Tenant, body: dict[str, Any], field: str) -> None:
    status, answer = await create(api, tenant, **body)
    assert (status, refused(answer)) == (400, ("validation_error", field)), answer
    assert f"`{field}`" in answer["error"]["message"] == answer["error"]["details"]["fields"][0]["message"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({}, {"audience_tags", "audience_import", "recipients"}),
        ({"recipients": [TO], "audience_import": str(uuid7())}, {"audience_import", "recipients"}),
    ],
)
async def test_an_audience_that_is_none_or_two_is_told_at_each_field_concerned(
    api: Api, tenant: Tenant, body: dict[str, Any], fields: set[str]
) -> None:
    status, answer = await create(api, tenant, content="a", **body)
    told = answer["error"]["details"]["fields"]
    said = "give one of `audience_tags`, `audience_import` and `recipients`"
    assert (status, {one["message"] for one in told}) == (400, {said})
    assert {one["field"] for one in told} == fields


async def test_single_braces_are_text(api: Api, tenant: Tenant) -> None:
    for text in ("{a} {{{name}}}", "{{name}}}", "a } {{ name | you }} {"):
        assert (await create(api, tenant, content=text, recipients=[TO]))[0] == 201, text


async def test_nobody_and_no_sender(api: Api, tenant: Tenant, pool: Pool) -> None:
    status, answer = await create(api, tenant, content="a", audience_tags=["nobody"])
    assert (status, answer["error"]["code"]) == (409, "campaign_audience_empty")
    await pool.execute("UPDATE sender_ids SET status = 'suspended', is_default = false")
    status, answer = await create(api, tenant, content="a", recipients=[TO])
    assert (status, answer["error"]["code"]) == (409, "sender_id_not_approved")


async def test_ten_thousand_recipients_fit_and_no_more(api: Api, tenant: Tenant) -> None:
    status, answer = await create(api, tenant, content="a", recipients=[f"+25884{n:07}" for n in range(10_000)])
    assert (status, answer["campaign"]["recipient_count"]) == (201, 10_000)
    status, answer = await create(api, tenant, content="a", recipients=[f"+25884{n:07}" for n in range(10_001)])
    assert (status, refused(answer)) == (400, ("validation_error", "recipients"))
    status, answer = await create(api, tenant, content="a", recipients=["x" * 60] * 17_000)
    assert (status, answer["error"]["details"]) == (413, {"maxBytes": 1_048_576})


async def test_pages_and_the_bucket(api: Api, tenant: Tenant, pool: Pool) -> None:
    made = []
    for n in range(5):
        made.append((await create(api, tenant, name=f"n{n}", content="a", recipients=[TO]))[1]["campaign"])
        await hold_windows(pool)
    seen, cursor = [], ""
    while True:
        status, headers, page = await api.ask("GET", f"/campaigns?limit=2{cursor}", headers=tenant.headers)
        assert status == 200
        seen += page["items"]
        if not page["hasMore"]:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert seen == made[::-1]
    status, headers, _ = await api.ask("POST", "/campaigns", json={}, headers=tenant.headers)
    assert (status, headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == (400, "60", "54")


async def test_cancel(api: Api, tenant: Tenant, pool: Pool) -> None:
    _, answer = await create(api, tenant, content="a", recipients=[TO])
    path = f"/campaigns/{answer['campaign']['id']}"
    for _ in range(2):
        status, _, canceled = await api.ask("DELETE", path, headers=tenant.headers)
        assert (status, canceled["campaign"]["status"]) == (200, "canceled")
        assert canceled["campaign"]["counts"]["canceled"] == 1
    await pool.execute("UPDATE campaigns SET status = 'failed'")
    status, _, answer = await api.ask("DELETE", path, headers=tenant.headers)
    assert (status, answer["error"]["code"]) == (409, "campaign_not_cancelable")


async def test_foreign_and_unknown_ids_are_the_same(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    _, made = await create(api, other, content="a", recipients=[TO])
    for method in ("GET", "DELETE"):
        answers = []
        for id in (made["campaign"]["id"], str(uuid7())):
            headers = tenant.headers | {"X-Request-Id": "same"}
            status, _, body = await api.ask(method, f"/campaigns/{id}", headers=headers)
            assert (status, body["error"]["code"]) == (404, "not_found")
            answers.append(str(body).replace(id, ""))
        assert answers[0] == answers[1]
        status, _, _ = await api.ask(method, "/campaigns/x", headers=tenant.headers)
        assert status == 400
    _, _, page = await api.ask("GET", "/campaigns", headers=tenant.headers)
    assert page == {"success": True, "items": [], "nextCursor": None, "hasMore": False}


async def test_a_key_makes_one(api: Api, tenant: Tenant, pool: Pool) -> None:
    headers = tenant.headers | {"idempotency-key": "once"}
    body = {"name": "Sale", "content": "a", "recipients": [TO]}
    first = await api.ask("POST", "/campaigns", json=body, headers=headers)
    again = await api.ask("POST", "/campaigns", json=body, headers=headers)
    assert (first[0], first[2]) == (again[0], again[2])
    assert again[1]["x-idempotency-status"] == "replayed"
    assert await pool.fetchval("SELECT count(*) FROM campaigns") == 1
    status, _, answer = await api.ask("POST", "/campaigns", json=body | {"content": "b"}, headers=headers)
    assert (status, answer["error"]["code"]) == (409, "idempotency_conflict")


async def test_a_campaign_is_paused_and_resumed_over_http(api: Api, tenant: Tenant, pool: Pool) -> None:
    body = {"name": "Sale", "content": "Hello", "recipients": ["+258841234567", "+258841234568"]}
    _, _, made = await api.ask("POST", "/campaigns", json=body, headers=tenant.headers)
    path = f"/campaigns/{made['campaign']['id']}"
    early = await api.ask("POST", path + "/pause", headers=tenant.headers)
    assert (early[0], early[2]["error"]["code"]) == (409, "campaign_not_pausable")
    stager = Stager(pool)
    while await pool.fetchval("SELECT status FROM campaigns") == "staging":
        await stager.round()
    for _ in range(2):
        status, _, paused = await api.ask("POST", path + "/pause", headers=tenant.headers)
        assert (status, paused["campaign"]["status"]) == (200, "paused")
        assert paused["campaign"]["status_reason"] == "paused_by_request"
    # It does not go on by itself.
    while await stager.round():
        pass
    assert await pool.fetchval("SELECT status FROM campaigns") == "paused"
    for _ in range(2):
        status, _, resumed = await api.ask("POST", path + "/resume", headers=tenant.headers)
        assert (status, resumed["campaign"]["status"]) == (200, "running")
    while await stager.round():
        pass
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms' AND due_at <= now()") == 2
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'campaign.moved'") == 2
