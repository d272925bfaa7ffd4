"""`heliograph org`: organizations, their settings, plans and states."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from heliograph.accounts import installation, organizations, plans, quota
from heliograph.accounts.organizations import Organization, StateKept
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.cli.organization import configuring, notes, rate_limits, send_defaults
from heliograph.cli.organization.configuring import countries, shown
from heliograph.cli.terminal.asking import confirm
from heliograph.cli.terminal.console import DataDir, Problem, moment, on_database, organization, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, group, in_options, say, show
from heliograph.overview.installation import rates
from heliograph.sealing import text_keys
from heliograph.sealing.text_keys import Sealed

app = group("Create, show, rename, configure, suspend and resume organizations, and assign plans.")
app.add_typer(notes.app, name="note")

COLUMNS = ("id", "name", "state", "created_at")
Which = Annotated[str, typer.Argument(metavar="ORG", help="Organization, by id or name.")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Unique name, 1 to 200 characters.")],
    state: Annotated[str, typer.Option(help=f"One of {', '.join(organizations.STATES)}.")] = "active",
    home_country: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            help="Its country, such as MZ: the one it may send to, and the one of numbers without a country code.",
        ),
    ] = None,
    country: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION",
            show_default=False,
            help="Country that may be sent to, repeatable; `any` allows all. Default: its own.",
        ),
    ] = None,
    grant: Annotated[
        int | None,
        typer.Option(
            min=0, show_default="what `heliograph installation set --new-quota` says", help="Initial message quota."
        ),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Create an organization. Names are unique, ignoring case. It may send to its own country and those allowed.

    \b
    Examples:
      heliograph org create "Acme Lda" --grant 10000 --home-country MZ
      heliograph org create "Acme Lda" --home-country MZ --country MZ --country ZA
      heliograph org create Beta --state trial --country any --json
    """
    if not country and home_country is None:
        raise typer.BadParameter("give its country (--home-country MZ), or those it may send to (--country any)")

    async def work(conn: Connection) -> Organization:
        async with conn.transaction():
            made = await organizations.create(
                conn, name=name, state=state, country=home_country, allowed_countries=countries(country), by=shell()
            )
            amount = (await installation.load(conn)).new_quota if grant is None else grant
            if amount:
                await quota.grant(conn, made.id, amount=amount, reason="initial", by=shell())
            return made

    with in_options(amount="--grant"):
        made = on_database(work, settings_of(data_dir))
    show(made, json)


@app.command("rename")
def rename(
    which: Which,
    name: Annotated[str, typer.Argument(help="New unique name, 1 to 200 characters.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Rename an organization. Keys, messages and ids are unaffected.

    \b
    Example:
      heliograph org rename "Acme Lda" "Acme Moçambique"
    """

    async def work(conn: Connection) -> Organization:
        found = await organization(conn, which)
        return await organizations.rename(conn, id=found.id, name=name, by=shell())

    show(on_database(work, settings_of(data_dir)), json)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number to show.")] = 1000,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List organizations, newest first.

    \b
    Examples:
      heliograph org list
      heliograph org list --limit 50000 -o tsv
    """
    found = on_database(partial(organizations.list_all, limit=limit), settings_of(data_dir))
    show(found, json, COLUMNS, limit=limit)


@app.command("show")
def show_(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Show an organization, with its quota and its request rates compared with its limits.

    \b
    Example:
      heliograph org show "Acme Lda"
    """

    settings = settings_of(data_dir)

    async def work(conn: Connection) -> dict[str, object]:
        whole = await _whole(conn, which)
        found = await organization(conn, which)
        return whole | {"requests": as_plain(await rates.read(conn, settings, found.id))}

    show(on_database(work, settings), json)


@app.command("plan")
def plan(
    which: Which,
    plan: Annotated[str | None, typer.Argument(help="Name of the plan; omit with --end.")] = None,
    allowance: Annotated[
        int | None,
        typer.Option(
            "--quota",
            min=0,
            show_default=False,
            help=(
                "Message quota per period, starting with the current one; unused quota is not carried over. "
                "Without it, the quota is unchanged."
            ),
        ),
    ] = None,
    months: Annotated[int, typer.Option(min=1, max=plans.MAX_MONTHS, help="Length of a period.")] = 1,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="Start of the first period, with a time zone: 2027-01-01T00:00:00Z. Defaults to now."
        ),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the plan; the quota is kept.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Put an organization on a plan, whose periods then renew automatically.

    \b
    Examples:
      heliograph org plan "Acme Lda" business --quota 50000
      heliograph org plan "Acme Lda" yearly --quota 600000 --months 12 --since 2026-01-01T00:00:00Z
      heliograph org plan "Acme Lda" --end
    """
    if (plan is None) != end:
        raise typer.BadParameter("give the name of a plan, or --end")
    anchor = moment(since, "--since") if since else None

    async def work(conn: Connection) -> dict[str, object]:
        found = await organization(conn, which)
        if plan is None:
            await plans.unsubscribe(conn, found.id, by=shell())
        else:
            await plans.subscribe(
                conn,
                found.id,
                plans.Terms(plan, allowance, months),
                now=clock.now(),
                anchor=anchor,
                by=shell(),
            )
        return await _whole(conn, str(found.id))

    show(on_database(work, settings_of(data_dir)), json)


@app.command("state")
def state(
    which: Which,
    state: Annotated[str, typer.Argument(help=f"One of {', '.join(organizations.STATES)}.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before a key is destroyed.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Set an organization's commercial state. In `suspended` and `closed` its keys and its people can only read.
    `closed` destroys the key of its sealed texts (`heliograph org configure ORG --seal-texts`), which nobody can read
    from then on; this has to be confirmed.

    \b
    Example:
      heliograph org state "Acme Lda" past_due
    """
    settings = settings_of(data_dir)
    if state == "closed" and not yes:
        name, seal = on_database(partial(_seal, which=which), settings)
        if seal.key == "kept":
            say(f"The key of {name}'s sealed texts is destroyed: nobody can read them again, even if it is reopened.")
            confirm("Close it?")

    async def work(conn: Connection) -> Organization:
        found = await organization(conn, which)
        return await organizations.set_state(conn, id=found.id, state=state, by=shell())

    show(on_database(work, settings), json)


@app.command("suspend")
def suspend(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Suspend an organization: its keys and its people can read, but not send or change anything.

    \b
    Example:
      heliograph org suspend "Acme Lda"
    """

    async def work(conn: Connection) -> Organization:
        found = await organization(conn, which)
        try:
            return await organizations.set_state(conn, id=found.id, state="suspended", unless=("closed",), by=shell())
        except StateKept:
            # It would be closed no longer, and its texts be sealed with a new key.
            said = "It is closed, so its keys can already only read. `heliograph org state` changes that."
            raise Problem(said) from None

    show(on_database(work, settings_of(data_dir)), json)


@app.command("resume")
def resume(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Return a suspended or closed organization to the state it was in before, such as `trial`.

    \b
    Example:
      heliograph org resume "Acme Lda"
    """

    async def work(conn: Connection) -> organizations.Organization:
        found = await organization(conn, which)
        return await organizations.resume(conn, id=found.id, by=shell())

    show(on_database(work, settings_of(data_dir)), json)


async def _whole(conn: Connection, which: str) -> dict[str, object]:
    found = await organization(conn, which)
    balance = await quota.get(conn, found.id)
    return await shown(conn, found) | {"quota": as_plain(balance) | {"remaining": balance.remaining}}


app.command("defaults")(send_defaults.defaults)


app.command("configure")(configuring.configure)


app.command("rate-limits")(rate_limits.limits)


async def _seal(conn: Connection, which: str) -> tuple[str, Sealed]:
    """An organization's name, and whether its texts are sealed."""
    found = await organization(conn, which)
    return found.name, await text_keys.get(conn, organization_id=found.id)
