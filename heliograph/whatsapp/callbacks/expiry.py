"""Messages that Meta has dropped: it reports nothing when a message's lifetime ends, and documents that clients should
assume that it was dropped.

A message without a delivery or failure by its deadline (its lifetime plus a buffer) has failed as `expired`, and its
reservation is released. The rule nobody may break: a later delivery still counts, for state and for money.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.queue import leases, timers
from heliograph.queue.backlog import RESTORED
from heliograph.sending import attempts
from heliograph.whatsapp.callbacks import matching
from heliograph.whatsapp.dispatch import outcomes
from heliograph.whatsapp.money.rates import RateBook
from heliograph.whatsapp.status import Move, move_many

#: Name of the timer.
TIMER = "whatsapp expiry"
#: Messages expired in one step.
BATCH = 1000

#: An SQL condition: `sweep` may have something to do.
ANY_DUE = """
EXISTS (SELECT FROM whatsapp_messages WHERE event_id IS NULL AND deadline_at <= now())
OR EXISTS (SELECT FROM whatsapp_early_statuses)
"""
# Open messages have raised no event yet, and canceled ones have no deadline: see the index. Messages held since a
# restore may have been sent, and Meta does not repeat the statuses that it reported after the backup.
DUE = f"""
SELECT organization_id, id FROM whatsapp_messages m
 WHERE event_id IS NULL AND deadline_at <= now()
   AND organization_id <> ALL ($2)
   AND NOT ((SELECT EXISTS (SELECT FROM queue_holds WHERE restored)) AND EXISTS (
       SELECT FROM queue WHERE queue.id = m.id AND queue.kind || '' = '{matching.KIND}' AND {RESTORED}))
 ORDER BY deadline_at LIMIT $1
"""
# They are looked for as long as they are new, and their messages may be locked for longer.
STILL_NEW = """
UPDATE whatsapp_early_statuses e SET received_at = now()
  FROM (SELECT early.* FROM unnest($1::uuid[], $2::text[]) AS place (number_id, wamid) CROSS JOIN LATERAL (
               SELECT number_id, wamid, status FROM whatsapp_early_statuses
                WHERE number_id = place.number_id AND wamid = place.wamid FOR UPDATE SKIP LOCKED) early) free
 WHERE e.number_id = free.number_id AND e.wamid = free.wamid AND e.status = free.status
"""


async def sweep(conn: Connection, rates: RateBook) -> tuple[int, int]:
    """Expire messages past their deadline, and apply early statuses that were missed. Messages of organizations whose
    rows somebody keeps locked, as in an open session, are left for the next time.

    Also deletes the queue rows of expired messages: their number may never send again. Returns how many expired, and
    the number of webhook deliveries queued.
    """
    early: dict[tuple[UUID, UUID], list[tuple[UUID, str]]] = {}
    for place, message in (await matching.missed(conn)).items():
        early.setdefault(message, []).append(place)

    async def adopt(some: Sequence[tuple[UUID, UUID]]) -> int:
        found = await matching.adopt_early(conn, {place: one for one in some for place in early[one]})
        announce = await matching.announced(conn, found.moves)
        moved, deliveries = await move_many(conn, found.moves, rates=rates, announce=announce)
        return deliveries + await outcomes.apply_wider_failures(conn, found.wider_failures, moved, heard=found.heard)

    async def due(without: Sequence[UUID]) -> list[tuple[UUID, UUID]]:
        return [tuple(row) for row in await conn.fetch(DUE, BATCH, [*waiting, *without])]

    async def expire(some: Sequence[tuple[UUID, UUID]]) -> tuple[int, int]:
        withdrawn = await leases.withdraw(conn, matching.KIND, [id for _, id in some], only="all")
        await attempts.mark_unknown(conn, [lease for lease in withdrawn.values() if lease.begun_at is not None])
        at = clock.now()
        expired = [Move(*one, "failed", at, "expired") for one in some]
        _, deliveries = await move_many(conn, expired, rates=rates)
        return len(some), deliveries

    # Whose early statuses wait for a lock may have been delivered.
    adopted, waiting = await timers.end_by_organization(conn, list(early), adopt)
    left = [place for (organization_id, _), places in early.items() if organization_id in waiting for place in places]
    if left:
        await conn.execute(STILL_NEW, [number_id for number_id, _ in left], [wamid for _, wamid in left])
    ended = await timers.end_due(conn, due, expire, limit=BATCH)
    return sum(count for count, _ in ended), sum(adopted) + sum(deliveries for _, deliveries in ended)
