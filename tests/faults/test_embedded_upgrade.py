"""Starting upgrades an embedded cluster of an older major version, and a kill at any point leaves one that works.

The older PostgreSQL is the other one in the embedded server's wheel.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import asyncpg
import psutil
import pytest

from heliograph.backup import restoring, taking
from heliograph.backup.store import Backup, BackupError
from heliograph.base.actor import SYSTEM
from heliograph.base.database.migrate import migrate
from heliograph.base.database.pool import open_pool
from heliograph.base.embedded import files, install
from heliograph.base.embedded.files import Layout
from heliograph.base.embedded.install import PostgresError, account_for, programs
from heliograph.base.embedded.server import Embedded, owner_url_of
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check
from heliograph.doctor import examine
from tests.database import public_directory
from tests.embedded import QUICK, Start, ask, execute, fetch, quiet
from tests.processes import LONG, environment, until
from tests.rules.factories import message, organization
from tests.standby import PRIMARY

OLD = programs().parents[1] / "pginstall"
pytestmark = [
    pytest.mark.lasts(15),
    # All of them share one older cluster, created once.
    pytest.mark.xdist_group("older cluster"),
    pytest.mark.skipif(not (OLD / "bin" / "postgres").exists(), reason="the wheel has one PostgreSQL only"),
]
ROWS = 10_000
#: Where the process is killed: while files are copied, and around each rename.
POINTS = (
    {"HELIOGRAPH_CRASH_AT": "upgrade.copied"},
    {"HELIOGRAPH_CRASH_AT": "upgrade.ready"},
    {"HELIOGRAPH_CRASH_AT": "upgrade.aside"},
)
#: Upgrades a cluster, until killed.
START = """
import asyncio, json, os, sys
from pathlib import Path
from heliograph.base.embedded.server import Embedded
from heliograph.base.process import crash

crash.arm(os.environ.get("HELIOGRAPH_CRASH_AT", ""))
asyncio.run(Embedded(Path(sys.argv[1]), on_progress=print, extra_settings=json.loads(sys.argv[2])).start())
"""


def is_installed() -> str:
    """The major version of this product's server."""
    said = subprocess.run([programs() / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return said.split()[-1].split(".")[0]


def data_of(home: Path) -> str:
    return (home / "data" / "PG_VERSION").read_text().strip()


async def make_old(home: Path) -> None:
    """A cluster as an older Heliograph created it, with rows in it."""
    layout = Layout(home)
    files.prepare_home(layout)
    account = account_for(layout.home, layout.data)
    found = install.upgrade_installs(home, account, ("16", is_installed()))
    assert found is not None
    place = await files.initdb(layout, account, found[0], sync=False)
    place.rename(layout.data)
    server = Embedded(home, on_progress=quiet, extra_settings=QUICK, packages=only_old(home.parent))
    await server.start()
    await execute(server.owner_url, f"CREATE TABLE kept AS SELECT n FROM generate_series(1, {ROWS}) AS n")
    await server.stop()
    forget_copies(home)
    assert data_of(home) == "16"


def only_old(place: Path) -> Path:
    """An older version's package: its only PostgreSQL is the older one, in the place of ours."""
    packages = place / "packages"
    if not packages.exists():
        (packages / install.PACKAGE).mkdir(parents=True)
        (packages / install.PACKAGE / "pginstall18").symlink_to(OLD)
        (packages / f"{install.PACKAGE}.libs").symlink_to(OLD.parents[1] / f"{install.PACKAGE}.libs")
    return packages


def forget_copies(home: Path) -> None:
    """Copies of programs are named after the package's version, which is the same for both here."""
    for copy in home.glob("install-*"):
        shutil.rmtree(copy)


@pytest.fixture(scope="module")
def old_model() -> Iterator[Path]:

    with public_directory() as directory:
        asyncio.run(make_old(directory / "postgres"))
        yield directory / "postgres"


@pytest.fixture
def old_home(public_place: Path, old_model: Path) -> Path:
    """An older cluster for this test alone, not running."""
    subprocess.run(["cp", "-a", old_model, public_place / "postgres"], check=True)
    return public_place / "postgres"


async def demand_all(home: Path) -> None:
    """Assert that the cluster has this version, and all its rows."""
    assert data_of(home) == is_installed()
    assert await ask(owner_url_of(home), "SELECT sum(n) FROM kept") == ROWS * (ROWS + 1) // 2
    assert not list(home.glob("*.new-*"))
    assert not (home / "data-upgraded").exists()


async def test_a_start_upgrades_an_older_cluster(old_home: Path, embedded: Start) -> None:
    lines: list[str] = []
    server = embedded(old_home, on_progress=lines.append)
    await server.start()
    await demand_all(old_home)
    assert any("from PostgreSQL 16 to" in line for line in lines)
    assert (old_home / "data-16" / "PG_VERSION").read_text().strip() == "16"
    assert any("data-16" in line for line in lines)
    # The application's role works as before, and the next start has nothing to do.
    assert await ask(server.url, "SELECT current_user::text") == "heliograph"
    await server.stop()
    lines.clear()
    await server.start()
    assert not any("16" in line for line in lines)
    assert not list(old_home.glob("install-*-upgrade"))


async def test_one_that_was_killed_recovers_first(old_home: Path, embedded: Start) -> None:
    """kill -9 of the older server: its last commits are only in its WAL."""
    durable = QUICK | {"synchronous_commit": "on"}
    server = embedded(old_home, packages=only_old(old_home.parent), extra_settings=durable)
    await server.start()
    await execute(server.owner_url, "UPDATE kept SET n = n + 1")
    assert server.pid is not None
    os.kill(server.pid, 9)
    await server.wait()
    await server.stop()
    forget_copies(old_home)
    after = embedded(old_home)
    await after.start()
    assert data_of(old_home) == is_installed()
    assert await ask(owner_url_of(old_home), "SELECT sum(n) FROM kept") == ROWS * (ROWS + 1) // 2 + ROWS


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point["HELIOGRAPH_CRASH_AT"])
async def test_a_kill_around_a_rename_loses_nothing(old_home: Path, embedded: Start, point: dict[str, str]) -> None:
    killed = begin(old_home, point)
    assert killed.wait(300) == -9
    server = embedded(old_home)
    await server.start()
    await demand_all(old_home)


def working_in(home: Path) -> list[str]:
    """Processes that are creating a cluster there."""
    found = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [words for words in found if f"{home}/" in words and ".new-" in words]


@pytest.mark.parametrize("moment", ["data.new-*/base", "upgrade.new-*", "data.new-*/pg_upgrade_output.d"])
async def test_a_kill_while_it_is_copied_leaves_the_old_one(old_home: Path, embedded: Start, moment: str) -> None:
    for _ in range(5 if LONG else 1):
        killed = begin(old_home, {})
        await until(lambda killed=killed: any(old_home.glob(moment)) or killed.poll() is not None)
        killed.kill()
        killed.wait()
        assert data_of(old_home) == "16", "it was killed too late to show anything"
    server = embedded(old_home)
    await server.start()
    if list(old_home.glob("*.new-*")):
        # What the killed process had begun, initdb or pg_upgrade, kept writing while this start cleaned up: the next
        # one does.
        await until(lambda: not working_in(old_home))
        await server.stop()
        await server.start()
    await demand_all(old_home)


async def test_a_copy_that_was_not_exchanged_is_of_no_use_later(old_home: Path, embedded: Start) -> None:
    """The old cluster may have kept running under the older version meanwhile."""
    killed = begin(old_home, POINTS[1])
    assert killed.wait(300) == -9
    assert (old_home / "data-upgraded").exists()
    assert data_of(old_home) == "16"
    server = embedded(old_home)
    await server.start()
    await demand_all(old_home)


async def test_a_failure_leaves_the_old_one_and_says_why(old_home: Path, embedded: Start) -> None:
    (old_home / "data-16").mkdir()
    server = embedded(old_home)
    with pytest.raises(PostgresError, match="data-16 already exists"):
        await server.start()
    assert data_of(old_home) == "16"
    (old_home / "data-16").rmdir()
    await server.start()
    await demand_all(old_home)


async def test_a_newer_cluster_is_refused(cluster_home: Path, embedded: Start) -> None:
    (cluster_home / "data" / "PG_VERSION").write_text("99\n")
    with pytest.raises(PostgresError, match="was made by PostgreSQL 99"):
        await embedded(cluster_home).start()


def begin(home: Path, point: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that upgrades the cluster until it is killed, by itself at a crash point or by the test."""

    return subprocess.Popen(
        [sys.executable, "-c", START, str(home), json.dumps(QUICK)],
        env=environment(**point),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


class Archiving:
    """An installation that archives its WAL. Numbers in the table `kept` identify points in time."""

    def __init__(self, place: Path, embedded: Start) -> None:
        self.place, self.home, self.wal = place, place / "postgres", place / "wal"
        self._embedded = embedded

    async def start(self, home: Path, packages: Path | None = None) -> Embedded:
        server = self._embedded(home, extra_settings=QUICK | PRIMARY, archive=self.wal, packages=packages)
        await server.start()
        return server

    async def add(self, server: Embedded, number: int) -> datetime:
        """Store a number; returns a moment after that."""
        await execute(server.owner_url, "INSERT INTO kept VALUES ($1)", number)
        at = await ask(server.owner_url, "SELECT clock_timestamp()")
        assert isinstance(at, datetime)
        return at

    async def back_up(self, server: Embedded, home: Path) -> Backup:
        # A backup is named after the second in which it was taken.
        await execute(server.owner_url, "SELECT pg_sleep(1.05 - extract(second FROM clock_timestamp())::numeric % 1)")
        conn = await asyncpg.connect(server.url)
        try:
            return await taking.take(
                conn, self.place / "store", home=home, owner_url="", sealed=None, passphrase="", by=SYSTEM, say=quiet
            )
        finally:
            await conn.close()

    async def restored(self, backup: Backup, name: str, until: datetime | None) -> Path:
        """The cluster restored to a point in time."""
        home = self.place / name
        await restoring.into_directory(backup, home, archive=self.wal, until=until, by=SYSTEM, say=quiet)
        return home

    async def refused(self, backup: Backup, until: datetime) -> str:
        with pytest.raises(BackupError) as refusal:
            await self.restored(backup, "refused", until)
        assert not list((self.place / "refused").glob("data*"))
        return str(refusal.value)

    def segments(self, backup: Backup) -> dict[str, int]:
        """The archived segments that belong to a backup: name → modification time."""
        found = (self.wal / backup.manifest.archive).iterdir()
        return {path.name: path.stat().st_mtime_ns for path in found}


async def numbers(server: Embedded) -> set[int]:
    return {row["n"] for row in await fetch(server.owner_url, f"SELECT n FROM kept WHERE n > {ROWS}")}


async def checked(server: Embedded) -> Check:
    """The backup check of `doctor`."""
    settings = Settings(database_url=server.url, secret_key="x" * 32)
    conn = await asyncpg.connect(server.url)
    try:
        (found,) = [one for one in await examine(conn, settings, far=False) if str(one.check) == "backups"]
        return found
    finally:
        await conn.close()


async def test_points_in_time_before_and_after_an_upgrade_are_restored(
    old_home: Path, public_place: Path, embedded: Start
) -> None:
    of = Archiving(public_place, embedded)
    server = await of.start(of.home, only_old(public_place))
    await migrate(server.owner_url, application=server.url)
    first = await of.back_up(server, of.home)
    assert (await checked(server)).state == "ok"
    before = await of.add(server, 100_001)
    await of.add(server, 100_002)
    await server.stop()
    forget_copies(of.home)
    server = await of.start(of.home)
    # No backup leads here yet, and the commands say so.
    between = await of.add(server, 100_003)
    told = await checked(server)
    assert (told.state, "upgraded or restored" in str(told.detail)) == ("warning", True)
    second = await of.back_up(server, of.home)
    assert (await checked(server)).state == "ok"
    after = await of.add(server, 100_004)
    await of.add(server, 100_005)
    await server.stop()
    assert first.manifest.archive.startswith("16-")
    assert second.manifest.archive.startswith(f"{is_installed()}-")
    archived = of.segments(first)

    early = await of.restored(first, "early", before)
    assert data_of(early) == "16"
    server = await of.start(early)
    assert data_of(early) == is_installed()
    assert await numbers(server) == {100_001}
    await server.stop()
    late = await of.restored(second, "late", after)
    server = await of.start(late)
    assert await numbers(server) == {100_001, 100_002, 100_003, 100_004}
    await server.stop()
    # The cluster that was restored and started archives to a directory of its own.
    assert of.segments(first) == archived

    refusal = await of.refused(first, after)
    assert "of PostgreSQL 16" in refusal
    assert f"such as {second.path} (PostgreSQL {is_installed()}" in refusal
    refusal = await of.refused(second, before)
    assert f"such as {first.path} (PostgreSQL 16" in refusal
    refusal = await of.refused(first, between)
    assert f"no backup in {public_place / 'store'} can be restored to that time" in refusal
    # Without a time, it restores up to the upgrade, and says so.
    server = await of.start(await of.restored(first, "last", None))
    assert await numbers(server) == {100_001, 100_002}


async def test_what_was_restored_archives_apart_and_asks_for_a_backup(public_place: Path, embedded: Start) -> None:
    """Without archived WAL it continues at the copy's position, so its segments have the same names as the
    original's."""
    of = Archiving(public_place, embedded)
    server = await of.start(of.home)
    await migrate(server.owner_url, application=server.url)
    await execute(server.owner_url, "CREATE TABLE kept (n int)")
    await of.back_up(server, of.home)
    second = await of.back_up(server, of.home)
    await of.add(server, 100_001)
    await server.stop()
    elsewhere = public_place / "elsewhere"
    await restoring.into_directory(second, elsewhere, archive=None, until=None, by=SYSTEM, say=quiet)
    server = await of.start(elsewhere)
    assert (await checked(server)).state == "warning"
    at = await of.add(server, 100_002)
    third = await of.back_up(server, elsewhere)
    assert (await checked(server)).state == "ok"
    await of.add(server, 100_003)
    await server.stop()
    assert third.manifest.archive.startswith(f"{second.manifest.archive}-")
    assert of.segments(second).keys() & of.segments(third).keys()
    refusal = await of.refused(third, at)
    assert "choose a later point in time" in refusal
    server = await of.start(await of.restored(third, "again", None))
    assert await numbers(server) == {100_002, 100_003}


async def test_a_backup_of_an_older_version_is_verified_restored_and_brought_over(
    old_home: Path, public_place: Path, embedded: Start
) -> None:
    server = embedded(old_home, extra_settings=QUICK | PRIMARY, packages=only_old(public_place))
    await server.start()
    await migrate(server.owner_url, application=server.url)
    pool = await open_pool(server.url, size=2)
    try:
        await message(pool, await organization(pool))
        async with pool.acquire() as conn:
            taken = await taking.take(
                *(conn, public_place / "store"),
                home=old_home,
                owner_url="",
                sealed=None,
                passphrase="",
                by=SYSTEM,
                say=quiet,
            )
    finally:
        pool.terminate()
    await server.stop()
    assert taken.manifest.postgres.startswith("16")
    assert (await restoring.verify(taken, scratch=public_place, say=quiet)).rows["messages"] == 1
    elsewhere = public_place / "elsewhere"
    found = await restoring.into_directory(taken, elsewhere, archive=None, until=None, by=SYSTEM, say=quiet)
    assert (found.rows["messages"], found.rows["queue"], found.unbalanced) == (1, 1, 0)
    # It has the old content, and everything is on hold before anybody can connect; the next start upgrades it.
    assert data_of(elsewhere) == "16"
    server = embedded(elsewhere)
    await server.start()
    await demand_all(elsewhere)
    assert await ask(server.url, "SELECT count(*) FROM messages") == 1
    assert await ask(server.url, "SELECT count(*) FROM queue_holds WHERE reason LIKE 'restored from the backup%'") == 3


async def test_a_dump_is_restored_into_an_older_server(old_home: Path, public_place: Path, embedded: Start) -> None:
    """The programs that restore it are of this version, and set parameters that PostgreSQL 16 does not know."""
    server = embedded(old_home, packages=only_old(public_place))
    await server.start()
    await execute(server.owner_url, "DROP TABLE kept")
    await migrate(server.owner_url, application=server.url)
    pool = await open_pool(server.url, size=2)
    try:
        await message(pool, await organization(pool))
        async with pool.acquire() as conn:
            taken = await taking.take(
                *(conn, public_place / "store"),
                home=None,
                owner_url=server.owner_url,
                sealed=None,
                passphrase="",
                by=SYSTEM,
                say=quiet,
            )
    finally:
        pool.terminate()
    await execute(server.owner_url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    assert taken.manifest.postgres.startswith("16")
    found = await restoring.into_database(taken, server.owner_url, by=SYSTEM)
    assert (found.rows["messages"], found.rows["queue"], found.unbalanced) == (1, 1, 0)
