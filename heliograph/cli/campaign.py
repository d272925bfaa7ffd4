"""`heliograph campaign`: what an organization's campaigns are doing, and their end."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Annotated, Any
from uuid import UUID

import typer

from heliograph.base.db import Connection
from heliograph.campaigns import plan
from heliograph.campaigns.plan import Campaign
from heliograph.cli.console import (
    DataDir,
    Json,
    Org,
    Problem,
    connection,
    group,
    on_database,
    operator,
    settings_of,
    show,
)

app = group("Campaigns: list, show, watch and cancel them.")

COLUMNS = ("id", "name", "status", "recipients", "staged", "done", "scheduled_at", "started_at", "completed_at")
#: Seconds between two looks of `watch`.
LOOK = 1.0
#: Characters of the bar that `watch` draws.
WIDTH = 30
Which = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign's id.")]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List an organization's campaigns, newest first.

    \b
    Example:
      heliograph campaign list --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[Campaign]:
        return await plan.list_page(conn, await operator(conn, org), after=None, limit=limit)

    found = on_database(work, settings_of(data_dir))
    show([plan.shown(one) if json else _line(one) for one in found], json, COLUMNS)


@app.command("show")
def show_(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show one campaign with all its counts.

    \b
    Example:
      heliograph campaign show 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """
    show(plan.shown(on_database(lambda conn: _get(conn, org, which), settings_of(data_dir))), json)


@app.command("cancel")
def cancel(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a campaign. What no supplier has yet is withdrawn by a worker, and its quota comes back.

    \b
    Example:
      heliograph campaign cancel 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.cancel(conn, await operator(conn, org), id=_id(which))

    show(plan.shown(on_database(work, settings_of(data_dir))), json)


@app.command("watch")
def watch(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Follow a campaign until it has ended; with --json, print its record each time it changes.

    \b
    Example:
      heliograph campaign watch 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """
    settings = settings_of(data_dir)

    async def work() -> None:
        async with connection(settings.database_url) as conn:
            before, began = None, time.monotonic()
            while True:
                found = await _get(conn, org, which)
                if found != before:
                    if json:
                        show(plan.shown(found), json)
                    else:
                        _draw(found, time.monotonic() - began)
                before = found
                if found.status in ("completed", "canceled", "failed"):
                    break
                await asyncio.sleep(LOOK)
        if not json:
            print(file=sys.stderr)

    asyncio.run(work())


async def _get(conn: Connection, org: str | None, which: str) -> Campaign:
    return await plan.get(conn, await operator(conn, org), id=_id(which))


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Problem(f"{text!r} is not the id of a campaign") from None


def _line(one: Campaign) -> dict[str, Any]:
    counts = one.counts
    shown = plan.shown(one)
    shown["recipients"] = shown["recipient_count"]
    shown["staged"] = counts.total - counts.pending
    shown["done"] = counts.total - counts.pending - counts.queued - counts.sent
    return shown


def _draw(one: Campaign, seconds: float) -> None:
    """One line that a terminal draws over; elsewhere, a line each."""
    counts = one.counts
    done = counts.total - counts.pending - counts.queued
    share = done / counts.total if counts.total else 0.0
    bar = "#" * int(share * WIDTH)
    parts = [f"{name} {value:,}" for name in counts.__struct_fields__[1:] if (value := getattr(counts, name))]
    status = one.status if one.status_reason is None else f"{one.status} ({one.status_reason})"
    line = f"[{bar:<{WIDTH}}] {share:4.0%} of {counts.total:,}  {status}  {', '.join(parts)}  {seconds:.0f} s"
    is_terminal = sys.stderr.isatty()
    print(f"\r\x1b[K{line}" if is_terminal else line, end="" if is_terminal else "\n", file=sys.stderr, flush=True)
