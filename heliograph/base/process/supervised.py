"""Notifies systemd by the protocol of sd_notify(3): that the process is ready, is stopping, is alive.

Without `NOTIFY_SOCKET` nothing is sent. The watchdog is fed by the event loop, so a process whose loop hangs is
restarted: the work it had claimed is taken over when its leases end. The rule nobody may break: no state is waited for,
because a supervisor that stands still, such as while it reloads, would hang the loop itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Mapping

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


def tell(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send the supervisor one state. False: there is none, or it is not listening, or its queue is full; READY, without
    which it would end the process, then follows once there is room."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    # "@" stands for the NUL that begins an abstract address.
    place = "\0" + address[1:] if address.startswith("@") else address
    try:
        _send(state, place, socket.MSG_DONTWAIT)
    except OSError as error:
        if isinstance(error, BlockingIOError) and state == READY:
            threading.Thread(target=_follow, args=(state, place), name="ready", daemon=True).start()
        return False
    return True


def _send(state: str, place: str, flags: int = 0) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.sendto(state.encode(), flags, place)


def _follow(state: str, place: str) -> None:
    with contextlib.suppress(OSError):
        _send(state, place)


def watchdog_seconds(environment: Mapping[str, str] = os.environ) -> float | None:
    """How often the supervisor expects a sign of life, as by sd_watchdog_enabled(3); None: never."""
    microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) / 1e6


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[None]:
    """Feed the watchdog, if there is one, while the block runs."""
    seconds = watchdog_seconds()
    feeding = asyncio.create_task(_feed(seconds / 3)) if seconds is not None else None
    try:
        yield
    finally:
        if feeding is not None:
            feeding.cancel()


async def _feed(every: float) -> None:
    while True:
        tell(ALIVE)
        await asyncio.sleep(every)
