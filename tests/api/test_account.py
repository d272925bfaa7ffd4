"""Account and usage ledger over HTTP; after every commit, the ledger's sum equals the remaining quota."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from heliograph.accounts import organizations, plans, quota
from heliograph.accounts.quota import Reset
from heliograph.base.database.clock import iso, now
from heliograph.base.database.pool import Pool
from tests.rules.factories import check_ledger

from .conftest import Api, Tenant, make_tenant, running

ENTRY = [
    *("id", "type", "channel", "quantity", "balanceAfter", "segments", "messageId", "campaignId"),
    *("reason", "createdAt"),
]


async def send(api: Api, tenant: Tenant, key: str, message: str = "hi") -> tuple[int, Any]:
    body = {"to": "+258841234567", "message": message}
    status, _, answer = await api.ask("POST", "/sms/send", json=body, headers=tenant.headers | {"Idempotency-Key": key})
    return status, answer


async def test_the_account_of_an_organization_without_a_plan(api: Api, tenant: Tenant) -> None:
    status, _, body = await api.ask("GET", "/account", headers=tenant.headers)
    assert (status, body) == (
        200,
        {
            "success": True,
            "account": {
                "organization": {"id": str(tenant.id), "name": "Acme"},
                "commercialState": "active",
                "subscription": None,
                "quota": {"unit": "message", "total": 1000, "used": 0, "remaining": 1000, "resetsAt": None},
            },
        },
    )
    assert (await send(api, tenant, "1"))[0] == 202
    _, _, body = await api.ask("GET", "/account", headers=tenant.headers)
    expected = {"unit": "message", "total": 1000, "used": 1, "remaining": 999, "resetsAt": None}
    assert body["account"]["quota"] == expected


async def test_the_account_on_a_plan_in_every_state(api: Api, tenant: Tenant, pool: Pool) -> None:
    begun = now() - timedelta(days=40)
    async with pool.acquire() as conn:
        await plans.subscribe(conn, tenant.id, plans.Terms("business", 500), now=now(), anchor=begun)
    start, end = plans.period(begun, 1, now())
    for state, standing in plans.STATUS.items():
        async with pool.acquire() as conn:
            await organizations.set_state(conn, id=tenant.id, state=state)
        status, _, body = await api.ask("GET", "/account", headers=tenant.headers)
        assert (status, body["account"]["commercialState"]) == (200, state)
        assert body["account"]["subscription"] == {
            "plan": "business",
            "status": standing,
            "currentPeriodStart": iso(start),
            "currentPeriodEnd": iso(end),
        }
        assert body["account"]["quota"] == {
            "unit": "message",
            "total": 500,
            "used": 0,
            "remaining": 500,
            "resetsAt": None if state == "closed" else iso(end),
        }


async def test_a_key_without_the_scope_sees_neither(api: Api, pool: Pool) -> None:
    tenant = await make_tenant(pool, profile="sms_only")
    for path in ("/account", "/usage"):
        status, _, body = await api.ask("GET", path, headers=tenant.headers)
        assert (status, body["error"]["details"]) == (403, {"required": ["account:read"]})


async def test_the_ledger_tells_every_change(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    assert (await send(api, other, "1"))[0] == 202
    ids = [(await send(api, tenant, str(n), "x" * length))[1]["message"]["id"] for n, length in enumerate((5, 400))]
    async with pool.acquire() as conn:
        await quota.adjust(conn, tenant.id, amount=-100, reason="entered twice")
        async with conn.transaction():
            await quota.refund_many(conn, [(tenant.id, UUID(ids[1]), 3)], "canceled")
    status, _, body = await api.ask("GET", "/usage", headers=tenant.headers)
    assert (status, list(body)) == (200, ["success", "items", "nextCursor", "hasMore"])
    assert (body["nextCursor"], body["hasMore"]) == (None, False)
    assert all(list(item) == ENTRY for item in body["items"])
    told = [
        (item["type"], item["quantity"], item["balanceAfter"], item["segments"], item["messageId"], item["reason"])
        for item in body["items"]
    ]
    assert told == [
        ("refund", 1, 899, 3, ids[1], "canceled"),
        ("adjustment", -100, 898, None, None, "entered twice"),
        ("usage", -1, 998, 3, ids[1], None),
        ("usage", -1, 999, 1, ids[0], None),
        ("grant", 1000, 1000, None, None, "test"),
    ]
    assert {item["channel"] for item in body["items"]} == {"sms"}
    assert body["items"][2]["id"] == ids[1]
    assert sum(item["quantity"] for item in body["items"]) == 899
    for years, found in ((("0569", "1278"), 0), (("0569", "9999"), 5), (("9998", "9999"), 0)):
        span = "dateFrom={}-07-16T10:12:08Z&dateTo={}-11-20T08:50:59Z".format(*years)
        status, _, body = await api.ask("GET", f"/usage?{span}", headers=tenant.headers)
        assert (status, len(body["items"])) == (200, found), years


async def test_pages_stay_while_rows_are_added(api: Api, tenant: Tenant) -> None:
    for number in range(6):
        await send(api, tenant, str(number))
    _, _, all_ = await api.ask("GET", "/usage?limit=200", headers=tenant.headers)
    seen: list[str] = []
    path = "/usage?limit=2"
    for number in range(10):
        _, _, body = await api.ask("GET", path, headers=tenant.headers)
        seen += [item["id"] for item in body["items"]]
        assert body["hasMore"] == (body["nextCursor"] is not None)
        if not body["hasMore"]:
            break
        await send(api, tenant, f"later {number}")
        path = f"/usage?limit=2&cursor={body['nextCursor']}"
    assert seen == [item["id"] for item in all_["items"]]


async def test_dates_bound_the_ledger(api: Api, tenant: Tenant, pool: Pool) -> None:
    ids = [(await send(api, tenant, str(n)))[1]["message"]["id"] for n in range(3)]
    at = datetime.now(UTC).replace(microsecond=0)
    for number, id in enumerate(ids):
        created = at + timedelta(seconds=number)
        await pool.execute("UPDATE messages SET accepted_at = $2 WHERE id = $1", UUID(id), created)
    first, last = iso(at + timedelta(seconds=1)), iso(at + timedelta(seconds=2))

    async def listed(query: str) -> list[str]:
        status, _, body = await api.ask("GET", f"/usage?{query}", headers=tenant.headers)
        assert status == 200, body
        return [item["id"] for item in body["items"] if item["type"] == "usage"]

    assert await listed(f"dateFrom={first}") == [ids[2], ids[1]]
    assert await listed(f"date-from={first}&date_to={last}") == [ids[1]]
    assert await listed(f"dateTo={last}") == [ids[1], ids[0]]
    assert await listed("dateFrom=0001-01-01T00:00:00Z&dateTo=9999-12-31T23:59:59Z") == ids[::-1]
    assert await listed("dateFrom=9999-12-31T00:00:00Z") == []
    for wrong, field in (
        (f"dateFrom={last}&dateTo={first}", "dateFrom"),
        ("dateFrom=2026-01-01", "dateFrom"),
        ("dateFrom=null", "dateFrom"),
        ("dateFrom=0.5", "dateFrom"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("cursor=x", "cursor"),
    ):
        status, _, body = await api.ask("GET", f"/usage?{wrong}", headers=tenant.headers)
        assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, field), wrong
    # A cursor belongs to its organization and its dates.
    _, _, page = await api.ask("GET", "/usage?limit=1", headers=tenant.headers)
    other = await make_tenant(pool)
    for query, headers in ((f"dateFrom={first}&", tenant.headers), ("", other.headers)):
        status, _, body = await api.ask("GET", f"/usage?{query}cursor={page['nextCursor']}", headers=headers)
        assert (status, body["error"]["code"]) == (400, "validation_error")


async def test_the_ledgers_sum_is_what_remains_at_every_commit(database_url: str, pool: Pool) -> None:
    """Two web processes accept while operators grant, adjust and refund and a period begins; a reader checks all the
    time."""
    tenant = await make_tenant(pool, amount=40)
    done = asyncio.Event()

    async def watch() -> int:
        looks = 0
        while not done.is_set() or looks <= 10:
            row = await pool.fetchrow(
                "SELECT total - used AS remaining, used, total,"
                "       (SELECT sum(quantity) FROM usage_entries WHERE organization_id = $1) AS booked"
                "  FROM quotas WHERE organization_id = $1",
                tenant.id,
            )
            assert row is not None
            assert row["remaining"] == row["booked"]
            assert 0 <= row["used"] <= row["total"]
            looks += 1
        return looks

    async def operate() -> None:
        for number in range(15):
            async with pool.acquire() as conn:
                await quota.grant(conn, tenant.id, amount=3, reason="more")
                await quota.adjust(conn, tenant.id, amount=2, reason="found")
                async with conn.transaction():
                    rows = await conn.fetch("SELECT organization_id, id FROM messages ORDER BY id DESC LIMIT 4")
                    await quota.refund_many(conn, [(row[0], row[1], 1) for row in rows], "canceled")
                if number == 7:
                    async with conn.transaction():
                        await quota.reset_many(conn, [Reset(tenant.id, 30, None)], reason="period")

    watching = asyncio.create_task(watch())
    async with running(database_url) as first, running(database_url) as second:
        apis = (first, second)
        answers, _ = await asyncio.gather(
            asyncio.gather(*(send(apis[n % 2], tenant, str(n)) for n in range(200))), operate()
        )
    done.set()
    assert await watching > 10
    accepted = [body for status, body in answers if status == 202]
    assert {status for status, _ in answers} <= {202, 409}
    assert await pool.fetchval("SELECT count(*) FROM messages") == len(accepted) >= 40
    await check_ledger(pool, [tenant.id])
