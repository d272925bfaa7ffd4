"""What a process loads that it never uses is memory of each of them (decision 229)."""

from __future__ import annotations

import subprocess
import sys

#: Everything that a web process and a worker load, and then what the command line shows its progress with.
LOADED = """
import sys
import heliograph.cli.running.api, heliograph.cli.running.worker
assert not {"rich", "pygments", "attr"} & sys.modules.keys(), "loaded for nothing"
import rich.progress
"""


def test_a_process_loads_nothing_to_colour_tracebacks_with() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
