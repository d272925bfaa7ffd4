"""Nothing of Meta's reaches a customer: no id, no text, no evidence of a price.

Everything that Meta says here, and everything stored beside what customers see, carries a mark. Callbacks are processed
in full; then every column of every WhatsApp table that is not listed as SHOWN is marked. Every operation below
/whatsapp is requested, successfully and not, and so are the events: no mark may show.

An operation that is added to the document, or a column that is added to a table, is included automatically.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.webhooks.recording import events
from tests.rules import factories
from tests.rules import whatsapp_factories as whatsapp
from tests.rules.callback_factories import Change, Meta, message, status
from tests.rules.whatsapp_factories import Made
from tests.tracing import without_ids

from .conftest import Api, Tenant

MARK = "LEAK"
#: Of a message's price, in millionths; and as it would be shown.
PRICES = ("7654321", "7.654321", "8765432", "8.765432")
#: What customers wrote or may see, and keys of the tables that a send looks things up in.
SHOWN = {
    "whatsapp_numbers": {"display_phone_number", "digits", "verified_name"},
    "whatsapp_templates": {"name", "language", "body_preview", "components"},
    "whatsapp_conversations": {"recipient"},
    "whatsapp_messages": {"type", "recipient", "template_name", "template_language", "client_reference"},
    "whatsapp_aliases": {"alias"},
    "whatsapp_rates": {"currency", "category", "country"},
}
COLUMNS = """
SELECT c.table_name, c.column_name, c.data_type FROM information_schema.columns c JOIN information_schema.tables t
       USING (table_schema, table_name)
 WHERE t.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.data_type IN ('text', 'jsonb', 'bytea')
   AND c.is_generated = 'NEVER' AND (c.table_name LIKE 'whatsapp%' OR c.table_name LIKE 'wallet%')
   AND NOT EXISTS (SELECT FROM pg_class WHERE relname = c.table_name AND relispartition)
"""
#: How a row of each type is marked; no two rows are marked alike.
VALUES = {
    "text": "'{mark} ' || ctid::text",
    "jsonb": "jsonb_build_object('{mark}', '{mark} ' || ctid::text)",
    "bytea": "convert_to('{mark} ' || ctid::text, 'UTF8')",
}
ERRORS = [
    {
        "code": 131026,
        "title": f"{MARK} title",
        "message": f"{MARK} message",
        "error_data": {"details": f"{MARK} details"},
        "href": f"https://{MARK}.example",
    }
]
PRICING = {"billable": True, "pricing_model": f"{MARK} model", "type": "regular", "category": "utility"}


def found_in(told: str, needles: set[str]) -> list[str]:
    """The marks in a text, in any case. Those that are nothing but a few digits are not looked for in ids, which are
    random."""
    beside = without_ids(told)
    where = {needle: beside if needle.isdigit() and len(needle) < 10 else told for needle in needles}
    return [needle for needle, text in where.items() if needle.lower() in text.lower()]


class Walk:
    """The operations below /whatsapp, and a tenant's requests for them."""

    def __init__(self, api: Api, tenant: Tenant, document: dict[str, Any], ids: dict[str, str]) -> None:
        self._api, self._tenant, self._ids = api, tenant, ids
        self.operations = [
            (method.upper(), path, described)
            for path, methods in document["paths"].items()
            for method, described in methods.items()
            if path.startswith("/whatsapp/")
        ]
        self.needles: set[str] = {MARK, *PRICES}

    async def ask(self, method: str, path: str, body: Any = None) -> int:
        """Make the request, search the whole response for marks, and return the status."""
        url = f"{self._api.base_url}/v1{path}"
        async with self._api.session.request(method, url, json=body, headers=self._tenant.headers) as answer:
            told = f"{dict(answer.headers)} {await answer.text()}"
            assert found_in(told, self.needles) == [], (method, path, told)
            if method == "GET" and answer.status == 200 and '"items"' in told:
                assert '"items":[]' not in told, f"{path}: there is nothing in which a mark could show"
            return answer.status

    async def ask_all(self) -> None:
        """Every operation, once successfully and once refused."""
        for method, path, described in self.operations:
            place = path.format(**self._ids)
            if method == "GET":
                assert await self.ask(method, place) == 200, path
                wrong = f"{place}?limit=0" if place == path else f"{path.partition('{')[0]}{self._ids['phoneNumberId']}"
                assert await self.ask(method, wrong) in (200, 400, 404), wrong
                continue
            body = described["requestBody"]["content"]["application/json"]["example"]
            assert "phoneNumberId" in body, f"{path}: this test does not know what to send there"
            body |= {"phoneNumberId": self._ids["phoneNumberId"]}
            assert await self.ask(method, place, body) == 202, path
            for wrong in (
                {"phoneNumberId": self._ids["messageId"]},
                {"template": body["template"] | {"name": "unknown"}},
                {"template": body["template"] | {"name": "rejected"}},
                {"template": body["template"] | {"parameters": []}},
                {"to": "+258840000009", "type": "text", "text": {"body": "hello"}},
            ):
                refused = body | wrong
                if "text" in wrong:
                    del refused["template"]
                assert await self.ask(method, place, refused) in (400, 409), wrong


async def test_nothing_of_metas_reaches_a_customer(api: Api, tenant: Tenant, pool: Pool) -> None:
    made = await whatsapp.made(pool, organization_id=tenant.id)
    await factories.endpoint(pool, made.actor, *events.KINDS)
    await whatsapp.template(pool, made.organization_id, made.account_id, name="rejected", status="rejected")
    await whatsapp.conversation(pool, made)
    sent = [await whatsapp.message(pool, made, status="sent", queued=False) for _ in range(4)]
    await tried(pool, made, sent)
    meta = Meta(pool)
    for changes in (said_of_messages(made, sent), said_by_users(made), await said_of_the_account(pool, made)):
        await meta.say(made, *changes)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0
    raised = {row["kind"] for row in await pool.fetch("SELECT DISTINCT kind FROM events")}
    assert {
        "message.delivered",
        "message.failed",
        "message.read",
        "message.received",
        "whatsapp.template.updated",
        "whatsapp.phone_number.updated",
    } <= raised

    _, _, document = await api.ask("GET", "/openapi.json")
    ids = {
        "messageId": str(sent[0]),
        "campaignId": str(await whatsapp.campaign(pool, made)),
        "phoneNumberId": str(made.number_id),
    }
    walk = Walk(api, tenant, document, ids)
    assert len(walk.operations) >= 8
    secret = [made.graph_id, made.waba_id, str(made.account_id), str(made.app), "scontent"]
    secret += [row[0] for row in await pool.fetch("SELECT graph_id FROM whatsapp_templates")]
    walk.needles |= {*secret, "131026", "131047", "PMP"}
    await walk.ask_all()
    await check_events(pool, walk.needles)

    marked = await mark_all(pool)
    assert len(marked) > 30, marked
    await pool.execute(
        "UPDATE whatsapp_messages SET charge = 'reserved', reserved = 7654321, consumed = 8765432, failed_at = now()"
    )
    await walk.ask_all()
    await check_events(pool, walk.needles)


async def tried(pool: Pool, made: Made, sent: list[UUID]) -> None:
    """An attempt to send each, with Meta's response."""
    for number, id in enumerate(sent):
        await pool.execute(
            "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, code,"
            " detail) VALUES ($1, $2, 1, $3, 'accepted', now(), now(), $4, $4)",
            made.organization_id,
            id,
            made.number_id,
            MARK,
        )
        await pool.execute(
            "INSERT INTO whatsapp_wamids VALUES ((now() AT TIME ZONE 'UTC')::date, $1, $2, $3, $4, now())",
            made.number_id,
            f"wamid.{MARK}{number}",
            made.organization_id,
            id,
        )


def said_of_messages(made: Made, sent: list[UUID]) -> list[Change]:
    """A status of each: delivered with a price, read, failed, and failed for a closed window."""
    conversation = {"id": f"{MARK} conversation", "origin": {"type": "utility"}}
    failed = [ERRORS[0] | {"code": 131047}]
    return [
        status(made, f"wamid.{MARK}0", "delivered", pricing=PRICING, conversation=conversation),
        status(made, f"wamid.{MARK}1", "read", pricing=PRICING),
        status(made, f"wamid.{MARK}2", "failed", errors=ERRORS),
        status(made, f"wamid.{MARK}3", "failed", errors=failed, biz_opaque_callback_data=str(sent[3])),
    ]


def said_by_users(made: Made) -> list[Change]:
    """Messages of kinds that contain Meta's ids."""
    media = {"id": f"{MARK} media", "mime_type": "image/jpeg", "sha256": f"{MARK} digest", "url": f"https://{MARK}/x"}
    context = {"from": made.digits, "id": f"wamid.{MARK}0"}
    referral = {"source_type": "ad", "source_id": MARK, "source_url": f"https://{MARK}", "ctwa_clid": MARK}
    reaction = {"message_id": f"wamid.{MARK}0", "emoji": "👍"}
    return [
        message(made, "hello", context=context, id=f"wamid.{MARK}in0", referral=referral),
        message(made, type="image", image=media | {"caption": "a picture"}, id=f"wamid.{MARK}in1"),
        message(made, type="document", document=media | {"filename": "a.pdf"}, id=f"wamid.{MARK}in2"),
        message(made, type="reaction", reaction=reaction, id=f"wamid.{MARK}in3"),
        message(made, type="unsupported", errors=ERRORS, id=f"wamid.{MARK}in4"),
        message(made, type="edit", edit={"original_message_id": f"wamid.{MARK}in0", "message": {"type": "text"}}),
        message(made, type="revoke", revoke={"original_message_id": f"wamid.{MARK}in0"}, id=f"wamid.{MARK}in6"),
    ]


async def said_of_the_account(pool: Pool, made: Made) -> list[Change]:
    """Changes of a template, the number and the account."""
    graph_id = await pool.fetchval("SELECT graph_id FROM whatsapp_templates WHERE id = $1", made.code_id)
    template = {
        "event": "REJECTED",
        "message_template_id": graph_id,
        "message_template_name": "login_code",
        "message_template_language": "en",
        "reason": f"{MARK} reason",
        "rejection_info": {"reason": f"{MARK} reason", "recommendation": f"{MARK} recommendation"},
    }
    number = {
        "display_phone_number": made.digits,
        "event": "ONBOARDING",
        "max_daily_conversations_per_business": "TIER_10K",
    }
    violation = {"event": "ACCOUNT_VIOLATION", "violation_info": {"violation_type": f"{MARK} violation"}}
    return [
        (made.waba_id, "message_template_status_update", template),
        (made.waba_id, "phone_number_quality_update", number),
        (made.waba_id, "account_update", violation),
        (made.waba_id, "account_alerts", {"alert_info": {"alert_description": MARK}}),
    ]


async def mark_all(pool: Pool) -> list[str]:
    """Mark every column that takes any text; returns those columns. The others are closed sets."""
    marked = []
    for table, column, kind in await pool.fetch(COLUMNS):
        if column in SHOWN.get(table, ()):
            continue
        try:
            value = VALUES[kind].format(mark=f"{MARK} {table}.{column}")
            await pool.execute(f"UPDATE {table} SET {column} = {value}")
        except asyncpg.CheckViolationError:
            continue
        marked.append(f"{table}.{column}")
    extra = [{"type": "HEADER", "format": "IMAGE", "example": {"header_handle": [MARK]}, "id": MARK}]
    extra += [{"type": MARK, "text": MARK}, {"type": "BUTTONS", "buttons": [{"type": MARK, "flow_id": MARK}]}]
    await pool.execute(
        "UPDATE whatsapp_templates SET components = components || $1::jsonb WHERE name = 'rejected'",
        msgspec.json.encode(extra).decode(),
    )
    return marked


async def check_events(pool: Pool, needles: set[str]) -> None:
    rows = await pool.fetch("SELECT kind, data FROM events")
    assert rows
    assert [(row["kind"], found) for row in rows if (found := found_in(row["data"], needles))] == []


async def test_what_comes_late_is_found_by_the_time_it_was_stored(api: Api, tenant: Tenant, pool: Pool) -> None:
    made = await whatsapp.made(pool, organization_id=tenant.id)
    meta = Meta(pool)
    await meta.post(made, message(made, at=clock.now() - timedelta(hours=5)))
    await pool.execute("UPDATE whatsapp_callbacks SET received_at = received_at - interval '4 hours'")
    await meta.work()
    _, _, body = await api.ask("GET", "/whatsapp/messages", headers=tenant.headers)
    (item,) = body["items"]
    for query, count in ((f"dateFrom={item['acceptedAt']}", 1), (f"dateTo={item['acceptedAt']}", 0)):
        _, _, body = await api.ask("GET", f"/whatsapp/messages?{query}", headers=tenant.headers)
        assert len(body["items"]) == count
