"""Upgrades a cluster of an older major version to this one with pg_upgrade; the package contains both versions.

    start and stop the old server (so that it has recovered) → a new cluster next to it → pg_upgrade copies →
    the copy gets a final name → the old cluster is moved aside → the copy takes its place

The rule nobody may break: the old cluster is only read until the copy is complete and synced. A kill at any moment
leaves one of the two under the name `data`, or `finish` gives it that name; the old one stays as `data-<major>` until
somebody removes it. See https://www.postgresql.org/docs/18/pgupgrade.html
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from heliograph.base.embedded import files
from heliograph.base.embedded.files import Layout
from heliograph.base.embedded.install import ENVIRONMENT, Install, PostgresError, SystemUser
from heliograph.base.embedded.process import PidFile, Process, is_server_on
from heliograph.base.process import private_files
from heliograph.base.process.crash import crash_point

#: Bytes that a copy needs beyond the old cluster's own.
BESIDE = 512 * 2**20


async def finish(layout: Layout) -> None:
    """Complete or undo a killed upgrade. Only under the lock, before anything looks for a cluster or cleans up."""
    for place in layout.home.glob("data.new-*"):
        # A server that pg_upgrade started on the copy; one on the old cluster is adopted and stopped.
        note = PidFile.read(place)
        if note is not None and is_server_on(place, note.pid):
            with contextlib.suppress(ProcessLookupError):
                orphan = Process(note.pid)
                orphan.send(signal.SIGKILL)
                await orphan.ended
    ready = _ready(layout)
    if not ready.exists():
        return
    if layout.data.exists():
        # The clusters were not swapped, and the one in `data` may have changed since.
        shutil.rmtree(ready)
    else:
        ready.rename(layout.data)
    private_files.sync_directory(layout.home)


def demand_room(layout: Layout) -> None:
    """Raise PostgresError if the disk has no room for a copy."""
    needed = BESIDE + sum(path.lstat().st_size for path in layout.data.rglob("*") if not path.is_dir())
    free = shutil.disk_usage(layout.home).free
    if free < needed:
        raise PostgresError(
            f"upgrading {layout.data} to this version of PostgreSQL copies it, which needs {needed / 1e9:.1f} GB, "
            f"but only {free / 1e9:.1f} GB are free: free some space"
        )


async def upgrade(
    layout: Layout,
    account: SystemUser,
    *,
    old: Install,
    new: Install,
    settings: Mapping[str, str],
    sync: bool,
    say: Callable[[str], None],
) -> None:
    """Upgrade a cluster, whose server was shut down cleanly, to `new`. `settings`: the caller's additions to ours.
    Raises PostgresError; the old cluster is then unchanged."""
    say(f"Upgrading the database from PostgreSQL {old.major} to {new.major}; the old one is kept unchanged.")
    place = await files.initdb(layout, account, new, sync=sync, options=_as_before(old, new, layout.data, account))
    work = layout.home / f"upgrade.new-{secrets.token_hex(4)}"
    try:
        work.mkdir(mode=0o700)
        account.own(work)
        passwords = work / "passwords"
        password = layout.superuser_password.read_text().strip()
        files.write(passwords, f"*:*:*:postgres:{password}\n", mode=0o600, account=account)
        # Neither of the two servers archives: their WAL belongs to no backup.
        files.write_settings(layout, files.choose_port(None), {**settings, "archive_mode": "off"})
        files.prepare_run(layout, account)
        log = work / "pg_upgrade.log"
        command: list[str | Path] = [new.binaries / "pg_upgrade", "--username=postgres"]
        command += ["--old-bindir", old.binaries, "--new-bindir", new.binaries]
        command += ["--old-datadir", layout.data, "--new-datadir", place, "--socketdir", layout.sockets]
        command += [] if sync else ["--no-sync"]
        running = Process.launch(command, account, log=log, environment={"PGPASSFILE": str(passwords)}, mortal=True)
        try:
            status = await asyncio.shield(running.ended)
        except asyncio.CancelledError:
            running.send(signal.SIGTERM)
            await running.ended
            raise
        if status != 0:
            raise PostgresError(
                f"PostgreSQL {old.major} could not be upgraded to {new.major}, and is unchanged: {_said(log, place)}"
            )
        crash_point("upgrade.copied")
        _exchange(layout, place, old.major)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
    say(
        f"The old database is in {_aside(layout, old.major)}. Take a backup, because earlier ones cannot be restored"
        " beyond this moment; then remove it."
    )


def _exchange(layout: Layout, place: Path, major: str) -> None:
    ready, aside = _ready(layout), _aside(layout, major)
    if aside.exists():
        raise PostgresError(f"{aside} already exists: remove it, or move it away")
    place.rename(ready)
    private_files.sync_directory(layout.home)
    crash_point("upgrade.ready")
    layout.data.rename(aside)
    crash_point("upgrade.aside")
    ready.rename(layout.data)
    private_files.sync_directory(layout.home)


def _ready(layout: Layout) -> Path:
    return layout.home / "data-upgraded"


def _aside(layout: Layout, major: str) -> Path:
    return layout.home / f"data-{major}"


def _as_before(old: Install, new: Install, data: Path, account: SystemUser) -> list[str]:
    """initdb options that must match the old cluster: later versions have other defaults."""
    said = subprocess.run(
        [old.binaries / "pg_controldata", data],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env=ENVIRONMENT,
        **account.spawn(),
    ).stdout
    found = re.search(r"^Data page checksum version:\s+(\d+)", said, re.MULTILINE)
    checked = found is not None and found[1] != "0"
    # 18 is the first version to enable them by default, and to accept the second option.
    if checked:
        return ["--data-checksums"]
    return ["--no-data-checksums"] if int(new.major) >= 18 else []


def _said(log: Path, place: Path) -> str:
    """pg_upgrade's errors: the last lines of its output, and errors in the logs that it kept."""
    lines = log.read_text(errors="replace").splitlines()[-8:]
    for kept in sorted((place / "pg_upgrade_output.d").rglob("*")):
        if kept.is_file() and kept.suffix in (".txt", ".log"):
            text = kept.read_text(errors="replace").splitlines()
            lines += [line for line in text if re.search("FATAL|ERROR|PANIC|could not", line)][-3:]
    return " | ".join(line.strip() for line in lines if line.strip())
