"""Marketing waits for the end of quiet hours where its recipient is, and its validity stands still meanwhile.

Decided when a message is about to leave, so that it holds for what was accepted, staged or put off at any hour, and for
a setting that changed. The rule nobody may break: nothing expires for having waited here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.retry import SUBMIT_HORIZON
from heliograph.classes.kinds import CLASSES
from heliograph.classes.quiet import QuietHours
from heliograph.sms.dispatch.claimed import ClaimedMessage

#: Classes that wait.
_WAITING = frozenset(name for name, one in CLASSES.items() if one.waits_for_day)


class Daytime:
    """One per worker."""

    def __init__(self) -> None:
        self._hours = QuietHours()

    def opens(self, message: ClaimedMessage) -> datetime | None:
        """From when a message may leave; None: now. What a supplier has begun to carry is completed at any hour, and
        test messages reach nobody."""
        if message.traffic_class not in _WAITING or message.mode != "live" or message.taken:
            return None
        return self._hours.until(message.quiet_hours, message.recipient, message.at)


# A message that had no time of its own has what is left of the retry schedule's.
NOTE = """
UPDATE messages m
   SET quiet_since = coalesce(m.quiet_since, now()), quiet_until = item.opens,
       expires_at = coalesce(m.expires_at, greatest(m.accepted_at, m.send_at) + $4::interval) + (item.opens - now())
  FROM (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) AS given (organization_id, id, opens)
         ORDER BY organization_id, id) item
 WHERE m.organization_id = item.organization_id AND m.id = item.id AND m.status = 'accepted'
"""


async def note(conn: Connection, waiting: Sequence[tuple[UUID, UUID, datetime]]) -> None:
    """These messages (organization, id, from when) wait. Runs in the transaction that puts them back."""
    columns = [list(column) for column in zip(*sorted(waiting), strict=True)]
    await conn.execute(NOTE, *columns, timedelta(seconds=SUBMIT_HORIZON))
