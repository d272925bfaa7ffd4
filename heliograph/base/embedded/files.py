"""The files of the embedded PostgreSQL: its home directory, a cluster, passwords, settings.

    <home>/                 ours (as root: the data directory's owner's or root's; others may only traverse it)
      lock                  held with flock by the process that supervises this directory, or restores into it
      port                  the TCP port, kept between starts
      app.password          of the role `heliograph`, the application's, 0600
      owner.password        of the role `heliograph_owner`, which owns the tables, 0600
      superuser.password    of the role `postgres`, 0600
      heliograph.conf       settings and `pg_hba.conf` rules, rewritten on each start
      pg_hba.conf
      data/                 the cluster, 0700
      log/  run/            server log and Unix socket
      start.log             output from before the server log was open
      install-<version>/    a copy of the binaries, only where PostgreSQL's account cannot read the installed ones

The rule nobody may break: what must be complete is written under another name (`<name>.new-<random>`), synced, and
renamed. A kill at any moment leaves either the old or the new version, and the next start removes the remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from heliograph.base.database import clock
from heliograph.base.embedded.install import Install, PostgresError, SystemUser
from heliograph.base.embedded.process import Process
from heliograph.base.process import private_files

#: Where a container sees its memory limit in bytes: with cgroup v2, and with v1.
MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
#: sockaddr_un holds 108 bytes with its final NUL; the rest is room for other systems.
LONGEST_SOCKET_PATH = 100
#: Size at which the server log continues in a new file, how many files are kept, and after how many seconds the others
#: are removed.
LOG_FILE_MB, LOG_FILES, LOGS_EVERY = 10, 10, 60.0


def absolute(path: Path) -> Path:
    """The absolute path of a file or directory that PostgreSQL's account also uses, without `..`: that account may not
    enter a directory which the path only leaves again, such as root's home."""
    return path.resolve() if ".." in path.parts else path.absolute()


@dataclasses.dataclass(frozen=True)
class Layout:
    """The paths below `home`."""

    home: Path

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def port(self) -> Path:
        return self.home / "port"

    @property
    def early_log(self) -> Path:
        """Output of initdb, and of the server before it opens its log."""
        return self.home / "start.log"

    @property
    def app_password(self) -> Path:
        return self.home / "app.password"

    @property
    def owner_password(self) -> Path:
        return self.home / "owner.password"

    @property
    def superuser_password(self) -> Path:
        return self.home / "superuser.password"

    @property
    def settings(self) -> Path:
        return self.home / "heliograph.conf"

    @property
    def access(self) -> Path:
        return self.home / "pg_hba.conf"

    @property
    def sockets(self) -> Path:
        """Directory of the Unix socket: ours, or another one if ours is too long for a socket's address or contains a
        comma, which separates several."""
        ours = self.home / "run"
        if len(os.fsencode(ours / ".s.PGSQL.65535.lock")) < LONGEST_SOCKET_PATH and "," not in str(ours):
            return ours
        return place_for_sockets() / f"heliograph-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:16]}"


def place_for_sockets() -> Path:
    """A directory in which one for a socket can be created: that of temporary files, or /tmp if that one's name is too
    long for a socket's address or contains a comma."""
    usual = tempfile.gettempdir()
    longest = len(os.fsencode(usual)) + len("/heliograph-0123456789abcdef/.s.PGSQL.65535.lock")
    return Path(usual if longest < LONGEST_SOCKET_PATH and "," not in usual else "/tmp")  # noqa: S108


def prepare_home(layout: Layout) -> None:
    """Create the home directory. Raises PostgresError, also for a name that PostgreSQL and this process would decode
    differently."""
    if sys.getfilesystemencoding() != "utf-8" and not str(layout.home).isascii():
        raise PostgresError(
            f"{layout.home} has a name that needs a UTF-8 locale: set LC_ALL=C.UTF-8, or choose another data directory"
        )
    try:
        create(layout.home)
    except OSError as error:
        raise PostgresError(f"cannot create {error.filename}: {error.strerror}") from error


def create(place: Path) -> None:
    """Create a directory and its missing parents, whatever the umask. For root, others may traverse them, because
    PostgreSQL's account has to. Raises OSError."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    for directory in (*reversed(place.parents), place):
        try:
            directory.mkdir()
        except FileExistsError:
            if not directory.is_dir():
                raise
            continue
        directory.chmod(mode)


def clean_up(layout: Layout) -> None:
    """Remove what a killed start left half done. Only while holding the lock."""
    for remains in layout.home.glob("*.new-*"):
        if remains.is_dir() and not remains.is_symlink():
            shutil.rmtree(remains, ignore_errors=True)  # the next start removes what an orphaned initdb adds
        else:
            remains.unlink(missing_ok=True)


def major_of(data: Path) -> str:
    """The major version that created a cluster. Raises PostgresError if it is not a cluster."""
    try:
        return (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise PostgresError(
            f"{data} is not a PostgreSQL data directory (it has no PG_VERSION): "
            "move it away, or choose another data directory"
        ) from None


def check_major(data: Path, install: Install) -> None:
    """Raise PostgresError if it is not a cluster, or has another major version."""
    made_by = major_of(data)
    if made_by != install.major:
        raise PostgresError(
            f"{data} was made by PostgreSQL {made_by}, but this is PostgreSQL {install.major}, which cannot "
            f"read it. Dump it with PostgreSQL {made_by} (pg_dump) and restore it into a new data directory, or run "
            f"PostgreSQL {made_by} on it yourself and set HELIOGRAPH_DATABASE_URL"
        )


def has_cluster(layout: Layout) -> bool:
    """Whether there is a data directory with anything in it."""
    try:
        return any(layout.data.iterdir())
    except FileNotFoundError:
        return False


async def create_cluster(layout: Layout, account: SystemUser, install: Install, *, sync: bool) -> None:
    """Run initdb next to the final place, then rename. `sync=False`: no fsync (tests only)."""
    # The builtin locale sorts by code point on every system: no libc upgrade can corrupt an index.
    options = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    place = await initdb(layout, account, install, sync=sync, options=options)
    place.rename(layout.data)
    private_files.sync_directory(layout.home)


async def initdb(
    layout: Layout, account: SystemUser, install: Install, *, sync: bool, options: Sequence[str] = ()
) -> Path:
    """Create a new cluster under another name; returns its path. Raises PostgresError."""
    try:
        pwd.getpwuid(account.uid)
    except KeyError:  # as in a container started with an arbitrary user ID
        raise PostgresError(
            f"PostgreSQL creates a database only for a user with a name, and uid {account.uid} has none: add an account"
            " with this uid, start as another user, or set HELIOGRAPH_DATABASE_URL"
        ) from None
    secret(layout.superuser_password, account)
    place = layout.home / f"data.new-{secrets.token_hex(4)}"
    place.mkdir(mode=0o700)
    account.own(place)
    arguments = ["--username=postgres", f"--pwfile={layout.superuser_password}", "--auth=scram-sha-256"]
    arguments += ["--encoding=UTF8", "--locale=C", *options]
    arguments += ["--no-instructions"] if sync else ["--no-instructions", "--no-sync"]
    command: list[str | Path] = [install.binaries / "initdb", f"--pgdata={place}", *arguments]
    running = Process.launch(command, account, log=layout.early_log)
    try:
        status = await asyncio.shield(running.ended)
    except asyncio.CancelledError:
        running.send(signal.SIGTERM)
        await running.ended
        raise
    if status != 0:
        shutil.rmtree(place, ignore_errors=True)
        said = layout.early_log.read_text(errors="replace").strip()
        raise PostgresError(f"initdb ended with status {status}: {said}")
    configuration = place / "postgresql.conf"
    with configuration.open("a") as file:
        # Relative to this file, so that the home directory can be moved.
        file.write("\n# Written by Heliograph on each start. Lines below this one take precedence.\n")
        file.write(f"include '../{layout.settings.name}'\n")
        file.flush()
        os.fsync(file.fileno())
    return place


def secret(path: Path, account: SystemUser | None = None) -> str:
    """The password in `path`, created on first use. Only `account` and this process's user may read it."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        value = secrets.token_urlsafe(24)
        write(path, value + "\n", mode=0o600, account=account)
        return value


def write(path: Path, text: str, *, mode: int, account: SystemUser | None = None) -> None:
    """Replace a file atomically, synced."""
    place = path.with_name(f"{path.name}.new-{secrets.token_hex(4)}")
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fchmod(descriptor, mode)
        if account is not None:
            account.own(place)
        os.fsync(descriptor)
    place.rename(path)
    private_files.sync_directory(path.parent)


def prepare_run(layout: Layout, account: SystemUser) -> None:
    """Create the directories for socket and log, and remove old sockets and logs. Only if no server can be running."""
    for directory in (layout.sockets, layout.log):
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
        # The socket's directory may be in /tmp, where anybody could have created one with its name. One owned by root
        # was just created, now or by a killed start.
        ours = found.st_uid in (account.uid, os.geteuid()) and stat.S_IMODE(found.st_mode) == 0o700
        if not stat.S_ISDIR(found.st_mode) or not ours:
            raise PostgresError(f"{directory} belongs to uid {found.st_uid} or is accessible to others: remove it")
        if found.st_uid != account.uid:
            account.own(directory)
    # The lock file of a killed server's socket names a process id that may belong to another process by now; PostgreSQL
    # would refuse to start.
    for remains in layout.sockets.glob(".s.PGSQL.*"):
        remains.unlink()
    remove_old_logs(layout, keep=LOG_FILES - 1)


def logs(layout: Layout) -> list[Path]:
    """The server's logs, the newest last. If the clock was ahead and has been set back, those written until then are
    not the newest."""
    written = {path: path.stat().st_mtime for path in layout.log.glob("postgresql-*.log")}
    now = clock.now().timestamp()
    return sorted(written, key=lambda path: (written[path] <= now, written[path], path))


def remove_old_logs(layout: Layout, *, keep: int = LOG_FILES) -> None:
    """Remove all but the newest logs. Whatever cannot be removed stays."""
    with contextlib.suppress(OSError):
        for old in logs(layout)[:-keep]:
            old.unlink()


def complaints(layout: Layout) -> str:
    """Errors among the last lines of the server's log."""
    found = logs(layout)
    lines = found[-1].read_text(errors="replace").splitlines()[-50:] if found else []
    # Without those caused by our own checks.
    told = [line for line in lines if re.search(r"FATAL:  (?!the database system is )|PANIC|could not", line)]
    return "".join(f"\n{line}" for line in told[-10:])


def choose_port(wanted: int | None) -> int:
    """`wanted` if it is free, else a free port of 127.0.0.1."""
    # Below the range of outgoing connections (32768 and up on Linux): a client that keeps trying a port in that range
    # while the server is away can be assigned the same local port, connect to itself, and keep the server out.
    candidates = random.sample(range(20_000, 32_000), 100)
    for port in candidates if wanted is None else [wanted, *candidates]:
        if port_is_free(port):
            return port
    raise PostgresError("no free TCP port between 20000 and 32000 on 127.0.0.1")


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def write_settings(layout: Layout, port: int, extra: Mapping[str, str]) -> None:
    """Write heliograph.conf and pg_hba.conf. `extra` takes precedence; only tests use it."""
    memory_mb = memory_bytes() // 2**20
    settings = {
        # A 202 is a promise.
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        # Reachable only from this machine, and as superuser only by those who can read one of our files.
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": str(layout.sockets),
        "unix_socket_permissions": "0700",
        "hba_file": str(layout.access),
        "password_encryption": "scram-sha-256",
        "max_connections": "100",
        # A write-heavy queue on two cores: few checkpoints, eager vacuum, no parallel query that takes both cores.
        "shared_buffers": f"{min(max(memory_mb // 8, 128), 1024)}MB",
        "huge_pages": "try",
        "min_wal_size": "1GB",
        "max_wal_size": "4GB",
        "checkpoint_timeout": "15min",
        "checkpoint_completion_target": "0.9",
        "wal_buffers": "16MB",
        # Whole pages, written after each checkpoint, are a fifth of the WAL; this halves them (decision 10).
        "wal_compression": "pglz",
        "autovacuum_naptime": "10s",
        "autovacuum_vacuum_cost_delay": "0",
        "max_parallel_workers_per_gather": "0",
        "jit": "off",
        "random_page_cost": "1.1",
        "timezone": "UTC",
        # The log. Terse, because the details of an error quote rows: phone numbers and texts.
        "logging_collector": "on",
        "log_directory": str(layout.log),
        "log_filename": "postgresql-%Y%m%d-%H%M%S.log",
        "log_file_mode": "0600",
        "log_rotation_age": "0",
        "log_rotation_size": f"{LOG_FILE_MB}MB",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] %q%u@%d ",
        "log_error_verbosity": "terse",
        "log_checkpoints": "off",
        "log_lock_waits": "on",
        "lc_messages": "C",
        # The application checks how full this disk is, but its role may not read `data_directory`.
        "heliograph.data_directory": str(layout.data),
    } | dict(extra)
    lines = [f"{name} = '{_quoted(value)}'" for name, value in settings.items()]
    write(
        layout.settings, "# Written on each start; change data/postgresql.conf.\n" + "\n".join(lines) + "\n", mode=0o644
    )
    # No rule for the superuser over TCP, and none without a password.
    rules = ["local all,replication postgres scram-sha-256", "local all heliograph,heliograph_owner scram-sha-256"]
    rules += ["host all heliograph,heliograph_owner 127.0.0.1/32 scram-sha-256"]
    write(layout.access, "# Written on each start.\n" + "\n".join(rules) + "\n", mode=0o644)


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")


def memory_bytes(limits: Sequence[Path] = MEMORY_LIMITS) -> int:
    """Memory of this machine, or of the container if that is less. `limits`: files that may hold the container's."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in limits:
        with contextlib.suppress(OSError, ValueError):  # not in a container, or "max"
            found.append(int(path.read_text()))
    return min(found)
