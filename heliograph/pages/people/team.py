"""Inviting people and removing them, as the dashboard does in its own organization and the console in any.

The rule nobody may break: whose team it is, and what whoever asks may do there, is for the screen to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from uuid import UUID

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.mail import outbox
from heliograph.pages import words
from heliograph.pages.requests import Request
from heliograph.people import invitations, memberships
from heliograph.people.invitations import AlreadyMember
from heliograph.people.memberships import Colleague


async def invite(request: Request, actor: Actor) -> dict[str, Any]:
    """Make the invitation that the form asks for; returns what `team_link.html` shows. Raises Invalid."""
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
            language=request.speech.language,
        )
        return {"email": email.strip(), "token": token, "is_mailed": is_mailed}

    try:
        return await _linked(request, actor, work)
    except AlreadyMember as refusal:
        raise Invalid(("email", "member", refusal.message)) from None


async def renew(request: Request, actor: Actor, *, id: UUID) -> dict[str, Any]:
    """Another link for three days more; returns what `team_link.html` shows. Raises NotFound."""

    async def work(conn: Connection) -> dict[str, Any]:
        email, token, is_mailed = await invitations.renew(
            conn, actor, id=id, box=outbox.of(request.services.settings), language=request.speech.language
        )
        return {"email": email, "token": token, "is_mailed": is_mailed}

    return await _linked(request, actor, work)


async def _linked(
    request: Request, actor: Actor, work: Callable[[Connection], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    made = await request.once(work, has_secret=True, actor=actor)
    link = invitations.address(base(request), made.pop("token"))
    return made | {"link": link, "sends": _sends(request)}


async def member(request: Request, actor: Actor, *, id: UUID) -> Colleague:
    """One of the organization's members. Raises NotFound."""
    async with request.reading() as conn:
        found = next((one for one in await memberships.list_all(conn, actor) if one.user_id == id), None)
    if found is None:
        raise NotFound
    return found


async def remove(request: Request, actor: Actor, one: Colleague) -> str:
    """End a membership, with the keys that they made if the form says so; returns what is said of it. Raises
    LastOwner."""
    async with request.writing() as conn:
        revoked = await memberships.remove(
            conn, actor, user_id=one.user_id, revokes_keys=request.form.get("keys") == "revoke"
        )
    said = request.text("%(name)s is no longer a member.", name=one.name)
    if revoked:
        said += " " + request.speech.count("%(num)s key was revoked.", "%(num)s keys were revoked.", revoked)
    return said


def offered(request: Request, roles: Iterable[str]) -> list[tuple[str, str, str]]:
    """(name, what it is called, what it may do) of these roles."""
    return [(name, request.text(words.ROLES[name]), request.text(words.ROLES_EXPLAINED[name])) for name in roles]


def typed(request: Request, roles: Iterable[str], *, chosen: str) -> dict[str, Any]:
    """The form of an invitation as it was typed. `chosen`: the role that it begins with."""
    form = request.form
    return {
        "roles": offered(request, roles),
        "email": form.get("email", ""),
        "note": form.get("note", ""),
        "sends": _sends(request),
        "chosen": form.get("role", chosen),
    }


def base(request: Request) -> str:
    """The address of the dashboard, as far as it is known."""
    return request.services.settings.public_url or request.headers.get(b"origin", b"").decode("latin-1")


def _sends(request: Request) -> bool:
    return outbox.of(request.services.settings) is not None
