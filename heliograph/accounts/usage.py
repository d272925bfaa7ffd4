"""The usage list as its organization reads it: its messages, what changed the quota besides (`usage_ledger`), and sums
in place of messages that are gone.

The rule nobody may break: what is read here is never counted up; balances are the maintained rows of `quotas`. And at
every commit the quantities of `usage_entries` add up to what remains: a month's sums become valid in the very commit
that drops its messages.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.database.retention_rules import Counted
from heliograph.base.ids import uuid7_floor


class Entry(msgspec.Struct, frozen=True):
    """One row of `usage_entries`. `type`: usage, refund, adjustment, grant; `quantity`: messages, signed."""

    id: UUID
    type: str
    channel: str
    quantity: int
    balance_after: int
    segments: int | None
    message_id: UUID | None
    campaign_id: UUID | None
    reason: str | None
    created_at: datetime


class Found(msgspec.Struct, frozen=True):
    """Up to `limit` + 1 entries, newest first. `seen`: the id that the look ended at before it had found as many."""

    entries: list[Entry]
    seen: UUID | None


_COLUMNS = "id, type, channel, quantity, balance_after, segments, message_id, campaign_id, reason, created_at"
_MESSAGE = (
    "id, 'usage' AS type, 'sms' AS channel, -1::bigint AS quantity, balance_after, segments, id AS message_id,"
    " campaign_id, NULL::text AS reason, accepted_at AS created_at, mode"
)
# Test messages stand among the live ones, so the look at messages has a bound.
MESSAGES = bounded_scan.statement(
    "messages", _MESSAGE, fits="mode = 'live' AND created_at >= $6::timestamptz AND created_at < $7::timestamptz"
)
# By key alone. Ids are times, so the dates bound them too, with some slack; the exact bound is the row's own time.
OTHERS = f"""
SELECT {_COLUMNS} FROM (
    (SELECT {_COLUMNS} FROM usage_ledger
      WHERE organization_id = $1 AND id < $2 AND id >= $3 AND created_at >= $4 AND created_at < $5
      ORDER BY id DESC LIMIT $6)
    UNION ALL
    SELECT {_COLUMNS} FROM usage_sums
     WHERE organization_id = $1 AND id < $2 AND id >= $3 AND created_at >= $4 AND created_at < $5) other
 ORDER BY id DESC LIMIT $6
"""
_FIRST, _LAST = UUID(int=0), UUID(int=2**128 - 1)
_EARLIEST, _LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
#: A row's id may be made so much earlier or later than its time says: ids are of the process, made before the commit.
SLACK = timedelta(hours=1)


async def list_page(
    conn: Connection,
    actor: Actor,
    *,
    after: UUID | None = None,
    date_from: datetime | None = None,
    date_to: datetime | None = None,
    limit: int = 50,
    look: int = LOOK,
) -> Found:
    """Entries older than `after`, newest first: up to `limit` + 1, so that the caller knows whether there are more.

    `date_to` is exclusive. Looks at most at `look` messages; a look that ends there says in `seen` where the next one
    goes on, though it found fewer, or none.
    """
    since, until = max(date_from or _EARLIEST, _EARLIEST), min(date_to or _LATEST, _LATEST)
    upper, lower = bounded_scan.bounds(after, date_from=date_from, date_to=date_to)
    rows = await conn.fetch(MESSAGES, actor.organization_id, upper, lower, limit + 1, look, since, until)
    messages, seen = bounded_scan.judged(rows, limit=limit, look=look)
    # Where the look ended, the others end as well: older ones come behind the messages that were not looked at.
    others = await conn.fetch(
        OTHERS,
        actor.organization_id,
        after or _LAST if date_to is None else min(after or _LAST, uuid7_floor(until + SLACK)),
        seen or (_FIRST if date_from is None else uuid7_floor(since - SLACK)),
        since,
        until,
        limit + 1,
    )
    entries = [Entry(*(row[name] for name in Entry.__struct_fields__)) for row in (*messages, *others)]
    entries.sort(key=lambda entry: entry.id, reverse=True)
    return Found(entries[: limit + 1], seen)


class Paid(msgspec.Struct, frozen=True):
    """What a message did to the quota: it took one."""

    balance_after: int
    #: When it was given back; None: it was not.
    refunded_at: datetime | None


OF_MESSAGE = """
SELECT paid.balance_after, refund.created_at AS refunded_at
  FROM (SELECT balance_after FROM messages WHERE organization_id = $1 AND id = $2 AND mode = 'live' LIMIT 1) paid
       LEFT JOIN LATERAL (
       SELECT created_at FROM usage_ledger WHERE organization_id = $1 AND message_id = $2 AND type = 'refund'
        LIMIT 1) refund ON true
"""


async def of_message(conn: Connection, actor: Actor, *, id: UUID) -> Paid | None:
    """What an SMS cost; None: nothing, such as a test message, or there is none."""
    row = await conn.fetchrow(OF_MESSAGE, actor.organization_id, id)
    return None if row is None else Paid(*row)


# One more look at a partition that is about to go, by its key. It takes no new messages: its month is long over.
COUNT = """
WITH looked_at AS MATERIALIZED (
    SELECT organization_id, id, mode, segments, balance_after FROM {partition}
     WHERE (organization_id, id) > ($2, $3) ORDER BY organization_id, id LIMIT $4
), summed AS (
    INSERT INTO usage_months AS known (organization_id, month, source, messages, segments, balance_after)
    SELECT organization_id, $1::date, '{partition}', count(*), sum(segments),
           (array_agg(balance_after ORDER BY id DESC))[1]
      FROM looked_at WHERE mode = 'live' GROUP BY organization_id
    ON CONFLICT (organization_id, month, source) DO UPDATE
       SET messages = known.messages + excluded.messages, segments = known.segments + excluded.segments,
           balance_after = excluded.balance_after
)
SELECT (SELECT count(*) FROM looked_at) AS rows, organization_id, id FROM looked_at
 ORDER BY organization_id DESC, id DESC LIMIT 1
"""


async def count(
    conn: Connection, *, partition: str, month: date, after: tuple[UUID, UUID], limit: int
) -> Counted | None:
    """Add up to `limit` messages of a partition behind the key `after` to its month's sums; None: that was all.

    Runs in the caller's transaction, in which `after` is moved on. Nothing reads the sums before `close`.
    """
    row = await conn.fetchrow(COUNT.format(partition=partition), month, *after, limit)
    return None if row is None else Counted(row["rows"], (row["organization_id"], row["id"]))


CLOSE = "INSERT INTO usage_closed (source) VALUES ($1)"


async def close(conn: Connection, *, source: str) -> None:
    """A partition's sums stand for its messages from now on. In the transaction that drops it."""
    await conn.execute(CLOSE, source)


def stray(deletion: str) -> str:
    """A statement that deletes messages one by one, so that their sums take their place at once."""
    return f"""
WITH gone AS (
    {deletion} RETURNING organization_id, mode, segments, balance_after, accepted_at
), summed AS (
    INSERT INTO usage_months AS known (organization_id, month, source, messages, segments, balance_after, last_at)
    SELECT organization_id, date_trunc('month', accepted_at AT TIME ZONE 'UTC')::date, 'stray', count(*), sum(segments),
           (array_agg(balance_after ORDER BY accepted_at DESC))[1], max(accepted_at)
      FROM gone WHERE mode = 'live' GROUP BY 1, 2
    ON CONFLICT (organization_id, month, source) DO UPDATE
       SET messages = known.messages + excluded.messages, segments = known.segments + excluded.segments,
           balance_after = CASE WHEN excluded.last_at >= known.last_at THEN excluded.balance_after
                                ELSE known.balance_after END,
           last_at = greatest(known.last_at, excluded.last_at)
)
SELECT FROM gone
"""
