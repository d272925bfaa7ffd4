"""Named points where a fault test can kill the process, as `kill -9` would: before and after each commit and call.

`HELIOGRAPH_CRASH_AT=dispatch.after_commit:3` kills it the third time that point is passed. If unset, a point costs one
comparison.
"""

from __future__ import annotations

import os
import signal

_point = ""
_left = 0


def arm(setting: str) -> None:
    """`name` or `name:nth`; empty: none. Called once at startup, from the settings."""
    global _point, _left
    _point, _, nth = setting.partition(":")
    _left = int(nth or 1)


def crash_point(name: str) -> None:
    """Kill this process here if the test requested it."""
    global _left
    if _point and name == _point:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
