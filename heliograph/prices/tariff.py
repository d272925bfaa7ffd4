"""A tariff ready for look-ups: which of its rates holds for a destination at a time.

The most specific rate wins (decision 122): the exact network, where it is known of this number; the longest prefix; the
network that the numbering plan gives; the country; the default. At each of these, a rate for the class or the kind of
sender goes before one for all. The rule nobody may break: of two rates for the same, only one holds at a time, so a
look-up has one answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from uuid import UUID

import msgspec

#: What a rate is for: a message of a class, a kind of sender; empty: all.
CLASSES = ("otp", "transactional", "marketing")
SENDER_TYPES = ("alphanumeric", "numeric", "short")
UNITS = ("segment", "message")
BILLED = ("submit", "delivered")
#: How a rate was found, most specific first.
LEVELS = ("network", "prefix", "range", "country", "default")
#: Digits of the longest number that is a short code.
SHORT = 6

EVER, NEVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a tariff. Texts that are empty stand for any."""

    #: ISO region, such as "MZ".
    country: str = ""
    #: Mobile country code and network code, with their zeros: "643", "04".
    mcc: str = ""
    mnc: str = ""
    #: Digits after the +, such as "25887".
    prefix: str = ""
    #: One of CLASSES.
    message_class: str = ""
    #: One of SENDER_TYPES.
    sender_type: str = ""
    #: Millionths of `currency`.
    price: int
    currency: str
    unit: str = "segment"
    bill_on: str = "submit"
    #: Holds from then until before then; None: open.
    effective_from: datetime | None = None
    effective_to: datetime | None = None
    #: Nothing is sent there, whatever the price.
    rejects: bool = False
    notes: str = ""
    #: Of a stored one.
    id: UUID | None = None

    @property
    def begins(self) -> datetime:
        """`effective_from`, for comparing."""
        return self.effective_from or EVER

    @property
    def ends(self) -> datetime:
        """`effective_to`, for comparing."""
        return self.effective_to or NEVER

    @property
    def destination(self) -> tuple[str, ...]:
        """What it is for: two rates with the same one must not hold at the same time."""
        kind = (self.message_class, self.sender_type)
        if self.mnc:
            return (self.mcc, self.mnc, *kind)
        return ("", self.prefix, *kind) if self.prefix else (self.country, self.mcc, "", *kind)

    @property
    def network(self) -> str:
        """ "643-04"; empty: it is for no one network."""
        return f"{self.mcc}-{self.mnc}" if self.mnc else ""

    def amount(self, segments: int) -> int:
        """What a message of so many segments costs, in millionths."""
        return self.price * segments if self.unit == "segment" else self.price


class Destination(msgspec.Struct, frozen=True, gc=False):
    """Where a message goes, as far as is known."""

    #: E.164 digits without +.
    digits: str
    #: ISO region.
    country: str
    #: "643-04", or empty.
    network: str = ""
    #: The network was learned of this very number, or its country's numbers cannot be ported.
    is_exact: bool = False


class Found(msgspec.Struct, frozen=True, gc=False):
    """The rate that holds, and how it was found: one of LEVELS."""

    rate: Rate
    level: str


def sender_type(sender: str) -> str:
    """One of SENDER_TYPES, of a sender ID."""
    if not sender.isdigit():
        return "alphanumeric"
    return "short" if len(sender) <= SHORT else "numeric"


class Tariff:
    """A compiled tariff. About 1 µs a look-up."""

    def __init__(self, id: UUID, name: str, currency: str, rates: Iterable[Rate]) -> None:
        self.id = id
        self.name = name
        self.currency = currency
        networks: dict[str, list[Rate]] = {}
        prefixes: dict[str, list[Rate]] = {}
        countries: dict[str, list[Rate]] = {}
        default: list[Rate] = []
        for rate in rates:
            if rate.mnc:
                networks.setdefault(rate.network, []).append(rate)
            elif rate.prefix:
                prefixes.setdefault(rate.prefix, []).append(rate)
            elif rate.country:
                countries.setdefault(rate.country, []).append(rate)
            else:
                default.append(rate)
        self._networks = {key: _ordered(some) for key, some in networks.items()}
        self._prefixes = {key: _ordered(some) for key, some in prefixes.items()}
        self._countries = {key: _ordered(some) for key, some in countries.items()}
        self._default = _ordered(default)
        self._lengths = sorted({len(one) for one in prefixes}, reverse=True)

    def find(self, to: Destination, at: datetime, *, message_class: str = "", sender_type: str = "") -> Found | None:
        """The rate for a message at a time; None if there is none. A rate that rejects is found like any other."""
        asked = (at, message_class, sender_type)
        network = self._networks.get(to.network) if to.network else None
        if network and to.is_exact and (rate := _first(network, *asked)):
            return Found(rate, "network")
        digits = to.digits
        for length in self._lengths:
            known = self._prefixes.get(digits[:length])
            if known and (rate := _first(known, *asked)):
                return Found(rate, "prefix")
        if network and (rate := _first(network, *asked)):
            return Found(rate, "range")
        if (country := self._countries.get(to.country)) and (rate := _of_country(country, to, *asked)):
            return Found(rate, "country")
        if self._default and (rate := _first(self._default, *asked)):
            return Found(rate, "default")
        return None


def _ordered(rates: Iterable[Rate]) -> tuple[Rate, ...]:
    """What says more about the message comes first."""
    return tuple(sorted(rates, key=lambda one: (not one.message_class, not one.sender_type, one.begins)))


def _holds(one: Rate, at: datetime, message_class: str, sender_type: str) -> bool:
    return (
        (one.effective_from is None or one.effective_from <= at)
        and (one.effective_to is None or at < one.effective_to)
        and (not one.message_class or one.message_class == message_class)
        and (not one.sender_type or one.sender_type == sender_type)
    )


def _first(rates: Iterable[Rate], at: datetime, message_class: str, sender_type: str) -> Rate | None:
    for one in rates:
        if _holds(one, at, message_class, sender_type):
            return one
    return None


def _of_country(
    rates: Iterable[Rate], to: Destination, at: datetime, message_class: str, sender_type: str
) -> Rate | None:
    """Some countries have several MCCs (310 to 316), and a rate each: without a network, the dearest one is assumed."""
    holding = [one for one in rates if _holds(one, at, message_class, sender_type)]
    of_mcc = [one for one in holding if one.mcc and one.mcc == to.network[:3]]
    of_all = [one for one in holding if not one.mcc]
    if found := of_mcc or of_all:
        return found[0]
    return max(holding, key=lambda one: (one.rejects, one.price), default=None)
