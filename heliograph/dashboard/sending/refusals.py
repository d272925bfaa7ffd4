"""Refusals of a send, shown at the field concerned, in the reader's language and with the way to a remedy."""

from __future__ import annotations

from datetime import datetime

from heliograph.accounts.spending import SpendLimitReached
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut, RecipientOptedOut
from heliograph.pages.requests import Request
from heliograph.pages.words import SEND_FORM, SEND_WAYS

#: Fields of the rules, and their names on a page.
FIELDS = {
    "sendAt": "day",
    "senderId": "sender",
    "senderName": "sender",
    "clientReference": "reference",
    "phoneNumberId": "number",
    "template.category": "template",
}
#: The field at which a refusal is shown, by its code; all others are shown above the form.
PLACES = {
    "recipient_opted_out": "to",
    "destination_not_allowed": "to",
    "destination_suspicious": "to",
    "challenge_required": "challenged",
    "sender_id_not_approved": "sender",
    "sender_id_not_allowed": "sender",
    "whatsapp_phone_number_unavailable": "number",
    "whatsapp_template_not_found": "template",
    "whatsapp_template_not_approved": "template",
    "whatsapp_template_not_sendable": "template",
    "whatsapp_template_parameter_mismatch": "template",
    "whatsapp_window_closed": "message",
}
#: The page with the remedy for a refusal, by its code; SEND_WAYS has the link texts.
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "quota_exceeded": ("/usage", {}),
    "sender_id_not_approved": ("/senders", {}),
    "sender_id_not_allowed": ("/senders", {}),
    "whatsapp_window_closed": ("/send", {"channel": "template"}),
}


def is_told(refusal: Refusal) -> bool:
    """Whether a refusal is about the message, and shown in its form; this includes the daily limit, but not the rate
    limit of requests."""
    return refusal.status in (400, 403, 409) or isinstance(refusal, SpendLimitReached)


async def find_opt_out(conn: Connection, request: Request, refusal: Refusal, number: str | None) -> OptOut | None:
    """The opt-out of this number, if the refusal is about that; otherwise None."""
    if not isinstance(refusal, RecipientOptedOut) or not number:
        return None
    return await optouts.find(conn, request.actor, phone=number)


def remedy_link(request: Request, refusal: Refusal) -> tuple[str, str] | None:
    """(link text, address) of the page with the remedy for a refusal."""
    known = WAYS.get(refusal.code)
    return known and (request.text(SEND_WAYS[refusal.code]), request.to(known[0], **known[1]))


def problems(request: Request, refusal: Refusal, optout: OptOut | None = None) -> list[str]:
    """A refusal's messages for a preview: a field not filled in yet is not an error, and an ambiguous recipient is
    resolved next to the field."""
    fields = form_refusal(request, refusal, optout).details["fields"]
    return [request.text(one["message"]) for one in fields if one["issue"] not in ("required", "ambiguous")]


def form_refusal(request: Request, refusal: Refusal, optout: OptOut | None = None) -> Invalid:
    """The refusal as a form error, each part at its field."""
    if isinstance(refusal, Invalid):
        # One text covers all that WhatsApp refuses about a value.
        return Invalid(*dict.fromkeys(_field(request, one) for one in refusal.details["fields"]))
    return Invalid((PLACES.get(refusal.code, "form"), refusal.code, explanation(request, refusal, optout)))


def explanation(request: Request, refusal: Refusal, optout: OptOut | None = None) -> str:
    """What a refusal means to the sender. `optout`: the opt-out that it is about."""
    text, details = request.text, refusal.details
    match refusal.code:
        case "recipient_opted_out":
            since = request.locale.moment(datetime.fromisoformat(details["since"]))
            if optout is not None and optout.keyword:
                said = text(
                    "This person wrote “%(word)s” on %(since)s, and gets nothing until they ask for it again.",
                    word=optout.keyword.upper(),
                    since=since,
                )
            elif optout is not None and optout.source == optouts.ORGANIZATION:
                said = text(
                    "Your organization opted this person out on %(since)s. It can be lifted on the page of opt-outs.",
                    since=since,
                )
            else:
                said = text(
                    "This person opted out on %(since)s, and gets nothing until they ask for it again.", since=since
                )
        case "quota_exceeded":
            left = request.locale.number(details["remainingQuota"])
            said = text("The quota does not cover it: %(left)s left.", left=left)
        case "sender_id_not_approved" if details.get("reason") == "no_default":
            said = text("There is no sender to send from: none is approved yet.")
        case "destination_not_allowed":
            country = request.locale.country(details["country"])
            if details["reason"] == "country":
                said = text(
                    "This organization may not send to %(country)s. The settings say where it may.", country=country
                )
            elif details["reason"] == "premium":
                said = text("Premium-rate and shared-cost numbers get no messages.")
            else:
                said = text(
                    "Messages to this number in %(country)s are not supported. Only the operator can change that.",
                    country=country,
                )
        case "destination_suspicious":
            said = text("Unusually many messages go to numbers like this one; nothing is sent there for a while.")
        case "challenge_required":
            said = text("Unusually many messages go to numbers like this one. Make sure that a person asked for it.")
        case "spend_limit_reached" if details["scope"] == "key":
            said = text("The key's daily limit is used up. Counting starts again at midnight UTC.")
        case "spend_limit_reached":
            said = text("The organization's daily limit does not cover it. Counting starts again at midnight UTC.")
        case "wallet_insufficient_funds":
            said = text(
                "The wallet does not cover it: %(required)s %(currency)s needed, %(available)s available.",
                required=details["required"],
                currency=details["currency"],
                available=details["available"],
            )
        case "idempotency_conflict":
            said = text("This form was sent before with other values. Send it again to send what it shows now.")
        case _:
            said = text(refusal.message)
    return said


def _field(request: Request, one: dict[str, str]) -> tuple[str, str, str]:
    name = one["field"]
    shown = kind = FIELDS.get(name, "template" if name.startswith("template.") else name)
    if name.startswith("template.parameters["):
        shown, kind = f"p{int(name[len('template.parameters[') : -1]) + 1}", "p"
    words = SEND_FORM.get(f"{kind}.{one['issue']}")
    return shown, one["issue"], request.text(words) if words else one["message"]
