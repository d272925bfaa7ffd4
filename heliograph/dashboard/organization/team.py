"""D18 Team: members, their roles, and invitations."""

from __future__ import annotations

from typing import Any

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.mail import outbox
from heliograph.pages import words
from heliograph.pages.answers import Answer, Elsewhere, Shown, refused
from heliograph.pages.requests import Request
from heliograph.people import invitations, memberships, roles
from heliograph.people.invitations import AlreadyMember
from heliograph.people.memberships import Colleague, LastOwner
from heliograph.people.roles import RoleRequired


async def show(request: Request) -> Answer:
    """Members and pending invitations."""
    return Shown(template="organization/team.html", values=await _values(request))


async def show_invite(request: Request) -> Answer:
    """The form for an invitation."""
    return Shown(template="organization/team_invite.html", values=_typed(request))


async def invite(request: Request) -> Answer:
    """Make an invitation and show its link, once."""
    form = request.form

    async def work(conn: Connection) -> dict[str, Any]:
        _, token, is_mailed = await invitations.invite(
            conn,
            request.actor,
            email=form.get("email", ""),
            role=form.get("role", ""),
            note=form.get("note", ""),
            box=outbox.of(request.services.settings),
            language=request.speech.language,
        )
        return {"token": token, "is_mailed": is_mailed}

    try:
        made = await request.once(work, has_secret=True)
    except (Invalid, AlreadyMember) as refusal:
        wrong = refusal if isinstance(refusal, Invalid) else Invalid(("email", "member", refusal.message))
        return refused("organization/team_invite.html", wrong, _typed(request))
    return _link(request, form.get("email", "").strip(), **made)


async def renew(request: Request) -> Answer:
    """Another link for three days more."""

    async def work(conn: Connection) -> dict[str, Any]:
        email, token, is_mailed = await invitations.renew(
            conn,
            request.actor,
            id=request.id(),
            box=outbox.of(request.services.settings),
            language=request.speech.language,
        )
        return {"email": email, "token": token, "is_mailed": is_mailed}

    return _link(request, **await request.once(work, has_secret=True))


async def withdraw(request: Request) -> Answer:
    """End an invitation."""
    async with request.writing() as conn:
        await invitations.withdraw(conn, request.actor, id=request.id())
    return Elsewhere(location="/team", notice=request.text("The invitation is withdrawn."))


async def show_member(request: Request) -> Answer:
    """One member: another role, or the end of the membership."""
    member = await _member(request)
    return Shown(template="organization/team_member.html", values=await _of(request, member))


async def change_role(request: Request) -> Answer:
    """Give a member another role."""
    member = await _member(request)
    try:
        async with request.writing() as conn:
            await memberships.change_role(
                conn, request.actor, user_id=member.user_id, role=request.form.get("role", "")
            )
    except LastOwner as refusal:
        return refused(
            "organization/team_member.html",
            Invalid(("role", "last_owner", refusal.message)),
            await _of(request, member),
        )
    return Elsewhere(location="/team", notice=request.text("The role is changed."))


async def remove(request: Request) -> Answer:
    """End a membership."""
    member = await _member(request)
    try:
        async with request.writing() as conn:
            revoked = await memberships.remove(
                conn,
                request.acting("live"),
                user_id=member.user_id,
                revokes_keys=request.form.get("keys") == "revoke",
            )
    except LastOwner as refusal:
        return refused(
            "organization/team_member.html",
            Invalid(("role", "last_owner", refusal.message)),
            await _of(request, member),
        )
    said = request.text("%(name)s is no member any more.", name=member.name)
    if revoked:
        said += " " + request.speech.count("%(num)s key was revoked.", "%(num)s keys were revoked.", revoked)
    return Elsewhere(location="/team", notice=said)


async def _member(request: Request) -> Colleague:
    async with request.reading() as conn:
        listed = await memberships.list_all(conn, request.actor)
    wanted = request.id()
    found = next((one for one in listed if one.user_id == wanted), None)
    if found is None:
        raise NotFound
    if found.role == "owner" and not request.may(permission=roles.OWNERS):
        raise RoleRequired(required=roles.holders(permission=roles.OWNERS))
    return found


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        return {
            "members": await memberships.list_all(conn, request.actor),
            "invitations": await invitations.list_all(conn, request.actor),
            "may_change": request.may(permission=roles.TEAM_CHANGE),
            "may_owners": request.may(permission=roles.OWNERS),
        }


def _offered(request: Request) -> list[tuple[str, str, str]]:
    """(name, what it is called, what it may do) of the roles that the person may give."""
    owners = request.may(permission=roles.OWNERS)
    return [
        (name, request.text(words.ROLES[name]), request.text(words.ROLES_EXPLAINED[name]))
        for name in roles.ROLES
        if owners or name != "owner"
    ]


def _typed(request: Request) -> dict[str, Any]:
    form = request.form
    return {
        "roles": _offered(request),
        "email": form.get("email", ""),
        "note": form.get("note", ""),
        "sends": outbox.of(request.services.settings) is not None,
        "chosen": form.get("role", "developer"),
    }


async def _of(request: Request, member: Colleague) -> dict[str, Any]:
    async with request.reading() as conn:
        keys = await memberships.keys_of(conn, request.acting("live"), user_id=member.user_id)
    return {"member": member, "roles": _offered(request), "chosen": request.form.get("role", member.role), "keys": keys}


def _link(request: Request, email: str, token: str, *, is_mailed: bool) -> Answer:
    base = request.services.settings.public_url or request.headers.get(b"origin", b"").decode("latin-1")
    values = {
        "link": invitations.address(base, token),
        "email": email,
        "is_mailed": is_mailed,
        "sends": outbox.of(request.services.settings) is not None,
    }
    return Shown(template="organization/team_link.html", values=values)
