"""Tariffs in a process's memory: every supplier's rate card, and every organization's price list.

Tariffs are small and change rarely, so a process holds all of them, periodically checks which have changed, and reloads
those. The rule nobody may break: a look-up neither waits nor queries the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.money import Charge
from heliograph.prices.tariff import Destination, Found, Rate, Tariff

KNOWN = "SELECT id, kind, name, supplier_id, currency, is_default, changed_at FROM tariffs WHERE kind = ANY ($1)"
# Rates that have ended are of no use for new charges.
RATES = """
SELECT country, mcc, mnc, prefix, message_class, sender_type, price, $2::text AS currency, unit, bill_on,
       effective_from, effective_to, rejects, notes, id
  FROM tariff_rates WHERE tariff_id = $1 AND coalesce(effective_to > $3, true)
"""
ASSIGNED = "SELECT id, price_list_id FROM organizations WHERE price_list_id IS NOT NULL"
#: The clocks of processes differ by less than this.
LATE = timedelta(hours=1)


class Book:
    """All tariffs, as they were at the last `refresh`.

    `kinds`: only rate cards ("cost") or price lists ("price").
    """

    def __init__(self, *, kinds: Sequence[str] = ("cost", "price")) -> None:
        self._kinds = kinds
        #: When each was changed last, and when it was loaded.
        self._tariffs: dict[UUID, tuple[datetime, datetime, Tariff]] = {}
        self._cards: Mapping[UUID, Tariff] = {}
        self._lists: Mapping[UUID, Tariff] = {}
        self._default: Tariff | None = None

    @property
    def has_cards(self) -> bool:
        """True if any supplier's costs are known."""
        return bool(self._cards)

    @property
    def has_lists(self) -> bool:
        """True if any organization pays a price."""
        return bool(self._lists) or self._default is not None

    async def refresh(self, conn: Connection | Pool) -> None:
        """Load whatever has changed since the last call."""
        rows = await conn.fetch(KNOWN, self._kinds)
        if not rows and not self._tariffs:
            return
        at, tariffs = clock.now(), {}
        for row in rows:
            known = self._tariffs.get(row["id"])
            is_same = known is not None and known[0] == row["changed_at"] and known[2].name == row["name"]
            # One loaded in times to come, before the clock was set back, lacks rates that have not ended.
            if known is not None and is_same and known[1] - at < LATE:
                tariffs[row["id"]] = known
                continue
            rates = await conn.fetch(RATES, row["id"], row["currency"], at - LATE)
            # In a thread, so that other requests are answered meanwhile: a hundred thousand rates take half a second.
            tariffs[row["id"]] = (row["changed_at"], at, await asyncio.to_thread(_compiled, row, rates))
        self._tariffs = tariffs
        self._cards = {row["supplier_id"]: tariffs[row["id"]][2] for row in rows if row["kind"] == "cost"}
        self._default = next((tariffs[row["id"]][2] for row in rows if row["is_default"]), None)
        lists = {row["id"] for row in rows if row["kind"] == "price"}
        assigned = await conn.fetch(ASSIGNED) if lists else []
        self._lists = {id: tariffs[of][2] for id, of in assigned if of in tariffs}

    def card(self, supplier_id: UUID) -> Tariff | None:
        """A supplier's rate card, if it has one."""
        return self._cards.get(supplier_id)

    def rate(
        self,
        supplier_id: UUID,
        to: Destination,
        at: datetime,
        *,
        message_class: str,
        sender_type: str,
        segments: float = 1,
    ) -> Rate | None:
        """A supplier's rate for a message of this many segments at a given time; None if its rate card has none, or one
        that rejects the message."""
        card = self._cards.get(supplier_id)
        if card is None:
            return None
        found = card.find(to, at, message_class=message_class, sender_type=sender_type, segments=segments)
        return None if found is None or found.rate.rejects else found.rate

    def price_list(self, organization_id: UUID) -> Tariff | None:
        """The price list that applies to an organization: its own, or the default one."""
        return self._lists.get(organization_id, self._default)


def charge(found: Found | None, segments: int) -> Charge | None:
    """The charge for a message of `segments`; None: there is no rate, or it rejects messages."""
    if found is None or found.rate.rejects:
        return None
    return Charge(found.rate.amount(segments), found.rate.currency, found.rate.bill_on)


def _compiled(row: asyncpg.Record, rates: Iterable[asyncpg.Record]) -> Tariff:
    return Tariff(row["id"], row["name"], row["currency"], [_rate(one) for one in rates])


def _rate(row: asyncpg.Record) -> Rate:
    values: dict[str, Any] = dict(row.items())
    return Rate(**values)
