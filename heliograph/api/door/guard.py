"""The checks around every operation, in the contract's order, which decides which of two errors is reported.

    request id → path 404, method 405 → key 401 → scope 403 → rate 429 → size 413, media type 415 →
    body and headers 400 → idempotency → the operation → envelope

The rule nobody may break: every response goes out through `_send`, so each carries x-request-id, each refusal is an
envelope, and each response to a valid key carries the rate limit headers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from heliograph.accounts import idempotency
from heliograph.accounts.api_keys.authentication import Unauthorized
from heliograph.accounts.api_keys.scopes import LiveKeyRequired, ScopeRequired
from heliograph.accounts.organizations import STOPPED, OrganizationSuspended
from heliograph.accounts.requests import Answer, RateUnit
from heliograph.api.door.media_types import is_json
from heliograph.api.door.operation import REQUIRED, Call, Operation, Services
from heliograph.api.door.reading import query_reader, reader
from heliograph.api.door.recording import REPLAYED, STORED, entry_of
from heliograph.api.door.tracing import end_span
from heliograph.api.shapes import envelope
from heliograph.api.shapes.refusals import MethodNotAllowed, PayloadTooLarge, RateLimited, UnsupportedMediaType
from heliograph.base.actor import Principal
from heliograph.base.database.pool import despite_deadlocks
from heliograph.base.errors import Invalid, NotFound, Problems, Refusal
from heliograph.base.ids import uuid7_text
from heliograph.base.process import measures, spans
from heliograph.http import static
from heliograph.http.server.asgi import AT_ONCE
from heliograph.http.turns import FOR_SENDS, Places, RequestTurns

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_NOT_BEARER = "The header Authorization is not `Bearer` and an API key. Leave it out to send the key as x-api-key."
_DIFFERENT = "The headers Authorization and x-api-key name different API keys. Send one, once."
#: Headers that may occur only once: with two, different readers could interpret one request differently.
_SINGLE = frozenset({b"authorization", b"x-api-key", b"idempotency-key", b"content-type", b"content-encoding"})

_is_request_id = re.compile(rb"[A-Za-z0-9._-]{1,128}").fullmatch
_encode = msgspec.json.Encoder().encode


class Disconnected(Exception):
    """The client disconnected while sending."""


class Guard:
    """The API as an ASGI application: everything under `prefix`, and 404 for everything else."""

    def __init__(self, operations: Sequence[Operation], services: Services, *, prefix: str = "/v1") -> None:
        self._services = services
        self._prefix = prefix
        pool, patience = services.settings.database_pool, services.settings.database_patience_seconds
        #: Also for forms on pages.
        self.places = Places(max(1, pool - FOR_SENDS), patience=patience)
        self._turns = RequestTurns(max(1, pool // 2), together=self.places)
        self._readers = {each.id: reader(each.request) for each in operations if each.request is not None}
        self._queries = {each.id: query_reader(each.query) for each in operations if each.query is not None}
        self._limits = {
            each.id: services.settings.max_campaign_body_bytes
            if each.bucket == "campaigns"
            else services.settings.max_body_bytes
            for each in operations
        }
        self._exact: dict[str, dict[str, Operation]] = {}
        self._patterns: list[tuple[re.Pattern[str], dict[str, Operation]]] = []
        by_path: dict[str, dict[str, Operation]] = {}
        for each in operations:
            by_path.setdefault(each.path, {})[each.method] = each
        for path, methods in by_path.items():
            if "{" in path:
                expression = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(prefix + path))
                self._patterns.append((re.compile(expression), methods))
            else:
                self._exact[prefix + path] = methods
        self._exact[prefix] = by_path["/"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(self._services)
        began = time.monotonic()
        status: int
        code = ""
        try:
            self._begin(call, scope)
            try:
                self._route(call, scope)
            except (NotFound, MethodNotAllowed):
                self._services.strangers.admit(call.address)
                raise
            operation = call.operation
            if operation.scope is not None:
                await self._identify(call)
                await self._admit(call)
            elif not operation.is_probe:
                self._services.strangers.admit(call.address)
            self._check_size(call)
            if operation.request is not None:
                self._check_media_type(call)
                call.raw = await self._receive_body(call, receive)
                call.body = self._readers[operation.id](call.raw)
                if operation.canonical is not None:
                    call.body = await self._canonical(call, operation.canonical)
            if operation.query is not None:
                call.query = self._queries[operation.id](scope["query_string"])
            for name in call.parameters:
                call.id(name)
            self._read_idempotency_key(call)
            status, headers, body = await self._run(call)
            if call.rate_unit is not None:
                await self._settle(call)
        except Disconnected:
            end_span(call, self._prefix, spans.CLOSED, "")
            return
        except Exception as error:
            refusal = await self._refusal(call, error)
            code = refusal.code
            status, headers, body = envelope.render(
                refusal, request_id=call.request_id, public_url=self._services.settings.public_url
            )
        # Created before the response leaves, so that its id sorts before those of requests that follow from it.
        entry = entry_of(call, status, code, headers, body, began) if hasattr(call, "actor") else None
        if entry is None and status >= 500 and hasattr(call, "operation"):
            # The key's owner could not be determined, as happens when the database is unavailable.
            measures.REQUESTS.add(call.operation.id, str(status), code)
        try:
            await self._send(call, scope, send, status, headers, body)
        finally:
            end_span(call, self._prefix, status, code)
            if entry is not None:
                self._services.log.note(entry)

    # ── The steps, in order ───────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, call: Call, scope: Scope) -> None:
        call.all_headers = scope["headers"]
        headers = call.headers = dict(call.all_headers)
        doubled = () if len(headers) == len(call.all_headers) else _doubled(call.all_headers)
        given = headers.get(b"x-request-id")
        call.request_id = given.decode() if given is not None and _is_request_id(given) else uuid7_text()
        call.method = scope["method"]
        if spans.on():
            call.span = spans.incoming(headers.get(b"traceparent"))
        client = scope["client"]
        call.address = client[0] if client else ""
        for name in doubled:
            if name in (b"authorization", b"x-api-key"):
                headers[b"x-api-key"], headers[b"authorization"] = b"twice", b"bearer different"
            elif name == b"idempotency-key":
                headers[name] = b""
            else:
                headers[name] = b"given twice"

    def _route(self, call: Call, scope: Scope) -> None:
        path = scope["path"]
        methods = self._exact.get(path)
        if methods is None:
            for pattern, candidates in self._patterns:
                match = pattern.fullmatch(path)
                if match is not None:
                    methods, call.parameters = candidates, match.groupdict()
                    break
            else:
                raise NotFound("There is nothing at this path.", resource="path", id=path[:256])
        operation = methods.get("GET" if call.method == "HEAD" else call.method)
        if operation is None:
            raise MethodNotAllowed(", ".join(sorted([*methods, "HEAD"] if "GET" in methods else methods)))
        call.operation = operation
        call.path = path[len(self._prefix) :] or "/"

    async def _identify(self, call: Call) -> None:
        headers, limiter = call.headers, self._services.limiter
        key, bearer = headers.get(b"x-api-key"), headers.get(b"authorization")
        try:
            if bearer is not None:
                if bearer[:7].lower() != b"bearer ":
                    raise Unauthorized(_NOT_BEARER)
                token = bearer[7:].strip()
                if key is not None and key != token:
                    raise Unauthorized(_DIFFERENT)
                key = token
            if not key:
                raise Unauthorized
            guessing = limiter.is_locked_out(call.address)
            call.actor = await self._services.keyring.authenticate(
                key.decode("latin-1"), call.address, operation=call.operation.id, is_guess=guessing
            )
        except Unauthorized:
            self._services.failures.note(call.address)
            await limiter.fail(call.address)
            raise

    async def _admit(self, call: Call) -> None:
        """Check scope, then rate. The request is counted first, because a 403 carries the rate headers too."""
        actor, operation = call.actor, call.operation
        assert actor.key_id is not None
        assert operation.bucket is not None
        limiter, own = self._services.limiter, actor.own_rate_limit(operation.bucket)
        if operation.own_commit and operation.scope in actor.scopes:
            # Taken in the commit that stores the message; `_settle` checks the outcome afterwards.
            rate_unit = limiter.rate_unit(actor.organization_id, actor.key_id, operation.bucket, own)
            if isinstance(rate_unit, RateUnit):
                call.rate_unit = rate_unit
                return
            standing = rate_unit
        else:
            standing = await limiter.take(actor.organization_id, actor.key_id, operation.bucket, own)
        call.standing_headers = standing.headers
        if operation.scope not in actor.scopes:
            raise ScopeRequired(required=[operation.scope])
        if operation.live_only and actor.mode != "live":
            raise LiveKeyRequired
        if standing.exceeded:
            raise RateLimited(standing.bucket, standing.retry_after)

    async def _settle(self, call: Call) -> None:
        """Count a request whose rate unit was to be taken in the operation's own commit, but which never reached it."""
        actor, bucket, rate_unit = call.actor, call.operation.bucket, call.rate_unit
        assert actor.key_id is not None
        assert bucket is not None
        assert rate_unit is not None
        limiter = self._services.limiter
        if rate_unit.used:
            standing = limiter.window_state(rate_unit, actor.organization_id, bucket)
        else:
            standing = await limiter.take(actor.organization_id, actor.key_id, bucket, actor.own_rate_limit(bucket))
        call.standing_headers = standing.headers
        if standing.exceeded:
            raise RateLimited(standing.bucket, standing.retry_after)

    async def _refusal(self, call: Call, error: Exception) -> Refusal:
        """Produce the response. The rate is judged before anything in the body."""
        name = call.operation.id if hasattr(call, "operation") else "none"
        if call.rate_unit is not None and not envelope.has_waited(error):
            try:
                await self._settle(call)
            except Exception as instead:
                # Not bound to a name, or this frame and the error would form a reference cycle and keep the body alive.
                return envelope.refusal_of(instead, request_id=call.request_id, operation=name, trace=call.trace)
        refusal = envelope.refusal_of(error, request_id=call.request_id, operation=name, trace=call.trace)
        if isinstance(refusal, Invalid) and call.body is not None and (names := call.operation.other_names):
            given = msgspec.json.decode(call.raw)
            meant = {name: other for name, other in names if given.get(other) is not None and given.get(name) is None}
            return refusal.renamed(meant)
        return refusal

    def _check_size(self, call: Call) -> None:
        length = call.headers.get(b"content-length")
        if length is not None and int(length) > (limit := self._limits[call.operation.id]):
            raise PayloadTooLarge(limit)

    def _check_media_type(self, call: Call) -> None:
        if not is_json(call.headers.get(b"content-type", b"")):
            raise UnsupportedMediaType
        if call.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise UnsupportedMediaType

    async def _receive_body(self, call: Call, receive: Receive) -> bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body: bytes = message["body"]
        limit = self._limits[call.operation.id]
        if not message["more_body"]:
            if len(body) > limit:
                raise PayloadTooLarge(limit)
            return body
        parts = [body]
        size = len(body)
        while message["more_body"]:
            if size > limit:
                raise PayloadTooLarge(limit)
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message["body"])
            size += len(parts[-1])
        if size > limit:
            raise PayloadTooLarge(limit)
        return b"".join(parts)

    async def _canonical(self, call: Call, canonical: Callable[[Any], Awaitable[Any]]) -> Any:
        presently = call.operation.presently
        try:
            return await canonical(call.body)
        except Invalid:
            if presently is None:
                raise
            wrong = Problems()
            with wrong.gathering():
                raise
            with wrong.gathering():
                presently(call, call.body)
            raise wrong.refusal() from None

    def _read_idempotency_key(self, call: Call) -> None:
        operation = call.operation
        if not operation.mutates:
            return
        given = call.headers.get(b"idempotency-key")
        if given is not None:
            call.idempotency_key = idempotency.checked_key(given)
            # The ids in a path may be written in either case; everything else in it is in lower case.
            path = call.path.lower()
            call.key_hash = idempotency.key_hash(call.actor.mode, call.method, path, call.idempotency_key)
        elif operation.idempotency == REQUIRED:
            raise Invalid(("Idempotency-Key", "required", "the header `Idempotency-Key` is required"))

    async def _run(self, call: Call) -> tuple[int, envelope.Headers, bytes]:
        operation = call.operation
        if operation.own_commit:
            answer: Answer = await operation.run(call)
            replayed = None if call.key_hash is None else answer.replayed
            return answer.status, _headers(answer.body, replayed), answer.body
        if operation.scope is None:
            return self._answered(call, await operation.run(call))
        async with self._turns.of(call.actor.organization_id):
            return await despite_deadlocks(partial(self._run_connected, call))

    async def _run_connected(self, call: Call) -> tuple[int, envelope.Headers, bytes]:
        operation = call.operation
        if operation.is_list:
            return self._answered(call, await self._services.readers.run(self._services.pool, call.run_on))
        settings = self._services.settings
        async with self._services.pool.acquire(timeout=settings.idempotency_wait_seconds) as conn:
            call.conn = conn
            if call.key_hash is not None:
                outcome = await idempotency.once(
                    conn,
                    call.actor,
                    key=call.key_hash,
                    request=idempotency.request_hash(_asked(call)),
                    hours=settings.idempotency_hours,
                    wait_seconds=settings.idempotency_wait_seconds,
                    run=lambda: self._mutate(call),
                    seal_key=self._services.answer_key if operation.has_secret else None,
                )
                return outcome.status, _headers(outcome.body, outcome.replayed), outcome.body
            if operation.mutates:
                async with conn.transaction():
                    status, body = await self._mutate(call)
                return status, _headers(body, None), body
            return self._answered(call, await operation.run(call))

    async def _mutate(self, call: Call) -> tuple[int, bytes]:
        if call.actor.state in STOPPED and not call.operation.while_stopped:
            raise OrganizationSuspended
        who = Principal("key", call.actor.key_id, address=call.address, device=call.device, request_id=call.request_id)
        call.actor = msgspec.structs.replace(call.actor, by=who)
        return call.operation.status, _encode(await call.operation.run(call))

    def _answered(self, call: Call, answer: Any) -> tuple[int, envelope.Headers, bytes]:
        if isinstance(answer, static.Answer):
            return answer.status, answer.headers, answer.body
        body = _encode(answer)
        return call.operation.status, _headers(body, None), body

    async def _send(
        self, call: Call, scope: Scope, send: Send, status: int, headers: envelope.Headers, body: bytes
    ) -> None:
        headers.append((b"x-request-id", call.request_id.encode()))
        headers += call.standing_headers
        if call.method == "HEAD":
            body = b""
        # Two messages take twice as long as one call.
        at_once = scope.get("extensions", {}).get(AT_ONCE)
        if at_once is None or not at_once["answer"](status, headers, body):
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})


def _doubled(headers: Sequence[tuple[bytes, bytes]]) -> set[bytes]:
    """The headers in _SINGLE that occur with two values."""
    first: dict[bytes, bytes] = {}
    return {name for name, value in headers if name in _SINGLE and first.setdefault(name, value) != value}


def _asked(call: Call) -> list[Any]:
    """The identity of a request under an idempotency key. A stored secret is replayed only to the API key that first
    received it: the same request from another API key counts as a different one."""
    sets = {name: sorted(set(given)) for name in call.operation.unordered if (given := getattr(call.body, name))}
    body = msgspec.structs.replace(call.body, **sets) if sets else call.body
    return [body, call.query, call.actor.key_id if call.operation.has_secret else None]


def _headers(body: bytes, replayed: bool | None) -> envelope.Headers:
    headers = [envelope.JSON, (b"content-length", b"%d" % len(body)), *envelope.PRIVATE]
    if replayed is not None:
        headers.append(REPLAYED if replayed else STORED)
    return headers
