"""`heliograph org defaults`: the defaults of an organization's sends, and how long it keeps them."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
import typer

from heliograph.accounts import send_defaults
from heliograph.accounts.send_defaults import SendDefaults
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.asking import confirm
from heliograph.cli.terminal.console import DataDir, on_database, organization, settings_of, shell
from heliograph.cli.terminal.printing import Json, in_options, say, show
from heliograph.retention import shortening
from heliograph.retention.shortening import NotAgreed, Shortened

Which = Annotated[str, typer.Argument(metavar="ORG", help="Organization, by id or name.")]


def defaults(
    which: Which,
    guarantee: Annotated[
        str | None,
        typer.Option(
            metavar="WHICH",
            show_default=False,
            help="For attempts of unknown outcome: at_least_once sends again, at_most_once does not.",
        ),
    ] = None,
    validity: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            show_default=False,
            help="Validity of a message in seconds, 60 to 259200; 0 restores the default.",
        ),
    ] = None,
    text_days: Annotated[
        int | None,
        typer.Option(
            metavar="DAYS",
            show_default=False,
            help="Erase texts after this many days, if sooner than HELIOGRAPH_TEXT_RETENTION_DAYS; 0: with that.",
        ),
    ] = None,
    message_days: Annotated[
        int | None,
        typer.Option(
            metavar="DAYS",
            show_default=False,
            help=(
                "Remove messages with their numbers after this many days, at least 30, if sooner than"
                " HELIOGRAPH_METADATA_RETENTION_MONTHS; 0: with that."
            ),
        ),
    ] = None,
    quiet_hours: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            show_default=False,
            help="When marketing waits, by the recipient's time: country, off, or hours such as 20:00-08:00.",
        ),
    ] = None,
    approval_above: Annotated[
        int | None,
        typer.Option(
            min=-1,
            metavar="RECIPIENTS",
            show_default=False,
            help="Campaigns with more recipients need a second person's approval; 0: all do, -1: none does.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before a shorter time deletes texts or messages.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show, or change, the defaults of an organization's sends, its quiet hours, which campaigns need an approval, and
    how long it keeps texts and messages.

    A shorter time permanently deletes what is older, within hours: the command first says how much that is, and asks
    for confirmation.

    \b
    Examples:
      heliograph org defaults "Acme Lda"
      heliograph org defaults "Acme Lda" --guarantee at_most_once --validity 3600
      heliograph org defaults "Acme Lda" --text-days 7 --message-days 60 --yes
      heliograph org defaults "Acme Lda" --quiet-hours 20:00-08:00
      heliograph org defaults "Acme Lda" --approval-above 1000
    """

    settings = settings_of(data_dir)

    async def work(conn: Connection, is_agreed: bool) -> SendDefaults:
        async with conn.transaction():
            found = await organization(conn, which)
            changes = partial(
                send_defaults.change,
                conn,
                organization_id=found.id,
                guarantee=guarantee,
                validity_seconds=msgspec.UNSET if validity is None else validity or None,
                text_days=msgspec.UNSET if text_days is None else text_days or None,
                message_days=msgspec.UNSET if message_days is None else message_days or None,
                quiet_hours=quiet_hours,
                approval_above=(
                    msgspec.UNSET if approval_above is None else None if approval_above < 0 else approval_above
                ),
                by=shell(),
            )
            after, _ = await shortening.change(
                conn, settings, organization_id=found.id, apply=changes, is_agreed=lambda _: is_agreed
            )
            return after

    with in_options(validity_seconds="--validity"):
        try:
            after = on_database(partial(work, is_agreed=yes), settings)
        except NotAgreed as asks:
            _confirm(asks.found)
            after = on_database(partial(work, is_agreed=True), settings)
    show(after, json)


def _confirm(found: Shortened) -> None:
    """Say what a shorter time would delete, and exit unless that is confirmed."""
    for what, deleted in (("Messages, with their numbers,", found.messages), ("Texts of messages", found.texts)):
        if deleted is not None:
            say(
                f"{what} from before {deleted.before:%Y-%m-%d %H:%M} UTC: of about {deleted.sent:,} that were sent"
                " in live mode, and of all test messages and received ones."
            )
    confirm("Delete them permanently?")
