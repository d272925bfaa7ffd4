"""Giving up a message by hand: an operator cancels one that no supplier has yet, of any organization."""

from __future__ import annotations

from uuid import UUID

from heliograph.audit import reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database.pool import Connection
from heliograph.sms import messages
from heliograph.sms.intervening import whose
from heliograph.sms.messages import Message


async def give_up(conn: Connection, by: Principal, *, id: UUID, reason: str) -> Message:
    """Cancel a message that waits to be sent, and refund it, by the same rule as when its sender cancels it.

    `reason`: 1 to 500 characters, which its organization can read in its audit log. A message that is already canceled
    is left as it is. Raises Invalid, NotFound, and MessageNotCancelable once it is on its way or has ended: a message
    that a supplier may have may still be delivered, so it cannot be given up.
    """
    reason = reasons.for_organization(reason)
    found = await whose.find(conn, by, id=id)
    async with conn.transaction():
        message, is_given_up = await messages.cancel_now(conn, found.actor, id=id)
        # Otherwise its sender was first.
        if is_given_up:
            before, after = {"status": found.status}, {"status": message.status}
            await audit.record(
                conn, found.actor, "message.given_up", object_id=id, before=before, after=after, reason=reason
            )
    return message
