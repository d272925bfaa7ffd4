"""Contacts over HTTP: both forms of the request, pages that stay, one contact a number, other organizations' ids."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7

from .conftest import Api, Tenant, make_tenant

ANA = {"name": "Ana Silva", "phone": "+258841234567"}


async def create(api: Api, tenant: Tenant, **body: Any) -> tuple[int, Any]:
    status, _, answer = await api.ask("POST", "/contacts", json=body, headers=tenant.headers)
    return status, answer


async def listed(api: Api, tenant: Tenant, **query: Any) -> Any:
    status, _, answer = await api.ask("GET", "/contacts", params=query, headers=tenant.headers)
    assert status == 200, answer
    return answer


async def test_create_list_delete(api: Api, tenant: Tenant) -> None:
    tags = [" VIP ", "Maputo  Norte", "vip"]
    status, created = await create(api, tenant, **ANA, tags=tags)
    assert (status, created["success"]) == (200, True)
    contact = created["contact"]
    assert contact == {
        "id": contact["id"],
        "name": "Ana Silva",
        "first_name": None,
        "last_name": None,
        "phone": "+258841234567",
        "tags": ["vip", "maputo norte"],
        "opted_out": False,
        "created_at": contact["created_at"],
        "updated_at": contact["created_at"],
        "last_written_at": None,
        "last_delivered_at": None,
    }
    assert UUID(contact["id"]).version == 7
    assert await listed(api, tenant) == {"success": True, "items": [contact], "nextCursor": None, "hasMore": False}
    status, _, gone = await api.ask("DELETE", "/contacts", params={"id": contact["id"]}, headers=tenant.headers)
    assert (status, gone) == (200, {"success": True})
    status, _, body = await api.ask("DELETE", "/contacts", params={"id": contact["id"]}, headers=tenant.headers)
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert body["error"]["message"] == "There is no such contact."
    assert (await listed(api, tenant))["items"] == []
    assert (await listed(api, tenant, tag="vip"))["items"] == []


async def test_the_other_form_of_the_request(api: Api, tenant: Tenant) -> None:
    form = {"firstName": " Ana", "lastName": "Silva ", "phoneNumber": "258 84 123-4567"}
    status, answer = await create(api, tenant, **form)
    assert status == 200, answer
    contact = answer["contact"]
    assert [contact[one] for one in ("name", "first_name", "last_name")] == ["Ana Silva", "Ana", "Silva"]
    assert (contact["phone"], contact["tags"]) == ("+258841234567", [])
    # Both at once, if they agree.
    status, answer = await create(api, tenant, **(form | {"name": "Ana Silva", "phone": "00258 841234568"}))
    assert (status, answer["error"]["details"]["fields"][0]["issue"]) == (400, "disagrees")
    both = form | {"name": "Ana Silva", "phone": "+258841234568", "phoneNumber": "258841234568"}
    status, answer = await create(api, tenant, **both)
    assert (status, answer["contact"]["name"]) == (200, "Ana Silva")
    status, answer = await create(api, tenant, firstName="Cher", phone="+258841234569")
    assert (answer["contact"]["name"], answer["contact"]["last_name"]) == ("Cher", None)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"phone": "+258841234567"}, "name"),
    ({"name": "Ana"}, "phone"),
    (ANA | {"phone": "0841234567"}, "phone"),
    (ANA | {"phone": "+25884"}, "phone"),
    (ANA | {"name": "  "}, "name"),
    (ANA | {"name": "x" * 201}, "name"),
    (ANA | {"name": "\u200b\u3164"}, "name"),
    (ANA | {"firstName": "Eva"}, "name"),
    (ANA | {"first_name": "Ana"}, "first_name"),
    (ANA | {"email": "ana@example.com"}, "email"),
    (ANA | {"tags": [" "]}, "tags"),
    (ANA | {"tags": ["\u200b"]}, "tags"),
    (ANA | {"tags": ["x" * 65]}, "tags[0]"),
    (ANA | {"tags": [str(one) for one in range(51)]}, "tags"),
    (ANA | {"tags": "vip"}, "tags"),
    ({"firstName": "x" * 150, "lastName": "y" * 150, "phone": "+258841234567"}, "firstName"),
]


async def test_wrong_fields(api: Api, tenant: Tenant) -> None:
    for body, field in WRONG:
        status, answer = await create(api, tenant, **body)
        assert (status, answer["error"]["code"]) == (400, "validation_error"), body
        assert answer["error"]["details"]["fields"][0]["field"] == field
    assert (await listed(api, tenant))["items"] == []


async def test_a_name_in_two_fields_is_judged_by_both(api: Api, tenant: Tenant) -> None:
    _, answer = await create(api, tenant, phone="+258841234567")
    assert answer["error"]["message"] == "`name` is required, or `firstName` or `lastName`"
    # Either is enough.
    for number, field in enumerate(("firstName", "lastName")):
        status, answer = await create(api, tenant, phone=f"+25884123450{number}", **{field: "Ana"})
        assert (status, answer["contact"]["name"]) == (200, "Ana")
    id, text = answer["contact"]["id"], "`firstName` and `lastName` must have at most 200 characters together"
    names = {"firstName": "x" * 150, "lastName": "y" * 50}
    _, refused = await create(api, tenant, phone="+258841234569", **names)
    _, _, changed = await api.ask("PATCH", f"/contacts/{id}", json=names, headers=tenant.headers)
    for answer in (refused, changed):
        assert [one["field"] for one in answer["error"]["details"]["fields"]] == ["firstName", "lastName"]
        assert answer["error"]["message"] == text


async def test_a_number_has_one_contact(api: Api, tenant: Tenant, pool: Pool) -> None:
    answers = await asyncio.gather(*(create(api, tenant, **ANA | {"name": f"Ana {one}"}) for one in range(8)))
    assert sorted(status for status, _ in answers) == [200] + [409] * 7
    (id,) = [answer["contact"]["id"] for status, answer in answers if status == 200]
    for status, answer in answers:
        if status == 409:
            assert answer["error"]["code"] == "contact_already_exists"
            assert answer["error"]["details"] == {"id": id}
    # Other organizations do not count.
    status, _ = await create(api, await make_tenant(pool), **ANA)
    assert status == 200


async def test_pages_stay_while_contacts_are_added(api: Api, tenant: Tenant) -> None:
    for number in range(7):
        await create(api, tenant, name=f"P{number}", phone=f"+25884000000{number}", tags=["odd"] if number % 2 else [])
    page = await listed(api, tenant, limit=3)
    assert ([one["name"] for one in page["items"]], page["hasMore"]) == (["P6", "P5", "P4"], True)
    await create(api, tenant, name="late", phone="+258840000009")
    second = await listed(api, tenant, limit=3, cursor=page["nextCursor"])
    assert [one["name"] for one in second["items"]] == ["P3", "P2", "P1"]
    last = await listed(api, tenant, limit=3, cursor=second["nextCursor"])
    assert ([one["name"] for one in last["items"]], last["hasMore"], last["nextCursor"]) == (["P0"], False, None)

    odd = await listed(api, tenant, tag=" ODD", limit=2)
    assert ([one["name"] for one in odd["items"]], odd["hasMore"]) == (["P5", "P3"], True)
    rest = await listed(api, tenant, tag="odd", limit=2, cursor=odd["nextCursor"])
    assert [one["name"] for one in rest["items"]] == ["P1"]
    # A cursor belongs to its list.
    for wrong in ({"cursor": odd["nextCursor"]}, {"cursor": page["nextCursor"], "tag": "odd"}, {"tag": " "}):
        status, _, body = await api.ask("GET", "/contacts", params=wrong, headers=tenant.headers)
        assert (status, body["error"]["code"]) == (400, "validation_error"), wrong


async def test_who_opted_out_is_read_from_the_list_of_those(api: Api, tenant: Tenant, pool: Pool) -> None:
    await create(api, tenant, **ANA)
    await pool.execute("INSERT INTO opt_outs VALUES ($1, $2, now(), 'STOP')", tenant.id, ANA["phone"])
    assert (await listed(api, tenant))["items"][0]["opted_out"] is True
    await pool.execute("DELETE FROM opt_outs")
    assert (await listed(api, tenant))["items"][0]["opted_out"] is False


async def test_ids_of_others_and_of_nobody(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    _, created = await create(api, other, **ANA)
    foreign = created["contact"]["id"]
    answers = []
    for id in (foreign, str(uuid7())):
        headers = tenant.headers | {"X-Request-Id": "same"}
        status, _, body = await api.ask("DELETE", "/contacts", params={"id": id}, headers=headers)
        assert (status, body["error"]["code"]) == (404, "not_found")
        answers.append(str(body).replace(id, ""))
    assert answers[0] == answers[1]
    wrong: list[dict[str, str]] = [{}, {"id": ""}, {"id": "x"}, {"id": foreign.replace("-", "")}]
    for query in wrong:
        status, _, body = await api.ask("DELETE", "/contacts", params=query, headers=tenant.headers)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "id"), query
    assert len((await listed(api, other))["items"]) == 1
    status, _, _ = await api.ask("DELETE", "/contacts", params={"id": foreign.upper()}, headers=other.headers)
    assert status == 200


async def test_the_id_is_part_of_what_an_idempotency_key_stands_for(api: Api, tenant: Tenant) -> None:
    ids = [(await create(api, tenant, name="P", phone=f"+25884000000{one}"))[1]["contact"]["id"] for one in range(2)]
    headers = tenant.headers | {"Idempotency-Key": "one"}
    seen = []
    for id in (ids[0], ids[0].upper(), ids[1]):
        status, answered, _ = await api.ask("DELETE", "/contacts", params={"id": id}, headers=headers)
        seen.append((status, answered.get("x-idempotency-status")))
    assert seen == [(200, "stored"), (200, "replayed"), (409, None)]


async def test_scopes(api: Api, pool: Pool) -> None:
    reader = await make_tenant(pool, profile="read_only")
    assert (await listed(api, reader))["items"] == []
    status, answer = await create(api, reader, **ANA)
    assert (status, answer["error"]["code"]) == (403, "api_key_scope_required")


async def test_contacts_by_when_they_were_written_to(api: Api, tenant: Tenant, pool: Pool) -> None:
    for n in range(3):
        await create(api, tenant, name=f"p{n}", phone=f"+25884123456{n}")
    await pool.execute(
        "UPDATE contacts SET written_at = now() - interval '10 days', delivered_at = now() - interval '10 days'"
        " WHERE name = 'p0'"
    )
    await pool.execute("UPDATE contacts SET written_at = now() WHERE name = 'p1'")
    for query, names in (
        ({"neverWritten": "true"}, ["p2"]),
        ({"notWrittenDays": "5"}, ["p2", "p0"]),
        ({"not_written_days": "5", "limit": "1"}, ["p2"]),
        ({"deliveredBefore": "2099-01-01T00:00:00Z"}, ["p0"]),
        ({"deliveredBefore": "2020-01-01T00:00:00Z"}, []),
    ):
        page = await listed(api, tenant, **query)
        assert [one["name"] for one in page["items"]] == names, query
    for query, field in (({"notWrittenDays": "0"}, "notWrittenDays"), ({"deliveredBefore": "x"}, "deliveredBefore")):
        status, _, body = await api.ask("GET", "/contacts", params=query, headers=tenant.headers)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, field)
