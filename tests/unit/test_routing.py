"""Which supplier carries a message, and when one is avoided."""

from __future__ import annotations

from heliograph.sms.circuits.breaker import Breaker
from heliograph.sms.dispatch.routing import covers
from tests.rules.factories import TO, supplier


def test_prefixes_are_of_the_number_without_plus() -> None:
    assert covers(supplier(prefixes=()), TO)
    assert covers(supplier(prefixes=("351", "25884")), TO)
    assert not covers(supplier(prefixes=("351", "25885")), TO)


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


def failing(breaker: Breaker, count: int, *, ok: bool = False) -> None:
    for _ in range(count):
        breaker.record(ok=ok)


def test_twenty_failures_in_a_row_open_it_and_one_success_closes_it() -> None:
    breaker = Breaker(Clock())
    failing(breaker, 19)
    assert not breaker.open
    failing(breaker, 1)
    assert breaker.open
    failing(breaker, 1, ok=True)
    assert not breaker.open
    assert breaker.usable()


def test_more_than_half_of_a_minutes_answers_open_it() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(40):
        clock.at += 0.1
        failing(breaker, 1, ok=True)
        failing(breaker, 1)
    assert not breaker.open
    failing(breaker, 1)
    assert breaker.open


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(18):
        failing(breaker, 1)
    clock.at += 61
    failing(breaker, 5, ok=True)
    failing(breaker, 14)
    assert not breaker.open
    failing(breaker, 1)
    assert breaker.open


def test_an_open_one_is_probed_each_quarter_minute() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    failing(breaker, 20)
    clock.at += 14.9
    assert not breaker.usable()
    clock.at += 0.1
    # That it may be probed is not a probe yet: there may be nothing to send.
    assert breaker.usable()
    assert breaker.usable()
    breaker.begin_probe()
    assert not breaker.usable()
    failing(breaker, 1)
    clock.at += 15
    assert breaker.usable()


def test_what_was_on_its_way_when_it_opened_does_not_close_it() -> None:
    breaker = Breaker(Clock())
    before = breaker.openings
    failing(breaker, 20)
    assert breaker.open
    breaker.record(ok=True, sent_in=before)
    assert breaker.open
    breaker.record(ok=True, sent_in=breaker.openings)
    assert not breaker.open
