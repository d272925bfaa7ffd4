"""`heliograph campaign`: create, follow, pause and cancel an organization's campaigns by SMS."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
import typer

from heliograph.accounts.organizations import Organization
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.campaigns import audience, plan, record
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.campaigns.record import Campaign
from heliograph.cli.audience.creating import created
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    OrgOrAll,
    acting_for,
    moment,
    on_database,
    operator,
    settings_of,
)
from heliograph.cli.terminal.printing import Json, group, show
from heliograph.cli.terminal.progress import (
    AudienceImport,
    NotWrittenDays,
    StartAt,
    follow,
    id_of,
    listed,
)

app = group("Create, list, show, watch, pause, resume and cancel campaigns.")

COLUMNS = (
    "organization",
    "id",
    "name",
    "status",
    "status_reason",
    "recipients",
    "pending",
    "done",
    "scheduled_at",
    "started_at",
    "completed_at",
)
Which = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign's id.")]


@app.command("create")
def create(
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="The message; {{name}}, {{first_name}}, {{last_name}} and {{phone}} are filled in."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of the campaign.")],
    tag: Annotated[
        list[str] | None, typer.Option(show_default=False, help="Send to contacts with this tag. Repeatable.")
    ] = None,
    match: Annotated[Literal["any", "all"], typer.Option(help="Whether contacts need any or all of the tags.")] = "any",
    exclude_tag: Annotated[
        list[str] | None, typer.Option(show_default=False, help="Exclude contacts with this tag. Repeatable.")
    ] = None,
    not_written_days: NotWrittenDays = None,
    imported: AudienceImport = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER",
            show_default=False,
            help=(
                "Send to this number, instead of tags: international (+258841234567) or in the national format of the "
                "organization's country. Repeatable."
            ),
        ),
    ] = None,
    sender: Annotated[
        str | None, typer.Option(show_default="the default sender", help="Sender ID that it is sent from.")
    ] = None,
    traffic_class: Annotated[
        Literal["otp", "transactional", "marketing"], typer.Option("--class", help="Traffic class.")
    ] = "marketing",
    at: StartAt = None,
    per_minute: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=plan.MAX_PACE,
            show_default="as fast as suppliers accept them",
            help="Maximum messages per minute.",
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Create a campaign that sends a text to contacts with tags, or to numbers. Those who opted out are skipped.

    \b
    Examples:
      heliograph campaign create "Hello {{first_name|there}}, we open at 9." --name Opening --tag porto
      heliograph campaign create "We open at 9." --name Opening --to +258841234567 --watch
    """
    spec = SmsCampaignSpec(
        name=name,
        message_template=text,
        sender_name=sender,
        traffic_class=traffic_class,
        audience_tags=tag,
        audience_import=imported,
        audience_tag_match_mode=match,
        excluded_tags=exclude_tag,
        not_written_days=not_written_days,
        scheduled_at=None if at is None else moment(at, "--at"),
        messages_per_minute=per_minute,
    )

    async def work(conn: Connection, found: Organization) -> Campaign:
        whole = msgspec.structs.replace(spec, recipients=to and await _numbers(to, found.country))
        return await sms_channel.create(conn, acting_for(found), spec=whole, request_id=str(uuid7()))

    created(
        settings_of(data_dir),
        work,
        org=org,
        channel="sms",
        json=json,
        watch=watch,
        columns=COLUMNS[1:],
        message_template="TEXT",
        sender_name="--sender",
        recipients="--to",
    )


async def _numbers(typed: list[str], home: str | None) -> list[str]:
    """The recipients as written in the organization's country: 84 123 4567 begins like a Vietnamese number. Raises
    Invalid for those that are not numbers: the API skips them, but here somebody is present who can correct them."""
    read = await audience.at_home(typed, home=home)
    wrong = [text for text, number in read.items() if number is None]
    if wrong:
        where = f"with + and country code, or as written in {home}" if home else "with + and country code"
        raise Invalid(("recipients", "pattern", f"`recipients` must be phone numbers {where}, not {', '.join(wrong)}"))
    return [number for number in read.values() if number is not None]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to show.")] = 50,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List campaigns of all organizations or of one, newest first.

    \b
    Examples:
      heliograph campaign list
      heliograph campaign list --org "Acme Lda"
    """
    show(listed(settings_of(data_dir), org, limit=limit, json=json), json, COLUMNS, limit=limit)


@app.command("show")
def show_(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show a campaign with all its counts.

    \b
    Example:
      heliograph campaign show 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """
    show(record.shown(on_database(lambda conn: _get(conn, org, which), settings_of(data_dir))), json)


@app.command("pause")
def pause(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Pause a campaign until it is resumed. Messages not yet handed over wait; nothing is refunded.

    \b
    Example:
      heliograph campaign pause 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.pause(conn, await operator(conn, org), id=id_of(which))

    show(record.shown(on_database(work, settings_of(data_dir))), json)


@app.command("resume")
def resume(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Resume a paused campaign where it stopped. Nobody receives it twice.

    \b
    Example:
      heliograph campaign resume 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.resume(conn, await operator(conn, org), id=id_of(which))

    show(record.shown(on_database(work, settings_of(data_dir))), json)


@app.command("cancel")
def cancel(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a campaign. A worker withdraws messages not yet handed to a supplier and refunds their quota.

    \b
    Example:
      heliograph campaign cancel 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.cancel(conn, await operator(conn, org), id=id_of(which))

    show(record.shown(on_database(work, settings_of(data_dir))), json)


@app.command("watch")
def watch(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Follow a campaign until it has ended; with -o json or tsv, print its record each time it changes.

    \b
    Example:
      heliograph campaign watch 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """
    asyncio.run(follow(settings_of(data_dir), org, id_of(which), channel="sms", json=json, columns=COLUMNS[1:]))


async def _get(conn: Connection, org: str | None, which: str) -> Campaign:
    return await record.get(conn, await operator(conn, org), id=id_of(which))
