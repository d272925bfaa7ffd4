"""Outbound requests over real sockets: no connection to a forbidden address, and a result for any hostile response."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import errno
import ipaddress
import resource
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import format_datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from heliograph.base.process.settings import Settings
from heliograph.http.answers import KEPT_BYTES, Answer, Failure
from heliograph.http.client import HttpClient, webhook_rules
from heliograph.http.resolver import AddressBlocked, Resolver
from tests import ports

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

#: For tests in which the deadline ends a request; all others have enough time on a busy machine.
SHORT = {"webhook_timeout_seconds": 0.6, "webhook_connect_seconds": 0.3}
#: Longer than anything that is waited for.
PATIENT = {"webhook_timeout_seconds": 600.0, "webhook_connect_seconds": 600.0}


class Listener:
    """A server on one or more local addresses with the same port, which counts what arrives. Nobody else has the port
    on any address."""

    def __init__(self, serve: Serve, *, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.ended = 0
        self.requests: list[bytes] = []
        self._held = ports.hold()
        self.port = ports.number(self._held)
        self._serve = serve
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, *hosts: str) -> None:
        for host in hosts:
            self._servers.append(await asyncio.start_server(self._accepted, host, self.port, ssl=self._tls))

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._held.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(reader, writer)
        self.ended += 1
        writer.close()
        self._tasks.discard(task)

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request with its body and record it."""
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        request = head + await reader.readexactly(length)
        self.requests.append(request)
        return request


@contextlib.asynccontextmanager
async def listening(
    serve: Serve | None = None, *hosts: str, answer: bytes = b"", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Listener]:
    """`answer` is sent to each request of a connection; `serve` handles it itself."""

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await listener.request(reader)
            writer.write(answer)
            await writer.drain()

    listener = Listener(serve or answering, tls=tls)
    await listener.start(*(hosts or ("127.0.0.1",)))
    try:
        yield listener
    finally:
        await listener.stop()


@contextlib.asynccontextmanager
async def outbound(
    networks: str = "127.0.0.0/8,::1/128",
    *,
    names: dict[str, list[str]] | None = None,
    lookup: Callable[[str], list[str]] | None = None,
    tls: ssl.SSLContext | None = None,
    keep_alive: float = 4.0,
    **settings: object,
) -> AsyncIterator[HttpClient]:
    values = {
        "webhook_allow_http": True,
        "webhook_allow_networks": networks,
        "webhook_timeout_seconds": 60.0,
        "webhook_connect_seconds": 60.0,
    }
    known = names or {}

    def found(name: str) -> list[str]:
        if name not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known[name]

    client = HttpClient(
        webhook_rules(Settings(**(values | settings))), lookup=lookup or found, tls=tls, keep_alive=keep_alive
    )  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.close()


def ok(body: bytes = b"", *headers: bytes, status: bytes = b"200 OK") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def post(client: HttpClient, url: str, body: bytes = b"{}") -> Answer | Failure:
    """A POST with a limit, whatever happens: some would otherwise never end."""
    async with asyncio.timeout(client._seconds + 60):
        return await client.post(url, body, {"content-type": "application/json"})


def kind(result: Answer | Failure) -> str:
    return result.kind if isinstance(result, Failure) else str(result.status)


# --- what is sent and what comes back


async def test_an_answer_has_status_and_body() -> None:
    async with listening(answer=ok(b"thanks", status=b"202 Accepted")) as listener, outbound() as client:
        result = await client.post(f"http://127.0.0.1:{listener.port}/a%20b/../c?d=%2F#e", b'{"a":1}', {"x-one": "1"})
    assert isinstance(result, Answer)
    assert (result.status, result.body, result.retry_after) == (202, b"thanks", None)
    assert 0 < result.duration < 60
    (request,) = listener.requests
    assert request.startswith(b"POST /a%20b/../c?d=%2F HTTP/1.1\r\n")
    assert request.endswith(b'\r\n\r\n{"a":1}')
    names = {line.split(b":")[0].lower() for line in request.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]}
    assert names == {b"host", b"user-agent", b"accept-encoding", b"x-one", b"content-length"}


async def test_a_connection_is_used_again() -> None:
    async with listening(answer=ok(b"ok")) as listener, outbound() as client:
        for _ in range(5):
            assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"
    assert (listener.connections, len(listener.requests)) == (1, 5)


async def test_an_idle_connection_that_was_closed_is_not_used_again() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await listener.request(reader)
        writer.write(ok(b"ok"))  # and nothing announces that the connection closes now
        await writer.drain()

    async with listening(once) as listener, outbound() as client:
        for count in range(1, 4):
            assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"
            await until(lambda: not client._idle)
            assert listener.connections == count


async def test_a_request_on_a_connection_that_ends_is_not_sent_twice() -> None:
    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await listener.request(reader)
        writer.write(ok(b"ok"))
        await listener.request(reader)

    async with listening(twice) as listener, outbound() as client:
        assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"
        assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "closed"
        assert (listener.connections, len(listener.requests)) == (1, 2)


@pytest.mark.parametrize(("seconds", "connections"), [(b"0", 3), (b"60", 1)])
async def test_a_connection_is_used_no_longer_than_its_other_side_keeps_it(seconds: bytes, connections: int) -> None:
    answer = ok(b"ok", b"Keep-Alive: timeout=" + seconds)
    async with listening(answer=answer) as listener, outbound(keep_alive=600.0) as client:
        for _ in range(3):
            assert isinstance(await post(client, f"http://127.0.0.1:{listener.port}/"), Answer)
        assert (listener.connections, len(listener.requests)) == (connections, 3)


async def test_what_comes_unasked_ends_an_idle_connection() -> None:
    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await listener.request(reader)
        writer.write(ok(b"ok"))
        await answered.wait()
        writer.write(ok(b"unasked", status=b"500 No"))
        await reader.read()

    answered = asyncio.Event()
    async with listening(talkative) as listener, outbound() as client:
        assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"
        assert client._idle == 1
        answered.set()
        await until(lambda: not client._idle)
        assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"
        assert listener.connections == 2


async def test_idle_connections_end_after_a_while_and_so_does_the_sweep() -> None:
    async with listening(answer=ok(b"ok")) as listener, outbound(keep_alive=0.2) as client:
        await asyncio.gather(*(post(client, f"http://127.0.0.1:{listener.port}/") for _ in range(3)))
        assert (listener.connections, client._idle) == (3, 3)
        await until(lambda: not client._idle and client._sweeper is None)
        assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"
        assert listener.connections == 4


async def test_a_cancelled_request_leaves_no_connection_behind() -> None:
    async with listening(hang) as listener, outbound() as client:
        waiting = asyncio.create_task(post(client, f"http://127.0.0.1:{listener.port}/"))
        await until(lambda: len(client._busy) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (client._busy, client._idle) == (set(), 0)
        await until(lambda: listener.ended == 1)


@pytest.mark.parametrize("value", ["a\r\nX-Two: b", "a\nb", "a\0b"])
async def test_a_header_that_would_be_two_is_not_sent(value: str) -> None:
    async with listening(answer=ok()) as listener, outbound() as client:
        assert kind(await client.post(f"http://127.0.0.1:{listener.port}/", b"", {"x-one": value})) == "protocol"
    assert listener.connections == 0


@pytest.mark.parametrize(
    ("rest", "path"),
    [("", "/"), ("?a=/b", "/?a=/b"), ("#f", "/"), ("/?x#y?z", "/?x"), ("?a#/b", "/?a"), ("//a", "//a")],
)
async def test_the_path_goes_out_as_it_is(rest: str, path: str) -> None:
    async with listening(None, "::1", answer=ok()) as listener, outbound() as client:
        assert kind(await post(client, f"http://[::1]:{listener.port}{rest}")) == "200"
    (request,) = listener.requests
    assert request.startswith(b"POST %s HTTP/1.1\r\nHost: [::1]:%d\r\n" % (path.encode(), listener.port))


async def test_cookies_and_proxies_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        listening(answer=ok(b"", b"Set-Cookie: a=b; Path=/")) as listener,
        listening(answer=ok()) as proxy,
        outbound(names={"receiver.example": ["127.0.0.1"]}) as client,
    ):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        for _ in range(2):
            assert kind(await post(client, f"http://receiver.example:{listener.port}/")) == "200"
    assert proxy.connections == 0
    assert b"cookie" not in listener.requests[1].lower()


async def test_a_compressed_body_is_kept_as_it_is() -> None:
    async with listening(answer=ok(b"\x1f\x8bnot really", b"Content-Encoding: gzip")) as listener, outbound() as client:
        result = await post(client, f"http://127.0.0.1:{listener.port}/")
    assert isinstance(result, Answer)
    assert result.body == b"\x1f\x8bnot really"


async def test_only_the_first_of_a_body_is_kept() -> None:
    async with listening(answer=ok(b"a" * 30_000)) as listener, outbound() as client:
        for _ in range(2):
            result = await post(client, f"http://127.0.0.1:{listener.port}/")
            assert isinstance(result, Answer)
            assert result.body == b"a" * KEPT_BYTES
    assert listener.connections == 1


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("120", 120, 120),
        ("0", 0, 0),
        ("an hour from now", 3500, 3600),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        ("soon", None, None),
        ("-5", None, None),
        ("1e9", None, None),
        ("Sun, 01 Mar 2026 12:01:00 +" + "9" * 30, None, None),
    ],
)
async def test_retry_after_is_read(header: str, low: float | None, high: float | None) -> None:
    if header == "an hour from now":
        header = format_datetime(datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1), usegmt=True)
    answer = ok(b"", b"Retry-After: " + header.encode(), status=b"429 Too Many Requests")
    async with listening(answer=answer) as listener, outbound() as client:
        result = await post(client, f"http://127.0.0.1:{listener.port}/")
    assert isinstance(result, Answer)
    if low is None or high is None:
        assert result.retry_after is None
    else:
        assert result.retry_after is not None
        assert low <= result.retry_after <= high


async def test_one_destination_cannot_have_every_connection() -> None:
    async with (
        listening(hang) as slow,
        listening(answer=ok()) as quick,
        outbound(webhook_concurrency=8, **PATIENT) as client,
    ):
        hanging = [asyncio.create_task(post(client, f"http://127.0.0.1:{slow.port}/{n}")) for n in range(8)]
        await until(lambda: slow.connections == 8)
        assert kind(await post(client, f"http://127.0.0.1:{slow.port}/more")) == "busy"
        assert kind(await post(client, f"http://127.0.0.1:{quick.port}/")) == "200"
        assert slow.connections == 8
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_destination_is_free_again_after_its_timeouts() -> None:
    async with listening(hang) as slow, outbound(webhook_concurrency=8, **SHORT) as client:
        for _ in range(2):
            results = await asyncio.gather(*(post(client, f"http://127.0.0.1:{slow.port}/{n}") for n in range(8)))
            assert {kind(result) for result in results} == {"timeout"}


async def test_closing_ends_what_is_under_way() -> None:
    never = threading.Event()

    def stuck(name: str) -> list[str]:
        never.wait()
        return []

    try:
        async with listening(hang) as listener, outbound(lookup=stuck, **PATIENT) as client:
            connected = asyncio.create_task(client.post(f"http://127.0.0.1:{listener.port}/", b"", {}))
            resolving = asyncio.create_task(client.post("http://stuck.example/", b"", {}))
            await until(lambda: listener.connections == 1)
            await client.close()
            async with asyncio.timeout(120):
                assert kind(await connected) == "closed"
                assert isinstance(await resolving, Failure)
    finally:
        never.set()


# --- forbidden addresses: a listener sees that nothing arrives

LOOPBACK_FORMS = """
    127.0.0.1 127.0.0.1. 127.1 127.0.1 2130706433 0177.0.0.1 017700000001 0x7f.0.0.1 0x7f000001 0x7f.1 0.0.0.0 0
    [::1] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] [::1%25lo] [::1%lo]
    user@127.0.0.1 8.8.8.8@127.0.0.1 8.8.8.8%40127.0.0.1 127.0.0.1#@8.8.8.8 8.8.8.8\\@127.0.0.1
    １２７.０.０.１ 127。0。0。1 ⓛocalhost localhost localhost. LOCALHOST
"""


async def test_no_spelling_of_loopback_is_connected_to() -> None:
    forms = LOOPBACK_FORMS.split()
    names = {name: ["127.0.0.1", "::1"] for name in forms} | {"localhost": ["127.0.0.1"]}
    async with listening(None, "127.0.0.1", "::1", answer=ok()) as listener:
        async with outbound("", names=names) as client:
            for form in forms:
                for scheme in ("http", "https"):
                    assert kind(await post(client, f"{scheme}://{form}:{listener.port}/")) == "blocked", form
        assert listener.connections == 0
        async with outbound(names=names) as client:  # the listener does listen: if allowed, the same posts arrive
            for form in ("127.0.0.1", "[::1]", "localhost"):
                assert kind(await post(client, f"http://{form}:{listener.port}/")) == "200", form


FORBIDDEN_ANSWERS = [
    ["127.0.0.1"],
    ["::1"],
    ["::ffff:127.0.0.1"],
    ["64:ff9b::7f00:1"],
    ["2002:7f00:1::"],
    ["169.254.169.254"],
    ["fe80::1%lo"],
    ["0.0.0.0"],
    ["::"],
    # One that is allowed beside one that is not: neither is connected to.
    ["127.0.0.2", "127.0.0.1"],
    ["127.0.0.1", "127.0.0.2"],
    ["127.0.0.2", "::1"],
    ["127.0.0.2", "10.0.0.1"],
]


@pytest.mark.parametrize("addresses", FORBIDDEN_ANSWERS, ids=",".join)
async def test_a_name_with_a_forbidden_address_is_not_connected_to(addresses: list[str]) -> None:
    async with (
        listening(None, "127.0.0.1", "127.0.0.2", "::1", answer=ok()) as listener,
        outbound("127.0.0.2/32", names={"rogue.example": addresses}) as client,
    ):
        for _ in range(2):
            assert kind(await post(client, f"http://rogue.example:{listener.port}/")) == "blocked"
    assert listener.connections == 0


async def test_a_name_that_changes_after_the_check_changes_nothing() -> None:
    asked: list[str] = []

    def rebinding(name: str) -> list[str]:
        asked.append(name)
        return ["127.0.0.2"] if len(asked) == 1 else ["127.0.0.1"]

    close = ok(b"", b"Connection: close")
    async with (
        listening(None, "127.0.0.1", answer=close) as forbidden,
        outbound("127.0.0.2/32", lookup=rebinding) as client,
    ):
        allowed = Listener(forbidden._serve)
        allowed.port = forbidden.port
        await allowed.start("127.0.0.2")
        try:
            for _ in range(3):
                assert kind(await post(client, f"http://rebinding.example:{allowed.port}/")) == "200"
        finally:
            await allowed.stop()
    # Resolved once, although three connections were made: the addresses are valid as long as their check.
    assert (len(asked), allowed.connections, forbidden.connections) == (1, 3, 0)


async def test_the_socket_itself_is_checked_too() -> None:
    async with outbound("") as client:
        for family, place in ((socket.AF_INET, ("127.0.0.1", 80)), (socket.AF_INET6, ("::1", 80, 0, 0))):
            with pytest.raises(OSError, match="not a public address"):
                client._open_socket((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place))


@pytest.mark.parametrize("status", [b"301 M", b"302 F", b"303 S", b"307 T", b"308 P", b"300 C"])
async def test_a_redirect_is_an_answer_and_is_not_followed(status: bytes) -> None:
    async with listening(None, "127.0.0.1", answer=ok()) as forbidden:
        answer = ok(b"", b"Location: http://127.0.0.1:%d/" % forbidden.port, status=status)
        async with listening(None, "127.0.0.2", answer=answer) as listener, outbound("127.0.0.2/32") as client:
            assert kind(await post(client, f"http://127.0.0.2:{listener.port}/")) == status[:3].decode()
    assert (forbidden.connections, len(listener.requests)) == (0, 1)


# --- names


async def test_a_name_without_an_address_is_a_dns_failure() -> None:
    async with outbound(names={"empty.example": []}) as client:
        assert kind(await post(client, "http://unknown.example/")) == "dns"
        assert kind(await post(client, "http://empty.example/")) == "dns"


async def test_names_that_are_not_answered_hold_up_no_other() -> None:
    answered = threading.Event()

    def lookup(name: str) -> list[str]:
        if name.startswith("stuck"):
            answered.wait()
        return ["127.0.0.1"]

    async with listening(answer=ok()) as listener, outbound(lookup=lookup, **PATIENT) as client:
        stuck = [asyncio.create_task(post(client, f"http://stuck{n}.example:{listener.port}/")) for n in range(50)]
        try:
            await asyncio.sleep(0)
            assert kind(await post(client, f"http://good.example:{listener.port}/")) == "200"
            assert not any(task.done() for task in stuck)
            assert listener.connections == 1
        finally:
            answered.set()
        assert {kind(result) for result in await asyncio.gather(*stuck)} == {"200"}


async def test_a_name_that_is_never_answered_is_a_timeout() -> None:
    never = threading.Event()

    def lookup(name: str) -> list[str]:
        never.wait()
        return ["127.0.0.1"]

    async with listening(answer=ok()) as listener, outbound(lookup=lookup, **SHORT) as client:
        try:
            assert kind(await post(client, f"http://stuck.example:{listener.port}/")) == "timeout"
        finally:
            never.set()
        assert listener.connections == 0


async def test_new_names_that_are_never_answered_hold_up_none_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One organization could choose enough of them to occupy all threads: no receiver's name was resolved any more."""
    never = threading.Event()

    def lookup(name: str) -> list[str]:
        if name.startswith("stuck"):
            never.wait()
        return ["127.0.0.1"]

    monkeypatch.setattr("heliograph.http.resolver._LOOKUPS", 4)
    monkeypatch.setattr("heliograph.http.resolver._NAME_SECONDS", 0.0)
    with contextlib.closing(Resolver(lookup, lambda address: True)) as found:
        assert await found.resolve("good.example") == ["127.0.0.1"]
        stuck = [asyncio.create_task(found.resolve(f"stuck{n}.example")) for n in range(5)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(60):
                assert await found.resolve("good.example") == ["127.0.0.1"]
            assert not any(task.done() for task in stuck)
        finally:
            never.set()
        assert {tuple(one) for one in await asyncio.gather(*stuck)} == {("127.0.0.1",)}


async def test_an_address_that_leads_nowhere_does_not_stand_in_for_the_name() -> None:
    """One refuses; one is silent, because its listener's queue is full. The third is reached in time."""
    async with listening(None, "127.0.0.3", answer=ok()) as listener:
        with socket.socket() as silent, contextlib.ExitStack() as queued:
            silent.bind(("127.0.0.2", listener.port))
            silent.listen(0)
            for _ in range(4):
                filler = queued.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.2", listener.port))
            names = {"several.example": ["127.0.0.1", "127.0.0.2", "127.0.0.3"]}
            async with outbound(names=names) as client:
                result = await post(client, f"http://several.example:{listener.port}/")
    assert kind(result) == "200"
    assert result.duration < 4
    assert listener.connections == 1


async def test_many_requests_to_one_name_make_one_lookup() -> None:
    asked: list[str] = []

    def lookup(name: str) -> list[str]:
        asked.append(name)
        time.sleep(0.05)  # long enough for all of them to be waiting
        return ["127.0.0.1"]

    async with listening(answer=ok()) as listener, outbound(lookup=lookup) as client:
        results = await asyncio.gather(*(post(client, f"http://one.example:{listener.port}/") for _ in range(20)))
    assert {kind(result) for result in results} == {"200"}
    assert asked == ["one.example"]


# --- tarpits: each ends within the deadline, as a result


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def trickle_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    for byte in ok(b"late"):
        if writer.is_closing():
            return
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(writer: asyncio.StreamWriter, piece: bytes) -> None:
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(piece * (20_000 // len(piece)))
    await writer.drain()
    await asyncio.sleep(0)  # draining alone lets the client run only once the socket's buffers are full


async def endless_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        await flood(writer, b"X-More: and more\r\n")


async def endless_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        await flood(writer, b"a")


async def endless_reason(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 ")
    while True:
        await flood(writer, b"a")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"


async def endless_trailer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(CHUNKED + b"0\r\nX-Long: ")
    while True:
        await flood(writer, b"a")


async def endless_trailers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(CHUNKED + b"0\r\n")
    while True:
        await flood(writer, b"X-More: and more\r\n")


async def trickling_trailer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(CHUNKED + b"0\r\nX-Long: ")
    while not writer.is_closing():
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.05)


async def unended_trailer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(CHUNKED + b"0\r\n")
    await reader.read()


async def endless_extension(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(CHUNKED + b"5;")
    while True:
        await flood(writer, b"a")


async def little_body_in_long_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(CHUNKED)
    while True:
        await flood(writer, b"1;" + b"a" * 9_000 + b"\r\nx\r\n")


async def interim_for_ever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.1)


async def interim_flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    while True:
        await flood(writer, b"HTTP/1.1 100 Continue\r\n\r\n")


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def half_a_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nX-One: 1")
    await writer.drain()


@pytest.mark.parametrize(
    ("serve", "expected"),
    [
        (hang, "timeout"),
        (trickle_head, "timeout"),
        (endless_headers, "protocol"),
        (endless_header, "protocol"),
        (endless_reason, "protocol"),
        (endless_trailer, "protocol"),
        (endless_trailers, "protocol"),
        (trickling_trailer, "timeout"),
        (unended_trailer, "timeout"),
        (endless_extension, "protocol"),
        (little_body_in_long_chunks, "protocol"),
        (interim_for_ever, "timeout"),
        (interim_flood, "protocol"),
        (reset, "closed"),
        (close_at_once, "closed"),
        (half_a_head, "closed"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_tarpit_ends_as_a_failure(serve: Serve, expected: str) -> None:
    async with listening(serve) as listener, outbound(**SHORT) as client:
        assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n",
        b"\x00" * 100,
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nonly\r\nlies\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_a_failure(answer: bytes) -> None:
    async with listening(answer=answer) as listener, outbound() as client:
        assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "protocol"


async def test_a_name_that_is_an_address_is_checked_and_not_looked_up() -> None:
    def lookup(name: str) -> list[str]:
        raise AssertionError(name)

    with contextlib.closing(Resolver(lookup, lambda address: address.is_loopback)) as resolver:
        assert await resolver.resolve("127.0.0.1") == ["127.0.0.1"]
        with pytest.raises(AddressBlocked):
            await resolver.resolve("192.0.2.1")


async def test_a_greeting_before_the_request_is_no_http() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()

    async with listening(greet) as listener, outbound() as client:
        result = await post(client, f"http://127.0.0.1:{listener.port}/")
    assert kind(result) == "protocol", result


async def test_a_connection_lost_as_soon_as_it_is_open_is_closed_and_not_late() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with listening(refuse) as listener, outbound() as client:
        results = [await post(client, f"http://127.0.0.1:{listener.port}/") for _ in range(50)]
    assert {kind(result) for result in results} <= {"closed", "connect"}


def then(answer: bytes, *, end: bool) -> Serve:
    """Answers once, then hangs, or closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if not end:
            await reader.read()

    return serve


@pytest.mark.parametrize(
    ("answer", "end", "kept", "is_cut"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nonly this", False, b"only this", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this", True, b"only this", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this", False, b"only this", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nonly this", False, b"only this", True),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", True, b"until the end", False),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", False, b"until the end", True),
        (b"HTTP/1.1 103 Hi\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n\r\nto the end", True, b"to the end", False),
        (CHUNKED, False, b"ok", True),
        (CHUNKED, True, b"ok", True),
        (CHUNKED + b"0\r\n\r\n", False, b"ok", False),
        (CHUNKED + b"5\r\n", False, b"ok", True),
        (CHUNKED + b"5\r\nab", False, b"okab", True),
        (ok(b"a" * (KEPT_BYTES + 1)), False, b"a" * KEPT_BYTES, True),
    ],
)
async def test_the_status_stands_however_its_body_ends(answer: bytes, end: bool, kept: bytes, is_cut: bool) -> None:
    async with listening(then(answer, end=end)) as listener, outbound(**SHORT) as client:
        result = await post(client, f"http://127.0.0.1:{listener.port}/")
    assert isinstance(result, Answer)
    assert (result.status, result.body, result.is_cut) == (200, kept, is_cut)


async def test_interim_answers_come_before_the_answer() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n" * 3 + ok(b"ok")
    async with listening(answer=answer) as listener, outbound() as client:
        for _ in range(10):
            assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"
    assert listener.connections == 1


async def test_what_follows_an_answer_is_not_the_next_ones() -> None:
    answer = ok(b"ok") + ok(b"smuggled", status=b"500 No")
    async with listening(answer=answer) as listener, outbound() as client:
        for _ in range(3):
            assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"


async def test_a_body_of_10_gigabytes_is_not_read() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n")
        while True:
            await flood(writer, b"a")
            sent += 20_000

    async with listening(serve) as listener, outbound() as client:
        result = await post(client, f"http://127.0.0.1:{listener.port}/")
    assert isinstance(result, Answer)
    assert (result.status, result.body) == (200, b"a" * KEPT_BYTES)
    assert sent < 32 * 1_048_576  # what the socket buffers of both sides hold, and some more


async def test_a_trickling_body_is_not_waited_for_longer_than_two_seconds() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(0.1)

    async with listening(trickle) as listener, outbound(**PATIENT) as client:
        result = await client.post(f"http://127.0.0.1:{listener.port}/", b"", {})
    assert isinstance(result, Answer)
    assert result.status == 200
    assert 1.5 < result.duration < 120


async def test_nobody_listening_is_a_connect_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: the port refuses and stays ours
        async with outbound() as client:
            assert kind(await post(client, f"http://127.0.0.1:{taken.getsockname()[1]}/")) == "connect"


@contextlib.asynccontextmanager
async def hanging(client: HttpClient) -> AsyncIterator[list[asyncio.Task[Answer | Failure]]]:
    """Sixty requests to three kinds of tarpits, all of them started."""
    async with (
        listening(hang) as silent,
        listening(trickle_head) as trickling,
        listening(interim_for_ever) as interim,
    ):
        requests = [
            asyncio.create_task(post(client, f"{scheme}://127.0.0.1:{tarpit.port}/{n}"))
            for n in range(10)
            for scheme in ("http", "https")
            for tarpit in (silent, trickling, interim)
        ]
        await until(lambda: silent.connections == 20)
        yield requests


async def test_others_are_served_while_many_hang() -> None:
    async with listening(answer=ok()) as quick, outbound() as client, hanging(client) as requests:
        silent = requests[::3]
        results = await asyncio.gather(*(post(client, f"http://127.0.0.1:{quick.port}/") for _ in range(60)))
        assert {kind(result) for result in results} == {"200"}
        assert not any(request.done() for request in silent)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)


async def test_many_that_hang_end_in_time() -> None:
    async with outbound(webhook_timeout_seconds=1.5) as client, hanging(client) as requests:
        assert {kind(result) for result in await asyncio.gather(*requests)} <= {"timeout", "tls"}


# --- TLS


def certificate(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context for `good.example` and 127.0.0.1, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "good.example")])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName("good.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = directory / "both.pem"
    pem = serialization.Encoding.PEM
    file.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()) + made.public_bytes(pem)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    client = ssl.create_default_context(cadata=made.public_bytes(pem).decode())
    return server, client


async def test_tls_is_verified(tmp_path: Path) -> None:
    server, trusting = certificate(tmp_path)
    names = {"good.example": ["127.0.0.1"], "other.example": ["127.0.0.1"]}
    async with listening(answer=ok(), tls=server) as listener:
        async with outbound(names=names, tls=trusting) as client:
            for _ in range(3):
                assert kind(await post(client, f"https://good.example:{listener.port}/")) == "200"
            assert listener.connections == 1
            assert kind(await post(client, f"https://127.0.0.1:{listener.port}/")) == "200"
            assert kind(await post(client, f"https://other.example:{listener.port}/")) == "tls"
        async with outbound(names=names) as client:
            assert kind(await post(client, f"https://good.example:{listener.port}/")) == "tls"
    assert len(listener.requests) == 4


async def test_a_tls_stall_and_plain_http_end_as_failures() -> None:
    async def not_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with listening(hang) as silent, listening(not_tls) as plain, outbound(**SHORT) as client:
        assert kind(await post(client, f"https://127.0.0.1:{silent.port}/")) == "timeout"
        assert kind(await post(client, f"https://127.0.0.1:{plain.port}/")) == "tls"


async def test_being_out_of_descriptors_is_nobodys_fault() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with listening(answer=ok()) as listener, outbound() as client:
        with socket.socket() as probe:
            next_free = probe.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
        try:
            result = await post(client, f"http://127.0.0.1:{listener.port}/")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert kind(result) == "busy"
        assert kind(await post(client, f"http://127.0.0.1:{listener.port}/")) == "200"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")],
    ids=["files", "threads"],
)
async def test_being_unable_to_look_up_a_name_is_nobodys_fault_either(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def out_of_threads(_: threading.Thread) -> None:
        raise error

    def out_of_files(name: str) -> list[str]:
        if failing:
            raise error
        return ["127.0.0.1"]

    failing = isinstance(error, OSError)
    async with listening(answer=ok()) as listener, outbound(lookup=out_of_files) as client:
        with monkeypatch.context() as patch:
            if not failing:
                patch.setattr(threading.Thread, "start", out_of_threads)
            result = await post(client, f"http://some.example:{listener.port}/")
        assert isinstance(result, Failure)
        assert (result.kind, result.is_sent) == ("busy", False)
        failing = False
        assert kind(await post(client, f"http://some.example:{listener.port}/")) == "200", "that is not remembered"


async def until(condition: Callable[[], bool], within: float = 120.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
