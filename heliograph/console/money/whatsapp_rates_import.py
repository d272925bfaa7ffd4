"""Importing WhatsApp rates from a file, which is checked first, with errors by line."""

from __future__ import annotations

import asyncio
import io
from typing import Any

from heliograph.base.errors import Invalid
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.pieces import pasted
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import MONEY_CHANGE
from heliograph.whatsapp.money import rates
from heliograph.whatsapp.money.rates import Imported, RatesInvalid


async def show(request: Request) -> Answer:
    """The form."""
    return Page(template="money/whatsapp_rates_import.html", values=_values(request))


async def submit(request: Request) -> Answer:
    """Check a file, or import it."""
    text = ""
    try:
        text = await pasted.text(request)
        # In a thread, so that others are answered: the longest file takes half a second.
        found = await asyncio.to_thread(rates.read_rates, io.StringIO(text, newline=""))
        mark = pasted.digest(text)
        is_changed = pasted.is_changed(request.form, mark)
        only_check = is_changed or request.form.get("do") != "import"
        async with request.writing() as conn:
            done = await rates.import_rates(conn, found, dry_run=only_check, by=request.principal)
    except RatesInvalid as refusal:
        values = _values(request, text=text, errors=refusal.details["errors"])
        return Page(template="money/whatsapp_rates_import.html", values=values, status=422)
    except Invalid as refusal:
        return Page(template="money/whatsapp_rates_import.html", values=_values(request), status=422, refusal=refusal)
    if only_check:
        values = _values(request, text=text, checked=done) | {"mark": mark}
        if is_changed:
            return refused("money/whatsapp_rates_import.html", pasted.CHANGED, values)
        return Page(template="money/whatsapp_rates_import.html", values=values)
    said = request.text(
        "Imported: %(new)s new, %(changed)s changed, %(unchanged)s as they were.",
        new=request.locale.number(done.new),
        changed=request.locale.number(done.changed),
        unchanged=request.locale.number(done.unchanged),
    )
    return Redirect(location="/console/rates", notice=said)


def _values(
    request: Request, *, text: str = "", errors: list[dict[str, Any]] | None = None, checked: Imported | None = None
) -> dict[str, Any]:
    return {
        "text": text,
        "errors": errors or [],
        "checked": checked,
        "columns": ", ".join(rates.COLUMNS),
        "may_change": request.may(permission=MONEY_CHANGE),
    }
