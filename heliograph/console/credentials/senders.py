"""An organization's sender IDs: request, approve, suspend, and set the default; `keys` lists them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.console import typed
from heliograph.console.acting import acting_for, organization
from heliograph.console.credentials import keys
from heliograph.pages.answers import Answer, Page, Redirect, form_errors, refused
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVE
from heliograph.sms.accepting import sender_ids
from heliograph.sms.accepting.sender_ids import SenderIdAlreadyExists, SenderIdNotApproved, TooManyPending
from heliograph.sms.received import unassigned

#: The rules' refusals that are shown at the field.
AT_FIELD = (SenderIdAlreadyExists, TooManyPending, SenderIdNotApproved)

#: Maximum characters of names in a notice, which is a cookie.
LONGEST_NAMES = 200

#: Returns the notice to show.
Work = Callable[[Connection, Actor], Awaitable[str]]


async def ask(request: Request) -> Answer:
    """Request a sender ID for the organization; it awaits a decision, or is approved at once."""
    form = request.form

    async def work(conn: Connection, actor: Actor) -> str:
        asked = await sender_ids.request(conn, actor, value=form.get("value", ""))
        if form.get("approved") == "yes" and request.may(permission=APPROVE):
            return await _reviewed(request, conn, actor, asked.id, "approved")
        return request.text("The sender ID is requested.")

    return await _done(request, work)


async def approve(request: Request) -> Answer:
    """Approve it: the organization may use it."""
    return await _review(request, "approved")


async def show_suspend(request: Request) -> Answer:
    """What suspending it would stop."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        sender = await sender_ids.find(conn, acting_for(request, one), which=str(request.id("sender")))
    return Page(template="credentials/sender_suspend.html", values={"one": one, "sender": sender})


async def suspend(request: Request) -> Answer:
    """Suspend it: nothing is sent with it until it is approved again."""
    return await _review(request, "suspended")


async def set_default(request: Request) -> Answer:
    """Make it the sender ID of messages that name none."""

    async def work(conn: Connection, actor: Actor) -> str:
        await sender_ids.set_default(conn, actor, id=request.id("sender"))
        return request.text("It is the default now.")

    return await _done(request, work)


async def _review(request: Request, status: str) -> Answer:
    async def work(conn: Connection, actor: Actor) -> str:
        return await _reviewed(request, conn, actor, request.id("sender"), status)

    return await _done(request, work)


async def _reviewed(request: Request, conn: Connection, actor: Actor, id: UUID, asked: str) -> str:
    """Review a sender ID, and return the notice: where two approvals are required, the first one changes nothing
    yet."""
    sender = await sender_ids.review(conn, actor, id=id, status=asked)
    if sender.status != asked:
        said = request.text("You approved “%(value)s”. It is approved once another operator does so too.")
        return said % {"value": sender.value}
    if asked == "suspended":
        return request.text("The sender ID is suspended.")
    return request.text("The sender ID is approved.") + shared_note(
        request, await unassigned.also_of(conn, actor, sender)
    )


def shared_note(request: Request, others: Sequence[str]) -> str:
    """What to add to the notice of an approval of a number that these organizations have too."""
    if not others:
        return ""
    said = request.text(
        "Others have it too: %(names)s. What handsets send to it, except STOP and the like, belongs to nobody: suspend"
        " it for all but one.",
        names=", ".join(others)[:LONGEST_NAMES],
    )
    return f" {said}"


async def _done(request: Request, work: Work) -> Answer:
    """Do the work, and show its notice."""
    try:
        async with request.writing() as conn, conn.transaction():
            one = await organization(conn, request, "id")
            said = await work(conn, acting_for(request, one))
    except Invalid as refusal:
        return await _wrong(request, refusal)
    except AT_FIELD as refusal:
        return await _wrong(request, Invalid(("value", refusal.code, refusal.message)))
    return Redirect(location=f"/console/organizations/{request.id()}/keys", notice=said)


async def _wrong(request: Request, refusal: Invalid) -> Answer:
    return refused("credentials/keys.html", form_errors(refusal, typed.WRONG), await keys.values(request))
