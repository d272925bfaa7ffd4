"""What a supplier delivered of a message from a handset goes with its text: late parts, and what it repeated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from heliograph.accounts import send_defaults
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.privacy import erasure
from heliograph.retention import removing, shorter
from tests.rules.factories import TO, organization
from tests.rules.test_inbound import acme, handset_message, part, receive_and_process, states, timer

__all__ = ["acme", "timer"]

SETTINGS = Settings(secret_key="a secret key for tests, long enough")


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


RECEIVED = """
INSERT INTO received_messages (organization_id, id, supplier_id, sender, recipient, sender_id, segments, body,
                               received_at)
VALUES ($1, $2, $2, '1', '2', $2, 2, 'x', $3)
"""
PART = """
INSERT INTO inbound_messages (id, supplier_id, sender, recipient, body, raw, received_at, state, due_at, message_id)
VALUES ($1, $2, '1', '2', 'x', $3, $4, 'received', NULL, $2)
"""


@pytest.mark.parametrize("whole", [False, True])
async def test_a_late_part_goes_after_the_organizations_own_time(pool: Pool, whole: bool) -> None:
    """Though its message is the last one before that time."""
    days, actor, now = 40 if whole else 7, await organization(pool), datetime.now(UTC)
    async with pool.acquire() as conn:
        await send_defaults.change(
            conn, organization_id=actor.organization_id, **{"message_days" if whole else "text_days": days}
        )
    for place, after in enumerate((timedelta(hours=-1), timedelta(hours=30))):
        came = now - timedelta(days=days) + after
        id = UUID(int=uuid7_floor(came).int + 1)
        await pool.execute(RECEIVED, actor.organization_id, id, came)
        for late in (timedelta(), timedelta(hours=20)):
            it = UUID(int=uuid7_floor(came + late).int + 1)
            await pool.execute(PART, it, id, f"{place} {late}".encode(), came + late)
    async with pool.acquire() as conn:
        assert await (removing.forget(conn, SETTINGS) if whole else shorter.forget(conn))
    assert await left(pool) == [b"1 0:00:00", b"1 20:00:00"]
