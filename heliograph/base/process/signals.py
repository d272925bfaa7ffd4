"""Signals that stop a long-running process: SIGTERM, SIGINT (Ctrl-C) and SIGHUP (the terminal is gone) request an
orderly end; a second one ends the process at once. If SIGHUP is ignored at startup (nohup), it stays ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from heliograph.base.process import supervised

Result = TypeVar("Result")

KINDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: prctl(2) option: the signal that this process gets when its parent ends.
PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Call in a child, before exec and after switching users: it gets this signal when the parent, of which this is the
    process id, ends, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended before that
        os._exit(128 + number)


@contextlib.contextmanager
def stopping(stop: asyncio.Event | None = None) -> Iterator[asyncio.Event]:
    """An event (`stop`, or a new one) set by the first of these signals. To be used inside a running loop."""
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


def run_in_order(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` in which SIGTERM and SIGHUP cancel the work, as Ctrl-C does, so that it removes its temporary
    objects. Then raises SystemExit with the status that a shell gives to a process ended by such a signal."""
    asked: list[int] = []

    async def watched() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        kinds = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]

        def end(number: int) -> None:
            asked.append(number)
            for kind in kinds:
                loop.remove_signal_handler(kind)  # a second one ends the process at once
            task.cancel()

        # Only the main thread may handle signals.
        for kind in kinds if threading.current_thread() is threading.main_thread() else ():
            loop.add_signal_handler(kind, end, kind)
        return await work

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        if not asked:
            raise
        raise SystemExit(128 + asked[0]) from None
