"""`heliograph contacts`: an organization's contacts: import, export, search, delete."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, TextIO
from uuid import UUID

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.asking import confirm
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    Problem,
    acting_for,
    on_database,
    operator,
    organization,
    settings_of,
)
from heliograph.cli.terminal.files import OutFile, writable, writing
from heliograph.cli.terminal.printing import Json, as_plain, group, in_utf8, say, show
from heliograph.contacts import exporting, importing, records, sheets, undoing
from heliograph.contacts.importing import Options, Summary
from heliograph.contacts.records import Contact, OnDuplicate
from heliograph.contacts.undoing import Import, Undone

app = group("Import, export, list, find and delete contacts, and undo an import.")

COLUMNS = ("id", "phone", "name", "tags", "opted_out", "created_at")
IMPORT_COLUMNS = ("id", "file", "started_at", "rows", "created", "updated", "rejected", "undone_at")


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="CSV file with a header row.")
    ],
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="COLUMN=FIELD",
            help=f"Field of a column whose header is not recognized: {', '.join(sheets.FIELDS)}. Repeatable.",
        ),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Tag to add to every contact in the file. Repeatable.")] = None,
    on_duplicate: Annotated[
        OnDuplicate,
        typer.Option(
            help="For numbers that already have a contact: replace the name and add the tags, or skip the row."
        ),
    ] = "update",
    country: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Country, such as MZ, that numbers without + belong to.",
            show_default="the organization's; if it has none, such numbers are rejected",
        ),
    ] = None,
    rejects: Annotated[
        Path | None,
        typer.Option(help="File for rejected rows and the reasons.", show_default="FILE with .rejects.csv"),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            help="Import numbers of several countries, or outside all known ranges, without asking.",
            show_default=False,
        ),
    ] = False,
    encoding: Annotated[
        str | None, typer.Option(help="Encoding of the file.", show_default="detected: UTF-8, UTF-16, Windows-1252")
    ] = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Import contacts from a CSV file. If it is interrupted, run it again to complete it.

    Before writing anything, it shows the number of contacts per country and asks for confirmation if a second country
    has over 1 %: numbers read as another country's are the most common mistake.

    \b
    Examples:
      heliograph contacts import people.csv --org "Acme Lda"
      heliograph contacts import people.csv --map "Contact no.=phone" --country MZ --on-duplicate skip
    """
    settings = settings_of(data_dir)
    region = country.upper() if country else None
    if region is not None and region not in phones.REGIONS.values():
        raise typer.BadParameter(f"{country!r} is not a country code", param_hint="--country")
    tags = records.tags(tag or [], "tag")
    layout = sheets.layout(file, columns=_mapping(map_ or []), encoding=encoding)
    target = writable(rejects or file.with_suffix(".rejects.csv"))
    if not json:
        _explain(layout)

    done: Summary | None = None

    async def work(conn: Connection) -> Summary:
        found = await organization(conn, org)
        actor = acting_for(found)
        options = Options(on_duplicate=on_duplicate, tags=tags, country=region or found.country)
        _agree(await importing.survey(file, layout, options), json=json, yes=yes)
        with _bar("Importing") as advance:

            def follow(at: importing.Progress) -> None:
                nonlocal done
                done = at.summary
                advance(at.position, at.size, with_noun(at.summary.rows, "row"))

            return await importing.run(
                conn,
                actor,
                path=file,
                layout=layout,
                rejects=target,
                options=options,
                on_progress=follow,
            )

    try:
        summary = on_database(work, settings)
    except KeyboardInterrupt:
        if done is not None:
            rows = with_noun(done.rows, "row was read", "rows were read")
            say(f"Stopped: {rows}. Run it again to complete it, or undo it: heliograph contacts undo {done.import_id}")
        raise
    show(as_plain(summary) | {"rejects": str(target) if summary.rejected else None}, json)
    if summary.created or summary.updated:
        say(f"To undo it: heliograph contacts undo {summary.import_id}")
    if summary.rejected and summary.rejected == summary.rows:
        raise Problem(f"no row could be imported: see {target} for the reasons")


@app.command("export")
def export(
    file: OutFile = None,
    tag: Annotated[str | None, typer.Option(help="Only contacts with this tag.")] = None,
    org: Org = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON line per contact instead of CSV.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Export an organization's contacts as CSV, newest first. Cells are escaped so that none is read as a formula, and
    only you can read the file.

    \b
    Examples:
      heliograph contacts export people.csv --org "Acme Lda"
      heliograph contacts export --tag vip > vip.csv
    """
    wanted = None if tag is None else records.tag(tag, "tag")
    if file is not None:
        writable(file)

    async def work(conn: Connection) -> int:
        actor = await operator(conn, org)
        with contextlib.ExitStack() as stack:
            out: TextIO = in_utf8()
            if file is not None:
                # Spreadsheets recognize UTF-8 by the byte order mark.
                encoding = "utf-8" if json else "utf-8-sig"
                out = stack.enter_context(writing(file, encoding=encoding))
            advance = stack.enter_context(_bar("Exporting"))
            return await exporting.write(
                conn,
                actor,
                file=out,
                tag=wanted,
                as_json=json,
                on_progress=lambda count: advance(0, None, with_noun(count, "contact")),
            )

    count = on_database(work, settings_of(data_dir))
    say(f"{with_noun(count, 'contact')}.")


@app.command("list")
def list_(
    tag: Annotated[str | None, typer.Option(help="Only contacts with this tag.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
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

    show(on_database(work, settings_of(data_dir)), json, COLUMNS, limit=limit)


@app.command("find")
def find(
    text: Annotated[str, typer.Argument(metavar="NUMBER|NAME", help="Phone number or part of a name.")],
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Find contacts by phone number, in any format, or by name.

    \b
    Examples:
      heliograph contacts find "84 123 4567"
      heliograph contacts find silva --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[Contact]:
        found = await organization(conn, org)
        return await records.find(conn, acting_for(found), text=text, country=found.country, limit=limit)

    show(on_database(work, settings_of(data_dir)), json, COLUMNS, limit=limit)


@app.command("delete")
def delete(
    which: Annotated[str, typer.Argument(metavar="NUMBER|ID", help="Phone number or id of the contact.")],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Delete a contact. An opt-out of its number stays in force.

    \b
    Example:
      heliograph contacts delete +258841234567 --org "Acme Lda"
    """

    async def work(conn: Connection) -> Contact:
        found = await organization(conn, org)
        actor = acting_for(found)
        contact = await records.one(conn, actor, which=which, country=found.country)
        await records.delete(conn, actor, id=contact.id)
        return contact

    show(on_database(work, settings_of(data_dir)), json)
    say("Deleted.")


@app.command("imports")
def imports(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List an organization's contact imports, newest first.

    \b
    Example:
      heliograph contacts imports --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[Import]:
        return await undoing.list_imports(conn, await operator(conn, org), limit=limit)

    show(on_database(work, settings_of(data_dir)), json, IMPORT_COLUMNS, limit=limit)


@app.command("undo")
def undo(
    which: Annotated[UUID, typer.Argument(metavar="IMPORT", help="Id of the import, from `contacts imports`.")],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Undo an import: contacts it created are deleted, contacts it changed are restored. Later changes are kept.

    \b
    Example:
      heliograph contacts undo 019c8f60-11a0-7d0c-9a51-0d9e1f7c2b33 --org "Acme Lda"
    """

    async def work(conn: Connection) -> Undone:
        return await undoing.undo(conn, await operator(conn, org), id=which)

    show(on_database(work, settings_of(data_dir)), json)


def _agree(found: importing.Survey, *, json: bool, yes: bool) -> None:
    """Print the countries of a file's numbers, and ask for confirmation of a second one, and of numbers that nobody is
    known to use. Raises Problem if nobody can be asked."""
    total = found.countries.total()
    listed = ", ".join(f"{country} {count:,} ({count / total:.1%})" for country, count in found.countries.most_common())
    doubts = []
    if found.strangers:
        doubts.append(f"belong to {', '.join(found.strangers)}")
    if found.is_doubtful:
        doubts.append("are not in any known range of their country")
    if not json or doubts:
        say(f"Contacts by country: {listed or 'none'}; without a valid number: {found.unread:,}.")
    if found.unused and (not json or doubts):
        some = ", ".join(f"{cell} in row {row} becomes {number}" for row, cell, number in found.unused_examples)
        say(f"Outside all known ranges of their country: {found.unused:,} ({some}).")
    if not doubts or yes:
        return
    said = f"over 1 % of the numbers {', and over 1 % '.join(doubts)}"
    if json or not sys.stdin.isatty():
        raise Problem(f"{said}: check --country, or confirm with --yes")
    confirm(f"{said[0].upper()}{said[1:]}. Import them as well?")


def _mapping(texts: list[str]) -> dict[str, str]:
    """Parse COLUMN=field. A column's name may contain `=`."""
    found: dict[str, str] = {}
    for text in texts:
        column, equals, field = text.rpartition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not COLUMN=FIELD", param_hint="--map")
        if column in found or field.strip() in found.values():
            raise typer.BadParameter(f"{text!r}: this column or field is mapped already", param_hint="--map")
        found[column] = field.strip()
    return found


def _explain(layout: sheets.Layout) -> None:
    known = [f"{field} from {sheets.header_of(layout, field)!r}" for field in sheets.FIELDS if field in layout.fields]
    unused = [cell for at, cell in enumerate(layout.columns) if at not in layout.fields.values()]
    say(f"Reading {layout.encoding}, delimiter {layout.delimiter!r}: {', '.join(known)}.")
    if unused:
        say(f"Not used: {', '.join(repr(cell) for cell in unused)}.")


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """A progress bar on stderr if it is a terminal. Yields a function of done, total and a note."""
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
