"""Sessions of the database that outlive the pool which opened them, for the next pool in the same loop: a new one takes
a server process, which reads about each table again, and plans each statement again. They were two thirds of what a
test with a database took.

They are kept for pools whose loop outlives a test (`lasting`). Whoever takes one gets it with the settings of a new
one; what a test leaves in it otherwise, a transaction or listeners, ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Coroutine, Hashable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakSet

import uvloop

from heliograph.base.database.pool import Pool
from heliograph.base.process import measures

Result = TypeVar("Result")

#: What a test may have changed about a session, in one message; statements and plans stay.
AS_NEW = "RESET ALL; SELECT pg_advisory_unlock_all(); UNLISTEN *"

#: At most so many of one kind are kept: each has the tables and statements of many tests in its memory.
MOST = 6

#: Loops that outlive a test. A test in another one opens sessions of its own.
lasting: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_kept: defaultdict[Hashable, list[Any]] = defaultdict(list)
_lock = threading.Lock()


def processes_of(database: str) -> list[int]:
    """The server processes of the sessions that are kept."""
    with _lock:
        return [
            one.get_server_pid()
            for sessions in _kept.values()
            for one in sessions
            if not one.is_closed() and one._params.database == database
        ]


def forget(database: str) -> None:
    """The database is about to be dropped: end its sessions, each in its own loop, that of a thread that may be busy
    or asleep."""
    with _lock:
        for sessions in _kept.values():
            for one in [one for one in sessions if one._params.database == database]:
                sessions.remove(one)
                with contextlib.suppress(RuntimeError):  # at the end of all tests the loop may have ended before
                    one._loop.call_soon_threadsafe(one.terminate)


def share() -> None:
    """From now on, pools of this process keep sessions and take those that others have kept."""
    opening, closing, terminating = Pool._open, Pool.close, Pool.terminate

    async def open_(self: Any, **options: Any) -> Any:
        found = None if self.is_away else await _take(self)
        if found is None:
            return await opening(self, **options)
        measures.CONNECTIONS.add(by=self._counted)
        found.plans = self._plans
        return found

    async def close(self: Any) -> None:
        _keep(self)
        await closing(self)

    def terminate(self: Any) -> None:
        _keep(self)
        terminating(self)

    replaced: Any = Pool
    replaced._open, replaced.close, replaced.terminate = open_, close, terminate


def _key(pool: Any) -> Hashable:
    """Of the pools that would open the same sessions."""
    options = sorted((pool.connector._options | pool._connect_kwargs).items())
    return id(pool._loop), pool.connector._url, repr(options)


async def _take(pool: Any) -> Any:
    while True:
        with _lock:
            sessions = _kept.get(_key(pool))
            if not sessions:
                return None
            found = sessions.pop()
        if found.is_closed():
            continue
        try:
            await found.execute(AS_NEW)
        except BaseException as error:
            found.terminate()
            if not isinstance(error, Exception):
                raise
        else:
            return found


def _keep(pool: Any) -> None:
    """Take what is idle and healthy from a pool that is about to end."""
    if pool._loop not in lasting or pool.is_away:
        return
    for holder in pool._holders:
        one = holder._con
        if one is None or holder._in_use is not None or one.is_closed() or one.is_in_transaction():
            continue
        if any((one._listeners, one._log_listeners, one._termination_listeners, one._query_loggers)):
            continue
        holder._maybe_cancel_inactive_callback()
        with _lock:
            kept = _kept[_key(pool)]
            if len(kept) < MOST:
                kept.append(one)
                holder._con = one._pool_holder = None


class LoopThread:
    """A thread with an event loop, for what outlives the loops of single tests."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.submit(work).result()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SharedThread(LoopThread):
    """For many users, one at a time: it keeps sessions, and ends the tasks that somebody leaves."""

    def __init__(self) -> None:
        super().__init__()
        lasting.add(self._loop)

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return super().submit(_alone(work))


_free: list[SharedThread] = []
_loop: asyncio.AbstractEventLoop | None = None


@contextlib.contextmanager
def thread() -> Iterator[SharedThread]:
    """A thread that nobody else uses."""
    found = _free.pop() if _free else SharedThread()
    try:
        yield found
    finally:
        _free.append(found)


def end_threads() -> None:
    """After all tests."""
    while _free:
        _free.pop().end()


def new_loop() -> asyncio.AbstractEventLoop:
    """The one of all tests that need no other: it outlives them."""
    global _loop
    _loop = uvloop.new_event_loop()
    lasting.add(_loop)
    return _loop


def tasks() -> set[asyncio.Task[Any]]:
    """What is going on between two tests in the loop of all."""
    return set() if _loop is None or _loop.is_closed() else asyncio.all_tasks(_loop)


def end_tasks_but(before: set[asyncio.Task[Any]]) -> None:
    """End what was not going on before a test."""
    if tasks() - before:
        assert _loop is not None
        _loop.run_until_complete(end_others(before))


async def _alone(work: Coroutine[Any, Any, Result]) -> Result:
    before = asyncio.all_tasks()
    try:
        return await work
    finally:
        await end_others(before)


async def end_others(before: set[asyncio.Task[Any]]) -> None:
    """End the tasks of this loop that were not there before, as the end of a loop of their own would."""
    others = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
