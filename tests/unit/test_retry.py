"""Every schedule in one place: it never ends early, never grows past its bound, never divides a herd in step."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from heliograph.queue import retry

WEBHOOK = (0.0, 5.0, 30.0, 300.0)


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
    pause = retry.webhook_pause(WEBHOOK, tries, random.Random(seed))
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
