"""Contexts of traced messages, stored alongside their rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.process import spans
from heliograph.base.process.spans import Context

#: Days for which they are kept: a receipt may take three, and a webhook's last attempt is some five days later.
DAYS = 8


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """The context in which a message's trace continues, and when the message was accepted, in nanoseconds since
    1970."""

    context: Context
    at: int


# For a message that was refused after all, or already accepted under its key, this row is never looked up.
KEEP = """
INSERT INTO message_traces (organization_id, message_id, trace_id, span_id, at)
SELECT *, now() FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bigint[])
    ON CONFLICT DO NOTHING
"""
FIND = """
SELECT t.message_id, t.trace_id, t.span_id, t.at
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id)
       CROSS JOIN LATERAL (SELECT * FROM message_traces
                            WHERE organization_id = item.organization_id AND message_id = item.id OFFSET 0) t
"""


async def keep(conn: Connection, traced: Sequence[tuple[UUID, UUID, Context]]) -> None:
    """Store the contexts of messages (organization, message, context), in the caller's transaction."""
    await conn.execute(
        KEEP,
        [organization for organization, _, _ in traced],
        [message for _, message, _ in traced],
        [UUID(int=context.trace) for _, _, context in traced],
        [_signed(context.span) for _, _, context in traced],
    )


async def find(conn: Connection, messages: Sequence[tuple[UUID, UUID]]) -> dict[UUID, TraceContext]:
    """The contexts of messages (organization, message), by message; those that are not traced are missing."""
    rows = await conn.fetch(FIND, [organization for organization, _ in messages], [id for _, id in messages])
    found: dict[UUID, TraceContext] = {}
    for message_id, trace, span, at in rows:
        found[message_id] = TraceContext(Context(trace.int, span & 0xFFFF_FFFF_FFFF_FFFF), _nanoseconds(at))
        spans.remember(message_id, found[message_id].context)
    return found


def _signed(span: int) -> int:
    """64 bits as a signed number, for PostgreSQL's bigint."""
    return span - (1 << 64) if span >= 1 << 63 else span


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000) * 1_000_000
