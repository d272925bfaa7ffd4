"""The cost and price of an SMS, and its destination network, from tables that each process holds in memory.

The rule nobody may break: no message waits for its price or cost. What is unknown is recorded as unknown, and left out
of every margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from time import monotonic
from uuid import UUID

from heliograph.accounts.organizations import DestinationNotAllowed
from heliograph.base import phones
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.loading_cache import EVERY, Current
from heliograph.base.money import Charge
from heliograph.networks import plan
from heliograph.networks.directory import Directory, NumberOrigin
from heliograph.prices.book import Book, charge
from heliograph.prices.calendar import Row, Span
from heliograph.prices.tariff import Destination, Found, Rate, Tariff, sender_type


class Charges:
    """The tariffs and networks that a process holds."""

    def __init__(self) -> None:
        self.book = Book()
        self.directory = Directory()
        #: True if any route names a network.
        self.routes_by_network = False
        self._refreshed_at = float("-inf")

    @property
    def age(self) -> float:
        """Seconds since the last `refresh` began."""
        return monotonic() - self._refreshed_at

    async def refresh(self, conn: Connection | Pool) -> None:
        """Load what has changed, unless that was done within EVERY."""
        if self.age < EVERY:
            return
        at = monotonic()
        await self.book.refresh(conn)
        # Networks of single numbers matter only where there are rates, or routes to networks.
        if self.routes_by_network or self.book.has_cards or self.book.has_lists:
            await self.directory.refresh(conn)
        self._refreshed_at = at

    def rate(
        self,
        tariff: Tariff,
        place: NumberOrigin,
        recipient: str,
        sender: str,
        segments: int,
        at: datetime,
        message_class: str,
    ) -> Found | None:
        """A tariff's rate for a message of this many segments; None if it has none."""
        to = Destination(recipient[1:], place.country, place.network, place.is_exact)
        kind = sender_type(sender)
        return tariff.find(to, at, message_class=message_class, sender_type=kind, segments=segments)

    def cost(
        self, supplier_id: UUID, recipient: str, sender: str, segments: int, at: datetime, message_class: str
    ) -> tuple[str, Charge | None]:
        """The recipient's network, and a supplier's charge for a message of this many segments."""
        place = self.directory.place(recipient)
        card = self.book.card(supplier_id)
        if card is None:
            return place.network, None
        return place.network, charge(self.rate(card, place, recipient, sender, segments, at, message_class), segments)

    def price(
        self, organization_id: UUID, recipient: str, sender: str, segments: int, at: datetime, message_class: str
    ) -> Charge | None:
        """An organization's price for a message of this many segments; None if it has no price list, or no rate for
        this. Raises DestinationNotAllowed if its price list excludes the destination."""
        tariff = self.book.price_list(organization_id)
        if tariff is None:
            return None
        place = self.directory.place(recipient)
        found = self.rate(tariff, place, recipient, sender, segments, at, message_class)
        if found is not None and found.rate.rejects:
            raise DestinationNotAllowed(country=place.country, reason="not_carried")
        return charge(found, segments)


class CurrentCharges(Current[Charges]):
    """The charges of a process without a timer that refreshes them."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool, Charges())


def everywhere(*, country: str = "", network: str = "", prefix: str = "") -> Destination:
    """Stands for all numbers of a country, a network or a prefix: only what they have in common is set, so a rate found
    for it applies to each of them. `country`, together with a prefix that several countries share: the one to
    assume."""
    if network or not prefix:
        code = next((one for one, region in phones.REGIONS.items() if region == country), "")
        return Destination(code, country, network, bool(network))
    code = next((one for one in phones.REGIONS if prefix.startswith(one)), "")
    # With fewer digits than a calling code, or than an area code where countries share one, it covers several
    # countries.
    if code and len(prefix) >= plan.SHARED.get(code, 0):
        country = plan.country(f"+{prefix}")
    return Destination(prefix, country, plan.ranges(code).network(prefix))


def calendar(tariff: Tariff, rates: Sequence[Rate]) -> tuple[list[Row[Rate]], list[datetime]]:
    """The rows of a calendar of a tariff's rates, and the times at which the result may change."""
    by: dict[tuple[str, ...], list[Rate]] = {}
    for one in rates:
        by.setdefault(one.destination, []).append(one)
    rows = [
        Row(own[0], [Span(one.begins, one.ends, one) for one in own], partial(is_found, tariff, own[0]))
        for own in by.values()
    ]
    return rows, sorted({time for one in rates for time in (one.begins, one.ends)})


def is_found(tariff: Tariff, rate: Rate, at: datetime) -> bool:
    """Whether the look-up finds a rate for this one's whole destination at a given time: its own, or a broader one."""
    kind = rate.sender_type
    return tariff.find(_place(rate), at, message_class=rate.message_class, sender_type=kind) is not None


def _place(rate: Rate) -> Destination:
    """The destination of a rate."""
    if rate.prefix and not rate.mnc:
        return everywhere(prefix=rate.prefix)
    if rate.mcc:
        # Some countries have several MCCs: nothing more is known about the networks with this one.
        network = f"{rate.mcc}-{rate.mnc}"
        return everywhere(country=rate.country or plan.country_of(network) or "", network=network)
    return everywhere(country=rate.country)
