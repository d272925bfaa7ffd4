"""API keys: their format, what they allow, and whom they belong to.

A key is `hg_live_` or `hg_test_`, 30 random base62 characters and 6 of CRC32 over all before them, so that a typing
error or a guess is refused without asking the database. The rule nobody may break: a secret is shown once, by `issue`;
what is stored is its SHA-256.

It has over 400 lines because format, rules and look-ups of keys change together.
"""

from __future__ import annotations

import ipaddress
import secrets
import zlib
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import Actor, RateLimits
from heliograph.base.crypto import hash_secret
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7

#: Every scope, and what it allows.
SCOPES = {
    "sms:send": "Send SMS",
    "sms:read": "Read SMS",
    "whatsapp:send": "Send WhatsApp messages",
    "whatsapp:read": "Read WhatsApp messages, templates, conversations, numbers, campaigns and the wallet",
    "account:read": "Read the account and its usage",
    "account:write": "Change the organization's settings",
    "contacts:read": "Read contacts",
    "contacts:write": "Create and delete contacts",
    "campaigns:read": "Read campaigns",
    "campaigns:write": "Create campaigns",
    "sender_ids:read": "Read sender IDs",
    "sender_ids:write": "Request sender IDs",
    "api_keys:read": "Read API keys",
    "api_keys:write": "Create and revoke API keys",
    "webhooks:read": "Read webhook endpoints",
    "webhooks:write": "Create and disable webhook endpoints",
}

#: A profile is a named set of scopes, resolved when a key is issued.
PROFILES: dict[str, frozenset[str]] = {
    "sms_only": frozenset({"sms:send"}),
    "sms": frozenset({"sms:send", "sms:read", "sender_ids:read", "account:read", "webhooks:read", "webhooks:write"}),
    "whatsapp": frozenset({"whatsapp:send", "whatsapp:read", "account:read", "webhooks:read", "webhooks:write"}),
    "read_only": frozenset(scope for scope in SCOPES if scope.endswith(":read")),
    "full_access": frozenset(SCOPES),
}

MODES = ("live", "test")
MAX_ACTIVE = 5
#: Of an organization that has none of its own.
NO_LIMITS = RateLimits()
#: For how long revoked and expired keys are listed, and how many of them at most.
LISTED, MOST_LISTED = timedelta(days=90), 500

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PREFIX_LENGTH = len("hg_live_")
_RANDOM = 30
_CHECK = 6
_LENGTH = _PREFIX_LENGTH + _RANDOM + _CHECK


class Unauthorized(Refusal):
    """The API key is missing, revoked, suspended or invalid."""

    code, status = "unauthorized", 401

    def __init__(self) -> None:
        super().__init__()
        self.headers = {"www-authenticate": "Bearer"}


class ScopeRequired(Refusal):
    """This API key lacks the scope that the operation requires."""

    code, status = "api_key_scope_required", 403


class LiveKeyRequired(Refusal):
    """This requires a live key: a test key can create and change test resources only."""

    code, status = "live_key_required", 403


class TooManyActiveKeys(Refusal):
    """This organization already has five active API keys, counting live and test keys. Revoke one first."""

    code, status = "api_key_active_limit_reached", 409


class ApiKey(msgspec.Struct, frozen=True):
    """One row of `api_keys`, without its secret's hash. `status` is as of now: a key past `expires_at` is expired."""

    id: UUID
    name: str
    prefix: str
    last4: str
    profile: str | None
    scopes: list[str]
    mode: str
    status: str
    allowed_ips: list[str]
    last_used_at: datetime | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    #: The client's address when it was used last.
    last_used_from: str | None = None
    #: The key that takes its place, once it was rotated.
    replaced_by: UUID | None = None
    #: The operation that it was used for last: an operationId.
    last_used_for: str | None = None


class Known(msgspec.Struct, frozen=True):
    """The owner of an active key, and the networks it may be used from (empty: any)."""

    actor: Actor
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


_STATUS = "CASE WHEN status = 'active' AND expires_at <= now() THEN 'expired' ELSE status END AS status"
_COLUMNS = (
    f"id, name, prefix, last4, profile, scopes, mode, {_STATUS}, allowed_ips, last_used_at, created_at, expires_at,"
    " revoked_at, last_used_from, replaced_by, last_used_for"
)

# The row lock comes first: two requests must not both become the fifth key.
LOCK_ORGANIZATION = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"

# Expired keys are marked as such, so that few keys are current.
NOTE_EXPIRED = """
UPDATE api_keys SET status = 'expired' WHERE organization_id = $1 AND status = 'active' AND expires_at <= now()
"""
COUNT_ACTIVE = """
SELECT mode, count(*) FROM api_keys
 WHERE organization_id = $1 AND status = 'active' AND (expires_at IS NULL OR expires_at > now()) GROUP BY mode
"""

INSERT = f"""
INSERT INTO api_keys (id, organization_id, name, prefix, last4, secret_hash, profile, scopes, mode, allowed_ips,
                      created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
RETURNING {_COLUMNS}
"""


async def issue(
    conn: Connection,
    actor: Actor,
    *,
    name: str,
    profile: str | None = None,
    scopes: Sequence[str] | None = None,
    mode: str | None = None,
    allowed_ips: Sequence[str] = (),
    expires_at: datetime | None = None,
    profile_name: str | None = None,
) -> tuple[ApiKey, str]:
    """Create a key with a profile's scopes or with the listed ones. Its secret is returned here and nowhere else.

    Keys and people can grant only what they hold themselves, or were given to grant, and a test key can create only
    test keys; an operator can grant anything. `mode`: None means the actor's. `allowed_ips`: addresses or CIDR
    networks. `expires_at`: in the future, with a time zone. `profile_name`: what listed scopes are shown as.
    """
    name = checked_name(name)
    mode = actor.mode if mode is None else mode
    if mode not in MODES:
        raise Invalid(("mode", "enum", "`mode` must be live or test"))
    now = clock.now()
    if expires_at is not None and expires_at <= now:
        raise Invalid(("expires_at", "range", "`expires_at` must be in the future"))
    allowed = networks(allowed_ips)
    granted = _granted(actor, profile, scopes, mode)
    secret = new_secret(mode)
    async with conn.transaction():
        if await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id) is None:
            raise NotFound(resource="organization", id=str(actor.organization_id))
        await _demand_place(conn, actor)
        row = await conn.fetchrow(
            INSERT,
            uuid7(),
            actor.organization_id,
            name,
            secret[:_PREFIX_LENGTH],
            secret[-4:],
            hash_secret(secret),
            profile or profile_name,
            sorted(granted),
            mode,
            allowed,
            now,
            expires_at,
        )
        assert row is not None
        key = ApiKey(**row)
        await audit.record(conn, actor, "api_key.created", object_id=key.id, name=key.name, after=_told(key))
    return key, secret


#: How long a key may go on working beside the one that takes its place.
LONGEST_OVERLAP = timedelta(days=30)

STANDING = f"""
SELECT {_COLUMNS} FROM api_keys
 WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3) AND status = 'active'
   AND (expires_at IS NULL OR expires_at > now())
"""
REPLACE = f"""
UPDATE api_keys SET expires_at = least(expires_at, now() + $3), replaced_by = $4
 WHERE organization_id = $1 AND id = $2
RETURNING {_COLUMNS}
"""


class KeyReplaced(Refusal):
    """This API key has been rotated already. Rotate the one that takes its place."""

    code, status = "api_key_replaced", 409


class KeyNotActive(Refusal):
    """This API key is not active, so it cannot be rotated. Create a new one."""

    code, status = "api_key_not_active", 409


async def rotate(conn: Connection, actor: Actor, *, id: UUID, overlap: timedelta) -> tuple[ApiKey, str, ApiKey]:
    """Make a key with the same name and rights and let the old one end after `overlap`, at most LONGEST_OVERLAP: (new
    key, its secret, old key). The secret is returned here and nowhere else.

    Both are active meanwhile and count toward the five. Raises NotFound, KeyNotActive, KeyReplaced, TooManyActiveKeys,
    Invalid, and what `issue` raises for who does not hold the key's rights.
    """
    if not timedelta(0) < overlap <= LONGEST_OVERLAP:
        raise Invalid(("overlap", "range", f"The old key may work for up to {LONGEST_OVERLAP.days} more days"))
    async with conn.transaction():
        await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id)
        row = await conn.fetchrow(STANDING, actor.organization_id, id, actor.modes)
        if row is None:
            if await conn.fetchval(STATUS, actor.organization_id, id, actor.modes) is None:
                raise NotFound(resource="api_key", id=str(id))
            raise KeyNotActive(id=str(id))
        old = ApiKey(**row)
        if old.replaced_by is not None:
            raise KeyReplaced(id=str(id), replacedBy=str(old.replaced_by))
        # By its scopes, not its profile: a profile may have grown since.
        made, secret = await issue(
            conn,
            actor,
            name=old.name,
            scopes=old.scopes,
            mode=old.mode,
            allowed_ips=old.allowed_ips,
            expires_at=old.expires_at,
            profile_name=old.profile,
        )
        row = await conn.fetchrow(REPLACE, actor.organization_id, id, overlap, made.id)
        assert row is not None
        ending = ApiKey(**row)
        await audit.record(
            conn,
            actor,
            "api_key.rotated",
            object_id=id,
            name=old.name,
            before={"expires_at": old.expires_at},
            after={"expires_at": ending.expires_at, "replaced_by": made.id},
        )
    return made, secret, ending


RENAME = f"""
UPDATE api_keys SET name = $4 WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3) RETURNING {_COLUMNS}
"""
NAME = "SELECT name FROM api_keys WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3) FOR NO KEY UPDATE"


async def rename(conn: Connection, actor: Actor, *, id: UUID, name: str) -> ApiKey:
    """Give a key another name. Raises NotFound and Invalid."""
    name = checked_name(name)
    async with conn.transaction():
        before = await conn.fetchval(NAME, actor.organization_id, id, actor.modes)
        if before is None:
            raise NotFound(resource="api_key", id=str(id))
        row = await conn.fetchrow(RENAME, actor.organization_id, id, actor.modes, name)
        assert row is not None
        if before != name:
            await audit.record(
                conn,
                actor,
                "api_key.renamed",
                object_id=id,
                name=name,
                before={"name": before},
                after={"name": name},
            )
    return ApiKey(**row)


BY_SECRET = f"SELECT {_COLUMNS} FROM api_keys WHERE organization_id = $1 AND secret_hash = $2"


async def by_secret(conn: Connection, actor: Actor, *, secret: str) -> ApiKey | None:
    """The organization's key with this secret, of either mode and whatever its status; None: it has no such one."""
    secret = secret.strip()
    if not is_well_formed(secret):
        return None
    row = await conn.fetchrow(BY_SECRET, actor.organization_id, hash_secret(secret))
    return None if row is None else ApiKey(**row)


REVOKE = f"""
UPDATE api_keys SET status = 'revoked', revoked_at = coalesce(revoked_at, $3)
 WHERE organization_id = $1 AND id = $2 AND mode = ANY ($4)
RETURNING {_COLUMNS}
"""


async def revoke(conn: Connection, actor: Actor, *, id: UUID) -> ApiKey:
    """Revoke a key permanently; idempotent. Takes effect on every process within one second."""
    async with conn.transaction():
        await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id)
        before = await conn.fetchval(STATUS, actor.organization_id, id, actor.modes)
        if before is None:
            raise NotFound(resource="api_key", id=str(id))
        row = await conn.fetchrow(REVOKE, actor.organization_id, id, clock.now(), actor.modes)
        assert row is not None
        if before != "revoked":
            await _record_status(conn, actor, "api_key.revoked", row, before)
    return ApiKey(**row)


STATUS = "SELECT status FROM api_keys WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3)"

# The organization is locked, so that nobody else can change the number of its active keys. A revoked key stays revoked.
SET_STATUS = f"""
UPDATE api_keys SET status = $3 WHERE organization_id = $1 AND id = $2 AND status IN ('active', 'suspended')
RETURNING {_COLUMNS}
"""


async def suspend(conn: Connection, actor: Actor, *, id: UUID) -> ApiKey:
    """Refuse a key until it is resumed; until then it does not count toward the five. Takes effect everywhere within a
    second.

    Raises NotFound, and Invalid for a key that is revoked.
    """
    return await _set_status(conn, actor, id, "suspended")


async def resume(conn: Connection, actor: Actor, *, id: UUID) -> ApiKey:
    """Make a suspended key active again. Raises NotFound, TooManyActiveKeys, and Invalid for one that is revoked."""
    return await _set_status(conn, actor, id, "active")


async def _set_status(conn: Connection, actor: Actor, id: UUID, status: str) -> ApiKey:
    async with conn.transaction():
        await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id)
        known = await conn.fetchval(STATUS, actor.organization_id, id, actor.modes)
        if known is None:
            raise NotFound(resource="api_key", id=str(id))
        if (known, status) == ("suspended", "active"):
            await _demand_place(conn, actor)
        row = await conn.fetchrow(SET_STATUS, actor.organization_id, id, status)
        if row is not None and known != status:
            action = "api_key.resumed" if status == "active" else "api_key.suspended"
            await _record_status(conn, actor, action, row, known)
    if row is None:
        raise Invalid(("api_key", "revoked", "This key has been revoked, which cannot be undone"))
    return ApiKey(**row)


async def _record_status(conn: Connection, actor: Actor, action: str, row: Any, before: str) -> None:
    await audit.record(
        conn,
        actor,
        action,
        object_id=row["id"],
        name=row["name"],
        before={"status": before},
        after={"status": row["status"]},
    )


def _told(key: ApiKey) -> dict[str, object]:
    """What the audit log records about a new key."""
    names = ("profile", "scopes", "mode", "allowed_ips", "expires_at", "last4")
    return {name: getattr(key, name) for name in names}


OWNER = "SELECT organization_id FROM api_keys WHERE id = $1"


async def owner(conn: Connection, *, id: UUID) -> UUID:
    """The organization that a key belongs to, for operators. Raises NotFound."""
    organization_id: UUID | None = await conn.fetchval(OWNER, id)
    if organization_id is None:
        raise NotFound("There is no such API key.", id=str(id))
    return organization_id


OWNERS = "SELECT id, organization_id FROM api_keys WHERE id = ANY ($1)"


async def owners(conn: Connection, *, ids: Collection[UUID]) -> dict[UUID, UUID]:
    """The organizations that keys belong to, for operators."""
    rows = await conn.fetch(OWNERS, list(ids)) if ids else []
    return {row["id"]: row["organization_id"] for row in rows}


GET = f"SELECT {_COLUMNS} FROM api_keys WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3)"


async def get(conn: Connection, actor: Actor, *, id: UUID) -> ApiKey:
    """The organization's key of the actor's modes with this id, whatever its status. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, id, actor.modes)
    if row is None:
        raise NotFound(resource="api_key", id=str(id))
    return ApiKey(**row)


_EVERYWHERE = f"""
SELECT o.name AS organization, k.*
  FROM (SELECT organization_id, {_COLUMNS} FROM api_keys
         WHERE {{which}} ORDER BY id DESC LIMIT $3) k
  JOIN organizations o ON o.id = k.organization_id
 ORDER BY k.id DESC
"""
# Each by an index of its own, which ends at the limit: of most keys that were ever made, all but the last are revoked.
# The parameters are the same for all of them, so each names what it does not ask for.
_OF_ALL, _OF_ONE = "$1::uuid IS NULL AND $2::boolean IS NOT NULL", "organization_id = $1 AND $2::boolean IS NOT NULL"
#: By whether one organization is asked for, and whether revoked ones are.
LIST_EVERYWHERE = {
    (False, True): _EVERYWHERE.format(which=_OF_ALL),
    (False, False): _EVERYWHERE.format(which=f"{_OF_ALL} AND status <> 'revoked'"),
    (True, True): _EVERYWHERE.format(which=_OF_ONE),
    (True, False): _EVERYWHERE.format(which=f"{_OF_ONE} AND status <> 'revoked'"),
}
# Names and ends by an index each; after all that a name may go on with comes the last character there is.
SEARCH_EVERYWHERE = _EVERYWHERE.format(
    which="""($1::uuid IS NULL OR organization_id = $1) AND ($2::boolean OR status <> 'revoked') AND id = ANY (ARRAY(
           (SELECT id FROM api_keys
             WHERE (lower(name) COLLATE "C") >= lower($4::text)
               AND (lower(name) COLLATE "C") < lower($4::text) || chr(1114111)
               AND ($1::uuid IS NULL OR organization_id = $1) AND ($2::boolean OR status <> 'revoked')
             ORDER BY lower(name) COLLATE "C" LIMIT $3)
           UNION
           (SELECT id FROM api_keys
             WHERE last4 = right($4::text, 4)
               AND ($1::uuid IS NULL OR organization_id = $1) AND ($2::boolean OR status <> 'revoked') LIMIT $3)))"""
)


async def list_everywhere(
    conn: Connection, *, organization_id: UUID | None, revoked: bool = True, search: str | None = None, limit: int
) -> list[tuple[str, ApiKey]]:
    """For operators: (organization's name, key), newest first, of one organization, or of all (None).

    `revoked`: include those. `search`: how a name begins, or a key's last four characters, as in `hg_live_…a1B2`; of
    more names than `limit`, the first ones.
    """
    if search is None:
        sql = LIST_EVERYWHERE[organization_id is not None, revoked]
        rows = await conn.fetch(sql, organization_id, revoked, limit)
    else:
        rows = await conn.fetch(SEARCH_EVERYWHERE, organization_id, revoked, limit, search)
    return [(row["organization"], ApiKey(**{name: row[name] for name in ApiKey.__struct_fields__})) for row in rows]


# Each half by its own index: an organization may have revoked any number of keys.
LIST = f"""
SELECT * FROM (
    (SELECT {_COLUMNS} FROM api_keys
      WHERE organization_id = $1 AND status IN ('active', 'suspended') AND mode = ANY ($2))
    UNION ALL
    (SELECT {_COLUMNS} FROM api_keys
      WHERE organization_id = $1 AND status IN ('revoked', 'expired') AND mode = ANY ($2)
        AND coalesce(revoked_at, expires_at) > now() - $3::interval
      ORDER BY coalesce(revoked_at, expires_at) DESC LIMIT $4)
) listed ORDER BY id DESC
"""


async def list_all(conn: Connection, actor: Actor) -> list[ApiKey]:
    """The actor's keys, newest first: the current ones, and up to MOST_LISTED of those that ended in the last 90
    days."""
    rows = await conn.fetch(LIST, actor.organization_id, actor.modes, LISTED, MOST_LISTED)
    return [ApiKey(**row) for row in rows]


NAMES = "SELECT id, name FROM api_keys WHERE organization_id = $1 AND id = ANY ($2)"


async def names(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, str]:
    """What the organization's keys of these are called, of either mode and however long ago they ended."""
    rows = await conn.fetch(NAMES, actor.organization_id, list(ids)) if ids else []
    return {row["id"]: row["name"] for row in rows}


AUTHENTICATE = """
SELECT k.secret_hash, k.id AS key_id, k.mode, k.scopes, k.allowed_ips,
       o.id AS organization_id, o.state, o.smart_encoding, o.replace_accents, o.guarantee,
       o.validity_seconds, o.allowed_countries, o.rate_sms_send, o.rate_campaigns, o.rate_mutations, o.rate_reads
  FROM api_keys k JOIN organizations o ON o.id = k.organization_id
 WHERE k.secret_hash = ANY($1) AND k.status = 'active' AND (k.expires_at IS NULL OR k.expires_at > now())
"""


async def authenticate_many(conn: Connection, hashes: Sequence[bytes]) -> list[Known | None]:
    """The owner of each key, by its secret's SHA-256, in order; None where there is no active key."""
    found = {row["secret_hash"]: _who(row) for row in await conn.fetch(AUTHENTICATE, list(hashes))}
    return [found.get(digest) for digest in hashes]


def checked_name(text: str) -> str:
    """A trimmed name. Raises Invalid."""
    return naming.checked(text, "name", longest=100)


def named_scopes(profile: str | None, scopes: Sequence[str] | None) -> frozenset[str]:
    """The scopes of a profile, or the listed ones. Raises Invalid for both, neither, or unknown ones."""
    if (profile is None) == (scopes is None):
        raise Invalid(("profile", "one_of", "give either `profile` or `scopes`"))
    if profile is not None:
        if profile not in PROFILES:
            raise Invalid(("profile", "enum", f"`profile` must be one of {', '.join(PROFILES)}"))
        return PROFILES[profile]
    named = frozenset(scopes or ())
    unknown = sorted(named - SCOPES.keys())
    if unknown or not named:
        which = f": {', '.join(unknown)} is unknown" if unknown else ""
        raise Invalid(("scopes", "enum", f"`scopes` must list one or more known scopes{which}"))
    return named


def networks(texts: Sequence[str]) -> list[str]:
    """Addresses and CIDR networks, deduplicated, as networks in canonical form. Raises Invalid."""
    return [str(network) for network in dict.fromkeys(_networks(texts))]


def new_secret(mode: str) -> str:
    """A new secret for mode "live" or "test": 44 characters, 178 random bits."""
    head = f"hg_{mode}_" + "".join(secrets.choice(_BASE62) for _ in range(_RANDOM))
    return head + _check_characters(head)


def is_well_formed(secret: str) -> bool:
    """True if it has the format of our keys and a valid checksum."""
    return (
        len(secret) == _LENGTH
        and secret.isascii()
        and secret.startswith(("hg_live_", "hg_test_"))
        and secret[-_CHECK:] == _check_characters(secret[:-_CHECK])
    )


def _check_characters(head: str) -> str:
    number = zlib.crc32(head.encode())
    characters = ""
    for _ in range(_CHECK):
        number, digit = divmod(number, 62)
        characters = _BASE62[digit] + characters
    return characters


async def _demand_place(conn: Connection, actor: Actor) -> None:
    """One more key may be active. The organization's row is locked."""
    await conn.execute(NOTE_EXPIRED, actor.organization_id)
    counted = await conn.fetch(COUNT_ACTIVE, actor.organization_id)
    active = dict.fromkeys(MODES, 0) | {row["mode"]: row["count"] for row in counted}
    if sum(active.values()) >= MAX_ACTIVE:
        raise TooManyActiveKeys(limit=MAX_ACTIVE, active=active)


def _granted(actor: Actor, profile: str | None, scopes: Sequence[str] | None, mode: str) -> frozenset[str]:
    granted = named_scopes(profile, scopes)
    missing = granted - actor.scopes - actor.grants
    if not actor.is_operator and missing:
        raise ScopeRequired("A key can grant only scopes that it holds itself.", required=sorted(missing))
    if not actor.is_operator and (actor.mode, mode) == ("test", "live"):
        # Otherwise whoever holds a test key could spend the organization's quota.
        raise LiveKeyRequired("A test key can create only test keys.")
    return granted


def _networks(texts: Sequence[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    try:
        if any("%" in text for text in texts):  # an interface of one machine (RFC 4007 §11)
            raise ValueError
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError:
        raise Invalid(("allowed_ips", "format", "`allowed_ips` must list addresses or CIDR networks")) from None


def _who(row: Any) -> Known:
    countries = row["allowed_countries"]
    limits = RateLimits(row["rate_sms_send"], row["rate_campaigns"], row["rate_mutations"], row["rate_reads"])
    actor = Actor(
        organization_id=row["organization_id"],
        key_id=row["key_id"],
        mode=row["mode"],
        scopes=frozenset(row["scopes"]),
        state=row["state"],
        smart_encoding=row["smart_encoding"],
        replace_accents=row["replace_accents"],
        guarantee=row["guarantee"],
        validity_seconds=row["validity_seconds"],
        allowed_countries=None if countries is None else frozenset(countries),
        rate_limits=None if limits == NO_LIMITS else limits,
    )
    return Known(actor, _networks(row["allowed_ips"]))
