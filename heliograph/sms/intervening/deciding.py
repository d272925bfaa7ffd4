"""Deciding how a message ended if no supplier reports it and an operator knows from elsewhere.

Its amounts, its event and its statistics follow as from a receipt: it is the same move.

The rule nobody may break: what a real receipt could not do, an operator cannot either. A status never goes back.
"""

from __future__ import annotations

from uuid import UUID

from heliograph.audit import reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.sentences import said
from heliograph.queue import leases
from heliograph.sending.attempts import MAY_HAVE_ARRIVED
from heliograph.sms.intervening import whose
from heliograph.sms.status import NO_RECEIPT, OUTCOME_UNKNOWN, Move, after_all, may_move, move_many
from heliograph.webhooks.recording.events import wanted

#: The statuses that an operator can choose.
ENDS = ("delivered", "undelivered", "failed", "expired", "rejected", "unknown")
#: How an attempt is known to have been accepted.
SAID = said("an operator says that the supplier has it")


class StatusNotDecided(Refusal):
    """This message cannot have ended that way: it was not handed to a supplier, is being handed over, or has ended."""

    code, status = "status_not_decided", 409


TRIED = """
SELECT attempt, state FROM attempts WHERE organization_id = $1 AND message_id = $2 ORDER BY attempt DESC LIMIT 1
"""
# Whether a supplier has a message, or may have it.
HAD = f"""
SELECT supplier_id IS NOT NULL OR EXISTS (
       SELECT FROM attempts WHERE organization_id = $1 AND message_id = $2 AND state IN {MAY_HAVE_ARRIVED})
  FROM messages WHERE organization_id = $1 AND id = $2
"""


async def decide(conn: Connection, by: Principal, *, id: UUID, status: str, reason: str) -> str:
    """End a message that a supplier has, or may have, with `status`, one of ENDS. Idempotent.

    A message that was tried and still waits is removed from the queue. A late receipt has the same effect as after a
    receipt of this status. `reason`: as for `giving_up.give_up`. Returns the status. Raises NotFound, Invalid (fields
    `reason` and `status`), StatusNotDecided.
    """
    reason = reasons.for_organization(reason)
    found = await whose.find(conn, by, id=id)
    if status not in ENDS:
        raise Invalid(("status", "enum", "Messages of this channel do not end that way. Choose another status."))
    if found.status == status:
        return status
    if not may_move(found.status, status):
        raise StatusNotDecided
    organization_id = found.actor.organization_id
    async with conn.transaction():
        if found.status != "accepted" and not await conn.fetchval(HAD, organization_id, id):
            raise StatusNotDecided
        moves = [Move(organization_id, id, status, now(), _code(status, found.status))]
        if found.status == "accepted":
            moves = await _out_of_the_queue(conn, moves[0])
        wanting = await wanted(conn, [organization_id], "message.sent")
        if not (await move_many(conn, moves, announce_sent=wanting)).ids:
            raise StatusNotDecided
        before, after = {"status": found.status}, {"status": status}
        await audit.record(
            conn, found.actor, "message.decided", object_id=id, before=before, after=after, reason=reason
        )
    return status


async def _out_of_the_queue(conn: Connection, move: Move) -> list[Move]:
    """End the work of a message that waits for another try; returns its moves. Raises StatusNotDecided."""
    organization_id, id = move.organization_id, move.message_id
    if id not in await leases.withdraw(conn, "sms", [id], only="ended"):
        raise StatusNotDecided
    # Read once no worker can make another attempt.
    last = await conn.fetchrow(TRIED, organization_id, id)
    if last is None:
        raise StatusNotDecided
    if last["state"] != "unknown":
        if move.status not in ("failed", "expired", "rejected"):
            # Every supplier that was tried deferred it, refused it or could not be reached.
            raise StatusNotDecided
        return [move]
    if move.status == "unknown":
        return [move]
    # As with a receipt: that supplier has it.
    sent = await after_all(conn, organization_id, id, last["attempt"], at=move.at, detail=SAID)
    if sent is None:
        raise StatusNotDecided
    return [sent, move]


def _code(status: str, before: str) -> str | None:
    """The failure code that customers see: the same as for a receipt of this status."""
    if status == "delivered":
        return None
    return {"sent": NO_RECEIPT, "accepted": OUTCOME_UNKNOWN}[before] if status == "unknown" else status
