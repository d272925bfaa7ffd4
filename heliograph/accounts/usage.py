"""The usage ledger as its organization reads it. `quota.py` and accepting write it.

The rule nobody may break: what is read here is never counted up; balances are the maintained rows of `quotas`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.db import Connection
from heliograph.base.ids import uuid7_floor


class Entry(msgspec.Struct, frozen=True):
    """One row of `usage_ledger`. `type`: usage, refund, adjustment, grant; `quantity`: messages, signed."""

    id: UUID
    type: str
    channel: str
    quantity: int
    balance_after: int
    segments: int | None
    message_id: UUID | None
    campaign_id: UUID | None
    reason: str | None
    created_at: datetime


LAST_ID = UUID(int=2**128 - 1)
FIRST_ID = UUID(int=0)
EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
#: A row's id may be made so much earlier or later than its time says: ids are of the process, made before the commit.
SLACK = timedelta(hours=1)

# By key alone. Ids are times, so the dates bound them too, with some slack; the exact bound is the row's own time.
LIST = """
SELECT id, type, channel, quantity, balance_after, segments, message_id, campaign_id, reason, created_at
  FROM usage_ledger
 WHERE organization_id = $1 AND id < $2 AND id >= $3 AND created_at >= $4 AND created_at < $5
 ORDER BY id DESC LIMIT $6
"""


async def entries(
    conn: Connection,
    actor: Actor,
    *,
    limit: int,
    after: UUID | None = None,
    date_from: datetime | None = None,
    date_to: datetime | None = None,
) -> list[Entry]:
    """Up to `limit` rows of the ledger, newest first, those before `after` in it. `date_to` is exclusive."""
    first = FIRST_ID if date_from is None else _floor(date_from, -SLACK)
    last = LAST_ID if date_to is None else _floor(date_to, SLACK)
    rows = await conn.fetch(
        LIST,
        actor.organization_id,
        min(last, after or LAST_ID),
        first,
        max(date_from or EARLIEST, EARLIEST),
        min(date_to or LATEST, LATEST),
        limit,
    )
    return [Entry(**row) for row in rows]


def _floor(at: datetime, slack: timedelta) -> UUID:
    """The id's bound for a time; whatever a client may write as one."""
    return uuid7_floor(min(max(at, EARLIEST), LATEST) + slack)
