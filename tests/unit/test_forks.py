"""Guarantees of the tests' own ways of starting processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests import forks
from tests.house.project import ROOT
from tests.processes import alive, environment, until

#: A command that serves until it is stopped.
SERVING = ("simulate", "receiver", "--port", "0")
#: Tests, two of which kill their worker, with the run's own scheduler and workers.
HOOKS = """
import sys
sys.path.insert(0, {root!r})
from tests import scheduling, workers

def pytest_xdist_make_scheduler(config, log):
    return scheduling.make(config, log)

def pytest_xdist_setupnodes(config, specs):
    workers.fork_them(config, specs)
"""
TESTS = """
import os, signal, sys, threading

import pytest

@pytest.mark.parametrize("number", range(9))
def test_goes_on(number):
    assert "conftest" in sys.modules and threading.active_count() == 1, threading.enumerate()

def test_is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_exits():
    os._exit(0)

def test_fails():
    assert [1, 2] == [1, 3]
"""


async def test_a_command_that_is_killed_has_ended_so() -> None:
    process = await forks.start(*SERVING, environment=environment())
    process.kill()
    assert await process.wait() == -signal.SIGKILL


async def test_a_command_ends_with_the_test_process_that_asked_for_it() -> None:
    process = await forks.start(*SERVING, environment=environment())
    command = psutil.Process(process.pid)
    # As the end of the test process closes its sockets.
    asyncio.get_running_loop().remove_reader(process._connection)
    process._connection.close()
    with contextlib.suppress(psutil.NoSuchProcess):
        await until(lambda: not alive(command))


def test_a_worker_that_crashes_fails_its_test_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS.format(root=str(ROOT)))
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = ("-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p", "no:schemathesis", "-p", "no:cacheprovider")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    ran = subprocess.run(
        [sys.executable, *command, "-rf"], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=120
    )
    assert "3 failed, 9 passed" in ran.stdout, ran.stdout + ran.stderr
    failed = re.findall(r"^FAILED test_it.py::(\w+)", ran.stdout, re.MULTILINE)
    assert sorted(failed) == ["test_exits", "test_fails", "test_is_killed"]
    assert "assert [1, 2] == [1, 3]" in ran.stdout
