"""A web process as the command line starts it: `python -m tests.api.process PORT`."""

from __future__ import annotations

import sys

from heliograph.base.process.settings import from_environment
from heliograph.serve import run

if __name__ == "__main__":
    run(from_environment(), host="127.0.0.1", port=int(sys.argv[1]))
