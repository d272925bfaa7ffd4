"""Processes are killed while HTTP suppliers call back: the suppliers retry, and everything is stored once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import asyncpg
import msgspec
import pytest

from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.sms.accepting import sender_ids
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import suppliers
from tests.database import Cluster
from tests.processes import Installation, installation, until_true

pytestmark = pytest.mark.lasts(12)

#: Where the web process ends, and then the worker.
DRILLS = (
    (
        {"HELIOGRAPH_CRASH_AT": "supplier_callback.before_commit"},
        {"HELIOGRAPH_CRASH_AT": "supplier_callbacks.before_commit"},
    ),
    (
        {"HELIOGRAPH_CRASH_AT": "supplier_callback.after_commit"},
        {"HELIOGRAPH_CRASH_AT": "supplier_callbacks.after_commit"},
    ),
)
MESSAGES, WORDS = 20, 5
SECRET, NUMBER = "a secret of the account", "258840000001"


async def test_processes_that_end_lose_no_callback_and_apply_none_twice(
    database_server: Cluster, tmp_path: Path
) -> None:
    async def drill(number: int) -> None:
        (place := tmp_path / str(number)).mkdir()
        async with (
            database_server.database() as url,
            installation(url, place, HELIOGRAPH_LEASE_SECONDS="2") as made,
        ):
            await crash(made, *DRILLS[number])

    results = await asyncio.gather(*(drill(n) for n in range(len(DRILLS))), return_exceptions=True)
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise ExceptionGroup("drills failed", failed)


async def crash(made: Installation, api_setting: dict[str, str], worker_setting: dict[str, str]) -> None:
    made.environment["HELIOGRAPH_PUBLIC_URL"] = made.base_url
    settings = msgspec.structs.replace(made.settings, public_url=made.base_url)
    conn = await asyncpg.connect(made.url)
    supplier = Aggregator(Options(profile="africastalking", secret=SECRET))
    await supplier.start()
    try:
        await suppliers.set_state(conn, supplier="main", state="removed")
        number = await sender_ids.request(conn, made.actor, value=NUMBER)
        await sender_ids.review(conn, made.actor, id=number.id, status="approved")
        id = await suppliers.add(
            conn,
            suppliers.seal_key(settings),
            name="http",
            kind="africastalking",
            settings={"base_url": supplier.base_url, "username": "acme"},
            secret=msgspec.json.encode({"secret": SECRET}).decode(),
        )
        # The simulated supplier does not wait for a response that was lost with the process: it repeats the request.
        supplier.options = msgspec.structs.replace(
            supplier.options, callback=addresses.address(settings, id), redeliver_after=0.2, redeliveries=500
        )
        api = await made.api(**api_setting)
        await send(made)
        worker = await made.worker()
        assert await api.ended() == -signal.SIGKILL, api.err

        async def all_sent() -> bool:
            sent = await conn.fetchval("SELECT count(*) FROM messages WHERE status IN ('sent', 'delivered')")
            return bool(sent == MESSAGES)

        # A callback may arrive before the response is recorded: without that record a message is rightly sent again.
        await until_true(all_sent)
        await worker.kill()
        await made.api()
        crashing = await made.worker(**worker_setting)
        assert await crashing.ended() == -signal.SIGKILL, crashing.err
        last = await made.worker()
        writing = [write(supplier, n) for n in range(WORDS)]
        await asyncio.gather(*writing)

        async def all_done() -> bool:
            delivered = await conn.fetchval("SELECT count(*) FROM messages WHERE status = 'delivered'")
            received = await conn.fetchval("SELECT count(*) FROM received_messages")
            left = await conn.fetchval("SELECT count(*) FROM supplier_callbacks")
            return (delivered, received, left) == (MESSAGES, WORDS, 0)

        await until_true(all_done)
        wanted = [f"25884123{n:04d}" for n in range(5000, 5000 + MESSAGES)]
        assert sorted(one.submitted.to for one in supplier.taken) == wanted
        assert await conn.fetchval("SELECT count(*) FROM events WHERE kind = 'message.delivered'") == MESSAGES
        assert await last.stop() == 0
        assert not made.complaints
    finally:
        await supplier.stop()
        await conn.close()


async def send(made: Installation) -> None:
    """Send messages, which wait for a worker."""
    async with aiohttp.ClientSession() as http:
        for n in range(5000, 5000 + MESSAGES):
            headers = {"authorization": f"Bearer {made.key}", "idempotency-key": str(n)}
            body = {"to": f"+25884123{n:04d}", "message": "hello"}

            async def accepted(headers: dict[str, str] = headers, body: dict[str, str] = body) -> bool:
                try:
                    async with http.post(f"{made.base_url}/v1/sms/send", json=body, headers=headers) as answer:
                        return answer.status == 202
                except aiohttp.ClientError:
                    return False  # it does not listen yet

            await until_true(accepted)


async def write(supplier: Aggregator, n: int) -> None:
    """Send a message from a handset, repeated until it is accepted."""
    while True:
        if await supplier.write(sender=f"25884555{n:04d}", recipient=NUMBER, text=f"word {n}", id=f"w-{n}") == 200:
            return
        await asyncio.sleep(0.1)
