"""The attempts that this process has handed over and whose outcome is not yet recorded, and their leases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from time import monotonic
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Pool
from heliograph.queue import leases
from heliograph.sending.attempts import Attempt

#: A message and one of its attempts.
Key = tuple[UUID, int]


class _Flight(msgspec.Struct, frozen=True, gc=False):
    attempt: Attempt[Any]
    #: Monotonic seconds.
    since: float


class Flights:
    """Attempts under way, by message and number. An answer that arrives after its attempt was recorded as `unknown`
    still counts for a while."""

    def __init__(self, *, late: float, lease_seconds: float) -> None:
        """`late`: seconds during which an answer still counts after the attempt was given up."""
        self._late = late
        self._lease_seconds = lease_seconds
        self._open: dict[Key, _Flight] = {}
        self._given_up: dict[Key, _Flight] = {}
        #: When the last successful renewal began, and what was lost before it; monotonic seconds.
        self._renewed_at = monotonic()
        self._lost_until = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def of(self, message_id: UUID) -> list[Attempt[Any]]:
        """The attempts of one message. Scans all attempts."""
        return [one.attempt for (id, _), one in self._open.items() if id == message_id]

    def add(self, attempt: Attempt[Any], *, since: float) -> None:
        """Add an attempt that is about to be submitted, or to be answered by this process itself. `since`: monotonic
        seconds; of one that is submitted, no later than its lease began."""
        self._open[attempt.lease.id, attempt.number] = _Flight(attempt, since)

    def find(self, key: Key) -> Attempt[Any] | None:
        """The attempt that an answer refers to."""
        flight = self._open.get(key)
        return flight.attempt if flight is not None else None

    def find_late(self, key: Key) -> Attempt[Any] | None:
        """The attempt that a late answer refers to."""
        flight = self._given_up.get(key)
        return flight.attempt if flight is not None else None

    def give_up(self, key: Key) -> None:
        """Record that its outcome is unknown; an answer may still arrive."""
        self._given_up[key] = _Flight(self._open[key].attempt, monotonic())

    def lost_until(self) -> float:
        """See `suppliers.contract.LostUntil`. Leases are renewed every third of their duration. If that is overdue,
        because this process stood still or cannot reach the database, what was handed over more than a third ago counts
        as lost; it was handed over within half of its lease (`Dispatcher._hand_over`), so that a sixth of it is left.
        """
        now = monotonic()
        if now - self._renewed_at > self._lease_seconds / 2:
            return max(self._lost_until, now - self._lease_seconds / 3)
        return self._lost_until

    def landed(self, keys: Iterable[Key]) -> None:
        """Forget attempts whose outcome has been recorded, or never can be."""
        for key in keys:
            self._open.pop(key, None)

    async def renew(self, pool: Pool, writing: asyncio.Lock) -> None:
        """Renew the leases of attempts that have been under way for a third of a lease, or all, if that is overdue, as
        while `writing` takes long; called at that interval.

        Never during `writing`: a row renewed while it is being finished would have a new version by then, and remain
        until its lease expires.
        """
        at = monotonic()
        over = [key for key, one in self._given_up.items() if at - one.since > self._late]
        for key in over:
            if key not in self._open:  # until it is recorded that there was no answer, any answer is a late one
                del self._given_up[key]
        young = 0.0 if at - self._renewed_at > self._lease_seconds / 2 else self._lease_seconds / 3
        old = [one.attempt.lease for one in self._open.values() if at - one.since >= young]
        if old:
            async with writing, pool.acquire() as conn:
                await leases.renew(conn, old, seconds=self._lease_seconds)
        # What had ended by now was not renewed, and stays lost.
        self._lost_until = self.lost_until()
        self._renewed_at = at
