"""Simulated callbacks, as Meta would send them, for testing an integration: users' messages, and statuses.

They are signed with the app's own secret and delivered through the intake for Meta's callbacks, so everything after it
works as in production. The rule nobody may break: the organization's audit log records each simulated callback.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import Principal
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid, NotFound, Problems
from heliograph.base.ids import uuid_in
from heliograph.suppliers.whatsapp_cloud.callbacks.items import OPENING
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import signature
from heliograph.whatsapp.callbacks.intake import CallbackIntake
from heliograph.whatsapp.mirror import apps
from heliograph.whatsapp.mirror.apps import App, AppBook

#: Types of messages that need only a text → the field that contains it.
TEXTS = {"text": "body", "button": "text", "image": "caption", "video": "caption", "document": "caption"}
STATUSES = ("sent", "delivered", "read", "failed")
#: Meta's error code for a failure unless another is given: the message is undeliverable.
UNDELIVERABLE = 131026
#: Maximum characters of a text that Meta lets a user send.
LONGEST = 4096


class Number(msgspec.Struct, frozen=True):
    """The number that a callback is about."""

    organization_id: UUID
    id: UUID
    graph_id: str
    digits: str
    waba_id: str
    #: Base URL of its account's Graph API.
    base_url: str
    app: App


class Callback(msgspec.Struct, frozen=True):
    """A simulated callback: its bytes, and the value of `X-Hub-Signature-256` for them."""

    number: Number
    body: bytes
    signature: bytes
    #: Meta's id of the message that it is about.
    wamid: str


FIND = """
SELECT n.organization_id, n.id, n.graph_id, n.digits, a.waba_id, a.base_url, a.app
  FROM whatsapp_numbers n JOIN whatsapp_accounts a ON (a.organization_id, a.id) = (n.organization_id, n.account_id)
 WHERE n.organization_id = $1 AND n.state = 'active' AND a.state <> 'removed'
   AND ($2::text IS NULL OR n.digits = $2 OR n.id::text = $2)
"""


async def find_number(conn: Connection, key: Key, organization_id: UUID, reference: str | None) -> Number:
    """An organization's number by id or digits; None: its only one. `key`: from `apps.seal_key`. Raises NotFound,
    Invalid."""
    wanted = None if reference is None else reference.strip().removeprefix("+").lower()
    rows = await conn.fetch(FIND, organization_id, wanted)
    if not rows:
        raise NotFound("This organization has no such WhatsApp number.", resource="phone_number")
    if len(rows) > 1:
        names = ", ".join(row["digits"] for row in rows)
        raise Invalid(("number", "ambiguous", f"choose one of its numbers: {names}"))
    (row,) = rows
    with apps.opening():
        app = await apps.get_app(conn, key, row["app"])
    return Number(
        organization_id=row["organization_id"],
        id=row["id"],
        graph_id=row["graph_id"],
        digits=row["digits"],
        waba_id=row["waba_id"],
        base_url=row["base_url"],
        app=app,
    )


async def message(
    conn: Connection, by: Principal, number: Number, *, user: str, text: str, at: datetime, type: str = "text"
) -> Callback:
    """A user's message to a number. `user`: their phone number. Raises Invalid."""
    phone, wrong = phones.read(user, region=None), Problems()
    if phone is None:
        wrong.add("from", "format", "must be a phone number with + and country code, such as +258841234567")
    if type not in TEXTS:
        wrong.add("type", "enum", f"must be one of {', '.join(sorted(TEXTS.keys() & OPENING))}")
    if len(text) > LONGEST:
        wrong.add("text", "length", f"must have at most {LONGEST} characters")
    if wrong or phone is None:
        raise wrong.refusal()
    digits = phone.removeprefix("+")
    content: dict[str, Any] = {TEXTS[type]: text}
    if type not in ("text", "button"):
        content |= {"id": "1000000000000001", "mime_type": "application/octet-stream"}
    item = {"from": digits, "id": f"wamid.{uuid4().hex.upper()}", "timestamp": _seconds(at), "type": type}
    contact = {"profile": {"name": "Simulated"}, "wa_id": digits}
    value = {"contacts": [contact], "messages": [item | {type: content}]}
    return await _made(conn, by, number, value, item["id"], {"from": phone, "type": type})


WAMID = """
SELECT m.id, m.recipient, (SELECT wamid FROM whatsapp_wamids w WHERE w.number_id = m.number_id AND w.message_id = m.id
                            LIMIT 1) AS wamid
  FROM whatsapp_messages m WHERE m.organization_id = $1 AND m.id = $2 AND m.number_id = $3
"""


async def status(
    conn: Connection,
    by: Principal,
    number: Number,
    *,
    message: str,
    status: str,
    at: datetime,
    error: int = UNDELIVERABLE,
) -> Callback:
    """A status of a message sent from a number. `message`: its id. `error`: Meta's code of a failure. Raises Invalid,
    NotFound."""
    id, wrong = uuid_in(message), Problems()
    if status not in STATUSES:
        wrong.add("status", "enum", f"must be one of {', '.join(STATUSES)}")
    if id is None:
        wrong.add("message", "format", "must be the id of a message")
    if wrong or id is None:
        raise wrong.refusal()
    row = await conn.fetchrow(WAMID, number.organization_id, id, number.id)
    if row is None:
        raise NotFound("This number has no such message.", resource="message", id=str(id))
    item: dict[str, Any] = {
        "id": row["wamid"] or f"wamid.{id.hex.upper()}",
        "status": status,
        "timestamp": _seconds(at),
        "recipient_id": row["recipient"].removeprefix("+"),
        "biz_opaque_callback_data": str(id),
    }
    if status == "failed":
        item["errors"] = [{"code": error, "title": "Simulated"}]
    return await _made(conn, by, number, {"statuses": [item]}, item["id"], {"message_id": str(id), "status": status})


async def deliver(pool: Pool, key: Key, callback: Callback) -> None:
    """Store one as if Meta had posted it; returns once it is committed. `key`: from `apps.seal_key`."""
    intake = CallbackIntake(pool, AppBook(pool, key), key)
    try:
        await intake.take(callback.number.app, callback.body, callback.signature)
    finally:
        await intake.drain()


async def _made(
    conn: Connection, by: Principal, number: Number, value: Mapping[str, Any], wamid: str, said: Mapping[str, str]
) -> Callback:
    metadata = {"display_phone_number": number.digits, "phone_number_id": number.graph_id}
    change = {"field": "messages", "value": {"messaging_product": "whatsapp", "metadata": metadata, **value}}
    entry = {"id": number.waba_id, "changes": [change]}
    body = msgspec.json.encode({"object": "whatsapp_business_account", "entry": [entry]})
    await audit.record(
        conn, by, "callback.simulated", object_id=number.id, organization_id=number.organization_id, after=said
    )
    return Callback(number, body, signature(number.app.secrets[0], body), wamid)


def _seconds(at: datetime) -> str:
    return str(int(at.timestamp()))
