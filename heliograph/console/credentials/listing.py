"""O3: an organization's API keys and sender IDs, stopped and decided on by an operator; `keying` makes keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from heliograph.accounts import api_keys
from heliograph.accounts.api_keys import TooManyActiveKeys
from heliograph.accounts.organizations import Organization
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal
from heliograph.console.acting import acting_for, organization
from heliograph.overview.installation import approvals
from heliograph.pages.answers import Answer, Elsewhere, Shown, refused
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVE, ORGANIZATIONS_CHANGE
from heliograph.sms.accepting import sender_ids
from heliograph.sms.accepting.sender_ids import SenderId, SenderIdAlreadyExists, SenderIdNotApproved, TooManyPending

#: Refusals of the rules that stand at the field.
AT_FIELD: dict[type[Refusal], str] = {
    SenderIdAlreadyExists: "value",
    TooManyPending: "value",
    SenderIdNotApproved: "value",
}

#: It returns what is said of it.
Work = Callable[[Connection, Actor], Awaitable[str]]


async def show(request: Request) -> Answer:
    """Both lists."""
    return Shown(template="credentials/keys.html", values=await _values(request))


async def suspend(request: Request) -> Answer:
    """Refuse it until it is resumed."""
    return await _key(request, api_keys.suspend, request.text("The key is suspended: it is refused within a second."))


async def resume(request: Request) -> Answer:
    """It is good again."""
    return await _key(request, api_keys.resume, request.text("The key is valid again."))


async def revoke(request: Request) -> Answer:
    """End it for good."""
    return await _key(request, api_keys.revoke, request.text("The key is revoked, for good."))


async def ask(request: Request) -> Answer:
    """A sender ID, for the organization; it waits for a decision, or is approved at once."""
    form = request.form

    async def work(conn: Connection, actor: Actor) -> str:
        asked = await sender_ids.request(conn, actor, value=form.get("value", ""))
        if form.get("approved") == "yes" and request.may(permission=APPROVE):
            return _told(request, await sender_ids.review(conn, actor, id=asked.id, status="approved"), "approved")
        return request.text("The sender ID is asked for.")

    return await _done(request, work)


async def suspend_sender(request: Request) -> Answer:
    """Nothing is sent under it until it is approved again."""
    return await _review(request, "suspended")


async def approve_sender(request: Request) -> Answer:
    """The organization may send under it."""
    return await _review(request, "approved")


async def set_default(request: Request) -> Answer:
    """What names no sender goes out under this one."""

    async def work(conn: Connection, actor: Actor) -> str:
        await sender_ids.set_default(conn, actor, id=request.id("sender"))
        return request.text("It is the default now.")

    return await _done(request, work)


async def _review(request: Request, status: str) -> Answer:
    async def work(conn: Connection, actor: Actor) -> str:
        return _told(request, await sender_ids.review(conn, actor, id=request.id("sender"), status=status), status)

    return await _done(request, work)


def _told(request: Request, sender: SenderId, asked: str) -> str:
    """What a review came to: of two approvals, where two are wanted, the first one changes nothing yet."""
    if sender.status != asked:
        said = request.text("You approved “%(value)s”. It is approved once another operator does so too.")
        return said % {"value": sender.value}
    if asked == "suspended":
        return request.text("The sender ID is suspended.")
    return request.text("The sender ID is approved.")


async def _key(request: Request, act: Callable[..., Awaitable[object]], said: str) -> Answer:
    async def work(conn: Connection, actor: Actor) -> str:
        await act(conn, actor, id=request.id("key"))
        return said

    return await _done(request, work)


async def _done(request: Request, work: Work) -> Answer:
    """Do it, and say what the work says of itself."""
    try:
        async with request.writing() as conn, conn.transaction():
            one = await organization(conn, request, "id")
            said = await work(conn, acting_for(request, one))
    except TooManyActiveKeys as refusal:
        # Of a key that is resumed: it has no field on this page.
        said = request.text(refusal.message)
    except Invalid as refusal:
        return await _wrong(request, refusal)
    except tuple(AT_FIELD) as refusal:
        return await _wrong(request, Invalid((AT_FIELD[type(refusal)], refusal.code, refusal.message)))
    return Elsewhere(location=f"/console/organizations/{request.id()}/keys", notice=said)


async def _wrong(request: Request, refusal: Invalid) -> Answer:
    return refused("credentials/keys.html", refusal, await _values(request))


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        one: Organization = await organization(conn, request, "id")
        actor = acting_for(request, one)
        listed = await api_keys.list_everywhere(conn, organization_id=one.id, revoked=False, limit=100)
        senders = await sender_ids.list_all(conn, actor)
        compared = senders[-approvals.MOST :]
        others = await approvals.alike(conn, [(one.id, sender.value) for sender in compared])
    return {
        "alike": {sender.id: some for sender, some in zip(compared, others, strict=True)},
        "brands": {sender.id: name for sender in compared if (name := approvals.brand(sender.value))},
        "one": one,
        "listed": [key for _, key in listed],
        "senders": senders,
        "value": request.form.get("value", ""),
        "may_change": request.may(permission=ORGANIZATIONS_CHANGE),
        "may_approve": request.may(permission=APPROVE),
    }
