"""Sender IDs: requested here, and approved or rejected by the operator."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import reading as audit
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.overview import sender_places, senders
from heliograph.overview.senders import Sent
from heliograph.pages import words
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.senders import registrations
from heliograph.senders.book import STAND_INS
from heliograph.senders.registrations import Standing
from heliograph.sms.accepting import sender_choice, sender_ids, sender_questions
from heliograph.sms.accepting.sender_ids import SenderId, SenderIdAlreadyExists, SenderIdNotApproved, TooManyPending
from heliograph.sms.accepting.sender_questions import Question

#: The longest search: a sender ID has at most as many characters.
LONGEST_SEARCH = 15


class SenderLine(msgspec.Struct, frozen=True):
    """A sender ID, when it was last requested, and by whom if known."""

    sender: SenderId
    asked_at: datetime
    asked_by: str
    #: None: it sent nothing recently.
    sent: Sent | None
    #: The status of its registrations, each with its wording.
    registrations: list[tuple[Standing, str]]
    #: The operator's question before a decision; None: no question.
    question: Question | None


async def show(request: Request) -> Answer:
    """A page of the organization's sender IDs, newest first, all of them or those found."""
    actor, limit = request.acting("live"), pagination.size(request)
    search = request.query.get("q", "").strip()[:LONGEST_SEARCH].replace("\0", "")
    async with request.reading() as conn:
        found = await sender_ids.list_page(conn, actor, search=search, after=pagination.after(request), limit=limit + 1)
        listed = found[:limit]
        told = await audit.latest(
            conn, actor.organization_id, action="sender_id.requested", object_ids=[one.id for one in listed]
        )
        sent = await senders.sent(conn, actor, values=[one.value for one in listed]) if _sees_sends(request) else {}
        standing = await registrations.standing(
            conn, organization_id=actor.organization_id, sender_ids=[one.id for one in listed]
        )
        questions = await sender_questions.asked(conn, actor, ids=[one.id for one in listed])
    registered: dict[UUID, list[tuple[Standing, str]]] = {}
    for place in standing:
        registered.setdefault(place.sender_id, []).append((place, request.text(words.REGISTRATIONS[place.state])))
    lines = []
    for one in listed:
        entry = told.get(str(one.id))
        by = "" if entry is None else entry.who_name or request.text(words.AUTHORS[entry.who])
        asked_at = one.created_at if entry is None else entry.at
        places, question = registered.get(one.id, []), questions.get(one.id)
        lines.append(SenderLine(one, asked_at, by, sent.get(one.value), places, question))
    values = {
        "lines": lines,
        "may_ask": _may_ask(request),
        "sees_sends": _sees_sends(request),
        "has_registrations": bool(standing),
        "days": senders.DAYS,
        "q": search,
        "pages": pagination.pages(request, listed[-1].id if len(found) > limit else None),
    }
    return Page(template="organization/senders.html", values=values)


async def show_new(request: Request) -> Answer:
    """The form; `value` in the address fills it in, to ask again. Its fragment is the rule's verdict on the input."""
    values = await _typed(request, request.query.get("value", ""))
    if request.is_fragment:
        return Page(template="organization/senders_value.html", values=values)
    return Page(template="organization/senders_new.html", values=values | await _places(request))


async def ask(request: Request) -> Answer:
    """Request a sender ID, new or rejected earlier."""
    value = request.form.get("value", "").strip()

    async def work(conn: Connection) -> str:
        return (await sender_ids.request(conn, request.acting("live"), value=value)).value

    try:
        asked = await request.once(work)
    except Invalid as refusal:
        return await _refused(request, form_errors(refusal, words.SENDER_FORM), value)
    except (SenderIdAlreadyExists, TooManyPending) as refusal:
        wrong = Invalid(("value", refusal.code, refusal.message))
        return await _refused(request, wrong, value)
    said = request.text("“%(value)s” waits for the operator's decision.", value=asked)
    return Redirect(location=request.to("/senders"), notice=said)


async def answer(request: Request) -> Answer:
    """Answer the operator's question."""
    id = request.id()

    async def work(conn: Connection) -> str:
        given = request.form.get("answer", "")
        return await sender_questions.answer(conn, request.acting("live"), id=id, answer=given)

    try:
        value = await request.once(work)
    except Invalid:
        return Redirect(location=request.to("/senders"), notice=request.text("Enter an answer first."), is_refusal=True)
    said = request.text("Your answer about “%(value)s” is with the operator.", value=value)
    return Redirect(location=request.to("/senders"), notice=said)


async def make_default(request: Request) -> Answer:
    """Make this the sender ID of sends that name none."""
    id = request.id()

    async def work(conn: Connection) -> str:
        return (await sender_ids.set_default(conn, request.acting("live"), id=id)).value

    try:
        value = await request.once(work)
    except SenderIdNotApproved as refusal:
        return Redirect(location=request.to("/senders"), notice=request.text(refusal.message), is_refusal=True)
    said = request.text("Messages that name no sender are now sent from “%(value)s”.", value=value)
    return Redirect(location=request.to("/senders"), notice=said)


def _sees_sends(request: Request) -> bool:
    return request.may("sms:read", mode="live")


def _may_ask(request: Request) -> bool:
    return request.may("sender_ids:write", mode="live")


async def _refused(request: Request, wrong: Invalid, value: str) -> Answer:
    values = await _typed(request, value) | await _places(request)
    return refused("organization/senders_new.html", wrong, values)


async def _places(request: Request) -> dict[str, Any]:
    """Where alphanumeric sender IDs are shown, by country name."""
    async with request.reading() as conn:
        found = await sender_places.names(conn, request.acting("live"), sender=STAND_INS["alphanumeric"])
    named = {
        standing: sorted((request.locale.country(one) for one in countries), key=str.casefold)
        for standing, countries in found.items()
    }
    return {"places": [(request.text(words.NAME_PLACES[one]), ", ".join(listed)) for one, listed in named.items()]}


async def _typed(request: Request, value: str) -> dict[str, Any]:
    """The form as typed, with the reason for an earlier rejection."""
    earlier = None
    if value:
        async with request.reading() as conn:
            earlier = await sender_choice.named(conn, request.acting("live"), names=[value])
    problem = ""
    if value.strip():
        try:
            sender_ids.check(value.strip())
        except Invalid as refusal:
            problem = request.text(form_errors(refusal, words.SENDER_FORM).details["fields"][0]["message"])
    return {
        "value": value,
        "problem": problem,
        "is_fine": bool(value.strip()) and not problem,
        "earlier": earlier if earlier is not None and earlier.status == "rejected" else None,
    }
