"""O4 Messages: everything that happened to a message, whichever organization's it is.

The rule nobody may break: text and whole number are shown for a reason that was given, and the audit logs say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import reasons
from heliograph.base.actor import Who
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.money import micros
from heliograph.base.phones import masked
from heliograph.base.process.logs import NUMBERS, cleaned
from heliograph.base.sentences import Sentence
from heliograph.console.messages import telling, waiting
from heliograph.pages.answers import Answer, Shown, refused
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVE
from heliograph.sending.timeline import Timeline
from heliograph.sms import timeline
from heliograph.sms.intervening import deciding
from heliograph.whatsapp import intervening as whatsapp
from heliograph.whatsapp import timeline as whatsapp_timeline

HERE = "/console/messages"


async def show(request: Request) -> Answer:
    """Everything that happened to it, without text and whole number."""
    async with request.reading() as conn:
        values = await seen(conn, request, request.id())
    return Shown(template="messages/message.html", values=values)


async def reveal(request: Request) -> Answer:
    """The same with text and number, for a reason that both audit logs keep."""
    reason = reasons.given(request.form.get("reason", ""))
    id = request.id()
    if reason is None:
        async with request.reading() as conn:
            values = await seen(conn, request, id)
        wrong = Invalid(("reason", "length", "Say why, in at most 500 characters: the audit log keeps it."))
        return refused("messages/message.html", wrong, values)
    async with request.writing() as conn:
        values = await seen(conn, request, id, by=msgspec.structs.replace(request.who, reason=reason))
    return Shown(template="messages/message.html", values=values)


async def read(conn: Connection, id: UUID, by: Who | None) -> Timeline:
    """All that happened to a message of either channel. Raises NotFound.

    `by`: who sees the text, and why; None: nobody does.
    """
    for channel in (timeline, whatsapp_timeline):
        try:
            if by is None:
                return await channel.of_message(conn, id=id)
            return await channel.of_message(conn, id=id, with_text=True, by=by)
        except NotFound:
            continue
    raise NotFound


async def seen(conn: Connection, request: Request, id: UUID, *, by: Who | None = None) -> dict[str, Any]:
    """What the page shows of a message, as `read` finds it. Raises NotFound."""
    found = await read(conn, id, by)
    return _values(request, found, whole=by is not None) | {"waits": await waiting.of(conn, request, found)}


def _values(request: Request, found: Timeline, *, whole: bool) -> dict[str, Any]:
    shown = (lambda values: values) if whole else _masked
    return {
        "id": found.message["id"],
        "organization": found.message["organization_name"],
        "organization_id": found.message["organization_id"],
        "message": [(name, value) for name, value in shown(found.message).items() if value is not None],
        "money": [
            (label, request.speech.money(amount, found.message[f"{name}_currency"]), found.message[f"{name}_due"])
            for name, label in (("price", request.text("Price")), ("cost", request.text("Cost")))
            if (amount := micros(found.message.get(name) or "")) is not None
        ],
        "entries": [
            (one.at, telling.step(request, one.what), telling.details(request, shown(one.detail)))
            for one in found.entries
        ],
        "queued": [telling.details(request, shown(one)) for one in found.queued],
        "why": found.why and found.why.words(request.speech.language),
        "evidence": found.evidence and request.speech.told(found.evidence),
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


def is_whatsapp(found: Timeline) -> bool:
    """It is a WhatsApp message."""
    return "billing_category" in found.message


def _acts(found: Timeline) -> tuple[str, ...]:
    """What may be done about it, as far as its history says; the rules decide."""
    status = found.message["status"]
    is_tried = any(one.what == "attempt" for one in found.entries)
    acts: list[str] = []
    if status == "accepted" and found.queued:
        acts += ["give_up"] if not is_tried or is_whatsapp(found) else []
        acts += [] if is_whatsapp(found) else ["elsewhere"]
        acts += ["decide"] if is_tried else []
    elif status in ("sent", "unknown", "expired"):
        acts.append("decide")
    return tuple(acts)


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
