"""`heliograph org rate-limits`: how many requests each key of an organization may make in a minute."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from heliograph.accounts import rate_limits
from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, on_database, organization, settings_of, shell
from heliograph.cli.terminal.printing import Json, in_options, show

Which = Annotated[str, typer.Argument(metavar="ORG", help="Organization, by id or name.")]
COLUMNS = ("bucket", "limit", "own")


class Shown(msgspec.Struct, frozen=True):
    """A limit in force."""

    bucket: str
    #: Requests per minute and key.
    limit: int
    #: The organization's own, not the installation's.
    own: bool


def limits(
    which: Which,
    sms_send: Annotated[
        int | None,
        typer.Option(
            metavar="REQUESTS",
            show_default=False,
            help="SMS sends per minute and key; 0 restores the installation's, HELIOGRAPH_RATE_SMS_SEND.",
        ),
    ] = None,
    campaigns: Annotated[
        int | None,
        typer.Option(
            metavar="REQUESTS", show_default=False, help="Changes to campaigns, likewise (HELIOGRAPH_RATE_CAMPAIGNS)."
        ),
    ] = None,
    mutations: Annotated[
        int | None,
        typer.Option(
            metavar="REQUESTS",
            show_default=False,
            help="Other changes, WhatsApp messages included, likewise (HELIOGRAPH_RATE_MUTATIONS).",
        ),
    ] = None,
    reads: Annotated[
        int | None,
        typer.Option(metavar="REQUESTS", show_default=False, help="Reads, likewise (HELIOGRAPH_RATE_READS)."),
    ] = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show, or change, how many requests each key of an organization may make in a minute. A change takes effect within
    a second.

    \b
    Examples:
      heliograph org rate-limits "Acme Lda"
      heliograph org rate-limits "Acme Lda" --sms-send 30000 --reads 500
      heliograph org rate-limits "Acme Lda" --sms-send 0
    """
    settings = settings_of(data_dir)
    given = {"sms_send": sms_send, "campaigns": campaigns, "mutations": mutations, "reads": reads}
    changed = {bucket: limit or None for bucket, limit in given.items() if limit is not None}

    async def work(conn: Connection) -> list[Shown]:
        found = await organization(conn, which)
        own = await rate_limits.change(conn, organization_id=found.id, limits=changed, by=shell())
        return [
            Shown(bucket, limit, getattr(own, bucket) is not None)
            for bucket, limit in rate_limits.in_force(settings, own).items()
        ]

    with in_options(**{bucket: f"--{bucket.replace('_', '-')}" for bucket in given}):
        shown = on_database(work, settings)
    show(shown, json, COLUMNS)
