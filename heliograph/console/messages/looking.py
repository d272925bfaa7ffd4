"""Messages: everything that happened to a message of any organization.

The rule nobody may break: text and full number are shown only for a stated reason, recorded in both audit logs.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import organizations
from heliograph.audit import reasons
from heliograph.base.actor import Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.console.acting import acting_for
from heliograph.console.messages import showing, waiting
from heliograph.pages.answers import Answer, Page, refused
from heliograph.pages.requests import Request
from heliograph.sending.timeline import Timeline
from heliograph.sms import timeline
from heliograph.whatsapp import timeline as whatsapp_timeline

HERE = "/console/messages"


async def show(request: Request) -> Answer:
    """Everything that happened to it, without text and full number."""
    async with request.reading() as conn:
        values = await page_values(conn, request, request.id())
    return Page(
        template="messages/message_live.html" if request.is_fragment else "messages/message.html", values=values
    )


async def reveal(request: Request) -> Answer:
    """The same with text and number, for a reason that is recorded in both audit logs."""
    reason = reasons.normalized(request.form.get("reason", ""))
    id = request.id()
    if reason is None:
        async with request.reading() as conn:
            values = await page_values(conn, request, id)
        wrong = Invalid(("reason", "length", "Give a reason of at most 500 characters: it is kept in the audit log."))
        return refused("messages/message.html", wrong, values)
    async with request.writing() as conn:
        values = await page_values(conn, request, id, by=msgspec.structs.replace(request.principal, reason=reason))
    return Page(template="messages/message.html", values=values)


async def read(conn: Connection, id: UUID, by: Principal | None) -> Timeline:
    """Everything that happened to a message of either channel. Raises NotFound.

    `by`: who sees the text, and why; None: nobody does.
    """
    for channel in (timeline, whatsapp_timeline):
        try:
            if by is None:
                return await channel.of_message(conn, id=id)
            return await channel.of_message(conn, id=id, with_text=True, by=by)
        except NotFound:
            continue
    raise NotFound


async def page_values(conn: Connection, request: Request, id: UUID, *, by: Principal | None = None) -> dict[str, Any]:
    """The values of a message's page, as found by `read`. Raises NotFound."""
    found = await read(conn, id, by)
    told = showing.values(request, found, whole=by is not None)
    one = await organizations.get(conn, id=found.message["organization_id"])
    actor = acting_for(request, one)
    told["facts"] += await showing.opted_out(conn, request, actor, found)
    is_settled = told["is_final"] and told["money"]
    told["is_charged"] = not is_settled or await showing.is_charged(conn, actor, found)
    if not request.is_fragment:
        told["near"] = await showing.neighbours(conn, actor, found)
    return told | {"waits": await waiting.of(conn, request, found)}
