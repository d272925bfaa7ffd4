"""A worker is cut off from the database, and from nothing else, while it sends a long message, and another one takes
the message over: it arrives whole, and no segment is sent after its message may be the other's."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from tests.judge import until_settled
from tests.load import Client
from tests.processes import Installation, installation, until, until_true
from tests.wire import Wire, wire

#: Seconds in which a segment is answered: all of them together take longer than a lease, after half of which a worker
#: that cannot renew it sends no more.
LATENCY = 0.4
TEXT, SEGMENTS = "a" * 1500, list(range(1, 11))
TO = "+258840000000"
CANNOT_CONNECT_NOW = "57P03"
STATES = "SELECT coalesce(array_agg(state ORDER BY attempt), '{}') FROM attempts"


@contextlib.asynccontextmanager
async def cut_off(url: str, place: Path) -> AsyncIterator[tuple[Installation, Wire]]:
    """An installation whose only worker has sent a few segments, and has just been cut off."""
    async with (
        wire(url) as (line, through),
        installation(
            url,
            place,
            smsc={"latency": LATENCY},
            smpp={"window": 1},
        ) as made,
        Client(made.base_url, made.key) as client,
    ):
        await made.api()
        worker = await made.worker(HELIOGRAPH_DATABASE_URL=through)
        await worker.ready()
        await until_true(partial(client.ask, "GET", "/health"))
        await client.send(TO, message=TEXT)
        await until(lambda: len(made.smsc.received) >= 2)
        # Not frozen: PostgreSQL would keep what a transaction has locked until it notices, for up to 30 s.
        await line.refuse(CANNOT_CONNECT_NOW)
        yield made, line
        assert not made.complaints


def sent(made: Installation) -> list[int]:
    """The segments that the supplier was sent, in order."""
    assert {one.destination for one in made.smsc.received} == {TO.removeprefix("+")}
    assert len({one.reference for one in made.smsc.received}) == 1, "handsets join them, whoever sent them"
    return [one.part for one in made.smsc.received]


async def states(url: str) -> list[str]:
    conn = await asyncpg.connect(url)
    try:
        return list(await conn.fetchval(STATES))
    finally:
        await conn.close()


@pytest.mark.lasts(50)
async def test_a_worker_that_is_cut_off_for_long_leaves_the_rest_to_the_one_that_takes_over(
    database_url: str, tmp_path: Path
) -> None:
    async with cut_off(database_url, tmp_path) as (made, line):
        await made.worker()
        # What the first worker was answered is not known to the other one.
        await until(lambda: len(sent(made)) > len(SEGMENTS) and sent(made)[-1] == SEGMENTS[-1])
        await line.refuse("")
        await until_settled(database_url)
        first = sent(made)[: -len(SEGMENTS)]
        assert 2 <= len(first) < len(SEGMENTS)
        assert sent(made) == SEGMENTS[: len(first)] + SEGMENTS
        assert (await states(database_url))[1:] == ["accepted"]
