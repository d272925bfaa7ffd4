"""What an operation is: the facts that its line in `routes.py` declares, and the call that its handler gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import UnionType
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts.keyring import Keyring
from heliograph.accounts.requests import RateUnit
from heliograph.api.health import HealthChecks
from heliograph.api.limits import Limiter, Strangers
from heliograph.api.static import Page
from heliograph.base.actor import Actor
from heliograph.base.db import Connection, Pool
from heliograph.base.errors import Invalid, Refusal
from heliograph.base.settings import Settings
from heliograph.sms.accept import Acceptor
from heliograph.webhooks.endpoints import EndpointRules
from heliograph.whatsapp.accept import Acceptor as WhatsAppAcceptor

#: Is an Idempotency-Key needed?
REQUIRED, OPTIONAL, NONE = "required", "optional", "none"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the route table."""

    method: str
    #: Below /v1, with `{name}` for path parameters, which are UUIDs.
    path: str
    id: str
    summary: str
    #: None: no key is needed.
    scope: str | None = None
    #: True: it changes what live and test keys share, so a test key may not.
    live_only: bool = False
    #: None: not counted.
    bucket: str | None = None
    idempotency: str = NONE
    status: int = 200
    #: A struct, or a union of structs that tell themselves apart by a tag.
    request: type[msgspec.Struct] | UnionType | None = None
    #: Makes of the body what is meant by it, whichever way it is written, without asking a clock, a setting or the
    #: database; raises Invalid. Its result is what an idempotency key stands for, and the handler's body.
    canonical: Callable[[Any], Awaitable[Any]] | None = None
    #: Query parameters.
    query: type[msgspec.Struct] | None = None
    response: type[msgspec.Struct]
    #: What it may refuse beyond what `guard.py` refuses for every operation.
    refusals: tuple[type[Refusal], ...] = ()
    #: True: the rule behind it commits by itself, idempotency record included, and returns an Answer.
    own_commit: bool = False
    #: True: the answer holds a secret, so what is stored of it for a replay is sealed.
    has_secret: bool = False
    #: True: load balancers ask it, and as often as they like.
    is_probe: bool = False
    #: True: it asks by POST, because the question is long. It changes nothing.
    asks: bool = False
    handler: Callable[[Call], Awaitable[Any]]
    description: str = ""
    #: Body of an example request.
    example: dict[str, Any] | None = None

    @property
    def mutates(self) -> bool:
        return self.method not in ("GET", "HEAD") and not self.asks


class Services(msgspec.Struct, frozen=True):
    """What lives as long as the process and is handed to handlers."""

    pool: Pool
    settings: Settings
    keyring: Keyring
    limiter: Limiter
    strangers: Strangers
    health: HealthChecks
    acceptor: Acceptor
    whatsapp: WhatsAppAcceptor
    webhook_rules: EndpointRules
    #: Seals stored answers that hold a secret.
    answer_key: bytes
    #: Authenticates the cursors of lists.
    cursor_key: bytes
    #: The OpenAPI document.
    document: Page
    #: True once the process is going down.
    is_draining: Callable[[], bool] = lambda: False


class Call:
    """One request on its way through the guard, as its handler sees it."""

    __slots__ = (
        "actor",
        "address",
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
        "request_hash",
        "request_id",
        "services",
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
        self.parameters: dict[str, str] = {}
        self.standing_headers: list[tuple[bytes, bytes]] = []
        #: The request's unit of its rate window, where the rule takes it in its own commit.
        self.rate_unit: RateUnit | None = None
        self.idempotency_key: str | None = None
        self.key_hash: UUID | None = None
        self.request_hash: bytes | None = None
        self.body: Any = None
        self.query: Any = None
        # Set before a handler runs, each where the operation's facts call for it.
        self.operation: Operation
        self.actor: Actor
        self.conn: Connection

    @property
    def cursor_key(self) -> bytes:
        """Authenticates the cursors of lists."""
        return self.services.cursor_key

    def id(self, name: str) -> UUID:
        """A path parameter, which must be a UUID in its usual form."""
        text = self.parameters[name]
        try:
            id = UUID(text)
            if str(id) == text.lower():
                return id
        except ValueError:
            pass
        raise Invalid((name, "format", f"`{name}` must be a UUID"))
