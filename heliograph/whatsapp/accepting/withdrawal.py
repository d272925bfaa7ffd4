"""Withdrawing WhatsApp messages that Meta does not have yet, by an operator or with their campaign.

The rule nobody may break: a message is canceled only together with its queue row, so that it can never be sent
afterwards, and only if Meta cannot have it. Its reservation is released by the move itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.queue import leases
from heliograph.queue.holds import AlreadyAttempted, Row, Withdrawn
from heliograph.queue.leases import Lease
from heliograph.sending import attempts
from heliograph.sending.attempts import MAY_HAVE_ARRIVED
from heliograph.whatsapp.status import Move, move_many

NOT_TAKEN = f"""
SELECT item.id FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id)
  LEFT JOIN LATERAL (
       SELECT attempt FROM attempts
        WHERE organization_id = item.organization_id AND message_id = item.id AND state IN {MAY_HAVE_ARRIVED}
        LIMIT 1) tried ON true
 WHERE tried.attempt IS NULL
"""


async def withdraw(conn: Connection, unsent: Sequence[tuple[UUID, UUID]], *, at: datetime) -> set[UUID]:
    """Cancel those of these messages, given as (organization, message) and believed to be `accepted`, that no worker
    has claimed and that Meta cannot have. Runs in the caller's transaction. Returns their ids. Raises
    AlreadyAttempted."""
    owners = {message_id: organization_id for organization_id, message_id in unsent}
    taken = await take_unsent(conn, owners)
    moved, _ = await move_many(conn, [Move(owners[id], id, "canceled", at) for id in taken], rates=None)
    if moved != taken:
        raise AlreadyAttempted
    return taken


async def take_unsent(conn: Connection, owners: Mapping[UUID, UUID]) -> set[UUID]:
    """Delete the queue rows of those of these messages, by id with their organization, that no worker has claimed and
    that Meta cannot have; returns their ids. Runs in the transaction that ends them."""
    # Queried under the lock: a transaction that records the end of an attempt locks the queue row first.
    held = await leases.hold_ended(conn, "whatsapp", list(owners))
    free = [row["id"] for row in await conn.fetch(NOT_TAKEN, [owners[id] for id in held], held)]
    return set(await leases.withdraw(conn, "whatsapp", free, only="ended"))


# Those that Meta has accepted are left alone: a late answer leaves the queue row, and the status, until Meta reports.
STATES = f"""
SELECT item.organization_id, item.id, under_way.id IS NOT NULL OR tried.attempt IS NOT NULL AS tried, now() AS at
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT status FROM whatsapp_messages WHERE organization_id = item.organization_id AND id = item.id LIMIT 1) m
  LEFT JOIN LATERAL (
       SELECT a.attempt, a.state FROM attempts a
        WHERE a.organization_id = item.organization_id AND a.message_id = item.id
          AND a.state IN {MAY_HAVE_ARRIVED} ORDER BY a.state LIMIT 1) tried ON true
  LEFT JOIN LATERAL (
       SELECT id FROM queue WHERE id = item.id AND kind || '' = 'whatsapp' AND begun_at IS NOT NULL LIMIT 1
       ) under_way ON true
 WHERE m.status = 'accepted' AND tried.state IS DISTINCT FROM 'accepted'
"""


async def withdraw_rows(conn: Connection, rows: Sequence[Row], *, tried: bool) -> Withdrawn:
    """Remove queue rows permanently: messages that cannot have reached Meta are canceled and cost nothing.

    `tried`: also messages that were tried and may have been sent. They fail as `unknown`; if Meta reports one later
    nevertheless, it is delivered and charged as usual. Runs in the caller's transaction. Raises AlreadyAttempted.
    """
    waiting = await conn.fetch(STATES, [row.organization_id for row in rows], [row.id for row in rows])
    if not waiting:
        return Withdrawn(left=len(rows))
    at = waiting[0]["at"]
    canceled = await withdraw(conn, [(row["organization_id"], row["id"]) for row in waiting if not row["tried"]], at=at)
    ended: dict[UUID, Lease] = {}
    if tried:
        ended = await leases.withdraw(conn, "whatsapp", [row["id"] for row in waiting if row["tried"]], only="all")
        await attempts.mark_unknown(conn, [lease for lease in ended.values() if lease.begun_at is not None])
        moves = [Move(lease.organization_id, id, "failed", at, "unknown", unsent=True) for id, lease in ended.items()]
        moved, _ = await move_many(conn, moves, rates=None)
        if moved != ended.keys():
            raise AlreadyAttempted
    return Withdrawn(canceled=len(canceled), ended=len(ended), left=len(rows) - len(canceled) - len(ended))
