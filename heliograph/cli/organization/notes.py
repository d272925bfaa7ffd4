"""`heliograph org note`: operators' notes about an organization, which it never reads."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

import typer

from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, on_database, organization, settings_of, shell
from heliograph.cli.terminal.printing import Json, group, show
from heliograph.overview.installation import notes

app = group("List, write and remove operators' notes on an organization, which it never reads.")

COLUMNS = ("id", "created_at", "author", "body")
Which = Annotated[str, typer.Argument(metavar="ORG", help="Organization, by id or name.")]


@app.command("list")
def list_(which: Which, json: Json = False, data_dir: DataDir = None) -> None:
    """List the notes on an organization, newest first.

    \b
    Example:
      heliograph org note list "Acme Lda"
    """

    async def work(conn: Connection) -> list[notes.Note]:
        return await notes.listed(conn, organization_id=(await organization(conn, which)).id)

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


@app.command("add")
def add(
    which: Which,
    text: Annotated[str, typer.Argument(help="The note, 1 to 2,000 characters.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Add a note about an organization, for operators.

    \b
    Example:
      heliograph org note add "Acme Lda" "Pays by transfer; ask Ana before suspending."
    """

    async def work(conn: Connection) -> notes.Note:
        one = await organization(conn, which)
        return await notes.add(conn, organization_id=one.id, body=text, by=shell())

    show(on_database(work, settings_of(data_dir)), json)


@app.command("remove")
def remove(
    which: Which,
    id: Annotated[UUID, typer.Argument(metavar="NOTE_ID", help="Id of the note.")],
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Remove a note on an organization.

    \b
    Example:
      heliograph org note remove "Acme Lda" 0199c0de-0000-7000-8000-000000000000
    """

    async def work(conn: Connection) -> dict[str, Any]:
        one = await organization(conn, which)
        await notes.remove(conn, organization_id=one.id, id=id, by=shell())
        return {"id": id, "state": "removed"}

    show(on_database(work, settings_of(data_dir)), json)
