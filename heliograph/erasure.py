"""Erasing a person: what they wrote, what was written to them, and what an organization recorded about them.

By person, not by spelling: under every spelling of the number, and every number and user id linked to it. Rows that
bills refer to stay, and so does an opt-out, without which the person would be written to again.

The rule nobody may break: nothing here runs in a transaction of the caller's. Each step is its own transaction, over a
bounded number of rows, and can be repeated.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection, plan_by_key
from heliograph.base.ids import time_of, uuid7_floor
from heliograph.consent import people
from heliograph.networks import learned

#: How many messages one step scans: they have no index by recipient.
STEP = 20_000
_FIRST = UUID(int=0)
#: All parts of a message come within this time.
AROUND = timedelta(days=2)


class Erased(msgspec.Struct):
    """How many of each were erased."""

    contacts: int = 0
    texts: int = 0
    received: int = 0


CONTACTS = """
WITH gone AS (
    DELETE FROM contacts WHERE organization_id = $1 AND phone = ANY ($2) RETURNING id, tags, mode
), untagged AS (
    DELETE FROM contact_tags USING (SELECT id, mode, unnest(tags) AS tag FROM gone) one
     WHERE contact_tags.organization_id = $1 AND contact_tags.mode = one.mode AND contact_tags.tag = one.tag
       AND contact_tags.contact_id = one.id
), images AS (
    DELETE FROM contact_import_images USING gone
     WHERE contact_import_images.organization_id = $1 AND contact_import_images.contact_id = gone.id
), rejected AS (
    DELETE FROM contact_import_rejects
     WHERE organization_id = $1
       AND EXISTS (SELECT FROM unnest($2::text[]) AS known (phone)
                    WHERE strpos(regexp_replace(cells, '[^0-9]', '', 'g'), right(known.phone, 8)) > 0)
), changed AS (
    DELETE FROM contact_changes WHERE organization_id = $1 AND phone = ANY ($2)
), guarded AS (
    DELETE FROM guard_holds
     WHERE organization_id = $1 AND kind = 'number' AND range = ANY (SELECT substr(unnest($2::text[]), 2))
), converted AS (
    DELETE FROM guard_conversions WHERE organization_id = $1 AND recipient = ANY ($2)
), seen AS (
    -- A second of the windows is forgotten with it.
    DELETE FROM guard_seen
     WHERE organization_id = $1
       AND numbers && ARRAY(SELECT CASE WHEN one ~ '^[+][0-9]+$' THEN substr(one, 2)::bigint END
                              FROM unnest($2::text[]) AS item (one))
), vouched AS (
    UPDATE guard_settings
       SET safe = ARRAY(SELECT one FROM unnest(safe) WITH ORDINALITY AS item (one, n)
                         WHERE '+' || one <> ALL ($2::text[]) ORDER BY n)
     WHERE organization_id = $1
), drafted AS (
    UPDATE campaign_drafts
       SET numbers = ARRAY(SELECT one FROM unnest(numbers) WITH ORDINALITY AS item (one, n)
                            WHERE one <> ALL ($2::text[]) ORDER BY n)
     WHERE organization_id = $1 AND numbers && $2::text[]
), caught AS (
    DELETE FROM webhook_caught
     WHERE organization_id = $1
       AND EXISTS (SELECT FROM unnest($2::text[]) AS known (name) WHERE strpos(body, known.name) > 0)
), listed AS (
    UPDATE campaign_recipients SET name = NULL, first_name = NULL, last_name = NULL
     WHERE organization_id = $1 AND phone = ANY ($2)
)
SELECT count(*)::int FROM gone
"""
SENT = """
WITH looked_at AS MATERIALIZED (
    SELECT id, recipient FROM messages WHERE organization_id = $1 AND id > $2 ORDER BY id LIMIT $3
), gone AS (
    UPDATE messages SET body = NULL WHERE organization_id = $1 AND body IS NOT NULL
       AND id = ANY (ARRAY(SELECT id FROM looked_at WHERE recipient = ANY ($4))) RETURNING 1
)
SELECT (SELECT id FROM looked_at ORDER BY id DESC LIMIT 1) AS last, (SELECT count(*) FROM gone)::int AS gone
"""
# An event repeats the text.
RECEIVED = """
WITH looked_at AS MATERIALIZED (
    SELECT id, sender FROM received_messages WHERE organization_id = $1 AND id > $2 ORDER BY id LIMIT $3
), theirs AS MATERIALIZED (
    SELECT id FROM looked_at WHERE sender = ANY ($4)
), gone AS (
    UPDATE received_messages SET body = NULL
     WHERE organization_id = $1 AND body IS NOT NULL AND id = ANY (ARRAY(SELECT id FROM theirs)) RETURNING 1
), told AS (
    UPDATE events SET data = jsonb_set(data::jsonb, '{message,text}', 'null')::text
     WHERE organization_id = $1 AND kind = 'message.received' AND data LIKE '%"text":"%'
       AND message_id = ANY (ARRAY(SELECT id FROM theirs))
)
SELECT (SELECT id FROM looked_at ORDER BY id DESC LIMIT 1) AS last, (SELECT count(*) FROM gone)::int AS gone,
       ARRAY(SELECT id FROM theirs) AS theirs
"""
# What a supplier delivered contains the raw text. Parts have no index by message, but they come within a day of each
# other, and their ids say when.
PARTS = """
UPDATE inbound_messages SET body = '', raw = '' WHERE id >= $2 AND id < $3 AND message_id = ANY ($1)
"""
# They may be in any file: it can be asked for again. Its pieces are deleted behind it, as those of files that are past.
EXPORTS = """
UPDATE exports SET state = 'erased', finished_at = coalesce(finished_at, now()), lease_until = NULL
 WHERE organization_id = $1 AND state IN ('running', 'finished')
"""
THREADS = "DELETE FROM inbox_threads WHERE organization_id = $1 AND peer = ANY ($2)"
WHATSAPP = """
WITH theirs AS MATERIALIZED (
    SELECT id, direction FROM whatsapp_messages WHERE organization_id = $1 AND recipient = ANY ($2)
), gone AS (
    UPDATE whatsapp_messages SET content = NULL
     WHERE organization_id = $1 AND content IS NOT NULL AND id = ANY (ARRAY(SELECT id FROM theirs))
    RETURNING id
), told AS (
    UPDATE events SET data = jsonb_set(data::jsonb, '{message,text}', 'null')::text
     WHERE organization_id = $1 AND kind = 'message.received' AND data LIKE '%"text":"%'
       AND message_id = ANY (ARRAY(SELECT id FROM theirs WHERE direction = 'inbound'))
)
SELECT count(*) FILTER (WHERE direction = 'outbound')::int AS sent,
       count(*) FILTER (WHERE direction = 'inbound')::int AS received
  FROM gone JOIN theirs USING (id)
"""


async def erase(conn: Connection, actor: Actor, *, address: str) -> Erased:
    """Erase what is kept of a person, under all names; `address`: E.164, or a user id. `conn` plans by key from then.

    A message that is still waiting to be sent loses its text and ends as expired.
    """
    await plan_by_key(conn)
    names = await people.names(conn, actor.organization_id, address)
    spellings = [one for name in names for one in (phones.spellings(name) if name.startswith("+") else [name])]
    # The first step's own: whoever repeats an erasure that was broken off is told of again.
    await audit.record(conn, actor, "person.erased", object_id=phones.masked(address))
    done = Erased()
    done.contacts = await conn.fetchval(CONTACTS, actor.organization_id, spellings)
    done.texts = await _steps(conn, SENT, actor, spellings)
    done.received = await _steps(conn, RECEIVED, actor, spellings)
    await conn.execute(THREADS, actor.organization_id, spellings)
    await learned.forget(conn, [one for one in spellings if one.startswith("+")])
    await conn.execute(EXPORTS, actor.organization_id)
    row = await conn.fetchrow(WHATSAPP, actor.organization_id, spellings)
    assert row is not None
    done.texts += row["sent"]
    done.received += row["received"]
    return done


async def _steps(conn: Connection, sql: str, actor: Actor, spellings: list[str]) -> int:
    gone, after = 0, _FIRST
    while True:
        row = await conn.fetchrow(sql, actor.organization_id, after, STEP, spellings)
        assert row is not None
        gone += row["gone"]
        if theirs := row.get("theirs"):
            since, until = time_of(min(theirs)) - AROUND, time_of(max(theirs)) + AROUND
            await conn.execute(PARTS, theirs, uuid7_floor(since), uuid7_floor(until))
        if row["last"] is None:
            return gone
        after = row["last"]
