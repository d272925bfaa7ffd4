"""Retention on a real database: what has expired is removed, the rest stays, and nobody waits for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from structlog.testing import capture_logs

from heliograph.accounts import plans, usage
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.migrate import DAILY, PARTITIONED, day_name, make_days, make_partitions
from heliograph.base.database.pool import Connection, Pool, follow_clock
from heliograph.base.database.retention_rules import Counted, Sums
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.queue import holds
from heliograph.queue.holds import Selection
from heliograph.retention import forgetting, partitioned_tables
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.reports import parts
from heliograph.sms.reports.keys import PartId
from tests.rules.factories import blocked, check_ledger, organization, send

pytestmark = pytest.mark.usefixtures("partitions_ahead")
SETTINGS = Settings(secret_key="a secret key for tests, long enough")
NOW = datetime.now(UTC)


async def forget(pool: Pool, settings: Settings = SETTINGS) -> None:
    async with pool.acquire() as conn:
        await forgetting.forget(conn, settings)


STORE = """
INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, encoding, segments, guarantee,
                      country, body, request_id, balance_after, accepted_at)
VALUES ($1, $2, 'delivered', $3, '1', '1', $2, 'gsm7', 2, 'at_least_once', 'MZ', 'x', '', $4, $5)
"""


async def text(pool: Pool, age: timedelta) -> UUID:
    """A message with a text, accepted this long ago."""
    id = UUID(int=uuid7_floor(NOW - age).int + 1)
    await pool.execute(STORE, uuid7(), id, "live", 0, NOW - age)
    return id


async def used(pool: Pool, actor: Actor, age: timedelta) -> UUID:
    """A live message of an organization, accepted this long ago, and its unit of quota."""
    id = UUID(int=uuid7_floor(NOW - age).int + 1)
    spent = "UPDATE quotas SET used = used + 1 WHERE organization_id = $1 RETURNING total - used"
    left = await pool.fetchval(spent, actor.organization_id)
    await pool.execute(STORE, actor.organization_id, id, "live", left, NOW - age)
    return id


async def texts(pool: Pool) -> list[UUID]:
    """Messages that still have their text."""
    return [row["id"] for row in await pool.fetch("SELECT id FROM messages WHERE body IS NOT NULL")]


async def test_texts_are_erased_after_their_time(pool: Pool) -> None:
    async with pool.acquire() as conn:
        for back in (31, 62):
            await make_partitions(conn, (NOW - timedelta(days=back)).date(), ahead=0)
    old = [await text(pool, timedelta(days=days)) for days in (30.01, 31, 60, 90, 390)]
    young = [await text(pool, timedelta(days=days)) for days in (0, 1, 29.9)]
    await forget(pool)
    assert set(await texts(pool)) == set(young)
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE id = ANY ($1)", old) == len(old)


async def test_the_text_of_a_message_for_later_stays_until_its_time_has_passed(pool: Pool) -> None:
    """A send may be scheduled a year ahead, and texts are kept for a month."""
    waits, past, gone = [await text(pool, timedelta(days=days)) for days in (40, 100, 101)]
    for id, since in ((waits, -3), (past, 29), (gone, 31)):
        await pool.execute("UPDATE messages SET send_at = $2 WHERE id = $1", id, NOW - timedelta(days=since))
    await forget(pool)
    assert set(await texts(pool)) == {waits, past}
    # A row that a sweep has passed over is found again when its own time is over.
    for id in (waits, past):
        await pool.execute("UPDATE messages SET send_at = $2 WHERE id = $1", id, NOW - timedelta(days=30, hours=1))
    await pool.execute("UPDATE retention_places SET done_until = done_until - interval '2 hours'")
    await forget(pool)
    assert await texts(pool) == []


@pytest.mark.parametrize("is_scheduled", [False, True])
async def test_what_may_still_be_sent_keeps_its_text_and_loses_it_a_week_later(pool: Pool, is_scheduled: bool) -> None:
    """Texts may be kept for a day, while a message is valid for three, and waits for the end of quiet hours besides."""
    short = msgspec.structs.replace(SETTINGS, text_retention_days=1)
    sent, waiting, lost = [await text(pool, timedelta(days=days)) for days in (2, 2.1, 8.1)]
    await pool.execute("UPDATE messages SET status = 'accepted' WHERE id = ANY ($1)", [waiting, lost])
    if is_scheduled:
        await pool.execute("UPDATE messages SET send_at = accepted_at")
    await forget(pool, short)
    assert await texts(pool) == [waiting]
    assert await pool.fetchval("SELECT body IS NULL FROM messages WHERE id = $1", sent)
    # It was sent in time. The sweep has passed it, and another one finds it.
    await pool.execute("UPDATE messages SET status = 'delivered'")
    await forget(pool, short)
    assert await texts(pool) == [waiting]
    ago = "accepted_at = accepted_at - interval '6 days', send_at = send_at - interval '6 days'"
    await pool.execute(f"UPDATE messages SET {ago}")
    back = "UPDATE retention_places SET done_until = done_until - interval '3 hours' WHERE name LIKE '%unsent at first'"
    await pool.execute(back)
    await forget(pool, short)
    assert await texts(pool) == []


async def test_what_was_swept_before_there_were_two_sweeps_is_not_read_again(pool: Pool) -> None:
    """Of a database that had existed for long, that took longer than a statement may, so that each round failed."""
    ages = 200, 50, 45, 36
    swept, lost, sent, waiting = [await text(pool, timedelta(days=days)) for days in ages]
    await pool.execute("UPDATE messages SET status = 'accepted' WHERE id = ANY ($1)", [lost, waiting])
    await pool.execute("INSERT INTO retention_places VALUES ('messages', $1)", NOW - timedelta(days=60))
    await forget(pool)
    bodies = dict(await pool.fetch("SELECT id, body FROM messages"))
    assert bodies == {swept: "x", lost: None, sent: None, waiting: "x"}


async def test_a_message_for_later_stays_however_short_messages_are_kept(pool: Pool) -> None:
    """A send may be scheduled a year ahead. Everything else accepted in its month is removed in time, with its sums."""
    short = msgspec.structs.replace(SETTINGS, metadata_retention_months=1)
    async with pool.acquire() as conn:
        await make_partitions(conn, (NOW - timedelta(days=100)).date(), ahead=0)
    actor = await organization(pool, quota=10)
    past, waits = [await used(pool, actor, timedelta(days=days)) for days in (100.1, 100)]
    await pool.execute("UPDATE messages SET status = 'accepted', send_at = $2 WHERE id = $1", waits, NOW + timedelta(1))
    for _ in range(2):
        await forget(pool, short)
        assert await texts(pool) == [waits]
        assert await pool.fetchval("SELECT count(*) FROM messages WHERE id = $1", past) == 0
        await check_ledger(pool, [actor.organization_id], gone={actor.organization_id: 1})
    # Once its own time has passed, the month is dropped as a whole.
    await pool.execute("UPDATE messages SET status = 'delivered', send_at = $1", NOW - timedelta(days=32))
    await forget(pool, short)
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0
    assert await pool.fetchval("SELECT count(*) FROM usage_closed") == 1
    await check_ledger(pool, [actor.organization_id], gone={actor.organization_id: 2})


async def test_the_addresses_of_people_who_never_accepted_an_invitation_go(pool: Pool) -> None:
    acme = await organization(pool)
    for name, days in (("long", 31), ("lately", 29), ("still", -2)):
        await pool.execute(
            "INSERT INTO invitations (organization_id, id, email, role, token_hash, created_at, expires_at)"
            " VALUES ($1, gen_random_uuid(), $2 || '@example.com', 'viewer', sha256($2::text::bytea), now(),"
            " now() - make_interval(days => $3))",
            acme.organization_id,
            name,
            days,
        )
    await forget(pool)
    kept = {row["email"] for row in await pool.fetch("SELECT email FROM invitations")}
    assert kept == {"lately@example.com", "still@example.com"}


async def test_large_amounts_go_in_steps(pool: Pool) -> None:
    await text(pool, timedelta(days=31))
    await pool.execute(
        "INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, encoding, segments,"
        " guarantee, country, body, request_id, balance_after, accepted_at) SELECT organization_id, gen_random_uuid(),"
        " status, mode, recipient, sender, sender_id, encoding, segments, guarantee, country, body, request_id,"
        " balance_after, accepted_at FROM messages, generate_series(1, 5000)"
    )
    await forget(pool)
    assert await pool.fetchrow("SELECT count(*), count(body) FROM messages") == (5001, 0)


async def test_idempotency_keys_go_after_72_hours(pool: Pool) -> None:
    """Also while restored data is held."""
    actor = await organization(pool)
    for hours in (71, 73):
        await pool.execute(
            "INSERT INTO idempotency VALUES ($1, $2, $3, 202, '{}', now() - make_interval(hours => $4))",
            actor.organization_id,
            uuid7(),
            b"x" * 32,
            hours,
        )
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(kinds=("sms",)), reason="a backup", restored=True)
        assert await forgetting.forget_keys(conn, SETTINGS) == 1
    assert await pool.fetchval("SELECT count(*) FROM idempotency") == 1


async def test_days_of_keys_are_made_ahead_and_dropped_when_all_of_their_keys_are_past(
    pool: Pool, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    today = (await pool.fetchval("SELECT now()")).astimezone(UTC).date()
    async with pool.acquire() as conn:
        await make_days(conn, today - timedelta(days=9), ahead=9)
    await as_owner(f"DROP TABLE {day_name('send_keys', today + timedelta(days=1))}")
    for days in (400, 1):  # strays: in no day's partition
        await pool.execute(
            "INSERT INTO send_keys VALUES ($1, $1, $2, $3, $1, now() - make_interval(days => $4))",
            uuid7(),
            today - timedelta(days=400),
            b"x" * 32,
            days,
        )
    await forget(pool)
    kept = {name for name in await partitions(pool) if re.fullmatch(r"send_keys_(rest|[0-9_]+)", name)}
    assert kept == {day_name("send_keys", today + timedelta(days=n)) for n in range(-3, 4)} | {"send_keys_rest"}
    assert await pool.fetchval("SELECT count(*) FROM send_keys") == 1


async def test_partitions_that_are_wholly_past_are_dropped_each_table_by_its_own_time(pool: Pool) -> None:
    ages = {"messages": 13 * 31, "attempts": 13 * 31, "events": 90, "receipts": 93}
    ages["webhook_attempts"] = 30
    began = datetime.now(UTC)
    async with pool.acquire() as conn:
        for back in range(17):
            await make_partitions(conn, (began - timedelta(days=28 * back)).date(), ahead=0)
        past = {one.name: one for one in await partitioned_tables.list_all(conn, SETTINGS)}
    await forget(pool)
    ended = datetime.now(UTC)
    async with pool.acquire() as conn:
        kept = {one.name: one for one in await partitioned_tables.list_all(conn, SETTINGS)}
    # Everything reported as due is gone, and nothing else.
    assert kept.keys() == {*PARTITIONED, *DAILY}
    for name, one in past.items():
        assert one.next_drop is not None, name
        if not began < one.next_drop <= ended:  # midnight came meanwhile, perhaps too late for it
            assert (one.partitions > kept[name].partitions) is (one.next_drop <= began), name
    for name, one in kept.items():
        assert one.next_drop is None or one.next_drop > began, name
        assert one.bytes >= one.next_bytes > 0, name
    assert kept["messages"].kept == timedelta(days=31 * SETTINGS.metadata_retention_months)
    rows = await pool.fetch(
        "SELECT inhparent::regclass::text AS parent, inhrelid::regclass::text AS child FROM pg_inherits"
        " JOIN pg_class ON pg_class.oid = inhparent WHERE relkind = 'p'"
    )
    for table, days in ages.items():
        months = sorted(row["child"][-7:] for row in rows if row["parent"] == table and "rest" not in row["child"])
        assert months[0] in {f"{now - timedelta(days=days):%Y_%m}" for now in (began, ended)}, table
        oldest = kept[table].oldest
        assert oldest is not None
        assert f"{oldest:%Y_%m_%d}" == f"{months[0]}_01", table
        assert any(row["child"] == f"{table}_rest" for row in rows)


async def test_ids_of_suppliers_are_kept_for_late_receipts_and_then_go(pool: Pool) -> None:
    async with pool.acquire() as conn:
        for days in (9, 45):
            await make_partitions(conn, (NOW - timedelta(days=days)).date(), ahead=0)
            await parts.keep(conn, [PartId(uuid7(), "k", uuid7(), 1, 1, 2, uuid7(), "")], NOW - timedelta(days=days))
    await pool.execute("INSERT INTO workers VALUES ($1, 'gone', now(), now() - interval '2 days')", uuid7())
    await pool.execute("INSERT INTO workers VALUES ($1, 'here', now(), now())", uuid7())
    await forget(pool)
    assert await pool.fetchval("SELECT count(*) FROM sms_parts") == 1
    assert [row[0] for row in await pool.fetch("SELECT name FROM workers")] == ["here"]


async def test_partitions_ahead_are_made(pool: Pool, as_owner: Callable[[str], Awaitable[None]]) -> None:
    coming = f"messages_{(NOW.replace(day=1) + timedelta(days=31)):%Y_%m}"  # also if this month ends meanwhile
    await as_owner(f"DROP TABLE {coming}")
    await forget(pool)
    assert await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", coming)


async def test_a_long_reader_is_not_waited_for_and_nobody_waits_behind_it(pool: Pool) -> None:
    """Dropping a partition locks the whole table for an instant; a dump may read it for hours."""
    async with pool.acquire() as conn:
        await make_partitions(conn, (NOW - timedelta(days=500)).date(), ahead=0)
    name = f"messages_{NOW - timedelta(days=500):%Y_%m}"
    actor = await organization(pool, quota=1_000_000)  # as many as are accepted meanwhile
    acceptor = Acceptor(pool)
    async with pool.acquire() as reader, reader.transaction():
        await reader.fetch("SELECT FROM messages")
        forgetting = asyncio.create_task(forget(pool))
        while not forgetting.done():
            async with asyncio.timeout(120):
                assert (await acceptor.accept(send(actor))).status == 202
        await forgetting
        assert await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", name)
    await forget(pool)
    assert await pool.fetchval("SELECT to_regclass($1) IS NULL", name)


@pytest.mark.parametrize("days", [1, 7])
async def test_times_are_settings(pool: Pool, days: int) -> None:
    settings = msgspec.structs.replace(SETTINGS, text_retention_days=days)
    await text(pool, timedelta(days=days, hours=1))
    stays = await text(pool, timedelta(days=days) - timedelta(hours=1))
    await forget(pool, settings)
    assert await texts(pool) == [stays]


# -- clocks ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wrong_clock() -> Iterator[None]:
    """This process's clock is 430 days ahead, and it has not read the database's."""
    clock.arm(str(timedelta(days=430).total_seconds()))
    yield
    clock.arm("")


async def test_what_is_past_is_past_by_the_databases_clock(pool: Pool, wrong_clock: None) -> None:
    await text(pool, timedelta(0))
    await pool.execute("INSERT INTO idempotency VALUES ($1, $1, $2, 202, '{}', now())", uuid7(), b"x" * 32)
    before = await partitions(pool)
    await forget(pool)
    async with pool.acquire() as conn:
        assert await forgetting.forget_keys(conn, SETTINGS) == 0
    assert await partitions(pool) == before
    assert await pool.fetchval("SELECT count(body) FROM messages") == 1


async def test_a_period_of_a_plan_ends_by_the_databases_clock(pool: Pool, wrong_clock: None) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await plans.subscribe(conn, actor.organization_id, plans.Terms("monthly", 100), now=NOW)
        assert await plans.renew(conn) == 0
        await conn.execute("UPDATE organizations SET period_end = now() - interval '1 second'")
        assert await plans.renew(conn) == 1
    assert await pool.fetchval("SELECT period_end - now() < interval '32 days' FROM organizations")


async def test_nothing_is_forgotten_while_the_clocks_differ(pool: Pool, wrong_clock: None) -> None:
    await text(pool, timedelta(days=40))
    async with pool.acquire() as conn:
        await follow_clock(conn)
        with capture_logs() as logs:
            assert await forgetting.forget(conn, SETTINGS)
    assert [line["event"] for line in logs] == ["retention suspended while the clocks differ"]
    assert await pool.fetchval("SELECT count(body) FROM messages") == 1


async def test_nothing_that_was_restored_is_forgotten_before_it_is_released(
    pool: Pool, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """Everything in last year's backup is past its time, including its queue."""
    await text(pool, timedelta(days=40))
    coming = day_name("send_keys", NOW.date() + timedelta(days=1))  # also if this day ends meanwhile
    await as_owner(f"DROP TABLE {coming}")
    async with pool.acquire() as conn:
        await holds.hold(conn, Selection(kinds=("sms",)), reason="a backup", restored=True)
        with capture_logs() as logs:
            assert await forgetting.forget(conn, SETTINGS)
        assert [line["event"] for line in logs] == ["retention suspended while restored data is held"]
        assert coming in await partitions(pool), "what is written from now on has its place"
        assert await conn.fetchval("SELECT count(body) FROM messages") == 1
        await holds.release(conn, Selection())
    await forget(pool)
    assert await texts(pool) == []


async def test_a_past_partition_that_holds_a_young_row_stays(pool: Pool) -> None:
    """A wrong clock made its id; the row is from today."""
    actor = await organization(pool)
    past = NOW - timedelta(days=500)
    async with pool.acquire() as conn:
        await make_partitions(conn, past.date(), ahead=0)
    id = UUID(int=uuid7_floor(past).int + 1)
    await pool.execute(STORE, actor.organization_id, id, "live", 0, NOW)
    await pool.execute("INSERT INTO retention_places VALUES ('messages', now() - interval '31 days')")
    month = f"{past:%Y_%m}"
    with capture_logs() as logs:
        await forget(pool)
    # The audit log is kept for longer.
    left = {name for name in await partitions(pool) if name.endswith(month)}
    assert left == {f"messages_{month}", f"audit_log_{month}"}
    assert {line["partition"] for line in logs if "partition" in line} == {f"messages_{month}"}
    assert await pool.fetchval("SELECT count(body) FROM messages") == 1
    await pool.execute("UPDATE messages SET accepted_at = $1", past)
    await forget(pool)
    assert {name for name in await partitions(pool) if name.endswith(month)} == {f"audit_log_{month}"}


async def partitions(pool: Pool) -> set[str]:
    rows = await pool.fetch("SELECT inhrelid::regclass::text AS name FROM pg_inherits")
    return {row["name"] for row in rows}


# -- steps -------------------------------------------------------------------------------------------------------------


async def test_a_step_that_takes_too_long_is_named_and_the_next_ones_go_on(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "STATEMENT_MS", 100)
    await pool.execute("INSERT INTO workers VALUES ($1, 'gone', now(), now() - interval '2 days')", uuid7())
    async with pool.acquire() as holder, holder.transaction():
        await holder.execute("LOCK TABLE automatic_replies, whatsapp_dead_letters")
        with capture_logs() as logs:
            await forget(pool)
    assert await pool.fetchval("SELECT count(*) FROM workers") == 0
    slow = {line["step"] for line in logs if line["event"] == "retention step timed out"}
    assert {"automatic replies", "dead letters"} <= slow


async def test_a_step_that_fails_is_told_and_the_next_ones_go_on(pool: Pool) -> None:
    async def broken(conn: Connection) -> bool:
        return bool(await conn.fetchval("SELECT 1 / 0"))

    async def last(conn: Connection) -> bool:
        done.append(1)
        return True

    done: list[int] = []
    async with pool.acquire() as conn:
        with capture_logs() as logs:
            assert await forgetting.forget(
                conn, SETTINGS, also=[forgetting.Step("broken", broken), forgetting.Step("last", last)]
            )
    assert done == [1]
    assert [line["step"] for line in logs if line["event"] == "retention step failed"] == ["broken"]


async def test_a_round_has_a_bound_and_the_next_one_goes_on(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "STEP", 3)
    monkeypatch.setattr(forgetting, "ROWS", 6)
    for place in (None, NOW - timedelta(days=45)):  # the first sweep ever, and one that goes on
        await pool.execute("DELETE FROM retention_places")
        if place is not None:
            await pool.execute("INSERT INTO retention_places VALUES ('messages', $1)", place)
        for n in range(14):
            await text(pool, timedelta(days=31, minutes=n))
        young = await text(pool, timedelta(days=1))
        left = []
        async with pool.acquire() as conn:
            while not await forgetting.forget(conn, SETTINGS):
                left.append(await conn.fetchval("SELECT count(body) FROM messages"))
        assert left  # it took more than one round
        assert left == sorted(set(left), reverse=True)
        assert await texts(pool) == [young]
        await pool.execute("DELETE FROM messages")


async def test_a_sweep_that_takes_too_long_goes_on_in_shorter_times(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = forgetting._once

    async def slow(conn: Connection, sql: str, *values: Any) -> int:
        if "UPDATE messages SET body" in sql and timedelta(minutes=20) < values[1] - values[0] < timedelta(days=99):
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")
        return await once(conn, sql, *values)

    monkeypatch.setattr(forgetting, "_once", slow)
    await pool.execute("INSERT INTO retention_places VALUES ('messages', $1)", NOW - timedelta(days=30, hours=5))
    await text(pool, timedelta(days=30, hours=1))
    await forget(pool)
    assert await texts(pool) == []


async def test_texts_go_after_a_clock_that_was_ahead_has_been_set_back(pool: Pool) -> None:
    await pool.execute("INSERT INTO retention_places VALUES ('messages', $1)", NOW + timedelta(days=300))
    await forget(pool)
    assert await pool.fetchval("SELECT done_until < now() FROM retention_places WHERE name = 'messages'")
    await pool.execute("UPDATE retention_places SET done_until = done_until - interval '2 days'")
    await text(pool, timedelta(days=31))
    await forget(pool)
    assert await texts(pool) == []


async def test_what_suppliers_wrote_in_receipts_goes_by_the_day_with_the_texts(pool: Pool) -> None:
    async def kept(days: int) -> UUID:
        id = uuid7()
        await pool.execute(
            "INSERT INTO receipt_bytes SELECT (at AT TIME ZONE 'UTC')::date, $1, '{}', '{said}', at"
            "  FROM (SELECT now() - make_interval(days => $2) AS at) a",
            id,
            days,
        )
        return id

    async with pool.acquire() as conn:
        for days in (33, 32, 29, 3, 0):
            await make_days(conn, (NOW - timedelta(days=days)).date(), ahead=0)
    young = {await kept(days) for days in (0, 3, 29)}
    for days in (32, 33, 50):  # the last one in no day's partition
        await kept(days)
    await forget(pool)
    assert {row[0] for row in await pool.fetch("SELECT id FROM receipt_bytes")} == young
    await forget(pool, msgspec.structs.replace(SETTINGS, text_retention_days=2))
    assert await pool.fetchval("SELECT count(*) FROM receipt_bytes") == 1


# -- what was used -----------------------------------------------------------------------------------------------------


async def books(pool: Pool, organization_id: UUID) -> tuple[int, int]:
    """The remaining quota by the balance, and by the ledger."""
    row = await pool.fetchrow(
        "SELECT (SELECT total - used FROM quotas WHERE organization_id = $1),"
        "       (SELECT sum(quantity) FROM usage_entries WHERE organization_id = $1)::bigint",
        organization_id,
    )
    assert row is not None
    return row[0], row[1]


async def test_what_was_used_adds_up_after_its_messages_are_gone(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A month is counted in steps and rounds; none of it shows before the commit that drops its messages."""
    monkeypatch.setattr(forgetting, "STEP", 3)
    monkeypatch.setattr(forgetting, "ROWS", 6)
    past = NOW - timedelta(days=500)
    async with pool.acquire() as conn:
        await make_partitions(conn, past.date(), ahead=0)
    actors = [await organization(pool, quota=100) for _ in range(2)]
    for n, actor in enumerate([actors[0]] * 11 + [actors[1]] * 4):
        id = UUID(int=uuid7_floor(past).int + n)
        await pool.execute(STORE, actor.organization_id, id, "test" if n == 5 else "live", 50 - n, past)
    # Its id is in no existing month: it is removed individually.
    await pool.execute(STORE, actors[1].organization_id, UUID(int=1), "live", 1, past)
    await pool.execute(
        "UPDATE quotas SET used = CASE organization_id WHEN $1 THEN 10 ELSE 5 END", actors[0].organization_id
    )
    partition, rounds = f"messages_{past:%Y_%m}", 0
    while await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", partition):
        await forget(pool)
        rounds += 1
        assert rounds < 100
        for actor, left in zip(actors, (90, 95), strict=True):
            assert await books(pool, actor.organization_id) == (left, left)
    assert rounds > 2
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0
    async with pool.acquire() as conn:
        granted, summed = (await usage.list_page(conn, actors[0], limit=5)).entries
    assert (granted.type, granted.quantity) == ("grant", 100)
    assert (summed.type, summed.quantity, summed.segments, summed.balance_after) == ("usage", -10, 20, 40)
    assert (summed.message_id, summed.reason) == (None, f"sum of {past:%Y-%m}")
    assert f"{summed.created_at.astimezone(UTC):%Y-%m}" == f"{past:%Y-%m}"


async def test_a_month_that_two_rounds_add_up_at_once_is_counted_once(pool: Pool) -> None:
    """A round may take longer than the timer's period, or its worker was frozen: another worker begins one."""
    past = NOW - timedelta(days=500)
    async with pool.acquire() as conn:
        await make_partitions(conn, past.date(), ahead=0)
    actor = await organization(pool, quota=100)
    for n in range(3):
        await pool.execute(STORE, actor.organization_id, UUID(int=uuid7_floor(past).int + n), "live", 97, past)
    partition, month = f"messages_{past:%Y_%m}", past.replace(day=1)
    began, others = asyncio.Event(), list[asyncio.Task[Any]]()

    async def count(conn: Connection, **named: Any) -> Counted | None:
        if not began.is_set():  # the first of the two
            began.set()
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        return await usage.count(conn, **named)

    async def sum_up() -> bool:
        async with pool.acquire() as conn:
            return await forgetting._sum_up(conn, Sums(count, usage.close), partition, month)

    async def second() -> bool:
        await began.wait()
        return await sum_up()

    others += [asyncio.create_task(second()), asyncio.create_task(blocked(pool))]
    assert await sum_up()
    assert await others[0]
    others[1].cancel()
    assert await pool.fetchval("SELECT messages FROM usage_months") == 3


async def test_a_partition_that_another_round_drops_meanwhile_counts_as_dropped(pool: Pool) -> None:
    """The later of two rounds logged a traceback, and left what is after that partition for its next one."""
    days, months = (
        [NOW - timedelta(days=back) for back in (400, 399)],
        [NOW - timedelta(days=back) for back in (600, 560)],
    )
    async with pool.acquire() as conn:
        for day in days:
            await make_days(conn, day.date(), ahead=0)
        for month in months:
            await make_partitions(conn, month.date(), ahead=0)
    gone = {day_name("send_keys", days[0].date()), f"messages_{months[0]:%Y_%m}"}
    assert gone < set(await partitions(pool))

    class Late:
        """A connection of a round that has looked which partitions there are when another one drops some."""

        def __init__(self, conn: Connection) -> None:
            self._conn = conn

        async def fetch(self, query: str, *arguments: Any) -> list[asyncpg.Record]:
            found = await self._conn.fetch(query, *arguments)
            for name in gone & {row["relname"] for row in found} if query == forgetting.PARTITIONS else ():
                await pool.execute("SELECT drop_partition($1)", name)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._conn, name)

    with capture_logs() as said:
        async with pool.acquire() as conn:
            late: Any = Late(conn)
            assert await forgetting.forget(late, SETTINGS)
    assert [entry for entry in said if entry["log_level"] == "error"] == []
    left = set(await partitions(pool))
    assert not left & gone
    assert not left & {day_name("send_keys", days[1].date()), f"messages_{months[1]:%Y_%m}"}


async def test_messages_that_are_gone_are_listed_in_the_month_in_which_they_were_accepted(pool: Pool) -> None:
    """A message's id is generated before it is accepted, so the last one of a month may count in the next."""
    ends = (NOW - timedelta(days=500)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begins, last = (ends - timedelta(days=1)).replace(day=1), (ends + timedelta(days=31)).replace(day=1)
    async with pool.acquire() as conn:
        await make_partitions(conn, begins.date(), ahead=1)
    actor, moment = await organization(pool, quota=10), timedelta(milliseconds=20)
    for left, (made, at) in enumerate(
        [(ends + moment, ends + moment), (ends - moment, ends + moment / 2), (ends - 2 * moment, ends - moment)],
        start=7,
    ):
        id = UUID(int=uuid7_floor(made).int + 1)
        await pool.execute(STORE, actor.organization_id, id, "live", left, at)
    await pool.execute("UPDATE quotas SET used = 3 WHERE organization_id = $1", actor.organization_id)

    async def listed() -> list[tuple[int, int]]:
        """The messages listed in each of the two months, and the balance after them."""
        found = []
        for since, until in ((begins, ends), (ends, last)):
            async with pool.acquire() as conn:
                entries = (await usage.list_page(conn, actor, date_from=since, date_to=until)).entries
            found.append((sum(-one.quantity for one in entries), entries[0].balance_after))
        return found

    async def drop(month: datetime) -> None:
        partition = f"messages_{month:%Y_%m}"
        async with pool.acquire() as conn, conn.transaction():
            after = UUID(int=0), UUID(int=0)
            while done := await usage.count(conn, partition=partition, month=month.date(), after=after, limit=1):
                after = done.last
            await usage.close(conn, source=partition)
            await conn.execute(f"DELETE FROM {partition}")

    assert await listed() == [(1, 9), (2, 7)]
    for month in (begins, ends):
        await drop(month)
        assert await listed() == [(1, 9), (2, 7)]
        assert await books(pool, actor.organization_id) == (7, 7)
