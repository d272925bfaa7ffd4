"""What this process occupies, and what of it goes back."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")
#: mallopt(3): its numbers for "blocks from this size are mapped by themselves" and "trim the heap's end beyond this".
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_MAPPED, _TRIMMED = 4 * 2**20, 2 * 2**20


def resident() -> int | None:
    """Bytes of this process in memory now; None: this system does not say so (proc_pid_statm(5), second field)."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def give_back() -> None:
    """Have large blocks go back to the system whenever they are freed.

    glibc raises its threshold to the largest block that was ever freed, and keeps blocks below it: after its first
    two passwords, whose hash needs 19 MB each, a web process kept 43 MB for good, one block for each thread that
    hashes. A threshold that is set stays. Other allocators have no `mallopt`, and none of this.
    """
    with contextlib.suppress(OSError, AttributeError):
        tell = ctypes.CDLL(None).mallopt
        tell(_M_MMAP_THRESHOLD, _MAPPED)
        tell(_M_TRIM_THRESHOLD, _TRIMMED)
