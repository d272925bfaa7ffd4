"""The rows of a tariff as CSV: the canonical columns, read whole or refused with every problem, and written.

The rule nobody may break: nothing is guessed. Network codes are text (04 is not 4), a blank price is an error, and
decimal commas are read only if the person who imports the file says that it has them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import TextIO

from heliograph.base import csv_files, phones
from heliograph.base.database.clock import iso, moment_in
from heliograph.base.errors import Refusal
from heliograph.base.money import decimal, is_currency, price_in
from heliograph.base.sentences import Sentence, said
from heliograph.networks.plan import meant
from heliograph.prices.tariff import BILLED, CLASSES, SENDER_TYPES, UNITS, Rate

COLUMNS = (
    *("country", "mcc", "mnc", "prefix", "class", "sender_type", "price", "currency", "unit", "bill_on"),
    *("effective_from", "effective_to", "reject", "notes"),
)
REQUIRED = ("price", "currency")
#: Maximum rows of a file, and errors listed; characters of a note.
MOST_ROWS, MOST_ERRORS, MOST_NOTES = 100_000, 50, 200

_YES, _NO = ("yes", "true", "1", "y"), ("", "no", "false", "0", "n")
#: What many files contain to say "all".
_ANY = ("", "*", "any", "all")
_mcc = re.compile(r"[0-9]{3}", re.ASCII).fullmatch
_mnc = re.compile(r"[0-9]{2,3}", re.ASCII).fullmatch
_prefix = re.compile(r"[1-9][0-9]{0,14}", re.ASCII).fullmatch
_country = re.compile(r"[A-Z]{2}", re.ASCII).fullmatch


class TariffInvalid(Refusal):
    """The rates contain errors; nothing was imported."""

    code, status = "rates_invalid", 400


def read(lines: Iterable[str], *, decimal_comma: bool = False, declared: str = "") -> list[tuple[int, Rate]]:
    """The rates of a CSV file with columns of COLUMNS in any order, each with its line.

    Cells are separated by commas, semicolons or tabs, like the header row. Raises TariffInvalid with all problems:
    `errors`, a list of line and message. Overlapping rates are not detected here. `declared`: how the person who
    imports the file says that it has decimal commas, by an option or a field.
    """
    try:
        return _read(lines, decimal_comma, declared)
    except csv.Error as error:
        raise TariffInvalid(
            errors=[{"line": 1, "message": said("this is not a CSV file: %(error)s", error=str(error))}]
        ) from None


def write(rates: Iterable[Rate], file: TextIO) -> None:
    """Write rates as a CSV file that `read` takes."""
    writer = csv_files.Writer(file, COLUMNS)
    for one in rates:
        cells = (one.country, one.mcc, one.mnc, one.prefix, one.message_class, one.sender_type, decimal(one.price))
        times = ("" if at is None else iso(at) for at in (one.effective_from, one.effective_to))
        writer.row((*cells, one.currency, one.unit, one.bill_on, *times, "yes" if one.rejects else "", one.notes))


def _read(lines: Iterable[str], decimal_comma: bool, declared: str) -> list[tuple[int, Rate]]:
    numbered = enumerate(lines, 1)
    at, header = next(((n, line) for n, line in numbered if line.strip()), (1, ""))
    delimiter = max(",;\t", key=header.count)
    names = [name.strip().lower().lstrip("\ufeff") for name in next(csv.reader([header], delimiter=delimiter), [])]
    if absent := [name for name in REQUIRED if name not in names]:
        raise TariffInvalid(
            errors=[{"line": at, "message": said("the header row lacks %(columns)s", columns=", ".join(absent))}]
        )
    if foreign := [name for name in names if name not in COLUMNS]:
        told = said(
            "the column %(column)s is not known; columns are %(columns)s",
            column=repr(foreign[0]),
            columns=", ".join(COLUMNS),
        )
        raise TariffInvalid(errors=[{"line": at, "message": told}])
    if twice := [name for name in COLUMNS if names.count(name) > 1]:
        raise TariffInvalid(
            errors=[{"line": at, "message": said("the column %(column)s appears twice", column=repr(twice[0]))}]
        )
    found: list[tuple[int, Rate]] = []
    errors: list[dict[str, object]] = []
    rows = csv.reader((line for _, line in numbered), delimiter=delimiter, strict=True)
    for given in rows:
        number = at + rows.line_num
        cells = [csv_files.unguarded(cell.strip()) for cell in given]
        if not any(cells):
            continue
        if len(found) == MOST_ROWS or len(errors) == MOST_ERRORS:
            errors.append({"line": number, "message": said("the remaining lines were not checked")})
            break
        if len(cells) != len(names):
            errors.append(
                {
                    "line": number,
                    "message": said("has %(cells)s cells, not %(columns)s", cells=len(cells), columns=len(names)),
                }
            )
            continue
        rate = _rate(dict.fromkeys(COLUMNS, "") | dict(zip(names, cells, strict=True)), decimal_comma, declared)
        if isinstance(rate, Sentence):
            errors.append({"line": number, "message": rate})
        else:
            found.append((number, rate))
    if not errors and not found:
        errors.append({"line": at, "message": said("there are no rates")})
    if errors:
        raise TariffInvalid(errors=errors)
    return found


def _rate(cells: Mapping[str, str], decimal_comma: bool, declared: str) -> Rate | Sentence:
    """A row's rate, or its problem."""
    place = _place(cells)
    if isinstance(place, Sentence):
        return place
    message_class, sender = _word(cells, "class"), _word(cells, "sender_type")
    for name, value, known in (
        ("class", message_class, CLASSES),
        ("sender_type", sender, SENDER_TYPES),
        ("unit", _word(cells, "unit"), UNITS),
        ("bill_on", _word(cells, "bill_on"), BILLED),
    ):
        if value and value not in known:
            return said(
                "%(column)s %(value)s is not one of %(known)s",
                column=name,
                value=repr(cells[name]),
                known=", ".join(known),
            )
    currency = cells["currency"].upper()
    if not is_currency(currency):
        return said("currency %(value)s is not an ISO 4217 code, such as EUR", value=repr(cells["currency"]))
    reject = cells["reject"].lower()
    if reject not in (*_YES, *_NO):
        return said("reject %(value)s is neither yes nor no", value=repr(cells["reject"]))
    price = _price(cells["price"], decimal_comma, declared)
    if reject in _YES and cells["price"] == "":
        price = 0
    if isinstance(price, Sentence):
        return price
    times: list[datetime | None] = []
    for name in ("effective_from", "effective_to"):
        moment = moment_in(cells[name])
        if moment is None and cells[name]:
            return said(
                "%(column)s %(value)s is neither a date nor a time with a time zone",
                column=name,
                value=repr(cells[name]),
            )
        times.append(moment)
    begins, ends = times
    if begins is not None and ends is not None and begins >= ends:
        return said("effective_to is not after effective_from")
    if len(cells["notes"]) > MOST_NOTES:
        return said("notes are longer than %(most)s characters", most=MOST_NOTES)
    country, mcc, mnc, prefix = place
    return Rate(
        country=country,
        mcc=mcc,
        mnc=mnc,
        prefix=prefix,
        message_class=message_class,
        sender_type=sender,
        price=price,
        currency=currency,
        unit=_word(cells, "unit") or UNITS[0],
        bill_on=_word(cells, "bill_on") or BILLED[0],
        effective_from=begins,
        effective_to=ends,
        rejects=reject in _YES,
        notes=cells["notes"],
    )


def _place(cells: Mapping[str, str]) -> tuple[str, str, str, str] | Sentence:
    country, mcc, mnc = _word(cells, "country").upper(), _word(cells, "mcc"), _word(cells, "mnc")
    prefix = _word(cells, "prefix").removeprefix("+")
    if country and not _country(country):
        return said("country %(value)s is not a code of two letters, such as MZ", value=repr(cells["country"]))
    if mcc and not _mcc(mcc):
        return said("mcc %(value)s is not three digits", value=repr(cells["mcc"]))
    if known := meant(f"{mcc}-{mnc}"):
        return said(
            "mnc %(value)s: there is no network %(network)s; did you mean %(known)s? A spreadsheet may have changed "
            "its zeros",
            value=repr(cells["mnc"]),
            network=f"{mcc}-{mnc}",
            known=known,
        )
    if mnc and not _mnc(mnc):
        return said(
            "mnc %(value)s is not two or three digits; a spreadsheet may have dropped a leading zero",
            value=repr(cells["mnc"]),
        )
    if mnc and not mcc:
        return said("mnc is given without mcc")
    if mnc and prefix:
        return said("a rate is for a network or for a prefix, not for both")
    if prefix and (not _prefix(prefix) or not _is_dialable(prefix[:3])):
        return said(
            "prefix %(value)s is not the first digits of numbers with their country code, such as 25887",
            value=repr(cells["prefix"]),
        )
    if country and not mnc and not prefix and not phones.is_told_apart(country):
        return said(
            "no number can be recognized as one of country %(value)s: name the country of its calling "
            "code, or a prefix",
            value=repr(cells["country"]),
        )
    if mcc and not mnc and not country and not prefix:
        return said("mcc is given without mnc: name the country, too")
    return country, mcc, mnc, prefix


@cache
def _is_dialable(first: str) -> bool:
    """Whether numbers begin with these digits, three at most: the longest calling code has as many."""
    return any(code.startswith(first) or first.startswith(code) for code in phones.REGIONS)


def _word(cells: Mapping[str, str], name: str) -> str:
    word = cells[name].lower()
    return "" if word in _ANY else word


def _price(text: str, decimal_comma: bool, declared: str) -> int | Sentence:
    """The price in millionths, or what is wrong with it."""
    if text == "":
        return said("price is empty; a free message has the price 0")
    written = text
    if decimal_comma:
        if "." in text:
            return said(
                "price %(value)s has a point, but the file was declared to have decimal commas", value=repr(text)
            )
        written = text.replace(",", ".")
    elif "," in text:
        if not declared:
            return said("price %(value)s has a comma: say that prices in the file are written 0,0380", value=repr(text))
        return said(
            "price %(value)s has a comma: say that prices in the file are written 0,0380 (%(how)s)",
            value=repr(text),
            how=declared,
        )
    return price_in(written, given=text)
