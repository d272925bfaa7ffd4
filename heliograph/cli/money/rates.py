"""`heliograph rates`: what suppliers charge for SMS."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.money import is_currency
from heliograph.cli.money.tariff_files import (
    LISTED,
    Csv,
    DecimalComma,
    DryRun,
    File,
    Whole,
    check_form,
    errors_of,
    listed,
    percent,
    read_file,
    show_import,
    show_rates,
)
from heliograph.cli.terminal.console import DataDir, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, JsonOrCsv, form, group, show
from heliograph.prices import drafting, tariffs
from heliograph.prices.rows import TariffInvalid
from heliograph.prices.tariff import Rate
from heliograph.prices.tariffs import Imported, Listed
from heliograph.sms.dispatch import suppliers

app = group("Import and show rate cards: what suppliers charge for SMS.")
Which = Annotated[str, typer.Argument(metavar="SUPPLIER", help="Supplier, by name or id.")]


@app.command("import")
def import_(
    supplier: Which,
    file: File,
    dry_run: DryRun = False,
    whole: Whole = False,
    decimal_comma: DecimalComma = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Import a supplier's rates: the whole file, or nothing if any line is invalid or two rates overlap. Importing it
    again changes nothing.

    \b
    Examples:
      heliograph rates import main rates-2026-07.csv --dry-run
      heliograph rates import main rates-2026-07.csv
    """
    given = read_file(file, decimal_comma=decimal_comma, json=json)

    async def work(conn: Connection) -> Imported:
        async with conn.transaction():
            of = await suppliers.lock(conn, supplier=supplier)
            return await tariffs.import_rates(
                conn, given, kind="cost", name=of.name, supplier_id=of.id, whole=whole, dry_run=dry_run, by=shell()
            )

    try:
        done = on_database(work, settings_of(data_dir))
    except TariffInvalid as refused:
        raise errors_of(refused, json=json) from None
    show_import(done, given, dry_run=dry_run, json=json)


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List the suppliers' rate cards.

    \b
    Example:
      heliograph rates list
    """

    async def work(conn: Connection) -> list[Listed]:
        return await tariffs.list_tariffs(conn, "cost")

    show([listed(one) for one in on_database(work, settings_of(data_dir))], json, LISTED)


@app.command("show")
def show_(supplier: Which, csv: Csv = False, json: Json = False, data_dir: DataDir = None) -> None:
    """Show a supplier's rates, including past and future ones.

    \b
    Examples:
      heliograph rates show main
      heliograph rates show main --csv > main.csv
    """
    check_form(csv=csv, json=json)
    show_rates(on_database(lambda conn: _card(conn, supplier), settings_of(data_dir)), csv=csv, json=json)


@app.command("draft")
def draft(
    supplier: Which,
    markup: Annotated[str | None, typer.Option(metavar="PERCENT", help="Add this much to the cost.")] = None,
    margin: Annotated[str | None, typer.Option(metavar="PERCENT", help="Let this much of the price be margin.")] = None,
    currency: Annotated[str | None, typer.Option(metavar="CODE", help="Currency of the prices (ISO 4217).")] = None,
    exchange: Annotated[
        str | None, typer.Option(metavar="RATE", help="Units of that currency for one of the card's.")
    ] = None,
    places: Annotated[int, typer.Option(min=0, max=6, help="Decimal places of a price, rounded half-up.")] = 6,
    json: JsonOrCsv = False,
    data_dir: DataDir = None,
) -> None:
    """Print a price list derived from a supplier's rates, as CSV for `heliograph prices import`.

    \b
    Examples:
      heliograph rates draft main --markup 25 > standard.csv
      heliograph rates draft main --margin 25 --currency MZN --exchange 63.90 --places 4 > standard.csv
    """
    by = drafting.factor(markup=percent(markup, "--markup"), margin=percent(margin, "--margin"))
    rate = percent(exchange, "--exchange")
    if (currency is None) != (rate is None):
        raise typer.BadParameter("--currency and --exchange go together", param_hint="--exchange")
    if currency is not None and not is_currency(currency.upper()):
        raise typer.BadParameter("must be an ISO 4217 code, such as EUR", param_hint="--currency")
    if rate is not None and rate <= 0:
        raise typer.BadParameter("must be more than 0", param_hint="--exchange")
    rates = on_database(lambda conn: _card(conn, supplier), settings_of(data_dir))
    show_rates(
        drafting.draft(rates, by, exchange=rate or Fraction(1), currency=currency and currency.upper(), places=places),
        csv=form(json) is None,
        json=json,
    )


async def _card(conn: Connection, supplier: str) -> list[Rate]:
    id = await suppliers.id_of(conn, supplier)
    return await tariffs.rates_of(conn, await tariffs.find(conn, "cost", name=supplier, supplier_id=id))
