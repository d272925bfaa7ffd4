"""What an operation is: what its line in `routes.py` and its handler declare, and the call passed to handlers.

Everything about an operation is said once. Method, path, scope, bucket and idempotency stand in its line of the table;
the rest stands where the handler is: summary and description in its docstring, shapes in its annotations, refusals in
`@operation`. Its operationId is the handler's name in camelCase.
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
from heliograph.api.door.limits import Limiter, Strangers
from heliograph.audit.failures import Failures
from heliograph.base.actor import Actor
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.process.settings import Settings
from heliograph.base.process.spans import Context, Span
from heliograph.base.standby.readers import Readers
from heliograph.http.static import Page
from heliograph.sms.accepting.accept import Acceptor
from heliograph.webhooks.endpoints import EndpointRules
from heliograph.whatsapp.accepting.accept import Acceptor as WhatsAppAcceptor

#: Is an Idempotency-Key needed? NONE: the operation changes nothing.
REQUIRED, OPTIONAL, NONE = "required", "optional", "none"

#: A call, then what the handler's parameters ask for.
Handler = Callable[..., Awaitable[Any]]
AnyHandler = TypeVar("AnyHandler", bound=Handler)


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What `@operation` declares about a handler."""

    #: Of an answer that is no refusal.
    status: int = 200
    #: Makes of the body what is meant by it, whichever way it is written, without asking a clock, a setting or the
    #: database; raises Invalid. Its result is what an idempotency key stands for, and the handler's body.
    canonical: Callable[[Any], Awaitable[Any]] | None = None
    #: What it may refuse beyond what `guard.py` refuses for every operation.
    refusals: tuple[type[Refusal], ...] = ()
    #: True: it changes what live and test keys share, so a test key may not.
    live_only: bool = False
    #: True: the answer holds a secret, so what is stored of it for a replay is sealed.
    has_secret: bool = False
    #: True: load balancers ask it, and as often as they like.
    is_probe: bool = False
    #: True: it asks for transactions that have not ended, of which a standby knows nothing.
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
    #: None: not counted.
    bucket: str | None
    idempotency: str
    #: A struct, or a union of structs that tell themselves apart by a tag.
    request: type[msgspec.Struct] | UnionType | None
    #: Query parameters.
    query: type[msgspec.Struct] | None
    response: type[msgspec.Struct]
    #: True: the rule behind it commits by itself, idempotency record included, and returns an Answer.
    own_commit: bool
    run: Callable[[Call], Awaitable[Any]]

    @property
    def mutates(self) -> bool:
        return self.idempotency != NONE

    @property
    def is_list(self) -> bool:
        """Whether it is a list or a report, which a standby may answer. What is read by its id costs the primary less
        than the question how far the standby is."""
        return self.method == "GET" and self.query is not None and not self.on_primary


def operation(
    *,
    status: int = 200,
    canonical: Callable[[Any], Awaitable[Any]] | None = None,
    refusals: tuple[type[Refusal], ...] = (),
    live_only: bool = False,
    has_secret: bool = False,
    is_probe: bool = False,
    on_primary: bool = False,
) -> Callable[[AnyHandler], AnyHandler]:
    """Declare what a handler's docstring and annotations do not say; see Facts."""
    facts = Facts(
        status=status,
        canonical=canonical,
        refusals=refusals,
        live_only=live_only,
        has_secret=has_secret,
        is_probe=is_probe,
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
    It returns its answer's struct, or `Annotated[Answer, Struct]` where the bytes are made elsewhere.
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
    """What lives as long as the process and is passed to handlers."""

    pool: Pool
    readers: Readers
    settings: Settings
    keyring: Keyring
    limiter: Limiter
    strangers: Strangers
    #: What is remembered of requests.
    log: requests.Log
    #: Failed authentications on their way into the audit log.
    failures: Failures
    health: HealthChecks
    acceptor: Acceptor
    whatsapp: WhatsAppAcceptor
    webhook_rules: EndpointRules
    #: Seals stored answers that hold a secret.
    answer_key: Key
    #: Authenticates the cursors of lists.
    cursor_key: Key
    #: The OpenAPI document.
    document: Page
    #: True once the process is going down.
    is_draining: Callable[[], bool] = lambda: False


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
        #: As they came, names in lower case; those that operations read are in `headers`.
        self.all_headers: Sequence[tuple[bytes, bytes]] = ()
        self.parameters: dict[str, str] = {}
        self.standing_headers: list[tuple[bytes, bytes]] = []
        #: The request's unit of its rate window, where the rule takes it in its own commit.
        self.rate_unit: RateUnit | None = None
        self.idempotency_key: str | None = None
        self.key_hash: UUID | None = None
        self.request_hash: bytes | None = None
        #: The body as it came.
        self.raw = b""
        self.body: Any = None
        self.query: Any = None
        #: None: it is not traced.
        self.span: Span | None = None
        # Set before a handler runs, each where the operation's facts call for it.
        self.operation: Operation
        self.actor: Actor
        self.conn: Connection

    @property
    def trace(self) -> Context | None:
        """Where what follows on this request continues its trace."""
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
        """Its operation's answer, by this connection."""
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
