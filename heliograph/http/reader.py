"""The requests on one connection: bytes in, events out. Pure: no I/O, no clock. HTTP/1.1, RFC 9112.

A reader is in one phase, and `_STEPS` defines what it does in each. Reading stops at the end of each request: pipelined
bytes stay unparsed until the next event is requested.

    phase        input                                  event          then
    HEAD         a head, up to its empty line           RequestHead    LENGTH, SIZE or ENDED, depending on the head
    LENGTH       a body of known length                 bytes          ENDED
    SIZE         the line before a chunk                               CHUNK; TRAILER, if the chunk is the last
    CHUNK        a chunk                                bytes          CHUNK_END
    CHUNK_END    the line end after a chunk                            SIZE
    TRAILER      fields, dropped, and an empty line                    ENDED
    ENDED        nothing                                END            HEAD

The rules nobody may break: the events are the same however the bytes are split; what two parsers could interpret
differently is refused, because that is how requests are smuggled; memory is bounded, and time is linear in the input.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from heliograph.http.heads import (
    REQUEST_LINE_BEGUN,
    TOKEN,
    VALUE,
    Headers,
    HttpError,
    RequestHead,
    fields,
    framing,
    request_line,
)

#: A line before a chunk, its extensions included, bytes.
CHUNK_LINE_BYTES = 1_024
#: The overhead allowed to chunks: this much each, this much per byte, and `head_bytes` in total. Go's rule since
#: CVE-2023-39326.
_CHUNK_FRAME, _CHUNK_SHARE = 16, 2
#: Maximum length of a request line apart from its target: method, version, two spaces, line end.
_AROUND_TARGET = 32

_QUOTED = rb"\"[\t !#-\[\]-~\x80-\xff]*+\""
_EXTENSION = rb";" + TOKEN + rb"++(?:=(?:" + TOKEN + rb"++|" + _QUOTED + rb"))?"
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15}+)(?:" + _EXTENSION + rb")*+\r\n")
_SIZE_LINE_BEGUN = re.compile(rb"(?:[0-9A-Fa-f]{1,15}+(?:;" + VALUE + rb")?\r?)?")

HEAD, LENGTH, SIZE, CHUNK, CHUNK_END, TRAILER, ENDED = range(7)


class ReaderLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a request. Sizes in bytes."""

    target_bytes: int = 8_192
    #: For a head and its trailer together.
    head_bytes: int = 16_384
    #: Maximum number of fields in both.
    fields: int = 100
    #: For a body; None: the caller enforces a limit.
    body_bytes: int | None = None


class End:
    """The request is complete."""


END: Final = End()
Event = RequestHead | bytes | End


class RequestReader:
    """`feed` it, and take events until there is none. After an error, every further event raises it again."""

    __slots__ = (
        "_at",
        "_checked",
        "_data",
        "_excess",
        "_fields_left",
        "_head_left",
        "_left",
        "_limits",
        "_size",
        "phase",
    )

    def __init__(self, limits: ReaderLimits) -> None:
        self._limits = limits
        self.phase = HEAD
        self._data = b""
        #: The position up to which it has been read.
        self._at = 0
        #: How far a head or trailer has been searched for its end.
        self._checked = 0
        #: How much of head and trailer may still follow: bytes, and fields.
        self._head_left = limits.head_bytes
        self._fields_left = limits.fields
        #: Bytes left of a body of known length, or of a chunk.
        self._left = 0
        #: Bytes of the body announced so far.
        self._size = 0
        #: Overhead of chunks beyond their allowance.
        self._excess = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes. Linear in their number and in what is unread, which is bounded."""
        at = self._at
        self._data = data if at == len(self._data) else self._data[at:] + data
        self._at = 0

    def next_event(self) -> Event | None:
        """The next event; None if more bytes are needed. Raises HttpError."""
        while True:
            phase = self.phase
            event = self._STEPS[phase](self)
            if event is not None or phase == self.phase:
                return event

    @property
    def pending(self) -> int:
        """Bytes fed but not read yet."""
        return len(self._data) - self._at

    def drop(self) -> None:
        """Discard unread bytes."""
        self._data = b""
        self._at = 0

    # ── Heads and trailers ────────────────────────────────────────────────────────────────────────────────────────

    def _read_head(self) -> Event | None:
        data, at = self._data, self._at
        while data.startswith(b"\r\n", at):  # leading empty lines (RFC 9112 §2.2)
            at += 2
        self._at = at
        if at == len(data):
            return None
        most = at + self._limits.target_bytes + _AROUND_TARGET
        line_end = data.find(b"\n", at, most) + 1
        if not line_end:
            self._check_begun(data, at, most)
            return None
        method, raw_path, path, query, version = request_line(data[at:line_end])
        if line_end - at - len(method) - len("  HTTP/1.1\r\n") > self._limits.target_bytes:
            raise HttpError(414, "the address is too long")
        end = self._find_end(at)
        if end < 0:
            return None
        self._at = end
        headers = self._headers(line_end, end)
        length, keep_alive, expects_continue = framing(version == "1.0", headers)
        if length is None:
            self.phase = SIZE
        elif length:
            self._grow(length)
            self.phase = LENGTH
        else:
            self.phase = ENDED
        return RequestHead(method, raw_path, path, query, version, headers, length, keep_alive, expects_continue)

    def _check_begun(self, data: bytes, at: int, most: int) -> None:
        """Check that these bytes, without a line end up to `most`, can begin a request line. Raises HttpError."""
        if data[at : at + 2] == b"\r":
            return
        if REQUEST_LINE_BEGUN.match(data, at, most) is None:
            raise HttpError(400, "the request line is malformed")
        if len(data) >= most:
            raise HttpError(414, "the address is too long")

    def _find_end(self, at: int) -> int:
        """Where the head or trailer that began at `at` ends; -1 if its end has not arrived yet."""
        found = self._data.find(b"\r\n\r\n", at + self._checked)
        size = (found + 4 if found >= 0 else len(self._data) + 1) - at
        if size > self._head_left:
            raise HttpError(431, "the head is too large" if self.phase == HEAD else "the trailer is too large")
        if found < 0:
            self._checked = max(size - 4, 0)
            return -1
        self._checked = 0
        self._head_left -= size
        return found + 4

    def _headers(self, start: int, end: int) -> Headers:
        """The fields from `start` to the empty line ending at `end`."""
        if end - 4 < start:
            return []
        headers = fields(self._data[start : end - 4])
        self._fields_left -= len(headers)
        if self._fields_left < 0:
            raise HttpError(431, "too many headers")
        return headers

    def _read_trailer(self) -> None:
        """Nothing after its body may affect a request (RFC 9110 §6.5.1): trailers are checked and dropped."""
        data, at = self._data, self._at
        if data.startswith(b"\r\n", at):
            self._at = at + 2
            self.phase = ENDED
        elif data[at : at + 2] not in (b"", b"\r"):
            end = self._find_end(at)
            if end >= 0:
                self._headers(at, end)
                self._at = end
                self.phase = ENDED

    # ── Bodies ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _grow(self, size: int) -> None:
        """Expect this many more bytes of the body."""
        self._left = size
        self._size += size
        most = self._limits.body_bytes
        if most is not None and self._size > most:
            raise HttpError(413, "the body is too large")

    def _read_piece(self) -> Event | None:
        data, at, left = self._data, self._at, self._left
        size = len(data) - at
        if not size:
            return None
        if size >= left:
            size = left
            self.phase = ENDED if self.phase == LENGTH else CHUNK_END
        self._left = left - size
        self._at = at + size
        return data if size == len(data) else data[at : at + size]

    def _read_size(self) -> None:
        at = self._at
        line = _SIZE_LINE.match(self._data, at, at + CHUNK_LINE_BYTES)
        if line is None:
            begun = self._data[at : at + CHUNK_LINE_BYTES]
            if _SIZE_LINE_BEGUN.fullmatch(begun) is None:
                raise HttpError(400, "the size of a chunk is malformed")
            if len(begun) == CHUNK_LINE_BYTES:
                raise HttpError(431, "the line before a chunk is too long")
            return
        size = int(line[1], 16)
        self._at = line.end()
        self._excess = max(0, self._excess + self._at - at + 2 - _CHUNK_FRAME - _CHUNK_SHARE * size)
        if self._excess > self._limits.head_bytes:
            raise HttpError(431, "chunks have too many extensions")
        if size:
            self._grow(size)
            self.phase = CHUNK
        else:
            self.phase = TRAILER

    def _read_chunk_end(self) -> None:
        data, at = self._data, self._at
        if data.startswith(b"\r\n", at):
            self._at = at + 2
            self.phase = SIZE
        elif data[at : at + 2] not in (b"", b"\r"):
            raise HttpError(400, "a chunk is longer than its size")

    def _end(self) -> Event:
        self.phase = HEAD
        self._checked = self._size = self._excess = 0
        self._head_left, self._fields_left = self._limits.head_bytes, self._limits.fields
        return END

    #: By phase.
    _STEPS: ClassVar[tuple[Callable[[RequestReader], Event | None], ...]] = (
        _read_head,
        _read_piece,
        _read_size,
        _read_piece,
        _read_chunk_end,
        _read_trailer,
        _end,
    )
