"""What a message not sent yet is waiting for, as operators may know it: the guard, a hold, its time, its number at
Meta, or its suppliers; and where it would go now, by the look-up that workers use.

The rule nobody may break: the answer comes from the rows that workers read, and contains no recipient's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from heliograph.accounts import organizations
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.process.logs import cleaned
from heliograph.base.sentences import Sentence, kept
from heliograph.campaigns import pausing
from heliograph.console.acting import acting_for
from heliograph.pages import words
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import TRAFFIC
from heliograph.queue import holds
from heliograph.sending.timeline import Timeline
from heliograph.sms import messages as sms
from heliograph.sms.dispatch import explaining
from heliograph.sms.messages import Waiting
from heliograph.whatsapp import messages as whatsapp
from heliograph.whatsapp.dispatch.parking import WAITS

#: Kinds of work that send a message; other queued work reports about it.
SENDING = ("sms", "whatsapp")
#: A time this close to the end of quiet hours counts as that end.
SAME = timedelta(seconds=1)


class Waits(msgspec.Struct, frozen=True):
    """What it waits for, in a sentence, and the page that can change this, "": none, or not for this role."""

    said: str
    link: str = ""
    #: Where it would go now, and why not elsewhere; None: this does not depend on suppliers.
    decision: Sentence | None = None
    #: Names of the suppliers that would be tried; none: it waits until one is available.
    asked: tuple[str, ...] = ()


async def of(conn: Connection, request: Request, found: Timeline) -> Waits | None:
    """What a message waits for; None: it does not wait to be sent."""
    row = next((one for one in found.queued if one["kind"] in SENDING), None)
    if row is None or found.message["status"] != "accepted":
        return None
    if row["kind"] == "whatsapp":
        return _linked(request, *await _whatsapp(conn, request, found.message, row))
    one = await organizations.get(conn, id=found.message["organization_id"])
    waiting = await sms.waiting(conn, acting_for(request, one), id=found.message["id"])
    if waiting is None:
        return None
    waits = _linked(request, *await _sms(conn, request, found.message, row, waiting))
    if waiting.is_begun or waiting.is_suspicious or found.message["mode"] != "live":
        return waits
    decided = await explaining.explain(
        conn,
        found.message["recipient"],
        organization_id=one.id,
        organization=one.name,
        sender=found.message["sender"],
        traffic_class=found.message["class"],
    )
    return msgspec.structs.replace(waits, decision=decided.decision.changed(cleaned), asked=tuple(decided.suppliers))


async def _sms(
    conn: Connection, request: Request, message: Mapping[str, Any], row: Mapping[str, Any], waiting: Waiting
) -> tuple[str, str]:
    if waiting.is_begun:
        return request.text("A worker has it and hands it over."), "/console/queue"
    if waiting.is_suspicious:
        said = request.text("The guard holds it: unusually many messages go to numbers like this one.")
        return said, "/console/guard"
    if waiting.is_held:
        return await _held(conn, request, message, row), "/console/queue"
    if not waiting.is_later:
        return request.text("It is due, and waits for its turn or for a supplier."), "/console/queue"
    moment, until = request.locale.moment(waiting.due_at), message["quiet_until"]
    if until is not None and abs(waiting.due_at - until) < SAME:
        said = request.text("Quiet hours where the recipient is: marketing waits until %(time)s.", time=moment)
        return said, ""
    return _later(request, message, waiting.due_at, waiting.tries)


async def _whatsapp(
    conn: Connection, request: Request, message: Mapping[str, Any], row: Mapping[str, Any]
) -> tuple[str, str]:
    now = clock.now()
    if _is_after(row.get("lease_until"), now):
        return request.text("A worker has it and hands it over."), "/console/queue"
    if row.get("held") and _is_after(row.get("held_until"), now):
        why = request.text("Credential") if row["held"] == "credential" else request.locale.sentence(kept(row["held"]))
        said = request.text(
            "Its number is held at Meta until %(time)s: %(reason)s",
            time=request.locale.moment(row["held_until"]),
            reason=why,
        )
        return said, "/console/whatsapp"
    if (said := await _held(conn, request, message, row)) != "":
        return said, "/console/queue"
    waiting = await whatsapp.waiting(conn, message["organization_id"], id=message["id"])
    if waiting is not None and waiting.template_status is not None:
        if waiting.template_status in WAITS:
            status = request.text(words.TEMPLATE_STATUSES[waiting.template_status])
            return request.text("It waits for its template: %(status)s.", status=status), "/console/whatsapp"
        return request.text("It waits until Meta has confirmed its template."), "/console/whatsapp"
    if waiting is not None and waiting.held_until is not None:
        moment = request.locale.moment(waiting.held_until)
        said = request.text("Meta lets its account only answer users until %(time)s.", time=moment)
        return said, "/console/whatsapp"
    if waiting is not None and waiting.reached_limit is not None:
        limit = request.locale.number(waiting.reached_limit)
        said = request.text(
            "The messaging limit of its portfolio is reached: %(limit)s people in 24 hours. It is sent once others may "
            "be written to.",
            limit=limit,
        )
        return said, "/console/whatsapp"
    if row["due_at"] <= now:
        return request.text("It is due, and waits for its turn at its number."), "/console/queue"
    return _later(request, message, row["due_at"], row["tries"])


async def _held(conn: Connection, request: Request, message: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The operators' hold that holds it; "": none."""
    found = await holds.reasons(conn, id=message["id"], kind=row["kind"])
    if found is None:
        return ""
    reasons = "; ".join(found)
    return request.text("An operator holds it back: %(reason)s", reason=reasons or request.text("No reason was given."))


def _later(request: Request, message: Mapping[str, Any], due_at: datetime, tries: int) -> tuple[str, str]:
    moment = request.locale.moment(due_at)
    if message["campaign_id"] is not None and pausing.is_put_off(due_at):
        return request.text("Its campaign is paused. It is sent once somebody resumes it."), ""
    if tries:
        said = request.text("It could not be handed over yet and is tried again at %(time)s.", time=moment)
        return said, "/console/queue"
    return request.text("It waits for its time, %(time)s.", time=moment), ""


def _is_after(at: datetime | None, now: datetime) -> bool:
    return at is not None and at > now


def _linked(request: Request, said: str, link: str) -> Waits:
    return Waits(said, link if request.may(permission=TRAFFIC) else "")
