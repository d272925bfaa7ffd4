"""The embedded PostgreSQL: one server on one directory, started, watched, adopted and stopped by us.

    take the lock → finish or create the cluster → adopt a running server, or start one → wait until it answers

The server is a foreground child in its own session, so that Ctrl-C at the terminal reaches it only through us. If our
process is killed, the server continues, and the next start adopts it. The rule nobody may break: a server is alive if
its socket answers with our data directory. A process id alone proves nothing: it may belong to another process by now.
"""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import asyncpg

from heliograph.base.database.pool import Connection
from heliograph.base.database.roles import ROLE_ATTRIBUTES, STATISTICS_ROLE
from heliograph.base.embedded import archive as archives
from heliograph.base.embedded import files as files
from heliograph.base.embedded import upgrade
from heliograph.base.embedded.files import Layout
from heliograph.base.embedded.install import (
    Install,
    PostgresError,
    SystemUser,
    account_for,
    install_for,
    remove_old_installs,
    upgrade_installs,
)
from heliograph.base.embedded.process import PidFile, Process, is_server_on
from heliograph.base.embedded.waiting import NoConnection, StartDeadline, ends, locked
from heliograph.base.network import failures
from heliograph.base.process import private_files

#: The application's role, and the name of its database; the role that owns the database and migrates it.
ROLE, OWNER = "heliograph", "heliograph_owner"
#: The signals that stop PostgreSQL, and how many seconds each has before the next one is sent, or the stop has failed.
STOP_SIGNALS, STOP_TIMEOUTS = (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL), (30.0, 10.0, 10.0)


def default_data_dir(environment: Mapping[str, str] = os.environ, *, uid: int | None = None) -> Path:
    """The default data directory: never in root's home, which PostgreSQL cannot enter. An account without a home has
    the same default as root."""
    base = None
    if (os.geteuid() if uid is None else uid) != 0:
        base = private_files.base_directory("XDG_DATA_HOME", ".local/share", environment)
    return Path("/var/lib" if base is None else base, "heliograph")


def url_of(directory: Path) -> str:
    """The application's URL for the server on `directory`, as last started. Raises PostgresError if it never was."""
    layout = Layout(files.absolute(directory))
    return _url(layout, ROLE, layout.app_password)


def owner_url_of(directory: Path) -> str:
    """The URL of the role that owns the tables and migrates, likewise."""
    layout = Layout(files.absolute(directory))
    return _url(layout, OWNER, layout.owner_password)


def _url(layout: Layout, role: str, kept: Path) -> str:
    directory = layout.home
    try:
        password, port = kept.read_text().strip(), int(layout.port.read_text())
    except FileNotFoundError:
        raise PostgresError(
            f"`heliograph up` has not started a database in {directory.parent} yet: start it there first, or give its"
            " data directory with --data-dir"
        ) from None
    except (OSError, ValueError) as error:
        raise PostgresError(f"no database in {directory}: start `heliograph up` on it first ({error})") from None
    return f"postgresql://{role}:{password}@127.0.0.1:{port}/{ROLE}"


class Embedded:
    """A PostgreSQL on `directory`, which is created if necessary and locked from `start` to `stop`.

    `port`: exactly this TCP port, or None: the last one if it is free, else any; from then on exactly that one, because
    others have the URL. `on_progress` gets a readable line at each step, and every `progress_interval` seconds of a
    longer one. `archive`: directory below which WAL is archived (`archive`). `extra_settings` are for tests only: they
    override all others, including those for durability. `packages`: where the binaries' package is, if not in this
    environment. Times in seconds: `start_timeout` covers crash recovery; after `stop_timeout` a fast shutdown becomes
    an immediate one, after which the next start must recover; `lock_timeout` is for another process that is about to
    release the lock.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        on_progress: Callable[[str], None],
        archive: Path | None = None,
        extra_settings: Mapping[str, str] = MappingProxyType({}),
        packages: Path | None = None,
        start_timeout: float = 300.0,
        stop_timeout: float = STOP_TIMEOUTS[0],
        lock_timeout: float = 5.0,
        progress_interval: float = 3.0,
    ) -> None:
        self._layout = Layout(files.absolute(directory))
        self._wanted_port = port
        self._progress = on_progress
        self._archive = archive
        self._extra = extra_settings
        self._packages = packages
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._lock_timeout = lock_timeout
        self._progress_interval = progress_interval
        self._lock: int | None = None
        self._server: Process | None = None
        self._sockets = self._layout.sockets

    async def start(self) -> None:
        """Return once the server accepts connections; call again after `wait` returned, to replace a server that ended.

        Raises PostgresError; nothing is left running then.
        """
        if self._server is not None and not self._server.ended.done():
            if self._lock is None:  # it could not be stopped, such as while its disk hangs
                raise PostgresError(f"PostgreSQL (process {self._server.pid}) has not stopped yet")
            raise RuntimeError("already started")
        patience = StartDeadline(self._start_timeout, self._progress_interval, self._progress)
        try:
            files.prepare_home(self._layout)
            if self._lock is None:
                self._lock = await locked(self._layout.home, patience=self._lock_timeout)
            await upgrade.finish(self._layout)
            files.clean_up(self._layout)
            account = account_for(self._layout.home, self._layout.data)
            install = await asyncio.to_thread(install_for, self._layout.home, account, self._packages)
            if not files.has_cluster(self._layout):
                self._progress("Creating the database.")
                sync = self._extra.get("fsync") != "off"
                await files.create_cluster(self._layout, account, install, sync=sync)
            if (made_by := files.major_of(self._layout.data)) != install.major:
                await self._upgrade(made_by, account, install, patience)
            connection = await self._adopt(patience) or await self._launch(account, install, patience)
            try:
                await self._settle(connection)
            finally:
                await connection.close()
            self._wanted_port = self._last_port()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            await self.stop()
            file = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
            why = f"{file}{failures.reason(error)}"
            raise PostgresError(f"cannot start PostgreSQL on {self._layout.home}: {why}") from error
        except BaseException:
            await self.stop()
            raise

    @property
    def url(self) -> str:
        """The application's URL: its own role, over TCP, with its password."""
        return url_of(self._layout.home)

    @property
    def owner_url(self) -> str:
        """The URL for migrations: the role that owns the tables."""
        return owner_url_of(self._layout.home)

    @property
    def superuser_url(self) -> str:
        """The URL for tests and tools: over the Unix socket, with a password that only this account can read."""
        password = self._layout.superuser_password.read_text().strip()
        at = urllib.parse.urlencode({"host": str(self._sockets), "port": self._layout.port.read_text().strip()})
        return f"postgresql://postgres:{password}@/postgres?{at}"

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if there is none."""
        return self._server.pid if self._server is not None and not self._server.ended.done() else None

    async def wait(self) -> int:
        """Wait until the server has ended; returns its status as in subprocess, or UNKNOWN_STATUS. Meanwhile its old
        logs are removed: an error that persists would fill the disk with them."""
        if self._server is None:
            raise RuntimeError("not started")
        ended = self._server.ended
        while not (await asyncio.wait([ended], timeout=files.LOGS_EVERY))[0]:
            files.remove_old_logs(self._layout)
        return ended.result()

    async def stop(self) -> None:
        """Shut the server down and release the directory. Sessions are terminated; all commits are on disk."""
        try:
            if self._server is not None:
                await self._end(self._server)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def _end(self, server: Process) -> None:
        # Fast, then immediate (both are orderly: PostgreSQL ends its own processes). SIGKILL comes last, for a server
        # that is suspended itself, because it leaves backends that the next start has to wait for.
        for number, patience in zip(STOP_SIGNALS, (self._stop_timeout, *STOP_TIMEOUTS[1:]), strict=True):
            server.send(number)
            if await ends(server.ended, patience, "PostgreSQL", self._progress):
                return
            self._progress(f"PostgreSQL has not stopped within {patience:g} s of {number.name}.")
        raise PostgresError(f"PostgreSQL (process {server.pid}) cannot be stopped")

    async def _upgrade(self, made_by: str, account: SystemUser, install: Install, patience: StartDeadline) -> None:
        """Upgrade the cluster of an older major version. Raises PostgresError without that version's programs."""
        upgrade.demand_room(self._layout)
        both = await asyncio.to_thread(
            upgrade_installs, self._layout.home, account, (made_by, install.major), self._packages
        )
        if both is None:
            files.check_major(self._layout.data, install)
            return
        old, new = both
        # Only its own version can finish an interrupted recovery.
        connection = await self._adopt(patience) or await self._launch(account, old, patience)
        await connection.close()
        assert self._server is not None
        await self._end(self._server)
        self._server = None
        sync = self._extra.get("fsync") != "off"
        settings, say = self._extra, self._progress
        await upgrade.upgrade(self._layout, account, old=old, new=new, settings=settings, sync=sync, say=say)

    async def _adopt(self, patience: StartDeadline) -> Connection | None:
        """Take over a server running on our data, waiting while it starts or stops; None if there is none."""
        while (note := PidFile.read(self._layout.data)) is not None:
            try:
                server = Process(note.pid)
            except ProcessLookupError:
                return None  # PostgreSQL itself recognizes that this file is stale
            answer = await self._ask(note.sockets, note.port)
            if not isinstance(answer, NoConnection):
                self._server = server
                self._sockets = note.sockets
                self._keep_port(note.port)
                self._progress(f"Using the PostgreSQL that is already running (process {note.pid}).")
                return answer
            server.release()
            if answer is not NoConnection.BUSY and not is_server_on(self._layout.data, note.pid):
                # Another process has the number by now. PostgreSQL would trust the file and refuse to start.
                (self._layout.data / "postmaster.pid").unlink(missing_ok=True)
                return None
            if answer is NoConnection.STRANGER:
                raise PostgresError(
                    f"PostgreSQL (process {note.pid}) is running on {self._layout.data}, but rejects the "
                    f"password in {self._layout.superuser_password}: stop it"
                )
            if note.is_cut_off:
                raise PostgresError(
                    f"PostgreSQL (process {note.pid}) is running on {self._layout.data}, but its socket is no longer in"
                    f" {note.sockets}: if the data directory was moved meanwhile, end it with `kill -INT {note.pid}`"
                )
            await patience.pause("waiting for the PostgreSQL that is already running here")
        return None

    async def _launch(self, account: SystemUser, install: Install, patience: StartDeadline) -> Connection:
        """Start a server and wait until it answers."""
        files.prepare_run(self._layout, account)
        self._sockets = self._layout.sockets
        if self._wanted_port is not None and not files.port_is_free(self._wanted_port):
            raise PostgresError(f"port {self._wanted_port} of 127.0.0.1 is in use")
        wanted = self._wanted_port or self._last_port()
        # Named after the data's version: before an upgrade, the older version's last WAL is archived with the rest.
        name = archives.name_of(self._layout.data)
        own = {"cluster_name": name}
        if self._archive is not None:
            own |= archives.settings(archives.prepare(self._archive, name, account))
        state = "PostgreSQL is starting or recovering"
        while True:
            port = files.choose_port(wanted)
            self._keep_port(port)
            files.write_settings(self._layout, port, own | dict(self._extra))
            command: list[str | Path] = [install.binaries / "postgres", "-D", self._layout.data]
            self._server = Process.launch(command, account, log=self._layout.early_log)
            answer = await self._until_ready(self._server, port, patience, state)
            if answer is not None:
                remove_old_installs(self._layout.home, install)
                return answer
            reason = self._layout.early_log.read_text(errors="replace").strip() + files.complaints(self._layout)
            if "shared memory block" in reason:
                # Backends of a server that was killed are still finishing their statements.
                state = "waiting for the processes of the previous PostgreSQL to end"
                await patience.pause(state)
            elif "could not create any TCP/IP sockets" in reason and self._wanted_port is None:
                wanted = None  # taken between our check and PostgreSQL's
            else:
                raise PostgresError(f"PostgreSQL ended with status {self._server.ended.result()}: {reason}")

    async def _until_ready(self, server: Process, port: int, patience: StartDeadline, state: str) -> Connection | None:
        """A connection once the server accepts them, however long recovery takes; None if the server ended first."""
        while not server.ended.done():
            answer = await self._ask(self._sockets, port)
            if not isinstance(answer, NoConnection):
                return answer
            if answer is NoConnection.STRANGER:
                raise PostgresError(f"PostgreSQL rejects the password in {self._layout.superuser_password}")
            await patience.pause(state)
        return None

    async def _ask(self, sockets: Path, port: int) -> Connection | NoConnection:
        """A superuser's connection to the server on our data, or the reason why there is none."""
        try:
            connection = await asyncpg.connect(
                host=str(sockets),
                port=port,
                user="postgres",
                password=self._superuser_password(),
                database="postgres",
                ssl=False,
                timeout=5,
            )
        except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError):
            return NoConnection.STRANGER
        except asyncpg.PostgresConnectionError:
            return NoConnection.NOBODY
        except (asyncpg.PostgresError, TimeoutError):
            return NoConnection.BUSY  # "the database system is starting up", recovering, shutting down, full
        except (OSError, asyncpg.InterfaceError):
            return NoConnection.NOBODY
        try:
            shown = await connection.fetchval("SHOW data_directory", timeout=5)
            recovering = await connection.fetchval("SELECT pg_is_in_recovery()", timeout=5)
            if os.path.realpath(shown) != os.path.realpath(self._layout.data):
                silence = NoConnection.STRANGER
            elif recovering:
                silence = NoConnection.BUSY
            else:
                return connection
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            silence = NoConnection.BUSY
        await connection.close(timeout=1)
        return silence

    async def _settle(self, connection: Connection) -> None:
        """Create the database, its owner, and the application's role, which owns nothing. Repeated at each start, so a
        kill in between leaves nothing half done."""
        await connection.execute("SET log_min_error_statement = panic")  # the next statements contain passwords
        for role, kept in ((OWNER, self._layout.owner_password), (ROLE, self._layout.app_password)):
            if not await connection.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", role):
                await connection.execute(f"CREATE ROLE {role}")
            await connection.execute(f"ALTER ROLE {role} {ROLE_ATTRIBUTES} PASSWORD '{files.secret(kept)}'")
        if not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", ROLE):
            await connection.execute(f"CREATE DATABASE {ROLE} OWNER {OWNER}")
        await connection.execute(f"REVOKE ALL ON DATABASE {ROLE} FROM PUBLIC")
        await connection.execute(f"GRANT CONNECT ON DATABASE {ROLE} TO {ROLE}; GRANT {STATISTICS_ROLE} TO {ROLE}")
        if self._archive is not None:
            # The checkpointer went to sleep while the server recovered, when nothing is archived by time: unless it is
            # woken up, it sleeps for `checkpoint_timeout`.
            await connection.execute("SELECT pg_reload_conf()")

    def _superuser_password(self) -> str:
        try:
            return self._layout.superuser_password.read_text().strip()
        except FileNotFoundError:
            raise PostgresError(
                f"{self._layout.superuser_password} is missing: without it the server on {self._layout.data} cannot "
                "be used; restore it from a backup of the directory"
            ) from None

    def _last_port(self) -> int | None:
        try:
            return int(self._layout.port.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _keep_port(self, port: int) -> None:
        if port != self._last_port():
            files.write(self._layout.port, f"{port}\n", mode=0o644)
