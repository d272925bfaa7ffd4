"""What a look-up supplier's module provides: how numbers are queried, what the answer means, and when a look-up pays
off. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from heliograph.base.money import is_currency, micros, price_in
from heliograph.base.phones import REGIONS
from heliograph.base.sentences import said
from heliograph.suppliers.http.kind import SECRET, Answer, Request, Secrets
from heliograph.suppliers.settings import demand, demand_address

#: Maximum seconds that a message may have to wait: a third of the delay that one-time codes can bear.
LONGEST = 10.0
#: Maximum numbers per request, whatever the supplier.
MOST = 1_000


class LookupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of every look-up supplier; each adds its own."""

    base_url: Annotated[str, "Where the supplier's API is: scheme, host and port"]
    price: Annotated[str, "What the look-up of a number costs, such as 0.003"]
    currency: Annotated[str, "Currency of price and loss (ISO 4217)"]
    countries: Annotated[tuple[str, ...], "ISO countries whose numbers it looks up; empty: all"] = ()
    ported: Annotated[float, "Share of numbers there that left the network of their range: 0.06 is 6 %"] = 0.06
    loss: Annotated[str, "What a message handed to the wrong network costs, in that currency"] = "0.02"
    reuses: Annotated[float, "Messages that a number gets in 90 days, among which the price is shared"] = 4.0
    wait_seconds: Annotated[
        float, "Longest time that a message waits for it; after that, its number's range decides"
    ] = 2.0
    response_seconds: Annotated[float, "Time limit for an answer"] = 5.0
    per_second: Annotated[float, "Maximum numbers per second and worker"] = 50.0
    batch: Annotated[int, "Maximum numbers per request, where the supplier takes several"] = 50

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "base_url", demand_address(self.base_url))
        for field in ("price", "loss"):
            amount = price_in(getattr(self, field))
            demand(isinstance(amount, int), field, said("must be an amount such as 0.003"))
        demand(is_currency(self.currency), "currency", said("must be an ISO 4217 code such as USD"))
        demand(
            all(one in REGIONS.values() for one in self.countries), "countries", said("must be ISO codes such as MZ")
        )
        demand(0 <= self.ported <= 1, "ported", said("must be 0 to 1"))
        demand(self.reuses > 0, "reuses", said("must be more than 0"))
        demand(
            0 < self.wait_seconds <= LONGEST,
            "wait_seconds",
            said("must be more than 0, up to %(most)s", most=f"{LONGEST:g}"),
        )
        demand(
            0 < self.response_seconds <= 60, "response_seconds", said("must be more than 0, up to %(most)s", most="60")
        )
        demand(self.per_second > 0, "per_second", said("must be more than 0"))
        demand(1 <= self.batch <= MOST, "batch", said("must be %(least)s to %(most)s", least=1, most=MOST))

    @property
    def cost(self) -> int:
        """The price of one look-up, in millionths."""
        return micros(self.price) or 0

    @property
    def is_worth_it(self) -> bool:
        """Whether a look-up is expected to save more than its price, shared among the messages that use it."""
        return self.ported * (micros(self.loss) or 0) > self.cost / self.reuses


class LookupAnswer(msgspec.Struct, frozen=True):
    """The result of a request for several numbers."""

    #: By number (digits): its network as the supplier writes it ("64304"); empty: it knows no network.
    told: Mapping[str, str] = {}
    #: Why the other numbers were not answered; empty: all were.
    error: str = ""


class LookupKind(msgspec.Struct, frozen=True, kw_only=True):
    """A look-up supplier. The functions take its settings first."""

    name: str
    title: str
    settings: type[LookupSettings]
    #: Name → meaning; SECRET first.
    secrets: Mapping[str, str] = msgspec.field(default_factory=lambda: {SECRET: "API key"})
    #: Maximum numbers per request.
    most: int = 1
    #: (settings, secrets, numbers), digits without +.
    request: Callable[[Any, Secrets, Sequence[str]], Request]
    #: (settings, numbers, answer) for any status.
    answer: Callable[[Any, Sequence[str], Answer], LookupAnswer]
