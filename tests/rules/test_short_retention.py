"""Texts of organizations that keep them for a shorter time: theirs are erased, nobody else's are, in bounded steps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from heliograph.accounts import send_defaults
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.retention import shortening, shorter, turns
from heliograph.retention.shortening import NotAgreed
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


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine, the time of a round may be over before its work is done."""
    monkeypatch.setattr(turns, "SECONDS", 600.0)


async def count(pool: Pool, organization_id: UUID, sent: dict[int, int]) -> None:
    """An organization of two years that sent this many live messages this many days ago, and has one more that
    waits."""
    await pool.execute(
        "UPDATE organizations SET created_at = now() - interval '2 years' WHERE id = $1", organization_id
    )
    for days, number in sent.items():
        await pool.executemany(
            "INSERT INTO traffic_organizations VALUES ($1, (now() AT TIME ZONE 'UTC')::date - $2::int, $3, $4)",
            [(organization_id, days, "delivered", number), (organization_id, days, "accepted", 1)],
        )


async def store(pool: Pool, actor: Actor, days: float, *, status: str = "delivered") -> UUID:
    """One of each kind, stored this many days ago."""
    at = NOW - timedelta(days=days)
    id = UUID(int=uuid7_floor(at).int + 1)
    await pool.execute(SENT, actor.organization_id, id, status, at)
    for statement in (RECEIVED, EVENT, WHATSAPP):
        await pool.execute(statement, actor.organization_id, id, at)
    return id


async def remaining_ids(pool: Pool, actor: Actor) -> dict[str, set[UUID]]:
    """Ids whose texts still exist."""
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
    found = await remaining_ids(pool, own)
    assert found["messages"] == {*young, waiting}, "what may still be sent keeps its text"
    for table in ("received_messages", "events", "whatsapp_messages"):
        assert found[table] == set(young), table
    assert all(ids == set(theirs) for ids in (await remaining_ids(pool, other)).values())
    # A shorter time erases more, from where the last round ended.
    await keep_for(pool, own, 2)
    assert await forget(pool)
    assert (await remaining_ids(pool, own))["messages"] == {young[0], waiting}
    assert old
    # A message that was waiting is found when everything is scanned again.
    await pool.execute("UPDATE messages SET status = 'delivered' WHERE id = $1", waiting)
    assert await forget(pool)
    assert waiting in (await remaining_ids(pool, own))["messages"]
    await pool.execute("UPDATE retention_places SET mark = jsonb_build_object('whole', now() - interval '8 days')")
    assert await forget(pool)
    assert (await remaining_ids(pool, own))["messages"] == {young[0]}


@pytest.mark.parametrize("scanned", ["in 300 days", "an hour ago"])
async def test_texts_go_after_a_clock_that_was_ahead_has_been_set_back(pool: Pool, scanned: str) -> None:
    own = await organization(pool)
    await keep_for(pool, own, 7)
    await store(pool, own, 12)
    assert await forget(pool)
    whole = NOW + (timedelta(days=300) if scanned == "in 300 days" else -timedelta(hours=1))
    await pool.execute(
        "UPDATE retention_places SET done_until = now() + interval '3 days',"
        " mark = jsonb_build_object('whole', $1::timestamptz) WHERE mark ? 'whole'",
        whole,
    )
    assert await forget(pool)
    # Messages stored before the time that the clock had shown expire in two days.
    await pool.execute("UPDATE retention_places SET done_until = done_until - interval '2 days' WHERE mark ? 'whole'")
    await store(pool, own, 8)
    assert await forget(pool)
    assert not any((await remaining_ids(pool, own)).values())


async def test_a_round_is_bounded_and_the_next_one_goes_on(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    own = await organization(pool)
    for days in range(5, 25):
        await store(pool, own, days)
    await keep_for(pool, own, 1)
    monkeypatch.setattr(turns, "STEP", 2)
    # Some ten of them are what a search costs that finds nothing.
    monkeypatch.setattr(turns, "STATEMENTS", 15)
    rounds = 0
    while not await forget(pool):
        rounds += 1
        assert rounds < 300
    assert rounds > 3
    assert not any((await remaining_ids(pool, own)).values())


async def test_each_organization_has_its_turn(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, and however much the first one has."""
    some = sorted([await organization(pool) for _ in range(4)], key=lambda actor: actor.organization_id)
    for days in range(5, 45):
        await store(pool, some[0], days)
    for actor in some[1:]:
        await store(pool, actor, 5)
    for actor in some:
        await keep_for(pool, actor, 1)
    monkeypatch.setattr(turns, "STEP", 2)
    # One of the others needs more than half of it, and the first needs several times that.
    monkeypatch.setattr(turns, "STATEMENTS", 60)
    for _ in range(5):
        assert not await forget(pool)
    assert not any([any((await remaining_ids(pool, actor)).values()) for actor in some[1:]])
    assert any((await remaining_ids(pool, some[0])).values())
    rounds = 0
    while not await forget(pool):
        rounds += 1
        assert rounds < 300
    assert not any((await remaining_ids(pool, some[0])).values())


async def test_more_than_a_statement_can_read_is_looked_through_in_shorter_times(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An organization may have millions of events in a day, none of which has a text: organizations after it never had
    their turn."""
    some = sorted([await organization(pool) for _ in range(2)], key=lambda actor: actor.organization_id)
    for actor in some:
        await store(pool, actor, 3)
        await keep_for(pool, actor, 1)
    erase, asked = shorter._erase, []

    async def slow(conn: Any, organization_id: UUID, table: str, start: datetime, end: datetime, budget: Any) -> int:
        if organization_id == some[0].organization_id and table == "events":
            asked.append(end - start)
            if end - start > timedelta(minutes=20):
                raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")
        return await erase(conn, organization_id, table, start, end, budget)

    monkeypatch.setattr(shorter, "_erase", slow)
    monkeypatch.setattr(turns, "STATEMENTS", 12)
    rounds = 0
    while not await forget(pool):
        rounds += 1
        assert rounds < 300
    assert not any([any((await remaining_ids(pool, actor)).values()) for actor in some])
    # What took too long is not tried again in each round.
    assert sorted(asked, reverse=True)[:3] == [timedelta(hours=1), timedelta(minutes=30), timedelta(minutes=15)]


async def test_an_organization_that_fails_leaves_the_next_round_to_the_others(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = sorted([await organization(pool) for _ in range(2)], key=lambda actor: actor.organization_id)
    for actor in some:
        await store(pool, actor, 3)
        await keep_for(pool, actor, 1)
    erase = shorter._erase

    async def broken(conn: Any, organization_id: UUID, *rest: Any) -> int:
        if organization_id == some[0].organization_id:
            raise ZeroDivisionError
        return await erase(conn, organization_id, *rest)

    monkeypatch.setattr(shorter, "_erase", broken)
    with pytest.raises(ZeroDivisionError):
        await forget(pool)
    assert not await forget(pool)
    assert not any((await remaining_ids(pool, some[1])).values())


async def statements_of_a_round(pool: Pool) -> int:
    """How many statements a round takes that finds nothing to erase."""
    statements: list[str] = []

    def note(logged: Any) -> None:
        statements.append(logged.query)

    async with pool.acquire() as conn:
        conn.add_query_logger(note)
        try:
            assert await shorter.forget(conn)
        finally:
            conn.remove_query_logger(note)
    return len(statements)


async def test_a_round_asks_many_organizations_at_once(pool: Pool) -> None:
    """With 10,000 of them, each searched separately, a round that erased nothing took a quarter of an hour."""
    some = [await organization(pool) for _ in range(12)]
    for actor in some[:2]:
        await keep_for(pool, actor, 7)
    # One that never had anything to erase, and one that had.
    await store(pool, some[0], 3)
    await store(pool, some[1], 12)
    assert await forget(pool)
    few = await statements_of_a_round(pool)
    for actor in some[2:]:
        await store(pool, actor, 3)
        await keep_for(pool, actor, 7)
    assert await statements_of_a_round(pool) == few
    assert [len((await remaining_ids(pool, actor))["messages"]) for actor in some] == [1, 0, *([1] * 10)]


async def test_only_those_with_anything_to_erase_are_looked_through(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "AT_ONCE", 2)
    some = sorted([await organization(pool) for _ in range(5)], key=lambda actor: actor.organization_id)
    for actor in some:
        await store(pool, actor, 3)
        await keep_for(pool, actor, 7)
    # The first time that one in a table has expired, and in another table what expires by a time of its own.
    await store(pool, some[2], 12)
    at = NOW - timedelta(days=12)
    reply = UUID(int=uuid7_floor(at).int + 2)
    await pool.execute(REPEATED["automatic_replies"], some[4].organization_id, reply, at)
    assert await forget(pool)
    assert [len((await remaining_ids(pool, actor))["messages"]) for actor in some] == [1] * 5
    assert await pool.fetchval("SELECT count(*) FROM automatic_replies") == 0
    swept = {
        row["id"]
        for row in await pool.fetch(
            "SELECT DISTINCT substr(name, 10, 36)::uuid AS id FROM retention_places WHERE name LIKE 'texts of %-%'"
        )
    }
    assert swept == {some[2].organization_id}


async def test_organizations_that_cannot_be_asked_at_once_are_looked_through_one_by_one(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may have so many automatic replies that the statement takes too long."""
    some = [await organization(pool) for _ in range(2)]
    for actor in some:
        await store(pool, actor, 12)
        await keep_for(pool, actor, 7)
    monkeypatch.setattr(
        turns,
        "ANY_EXPIRED",
        """
SELECT asked.id FROM unnest($1::uuid[], $2::timestamptz[]) AS asked (id, until)
 CROSS JOIN LATERAL (SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(600)) found
""",
    )
    assert await forget(pool)
    assert not any([any((await remaining_ids(pool, actor)).values()) for actor in some])


async def test_what_repeats_a_text_goes_with_it(pool: Pool) -> None:
    own, other = await organization(pool), await organization(pool)
    ids: dict[UUID, list[UUID]] = {}
    for actor in (own, other):
        ids[actor.organization_id] = [await store(pool, actor, days) for days in (3, 12)]
        for days, id in zip((3, 12), ids[actor.organization_id], strict=True):
            at = NOW - timedelta(days=days)
            await pool.execute(
                "UPDATE messages SET receipt = $3, receipt_at = $4 WHERE organization_id = $1 AND id = $2",
                *(actor.organization_id, id, fingerprint(actor, days, 1), at),
            )
            await pool.execute(RECEIPT, at, fingerprint(actor, days, 2), actor.organization_id, id)
            for statement in REPEATED.values():
                await pool.execute(statement, actor.organization_id, UUID(int=uuid7_floor(at).int + 2), at)
    for days in (3, 12):
        # Receipts of both that came together.
        at = NOW - timedelta(days=days)
        came = [fingerprint(actor, days, n) for n in (1, 2) for actor in (own, other)]
        raw = [f"{n} {'own' if actor is own else 'other'}".encode() for n in (1, 2) for actor in (own, other)]
        await pool.execute(BYTES, at, UUID(int=uuid7_floor(at).int + 3), came, raw)
    await keep_for(pool, own, 7)
    assert await forget(pool)
    kept = await pool.fetch("SELECT raw FROM receipt_bytes ORDER BY received_on")
    assert [[bytes(one) for one in row["raw"]] for row in kept] == [
        [b"", b"1 other", b"", b"2 other"],
        [b"1 own", b"1 other", b"2 own", b"2 other"],
    ]
    for table in REPEATED:
        for actor, count in ((own, 1), (other, 2)):
            sql = f"SELECT count(*) FROM {table} WHERE organization_id = $1"
            assert await pool.fetchval(sql, actor.organization_id) == count, (table, actor is own)
    assert await pool.fetchval("SELECT count(*) FROM receipts") == 4, "that they came is no text"


async def test_what_a_shorter_time_deletes_is_told_from_roll_ups(pool: Pool) -> None:
    settings = Settings(secret_key="a secret key for tests, long enough")
    own, other, new = [await organization(pool) for _ in range(3)]
    sent = {5: 1, 20: 20, 40: 400, 100: 8000, 500: 60000}
    for actor in (own, other):
        await count(pool, actor.organization_id, sent)

    async def told(actor: Actor, **days: int | None) -> tuple[int | None, int | None]:
        """How many texts and messages the change deletes; None: nothing that could exist."""
        async with pool.acquire() as conn, conn.transaction():
            _, found = await shortening.change(
                conn,
                settings,
                organization_id=actor.organization_id,
                apply=lambda: send_defaults.change(conn, organization_id=actor.organization_id, **days),
                is_agreed=lambda after: True,
            )
        texts, messages = found.texts, found.messages
        return texts and texts.sent, messages and messages.sent

    # The installation keeps texts for 30 days, and messages for 13 months.
    assert await told(own, text_days=60) == (None, None), "longer than the installation's"
    assert await told(own, text_days=7) == (20, None)
    assert await told(own, text_days=7) == (None, None), "gone by then"
    assert await told(own, text_days=14) == (None, None), "longer than before"
    assert await told(own, text_days=3, message_days=90) == (1, 8000)
    assert await told(own, text_days=None, message_days=30) == (None, 400), "with their texts"
    assert await told(new, text_days=1, message_days=30) == (None, None), "it has nothing as old"
    async with pool.acquire() as conn:
        before = await send_defaults.get(conn, organization_id=other.organization_id)
        with pytest.raises(NotAgreed) as asks:
            async with conn.transaction():
                await shortening.change(
                    conn,
                    settings,
                    organization_id=other.organization_id,
                    apply=lambda: send_defaults.change(conn, organization_id=other.organization_id, message_days=30),
                    is_agreed=lambda after: after.message_days != 30,
                )
        assert (asks.value.after.message_days, asks.value.found.messages is not None) == (30, True)
        assert await send_defaults.get(conn, organization_id=other.organization_id) == before


def fingerprint(actor: Actor, days: int, n: int) -> UUID:
    return UUID(int=actor.organization_id.int ^ (days << 8) ^ n)


RECEIPT = """
INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, error, recipient, sender, received_at,
                      organization_id, message_id)
VALUES (($1::timestamptz AT TIME ZONE 'UTC')::date, $4, $2, '{x}', 'delivered', '', '1', '1', $1, $3, $4)
"""
BYTES = """
INSERT INTO receipt_bytes (received_on, id, fingerprints, raw, received_at)
VALUES (($1::timestamptz AT TIME ZONE 'UTC')::date, $2, $3, $4, $1)
"""
#: Everything stored for an organization ($1) with the id $2 at the time $3.
REPEATED = {
    "webhook_attempt_evidence": """
INSERT INTO webhook_attempt_evidence (organization_id, begun_on, event_id, endpoint_id, started_at, url, sent, head,
                                      body)
VALUES ($1, ($3::timestamptz AT TIME ZONE 'UTC')::date, $2, $2, $3, '', '', '', 'x')
""",
    "automatic_replies": """
INSERT INTO automatic_replies (organization_id, recipient, kind, message_id, sender_id, replied_at)
VALUES ($1, $2::uuid::text, 'stop', $2, $2, $3)
""",
}
