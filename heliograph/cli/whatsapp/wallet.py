"""`heliograph whatsapp wallet` and `heliograph whatsapp rates`: WhatsApp balances and prices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.money import decimal, micros
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    Problem,
    on_database,
    operator,
    organization,
    settings_of,
    shell,
)
from heliograph.cli.terminal.files import reading
from heliograph.cli.terminal.printing import Json, as_plain, group, say, show
from heliograph.whatsapp.money import rates, wallet
from heliograph.whatsapp.money.rates import Imported, Rate, RatesInvalid
from heliograph.whatsapp.money.wallet import Entry, Wallet

app = group("Top up, adjust and show a wallet and its ledger.")
rates_app = group("Import and list rates: the price of a delivered message by category, country and date.")

ENTRIES = ("created_at", "movement", "available", "reserved", "consumed", "message_id", "key", "reason")
RATES = ("currency", "category", "country", "valid_from", "price")

Currency = Annotated[
    str | None,
    typer.Option(
        metavar="CODE",
        help=(
            "Currency (ISO 4217) of a wallet not used yet. Defaults to that of the WhatsApp account; required "
            "without one. It cannot be changed later."
        ),
    ),
]


@app.command("top-up")
def top_up(
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="Amount, such as 250 or 12.50.")],
    currency: Currency = None,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the ledger.")] = "top-up",
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Add money to an organization's wallet.

    \b
    Example:
      heliograph whatsapp wallet top-up 250 --currency EUR --org "Acme Lda" --reason "invoice 7"
    """

    async def work(conn: Connection) -> Wallet:
        found = await organization(conn, org)
        return await wallet.top_up(conn, found.id, amount=_amount(amount), currency=currency, reason=reason, by=shell())

    _show(on_database(work, settings_of(data_dir)), json)


@app.command("adjust", context_settings={"ignore_unknown_options": True})
def adjust(
    amount: Annotated[
        str,
        typer.Argument(metavar="AMOUNT", help="Amount to add, or to subtract if negative; at most what is available."),
    ],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the ledger.")],
    currency: Currency = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Adjust an organization's wallet up or down, recorded in the ledger as an `adjustment`.

    \b
    Example:
      heliograph whatsapp wallet adjust -12.50 --org "Acme Lda" --reason "entered twice"
    """

    async def work(conn: Connection) -> Wallet:
        found = await organization(conn, org)
        return await wallet.adjust(conn, found.id, amount=_amount(amount), currency=currency, reason=reason, by=shell())

    _show(on_database(work, settings_of(data_dir)), json)


@app.command("alert")
def alert(
    amount: Annotated[
        str, typer.Argument(metavar="AMOUNT|off", help="Amount below which the dashboard warns; off: no warning.")
    ],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Set the low-balance alert of an organization's wallet.

    \b
    Examples:
      heliograph whatsapp wallet alert 50 --org "Acme Lda"
      heliograph whatsapp wallet alert off --org "Acme Lda"
    """

    async def work(conn: Connection) -> Wallet:
        found = await organization(conn, org)
        below = None if amount == "off" else _amount(amount)
        return await wallet.set_alert(conn, found.id, below=below, by=shell())

    _show(on_database(work, settings_of(data_dir)), json)


@app.command("show")
def show_(org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show an organization's wallet.

    \b
    Example:
      heliograph whatsapp wallet show --org "Acme Lda"
    """

    async def work(conn: Connection) -> Wallet:
        return await wallet.show(conn, await operator(conn, org))

    _show(on_database(work, settings_of(data_dir)), json)


@app.command("ledger")
def ledger(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of entries to show.")] = 50,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show the ledger of an organization's wallet, newest first.

    \b
    Example:
      heliograph whatsapp wallet ledger --limit 20 --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[Entry]:
        return await wallet.ledger(conn, await operator(conn, org), limit=limit)

    entries = on_database(work, settings_of(data_dir))
    show([_in_units(one, "available", "reserved", "consumed") for one in entries], json, ENTRIES, limit=limit)


@rates_app.command("import")
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            readable=True,
            help=(f"CSV file with the columns {', '.join(RATES)}. country is a code such as MZ, or * for all others."),
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what it would change.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Import rates: the whole file, or nothing if any line is invalid. Importing it again changes nothing.

    \b
    Examples:
      heliograph whatsapp rates import rates-2026-10.csv --dry-run
      heliograph whatsapp rates import rates-2026-10.csv
    """
    try:
        with reading(file) as lines:
            found = rates.read_rates(lines)
    except RatesInvalid as refused:
        _show_errors(refused.details["errors"], json)

    async def work(conn: Connection) -> Imported:
        return await rates.import_rates(conn, found, dry_run=dry_run, by=shell())

    show(on_database(work, settings_of(data_dir)), json)


@rates_app.command("list")
def list_(
    currency: Annotated[str | None, typer.Option(metavar="CODE", help="Only this currency.")] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List rates, including past and future ones.

    \b
    Example:
      heliograph whatsapp rates list --currency EUR
    """

    async def work(conn: Connection) -> list[Rate]:
        return await rates.list_rates(conn, currency=currency and currency.upper())

    show([_in_units(one, "price") for one in on_database(work, settings_of(data_dir))], json, RATES)


def _amount(text: str) -> int:
    amount = micros(text)
    if amount is None:
        raise typer.BadParameter("must be a number such as 12.50, with at most six decimal places", param_hint="AMOUNT")
    return amount


def _show(found: Wallet, json: bool) -> None:
    shown = _in_units(found, "available", "reserved", "consumed", "total")
    show(shown | {"alert_below": None if found.alert_below is None else decimal(found.alert_below)}, json)


def _in_units(one: Any, *amounts: str) -> dict[str, Any]:
    plain: dict[str, Any] = as_plain(one)
    return plain | {name: decimal(plain[name]) for name in amounts}


def _show_errors(errors: list[dict[str, Any]], json: bool) -> NoReturn:
    if json:
        show({"errors": errors}, json)
    for error in errors:
        say(f"line {error['line']}: {error['message']}")
    raise Problem("the file contains errors; nothing was imported")
