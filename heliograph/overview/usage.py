"""An organization's usage: by month, by day, by various splits, and as the file that bills are based on.

Everything comes from sums maintained while messages are accepted and refunded (`usage_days`, `usage_counts`), and from
deltas not folded into them yet; nothing is counted here. The rule nobody may break: the quantities of a month's bill
add up to those of the usage list in that month, to the message. Days and months are in UTC.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.accounts.quota import Quota
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor, Principal
from heliograph.base.csv_files import Writer
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid

#: What usage can be split by.
SPLITS = ("channel", "sender", "country", "campaign", "tag", "key", "day")
#: Percentages of the quota at which somebody should be notified.
LEVELS = (80, 95, 100)
#: Days from which the pace is computed, excluding today, which is not over.
PACE_DAYS = 7
#: Maximum months listed, and days read at once.
MOST_MONTHS, MOST_DAYS = 240, 400
NONE = UUID(int=0)


class Month(msgspec.Struct, frozen=True):
    """The totals of the usage list of one month. Refunds, adjustments and grants are signed."""

    month: date
    sent: int
    segments: int
    whatsapp: int
    refunds: int
    adjustments: int
    grants: int

    @property
    def change(self) -> int:
        """The net change of the quota in the month."""
        return self.refunds + self.adjustments + self.grants - self.sent


class Day(msgspec.Struct, frozen=True):
    """One day's live messages, by date of acceptance, and refunds, by date of the refund."""

    day: date
    sms: int
    segments: int
    whatsapp: int
    refunds: int


class Share(msgspec.Struct, frozen=True):
    """The share of one value of a split. `name`: its display name, if it has one; `value` is empty for messages without
    one (no campaign, no key)."""

    value: str
    name: str
    channel: str
    messages: int
    segments: int
    refunds: int
    refunded: int


class Pace(msgspec.Struct, frozen=True):
    """How fast the quota is used. `daily`: messages per day over the last PACE_DAYS; `gone_at`: when it will be used up
    at that pace, None: not before it is renewed, or nothing is sent."""

    daily: float
    gone_at: datetime | None


class Spent(msgspec.Struct, frozen=True):
    """What a number of days, and as many days before them, took from the quota. `messages`, `segments` and `before`
    (messages) are those of SMS minus refunds."""

    messages: int
    segments: int
    refunds: int
    before: int


class UsageLine(msgspec.Struct, frozen=True):
    """One row of a bill. `quantity` is signed, as in the usage list."""

    type: str
    channel: str
    value: str
    name: str
    quantity: int
    segments: int


class Bill(msgspec.Struct, frozen=True):
    """A month, split. `quantity`: the total of all SMS lines, which is the net change of the quota in the month."""

    month: date
    by: str
    lines: list[UsageLine]
    messages: int
    segments: int
    quantity: int


# Includes deltas not folded yet, in one statement and therefore one snapshot.
MONTHS = """
SELECT month, coalesce(-sum(quantity) FILTER (WHERE type = 'usage' AND channel = 'sms'), 0)::bigint AS sent,
       coalesce(sum(segments) FILTER (WHERE type = 'usage'), 0)::bigint AS segments,
       coalesce(-sum(quantity) FILTER (WHERE type = 'usage' AND channel = 'whatsapp'), 0)::bigint AS whatsapp,
       coalesce(sum(quantity) FILTER (WHERE type = 'refund'), 0)::bigint AS refunds,
       coalesce(sum(quantity) FILTER (WHERE type = 'adjustment'), 0)::bigint AS adjustments,
       coalesce(sum(quantity) FILTER (WHERE type = 'grant'), 0)::bigint AS grants
  FROM (SELECT month, channel, type, quantity, segments FROM usage_counts
         WHERE organization_id = $1 AND ($2::date IS NULL OR month = $2)
        UNION ALL
        SELECT (date_trunc('month', hour, 'UTC') AT TIME ZONE 'UTC')::date, channel, entry.*
          FROM traffic_deltas CROSS JOIN LATERAL (
               VALUES ('usage', -count, segments), ('refund', refunds, refunded)) AS entry
         WHERE organization_id = $1 AND mode = 'live'
           AND ($2::date IS NULL OR date_trunc('month', hour, 'UTC') = $2::timestamp AT TIME ZONE 'UTC')) one
 GROUP BY month ORDER BY month DESC LIMIT $3
"""


async def months(conn: Connection, actor: Actor) -> list[Month]:
    """All months in which something changed, latest first."""
    return [Month(**row) for row in await conn.fetch(MONTHS, actor.organization_id, None, MOST_MONTHS)]


_USED = """
SELECT day, channel, country, sender, campaign_id, key_id, messages, segments, refunds, refunded FROM usage_days
 WHERE organization_id = $1 AND day >= $2 AND day < $3
UNION ALL
SELECT (hour AT TIME ZONE 'UTC')::date, channel, country, sender, coalesce(campaign_id, $4), coalesce(key_id, $4),
       count, segments, refunds, refunded
  FROM traffic_deltas
 WHERE organization_id = $1 AND mode = 'live' AND hour >= $2::timestamp AT TIME ZONE 'UTC'
   AND hour < $3::timestamp AT TIME ZONE 'UTC'
"""
DAYS = f"""
SELECT day, coalesce(sum(messages) FILTER (WHERE channel = 'sms'), 0)::bigint AS sms,
       coalesce(sum(messages) FILTER (WHERE channel = 'whatsapp'), 0)::bigint AS whatsapp,
       sum(segments)::bigint AS segments, sum(refunds)::bigint AS refunds
  FROM ({_USED}) one GROUP BY day ORDER BY day
"""


async def days(conn: Connection, actor: Actor, *, since: date, until: date) -> list[Day]:
    """Days from `since` to before `until`, at most MOST_DAYS, including those without messages."""
    until = min(until, since + timedelta(days=MOST_DAYS))
    rows = await conn.fetch(DAYS, actor.organization_id, since, until, NONE)
    found = {row["day"]: Day(**row) for row in rows}
    every = [since + timedelta(days=n) for n in range((until - since).days)]
    return [found.get(day) or Day(day, 0, 0, 0, 0) for day in every]


SPENT = f"""
SELECT coalesce(sum(messages - refunds) FILTER (WHERE day >= $5), 0)::bigint AS messages,
       coalesce(sum(segments - refunded) FILTER (WHERE day >= $5), 0)::bigint AS segments,
       coalesce(sum(refunds) FILTER (WHERE day >= $5), 0)::bigint AS refunds,
       coalesce(sum(messages - refunds) FILTER (WHERE day < $5), 0)::bigint AS before
  FROM ({_USED}) one WHERE channel = 'sms'
"""


async def spent(conn: Connection, actor: Actor, *, since: date, until: date) -> Spent:
    """What the days from `since` to before `until`, and as many days before them, took from the quota."""
    row = await conn.fetchrow(SPENT, actor.organization_id, since - (until - since), until, NONE, since)
    assert row is not None
    return Spent(**row)


# Names are looked up per value, not per row. LIMIT makes sure that each stays an index look-up.
SHARES = f"""
SELECT share.value, share.channel, share.messages, share.segments, share.refunds, share.refunded,
       coalesce(CASE $5
           WHEN 'campaign' THEN (
                SELECT name FROM campaigns WHERE organization_id = $1 AND id = share.value::uuid LIMIT 1)
           WHEN 'key' THEN (
                SELECT name FROM api_keys WHERE organization_id = $1 AND id = share.value::uuid LIMIT 1)
           WHEN 'sender' THEN CASE WHEN share.channel = 'whatsapp' THEN (
                SELECT display_phone_number FROM whatsapp_numbers
                 WHERE organization_id = $1 AND id = share.value::uuid LIMIT 1) END
       END, '') AS name
  FROM (SELECT CASE $5 WHEN 'channel' THEN channel WHEN 'sender' THEN sender WHEN 'country' THEN country
                       WHEN 'campaign' THEN campaign_id::text WHEN 'key' THEN key_id::text ELSE day::text END AS value,
               channel, sum(messages)::bigint AS messages, sum(segments)::bigint AS segments,
               sum(refunds)::bigint AS refunds, sum(refunded)::bigint AS refunded
          FROM ({_USED}) used GROUP BY 1, 2
        HAVING sum(messages) <> 0 OR sum(segments) <> 0 OR sum(refunds) <> 0) share
 ORDER BY CASE $5 WHEN 'day' THEN share.value END, share.messages DESC, share.value, share.channel LIMIT $6
"""
# Tags are looked up per campaign. A campaign's tags are joined into one value, so that a message is in one share; as in
# files, a tag that contains a separator is quoted, or two lists of tags could be one share.
TAGGED = f"""
SELECT value, channel, sum(messages)::bigint AS messages, sum(segments)::bigint AS segments,
       sum(refunds)::bigint AS refunds, sum(refunded)::bigint AS refunded, '' AS name
  FROM (SELECT coalesce((
                    SELECT array_to_string(ARRAY(
                               SELECT CASE WHEN tag ~ '[",;|]' THEN '"' || replace(tag, '"', '""') || '"' ELSE tag END
                                 FROM unnest(audience_tags) tag ORDER BY tag), ', ')
                      FROM campaigns WHERE organization_id = $1 AND id = campaign_id LIMIT 1), '') AS value,
               channel, messages, segments, refunds, refunded
          FROM (SELECT campaign_id, channel, sum(messages) AS messages, sum(segments) AS segments,
                       sum(refunds) AS refunds, sum(refunded) AS refunded
                  FROM ({_USED}) used GROUP BY 1, 2) by_campaign) tagged
 GROUP BY 1, 2 HAVING sum(messages) <> 0 OR sum(segments) <> 0 OR sum(refunds) <> 0
 ORDER BY messages DESC, value, channel LIMIT $5
"""


async def shares(
    conn: Connection, actor: Actor, *, by: str, since: date, until: date, limit: int | None = None
) -> list[Share]:
    """Shares per value of `by` (one of SPLITS) and channel, largest first; days in chronological order. Tags are those
    of a campaign's audience: messages without a campaign, or to listed numbers, have an empty value."""
    checked_split(by)
    if by == "tag":
        rows = await conn.fetch(TAGGED, actor.organization_id, since, until, NONE, limit)
    else:
        rows = await conn.fetch(SHARES, actor.organization_id, since, until, NONE, by, limit)
    return [_share(Share(**row), by) for row in rows]


async def pace(conn: Connection, actor: Actor, balance: Quota) -> Pace:
    """How fast the quota was used recently, and when it will be used up."""
    now = clock.now()
    listed = await days(conn, actor, since=now.date() - timedelta(days=PACE_DAYS), until=now.date())
    daily = max(sum(one.sms - one.refunds for one in listed), 0) / PACE_DAYS
    if balance.remaining <= 0 or daily <= 0 or balance.remaining / daily > 36_500:
        return Pace(daily, None)
    gone = now + timedelta(days=balance.remaining / daily)
    return Pace(daily, None if balance.resets_at is not None and gone >= balance.resets_at else gone)


async def bill(conn: Connection, actor: Actor, *, month: date, by: str) -> Bill:
    """A month of the usage list in lines: usage and refunds by `by`, adjustments and grants as totals. Raises Invalid.

    One snapshot of the database: what is accepted meanwhile is in all of it or in none.
    """
    since, until = bounds(month)
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        split = await shares(conn, actor, by=by, since=since, until=until)
        return await billed(conn, actor, month=month, by=by, split=split)


async def billed(conn: Connection, actor: Actor, *, month: date, by: str, split: Sequence[Share]) -> Bill:
    """The bill from these shares, with adjustments and grants. Runs in the transaction in which they were read."""
    since, _ = bounds(month)
    sums = await conn.fetchrow(MONTHS, actor.organization_id, since, 1)
    lines = [
        UsageLine(kind, one.channel, one.value, one.name, quantity, segments)
        for one in split
        for kind, quantity, segments in (
            ("usage", -one.messages, one.segments),
            ("refund", one.refunds, one.refunded),
        )
        if quantity or segments
    ]
    if sums is not None:
        lines += [
            UsageLine(kind, "sms", "", "", sums[name], 0)
            for kind, name in (("adjustment", "adjustments"), ("grant", "grants"))
            if sums[name]
        ]
    return Bill(
        month=since,
        by=by,
        lines=lines,
        messages=sum(one.messages for one in split),
        segments=sum(one.segments for one in split),
        quantity=sum(line.quantity for line in lines if line.channel == "sms"),
    )


async def export(
    conn: Connection, actor: Actor, who: Principal, *, made: Bill, as_json: bool, delimiter: str = ","
) -> str:
    """A month's bill as a file, CSV or one JSON document; the export is recorded."""
    await audit.record(
        conn,
        who,
        "usage.exported",
        object_id=actor.organization_id,
        organization_id=actor.organization_id,
        after={"month": f"{made.month:%Y-%m}", "by": made.by, "format": "json" if as_json else "csv"},
    )
    return as_document(made) if as_json else as_csv(made, delimiter=delimiter)


COLUMNS = ("month", "type", "channel", "split_by", "value", "name", "quantity", "segments")


def as_csv(made: Bill, *, delimiter: str = ",") -> str:
    """One row per line. The quantities of the channel sms add up to the net change of the quota in the month."""
    file = io.StringIO()
    writer = Writer(file, COLUMNS, delimiter=delimiter)
    month = f"{made.month:%Y-%m}"
    for line in made.lines:
        cells = (line.type, line.channel, made.by, line.value, line.name, line.quantity, line.segments)
        writer.row([month, *map(str, cells)])
    return file.getvalue()


def as_document(made: Bill) -> str:
    """One JSON object: the month, its sums and its lines."""
    values = msgspec.to_builtins(made) | {"month": f"{made.month:%Y-%m}"}
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode() + "\n"


def month_of(text: str) -> date:
    """The first day of a month given as `2026-11`. Raises Invalid."""
    written = re.fullmatch(r"(2[0-9]{3})-(0[1-9]|1[0-2])", text.strip())
    if written is None:
        raise Invalid(("month", "format", "`month` must be a month such as 2026-11"))
    return date(int(written[1]), int(written[2]), 1)


def demand_begun(month: date) -> None:
    """Check that a month has begun: a bill of a future month would look like one without messages. Raises Invalid."""
    if month > clock.now().date():
        raise Invalid(("month", "range", f"`month` must have begun, and {month:%Y-%m} has not"))


def checked_split(by: str) -> str:
    """Check that a split is one of SPLITS. Raises Invalid."""
    if by not in SPLITS:
        raise Invalid(("by", "enum", f"`by` must be one of {', '.join(SPLITS)}"))
    return by


def level(balance: Quota) -> int | None:
    """The highest of LEVELS reached; None: none."""
    reached = [one for one in LEVELS if balance.total > 0 and 100 * balance.used >= one * balance.total]
    return max(reached, default=None)


def bounds(month: date) -> tuple[date, date]:
    """The first day of a month, and of the next one."""
    first = month.replace(day=1)
    return first, (first + timedelta(days=31)).replace(day=1)


def _share(one: Share, by: str) -> Share:
    """Clears the value of a share without a campaign or key."""
    return msgspec.structs.replace(one, value="") if by in ("campaign", "key") and one.value == str(NONE) else one


def total(listed: Sequence[Month]) -> int:
    """The remaining quota, computed from the months."""
    return sum(one.change for one in listed)
