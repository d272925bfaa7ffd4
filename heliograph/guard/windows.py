"""The rules of velocity, over a sliding window of ten minutes for each organization. No I/O and no clock: the caller
says when.

Whoever earns from messages to a range sends to numbers that lie together, since the range is what they rent. So the
numbers of a block are counted: of a thousand (the last three digits) and of ten thousand (the last four). Points add
up; who has 70 is held.

Honest traffic is dense as well where numbering is: a bank's customers in a small country fill every block. What is
suspicious is a block that is dense while its siblings, the ten of the same hundred thousand, are not; where most of
them are busy, what a block may hold grows with their mean.

The rule nobody may break: what a message costs does not depend on how much there is in the window, and the window is
bounded: it ends after ten minutes or MOST numbers, whichever comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TypeVar
from uuid import UUID

import msgspec

from heliograph.guard.pace import Pace

#: Seconds that a number counts.
SPAN = 600.0
#: Numbers in the windows of all organizations, some 400 bytes each.
MOST = 50_000
#: Points from which a range is held.
HOLD = 70
#: Distinct numbers of a block of a thousand for 40 points, and for 70; of one of ten thousand for 70.
THOUSAND, THOUSAND_FULL, TEN_THOUSAND = 5, 10, 10
#: How many distinct numbers within how many of one another give 40 points.
NEIGHBOURS, NEAR = 3, 5
#: Messages to one number for 40 points, and for 70.
SAME, SAME_FULL = 4, 10
#: Distinct numbers in a country that the organization has hardly sent to, their points, and those of one in LISTED.
NEW_COUNTRY, NEW_POINTS, LISTED_POINTS = 10, 55, 15
#: Of ten siblings, how many have to be busy before a block may be as dense as they are, and by how much denser than
#: their mean it may be.
BUSY, DENSER = 8, 5.0
#: Distinct numbers in a country, and in all, that are never too many; how many times as many as usual are; their
#: points, which hold nothing without another rule.
VOLUME, COUNTRY_GROWS, GROWS, VOLUME_POINTS = 30, 5.0, 3.0, 25
#: What is usual, of so many countries of organizations at most.
MOST_USUAL = 10_000
#: Points of a block whose messages are not converted.
UNCONVERTED = 70
_LISTED = """
DZ AZ BD BY BJ BG EG SV GH KZ KG LA MV MM NG PH PK PS RU LK SD SY TJ AE UZ BH IR IQ IL JO KW LB OM QA SA YE AM KM GE ID
IT TT
"""
#: Countries to which more such traffic goes than elsewhere (the public list of a large operator's burst protection,
#: 2025). It holds honest customers' countries too, so it adds weight and never holds by itself.
LISTED = frozenset(_LISTED.split())


#: The rules, as they are told to operators.
RULES = {
    "thousand": "five or more numbers of one block of 1,000 within ten minutes",
    "thousand_full": "ten or more numbers of one block of 1,000 within ten minutes",
    "ten_thousand": "ten or more numbers of one block of 10,000 within ten minutes, far more than beside it",
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
    """A range that has the points to be held."""

    #: Digits that its numbers begin with, without `+`; a country's ISO code; all digits of one number; or a class.
    range: str
    #: "block", "country", "number" or "class".
    kind: str
    #: Words of RULES.
    rules: tuple[str, ...]
    score: int


class _Window:
    """One organization's numbers."""

    __slots__ = ("countries", "last", "organization_id", "paces", "repeats", "ten_thousand", "thousand")

    def __init__(self, organization_id: UUID) -> None:
        self.organization_id = organization_id
        #: Number: the place of the last message to it.
        self.last: dict[int, float] = {}
        #: Number: how many messages after the first.
        self.repeats: dict[int, int] = {}
        #: Block of a thousand, and of ten thousand: distinct numbers in it. Both are kept: a judgement asks for ten of
        #: the latter, and adding each of them up cost 15 µs a message.
        self.thousand: dict[int, int] = {}
        self.ten_thousand: dict[int, int] = {}
        self.countries: dict[str, int] = {}
        #: Class: how many messages.
        self.paces: dict[str, Pace] = {}


class Windows:
    """The windows of all organizations: what this worker sees, and what others tell it."""

    def __init__(self, *, most: int = MOST) -> None:
        self._most = most
        self._of: dict[UUID, _Window] = {}
        #: When each number came, in that order.
        self._came: deque[tuple[float, _Window, int, str]] = deque()
        #: Countries that are known not to be new to an organization.
        self._known: set[tuple[UUID, str]] = set()
        #: Messages that are usual in ten minutes of this hour, by organization and country; "": in all. And whose are
        #: not known yet, but matter.
        self._usual: dict[tuple[UUID, str], float] = {}
        self._unusual: set[tuple[UUID, str]] = set()
        #: Messages in ten minutes that an organization allows of a class.
        self._limits: Mapping[tuple[UUID, str], int] = {}

    def __len__(self) -> int:
        return len(self._came)

    def known(self, organization_id: UUID, country: str) -> None:
        """The organization has sent to this country before."""
        self._known.add((organization_id, country))

    def limit(self, limits: Mapping[tuple[UUID, str], int]) -> None:
        """How many messages of a class each organization allows in ten minutes; those that are left out have no
        limit."""
        self._limits = limits

    def usual(self, organization_id: UUID, country: str, messages: float) -> None:
        """How many messages the organization sends to this country in ten minutes of this hour; "": in all."""
        if len(self._usual) >= MOST_USUAL:
            self._usual.clear()
        self._usual[(organization_id, country)] = messages
        self._unusual.discard((organization_id, country))

    def unusual(self) -> list[tuple[UUID, str]]:
        """Whose usual number of messages is not known, and would decide something: (organization, country)."""
        return list(self._unusual)

    def forget_usual(self) -> None:
        """Another hour began, or some minutes passed: what is usual is to be found out anew."""
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
        """A message is about to go out. `number`: E.164; `at`: now, in seconds; `place`: its own in the order in which
        messages were accepted; `unconverted`: its block converts badly (`conversion`), which is 70 points.

        A message may be seen several times: the same place counts once. Returns what is suspicious about
        where it goes, each time anew, or None.
        """
        window, n = self._add(organization_id, number, country, traffic_class, at, place)
        limit = self._limits.get((organization_id, traffic_class)) if self._limits else None
        # A class has no pace where its only message came behind a later one of another class to the same number.
        pace = window.paces.get(traffic_class) if limit is not None else None
        if limit is not None and pace is not None and pace.count(at) > limit:
            over = Suspicion(traffic_class, "class", ("class_limit",), HOLD)
            # What says more holds less.
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
        """Another worker saw this message. Being told of it again, or seeing it, changes nothing."""
        self._add(organization_id, number, country, traffic_class, at, place)

    def _add(
        self, organization_id: UUID, number: str, country: str, traffic_class: str, at: float, place: float
    ) -> tuple[_Window, int]:
        came = self._came
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
        """The numbers in the window of a block of ten thousand, in E.164 and in their order. `block`: the digits that
        they begin with.

        The numbers that there may be are looked up, a thousand at a time where there are any: to look through the
        window took 13 ms with 40,000 in it, for each block, while nothing else moved.
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
        """A listed country that the organization begins to send to. Whether it is new is for the caller to say."""
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
    """One less; returns how many there are left."""
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
    return left


def _density(window: _Window, n: int) -> float:
    """By how much the limits of a block grow because its siblings are busy too."""
    own = n // 10_000
    first = own - own % 10
    # Without the block itself, which must not raise its own limit.
    ten = window.ten_thousand
    others = [ten[other] for other in range(first, first + 10) if other != own and other in ten]
    if len(others) + 1 < BUSY:
        return 1.0
    return 1.0 + sum(others) / len(others) * DENSER / TEN_THOUSAND


def _neighbours(window: _Window, n: int) -> int:
    last = window.last
    return sum(1 for other in range(n - NEAR, n + NEAR + 1) if other in last)
