"""`heliograph optout`: numbers that an organization must not write to."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.console import DataDir, Org, on_database, operator, settings_of
from heliograph.cli.terminal.printing import Json, group, in_options, in_utf8, say, show
from heliograph.consent import exporting, optouts
from heliograph.consent.optouts import OptOut

app = group("List, export, add and remove opt-outs of an organization.")

COLUMNS = ("recipient", "since", "source", "keyword", "message_id")
Number = Annotated[
    str,
    typer.Argument(
        metavar="NUMBER",
        help=(
            "Phone number, international (+258841234567) or in the national format of the organization's "
            "country, or a user id."
        ),
    ),
]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Maximum number to show.")] = 1000,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List an organization's opt-outs, newest first.

    \b
    Example:
      heliograph optout list --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[OptOut]:
        return [one for one, _ in await optouts.list_page(conn, await operator(conn, org), limit=limit)]

    show(on_database(work, settings_of(data_dir)), json, COLUMNS, limit=limit)


@app.command("export")
def export(
    org: Org = None,
    json: Annotated[bool, typer.Option("--json", help="Write one JSON line per opt-out instead of CSV.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Export an organization's opt-outs as CSV, newest first.

    \b
    Example:
      heliograph optout export --org "Acme Lda" > opt-outs.csv
    """

    async def work(conn: Connection) -> int:
        actor = await operator(conn, org)
        await exporting.begin(conn, actor, as_json=json)
        total, out = 0, in_utf8()
        async for count, text in exporting.pieces(lambda: contextlib.nullcontext(conn), actor, as_json=json):
            out.write(text)
            total += count
        return total

    say(f"{with_noun(on_database(work, settings_of(data_dir)), 'opt-out')}.")


@app.command("add")
def add(number: Number, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Add an opt-out on behalf of the number's owner. The organization is notified by an event.

    \b
    Example:
      heliograph optout add +258841234567 --org "Acme Lda"
    """

    async def work(conn: Connection) -> OptOut:
        return await optouts.add(conn, await operator(conn, org), phone=number)

    with in_options(phone="NUMBER"):
        added = on_database(work, settings_of(data_dir))
    show(added, json)


@app.command("remove")
def remove(number: Number, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Remove an opt-out. Only do this if the number's owner asked for it; from a handset, they can reply START.

    \b
    Example:
      heliograph optout remove +258841234567 --org "Acme Lda"
    """

    async def work(conn: Connection) -> OptOut:
        return await optouts.remove(conn, await operator(conn, org), phone=number)

    with in_options(phone="NUMBER"):
        removed = on_database(work, settings_of(data_dir))
    show(removed, json)
    say("Messages can be sent to it again.")
