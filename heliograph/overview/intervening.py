"""An operator's interventions on one message, of any organization and channel: for the command line and the console.

The rule nobody may break: each is done for a reason, which the organization can read in its audit log.
"""

from __future__ import annotations

from uuid import UUID

from heliograph.base.actor import Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.sms.intervening import deciding, giving_up
from heliograph.whatsapp import intervening as whatsapp

#: The final statuses that can be set, of either channel: `sms.intervening.deciding` and `whatsapp.intervening` define
#: which apply to theirs.
ENDS = tuple(dict.fromkeys((*deciding.ENDS, *whatsapp.ENDS)))


async def give_up(conn: Connection, by: Principal, *, id: UUID, reason: str) -> str:
    """End a waiting message that cannot have been sent, as canceled, and refund it. Idempotent.

    `reason`: 1 to 500 characters. Returns its status. Raises Invalid, NotFound, MessageNotCancelable,
    WhatsAppMessageNotEnded.
    """
    try:
        return (await giving_up.give_up(conn, by, id=id, reason=reason)).status
    except NotFound:
        return await whatsapp.give_up(conn, by, id=id, reason=reason)


async def decide(conn: Connection, by: Principal, *, id: UUID, status: str, reason: str) -> str:
    """Set the outcome of a message that its supplier or Meta has or may have. Idempotent.

    Returns its status. Raises Invalid (fields `reason` and `status`), NotFound, StatusNotDecided,
    WhatsAppMessageNotEnded.
    """
    try:
        return await deciding.decide(conn, by, id=id, status=status, reason=reason)
    except NotFound:
        return await whatsapp.decide(conn, by, id=id, status=status, reason=reason)
