"""An organization's members: invited, given another role, helped to sign in again, and removed by operators.

The rule nobody may break: a sign-in link gives access to everything its person belongs to, bypassing password and
factor, so only those who may also change operators' factors can create one; everybody else invites.
"""

from __future__ import annotations

from typing import Any

from heliograph.accounts.organizations import Organization
from heliograph.base.actor import Actor
from heliograph.base.errors import Invalid
from heliograph.console.acting import acting_for, organization
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.people import team
from heliograph.pages.requests import Request
from heliograph.people import invitations, links, memberships, roles
from heliograph.people.memberships import LastOwner
from heliograph.people.operators.roles import OPERATORS, ORGANIZATIONS_CHANGE


async def show(request: Request) -> Answer:
    """Its members, with role and second factor, and its invitations."""
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
        values = await team.listed(conn, request, acting_for(request, one), factor_required=one.factor_required)
    values |= {"one": one, "may_change": request.may(permission=ORGANIZATIONS_CHANGE)}
    return Page(template="organizations/members.html", values=values)


async def show_invite(request: Request) -> Answer:
    """The form for an invitation."""
    return Page(template="organizations/member_invite.html", values=await _typed(request))


async def invite(request: Request) -> Answer:
    """Create an invitation, and show its link, once."""
    one, actor = await _acting(request)
    try:
        made = await team.invite(request, actor)
    except Invalid as refusal:
        return refused("organizations/member_invite.html", refusal, await _typed(request))
    return Page(template="organizations/member_invited.html", values={"one": one} | made)


async def renew(request: Request) -> Answer:
    """Create a new link, valid for three more days."""
    one, actor = await _acting(request)
    made = await team.renew(request, actor, id=request.id("invitation"))
    return Page(template="organizations/member_invited.html", values={"one": one} | made)


async def withdraw(request: Request) -> Answer:
    """Withdraw an invitation."""
    one, actor = await _acting(request)
    async with request.writing() as conn:
        await invitations.withdraw(conn, actor, id=request.id("invitation"))
    return _back(one, request.text("The invitation is withdrawn."))


async def show_one(request: Request) -> Answer:
    """One member, with forms to change the role, create a sign-in link, or remove them."""
    one, actor = await _acting(request)
    return Page(template="organizations/member.html", values=await _of(request, one, actor))


async def change_role(request: Request) -> Answer:
    """Change a member's role."""
    one, actor = await _acting(request)
    values = await _of(request, one, actor)
    try:
        async with request.writing() as conn:
            await memberships.change_role(
                conn, actor, user_id=values["member"].user_id, role=request.form.get("role", "")
            )
    except (LastOwner, Invalid) as refusal:
        return refused("organizations/member.html", _at_role(refusal), values)
    return _back(one, request.text("The role is changed."))


async def make_link(request: Request) -> Answer:
    """Create a sign-in link, for somebody who lost their password or factor; shown once."""
    one, actor = await _acting(request)
    member = await team.member(request, actor, id=request.id("member"))
    async with request.writing() as conn:
        token = await links.make(conn, actor, user_id=member.user_id)
    values = {"one": one, "email": member.email, "link": links.address(team.base(request), token)}
    return Page(template="organizations/member_link.html", values=values)


async def remove(request: Request) -> Answer:
    """End a membership."""
    one, actor = await _acting(request)
    values = await _of(request, one, actor)
    try:
        said = await team.remove(request, actor, values["member"])
    except LastOwner as refusal:
        return refused("organizations/member.html", _at_role(refusal), values)
    return _back(one, said)


async def _acting(request: Request) -> tuple[Organization, Actor]:
    async with request.reading() as conn:
        one = await organization(conn, request, "id")
    return one, acting_for(request, one)


async def _of(request: Request, one: Organization, actor: Actor) -> dict[str, Any]:
    member = await team.member(request, actor, id=request.id("member"))
    async with request.reading() as conn:
        keys = await memberships.keys_of(conn, actor, user_id=member.user_id)
    return {
        "one": one,
        "member": member,
        "keys": keys,
        "roles": team.offered(request, roles.ROLES),
        "chosen": request.form.get("role", member.role),
        "may_link": request.may(permission=OPERATORS),
    }


async def _typed(request: Request) -> dict[str, Any]:
    one, _ = await _acting(request)
    return {"one": one} | team.typed(request, roles.ROLES, chosen="owner")


def _at_role(refusal: LastOwner | Invalid) -> Invalid:
    return refusal if isinstance(refusal, Invalid) else Invalid(("role", refusal.code, refusal.message))


def _back(one: Organization, said: str) -> Answer:
    return Redirect(location=f"/console/organizations/{one.id}/members", notice=said)
