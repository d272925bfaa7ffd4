"""How many connections there may be and how much may be unsent in them: no address keeps others out, and a client that
does not read does not fill the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from heliograph.http.server.connection import ServerConnection
from heliograph.http.server.registry import Limits, Peer, Registry
from tests.processes import until

from .conftest import Api, Tenant, running
from .test_protocol import BODY, busy

ASK = b"GET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n"
DOCUMENT = b"GET /v1/openapi.json HTTP/1.1\r\nHost: a\r\n\r\n"
ESTABLISHED = "01"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(api: Api, source: str = "127.0.0.1") -> Streams:
    return await asyncio.open_connection(*api.address, local_addr=(source, 0))


async def ask(streams: Streams) -> int:
    """The status of a response on this connection."""
    reader, writer = streams
    writer.write(ASK)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(length)
    return int(head.split()[1])


async def is_closed(streams: Streams) -> bool:
    async with asyncio.timeout(120):
        return await streams[0].read() == b""


async def test_the_oldest_idle_connection_gives_way_when_there_are_as_many_as_may_be(database_url: str) -> None:
    async with running(database_url, max_connections=3) as api:
        first, second, third = [await connect(api, f"127.0.0.{number}") for number in (1, 2, 3)]
        for streams in (second, first, third):
            assert await ask(streams) == 200
        fourth = await connect(api, "127.0.0.4")
        assert await ask(fourth) == 200
        assert await is_closed(second)
        assert [await ask(streams) for streams in (first, third, fourth)] == [200, 200, 200]
        for _, writer in (first, second, third, fourth):
            writer.close()


async def test_an_address_has_its_share_and_no_more(database_url: str) -> None:
    async with running(database_url, max_connections_per_address=2) as api:
        other = await connect(api, "127.0.0.2")
        assert await ask(other) == 200
        held = [await connect(api) for _ in range(2)]
        assert [await ask(streams) for streams in held] == [200, 200]
        newest = await connect(api)
        assert await ask(newest) == 200
        assert await is_closed(held[0])
        assert [await ask(streams) for streams in (held[1], newest, other)] == [200, 200, 200]
        for _, writer in (*held, newest, other):
            writer.close()


async def test_connections_at_work_do_not_give_way(database_url: str, tenant: Tenant) -> None:
    async with running(database_url, max_connections_per_address=2) as api:
        held = [await busy(api, tenant) for _ in range(2)]
        assert (await api.raw(ASK)).startswith(b"HTTP/1.1 503 ")
        assert await ask(await connect(api, "127.0.0.2")) == 200
        for reader, writer in held:
            writer.write(BODY)
            assert (await reader.readline()).startswith(b"HTTP/1.1 202 ")
            writer.close()


async def test_a_trusted_proxy_has_as_many_as_it_likes(database_url: str) -> None:
    async with running(database_url, max_connections_per_address=2, trusted_proxies="127.0.0.1/32") as api:
        opened = [await connect(api) for _ in range(8)]
        for streams in opened:
            assert await ask(streams) == 200
        assert [await ask(streams) for streams in opened] == [200] * 8
        for _, writer in opened:
            writer.close()


async def test_thousands_of_silent_connections_of_one_address_keep_nobody_out(database_url: str) -> None:
    async with running(database_url, max_connections=100, max_connections_per_address=50) as api:
        other = await connect(api, "127.0.0.2")
        assert await ask(other) == 200
        opened = []
        for _ in range(500):
            opened.append(await connect(api))
        assert await ask(other) == 200
        assert await ask(await connect(api, "127.0.0.3")) == 200
        for _, writer in (*opened, other):
            writer.close()


class Sample:
    """A watched connection, without a socket."""

    def __init__(self, *, is_idle: bool = True) -> None:
        self.deadline = float("inf")
        self.is_idle = is_idle
        self.written = self.taken = self.left = self.ahead = 0
        self.taken_at = 0.0
        self.peer: Peer | None = None
        self.ended = ""

    def shutdown(self) -> None:
        self.ended = "shut down"

    def expire(self, now: float) -> None:
        self.ended = "expired"

    def unsent(self) -> int:
        return self.left

    def give_way(self) -> None:
        self.ended = "gave way"

    def abort(self) -> None:
        self.ended = "aborted"


def test_idle_ones_give_way_before_those_in_the_midst_of_a_head() -> None:
    registry = Registry(Limits(connections=3))
    begun, idle, working = Sample(is_idle=False), Sample(), Sample(is_idle=False)
    for one in (begun, idle, working):
        assert registry.add(one)
        registry.await_request(one)
    registry.begin_request(working)
    assert registry.add(Sample())
    assert (begun.ended, idle.ended, working.ended) == ("", "gave way", "")
    assert registry.add(Sample())
    assert (begun.ended, working.ended) == ("gave way", "")
    assert not registry.add(Sample())


def test_the_network_of_an_ipv6_address_is_one_client() -> None:
    registry = Registry(Limits(connections_per_address=1))
    addresses = ["2001:db8::1", "2001:db8::2:1", "2001:db8:0:1::1", "::ffff:192.0.2.1", "192.0.2.1", "192.0.2.2"]
    samples = [Sample(is_idle=False) for _ in addresses]
    for one in samples:
        registry.add(one)
    assert [registry.attribute(*each) for each in zip(samples, addresses, strict=True)] == [
        True,
        False,
        True,
        True,
        False,
        True,
    ]
    for one in samples:
        registry.remove(one)
        registry.remove(one)
    assert registry.attribute(Sample(), "2001:db8::3")


def test_who_takes_nothing_ends_and_who_takes_a_little_does_not() -> None:
    registry = Registry(Limits(write_seconds=10, unsent_bytes=1_000))
    stuck, slow, fresh = Sample(), Sample(), Sample()
    for one in (stuck, slow):
        registry.add(one)
        one.written, one.left = 500, 400
    registry.sweep(100.0)
    slow.left = 399
    registry.sweep(109.0)
    registry.sweep(111.0)
    assert (stuck.ended, slow.ended) == ("aborted", "")
    registry.remove(stuck)
    # One that has had no unsent data for long has all the time there is.
    slow.left = 0
    registry.sweep(112.0)
    slow.written, slow.left = 900, 400
    registry.sweep(500.0)
    registry.sweep(509.0)
    assert slow.ended == ""
    # Together they have too much: the one that has made no progress for longest is closed.
    registry.add(fresh)
    fresh.written = fresh.left = 700
    registry.sweep(509.5)
    assert (slow.ended, fresh.ended) == ("aborted", "")


def of_server(api: Api) -> list[tuple[str, int]]:
    """(state, bytes not acknowledged by the client) of the server's ends, as the kernel reports them."""
    port = f":{api.address[1]:04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [(row[3], int(row[4].split(":")[0], 16)) for row in rows if row[1].endswith(port) and row[3] != "0A"]


@contextlib.asynccontextmanager
async def not_reading(api: Api, number: int) -> AsyncIterator[list[socket.socket]]:
    """Clients that request 64 large responses at once and read none."""
    opened = []
    for _ in range(number):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect(api.address)
        sock.sendall(DOCUMENT * 64)
        opened.append(sock)
    try:
        yield opened
    finally:
        for sock in opened:
            sock.close()


async def test_answers_that_nobody_reads_are_bounded_for_each_and_for_all(database_url: str) -> None:
    bound = 2 * 1_048_576
    async with (
        running(database_url, max_unsent_bytes=bound, body_deadline_seconds=120.0) as api,
        not_reading(api, 48) as opened,
    ):
        # Some are closed, since all of them together exceed the limit.
        await until(lambda: sum(state == ESTABLISHED for state, _ in of_server(api)) < len(opened))
        await until(lambda: sum(unsent for _, unsent in of_server(api)) <= bound)
        assert max(unsent for _, unsent in of_server(api)) < 262_144
        assert (await api.ask("GET", "/"))[0] == 200


async def test_what_is_cut_off_leaves_nothing_in_the_kernel(database_url: str) -> None:
    async with running(database_url, body_deadline_seconds=0.5) as api, not_reading(api, 16) as opened:
        for sock in opened[:4]:
            sock.shutdown(socket.SHUT_WR)  # like one that has sent all its requests, and still does not read
        await until(lambda: not of_server(api))


async def test_what_has_ended_does_not_wait_for_the_garbage_collector(database_url: str) -> None:
    """Otherwise the garbage collector runs so rarely that an attack's connections would be thousands until then."""
    gc.collect()
    # The collected tests need not be visited by each collection below.
    gc.freeze()
    gc.disable()
    try:
        async with running(database_url, body_deadline_seconds=0.5) as api:
            async with not_reading(api, 16):
                await until(lambda: not of_server(api))
            assert await ask(await connect(api)) == 200
            await until(lambda: sum(isinstance(one, ServerConnection) for one in gc.get_objects()) <= 1)
    finally:
        gc.enable()


async def test_a_client_that_reads_slowly_gets_all_of_a_large_answer(api: Api) -> None:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(api.address)
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock, limit=4_096)
    writer.write(DOCUMENT + ASK)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    got = 0
    while got < length:
        got += len(await reader.read(min(3_000, length - got)))
        await asyncio.sleep(0)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()
