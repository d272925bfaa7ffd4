"""What receivers of webhooks answered about a person, to show or to erase it: a response may repeat what it was sent.

Responses to failures and tests are kept as evidence, and the beginning of each unsuccessful one with its attempt. The
rule nobody may break: a response that is sealed is opened to search it, and goes if it cannot be opened.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

import asyncpg

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import SEALED, Item
from heliograph.webhooks.recording.at_rest import ANSWERS

#: How many responses, of some kilobytes each, and how many beginnings of some are scanned per step.
STEP, STEP_OF_BEGINNINGS = 1_000, 20_000
_FIRST, _LAST = UUID(int=0), UUID(int=2**128 - 1)

DAYS = "SELECT generate_series(current_date - 9, current_date + 1, interval '1 day')::date"
# $5: the person's names, without a plus.
_NAMED = """EXISTS (SELECT FROM unnest($5::text[]) AS known (name)
                     WHERE position(convert_to(known.name, 'UTF8') IN body) > 0
                        OR position(convert_to(known.name, 'UTF8') IN head) > 0)"""
_SEALED = (
    f"""'{SEALED}'::bytea IN (substring(head FROM 1 FOR {len(SEALED)}), substring(body FROM 1 FOR {len(SEALED)}))"""
)
NAMED = f"""
WITH looked_at AS MATERIALIZED (
    SELECT ctid AS place, tableoid AS part, event_id, head, body FROM webhook_attempt_evidence
     WHERE organization_id = $1 AND begun_on = $2 AND event_id > $3 ORDER BY event_id FETCH FIRST ($4) ROWS WITH TIES
), gone AS (
    DELETE FROM webhook_attempt_evidence
     WHERE organization_id = $1 AND begun_on = $2
       AND (tableoid, ctid) IN (SELECT part, place FROM looked_at WHERE {_NAMED})
    RETURNING 1
)
SELECT (SELECT event_id FROM looked_at ORDER BY event_id DESC LIMIT 1) AS last,
       (SELECT count(*) FROM gone)::int AS gone
"""
# The same rows.
SEALED_ONES = f"""
SELECT event_id, endpoint_id, started_at, head, body FROM webhook_attempt_evidence
 WHERE organization_id = $1 AND begun_on = $2 AND event_id > $3 AND event_id <= $4 AND {_SEALED}
"""
REMOVE = """
DELETE FROM webhook_attempt_evidence
 WHERE organization_id = $1 AND begun_on = $2 AND event_id = ANY ($3::uuid[])
   AND (event_id, endpoint_id, started_at) IN (SELECT * FROM unnest($3::uuid[], $4::uuid[], $5::timestamptz[]))
"""
_THEIRS = "EXISTS (SELECT FROM unnest($4::text[]) AS known (name) WHERE strpos(detail, known.name) > 0)"
# Attempts are found by their event alone: the index by endpoint would be read as a whole for each of them.
BEGINNINGS = f"""
WITH looked_at AS MATERIALIZED (
    SELECT event_id, detail FROM webhook_attempts
     WHERE organization_id = $1 AND event_id > $2 ORDER BY event_id FETCH FIRST ($3) ROWS WITH TIES
), gone AS (
    UPDATE webhook_attempts SET detail = ''
     WHERE organization_id = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM looked_at WHERE {_THEIRS})) AND {_THEIRS}
    RETURNING 1
)
SELECT (SELECT event_id FROM looked_at ORDER BY event_id DESC LIMIT 1) AS last,
       (SELECT count(*) FROM gone)::int AS gone
"""

# Where a step ends that begins after $3.
END = """
SELECT event_id FROM webhook_attempt_evidence
 WHERE organization_id = $1 AND begun_on = $2 AND event_id > $3 ORDER BY event_id OFFSET $4 LIMIT 1
"""
# Those that name the person, and the sealed ones, which may.
SHOWN = f"""
SELECT event_id, endpoint_id, started_at, url, head, body FROM webhook_attempt_evidence
 WHERE organization_id = $1 AND begun_on = $2 AND event_id > $3 AND event_id <= $4 AND ({_NAMED} OR {_SEALED})
 ORDER BY event_id, started_at
"""
# Each with the last row that was looked at; one row without an event if none names the person.
SHOWN_BEGINNINGS = f"""
WITH looked_at AS MATERIALIZED (
    SELECT event_id, endpoint_id, attempt, started_at, detail FROM webhook_attempts
     WHERE organization_id = $1 AND event_id > $2 ORDER BY event_id FETCH FIRST ($3) ROWS WITH TIES
), theirs AS (
    SELECT * FROM looked_at WHERE {_THEIRS}
)
SELECT scan.last, theirs.* FROM (SELECT max(event_id::text)::uuid AS last FROM looked_at) scan LEFT JOIN theirs ON true
 ORDER BY event_id, attempt
"""


async def held(conn: Connection, actor: Actor, names: list[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The responses that contain one of these names, each with its kind: those kept as evidence, and the beginnings of
    some. Not those that contain a longer number that begins or ends like one: it is somebody else's."""
    written = sorted({one.removeprefix("+") for one in names})
    names_one = re.compile("|".join(f"(?<![0-9]){re.escape(one)}(?![0-9])" for one in written)).search
    for (day,) in await conn.fetch(DAYS):
        after: UUID | None = _FIRST
        while after is not None:
            end = await conn.fetchval(END, actor.organization_id, day, after, STEP - 1)
            rows = await conn.fetch(SHOWN, actor.organization_id, day, after, end or _LAST, written)
            texts = iter(await text_keys.opened(conn, ANSWERS, _items(actor, rows)))
            for row, head, body in zip(rows, texts, texts, strict=False):
                if any(map(names_one, (head or "", body or ""))):
                    yield "answer_of_receiver", dict(row) | {"head": head, "body": body}
            after = end
    after = _FIRST
    while after is not None:
        rows = await conn.fetch(SHOWN_BEGINNINGS, actor.organization_id, after, STEP_OF_BEGINNINGS, written)
        for row in rows:
            after = row["last"]
            if row["event_id"] is not None and names_one(row["detail"]):
                yield "answer_in_list", {name: value for name, value in row.items() if name != "last"}


async def erase(conn: Connection, actor: Actor, names: list[str]) -> tuple[int, int]:
    """Erase the responses that contain one of these names; returns how many were kept as evidence, and how many
    beginnings of some were listed with attempts."""
    written = sorted({one.removeprefix("+") for one in names})
    kept = sum([await _evidence(conn, actor, day, written) for (day,) in await conn.fetch(DAYS)])
    return kept, await _beginnings(conn, actor, written)


async def _evidence(conn: Connection, actor: Actor, day: date, names: list[str]) -> int:
    gone, after = 0, _FIRST
    while True:
        row = await conn.fetchrow(NAMED, actor.organization_id, day, after, STEP, names)
        assert row is not None
        gone += row["gone"]
        if row["last"] is None:
            return gone
        gone += await _sealed(conn, actor, day, (after, row["last"]), names)
        after = row["last"]


async def _sealed(conn: Connection, actor: Actor, day: date, between: tuple[UUID, UUID], names: list[str]) -> int:
    rows = await conn.fetch(SEALED_ONES, actor.organization_id, day, *between)
    texts = iter(await text_keys.opened(conn, ANSWERS, _items(actor, rows)))
    theirs: list[tuple[UUID, UUID, datetime]] = []
    for row, head, body in zip(rows, texts, texts, strict=False):
        if any(text is None or any(name in text for name in names) for text in (head, body)):
            theirs.append((row["event_id"], row["endpoint_id"], row["started_at"]))
    if theirs:
        await conn.execute(REMOVE, actor.organization_id, day, *map(list, zip(*theirs, strict=True)))
    return len(theirs)


def _items(actor: Actor, rows: Sequence[asyncpg.Record]) -> list[Item]:
    return [
        Item(actor.organization_id, row["event_id"], row[part].decode("latin-1"))
        for row in rows
        for part in ("head", "body")
    ]


async def _beginnings(conn: Connection, actor: Actor, names: list[str]) -> int:
    gone, after = 0, _FIRST
    while True:
        row = await conn.fetchrow(BEGINNINGS, actor.organization_id, after, STEP_OF_BEGINNINGS, names)
        assert row is not None
        if row["last"] is None:
            return gone
        gone, after = gone + row["gone"], row["last"]
