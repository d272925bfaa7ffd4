"""Copies of the cluster that are being brought up, when whoever does it is killed, told to end, or cancelled."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from heliograph.base.embedded import copies
from tests.embedded import QUICK, Start, quiet, until
from tests.processes import alive

#: Brings a copy up in a temporary directory, says which process its server is, and stays.
BRING_UP = """
import asyncio, sys, tempfile
from pathlib import Path
from heliograph.base.embedded import copies
from heliograph.base.process.signals import run_in_order

async def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as place:
        Path(place).chmod(0o711)
        async with copies.brought_up(Path(place) / "postgres", Path(sys.argv[1]), say=print) as (conn, _):
            print("backend", await conn.fetchval("SELECT pg_backend_pid()"), flush=True)
            await asyncio.Event().wait()

run_in_order(main())
"""


@pytest.fixture
async def copied(cluster_home: Path, public_place: Path, embedded: Start) -> Path:
    """A copy of a small cluster."""
    server = embedded(cluster_home, extra_settings=QUICK | {"max_wal_senders": "4"})
    await server.start()
    await copies.copy(cluster_home, public_place / "copy", label="test")
    await server.stop()
    return public_place / "copy"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
async def test_no_server_and_no_data_outlive_who_brings_a_copy_up(
    copied: Path, public_place: Path, number: signal.Signals
) -> None:
    scratch = public_place / "scratch"
    scratch.mkdir(mode=0o711)
    scratch.chmod(0o711)
    command = [sys.executable, "-c", BRING_UP, str(copied), str(scratch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            server = psutil.Process(int(line.split()[1])).parent()
            assert server is not None
            process.send_signal(number)
            status = await asyncio.to_thread(process.wait)
        finally:
            process.kill()
    await until(lambda: not alive(server))
    if number == signal.SIGKILL:
        assert status == -number
    else:
        assert (status, list(scratch.iterdir())) == (128 + number, [])


async def test_nothing_is_written_once_it_was_cancelled(
    copied: Path, public_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, unpack = public_place / "new" / "postgres", copies._unpack
    began, written = asyncio.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def slow(archive: Any, member: Any, target: Path, cancelled: threading.Event) -> str:
        written.append(member.name)
        loop.call_soon_threadsafe(began.set)
        assert cancelled.wait(120)
        return unpack(archive, member, target, cancelled)

    monkeypatch.setattr(copies, "_unpack", slow)

    async def bring_up() -> None:
        async with copies.brought_up(home, copied, say=quiet):
            pass

    task = asyncio.create_task(bring_up())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(written) == 1
    assert not list(home.glob("data*"))
