"""Real PostgreSQL for tests: a server per test process, a template that is migrated once, and clones of it. A clone is
passed from test to test, cleared of rows (`tests/clearing.py`), until one changes more than rows; then a new one gets
its files (`tests/recycling.py`).

`HELIOGRAPH_TEST_DATABASE_URL` (a superuser's) names a server to use instead of an embedded one. Clusters are stored in
memory, or else in the temporary directory, under numbered names that are reused: whatever a killed run left behind,
including a running server, is taken over and removed by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import tempfile
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from pathlib import Path

import asyncpg
import psutil

from heliograph.base.database.migrate import migrate
from heliograph.base.embedded.server import ROLE, Embedded
from tests import sessions
from tests.clearing import Clearing, Untouched
from tests.recycling import Recycling, end_sessions
from tests.sessions import LoopThread

#: Name patterns of directories for servers: those of single tests, and among them the numbered ones of test processes.
PREFIX = "heliograph-"
NUMBERED = f"{PREFIX}tests-"
#: Tests run at any time of day.
BY_NIGHT = "ALTER TABLE organizations ALTER COLUMN quiet_hours SET DEFAULT 'off'"
#: Partitions later than tomorrow's are a sixth of the files that each clone copies, and of what each connection reads
#: about a table before it reads the table. Rows of later times go to `_rest`.
LATER = """
SELECT format('DROP TABLE %I', relname) FROM pg_class
 WHERE relispartition AND relkind = 'r' AND relname ~ '_\\d{4}_\\d{2}(_\\d{2})?$'
   AND substring(relname FROM '\\d{4}_\\d{2}(?:_\\d{2})?$')
     > left(to_char((now() AT TIME ZONE 'UTC') + interval '1 day', 'YYYY_MM_DD'),
            length(substring(relname FROM '\\d{4}_\\d{2}(?:_\\d{2})?$')))
"""
#: A worker does not start with retention and with making partitions.
RETAINED = "INSERT INTO timers (name, next_at, done_until) VALUES ('forget', now() + interval '1 hour', now())"
#: The first reader of a row sets its hint bits.
SETTLED = """
VACUUM (FREEZE) pg_attribute, pg_attrdef, pg_class, pg_constraint, pg_depend, pg_index, pg_inherits, pg_proc, pg_type
"""
#: Clones that are made in advance.
READY = 1

#: Nothing here has to survive a crash, and 200 short-lived databases need neither memory nor checkpoints.
QUICK = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "128MB",
    "min_wal_size": "80MB",
    "max_wal_size": "1GB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum_naptime": "1h",
    "scram_iterations": "1",
}
#: Ten installations at once, each of which is killed and restarted while the server still has its old sessions, need
#: more than one installation has.
ROOMY = {"max_connections": "300", "max_prepared_transactions": "4"}


class Cluster:
    """A server to create databases on. `url`, `owner_url` and `superuser_url` are of its first database: for the
    application and for the role that owns the tables, which are the same if an external server is used.

    Clones are created in advance and dropped in the background, on a loop other than the tests'.
    """

    def __init__(
        self, url: str, owner_url: str, superuser_url: str, loop: LoopThread, *, is_ours: bool = False
    ) -> None:
        """`is_ours`: an embedded server, whose files are accessible."""
        self.url, self.owner_url, self.superuser_url = url, owner_url, superuser_url
        self._is_ours = is_ours
        self._owner = urllib.parse.urlsplit(owner_url).username or ROLE
        self._loop = loop
        self._prefix = f"test_{uuid.uuid4().hex}"
        self._numbers = itertools.count(1)
        self._template = f"{self._prefix}_0"
        self._ready: asyncio.Queue[str | Exception] = asyncio.Queue(READY)
        self._lock = asyncio.Lock()
        self._dropping: set[Future[None]] = set()
        #: Used clones that are as good as new, the most recently used last.
        self._clear: list[str] = []
        self._clearing: dict[str, Clearing] = {}
        self._returning: set[asyncio.Task[None]] = set()
        self._recycling: Recycling | None = None
        self._later = ""
        self._making_later = asyncio.Lock()

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """With a migrated database to clone from."""
        self._superuser = self._loop.run(self._connect())
        try:
            self._loop.run(self._create(self._template, "template1"))
            url = self.url_of(self._template)
            self._loop.run(migrate(self.as_owner(url), application=url))
            self._loop.run(self._simplify(self.as_owner(url)))
            if self._is_ours:
                self._loop.run(self._recycle())
            self._untouched = self._loop.run(Untouched.of(self.as_administrator(url)))
            ahead = self._loop.submit(self._make_ahead())
            try:
                yield
            finally:
                ahead.cancel()
        finally:
            self._loop.run(self._end())

    @contextlib.asynccontextmanager
    async def database(self, *, template: bool = True, fresh: bool = False, later: bool = False) -> AsyncIterator[str]:
        """The application's URL of a clone of the template (`fresh`: an unused one; `later`: one with the partitions of
        later times), or the owner's URL of an empty database. Afterwards it is cleared for reuse, or dropped."""
        making = self._make_later() if later else self._take(fresh=fresh) if template else self._make("template1")
        name = await asyncio.wrap_future(self._loop.submit(making))
        try:
            yield self.url_of(name) if template else self.as_owner(self.url_of(name))
        finally:
            dropping = self._loop.submit(self._return(name) if template and not later else self._forget(name))
            self._dropping.add(dropping)
            dropping.add_done_callback(self._dropped)

    def url_of(self, database: str) -> str:
        """The application's URL of a database."""
        return urllib.parse.urlsplit(self.url)._replace(path=f"/{database}").geturl()

    def as_owner(self, url: str) -> str:
        """The owner's URL of the same database."""
        return urllib.parse.urlsplit(self.owner_url)._replace(path=urllib.parse.urlsplit(url).path).geturl()

    def as_administrator(self, url: str) -> str:
        """The superuser's URL of the same database."""
        return urllib.parse.urlsplit(self.superuser_url)._replace(path=urllib.parse.urlsplit(url).path).geturl()

    async def is_clear(self, url: str) -> bool:
        """Whether a database that a test has returned will be reused."""
        return await asyncio.wrap_future(self._loop.submit(self._is_clear(urllib.parse.urlsplit(url).path[1:])))

    async def _is_clear(self, name: str) -> bool:
        while self._returning:
            await asyncio.wait(self._returning)
        return name in self._clear

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(self.superuser_url)

    async def _simplify(self, url: str) -> None:
        conn = await asyncpg.connect(url)
        try:
            await conn.execute(BY_NIGHT)
            await conn.execute(RETAINED)
            for row in await conn.fetch(LATER):
                await conn.execute(row[0])
        finally:
            await conn.close()

    async def _recycle(self) -> None:
        """Keep the template's files for clones, without the free space and visibility maps: they are a tenth of the
        files, and PostgreSQL recreates them when it needs them."""
        for statement in (SETTLED, "SELECT 1"):  # the first connection writes the cache file that later ones read
            await execute(self.as_administrator(self.url_of(self._template)), statement)
        await self._superuser.execute("CHECKPOINT")
        data = Path(await self._superuser.fetchval("SELECT current_setting('data_directory')"))
        oid = await self._superuser.fetchval("SELECT oid FROM pg_database WHERE datname = $1", self._template)
        for path in (data / "base" / str(oid)).iterdir():
            if path.name.endswith(("_fsm", "_vm")):
                path.unlink()
        self._recycling = Recycling(self._superuser, data, data.with_name("clones"))
        await self._recycling.prepare(f"{self._prefix}_model", self._template)

    async def _make_ahead(self) -> None:
        while True:
            try:
                made: str | Exception = await self._make(self._template)
            except Exception as error:
                made = error
            await self._ready.put(made)

    async def _return(self, name: str) -> None:
        """Make a clone ready for the next test, or drop it."""
        returning = asyncio.create_task(self._clear_or_drop(name))
        self._returning.add(returning)
        try:
            await returning
        finally:
            self._returning.discard(returning)

    async def _clear_or_drop(self, name: str) -> None:
        try:
            is_clear = await self._is_cleared(name)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            is_clear = False  # its test has damaged it or its sessions
        if is_clear:
            self._clear.append(name)
            return
        if name in self._clearing:
            self._clearing.pop(name).end()
        sessions.forget(name)
        await self._drop(name, clone=True)

    async def _is_cleared(self, name: str) -> bool:
        clearing = self._clearing.get(name)
        if clearing is None:
            clearing = self._clearing[name] = await Clearing.of(
                self.as_administrator(self.url_of(name)), self._untouched
            )
        async with self._lock:
            await end_sessions(self._superuser, name, but=[clearing.process, *sessions.processes_of(name)])
        return await clearing.clear(RETAINED)

    async def _take(self, *, fresh: bool) -> str:
        while not fresh and not self._clear and self._returning:
            await asyncio.wait(self._returning, return_when=asyncio.FIRST_COMPLETED)
        if self._clear and not fresh:
            return self._clear.pop()
        found = await self._ready.get()
        if isinstance(found, Exception):
            raise found
        return found

    async def _make(self, template: str) -> str:
        name = f"{self._prefix}_{next(self._numbers)}"
        if self._recycling is not None and template == self._template:
            async with self._lock:
                await self._recycling.create(name, self._owner)
        else:
            await self._create(name, template)
        return name

    async def _make_later(self) -> str:
        """From a separate template, created on first use: creating the partitions takes half a second."""
        async with self._making_later:
            if not self._later:
                made = await self._make(self._template)
                url = self.url_of(made)
                await migrate(self.as_owner(url), application=url)
                async with self._lock:
                    await end_sessions(self._superuser, made)
                self._later = made
        return await self._make(self._later)

    async def _create(self, name: str, template: str) -> None:
        # Copying files: the default strategy, which goes through the WAL, is three times the work.
        options = f'TEMPLATE {template} STRATEGY FILE_COPY OWNER "{self._owner}"'
        async with self._lock:
            await self._superuser.execute(f"CREATE DATABASE {name} {options}")

    async def _forget(self, name: str) -> None:
        """Drop a database that is not a clone of the template."""
        sessions.forget(name)
        await self._drop(name, clone=False)

    async def _drop(self, name: str, *, clone: bool) -> None:
        async with self._lock:
            if self._recycling is not None and clone:
                await self._recycling.drop(name)
            else:
                # On a busy machine, sessions take longer to end than a forced drop waits.
                with contextlib.suppress(asyncpg.InvalidCatalogNameError):
                    await end_sessions(self._superuser, name)
                await self._superuser.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _dropped(self, dropping: Future[None]) -> None:
        """Keep failures until the end."""
        if dropping.exception() is None:
            self._dropping.discard(dropping)

    async def _end(self) -> None:
        """Drop whatever is left. Raises ExceptionGroup if a database could not be dropped after its test."""
        ended = await asyncio.gather(*map(asyncio.wrap_future, self._dropping), return_exceptions=True)
        failures = [error for error in ended if isinstance(error, Exception)]
        self._superuser.terminate()  # it may have been creating one
        conn = await self._connect()
        try:
            for row in await conn.fetch("SELECT datname FROM pg_database WHERE starts_with(datname, $1)", self._prefix):
                try:
                    await conn.execute(f"DROP DATABASE IF EXISTS {row[0]} WITH (FORCE)")
                except asyncpg.PostgresError as error:
                    failures.append(error)
        finally:
            await conn.close()
        if failures:
            raise ExceptionGroup("databases of tests could not be dropped", failures)


async def execute(url: str, statement: str, *values: object) -> None:
    """Run a statement on a new connection."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement, *values)
    finally:
        await connection.close()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """The server named by `HELIOGRAPH_TEST_DATABASE_URL`, or an embedded one, with the template in place."""
    given = os.environ.get("HELIOGRAPH_TEST_DATABASE_URL")
    with contextlib.ExitStack() as stack:
        loop = LoopThread()
        stack.callback(loop.end)
        if given:
            found = Cluster(given, given, given, loop)
        else:
            server = stack.enter_context(_embedded(loop))
            found = Cluster(server.url, server.owner_url, server.superuser_url, loop, is_ours=True)
        stack.enter_context(found.prepared())
        yield found


@contextlib.contextmanager
def public_directory() -> Iterator[Path]:
    """A temporary directory that every account may pass through, so that root's PostgreSQL can live in it.

    No server outlives it: neither if a test ends before it stops its servers, nor, once the next run starts, if the
    test process was killed. A held lock beside the directory means that its owner is alive.
    """
    remove_remains()
    while True:
        directory = _quick_place() / f"{PREFIX}{uuid.uuid4().hex[:8]}"
        lock = os.open(f"{directory}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _is_locked(lock) or os.fstat(lock).st_nlink == 0:  # it was taken for a remnant before we locked it
                continue
            directory.mkdir(0o711)
            try:
                directory.chmod(0o711)  # whatever the umask
                yield directory
            finally:
                end_servers(directory)
                shutil.rmtree(directory, ignore_errors=True)
                os.unlink(f"{directory}.lock")
            return
        finally:
            os.close(lock)


def remove_remains() -> None:
    """End the servers that killed test processes have left in public directories, and remove the directories."""
    for path in _quick_place().glob(f"{PREFIX}*.lock"):
        directory = path.with_suffix("")
        if directory.name.startswith(NUMBERED):  # these are taken over
            continue
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _is_locked(lock):
                    end_servers(directory)
                    shutil.rmtree(directory, ignore_errors=True)
                    path.unlink()
            finally:
                os.close(lock)


def _is_locked(lock: int) -> bool:
    """Whether we have locked it now."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def end_servers(directory: Path) -> None:
    """End all servers with a data directory below one that is about to be removed, including suspended ones."""
    found = [psutil.Process(pid) for pid in processes("postgres", directory) if psutil.pid_exists(pid)]
    for number in (signal.SIGQUIT, signal.SIGKILL):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
                process.send_signal(signal.SIGCONT)
        _, found = psutil.wait_procs(found, timeout=10)


def processes(program: str, directory: Path) -> list[int]:
    """Live processes that run `program` on something below `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_bytes()
                inside = os.fsencode(directory) + b"/" in arguments
                if os.path.basename(arguments.split(b"\0")[0]) == program.encode() and inside:
                    found.append(int(entry.name))
    return found


@contextlib.contextmanager
def _embedded(loop: LoopThread) -> Iterator[Embedded]:
    with _numbered_directory() as home:
        if home.exists():
            remains = Embedded(home, on_progress=_ignore, extra_settings=QUICK | ROOMY)
            with contextlib.suppress(Exception):  # whatever it is, it is about to be removed
                loop.run(remains.start())
                loop.run(remains.stop())
            shutil.rmtree(home)
        server = Embedded(home, on_progress=_ignore, extra_settings=QUICK | ROOMY)
        loop.run(server.start())
        try:
            yield server
        finally:
            loop.run(server.stop())
            shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def _numbered_directory() -> Iterator[Path]:
    """The first directory that no other test process holds."""
    base = _quick_place() / f"{NUMBERED}{os.geteuid()}"
    for number in range(1000):
        lock = os.open(f"{base}-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        try:
            yield Path(f"{base}-{number}")
        finally:
            os.close(lock)
        return
    raise RuntimeError("a thousand test runs at once?")


def _quick_place() -> Path:
    """Memory if there is plenty: a clone takes 40 ms there, and up to 400 ms on a busy disk."""
    memory = Path("/dev/shm")  # noqa: S108
    if memory.is_dir() and os.access(memory, os.W_OK):
        found = os.statvfs(memory)
        if found.f_bavail * found.f_frsize >= 4 * 2**30 and not found.f_flag & os.ST_NOEXEC:
            return memory
    return Path(tempfile.gettempdir())


def _ignore(line: str) -> None:
    """Discards the progress messages of a test's server."""
