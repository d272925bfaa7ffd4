"""`heliograph org`: the customers."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from heliograph.accounts import organizations, plans, quota
from heliograph.accounts.organizations import Organization
from heliograph.base import clock, phones
from heliograph.base.db import Connection
from heliograph.cli.console import DataDir, Json, as_plain, group, moment, on_database, organization, settings_of, show

app = group("Organizations: create, look at, rename, suspend and resume them, and put them on plans.")

COLUMNS = ("id", "name", "state", "created_at")
Which = Annotated[str, typer.Argument(metavar="ORG", help="Id of the organization, or its name.")]


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Name, 1 to 200 characters, that no other has.")],
    state: Annotated[str, typer.Option(help=f"One of {', '.join(organizations.STATES)}.")] = "active",
    home_country: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Its country, such as MZ: numbers without a calling code are read as its."),
    ] = None,
    grant: Annotated[int, typer.Option(min=0, help="Messages that it may send, to begin with.")] = 0,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Create an organization. A name that another one has, in any case, is refused.

    \b
    Examples:
      heliograph org create "Acme Lda" --grant 10000 --home-country MZ
      heliograph org create Beta --state trial --json
    """

    async def work(conn: Connection) -> Organization:
        async with conn.transaction():
            made = await organizations.create(conn, name=name, state=state, country=home_country)
            if grant:
                await quota.grant(conn, made.id, amount=grant, reason="initial")
            return made

    show(on_database(work, settings_of(data_dir)), json)


@app.command("rename")
def rename(
    which: Which,
    name: Annotated[str, typer.Argument(help="New name, 1 to 200 characters, that no other organization has.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Give an organization another name. Keys, messages and ids stay as they are.

    \b
    Example:
      heliograph org rename "Acme Lda" "Acme Moçambique"
    """

    async def work(conn: Connection) -> Organization:
        found = await organization(conn, which)
        return await organizations.rename(conn, id=found.id, name=name)

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
    plan: Annotated[str | None, typer.Argument(help="Name of the plan; left out with --end.")] = None,
    allowance: Annotated[
        int | None,
        typer.Option(
            "--quota",
            min=0,
            show_default=False,
            help="Messages that each period brings, from this one on; what remained is not carried over. Without it,"
            " the quota is left alone.",
        ),
    ] = None,
    months: Annotated[int, typer.Option(min=1, max=plans.MAX_MONTHS, help="Length of a period.")] = 1,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="When the first period began, with its zone: 2027-01-01T00:00:00Z. Now."),
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Take the organization off its plan; its quota stays.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Put an organization on a plan, whose periods then follow each other by themselves.

    \b
    Examples:
      heliograph org plan "Acme Lda" business --quota 50000
      heliograph org plan "Acme Lda" yearly --quota 600000 --months 12 --since 2026-01-01T00:00:00Z
      heliograph org plan "Acme Lda" --end
    """
    if (plan is None) != end:
        raise typer.BadParameter("name a plan, or give --end")
    anchor = moment(since, "--since") if since else None

    async def work(conn: Connection) -> dict[str, object]:
        found = await organization(conn, which)
        if plan is None:
            await plans.unsubscribe(conn, found.id)
        else:
            await plans.subscribe(
                conn, found.id, plan=plan, allowance=allowance, now=clock.now(), anchor=anchor, months=months
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
    """Set an organization's commercial state. In `suspended` and `closed` its keys can only read.

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
    return as_plain(found) | {"quota": as_plain(balance) | {"remaining": balance.remaining}}


@app.command("configure")
def configure(
    which: Which,
    smart_encoding: Annotated[
        bool | None,
        typer.Option(
            "--smart-encoding/--no-smart-encoding",
            show_default=False,
            help="Replace look-alike characters so that a text fits GSM-7.",
        ),
    ] = None,
    replace_accents: Annotated[
        bool | None,
        typer.Option(
            "--replace-accents/--keep-accents",
            show_default=False,
            help="Send á as a where that makes a text fit GSM-7, and so halves its segments. Look-alikes are"
            " replaced too.",
        ),
    ] = None,
    country: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGION", show_default=False, help="ISO region that may be sent to, repeatable; `any`: all of them."
        ),
    ] = None,
    home_country: Annotated[
        str | None,
        typer.Option(
            metavar="CODE",
            show_default=False,
            help="Its country, such as MZ: numbers without a calling code are read as its; `none`: they are refused.",
        ),
    ] = None,
    opt_out_word: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            show_default=False,
            help="Word that opts out besides STOP and its kin, repeatable; these replace those before; `none`: none.",
        ),
    ] = None,
    stop_reply: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", show_default=False, help="Answer to STOP; `default`: the standard text; empty: no answer."
        ),
    ] = None,
    start_reply: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="The same for START.")
    ] = None,
    help_reply: Annotated[
        str | None, typer.Option(metavar="TEXT", show_default=False, help="The same for HELP.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Change an organization's own rules. What is left out stays.

    \b
    Examples:
      heliograph org configure "Acme Lda" --opt-out-word FORA --opt-out-word SAIR
      heliograph org configure "Acme Lda" --help-reply "Acme, +258 21 000 000. Reply STOP to get no more."
      heliograph org configure "Acme Lda" --country MZ --country ZA --home-country MZ
    """
    countries: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    if country:
        countries = None if country == ["any"] else _regions(country)

    async def work(conn: Connection) -> Organization:
        found = await organization(conn, which)
        return await organizations.configure(
            conn,
            id=found.id,
            smart_encoding=smart_encoding,
            replace_accents=replace_accents,
            allowed_countries=countries,
            opt_out_words=[] if opt_out_word == ["none"] else opt_out_word or None,
            stop_reply=_reply(stop_reply),
            start_reply=_reply(start_reply),
            help_reply=_reply(help_reply),
            country=msgspec.UNSET if home_country is None else None if home_country == "none" else home_country,
        )

    show(on_database(work, settings_of(data_dir)), json)


def _regions(given: list[str]) -> list[str]:
    known = set(phones.REGIONS.values())
    regions = [one.upper() for one in given]
    for one in regions:
        if one not in known:
            raise typer.BadParameter(f"{one!r} is no region with a calling code of its own")
    return regions


def _reply(given: str | None) -> str | msgspec.UnsetType | None:
    """As `organizations.configure` takes it."""
    if given is None:
        return msgspec.UNSET
    return None if given == "default" else given


def _set_state(which: str, state: str, json: bool, data_dir: DataDir) -> None:
    async def work(conn: Connection) -> Organization:
        found = await organization(conn, which)
        return await organizations.set_state(conn, id=found.id, state=state)

    show(on_database(work, settings_of(data_dir)), json)
