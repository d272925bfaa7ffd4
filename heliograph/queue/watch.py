"""An idle worker's only query: once a second, on behalf of everything that the worker runs.

Loops and shared timers do not poll. The watch reads what became due in the queue, which timers are due, and the
conditions of the others (`when`), and wakes those that have something to do. A notification makes it look at the queue
at once.

The rule nobody may break: anything that is not woken has nothing to do. A condition may be true too often, but never
false while there is work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from heliograph.base.database.pool import Pool
from heliograph.queue import timers
from heliograph.queue.backlog import Backlog

ASK = "SELECT ARRAY[{questions}]::boolean[] AS answers"


class _Asks(msgspec.Struct):
    """A callback, and the condition under which it is called."""

    when: str
    wake: Callable[[], object]
    least: float = 0.0
    #: Of a timer: its name, and its period in seconds.
    name: str | None = None
    every: float = 0.0
    #: In event loop time.
    wake_at: float = 0.0


class Watch:
    """One per worker."""

    def __init__(self, pool: Pool, backlog: Backlog, *, every: float) -> None:
        """`every`: seconds between two queries."""
        self._pool = pool
        self._backlog = backlog
        self._every = every
        self._loops: list[_Asks] = []
        self._timers: list[_Asks] = []
        self._ask_at = 0.0
        #: Set when work has been queued.
        self.wake = asyncio.Event()

    def loop(self, when: str, wake: Callable[[], object], *, least: float = 0.0) -> None:
        """Call `wake` while `when`, an SQL condition, holds, at most once every `least` seconds. Work in the queue
        needs no condition: see `Backlog.on_work`."""
        self._loops.append(_Asks(when, wake, least=least))

    def timer(self, name: str, when: str, wake: Callable[[], object], *, every: float) -> None:
        """Call `wake` when a timer is due and `when` holds. `every`: its period, seconds."""
        self._timers.append(_Asks(when, wake, name=name, every=every))

    async def step(self) -> int:
        """Look at the queue, and check the rest if it is time. Returns 0, since others do the work that was found."""
        at = asyncio.get_running_loop().time()
        async with self._pool.acquire() as conn:
            if at < self._ask_at:
                await self._backlog.look(conn, "")
                return 0
            asking = [*self._loops, *self._timers]
            questions = ", ".join(map(_question, asking))
            async with conn.transaction():  # one commit
                await self._backlog.look(conn, "")
                row = await conn.fetchrow(ASK.format(questions=questions))
            assert row is not None
        self._ask_at = at + self._every
        for one, yes in zip(asking, row["answers"], strict=True):
            if yes and at >= one.wake_at:
                one.wake_at = at + one.least - self._every / 2
                one.wake()
        self._backlog.wake_waiting()
        return 0


def _question(one: _Asks) -> str:
    """A timer's condition may have to scan many dead rows, so it is evaluated only when the timer is due."""
    if one.name is None:
        return f"({one.when})"
    is_due = timers.IS_DUE.format(every=one.every)
    return f"CASE WHEN (SELECT {is_due} FROM timers WHERE name = '{one.name}') THEN ({one.when}) END"
