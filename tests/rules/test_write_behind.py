"""Values that are noted now and written a moment later: a write that fails ends neither the loop nor later ones."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from operator import add

import asyncpg
import pytest
from structlog.testing import capture_logs

from heliograph.base.database.batching import WriteBehind
from heliograph.base.database.pool import Connection, Pool
from tests.rules.factories import until


class Kept:
    """What was written; the first write fails with `error`."""

    def __init__(self, pool: Pool, error: Exception) -> None:
        self.errors = [error]
        self.written: dict[str, int] = {}
        self.noted: WriteBehind[str, int] = WriteBehind(
            pool, self._write, every=0.01, most=10, merged=add, beyond=lambda key: None
        )

    async def _write(self, conn: Connection, values: Mapping[str, int]) -> None:
        if self.errors:
            raise self.errors.pop()
        self.written |= values


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (ValueError("one of them cannot be written"), {"second": 2}),
        (asyncpg.DeadlockDetectedError(), {"first": 1, "second": 2}),
    ],
)
async def test_a_write_that_fails_does_not_end_the_loop(pool: Pool, error: Exception, kept: dict[str, int]) -> None:
    one = Kept(pool, error)
    one.noted.note("first", 1)
    with capture_logs() as said:
        running = asyncio.create_task(one.noted.run())
        try:
            await until(lambda: not one.errors)
            one.noted.note("second", 2)
            await until(lambda: one.written == kept or running.done())
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert one.written == kept
    assert [entry["event"] for entry in said] == ["noted values not written"] * ("first" not in kept)


async def test_what_is_being_written_when_its_process_ends_is_written_once(pool: Pool) -> None:
    """It was lost: the last write, at the end, found nothing noted yet."""
    began, goes_on = asyncio.Event(), asyncio.Event()
    written: list[dict[str, int]] = []

    async def write(conn: Connection, values: Mapping[str, int]) -> None:
        began.set()
        await goes_on.wait()
        written.append(dict(values))

    noted: WriteBehind[str, int] = WriteBehind(pool, write, every=0.01, most=10, merged=add, beyond=lambda key: None)
    noted.note("first", 1)
    running = asyncio.create_task(noted.run())
    await began.wait()
    noted.note("second", 2)
    # As `serve` ends.
    running.cancel()
    ending = asyncio.create_task(noted.write())
    await asyncio.gather(running, return_exceptions=True)
    goes_on.set()
    await ending
    assert written == [{"first": 1}, {"second": 2}]
