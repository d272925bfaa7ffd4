"""The `schemathesis` command: `python -m tests.api.run_schemathesis ARGUMENTS`. Its imports, and everything it makes of
the document, are excluded from garbage collection, which took a fifth of its processor time."""

from __future__ import annotations

import gc
import sys

from schemathesis.cli import schemathesis

if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    sys.exit(schemathesis())
