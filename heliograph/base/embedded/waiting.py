"""Waiting: for a directory's lock, for a server to accept connections, and for a process to exit."""

from __future__ import annotations

import asyncio
import enum
import fcntl
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from heliograph.base.embedded.install import PostgresError


class NoConnection(enum.Enum):
    """Why there is no connection."""

    NOBODY = "nothing is listening"
    BUSY = "a server is running, but is not accepting connections yet"
    STRANGER = "a server is running, but it is not ours"


#: Seconds after which a message says what is being waited for.
QUIET = 3.0


class StartDeadline:
    """Limits how long one start may wait in total, and reports from time to time what it is waiting for."""

    def __init__(self, total: float, interval: float, say: Callable[[str], None]) -> None:
        self._total, self._interval, self._say = total, interval, say
        self._start = self._said = time.monotonic()

    async def pause(self, what: str) -> None:
        """Wait a moment, longer each time. Raises PostgresError once the time is up."""
        now = time.monotonic()
        passed = now - self._start
        if passed >= self._total:
            raise PostgresError(f"gave up after {self._total:g} s: {what}; see its log for details")
        if now - self._said >= self._interval:
            self._said = now
            self._say(f"{what[0].upper()}{what[1:]}, {passed:.0f} s so far.")
        # Each check writes a line to a recovering server's log, and forks a process on one that cannot start.
        await asyncio.sleep(min(max(passed / 10, 0.05), 0.5))


async def ends(
    end: Awaitable[object], patience: float, name: str, say: Callable[[str], None], *, quiet: float = QUIET
) -> bool:
    """Whether a process that was told to stop exits within `patience` seconds. If it takes longer than `quiet`, that is
    reported, with its `name`. `end`: completes when the process exits; it is left running."""
    waiting = asyncio.ensure_future(end)
    await asyncio.wait([waiting], timeout=min(quiet, patience))
    if not waiting.done() and patience > quiet:
        say(f"Waiting for {name} to stop, for {patience - quiet:g} s at most.")
        await asyncio.wait([waiting], timeout=patience - quiet)
    return waiting.done()


async def locked(home: Path, *, patience: float) -> int:
    """The descriptor that locks a home directory until it is closed: with flock, because the kernel releases it however
    this process ends. `patience`: seconds for another process that is about to release it. Raises PostgresError."""
    try:
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PostgresError(f"cannot write to {home}: {error.strerror}") from error
    deadline = time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(lock, 20, 0).decode().strip() or "?"
                    raise PostgresError(f"{home} is in use by another Heliograph (process {holder})") from None
            await asyncio.sleep(0.05)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock
