"""A message from a handset that cannot be processed is set aside, and delays nobody else's STOP."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from heliograph.base.database.pool import Connection, Pool
from heliograph.base.process import measures
from heliograph.queue import timers
from heliograph.sms.received import inbox
from heliograph.sms.received.message import Message
from heliograph.sms.received.reception import SET_ASIDE, Reception
from heliograph.suppliers.contract import Inbound
from tests.rules.factories import organization, sender
from tests.rules.test_inbound import NUMBER, age, event_data, handset_message, opted_out, receive

STUMBLES = "what nobody can process"


async def in_the_code(conn: Connection) -> None:
    raise KeyError(STUMBLES)


async def in_the_database(conn: Connection) -> None:
    await conn.execute("SELECT 1 / 0")


@pytest.mark.parametrize("fails", [in_the_code, in_the_database])
@pytest.mark.parametrize("place", [0, 3, 6])
async def test_a_message_that_fails_is_set_aside_and_the_others_are_processed_in_order(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, fails: Any, place: int
) -> None:
    """It made each batch fail, for ever, with all others behind it."""
    actor = await organization(pool)
    await sender(pool, actor, NUMBER)
    received: Any = inbox._receive

    async def stumbles(conn: Connection, messages: Sequence[Message], sealing: Any) -> None:
        if any(one.text == STUMBLES for one in messages):
            await fails(conn)
        await received(conn, messages, sealing)

    monkeypatch.setattr(inbox, "_receive", stumbles)
    texts = ["one", "STOP", "START", "two", "STOP", "three"]
    some: list[Inbound] = [handset_message(text) for text in texts]
    some.insert(place, handset_message(STUMBLES))
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
    ids = await receive(pool, *some)
    reception = Reception(pool, lease_seconds=60, on_deliveries=lambda: None, on_messages=lambda: None)
    counted = measures.FAILURES.values.get(("inbox",), 0)
    with pytest.raises(Exception, match=f"{STUMBLES}|division by zero"):
        await reception.round()
    with capture_logs() as logged:
        assert await reception.round() == 7
    assert [(one["event"], one["message_id"]) for one in logged if one["log_level"] == "error"] == [
        ("inbound message set aside", str(ids[place]))
    ]
    assert measures.FAILURES.values[("inbox",)] == counted + 1
    assert [one["text"] for one in await event_data(pool)] == texts
    assert await opted_out(pool, actor)
    left = await pool.fetch("SELECT id, state, due_at > now() AS later FROM inbound_messages WHERE due_at IS NOT NULL")
    assert [tuple(row) for row in left] == [(ids[place], "new", True)]
    assert await reception.round() == 0

    # Once it can be processed, it is.
    monkeypatch.undo()
    await age(pool, SET_ASIDE + timedelta(seconds=1))
    assert await reception.round() == 1
    assert sorted(one["text"] for one in await event_data(pool)) == sorted([*texts, STUMBLES])
