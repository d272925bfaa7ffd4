"""Pages for people: at /docs the OpenAPI document, shown by a vendored Swagger UI (`viewer/`, licence beside it); the
front page, errors and the guide of `pages.py`.

The rule nobody may break: the page runs and loads nothing that this server does not serve itself, and its policy
says so to the browser. A file's address holds its digest, so it may be kept for ever.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from heliograph.api import discovery, pages
from heliograph.base.ids import uuid7_text

Headers = list[tuple[bytes, bytes]]

#: Inline scripts, inline styles and eval are all refused: Swagger UI sets styles through the CSSOM only.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
PATH = "/docs"
FRONT = "/"
#: Bytes that are written at once.
PIECE = 65_536

_FOLDER = Path(__file__).with_name("viewer")
_TYPES = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "docs.js": "text/javascript; charset=utf-8",
    "docs.css": "text/css; charset=utf-8",
    "pages.css": "text/css; charset=utf-8",
}
_ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY.encode()),
]

_HTML = "text/html; charset=utf-8"

#: `gzip;q=0`: anything but that.
_REFUSED = re.compile(rb";\s*q\s*=\s*0(?:\.0*)?\s*$", re.IGNORECASE).search


class _Page:
    """What stands at one address."""

    def __init__(self, body: bytes, kind: str, caching: str, vary: str = "accept-encoding") -> None:
        self.body = body
        self.kind = (b"content-type", kind.encode())
        # Sent as weak: it is the same for both encodings.
        self.etag = f'"{_digest(body)}"'.encode()
        self.headers: Headers = [
            (b"etag", b"W/" + self.etag),
            (b"cache-control", caching.encode()),
            (b"vary", vary.encode()),
            *_ALWAYS,
        ]
        self._packed = b""

    async def packed(self) -> bytes:
        """By gzip, in a thread and once: the viewer takes 70 ms, and becomes a quarter of its size."""
        if not self._packed:
            self._packed = await asyncio.to_thread(gzip.compress, self.body, 6, mtime=0)
        return self._packed


class Docs:
    """The pages as an ASGI application. `paths`: the addresses that it answers for."""

    def __init__(self) -> None:
        self._styled: dict[str, str] = {}
        self._pages: dict[str, _Page] = {}
        for name, kind in _TYPES.items():
            body = (_FOLDER / name).read_bytes()
            address = f"{PATH}/{_digest(body)}/{name}"
            self._pages[address] = _Page(body, kind, "public, max-age=31536000, immutable")
            self._styled[f"{{{name}}}"] = address
        page = self._html((_FOLDER / "docs.html").read_text())
        self._pages[PATH] = self._pages[PATH + "/"] = page
        # To a browser a page, to all others the index of the API.
        self._front = self._html(pages.front(), vary="accept, accept-encoding")
        index = msgspec.json.encode(discovery.index())
        self._pages[FRONT] = _Page(index, "application/json", "no-cache", vary="accept, accept-encoding")
        for address, text in pages.error_pages().items():
            self._pages[address] = self._html(text)
        self._guide = pages.guide()
        if self._guide:
            self._pages[pages.GUIDE] = self._html(pages.guide_list(list(self._guide.values())))
        self.paths = frozenset(self._pages) | frozenset(self._guide)

    def _html(self, text: str, vary: str = "accept-encoding") -> _Page:
        for place, address in self._styled.items():
            text = text.replace(place, address)
        return _Page(text.encode(), _HTML, "no-cache", vary)

    async def _page(self, path: str, headers: Headers) -> _Page:
        if path == FRONT and _prefers_html(headers):
            return self._front
        page = self._pages.get(path)
        if page is None:  # of the guide, which is made when it is first asked for
            text = await asyncio.to_thread(pages.guide_page, self._guide[path])
            page = self._pages[path] = self._html(text)
        return page

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        page = await self._page(scope["path"], scope["headers"])
        status: int
        headers: Headers
        if scope["method"] not in ("GET", "HEAD"):
            status, headers, body = 405, [(b"allow", b"GET, HEAD"), (b"content-length", b"0"), *_ALWAYS], b""
        elif _has(scope["headers"], page.etag):
            status, headers, body = 304, page.headers, b""
        else:
            status, headers, body = 200, [page.kind, *page.headers], page.body
            if _takes_gzip(scope["headers"]):
                headers, body = [(b"content-encoding", b"gzip"), *headers], await page.packed()
            headers.append((b"content-length", b"%d" % len(body)))
        headers = [*headers, (b"x-request-id", uuid7_text().encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["method"] == "HEAD":
            body = b""
        # In pieces: a slow line then has its time for each of them, and not for all at once.
        for start in range(0, len(body), PIECE):
            await send({"type": "http.response.body", "body": body[start : start + PIECE], "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _has(headers: Headers, etag: bytes) -> bool:
    """Does If-None-Match name it? Compared weakly (RFC 9110 §13.1.2)."""
    for name, value in headers:
        if name == b"if-none-match":
            given = {one.strip().removeprefix(b"W/") for one in value.split(b",")}
            if etag in given or b"*" in given:
                return True
    return False


def _takes_gzip(headers: Headers) -> bool:
    return any(
        coding.split(b";")[0].strip().lower() == b"gzip" and not _REFUSED(coding)
        for name, value in headers
        if name == b"accept-encoding"
        for coding in value.split(b",")
    )


def _prefers_html(headers: Headers) -> bool:
    """Does Accept name HTML, and JSON not before it? Browsers do; `*/*` alone, as of curl, is nobody's wish."""
    weights = {b"text/html": 0.0, b"application/json": 0.0}
    for name, value in headers:
        if name == b"accept":
            for given in value.split(b","):
                kind, *options = (part.strip().lower() for part in given.split(b";"))
                if kind in weights:
                    weights[kind] = next((_weight(one[2:]) for one in options if one.startswith(b"q=")), 1.0)
    return weights[b"text/html"] > 0 and weights[b"text/html"] >= weights[b"application/json"]


def _weight(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]
