"""`heliograph quota`: how many messages an organization may still send."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.accounts import quota
from heliograph.accounts.quota import Quota
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import (
    DataDir,
    Json,
    Org,
    as_plain,
    group,
    on_database,
    organization,
    settings_of,
    shell,
    show,
)

app = group("Grant, adjust and show the message quota of an organization.")


@app.command("grant", context_settings={"ignore_unknown_options": True})
def grant(
    amount: Annotated[int, typer.Argument(help="Messages to add; a negative number removes unused quota.")],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the ledger.")] = "operator",
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Add messages to an organization's quota.

    \b
    Examples:
      heliograph quota grant 10000 --org "Acme Lda" --reason "invoice 7"
      heliograph quota grant -500 --org "Acme Lda" --reason "entered twice"
    """

    async def work(conn: Connection) -> Quota:
        found = await organization(conn, org)
        return await quota.grant(conn, found.id, amount=amount, reason=reason, by=shell())

    _show(on_database(work, settings_of(data_dir)), json)


@app.command("adjust", context_settings={"ignore_unknown_options": True})
def adjust(
    amount: Annotated[
        int, typer.Argument(help="Messages to add, or to subtract if negative; not below what is already used.")
    ],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the ledger, which the organization can read.")],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Adjust an organization's quota up or down, recorded in the ledger as an `adjustment`.

    \b
    Examples:
      heliograph quota adjust 120 --org "Acme Lda" --reason "undelivered on 3 March"
      heliograph quota adjust -500 --org "Acme Lda" --reason "entered twice"
    """

    async def work(conn: Connection) -> Quota:
        found = await organization(conn, org)
        return await quota.adjust(conn, found.id, amount=amount, reason=reason, by=shell())

    _show(on_database(work, settings_of(data_dir)), json)


@app.command("show")
def show_(org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show an organization's quota.

    \b
    Example:
      heliograph quota show --org "Acme Lda"
    """

    async def work(conn: Connection) -> Quota:
        return await quota.get(conn, (await organization(conn, org)).id)

    _show(on_database(work, settings_of(data_dir)), json)


def _show(found: Quota, json: bool) -> None:
    show(as_plain(found) | {"remaining": found.remaining}, json)
