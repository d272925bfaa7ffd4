"""Forgetting on a real database: what is past goes, what is not stays, and nobody waits for it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest

from heliograph import retention
from heliograph.base.db import Pool
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.base.migrate import make_partitions
from heliograph.base.settings import Settings
from heliograph.sms.accept import Acceptor
from tests.rules.making import organization, send

SETTINGS = Settings(secret_key="a secret key for tests, long enough")
NOW = datetime.now(UTC)


async def forget(pool: Pool, settings: Settings = SETTINGS) -> None:
    async with pool.acquire() as conn:
        await retention.forget(conn, settings)


async def text(pool: Pool, age: timedelta) -> UUID:
    """A text of a message that was accepted so long ago."""
    id = UUID(int=uuid7_floor(NOW - age).int + 1)
    await pool.execute("INSERT INTO message_texts VALUES ($1, $2, 'x')", uuid7(), id)
    return id


async def test_texts_are_erased_after_their_time(pool: Pool) -> None:
    async with pool.acquire() as conn:
        for back in (31, 62):
            await make_partitions(conn, (NOW - timedelta(days=back)).date(), ahead=0)
    old = [await text(pool, timedelta(days=days)) for days in (30.01, 31, 60, 90, 400)]
    young = [await text(pool, timedelta(days=days)) for days in (0, 1, 29.9)]
    await forget(pool)
    assert {row[0] for row in await pool.fetch("SELECT message_id FROM message_texts")} == set(young)
    assert old


async def test_large_amounts_go_in_steps(pool: Pool) -> None:
    await pool.execute(
        "INSERT INTO message_texts SELECT gen_random_uuid(), gen_random_uuid(), 'x' FROM generate_series(1, 5001)"
    )
    await pool.execute(
        "UPDATE message_texts SET message_id = ('00000000-' || right(message_id::text, 27))::uuid"
    )  # of 1970
    await forget(pool)
    assert await pool.fetchval("SELECT count(*) FROM message_texts") == 0


async def test_idempotency_keys_go_after_72_hours(pool: Pool) -> None:
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
        assert await retention.forget_keys(conn, SETTINGS) == 1
    assert await pool.fetchval("SELECT count(*) FROM idempotency") == 1


async def test_partitions_that_are_wholly_past_are_dropped_each_table_by_its_own_time(pool: Pool) -> None:
    ages = {"messages": 13 * 31, "sms_attempts": 13 * 31, "events": 13 * 31, "message_texts": 30, "receipts": 93}
    ages["webhook_attempts"] = 30
    async with pool.acquire() as conn:
        for back in range(17):
            await make_partitions(conn, (NOW - timedelta(days=28 * back)).date(), ahead=0)
    await forget(pool)
    rows = await pool.fetch(
        "SELECT inhparent::regclass::text AS parent, inhrelid::regclass::text AS child FROM pg_inherits"
        " JOIN pg_class ON pg_class.oid = inhparent WHERE relkind = 'p'"
    )
    for table, days in ages.items():
        months = sorted(row["child"][-7:] for row in rows if row["parent"] == table and "rest" not in row["child"])
        first_kept = NOW - timedelta(days=days)
        assert months[0] == f"{first_kept:%Y_%m}", table
        assert any(row["child"] == f"{table}_rest" for row in rows)


async def test_ids_of_suppliers_are_kept_for_late_receipts_and_then_go(pool: Pool) -> None:
    for days in (9, 11):
        await pool.execute(
            "INSERT INTO sms_parts VALUES ($1, 'k', $1, 1, 1, 1, $1, '', NULL, now() - make_interval(days => $2))",
            uuid7(),
            days,
        )
    await pool.execute("INSERT INTO workers VALUES ($1, 'gone', now(), now() - interval '2 days')", uuid7())
    await pool.execute("INSERT INTO workers VALUES ($1, 'here', now(), now())", uuid7())
    await forget(pool)
    assert await pool.fetchval("SELECT count(*) FROM sms_parts") == 1
    assert [row[0] for row in await pool.fetch("SELECT name FROM workers")] == ["here"]


async def test_partitions_ahead_are_made(pool: Pool) -> None:
    await pool.execute(f"DROP TABLE messages_{NOW:%Y_%m}")
    await forget(pool)
    assert await pool.fetchval("SELECT to_regclass($1) IS NOT NULL", f"messages_{NOW:%Y_%m}")


async def test_a_long_reader_is_not_waited_for_and_nobody_waits_behind_it(pool: Pool) -> None:
    """To drop a partition needs the whole table for an instant; a dump may hold it for hours."""
    async with pool.acquire() as conn:
        await make_partitions(conn, (NOW - timedelta(days=500)).date(), ahead=0)
    name = f"messages_{NOW - timedelta(days=500):%Y_%m}"
    actor = await organization(pool)
    acceptor = Acceptor(pool)
    async with pool.acquire() as reader, reader.transaction():
        await reader.fetch("SELECT FROM messages")
        forgetting = asyncio.create_task(forget(pool))
        while not forgetting.done():
            async with asyncio.timeout(5):
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
    assert [row[0] for row in await pool.fetch("SELECT message_id FROM message_texts")] == [stays]
