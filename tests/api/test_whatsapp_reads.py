"""Reading WhatsApp over HTTP: messages, templates, conversations, numbers and the wallet."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import msgspec
import pytest

from heliograph.api.operations.whatsapp.reads import amount
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.privacy import erasure
from heliograph.whatsapp import messages, reads
from heliograph.whatsapp.messages import Filters
from heliograph.whatsapp.mirror import accounts, template_sync
from heliograph.whatsapp.reads import ConversationFilters
from tests.rules import whatsapp_factories as making
from tests.rules.callback_factories import Meta
from tests.rules.callback_factories import message as callback
from tests.rules.whatsapp_factories import Made
from tests.tracing import without_ids

from .conftest import Api, Tenant, make_tenant

TO, OTHER = "+258841234567", "+258840000001"
USER_ID = "MZ.13490000000000000001"
HOUR = timedelta(hours=1)
LISTS = ("messages", "templates", "conversations")
MESSAGE = {
    "id",
    "clientReference",
    "direction",
    "type",
    "status",
    "recipient",
    "phoneNumberId",
    "templateName",
    "templateLanguage",
    "billingCategory",
    "conversationId",
    "acceptedAt",
    "sentAt",
    "deliveredAt",
    "readAt",
    "failedAt",
    "canceledAt",
    "failure",
    "content",
    "context",
    "referral",
    "profileName",
}
TEMPLATE = {
    "id",
    "name",
    "language",
    "category",
    "status",
    "sendable",
    "parameterCount",
    "bodyPreview",
    "components",
    "rejectionReason",
    "updatedAt",
}
CONVERSATION = {
    "id",
    "recipient",
    "phoneNumberId",
    "status",
    "serviceWindowOpenedAt",
    "serviceWindowExpiresAt",
    "lastInboundAt",
    "lastOutboundAt",
}
NUMBER = {
    "id",
    "displayPhoneNumber",
    "verifiedName",
    "connectionStatus",
    "qualityRating",
    "messagingTier",
    "messagingLimit",
    "throughputPerSecond",
    "credentialStatus",
    "lastCheckedAt",
}


class Client:
    """One tenant's calls."""

    def __init__(self, api: Api, tenant: Tenant) -> None:
        self._api, self._tenant = api, tenant

    async def get(self, path: str, **query: Any) -> Any:
        """(status, body)"""
        url = f"/whatsapp/{path}" + (f"?{urlencode(query)}" if query else "")
        answered = await self._api.ask("GET", url, headers=self._tenant.headers)
        return answered[0], answered[2]

    async def read(self, path: str, **query: Any) -> Any:
        """The body of a successful response."""
        status, body = await self.get(path, **query)
        assert (status, body["success"]) == (200, True), body
        return body

    async def ids(self, path: str, **query: Any) -> list[str]:
        page = await self.read(path, **query)
        assert page.keys() == {"success", "items", "nextCursor", "hasMore"}
        assert page["hasMore"] == (page["nextCursor"] is not None)
        return [item["id"] for item in page["items"]]

    async def refused(self, path: str, **query: Any) -> list[str]:
        """The fields named in a 400."""
        status, body = await self.get(path, **query)
        assert (status, body["error"]["code"]) == (400, "validation_error"), body
        return [one["field"] for one in body["error"]["details"]["fields"]]


@pytest.fixture
def client(api: Api, tenant: Tenant) -> Client:
    return Client(api, tenant)


@pytest.fixture
async def made(pool: Pool, tenant: Tenant) -> Made:
    """The tenant's account, number, templates and wallet."""
    return await making.made(pool, organization_id=tenant.id)


async def message(pool: Pool, made: Made, **values: Any) -> str:
    return str(await making.message(pool, made, **values))


async def inbound(pool: Pool, made: Made, *, sender: str = TO) -> str:
    """A message of a user's."""
    id = uuid7()
    await pool.execute(
        "INSERT INTO whatsapp_messages (organization_id, id, direction, type, mode, status, number_id,"
        " conversation_id, recipient, request_id, accepted_at)"
        " VALUES ($1, $2, 'inbound', 'image', 'live', 'delivered', $3, $4, $5, 'req', now())",
        made.organization_id,
        id,
        made.number_id,
        uuid7(),
        sender,
    )
    return str(id)


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_a_message_is_read_as_it_is_listed(client: Client, made: Made, pool: Pool) -> None:
    id = await message(pool, made, status="read")
    at = clock.now()
    await pool.execute(
        "UPDATE whatsapp_messages SET client_reference = 'order-1', sent_at = $1, delivered_at = $1, read_at = $1", at
    )
    body = await client.read(f"messages/{id}")
    assert body.keys() == {"success", "message"}
    read = body["message"]
    assert read.keys() == MESSAGE
    assert (await client.read("messages"))["items"] == [read]
    conversation = await pool.fetchval("SELECT conversation_id FROM whatsapp_messages")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", read.pop("acceptedAt"))
    assert read == {
        "id": id,
        "clientReference": "order-1",
        "direction": "outbound",
        "type": "template",
        "status": "read",
        "recipient": TO,
        "phoneNumberId": str(made.number_id),
        "templateName": "order_shipped",
        "templateLanguage": "en",
        "billingCategory": "utility",
        "conversationId": str(conversation),
        "sentAt": iso(at),
        "deliveredAt": iso(at),
        "readAt": iso(at),
        "failedAt": None,
        "canceledAt": None,
        "failure": None,
        "content": {"parameters": ["Ana", "7"]},
        "context": None,
        "referral": None,
        "profileName": None,
    }


async def test_what_people_write_is_read_until_it_is_erased(client: Client, made: Made, pool: Pool) -> None:
    """The text, the message it answers, what led them to write and their profile name; no id of Meta's."""
    sent = await message(pool, made, status="sent", queued=False)
    await pool.execute(
        "INSERT INTO whatsapp_wamids VALUES ((now() AT TIME ZONE 'UTC')::date, $1, 'wamid.OURS', $2, $3, now())",
        made.number_id,
        made.organization_id,
        sent,
    )
    meta = Meta(pool)
    referral = {"source_type": "ad", "source_id": "1", "headline": "Chat with us", "body": "Bread", "ctwa_clid": "x"}
    said = callback(made, "Is it late?", context={"from": made.digits, "id": "wamid.OURS"}, referral=referral)
    await meta.say(made, said)
    await meta.say(made, callback(made, "Passed on", context={"frequently_forwarded": True, "id": "wamid.OTHERS"}))
    await meta.say(made, callback(made, type="reaction", reaction={"message_id": "wamid.OURS", "emoji": "👍"}))
    await meta.say(made, callback(made, "Wensday", id="wamid.THEIRS"))
    edited = {"original_message_id": "wamid.THEIRS", "message": {"type": "text", "text": {"body": "Wednesday"}}}
    await meta.say(made, callback(made, type="edit", edit=edited))
    await meta.say(made, callback(made, type="revoke", revoke={"original_message_id": "wamid.THEIRS"}))
    deleted, edit, theirs, reaction, forwarded, answer, _ = (await client.read("messages"))["items"]
    names = ("content", "context", "referral", "profileName")
    assert {name: answer[name] for name in names} == {
        "content": {"body": "Is it late?"},
        "context": {"messageId": str(sent), "forwarded": False},
        "referral": {"sourceType": "ad", "headline": "Chat with us", "body": "Bread", "mediaType": None},
        "profileName": "Amal Bén",
    }
    assert (forwarded["context"], forwarded["referral"]) == ({"messageId": None, "forwarded": True}, None)
    assert (reaction["content"], reaction["context"]["messageId"]) == ({"emoji": "👍"}, str(sent))
    assert (edit["content"], edit["context"]["messageId"]) == ({"body": "Wednesday"}, theirs["id"])
    assert (deleted["type"], deleted["context"]["messageId"]) == ("revoke", theirs["id"])
    await erase(pool, made, TO)
    for one in (await client.read("messages"))["items"]:
        assert [one[name] for name in names] == [None] * 4


async def erase(pool: Pool, made: Made, address: str) -> None:
    actor = Actor(made.organization_id, None, "live", frozenset(), "active")
    async with pool.acquire() as conn:
        await erasure.erase(conn, actor, address=address)


async def test_a_message_of_a_users_is_told_as_one(client: Client, made: Made, pool: Pool) -> None:
    id = await inbound(pool, made)
    read = (await client.read(f"messages/{id}"))["message"]
    assert read.keys() == MESSAGE
    told = {
        name: read[name] for name in ("direction", "type", "status", "recipient", "templateName", "billingCategory")
    }
    assert told == {
        "direction": "inbound",
        "type": "image",
        "status": "delivered",
        "recipient": TO,
        "templateName": None,
        "billingCategory": None,
    }


async def test_a_failure_is_told_in_our_words(client: Client, made: Made, pool: Pool) -> None:
    id = await message(pool, made, status="failed")
    for code, shown in (("expired", "expired"), ("131047: Re-engagement message", "unknown")):
        await pool.execute("UPDATE whatsapp_messages SET failed_at = now(), failure_code = $1", code)
        read = (await client.read(f"messages/{id}"))["message"]
        assert (read["status"], read["failure"]["code"]) == ("failed", shown)
        assert read["failure"]["message"].endswith(".")
        told = without_ids(msgspec.json.encode(read).decode())
        assert ("131047" in told, "Re-engagement" in told) == (False, False)


async def test_pages_are_stable_while_messages_come(client: Client, made: Made, pool: Pool) -> None:
    sent = [await message(pool, made) for _ in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = await client.read("messages", **query)
        seen += [item["id"] for item in page["items"]]
        await message(pool, made)
        if not page["hasMore"]:
            break
        query["cursor"] = page["nextCursor"]
    assert seen == sent[::-1]


async def test_messages_by_filter_in_every_spelling(client: Client, made: Made, pool: Pool) -> None:
    order = await message(pool, made, status="delivered", age=HOUR)
    code = await message(pool, made, to=OTHER, template_id=made.code_id, category="authentication")
    reply = await message(pool, made, to=OTHER, type="text")
    came = await inbound(pool, made, sender=USER_ID)
    assert await client.ids("messages") == [came, reply, code, order]
    assert await client.ids("messages", status="accepted") == [reply, code]
    assert await client.ids("messages", status="read") == []
    for name in ("billingCategory", "billing_category", "billing-category", "category"):
        assert await client.ids("messages", **{name: "authentication"}) == [code]
    assert await client.ids("messages", billingCategory="service", category="service") == [reply]
    for name in ("templateName", "template_name", "template-name"):
        assert await client.ids("messages", **{name: "order_shipped"}) == [order]
    assert await client.ids("messages", templateName="order") == []
    for number in (OTHER, OTHER.removeprefix("+"), OTHER.replace("+", " ")):
        assert await client.ids("messages", recipient=number) == [reply, code]
    assert await client.ids("messages", recipient=OTHER, templateName="login_code") == [code]
    await pool.execute("UPDATE whatsapp_messages SET client_reference = 'order-1' WHERE id = $1", UUID(code))
    for name in ("clientReference", "client_reference"):
        assert await client.ids("messages", **{name: "order-1"}) == [code]
        assert await client.ids("messages", **{name: "order"}) == []
    assert await client.ids("messages", recipient=USER_ID) == [came]
    accepted = (await client.read(f"messages/{code}"))["message"]["acceptedAt"]
    for name in ("dateFrom", "date_from", "date-from"):
        assert await client.ids("messages", **{name: accepted}) == [came, reply, code]
    for name in ("dateTo", "date_to", "date-to"):
        assert await client.ids("messages", **{name: accepted}) == [order]
    assert await client.ids("messages", unknown="parameter") == [came, reply, code, order]


async def test_a_look_goes_on_where_it_ended(made: Made, pool: Pool) -> None:
    sent = [UUID(await message(pool, made, status="read" if number == 0 else "sent")) for number in range(5)]
    async with pool.acquire() as conn:
        for recipient in (None, TO):
            filters = Filters(status="read", recipient=recipient)
            found = await messages.list_page(conn, made.actor, filters=filters, look=3)
            assert (found.messages, found.seen) == ([], sent[2])
            found = await messages.list_page(conn, made.actor, filters=filters, look=3, after=found.seen)
            assert ([one.id for one in found.messages], found.seen) == ([sent[0]], None)


async def test_a_key_sees_messages_of_its_kind(api: Api, client: Client, made: Made, pool: Pool) -> None:
    tenant = await make_tenant(pool, mode="test")
    await pool.execute("UPDATE api_keys SET organization_id = $1 WHERE id = $2", made.organization_id, tenant.key_id)
    tester = Client(api, tenant)
    live = await message(pool, made)
    test = await message(pool, made, to=OTHER, mode="test")
    assert await client.ids("messages") == [live]
    assert await tester.ids("messages") == [test]
    assert (await tester.get(f"messages/{live}"))[0] == (await client.get(f"messages/{test}"))[0] == 404
    (talk,) = (await tester.read("conversations"))["items"]
    assert talk["recipient"] == OTHER
    assert [one["recipient"] for one in (await client.read("conversations"))["items"]] == [TO]
    assert (await tester.read("conversations", recipient=TO))["items"] == []
    assert await tester.ids("conversations", recipient=OTHER, status="open") == [talk["id"]]
    await message(pool, made, to=OTHER)
    assert {one["recipient"] for one in (await client.read("conversations"))["items"]} == {TO, OTHER}
    assert (await tester.read("phone-numbers"))["items"]


@pytest.mark.parametrize("id", ["1", "0199c0de00007000800000000000000a", "%00"])
async def test_a_malformed_id(client: Client, id: str) -> None:
    assert await client.refused(f"messages/{id}") == ["messageId"]


async def test_an_unknown_id(client: Client) -> None:
    missing = str(uuid7())
    status, body = await client.get(f"messages/{missing}")
    assert (status, body["error"]["code"]) == (404, "not_found")
    assert body["error"]["details"] == {"resource": "message", "id": missing}


# -- what all lists have in common -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"cursor": "abc"}, "cursor"),
        ({"status": "lost"}, "status"),
        ({"dateFrom": "yesterday"}, "dateFrom"),
        ({"date-from": "2026-01-01T00:00:00"}, "dateFrom"),
        ({"dateFrom": "2026-01-02T00:00:00Z", "dateTo": "2026-01-02T00:00:00Z"}, "dateFrom"),
    ],
)
async def test_what_cannot_be_listed(client: Client, path: str, query: dict[str, Any], field: str) -> None:
    assert await client.refused(path, **query) == [field]


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("messages", {"recipient": "12"}, "recipient"),
        ("messages", {"recipient": ""}, "recipient"),
        ("messages", {"billingCategory": "free"}, "billingCategory"),
        ("messages", {"billingCategory": "utility", "category": "service"}, "category"),
        ("messages", {"templateName": "\0"}, "templateName"),
        ("templates", {"category": "service"}, "category"),
        ("templates", {"name": "x" * 513}, "name"),
        ("templates", {"name": "a", "templateName": "b"}, "templateName"),
        ("conversations", {"recipient": "mz.1"}, "recipient"),
    ],
)
async def test_filters_that_say_nothing(client: Client, path: str, query: dict[str, Any], field: str) -> None:
    assert await client.refused(path, **query) == [field]


async def test_a_cursor_belongs_to_its_list_and_filters(client: Client, made: Made, pool: Pool) -> None:
    for _ in range(2):
        await message(pool, made)
    await making.conversation(pool, made, to=OTHER)
    page = await client.read("messages", limit=1, recipient=TO.removeprefix("+"), category="utility")
    cursor = page["nextCursor"]
    again = await client.ids("messages", limit=1, recipient=TO, billingCategory="utility", cursor=cursor)
    assert len(again) == 1
    assert await client.refused("messages", limit=1, cursor=cursor) == ["cursor"]
    for path in LISTS:
        cursor = (await client.read(path, limit=1))["nextCursor"]
        for other in LISTS:
            if other == path:
                assert len(await client.ids(other, limit=1, cursor=cursor)) == 1
            else:
                assert await client.refused(other, limit=1, cursor=cursor) == ["cursor"]


async def test_a_key_needs_the_scope(api: Api, pool: Pool) -> None:
    client = Client(api, await make_tenant(pool, profile="sms"))
    for path in (*LISTS, f"messages/{uuid7()}", "phone-numbers", "wallet"):
        status, body = await client.get(path)
        assert (status, body["error"]["code"]) == (403, "api_key_scope_required")
        assert body["error"]["details"] == {"required": ["whatsapp:read"]}


async def test_a_suspended_organization_reads(client: Client, made: Made, pool: Pool) -> None:
    await pool.execute("UPDATE organizations SET state = 'suspended'")
    async with asyncio.timeout(120):
        for path in (*LISTS, "phone-numbers", "wallet"):
            await client.read(path)


# -- templates ---------------------------------------------------------------------------------------------------------


async def test_a_template_is_shown_in_our_words(client: Client, made: Made, pool: Pool) -> None:
    await pool.execute("DELETE FROM whatsapp_templates")
    components = [
        {"type": "HEADER", "format": "IMAGE", "example": {"header_handle": ["https://cdn.example/secret"]}},
        {
            "type": "BODY",
            "text": "Hello {{1}}",
            "add_security_recommendation": True,
            "example": {"body_text": [["Ana"]]},
        },
        {"type": "FOOTER", "code_expiration_minutes": 5},
        {
            "type": "BUTTONS",
            "buttons": [
                {"type": "URL", "text": "Track", "url": "https://acme.example/{{1}}", "example": ["x"]},
                {"type": "PHONE_NUMBER", "text": "Call", "phone_number": "+258841234567"},
                {"type": "OTP", "text": "Copy", "otp_type": "COPY_CODE"},
                {"type": "NEW_THING", "flow_id": "123"},
            ],
        },
        {"type": "CAROUSEL", "cards": []},
    ]
    id = await making.template(
        pool, made.organization_id, made.account_id, status="rejected", components=components, parameter_count=1
    )
    await pool.execute("UPDATE whatsapp_templates SET rejection_reason = 'PROMOTIONAL'")
    (shown,) = (await client.read("templates"))["items"]
    assert shown.keys() == TEMPLATE
    no_part = dict.fromkeys(("format", "text", "addSecurityRecommendation", "codeExpirationMinutes")) | {"buttons": []}
    no_button = dict.fromkeys(("text", "url", "phoneNumber", "otpType"))
    buttons = [
        no_button | {"type": "url", "text": "Track", "url": "https://acme.example/{{1}}"},
        no_button | {"type": "phone_number", "text": "Call", "phoneNumber": "+258841234567"},
        no_button | {"type": "otp", "text": "Copy", "otpType": "copy_code"},
        no_button | {"type": "other"},
    ]
    assert shown["components"] == [
        no_part | {"type": "header", "format": "image"},
        no_part | {"type": "body", "text": "Hello {{1}}", "addSecurityRecommendation": True},
        no_part | {"type": "footer", "codeExpirationMinutes": 5},
        no_part | {"type": "buttons", "buttons": buttons},
        no_part | {"type": "other"},
    ]
    assert (shown["id"], shown["name"], shown["language"]) == (str(id), "order_shipped", "en")
    assert (shown["category"], shown["status"], shown["rejectionReason"]) == ("utility", "rejected", "promotional")
    assert (shown["parameterCount"], shown["bodyPreview"], shown["sendable"]) == (1, "Hello {{1}}", False)
    await pool.execute("UPDATE whatsapp_templates SET status = 'approved'")
    assert not (await client.read("templates"))["items"][0]["sendable"]
    await pool.execute('UPDATE whatsapp_templates SET components = \'[{"type": "BODY", "text": "Hello {{1}}"}]\'')
    assert (await client.read("templates"))["items"][0]["sendable"]
    await pool.execute("UPDATE whatsapp_templates SET category = 'marketing'")
    assert not (await client.read("templates"))["items"][0]["sendable"]
    for given, told in (("NONE", None), (None, None), ("Because Meta says so", "other")):
        await pool.execute("UPDATE whatsapp_templates SET rejection_reason = $1", given)
        assert (await client.read("templates"))["items"][0]["rejectionReason"] == told


async def test_templates_out_of_use_are_not_listed(client: Client, made: Made, pool: Pool) -> None:
    org = made.organization_id
    await making.template(pool, org, made.account_id, name="disabled_here", disabled_locally=True)
    await making.template(pool, org, made.account_id, name="gone", status="removed")
    for state in ("removed", "paused"):
        account, _ = await making.account(pool, org, made.app, state=state)
        await making.template(pool, org, account, name=f"of_{state}")
    listed = (await client.read("templates"))["items"]
    assert [one["name"] for one in listed] == ["of_paused", "login_code", "order_shipped"]


async def test_templates_by_filter_in_every_spelling(client: Client, made: Made, pool: Pool) -> None:
    org, order, code = made.organization_id, str(made.template_id), str(made.code_id)
    french = str(await making.template(pool, org, made.account_id, language="fr", status="paused"))
    await pool.execute("UPDATE whatsapp_templates SET updated_at = now() - interval '1 day' WHERE id = $1", order)
    assert await client.ids("templates") == [french, code, order]
    assert await client.ids("templates", status="paused") == [french]
    assert await client.ids("templates", category="authentication") == [code]
    assert await client.ids("templates", category="marketing") == []
    for name in ("name", "templateName", "template_name", "template-name"):
        assert await client.ids("templates", **{name: "order_shipped"}) == [french, order]
    changed = iso(clock.now() - HOUR)
    for name in ("dateFrom", "date_from", "date-from"):
        assert await client.ids("templates", **{name: changed}) == [french, code]
    for name in ("dateTo", "date_to", "date-to"):
        assert await client.ids("templates", **{name: changed}) == [order]
    first = await client.read("templates", limit=2)
    await making.template(pool, org, made.account_id, name="later")
    assert await client.ids("templates", limit=2, cursor=first["nextCursor"]) == [order]


async def test_an_event_shows_a_template_as_the_list_does(client: Client, made: Made, pool: Pool) -> None:
    listed = {one["id"]: one for one in (await client.read("templates"))["items"]}
    rows = await pool.fetch("SELECT * FROM whatsapp_templates")
    shown = {str(row["id"]): template_sync.shown(row) for row in rows}
    assert msgspec.json.decode(msgspec.json.encode(shown)) == listed


# -- conversations -----------------------------------------------------------------------------------------------------


async def test_a_conversation_is_open_for_a_day(client: Client, made: Made, pool: Pool) -> None:
    closed = str(await making.conversation(pool, made, to=TO, opened=timedelta(hours=25)))
    opened = str(await making.conversation(pool, made, to=OTHER, opened=timedelta(hours=23)))
    never = str(await making.conversation(pool, made, to=USER_ID, opened=None))
    assert await client.ids("conversations") == [never, opened, closed]
    assert await client.ids("conversations", status="open") == [opened]
    assert await client.ids("conversations", status="closed") == [never, closed]
    for number in (OTHER, OTHER.removeprefix("+")):
        assert await client.ids("conversations", recipient=number) == [opened]
    assert await client.ids("conversations", recipient=USER_ID, status="open") == []
    shown = {one["id"]: one for one in (await client.read("conversations"))["items"]}
    assert all(one.keys() == CONVERSATION for one in shown.values())
    assert {id: one["status"] for id, one in shown.items()} == {never: "closed", opened: "open", closed: "closed"}
    assert shown[never]["serviceWindowOpenedAt"] is shown[never]["serviceWindowExpiresAt"] is None
    (row,) = await pool.fetch("SELECT * FROM whatsapp_conversations WHERE id = $1", opened)
    assert shown[opened] == {
        "id": opened,
        "recipient": OTHER,
        "phoneNumberId": str(made.number_id),
        "status": "open",
        "serviceWindowOpenedAt": iso(row["opened_at"]),
        "serviceWindowExpiresAt": iso(row["expires_at"]),
        "lastInboundAt": iso(row["last_inbound_at"]),
        "lastOutboundAt": None,
    }


async def test_conversations_by_the_time_of_their_last_message(client: Client, made: Made, pool: Pool) -> None:
    silent = str(await making.conversation(pool, made, to=TO, opened=timedelta(days=3)))
    answered = str(await making.conversation(pool, made, to=OTHER, opened=timedelta(days=3)))
    await pool.execute("UPDATE whatsapp_conversations SET last_outbound_at = now() WHERE id = $1", answered)
    yesterday = iso(clock.now() - timedelta(days=1))
    for name in ("dateFrom", "date_from", "date-from"):
        assert await client.ids("conversations", **{name: yesterday}) == [answered]
    for name in ("dateTo", "date_to", "date-to"):
        assert await client.ids("conversations", **{name: yesterday}) == [silent]


async def test_a_look_at_conversations_goes_on_where_it_ended(made: Made, pool: Pool) -> None:
    ids = [await making.conversation(pool, made, to=f"+25884000000{n}", opened=None if n else HOUR) for n in range(4)]
    filters = ConversationFilters(is_open=True)
    async with pool.acquire() as conn:
        found, seen = await reads.conversations(conn, made.actor, filters=filters, look=2)
        assert (found, seen) == ([], ids[2])
        found, seen = await reads.conversations(conn, made.actor, filters=filters, look=3, after=seen)
        assert ([one.id for one in found], seen) == ([ids[0]], None)


# -- numbers and wallet ------------------------------------------------------------------------------------------------


async def test_how_numbers_stand(client: Client, made: Made, pool: Pool) -> None:
    org = made.organization_id
    await pool.execute("UPDATE whatsapp_numbers SET last_checked_at = now(), messaging_limit = 2000")
    paused, _ = await making.account(pool, org, made.app, state="paused", credential_status="invalid")
    stopped, _, _ = await making.number(pool, org, paused)
    gone, _ = await making.account(pool, org, made.app, state="removed")
    await making.number(pool, org, gone)
    taken_off, _, _ = await making.number(pool, org, made.account_id)
    await pool.execute("UPDATE whatsapp_numbers SET state = 'removed' WHERE id = $1", taken_off)
    body = await client.read("phone-numbers")
    assert body.keys() == {"success", "items"}
    first, second = body["items"]
    assert first.keys() == NUMBER
    checked = first.pop("lastCheckedAt")
    assert first == {
        "id": str(made.number_id),
        "displayPhoneNumber": "+" + made.digits,
        "verifiedName": "Acme",
        "connectionStatus": "connected",
        "qualityRating": "green",
        "messagingTier": "tier_2k",
        "messagingLimit": 2000,
        "throughputPerSecond": 80,
        "credentialStatus": "ok",
    }
    assert checked.endswith("Z")
    assert (second["id"], second["connectionStatus"], second["credentialStatus"]) == (str(stopped), "paused", "invalid")
    for given, shown in (
        ("TIER_100K", "tier_100k"),
        ("TIER_UNLIMITED", "unlimited"),
        ("NOT_SET (see Meta)", "unknown"),
    ):
        await pool.execute("UPDATE whatsapp_numbers SET messaging_tier = $1", given)
        assert (await client.read("phone-numbers"))["items"][0]["messagingTier"] == shown


async def test_an_event_shows_a_number_as_the_list_does(client: Client, made: Made, pool: Pool) -> None:
    for state in ("paused", "active"):
        async with pool.acquire() as conn:
            await accounts.set_state(
                conn, organization_id=made.organization_id, account_id=made.account_id, state=state
            )
        (listed,) = (await client.read("phone-numbers"))["items"]
        told = await pool.fetchval("SELECT data FROM events ORDER BY id DESC LIMIT 1")
        assert msgspec.json.decode(told) == {"phoneNumber": listed}
        assert listed["connectionStatus"] == ("paused" if state == "paused" else "connected")


async def test_a_wallet(client: Client, made: Made, pool: Pool) -> None:
    await pool.execute(
        "UPDATE wallets SET available = -12300, reserved = 30000, consumed = 1000001, total = 1017701,"
        " updated_at = '2026-03-01T12:00:00Z'"
    )
    assert await client.read("wallet") == {
        "success": True,
        "wallet": {
            "currency": "EUR",
            "available": "-0.012300",
            "reserved": "0.030000",
            "consumed": "1.000001",
            "total": "1.017701",
            "updatedAt": "2026-03-01T12:00:00.000Z",
        },
    }


async def test_without_a_wallet_there_is_nothing(client: Client, tenant: Tenant, pool: Pool) -> None:
    nothing = dict.fromkeys(("available", "reserved", "consumed", "total"), "0.000000") | {"updatedAt": None}
    assert (await client.read("wallet"))["wallet"] == nothing | {"currency": None}
    await making.account(pool, tenant.id, await making.make_app(pool), currency="MZN")
    assert (await client.read("wallet"))["wallet"] == nothing | {"currency": "MZN"}


@pytest.mark.parametrize(
    ("millionths", "shown"),
    [(0, "0.000000"), (1, "0.000001"), (-1, "-0.000001"), (10**12, "1000000.000000"), (-1_500_000, "-1.500000")],
)
def test_an_amount(millionths: int, shown: str) -> None:
    assert amount(millionths) == shown
