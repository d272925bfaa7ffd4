"""`heliograph optout`: numbers that an organization may not write to."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.base.db import Connection
from heliograph.cli.console import DataDir, Json, Org, group, on_database, operator, say, settings_of, show
from heliograph.consent import optouts
from heliograph.consent.optouts import OptOut

app = group("Opt-outs: numbers that asked an organization for no more messages.")

COLUMNS = ("recipient", "since", "source", "keyword", "message_id")
Number = Annotated[
    str,
    typer.Argument(
        metavar="NUMBER",
        help="+258841234567, or the number as it is written in the organization's country; or a user id.",
    ),
]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, at most.")] = 1000,
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
        return await optouts.list_all(conn, await operator(conn, org), limit=limit)

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


@app.command("add")
def add(number: Number, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Opt a number out in its owner's name. The organization is told by an event.

    \b
    Example:
      heliograph optout add +258841234567 --org "Acme Lda"
    """

    async def work(conn: Connection) -> OptOut:
        return await optouts.add(conn, await operator(conn, org), phone=number)

    show(on_database(work, settings_of(data_dir)), json)


@app.command("remove")
def remove(number: Number, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Let a number be written to again. Only for an owner who asked for it: a handset does it by START.

    \b
    Example:
      heliograph optout remove +258841234567 --org "Acme Lda"
    """

    async def work(conn: Connection) -> OptOut:
        return await optouts.remove(conn, await operator(conn, org), phone=number)

    show(on_database(work, settings_of(data_dir)), json)
    say("It may be written to again.")
