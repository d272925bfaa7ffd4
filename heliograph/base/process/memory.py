"""The memory of this process, and returning freed memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")
#: mallopt(3): parameters for "map blocks from this size on separately" and "trim the heap's end beyond this".
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_MAPPED, _TRIMMED = 4 * 2**20, 2 * 2**20


def resident() -> int | None:
    """Bytes of this process in memory now; None: not available on this system (proc_pid_statm(5), second field)."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None


def give_back() -> None:
    """Make large blocks return to the system whenever they are freed.

    glibc raises its threshold to the largest block ever freed, and keeps smaller blocks: after its first two passwords,
    whose hashes need 19 MB each, a web process permanently kept 43 MB, one block for each hashing thread. A threshold
    that was set explicitly stays. Other allocators have no `mallopt`, and do not need this.
    """
    with contextlib.suppress(OSError, AttributeError):
        tell = ctypes.CDLL(None).mallopt
        tell(_M_MMAP_THRESHOLD, _MAPPED)
        tell(_M_TRIM_THRESHOLD, _TRIMMED)
