"""Listing and reading of messages, as shared by all channels.

The rule nobody may break: a message whose first attempt has begun is shown as under way, although its row says
`accepted` until a supplier has accepted it: only its queue row shows this.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.bounded_scan import PAGE_LOOK
from heliograph.base.database.pool import Connection

Message = TypeVar("Message")


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Filters common to all channels; None: no filter. A channel adds its own."""

    #: Any of these.
    statuses: Sequence[str] | None = None
    #: E.164 with `+`, or in the channel's own form; a number is found in any spelling.
    recipient: str | None = None
    client_reference: str | None = None
    campaign_id: UUID | None = None
    #: ISO region of the number.
    country: str | None = None
    failure_code: str | None = None
    key_id: UUID | None = None
    #: The person who sent it from the dashboard.
    person_id: UUID | None = None
    request_id: str | None = None
    #: Only those sent by an individual request with an API key.
    is_requested: bool = False
    #: Accepted at this time or later.
    date_from: datetime | None = None
    #: Accepted before this time.
    date_to: datetime | None = None


class MessagePage(msgspec.Struct, Generic[Message], frozen=True):
    """Up to `limit` + 1 messages, newest first. `seen`: the id at which the scan ended before it had found that
    many."""

    messages: list[Message]
    seen: UUID | None


def shown_status(row: str, under_way: str) -> str:
    """An SQL expression for the public status of a message; `row` is its table's alias.

    `under_way`: the channel's status for a message that was tried and has been neither accepted nor given up.
    """
    # Counted, because EXISTS may be planned as a hash of the whole queue.
    return f"""
    CASE WHEN {row}.status <> 'accepted' THEN {row}.status
         WHEN (SELECT count(*) FROM queue WHERE queue.id = {row}.id AND queue.attempt = 0) > 0 THEN 'accepted'
         ELSE '{under_way}' END"""


def shown_among(row: str, under_way: str, wanted: str) -> str:
    """An SQL condition: the public status is among those of the text array `wanted`, or that is NULL.

    The queue is consulted only where it makes a difference: for rows that wait, if statuses of waiting messages are
    wanted.
    """
    return f"""
    ({wanted} IS NULL OR CASE WHEN {row}.status <> 'accepted' THEN {row}.status = ANY ({wanted})
                              WHEN NOT {wanted} && '{{accepted,{under_way}}}'::text[] THEN false
                              ELSE {shown_status(row, under_way)} = ANY ({wanted}) END)"""


# A lean variant of `bounded_scan`, which carries along every column that a list shows for each scanned row and takes
# twice as long.
OF_REQUEST = """
SELECT id FROM (
    SELECT id, mode, request_id FROM {table} WHERE organization_id = $1 AND id < $2 AND id >= $3
     ORDER BY id DESC LIMIT $6) looked_at
 WHERE request_id = $4 AND mode = ANY ($5) LIMIT 1
"""
#: One subquery for each channel's table.
TABLES = tuple(OF_REQUEST.format(table=table) for table in ("messages", "whatsapp_messages"))


async def of_request(
    conn: Connection,
    actor: Actor,
    *,
    request_id: str,
    date_from: datetime | None = None,
    date_to: datetime | None = None,
    look: int = PAGE_LOOK,
) -> list[UUID]:
    """The latest message of each channel created by a request with this `x-request-id`, among the last `look` in that
    time range."""
    bounds = bounded_scan.bounds(None, date_from=date_from, date_to=date_to)
    modes = list(actor.modes)
    found = [
        await conn.fetchval(statement, actor.organization_id, *bounds, request_id, modes, look) for statement in TABLES
    ]
    return [id for id in found if id is not None]
