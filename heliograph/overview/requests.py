"""Programs' requests in one list: the request log, and accepted sends, which are derived from their messages' rows.

The rule nobody may break: nothing is written twice for this list. An accepted send is derived from its message.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.overview import finding, messages
from heliograph.overview.finding import SearchResult
from heliograph.overview.messages import Message
from heliograph.requests import Filters, LogEntry, RequestPage, reading

#: Operations whose accepted requests are derived from messages' rows: their channel and path.
SENDS = {"sendSms": ("sms", "/sms/send"), "sendWhatsAppMessage": ("whatsapp", "/whatsapp/messages")}
ACCEPTED = 202


class Detail(msgspec.Struct, frozen=True):
    """A request, others with the same idempotency key, and what it concerned or created, if that still exists."""

    request: LogEntry
    siblings: list[LogEntry]
    thing: SearchResult | None = None


async def list_page(
    conn: Connection, actor: Actor, *, filters: Filters, after: UUID | None = None, limit: int = 50, look: int = LOOK
) -> RequestPage:
    """Requests older than `after`, newest first: up to `limit` + 1.

    At most `look` rows of the log and of messages are scanned; as with messages, a scan that ended early says where.
    """
    logged = await reading.list_page(conn, actor, filters=filters, after=after, limit=limit, look=look)
    pages = [(logged.requests, logged.seen)]
    if (channel := _channel(filters)) is not None:
        sent = await messages.list_page(
            conn,
            actor,
            filters=messages.Filters(
                channel=channel or None,
                key_id=filters.key_id,
                request_id=filters.request_id,
                is_requested=True,
                date_from=filters.date_from,
                date_to=filters.date_to,
            ),
            after=after,
            limit=limit,
            look=look,
        )
        pages.append(([_of_message(one, actor.mode) for one in sent.messages], sent.seen))
    return RequestPage(*bounded_scan.merged(pages, limit=limit))


async def get(conn: Connection, actor: Actor, *, id: UUID, kinds: Collection[str] = ()) -> Detail:
    """A request by its id, by its `x-request-id`, or by the id of the message it created. `kinds`: kinds of things that
    may be named, from `finding.KINDS` and "message". Raises NotFound."""
    try:
        found = await reading.get(conn, actor, id=id)
    except NotFound:
        message = await _made(conn, actor, id=id)
        if message is None or message.direction == "inbound":
            raise NotFound("There is no such request.", resource="request", id=str(id)) from None
        return Detail(_of_message(message, actor.mode), [])
    thing = await _thing(conn, actor, found, kinds) if kinds else None
    return Detail(found, await reading.siblings(conn, actor, of=found), thing)


async def _made(conn: Connection, actor: Actor, *, id: UUID) -> Message | None:
    """The message of an accepted send, by its id or that of its request."""
    try:
        return (await messages.get(conn, actor, id=id)).message
    except NotFound:
        return await messages.of_request(conn, actor, request_id=str(id))


async def find(conn: Connection, actor: Actor, *, request_id: str) -> LogEntry | None:
    """The latest request with this `x-request-id`, including recent accepted sends."""
    logged = await reading.by_request_id(conn, actor, request_id=request_id)
    if logged is not None:
        return logged
    sent = await messages.of_request(conn, actor, request_id=request_id)
    return None if sent is None else _of_message(sent, actor.mode)


# What a request created was recorded in its transaction, shortly before the response.
MADE = """
SELECT object_id FROM audit_log
 WHERE organization_id = $1 AND id >= $2 AND id < $3 AND request_id = $4 AND action = ANY ($5) ORDER BY id LIMIT 1
"""
MADE_BY = ("contact.created", "campaign.created", "webhook.created", "api_key.created", "sender_id.requested")
#: Statuses from this one on are refusals and failures.
REFUSED = 400
#: Length of an id in characters.
LENGTH = 36
#: Maximum time between the two, in addition to the duration of the request.
MARGIN = timedelta(seconds=10)


async def _thing(conn: Connection, actor: Actor, asked: LogEntry, kinds: Collection[str]) -> SearchResult | None:
    """What a request concerned, by the id in its path; otherwise what it created."""
    ids = [part for part in asked.path.split("/") if len(part) == LENGTH]
    named = ids[0] if ids else None
    if named is None and asked.status < REFUSED and asked.request_id:
        began = asked.at - timedelta(milliseconds=asked.duration_ms or 0) - MARGIN
        upper, lower = bounded_scan.bounds(None, date_from=began, date_to=asked.at + MARGIN)
        named = await conn.fetchval(MADE, actor.organization_id, lower, upper, asked.request_id, list(MADE_BY))
    try:
        id = UUID(named or "")
    except ValueError:
        return None
    if "message" in kinds:
        try:
            return SearchResult("message", (await messages.get(conn, actor, id=id)).message.id)
        except NotFound:
            pass
    return await finding.by_id(conn, actor, id=id, kinds=[kind for kind in kinds if kind != "message"])


def _channel(filters: Filters) -> str | None:
    """The channel whose sends match; "": both; None: neither."""
    if filters.error_code is not None or filters.status_class not in (None, "2xx"):
        return None
    if filters.status not in (None, ACCEPTED) or filters.method not in (None, "POST"):
        return None
    fitting = {
        channel
        for operation, (channel, path) in SENDS.items()
        if filters.operation in (None, operation) and _is_below(path, filters.path)
    }
    if not fitting:
        return None
    return "" if len(fitting) == len(SENDS) else fitting.pop()


def _is_below(path: str, wanted: str | None) -> bool:
    """The same condition as in the log's statement."""
    return wanted is None or path == wanted or path.startswith(f"{wanted}/")


def _of_message(message: Message, mode: str) -> LogEntry:
    operation = next(name for name, (channel, _) in SENDS.items() if channel == message.channel)
    return LogEntry(
        id=message.id,
        at=message.accepted_at,
        mode=mode,
        key_id=message.key_id,
        method="POST",
        path=SENDS[operation][1],
        operation=operation,
        status=ACCEPTED,
        request_id=message.request_id,
        message_id=message.id,
    )
