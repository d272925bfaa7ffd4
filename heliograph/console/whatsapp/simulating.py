"""A simulated callback from Meta: a user writes, or a sent message changes its status."""

from __future__ import annotations

from typing import Any

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.base.ids import uuid_in
from heliograph.console.acting import organization
from heliograph.console.whatsapp.accounts import HERE
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.whatsapp.callbacks import simulated
from heliograph.whatsapp.callbacks.simulated import Callback
from heliograph.whatsapp.mirror import apps, onboarding

TEMPLATE = "whatsapp/simulate.html"


async def show(request: Request) -> Answer:
    """The form."""
    return Page(template=TEMPLATE, values=await _values(request))


async def submit(request: Request) -> Answer:
    """Process it like a callback from Meta."""
    key = apps.seal_key(request.services.settings)
    try:
        async with request.writing() as conn:
            made = await _make(conn, request)
        await simulated.deliver(request.services.pool, key, made)
    except Invalid as refusal:
        return refused(TEMPLATE, refusal, await _values(request))
    where = f"{HERE}/accounts/{request.id('organization')}/{request.id()}/simulate"
    return Redirect(location=where, notice=request.text("It came in: a worker applies it like any other callback."))


async def _make(conn: Connection, request: Request) -> Callback:
    form, at, wrong = request.form, clock.now(), Problems()
    of = await organization(conn, request)
    try:
        key = apps.seal_key(request.services.settings)
        number = await simulated.find_number(conn, key, of.id, form.get("number", ""))
    except NotFound:
        raise Invalid(("number", "enum", "Choose one of its numbers.")) from None
    if form.get("what") != "status":
        user, text = form.get("from", ""), form.get("text", "")
        if phones.read(user, region=None) is None:
            wrong.add("from", "format", "Enter a phone number with its country code, such as +258841234567.")
        with wrong.gathering():
            return await simulated.message(conn, request.principal, number, user=user, text=text, at=at)
        raise wrong.refusal()
    status, message = form.get("status", ""), form.get("message", "").strip()
    if uuid_in(message) is None:
        wrong.add("message", "format", "An id looks like 0199c0de-0000-7000-8000-000000000000.")
    try:
        with wrong.gathering():
            return await simulated.status(conn, request.principal, number, message=message, status=status, at=at)
    except NotFound:
        wrong.add("message", "unknown", "No such message was sent from this number.")
    raise wrong.refusal()


async def _values(request: Request) -> dict[str, Any]:
    form = request.form
    async with request.reading() as conn:
        of = await organization(conn, request)
        one = await onboarding.find_account(conn, of.id, str(request.id()))
        numbers = [row for row in await onboarding.numbers_of(conn, of.id) if row["waba_id"] == one.waba_id]
    return {
        "of": of,
        "one": one,
        "numbers": [(str(row["id"]), row["display_phone_number"]) for row in numbers],
        "statuses": simulated.STATUSES,
        "typed": {name: form.get(name, "") for name in ("number", "from", "text", "message", "status")},
        "what": "status" if "status" in (form.get("what"), request.query.get("what")) else "message",
    }
