"""Where in what a client sends one request ends and the next may begin, without parsing it.

The parser takes all it is given, and would make requests of what is to stay bytes until its turn. The rule nobody may
break: no piece holds the end of one request and the beginning of another.
"""

from __future__ import annotations

#: A head ends so, and so does a body in chunks, with or without a trailer.
_END = b"\r\n\r\n"


class Cutter:
    """Of one connection. It begins in a head; whoever parses the pieces says what follows."""

    __slots__ = ("_left", "_tail")

    def __init__(self) -> None:
        #: Of a body of known length, bytes that have not come; None in a head and in chunks.
        self._left: int | None = None
        #: The last bytes of a head or of chunks, where `_END` may have begun.
        self._tail = b""

    def expect_head(self) -> None:
        """A request has ended, and the head of another comes next. Between a head and chunks nothing need be said."""
        self._left = None
        self._tail = b""

    def expect_body(self, length: int) -> None:
        """A body of `length` bytes comes next."""
        self._left = length

    def end_of_piece(self, data: bytes, at: int) -> int:
        """Where the piece of `data` that begins at `at` ends, which is beyond `at`. Linear in the piece."""
        if self._left:
            end = min(at + self._left, len(data))
            self._left -= end - at
            return end
        tail, self._tail = self._tail, b""
        if tail:
            astride = (tail + data[at : at + 3]).find(_END)
            if astride >= 0:
                return at + astride + len(_END) - len(tail)
        found = data.find(_END, at)
        if found >= 0:
            return found + len(_END)
        self._tail = (tail + data[max(at, len(data) - 3) :])[-3:]
        return len(data)
