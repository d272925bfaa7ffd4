"""Margins: what organizations pay and what suppliers charge, by day, supplier, country, network and route.

    moves of messages ── deltas, in the same commit ──► margin_deltas ── folded by a timer ──► margins, and its sums
                                                                             margin_days and margin_organizations

The rule nobody may break: an amount is added once, in the commit of the move that makes it due, on the day of that
commit, and under its own currency. Amounts in different currencies are never added or subtracted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.money import half_up
from heliograph.queue import folding

#: Stands for an unknown supplier.
NONE = UUID(int=0)
#: True if there is something to fold.
ANY = "EXISTS (SELECT FROM margin_deltas)"


class Due(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What became due with one move of a message. `messages`: 1 if a supplier accepted it in this move. Amounts are in
    millionths; a currency is empty where there is no amount."""

    organization_id: UUID
    at: datetime
    supplier_id: UUID | None
    country: str
    network: str
    #: Name, at that time, of the route that chose the supplier; empty: none did, or it is not known.
    route: str = ""
    messages: int
    segments: int
    price: int
    price_currency: str
    cost: int
    cost_currency: str


APPEND = """
INSERT INTO margin_deltas (organization_id, batch, n, day, supplier_id, country, network, route, price_currency,
                           cost_currency, messages, segments, price, cost)
SELECT organization_id, $1, n, day, supplier_id, country, network, route, price_currency, cost_currency, messages,
       segments, price, cost
  FROM unnest($2::uuid[], $3::date[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
              $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]) WITH ORDINALITY
       AS item (organization_id, day, supplier_id, country, network, route, price_currency, cost_currency, messages,
                segments, price, cost, n)
"""


async def record(conn: Connection, some: Iterable[Due]) -> None:
    """Append what became due, in the caller's transaction: a row per combination, not per message."""
    sums: dict[tuple[object, ...], list[int]] = {}
    for one in some:
        day = one.at.astimezone(UTC).date()
        key = (
            *(one.organization_id, day, one.supplier_id or NONE, one.country, one.network, one.route),
            *(one.price_currency, one.cost_currency),
        )
        sum_ = sums.setdefault(key, [0, 0, 0, 0])
        for place, amount in enumerate((one.messages, one.segments, one.price, one.cost)):
            sum_[place] += amount
    rows = [(*key, *sum_) for key, sum_ in sums.items() if any(sum_)]
    if rows:
        await conn.execute(APPEND, uuid7(), *(list(column) for column in zip(*rows, strict=True)))


# Ordered by key, so that two concurrent folds cannot deadlock.
FOLD = """
WITH gone AS (
    DELETE FROM margin_deltas WHERE ctid = ANY (ARRAY(SELECT ctid FROM margin_deltas LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *
), added AS (
    INSERT INTO margins AS known (organization_id, day, supplier_id, country, network, route, price_currency,
                                  cost_currency, messages, segments, price, cost)
    SELECT organization_id, day, supplier_id, country, network, route, price_currency, cost_currency,
           sum(messages)::bigint, sum(segments)::bigint, sum(price)::bigint, sum(cost)::bigint
      FROM gone GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
    ON CONFLICT (organization_id, day, supplier_id, country, network, route, price_currency, cost_currency) DO UPDATE
       SET messages = known.messages + excluded.messages, segments = known.segments + excluded.segments,
           price = known.price + excluded.price, cost = known.cost + excluded.cost
), added_to_day AS (
    INSERT INTO margin_days AS known (day, supplier_id, country, network, route, price_currency, cost_currency,
                                      messages, segments, price, cost)
    SELECT day, supplier_id, country, network, route, price_currency, cost_currency, sum(messages)::bigint,
           sum(segments)::bigint, sum(price)::bigint, sum(cost)::bigint
      FROM gone GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
    ON CONFLICT (day, supplier_id, country, network, route, price_currency, cost_currency) DO UPDATE
       SET messages = known.messages + excluded.messages, segments = known.segments + excluded.segments,
           price = known.price + excluded.price, cost = known.cost + excluded.cost
), added_to_organization AS (
    INSERT INTO margin_organizations AS known (organization_id, day, price_currency, cost_currency, messages,
                                               segments, price, cost)
    SELECT organization_id, day, price_currency, cost_currency, sum(messages)::bigint, sum(segments)::bigint,
           sum(price)::bigint, sum(cost)::bigint
      FROM gone GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (organization_id, day, price_currency, cost_currency) DO UPDATE
       SET messages = known.messages + excluded.messages, segments = known.segments + excluded.segments,
           price = known.price + excluded.price, cost = known.cost + excluded.cost
)
SELECT count(*) FROM gone
"""


async def fold(conn: Connection) -> int:
    """Fold the accumulated deltas; returns how many there were."""
    return await folding.fold(conn, FOLD)


class Line(msgspec.Struct, frozen=True):
    """A sum. Attributes that it is not grouped by are None."""

    day: date | None
    organization: str | None
    supplier: str | None
    country: str | None
    network: str | None
    #: Empty: no route chose the supplier, or it is not known.
    route: str | None
    messages: int
    segments: int
    #: Millionths.
    price: int
    price_currency: str
    cost: int
    cost_currency: str

    @property
    def margin(self) -> int | None:
        """Price minus cost; None if they are in different currencies, or one of them is not known."""
        return self.price - self.cost if self.price_currency == self.cost_currency != "" else None

    def rounded(self, places: int) -> Line:
        """The line as on an invoice: sums are rounded once, half-up; amounts of single messages never are."""
        price, cost = (half_up(amount, places) for amount in (self.price, self.cost))
        return msgspec.structs.replace(self, price=price, cost=cost)


#: What lines can be grouped by.
PARTS = ("day", "organization", "supplier", "country", "network", "route")
_PLACE, _ORGANIZATION = ("supplier_id", "country", "network", "route"), ("organization_id",)


def _read(table: str, kept: Sequence[str]) -> str:
    """The query over one table that keeps only `kept` of the grouping columns, including deltas that are not folded
    yet. For operators: over all organizations, or one ($3)."""
    # Grouped by position: a name would refer to the table's column instead of the result of the CASE. 10 and 12 are the
    # currencies.
    unknown = {"organization_id": "NULL::uuid", "supplier_id": "NULL::uuid"}
    unknown |= dict.fromkeys(("country", "network", "route"), "''")
    columns = ", ".join(name if name in kept else f"{null} AS {name}" for name, null in unknown.items())
    columns += ", day, messages, segments, price, price_currency, cost, cost_currency"
    return f"""
SELECT m.day, o.name AS organization, CASE WHEN $7::boolean THEN coalesce(s.name, '') END AS supplier,
       m.country, m.network, m.route, m.messages, m.segments, m.price, m.price_currency, m.cost, m.cost_currency
  FROM (SELECT CASE WHEN $5::boolean THEN day END AS day,
               CASE WHEN $6::boolean THEN organization_id END AS organization_id,
               CASE WHEN $7::boolean THEN supplier_id END AS supplier_id,
               CASE WHEN $8::boolean THEN country END AS country,
               CASE WHEN $9::boolean THEN network END AS network,
               CASE WHEN $10::boolean THEN route END AS route,
               sum(messages)::bigint AS messages, sum(segments)::bigint AS segments,
               CASE WHEN $12::boolean THEN sum(price)::bigint ELSE 0 END AS price,
               CASE WHEN $12::boolean THEN price_currency ELSE '' END AS price_currency,
               CASE WHEN $13::boolean THEN sum(cost)::bigint ELSE 0 END AS cost,
               CASE WHEN $13::boolean THEN cost_currency ELSE '' END AS cost_currency
          FROM (SELECT {columns} FROM {table}
                UNION ALL
                SELECT {columns} FROM margin_deltas) one
         WHERE day >= $1 AND day < $2 AND ($3::uuid IS NULL OR organization_id = $3)
           AND ($4::text IS NULL OR route = $4)
         GROUP BY 1, 2, 3, 4, 5, 6, 10, 12) m
       LEFT JOIN organizations o ON o.id = m.organization_id LEFT JOIN suppliers s ON s.id = m.supplier_id
 ORDER BY m.day, o.name, m.organization_id, s.name, m.supplier_id, m.country, m.network, m.route,
       m.price_currency, m.cost_currency LIMIT $11
"""


READ = _read("margins", (*_ORGANIZATION, *_PLACE))
READ_DAYS, READ_ORGANIZATIONS = _read("margin_days", _PLACE), _read("margin_organizations", _ORGANIZATION)


async def read(
    conn: Connection,
    *,
    first: date,
    last: date,
    organization_id: UUID | None = None,
    by: Sequence[str] = PARTS[:4],
    route: str | None = None,
    only: Literal["price", "cost"] | None = None,
    limit: int | None = None,
) -> list[Line]:
    """The sums of the days from `first` until before `last`, grouped by some of PARTS and always by currency; in total,
    or of an organization or a route (name). `only`: leave out the other amount, by whose currency lines are then not
    distinguished. `limit`: maximum lines; None: all."""
    placed = route is not None or bool({"supplier", "country", "network", "route"} & set(by))
    if "organization" not in by and organization_id is None:
        statement = READ_DAYS
    else:
        statement = READ if placed else READ_ORGANIZATIONS
    sides = (only != "cost", only != "price")
    parts = (part in by for part in PARTS)
    rows = await conn.fetch(statement, first, last, organization_id, route, *parts, limit, *sides)
    return [Line(*row) for row in rows]
