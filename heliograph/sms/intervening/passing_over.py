"""Sending a message through another supplier now: an operator passes over the one that it waits for, or that may have
it.

The passed-over suppliers are stored in the message's queue row and forgotten with it. Dispatch uses them only if no
other supplier can take the message, so passing over never loses a message.

The rule nobody may break: a message that may arrive twice is sent again only if its sender allows that and the operator
has confirmed it.
"""

from __future__ import annotations

from uuid import UUID

from heliograph.audit import reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, Refusal
from heliograph.queue.leases import NOT_PUT_OFF, UNROUTED
from heliograph.sms.dispatch import explaining
from heliograph.sms.intervening import whose


class MessageNotWaiting(Refusal):
    """This message needs no supplier: one has it, it has ended, or it waits for its time, a hold or the guard."""

    code, status = "message_not_waiting", 409


class MayNotArriveTwice(Refusal):
    """A supplier may have this message, and its sender asked that it never arrive twice. It is not sent again."""

    code, status = "may_not_arrive_twice", 409


class NoOtherSupplier(Refusal):
    """No other supplier can take this message now."""

    code, status = "no_other_supplier", 409


# Looked up by id, as in `queue.leases`. Waits for a worker that is deciding about it right now.
WAITING = f"""
SELECT queue.ctid AS place, line, attempt, target_id, passed FROM queue
 WHERE id = $1 AND organization_id = $2 AND kind || '' = 'sms' AND begun_at IS NULL
   AND (lease_until IS NULL OR lease_until < now()) AND {NOT_PUT_OFF}
   FOR UPDATE
"""
# True if in doubt: whether it arrived, or whether the segments that the supplier has will be completed there.
LAST = """
SELECT a.state = 'unknown' OR EXISTS (SELECT FROM sms_parts
                                       WHERE message_id = $2 AND attempt = coalesce(a.continues, a.attempt)) AS doubtful
  FROM attempts a WHERE a.organization_id = $1 AND a.message_id = $2 ORDER BY a.attempt DESC LIMIT 1
"""
REFUSED = """
SELECT target_id FROM attempts WHERE organization_id = $1 AND message_id = $2 AND state = 'refused'
"""
NAMES = "SELECT id, name FROM suppliers WHERE id = ANY ($1)"
# Counts one more try: only for messages tried again does a worker read the suppliers passed over (`claimed.PASSED`).
TO_OTHERS = """
UPDATE queue SET passed = $2, line = $3, due_at = now(), since = NULL, lease_until = NULL, lease_token = NULL,
                 tries = least(tries, 9999) + 1
 WHERE ctid = $1
"""


async def send_elsewhere(
    conn: Connection, by: Principal, *, id: UUID, reason: str, may_arrive_twice: bool = False
) -> tuple[str, list[str]]:
    """Send a message that waits for a supplier, or whose attempt there is in doubt, through another one now.

    `reason`: as for `giving_up.give_up`. `may_arrive_twice`: required if the supplier may have it. Returns the names of
    the passed-over supplier and of those that can take the message, in order. Raises NotFound, Invalid (fields `reason`
    and `may_arrive_twice`), MessageNotWaiting, MayNotArriveTwice, NoOtherSupplier.
    """
    reason = reasons.for_organization(reason)
    found = await whose.find(conn, by, id=id)
    organization_id = found.actor.organization_id
    async with conn.transaction():
        row = await conn.fetchrow(WAITING, id, organization_id)
        if row is None or found.actor.mode != "live":
            raise MessageNotWaiting
        over = await _waited_for(conn, row["line"], row["target_id"] if row["attempt"] else None)
        if over is None:
            raise MessageNotWaiting
        is_doubtful = bool(row["attempt"] and await conn.fetchval(LAST, organization_id, id))
        if is_doubtful and found.guarantee == "at_most_once":
            raise MayNotArriveTwice
        if is_doubtful and not may_arrive_twice:
            raise Invalid(
                ("may_arrive_twice", "required", "A supplier may have it. Confirm that it may arrive twice, or wait.")
            )
        passed = list(dict.fromkeys([*(row["passed"] or ()), over[0]]))
        refused = [one["target_id"] for one in await conn.fetch(REFUSED, organization_id, id)]
        without = {one["name"] for one in await conn.fetch(NAMES, [*passed, *refused])}
        able = await explaining.explain(
            conn,
            found.recipient,
            organization_id=organization_id,
            organization=found.organization,
            sender=found.sender,
            traffic_class=found.traffic_class,
        )
        others = [name for name in able.suppliers if name not in without]
        if not others:
            raise NoOtherSupplier
        await conn.execute(TO_OTHERS, row["place"], passed, UNROUTED)
        after = {"may_arrive_twice": is_doubtful}
        await audit.record(conn, found.actor, "message.sent_elsewhere", object_id=id, after=after, reason=reason)
    return over[1], others


async def _waited_for(conn: Connection, line: UUID, target_id: UUID | None) -> tuple[UUID, str] | None:
    """The supplier that a message waits for, with its name; None if there is none. Its line takes precedence over the
    last attempt: a worker has put it there since."""
    names = {row["id"]: row["name"] for row in await conn.fetch(NAMES, [line, *filter(None, [target_id])])}
    return next(((one, names[one]) for one in (line, target_id) if one is not None and one in names), None)
