"""Definition of an operation: what its line in `routes.py` and its handler declare, and the call passed to handlers.

Everything about an operation is declared once. Method, path, scope, bucket and idempotency are in its line of the
table; the rest is declared at the handler: summary and description in its docstring, shapes in its annotations,
refusals in `@operation`. Its operationId is the handler's name in camelCase.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec

from heliograph import requests
from heliograph.accounts.api_keys.keyring import Keyring
from heliograph.accounts.requests import Answer, RateUnit
from heliograph.api.door.health import HealthChecks
from heliograph.api.door.limits import AnonymousLimiter, Limiter
from heliograph.audit.failures import Failures
from heliograph.base.actor import Actor
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.process.settings import Settings
from heliograph.base.process.spans import Context, Span
from heliograph.base.standby.readers import Readers
from heliograph.http.static import StaticPage
from heliograph.sms.accepting.accept import Acceptor
from heliograph.webhooks.endpoints import EndpointRules
from heliograph.whatsapp.accepting.accept import Acceptor as WhatsAppAcceptor

#: Is an Idempotency-Key needed? NONE: the operation changes nothing.
REQUIRED, OPTIONAL, NONE = "required", "optional", "none"

#: The call, then the arguments for the handler's parameters.
Handler = Callable[..., Awaitable[Any]]
AnyHandler = TypeVar("AnyHandler", bound=Handler)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What `@operation` declares about a handler."""

    #: Status of a successful response.
    status: int = 200
    #: Normalizes the body, so that different spellings of one request are equal, without a clock, settings or the
    #: database; raises Invalid. Its result is what an idempotency key is bound to, and the body that the handler gets.
    canonical: Callable[[Any], Awaitable[Any]] | None = None
    #: Raises Invalid for what is wrong with a body at this time or under these settings, given the call and a body that
    #: `canonical` refuses: all of it is named at once. The rule checks that for every other body.
    presently: Callable[[Call, Any], object] | None = None
    #: Fields of the canonical body that are sets, written as lists: their order makes no other request.
    unordered: tuple[str, ...] = ()
    #: Fields of the body that have a second name, and that name. A refusal names a field as the request does.
    other_names: tuple[tuple[str, str], ...] = ()
    #: Its refusals, in addition to those that `guard.py` raises for every operation.
    refusals: tuple[type[Refusal], ...] = ()
    #: True: it changes what live and test keys share, so a test key may not.
    live_only: bool = False
    #: True: the response contains a secret, so it is sealed when stored for replays.
    has_secret: bool = False
    #: True: load balancers poll it, as often as they like, so it is not rate limited.
    is_probe: bool = False
    #: True: it only reads, or ends or stops something, such as the access of a leaked key, so it is allowed while the
    #: organization is suspended or closed, as on the dashboard.
    while_stopped: bool = False
    #: True: it queries for transactions in progress, which a standby does not know about.
    on_primary: bool = False


class Operation(Facts, frozen=True, kw_only=True):
    """An operation of the API, with everything declared about it."""

    method: str
    #: Below /v1, with `{name}` for path parameters, which are UUIDs.
    path: str
    #: Its operationId.
    id: str
    #: First line of the handler's docstring, without its full stop.
    summary: str
    #: The rest of it.
    description: str
    #: None: no key is needed.
    scope: str | None
    #: None: not rate limited.
    bucket: str | None
    idempotency: str
    #: A struct, or a tagged union of structs.
    request: type[msgspec.Struct] | UnionType | None
    #: Query parameters.
    query: type[msgspec.Struct] | None
    response: type[msgspec.Struct]
    #: True: the rule behind it commits by itself, including the idempotency record, and returns an Answer.
    own_commit: bool
    run: Callable[[Call], Awaitable[Any]]

    @property
    def mutates(self) -> bool:
        return self.idempotency != NONE

    @property
    def is_list(self) -> bool:
        """Whether it is a list or report, which a standby may answer. Reading one object by its id costs the primary
        less than checking the standby's replication position."""
        return self.method == "GET" and self.query is not None and not self.on_primary


def operation(
    *,
    status: int = 200,
    canonical: Callable[[Any], Awaitable[Any]] | None = None,
    presently: Callable[[Call, Any], object] | None = None,
    unordered: tuple[str, ...] = (),
    other_names: tuple[tuple[str, str], ...] = (),
    refusals: tuple[type[Refusal], ...] = (),
    live_only: bool = False,
    has_secret: bool = False,
    is_probe: bool = False,
    while_stopped: bool = False,
    on_primary: bool = False,
) -> Callable[[AnyHandler], AnyHandler]:
    """Declare what a handler's docstring and annotations do not say; see Facts."""
    facts = Facts(
        status=status,
        canonical=canonical,
        presently=presently,
        unordered=unordered,
        other_names=other_names,
        refusals=refusals,
        live_only=live_only,
        has_secret=has_secret,
        is_probe=is_probe,
        while_stopped=while_stopped,
        on_primary=on_primary,
    )

    def declare(handler: AnyHandler) -> AnyHandler:
        vars(handler)["facts"] = facts
        return handler

    return declare


def described(
    method: str, path: str, handler: Handler, scope: str | None, bucket: str | None, idempotency: str
) -> Operation:
    """Build the operation for a line of the table. Raises TypeError if the handler does not fit it.

    A handler takes the call and then, by name, `body`, `query` and each path parameter (`messageId` as `message_id`).
    It returns its response struct, or `Annotated[Answer, Struct]` if the bytes are produced elsewhere.
    """
    name = getattr(handler, "__name__", "")
    hints = typing.get_type_hints(handler, include_extras=True)
    facts: Facts = vars(handler).get("facts") or Facts()
    wanted = {_snake(each): each for each in re.findall(r"\{(\w+)\}", path)}
    takes = list(inspect.signature(handler).parameters)[1:]
    if wanted.keys() != set(takes) - {"body", "query"}:
        raise TypeError(f"{name} does not take the parameters of {path}: {', '.join(wanted) or 'none'}")
    summary, _, description = (inspect.getdoc(handler) or "").partition("\n\n")
    if not summary:
        raise TypeError(f"{name} has no docstring: it is the operation's summary and description")
    answer = hints["return"]
    is_annotated = typing.get_origin(answer) is Annotated
    made, response = typing.get_args(answer) if is_annotated else (answer, answer)
    request = hints.get("body")
    if facts.canonical is not None:
        (request, _) = typing.get_type_hints(facts.canonical).values()
    return Operation(
        **msgspec.structs.asdict(facts),
        method=method,
        path=path,
        id=_operation_id(name),
        summary=summary.removesuffix("."),
        description="\n\n".join(" ".join(part.split()) for part in description.split("\n\n")),
        scope=scope,
        bucket=bucket,
        idempotency=idempotency,
        request=request,
        query=hints.get("query"),
        response=response,
        own_commit=made is Answer,
        run=_bound(handler, [_taken(each, wanted) for each in takes]),
    )


def _taken(parameter: str, path: dict[str, str]) -> Callable[[Call], Any]:
    """The argument for a handler's parameter."""
    if parameter == "body":
        return lambda call: call.body
    if parameter == "query":
        return lambda call: call.query
    return lambda call: call.id(path[parameter])


def _bound(handler: Handler, taken: list[Callable[[Call], Any]]) -> Callable[[Call], Awaitable[Any]]:
    match taken:
        case []:
            return handler
        case [one]:
            return lambda call: handler(call, one(call))
        case _:
            return lambda call: handler(call, *(each(call) for each in taken))


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name)


def _operation_id(name: str) -> str:
    first, *words = name.replace("whatsapp", "whats_app").split("_")
    return first + "".join(map(str.capitalize, words))


class Services(msgspec.Struct, frozen=True):
    """Long-lived services of the process that are passed to handlers."""

    pool: Pool
    readers: Readers
    settings: Settings
    keyring: Keyring
    limiter: Limiter
    strangers: AnonymousLimiter
    #: The log of requests.
    log: requests.Log
    #: Failed authentications waiting to be written to the audit log.
    failures: Failures
    health: HealthChecks
    acceptor: Acceptor
    whatsapp: WhatsAppAcceptor
    webhook_rules: EndpointRules
    #: Seals stored responses that contain a secret.
    answer_key: Key
    #: Authenticates the cursors of lists.
    cursor_key: Key
    #: The OpenAPI document.
    document: StaticPage
    #: True once the process is shutting down.
    is_draining: Callable[[], bool] = lambda: False
    #: What requests are logged with.
    vocabulary: requests.Vocabulary = requests.Vocabulary()


class Call:
    """One request, as its handler sees it."""

    __slots__ = (
        "actor",
        "address",
        "all_headers",
        "body",
        "conn",
        "headers",
        "idempotency_key",
        "key_hash",
        "method",
        "operation",
        "parameters",
        "path",
        "query",
        "rate_unit",
        "raw",
        "request_hash",
        "request_id",
        "services",
        "span",
        "standing_headers",
    )

    def __init__(self, services: Services) -> None:
        self.services = services
        self.request_id = ""
        self.address = ""
        self.method = ""
        #: Below /v1.
        self.path = ""
        self.headers: dict[bytes, bytes] = {}
        #: As received, names in lower case; of those that occur several times, `headers` has the last.
        self.all_headers: Sequence[tuple[bytes, bytes]] = ()
        self.parameters: dict[str, str] = {}
        self.standing_headers: list[tuple[bytes, bytes]] = []
        #: The request's unit of its rate window, if the rule takes it in its own commit.
        self.rate_unit: RateUnit | None = None
        self.idempotency_key: str | None = None
        self.key_hash: UUID | None = None
        self.request_hash: bytes | None = None
        #: The body as received.
        self.raw = b""
        self.body: Any = None
        self.query: Any = None
        #: None: the request is not traced.
        self.span: Span | None = None
        # Set before a handler runs, each if the operation's facts call for it.
        self.operation: Operation
        self.actor: Actor
        self.conn: Connection

    @property
    def trace(self) -> Context | None:
        """The trace context under which work that follows from this request continues."""
        return None if self.span is None else self.span.context

    @property
    def cursor_key(self) -> Key:
        """Authenticates the cursors of lists."""
        return self.services.cursor_key

    @property
    def device(self) -> str:
        """The client's User-Agent."""
        found = (value for name, value in self.all_headers if name == b"user-agent")
        return next(found, b"").decode("latin-1")

    async def run_on(self, conn: Connection) -> Any:
        """Run the operation on this connection, and return its response."""
        self.conn = conn
        return await self.operation.run(self)

    def id(self, name: str) -> UUID:
        """A path parameter, which must be a UUID in canonical form."""
        text = self.parameters[name]
        try:
            id = UUID(text)
            if str(id) == text.lower():
                return id
        except ValueError:
            pass
        raise Invalid((name, "format", f"`{name}` must be a UUID"))
