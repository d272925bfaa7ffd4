"""A campaign tried on whoever writes it, on their own proved number, before anything is created."""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.accounts import idempotency
from heliograph.base.errors import Invalid, Refusal
from heliograph.campaigns import filling, template
from heliograph.campaigns.views.preview import Preview
from heliograph.dashboard.audience.campaign_form import Given
from heliograph.dashboard.sending import refusals
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM
from heliograph.sms.accepting.accept import Send
from heliograph.whatsapp.accepting import accept as whatsapp

#: Fields of a send, and what the form for a campaign calls them; all others stand above it.
_FIELDS = {"message": "text", "sender": "sender", "number": "number", "template": "template"}


class _Sent(msgspec.Struct, frozen=True):
    """The response to an accepted send, as far as it is needed here."""

    class Message(msgspec.Struct, frozen=True):
        """The message."""

        id: UUID

    message: Message


async def send(request: Request, given: Given, seen: Preview, own: str) -> UUID:
    """Send what the first example gets to `own`, once for this form, from the campaign's sender and in the class of a
    campaign: it goes the way of the campaign. Returns the message's id. Raises what a send raises."""
    once = request.form.get("_once", "")
    if not once or len(once) > idempotency.MAX_LENGTH:
        raise Invalid(("form", "required", SEND_FORM["form.required"]))
    person = str(request.person.user_id)
    key = idempotency.key_hash(request.mode, "PAGE", "/campaigns/trial", f"{person} {once}")
    first = seen.examples[0] if seen.examples else None
    if given.filled is not None:
        one, chosen = given.filled, given.filled.entry.template
        values = first.parameters if first else filling.filler(one.parameters)((own, None, None, None, None))
        answer = await request.services.whatsapp.accept(
            whatsapp.Send(
                actor=request.actor,
                to=own,
                number_id=one.number,
                content=whatsapp.TemplateSend(chosen.name, chosen.language, chosen.category, values),
                request_id=request.request_id,
                trace=request.trace,
                key_hash=key,
                request_hash=idempotency.request_hash([person, own, str(one.number), str(chosen.id), values]),
            )
        )
    else:
        text = first.text if first else template.filler(given.text)((own, "", "", ""))
        answer = await request.services.sms.accept(
            Send(
                actor=request.actor,
                to=own,
                text=text,
                sender_id=given.sender,
                request_id=request.request_id,
                trace=request.trace,
                key_hash=key,
                request_hash=idempotency.request_hash([person, own, text, str(given.sender or "")]),
                traffic_class="marketing",
            )
        )
    return msgspec.json.decode(answer.body, type=_Sent).message.id


def told(request: Request, refusal: Refusal) -> Invalid:
    """What a send was refused for, each part at its field."""
    fields = refusals.told(request, refusal).details["fields"]
    return Invalid(*((_FIELDS.get(one["field"], "form"), one["issue"], one["message"]) for one in fields))
