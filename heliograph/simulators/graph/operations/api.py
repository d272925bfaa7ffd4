"""The Graph API itself: authentication, dispatch to operations, and delivery of responses.

Responses about an account have the usage header; every error has Meta's format. The rule nobody may break: an injected
fault is recorded with the request it hit, so that a test can tell what was done to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import random
import re
import urllib.parse
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from heliograph.simulators.graph.callbacks import statuses
from heliograph.simulators.graph.callbacks.events import reviewed
from heliograph.simulators.graph.callbacks.outbox import Outbox
from heliograph.simulators.graph.callbacks.scripts import Script, Step
from heliograph.simulators.graph.callbacks.webhooks import Item
from heliograph.simulators.graph.objects import App, Message, SentMessage, SimulatedAccount, Template, Token
from heliograph.simulators.graph.operations import reads, send, templates
from heliograph.simulators.graph.operations.errors import GraphError, missing_object
from heliograph.simulators.graph.operations.limits import Hourly
from heliograph.simulators.graph.operations.request import Request
from heliograph.simulators.graph.state import World
from heliograph.simulators.http import Reply

_VERSION = re.compile(r"v(\d+\.\d+)")
#: Query parameters that paging links do not repeat.
_UNSHOWN = ("after", "before", "access_token", "appsecret_proof")
#: The 0.99 quantile of the standard normal distribution.
_Z99 = 2.3263478740408408
#: An early status that nobody accepts delays its response by at most this many real seconds.
_EARLY_SECONDS = 3.0
_HTML = (
    b"<!DOCTYPE html><html><head><title>Error</title></head><body><h1>Sorry, something went wrong.</h1></body></html>"
)


class Fault(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A network fault. With drop, hang and drip a send IS accepted unless `lost`."""

    #: json, html, empty: such a response with `status`; not accepted. drop: the connection closes. hang: no response.
    kind: Literal["json", "html", "empty", "drop", "hang", "drip"]
    status: int = 503
    #: Meta's error code in a json response.
    code: int = 2
    lost: bool = False
    #: The share of requests it hits.
    share: float = 1.0
    #: How many requests it hits before it ends; 0 means it stays.
    times: int = 0
    #: sends, management, or all.
    on: Literal["sends", "management", "all"] = "sends"
    #: Real seconds between two of the twenty pieces of a drip.
    interval: float = 0.02


class Api:
    """Answers requests. A reset replaces `world`; `outboxes` stay."""

    def __init__(self, world: World, outboxes: dict[str, Outbox], base: Callable[[], str]) -> None:
        self.world = world
        self.faults: list[Fault] = []
        self._outboxes = outboxes
        self._base = base
        self._chance = random.Random(world.options.seed)

    def reset(self, world: World) -> None:
        self.world = world
        self.faults = []
        self._chance = random.Random(world.options.seed)

    def handle(self, request: Request) -> Reply:
        """Answer a request of the Graph namespace."""
        self.world.counters.requests += 1
        sending = request.method == "POST" and request.path.endswith("/messages")
        fault = self._fault(sending)
        code = 0
        if fault is not None and (fault.kind in ("json", "html", "empty") or fault.lost):
            reply = self._broken(fault.kind, fault.status, fault.code)
            code = fault.code if fault.kind == "json" else 0
            if fault.lost:
                reply.way = fault.kind
        else:
            try:
                reply = self._route(request, sending)
            except GraphError as error:
                code = error.code
                reply = Reply(error.http, msgspec.json.encode(error.body(self._trace())))
                if sending:
                    self.world.counters.refused += 1
            if fault is not None:
                reply.way, reply.interval = fault.kind, fault.interval
        if reply.way in ("drop", "hang") or fault is not None:
            self.world.counters.unanswered += sending
        latency = self._latency()
        if latency:
            reply.delay += latency
        trace = self._trace().encode()
        reply.headers += ((b"x-fb-trace-id", trace), (b"x-fb-request-id", trace), (b"facebook-api-version", b"v25.0"))
        self._remember(request, 0 if reply.way in ("drop", "hang") else reply.status, code, fault)
        return reply

    def emit(self, item: Item) -> None:
        """Put an update into the outboxes of the account's apps."""
        for app in self.world.subscribers(item.account):
            if app.webhook_url:
                box = self._outboxes.get(app.id)
                if box is not None:
                    box.put(item)

    # -- authentication and dispatch -----------------------------------------------------------------------------------

    def _route(self, request: Request, sending: bool) -> Reply:
        parts = request.path.strip("/").split("/")
        found = _VERSION.fullmatch(parts[0])
        if parts[0] == "media" and len(parts) == 2:
            self._token(request)
            return Reply(200, b"\xff\xd8\xff\xd9", "image/jpeg")
        if found is None or not 2 <= len(parts) <= 3:
            raise GraphError(2500, message="Unknown path components: /" + "/".join(parts))
        wanted, edge = parts[1], parts[2] if len(parts) == 3 else ""
        if wanted == "debug_token" and not edge:
            return self._answer(self._debug(request))
        if edge == "subscriptions":
            return self._answer(self._subscriptions(request, wanted))
        token = self._token(request)
        if sending:
            return self._send(request, wanted, token, float(found[1]))
        return self._manage(request, wanted, edge, token)

    def _token(self, request: Request) -> Token:
        given = self._bearer(request)
        token = self.world.tokens.get(given)
        if token is None:
            raise GraphError(190, message="Invalid OAuth access token - Cannot parse access token")
        self._proof(request, given, self.world.apps.get(token.app))
        if token.state != "valid" or 0 < token.expires_at <= self.world.clock.now():
            raise reads.token_error(token)
        return token

    def _proof(self, request: Request, given: str, app: App | None) -> None:
        """Raises GraphError for a proof that does not match this token, or if a required one is missing."""
        proof = request.query.get("appsecret_proof")
        if proof is None:
            if self.world.options.require_proof:
                raise GraphError(100, message="API calls from the server require an appsecret_proof argument")
            return
        right = app and hmac.new(app.secret.encode(), given.encode(), hashlib.sha256).hexdigest()
        if proof != right:
            raise GraphError(100, message="Invalid appsecret_proof provided in the API argument")

    def _bearer(self, request: Request) -> str:
        header = request.headers.get("authorization", "")
        kind, _, given = header.partition(" ")
        if not header and "access_token" in request.query:
            return request.query["access_token"]
        if not header and request.method == "GET":
            raise GraphError(200, message="(#200) Provide valid app ID")
        if kind.lower() != "bearer" or not given.strip():
            raise GraphError(190, message="Invalid OAuth access token - Cannot parse access token")
        return given.strip()

    def _app_of(self, bearer: str) -> App | None:
        app = self.world.apps.get(bearer.partition("|")[0])
        return app if app is not None and bearer == f"{app.id}|{app.secret}" else None

    def _debug(self, request: Request) -> dict[str, Any]:
        bearer = self._bearer(request)
        app = self._app_of(bearer)
        if app is None:
            self._token(request)
        else:
            self._proof(request, bearer, app)
        if "input_token" not in request.query:
            raise GraphError(100, message="(#100) The parameter input_token is required.")
        return reads.debug_token(self.world, request.query["input_token"])

    def _subscriptions(self, request: Request, wanted: str) -> dict[str, Any]:
        app = self._app_of(self._bearer(request))
        if app is None or app.id != wanted:
            raise GraphError(190, message="Invalid OAuth access token signature.")
        self._proof(request, f"{app.id}|{app.secret}", app)
        body = self._body(request)
        if request.method == "POST":
            url = str(body.get("callback_url", ""))
            self._outboxes[app.id].set_url(url, str(body.get("verify_token", app.verify_token)))
            return {"success": True}
        shown = {"object": "whatsapp_business_account", "callback_url": app.webhook_url, "active": True}
        return {"data": [shown] if app.webhook_url else []}

    # -- sends ---------------------------------------------------------------------------------------------------------

    def _send(self, request: Request, number_id: str, token: Token, version: float) -> Reply:
        number, account = send.usable(self.world, number_id, token)
        accepted = send.send(self.world, number, account, version, self._body(request))
        script, message = accepted.script, accepted.message
        reply = Reply(200, msgspec.json.encode(accepted.answer))
        if script.answer in ("html", "empty"):
            reply = self._broken(script.answer, script.http, 0)
            self.world.counters.unanswered += 1
        elif script.answer != "normal":
            reply.way = script.answer
        if message is None or not script.steps:
            return reply
        steps = script.steps
        if script.early:
            reply.behind = self._early(message, script, steps[0])
            steps = steps[1:]
        reply.left = lambda: self._plan(message, script, steps)
        return reply

    def _early(self, message: Message, script: Script, step: Step) -> asyncio.Future[Any]:
        """Send the first status now; the response waits until its callback has been sent."""
        over = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        item = statuses.status(self.world, message, script, step)
        item.ended = end
        self.emit(item)
        asyncio.get_running_loop().call_later(_EARLY_SECONDS, end)
        return over

    def _plan(self, message: Message, script: Script, steps: tuple[Step, ...]) -> None:
        clock, usual, delay = self.world.clock, self.world.options.status_delay, script.wait
        for step in steps:
            delay += usual if step.after is None else step.after
            if delay > 0:
                clock.put(delay, self.happen, message, script, step)
            else:
                self.happen(message, script, step)

    def happen(self, message: Message, script: Script, step: Step) -> None:
        """Emit this status now."""
        item = statuses.status(self.world, message, script, step)
        self.emit(item)
        if script.twice:
            self.emit(msgspec.structs.replace(item))

    # -- everything else -----------------------------------------------------------------------------------------------

    def _manage(self, request: Request, wanted: str, edge: str, token: Token) -> Reply:
        world, method = self.world, request.method
        account = world.accounts.get(wanted)
        if account is None:
            template = world.templates.get(wanted)
            if template is not None and method == "POST" and edge in ("", "unpause"):
                reads.allowed(token, template.account, wanted, method)
                self._count(template.account)
                if edge:
                    answer, item = templates.unpause(world, template)
                    if item is not None:
                        self.emit(item)
                else:
                    answer = templates.edit(world, template, self._body(request), self._submit)
                return self._answer(answer, template.account)
            number = world.numbers.get(wanted)
            if number is not None and method == "POST" and edge in ("register", "deregister"):
                reads.allowed(token, number.account, wanted, method)
                world.change(number, registered=edge == "register")
                return self._answer({"success": True}, number.account)
            if edge or method != "GET":
                raise missing_object(wanted, method)
            owner = number.account if number is not None else template.account if template is not None else ""
            self._count(owner)
            return self._answer(reads.one(world, wanted, token, request.query.get("fields", ""), self._base()), owner)
        reads.allowed(token, account.id, wanted, method)
        self._count(account.id)
        return self._answer(self._of_account(request, account, edge, token), account.id)

    def _of_account(self, request: Request, account: SimulatedAccount, edge: str, token: Token) -> Any:
        world, method = self.world, request.method
        shown = {key: value for key, value in request.query.items() if key not in _UNSHOWN}
        link = f"{self._base()}{request.path}?{urllib.parse.urlencode(shown)}"
        if edge == "" and method == "GET":
            return reads.one(world, account.id, token, request.query.get("fields", ""), self._base())
        if edge == "phone_numbers" and method == "GET":
            return reads.numbers(world, account, request.query, link)
        if edge == "message_templates":
            if method == "GET":
                return reads.templates(world, account, request.query, link)
            if method == "POST":
                return templates.create(world, account, self._body(request), self._submit)
            if method == "DELETE":
                answer, items = templates.delete(world, account, request.query | self._body(request))
                for item in items:
                    self.emit(item)
                return answer
        if edge == "subscribed_apps":
            if method == "GET":
                apps = [world.apps[one] for one in account.subscribed if one in world.apps]
                shown_apps = [{"id": one.id, "name": one.name, "link": f"{self._base()}/apps/{one.id}"} for one in apps]
                return {"data": [{"whatsapp_business_api_data": one} for one in shown_apps]}
            if method in ("POST", "DELETE"):
                left = [one for one in account.subscribed if one != token.app]
                account.subscribed = [*left, token.app] if method == "POST" else left
                return {"success": True}
        unknown = GraphError(2500, message=f"Unknown path components: /{edge}")
        raise unknown if edge else missing_object(account.id, method)

    def _submit(self, template: Template) -> None:
        delay = self.world.options.review_delay
        if delay >= 0:
            self.world.clock.put(delay, self._review, self.world, template)

    def _review(self, world: World, template: Template) -> None:
        item = reviewed(world, template)
        if item is not None:
            self.emit(item)

    def _count(self, account: str) -> None:
        """Count one call for this account. Raises GraphError beyond the hourly limit."""
        most = self.world.options.management_calls
        if not account or not most:
            return
        hourly = self.world.hourly.setdefault(account, Hourly())
        if hourly.count(self.world.clock.now()) > most:
            raise GraphError(80008, "There have been too many calls from this account.", transient=True)

    # -- responses -----------------------------------------------------------------------------------------------------

    def _body(self, request: Request) -> Any:
        if not request.body:
            return dict(request.query)
        if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            return dict(urllib.parse.parse_qsl(request.body.decode("utf-8", "replace")))
        try:
            return msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise GraphError(100, "The request body is not JSON") from None

    def _answer(self, body: Any, account: str = "") -> Reply:
        headers: tuple[tuple[bytes, bytes], ...] = ()
        hourly = self.world.hourly.get(account)
        if hourly is not None:
            share = min(100, 100 * hourly.calls // max(1, self.world.options.management_calls))
            used = {"type": "whatsapp", "call_count": share, "total_cputime": share, "total_time": share}
            used["estimated_time_to_regain_access"] = hourly.minutes_left if share >= 100 else 0
            headers = ((b"x-business-use-case-usage", msgspec.json.encode({account: [used]})),)
        return Reply(200, msgspec.json.encode(body), headers=headers)

    def _broken(self, kind: str, status: int, code: int) -> Reply:
        if kind == "html":
            return Reply(status, _HTML, "text/html; charset=utf-8")
        if kind == "json":
            return Reply(status, msgspec.json.encode(GraphError(code, transient=True).body(self._trace())))
        return Reply(status, b"")

    def _fault(self, sending: bool) -> Fault | None:
        for fault in self.faults:
            if fault.on != "all" and sending != (fault.on == "sends"):
                continue
            if fault.share < 1 and self._chance.random() >= fault.share:
                continue
            if fault.times:
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
            return fault
        return None

    def _latency(self) -> float:
        options = self.world.options
        if options.latency_ms <= 0:
            return 0.0
        sigma = math.log(max(options.p99_ms, options.latency_ms) / options.latency_ms) / _Z99
        return self._chance.lognormvariate(math.log(options.latency_ms / 1000), sigma)

    def _trace(self) -> str:
        return f"A{self._chance.getrandbits(120):030x}"

    def _remember(self, request: Request, status: int, code: int, fault: Fault | None) -> None:
        world = self.world
        if not world.options.keep_requests:
            return
        headers = dict(request.headers)
        if "authorization" in headers:
            headers["authorization"] = "Bearer [redacted]"
        query = {
            key: "[redacted]" if "token" in key or "proof" in key else value for key, value in request.query.items()
        }
        try:
            body = msgspec.json.decode(request.body) if request.body else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            body = request.body.decode("latin-1")
        kind = fault.kind if fault is not None else ""
        world.requests.append(
            SentMessage(world.clock.now(), request.method, request.path, query, headers, body, status, code, kind)
        )
