"""Approvals: sender IDs awaiting a decision, oldest first, with the facts needed to decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.base.database import clock
from heliograph.base.errors import Invalid, NotFound
from heliograph.console.acting import acting_for, organization
from heliograph.console.credentials.senders import shared_note
from heliograph.console.engine.console_cache import cache_of
from heliograph.overview.installation import approvals
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVE
from heliograph.sms.accepting import four_eyes, sender_ids, sender_questions
from heliograph.sms.received import unassigned

HERE = "/console/approvals"
#: Texts about an undo.
UNDONE: Mapping[str, str] = {
    "undone": "The decision is undone.",
    "late": "It is too late to undo this decision. The sender ID can still be suspended.",
    "moved": "It was decided again in the meantime, so nothing was undone.",
    "used": "It is in use already, so this decision cannot be undone. The sender ID can still be suspended.",
}
#: Countries named of those that an organization may send to.
NAMED = 6


async def show(request: Request) -> Answer:
    """The sender IDs awaiting a decision."""
    async with request.reading() as conn:
        listed = await approvals.waiting(conn, cache_of(request).resemblance, is_renewal=request.is_fragment)
    values = {
        "waiting": listed,
        "most": approvals.MOST,
        "days": approvals.DAYS,
        "named": NAMED,
        "may_decide": request.may(permission=APPROVE),
        "mine": four_eyes.identity(request.principal),
    }
    return Page(
        template="approvals/senders_live.html" if request.is_fragment else "approvals/senders.html", values=values
    )


async def approve(request: Request) -> Answer:
    """Approve it: the organization may use it from now on."""
    return await _decided(request, "approved", None, request.text("“%(value)s” is approved."))


async def show_reject(request: Request) -> Answer:
    """The form for the reason; its fragment previews what is being typed as the organization will read it."""
    values = await _values(request)
    values |= {"told": _reason(request, request.query), "chosen": request.query.get("canned", "")}
    template = "approvals/sender_told.html" if request.is_fragment else "approvals/sender_reject.html"
    return Page(template=template, values=values)


async def reject(request: Request) -> Answer:
    """Reject it with a reason that its organization reads; or preview this."""
    reason = _reason(request, request.form)
    if request.form.get("do") == "look":
        return Page(template="approvals/sender_reject.html", values=await _values(request))
    try:
        if not reason:
            raise Invalid(("reason", "required", "Choose a reason, or write one: the organization can read it."))
        return await _decided(request, "rejected", reason, request.text("“%(value)s” is rejected."))
    except Invalid as refusal:
        return refused("approvals/sender_reject.html", refusal, await _values(request))


async def show_ask(request: Request) -> Answer:
    """The form for a question to the organization."""
    return Page(template="approvals/sender_ask.html", values=await _values(request))


async def ask(request: Request) -> Answer:
    """Ask the organization, whose people are notified; the sender ID keeps waiting."""
    try:
        async with request.writing() as conn:
            one = await organization(conn, request)
            asked = request.form.get("question", "")
            await sender_questions.ask(conn, acting_for(request, one), id=request.id(), question=asked)
    except Invalid as refusal:
        return refused("approvals/sender_ask.html", refusal, await _values(request))
    return Redirect(location=HERE, notice=request.text("The question was sent to %(name)s.", name=one.name))


async def undo(request: Request) -> Answer:
    """Undo a recent decision, which the address names by its time."""
    decided = clock.time_in(request.query.get("decided", ""))
    if decided is None:
        raise NotFound
    async with request.writing() as conn:
        one = await organization(conn, request)
        undone = await sender_ids.reopen(conn, acting_for(request, one), id=request.id(), reviewed_at=decided)
    return Redirect(location=HERE, notice=request.text(UNDONE[undone]), is_refusal=undone != "undone")


async def _decided(request: Request, status: str, reason: str | None, said: str) -> Answer:
    id = request.id()
    async with request.writing() as conn, conn.transaction():
        one = await organization(conn, request)
        actor = acting_for(request, one)
        before = (await sender_ids.lock(conn, actor)).get(id)
        sender = await sender_ids.review(conn, actor, id=id, status=status, reason=reason)
        note = shared_note(request, await unassigned.also_of(conn, actor, sender))
    if sender.status != status:
        said = request.text("You approved “%(value)s”. It is approved once another operator does so too.")
        return Redirect(location=HERE, notice=said % {"value": sender.value})
    undo = ""
    # If it had been decided already, there is another decision, perhaps somebody else's, that would be undone with it.
    if before is not None and before["status"] == "pending" and sender.reviewed_at is not None:
        undo = request.to(f"{HERE}/{one.id}/{id}/undo", decided=sender.reviewed_at.isoformat())
    return Redirect(location=HERE, notice=said % {"value": sender.value} + note, undo=undo)


def _reason(request: Request, typed: Mapping[str, str]) -> str:
    """The reason in the operator's own words, or the chosen one; "": none yet."""
    canned = words.REJECTED_SENDER.get(typed.get("canned", ""), "")
    return typed.get("reason", "").strip() or (request.text(canned) if canned else "")


async def _values(request: Request) -> dict[str, Any]:
    id = request.id()
    async with request.reading() as conn:
        one = await organization(conn, request)
        listed = await sender_ids.list_all(conn, acting_for(request, one))
    sender = next((known for known in listed if known.id == id), None)
    if sender is None:
        raise NotFound
    return {
        "one": one,
        "sender": sender,
        "canned": words.REJECTED_SENDER,
        "chosen": request.form.get("canned", ""),
        "told": _reason(request, request.form),
        "reason": request.form.get("reason", ""),
        "question": request.form.get("question", ""),
    }
