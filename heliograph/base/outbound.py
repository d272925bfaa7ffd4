"""The one client for requests to addresses that somebody else chose.

The rule nobody may break: a connection is opened only to an address that `addresses.is_allowed` let pass, and to that
very address. A name is resolved once per connection, by us; if any of its addresses is refused, all are. The check is
made three times because each place sees what the others cannot: the URL's literal host before anything happens (a
literal never reaches the resolver), a name's addresses when they are resolved, and each socket's address when it is
opened. Nothing is resolved between check and connect, so rebinding a name changes nothing.

No redirect is followed, no proxy or netrc is read from the environment, no cookie is kept, no body is decompressed.
Whatever the other side does, `Outbound.post` returns within the deadline and does not raise.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any, Literal

import aiohttp
import msgspec
from aiohttp import StreamReader
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import RawResponseMessage
from yarl import URL

from heliograph.base.addresses import Address, check_url, is_allowed, parse_networks, parse_url
from heliograph.base.settings import Settings

__all__ = ["Answer", "Failure", "FailureKind", "Outbound", "check_url"]

#: What is kept of an answer's body, for operators.
KEPT_BYTES = 4_096
#: A longer body is not read to its end: its connection is closed instead of kept.
_READ_BYTES = 65_536
#: Once the status is known the outcome is, so a body that trickles is not waited for; seconds.
_BODY_SECONDS = 2.0
#: Most receivers close an idle connection after 5 s or later; a request on one that is being closed is lost.
_KEEP_ALIVE_SECONDS = 4.0
#: How long addresses and their check are reused. Failures too: a broken name must not cost a look-up per attempt.
_NAME_SECONDS = 30.0
_BAD_NAME_SECONDS = 5.0
#: A look-up blocks a thread for as long as the resolver pleases (10 s and more); this many may.
_LOOKUPS = 64
_REMEMBERED = 4_096
_INTERIM_ANSWERS = 16
#: This machine ran out of descriptors, ports or buffers: no fault of the destination.
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS})

FailureKind = Literal["blocked", "busy", "dns", "connect", "tls", "timeout", "closed", "protocol"]

Lookup = Callable[[str], list[str]]


class Answer(msgspec.Struct, frozen=True):
    """The other side answered. What the status means is the caller's business; 3xx was not followed.

    `body`: at most the first 4 kB, possibly cut short by the other side. `retry_after`: seconds from now, from the
    header's seconds or date, None without one. `duration`: seconds.
    """

    status: int
    body: bytes
    retry_after: float | None
    duration: float


class Failure(msgspec.Struct, frozen=True):
    """There was no answer. `detail` is for operators and holds neither path nor query of the URL.

    blocked   the address may not be connected to; nothing was sent
    busy      too many requests to this destination are open, or this machine is out of sockets; nothing was sent,
              and it is no fault of the destination
    dns       the name has no address; nothing was sent
    connect   refused, unreachable; nothing was sent
    tls       no agreement or no valid certificate; nothing was sent
    timeout   the deadline passed
    closed    the connection ended before an answer
    protocol  what came was not HTTP, or more of it than is read
    """

    kind: FailureKind
    detail: str
    duration: float


class Outbound:
    """Made and used inside one running loop. `close` it.

    `lookup` (name → addresses; raises OSError; runs in a thread) and `tls` stand for the system's resolver and trust
    store.
    """

    def __init__(self, settings: Settings, *, lookup: Lookup | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._allow_http = settings.webhook_allow_http
        self._networks = parse_networks(settings.webhook_allow_networks)
        self._destination_limit = max(8, settings.webhook_concurrency // 4)
        self._open: Counter[str] = Counter()
        self._targets: dict[str, tuple[str, URL] | str] = {}
        self._resolver = _Resolver(lookup or _system_lookup, self._check)
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            use_dns_cache=False,  # ours remembers the check with the addresses
            socket_factory=self._open_socket,
            ssl=tls or ssl.create_default_context(),
            limit=0,  # requests are counted here, so that waiting for a connection uses up nobody's deadline
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
        )
        connector._factory = functools.partial(_Protocol, loop=asyncio.get_running_loop())  # type: ignore[assignment]
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=settings.webhook_timeout_seconds,
                connect=settings.webhook_connect_seconds,
                ceil_threshold=3_600,  # deadlines longer than this would be rounded up to whole seconds
            ),
            headers={"User-Agent": "Heliograph/1"},
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type"),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=8_192,
            max_headers=100,
        )

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer | Failure:
        """One POST, at most `webhook_timeout_seconds` long. `headers` are sent as they are, Content-Type included."""
        known = self._targets.get(url) or self._remember(url)
        if isinstance(known, str):
            return Failure("blocked", known, 0.0)
        origin, parsed = known
        if self._open[origin] >= self._destination_limit:
            return Failure("busy", f"{self._destination_limit} requests to this destination are open", 0.0)
        self._open[origin] += 1
        started = time.monotonic()
        try:
            return await self._exchange(parsed, body, headers, started)
        except Exception as error:
            kind, detail = _classify(error)
            return Failure(kind, detail, time.monotonic() - started)
        finally:
            self._open[origin] -= 1
            if not self._open[origin]:
                del self._open[origin]

    async def close(self) -> None:
        """Close all connections. Requests under way end as failures."""
        await self._resolver.close()
        await self._session.close()

    async def _exchange(self, url: URL, body: bytes, headers: Mapping[str, str], started: float) -> Answer:
        response = await self._session.post(url, data=body, headers=headers, allow_redirects=False)
        try:
            kept = await _kept_body(response)
            retry_after = response.headers.get("Retry-After")
            return Answer(
                response.status,
                kept,
                None if retry_after is None else _seconds_until(retry_after),
                time.monotonic() - started,
            )
        finally:
            # Gives the connection back when the body was read to its end, and closes it otherwise.
            if response.content.at_eof():
                response.release()
            else:
                response.close()

    def _remember(self, url: str) -> tuple[str, URL] | str:
        """The origin of a URL and its parsed form, or why it is refused."""
        if len(self._targets) >= _REMEMBERED:
            self._targets.clear()
        target = parse_url(url, allow_http=self._allow_http, allowed_networks=self._networks)
        # encoded: the path goes out exactly as it was saved.
        known = target if isinstance(target, str) else (target.origin, URL(url, encoded=True))
        self._targets[url] = known
        return known

    def _check(self, address: Address) -> bool:
        return is_allowed(address, self._networks)

    def _open_socket(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, place = info
        if not self._check(ip_address(place[0])):
            raise _Blocked(place[0])
        return socket.socket(family, kind, protocol)


class _Blocked(OSError):
    """An address that may not be connected to. An OSError, because that is what aiohttp expects of a resolver."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is not a public address")


class _Protocol(ResponseHandler):
    """aiohttp's, with a limit on interim answers (1xx), of which it takes any number.

    A destination that sends nothing else kept a core at 70 % and delayed every other request by 45 ms, until the
    deadline; now the connection is dropped at the first of them beyond the limit.
    """

    _interim = 0

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        self._interim = self._interim + 1 if data[0].code < 200 else 0
        if self._interim <= _INTERIM_ANSWERS and len(self._buffer) <= _INTERIM_ANSWERS:
            super().feed_data(data, size)
        elif self._exception is None:
            self.set_exception(aiohttp.ClientPayloadError("too many interim answers"))
            if self.transport is not None:
                self.transport.abort()


class _Resolver(AbstractResolver):
    """Resolves a name once, checks all of its addresses, and remembers both together for a short while.

    Each look-up has a thread of its own, not one of the loop's few: names whose servers never answer must not hold up
    the others. The threads are daemons, so that none of them delays the process's end.
    """

    def __init__(self, lookup: Lookup, check: Callable[[Address], bool]) -> None:
        self._lookup = lookup
        self._check = check
        self._threads = asyncio.Semaphore(_LOOKUPS)
        self._known: dict[str, tuple[float, list[str] | OSError]] = {}
        self._running: dict[str, asyncio.Task[list[str]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The checked addresses of `host`. Raises OSError: no address, or one that is refused."""
        expiry, found = self._known.get(host, (0.0, []))
        if time.monotonic() >= expiry:
            task = self._running.get(host)
            if task is None:
                task = self._running[host] = asyncio.create_task(self._resolve(host))
                task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
            try:
                # One caller's deadline must not end the look-up that others wait for.
                found = await asyncio.shield(task)
            except asyncio.CancelledError:
                if not task.cancelled():
                    raise
                found = OSError("closed while the name was looked up")
        if isinstance(found, OSError):
            raise found.with_traceback(None)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in found
        ]

    async def close(self) -> None:
        """End the look-ups under way; those who wait for them get an OSError."""
        for task in self._running.values():
            task.cancel()

    async def _resolve(self, host: str) -> list[str]:
        outcome: list[str] | OSError
        try:
            async with self._threads:
                outcome = await _in_thread(self._lookup, host)
            if not outcome:
                raise OSError("the name has no address")
            for address in outcome:
                if not self._check(ip_address(address)):
                    raise _Blocked(address)
        except (OSError, ValueError) as error:
            # UnicodeError, a ValueError, is what the system's resolver says of a name with an impossible label.
            outcome = error if isinstance(error, OSError) else OSError(str(error))
        finally:
            self._running.pop(host, None)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        seconds = _BAD_NAME_SECONDS if isinstance(outcome, OSError) else _NAME_SECONDS
        self._known[host] = (time.monotonic() + seconds, outcome)
        if isinstance(outcome, OSError):
            raise outcome
        return outcome


def _system_lookup(name: str) -> list[str]:
    infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    # A zone (`fe80::1%eth0`) stays in the text and is refused with the address.
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


async def _in_thread(work: Lookup, name: str) -> list[str]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()

    def settle(result: list[str] | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result or [])

    def run() -> None:
        result: list[str] | None = None
        error: Exception | None = None
        try:
            result = work(name)
        except Exception as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop ended before the answer came; nobody waits for it

    threading.Thread(target=run, name="outbound-lookup", daemon=True).start()
    return await future


async def _kept_body(response: aiohttp.ClientResponse) -> bytes:
    content = response.content
    kept = bytearray()
    seen = 0
    try:
        if content.is_eof():  # already here as a whole, as small answers are
            return content.read_nowait(-1)[:KEPT_BYTES]
        async with asyncio.timeout(_BODY_SECONDS):
            while seen < _READ_BYTES and not content.at_eof():
                piece = await content.readany()
                seen += len(piece)
                if len(kept) < KEPT_BYTES:
                    kept += piece[: KEPT_BYTES - len(kept)]
    except Exception:
        return bytes(kept)  # the status stands, however its body ends
    return bytes(kept)


def _seconds_until(retry_after: str) -> float | None:
    """Retry-After (RFC 9110 §10.2.3): seconds, or an HTTP date, as seconds from now; None when it is neither."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def _classify(error: Exception) -> tuple[FailureKind, str]:
    """One of the closed set of kinds for whatever aiohttp raised, the more exact classes first."""
    reason = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(reason, _Blocked):
        return "blocked", str(reason)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "timeout", "no connection in time"
    if isinstance(error, TimeoutError):
        return "timeout", "no answer in time"
    if isinstance(reason, OSError) and reason.errno in _OURS:
        return "busy", reason.strerror or str(reason)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "tls", str(error.certificate_error)
    if isinstance(error, aiohttp.ClientSSLError):
        return "tls", str(error.os_error)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "dns", error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return "connect", error.os_error.strerror or str(error.os_error)
    if isinstance(error, aiohttp.ClientConnectionError | OSError):
        return "closed", "the connection ended before an answer"
    if isinstance(error, aiohttp.ClientResponseError):
        return "protocol", error.message[:200]
    return "protocol", type(error).__name__
