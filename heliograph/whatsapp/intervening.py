"""Operator interventions on one WhatsApp message of any organization: give it up, or record how it ended.

The rule nobody may break: each needs a reason, which the organization sees in its audit log, and the charge follows
from the move itself, as after a report from Meta.
"""

from __future__ import annotations

from uuid import UUID

import asyncpg

from heliograph.audit import reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.queue import leases
from heliograph.queue.holds import AlreadyAttempted
from heliograph.sending.attempts import MAY_HAVE_ARRIVED
from heliograph.whatsapp.accepting import withdrawal
from heliograph.whatsapp.callbacks.matching import announced
from heliograph.whatsapp.status import Move, move_many

#: The final statuses that an operator may record.
ENDS = ("delivered", "read", "failed")


class WhatsAppMessageNotEnded(Refusal):
    """This message cannot get that status: a user sent it, Meta may have it or is receiving it, or it has ended."""

    code, status = "whatsapp_message_not_ended", 409


# By id alone, one organization at a time: see `sending.timeline.by_id`. Meta may have a message whose attempt has an
# unknown outcome.
WHOSE = f"""
SELECT o.id, o.state, found.mode, found.direction, found.status,
       EXISTS (SELECT FROM attempts WHERE organization_id = o.id AND message_id = $1
                                      AND attempts.state IN {MAY_HAVE_ARRIVED}) AS tried
  FROM organizations o
       CROSS JOIN LATERAL (SELECT mode, direction, status FROM whatsapp_messages
                            WHERE organization_id = o.id AND id = $1) found
 LIMIT 1
"""


async def give_up(conn: Connection, by: Principal, *, id: UUID, reason: str) -> str:
    """Cancel a waiting message that Meta cannot have; its reservation is released.

    `reason`: 1 to 500 characters. Idempotent. Returns its status. Raises Invalid, NotFound, WhatsAppMessageNotEnded.
    """
    reason = reasons.for_organization(reason)
    found, actor = await _whose(conn, by, id)
    if found["status"] == "canceled":
        return "canceled"
    if found["direction"] != "outbound" or found["status"] != "accepted" or found["tried"]:
        raise WhatsAppMessageNotEnded
    try:
        async with conn.transaction():
            if await withdrawal.withdraw(conn, [(actor.organization_id, id)], at=now()):
                before, after = {"status": "accepted"}, {"status": "canceled"}
                await audit.record(
                    conn, actor, "message.given_up", object_id=id, before=before, after=after, reason=reason
                )
                return "canceled"
    except AlreadyAttempted:
        raise WhatsAppMessageNotEnded from None
    # Its sender may have been first.
    found, _ = await _whose(conn, by, id)
    if found["status"] != "canceled":
        raise WhatsAppMessageNotEnded
    return "canceled"


async def decide(conn: Connection, by: Principal, *, id: UUID, status: str, reason: str) -> str:
    """End a message that Meta has or may have as `status`, one of ENDS, which an operator knows from elsewhere.

    A tried message that still waits is removed from the queue. Later reports from Meta still count. Idempotent.
    Returns the status. Raises Invalid (fields `reason` and `status`), NotFound, WhatsAppMessageNotEnded.
    """
    reason = reasons.for_organization(reason)
    found, actor = await _whose(conn, by, id)
    if status not in ENDS:
        raise Invalid(("status", "enum", "Messages of this channel do not end that way. Choose another status."))
    if found["status"] == status:
        return status
    if found["direction"] != "outbound" or not (found["tried"] or found["status"] == "sent"):
        raise WhatsAppMessageNotEnded
    async with conn.transaction():
        if found["status"] == "accepted":
            if id not in await leases.withdraw(conn, "whatsapp", [id], only="ended"):
                raise WhatsAppMessageNotEnded
            # Read again once no worker can change it: an attempt that was under way may have ended without Meta.
            found, _ = await _whose(conn, by, id)
            if not found["tried"]:
                raise WhatsAppMessageNotEnded
        code = "unknown" if status == "failed" else None
        move = Move(actor.organization_id, id, status, now(), code)
        moved, _ = await move_many(conn, [move], rates=None, announce=await announced(conn, [move]))
        if not moved:
            raise WhatsAppMessageNotEnded
        before, after = {"status": found["status"]}, {"status": status}
        await audit.record(conn, actor, "message.decided", object_id=id, before=before, after=after, reason=reason)
    return status


async def _whose(conn: Connection, by: Principal, id: UUID) -> tuple[asyncpg.Record, Actor]:
    row = await conn.fetchrow(WHOSE, id)
    if row is None:
        raise NotFound(resource="message", id=str(id))
    return row, Actor(row["id"], None, row["mode"], frozenset(), row["state"], by=by)
