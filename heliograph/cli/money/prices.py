"""`heliograph prices`: what organizations pay for SMS."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.base.database.pool import Connection
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
    read_file,
    show_import,
    show_rates,
)
from heliograph.cli.terminal.console import DataDir, Org, on_database, operator, settings_of, shell
from heliograph.cli.terminal.printing import Json, group, in_options, show
from heliograph.prices import tariffs
from heliograph.prices.rows import TariffInvalid
from heliograph.prices.tariff import Rate
from heliograph.prices.tariffs import Imported, Listed

app = group("Import, show and assign price lists: what organizations pay for SMS.")
Which = Annotated[str, typer.Argument(metavar="LIST", help="Name of the price list.")]


@app.command("import")
def import_(
    price_list: Which,
    file: File,
    dry_run: DryRun = False,
    whole: Whole = False,
    decimal_comma: DecimalComma = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Import a price list, creating it if there is none of that name: the whole file, or nothing if any line is invalid
    or two prices overlap. Importing it again changes nothing.

    \b
    Examples:
      heliograph prices import standard prices.csv --dry-run
      heliograph prices import standard prices.csv
    """
    given = read_file(file, decimal_comma=decimal_comma, json=json)

    async def work(conn: Connection) -> Imported:
        return await tariffs.import_rates(
            conn, given, kind="price", name=price_list, whole=whole, dry_run=dry_run, by=shell()
        )

    try:
        with in_options(name="LIST"):
            done = on_database(work, settings_of(data_dir))
    except TariffInvalid as refused:
        raise errors_of(refused, json=json) from None
    show_import(done, given, dry_run=dry_run, json=json)


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List the price lists, and how many organizations have each one assigned.

    \b
    Example:
      heliograph prices list
    """

    async def work(conn: Connection) -> list[Listed]:
        return await tariffs.list_tariffs(conn, "price")

    show(
        [listed(one) for one in on_database(work, settings_of(data_dir))],
        json,
        (*LISTED, "is_default", "organizations"),
    )


@app.command("show")
def show_(price_list: Which, csv: Csv = False, json: Json = False, data_dir: DataDir = None) -> None:
    """Show a price list, with past and future prices.

    \b
    Example:
      heliograph prices show standard
    """
    check_form(csv=csv, json=json)

    async def work(conn: Connection) -> list[Rate]:
        return await tariffs.rates_of(conn, await tariffs.find(conn, "price", name=price_list))

    show_rates(on_database(work, settings_of(data_dir)), csv=csv, json=json)


@app.command("assign")
def assign(
    price_list: Annotated[
        str, typer.Argument(metavar="LIST|none", help="Name of the price list; `none` removes the assignment.")
    ],
    default: Annotated[bool, typer.Option("--default", help="For all organizations without an assigned list.")] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Assign a price list to an organization, or to all that have none assigned. It applies to messages accepted
    from then on.

    \b
    Examples:
      heliograph prices assign standard --default
      heliograph prices assign acme --org "Acme Lda"
      heliograph prices assign none --org "Acme Lda"
    """
    if default and org is not None:
        raise typer.BadParameter("--default and --org are mutually exclusive", param_hint="--default")
    name = None if price_list == "none" else price_list

    async def work(conn: Connection) -> None:
        if default:
            await tariffs.make_default(conn, price_list=name, by=shell())
        else:
            await tariffs.assign(conn, await operator(conn, org), price_list=name)

    on_database(work, settings_of(data_dir))
    show({"price_list": name, "for": "all without their own" if default else org}, json)
