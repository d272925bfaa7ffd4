"""Memberships: who belongs to an organization, and in which role.

The rule nobody may break: an organization that has an owner keeps one, unless an operator removes the person from the
installation (`users.remove`). Every change that may take an owner away locks the organization's row first, so that two
owners cannot remove each other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.accounts.api_keys import issued, lifecycle
from heliograph.accounts.api_keys.issued import ApiKey
from heliograph.audit import reading
from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound, Refusal
from heliograph.mail import outbox
from heliograph.notices.kinds import KINDS
from heliograph.people import roles
from heliograph.people.roles import RoleRequired


class LastOwner(Refusal):
    """This is the organization's last owner. Make somebody else an owner first."""

    code, status = "last_owner", 409


class Colleague(msgspec.Struct, frozen=True):
    """A member as the team sees them."""

    user_id: UUID
    email: str
    name: str
    role: str
    has_totp: bool
    has_passkey: bool
    has_password: bool
    joined_at: datetime
    signed_in_at: datetime | None
    #: Last request in this organization, to the minute; None: none of their sessions is currently in it.
    seen_at: datetime | None

    @property
    def is_by_passkey(self) -> bool:
        """True if they sign in by passkey and have no password that could be stolen; alongside one, a passkey protects
        nothing."""
        return self.has_passkey and not self.has_password


#: An SQL condition: the user `u` signs in by passkey, and has no password that could be stolen.
BY_PASSKEY = "u.password IS NULL AND EXISTS (SELECT FROM passkeys WHERE user_id = u.id)"
_TEAM = "FROM memberships m CROSS JOIN LATERAL (SELECT * FROM users WHERE id = m.user_id LIMIT 1) u"
# Sessions and passkeys are looked up only for the members returned.
_LISTED = f"""
SELECT m.user_id, m.email, m.name, m.role, m.has_totp,
       EXISTS (SELECT FROM passkeys WHERE user_id = m.user_id) AS has_passkey, m.has_password,
       m.joined_at, m.signed_in_at,
       (SELECT max(s.seen_at) FROM sessions s WHERE s.user_id = m.user_id AND s.organization_id = $1) AS seen_at
  FROM (SELECT m.user_id, u.email, u.name, m.role, u.totp IS NOT NULL AS has_totp,
               u.password IS NOT NULL AS has_password, m.created_at AS joined_at, u.signed_in_at
          {_TEAM} WHERE m.organization_id = $1 AND {{which}} ORDER BY u.name, u.email LIMIT $2) m
 ORDER BY m.name, m.email
"""
# $3: the last member of the page before; $4: the beginning of a name or address.
PAGE = _LISTED.format(
    which="""($3::uuid IS NULL OR (u.name, u.email) > (SELECT name, email FROM users WHERE id = $3))
           AND (starts_with(lower(u.name), lower($4)) OR starts_with(normalize(u.email), lower($4)))"""
)
GET = _LISTED.format(which="m.user_id = $3")


async def list_page(
    conn: Connection, actor: Actor, *, search: str = "", after: UUID | None = None, limit: int
) -> list[Colleague]:
    """Members by name, after the member `after`. `search`: the beginning of a name or an e-mail address."""
    return [
        Colleague(**row) for row in await conn.fetch(PAGE, actor.organization_id, limit, after, naming.sought(search))
    ]


NAMES = f"SELECT m.user_id, u.name {_TEAM} WHERE m.organization_id = $1 AND m.user_id = ANY ($2)"


async def names(conn: Connection, actor: Actor, *, ids: Collection[UUID]) -> dict[UUID, str]:
    """Names of the members among these people."""
    rows = await conn.fetch(NAMES, actor.organization_id, list(ids)) if ids else []
    return {row["user_id"]: row["name"] for row in rows}


async def get(conn: Connection, actor: Actor, *, user_id: UUID) -> Colleague:
    """One member. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, 1, user_id)
    if row is None:
        raise NotFound("There is no such member.", resource="member", id=str(user_id))
    return Colleague(**row)


WITHOUT_FACTOR = f"""
SELECT count(*) {_TEAM} WHERE m.organization_id = $1 AND u.totp IS NULL AND ($2 OR NOT ({BY_PASSKEY}))
"""


async def without_factor(conn: Connection, actor: Actor, *, is_required: bool) -> int:
    """How many members have no second factor. One that the organization requires is an authenticator app."""
    count: int = await conn.fetchval(WITHOUT_FACTOR, actor.organization_id, is_required)
    return count


HAS_COLLEAGUES = "SELECT count(*) > 1 FROM (SELECT FROM memberships WHERE organization_id = $1 LIMIT 2) few"
HAS_FACTOR = f"""
SELECT EXISTS (SELECT {_TEAM} WHERE m.organization_id = $1 AND (u.totp IS NOT NULL OR {BY_PASSKEY}))
"""


async def has_colleagues(conn: Connection, actor: Actor) -> bool:
    """Whether the actor's organization has more than one member."""
    found: bool = await conn.fetchval(HAS_COLLEAGUES, actor.organization_id)
    return found


async def has_factor(conn: Connection, actor: Actor) -> bool:
    """Whether any member has a second factor."""
    found: bool = await conn.fetchval(HAS_FACTOR, actor.organization_id)
    return found


HOLDERS = """
SELECT u.name FROM memberships m CROSS JOIN LATERAL (SELECT name, email FROM users WHERE id = m.user_id LIMIT 1) u
 WHERE m.organization_id = $1 AND m.role = ANY ($2) ORDER BY u.name, u.email LIMIT $3
"""


async def holders(conn: Connection, organization_id: UUID, roles: Sequence[str], *, limit: int) -> list[str]:
    """Names of some members with one of these roles, for somebody who needs to ask one of them."""
    return [row["name"] for row in await conn.fetch(HOLDERS, organization_id, list(roles), limit)]


# The row lock comes first: two owners must not each rely on the other to stay.
LOCK_ORGANIZATION = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
ADD = """
INSERT INTO memberships (organization_id, user_id, role, created_at) VALUES ($1, $2, $3, now())
    ON CONFLICT (organization_id, user_id) DO NOTHING
RETURNING true
"""


async def add(conn: Connection, actor: Actor, *, user_id: UUID, role: str) -> None:
    """Make a user a member of the actor's organization; an existing member keeps their role. Raises Invalid."""
    async with conn.transaction():
        if await conn.fetchval(ADD, actor.organization_id, user_id, roles.checked(role).name):
            await audit.record(conn, actor, "member.added", object_id=user_id, after={"role": role})


OTHER_OWNERS = """
SELECT count(*) FROM memberships WHERE organization_id = $1 AND role = 'owner' AND user_id <> $2
"""
ROLE = "SELECT role FROM memberships WHERE organization_id = $1 AND user_id = $2"
CHANGE = "UPDATE memberships SET role = $3 WHERE organization_id = $1 AND user_id = $2"
# Notices for this person alone say from where they signed in.
REMOVE = """
WITH read AS (DELETE FROM notice_reads WHERE organization_id = $1 AND user_id = $2), told AS (
    DELETE FROM notices WHERE organization_id = $1 AND user_id = $2)
DELETE FROM memberships WHERE organization_id = $1 AND user_id = $2
"""
# Sessions in this organization end; those in another one continue.
END_SESSIONS = "DELETE FROM sessions WHERE organization_id = $1 AND user_id = $2"


# Invitations end when their author is no longer allowed to make them. $3: only invitations to this role.
END_INVITATIONS = """
DELETE FROM invitations WHERE organization_id = $1 AND invited_by = $2 AND ($3::text IS NULL OR role = $3)
RETURNING id, email
"""


async def change_role(conn: Connection, actor: Actor, *, user_id: UUID, role: str) -> None:
    """Give a member another role; invitations of theirs that the new role does not allow end, and mails that wait for
    them, if some may be about what it does not show. Raises NotFound, LastOwner, Invalid, and RoleRequired as in
    `_demand`."""
    roles.checked(role)
    async with conn.transaction():
        known = await _known(conn, actor, user_id)
        await _demand(conn, actor, known, role)
        if known == "owner" and role != "owner":
            await _demand_other_owner(conn, actor, user_id)
        await conn.execute(CHANGE, actor.organization_id, user_id, role)
        if known != role:
            before, after = {"role": known}, {"role": role}
            await audit.record(conn, actor, "member.role_changed", object_id=user_id, before=before, after=after)
            # What a mail says is sealed, and the bell still shows what the new role may see.
            if any(roles.sees(known, kind) and not roles.sees(role, kind) for kind in KINDS):
                await outbox.drop_notices(conn, user_id=user_id, organization_id=actor.organization_id)
            held = roles.ROLES[role].permissions
            if roles.TEAM_CHANGE not in held:
                await _end_invitations(conn, actor, user_id)
            elif roles.OWNERS not in held:
                await _end_invitations(conn, actor, user_id, role="owner")


async def keys_of(conn: Connection, actor: Actor, *, user_id: UUID) -> list[ApiKey]:
    """The organization's active keys that a person created, according to the audit log."""
    listed = [
        one
        for mode in ("live", "test")
        for one in await issued.standing(conn, msgspec.structs.replace(actor, mode=mode))
        if one.status == "active"
    ]
    keys = list({one.id: one for one in listed}.values())
    made = await reading.latest(
        conn, actor.organization_id, action="api_key.created", object_ids=[one.id for one in keys]
    )
    return [one for one in keys if (entry := made.get(str(one.id))) is not None and entry.who_id == user_id]


async def remove(conn: Connection, actor: Actor, *, user_id: UUID, revokes_keys: bool = False) -> int:
    """End a membership, its sessions, mails that wait for the person, and invitations that they made. Keys that they
    created stay, unless `revokes_keys`; returns how many were revoked. Raises NotFound, LastOwner, and RoleRequired as
    in `_demand`; anybody may leave."""
    async with conn.transaction():
        known = await _known(conn, actor, user_id)
        if user_id != actor.user_id:
            await _demand(conn, actor, known)
        if known == "owner":
            await _demand_other_owner(conn, actor, user_id)
        await conn.execute(REMOVE, actor.organization_id, user_id)
        await conn.execute(END_SESSIONS, actor.organization_id, user_id)
        await outbox.drop_notices(conn, user_id=user_id, organization_id=actor.organization_id)
        await audit.record(conn, actor, "member.removed", object_id=user_id, before={"role": known})
        await _end_invitations(conn, actor, user_id)
        keys = await keys_of(conn, actor, user_id=user_id) if revokes_keys else []
        for one in keys:
            await lifecycle.revoke(conn, msgspec.structs.replace(actor, mode=one.mode), id=one.id)
    return len(keys)


async def _end_invitations(conn: Connection, actor: Actor, user_id: UUID, *, role: str | None = None) -> None:
    for row in await conn.fetch(END_INVITATIONS, actor.organization_id, user_id, role):
        await outbox.drop(conn, subject_id=row["id"])
        await audit.record(conn, actor, "invitation.withdrawn", object_id=row["id"], name=row["email"])


async def role_of(conn: Connection, actor: Actor, *, user_id: UUID) -> str | None:
    """A member's role; None if they are not a member."""
    role: str | None = await conn.fetchval(ROLE, actor.organization_id, user_id)
    return role


async def demand_team(conn: Connection, actor: Actor, *touched: str) -> None:
    """Check that the actor may change the team. `touched`: roles that somebody has or is to get. Raises RoleRequired.

    Queries the database, because the session may be half a second old.
    """
    await _demand(conn, actor, *touched)


HELD = """
SELECT m.role, o.developer_keys FROM memberships m JOIN organizations o ON o.id = m.organization_id
 WHERE m.organization_id = $1 AND m.user_id = $2
"""


async def demand_scope(conn: Connection, actor: Actor, scope: str) -> None:
    """Check that the acting person holds a scope now. Raises RoleRequired."""
    row = await conn.fetchrow(HELD, actor.organization_id, actor.user_id)
    own = None if row is None else roles.held(row["role"], developer_keys=row["developer_keys"])
    if own is None or scope not in own.scopes(actor.mode):
        raise RoleRequired(required=roles.holders(scope=scope, mode=actor.mode))


async def demand(conn: Connection, actor: Actor, permission: str) -> None:
    """Check that the actor holds a permission now; operators always do. Raises RoleRequired."""
    if actor.user_id is None:
        return
    own = roles.ROLES.get(await role_of(conn, actor, user_id=actor.user_id) or "")
    if own is None or permission not in own.permissions:
        raise RoleRequired(required=roles.holders(permission=permission))


async def _known(conn: Connection, actor: Actor, user_id: UUID) -> str:
    await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id)
    known = await role_of(conn, actor, user_id=user_id)
    if known is None:
        raise NotFound("There is no such member.", resource="member", id=str(user_id))
    return known


async def _demand(conn: Connection, actor: Actor, *touched: str) -> None:
    """An operator may do anything; a member needs the team permission, and that for owners if an owner is concerned."""
    await demand(conn, actor, roles.OWNERS if "owner" in touched else roles.TEAM_CHANGE)


async def _demand_other_owner(conn: Connection, actor: Actor, user_id: UUID) -> None:
    if not await conn.fetchval(OTHER_OWNERS, actor.organization_id, user_id):
        raise LastOwner
