"""`heliograph key`: an organization's API keys."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated, Literal, Protocol
from uuid import UUID

import typer

from heliograph.accounts import organizations
from heliograph.accounts.api_keys import issued, lifecycle, scopes
from heliograph.accounts.api_keys.issued import ApiKey
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    OrgOrAll,
    acting_for,
    moment,
    on_database,
    only,
    operator,
    settings_of,
    with_organization,
)
from heliograph.cli.terminal.printing import Json, as_plain, group, in_options, say, show

app = group("Create, list, rotate, rename, suspend, resume and revoke API keys.")

Which = Annotated[UUID, typer.Argument(metavar="KEY_ID", help="Id of the key, from `heliograph key list`.")]
COLUMNS = ("organization", "id", "name", "prefix", "last4", "mode", "profile", "status", "last_used_at", "expires_at")


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="What the key is for, 1 to 100 characters.")] = "default",
    profile: Annotated[
        str | None, typer.Option(help=f"Named set of scopes: {', '.join(scopes.PROFILES)}. [default: sms]")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(metavar="SCOPE", help="Scope, instead of a profile. Repeatable.")
    ] = None,
    mode: Annotated[Literal["live", "test"], typer.Option(help="Test keys reach no supplier and use no quota.")] = (
        "live"
    ),
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Expiry: a time with a time zone (2027-01-31T00:00:00Z) or a number of days (90d)."
        ),
    ] = None,
    allow_ip: Annotated[
        list[str] | None,
        typer.Option(metavar="IP", help="IP address or network that the key may be used from. Repeatable."),
    ] = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Create an API key. Its secret is shown only once.

    \b
    Examples:
      heliograph key create "web shop" --org Acme
      heliograph key create ci --mode test --profile full_access --expires 90d
      heliograph key create sender --scope sms:send --allow-ip 203.0.113.0/24
    """
    if profile is None and not scope:
        profile = "sms"
    until = _when(expires) if expires else None

    async def work(conn: Connection) -> tuple[ApiKey, str]:
        return await lifecycle.issue(
            conn,
            await operator(conn, org),
            name=name,
            profile=profile,
            scopes=scope or None,
            mode=mode,
            allowed_ips=allow_ip or (),
            expires_at=until,
        )

    with in_options(
        name="NAME", profile="--profile", scopes="--scope", allowed_ips="--allow-ip", expires_at="--expires"
    ):
        key, secret = on_database(work, settings_of(data_dir))
    show(as_plain(key) | {"secret": secret}, json)
    say("Store the secret now: it is not shown again.")


@app.command("list")
def list_(
    revoked: Annotated[bool, typer.Option("--revoked/--no-revoked", help="Include revoked keys.")] = True,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 1000,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List API keys of all organizations or of one, newest first.

    \b
    Examples:
      heliograph key list --no-revoked
      heliograph key list --org Acme
    """

    async def work(conn: Connection) -> list[tuple[str, ApiKey]]:
        organization_id = await only(conn, org)
        return await issued.list_everywhere(conn, organization_id=organization_id, revoked=revoked, limit=limit)

    show(with_organization(on_database(work, settings_of(data_dir))), json, COLUMNS, limit=limit)


@app.command("rotate")
def rotate(
    id: Which,
    keep_old: Annotated[
        str,
        typer.Option(metavar="TIME", help="How long the old key keeps working alongside the new one: 90m, 24h, 7d."),
    ] = "24h",
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Replace an API key with one that has the same rights, without a gap. The new secret is shown only once.

    \b
    Example:
      heliograph key rotate 0199c0de-0000-7000-8000-000000000000 --keep-old 7d
    """
    units = {"m": "minutes", "h": "hours", "d": "days"}
    if keep_old[-1:] not in units or not keep_old[:-1].isascii() or not keep_old[:-1].isdigit() or len(keep_old) > 6:
        raise typer.BadParameter("must be a time such as 90m, 24h or 7d", param_hint="--keep-old")
    overlap = timedelta(**{units[keep_old[-1]]: int(keep_old[:-1])})

    async def work(conn: Connection) -> tuple[ApiKey, str, ApiKey]:
        owner = await organizations.get(conn, id=await issued.owner(conn, id=id))
        return await lifecycle.rotate(conn, acting_for(owner), id=id, overlap=overlap)

    with in_options(overlap="--keep-old"):
        made, secret, old = on_database(work, settings_of(data_dir))
    show(as_plain(made) | {"secret": secret, "old_key_ends_at": as_plain(old.expires_at)}, json)
    say("Store the secret now: it is not shown again.")


@app.command("rename")
def rename(
    id: Which,
    name: Annotated[str, typer.Argument(help="What the key is for, 1 to 100 characters.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Rename an API key.

    \b
    Example:
      heliograph key rename 0199c0de-0000-7000-8000-000000000000 "web shop"
    """

    async def work(conn: Connection) -> ApiKey:
        owner = await organizations.get(conn, id=await issued.owner(conn, id=id))
        return await lifecycle.rename(conn, acting_for(owner), id=id, name=name)

    show(on_database(work, settings_of(data_dir)), json)


@app.command("suspend")
def suspend(id: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Suspend an API key until it is resumed. Takes effect everywhere within a second.

    \b
    Example:
      heliograph key suspend 0199c0de-0000-7000-8000-000000000000
    """
    _change(lifecycle.suspend, id, json, data_dir)


@app.command("resume")
def resume(id: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Reactivate a suspended API key, if its organization has fewer than five active keys.

    \b
    Example:
      heliograph key resume 0199c0de-0000-7000-8000-000000000000
    """
    _change(lifecycle.resume, id, json, data_dir)


@app.command("revoke")
def revoke(id: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Revoke an API key permanently. Takes effect everywhere within a second.

    \b
    Example:
      heliograph key revoke 0199c0de-0000-7000-8000-000000000000
    """
    _change(lifecycle.revoke, id, json, data_dir)


class _Change(Protocol):
    async def __call__(self, conn: Connection, actor: Actor, *, id: UUID) -> ApiKey: ...


def _change(rule: _Change, id: UUID, json: bool, data_dir: DataDir) -> None:
    async def work(conn: Connection) -> ApiKey:
        owner = await organizations.get(conn, id=await issued.owner(conn, id=id))
        return await rule(conn, acting_for(owner), id=id)

    show(on_database(work, settings_of(data_dir)), json)


def _when(text: str) -> datetime:
    if re.fullmatch("[0-9]+d", text):
        try:
            # Python reads no integer of more than 4,300 digits.
            return clock.now() + timedelta(days=float(text[:-1]))
        except OverflowError:
            raise typer.BadParameter("too far in the future", param_hint="--expires") from None
    return moment(text, "--expires")
