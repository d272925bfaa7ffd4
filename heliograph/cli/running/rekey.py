"""`heliograph rekey`: encrypts everything stored under the current secret key."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph import rekeying
from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.console import FAILED, DataDir, Problem, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, say, show
from heliograph.health import keys


def command(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if something is encrypted under another key.")
    ] = False,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Values per transaction.")] = rekeying.BATCH,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Encrypt everything stored under the current secret key. Safe to repeat, to interrupt, and while the service is
    running.

    To change the secret key, first give every process the new one as HELIOGRAPH_OTHER_SECRET_KEY and restart it; then
    swap the two, and restart again; then run this. It is refused while a running process does not have the new one, and
    says afterwards whether the old one can be removed.

    \b
    Examples:
      heliograph rekey
      heliograph rekey --check
    """
    settings = settings_of(data_dir, needs_key=True)

    async def done(conn: Connection) -> tuple[list[rekeying.Rekeyed], list[str]]:
        if not check and (blind := await keys.unable(conn, settings)):
            raise Problem(
                f"running processes do not have this secret key and could read nothing that is encrypted under it:"
                f" {', '.join(blind)}; restart them with it first (one that has just ended counts for 15 s)"
            )
        found = await rekeying.rekey(
            conn, settings, check=check, batch=batch, say=(lambda line: None) if check else say, by=shell()
        )
        return found, await rekeying.called(conn)

    found, called = on_database(done, settings)
    left = sum(one.rekeyed for one in found) if check else 0
    unknown = sum(one.unknown for one in found)
    shown = [one for one in found if one.rekeyed or one.unknown]
    if json:
        show({"places": shown, "left": left, "unknown": unknown, "old_key_may_go": not (left or unknown)}, json)
    elif shown:
        show(shown, json, ("place", "rekeyed", "unknown"))
    if not json:
        _advise(settings, left, unknown, called, {one.place for one in found if one.unknown})
    if unknown or left:
        raise typer.Exit(FAILED)


def _advise(settings: Settings, left: int, unknown: int, called: list[str], places: set[str]) -> None:
    if left:
        values = with_noun(left, "value is", "values are")
        say(f"{values} encrypted under the other secret key. Run `heliograph rekey`.")
    elif unknown:
        values = with_noun(unknown, "value is", "values are")
        say(
            f"{values} encrypted under a secret key that is not set. Set it as HELIOGRAPH_OTHER_SECRET_KEY"
            " and repeat this. If it is lost, enter what it encrypted again: passwords with `heliograph supplier set`"
            " and `heliograph whatsapp account`, and rotate webhook secrets."
        )
        if "text_keys.sealed" in places:
            say(
                "What keys in text_keys sealed cannot be entered again: if they are lost, close these organizations and"
                " open them again. They get new keys, and texts sealed before read as erased."
            )
    elif not settings.other_secret_key:
        say("Everything is encrypted under the secret key.")
    else:
        say(
            "Everything is encrypted under the secret key. HELIOGRAPH_OTHER_SECRET_KEY may be removed once every"
            " process has been restarted with the current order of keys; if one had not been, run this again first."
            " Keep the old key with the backups that were taken before, and take a new backup now: the earlier ones"
            " contain only the old key, and restoring one of them to a later point in time needs the new key."
        )
        if called:
            say(
                f"Before that, give these suppliers their new callback address (`heliograph supplier show`):"
                f" {', '.join(called)}."
            )
