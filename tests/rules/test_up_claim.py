"""One `heliograph up` at a time uses a database, from whatever machine, and through whatever address."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from heliograph.base.database.migrate import holder
from heliograph.base.network.connecting import Connector, Raw
from heliograph.base.process.settings import Settings
from heliograph.up import claim as claiming
from heliograph.up.claim import KEY, TAKE, claim
from heliograph.up.errors import UpError
from tests.processes import until, until_true


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_second_one_is_refused_until_the_first_has_ended(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another machine, or by another name of this one, it revoked the keys of the first, and left its supplier
    without an SMSC."""
    monkeypatch.setattr(claiming, "PATIENCE", 0.2)
    settings = Settings(database_url=database_url)
    first = await claim(settings, print)
    try:
        other = Settings(database_url=database_url.replace("127.0.0.1", "localhost"))
        with pytest.raises(
            UpError, match=r"another `heliograph up` from \S+ \(process \d+ in pg_stat_activity\) is running"
        ):
            await claim(other, print)
    finally:
        await ended(first)
    monkeypatch.setattr(claiming, "PATIENCE", 60.0)
    await ended(await claim(other, print))


async def test_it_is_taken_again_after_the_database_was_away_and_another_one_is_named(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "PAUSE", 0.01)
    monkeypatch.setattr(claiming, "GONE", 0.0)
    connected, may = claiming._connected, asyncio.Event()
    # As while no host of several is a primary yet.
    failing = [asyncpg.TargetServerAttributeNotMatched("no host is a primary")]

    async def connects(connector: Connector) -> Raw:
        await may.wait()
        if failing:
            raise failing.pop()
        return await connected(connector)

    said: list[str] = []
    conn = await asyncpg.connect(database_url)
    first = await claim(Settings(database_url=database_url), said.append)
    try:
        monkeypatch.setattr(claiming, "_connected", connects)
        await conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'heliograph up' AND datname = current_database()"
        )
        await until_true(lambda: conn.fetchval(TAKE, KEY))
        may.set()
        await until(lambda: said or first.done())
        ours = await holder(conn, KEY)
        assert said == [f"Another `heliograph up`{ours} is running on this database as well: stop one of the two."]
        await conn.execute("SELECT pg_advisory_unlock_all()")

        async def is_taken() -> bool:
            return await holder(conn, KEY) not in (None, ours)

        await until_true(is_taken)
    finally:
        await ended(first)
        await conn.close()
    assert len(said) == 1
