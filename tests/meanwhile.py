"""Changes between two statements, at a certain moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from heliograph.base.database.pool import Pool
from tests.rules.factories import blocked

#: What is queued for webhook endpoints is delivered.
DELIVERED = """
WITH done AS (DELETE FROM queue WHERE kind = 'webhook' RETURNING *)
INSERT INTO webhook_attempts (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result,
                              detail)
SELECT organization_id, id, line, 1, now(), 5, 200, 'delivered', '' FROM done
"""


def in_this_loop(change: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    """A change that is made in this event loop, to whose connections it belongs, though it is awaited in a server's."""
    loop = asyncio.get_running_loop()

    async def made() -> object:
        return await change()

    async def awaited() -> object:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made(), loop))

    return awaited


def before(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, change: Callable[[], Awaitable[object]]) -> None:
    """Have `change` happen just before the next call of a function."""
    original = getattr(where, name)

    async def meanwhile(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(where, name, original)
        await change()
        return await original(*given, **named)

    monkeypatch.setattr(where, name, meanwhile)


def after(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, change: Callable[[], Awaitable[object]]) -> None:
    """Have `change` happen just after the next call of a function."""
    original = getattr(where, name)

    async def meanwhile(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(where, name, original)
        answer = await original(*given, **named)
        await change()
        return answer

    monkeypatch.setattr(where, name, meanwhile)


class Meanwhile:
    """A connection on which `change` happens just before a statement is executed, once it was `skips` times."""

    def __init__(self, conn: Any, statement: str, change: Callable[[], Awaitable[object]], *, skips: int = 0) -> None:
        self._conn, self._statement, self._change, self._left = conn, statement, change, skips

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    async def fetch(self, statement: str, *values: Any) -> Any:
        await self._passed(statement)
        return await self._conn.fetch(statement, *values)

    async def fetchval(self, statement: str, *values: Any) -> Any:
        await self._passed(statement)
        return await self._conn.fetchval(statement, *values)

    async def execute(self, statement: str, *values: Any) -> Any:
        await self._passed(statement)
        return await self._conn.execute(statement, *values)

    async def _passed(self, statement: str) -> None:
        if statement == self._statement:
            self._left -= 1
            if self._left == -1:
                await self._change()


async def begun(pool: Pool, work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Work that is done, or waits for a lock."""
    task = asyncio.ensure_future(work)
    lock = asyncio.ensure_future(blocked(pool))
    await asyncio.wait([task, lock], return_when=asyncio.FIRST_COMPLETED)
    lock.cancel()
    return task
