"""All data held about a person, as one list: for a person who asks what an organization knows about them.

The rule nobody may break: every table that `erasure` clears is read here, under the same names, except for copies and
what is not the organization's; a test compares them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection, plan_by_key
from heliograph.consent import skipped
from heliograph.privacy import answers, naming
from heliograph.privacy.erasure import RECEIPTS, first_day
from heliograph.sealing import text_keys
from heliograph.sending.attempts import MAY_QUOTE
from heliograph.sms import timeline
from heliograph.webhooks.recording import at_rest

#: How many messages or typed texts are scanned per step.
STEP = 20_000
_FIRST = UUID(int=0)

#: $1: the organization; $2: the person's names; for `whatsapp_message` as from `naming.periods`. The length of each
#: list is bounded by how often a person can occur in it.
LISTS = {
    "contact": """
SELECT c.id, c.mode, c.phone, c.name, c.first_name, c.last_name, c.tags,
       (SELECT notes FROM contact_notes
         WHERE organization_id = $1 AND mode = c.mode AND contact_id = c.id LIMIT 1) AS notes,
       c.created_at, c.updated_at, c.written_at, c.delivered_at
  FROM contacts c WHERE c.organization_id = $1 AND c.phone = ANY ($2) ORDER BY c.id
""",
    "contact_before": """
SELECT what, tag, phone, name, first_name, last_name, tags, notes, changed_at
  FROM contact_changes WHERE organization_id = $1 AND phone = ANY ($2) ORDER BY change_id
""",
    "contact_before_import": """
SELECT import_id, contact_id, phone, name, first_name, last_name, tags, updated_at FROM contact_import_images
 WHERE organization_id = $1
   AND (phone = ANY ($2)
        OR contact_id IN (SELECT id FROM contacts WHERE organization_id = $1 AND phone = ANY ($2)
                           UNION SELECT contact_id FROM contact_changes
                                  WHERE organization_id = $1 AND phone = ANY ($2)))
 ORDER BY import_id, batch
""",
    "rejected_row": f"""
SELECT import_id, row, reason, cells FROM contact_import_rejects
 WHERE organization_id = $1 AND {naming.typed_in("cells")} ORDER BY import_id, row
""",
    # Without the other numbers that it lists.
    "campaign_draft": f"""
SELECT id, mode, saved_at, found.numbers
  FROM campaign_drafts d CROSS JOIN LATERAL (
       SELECT array_agg(one ORDER BY n) AS numbers FROM unnest(d.numbers) WITH ORDINALITY AS item (one, n)
        WHERE {naming.drafted("one")}) found
 WHERE organization_id = $1 AND found.numbers IS NOT NULL ORDER BY id
""",
    "opt_out": """
SELECT recipient, since, source, keyword, message_id
  FROM opt_outs WHERE organization_id = $1 AND person IN (SELECT person_of(one) FROM unnest($2::text[]) AS item (one))
""",
    "consent": """
SELECT recipient, said, at, source, keyword, message_id, import_id, author_kind, author, ended_at
  FROM consent_history
 WHERE organization_id = $1 AND person IN (SELECT person_of(one) FROM unnest($2::text[]) AS item (one)) ORDER BY at, id
""",
    "whatsapp_word": """
SELECT recipient, word, said_at FROM whatsapp_words
 WHERE organization_id = $1 AND person IN (SELECT person_of(one) FROM unnest($2::text[]) AS item (one))
""",
    "name": """
SELECT name, linked_at, left_at, moved_to
  FROM person_names WHERE organization_id = $1 AND name = ANY ($2) ORDER BY name
""",
    "former_number": """
SELECT name, left_at, moved_to, taken_at FROM former_names
 WHERE organization_id = $1
   AND person IN (SELECT person FROM person_names WHERE organization_id = $1 AND name = ANY ($2))
 ORDER BY left_at, name
""",
    "automatic_reply": """
SELECT recipient, kind, message_id, replied_at
  FROM automatic_replies WHERE organization_id = $1 AND recipient = ANY ($2) ORDER BY replied_at
""",
    "conversation": """
SELECT id, channel, peer, heard_at, closed_at FROM inbox_threads WHERE organization_id = $1 AND peer = ANY ($2)
 ORDER BY id
""",
    "whatsapp_conversation": f"""
SELECT id, mode, number_id, recipient, user_id, opened_at, closed_at, last_inbound_at, last_outbound_at, created_at
  FROM whatsapp_conversations
 WHERE organization_id = $1 AND (recipient = ANY ($2) OR user_id = ANY ($2))
   AND ({naming.stored_under("recipient", 2)} OR {naming.stored_under("user_id", 2)}) ORDER BY id
""",
    "whatsapp_message": f"""
SELECT id, direction, mode, status, recipient, type, template_name, template_language, content, client_reference,
       campaign_id, accepted_at, sent_at, delivered_at, read_at, failed_at, canceled_at, failure_code
  FROM whatsapp_messages
 WHERE organization_id = $1 AND recipient = ANY ($2) AND {naming.stored_under("recipient", 2)} ORDER BY id
""",
    "campaign": """
SELECT c.id, c.name, c.mode, c.created_at, r.phone, r.name AS recipient_name, r.first_name, r.last_name
  FROM campaigns c CROSS JOIN LATERAL (
       SELECT phone, name, first_name, last_name FROM campaign_recipients
        WHERE organization_id = c.organization_id AND campaign_id = c.id AND phone = ANY ($2)) r
 WHERE c.organization_id = $1 ORDER BY c.id
""",
    "skipped_by_campaign": """
SELECT s.campaign_id, c.name, s.recipient, s.reason FROM campaign_skipped s CROSS JOIN LATERAL (
       SELECT name FROM campaigns WHERE organization_id = $1 AND id = s.campaign_id LIMIT 1) c
 WHERE s.organization_id = $1 AND s.recipient = ANY ($2) ORDER BY s.id
""",
    "held_by_guard": """
SELECT range, rules, policy, begun_at, until, released_at FROM guard_holds
 WHERE organization_id = $1 AND kind = 'number'
   AND range IN (SELECT substr(one, 2) FROM unnest($2::text[]) AS item (one))
 ORDER BY id
""",
    "never_held_by_guard": """
SELECT '+' || one AS number FROM guard_settings CROSS JOIN LATERAL unnest(safe) AS item (one)
 WHERE organization_id = $1 AND '+' || one = ANY ($2)
""",
    "seen_by_guard": f"""
SELECT class, at FROM guard_seen WHERE organization_id = $1 AND numbers && {naming.numbers()} ORDER BY at
""",
    "conversion": """
SELECT message_id, converted_at FROM guard_conversions WHERE organization_id = $1 AND recipient = ANY ($2)
 ORDER BY message_id
""",
    "network": f"""
SELECT number, network, source, learned_at FROM number_networks
 WHERE $1::uuid IS NOT NULL
   AND number = ANY ({naming.numbers()})
 ORDER BY learned_at
""",
    "network_lookup": f"""
SELECT number, state, network, asked_at, answered_at FROM number_lookups
 WHERE $1::uuid IS NOT NULL
   AND number = ANY ({naming.numbers()})
 ORDER BY asked_at
""",
    "caught_event": f"""
SELECT event_id, caught_at, body FROM webhook_caught
 WHERE organization_id = $1 AND {naming.quoted_in("body")} ORDER BY caught_at, event_id
""",
}
#: The same for tables without an index by recipient: $2: the id to begin after, $3: how many to scan, $4: the person's
#: names, for messages as from `naming.periods`. `LAST` returns the last id scanned.
SCANS = {
    "message": f"""
WITH looked_at AS MATERIALIZED (
    SELECT id, recipient FROM messages WHERE organization_id = $1 AND id > $2 ORDER BY id LIMIT $3
)
SELECT id, mode, status, recipient, sender, country, class, segments, body, client_reference, campaign_id,
       accepted_at, sent_at, delivered_at, failed_at, failure_code
  FROM messages WHERE organization_id = $1
   AND id = ANY (ARRAY(SELECT id FROM looked_at WHERE {naming.stored_under("recipient", 4)})) ORDER BY id
""",
    "message_received": f"""
WITH looked_at AS MATERIALIZED (
    SELECT id, sender FROM received_messages WHERE organization_id = $1 AND id > $2 ORDER BY id LIMIT $3
)
SELECT id, sender, recipient, segments, missing, keyword, body, received_at
  FROM received_messages WHERE organization_id = $1
   AND id = ANY (ARRAY(SELECT id FROM looked_at WHERE {naming.stored_under("sender", 4)})) ORDER BY id
""",
    # Numbers as they were typed.
    "skipped_by_campaign": f"""
WITH looked_at AS MATERIALIZED (
    SELECT campaign_id, id, recipient, reason FROM campaign_skipped
     WHERE organization_id = $1 AND reason = '{skipped.NO_NUMBER}' AND id > $2 ORDER BY id LIMIT $3
)
SELECT s.campaign_id, c.name, s.recipient, s.reason FROM looked_at s CROSS JOIN LATERAL (
       SELECT name FROM campaigns WHERE organization_id = $1 AND id = s.campaign_id LIMIT 1) c
 WHERE {naming.typed_in("s.recipient", "$4")} ORDER BY s.id
""",
    # Responses to API requests, kept so that they can be repeated.
    "stored_answer": f"""
WITH looked_at AS MATERIALIZED (
    SELECT key_hash, status, body, created_at FROM idempotency
     WHERE organization_id = $1 AND key_hash > $2 ORDER BY key_hash LIMIT $3
)
SELECT status, body, created_at FROM looked_at WHERE {naming.quoted_in("body", "$4")} ORDER BY created_at
""",
}
#: The rows scanned.
_SCANNED = {
    "message": "messages WHERE",
    "message_received": "received_messages WHERE",
    "skipped_by_campaign": f"campaign_skipped WHERE reason = '{skipped.NO_NUMBER}' AND",
    "stored_answer": "(SELECT organization_id, key_hash AS id FROM idempotency) answers WHERE",
}
# What suppliers said about messages $2.
ANSWERS = f"""
SELECT message_id, attempt, state, code, detail, started_at, ended_at FROM attempts
 WHERE organization_id = $1 AND message_id = ANY ($2) AND {MAY_QUOTE} ORDER BY message_id, attempt
"""
#: Kinds of messages, whose numbers may have changed hands.
_BY_PERIOD = ("whatsapp_message", "whatsapp_conversation")
#: The table and the column of kinds whose texts may be sealed.
_SEALED = {
    "message": ("messages", "body"),
    "message_received": ("received_messages", "body"),
    "whatsapp_message": ("whatsapp_messages", "content"),
}
LAST = """
WITH looked_at AS (SELECT id FROM {} organization_id = $1 AND id > $2 ORDER BY id LIMIT $3)
SELECT id FROM looked_at ORDER BY id DESC LIMIT 1
"""


async def held(conn: Connection, actor: Actor, *, address: str) -> AsyncIterator[dict[str, Any]]:
    """All data held about a person, row by row: `what` names the kind, the rest are its columns; times are ISO 8601.
    `address`: E.164, or a user id. The request is recorded in the audit log. `conn` plans by key from then on."""
    await plan_by_key(conn)
    names = await naming.names(conn, actor, address)
    periods = await naming.periods(conn, actor, address)
    await audit.record(conn, actor, "person.exported", object_id=phones.masked(address))
    for what, sql in LISTS.items():
        values = periods if what in _BY_PERIOD else (names,)
        rows = await conn.fetch(sql, actor.organization_id, *values)
        opened = await _opened(conn, actor, what, rows)
        for row, texts in zip(rows, opened, strict=True):
            yield _row(what, row) | texts
        if what == "whatsapp_message":
            for row in await conn.fetch(ANSWERS, actor.organization_id, [one["id"] for one in rows]):
                yield _row("answer_of_supplier", row)
    for what, sql in SCANS.items():
        after = _FIRST
        while True:
            last = await conn.fetchval(LAST.format(_SCANNED[what]), actor.organization_id, after, STEP)
            if last is None:
                break
            values = periods if what in _SEALED else (names,)
            rows = await conn.fetch(sql, actor.organization_id, after, STEP, *values)
            after = last
            opened = await _opened(conn, actor, what, rows)
            for row, texts in zip(rows, opened, strict=True):
                yield _row(what, row) | texts
            if what == "message" and rows:
                for found in await _of_suppliers(conn, actor, [row["id"] for row in rows]):
                    yield found
    async for what, answer in answers.held(conn, actor, names):
        yield _row(what, answer)


def line(row: dict[str, Any]) -> str:
    """A row as a line of JSON."""
    return msgspec.json.encode(row).decode() + "\n"


async def _opened(
    conn: Connection, actor: Actor, what: str, rows: Sequence[asyncpg.Record]
) -> list[dict[str, str | None]]:
    """The text of each row, if its kind may have sealed ones."""
    whose = actor.organization_id
    if what == "caught_event":
        bodies = await at_rest.opened_bodies(conn, whose, [(row["event_id"], row["body"]) for row in rows])
        return [{"body": body} for body in bodies]
    if what not in _SEALED:
        return [{}] * len(rows)
    table, column = _SEALED[what]
    texts = await text_keys.opened_of(conn, whose, table, [(row["id"], row[column]) for row in rows])
    return [{column: texts[row["id"]]} for row in rows]


async def _of_suppliers(conn: Connection, actor: Actor, ids: list[UUID]) -> list[dict[str, Any]]:
    """What suppliers answered about SMS, and their receipts as they wrote them."""
    told = [_row("answer_of_supplier", row) for row in await conn.fetch(ANSWERS, actor.organization_id, ids)]
    came = await conn.fetch(RECEIPTS, actor.organization_id, ids, first_day(ids))
    of = {row["fingerprint"]: row["message_id"] for row in came}
    for fingerprint, at, raw in await timeline.written(conn, [(row["fingerprint"], row["at"]) for row in came]):
        if raw:
            row = {"message_id": of[fingerprint], "received_at": at, "raw": raw.decode("utf-8", "replace")}
            told.append(_row("receipt_as_written", row))
    return told


def _row(what: str, row: asyncpg.Record | dict[str, Any]) -> dict[str, Any]:
    return {"what": what} | {name: iso(value) if hasattr(value, "tzinfo") else value for name, value in row.items()}
