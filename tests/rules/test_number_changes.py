"""Users' new numbers, many in one callback: all together, and with what each would have come to by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.whatsapp.callbacks import number_changes
from heliograph.whatsapp.callbacks.conversations import User
from heliograph.whatsapp.callbacks.number_changes import UserEvent
from tests.rules.callback_factories import Change, Meta, ago, message
from tests.rules.whatsapp_factories import Made, made

A, B, C, D, E = (f"+25884100000{n}" for n in range(1, 6))

#: What happens, in order: (who, their new number, or None: they write).
Story = Sequence[tuple[str, str | None]]
STORIES: dict[str, Story] = {
    "strangers": [(A, B), (C, D)],
    "known before": [(A, None), (C, None), (A, B), (C, D)],
    "one after the other": [(A, None), (A, B), (B, C), (C, D)],
    "there and back": [(A, None), (A, B), (B, A)],
    "in a row": [(A, None), (B, None), (C, None), (B, D), (A, B), (C, A)],
    "writing from the new one": [(A, None), (A, B), (B, None), (C, D), (D, None)],
    "the next owner writes": [(A, None), (A, B), (A, None), (C, D)],
    "the next owner moves": [(A, None), (A, B), (A, None), (A, C), (D, E)],
    "said twice": [(A, None), (A, B), (A, B), (C, D)],
    "both known": [(A, None), (B, None), (A, B), (C, D)],
    "two to one": [(A, None), (C, None), (A, B), (C, B)],
}


def changes(who: Made, story: Story) -> list[Change]:
    """As Meta tells it, a minute apart."""
    found = []
    for n, (by, to) in enumerate(story):
        at = ago(minutes=60 - n)
        system: dict[str, Any] = {"type": "user_changed_number", "body": "changed", "wa_id": to and to[1:]}
        kept = {"type": "system", "system": system} if to else {}
        found.append(message(who, f"word {n}", at, by=by, **kept))
    return found


async def outcome(pool: Pool, who: Made) -> tuple[object, ...]:
    """Whose each number is and was, and which conversations there are, without ids."""
    organization_id = who.organization_id
    names = await pool.fetch(
        "SELECT name, person, left_at IS NOT NULL AS left, moved_to FROM person_names WHERE organization_id = $1",
        organization_id,
    )
    people: dict[object, set[tuple[object, ...]]] = {}
    for one in names:
        people.setdefault(one["person"], set()).add((one["name"], one["left"], one["moved_to"]))
    former = await pool.fetch("SELECT name, moved_to FROM former_names WHERE organization_id = $1", organization_id)
    talks = await pool.fetch(
        "SELECT m.content, c.recipient FROM whatsapp_messages m"
        " JOIN whatsapp_conversations said ON said.organization_id = $1 AND said.id = m.conversation_id"
        " JOIN whatsapp_conversations c ON c.organization_id = $1 AND c.id = coalesce(said.merged_into, said.id)"
        " WHERE m.organization_id = $1",
        organization_id,
    )
    return (
        sorted(map(sorted, people.values()), key=str),
        sorted(map(tuple, former)),
        sorted(map(tuple, talks)),
    )


@pytest.mark.parametrize("story", STORIES)
async def test_in_one_callback_they_come_to_what_they_come_to_one_by_one(pool: Pool, story: str) -> None:
    meta, one, other = Meta(pool), await made(pool), await made(pool)
    await meta.say(one, *changes(one, STORIES[story]))
    for change in changes(other, STORIES[story]):
        await meta.say(other, change)
    assert await outcome(pool, one) == await outcome(pool, other)
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0


async def test_a_thousand_take_no_more_statements_than_two(pool: Pool) -> None:
    """They kept everybody else's callbacks waiting for half a minute."""
    who, begun = await made(pool), clock.now() - timedelta(hours=1)

    async def asked(first: int, count: int) -> list[str]:
        written = [
            UserEvent(User(who.organization_id, who.number_id, f"2588410{n:05}", None), begun, f"+2588420{n:05}")
            for n in range(first, first + count)
        ]
        found: list[str] = []
        async with pool.acquire() as conn, conn.transaction():
            with conn.query_logger(lambda query: found.append(query.query)):
                authors, handovers = await number_changes.authors(conn, written)
        assert [one.moved_to for one in authors] == [one.moved_to for one in written]
        assert handovers == []
        return found

    assert await asked(0, 2) == await asked(10, 1000)
    assert await pool.fetchval("SELECT count(*) FROM person_names WHERE left_at = $1", begun) == 1002
