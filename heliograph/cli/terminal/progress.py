"""What the commands for both channels' campaigns share: options, list rows, and a progress line that is redrawn until a
campaign ends."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.campaigns import audience, record
from heliograph.campaigns.record import Campaign
from heliograph.cli.terminal import printing
from heliograph.cli.terminal.console import connection, on_database, only, operator
from heliograph.cli.terminal.printing import as_plain, form, show

#: Seconds between two polls of `follow`.
LOOK = 1.0
#: Selects a campaign's audience by the import that they came from.
AudienceImport = Annotated[
    UUID | None,
    typer.Option(
        "--import",
        metavar="IMPORT",
        show_default=False,
        help="Send to the contacts of this import, instead of tags.",
    ),
]
#: Skips people by when they were last written to.
NotWrittenDays = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=audience.MOST_DAYS,
        show_default=False,
        help="Skip contacts who were messaged within this many days.",
    ),
]
#: When it starts.
StartAt = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        show_default="now",
        help="When to start, within a year: a time with a time zone, such as 2027-01-31T08:00:00+02:00.",
    ),
]
#: Options by a campaign's fields.
NAMES = {
    "name": "--name",
    "audience_tags": "--tag",
    "audience_import": "--import",
    "audience_tag_match_mode": "--match",
    "excluded_tags": "--exclude-tag",
    "not_written_days": "--not-written-days",
    "scheduled_at": "--at",
    "messages_per_minute": "--per-minute",
}
#: Width of the bar drawn by `follow`, in characters.
WIDTH = 30


def id_of(text: str) -> UUID:
    """Parse a campaign's id. Raises typer.BadParameter."""
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not the id of a campaign", param_hint="CAMPAIGN") from None


def listed(
    settings: Settings, org: str | None, *, limit: int, json: bool, channel: str = "sms"
) -> list[dict[str, Any]]:
    """Campaigns of a channel with their organization's name, newest first: complete with `json`, else as list rows."""

    async def work(conn: Connection) -> list[tuple[str, Campaign]]:
        organization_id = await only(conn, org)
        return await record.list_everywhere(conn, organization_id=organization_id, channel=channel, limit=limit)

    found = on_database(work, settings)
    return [{"organization": name, **(record.shown(one) if json else line(one))} for name, one in found]


def line(one: Campaign) -> dict[str, Any]:
    """A campaign as a list row."""
    counts = one.counts
    shown = record.shown(one)
    shown["recipients"] = shown["recipient_count"]
    shown["pending"] = counts.pending
    shown["done"] = counts.total - counts.pending - counts.queued - counts.sent
    return shown


async def follow(
    settings: Settings, org: str | None, id: UUID, *, channel: str, json: bool, columns: Sequence[str]
) -> None:
    """Show a campaign's progress until it has ended; as JSON its record, as TSV its `columns`, each time it changes."""
    asked = form(json)
    async with connection(settings.database_url) as conn:
        before, began = None, time.monotonic()
        while True:
            found = await record.get(conn, await operator(conn, org), id=id, channel=channel)
            if found != before:
                if asked == "json":
                    show(record.shown(found), json)
                elif asked == "tsv":
                    printing.line(as_plain(line(found)), json, columns)
                else:
                    _draw(found, time.monotonic() - began)
            before = found
            if found.status in ("completed", "canceled", "failed"):
                break
            await asyncio.sleep(LOOK)
    if asked not in ("json", "tsv"):
        print(file=sys.stderr)


def _draw(one: Campaign, seconds: float) -> None:
    """Redraw one line on a terminal; elsewhere print a new line each time."""
    is_terminal = sys.stderr.isatty()
    line = drawn(one, seconds, os.get_terminal_size(sys.stderr.fileno()).columns if is_terminal else 0)
    print(f"\r\x1b[K{line}" if is_terminal else line, end="" if is_terminal else "\n", file=sys.stderr, flush=True)


def drawn(one: Campaign, seconds: float, columns: int) -> str:
    """A campaign's progress as a line that fits a terminal of so many columns; 0: of any length. A longer one would
    wrap, and the next one be drawn below it instead of over it."""
    counts = one.counts
    done = counts.total - counts.pending - counts.queued
    share = done / counts.total if counts.total else 0.0
    bar = "#" * int(share * WIDTH)
    parts = [f"{name} {value:,}" for name in counts.__struct_fields__[1:] if (value := getattr(counts, name))]
    status = one.status if one.status_reason is None else f"{one.status} ({one.status_reason})"
    figures = f"{share:4.0%} of {counts.total:,}  {status}  {', '.join(parts)}  {seconds:.0f} s"
    line = f"[{bar:<{WIDTH}}] {figures}"
    if not columns or len(line) < columns:
        return line
    return figures if len(figures) < columns else figures[: max(columns - 4, 0)] + "..."
