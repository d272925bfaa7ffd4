"""How much work waits, as console and command line tell it: what the queue knows of its rows, and what only the
channels know of the messages behind them.

The rule nobody may break: messages are looked up for rows that are counted, of which there are `waiting.LOOK` at most.
"""

from __future__ import annotations

from heliograph.base.database.pool import Connection
from heliograph.queue import waiting
from heliograph.queue.holds import Selection
from heliograph.queue.waiting import LOOK, PLACES, Found
from heliograph.sms.dispatch import outcomes as sms
from heliograph.whatsapp.dispatch import claimed as whatsapp

#: An SQL condition on a row of `queue`: its message is past its validity. Webhooks have none.
EXPIRED = f"CASE queue.kind WHEN 'sms' THEN {sms.EXPIRED} WHEN 'whatsapp' THEN {whatsapp.EXPIRED} END"


async def summary(conn: Connection, which: Selection, *, limit: int, look: int = LOOK, places: int = PLACES) -> Found:
    """Queued work by kind, line and organization, largest first: at most `limit` entries."""
    return await waiting.summary(conn, which, expired=EXPIRED, limit=limit, look=look, places=places)
