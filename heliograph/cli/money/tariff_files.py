"""What `heliograph rates` and `heliograph prices` share: reading a file, and showing rates and differences."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.base.database.clock import iso
from heliograph.base.money import decimal
from heliograph.cli.terminal.console import Problem
from heliograph.cli.terminal.files import reading
from heliograph.cli.terminal.printing import as_plain, form, form_option, in_utf8, say, show
from heliograph.networks.plan import unlisted
from heliograph.prices import drafting
from heliograph.prices.rows import COLUMNS, TariffInvalid, read, write
from heliograph.prices.tariff import Rate
from heliograph.prices.tariffs import Difference, Imported, Listed

RATES = (*COLUMNS[:10], "effective_from", "effective_to", "reject")
DIFFERENCES = ("change", "destination", "class", "sender_type", "from", "to", "before", "price", "percent", "large")
LISTED = ("name", "currency", "rates", "changed_at")

File = Annotated[
    Path,
    typer.Argument(
        exists=True,
        dir_okay=False,
        readable=True,
        help=f"CSV file with a header row; price and currency are required, of {', '.join(COLUMNS)}.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the differences, and import nothing.")]
Whole = Annotated[bool, typer.Option("--whole", help="The file is complete: remove rates that are not in it.")]
DecimalComma = Annotated[bool, typer.Option("--decimal-comma", help="Prices in the file are written 0,0380.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV that can be imported.")]


def read_file(file: Path, *, decimal_comma: bool, json: bool) -> list[tuple[int, Rate]]:
    """The rates in a file, each with its line. Ends the command with all errors if there are any."""
    try:
        with reading(file) as lines:
            return read(lines, decimal_comma=decimal_comma, declared="--decimal-comma")
    except TariffInvalid as refused:
        raise errors_of(refused, json=json) from None


def errors_of(refused: TariffInvalid, *, json: bool) -> Problem:
    """Show what is wrong with a file, line by line; returns the problem that ends the command."""
    errors: list[dict[str, Any]] = refused.details["errors"]
    if json:
        show({"errors": errors}, json)
    for error in errors:
        say(f"line {error['line']}: {error['message']}")
    return Problem("the file contains errors; nothing was imported")


def show_import(done: Imported, given: Iterable[tuple[int, Rate]], *, dry_run: bool, json: bool) -> None:
    """Show what an import of these rates did, or would do."""
    if warning := unlisted(rate.network for _, rate in given):
        say(warning)
    differences = [_difference(one) for one in done.differences]
    if json:
        show(as_plain(done) | {"differences": differences, "dry_run": dry_run}, json)
        return
    if differences:
        show(differences, json, DIFFERENCES)
    told = f"{done.added} added, {done.changed} changed, {done.removed} removed, {done.unchanged} unchanged"
    say(f"{told}{'; nothing was imported (dry run)' if dry_run else ''}.")
    if done.large:
        say(f"{done.large} of them change a price by more than 20 percent: check them.")


def check_form(*, csv: bool, json: bool) -> None:
    """Raises BadParameter if CSV and another form were requested."""
    if csv and form(json) is not None:
        raise typer.BadParameter("conflicts with --csv", param_hint=form_option())


def show_rates(rates: list[Rate], *, csv: bool, json: bool) -> None:
    """Show rates in the requested form, or as CSV."""
    if csv:
        write(rates, in_utf8())
    else:
        show([_plain(one) for one in rates], json, RATES)


def listed(one: Listed) -> dict[str, Any]:
    """A tariff, for `show`."""
    plain: dict[str, Any] = as_plain(one)
    return plain


def percent(text: str | None, option: str) -> Fraction | None:
    """A percentage or an exchange rate. Raises typer.BadParameter."""
    if text is None:
        return None
    found = drafting.number(text)
    if found is None:
        raise typer.BadParameter("must be a number such as 12.5", param_hint=option)
    return found


def _plain(one: Rate) -> dict[str, Any]:
    plain = as_plain(one)
    plain["class"], plain["reject"] = plain.pop("message_class"), plain.pop("rejects")
    return plain | {"price": decimal(one.price)}


def _difference(one: Difference) -> dict[str, Any]:
    rate = one.rate
    return {
        "change": one.change,
        "destination": place_of(rate),
        "class": rate.message_class,
        "sender_type": rate.sender_type,
        "from": rate.effective_from and iso(rate.effective_from),
        "to": rate.effective_to and iso(rate.effective_to),
        "before": None if one.before is None else decimal(one.before),
        "price": None if one.change == "removed" else "reject" if rate.rejects else decimal(rate.price),
        "percent": one.percent,
        "large": one.is_large,
    }


def place_of(rate: Rate) -> str:
    """What a rate is for, in a word: "643-04", "+25887", "MZ" or "everywhere"."""
    return rate.network or (rate.prefix and f"+{rate.prefix}") or f"{rate.country} {rate.mcc}".strip() or "everywhere"
