"""Webhooks in depth over HTTP: attempts, resends, secret rotation, and fetching events."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.webhooks import replays

from .conftest import Api, Tenant, make_tenant

HOOK = {"url": "https://example.com/hooks", "subscribed_events": ["message.delivered", "message.failed"]}
KIND = "message.delivered"


async def hook(api: Api, tenant: Tenant, **changed: Any) -> tuple[str, str]:
    """A new endpoint: path and secret."""
    _, _, made = await api.ask("POST", "/webhooks", json=HOOK | changed, headers=tenant.headers)
    return f"/webhooks/{made['webhookEndpoint']['id']}", made["signingSecret"]


async def past(
    pool: Pool, tenant: Tenant, count: int = 1, *, kind: str = KIND, ago: float = 3600, at: datetime | None = None
) -> list[UUID]:
    """Events a second apart, the first of them `ago` seconds before `at`, or before now."""
    first = (at or clock.now()) - timedelta(seconds=ago)
    made = []
    for n in range(count):
        at = first + timedelta(seconds=n)
        made.append(UUID(int=uuid7_floor(at).int + uuid7().int % 2**60))
        await pool.execute(
            "INSERT INTO events (organization_id, id, kind, request_id, data, created_at)"
            ' VALUES ($1, $2, $3, \'req-1\', \'{"message": {"status": "delivered"}}\', $4)',
            tenant.id,
            made[-1],
            kind,
            at,
        )
    return made


async def tried(pool: Pool, tenant: Tenant, path: str, event_id: UUID, number: int, result: str) -> None:
    await pool.execute(
        "INSERT INTO webhook_attempts VALUES ($1, $2, $3, $4, now(), 5, $5, $6, 'a private answer')",
        tenant.id,
        event_id,
        UUID(path.rpartition("/")[2]),
        number,
        {"delivered": 200, "refused": 500}.get(result),
        result,
    )


async def all_pages(api: Api, tenant: Tenant, path: str, **params: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        status, _, page = await api.ask("GET", path, params=params | cursor, headers=tenant.headers)
        assert status == 200, page
        items += page["items"]
        if not page["hasMore"]:
            return items
        cursor = {"cursor": page["nextCursor"]}


# ── Attempts ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_attempts_are_listed_newest_first_without_secrets(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, secret = await hook(api, tenant)
    (event_id,) = await past(pool, tenant)
    gone = uuid7()
    for number, result in ((1, "timeout"), (2, "refused"), (3, "delivered")):
        await tried(pool, tenant, path, event_id, number, result)
    await tried(pool, tenant, path, gone, 1, "refused")
    status, _, listed = await api.ask("GET", path + "/attempts", headers=tenant.headers)
    assert status == 200
    assert (listed["success"], listed["nextCursor"], listed["hasMore"]) == (True, None, False)
    shown = [
        (one["event_id"], one["kind"], one["attempt"], one["http_status"], one["result"]) for one in listed["items"]
    ]
    assert shown == [
        (str(gone), None, 1, 500, "refused"),
        (str(event_id), KIND, 3, 200, "delivered"),
        (str(event_id), KIND, 2, 500, "refused"),
        (str(event_id), KIND, 1, None, "timeout"),
    ]
    assert listed["items"][0].keys() == {
        "event_id",
        "kind",
        "attempt",
        "started_at",
        "duration_ms",
        "http_status",
        "result",
    }
    assert secret not in str(listed)
    assert "private" not in str(listed)


async def test_pages_of_attempts_stay_while_new_ones_come(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, _ = await hook(api, tenant)
    (other, _), (event_id,) = await hook(api, tenant), await past(pool, tenant)
    for number in range(1, 8):
        await tried(pool, tenant, path, event_id, number, "refused")
    await tried(pool, tenant, other, event_id, 1, "refused")
    _, _, first = await api.ask("GET", path + "/attempts?limit=3", headers=tenant.headers)
    await tried(pool, tenant, path, event_id, 8, "delivered")
    params = {"limit": "4", "cursor": first["nextCursor"]}
    _, _, second = await api.ask("GET", path + "/attempts", params=params, headers=tenant.headers)
    assert [one["attempt"] for one in first["items"] + second["items"]] == [7, 6, 5, 4, 3, 2, 1]
    assert second["hasMore"] is False
    # A cursor belongs to its endpoint.
    status, _, refused = await api.ask("GET", other + "/attempts", params=params, headers=tenant.headers)
    assert (status, refused["error"]["details"]["fields"][0]["field"]) == (400, "cursor")


async def test_attempts_by_result_kind_and_time(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, _ = await hook(api, tenant)
    (sent,), (failed,) = await past(pool, tenant), await past(pool, tenant, kind="message.failed")
    (example,) = await past(pool, tenant, kind="webhook.test:message.failed")
    made = ((sent, "timeout"), (failed, "refused"), (example, "refused"), (uuid7(), "delivered"))
    for n, (event_id, result) in enumerate(made):
        await tried(pool, tenant, path, event_id, 1, result)
        # Times are shown in milliseconds: two within one would be the same bound.
        at = clock.now() - timedelta(minutes=10 - n)
        await pool.execute("UPDATE webhook_attempts SET started_at = $1 WHERE event_id = $2", at, event_id)
    _, _, listed = await api.ask("GET", path + "/attempts", headers=tenant.headers)
    gone, times = listed["items"][0]["event_id"], [one["started_at"] for one in listed["items"]]
    for params, wanted in (
        ({"result": "failed"}, [str(example), str(failed), str(sent)]),
        ({"result": "timeout"}, [str(sent)]),
        ({"result": "delivered"}, [gone]),
        ({"kind": "message.failed"}, [str(failed)]),
        ({"kind": "webhook.test"}, [str(example)]),
        ({"kind": "message.failed", "result": "timeout"}, []),
        ({"dateTo": times[0], "result": "refused", "limit": "1"}, [str(example), str(failed)]),
        ({"dateFrom": times[1]}, [gone, str(example)]),
    ):
        assert [one["event_id"] for one in await all_pages(api, tenant, path + "/attempts", **params)] == wanted, params
    _, _, first = await api.ask("GET", path + "/attempts?result=failed&limit=1", headers=tenant.headers)
    for params, field in (
        ({"result": "eaten"}, "result"),
        ({"kind": "message.eaten"}, "kind"),
        ({"dateFrom": "2026-03-02T00:00:00Z", "dateTo": "2026-03-01T00:00:00Z"}, "dateFrom"),
        ({"result": "refused", "cursor": first["nextCursor"]}, "cursor"),
    ):
        status, _, refused = await api.ask("GET", path + "/attempts", params=params, headers=tenant.headers)
        assert (status, refused["error"]["details"]["fields"][0]["field"]) == (400, field)


# ── Sending again ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_resend(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, _ = await hook(api, tenant)
    (event_id,) = await past(pool, tenant, kind="message.sent")
    headers = tenant.headers | {"Idempotency-Key": "again"}
    for expected in ("stored", "replayed"):
        status, answered, body = await api.ask(
            "POST", path + "/resend", json={"event_id": str(event_id)}, headers=headers
        )
        assert (status, answered["x-idempotency-status"]) == (202, expected)
        assert body == {
            "success": True,
            "queued": True,
            "delivery": {"event_id": str(event_id), "webhook_endpoint_id": path.rpartition("/")[2]},
        }
    assert [row["id"] for row in await pool.fetch("SELECT id FROM queue")] == [event_id]


async def test_replay_runs_and_is_listed(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, _ = await hook(api, tenant)
    made = await past(pool, tenant, 5)
    await tried(pool, tenant, path, made[0], 1, "delivered")
    body = {
        "from": clock.iso(clock.now() - timedelta(hours=2)),
        "to": clock.iso(clock.now() - timedelta(minutes=5)),
        "only_failed": True,
    }
    headers = tenant.headers | {"Idempotency-Key": "one"}
    answers = await asyncio.gather(*(api.ask("POST", path + "/replay", json=body, headers=headers) for _ in range(4)))
    assert {status for status, _, _ in answers} == {202}
    assert len({str(answer) for _, _, answer in answers}) == 1
    begun = answers[0][2]["replay"]
    assert begun == begun | body | {
        "status": "running",
        "kinds": HOOK["subscribed_events"],
        "queued": 0,
        "completed_at": None,
    }
    status, _, refused = await api.ask("POST", path + "/replay", json=body, headers=tenant.headers)
    assert (status, refused["error"]["code"]) == (409, "webhook_replay_running")
    assert refused["error"]["details"] == {"id": begun["id"]}
    async with pool.acquire() as conn:
        assert await replays.advance(conn) == 4
    _, _, listed = await api.ask("GET", path + "/replays", headers=tenant.headers)
    (done,) = listed["items"]
    assert (done["id"], done["status"], done["queued"]) == (begun["id"], "completed", 4)
    assert done["completed_at"] is not None
    for _ in range(4):
        status, _, answer = await api.ask("POST", path + "/replay", json={"from": body["from"]}, headers=tenant.headers)
        assert status == 202, answer
        async with pool.acquire() as conn:
            await replays.advance(conn)
    ids = [one["id"] for one in await all_pages(api, tenant, path + "/replays", limit=2)]
    assert (len(ids), ids) == (5, sorted(ids, reverse=True))


async def test_an_example(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, _ = await hook(api, tenant)
    await hook(api, tenant, subscribed_events=["webhook.test"])
    status, answered, body = await api.ask("POST", path + "/test", headers=tenant.headers)
    assert (status, body["success"], body["queued"]) == (202, True, True)
    (row,) = await pool.fetch("SELECT e.kind, e.request_id, q.line::text FROM queue q JOIN events e ON e.id = q.id")
    assert tuple(row) == ("webhook.test", answered["x-request-id"], path.rpartition("/")[2])


async def test_a_new_secret_is_shown_once(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, old = await hook(api, tenant)
    headers = tenant.headers | {"Idempotency-Key": "one"}
    answers = [await api.ask("POST", path + "/rotate-secret", headers=headers) for _ in range(2)]
    assert [status for status, _, _ in answers] == [200, 200]
    assert answers[0][2] == answers[1][2]
    body = answers[0][2]
    assert body["signingSecret"].startswith("whsec_")
    assert body["signingSecret"] != old
    until = datetime.fromisoformat(body["previousSecretExpiresAt"]) - clock.now()
    assert timedelta(hours=23, minutes=59) < until < timedelta(hours=24, minutes=1)
    assert await pool.fetchval("SELECT cardinality(old_secrets) FROM webhook_endpoints") == 1
    for table in ("idempotency", "webhook_endpoints"):
        for row in await pool.fetch(f"SELECT * FROM {table}"):
            assert body["signingSecret"] not in str(list(row.values()))
    _, _, listed = await api.ask("GET", "/webhooks", headers=tenant.headers)
    assert "whsec_" not in str(listed)


async def test_scopes_and_ids(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, _ = await hook(api, tenant)
    other, narrow = await make_tenant(pool), await make_tenant(pool, profile="sms_only")
    operations: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "attempts", {}),
        ("GET", "replays", {}),
        ("POST", "resend", {"json": {"event_id": str(uuid7())}}),
        ("POST", "replay", {"json": {"from": clock.iso(clock.now() - timedelta(hours=1))}}),
        ("POST", "test", {}),
        ("POST", "rotate-secret", {}),
    ]
    for method, below, options in operations:
        for wrong, headers, status, code in (
            (path, other.headers, 404, "not_found"),
            (f"/webhooks/{uuid7()}", tenant.headers, 404, "not_found"),
            ("/webhooks/x", tenant.headers, 400, "validation_error"),
            (path, narrow.headers, 403, "api_key_scope_required"),
            (path, {}, 401, "unauthorized"),
        ):
            answered, _, refused = await api.ask(method, f"{wrong}/{below}", headers=headers, **options)
            assert (answered, refused["error"]["code"]) == (status, code), (wrong, below)
    await api.ask("DELETE", path, headers=tenant.headers)
    for method, below, options in operations:
        status, _, answer = await api.ask(method, f"{path}/{below}", headers=tenant.headers, **options)
        if method == "GET":
            assert (status, answer["items"]) == (200, [])
        else:
            assert (status, answer["error"]["code"]) == (409, "webhook_endpoint_disabled"), below
            assert answer["error"]["details"]["reason"] == "requested"
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0


async def test_another_organizations_event_is_not_found(api: Api, tenant: Tenant, pool: Pool) -> None:
    path, _ = await hook(api, tenant)
    (foreign,) = await past(pool, await make_tenant(pool))
    for id in (foreign, uuid7()):
        status, _, refused = await api.ask("POST", path + "/resend", json={"event_id": str(id)}, headers=tenant.headers)
        assert (status, refused["error"]["details"]) == (404, {"resource": "event", "id": str(id)})


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("resend", {}, "event_id"),
    ("resend", {"event_id": "x"}, "event_id"),
    ("resend", {"event_id": "019c8f5e-6f1a-7c33-9d05-0b7c2f6a1e44", "more": 1}, "more"),
    ("replay", {}, "from"),
    ("replay", {"from": "2026-03-01T00:00:00"}, "from"),
    ("replay", {"from": "2020-03-01T00:00:00Z"}, "from"),
    ("replay", {"from": "0001-01-01T00:00:00+14:00"}, "from"),
    ("replay", {"from": "9999-12-31T23:59:59-14:00"}, "from"),
    ("replay", {"from": "NOW", "to": "0001-01-01T00:00:00+14:00"}, "from"),
    ("replay", {"from": "NOW", "kinds": []}, "kinds"),
    ("replay", {"from": "NOW", "kinds": ["message.sent"]}, "kinds"),
    ("replay", {"from": "NOW", "only_failed": "yes"}, "only_failed"),
    ("replay", {"from": "NOW", "from_at": "NOW"}, "from_at"),
]


async def test_wrong_fields(api: Api, tenant: Tenant) -> None:
    path, _ = await hook(api, tenant)
    minute_ago = clock.iso(clock.now() - timedelta(minutes=1))
    for below, body, field in WRONG:
        given = {name: minute_ago if value == "NOW" else value for name, value in body.items()}
        status, _, refused = await api.ask("POST", f"{path}/{below}", json=given, headers=tenant.headers)
        assert (status, refused["error"]["code"]) == (400, "validation_error"), body
        assert refused["error"]["details"]["fields"][0]["field"] == field


# ── Events to fetch ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_events_come_oldest_first_as_their_callbacks_have_them(api: Api, tenant: Tenant, pool: Pool) -> None:
    made = [str(one) for one in await past(pool, tenant, 3)]
    await past(pool, await make_tenant(pool))
    # By kind: the approval of the sender is listed, too, once it is three seconds old.
    status, _, listed = await api.ask("GET", "/events", params={"kind": KIND}, headers=tenant.headers)
    assert status == 200
    assert [one["id"] for one in listed["items"]] == made
    assert listed["items"][0] == {
        "id": made[0],
        "type": KIND,
        "timestamp": clock.iso(await pool.fetchval("SELECT created_at FROM events WHERE id = $1", UUID(made[0]))),
        "requestId": "req-1",
        "apiVersion": "v1",
        "data": {"message": {"status": "delivered"}},
    }


async def test_a_cursor_of_events_can_be_kept_and_resumed(api: Api, tenant: Tenant, pool: Pool) -> None:
    _, _, nothing = await api.ask("GET", "/events", params={"kind": KIND}, headers=tenant.headers)
    assert (nothing["items"], nothing["hasMore"]) == ([], False)
    made = [str(one) for one in await past(pool, tenant, 7, ago=600)]
    seen: list[str] = []
    cursor = nothing["nextCursor"]
    for expected in (3, 3, 1, 0):
        params = {"kind": KIND, "limit": "3", "cursor": cursor}
        _, _, page = await api.ask("GET", "/events", params=params, headers=tenant.headers)
        assert len(page["items"]) == expected
        assert page["hasMore"] == (expected == 3)
        seen += [one["id"] for one in page["items"]]
        cursor = page["nextCursor"]
    assert seen == made
    late = [str(one) for one in await past(pool, tenant, 2, ago=100)]
    _, _, page = await api.ask("GET", "/events", params={"kind": KIND, "cursor": cursor}, headers=tenant.headers)
    assert [one["id"] for one in page["items"]] == late


async def test_events_by_kind_and_date(api: Api, tenant: Tenant, pool: Pool) -> None:
    at = clock.now()
    made = await past(pool, tenant, 6, ago=600, at=at)
    (failed,) = await past(pool, tenant, kind="message.failed", ago=598.5, at=at)
    assert [one["id"] for one in await all_pages(api, tenant, "/events", kind="message.failed")] == [str(failed)]
    params = {
        "dateFrom": clock.iso(at - timedelta(seconds=599.5)),
        "date-to": clock.iso(at - timedelta(seconds=596.5)),
        "limit": 2,
    }
    found = await all_pages(api, tenant, "/events", **params)
    assert [one["id"] for one in found] == [str(id) for id in (made[1], failed, made[2], made[3])]


async def test_what_an_events_list_refuses(api: Api, tenant: Tenant, pool: Pool) -> None:
    other = await make_tenant(pool)
    await past(pool, tenant, 3)
    _, _, page = await api.ask("GET", "/events?limit=1", headers=tenant.headers)
    cursor = page["nextCursor"]
    for params, who, field in (
        ({"kind": "message.eaten"}, tenant, "kind"),
        ({"limit": "201"}, tenant, "limit"),
        ({"dateFrom": "yesterday"}, tenant, "dateFrom"),
        ({"dateFrom": "2026-03-02T00:00:00Z", "dateTo": "2026-03-01T00:00:00Z"}, tenant, "dateFrom"),
        ({"cursor": cursor[:-1] + ("A" if cursor[-1] != "A" else "B")}, tenant, "cursor"),
        ({"cursor": cursor}, other, "cursor"),
        ({"cursor": cursor, "kind": KIND}, tenant, "cursor"),
    ):
        status, _, refused = await api.ask("GET", "/events", params=params, headers=who.headers)
        assert (status, refused["error"]["details"]["fields"][0]["field"]) == (400, field)
    narrow = await make_tenant(pool, profile="sms_only")
    status, _, refused = await api.ask("GET", "/events", headers=narrow.headers)
    assert (status, refused["error"]["code"]) == (403, "api_key_scope_required")
