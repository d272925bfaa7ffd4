"""An organization's API keys, listed with its sender IDs: suspend, resume and revoke; `keying` creates them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from heliograph.accounts.api_keys import issued, lifecycle
from heliograph.accounts.api_keys.lifecycle import TooManyActiveKeys
from heliograph.accounts.organizations import Organization
from heliograph.base.errors import NotFound
from heliograph.console.acting import acting_for, organization
from heliograph.overview.installation import approvals
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.requests import Request
from heliograph.people.operators.roles import APPROVE, ORGANIZATIONS_CHANGE
from heliograph.sms.accepting import sender_ids


async def show(request: Request) -> Answer:
    """Both lists."""
    return Page(template="credentials/keys.html", values=await values(request))


async def values(request: Request) -> dict[str, Any]:
    """The values of the page with both lists."""
    async with request.reading() as conn:
        one: Organization = await organization(conn, request, "id")
        actor = acting_for(request, one)
        listed = await issued.list_everywhere(conn, organization_id=one.id, revoked=False, limit=100)
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


async def suspend(request: Request) -> Answer:
    """Refuse it until it is resumed."""
    return await _done(request, lifecycle.suspend, request.text("The key is suspended: it is refused within a second."))


async def resume(request: Request) -> Answer:
    """Accept it again."""
    return await _done(request, lifecycle.resume, request.text("The key is valid again."))


async def show_revoke(request: Request) -> Answer:
    """When and for what the key was last used: whoever uses it will be cut off."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        key = await issued.get(conn, acting_for(request, one), id=request.id("key"))
    if key.status == "revoked":
        raise NotFound
    return Page(template="credentials/key_revoke.html", values={"one": one, "key": key})


async def revoke(request: Request) -> Answer:
    """Revoke it for good."""
    return await _done(request, lifecycle.revoke, request.text("The key is revoked permanently."))


async def _done(request: Request, act: Callable[..., Awaitable[object]], said: str) -> Answer:
    is_refusal = False
    try:
        async with request.writing() as conn, conn.transaction():
            one = await organization(conn, request, "id")
            await act(conn, acting_for(request, one), id=request.id("key"))
    except TooManyActiveKeys as refusal:
        # From resuming a key, which has no field on this page.
        said, is_refusal = request.text(refusal.message), True
    return Redirect(location=f"/console/organizations/{request.id()}/keys", notice=said, is_refusal=is_refusal)
