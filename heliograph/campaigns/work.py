"""The work of campaigns: a worker stages them, counts their outcomes, and deletes their recipients afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from heliograph.base.database.pool import Pool
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

    def loops(self) -> Sequence[Loop]:
        return (Loop("campaigns", self._stager.round, self._wake, when=ANY_STEP),)

    def timers(self) -> Sequence[Timer | SharedTimer]:
        return (
            SharedTimer("campaigns", counting.count_all_due, 1.0, when=counting.ANY_DUE, in_steps=True),
            SharedTimer(lapses.TIMER, lapses.report, lapses.EVERY, in_steps=True),
        )
