"""A long test message through a supplier in service, followed to its receipts, and what they reveal.

Like the wizard's, but sent in parallel with the supplier's workers; settings changed here apply to customers'
messages at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.console.suppliers import trying as short
from heliograph.console.suppliers import wizard_long, wizard_message
from heliograph.console.suppliers.listing import HERE, find
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.sms.dispatch import suppliers
from heliograph.sms.management import long_messages, trying


async def show(request: Request) -> Answer:
    """The form, the progress of the last test message, and what it revealed."""
    template = "suppliers/wizard_long_live.html" if request.is_fragment else "suppliers/supplier_long.html"
    return Page(template=template, values=await _values(request))


async def send(request: Request) -> Answer:
    """Send it outside the queue, in parallel with the workers; only the result is stored."""
    try:
        number, sender = wizard_message.addressed(request)
        await short.begin(request, number, sender, long_messages.TEXT, is_long=True)
    except Invalid as refusal:
        return refused("suppliers/supplier_long.html", refusal, await _values(request))
    return _here(request)


async def arrived(request: Request) -> Answer:
    """Record how it arrived on the handset."""
    how = request.form.get("arrived", "")
    if how in wizard_long.ARRIVED:
        async with request.writing() as conn:
            await trying.arrived(conn, supplier_id=request.id(), how=how)
    return _here(request)


async def decide(request: Request) -> Answer:
    """Let the receipts that do arrive decide."""
    said = request.text("It is set: the receipts that arrive decide the status of long messages.")
    return await _set(request, trying.decide, said)


async def join(request: Request) -> Answer:
    """Switch to the next way of joining parts; earlier test messages say nothing about it."""
    said = request.text("It is set. Send the message again to see whether it now arrives as one text.")
    return await _set(request, trying.join, said)


async def _set(request: Request, act: Callable[..., Awaitable[bool]], said: str) -> Answer:
    key = suppliers.seal_key(request.services.settings)
    async with request.writing() as conn:
        done = await act(conn, key, supplier_id=request.id(), by=request.principal)
    return _here(request, said if done else "")


def _here(request: Request, notice: str = "") -> Answer:
    return Redirect(location=f"{HERE}/{request.id()}/long", notice=notice)


async def _values(request: Request) -> dict[str, Any]:
    conn: Connection
    async with request.reading() as conn:
        one = await find(conn, request.id())
        trial = await trying.last(conn, supplier_id=one.id)
    trial = trial if trial is not None and trial.is_long else None
    shown = wizard_long.shown(request, trial, one.kind, one.settings, one.parts)
    return shown | {"one": one, "here_of": f"{HERE}/{one.id}"}
