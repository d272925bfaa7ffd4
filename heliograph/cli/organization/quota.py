"""`heliograph quota`: how many messages an organization may still send."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from heliograph.accounts import quota, spending
from heliograph.accounts.quota import Quota
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, Org, on_database, organization, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, group, in_options, show
from heliograph.sms import refunds

app = group("Grant, adjust and show the message quota of an organization, and set which failures are refunded.")

#: Digits of a number.
LONGEST = 100


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


@app.command("alert")
def alert(
    messages: Annotated[
        str,
        typer.Argument(
            metavar="MESSAGES|off", help="Number of live messages in a day (UTC) above which the bell rings."
        ),
    ],
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Notify an organization when a day has more messages than this.

    \b
    Examples:
      heliograph quota alert 5000 --org "Acme Lda"
      heliograph quota alert off --org "Acme Lda"
    """
    above = None if messages == "off" else _count(messages, "must be a number of messages, or off", "MESSAGES")

    async def work(conn: Connection) -> dict[str, int | None]:
        found = await organization(conn, org)
        await quota.set_alert(conn, found.id, above=above, by=shell())
        return {"alert_above": above}

    with in_options(above="MESSAGES"):
        changed = on_database(work, settings_of(data_dir))
    show(changed, json)


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


@app.command("refunds")
def refunds_(
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="CLASS=yes|no", help="A class of failures, and whether to refund it.")
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show, or change, which failures are refunded to an organization.

    unsent: no supplier had it, because none was asked or each deferred it; always refunded. refused: every supplier
    that was asked refused it, or one because the recipient opted out there. undelivered, failed, expired, rejected:
    according to a receipt. unknown: no receipt came, or nobody knows whether a supplier has it. This applies to all
    organizations, and to messages that fail from now on; a message delivered after its refund stays refunded. A price
    that was due already is taken back as well.

    \b
    Examples:
      heliograph quota refunds
      heliograph quota refunds refused=yes unknown=no
    """
    changes: dict[str, bool] = {}
    for pair in pairs or ():
        name, _, value = pair.partition("=")
        if value not in ("yes", "no"):
            raise typer.BadParameter(f"{pair!r} is not CLASS=yes or CLASS=no")
        changes[name] = value == "yes"

    async def work(conn: Connection) -> dict[str, bool]:
        return await refunds.change_policy(conn, changes, by=shell()) if changes else await refunds.policy(conn)

    found = on_database(work, settings_of(data_dir))
    show([{"class": name, "refunded": one} for name, one in found.items()], json, ("class", "refunded"))


@app.command("limit")
def limit(
    segments: Annotated[
        str | None, typer.Argument(show_default=False, help="Segments a day (UTC), or `none` to lift the limit.")
    ] = None,
    key: Annotated[
        UUID | None,
        typer.Option(metavar="KEY_ID", show_default=False, help="Of this API key, not of the whole organization."),
    ] = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Limit the SMS segments that an organization, or one of its API keys, may send in a day; or show the limits.

    Messages that would exceed a limit are refused with `spend_limit_reached`; a campaign waits until the next day.

    \b
    Examples:
      heliograph quota limit --org "Acme Lda"
      heliograph quota limit 20000 --org "Acme Lda"
      heliograph quota limit none --org "Acme Lda"
    """
    said = "give a number of segments, or `none`"
    most = None if segments in (None, "none") else _count(segments, said, "SEGMENTS")

    async def work(conn: Connection) -> list[spending.Limit]:
        found = await organization(conn, org)
        if segments is None:
            return await spending.limits(conn, found.id)
        return await spending.limit(conn, found.id, segments=most, key_id=key, by=shell())

    show(on_database(work, settings_of(data_dir)), json, ("key_id", "segments", "used"))


def _count(text: str, said: str, option: str) -> int:
    """A number that the rule checks. Raises typer.BadParameter. Python reads no number of more than 4,300 digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST):
        raise typer.BadParameter(said, param_hint=option)
    return int(text)


def _show(found: Quota, json: bool) -> None:
    show(as_plain(found) | {"remaining": found.remaining}, json)
