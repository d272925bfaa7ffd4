"""xdist's workers, forked from one process that has collected the tests once.

Importing the product, the libraries and 200 test modules, with pytest's assertion rewriting, takes 12 s of processor
time; collecting what is already imported takes 2. Each worker collects for itself, as xdist requires, and is like any
other: it has xdist's streams and a pytest session of its own, and no thread or connection of anybody else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests import fork_server, forks

#: Arguments of the forking process, in addition to the tests' own: collect in this process, print and store nothing.
ONLY_COLLECT = ("-n0", "--dist", "no", "--collect-only", "-q", "-p", "no:cacheprovider")


def fork_them(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Replace the workers that xdist would start on this machine with forked ones."""
    ours = [spec for spec in specs if spec.popen and not spec.python]
    if ours:
        given = [str(one) for one in config.invocation_params.args]
        address = fork_server.launch(__name__, str(config.invocation_params.dir), *given)
        for spec in ours:
            spec.python = shlex.join(fork_server.standing_for(address))


@functools.cache
def commands() -> str:
    """The address of the process that forks `heliograph` commands for all workers of this run."""
    return forks.launch()


def collect() -> None:
    """Import what a worker imports. Errors in the arguments or in a test are reported by the worker."""
    os.chdir(sys.argv[2])
    with open(os.devnull, "w") as nobody, contextlib.redirect_stdout(nobody), contextlib.redirect_stderr(nobody):
        pytest.main([*sys.argv[3:], *ONLY_COLLECT])
        forks.as_web_processes_begin()


def become_worker(request: dict[str, Any]) -> int:
    """Act as `python -c` with execnet's one line, which executes what xdist sends."""
    sys.argv = ["-c"]
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})  # noqa: S102, S307 (that is the line)
    return 0


if __name__ == "__main__":
    fork_server.main(collect, become_worker)
