"""The work of campaigns: a worker stages them, counts their outcomes, and deletes their recipients afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic

from heliograph.base.database.pool import Connection, Pool
from heliograph.campaigns import counting
from heliograph.campaigns.approval import lapses
from heliograph.campaigns.staging import ANY_STEP, Stager
from heliograph.queue.work import Loop, SharedTimer, Timer, Work


class CampaignWork(Work):
    """The campaigns processed by one worker."""

    def __init__(self, pool: Pool, wakes: Mapping[str, Callable[[], None]]) -> None:
        """`wakes`: functions by channel, called after each commit that put messages into the queue."""
        self._stager = Stager(pool, on_staged=lambda channel: wakes[channel]())
        self._wake = asyncio.Event()
        #: Until then, counting waits for no lock; monotonic seconds. A locked chunk stays due.
        self._locks_until = 0.0

    def loops(self) -> Sequence[Loop]:
        return (Loop("campaigns", self._stager.round, self._wake, when=ANY_STEP),)

    def timers(self) -> Sequence[Timer | SharedTimer]:
        return (
            SharedTimer("campaigns", self._count, 1.0, when=counting.ANY_DUE, in_steps=True),
            SharedTimer(lapses.TIMER, lapses.report, lapses.EVERY, in_steps=True),
        )

    async def _count(self, conn: Connection) -> None:
        """Count, and then look for steps: the stager passes over a campaign that is being counted, and would look again
        only with the watch, up to a second later."""
        try:
            await counting.count_all_due(conn, waits=monotonic() >= self._locks_until, locked=self._locked)
        finally:
            self._wake.set()

    def _locked(self) -> None:
        self._locks_until = monotonic() + counting.LOCKS_FOR
