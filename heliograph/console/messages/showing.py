"""Messages: the contents of a message's page, without text and full number unless revealed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.ids import just_above
from heliograph.base.money import micros
from heliograph.base.phones import masked
from heliograph.base.process.logs import NUMBERS, cleaned
from heliograph.base.sentences import Sentence
from heliograph.consent import optouts
from heliograph.console.messages import wording
from heliograph.overview import messages
from heliograph.overview.messages import Message
from heliograph.pages.pieces import timeline
from heliograph.pages.requests import Request
from heliograph.pages.words import STATUSES
from heliograph.people.operators.roles import APPROVE, ORGANIZATIONS
from heliograph.sending.timeline import NOT_TAKEN, Timeline
from heliograph.sms.dispatch.outcomes import deadline
from heliograph.sms.intervening import deciding
from heliograph.whatsapp import intervening as whatsapp


class Step(msgspec.Struct, frozen=True):
    """An event, in the reader's language. `state`: the status that has its colour."""

    at: datetime
    what: str
    state: str
    details: list[tuple[str, Any]]


class Fact(msgspec.Struct, frozen=True):
    """A fact about the message. `link`: the page with more; "": none, or not for this role."""

    label: str
    value: str
    link: str = ""


def values(request: Request, found: Timeline, *, whole: bool) -> dict[str, Any]:
    """The page's values for a message, as it is now."""
    shown = (lambda values: values) if whole else _masked
    message = found.message
    is_inbound = _is_inbound(message)
    status = "received" if is_inbound else message["status"]
    steps = [
        Step(one.at, wording.step(request, one.what), wording.state(one), wording.details(request, shown(one.detail)))
        for one in found.entries
    ]
    return {
        "id": message["id"],
        "organization": message["organization_name"],
        "organization_id": message["organization_id"],
        "status_now": status,
        "is_final": status in messages.FINAL or (status == "delivered" and not _is_read(found)),
        # The time that its callback took is not the time that it took to arrive.
        "took": None
        if is_inbound
        else messages.took(
            accepted_at=message["accepted_at"], send_at=message.get("send_at"), delivered_at=message["delivered_at"]
        ),
        "due_at": message.get("send_at"),
        "until": _until(found),
        "unknown_at": None
        if is_whatsapp(found)
        else messages.unknown_at(request.services.settings, status=message["status"], sent_at=message["sent_at"]),
        "facts": list(_facts(request, found, shown(message))),
        "message": [(name, value) for name, value in shown(message).items() if value is not None],
        "money": [
            (name, label, request.locale.money(amount, message[f"{name}_currency"]), message[f"{name}_due"])
            for name, label in (("price", request.text("Price")), ("cost", request.text("Cost")))
            if (amount := micros(message.get(name) or "")) is not None
        ],
        "lines": timeline.lines(steps),
        "queued": [wording.details(request, shown(one)) for one in found.queued],
        "why": found.why and found.why.words(request.locale.language),
        "evidence": found.evidence and request.locale.sentence(found.evidence),
        "is_rebuilt": any(one.what == "submit" for one in found.entries),
        "is_whole": whole,
        "text": found.text,
        "reason": "",
        "given_up": "",
        "elsewhere": "",
        "decided": "",
        "status": "",
        "acts": _acts(found) if request.may(permission=APPROVE) else (),
        "ends": whatsapp.ENDS if is_whatsapp(found) else deciding.ENDS,
    }


async def opted_out(conn: Connection, request: Request, actor: Actor, found: Timeline) -> list[Fact]:
    """Since when its recipient or sender has been opted out of its organization's messages."""
    known = await optouts.of_recipient(conn, actor, recipient=found.message["recipient"])
    return [] if known is None else [Fact(request.text("Opted out"), request.locale.moment(known.since))]


async def is_charged(conn: Connection, actor: Actor, found: Timeline) -> bool:
    """Whether its organization pays its price: not what never became due, or was taken back with its refund."""
    id = found.message["id"]
    prices = await messages.prices(conn, actor, listed=await messages.by_ids(conn, actor, ids=[id]))
    return id in prices and prices[id].is_due


async def neighbours(conn: Connection, actor: Actor, found: Timeline) -> list[Message]:
    """Its organization's latest other messages to the same person."""
    near = await messages.near(conn, actor, recipient=found.message["recipient"])
    return messages.others(near, found.message["id"])


def is_whatsapp(found: Timeline) -> bool:
    """Whether it is a WhatsApp message."""
    return "billing_category" in found.message


def _is_inbound(message: Mapping[str, Any]) -> bool:
    return message.get("direction") == "inbound"


def _is_read(found: Timeline) -> bool:
    """Whether its channel reports reading, so that delivery is not the end."""
    return is_whatsapp(found)


def _until(found: Timeline) -> datetime | None:
    """Until when it is tried, or its final status is awaited; None: it has arrived, and may yet be read."""
    message = found.message
    if message["status"] == "delivered":
        return None
    if is_whatsapp(found):
        return message["deadline_at"]
    return deadline(message["accepted_at"], message["expires_at"])


def _facts(request: Request, found: Timeline, shown: Mapping[str, Any]) -> Iterable[Fact]:
    message, text = found.message, request.text
    is_here = is_whatsapp(found)
    organization = f"/console/organizations/{message['organization_id']}"
    may_see = request.may(permission=ORGANIZATIONS)
    yield Fact(text("Channel"), "WhatsApp" if is_here else "SMS")
    is_inbound = _is_inbound(message)
    yield Fact(text("From") if is_inbound else text("To"), shown["recipient"])
    if sender := message.get("sender") or message.get("display_phone_number"):
        yield Fact(text("To") if is_inbound else text("From"), sender)
    if is_here and message["template_name"]:
        yield Fact(text("Template"), f"{message['template_name']} ({message['template_language']})")
    if message["client_reference"]:
        yield Fact(text("Customer's reference"), shown["client_reference"])
    if message["campaign_id"]:
        channel = "channel=whatsapp&" if is_here else ""
        link = f"{organization}/campaigns?{channel}after={just_above(message['campaign_id'])}" if may_see else ""
        yield Fact(text("Campaign"), str(message["campaign_id"]), link)
    if message["key_id"]:
        yield Fact(text("Key"), str(message["key_id"]), f"{organization}/keys/{message['key_id']}" if may_see else "")
    if message["person_id"]:
        yield Fact(text("Sent by"), message["person_name"] or text("a person"))
    if message["request_id"] and not is_inbound:
        where = request.to(
            "/console/messages", request_id=message["request_id"], organization=str(message["organization_id"])
        )
        yield Fact(text("Request id"), shown["request_id"], where)
    if message["country"]:
        yield Fact(text("Country"), request.locale.country(message["country"]))
    yield from _carried(request, found)
    yield Fact(text("Mode"), text("Test") if message["mode"] == "test" else text("Live"))


def _carried(request: Request, found: Timeline) -> Iterable[Fact]:
    """Facts specific to its channel."""
    message, text = found.message, request.text
    if not is_whatsapp(found):
        if message["network"]:
            yield Fact(text("Network"), message["network"])
        encoding = "GSM" if message["encoding"] == "gsm7" else "UCS-2"
        yield Fact(text("Segments"), f"{request.locale.number(message['segments'])} · {encoding}")
        if message["route"]:
            yield Fact(text("Route"), message["route"])
        return
    ids = list(dict.fromkeys(one.detail["wamid"] for one in found.entries if one.what == "wamid"))
    if ids:
        yield Fact(text("Id at Meta"), ", ".join(ids))
    if message["billing_category"]:
        yield Fact(text("Category"), message["billing_category"])
    if message["pricing"]:
        by = text(STATUSES[message["priced_by"]]) if message["priced_by"] in STATUSES else message["priced_by"]
        yield Fact(text("Price as Meta reported it"), " · ".join(filter(None, (message["pricing"], by))))


def _acts(found: Timeline) -> tuple[str, ...]:
    """Actions that its history allows; the rules decide."""
    status = found.message["status"]
    is_tried = any(one.what == "attempt" for one in found.entries)
    acts: list[str] = []
    if status == "accepted" and found.queued:
        acts += [] if _may_be_there(found) else ["give_up"]
        acts += [] if is_whatsapp(found) else ["elsewhere"]
        acts += ["decide"] if is_tried else []
    elif status in ("sent", "unknown", "expired"):
        acts.append("decide")
    return tuple(acts)


def _may_be_there(found: Timeline) -> bool:
    """Whether a supplier, or Meta, may have it or a part of it: one that deferred or refused it does not."""
    tried = sum(one.what == "attempt" for one in found.entries)
    refused = sum(one.what == "answer" and one.detail["state"] in NOT_TAKEN for one in found.entries)
    return tried > refused or any(one.what == "part" for one in found.entries)


def _masked(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _safe(name, value) for name, value in values.items()}


def _safe(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _masked(value)
    if isinstance(value, list | tuple):
        return [_safe(name, one) for one in value]
    if isinstance(value, Sentence):
        return value.changed(cleaned)
    if isinstance(value, str):
        return masked(value) if name in NUMBERS and value.startswith("+") else cleaned(value, numbers=name != "id")
    return value
