"""What the head of a request may be: how long, with how many headers, and which of them decide where its body ends.

The rule nobody may break: what two readers could understand in two ways is refused, for that is how a request is
smuggled past one of them.
"""

from __future__ import annotations

from heliograph.api.shapes.refusals import BadRequest, HeadersTooLarge
from heliograph.api.watch import Limits
from heliograph.base.errors import Refusal


class Refused(Exception):
    """Stops the parser; says why."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__()
        self.refusal = refusal


class Head:
    """The head of one request, and the trailer that belongs to it, header by header."""

    __slots__ = ("_bytes", "_count", "_hosts", "_limits", "is_chunked", "length")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = self._count = self._hosts = 0
        #: Content-Length; None without one.
        self.length: int | None = None
        self.is_chunked = False

    def count(self, name: bytes, value: bytes) -> None:
        """One more header, or one of the trailer. Raises Refused past the limits."""
        self._bytes += len(name) + len(value) + 4
        self._count += 1
        if self._bytes > self._limits.head_bytes or self._count > self._limits.headers:
            raise Refused(HeadersTooLarge())

    def read(self, name: bytes, value: bytes) -> None:
        """Take note of a header that decides something; `name` is in lower case. Raises Refused."""
        if name == b"host":
            self._hosts += 1
        elif name == b"content-length":
            if self.length is not None or not value.isdigit() or len(value) > 18:
                raise Refused(BadRequest())
            self.length = int(value)
        elif name == b"transfer-encoding":
            if self.is_chunked or value.lower() != b"chunked":
                raise Refused(BadRequest())
            self.is_chunked = True

    def complete(self, version: str) -> None:
        """The head is whole. Raises Refused if it has two lengths or two hosts (RFC 9112 §6.1, §3.2), or what its
        version has not."""
        if (self.length is not None and self.is_chunked) or self._hosts > 1:
            raise Refused(BadRequest())
        if self._hosts == 0 and version == "1.1":
            raise Refused(BadRequest())
        if version not in ("1.1", "1.0") or (self.is_chunked and version == "1.0"):
            raise Refused(BadRequest())
