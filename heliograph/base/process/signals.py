"""How a long-running process is told to stop: SIGTERM, SIGINT (Ctrl-C) and SIGHUP (the terminal went away) ask for an
orderly end; a second one ends the process at once. SIGHUP that was ignored at the start (nohup) stays ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
from collections.abc import Iterator

from heliograph.base.process import supervised

KINDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: prctl(2): the signal that this process gets when its parent ends.
PR_SET_PDEATHSIG = 1


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """In a child, before exec and after it has become another user: this signal when the parent ends, however it
    ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


@contextlib.contextmanager
def stopping(stop: asyncio.Event | None = None) -> Iterator[asyncio.Event]:
    """An event (`stop`, or a new one) that the first of these signals sets. Inside a running loop."""
    loop = asyncio.get_running_loop()
    stop = stop or asyncio.Event()
    kinds = [kind for kind in KINDS if signal.getsignal(kind) is not signal.SIG_IGN]

    def asked() -> None:
        stop.set()
        supervised.tell(supervised.STOPPING)
        for kind in kinds:
            loop.remove_signal_handler(kind)
            signal.signal(kind, signal.SIG_DFL)

    for kind in kinds:
        loop.add_signal_handler(kind, asked)
    try:
        yield stop
    finally:
        for kind in kinds:
            loop.remove_signal_handler(kind)
