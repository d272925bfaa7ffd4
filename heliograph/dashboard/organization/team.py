"""Team: members, their roles, and invitations."""

from __future__ import annotations

from typing import Any

from heliograph.accounts import organizations
from heliograph.base.errors import Invalid
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.people import team
from heliograph.pages.requests import Request
from heliograph.people import invitations, memberships, roles
from heliograph.people.memberships import Colleague, LastOwner
from heliograph.people.roles import RoleRequired


async def show(request: Request) -> Answer:
    """Members and pending invitations."""
    return Page(template="organization/team.html", values=await _values(request))


async def show_invite(request: Request) -> Answer:
    """The form for an invitation."""
    return Page(template="organization/team_invite.html", values=_typed(request))


async def invite(request: Request) -> Answer:
    """Create an invitation, and show its link, once."""
    try:
        made = await team.invite(request, request.actor)
    except Invalid as refusal:
        return refused("organization/team_invite.html", refusal, _typed(request))
    return Page(template="organization/team_link.html", values=made)


async def renew(request: Request) -> Answer:
    """Create a new link, valid for three more days."""
    made = await team.renew(request, request.actor, id=request.id())
    return Page(template="organization/team_link.html", values=made)


async def withdraw(request: Request) -> Answer:
    """Withdraw an invitation."""
    async with request.writing() as conn:
        await invitations.withdraw(conn, request.actor, id=request.id())
    return Redirect(location=request.to("/team"), notice=request.text("The invitation is withdrawn."))


async def show_member(request: Request) -> Answer:
    """One member, with forms to change the role or to remove them."""
    member = await _member(request)
    return Page(template="organization/team_member.html", values=await _of(request, member))


async def change_role(request: Request) -> Answer:
    """Change a member's role."""
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
    return Redirect(location=request.to("/team"), notice=request.text("The role is changed."))


async def remove(request: Request) -> Answer:
    """End a membership."""
    member = await _member(request)
    try:
        said = await team.remove(request, request.acting("live"), member)
    except LastOwner as refusal:
        return refused(
            "organization/team_member.html",
            Invalid(("role", "last_owner", refusal.message)),
            await _of(request, member),
        )
    return Redirect(location=request.to("/team"), notice=said)


async def _member(request: Request) -> Colleague:
    found = await team.member(request, request.actor, id=request.id())
    if found.role == "owner" and not request.may(permission=roles.OWNERS):
        raise RoleRequired(required=roles.holders(permission=roles.OWNERS))
    return found


async def _values(request: Request) -> dict[str, Any]:
    async with request.reading() as conn:
        organization = await organizations.get(conn, id=request.actor.organization_id)
        return await team.listed(conn, request, request.actor, factor_required=organization.factor_required) | {
            "session_hours": organization.session_hours,
            "may_change": request.may(permission=roles.TEAM_CHANGE),
            "may_owners": request.may(permission=roles.OWNERS),
        }


def _given(request: Request) -> list[str]:
    """The roles that the person may assign."""
    owners = request.may(permission=roles.OWNERS)
    return [name for name in roles.ROLES if owners or name != "owner"]


def _typed(request: Request) -> dict[str, Any]:
    return team.typed(request, _given(request), chosen="developer")


async def _of(request: Request, member: Colleague) -> dict[str, Any]:
    async with request.reading() as conn:
        keys = await memberships.keys_of(conn, request.acting("live"), user_id=member.user_id)
    offered = team.offered(request, _given(request))
    return {"member": member, "roles": offered, "chosen": request.form.get("role", member.role), "keys": keys}
