"""Bytes as hostile clients send them: each gets a response in the envelope or is closed, in time, without affecting
others."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from heliograph.base.database.pool import Pool

from .conftest import Api, Tenant, running

DEADLINE = 0.8
#: Seconds in which it is over on any machine; without the deadline, it never would be.
OVER = 120


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """It closes idle connections, which ends `raw`."""
    async with running(database_url, body_deadline_seconds=OVER, keep_alive_seconds=0.5) as found:
        yield found


@pytest.fixture
async def hasty(database_url: str) -> AsyncIterator[Api]:
    """One that waits for nothing any longer than DEADLINE."""
    async with running(database_url, body_deadline_seconds=DEADLINE, keep_alive_seconds=0.5) as found:
        yield found


def parse(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """(status, headers in lower case, the rest) of the first answer in these bytes."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, rest


def refusal(answer: bytes) -> tuple[int, str]:
    status, headers, body = parse(answer)
    assert headers["content-type"] == "application/json", answer
    assert headers["x-request-id"]
    assert int(headers["content-length"]) == len(body)
    decoded = msgspec.json.decode(body)
    assert decoded["success"] is False
    return status, decoded["error"]["code"]


def send_request(tenant: Tenant, *headers: str, length: int | None = None, version: str = "1.1") -> bytes:
    lines = [
        f"POST /v1/sms/send HTTP/{version}",
        "Host: a",
        f"x-api-key: {tenant.secret}",
        "Content-Type: application/json",
        "Idempotency-Key: k",
        *headers,
    ]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


BODY = b'{"to":"+258841234567","message":"Hello"}'

MALFORMED = [
    (b"GARBAGE\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    (b"GET /v1/health HTTP/1.1\r\n\r\n", 400),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n", 400),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\n folded: x\r\n\r\n", 400),
    (b"GET /v1/health HTTP/9.9\r\nHost: a\r\n\r\n", 400),
    (b"GET /v1/\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", 400),
    (b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    (b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /v1/sms/send HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    (b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
    (b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na", 400),
    (b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
    (b"GET /v1/" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    (b"GET /v1/" + b"a" * 1_000_000, 414),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 10_000, 431),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 17_000 + b"\r\n\r\n", 431),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 1_000_000, 431),
    (b"GET /v1/health HTTP/1.1\r\nHost: a\r\n" + b"n" * 1_000_000, 431),
]
CODES = {400: "bad_request", 414: "uri_too_long", 431: "request_headers_too_large"}


async def test_what_is_not_http_is_refused_in_the_envelope(api: Api) -> None:
    async def check(request: bytes, status: int) -> None:
        answer = await api.raw(request)
        assert answer, request[:80]
        assert refusal(answer) == (status, CODES[status]), request[:80]

    await asyncio.gather(*(check(request, status) for request, status in MALFORMED))
    # The same one byte at a time, if it is short.
    short = [(request, status) for request, status in MALFORMED if len(request) < 300]
    async with asyncio.timeout(120):
        for request, status in short:
            answer = await api.raw(*(request[at : at + 1] for at in range(len(request))))
            assert refusal(answer) == (status, CODES[status]), request


async def test_whole_requests_in_any_pieces(api: Api, tenant: Tenant) -> None:
    request = send_request(tenant, "Connection: close", length=len(BODY)) + BODY
    for size in (1, 7, 100, len(request)):
        answer = await api.raw(*(request[at : at + size] for at in range(0, len(request), size)))
        status, headers, body = parse(answer)
        assert status == 202, answer
        assert headers["connection"] == "close"
        assert len(body) == int(headers["content-length"])


async def test_chunked_bodies(api: Api, tenant: Tenant) -> None:
    head = send_request(tenant, "Transfer-Encoding: chunked", "Connection: close")
    chunked = b"5\r\n" + BODY[:5] + b"\r\n%x;ext=1\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n0\r\nTrailer: x\r\n\r\n"
    assert parse(await api.raw(head + chunked))[0] == 202
    # Lies: no size, a size too small, a negative one, garbage after a chunk.
    for lie in (b"zz\r\n", b"3\r\n" + BODY + b"\r\n", b"-1\r\n\r\n", b"5\r\n" + BODY[:5] + b"XX5\r\n"):
        assert refusal(await api.raw(head + lie)) == (400, "bad_request"), lie


CHUNKED_POST = b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
CHUNKED_BODY = b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)


async def test_what_stands_in_a_trailer_decides_nothing(api: Api, tenant: Tenant) -> None:
    named = {
        b"X-Api-Key": tenant.secret.encode(),
        b"Idempotency-Key": b"k",
        b"Content-Type": b"application/json",
    }
    missing = {b"X-Api-Key": 401, b"Idempotency-Key": 400, b"Content-Type": 415}
    for late, status in missing.items():
        head = b"".join(b"%b: %b\r\n" % (name, value) for name, value in named.items() if name != late)
        trailer = b"%b: %b\r\nConnection: close\r\nExpect: 100-continue\r\n\r\n" % (late, named[late])
        answer = await api.raw(CHUNKED_POST + head + b"\r\n" + CHUNKED_BODY + trailer)
        assert parse(answer)[0] == status, late
    bearer = b"Authorization: Bearer " + tenant.secret.encode()
    answer = await api.raw(CHUNKED_POST + b"\r\n" + CHUNKED_BODY + bearer + b"\r\n\r\n")
    assert parse(answer)[0] == 401
    # One that contradicts the head does not count either, and the connection continues.
    trailer = b"X-Api-Key: other\r\nHost: b\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    head = b"".join(b"%b: %b\r\n" % item for item in named.items())
    after = b"GET /v1/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = await api.raw(CHUNKED_POST + head + b"\r\n" + CHUNKED_BODY + trailer + after)
    assert [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [202, 200], answer


ENDLESS_TRAILERS = [
    b"X: " + b"a" * 1_000_000,
    b"X: y\r\n" * 100_000,
    b"n" * 1_000_000,
    b"X: " + b"a" * 17_000 + b"\r\n\r\n",
    b"X: y\r\n" * 101 + b"\r\n",
]


async def test_trailers_count_as_the_head_does(api: Api, tenant: Tenant) -> None:
    head = send_request(tenant, "Transfer-Encoding: chunked")
    for trailer in ENDLESS_TRAILERS:
        for size in (1_000, 1_000_000):
            pieces = [trailer[at : at + size] for at in range(0, len(trailer), size)]
            answer = await api.raw(head + CHUNKED_BODY, *pieces)
            assert refusal(answer) == (431, "request_headers_too_large"), trailer[:20]
    # Bytes collected before a chunk's data count too; many small chunks are not a trailer.
    answer = await api.raw(head + b"5;" + b"x" * 1_000_000)
    assert refusal(answer) == (431, "request_headers_too_large")
    small = b"".join(b"1;note=0123456789\r\n%c\r\n" % byte for byte in BODY + b" " * 5_000)
    answer = await api.raw(head + small + b"0\r\nX: y\r\n\r\n")
    assert parse(answer)[0] == 202


async def test_a_trailer_of_an_answered_request_gets_no_second_answer(api: Api) -> None:
    head = b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    for rest in (b"0\r\nX: " + b"a" * 100_000, b"zz\r\n"):
        reader, writer = await asyncio.open_connection(*api.address)
        writer.write(head)
        status, headers, body = parse(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(int(headers["content-length"]))
        assert (status, body) == (401, b"")
        writer.write(rest)
        assert await reader.read() == b""
        writer.close()


async def test_chunks_that_never_end_are_timed_out(hasty: Api, tenant: Tenant) -> None:
    head = send_request(tenant, "Transfer-Encoding: chunked")
    started = time.monotonic()
    answer = await hasty.raw(head + b"5\r\n" + BODY[:5] + b"\r\n")
    assert refusal(answer) == (408, "request_timeout")
    assert parse(answer)[1]["x-ratelimit-limit"]
    assert time.monotonic() - started < OVER


async def test_a_body_that_trickles_is_timed_out_in_all(hasty: Api, tenant: Tenant) -> None:
    reader, writer = await asyncio.open_connection(*hasty.address)
    writer.write(send_request(tenant, length=len(BODY)))
    started = time.monotonic()
    answer = asyncio.create_task(reader.read())
    with contextlib.suppress(ConnectionError):
        for at in range(len(BODY)):
            if answer.done() or writer.is_closing():
                break
            writer.write(BODY[at : at + 1])
            await asyncio.sleep(0.1)
    assert refusal(await answer) == (408, "request_timeout")
    assert time.monotonic() - started < OVER
    writer.close()


async def test_heads_that_trickle_and_silence(hasty: Api) -> None:
    started = time.monotonic()
    silent, blank, partial = await asyncio.gather(
        hasty.raw(), hasty.raw(b"\r\n\r\n"), hasty.raw(b"GET /v1/health HTTP/1.1\r\nHo", b"st: a\r\nX", pause=0.3)
    )
    assert silent == b""
    assert blank == b""
    assert refusal(partial) == (408, "request_timeout")
    assert time.monotonic() - started < OVER


async def test_an_idle_connection_is_closed(api: Api) -> None:
    answer = await api.raw(b"GET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n")
    status, headers, _ = parse(answer)
    assert status == 200
    assert "connection" not in headers


async def test_http_1_0_is_answered_and_closed(api: Api) -> None:
    assert parse(await api.raw(b"GET /v1 HTTP/1.0\r\n\r\n", wait=1))[0] == 200


async def test_a_client_that_closes_its_half_gets_its_answer(api: Api, tenant: Tenant) -> None:
    answer = await api.raw(send_request(tenant, length=len(BODY)) + BODY, eof=True)
    assert parse(answer)[0] == 202


async def test_a_client_that_goes_away_in_its_body_leaves_nothing(api: Api, tenant: Tenant, pool: Pool) -> None:
    await api.raw(send_request(tenant, length=len(BODY)) + BODY[:10], eof=True)
    assert parse(await api.raw(b"GET /v1/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))[0] == 200
    assert await pool.fetchval("SELECT count(*) FROM messages") == 0


async def test_pipelined_requests_are_answered_in_order(api: Api, tenant: Tenant) -> None:
    one = b"GET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n"
    send = send_request(tenant, length=len(BODY)) + BODY
    last = b"GET /v1/nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = await api.raw(one + send + one + send + last)
    statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 202, 200, 202, 404]


async def test_a_fault_after_good_requests_comes_after_their_answers(api: Api, tenant: Tenant) -> None:
    send = send_request(tenant, length=len(BODY)) + BODY
    for pieces in ((send + b"GARBAGE\r\n\r\n",), (send + b"GET /v1/", b"\x00\r\n\r\n")):
        answer = await api.raw(*pieces)
        statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [202, 400], answer


async def test_far_too_many_pipelined_requests_end_the_connection(api: Api) -> None:
    answer = await api.raw(b"GET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n" * 5_000)
    statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert 1 <= len(statuses) < 5_000
    assert set(statuses[:-1]) <= {200}


async def test_http_1_0_stays_1_0_whatever_it_offers(api: Api, tenant: Tenant) -> None:
    for offers in (("Connection: Upgrade", "Upgrade: h2c"), ("Expect: 100-continue",)):
        request = send_request(tenant, *offers, length=len(BODY), version="1.0") + BODY
        for pieces in ((request,), (request[: -len(BODY)], BODY)):
            answer = await api.raw(*pieces, pause=0.05)
            status, headers, _ = parse(answer)
            assert (status, headers["connection"]) == (202, "close"), answer
    # It needs no Host, and has no chunks.
    offer = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
    assert parse(await api.raw(b"GET /v1/ HTTP/1.0\r\n" + offer + b"\r\n"))[0] == 200
    chunked = b"POST /v1/sms/send HTTP/1.0\r\nTransfer-Encoding: chunked\r\n" + offer + b"\r\n0\r\n\r\n"
    assert refusal(await api.raw(chunked)) == (400, "bad_request")


async def test_an_offer_to_upgrade_does_not_keep_a_connection_that_is_to_close(api: Api) -> None:
    answer = await api.raw(b"GET /v1/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, Close\r\nUpgrade: h2c\r\n\r\n")
    assert parse(answer)[1]["connection"] == "close"


async def test_an_offer_to_upgrade_is_ignored(api: Api, tenant: Tenant) -> None:
    offers = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    request = send_request(tenant, *offers, length=len(BODY)) + BODY
    after = b"GET /v1/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    for pieces in ((request + after,), (request[:-5], request[-5:] + after)):
        answer = await api.raw(*pieces, pause=0.05)
        statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [202, 200], answer


async def test_expect_100_continue(api: Api, tenant: Tenant) -> None:
    expect = send_request(tenant, "Expect: 100-continue", "Connection: close", length=len(BODY))
    answer = await api.raw(expect, BODY, pause=0.2)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 ")
    # Refused before the body: no 100 Continue.
    large = send_request(tenant, "Expect: 100-continue", length=10**9)
    assert refusal(await api.raw(large)) == (413, "payload_too_large")


def resident() -> int:
    """Resident memory of this process, server included, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_large_bodies_are_refused_early_and_cost_no_memory(api: Api, tenant: Tenant) -> None:
    before = resident()
    block = b"x" * 65536

    async def pour(head: bytes, *, chunked: bool) -> bytes:
        """Send up to 1 GB, until there is a response."""
        reader, writer = await asyncio.open_connection(*api.address)
        writer.write(head)
        answer = asyncio.create_task(reader.read())
        with contextlib.suppress(ConnectionError):
            for _ in range(10**9 // len(block)):
                if answer.done():
                    break
                writer.write(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            return await answer
        return b""

    async with asyncio.timeout(120):
        unknown_key = b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n"
        declared, endless, refused = await asyncio.gather(
            pour(send_request(tenant, length=10**9), chunked=False),
            pour(send_request(tenant, "Transfer-Encoding: chunked"), chunked=True),
            pour(unknown_key, chunked=False),
        )
    assert refusal(declared) == (413, "payload_too_large")
    assert msgspec.json.decode(parse(declared)[2])["error"]["details"] == {"maxBytes": 262_144}
    assert refusal(endless) == (413, "payload_too_large")
    assert refusal(refused) == (401, "unauthorized")
    assert resident() - before < 50 * 2**20


async def test_a_small_body_of_a_refused_request_does_not_cost_the_connection(api: Api, tenant: Tenant) -> None:
    refused = b"POST /v1/sms/send HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
    after = b"GET /v1/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answer = await api.raw(refused, b"x" * 50, b"x" * 50, after, pause=0.1)
    statuses = [int(part.split()[0]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [401, 200]


async def test_a_client_that_does_not_read_is_cut_off(hasty: Api) -> None:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(hasty.address)
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(OVER):
            while not writer.is_closing():
                writer.write(b"GET /v1/openhasty.json HTTP/1.1\r\nHost: a\r\n\r\n")
                await writer.drain()
                await asyncio.sleep(0.002)
    writer.close()
    assert reader is not None


async def busy(
    hasty: Api, tenant: Tenant, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection in the middle of a request's body."""
    reader, writer = await asyncio.open_connection(*hasty.address, local_addr=(source, 0))
    writer.write(send_request(tenant, "Expect: 100-continue", length=len(BODY)))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    return reader, writer


async def test_connections_past_the_limit_get_503_while_all_are_busy(database_url: str, tenant: Tenant) -> None:
    async with running(database_url, max_connections=3) as api:
        held = [await busy(api, tenant) for _ in range(3)]
        answer = await api.raw(b"GET /v1/ HTTP/1.1\r\nHost: a\r\n\r\n")
        assert refusal(answer) == (503, "service_unavailable")
        assert parse(answer)[1]["retry-after"] == "1"
        for reader, writer in held:
            writer.write(BODY)
            assert (await reader.readline()).startswith(b"HTTP/1.1 202 ")
            writer.close()
        async with asyncio.timeout(120):
            status = 503
            while status == 503:
                status, _, _ = parse(await api.raw(b"GET /v1/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
        assert status == 200


async def test_many_bad_clients_do_not_slow_the_others(api: Api, tenant: Tenant) -> None:
    opened = []
    for number in range(400):
        _, writer = await asyncio.open_connection(*api.address)
        opened.append(writer)
        if number % 4 == 1:
            writer.write(b"GET /v1/ HTT")
        elif number % 4 == 2:
            writer.write(send_request(tenant, length=len(BODY)) + BODY[:3])
        elif number % 4 == 3:
            writer.write(send_request(tenant, "Transfer-Encoding: chunked") + b"2\r\nxx\r\n")
    assert (await api.ask("GET", "/webhooks", headers=tenant.headers))[0] == 200
    for writer in opened:
        writer.close()
