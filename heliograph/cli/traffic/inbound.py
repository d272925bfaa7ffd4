"""`heliograph inbound`: messages from handsets."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.base.database.pool import Connection
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.console import DataDir, Org, on_database, operator, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, group, is_for_programs, say, show
from heliograph.sms.received import inbound
from heliograph.sms.received import unassigned as unassigned_
from heliograph.sms.received.inbound import Listed

app = group("List inbound messages, and retry those not assigned to an organization.")

COLUMNS = ("received_at", "sender", "recipient", "segments", "missing", "keyword", "supplier", "id")


@app.command("list")
def list_(
    unassigned: Annotated[
        bool,
        typer.Option(
            "--unassigned",
            help="Messages to a number that belongs to no organization, or to several; one line per part.",
        ),
    ] = False,
    text: Annotated[bool, typer.Option("--text", help="Also show the text.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List messages that an organization received, newest first.

    For operators: shows full phone numbers.

    \b
    Examples:
      heliograph inbound list --org "Acme Lda" --text
      heliograph inbound list --unassigned
    """

    async def work(conn: Connection) -> list[Listed]:
        if unassigned:
            return await inbound.unassigned(conn, limit=limit)
        actor = await operator(conn, org)
        return await inbound.received(
            conn, organization_id=actor.organization_id, limit=limit, by=shell(), with_text=text
        )

    found = as_plain(on_database(work, settings_of(data_dir)))
    if not text:
        for one in found:
            del one["text"]
    show(found, json, (*COLUMNS, "text") if text else COLUMNS, limit=limit)


@app.command("numbers")
def numbers(json: Json = False, data_dir: DataDir = None) -> None:
    """List the numbers that unassigned messages came to, and why they belong to no organization.

    why: nobody (no organization has the number as a sender ID), not_approved, several, or approved_since (the number
    has an owner by now: run `heliograph inbound retry`).

    \b
    Example:
      heliograph inbound numbers
    """
    found = as_plain(on_database(unassigned_.listed, settings_of(data_dir)))
    show(found, json, ("recipient", "number", "supplier", "count", "last_at", "why", "organizations"))


@app.command("assign")
def assign(
    recipient: Annotated[str, typer.Argument(metavar="NUMBER", help="As `heliograph inbound numbers` shows it.")],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Make a number an approved sender ID of an organization, and process again the messages that came to it.

    \b
    Example:
      heliograph inbound assign 258840001000 --org "Acme Lda"
    """

    async def work(conn: Connection) -> int | None:
        return await unassigned_.assign(conn, await operator(conn, org), recipient=recipient)

    count = on_database(work, settings_of(data_dir))
    if is_for_programs(json):
        show({"count": count}, json)
    if count is None:
        say("You approved the number for them. It is theirs once another operator does so too.")
    else:
        say(f"{with_noun(count, 'message')} will be retried by the next free worker.")


@app.command("retry")
def retry(json: Json = False, data_dir: DataDir = None) -> None:
    """Retry all unassigned messages, after their number has been approved for one organization.

    \b
    Example:
      heliograph inbound retry
    """
    count = on_database(inbound.retry, settings_of(data_dir))
    if is_for_programs(json):
        show({"count": count}, json)
    say(f"{with_noun(count, 'message')} will be retried by the next free worker.")
