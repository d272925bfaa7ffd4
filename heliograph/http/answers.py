"""The outcome of a request that we made: an answer, with as much of its body as is worth keeping, or why there is none.

Pure: no I/O, no clock. RFC 9110 and 9112; the parser is llhttp, through httptools, which reads such answers in a third
of the time that our own reader of requests would take.

The rule nobody may break: whatever the other side sends, a reader never holds more than the part of the body to be kept
and `HEAD_BYTES` of head or trailer, nor takes more than linear time. An answer whose trailer never ends does not count.
What follows an answer is not part of the next one: a connection that received more than it asked for is not `reusable`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Literal

import httptools
import msgspec

from heliograph.http import codings

#: How much of an answer's body is kept, for operators.
KEPT_BYTES = 20_480
#: A longer body is not read to its end, unless more is to be kept: its connection is closed instead of reused.
READ_BYTES = 65_536
#: A chunked body may take at most this many times as much, sizes and extensions included, before it no longer counts as
#: HTTP.
CHUNKED = 8
#: Maximum size of the head, including preceding interim answers, and number of headers.
HEAD_BYTES = 32_768
HEADERS = 100
#: A destination that sent nothing but interim answers (1xx) kept a core at 70 % and delayed every other request by
#: 45 ms, until the deadline; now its request fails at the first one beyond this.
INTERIM_ANSWERS = 16

_MEASURES, _RETRY_AFTER, _CODING = (b"content-length", b"transfer-encoding"), b"retry-after", b"content-encoding"
_KEEP_ALIVE = b"keep-alive"
#: The part of Keep-Alive (RFC 2068 §19.7.1.1) that says how long an idle connection stays open, seconds.
_TIMEOUT = re.compile(rb"timeout[ \t]*=[ \t]*\"?([0-9]{1,6})", re.IGNORECASE)
#: Lengths of the names of headers that matter: most headers cost no more than a look at it.
_LENGTHS = frozenset(map(len, (*_MEASURES, _RETRY_AFTER, _CODING, _KEEP_ALIVE)))

#: For answers of which no headers are wanted.
NO_HEADERS: Mapping[str, str] = MappingProxyType({})

FailureKind = Literal["blocked", "busy", "dns", "connect", "tls", "timeout", "closed", "protocol"]
#: No attempt ends this way: it is made later, or by another process.
Withheld = Literal["withheld"]


class ConnectionTrace(msgspec.Struct, frozen=True, gc=False):
    """How a request reached the other side: the address connected to, and how long looking up the name, connecting and
    the TLS handshake took, in seconds; None for a step that was not needed."""

    address: str
    dns: float | None = None
    connect: float | None = None
    tls: float | None = None


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The other side answered. The meaning of the status is up to the caller; 3xx is not followed.

    `body`: at most as much as is kept, possibly cut short by the other side; decoded for clients that want it.
    `retry_after`: seconds from now, from the header's seconds or date, None without one. `duration`: seconds. `start`:
    the first bytes received, which contain the head (`head`). `first_byte`: seconds until they arrived. `headers`:
    those requested, by their names in lower case; the last one if a header is repeated. `is_cut`: the body may be only
    the beginning of what was meant.
    """

    status: int
    body: bytes
    retry_after: float | None
    duration: float
    start: bytes = b""
    first_byte: float | None = None
    way: ConnectionTrace | None = None
    headers: Mapping[str, str] = NO_HEADERS
    is_cut: bool = False


class Failure(msgspec.Struct, frozen=True, gc=False):
    """There was no answer. `detail` is for operators and contains neither path nor query of the URL.

    blocked   the address may not be connected to; nothing was sent
    busy      too many requests to this destination are open, or this machine is out of sockets or threads; nothing was
              sent, and the destination is not at fault
    dns       the name has no address; nothing was sent
    connect   refused, unreachable; nothing was sent
    tls       handshake failure or invalid certificate; nothing was sent
    timeout   the deadline passed
    closed    the connection ended before an answer
    protocol  the response was not HTTP, or too large; or the given headers cannot be sent as HTTP
    withheld  once the connection was open, the caller no longer wanted the request; nothing was sent
    """

    kind: FailureKind | Withheld
    detail: str
    duration: float
    #: Whether any of the request may have been sent.
    is_sent: bool = True
    way: ConnectionTrace | None = None


class NotHttp(Exception):
    """Not an answer, or too large; the text says why, for operators."""


class _Enough(Exception):
    """Stops the parser: nothing more is needed from this connection."""


class AnswerReader:
    """Reads the answers on one connection, one after the other: `reset`, then `feed` until it returns that the answer
    is complete.

    `status` is 0 until the head of the answer itself arrives; from then on the answer counts, however its body ends,
    unless the rest is not HTTP or an endless trailer.
    """

    __slots__ = (
        "_after_head",
        "_between",
        "_decodes",
        "_head",
        "_headers",
        "_interim",
        "_is_measured",
        "_kept",
        "_lengths",
        "_most",
        "_parser",
        "_problem",
        "_seen",
        "_told",
        "_wanted",
        "body",
        "coding",
        "complete",
        "headers",
        "keep_alive",
        "retry_after",
        "reusable",
        "start",
        "status",
    )

    def __init__(
        self, kept: int = KEPT_BYTES, wanted: frozenset[bytes] = frozenset(), *, decodes: bool = False
    ) -> None:
        """`kept`: maximum bytes kept of a body. `wanted`: names, in lower case, of the headers to keep. `decodes`:
        bodies are wanted without their content coding."""
        self._kept = kept
        self._decodes = decodes
        self._most = max(kept, READ_BYTES)
        self._wanted = wanted
        self._lengths = _LENGTHS.union(map(len, wanted))
        self._parser = httptools.HttpResponseParser(self)
        # Old programs end their lines with LF alone, put spaces after a chunk's length, and continue a header in a line
        # that begins with a space (RFC 9112 §5.2). None of it can mislead a client that reads one answer and drops the
        # connection if more arrives.
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True, lenient_headers=True
        )
        self.reset()

    def reset(self) -> None:
        """Prepare for the answer to a new request."""
        self.status = 0
        #: The answer is complete, or as much of it as is read.
        self.complete = False
        #: Another request may use the connection.
        self.reusable = False
        self.body: bytes | bytearray = b""
        #: The bytes received until the head was complete; usually just a reference to those read at once.
        self.start: bytes | bytearray = b""
        #: The header as received.
        self.retry_after: str | None = None
        self.headers: Mapping[str, str] = NO_HEADERS
        #: The content coding of the body; "": none, or it stays as it is.
        self.coding = ""
        #: Seconds for which another request may use the connection, by the header.
        self.keep_alive = math.inf
        #: The body's length is given, or it has chunks; otherwise it lasts until the other side closes the connection.
        self._is_measured = False
        self._seen = 0
        self._head = 0
        #: Bytes since the head, and since the last piece of the body: sizes, extensions, trailer.
        self._after_head = 0
        self._between = 0
        self._headers = 0
        #: Bytes of headers, of all heads and the trailer, as the parser reports them.
        self._told = 0
        self._interim = 0
        self._problem = ""

    def close(self) -> None:
        """Nothing more will be fed: break the reference cycle between parser and reader."""
        del self._parser

    def feed(self, data: bytes) -> bool:
        """Add received bytes; True when the answer is complete. Raises NotHttp."""
        if not self.status:
            self._head += len(data)
            self.start = _added(self.start, data)
        else:
            self._after_head += len(data)
            self._between += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                raise NotHttp(self._problem or str(error)[:200]) from None
        else:
            # The parser buffers an unfinished header or trailer without reporting it.
            if not self.status and self._head > HEAD_BYTES:
                raise NotHttp("the head is too large")
            if not self.complete and (self._between > HEAD_BYTES or self._after_head > CHUNKED * self._most):
                raise NotHttp("the trailer is too large")
        return self.complete

    def is_in_trailer(self) -> bool:
        """Whether the whole body has arrived, but not the end of its trailer. Ask once, when nothing more will be read:
        it tells the parser that the input ended, which it accepts nowhere else."""
        if not self.status or self.complete:
            return False
        seen, body = self._seen, bytes(self.body)
        with contextlib.suppress(httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._parser.feed_data(b"\r\n\r\n")
        # What completed a body was not part of it.
        self.body, self.complete = body, self.complete and self._seen == seen
        return self.complete

    def is_cut(self, *, is_closed: bool) -> bool:
        """Whether the body may be only the beginning of what was meant. `is_closed`: the other side ended the
        connection, without an error."""
        if self._seen >= self._most or self._seen > self._kept:
            return True
        return not self.complete and (self._is_measured or not is_closed)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            raise _Enough

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > HEADERS:
            raise self._stop("too many headers")
        self._told += len(name) + len(value) + 4
        if self._told > HEAD_BYTES:
            raise self._stop("the head is too large")
        if b"\0" in value:  # the parser lets it pass along with continued lines
            raise self._stop("a header contains a NUL")
        if self.status:
            return  # a trailer
        if len(name) in self._lengths:
            self._note(name.lower(), value)

    def _note(self, name: bytes, value: bytes) -> None:
        if name in _MEASURES:
            self._is_measured = True
        elif name == _RETRY_AFTER and self.retry_after is None:
            self.retry_after = value.decode("latin-1")
        elif name == _CODING and self._decodes:
            self.coding = value.decode("latin-1")
        if name == _KEEP_ALIVE and (timeout := _TIMEOUT.search(value)) is not None:
            # A request that is on its way while the other side closes the connection is lost: it must leave earlier.
            self.keep_alive = max(int(timeout[1]) - 1, int(timeout[1]) / 2)
        if name in self._wanted:
            self.headers = {**self.headers, name.decode("latin-1"): value.decode("latin-1")}

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self.status = status
        elif status == 101:  # no other protocol was asked for
            self.status = status
            self.complete = True
            raise _Enough
        else:
            self.retry_after = None
            self.headers = NO_HEADERS
            self.coding = ""
            self._is_measured = False
            self._interim += 1
            if self._interim > INTERIM_ANSWERS:
                raise self._stop("too many interim answers")

    def on_body(self, data: bytes) -> None:
        self._between = 0
        if len(self.body) < self._kept:
            self.body = _added(self.body, data[: self._kept - len(self.body)])
        self._seen += len(data)
        if self._seen >= self._most:
            self.complete = True
            raise _Enough

    def content(self) -> bytes:
        """The body, decoded if that was asked for and is possible: at most as much as is kept."""
        body = bytes(self.body)
        return codings.beginning(body, self.coding, self._kept) if self.coding else body

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()

    def _stop(self, problem: str) -> _Enough:
        self._problem = problem
        return _Enough()


def head(start: bytes) -> bytes:
    """Status line and headers of the answer, from its `start`, without interim answers."""
    start = start.replace(b"\r\n", b"\n")
    while True:
        first, gap, rest = start.partition(b"\n\n")
        if not gap or not re.match(rb"HTTP/1\.[01] 1(?!01)", first):
            return first
        start = rest


def _added(known: bytes | bytearray, data: bytes) -> bytes | bytearray:
    """Concatenate both. Adding to `bytes` would copy everything received so far for each piece."""
    if not known:
        return data
    if isinstance(known, bytes):
        known = bytearray(known)
    known += data
    return known


def seconds_until(retry_after: str, now: datetime) -> float | None:
    """Retry-After (RFC 9110 §10.2.3): seconds, or an HTTP date, as seconds from `now`; None if it is neither."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0.0, (at - now).total_seconds())
    except Exception:  # it also raises OverflowError and IndexError
        return None
