"""Texts of organizations that keep them for a shorter time: theirs go, nobody else's do, in bounded steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from heliograph.accounts import send_defaults
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.retention import shorter
from tests.rules.factories import organization

NOW = datetime.now(UTC)
SENT = """
INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, encoding, segments, guarantee,
                      country, body, request_id, balance_after, accepted_at)
VALUES ($1, $2, $3, 'live', '1', '1', $2, 'gsm7', 1, 'at_least_once', 'MZ', 'x', '', 0, $4)
"""
RECEIVED = """
INSERT INTO received_messages (organization_id, id, supplier_id, sender, recipient, sender_id, segments, body,
                               received_at)
VALUES ($1, $2, $2, '+258841234567', '90210', $2, 1, 'x', $3)
"""
EVENT = """
INSERT INTO events (organization_id, id, mode, kind, message_id, request_id, data, created_at)
VALUES ($1, $2, 'live', 'message.received', $2, '', '{"message":{"text":"x"}}', $3)
"""
WHATSAPP = """
INSERT INTO whatsapp_messages (organization_id, id, direction, mode, status, number_id, conversation_id, recipient,
                               type, content, request_id, accepted_at)
VALUES ($1, $2, 'outbound', 'live', 'read', $2, $2, '+258841234567', 'text', '{}', '', $3)
"""


async def store(pool: Pool, actor: Actor, days: float, *, status: str = "delivered") -> UUID:
    """One of each that was stored so many days ago."""
    at = NOW - timedelta(days=days)
    id = UUID(int=uuid7_floor(at).int + 1)
    await pool.execute(SENT, actor.organization_id, id, status, at)
    for statement in (RECEIVED, EVENT, WHATSAPP):
        await pool.execute(statement, actor.organization_id, id, at)
    return id


async def left(pool: Pool, actor: Actor) -> dict[str, set[UUID]]:
    """Ids whose texts are there still."""
    found = {}
    for table, condition in (
        ("messages", "body IS NOT NULL"),
        ("received_messages", "body IS NOT NULL"),
        ("events", 'data LIKE \'%"text": "x"%\' OR data LIKE \'%"text":"x"%\''),
        ("whatsapp_messages", "content IS NOT NULL"),
    ):
        rows = await pool.fetch(
            f"SELECT id FROM {table} WHERE organization_id = $1 AND ({condition})", actor.organization_id
        )
        found[table] = {row["id"] for row in rows}
    return found


async def forget(pool: Pool) -> bool:
    async with pool.acquire() as conn:
        return await shorter.forget(conn)


async def keep_for(pool: Pool, actor: Actor, days: int | None) -> None:
    async with pool.acquire() as conn:
        await send_defaults.change(conn, organization_id=actor.organization_id, text_days=days)


async def test_texts_go_after_the_organizations_own_time(pool: Pool) -> None:
    own, other = await organization(pool), await organization(pool)
    old = [await store(pool, own, days) for days in (7.01, 12, 25)]
    young = [await store(pool, own, days) for days in (0, 3, 6.9)]
    theirs = [await store(pool, other, days) for days in (0, 12)]
    waiting = await store(pool, own, 9, status="accepted")
    await keep_for(pool, own, 7)
    assert await forget(pool)
    found = await left(pool, own)
    assert found["messages"] == {*young, waiting}, "what may still be sent keeps its text"
    for table in ("received_messages", "events", "whatsapp_messages"):
        assert found[table] == set(young), table
    assert all(ids == set(theirs) for ids in (await left(pool, other)).values())
    # A shorter time takes more, from where the last round ended.
    await keep_for(pool, own, 2)
    assert await forget(pool)
    assert (await left(pool, own))["messages"] == {young[0], waiting}
    assert old
    # What was waiting is found when all is looked through again.
    await pool.execute("UPDATE messages SET status = 'delivered' WHERE id = $1", waiting)
    assert await forget(pool)
    assert waiting in (await left(pool, own))["messages"]
    await pool.execute("UPDATE retention_places SET mark = jsonb_build_object('whole', now() - interval '8 days')")
    assert await forget(pool)
    assert (await left(pool, own))["messages"] == {young[0]}


async def test_a_round_is_bounded_and_the_next_one_goes_on(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    own = await organization(pool)
    for days in range(5, 25):
        await store(pool, own, days)
    await keep_for(pool, own, 1)
    monkeypatch.setattr(shorter, "STEP", 2)
    monkeypatch.setattr(shorter, "STATEMENTS", 7)
    rounds = 0
    while not await forget(pool):
        rounds += 1
        assert rounds < 100
    assert rounds > 3
    assert not any((await left(pool, own)).values())
