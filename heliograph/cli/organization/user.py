"""`heliograph user`: the people who use the dashboard, and the operators who use the console."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings, demand_secret_key
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    OrgOrAll,
    acting_for,
    on_database,
    only,
    organization,
    settings_of,
    shell,
)
from heliograph.cli.terminal.http import served
from heliograph.cli.terminal.printing import Json, group, say, show
from heliograph.mail import outbox
from heliograph.people import invitations, links, memberships, roles, users
from heliograph.people.operators import accounts
from heliograph.people.operators import roles as operator_roles
from heliograph.people.users import User

app = group("Create, invite, list and remove users of the dashboard and operators, and create sign-in links for them.")

COLUMNS = ("organization", "email", "name", "role", "second_factor", "signed_in_at")
INVITATION_COLUMNS = ("email", "role", "invited_by", "expires_at", "has_expired", "mail")
OPERATOR_COLUMNS = ("email", "name", "role", "has_factor", "sessions", "signed_in_at")
Email = Annotated[str, typer.Argument(metavar="EMAIL", help="E-mail address of the person.")]


def _with_scheme(url: str | None) -> str | None:
    if url and not url.startswith(("http://", "https://")):
        raise typer.BadParameter("must begin with http:// or https://")
    return url


Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        callback=_with_scheme,
        show_default=False,
        help=(
            "Address of the dashboard or console. Defaults to HELIOGRAPH_PUBLIC_URL or HELIOGRAPH_CONSOLE_URL, or else "
            "to that of `heliograph up`."
        ),
    ),
]
Operator = Annotated[bool, typer.Option("--operator", help="An operator of the installation, for the console.")]


@app.command("create")
def create(
    email: Email,
    role: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help=f"One of {', '.join(roles.ROLES)}; with --operator, one of {', '.join(operator_roles.ROLES)}."
            " [default: owner, or root]",
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the person. [default: the part before the @]")] = "",
    operator: Operator = False,
    org: Org = None,
    url: Url = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Make a person a member of an organization or an operator, and print a one-time sign-in link.

    Somebody who already has an account is not made a member: `heliograph user invite` invites them, since another
    organization may have had the account created. An operator always gets a link: it leads to the setup of password
    and second factor, which the console requires.

    \b
    Examples:
      heliograph user create ana@example.com --org Acme
      heliograph user create rui@example.com --org Acme --role developer --name "Rui Costa"
      heliograph user create eva@example.com --operator --role support
    """
    settings = settings_of(data_dir)
    _demand_one_kind(operator, org)

    async def make_operator(conn: Connection) -> dict[str, object]:
        by = shell()
        async with conn.transaction():
            user, _ = await users.ensure(conn, by, email=email, name=name)
            await accounts.add(conn, by, user_id=user.id, email=user.email, role=role or "root")
            token = await links.make(conn, by, user_id=user.id, realm="console")
        return {
            "id": user.id,
            "email": user.email,
            "role": (await accounts.get(conn, user_id=user.id)).role,
            "link": _address(settings, url, data_dir, token, "console"),
        }

    async def work(conn: Connection) -> dict[str, object]:
        found = await organization(conn, org)
        actor = acting_for(found)
        user, token = await invitations.admit(conn, actor, email=email, name=name, role=role or "owner")
        has = await memberships.role_of(conn, actor, user_id=user.id)
        made = {"id": user.id, "email": user.email, "organization": found.name, "role": has}
        return made | {"link": _address(settings, url, data_dir, token) if token else None}

    made = on_database(make_operator if operator else work, settings)
    show(made, json)
    say("The link is valid for one hour and one use." if made["link"] else "This person signs in as before.")
    if role not in (None, made["role"]):
        say(f"The role is still {made['role']}: `heliograph user role` changes it.")


@app.command("invite")
def invite(
    email: Email,
    role: Annotated[str, typer.Option(help=f"One of {', '.join(roles.ROLES)}.")] = "owner",
    note: Annotated[str, typer.Option(help="Shown with the invitation.")] = "",
    org: Org = None,
    url: Url = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Invite a person to an organization, and print the link. It is also mailed if mails are configured.

    The link is valid for three days and one use, and for this address only. An invitation to the same address ends the
    earlier one.

    \b
    Example:
      heliograph user invite ana@example.com --org Acme --role admin
    """
    settings = settings_of(data_dir)
    if settings.smtp_url:
        demand_secret_key(settings)

    async def work(conn: Connection) -> dict[str, object]:
        found = await organization(conn, org)
        box = outbox.of(settings)
        _, token, is_mailed = await invitations.invite(
            conn, acting_for(found), email=email, role=role, note=note, box=box
        )
        link = invitations.address(_base(settings, url, data_dir), token)
        return {"email": email, "organization": found.name, "role": role, "is_mailed": is_mailed, "link": link}

    show(on_database(work, settings), json)
    say("The link is valid for three days and one use.")


@app.command("invitations")
def invitations_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 1000,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the invitations of an organization that have not been accepted yet.

    \b
    Example:
      heliograph user invitations --org Acme
    """

    async def work(conn: Connection) -> list[invitations.Invitation]:
        return await invitations.list_all(conn, acting_for(await organization(conn, org)), limit=limit)

    show(on_database(work, settings_of(data_dir)), json, INVITATION_COLUMNS, limit=limit)


@app.command("withdraw")
def withdraw(email: Email, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """End an invitation. Its link stops working at once.

    \b
    Example:
      heliograph user withdraw ana@example.com --org Acme
    """

    async def work(conn: Connection) -> None:
        actor = acting_for(await organization(conn, org))
        await invitations.withdraw(conn, actor, id=await invitations.find(conn, actor, email=email))

    on_database(work, settings_of(data_dir))
    show({"email": email, "state": "withdrawn"}, json)


@app.command("link")
def link(
    email: Email, operator: Operator = False, url: Url = None, json: Json = False, data_dir: DataDir = None
) -> None:
    """Print a one-time sign-in link, for somebody who lost their password or second factor.

    It is valid for one hour; earlier links stop working.

    \b
    Examples:
      heliograph user link ana@example.com
      heliograph user link eva@example.com --operator
    """
    settings = settings_of(data_dir)
    realm: links.Realm = "console" if operator else "dashboard"

    async def work(conn: Connection) -> dict[str, object]:
        user = await users.find(conn, email=email)
        if operator:
            await accounts.get(conn, user_id=user.id)
        token = await links.make(conn, shell(), user_id=user.id, realm=realm)
        return {"email": user.email, "link": _address(settings, url, data_dir, token, realm)}

    show(on_database(work, settings), json)
    say("The link is valid for one hour and one use.")


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 1000,
    operator: Operator = False,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the members of all organizations or of one, or the operators.

    \b
    Examples:
      heliograph user list --org Acme
      heliograph user list --operator
    """
    _demand_one_kind(operator, org)
    if operator:
        listed = on_database(partial(accounts.list_all, limit=limit), settings_of(data_dir))
        show(listed, json, OPERATOR_COLUMNS, limit=limit)
        return

    async def work(conn: Connection) -> list[dict[str, object]]:
        found = await users.list_everywhere(conn, organization_id=await only(conn, org), limit=limit)
        return [
            {
                "organization": one.organization,
                "email": one.user.email,
                "name": one.user.name,
                "role": one.role,
                "second_factor": one.has_factor,
                "signed_in_at": one.user.signed_in_at,
            }
            for one in found
        ]

    show(on_database(work, settings_of(data_dir)), json, COLUMNS, limit=limit)


@app.command("remove")
def remove(
    email: Email,
    revoke_keys: Annotated[
        bool, typer.Option("--revoke-keys", help="With --org: also revoke API keys they made.")
    ] = False,
    operator: Operator = False,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a person from one organization or, without --org, from the installation. Their sessions end at once.

    API keys they created are kept, unless --revoke-keys is given with --org. With --operator, they only lose access to
    the console. The last owner of an organization can only be removed from the installation, which names the
    organizations that have no owner then: `user create` or `user role` gives them one.

    \b
    Examples:
      heliograph user remove ana@example.com --org Acme
      heliograph user remove ana@example.com
      heliograph user remove eva@example.com --operator
    """

    _demand_one_kind(operator, org)
    if revoke_keys and (operator or org is None):
        raise typer.BadParameter("needs --org", param_hint="--revoke-keys")

    async def work(conn: Connection) -> dict[str, object]:
        user = await users.find(conn, email=email)
        if operator:
            await accounts.remove(conn, shell(), user_id=user.id, email=user.email)
            return {"email": user.email, "removed_from": "the console"}
        if org is None:
            ownerless = await users.remove(conn, shell(), id=user.id)
            return {"email": user.email, "removed_from": "the installation", "without_owner": ownerless}
        actor = acting_for(await organization(conn, org))
        await memberships.remove(conn, actor, user_id=user.id, revokes_keys=revoke_keys)
        return {"email": user.email, "removed_from": org}

    show(on_database(work, settings_of(data_dir)), json)


@app.command("role")
def role_(
    email: Email,
    role: Annotated[
        str,
        typer.Argument(
            help=f"One of {', '.join(operator_roles.ROLES)}; with --org, one of {', '.join(roles.ROLES)}.",
        ),
    ],
    org: Annotated[
        str | None,
        typer.Option("--org", show_default=False, help="Of a member of this organization, by id or name."),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change the role of an operator, or with --org of a member of an organization, effective within a second.

    \b
    Examples:
      heliograph user role eva@example.com auditor
      heliograph user role ana@example.com admin --org Acme
    """

    async def work(conn: Connection) -> User:
        user = await users.find(conn, email=email)
        if org is None:
            await accounts.change_role(conn, shell(), user_id=user.id, email=user.email, role=role)
        else:
            actor = acting_for(await organization(conn, org))
            await memberships.change_role(conn, actor, user_id=user.id, role=role)
        return user

    show({"email": on_database(work, settings_of(data_dir)).email, "role": role}, json)


def _demand_one_kind(operator: bool, org: str | None) -> None:
    """Raises BadParameter if an operator is to be one of an organization."""
    if operator and org is not None:
        raise typer.BadParameter("an operator belongs to no organization", param_hint="--org")


def _address(
    settings: Settings, url: str | None, data_dir: Path | None, token: str, realm: links.Realm = "dashboard"
) -> str:
    return links.address(_base(settings, url, data_dir, realm), token, realm=realm)


def _base(settings: Settings, url: str | None, data_dir: Path | None, realm: links.Realm = "dashboard") -> str:
    own = settings.console_url if realm == "console" else ""
    return url or own or settings.public_url or served(settings, data_dir)
