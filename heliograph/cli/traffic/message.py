"""`heliograph message`: an organization's messages, and the history of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import typer

from heliograph.accounts import organizations
from heliograph.base import phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.money import decimal, micros
from heliograph.cli.terminal.console import (
    DataDir,
    Org,
    acting_for,
    in_capitals,
    moment,
    on_database,
    organization,
    settings_of,
    shell,
)
from heliograph.cli.terminal.printing import Json, as_plain, cell, form, group, record, show, table
from heliograph.overview import intervening
from heliograph.overview import messages as overview
from heliograph.sending.timeline import Timeline
from heliograph.sms import messages, timeline
from heliograph.sms.intervening import passing_over
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id
from heliograph.whatsapp import messages as whatsapp_messages
from heliograph.whatsapp import timeline as whatsapp_timeline
from heliograph.why.words import Why, entries

app = group("List an organization's messages, show the history of one, and decide about one that is stuck.")

COLUMNS = ("id", "status", "recipient", "sender", "segments", "accepted_at", "failure_code", "client_reference")
ENTRIES = ("at", "what", "detail")
WHATSAPP_COLUMNS = (
    "id",
    "direction",
    "status",
    "recipient",
    "template_name",
    "accepted_at",
    "failure_code",
    "client_reference",
)


@app.command("list")
def list_(
    channel: Annotated[Literal["sms", "whatsapp"], typer.Option(help="Channel.")] = "sms",
    status: Annotated[str | None, typer.Option(help="Only messages currently in this status.")] = None,
    mode: Annotated[Literal["live", "test"], typer.Option(help="Only messages sent with keys of this mode.")] = "live",
    recipient: Annotated[
        str | None, typer.Option(metavar="NUMBER", help="Only messages to this number or user id.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Only messages with exactly this client reference.")] = None,
    campaign: Annotated[
        UUID | None, typer.Option(metavar="CAMPAIGN_ID", help="Only messages of this campaign.")
    ] = None,
    key: Annotated[UUID | None, typer.Option(metavar="KEY_ID", help="Only messages sent with this API key.")] = None,
    sender: Annotated[str | None, typer.Option(help="Only SMS from this sender.")] = None,
    country: Annotated[
        str | None, typer.Option(callback=in_capitals, help="Only messages to this country, such as MZ.")
    ] = None,
    failure: Annotated[
        str | None, typer.Option(metavar="CODE", help="Only messages that failed for this reason.")
    ] = None,
    category: Annotated[str | None, typer.Option(help="Only WhatsApp messages billed in this category.")] = None,
    template: Annotated[str | None, typer.Option(help="Only WhatsApp messages sent from this template.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Only messages accepted at or after this time.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only messages accepted before this time.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List an organization's messages, newest first, with the same filters as the API.

    For operators: shows full phone numbers. Times are written as 2027-01-31T00:00:00Z.

    \b
    Examples:
      heliograph message list --org Acme --status failed --since 2027-01-31T00:00:00Z
      heliograph message list --recipient +258841234567
      heliograph message list --channel whatsapp --template appointment_reminder
    """
    known = messages.SHOWN_STATUSES if channel == "sms" else whatsapp_messages.SHOWN_STATUSES
    if status is not None and status not in known:
        raise typer.BadParameter(f"must be one of {', '.join(known)}", param_hint="--status")
    for option, value, of in (
        ("--sender", sender, "sms"),
        ("--category", category, "whatsapp"),
        ("--template", template, "whatsapp"),
    ):
        if value is not None and of != channel:
            raise typer.BadParameter(f"is for --channel {of} only", param_hint=option)
    if country is not None and not phones.is_region(country):
        raise typer.BadParameter("must be the ISO code of a country, such as MZ", param_hint="--country")
    failures = entries()["sms_failure" if channel == "sms" else "whatsapp_failure"]
    if failure is not None and failure not in failures:
        raise typer.BadParameter(f"must be one of {', '.join(failures)}", param_hint="--failure")
    begin, end = moment(since, "--since") if since else None, moment(until, "--until") if until else None

    async def work(conn: Connection) -> list[Any]:
        page: Callable[..., Awaitable[Any]]
        found = await organization(conn, org)
        actor = msgspec.structs.replace(acting_for(found), mode=mode)
        number = None if recipient is None else _recipient(recipient, home=found.country)
        if channel == "sms":
            sms_filters = messages.Filters(
                status=status,
                mode=mode,
                recipient=number,
                client_reference=reference,
                campaign_id=campaign,
                key_id=key,
                sender=sender,
                country=country,
                failure_code=failure,
                date_from=begin,
                date_to=end,
            )
            page = partial(messages.list_page, conn, actor, filters=sms_filters)
        else:
            filters = whatsapp_messages.Filters(
                status=status,
                mode=mode,
                recipient=number,
                billing_category=category,
                template_name=template,
                client_reference=reference,
                campaign_id=campaign,
                key_id=key,
                country=country,
                failure_code=failure,
                date_from=begin,
                date_to=end,
            )
            page = partial(whatsapp_messages.list_page, conn, actor, filters=filters)
        return await _all(page, limit)

    show(on_database(work, settings_of(data_dir)), json, COLUMNS if channel == "sms" else WHATSAPP_COLUMNS, limit=limit)


def _recipient(typed: str, *, home: str | None) -> str:
    """A number, first as written in the organization's country, or a user id. One with `+` is searched for as it is."""
    if is_user_id(typed):
        return typed
    number = (None if typed.startswith("+") else phones.read(typed, region=home)) or phones.parse(typed)
    if number is None:
        raise typer.BadParameter("must be a phone number or a user id", param_hint="--recipient")
    return number


async def _all(page: Callable[..., Awaitable[Any]], limit: int) -> list[Any]:
    """Up to `limit` messages: bounded scans are repeated until enough have been found."""
    found: list[Any] = []
    after: UUID | None = None
    while len(found) < limit:
        looked = await page(after=after, limit=limit - len(found))
        found += looked.messages
        if looked.seen is None:
            break
        after = looked.seen
    return found[:limit]


@app.command("show")
def show_(
    id: Annotated[UUID, typer.Argument(metavar="MESSAGE_ID", help="Id of the message, as returned by the send.")],
    text: Annotated[bool, typer.Option("--text", help="Also show the text.")] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Show everything that happened to a message in chronological order: attempts, receipts, events and webhook
    attempts.

    For operators: shows the full phone number and the suppliers' responses; for an SMS over SMPP also what was
    submitted, reconstructed from what is stored; for a WhatsApp message also Meta's id and the cost. --text adds the
    octets of submits and receipts.

    \b
    Examples:
      heliograph message show 0199c0de-0000-7000-8000-000000000000
      heliograph message show 0199c0de-0000-7000-8000-000000000000 --text --json
    """

    async def work(conn: Connection) -> tuple[Timeline, bool]:
        try:
            found = await timeline.of_message(conn, id=id, with_text=text, by=shell())
        except NotFound:
            return await whatsapp_timeline.of_message(conn, id=id, with_text=text, by=shell()), True
        return found, await _is_charged(conn, found)

    looked, is_charged = on_database(work, settings_of(data_dir))
    found = as_plain(looked) | {"why": _explanation(looked.why, looked.evidence)}
    del found["evidence"]
    found["message"] = _with_margin(found["message"], is_charged=is_charged)
    if not text:
        del found["text"]
    if json:
        show(found, json)
        return
    message = found["message"] | ({"text": found["text"]} if text else {})
    if form(json) == "tsv":
        show(message, json)
        show(found["why"], json)
        show(found["entries"], json, ENTRIES)
        for one in found["queued"]:
            show({"queued": one}, json)
        return
    print(record(message))
    print()
    print(record(found["why"]))
    print()
    print(table([[cell(one[name]) for name in ENTRIES] for one in found["entries"]], ENTRIES))
    for one in found["queued"]:
        print(f"\nqueued: {cell(one)}")


MessageId = Annotated[UUID, typer.Argument(metavar="MESSAGE_ID", help="Id of the message, as returned by the send.")]
Reason = Annotated[str, typer.Option(help="Why; the organization reads it in its audit log.")]


@app.command("give-up")
def give_up(id: MessageId, reason: Reason, json: Json = False, data_dir: DataDir = None) -> None:
    """Cancel a message, SMS or WhatsApp, that no supplier has yet, and refund it. Refused once it is on its way or has
    ended.

    \b
    Example:
      heliograph message give-up 0199c0de-0000-7000-8000-000000000000 --reason "asked for by phone"
    """

    async def work(conn: Connection) -> dict[str, object]:
        return {"id": id, "status": await intervening.give_up(conn, shell(), id=id, reason=reason)}

    show(on_database(work, settings_of(data_dir)), json)


@app.command("elsewhere")
def elsewhere(
    id: MessageId,
    reason: Reason,
    may_arrive_twice: Annotated[
        bool, typer.Option("--may-arrive-twice", help="Also if its supplier may have it already.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Send an SMS that is waiting for a supplier through another one now.

    The supplier it is waiting for is tried again only if no other one accepts it. If that supplier may already have it,
    give --may-arrive-twice; an SMS sent with the guarantee at_most_once is never sent again.

    \b
    Examples:
      heliograph message elsewhere 0199c0de-0000-7000-8000-000000000000 --reason "main is slow today"
      heliograph message elsewhere 0199c0de-0000-7000-8000-000000000000 --reason "a code" --may-arrive-twice
    """

    async def work(conn: Connection) -> dict[str, object]:
        over, others = await passing_over.send_elsewhere(
            conn, shell(), id=id, reason=reason, may_arrive_twice=may_arrive_twice
        )
        return {"id": id, "passed_over": over, "suppliers": others}

    show(on_database(work, settings_of(data_dir)), json)


@app.command("decide")
def decide(
    id: MessageId,
    status: Annotated[str, typer.Argument(metavar="STATUS", help=f"How it ended: {', '.join(intervening.ENDS)}.")],
    reason: Reason,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Set the outcome of a message that a supplier has, or may have, and for which no receipt arrives.

    It is refunded or charged, and its event sent, as after a receipt with this status. A receipt that arrives later
    still counts if it would have counted after that one.

    \b
    Example:
      heliograph message decide 0199c0de-0000-7000-8000-000000000000 undelivered --reason "their ticket 4711"
    """

    async def work(conn: Connection) -> dict[str, object]:
        return {"id": id, "status": await intervening.decide(conn, shell(), id=id, status=status, reason=reason)}

    show(on_database(work, settings_of(data_dir)), json)


async def _is_charged(conn: Connection, found: Timeline) -> bool:
    """Whether an organization pays an SMS's price, or may have to: not if it ended before that was due, or was
    refunded."""
    actor = acting_for(await organizations.get(conn, id=found.message["organization_id"]))
    listed = await overview.by_ids(conn, actor, ids=[id := found.message["id"]])
    return id in await overview.prices(conn, actor, listed=listed)


def _with_margin(message: dict[str, Any], *, is_charged: bool) -> dict[str, Any]:
    """An SMS with its margin, if its price is charged, and its cost in the same currency."""
    if "cost" not in message or "price" not in message:
        return message
    price, cost = (None if message[name] is None else micros(message[name]) for name in ("price", "cost"))
    if not is_charged or price is None or cost is None or message["price_currency"] != message["cost_currency"]:
        return message | {"margin": None}
    return message | {"margin": decimal(price - cost)}


def _explanation(why: Why | None, evidence: str | None) -> dict[str, str]:
    """Why a message has its status, the evidence from its carrier, and what to do about it."""
    if why is None:
        return {}
    said = {} if evidence is None else {"evidence": str(evidence)}
    return {"why": why.en.operator, "cause": why.en.cause} | said | {"remedy": why.en.remedy}
