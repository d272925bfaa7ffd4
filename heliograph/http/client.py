"""The one client for all outgoing requests: to addresses that customers choose, to suppliers and to Meta.

The rule nobody may break: a connection is opened only to an address that `addresses.is_allowed` accepted, and to
exactly that address. A name is resolved once per connection, by us; if any of its addresses is refused, all are. The
check is made three times because each place sees something that the others cannot: the URL's literal host before
anything happens (a literal never reaches the resolver), a name's addresses when they are resolved, and each socket's
address when it is opened. Nothing is resolved between check and connect, so rebinding a name changes nothing.

No redirect is followed, no proxy or netrc is read from the environment, no cookie is kept, no body is decompressed, and
nothing is sent twice: a kept connection that the other side closes at the wrong moment is a failure like any other.
Whatever the other side does, `HttpClient.post` returns within the deadline and does not raise, and what `post_now`
began is reported within it.

It has over 400 lines because a request and the connection that it waits for are one flow.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import Any

import msgspec

from heliograph.base.network import failures
from heliograph.base.network.addresses import (
    LONGEST_URL,
    Address,
    Network,
    Target,
    is_allowed,
    parse_networks,
    parse_url,
)
from heliograph.base.network.standstill import stood_still
from heliograph.base.network.tls import shared_client_context
from heliograph.base.process.settings import Settings
from heliograph.http import writer
from heliograph.http.answers import KEPT_BYTES, Answer, AnswerReader, ConnectionTrace, Failure, FailureKind, Withheld
from heliograph.http.client_connection import BODY_SECONDS, ClientConnection
from heliograph.http.resolver import OURS, AddressBlocked, Lookup, Resolver

#: Most receivers close an idle connection after 5 s or later; a request on one that is being closed is lost.
KEEP_ALIVE = 4.0
#: Maximum idle connections in total. One destination never has more than its limit of open ones.
_IDLE = 512
#: How often deadlines are checked; seconds.
_SWEEP = 0.05
#: Sweeps between two checks for connections that have been idle for too long.
_IDLE_SWEEPS = 10
#: After this, the next address of a name is tried in parallel (RFC 8305 §8), seconds.
_STAGGER = 0.25
_REMEMBERED = 4_096


def _always() -> bool:
    return True


class ClientRules(msgspec.Struct, frozen=True):
    """Where requests may go, how many at once, and for how long."""

    #: Seconds for one request, from its start to the end of its answer; seconds to open a connection.
    seconds: float
    connect_seconds: float
    #: Requests that may be open to one destination.
    per_destination: int
    #: Whether plain HTTP is allowed too.
    allow_http: bool = False
    #: Addresses that may be connected to besides public ones.
    networks: tuple[Network, ...] = ()
    #: Bytes of an answer's body that are kept.
    kept: int = KEPT_BYTES
    #: Whether an answer's body is decoded if it is compressed, which no request asks for.
    decodes: bool = False
    #: Names, in lower case, of an answer's headers that are kept.
    headers: frozenset[bytes] = frozenset()
    #: Seconds that a body may take after its head, within `seconds`.
    body_seconds: float = BODY_SECONDS
    #: Maximum characters of a URL.
    longest_url: int = LONGEST_URL


def webhook_rules(settings: Settings) -> ClientRules:
    """For addresses that customers choose."""
    return ClientRules(
        seconds=settings.webhook_timeout_seconds,
        connect_seconds=min(settings.webhook_connect_seconds, settings.webhook_timeout_seconds),
        per_destination=max(8, settings.webhook_concurrency // 4),
        allow_http=settings.webhook_allow_http,
        networks=parse_networks(settings.webhook_allow_networks),
    )


class HttpClient:
    """Created and used inside one running loop. `close` it.

    `lookup` (name → addresses; raises OSError; runs in a thread) and `tls` replace the system's resolver and trust
    store; `keep_alive`: how long a connection may be idle, seconds, unless an answer says less.
    """

    def __init__(
        self,
        rules: ClientRules,
        *,
        lookup: Lookup | None = None,
        tls: ssl.SSLContext | None = None,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._rules = rules
        self._destination_limit = rules.per_destination
        self._seconds = rules.seconds
        self._connect_seconds = rules.connect_seconds
        self._keep_alive = keep_alive
        self._tls = tls or shared_client_context()
        self._resolver = Resolver(lookup, self._check)
        #: By URL: the destination and the beginning of a POST to this path, or why it is refused.
        self._targets: dict[str, tuple[_Destination, str] | str] = {}
        self._destinations: dict[str, _Destination] = {}
        #: Connections with a request in progress.
        self._busy: set[ClientConnection] = set()
        self._idle = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_due = 0.0
        self._sweeps = 0
        self._closed = False

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], *, wanted: Callable[[], bool] = _always
    ) -> Answer | Failure:
        """One POST, within the time limits of the rules. `headers` are sent unchanged, Content-Type included; Host,
        User-Agent, Accept-Encoding and Content-Length are added. `wanted`: whether it is still to be sent, asked once
        the connection is open, right before the first byte: until then, this process may have stood still for long."""
        known = self._targets.get(url) or self._remember(url)
        if isinstance(known, str):
            return Failure("blocked", known, 0.0, is_sent=False)
        return await self._request(*known, body, headers, wanted)

    async def request(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], *, wanted: Callable[[], bool] = _always
    ) -> Answer | Failure:
        """As `post`, with any method, for URLs that are never used twice: nothing about them is remembered."""
        target = self._target(url)
        if isinstance(target, str):
            return Failure("blocked", target, 0.0, is_sent=False)
        start = writer.start(method, _authority(target), _path(url))
        return await self._request(self._destination(target), start, body, headers, wanted)

    async def _request(
        self,
        destination: _Destination,
        start: str,
        body: bytes,
        headers: Mapping[str, str],
        wanted: Callable[[], bool],
    ) -> Answer | Failure:
        if destination.open >= self._destination_limit:
            detail = f"{self._destination_limit} requests to this destination are open"
            return Failure("busy", detail, 0.0, is_sent=False)
        started = time.monotonic()
        connection: ClientConnection | None = None
        destination.open += 1
        try:
            request = writer.request(start, headers, body)
            connection = self._kept(destination, started) or await self._connect(destination)
            if not wanted():
                raise _NotSent("withheld", "no longer wanted")
            self._occupy(connection)
            return await connection.send(request, started=started, deadline=started + self._seconds)
        except _NotSent as why:
            way = None if why.address is None else ConnectionTrace(why.address)
            return Failure(why.kind, why.detail, time.monotonic() - started, is_sent=False, way=way)
        except Exception as error:
            detail = str(error) if isinstance(error, ValueError) else type(error).__name__
            return Failure("protocol", detail, time.monotonic() - started, is_sent=connection is not None)
        finally:
            destination.open -= 1
            if connection is not None:
                self._busy.discard(connection)
                self._keep(destination, connection)

    def post_now(self, url: str, body: bytes, lines: str, count: int, done: Callable[[Answer | Failure], None]) -> bool:
        """Like `post`, without a task or a future, if a connection is open and free: `done` is called once with the
        outcome, later. False: nothing was done; use `post`. `lines`: the headers, `count` of them, each with its line
        end."""
        known = self._targets.get(url)
        if known is None or isinstance(known, str) or self._closed:
            return False
        destination, start = known
        if not destination.idle or destination.open >= self._destination_limit:
            return False
        try:
            request = writer.request_of(start, lines, count, body)
        except ValueError:
            return False
        started = time.monotonic()
        connection = self._kept(destination, started)
        if connection is None:
            return False
        destination.open += 1
        self._occupy(connection)
        connection.begin(
            request,
            started=started,
            deadline=started + self._seconds,
            done=functools.partial(self._posted, destination, connection, done),
        )
        return True

    def _posted(
        self,
        destination: _Destination,
        connection: ClientConnection,
        done: Callable[[Answer | Failure], None],
        outcome: Answer | Failure,
    ) -> None:
        destination.open -= 1
        self._busy.discard(connection)
        self._keep(destination, connection)
        done(outcome)

    async def close(self) -> None:
        """Close all connections. Requests in progress end as failures."""
        self._closed = True
        self._resolver.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in [*self._busy, *(one for known in self._destinations.values() for one in known.idle)]:
            connection.abort()
        await asyncio.sleep(0)  # the loop closes sockets in its next iteration

    def _occupy(self, connection: ClientConnection) -> None:
        """A request begins on it: from now on its deadline is watched."""
        self._busy.add(connection)
        if self._sweeper is None:
            self._sweep_later()

    def _kept(self, destination: _Destination, now: float) -> ClientConnection | None:
        """The most recently used connection, because it is the least likely to be closing right now."""
        while destination.idle:
            connection = destination.idle.pop()
            self._idle -= 1
            if connection.is_free and now < connection.idle_until:
                return connection
            connection.abort()
        return None

    def _keep(self, destination: _Destination, connection: ClientConnection) -> None:
        if not connection.is_free or self._idle >= _IDLE or self._closed:
            connection.abort()
            return
        connection.idle_until = time.monotonic() + min(self._keep_alive, connection.keep_alive)
        destination.idle.append(connection)
        self._idle += 1

    def _sweep(self) -> None:
        """End requests past their deadline, and connections that have been idle for too long."""
        self._sweeper = None
        now = time.monotonic()
        if behind := stood_still(self._sweep_due, now):
            for connection in self._busy:
                connection.deadline += behind
        for connection in [one for one in self._busy if one.deadline < now]:
            connection.expire()
        self._sweeps += 1
        if self._idle and self._sweeps % _IDLE_SWEEPS == 0:
            for destination in self._destinations.values():
                for connection in [one for one in destination.idle if one.idle_until <= now]:
                    connection.abort()
        if self._busy or self._idle:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweep_due = time.monotonic() + _SWEEP
        self._sweeper = self._loop.call_later(_SWEEP, self._sweep)

    async def _connect(self, destination: _Destination) -> ClientConnection:
        """A new connection. Raises _NotSent."""
        if self._closed:
            raise _NotSent("closed", "closed by us")
        try:
            async with asyncio.timeout(self._connect_seconds):
                began = time.monotonic()
                addresses = await self._addresses(destination)
                found = time.monotonic()
                sock = await self._reach(addresses, destination.port)
                reached = time.monotonic()
                try:
                    address = sock.getpeername()[0]
                except OSError as error:  # it was closed at once
                    sock.close()
                    raise _NotSent("connect", failures.reason(error)) from None
                connection = await self._open(destination, sock, address)
                connection.way = ConnectionTrace(
                    address,
                    dns=None if destination.address is not None else found - began,
                    connect=reached - found,
                    tls=time.monotonic() - reached if destination.secure else None,
                )
                return connection
        except TimeoutError:
            raise _NotSent("timeout", "no connection in time") from None

    async def _addresses(self, destination: _Destination) -> list[str]:
        if destination.address is not None:
            return [str(destination.address)]
        try:
            return await self._resolver.resolve(destination.host)
        except AddressBlocked as error:
            raise _NotSent("blocked", str(error)) from None
        except OSError as error:
            raise _NotSent("busy" if error.errno in OURS else "dns", failures.reason(error)) from None

    async def _reach(self, addresses: list[str], port: int) -> socket.socket:
        """A socket connected to one of these addresses. One that does not answer must not use up the time of all, so
        the next is tried when the ones before it have failed, or in parallel after a while (RFC 8305 §5)."""
        if len(addresses) == 1:
            return await self._dial(addresses[0], port)
        waiting = addresses[::-1]
        dials: set[asyncio.Task[socket.socket]] = set()
        failed: _NotSent | None = None
        try:
            while waiting or dials:
                if waiting:
                    dials.add(asyncio.create_task(self._dial(waiting.pop(), port)))
                ended, _ = await asyncio.wait(
                    dials, timeout=_STAGGER if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for dial in ended:
                    dials.remove(dial)
                    try:
                        return dial.result()
                    except _NotSent as error:
                        failed = failed or error
        finally:
            for dial in dials:
                if not dial.cancel() and dial.exception() is None:
                    dial.result().close()
        assert failed is not None
        raise failed

    async def _dial(self, address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            sock = self._open_socket((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port)))
            try:
                sock.setblocking(False)
                await self._loop.sock_connect(sock, (address, port))
            except BaseException:
                sock.close()
                raise
        except AddressBlocked as error:
            raise _NotSent("blocked", str(error)) from None
        except OSError as error:
            raise _NotSent("busy" if error.errno in OURS else "connect", failures.reason(error), address) from None
        return sock

    async def _open(self, destination: _Destination, sock: socket.socket, address: str) -> ClientConnection:
        """The connection on a socket, with TLS if required."""

        def make() -> ClientConnection:
            return ClientConnection(
                self._loop,
                functools.partial(self._lost, destination),
                AnswerReader(self._rules.kept, self._rules.headers, decodes=self._rules.decodes),
                body_seconds=self._rules.body_seconds,
            )

        try:
            if destination.secure:
                _, connection = await self._loop.create_connection(
                    make, sock=sock, ssl=self._tls, server_hostname=destination.host
                )
            else:
                _, connection = await self._loop.create_connection(make, sock=sock)
        except BaseException as error:
            sock.close()
            if isinstance(error, ssl.SSLError | ssl.CertificateError):
                raise _NotSent("tls", str(error), address) from None
            if isinstance(error, OSError):
                raise _NotSent("connect", failures.reason(error), address) from None
            raise
        if self._closed:
            connection.abort()
            raise _NotSent("closed", "closed by us")
        return connection

    def _lost(self, destination: _Destination, connection: ClientConnection) -> None:
        if connection in destination.idle:
            destination.idle.remove(connection)
            self._idle -= 1

    def _remember(self, url: str) -> tuple[_Destination, str] | str:
        """The destination of a URL and the start of its POSTs, or why it is refused."""
        if len(self._targets) >= _REMEMBERED:
            self._targets.clear()
        target = self._target(url)
        if isinstance(target, str):
            known: tuple[_Destination, str] | str = target
        else:
            known = self._destination(target), writer.start("POST", _authority(target), _path(url))
        self._targets[url] = known
        return known

    def _target(self, url: str) -> Target | str:
        rules = self._rules
        return parse_url(url, allow_http=rules.allow_http, allowed_networks=rules.networks, longest=rules.longest_url)

    def _destination(self, target: Target) -> _Destination:
        if len(self._destinations) >= _REMEMBERED:
            self._targets.clear()
            self._destinations = {
                origin: known for origin, known in self._destinations.items() if known.open or known.idle
            }
        return self._destinations.setdefault(target.origin, _Destination(target))

    def _check(self, address: Address) -> bool:
        return is_allowed(address, self._rules.networks)

    def _open_socket(self, info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, place = info
        if not self._check(ip_address(place[0])):
            raise AddressBlocked(place[0])
        return socket.socket(family, kind, protocol)


class _Destination:
    """Scheme, host and port: requests to the same ones share connections and a limit."""

    __slots__ = ("address", "host", "idle", "open", "port", "secure")

    def __init__(self, target: Target) -> None:
        self.secure = target.scheme == "https"
        self.host = target.host
        self.port = target.port
        self.address = target.address
        #: Requests in progress, including those waiting for a connection.
        self.open = 0
        #: The most recently used one is last.
        self.idle: list[ClientConnection] = []


class _NotSent(Exception):
    """There is no connection to send a request on."""

    def __init__(self, kind: FailureKind | Withheld, detail: str, address: str | None = None) -> None:
        """`address`: the one that was tried, if that may be shown."""
        super().__init__(detail)
        self.kind: FailureKind | Withheld = kind
        self.detail = detail
        self.address = address


def _authority(target: Target) -> str:
    host = f"[{target.host}]" if isinstance(target.address, IPv6Address) else target.host
    return host if target.port == {"https": 443, "http": 80}[target.scheme] else f"{host}:{target.port}"


def _path(url: str) -> str:
    """Path and query exactly as they were saved; `parse_url` has accepted the URL."""
    rest = url.split("#", 1)[0].split("://", 1)[1]
    start = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    return rest[start:] if rest[start : start + 1] == "/" else f"/{rest[start:]}"
