"""Suppliers that are down, slow, wrong or silent, over real SMPP: every message ends once, with its true outcome."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from heliograph.base.database.pool import Pool
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from tests.judge import judge, until_settled
from tests.load import Client
from tests.processes import LONG, SMSC, Installation, add_supplier, installation, until, until_true

pytestmark = pytest.mark.lasts(7)

#: After this long without a response, a submit's outcome is unknown.
IMPATIENT = {"response_seconds": 1.0, "window": 100}
FAST = {"HELIOGRAPH_LEASE_SECONDS": "5", "HELIOGRAPH_UNCERTAIN_GRACE_SECONDS": "3"}


@contextlib.asynccontextmanager
async def service(url: str, place: Path, **options: Any) -> AsyncIterator[tuple[Installation, Client]]:
    """An installation whose web process and worker run in this process, and a client."""
    async with (
        installation(url, place, **FAST | options) as made,
        made.serving(),
        Client(made.base_url, made.key) as client,
    ):
        yield made, client


async def send(client: Client, count: int, **fields: Any) -> list[str]:
    """Send messages to new numbers."""
    first = len(client.ledger)
    return await asyncio.gather(*(client.send(f"+25884{n:07d}", **fields) for n in range(first, first + count)))


async def statuses(pool: Pool) -> Counter[str]:
    return Counter({row[0]: row[1] for row in await pool.fetch("SELECT status, count(*) FROM messages GROUP BY 1")})


async def reach(pool: Pool, expected: dict[str, int], *, within: float = 120.0) -> None:
    """Wait until this many messages have each status."""
    found: Counter[str] = Counter()
    try:
        async with asyncio.timeout(within):
            while True:
                found = await statuses(pool)
                if found == expected:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{found} instead of {expected}") from None


async def test_down(database_url: str, pool: Pool, tmp_path: Path) -> None:
    """Messages wait for a supplier that is down, and are submitted once when it is back."""
    async with service(database_url, tmp_path) as (made, client):
        await made.smsc.stop()
        async with made.working():
            await send(client, 30)
            await asyncio.sleep(1)
            assert await statuses(pool) == {"accepted": 30}
            await made.smsc.start()
            await until_settled(made.url)
        assert (await judge(made, client.ledger, in_flight=0)).unknown == 0


async def test_slow(database_url: str, tmp_path: Path) -> None:
    """Responses that take longer than a lease, but arrive: nothing is tried twice."""
    latency = 20.0 if LONG else 7.0
    async with (
        service(database_url, tmp_path, smsc={"latency": latency}, smpp={"window": 100}) as (made, client),
        made.working(),
    ):
        await send(client, 60)
        await until_settled(made.url)
        assert made.smsc.counters.submits == 60
        assert (await judge(made, client.ledger, in_flight=0)).unknown == 0


async def test_answers_after_the_response_timeout_count(database_url: str, tmp_path: Path) -> None:
    """Late responses, before the grace period ends: nothing is sent again, and no outcome stays unknown."""
    slow = {"latency": 1.5}
    async with service(database_url, tmp_path, smsc=slow, smpp=IMPATIENT) as (made, client), made.working():
        await send(client, 60)
        await until_settled(made.url)
        assert made.smsc.counters.submits == 60
        assert (await judge(made, client.ledger, in_flight=0)).unknown == 0


async def test_no_answer_but_a_receipt(database_url: str, tmp_path: Path) -> None:
    """No responses arrive, but receipts show that the messages were delivered."""
    async with service(database_url, tmp_path, smsc={"swallow": 1.0}, smpp=IMPATIENT) as (made, client), made.working():
        await send(client, 60)
        await until_settled(made.url)
        verdict = await judge(made, client.ledger, in_flight=0)
        assert verdict.unknown == 60


async def test_connections_lost_before_the_answer(database_url: str, tmp_path: Path) -> None:
    """Some of the submits in flight were read and some were not: only receipts can tell."""
    async with service(database_url, tmp_path, smsc={"drop_after": 25}) as (made, client), made.working():
        await send(client, 60)
        await until_settled(made.url)
        verdict = await judge(made, client.ledger, in_flight=0)
        assert verdict.unknown > 0


async def test_a_long_message_whose_session_is_lost_in_the_middle(
    database_url: str, pool: Pool, tmp_path: Path
) -> None:
    """The supplier closes the connection after every third submit, which it does not answer. A message is delivered
    when all of its segments were submitted, with one reference."""
    async with service(database_url, tmp_path, smsc={"drop_after": 3}, smpp={"window": 1}) as (made, client):
        async with made.working():
            ids = await send(client, 2, message="x" * 700)
            await until_settled(made.url)
        rows = await pool.fetch("SELECT id, status FROM messages")
        assert {str(row["id"]): row["status"] for row in rows} == dict.fromkeys(ids, "delivered")
        segments: dict[tuple[str, int], set[int]] = {}
        for one in made.smsc.received:
            assert one.body[:3] == bytes((5, 0, 3))
            segments.setdefault((one.destination, one.body[3]), set()).add(one.body[5])
        assert list(segments.values()) == [{1, 2, 3, 4, 5}] * 2, (
            "each message has one reference, and all of it went out"
        )
        assert await pool.fetchval("SELECT count(*) FROM attempts") > 2, "it took more than one attempt"
        assert await pool.fetchval("SELECT count(*) FROM sms_parts WHERE parts <> 5") == 0


READY = "SELECT count(DISTINCT worker_id) FROM supplier_sessions WHERE supplier_id = $1 AND ready"


async def test_order_among_suppliers_holds_with_two_workers(database_url: str, pool: Pool, tmp_path: Path) -> None:
    """The cheap account allows one session, so one of the workers has only the expensive supplier."""
    async with service(database_url, tmp_path) as (made, client):
        dear = Smsc(SmscOptions(**SMSC))
        await dear.start()
        made.smscs.append(dear)
        try:
            async with pool.acquire() as conn:
                cheap_id = await conn.fetchval("SELECT id FROM suppliers")
                dear_id = await add_supplier(conn, made.settings, "dear", dear, sessions=2, priority=20)
            async with made.working():
                await until_true(lambda: pool.fetchval(READY, cheap_id))
                async with made.working():

                    async def both() -> bool:
                        return bool(await pool.fetchval(READY, dear_id) == 2)

                    await until_true(both)
                    await send(client, 100)
                    await until_settled(made.url)
            await judge(made, client.ledger, in_flight=0)
            assert (made.smsc.counters.submits, dear.counters.submits) == (100, 0)
        finally:
            await dear.stop()


async def test_neither_an_answer_nor_a_receipt(database_url: str, pool: Pool, tmp_path: Path) -> None:
    """Then the send's guarantee decides: try again, or fail."""
    lost = {"swallow": 1.0, "missing": 1.0}
    async with service(database_url, tmp_path, smsc=lost, smpp=IMPATIENT) as (made, client), made.working():
        again = await send(client, 5)
        not_again = await send(client, 5, deliveryGuarantee="at_most_once")
        await until(lambda: made.smsc.counters.submits == 10)
        made.smsc.configure(swallow=0.0, missing=0.0)
        await until_settled(made.url)
        ended = {str(row[0]): row[1] for row in await pool.fetch("SELECT id, status FROM messages")}
        assert ended == dict.fromkeys(again, "delivered") | dict.fromkeys(not_again, "unknown")
        assert Counter(one.destination for one in made.smsc.received) == {
            number[1:]: 2 if id in again else 1 for number, id in client.ledger.items()
        }
        assert {event.message_id for event in made.receiver.events} == set(again), "unknown is no contract event"


async def test_receipts_before_the_answer_twice_and_on_the_way(database_url: str, tmp_path: Path) -> None:
    odd = {"early": 0.5, "duplicates": 0.5, "interim": 0.5, "latency": 0.1}
    async with service(database_url, tmp_path, smsc=odd) as (made, client), made.working():
        await send(client, 100)
        await until_settled(made.url)
        await judge(made, client.ledger, in_flight=0)
        await until(lambda: made.smsc.waiting == 0)
        assert made.smsc.counters.receipts_acked > 130


async def test_receipts_that_never_come_and_one_after_three_days(database_url: str, pool: Pool, tmp_path: Path) -> None:
    async with service(database_url, tmp_path, smsc={"receipt_delay": 3600.0}) as (made, client):
        async with made.working():
            late = await send(client, 5)
            await reach(pool, {"sent": 5})
            made.smsc.configure(missing=1.0)
            never = await send(client, 5)
            await reach(pool, {"sent": 10})
        await pool.execute("UPDATE attempts SET ended_at = now() - interval '72 hours 5 minutes'")
        await pool.execute(
            "UPDATE timers SET next_at = now(), done_until = now() - interval '73 hours' WHERE name = 'silent'"
        )
        async with made.working():
            await reach(pool, {"unknown": 10})
            assert not made.receiver.events
            made.smsc.hasten()
            await reach(pool, {"delivered": 5, "unknown": 5})
            await until_settled(made.url)
        assert {event.message_id for event in made.receiver.events} == set(late)
        assert {str(row[0]) for row in await pool.fetch("SELECT id FROM messages WHERE status = 'unknown'")} == set(
            never
        )


async def test_throttled(database_url: str, tmp_path: Path) -> None:
    """The account throttles; a message loses no attempts, and none is late because of it."""
    async with service(database_url, tmp_path, smsc={"throughput": 5.0}) as (made, client):
        # All of them wait before the first is submitted, so that they are submitted together.
        await send(client, 30)
        async with made.working():
            await until_settled(made.url)
        await judge(made, client.ledger, in_flight=0)
        assert made.smsc.counters.throttled > 0


async def test_garbage(database_url: str, tmp_path: Path) -> None:
    """Bytes that are not SMPP end a session, not a message."""
    async with service(database_url, tmp_path) as (made, client), made.working():
        for garbage in (
            b"\xff" * 64,
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            struct.pack(">4I", 16, 0x99, 0, 1),
            struct.pack(">4I", 4, 5, 0, 1),
            struct.pack(">4I", 40, 5, 0, 1) + b"\xff" * 24,
            struct.pack(">4I", 16, 0x80000004, 0, 0xFFFFFF),
        ):
            await until(lambda: made.smsc.bound > 0)
            sending = asyncio.create_task(send(client, 10))
            await asyncio.sleep(0.05)
            made.smsc.send_raw(garbage)
            await sending
        await until_settled(made.url)
        await judge(made, client.ledger, in_flight=0)


#: For 40 messages and one second each. The bound is estimated, with room for a busy machine.
ROUNDS = 8
BROKEN: dict[str, dict[str, Any]] = {"most fail": {"error_mix": {0x08: 0.7}}, "no answers": {"swallow": 1.0}}
if LONG:
    BROKEN |= {"all fail": {"error_mix": {0x08: 1.0}}, "deaf": {"deaf": True}}


@pytest.mark.parametrize("fault", BROKEN.values(), ids=BROKEN)
async def test_the_share_of_a_broken_supplier_moves_to_another(
    database_url: str, tmp_path: Path, fault: dict[str, Any]
) -> None:
    """Within a few hundred messages, and everything in flight is delivered as well."""
    async with service(database_url, tmp_path, smsc=fault, smpp=IMPATIENT) as (made, client):
        other = Smsc(SmscOptions(**SMSC))
        await other.start()
        conn = await asyncpg.connect(database_url)
        await add_supplier(conn, made.settings, "other", other, **IMPATIENT)
        await conn.close()
        made.smscs.append(other)
        try:
            async with made.working():
                await until(lambda: made.smsc.bound + other.bound == 2)
                shares = [1.0]
                while shares[-1] > 0.05:  # a probe every 15 s
                    assert len(shares) < ROUNDS, shares
                    submits = made.smsc.counters.submits
                    await send(client, 40)
                    await asyncio.sleep(1)
                    shares.append((made.smsc.counters.submits - submits) / 40)
                await until_settled(made.url)
            await judge(made, client.ledger, in_flight=0)
        finally:
            await other.stop()
