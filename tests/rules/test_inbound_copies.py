"""What a supplier delivered of a message from a handset goes with its text, also what it repeated."""

from __future__ import annotations

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.privacy import erasure
from tests.rules.factories import TO
from tests.rules.test_inbound import acme, handset_message, part, receive_and_process, states, timer

__all__ = ["acme", "timer"]


async def left(pool: Pool) -> list[bytes]:
    """Of what suppliers delivered, in order of arrival."""
    return [row["raw"] for row in await pool.fetch("SELECT raw FROM inbound_messages WHERE raw <> '' ORDER BY id")]


@pytest.mark.parametrize("together", [False, True])
async def test_a_repetition_goes_with_its_person(pool: Pool, acme: Actor, together: bool) -> None:
    again = [handset_message("hello") for _ in range(3)]
    for some in [again] if together else [[one] for one in again]:
        await receive_and_process(pool, *some, answered=False)
    assert await states(pool) == ["received", "duplicate", "duplicate"]
    assert await pool.fetchval("SELECT count(DISTINCT message_id) FROM inbound_messages") == 1
    async with pool.acquire() as conn:
        done = await erasure.erase(conn, acme, address=TO)
    assert (done.erased["sms_received"], done.erased["parts_as_delivered"]) == (1, 3)
    assert await left(pool) == []


async def test_a_part_that_was_repeated_goes_with_its_person(pool: Pool, acme: Actor) -> None:
    await receive_and_process(pool, part(1, "hel", total=2), part(1, "hel", total=2))
    await receive_and_process(pool, part(1, "hel", total=2))
    await receive_and_process(pool, part(2, "lo", total=2))
    assert await states(pool) == ["received", "duplicate", "duplicate", "received"]
    async with pool.acquire() as conn:
        await erasure.erase(conn, acme, address=TO)
    assert await left(pool) == []
