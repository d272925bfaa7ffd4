"""The velocity rules, over a sliding window of ten minutes for each organization. No I/O and no clock: the caller
passes the time.

Fraudsters who earn from messages to a range send to adjacent numbers, since the range is what they rent. So the numbers
of a block are counted: of a thousand (the last three digits) and of ten thousand (the last four). Points add up; a
range with 70 is held.

Honest traffic is also dense where numbering is: a bank's customers in a small country fill every block. A block is
suspicious if it is dense while its siblings, the ten of the same hundred thousand, are not; if most of them are busy,
its limits grow with their mean.

The rule nobody may break: the cost of a message does not depend on the size of the window, and the window is bounded:
it ends after ten minutes or MOST numbers, whichever comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TypeVar
from uuid import UUID

import msgspec

from heliograph.guard.pace import Pace

#: Seconds for which a number counts.
SPAN = 600.0
#: Maximum number of numbers in the windows of all organizations, some 400 bytes each.
MOST = 50_000
#: Points from which a range is held.
HOLD = 70
#: Distinct numbers of a block of a thousand for 40 points, and for 70; of one of ten thousand for 70.
THOUSAND, THOUSAND_FULL, TEN_THOUSAND = 5, 10, 10
#: How many distinct numbers within how many of one another give 40 points.
NEIGHBOURS, NEAR = 3, 5
#: Messages to one number for 40 points, and for 70.
SAME, SAME_FULL = 4, 10
#: Distinct numbers in a country that the organization has hardly sent to, the points for them, and those for a country
#: in LISTED.
NEW_COUNTRY, NEW_POINTS, LISTED_POINTS = 10, 55, 15
#: How many of ten siblings have to be busy before a block may be as dense as they are, and how many times denser than
#: their mean it may be.
BUSY, DENSER = 8, 5.0
#: Distinct numbers, in a country and in all, that are never too many; how many times the usual number is too many; the
#: points for that, which never suffice without another rule.
VOLUME, COUNTRY_GROWS, GROWS, VOLUME_POINTS = 30, 5.0, 3.0, 25
#: Maximum number of usual counts kept, by organization and country.
MOST_USUAL = 10_000
#: Points for a block whose messages do not convert.
UNCONVERTED = 70
_LISTED = """
DZ AZ BD BY BJ BG EG SV GH KZ KG LA MV MM NG PH PK PS RU LK SD SY TJ AE UZ BH IR IQ IL JO KW LB OM QA SA YE AM KM GE ID
IT TT
"""
#: Countries that get more such traffic than others (the public list of a large operator's burst protection, 2025). It
#: includes honest customers' countries too, so it adds points and never suffices by itself.
LISTED = frozenset(_LISTED.split())


#: The rules, as described to operators.
RULES = {
    "thousand": "five or more numbers of one block of 1,000 within ten minutes",
    "thousand_full": "ten or more numbers of one block of 1,000 within ten minutes",
    "ten_thousand": "ten or more numbers of one block of 10,000 within ten minutes, far more than around it",
    "neighbours": "three or more numbers next to each other within ten minutes",
    "same_number": "many messages to one number within ten minutes",
    "new_country": "a country that was hardly sent to before",
    "listed_country": "a country with much fraud",
    "country_volume": "far more numbers in its country than usual at this hour",
    "volume": "far more numbers than the organization usually sends to at this hour",
    "conversion": "its codes are not entered, while others are",
    "class_limit": "more messages of one class within ten minutes than the organization's own limit",
}

_Key = TypeVar("_Key", int, str)


class Suspicion(msgspec.Struct, frozen=True, gc=False):
    """A range with enough points to be held."""

    #: A prefix of its numbers, without `+`; a country's ISO code; all digits of one number; or a class.
    range: str
    #: "block", "country", "number" or "class".
    kind: str
    #: Keys of RULES.
    rules: tuple[str, ...]
    score: int


class _Window:
    """One organization's numbers."""

    __slots__ = ("countries", "last", "organization_id", "paces", "repeats", "ten_thousand", "thousand")

    def __init__(self, organization_id: UUID) -> None:
        self.organization_id = organization_id
        #: By number, the place of the last message to it.
        self.last: dict[int, float] = {}
        #: By number, how many messages followed the first.
        self.repeats: dict[int, int] = {}
        #: By block of a thousand, and of ten thousand, the distinct numbers in it. Both are kept: a judgement needs ten
        #: of the latter, and adding each of them up took 15 µs per message.
        self.thousand: dict[int, int] = {}
        self.ten_thousand: dict[int, int] = {}
        self.countries: dict[str, int] = {}
        #: By class, the pace of messages.
        self.paces: dict[str, Pace] = {}


class Windows:
    """The windows of all organizations: what this worker sees, and what others share with it."""

    def __init__(self, *, most: int = MOST) -> None:
        self._most = most
        self._of: dict[UUID, _Window] = {}
        #: When each number was seen, in chronological order.
        self._came: deque[tuple[float, _Window, int, str]] = deque()
        #: Countries known not to be new to an organization.
        self._known: set[tuple[UUID, str]] = set()
        #: The usual number of messages in ten minutes of this hour, by organization and country; "": in all. And the
        #: keys for which it is not yet known but matters.
        self._usual: dict[tuple[UUID, str], float] = {}
        self._unusual: set[tuple[UUID, str]] = set()
        #: Messages in ten minutes that an organization allows for a class.
        self._limits: Mapping[tuple[UUID, str], int] = {}

    def __len__(self) -> int:
        return len(self._came)

    def known(self, organization_id: UUID, country: str) -> None:
        """Note that the organization has sent to this country before."""
        self._known.add((organization_id, country))

    def limit(self, limits: Mapping[tuple[UUID, str], int]) -> None:
        """Set how many messages of a class each organization allows in ten minutes; those that are left out have no
        limit."""
        self._limits = limits

    def usual(self, organization_id: UUID, country: str, messages: float) -> None:
        """Set how many messages the organization usually sends to this country in ten minutes of this hour; "": in
        all."""
        if len(self._usual) >= MOST_USUAL:
            self._usual.clear()
        self._usual[(organization_id, country)] = messages
        self._unusual.discard((organization_id, country))

    def unusual(self) -> list[tuple[UUID, str]]:
        """The (organization, country) pairs whose usual number of messages is unknown but would make a difference."""
        return list(self._unusual)

    def forget_usual(self) -> None:
        """Forget usual numbers, since another hour has begun, or some minutes have passed."""
        self._usual.clear()
        self._unusual.clear()

    def see(
        self,
        organization_id: UUID,
        number: str,
        country: str,
        traffic_class: str,
        *,
        at: float,
        place: float,
        unconverted: bool = False,
    ) -> Suspicion | None:
        """Add a message that is about to be sent. `number`: E.164; `at`: now, in seconds; `place`: its position in the
        order of acceptance; `unconverted`: its block converts badly (`conversion`), which gives 70 points.

        A message may be seen several times: the same place counts once. Returns what is suspicious about its
        destination, evaluated each time, or None.
        """
        window, n = self._add(organization_id, number, country, traffic_class, at, place)
        limit = self._limits.get((organization_id, traffic_class)) if self._limits else None
        # A class has no pace if its only message was seen after a later one of another class to the same number.
        pace = window.paces.get(traffic_class) if limit is not None else None
        if limit is not None and pace is not None and pace.count(at) > limit:
            over = Suspicion(traffic_class, "class", ("class_limit",), HOLD)
            # A more specific finding takes precedence, since it holds less.
            return self._judge(window, organization_id, n, country, UNCONVERTED if unconverted else 0) or over
        if (
            window.thousand[n // 1000] < NEIGHBOURS
            and window.ten_thousand[n // 10_000] < TEN_THOUSAND
            and not unconverted
            and n not in window.repeats
            and (country not in LISTED or window.countries[country] <= NEW_COUNTRY)
        ):
            return None
        return self._judge(window, organization_id, n, country, UNCONVERTED if unconverted else 0)

    def told(
        self, organization_id: UUID, number: str, country: str, traffic_class: str, *, at: float, place: float
    ) -> None:
        """Add a message seen by another worker. Adding it again, or seeing it here too, changes nothing."""
        self._add(organization_id, number, country, traffic_class, at, place)

    def _add(
        self, organization_id: UUID, number: str, country: str, traffic_class: str, at: float, place: float
    ) -> tuple[_Window, int]:
        came = self._came
        if came and came[-1][0] > at + SPAN:
            # The clock has been set back: what was seen would stay until that time comes again.
            came.clear()
            self._of.clear()
        while came and (came[0][0] <= at - SPAN or len(came) >= self._most):
            _, window, n, old = came.popleft()
            self._forget(window, n, old)
        window = self._of.get(organization_id) or self._begin(organization_id)
        n = int(number)
        known = window.last.get(n)
        if known is not None:
            if place <= known:
                return window, n
            window.last[n] = place
            window.repeats[n] = window.repeats.get(n, 0) + 1
        else:
            window.last[n] = place
            came.append((at, window, n, country))
            block = n // 1000
            window.thousand[block] = window.thousand.get(block, 0) + 1
            window.ten_thousand[block // 10] = window.ten_thousand.get(block // 10, 0) + 1
            window.countries[country] = window.countries.get(country, 0) + 1
        pace = window.paces.get(traffic_class)
        if pace is None:
            pace = window.paces[traffic_class] = Pace()
        pace.add(at)
        return window, n

    def members(self, organization_id: UUID, block: str) -> list[str]:
        """The numbers in the window that belong to a block of ten thousand, in E.164 and in order. `block`: their
        prefix.

        All possible numbers are looked up, in those thousands that have any: scanning the window took 13 ms per block
        with 40,000 numbers in it, which blocked the event loop.
        """
        window = self._of.get(organization_id)
        if window is None:
            return []
        last, first = window.last, int(block) * 10
        thousands = [one * 1000 for one in range(first, first + 10) if one in window.thousand]
        return [f"+{n}" for thousand in thousands for n in range(thousand, thousand + 1000) if n in last]

    def _judge(self, window: _Window, organization_id: UUID, n: int, country: str, score: int) -> Suspicion | None:
        rules = ["conversion"] if score else []
        sent = window.repeats.get(n, 0) + 1
        if sent >= SAME_FULL:
            return Suspicion(str(n), "number", ("same_number",), HOLD)
        if sent >= SAME:
            rules.append("same_number")
            score += 40
        thousand = window.thousand[n // 1000]
        neighbours = _neighbours(window, n) if thousand >= NEIGHBOURS else 0
        ten = window.ten_thousand[n // 10_000]
        if thousand < THOUSAND and neighbours < NEIGHBOURS and ten < TEN_THOUSAND and not score:
            return self._new(window, organization_id, country)
        dense = _density(window, n)
        if thousand >= THOUSAND_FULL * dense:
            rules.append("thousand_full")
            score += 70
        elif thousand >= THOUSAND * dense:
            rules.append("thousand")
            score += 40
        if ten >= TEN_THOUSAND * dense:
            rules.append("ten_thousand")
            score += 70
        if neighbours >= NEIGHBOURS * dense:
            rules.append("neighbours")
            score += 40
        if score:
            for key, count, grows, rule in (
                (country, window.countries[country], COUNTRY_GROWS, "country_volume"),
                ("", len(window.last), GROWS, "volume"),
            ):
                if count > VOLUME and self._is_unusual((organization_id, key), count, grows):
                    rules.append(rule)
                    score += VOLUME_POINTS
        listed = country in LISTED
        if score + LISTED_POINTS * listed < HOLD:
            return self._new(window, organization_id, country)
        told = (*rules, "listed_country") if listed else tuple(rules)
        return Suspicion(str(n // 10_000), "block", told, score + LISTED_POINTS * listed)

    def _is_unusual(self, key: tuple[UUID, str], count: int, grows: float) -> bool:
        usual = self._usual.get(key)
        if usual is None:
            if len(self._unusual) < MOST_USUAL:
                self._unusual.add(key)
            return False
        return count > max(VOLUME, grows * usual)

    def _new(self, window: _Window, organization_id: UUID, country: str) -> Suspicion | None:
        """The suspicion for a listed country that the organization begins to send to. The caller must check whether it
        is new."""
        if country not in LISTED or window.countries[country] <= NEW_COUNTRY:
            return None
        if (organization_id, country) in self._known:
            return None
        return Suspicion(country, "country", ("new_country", "listed_country"), NEW_POINTS + LISTED_POINTS)

    def _begin(self, organization_id: UUID) -> _Window:
        window = self._of[organization_id] = _Window(organization_id)
        return window

    def _forget(self, window: _Window, n: int, country: str) -> None:
        del window.last[n]
        window.repeats.pop(n, None)
        _drop(window.thousand, n // 1000)
        _drop(window.ten_thousand, n // 10_000)
        _drop(window.countries, country)
        if not window.last:
            del self._of[window.organization_id]


def _drop(counts: dict[_Key, int], key: _Key) -> int:
    """Decrement a count; returns what is left."""
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
    return left


def _density(window: _Window, n: int) -> float:
    """The factor by which the limits of a block grow because its siblings are busy too."""
    own = n // 10_000
    first = own - own % 10
    # Excluding the block itself, which must not raise its own limit.
    ten = window.ten_thousand
    others = [ten[other] for other in range(first, first + 10) if other != own and other in ten]
    if len(others) + 1 < BUSY:
        return 1.0
    return 1.0 + sum(others) / len(others) * DENSER / TEN_THOUSAND


def _neighbours(window: _Window, n: int) -> int:
    last = window.last
    return sum(1 for other in range(n - NEAR, n + NEAR + 1) if other in last)
