"""`heliograph whatsapp campaign`: sending one template to many contacts."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import typer

from heliograph.accounts.organizations import Organization
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.campaigns import filling, plan, record
from heliograph.campaigns.channels import whatsapp as whatsapp_channel
from heliograph.campaigns.channels.whatsapp import WhatsAppCampaignSpec
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
from heliograph.whatsapp.mirror import onboarding

app = group("Create, list, show, watch, pause, resume and cancel WhatsApp campaigns.")

COLUMNS = (
    "organization",
    "id",
    "name",
    "status",
    "status_reason",
    "template_name",
    "recipients",
    "pending",
    "done",
    "scheduled_at",
    "started_at",
    "completed_at",
)
CHANNEL = whatsapp_channel.NAME
Which = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign's id.")]


@app.command("create")
def create(
    number: Annotated[str, typer.Option(help="Number to send from, by id or digits.")],
    template: Annotated[
        str, typer.Option(metavar="NAME", help="Name of an approved template in the category utility.")
    ],
    language: Annotated[
        str, typer.Option(metavar="CODE", help="Language of the template, as Meta writes it: fr, en_US.")
    ],
    name: Annotated[str, typer.Option(help="Name of the campaign.")],
    tag: Annotated[
        list[str] | None, typer.Option(show_default=False, help="Send to contacts with this tag. Repeatable.")
    ] = None,
    match: Annotated[Literal["any", "all"], typer.Option(help="Whether contacts need any or all of the tags.")] = "any",
    exclude_tag: Annotated[list[str] | None, typer.Option(help="Exclude contacts with this tag. Repeatable.")] = None,
    not_written_days: NotWrittenDays = None,
    imported: AudienceImport = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN|text:TEXT",
            help=(
                "Source of the next parameter: the contact's name, first_name, last_name or phone, or text: "
                "followed by a fixed text. Give one for each parameter of the template, in order."
            ),
        ),
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=TEXT", help="Value for contacts that have none. Without it, they are skipped."),
    ] = None,
    at: StartAt = None,
    per_minute: Annotated[
        int | None,
        typer.Option(min=1, max=plan.MAX_PACE, help="Maximum messages per minute. Defaults to the number's own limit."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Create a campaign that sends a template to contacts with tags, or to those of an import.

    \b
    Examples:
      heliograph whatsapp campaign create --name "Delivery day" --tag porto --number +351210001234 \\
        --template order_shipped --language en --param first_name --default first_name=customer --param text:Thursday
    """
    if (tag is None) == (imported is None):
        raise typer.BadParameter("give one of --tag and --import", param_hint="--tag")
    scheduled_at = None if at is None else moment(at, "--at")
    parameters = filling.parse(param or [], dict(_default(one) for one in default or []))

    async def work(conn: Connection, found: Organization) -> Campaign:
        actor = acting_for(found)
        spec = WhatsAppCampaignSpec(
            name=name,
            number_id=await whatsapp_channel.find_number(conn, actor, number),
            template=template,
            language=language,
            parameters=parameters,
            scheduled_at=scheduled_at,
            audience_tags=tag,
            audience_import=imported,
            audience_tag_match_mode=match,
            excluded_tags=exclude_tag,
            not_written_days=not_written_days,
            messages_per_minute=per_minute,
        )
        return await whatsapp_channel.create(conn, actor, spec=spec, request_id=str(uuid7()))

    created(
        settings_of(data_dir),
        work,
        org=org,
        channel=CHANNEL,
        json=json,
        watch=watch,
        columns=COLUMNS[1:],
        number="--number",
        template="--template",
        language="--language",
    )


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number to show.")] = 50,
    org: OrgOrAll = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List WhatsApp campaigns of all organizations or of one, newest first.

    \b
    Examples:
      heliograph whatsapp campaign list
      heliograph whatsapp campaign list --org "Acme Lda"
    """
    show(listed(settings_of(data_dir), org, limit=limit, json=json, channel=CHANNEL), json, COLUMNS, limit=limit)


@app.command("show")
def show_(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show a campaign with all its counts and the sources of its parameters.

    \b
    Example:
      heliograph whatsapp campaign show 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> dict[str, Any]:
        actor = await operator(conn, org)
        found = await record.get(conn, actor, id=id_of(which), channel=CHANNEL)
        number = await onboarding.find_number(conn, actor.organization_id, str(found.content["number_id"]))
        held = number["account_held_reason"] or number["held_reason"]
        return {**record.shown(found), "held_reason": held, "parameters": filling.written(found.content["parameters"])}

    show(on_database(work, settings_of(data_dir)), json)


@app.command("watch")
def watch(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Follow a campaign until it has ended; with -o json or tsv, print its record each time it changes.

    \b
    Example:
      heliograph whatsapp campaign watch 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """
    asyncio.run(follow(settings_of(data_dir), org, id_of(which), channel=CHANNEL, json=json, columns=COLUMNS[1:]))


@app.command("pause")
def pause(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Pause a campaign until it is resumed. Messages not yet handed over wait; nothing is refunded.

    \b
    Example:
      heliograph whatsapp campaign pause 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.pause(conn, await operator(conn, org), id=id_of(which), channel=CHANNEL)

    show(record.shown(on_database(work, settings_of(data_dir))), json)


@app.command("resume")
def resume(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Resume a paused campaign where it stopped. Nobody receives it twice.

    \b
    Example:
      heliograph whatsapp campaign resume 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.resume(conn, await operator(conn, org), id=id_of(which), channel=CHANNEL)

    show(record.shown(on_database(work, settings_of(data_dir))), json)


@app.command("cancel")
def cancel(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a campaign. A worker withdraws messages not yet handed to Meta and releases what was reserved for them.

    \b
    Example:
      heliograph whatsapp campaign cancel 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.cancel(conn, await operator(conn, org), id=id_of(which), channel=CHANNEL)

    show(record.shown(on_database(work, settings_of(data_dir))), json)


def _default(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter("must be COLUMN=TEXT: first_name=customer", param_hint="--default")
    return column, value
