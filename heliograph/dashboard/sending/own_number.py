"""The person's own number, on which a message is tried before others receive it: add, prove by a code, remove."""

from __future__ import annotations

from typing import Any

from heliograph.accounts import organizations
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.errors import Invalid, Refusal
from heliograph.dashboard.sending import refusals
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM
from heliograph.sms.accepting.accept import Send
from heliograph.sms.by_hand import own_numbers
from heliograph.sms.by_hand.own_numbers import TooManyCodes

TEMPLATE = "sending/own_number.html"
PATH = "/account/number"


async def show(request: Request) -> Answer:
    """The number, or the form for one, or for the code sent to it."""
    return Page(template=TEMPLATE, values=await _values(request))


async def ask(request: Request) -> Answer:
    """Send a code to a number."""
    typed = request.form.get("phone", "").strip()[:40]
    actor = request.acting("live")
    async with request.reading() as conn:
        home = (await organizations.get(conn, id=actor.organization_id)).country
    number = phones.read(typed, region=home)
    try:
        if number is None:
            raise Invalid(("phone", "pattern", SEND_FORM["own.pattern"]))
        async with request.writing() as conn:
            code = await own_numbers.ask(conn, user_id=request.person.user_id, phone=number)
        await _send(request, actor, number, code)
    except TooManyCodes as refusal:
        return refused(TEMPLATE, Invalid(("phone", refusal.code, refusal.message)), await _values(request, typed))
    except Refusal as refusal:
        if not refusals.is_told(refusal):
            raise
        wrong = refusals.form_refusal(request, refusal).details["fields"][0]
        return refused(TEMPLATE, Invalid(("phone", wrong["issue"], wrong["message"])), await _values(request, typed))
    return Redirect(location=PATH)


async def prove(request: Request) -> Answer:
    """Check the code."""
    try:
        # Outside a transaction, which the refusal would roll back: a wrong attempt counts.
        async with request.writing() as conn:
            await own_numbers.prove(
                conn, request.actor, user_id=request.person.user_id, code=request.form.get("code", "")[:20]
            )
    except Invalid as refusal:
        issue = refusal.details["fields"][0]["issue"]
        return refused(TEMPLATE, Invalid(("code", issue, SEND_FORM[f"code.{issue}"])), await _values(request))
    return Redirect(location=PATH, notice=request.text("This number is yours now."))


async def remove(request: Request) -> Answer:
    """Remove the number."""
    async with request.writing() as conn:
        await own_numbers.forget(conn, request.actor, user_id=request.person.user_id)
    return Redirect(location=PATH, notice=request.text("The number was removed."))


async def _send(request: Request, actor: Actor, number: str, code: str) -> None:
    """Send a code. Raises what accepting it raises; refused, it is as if none had been asked for."""
    text = request.text("%(code)s is the code that verifies this number. It is valid for 15 minutes.", code=code)
    try:
        await request.services.sms.accept(
            Send(actor=actor, to=number, text=text, request_id=request.request_id, trace=request.trace)
        )
    except Refusal as refusal:
        if refusals.is_told(refusal):
            async with request.writing() as conn:
                await own_numbers.take_back(conn, user_id=request.person.user_id, phone=number, code=code)
        raise


async def _values(request: Request, typed: str = "") -> dict[str, Any]:
    async with request.reading() as conn:
        own = await own_numbers.get(conn, user_id=request.person.user_id)
    return {"own": own, "typed": typed}
