"""Test keys touch only test resources and live keys only live ones; what both share is read-only for test keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from heliograph.accounts.api_keys import lifecycle
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.sms import status
from heliograph.webhooks.recording import events, feed

from .conftest import Api, Tenant

TO = "+258841234567"


class Side:
    """What one key of an organization sees."""

    def __init__(self, api: Api, secret: str, mode: str) -> None:
        self._api, self._headers, self.mode = api, {"x-api-key": secret}, mode

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        options = {} if body is None else {"json": body}
        code, _, answer = await self._api.ask(method, path, headers=self._headers, **options)
        return code, answer

    async def make(self, path: str, body: Any) -> Any:
        code, answer = await self.ask("POST", path, body)
        assert code // 100 == 2, answer
        return answer

    async def ids(self, path: str) -> list[str]:
        code, answer = await self.ask("GET", path)
        assert code == 200, answer
        return [item["id"] for item in answer["items"]]


@pytest.fixture
async def sides(api: Api, tenant: Tenant, pool: Pool) -> tuple[Side, Side]:
    """A live and a test key of one organization, both with every scope."""
    async with pool.acquire() as conn:
        _, secret = await lifecycle.issue(conn, tenant.actor, name="test", profile="full_access", mode="test")
    return Side(api, tenant.secret, "live"), Side(api, secret, "test")


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed shows at once what is committed."""
    monkeypatch.setattr(feed, "SETTLING", -1.0)


async def delivered(pool: Pool, tenant: Tenant, id: str) -> None:
    """A receipt from the network, as a worker records it."""
    moves = [status.Move(tenant.id, UUID(id), one, datetime.now(UTC), was_sent=True) for one in ("sent", "delivered")]
    async with pool.acquire() as conn, conn.transaction():
        for move in moves:
            await status.move_many(conn, [move])


async def test_each_key_sees_and_changes_its_own_side_only(
    api: Api, tenant: Tenant, pool: Pool, sides: tuple[Side, Side], settled: None
) -> None:
    """Everything there is, created on both sides, and requested and changed from the other one."""
    made: dict[str, dict[str, str]] = {}
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for side in sides:
        found = made[side.mode] = {}
        body = {"to": TO, "message": side.mode, "sendAt": later}
        answer = await api.ask("POST", "/sms/send", json=body, headers=side._headers | {"Idempotency-Key": "k"})
        found["/sms/messages"] = answer[2]["message"]["id"]
        contact = {"name": side.mode, "phone": TO, "tags": ["vip"]}
        found["/contacts"] = (await side.make("/contacts", contact))["contact"]["id"]
        campaign = {"name": side.mode, "content": "hi", "audience_tags": ["vip"], "scheduledAt": later}
        found["/campaigns"] = (await side.make("/campaigns", campaign))["campaign"]["id"]
        hook = {"url": "https://example.com/", "subscribed_events": ["message.delivered", "sender_id.approved"]}
        found["/webhooks"] = (await side.make("/webhooks", hook))["webhookEndpoint"]["id"]
        key = {"name": side.mode, "profile": "sms_only"}
        found["/api-keys"] = (await side.make("/api-keys", key))["apiKey"]["id"]

    live, tester = sides
    for side, other in ((live, tester), (tester, live)):
        theirs = made[other.mode]
        for path, id in made[side.mode].items():
            ids = await side.ids(path)
            assert id in ids, path
            assert theirs[path] not in ids, path
        assert await side.ids("/contacts?tag=vip") == [made[side.mode]["/contacts"]]
        hook = f"/webhooks/{theirs['/webhooks']}"
        requests: list[tuple[str, str, Any]] = [
            ("GET", f"/sms/messages/{theirs['/sms/messages']}", None),
            ("DELETE", f"/sms/messages/{theirs['/sms/messages']}", None),
            ("DELETE", f"/contacts?id={theirs['/contacts']}", None),
            ("GET", f"/campaigns/{theirs['/campaigns']}", None),
            ("DELETE", f"/campaigns/{theirs['/campaigns']}", None),
            ("DELETE", f"/api-keys/{theirs['/api-keys']}", None),
            ("GET", f"{hook}/attempts", None),
            ("GET", f"{hook}/replays", None),
            ("POST", f"{hook}/rotate-secret", None),
            ("POST", f"{hook}/test", None),
            ("POST", f"{hook}/resend", {"event_id": str(uuid7())}),
            ("POST", f"{hook}/replay", {"from": (datetime.now(UTC) - timedelta(days=1)).isoformat()}),
            ("DELETE", hook, None),
        ]
        for method, path, body in requests:
            code, answer = await side.ask(method, path, body)
            assert (code, answer["error"]["code"]) == (404, "not_found"), (side.mode, method, path, answer)
    # None of that changed anything.
    assert await pool.fetchval("SELECT count(*) FROM webhook_endpoints WHERE status = 'active'") == 2
    assert await pool.fetchval("SELECT count(*) FROM api_keys WHERE status = 'active'") == 4
    assert await pool.fetchval("SELECT count(*) FROM campaigns WHERE status = 'scheduled'") == 2
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'accepted'") == 2
    assert await pool.fetchval("SELECT count(*) FROM contacts") == 2


async def test_an_event_goes_to_endpoints_and_keys_of_its_mode(
    api: Api, tenant: Tenant, pool: Pool, sides: tuple[Side, Side], settled: None
) -> None:
    hooks, messages = {}, {}
    for side in sides:
        hook = {"url": "https://example.com/", "subscribed_events": list(events.KINDS)}
        hooks[side.mode] = (await side.make("/webhooks", hook))["webhookEndpoint"]["id"]
        headers = side._headers | {"Idempotency-Key": "k"}
        answer = await api.ask("POST", "/sms/send", json={"to": TO, "message": "hi"}, headers=headers)
        messages[side.mode] = answer[2]["message"]["id"]
        await delivered(pool, tenant, messages[side.mode])
    # Events about shared objects are live.
    async with pool.acquire() as conn:
        shared = events.Event(tenant.id, uuid7(), "sender_id.approved", "r", "{}", datetime.now(UTC))
        await events.record(conn, [shared])
    for side, other in (sides, sides[::-1]):
        code, page = await side.ask("GET", "/events")
        assert code == 200
        kinds = {item["type"] for item in page["items"]}
        assert kinds == {"message.delivered"} | ({"sender_id.approved"} if side.mode == "live" else set())
        (mine,) = [item for item in page["items"] if item["type"] == "message.delivered"]
        assert mine["data"]["message"]["id"] == messages[side.mode]
        queued = await pool.fetch(
            "SELECT id::text FROM queue WHERE kind = 'webhook' AND line::text = $1", hooks[side.mode]
        )
        assert mine["id"] in {row["id"] for row in queued}
        _, theirs = await other.ask("GET", "/events")
        assert not {row["id"] for row in queued} & {item["id"] for item in theirs["items"]}
        body = {"event_id": mine["id"]}
        assert (await side.ask("POST", f"/webhooks/{hooks[side.mode]}/resend", body))[0] == 202
        assert (await other.ask("POST", f"/webhooks/{hooks[other.mode]}/resend", body))[0] == 404


async def test_a_test_campaign_is_for_test_contacts(sides: tuple[Side, Side]) -> None:
    live, tester = sides
    await live.make("/contacts", {"name": "Ana", "phone": TO, "tags": ["vip"]})
    body = {"name": "Sale", "content": "hi", "audience_tags": ["vip"]}
    code, answer = await tester.ask("POST", "/campaigns", body)
    assert (code, answer["error"]["code"]) == (409, "campaign_audience_empty")
    assert (await live.ask("POST", "/campaigns", body))[0] == 201


async def test_what_is_shared_a_test_key_reads_and_does_not_change(sides: tuple[Side, Side]) -> None:
    live, tester = sides
    for path in ("/sender-ids", "/whatsapp/templates", "/whatsapp/phone-numbers", "/usage"):
        assert (await tester.ask("GET", path))[1]["items"] == (await live.ask("GET", path))[1]["items"]
    for path in ("/account", "/whatsapp/wallet"):
        assert (await tester.ask("GET", path))[0] == 200
    code, answer = await tester.ask("POST", "/sender-ids", {"value": "ACME"})
    assert (code, answer["error"]["code"]) == (403, "live_key_required")
    assert (await live.ask("POST", "/sender-ids", {"value": "ACME"}))[0] == 201


async def test_limits_hold_for_both_sides_together(sides: tuple[Side, Side]) -> None:
    """The organization has five active keys and ten active endpoints, in both modes together."""
    live, tester = sides
    for side in (live, tester, live):
        await side.make("/api-keys", {"name": "a", "profile": "sms_only", "mode": side.mode})
    for side in sides:
        code, answer = await side.ask("POST", "/api-keys", {"name": "a", "profile": "sms_only"})
        assert (code, answer["error"]["code"]) == (409, "api_key_active_limit_reached")
        assert answer["error"]["details"] == {"limit": 5, "active": {"live": 3, "test": 2}}
    hook = {"url": "https://example.com/", "subscribed_events": ["message.sent"]}
    for number in range(10):
        await sides[number % 2].make("/webhooks", hook)
    for side in sides:
        code, answer = await side.ask("POST", "/webhooks", hook)
        assert (code, answer["error"]["code"]) == (409, "webhook_endpoint_limit_reached")


async def test_a_cursor_is_of_the_mode_that_it_was_given_in(sides: tuple[Side, Side]) -> None:
    """One path has two lists: a position in one is not valid in the other."""
    live, tester = sides
    for side in sides:
        for number in range(2):
            await side.make("/contacts", {"name": "Ana", "phone": f"+25884123456{number}"})
    for side, other in ((live, tester), (tester, live)):
        _, page = await side.ask("GET", "/contacts?limit=1")
        following = f"/contacts?limit=1&cursor={page['nextCursor']}"
        code, answer = await other.ask("GET", following)
        assert (code, answer["error"]["details"]["fields"][0]["field"]) == (400, "cursor")
        code, rest = await side.ask("GET", following)
        assert (code, len(rest["items"]), rest["hasMore"]) == (200, 1, False)
