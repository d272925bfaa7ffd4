"""Connecting to PostgreSQL: the hosts of the URL in turn or all at once, each with its own time limit, and so the
addresses of a host.

The rule nobody may break: every connection of the product is opened here, so that each one notices when its other end
is gone, none waits for a hanging host or address while another answers, and none has to ask the server for array types.
"""

from __future__ import annotations

import asyncio
import getpass
import ipaddress
import os
import random
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg
import structlog
from asyncpg.connect_utils import SessionAttribute

from heliograph.base.database import arrays
from heliograph.base.database.url import Host, KeepAlive, Target, UrlError, parse, shown
from heliograph.base.network.tls import client_context

if TYPE_CHECKING:
    Raw = asyncpg.Connection[asyncpg.Record]
else:
    Raw = asyncpg.Connection

log = structlog.get_logger()

Place = TypeVar("Place")

#: Errors after which the next host is tried: this one is down, hangs, is not ready, or is of the wrong kind. A refused
#: password is not among them: it would be refused everywhere.
NEXT_HOST_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,  # its files are gone or cannot be read
    asyncpg.InternalServerError,  # or are damaged
    asyncpg.InternalClientError,  # TargetServerAttributeNotMatched is one
)


#: Session parameters that make the server end a session whose client is gone, which it would otherwise notice after two
#: hours, or after a quarter of one while an answer is on its way, or has stopped in the middle of a transaction
#: (`pulse` ends those that these miss). Until then, others wait for its locks and its claimed rows.
DEAD_PEER_TIMEOUTS = {
    "idle_in_transaction_session_timeout": "15s",
    "tcp_user_timeout": "10000",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
}

#: Seconds after which the next host or address is tried in parallel with one that has not answered.
STAGGER = 0.25


class DatabaseUnavailable(ConnectionError):
    """The database does not answer, or cannot start a session; requests fail at once."""


class TlsMissing(ConnectionError):
    """The server does not offer the TLS that the URL requires."""


#: Part of asyncpg's message, the only sign that the server has refused TLS.
NO_TLS = "rejected SSL upgrade"


class Connector:
    """Opens connections for a URL. Remembers which host answered last, and at which address, and tries that first."""

    def __init__(self, url: str, *, current: Callable[[], str] | None = None, **options: Any) -> None:
        """`current`: the URL as it is now, "" if unknown; called before each connection: a password can be changed
        in its file while the process is running. `options`: of asyncpg.connect, for each connection.

        Raises UrlError, also if a file that the URL names cannot be read, or nothing names the user.
        """
        self._url, self._current = url, current
        self._options = options
        self._target = _usable(url)
        self._last: Host | None = None
        #: Of hosts with a name: the address that answered last, the addresses found last, and a look-up whose result
        #: was not used yet.
        self._address: dict[Host, str] = {}
        self._known: dict[Host, list[str]] = {}
        self._lookups: dict[Host, asyncio.Task[list[str]]] = {}

    async def connect(self, **options: Any) -> Raw:
        """A connection to the first host that answers and is of the wanted kind; `options`: for asyncpg.connect.

        Raises what the last host's attempt raised; DatabaseUnavailable for an internal error, which is normally the
        statement's fault, but here the server's.
        """
        self._follow()
        options = self._complete(options)
        attributes = self._target.attributes
        try:
            return await self._first("standby" if attributes == "prefer-standby" else attributes, options)
        except NEXT_HOST_ERRORS:
            if attributes != "prefer-standby":
                raise
        return await self._first("any", options)

    async def reach(self, *, pause: float, **options: Any) -> Raw:
        """A connection as soon as any host offers one: all are tried at once, and each is retried every `pause`
        seconds, independently of the others. So a hanging host does not delay finding the one that replaced it.

        Raises what `connect` does, once the URL's time limit has passed.
        """
        if len(self._target.hosts) == 1 or self._target.attributes == "prefer-standby":
            return await self.connect(**options)
        self._follow()
        target, options = self._target, self._complete(options)
        loop = asyncio.get_running_loop()
        until = loop.time() + target.timeout

        async def again(host: Host) -> Raw:
            while True:
                try:
                    return await self._open(target, host, target.attributes, options)
                except NEXT_HOST_ERRORS:
                    if loop.time() + pause >= until:
                        raise
                await asyncio.sleep(pause)

        return await self._any_of(self._order(), again, stagger=0.0)

    def _complete(self, options: dict[str, Any]) -> dict[str, Any]:
        secured = {"ssl": client_context()} if self._target.system_roots else {}
        return self._options | options | secured

    def _follow(self) -> None:
        url = self._url if self._current is None else self._current()
        if url in ("", self._url):
            return
        self._url = url
        try:
            self._target = _usable(url)
        except UrlError as error:
            log.warning("new database URL is invalid, keeping the previous one", reason=str(error))
        else:
            log.info("database URL changed", database=shown(url))

    async def _first(self, kind: str, options: dict[str, Any]) -> Raw:
        """The first host that answers, beginning with the last one that did. The next one is tried once a host has
        failed, or has been silent for a moment."""
        target, hosts = self._target, self._order()

        async def once(host: Host) -> Raw:
            return await self._open(target, host, kind, options)

        return await self._any_of(hosts, once, stagger=STAGGER)

    async def _any_of(
        self, hosts: Sequence[Host], attempt: Callable[[Host], Coroutine[Any, Any, Raw]], *, stagger: float
    ) -> Raw:
        try:
            host, connection = await _race(hosts, attempt, stagger=stagger)
        except asyncpg.InternalServerError as error:
            raise DatabaseUnavailable(f"the database cannot start a session: {error}") from error
        except TimeoutError as error:
            if str(error):
                raise
            raise TimeoutError("it does not answer") from error  # commands show this text
        self._last = host
        return connection

    async def _open(self, target: Target, host: Host, kind: str, options: dict[str, Any]) -> Raw:
        if not _has_name(host):
            return await self._begin(target, host, kind, options)
        addresses = await self._resolved(host, target.timeout)
        loop = asyncio.get_running_loop()

        refusals: list[Exception] = []

        async def at(address: str) -> Raw:
            try:
                connection = await self._begin(target, host, kind, {**options, "loop": _LoopAt(loop, address)})
            except NEXT_HOST_ERRORS as error:
                # A server that refuses the connection says more than an address without one.
                if not isinstance(error, TimeoutError | ConnectionRefusedError) and type(error) is not OSError:
                    refusals.append(error)
                raise
            connection._loop = loop  # type: ignore[attr-defined]
            return connection

        addresses.sort(key=lambda address: address != self._address.get(host))
        try:
            self._address[host], connection = await _race(addresses, at, stagger=STAGGER)
        except NEXT_HOST_ERRORS:
            if refusals:
                raise refusals[-1] from None
            raise
        return connection

    async def _resolved(self, host: Host, seconds: float) -> list[str]:
        """The addresses of a host; those found last, if name servers are silent. A look-up that takes longer continues,
        and the next attempt gets its result: while the first of two name servers is down, each takes 5 s."""
        known = self._known.get(host)
        lookup = self._lookups.get(host)
        if lookup is None:
            lookup = self._lookups[host] = asyncio.create_task(_addresses(host))
            lookup.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        try:
            async with asyncio.timeout(seconds if known is None else STAGGER):
                self._known[host] = known = await asyncio.shield(lookup)
        except TimeoutError:
            if known is None:
                raise TimeoutError("its name is not resolved in time: check this machine's DNS") from None
        except socket.gaierror as error:
            if known is None or error.errno != socket.EAI_AGAIN:
                raise
        finally:
            if lookup.done() and self._lookups.get(host) is lookup:
                del self._lookups[host]
        return list(known)

    async def _begin(self, target: Target, host: Host, kind: str, options: dict[str, Any]) -> Raw:
        try:
            connection: Raw = await asyncpg.connect(
                target.url,
                host=host.name or None,
                port=host.port,
                timeout=target.timeout,
                target_session_attrs=SessionAttribute(kind),
                **options,
            )
        except ConnectionError as error:
            if NO_TLS not in str(error):
                raise
            raise TlsMissing("it does not offer TLS, but `sslmode` requires it") from error
        watch_over(connection._transport.get_extra_info("socket"), target.keep_alive)  # type: ignore[attr-defined]
        arrays.use(connection)
        return connection

    def _order(self) -> list[Host]:
        hosts = list(self._target.hosts)
        if self._target.shuffled:
            random.shuffle(hosts)
        elif self._last is not None:
            hosts.sort(key=lambda host: host is not self._last)
        return hosts


def _usable(url: str) -> Target:
    target = parse(url)
    for name, path in target.files:
        if not os.access(path, os.R_OK):
            raise UrlError(f"`{name}` in the database's URL is {path}, which cannot be read")
    if not target.has_user and not os.environ.get("PGUSER") and not os.environ.get("PGSERVICE"):
        try:
            getpass.getuser()  # whose name asyncpg uses, as libpq does
        except (KeyError, OSError):
            raise UrlError(
                "the database's URL names no user, and this account has no name to use instead:"
                " write postgresql://USER@…, or set PGUSER"
            ) from None
    return target


async def connect(url: str, **options: Any) -> Raw:
    """One connection to the database at `url`; `options`: for asyncpg.connect. Raises UrlError and what asyncpg
    raises."""
    return await Connector(url).connect(**options)


class _LoopAt:
    """The event loop as one asyncpg connection sees it: it connects to this address of the host. asyncpg itself is
    given the host's name, which certificates, password files and Kerberos refer to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        self._loop, self._address = loop, address
        self.call_later = loop.call_later  # called for each statement

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, factory: Any, host: str, port: int, *, ssl: Any = None) -> Any:
        named = {} if ssl is None else {"ssl": ssl, "server_hostname": host}
        return await self._loop.create_connection(factory, self._address, port, **named)


def _has_name(host: Host) -> bool:
    """Whether a host is neither a socket nor an address."""
    try:
        ipaddress.ip_address(host.name)
    except ValueError:
        return host.name != "" and not host.name.startswith(("/", "@"))
    return False


async def _addresses(host: Host) -> list[str]:
    """The addresses of a host's name. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host.name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


async def _race(
    places: Sequence[Place], attempt: Callable[[Place], Coroutine[Any, Any, Raw]], *, stagger: float
) -> tuple[Place, Raw]:
    """The first place that answers, and the connection to it: one after the other, the next once a place has failed or
    has been silent for a moment. Raises what the last one raised."""
    waiting = list(places)
    trying: dict[asyncio.Task[Raw], Place] = {}
    failed: BaseException | None = None
    try:
        while waiting or trying:
            if waiting:
                place = waiting.pop(0)
                trying[asyncio.create_task(attempt(place))] = place
            done, _ = await asyncio.wait(
                trying, timeout=stagger if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                try:
                    connection = task.result()
                except NEXT_HOST_ERRORS as error:
                    failed = error
                    del trying[task]
                    continue
                return trying.pop(task), connection
    finally:
        await _abandon(trying)
    assert failed is not None
    raise failed


async def _abandon(attempts: Collection[asyncio.Task[Raw]]) -> None:
    """End attempts that nobody is waiting for anymore, and close the connections they opened."""
    for task in attempts:
        task.cancel()
    for ended in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(ended, asyncpg.Connection):
            ended.terminate()


def watch_over(sock: Any, wanted: KeepAlive) -> None:
    """Make the kernel end a socket's connection if the other end no longer answers."""
    if sock is None or sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(wanted.wanted))
    if wanted.wanted:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, wanted.idle)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, wanted.interval)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, wanted.count)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, wanted.user_timeout)
