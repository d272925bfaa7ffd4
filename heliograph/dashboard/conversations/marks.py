"""Actions on a conversation other than replying: assigning, closing, opt-outs, adding a contact."""

from __future__ import annotations

from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.consent import optouts
from heliograph.consent.optouts import NotYoursToLift
from heliograph.contacts import records
from heliograph.contacts.records import ContactAlreadyExists
from heliograph.dashboard.conversations import inbox as inbox_page
from heliograph.inbox import threads
from heliograph.overview import inbox
from heliograph.pages.answers import Answer, Redirect
from heliograph.pages.requests import Request


async def assign(request: Request) -> Answer:
    """Assign it to oneself, or to nobody."""
    id, to = request.id(), request.person.user_id if request.form.get("to") == "me" else None
    async with request.writing() as conn:
        is_done = await threads.assign(conn, request.actor, id=id, user_id=to, was=_seen(request, "was"))
        await _spread(conn, request)
    return _back(
        request,
        ""
        if is_done
        else request.text("It has been assigned to somebody else in the meantime, and stays assigned to them."),
        is_refusal=not is_done,
    )


async def close(request: Request) -> Answer:
    """Close it, or reopen it."""
    id, is_closed = request.id(), request.form.get("closed") == "yes"
    async with request.writing() as conn:
        if not is_closed:
            await threads.reopen(conn, request.actor, id=id)
            await _spread(conn, request)
            return _back(request)
        if not await threads.close(conn, request.actor, id=id, seen=_seen(request, "last")):
            said = request.text("They have written again, so the conversation stays open.")
            return _back(request, said, is_refusal=True)
        await _spread(conn, request)
    return Redirect(
        location=inbox_page.address(request),
        notice=request.text("The conversation is closed. The next message opens it again."),
    )


async def suppress(request: Request) -> Answer:
    """Opt this person out."""
    async with request.writing() as conn:
        thread = await threads.get(conn, request.actor, id=request.id())
        try:
            await optouts.add(conn, request.actor, phone=thread.peer)
        except Invalid:
            return _back(request, request.text("Nothing can be sent to this number."), is_refusal=True)
    return _back(request, request.text("Nothing more is sent to this person."))


async def lift(request: Request) -> Answer:
    """Lift the opt-out, unless the person asked for it."""
    async with request.writing() as conn:
        thread = await threads.get(conn, request.actor, id=request.id())
        try:
            await optouts.remove(conn, request.actor, phone=thread.peer)
        except NotYoursToLift as refusal:
            return _back(request, request.text(refusal.message), is_refusal=True)
        except Invalid:
            return _back(request, request.text("Nothing can be sent to this number."), is_refusal=True)
        except NotFound:
            pass  # a colleague was faster, or they took messages again: it is as the button says
    return _back(request, request.text("This person can be messaged again."))


async def add_contact(request: Request) -> Answer:
    """Save the number as a contact with a name."""
    async with request.writing() as conn:
        thread = await threads.get(conn, request.actor, id=request.id())
        try:
            name = records.name(request.form.get("name", ""))
            phone = records.phone(thread.peer)
            await records.create(conn, request.actor, entry=records.Entry(phone=phone, name=name))
        except Invalid:
            return _back(
                request,
                request.text("A contact needs a name of 1 to 200 characters and a phone number."),
                is_refusal=True,
            )
        except ContactAlreadyExists as refusal:
            return _back(request, request.text(refusal.message), is_refusal=True)
    return _back(request, request.text("The contact is added."))


async def _spread(conn: Connection, request: Request) -> None:
    await inbox.spread(conn, request.actor, thread=await threads.get(conn, request.actor, id=request.id()))


def _seen(request: Request, name: str) -> UUID | None:
    """An id that the page showed when the button was pressed; None: it showed none."""
    try:
        return UUID(request.form.get(name, ""))
    except ValueError:
        return None


def _back(request: Request, notice: str = "", *, is_refusal: bool = False) -> Redirect:
    return Redirect(location=inbox_page.address(request, request.id()), notice=notice, is_refusal=is_refusal)
