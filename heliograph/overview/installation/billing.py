"""Billing export: usage of all organizations in a month, by channel, country and sender, locked permanently.

    usage_days, usage_counts ── once the month is over, in one transaction ──► billing_lines ──► the file, always one

The rules nobody may break: a month is locked once, when nothing in it can change any more; its lines match the usage
list of each organization to the message, or it is not locked; and its file has the same bytes, and therefore the same
checksum, whoever fetches it and whenever. Months are in UTC.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time, timedelta

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.csv_files import Writer
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7_floor
from heliograph.overview.usage import MOST_MONTHS, NONE

#: A month can be locked this long after its end, since its last commits may still be arriving.
SLACK = timedelta(hours=1)
#: Organizations whose lines are created at once; lines per page.
BATCH, PAGE = 200, 2000
#: Columns of the file.
COLUMNS = ("month", "organization_id", "organization", "type", "channel", "country", "sender", "quantity", "segments")
#: How many organizations are named if their sums disagree.
NAMED = 5


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a month. Sent messages are counted; refunds, adjustments and grants are signed."""

    organizations: int = 0
    sms: int = 0
    segments: int = 0
    whatsapp: int = 0
    refunds: int = 0
    adjustments: int = 0
    grants: int = 0


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    """A locked month."""

    month: date
    locked_at: datetime
    locked_by: str
    lines: int
    #: SHA-256 of its file, in hex.
    checksum: str
    sums: Sums


class Month(msgspec.Struct, frozen=True, kw_only=True):
    """A month in the list. `is_over`: it can be locked."""

    month: date
    is_over: bool
    locked: Locked | None


FIRST = "SELECT min(created_at) FROM organizations"
LOCKED = """
SELECT month, locked_at, locked_by, organizations, lines, sms, segments, whatsapp, refunds, adjustments, grants,
       checksum
  FROM billing_exports WHERE $1::date IS NULL OR month = $1 ORDER BY month DESC
"""


async def months(conn: Connection) -> list[Month]:
    """The current month and earlier ones since the first organization, latest first: at most MOST_MONTHS."""
    began: datetime | None = await conn.fetchval(FIRST)
    now = clock.now()
    first = (began or now).astimezone(UTC).date().replace(day=1)
    known = {one.month: one for one in await _locked(conn, None)}
    month = now.date().replace(day=1)
    found: list[Month] = []
    while month >= min([first, *known]) and len(found) < MOST_MONTHS:
        found.append(Month(month=month, is_over=_is_over(month), locked=known.get(month)))
        month = (month - timedelta(days=1)).replace(day=1)
    return found


async def get(conn: Connection, *, month: date) -> Month:
    """One month, whether locked or not."""
    found = await _locked(conn, month)
    return Month(month=month, is_over=_is_over(month), locked=found[0] if found else None)


async def _locked(conn: Connection, month: date | None) -> list[Locked]:
    return [
        Locked(
            month=row["month"],
            locked_at=row["locked_at"],
            locked_by=row["locked_by"],
            lines=row["lines"],
            checksum=row["checksum"],
            sums=Sums(**{name: row[name] for name in Sums.__struct_fields__}),
        )
        for row in await conn.fetch(LOCKED, month)
    ]


# The month according to every organization's usage list, including deltas not folded yet: the same sums as in
# `usage.MONTHS`, maintained independently of those by day from which the lines are created.
_COUNTED = """
SELECT organization_id, channel, type, sum(quantity)::bigint AS quantity, sum(segments)::bigint AS segments
  FROM (SELECT organization_id, channel, type, quantity, segments FROM usage_counts WHERE month = $1
        UNION ALL
        SELECT organization_id, channel, entry.*
          FROM traffic_deltas CROSS JOIN LATERAL (
               VALUES ('usage', -count, segments), ('refund', refunds, refunded)) AS entry (type, quantity, segments)
         WHERE mode = 'live' AND hour >= $1::timestamp AT TIME ZONE 'UTC'
           AND hour < ($1 + interval '1 month') AT TIME ZONE 'UTC') one
 GROUP BY organization_id, channel, type HAVING sum(quantity) <> 0 OR sum(segments) <> 0
"""
_SUMS = """
SELECT count(DISTINCT organization_id)::integer AS organizations,
       coalesce(-sum(quantity) FILTER (WHERE type = 'usage' AND channel = 'sms'), 0)::bigint AS sms,
       coalesce(sum(segments) FILTER (WHERE type = 'usage'), 0)::bigint AS segments,
       coalesce(-sum(quantity) FILTER (WHERE type = 'usage' AND channel = 'whatsapp'), 0)::bigint AS whatsapp,
       coalesce(sum(quantity) FILTER (WHERE type = 'refund'), 0)::bigint AS refunds,
       coalesce(sum(quantity) FILTER (WHERE type = 'adjustment'), 0)::bigint AS adjustments,
       coalesce(sum(quantity) FILTER (WHERE type = 'grant'), 0)::bigint AS grants
"""
OF_LEDGER = f"{_SUMS} FROM ({_COUNTED}) counted"
OF_LINES = f"{_SUMS}, count(*)::integer AS lines FROM billing_lines WHERE month = $1"


async def ledger(conn: Connection, *, month: date) -> Sums:
    """The totals of all organizations' usage lists in a month."""
    row = await conn.fetchrow(OF_LEDGER, month)
    assert row is not None
    return Sums(**row)


async def lines(conn: Connection, *, month: date) -> Sums:
    """The totals of a locked month's lines: the same, unless somebody tampered with them."""
    row = await conn.fetchrow(OF_LINES, month)
    assert row is not None
    return Sums(**{name: row[name] for name in Sums.__struct_fields__})


BEGIN = """
INSERT INTO billing_exports (month, locked_by, organizations, lines, sms, segments, whatsapp, refunds, adjustments,
                             grants, checksum)
VALUES ($1, $2, 0, 0, 0, 0, 0, 0, 0, 0, '')
"""
NEXT = "SELECT id FROM organizations WHERE id > $1 ORDER BY id LIMIT $2"
# By day, sender and country, like the bill of one organization; grants and adjustments come from their ledger, whose
# ids are times, with some slack. A WhatsApp number is written in its display form.
WRITE = """
INSERT INTO billing_lines (organization_id, month, type, channel, country, sender, organization, quantity, segments)
SELECT line.organization_id, $1::date, line.type, line.channel, line.country, line.sender, o.name, line.quantity,
       line.segments
  FROM (SELECT named.organization_id, entry.type, named.channel, named.country, named.sender,
               sum(entry.quantity)::bigint AS quantity, sum(entry.segments)::bigint AS segments
          FROM (SELECT used.*, coalesce(n.display_phone_number, used.known_as) AS sender
                  FROM (SELECT organization_id, channel, country, sender AS known_as, sum(messages) AS messages,
                               sum(segments) AS segments, sum(refunds) AS refunds, sum(refunded) AS refunded
                          FROM (SELECT organization_id, channel, country, sender, messages, segments, refunds, refunded
                                  FROM usage_days
                                 WHERE organization_id = ANY ($2) AND day >= $1 AND day < $1 + interval '1 month'
                                UNION ALL
                                SELECT organization_id, channel, country, sender, count, segments, refunds, refunded
                                  FROM traffic_deltas
                                 WHERE organization_id = ANY ($2) AND mode = 'live'
                                   AND hour >= $1::timestamp AT TIME ZONE 'UTC'
                                   AND hour < ($1 + interval '1 month') AT TIME ZONE 'UTC') day
                         GROUP BY 1, 2, 3, 4) used
                       LEFT JOIN whatsapp_numbers n ON used.channel = 'whatsapp'
                             AND n.organization_id = used.organization_id AND n.id::text = used.known_as) named
               CROSS JOIN LATERAL (VALUES ('usage', -messages, segments), ('refund', refunds, refunded))
                       AS entry (type, quantity, segments)
         GROUP BY 1, 2, 3, 4, 5
        UNION ALL
        SELECT organization_id, type, channel, '', '', sum(quantity)::bigint, 0 FROM usage_ledger
         WHERE organization_id = ANY ($2) AND type IN ('adjustment', 'grant') AND id >= $3 AND id < $4
           AND created_at >= $1::timestamp AT TIME ZONE 'UTC'
           AND created_at < ($1 + interval '1 month') AT TIME ZONE 'UTC'
         GROUP BY 1, 2, 3) line
       JOIN organizations o ON o.id = line.organization_id
 WHERE line.quantity <> 0 OR line.segments <> 0
"""
# Sums by month are maintained independently of those by day and of the ledger; their agreement is the proof.
DISAGREE = f"""
SELECT coalesce(o.name, organization_id::text) AS organization
  FROM (SELECT organization_id, channel, type, sum(quantity)::bigint AS quantity
          FROM billing_lines WHERE month = $1 GROUP BY 1, 2, 3 HAVING sum(quantity) <> 0) line
       FULL JOIN (SELECT * FROM ({_COUNTED}) counted WHERE quantity <> 0) counted
            USING (organization_id, channel, type)
       LEFT JOIN organizations o ON o.id = organization_id
 WHERE line.quantity IS DISTINCT FROM counted.quantity
 GROUP BY 1 ORDER BY 1 LIMIT {NAMED}
"""
FINISH = """
UPDATE billing_exports
   SET lines = $2, organizations = $3, sms = $4, segments = $5, whatsapp = $6, refunds = $7, adjustments = $8,
       grants = $9, checksum = $10
 WHERE month = $1
"""


async def lock(conn: Connection, *, month: date, by: Principal = SYSTEM) -> Locked:
    """Write a month's lines permanently; a month that is already locked is unchanged.

    One snapshot of the database. Raises Invalid (month): it is not over, nothing was used in it, or sums disagree.
    """
    if found := await _locked(conn, month):
        return found[0]
    if not _is_over(month):
        raise Invalid(("month", "open", "This month is not over: it can be locked an hour after its end (UTC)."))
    try:
        async with conn.transaction(isolation="repeatable_read"):
            await _write(conn, month, by)
    except (asyncpg.UniqueViolationError, asyncpg.SerializationError):
        # Somebody else locked it at the same time.
        pass
    (made,) = await _locked(conn, month)
    return made


async def _write(conn: Connection, month: date, by: Principal) -> None:
    await conn.execute(BEGIN, month, by.name or by.kind)
    after = NONE
    ids = uuid7_floor(_begins(month) - SLACK), uuid7_floor(_begins(_following(month)) + SLACK)
    while some := [row["id"] for row in await conn.fetch(NEXT, after, BATCH)]:
        await conn.execute(WRITE, month, some, *ids)
        after = some[-1]
    if odd := [row["organization"] for row in await conn.fetch(DISAGREE, month)]:
        raise Invalid(("month", "disagrees", f"The sums by day and by month disagree for {', '.join(odd)}."))
    row = await conn.fetchrow(OF_LINES, month)
    assert row is not None
    if not row["lines"]:
        raise Invalid(("month", "empty", "Nothing was used in this month."))
    digest = hashlib.sha256()
    async for part in parts(conn, month=month):
        digest.update(part)
    sums = Sums(**{name: row[name] for name in Sums.__struct_fields__})
    await conn.execute(FINISH, month, row["lines"], *msgspec.structs.astuple(sums), digest.hexdigest())
    told = msgspec.structs.asdict(sums) | {"lines": row["lines"], "checksum": digest.hexdigest()}
    await audit.record(conn, by, "billing.locked", object_id=f"{month:%Y-%m}", after=told)


LINES = """
SELECT organization_id, type, channel, country, sender, organization, quantity, segments FROM billing_lines
 WHERE month = $1 AND (organization_id, type, channel, country, sender) > ($2, $3, $4, $5, $6)
 ORDER BY organization_id, type, channel, country, sender LIMIT $7
"""


async def part(conn: Connection, *, month: date, after: asyncpg.Record | None) -> tuple[bytes, asyncpg.Record | None]:
    """A piece of a locked month's file, and its last line; None: this was the last piece. UTF-8, CSV with commas."""
    place = (NONE, "", "", "", "") if after is None else tuple(after)[:5]
    rows = await conn.fetch(LINES, month, *place, PAGE)
    out = io.StringIO()
    writer = Writer(out, COLUMNS)
    header = 0 if after is None else out.tell()
    written = f"{month:%Y-%m}"
    for id, kind, channel, country, sender, organization, quantity, segments in rows:
        cells = (written, str(id), organization, kind, channel, country, sender, str(quantity), str(segments))
        writer.row(cells)
    return out.getvalue()[header:].encode(), rows[-1] if len(rows) == PAGE else None


async def parts(conn: Connection, *, month: date) -> AsyncIterator[bytes]:
    """The whole file of a locked month, piece by piece, over one connection."""
    text, after = await part(conn, month=month, after=None)
    yield text
    while after is not None:
        text, after = await part(conn, month=month, after=after)
        yield text


async def verify(conn: Connection, *, month: date) -> bool:
    """True if the file of a locked month still has its checksum. Raises NotFound."""
    found = await _locked(conn, month)
    if not found:
        raise NotFound("This month is not locked.", month=f"{month:%Y-%m}")
    digest = hashlib.sha256()
    async for text in parts(conn, month=month):
        digest.update(text)
    return digest.hexdigest() == found[0].checksum


def _is_over(month: date) -> bool:
    return clock.now() >= _begins(_following(month)) + SLACK


def _following(month: date) -> date:
    return (month + timedelta(days=31)).replace(day=1)


def _begins(month: date) -> datetime:
    return datetime.combine(month, time(), UTC)
