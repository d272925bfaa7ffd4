"""Retries of dead letters: for operators, and by themselves once a number may be known.

The rule nobody may break: those without an owner, or that fail again, stay, and do not keep the others from their turn.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from time import monotonic
from uuid import UUID

import asyncpg
import structlog

from heliograph.base.crypto import Key
from heliograph.base.database.pool import BRIEFLY, Connection, Pool
from heliograph.sealing.text_keys import Sealing
from heliograph.suppliers.whatsapp_cloud.callbacks.items import MessageItem
from heliograph.whatsapp.callbacks import dead_letters
from heliograph.whatsapp.callbacks.dead_letters import StoredDeadLetter
from heliograph.whatsapp.callbacks.processing.applying import apply, blames_item
from heliograph.whatsapp.callbacks.processing.routing import Work, route
from heliograph.whatsapp.mirror import accounts
from heliograph.whatsapp.money.rates import RateBook

log = structlog.get_logger()

#: For how long one step of a timer retries dead letters, seconds: it holds their locks.
RETRY_SECONDS = 3.0
#: Items applied together, or, if one of them fails, each by itself.
TOGETHER = 100


async def retry(
    pool: Pool, key: Key, *, id: UUID | None = None, limit: int = 1000, seconds: float = math.inf
) -> tuple[int, int]:
    """Retry all dead letters, oldest first, or the one with an id: `limit` in each transaction, for about `seconds`.
    Returns how many were examined, and how many are settled."""
    deadline, rates = monotonic() + seconds, RateBook(pool)
    looked_at = settled = 0
    after = dead_letters.OLDEST
    while True:
        async with pool.acquire() as conn, conn.transaction():
            found = await dead_letters.take(conn, key, after=after, limit=limit, id=id)
            settled += (await _settle(conn, found, rates))[0]
        looked_at += len(found)
        if len(found) < limit or monotonic() >= deadline:
            return looked_at, settled
        after = found[-1].id


async def retry_awaited(
    conn: Connection,
    key: Key,
    rates: RateBook,
    *,
    below: UUID = dead_letters.NEWEST,
    limit: int = 1000,
    seconds: float = RETRY_SECONDS,
) -> tuple[int, UUID]:
    """Retry users' messages to numbers that may be known by now, newest first, `limit` at a time for about `seconds`,
    in the caller's transaction; returns the number of webhook deliveries queued, and the id below which to continue."""
    deadline = monotonic() + seconds
    deliveries = 0
    while found := await dead_letters.take_awaited(conn, key, below=below, limit=limit):
        deliveries += (await _settle(conn, found, rates))[1]
        below = found[0].id
        if monotonic() >= deadline:
            return deliveries, below
    return deliveries, dead_letters.NEWEST


async def _settle(conn: Connection, found: Sequence[StoredDeadLetter], rates: RateBook) -> tuple[int, int]:
    """Apply dead letters that have an owner; returns how many are settled, and the webhook deliveries queued. If a row
    stays locked, as by an open session, that one and its organization's later ones are left."""
    sealing = Sealing()
    await sealing.refresh(conn)
    items = [(one, item) for one in found if (item := one.item) is not None]
    routes = await accounts.routes(conn, list({item.waba_id for _, item in items}))
    owned: list[tuple[UUID, Work]] = []
    for one, item in items:
        work = route(item, one.app, one.received_at, routes)
        if isinstance(work, Work) and not (isinstance(item, MessageItem) and sealing.is_locked(work.organization_id)):
            owned.append((one.id, work))
    done: list[UUID] = []
    deliveries = 0
    left = deque(owned[place : place + TOGETHER] for place in range(0, len(owned), TOGETHER))
    locked: set[UUID] = set()
    while left:
        some = [one for one in left.popleft() if one[1].organization_id not in locked]
        if not some:
            continue
        try:
            queued = await _applied(conn, [work for _, work in some], rates, sealing)
        except asyncpg.LockNotAvailableError:
            queued = None
            if len(some) == 1:
                locked.add(some[0][1].organization_id)
        if queued is not None:
            done += [id for id, _ in some]
            deliveries += queued
        elif len(some) > 1:
            left.extendleft([one] for one in reversed(some))
    await dead_letters.delete(conn, done)
    return len(done), deliveries


async def _applied(conn: Connection, works: Sequence[Work], rates: RateBook, sealing: Sealing) -> int | None:
    """Apply all of these; returns the webhook deliveries queued. None: one of them fails, and nothing was done.
    Raises LockNotAvailableError if a row stays locked."""
    try:
        async with conn.transaction():
            await conn.execute(BRIEFLY)
            return await apply(conn, works, rates=rates, sealing=sealing, dropped=Counter())
    except Exception as error:
        if not blames_item(error):
            raise
        if len(works) == 1:
            log.warning("dead letter failed again", item=type(works[0].item).__name__, error=type(error).__name__)
        return None
