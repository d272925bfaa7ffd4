"""Files submitted with a form (multipart/form-data, RFC 7578): read as they arrive, in pieces of equal size.

The form's other fields come first, since browsers send them in the order of the page; so the token is checked before a
byte of the file is kept. The rule nobody may break: memory does not grow with the file, and a client that sends less
than `PIECE` in the time allowed for a body is disconnected.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from heliograph.base.errors import Invalid

#: Bytes after which a body's time limit is renewed.
PIECE = 65_536
#: Maximum bytes of all fields other than the file, and their number.
LONGEST_FIELDS, MOST_FIELDS = 65_536, 50
#: Names of the parts that can be the file: chosen, or pasted.
CONTENT = ("file", "text")

_UNREADABLE = "What was sent could not be read."


class Disconnected(Exception):
    """The client disconnected while sending."""


class Upload:
    """A form with a file, which can be read once, from the beginning."""

    def __init__(
        self, content_type: str, receive: Callable[[], Awaitable[dict[str, Any]]], more_time: Callable[[], None]
    ) -> None:
        """Raises Invalid if it is not such a form."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 200:
            raise Invalid(("file", "format", "What was sent is not a form."))
        self._receive, self._more_time = receive, more_time
        self._taken, self._is_over = 0, False
        #: The other fields, once `begin` has run.
        self.fields: dict[str, str] = {}
        #: The file's name as given by its sender; empty if it was pasted.
        self.name = ""
        self._header, self._value = b"", b""
        self._part: str | None = None
        self._part_file = ""
        self._field = bytearray()
        self._fields_size = self._parts = 0
        #: The part that is the file: the first that is not empty.
        self._chosen: str | None = None
        self._content = bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_part_data": self._on_part_data,
                "on_part_end": self._on_part_end,
                "on_end": self._on_end,
            },
        )

    async def begin(self) -> None:
        """Read up to the first byte of the file. Raises Invalid, Disconnected."""
        while not self._is_over and not self._content:
            await self._more()

    async def chunks(self, size: int) -> AsyncIterator[bytes]:
        """The file, in pieces of `size` bytes, the last one shorter. Raises Invalid, Disconnected."""
        while True:
            while len(self._content) < size and not self._is_over:
                await self._more()
            if not self._content:
                return
            piece = bytes(self._content[:size])
            del self._content[:size]
            yield piece

    async def drain(self, most: int) -> None:
        """Read and discard the rest, up to `most` bytes: a browser reads the response only after sending everything."""
        while not self._is_over and self._taken < most:
            await self._more()
            self._content.clear()

    async def _more(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        piece: bytes = message["body"]
        if self._taken // PIECE != (self._taken + len(piece)) // PIECE:
            self._more_time()
        self._taken += len(piece)
        try:
            self._parser.write(piece)
            if not message["more_body"]:
                self._parser.finalize()
        except MultipartParseError:
            raise Invalid(("file", "format", _UNREADABLE)) from None
        if not message["more_body"]:
            self._is_over = True

    # ── Parser callbacks ──────────────────────────────────────────────────────────────────────────────────────────

    def _on_part_begin(self) -> None:
        self._part, self._part_file, self._field = None, "", bytearray()
        # By parts, not by names: parts without a name, or with the same one, take as long to read.
        self._parts += 1
        if self._parts > MOST_FIELDS + len(CONTENT):
            raise Invalid(("file", "count", _UNREADABLE))

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._part = options.get(b"name", b"").decode("utf-8", "replace")
            self._part_file = options.get(b"filename", b"").decode("utf-8", "replace")
        self._header, self._value = b"", b""

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part in CONTENT:
            if self._chosen is None:
                self._chosen, self.name = self._part, self._part_file
            if self._chosen == self._part:
                self._content += data[start:end]
            return
        self._fields_size += end - start
        if self._fields_size > LONGEST_FIELDS:
            raise Invalid(("file", "length", _UNREADABLE))
        self._field += data[start:end]

    def _on_part_end(self) -> None:
        if self._part and self._part not in CONTENT:
            try:
                self.fields[self._part] = self._field.decode()
            except UnicodeDecodeError:
                raise Invalid((self._part, "format", _UNREADABLE)) from None
            if "\0" in self.fields[self._part]:
                raise Invalid((self._part, "nul", "A text must not contain NUL."))

    def _on_end(self) -> None:
        self._is_over = True
