"""Texts from handsets to an organization that seals them: no table contains them once their organization is known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.privacy import erasure, holdings
from heliograph.queue import timers
from heliograph.sealing import text_keys
from heliograph.simulators.receiver import Receiver
from heliograph.sms.received import inbound, inbox
from heliograph.webhooks import history
from heliograph.webhooks.recording import feed
from tests.hooks import attempted, delivering, endpoint, until
from tests.rules.factories import TO, organization, sender
from tests.rules.test_inbound import NUMBER, handset_message, part, receive, receive_and_process, states, work
from tests.rules.test_sealed_texts import KEY_LOSSES, MARKER, holding, sealing

pytestmark = pytest.mark.usefixtures("armed")

OTHER = "258800005678"


@pytest.fixture(autouse=True)
async def timer(pool: Pool) -> None:
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)


@pytest.fixture
async def sealed(pool: Pool) -> Actor:
    """An organization with a number, which seals its texts."""
    actor = await sealing(pool)
    await sender(pool, actor, NUMBER)
    return actor


async def shown(pool: Pool, actor: Actor) -> set[tuple[str | None, ...]]:
    """The received texts as each of their readers shows them, newest first."""
    async with pool.acquire() as conn:
        page = (await inbound.list_page(conn, actor)).messages
        many = await inbound.by_ids(conn, actor, ids=[one.id for one in page])
        listed = await inbound.received(conn, organization_id=actor.organization_id, limit=10)
        kept = [row async for row in holdings.held(conn, actor, address=TO) if row["what"] == "message_received"]
    return {
        tuple(one.body for one in page),
        tuple(one.body for one in sorted(many, key=lambda one: one.id, reverse=True)),
        tuple(one.text for one in listed),
        tuple(row["body"] for row in reversed(kept)),
    }


async def quoted(pool: Pool, actor: Actor) -> list[Any]:
    """The texts of events in the feed, one by one and in order."""
    ids = [row["id"] for row in await pool.fetch("SELECT id FROM events WHERE kind = 'message.received' ORDER BY id")]
    async with pool.acquire() as conn:
        found = await feed.get_many(conn, actor, ids=ids)
    return [msgspec.json.decode(one.data)["message"]["text"] for one in found]


async def test_no_table_holds_what_was_received_and_everybody_reads_it(pool: Pool, sealed: Actor) -> None:
    await receive(pool, handset_message(f"one {MARKER}"))
    assert await holding(pool) == {"inbound_messages"}, "whose it is, is not known yet"
    await work(pool)
    assert await holding(pool) == set()
    await receive_and_process(pool, part(1, f"two {MARKER} ", total=2))
    assert await holding(pool) == set()
    assert await states(pool) == ["received", "waiting"]
    await receive_and_process(pool, part(2, f"and {MARKER}", total=2))
    assert await holding(pool) == set()
    assert await shown(pool, sealed) == {(f"two {MARKER} and {MARKER}", f"one {MARKER}")}
    assert await quoted(pool, sealed) == [f"one {MARKER}", f"two {MARKER} and {MARKER}"]


async def test_webhooks_carry_the_text(pool: Pool, sealed: Actor, receiver: Receiver) -> None:
    endpoint_id, _ = await endpoint(pool, sealed, receiver.url, kinds=["message.received"])
    async with delivering(pool):
        await receive_and_process(pool, handset_message(f"hello {MARKER}"))
        await attempted(pool, 1)
    assert await holding(pool) == set()
    (body,) = [msgspec.json.decode(one.body) for one in receiver.events]
    assert body["data"]["message"]["text"] == f"hello {MARKER}"
    assert body["data"]["message"]["truncated"] is False
    async with pool.acquire() as conn:
        found = await history.delivery(conn, sealed, endpoint_id=endpoint_id, event_id=UUID(body["id"]))
    assert msgspec.json.decode(found.event.data) == body["data"]


async def test_a_repetition_is_known_though_what_came_before_is_sealed(pool: Pool, sealed: Actor) -> None:
    for _ in range(3):
        await receive_and_process(pool, handset_message(f"again {MARKER}"), answered=False)
    await receive_and_process(pool, handset_message(f"other {MARKER}"), answered=False)
    assert await states(pool) == ["received", "duplicate", "duplicate", "received"]
    assert await holding(pool) == set()
    await receive_and_process(pool, part(1, f"again {MARKER} ", total=2), part(1, f"again {MARKER} ", total=2))
    assert await holding(pool) == set()


async def test_a_late_part_completes_what_was_shown_sealed(pool: Pool, sealed: Actor) -> None:
    await receive_and_process(pool, part(1, "begins ", total=2))
    await later(pool, minutes=11)
    await work(pool)
    assert await shown(pool, sealed) == {("begins  [...]",)}
    await receive_and_process(pool, part(2, f"ends {MARKER}", total=2))
    assert await shown(pool, sealed) == {(f"begins ends {MARKER}",)}
    assert await quoted(pool, sealed) == ["begins  [...]", f"begins ends {MARKER}"]
    assert await holding(pool) == set()


async def later(pool: Pool, **by: float) -> None:
    await pool.execute(
        "UPDATE inbound_messages SET received_at = received_at - $1::interval, due_at = due_at - $1::interval",
        timedelta(**by),
    )


async def test_without_its_key_an_organization_waits_and_its_words_count(pool: Pool, sealed: Actor) -> None:
    other = await organization(pool)
    await sender(pool, other, OTHER)
    await receive_and_process(pool, part(1, "begins ", total=2))
    kept = await damage(pool, sealed)
    await receive_and_process(
        pool,
        handset_message("waits"),
        handset_message("STOP"),
        handset_message("for another", to=OTHER),
        part(2, "and ends", total=2),
    )
    waiting = ["waiting", "new", "received", "received", "new"]
    assert await states(pool) == waiting
    assert await pool.fetchval("SELECT count(*) FROM opt_outs") == 1
    assert (await work(pool)).rows == 0, "nothing of it is due"
    assert await pool.fetchval("SELECT count(*) FROM inbound_messages WHERE due_at > now()") == 3
    assert await shown(pool, other) == {("for another",)}
    assert await shown(pool, sealed) == {(None,)}
    await later(pool, minutes=2)
    assert (await work(pool)).rows == 3
    assert await states(pool) == waiting

    await mend(pool, sealed, kept)
    await later(pool, minutes=2)
    await work(pool)
    assert await states(pool) == ["received"] * 5
    (found,) = await shown(pool, sealed)
    assert sorted(one or "" for one in found) == ["", "begins and ends", "waits"]
    assert sorted(one or "" for one in await quoted(pool, sealed)) == ["", "begins and ends", "waits"]
    for word in ("begins", "waits", "STOP"):
        assert await holding(pool, word) == set()


async def damage(pool: Pool, actor: Actor) -> bytes:
    kept: bytes = await pool.fetchval("SELECT sealed FROM text_keys WHERE organization_id = $1", actor.organization_id)
    await pool.execute(KEY_LOSSES["damaged"], actor.organization_id)
    return kept


async def mend(pool: Pool, actor: Actor, kept: bytes) -> None:
    await pool.execute("UPDATE text_keys SET sealed = $2 WHERE organization_id = $1", actor.organization_id, kept)


async def test_an_event_that_cannot_be_opened_is_delivered_once_it_can(
    pool: Pool, sealed: Actor, receiver: Receiver
) -> None:
    await endpoint(pool, sealed, receiver.url, kinds=["message.received"])
    await receive_and_process(pool, handset_message("waits"))
    kept = await damage(pool, sealed)
    async with delivering(pool) as deliverer:

        async def is_put_off() -> bool:
            found: bool = await pool.fetchval(
                "SELECT EXISTS (SELECT FROM queue WHERE kind = 'webhook' AND due_at > now() + interval '30 s'"
                " AND lease_until IS NULL AND tries = 0)"
            )
            return found

        await until(is_put_off)
        assert not receiver.events
        await mend(pool, sealed, kept)
        await pool.execute("UPDATE queue SET due_at = now()")
        deliverer.wake.set()
        await attempted(pool, 1)
    (body,) = [msgspec.json.decode(one.body) for one in receiver.events]
    assert body["data"]["message"]["text"] == "waits"


async def test_a_number_that_moves_takes_its_waiting_parts_along(pool: Pool, sealed: Actor) -> None:
    await receive_and_process(pool, part(1, "begins ", total=2))
    assert await pool.fetchval("SELECT sealed FROM inbound_messages")
    other = await organization(pool)
    await sender(pool, other, NUMBER)
    await pool.execute(
        "UPDATE sender_ids SET status = 'suspended' WHERE organization_id = $1 AND NOT is_default",
        sealed.organization_id,
    )
    await receive_and_process(pool, part(2, "and ends", total=2))
    assert await shown(pool, other) == {("begins and ends",)}
    assert await shown(pool, sealed) == {()}
    rows = await pool.fetch("SELECT sealed, body, raw, organization_id FROM inbound_messages ORDER BY id")
    assert [tuple(row) for row in rows] == [
        (False, b"begins ", b"raw begins ", other.organization_id),
        (False, b"and ends", b"raw and ends", other.organization_id),
    ]


async def test_closing_makes_what_was_received_unreadable(pool: Pool, sealed: Actor) -> None:
    await receive_and_process(pool, handset_message(f"one {MARKER}"), part(1, "begins ", total=2))
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=sealed.organization_id, state="closed")
    assert await shown(pool, sealed) == {(None,)}
    assert await quoted(pool, sealed) == [None]
    await receive_and_process(pool, part(2, "and ends", total=2))
    assert await states(pool) == ["received", "unassigned", "unassigned"]


async def test_what_begins_as_sealed_texts_do_is_told_as_it_was_written(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await sender(pool, actor, NUMBER)
    await endpoint(pool, actor, receiver.url, kinds=["message.received"])
    async with delivering(pool):
        await receive_and_process(pool, handset_message("sealed:1:QUJD"))
        await attempted(pool, 1)
    assert await shown(pool, actor) == {("sealed:1:QUJD",)}
    assert await quoted(pool, actor) == ["sealed:1:QUJD"]
    (body,) = [msgspec.json.decode(one.body) for one in receiver.events]
    assert body["data"]["message"]["text"] == "sealed:1:QUJD"


async def test_who_shares_a_number_and_seals_is_told_a_word_as_the_others_are(pool: Pool, sealed: Actor) -> None:
    other = await organization(pool)
    await sender(pool, other, NUMBER)
    await receive_and_process(pool, handset_message("STOP"))
    assert await shown(pool, sealed) == await shown(pool, other) == {("STOP",)}
    assert await holding(pool, "STOP") == {"received_messages", "events", "inbound_messages"}
    bodies = await pool.fetch("SELECT body FROM received_messages WHERE organization_id = $1", sealed.organization_id)
    assert [text_keys.is_marked(row["body"]) for row in bodies] == [True]


async def test_a_person_is_erased_and_texts_grow_old_sealed_as_well(pool: Pool, sealed: Actor) -> None:
    await receive_and_process(pool, handset_message("one"), handset_message("two", by="+258849999999"))
    async with pool.acquire() as conn:
        await erasure.erase(conn, sealed, address=TO)
    assert await shown_texts(pool, sealed) == ["two", None]
    assert await quoted(pool, sealed) == [None, "two"]
    bodies = await pool.fetch("SELECT body = '' AND raw = '' AS gone FROM inbound_messages ORDER BY id")
    assert [row["gone"] for row in bodies] == [True, False]


async def shown_texts(pool: Pool, actor: Actor) -> list[str | None]:
    async with pool.acquire() as conn:
        return [one.body for one in (await inbound.list_page(conn, actor)).messages]
