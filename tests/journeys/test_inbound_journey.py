"""A handset answers: over real SMPP, through real processes, to the organization's webhook and back to the handset."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import msgspec
import pytest

from heliograph.base.database.clock import iso, now
from heliograph.sms.accepting import sender_ids
from heliograph.webhooks import endpoints
from tests.database import Cluster
from tests.load import Client
from tests.processes import Installation, installation, until, until_true

pytestmark = pytest.mark.lasts(8)

NUMBER = "258800001234"
HANDSET = "+258841234567"
FAST = {"HELIOGRAPH_LEASE_SECONDS": "2", "HELIOGRAPH_UNCERTAIN_GRACE_SECONDS": "3"}


@contextlib.asynccontextmanager
async def with_number(url: str, place: Path, **settings: str) -> AsyncIterator[Installation]:
    """An organization with a number and a webhook for inbound messages."""
    async with installation(url, place, **settings) as made:
        conn = await asyncpg.connect(url)
        try:
            sender = await sender_ids.request(conn, made.actor, value=NUMBER)
            await sender_ids.review(conn, made.actor, id=sender.id, status="approved")
            await endpoints.create(
                conn,
                made.actor,
                url=made.receiver.url,
                subscribed_events=["message.received", "contact.opted_out"],
                rules=endpoints.rules(made.settings),
            )
        finally:
            await conn.close()
        yield made


def received_objects(made: Installation, kind: str) -> list[dict[str, Any]]:
    """The objects in the receiver's events of a kind, without repetitions."""
    unique = {event.id: event for event in made.receiver.events if event.type == kind}
    return [next(iter(msgspec.json.decode(event.body)["data"].values())) for event in unique.values()]


def confirmations(made: Installation) -> Counter[str]:
    """Messages from the number that reached the supplier, by handset."""
    return Counter(f"+{one.destination}" for one in made.smsc.received if one.source == NUMBER and one.status == 0)


async def send(client: Client, **fields: Any) -> tuple[int, Any]:
    body = {"to": HANDSET, "message": "Hello"} | fields
    return await client.ask("POST", "/sms/send", json=body, headers={"idempotency-key": str(uuid4())})


async def test_stop_start_and_a_long_answer(database_url: str, tmp_path: Path) -> None:
    async with with_number(database_url, tmp_path) as made:
        await made.api()
        worker = await made.worker()
        await until(lambda: made.smsc.bound)
        async with Client(made.base_url, made.key) as client:
            await client.send(HANDSET, senderName=NUMBER)
            tomorrow = iso(now() + timedelta(days=1))
            assert (await send(client, message="Too late", sendAt=tomorrow))[0] == 202
            await until(lambda: confirmations(made)[HANDSET] == 1)

            made.smsc.send_inbound(HANDSET, NUMBER, "Stop.")
            await until(lambda: received_objects(made, "contact.opted_out") and confirmations(made)[HANDSET] == 2)
            (contact,) = received_objects(made, "contact.opted_out")
            assert (contact["phone"], contact["source"], contact["keyword"]) == (HANDSET, "keyword", "stop")
            await until(lambda: received_objects(made, "message.received"))
            assert [(one["text"], one["keyword"]) for one in received_objects(made, "message.received")] == [
                ("Stop.", "stop")
            ]
            assert b"Reply START" in made.smsc.received[-1].body
            status, answer = await send(client)
            assert (status, answer["error"]["code"]) == (409, "recipient_opted_out")
            # Accepted before, due now: opt-outs are checked again when it is about to be sent.
            conn = await asyncpg.connect(made.url)
            await conn.execute("UPDATE queue SET due_at = now() WHERE kind = 'sms'")

            async def rejected() -> object:
                return await conn.fetchval("SELECT true FROM messages WHERE failure_code = 'opted_out'")

            await until_true(rejected)
            await conn.close()
            made.smsc.send_inbound(HANDSET, NUMBER, "STOP")
            made.smsc.send_inbound(HANDSET, NUMBER, "start")
            await until(lambda: confirmations(made)[HANDSET] == 3)
            assert (await send(client))[0] == 202

            text = "Дорогие друзья! 😀 " * 12
            assert made.smsc.send_inbound(HANDSET, NUMBER, text) > 2
            await until(lambda: len(received_objects(made, "message.received")) == 4)
            (long,) = [one for one in received_objects(made, "message.received") if one["keyword"] is None]
            assert (long["text"], long["from"], long["to"]) == (text, HANDSET, NUMBER)
            assert long["segments"] > 2
            assert confirmations(made)[HANDSET] == 3
            assert len(received_objects(made, "contact.opted_out")) == 1
        assert not made.complaints
        assert await worker.stop() == 0
        assert made.smsc.counters.inbound_sent == made.smsc.counters.inbound_acked


#: Ends a worker before and after the commit of a batch of the inbox, and after replies were accepted.
CRASHES = [
    {"HELIOGRAPH_CRASH_AT": "inbound.before_commit"},
    {"HELIOGRAPH_CRASH_AT": "inbound.after_commit"},
    {"HELIOGRAPH_CRASH_AT": "reply.after_accept"},
    {},  # at any moment
]


async def test_workers_that_are_killed_forget_no_word_and_obey_none_twice(
    database_server: Cluster, tmp_path: Path
) -> None:
    async def drill(n: int, crash: dict[str, str]) -> None:
        (place := tmp_path / str(n)).mkdir()
        async with database_server.database() as url, with_number(url, place, **FAST) as made:
            handsets = [f"+25884{n:07}" for n in range(30)]
            for turn in range(2):
                worker = await made.worker(**crash)
                # Work left by its predecessor may end it before it is bound.
                await until(lambda worker=worker: made.smsc.bound or worker.status is not None)
                for handset in handsets[15 * turn : 15 * turn + 15]:
                    made.smsc.send_inbound(handset, NUMBER, "STOP")
                    made.smsc.send_inbound(handset, NUMBER, f"This is {handset}, and it goes on and on. " * 5)
                    await asyncio.sleep(random.uniform(0, 0.01))
                if crash:
                    await worker.ended()
                await worker.kill()
            last = await made.worker()
            await until(lambda: confirmations(made).keys() >= set(handsets), within=120)
            await until(lambda: len(received_objects(made, "message.received")) >= 60)
            await until(lambda: len(received_objects(made, "contact.opted_out")) >= 30)
            await until(lambda: made.smsc.waiting == 0)
            await judge(made, handsets)
            assert await last.stop() == 0
            assert not made.complaints

    results = await asyncio.gather(*(drill(n, one) for n, one in enumerate(CRASHES)), return_exceptions=True)
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise ExceptionGroup("drills failed", failed)


async def judge(made: Installation, handsets: list[str]) -> None:
    """Every message once, every keyword applied once, every confirmation accepted once.

    A kill may take along a response that was written and recorded, but not read by the SMSC: a message that it then
    repeats counts as another one. Each such case is recognized by the recorded response.
    """
    conn = await asyncpg.connect(made.url)
    try:
        kept = await conn.fetch(
            "SELECT '+' || ltrim(sender, '+') AS sender, array_agg(acknowledged ORDER BY id) AS answered"
            "  FROM inbound_messages WHERE concatenation IS NULL AND state = 'received' GROUP BY sender"
        )
        counts = await conn.fetchrow(
            "SELECT (SELECT count(*) FROM opt_outs) AS opted_out, (SELECT count(*) FROM messages) AS confirmed,"
            " (SELECT count(*) FROM usage_entries WHERE type = 'usage') AS paid,"
            " (SELECT count(*) FROM inbound_messages WHERE due_at IS NOT NULL) AS left,"
            " (SELECT count(*) FROM attempts WHERE state = 'unknown') AS unknown"
        )
    finally:
        await conn.close()
    assert counts is not None
    assert [row["sender"] for row in kept if not all(row["answered"][:-1])] == []
    words = {row["sender"]: len(row["answered"]) for row in kept}
    again = sum(words.values()) - len(handsets)
    received = received_objects(made, "message.received")
    assert Counter((one["from"], one["keyword"]) for one in received) == Counter(
        {(handset, "stop"): words[handset] for handset in handsets} | {(handset, None): 1 for handset in handsets}
    )
    assert {one["missingSegments"] for one in received} == {0}
    assert Counter(one["phone"] for one in received_objects(made, "contact.opted_out")) == Counter(handsets)
    opted_out, confirmed, paid, left, unknown = tuple(counts)
    assert (opted_out, paid, left) == (len(handsets), confirmed, 0)
    assert len(handsets) <= confirmed <= len(handsets) + again
    assert sum(confirmations(made).values()) <= confirmed + unknown
