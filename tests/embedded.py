"""Embedded servers for a single test, to be started, killed and inspected. The shared ones are in
`tests/database.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from heliograph.base.embedded.server import Embedded
from tests.database import QUICK as QUICKEST
from tests.database import execute, processes, public_directory
from tests.ports import held_port

__all__ = ["execute", "processes"]

ROOT = os.geteuid() == 0
#: Some of these tests use the archive.
QUICK = QUICKEST | {"wal_level": "replica"}
#: Creates an `Embedded` that is stopped at the end of the test: (home, **options).
Start = Callable[..., Embedded]

#: The program of a separate process that will be killed: start a server, report that, wait.
SUPERVISE = """
import asyncio, json, sys
from pathlib import Path
from heliograph.base.embedded.server import Embedded

async def main():
    server = Embedded(Path(sys.argv[1]), on_progress=print, extra_settings=json.loads(sys.argv[2]))
    await server.start()
    print("started", server.pid, flush=True)
    await server.wait()

asyncio.run(main())
"""


@pytest.fixture
def public_place() -> Iterator[Path]:
    with public_directory() as directory:
        yield directory


@pytest.fixture(scope="session")
def cluster_model() -> Iterator[Path]:
    """A cluster that was shut down cleanly, to copy: saves half a second per test."""
    with public_directory() as directory:
        home = directory / "postgres"

        async def make() -> None:
            server = Embedded(home, on_progress=quiet, extra_settings=QUICK)
            await server.start()
            await server.stop()

        asyncio.run(make())
        yield home


@pytest.fixture
def cluster_home(public_place: Path, cluster_model: Path) -> Iterator[Path]:
    """A cluster for this test, created but not running. Its last port is free, and remains so between its servers."""
    home = public_place / "postgres"
    subprocess.run(["cp", "-a", cluster_model, home], check=True)
    with held_port() as port:
        (home / "port").write_text(f"{port}\n")
        yield home


@pytest.fixture
async def embedded() -> AsyncIterator[Start]:
    """Creates servers, all of which are stopped at the end. The first on a directory gets a port that nobody else takes
    while it is away."""
    made: list[Embedded] = []
    with contextlib.ExitStack() as held:

        def make(home: Path, **options: Any) -> Embedded:
            quick: dict[str, Any] = {"on_progress": quiet, "extra_settings": QUICK, "lock_timeout": 0.2}
            if not (home / "port").exists():
                quick["port"] = held.enter_context(held_port())
            made.append(Embedded(home, **quick | options))
            return made[-1]

        yield make
        for server in made:
            await server.stop()


def quiet(line: str) -> None:
    """Discards progress messages."""


async def fetch(url: str, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()


async def ask(url: str, query: str) -> Any:
    return (await fetch(url, query))[0][0]


async def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)


@contextlib.contextmanager
def supervisor(home: Path, settings: Mapping[str, str] = QUICK) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a server on `home`, to be killed."""
    command = [sys.executable, "-c", SUPERVISE, str(home), json.dumps(settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def started(process: subprocess.Popen[str]) -> int:
    """The pid of its server, once it has one."""
    assert process.stdout is not None
    while not (line := await asyncio.to_thread(process.stdout.readline)).startswith("started"):
        assert line, "it ended"
    return int(line.split()[1])


def log_of(home: Path) -> str:
    return "".join(path.read_text() for path in sorted((home / "log").glob("postgresql-*.log")))


def slow(home: Path, place: Path) -> dict[str, str]:
    """Settings that make a start last, as a long crash recovery does, until `place/done` exists."""
    signal_file = home / "data" / "recovery.signal"
    signal_file.touch()
    owner = (home / "data").stat()
    if ROOT:
        os.chown(signal_file, owner.st_uid, owner.st_gid)
    return QUICK | {"restore_command": f"while ! test -e {place}/done; do sleep 0.05; done; false"}
