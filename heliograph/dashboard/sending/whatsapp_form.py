"""Shared by the forms for WhatsApp templates and replies: finding the recipient, and sending."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.errors import Refusal
from heliograph.dashboard.sending import refusals, sms_form
from heliograph.dashboard.sending.sms_form import Recipient
from heliograph.pages.requests import Request
from heliograph.suppliers.whatsapp_cloud.bodies import is_user_id
from heliograph.whatsapp import messages
from heliograph.whatsapp.accepting.accept import Send, TemplateSend, TextReply


async def recipient(request: Request, conn: Connection, to: str) -> Recipient:
    """The recipient in a field that is not empty: a user id, otherwise as in the form for an SMS."""
    if is_user_id(to.strip()):
        return Recipient(to.strip())
    return await sms_form.recipient(request, conn, to)


async def accept(request: Request, read: Callable[[Connection], Awaitable[Send]]) -> str | Refusal:
    """Send what `read` returns for the form; returns the message's id, or the refusal to show in the form. Raises
    refusals that are not about the form."""
    try:
        async with request.reading() as conn:
            wanted = await read(conn)
        answer = await request.services.whatsapp.accept(wanted)
    except Refusal as refusal:
        if not refusals.is_told(refusal):
            raise
        return refusal
    id: str = msgspec.json.decode(answer.body)["message"]["id"]
    return id


async def again(conn: Connection, request: Request, *, id: UUID) -> Send:
    """An earlier message as a send; its content is empty once erased. Raises NotFound."""
    earlier = await messages.get(conn, request.actor, id=id)
    said = earlier.content or {}
    content: TemplateSend | TextReply
    if earlier.template_name is None:
        content = TextReply(str(said.get("body") or ""))
    else:
        content = TemplateSend(
            earlier.template_name,
            earlier.template_language or "",
            earlier.billing_category or "",
            tuple(str(one) for one in said.get("parameters") or ()),
        )
    return Send(
        actor=request.actor,
        to=earlier.recipient,
        number_id=earlier.number_id,
        content=content,
        client_reference=earlier.client_reference,
    )
