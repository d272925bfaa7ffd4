"""The loop around a kind of work, and the wire that wakes it.

Polling is what is correct; a notification only makes it sooner. The rule nobody may break: a loop never ends because
something failed. It says so, waits a little and goes on, and while the database is away it waits for that. And it
always ends when it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog

from heliograph.base.database.pool import Pool, is_down
from heliograph.base.network.connecting import Connector

log = structlog.get_logger()

CHANNEL = "heliograph_queue"
#: Pause after a failure, seconds.
AFTER_FAILURE = 0.5
#: A listener whose server is silent for longer listens to nobody, seconds.
LISTENS = 5.0
#: Seconds between two questions to it whether it is there.
ASKS = 4.0
#: NOTIFY takes a lock of the whole server at its commit, so all that was stored within this time shares one.
COALESCE = 0.05


async def loop(
    name: str,
    step: Callable[[], Awaitable[int]],
    *,
    wake: asyncio.Event,
    poll: float,
    stopping: asyncio.Event,
) -> None:
    """Run `step` until `stopping`. While it returns more than 0 it is run again at once; else after `wake`, or after
    `poll` seconds."""
    while not stopping.is_set():
        _end_if_cancelled()
        wake.clear()
        try:
            if await step() > 0:
                continue
        except Exception as error:
            _end_if_cancelled()
            if is_down(error):
                log.warning("database unavailable", loop=name, error=type(error).__name__)
            else:
                log.exception("loop failed", loop=name)
            await asyncio.sleep(AFTER_FAILURE)
            continue
        await _wait(wake, poll)


async def once(
    name: str, step: Callable[[], Awaitable[object]], *, stopping: asyncio.Event, pause: float = AFTER_FAILURE
) -> None:
    """Run `step` until it has worked, again after `pause` seconds while the database is away, or until `stopping`.

    Raises whatever else it raises.
    """
    while not stopping.is_set():
        try:
            await step()
            return
        except Exception as error:
            _end_if_cancelled()
            if not is_down(error):
                raise
            log.warning("database unavailable", step=name, error=type(error).__name__)
        await _wait(stopping, pause)


async def every(name: str, step: Callable[[], Awaitable[object]], *, seconds: float, stopping: asyncio.Event) -> None:
    """Run `step` each `seconds` until `stopping`."""

    while not stopping.is_set():
        _end_if_cancelled()
        try:
            await step()
        except Exception as error:
            _end_if_cancelled()
            if is_down(error):
                log.warning("database unavailable", timer=name, error=type(error).__name__)
            else:
                log.exception("timer failed", timer=name)
        await _wait(stopping, seconds)


async def announce(pool: Pool, stored: asyncio.Event) -> None:
    """Tell the workers that something was queued, at most once each 50 ms, until cancelled."""
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


async def listen(url: str, wake: Callable[[], None]) -> None:
    """Call `wake` for each announcement, until cancelled. A lost connection is opened again."""
    connector = Connector(url)
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
    """Raises CancelledError if this task was told to end. A rollback or a close that fails meanwhile takes the place of
    the cancellation, which would be lost without this."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until `event` is set, at most so long. (`wait_for` of Python 3.11 loses a cancellation that comes with the
    event.)"""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
