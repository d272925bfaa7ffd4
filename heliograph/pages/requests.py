"""A request for a page: the person, the address, mode and language, and submitted fields."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from heliograph import requests
from heliograph.accounts import idempotency
from heliograph.accounts.installation import SettingsCache
from heliograph.audit.failures import Failures
from heliograph.base.actor import Actor, Principal
from heliograph.base.crypto import Key
from heliograph.base.database.pool import Connection, Pool, despite_deadlocks
from heliograph.base.errors import Invalid, NotFound, Refusal, Unavailable
from heliograph.base.ids import uuid7_text
from heliograph.base.process.settings import Settings
from heliograph.base.process.spans import Context, Span
from heliograph.base.standby.readers import Readers
from heliograph.http.turns import Places
from heliograph.pages import forgery
from heliograph.pages.languages import ReaderLocale
from heliograph.pages.realms import Realm
from heliograph.pages.uploads import Upload
from heliograph.people.noticing.guessing import Guesses
from heliograph.people.operators.sessions import Operator
from heliograph.people.roles import Role
from heliograph.people.session_keeping.book import SessionBook
from heliograph.people.sessions import SignedInUser
from heliograph.sms.accepting.accept import Acceptor as SmsAcceptor
from heliograph.whatsapp.accepting.accept import Acceptor as WhatsAppAcceptor

MODES = ("live", "test")
#: Maximum fields of a form or query.
MOST_FIELDS = 260
#: Hours for which a submitted form is remembered, and seconds that a duplicate waits for it.
REMEMBERED, TWIN_WAITS = 24, 2.0


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """What screens need from the process."""

    #: For writes; the same pool that the API uses.
    pool: Pool
    #: Limit how many of its connections are used for anything but sends.
    places: Places
    #: For reads: small, with short timeouts, so that pages never slow down the product.
    reads: Pool
    #: The standby used in place of it.
    readers: Readers
    settings: Settings
    #: Sessions of its realm.
    sessions: SessionBook[Any]
    #: Counts failed authentications, for the audit log.
    failures: Failures
    #: Notifies people about repeated failed attempts to sign in as them.
    guesses: Guesses
    #: The request log.
    log: requests.Log
    #: What requests are logged with.
    vocabulary: requests.Vocabulary
    #: Signs form tokens and the tickets of half-finished sign-ins.
    form_key: Key
    #: Seals responses that contain a secret, like the API's.
    answer_key: Key
    #: Authenticates cursors of lists.
    cursor_key: Key
    #: Seals secrets of authenticator apps.
    factor_key: Key
    #: Accept sends, in batches together with the API's.
    sms: SmsAcceptor
    whatsapp: WhatsAppAcceptor
    #: Settings of the installation made by operators.
    installation: SettingsCache
    #: The state of the service in a word ("ok", "slow", "waiting" for a worker, "down"), and for how many minutes the
    #: oldest work is overdue.
    status: Callable[[], Awaitable[tuple[str, int]]]
    #: Converts any error to a refusal, and logs unexpected ones.
    refusal_of: Callable[..., Refusal]
    #: Lock for files that are streamed while they are read: only one at a time uses a connection.
    turn: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class Request:
    """One request."""

    __slots__ = (
        "address",
        "agent",
        "began",
        "cookies",
        "form",
        "has_written",
        "headers",
        "host",
        "is_compact",
        "is_fragment",
        "is_refusal",
        "is_secure",
        "locale",
        "method",
        "mode",
        "notice",
        "page",
        "parameters",
        "path",
        "query",
        "realm",
        "request_id",
        "route",
        "scope",
        "services",
        "session",
        "span",
        "theme",
        "token",
        "undo",
        "upload",
    )

    services: Services
    method: str
    path: str
    #: The path of the page shown: for a form that is submitted to an address of its own, the nearest page above it.
    page: str
    request_id: str
    headers: dict[bytes, bytes]
    cookies: Mapping[str, str]
    query: dict[str, str]
    form: dict[str, str]
    #: True once something may have been changed that is not made again with the rest.
    has_written: bool
    parameters: Mapping[str, str]
    #: The path of its route, with `{name}` for parameters, if the route belongs to the organization; otherwise "".
    route: str
    #: The scope that this route requires in the mode of the address; None: none.
    scope: str | None
    #: When it arrived, ms since 1970: what its page shows is at least as recent.
    began: int
    #: The client's address and User-Agent.
    address: str
    agent: str
    host: str
    #: The browser uses https.
    is_secure: bool
    #: Only the part of the page that changes is wanted.
    is_fragment: bool
    mode: str
    theme: str
    is_compact: bool
    locale: ReaderLocale
    realm: Realm
    session: SignedInUser | Operator | None
    #: None: it is not traced.
    span: Span | None
    #: The session's token, as the browser sent it.
    token: str
    #: The file submitted with the form, on routes that accept one.
    upload: Upload
    notice: str
    #: The notice says why nothing was done.
    is_refusal: bool
    #: Where the form of the notice's "Undo" is submitted; "": there is none.
    undo: str

    @property
    def trace(self) -> Context | None:
        """The context in which work caused by a form continues its trace."""
        return None if self.span is None else self.span.context

    @property
    def person(self) -> SignedInUser:
        """The session, on pages of the dashboard that need one."""
        assert isinstance(self.session, SignedInUser)
        return self.session

    @property
    def operator(self) -> Operator:
        """The session, on pages of the console that need one."""
        assert isinstance(self.session, Operator)
        return self.session

    @property
    def user_id(self) -> UUID:
        """The person or operator, on pages that need a session."""
        assert self.session is not None
        return self.session.user_id

    @property
    def organization_id(self) -> UUID | None:
        """The organization that is shown; None: none, as in the console."""
        return self.session.organization_id if isinstance(self.session, SignedInUser) else None

    def form_token(self) -> str:
        """A fresh token for the forms of a page. It needs a session."""
        assert self.session is not None
        return forgery.token(self.services.form_key, self.session.id, self.organization_id)

    @property
    def role(self) -> Role | None:
        """The person's role in the current organization; None without one."""
        person = self.session
        return person.held if isinstance(person, SignedInUser) else None

    @property
    def actor(self) -> Actor:
        """The person as an actor, in the mode of the address. Raises NotFound without an organization."""
        return self.acting(self.mode)

    def acting(self, mode: str) -> Actor:
        """The person as an actor in a mode: "live" for what both modes share. Raises NotFound."""
        person, role = self.person, self.role
        if person.organization_id is None or role is None:
            raise NotFound("You belong to no organization.")
        countries = person.allowed_countries
        return Actor(
            organization_id=person.organization_id,
            key_id=None,
            mode=mode,
            scopes=role.scopes(mode),
            grants=role.grants if mode == "live" else frozenset(),
            state=person.state or "active",
            smart_encoding=person.smart_encoding,
            replace_accents=person.replace_accents,
            guarantee=person.guarantee,
            validity_seconds=person.validity_seconds,
            allowed_countries=None if countries is None else frozenset(countries),
            by=self.principal,
        )

    @property
    def principal(self) -> Principal:
        """The person or operator, for the audit log."""
        person = self.session
        assert person is not None
        return Principal(
            "operator" if isinstance(person, Operator) or person.reason is not None else "person",
            person.user_id,
            name=person.name,
            address=self.address,
            device=self.agent,
            request_id=self.request_id,
        )

    def may(self, scope: str | None = None, permission: str | None = None, *, mode: str | None = None) -> bool:
        """True if the person's role has a scope in `mode` (default: that of the address), and a page permission."""
        return self.session is not None and self.session.may(scope, permission, mode or self.mode)

    def text(self, english: str, **values: object) -> str:
        """A text in the reader's language."""
        return self.locale.text(english, **values)

    def id(self, name: str = "id") -> UUID:
        """A path parameter that is an id. Raises NotFound."""
        try:
            return UUID(self.parameters[name])
        except ValueError:
            raise NotFound from None

    def to(self, path: str, /, **query: object) -> str:
        """The address of a page in the same mode; None and empty values are omitted."""
        wanted = {name: str(value) for name, value in query.items() if value not in (None, "")}
        if self.mode == "test" and "mode" not in wanted:
            wanted["mode"] = "test"
        return path + ("?" + urllib.parse.urlencode(wanted) if wanted else "")

    def again(self, /, **changes: object) -> str:
        """The address of this page with some query values changed; None and empty values are omitted."""
        return self.to(self.page, **(self.query | changes))

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """A connection for reads: it may be to a standby."""
        async with self.services.readers.lend(self.services.reads) as conn:
            yield conn

    @contextlib.asynccontextmanager
    async def reading_in_turn(self) -> AsyncIterator[Connection]:
        """A connection for one piece of a file that is streamed while it is read. Files take turns, piece by piece:
        twenty downloads at once leave connections for all other pages, and none fails for lack of one."""
        async with self.services.turn, self.reading() as conn:
            yield conn

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """A connection for writes. What a deadlock rolls back is made again with the rest of the handler, unless an
        earlier connection for writes was returned after all went well."""
        async with self.services.places.one(), self.services.pool.acquire() as conn:
            yield conn
            self.has_written = True

    async def once(
        self, run: Callable[[Connection], Awaitable[Any]], *, has_secret: bool = False, actor: Actor | None = None
    ) -> Any:
        """Run `run` in a transaction, once for this form: a double click, a reload or Back gets the same result again.
        `actor`: in whose organization the result is stored; None: in that of the person.

        `run` returns a JSON value. Raises what it raises, IdempotencyConflict for a form that was submitted before with
        other values, and IdempotencyInProgress.
        """
        key = self.form.get("_once", "")
        if not key or len(key) > idempotency.MAX_LENGTH:
            raise Invalid(("_once", "required", "This form does not come from this site. Reload the page."))
        sent = {name: value for name, value in self.form.items() if not name.startswith("_")}
        assert self.session is not None
        user_id = self.session.user_id

        async def attempt() -> bytes:
            async with self.writing() as conn:

                async def work() -> tuple[int, bytes]:
                    return 200, msgspec.json.encode(await run(conn))

                outcome = await idempotency.once(
                    conn,
                    actor or self.actor,
                    key=idempotency.key_hash(self.mode, "PAGE", self.path, f"{user_id} {key}"),
                    request=idempotency.request_hash([user_id, sent]),
                    hours=REMEMBERED,
                    wait_seconds=TWIN_WAITS,
                    run=work,
                    seal_key=self.services.answer_key if has_secret else None,
                )
                return outcome.body

        try:
            return msgspec.json.decode(await despite_deadlocks(attempt))
        except asyncpg.DeadlockDetectedError as error:
            raise Unavailable from error


def new_once() -> str:
    """A new unique mark for a form, by which duplicates are recognized."""
    return uuid7_text()


def pairs(raw: bytes, *, most: int = MOST_FIELDS) -> dict[str, str]:
    """The fields of a query string or form (application/x-www-form-urlencoded); repeated ones are joined by commas.

    Browsers end lines with CR LF; a handset needs only LF, and each CR would count as a character. Raises Invalid.
    """
    try:
        listed = urllib.parse.parse_qsl(
            raw.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=most
        )
    except (ValueError, UnicodeError):
        raise Invalid(("form", "format", "What was sent could not be read.")) from None
    found: dict[str, str] = {}
    for name, value in listed:
        if "\0" in value or "\0" in name:
            raise Invalid((name.replace("\0", ""), "nul", "A text must not contain NUL."))
        value = value.replace("\r\n", "\n").replace("\r", "\n")
        found[name] = f"{found[name]},{value}" if name in found else value
    return found
