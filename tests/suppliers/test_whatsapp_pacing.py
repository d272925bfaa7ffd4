"""How fast a number may send, on a clock that moves only when told to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.suppliers.whatsapp_cloud.pacing import PAIR_BURST, PAIR_SECONDS, NumberPacer, PairGate


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def drained(pacer: NumberPacer, clock: Clock, seconds: float, step: float = 0.01) -> int:
    """The number of messages sent within `seconds` if there are always some waiting."""
    sent = 0
    for _ in range(round(seconds / step)):
        clock.now += step
        free = pacer.available()
        pacer.take(free)
        sent += free
    return sent


@pytest.mark.parametrize("rate", [1.0, 20.0, 80.0, 1000.0])
def test_a_number_sends_at_its_rate(rate: float) -> None:
    clock = Clock()
    pacer = NumberPacer(rate, clock)
    assert drained(pacer, clock, 20.0) == pytest.approx(rate * 20, abs=rate * 0.1 + 1)


def test_an_idle_number_does_not_save_up() -> None:
    clock = Clock()
    pacer = NumberPacer(80.0, clock)
    clock.now += 3_600
    assert pacer.available() == 8
    assert pacer.ahead == 20


def test_a_throttle_halves_once_and_the_rate_comes_back() -> None:
    clock = Clock()
    pacer = NumberPacer(80.0, clock)
    for _ in range(50):
        pacer.slow()
    assert pacer.rate == 40.0
    clock.now += 5.0
    assert pacer.rate == pytest.approx(40.0)
    clock.now += 10.0
    assert pacer.rate == pytest.approx(56.0)
    pacer.slow()
    assert pacer.rate == pytest.approx(28.0)
    clock.now += 60.0
    assert pacer.rate == 80.0


def test_what_was_taken_in_advance_is_waited_for() -> None:
    clock = Clock()
    pacer = NumberPacer(10.0, clock)
    pacer.take(6)
    assert pacer.available() == 0
    assert pacer.wait() == pytest.approx(0.6)
    clock.now += 0.6
    assert pacer.available() == 1


def test_a_new_ceiling() -> None:
    clock = Clock()
    pacer = NumberPacer(80.0, clock)
    pacer.resize(1_000.0)
    assert pacer.rate == 1_000.0
    pacer.slow()
    pacer.resize(800.0)
    assert pacer.rate == 500.0
    pacer.resize(20.0)
    assert pacer.rate == 20.0
    pacer.resize(1e9)
    assert pacer.rate <= 1_000.0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3)), max_size=60))
def test_a_rate_stays_within_its_bounds(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    pacer = NumberPacer(80.0, clock)
    sent, began = 0, clock.now
    for seconds, act in steps:
        clock.now += seconds
        if act == 0:
            pacer.slow()
        elif act == 1:
            free = pacer.available()
            pacer.take(free)
            sent += free
        assert 1.0 <= pacer.rate <= 80.0
        assert pacer.wait() >= 0
    assert sent <= 80.0 * (clock.now - began) + 9


def test_one_user_gets_a_burst_and_then_one_in_six_seconds() -> None:
    clock = Clock()
    gate = PairGate(clock)
    for _ in range(PAIR_BURST):
        assert gate.wait("+212600000017") == 0
        gate.take("+212600000017")
    assert gate.wait("+212600000017") == pytest.approx(PAIR_SECONDS)
    assert gate.wait("+212600000018") == 0
    clock.now += PAIR_SECONDS
    assert gate.wait("+212600000017") == 0
    gate.take("+212600000017")
    assert gate.wait("+212600000017") == pytest.approx(PAIR_SECONDS)
    clock.now += PAIR_SECONDS * PAIR_BURST
    assert gate.wait("+212600000017") == 0


@given(st.lists(st.floats(0, 60), min_size=1, max_size=200))
def test_no_more_than_meta_allows(pauses: list[float]) -> None:
    clock = Clock()
    gate = PairGate(clock)
    sent: list[float] = []
    for pause in pauses:
        clock.now += pause
        if gate.wait("u") == 0:
            gate.take("u")
            sent.append(clock.now)
    for n, first in enumerate(sent):
        for later in sent[n:]:
            count = sum(first <= at <= later for at in sent)
            assert count <= PAIR_BURST + (later - first) / PAIR_SECONDS + 1e-6


def test_those_that_wait_know_their_turn() -> None:
    clock = Clock()
    gate = PairGate(clock)
    assert [gate.wait("u", ahead=n) for n in (0, PAIR_BURST - 1)] == [0, 0]
    assert gate.wait("u", ahead=PAIR_BURST) == pytest.approx(PAIR_SECONDS)
    for _ in range(PAIR_BURST):
        gate.take("u")
    assert [gate.wait("u", ahead=n) for n in range(3)] == pytest.approx([6.0, 12.0, 18.0])


def test_what_others_sent_counts() -> None:
    clock = Clock()
    gate = PairGate(clock)
    gate.learn("u", 40 * PAIR_SECONDS)
    gate.learn("u", 10 * PAIR_SECONDS)
    assert gate.wait("u", ahead=4) == 0
    assert gate.wait("u", ahead=5) == pytest.approx(PAIR_SECONDS)
    for _ in range(5):
        gate.take("u")
    assert gate.wait("u") == pytest.approx(PAIR_SECONDS)
    # The same messages, once all of them are known.
    gate.learn("u", 45 * PAIR_SECONDS)
    assert gate.wait("u") == pytest.approx(PAIR_SECONDS)
    clock.now += PAIR_SECONDS
    assert gate.wait("u") == 0


def test_what_others_sent_is_forgotten_too() -> None:
    gate = PairGate(Clock(), most=100)
    for n in range(1_000):
        gate.learn(f"u{n}", 6.0)
        assert len(gate) <= 100


def test_meta_shuts_the_gate() -> None:
    clock = Clock()
    gate = PairGate(clock)
    gate.shut("u", 16.0)
    assert gate.wait("u") == pytest.approx(16.0)
    gate.shut("u", 1.0)
    assert gate.wait("u") == pytest.approx(16.0)
    clock.now += 16.0
    assert gate.wait("u") == 0


def test_it_forgets_those_who_owe_least() -> None:
    clock = Clock()
    gate = PairGate(clock, most=100)
    for n in range(99):
        gate.take(f"u{n}")
    for _ in range(5):
        gate.take("busy")
    for n in range(99, 1_000):
        gate.take(f"u{n}")
        assert len(gate) <= 100
    gate.take("busy")
    assert gate.wait("busy") == 0
    for _ in range(PAIR_BURST - 6):
        gate.take("busy")
    assert gate.wait("busy") > 0
    clock.now += 3_600
    for n in range(101):
        gate.take(f"v{n}")
    assert len(gate) <= 101
