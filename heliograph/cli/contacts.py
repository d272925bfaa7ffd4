"""`heliograph contacts`: the people that an organization writes to, by the file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from heliograph.base import phones, private_files
from heliograph.base.db import Connection
from heliograph.cli.console import (
    DataDir,
    Json,
    Org,
    Problem,
    as_plain,
    group,
    on_database,
    operator,
    say,
    settings_of,
    show,
)
from heliograph.contacts import exporting, importing, records, sheets
from heliograph.contacts.importing import Options, Summary
from heliograph.contacts.records import Contact, OnDuplicate

app = group("Contacts: import, export and list them.")

COLUMNS = ("id", "phone", "name", "tags", "opted_out", "created_at")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="CSV file with a header.")],
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN=FIELD",
            help=f"What a column is, where its header does not say so: {', '.join(sheets.FIELDS)}. Repeatable.",
        ),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="A tag for everybody in the file. Repeatable.")] = None,
    on_duplicate: Annotated[
        OnDuplicate, typer.Option(help="Numbers that have a contact: replace the name and add the tags, or skip them.")
    ] = "update",
    country: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Country, such as MZ, whose code numbers without one are given. Without it they are rejected, or, if"
            " they begin like it, taken for numbers of another country.",
        ),
    ] = None,
    rejects: Annotated[
        Path | None,
        typer.Option(help="Where rejected rows go, with their reason.", show_default="FILE with .rejects.csv"),
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of the file.", show_default="found out: UTF-8, UTF-16, Windows-1252")
    ] = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Import contacts from a CSV file. Killed or stopped in the middle: run it again, it completes.

    \b
    Examples:
      heliograph contacts import people.csv --org "Acme Lda"
      heliograph contacts import people.csv --map "Contact no.=phone" --country MZ --on-duplicate skip
    """
    settings = settings_of(data_dir)
    region = country.upper() if country else None
    if region is not None and region not in phones.REGIONS.values():
        raise typer.BadParameter(f"{country!r} is not the code of a country", param_hint="--country")
    options = Options(on_duplicate=on_duplicate, tags=records.tags(tag or [], "tag"), country=region)
    layout = sheets.layout(file, columns=_mapping(map_ or []), encoding=encoding)
    target = _writable(rejects or file.with_suffix(".rejects.csv"))
    if not json:
        _explain(layout)

    async def work(conn: Connection) -> Summary:
        actor = await operator(conn, org)
        with _bar("Importing") as advance:
            return await importing.run(
                conn,
                actor,
                path=file,
                layout=layout,
                rejects=target,
                options=options,
                on_progress=lambda at: advance(at.position, at.size, f"{at.summary.rows:,} rows"),
            )

    summary = on_database(work, settings)
    show(as_plain(summary) | {"rejects": str(target) if summary.rejected else None}, json)


@app.command("export")
def export(
    file: Annotated[
        Path | None, typer.Argument(dir_okay=False, writable=True, help="CSV file to write; without it, to stdout.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only contacts with this tag.")] = None,
    org: Org = None,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each contact instead of CSV.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write an organization's contacts as CSV, newest first. Cells never begin like a formula, and only
    you may read the file.

    \b
    Examples:
      heliograph contacts export people.csv --org "Acme Lda"
      heliograph contacts export --tag vip > vip.csv
    """
    wanted = None if tag is None else records.tag(tag, "tag")
    if file is not None:
        _writable(file)

    async def work(conn: Connection) -> int:
        actor = await operator(conn, org)
        with contextlib.ExitStack() as stack:
            out: TextIO = sys.stdout
            if file is not None:
                # The mark at the beginning is what spreadsheets know UTF-8 by.
                encoding = "utf-8" if json else "utf-8-sig"
                out = stack.enter_context(private_files.open_text(file, encoding=encoding))
            advance = stack.enter_context(_bar("Exporting"))
            return await exporting.write(
                conn,
                actor,
                file=out,
                tag=wanted,
                as_json=json,
                on_progress=lambda count: advance(0, None, f"{count:,} contacts"),
            )

    count = on_database(work, settings_of(data_dir))
    say(f"{count:,} contacts.")


@app.command("list")
def list_(
    tag: Annotated[str | None, typer.Option(help="Only contacts with this tag.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, at most.")] = 50,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List an organization's contacts, newest first.

    \b
    Example:
      heliograph contacts list --org "Acme Lda" --tag vip
    """
    wanted = None if tag is None else records.tag(tag, "tag")

    async def work(conn: Connection) -> list[Contact]:
        return await records.list_page(conn, await operator(conn, org), limit=limit, tag=wanted)

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


def _mapping(texts: list[str]) -> dict[str, str]:
    """Column to field. A column's name may contain `=`."""
    found = {}
    for text in texts:
        column, equals, field = text.rpartition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not COLUMN=FIELD", param_hint="--map")
        found[column] = field.strip()
    return found


def _writable(path: Path) -> Path:
    """The path. Raises Problem if no file can be made there: better now than after a million rows."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise Problem(f"{path} cannot be written: name another place")
    return path


def _explain(layout: sheets.Layout) -> None:
    known = [f"{field} from {sheets.header_of(layout, field)!r}" for field in sheets.FIELDS if field in layout.fields]
    unused = [cell for at, cell in enumerate(layout.columns) if at not in layout.fields.values()]
    say(f"Reading {layout.encoding}, {layout.delimiter!r} between cells: {', '.join(known)}.")
    if unused:
        say(f"Not used: {', '.join(repr(cell) for cell in unused)}.")


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """A progress bar on a terminal's stderr; elsewhere nothing. Yields a function of done, total and a note."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        task = progress.add_task(what, total=None, note="")

        def advance(done: int, total: int | None, note: str) -> None:
            progress.update(task, completed=done, total=total, note=note)

        yield advance
