"""Concurrency of deliveries: whatever endpoints do, no job is lost, limits hold, and responsive ones have room."""

from __future__ import annotations

from uuid import UUID

from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heliograph.webhooks.delivery.concurrency import SILENT, STREAK, Concurrency, EndpointQueue


def _places(concurrency: int = 16) -> Concurrency[int]:
    return Concurrency(concurrency, widest=8)


def _line(places: Concurrency[int], number: int, jobs: int) -> EndpointQueue[int]:
    line = places.line(UUID(int=number))
    line.waiting.extend(range(jobs))
    places.offer(line)
    return line


def _start(places: Concurrency[int], now: float = 0.0) -> list[EndpointQueue[int]]:
    started = []
    while (picked := places.pick(now)) is not None:
        started.append(picked[0])
    return started


def test_the_unknown_get_one_place_each_and_share_a_quarter() -> None:
    places = _places()
    lines = [_line(places, n, 10) for n in range(1, 7)]
    assert _start(places) == lines[:4]


def test_success_widens_the_window_and_failure_halves_it() -> None:
    places = _places(64)
    line = _line(places, 1, 1000)
    widths = []
    for _ in range(5):
        under_way = _start(places)
        widths.append(len(under_way))
        for _ in under_way:
            places.succeeded(line, 1.0, 0.01)
            places.release(line)
    assert widths == [1, 3, 6, 8, 8]
    places.failed(line, 1.0, grave=False)
    assert (line.window, line.pool) == (4, places.good)


def test_failures_in_a_row_or_one_timeout_make_a_failing_endpoint_with_one_place() -> None:
    for grave, failures in ((False, STREAK), (True, 1)):
        places = _places()
        line = _line(places, 1, 100)
        places.expect(line, failures=0, succeeded=True)
        for _ in range(failures):
            assert line.pool is places.good
            places.failed(line, 1.0, grave=grave)
        assert line.pool is places.failing
        assert len(_start(places)) == 1
        places.succeeded(line, 2.0, 0.01)
        places.release(line)
        assert line.pool is places.good


def test_what_others_saw_sorts_a_new_endpoint() -> None:
    places = _places()
    for failures, succeeded, pool in [
        (0, True, places.good),
        (0, False, places.unknown),
        (1, True, places.unknown),
        (STREAK, True, places.failing),
    ]:
        line = places.line(UUID(int=1))
        places.expect(line, failures=failures, succeeded=succeeded)
        assert line.pool is pool


def test_endpoints_that_hang_leave_places_to_those_who_answer() -> None:
    places = _places()
    for n in range(1, 100):
        _line(places, n, 10)
    now = 0.0
    hanging: list[EndpointQueue[int]] = []
    for _ in range(10):
        hanging += _start(places, now)
        now += SILENT + 0.1
        for line in hanging:
            places.unsettle(line, now)
    good = _line(places, 1000, 10)
    places.expect(good, failures=0, succeeded=True)
    assert _start(places, now) == [good, good]
    assert len(set(hanging)) == len(hanging) == 12


def test_one_endpoint_never_takes_the_last_place() -> None:
    places = Concurrency[int](16, widest=16)
    greedy = _line(places, 1, 100)
    places.expect(greedy, failures=0, succeeded=True)
    greedy.window = 16
    assert len(_start(places)) == 4
    other = _line(places, 2, 1)
    places.expect(other, failures=0, succeeded=True)
    assert _start(places) == [other]


def test_turns_are_taken() -> None:
    places = _places()
    lines = [_line(places, n, 4) for n in (1, 2, 3)]
    for line in lines:
        places.expect(line, failures=0, succeeded=True)
    assert _start(places)[:6] == lines * 2


class Life(RuleBasedStateMachine):
    """Endpoints get jobs, and attempts end one way or another, in any order."""

    @initialize(concurrency=strategies.integers(1, 40))
    def begin(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.places: Concurrency[int] = Concurrency(concurrency, widest=max(1, concurrency // 2))
        self.lines = [self.places.line(UUID(int=n)) for n in range(6)]
        self.under_way: list[tuple[EndpointQueue[int], int]] = []
        self.now = 0.0
        self.given = 0
        self.ended: list[int] = []

    @rule(n=strategies.integers(0, 5), jobs=strategies.integers(1, 20))
    def work_comes(self, n: int, jobs: int) -> None:
        line = self.lines[n]
        line.waiting.extend(range(self.given, self.given + jobs))
        self.given += jobs
        self.places.offer(line)

    @rule()
    def start(self) -> None:
        while (picked := self.places.pick(self.now)) is not None:
            self.under_way.append(picked)

    @rule(n=strategies.integers(0, 1000), how=strategies.sampled_from(["succeeded", "failed", "timeout", "busy"]))
    def end(self, n: int, how: str) -> None:
        if not self.under_way:
            return
        line, job = self.under_way.pop(n % len(self.under_way))
        if how == "succeeded":
            self.places.succeeded(line, self.now, 0.01)
        elif how == "busy":
            self.places.busy(line)
        else:
            self.places.failed(line, self.now, grave=how == "timeout")
        self.places.release(line)
        self.ended.append(job)

    @rule(seconds=strategies.floats(0.1, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for line in self.lines:
            self.places.unsettle(line, self.now)

    @rule(n=strategies.integers(0, 5), failures=strategies.integers(0, 5), succeeded=strategies.booleans())
    def somebody_tells(self, n: int, failures: int, succeeded: bool) -> None:
        self.places.expect(self.lines[n], failures=failures, succeeded=succeeded)

    @invariant()
    def the_limits_hold(self) -> None:
        if not hasattr(self, "places"):
            return
        places = self.places
        assert places.open == len(self.under_way) <= self.concurrency
        for pool in (places.good, places.unknown, places.failing):
            assert pool.used == sum(line.in_flight for line in self.lines if line.pool is pool)
        for line in self.lines:
            assert line.in_flight == sum(1 for one, _ in self.under_way if one is line)

    def teardown(self) -> None:
        """All that respond get all of theirs."""
        if not hasattr(self, "places"):
            return
        for _ in range(self.given + 1):
            self.start()
            while self.under_way:
                self.end(0, "succeeded")
        assert sorted(self.ended) == list(range(self.given))


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
