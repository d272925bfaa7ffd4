"""Reconciliation: the messages handed to each supplier, its answers and its reports, by hour and country, with which
its bill is checked.

    answers, moves ── in the same commit ──► reconciliation_deltas ── folded every ten seconds ──► reconciliation, and
                                                                                                   reconciliation_days

A message counts in the hour in which the supplier accepted it, so that a day adds up: every accepted message is
reported on (in time or late), never reported, or still waiting. Negative answers count in the hour in which they
arrived, orphans in that of the receipt. A supplier's charge is counted with the message, by currency: when it was
accepted, when it was delivered, and again if it was not delivered and is thus due back. Live SMS only. The rule nobody
may break: deltas are written in the commit that they describe, and amounts in different currencies are never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.histogram import as_text, percentile
from heliograph.base.ids import uuid7
from heliograph.queue import folding

#: How accepted messages ended, according to receipts.
STATES = ("delivered", "undelivered", "failed", "expired", "rejected")
#: Everything that is counted. Answers: accepted, refused, busy, unknown (none arrived, or it was unreadable), and
#: unreachable (nothing had left). For accepted messages, also: late receipts, messages that never got one, and those
#: that failed because of the recipient rather than the supplier (`recipient`). In addition to accepted: messages that a
#: supplier accepted when another one had them, or when they had ended (`doubled`), and segments of those that it did
#: not get whole (`incomplete.py`), which count as no message.
COUNTED = (
    *("accepted", "refused", "busy", "unknown", "unreachable", *STATES, "late", "never", "orphaned", "recipient"),
    "doubled",
)
#: Accepted messages that were not delivered, or were given up.
LOST = (*(one for one in STATES if one != "delivered"), "never")
#: The counts whose amounts make up a bill; those of LOST are part of them.
BILLED = ("accepted", "delivered", "doubled")
#: A receipt that arrives longer than this after the answer is late; for a message with a validity, so is one after its
#: end.
LATE = timedelta(hours=24)


class Counted(msgspec.Struct, frozen=True, gc=False):
    """A key for counting messages that are alike."""

    supplier_id: UUID
    hour: datetime
    country: str
    #: One of COUNTED.
    what: str
    #: MCC-MNC of an accepted message; empty if unknown.
    network: str = ""
    #: The currency of the supplier's charge; empty if that is unknown.
    currency: str = ""


class Sum(msgspec.Struct, gc=False):
    """The number of messages, their segments, the charge for them (millionths), and how long their receipts took."""

    count: int = 0
    segments: int = 0
    charged: int = 0
    to_receipt: list[int] | None = None


Sums = dict[Counted, Sum]

APPEND = """
INSERT INTO reconciliation_deltas (batch, n, supplier_id, hour, country, what, network, currency, count, segments,
                                   charged, to_receipt)
SELECT $1, n, supplier_id, hour, country, what, network, currency, count, segments, charged, to_receipt::bigint[]
  FROM unnest($2::uuid[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
              $9::bigint[], $10::bigint[], $11::text[])
       WITH ORDINALITY
       AS item (supplier_id, hour, country, what, network, currency, count, segments, charged, to_receipt, n)
"""


async def append(conn: Connection, sums: Mapping[Counted, Sum]) -> None:
    """Append counts, in the caller's transaction, which makes the changes that they describe."""
    rows = [
        (*_place(key), one.count, one.segments, one.charged, as_text(one.to_receipt))
        for key, one in sums.items()
        if one.count or one.segments or one.charged or one.to_receipt
    ]
    if rows:
        await conn.execute(APPEND, uuid7(), *(list(column) for column in zip(*rows, strict=True)))


async def count(conn: Connection, events: Iterable[tuple[UUID, str, str, int]], at: datetime) -> None:
    """Count events that no message's move implies: (supplier, country, one of COUNTED, how many), at this time."""
    sums: Sums = {}
    hour = hour_of(at)
    for supplier_id, country, what, number in events:
        add(sums, Counted(supplier_id, hour, country, what), number)
    await append(conn, sums)


def _place(key: Counted) -> tuple[UUID, datetime, str, str, str, str]:
    return key.supplier_id, key.hour, key.country, key.what, key.network, key.currency


def add(sums: Sums, key: Counted, number: int, segments: int = 0, charged: int = 0) -> Sum:
    """Add to a sum."""
    one = sums.setdefault(key, Sum())
    one.count += number
    one.segments += segments
    one.charged += charged
    return one


def hour_of(at: datetime) -> datetime:
    """The UTC hour that contains a time."""
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


ANY = "EXISTS (SELECT FROM reconciliation_deltas)"
# In the order of the keys, so that two concurrent folds cannot deadlock.
FOLD = """
WITH gone AS (
    DELETE FROM reconciliation_deltas
     WHERE ctid = ANY (ARRAY(SELECT ctid FROM reconciliation_deltas LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
), added AS (
    INSERT INTO reconciliation AS known (day, hour, supplier_id, country, network, what, currency, count, segments,
                                         charged, to_receipt)
    SELECT (hour AT TIME ZONE 'UTC')::date, hour, supplier_id, country, network, what, currency, sum(count)::bigint,
           sum(segments)::bigint, sum(charged)::bigint, histogram_sum(to_receipt)
      FROM gone GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
    ON CONFLICT (day, hour, supplier_id, country, network, what, currency) DO UPDATE
       SET count = known.count + excluded.count, segments = known.segments + excluded.segments,
           charged = known.charged + excluded.charged, to_receipt = histogram_add(known.to_receipt, excluded.to_receipt)
), added_to_day AS (
    INSERT INTO reconciliation_days AS known (day, supplier_id, country, what, currency, count, segments, charged,
                                              to_receipt)
    SELECT (hour AT TIME ZONE 'UTC')::date, supplier_id, country, what, currency, sum(count)::bigint,
           sum(segments)::bigint, sum(charged)::bigint, histogram_sum(to_receipt)
      FROM gone GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (day, supplier_id, country, what, currency) DO UPDATE
       SET count = known.count + excluded.count, segments = known.segments + excluded.segments,
           charged = known.charged + excluded.charged, to_receipt = histogram_add(known.to_receipt, excluded.to_receipt)
)
SELECT count(*) FROM gone
"""


async def fold(conn: Connection) -> int:
    """Fold accumulated deltas; returns how many there were."""
    return await folding.fold(conn, FOLD)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A query: [date_from, date_to). None: all."""

    date_from: datetime
    date_to: datetime
    #: What lines are grouped by: any of "month", "day", "hour" and "country", always in addition to the supplier.
    by: Sequence[str] = ("day", "country")
    supplier_id: UUID | None = None
    country: str | None = None
    #: Maximum number of lines; None: all.
    limit: int | None = 10_000
    #: The latest lines first, so that a limit leaves out the oldest ones.
    is_latest_first: bool = False
    #: Read the period that lies this much earlier, and report its events as if they had happened within this one.
    earlier: timedelta = timedelta()


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of messages handed to one supplier. Counts are of messages, except those of negative answers."""

    supplier_id: UUID
    #: Start of the month, day or hour; None: the whole period.
    at: datetime | None
    country: str | None
    counts: Mapping[str, int]
    segments: Mapping[str, int]
    #: Amounts in millionths, by count and currency.
    amounts: Mapping[str, Mapping[str, int]]
    #: The part of `counts` for which the supplier's charge is unknown.
    unpriced: Mapping[str, int]
    to_receipt: Sequence[int]

    def __getitem__(self, what: str) -> int:
        return self.counts.get(what, 0)

    @property
    def submitted(self) -> int:
        """Attempts that left this machine."""
        return sum(self[one] for one in ("accepted", "doubled", "refused", "busy", "unknown"))

    @property
    def answered(self) -> int:
        """Attempts that the supplier answered."""
        return self.submitted - self["unknown"]

    @property
    def matched(self) -> int:
        """Messages with a final receipt."""
        return sum(self[one] for one in STATES)

    @property
    def waiting(self) -> int:
        """Accepted messages without a final receipt so far."""
        return max(0, self["accepted"] - self.matched - self["never"])

    @property
    def undelivered(self) -> tuple[int, int]:
        """Messages and segments that the supplier accepted but that, according to it or by presumption, did not arrive:
        what it owes if it charged for them."""
        return sum(self[one] for one in LOST), sum(self.segments.get(one, 0) for one in LOST)

    @property
    def charged(self) -> dict[str, int]:
        """The supplier's charges, according to its rate cards, for accepted messages, in millionths by currency."""
        return self._sums(BILLED)

    @property
    def due_back(self) -> dict[str, int]:
        """The part of that for messages that did not arrive. A charge made only on delivery is never due back."""
        return self._sums(LOST)

    @property
    def owed_unpriced(self) -> int:
        """Messages that did not arrive and whose charge is unknown."""
        return sum(self.unpriced.get(one, 0) for one in LOST)

    def _sums(self, counted: Sequence[str]) -> dict[str, int]:
        found: dict[str, int] = {}
        for what in counted:
            for currency, amount in self.amounts.get(what, {}).items():
                found[currency] = found.get(currency, 0) + amount
        return {currency: amount for currency, amount in sorted(found.items()) if amount}

    @property
    def delivered_share(self) -> float | None:
        """The share of delivered messages among those whose outcome is known or given up."""
        ended = self.matched + self["never"]
        return self["delivered"] / ended if ended else None

    def seconds(self, share: float) -> float | None:
        """The time within which `share` (0 to 1) of the receipts arrived, in seconds."""
        return percentile(self.to_receipt, share)


_decode = msgspec.json.Decoder(list[tuple[str, str, int, int, int]]).decode

# Includes deltas that are not yet folded.
_READ = """
SELECT supplier_id, at, country,
       jsonb_agg(jsonb_build_array(what, currency, count, segments, charged) ORDER BY what, currency)::text AS sums,
       histogram_sum(to_receipt) FILTER (WHERE to_receipt <> '{{}}') AS to_receipt
  FROM (SELECT supplier_id,
               date_trunc(CASE WHEN 'hour' = ANY ($3) THEN 'hour' WHEN 'day' = ANY ($3) THEN 'day'
                               WHEN 'month' = ANY ($3) THEN 'month' END,
                          hour + make_interval(secs => $8), 'UTC') AS at,
               CASE WHEN 'country' = ANY ($3) THEN country END AS country, what, currency,
               sum(count)::bigint AS count, sum(segments)::bigint AS segments, sum(charged)::bigint AS charged,
               histogram_sum(to_receipt) FILTER (WHERE to_receipt <> '{{}}') AS to_receipt
          FROM ({kept}
                 UNION ALL
                SELECT supplier_id, hour, country, what, currency, count, segments, charged, to_receipt
                  FROM reconciliation_deltas) one
         WHERE hour >= $1 AND hour < $2 AND ($4::uuid IS NULL OR supplier_id = $4)
           AND ($5::text IS NULL OR country = $5)
         GROUP BY 1, 2, 3, 4, 5) by_what
 GROUP BY supplier_id, at, country ORDER BY CASE WHEN $7::boolean THEN at END DESC, at, supplier_id, country LIMIT $6
"""
READ = _READ.format(
    kept="""
                SELECT supplier_id, hour, country, what, currency, count, segments, charged, to_receipt
                  FROM reconciliation
                 WHERE day >= ($1::timestamptz AT TIME ZONE 'UTC')::date
                   AND day <= ($2::timestamptz AT TIME ZONE 'UTC')::date"""
)
#: The same for whole days, reading a twenty-fourth of the rows.
READ_DAYS = _READ.format(
    kept="""
                SELECT supplier_id, day::timestamp AT TIME ZONE 'UTC' AS hour, country, what, currency, count,
                       segments, charged, to_receipt
                  FROM reconciliation_days
                 WHERE day >= ($1::timestamptz AT TIME ZONE 'UTC')::date
                   AND day < ($2::timestamptz AT TIME ZONE 'UTC')::date"""
)


async def read(conn: Connection, query: Query) -> list[Line]:
    """The lines of a period, oldest first unless asked otherwise; empty ones are left out."""
    since, until = query.date_from - query.earlier, query.date_to - query.earlier
    whole = all(at.astimezone(UTC).time() == time() for at in (since, until))
    statement = READ_DAYS if whole and "hour" not in query.by else READ
    rows = await conn.fetch(
        statement,
        since,
        until,
        list(query.by),
        query.supplier_id,
        query.country,
        query.limit,
        query.is_latest_first,
        query.earlier.total_seconds(),
    )
    return [one for one in map(_line, rows) if one.counts]


def _line(row: asyncpg.Record) -> Line:
    # A page has hundreds of lines, and Counters take twice as long.
    counts: dict[str, int] = {}
    segments: dict[str, int] = {}
    unpriced: dict[str, int] = {}
    amounts: dict[str, dict[str, int]] = {}
    for what, currency, count, some, charged in _decode(row["sums"]):
        counts[what] = counts.get(what, 0) + count
        segments[what] = segments.get(what, 0) + some
        if currency:
            amounts.setdefault(what, {})[currency] = charged
        else:
            unpriced[what] = unpriced.get(what, 0) + count
    return Line(
        supplier_id=row["supplier_id"],
        at=row["at"],
        country=row["country"],
        counts=_some(counts),
        segments=_some(segments),
        amounts=amounts,
        unpriced=_some(unpriced),
        to_receipt=row["to_receipt"],
    )


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in counts.items() if value}
