"""Finds messages of all organizations by number, reference or request id.

There is no index for this: every message would pay for it when it is accepted (docs/decisions/0017). The traffic
roll-ups know which organizations sent how many messages in which hour and to which country, so a search scans the
messages of those organizations only, by their keys, over a period that contains about LOOK of them.

The rule nobody may break: a search is bounded, and says how far it got.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.database import bounded_scan, clock
from heliograph.base.database.bounded_scan import AHEAD, LOOK, SLACK
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of, uuid7_floor
from heliograph.sending.listing import MessagePage, shown_status
from heliograph.sms.messages import SENDING
from heliograph.whatsapp.messages import QUEUED

HOUR = timedelta(hours=1)
_FIRST = UUID(int=0)
#: Rows of the roll-ups read per search, unless a single hour has more.
ROWS = 20_000
#: Maximum organizations listed that know a number.
KNOWING = 20


class MessageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages; None matches any. One of the first three is given."""

    #: E.164 with `+`; found in any spelling.
    recipient: str | None = None
    client_reference: str | None = None
    request_id: str | None = None
    #: "sms" or "whatsapp".
    channel: str | None = None


class Message(msgspec.Struct, frozen=True):
    """A message of any organization."""

    id: UUID
    organization_id: UUID
    organization: str
    channel: str
    mode: str
    #: The status for people, as in `overview.messages`.
    shown_status: str
    recipient: str
    client_reference: str | None
    accepted_at: datetime


class OrganizationWithNumber(msgspec.Struct, frozen=True):
    """An organization that knows a number."""

    id: UUID
    name: str


class Hour(msgspec.Struct, frozen=True):
    """An hour's traffic of organizations that sent something to the country: which, and about how many messages."""

    begins: datetime
    organizations: list[UUID]
    count: int


class Counted(msgspec.Struct, frozen=True):
    """What the roll-ups say about the time before a given id. `hours`: newest first, each complete."""

    hours: list[Hour]
    #: The earliest hour that was read; None: there is nothing before it.
    since: datetime | None = None
    #: Organizations with more unfolded deltas than could be read: they may have sent at any time.
    behind: list[UUID] = []


# Hours are read completely: the newest ones that together have about this many rows, at least down to one that begins
# before the search's end, so that each search gets further than the previous one. The last seconds are only in the
# deltas; if there are more of these than can be read, all organizations that have some are listed instead.
HOURS = """
WITH RECURSIVE behind AS (
    (SELECT organization_id FROM traffic_deltas
      WHERE EXISTS (SELECT FROM traffic_deltas OFFSET $5) ORDER BY organization_id LIMIT 1)
    UNION ALL
    SELECT following.organization_id FROM behind CROSS JOIN LATERAL (
           SELECT organization_id FROM traffic_deltas
            WHERE organization_id > behind.organization_id ORDER BY organization_id LIMIT 1) following
), since AS MATERIALIZED (
    SELECT least(below.hour, past.hour + interval '1 hour') AS hour
      FROM (SELECT hour FROM traffic WHERE hour < $1 ORDER BY hour DESC OFFSET $5 LIMIT 1) past
           CROSS JOIN (SELECT hour FROM traffic WHERE hour < $2 ORDER BY hour DESC LIMIT 1) below
     WHERE EXISTS (SELECT FROM traffic WHERE hour < least(below.hour, past.hour + interval '1 hour'))
)
SELECT true AS is_first, (SELECT hour FROM since) AS hour,
       ARRAY(SELECT organization_id FROM behind) AS organizations, 0::bigint AS count
UNION ALL
SELECT false, hour, coalesce(array_agg(organization_id) FILTER (WHERE fits), '{}'),
       coalesce(sum(count) FILTER (WHERE fits), 0)::bigint
  FROM (SELECT hour, organization_id, sum(count) AS count,
               bool_or(($3::text IS NULL OR country = $3) AND ($4::text IS NULL OR channel = $4)) AS fits
          FROM (SELECT hour, organization_id, channel, country, count FROM traffic
                 WHERE hour < $1 AND hour >= coalesce((SELECT hour FROM since), '-infinity')
                UNION ALL
                SELECT hour, organization_id, channel, country, count
                  FROM (SELECT * FROM traffic_deltas LIMIT $5) unfolded
                 WHERE refunds = 0 AND hour < $1
                   AND hour >= coalesce((SELECT hour FROM since), '-infinity')) counted
         GROUP BY hour, organization_id) sent
 GROUP BY hour ORDER BY is_first DESC, hour DESC
"""


def _scan(table: str, channel: str, under_way: str, direction: str) -> str:
    return bounded_scan.statement(
        f"{table} m",
        f"""id, organization_id, mode, status, {direction} AS direction, recipient, client_reference, request_id,
            accepted_at""",
        fits="""($6::text[] IS NULL OR recipient = ANY ($6)) AND ($7::text IS NULL OR client_reference = $7)
            AND ($8::text IS NULL OR request_id = $8)""",
        where=f"($9::text IS NULL OR $9 = '{channel}')",
        whose="organization_id = o.id",
        returned=f"""id, looked_at.organization_id, o.name AS organization, '{channel}' AS channel, mode,
            CASE WHEN direction = 'inbound' THEN 'received'
                 ELSE {shown_status("looked_at", under_way)} END AS shown_status,
            recipient, client_reference, accepted_at""",
    )


# Each organization's messages by key, from the newest backward.
SCAN = f"""
SELECT found.* FROM organizations o CROSS JOIN LATERAL (
    ({_scan("messages", "sms", SENDING, "'outbound'")})
    UNION ALL ({_scan("whatsapp_messages", "whatsapp", QUEUED, "direction")})) found
 WHERE o.id = ANY ($1)
"""


async def search(
    conn: Connection,
    wanted: MessageQuery,
    *,
    after: UUID | None = None,
    limit: int = 50,
    most: int = LOOK,
    rows: int = ROWS,
) -> MessagePage[Message]:
    """Messages older than `after`, newest first, up to `limit` + 1, searched among about `most` messages and about
    `rows` rows of the roll-ups. `seen`: the id down to which it searched, if there is more beyond it."""
    now = clock.now()
    upper = after or uuid7_floor(now + SLACK)
    until = min(time_of(upper), now)
    country = None if wanted.recipient is None else phones.country(wanted.recipient)
    # A row's id may be slightly older than the hour in which its message is counted.
    first, *hours = await conn.fetch(HOURS, until + SLACK, until - AHEAD, country, wanted.channel, rows)
    counted = Counted(
        [Hour(row["hour"], row["organizations"], row["count"]) for row in hours], first["hour"], first["organizations"]
    )
    who, lower = window(counted, until=until, now=now, most=most)
    if not who:
        return MessagePage([], lower)
    scanned = await conn.fetch(
        SCAN,
        who,
        upper,
        lower or _FIRST,
        limit + 1,
        most,
        None if wanted.recipient is None else phones.spellings(wanted.recipient),
        wanted.client_reference,
        wanted.request_id,
        wanted.channel,
    )
    # An organization with more messages in that time than can be scanned ends the search for all, as with several lists
    # on one page.
    edges = [row["id"] for row in scanned if not row["fits"]]
    found = [_message(row) for row in scanned if row["fits"]]
    listed, seen = bounded_scan.merged([(found, max(edges, default=lower))], limit=limit)
    return MessagePage(listed, seen)


def window(counted: Counted, *, until: datetime, now: datetime, most: int) -> tuple[list[UUID], UUID | None]:
    """The organizations to scan, and the id to scan from (None: the first), so that there are about `most` messages
    before `until`, assuming an even distribution within an hour. The id is below `until`, and every organization that
    may have sent a message from there on is included."""
    who = dict.fromkeys(counted.behind)
    left, hours = float(most), counted.hours
    for at, one in enumerate(hours):
        who |= dict.fromkeys(one.organizations)
        whole = max(min(HOUR, now - one.begins), AHEAD)
        came = min(max(until - one.begins, timedelta()), whole)
        count = one.count * (came / whole)
        if count > left:
            begins = min(one.begins + max(came * (1 - left / count), AHEAD), until - AHEAD)
            # A message's id may be slightly newer than the hour before it, in which the message is counted.
            is_last = at + 1 == len(hours) and counted.since is None
            if begins >= one.begins + AHEAD or is_last:
                return list(who), uuid7_floor(begins)
        left = max(left - count, 0.0)
    return list(who), None if counted.since is None else uuid7_floor(counted.since + AHEAD)


# The indexes find contacts and opt-outs of one organization, so each is queried in turn.
KNOWING_IT = f"""
SELECT o.id, o.name FROM organizations o CROSS JOIN LATERAL (
    SELECT FROM (
        (SELECT FROM unnest(spellings_of(person_of($1))) AS form (spelled) CROSS JOIN LATERAL (
                SELECT FROM contacts WHERE organization_id = o.id AND phone = form.spelled LIMIT 1) contact LIMIT 1)
        UNION ALL
        (SELECT FROM opt_outs WHERE organization_id = o.id AND person = person_of($1) LIMIT 1)) known LIMIT 1) found
 ORDER BY o.id DESC LIMIT {KNOWING}
"""


async def knowing(conn: Connection, *, number: str) -> list[OrganizationWithNumber]:
    """Organizations that have a number, in any spelling, among their contacts or opt-outs, newest first, at most
    KNOWING."""
    return [OrganizationWithNumber(*row) for row in await conn.fetch(KNOWING_IT, number)]


def _message(row: asyncpg.Record) -> Message:
    return Message(**{name: row[name] for name in Message.__struct_fields__})
