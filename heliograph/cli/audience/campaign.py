"""`heliograph campaign`: follow, pause and cancel an organization's campaigns."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from heliograph.base.database.pool import Connection
from heliograph.campaigns import plan, record
from heliograph.campaigns.record import Campaign
from heliograph.cli.terminal.console import (
    DataDir,
    Json,
    Org,
    OrgOrAll,
    group,
    on_database,
    operator,
    settings_of,
    show,
)
from heliograph.cli.terminal.progress import follow, id_of, listed

app = group("List, show, watch, pause, resume and cancel campaigns.")

COLUMNS = (
    "organization",
    "id",
    "name",
    "status",
    "status_reason",
    "recipients",
    "staged",
    "done",
    "scheduled_at",
    "started_at",
    "completed_at",
)
Which = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign's id.")]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to show.")] = 50,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List campaigns of all organizations or of one, newest first.

    \b
    Examples:
      heliograph campaign list
      heliograph campaign list --org "Acme Lda"
    """
    show(listed(settings_of(data_dir), org, limit=limit, json=json), json, COLUMNS)


@app.command("show")
def show_(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show a campaign with all its counts.

    \b
    Example:
      heliograph campaign show 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """
    show(record.shown(on_database(lambda conn: _get(conn, org, which), settings_of(data_dir))), json)


@app.command("pause")
def pause(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Pause a campaign until it is resumed. Messages not yet handed over wait; nothing is refunded.

    \b
    Example:
      heliograph campaign pause 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.pause(conn, await operator(conn, org), id=id_of(which))

    show(record.shown(on_database(work, settings_of(data_dir))), json)


@app.command("resume")
def resume(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Resume a paused campaign where it stopped. Nobody receives it twice.

    \b
    Example:
      heliograph campaign resume 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.resume(conn, await operator(conn, org), id=id_of(which))

    show(record.shown(on_database(work, settings_of(data_dir))), json)


@app.command("cancel")
def cancel(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a campaign. A worker withdraws messages not yet handed to a supplier and refunds their quota.

    \b
    Example:
      heliograph campaign cancel 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.cancel(conn, await operator(conn, org), id=id_of(which))

    show(record.shown(on_database(work, settings_of(data_dir))), json)


@app.command("watch")
def watch(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Follow a campaign until it has ended; with --json, print its record each time it changes.

    \b
    Example:
      heliograph campaign watch 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """
    asyncio.run(follow(settings_of(data_dir), org, id_of(which), channel="sms", json=json))


async def _get(conn: Connection, org: str | None, which: str) -> Campaign:
    return await record.get(conn, await operator(conn, org), id=id_of(which))
