"""Why the messages of a list failed, if the roll-ups do not support its filters: derived from the latest failures.

The rule nobody may break: reading is bounded to at most MOST messages found among LOOK of each channel, and how far
back it went is part of the answer. The database counts nothing.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of
from heliograph.overview import messages
from heliograph.overview.messages import Filters
from heliograph.traffic import LOST, Failed

#: Failed messages read at once.
MOST = 1_000


class Explained(msgspec.Struct, frozen=True):
    """Why messages failed, most frequent reason first, across all countries ("")."""

    reasons: list[Failed]
    #: The id after which to continue with older messages, and its time; None: all matching messages were examined.
    seen: UUID | None
    back_to: datetime | None


def may_fail(filters: Filters) -> bool:
    """True if failed messages can match the filters."""
    return filters.direction != "inbound" and _wanted(filters) != []


async def explain(
    conn: Connection,
    actor: Actor,
    *,
    filters: Filters,
    after: UUID | None = None,
    most: int = MOST,
    look: int = LOOK,
) -> Explained:
    """The reasons of the latest failures among matching messages older than `after`."""
    lost = msgspec.structs.replace(filters, statuses=_wanted(filters), direction="outbound")
    page = await messages.list_page(conn, actor, filters=lost, after=after, limit=most, look=look)
    listed = page.messages[:most]
    seen = listed[-1].id if len(page.messages) > most else page.seen
    # One without a code is counted by its status.
    found = Counter((one.channel, one.failure_code or one.status) for one in listed)
    reasons = [Failed(channel, "", reason, count) for (channel, reason), count in found.most_common()]
    return Explained(reasons, seen, None if seen is None else time_of(seen))


def _wanted(filters: Filters) -> list[str]:
    return [one for one in LOST if filters.statuses is None or one in filters.statuses]
