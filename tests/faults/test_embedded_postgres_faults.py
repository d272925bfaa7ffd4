"""The embedded PostgreSQL in trouble: kills at any moment, orphans, foreign pids, slow recovery, shutdowns that
hang."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from heliograph.base.embedded import server as servers
from heliograph.base.embedded.install import PostgresError
from heliograph.base.embedded.process import Process
from heliograph.base.embedded.server import owner_url_of, url_of
from tests.database import remove_remains
from tests.embedded import QUICK, ROOT, Start, ask, execute, log_of, processes, slow, started, supervisor, until


@pytest.mark.parametrize("victim", ["us", "initdb"])
async def test_a_kill_during_initdb_leaves_nothing_broken(public_place: Path, embedded: Start, victim: str) -> None:
    home = public_place / "postgres"
    with supervisor(home) as killed:
        await until(lambda: any(home.glob("data.new-*/base")))
        if victim == "us":
            killed.kill()
        else:
            for pid in processes("initdb", home):
                os.kill(pid, signal.SIGKILL)
        await until(lambda: killed.poll() is not None)
    assert not (home / "data").exists()

    server = embedded(home)
    await server.start()
    assert await ask(server.url, "SELECT 1") == 1
    await until(lambda: not processes("initdb", home))
    await server.stop()
    await server.start()
    assert not list(home.glob("*.new-*"))


async def test_an_orphan_is_adopted_port_and_all_and_can_be_stopped(cluster_home: Path, embedded: Start) -> None:
    with supervisor(cluster_home) as killed:
        pid = await started(killed)
        url = url_of(cluster_home)
        await execute(owner_url_of(cluster_home), "CREATE TABLE kept (id int)")
        killed.kill()
        killed.wait()
    assert await ask(owner_url_of(cluster_home), "SELECT count(*) FROM kept") == 0, "it goes on without us"

    lines: list[str] = []
    server = embedded(cluster_home, on_progress=lines.append)
    await server.start()
    assert (server.pid, server.url) == (pid, url)
    assert any("already running" in line for line in lines)
    await server.stop()
    assert await server.wait() == -1
    assert not processes("postgres", cluster_home)
    assert "received fast shutdown request" in log_of(cluster_home)


async def test_an_orphan_whose_directory_was_moved_is_named(
    cluster_home: Path, public_place: Path, embedded: Start
) -> None:
    """Its socket answers only at the new place, and its data is at the old one: waiting for it would be in vain."""
    with supervisor(cluster_home) as killed:
        pid = await started(killed)
        killed.kill()
        killed.wait()
    home = cluster_home.rename(public_place / "moved")
    try:
        with pytest.raises(PostgresError, match=rf"moved meanwhile, end it with `kill -INT {pid}`"):
            await embedded(home).start()
        assert (home / "data" / "postmaster.pid").exists()
    finally:
        os.kill(pid, signal.SIGINT)
    await until(lambda: not (home / "data" / "postmaster.pid").exists())
    server = embedded(home)
    await server.start()
    await server.stop()


async def test_the_death_of_an_adopted_server_is_noticed(cluster_home: Path, embedded: Start) -> None:
    with supervisor(cluster_home) as killed:
        pid = await started(killed)
        killed.kill()
        killed.wait()
    server = embedded(cluster_home)
    await server.start()
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.wait_for(server.wait(), 120) == -1
    await server.start()
    assert server.pid not in (None, pid)


async def test_an_unexpected_end_is_noticed_and_start_replaces_the_server(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home, extra_settings={})
    await server.start()
    url, pid = server.url, server.pid
    assert pid is not None
    await execute(server.owner_url, "CREATE TABLE kept (id int)")
    await execute(server.owner_url, "INSERT INTO kept VALUES (1)")
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.wait_for(server.wait(), 120) == -signal.SIGKILL
    assert server.pid is None
    await server.start()
    assert server.url == url
    assert await ask(server.owner_url, "SELECT count(*) FROM kept") == 1
    assert "not properly shut down" in log_of(cluster_home)


async def test_backends_that_outlive_a_killed_server_are_waited_for(cluster_home: Path, embedded: Start) -> None:
    lines: list[str] = []
    server = embedded(cluster_home, on_progress=lines.append, progress_interval=0.1)
    await server.start()
    connection = await asyncpg.connect(server.url)
    backend = await connection.fetchval("SELECT pg_backend_pid()")
    os.kill(backend, signal.SIGSTOP)
    os.kill(server.pid or 0, signal.SIGKILL)
    await server.wait()
    again = asyncio.create_task(server.start())
    try:
        await until(lambda: any("the previous PostgreSQL" in line for line in lines))
        assert not again.done()
    finally:
        os.kill(backend, signal.SIGCONT)
    await asyncio.wait_for(again, 120)
    assert await ask(server.url, "SELECT 1") == 1
    connection.terminate()


async def test_a_live_stranger_with_the_pid_of_a_dead_server_is_left_alone(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home)
    await server.start()
    note, pid = cluster_home / "data" / "postmaster.pid", server.pid
    os.kill(pid or 0, signal.SIGKILL)
    await server.wait()
    # The stranger runs as PostgreSQL's account: with another one PostgreSQL would see for itself that the pid is not
    # its own.
    owner = note.stat()
    account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if ROOT else {}
    stranger = subprocess.Popen(["sleep", "600"], cwd="/", **account)  # type: ignore[call-overload]
    try:
        for file in (note, *(cluster_home / "run").glob("*.lock")):
            file.write_text(file.read_text().replace(str(pid), str(stranger.pid), 1))
        await server.start()
        assert server.pid not in (None, pid, stranger.pid)
        assert stranger.poll() is None
        await server.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_server_that_somebody_started_with_another_path_is_left_alone(
    cluster_home: Path, embedded: Start
) -> None:
    """Without its postmaster.pid, it would have ended itself within a minute."""
    server = embedded(cluster_home)
    await server.start()
    program = os.readlink(f"/proc/{server.pid}/exe")
    await server.stop()
    owner = (cluster_home / "data").stat()
    account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if ROOT else {}
    theirs = subprocess.Popen([program, "-D", "data"], cwd=cluster_home, env={}, **account)  # type: ignore[call-overload]
    try:
        await until(lambda: list((cluster_home / "run").glob(".s.PGSQL.*")))
        (cluster_home / "superuser.password").write_text("another\n")
        with pytest.raises(PostgresError, match=rf"process {theirs.pid}\) is running .* but rejects the password"):
            await server.start()
        assert (cluster_home / "data" / "postmaster.pid").exists()
    finally:
        theirs.send_signal(signal.SIGINT)
        theirs.wait()


# --- recovery


async def test_recovery_is_waited_for_with_word_of_it(cluster_home: Path, public_place: Path, embedded: Start) -> None:
    lines: list[str] = []
    server = embedded(
        cluster_home, on_progress=lines.append, progress_interval=0.2, extra_settings=slow(cluster_home, public_place)
    )
    starting = asyncio.create_task(server.start())
    await until(lambda: len(lines) >= 4)
    assert not starting.done()
    assert all("recovering" in line for line in lines)
    (public_place / "done").touch()
    await asyncio.wait_for(starting, 120)
    assert not await ask(server.url, "SELECT pg_is_in_recovery()")


async def test_an_orphan_in_recovery_is_waited_for_and_adopted(
    cluster_home: Path, public_place: Path, embedded: Start
) -> None:
    with supervisor(cluster_home, slow(cluster_home, public_place)) as killed:
        await until(lambda: list((cluster_home / "run").glob(".s.PGSQL.*")))
        pid = int((cluster_home / "data" / "postmaster.pid").read_text().split()[0])
        killed.kill()
        killed.wait()
    lines: list[str] = []
    heir = embedded(cluster_home, on_progress=lines.append, progress_interval=0.2)
    adopting = asyncio.create_task(heir.start())
    await until(lambda: len(lines) >= 2)
    assert all(line.startswith("Waiting for the PostgreSQL that is already running here") for line in lines)
    (public_place / "done").touch()
    await asyncio.wait_for(adopting, 120)
    assert heir.pid == pid


@pytest.mark.parametrize("moment", ["initdb", "recovery"])
async def test_a_start_that_is_cancelled_leaves_nothing_running(
    cluster_home: Path, public_place: Path, embedded: Start, moment: str
) -> None:
    home = public_place / "new" if moment == "initdb" else cluster_home
    server = embedded(home, extra_settings=slow(cluster_home, public_place) if moment == "recovery" else QUICK)
    starting = asyncio.create_task(server.start())
    await until(lambda: any(home.glob("data.new-*/base" if moment == "initdb" else "run/.s.PGSQL.*")))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not processes("initdb", home)
    assert not processes("postgres", home)
    (public_place / "done").touch()
    await embedded(home, extra_settings=slow(home, public_place) if moment == "recovery" else QUICK).start()


async def test_patience_has_an_end_and_then_nothing_runs(
    cluster_home: Path, public_place: Path, embedded: Start
) -> None:
    server = embedded(cluster_home, extra_settings=slow(cluster_home, public_place), start_timeout=0.7)
    with pytest.raises(PostgresError, match=r"gave up after 0.7 s: PostgreSQL is starting or recovering"):
        await server.start()
    assert not processes("postgres", cluster_home)
    assert server.pid is None


# --- stopping


async def test_a_fast_stop_that_hangs_becomes_an_immediate_one(
    cluster_home: Path, public_place: Path, embedded: Start
) -> None:
    lines: list[str] = []
    # A fast shutdown waits for the archiver, and this archiver never ends.
    hang = QUICK | {
        "wal_level": "replica",
        "archive_mode": "on",
        "archive_command": f"touch {cluster_home}/run/hung; sleep 600",
    }
    server = embedded(cluster_home, extra_settings=hang, stop_timeout=0.5, on_progress=lines.append)
    await server.start()
    lines.clear()  # a slow start reports progress
    await execute(server.superuser_url, "SELECT pg_switch_wal()")
    await until((cluster_home / "run" / "hung").exists)
    await server.stop()
    assert lines == ["PostgreSQL has not stopped within 0.5 s of SIGINT."]
    assert "received immediate shutdown request" in log_of(cluster_home)
    assert not processes("postgres", cluster_home)


async def test_a_server_that_could_not_be_stopped_is_replaced_once_it_has_ended(
    cluster_home: Path, embedded: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as while its disk hangs: `heliograph up` gave up restarting it, without a word."""
    server = embedded(cluster_home, stop_timeout=0.0)
    await server.start()
    pid = server.pid or 0
    with monkeypatch.context() as hanging:
        hanging.setattr(servers, "STOP_TIMEOUTS", (0.0, 0.0, 0.0))
        hanging.setattr(Process, "send", lambda *_: None)
        with pytest.raises(PostgresError, match="cannot be stopped"):
            await server.stop()
    with pytest.raises(PostgresError, match=rf"process {pid}\) has not stopped yet"):
        await server.start()
    os.kill(pid, signal.SIGKILL)
    await server.wait()
    await server.start()
    assert await ask(server.url, "SELECT 1") == 1
    with pytest.raises(RuntimeError):
        await server.start()


async def test_stopping_twice_or_before_a_start_is_fine(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home)
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()
    assert await server.wait() == 0


#: Stands for a test process that is killed while its servers run.
LEAVE = """
import asyncio, os, signal, subprocess, sys
from tests.database import public_directory
from tests.embedded import started, supervisor

with public_directory() as directory:
    home = directory / "postgres"
    subprocess.run(["cp", "-a", sys.argv[1], home], check=True)
    with supervisor(home) as process:
        asyncio.run(started(process))
        process.kill()
        print(directory, flush=True)
        if sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise SystemExit("the test failed")
"""


@pytest.mark.parametrize("how", ["failed", "killed"])
async def test_no_server_outlives_the_tests_that_started_it(cluster_model: Path, how: str) -> None:
    """Servers of a killed supervisor used to run for days, because nobody started on their directory again and adopted
    them."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", LEAVE, str(cluster_model), how),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await process.communicate()
    directory = Path(said.decode().strip())
    assert process.returncode == (1 if how == "failed" else -signal.SIGKILL)
    if how == "killed" and directory.exists():  # or another test process was quicker
        remove_remains()
    await until(lambda: not directory.exists())
    assert not processes("postgres", directory)
    assert not Path(f"{directory}.lock").exists()
