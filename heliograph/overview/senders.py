"""The outcome of an organization's SMS, by sender ID and country.

The rule nobody may break: figures come from the roll-ups; no message is counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from heliograph import traffic
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.overview.figures import DeliveryStats, summed
from heliograph.traffic import Point

#: Days covered.
DAYS = 30


class Sent(msgspec.Struct, frozen=True):
    """What a sender ID sent in the last DAYS. `countries`: (ISO 3166, "001" for none; figures), most messages first."""

    all: DeliveryStats
    countries: list[tuple[str, DeliveryStats]]


async def sent(conn: Connection, actor: Actor, *, values: Sequence[str]) -> dict[str, Sent]:
    """Traffic by sender ID value; sender IDs that sent nothing are omitted."""
    since = (clock.now() - timedelta(days=DAYS)).date()
    found = await traffic.by_sender(conn, actor, senders=values, since=since)
    return {value: _sent(by_country) for value, by_country in found.items() if any(by_country.values())}


def _sent(by_country: dict[str, dict[str, int]]) -> Sent:
    total = Counter[str]()
    for counts in by_country.values():
        total.update(counts)
    countries = [(country, _figures(counts)) for country, counts in by_country.items() if counts]
    countries.sort(key=lambda one: (-one[1].accepted, one[0]))
    return Sent(_figures(total), countries)


def _figures(counts: dict[str, int]) -> DeliveryStats:
    return summed([Point(clock.EPOCH, None, counts, 0, [], [])])
