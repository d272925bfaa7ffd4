"""`heliograph hold`: outgoing work that waits until an operator releases it."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from heliograph.audit import reasons
from heliograph.base.database.pool import Connection
from heliograph.base.sentences import with_noun
from heliograph.cli.terminal.console import DataDir, OrgOrAll, Problem, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, group, say, show
from heliograph.cli.traffic.queue import Age, Kind, SupplierName, selection
from heliograph.overview.installation import queued_work
from heliograph.overview.installation.queued_work import Held
from heliograph.queue import holds

app = group("List holds of outgoing work, add and release them.")

COLUMNS = ("id", "kind", "supplier", "organization", "before", "reason", "made_by", "created_at", "restored")


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """Show what is held, and why.

    \b
    Example:
      heliograph hold list
    """

    async def work(conn: Connection) -> list[Held]:
        return await queued_work.listed(conn)

    show(on_database(work, settings_of(data_dir)), json, COLUMNS)


@app.command("add")
def add(
    reason: Annotated[str, typer.Option(help="Reason, shown by `hold list` and `doctor`.")] = "",
    kind: Kind = None,
    supplier: SupplierName = None,
    older_than: Age = None,
    org: OrgOrAll = None,
    restored: Annotated[
        bool,
        typer.Option("--restored", help="The database was restored: nothing held expires, as it may have been sent."),
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Hold outgoing work until it is released. Holds survive restarts, and nothing is lost.

    Without options everything is held: SMS, WhatsApp messages and webhooks. New work is held as well, unless
    --older-than restricts the hold to existing work. Messages are still accepted. Those whose validity ends while they
    are held expire and are refunded, except with --restored.

    \b
    Examples:
      heliograph hold add --restored --reason "restored from last night's dump"
      heliograph hold add --kind sms --org Acme
      heliograph hold add --older-than 2h
    """
    if len(reason) > reasons.LONGEST:
        raise typer.BadParameter(f"has at most {reasons.LONGEST} characters", param_hint="--reason")

    async def work(conn: Connection) -> tuple[list[Held], int]:
        which = await selection(conn, kind, supplier, org, older_than)
        made, leased = await holds.hold(conn, which, reason=reason, restored=restored, by=shell())
        return await queued_work.named(conn, made), leased

    held, leased = on_database(work, settings_of(data_dir))
    show(held, json, COLUMNS)
    if leased:
        say(f"{with_noun(leased, 'row is', 'rows are')} already claimed by workers and will still be sent.")


@app.command("release")
def release(
    hold_id: Annotated[UUID | None, typer.Argument(metavar="[HOLD_ID]", help="Id of a hold, from `hold list`.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All holds.")] = False,
    kind: Kind = None,
    supplier: SupplierName = None,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Release held work. Give the id of a hold, or select holds with the options of `hold add` or --all.

    \b
    Examples:
      heliograph hold release --all
      heliograph hold release --kind webhook
    """
    if not everything and hold_id is kind is supplier is org is None:
        raise typer.BadParameter("select the holds: HOLD_ID, --kind, --supplier, --org or --all")

    async def work(conn: Connection) -> list[Held]:
        which = await selection(conn, kind, supplier, org, None)
        return await queued_work.named(conn, await holds.release(conn, which, id=hold_id, by=shell()))

    released = on_database(work, settings_of(data_dir))
    if hold_id is not None and not released:
        raise Problem(f"there is no hold {hold_id}")
    show(released, json, COLUMNS)
