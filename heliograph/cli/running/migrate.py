"""`heliograph migrate`: migrate the database to this version."""

from __future__ import annotations

import asyncio
from typing import Annotated

import asyncpg
import typer

from heliograph import migration_plan
from heliograph.base.database import migrate
from heliograph.base.database.pool import Connection, is_down, set_role
from heliograph.base.database.roles import RECONNECT, RoleMissing, owner_needed
from heliograph.base.network.failures import reason
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.console import FAILED, UNREACHABLE, DataDir, Problem, on_database, settings_of
from heliograph.cli.terminal.printing import Json, say, show
from heliograph.migration_plan import Planned


def command(
    check: Annotated[bool, typer.Option("--check", help="Apply nothing; exit with 1 if something is pending.")] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Apply nothing; show what would be locked, and for how long.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Migrate the database to this version. Safe to repeat, and safe while the service is running.

    \b
    Examples:
      heliograph migrate
      heliograph migrate --check
      heliograph migrate --plan
    """
    settings = settings_of(data_dir)
    if plan:
        pending, newer, planned = on_database(_planned, settings)
        _warn(newer)
        _plan(pending, planned, json)
        return
    if check:
        pending, newer = on_database(_pending, settings)
        _warn(newer)
        _show("pending", pending, json, "Nothing is pending.")
        raise typer.Exit(FAILED if pending else 0)
    try:
        owner = settings.owner_database_url or settings.database_url
        applied = asyncio.run(migrate.migrate(owner, application=settings.database_url, on_wait=say, on_newer=say))
        if settings.database_direct_url and on_database(set_role, settings):
            say(RECONNECT)
    except RoleMissing as error:
        raise Problem(str(error)) from None
    except asyncpg.InsufficientPrivilegeError as error:
        raise Problem(owner_needed(error, owner_url=settings.owner_database_url)) from None
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        # The exit status tells temporary failures from others: a systemd unit retries the former only.
        status = UNREACHABLE if is_down(error) else FAILED
        raise Problem(f"the database cannot be migrated: {reason(error)}", status) from None
    _show("applied", applied, json, "No migrations were pending. Missing partitions have been created.")


async def _pending(conn: Connection) -> tuple[list[str], list[str]]:
    return await migrate.pending(conn), await migrate.newer(conn)


async def _planned(conn: Connection) -> tuple[list[str], list[str], list[Planned]]:
    return *await _pending(conn), await migration_plan.plan(conn)


def _plan(pending: list[str], planned: list[Planned], json: bool) -> None:
    if json:
        show({"pending": pending, "locks": planned}, json)
        return
    if not pending:
        say("Nothing is pending.")
        return
    if not planned:
        files = with_noun(len(pending), "file is", "files are")
        say(f"{files} pending, and none locks a table that is there.")
        return
    show([_readable(one) for one in planned], json, ("file", "table", "blocks", "seconds", "size", "statement"))
    say(
        "Each attempt to lock waits a second at most, and is then repeated; queries behind it wait as long. Seconds are"
        " estimated from the tables' sizes, for a modest disk."
    )


def _readable(one: Planned) -> dict[str, str]:
    return {
        "file": one.file,
        "table": one.table or "?",
        "blocks": f"{one.blocks} (not recognized: the worst is assumed)" if one.is_guess else one.blocks,
        "seconds": f"{one.seconds:g}",
        "size": f"{one.bytes / 1e6:.1f} MB",
        "statement": one.statement,
    }


def _warn(newer: list[str]) -> None:
    if newer:
        say(migrate.later(newer))


def _show(what: str, names: list[str], json: bool, nothing: str) -> None:
    if json:
        show({what: names}, json)
    elif names:
        print("\n".join(names))
    else:
        say(nothing)
