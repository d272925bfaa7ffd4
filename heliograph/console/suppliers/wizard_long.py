"""The wizard's long message: three parts to a handset, followed to their receipts, and what they reveal.

Receipts show which parts they belong to. Only somebody who looks at the handset can say whether it joined the parts,
so the page asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from heliograph.base.errors import Invalid
from heliograph.console.suppliers import wizard, wizard_message
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.sms.dispatch import suppliers
from heliograph.sms.management import drafts, long_messages
from heliograph.sms.management.drafts import Draft, Trial

#: How it can have arrived.
ARRIVED = ("joined", "apart", "cut")


async def show(request: Request) -> Answer:
    """The form, the progress of the last test message, and what it revealed."""
    draft = await wizard.read(request)
    template = "suppliers/wizard_long_live.html" if request.is_fragment else "suppliers/wizard_long.html"
    return Page(template=template, values=_values(request, draft))


async def send(request: Request) -> Answer:
    """Send it outside the queue; only the result is stored."""
    draft = await wizard.read(request)
    try:
        number, sender = wizard_message.addressed(request)
        wizard_message.demand_idle(draft)
        await wizard_message.try_draft(request, draft, number, sender, long_messages.TEXT, is_long=True)
    except Invalid as refusal:
        return refused("suppliers/wizard_long.html", refusal, _values(request, draft))
    return _here(draft)


async def arrived(request: Request) -> Answer:
    """Record how it arrived on the handset."""
    draft = await wizard.read(request)
    trial, how = drafts.long_ended(draft.trial), request.form.get("arrived", "")
    if trial is None or how not in ARRIVED:
        return _here(draft)
    async with request.writing() as conn:
        await drafts.keep_trial(conn, draft.id, msgspec.structs.replace(trial, arrived=how))
    return _here(draft)


async def decide(request: Request) -> Answer:
    """Let the receipts that do arrive decide."""
    draft = await wizard.read(request)
    trial = drafts.long_ended(draft.trial)
    parts = long_messages.reported(trial.followed, draft.place["parts"]).parts if trial is not None else ""
    if not parts:
        return _here(draft)
    async with request.writing() as conn:
        changed = msgspec.structs.replace(draft, place=draft.place | {"parts": parts})
        await drafts.save(conn, suppliers.seal_key(request.services.settings), changed)
    return _here(draft, request.text("It is set: the receipts that arrive decide the status of long messages."))


async def join(request: Request) -> Answer:
    """Switch to the next way of joining parts; earlier test messages say nothing about it."""
    draft = await wizard.read(request)
    trial = drafts.long_ended(draft.trial)
    way = long_messages.joining(draft.kind, draft.settings, trial.arrived) if trial is not None else ""
    if not way:
        return _here(draft)
    async with request.writing() as conn, conn.transaction():
        changed = msgspec.structs.replace(draft, settings=draft.settings | {"long_messages": way})
        await drafts.save(conn, suppliers.seal_key(request.services.settings), changed)
        await drafts.forget_trial(conn, draft.id)
    return _here(draft, request.text("It is set. Send the message again to see whether it now arrives as one text."))


def _here(draft: Draft, notice: str = "") -> Answer:
    return Redirect(location=f"/console/drafts/{draft.id}/long", notice=notice)


def _values(request: Request, draft: Draft) -> dict[str, Any]:
    trial = draft.trial if draft.trial is not None and draft.trial.is_long else None
    values = shown(request, trial, draft.kind, draft.settings, draft.place["parts"])
    return wizard.steps(draft, "long") | values | {"here_of": f"/console/drafts/{draft.id}"}


def shown(request: Request, trial: Trial | None, kind: str, settings: Mapping[str, Any], parts: str) -> dict[str, Any]:
    """The values of a long message's form and fragment."""
    ended = drafts.long_ended(trial)
    return wizard_message.followed(request, trial) | {
        "is_ended": ended is not None,
        "found": long_messages.reported(trial.followed, parts) if trial is not None else None,
        "joining": long_messages.joining(kind, settings, ended.arrived) if ended is not None else "",
        "joined": settings.get("long_messages", "udh8"),
        "sent": long_messages.TEXT,
    }
