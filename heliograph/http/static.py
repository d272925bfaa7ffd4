"""Static content: its bytes, compressed once, with an ETag for clients that already have them.

The rule nobody may break: however many requests come at once, it is compressed once.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import mmap
import re
from collections.abc import Mapping
from pathlib import Path

Headers = list[tuple[bytes, bytes]]

#: Request headers that the answer depends on.
ASKED = frozenset({b"if-none-match", b"accept-encoding"})

#: `gzip;q=0`: not gzip.
_REFUSED = re.compile(rb";[ \t]*q[ \t]*=[ \t]*0(?:\.0*)?[ \t]*", re.IGNORECASE).fullmatch


class Answer:
    """Status, headers (Content-Length included) and body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class StaticPage:
    """The content at one URL."""

    def __init__(
        self,
        body: bytes | mmap.mmap,
        kind: str,
        caching: str,
        headers: Headers | None = None,
        *,
        vary: str = "accept-encoding",
        known: str = "",
    ) -> None:
        """`body`: its bytes, or a `mapped` file. `kind`: its media type. `caching`: Cache-Control. `headers`:
        additional ones. `vary`: the headers that select it, at least the encoding. `known`: the body's digest, if it
        has already been computed."""
        self.body = body
        self.kind = (b"content-type", kind.encode())
        # A weak tag, since it is the same for both encodings.
        self.etag = f'"{known or digest(body)}"'.encode()
        self.headers: Headers = [
            (b"etag", b"W/" + self.etag),
            (b"cache-control", caching.encode()),
            (b"vary", vary.encode()),
            *(headers or []),
        ]
        self._packing: asyncio.Future[bytes] | None = None

    async def answer(self, asked: Mapping[bytes, bytes]) -> Answer:
        """The answer to a GET with these headers, of which those in ASKED matter."""
        if self._is_known(asked.get(b"if-none-match", b"")):
            return Answer(304, list(self.headers), b"")
        headers = [self.kind, *self.headers]
        if _takes_gzip(asked.get(b"accept-encoding", b"")):
            headers.append((b"content-encoding", b"gzip"))
            body = await self._packed()
        else:
            body = self.body[:]
        headers.append((b"content-length", b"%d" % len(body)))
        return Answer(200, headers, body)

    async def _packed(self) -> bytes:
        """gzip, in a thread: the viewer takes 70 ms and shrinks to a quarter, the OpenAPI document to a twelfth."""
        if self._packing is None:
            self._packing = asyncio.ensure_future(asyncio.to_thread(_pack, self.body))
        try:
            return await asyncio.shield(self._packing)
        except Exception:
            self._packing = None  # such as while memory or threads are short: the next request tries again
            raise

    def _is_known(self, given: bytes) -> bool:
        """Whether If-None-Match names it, compared weakly (RFC 9110 §13.1.2)."""
        known = {one.strip().removeprefix(b"W/") for one in given.split(b",")} if given else ()
        return self.etag in known or b"*" in known


def mapped(path: Path) -> mmap.mmap:
    """A file's bytes, for files that are large and seldom requested: the system keeps one copy for all processes, and
    only while it is used. The bytes stay the same if the file is replaced."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def digest(body: bytes | mmap.mmap) -> str:
    """A short name for these bytes, for addresses and tags."""
    found = hashlib.sha256(body).hexdigest()[:16]
    _leave(body)
    return found


def _pack(body: bytes | mmap.mmap) -> bytes:
    packed = gzip.compress(body, 6, mtime=0)
    _leave(body)
    return packed


def _leave(body: bytes | mmap.mmap) -> None:
    """Release the memory of a mapped file's pages that were read."""
    if isinstance(body, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        body.madvise(mmap.MADV_DONTNEED)


def _takes_gzip(accepted: bytes) -> bool:
    for coding in accepted.split(b","):
        name, semicolon, quality = coding.partition(b";")
        if name.strip().lower() == b"gzip":
            return not _REFUSED(semicolon + quality)
    return False
