"""`heliograph person`: export or erase all data held about one person."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Annotated, TextIO

import typer

from heliograph.accounts.organizations import Organization
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.asking import confirm
from heliograph.cli.terminal.console import DataDir, Org, Problem, acting_for, on_database, organization, settings_of
from heliograph.cli.terminal.files import unless_stdout, writable, writing
from heliograph.cli.terminal.printing import Json, JsonOnly, group, in_utf8, say, show
from heliograph.contacts import records
from heliograph.privacy import erasure, holdings
from heliograph.privacy.erasure import ErasureReceipt
from heliograph.sealing import text_keys
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id

app = group("Export or erase the data held about a person.")

Person = Annotated[str, typer.Argument(metavar="NUMBER|USER-ID", help="Phone number or WhatsApp user id.")]


@app.command("export")
def export(
    who: Person,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", show_default="standard output", callback=unless_stdout, help="Write to this file."
        ),
    ] = None,
    org: Org = None,
    json: JsonOnly = False,
    data_dir: DataDir = None,
) -> None:
    """Export what an organization holds about a person: contact, consent, campaigns, conversations and all messages
    with their texts, under every linked number and user id. One JSON object per line. The audit log records the export.

    \b
    Example:
      heliograph person export +258841234567 --org "Acme Lda" --file person.jsonl
    """
    if file is not None:
        writable(file)

    async def work(conn: Connection) -> int:
        found = await organization(conn, org)
        address, count = _address(who, found), 0
        if not await text_keys.opens(conn, found.id):
            # A person's disclosure must not be incomplete without saying so.
            raise Problem(
                f"the secret key does not open the texts of {found.name}: give the one they were sealed under"
            )
        with contextlib.ExitStack() as stack:
            out: TextIO = in_utf8()
            if file is not None:
                out = stack.enter_context(writing(file, encoding="utf-8"))
            async for row in holdings.held(conn, acting_for(found), address=address):
                out.write(holdings.line(row))
                count += 1
        return count

    say(f"{with_noun(on_database(work, settings_of(data_dir)), 'entry', 'entries')}.")


@app.command("erase")
def erase(
    who: Person,
    org: Org = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Erase a person: the contact and the texts of all messages to and from them, under every linked number and user
    id. What is still to be sent to them is canceled and refunded. Asks first, with the contact's name. Prints a
    receipt, which is also in the audit log.

    Records needed for billing are kept, and so is an opt-out.

    \b
    Examples:
      heliograph person erase +258841234567 --org "Acme Lda"
      heliograph person erase +258841234567 --org "Acme Lda" --yes
    """
    settings = settings_of(data_dir)
    if not yes:
        confirm(f"Erase {on_database(partial(_told, who=who, org=org), settings)}?")

    async def work(conn: Connection) -> ErasureReceipt:
        found = await organization(conn, org)
        return await erasure.erase(conn, acting_for(found), address=_address(who, found))

    show(on_database(work, settings), json)


async def _told(conn: Connection, *, who: str, org: str | None) -> str:
    """The person as a question names them: `+258841234567 (Ana) of Acme`."""
    found = await organization(conn, org)
    address = _address(who, found)
    known = [] if is_user_id(address) else await records.find(conn, acting_for(found), text=address, country=None)
    name = f" ({known[0].name})" if known and known[0].name != address else ""
    return f"{address}{name} of {found.name}, permanently"


def _address(who: str, found: Organization) -> str:
    address = who if is_user_id(who) else phones.read(who, region=found.country)
    if address is None:
        raise typer.BadParameter("give a phone number with + and country code, or a user id")
    return address
