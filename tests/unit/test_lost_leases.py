"""When a worker's connectors may still send what they were handed, compared with a model of the leases: whatever their
duration, and however the process or the database stands still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heliograph.queue import leases
from heliograph.queue.leases import Lease
from heliograph.sending import flights
from heliograph.sending.attempts import Attempt
from heliograph.sending.flights import Flights


class _Pool:
    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        yield


class LeaseMachine(RuleBasedStateMachine):
    """A worker that hands over, renews late or not at all, and stands still. Time is in shares of a lease."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(flights, "monotonic", lambda: self.now)
        self._patch.setattr(leases, "renew", self._renew)
        #: When leases end, and when their messages were handed over.
        self.ends: dict[UUID, float] = {}
        self.handed: dict[UUID, float] = {}
        self.is_down, self.slow = False, 0.0

    def teardown(self) -> None:
        self._patch.undo()

    @initialize(lease=st.sampled_from([0.01, 1.0, 3.0, 17.0, 60.0, 3600.0]))
    def begin(self, lease: float) -> None:
        self.lease = lease
        self.flights = Flights(late=90.0, lease_seconds=lease)

    @rule(took=st.floats(0.0, 0.5))
    def hand_over(self, took: float) -> None:
        """`took`: since the lease began; a round that takes longer hands nothing over."""
        id = uuid4()
        began, self.now = self.now, self.now + took * self.lease
        lease = Lease("sms", uuid4(), uuid4(), 0, uuid4(), id, 0, False, cast(Any, None))
        attempt = Attempt(lease, 1, uuid4(), 1, cast(Any, None), cast(Any, None))
        self.ends[id], self.handed[id] = began + self.lease, self.now
        self.flights.add(attempt, since=began)

    @rule(share=st.floats(0.0, 1.5))
    def pass_(self, share: float) -> None:
        """Time passes; the process may stand still."""
        self.now += share * self.lease

    @rule(slow=st.floats(0.0, 1.5), is_down=st.booleans())
    def renew(self, slow: float, is_down: bool) -> None:
        """`slow`: how long the database takes."""
        self.slow, self.is_down = slow * self.lease, is_down
        with contextlib.suppress(OSError):
            asyncio.run(self.flights.renew(cast(Any, _Pool()), asyncio.Lock()))

    async def _renew(self, conn: object, renewed: Sequence[Lease], *, seconds: float) -> None:
        self.now += self.slow
        if self.is_down:
            raise OSError
        for one in renewed:
            if self.ends[one.id] > self.now:  # otherwise another worker has it
                self.ends[one.id] = self.now + seconds

    @invariant()
    def what_may_be_sent_is_leased(self) -> None:
        if not self.handed:
            return
        lost = self.flights.lost_until()
        assert all(self.ends[id] > self.now for id, at in self.handed.items() if at > lost)


TestLeases = LeaseMachine.TestCase


def test_what_is_renewed_in_time_may_be_sent_however_long_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(flights, "monotonic", lambda: now)
    made = Flights(late=90.0, lease_seconds=3.0)
    for _ in range(100):
        asyncio.run(made.renew(cast(Any, _Pool()), asyncio.Lock()))
        now += 1.4
        assert made.lost_until() < 0
    now += 0.2
    assert made.lost_until() == pytest.approx(now - 1.0)


def test_all_leases_are_renewed_if_that_is_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a batch of answers waits for its transaction: the youngest would end before the next time."""
    now, renewed = 0.0, list[UUID]()

    async def renew(conn: object, some: Sequence[Lease], *, seconds: float) -> None:
        renewed.extend(one.id for one in some)

    monkeypatch.setattr(flights, "monotonic", lambda: now)
    monkeypatch.setattr(leases, "renew", renew)
    under_way = Flights(late=90.0, lease_seconds=60.0)
    young = Lease("sms", uuid4(), uuid4(), 0, uuid4(), uuid4(), 0, False, cast(Any, None))
    for now, expected in ((20.0, []), (51.0, [young.id])):
        under_way.add(Attempt(young, 1, uuid4(), 1, cast(Any, None), cast(Any, None)), since=now - 1.0)
        asyncio.run(under_way.renew(cast(Any, _Pool()), asyncio.Lock()))
        assert renewed == expected
