"""GET /v1/traffic from a client's point of view."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from heliograph import traffic
from heliograph.base.database.clock import iso, now
from heliograph.base.database.pool import Pool
from heliograph.sms.status import Move, move_many

from .conftest import Api, Tenant, make_tenant
from .test_account import send


async def fold(pool: Pool) -> None:
    async with pool.acquire() as conn:
        await traffic.fold(conn)


async def test_traffic_says_what_became_of_messages_and_how_fast(api: Api, tenant: Tenant, pool: Pool) -> None:
    ids = [(await send(api, tenant, str(n)))[1]["message"]["id"] for n in range(3)]
    rows = await pool.fetch("SELECT organization_id, id, accepted_at FROM messages WHERE id = ANY ($1)", ids)
    async with pool.acquire() as conn, conn.transaction():
        for seconds, row in zip((1, 3), rows, strict=False):
            at = row["accepted_at"] + timedelta(seconds=seconds)
            await move_many(conn, [Move(row["organization_id"], row["id"], "sent", at)])
        await move_many(conn, [Move(rows[0]["organization_id"], rows[0]["id"], "delivered", at)])
    await fold(pool)
    status, _, body = await api.ask("GET", "/traffic", headers=tenant.headers)
    assert (status, body["success"], body["interval"]) == (200, True, "hour")
    messages = sum(item["messages"] for item in body["items"])
    statuses = {name: count for item in body["items"] for name, count in item["statuses"].items()}
    assert (messages, statuses) == (3, {"accepted": 1, "sent": 1, "delivered": 1})
    item = body["items"][-1]
    assert item["value"] is None
    assert 0.5 <= item["toSent"]["p50"] <= item["toSent"]["p95"] <= item["toSent"]["p99"] <= 4.1
    assert item["toDelivered"] is not None
    _, _, split = await api.ask(
        "GET", "/traffic?groupBy=country&interval=day&channel=sms&mode=live", headers=tenant.headers
    )
    assert {(item["value"], item["messages"], item["segments"]) for item in split["items"]} == {("MZ", 3, 3)}
    for nothing in ("channel=whatsapp", "country=PT", "sender=nobody", "mode=test"):
        _, _, none = await api.ask("GET", f"/traffic?{nothing}", headers=tenant.headers)
        assert none["items"] == [], nothing


async def test_traffic_is_of_the_keys_organization_alone(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    await send(api, tenant, "1")
    await fold(pool)
    _, _, body = await api.ask("GET", "/traffic", headers=other.headers)
    assert body["items"] == []


@pytest.mark.parametrize(
    "query",
    [
        "interval=month",
        "groupBy=supplier",
        "country=mz",
        "dateFrom=2026-01-01T00:00:00Z&dateTo=2026-03-01T00:00:00Z",
        "interval=day&dateFrom=2024-01-01T00:00:00Z&dateTo=2026-03-01T00:00:00Z",
        "dateFrom=2026-01-02T00:00:00Z&dateTo=2026-01-01T00:00:00Z",
        "dateFrom=2026-01-01T10:30:00Z&dateTo=2026-01-01T10:30:00Z",
        "dateFrom=2026-01-01T10:40:00Z&dateTo=2026-01-01T10:30:00Z",
        "dateTo=9999-12-31T23:59:59.999Z",
        "dateTo=0001-01-01T00:00:00Z",
        "dateFrom=9999-12-31T23:00:00Z",
    ],
)
async def test_what_cannot_be_drawn_is_refused(api: Api, tenant: Tenant, query: str) -> None:
    status, _, body = await api.ask("GET", f"/traffic?{query}", headers=tenant.headers)
    assert (status, body["error"]["code"]) == (400, "validation_error")


@pytest.mark.parametrize(("interval", "days"), [("hour", 31), ("day", 366)])
async def test_the_longest_range_may_begin_within_an_interval(
    api: Api, tenant: Tenant, interval: str, days: int
) -> None:
    begin = datetime(2026, 1, 1, 10, 30, tzinfo=UTC)
    for more, expected in ((timedelta(), 200), (timedelta(milliseconds=1), 400)):
        query = f"interval={interval}&dateFrom={iso(begin)}&dateTo={iso(begin + timedelta(days=days) + more)}"
        assert (await api.ask("GET", f"/traffic?{query}", headers=tenant.headers))[0] == expected, query


async def test_without_dates_the_last_day_is_shown(api: Api, tenant: Tenant) -> None:
    before = now()
    _, _, body = await api.ask("GET", "/traffic", headers=tenant.headers)
    assert body["dateFrom"] <= iso(before - timedelta(hours=22))
    assert body["dateTo"] >= iso(before)
