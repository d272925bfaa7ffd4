"""The loop that runs a kind of work, and the notification that wakes it.

Correctness rests on polling; a notification only makes it faster. The rule nobody may break: a loop never ends because
something failed. It logs the failure, pauses and continues, and waits for the database while it is unavailable. And it
always ends when it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import asyncpg
import structlog

from heliograph.base.database.pool import Pool, is_down
from heliograph.base.network.connecting import Connector, DatabaseUnavailable
from heliograph.base.process import measures
from heliograph.base.process.logs import Sparse

log = structlog.get_logger()

_unavailable = Sparse("database unavailable")

CHANNEL = "heliograph_queue"
#: Pause after a failure, in seconds.
AFTER_FAILURE = 0.5
#: Seconds of silence from the server after which a listener is considered disconnected.
LISTENS = 5.0
#: Seconds between two pings.
ASKS = 4.0
#: NOTIFY takes a server-wide lock at commit, so everything stored within this many seconds shares one.
COALESCE = 0.05


async def loop(
    name: str,
    step: Callable[[], Awaitable[int]],
    *,
    wake: asyncio.Event,
    poll: float,
    stopping: asyncio.Event,
) -> None:
    """Run `step` until `stopping`. While it returns more than 0 it runs again at once; otherwise after `wake`, or after
    `poll` seconds."""
    while not stopping.is_set():
        _end_if_cancelled()
        wake.clear()
        try:
            if await step() > 0:
                continue
        except Exception as error:
            _end_if_cancelled()
            _failed(error, "loop", name)
            await asyncio.sleep(AFTER_FAILURE)
            continue
        await _wait(wake, poll)


async def once(
    name: str, step: Callable[[], Awaitable[object]], *, stopping: asyncio.Event, pause: float = AFTER_FAILURE
) -> None:
    """Run `step` until it succeeds, retrying after `pause` seconds while the database is unavailable, or until
    `stopping`.

    Other exceptions propagate.
    """
    while not stopping.is_set():
        try:
            await step()
            return
        except Exception as error:
            _end_if_cancelled()
            if not is_down(error):
                raise
            note_unavailable(error, step=name)
        await _wait(stopping, pause)


async def every(name: str, step: Callable[[], Awaitable[object]], *, seconds: float, stopping: asyncio.Event) -> None:
    """Run `step` every `seconds` until `stopping`."""

    while not stopping.is_set():
        _end_if_cancelled()
        try:
            await step()
        except Exception as error:
            _end_if_cancelled()
            _failed(error, "timer", name)
        await _wait(stopping, seconds)


def _failed(error: Exception, kind: str, name: str) -> None:
    """Log that a step failed, and count it unless the database is unavailable; called in an exception handler. A
    statement that was cancelled at its time limit counts: the step, repeated, will reach the limit again."""
    if isinstance(error, asyncpg.QueryCanceledError):
        log.warning("statement took too long", **{kind: name})
    elif is_down(error):
        note_unavailable(error, **{kind: name})
        return
    else:
        log.exception(f"{kind} failed", **{kind: name})
    measures.FAILURES.add(name)


def note_unavailable(error: Exception, **where: str) -> None:
    """Log that a step waits for the database, at `debug` once the outage has been logged: forty loops that keep
    retrying wrote 25 lines a second for as long as it lasted. A database that answers but accepts nothing, as with a
    full disk, does not count as an outage: each step logs that once a minute."""
    kind = type(error).__name__
    if isinstance(error, DatabaseUnavailable):
        log.debug("database unavailable", error=kind, **where)
    else:
        _unavailable.warn(log, " ".join((kind, *where.values())), error=kind, **where)


async def announce(pool: Pool, stored: asyncio.Event) -> None:
    """Notify the workers that something was queued, at most once every 50 ms, until cancelled."""
    while True:
        await stored.wait()
        stored.clear()
        try:
            await pool.execute("SELECT pg_notify($1, '')", CHANNEL)
        except Exception as error:
            _end_if_cancelled()
            if not is_down(error):
                log.exception("announce failed")
        await asyncio.sleep(COALESCE)


async def listen(connector: Connector, wake: Callable[[], None]) -> None:
    """Call `wake` for each notification, until cancelled. A lost connection is reopened."""
    while True:
        try:
            conn = await connector.connect(command_timeout=LISTENS)
            try:
                await conn.add_listener(CHANNEL, lambda *_: wake())
                wake()
                while not conn.is_closed():
                    await asyncio.sleep(ASKS)
                    await conn.execute("SELECT 1")
            finally:
                await conn.close(timeout=1)
        except Exception as error:
            _end_if_cancelled()
            log.debug("listener lost", error=type(error).__name__)
            await asyncio.sleep(AFTER_FAILURE)


def _end_if_cancelled() -> None:
    """Raises CancelledError if this task has been cancelled. A rollback or close that fails during cancellation
    replaces the CancelledError, which would be lost without this."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until `event` is set, for at most `seconds`. (`wait_for` in Python 3.11 loses a cancellation that coincides
    with the event.)"""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
