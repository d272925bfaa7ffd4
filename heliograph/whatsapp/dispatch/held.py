"""Messages that an operator holds, or whose campaign is paused, past their lifetime: no worker takes them, so they
expire here.

The rule nobody may break: what Meta may have is left to the worker that finds out.
"""

from __future__ import annotations

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.queue import stalled
from heliograph.sealing import text_keys
from heliograph.whatsapp.accepting import withdrawal
from heliograph.whatsapp.callbacks.matching import KIND
from heliograph.whatsapp.dispatch.claimed import EXPIRED
from heliograph.whatsapp.status import Move, move_many

#: Name of the timer.
TIMER = "whatsapp stalled"


async def expire(conn: Connection) -> int:
    """Expire the next of these messages; returns the webhook deliveries queued. Runs in the caller's transaction."""
    found = await stalled.expired(conn, KIND, TIMER, condition=EXPIRED)
    # As in dispatch, what cannot be opened here waits until it can.
    owners = await text_keys.openable(conn, found)
    gone = await withdrawal.take_unsent(conn, owners) if owners else []
    at = clock.now()
    moves = [Move(owners[id], id, "failed", at, "expired", unsent=True) for id in gone]
    _, deliveries = await move_many(conn, moves, rates=None)
    return deliveries
