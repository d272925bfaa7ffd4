"""O5 Watching what goes over the wire of a supplier for minutes; its page shows it."""

from __future__ import annotations

from datetime import timedelta

from heliograph.base.errors import Invalid
from heliograph.console.carriage.suppliers import HERE
from heliograph.pages.answers import Answer, Elsewhere
from heliograph.pages.requests import Request
from heliograph.sms.watched import pdus


async def watch(request: Request) -> Answer:
    """Workers show what they send and receive from now on, masked. Raises Invalid (minutes)."""
    id, typed = request.id(), request.form.get("minutes", "")
    if not (typed.isascii() and typed.isdigit() and len(typed) < 4):
        raise Invalid(("minutes", "type", "must be a number of minutes"))
    async with request.writing() as conn:
        await pdus.begin(conn, supplier=str(id), lasts=timedelta(minutes=int(typed)), by=request.who)
    said = request.text("Workers show its traffic within two seconds.")
    return Elsewhere(location=f"{HERE}/{id}", notice=said)
