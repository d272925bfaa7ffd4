"""A month's bill by the prefix of references, counted from the month's messages themselves, in steps.

A prefix is everything before the first `-`, `:` or `/`, or a chosen number of characters. Sums by prefix are not stored
anywhere: only a file is split this way, by a worker that continues where it stopped. The rule nobody may break: the
lines add up to the usage list, so messages without a prefix, beyond MOST, or already deleted are in the line without a
value.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7_floor
from heliograph.overview import usage
from heliograph.overview.usage import Bill, Share

#: The split, optionally with a number of characters: `reference:4`.
REFERENCE = "reference"
_is_split = re.compile(rf"{REFERENCE}(?::([1-9][0-9]?))?").fullmatch
#: All splits of a bill.
SPLITS = (*usage.SPLITS, REFERENCE)
#: Messages or refunds per step, and maximum prefixes with a line of their own, per channel.
LOOK, MOST = 50_000, 1_000
#: Maximum difference between the time of an id and that of its row.
SLACK = timedelta(hours=1)

# $1: organization; $2: id to begin after; $3: end of the ids; $4: rows scanned; [$5, $6): the month; $7: characters.
# Each result row contains the last id scanned.
_STEP = """
WITH looked AS MATERIALIZED ({rows} ORDER BY id LIMIT $4), counted AS (
    SELECT channel, value, count(*)::bigint AS messages, coalesce(sum(segments), 0)::bigint AS segments
      FROM (SELECT channel, segments, coalesce(CASE WHEN $7::int IS NULL
                   THEN substring(reference from '^([^-:/]{{1,64}})[-:/]') ELSE left(reference, $7) END, '') AS value
              FROM looked WHERE is_counted AND at >= $5 AND at < $6) one
     WHERE value <> '' GROUP BY 1, 2
)
SELECT head.seen, head.last, counted.*
  FROM (SELECT (SELECT count(*) FROM looked)::int AS seen,
               (SELECT id FROM looked ORDER BY id DESC LIMIT 1) AS last) head
       LEFT JOIN counted ON true
"""
_BETWEEN = "WHERE {of}organization_id = $1 AND {of}id > $2 AND {of}id < $3"
#: What is counted, in order.
STEPS = {
    "sms": _STEP.format(
        rows=f"""
    SELECT id, 'sms' AS channel, segments, client_reference AS reference, accepted_at AS at, mode = 'live' AS is_counted
      FROM messages {_BETWEEN.format(of="")}"""
    ),
    "whatsapp": _STEP.format(
        rows=f"""
    SELECT id, 'whatsapp' AS channel, 0 AS segments, client_reference AS reference, accepted_at AS at,
           mode = 'live' AND direction = 'outbound' AS is_counted
      FROM whatsapp_messages {_BETWEEN.format(of="")}"""
    ),
    "refunds": _STEP.format(
        rows=f"""
    SELECT l.id, l.channel, l.segments, m.client_reference AS reference, l.created_at AS at,
           l.type = 'refund' AND l.message_id IS NOT NULL AS is_counted
      FROM usage_ledger l LEFT JOIN LATERAL (
           SELECT client_reference FROM messages
            WHERE organization_id = $1 AND id = l.message_id AND l.type = 'refund' LIMIT 1) m ON true
     {_BETWEEN.format(of="l.")}"""
    ),
}


class Counted(msgspec.Struct):
    """Progress. `sums`: messages, segments, refunds and their segments by channel and prefix; `after`: the last id
    counted in the current step, None: none yet."""

    what: str = "sms"
    after: UUID | None = None
    sums: dict[str, dict[str, list[int]]] = {}


def checked_split(by: str) -> str:
    """Check that a split is one of SPLITS, or `reference` with a number of characters. Raises Invalid."""
    if by not in SPLITS and not _is_split(by):
        raise Invalid(("by", "enum", f"`by` must be one of {', '.join(SPLITS)}"))
    return by


def is_by_reference(by: str) -> bool:
    """True if a checked split is by reference."""
    return _is_split(by) is not None


async def step(
    conn: Connection, actor: Actor, counted: Counted, *, month: date, by: str, look: int = LOOK
) -> Counted | None:
    """Count the next rows; None: there were no more, and `counted` is complete."""
    found = _is_split(by)
    assert found is not None
    since, until = map(clock.midnight, usage.bounds(month))
    rows = await conn.fetch(
        STEPS[counted.what],
        actor.organization_id,
        counted.after or uuid7_floor(since - SLACK),
        uuid7_floor(until + SLACK),
        look,
        since,
        until,
        int(found[1]) if found[1] else None,
    )
    place = 2 if counted.what == "refunds" else 0
    for row in rows:
        if row["value"] is None:
            continue
        sums = counted.sums.setdefault(row["channel"], {})
        if row["value"] in sums or len(sums) < MOST:
            one = sums.setdefault(row["value"], [0, 0, 0, 0])
            one[place] += row["messages"]
            one[place + 1] += row["segments"]
    if rows[0]["seen"] == look:
        return Counted(counted.what, rows[0]["last"], counted.sums)
    following = list(STEPS)[list(STEPS).index(counted.what) + 1 :]
    return Counted(following[0], None, counted.sums) if following else None


async def billed(conn: Connection, actor: Actor, counted: Counted, *, month: date, by: str) -> Bill:
    """The bill, once everything is counted; the shares without a prefix make it add up."""
    since, until = usage.bounds(month)
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        whole = await usage.shares(conn, actor, by="channel", since=since, until=until)
        return await usage.billed(conn, actor, month=month, by=by, split=_split(counted, whole))


async def bill(conn: Connection, actor: Actor, *, month: date, by: str) -> Bill:
    """The bill by any of SPLITS, at once. Raises Invalid."""
    usage.demand_begun(month)
    if not is_by_reference(checked_split(by)):
        return await usage.bill(conn, actor, month=month, by=by)
    counted, going = Counted(), True
    while going:
        further = await step(conn, actor, counted, month=month, by=by)
        going, counted = further is not None, further or counted
    return await billed(conn, actor, counted, month=month, by=by)


def _split(counted: Counted, whole: list[Share]) -> list[Share]:
    """A share per prefix, largest first, and the remainder of each channel."""
    found = []
    for one in whole:
        rest = [one.messages, one.segments, one.refunds, one.refunded]
        for value, sums in counted.sums.get(one.channel, {}).items():
            found.append(Share(value, "", one.channel, *sums))
            rest = [left - sum for left, sum in zip(rest, sums, strict=True)]
        if any(rest):
            found.append(Share("", "", one.channel, *rest))
    return sorted(found, key=lambda share: (-share.messages, share.value, share.channel))
