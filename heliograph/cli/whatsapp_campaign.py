"""`heliograph whatsapp campaign`: one template for many contacts, and how it goes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from heliograph.base.db import Connection
from heliograph.base.ids import uuid7
from heliograph.campaigns import filling, plan, whatsapp_channel
from heliograph.campaigns.plan import Campaign
from heliograph.campaigns.whatsapp_channel import Wish
from heliograph.cli.console import DataDir, Json, Org, OrgOrAll, group, moment, on_database, operator, settings_of, show
from heliograph.cli.progress import follow, id_of, listed
from heliograph.whatsapp import onboarding

app = group("WhatsApp campaigns: create, list, show, watch and cancel them.")

COLUMNS = (
    "organization",
    "id",
    "name",
    "status",
    "status_reason",
    "template_name",
    "recipients",
    "staged",
    "done",
    "completed_at",
)
CHANNEL = whatsapp_channel.NAME
Which = Annotated[str, typer.Argument(metavar="CAMPAIGN", help="The campaign's id.")]


@app.command("create")
def create(
    number: Annotated[str, typer.Option(help="The number it is sent from: its id or its digits.")],
    template: Annotated[str, typer.Option(metavar="NAME", help="An approved template of the category utility.")],
    language: Annotated[str, typer.Option(metavar="CODE", help="Its language, as Meta writes it: fr, en_US.")],
    name: Annotated[str, typer.Option(help="What the campaign is called.")],
    tag: Annotated[list[str], typer.Option(help="Contacts with this tag get it. May be given several times.")],
    match: Annotated[str, typer.Option(metavar="any|all", help="Contacts with any of the tags, or with all.")] = "any",
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN|text:TEXT",
            help="What fills the next parameter: name, first_name, last_name or phone of the contact, or text: and the"
            " same text for everybody. One for each parameter of the template, in its order.",
        ),
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=TEXT", help="For contacts without a value in that column. Without it, they are skipped."
        ),
    ] = None,
    at: Annotated[str | None, typer.Option(metavar="TIME", help="When to start. Left out: at once.")] = None,
    per_minute: Annotated[
        int | None,
        typer.Option(min=1, max=plan.MAX_PACE, help="No faster than this. Left out: as fast as the number goes."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it has ended.")] = False,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Make a campaign of a template and contacts with tags. Workers send it.

    \b
    Examples:
      heliograph whatsapp campaign create --name "Delivery day" --tag porto --number +351210001234 \\
        --template order_shipped --language en --param first_name --default first_name=customer --param text:Thursday
    """
    if match not in ("any", "all"):
        raise typer.BadParameter("must be any or all", param_hint="--match")
    scheduled_at = None if at is None else moment(at, "--at")
    parameters = filling.parse(param or [], dict(_default(one) for one in default or []))
    settings = settings_of(data_dir)

    async def work(conn: Connection) -> Campaign:
        actor = await operator(conn, org)
        wish = Wish(
            name=name,
            number_id=await whatsapp_channel.find_number(conn, actor, number),
            template=template,
            language=language,
            parameters=parameters,
            scheduled_at=scheduled_at,
            audience_tags=tag,
            audience_tag_match_mode=match,
            messages_per_minute=per_minute,
        )
        async with conn.transaction():
            return await whatsapp_channel.create(conn, actor, wish=wish, request_id=str(uuid7()))

    made = on_database(work, settings)
    show(plan.shown(made), json)
    if watch:
        asyncio.run(follow(settings, org, made.id, channel=CHANNEL, json=json))


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
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
    show(listed(settings_of(data_dir), org, limit=limit, json=json, channel=CHANNEL), json, COLUMNS)


@app.command("show")
def show_(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Show one campaign with all its counts, and what fills its template.

    \b
    Example:
      heliograph whatsapp campaign show 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> dict[str, Any]:
        actor = await operator(conn, org)
        found = await plan.get(conn, actor, id=id_of(which), channel=CHANNEL)
        number = await onboarding.find_number(conn, actor.organization_id, str(found.content["number_id"]))
        held = number["account_held_reason"] or number["held_reason"]
        return {**plan.shown(found), "held_reason": held, "parameters": filling.written(found.content["parameters"])}

    show(on_database(work, settings_of(data_dir)), json)


@app.command("watch")
def watch(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Follow a campaign until it has ended; with --json, print its record each time it changes.

    \b
    Example:
      heliograph whatsapp campaign watch 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """
    asyncio.run(follow(settings_of(data_dir), org, id_of(which), channel=CHANNEL, json=json))


@app.command("cancel")
def cancel(which: Which, org: Org = None, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a campaign. What Meta does not have yet is withdrawn by a worker, and its reservation released.

    \b
    Example:
      heliograph whatsapp campaign cancel 019c8f61-0a3e-7c55-8d21-4b6f0e9a7d12
    """

    async def work(conn: Connection) -> Campaign:
        async with conn.transaction():
            return await plan.cancel(conn, await operator(conn, org), id=id_of(which), channel=CHANNEL)

    show(plan.shown(on_database(work, settings_of(data_dir))), json)


def _default(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter("must be a column and a text: first_name=customer", param_hint="--default")
    return column, value
