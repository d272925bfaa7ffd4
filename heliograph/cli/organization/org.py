"""`heliograph org`: organizations, their settings, plans and states."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from heliograph.accounts import installation, organizations, plans, quota, text_keys
from heliograph.accounts.organizations import Organization
from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.cli.organization import notes, send_defaults
from heliograph.cli.terminal.console import DataDir, moment, on_database, organization, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, group, show

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
                conn, name=name, state=state, country=home_country, allowed_countries=_countries(country), by=shell()
            )
            amount = (await installation.load(conn)).new_quota if grant is None else grant
            if amount:
                await quota.grant(conn, made.id, amount=amount, reason="initial", by=shell())
            return made

    show(on_database(work, settings_of(data_dir)), json)


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
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List organizations, newest first.

    \b
    Example:
      heliograph org list
    """
    show(on_database(organizations.list_all, settings_of(data_dir)), json, COLUMNS)


@app.command("show")
def show_(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Show an organization, with its quota.

    \b
    Example:
      heliograph org show "Acme Lda"
    """

    show(on_database(lambda conn: _whole(conn, which), settings_of(data_dir)), json)


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
                plan=plan,
                allowance=allowance,
                now=clock.now(),
                anchor=anchor,
                months=months,
                by=shell(),
            )
        return await _whole(conn, str(found.id))

    show(on_database(work, settings_of(data_dir)), json)


@app.command("state")
def state(
    which: Which,
    state: Annotated[str, typer.Argument(help=f"One of {', '.join(organizations.STATES)}.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Set an organization's commercial state. In `suspended` and `closed` its keys can only read. `closed` throws away
    the key of its sealed texts (`heliograph org configure ORG --seal-texts`), which nobody can read from then on.

    \b
    Example:
      heliograph org state "Acme Lda" past_due
    """
    _set_state(which, state, json, data_dir)


@app.command("suspend")
def suspend(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Suspend an organization: its keys can read, but not send or change anything.

    \b
    Example:
      heliograph org suspend "Acme Lda"
    """
    _set_state(which, "suspended", json, data_dir)


@app.command("resume")
def resume(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """Make an organization active again.

    \b
    Example:
      heliograph org resume "Acme Lda"
    """
    _set_state(which, "active", json, data_dir)


async def _whole(conn: Connection, which: str) -> dict[str, object]:
    found = await organization(conn, which)
    balance = await quota.get(conn, found.id)
    return await _shown(conn, found) | {"quota": as_plain(balance) | {"remaining": balance.remaining}}


async def _shown(conn: Connection, found: Organization) -> dict[str, object]:
    return as_plain(found) | {"texts": as_plain(await text_keys.get(conn, organization_id=found.id))}


app.command("defaults")(send_defaults.defaults)


@app.command("configure")
def configure(
    which: Which,
    smart_encoding: Annotated[
        bool | None,
        typer.Option(
            "--smart-encoding/--no-smart-encoding",
            show_default=False,
            help="Replace typographic characters with plain ones so that a text fits the GSM alphabet.",
        ),
    ] = None,
    replace_accents: Annotated[
        bool | None,
        typer.Option(
            "--replace-accents/--keep-accents",
            show_default=False,
            help=(
                "Send á as a where this makes a text fit the GSM alphabet and so halves its segments. "
                "Typographic characters are replaced too."
            ),
        ),
    ] = None,
    country: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION", show_default=False, help="Country that may be sent to, repeatable; `any` allows all."
        ),
    ] = None,
    home_country: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            show_default=False,
            help="Country, such as MZ, for reading numbers without a country code; `none` rejects them.",
        ),
    ] = None,
    opt_out_word: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            show_default=False,
            help="Additional opt-out word, repeatable; replaces the previous ones; `none` removes them.",
        ),
    ] = None,
    stop_reply: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            show_default=False,
            help="Reply to STOP; `default` for the standard text, empty for no reply.",
        ),
    ] = None,
    start_reply: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="Reply to START, likewise.")
    ] = None,
    help_reply: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="Reply to HELP, likewise.")
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE",
            show_default=False,
            help="Time zone, such as Africa/Maputo, of members who chose none; `none` is UTC.",
        ),
    ] = None,
    require_factor: Annotated[
        bool | None,
        typer.Option(
            "--require-factor/--no-require-factor",
            show_default=False,
            help="Require a second factor of members: without one they see nothing of the organization.",
        ),
    ] = None,
    session_hours: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=organizations.LONGEST_SESSION,
            show_default=False,
            help="Hours without use after which members are signed out; 0 leaves it at the usual 12.",
        ),
    ] = None,
    reveal: Annotated[
        bool | None,
        typer.Option(
            "--reveal/--no-reveal",
            show_default=False,
            help="Let developers reveal the number and text of one message at a time, which is recorded.",
        ),
    ] = None,
    seal_texts: Annotated[
        bool | None,
        typer.Option(
            "--seal-texts/--no-seal-texts",
            show_default=False,
            help="Store texts of SMS that it sends from now on encrypted, under a key that closing it throws away.",
        ),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change an organization's settings. Options left out stay unchanged.

    \b
    Examples:
      heliograph org configure "Acme Lda" --opt-out-word FORA --opt-out-word SAIR
      heliograph org configure "Acme Lda" --help-reply "Acme, +258 21 000 000. Reply STOP to get no more."
      heliograph org configure "Acme Lda" --country MZ --country ZA --home-country MZ
      heliograph org configure "Acme Lda" --require-factor --session-hours 8 --time-zone Africa/Maputo
      heliograph org configure "Acme Lda" --seal-texts
    """
    settings = settings_of(data_dir, needs_key=seal_texts is True)

    async def work(conn: Connection) -> dict[str, object]:
        found = await organization(conn, which)
        if seal_texts is not None:
            await text_keys.switch(conn, organization_id=found.id, on=seal_texts, by=shell())
        changed = await organizations.configure(
            conn,
            id=found.id,
            smart_encoding=smart_encoding,
            replace_accents=replace_accents,
            allowed_countries=_countries(country),
            opt_out_words=[] if opt_out_word == ["none"] else opt_out_word or None,
            stop_reply=_reply(stop_reply),
            start_reply=_reply(start_reply),
            help_reply=_reply(help_reply),
            time_zone=msgspec.UNSET if time_zone is None else None if time_zone == "none" else time_zone,
            factor_required=require_factor,
            session_hours=msgspec.UNSET if session_hours is None else session_hours or None,
            reveals=reveal,
            country=msgspec.UNSET if home_country is None else None if home_country == "none" else home_country,
            by=shell(),
        )
        return await _shown(conn, changed)

    show(on_database(work, settings), json)


def _countries(given: list[str] | None) -> list[str] | msgspec.UnsetType | None:
    """As `organizations` takes them."""
    if not given:
        return msgspec.UNSET
    return None if given == ["any"] else _regions(given)


def _regions(given: list[str]) -> list[str]:
    known = set(phones.REGIONS.values())
    regions = [one.upper() for one in given]
    for one in regions:
        if one not in known:
            raise typer.BadParameter(f"{one!r} is not a country with its own calling code")
    return regions


def _reply(given: str | None) -> str | msgspec.UnsetType | None:
    """As `organizations.configure` takes it."""
    if given is None:
        return msgspec.UNSET
    return None if given == "default" else given


def _set_state(which: str, state: str, json: bool, data_dir: DataDir) -> None:
    async def work(conn: Connection) -> Organization:
        found = await organization(conn, which)
        return await organizations.set_state(conn, id=found.id, state=state, by=shell())

    show(on_database(work, settings_of(data_dir)), json)
