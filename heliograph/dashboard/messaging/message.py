"""Message: everything about one message, with explanations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.campaigns import pausing
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut
from heliograph.contacts import records
from heliograph.dashboard import visibility
from heliograph.dashboard.messaging import explaining
from heliograph.dashboard.sending import code, whatsapp_form
from heliograph.overview import documents, messages
from heliograph.overview.exports.changes import WAITING
from heliograph.overview.messages import Message, MessageDetail
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.pieces import timeline
from heliograph.pages.pieces.parts import Parts
from heliograph.pages.requests import Request
from heliograph.people.roles import DEVELOP, REVEAL
from heliograph.sms import messages as sms
from heliograph.sms.accepting import preview, withdrawal
from heliograph.sms.messages import MessageNotCancelable, Waiting
from heliograph.webhooks import endpoints
from heliograph.webhooks import timeline as webhooks
from heliograph.webhooks.recording import feed
from heliograph.whatsapp import messages as whatsapp
from heliograph.whatsapp.dispatch.parking import WAITS

#: Non-GSM characters listed.
NAMED = 8
#: Precision with which the queue stores the end of quiet hours.
SAME = timedelta(seconds=1)


async def show(request: Request) -> Answer:
    """One message."""
    async with request.reading() as conn:
        values = await _current(conn, request, request.id())
    return Page(
        template="messaging/message_live.html" if request.is_fragment else "messaging/message.html", values=values
    )


async def panel(request: Request, id: UUID) -> dict[str, Any]:
    """The values of the message that is open next to a list. Raises NotFound."""
    async with request.reading() as conn:
        return await _current(conn, request, id) | {"panel": id}


async def _current(conn: Connection, request: Request, id: UUID) -> dict[str, Any]:
    """The values of a message. Raises NotFound."""
    actor = request.actor
    # One snapshot: a delivery that is recorded meanwhile is queued, and the page renewed, or it is on the page.
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        detail = await messages.get(conn, actor, id=id)
        is_pending = await webhooks.is_pending(conn, actor.organization_id, detail.events)
    is_over = detail.message.is_final and not is_pending
    return await _values(conn, request, detail) | {"is_over": is_over}


async def reveal(request: Request) -> Answer:
    """One message with its number and text, for readers who may see them one at a time."""
    async with request.writing() as conn:
        detail = await messages.reveal(conn, request.actor, id=request.id())
        values = await _values(conn, request, detail, is_revealed=True) | {"is_over": True}
    return Page(template="messaging/message.html", values=values)


async def show_cancel(request: Request) -> Answer:
    """What canceling would do; the message's page if it can no longer be canceled."""
    async with request.reading() as conn:
        detail = await messages.get(conn, request.actor, id=request.id())
        may_cancel = await _may_cancel(conn, request, detail.message)
    message = detail.message
    if not may_cancel:
        said = request.text(MessageNotCancelable().message) if message.channel == "sms" else ""
        return Redirect(location=request.to(f"/messages/{message.id}"), notice=said, is_refusal=True)
    values = {"message": message, "whole": visibility.is_whole(request, message.person_id)}
    return Page(template="messaging/message_cancel.html", values=values)


async def _may_cancel(conn: Connection, request: Request, message: Message) -> bool:
    """Whether nobody has it yet. One that was tried may be waiting because its supplier deferred it."""
    if message.channel != "sms" or message.status not in WAITING:
        return False
    return message.id in await withdrawal.cancelable(conn, request.actor.organization_id, [message.id])


async def cancel(request: Request) -> Answer:
    """Cancel an SMS that has not been handed over."""
    id = request.id()
    try:
        async with request.writing() as conn:
            await sms.cancel(conn, request.actor, id=id)
    except MessageNotCancelable as refusal:
        return Redirect(location=request.to(f"/messages/{id}"), notice=request.text(refusal.message), is_refusal=True)
    return Redirect(
        location=request.to(f"/messages/{id}"),
        notice=request.text("The message is canceled and refunded."),
    )


async def _values(
    conn: Connection, request: Request, detail: MessageDetail, *, is_revealed: bool = False
) -> dict[str, Any]:
    message, actor = detail.message, request.actor
    # Among simultaneous steps: the report, then the status it caused, then the webhook about that.
    steps = sorted(
        [*detail.behind, *detail.steps], key=lambda step: (step.at, step.report is None, step.status is None)
    )
    whole = is_revealed or visibility.is_whole(request, message.person_id)
    text = detail.text if whole else None
    parts = Parts(request)
    looked = messages.near(conn, actor, recipient=message.recipient)
    near: Sequence[Message] = await parts.load("near", looked, otherwise=[])
    explained = await parts.load("why", _explained(conn, request, message, near), otherwise=None)
    is_sms = message.channel == "sms"
    waits = "" if message.is_final or message.direction == "inbound" else await _waits(conn, request, message)
    may_develop = request.may("webhooks:read", DEVELOP)
    events = await feed.get_many(conn, actor, ids=detail.events) if may_develop and whole and detail.events else []
    may_write = request.may("contacts:write", mode="live") and message.direction == "outbound" and whole
    opt_out = await _opt_out(conn, request, message)
    return {
        "parts": parts,
        "often": [] if explained is None else explained.often,
        "delay": "" if explained is None else explained.delay,
        "charge": "" if explained is None else explained.charge,
        "known": await _known(conn, request, message) if may_write else None,
        "opt_out": opt_out,
        "said_in": await _said_in(conn, request, message, opt_out),
        "may_resend": request.may("webhooks:write"),
        "snippets": await _code(conn, request, message, text) if may_develop and text is not None else [],
        "is_revealed": is_revealed,
        "may_reveal": not whole and request.may(permission=REVEAL),
        "message": message,
        "line": "".join((await messages.numbers(conn, actor, listed=[message])).values()),
        "text": text,
        "outside": detail.values if whole else [],
        "is_outdated": detail.is_outdated,
        "content": None if detail.content in ("text", "template") or not whole else detail.content,
        "lines": timeline.lines(steps),
        "reports": words.REPORTS,
        "whole": whole,
        "took": None
        if message.direction == "inbound"
        else messages.took(accepted_at=message.accepted_at, send_at=message.send_at, delivered_at=message.delivered_at),
        "may_cancel": request.may("sms:send") and await _may_cancel(conn, request, message),
        "may_send": request.may("sms:send") and (is_sms or request.may("whatsapp:send")),
        "may_develop": may_develop,
        "may_see_endpoints": request.may("webhooks:read"),
        "endpoints": await _endpoints(conn, request, steps),
        "campaigns": await visibility.campaigns(conn, request, [message.campaign_id]),
        "key_name": await _key_name(conn, request, message),
        "person_name": await visibility.name(conn, request, message.person_id),
        "waits": waits,
        "unknown_at": messages.unknown_at(request.services.settings, status=message.status, sent_at=message.sent_at)
        if is_sms
        else None,
        "strange": _strange(request, message, text),
        "neighbours": messages.others(near, message.id),
        "document": documents.written(documents.of_message(message, text=text, whole=whole)),
        "events": [(one.kind, documents.written(documents.of_event(one))) for one in events],
    }


class Explained(msgspec.Struct, frozen=True):
    """Sentences: how often messages end like this one, what it waited for, and what it cost."""

    often: Sequence[str]
    delay: str
    charge: str


async def _explained(conn: Connection, request: Request, message: Message, near: Sequence[Message]) -> Explained:
    return Explained(
        await explaining.often(conn, request, message, near),
        await explaining.delayed(conn, request, message),
        await explaining.charged(conn, request, message),
    )


class Known(msgspec.Struct, frozen=True):
    """Whether a recipient is a contact. `contact`: the contact's id; None: not a contact."""

    contact: UUID | None


async def _known(conn: Connection, request: Request, message: Message) -> Known | None:
    """The recipient's contact, if any; None if the recipient is not a phone number."""
    if not message.recipient.startswith("+"):
        return None
    found = await records.find(conn, request.actor, text=message.recipient, country=None, limit=1)
    return Known(found[0].id if found else None)


async def _opt_out(conn: Connection, request: Request, message: Message) -> OptOut | None:
    """The current opt-out of the message's recipient or sender, for readers who may see opt-outs."""
    if not request.may("contacts:read", mode="live"):
        return None
    return await optouts.of_recipient(conn, request.acting("live"), recipient=message.recipient)


async def _said_in(conn: Connection, request: Request, message: Message, opt_out: OptOut | None) -> UUID | None:
    """The message with which somebody opted out, if it is another one and has a page."""
    said_in = None if opt_out is None else opt_out.message_id
    if said_in is None or said_in == message.id:
        return None
    found = await messages.by_ids(conn, request.actor, ids=[said_in])
    return found[0].id if found else None


async def _code(conn: Connection, request: Request, message: Message, text: str) -> list[code.Snippet]:
    """The same send as code; empty for a received message."""
    if message.direction != "outbound":
        return []
    if message.channel == "whatsapp":
        return code.of_whatsapp(request, await whatsapp_form.again(conn, request, id=message.id))
    body = {"to": message.recipient, "message": text, "senderName": message.sender}
    if message.client_reference is not None:
        body["clientReference"] = message.client_reference
    # What a send that says neither means is left out, so that the code stays short.
    if message.traffic_class != "transactional":
        body["class"] = message.traffic_class
    if message.guarantee != request.actor.guarantee:
        body["deliveryGuarantee"] = message.guarantee
    return code.snippets(request, "/v1/sms/send", {name: value for name, value in body.items() if value})


async def _endpoints(conn: Connection, request: Request, steps: Sequence[sms.Step]) -> dict[UUID, str]:
    """What the endpoints of webhook attempts are called, for readers who may see them."""
    ids = {step.delivery.endpoint_id for step in steps if step.delivery is not None}
    if not request.may("webhooks:read"):
        return {}
    named = await endpoints.urls(conn, request.actor, ids=ids)
    return {id: request.text("Catcher") if url == endpoints.CATCHER else url for id, url in named.items()}


async def _key_name(conn: Connection, request: Request, message: Message) -> str:
    """The key's name, for readers who may see keys."""
    if message.key_id is None:
        return ""
    return (await visibility.key_names(conn, request, [message.key_id])).get(message.key_id, "")


async def _waits(conn: Connection, request: Request, message: Message) -> str:
    """What a message not sent yet is waiting for, in a sentence; "": nothing in particular."""
    if message.channel == "sms":
        waiting = await sms.waiting(conn, request.actor, id=message.id)
        return "" if waiting is None else _sms_waits(request, message, waiting)
    found = await whatsapp.waiting(conn, request.actor.organization_id, id=message.id)
    return "" if found is None else _whatsapp_waits(request, message, found)


def _whatsapp_waits(request: Request, message: Message, waiting: whatsapp.Waiting) -> str:
    text = request.text
    if waiting.is_begun:
        return text("It is being handed over.")
    if message.campaign_id is not None and pausing.is_put_off(waiting.due_at):
        return text("Its campaign is paused. It is sent once somebody resumes it.")
    if waiting.template_status in WAITS:
        return text(
            "It waits for its template: %(status)s.", status=text(words.TEMPLATE_STATUSES[waiting.template_status])
        )
    if waiting.template_status is not None:
        return text("It waits until WhatsApp has confirmed its template.")
    if waiting.held_until is not None:
        return text("WhatsApp holds its number back. It is sent once that is over.")
    if waiting.reached_limit is not None:
        limit = request.locale.number(waiting.reached_limit)
        return text(
            "WhatsApp's limit is reached: %(limit)s people in 24 hours. It is sent once others may be written to.",
            limit=limit,
        )
    return ""


def _sms_waits(request: Request, message: Message, waiting: Waiting) -> str:
    text, moment = request.text, request.locale.moment
    if waiting.is_begun:
        return text("It is being handed over.")
    if waiting.is_suspicious:
        return text("It is held: unusually many messages go to numbers like this one. Your operator is reviewing it.")
    if message.campaign_id is not None and pausing.is_put_off(waiting.due_at):
        return text("Its campaign is paused. It is sent once somebody resumes it.")
    if waiting.is_later and message.quiet_until and abs(waiting.due_at - message.quiet_until) < SAME:
        return text("Quiet hours where the recipient is: marketing waits until %(time)s.", time=moment(waiting.due_at))
    if message.send_at is not None and waiting.is_later and waiting.tries == 0:
        return text("It waits for its time, %(time)s.", time=moment(waiting.due_at))
    if waiting.is_later:
        return text("It could not be handed over yet and is tried again at %(time)s.", time=moment(waiting.due_at))
    if waiting.is_held:
        return text("Your operator is holding messages back.")
    if message.campaign_id is not None:
        return text("It waits for its turn: single messages go before those of campaigns.")
    return text("It waits for its turn.")


def _strange(request: Request, message: Message, text: str | None) -> str:
    """Why a text is not GSM, by its non-GSM characters; what plain letters would save."""
    if text is None or message.encoding != "ucs2":
        return ""
    measured = preview.measure(request.actor, text)
    if not measured.strange:
        return ""
    named = " ".join(measured.strange[:NAMED]) + (" …" if len(measured.strange) > NAMED else "")
    if measured.plain is not None and measured.plain_segments < (message.segments or 0):
        return request.text(
            "Not in the GSM alphabet: %(characters)s. Plain letters would save %(count)s segments.",
            characters=named,
            count=(message.segments or 0) - measured.plain_segments,
        )
    return request.text("Not in the GSM alphabet: %(characters)s.", characters=named)
