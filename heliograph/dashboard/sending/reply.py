"""Sending a WhatsApp reply: free text to somebody who wrote within the last 24 hours, from the same number."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import idempotency
from heliograph.base import naming, phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal
from heliograph.consent import optouts
from heliograph.contacts import suggesting
from heliograph.dashboard import visibility
from heliograph.dashboard.sending import linked, refusals, sms_form, whatsapp_form
from heliograph.dashboard.sending.sms_form import Recipient
from heliograph.overview import messages
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM
from heliograph.people.roles import CONVERSE
from heliograph.whatsapp import number_states, reads
from heliograph.whatsapp.accepting.accept import Send, TextReply
from heliograph.whatsapp.reads import Conversation, ConversationFilters

PAGE = "sending/reply.html"
#: Open conversations offered, one person's conversations examined, and maximum characters of a text.
OFFERED, LOOKED_AT, LONGEST = 20, 20, 4_096


class Typed(msgspec.Struct, frozen=True):
    """The fields of the form as typed."""

    to: str = ""
    #: Id of a number.
    number: str = ""
    message: str = ""
    #: In test mode: one of `sms_form.OUTCOMES`.
    outcome: str = ""


async def show(request: Request) -> Answer:
    """The form, empty or for a recipient, and next to it a reply just sent."""
    found = await linked.message(request, request.query.get("sent"))
    sent = None if found is None else found.message
    if sent is not None and request.is_fragment:
        return Page(template="sending/sent_live.html", values={"sent": sent})
    given = Typed(request.query.get("to", "")[: sms_form.LONGEST_NAME], request.query.get("number", ""))
    if (id := linked.id_in(request.query.get("again"))) is not None:
        given = await _again(request, id)
    return Page(template=PAGE, values=await _values(request, given) | {"sent": sent})


async def show_preview(request: Request) -> Answer:
    """Preview the recipient, and until when the window is open. Nothing is stored."""
    return Page(template=PAGE, values=await _values(request, _typed(request)) | {"sent": None})


async def send(request: Request) -> Answer:
    """Send it, once per form."""
    given = _typed(request)
    sent = await whatsapp_form.accept(request, lambda conn: _read(request, conn, given))
    if isinstance(sent, Refusal):
        values = await _values(request, given)
        return Page(
            template=PAGE, values=values | {"sent": None}, status=422, refusal=refusals.form_refusal(request, sent)
        )
    return Redirect(location=request.to("/send", channel="reply", to=given.to, number=given.number, sent=sent))


async def back(request: Request) -> Answer:
    """A GET for the address that the form posts to: go to the form."""
    return Redirect(location=request.to("/send", channel="reply"))


async def _again(request: Request, id: UUID) -> Typed:
    """An earlier reply, as far as the reader may see it."""
    async with request.reading() as conn:
        earlier = await whatsapp_form.again(conn, request, id=id)
        whole = visibility.is_whole(request, (await messages.get(conn, request.actor, id=id)).message.person_id)
    text = earlier.content.body if isinstance(earlier.content, TextReply) else ""
    return Typed(earlier.to, str(earlier.number_id), text) if whole else Typed(number=str(earlier.number_id))


def _typed(request: Request) -> Typed:
    form = request.form
    to = form.get("take") or form.get("to", "")
    return Typed(to, form.get("number", ""), form.get("message", ""), form.get("outcome", ""))


async def _read(request: Request, conn: Connection, given: Typed) -> Send:
    wrong: list[tuple[str, str]] = []
    number, fault = await sms_form.addressee(request, conn, given.to, given.outcome, meant=whatsapp_form.recipient)
    if fault:
        wrong.append(("to", fault))
    if not naming.is_readable(given.message):
        wrong.append(("message", "required"))
    elif len(given.message) > LONGEST:
        wrong.append(("message", "long"))
    line = None
    try:
        line = UUID(given.number)
    except ValueError:
        wrong.append(("number", "unknown"))
    once = request.form.get("_once", "")
    if not once or len(once) > idempotency.MAX_LENGTH:
        wrong.append(("form", "required"))
    if wrong or number is None or line is None:
        raise Invalid(*((field, issue, SEND_FORM[f"{field}.{issue}"]) for field, issue in wrong))
    return Send(
        actor=request.actor,
        to=number,
        number_id=line,
        content=TextReply(given.message),
        request_id=request.request_id,
        trace=request.trace,
        key_hash=idempotency.key_hash(request.mode, "PAGE", "/send/reply", f"{request.person.user_id} {once}"),
        request_hash=idempotency.request_hash([str(request.person.user_id), msgspec.to_builtins(given), number]),
    )


async def _values(request: Request, given: Typed) -> dict[str, Any]:
    actor = request.actor
    async with request.reading() as conn:
        numbers = await number_states.list_all(conn, actor)
        if not given.number and numbers:
            given = msgspec.structs.replace(given, number=str(numbers[0].number.id))
        meant = await whatsapp_form.recipient(request, conn, given.to) if given.to.strip() else None
        window = await _window(request, conn, meant, given.number)
        listed: list[Conversation] = []
        names: dict[str, str] = {}
        if request.may(permission=CONVERSE):
            found, _ = await reads.conversations(conn, actor, filters=ConversationFilters(is_open=True), limit=OFFERED)
            silent = await optouts.current(conn, {(actor.organization_id, one.recipient) for one in found})
            listed = [one for one in found[:OFFERED] if (actor.organization_id, one.recipient) not in silent]
            names = await suggesting.names(conn, actor, phones=[one.recipient for one in listed])
    number = meant.number if meant is not None and meant.number else ""
    return {
        "channel": "reply",
        "given": given,
        "numbers": numbers,
        "recipient": meant,
        "number": phones.spaced(number) if number.startswith("+") else number,
        "window": window,
        # In test mode nobody has written, and a reply can be tried at any time.
        "is_shut": bool(number) and request.mode == "live" and (window is None or not window.is_open),
        "left": _left(window),
        "listed": listed,
        "lefts": {one.id: _left(one) for one in listed},
        "names": names,
        "longest": LONGEST,
        "outcomes": sms_form.OUTCOMES,
    }


async def _window(request: Request, conn: Connection, meant: Recipient | None, number: str) -> Conversation | None:
    if meant is None or meant.number is None:
        return None
    found, _ = await reads.conversations(
        conn, request.actor, filters=ConversationFilters(recipient=meant.number), limit=LOOKED_AT
    )
    return next((one for one in found if str(one.number_id) == number), None)


def _left(one: Conversation | None) -> float | None:
    """Seconds for which the window is open."""
    if one is None or one.expires_at is None or not one.is_open:
        return None
    return max((one.expires_at - clock.now()).total_seconds(), 0.0)
