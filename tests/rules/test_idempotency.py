"""Idempotency of mutations: one transaction for claim, work and outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from heliograph.accounts.idempotency import Outcome, checked_key, key_hash, once, request_hash
from heliograph.accounts.requests import IdempotencyConflict, IdempotencyInProgress
from heliograph.base.actor import Actor
from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound, Unavailable
from heliograph.base.ids import uuid7

KEY = key_hash("live", "POST", "/things", "one")
REQUEST = request_hash({"a": 1})


@pytest.fixture
async def actor(as_owner: Callable[[str], Awaitable[None]]) -> Actor:
    await as_owner("CREATE TABLE things (name text); GRANT ALL ON things TO PUBLIC")
    return Actor(uuid7(), uuid7(), "live", frozenset(), "active")


class Hold:
    """A request that has claimed its key: it works until released."""

    def __init__(self) -> None:
        self.begun, self.over = asyncio.Event(), asyncio.Event()


async def make(
    pool: Pool,
    actor: Actor,
    name: str = "thing",
    *,
    key: UUID = KEY,
    request: bytes = REQUEST,
    hold: Hold | None = None,
    fail: bool = False,
    hours: int = 72,
    wait_seconds: float = 2.0,
    seal_key: bytes | None = None,
) -> Outcome:
    async with pool.acquire() as conn:

        async def run() -> tuple[int, bytes]:
            await conn.execute("INSERT INTO things VALUES ($1)", name)
            if hold is not None:
                hold.begun.set()
                await hold.over.wait()
            if fail:
                raise NotFound
            return 201, name.encode()

        return await once(
            conn,
            actor,
            key=key,
            request=request,
            hours=hours,
            wait_seconds=wait_seconds,
            run=run,
            seal_key=seal_key,
        )


async def things(pool: Pool) -> list[str]:
    return [row["name"] for row in await pool.fetch("SELECT name FROM things")]


async def test_the_second_one_gets_the_first_ones_outcome(pool: Pool, actor: Actor) -> None:
    assert await make(pool, actor, "first") == Outcome(201, b"first", False)
    assert await make(pool, actor, "second") == Outcome(201, b"first", True)
    assert await things(pool) == ["first"]


async def test_another_payload_is_a_conflict_and_another_organization_is_not(pool: Pool, actor: Actor) -> None:
    await make(pool, actor)
    with pytest.raises(IdempotencyConflict):
        await make(pool, actor, request=request_hash({"a": 2}))
    other = Actor(uuid7(), uuid7(), "live", frozenset(), "active")
    assert (await make(pool, other, "theirs")).replayed is False


async def test_a_refused_one_leaves_nothing_and_frees_its_key(pool: Pool, actor: Actor) -> None:
    with pytest.raises(NotFound):
        await make(pool, actor, "refused", fail=True)
    assert await things(pool) == []
    assert (await make(pool, actor, "again", request=request_hash({"a": 2}))).replayed is False


async def test_a_twin_waits_for_the_first_and_is_replayed(pool: Pool, actor: Actor) -> None:
    hold = Hold()
    first = asyncio.create_task(make(pool, actor, "first", hold=hold))
    await hold.begun.wait()
    twin = asyncio.create_task(make(pool, actor, "twin"))
    await waiting(pool)
    hold.over.set()
    assert await first == Outcome(201, b"first", False)
    assert await twin == Outcome(201, b"first", True)


async def test_a_twin_does_not_wait_for_ever(pool: Pool, actor: Actor) -> None:
    hold = Hold()
    first = asyncio.create_task(make(pool, actor, "first", hold=hold))
    await hold.begun.wait()
    with pytest.raises(IdempotencyInProgress) as refused:
        await make(pool, actor, "twin", wait_seconds=0.2)
    assert refused.value.headers == {"retry-after": "1"}
    hold.over.set()
    await first


async def test_a_table_that_somebody_holds_is_no_twin(pool: Pool, actor: Actor) -> None:
    async with pool.acquire() as holder, holder.transaction():
        await holder.execute("LOCK TABLE idempotency")
        with pytest.raises(Unavailable) as refused:
            await make(pool, actor, "alone", wait_seconds=0.1)
    assert refused.value.headers == {"retry-after": "1"}


async def test_a_twin_of_one_that_fails_does_the_work(pool: Pool, actor: Actor) -> None:
    hold = Hold()
    first = asyncio.create_task(make(pool, actor, "first", hold=hold, fail=True))
    await hold.begun.wait()
    twin = asyncio.create_task(make(pool, actor, "twin"))
    await waiting(pool)
    hold.over.set()
    with pytest.raises(NotFound):
        await first
    assert await twin == Outcome(201, b"twin", False)
    assert await things(pool) == ["twin"]


async def test_a_key_of_age_is_free_again(pool: Pool, actor: Actor) -> None:
    await make(pool, actor, "first")
    await pool.execute("UPDATE idempotency SET created_at = created_at - interval '73 hours'")
    assert (await make(pool, actor, "second", request=request_hash({"a": 2}))).replayed is False
    assert (await make(pool, actor, "third", request=request_hash({"a": 2}))).body == b"second"


async def test_an_answer_with_a_secret_is_sealed(pool: Pool, actor: Actor) -> None:
    seal_key = derive_key("k" * 32, "tests")
    await make(pool, actor, "secret", seal_key=seal_key)
    assert "secret" not in await pool.fetchval("SELECT body FROM idempotency")
    assert await make(pool, actor, seal_key=seal_key) == Outcome(201, b"secret", True)


def test_the_order_of_names_and_spaces_does_not_matter() -> None:
    assert request_hash({"a": 1, "b": [1]}) == request_hash({"b": [1], "a": 1})
    assert request_hash({"a": 1}) != request_hash({"a": "1"})
    asked = [("live", "POST", "/a"), ("test", "POST", "/a"), ("live", "POST", "/b"), ("live", "PUT", "/a")]
    assert len({key_hash(*one, "k") for one in asked}) == 4


def test_what_a_key_may_be() -> None:
    assert checked_key(b"~ !") == "~ !"
    for wrong in (b"", b"x" * 256, b"\x7f", b"a\tb", "é".encode()):
        with pytest.raises(Invalid):
            checked_key(wrong)


async def waiting(pool: Pool) -> None:
    """Wait until one transaction waits for another."""
    await seen(pool, "wait_event_type = 'Lock'")


async def seen(pool: Pool, what: str) -> None:
    async with asyncio.timeout(120):
        while not await pool.fetchval(
            f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {what}"
        ):
            await pool.execute("SELECT pg_sleep(0.01)")
