"""Adaptive least cost: the vectors of the field, and what holds for any measurements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.money import UNIT
from heliograph.routes import adaptive
from heliograph.routes.adaptive import BOUNDS, QualitySample, SupplierQuality, evaluate

#: Enough of a week that it says nothing other than the prior does.
A = SupplierQuality("A", 20_000, QualitySample(1000, 940), share=94, rest=94)
B = SupplierQuality("B", 12_000, QualitySample(1000, 850), share=3, rest=3)
C = SupplierQuality("C", 10_000, QualitySample(10, 9), share=3, rest=3)
OTP, TRANSACTIONAL, MARKETING = (BOUNDS[name] for name in ("otp", "transactional", "marketing"))


def costs(loss: int, segments: int = 1) -> list[float]:
    return [
        round(adaptive.expected_cost((one.price or 0) * segments, one.quality, loss) / UNIT, 6) for one in (A, B, C)
    ]


def test_qualities_and_lower_bounds_are_those_of_the_vectors() -> None:
    assert [round(one.quality, 5) for one in (A, B, C)] == [0.93725, 0.84902, 0.83333]
    assert [round(adaptive.wilson(one.hour.delivered, one.hour.count)[0], 4) for one in (A, B, C)] == [
        0.9264,
        0.8305,
        0.6523,
    ]


def leader(outcome: adaptive.Outcome[str]) -> str:
    return max(outcome.shares, key=lambda id: outcome.shares[id])


def settled(route: list[SupplierQuality[str]], bounds: adaptive.Bounds, times: int = 40) -> dict[str, int]:
    """After this many evaluations of the same measurements."""
    for _ in range(times):
        route = after(route, evaluate(route, bounds))
    return {one.id: one.share for one in route}


def after(route: list[SupplierQuality[str]], outcome: adaptive.Outcome[str]) -> list[SupplierQuality[str]]:
    return [
        SupplierQuality(
            one.id, one.price, one.hour, one.week, outcome.shares[one.id], one.rest, outcome.streaks[one.id]
        )
        for one in route
    ]


def test_r1_one_time_codes_stay_above_their_floor() -> None:
    assert settled([A, B, C], OTP) == {"A": 98, "B": 1, "C": 1}
    assert "under the class's 85%" in evaluate([A, B, C], OTP).reasons["B"]


def test_r2_what_is_unproven_does_not_win() -> None:
    assert costs(TRANSACTIONAL.loss) == [0.023137, 0.019549, 0.018333]
    assert settled([A, B, C], TRANSACTIONAL) == {"A": 3, "B": 94, "C": 3}


def test_r3_marketing_goes_to_the_cheaper_one() -> None:
    assert costs(MARKETING.loss)[:2] == [0.020627, 0.01351]
    route = [
        SupplierQuality("A", 20_000, A.hour, share=95, rest=95),
        SupplierQuality("B", 12_000, B.hour, share=5, rest=5),
    ]
    assert settled(route, MARKETING) == {"A": 5, "B": 95}


def test_r4_the_third_evaluation_moves_ten_points() -> None:
    route, seen = [A, B, C], []
    for _ in range(4):
        route = after(route, evaluate(route, TRANSACTIONAL))
        seen.append([one.share for one in route])
    assert seen == [[94, 3, 3], [94, 3, 3], [84, 13, 3], [74, 23, 3]]


def test_r5_what_is_hardly_cheaper_does_not_take_over() -> None:
    dearer = SupplierQuality("B", 15_000, B.hour, share=3, rest=3)
    outcome = evaluate([A, dearer, C], TRANSACTIONAL)
    assert "0.975 of the incumbent's cost" in outcome.reasons["B"]
    assert settled([A, dearer, C], TRANSACTIONAL) == {"A": 94, "B": 3, "C": 3}


def test_r6_segments_count() -> None:
    assert costs(TRANSACTIONAL.loss, 3)[:2] == [0.063137, 0.043549]


def test_r7_what_has_no_receipt_in_time_was_not_delivered() -> None:
    assert SupplierQuality("A", 1, QualitySample(60, 54)).quality == pytest.approx(0.875)


def test_r10_the_best_one_that_was_measured_stands_in() -> None:
    """B before C, which is cheaper and unproven, although neither is within the bounds of one-time codes."""
    outcome = evaluate([C, B, A], OTP)
    assert (outcome.stand_ins, outcome.outside) == (("A", "B", "C"), {"B", "C"})
    assert evaluate([A, B, C], TRANSACTIONAL).stand_ins == ("B", "A", "C")
    assert evaluate([A, C], MARKETING).outside == {"C"}
    unjudged = evaluate([SupplierQuality("A", 1), SupplierQuality("B", 2)], OTP)
    assert (unjudged.stand_ins, unjudged.outside) == ((), frozenset())


def test_r12_few_messages_do_not_win_on_a_lower_bound() -> None:
    few, many = adaptive.wilson(20, 20, 1.96), adaptive.wilson(180, 200, 1.96)
    assert (round(few[0], 3), round(few[1], 3), round(many[0], 3), round(many[1], 3)) == (0.839, 1, 0.851, 0.934)


def test_none_within_bounds_is_said_and_the_best_one_carries() -> None:
    bad = [
        SupplierQuality("A", 20_000, QualitySample(1000, 500), share=50, rest=50),
        SupplierQuality("B", 1, QualitySample(1000, 300), share=50),
    ]
    outcome = evaluate(bad, OTP)
    assert "degraded" in outcome.reasons["A"]
    assert outcome.shares == {"A": 60, "B": 40}


def test_an_incumbent_that_falls_against_its_own_week_is_left_at_once() -> None:
    week = QualitySample(10_000, 9_500)
    fallen = SupplierQuality("A", 10_000, QualitySample(500, 400), week, share=97, rest=97)
    other = SupplierQuality("B", 12_000, QualitySample(500, 470), week, share=3, rest=3)
    outcome = evaluate([fallen, other], TRANSACTIONAL)
    assert outcome.shares == {"A": 87, "B": 13}
    assert "its week 95%" in outcome.reasons["A"]


def test_slow_receipts_are_outside_of_the_bounds() -> None:
    slow = SupplierQuality("A", 1, QualitySample(500, 490, 45.0), QualitySample(5000, 4900, 5.0), share=99, rest=99)
    fast = SupplierQuality("B", 2, QualitySample(500, 490, 4.0), QualitySample(5000, 4900, 5.0), share=1, rest=1)
    assert evaluate([slow, fast], OTP).shares == {"A": 89, "B": 11}
    assert "its week 5 s" in evaluate([slow, fast], MARKETING).reasons["A"]


def test_without_measurements_shares_return_to_rest() -> None:
    route = [SupplierQuality("A", 1, share=20, rest=97), SupplierQuality("B", 2, share=80, rest=3)]
    outcome = evaluate(route, TRANSACTIONAL)
    assert outcome.shares == {"A": 30, "B": 70}
    assert settled(route, TRANSACTIONAL) == {"A": 97, "B": 3}
    unpriced = [
        SupplierQuality("A", None, QualitySample(99, 99), share=50, rest=97),
        SupplierQuality("B", 2, QualitySample(99, 99), share=50, rest=3),
    ]
    assert "prices of two suppliers" in evaluate(unpriced, TRANSACTIONAL).reasons["A"]


measured = st.builds(
    lambda count, rate, p95: QualitySample(count, int(count * rate), p95),
    st.integers(0, 5000),
    st.floats(0, 1),
    st.none() | st.floats(0.1, 500),
)


@given(
    st.lists(
        st.tuples(st.none() | st.integers(1, 10**6), measured, measured, st.integers(0, 20), st.integers(1, 100)),
        min_size=1,
        max_size=6,
    )
    | st.integers(20, adaptive.MOST).map(
        lambda count: [
            (n + 1, QualitySample(100, 90, 5.0), QualitySample(900, 800, 5.0), n % 50, 1) for n in range(count)
        ]
    ),
    st.sampled_from(sorted(BOUNDS)),
    st.integers(1, 30),
)
def test_shares_are_a_hundred_and_move_gradually(drawn: list[tuple[object, ...]], name: str, times: int) -> None:
    bounds = BOUNDS[name]
    rest = adaptive.at_rest([(n, one[3], one[4]) for n, one in enumerate(drawn)], bounds.trickle)  # type: ignore[misc]
    route = [
        SupplierQuality(n, price, hour, week, rest[n], rest[n])  # type: ignore[arg-type]
        for n, (price, hour, week, _, _) in enumerate(drawn)
    ]
    assert sum(rest.values()) == 100
    for _ in range(times):
        outcome = evaluate(route, bounds)
        assert sum(outcome.shares.values()) == 100
        assert min(outcome.shares.values()) >= min(bounds.trickle, 100 // len(route)) >= 1
        assert sum(abs(outcome.shares[one.id] - one.share) for one in route) <= 2 * adaptive.STEP
        assert outcome.reasons.keys() == {one.id for one in route}
        route = [
            SupplierQuality(
                one.id, one.price, one.hour, one.week, outcome.shares[one.id], one.rest, outcome.streaks[one.id]
            )
            for one in route
        ]
