"""Withdraws the messages that wait for a person who is erased: they are canceled and refunded, as usual.

A message that a worker is handing over is left to that worker. The rule nobody may break: messages are withdrawn before
their texts are erased, or a worker would end them as expired.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import asyncpg

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.privacy import naming
from heliograph.queue.holds import AlreadyAttempted
from heliograph.sms.accepting import withdrawal as sms
from heliograph.sms.accepting.withdrawal import Unsent
from heliograph.whatsapp.accepting import withdrawal as whatsapp

#: How often a step is tried if workers move one of its messages concurrently.
TRIES = 3
#: Recorded in the ledger with the refund of an SMS.
REASON = "recipient erased"


WAITING_SMS = "SELECT id, segments FROM messages WHERE organization_id = $1 AND id = ANY ($2) AND status = 'accepted'"


async def sms_of(conn: Connection, actor: Actor, ids: Sequence[UUID]) -> int:
    """Cancel and refund those of these SMS that wait and that no supplier can have; returns how many."""

    async def step() -> int:
        rows = await conn.fetch(WAITING_SMS, actor.organization_id, ids)
        unsent = [Unsent(actor.organization_id, row["id"], row["segments"]) for row in rows]
        return len(await sms.withdraw(conn, unsent, at=clock.now(), reason=REASON)) if unsent else 0

    return await _tried(conn, step)


WAITING_WHATSAPP = f"""
SELECT id FROM whatsapp_messages
 WHERE organization_id = $1 AND recipient = ANY ($2) AND direction = 'outbound' AND status = 'accepted'
   AND {naming.stored_under("recipient", 2)}
"""


async def whatsapp_of(conn: Connection, actor: Actor, periods: tuple[list[str], list[UUID], list[UUID]]) -> int:
    """Cancel the WhatsApp messages that wait for a person and that Meta cannot have, and release the amounts reserved
    for them; returns how many. `periods`: the person's names, from `naming.periods`."""

    async def step() -> int:
        rows = await conn.fetch(WAITING_WHATSAPP, actor.organization_id, *periods)
        unsent = [(actor.organization_id, row["id"]) for row in rows]
        return len(await whatsapp.withdraw(conn, unsent, at=clock.now())) if unsent else 0

    return await _tried(conn, step)


async def _tried(conn: Connection, step: Callable[[], Awaitable[int]]) -> int:
    """Run a step in a transaction of its own, again if a worker was faster. Messages that workers keep taking are left
    to them."""
    for _ in range(TRIES):
        try:
            async with conn.transaction():
                return await step()
        except (AlreadyAttempted, asyncpg.DeadlockDetectedError):
            continue
    return 0
