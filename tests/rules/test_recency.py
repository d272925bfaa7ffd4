"""When contacts were last messaged and reached: read from the messages afterwards, once, and searchable."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from asyncpg import LockNotAvailableError

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.contacts import marked, recency, records, search
from heliograph.contacts.records import Changes, Contact, Entry
from heliograph.contacts.search import Filters
from heliograph.overview import messages
from tests.database import Cluster, execute
from tests.rules import whatsapp_factories
from tests.rules.factories import message, organization
from tests.rules.test_locked_rows import locking

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


async def contact(pool: Pool, actor: Actor, phone: str) -> UUID:
    async with pool.acquire() as conn:
        return (await records.create(conn, actor, entry=Entry(phone, "Ana"))).id


async def sent_message(
    pool: Pool, actor: Actor, phone: str, *, age: timedelta, delivered: bool = False, mode: str = "live"
) -> UUID:
    """A message sent this long ago."""
    made = await message(pool, actor, to=phone, age=age, mode=mode, queued=False)
    at = clock.now() - age
    id = UUID(int=uuid7_floor(at).int | made.int & (2**62 - 1))
    await pool.execute(
        "UPDATE messages SET id = $2, sent_at = $3, delivered_at = CASE WHEN $4 THEN $3::timestamptz END WHERE id = $1",
        made,
        id,
        at,
        delivered,
    )
    return id


async def read(pool: Pool, *, back: timedelta | None = None) -> int:
    """One run; `back`: over this period again."""
    async with pool.acquire() as conn:
        await conn.execute(recency.ENSURE, list(recency.LAGS))
        if back is not None:
            await conn.execute("UPDATE contact_readings SET read_to = now() - lag - $1::interval", back)
        return await recency.read(conn)


async def matching_phones(pool: Pool, actor: Actor, filters: Filters) -> list[str]:
    async with pool.acquire() as conn:
        return [one.phone for one in (await search.search(conn, actor, filters=filters)).contacts]


async def get(pool: Pool, actor: Actor, id: UUID) -> Contact:
    async with pool.acquire() as conn:
        return await records.get(conn, actor, id=id)


async def test_contacts_are_known_by_when_they_were_written_to_and_reached(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    numbers = [f"+25884123456{n}" for n in range(4)]
    ids = [await contact(pool, actor, number) for number in numbers]
    theirs = await contact(pool, other, numbers[3])
    await sent_message(pool, actor, numbers[0], age=40 * DAY, delivered=True)
    await sent_message(pool, actor, numbers[1], age=5 * MINUTE)
    await sent_message(pool, actor, numbers[2], age=3 * DAY, delivered=True)
    await sent_message(pool, actor, numbers[3], age=5 * MINUTE, mode="test")
    assert await read(pool, back=60 * DAY) == 3
    assert (await get(pool, other, theirs)).written_at is None
    assert await matching_phones(pool, actor, Filters(never_written=True)) == [numbers[3]]
    assert await matching_phones(pool, actor, Filters(unwritten_days=2)) == [numbers[3], numbers[2], numbers[0]]
    assert await matching_phones(pool, actor, Filters(unwritten_days=30, text="Ana")) == [numbers[3], numbers[0]]
    assert await matching_phones(pool, actor, Filters(delivered_before=clock.now() - 30 * DAY)) == [numbers[0]]
    assert (await get(pool, actor, ids[1])).delivered_at is None
    # What was read is not read again, and a time that is less than an hour newer is not written.
    assert await read(pool) == 0
    assert await read(pool, back=DAY) == 0


@pytest.mark.parametrize(
    ("known", "written"),
    [
        ("+5511987654321", "+551187654321"),
        ("+525512345678", "+5215512345678"),
        ("+5491123456789", "+541123456789"),
        ("+541123456789", "+5491123456789"),
        ("+2290161234567", "+22961234567"),
    ],
)
async def test_a_message_to_another_spelling_of_a_contacts_number_counts(pool: Pool, known: str, written: str) -> None:
    """Clients send to numbers as they have them, and Meta reports some in an older form."""
    actor = await organization(pool)
    id, other = await contact(pool, actor, known), await contact(pool, actor, "+258841234567")
    await sent_message(pool, actor, known, age=3 * DAY)
    last = await sent_message(pool, actor, written, age=DAY, delivered=True)
    await read(pool, back=60 * DAY)
    found = await get(pool, actor, id)
    assert found.written_at is not None
    assert found.written_at == found.delivered_at
    async with pool.acquire() as conn:
        assert await recency.last(conn, actor, ids=[id, other]) == {id: last}
    assert await matching_phones(pool, actor, Filters(unwritten_days=2)) == ["+258841234567"]


async def test_the_last_message_is_known_whatever_it_was_sent_by(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    numbers = [f"+25884123456{n}" for n in range(3)]
    ids = [await contact(pool, actor, number) for number in numbers]
    theirs = await contact(pool, other, numbers[0])
    await sent_message(pool, actor, numbers[0], age=3 * DAY)
    latest = await sent_message(pool, actor, numbers[0], age=DAY)
    # A message accepted before the others and sent after them.
    later = await sent_message(pool, actor, numbers[1], age=5 * DAY)
    await sent_message(pool, actor, numbers[1], age=4 * DAY)
    await pool.execute("UPDATE messages SET sent_at = now() - interval '2 days' WHERE id = $1", later)

    async def last(who: Actor) -> dict[UUID, UUID]:
        async with pool.acquire() as conn:
            found = await messages.last_to(conn, who, contacts=[*ids, theirs])
            return {contact: one.id for contact, one in found.items()}

    assert await last(actor) == {}
    await read(pool, back=60 * DAY)
    assert await last(actor) == {ids[0]: latest, ids[1]: later}
    assert await last(other) == {}
    # An older message that is read again is not the last one; a message that is gone counts for nobody.
    await read(pool, back=60 * DAY)
    await pool.execute("DELETE FROM messages WHERE id = $1", later)
    assert await last(actor) == {ids[0]: latest}
    async with pool.acquire() as conn, conn.transaction():
        gone = await marked.delete(conn, actor, ids=[ids[0]])
        await marked.undo(conn, actor, id=gone.id)
    assert await last(actor) == {ids[0]: latest}
    async with pool.acquire() as conn:
        await records.change(conn, actor, id=ids[0], changes=Changes(phone="+258841234569"))
    assert await last(actor) == {}


async def test_what_left_long_after_it_was_accepted_is_known_as_soon_as_any_other(pool: Pool) -> None:
    """It was scheduled, waited for the end of quiet hours, or for its template."""
    actor, who = await organization(pool), await whatsapp_factories.made(pool)
    scheduled, waited = await contact(pool, actor, "+258841234560"), await contact(pool, who.actor, "+258841234561")
    sms = await sent_message(pool, actor, "+258841234560", age=10 * DAY)
    unsent = await sent_message(pool, actor, "+258841234562", age=10 * DAY)
    other = await contact(pool, actor, "+258841234562")
    template = await whatsapp_factories.message(pool, who, to="+258841234561")
    early = UUID(int=uuid7_floor(clock.now() - DAY).int | template.int & (2**62 - 1))
    await pool.execute(
        "UPDATE whatsapp_messages SET id = $2, accepted_at = accepted_at - interval '1 day', status = 'sent',"
        " sent_at = now() - interval '5 minutes' WHERE id = $1",
        template,
        early,
    )
    await pool.execute("UPDATE messages SET sent_at = now() - interval '5 minutes' WHERE id = $1", sms)
    await pool.execute("UPDATE messages SET sent_at = NULL WHERE id = $1", unsent)
    for whose, id, state in ((actor, sms, "accepted"), (who.actor, early, "accepted"), (actor, unsent, "busy")):
        await pool.execute(
            "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)"
            " VALUES ($1, $2, 1, $2, $3, now() - interval '5 minutes', now() - interval '5 minutes')",
            whose.organization_id,
            id,
            state,
        )
    assert await read(pool, back=10 * MINUTE) == 2
    assert (await get(pool, actor, scheduled)).written_at is not None
    assert (await get(pool, who.actor, waited)).written_at is not None
    assert (await get(pool, actor, other)).written_at is None
    assert await read(pool) == 0


async def test_a_receipt_that_comes_late_is_found_by_a_later_reading(pool: Pool) -> None:
    actor = await organization(pool)
    id = await contact(pool, actor, "+258841234560")
    sent = await sent_message(pool, actor, "+258841234560", age=3 * MINUTE * 60)
    assert await read(pool, back=4 * 60 * MINUTE) == 1
    await pool.execute("UPDATE messages SET delivered_at = now() WHERE id = $1", sent)
    # The reading two hours later is the one that comes now; the one after three days is not due.
    await pool.execute("UPDATE contact_readings SET read_to = now() - interval '4 hours' WHERE lag = '2 hours'")
    assert await read(pool) == 1
    known = await get(pool, actor, id)
    assert known.written_at is not None
    assert known.delivered_at is not None


async def test_a_new_number_was_never_written_to_and_an_undone_deletion_still_was(pool: Pool) -> None:
    actor = await organization(pool)
    id = await contact(pool, actor, "+258841234560")
    await sent_message(pool, actor, "+258841234560", age=5 * MINUTE)
    assert await read(pool, back=DAY) == 1
    async with pool.acquire() as conn, conn.transaction():
        gone = await marked.delete(conn, actor, ids=[id])
    async with pool.acquire() as conn, conn.transaction():
        await marked.undo(conn, actor, id=gone.id)
    assert (await get(pool, actor, id)).written_at is not None
    async with pool.acquire() as conn:
        assert (await records.change(conn, actor, id=id, changes=Changes(tags=("vip",)))).written_at is not None
        assert (await records.change(conn, actor, id=id, changes=Changes(phone="+258841234569"))).written_at is None


async def test_who_was_written_to_still_was_once_their_number_is_written_as_it_is_dialed(pool: Pool) -> None:
    actor = await organization(pool)
    id = await contact(pool, actor, "+22961234567")
    last = await sent_message(pool, actor, "+22961234567", age=DAY, delivered=True)
    await read(pool, back=60 * DAY)
    async with pool.acquire() as conn:
        found = await records.change(conn, actor, id=id, changes=Changes(phone="+2290161234567"))
        assert found.written_at is not None
        assert found.delivered_at == found.written_at
        assert await recency.last(conn, actor, ids=[id]) == {id: last}
    assert await matching_phones(pool, actor, Filters(unwritten_days=2)) == []


async def test_reading_goes_on_after_a_clock_that_was_ahead_has_been_set_back(pool: Pool) -> None:
    await read(pool, back=-300 * DAY)
    assert await pool.fetchval("SELECT bool_and(read_to <= now() - lag) FROM contact_readings")


@pytest.mark.parametrize("for_long", [False, True])
async def test_a_locked_contact_holds_up_no_others_and_is_noted_later(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, for_long: bool
) -> None:
    """Nobody's were noted, so that a campaign wrote again to whoever had just been written to."""
    if for_long:
        monkeypatch.setattr(recency, "LEFT", timedelta())
    actors = [await organization(pool) for _ in range(2)]
    ids = [await contact(pool, actor, "+258841234567") for actor in actors]
    for age in (6 * MINUTE, 4 * MINUTE):
        for actor in actors:
            await sent_message(pool, actor, "+258841234567", age=age)

    async def noted() -> list[bool]:
        return [(await get(pool, actor, id)).written_at is not None for actor, id in zip(actors, ids, strict=True)]

    waits, stretch = 0, recency._stretch

    async def counting(*given: Any) -> Any:
        nonlocal waits
        try:
            return await stretch(*given)
        except LockNotAvailableError:
            waits += 1
            raise

    monkeypatch.setattr(recency, "_stretch", counting)
    async with locking(pool) as open_session:
        await open_session.execute("SELECT FROM contacts WHERE id = $1 FOR UPDATE", ids[0])
        assert await read(pool, back=10 * MINUTE) == 1
        assert await noted() == [False, True]
    # Not for each interval: with all contacts of an organization locked, others would wait for two seconds sixty times.
    assert waits == (2 if for_long else 1)
    # After long it is left to the next reading of these messages.
    assert await read(pool) == (0 if for_long else 1)
    assert await noted() == [not for_long, True]


EARLIER = """
INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at)
SELECT $1, (left($2::uuid::text, 15) || right(gen_random_uuid()::text, 21))::uuid, 1, $1, 'accepted', at, at
  FROM generate_series(1, 60000) AS n, LATERAL (SELECT now() - interval '5 days' + n * interval '1 ms' AS at) AS timed
"""
ROWS_READ = """
SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables
 WHERE relname LIKE 'attempts%'
"""


@pytest.mark.fresh_database
async def test_a_reading_costs_the_same_however_many_messages_are_stored(
    pool: Pool, database_server: Cluster, database_url: str
) -> None:
    """Each minute, all attempts ever stored used to be read, three times."""
    actor = await organization(pool)
    await pool.execute(EARLIER, actor.organization_id, uuid7_floor(clock.now() - 5 * DAY))
    await execute(database_server.as_administrator(database_url), "VACUUM (ANALYZE) attempts")  # what autovacuum does
    await read(pool, back=10 * MINUTE)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("UPDATE contact_readings SET read_to = now() - lag - interval '30 seconds'")
        before = await conn.fetchval(ROWS_READ)
        await recency.read(conn)
        # The last pages are always read: they are not in the index yet.
        assert await conn.fetchval(ROWS_READ) - before < len(recency.LAGS) * 60_000 / 2
