"""Copies of the embedded cluster: taken while it runs, and started elsewhere, with or without archived WAL.

The rule nobody may break: a copy is brought up under another name, next to the cluster's final place, and is moved
there only when it has recovered and the caller's work on it has committed. A kill before that leaves the place empty,
and the next start removes the remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import tarfile
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import asyncpg

from heliograph.base.database.pool import Connection
from heliograph.base.embedded import archive as archives
from heliograph.base.embedded import files
from heliograph.base.embedded.files import Layout
from heliograph.base.embedded.install import (
    ENVIRONMENT,
    Install,
    PostgresError,
    SystemUser,
    account_for,
    install_for,
    programs,
    upgrade_installs,
)
from heliograph.base.embedded.process import PidFile, Process
from heliograph.base.embedded.waiting import locked

#: Files written by `pg_basebackup`; the manifest has the checksum of every file.
BASE, WAL, MANIFEST = "base.tar.gz", "pg_wal.tar.gz", "backup_manifest"
#: Seconds without progress after which a recovery is abandoned.
PATIENCE = 600.0
#: Seconds that whoever uses the directory may take to release it.
LOCK_PATIENCE = 5.0
#: PostgreSQL's messages about a point in time that it did not reach, and about the last transaction replayed.
TOO_LATE = "recovery ended before configured recovery target was reached"
LAST = "last completed transaction was at log time "
#: How lines of output mark an error: those of the programs, and those of the server.
ERROR = re.compile(r"\b(error|fatal|ERROR|FATAL|PANIC): ")


class RecoveryError(PostgresError):
    """The copy does not start; the message quotes PostgreSQL."""


class ArchiveEnds(RecoveryError):
    """The archived WAL ends before the requested point in time; the message is the time of the last transaction, or
    empty if there is none."""


async def run(
    arguments: Sequence[str | Path],
    *,
    password: str = "",
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.DEVNULL,
) -> None:
    """Run one of PostgreSQL's client programs. Raises PostgresError with the first error in its output, or else the
    last line."""
    program, *rest = map(str, arguments)
    # Not a pipe: it would be open, and waited for, for as long as any process of the program's.
    told = os.memfd_create("stderr")
    try:
        # Ctrl-C at the terminal reaches it only through us: of a child that ended before us, asyncio says that it does
        # not know its process id.
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                programs() / program,
                *rest,
                stdin=stdin,
                stdout=stdout,
                stderr=told,
                start_new_session=True,
                env=ENVIRONMENT | ({"PGPASSWORD": password} if password else {}),
            )
        )
        try:
            # Cancelled while it starts, asyncio would end its first process only.
            child = await asyncio.shield(starting)
            status = await child.wait()
        except asyncio.CancelledError:
            child = await starting
            _end_session(child.pid)
            await child.wait()
            raise
        if status < 0:
            _end_session(child.pid)
        text = os.pread(told, os.fstat(told).st_size, 0).decode(errors="replace")
    finally:
        os.close(told)
    if status:
        said = text.strip().splitlines() or [f"status {status}"]
        # Lines after an error are its consequences, such as the removal of files written before the disk was full.
        first = next((line for line in said if ERROR.search(line)), said[-1])
        raise PostgresError(f"{program}: {first.removeprefix(f'{program}: ')}")


def _end_session(leader: int) -> None:
    """End a program with all its processes: the one that receives WAL for `pg_basebackup` does not notice that the
    first has ended, and would write for ever."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGTERM)


async def copy(home: Path, place: Path, *, label: str) -> None:
    """Copy the running cluster of `home` to the new directory `place`, with the WAL that makes it consistent.

    Messages continue to be accepted meanwhile. Raises PostgresError.
    """
    layout = Layout(files.absolute(home))
    try:
        password, port = layout.superuser_password.read_text().strip(), layout.port.read_text().strip()
    except OSError as error:
        raise PostgresError(f"there is no database in {home}: {error.strerror}") from None
    # Where the server put its socket: for a long path, that follows its own TMPDIR.
    note = PidFile.read(layout.data)
    sockets = layout.sockets if note is None else note.sockets
    await run(
        [
            "pg_basebackup",
            # Not as a connection string, in which a path with a space would end at the space.
            f"--host={sockets}",
            f"--port={port}",
            "--username=postgres",
            f"--pgdata={place}",
            "--format=tar",
            "--compress=client-gzip:3",
            "--wal-method=stream",
            "--checkpoint=fast",
            "--manifest-checksums=SHA256",
            f"--label={label}",
            "--no-password",
        ],
        password=password,
    )


async def prune_archive(directory: Path, oldest: str) -> None:
    """Remove archived segments before `oldest`, the first one that a kept copy needs, and the history files of copies
    that began before it. Raises PostgresError."""
    await run(["pg_archivecleanup", "--clean-backup-history", directory, oldest])


@contextlib.asynccontextmanager
async def started(
    home: Path,
    source: Path,
    *,
    archive: Path | None = None,
    until: datetime | None = None,
    say: Callable[[str], None],
) -> AsyncIterator[tuple[Connection, Callable[[], Awaitable[None]]]]:
    """Start a copy below `home`, which holds no cluster yet, out of reach of everything else.

    Yields a superuser's connection to the application's database, and a function that stops the server and moves the
    cluster to its final place. If it is not called, everything is removed at the end. `archive`: also replay the WAL
    that the copied cluster archived there, to its end or to `until`. Raises PostgresError.
    """
    layout = Layout(files.absolute(home))
    files.prepare_home(layout)
    _demand_empty(layout)
    # A start would remove the unfinished copy and create an empty database in its final place.
    lock = await locked(layout.home, patience=LOCK_PATIENCE)
    try:
        async with _started(layout, source, archive, until, say) as found:
            yield found
    finally:
        os.close(lock)


@contextlib.asynccontextmanager
async def _started(
    layout: Layout, source: Path, archive: Path | None, until: datetime | None, say: Callable[[str], None]
) -> AsyncIterator[tuple[Connection, Callable[[], Awaitable[None]]]]:
    _demand_empty(layout)
    files.clean_up(layout)
    account = account_for(layout.home, layout.data)
    if archive is not None:
        await asyncio.to_thread(archives.demand_readable, archive, account)
    install = await asyncio.to_thread(install_for, layout.home, account)
    place = layout.home / f"data.new-{secrets.token_hex(4)}"
    sockets = Path(tempfile.mkdtemp(prefix="heliograph-", dir=files.place_for_sockets()))
    server: Process | None = None
    try:
        await _extracted(source, place, account)
        install = await asyncio.to_thread(_programs_for, layout, account, install, place)
        account.own(sockets)
        server = _launch(layout, install, account, place, sockets, archive, until)
        conn = await _recovered(server, layout, sockets, say)
        stopped = False

        async def keep() -> None:
            nonlocal stopped
            files.write(layout.superuser_password, "", mode=0o600, account=account)
            layout.superuser_password.unlink()
            await conn.execute(f"ALTER ROLE postgres PASSWORD '{files.secret(layout.superuser_password, account)}'")
            await conn.execute("CHECKPOINT")
            await conn.close()
            await _stop(server)
            stopped = True
            archives.rename_cluster(place, account)
            place.rename(layout.data)
            os.sync()

        try:
            yield conn, keep
        finally:
            if not stopped:
                await conn.close(timeout=2)
    finally:
        if server is not None and not server.ended.done():
            await _stop(server)
        shutil.rmtree(sockets, ignore_errors=True)
        if place.exists():
            await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)


def _demand_empty(layout: Layout) -> None:
    if files.has_cluster(layout):
        raise RecoveryError(f"{layout.data} already holds a database: restore into an empty place")


def _programs_for(layout: Layout, account: SystemUser, install: Install, place: Path) -> Install:
    """The programs of the version that made a copy: no others replay its WAL. The next start of the restored cluster
    upgrades it to this version (`upgrade.py`). Raises PostgresError if the package lacks such programs."""
    made_by = files.major_of(place)
    if made_by == install.major:
        return install
    both = upgrade_installs(layout.home, account, (made_by, install.major))
    if both is None:
        files.check_major(place, install)
        return install
    return both[0]


async def _extracted(source: Path, place: Path, account: SystemUser) -> None:
    """Unpack a copy. Once this has ended, even by cancellation, nothing writes to `place`: it can be removed."""
    cancelled = threading.Event()
    extracting = asyncio.create_task(asyncio.to_thread(_extract, source, place, account, cancelled))
    try:
        await asyncio.shield(extracting)
    except asyncio.CancelledError:
        cancelled.set()
        await asyncio.gather(extracting, return_exceptions=True)
        raise


def _extract(source: Path, place: Path, account: SystemUser, cancelled: threading.Event) -> None:
    """Unpack a copy, files and directories only, none of them outside `place`, and verify each file's checksum as
    given by the server. Raises RecoveryError."""
    manifest = json.loads((source / MANIFEST).read_bytes())
    expected = {one["Path"]: one["Checksum"] for one in manifest["Files"]}
    place.mkdir(mode=0o700)
    account.own(place)
    root = place.resolve()  # the way to it may lead through symbolic links
    for name, below in ((BASE, root), (WAL, root / "pg_wal")):
        with tarfile.open(source / name, "r:gz") as archive:
            for member in archive:
                target = (below / member.name).resolve()
                if not target.is_relative_to(root) or not (member.isfile() or member.isdir()):
                    raise RecoveryError(
                        f"{source / name} holds {member.name}, which does not belong in a cluster of ours"
                    )
                if member.isdir():
                    target.mkdir(mode=0o700, exist_ok=True)
                else:
                    digest = _unpack(archive, member, target, cancelled)
                    if name == BASE and expected.pop(member.name, digest) != digest:
                        raise RecoveryError(f"{member.name} in {source / name} is damaged")
                account.own(target)
    if expected:
        raise RecoveryError(f"{source / BASE} lacks {len(expected)} files, such as {next(iter(expected))}")


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, cancelled: threading.Event) -> str:
    """Write a file; returns its SHA-256, hex. Raises RecoveryError once it is cancelled."""
    content = archive.extractfile(member)
    assert content is not None
    digest = hashlib.sha256()
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        while chunk := content.read(1 << 20):
            if cancelled.is_set():
                raise RecoveryError("it was interrupted")
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _launch(
    layout: Layout,
    install: Install,
    account: SystemUser,
    place: Path,
    sockets: Path,
    archive: Path | None,
    until: datetime | None,
) -> Process:
    """Start the copy on a private socket, where the superuser needs no password: the old one was left behind. It ends
    with this process: nobody would adopt it."""
    files.write_settings(layout, files.choose_port(None), {})
    access = sockets / "pg_hba.conf"
    access.write_text("local all postgres trust\n")
    access.chmod(0o644)
    options = {
        "hba_file": str(access),
        "listen_addresses": "",
        "unix_socket_directories": str(sockets),
        "logging_collector": "off",
        "archive_mode": "off",
    }
    if archive is not None:
        options["restore_command"] = archives.restore_command(archive)
        options["recovery_target_action"] = "promote"
        if until is not None:
            options["recovery_target_time"] = until.astimezone(UTC).isoformat(sep=" ")
        signal_file = place / "recovery.signal"
        signal_file.touch(mode=0o600)
        account.own(signal_file)
    command: list[str | Path] = [install.binaries / "postgres", "-D", place]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]
    return Process.launch(command, account, log=layout.early_log, mortal=True)


async def _recovered(server: Process, layout: Layout, sockets: Path, say: Callable[[str], None]) -> Connection:
    """A connection to the application's database, once everything has been replayed."""
    port = next(line.split("'")[1] for line in layout.settings.read_text().splitlines() if line.startswith("port = "))
    loop = asyncio.get_running_loop()
    moved, replayed = loop.time(), ""
    while True:
        if server.ended.done():
            lines = layout.early_log.read_text(errors="replace").splitlines()
            words = ("FATAL", "PANIC", "cp: ")
            said = [line.split(":  ", 1)[-1] for line in lines if any(one in line for one in words)] or lines[-1:]
            if any(TOO_LATE in line for line in said):
                raise ArchiveEnds(next((line.split(LAST)[1] for line in lines if LAST in line), ""))
            raise RecoveryError(f"the copy does not start: {'; '.join(said) or 'PostgreSQL exited without a message'}")
        try:
            conn = await asyncpg.connect(
                host=str(sockets), port=int(port), user="postgres", database="heliograph", ssl=False, timeout=5
            )
            if not await conn.fetchval("SELECT pg_is_in_recovery()"):
                return conn
            at = str(await conn.fetchval("SELECT pg_last_wal_replay_lsn()::text"))
            await conn.close()
            if at != replayed:
                if replayed:
                    say(f"Replaying the archive, at {at}.")
                moved, replayed = loop.time(), at
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pass
        if loop.time() - moved > PATIENCE:
            raise RecoveryError(f"the copy made no progress for {PATIENCE:g} s")
        await asyncio.sleep(0.2)


async def _stop(server: Process) -> None:
    for number, patience in ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0)):
        server.send(number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(server.ended), patience)
            return
