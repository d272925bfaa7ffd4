"""Watching a supplier's wire traffic for some minutes; the supplier's page shows it."""

from __future__ import annotations

from datetime import timedelta

from heliograph.base.errors import Invalid
from heliograph.console.suppliers.listing import HERE
from heliograph.pages.answers import Answer, Redirect
from heliograph.pages.forms import figures
from heliograph.pages.requests import Request
from heliograph.sms.watched import pdus

#: Upper bound when parsing minutes; `pdus.begin` accepts fewer.
MOST = 999


async def watch(request: Request) -> Answer:
    """Have workers show what they send and receive from now on, masked. Raises Invalid (minutes)."""
    id, wrong = request.id(), Invalid(("minutes", "type", "must be a number of minutes"))
    minutes = figures.within(request.form.get("minutes", ""), wrong, most=MOST)
    if minutes is None:
        raise wrong
    async with request.writing() as conn:
        await pdus.begin(conn, supplier=str(id), lasts=timedelta(minutes=minutes), by=request.principal)
    said = request.text("Workers show its traffic within two seconds.")
    return Redirect(location=f"{HERE}/{id}", notice=said)
