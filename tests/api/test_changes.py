"""Changing existing contacts and webhook endpoints in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from heliograph.base.database.pool import Pool

from .conftest import Api, Tenant, make_tenant

HOOK = {"url": "https://example.com/in", "subscribed_events": ["message.failed"]}


async def contact(api: Api, tenant: Tenant, **values: Any) -> dict[str, Any]:
    body = {"name": "Ana Silva", "phone": "+258841234567", "tags": ["vip", "maputo"]} | values
    status, _, answer = await api.ask("POST", "/contacts", json=body, headers=tenant.headers)
    assert status == 200, answer
    return dict(answer["contact"])


async def change(api: Api, tenant: Tenant, path: str, **body: Any) -> tuple[int, Any]:
    status, _, answer = await api.ask("PATCH", path, json=body, headers=tenant.headers)
    return status, answer


async def test_what_is_left_out_of_a_contact_stays(api: Api, tenant: Tenant) -> None:
    made = await contact(api, tenant)
    path = f"/contacts/{made['id']}"
    status, answer = await change(api, tenant, path, firstName="Ana", lastName="Sousa")
    assert status == 200
    changed = answer["contact"]
    assert changed["updated_at"] > made["updated_at"]
    expected = made | {"name": "Ana Sousa", "first_name": "Ana", "last_name": "Sousa"}
    assert changed | {"updated_at": made["updated_at"]} == expected
    _, answer = await change(api, tenant, path, name="Ana")
    assert [answer["contact"][name] for name in ("name", "first_name", "last_name")] == ["Ana", None, None]
    _, answer = await change(api, tenant, path, phone="+258 84 999 0000")
    assert (answer["contact"]["phone"], answer["contact"]["name"]) == ("+258849990000", "Ana")


async def test_null_removes_one_part_of_a_name(api: Api, tenant: Tenant) -> None:
    made = await contact(api, tenant)
    path = f"/contacts/{made['id']}"
    parts = ("name", "first_name", "last_name")
    for body, expected in (
        ({"firstName": "Ana", "lastName": None}, ["Ana", "Ana", None]),
        ({"firstName": None, "lastName": "Silva"}, ["Silva", None, "Silva"]),
        # A client that writes null for whatever it does not set changes nothing by that.
        ({"name": None, "firstName": None, "lastName": None, "tags": ["vip"]}, ["Silva", None, "Silva"]),
        ({"firstName": "Ana", "lastName": "Sousa"}, ["Ana Sousa", "Ana", "Sousa"]),
    ):
        status, answer = await change(api, tenant, path, **body)
        assert status == 200, answer
        assert [answer["contact"][name] for name in parts] == expected, body


async def test_tags_are_replaced_and_found_by(api: Api, tenant: Tenant) -> None:
    made = await contact(api, tenant)
    _, answer = await change(api, tenant, f"/contacts/{made['id']}", tags=["Maputo ", "new"])
    assert answer["contact"]["tags"] == ["maputo", "new"]
    for tag, found in (("vip", []), ("maputo", [made["id"]]), ("new", [made["id"]])):
        _, _, listed = await api.ask("GET", f"/contacts?tag={tag}", headers=tenant.headers)
        assert [one["id"] for one in listed["items"]] == found
    _, answer = await change(api, tenant, f"/contacts/{made['id']}", tags=[])
    assert answer["contact"]["tags"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"firstName": "Ana"}, "lastName"),
        ({"lastName": "Silva"}, "firstName"),
        ({"firstName": None, "lastName": None}, "name"),
        ({"firstName": None}, "name"),
        ({"name": "Bea", "firstName": "Ana", "lastName": "Silva"}, "name"),
        ({"phone": "nonsense-"}, "phone"),
        ({"phone": "+258841234567", "phoneNumber": "+258841234568"}, "phoneNumber"),
        ({"opted_out": False}, "opted_out"),
    ],
)
async def test_a_change_that_makes_no_sense_is_refused(api: Api, tenant: Tenant, body: Any, field: str) -> None:
    made = await contact(api, tenant)
    status, answer = await change(api, tenant, f"/contacts/{made['id']}", **body)
    assert (status, answer["error"]["code"]) == (400, "validation_error")
    assert answer["error"]["details"]["fields"][0]["field"] == field


async def test_a_number_has_one_contact(api: Api, tenant: Tenant, pool: Pool) -> None:
    made, other = await contact(api, tenant), await contact(api, tenant, phone="+258840000001")
    status, answer = await change(api, tenant, f"/contacts/{made['id']}", phone="+258840000001")
    assert (status, answer["error"]["code"]) == (409, "contact_already_exists")
    assert answer["error"]["details"]["id"] == other["id"]
    _, _, listed = await api.ask("GET", "/contacts", headers=tenant.headers)
    assert {one["phone"] for one in listed["items"]} == {made["phone"], other["phone"]}
    stranger = await make_tenant(pool)
    status, answer = await change(api, stranger, f"/contacts/{made['id']}", name="Eve")
    assert (status, answer["error"]["code"]) == (404, "not_found")
    assert answer["error"]["message"] == "There is no such contact."


async def test_a_change_is_recorded_without_the_name(api: Api, tenant: Tenant, pool: Pool) -> None:
    made = await contact(api, tenant)
    await change(api, tenant, f"/contacts/{made['id']}", name="Maria Secreta", tags=["vip"])
    row = await pool.fetchrow("SELECT * FROM audit_log WHERE action = 'contact.changed'")
    assert row is not None
    assert "Secreta" not in str(tuple(row))
    assert (row["before"], row["after"]) == ('{"tags":["vip","maputo"]}', '{"tags":["vip"],"name":"(changed)"}')


async def test_an_endpoint_is_changed_and_keeps_its_secret(api: Api, tenant: Tenant, pool: Pool) -> None:
    _, _, answer = await api.ask("POST", "/webhooks", json=HOOK, headers=tenant.headers)
    made = answer["webhookEndpoint"]
    secret = await pool.fetchval("SELECT secret FROM webhook_endpoints")
    path = f"/webhooks/{made['id']}"
    body = {"url": "https://example.com/new", "subscribed_events": ["message.sent", "message.sent"]}
    status, answer = await change(api, tenant, path, **body, description=" orders ")
    assert status == 200
    assert answer["webhookEndpoint"] == made | {
        "url": "https://example.com/new",
        "subscribed_events": ["message.sent"],
        "description": "orders",
    }
    assert await pool.fetchval("SELECT secret FROM webhook_endpoints") == secret
    _, answer = await change(api, tenant, path, disabled=True)
    disabled = answer["webhookEndpoint"]
    assert (disabled["status"], disabled["disabled_reason"]) == ("disabled", "requested")
    await pool.execute("UPDATE webhook_endpoints SET consecutive_failures = 7, failing_since = now()")
    _, answer = await change(api, tenant, path, disabled=False)
    again = answer["webhookEndpoint"]
    assert (again["status"], again["disabled_at"], again["disabled_reason"]) == ("active", None, None)
    assert again["consecutive_failures"] == 0
    assert await pool.fetchval("SELECT failing_since FROM webhook_endpoints") is None
    rows = await pool.fetch("SELECT after FROM audit_log WHERE action = 'webhook.changed' ORDER BY id")
    assert [row["after"] for row in rows][1].count("disabled") > 0


async def test_an_eleventh_endpoint_does_not_come_back(api: Api, tenant: Tenant) -> None:
    ids = []
    for number in range(11):
        body = HOOK | {"url": f"https://example.com/{number}"}
        _, _, answer = await api.ask("POST", "/webhooks", json=body, headers=tenant.headers)
        ids.append(answer["webhookEndpoint"]["id"])
        if number == 0:
            assert (await change(api, tenant, f"/webhooks/{ids[0]}", disabled=True))[0] == 200
    status, answer = await change(api, tenant, f"/webhooks/{ids[0]}", disabled=False)
    assert (status, answer["error"]["code"]) == (409, "webhook_endpoint_limit_reached")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "url"),
        ({"url": "http://example.com/"}, "url"),
        ({"url": "https://127.0.0.1/"}, "url"),
        ({"subscribed_events": ["nonsense"]}, "subscribed_events"),
        ({"description": "x" * 201}, "description"),
        ({"secret": "mine"}, "secret"),
    ],
)
async def test_an_endpoint_cannot_become_what_it_could_not_be_made_as(
    api: Api, tenant: Tenant, body: Any, field: str, key: Callable[[], str]
) -> None:
    _, _, answer = await api.ask("POST", "/webhooks", json=HOOK, headers=tenant.headers)
    path = f"/webhooks/{answer['webhookEndpoint']['id']}"
    status, answer = await change(api, tenant, path, **body)
    assert (status, answer["error"]["code"]) == (400, "validation_error")
    assert answer["error"]["details"]["fields"][0]["field"].startswith(field)
