"""Answers to look-ups are paid for, so they are stored, even if the worker stops or the database is away meanwhile."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.ids import uuid7
from heliograph.networks import asked
from heliograph.networks.directory import Directory
from heliograph.routes.lookup import Choice, Route
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.sms.lookups import accounts, asking
from heliograph.sms.lookups.asking import Lookups
from heliograph.suppliers.http.kind import SECRET
from heliograph.suppliers.lookups.kind import LookupAnswer
from heliograph.suppliers.lookups.kinds import LookupClient
from tests.wire import wire

KEY = derive_key(("a secret key of thirty-two characters",), "suppliers")
API_KEY = "an API key"
NUMBER = 258841230002
ROUTES = [Route(id=uuid7(), name="network", network="643-03", choices=(Choice(uuid7()),))]
#: Longer than anything here takes.
LONG = 60.0


@pytest.fixture
async def aggregator() -> AsyncIterator[Aggregator]:
    made = Aggregator(Options(profile="infobip", secret=API_KEY, networks={str(NUMBER): "64303"}))
    await made.start()
    yield made
    await made.stop()


async def ready(pool: Pool, aggregator: Aggregator, **values: Any) -> Lookups:
    """A worker's look-ups, with one number waiting."""
    priced = {"base_url": aggregator.base_url, "price": "0.003", "currency": "EUR"} | values
    async with pool.acquire() as conn:
        id = await accounts.add(conn, KEY, name="mnp", kind="infobip", values=priced, secrets={SECRET: API_KEY})
        assert await asked.ask(conn, {NUMBER: id})
    lookups = Lookups(pool, KEY, Directory())
    await lookups.refresh(pool, ROUTES)
    return lookups


async def row(pool: Pool) -> tuple[Any, ...]:
    return tuple(await pool.fetchrow("SELECT state, network, times, price FROM number_lookups") or ())


async def test_an_answer_that_comes_during_a_stop_is_stored(
    pool: Pool, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, goes_on = asyncio.Event(), asyncio.Event()
    original = LookupClient.ask

    async def slow(self: LookupClient, numbers: Sequence[str], **also: Any) -> LookupAnswer:
        found = await original(self, numbers, **also)
        answered.set()
        await goes_on.wait()
        return found

    monkeypatch.setattr(LookupClient, "ask", slow)
    # So slow an account that it would not be asked again for longer than the test may take.
    lookups = await ready(pool, aggregator, per_second=0.001)
    round = asyncio.create_task(lookups.round())

    async def end() -> None:
        """As the worker does."""
        await lookups.stop(grace=LONG)
        round.cancel()
        await asyncio.gather(round, return_exceptions=True)
        await lookups.close()

    async with asyncio.timeout(LONG):
        await answered.wait()
        ending = asyncio.create_task(end())
        await asyncio.sleep(0.1)
        goes_on.set()
        await ending
    assert await row(pool) == ("found", "643-03", 1, 3_000)


async def test_an_answer_is_stored_once_the_database_is_back(
    pool: Pool, database_url: str, aggregator: Aggregator
) -> None:
    async with wire(database_url) as (line, through):
        weak = await open_pool(through, size=2)
        try:
            lookups = await ready(weak, aggregator)
            line.end_at(b"answered_at = now()")
            async with asyncio.timeout(LONG):
                assert await lookups.round() == 1
            await lookups.close()
        finally:
            weak.terminate()
    assert await row(pool) == ("found", "643-03", 1, 3_000)
    assert aggregator.looked_up == [str(NUMBER)]


async def test_nothing_is_asked_after_a_stop(pool: Pool, aggregator: Aggregator) -> None:
    lookups = await ready(pool, aggregator)
    await lookups.stop(grace=LONG)
    assert await lookups.round() == 0
    await lookups.close()
    assert aggregator.looked_up == []
    assert (await row(pool))[0] == "asked"


async def test_a_worker_that_stood_still_leaves_its_numbers_to_others(
    pool: Pool, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker looks them up by then, and both are paid for."""
    lookups = await ready(pool, aggregator)
    times = itertools.chain([0.0], itertools.repeat(asked.TAKEN.total_seconds() + 1))
    monkeypatch.setattr(asking, "monotonic", lambda: next(times))
    assert await lookups.round() == 1
    await lookups.close()
    assert aggregator.looked_up == []
    assert await row(pool) == ("asked", "", 0, 0)


async def test_an_answer_whose_row_is_locked_holds_up_no_other(
    pool: Pool, database_url: str, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two minutes, all that had been answered together was lost, paid for again, and until then nothing was asked
    for."""
    monkeypatch.setattr(asking, "LOCKED_PAUSE", 0.01)
    hasty = await open_pool(database_url, size=4, statement=2.0)
    try:
        lookups = await ready(hasty, aggregator)
        (account,) = lookups._accounts
        free = NUMBER + 1
        async with pool.acquire() as conn, conn.transaction():
            await asked.ask(conn, {free: account.id})
        states = "SELECT array_agg(state ORDER BY number) FROM number_lookups"
        async with asyncio.timeout(LONG), pool.acquire() as open_session:
            asks = LookupClient.ask

            async def ask(self: LookupClient, *given: Any, **also: Any) -> LookupAnswer:
                """Somebody locks the row meanwhile."""
                await open_session.execute("BEGIN")
                await open_session.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                await open_session.execute("SELECT FROM number_lookups WHERE number = $1 FOR UPDATE", NUMBER)
                return await asks(self, *given, **also)

            monkeypatch.setattr(LookupClient, "ask", ask)
            await lookups.round()
            assert await pool.fetchval(states) == ["asked", "unknown"]
            await open_session.execute("ROLLBACK")
            await lookups.stop(grace=LONG)
        await lookups.close()
    finally:
        hasty.terminate()
    assert await pool.fetchval(states) == ["found", "unknown"]
    assert len(aggregator.looked_up) == 2
