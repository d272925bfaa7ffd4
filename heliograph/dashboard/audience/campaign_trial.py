"""A campaign tried on whoever writes it, on their own proved number, before anything is created."""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.accounts import idempotency
from heliograph.base.errors import Invalid, Refusal
from heliograph.campaigns import template
from heliograph.campaigns.preview import Preview
from heliograph.dashboard.audience import lists
from heliograph.dashboard.sending import refusals
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM
from heliograph.sms.accepting.accept import Send

#: Fields of a send, and what the form for a campaign calls them; all others stand above it.
_FIELDS = {"message": "text", "sender": "sender"}


class _Sent(msgspec.Struct, frozen=True):
    """The response to an accepted send, as far as it is needed here."""

    class Message(msgspec.Struct, frozen=True):
        """The message."""

        id: UUID

    message: Message


async def send(request: Request, typed: dict[str, str], seen: Preview, own: str) -> UUID:
    """Send what the first example gets to `own`, once for this form, from the campaign's sender and in the class of a
    campaign: it goes the way of the campaign. Returns the message's id. Raises Invalid, each part at its field."""
    once = request.form.get("_once", "")
    if not once or len(once) > idempotency.MAX_LENGTH:
        raise Invalid(("form", "required", SEND_FORM["form.required"]))
    text = seen.examples[0].text if seen.examples else template.filler(typed["text"])((own, "", "", ""))
    person = str(request.person.user_id)
    wanted = Send(
        actor=request.actor,
        to=own,
        text=text,
        sender_id=lists.id_of(typed["sender"]),
        request_id=request.request_id,
        key_hash=idempotency.key_hash(request.mode, "PAGE", "/campaigns/trial", f"{person} {once}"),
        request_hash=idempotency.request_hash([person, own, text, typed["sender"]]),
        traffic_class="marketing",
    )
    try:
        answer = await request.services.sms.accept(wanted)
    except Refusal as refusal:
        if refusal.status not in (400, 403, 409):
            raise
        told = refusals.told(request, refusal).details["fields"]
        raise Invalid(*((_FIELDS.get(one["field"], "form"), one["issue"], one["message"]) for one in told)) from None
    return msgspec.json.decode(answer.body, type=_Sent).message.id
