"""The pages as an ASGI application: from bytes to a screen's answer and back.

    address → session → may they? → proved? → form, origin and token → the screen → a page

The rule nobody may break: every answer goes out through `_send`, so each one carries the policy, says `no-store` and
has a request id; and nothing is written for a request that did not come from a page of ours.

It has over 400 lines because each request takes these steps, in this order.
"""

from __future__ import annotations

import copy
import functools
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
from jinja2 import Environment

from heliograph.accounts.api_keys.scopes import ScopeRequired
from heliograph.base.database import clock
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7, uuid7_text
from heliograph.base.process import spans
from heliograph.http.server.asgi import MORE_TIME
from heliograph.http.static import ASKED, Headers
from heliograph.http.static import Page as File
from heliograph.pages import cookies, forgery, languages, requests, templates
from heliograph.pages.answers import Answer, Download, Elsewhere, Region, Shown, Stream
from heliograph.pages.assets import PREFIX as ASSETS
from heliograph.pages.assets import Assets
from heliograph.pages.live import regions
from heliograph.pages.live.sharing import Sharing
from heliograph.pages.people import passkeys
from heliograph.pages.pieces import pasted
from heliograph.pages.realms import Realm
from heliograph.pages.requests import Request, Services
from heliograph.pages.routes import Route, Table
from heliograph.pages.uploads import Disconnected, Upload
from heliograph.people import memberships, signing_in
from heliograph.people.passkeys import ceremony, keeping
from heliograph.people.passkeys.ceremony import PasskeyRefused
from heliograph.people.passwords import TooManySignIns
from heliograph.people.roles import RoleRequired
from heliograph.people.sessions import Known
from heliograph.people.signing_in import WrongSignIn
from heliograph.people.tries import TooManyTries
from heliograph.requests import Entry, blanking

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

#: Nothing is loaded from elsewhere, and no script or style stands in a page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# `same-origin`, not `no-referrer`: with that, browsers say `Origin: null` of our own forms.
_ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
]
#: People that a refusal names.
NAMED = 5
_NO_STORE = (b"cache-control", b"no-store")
#: Bytes of a form.
LONGEST_FORM = 65_536
#: Bytes and fields of a form that is a table.
LONGEST_OF_ALL, MOST_OF_ALL = 1_048_576, 3_000
#: What stands in an address as it is (RFC 3986 §2.2, 2.3, and what is quoted already).
_IN_ADDRESS = "/?#%&=+:;,@!$'()*~-._"
_VARY = (b"vary", b"accept, hx-request, cookie, accept-language, accept-encoding")

PROVE_FIELD, CHALLENGE_FIELD, CREDENTIAL_FIELD, ONCE_FIELD = "_password", "_challenge", "_credential", "_once"


class TooLarge(Refusal):
    """What was sent is larger than any of our forms."""

    code, status = "payload_too_large", 413


class WrongMethod(Refusal):
    """This address does not accept that."""

    code, status = "method_not_allowed", 405


class SignedOut(Refusal):
    """Your session has ended."""

    code, status = "signed_out", 401


class ViewingOnly(Refusal):
    """You are viewing as this organization: nothing can be changed."""

    code, status = "viewing_only", 403


Frame = Callable[[Request], dict[str, Any]]


@functools.cache
def kit(folders: tuple[Path, ...]) -> tuple[Assets, Environment]:
    """Files and templates, which are the same for every server of a process."""
    assets = Assets(_ALWAYS)
    return assets, templates.environment(folders, assets)


class Pages:
    """The screens of a table. `frame`: values that every template gets beyond the kit's own."""

    def __init__(
        self,
        table: Table,
        services: Services,
        *,
        realm: Realm,
        folders: Sequence[Path],
        frame: Frame,
        admit: Callable[[str], None],
    ) -> None:
        """`admit` counts a request by its address and refuses too many."""
        self.table = table
        self.realm = realm
        self.services = services
        self._assets, self._templates = kit(tuple(folders))
        self._frame = frame
        self._admit = admit
        self._regions: Sharing[Answer] = Sharing()
        self._places = table.places | {ASSETS.strip("/")}

    def owns(self, path: str) -> bool:
        """Whether a path, other than that of the front page, is answered here."""
        return path.partition("/")[2].partition("/")[0] in self._places

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        request = self._begin(scope)
        began = time.monotonic()
        code = ""
        status: int
        body: bytes | AsyncIterator[bytes]
        try:
            self._admit(request.address)
            if request.path.startswith(ASSETS):
                status, headers, body = await self._file(request)
            else:
                answer = await self._run(request, scope, receive)
                if isinstance(answer, Shown) and answer.refusal is not None:
                    code = answer.refusal.code
                status, headers, body = await self._made(request, answer)
        except Disconnected:
            self._end_span(request, spans.CLOSED, "")
            return
        except Exception as error:
            status, headers, body, code = await self._failed(request, error)
        self._end_span(request, status, code)
        await self._send(request, send, status, headers, body)
        if request.method == "POST" and request.route and isinstance(request.session, Known):
            self._remember(request, status, code, began)

    # ── The steps, in order ───────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, scope: dict[str, Any]) -> Request:
        request = Request()
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            headers[name] = b"; ".join((headers[name], value)) if name == b"cookie" and name in headers else value
        request.services, request.realm = self.services, self.realm
        request.method, request.path = scope["method"], scope["path"]
        request.page = self.table.page(request.path)
        request.headers, request.request_id, request.began = headers, uuid7_text(), clock.milliseconds()
        request.cookies = cookies.read(headers.get(b"cookie", b""))
        request.address = scope["client"][0] if scope["client"] else ""
        request.agent = headers.get(b"user-agent", b"").decode("latin-1")
        request.host = headers.get(b"host", b"").decode("latin-1")
        public = self.services.settings.public_url
        request.is_secure = public.startswith("https://") or not forgery.is_loopback(request.host)
        request.is_fragment = b"hx-request" in headers
        request.query, request.form, request.parameters = {}, {}, {}
        request.session, request.mode, request.route = None, "live", ""
        # Only forms cause something that goes on.
        request.span = spans.incoming(headers.get(b"traceparent")) if request.method == "POST" else None
        request.token = request.cookies.get(cookies.session_name(self.realm.cookie, request.is_secure), "")
        theme = request.cookies.get(cookies.THEME, "")
        request.theme = theme if theme in cookies.THEMES else "system"
        request.is_compact = request.cookies.get(cookies.DENSITY) == "compact"
        request.notice, undo = cookies.read_notice(request.cookies.get(cookies.notice_name(request.is_secure), ""))
        request.undo = "" if own_address(undo) == "/" else undo
        chosen = request.cookies.get(cookies.LANGUAGE, "")
        spoken = headers.get(b"accept-language", b"").decode("latin-1")
        request.speech = languages.speech(chosen if chosen in languages.LANGUAGES else languages.accepted(spoken))
        return request

    async def _file(self, request: Request) -> tuple[int, Headers, bytes]:
        file: File | None = self._assets.pages.get(request.path)
        if file is None:
            raise NotFound
        answer = await file.answer({name: value for name, value in request.headers.items() if name in ASKED})
        return answer.status, answer.headers, answer.body

    async def _run(self, request: Request, scope: dict[str, Any], receive: Receive) -> Answer:
        methods, request.parameters = self.table.find(request.path)
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        request.query = requests.pairs(scope["query_string"])
        mode = request.query.get("mode", "live")
        request.mode = mode if mode in requests.MODES else "live"
        await self._identify(request)
        await self.services.installation.get()
        if route is None:
            raise WrongMethod if methods else NotFound
        if not route.is_public and request.session is None:
            if request.is_fragment:
                raise SignedOut
            if request.method != "GET":
                raise WrongSignIn("You were signed out. Sign in, then try again.")
            return Elsewhere(location=f"{self.realm.sign_in}?next={_quoted(request, scope)}")
        if not (route.is_public or route.is_personal):
            request.route = route.path
        self._demand(request, route)
        person = request.session
        # The front page is everybody's, and home for who is signed in.
        is_open = route.is_personal or (route.is_public and route.path != "/")
        if not is_open and person is not None and person.lacks_factor:
            said = request.text("This organization requires a second factor. Turn one on to go on.")
            return Elsewhere(location=self.realm.factor, notice=said if isinstance(person, Known) else "")
        if route.method == "POST":
            if isinstance(person, Known) and person.reason is not None and not route.is_harmless:
                raise ViewingOnly
            public = self.services.settings.public_url
            forgery.check_origin(request.headers, host=request.host, public_url=public, is_secure=request.is_secure)
            if route.takes_file:
                request.form = await _begin_upload(request, scope, receive)
            elif route.is_long:
                raw = await self._receive_form(request, receive, longest=LONGEST_OF_ALL)
                request.form = requests.pairs(raw, most=MOST_OF_ALL)
            else:
                request.form = requests.pairs(await self._receive_form(request, receive))
            if request.session is not None:
                given = request.form.get(forgery.FIELD) or request.headers.get(forgery.HEADER, b"").decode("latin-1")
                forgery.check_token(self.services.form_key, request.session.id, given)
        if route.is_proved and person is not None and not person.is_proved:
            asked = await self._prove(request, takes_file=route.takes_file)
            if asked is not None:
                return asked
        seen = regions.seen(request)
        if seen is None or person is None or route.method != "GET":
            return await route.handler(request)

        async def make(made: int) -> Answer:
            answer = await route.handler(request)
            if not isinstance(answer, Shown) or answer.status != 200 or answer.cookies:
                return answer
            text = await self._text(request, answer, token=regions.TOKEN, once=regions.ONCE)
            return regions.region(text, made=made)

        key = regions.key(request, route, scope["query_string"])
        return await self._regions.get(key, seen=seen, clock=clock.milliseconds, make=make, most=route.good_for)

    async def _identify(self, request: Request) -> None:
        if request.token:
            request.session = await self.services.sessions.find(request.token)
        person = request.session
        if person is not None:
            language = person.language or request.speech.language
            request.speech = languages.speech(language, person.zone)

    def _demand(self, request: Request, route: Route) -> None:
        if route.is_public or route.is_personal:
            return
        person = request.session
        if isinstance(person, Known) and person.organization_id is None:
            raise NotFound("You belong to no organization. Ask somebody there to invite you.")
        mode = "live" if route.is_shared else request.mode
        if not request.may(route.scope, route.permission, mode=mode):
            raise RoleRequired(required=self.realm.holders(route.scope, route.permission, mode))

    async def _receive_form(self, request: Request, receive: Receive, *, longest: int = LONGEST_FORM) -> bytes:
        kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind not in (b"application/x-www-form-urlencoded", b""):
            raise Invalid(("form", "format", "What was sent is not a form."))
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            more = message["more_body"]
            parts.append(message["body"])
            size += len(parts[-1])
            if size > longest:
                raise TooLarge
        return b"".join(parts)

    async def _prove(self, request: Request, *, takes_file: bool) -> Answer | None:
        """A page that asks for the password, with the form that was on its way; None once it is proved."""
        person = request.session
        assert person is not None
        given = request.form.get(PROVE_FIELD) if request.method == "POST" else None
        refusal = None
        if given is not None:
            try:
                await signing_in.prove_again(
                    self.services.pool,
                    session_id=person.id,
                    user_id=person.user_id,
                    password=given,
                    address=request.address,
                )
                async with request.writing() as conn:
                    await self.realm.prove(conn, id=person.id, user_id=person.user_id)
                self.services.sessions.forget(request.token)
                return None
            except (WrongSignIn, TooManyTries, TooManySignIns) as wrong:  # what was typed is kept, whichever it is
                refusal = Invalid((PROVE_FIELD, wrong.code, wrong.message))
        challenge = request.form.get(CHALLENGE_FIELD) if request.method == "POST" else None
        where = passkeys.site_of(request)
        if challenge is not None and where is not None:
            try:
                asked = ceremony.read_challenge(passkeys.key(request), challenge)
                shown = request.form.get(CREDENTIAL_FIELD, "")
                async with request.writing() as conn, conn.transaction():
                    await keeping.check(conn, where, asked=asked, given=shown, user_id=person.user_id)
                    await self.realm.prove(conn, id=person.id, user_id=person.user_id)
                self.services.sessions.forget(request.token)
                return None
            except PasskeyRefused as wrong:
                refusal = Invalid((PROVE_FIELD, "wrong", wrong.message))
        ours = (PROVE_FIELD, CHALLENGE_FIELD, CREDENTIAL_FIELD, forgery.FIELD)
        kept = {name: value for name, value in request.form.items() if name not in ours}
        action = request.to(request.path, **{name: value for name, value in request.query.items() if name != "mode"})
        # A file that was on its way is kept in the page, as text.
        file = await pasted.text(request) if takes_file and request.method == "POST" else None
        is_write = request.method == "POST"
        return Shown(
            template="prove.html",
            values={"kept": kept, "file": file, "action": action, "is_write": is_write, **passkeys.asking(request)},
            status=422 if refusal else 403,
            refusal=refusal,
        )

    # ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _made(self, request: Request, answer: Answer) -> tuple[int, Headers, bytes | AsyncIterator[bytes]]:
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
        if isinstance(answer, Elsewhere):
            if answer.notice:
                said = cookies.notice(answer.notice, answer.undo, is_secure=request.is_secure)
                headers.append((b"set-cookie", said.encode()))
            location = urllib.parse.quote(answer.location, safe=_IN_ADDRESS)
            headers += [(b"location", location.encode()), (b"content-length", b"0"), _NO_STORE]
            return 303, headers, b""
        if request.notice and not request.is_fragment:
            headers.append((b"set-cookie", cookies.notice("", is_secure=request.is_secure).encode()))
        status, more, body = await self._page(request, answer)
        return status, headers + more, body

    async def _page(self, request: Request, answer: Shown) -> tuple[int, Headers, bytes]:
        token = forgery.token(self.services.form_key, request.session.id) if request.session else ""
        once = requests.new_once()
        body = (await self._text(request, answer, token=token, once=once)).encode()
        headers: Headers = [_NO_STORE, _VARY]
        if answer.status == 200 and request.method in ("GET", "HEAD"):
            etag = regions.etag(body, token, once)
            headers.append((b"etag", etag))
            if request.is_fragment and request.headers.get(b"if-none-match") == etag:
                return 304, headers, b""
        return answer.status, headers, self._packed(request, headers, body, None)

    async def _text(self, request: Request, answer: Shown, *, token: str, once: str) -> str:
        person, refusal = request.session, answer.refusal
        values: dict[str, Any] = {
            "request": request,
            "person": person,
            "realm": self.realm,
            "role": request.role,
            "may": request.may,
            "to": request.to,
            "mode": request.mode,
            "theme": request.theme,
            "speech": request.speech,
            "languages": languages.LANGUAGES,
            "token": token,
            "once": once,
            "notice": request.notice,
            "conflict": "",
            "installation": self.services.installation.last,
            "announced": self.services.installation.last.announced(clock.now()),
            "fields": {one["field"]: one["message"] for one in refusal.details["fields"]} if refusal else {},
            **self._frame(request),
            **answer.values,
        }
        return await templates.render(self._templates, answer.template, values)

    def _packed(self, request: Request, headers: Headers, body: bytes, packed: bytes | None) -> bytes:
        """The body as the browser takes it, with the headers that say how."""
        headers.append((b"content-type", b"text/html; charset=utf-8"))
        if len(body) > regions.WORTH_PACKING and b"gzip" in request.headers.get(b"accept-encoding", b""):
            body = packed or regions.packed(body)
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", b"%d" % len(body)))
        return body

    async def _failed(self, request: Request, error: Exception) -> tuple[int, Headers, bytes, str]:
        refusal = self.services.refusal_of(error, request_id=request.request_id, operation="page")
        if isinstance(refusal, ScopeRequired):
            refusal = RoleRequired(refusal.message)
        values = {
            "refusal": refusal,
            "request_id": request.request_id,
            "retry_after": refusal.headers.get("retry-after"),
            "whom": await self._whom(request, refusal),
        }
        shown = Shown(template="error.html", values=values, status=refusal.status)
        try:
            now = await self._now(request, refusal)
            status, headers, body = now or await self._page(request, shown)
        except Exception as again:
            # The page of an error must not fail with the error: without session and frame it is plain.
            self.services.refusal_of(again, request_id=request.request_id, operation="error page")
            request.session = None
            status, headers, body = await self._page(request, shown)
        headers += [(name.encode(), value.encode("latin-1")) for name, value in refusal.headers.items()]
        return status, headers, body, refusal.code

    async def _now(self, request: Request, refusal: Refusal) -> tuple[int, Headers, bytes] | None:
        """What somebody wanted to change, as it stands now, with what can be done with it: for a form that came too
        late. None if there is no page of it that the person may see."""
        if refusal.status != 409 or request.method != "POST" or request.is_fragment or not request.route:
            return None
        for path in self.table.above(request.path):
            methods, parameters = self.table.find(path)
            route = methods["GET"]
            if route.is_proved:
                continue
            shown = copy.copy(request)
            shown.method, shown.path, shown.page, shown.parameters, shown.form = "GET", path, path, parameters, {}
            shown.query = {"mode": request.mode}
            try:
                self._demand(shown, route)
                answer = await route.handler(shown)
            except Refusal:
                continue
            if isinstance(answer, Shown) and answer.status == 200:
                answer.status = refusal.status
                answer.values = {**answer.values, "conflict": refusal.message}
                return await self._page(shown, answer)
        return None

    async def _whom(self, request: Request, refusal: Refusal) -> list[str]:
        """Names of those in the organization who may what was refused."""
        person, roles = request.session, refusal.details.get("required")
        if not isinstance(person, Known) or person.organization_id is None or not isinstance(roles, list):
            return []
        try:
            async with request.reading() as conn:
                return await memberships.holders(conn, person.organization_id, roles, limit=NAMED)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return []  # the page of an error says what it can

    def _end_span(self, request: Request, status: int, code: str) -> None:
        if request.span is None:
            return
        said: dict[str, str | int] = {
            "http.request.method": request.method,
            "http.response.status_code": status,
            "request_id": request.request_id,
        }
        if request.route:
            said["http.route"] = request.route
        if isinstance(request.session, Known) and request.session.organization_id is not None:
            said["organization_id"] = str(request.session.organization_id)
        if code:
            said["error.type"] = code
        request.span.end(said, name=f"POST {request.route or 'page'}", failed=status >= 500)

    def _remember(self, request: Request, status: int, code: str, began: float) -> None:
        """An act of the dashboard stands in the log of requests beside those of programs; what was typed does not."""
        if request.person.organization_id is None:
            return
        self.services.log.note(
            Entry(
                organization_id=request.person.organization_id,
                id=uuid7(),
                mode=request.mode,
                person_id=request.person.user_id,
                method=request.method,
                path=blanking.path(request.route, dict(request.parameters)),
                operation=request.route,
                status=status,
                error_code=code,
                duration_ms=round((time.monotonic() - began) * 1000),
                address=request.address,
                agent=request.agent,
                request_id=request.request_id,
            )
        )

    async def _send(
        self, request: Request, send: Send, status: int, headers: Headers, body: bytes | AsyncIterator[bytes]
    ) -> None:
        headers = [*headers, (b"x-request-id", request.request_id.encode())]
        if not request.path.startswith(ASSETS):
            headers += _ALWAYS
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if isinstance(body, bytes):
            await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})
            return
        async for part in body:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _begin_upload(request: Request, scope: dict[str, Any], receive: Receive) -> dict[str, str]:
    """The fields before the file, of which nothing has been kept yet."""
    extension = scope.get("extensions", {}).get(MORE_TIME)
    kind = request.headers.get(b"content-type", b"").decode("latin-1")
    request.upload = Upload(kind, receive, extension["allow"] if extension else lambda: None)
    await request.upload.begin()
    return request.upload.fields


def own_address(text: str) -> str:
    """An address below our own that somebody may be sent to; the front page for everything else."""
    if text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and len(text) <= 2_000:
        return text
    return "/"


def _quoted(request: Request, scope: dict[str, Any]) -> str:
    query = scope["query_string"].decode("latin-1")
    return urllib.parse.quote(request.path + (f"?{query}" if query else ""), safe="/")
