"""Webhook endpoints: where an organization wants its events, and the secret that signs them. `changing.py` changes,
pauses and disables them.

The rule nobody may break: a secret is shown once, by `create` or `rotate_secret`; what is stored is sealed, and opens
only in the row of its own endpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import Actor
from heliograph.base.crypto import Key, Unsealable, derive_key, seal, unseal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems, Refusal
from heliograph.base.ids import uuid7
from heliograph.base.network.addresses import Network, check_url, parse_networks
from heliograph.base.process.settings import Settings
from heliograph.webhooks.delivery import signing
from heliograph.webhooks.recording.events import KINDS

MAX_ACTIVE = 10
#: The URL of every catcher. Nothing is ever posted to it.
CATCHER = "heliograph:catcher"
#: Disabled endpoints are listed for this long, and at most this many of them.
LISTED, MOST_LISTED = timedelta(days=90), 500
#: A replaced secret keeps signing alongside the new one for this long.
OVERLAP = timedelta(hours=24)
#: How many replaced secrets are kept, whatever time they have left: each adds 48 bytes to the header of every attempt.
MAX_OLD = 4

#: Why an endpoint was disabled: by the organization, by the receiver's 410, after failing for days, after a catcher's
#: hour.
REQUESTED, GONE, FAILING, ENDED = "requested", "gone", "failing", "ended"
#: After this many failures in a row, an endpoint deserves attention.
WORTH_A_LOOK = 3


class TooManyEndpoints(Refusal):
    """This organization already has ten active webhook endpoints, including those of test keys. Disable one first."""

    code, status = "webhook_endpoint_limit_reached", 409


class EndpointDisabled(Refusal):
    """This webhook endpoint is disabled, so nothing can be sent to it."""

    code, status = "webhook_endpoint_disabled", 409


class EndpointPaused(Refusal):
    """This webhook endpoint is paused, so nothing is sent to it. Resume it first."""

    code, status = "webhook_endpoint_paused", 409


class Endpoint(msgspec.Struct, frozen=True):
    """One row of `webhook_endpoints`, without its secret. `status` is active, paused or disabled."""

    id: UUID
    url: str
    subscribed_events: list[str]
    #: The mode of the keys that see it, and of the events sent to it.
    mode: str
    status: str
    created_at: datetime
    disabled_at: datetime | None
    disabled_reason: str | None
    last_success_at: datetime | None
    consecutive_failures: int
    #: Its purpose, in the organization's own words.
    description: str
    #: When it ends, for a catcher (`catcher.py`).
    catches_until: datetime | None = None
    paused_at: datetime | None = None
    #: How many deliveries were dropped from the queue when it was paused or disabled.
    dropped: int = 0
    #: Undelivered events recorded since then are recovered when it comes back; None while it is active.
    waits_from: datetime | None = None
    #: The previous secret signs as well until this time; None if it no longer does.
    old_secret_until: datetime | None = None

    @property
    def is_failing(self) -> bool:
        """Whether it is active and has failed at least WORTH_A_LOOK times in a row."""
        return self.status == "active" and self.consecutive_failures >= WORTH_A_LOOK


class EndpointRules(msgspec.Struct, frozen=True):
    """The settings that apply to endpoints. Made once, by `rules`."""

    allow_http: bool
    networks: tuple[Network, ...]
    seal_key: Key


def rules(settings: Settings) -> EndpointRules:
    """The rules from these settings. Raises ValueError when `webhook_allow_networks` is malformed."""
    return EndpointRules(
        allow_http=settings.webhook_allow_http,
        networks=parse_networks(settings.webhook_allow_networks),
        seal_key=seal_key(settings),
    )


def seal_key(settings: Settings) -> Key:
    """The key that seals secrets."""
    return derive_key(settings.secret_keys, "webhooks")


def problem_of(url: str, rules: EndpointRules) -> str | None:
    """Why a URL is not allowed as a destination, in a few words; None if it is. Does no network I/O."""
    return check_url(url, allow_http=rules.allow_http, allowed_networks=rules.networks)


def check(url: str, rules: EndpointRules) -> None:
    """Raises Invalid for a URL that is not allowed as a destination."""
    if (problem := problem_of(url, rules)) is not None:
        raise Invalid(("url", "format", f"`url` is refused: {problem}"))


#: What settings may allow at most.
_ANYWHERE = parse_networks("0.0.0.0/0,::/0")


def check_form(url: str) -> None:
    """Raises Invalid for a URL that is allowed as a destination by no settings."""
    if (problem := check_url(url, allow_http=True, allowed_networks=_ANYWHERE)) is not None:
        raise Invalid(("url", "format", f"`url` is refused: {problem}"))


COLUMNS = (
    "id, url, subscribed_events, mode, status, created_at, disabled_at, disabled_reason, last_success_at,"
    " consecutive_failures, description, catches_until, paused_at, dropped, waits_from,"
    " CASE WHEN old_secrets_until[1] > now() THEN old_secrets_until[1] END AS old_secret_until"
)

# The row lock comes first: two requests must not both become the tenth endpoint.
LOCK_ORGANIZATION = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"

# Catchers do not count against the limit; paused endpoints do.
COUNT_ACTIVE = """
SELECT count(*) FROM webhook_endpoints WHERE organization_id = $1 AND status <> 'disabled' AND catches_until IS NULL
"""

INSERT = f"""
INSERT INTO webhook_endpoints (organization_id, id, url, subscribed_events, secret, created_at, mode, description)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING {COLUMNS}
"""


async def create(
    conn: Connection,
    actor: Actor,
    *,
    url: str,
    subscribed_events: Sequence[str],
    rules: EndpointRules,
    description: str = "",
) -> tuple[Endpoint, str]:
    """Register an endpoint for some of `events.KINDS`. This is the only time its secret is returned.

    Raises Invalid (the URL is not allowed, a kind is unknown or none is given) and TooManyEndpoints. The addresses of
    a host name are not checked here, but each time a connection is made.
    """
    wrong = Problems()
    with wrong.gathering():
        check(url, rules)
    with wrong.gathering():
        kinds = checked_kinds(subscribed_events)
    with wrong.gathering():
        description = checked_description(description)
    wrong.report()
    id, secret = uuid7(), signing.new_secret()
    sealed = seal_secret(rules, organization_id=actor.organization_id, id=id, secret=secret)
    async with conn.transaction():
        if await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id) is None:
            raise NotFound(resource="organization", id=str(actor.organization_id))
        if await conn.fetchval(COUNT_ACTIVE, actor.organization_id) >= MAX_ACTIVE:
            raise TooManyEndpoints(limit=MAX_ACTIVE)
        row = await conn.fetchrow(
            INSERT, actor.organization_id, id, url, kinds, sealed, clock.now(), actor.mode, description
        )
        assert row is not None
        after = {"url": url, "subscribed_events": kinds, "mode": actor.mode}
        await audit.record(conn, actor, "webhook.created", object_id=id, after=after)
    return Endpoint(**row), secret


_USED = "organization_id = $1 AND status <> 'disabled' AND mode = ANY ($2)"
_DISABLED = (
    "organization_id = $1 AND status = 'disabled' AND disabled_at > now() - $3::interval AND mode = ANY ($2)"
    " AND catches_until IS NULL"
)
USED = f"SELECT {COLUMNS} FROM webhook_endpoints WHERE {_USED} ORDER BY id DESC"
# From the end of an index: an organization may have disabled any number of endpoints.
DISABLED = f"""
SELECT {COLUMNS} FROM webhook_endpoints
 WHERE {_DISABLED}
   AND (disabled_at, id)
       < (coalesce((SELECT disabled_at FROM webhook_endpoints WHERE organization_id = $1 AND id = $5), 'infinity'),
          coalesce($5::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
 ORDER BY disabled_at DESC, id DESC LIMIT $4
"""
# In one statement, so that an endpoint disabled meanwhile is listed once. Each half uses an index of its own.
LIST = f"""
SELECT * FROM (
    (SELECT {COLUMNS} FROM webhook_endpoints WHERE {_USED})
    UNION ALL
    (SELECT {COLUMNS} FROM webhook_endpoints WHERE {_DISABLED} ORDER BY disabled_at DESC LIMIT $4)
) listed ORDER BY id DESC
"""


async def list_all(conn: Connection, actor: Actor) -> list[Endpoint]:
    """The actor's endpoints, newest first: those in use, and up to MOST_LISTED of those disabled within 90 days."""
    return [Endpoint(**row) for row in await conn.fetch(LIST, actor.organization_id, actor.modes, LISTED, MOST_LISTED)]


async def used(conn: Connection, actor: Actor) -> list[Endpoint]:
    """The actor's endpoints that are in use, newest first."""
    return [Endpoint(**row) for row in await conn.fetch(USED, actor.organization_id, actor.modes)]


async def disabled(conn: Connection, actor: Actor, *, after: UUID | None = None, limit: int) -> list[Endpoint]:
    """The actor's endpoints that were disabled within 90 days, most recently disabled first; `after`: only those listed
    after this one."""
    rows = await conn.fetch(DISABLED, actor.organization_id, actor.modes, LISTED, limit, after)
    return [Endpoint(**row) for row in rows]


FORGET_CAUGHT = "DELETE FROM webhook_caught WHERE organization_id = $1 AND endpoint_id = $2"

ROTATE = f"""
UPDATE webhook_endpoints e
   SET secret = $3,
       (old_secrets, old_secrets_until) = (
           SELECT (ARRAY[e.secret] || coalesce(array_agg(old.sealed ORDER BY old.n), '{{}}'))[:$5],
                  (ARRAY[now() + $4] || coalesce(array_agg(old.until ORDER BY old.n), '{{}}'))[:$5]
             FROM unnest(e.old_secrets, e.old_secrets_until) WITH ORDINALITY AS old (sealed, until, n)
            WHERE old.until > now())
 WHERE organization_id = $1 AND id = $2 AND status <> 'disabled'
RETURNING {COLUMNS}
"""


async def rotate_secret(
    conn: Connection, actor: Actor, *, id: UUID, rules: EndpointRules
) -> tuple[Endpoint, str, datetime]:
    """Replace the secret: (endpoint, new secret, time until which the previous one signs too).

    This is the only time the new one is returned. Raises NotFound and EndpointDisabled; a paused endpoint is allowed.
    """
    _in_use(await get(conn, actor, id=id))
    secret = signing.new_secret()
    sealed = seal_secret(rules, organization_id=actor.organization_id, id=id, secret=secret)
    async with conn.transaction():
        row = await conn.fetchrow(ROTATE, actor.organization_id, id, sealed, OVERLAP, MAX_OLD)
        if row is None:  # it has just been disabled
            raise EndpointDisabled(id=str(id))
        endpoint = Endpoint(**row)
        assert endpoint.old_secret_until is not None
        after = {"signing_secret": secret, "previous_secret_expires_at": endpoint.old_secret_until}
        await audit.record(conn, actor, "webhook.secret_rotated", object_id=id, after=after)
    return endpoint, secret, endpoint.old_secret_until


GET = f"SELECT {COLUMNS} FROM webhook_endpoints WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3)"


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Endpoint:
    """One of the actor's endpoints, disabled or not. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, id, actor.modes)
    if row is None:
        raise NotFound("There is no such webhook endpoint.", resource="webhook_endpoint", id=str(id))
    return Endpoint(**row)


URLS = "SELECT id, url FROM webhook_endpoints WHERE organization_id = $1 AND id = ANY ($2::uuid[])"


async def urls(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, str]:
    """The URLs of those among these endpoints that the organization has, or had, by id. A catcher's is CATCHER."""
    rows = await conn.fetch(URLS, actor.organization_id, list(ids)) if ids else []
    return {row["id"]: row["url"] for row in rows}


async def active(conn: Connection, actor: Actor, *, id: UUID) -> Endpoint:
    """An endpoint that is in use and not paused. Raises NotFound, EndpointDisabled and EndpointPaused."""
    endpoint = _in_use(await get(conn, actor, id=id))
    if endpoint.status == "paused":
        raise EndpointPaused(id=str(id))
    return endpoint


def _in_use(endpoint: Endpoint) -> Endpoint:
    if endpoint.status == "disabled":
        raise EndpointDisabled(id=str(endpoint.id), reason=endpoint.disabled_reason)
    return endpoint


SECRETS = """
SELECT ARRAY[secret] || ARRAY(SELECT old.sealed FROM unnest(old_secrets, old_secrets_until) AS old (sealed, until)
                               WHERE old.until > now()) AS sealed
  FROM webhook_endpoints WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3)
"""


async def secrets(conn: Connection, actor: Actor, *, id: UUID, rules: EndpointRules) -> list[str]:
    """The secrets that sign now, newest first, for checking signatures; never shown to anybody. Empty if the newest
    one was sealed with another secret key. Raises NotFound."""
    sealed = await conn.fetchval(SECRETS, actor.organization_id, id, actor.modes)
    if sealed is None:
        raise NotFound("There is no such webhook endpoint.", resource="webhook_endpoint", id=str(id))
    try:
        return open_secrets(rules.seal_key, organization_id=actor.organization_id, id=id, sealed=sealed)
    except Unsealable:
        return []


OWNER = "SELECT organization_id FROM webhook_endpoints WHERE id = $1"


async def owner(conn: Connection, *, id: UUID) -> UUID:
    """The organization that an endpoint belongs to, for operators. Raises NotFound."""
    organization_id: UUID | None = await conn.fetchval(OWNER, id)
    if organization_id is None:
        raise NotFound("There is no such webhook endpoint.", id=str(id))
    return organization_id


def seal_secret(rules: EndpointRules, *, organization_id: UUID, id: UUID, secret: str) -> bytes:
    """Seal an endpoint's secret for its row."""
    return seal(rules.seal_key, secret.encode(), context(organization_id, id))


def open_secrets(seal_key: Key, *, organization_id: UUID, id: UUID, sealed: Sequence[bytes]) -> list[str]:
    """An endpoint's secrets for signing. Of those that were replaced, one that does not open, since it was sealed with
    a secret key that is no longer configured, is left out. Raises crypto.Unsealable if the newest one does not."""
    newest, *old = sealed
    opened = [open_secret(seal_key, organization_id=organization_id, id=id, sealed=newest)]
    for one in old:
        with contextlib.suppress(Unsealable):
            opened.append(open_secret(seal_key, organization_id=organization_id, id=id, sealed=one))
    return opened


def open_secret(seal_key: Key, *, organization_id: UUID, id: UUID, sealed: bytes) -> str:
    """Open an endpoint's secret for signing. Raises crypto.Unsealable."""
    return unseal(seal_key, sealed, context(organization_id, id)).decode()


def context(organization_id: UUID, id: UUID) -> str:
    """The sealing context of an endpoint's secrets."""
    return f"webhook_endpoints/{organization_id}/{id}"


def checked_kinds(asked: Sequence[str]) -> list[str]:
    """The kinds to subscribe to, deduplicated. Raises Invalid if one is unknown or none is given."""
    kinds = list(dict.fromkeys(asked))
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        listed = ", ".join(KINDS)
        raise Invalid(("subscribed_events", "enum", f"`subscribed_events` may list only {listed}"))
    if not kinds:
        raise Invalid(("subscribed_events", "length", "`subscribed_events` must list one or more event kinds"))
    return kinds


def checked_kind(kind: str) -> str:
    """The kind, checked. Raises Invalid if it is unknown."""
    if kind not in KINDS:
        raise Invalid(("kind", "enum", f"`kind` must be one of {', '.join(KINDS)}"))
    return kind


def checked_description(text: str) -> str:
    """A trimmed description, which may be empty, as one is that shows nothing. Raises Invalid."""
    text = text.strip()
    if len(text) > 200 or not naming.is_plain(text):
        raise Invalid(("description", "length", "`description` must have at most 200 characters on one line"))
    return text if naming.is_readable(text) else ""
