"""Which supplier carries a message, and when one is left alone."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.ids import uuid7
from heliograph.sms.dispatch.routing import Breaker, choose, covers
from tests.rules.factories import TO, supplier


def test_prefixes_are_of_the_number_without_plus() -> None:
    assert covers(supplier(prefixes=()), TO)
    assert covers(supplier(prefixes=("351", "25884")), TO)
    assert not covers(supplier(prefixes=("351", "25885")), TO)


def test_the_lowest_priority_number_that_covers_the_destination_wins() -> None:
    first = supplier(priority=1, prefixes=("351",))
    second, third = supplier(priority=2), supplier(priority=3)
    assert choose([third, second, first], TO, uuid7()) == second
    assert choose([third, second, first], "+351912345678", uuid7()) == first
    assert choose([first], TO, uuid7()) is None
    assert choose([], TO, uuid7()) is None


def test_one_that_did_not_take_it_is_chosen_only_if_there_is_no_other() -> None:
    first, second = supplier(priority=1), supplier(priority=2)
    assert choose([first, second], TO, uuid7(), avoid={first.id}) == second
    assert choose([first], TO, uuid7(), avoid={first.id}) == first


def test_equals_share_by_weight() -> None:
    light, heavy = supplier("light", weight=1), supplier("heavy", weight=3)
    won = Counter(choose([light, heavy], TO, UUID(int=n)) == heavy for n in range(4000))
    assert won[True] == pytest.approx(3000, abs=150)


@given(st.uuids(), st.integers(2, 6), st.integers(0, 5))
def test_a_message_draws_the_same_each_time_and_keeps_its_supplier_when_another_goes(
    message: UUID, count: int, gone: int
) -> None:
    suppliers = [supplier(id=UUID(int=n + 1), weight=n + 1) for n in range(count)]
    chosen = choose(suppliers, TO, message)
    assert choose(list(reversed(suppliers)), TO, message) == chosen
    rest = [one for one in suppliers if one.id != UUID(int=gone % count + 1)]
    if chosen in rest:
        assert choose(rest, TO, message) == chosen


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
    # That it may be probed is no probe: nothing may be there to send.
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
