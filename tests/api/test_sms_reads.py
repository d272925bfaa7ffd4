"""Messages over HTTP: list with cursor and filters, read with the timeline, preview, cancel."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import asyncpg
import pytest

from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Pool
from tests.rules.factories import blocked, losing_deadlocks

from .conftest import Api, Tenant, make_tenant

BODY = {"to": "+258841234567", "message": "Hello", "clientReference": "order-1"}
FIELDS = {
    "id",
    "clientReference",
    "channel",
    "status",
    "mode",
    "to",
    "sender",
    "senderId",
    "encoding",
    "segments",
    "campaignId",
    "apiKeyId",
    "class",
    "deliveryGuarantee",
    "acceptedAt",
    "sendAt",
    "expiresAt",
    "quietUntil",
    "sentAt",
    "deliveredAt",
    "failedAt",
    "canceledAt",
    "failure",
}


class Client:
    """One tenant's calls."""

    def __init__(self, api: Api, tenant: Tenant) -> None:
        self._api, self._tenant, self._sent = api, tenant, 0

    async def send(self, **changed: Any) -> str:
        """Send a message; returns its id."""
        self._sent += 1
        headers = self._tenant.headers | {"Idempotency-Key": f"{self._tenant.key_id}-{self._sent}"}
        status, _, body = await self._api.ask("POST", "/sms/send", json=BODY | changed, headers=headers)
        assert status == 202, body
        return str(body["message"]["id"])

    async def ask(self, method: str, path: str, headers: dict[str, str] | None = None, **options: Any) -> Any:
        """(status, body)"""
        answered = await self._api.ask(method, path, headers=self._tenant.headers | (headers or {}), **options)
        return answered[0], answered[2]

    async def page(self, **query: Any) -> Any:
        """The body of a list."""
        status, body = await self.ask("GET", f"/sms/messages?{urlencode(query)}")
        assert status == 200, body
        assert body.keys() == {"success", "items", "nextCursor", "hasMore"}
        return body

    async def ids(self, **query: Any) -> list[str]:
        return [item["id"] for item in (await self.page(**query))["items"]]


@pytest.fixture
def client(api: Api, tenant: Tenant) -> Client:
    return Client(api, tenant)


async def test_a_message_is_read_with_text_and_timeline(client: Client) -> None:
    id = await client.send()
    status, body = await client.ask("GET", f"/sms/messages/{id}")
    assert status == 200
    assert body.keys() == {"success", "message", "timeline"}
    message = body["message"]
    assert message.keys() == FIELDS | {"message"}
    shown = {name: message[name] for name in ("id", "clientReference", "channel", "status", "mode", "to", "message")}
    assert shown == {
        "id": id,
        "clientReference": "order-1",
        "channel": "sms",
        "status": "accepted",
        "mode": "live",
        "to": "+258841234567",
        "message": "Hello",
    }
    assert (message["sender"], message["encoding"], message["segments"]) == ("HELIOGRAPH", "gsm7", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", message["acceptedAt"])
    assert body["timeline"] == [
        {"at": message["acceptedAt"], "type": "status", "status": "accepted", "failure": None, "delivery": None}
    ]


async def test_what_a_send_asked_for_is_read_back(client: Client) -> None:
    at = clock.now() + timedelta(hours=3)
    id = await client.send(
        sendAt=at.isoformat(), validitySeconds=120, deliveryGuarantee="at_most_once", **{"class": "otp"}
    )
    message = (await client.ask("GET", f"/sms/messages/{id}"))[1]["message"]
    assert (message["sendAt"], message["expiresAt"]) == (iso(at), iso(at + timedelta(seconds=120)))
    assert (message["status"], message["deliveryGuarantee"], message["class"]) == ("accepted", "at_most_once", "otp")
    now = (await client.ask("GET", f"/sms/messages/{await client.send()}"))[1]["message"]
    assert (now["sendAt"], now["deliveryGuarantee"], now["class"]) == (None, "at_least_once", "transactional")
    for wrong in (
        {"sendAt": iso(clock.now() - timedelta(minutes=2))},
        {"sendAt": iso(clock.now() + timedelta(days=366))},
        {"sendAt": "2030-01-01T00:00:00"},
        {"validitySeconds": 59},
        {"validitySeconds": 259_201},
        {"deliveryGuarantee": "exactly_once"},
        {"class": "urgent"},
    ):
        for path in ("/sms/send", "/sms/preview"):
            status, body = await client.ask("POST", path, json=BODY | wrong, headers={"Idempotency-Key": "wrong"})
            assert (status, body["error"]["code"]) == (400, "validation_error")
            assert [field["field"] for field in body["error"]["details"]["fields"]] == list(wrong)


async def test_a_list_shows_what_a_read_shows_but_for_the_text(client: Client) -> None:
    id = await client.send()
    (item,) = (await client.page())["items"]
    message = (await client.ask("GET", f"/sms/messages/{id}"))[1]["message"]
    del message["message"]
    assert item == message


async def test_pages_are_stable_while_messages_come(client: Client) -> None:
    sent = [await client.send() for _ in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await client.page(**query)
        seen += [item["id"] for item in page["items"]]
        await client.send()
        assert page["hasMore"] == (page["nextCursor"] is not None)
        if not page["hasMore"]:
            break
        query["cursor"] = page["nextCursor"]
    assert seen == sent[::-1]


async def test_filters_in_every_spelling(client: Client) -> None:
    first = await client.send(clientReference="a b&c")
    second = await client.send(to="+258840000001")
    assert await client.ids(clientReference="a b&c") == [first]
    for name in ("clientReference", "client_reference", "client-reference"):
        assert await client.ids(**{name: "order-1"}) == [second]
    for number in ("+258840000001", "258840000001", " 258840000001"):
        assert await client.ids(recipient=number) == [second]
    assert (await client.ask("GET", "/sms/messages?recipient=+258840000001"))[1]["items"][0]["id"] == second
    # A send accepts a sender's name in any case, and so does the list of messages.
    for name in ("HELIOGRAPH", "heliograph"):
        assert await client.ids(sender=name) == [second, first]
    assert await client.ids(sender="HELIO") == []
    assert await client.ids(status="accepted") == [second, first]
    assert await client.ids(status="sent") == []
    accepted = (await client.ask("GET", f"/sms/messages/{second}"))[1]["message"]["acceptedAt"]
    for name in ("dateFrom", "date_from", "date-from"):
        assert second in await client.ids(**{name: accepted})
    for name in ("dateTo", "date_to", "date-to"):
        assert second not in await client.ids(**{name: accepted})
    for name in ("campaignId", "campaign_id", "campaign-id"):
        assert await client.ids(**{name: first}) == []
    assert await client.ids(unknown="parameter") == [second, first]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("cursor=abc", "cursor"),
        ("status=lost", "status"),
        ("recipient=12", "recipient"),
        ("recipient=", "recipient"),
        ("campaignId=1", "campaignId"),
        ("dateFrom=yesterday", "dateFrom"),
        ("dateFrom=2026-01-01T00:00:00", "dateFrom"),
        ("dateFrom=2026-01-02T00:00:00Z&dateTo=2026-01-02T00:00:00Z", "dateFrom"),
        ("clientReference=" + "x" * 256, "clientReference"),
        ("clientReference=%00", "clientReference"),
    ],
)
async def test_what_cannot_be_listed(client: Client, query: str, field: str) -> None:
    status, body = await client.ask("GET", "/sms/messages?" + query)
    assert (status, body["error"]["code"]) == (400, "validation_error")
    assert [one["field"] for one in body["error"]["details"]["fields"]] == [field]


async def test_a_cursor_belongs_to_its_filters_whatever_their_spelling(client: Client) -> None:
    for _ in range(3):
        await client.send()
    page = await client.page(limit=1, recipient="258841234567")
    again = await client.page(limit=1, recipient="+258841234567", cursor=page["nextCursor"])
    assert again["items"] != page["items"]
    status, body = await client.ask("GET", f"/sms/messages?limit=1&cursor={page['nextCursor']}")
    assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "cursor")
    page = await client.page(limit=1, sender="HELIOGRAPH")
    again = await client.page(limit=1, sender="Heliograph", cursor=page["nextCursor"])
    assert again["items"] != page["items"]


async def test_a_date_at_the_edge_of_time_is_a_date(client: Client) -> None:
    await client.send()
    for date in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "1969-12-31T23:59:59Z"):
        assert len(await client.ids(dateFrom=date)) == 1
        assert await client.ids(dateTo=date) == []
    for date in ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00"):
        assert len(await client.ids(dateTo=date)) == 1
        assert await client.ids(dateFrom=date) == []


async def test_cancel(client: Client, pool: Pool) -> None:
    id = await client.send(sendAt=iso(clock.now() + timedelta(hours=1)))
    answers = [await client.ask("DELETE", f"/sms/messages/{id}") for _ in range(2)]
    assert answers[0] == answers[1]
    status, body = answers[0]
    assert (status, body.keys(), body["message"].keys()) == (200, {"success", "message"}, FIELDS)
    assert (body["message"]["status"], body["message"]["canceledAt"] is not None) == ("canceled", True)
    timeline = (await client.ask("GET", f"/sms/messages/{id}"))[1]["timeline"]
    assert [step["status"] for step in timeline] == ["accepted", "canceled"]
    assert await pool.fetchval("SELECT total - used FROM quotas") == 1000
    assert await client.ids(status="canceled") == [id]

    other = await client.send()
    # An attempt of unknown outcome: the supplier may have the message.
    await pool.execute("UPDATE queue SET attempt = 1, begun_at = now() WHERE id = $1", other)
    status, body = await client.ask("DELETE", f"/sms/messages/{other}")
    assert (status, body["error"]["code"]) == (409, "message_not_cancelable")
    assert body["error"]["details"] == {"status": "sending"}
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE id = $1", other) == 1
    # It ended, and the supplier accepted nothing.
    await pool.execute("UPDATE queue SET begun_at = NULL WHERE id = $1", other)
    assert (await client.ask("DELETE", f"/sms/messages/{other}"))[0] == 200


async def test_a_conversion_is_reported_once(client: Client, pool: Pool) -> None:
    id = await client.send()
    answers = [await client.ask("POST", f"/sms/messages/{id}/converted") for _ in range(2)]
    assert answers[0] == answers[1]
    status, body = answers[0]
    assert (status, body.keys(), body["success"]) == (200, {"success", "convertedAt"}, True)
    assert await pool.fetchval("SELECT count(*) FROM guard_conversions WHERE message_id = $1", id) == 1
    missing = "0199c0de-0000-7000-8000-000000000000"
    status, body = await client.ask("POST", f"/sms/messages/{missing}/converted")
    assert (status, body["error"]["details"]) == (404, {"resource": "message", "id": missing})


async def test_a_cancel_under_an_idempotency_key_is_replayed(client: Client) -> None:
    id = await client.send()
    answers = [await client.ask("DELETE", f"/sms/messages/{id}", headers={"Idempotency-Key": "c"}) for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0][0] == 200


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "c"}])
async def test_a_change_that_is_the_victim_of_a_deadlock_is_made(
    client: Client, pool: Pool, headers: dict[str, str]
) -> None:
    """As with an open session of the operator's, of which the client knows nothing."""
    id = await client.send()
    async with pool.acquire() as open_session:
        transaction = open_session.transaction()
        await transaction.start()
        await open_session.execute("SELECT FROM quotas FOR UPDATE")
        canceling = asyncio.create_task(client.ask("DELETE", f"/sms/messages/{id}", headers=headers))
        await blocked(pool)
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            await open_session.execute("SELECT FROM messages FOR UPDATE")
        await transaction.rollback()
    status, body = await canceling
    assert (status, body["message"]["status"]) == (200, "canceled")
    assert await pool.fetchval("SELECT total - used FROM quotas") == 1000


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "c"}])
async def test_a_change_that_is_rolled_back_for_others_again_and_again_can_be_made_later(
    client: Client, api: Api, tenant: Tenant, as_owner: Callable[[str], Awaitable[None]], headers: dict[str, str]
) -> None:
    """The answer was "unexpected failure", which may be repeated with a key only."""
    id = await client.send()
    await as_owner(losing_deadlocks("messages", times=4))
    status, told, body = await api.ask("DELETE", f"/sms/messages/{id}", headers=tenant.headers | headers)
    assert (status, told["retry-after"], body["error"]["code"]) == (503, "1", "service_unavailable")
    status, body = await client.ask("DELETE", f"/sms/messages/{id}", headers=headers)
    assert (status, body["message"]["status"]) == (200, "canceled")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_unknown_and_malformed_ids(client: Client, method: str) -> None:
    missing = "0199c0de-0000-7000-8000-000000000000"
    status, body = await client.ask(method, f"/sms/messages/{missing}")
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert body["error"]["details"] == {"resource": "message", "id": missing}
    status, body = await client.ask(method, "/sms/messages/1")
    assert (status, body["error"]["details"]["fields"][0]["field"]) == (400, "messageId")


async def test_a_preview(client: Client, tenant: Tenant, pool: Pool) -> None:
    status, body = await client.ask("POST", "/sms/preview", json=BODY | {"message": "€" * 81})
    assert status == 200
    preview = body["preview"]
    assert (preview["encoding"], preview["units"], preview["segments"]) == ("gsm7", 162, 2)
    assert preview["parts"] == [
        {"number": 1, "units": 152, "maxUnits": 153, "text": "€" * 76},
        {"number": 2, "units": 10, "maxUnits": 153, "text": "€" * 5},
    ]
    sender = await pool.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1", tenant.id)
    assert preview["sender"] == {"id": str(sender), "value": "HELIOGRAPH"}
    assert preview["quota"] == {"cost": 1, "remaining": 1000, "remainingAfter": 999}
    assert [warning["code"] for warning in preview["warnings"]] == ["several_segments"]
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0
    assert await pool.fetchval("SELECT total - used FROM quotas") == 1000
    # The same body is then sent as it was shown.
    await client.send(message="€" * 81)
    assert await pool.fetchval("SELECT segments FROM messages") == 2


async def test_a_preview_counts_segments_as_the_send_does(api: Api, tenant: Tenant, pool: Pool) -> None:
    """Without accents, eleven segments of UCS-2 are five of GSM-7."""
    await pool.execute("UPDATE organizations SET replace_accents = true")
    body, headers = BODY | {"message": "\u00e3" * 700}, tenant.headers | {"Idempotency-Key": "long"}
    status, _, shown = await api.ask("POST", "/sms/preview", json=body, headers=headers)
    assert (status, shown.get("preview", {}).get("segments")) == (200, 5)
    assert (await api.ask("POST", "/sms/send", json=body, headers=headers))[0] == 202
    assert await pool.fetchval("SELECT segments FROM messages") == 5


async def test_a_preview_is_refused_as_the_send_is(client: Client, tenant: Tenant, pool: Pool) -> None:
    await pool.execute("INSERT INTO opt_outs VALUES ($1, '+258840000009', now(), 'test')", tenant.id)
    for wrong in (
        {"to": "12"},
        {"message": "x" * 1600},
        {"senderName": "NOBODY"},
        {"senderId": str(tenant.id)},
        {"to": "+258840000009"},
        {"unknown": 1},
    ):
        answers = [
            await client.ask(
                "POST", path, json=BODY | wrong, headers={"Idempotency-Key": "refused", "X-Request-Id": "same"}
            )
            for path in ("/sms/preview", "/sms/send")
        ]
        assert answers[0] == answers[1]
        assert answers[0][0] in (400, 409)


async def test_a_preview_needs_no_key_of_idempotency_and_stores_none(client: Client, api: Api, tenant: Tenant) -> None:
    headers = tenant.headers | {"Idempotency-Key": "same"}
    for text in ("one", "two"):
        status, answered, body = await api.ask("POST", "/sms/preview", json=BODY | {"message": text}, headers=headers)
        assert (status, body["preview"]["text"]) == (200, text)
        assert "x-idempotency-status" not in answered
        assert answered["X-RateLimit-Limit"] == "3000"


async def test_a_suspended_organization_reads_and_cancels_but_previews_nothing(client: Client, pool: Pool) -> None:
    id = await client.send()
    await pool.execute("UPDATE organizations SET state = 'suspended'")
    status = 200
    async with asyncio.timeout(120):  # keys are known as they were at most a second ago
        while status == 200:
            status, body = await client.ask("POST", "/sms/preview", json=BODY)
    assert (status, body["error"]["code"]) == (403, "organization_suspended")
    status, body = await client.ask("DELETE", f"/sms/messages/{id}")
    assert (status, body["message"]["status"]) == (200, "canceled")
    assert await client.ids() == [id]


async def test_a_key_sees_messages_of_its_mode_only(api: Api, tenant: Tenant, pool: Pool) -> None:
    live = Client(api, tenant)
    tester_tenant = await make_tenant(pool, mode="test")
    # The test key is given to the live tenant's organization.
    await pool.execute("UPDATE api_keys SET organization_id = $1 WHERE id = $2", tenant.id, tester_tenant.key_id)
    tester = Client(api, tester_tenant)
    one, two = await live.send(), await tester.send()
    assert await tester.ids() == [two]
    assert await live.ids() == [one]
    for method in ("GET", "DELETE"):
        assert (await tester.ask(method, f"/sms/messages/{one}"))[0] == 404
        assert (await live.ask(method, f"/sms/messages/{two}"))[0] == 404
    status, body = await tester.ask("POST", "/sms/preview", json=BODY)
    assert (status, body["preview"]["quota"]["cost"]) == (200, 0)
    status, body = await tester.ask("DELETE", f"/sms/messages/{two}")
    assert (status, body["message"]["mode"]) == (200, "test")


async def test_a_key_needs_the_scope(api: Api, pool: Pool) -> None:
    tenant = await make_tenant(pool, profile="sms_only")
    client = Client(api, tenant)
    id = await client.send()
    for method, path in (
        ("GET", "/sms/messages"),
        ("GET", f"/sms/messages/{id}"),
        ("POST", "/sms/preview"),
    ):
        status, body = await client.ask(method, path, json=BODY if method == "POST" else None)
        assert (status, body["error"]["details"]) == (403, {"required": ["sms:read"]})
    reader = Client(api, await make_tenant(pool, profile="read_only"))
    status, body = await reader.ask("DELETE", f"/sms/messages/{id}")
    assert (status, body["error"]["details"]) == (403, {"required": ["sms:send"]})
    assert (await client.ask("DELETE", f"/sms/messages/{id}"))[0] == 200
