"""The lifecycle of keys: issue, rotate, rename, suspend, resume, revoke.

The rule nobody may break: a secret is shown once, by `issue`; what is stored is its SHA-256.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from heliograph import notices
from heliograph.accounts import rate_limits, spending
from heliograph.accounts.api_keys.authentication import Unauthorized, parsed_networks
from heliograph.accounts.api_keys.issued import COLUMNS, ApiKey
from heliograph.accounts.api_keys.scopes import MODES, demand_grants, named_scopes
from heliograph.accounts.api_keys.spelling import PREFIX_LENGTH, new_secret
from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import Actor
from heliograph.base.crypto import hash_secret
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems, Refusal
from heliograph.base.ids import uuid7

MAX_ACTIVE = 5
#: How long a rotated key may keep working alongside its replacement.
LONGEST_OVERLAP = timedelta(days=30)


class TooManyActiveKeys(Refusal):
    """This organization already has five active API keys, counting live and test keys. Revoke one first."""

    code, status = "api_key_active_limit_reached", 409


class KeyReplaced(Refusal):
    """This API key has been rotated already. Rotate the one that takes its place."""

    code, status = "api_key_replaced", 409


class KeyNotActive(Refusal):
    """This API key is not active, so it cannot be rotated. Create a new one."""

    code, status = "api_key_not_active", 409


class KeyLimited(Refusal):
    """This API key has a daily limit of its own, so it cannot create keys, which would not have it."""

    code, status = "api_key_limited", 403


# The row lock comes first: two requests must not both create the fifth key.
LOCK_ORGANIZATION = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"

# Mark expired keys as such, so that the set of current keys stays small.
NOTE_EXPIRED = """
UPDATE api_keys SET status = 'expired' WHERE organization_id = $1 AND status = 'active' AND expires_at <= now()
"""
COUNT_ACTIVE = """
SELECT mode, count(*) FROM api_keys
 WHERE organization_id = $1 AND status = 'active' AND (expires_at IS NULL OR expires_at > now()) GROUP BY mode
"""

CREATOR = """
SELECT allowed_ips, status = 'active' AND (expires_at IS NULL OR expires_at > now()) AS is_active,
       EXISTS (SELECT FROM spend_limits WHERE organization_id = $1 AND key_id = $2) AS is_limited
  FROM api_keys WHERE organization_id = $1 AND id = $2
"""

INSERT = f"""
INSERT INTO api_keys (id, organization_id, name, prefix, last4, secret_hash, profile, scopes, mode, allowed_ips,
                      created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
RETURNING {COLUMNS}
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

    Keys and people can grant only what they hold themselves or were authorized to grant, and a test key can create only
    test keys; an operator can grant anything. What contains a key contains those that it creates: they are valid
    in its networks at most, and one with a daily limit creates none. `mode`: None means the actor's. `allowed_ips`:
    addresses or CIDR networks; none: those of the creating key. `expires_at`: in the future, with a time zone.
    `profile_name`: the name under which listed scopes are shown. Raises Invalid with all errors, and Unauthorized for a
    key that has ended meanwhile.
    """
    wrong, now = Problems(), clock.now()
    with wrong.gathering():
        name = checked_name(name)
    mode = actor.mode if mode is None else mode
    if mode not in MODES:
        wrong.add("mode", "enum", "`mode` must be live or test")
    with wrong.gathering():
        check_end(expires_at, now)
    with wrong.gathering():
        allowed = networks(allowed_ips)
    with wrong.gathering():
        allowed_scopes = named_scopes(profile, scopes)
    wrong.report()
    demand_grants(actor, allowed_scopes, mode)
    secret = new_secret(mode)
    async with conn.transaction():
        if await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id) is None:
            raise NotFound(resource="organization", id=str(actor.organization_id))
        if actor.key_id is not None:
            allowed = await _within_creator(conn, actor, allowed)
        await _demand_place(conn, actor)
        row = await conn.fetchrow(
            INSERT,
            uuid7(),
            actor.organization_id,
            name,
            secret[:PREFIX_LENGTH],
            secret[-4:],
            hash_secret(secret),
            profile or profile_name,
            sorted(allowed_scopes),
            mode,
            allowed,
            now,
            expires_at,
        )
        assert row is not None
        key = ApiKey(**row)
        if actor.key_id is not None:
            await rate_limits.hand_on(conn, actor.organization_id, to=key.id)
        await audit.record(conn, actor, "api_key.created", object_id=key.id, name=key.name, after=_audit_values(key))
    return key, secret


STANDING = f"""
SELECT {COLUMNS} FROM api_keys
 WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3) AND status = 'active'
   AND (expires_at IS NULL OR expires_at > now())
"""
REPLACE = f"""
UPDATE api_keys SET expires_at = least(expires_at, now() + $3), replaced_by = $4
 WHERE organization_id = $1 AND id = $2
RETURNING {COLUMNS}
"""


async def rotate(conn: Connection, actor: Actor, *, id: UUID, overlap: timedelta) -> tuple[ApiKey, str, ApiKey]:
    """Create a key with the same name, rights and daily limit, and let the old one expire after `overlap`, at most
    LONGEST_OVERLAP. Returns (new key, its secret, old key). The secret is returned here and nowhere else.

    Both are active meanwhile and count toward the five. Raises NotFound, KeyNotActive, KeyReplaced, TooManyActiveKeys,
    Invalid, and what `issue` raises for an actor that does not hold the key's rights.
    """
    if not timedelta(0) < overlap <= LONGEST_OVERLAP:
        raise Invalid(("overlap", "range", f"`overlap` must be more than 0 and at most {LONGEST_OVERLAP.days} days"))
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
        # By scopes, not by profile: the profile may have been extended since.
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
        await spending.hand_on(conn, actor.organization_id, key_id=id, to=made.id, by=actor)
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
UPDATE api_keys SET name = $4 WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3) RETURNING {COLUMNS}
"""
NAME = "SELECT name FROM api_keys WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3) FOR NO KEY UPDATE"


async def rename(conn: Connection, actor: Actor, *, id: UUID, name: str) -> ApiKey:
    """Rename a key. Raises NotFound and Invalid."""
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


REVOKE = f"""
UPDATE api_keys SET status = 'revoked', revoked_at = coalesce(revoked_at, $3)
 WHERE organization_id = $1 AND id = $2 AND mode = ANY ($4)
RETURNING {COLUMNS}
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

# The organization's row is locked, so that nobody else can change its number of active keys. A revoked key stays
# revoked.
SET_STATUS = f"""
UPDATE api_keys SET status = $3 WHERE organization_id = $1 AND id = $2 AND status IN ('active', 'suspended')
RETURNING {COLUMNS}
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
    if row["status"] != "active":  # it no longer matters when it expires
        await notices.withdraw(conn, actor.organization_id, "key.ending", str(row["id"]))
    await audit.record(
        conn,
        actor,
        action,
        object_id=row["id"],
        name=row["name"],
        before={"status": before},
        after={"status": row["status"]},
    )


def _audit_values(key: ApiKey) -> dict[str, object]:
    """What the audit log records about a new key."""
    names = ("profile", "scopes", "mode", "allowed_ips", "expires_at", "last4")
    return {name: getattr(key, name) for name in names}


async def _within_creator(conn: Connection, actor: Actor, allowed: list[str]) -> list[str]:
    """The networks of a key that the actor's key creates. The organization's row must be locked. Raises Unauthorized,
    KeyLimited, and Invalid for one outside its own."""
    creator = await conn.fetchrow(CREATOR, actor.organization_id, actor.key_id)
    assert creator is not None
    # Actors are a second out of date: a key that leaked must not take the place that its revocation has freed.
    if not creator["is_active"]:
        raise Unauthorized
    if creator["is_limited"]:
        raise KeyLimited
    own = parsed_networks(creator["allowed_ips"])
    outside = [
        str(wanted)
        for wanted in parsed_networks(allowed)
        if own and not any(wanted.version == one.version and wanted.subnet_of(one) for one in own)  # type: ignore[arg-type]
    ]
    if outside:
        message = f"this key may not be used from {', '.join(outside)}, nor may a key that it creates"
        raise Invalid(("allowed_ips", "outside", message))
    return allowed or creator["allowed_ips"]


async def _demand_place(conn: Connection, actor: Actor) -> None:
    """Check that one more key may be active. The organization's row must be locked. Raises TooManyActiveKeys."""
    await conn.execute(NOTE_EXPIRED, actor.organization_id)
    counted = await conn.fetch(COUNT_ACTIVE, actor.organization_id)
    active = dict.fromkeys(MODES, 0) | {row["mode"]: row["count"] for row in counted}
    if sum(active.values()) >= MAX_ACTIVE:
        raise TooManyActiveKeys(limit=MAX_ACTIVE, active=active)


def checked_name(text: str) -> str:
    """A trimmed name. Raises Invalid."""
    return naming.checked(text, "name", longest=100)


def check_end(expires_at: datetime | None, now: datetime) -> None:
    """Raises Invalid for a key that would have expired already. None: it never does."""
    if expires_at is not None and expires_at <= now:
        raise Invalid(("expires_at", "range", "`expires_at` must be in the future"))


def networks(texts: Sequence[str]) -> list[str]:
    """Addresses and CIDR networks, deduplicated, as networks in canonical form. Raises Invalid."""
    return [str(network) for network in dict.fromkeys(parsed_networks(texts))]
