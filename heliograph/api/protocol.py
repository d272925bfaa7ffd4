"""HTTP/1.1 on a connection: uvicorn's protocol on httptools, with the limits that uvicorn does not have.

Each connection is in one phase, and each phase that waits for the client has a deadline:

    HEAD     nothing or a part of a request's head has come      → 408, or closed if nothing has come
    BODY     the head is complete, the body is not               → 408
    WORK     the application is at work; no deadline here
    IDLE     between two requests                                → closed
    CLOSING  the last answer is on its way                       → cut off

Deadlines are for the whole phase, so a client that trickles bytes gains nothing by it; `Watch` looks at them. Faults
are answered in the API's envelope, never while an earlier answer is still being written, and nothing is read while
answers cannot leave. One request is in progress at a time: what a client sends ahead stays as it came, unparsed, until
its turn. The rule nobody may break: nothing that a client sends or leaves out may hold memory or a connection for
longer than its deadline.
"""

from __future__ import annotations

import asyncio
import math
import urllib.parse
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from heliograph.api.cutter import Cutter
from heliograph.api.exchange import Exchange, head_of
from heliograph.api.heads import Head, Refused
from heliograph.api.shapes import envelope
from heliograph.api.shapes.refusals import BadRequest, HeadersTooLarge, RequestTimeout, UriTooLong
from heliograph.api.trust import NotProxied, Trust, read_prefix
from heliograph.api.watch import Peer, Watch
from heliograph.base import sockets
from heliograph.base.errors import Refusal, Unavailable
from heliograph.base.ids import uuid7

#: Bytes of answers beyond what the kernel takes, from which on nothing more is written; one piece may be on top.
_HIGH_WATER = 16_384
_TOO_FAR_AHEAD = "Too many requests were sent ahead of their answers."

HEAD, BODY, WORK, IDLE, CLOSING = range(5)


class Connection(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self,
        watch: Watch,
        trust: Trust,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.watch = watch
        self.limits = watch.limits
        self.peer: Peer | None = None
        self.phase = HEAD
        self.deadline = math.inf
        self.written = self.taken = 0
        self.taken_at = 0.0
        self._trust = trust
        #: The address that the requests come from is a trusted proxy's, and its headers say for whom.
        self._is_forwarded = False
        #: What has come of the PROXY protocol's header; None once it is there, or where there is none.
        self._prefix: bytearray | None = None
        self._write_deadline = math.inf
        self._refusal: Refusal | None = None
        #: A request has begun and not ended; its head has.
        self._began = False
        self._in_head = False
        #: What comes now belongs to `cycle`: its body and trailer.
        self._in_body = False
        self._head = Head(self.limits)
        #: Bytes of the head as they came.
        self._head_bytes = 0
        #: Bytes of a chunked body since the last piece of it that are not body: sizes, extensions, trailer.
        self._between_bytes = 0
        self._is_chunked = False
        self._discarded = 0
        self._cutter = Cutter()
        #: What came behind the request in progress; nothing is read while there is some. None of it is parsed: a
        #: request of 30 bytes would become 2 kB of objects.
        self._held = b""
        #: Requests taken from it since it was last empty.
        self._taken_ahead = 0

    # ── The connection's life ─────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.deadline = self.loop.time() + self.limits.head_seconds
        has_place = self.watch.open(self)
        self.watch.waits(self)
        address = self.client[0] if self.client else ""
        if self._trust.covers(address):
            self._is_forwarded = self._trust.believes_headers_of(address)
            if self._trust.is_prefixed:
                self._prefix = bytearray()
            self._admit(has_place)
        else:
            self._admit(self.watch.known(self, address) and has_place)

    def _admit(self, has_place: bool) -> None:
        if self.watch.is_flood(self):
            self.abort()
        elif not has_place:
            self.refuse_now(Unavailable())

    def connection_lost(self, exc: Exception | None) -> None:
        self.watch.close(self)
        super().connection_lost(exc)
        # The two of us are a circle, and the collector comes so seldom that thousands of them would be waiting for it.
        if isinstance(self.cycle, Exchange):
            self.cycle.body = bytearray()  # nobody will ask for it
        self.cycle = None  # type: ignore[assignment]
        self._held = b""

    def eof_received(self) -> None:
        """The client has closed its half; what it has asked for is answered, and then the connection ends."""
        if self.phase in (HEAD, IDLE, CLOSING):
            if not self.unsent():
                self.transport.close()
                return None
            # Closed now, what it has not read would lie in the kernel for as long as it likes.
            self._close()
            return True  # type: ignore[return-value]
        if self.phase == BODY and isinstance(self.cycle, Exchange):
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.transport.close()
            return None
        self.cycle.keep_alive = False
        return True  # type: ignore[return-value]  # keeps our half open, asyncio.Protocol.eof_received

    def shutdown(self) -> None:
        """uvicorn is going down: finish what has begun."""
        if self.phase in (WORK, BODY) and self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
        else:
            self.transport.close()

    def expire(self, now: float) -> None:
        """The deadline has passed."""
        if self.phase == CLOSING or now > self._write_deadline:
            self.abort()
        elif self.phase == BODY and self.flow.read_paused:
            self.deadline = now + self.limits.body_seconds  # we were the ones who did not read
        elif self.phase == BODY and not self.cycle.response_complete:
            exchange = self.cycle
            assert isinstance(exchange, Exchange)
            if exchange.timed_out:
                self.abort()
            exchange.timed_out = True
            exchange.message_event.set()
            self.deadline = now + self.limits.closing_seconds
        elif self.phase == HEAD and self._began:
            self._refuse(RequestTimeout())
        elif self.phase != WORK:
            self.transport.close()
            self._set_phase(CLOSING, self.limits.closing_seconds)

    @property
    def ahead(self) -> int:
        """Bytes of requests that wait for their turn."""
        return len(self._held)

    @property
    def is_idle(self) -> bool:
        """Nothing of a request has come since its beginning or since the last answer."""
        return not self._began and not self._held

    def give_way(self) -> None:
        """End at once: the place is needed."""
        if self.unsent():
            self.abort()
        else:
            self.transport.close()
            self._set_phase(CLOSING, self.limits.closing_seconds)

    def abort(self) -> None:
        """End at once, with a reset."""
        sockets.reset(self.transport)
        self.transport.abort()

    def write(self, data: bytes) -> None:
        """Write a part of an answer."""
        self.written += len(data)
        self.transport.write(data)

    def unsent(self) -> int:
        """Bytes of answers that the client has not confirmed: ours, and the kernel's."""
        return min(sockets.unconfirmed(self.transport) + self.transport.get_write_buffer_size(), self.written)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.flow.pause_reading()  # what it asks for now could not be answered
        self._write_deadline = self.deadline = self.loop.time() + self.limits.write_seconds

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_deadline = math.inf
        if self.phase == WORK:
            self.deadline = math.inf
        elif self.phase == IDLE:
            self._set_phase(IDLE, self.limits.idle_seconds)
        self._read_on()

    # ── Bytes in ──────────────────────────────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        if self.phase == CLOSING:
            self._discard(len(data))
            return
        if self._prefix is not None:
            data = self._without_prefix(self._prefix, data)
            if not data:
                return
        self._feed(data)

    def _feed(self, data: bytes) -> None:
        """Give the parser what belongs to one request at a time, and hold the rest until that is answered."""
        at = 0
        while at < len(data):
            if self.transport.is_closing():
                return
            if self.phase == CLOSING:
                self._discard(len(data) - at)
                return
            if not self._began and (self._is_answering() or self.flow.write_paused):
                self._hold(data[at:])
                return
            end = self._cutter.end_of_piece(data, at)
            self._parse(data[at:end])
            at = end

    def _hold(self, data: bytes) -> None:
        self.flow.pause_reading()
        held = self._held + data
        if len(held) > self.limits.ahead_bytes:
            self._refusal = BadRequest(_TOO_FAR_AHEAD)  # it is written once the answer before it is
            held = b""
        self._held = held

    def _read_on(self) -> None:
        """Go on with what was sent ahead, and then with what comes; not while an answer cannot leave."""
        if self.flow.write_paused or self._refusal is not None:
            return
        if self._held and not self._is_answering():
            held, self._held = self._held, b""
            self._taken_ahead += 1
            if self._taken_ahead > self.limits.pipeline:
                self.refuse_now(BadRequest(_TOO_FAR_AHEAD))
                return
            self._feed(held)
        if not self._held:
            self._taken_ahead = 0
            if self._refusal is None and not self.transport.is_closing():
                self.flow.resume_reading()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _parse(self, data: bytes) -> None:
        if self._is_chunked and not self._in_head:
            self._between_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.refusal if isinstance(cause, Refused) else BadRequest())
        else:
            # The parser gathers an unfinished header or trailer without telling, so its bytes are counted here.
            if self._in_head:
                self._head_bytes += len(data)
            if self._in_head and self._head_bytes > self.limits.head_bytes:
                self._refuse(UriTooLong() if len(self.url) > self.limits.url_bytes else HeadersTooLarge())
            elif self._between_bytes > self.limits.head_bytes:
                self._refuse(HeadersTooLarge())

    def _without_prefix(self, prefix: bytearray, data: bytes) -> bytes:
        """What follows the PROXY protocol's header, which says who the client is."""
        prefix += data
        try:
            found = read_prefix(prefix)
        except NotProxied:
            self._refuse(BadRequest("A connection of this proxy must begin with the PROXY protocol, version 2."))
            return b""
        if found is None:
            return b""
        length, client = found
        self._prefix = None
        if client is not None:
            self.client = client
            if not self._trust.covers(client[0]):
                self._admit(self.watch.known(self, client[0]))
                if self.phase == CLOSING or self.transport.is_closing():
                    return b""
        return bytes(prefix[length:])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._began = self._in_head = True
        self._in_body = False
        self._head = Head(self.limits)
        self._head_bytes = self._between_bytes = 0
        self._is_chunked = False
        self._set_phase(HEAD, self.limits.head_seconds)

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > self.limits.url_bytes:
            raise Refused(UriTooLong())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.count(name, value)
        if not self._in_head:
            return  # a trailer: nothing that decides about a request may come after its body (RFC 9110 §6.5.1)
        name = name.lower()
        self.headers.append((name, value))
        self._head.read(name, value)
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        parser = self.parser
        version = parser.get_http_version()
        self._head.complete(version)
        self._is_chunked = self._head.is_chunked
        if version == "1.0":
            self.expect_100_continue = False  # RFC 9110 §10.1.1: there is no interim answer in it
        if parser.should_upgrade():
            if parser.get_method() == b"CONNECT":
                raise Refused(BadRequest())
            return  # no body is parsed then; _ignore_upgrade starts again without it
        scope = self.scope
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = version
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["raw_path"] = url.path
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        scope["query_string"] = url.query or b""
        if self._is_forwarded and self.client is not None:
            scope["client"] = (self._trust.client(self.client[0], self.headers), 0)
        self.watch.works(self)
        exchange = Exchange(self, scope, keep_alive=version != "1.0" and parser.should_keep_alive())
        assert not self._is_answering()
        self.cycle = exchange  # type: ignore[assignment]
        self._in_body = True
        self._discarded = 0
        self._set_phase(BODY, self.limits.body_seconds)
        if self._head.length is not None:
            self._cutter.expect_body(self._head.length)
        self._start_asgi_task(exchange, self.app)  # type: ignore[arg-type]

    def on_body(self, body: bytes) -> None:
        self._between_bytes = 0
        exchange = self.cycle
        if exchange.response_complete:
            self._discard(len(body))
            return
        exchange.body += body
        if len(exchange.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        exchange.message_event.set()

    def on_message_complete(self) -> None:
        self._began = self._in_body = self._is_chunked = False
        self._between_bytes = 0
        self._cutter.expect_head()
        exchange = self.cycle
        if self.parser.should_upgrade():
            return
        if exchange.response_complete:
            self._set_phase(IDLE, self.limits.idle_seconds)
            self.watch.waits(self)
            return
        self.phase, self.deadline = WORK, self._write_deadline
        exchange.more_body = False
        exchange.message_event.set()

    # ── Answers out ───────────────────────────────────────────────────────────────────────────────────────────────

    def answered(self, exchange: Exchange) -> None:
        """An exchange has written the last byte of its answer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if not exchange.keep_alive:
            self._close()
        elif self._refusal is not None:
            self.refuse_now(self._refusal)
        else:
            if self.phase == WORK:
                self._set_phase(IDLE, self.limits.idle_seconds)
                self.watch.waits(self)
            self._read_on()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer a fault of HTTP and close, after the answers that come before it."""
        self._refusal = refusal
        exchange = self.cycle
        if self._in_body and exchange.response_complete:
            self._close()  # the fault is in the rest of a request that is answered; a second answer would be another's
        elif exchange is None or exchange.response_complete:
            self.refuse_now(refusal)
        elif exchange.response_started:
            self.abort()
        else:
            # The fault is in the body of the request that is being worked on: its handler will not get the rest.
            exchange.disconnected = True
            exchange.message_event.set()
            self.refuse_now(refusal)

    def is_draining(self) -> bool:
        """The process is going down."""
        return self.watch.draining

    def refuse_now(self, refusal: Refusal) -> None:
        """Write a refusal that no application renders, and close."""
        request_id = str(uuid7())
        status, headers, body = envelope.render(refusal, request_id=request_id, public_url=self.limits.public_url)
        headers = [each for each in headers if each[0] != b"connection"]
        headers += [(b"x-request-id", request_id.encode()), (b"connection", b"close")]
        self.write(head_of(status, [*self.server_state.default_headers, *headers]) + body)
        self._close()

    def _close(self) -> None:
        """Say that no more will come, and let the client read the last answer before the connection goes.

        Closing at once while its bytes are still arriving would reset the connection, and the answer with it.
        """
        if self.transport.is_closing():
            return
        self._set_phase(CLOSING, self.limits.closing_seconds)
        self._discarded = 0
        self._held = b""
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > self.limits.discard_bytes:
            if self.phase == CLOSING:
                self.flow.pause_reading()  # the client finds its way blocked, and has until the deadline to read
            else:
                self._close()

    def _set_phase(self, phase: int, seconds: float) -> None:
        self.phase = phase
        self.deadline = min(self.loop.time() + seconds, self._write_deadline)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on in the version it came in, which RFC 9110 §7.8 allows: some clients offer h2c with each first request.

        The parser skips the body of a request that asks for an upgrade, so the head is given to a new one without it.
        """
        version = self.parser.get_http_version().encode()
        request = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                if b"close" not in (token.strip().lower() for token in value.split(b",")):
                    continue
                value = b"close"
            if name not in (b"upgrade", b"http2-settings"):
                request += [name, b": ", value, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._feed(b"".join(request) + b"\r\n" + rest)
