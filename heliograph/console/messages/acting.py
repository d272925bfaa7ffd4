"""Operators' actions on a message: give it up, send it through another supplier, decide how it ended.

The rule nobody may break: each requires a reason, which the organization reads in its audit log.
"""

from __future__ import annotations

from uuid import UUID

from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.console.messages.looking import HERE, page_values
from heliograph.overview import intervening
from heliograph.pages.answers import Answer, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.sms.intervening import passing_over


async def give_up(request: Request) -> Answer:
    """End it while no supplier has it."""
    id, reason = request.id(), request.form.get("given_up", "")
    try:
        async with request.writing() as conn:
            await intervening.give_up(conn, request.principal, id=id, reason=reason)
    except NotFound:
        raise
    except Refusal as refusal:
        return await _again(request, id, refusal, given_up=reason)
    return Redirect(location=f"{HERE}/{id}", notice=request.text("It has been given up, and will not be sent."))


async def elsewhere(request: Request) -> Answer:
    """Send it through another supplier than the one that it waits for."""
    id, reason = request.id(), request.form.get("elsewhere", "")
    twice = request.form.get("may_arrive_twice") == "yes"
    try:
        async with request.writing() as conn:
            over, others = await passing_over.send_elsewhere(
                conn, request.principal, id=id, reason=reason, may_arrive_twice=twice
            )
    except NotFound:
        raise
    except Refusal as refusal:
        return await _again(request, id, refusal, elsewhere=reason)
    said = request.text("%(over)s is skipped; the message goes to %(others)s.", over=over, others=", ".join(others))
    return Redirect(location=f"{HERE}/{id}", notice=said)


async def decide(request: Request) -> Answer:
    """Decide how it ended."""
    id, reason, status = request.id(), request.form.get("decided", ""), request.form.get("status", "")
    try:
        async with request.writing() as conn:
            await intervening.decide(conn, request.principal, id=id, status=status, reason=reason)
    except NotFound:
        raise
    except Refusal as refusal:
        return await _again(request, id, refusal, decided=reason, status=status)
    return Redirect(location=f"{HERE}/{id}", notice=request.text("Its outcome is set; its event is on its way."))


async def _again(request: Request, id: UUID, refusal: Refusal, **typed: str) -> Answer:
    """The page with what was typed. A refusal that names no field is shown at the reason."""
    reason, *_ = typed
    listed = refusal.details["fields"] if isinstance(refusal, Invalid) else ()
    wrong = [
        (reason if one["field"] == "reason" else one["field"], one["issue"], one["message"]) for one in listed
    ] or [(reason, refusal.code, refusal.message)]
    async with request.reading() as conn:
        values = await page_values(conn, request, id)
    return refused("messages/message.html", Invalid(*wrong), values | typed)
