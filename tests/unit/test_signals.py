"""What ends a process with its parent."""

from __future__ import annotations

import subprocess
import sys

#: Its child ends at once; the child's child says so if it goes on after that.
ORPHAN = """
import os, time
from heliograph.base.process.signals import end_with_parent
if os.fork() == 0:
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.01)
        end_with_parent(parent)
        os.write(1, b"it goes on")
    os._exit(0)
"""


def test_a_process_whose_parent_has_ended_already_ends_too() -> None:
    """Of a `heliograph up` that was killed while it started one, that one stayed and kept its port."""
    told = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=True)
    assert (told.stdout, told.stderr) == ("", "")
