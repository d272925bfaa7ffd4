"""`heliograph whatsapp inbound`: simulate callbacks from Meta, and inspect those that could not be applied."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec
import typer

from heliograph.base import phones
from heliograph.base.crypto import Key
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, open_pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.cli.terminal.console import (
    DataDir,
    Json,
    Org,
    Problem,
    group,
    on_database,
    operator,
    say,
    settings_of,
    show,
)
from heliograph.cli.terminal.http import address, exchange
from heliograph.simulators.graph.callbacks.webhooks import encode, sign
from heliograph.suppliers.whatsapp_cloud.callbacks.items import OPENING
from heliograph.whatsapp.callbacks import dead_letters, inbox
from heliograph.whatsapp.mirror import apps
from heliograph.whatsapp.mirror.apps import App

app = group("Simulate callbacks from Meta, and list or retry items that could not be applied.")

#: Types of messages that need nothing but a text, by what holds it.
TEXTS = {"text": "body", "button": "text", "image": "caption", "video": "caption", "document": "caption"}
STATUSES = ("sent", "delivered", "read", "failed")
#: Seconds that a user's message opens the service window for.
WINDOW = 86_400.0
COLUMNS = ("received_at", "reason", "id")


class Sender(msgspec.Struct, frozen=True):
    """The number that a callback is about."""

    organization_id: UUID
    id: UUID
    graph_id: str
    digits: str
    waba_id: str
    #: Where its account's Graph API is.
    base_url: str
    app: App


@app.command("simulate")
def simulate(
    from_: Annotated[
        str | None, typer.Option("--from", metavar="NUMBER", help="Sender of the message: +212600000017.")
    ] = None,
    text: Annotated[str, typer.Option(metavar="TEXT", help="Text of the message.")] = "Hello",
    type: Annotated[str, typer.Option(metavar="TYPE", help="Message type, as named by Meta.")] = "text",
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="Simulate a status instead: sent, delivered, read or failed.")
    ] = None,
    message: Annotated[
        str | None, typer.Option(metavar="ID", help="Id of the message that the status is about.")
    ] = None,
    error: Annotated[int, typer.Option(metavar="CODE", help="Meta's error code, for a failure.")] = 131026,
    ago: Annotated[float, typer.Option(min=0, help="How long ago it happened, in seconds.")] = 0.0,
    number: Annotated[
        str | None,
        typer.Option(help="Your number that received it, by id or digits. Optional if there is only one."),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="URL of the API. Defaults to that of `heliograph up`, or else http://127.0.0.1:8080."),
    ] = None,
    org: Org = None,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Post an inbound message, or a status of an outbound message, to the callback address as Meta would.

    It is stored, processed and delivered to webhook endpoints like any other. Meta does not know about it, so a text
    reply to a made-up user fails there. The simulated Graph API (that of `heliograph up`, or `simulate graph`) is
    notified and accepts replies to the user.

    \b
    Examples:
      heliograph whatsapp inbound simulate --from +212600000017 --text "Where is my order?"
      heliograph whatsapp inbound simulate --status read --message 0190a1b2-...
    """
    if (status is None) == (from_ is None):
        raise typer.BadParameter("give either --from, for a message, or --status with --message")
    at = str(int((clock.now() - timedelta(seconds=ago)).timestamp()))
    settings = settings_of(data_dir, needs_key=True)
    key = apps.seal_key(settings)

    async def prepare(conn: Connection) -> tuple[Sender, dict[str, Any]]:
        actor = await operator(conn, org)
        sender = await _number(conn, key, actor.organization_id, number)
        if status is not None:
            return sender, {"statuses": [await _status(conn, sender, status, message, error, at)]}
        return sender, _message(from_ or "", text, type, at)

    sender, value = on_database(prepare, settings)
    metadata = {"display_phone_number": sender.digits, "phone_number_id": sender.graph_id}
    change = {"field": "messages", "value": {"messaging_product": "whatsapp", "metadata": metadata, **value}}
    envelope = {"object": "whatsapp_business_account", "entry": [{"id": sender.waba_id, "changes": [change]}]}
    if from_ is not None:
        _let_be_answered(sender, value["messages"][0]["from"], ago)
    body, headers = sign(encode(envelope), sender.app.secrets[0].decode())
    path = f"/in/whatsapp/{sender.app.id}"
    base_url = address(url, data_dir)
    headers["content-type"] = "application/json"
    answered, got, _ = exchange("POST", base_url, path, headers=headers, data=body)
    if answered != 200:
        raise Problem(f"{base_url}{path} answered {answered}")
    (item,) = value.get("statuses") or value["messages"]
    show({"number": sender.digits, "wamid": item["id"], "request_id": got.get("x-request-id")}, json)


@app.command("dead-letters")
def list_dead_letters(
    items: Annotated[bool, typer.Option("--items", help="Also show the text.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number to show.")] = 50,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List callback items that could not be parsed or applied, newest first. They are kept for eight days.

    \b
    Example:
      heliograph whatsapp inbound dead-letters --items
    """
    settings = settings_of(data_dir, needs_key=True)
    key = apps.seal_key(settings)
    found = on_database(lambda conn: dead_letters.list_all(conn, key, limit=limit), settings)
    shown = [
        {"received_at": one.received_at, "reason": one.reason, "id": one.id}
        | ({"item": one.raw.decode("utf-8", "replace")} if items else {})
        for one in found
    ]
    show(shown, json, (*COLUMNS, "item") if items else COLUMNS)


@app.command("retry")
def retry(json: Json = False, data_dir: DataDir = None) -> None:
    """Retry items that could not be applied, for example after syncing a number or upgrading.

    \b
    Example:
      heliograph whatsapp inbound retry
    """
    settings = settings_of(data_dir, needs_key=True)

    async def work(_: Connection) -> tuple[int, int]:
        pool = await open_pool(settings.database_url, size=2)
        try:
            return await inbox.retry(pool, apps.seal_key(settings))
        finally:
            await pool.close()

    looked_at, done = on_database(work, settings)
    if json:
        show({"looked_at": looked_at, "applied": done}, json)
    say(f"{done} of {looked_at} applied.")


FIND = """
SELECT n.organization_id, n.id, n.graph_id, n.digits, a.waba_id, a.base_url, a.app
  FROM whatsapp_numbers n JOIN whatsapp_accounts a ON (a.organization_id, a.id) = (n.organization_id, n.account_id)
 WHERE n.organization_id = $1 AND n.state = 'active' AND a.state <> 'removed'
   AND ($2::text IS NULL OR n.digits = $2 OR n.id::text = $2)
"""
WAMID = """
SELECT m.id, m.recipient, (SELECT wamid FROM whatsapp_wamids w WHERE w.number_id = m.number_id AND w.message_id = m.id
                            LIMIT 1) AS wamid
  FROM whatsapp_messages m WHERE m.organization_id = $1 AND m.id = $2 AND m.number_id = $3
"""


async def _number(conn: Connection, key: Key, organization_id: UUID, reference: str | None) -> Sender:
    wanted = None if reference is None else reference.strip().removeprefix("+").lower()
    rows = await conn.fetch(FIND, organization_id, wanted)
    if not rows:
        raise NotFound("This organization has no such WhatsApp number.", resource="phone_number")
    if len(rows) > 1:
        names = ", ".join(row["digits"] for row in rows)
        raise Invalid(("number", "ambiguous", f"choose a number with --number: {names}"))
    organization_id, id, graph_id, digits, waba_id, base_url, app_id = rows[0].values()
    found = await apps.get_app(conn, key, app_id)
    return Sender(organization_id, id, graph_id, digits, waba_id, base_url, found)


def _let_be_answered(sender: Sender, user: str, ago: float) -> None:
    """Open the user's service window at the simulated Graph API, if the number is there: it accepts replies by its own
    records."""
    if not sender.base_url.startswith("http://") or ago >= WINDOW:  # Meta is https; http is for this machine only
        return
    window = {"user": user, "number": sender.graph_id, "seconds": WINDOW - ago}
    with contextlib.suppress(Problem):  # no stand-in listens there: the message comes in all the same
        exchange("POST", sender.base_url, "/_sim/windows", headers={}, data=msgspec.json.encode(window), timeout=5.0)


def _message(sender: str, text: str, type: str, at: str) -> dict[str, Any]:
    phone = phones.normalize(sender)
    if phone is None:
        raise typer.BadParameter("must be a phone number with country code", param_hint="--from")
    if type not in TEXTS:
        known = ", ".join(sorted(TEXTS.keys() & OPENING))
        raise typer.BadParameter(f"must be one of {known}", param_hint="--type")
    digits = phone.removeprefix("+")
    content: dict[str, Any] = {TEXTS[type]: text}
    if type not in ("text", "button"):
        content |= {"id": "1000000000000001", "mime_type": "application/octet-stream"}
    item = {"from": digits, "id": f"wamid.{uuid4().hex.upper()}", "timestamp": at, "type": type, type: content}
    return {"contacts": [{"profile": {"name": "Simulated"}, "wa_id": digits}], "messages": [item]}


async def _status(
    conn: Connection, sender: Sender, status: str, message: str | None, error: int, at: str
) -> dict[str, Any]:
    if status not in STATUSES:
        raise typer.BadParameter(f"must be one of {', '.join(STATUSES)}", param_hint="--status")
    try:
        id = UUID(message or "")
    except ValueError:
        raise typer.BadParameter("must be the id of a message", param_hint="--message") from None
    row = await conn.fetchrow(WAMID, sender.organization_id, id, sender.id)
    if row is None:
        raise NotFound("This number has no such message.", resource="message", id=str(id))
    item: dict[str, Any] = {
        "id": row["wamid"] or f"wamid.{id.hex.upper()}",
        "status": status,
        "timestamp": at,
        "recipient_id": row["recipient"].removeprefix("+"),
        "biz_opaque_callback_data": str(id),
    }
    if status == "failed":
        item["errors"] = [{"code": error, "title": "Simulated"}]
    return item
