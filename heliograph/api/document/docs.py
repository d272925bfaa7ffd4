"""Pages for people: at /docs the OpenAPI document, shown by a vendored Swagger UI (`viewer/`, with its license); the
guide, with its search, and the errors (`guide.py`); at / the index, for clients that are not browsers.

The rule nobody may break: the page runs and loads nothing that this server does not serve itself, and its
Content-Security-Policy enforces that. A file's address contains its digest, so it may be cached forever.
"""

from __future__ import annotations

import asyncio
import functools
import mmap
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from heliograph.api.document import guide
from heliograph.api.document.guide import Guide
from heliograph.api.door.limits import AnonymousLimiter
from heliograph.api.operations import discovery
from heliograph.api.shapes import envelope
from heliograph.api.shapes.refusals import RateLimited
from heliograph.base.ids import uuid7_text
from heliograph.http.static import ASKED, Headers, StaticPage, digest, mapped

#: Inline scripts, inline styles and eval are all refused: Swagger UI sets styles through the CSSOM only.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
PATH = "/docs"
#: The guide's front page, as people often type it.
_GUIDE = f"{guide.PATH}/"
FRONT = "/"
_DOCUMENT = "/v1/openapi.json"

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


class _File(msgspec.Struct, frozen=True):
    """What a page is made from, without reading the file again."""

    body: mmap.mmap
    kind: str
    caching: str
    digest: str

    def page(self) -> StaticPage:
        return StaticPage(self.body, self.kind, self.caching, _ALWAYS, known=self.digest)


@functools.cache
def _read() -> tuple[Guide, dict[str, str], dict[str, _File]]:
    """The guide, the addresses of the viewer's files by name, and all files by address; shared by all servers in a
    process."""
    made, addresses, files = Guide(), {}, {}
    for name, kind in _TYPES.items():
        body = mapped(_FOLDER / name)
        known = digest(body)
        addresses[name] = f"{PATH}/{known}/{name}"
        files[addresses[name]] = _File(body, kind, "public, max-age=31536000, immutable", known)
    for address, path in made.pictures.items():
        body = mapped(path)
        files[address] = _File(body, "image/png", "no-cache", digest(body))
    return made, addresses, files


class Docs:
    """The pages as an ASGI application. `paths`: the paths that it serves."""

    def __init__(
        self, strangers: AnonymousLimiter, public_url: str = "", *, document: StaticPage | None = None
    ) -> None:
        """`document`: the OpenAPI document, if no API serves it alongside these pages."""
        self._strangers = strangers
        self._public_url = public_url
        self._guide, addresses, files = _read()
        self._styled = {f"{{{name}}}": address for name, address in addresses.items()}
        self._pages = {address: file.page() for address, file in files.items()}
        page = self._html((_FOLDER / "docs.html").read_text("utf-8"))
        self._pages[PATH] = self._pages[PATH + "/"] = page
        # Browsers get the dashboard, all other clients the index of the API.
        index = msgspec.json.encode(discovery.index())
        self._pages[FRONT] = StaticPage(index, "application/json", "no-cache", _ALWAYS, vary="accept, accept-encoding")
        if document is not None:
            self._pages[_DOCUMENT] = document
        self.paths = frozenset(self._pages) | frozenset(self._guide.entries) | {guide.SEARCH, _GUIDE}

    def _html(self, text: str, vary: str = "accept-encoding") -> StaticPage:
        for place, address in self._styled.items():
            text = text.replace(place, address)
        return StaticPage(text.encode(), _HTML, "no-cache", _ALWAYS, vary=vary)

    async def _page(self, path: str, query: bytes) -> StaticPage:
        if path == guide.SEARCH:
            asked = urllib.parse.parse_qs(query.decode("latin-1"), errors="replace").get("q", [""])[0]
            return self._html(await asyncio.to_thread(self._guide.found, asked))
        if path == _GUIDE:
            path = guide.PATH
        page = self._pages.get(path)
        if page is None:  # of the guide, rendered on first request
            text = await asyncio.to_thread(self._guide.page, path)
            page = self._pages[path] = self._html(text)
        return page

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        request_id = uuid7_text()
        try:
            self._strangers.admit(scope["client"][0] if scope["client"] else "")
            if scope["method"] in ("GET", "HEAD"):
                page = await self._page(scope["path"], scope["query_string"])
                answer = await page.answer(_asked(scope["headers"]))
                status, headers, body = answer.status, answer.headers, answer.body
            else:
                status, headers, body = 405, [(b"allow", b"GET, HEAD"), (b"content-length", b"0"), *_ALWAYS], b""
        except RateLimited as refusal:
            status, headers, body = envelope.render(refusal, request_id=request_id, public_url=self._public_url)
        headers.append((b"x-request-id", request_id.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _asked(headers: Headers) -> dict[bytes, bytes]:
    """The request headers that decide the response; repeated headers form a list (RFC 9110 §5.3)."""
    asked: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in ASKED:
            asked[name] = b", ".join((asked[name], value)) if name in asked else value
    return asked


def prefers_html(headers: Headers) -> bool:
    """True if Accept prefers HTML to JSON, as browsers do; `*/*` alone, as sent by curl, does not."""
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
