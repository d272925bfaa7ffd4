"""Inviting and removing people, for the dashboard in its own organization and for the console in any.

The rule nobody may break: which team it is, and what the caller may do there, is decided by the screen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import UUID

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid_in
from heliograph.mail import outbox
from heliograph.pages import words
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.people import invitations, memberships
from heliograph.people.invitations import AlreadyMember
from heliograph.people.memberships import Colleague

#: The longest search for a member: an e-mail address has at most as many characters.
LONGEST_SEARCH = 254


async def invite(request: Request, actor: Actor) -> dict[str, Any]:
    """Create the invitation requested by the form; returns the values for `team_link.html`. Raises Invalid."""
    form = request.form
    email = form.get("email", "")

    async def work(conn: Connection) -> dict[str, Any]:
        _, token, is_mailed = await invitations.invite(
            conn,
            actor,
            email=email,
            role=form.get("role", ""),
            note=form.get("note", ""),
            box=outbox.of(request.services.settings),
            language=request.locale.language,
        )
        return {"email": email.strip(), "token": token, "is_mailed": is_mailed}

    try:
        return await _linked(request, actor, work)
    except AlreadyMember as refusal:
        raise Invalid(("email", "member", refusal.message)) from None


async def renew(request: Request, actor: Actor, *, id: UUID) -> dict[str, Any]:
    """Create another link for three more days; returns the values for `team_link.html`. Raises NotFound."""

    async def work(conn: Connection) -> dict[str, Any]:
        email, token, is_mailed = await invitations.renew(
            conn, actor, id=id, box=outbox.of(request.services.settings), language=request.locale.language
        )
        return {"email": email, "token": token, "is_mailed": is_mailed}

    return await _linked(request, actor, work)


async def _linked(
    request: Request, actor: Actor, work: Callable[[Connection], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    made = await request.once(work, has_secret=True, actor=actor)
    link = invitations.address(base(request), made.pop("token"))
    return made | {"link": link, "sends": _sends(request)}


async def listed(conn: Connection, request: Request, actor: Actor, *, factor_required: bool) -> dict[str, Any]:
    """A page of members in alphabetical order, and the newest invitations: of all of them, or of those found."""
    after, size = uuid_in(request.query.get("after", "")), pagination.size(request)
    search = request.query.get("q", "").strip()[:LONGEST_SEARCH].replace("\0", "")
    found = await memberships.list_page(conn, actor, search=search, after=after, limit=size + 1)
    members = found[:size]
    invited = await invitations.list_all(conn, actor, search=search, limit=size + 1)
    return {
        "members": members,
        "factor_required": factor_required,
        "without_factor": await memberships.without_factor(conn, actor, is_required=factor_required),
        "invitations": invited[:size],
        "has_older_invitations": len(invited) > size,
        "q": search,
        "next": request.again(after=members[-1].user_id) if len(found) > size else None,
        "first": request.again(after=""),
        "is_first": after is None,
        "size": size,
    }


async def member(request: Request, actor: Actor, *, id: UUID) -> Colleague:
    """One of the organization's members. Raises NotFound."""
    async with request.reading() as conn:
        return await memberships.get(conn, actor, user_id=id)


async def remove(request: Request, actor: Actor, one: Colleague) -> str:
    """End a membership, and revoke the keys that they created if the form says so; returns the notice to show. Raises
    LastOwner."""
    async with request.writing() as conn:
        revoked = await memberships.remove(
            conn, actor, user_id=one.user_id, revokes_keys=request.form.get("keys") == "revoke"
        )
    said = request.text("%(name)s is no longer a member.", name=one.name)
    if revoked:
        said += " " + request.locale.count("%(num)s key was revoked.", "%(num)s keys were revoked.", revoked)
    return said


def offered(request: Request, roles: Iterable[str]) -> list[tuple[str, str, str]]:
    """(name, label, description) of these roles."""
    return [(name, request.text(words.ROLES[name]), request.text(words.ROLES_EXPLAINED[name])) for name in roles]


def typed(request: Request, roles: Iterable[str], *, chosen: str) -> dict[str, Any]:
    """The values typed into an invitation's form. `chosen`: the role selected initially."""
    form = request.form
    return {
        "roles": offered(request, roles),
        "email": form.get("email", ""),
        "note": form.get("note", ""),
        "sends": _sends(request),
        "chosen": form.get("role", chosen),
    }


def base(request: Request) -> str:
    """The address of the dashboard, as far as known."""
    return request.services.settings.public_url or request.headers.get(b"origin", b"").decode("latin-1")


def _sends(request: Request) -> bool:
    return outbox.of(request.services.settings) is not None
