"""`heliograph margin`: what customers pay, what suppliers charge, and what is left, by day."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Annotated, Any, Literal

import typer

from heliograph.base import csv_files
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.money import decimal
from heliograph.cli.terminal.console import YEARS, DataDir, OrgOrAll, only, settings_of
from heliograph.cli.terminal.printing import Json, in_utf8, show
from heliograph.cli.terminal.reports import on_reader
from heliograph.prices import margins
from heliograph.prices.margins import PARTS, Line

COLUMNS = ("messages", "segments", "price", "price_currency", "cost", "cost_currency", "margin", "margin_percent")
#: Columns that are left out if only prices, or only costs, are asked for.
LEFT_OUT = {
    "price": ("cost", "cost_currency", "margin", "margin_percent"),
    "cost": ("price", "price_currency", "margin", "margin_percent"),
    None: (),
}


def command(
    first: Annotated[str | None, typer.Option("--from", metavar="DAY", help="First day (UTC). Default: today.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Last day (UTC). Default: the first.")] = None,
    by: Annotated[
        str, typer.Option(metavar="PARTS", help=f"What to group by, separated by commas: {', '.join(PARTS)}.")
    ] = "day,supplier,country",
    places: Annotated[
        int, typer.Option(min=0, max=6, help="Round the amounts of each line, half-up, to this many decimal places.")
    ] = 6,
    side: Annotated[
        Literal["price", "cost"] | None,
        typer.Option(
            "--only", help="Only prices, or only costs: lines are then not split by the currency of the other."
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show prices, costs and margins of live SMS accepted by suppliers, by the day on which they became due.

    Amounts of different currencies are never added. Without a price or a cost, or with both in different currencies,
    there is no margin. Amounts are exact sums of messages that were never rounded; for an invoice, --places rounds the
    lines, and --only price keeps them whole whatever suppliers charge in. A route is listed under the name that it had
    at the time; empty: no route chose, or it is not known.

    \b
    Examples:
      heliograph margin --from 2026-11-01 --to 2026-11-30 --by supplier
      heliograph margin --from 2026-11-01 --to 2026-11-30 --by day,organization,network --csv > november.csv
      heliograph margin --from 2026-11-01 --to 2026-11-30 --by route
      heliograph margin --from 2026-11-01 --to 2026-11-30 --by organization,country --only price --places 2 --csv
    """
    parts = [one.strip() for one in by.split(",") if one.strip()]
    if unknown := [one for one in parts if one not in PARTS]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(PARTS)}", param_hint="--by")

    async def work(conn: Connection) -> list[Line]:
        start = clock.now().date() if first is None else _day(first, "--from")
        end = start if last is None else _day(last, "--to")
        if end < start:
            raise typer.BadParameter("is before --from", param_hint="--to")
        of = await only(conn, org)
        return await margins.read(
            conn, first=start, last=end + timedelta(days=1), organization_id=of, by=parts, only=side
        )

    lines = [_plain(one.rounded(places), places, parts) for one in on_reader(work, settings_of(data_dir))]
    left_out = LEFT_OUT[side]
    lines = [{name: value for name, value in line.items() if name not in left_out} for line in lines]
    columns = [one for one in (*(one for one in PARTS if one in parts), *COLUMNS) if one not in left_out]
    if csv:
        writer = csv_files.Writer(in_utf8(), columns)
        for line in lines:
            writer.row(["" if line[name] is None else str(line[name]) for name in columns])
    else:
        show(lines, json, columns)


def _day(text: str, option: str) -> date:
    try:
        found = date.fromisoformat(text)
        if found.year in YEARS:
            return found
    except ValueError:
        pass
    raise typer.BadParameter("must be a day such as 2026-11-30", param_hint=option)


def _plain(one: Line, places: int, parts: list[str]) -> dict[str, Any]:
    plain = {name: getattr(one, name) for name in PARTS if name in parts}
    plain |= {"day": one.day.isoformat()} if one.day is not None else {}
    margin = one.margin
    return plain | {
        "messages": one.messages,
        "segments": one.segments,
        "price": _decimal(one.price, places) if one.price_currency else None,
        "price_currency": one.price_currency or None,
        "cost": _decimal(one.cost, places) if one.cost_currency else None,
        "cost_currency": one.cost_currency or None,
        "margin": None if margin is None else _decimal(margin, places),
        # Where more was refunded than sold, a loss would seem to be a gain.
        "margin_percent": f"{margin / one.price * 100:.1f}" if margin is not None and one.price > 0 else None,
    }


def _decimal(amount: int, places: int) -> str:
    """An amount rounded to this many decimal places."""
    whole, _, rest = decimal(amount).partition(".")
    return f"{whole}.{rest[:places]}" if places else whole
