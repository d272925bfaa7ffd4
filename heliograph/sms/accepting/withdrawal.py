"""Withdrawing messages before a supplier has them: a single one that its sender cancels, those of a campaign, or
whatever an operator removes from the queue.

The rule nobody may break: a message is canceled only together with its queue row, so that it can never be sent
afterwards, and it is refunded in the same transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.accounts import quota
from heliograph.base.database.pool import Connection
from heliograph.queue import leases
from heliograph.queue.holds import AlreadyAttempted, Row, Withdrawn
from heliograph.queue.leases import Lease
from heliograph.sending import attempts
from heliograph.sending.attempts import MAY_HAVE_ARRIVED
from heliograph.sms.status import OUTCOME_UNKNOWN, Move, move_many


class Unsent(msgspec.Struct, frozen=True, gc=False):
    """A message that the caller believes to be `accepted`."""

    organization_id: UUID
    message_id: UUID
    segments: int


NOT_TAKEN = f"""
SELECT item.id FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id)
  LEFT JOIN LATERAL (
       SELECT attempt FROM attempts
        WHERE organization_id = item.organization_id AND message_id = item.id AND state IN {MAY_HAVE_ARRIVED}
        LIMIT 1) tried ON true
  LEFT JOIN LATERAL (SELECT part FROM sms_parts WHERE message_id = item.id LIMIT 1) known ON true
 WHERE tried.attempt IS NULL AND known.part IS NULL
"""


async def not_taken(conn: Connection, ids: Sequence[tuple[UUID, UUID]]) -> list[UUID]:
    """The ids of those messages, given as (organization, message), of which no supplier can have even a part."""
    rows = await conn.fetch(NOT_TAKEN, [organization_id for organization_id, _ in ids], [id for _, id in ids])
    return [row["id"] for row in rows]


# Looked up by id, as in `queue.leases`.
WAITING = """
SELECT id FROM queue
 WHERE id = ANY ($2) AND organization_id = $1 AND kind || '' = 'sms' AND (lease_until IS NULL OR lease_until < now())
   AND begun_at IS NULL
"""


async def cancelable(conn: Connection, organization_id: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Those of an organization's messages that `withdraw` would cancel now."""
    if not ids:
        return set()
    rows = await conn.fetch(WAITING, organization_id, list(ids))
    return set(await not_taken(conn, [(organization_id, row["id"]) for row in rows]))


async def withdraw(conn: Connection, unsent: Sequence[Unsent], *, at: datetime, reason: str) -> set[UUID]:
    """Of these messages, cancel and refund those that no worker has claimed: those that were never tried, and those
    that wait to be tried again because every supplier tried has deferred them or refused them as a whole.

    `reason` is recorded in the ledger. Runs in the caller's transaction. Returns the ids of those canceled. Raises
    AlreadyAttempted.
    """
    taken = await take_unsent(conn, {one.message_id: one.organization_id for one in unsent})
    canceled = [one for one in unsent if one.message_id in taken]
    moves = [Move(one.organization_id, one.message_id, "canceled", at, unsent=True) for one in canceled]
    moved = (await move_many(conn, moves)).ids
    if moved != taken:
        raise AlreadyAttempted
    if canceled:
        refunds = [(one.organization_id, one.message_id, one.segments) for one in canceled]
        await quota.refund_many(conn, refunds, reason)
    return taken


async def take_unsent(conn: Connection, owners: Mapping[UUID, UUID]) -> set[UUID]:
    """Delete the queue rows of those messages that no worker has claimed and no supplier can have; returns their ids.
    `owners`: organizations by message. Runs in the transaction that ends them."""
    taken = set(await leases.withdraw(conn, "sms", list(owners), only="untried"))
    if held := await leases.hold_ended(conn, "sms", [id for id in owners if id not in taken]):
        # Queried under the lock: recording the end of an attempt locks the queue row first.
        free = await not_taken(conn, [(owners[id], id) for id in held])
        taken.update(await leases.withdraw(conn, "sms", free, only="ended"))
    return taken


# LIMIT keeps each look-up a look-up, even in a plan made while the table was empty.
STATES = """
SELECT item.organization_id, item.id, m.segments, coalesce(tried.attempt, 0) > 0 AS tried, now() AS at
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id) CROSS JOIN LATERAL (
       SELECT status, segments FROM messages WHERE organization_id = item.organization_id AND id = item.id LIMIT 1) m
  LEFT JOIN LATERAL (SELECT attempt FROM queue WHERE id = item.id AND kind || '' = 'sms' LIMIT 1) tried ON true
 WHERE m.status = 'accepted'
"""


async def withdraw_rows(conn: Connection, rows: Sequence[Row], *, tried: bool) -> Withdrawn:
    """Remove queue rows permanently: messages that no supplier can have are canceled and refunded.

    `tried`: also remove those that were tried and may have been sent. They become `unknown`, and are refunded if the
    installation refunds that. Runs in the caller's transaction. Raises AlreadyAttempted.
    """
    found = await conn.fetch(STATES, [row.organization_id for row in rows], [row.id for row in rows])
    if not found:
        return Withdrawn(left=len(rows))
    at = found[0]["at"]
    unsent = [Unsent(row["organization_id"], row["id"], row["segments"]) for row in found]
    canceled = await withdraw(conn, unsent, at=at, reason="withdrawn by the operator")
    ended: dict[UUID, Lease] = {}
    if tried:
        left = [row["id"] for row in found if row["tried"] and row["id"] not in canceled]
        ended = await leases.withdraw(conn, "sms", left, only="all")
        await attempts.mark_unknown(conn, [lease for lease in ended.values() if lease.begun_at is not None])
        moves = [
            Move(lease.organization_id, id, "unknown", at, OUTCOME_UNKNOWN, unsent=True) for id, lease in ended.items()
        ]
        moved = (await move_many(conn, moves)).ids
        if moved != ended.keys():
            raise AlreadyAttempted
    return Withdrawn(canceled=len(canceled), ended=len(ended), left=len(rows) - len(canceled) - len(ended))
