"""Giving a message up by hand: an operator ends one that no supplier has yet, whichever organization's it is."""

from __future__ import annotations

from uuid import UUID

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor, Who
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.sms import messages
from heliograph.sms.messages import Message

#: Characters of a reason.
LONGEST = 500

# By id alone, an organization at a time: see `sending.timeline.by_id`.
WHOSE = """
SELECT o.id, o.state, found.mode, found.status
  FROM organizations o
       CROSS JOIN LATERAL (SELECT mode, status FROM messages WHERE organization_id = o.id AND id = $1) found
 LIMIT 1
"""


async def give_up(conn: Connection, by: Who, *, id: UUID, reason: str) -> Message:
    """End a message that waits to be sent, as canceled, and refund it, by the rule by which its sender cancels it.

    `reason`: 1 to 500 characters, which its organization reads in its audit log. One that was canceled before is left
    as it is. Raises Invalid, NotFound, and MessageNotCancelable once it is on its way or has ended: what a supplier
    may have is not given up, for it may be delivered.
    """
    reason = reason.strip()
    if not 1 <= len(reason) <= LONGEST or "\0" in reason:
        raise Invalid(("reason", "length", "Say why, in at most 500 characters: the organization reads it."))
    found = await conn.fetchrow(WHOSE, id)
    if found is None:
        raise NotFound("There is no such message.", resource="message", id=str(id))
    actor = Actor(found["id"], None, found["mode"], frozenset(), found["state"], by=by)
    async with conn.transaction():
        message = await messages.cancel(conn, actor, id=id)
        if found["status"] != message.status:
            before, after = {"status": found["status"]}, {"status": message.status}
            await audit.record(conn, actor, "message.given_up", object_id=id, before=before, after=after, reason=reason)
    return message
