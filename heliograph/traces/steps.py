"""The steps of a message as spans: waiting, attempts, news about it, webhooks. Only for marked ids."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.process import spans
from heliograph.base.process.spans import Attributes, Context, Span
from heliograph.traces.contexts import TraceContext, find


class _Message(msgspec.Struct):
    id: UUID


class _Data(msgspec.Struct):
    message: _Message


class _Body(msgspec.Struct):
    data: _Data


_message_of = msgspec.json.Decoder(_Body).decode


def waited(kind: str, message_id: UUID, kept: TraceContext) -> None:
    """Record the time from acceptance to the claim as a span."""
    spans.begin(f"{kind} queue", kept.context, {"message_id": str(message_id)}, at=kept.at).end()


def attempt_begun(kind: str, message_id: UUID, number: int, target_id: UUID, kept: TraceContext) -> Span:
    """Begin the span of an attempt. The caller ends it when the answer arrives."""
    said: Attributes = {"message_id": str(message_id), "attempt": number, "target_id": str(target_id)}
    return spans.begin(f"{kind} attempt", kept.context, said, kind="client")


async def moved(conn: Connection, began: int, moves: Sequence[tuple[UUID, UUID, str, str]]) -> None:
    """Record that messages (organization, message, what moved them, their new status) were moved since `began`
    (`spans.moment`), in the caller's transaction. If that is rolled back and repeated, so is the span."""
    unknown = [(organization, id) for organization, id, _, _ in moves if spans.known(id) is None]
    if unknown:
        await find(conn, unknown)
    for _, id, name, status in moves:
        context = spans.known(id)
        if context is not None:
            spans.begin(name, context, {"message_id": str(id), "status": status}, at=began).end()


async def of_event(conn: Connection, organization_id: UUID, body: bytes) -> Context | None:
    """The context of the message that an event is about; None: it is about none, or about one that is not traced."""
    try:
        id = _message_of(body).data.message.id
    except msgspec.ValidationError:
        return None
    context = spans.known(id)
    if context is None:
        found = (await find(conn, [(organization_id, id)])).get(id)
        context = found.context if found is not None else None
    return context
