"""Database sessions that outlive the pool which opened them, and are reused by the next pool in the same loop: a new
session starts a server process, which loads each table's definition and plans each statement again. That was two thirds
of the cost of a test with a database.

Sessions are kept for pools whose loop outlives a test (`lasting`). A reused session is reset to the settings of a new
one; any other leftovers of a test, such as a transaction or listeners, end it. So does the session of a server's pulse,
which had to be opened for each of thousands of servers.
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

import asyncpg
import uvloop

from heliograph.base.database.pool import Pool
from heliograph.base.network.connecting import Connector
from heliograph.base.process import measures

Result = TypeVar("Result")

#: Undoes what a test may have changed in a session, in one message; prepared statements and plans stay.
AS_NEW = "RESET ALL; SELECT pg_advisory_unlock_all(); UNLISTEN *"

#: The name of a pulse's session.
PULSE = "heliograph pulse"

#: At most this many of one kind are kept: each caches the tables and statements of many tests.
MOST = 6

#: Loops that outlive a test. Tests in other loops open sessions of their own.
lasting: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
#: Connectors whose pulse has begun. One that connects again has lost its database, and gets no kept session.
_beating: WeakSet[Connector] = WeakSet()
_kept: defaultdict[Hashable, list[Any]] = defaultdict(list)
_lock = threading.Lock()


def processes_of(database: str) -> list[int]:
    """The pids of the server processes of a database's kept sessions."""
    with _lock:
        return [
            one.get_server_pid()
            for sessions in _kept.values()
            for one in sessions
            if not one.is_closed() and one._params.database == database
        ]


def forget(database: str) -> None:
    """End the sessions of a database that is about to be dropped, each in its own loop, whose thread may be busy or
    asleep."""
    with _lock:
        for sessions in _kept.values():
            for one in [one for one in sessions if one._params.database == database]:
                sessions.remove(one)
                with contextlib.suppress(RuntimeError):  # after all tests the loop may have ended already
                    one._loop.call_soon_threadsafe(one.terminate)


def share() -> None:
    """From now on, pools and pulses of this process keep their sessions and reuse kept ones."""
    opening, closing, terminating = Pool._open, Pool.close, Pool.terminate
    connecting = Connector.connect

    async def connect(self: Any, **options: Any) -> Any:
        is_first = options.get("server_settings") == {"application_name": PULSE} and self not in _beating
        if not is_first or len(self._target.hosts) > 1:  # of several hosts, another one may be the right one by now
            return await connecting(self, **options)
        _beating.add(self)
        self._follow()
        key = id(asyncio.get_running_loop()), self._url, PULSE
        found = await _take(key)
        if found is None:
            found = await connecting(self, connection_class=_Pulse, **options)
        found.key = key
        return found

    async def open_(self: Any, **options: Any) -> Any:
        found = None if self.is_away else await _take(_key(self))
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
    replaced = Connector
    replaced.connect = connect


class _Pulse(asyncpg.Connection):
    """A pulse's session. It is kept when the pulse ends between two beats."""

    key: Hashable = None
    _is_idle = True

    async def _do_execute(self, *arguments: Any, **options: Any) -> Any:
        self._is_idle = False
        inherited: Any = super()
        found = await inherited._do_execute(*arguments, **options)
        self._is_idle = True
        return found

    def terminate(self) -> None:
        inside: Any = self
        if self.key is not None and self._is_idle and not self.is_closed() and inside._loop in lasting:
            with _lock:
                kept = _kept[self.key]
                if len(kept) < MOST:
                    kept.append(self)
                    self.key = None
                    return
        super().terminate()


def _key(pool: Any) -> Hashable:
    """The key shared by pools that would open the same sessions."""
    options = sorted((pool.connector._options | pool._connect_kwargs).items())
    return id(pool._loop), pool.connector._url, repr(options)


async def _take(key: Hashable) -> Any:
    while True:
        with _lock:
            sessions = _kept.get(key)
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
    """Keep the idle and healthy sessions of a pool that is about to close."""
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
    """A thread with an event loop, for whatever outlives the loops of single tests."""

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
    """For many users, one at a time: it keeps sessions, and ends tasks that a user leaves behind."""

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
    """End the threads, after all tests."""
    while _free:
        _free.pop().end()


def new_loop() -> asyncio.AbstractEventLoop:
    """The loop shared by all tests that need no loop of their own: it outlives them."""
    global _loop
    _loop = uvloop.new_event_loop()
    lasting.add(_loop)
    return _loop


def tasks() -> set[asyncio.Task[Any]]:
    """The tasks in the shared loop between two tests."""
    return set() if _loop is None or _loop.is_closed() else asyncio.all_tasks(_loop)


def end_tasks_but(before: set[asyncio.Task[Any]]) -> None:
    """End the tasks that were started during a test."""
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
    """End the tasks of this loop that are not in `before`, as the end of a loop would."""
    others = asyncio.all_tasks() - before - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
