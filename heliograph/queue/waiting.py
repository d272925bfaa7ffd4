"""How much work is waiting, by kind, line and organization: a bounded scan, however long the queue is.

A queue of a million rows takes a second to count, and it is longest precisely when somebody wants to see it. So lines
are found by skipping from one to the next, and a budget of LOOK rows is divided among them, each line read in sending
order: a long line hides no other, and the unused share of short lines goes to the long ones.

The rule nobody may break: an incomplete figure is marked as such (`is_more`, `is_whole`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.pool import RANGE_PLANS, Connection
from heliograph.base.ids import time_of
from heliograph.queue.backlog import HELD
from heliograph.queue.holds import Selection
from heliograph.queue.leases import places

#: Rows to count, divided among the places found; and places (line, lane, organization) per kind.
LOOK, PLACES = 10_000, 300
#: Rows to count for an open page: it refreshes every few seconds, and most of the cost is looking for expired work.
PAGE_LOOK = 4_000
#: Rows to read for a sample.
SAMPLED = 2_000


class Waiting(msgspec.Struct, frozen=True):
    """Work of one kind, line and organization."""

    kind: str
    #: Name of the supplier, digits of the number, URL of the endpoint, or `template` and its name where messages wait
    #: for one; None: no supplier has been chosen yet.
    line: str | None
    organization: str
    rows: int
    #: There are more rows than were counted; the following fields describe those counted.
    is_more: bool
    #: Of those: being processed by a worker; due later; held; tried before but with no worker now; past their validity
    #: and with no worker, so that they end once one takes them.
    leased: int
    later: int
    held: int
    retrying: int
    expired: int
    #: When the oldest was created; None if none of the scanned rows matches.
    oldest_at: datetime | None


class WaitingTotal(msgspec.Struct, frozen=True):
    """The sum of several lines. `who`: the organization, or the kind and line."""

    who: tuple[str, ...]
    lines: int = 0
    rows: int = 0
    is_more: bool = False
    leased: int = 0
    later: int = 0
    held: int = 0
    retrying: int = 0
    expired: int = 0
    oldest_at: datetime | None = None

    def __add__(self, one: Waiting) -> WaitingTotal:
        ages = [at for at in (self.oldest_at, one.oldest_at) if at is not None]
        return WaitingTotal(
            self.who,
            self.lines + 1,
            self.rows + one.rows,
            self.is_more or one.is_more,
            self.leased + one.leased,
            self.later + one.later,
            self.held + one.held,
            self.retrying + one.retrying,
            self.expired + one.expired,
            min(ages, default=None),
        )


class WaitingWork(msgspec.Struct, frozen=True):
    """Work by kind, line and organization, largest first."""

    waiting: list[Waiting]
    #: True if every line was found; otherwise there were more than PLACES of a kind.
    is_whole: bool


# With one organization ($3), its rows are looked for in each lane.
PLACE = "WITH RECURSIVE " + places(
    "unnest($1::text[])",
    fits="line >= coalesce($2::uuid, '00000000-0000-0000-0000-000000000000')"
    " AND line <= coalesce($2, 'ffffffff-ffff-ffff-ffff-ffffffffffff')",
    is_last="$3::uuid IS NOT NULL",
    goes_on="place.step <= $4",
)
# The unused share of short lines is divided among those that have more. Whether a message is past its validity is
# checked last, and only for rows that no worker has, as it takes a look-up. min(uuid) came with PostgreSQL 18.
SUMMARY = f"""
{PLACE}, share (rows) AS MATERIALIZED (
    SELECT greatest($6::bigint / greatest(count(*), 1), 1) FROM place
), sized AS MATERIALIZED (
    SELECT place.*, share.rows AS share, (SELECT count(*) FROM (
               SELECT FROM queue WHERE kind = place.kind AND line = place.line AND lane = place.lane
                  AND organization_id = coalesce($3, place.organization_id) LIMIT share.rows + 1) counted) AS rows
      FROM place CROSS JOIN share
), most (rows) AS MATERIALIZED (
    SELECT max(share) + greatest($6 - sum(least(rows, share)), 0)::bigint
                        / greatest(count(*) FILTER (WHERE rows > share), 1) FROM sized
), found AS (
    SELECT kind, line, coalesce($3, organization_id) AS organization_id, sum(looked.rows)::bigint AS rows,
           bool_or(looked.seen > most.rows) AS is_more, sum(leased)::bigint AS leased, sum(later)::bigint AS later,
           sum(held)::bigint AS held, sum(retrying)::bigint AS retrying, sum(expired)::bigint AS expired,
           min(oldest)::uuid AS oldest
      FROM sized CROSS JOIN most CROSS JOIN LATERAL (
           SELECT count(*) AS seen, count(*) FILTER (WHERE fits) AS rows,
                  count(*) FILTER (WHERE fits AND lease_until > now()) AS leased,
                  count(*) FILTER (WHERE fits AND due_at > now()) AS later,
                  count(*) FILTER (WHERE fits AND {HELD}) AS held,
                  count(*) FILTER (WHERE fits AND is_free AND greatest(tries, attempt) > 0) AS retrying,
                  count(*) FILTER (WHERE fits AND is_free AND {{expired}}) AS expired,
                  min(id::text COLLATE "C") FILTER (WHERE fits) AS oldest
             FROM (SELECT *, $7::uuid IS NULL OR id < $7 AS fits, (lease_until > now()) IS NOT TRUE AS is_free
                     FROM queue
                    WHERE kind = sized.kind AND line = sized.line AND lane = sized.lane
                      AND organization_id = coalesce($3, sized.organization_id)
                    ORDER BY coalesce(since, due_at) LIMIT most.rows + 1) queue
           ) looked
     WHERE looked.rows > 0 OR looked.seen > most.rows
     GROUP BY 1, 2, 3 ORDER BY rows DESC, kind, line, organization_id LIMIT $5
)
SELECT whole.is_whole, found.*, o.name AS organization,
       coalesce(s.name, n.display_phone_number, e.url, 'template ' || t.name) AS line_name
  FROM (SELECT coalesce(max(step), 0) <= $4 AS is_whole FROM place) whole
  LEFT JOIN found ON true
  LEFT JOIN organizations o ON o.id = found.organization_id
  LEFT JOIN suppliers s ON s.id = found.line
  LEFT JOIN whatsapp_numbers n ON n.organization_id = found.organization_id AND n.id = found.line
  LEFT JOIN webhook_endpoints e ON e.organization_id = found.organization_id AND e.id = found.line
  LEFT JOIN whatsapp_templates t ON t.organization_id = found.organization_id AND t.id = found.line
 ORDER BY found.rows DESC, found.kind, found.line, found.organization_id
"""


async def summary(
    conn: Connection,
    which: Selection,
    *,
    limit: int,
    expired: str | None = None,
    look: int = LOOK,
    places: int = PLACES,
) -> WaitingWork:
    """Queued work by kind, line and organization, largest first: at most `limit` entries. `expired`: an SQL condition
    for a row of `queue` that is past its validity, which costs four times as much as counting; None: do not check, and
    report none as expired."""
    rows = await conn.fetch(
        SUMMARY.format(expired=expired or "false"),
        list(which.kinds),
        which.line,
        which.organization_id,
        places,
        limit,
        look,
        which.before_id,
    )
    return WaitingWork([_waiting(row) for row in rows if row["kind"] is not None], rows[0]["is_whole"])


def _waiting(row: asyncpg.Record) -> Waiting:
    return Waiting(
        kind=row["kind"],
        line=row["line_name"],
        organization=row["organization"],
        rows=row["rows"],
        is_more=row["is_more"],
        leased=row["leased"],
        later=row["later"],
        held=row["held"],
        retrying=row["retrying"],
        expired=row["expired"],
        oldest_at=None if row["oldest"] is None else time_of(row["oldest"]),
    )


class SampledRow(msgspec.Struct, frozen=True):
    """A row of the queue, for operators to inspect."""

    id: UUID
    kind: str
    organization: str
    due_at: datetime
    tries: int
    #: Leased by a worker; not yet due; held by an operator. None of these: it is due, and no worker has taken it.
    is_leased: bool
    is_later: bool
    is_held: bool


# From the rows due first in the whole queue, and from the head of each line: thousands of messages that wait for the
# morning must not hide those that wait for a retry behind them.
SAMPLE = f"""
{PLACE}, share (rows) AS MATERIALIZED (
    SELECT greatest($6::bigint / greatest(count(*), 1), 3) FROM place
)
SELECT queue.id, queue.kind, o.name AS organization, queue.due_at, queue.tries,
       coalesce(queue.lease_until > now(), false) AS is_leased, queue.due_at > now() AS is_later, {HELD} AS is_held
  FROM (SELECT * FROM (
            (SELECT * FROM queue ORDER BY due_at LIMIT $6)
            UNION
            SELECT looked.* FROM place CROSS JOIN share CROSS JOIN LATERAL (
                SELECT * FROM queue
                 WHERE kind = place.kind AND line = place.line AND lane = place.lane
                   AND organization_id = coalesce($3, place.organization_id)
                 ORDER BY coalesce(since, due_at) LIMIT share.rows) looked) looked
         WHERE kind = ANY ($1) AND ($2::uuid IS NULL OR line = $2) AND ($3::uuid IS NULL OR organization_id = $3)
           AND ($7::uuid IS NULL OR id < $7) AND (NOT $8 OR tries > 0)
         ORDER BY due_at LIMIT $5) queue
       LEFT JOIN organizations o ON o.id = queue.organization_id
 ORDER BY queue.due_at
"""


async def sample(
    conn: Connection, which: Selection, *, only_tried: bool = False, limit: int = 20, look: int = SAMPLED
) -> list[SampledRow]:
    """The rows due first, at most `limit`; `only_tried`: only those waiting for a retry. Reads the first `look` rows of
    the whole queue, and as many again divided among its lines."""
    rows = await conn.fetch(
        SAMPLE,
        list(which.kinds),
        which.line,
        which.organization_id,
        PLACES,
        limit,
        look,
        which.before_id,
        only_tried,
    )
    return [SampledRow(**row) for row in rows]


#: Number of claims after which no supplier seems to accept a message: each time it is postponed for a second longer, so
#: they take three and a half minutes.
OFTEN = 20
# The age of the queue does not show them, since they become due again later each time. So they are looked for among the
# rows that are due next, or were tried a moment ago: a bounded number of them. Campaigns may wait.
DEFERRED = f"""
SELECT asked.kind, count(queue.id)
  FROM unnest($1::text[]) AS asked (kind) LEFT JOIN (
       SELECT * FROM queue WHERE due_at > now() - interval '5 seconds' ORDER BY due_at LIMIT $2) AS queue
       ON queue.kind = asked.kind AND lane = 0 AND claims >= {OFTEN} AND NOT ({HELD})
 GROUP BY asked.kind
"""


async def deferred(conn: Connection, *, look: int = LOOK) -> dict[str, int]:
    """How many messages of each kind are deferred again and again, not counting held ones, among the `look` rows that
    are due next."""
    async with conn.transaction():
        await conn.execute(RANGE_PLANS)
        rows = await conn.fetch(DEFERRED, ("sms", "whatsapp"), look)
    return {row["kind"]: row["count"] for row in rows}


COUNT = """
SELECT count(*) FROM queue WHERE kind = ANY ($1) AND ($2::uuid IS NULL OR line = $2)
   AND ($3::uuid IS NULL OR organization_id = $3) AND ($4::uuid IS NULL OR id < $4)
"""


async def count(conn: Connection, which: Selection) -> int:
    """Count all selected rows, for an operator about to withdraw them: this takes time proportional to the queue."""
    rows: int = await conn.fetchval(COUNT, list(which.kinds), which.line, which.organization_id, which.before_id)
    return rows


def summed(listed: Iterable[Waiting], who: Callable[[Waiting], tuple[str, ...]]) -> list[WaitingTotal]:
    """The sums of waiting work, largest first."""
    found: dict[tuple[str, ...], WaitingTotal] = {}
    for one in listed:
        found[who(one)] = found.get(who(one), WaitingTotal(who(one))) + one
    return sorted(found.values(), key=lambda one: (-one.rows, one.who))


def by_organization(listed: Iterable[Waiting]) -> list[WaitingTotal]:
    """The same sums, by organization."""
    return summed(listed, lambda one: (one.organization,))
