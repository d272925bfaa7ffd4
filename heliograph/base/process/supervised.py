"""Notifies systemd by the protocol of sd_notify(3): that the process is ready, is stopping, is alive.

Without `NOTIFY_SOCKET` nothing is sent. The watchdog is fed by the event loop, so a process whose loop hangs is
restarted: the work it had claimed is taken over when its leases end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


def tell(state: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send the supervisor one state. False: there is none, or it is not listening."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        try:
            # "@" stands for the NUL that begins an abstract address.
            sending.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError:
            return False
    return True


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
