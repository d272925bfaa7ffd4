"""Selected messages, or all that match the filters: canceled or sent again, never without a report."""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.accounts import idempotency
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.ids import time_of
from heliograph.dashboard import exporting, visibility
from heliograph.dashboard.messaging import finding
from heliograph.dashboard.messaging.finding import Wanted
from heliograph.dashboard.sending import refusals
from heliograph.overview import messages
from heliograph.overview.exports import changes
from heliograph.overview.exports.changes import WAITING
from heliograph.overview.exports.kinds import Cancel
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.sms import messages as sms
from heliograph.sms.accepting import withdrawal
from heliograph.sms.accepting.accept import Send
from heliograph.sms.messages import Message

#: Maximum number of selected messages.
MOST = 200
#: Messages counted before all matching ones are canceled, and reasons shown for refused ones.
COUNTED, TOLD = 1_000, 3


class Again(msgspec.Struct, frozen=True):
    """A selected message that can be sent again unchanged."""

    message: Message
    text: str


async def act(request: Request) -> Answer:
    """Perform the chosen action on the selected messages."""
    ids = read(request)
    if not ids:
        return Redirect(location=_back(request), notice=request.text("Select the messages first."), is_refusal=True)
    if request.form.get("do") != "again":
        return await _show_cancel(request, ids)
    if len(ids) == 1:
        return Redirect(location=request.to("/send", again=ids[0]))
    listed = await _again(request, ids)
    values = {"listed": listed, "others": len(ids) - len(listed)}
    return Page(template="messaging/messages_again.html", values=values)


async def cancel(request: Request) -> Answer:
    """Cancel the selected messages."""
    return await _cancel(request, read(request))


async def send_again(request: Request) -> Answer:
    """Send the selected messages again, each with its text, sender and reference; once per form."""
    listed = await _again(request, read(request))
    person, once = request.person.user_id, request.form.get("_once", "")
    if not once or len(once) > idempotency.MAX_LENGTH:
        raise Invalid(("_once", "required", "This form does not come from this site. Reload the page."))
    outcomes = await request.services.sms.accept_many(
        [
            Send(
                actor=request.actor,
                to=one.message.recipient,
                text=one.text,
                sender_name=one.message.sender,
                client_reference=one.message.client_reference,
                request_id=request.request_id,
                key_hash=idempotency.key_hash(request.mode, "PAGE", request.path, f"{person} {once} {one.message.id}"),
                request_hash=idempotency.request_hash([str(person), str(one.message.id)]),
                traffic_class=one.message.traffic_class,
                guarantee=one.message.guarantee,
            )
            for one in listed
        ]
    )
    refused = [one for one in outcomes if isinstance(one, Refusal)]
    count = request.locale.count
    said = count("%(num)s message sent again.", "%(num)s messages sent again.", len(outcomes) - len(refused))
    if refused:
        why = dict.fromkeys(refusals.explanation(request, one) for one in refused)
        said += " " + count("%(num)s was refused:", "%(num)s were refused:", len(refused))
        said += " " + " ".join(list(why)[:TOLD])
    return Redirect(location=request.to("/messages"), notice=said, is_refusal=bool(refused))


async def show_all(request: Request) -> Answer:
    """Before all matching messages are canceled: how many there are, as far as one query reaches."""
    async with request.reading() as conn:
        wanted = await finding.find(conn, request)
        if (elsewhere := back(request, wanted)) is not None:
            return elsewhere
        found = await messages.list_page(conn, request.actor, filters=_waiting(wanted), limit=COUNTED)
        waiting = await withdrawal.cancelable(conn, request.actor.organization_id, [one.id for one in found.messages])
    values = {
        "count": min(len(waiting), COUNTED),
        "is_more": len(found.messages) > COUNTED,
        "looked_until": None if found.seen is None else time_of(found.seen),
        "action": request.to(request.path, **_kept(request)),
        "back": _back(request),
    }
    return Page(template="messaging/messages_all.html", values=values)


async def cancel_all(request: Request) -> Answer:
    """Have all matching messages canceled, and show the progress."""
    async with request.reading() as conn:
        wanted = await finding.find(conn, request)
    if (elsewhere := back(request, wanted)) is not None:
        return elsewhere
    return await exporting.ask(
        request,
        request.actor,
        Cancel(form="csv", delimiter=exporting.separator(request), filters=wanted.filters),
    )


def back(request: Request, wanted: Wanted) -> Answer | None:
    """Go to the list with the problem if a filter is not understood, since ignoring it would select all messages. None:
    all filters are understood."""
    problems = wanted.problems | wanted.range.problems
    if not problems:
        return None
    return Redirect(location=_back(request), notice=next(iter(problems.values())), is_refusal=True)


def may_cancel(request: Request, wanted: Wanted) -> bool:
    """Whether these filters can match messages that may be canceled."""
    if wanted.problems or wanted.range.problems:
        return False
    filters = wanted.filters
    fits = not wanted.statuses or not WAITING.isdisjoint(wanted.statuses)
    fits = fits and filters.channel in (None, "sms")
    fits = fits and filters.direction != "inbound"
    return fits and filters.template is None and filters.category is None and request.may("sms:send")


def read(request: Request) -> list[UUID]:
    """The selected messages. Raises Invalid."""
    try:
        return [UUID(one) for one in request.form.get("id", "").split(",") if one][:MOST]
    except ValueError:
        raise Invalid(("id", "format", "This is not an id.")) from None


async def _show_cancel(request: Request, ids: list[UUID]) -> Answer:
    """Before canceling: how many can still be canceled."""
    async with request.reading() as conn:
        found = await sms.by_ids(conn, request.actor, ids=ids)
        asked = [one.id for one in found if one.status in WAITING]
        waiting = await withdrawal.cancelable(conn, request.actor.organization_id, asked)
    if not waiting:
        return await _cancel(request, ids)
    values = {
        "ids": ids,
        "count": len(waiting),
        "late": len(set(ids)) - len(waiting),
        "action": request.to("/messages/marked/cancel", **_kept(request)),
        "back": _back(request),
    }
    return Page(template="messaging/messages_cancel.html", values=values)


async def _cancel(request: Request, ids: list[UUID]) -> Answer:
    async with request.writing() as conn:
        ended = await sms.cancel_many(conn, request.actor, ids=ids)
    done = sum(ended.values())
    late = len(ids) - done
    count = request.locale.count
    said = count("%(num)s message canceled.", "%(num)s messages canceled.", done)
    if late:
        said += " " + count("%(num)s can no longer be canceled.", "%(num)s messages can no longer be canceled.", late)
    return Redirect(location=_back(request), notice=said, is_refusal=not done)


async def _again(request: Request, ids: list[UUID]) -> list[Again]:
    """Those that can be sent again, in list order: SMS whose texts are still stored and visible to the reader."""
    async with request.reading() as conn:
        found = {one.id: one for one in await sms.by_ids(conn, request.actor, ids=ids)}
        own = [one.id for one in found.values() if visibility.is_whole(request, one.person_id)]
        texts = await sms.texts(conn, request.actor, ids=own)
    return [Again(found[id], texts[id]) for id in dict.fromkeys(ids) if id in texts]


def _waiting(wanted: Wanted) -> messages.Filters:
    return changes.waiting(wanted.filters)


def _kept(request: Request) -> dict[str, str]:
    return {name: value for name, value in request.query.items() if name not in ("mode", "after")}


def _back(request: Request) -> str:
    """The list with the filters that it had."""
    return request.to("/messages", **_kept(request))
