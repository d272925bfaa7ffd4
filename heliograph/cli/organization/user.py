"""`heliograph user`: the people who use the dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.cli.terminal.console import (
    DataDir,
    Json,
    Org,
    OrgOrAll,
    acting_for,
    group,
    on_database,
    only,
    organization,
    say,
    settings_of,
    shell,
    show,
)
from heliograph.people import links, memberships, roles, users
from heliograph.people.users import User

app = group("Create, list and remove users of the dashboard, and create sign-in links for them.")

COLUMNS = ("organization", "email", "name", "role", "second_factor", "signed_in_at")
Email = Annotated[str, typer.Argument(metavar="EMAIL", help="E-mail address of the person.")]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL", show_default=False, help="Address of the dashboard. Defaults to HELIOGRAPH_PUBLIC_URL."
    ),
]


@app.command("create")
def create(
    email: Email,
    role: Annotated[str, typer.Option(help=f"One of {', '.join(roles.ROLES)}.")] = "owner",
    name: Annotated[str, typer.Option(help="Name of the person. [default: the part before the @]")] = "",
    org: Org = None,
    url: Url = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Make a person a member of an organization, and print a one-time sign-in link.

    Somebody who already has an account becomes a member and gets no link: they sign in as before.

    \b
    Examples:
      heliograph user create ana@example.com --org Acme
      heliograph user create rui@example.com --org Acme --role developer --name "Rui Costa"
    """
    settings = settings_of(data_dir)

    async def work(conn: Connection) -> dict[str, object]:
        found = await organization(conn, org)
        actor = acting_for(found)
        async with conn.transaction():
            user, is_new = await users.ensure(conn, actor, email=email, name=name)
            await memberships.add(conn, actor, user_id=user.id, role=role)
            token = await links.make(conn, actor, user_id=user.id) if is_new else None
            has = await memberships.role_of(conn, actor, user_id=user.id)
        made = {"id": user.id, "email": user.email, "organization": found.name, "role": has}
        return made | {"link": _address(settings, url, token) if token else None}

    made = on_database(work, settings)
    show(made, json)
    say("The link is valid for one hour and one use." if made["link"] else "This person signs in as before.")


@app.command("link")
def link(email: Email, url: Url = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Print a one-time sign-in link, for somebody who lost their password.

    It is valid for one hour; earlier links stop working.

    \b
    Example:
      heliograph user link ana@example.com
    """
    settings = settings_of(data_dir)

    async def work(conn: Connection) -> dict[str, object]:
        user = await users.find(conn, email=email)
        token = await links.make(conn, shell(), user_id=user.id)
        return {"email": user.email, "link": _address(settings, url, token)}

    show(on_database(work, settings), json)
    say("The link is valid for one hour and one use.")


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 1000,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the members of all organizations or of one.

    \b
    Example:
      heliograph user list --org Acme
    """

    async def work(conn: Connection) -> list[dict[str, object]]:
        found = await users.list_everywhere(conn, organization_id=await only(conn, org), limit=limit)
        return [
            {
                "organization": one.organization,
                "email": one.user.email,
                "name": one.user.name,
                "role": one.role,
                "second_factor": one.user.has_totp,
                "signed_in_at": one.user.signed_in_at,
            }
            for one in found
        ]

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


@app.command("remove")
def remove(email: Email, org: OrgOrAll = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Remove a person from one organization or, without --org, from the installation. Their sessions end at once.

    API keys they created are kept.

    \b
    Examples:
      heliograph user remove ana@example.com --org Acme
      heliograph user remove ana@example.com
    """

    async def work(conn: Connection) -> User:
        user = await users.find(conn, email=email)
        if org is None:
            await users.remove(conn, shell(), id=user.id)
        else:
            await memberships.remove(conn, acting_for(await organization(conn, org)), user_id=user.id)
        return user

    user = on_database(work, settings_of(data_dir))
    show({"email": user.email, "removed_from": org or "the installation"}, json)


def _address(settings: Settings, url: str | None, token: str) -> str:
    return links.address(url or settings.public_url or "http://127.0.0.1:8080", token)
