"""The work of contacts: a worker advances imports of uploaded files and changes of tags that nobody waited for, and
determines when contacts were last written to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.contacts import recency, tags
from heliograph.contacts.imports import running
from heliograph.contacts.imports.running import Kind, Runner
from heliograph.queue.work import Loop, SharedTimer, Work


class ContactWork(Work):
    """The contacts' work in one worker."""

    def __init__(self, pool: Pool, settings: Settings, kinds: Mapping[str, Kind]) -> None:
        """`kinds`: kinds of imports other than contacts."""
        self._pool = pool
        self._runner = Runner(pool, kinds, lease=timedelta(seconds=settings.lease_seconds))
        self._tags, self._imports = asyncio.Event(), asyncio.Event()

    def loops(self) -> Sequence[Loop]:
        return (
            Loop("imports", self._runner.round, self._imports, when=running.ANY),
            Loop("tags", self._change_tags, self._tags, when=tags.ANY),
        )

    def timers(self) -> Sequence[SharedTimer]:
        return (SharedTimer(recency.TIMER, recency.read, recency.EVERY, in_steps=True),)

    async def close(self) -> None:
        await self._runner.close()

    async def _change_tags(self) -> int:
        async with self._pool.acquire() as conn, conn.transaction():
            return await tags.step(conn)
