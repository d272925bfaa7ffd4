"""Messages that the address of a form names: one just sent, or one to send again."""

from __future__ import annotations

from uuid import UUID

from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid_in
from heliograph.overview import messages
from heliograph.overview.messages import MessageDetail
from heliograph.pages.requests import Request


def id_in(given: str | None) -> UUID | None:
    """The id in a query parameter; None if that is missing or empty. Raises NotFound if it is not an id."""
    if not given:
        return None
    if (id := uuid_in(given)) is None:
        raise NotFound
    return id


async def message(request: Request, given: str | None) -> MessageDetail | None:
    """The message whose id is in a query parameter; None if that is missing or empty. Raises NotFound."""
    if (id := id_in(given)) is None:
        return None
    async with request.reading() as conn:
        return await messages.get(conn, request.actor, id=id)
