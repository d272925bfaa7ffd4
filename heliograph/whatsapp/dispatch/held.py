"""Expires messages past their lifetime that an operator holds, or whose campaign is paused, as no worker takes them.

The rule nobody may break: a message that Meta may have is left to the worker, which finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.queue import stalled
from heliograph.queue.leases import Lease
from heliograph.sealing import text_keys
from heliograph.whatsapp.accepting import withdrawal
from heliograph.whatsapp.callbacks.matching import KIND
from heliograph.whatsapp.dispatch.claimed import EXPIRED
from heliograph.whatsapp.status import Move, move_many

#: Name of the timer.
TIMER = "whatsapp stalled"


async def expire(conn: Connection) -> int:
    """Expire the next of these messages; returns the webhook deliveries queued."""
    ended = await stalled.end_expired(conn, KIND, TIMER, condition=EXPIRED, end=partial(_end, conn))
    return sum(deliveries for _, deliveries in ended)


async def expire_one(conn: Connection, lease: Lease) -> int | None:
    """Expire a picked message about which nothing can be decided, if it is past its lifetime and Meta cannot have it.
    Returns the webhook deliveries queued; None: it was left alone. Runs in the caller's transaction."""
    one = (lease.organization_id, lease.id)
    ended, deliveries = await _end(conn, [one] if await stalled.is_expired(conn, *one, condition=EXPIRED) else [])
    return deliveries if ended else None


async def _end(conn: Connection, past: Sequence[tuple[UUID, UUID]]) -> tuple[int, int]:
    """(messages ended, webhook deliveries queued)"""
    # As in dispatch, messages that cannot be decrypted here wait until they can be.
    owners = await text_keys.openable(conn, past)
    gone = await withdrawal.take_unsent(conn, owners) if owners else set()
    at = clock.now()
    moves = [Move(owners[id], id, "failed", at, "expired", unsent=True) for id in gone]
    _, deliveries = await move_many(conn, moves, rates=None)
    return len(gone), deliveries
