"""`heliograph tag`: the tags of an organization's contacts."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.base.database.pool import Connection
from heliograph.campaigns.views import tags as tag_uses
from heliograph.campaigns.views.tags import TagUse
from heliograph.cli.terminal.console import DataDir, Org, on_database, operator, settings_of
from heliograph.cli.terminal.printing import Json, group, show
from heliograph.contacts import records, tags
from heliograph.contacts.tags import TagChange

app = group("List, rename, merge and remove tags of contacts.")

COLUMNS = ("name", "contacts", "last_campaign_at", "campaign_id")
Name = Annotated[str, typer.Argument(metavar="TAG", help="The tag.")]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 200,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List an organization's tags, how many contacts have each, and when a campaign was last sent to them.

    \b
    Example:
      heliograph tag list --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[TagUse]:
        return await tag_uses.list_page(conn, await operator(conn, org), limit=limit, counted=tags.COUNTED_ALONE)

    show(on_database(work, settings_of(data_dir)), json, COLUMNS, limit=limit)


@app.command("rename")
def rename(
    tag: Name,
    name: Annotated[str, typer.Argument(help="New name. If another tag has it, the two are merged.")],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Rename a tag on every contact, or merge it into another tag.

    \b
    Example:
      heliograph tag rename spring spring-2027 --org "Acme Lda"
    """
    becomes = records.tag(name, "name")
    show(on_database(lambda conn: _change(conn, org, tag, becomes), settings_of(data_dir)), json)


@app.command("remove")
def remove(tag: Name, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Remove a tag from every contact. The contacts stay.

    \b
    Example:
      heliograph tag remove spring-2027 --org "Acme Lda"
    """
    show(on_database(lambda conn: _change(conn, org, tag, None), settings_of(data_dir)), json)


async def _change(conn: Connection, org: str | None, tag: str, becomes: str | None) -> TagChange:
    actor = await operator(conn, org)
    async with conn.transaction():
        id = await tags.begin(conn, actor, tag=records.tag(tag, "tag"), becomes=becomes)
    # A worker may be doing the same; whichever comes second finds nothing to do.
    while (change := await tags.get(conn, actor, id=id)).finished_at is None:
        async with conn.transaction():
            await tags.go_on(conn, actor, id=id)
    return change
