"""Accepting a campaign's messages by the thousand: the same rows as one by one, all of them or none."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.sealing.text_keys import Sealing
from heliograph.whatsapp.accepting.accept import Acceptor, Send, TemplateSend
from heliograph.whatsapp.accepting.bulk import Bulk, accept_bulk
from tests.rules import whatsapp_factories
from tests.rules.factories import TO, blocked
from tests.rules.whatsapp_factories import Made, check_wallets, made

PRICE = 10_000
#: A transaction that waits for a lock has written to the ledger.
BOOKED = """
SELECT bool_and(EXISTS (
           SELECT FROM pg_locks
            WHERE pid = waiting.pid AND relation = 'wallet_movements'::regclass AND mode = 'RowExclusiveLock'))
  FROM pg_locks waiting WHERE NOT waiting.granted
"""


async def accept(pool: Pool, one: Made, recipients: list[str], **values: Any) -> int | None:
    count = len(recipients)
    bulk = Bulk(
        **{
            "organization_id": one.organization_id,
            "mode": "live",
            "campaign_id": uuid7(),
            "number_id": one.number_id,
            "template_id": one.template_id,
            "template_name": "order_shipped",
            "template_language": "en",
            "category": "utility",
            "ttl_seconds": None,
            "currency": "EUR",
            "request_id": "req",
            "ids": [uuid7() for _ in recipients],
            "recipients": recipients,
            "parameters": [("Ana", str(n)) for n in range(count)],
            "prices": [PRICE] * count,
            "countries": ["MZ"] * count,
            "due": [],
            **values,
        }
    )
    async with pool.acquire() as conn, conn.transaction():
        return await accept_bulk(conn, bulk, at=clock.now(), sealing=Sealing())


def numbers(count: int) -> list[str]:
    return [f"+25884{n:07}" for n in range(count)]


async def test_all_of_them_or_none(pool: Pool) -> None:
    one = await made(pool, balance=10 * PRICE)
    assert await accept(pool, one, numbers(11)) is None
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages") == 0
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations") == 0
    assert await accept(pool, one, numbers(9)) == PRICE
    assert await accept(pool, one, numbers(1), currency="USD") is None
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE lane = 1 AND kind = 'whatsapp'") == 9
    await check_wallets(pool, [one.organization_id])


async def test_the_rows_are_those_of_a_single_send(pool: Pool) -> None:
    one = await made(pool)
    content = TemplateSend("order_shipped", "en", "utility", ("Ana", "0"))
    campaign_id = uuid7()
    acceptor = Acceptor(pool, settings=Settings())
    await acceptor.accept(
        Send(
            actor=one.actor,
            to=TO,
            number_id=one.number_id,
            content=content,
            request_id="req",
            campaign_id=campaign_id,
            lane=1,
        )
    )
    await accept(pool, one, [TO], campaign_id=campaign_id)
    own = {"id", "accepted_at", "deadline_at"}
    rows = [dict(row) for row in await pool.fetch("SELECT * FROM whatsapp_messages ORDER BY id")]
    assert len(rows) == 2
    assert rows[0]["deadline_at"] - rows[0]["accepted_at"] == rows[1]["deadline_at"] - rows[1]["accepted_at"]
    assert {k: v for k, v in rows[0].items() if k not in own} == {k: v for k, v in rows[1].items() if k not in own}
    contents = await pool.fetch("SELECT content FROM whatsapp_messages")
    assert len({msgspec.json.encode(msgspec.json.decode(row[0])) for row in contents}) == 1
    for table in ("queue", "wallet_movements"):
        kept = await pool.fetch(f"SELECT * FROM {table} WHERE id = ANY ($1) ORDER BY id", [row["id"] for row in rows])
        changing = {"id", "due_at", "created_at", "message_id"}
        first, second = ({k: v for k, v in row.items() if k not in changing} for row in kept)
        assert first == second
    await check_wallets(pool, [one.organization_id])


async def test_what_is_free_is_accepted_whatever_the_wallet_holds(pool: Pool) -> None:
    one = await made(pool, balance=0)
    await whatsapp_factories.conversation(pool, one, free=timedelta(hours=1))
    await pool.execute("UPDATE wallets SET available = -5, total = -5")
    assert await accept(pool, one, [TO]) == -5
    assert await accept(pool, one, numbers(1)) is None
    assert await accept(pool, one, numbers(2), mode="test") == -5
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE charge = 'none'") == 2


async def test_what_is_due_once_the_free_hours_are_over_reserves_its_price(pool: Pool) -> None:
    one = await made(pool, balance=PRICE)
    await whatsapp_factories.conversation(pool, one, free=timedelta(hours=1))
    at = clock.now()
    assert await accept(pool, one, [TO], due=[at + timedelta(minutes=30)]) == PRICE
    assert await accept(pool, one, [TO], due=[at + timedelta(hours=2)]) == 0
    assert await accept(pool, one, [TO], due=[at + timedelta(hours=2)]) is None
    await check_wallets(pool, [one.organization_id])


async def test_a_chunk_to_known_users_takes_the_wallet_last(pool: Pool, database_url: str) -> None:
    """Single sends wait for the wallet: a chunk that waits for it as well has done everything else."""
    one = await made(pool, balance=10 * PRICE)
    assert await accept(pool, one, numbers(3)) == 7 * PRICE
    other = await asyncpg.connect(database_url)
    try:
        async with other.transaction():
            await other.execute("SELECT FROM wallets FOR UPDATE")
            accepting = asyncio.create_task(accept(pool, one, numbers(3)))
            await blocked(pool)
            assert await pool.fetchval(BOOKED)
        assert await accepting == 4 * PRICE
    finally:
        await other.close()
    await check_wallets(pool, [one.organization_id])


async def test_two_chunks_at_once_spend_no_more_than_there_is(pool: Pool) -> None:
    one = await made(pool, balance=5 * PRICE)
    assert await accept(pool, one, numbers(3)) == 2 * PRICE
    left = await asyncio.gather(accept(pool, one, numbers(2)), accept(pool, one, numbers(2)))
    assert sorted(left, key=str) == [0, None]
    await check_wallets(pool, [one.organization_id])
