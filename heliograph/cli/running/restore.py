"""`heliograph restore`: restores a backup into an empty place."""

from __future__ import annotations

import os
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import asyncpg
import typer

from heliograph.backup import restoring, store
from heliograph.backup.restoring import Restored
from heliograph.backup.store import BackupError, Secrets
from heliograph.base.database import migrate
from heliograph.base.database.roles import RoleMissing, owner_needed
from heliograph.base.embedded import files
from heliograph.base.embedded.server import default_data_dir
from heliograph.base.process import private_files
from heliograph.base.process.settings import from_environment
from heliograph.base.process.signals import run_in_order
from heliograph.base.sentences import with_noun
from heliograph.cli.running.backup import PassphraseFile, passphrase_of
from heliograph.cli.terminal.console import WRONG, Problem, moment, no_database, shell
from heliograph.cli.terminal.printing import Json, say, show
from heliograph.up import secret_keys


def command(
    backup: Annotated[Path, typer.Argument(help="The backup's directory.")],
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Data directory for `heliograph up`, without a database yet.",
            show_default="/var/lib/heliograph, or in the home directory",
        ),
    ] = None,
    wal: Annotated[
        Path | None, typer.Option(show_default=False, help="HELIOGRAPH_WAL_ARCHIVE, to restore what came later too.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(show_default=False, help="With --wal: restore up to this time, such as 2027-01-31T09:30:00Z."),
    ] = None,
    pause_suppliers: Annotated[
        bool,
        typer.Option(
            "--pause-suppliers",
            help="Also pause all suppliers: for a restore beside the installation that the backup was taken from.",
        ),
    ] = False,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Restore a backup into an empty place. All outgoing work is held until `heliograph hold release`.

    A backup of `heliograph up` is restored into --data-dir, and belongs to the account that this directory belongs to
    if root restores it; a dump is restored into the database of HELIOGRAPH_DATABASE_URL. What
    was sent after the backup was taken would otherwise be sent again: look with `heliograph queue list`, withdraw what
    is too old, and release the rest.

    Workers open sessions with suppliers even while work is held. If the installation that the backup was taken from is
    still running, suppliers may hand them its receipts, and messages from handsets: give --pause-suppliers.

    \b
    Examples:
      heliograph restore /srv/backups/heliograph-20270131T020000Z --data-dir /var/lib/heliograph
      heliograph restore BACKUP --wal /srv/wal --until 2027-01-31T09:30:00Z --passphrase-file /etc/heliograph/passphrase
      HELIOGRAPH_DATABASE_URL=postgresql://... heliograph restore /srv/backups/heliograph-20270131T020000Z
    """
    at = None if until is None else moment(until, "--until")
    try:
        found = store.read(backup)
        passphrase = passphrase_of(passphrase_file)
        secrets = store.open_secrets(found, passphrase) if passphrase and found.manifest.has_secrets else None
        if found.manifest.kind == "cluster":
            place = files.absolute(data_dir or default_data_dir())
            _demand_room(place, secrets)
            restored = run_in_order(
                restoring.into_directory(
                    *(found, place / "postgres"),
                    archive=wal,
                    until=at,
                    by=shell(),
                    say=say,
                    # A database without its key is worth little; a key without its database does no harm.
                    before=partial(_keep, place, secrets),
                    pause=pause_suppliers,
                    secrets=secrets,
                )
            )
            private_files.give(place, like=place)
        else:
            for option, given in (("--wal", wal), ("--until", until), ("--data-dir", data_dir)):
                if given is not None:
                    raise Problem(f"{option} goes with a backup of `heliograph up`, and {backup} is a dump", WRONG)
            restored = run_in_order(_into_database(found, pause=pause_suppliers, secrets=secrets))
    except BackupError as error:
        raise Problem(str(error)) from None
    if restored.unbalanced:
        those = with_noun(restored.unbalanced, "organization has", "organizations have")
        say(f"{those} quotas or wallets that do not add up.")
    reached: dict[str, object] = {}
    if wal is not None:
        reached = {"restored_until": restored.until or found.manifest.finished_at, "missing_wal": restored.unreplayed}
    show({"taken_at": found.manifest.taken_at, **reached, **restored.rows, "mails_dropped": restored.mails}, json)
    if restored.unreplayed is not None:
        say(
            f"WAL segment {restored.unreplayed} is missing in the archive, or damaged, although there are later ones:"
            " nothing that was committed after this moment is restored. If it can be found, put it back and restore"
            " again."
        )
    elif wal is not None and restored.until is None:
        say("The archive holds nothing that came after the backup.")
    if secrets is None:
        say("The secret key was not restored. Set HELIOGRAPH_SECRET_KEY to the one used before, or put the file back.")
    elif found.manifest.kind == "dump":
        say("Set HELIOGRAPH_SECRET_KEY to the one used before; the backup holds it for a data directory only.")
    if restored.needs_other_key:
        where = "in HELIOGRAPH_SECRET_KEY"
        if found.manifest.kind == "cluster":
            where = f"in {place / secret_keys.FILE}"
        say(
            "The secret key in the backup does not open what is encrypted at the restored moment: it was changed in"
            f" between. Put the one of that moment, which the first backup after the change contains, {where}: without"
            " it, no supplier's password and no token can be decrypted, and `heliograph up` refuses to start."
        )
    # Without it, these commands would change another installation, such as the one that the backup is from.
    there = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    if pause_suppliers:
        say(f"All suppliers are paused, until `heliograph supplier resume NAME{there}`.")
    else:
        say(
            "Workers will open sessions with suppliers. If the installation that the backup was taken from is still"
            " running, restore it with --pause-suppliers instead: its receipts could arrive here."
        )
    started = f"Once `heliograph up{there}` runs, inspect" if found.manifest.kind == "cluster" else "Inspect"
    say(
        f"All outgoing work is held. {started} it with `heliograph queue list{there}`;"
        f" then `heliograph hold release --all{there}`."
    )


async def _into_database(found: store.Backup, *, pause: bool, secrets: Secrets | None) -> Restored:
    settings = from_environment()
    if not settings.database_url:
        raise Problem("a dump is restored into a database: set HELIOGRAPH_DATABASE_URL")
    owner = settings.owner_database_url or settings.direct_url
    try:
        restored = await restoring.into_database(found, owner, by=shell(), pause=pause, secrets=secrets)
    except restoring.Unreachable as error:
        raise no_database(owner, error.__cause__ or error) from None
    try:
        await migrate.migrate(owner, application=settings.direct_url, on_wait=say, on_newer=say)
    except RoleMissing as error:
        raise Problem(str(error)) from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise Problem(owner_needed(error, owner_url=settings.owner_database_url)) from None
    return restored


def _demand_room(place: Path, secrets: Secrets | None) -> None:
    """Refuse, before anything is written, files that would be overwritten later, except those left by a killed restore
    of the same backup; and the credentials of a start that was interrupted, which the next one would prefer, so that
    it replaced the restored keys."""
    files = _files(place, secrets)
    names = (secret_keys.FILE, secret_keys.OTHER_FILE, "credentials.json", "credentials.starting.json")
    for name in names if secrets is not None else ():
        path = place / name
        if path.exists() and not (path.is_file() and path.read_bytes() == files.get(path)):
            raise Problem(f"{path} exists: restore into an empty data directory, or move the file away")


def _keep(place: Path, secrets: Secrets | None) -> None:
    for path, content in _files(place, secrets).items():
        private_files.write(path, content)


def _files(place: Path, secrets: Secrets | None) -> dict[Path, bytes]:
    """The files that belong next to the database."""
    if secrets is None:
        return {}
    end = os.linesep
    kept = {
        secret_keys.FILE: f"{secrets.secret_key}{end}",
        secret_keys.OTHER_FILE: secrets.other_secret_key and f"{secrets.other_secret_key}{end}",
        "credentials.json": secrets.credentials,
    }
    return {place / name: text.encode() for name, text in kept.items() if text}
