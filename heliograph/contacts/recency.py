"""When a contact was last written to, by which message, and last reached: stored in its row, and determined from
messages afterwards.

Accepting and dispatching a message do no work for this. A timer reads the messages that were accepted or sent in each
interval three times: after two minutes, when most have been delivered, after two hours, and after 74 hours, when no
more receipts are expected. So `written_at` is at most three minutes late, and `delivered_at` is equally late for a
receipt that came within two minutes, otherwise two hours, or three days.

The rule nobody may break: an interval is processed in the commit that records it. Only times at least an hour newer are
written: a contact who gets a message every minute costs one write per hour.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.pool import RANGE_PLANS, Connection
from heliograph.queue import leases

#: The timer, and its interval in seconds.
TIMER, EVERY = "recency", 60.0
#: How long after an interval its messages are read.
LAGS = (timedelta(minutes=2), timedelta(hours=2), timedelta(hours=74))
#: Length of an interval read at once: initial, minimum and maximum. It is halved or doubled, depending on its content.
STRETCH, LEAST, LONGEST = timedelta(seconds=60), timedelta(seconds=1), timedelta(days=1)
FEW, MANY = 2_000, 20_000
#: Maximum intervals per run and lag: the rest is left to the next run.
MOST = 500
#: For how long an interval is read again because a contact is locked. Twice, it is read again later in any case.
LEFT = timedelta(hours=1)

ENSURE = """
INSERT INTO contact_readings (lag, read_to) SELECT lag, now() - lag FROM unnest($1::interval[]) AS one (lag)
ON CONFLICT DO NOTHING
"""
TAKE = "SELECT read_to, now() - lag AS goal FROM contact_readings WHERE lag = $1 FOR UPDATE SKIP LOCKED"
DONE = "UPDATE contact_readings SET read_to = $2 WHERE lag = $1"
# The index on accepted_at finds the pages that were filled then; the bounds on ids exclude other months' partitions.
# A message is its person's, whichever of their spellings it was sent to and their contact has.
# Contacts are locked in the order of their numbers, as by all code that writes several. Each is looked up separately:
# with a join, a plan cached while there were few read all contacts of the installation.
# Messages sent in this time that were accepted before it, because they were scheduled or waited for the end of quiet
# hours, a supplier or their template, are found by their attempt, whose index on ended_at is of the same kind.
READ = """
WITH late AS MATERIALIZED (
    SELECT organization_id, message_id FROM attempts
     WHERE ended_at >= $1 AND ended_at < $2 AND state = 'accepted' AND message_id < $3
), said AS MATERIALIZED (
    SELECT organization_id, mode, recipient, max(coalesce(sent_at, delivered_at)) AS written_at,
           (array_agg(id ORDER BY coalesce(sent_at, delivered_at) DESC, id DESC))[1] AS written_id,
           max(delivered_at) AS delivered_at, count(*) AS messages
      FROM messages
     WHERE accepted_at >= $1 AND accepted_at < $2 AND id >= $3 AND id < $4
       AND coalesce(sent_at, delivered_at) IS NOT NULL
     GROUP BY organization_id, mode, recipient
    UNION ALL
    SELECT organization_id, mode, recipient, max(coalesce(sent_at, delivered_at)),
           (array_agg(id ORDER BY coalesce(sent_at, delivered_at) DESC, id DESC))[1], max(delivered_at), count(*)
      FROM whatsapp_messages
     WHERE accepted_at >= $1 AND accepted_at < $2 AND id >= $3 AND id < $4 AND direction = 'outbound'
       AND coalesce(sent_at, delivered_at) IS NOT NULL
     GROUP BY organization_id, mode, recipient
    UNION ALL
    SELECT late.organization_id, m.mode, m.recipient, max(m.at), (array_agg(late.message_id ORDER BY m.at DESC))[1],
           max(m.delivered_at), count(*)
      FROM late CROSS JOIN LATERAL (
           SELECT mode, recipient, coalesce(sent_at, delivered_at) AS at, delivered_at FROM messages
            WHERE organization_id = late.organization_id AND id = late.message_id
           UNION ALL
           SELECT mode, recipient, coalesce(sent_at, delivered_at), delivered_at FROM whatsapp_messages
            WHERE organization_id = late.organization_id AND id = late.message_id
           LIMIT 1) m
     WHERE m.at IS NOT NULL
     GROUP BY late.organization_id, m.mode, m.recipient
), heard AS (
    SELECT organization_id, mode, person_of(recipient) AS person, max(written_at) AS written_at,
           (array_agg(written_id ORDER BY written_at DESC, written_id DESC))[1] AS written_id,
           max(delivered_at) AS delivered_at
      FROM said GROUP BY organization_id, mode, person_of(recipient)
), held AS (
    SELECT c.place, heard.written_at, heard.delivered_at,
           CASE WHEN heard.written_at > coalesce(c.written_at, '-infinity') THEN heard.written_id END AS written_id
      FROM (SELECT heard.*, phone FROM heard CROSS JOIN LATERAL unnest(spellings_of(person)) AS item (phone)
             ORDER BY organization_id, phone, mode) heard CROSS JOIN LATERAL (
           SELECT ctid AS place, written_at FROM contacts
            WHERE organization_id = heard.organization_id AND phone = heard.phone AND mode = heard.mode
              AND (heard.written_at > coalesce(written_at, '-infinity') + interval '1 hour'
                   OR heard.delivered_at > coalesce(delivered_at, '-infinity') + interval '1 hour')
              FOR NO KEY UPDATE) c
)
SELECT coalesce((SELECT sum(messages) FROM said), 0)::bigint AS messages, array_agg(place) AS places,
       array_agg(written_at) AS written, array_agg(delivered_at) AS delivered, array_agg(written_id) AS ids
  FROM held
"""
# After waiting in vain for a contact that somebody keeps locked, as in an open session: others are locked meanwhile.
READ_FREE = READ.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
# A separate statement, which sees the contacts as they were locked: a locked row does not move.
WRITE = """
WITH noted AS (
    UPDATE contacts
       SET written_at = greatest(contacts.written_at, item.written_at),
           delivered_at = greatest(contacts.delivered_at, item.delivered_at)
      FROM unnest($1::tid[], $2::timestamptz[], $3::timestamptz[], $4::uuid[])
           AS item (place, written_at, delivered_at, written_id)
     WHERE contacts.ctid = item.place
    RETURNING organization_id, mode, id, item.written_id
)
INSERT INTO contact_last_messages (organization_id, mode, contact_id, message_id)
SELECT organization_id, mode, id, written_id FROM noted WHERE written_id IS NOT NULL
    ON CONFLICT (organization_id, mode, contact_id) DO UPDATE SET message_id = excluded.message_id
"""

LAST = """
SELECT contact_id, message_id FROM contact_last_messages
 WHERE organization_id = $1 AND mode = $2 AND contact_id = ANY ($3)
"""


async def last(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, UUID]:
    """The message that `written_at` refers to, by contact; it may have been deleted since."""
    rows = await conn.fetch(LAST, actor.organization_id, actor.mode, list(ids)) if ids else []
    return {row["contact_id"]: row["message_id"] for row in rows}


#: An SQL condition on a recipient `r` of organization $1: they are a contact of {mode}, in any spelling of a number,
#: who was written to after {after}.
WRITTEN = """EXISTS (
    SELECT FROM unnest(spellings_of(person_of(r.phone COLLATE "default"))) AS item (spelled) CROSS JOIN LATERAL (
           SELECT FROM contacts
            WHERE organization_id = $1 AND mode = {mode} AND phone = item.spelled AND written_at > {after}
            LIMIT 1) known)"""
AMONG = f"SELECT r.phone FROM unnest($2::text[]) AS r (phone) WHERE {WRITTEN.format(mode='$3', after='$4')}"


async def written(
    conn: Connection, organization_id: UUID, mode: str, phones: Collection[str], *, after: datetime
) -> set[str]:
    """Those of the numbers whose contacts, in any spelling, were written to after this time."""
    rows = await conn.fetch(AMONG, organization_id, list(phones), mode, after) if phones else []
    return {row["phone"] for row in rows}


#: Campaigns examined, newest first; and how long after its last message was handed over a campaign counts: longer than
#: until that is noted with its contacts.
MOST_CAMPAIGNS, NOTED = 50, timedelta(minutes=5)
# Campaigns that have staged messages of which some may still wait.
STAGED = """
(SELECT id, staged_to, started_at FROM campaigns
  WHERE organization_id = $1 AND mode = $2 AND id <> $3 AND status IN ('staging', 'running', 'paused')
    AND staged_to <> '' AND (drained_at IS NULL OR drained_at > now() - $4::interval) ORDER BY id DESC LIMIT $5)
UNION ALL
(SELECT id, staged_to, started_at FROM campaigns
  WHERE organization_id = $1 AND mode = $2 AND id <> $3 AND NOT forgotten AND status = 'completed'
    AND staged_to <> '' AND drained_at > now() - $4::interval ORDER BY id DESC LIMIT $5)
"""
# Whoever was written to since such a campaign began has got its message, or another one, whichever spelling of their
# number it lists. LIMIT keeps each look-up on its index, whatever the tables contain.
AWAITING = """
SELECT one.phone
  FROM unnest($3::text[]) AS one (phone) CROSS JOIN LATERAL (
       SELECT known.written_at FROM unnest(spellings_of(person_of(one.phone))) AS item (spelled) CROSS JOIN LATERAL (
              SELECT written_at FROM contacts
               WHERE organization_id = $1 AND mode = $2 AND phone = item.spelled LIMIT 1) known
        ORDER BY known.written_at DESC NULLS LAST LIMIT 1) c CROSS JOIN LATERAL (
       SELECT FROM unnest(spellings_of(person_of(one.phone))) AS item (spelled)
              CROSS JOIN unnest($4::uuid[], $5::text[], $6::timestamptz[]) AS other (id, staged_to, started_at)
              CROSS JOIN LATERAL (
              SELECT FROM campaign_recipients
               WHERE organization_id = $1 AND campaign_id = other.id AND phone = item.spelled COLLATE "C"
               LIMIT 1) theirs
        WHERE item.spelled COLLATE "C" <= other.staged_to AND (c.written_at >= other.started_at) IS NOT TRUE
          AND (SELECT id FROM campaign_skipped
                WHERE organization_id = $1 AND recipient = item.spelled AND campaign_id = other.id LIMIT 1) IS NULL
        LIMIT 1) waits
"""


# Not waited for longer than for the locks of accepting: the balance, for which sends wait, is locked by now.
TURN = """
SELECT pg_advisory_xact_lock(hashtextextended('campaigns of ' || $1::uuid, 0))
  FROM set_config('lock_timeout', '2s', true)
"""


async def take_turn(conn: Connection, organization_id: UUID) -> None:
    """Wait for other campaigns of the organization, of either channel, that are past this point, until they have
    committed what they stage: then `awaiting` knows it. Others wait until this transaction ends."""
    await conn.execute(TURN, organization_id)


async def awaiting(
    conn: Connection, organization_id: UUID, mode: str, phones: Collection[str], *, besides: UUID = UUID(int=0)
) -> set[str]:
    """Those of the numbers whose contacts are about to get a message of a campaign other than `besides`: it is staged,
    and waits, such as for the end of quiet hours, or has been handed over so recently that `written_at` does not say
    so."""
    staged = await conn.fetch(STAGED, organization_id, mode, besides, NOTED, MOST_CAMPAIGNS) if phones else []
    if not staged:
        return set()
    columns = (list(column) for column in zip(*staged, strict=True))
    return {row["phone"] for row in await conn.fetch(AWAITING, organization_id, mode, list(phones), *columns)}


async def read(conn: Connection) -> int:
    """Read the intervals that are due; returns how many contacts were updated. Each interval is a commit.

    Those in which a contact stays locked are read again the next time, if they are less than LEFT behind, and this run
    goes on.
    """
    await conn.execute(ENSURE, list(LAGS))
    noted = 0
    for lag in LAGS:
        stretch = STRETCH
        #: How far this run has got without locked contacts.
        beyond: datetime | None = None
        for _ in range(MOST):
            try:
                # What comes after a locked contact is read again with it: nobody waits for each interval.
                one = await _stretch(conn, lag, stretch, beyond, READ if beyond is None else READ_FREE)
            except asyncpg.LockNotAvailableError:
                one = await _stretch(conn, lag, stretch, beyond, READ_FREE)
            noted += one.written
            if one.is_last:
                break
            beyond = one.beyond
            if one.messages > MANY:
                stretch = max(stretch / 2, LEAST)
            elif one.messages < FEW:
                stretch = min(stretch * 2, LONGEST)
    return noted


class _Stretch(msgspec.Struct, frozen=True):
    """An interval that was read."""

    messages: int = 0
    #: Contacts.
    written: int = 0
    is_last: bool = True
    #: Its end, if the position stays where it, or one before it, begins.
    beyond: datetime | None = None


async def _stretch(
    conn: Connection, lag: timedelta, stretch: timedelta, beyond: datetime | None, statement: str
) -> _Stretch:
    """Read an interval, in a transaction of its own, by READ or READ_FREE."""
    async with conn.transaction():
        await conn.execute(RANGE_PLANS)
        await conn.execute(leases.PATIENCE)
        row = await conn.fetchrow(TAKE, lag)
        if row is None or row["read_to"] >= row["goal"]:
            if row is not None and row["read_to"] > row["goal"]:  # before the clock was set back
                await conn.execute(DONE, lag, row["goal"])
            return _Stretch()
        begin: datetime = max(row["read_to"], beyond or row["read_to"])
        end = min(begin + stretch, row["goal"])
        upper, lower = bounded_scan.bounds(None, date_from=begin, date_to=end)
        found = await conn.fetchrow(statement, begin, end, lower, upper)
        assert found is not None
        places = found["places"] or []
        if places:
            await conn.execute(WRITE, places, found["written"], found["delivered"], found["ids"])
        stays = (beyond is not None or statement == READ_FREE) and end > row["goal"] - LEFT
        if not stays:
            await conn.execute(DONE, lag, end)
        return _Stretch(found["messages"], len(places), end == row["goal"], end if stays else None)
