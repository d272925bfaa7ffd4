"""Tariffs in a process's memory: every supplier's card, and the price list of any organization.

Tariffs are small and change rarely, so a process holds all of them, asks now and then which have changed, and loads
those anew. The rule nobody may break: a look-up neither waits nor asks the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.money import Charge
from heliograph.prices.tariff import Found, Rate, Tariff

KNOWN = "SELECT id, kind, name, supplier_id, currency, is_default, changed_at FROM tariffs"
# What has ended is of no use for what is charged from now on.
RATES = """
SELECT country, mcc, mnc, prefix, message_class, sender_type, price, $2::text AS currency, unit, bill_on,
       effective_from, effective_to, rejects, notes, id
  FROM tariff_rates WHERE tariff_id = $1 AND coalesce(effective_to > $3, true)
"""
ASSIGNED = "SELECT id, price_list_id FROM organizations WHERE price_list_id IS NOT NULL"
#: Clocks of processes differ by less.
LATE = timedelta(hours=1)


class Book:
    """All tariffs, as they were at the last `refresh`."""

    def __init__(self) -> None:
        self._tariffs: dict[UUID, tuple[datetime, Tariff]] = {}
        self._cards: Mapping[UUID, Tariff] = {}
        self._lists: Mapping[UUID, Tariff] = {}
        self._default: Tariff | None = None

    @property
    def has_cards(self) -> bool:
        """Whether any supplier's costs are known."""
        return bool(self._cards)

    @property
    def has_lists(self) -> bool:
        """Whether anybody pays a price."""
        return bool(self._lists) or self._default is not None

    async def refresh(self, conn: Connection | Pool) -> None:
        """Load what has changed since the last time."""
        rows = await conn.fetch(KNOWN)
        if not rows and not self._tariffs:
            return
        tariffs = {}
        for row in rows:
            known = self._tariffs.get(row["id"])
            if known is not None and known[0] == row["changed_at"] and known[1].name == row["name"]:
                tariffs[row["id"]] = known
                continue
            rates = await conn.fetch(RATES, row["id"], row["currency"], clock.now() - LATE)
            compiled = Tariff(row["id"], row["name"], row["currency"], [_rate(one) for one in rates])
            tariffs[row["id"]] = (row["changed_at"], compiled)
        self._tariffs = tariffs
        self._cards = {row["supplier_id"]: tariffs[row["id"]][1] for row in rows if row["kind"] == "cost"}
        self._default = next((tariffs[row["id"]][1] for row in rows if row["is_default"]), None)
        lists = {row["id"] for row in rows if row["kind"] == "price"}
        assigned = await conn.fetch(ASSIGNED) if lists else []
        self._lists = {id: tariffs[of][1] for id, of in assigned if of in tariffs}

    def card(self, supplier_id: UUID) -> Tariff | None:
        """A supplier's rate card, if it has one."""
        return self._cards.get(supplier_id)

    def price_list(self, organization_id: UUID) -> Tariff | None:
        """What an organization pays by: its own list, or the default one."""
        return self._lists.get(organization_id, self._default)


def charge(found: Found | None, segments: int) -> Charge | None:
    """What a message of so many segments is charged; None: there is no rate, or nothing is to be sent there."""
    if found is None or found.rate.rejects:
        return None
    return Charge(found.rate.amount(segments), found.rate.currency, found.rate.bill_on)


def _rate(row: asyncpg.Record) -> Rate:
    values: dict[str, Any] = dict(row.items())
    return Rate(**values)
