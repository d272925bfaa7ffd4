"""Messages as a file, by the filters of a list, while it is read: nothing of it is gathered first.

The rule nobody may break: an export is recorded before its first line is out, and what its reader may not see in a list
is not in it either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from uuid import UUID

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.overview import messages
from heliograph.overview.messages import Filters, Message

#: Messages of one look, and of one file; who needs more asks for less time.
PAGE, MOST = 1_000, 100_000

Reading = Callable[[], AbstractAsyncContextManager[Connection]]


async def begin(conn: Connection, actor: Actor, *, kind: str, filters: Filters) -> None:
    """Record that messages are taken away. `kind`: of the file."""
    told = {"format": kind, "from": filters.date_from, "to": filters.date_to, "statuses": filters.statuses}
    await audit.record(conn, actor, "messages.exported", object_id=actor.organization_id, after=told)


async def pages(reading: Reading, actor: Actor, *, filters: Filters) -> AsyncIterator[list[Message]]:
    """Pages of messages, newest first, at most MOST together. A connection is held for one page at a time."""
    after: UUID | None = None
    count = 0
    while count < MOST:
        async with reading() as conn:
            found = await messages.list_page(conn, actor, filters=filters, after=after, limit=min(PAGE, MOST - count))
        listed = found.messages[: min(PAGE, MOST - count)]
        count += len(listed)
        if listed:
            yield listed
        after = listed[-1].id if len(found.messages) > len(listed) else found.seen
        if after is None:
            return
