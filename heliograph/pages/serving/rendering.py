"""From a screen's result to status, headers and body: a page or a part of it, a file, or a redirect."""

from __future__ import annotations

import functools
import urllib.parse
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment

from heliograph.base.database import clock
from heliograph.http.static import Headers
from heliograph.pages import cookies, languages, requests, templates
from heliograph.pages.answers import Answer, Download, Page, Redirect, Region, Stream
from heliograph.pages.assets import Assets
from heliograph.pages.live import regions
from heliograph.pages.requests import Request

#: Values that every template gets in addition to the kit's own.
Frame = Callable[[Request], dict[str, Any]]

#: Nothing is loaded from other origins, and pages contain no inline scripts or styles.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# `same-origin`, not `no-referrer`: with the latter, browsers send `Origin: null` for our own forms.
ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_NO_STORE = (b"cache-control", b"no-store")
#: Characters not quoted in an address (RFC 3986 §2.2, 2.3, and `%` of what is already quoted).
_IN_ADDRESS = "/?#%&=+:;,@!$'()*~-._"
_VARY = (b"vary", b"accept, hx-request, cookie, accept-language, accept-encoding")


@functools.cache
def kit(folders: tuple[Path, ...]) -> tuple[Assets, Environment]:
    """Files and templates, shared by all servers in a process."""
    assets = Assets(ALWAYS)
    return assets, templates.environment(folders, assets)


class Rendering:
    """Renders results in the frame of one app."""

    def __init__(self, made: Environment, frame: Frame) -> None:
        """`made`: the app's templates."""
        self._templates, self._frame = made, frame

    async def response(self, request: Request, answer: Answer) -> tuple[int, Headers, bytes | AsyncIterator[bytes]]:
        """Status, headers and body of any result."""
        headers: Headers = []
        if isinstance(answer, Download | Stream):
            disposition = f'attachment; filename="{answer.name}"'.encode()
            kept = [(b"content-type", answer.kind.encode()), (b"content-disposition", disposition), _NO_STORE]
            if isinstance(answer, Stream):
                return 200, kept, answer.parts
            return 200, [*kept, (b"content-length", b"%d" % len(answer.body))], answer.body
        if isinstance(answer, Region):
            headers += [(regions.MADE, b"%d" % answer.made), (b"etag", answer.etag), _NO_STORE, _VARY]
            if request.headers.get(b"if-none-match") == answer.etag:
                return 304, headers, b""
            body = regions.filled(answer, request)
            return 200, headers, self._packed(request, headers, body, answer.packed)
        headers += [(b"set-cookie", cookie.encode("latin-1")) for cookie in answer.cookies]
        if isinstance(answer, Redirect):
            if answer.notice:
                undo = cookies.REFUSED if answer.is_refusal else answer.undo
                said = cookies.notice(answer.notice, undo, is_secure=request.is_secure)
                headers.append((b"set-cookie", said.encode()))
            location = urllib.parse.quote(answer.location, safe=_IN_ADDRESS)
            headers += [(b"location", location.encode()), (b"content-length", b"0"), _NO_STORE]
            return 303, headers, b""
        if request.notice and not request.is_fragment:
            headers.append((b"set-cookie", cookies.notice("", is_secure=request.is_secure).encode()))
        status, more, body = await self.page(request, answer)
        return status, headers + more, body

    async def page(self, request: Request, answer: Page) -> tuple[int, Headers, bytes]:
        """The same for a page, with the reader's own form tokens. An unchanged self-refreshing part is a 304."""
        token = request.form_token() if request.session else ""
        once = requests.new_once()
        body = (await self.text(request, answer, token=token, once=once)).encode()
        headers: Headers = [_NO_STORE, _VARY]
        if answer.status == 200 and request.method in ("GET", "HEAD"):
            etag = regions.etag(body, token, once)
            headers.append((b"etag", etag))
            if request.is_fragment and request.headers.get(b"if-none-match") == etag:
                return 304, headers, b""
        return answer.status, headers, self._packed(request, headers, body, None)

    async def text(self, request: Request, answer: Page, *, token: str, once: str) -> str:
        """The page's HTML; `token` and `once` are put into its forms."""
        person, refusal = request.session, answer.refusal
        values: dict[str, Any] = {
            "request": request,
            "person": person,
            "realm": request.realm,
            "role": request.role,
            "may": request.may,
            "to": request.to,
            "mode": request.mode,
            "theme": request.theme,
            "locale": request.locale,
            "languages": languages.LANGUAGES,
            "token": token,
            "once": once,
            "notice": request.notice,
            "conflict": "",
            "is_gone": False,
            "installation": request.services.installation.last,
            "announced": request.services.installation.last.announced(clock.now()),
            "fields": {one["field"]: one["message"] for one in refusal.details["fields"]} if refusal else {},
            **self._frame(request),
            **answer.values,
        }
        return await templates.render(self._templates, answer.template, values)

    def _packed(self, request: Request, headers: Headers, body: bytes, packed: bytes | None) -> bytes:
        """The body in an encoding that the browser accepts; adds the corresponding headers."""
        headers.append((b"content-type", b"text/html; charset=utf-8"))
        if len(body) > regions.WORTH_PACKING and b"gzip" in request.headers.get(b"accept-encoding", b""):
            body = packed or regions.packed(body)
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", b"%d" % len(body)))
        return body
