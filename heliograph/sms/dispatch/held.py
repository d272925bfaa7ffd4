"""Messages that wait beyond their deadline and that no worker takes: held by the guard, held by an operator, or
postponed with their campaign. They expire, so that their sender is notified.

The rule nobody may break: a held message ends only by its own deadline, by its sender, or by an operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.retry import SUBMIT_HORIZON
from heliograph.guard import holds
from heliograph.queue import leases, stalled, timers
from heliograph.queue.backlog import RESTORED
from heliograph.queue.leases import GUARDED, PARKED, Lease, Postponed
from heliograph.sealing import text_keys
from heliograph.sending.attempts import MAY_HAVE_ARRIVED
from heliograph.sms.accepting import withdrawal
from heliograph.sms.accepting.withdrawal import Unsent
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.dispatch.outcomes import EXPIRED, deadline
from heliograph.sms.status import OUTCOME_UNKNOWN, Move, move_many

#: An SQL condition: there are held messages.
ANY = f"EXISTS (SELECT FROM queue WHERE kind = 'sms' AND line = '{GUARDED}')"
#: The timer that expires messages that an operator holds or that are postponed.
TIMER = "sms stalled"
#: A one-time code held for this long is no longer of any use.
CODES = timedelta(minutes=10)
#: Messages per step.
STEP = 1000

# By `due_at`, so that only those past their deadline are read, in its order (nothing else is due in five years); the
# other conditions on `queue` are written so that no index matches. The message decides.
PAST = f"""
SELECT past.*
  FROM (SELECT queue.organization_id, queue.id
          FROM queue CROSS JOIN LATERAL (
               SELECT accepted_at, expires_at, send_at, class FROM messages
                WHERE organization_id = queue.organization_id AND id = queue.id LIMIT 1) m
         CROSS JOIN LATERAL (
               SELECT held_at FROM guard_held
                WHERE organization_id = queue.organization_id AND message_id = queue.id LIMIT 1) d
         WHERE queue.due_at > now() + $5::interval / 2 AND queue.due_at <= now() + $5
           AND queue.organization_id <> ALL ($6)
           AND queue.kind || '' = 'sms' AND queue.line IS NOT DISTINCT FROM $1 AND NOT {RESTORED}
           AND least(coalesce(m.expires_at, greatest(m.send_at, m.accepted_at) + $2::interval),
                     CASE m.class WHEN 'otp' THEN d.held_at + $4::interval END) <= now()
         ORDER BY queue.due_at LIMIT $3) past
 ORDER BY past.id
"""
SEGMENTS = "SELECT id, segments FROM messages WHERE organization_id = $1 AND id = ANY ($2) ORDER BY id"


def hold(message: ClaimedMessage) -> Postponed:
    """Put a message into the line of those that the guard holds, where `expire` finds it once it is past its
    deadline."""
    until = deadline(message.accepted_at, message.expires_at)
    if message.traffic_class == "otp":
        until = min(until, message.at + CODES)
    return Postponed(message.lease, (until - message.at + PARKED).total_seconds(), GUARDED, counts=False)


async def expire(conn: Connection) -> int:
    """Expire messages past their deadline that the guard holds; returns how many webhook deliveries were queued. Those
    of organizations whose rows somebody keeps locked are left for the next time."""

    async def end(some: Sequence[tuple[UUID, UUID]]) -> int:
        gone = await leases.withdraw(conn, "sms", [id for _, id in some], only="untried")
        return await _expired(conn, {id: organization_id for organization_id, id in some if id in gone})

    async def due(without: Sequence[UUID]) -> list[tuple[UUID, UUID]]:
        rows = await conn.fetch(PAST, GUARDED, timedelta(seconds=SUBMIT_HORIZON), STEP, CODES, PARKED, without)
        return [tuple(row) for row in rows]

    return sum(await timers.end_due(conn, due, end, limit=STEP))


async def expire_stalled(conn: Connection) -> int:
    """Expire the next messages past their deadline that an operator holds, or whose campaign is paused; returns how
    many webhook deliveries were queued. A message that a supplier may have is left to the worker that establishes its
    outcome."""

    async def end(past: Sequence[tuple[UUID, UUID]]) -> int:
        # As in dispatch, a message whose text cannot be opened waits until it can.
        owners = await text_keys.openable(conn, past)
        gone = await withdrawal.take_unsent(conn, owners) if owners else set()
        return await _expired(conn, {id: owners[id] for id in gone})

    return sum(await stalled.end_expired(conn, "sms", TIMER, condition=EXPIRED, end=end))


async def _expired(conn: Connection, owners: Mapping[UUID, UUID]) -> int:
    at = clock.now()
    moves = [Move(organization_id, id, "expired", at, "expired", unsent=True) for id, organization_id in owners.items()]
    return (await move_many(conn, moves)).deliveries


# As `ClaimedMessage.was_unknown`, and whether news of its last attempt may still come.
TRIED = f"""
SELECT coalesce(bool_or(state IN {MAY_HAVE_ARRIVED}), false) AS in_doubt,
       coalesce(max(started_at) FILTER (WHERE state = 'unknown') + $3::interval > now(), false) AS waits
  FROM attempts WHERE organization_id = $1 AND message_id = $2
"""


async def expire_one(conn: Connection, lease: Lease, *, grace: float) -> int | None:
    """End a picked message about which no decision is possible, and of which no attempt is under way, if it is past its
    deadline: as `expired`, or, if a supplier may have it and no news has come for `grace` seconds, as `unknown`.

    Returns how many webhook deliveries were queued; None: it was left alone. Runs in the caller's transaction.
    """
    one = (lease.organization_id, lease.id)
    if not await stalled.is_expired(conn, *one, condition=EXPIRED) or not await text_keys.openable(conn, [one]):
        return None
    tried = await conn.fetchrow(TRIED, *one, timedelta(seconds=grace))
    assert tried is not None
    if tried["waits"]:
        return None
    await leases.finish_picked(conn, [lease])
    status, code = ("unknown", OUTCOME_UNKNOWN) if tried["in_doubt"] else ("expired", "expired")
    return (await move_many(conn, [Move(*one, status, clock.now(), code, unsent=True)])).deliveries


async def withdraw(conn: Connection, hold_id: UUID, *, at: datetime, by: Principal) -> int:
    """Cancel and refund the messages of one hold; returns how many. Raises NotFound."""
    gone = 0
    one = await holds.get(conn, hold_id)
    while ids := await holds.waiting(conn, one, limit=STEP):
        async with conn.transaction():
            segments = await conn.fetch(SEGMENTS, one.organization_id, ids)
            unsent = [Unsent(one.organization_id, row["id"], row["segments"]) for row in segments]
            done = await withdrawal.withdraw(conn, unsent, at=at, reason="withdrawn by the operator")
            await audit.record(
                conn,
                by,
                "guard.withdrawn",
                object_id=one.id,
                organization_id=one.organization_id,
                after={"messages": len(done)},
            )
        gone += len(done)
        if not done:
            break
    return gone
