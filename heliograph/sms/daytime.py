"""Quiet hours: marketing messages wait until those of their recipient end, and their validity is paused meanwhile.

This is decided when a message is about to leave, so that it applies whenever the message was accepted, staged or
postponed, and to changed settings. The rule nobody may break: no message expires because it waited here.
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

#: Classes subject to quiet hours.
_WAITING = frozenset(name for name, one in CLASSES.items() if one.waits_for_day)


class Daytime:
    """One per worker."""

    def __init__(self) -> None:
        self._hours = QuietHours()

    def opens(self, message: ClaimedMessage) -> datetime | None:
        """When a message may leave; None: now. A message of which a supplier has some segments is completed at any
        hour, and test messages reach nobody."""
        if message.traffic_class not in _WAITING or message.mode != "live" or message.taken:
            return None
        return self._hours.until(message.quiet_hours, message.recipient, message.at)


# A message without a validity of its own gets the remainder of the retry schedule's. One that is looked at again before
# its wait is over, as an operator may want, has been given that time already.
NOTE = """
UPDATE messages m
   SET quiet_since = coalesce(m.quiet_since, now()), quiet_until = item.opens,
       expires_at = coalesce(m.expires_at, greatest(m.accepted_at, m.send_at) + $4::interval)
                    + (item.opens - least(greatest(now(), m.quiet_until), item.opens))
  FROM (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::timestamptz[]) AS given (organization_id, id, opens)
         ORDER BY organization_id, id) item
 WHERE m.organization_id = item.organization_id AND m.id = item.id AND m.status = 'accepted'
"""


async def note(conn: Connection, waiting: Sequence[tuple[UUID, UUID, datetime]]) -> None:
    """Record that these messages (organization, id, end of the wait) wait. Runs in the transaction that returns them
    to the queue."""
    columns = [list(column) for column in zip(*sorted(waiting), strict=True)]
    await conn.execute(NOTE, *columns, timedelta(seconds=SUBMIT_HORIZON))
