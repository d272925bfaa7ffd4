"""All retry schedules: they never end early, stay within their bound, and are spread by jitter."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base import retry
from heliograph.base.process.settings import Settings, SettingsError

WEBHOOK = (0.0, 5.0, 30.0, 300.0)
PAUSES = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


def test_a_submit_is_tried_again_after_these_seconds_and_then_hourly() -> None:
    assert [retry.submit_pause(tries) for tries in range(1, 8)] == [5, 30, 120, 600, 3600, 3600, 3600]


def test_a_supplier_that_throttles_for_long_is_asked_less_often() -> None:
    pauses = [retry.hold_pause(attempt) for attempt in range(1, 2000)]
    assert pauses[0] == retry.HOLD
    assert pauses == sorted(pauses)
    assert max(pauses) == 60.0
    # Attempts are counted in 15 bits; the longest validity is 72 h.
    tries, waited = 0, 0.0
    while waited < 72 * 3600:
        tries += 1
        waited += retry.hold_pause(tries)
    assert tries < 5000


def test_an_unmatched_receipt_is_looked_at_seven_times() -> None:
    assert [retry.receipt_pause(tries) for tries in range(8)] == [1, 5, 30, 300, 3600, 21600, 86400, None]


@given(st.integers(0, 10), st.integers())
def test_webhooks_follow_their_schedule_within_a_fifth(tries: int, seed: int) -> None:
    pause = retry.webhook(",".join(map(str, WEBHOOK))).pause(tries, random.Random(seed))
    if tries >= len(WEBHOOK):
        assert pause is None
    else:
        assert pause is not None
        assert 0.8 * WEBHOOK[tries] <= pause <= 1.2 * WEBHOOK[tries]


@given(st.floats(0, 3600))
def test_a_look_that_took_long_does_not_keep_the_next_one_away(took: float) -> None:
    pause = retry.look_pause(took)
    assert 0.005 <= pause <= 2
    assert pause >= min(10 * took, 2)


@given(PAUSES, st.none() | st.floats(0, 1e6), st.integers(0, 20))
def test_a_schedule_is_refused_or_never_asks_sooner_than_before(
    pauses: list[float], then: float | None, place: int
) -> None:
    grows = sorted(pauses) == pauses and (then is None or then >= pauses[-1])
    if not grows:
        with pytest.raises(ValueError, match="shorter"):
            retry.Schedule(tuple(pauses), then=then)
        return
    schedule = retry.Schedule(tuple(pauses), then=then)
    now, later = schedule.pause(place), schedule.pause(place + 1)
    assert now == (pauses[place] if place < len(pauses) else then)
    assert later is None or now is None or later >= now


@pytest.mark.parametrize("text", ["", "soon", "0,,5", "-1,5", "0,nan", "0,inf", "30,5"])
def test_a_webhook_schedule_that_means_nothing_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match=r"pause"):
        retry.webhook(text)
    with pytest.raises(SettingsError, match="HELIOGRAPH_WEBHOOK_SCHEDULE"):
        Settings(webhook_schedule=text)


@given(st.floats(0, 1e5), st.floats(1, 10), st.floats(0, 1e6), st.integers(0, 10**6))
def test_a_backoff_grows_up_to_its_bound_and_never_shrinks(
    first: float, growth: float, longest: float, failures: int
) -> None:
    backoff = retry.Backoff(first, growth=growth, longest=longest)
    assert backoff.pause(0) == first
    assert first <= backoff.pause(failures) <= backoff.pause(failures + 1) <= max(first, longest)


@pytest.mark.parametrize(("first", "growth", "longest"), [(-1.0, 2.0, 9.0), (1.0, 0.5, 9.0), (1.0, 2.0, float("inf"))])
def test_a_backoff_that_means_nothing_is_refused(first: float, growth: float, longest: float) -> None:
    with pytest.raises(ValueError, match="pause"):
        retry.Backoff(first, growth=growth, longest=longest)
