"""`heliograph receipts`: what suppliers were handed, answered and reported, to be compared with their bills."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

import typer

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.process import private_files
from heliograph.cli.terminal.console import DataDir, Json, group, moment, on_database, say, settings_of, show
from heliograph.sms.dispatch import suppliers
from heliograph.sms.reports import reconciliation
from heliograph.sms.reports.reconciliation import Reconciled
from heliograph.traffic.reconciliation import Query

app = group("Reconcile what suppliers were handed with what they reported.")

COLUMNS = (
    *("supplier", "at", "country", "submitted", "answered", "accepted", "matched", "delivered", "late", "never"),
    *("waiting", "orphaned", "p50", "p95", "p99", "delivered_share", "week_before_delivered_share", "owed"),
)
#: Lines of a report.
MOST = 10_000


@app.callback()
def receipts() -> None:
    """It has subcommands, be there only one."""


@app.command("report")
def report(
    supplier: Annotated[str | None, typer.Option(metavar="SUPPLIER", help="Only this supplier, by name or id.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="WHEN", help="From this day or time on. Defaults to 7 days ago.")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="WHEN", help="Before this day or time. Defaults to now.")
    ] = None,
    country: Annotated[str | None, typer.Option(help="Only messages to this country, such as MZ.")] = None,
    by: Annotated[
        Literal["hour", "day", "country", "day,country", "hour,country", "supplier"],
        typer.Option(help="What there is a line for each of, besides the supplier."),
    ] = "day,country",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV with all columns.")] = False,
    file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the CSV to this file, readable by you alone.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show, by supplier, day and country, how many messages were submitted, answered, accepted and reported on.

    A message counts in the hour in which the supplier accepted it. matched: a receipt told its end; late: it came after
    the message's validity, or 24 hours; never: none came until it was given up; waiting: none came yet. orphaned:
    receipts that match no message. Times to the receipt are in seconds. owed: accepted and not delivered, which is due
    back from a supplier that charged for it.

    \b
    Examples:
      heliograph receipts report
      heliograph receipts report --supplier main --from 2026-11-01 --to 2026-12-01 --by day --csv
    """
    if json and (csv or file is not None):
        raise typer.BadParameter("choose one of --csv and --json", param_hint="--csv")
    if country is not None and not re.fullmatch("[A-Z]{2}|001", country):
        raise typer.BadParameter("must be an ISO code such as MZ", param_hint="--country")
    begin, end = _moment(since, "--from"), _moment(until, "--to")

    async def work(conn: Connection) -> list[Reconciled]:
        id: UUID | None = None if supplier is None else await suppliers.id_of(conn, supplier)
        now = clock.now()
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        query = Query(
            date_from=begin or today - timedelta(days=7),
            date_to=end or now + timedelta(hours=1),
            by=by.split(","),
            supplier_id=id,
            country=country,
            limit=MOST,
        )
        if query.date_from >= query.date_to:
            raise typer.BadParameter("must be before --to", param_hint="--from")
        return await reconciliation.report(conn, query)

    found = on_database(work, settings_of(data_dir))
    if len(found) >= MOST:
        say(f"Cut at {MOST} lines: choose fewer days, or one supplier.")
    if file is not None:
        with private_files.open_text(file, encoding="utf-8-sig") as out:
            out.write(reconciliation.as_csv(found))
        say(f"Written to {file}.")
    elif csv:
        typer.echo(reconciliation.as_csv(found), nl=False)
    else:
        show([one.row() for one in found], json, COLUMNS)


def _moment(text: str | None, option: str) -> datetime | None:
    """A time, or a day, which begins at midnight of UTC."""
    if text is None:
        return None
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError:
            raise typer.BadParameter("must be a day such as 2027-01-31", param_hint=option) from None
    return moment(text, option)
