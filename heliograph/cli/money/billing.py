"""`heliograph billing`: usage of all organizations in a month, locked once it is over, as a file that never changes."""

from __future__ import annotations

import csv
import io
import sys
from datetime import date
from typing import Annotated

import typer

from heliograph.base.csv_files import unguarded
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.cli.terminal.console import DataDir, Problem, on_database, settings_of, shell
from heliograph.cli.terminal.files import OutFile, writable, writing
from heliograph.cli.terminal.printing import (
    Json,
    JsonOrCsv,
    as_plain,
    form,
    form_option,
    group,
    is_for_programs,
    say,
    show,
)
from heliograph.overview.installation import billing
from heliograph.overview.installation.billing import Locked, Month
from heliograph.overview.usage import month_of

app = group("Lock months for billing, and export what all organizations used in them.")

COLUMNS = ("month", "state", "organizations", "sms", "segments", "whatsapp", "lines", "checksum")
Which = Annotated[str, typer.Argument(metavar="MONTH", help="The month, in UTC, such as 2026-11.")]


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List months, latest first: which are locked, with their totals and checksums.

    \b
    Example:
      heliograph billing list
    """

    async def work(conn: Connection) -> list[Month]:
        return await billing.months(conn)

    rows: list[dict[str, object]] = []
    for one in on_database(work, settings_of(data_dir)):
        state = "locked" if one.locked else "over" if one.is_over else "open"
        rows.append(
            {"month": f"{one.month:%Y-%m}", "state": state} | ({} if one.locked is None else _plain(one.locked))
        )
    show(rows, json, COLUMNS)


@app.command("lock")
def lock(month: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Store a month's lines permanently, an hour after its end or later. A month that is already locked is unchanged.

    \b
    Example:
      heliograph billing lock 2026-10
    """

    async def work(conn: Connection) -> Locked:
        return await billing.lock(conn, month=month_of(month), by=shell())

    show(_plain(on_database(work, settings_of(data_dir))), json)


@app.command("export")
def export(
    month: Which,
    file: OutFile = None,
    json: JsonOrCsv = False,
    data_dir: DataDir = None,
) -> None:
    """Export a locked month as CSV: the same bytes each time. The quantities of the channel sms add up to the month's
    change of the quotas.

    \b
    Examples:
      heliograph billing export 2026-10 october.csv
      heliograph billing export 2026-10 | sha256sum
    """

    async def work(conn: Connection) -> bytes:
        wanted: date = month_of(month)
        if (await billing.get(conn, month=wanted)).locked is None:
            raise NotFound("This month is not locked: `heliograph billing lock` does that.", month=month)
        return b"".join([part async for part in billing.parts(conn, month=wanted)])

    asked = form(json)
    if asked is not None and file is not None:
        raise typer.BadParameter("the file is always CSV: omit this option", param_hint=form_option())
    if file is not None:
        writable(file)
    text = on_database(work, settings_of(data_dir))
    if asked is not None:
        rows = csv.DictReader(io.StringIO(text.decode()))
        columns = tuple(rows.fieldnames or ())
        show([{name: _value(name, cell) for name, cell in row.items()} for row in rows], json, columns)
    elif file is None:
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
    else:
        with writing(file, encoding="utf-8") as out:
            out.write(text.decode())
        say(f"Written to {file}.")


@app.command("verify")
def verify(month: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Check that the file of a locked month still has its checksum, and that its totals match the usage lists.

    \b
    Example:
      heliograph billing verify 2026-10
    """

    async def work(conn: Connection) -> tuple[bool, bool]:
        wanted = month_of(month)
        same = await billing.verify(conn, month=wanted)
        return same, await billing.lines(conn, month=wanted) == await billing.ledger(conn, month=wanted)

    same, agrees = on_database(work, settings_of(data_dir))
    if is_for_programs(json):
        show({"checksum": same, "sums": agrees}, json)
    if not (same and agrees):
        raise Problem(
            "the file does not have its checksum" if not same else "the sums are not those of the usage lists"
        )
    say("The file matches its checksum, and its totals match the usage lists.")


def _value(name: str, cell: str) -> int | str:
    """The value of a cell, as it was before it was escaped for spreadsheets."""
    return int(cell) if name in ("quantity", "segments") else unguarded(cell)


def _plain(one: Locked) -> dict[str, object]:
    plain: dict[str, object] = as_plain(one)
    sums = plain.pop("sums")
    assert isinstance(sums, dict)
    return plain | {"month": f"{one.month:%Y-%m}"} | sums
