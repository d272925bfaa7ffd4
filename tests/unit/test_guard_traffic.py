"""The guard's rules on seeded traffic, and their targets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.guard.conversion import Conversions, wilson_upper
from heliograph.guard.pace import STEP, STEPS, Pace
from heliograph.guard.windows import MOST, SPAN, Windows
from tests.guard_traffic import ATTACKS, HONEST, ORGANIZATION, Outcome, measured, table

GUIDE = Path(__file__).parents[2] / "docs" / "guard.md"


def measured_once(test: Callable[..., None]) -> Callable[..., None]:
    """The measurement takes many seconds: all tests that use it run on one worker."""
    return pytest.mark.lasts(15)(pytest.mark.xdist_group("guard traffic")(test))


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, float], Outcome]:
    return measured()


@measured_once
def test_the_targets(found: dict[tuple[str, float], Outcome]) -> None:
    least = {"sequential": 0.99, "random in three": 0.9, "the same, 60 %": 0.9, "a listed country": 0.95}
    for rate, mistaken in ((20.0, 0.001), (200.0, 0.003)):
        for case in ATTACKS:
            one = found[case.name, rate]
            assert one.false <= mistaken, (case.name, rate, one)
            target = next((share for begins, share in least.items() if case.name.startswith(begins)), None)
            if target is None:
                assert one.caught == 0, "the guide says that this one is not seen; now it is"
                continue
            assert one.share >= target, (case.name, rate, one)
            assert one.before is not None
            assert one.before <= 30
        for case in HONEST:
            one = found[case.name, rate]
            if case.name.startswith("300 new phones"):
                assert one.false > 0.01, "the guide says that strangers in a row are held"
            else:
                assert one.false <= mistaken, (case.name, rate, one)


class Unread(dict[int, float]):
    """Searched by key, and never read from one end to the other."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("the whole window was read")


@measured_once
def test_the_guide_has_what_was_measured(found: dict[tuple[str, float], Outcome]) -> None:
    assert table(found) in GUIDE.read_text(), "python -m tests.guard_traffic prints it"


def test_numbers_are_forgotten() -> None:
    windows = Windows()
    for n in range(4):
        windows.see(ORGANIZATION, f"+2588412300{n:02}", "MZ", "otp", at=0.0, place=0.0)
    assert windows.see(ORGANIZATION, "+258841230004", "MZ", "otp", at=SPAN - 1, place=0.0) is not None
    assert windows.see(ORGANIZATION, "+258841230009", "MZ", "otp", at=SPAN + 1, place=1.0) is None
    assert len(windows) == 2
    assert windows.members(ORGANIZATION, "25884123") == ["+258841230004", "+258841230009"]
    # Among however many others: the window is not scanned.
    window = windows._of[ORGANIZATION]
    window.last = Unread(window.last)
    assert windows.members(ORGANIZATION, "25884123") == ["+258841230004", "+258841230009"]
    assert windows.members(ORGANIZATION, "25884124") == windows.members(UUID(int=1), "25884123") == []
    small = Windows(most=10)
    for n in range(100):
        small.see(UUID(int=n), f"+25884{n:07}", "MZ", "otp", at=0.0, place=0.0)
    assert len(small) == 10
    assert MOST <= 100_000


def test_one_message_looked_at_twice_is_one() -> None:
    windows = Windows()
    for _ in range(50):
        assert windows.see(ORGANIZATION, "+258841230004", "MZ", "otp", at=1.0, place=1.0) is None
    for n in range(2, 10):
        assert windows.see(ORGANIZATION, "+258841230004", "MZ", "otp", at=n, place=n) is None
    tenth = windows.see(ORGANIZATION, "+258841230004", "MZ", "otp", at=11.0, place=11.0)
    assert tenth is not None
    assert (tenth.kind, tenth.range, tenth.rules) == ("number", "258841230004", ("same_number",))


def test_a_message_behind_a_later_one_of_another_class_breaks_nothing() -> None:
    """A class with a limit may be seen for the first time in a message that is older than what is known of its
    number."""
    windows = Windows()
    windows.limit({(ORGANIZATION, "marketing"): 5})
    assert windows.see(ORGANIZATION, "+258841230004", "MZ", "otp", at=9.0, place=8.0) is None
    assert windows.see(ORGANIZATION, "+258841230004", "MZ", "marketing", at=9.0, place=7.0) is None


def test_codes_that_nobody_enters() -> None:
    conversions = Conversions()
    conversions.converted(ORGANIZATION, "+258840000000", at=0.0)
    for n in range(150):
        number = f"+25885{n:07}"
        conversions.sent(ORGANIZATION, number, at=1.0, place=1.0)
        if n % 4:
            conversions.converted(ORGANIZATION, number, at=30.0)
    for n in range(30):
        conversions.sent(ORGANIZATION, f"+25886123{n:04}", at=2.0, place=2.0)
    bad = "+258861239999"
    assert not conversions.is_bad(ORGANIZATION, bad), "they had no time to enter them"
    conversions.sent(ORGANIZATION, "+258870000000", at=400.0, place=400.0)
    assert conversions.is_bad(ORGANIZATION, bad)
    assert not conversions.is_bad(ORGANIZATION, "+258850000000")
    assert not conversions.is_bad(UUID(int=1), bad), "of an organization that reports none, nothing is known"
    for n in range(8):
        conversions.converted(ORGANIZATION, f"+25886123{n:04}", at=500.0)
    assert not conversions.is_bad(ORGANIZATION, bad), "a late one counts"
    conversions.sent(ORGANIZATION, "+258870000001", at=5000.0, place=5000.0)
    assert not conversions.is_bad(ORGANIZATION, bad), "an hour later nothing is known"


def test_a_message_that_is_looked_at_several_times_before_it_leaves_counts_once() -> None:
    """As while it waits for its number's network, or for a supplier that can be used."""
    conversions = Conversions()
    conversions.converted(ORGANIZATION, "+258840000000", at=0.0)
    for n in range(150):
        conversions.sent(ORGANIZATION, f"+25885{n:07}", at=1.0, place=1.0)
        conversions.converted(ORGANIZATION, f"+25885{n:07}", at=30.0)
    for n in range(30):
        for look in range(12):
            conversions.sent(ORGANIZATION, f"+25886123{n:04}", at=2.0 + look / 4, place=2.0)
        conversions.converted(ORGANIZATION, f"+25886123{n:04}", at=30.0)
    conversions.sent(ORGANIZATION, "+258870000000", at=400.0, place=400.0)
    assert not conversions.is_bad(ORGANIZATION, "+258861239999")


def test_what_was_seen_before_the_clock_was_set_back_does_not_add_to_what_comes() -> None:
    """It would stay until that time comes again, and honest numbers of an hour would be held as an attack."""
    windows = Windows()

    def see(n: int, at: float) -> bool:
        number = f"+25884123{n * 13:04}"
        return windows.see(ORGANIZATION, number, "MZ", "otp", at=at, place=at) is not None

    assert not any(see(n, 7200.0 + n) for n in range(9))
    assert not any(see(n, 3600.0 + n) for n in range(9, 18))
    assert see(18, 3618.0), "ten within ten minutes"
    assert len(windows) == 10


def test_codes_are_judged_although_the_clock_was_set_back() -> None:
    conversions = Conversions()
    conversions.converted(ORGANIZATION, "+258840000000", at=7200.0)
    conversions.sent(ORGANIZATION, "+258840000000", at=7200.0, place=7200.0)
    for n in range(150):
        conversions.sent(ORGANIZATION, f"+25885{n:07}", at=1.0, place=1.0)
        conversions.converted(ORGANIZATION, f"+25885{n:07}", at=30.0)
    for n in range(30):
        conversions.sent(ORGANIZATION, f"+25886123{n:04}", at=2.0, place=2.0)
    conversions.sent(ORGANIZATION, "+258870000000", at=400.0, place=400.0)
    assert conversions.is_bad(ORGANIZATION, "+258861239999")


def test_the_interval() -> None:
    assert wilson_upper(20, 20, 1.96) == pytest.approx(1.0, abs=0.001)
    assert wilson_upper(180, 200, 1.96) == pytest.approx(0.934, abs=0.001)
    assert wilson_upper(0, 20) == pytest.approx(0.119, abs=0.001)


def test_a_class_has_a_limit_of_its_own() -> None:
    windows = Windows()
    windows.limit({(ORGANIZATION, "otp"): 20, (UUID(int=1), "marketing"): 1})

    def see(n: int, traffic_class: str, *, at: float) -> str:
        found = windows.see(ORGANIZATION, f"+2588{n * 7919:08}", "MZ", traffic_class, at=at, place=at)
        return "" if found is None else found.range

    assert [see(n, "otp", at=n) for n in range(20)] == [""] * 20
    assert see(20, "otp", at=20.0) == "otp"
    assert see(20, "otp", at=20.0) == "otp", "looked at again it is still one"
    assert [see(n, "transactional", at=21.0) for n in range(21, 60)] == [""] * 39, "other classes go on"
    assert see(60, "otp", at=SPAN + 61.0) == "", "ten minutes later it begins anew"
    for n in range(61, 80):
        windows.told(ORGANIZATION, f"+2588{n * 7919:08}", "MZ", "otp", at=SPAN + 62, place=SPAN + 62)
    assert see(80, "otp", at=SPAN + 63) == "otp", "what other workers sent counts"
    block = [windows.see(ORGANIZATION, f"+2588411100{n:02}", "MZ", "otp", at=SPAN + 64, place=1.0) for n in range(9)]
    assert block[-1] is not None
    assert block[-1].kind == "block", "what holds less is held first"


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(1, 50)), max_size=60))
def test_a_pace_is_the_sum_of_its_last_ten_minutes(gaps: list[tuple[float, int]]) -> None:
    pace, at, steps = Pace(), 0.0, []
    for gap, count in gaps:
        at += gap
        for _ in range(count):
            pace.add(at)
        steps += [int(at / STEP)] * count
        assert pace.count(at) == sum(one > int(at / STEP) - STEPS for one in steps)
        assert len(pace._counts) <= STEPS
    assert pace.count(at + SPAN) == 0


def _spread(chance: random.Random, minutes: range, rate: float, *, first: float = 0.0) -> list[tuple[float, str]]:
    sent = []
    at = first + minutes.start * 60
    while at < minutes.stop * 60:
        at += chance.expovariate(rate / 60)
        sent.append((at, f"+2588{chance.randrange(10**8):08}"))
    return sent


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_codes_all_over_the_country_are_stopped_by_a_limit_and_peaks_below_it_are_not(seed: int) -> None:
    """No other rule detects numbers spread over a whole country."""
    chance, limit = random.Random(seed), 1000
    honest = _spread(chance, range(60), 20) + _spread(chance, range(20, 25), 100)
    for attack, caught in (([], False), (_spread(chance, range(30, 60), 200), True)):
        windows, held, before = Windows(), 0, 0
        windows.limit({(ORGANIZATION, "otp"): limit})
        for at, number in sorted(honest + attack):
            suspicion = windows.see(ORGANIZATION, number, "MZ", "otp", at=at, place=at)
            if suspicion is not None and suspicion.kind == "class":
                held += 1
            before += not held
            reminder = windows.see(ORGANIZATION, number, "MZ", "transactional", at=at, place=at)
            assert reminder is None or reminder.kind != "class"
        assert bool(held) is caught
        if caught:
            assert held > 0.5 * len(attack)
            assert before < len(honest) + limit
