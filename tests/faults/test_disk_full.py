"""The database's disk fills up under load: nothing is accepted that cannot be stored, and nothing is lost.

Long form only. Needs root, to mount a small file system in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from heliograph.base.database.migrate import migrate
from heliograph.base.embedded.server import Embedded
from tests.embedded import Start
from tests.faults.bystanders import Bystanders
from tests.judge import judge, until_settled
from tests.load import Client, Load
from tests.processes import LONG, WINDOW, installation, until, until_true

SIZE = 512 * 2**20
TIMES = 3
SESSIONS = 2
#: Small, because otherwise the WAL would need more than there is.
SMALL = {"min_wal_size": "32MB", "max_wal_size": "64MB", "shared_buffers": "64MB", "wal_init_zero": "off"}

pytestmark = [
    pytest.mark.lasts(300),
    pytest.mark.skipif(not LONG, reason="a disk is filled for minutes: HELIOGRAPH_FAULTS=long"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root"),
]


@pytest.fixture
def small_disk(public_place: Path) -> Iterator[Path]:
    """A directory on a disk of SIZE bytes."""
    place = public_place / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0711", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.timeout(1200)
async def test_a_disk_that_runs_full_under_load(small_disk: Path, tmp_path: Path, embedded: Start) -> None:
    server = embedded(small_disk / "postgres", extra_settings=SMALL, lock_timeout=5.0)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    keeper = asyncio.create_task(restart_when_down(server))
    ballast = small_disk / "ballast"
    try:
        async with installation(server.url, tmp_path, sessions=SESSIONS) as made:
            api, worker = await made.api(), await made.worker()
            await worker.ready()
            async with Client(made.base_url, made.key) as client:
                await until_true(partial(client.ask, "GET", "/health"))
            async with Load(made.base_url, made.key) as load, Bystanders(made, load) as bystanders:
                await load.until_sent(20)
                for _ in range(TIMES):
                    before = sum(one.status == 503 for one in load.answers)
                    await asyncio.to_thread(fill, ballast)
                    # The remaining space lasts a while: until a request is refused.
                    await until(
                        lambda before=before: sum(one.status == 503 for one in load.answers) > before, within=240
                    )
                    with bystanders.during_fault():
                        await asyncio.sleep(5)
                    ballast.unlink()
                    accepted = len(load.ledger)
                    await until(lambda accepted=accepted: len(load.ledger) > accepted + 20, within=120)
                    await bystanders.after_fault()
                bystanders.judge("a full disk")
            assert [api.status, worker.status] == [None, None], "they live through it"
            await until_settled(server.url, within=120)
            verdict = await judge(made, load.ledger, in_flight=2 * TIMES * WINDOW * SESSIONS)
            assert not made.complaints
            print(verdict, f"refused: {sum(one.status == 503 for one in load.answers)}")
    finally:
        keeper.cancel()
        ballast.unlink(missing_ok=True)


async def restart_when_down(server: Embedded) -> None:
    """Restart PostgreSQL whenever it ends because it could not write, as its supervisor would."""
    while True:
        await server.wait()
        while True:
            try:
                await server.start()
                break
            except Exception:
                await asyncio.sleep(1.0)


def fill(file: Path) -> None:
    """Fill the disk up to the last megabyte."""
    with file.open("wb") as out, contextlib.suppress(OSError):  # the server uses some meanwhile
        while (free := shutil.disk_usage(file.parent).free - 2**20) > 0:
            out.write(bytes(min(free, 2**20)))
            out.flush()
