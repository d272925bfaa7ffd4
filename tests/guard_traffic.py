"""Traffic for the guard, generated from a seed: attacks as operators describe them, and peaks of honest traffic.

Each is a list of (second, number, country, is an attack). `run` feeds it to the rules as a worker would, and holds what
they find; `python -m tests.guard_traffic` prints the table of docs/guard.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import msgspec

from heliograph.base.ids import uuid_of
from heliograph.base.phones import REGIONS
from heliograph.guard.conversion import Conversions
from heliograph.guard.windows import Suspicion, Windows

ORGANIZATION = uuid_of(bytes(15) + b"\x09")
HOME, MINUTES, SEEDS = "MZ", 60, (1, 2, 3)
#: Mozambique's mobile prefixes, ten million numbers each.
PREFIXES = tuple(f"+258{code}" for code in (82, 83, 84, 85, 86, 87))
#: A company's new phones, with consecutive numbers.
PHONES = frozenset(f"+{258_84_345_6700 + n}" for n in range(300))
#: Where roaming people come from: calling codes and countries, half of them LISTED.
_CODES = """
263 260 265 255 27 351 91 44 55 244 33 49 1 90 250
971 966 234 92 880 62 20 39 94 213 229 63 995 996 962
"""
ABROAD = [(code, REGIONS[code]) for code in _CODES.split()]
#: The shares of honest people who enter their code, and who ask for it twice.
CONVERSION, AGAIN = 0.75, 0.12

Send = tuple[float, str, str, bool]


class Case(msgspec.Struct, frozen=True):
    """One kind of traffic."""

    name: str
    make: Callable[[random.Random, float], Iterator[Send]]
    #: The share of attackers who report that their codes were entered.
    faked: float = 0.0
    #: Numbers that are the organization's contacts.
    contacts: frozenset[str] = frozenset()
    #: Countries with 20 messages before this hour, besides HOME.
    known: tuple[str, ...] = ()


class Outcome(msgspec.Struct):
    """How the rules judged it."""

    attack: int = 0
    caught: int = 0
    #: Messages of the attack that were sent before the first was held.
    before: int | None = None
    honest: int = 0
    mistaken: int = 0

    @property
    def share(self) -> float:
        return self.caught / self.attack if self.attack else 0.0

    @property
    def false(self) -> float:
        return self.mistaken / self.honest if self.honest else 0.0


def honest(chance: random.Random, rate: float, *, minutes: float = MINUTES) -> Iterator[Send]:
    """People all over the country, `rate` a minute; some ask again within two minutes."""
    at = 0.0
    while at < minutes * 60:
        at += chance.expovariate(rate / 60)
        number = f"{chance.choice(PREFIXES)}{chance.randrange(10**7):07}"
        yield at, number, HOME, False
        if chance.random() < AGAIN:
            yield at + chance.uniform(20, 120), number, HOME, False


def _attack(chance: random.Random, rate: float, number: Callable[[int], str], country: str = HOME) -> Iterator[Send]:
    at, n = 600.0, 0
    while at < MINUTES * 60:
        at += chance.expovariate(rate / 60)
        yield at, number(n), country, True
        n += 1


def nothing(chance: random.Random, rate: float) -> Iterator[Send]:
    yield from honest(chance, rate)


def sequential(chance: random.Random, rate: float) -> Iterator[Send]:
    yield from honest(chance, rate)
    first = 258_84_000_0000 + chance.randrange(10**7)
    yield from _attack(chance, 20, lambda n: f"+{first + n}")


def in_blocks(chance: random.Random, rate: float) -> Iterator[Send]:
    yield from honest(chance, rate)
    first = (258_84_000_0000 + chance.randrange(10**7)) // 10_000 * 10_000
    yield from _attack(chance, 20, lambda n: f"+{first + chance.randrange(30_000)}")


def new_country(chance: random.Random, rate: float) -> Iterator[Send]:
    yield from honest(chance, rate)
    yield from _attack(chance, 10, lambda n: f"+99677{chance.randrange(10**7):07}", "KG")


def one_prefix(chance: random.Random, rate: float) -> Iterator[Send]:
    yield from honest(chance, rate)
    yield from _attack(chance, 3, lambda n: f"+25886{chance.randrange(10**7):07}")


def onboarding(chance: random.Random, rate: float) -> Iterator[Send]:
    """A company gives its people 300 phones with consecutive numbers, and all sign up within half an hour."""
    yield from honest(chance, rate)
    numbers = sorted(PHONES)
    chance.shuffle(numbers)
    for number in numbers:
        yield chance.uniform(1800, 3600), number, HOME, False


def television(chance: random.Random, rate: float) -> Iterator[Send]:
    """Ten times the traffic for ten minutes."""
    yield from honest(chance, rate)
    for at, *rest in honest(chance, rate * 10, minutes=10):
        yield (at + 1800, *rest)  # type: ignore[misc]


def payday(chance: random.Random, rate: float) -> Iterator[Send]:
    """A bank writes to 20,000 of its 300,000 customers, who have numbers in the first ranges of three operators, within
    ten minutes."""
    yield from honest(chance, rate)
    for _ in range(20_000):
        prefix = chance.choice(PREFIXES[:3])
        yield chance.uniform(1800, 2400), f"{prefix}00{chance.randrange(10**5):05}", HOME, False


def small_operator(chance: random.Random, rate: float) -> Iterator[Send]:
    """A fifth of the people have numbers of an operator with a hundred thousand in all."""
    yield from honest(chance, rate * 0.8)
    for at, number, *rest in honest(chance, rate * 0.2):
        yield (at, f"+2588799{number[-5:]}", *rest)  # type: ignore[misc]


def resend_storm(chance: random.Random, rate: float) -> Iterator[Send]:
    """Suppliers were down for ten minutes: everybody asked three more times, and all of it is sent in five minutes."""
    yield from honest(chance, rate)
    waiting = {f"{chance.choice(PREFIXES)}{chance.randrange(10**7):07}" for _ in range(int(rate * 10))}
    for number in sorted(waiting):
        for _ in range(chance.randrange(1, 5)):
            yield chance.uniform(2400, 2700), number, HOME, False


def roaming(chance: random.Random, rate: float) -> Iterator[Send]:
    """A tenth of the people have numbers of thirty other countries, half of them listed; a fair adds a fiftieth from
    one of those for half an hour."""
    yield from honest(chance, rate * 0.9)
    for at, number, *rest in honest(chance, rate * 0.1):
        code, country = chance.choice(ABROAD)
        yield (at, f"+{code}{number[-8:]}", country, *rest[1:])  # type: ignore[misc]
    for at, number, *rest in honest(chance, rate * 0.02, minutes=30):
        yield (at + 1200, f"+9715{number[-8:]}", "AE", *rest[1:])  # type: ignore[misc]


ATTACKS = (
    Case("sequential, 20 a minute", sequential),
    Case("random in three blocks of 10,000, 20 a minute", in_blocks),
    Case("the same, 60 % reported as converted", in_blocks, faked=0.6),
    Case("a listed country that is new, 10 a minute", new_country),
    Case("random in a whole prefix, 3 a minute", one_prefix),
)
HONEST = (
    Case("people all over the country", nothing),
    Case("ten times as many, for ten minutes", television),
    Case("payday: 20,000 customers of a bank in ten minutes", payday),
    Case("a fifth with an operator of 100,000 numbers", small_operator),
    Case("a storm of repetitions after an outage", resend_storm),
    Case("people who roam, a tenth, from thirty known countries", roaming, known=tuple(one for _, one in ABROAD)),
    Case("300 new phones with consecutive numbers", onboarding),
    Case("the same, their people imported as contacts", onboarding, contacts=PHONES),
)


def run(case: Case, rate: float, seed: int) -> Outcome:
    """Feed it to the rules. A held range stays held, as it does while an attack goes on."""
    chance = random.Random(f"{case.name} {rate} {seed}")
    sends = sorted(case.make(chance, rate))
    windows, conversions, outcome = Windows(), Conversions(), Outcome()
    for country in (HOME, *case.known):
        windows.known(ORGANIZATION, country)
    # The case's first messages define what is usual at this hour.
    for key in (HOME, ""):
        windows.usual(ORGANIZATION, key, rate * 10)
    held: dict[str, float] = {}
    times: dict[str, int] = {}
    entered: list[tuple[float, str]] = []
    for at, number, country, attack in sends:
        while entered and entered[0][0] <= at:
            conversions.converted(ORGANIZATION, heappop(entered)[1], at=at)
        conversions.sent(ORGANIZATION, number, at=at, place=at)
        suspicion = windows.see(
            ORGANIZATION,
            number,
            country,
            "otp",
            at=at,
            place=at,
            unconverted=conversions.is_bad(ORGANIZATION, number),
        )
        if suspicion is not None and _is_acquainted(case, windows, suspicion):
            suspicion = None
        if suspicion is not None and held.get(suspicion.range, 0.0) <= at:
            times[suspicion.range] = times.get(suspicion.range, 0) + 1
            first = 1800 if suspicion.kind == "country" else 900
            held[suspicion.range] = at + min(first * 2 ** (times[suspicion.range] - 1), 43_200)
        is_held = (
            bool(held)
            and number not in case.contacts
            and any(held.get(range, 0.0) > at for range in (number[1:-4], number[1:], country))
        )
        if attack:
            outcome.attack += 1
            outcome.caught += is_held
            if is_held and outcome.before is None:
                outcome.before = outcome.attack - 1
        else:
            outcome.honest += 1
            outcome.mistaken += is_held
        if not is_held and chance.random() < (case.faked if attack else CONVERSION):
            heappush(entered, (at + chance.uniform(5, 60), number))
    return outcome


def _is_acquainted(case: Case, windows: Windows, suspicion: Suspicion) -> bool:
    """Like `guard.holds.acquainted`: half of a block's numbers are contacts."""
    if suspicion.kind != "block" or not case.contacts:
        return False
    members = windows.members(ORGANIZATION, suspicion.range)
    return sum(one in case.contacts for one in members) * 2 >= len(members)


def total(case: Case, rate: float) -> Outcome:
    """Sums over all seeds; `before` is the worst."""
    sums = Outcome()
    for one in (run(case, rate, seed) for seed in SEEDS):
        sums.attack += one.attack
        sums.caught += one.caught
        sums.honest += one.honest
        sums.mistaken += one.mistaken
        if one.before is not None:
            sums.before = max(sums.before or 0, one.before)
    return sums


RATES = (20.0, 200.0)


def measured() -> dict[tuple[str, float], Outcome]:
    """The results of each case at each rate of honest messages a minute."""
    return {(case.name, rate): total(case, rate) for case in (*ATTACKS, *HONEST) for rate in RATES}


def table(found: dict[tuple[str, float], Outcome]) -> str:
    """The table of docs/guard.md."""
    rows = [
        "| Traffic | 20 honest a minute: caught | sent before | honest held | 200 a minute: caught | sent before"
        " | honest held |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for case in (*ATTACKS, *HONEST):
        cells = [case.name]
        for rate in RATES:
            one = found[case.name, rate]
            cells.append(f"{one.share:.1%}" if one.attack else "–")
            cells.append("–" if one.before is None else str(one.before))
            cells.append(f"{one.false:.3%}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(measured()))
