"""One session on the network: connect, bind, read, write, keep alive, reconnect after a loss.

Everything is callbacks: there is no task and no future per message. All bytes that submits and answers produce during
one iteration of the event loop leave in a single write.

The rule nobody may break: a submit counts as written once its bytes have been handed to the transport, and a lost
connection reports every open submit, and whether it was written, before anything else happens.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

import structlog

from heliograph.base.network.standstill import stood_still
from heliograph.base.retry import Backoff
from heliograph.base.sentences import Sentence, quoted, said
from heliograph.suppliers.failures import in_words
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.codec.statuses import ACCOUNT_REFUSED, bind_refused
from heliograph.suppliers.smpp.session import (
    Answered,
    BindRefused,
    Bound,
    Closed,
    Delivered,
    Late,
    PeerUnbinds,
    Session,
    State,
    Tap,
    TimedOut,
    Timers,
    Unreadable,
)
from heliograph.suppliers.smpp.settings import SmppSettings

log = structlog.get_logger(__name__)

#: A closing transport that cannot write its last bytes is aborted after this, seconds.
_LINGER = 3.0
#: PDUs that may wait while the peer reads nothing: a healthy peer reads the answers to its own PDUs.
_UNSENT = 50_000


class Owner(Protocol):
    """The callbacks of a link. None of them may block."""

    def link_ready(self, link: Link) -> None:
        """It is bound, so it may have capacity."""

    def link_down(self, link: Link, reason: Sentence) -> None:
        """It was lost, after all of its open submits were reported."""

    def answered(self, link: Link, context: Any, status: int, response: p.Pdu) -> None:
        """A submit was answered."""

    def timed_out(self, link: Link, context: Any) -> None:
        """A submit was not answered in time."""

    def answered_late(self, link: Link, context: Any, status: int, response: p.Pdu) -> None:
        """A submit that had timed out was answered after all."""

    def lost(self, link: Link, context: Any, written: bool) -> None:
        """A submit's connection is gone."""

    def delivered(self, connection: Connection, pdu: p.DeliverSm | p.DataSm, body: bytes) -> None:
        """A receipt or a message, to be answered with `connection.respond`."""

    def unreadable(self, link: Link, event: Unreadable) -> None:
        """A receipt or a message could not be decoded, and was refused for good."""

    def handled(self, link: Link) -> None:
        """A batch of events has been processed: there may be capacity, and this is a good moment to use it."""


class Connection(asyncio.Protocol):
    """A session on a socket, from connect to loss."""

    def __init__(self, link: Link, session: Session, bind: p.Bind, owner: Owner) -> None:
        self.session = session
        #: Why it has ended, once it has.
        self.closed: asyncio.Future[Sentence] = asyncio.get_running_loop().create_future()
        self.refused: int | None = None
        self.bound_at: float | None = None
        self._link = link
        self._owner = owner
        self._bind = bind
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._paused = False
        #: The number of holds on reading, when the first began, and the total time spent not reading.
        self._holds, self._held_at, self._unread = 0, 0.0, 0.0
        self._flush_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER

    # -- commands of the owner -----------------------------------------------------------------------------------------

    def submit(self, pdu: p.SubmitSm, context: Any) -> None:
        """Send; only while the session has room. Raises PduError, with nothing sent."""
        self.session.submit(pdu, context, self._time())
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def respond(self, pdu: p.DeliverSm | p.DataSm, status: int) -> bool:
        """Answer a delivered PDU. Does nothing, and returns False, if the connection is gone."""
        self.session.respond(pdu, status, self._time())
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return self._transport is not None and not self._transport.is_closing()

    def hold(self) -> None:
        """Stop reading until `release`, one for each `hold`. PDUs that the peer sends meanwhile are not late."""
        self._holds += 1
        if self._holds == 1:
            self._held_at = self._loop.time()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def release(self) -> None:
        """Undo one `hold`; resume reading after the last."""
        self._holds -= 1
        if self._holds == 0:
            self._unread += self._loop.time() - self._held_at
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()
            self._flush()

    def unbind(self) -> None:
        """Unbind; the peer's answer, or its absence, closes the connection."""
        if self.session.state is State.BOUND:
            self.session.unbind(self._time())
            self._flush()
        elif self.session.state is not State.UNBINDING:
            self.close()

    def close(self) -> None:
        """Write the remaining bytes and close."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            self._loop.call_later(_LINGER, self._transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- callbacks of the event loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        # Set here, not where connecting is awaited: the bind may be answered before that task runs.
        self._link.connection = self
        self.session.bind(self._bind, self._time())
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._handle(self.session.receive(data, self._time()))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        why = self.session.reason or (in_words(exc) if exc else said("the peer closed the connection"))
        for context, written in self.session.abandon():
            self._owner.lost(self._link, context, written)
        self._link.connection = None
        self._owner.link_down(self._link, why)
        if not self.closed.done():
            self.closed.set_result(why)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _time(self) -> float:
        """The session's clock, which excludes time spent not reading."""
        return (self._held_at if self._holds else self._loop.time()) - self._unread

    def _handle(self, events: list[Any]) -> None:
        owner, link = self._owner, self._link
        for event in events:
            kind = type(event)
            if kind is Answered:
                owner.answered(link, event.context, event.status, event.response)
            elif kind is Delivered:
                owner.delivered(self, event.pdu, event.body)
            elif kind is TimedOut:
                owner.timed_out(link, event.context)
            elif kind is Late:
                owner.answered_late(link, event.context, event.status, event.response)
            elif kind is Bound:
                self.bound_at = self._loop.time()
                owner.link_ready(link)
            elif kind is BindRefused:
                self.refused = event.status
            elif kind is Closed:
                self._flush(last=True)
                self.close()
                return
            elif kind is Unreadable:
                owner.unreadable(link, event)
            elif kind is PeerUnbinds:
                log.info("SMPP unbind received", link=link.name)
        owner.handled(link)
        self._flush()

    def _flush(self, *, last: bool = False) -> None:
        self._flush_due = False
        if self._transport is None or self._transport.is_closing():
            return
        if last or not self._paused:
            data = self.session.take()
            if data:
                self._transport.write(data)
        elif self.session.unsent > _UNSENT:
            self.session.reason = said("the peer reads nothing")
            self.abort()
            return
        # Also for a peer that reads nothing: it may be gone, and TCP could take very long to report that.
        deadline = self.session.deadline + self._unread
        if deadline < self._timer_at and not self._holds:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        behind = stood_still(self._timer_at, self._loop.time())
        self._timer, self._timer_at = None, _NEVER
        if behind and not self._holds:
            self._unread += behind
            self._flush()
            return
        # A timer may fire slightly early; one more millisecond makes its own deadline count.
        self._handle(self.session.tick(self._time() + 1e-3))


class Link:
    """Keeps one session up. `connection` is None while there is none."""

    def __init__(
        self,
        settings: SmppSettings,
        secret: str,
        owner: Owner,
        *,
        name: str,
        bind: type[p.Bind],
        tls: Callable[[], Awaitable[ssl.SSLContext | None]],
        late: float,
        resolve: Callable[[Sequence[str]], Awaitable[list[tuple[str, str]]]],
        random: Callable[[], float],
    ) -> None:
        self.name = name
        self.connection: Connection | None = None
        #: Why it is down, and how many addresses it has not tried in vain yet, but is trying, or will after a moment.
        self.last_error, self.untried = quoted(""), 0
        self._settings = settings
        self._secret = secret
        self._owner = owner
        self._bind = bind
        self._tls = tls
        self._late = late
        self._resolve = resolve
        self._random = random
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._turn = 0
        self._tap: Tap | None = None

    @property
    def room(self) -> int:
        """The number of submits it accepts right now."""
        return self.connection.session.room if self.connection is not None else 0

    @property
    def pending(self) -> int:
        """Submits waiting for their answer."""
        return self.connection.session.pending if self.connection is not None else 0

    @property
    def bound(self) -> bool:
        """Whether its session is bound."""
        return self.connection is not None and self.connection.session.state is State.BOUND

    def watch(self, tap: Tap | None) -> None:
        """Pass each PDU to `tap` from now on, including those of later connections."""
        self._tap = tap
        if self.connection is not None:
            self.connection.session.tap = tap

    def start(self) -> None:
        """Connect, and stay connected from then on."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, grace: float, *, parting: float) -> None:
        """Submit nothing more, wait up to `grace` seconds for answers, unbind, close. Ends with no connection, at the
        latest `parting` seconds after the grace."""
        self._stopping.set()
        connection = self.connection
        loop = asyncio.get_running_loop()
        until = loop.time() + grace
        if connection is not None:
            connection.session.drain()
            while connection.session.pending and not connection.closed.done() and loop.time() < until:
                await asyncio.wait([connection.closed], timeout=min(0.02, max(0.0, until - loop.time())))
            connection.unbind()
            left = min(self._settings.unbind_seconds + _LINGER, until + parting - loop.time())
            await asyncio.wait([connection.closed], timeout=max(0.0, left))
            connection.abort()
        if self._task is not None:
            if connection is None:
                self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        backoff = Backoff(self._settings.reconnect_seconds, longest=self._settings.reconnect_max_seconds)
        failures, loop = 0, asyncio.get_running_loop()
        while not self._stopping.is_set():
            refused: int | None = None
            try:
                connection = await self._connect()
            except Exception as error:
                # Anything else is a mistake, which may concern this try alone.
                if not isinstance(error, OSError | ValueError):
                    log.exception("SMPP connect failed", link=self.name)
                why = in_words(error, limit=self._settings.connect_seconds)
                self.last_error = said("cannot connect: %(why)s", why=why)
            else:
                self.last_error = await connection.closed
                refused = connection.refused
                if connection.bound_at and loop.time() - connection.bound_at >= self._settings.reconnect_max_seconds:
                    failures = 0
            if self._stopping.is_set():
                return
            # A wrong password does not fix itself; 0x05 and 0x0D do, once the old session has ended.
            wait = self._settings.refused_seconds if refused in ACCOUNT_REFUSED else backoff.pause(failures)
            if refused is not None:
                self.last_error, self.untried = bind_refused(refused, wait), 0
            wait *= 0.7 + 0.6 * self._random()
            log.warning("SMPP down", link=self.name, error=str(self.last_error), next_try_seconds=round(wait, 1))
            failures, self.untried = failures + 1, max(0, self.untried - 1)
            try:
                await asyncio.wait_for(self._stopping.wait(), wait)
            except TimeoutError:
                continue

    async def _connect(self) -> Connection:
        """Connect to the next address of the next host. Raises OSError, or ValueError for an invalid name in TLS."""
        settings = self._settings
        async with asyncio.timeout(settings.connect_seconds):
            tls = await self._tls()
            addresses = await self._resolve(settings.hosts)
            host, address = addresses[self._turn % len(addresses)]
            self._turn, self.untried = self._turn + 1, max(0, len(addresses) - self._turn)
            _, connection = await asyncio.get_running_loop().create_connection(
                self._new_connection,
                address,
                settings.port,
                ssl=tls,
                server_hostname=(settings.tls_server_name or host) if tls else None,
            )
        return connection

    def _new_connection(self) -> Connection:
        settings = self._settings
        timers = Timers(
            bind=settings.bind_seconds,
            enquire=settings.enquire_seconds,
            silence=settings.silence_seconds,
            response=settings.response_seconds,
            late=self._late,
            pdu=settings.pdu_seconds,
            unbind=settings.unbind_seconds,
            max_timeouts=settings.max_timeouts,
        )
        bind = self._bind(
            system_id=settings.system_id,
            password=self._secret,
            system_type=settings.system_type,
            address_range=settings.address_range,
        )
        return Connection(self, Session(window=settings.window, timers=timers, tap=self._tap), bind, self._owner)


_NEVER = float("inf")
