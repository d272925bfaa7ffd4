"""Money and quota of all organizations, for operators: upcoming renewals, wallet totals, and which prices apply when.

The rule nobody may break: amounts in different currencies are never added.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.prices import tariffs
from heliograph.prices.tariff import Rate, Tariff
from heliograph.sms import charges
from heliograph.whatsapp.money.rates import ELSEWHERE, PRICED

#: Rows per page; upcoming renewals listed; destinations named per tariff.
PAGE, AHEAD, NAMED = 50, 50, 12


class Renewal(msgspec.Struct, frozen=True):
    """A period that ends, and the quota that the next one brings (None: the quota is unchanged)."""

    id: UUID
    name: str
    state: str
    plan: str
    allowance: int | None
    period_end: datetime
    remaining: int
    total: int


# Uses the index on the ends of periods; at most AHEAD quotas are looked up.
RENEWALS = """
SELECT o.id, o.name, o.state, o.plan, o.allowance, o.period_end, q.total - q.used AS remaining, q.total
  FROM (SELECT * FROM organizations WHERE period_anchor IS NOT NULL AND state <> 'closed'
         ORDER BY period_end LIMIT $1) o
       CROSS JOIN LATERAL (SELECT * FROM quotas WHERE organization_id = o.id LIMIT 1) q
 ORDER BY o.period_end, o.name
"""


async def renewals(conn: Connection) -> list[Renewal]:
    """The next AHEAD renewals, earliest first."""
    return [Renewal(**row) for row in await conn.fetch(RENEWALS, AHEAD)]


class Balance(msgspec.Struct, frozen=True):
    """An organization's wallet, in millionths of its currency."""

    organization_id: UUID
    name: str
    currency: str
    available: int
    reserved: int
    consumed: int
    total: int
    updated_at: datetime
    is_low: bool

    @property
    def difference(self) -> int:
        """The difference between the total and the sum of its parts: should be 0."""
        return self.total - self.available - self.reserved - self.consumed


WALLETS = """
SELECT w.organization_id, o.name, w.currency, w.available, w.reserved, w.consumed, w.total, w.updated_at,
       coalesce(w.available < w.alert_below, false) AS is_low
  FROM (SELECT * FROM wallets WHERE $1::uuid IS NULL OR organization_id < $1
         ORDER BY organization_id DESC LIMIT $2) w
       JOIN organizations o ON o.id = w.organization_id
 ORDER BY w.organization_id DESC
"""


async def wallets(conn: Connection, *, after: UUID | None = None, limit: int = PAGE) -> list[Balance]:
    """Wallets, newest organizations first."""
    return [Balance(**row) for row in await conn.fetch(WALLETS, after, limit)]


class Sum(msgspec.Struct, frozen=True):
    """All wallets of a currency. `booked`: top-ups and adjustments according to the ledgers, which must equal the
    total."""

    currency: str
    wallets: int
    available: int
    reserved: int
    consumed: int
    total: int
    booked: int

    @property
    def difference(self) -> int:
        """The difference between the total, its parts and the ledgers: should be 0."""
        return abs(self.total - self.available - self.reserved - self.consumed) + abs(self.total - self.booked)


# Operators make few changes; messages only move amounts from one part to another.
SUMS = """
SELECT w.currency, count(*) AS wallets, sum(w.available)::bigint AS available, sum(w.reserved)::bigint AS reserved,
       sum(w.consumed)::bigint AS consumed, sum(w.total)::bigint AS total, coalesce(sum(l.booked), 0)::bigint AS booked
  FROM wallets w
       LEFT JOIN (SELECT organization_id, sum(available) AS booked FROM wallet_ledger GROUP BY 1) l
              USING (organization_id)
 GROUP BY w.currency ORDER BY w.currency
"""


async def sums(conn: Connection) -> list[Sum]:
    """Totals of all wallets, by currency."""
    return [Sum(**row) for row in await conn.fetch(SUMS)]


#: Categories that are sent, and whose messages cost what no other rate says.
NEEDED = ("utility", "authentication")


class Validity(msgspec.Struct, frozen=True):
    """WhatsApp rates of one currency and category: how many are in effect, and when they change."""

    currency: str
    category: str
    #: Countries with their own rate in effect now, and rates that begin later.
    holding: int
    coming: int
    #: When the next one begins, and when the latest ones took effect.
    next_at: datetime | None
    latest_at: datetime | None
    #: The rate for all other countries, in millionths; None: there is none.
    elsewhere: int | None

    @property
    def is_missing(self) -> bool:
        """True if sends to countries without a rate of their own are refused. Other categories have a stand-in, or are
        not sent."""
        return self.elsewhere is None and self.category in NEEDED


# A currency used by a wallet or account needs every category that is sent; whatever only has rates is shown as is.
VALIDITY = f"""
WITH wanted AS (
    SELECT currency, category
      FROM (SELECT currency FROM wallets UNION SELECT currency FROM whatsapp_accounts WHERE state <> 'removed'
            UNION SELECT currency FROM whatsapp_rates) used
           CROSS JOIN unnest($1::text[]) AS category
), dated AS (
    SELECT *, valid_from <= now() AS begun,
           row_number() OVER (PARTITION BY currency, category, country, valid_from <= now()
                              ORDER BY valid_from DESC) AS n
      FROM whatsapp_rates
)
SELECT w.currency, w.category,
       count(d.country) FILTER (WHERE d.begun AND d.n = 1 AND d.country <> '{ELSEWHERE}') AS holding,
       count(d.country) FILTER (WHERE NOT d.begun) AS coming,
       min(d.valid_from) FILTER (WHERE NOT d.begun) AS next_at,
       max(d.valid_from) FILTER (WHERE d.begun AND d.n = 1) AS latest_at,
       max(d.price) FILTER (WHERE d.begun AND d.n = 1 AND d.country = '{ELSEWHERE}') AS elsewhere
  FROM wanted w LEFT JOIN dated d USING (currency, category)
 WHERE w.category = ANY ($2::text[]) OR d.country IS NOT NULL
 GROUP BY w.currency, w.category ORDER BY w.currency, w.category
"""


async def validity(conn: Connection) -> list[Validity]:
    """The WhatsApp rates in effect, by currency and category; includes missing ones for currencies in use."""
    return [Validity(**row) for row in await conn.fetch(VALIDITY, list(PRICED), NEEDED)]


class Card(msgspec.Struct, frozen=True):
    """A supplier's rate card or a price list for SMS: current, upcoming, and ended rates."""

    id: UUID
    kind: str
    name: str
    currency: str
    is_default: bool
    organizations: int
    holding: int
    coming: int
    next_at: datetime | None
    #: Destinations for which no rate applies now, not even a broader one: at most NAMED.
    gaps: list[str]
    #: Those for which none does once their last rate ends: at most NAMED.
    ending: list[str]


# `unheld`: the rates of destinations of which none is in effect; `last`: those that end last, if they do.
CARDS = f"""
SELECT t.id, t.kind, t.name, t.currency, t.is_default,
       (SELECT count(*) FROM organizations o WHERE o.price_list_id = t.id) AS organizations,
       r.holding, r.coming, r.next_at, coalesce(r.unheld, '{{}}') AS unheld, coalesce(r.last, '{{}}') AS last
  FROM {tariffs.NAMED} t CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE is_held) AS holding, count(*) FILTER (WHERE effective_from > now()) AS coming,
              least(min(effective_from) FILTER (WHERE effective_from > now()),
                    min(effective_to) FILTER (WHERE effective_to > now())) AS next_at,
              array_agg(id) FILTER (WHERE last_to > now() AND effective_to = last_to) AS last,
              array_agg(id) FILTER (WHERE NOT ever_held) AS unheld
         FROM (SELECT *, coalesce(effective_from <= now(), true) AND coalesce(effective_to > now(), true) AS is_held,
                      bool_or(coalesce(effective_from <= now(), true) AND coalesce(effective_to > now(), true)) OVER (
                          PARTITION BY country, mcc, mnc, prefix, message_class, sender_type) AS ever_held,
                      max(coalesce(effective_to, 'infinity')) OVER (
                          PARTITION BY country, mcc, mnc, prefix, message_class, sender_type) AS last_to
                 FROM tariff_rates WHERE tariff_id = t.id) one) r
 ORDER BY t.kind, lower(t.name), t.id
"""


async def cards(conn: Connection) -> list[Card]:
    """Suppliers' rate cards and organizations' price lists, with what is in effect now."""
    at, found = clock.now(), []
    for row in await conn.fetch(CARDS):
        values = dict(row)
        unheld, last = values.pop("unheld"), values.pop("last")
        gaps: list[str] = []
        ending: list[str] = []
        # All of its rates are only needed where a broader one may apply instead.
        if unheld or last:
            rates = await conn.fetch(tariffs.RATES, row["id"], row["currency"])
            gaps, ending = await asyncio.to_thread(_missing, row, rates, set(unheld), set(last), at)
        found.append(Card(**values, gaps=gaps, ending=ending))
    return found


def _missing(
    row: asyncpg.Record,
    listed: Iterable[asyncpg.Record],
    unheld: Collection[UUID],
    last: Collection[UUID],
    at: datetime,
) -> tuple[list[str], list[str]]:
    """The destinations for which the look-up finds no rate at a time, and those for which it finds none when their last
    one ends."""
    rates = [Rate(**one) for one in listed]
    tariff = Tariff(row["id"], row["name"], row["currency"], rates)
    gaps = {_destination(one) for one in rates if one.id in unheld and not charges.is_found(tariff, one, at)}
    ending = {_destination(one) for one in rates if one.id in last and not charges.is_found(tariff, one, one.ends)}
    return sorted(gaps)[:NAMED], sorted(ending)[:NAMED]


def _destination(one: Rate) -> str:
    return f"{one.country} {one.mcc}{one.mnc}{one.prefix}".strip()
