"""Reads issued keys: a single one, an organization's, or everyone's."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.accounts.api_keys.spelling import is_well_formed
from heliograph.base import naming
from heliograph.base.actor import Actor
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound

#: How long revoked and expired keys are listed, and how many of them at most.
LISTED, MOST_LISTED = timedelta(days=90), 500


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
    #: The client's address when the key was last used.
    last_used_from: str | None = None
    #: The key that replaced it, once it has been rotated.
    replaced_by: UUID | None = None
    #: The operation that it was last used for: an operationId.
    last_used_for: str | None = None


_STATUS = "CASE WHEN status = 'active' AND expires_at <= now() THEN 'expired' ELSE status END AS status"
COLUMNS = (
    f"id, name, prefix, last4, profile, scopes, mode, {_STATUS}, allowed_ips, last_used_at, created_at, expires_at,"
    " revoked_at, last_used_from, replaced_by, last_used_for"
)

GET = f"SELECT {COLUMNS} FROM api_keys WHERE organization_id = $1 AND id = $2 AND mode = ANY ($3)"


async def get(conn: Connection, actor: Actor, *, id: UUID) -> ApiKey:
    """The organization's key of the actor's modes with this id, whatever its status. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, id, actor.modes)
    if row is None:
        raise NotFound(resource="api_key", id=str(id))
    return ApiKey(**row)


BY_SECRET = f"SELECT {COLUMNS} FROM api_keys WHERE organization_id = $1 AND secret_hash = $2"


async def by_secret(conn: Connection, actor: Actor, *, secret: str) -> ApiKey | None:
    """The organization's key with this secret, of either mode and whatever its status; None if there is none."""
    secret = secret.strip()
    if not is_well_formed(secret):
        return None
    row = await conn.fetchrow(BY_SECRET, actor.organization_id, hash_secret(secret))
    return None if row is None else ApiKey(**row)


_STANDING = "organization_id = $1 AND status IN ('active', 'suspended') AND mode = ANY ($2)"
_ENDED = (
    "organization_id = $1 AND status IN ('revoked', 'expired') AND mode = ANY ($2)"
    " AND coalesce(revoked_at, expires_at) > now() - $3::interval"
)
STANDING = f"SELECT {COLUMNS} FROM api_keys WHERE {_STANDING} ORDER BY id DESC"
# From the end of an index: an organization may have revoked any number of keys.
ENDED = f"""
SELECT {COLUMNS} FROM api_keys
 WHERE {_ENDED}
   AND (coalesce(revoked_at, expires_at), id)
       < (coalesce((SELECT coalesce(revoked_at, expires_at) FROM api_keys WHERE organization_id = $1 AND id = $5),
                   'infinity'), coalesce($5::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
 ORDER BY coalesce(revoked_at, expires_at) DESC, id DESC LIMIT $4
"""
# In one statement, so that a key revoked meanwhile is listed once. Each half uses an index of its own.
LIST = f"""
SELECT * FROM (
    (SELECT {COLUMNS} FROM api_keys WHERE {_STANDING})
    UNION ALL
    (SELECT {COLUMNS} FROM api_keys WHERE {_ENDED} ORDER BY coalesce(revoked_at, expires_at) DESC LIMIT $4)
) listed ORDER BY id DESC
"""


async def list_all(conn: Connection, actor: Actor) -> list[ApiKey]:
    """The actor's keys, newest first: the current ones, and up to MOST_LISTED of those that ended in the last 90
    days."""
    rows = await conn.fetch(LIST, actor.organization_id, actor.modes, LISTED, MOST_LISTED)
    return [ApiKey(**row) for row in rows]


async def standing(conn: Connection, actor: Actor) -> list[ApiKey]:
    """The actor's current keys, newest first, with those that expired but have not been marked as such yet."""
    return [ApiKey(**row) for row in await conn.fetch(STANDING, actor.organization_id, actor.modes)]


async def ended(conn: Connection, actor: Actor, *, after: UUID | None = None, limit: int) -> list[ApiKey]:
    """The actor's keys that were revoked or expired in the last 90 days, most recently ended first; `after`: only those
    listed after this one."""
    rows = await conn.fetch(ENDED, actor.organization_id, actor.modes, LISTED, limit, after)
    return [ApiKey(**row) for row in rows]


NAMES = "SELECT id, name FROM api_keys WHERE organization_id = $1 AND id = ANY ($2)"


async def names(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, str]:
    """Names of the organization's keys among these ids, in either mode, including keys revoked or expired long ago."""
    rows = await conn.fetch(NAMES, actor.organization_id, list(ids)) if ids else []
    return {row["id"]: row["name"] for row in rows}


OWNER = "SELECT organization_id FROM api_keys WHERE id = $1"


async def owner(conn: Connection, *, id: UUID) -> UUID:
    """The organization that a key belongs to, for operators. Raises NotFound."""
    organization_id: UUID | None = await conn.fetchval(OWNER, id)
    if organization_id is None:
        raise NotFound(resource="api_key", id=str(id))
    return organization_id


OWNERS = "SELECT id, organization_id FROM api_keys WHERE id = ANY ($1)"


async def owners(conn: Connection, *, ids: Collection[UUID]) -> dict[UUID, UUID]:
    """The organizations that keys belong to, for operators."""
    rows = await conn.fetch(OWNERS, list(ids)) if ids else []
    return {row["id"]: row["organization_id"] for row in rows}


_EVERYWHERE = f"""
SELECT o.name AS organization, k.*
  FROM (SELECT organization_id, {COLUMNS} FROM api_keys
         WHERE {{which}} ORDER BY id DESC LIMIT $3) k
  JOIN organizations o ON o.id = k.organization_id
 ORDER BY k.id DESC
"""
# Each variant uses an index of its own and stops at the limit: most keys ever created have been revoked. All variants
# take the same parameters, so each also mentions those that it does not need.
_OF_ALL, _OF_ONE = "$1::uuid IS NULL AND $2::boolean IS NOT NULL", "organization_id = $1 AND $2::boolean IS NOT NULL"
#: By (a single organization, revoked keys included).
LIST_EVERYWHERE = {
    (False, True): _EVERYWHERE.format(which=_OF_ALL),
    (False, False): _EVERYWHERE.format(which=f"{_OF_ALL} AND status <> 'revoked'"),
    (True, True): _EVERYWHERE.format(which=_OF_ONE),
    (True, False): _EVERYWHERE.format(which=f"{_OF_ONE} AND status <> 'revoked'"),
}
# Names and last characters use an index each; the upper bound of a prefix is the prefix plus the highest code point.
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
    """For operators: (organization's name, key), newest first, of one organization or all (None).

    `revoked`: include revoked keys. `search`: the beginning of a name, or a key's last four characters, as in
    `hg_live_…a1B2`; if more than `limit` names match, the first ones.
    """
    if search is None:
        sql = LIST_EVERYWHERE[organization_id is not None, revoked]
        rows = await conn.fetch(sql, organization_id, revoked, limit)
    else:
        rows = await conn.fetch(SEARCH_EVERYWHERE, organization_id, revoked, limit, naming.sought(search))
    return [(row["organization"], ApiKey(**{name: row[name] for name in ApiKey.__struct_fields__})) for row in rows]
