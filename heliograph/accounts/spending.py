"""Daily limits (UTC): live SMS segments of an organization, or of one of its API keys.

The counters are maintained where messages are accepted (`accept.sql`, `bulk.sql`), under the organization's turn, and
only if there is a limit. A daily limit counts accepted messages, whatever their outcome: canceling a message frees
nothing. That of a key includes the campaigns that the key created, and is handed on to the key that replaces it.

The rule nobody may break: a limit is never exceeded, however many processes accept at once.
"""

from __future__ import annotations

from datetime import timedelta
from math import ceil
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal

#: Stands for the whole organization in place of a key's id.
WHOLE = UUID(int=0)
#: The highest limit, in segments.
MOST = 10**12


class SpendLimitReached(Refusal):
    """This message would exceed the day's limit of segments. Counting starts again at midnight UTC."""

    code, status = "spend_limit_reached", 429


def reached(scope: str) -> SpendLimitReached:
    """The refusal. `scope`: "organization" or "key"."""
    now = clock.now()
    midnight = clock.midnight(now) + timedelta(days=1)
    refusal = SpendLimitReached(scope=scope, resetsAt=iso(midnight))
    # Rounded up: a client that obeys must not come back before midnight, only to be refused again.
    refusal.headers = {"retry-after": str(ceil((midnight - now).total_seconds()))}
    return refusal


class Limit(msgspec.Struct, frozen=True):
    """A daily limit, and how much of it is used."""

    #: None: the limit applies to the whole organization.
    key_id: UUID | None
    segments: int
    used: int
    #: Whether the operator set it; then only they can change it.
    by_operator: bool


#: SQL expression: what is used of a limit today, from the columns of its row; `{of}` names the table. The day may be
#: tomorrow if it has just begun for others; one further ahead is from before the clock was set back.
USED = "CASE WHEN {of}day - (now() AT TIME ZONE 'UTC')::date IN (0, 1) THEN {of}used ELSE 0 END"
LIST = f"""
SELECT key_id, segments, {USED.format(of="")} AS used, by_operator
  FROM spend_limits WHERE organization_id = $1 ORDER BY key_id
"""


async def limits(conn: Connection, organization_id: UUID) -> list[Limit]:
    """The organization's limits, that of the whole organization first."""
    return [
        Limit(None if row["key_id"] == WHOLE else row["key_id"], row["segments"], row["used"], row["by_operator"])
        for row in await conn.fetch(LIST, organization_id)
    ]


async def remaining(conn: Connection, organization_id: UUID, *, key_id: UUID | None = None) -> dict[str, int]:
    """Segments that may still be accepted today, for "organization" and for "key", where there is a limit."""
    return {
        "key" if one.key_id else "organization": max(0, one.segments - one.used)
        for one in await limits(conn, organization_id)
        if one.key_id in (None, key_id)
    }


async def check(conn: Connection, organization_id: UUID, *, key_id: UUID | None, segments: int) -> None:
    """Raises SpendLimitReached if a message of this many segments would exceed a limit now. Counts nothing."""
    found = await remaining(conn, organization_id, key_id=key_id)
    for scope in ("organization", "key"):
        if segments > found.get(scope, segments):
            raise reached(scope)


# Take the organization's turn first, as when messages are accepted.
TURN = "SELECT organization_id FROM quotas WHERE organization_id = $1 FOR UPDATE"
MINE = "SELECT id FROM api_keys WHERE organization_id = $1 AND id = $2"
# A new limit starts from the segments already accepted today, including deltas that are not folded yet: under the
# organization's turn nothing is missed. Moves of messages add and subtract equally.
SET = """
INSERT INTO spend_limits AS known (organization_id, key_id, segments, by_operator, day, used)
SELECT $1, $2::uuid, $3, $4, today.day,
       coalesce((SELECT sum(one.segments)
                   FROM (SELECT segments, key_id, campaign_id FROM usage_days
                          WHERE organization_id = $1 AND day = today.day AND channel = 'sms'
                         UNION ALL
                         SELECT segments, key_id, campaign_id FROM traffic_deltas
                          WHERE organization_id = $1 AND channel = 'sms' AND mode = 'live'
                            AND hour >= today.day::timestamp AT TIME ZONE 'UTC'
                            AND hour < (today.day + 1)::timestamp AT TIME ZONE 'UTC') one
                  WHERE $2::uuid = '00000000-0000-0000-0000-000000000000' OR one.key_id = $2
                     OR EXISTS (SELECT FROM campaigns
                                 WHERE organization_id = $1 AND id = one.campaign_id AND author_kind = 'key'
                                   AND author_id = $2)), 0)
  FROM (SELECT (now() AT TIME ZONE 'UTC')::date AS day) today
ON CONFLICT (organization_id, key_id) DO UPDATE SET segments = excluded.segments, by_operator = excluded.by_operator
"""
LIFT = "DELETE FROM spend_limits WHERE organization_id = $1 AND key_id = $2"
NOTE = """
UPDATE quotas SET is_limited = EXISTS (SELECT FROM spend_limits WHERE organization_id = $1) WHERE organization_id = $1
"""


async def limit(
    conn: Connection, organization_id: UUID, *, segments: int | None, key_id: UUID | None = None, by: Principal = SYSTEM
) -> list[Limit]:
    """Set the segments that may be accepted per day, for the organization or for one key; None lifts the limit.

    It takes effect with the commit, in every process. Actors of the organization can change its own limits, but not
    those set by the operator. Returns all limits. Raises Invalid, NotFound.
    """
    if segments is not None and not 1 <= segments <= MOST:
        raise Invalid(("segments", "range", "`segments` must be from 1 to 10^12"))
    async with conn.transaction():
        if await conn.fetchval(TURN, organization_id) is None:
            raise NotFound(resource="organization", id=str(organization_id))
        if key_id is not None and await conn.fetchval(MINE, organization_id, key_id) is None:
            raise NotFound(resource="api_key", id=str(key_id))
        which = key_id or WHOLE
        found = {one.key_id or WHOLE: one for one in await limits(conn, organization_id)}.get(which)
        before = None if found is None else found.segments
        by_operator = by.kind not in ("person", "key")
        if found is not None and found.by_operator and not by_operator:
            raise Invalid(("segments", "fixed", "the operator set this limit, and only they can change it"))
        if segments is None:
            await conn.execute(LIFT, organization_id, which)
        else:
            await conn.execute(SET, organization_id, which, segments, by_operator)
        await conn.execute(NOTE, organization_id)
        await _record(conn, by, organization_id, key_id, before=before, after=segments)
        return await limits(conn, organization_id)


HAND_ON = """
INSERT INTO spend_limits (organization_id, key_id, segments, by_operator, day, used)
SELECT organization_id, $3, segments, by_operator, day, used FROM spend_limits
 WHERE organization_id = $1 AND key_id = $2
RETURNING segments
"""


async def hand_on(conn: Connection, organization_id: UUID, *, key_id: UUID, to: UUID, by: Actor | Principal) -> None:
    """Give a key that replaces another one the same limit, including what has been used of it today. Runs in the
    transaction that creates the key."""
    await conn.fetchval(TURN, organization_id)
    segments = await conn.fetchval(HAND_ON, organization_id, key_id, to)
    if segments is not None:
        await _record(conn, by, organization_id, to, before=None, after=segments)


async def _record(
    conn: Connection,
    by: Actor | Principal,
    organization_id: UUID,
    key_id: UUID | None,
    *,
    before: int | None,
    after: int | None,
) -> None:
    await audit.record(
        conn,
        by,
        "spend_limit.changed",
        object_id=key_id or organization_id,
        organization_id=organization_id,
        before={"segments_a_day": before},
        after={"segments_a_day": after},
    )
