"""A copy of the cluster is being brought up when the process is killed, stopped, or canceled."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import msgspec
import psutil
import pytest
from typer.testing import CliRunner

from heliograph.backup import restoring
from heliograph.base.embedded import copies
from heliograph.base.embedded.archive import prepare
from heliograph.base.embedded.files import Layout
from heliograph.base.embedded.install import PostgresError, account_for
from heliograph.cli import app
from tests.embedded import QUICK, Start, quiet, until
from tests.processes import alive
from tests.rules.test_backups import copy_of

#: Brings up a copy in a temporary directory, prints a backend's pid, and waits.
BRING_UP = """
import asyncio, sys, tempfile
from pathlib import Path
from heliograph.base.embedded import copies
from heliograph.base.process.signals import run_in_order

async def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as place:
        Path(place).chmod(0o711)
        async with copies.started(Path(place) / "postgres", Path(sys.argv[1]), say=print) as (conn, _):
            print("backend", await conn.fetchval("SELECT pg_backend_pid()"), flush=True)
            await asyncio.Event().wait()

run_in_order(main())
"""


@pytest.fixture
async def copied(cluster_home: Path, public_place: Path, embedded: Start) -> Path:
    """A copy of a small cluster, whose directory has a space and a quote in its name."""
    home = cluster_home.rename(public_place / "Ana's data")
    server = embedded(home, extra_settings=QUICK | {"max_wal_senders": "4"})
    await server.start()
    await copies.copy(home, public_place / "copy", label="test")
    await server.stop()
    return public_place / "copy"


async def test_a_copy_is_taken_although_temporary_files_belong_elsewhere_here(
    cluster_home: Path, public_place: Path, embedded: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket of a path too long for one is in the server's TMPDIR, which a login may have set, and cron has not."""
    home = cluster_home.rename(public_place / ("d" * 100))
    server = embedded(home, extra_settings=QUICK | {"max_wal_senders": "4"})
    await server.start()
    sockets = Layout(home).sockets
    monkeypatch.setattr(tempfile, "tempdir", str(public_place))
    assert Layout(home).sockets != sockets
    await copies.copy(home, public_place / "copy", label="test")
    assert (public_place / "copy" / copies.MANIFEST).exists()
    await server.stop()
    shutil.rmtree(sockets)


@pytest.mark.parametrize("name", ["t" * 100, "t,t"])
async def test_a_copy_is_brought_up_although_no_socket_fits_where_temporary_files_belong(
    copied: Path, public_place: Path, embedded: Start, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A socket's address has a hundred bytes, and PostgreSQL takes a comma for the end of a directory's name."""
    place = public_place / name
    place.mkdir(mode=0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    home = public_place / ("d" * 100)
    async with copies.started(home, copied, say=print) as (conn, keep):
        assert await conn.fetchval("SELECT current_database()") == "heliograph"
        await keep()
    assert list(place.iterdir()) == []
    server = embedded(home)
    await server.start()
    await server.stop()
    shutil.rmtree(Layout(home).sockets)


async def test_a_copy_is_brought_up_in_a_directory_behind_a_symbolic_link(copied: Path, public_place: Path) -> None:
    """As a data directory on another disk, or TMPDIR: all files of a copy seemed to lie outside it."""
    (public_place / "disk").mkdir(mode=0o755)
    (public_place / "link").symlink_to(public_place / "disk")
    async with copies.started(public_place / "link" / "data", copied, say=print) as (conn, keep):
        assert await conn.fetchval("SELECT current_database()") == "heliograph"
        await keep()
    assert (public_place / "disk" / "data" / "data" / "PG_VERSION").exists()


#: Like `pg_basebackup`, whose second process receives WAL and does not notice that the first has ended.
OF_TWO = """#!/bin/sh
sleep 600 &
echo $$ $! > "$1.new" && mv "$1.new" "$1"
wait
"""


@pytest.mark.parametrize("how", ["cancelled", "cancelled as it starts", "killed"])
async def test_no_process_of_a_program_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An interrupted backup used to wait for the second process for ever, and every later one for that backup."""
    script, noted = tmp_path / "pg_basebackup", tmp_path / "noted"
    script.write_text(OF_TWO)
    script.chmod(0o755)
    monkeypatch.setattr(copies, "programs", lambda: tmp_path)
    start, known = asyncio.create_subprocess_exec, asyncio.Event()

    async def started(*arguments: Any, **options: Any) -> asyncio.subprocess.Process:
        child = await start(*arguments, **options)
        await known.wait()
        return child

    if how == "cancelled as it starts":
        monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    running = asyncio.create_task(copies.run(["pg_basebackup", noted]))
    await until(noted.exists)
    both = [psutil.Process(int(pid)) for pid in noted.read_text().split()]
    if how != "killed":
        running.cancel()
        known.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 60)
    else:
        both[0].kill()
        with pytest.raises(PostgresError, match="pg_basebackup: status -9"):
            await asyncio.wait_for(running, 60)
    await until(lambda: not any(alive(one) for one in both))


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


def test_commands_end_in_order_when_they_are_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tidied: list[object] = []

    async def never(*given: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            tidied.append(given)

    monkeypatch.setattr(restoring, "verify", never)
    monkeypatch.setattr(restoring, "into_directory", never)
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(copy_of("18-3", "01").manifest))
    for words in (["backup", "verify"], ["restore", "--data-dir", str(tmp_path / "data")]):
        assert CliRunner().invoke(app, [*words, str(tmp_path)]).exit_code == 128 + signal.SIGTERM
    assert len(tidied) == 2


async def test_the_progress_of_a_replay_is_told_as_postgresql_writes_positions(
    cluster_home: Path, embedded: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without an archive to replay reports its own write position instead."""
    server = embedded(cluster_home)
    await server.start()
    connect, asked, told = asyncpg.connect, list[str](), list[str]()

    class Recovering:
        def __init__(self, conn: asyncpg.Connection) -> None:
            self.conn = conn
            self.close = conn.close

        async def fetchval(self, statement: str) -> object:
            asked.append(statement)
            if "pg_is_in_recovery" in statement:
                return len(asked) < 5
            await self.conn.execute("SELECT pg_switch_wal()")
            await self.conn.execute("CREATE TABLE IF NOT EXISTS written (id int)")
            return await self.conn.fetchval(statement.replace("pg_last_wal_replay_lsn", "pg_current_wal_insert_lsn"))

    async def connected(**options: Any) -> Recovering:
        return Recovering(await connect(server.superuser_url))

    monkeypatch.setattr(copies.asyncpg, "connect", connected)
    living: Any = SimpleNamespace(ended=asyncio.get_running_loop().create_future())
    conn = await copies._recovered(living, Layout(cluster_home), cluster_home, told.append)
    await conn.close()
    assert [re.fullmatch(r"Replaying the archive, at [0-9A-F]+/[0-9A-F]+\.", line) is not None for line in told] == [
        True
    ]


async def test_nobody_else_uses_the_directory_while_a_copy_is_brought_up(
    copied: Path, public_place: Path, embedded: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`heliograph up`, restarted by a service manager in the middle of a restore, removed the unfinished copy and
    created an empty database in its place."""
    monkeypatch.setattr(copies, "LOCK_PATIENCE", 0.0)
    home = public_place / "new" / "postgres"
    server = embedded(home)
    async with copies.started(home, copied, say=quiet) as (_, keep):
        for work in (server.start(), bring_up(copied, home)):
            with pytest.raises(
                PostgresError, match=f"new/postgres is in use by another Heliograph .process {os.getpid()}"
            ):
                await work
        await keep()
    await server.start()
    with pytest.raises(PostgresError, match="already holds a database"):
        await bring_up(copied, home)


async def bring_up(source: Path, home: Path) -> None:
    async with copies.started(home, source, say=quiet):
        pass


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
    task = asyncio.create_task(bring_up(copied, home))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(written) == 1
    assert not list(home.glob("data*"))


@pytest.mark.parametrize("hidden", ["000000010000000000000007", "."])
async def test_an_archive_that_postgresql_cannot_read_does_not_pass_for_one_that_ends_there(
    public_place: Path, hidden: str
) -> None:
    """Like one that root copied from another machine: otherwise everything after the backup would be missing
    silently."""
    archive, home = public_place / "archive", public_place / "new" / "postgres"
    archive.mkdir()
    archive.chmod(0o755)
    for name in ("000000010000000000000006", "000000010000000000000007"):
        (archive / name).touch()
    (archive / hidden).chmod(0)
    try:
        with pytest.raises(PostgresError, match=f"cannot read everything in {archive}: give the archive to that user"):
            async with copies.started(home, public_place / "copy", archive=archive, say=quiet):
                pass
    finally:
        archive.chmod(0o755)
    assert not list(home.glob("data*"))


def test_an_archive_that_is_there_keeps_its_owner_and_one_that_cannot_be_written_is_refused(public_place: Path) -> None:
    """It may contain files of others, such as the archives of other installations."""
    shared, account = public_place / "shared", account_for(public_place, public_place / "data")
    shared.mkdir()
    shared.chmod(0o755)
    place = prepare(shared, "18-1", account)
    assert (shared.stat().st_uid, place.stat().st_uid) == (os.geteuid(), account.uid)
    assert prepare(shared, "18-1", account) == place
    place.chmod(0o500)
    with pytest.raises(PostgresError, match=f"cannot write to {place}: let it enter the directories above"):
        prepare(shared, "18-1", account)


def test_an_archive_that_another_installation_creates_in_the_same_instant_is_shared(
    public_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one was refused because the file existed."""
    shared, account, exists = public_place / "shared", account_for(public_place, public_place / "data"), Path.exists

    def then_created(path: Path) -> bool:
        found = exists(path)
        if path == shared and not found:
            shared.mkdir(mode=0o700)
        return found

    monkeypatch.setattr(Path, "exists", then_created)
    places = [prepare(shared, name, account) for name in ("18-1", "18-2")]
    assert sorted(shared.iterdir()) == places
    assert {one.stat().st_uid for one in (shared, *places)} == {account.uid}
