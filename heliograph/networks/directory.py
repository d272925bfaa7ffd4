"""A process's in-memory directory of networks: finds a number's network without a query.

What was learned about numbers is held as two arrays sorted by number, ten bytes per number, with a small overlay for
recent additions; everything else comes from the numbering plan. The rule nobody may break: a look-up neither waits nor
fails. What is not loaded yet is answered by range, and marked as such.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from datetime import datetime, timedelta
from time import monotonic

import msgspec
import structlog

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.networks import learned, plan

log = structlog.get_logger()

#: How many numbers are held; beyond that, the numerically highest are answered by range.
MOST = 2_000_000
#: Everything is reloaded after this many seconds, or with this many numbers in the overlay.
WHOLE, OVERLAY = 3600.0, 100_000
#: A row may be committed later than its timestamp says. Each call reads rows of the last SOON again, and one call in
#: AGAIN seconds those of the last LATE: at 1000 new numbers a second, a minute of them costs 0.1 s.
SOON, LATE = timedelta(seconds=5), timedelta(minutes=1)
AGAIN = 10.0


class NumberOrigin(msgspec.Struct, frozen=True, gc=False):
    """Where a number belongs."""

    #: ISO region.
    country: str
    #: "643-04"; empty: not known.
    network: str
    #: "receipt", "lookup" or "range"; empty: the network is not known.
    source: str
    #: The network is known for this very number, or its country has no number portability.
    is_exact: bool


class Directory:
    """Call `refresh` periodically. A look-up takes about 0.6 µs."""

    def __init__(self) -> None:
        #: By calling code: its prefix lengths, NumberOrigin by prefix, and that of all other numbers (None: several
        #: countries share the code).
        self._codes: dict[str, tuple[tuple[int, ...], dict[str, NumberOrigin], NumberOrigin | None]] = {}
        self._numbers = array("q")
        self._kinds = array("H")
        #: (network, source) by the number that stands for it in the array of kinds, and the inverse.
        self._meaning: list[tuple[str, str]] = []
        self._kind_of: dict[tuple[str, str], int] = {}
        self._recent: dict[int, int] = {}
        self._loaded_at: float | None = None
        #: When rows of the last LATE were read.
        self._reread_at = 0.0
        self._until: datetime | None = None

    def place(self, number: str) -> NumberOrigin:
        """The country and network of an E.164 number."""
        if self._numbers or self._recent:
            kind = self._known(int(number[1:]))
            if kind is not None:
                network, source = self._meaning[kind]
                return NumberOrigin(plan.country(number), network, source, True)
        for end in (4, 3, 2):
            ranges = self._codes.get(number[1:end])
            if ranges is not None:
                break
        else:
            ranges = self._open(number)
        lengths, prefixes, elsewhere = ranges
        for length in lengths:
            found = prefixes.get(number[1 : 1 + length])
            if found is not None:
                return found
        return elsewhere or NumberOrigin(plan.country(number), "", "", False)

    def hear(self, one: learned.LearnedNetwork) -> None:
        """Add what was learned about a number, before `refresh` would."""
        self._recent[one.number] = self._kind(one)

    def _known(self, number: int) -> int | None:
        kind = self._recent.get(number)
        if kind is not None:
            return kind
        at = bisect_left(self._numbers, number)
        return self._kinds[at] if at < len(self._numbers) and self._numbers[at] == number else None

    def _open(self, number: str) -> tuple[tuple[int, ...], dict[str, NumberOrigin], NumberOrigin | None]:
        code = phones.calling_code(number)
        ranges = plan.ranges(code)
        shared = code in plan.SHARED
        country = plan.country(number)
        exact = country in plan.unportable()
        places = {
            network: NumberOrigin(country, network, "range" if network else "", bool(network) and exact)
            for network in {"", *ranges.prefixes.values()}
        }
        prefixes = {prefix: places[network] for prefix, network in ranges.prefixes.items()}
        opened = self._codes[code] = (ranges.lengths, prefixes, None if shared else places[""])
        return opened

    async def refresh(self, conn: Connection | Pool) -> None:
        """Load what was learned since the last call; periodically, everything."""
        if self._loaded_at is None or monotonic() - self._loaded_at > WHOLE or len(self._recent) > OVERLAY:
            await self._load(conn)
            return
        assert self._until is not None
        now, overlap = monotonic(), SOON
        if now - self._reread_at >= AGAIN:
            self._reread_at, overlap = now, LATE
        self._until = min(self._until, clock.now())  # a later one is from before the clock was set back
        place = (self._until - overlap, 0)
        # Beyond OVERLAY, the rest is left to the next call, which loads everything.
        while len(self._recent) <= OVERLAY:
            news, place = await learned.since(conn, *place)
            for one in news:
                kind = self._kind(one)
                # Most of the overlap was read before.
                if self._known(one.number) != kind:
                    self._recent[one.number] = kind
            if len(news) < learned.STEP:
                break
        self._until = max(place[0], self._until)

    async def _load(self, conn: Connection | Pool) -> None:
        begun, at = monotonic(), clock.now()
        numbers, kinds = array("q"), array("H")
        after = 0
        while len(numbers) < MOST:
            some = await learned.page(conn, after=after)
            numbers.extend(one.number for one in some)
            kinds.extend(self._kind(one) for one in some)
            if len(some) < learned.STEP:
                break
            after = some[-1].number
        else:
            log.warning("learned networks beyond the limit not loaded", limit=MOST)
        self._numbers, self._kinds, self._recent = numbers, kinds, {}
        self._loaded_at, self._until = begun, at

    def _kind(self, one: learned.LearnedNetwork) -> int:
        key = (one.network, one.source)
        kind = self._kind_of.get(key)
        if kind is None:
            kind = self._kind_of[key] = len(self._meaning)
            self._meaning.append(key)
        return kind
