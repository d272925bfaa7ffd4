"""A tariff compiled for look-ups: which rate applies to a destination at a given time.

The most specific rate wins (decision 122): the exact network, if known for this number; the longest prefix; the network
according to the numbering plan; the country; the default. At each level, a rate for the class or the type of sender
precedes one for all. The rule nobody may break: of two rates for the same destination, only one holds at a time, so a
look-up has one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from uuid import UUID

import msgspec

#: What a rate may be limited to: a message class, a type of sender; empty: all.
CLASSES = ("otp", "transactional", "marketing")
SENDER_TYPES = ("alphanumeric", "numeric", "short")
UNITS = ("segment", "message")
BILLED = ("submit", "delivered")
#: How a rate was found, most specific first.
LEVELS = ("network", "prefix", "range", "country", "default")
#: Maximum number of digits of a short code.
SHORT = 6

EVER, NEVER = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a tariff. An empty text matches anything."""

    #: ISO region, such as "MZ".
    country: str = ""
    #: Mobile country code and network code, with leading zeros: "643", "04".
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
    #: Holds from the former (inclusive) to the latter (exclusive); None: unlimited.
    effective_from: datetime | None = None
    effective_to: datetime | None = None
    #: Nothing is sent there, regardless of the price.
    rejects: bool = False
    notes: str = ""
    #: Id of a stored rate; None: not stored.
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
        """What the rate is for: two rates with the same destination must not hold at the same time."""
        kind = (self.message_class, self.sender_type)
        if self.mnc:
            return (self.mcc, self.mnc, *kind)
        return ("", self.prefix, *kind) if self.prefix else (self.country, self.mcc, "", *kind)

    @property
    def network(self) -> str:
        """The network, as "643-04"; empty: it is not limited to one."""
        return f"{self.mcc}-{self.mnc}" if self.mnc else ""

    def amount(self, segments: int) -> int:
        """The cost of a message of `segments`, in millionths."""
        return self.price * segments if self.unit == "segment" else self.price


class Destination(msgspec.Struct, frozen=True, gc=False):
    """Where a message goes, as far as it is known."""

    #: E.164 digits without +.
    digits: str
    #: ISO region.
    country: str
    #: "643-04", or empty.
    network: str = ""
    #: The network is known for this very number, or its country has no number portability.
    is_exact: bool = False


class Found(msgspec.Struct, frozen=True, gc=False):
    """The rate that applies, and how it was found: one of LEVELS."""

    rate: Rate
    level: str


def sender_type(sender: str) -> str:
    """The type of a sender ID: one of SENDER_TYPES."""
    if not sender.isdigit():
        return "alphanumeric"
    return "short" if len(sender) <= SHORT else "numeric"


class Tariff:
    """A compiled tariff. A look-up takes about 1 µs."""

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

    def find(
        self, to: Destination, at: datetime, *, message_class: str = "", sender_type: str = "", segments: float = 1
    ) -> Found | None:
        """The rate for a message of this many segments at a given time; None if there is none. Rates that reject are
        found like any other."""
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
        if (country := self._countries.get(to.country)) and (rate := _of_country(country, to, segments, *asked)):
            return Found(rate, "country")
        if self._default and (rate := _first(self._default, *asked)):
            return Found(rate, "default")
        return None

    def parts(self, at: datetime, *, message_class: str = "") -> Iterator[Rate]:
        """The rates that hold at a time for a network, a prefix or a country; without those that reject.
        `message_class`: only those for it; empty: for any."""
        for some in (*self._networks.values(), *self._prefixes.values(), *self._countries.values()):
            for one in some:
                asked = (at, message_class or one.message_class, one.sender_type)
                if not one.rejects and _holds(one, *asked):
                    yield one


def _ordered(rates: Iterable[Rate]) -> tuple[Rate, ...]:
    """The rates, more specific ones first."""
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
    rates: Iterable[Rate], to: Destination, segments: float, at: datetime, message_class: str, sender_type: str
) -> Rate | None:
    """Some countries have several MCCs (310 to 316) with a rate each: if the network is unknown, the one that makes
    this message the most expensive is assumed."""
    holding = [one for one in rates if _holds(one, at, message_class, sender_type)]
    of_mcc = [one for one in holding if one.mcc and one.mcc == to.network[:3]]
    of_all = [one for one in holding if not one.mcc]
    if found := of_mcc or of_all:
        return found[0]
    # Of each MCC, the first is the one that applies to the class and the type of sender.
    each = {one.mcc: one for one in reversed(holding)}
    return max(
        each.values(),
        key=lambda one: (one.rejects, one.price * (segments if one.unit == "segment" else 1)),
        default=None,
    )
