"""`heliograph backup`: take, list and verify backups."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from heliograph.backup import restoring, store, taking
from heliograph.backup.store import Backup, BackupError, Secrets
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.network.failures import reason
from heliograph.base.process.signals import run_in_order
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.console import DataDir, Problem, connection, embedded_home, settings_of, shell
from heliograph.cli.terminal.printing import Json, group, say, show

app = group("Take, list and verify backups.")
COLUMNS = ("taken_at", "kind", "postgres", "bytes", "has_secrets", "path")
PASSPHRASE = "HELIOGRAPH_BACKUP_PASSPHRASE"  # noqa: S105
Directory = Annotated[Path, typer.Argument(help="Directory that holds the backups.")]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        show_default=False,
        help=f"File whose first line is the passphrase for the secret key. Defaults to {PASSPHRASE}.",
    ),
]


@app.command("take")
def take(
    to: Annotated[Path, typer.Option(help="Directory to put it in; a new directory is created there.")],
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="Afterwards remove all but this installation's newest N backups there.",
        ),
    ] = None,
    wal: Annotated[
        Path | None,
        typer.Option(
            show_default=False,
            help="HELIOGRAPH_WAL_ARCHIVE; with --keep: also remove what no remaining backup in --to needs from it.",
        ),
    ] = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Take a backup while everything is running: of the database of `heliograph up`, or a dump of your own.

    With a passphrase, the secret key and the credentials are included, sealed. Otherwise keep them elsewhere: without
    the secret key, suppliers' passwords and webhook secrets are lost.

    \b
    Examples:
      heliograph backup take --to /srv/backups --keep 7 --passphrase-file /etc/heliograph/passphrase
      HELIOGRAPH_BACKUP_PASSPHRASE=... heliograph backup take --to /srv/backups
    """
    if wal is not None and keep is None:
        raise typer.BadParameter("needs --keep: only what no remaining backup needs is removed", param_hint="--wal")
    if wal is not None and not wal.is_dir():
        raise typer.BadParameter(f"{wal} is not a directory: give HELIOGRAPH_WAL_ARCHIVE", param_hint="--wal")
    settings = settings_of(data_dir)
    home = embedded_home(data_dir)
    passphrase = passphrase_of(passphrase_file)
    sealed = None
    if passphrase:
        if not settings.secret_key:
            raise Problem("there is no secret key to seal: set HELIOGRAPH_SECRET_KEY, or omit the passphrase")
        kept = home.parent / "credentials.json" if home is not None else None
        sealed = Secrets(settings.secret_key, _text(kept), settings.other_secret_key)

    async def taken() -> Backup:
        async with connection(settings.database_url) as conn:
            backup = await taking.take(
                conn,
                to,
                home=home,
                owner_url=settings.owner_database_url or settings.database_url,
                sealed=sealed,
                passphrase=passphrase,
                by=shell(),
                say=say,
            )
            try:
                if keep is not None:
                    await _prune(conn, to, keep, wal)
            except BackupError as error:
                raise BackupError(f"{backup.path} was taken, but {error}") from None
        return backup

    try:
        backup = run_in_order(taken())
    except BackupError as error:
        raise Problem(str(error)) from None
    show(_shown(backup), json)
    if sealed is None:
        say("The secret key is not in the backup. Keep it elsewhere: without it, passwords and secrets are lost.")


@app.command("list")
def list_(directory: Directory, json: Json = False) -> None:
    """List the complete backups in a directory, newest first.

    \b
    Example:
      heliograph backup list /srv/backups
    """
    try:
        found = store.listed(directory, now=clock.now(), damaged=lambda text: say(f"{text}."))
        show([_shown(one) for one in found], json, COLUMNS)
    except BackupError as error:
        raise Problem(str(error)) from None


@app.command("verify")
def verify(
    path: Annotated[Path, typer.Argument(help="The backup's directory.")],
    scratch: Annotated[
        Path | None,
        typer.Option(show_default="the system's", help="Directory for temporary files, with room for the database."),
    ] = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Verify a backup: compare checksums, restore it into a scratch directory, count, and add up quotas and wallets.

    The running database is not touched, except that `doctor` then reports the backup as verified.

    \b
    Example:
      heliograph backup verify /srv/backups/heliograph-20270131T020000Z
    """
    if scratch is not None and not scratch.is_dir():
        raise typer.BadParameter(f"{scratch} is not a directory", param_hint="--scratch")
    try:
        backup = store.read(path)
        passphrase = passphrase_of(passphrase_file)
        if passphrase and backup.manifest.has_secrets:
            store.open_secrets(backup, passphrase)
        found = run_in_order(restoring.verify(backup, scratch=scratch, say=say))
    except BackupError as error:
        raise Problem(str(error)) from None
    if found.unbalanced:
        those = with_noun(found.unbalanced, "organization has", "organizations have")
        raise Problem(f"{those} quotas or wallets that do not add up")
    known = _note(UUID(backup.manifest.id), data_dir)
    show({"backup": str(path), "taken_at": backup.manifest.taken_at, **found.rows, "noted": known}, json)


async def _prune(conn: Connection, to: Path, keep: int, wal: Path | None) -> None:
    """Remove what is not to be kept, and report it. Raises BackupError."""
    now, ours = await conn.fetchval("SELECT now()"), await taking.installation(conn)
    for path in store.prune(to, keep=keep, now=now, installation=ours):
        say(f"Removed {path}.")
    damaged: list[str] = []
    found = store.listed(to, now=now, damaged=damaged.append)
    left = store.of_installation(found, ours)
    for text in damaged:
        say(f"{text}.")
    if len(found) > len(left):
        stay = ("backup of another installation stays", "backups of other installations stay")
        say(f"{with_noun(len(found) - len(left), *stay)}.")
    if wal is not None and damaged:
        say(f"Nothing was removed from {wal}: it is not known what the damaged backup needs of it.")
    elif wal is not None:
        if left and left[0].manifest.archive and not (wal / left[0].manifest.archive).is_dir():
            say(
                f"{wal} holds no WAL that continues the newest backup: is it HELIOGRAPH_WAL_ARCHIVE, and was PostgreSQL"
                " started with it?"
            )
        for path in await taking.prune_archives(conn, wal, left):
            say(f"Removed {path}, which continues no backup that is left.")


def _note(id: UUID, data_dir: Path | None) -> bool:
    """Tell the running database, if there is one, that the backup is good."""

    async def noted(url: str) -> bool:
        async with connection(url) as conn:
            return await taking.record_verified(conn, id)

    try:
        return asyncio.run(noted(settings_of(data_dir).database_url))
    except Exception as error:  # verifying elsewhere is as good
        say(f"The database was not updated: {error}")
        return False


def _text(path: Path | None) -> str:
    """The content of a file; empty: none was given. Raises Problem."""
    if path is None or not path.exists():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path} cannot be read: {reason(error)}") from None


def passphrase_of(path: Path | None) -> str:
    """The first line of a file, or the value from the environment; empty: there is none. Raises Problem."""
    if path is None:
        return os.environ.get(PASSPHRASE, "")
    try:
        # Without the byte order mark of some editors: typed, the passphrase would be another one.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Problem(f"{path} is not text in UTF-8: its first line must be the passphrase") from None
    if not lines or not lines[0].strip():
        raise Problem(f"{path} holds no passphrase: its first line is empty")
    return lines[0]


def _shown(backup: Backup) -> dict[str, object]:
    manifest = backup.manifest
    return {
        "path": str(backup.path),
        "id": manifest.id,
        "kind": manifest.kind,
        "taken_at": manifest.taken_at,
        "finished_at": manifest.finished_at,
        "bytes": manifest.bytes,
        "has_secrets": manifest.has_secrets,
        "heliograph": manifest.heliograph,
        "postgres": manifest.postgres,
        "archive": manifest.archive,
    }
