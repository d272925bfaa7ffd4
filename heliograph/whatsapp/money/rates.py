"""Rates: the price of a delivered message by currency, category and country, from a date on.

An operator imports them; the code contains no prices, since Meta changes them every quarter and operators may charge
more. The rule nobody may break: a rate is valid from its `valid_from` until the next one, so a message accepted
yesterday can still be priced at yesterday's rate.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from itertools import chain, pairwise
from time import monotonic

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database import clock
from heliograph.base.database.clock import moment_in
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import Refusal
from heliograph.base.loading_cache import LoadingCache
from heliograph.base.money import is_currency, price_in
from heliograph.base.sentences import Sentence, said
from heliograph.prices.calendar import Row, Span
from heliograph.prices.tariff import NEVER

#: `service` is a text reply.
CATEGORIES = ("utility", "authentication", "marketing", "service")
#: What Meta charges for authentication in some countries if the sender's business is elsewhere. No message has this
#: category: only Meta knows when it applies, and says so once it has delivered.
ABROAD = "authentication-international"
#: Categories that rates are for.
PRICED = (*CATEGORIES, ABROAD)
#: All countries without a rate of their own.
ELSEWHERE = "*"
COLUMNS = ("currency", "category", "country", "valid_from", "price")
#: Maximum rows in a file, and maximum errors listed.
MOST_ROWS, MOST_ERRORS = 100_000, 50

_REGIONS = frozenset(phones.REGIONS.values()) - {"001"}


class RatesInvalid(Refusal):
    """The rates contain errors; nothing was imported."""

    code, status = "rates_invalid", 400


class Rate(msgspec.Struct, frozen=True):
    """The price of one delivered message, in millionths, from `valid_from` on."""

    currency: str
    category: str
    #: ISO region of the recipient's calling code, or ELSEWHERE.
    country: str
    valid_from: datetime
    price: int


class Imported(msgspec.Struct, frozen=True):
    """The result of an import."""

    new: int
    changed: int
    unchanged: int


def read_rates(lines: Iterable[str]) -> list[Rate]:
    """Parse the rates in a CSV file with the columns COLUMNS in any order, separated by commas, semicolons or tabs.

    `price`: units of the currency with up to six decimal places. `valid_from`: a day (its beginning in UTC), or a time
    with a time zone. Raises RatesInvalid with all problems: `errors`, a list of line and message.
    """
    rest = iter(lines)
    start = []
    for line in rest:
        start.append(line)
        if line.strip():
            break
    delimiter = max(",;\t", key="".join(start).count)
    try:
        return _read(csv.reader(chain(start, rest), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise RatesInvalid(
            errors=[{"line": 1, "message": said("this is not a CSV file: %(error)s", error=str(error))}]
        ) from None


# An existing rate with the same price is left alone, so a second import of a file changes nothing.
IMPORT = """
INSERT INTO whatsapp_rates AS known (currency, category, country, valid_from, price, created_at)
SELECT v.*, $6 FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[], $5::bigint[]) AS v
    ON CONFLICT (currency, category, country, valid_from) DO UPDATE SET price = excluded.price
 WHERE known.price <> excluded.price
RETURNING xmax = 0 AS new
"""


KNOWN = """
SELECT known.price FROM unnest($1::text[], $2::text[], $3::text[], $4::timestamptz[]) WITH ORDINALITY
       AS item (currency, category, country, valid_from, n)
  LEFT JOIN whatsapp_rates known USING (currency, category, country, valid_from) ORDER BY item.n
"""


async def import_rates(
    conn: Connection, rates: Sequence[Rate], *, dry_run: bool = False, by: Principal = SYSTEM
) -> Imported:
    """Store rates, all or none; one for the same currency, category, country and date replaces the old one.

    `dry_run`: only report what would change.
    """
    if dry_run:
        columns = ([one.currency for one in rates], [one.category for one in rates], [one.country for one in rates])
        known = await conn.fetch(KNOWN, *columns, [one.valid_from for one in rates])
        prices = [row["price"] for row in known]
        unchanged = sum(price == one.price for price, one in zip(prices, rates, strict=True))
        new = prices.count(None)
        return Imported(new, len(rates) - new - unchanged, unchanged)
    async with conn.transaction():
        rows = await conn.fetch(
            IMPORT,
            [one.currency for one in rates],
            [one.category for one in rates],
            [one.country for one in rates],
            [one.valid_from for one in rates],
            [one.price for one in rates],
            clock.now(),
        )
        new = sum(row["new"] for row in rows)
        imported = Imported(new, len(rows) - new, len(rates) - len(rows))
        if rows:
            currencies = sorted({one.currency for one in rates})
            await audit.record(conn, by, "rates.imported", object_id=", ".join(currencies), after=imported)
    return imported


LIST = """
SELECT currency, category, country, valid_from, price FROM whatsapp_rates
 WHERE ($1::text IS NULL OR currency = $1) AND ($2::text IS NULL OR category = $2)
   AND ($3::text IS NULL OR country = $3)
 ORDER BY currency, category, country, valid_from LIMIT $4
"""


async def list_rates(
    conn: Connection,
    *,
    currency: str | None = None,
    category: str | None = None,
    country: str | None = None,
    limit: int | None = None,
) -> list[Rate]:
    """All rates, past and future ones included, earliest first; or those of a currency, category or country. `limit`:
    the maximum number, from the first on; None: all."""
    return [Rate(*row) for row in await conn.fetch(LIST, currency, category, country, limit)]


IN_FORCE = """
SELECT DISTINCT ON (category, country) currency, category, country, valid_from, price FROM whatsapp_rates
 WHERE currency = $1 AND valid_from <= $2 ORDER BY category, country, valid_from DESC
"""


async def in_force(conn: Connection, *, currency: str, at: datetime) -> list[Rate]:
    """The rates of a currency in force at a time, by category and country."""
    return [Rate(*row) for row in await conn.fetch(IN_FORCE, currency, at)]


# A rate holds until the next one, so from the first rate on there is always one.
FIRST = """
SELECT asked.*, known.valid_from, known.price
  FROM unnest($1::text[], $2::text[], $3::text[]) AS asked (currency, category, country) CROSS JOIN LATERAL (
       SELECT valid_from, price FROM whatsapp_rates
        WHERE currency = asked.currency AND category = asked.category AND country = asked.country
        ORDER BY valid_from LIMIT 1) known
"""


async def lending(conn: Connection, rates: Iterable[Rate]) -> list[Rate]:
    """The first of each rate that may stand in for one of these: at most four per currency, category and country."""
    keys = sorted({(one.currency, *key) for one in rates for key in _order(one.category, one.country)})
    currencies, categories, countries = ([key[n] for key in keys] for n in range(3))
    return [Rate(*row) for row in await conn.fetch(FIRST, currencies, categories, countries)]


def calendar(shown: Iterable[Rate], lending: Iterable[Rate]) -> tuple[list[Row[Rate]], list[datetime]]:
    """The rows of a calendar, and the times at which the rate found may change. `shown`: all rates of each currency,
    category and country in it; `lending`: rates that may stand in for them."""
    by: dict[tuple[str, str, str], list[Rate]] = {}
    for one in sorted(shown, key=lambda one: one.valid_from):
        by.setdefault((one.currency, one.category, one.country), []).append(one)
    known: dict[str, set[Rate]] = {}
    for one in (*(one for own in by.values() for one in own), *lending):
        known.setdefault(one.currency, set()).add(one)
    books = {currency: Rates(some) for currency, some in known.items()}
    rows = [
        Row(own[0], _spans(own), partial(_is_found, books[currency], category, country))
        for (currency, category, country), own in by.items()
    ]
    return rows, sorted({one.valid_from for some in known.values() for one in some})


def _spans(own: Sequence[Rate]) -> list[Span[Rate]]:
    """When each rate holds: until the next one does."""
    times = [*(one.valid_from for one in own), NEVER]
    return [Span(begins, ends, one) for one, (begins, ends) in zip(own, pairwise(times), strict=True)]


def _is_found(rates: Rates, category: str, country: str, at: datetime) -> bool:
    return rates.price(category, country, at) is not None


@lru_cache(maxsize=4096)
def _order(category: str, country: str) -> tuple[tuple[str, str], ...]:
    """Categories and countries whose rate is a message's price: the first with a rate counts.

    A country without a rate of its own uses the category's rate for elsewhere. A text reply (`service`) without a rate
    costs as much as a utility template, which is how Meta charges it from 1 October 2026 on.
    """
    kinds = ("service", "utility") if category == "service" else (category,)
    return tuple((kind, where) for kind in kinds for where in (country, ELSEWHERE))


class Rates:
    """The rates of one currency, ready for look-ups."""

    def __init__(self, rates: Iterable[Rate]) -> None:
        self._known: dict[tuple[str, str], tuple[list[datetime], list[int]]] = {}
        for rate in sorted(rates, key=lambda one: one.valid_from):
            times, prices = self._known.setdefault((rate.category, rate.country), ([], []))
            times.append(rate.valid_from)
            prices.append(rate.price)

    def price(self, category: str, country: str, at: datetime) -> int | None:
        """Millionths; None if there is no rate, and none that stands in for it."""
        for key in _order(category, country):
            times, prices = self._known.get(key, ((), ()))
            place = bisect_right(times, at)
            if place:
                return prices[place - 1]
        return None


NO_RATES = Rates(())
#: Seconds for which rates are cached.
MAX_AGE = 0.5
LOAD = """
SELECT currency, category, country, valid_from, price FROM whatsapp_rates WHERE currency = ANY ($1)
"""


async def load(conn: Connection, currency: str) -> Rates:
    """The rates of a currency, as they are now."""
    return Rates(Rate(*row) for row in await conn.fetch(LOAD, [currency]))


class RateBook:
    """The rates, at most half a second old."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._fresh: LoadingCache[str, Rates] = LoadingCache(self._load, indivisible=is_down)
        self._within: dict[str, tuple[float, Rates]] = {}

    async def within(self, conn: Connection, currency: str) -> Rates:
        """`of` for a transaction: loaded over its own connection, since many transactions that hold one connection and
        wait for another would deadlock."""
        known = self._within.get(currency)
        if known is None or monotonic() - known[0] > MAX_AGE:
            asked_at = monotonic()
            known = self._within[currency] = (asked_at, await load(conn, currency))
        return known[1]

    async def of(self, currency: str) -> Rates:
        """The rates of a currency."""
        fresh, rates = self._fresh.peek(currency)
        if not fresh:
            rates = await self._fresh.get(currency)
        return rates or NO_RATES

    async def price(self, currency: str, category: str, country: str, at: datetime) -> int | None:
        """Millionths for one delivered message accepted at `at`; None if there is no rate.

        None is always based on the database's current state, so that an import takes effect with its commit.
        """
        found = (await self.of(currency)).price(category, country, at)
        if found is None:
            found = (await self._fresh.get(currency, bypass_cache=True) or NO_RATES).price(category, country, at)
        return found

    async def _load(self, currencies: Sequence[str]) -> dict[str, Rates]:
        rows = await self._pool.fetch(LOAD, currencies)
        found: dict[str, list[Rate]] = {}
        for row in rows:
            found.setdefault(row["currency"], []).append(Rate(*row))
        return {currency: Rates(rates) for currency, rates in found.items()}


def _read(rows: Iterable[list[str]]) -> list[Rate]:
    errors: list[dict[str, object]] = []
    found: dict[tuple[str, str, str, datetime], Rate] = {}
    places: dict[str, int] = {}
    width = 0
    for line, cells in enumerate(rows, 1):
        cells = [cell.strip() for cell in cells]
        if not any(cells):
            continue
        if not places:
            names = [name.lower().lstrip("\ufeff") for name in cells]
            while names and not names[-1]:
                names.pop()
            places, width = {name: place for place, name in enumerate(names)}, len(names)
            if twice := [name for name in COLUMNS if names.count(name) > 1]:
                raise RatesInvalid(
                    errors=[{"line": line, "message": said("the column %(column)s appears twice", column=twice[0])}]
                )
            if absent := [name for name in COLUMNS if name not in places]:
                raise RatesInvalid(
                    errors=[
                        {"line": line, "message": said("the header row lacks %(columns)s", columns=", ".join(absent))}
                    ]
                )
            continue
        if line > MOST_ROWS or len(errors) == MOST_ERRORS:
            errors.append({"line": line, "message": said("the remaining lines were not checked")})
            break
        # A price written as 0,01 without quotation marks is two cells, and would be 0.
        if len(cells) < width or any(cells[width:]):
            errors.append(
                {"line": line, "message": said("has %(cells)s cells, not %(columns)s", cells=len(cells), columns=width)}
            )
            continue
        rate = _rate({name: cells[places[name]] for name in COLUMNS})
        if isinstance(rate, Sentence):
            errors.append({"line": line, "message": rate})
            continue
        known = found.setdefault((rate.currency, rate.category, rate.country, rate.valid_from), rate)
        if known.price != rate.price:
            errors.append({"line": line, "message": said("an earlier line has a different price for the same rate")})
    if not places:
        errors.append(
            {
                "line": 1,
                "message": said("the header row must contain the columns %(columns)s", columns=", ".join(COLUMNS)),
            }
        )
    if errors:
        raise RatesInvalid(errors=errors)
    return list(found.values())


def _rate(cells: dict[str, str]) -> Rate | Sentence:
    """A row's rate, or its problem."""
    currency, category, country = (
        cells["currency"].upper(),
        cells["category"].lower().replace("_", "-"),
        cells["country"].upper(),
    )
    if not is_currency(currency):
        return said("currency %(value)s is not an ISO 4217 code, such as EUR", value=repr(cells["currency"]))
    if category not in PRICED:
        return said(
            "%(column)s %(value)s is not one of %(known)s",
            column="category",
            value=repr(cells["category"]),
            known=", ".join(PRICED),
        )
    if country != ELSEWHERE and country not in _REGIONS:
        return said(
            "country %(value)s is neither a country with a calling code, such as MZ, nor *",
            value=repr(cells["country"]),
        )
    valid_from = moment_in(cells["valid_from"])
    if valid_from is None:
        return said(
            "%(column)s %(value)s is neither a date nor a time with a time zone",
            column="valid_from",
            value=repr(cells["valid_from"]),
        )
    price = price_in(cells["price"])
    if isinstance(price, Sentence):
        return price
    return Rate(currency, category, country, valid_from, price)
