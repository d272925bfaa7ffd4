"""A connection to the server: bytes go to a reader, its requests to exchanges, and everything has a deadline.

Each connection is in one phase:

    phase     waiting for                                              past its deadline
    IDLE      a request, none of which has arrived                     closed
    HEAD      the rest of a request's head                             408
    BODY      the rest of its body; it may already be answered         408 by the answering side, or closed
    WORK      the answer                                               no deadline
    CLOSING   the client to read the last answer and close too         cut off

Deadlines are for the whole phase, so a client that trickles bytes gains nothing; the registry enforces them. Nothing is
read while answers cannot be written. One request is in progress at a time: pipelined requests stay unparsed until their
turn. The rule nobody may break: nothing that a client sends or omits may hold memory or a connection beyond its
deadline.

It has over 400 lines because each phase of a connection leads into the next.
"""

from __future__ import annotations

import asyncio
import math
from typing import cast

from heliograph.base.network import sockets
from heliograph.http.heads import HttpError, RequestHead
from heliograph.http.proxy_protocol import NotProxied, read_prefix
from heliograph.http.reader import RequestReader
from heliograph.http.server.exchange import BEGUN, COMPLETE, WAITING, Exchange, Response, Service
from heliograph.http.server.flow import FlowControl
from heliograph.http.server.registry import Peer
from heliograph.http.writer import response_head

#: Bytes of answers, beyond what the kernel accepts, at which writing stops; one more piece may be on top.
_HIGH_WATER = 16_384
_TOO_FAR_AHEAD = "too many pipelined requests"

IDLE, HEAD, BODY, WORK, CLOSING = range(5)


class ServerConnection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_ahead_taken",
        "_client",
        "_discarded",
        "_exchange",
        "_is_forwarded",
        "_is_reading",
        "_loop",
        "_phase_deadline",
        "_prefix",
        "_reader",
        "_refusal",
        "_service",
        "_transport",
        "_write_deadline",
        "deadline",
        "flow",
        "peer",
        "phase",
        "registry",
        "taken",
        "taken_at",
        "written",
    )

    def __init__(self, service: Service) -> None:
        self._loop = asyncio.get_running_loop()
        self._service = service
        self.registry = service.registry
        self._reader = RequestReader(service.registry.limits.request)
        #: The request in progress, until all of it has been received and its whole answer written.
        self._exchange: Exchange | None = None
        self.phase = IDLE
        self.deadline = self._phase_deadline = self._write_deadline = math.inf
        # For the registry.
        self.written = self.taken = 0
        self.taken_at = 0.0
        self.peer: Peer | None = None
        #: Address and port of the client; with `_is_forwarded`, of a proxy whose headers name the client.
        self._client = ("", 0)
        self._is_forwarded = False
        #: The PROXY protocol header received so far; None once it is complete, or if none is expected.
        self._prefix: bytearray | None = None
        #: Answered once the current answer is written.
        self._refusal: HttpError | None = None
        #: Pipelined requests processed since the pipeline was last empty.
        self._ahead_taken = 0
        #: Bytes discarded since the answer.
        self._discarded = 0
        self._is_reading = False

    # ── Life cycle ────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's behaves like one, but is not a subclass
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.flow = FlowControl(self._transport)
        self._enter(IDLE, self.registry.limits.head_seconds)
        self._client = (transport.get_extra_info("peername") or ("", 0))[:2]
        has_place = self.registry.add(self)
        self.registry.await_request(self)
        proxies = self._service.proxies
        if proxies.covers(self._client[0]):
            self._is_forwarded = proxies.believes_headers_of(self._client[0])
            if proxies.is_prefixed:
                self._prefix = bytearray()
            self._admit(has_place)
        else:
            self._admit(self.registry.attribute(self, self._client[0]) and has_place)

    def _admit(self, has_place: bool) -> None:
        if self.registry.is_flood(self):
            self.abort()
        elif not has_place:
            self.refuse(HttpError(503, "there are too many connections"))

    def connection_lost(self, error: Exception | None) -> None:
        self.registry.remove(self)
        # The two would form a reference cycle, and the collector runs so rarely that thousands would accumulate.
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.disconnect()
        self._reader.drop()
        self.flow.resume_writing()

    def eof_received(self) -> bool:
        """The client has closed its half; pending requests are answered, and then the connection ends."""
        if self.phase == WORK:
            assert self._exchange is not None
            self._exchange.end_input()
            return True  # keeps our half open
        if self.phase == BODY or not self.unsent():
            self._transport.close()
            return False
        # If it were closed now, unread data would stay in the kernel indefinitely.
        self._close()
        return True

    def shutdown(self) -> None:
        if self._exchange is not None and self._exchange.answer != COMPLETE:
            self._exchange.keep_alive = False
        else:
            self._transport.close()

    def expire(self, now: float) -> None:
        limits = self.registry.limits
        if self.phase == CLOSING or now > self._write_deadline:
            self.abort()
        elif self.phase == BODY and self._exchange is not None and self._exchange.answer != COMPLETE:
            if self._exchange.is_full:
                self._enter(BODY, limits.body_seconds)  # the delay was ours: we did not read
            elif self._exchange.time_out():
                self._enter(BODY, limits.closing_seconds)
            else:
                self.abort()
        elif self.phase == HEAD:
            self.refuse(HttpError(408, "the head did not arrive in time"))
        elif self.phase != WORK:
            self._leave()

    @property
    def is_idle(self) -> bool:
        return self.phase == IDLE and not self._reader.pending

    def client_of(self, head: RequestHead) -> tuple[str, int]:
        """Address and port of a request's sender; no port if the address comes from a proxy's header."""
        if not self._is_forwarded:
            return self._client
        return self._service.proxies.client(self._client[0], head.headers), 0

    @property
    def is_closing(self) -> bool:
        """Nothing more can be written."""
        return self._transport.is_closing()

    @property
    def ahead(self) -> int:
        return self._reader.pending if self.phase in (IDLE, WORK) else 0

    def give_way(self) -> None:
        if self.unsent():
            self.abort()
        else:
            self._leave()

    def abort(self) -> None:
        sockets.reset(self._transport)
        self._transport.abort()

    def _leave(self) -> None:
        self._transport.close()
        self._enter(CLOSING, self.registry.limits.closing_seconds)

    def _enter(self, phase: int, seconds: float) -> None:
        self.phase = phase
        until = self._phase_deadline = self._loop.time() + seconds
        self.deadline = until if until < self._write_deadline else self._write_deadline

    # ── Bytes in ──────────────────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if self.phase == CLOSING:
            self._discard(len(data))
            self.regulate()
        elif self._prefix is not None:
            self._read_prefix(self._prefix, data)
        else:
            self._reader.feed(data)
            self._read()

    def _read_prefix(self, prefix: bytearray, data: bytes) -> None:
        """Read the client's address from the PROXY protocol header."""
        prefix += data
        try:
            found = read_prefix(prefix)
        except NotProxied:
            self.refuse(HttpError(400, "a connection of this proxy must begin with the PROXY protocol"))
            return
        if found is None:
            return
        length, client = found
        self._prefix = None
        if client is not None:
            self._client = client
            if not self._service.proxies.covers(client[0]):
                self._admit(self.registry.attribute(self, client[0]))
        if self.phase != CLOSING and not self.is_closing:
            self._reader.feed(bytes(prefix[length:]))
            self._read()

    def _read(self) -> None:
        """Process received bytes, up to the end of a request whose answer has not been produced or written yet."""
        if self._is_reading:
            return
        self._is_reading = True
        try:
            while self.phase <= BODY and not (self.flow.writes_paused and self.phase != BODY):
                event = self._reader.next_event()
                if event is None:
                    self._await_rest()
                    break
                if isinstance(event, RequestHead):
                    self._begin_request(event)
                elif isinstance(event, bytes):
                    self._take_body(event)
                else:
                    self._end_request()
        except HttpError as error:
            self._refuse_request(error)
        finally:
            self._is_reading = False
        self.regulate()

    def _await_rest(self) -> None:
        if self.phase != BODY:
            self._ahead_taken = 0
        if self.phase == IDLE and self._reader.pending:
            self._enter(HEAD, self.registry.limits.head_seconds)

    def _begin_request(self, head: RequestHead) -> None:
        self.registry.begin_request(self)
        self._discarded = 0
        self._enter(BODY, self.registry.limits.body_seconds)
        self._exchange = self._service.begin(self, head)

    def _take_body(self, piece: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.answer == COMPLETE:
            self._discard(len(piece))
        else:
            exchange.take_body(piece)

    def _end_request(self) -> None:
        exchange = self._exchange
        if exchange is None or exchange.answer == COMPLETE:
            self._await_request()
        else:
            self.phase = WORK
            self._phase_deadline = math.inf
            self.deadline = self._write_deadline
            exchange.end_request()

    def allow_body(self) -> None:
        """Restart the deadline of the arriving body: the application reads it as it arrives, and wants more of it."""
        if self.phase == BODY:
            self._enter(BODY, self.registry.limits.body_seconds)

    def _await_request(self) -> None:
        self._exchange = None
        self._enter(IDLE, self.registry.limits.idle_seconds)
        self.registry.await_request(self)

    def _refuse_request(self, error: HttpError) -> None:
        """Answer a request whose head or body is malformed."""
        exchange = self._exchange
        if exchange is not None and exchange.answer == COMPLETE:
            self._close()  # a second answer would be read as the answer to the next request
        elif exchange is not None and exchange.answer == BEGUN:
            self.abort()
        else:
            if exchange is not None:
                exchange.disconnect()
            self.refuse(error)

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > self.registry.limits.discard_bytes and self.phase != CLOSING:
            self._close()

    def regulate(self) -> None:
        """Read if there is room. Pipelined bytes are kept, up to a limit."""
        limits = self.registry.limits
        if self.phase == CLOSING:
            # Beyond that the client is blocked, and has until the deadline to read.
            wanted = self._discarded <= limits.discard_bytes
        elif self.phase == BODY:
            wanted = self._exchange is None or not self._exchange.is_full
        else:
            ahead = self._reader.pending if self.phase != HEAD else 0
            if ahead > limits.ahead_bytes:
                self._refusal = HttpError(400, _TOO_FAR_AHEAD)
                self._reader.drop()
            wanted = not ahead and not self.flow.writes_paused
        self.flow.read(wanted)

    # ── Answers out ───────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, data: bytes) -> None:
        """Write a part of an answer."""
        self.written += len(data)
        self._transport.write(data)

    def answered(self, exchange: Exchange) -> None:
        """The last byte of its answer has been written."""
        if self.is_closing or exchange is not self._exchange:
            return
        if not exchange.keep_alive:
            self._close()
        elif self._refusal is not None:
            self.refuse(self._refusal)
        elif self.phase == WORK:
            if not self._reader.pending:  # as usual: there is nothing to be read
                self._await_request()
                self._ahead_taken = 0
                return
            self._ahead_taken += 1
            if self._ahead_taken > self.registry.limits.pipeline:
                self.refuse(HttpError(400, _TOO_FAR_AHEAD))
                return
            self._await_request()
            self._read()
        else:
            self.regulate()

    def fail(self, exchange: Exchange, error: Exception) -> None:
        """The exchange produced no answer, because of this error."""
        response = self._service.render(error)
        if exchange is self._exchange and exchange.answer == WAITING and not self.is_closing:
            exchange.answer = COMPLETE
            self._answer(response)

    def refuse(self, error: Exception) -> None:
        """Answer an error, and close."""
        self._answer(self._service.render(error))

    def _answer(self, response: Response) -> None:
        status, headers, body = response
        self.write(response_head(status, [*headers, (b"connection", b"close")]) + body)
        self._close()

    def _close(self) -> None:
        """Shut down writing, and let the client read the last answer before the connection closes.

        Closing at once while its bytes are still arriving would reset the connection, and the answer with it.
        """
        if self.is_closing:
            return
        self._enter(CLOSING, self.registry.limits.closing_seconds)
        self._discarded = 0
        self._reader.drop()
        self.regulate()
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:
                self.abort()  # it was reset meanwhile, and the loop has not noticed yet
        else:
            self._transport.close()

    def unsent(self) -> int:
        """Bytes of answers that the client has not confirmed, in our buffer and the kernel's."""
        return min(sockets.unconfirmed(self._transport) + self._transport.get_write_buffer_size(), self.written)

    def pause_writing(self) -> None:
        self.flow.writes_paused = True
        self._write_deadline = self.deadline = self._loop.time() + self.registry.limits.write_seconds
        self.regulate()  # further requests could not be answered

    def resume_writing(self) -> None:
        self._write_deadline = math.inf
        self.flow.resume_writing()
        if self.phase == IDLE:
            self._enter(IDLE, self.registry.limits.idle_seconds)
        self.deadline = self._phase_deadline
        self._read()
