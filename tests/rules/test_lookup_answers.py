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
from heliograph.base.process.settings import SettingsError
from heliograph.networks import asked
from heliograph.networks.directory import Directory
from heliograph.routes.lookup import Choice, Route
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.sms.lookups import accounts, asking
from heliograph.sms.lookups.asking import Lookups
from heliograph.suppliers.http.kind import SECRET
from heliograph.suppliers.lookups import kinds
from heliograph.suppliers.lookups.kind import LookupAnswer
from heliograph.suppliers.lookups.kinds import LookupClient
from tests.wire import COMMIT, wired_pool

KEY = derive_key(("a secret key of thirty-two characters",), "suppliers")
API_KEY = "an API key"
NUMBER = 258841230002
ROUTES = [Route(id=uuid7(), name="network", network="643-03", choices=(Choice(uuid7()),))]
PRICED: dict[str, Any] = {"base_url": "https://x1y2z3.api.infobip.com", "price": "0.003", "currency": "EUR"}
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
    priced = PRICED | {"base_url": aggregator.base_url} | values
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
    async with wired_pool(database_url) as (line, weak):
        lookups = await ready(weak, aggregator)
        line.end_at(b"answered_at = now()")
        async with asyncio.timeout(LONG):
            assert await lookups.round() == 1
        await lookups.close()
    assert await row(pool) == ("found", "643-03", 1, 3_000)
    assert aggregator.looked_up == [str(NUMBER)]


async def test_an_answer_of_which_the_commit_was_not_heard_is_counted_once(
    pool: Pool, database_url: str, aggregator: Aggregator
) -> None:
    async with wired_pool(database_url) as (line, weak):
        lookups = await ready(weak, aggregator)
        (account,) = lookups._accounts
        line.lose_answer(COMMIT)
        async with asyncio.timeout(LONG):
            assert await lookups._store(account, [NUMBER], {NUMBER: "643-03"}, error="") == []
        await lookups.close()
    async with pool.acquire() as conn:
        (spent,) = await asked.spent(conn)
    assert (spent.charged, spent.price) == (1, 3_000)


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


def test_a_worker_is_done_with_its_numbers_before_another_may_ask_for_them() -> None:
    """After a minute or two without a database, another worker asked again while the first one still had the answer."""
    longest = 60
    with pytest.raises(SettingsError, match="response_seconds"):
        kinds.settings_from("infobip", PRICED | {"response_seconds": longest + 1})
    assert asking.BEGIN + longest + 2 * asking.STORE < asked.TAKEN.total_seconds()


async def test_a_number_that_is_being_looked_up_is_not_given_up(pool: Pool, aggregator: Aggregator) -> None:
    """After a queue of ten minutes, its answer was paid but not counted, and it was asked for again an hour later."""
    lookups = await ready(pool, aggregator)
    (account,) = lookups._accounts
    async with pool.acquire() as conn:
        assert await asked.take(conn, account.id, limit=1) == [NUMBER]
        await conn.execute("UPDATE number_lookups SET asked_at = asked_at - $1::interval", asked.NOBODY)
        await asked.give_up(conn)
        assert (await row(pool))[0] == "asked"
        await conn.execute("UPDATE number_lookups SET taken_until = now()")
        await asked.give_up(conn)
        assert (await row(pool))[0] == "failed"
    await lookups.close()


async def test_an_answer_about_somebody_who_was_erased_meanwhile_is_paid_and_nothing_of_it_is_kept(
    pool: Pool, aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number and its network were stored again, for 90 days, and its price was not counted."""
    lookups = await ready(pool, aggregator)
    asks = LookupClient.ask

    async def ask(self: LookupClient, *given: Any, **also: Any) -> LookupAnswer:
        async with pool.acquire() as conn:
            await asked.forget(conn, [f"+{NUMBER}"])
        return await asks(self, *given, **also)

    monkeypatch.setattr(LookupClient, "ask", ask)
    assert await lookups.round() == 1
    await lookups.close()
    assert await pool.fetchval("SELECT count(*) FROM number_networks") == 0
    assert await pool.fetchval("SELECT max(number) < 0 FROM number_lookups")
    async with pool.acquire() as conn:
        (spent,) = await asked.spent(conn)
    assert (spent.charged, spent.price, spent.currency) == (1, 3_000, "EUR")


async def test_what_two_workers_were_told_is_paid_twice_and_counted_twice(pool: Pool, aggregator: Aggregator) -> None:
    """One of them was presumed dead. Only the first answer was counted."""
    lookups = await ready(pool, aggregator)
    (account,) = lookups._accounts
    async with pool.acquire() as conn:
        for _ in range(2):
            assert await asked.take(conn, account.id, limit=1) == [NUMBER]
            await conn.execute("UPDATE number_lookups SET taken_until = now()")
        for told in ("643-03", "643-04"):
            await lookups._store(account, [NUMBER], {NUMBER: told}, error="")
        (spent,) = await asked.spent(conn)
        known = await conn.fetch("SELECT number, network FROM number_networks")
    await lookups.close()
    assert (spent.charged, spent.price) == (2, 6_000)
    assert [tuple(one) for one in known] == [(NUMBER, "643-03")]
