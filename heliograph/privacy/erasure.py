"""Erasing a person: what they wrote, what was written to them, and what an organization recorded about them.

By person, not by spelling: under every spelling of the number, and every number and user id linked to it. Messages of a
number that somebody else has taken belong to the person who had it at the time. Messages still to be sent to them are
withdrawn (`withdrawing`). Rows that bills refer to are kept, and so are an opt-out, without which the person would be
written to again, and the links by which it holds under each of their names.

The rule nobody may break: nothing here runs in the caller's transaction. Each step is a transaction of its own, over a
bounded number of rows, and can be repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, date, timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, plan_by_key
from heliograph.base.ids import time_of, uuid7, uuid7_floor
from heliograph.consent import people, skipped
from heliograph.contacts import records
from heliograph.networks import asked, learned
from heliograph.privacy import answers, naming, withdrawing
from heliograph.sending.attempts import MAY_QUOTE
from heliograph.sms import timeline

#: How many messages or typed texts are scanned per step: they have no index by recipient.
STEP = 20_000
_FIRST = UUID(int=0)
#: How many pieces of files are deleted at once.
PIECES_AT_ONCE = 200
#: All parts of a message arrive within this time.
AROUND = timedelta(days=2)


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What an erasure did, as stored in the audit log: nothing in it identifies the person.

    `names`: how many spellings, numbers and user ids it covered, including numbers that others have taken since.
    `erased`: rows or texts by kind. `withdrawn`: waiting messages that were canceled and refunded, by channel.
    `kept`: what remains, without any text: messages that bills refer to, the opt-out, links between their names.
    """

    id: UUID
    begun_at: str
    ended_at: str
    names: int
    erased: dict[str, int]
    withdrawn: dict[str, int]
    kept: dict[str, int]


_DRAFTED = naming.drafted("one")
CONTACTS = f"""
WITH gone AS (
    DELETE FROM contacts WHERE organization_id = $1 AND phone = ANY ($2) RETURNING id, tags, mode
), untagged AS ({records.untag("gone")}), rejected AS (
    DELETE FROM contact_import_rejects
     WHERE organization_id = $1 AND {naming.typed_in("cells")}
    RETURNING 1
), changed AS (
    DELETE FROM contact_changes WHERE organization_id = $1 AND phone = ANY ($2) RETURNING contact_id
), images AS (
    -- By number: the contact may have been deleted long ago, or have got the number of somebody else.
    DELETE FROM contact_import_images
     WHERE organization_id = $1
       AND (phone = ANY ($2) OR contact_id IN (SELECT id FROM gone UNION SELECT contact_id FROM changed))
    RETURNING 1
), noted AS (
    DELETE FROM organization_notes
     WHERE organization_id = $1 AND {naming.typed_in("body")}
    RETURNING 1
), guarded AS (
    DELETE FROM guard_holds
     WHERE organization_id = $1 AND kind = 'number' AND range = ANY (SELECT substr(unnest($2::text[]), 2))
    RETURNING 1
), converted AS (
    DELETE FROM guard_conversions WHERE organization_id = $1 AND recipient = ANY ($2) RETURNING 1
), seen AS (
    -- The whole second of the windows that contains it is deleted.
    DELETE FROM guard_seen WHERE organization_id = $1 AND numbers && {naming.numbers()}
), vouched AS (
    UPDATE guard_settings
       SET safe = ARRAY(SELECT one FROM unnest(safe) WITH ORDINALITY AS item (one, n)
                         WHERE '+' || one <> ALL ($2::text[]) ORDER BY n)
     WHERE organization_id = $1
), drafted AS (
    UPDATE campaign_drafts
       SET numbers = ARRAY(SELECT one FROM unnest(numbers) WITH ORDINALITY AS item (one, n)
                            WHERE NOT {_DRAFTED} ORDER BY n)
     WHERE organization_id = $1 AND EXISTS (SELECT FROM unnest(numbers) AS item (one) WHERE {_DRAFTED})
    RETURNING 1
), said AS (
    DELETE FROM consent_history
     WHERE organization_id = $1 AND person IN (SELECT person_of(one) FROM unnest($2::text[]) AS item (one)) RETURNING 1
), worded AS (
    -- The latest word of WhatsApp, too; a STOP stays with the opt-out, which an older START that arrives late must not
    -- lift.
    DELETE FROM whatsapp_words
     WHERE organization_id = $1 AND word = 'start'
       AND person IN (SELECT person_of(one) FROM unnest($2::text[]) AS item (one))
), replied AS (
    DELETE FROM automatic_replies WHERE organization_id = $1 AND recipient = ANY ($2) RETURNING 1
), unlinked AS (
    -- The remaining opt-out no longer belongs to a file: other statements, which would outlive an undo, are gone.
    UPDATE opt_outs SET import_id = NULL
     WHERE organization_id = $1 AND person IN (SELECT person_of(one) FROM unnest($2::text[]) AS item (one))
       AND import_id IS NOT NULL
), caught AS (
    DELETE FROM webhook_caught
     WHERE organization_id = $1
       AND EXISTS (SELECT FROM unnest($2::text[]) AS known (name) WHERE strpos(body, known.name) > 0)
    RETURNING 1
), skipped AS (
    DELETE FROM campaign_skipped WHERE organization_id = $1 AND recipient = ANY ($2) RETURNING 1
), listed AS (
    UPDATE campaign_recipients SET name = NULL, first_name = NULL, last_name = NULL
     WHERE organization_id = $1 AND phone = ANY ($2) AND (name IS NOT NULL OR first_name IS NOT NULL
                                                          OR last_name IS NOT NULL) RETURNING 1
)
SELECT (SELECT count(*) FROM gone)::int AS contacts, (SELECT count(*) FROM changed)::int AS contacts_before,
       (SELECT count(*) FROM images)::int AS rows_of_imports, (SELECT count(*) FROM rejected)::int AS rejected_rows,
       (SELECT count(*) FROM listed)::int AS names_in_campaigns, (SELECT count(*) FROM drafted)::int AS campaign_drafts,
       (SELECT count(*) FROM caught)::int AS caught_events, (SELECT count(*) FROM guarded)::int AS holds_of_the_guard,
       (SELECT count(*) FROM converted)::int AS conversions, (SELECT count(*) FROM said)::int AS consent_history,
       (SELECT count(*) FROM noted)::int AS notes_of_operators,
       (SELECT count(*) FROM replied)::int AS automatic_replies,
       (SELECT count(*) FROM skipped)::int AS skipped_by_campaigns
"""
# Campaigns with recipients that are yet to be staged. Staging locks the campaign, so it is locked here first; one that
# is gathering its audience may be adding the person at this moment, from the contact that was just deleted.
CAMPAIGNS = """
SELECT id FROM campaigns c
 WHERE organization_id = $1 AND status IN ('scheduled', 'staging', 'running', 'paused')
   AND (status = 'staging' OR EXISTS (
        SELECT FROM campaign_recipients WHERE organization_id = $1 AND campaign_id = c.id AND phone = ANY ($2)))
 ORDER BY id FOR UPDATE
"""
RECIPIENTS = """
WITH gone AS (
    DELETE FROM campaign_recipients r USING campaigns c
     WHERE c.organization_id = $1 AND c.id = ANY ($3) AND r.organization_id = $1 AND r.campaign_id = c.id
       AND r.phone = ANY ($2) AND r.phone > c.staged_to
    RETURNING r.campaign_id
), fewer AS (
    UPDATE campaigns c SET total = c.total - theirs.count, pending = c.pending - theirs.count
      FROM (SELECT campaign_id, count(*)::int AS count FROM gone GROUP BY campaign_id) theirs
     WHERE c.organization_id = $1 AND c.id = theirs.campaign_id
)
SELECT count(*)::int FROM gone
"""
SENT = f"""
WITH looked_at AS MATERIALIZED (
    SELECT id, recipient FROM messages WHERE organization_id = $1 AND id > $2 ORDER BY id LIMIT $3
), theirs AS MATERIALIZED (
    SELECT id FROM looked_at WHERE {naming.stored_under("recipient", 4)}
)
SELECT (SELECT id FROM looked_at ORDER BY id DESC LIMIT 1) AS last, 0 AS gone,
       (SELECT count(*) FROM theirs)::int AS seen, 0 AS told, ARRAY(SELECT id FROM theirs) AS theirs
"""
TEXTS = """
WITH gone AS (
    UPDATE messages SET body = NULL WHERE organization_id = $1 AND body IS NOT NULL AND id = ANY ($2) RETURNING 1
)
SELECT count(*)::int FROM gone
"""
# A supplier's answer may repeat the text, too.
ANSWERS = f"""
WITH gone AS (
    UPDATE attempts SET detail = '' WHERE organization_id = $1 AND message_id = ANY ($2) AND {MAY_QUOTE} RETURNING 1
)
SELECT count(*)::int FROM gone
"""
# Suppliers' receipts contain the number, and may repeat the beginning of the text.
RECEIPTS = """
SELECT id AS message_id, receipt AS fingerprint, receipt_at AS at FROM messages
 WHERE organization_id = $1 AND id = ANY ($2) AND receipt IS NOT NULL
UNION ALL
SELECT past.id, later.fingerprint, later.received_at
  FROM unnest($2::uuid[]) AS past (id) CROSS JOIN LATERAL (
       SELECT fingerprint, received_at FROM receipts
        WHERE message_id = past.id AND received_on >= $3::date AND organization_id = $1 OFFSET 0) later
"""
# An event repeats the text.
RECEIVED = f"""
WITH looked_at AS MATERIALIZED (
    SELECT id, sender FROM received_messages WHERE organization_id = $1 AND id > $2 ORDER BY id LIMIT $3
), theirs AS MATERIALIZED (
    SELECT id FROM looked_at WHERE {naming.stored_under("sender", 4)}
), gone AS (
    UPDATE received_messages SET body = NULL
     WHERE organization_id = $1 AND body IS NOT NULL AND id = ANY (ARRAY(SELECT id FROM theirs)) RETURNING 1
), told AS (
    UPDATE events SET data = jsonb_set(data::jsonb, '{{message,text}}', 'null')::text
     WHERE organization_id = $1 AND kind = 'message.received' AND data LIKE '%"text":"%'
       AND message_id = ANY (ARRAY(SELECT id FROM theirs))
    RETURNING 1
)
SELECT (SELECT id FROM looked_at ORDER BY id DESC LIMIT 1) AS last, (SELECT count(*) FROM gone)::int AS gone,
       (SELECT count(*) FROM theirs)::int AS seen, (SELECT count(*) FROM told)::int AS told,
       ARRAY(SELECT id FROM theirs) AS theirs
"""
# A listed text that is not a number is stored as typed, with an index of its own.
SKIPPED = f"""
WITH looked_at AS MATERIALIZED (
    SELECT ctid AS place, id, recipient FROM campaign_skipped
     WHERE organization_id = $1 AND reason = '{skipped.NO_NUMBER}' AND id > $2 ORDER BY id LIMIT $3
), gone AS (
    DELETE FROM campaign_skipped
     WHERE ctid = ANY (ARRAY(SELECT place FROM looked_at WHERE {naming.typed_in("recipient", "$4")})) RETURNING 1
)
SELECT (SELECT id FROM looked_at ORDER BY id DESC LIMIT 1) AS last, (SELECT count(*) FROM gone)::int AS gone,
       0 AS seen, 0 AS told, NULL AS theirs
"""
# Responses to API requests are stored for replay, and may contain a contact's name and number. A request that is
# repeated after its person was erased is executed again.
ANSWERED = f"""
WITH looked_at AS MATERIALIZED (
    SELECT key_hash, body FROM idempotency WHERE organization_id = $1 AND key_hash > $2 ORDER BY key_hash LIMIT $3
), gone AS (
    DELETE FROM idempotency
     WHERE organization_id = $1
       AND key_hash = ANY (ARRAY(SELECT key_hash FROM looked_at WHERE {naming.quoted_in("body", "$4")}))
    RETURNING 1
)
SELECT (SELECT key_hash FROM looked_at ORDER BY key_hash DESC LIMIT 1) AS last,
       (SELECT count(*) FROM gone)::int AS gone, 0 AS seen, 0 AS told, NULL AS theirs
"""
# What a supplier delivered contains the raw text. Parts have no index by message, but they arrive within a day of each
# other, and their ids contain the time.
PARTS = """
WITH gone AS (
    UPDATE inbound_messages SET body = '', raw = '' WHERE id >= $2 AND id < $3 AND message_id = ANY ($1) AND raw <> ''
    RETURNING 1
)
SELECT count(*)::int FROM gone
"""
# The person may be in any file, and files can be requested again. Changes to a list go on: their files name nobody.
EXPORTS = """
WITH gone AS (
    UPDATE exports SET state = 'erased', finished_at = coalesce(finished_at, now()), lease_until = NULL
     WHERE organization_id = $1 AND state IN ('running', 'finished') AND kind NOT IN ('cancel', 'tag') RETURNING 1
)
SELECT count(*)::int FROM gone
"""
# A list may have been searched for the person before it was exported or changed. A change that is running goes on.
SEARCHED = """
UPDATE exports SET wanted = (wanted::jsonb #- '{filters,recipient}' #- '{filters,text}' #- '{filters,object}')::text
 WHERE organization_id = $1 AND state <> 'running' AND kind IN ('messages', 'contacts', 'audit', 'cancel', 'tag')
   AND strpos(wanted, '\\u0000') = 0
"""
# A piece holds a thousand rows, so only a few are deleted at once.
PIECES = """
DELETE FROM export_chunks WHERE (organization_id, export_id, number) IN (
    SELECT c.organization_id, c.export_id, c.number
      FROM exports e CROSS JOIN LATERAL (
           SELECT organization_id, export_id, number FROM export_chunks
            WHERE organization_id = e.organization_id AND export_id = e.id LIMIT $2) c
     WHERE e.organization_id = $1 AND e.state = 'erased' LIMIT $2)
"""
THREADS = """
WITH gone AS (DELETE FROM inbox_threads WHERE organization_id = $1 AND peer = ANY ($2) RETURNING 1)
SELECT count(*)::int FROM gone
"""
OPT_OUTS = """
SELECT count(*)::int FROM opt_outs
 WHERE organization_id = $1 AND person IN (SELECT person_of(one) FROM unnest($2::text[]) AS item (one))
"""
WHATSAPP = f"""
WITH theirs AS MATERIALIZED (
    SELECT id, direction FROM whatsapp_messages
     WHERE organization_id = $1 AND recipient = ANY ($2) AND {naming.stored_under("recipient", 2)}
), gone AS (
    UPDATE whatsapp_messages SET content = NULL
     WHERE organization_id = $1 AND content IS NOT NULL AND id = ANY (ARRAY(SELECT id FROM theirs))
    RETURNING id
), told AS (
    UPDATE events SET data = jsonb_set(data::jsonb, '{{message,text}}', 'null')::text
     WHERE organization_id = $1 AND kind = 'message.received' AND data LIKE '%"text":"%'
       AND message_id = ANY (ARRAY(SELECT id FROM theirs WHERE direction = 'inbound'))
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone)::int AS gone, (SELECT count(*) FROM told)::int AS told,
       (SELECT count(*) FROM theirs)::int AS seen, ARRAY(SELECT id FROM theirs) AS theirs
"""


async def erase(conn: Connection, actor: Actor, *, address: str) -> ErasureReceipt:
    """Erase the data held about a person, under all names; `address`: E.164, or a user id. `conn` plans by key from
    then on.

    A message that waits is withdrawn first; one that a worker holds has no text if it returns to the queue, and ends
    as expired. No campaign writes to them anymore. The receipt is also in the audit log.
    """
    await plan_by_key(conn)
    organization_id, begun = actor.organization_id, clock.now()
    names = await naming.names(conn, actor, address)
    periods = await naming.periods(conn, actor, address)
    # Committed with the first step: repeating an interrupted erasure records it again.
    await audit.record(conn, actor, "person.erasing", object_id=phones.masked(address))
    row = await conn.fetchrow(CONTACTS, organization_id, names)
    assert row is not None
    erased = Counter(dict(row.items()))
    async with conn.transaction():
        pending = [one["id"] for one in await conn.fetch(CAMPAIGNS, organization_id, names)]
        erased["recipients_of_campaigns"] = await conn.fetchval(RECIPIENTS, organization_id, names, pending)
    erased["skipped_by_campaigns"] += (await _steps(conn, SKIPPED, actor, names))["gone"]
    sent = await _steps(conn, SENT, actor, *periods, also=_sent)
    received = await _steps(conn, RECEIVED, actor, *periods, also=_parts)
    erased["sms_sent"], erased["sms_received"] = sent["gone"], received["gone"]
    erased["receipts_as_written"], erased["answers_of_suppliers"] = sent["receipts"], sent["answers"]
    erased["parts_as_delivered"], erased["texts_in_events"] = received["parts"], received["told"]
    erased["conversations"] = await conn.fetchval(THREADS, organization_id, names)
    numbers = [one for one in names if one.startswith("+")]
    # In this order: the answer to a look-up that is being stored meanwhile is then forgotten, too.
    await asked.forget(conn, numbers)
    erased["networks"] = await learned.forget(conn, numbers)
    withdrawn = {
        "sms": sent["withdrawn"],
        "whatsapp_messages": await withdrawing.whatsapp_of(conn, actor, periods),
    }
    row = await conn.fetchrow(WHATSAPP, organization_id, *periods)
    assert row is not None
    erased["whatsapp_messages"] = row["gone"]
    erased["texts_in_events"] += row["told"]
    erased["answers_of_suppliers"] += await conn.fetchval(ANSWERS, organization_id, row["theirs"])
    # Answers are not filtered by time: a late one may repeat what the former owner of a number wrote.
    ever = sorted({*periods[0]})
    erased["answers_of_receivers"], erased["answers_in_lists"] = await answers.erase(conn, actor, ever)
    erased["stored_answers"] = (await _steps(conn, ANSWERED, actor, ever))["gone"]
    # Last, because exports requested from here on find nothing about the person.
    erased["files_exported"] = await conn.fetchval(EXPORTS, organization_id)
    await conn.execute(SEARCHED, organization_id)
    while (await conn.execute(PIECES, organization_id, PIECES_AT_ONCE)).endswith(f" {PIECES_AT_ONCE}"):
        pass
    kept = {
        "messages_without_text": sent["seen"] + received["seen"] + row["seen"],
        "opt_outs": await conn.fetchval(OPT_OUTS, organization_id, names),
        "linked_names": await people.linked(conn, organization_id, names),
    }
    receipt = ErasureReceipt(
        id=uuid7(),
        begun_at=clock.iso(begun),
        ended_at=clock.iso(clock.now()),
        names=len(ever),
        erased={kind: count for kind, count in erased.items() if count},
        withdrawn={kind: count for kind, count in withdrawn.items() if count},
        kept=kept,
    )
    await audit.record(conn, actor, "person.erased", object_id=phones.masked(address), after=receipt)
    return receipt


#: Erases what belongs to messages, given their ids; returns counts by kind.
Also = Callable[[Connection, Actor, list[UUID]], Awaitable[dict[str, int]]]


async def _steps(
    conn: Connection, sql: str, actor: Actor, *names: list[str] | list[UUID], also: Also | None = None
) -> Counter[str]:
    """`gone`, `seen` and `told` of all steps, and the counts returned by `also`. `names`: the parameters from $4 on."""
    done: Counter[str] = Counter()
    after = _FIRST
    while True:
        row = await conn.fetchrow(sql, actor.organization_id, after, STEP, *names)
        assert row is not None
        done.update({name: row[name] for name in ("gone", "seen", "told")})
        if also is not None and row["theirs"]:
            done.update(await also(conn, actor, row["theirs"]))
        if row["last"] is None:
            return done
        after = row["last"]


async def _parts(conn: Connection, actor: Actor, theirs: list[UUID]) -> dict[str, int]:
    since, until = time_of(min(theirs)) - AROUND, time_of(max(theirs)) + AROUND
    return {"parts": await conn.fetchval(PARTS, theirs, uuid7_floor(since), uuid7_floor(until))}


def first_day(ids: list[UUID]) -> date:
    """The first day (UTC) on which a receipt of these messages may have arrived."""
    return (time_of(min(ids)) - AROUND).astimezone(UTC).date()


async def _sent(conn: Connection, actor: Actor, theirs: list[UUID]) -> dict[str, int]:
    # First, because a worker would end a message without text as expired.
    withdrawn = await withdrawing.sms_of(conn, actor, theirs)
    gone = await conn.fetchval(TEXTS, actor.organization_id, theirs)
    told = await conn.fetchval(ANSWERS, actor.organization_id, theirs)
    rows = await conn.fetch(RECEIPTS, actor.organization_id, theirs, first_day(theirs))
    receipts = await timeline.erase_written(conn, [(row["fingerprint"], row["at"]) for row in rows])
    return {"withdrawn": withdrawn, "gone": gone, "answers": told, "receipts": receipts}
