"""The `schemathesis` command: `python -m tests.api.run_schemathesis ARGUMENTS`. What it has imported, and all that it
makes of the document, stays until it ends: looking for garbage among it often took a fifth of its processor time."""

from __future__ import annotations

import gc
import sys

from schemathesis.cli import schemathesis

if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    sys.exit(schemathesis())
