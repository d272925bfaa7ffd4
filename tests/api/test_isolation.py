"""Another organization's ids, with every operation in the OpenAPI document.

The document is searched for everything that takes an id: path, query and body. Each of them gets an id of another
organization and one that never existed, and the two responses must be identical to the byte; and so must be the
database statements and the numbers of rows they return, so that the response time gives nothing away either. Every list
gets the other organization's cursor. Meanwhile nothing of the other organization may change, and nothing of it may show
in any response.

An operation that is added to the document is included automatically. If it takes an id of a kind that is not in
SAMPLES, or lists something that no tenant here has, the test fails and says so.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph import notices
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.notices import Notice
from heliograph.overview.exports.work import ExportWork
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.events import Event
from tests.rules import whatsapp_factories
from tests.statements import StatementRecorder, recording_statements

from .conftest import Api, Tenant, make_tenant, running

#: The object that each id refers to, by the id's name, or by operation and name if the name alone is ambiguous.
SAMPLES = {
    "messageId": "message",
    "campaignId": "campaign",
    "apiKeyId": "api_key",
    "webhookEndpointId": "endpoint",
    "senderId": "sender",
    "sender_id": "sender",
    "event_id": "event",
    "deleteContact.id": "contact",
    "contactId": "contact",
    "getWhatsAppMessage.messageId": "whatsapp_message",
    "getWhatsAppCampaignStatus.campaignId": "whatsapp_campaign",
    "phoneNumberId": "whatsapp_number",
    "requestId": "request",
    "textId": "text",
    "exportId": "export",
    "audience_import": "import",
    "audienceImport": "import",
}
#: Bodies of requests whose example has outdated times, or no place for one of its ids.
BODIES: dict[str, dict[str, Any]] = {
    "createCampaign": {"name": "Sale", "message_template": "Hello", "audience_import": None},
    "replayWebhookEvents": {"from": iso(clock.now() - timedelta(hours=1)), "to": iso(clock.now())},
}
#: Tables written a second after their request: the organization's own earlier requests would look like a change.
LATE = frozenset({"requests", "request_counts"})
#: A sample may be in a state that these operations refuse; about another organization's objects they reveal nothing.
STATEFUL = frozenset({"pauseCampaign", "resumeCampaign"})
#: Their responses are the same for everybody.
PUBLIC = frozenset({"getApiIndex", "getHealth", "getOpenApiDocument"})
#: A mark in everything that the other organization wrote.
MARK = "alpha"
#: Six digits in all numbers of a party. Random ones would be those of another party once in a million times.
_parties = itertools.count(100_001)
_IS_ID = re.compile(r"(?:^id|_ids?|[a-z]Ids?)$").search


class Slot(msgspec.Struct, frozen=True):
    """A place in an operation that takes an id. `path`: where it is in a body."""

    place: str
    name: str
    path: tuple[str | int, ...] = ()


class Operation(msgspec.Struct, frozen=True):
    """An operation as documented. `body`: an example of one; None if it has none."""

    id: str
    method: str
    path: str
    slots: tuple[Slot, ...]
    query: frozenset[str]
    body: dict[str, Any] | None

    def sample(self, slot: Slot) -> str | None:
        """The kind of object that a slot's id refers to."""
        return SAMPLES.get(f"{self.id}.{slot.name}") or SAMPLES.get(slot.name)


class Answer(msgspec.Struct, frozen=True):
    """Everything that can be distinguished from outside, except for the requested id."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: str


def operations(document: dict[str, Any]) -> list[Operation]:
    """Every operation: reads first, deletions last."""
    found = []
    for path, methods in document["paths"].items():
        for method, described in methods.items():
            slots, query = [], set()
            for parameter in described["parameters"]:
                parameter = resolved(document, parameter)
                if parameter["in"] == "query":
                    query.add(parameter["name"])
                if parameter["in"] != "header" and is_id(parameter["name"], parameter["schema"]):
                    slots.append(Slot(parameter["in"], parameter["name"]))
            media = described.get("requestBody", {}).get("content", {}).get("application/json", {})
            for at in ids_of(document, media.get("schema", {})):
                name = [part for part in at if isinstance(part, str)][-1]
                slots.append(Slot("body", name, at))
            found.append(
                Operation(
                    described["operationId"],
                    method.upper(),
                    path,
                    tuple(slots),
                    frozenset(query),
                    BODIES.get(described["operationId"], media.get("example", {})) if media else None,
                )
            )
    return sorted(found, key=lambda one: ("GET", "POST", "PATCH", "DELETE").index(one.method))


def ids_of(document: dict[str, Any], schema: dict[str, Any], name: str = "") -> Iterator[tuple[str | int, ...]]:
    """The places of ids in a body."""
    schema = resolved(document, schema)
    if name and is_id(name, schema):
        yield ()
        return
    for choice in itertools.chain.from_iterable(schema.get(word, ()) for word in ("anyOf", "oneOf", "allOf")):
        yield from ids_of(document, choice, name)
    for field, shape in schema.get("properties", {}).items():
        for at in dict.fromkeys(ids_of(document, shape, field)):
            yield (field, *at)
    if "items" in schema:
        for at in ids_of(document, schema["items"], name):
            yield (0, *at)


def is_id(name: str, schema: dict[str, Any]) -> bool:
    return schema.get("format") == "uuid" or (_IS_ID(name) is not None and schema.get("type") == "string")


def resolved(document: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in shape:
        target: Any = document
        for part in shape["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        shape = target
    return shape


def with_id(body: Any, path: tuple[str | int, ...], id: str) -> Any:
    """The body with an id put in."""
    if not path:
        return id
    first, *rest = path
    if isinstance(first, int):
        return [with_id(None, tuple(rest), id)]
    body = body or {}
    return body | {first: with_id(body.get(first), tuple(rest), id)}


ATTEMPT = """
INSERT INTO webhook_attempts (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result,
                              detail) VALUES ($1, $2, $3, 1, now(), 1, 200, 'delivered', '')
"""
REPLAY = """
INSERT INTO webhook_replays (organization_id, id, endpoint_id, from_at, to_at, kinds, only_failed, status, position,
                             created_at, stepped_at, completed_at)
VALUES ($1, $2, $3, now() - interval '1 day', now(), '{}', false, 'completed', $2, now(), now(), now())
"""
TENANT_TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
       JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'organization_id'
 WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition
 ORDER BY 1
"""
# The time of a key's last use is written some time after its use.
ROWS = "SELECT (to_jsonb(row) - 'last_used_at')::text FROM {} AS row WHERE organization_id = $1 ORDER BY 1"


IMPORT = """
WITH made AS (
    INSERT INTO contact_imports (organization_id, id, state, file, started_at, finished_at, is_uploaded)
    VALUES ($1, $2, 'finished', $3, now(), now(), true)
)
INSERT INTO contact_import_batches (organization_id, import_id, batch, written_at, created, people)
VALUES ($1, $2, 0, now(), '{}', ARRAY[$4::uuid])
"""
RECEIVED = """
INSERT INTO received_messages (organization_id, id, supplier_id, sender, recipient, sender_id, segments,
                               body, received_at)
VALUES ($1, $2, $2, $3, 'HELIOGRAPH', $4, 1, $5, now())
"""


class Party:
    """An organization that makes requests, and what it owns: two of each kind, so that every list has a second page."""

    def __init__(self, api: Api, tenant: Tenant, name: str) -> None:
        self.api, self.tenant, self.name = api, tenant, name
        self.own: dict[str, str] = {}
        self.marks: set[str] = {str(tenant.id), str(tenant.key_id)}
        self._keys = itertools.count()

    async def call(
        self,
        operation: Operation,
        ids: dict[Slot, str],
        *,
        hidden: tuple[str, ...] = (),
        query: dict[str, str] | None = None,
    ) -> Answer:
        """Make a request with these ids; slots without one get this party's own. `hidden`: the ids requested."""
        path, body, query = operation.path, operation.body, dict(query or {})
        for slot in operation.slots:
            kind = operation.sample(slot)
            if slot.place == "path":
                path = path.replace(f"{{{slot.name}}}", ids.get(slot) or self.own[str(kind)])
            elif slot.place == "query" and slot in ids:
                query[slot.name] = ids[slot]
            elif slot.place == "body" and (slot in ids or (body is not None and slot.path[0] in body)):
                body = with_id(body or {}, slot.path, ids.get(slot) or self.own[str(kind)])
        headers = self.tenant.headers | {"Idempotency-Key": f"{self.name}-{next(self._keys)}"}
        url = self.api.base_url + "/v1" + path
        async with self.api.session.request(operation.method, url, json=body, headers=headers, params=query) as answer:
            text = (await answer.read()).decode()
            for id in (*hidden, answer.headers["x-request-id"]):
                text = text.replace(id, "<id>")
            volatile = ("date", "x-request-id", "x-ratelimit-remaining", "x-ratelimit-reset")
            shown = tuple(sorted((k.lower(), v) for k, v in answer.headers.items() if k.lower() not in volatile))
            return Answer(answer.status, shown, text)

    async def make(self, pool: Pool) -> None:
        """Own two of everything, all of it containing this party's name."""
        at = iso(clock.now() + timedelta(hours=1))
        digits = str(next(_parties))
        for number in (1, 2):
            name = f"{self.name} {number}"
            phone = f"+25884{digits}{number}"
            tags = {"tags": [self.name, "customers", "maputo"]}
            contact = await self._post("/contacts", {"name": name, "phone": phone} | tags)
            key = await self._post("/api-keys", {"name": name, "profile": "read_only"})
            url = f"https://{self.name}.example.com/{number}"
            endpoint = await self._post("/webhooks", {"url": url, "subscribed_events": ["message.delivered"]})
            campaign = await self._post(
                "/campaigns", {"name": name, "content": name, "recipients": [phone], "scheduled_at": at}
            )
            message = await self._post(
                "/sms/send", {"to": phone, "message": name, "clientReference": name, "sendAt": at}
            )
            await self._post("/sender-ids", {"value": f"{self.name} {number}"})
            text = await self._post("/sms/texts", {"name": name, "body": name})
            export = await self._post("/exports", {"kind": "contacts", "tag": self.name})
            silent = f"+25886{digits}{number}"
            await self._post("/opt-outs", {"recipient": silent})
            self.marks |= {silent, silent[1:]}
            imported = uuid7()
            await pool.execute(IMPORT, self.tenant.id, imported, self.name, UUID(contact["contact"]["id"]))
            self.own |= {
                "import": str(imported),
                "contact": contact["contact"]["id"],
                "api_key": key["apiKey"]["id"],
                "endpoint": endpoint["webhookEndpoint"]["id"],
                "campaign": campaign["campaign"]["id"],
                "message": message["message"]["id"],
                "request": message["message"]["id"],
                "text": text["savedText"]["id"],
                "export": export["export"]["id"],
            }
            self.marks |= {*self.own.values(), phone, phone[1:]}
        self.own["sender"] = str(
            await pool.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1 AND is_default", self.tenant.id)
        )
        async with pool.acquire() as conn:
            told = [Notice(self.tenant.id, "campaign.failed", f"{self.name} {n}", self.name) for n in (1, 2)]
            await notices.record_many(conn, told)
        while await ExportWork(pool).round():
            pass
        await self._make_history(pool)
        await self._make_whatsapp(pool)
        self.marks |= {*self.own.values()}

    async def _make_history(self, pool: Pool) -> None:
        """Events, attempts to deliver them and a finished replay: everything that only a worker makes."""
        organization, endpoint = self.tenant.id, UUID(self.own["endpoint"])
        for _ in range(2):
            id = uuid7()
            self.own["event"] = str(id)
            self.marks.add(str(id))
            event = Event(organization, id, "message.delivered", self.name, f'{{"by":"{self.name}"}}', clock.now())
            async with pool.acquire() as conn:
                await events.record(conn, [event])
            await pool.execute(ATTEMPT, organization, id, endpoint)
            await pool.execute(REPLAY, organization, uuid7(), endpoint)
            sender = UUID(self.own["sender"])
            await pool.execute(RECEIVED, organization, uuid7(), "+258840000001", sender, self.name)

    async def _make_whatsapp(self, pool: Pool) -> None:
        """An account with a number, templates and a wallet; conversations with messages; a campaign."""
        made = await whatsapp_factories.made(pool, organization_id=self.tenant.id)
        await pool.execute(
            "UPDATE whatsapp_numbers SET verified_name = $2 WHERE organization_id = $1", self.tenant.id, self.name
        )
        for number in (1, 2):
            to = f"+2588{number}{made.digits[-7:]}"
            conversation = await whatsapp_factories.conversation(pool, made, to=to)
            message = await whatsapp_factories.message(pool, made, to=to)
            self.own["whatsapp_message"] = str(message)
            self.marks |= {to, to[1:], str(conversation), str(message)}
        await pool.execute(
            "UPDATE whatsapp_messages SET client_reference = $2 WHERE organization_id = $1", self.tenant.id, self.name
        )
        self.own["whatsapp_campaign"] = str(await whatsapp_factories.campaign(pool, made))
        self.own["whatsapp_number"] = str(made.number_id)
        self.marks |= {made.digits, str(made.account_id), str(made.template_id), str(made.code_id)}

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        headers = self.tenant.headers | {"Idempotency-Key": f"{self.name}-{next(self._keys)}"}
        status, _, answer = await self.api.ask("POST", path, json=body, headers=headers)
        assert status < 300, (path, answer)
        return answer

    async def state(self, pool: Pool) -> dict[str, list[str]]:
        """Every row of this organization, in every table with rows of organizations."""
        state = {}
        for (table,) in await pool.fetch(TENANT_TABLES):
            if table in LATE:
                continue
            rows = await pool.fetch(ROWS.format(table), self.tenant.id)
            state[table] = [row[0] for row in rows]
        rows = await pool.fetch("SELECT to_jsonb(row)::text FROM organizations AS row WHERE id = $1", self.tenant.id)
        return state | {"organizations": [row[0] for row in rows]}


async def test_another_organizations_ids_are_as_unknown_as_any(database_url: str, pool: Pool) -> None:
    async with recording_statements(database_url) as (database, url), running(url) as api:
        _, _, document = await api.ask("GET", "/openapi.json")
        listed = operations(document)
        without = [f"{one.id}: {slot.name}" for one in listed for slot in one.slots if one.sample(slot) is None]
        assert without == [], "these take an id that this test has no sample for"
        assert {one.sample(slot) for one in listed for slot in one.slots} == set(SAMPLES.values())

        other = Party(api, await make_tenant(pool), MARK)
        stranger = Party(api, await make_tenant(pool), "beta")
        for party in (other, stranger):
            await party.make(pool)
        cursors = await cursors_of(other, listed)
        before = await other.state(pool)
        assert len([rows for rows in before.values() if rows]) > 12

        looked = 0
        for operation in listed:
            if operation.id in PUBLIC:
                continue
            for slot in operation.slots:
                looked += await check_id(operation, slot, stranger, other, database)
            if operation.id in cursors:
                await check_cursor(operation, cursors[operation.id], stranger, other)
            if operation.method == "GET":
                answer = await stranger.call(operation, {}, query={"limit": "200"})
                assert answer.status == 200, (operation.id, answer.body)
                check_marks(operation, answer, other)

        assert looked > 30
        changed = [table for table, rows in (await other.state(pool)).items() if rows != before[table]]
        assert changed == [], "what belongs to the other organization has changed"
        await check_that_the_samples_are_good(listed, other)


async def check_id(operation: Operation, slot: Slot, stranger: Party, other: Party, database: StatementRecorder) -> int:
    """An id of another organization, and one that never existed: the same response, after the same statements; returns
    their number."""
    foreign, missing = other.own[str(operation.sample(slot))], str(uuid7())
    answers, looked = [], []
    for id in (foreign, missing):
        database.take()
        answers.append(await stranger.call(operation, {slot: id}, hidden=(id,)))
        looked.append(database.lookups(UUID(id), stranger.tenant.id))
    where = f"{operation.id}: {slot.name}"
    assert answers[0] == answers[1], where
    assert looked[0] == looked[1], where
    if operation.method == "GET" and slot.place == "query":  # a filter, which matches nothing
        assert (answers[0].status, msgspec.json.decode(answers[0].body)["items"]) == (200, []), where
    else:
        assert answers[0].status in ((404,) if slot.place == "path" else (400, 404, 409)), where
    if answers[0].status == 404:
        said = msgspec.json.decode(answers[0].body)["error"]["message"]
        assert said != NotFound().message, f"{where}: what is missing is not named"
    check_marks(operation, answers[0], other)
    return len(looked[0])


async def check_cursor(operation: Operation, cursor: str, stranger: Party, other: Party) -> None:
    """A cursor of another organization is refused like an invalid one."""
    answers = [
        await stranger.call(operation, {}, query={"limit": "1", "cursor": text}) for text in (cursor, "A" * len(cursor))
    ]
    assert answers[0] == answers[1], operation.id
    assert answers[0].status == 400, operation.id
    check_marks(operation, answers[0], other)


def check_marks(operation: Operation, answer: Answer, other: Party) -> None:
    """Nothing that the other organization owns or wrote is in the response."""
    shown = answer.body.lower()
    # The log of the stranger's requests repeats the ids that it requested, and nothing of their objects.
    marks = other.marks - {*other.own.values()} if operation.id == "listRequests" else other.marks
    assert [mark for mark in (*marks, MARK) if mark.lower() in shown] == [], operation.id


async def cursors_of(party: Party, listed: list[Operation]) -> dict[str, str]:
    """A cursor of each list, by operation."""
    cursors = {}
    for operation in listed:
        if "cursor" in operation.query:
            answer = await party.call(operation, {}, query={"limit": "1"})
            assert answer.status == 200, (operation.id, answer.body)
            cursor = msgspec.json.decode(answer.body)["nextCursor"]
            assert cursor, f"{operation.id}: this test has no two samples of what it lists"
            cursors[operation.id] = cursor
    return cursors


async def check_that_the_samples_are_good(listed: list[Operation], owner: Party) -> None:
    """The ids unknown to others are known to their owner; otherwise the responses above would say nothing."""
    for operation in listed:
        for slot in operation.slots:
            answer = await owner.call(operation, {slot: owner.own[str(operation.sample(slot))]})
            # An object in the wrong state is still known.
            known = answer.status < 300 or (operation.id in STATEFUL and answer.status == 409)
            assert known, (operation.id, slot.name, answer.body)
