"""What a worker does for contacts: it finishes changes of tags that nobody waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from heliograph.base.database.pool import Pool
from heliograph.contacts import tags
from heliograph.queue.work import Loop, Work


class ContactWork(Work):
    """Contacts within one worker."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._tags = asyncio.Event()

    def loops(self) -> Sequence[Loop]:
        return (Loop("tags", self._change_tags, self._tags, when=tags.ANY),)

    async def _change_tags(self) -> int:
        async with self._pool.acquire() as conn, conn.transaction():
            return await tags.step(conn)
