"""`heliograph sender`: sender IDs, which organizations request and operators decide on."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import typer

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    OrgOrAll,
    in_capitals,
    on_database,
    only,
    operator,
    settings_of,
    shell,
    with_organization,
)
from heliograph.cli.terminal.printing import Json, group, say, show
from heliograph.senders import registrations
from heliograph.senders.registrations import RegistrationRow
from heliograph.sms.accepting import sender_ids, sender_questions
from heliograph.sms.accepting.sender_ids import STATUSES, SenderId
from heliograph.sms.dispatch import suppliers
from heliograph.sms.received import unassigned

app = group("Request, approve, reject, suspend and list sender IDs, set the default, and keep registrations.")

COLUMNS = ("organization", "id", "value", "status", "is_default", "rejection_reason", "created_at", "reviewed_at")
REGISTRATION_COLUMNS = (
    "organization",
    "sender",
    "country",
    "network",
    "supplier",
    "state",
    "note",
    "asked_at",
    "changed_at",
)
Which = Annotated[str, typer.Argument(metavar="SENDER", help="Value or id of the sender ID.")]


@app.command("request")
def request(
    value: Annotated[str, typer.Argument(help="3 to 11 letters, digits, spaces or . - _ &; or 3 to 15 digits.")],
    approve: Annotated[bool, typer.Option("--approve", help="Approve it immediately.")] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Request a sender ID on behalf of an organization.

    \b
    Examples:
      heliograph sender request ACME --org "Acme Lda"
      heliograph sender request ACME --approve
    """

    async def work(conn: Connection) -> tuple[SenderId, list[str]]:
        actor = await operator(conn, org)
        async with conn.transaction():
            asked = await sender_ids.request(conn, actor, value=value)
            if approve:
                asked = await sender_ids.review(conn, actor, id=asked.id, status="approved")
        return asked, await unassigned.also_of(conn, actor, asked)

    _show(*on_database(work, settings_of(data_dir)), json)


@app.command("approve")
def approve(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Approve a sender ID. An organization's first approved one becomes its default.

    \b
    Example:
      heliograph sender approve ACME --org "Acme Lda"
    """
    _review(which, org, "approved", None, json, data_dir)


@app.command("reject")
def reject(
    which: Which,
    reason: Annotated[str | None, typer.Option(help="Reason, shown to the organization.")] = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Reject a sender ID. The organization may request it again.

    \b
    Example:
      heliograph sender reject ACME --reason "No proof of ownership"
    """
    _review(which, org, "rejected", reason, json, data_dir)


@app.command("suspend")
def suspend(
    which: Which,
    reason: Annotated[str | None, typer.Option(help="Reason, shown to the organization.")] = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Suspend a sender ID: nothing is sent from it until it is approved again. If it was the default, there is
    no default afterwards.

    \b
    Example:
      heliograph sender suspend ACME --reason "Complaints"
    """
    _review(which, org, "suspended", reason, json, data_dir)


@app.command("ask")
def ask(
    which: Which,
    question: Annotated[
        str, typer.Argument(help="1 to 500 characters; its members are notified, and answer on their page.")
    ],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Ask an organization about a sender ID that is waiting for a decision, replacing an earlier question.

    \b
    Example:
      heliograph sender ask ACME "Which company is this?" --org "Acme Lda"
    """

    async def work(conn: Connection) -> SenderId:
        actor = await operator(conn, org)
        id = await _id(conn, actor, which)
        await sender_questions.ask(conn, actor, id=id, question=question)
        return await sender_ids.find(conn, actor, which=str(id))

    show(on_database(work, settings_of(data_dir)), json)


@app.command("default")
def default(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Make an approved sender ID the default, used when a send names none.

    \b
    Example:
      heliograph sender default ACME --org "Acme Lda"
    """

    async def work(conn: Connection) -> SenderId:
        actor = await operator(conn, org)
        return await sender_ids.set_default(conn, actor, id=await _id(conn, actor, which))

    show(on_database(work, settings_of(data_dir)), json)


@app.command("list")
def list_(
    status: Annotated[str | None, typer.Option(help=f"Only those with this status: {', '.join(STATUSES)}.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 1000,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List sender IDs of all organizations or of one, newest first.

    \b
    Examples:
      heliograph sender list --status pending
      heliograph sender list --org "Acme Lda"
    """
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(f"must be one of {', '.join(STATUSES)}", param_hint="--status")

    async def work(conn: Connection) -> list[tuple[str, SenderId]]:
        organization_id = await only(conn, org)
        found = await sender_ids.list_everywhere(conn, organization_id=organization_id, status=status, limit=limit)
        return [(name, sender) for _, name, sender in found]

    show(with_organization(on_database(work, settings_of(data_dir))), json, COLUMNS, limit=limit)


@app.command("register")
def register(
    which: Which,
    state: Annotated[
        Literal["asked", "pending", "registered", "refused"],
        typer.Argument(metavar="STATE", help="asked, pending, registered or refused."),
    ],
    country: Annotated[
        str, typer.Option(metavar="ISO", callback=in_capitals, help="Where it is registered, such as MZ.")
    ],
    network: Annotated[
        str, typer.Option(metavar="MCC-MNC", help="Only with this network, such as 643-04.", show_default=False)
    ] = "",
    supplier: Annotated[
        str | None, typer.Option(metavar="SUPPLIER", help="Only with this supplier, by name or id.")
    ] = None,
    note: Annotated[str, typer.Option(help="A note, shown to the organization.", show_default=False)] = "",
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Record the state of a sender ID's registration in a country.

    The organization sees it on its page Sender IDs, without the supplier. A refused sender is not used there; a sender
    that a supplier wants registered (`rule sender SUPPLIER register`) is used once it is.

    \b
    Examples:
      heliograph sender register ACME pending --country MZ --network 643-04
      heliograph sender register ACME registered --country MZ --supplier main
      heliograph sender register ACME refused --country KE --note "The name belongs to somebody else"
    """

    async def work(conn: Connection) -> list[RegistrationRow]:
        actor = await operator(conn, org)
        one = await sender_ids.find(conn, actor, which=which)
        await registrations.put(
            conn,
            organization_id=actor.organization_id,
            sender_id=one.id,
            sender=one.value,
            country=country,
            network=network,
            supplier_id=None if supplier is None else await suppliers.id_of(conn, supplier),
            state=state,
            note=note,
            by=shell(),
        )
        listed = await registrations.everywhere(conn, organization_id=actor.organization_id)
        return [two for two in listed if two.sender_id == one.id]

    show(on_database(work, settings_of(data_dir)), json, REGISTRATION_COLUMNS)


@app.command("registrations")
def registrations_(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 1000,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the registrations of sender IDs and their states, of all organizations or of one.

    \b
    Example:
      heliograph sender registrations --org "Acme Lda"
    """

    async def work(conn: Connection) -> list[RegistrationRow]:
        return await registrations.everywhere(conn, organization_id=await only(conn, org), limit=limit)

    show(on_database(work, settings_of(data_dir)), json, REGISTRATION_COLUMNS, limit=limit)


def _review(which: str, org: str | None, status: str, reason: str | None, json: bool, data_dir: DataDir) -> None:
    async def work(conn: Connection) -> tuple[SenderId, list[str]]:
        actor = await operator(conn, org)
        id = await _id(conn, actor, which)
        sender = await sender_ids.review(conn, actor, id=id, status=status, reason=reason)
        return sender, await unassigned.also_of(conn, actor, sender)

    _show(*on_database(work, settings_of(data_dir)), json)


def _show(sender: SenderId, others: list[str], json: bool) -> None:
    show(sender, json)
    if others:
        say(
            f"{sender.value} is an approved sender ID of {', '.join(others)} too: what handsets send to it, except STOP"
            " and the like, belongs to nobody. Suspend it for all but one."
        )


async def _id(conn: Connection, actor: Actor, which: str) -> UUID:
    return (await sender_ids.find(conn, actor, which=which)).id
