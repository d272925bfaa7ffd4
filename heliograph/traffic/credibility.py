"""Credibility of suppliers' receipts: statistical signs of receipts that did not come from handsets.

Some suppliers drop messages and report them as delivered. Such receipts arrive faster than a handset can answer, are
better than anybody else's for the same country, or concern codes that nobody enters. Each sign needs many messages, and
none is proof.

The rule nobody may break: nothing is decided here. Operators are notified, and investigate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from math import sqrt
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7_floor
from heliograph.traffic.reconciliation import Line

#: Minimum number of receipts for judging their speed; the share of them within FAST seconds that is too large.
#: Histograms have a boundary there, and none at one second.
MANY, FAST_SHARE, FAST = 200, 0.95, 1.024
_FAST_BUCKETS = 10
#: Minimum number of messages for judging a share, the share that is too good, and how bad that of all others must be.
PERFECT_OF, PERFECT, OTHERS = 500, 0.995, 0.95
#: Minimum number of delivered codes, of a supplier and of the others, for comparing conversions; the difference in
#: standard deviations that is not a coincidence.
CODES, GAP = 100, 4.0
#: The period over which conversions are compared, without the last minutes, in which codes may still be entered.
SPAN, MATURE = timedelta(hours=24), timedelta(minutes=15)


def too_fast(line: Line) -> float | None:
    """The share of receipts that arrived faster than handsets answer, if it is implausibly large; otherwise None."""
    total = sum(line.to_receipt)
    if total < MANY or line["delivered"] * 2 < line.matched:
        return None
    share = sum(line.to_receipt[:_FAST_BUCKETS]) / total
    return share if share > FAST_SHARE else None


class ImplausiblyPerfect(msgspec.Struct, frozen=True):
    """A supplier that delivers implausibly much, in a country where others do not."""

    country: str
    share: float
    others: float


def too_perfect(lines: Sequence[Line]) -> dict[UUID, ImplausiblyPerfect]:
    """From lines by supplier and country, the suppliers that deliver nearly everything where the others together do
    not."""
    found: dict[UUID, ImplausiblyPerfect] = {}
    for one in lines:
        share = one.delivered_share
        if one.country is None or share is None or share < PERFECT or _ended(one) < PERFECT_OF:
            continue
        others = [two for two in lines if two.country == one.country and two.supplier_id != one.supplier_id]
        ended = sum(map(_ended, others))
        theirs = sum(two["delivered"] for two in others) / ended if ended >= PERFECT_OF else 1.0
        if theirs <= OTHERS and (one.supplier_id not in found or theirs < found[one.supplier_id].others):
            found[one.supplier_id] = ImplausiblyPerfect(one.country, share, theirs)
    return found


def _ended(line: Line) -> int:
    return line.matched + line["never"]


def deviations(converted: int, of: int, others: int, of_others: int) -> float:
    """By how many standard deviations the others' share is larger: the two-proportion test."""
    both = (converted + others) / (of + of_others)
    error = sqrt(both * (1 - both) * (1 / of + 1 / of_others))
    return (others / of_others - converted / of) / error if error else 0.0


class RarelyConfirmed(msgspec.Struct, frozen=True):
    """A supplier whose delivered codes are entered far less often than those that others deliver to the same people."""

    country: str
    share: float
    count: int
    others: float
    deviations: float


# Only organizations that report conversions; the newest messages of each. Receipts that contradict them incriminate
# their supplier.
CONVERTED = """
SELECT m.organization_id, m.country, m.supplier_id, count(*)::int AS delivered, count(c.message_id)::int AS converted
  FROM (SELECT DISTINCT organization_id
          FROM (SELECT organization_id FROM guard_conversions WHERE converted_at > $1
                 ORDER BY converted_at DESC LIMIT 2000) latest
         ORDER BY organization_id LIMIT 10) asked
       CROSS JOIN LATERAL (
           SELECT organization_id, id, country, supplier_id FROM messages
            WHERE organization_id = asked.organization_id AND id >= $2 AND id < $3 AND class = 'otp'
              AND mode = 'live' AND status = 'delivered' AND supplier_id IS NOT NULL
            ORDER BY id DESC LIMIT 5000) m
       LEFT JOIN guard_conversions c ON c.organization_id = m.organization_id AND c.message_id = m.id
 GROUP BY 1, 2, 3
"""


async def unheard(conn: Connection, *, at: datetime) -> dict[UUID, RarelyConfirmed]:
    """Suppliers whose codes nobody enters, according to organizations: for each, the clearest case."""
    bounds = at - SPAN, uuid7_floor(at - SPAN), uuid7_floor(at - MATURE)
    places: dict[tuple[UUID, str], dict[UUID, tuple[int, int]]] = {}
    for organization_id, country, supplier_id, delivered, converted in await conn.fetch(CONVERTED, *bounds):
        places.setdefault((organization_id, country), {})[supplier_id] = (converted, delivered)
    found: dict[UUID, RarelyConfirmed] = {}
    for (_, country), rates in places.items():
        for id, one in _gaps(country, rates):
            if id not in found or one.deviations > found[id].deviations:
                found[id] = one
    return found


def _gaps(country: str, rates: Mapping[UUID, tuple[int, int]]) -> Iterable[tuple[UUID, RarelyConfirmed]]:
    """The differences between the suppliers of one organization in one country; `rates`: (converted, delivered)
    each."""
    for id, (converted, of) in rates.items():
        others = [known for other, known in rates.items() if other != id]
        theirs, of_theirs = sum(known for known, _ in others), sum(known for _, known in others)
        if of < CODES or of_theirs < CODES:
            continue
        gap = deviations(converted, of, theirs, of_theirs)
        if gap >= GAP:
            yield id, RarelyConfirmed(country, converted / of, of, theirs / of_theirs, gap)
