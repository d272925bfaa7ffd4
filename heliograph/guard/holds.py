"""The guard's findings, and the messages held because of them.

A hold covers a range for a while: fifteen minutes, and twice as long each time the range recurs within a day. Held
messages wait in a line of their own that no worker serves (`queue.leases.GUARDED`), until an operator releases or
withdraws them, or until they expire.

The rule nobody may break: the queue decides whether a message waits, `guard_held` only records why. So everything that
can be done with queued work, such as canceling it, can be done with held messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.guard.conversion import MOST
from heliograph.guard.rules import POLICY
from heliograph.queue.leases import GUARDED, UNROUTED


class Hold(msgspec.Struct, frozen=True):
    """A range that was found suspicious."""

    id: UUID
    organization_id: UUID
    organization: str
    #: A prefix of numbers, a country's ISO code, a complete number, or a class of messages.
    range: str
    kind: str
    #: Names of the rules whose points added up.
    rules: list[str]
    score: int
    #: The organization's policy when it began, and the one that applies now.
    policy: str
    policy_now: str
    begun_at: datetime
    until: datetime
    #: When an operator released it; its range is then left alone for a day.
    released_at: datetime | None
    #: Whether the policy applies to messages to it now. If they are only noted, they go out.
    stands: bool
    #: Number of messages that met it, and of those that are waiting now.
    met: int
    waiting: int


# One that begins later is from before the clock was set back, and would last until that time comes again.
_STANDS = "h.until > now() AND h.begun_at <= now() AND h.released_at IS NULL"
STANDING = f"SELECT organization_id, range, id FROM guard_holds h WHERE {_STANDS}"


async def standing(conn: Connection) -> list[tuple[UUID, str, UUID]]:
    """All current holds: (organization, range, id)."""
    return [(row["organization_id"], row["range"], row["id"]) for row in await conn.fetch(STANDING)]


REFUSING = f"""
SELECT h.organization_id, h.range, h.until, {POLICY} AS policy
  FROM guard_holds h JOIN organizations o ON o.id = h.organization_id
  LEFT JOIN guard_settings s ON s.organization_id = h.organization_id
 WHERE {_STANDS} AND s.policy IN ('refuse', 'ask')
"""


async def refusing(conn: Connection) -> dict[UUID, dict[str, tuple[str, datetime]]]:
    """Ranges currently refused, by organization: the policy, and until when."""
    found: dict[UUID, dict[str, tuple[str, datetime]]] = {}
    for row in await conn.fetch(REFUSING):
        found.setdefault(row["organization_id"], {})[row["range"]] = (row["policy"], row["until"])
    return found


# An SQL condition: a number is a contact of an organization, in any spelling. LIMIT keeps it a look-up.
_IS_CONTACT = """
EXISTS (SELECT FROM unnest(spellings_of(person_of({phone}))) AS form (spelled) CROSS JOIN LATERAL (
               SELECT FROM contacts
                WHERE organization_id = {organization} AND phone = form.spelled AND mode = 'live' LIMIT 1) known)
"""
KNOWN = f"""
SELECT {_IS_CONTACT.format(organization="$1", phone="$2")}
    OR EXISTS (SELECT FROM guard_settings s CROSS JOIN unnest(s.safe) AS one
                WHERE s.organization_id = $1 AND starts_with(substr($2, 2), one))
"""


async def is_known(conn: Connection, organization_id: UUID, number: str) -> bool:
    """Whether the number is a contact of the organization, or in a range that is never held."""
    known: bool = await conn.fetchval(KNOWN, organization_id, number)
    return known


def ranges(to: str, traffic_class: str) -> tuple[str, str, str, str]:
    """The ranges whose hold applies to a message to this number (E.164): its block, the number, its country, the
    class."""
    return to[1:-4], to[1:], phones.country(to), traffic_class


OF_NUMBER = f"""
SELECT {POLICY} AS policy, h.until
  FROM guard_holds h JOIN organizations o ON o.id = h.organization_id
  LEFT JOIN guard_settings s ON s.organization_id = h.organization_id
 WHERE h.organization_id = $1 AND h.range = ANY ($2) AND {_STANDS}
   AND NOT {_IS_CONTACT.format(organization="$1", phone="$3")}
   AND NOT EXISTS (SELECT FROM unnest(s.safe) AS one WHERE starts_with(substr($3, 2), one))
 ORDER BY h.until DESC
"""


async def of_number(conn: Connection, organization_id: UUID, to: str, traffic_class: str) -> list[tuple[str, datetime]]:
    """(policy, until) of the holds that a message of this class to this number meets now."""
    rows = await conn.fetch(OF_NUMBER, organization_id, list(ranges(to, traffic_class)), to)
    return [(row["policy"], row["until"]) for row in rows]


CHALLENGED = """
INSERT INTO guard_challenges (organization_id, message_id, passed_at)
SELECT item.organization_id, item.message_id, now()
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, message_id)
    ON CONFLICT DO NOTHING
"""


async def challenged(conn: Connection, passed: Sequence[tuple[UUID, UUID]]) -> None:
    """Record messages (organization, id) that are about to be accepted and whose recipients were challenged: under the
    policy `ask` they are not held."""
    await conn.execute(CHALLENGED, *(list(column) for column in zip(*passed, strict=True)))


# Some rows become visible after later ones: a few seconds are read again, which is harmless. The newest, as many as
# there can be messages to which they belong: a reader that took the oldest ones would never catch up. Those of times to
# come are from before the clock was set back.
CONVERTED = """
SELECT * FROM (
    SELECT organization_id, recipient, converted_at FROM guard_conversions
     WHERE converted_at > coalesce($1, now() - interval '1 hour') - interval '5 seconds'
       AND converted_at < now() + interval '5 seconds' AND mode = 'live'
     ORDER BY converted_at DESC LIMIT $2) newest
 ORDER BY converted_at
"""


async def converted(conn: Connection, *, since: datetime | None, limit: int = MOST) -> list[tuple[UUID, str, datetime]]:
    """The latest live messages that converted: (organization, E.164, when), in chronological order."""
    rows = await conn.fetch(CONVERTED, since, limit)
    return [(row["organization_id"], row["recipient"], row["converted_at"]) for row in rows]


# A released range is left alone for a day, a safe one always. A range that was held before is held for longer. A second
# worker finds the first one's hold, or creates another with the same content.
BEGIN = f"""
INSERT INTO guard_holds (organization_id, id, range, kind, rules, score, policy, begun_at, until)
SELECT item.organization_id, item.id, item.range, item.kind, string_to_array(item.rules, ' '), item.score, {POLICY},
       now(), now() + least(interval '12 hours',
                            CASE item.kind WHEN 'country' THEN interval '30 minutes' ELSE interval '15 minutes' END
                            * power(2, least(earlier.count, 10)))
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::smallint[])
       AS item (organization_id, id, range, kind, rules, score)
  JOIN organizations o ON o.id = item.organization_id
  LEFT JOIN guard_settings s ON s.organization_id = item.organization_id
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE h.begun_at <= now()) AS count,
              coalesce(bool_or(h.released_at IS NOT NULL OR {_STANDS}), false) AS is_known
         FROM guard_holds h
        WHERE h.organization_id = item.organization_id AND h.range = item.range
          AND h.begun_at > now() - interval '1 day') earlier
 WHERE NOT earlier.is_known AND NOT EXISTS (SELECT FROM unnest(s.safe) AS one WHERE starts_with(item.range, one))
RETURNING organization_id, range, id
"""


class Found(msgspec.Struct, frozen=True):
    """A range to hold."""

    organization_id: UUID
    range: str
    kind: str
    rules: tuple[str, ...]
    score: int


async def begin(conn: Connection, found: Sequence[Found]) -> dict[tuple[UUID, str], UUID]:
    """Hold ranges; returns those that are held from now on. Runs in the caller's transaction."""
    rows = await conn.fetch(
        BEGIN,
        [one.organization_id for one in found],
        [uuid7() for _ in found],
        [one.range for one in found],
        [one.kind for one in found],
        [" ".join(one.rules) for one in found],
        [one.score for one in found],
    )
    return {(row["organization_id"], row["range"]): row["id"] for row in rows}


# Contacts of the organization, safe ranges, challenged people (`ask`), and messages that were held and released before
# pass. If holds are only recorded (`monitor`), the message is released as it is recorded. A hold whose transaction was
# rolled back has no effect, nor has one that was released after the worker read it: nobody would release the message.
# The hold is locked, so that a release at the same moment waits, and sees the message. `released_at` is written so that
# no index matches: on a table that the planner believes to be empty, all holds would be read for each list of messages.
MEET = f"""
INSERT INTO guard_held (organization_id, message_id, hold_id, held_at, released_at)
SELECT item.organization_id, item.message_id, item.hold_id, now(), CASE WHEN {POLICY} = 'monitor' THEN now() END
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[]) AS item (organization_id, message_id, phone, hold_id)
  JOIN guard_holds h ON h.organization_id = item.organization_id AND h.id = item.hold_id
  JOIN organizations o ON o.id = item.organization_id
  LEFT JOIN guard_settings s ON s.organization_id = item.organization_id
 WHERE coalesce(h.released_at, 'infinity') = 'infinity'
   AND NOT {_IS_CONTACT.format(organization="item.organization_id", phone="item.phone")}
   AND NOT EXISTS (SELECT FROM unnest(s.safe) AS one WHERE starts_with(substr(item.phone, 2), one))
   AND NOT (s.policy IS NOT DISTINCT FROM 'ask' AND EXISTS (
            SELECT FROM guard_challenges p
             WHERE p.organization_id = item.organization_id AND p.message_id = item.message_id))
   FOR SHARE OF h
    ON CONFLICT DO NOTHING
RETURNING message_id, released_at IS NULL AS is_held
"""


async def meet(conn: Connection, met: Sequence[tuple[UUID, UUID, str, UUID]]) -> set[UUID]:
    """Handle messages that are about to be sent to a held range: (organization, message, E.164, hold). Records why, and
    returns those to be held. Runs in the caller's transaction, which puts them into the line GUARDED."""
    rows = await conn.fetch(MEET, *(list(column) for column in zip(*met, strict=True)))
    return {row["message_id"] for row in rows if row["is_held"]}


# For each list of suspected numbers, how many are contacts.
ACQUAINTED = f"""
SELECT item.n, count(*) AS known
  FROM unnest($1::int[], $2::uuid[], $3::text[]) AS item (n, organization_id, phone)
 WHERE {_IS_CONTACT.format(organization="item.organization_id", phone="item.phone")}
 GROUP BY item.n
"""


async def acquainted(conn: Connection, suspected: Sequence[tuple[UUID, Sequence[str]]]) -> list[bool]:
    """For each list of suspected numbers (organization, E.164), whether at least half of them are contacts of the
    organization: then it is writing to its own customers."""
    rows = await conn.fetch(
        ACQUAINTED,
        [n for n, (_, numbers) in enumerate(suspected) for _ in numbers],
        [organization_id for organization_id, numbers in suspected for _ in numbers],
        [number for _, numbers in suspected for number in numbers],
    )
    known = {row["n"]: row["known"] for row in rows}
    return [known.get(n, 0) * 2 >= len(numbers) for n, (_, numbers) in enumerate(suspected)]


USED_TO = """
SELECT coalesce(sum(count), 0) >= $3 FROM traffic
 WHERE organization_id = $1 AND channel = 'sms' AND mode = 'live' AND country = $2 AND count > 0
   AND hour < date_trunc('hour', now(), 'UTC')
"""
#: Number of messages above which, before this hour, a country is not new.
FEW = 20


async def used_to(conn: Connection, organization_id: UUID, country: str) -> bool:
    """Whether the organization has sent more than a few messages to this country before this hour."""
    known: bool = await conn.fetchval(USED_TO, organization_id, country, FEW)
    return known


# The median of the same hour on previous days, if there are any. An announced event allows ten times as many.
USUAL = """
SELECT item.organization_id, item.country,
       coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY past.count), 0) / 6
       * CASE WHEN max(s.event_until) > now() THEN 10 ELSE 1 END AS messages
  FROM unnest($1::uuid[], $2::text[]) AS item (organization_id, country)
  JOIN organizations o ON o.id = item.organization_id
  LEFT JOIN guard_settings s ON s.organization_id = item.organization_id
  LEFT JOIN LATERAL (
       SELECT day.hour, coalesce(sum(t.count), 0) AS count
         FROM (SELECT date_trunc('hour', now(), 'UTC') - n * interval '1 day' AS hour FROM generate_series(1, 28) n) day
         LEFT JOIN traffic t ON t.organization_id = item.organization_id AND t.hour = day.hour AND t.channel = 'sms'
               AND t.mode = 'live' AND item.country IN ('', t.country) AND t.count > 0
        WHERE day.hour >= o.created_at
        GROUP BY day.hour) past ON true
 GROUP BY item.organization_id, item.country
"""


async def usual(conn: Connection, wanted: Sequence[tuple[UUID, str]]) -> list[tuple[UUID, str, float]]:
    """For organizations and countries ("": all), the usual number of messages in ten minutes of this hour."""
    rows = await conn.fetch(USUAL, *(list(column) for column in zip(*wanted, strict=True)))
    return [(row["organization_id"], row["country"], row["messages"]) for row in rows]


LIST = f"""
SELECT h.id, h.organization_id, o.name AS organization, h.range, h.kind, h.rules, h.score, h.policy,
       {POLICY} AS policy_now, h.begun_at, h.until, h.released_at, {_STANDS} AS stands, met.total::int AS met,
       met.waiting::int AS waiting
  FROM guard_holds h JOIN organizations o ON o.id = h.organization_id
  LEFT JOIN guard_settings s ON s.organization_id = h.organization_id
 CROSS JOIN LATERAL (
       SELECT count(*) AS total, count(*) FILTER (
                WHERE d.released_at IS NULL
                  AND EXISTS (SELECT FROM queue q WHERE q.id = d.message_id AND q.line = $2)) AS waiting
         FROM guard_held d WHERE d.organization_id = h.organization_id AND d.hold_id = h.id) met
 WHERE ($1::uuid IS NULL OR h.organization_id = $1) AND ($4::uuid IS NULL OR h.id = $4)
 ORDER BY h.id DESC LIMIT $3
"""


async def list_all(
    conn: Connection, *, organization_id: UUID | None = None, id: UUID | None = None, limit: int = 200
) -> list[Hold]:
    """Holds, newest first; including those that have ended, for as long as they are kept."""
    return [Hold(**row) for row in await conn.fetch(LIST, organization_id, GUARDED, limit, id)]


# Counted only up to the largest number that is shown.
HELD = f"""
SELECT count(*)::int FROM (
       SELECT FROM guard_held d
        WHERE d.organization_id = $1 AND d.released_at IS NULL
          AND EXISTS (SELECT FROM queue q WHERE q.id = d.message_id AND q.line = '{GUARDED}') LIMIT $2) one
"""
#: Maximum number of messages counted.
MANY = 1000


async def held(conn: Connection, organization_id: UUID) -> int:
    """How many of the organization's messages wait for the operator; MANY means that many or more."""
    count: int = await conn.fetchval(HELD, organization_id, MANY)
    return count


WAITING = """
SELECT d.organization_id, d.message_id FROM guard_held d
 WHERE d.organization_id = $1 AND d.hold_id = $2 AND d.released_at IS NULL
   AND EXISTS (SELECT FROM queue q WHERE q.id = d.message_id AND q.line = $3)
 ORDER BY d.message_id LIMIT $4
"""


async def waiting(conn: Connection, one: Hold, *, limit: int = 1000) -> list[UUID]:
    """Ids of the messages held by it, oldest first."""
    rows = await conn.fetch(WAITING, one.organization_id, one.id, GUARDED, limit)
    return [row["message_id"] for row in rows]


# A statement of its own, which waits for workers that are putting messages under the hold: the next one sees those.
END = "UPDATE guard_holds SET released_at = now() WHERE organization_id = $1 AND id = $2 AND released_at IS NULL"
RELEASE = """
WITH held AS MATERIALIZED (
    SELECT ctid AS place FROM guard_held WHERE organization_id = $1 AND hold_id = $2 AND released_at IS NULL
     LIMIT $5 FOR UPDATE
), let_go AS (
    UPDATE guard_held SET released_at = now() WHERE ctid = ANY (ARRAY(SELECT place FROM held)) RETURNING message_id
), queued AS (
    UPDATE queue SET line = $4, due_at = now(), since = NULL
     WHERE id = ANY (ARRAY(SELECT message_id FROM let_go)) AND line IS NOT DISTINCT FROM $3 RETURNING 1
)
SELECT (SELECT count(*) FROM let_go)::int AS released, (SELECT count(*) FROM queued)::int AS queued
"""
#: Messages released per transaction: a million at once took longer than a statement may.
BATCH = 10_000


async def release(conn: Connection, id: UUID, *, by: Principal = SYSTEM) -> tuple[Hold, int]:
    """End a hold, and release its messages, in steps; its range is left alone for a day.

    Returns it, and how many messages were released. If it is interrupted, it can be repeated. Raises NotFound.
    """
    one = await get(conn, id)
    queued, released = 0, BATCH
    while released == BATCH:
        async with conn.transaction():
            await conn.execute(END, one.organization_id, one.id)
            row = await conn.fetchrow(RELEASE, one.organization_id, one.id, GUARDED, UNROUTED, BATCH)
            assert row is not None
            released = row["released"]
            queued += row["queued"]
            await audit.record(
                conn,
                by,
                "guard.released",
                object_id=one.id,
                name=one.range if one.kind != "number" else "",
                organization_id=one.organization_id,
                after={"messages": row["queued"]},
            )
    return (await list_all(conn, id=id))[0], queued


async def get(conn: Connection, id: UUID) -> Hold:
    """One hold. Raises NotFound."""
    found = await list_all(conn, id=id, limit=1)
    if not found:
        raise NotFound("There is no such hold.", resource="hold", id=str(id))
    return found[0]
