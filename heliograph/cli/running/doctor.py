"""`heliograph doctor`: checks that everything works, and says how to fix what does not."""

from __future__ import annotations

import asyncio
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import asyncpg
import typer

from heliograph import doctor
from heliograph.base.database.url import UrlError
from heliograph.base.embedded.install import PostgresError
from heliograph.base.process import logs
from heliograph.base.process.settings import SecretKeyUnset, Settings, SettingsError, demand_secret_key
from heliograph.base.sentences import Check, Sentence, quoted, said
from heliograph.cli.terminal.console import (
    FAILED,
    DataDir,
    NoDatabase,
    Problem,
    connection,
    embedded_home,
    on_database,
    settings_of,
)
from heliograph.cli.terminal.http import address, ask
from heliograph.cli.terminal.printing import Json, cuts_texts, is_for_programs, show
from heliograph.health import findings
from heliograph.sealing import text_keys


def command(
    url: Annotated[
        str | None,
        typer.Option(
            help="URL of the API to check. Defaults to that of `heliograph up`, or else http://127.0.0.1:8080."
        ),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Show what was found in the last 30 days instead, and until when.")
    ] = False,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, help="Maximum number to show with --history.")
    ] = findings.SHOWN,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Check settings, database, backups, workers, suppliers, WhatsApp accounts, queue, inbox, callbacks and API.

    Exits with status 1 if something is wrong. A worker runs the checks every minute and records the results
    (--history).

    \b
    Examples:
      heliograph doctor
      heliograph doctor --url https://sms.example.com --json
      heliograph doctor --history
    """
    if history:
        found = on_database(partial(findings.history, limit=limit), settings_of(data_dir))
        show(found, json, ("check", "state", "since", "over_at", "detail"), limit=limit)
        return
    checks = asyncio.run(_examine(address(url, data_dir), data_dir))
    show(checks, json, ("check", "state", "detail"))
    if not is_for_programs(json):
        for check in checks:
            if check.remedy:
                why = f"{check.detail}\n" if cuts_texts() else ""  # the table may have cut it
                print(f"\n{check.check}: {why}{check.remedy}")
    if any(check.state == "failed" for check in checks):
        raise typer.Exit(FAILED)


async def _examine(url: str, data_dir: Path | None) -> list[Check]:
    try:
        settings = settings_of(data_dir)
        logs.check(settings)
        text_keys.arm(settings)
    except (SettingsError, PostgresError) as error:
        return [
            Check(
                said("settings"),
                "failed",
                quoted(str(error)),
                said("Correct the setting named; docs/settings.md lists all settings."),
            )
        ]
    checks = [Check(said("settings"), "ok", said("all are valid")), _secret_key(settings)]
    is_embedded = embedded_home(data_dir) is not None
    try:
        async with connection(settings.database_url) as conn:
            checks += await doctor.examine(conn, settings)
    except NoDatabase as problem:
        start = (
            said("Start it: `%(command)s`.", command=_up(data_dir))
            if is_embedded
            else said("Start it, or set HELIOGRAPH_DATABASE_URL to its address.")
        )
        checks.append(Check(said("database"), "failed", quoted(str(problem)), _remedy(problem.error) or start))
    if is_embedded:
        remedy = said("Start `%(command)s`, or give its URL with --url.", command=_up(data_dir))
    else:
        remedy = said("Start `heliograph api`, or give its URL with --url.")
    checks.append(await asyncio.to_thread(_api, url, remedy))
    return checks


def _remedy(error: BaseException) -> Sentence | None:
    """The remedy for a database that is running but cannot be used; None: it may not be running."""
    if isinstance(error, UrlError):
        return said("Correct HELIOGRAPH_DATABASE_URL.")
    if isinstance(error, TimeoutError):
        return said(
            "It hangs, or the network drops what is sent to it: look at its machine (disk, memory, processor), at its"
            " log, and at the network in between."
        )
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError | asyncpg.InvalidCatalogNameError):
        return said("Correct the user, the password or the name of the database in its URL.")
    if isinstance(error, asyncpg.ProtocolViolationError):
        return said("If that is PgBouncer, set HELIOGRAPH_DATABASE_DIRECT_URL to the address of PostgreSQL itself.")
    if isinstance(error, asyncpg.DiskFullError):
        return said("Free some space on its disk; it then resumes automatically.")
    if isinstance(error, asyncpg.PostgresError):
        return said("It is running, but accepts no connections now: its log says why.")
    return None


def _up(data_dir: Path | None) -> str:
    """The command that starts an embedded database and the API."""
    return "heliograph up" + ("" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}")


def _secret_key(settings: Settings) -> Check:
    name = said("secret key")
    try:
        demand_secret_key(settings)
    except SecretKeyUnset as error:
        return Check(name, "failed", said("HELIOGRAPH_SECRET_KEY is not set"), quoted(str(error)))
    except SettingsError as error:
        return Check(name, "failed", said("can be guessed"), quoted(str(error)))
    if settings.other_secret_key:
        remedy = said(
            "`heliograph rekey` encrypts everything under the secret key, and says when the other one can be removed."
        )
        return Check(name, "warning", said("is being changed: a second one is set as well"), remedy)
    return Check(name, "ok", said("%(count)s characters", count=len(settings.secret_key)))


def _api(url: str, remedy: Sentence) -> Check:
    name = said("api")
    try:
        status, _, answer = ask("GET", url, "/health", timeout=5.0)
    except Problem as problem:
        return Check(name, "failed", quoted(str(problem)), remedy)
    if status != 200:
        return Check(name, "failed", said("%(url)s answered %(status)s", url=url, status=str(status)), remedy)
    states = answer.get("checks") if isinstance(answer, dict) else None
    if not isinstance(states, dict) or answer.get("status") not in ("ok", "degraded"):
        detail = said("%(url)s answers, but is not the API of Heliograph", url=url)
        return Check(name, "failed", detail, said("Give the URL of the API with --url."))
    if answer["status"] != "ok":
        wrong = [f"{name} {state}" for name, state in states.items() if state != "ok"]
        detail = said("%(url)s says: %(wrong)s", url=url, wrong=", ".join(wrong))
        return Check(name, "failed", detail, said("See the checks above."))
    return Check(name, "ok", said("%(url)s answers", url=url))
