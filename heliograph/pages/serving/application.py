"""The pages as an ASGI application: from bytes to a screen's result and back.

    address → session → may they? → proved? → form, origin and token → the screen → a page

The rule nobody may break: every response goes out through `_send`, so each one carries the policy, `no-store` and a
request id; and nothing is written for a request that did not come from one of our pages.
"""

from __future__ import annotations

import copy
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from heliograph.accounts.api_keys.scopes import ScopeRequired
from heliograph.accounts.organizations import STOPPED, OrganizationSuspended
from heliograph.base.database import clock
from heliograph.base.database.pool import despite_deadlocks
from heliograph.base.errors import NotFound, Refusal, Unavailable
from heliograph.base.ids import uuid7_text
from heliograph.base.process import spans
from heliograph.http.static import ASKED, Headers
from heliograph.http.static import StaticPage as File
from heliograph.http.turns import RequestTurns
from heliograph.pages import cookies, forgery, languages, requests
from heliograph.pages.answers import Answer, Page, Redirect, Region, own_address
from heliograph.pages.assets import PREFIX as ASSETS
from heliograph.pages.forgery import OtherOrganization
from heliograph.pages.live import regions
from heliograph.pages.live.sharing import Sharing
from heliograph.pages.realms import Realm
from heliograph.pages.requests import Request, Services
from heliograph.pages.routes import WALL, Route, Table
from heliograph.pages.serving import proving, receiving, recording
from heliograph.pages.serving.receiving import Receive
from heliograph.pages.serving.rendering import ALWAYS, Frame, Rendering, kit
from heliograph.pages.uploads import Disconnected
from heliograph.people import memberships
from heliograph.people.roles import RoleRequired
from heliograph.people.sessions import SignedInUser
from heliograph.people.tries import WrongSignIn

Send = Callable[[dict[str, Any]], Awaitable[None]]

#: Maximum people named in a refusal.
NAMED = 5
#: What the frame of every page asks for by itself, below the prefix of its realm (frame.js).
STATE = "/state"


class WrongMethod(Refusal):
    """This address does not accept that."""

    code, status = "method_not_allowed", 405


class SignedOut(Refusal):
    """Your session has ended."""

    code, status = "signed_out", 401


class ViewingOnly(Refusal):
    """You are viewing as this organization: nothing can be changed."""

    code, status = "viewing_only", 403


class Pages:
    """The screens of a table of routes. `frame`: values that every template gets in addition to the kit's own."""

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
        """`admit` counts requests by address and refuses too many."""
        self.table = table
        self.realm = realm
        self.services = services
        self._assets, made = kit(tuple(folders))
        self._rendering = Rendering(made, frame)
        self._admit = admit
        self._regions: Sharing[Answer] = Sharing()
        self._turns = RequestTurns()
        self._places = table.places | {ASSETS.strip("/")}

    def owns(self, path: str) -> bool:
        """True if a path, other than the front page's, is served here."""
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
                if isinstance(answer, Page) and answer.refusal is not None:
                    code = answer.refusal.code
                status, headers, body = await self._rendering.response(request, answer)
        except Disconnected:
            recording.end_span(request, spans.CLOSED, "")
            return
        except Exception as error:
            status, headers, body, code = await self._failed(request, error)
        recording.end_span(request, status, code)
        await self._send(request, send, status, headers, body)
        if request.method == "POST" and request.route and isinstance(request.session, SignedInUser):
            recording.remember(request, status, code, began)

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
        request.query, request.form, request.parameters, request.has_written = {}, {}, {}, False
        request.session, request.mode, request.route, request.scope = None, "live", "", None
        # Only forms cause further work.
        request.span = spans.incoming(headers.get(b"traceparent")) if request.method == "POST" else None
        request.token = request.cookies.get(cookies.session_name(self.realm.cookie, request.is_secure), "")
        theme = request.cookies.get(cookies.THEME, "")
        request.theme = theme if theme in cookies.THEMES else "system"
        request.is_compact = request.cookies.get(cookies.DENSITY) == "compact"
        request.notice, undo = cookies.read_notice(request.cookies.get(cookies.notice_name(request.is_secure), ""))
        request.undo = "" if own_address(undo) == "/" else undo
        request.is_refusal = undo == cookies.REFUSED
        chosen = request.cookies.get(cookies.LANGUAGE, "")
        spoken = headers.get(b"accept-language", b"").decode("latin-1")
        request.locale = languages.locale(chosen if chosen in languages.LANGUAGES else languages.accepted(spoken))
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
        await self._identify(request, route)
        await self.services.installation.get()
        if route is None and methods and request.method == "GET" and request.page != request.path:
            # The address of a form that was answered with a page: reloaded, opened again by a browser, or sent on.
            return Redirect(location=request.to(request.page))
        if route is None:
            raise WrongMethod if methods else NotFound
        if not route.is_public and request.session is None:
            if request.is_fragment:
                raise SignedOut
            if request.method != "GET":
                raise WrongSignIn("You were signed out. Sign in, then try again.")
            return Redirect(location=f"{self.realm.sign_in}?next={_quoted(request, scope)}")
        if not (route.is_public or route.is_personal):
            request.route, request.scope = route.path, None if route.is_shared else route.scope
        self._demand(request, route)
        person = request.session
        # The front page is public, but is the home page for those who are signed in.
        is_open = route.is_personal or (route.is_public and route.path != "/")
        if not is_open and person is not None and person.lacks_factor:
            said = request.text("This organization requires a second factor. Turn one on to continue.")
            said = said if isinstance(person, SignedInUser) else ""
            return Redirect(location=self.realm.factor, notice=said, is_refusal=True)
        if route.method == "POST":
            await self._receive_form(request, route, scope, receive)
        asking = request.headers.get(forgery.ORGANIZATION)
        if asking is not None and asking.decode("latin-1") != str(request.organization_id or ""):
            raise OtherOrganization
        if route.is_proved and person is not None and not person.is_proved:
            asked = await proving.prove(request, takes_file=route.takes_file)
            if asked is not None:
                return asked
        seen = regions.shown_since(request)
        if seen is None or person is None or route.method != "GET":
            return await self._handle(request, route)

        async def make(made: int) -> Answer:
            answer = await self._handle(request, route)
            if not isinstance(answer, Page) or answer.status != 200 or answer.cookies:
                return answer
            text = await self._rendering.text(request, answer, token=regions.TOKEN, once=regions.ONCE)
            return regions.region(text, made=made, of=person.user_id if answer.is_own else None)

        get = partial(self._regions.get, seen=seen, clock=clock.milliseconds, make=make, most=route.good_for)
        key = regions.key(request, route, scope["query_string"])
        found = await get(key)
        if isinstance(found, Region) and found.of not in (None, person.user_id):  # it was made for somebody else
            found = await get((key, person.user_id))
        return found

    async def _receive_form(self, request: Request, route: Route, scope: dict[str, Any], receive: Receive) -> None:
        """Read the form of a POST. Raises ForeignForm unless it is of a page of this session, OtherOrganization if that
        page showed another organization, and OrganizationSuspended if the organization may only read, and this
        does more."""
        person = request.session
        if isinstance(person, SignedInUser) and person.reason is not None and not route.is_harmless:
            raise ViewingOnly
        public = self.services.settings.public_url
        forgery.check_origin(request.headers, host=request.host, public_url=public, is_secure=request.is_secure)
        if route.takes_file:
            request.form = await receiving.upload(request, scope, receive)
        else:
            request.form = await receiving.form(request, receive, is_long=route.is_long)
        given = request.form.get(forgery.FIELD) or request.headers.get(forgery.HEADER, b"").decode("latin-1")
        # A public page that was opened before somebody signed in, perhaps in another tab, has no token: its form is
        # read like that of a visitor.
        if person is not None and (given or not route.is_public):
            organization = forgery.check_token(self.services.form_key, person.id, given)
            if request.route and organization != request.organization_id:
                raise OtherOrganization
        is_allowed = route.only_reads or route.only_ends
        if isinstance(person, SignedInUser) and request.route and person.state in STOPPED and not is_allowed:
            raise OrganizationSuspended

    async def _handle(self, request: Request, route: Route) -> Answer:
        person = request.session
        if person is None or route.takes_file:  # a file may take minutes to arrive
            return await route.handler(request)
        async with self._turns.of(request.organization_id or person.user_id):
            return await despite_deadlocks(partial(self._handle_once, request, route))

    async def _handle_once(self, request: Request, route: Route) -> Answer:
        # As when a form is sent a second time: what must not be done twice is done by Request.once.
        try:
            return await route.handler(request)
        except asyncpg.DeadlockDetectedError as error:
            if request.has_written:
                raise Unavailable from error
            raise

    async def _identify(self, request: Request, route: Route | None) -> None:
        if request.token:
            # A page that refreshes itself, or its frame, is not used: left open, it would keep its session forever. A
            # wall is, by whoever watches it.
            is_own = regions.SEEN in request.headers or request.path == self.realm.prefix + STATE
            is_use = not is_own or (route is not None and route.good_for == WALL)
            request.session = await self.services.sessions.find(request.token, is_use=is_use)
        person = request.session
        if person is not None:
            language = person.language or request.locale.language
            request.locale = languages.locale(language, person.zone)

    def _demand(self, request: Request, route: Route) -> None:
        if route.is_public or route.is_personal:
            return
        person = request.session
        if isinstance(person, SignedInUser) and person.organization_id is None:
            raise NotFound("You belong to no organization. Ask somebody there to invite you.")
        mode = "live" if route.is_shared else request.mode
        if not request.may(route.scope, route.permission, mode=mode):
            raise RoleRequired(required=self.realm.holders(route.scope, route.permission, mode))

    # ── Answers ───────────────────────────────────────────────────────────────────────────────────────────────────

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
        shown = Page(template="error.html", values=values, status=refusal.status)
        try:
            now = await self._now(request, refusal)
            status, headers, body = now or await self._rendering.page(request, shown)
        except Exception as again:
            # The error page must not fail with the same error: without session and frame it is plain.
            self.services.refusal_of(again, request_id=request.request_id, operation="error page")
            request.session = None
            status, headers, body = await self._rendering.page(request, shown)
        headers += [(name.encode(), value.encode("latin-1")) for name, value in refusal.headers.items()]
        return status, headers, body, refusal.code

    async def _now(self, request: Request, refusal: Refusal) -> tuple[int, Headers, bytes] | None:
        """For a form that was submitted too late: the page of the object that it was to change, in its current state;
        if that is gone, the list where it was. None if there is no such page that the person may see."""
        if refusal.status not in (404, 409) or request.method != "POST" or request.is_fragment or not request.route:
            return None
        if isinstance(refusal, OtherOrganization):
            return None  # the page above it belongs to the other organization
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
            if isinstance(answer, Page) and answer.status == 200:
                answer.status = refusal.status
                answer.values = {**answer.values, "conflict": refusal.message, "is_gone": refusal.status == 404}
                return await self._rendering.page(shown, answer)
        return None

    async def _whom(self, request: Request, refusal: Refusal) -> list[str]:
        """Names of those in the organization who may do what was refused."""
        person, roles = request.session, refusal.details.get("required")
        if not isinstance(person, SignedInUser) or person.organization_id is None or not isinstance(roles, list):
            return []
        try:
            async with request.reading() as conn:
                return await memberships.holders(conn, person.organization_id, roles, limit=NAMED)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return []  # the error page says what it can

    async def _send(
        self, request: Request, send: Send, status: int, headers: Headers, body: bytes | AsyncIterator[bytes]
    ) -> None:
        headers = [*headers, (b"x-request-id", request.request_id.encode())]
        if status >= 400 or not request.path.startswith(ASSETS):  # files have them already
            headers += ALWAYS
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if isinstance(body, bytes):
            await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})
            return
        async for part in body:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def _quoted(request: Request, scope: dict[str, Any]) -> str:
    query = scope["query_string"].decode("latin-1")
    return urllib.parse.quote(request.path + (f"?{query}" if query else ""), safe="/")
