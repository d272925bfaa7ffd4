"""Receivers that misbehave, with the real delivery loop: each delays only itself, internal addresses are never reached,
and late events have a valid signature.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks.delivery import signing
from heliograph.webhooks.recording import events
from tests.hooks import (
    DATA,
    KIND,
    attempted,
    attempts,
    delivering,
    endpoint,
    organization,
    queued,
    record,
    settings,
    until,
)


@contextlib.asynccontextmanager
async def receivers(count: int, options: Options | None = None) -> AsyncIterator[list[Receiver]]:
    """Listening receivers, isolated from each other."""
    made = [Receiver(options) for _ in range(count)]
    for one in made:
        await one.start()
    try:
        yield made
    finally:
        for one in made:
            await one.stop()


async def test_a_third_of_hanging_receivers_delays_nobody_else(pool: Pool) -> None:
    """Hostile endpoints, each with a backlog, ask for ten times the slots there are. The others get all their events
    before the first hanging attempt has ended."""
    async with receivers(14) as good, receivers(6, Options(hang=True)) as bad:
        actors = []
        for n in range(2):
            actor = await organization(pool)
            actors.append(actor)
            for one in [*bad[n * 3 : n * 3 + 3], *good[n * 7 : n * 7 + 7]]:
                await endpoint(pool, actor, one.url)
        for actor in actors:
            await record(pool, actor, 40)
        async with delivering(pool, settings(webhook_concurrency=16, webhook_timeout_seconds=600.0)):
            for one in good:
                await one.wait_for(lambda it: it.counters.received == 40, within=120)
            await until(lambda: _recorded(pool, 14 * 40))
            assert {row["result"] for row in await attempts(pool)} == {"delivered"}
            assert all(1 <= one.counters.requests <= 2 for one in bad)
            # New events find a slot as well.
            await record(pool, actors[0], 5)
            for one in good[:7]:
                await one.wait_for(lambda it: it.counters.received == 45)


async def test_receivers_that_begin_to_hang_under_load_delay_nobody_else(pool: Pool) -> None:
    """Their windows are wide by then; still they get no more than they hold, and slots remain."""
    async with receivers(7) as good, receivers(3) as bad:
        actor = await organization(pool)
        for one in [*bad, *good]:
            await endpoint(pool, actor, one.url)
        async with delivering(pool, settings(webhook_concurrency=32, webhook_timeout_seconds=600.0)) as deliverer:
            await record(pool, actor, 50)
            for one in [*bad, *good]:
                await one.wait_for(lambda it: it.counters.received == 50)
            for one in bad:
                one.options = Options(hang=True)
            await record(pool, actor, 200)
            deliverer.wake.set()
            for one in good:
                await one.wait_for(lambda it: it.counters.received == 250, within=120)
            assert {row["result"] for row in await attempts(pool)} == {"delivered"}
            assert deliverer.in_flight <= 32


async def test_a_receiver_that_recovers_gets_what_it_missed(pool: Pool) -> None:
    async with receivers(1, Options(hang=True)) as (receiver,):
        actor = await organization(pool)
        await endpoint(pool, actor, receiver.url)
        events_sent = await record(pool, actor, 30)
        quick = settings(webhook_timeout_seconds=0.3, webhook_schedule="0" + ",0.1" * 40)
        async with delivering(pool, quick):
            await receiver.wait_for(lambda it: it.counters.requests >= 3)
            receiver.options = Options()
            await receiver.wait_for(lambda it: it.counters.received == 30, within=120)
            await until(lambda: _recorded_as_delivered(pool, 30))
        assert {event.id for event in receiver.events} == set(events_sent)
        assert await pool.fetchval("SELECT consecutive_failures FROM webhook_endpoints") == 0


async def _drip(writer: asyncio.StreamWriter, piece: bytes, pause: float, *, times: int = 1_000_000) -> None:
    for _ in range(times):
        if writer.is_closing():
            return
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n":
        await _drip(writer, bytes([byte]), 0.2, times=1)


async def _endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n")
    await _drip(writer, b"x-more: and more\r\n" * 50, 0.0)


async def _interim_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await _drip(writer, b"HTTP/1.1 102 Processing\r\n\r\n", 0.0)


async def _huge_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 10000000000\r\n\r\n")
    await _drip(writer, b"x" * 65536, 0.0)


async def _wrong_length(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 1000\r\n\r\nshort")
    await writer.drain()
    writer.close()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n" * 3)
    await writer.drain()
    await reader.read()


async def _redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    host, port = writer.get_extra_info("sockname")[:2]
    answer = f"HTTP/1.1 307 Round\r\nlocation: http://{host}:{port}/\r\ncontent-length: 0\r\n\r\n"
    while await reader.read(65536):
        writer.write(answer.encode())


#: What each does, whether over TLS, and how the attempt is recorded.
TARPITS = [
    ("hang", _hang, "http", "timeout"),
    ("trickle", _trickle, "http", "timeout"),
    ("endless headers", _endless_headers, "http", "protocol"),
    ("interim answers", _interim_answers, "http", "protocol"),
    ("huge answer", _huge_answer, "http", "refused"),
    ("wrong length", _wrong_length, "http", "refused"),
    ("reset", _reset, "http", "closed"),
    ("garbage", _garbage, "http", "protocol"),
    ("redirect loop", _redirect, "http", "refused"),
    ("tls stall", _hang, "https", "timeout"),
]


async def test_every_tarpit_ends_in_time_and_is_recorded_for_what_it_is(pool: Pool) -> None:
    connections = {name: 0 for name, *_ in TARPITS}
    servers: list[asyncio.Server] = []
    tasks: set[asyncio.Task[None]] = set()

    def serve(name: str, behave: Callable[..., object]) -> Callable[..., object]:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections[name] += 1
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await behave(reader, writer)  # type: ignore[misc]
            writer.transport.abort()

        return one

    named: dict[object, str] = {}
    hostile, neighbour = await organization(pool), await organization(pool)
    for name, behave, scheme, _ in TARPITS:
        server = await asyncio.start_server(serve(name, behave), "127.0.0.1", 0)  # type: ignore[arg-type]
        servers.append(server)
        port = server.sockets[0].getsockname()[1]
        id, _ = await endpoint(pool, hostile, f"{scheme}://127.0.0.1:{port}/")
        named[id] = name
    async with receivers(1) as (good,):
        await endpoint(pool, neighbour, good.url)
        await record(pool, hostile)
        await record(pool, neighbour, 100)
        brief = settings(webhook_timeout_seconds=1.5, webhook_connect_seconds=1.5, webhook_schedule="0,3600")
        async with delivering(pool, brief):
            await good.wait_for(lambda it: it.counters.received == 100)
            tried = await attempted(pool, 100 + len(TARPITS))
    ended = {named[row["endpoint_id"]]: row for row in tried if row["endpoint_id"] in named}
    assert {name: row["result"] for name, row in ended.items()} == {name: result for name, *_, result in TARPITS}
    # The deadline, plus two seconds for a body whose status is already known; the rest is for a busy machine.
    assert all(row["duration_ms"] < 5000 for row in ended.values())
    assert connections == dict.fromkeys(connections, 1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", []),
        ("0177.0.0.1", []),
        ("0x7f.0.0.1", []),
        ("2130706433", []),
        ("127.1", []),
        ("[::1]", []),
        ("[::ffff:127.0.0.1]", []),
        ("[fe80::1%25lo]", []),
        ("user:password@127.0.0.1", []),
        ("a.example", ["127.0.0.1"]),
        ("aaaa.example", ["::1"]),
        ("mapped.example", ["::ffff:127.0.0.1"]),
        ("mixed.example", ["93.184.215.14", "127.0.0.1"]),
        ("zoned.example", ["fe80::1%lo"]),
        ("xn--mnchen-3ya.example", ["127.0.0.1"]),
    ],
)
async def test_nothing_inside_is_connected_to(pool: Pool, host: str, addresses: list[str]) -> None:
    """Such addresses cannot be registered; here they are in the table, as if DNS or the rules had changed."""
    connected = 0

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        writer.close()

    listener = await asyncio.start_server(inside, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, "http://placeholder.example/")
    await pool.execute("UPDATE webhook_endpoints SET url = $1", f"http://{host}:{port}/")
    await record(pool, actor)
    strict = settings(webhook_allow_networks="", webhook_schedule="0,3600")
    async with delivering(pool, strict, lookup=lambda name: addresses):
        (attempt,) = await attempted(pool, 1)
    listener.close()
    assert attempt["result"] == "blocked"
    assert connected == 0
    assert attempt["endpoint_id"] == id


async def test_a_redirect_inside_is_not_followed(pool: Pool) -> None:
    seen = 0

    async def inside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        writer.close()

    async def outside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        target = secret_place.sockets[0].getsockname()[1]
        writer.write(
            f"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{target}/\r\ncontent-length: 0\r\n\r\n".encode()
        )
        writer.close()

    secret_place = await asyncio.start_server(inside, "127.0.0.1", 0)
    server = await asyncio.start_server(outside, "127.0.0.1", 0)
    actor = await organization(pool)
    await endpoint(pool, actor, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    await record(pool, actor)
    async with delivering(pool, settings(webhook_schedule="0,3600")):
        (attempt,) = await attempted(pool, 1)
    assert (attempt["result"], attempt["status"]) == ("refused", 302)
    assert seen == 0
    server.close()
    secret_place.close()


async def test_an_old_event_is_signed_for_the_time_of_its_attempt(pool: Pool) -> None:
    """Six minutes and a failed attempt later, the receiver's tolerance of five minutes counts from the retry."""
    async with receivers(1, Options(status=500)) as (receiver,):
        actor = await organization(pool)
        _, secret = await endpoint(pool, actor, receiver.url)
        old = events.Event(actor.organization_id, uuid7(), KIND, "r", DATA, clock.now() - timedelta(minutes=6))
        async with pool.acquire() as conn:
            await events.record(conn, [old])
        async with delivering(pool):
            await receiver.wait_for(lambda it: it.counters.requests == 1)
            receiver.options = Options(secrets=(secret,))
            await receiver.wait_for(lambda it: it.counters.received == 1)
        came = receiver.events[-1]

    def judged(seconds: float) -> signing.Problem | None:
        sent = came.headers["x-service-timestamp"]
        at = clock.now().fromisoformat(sent) + timedelta(seconds=seconds)
        signature = came.headers["x-service-signature"]
        return signing.verify([secret], timestamp=sent, signature=signature, body=came.body, now=at)

    assert [judged(seconds) for seconds in (0, 299, -299)] == [None, None, None]
    assert [judged(seconds) for seconds in (301, -301)] == ["timestamp out of tolerance"] * 2


async def _recorded(pool: Pool, count: int) -> bool:
    return len(await attempts(pool)) >= count


async def _recorded_as_delivered(pool: Pool, count: int) -> bool:
    done = [row for row in await attempts(pool) if row["result"] == "delivered"]
    return len(done) == count and await queued(pool) == 0
