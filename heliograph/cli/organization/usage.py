"""`heliograph usage`: monthly usage of an organization, and the bill of a month."""

from __future__ import annotations

from json import loads
from typing import Annotated, Any

import typer

from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, Org, operator, settings_of, shell
from heliograph.cli.terminal.files import OutFile, writable, writing
from heliograph.cli.terminal.printing import Json, JsonOrCsv, as_plain, form, group, in_options, in_utf8, say, show
from heliograph.cli.terminal.reports import on_reader
from heliograph.overview import usage
from heliograph.overview.exports import references

app = group("Show an organization's usage by month, and export the bill of a month.")

MONTHS = ("month", "sent", "segments", "whatsapp", "refunds", "adjustments", "grants")
LINES = ("type", "channel", "value", "name", "quantity", "segments")


@app.command("months")
def months(org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """List an organization's months, newest first: messages, segments, and other changes to the quota.

    \b
    Example:
      heliograph usage months --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[dict[str, Any]]:
        listed = await usage.months(conn, await operator(conn, org))
        return [as_plain(one) | {"month": f"{one.month:%Y-%m}"} for one in listed]

    show(on_reader(work, settings_of(data_dir)), json, MONTHS)


@app.command("month")
def month(
    month: Annotated[str, typer.Argument(metavar="MONTH", help="The month, in UTC, such as 2026-11.")],
    file: OutFile = None,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="SPLIT",
            help=f"What to split by: {', '.join(references.SPLITS)}. A reference counts up to its first -, : or /, or "
            "by its first characters: reference:4.",
        ),
    ] = "sender",
    json: JsonOrCsv = False,
    org: Org = None,
    data_dir: DataDir = None,
) -> None:
    """Export the bill of a month. The SMS quantities add up to the month's change of the quota.

    \b
    Examples:
      heliograph usage month 2026-11 --org "Acme Lda"
      heliograph usage month 2026-11 november.csv --by campaign --org "Acme Lda"
      heliograph usage month 2026-11 --by key --json
    """

    asked = form(json)
    if asked in ("table", "tsv") and file is not None:
        raise typer.BadParameter("the file is CSV or JSON: tables cannot be written to it", param_hint="-o")
    if file is not None:
        writable(file)

    async def work(conn: Connection) -> str:
        # First check what is wrong whatever the database contains.
        wanted = usage.month_of(month)
        actor = await operator(conn, org)
        made = await references.bill(conn, actor, month=wanted, by=by)
        return await usage.export(conn, actor, shell(), made=made, as_json=asked is not None)

    with in_options(month="MONTH", by="--by"):
        text = on_reader(work, settings_of(data_dir))
    if asked in ("table", "tsv"):
        show(loads(text)["lines"], json, LINES)
        return
    if file is None:
        print(text, end="", file=in_utf8())
        return
    with writing(file, encoding="utf-8" if json else "utf-8-sig") as out:
        out.write(text)
    say(f"Written to {file}.")
