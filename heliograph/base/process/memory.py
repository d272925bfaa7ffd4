"""What this process occupies."""

from __future__ import annotations

import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident() -> int | None:
    """Bytes of this process in memory now; None: this system does not say so (proc_pid_statm(5), second field)."""
    try:
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return None
