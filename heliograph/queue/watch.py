"""An idle worker's only query: once a second, on behalf of everything that the worker runs.

Loops and shared timers do not poll. The watch reads what became due in the queue, which timers are due, and the
conditions of the others (`when`), and wakes those that have something to do. A notification makes it look at the queue
at once.

The conditions read twenty tables, and somebody may have locked one of them, for as long as an operator's VACUUM FULL
takes. So the query waits for no lock: the conditions are then asked one by one, and those of the locked table, whose
work has to wait anyway, are skipped.

The rule nobody may break: anything that is not woken has nothing to do, or cannot do it. A condition may be true too
often, but never false while there is work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import asyncpg
import msgspec

from heliograph.base.database.pool import Connection, Pool
from heliograph.queue import timers
from heliograph.queue.backlog import Backlog

ASK = "SELECT ARRAY[{questions}]::boolean[] AS answers"
BRIEFLY = "SET LOCAL lock_timeout = {ms}"
#: Milliseconds that a lock is waited for: by all conditions together, and by each of them on its own.
ALL_MS, EACH_MS = 200, 50
LOCKED = 5.0


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
    ask_at: float = 0.0


class Watch:
    """One per worker."""

    def __init__(self, pool: Pool, backlog: Backlog, *, every: float, locked: float = LOCKED) -> None:
        """`every`: seconds between two queries. `locked`: until a condition whose table was locked is asked again, and
        all of them together."""
        self._pool = pool
        self._backlog = backlog
        self._every = every
        self._locked = locked
        self._loops: list[_Asks] = []
        self._timers: list[_Asks] = []
        self._ask_at = 0.0
        #: Until then, conditions are asked one by one.
        self._locked_until = 0.0
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
            answers: Sequence[bool | None] | None = None
            try:
                async with conn.transaction():  # one commit
                    await self._backlog.look(conn, "")
                    if at >= self._locked_until:
                        answers = await _ask(conn, asking, ms=ALL_MS)
            except asyncpg.LockNotAvailableError:
                self._locked_until = at + self._locked
            if answers is None:
                answers = [await self._ask_alone(conn, one, at) for one in asking]
        self._ask_at = at + self._every
        for one, yes in zip(asking, answers, strict=True):
            if yes and at >= one.wake_at:
                one.wake_at = at + one.least - self._every / 2
                one.wake()
        self._backlog.wake_waiting()
        return 0

    async def _ask_alone(self, conn: Connection, one: _Asks, at: float) -> bool | None:
        """The answer to one question; None: its table is locked, or was a moment ago. `at`: in event loop time."""
        if at < one.ask_at:
            return None
        try:
            async with conn.transaction():
                (answer,) = await _ask(conn, [one], ms=EACH_MS)
        except asyncpg.LockNotAvailableError:
            one.ask_at = at + self._locked
            return None
        return answer


async def _ask(conn: Connection, asking: Sequence[_Asks], *, ms: int) -> Sequence[bool | None]:
    await conn.execute(BRIEFLY.format(ms=ms))
    answers: Sequence[bool | None] = await conn.fetchval(ASK.format(questions=", ".join(map(_question, asking))))
    return answers


def _question(one: _Asks) -> str:
    """A timer's condition may have to scan many dead rows, so it is evaluated only when the timer is due."""
    if one.name is None:
        return f"({one.when})"
    is_due = timers.IS_DUE.format(every=one.every)
    return f"CASE WHEN (SELECT {is_due} FROM timers WHERE name = '{one.name}') THEN ({one.when}) END"
