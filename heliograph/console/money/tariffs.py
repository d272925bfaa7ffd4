"""Suppliers' rate cards and organizations' price lists: dated rates, imported from a file after showing the
differences; price lists are also drafted from a card, and assigned."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal
from uuid import UUID

from heliograph.accounts import organizations
from heliograph.base import naming
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.base.money import is_currency
from heliograph.console.acting import acting_for
from heliograph.console.money import rate_calendar
from heliograph.networks import plan
from heliograph.pages.answers import Answer, Download, Page, Redirect, form_errors, refused
from heliograph.pages.pieces import pasted
from heliograph.pages.pieces.charts import MARK
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY_CHANGE
from heliograph.prices import drafting, rows, tariffs
from heliograph.prices.rows import TariffInvalid
from heliograph.prices.tariff import Rate
from heliograph.prices.tariffs import Imported, Listed
from heliograph.sms.dispatch import routing, suppliers

HERE = "/console/rates"
#: Rates and differences per page.
SHOWN = 500
#: What is chosen with a file.
CHOSEN = ("target", "name", "whole", "decimal_comma")
#: What is wrong with a price list's name, by issue.
WRONG_NAME = {
    "length": "A price list's name must have 1 to 64 characters.",
    "pattern": "A name must not contain control characters.",
}
#: Fields of the drafting form, and the rules' refusals in its wording.
DRAFTED = ("markup", "margin", "currency", "exchange", "places")
WRONG_DRAFT: Mapping[str | tuple[str, str], str] = {
    ("margin", "conflict"): "Enter a markup or a margin, not both.",
    ("markup", "range"): "A markup must be at least -100 percent.",
    ("margin", "range"): "A margin must be less than 100 percent.",
    ("exchange", "large"): "A price would be more than a million.",
}


async def show(request: Request) -> Answer:
    """A tariff with its rates, including past and future ones; or as a file that can be imported."""
    async with request.reading() as conn:
        one = await _known(conn, request.id())
        rates = await tariffs.rates_of(conn, one)
    if "csv" in request.query:
        return _file(one.name, rates)
    return Page(template="money/tariff.html", values=_values(request, one, rates))


async def draft(request: Request) -> Answer:
    """Draft a price list from a supplier's rates, as a file for the import."""
    typed = {name: request.query.get(name, "").strip() for name in DRAFTED}
    async with request.reading() as conn:
        one = await _known(conn, request.id())
        rates = await tariffs.rates_of(conn, one)
    wrong, numbers = Problems(), dict[str, Fraction | None]()
    try:
        for name in ("markup", "margin", "exchange"):
            with wrong.gathering():
                numbers[name] = _number(name, typed[name])
        with wrong.gathering():
            by = drafting.factor(markup=numbers.get("markup"), margin=numbers.get("margin"))
        exchange, currency = numbers.get("exchange"), typed["currency"].upper()
        if bool(currency) != bool(typed["exchange"]):
            wrong.add("exchange", "incomplete", "Currency and exchange rate go together.")
        if currency and not is_currency(currency):
            wrong.add("currency", "format", "Enter a three-letter currency code, such as EUR.")
        if exchange is not None and exchange <= 0:
            wrong.add("exchange", "range", "An exchange rate must be more than 0.")
        places = typed["places"] or "6"
        if places not in "0123456" or len(places) != 1:
            wrong.add("places", "range", "Choose 0 to 6 decimal places.")
        wrong.report()
        made = drafting.draft(
            rates, by, exchange=exchange or Fraction(1), currency=currency or None, places=int(places)
        )
    except Invalid as refusal:
        values = _values(request, one, rates) | {"typed": typed}
        return refused("money/tariff.html", form_errors(refusal, WRONG_DRAFT), values)
    return _file(f"prices-from-{one.name}", made)


async def assign(request: Request) -> Answer:
    """Assign a price list to an organization, or to all without one of their own."""
    reference = request.form.get("organization", "").strip()
    async with request.writing() as conn:
        one = await _known(conn, request.id())
        if one.kind != "price":
            raise NotFound("There is no such price list.")
        if request.form.get("for") == "all":
            if reference:
                # One of the two is a mistake, which must not change everybody's prices.
                said = request.text("Leave this empty if all organizations are meant.")
                values = _values(request, one, await tariffs.rates_of(conn, one)) | {"organization": reference}
                return refused("money/tariff.html", Invalid(("organization", "exclusive", said)), values)
            await tariffs.make_default(conn, price_list=one.name, by=request.principal)
            said = request.text("%(name)s is the list of all organizations without an assigned one.", name=one.name)
            return Redirect(location=f"{HERE}/cards/{one.id}", notice=said)
        try:
            theirs = await organizations.find(conn, reference=reference or None)
        except (NotFound, Invalid):
            wrong = Invalid(("organization", "unknown", "Choose an organization, by its name or id."))
            values = _values(request, one, await tariffs.rates_of(conn, one)) | {"organization": reference}
            return refused("money/tariff.html", wrong, values)
        wanted = None if request.form.get("for") == "none" else one.name
        await tariffs.assign(conn, acting_for(request, theirs), price_list=wanted)
    said = request.text("%(organization)s pays by %(name)s from now on.", organization=theirs.name, name=one.name)
    if wanted is None:
        said = request.text("%(organization)s no longer has an assigned price list.", organization=theirs.name)
    return Redirect(location=f"{HERE}/cards/{one.id}", notice=said)


async def show_import(request: Request) -> Answer:
    """The form."""
    return Page(template="money/tariff_import.html", values=await _import_values(request))


async def import_(request: Request) -> Answer:
    """Check a file and show the differences; or import it."""
    form, text = request.form, ""
    try:
        text = await pasted.text(request)
        mark = pasted.digest(text, *(form.get(name, "").strip() for name in CHOSEN))
        is_changed = pasted.is_changed(form, mark)
        is_dry = is_changed or form.get("do") != "import"
        # In a thread, so that others are answered: a hundred thousand rows take a second or two.
        file, has_commas = io.StringIO(text, newline=""), bool(form.get("decimal_comma"))
        declared = f"“{request.text('Prices in it are written 0,0380')}”"
        given = await asyncio.to_thread(rows.read, file, decimal_comma=has_commas, declared=declared)
        async with request.writing() as conn, conn.transaction():
            kind, name, supplier_id = await _target(conn, form.get("target", ""), form.get("name", "").strip())
            done = await tariffs.import_rates(
                conn,
                given,
                kind=kind,
                name=name,
                supplier_id=supplier_id,
                whole=bool(form.get("whole")),
                dry_run=is_dry,
                by=request.principal,
            )
            card = None if is_dry else await tariffs.find(conn, kind, name=name, supplier_id=supplier_id)
    except TariffInvalid as refusal:
        values = await _import_values(request, text=text, errors=refusal.details["errors"])
        return Page(template="money/tariff_import.html", values=values, status=422)
    except Invalid as refusal:
        return refused("money/tariff_import.html", refusal, await _import_values(request, text=text))
    if card is None:
        values = await _import_values(request, text=text, checked=done)
        values |= {"mark": mark, "unlisted": plan.unlisted(rate.network for _, rate in given)}
        if is_changed:
            return refused("money/tariff_import.html", pasted.CHANGED, values)
        return Page(template="money/tariff_import.html", values=values)
    count = request.locale.number
    said = request.text(
        "Imported: %(added)s added, %(changed)s changed, %(removed)s removed, %(unchanged)s as they were.",
        added=count(done.added),
        changed=count(done.changed),
        removed=count(done.removed),
        unchanged=count(done.unchanged),
    )
    return Redirect(location=f"{HERE}/cards/{card.id}", notice=said)


async def _target(conn: Connection, target: str, name: str) -> tuple[Literal["cost", "price"], str, UUID | None]:
    """The tariff that a file is for. Raises Invalid."""
    if target == "list":
        return "price", naming.checked(name, "name", longest=tariffs.LONGEST_NAME, said=WRONG_NAME), None
    try:
        one = await suppliers.lock(conn, supplier=target)
    except NotFound:
        raise Invalid(("target", "unknown", "Choose a supplier, or a price list.")) from None
    return "cost", one.name, one.id


async def _known(conn: Connection, id: UUID) -> Listed:
    """A tariff. Raises NotFound."""
    for kind in ("cost", "price"):
        for one in await tariffs.list_tariffs(conn, kind):
            if one.id == id:
                return one
    raise NotFound("There is no such tariff.")


def _values(request: Request, one: Listed, rates: Sequence[Rate]) -> dict[str, Any]:
    now = clock.now()
    return {
        "one": one,
        "rates": [(rate, rate.begins <= now < rate.ends, rate.begins > now) for rate in rates[:SHOWN]],
        "is_cut": len(rates) > SHOWN,
        "calendar": rate_calendar.of_tariff(request, one.id, one.name, rates),
        "organization": "",
        "typed": dict.fromkeys(DRAFTED, ""),
        "may_change": request.may(permission=MONEY_CHANGE),
    }


async def _import_values(
    request: Request, *, text: str = "", errors: Sequence[dict[str, Any]] = (), checked: Imported | None = None
) -> dict[str, Any]:
    given = request.form or request.query
    async with request.reading() as conn:
        known = await routing.load(conn)
    return {
        "text": text,
        "errors": errors,
        "checked": checked,
        "differences": checked.differences[:SHOWN] if checked else (),
        "targets": [(str(one.id), one.name) for one in known],
        "target": given.get("target", ""),
        "name": given.get("name", ""),
        "whole": bool(given.get("whole")),
        "decimal_comma": bool(given.get("decimal_comma")),
        "columns": ", ".join(rows.COLUMNS),
    }


def _file(name: str, rates: Sequence[Rate]) -> Download:
    out = io.StringIO()
    rows.write(rates, out)
    called = "".join(one if one.isalnum() else "-" for one in name)
    return Download(name=f"{called}.csv", kind="text/csv; charset=utf-8", body=(MARK + out.getvalue()).encode())


def _number(field: str, text: str) -> Fraction | None:
    """A percentage or an exchange rate; None if empty. Raises Invalid."""
    if not text:
        return None
    found = drafting.number(text)
    if found is None:
        raise Invalid((field, "format", "Enter a number such as 12.5."))
    return found
