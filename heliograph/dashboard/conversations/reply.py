"""Replying: by SMS from the sender ID that they wrote to, by WhatsApp while the window is open."""

from __future__ import annotations

from heliograph.accounts import idempotency
from heliograph.base import naming
from heliograph.base.errors import Invalid, Refusal
from heliograph.dashboard.conversations import inbox
from heliograph.dashboard.sending import refusals
from heliograph.inbox import threads
from heliograph.inbox.threads import Thread
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM
from heliograph.sms.accepting import accept as sms
from heliograph.whatsapp.accepting import accept as whatsapp

#: Maximum characters of a WhatsApp text.
LONGEST = 4_096


async def send(request: Request) -> Answer:
    """Send the reply, once per form."""
    id = request.id()
    async with request.reading() as conn:
        thread = await threads.get(conn, request.actor, id=id)
    text = request.form.get("message", "")
    try:
        await _accept(request, thread, text)
    except Refusal as refusal:
        if not refusals.is_told(refusal):
            raise
        told = refusals.form_refusal(request, refusal)
        values = await inbox.page(request, id, typed=text, is_refused=True)
        return Page(template="conversations/inbox.html", values=values, status=422, refusal=told)
    return Redirect(location=inbox.address(request, id) + "#reply")


async def back(request: Request) -> Answer:
    """A GET for the address that the form posts to: go to the conversation."""
    return Redirect(location=inbox.address(request, request.id()))


async def _accept(request: Request, thread: Thread, text: str) -> None:
    longest = sms.MAX_TEXT if thread.channel == "sms" else LONGEST
    if not naming.is_readable(text):
        raise Invalid(("message", "required", SEND_FORM["message.required"]))
    if len(text) > longest:
        raise Invalid(("message", "long", SEND_FORM["message.long"]))
    once = request.form.get("_once", "")
    if not once or len(once) > idempotency.MAX_LENGTH:
        raise Invalid(("form", "required", SEND_FORM["form.required"]))
    known_by = idempotency.key_hash(request.mode, "PAGE", request.path, f"{request.person.user_id} {once}")
    says = idempotency.request_hash([str(request.person.user_id), str(thread.id), text])
    if thread.channel == "sms":
        await request.services.sms.accept(
            sms.Send(
                actor=request.actor,
                to=thread.peer,
                text=text,
                sender_id=thread.line_id,
                request_id=request.request_id,
                trace=request.trace,
                key_hash=known_by,
                request_hash=says,
            )
        )
        return
    await request.services.whatsapp.accept(
        whatsapp.Send(
            actor=request.actor,
            to=thread.peer,
            number_id=thread.line_id,
            content=whatsapp.TextReply(text),
            request_id=request.request_id,
            trace=request.trace,
            key_hash=known_by,
            request_hash=says,
        )
    )
