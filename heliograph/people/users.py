"""Users: a person's name, e-mail, password and preferences, independent of organizations.

An e-mail address is stored in lower case and identifies one person. The rule nobody may break: changing a password ends
every other session of the person, in the same transaction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.mail import outbox
from heliograph.people import links, memberships, passwords, sessions, tries
from heliograph.people.operators import accounts
from heliograph.people.operators import sessions as operator_sessions

LANGUAGES = ("en", "pt")

#: What is wrong with a person's name, by issue.
WRONG_NAME = {
    "length": "A name must have 1 to 200 characters.",
    "pattern": "A name must not contain control characters.",
}
#: One `@`, something on both sides, no spaces; only a mail could show whether it exists.
_is_email = re.compile(r"[^\s@\x00-\x1f]{1,64}@[^\s@\x00-\x1f]{1,189}").fullmatch


class User(msgspec.Struct, frozen=True):
    """One row of `users`, without secrets."""

    id: UUID
    email: str
    name: str
    language: str | None
    time_zone: str | None
    has_password: bool
    has_totp: bool
    created_at: datetime
    signed_in_at: datetime | None


class Member(msgspec.Struct, frozen=True):
    """A user and an organization that they belong to."""

    user: User
    organization_id: UUID
    organization: str
    role: str
    #: Signs in by passkey, and has no password that could be stolen.
    is_by_passkey: bool

    @property
    def has_factor(self) -> bool:
        """Whether a password alone is not enough to sign in."""
        return self.user.has_totp or self.is_by_passkey


_COLUMNS = (
    "u.id, u.email, u.name, u.language, u.time_zone, u.password IS NOT NULL AS has_password,"
    " u.totp IS NOT NULL AS has_totp, u.created_at, u.signed_in_at"
)
INSERT = """
INSERT INTO users (id, email, name, created_at) VALUES ($1, $2, $3, now()) ON CONFLICT (email) DO NOTHING RETURNING id
"""
BY_EMAIL = f"SELECT {_COLUMNS} FROM users u WHERE email = $1"
BY_ID = f"SELECT {_COLUMNS} FROM users u WHERE id = $1"


async def ensure(conn: Connection, by: Actor | Principal, *, email: str, name: str = "") -> tuple[User, bool]:
    """The user with this address, created if there is none; and whether they were created now. Raises Invalid.

    `name`: 1 to 200 characters; if empty, the part before the `@`. An existing user's name is not changed.
    """
    email = checked_email(email)
    name = checked_name(name or email.partition("@")[0])
    async with conn.transaction():
        made = await conn.fetchval(INSERT, uuid7(), email, name)
        row = await conn.fetchrow(BY_EMAIL, email)
        assert row is not None
        user = user_of(row)
        if made is not None:
            await audit.record(conn, by, "user.created", object_id=user.id, name=user.email)
    return user, made is not None


async def find(conn: Connection, *, email: str) -> User:
    """The user with this address. Raises NotFound."""
    row = await conn.fetchrow(BY_EMAIL, email.strip().lower())
    if row is None:
        raise NotFound("There is no user with this e-mail address.", resource="user", email=email)
    return user_of(row)


async def get(conn: Connection, *, id: UUID) -> User:
    """A user. Raises NotFound."""
    row = await conn.fetchrow(BY_ID, id)
    if row is None:
        raise NotFound("There is no such user.", resource="user", id=str(id))
    return user_of(row)


LIST = f"""
SELECT {_COLUMNS}, m.organization_id, o.name AS organization, m.role, {memberships.BY_PASSKEY} AS is_by_passkey
  FROM memberships m CROSS JOIN LATERAL (SELECT * FROM users WHERE id = m.user_id LIMIT 1) u
       CROSS JOIN LATERAL (SELECT * FROM organizations WHERE id = m.organization_id LIMIT 1) o
 WHERE $1::uuid IS NULL OR m.organization_id = $1
 ORDER BY o.name, u.email LIMIT $2
"""


async def list_everywhere(conn: Connection, *, organization_id: UUID | None, limit: int = 1000) -> list[Member]:
    """For operators: the members of one organization, or of all (None)."""
    rows = await conn.fetch(LIST, organization_id, limit)
    return [
        Member(user_of(row), row["organization_id"], row["organization"], row["role"], row["is_by_passkey"])
        for row in rows
    ]


# What belongs to their memberships, which end with the person.
END_NOTICES = """
WITH theirs AS MATERIALIZED (SELECT organization_id FROM memberships WHERE user_id = $1), read AS (
    DELETE FROM notice_reads WHERE organization_id IN (SELECT organization_id FROM theirs) AND user_id = $1)
DELETE FROM notices WHERE organization_id IN (SELECT organization_id FROM theirs) AND user_id = $1
"""
REMOVE = "DELETE FROM users WHERE id = $1 RETURNING email"
# Before owners are counted, as for every change to a team: two owners who are removed at once are not each other's
# remaining owner.
LOCK_ORGANIZATIONS = """
SELECT id FROM organizations WHERE id = ANY (ARRAY(SELECT organization_id FROM memberships WHERE user_id = $1))
 ORDER BY id FOR NO KEY UPDATE
"""
# Closed organizations need no owner.
OWNED_ALONE = """
SELECT o.name
  FROM memberships m CROSS JOIN LATERAL (SELECT * FROM organizations WHERE id = m.organization_id LIMIT 1) o
 WHERE m.user_id = $1 AND m.role = 'owner' AND o.state <> 'closed'
   AND NOT EXISTS (SELECT FROM memberships
                    WHERE organization_id = m.organization_id AND role = 'owner' AND user_id <> $1)
 ORDER BY o.name
"""
# Invitations end when their author is removed.
END_INVITATIONS = "DELETE FROM invitations WHERE invited_by = $1 RETURNING organization_id, id, email"


async def remove(conn: Connection, by: Actor | Principal, *, id: UUID) -> list[str]:
    """Remove a person from the installation, with memberships, links, sessions and the invitations that they made, and
    as an operator. Idempotent.

    An operator has to be able to do this at once, so it does not wait for another owner: returns the names of
    organizations left without one. Raises LastRoot.
    """
    async with conn.transaction():
        await conn.execute(LOCK_ORGANIZATIONS, id)
        ownerless = [row["name"] for row in await conn.fetch(OWNED_ALONE, id)]
        if await accounts.is_one(conn, user_id=id):
            who = by.principal if isinstance(by, Actor) else by
            await accounts.remove(conn, who, user_id=id, email=(await get(conn, id=id)).email)
        await conn.execute(END_NOTICES, id)
        email = await conn.fetchval(REMOVE, id)
        if email is not None:
            await _end_invitations(conn, by, id)
            await outbox.drop(conn, subject_id=id)
            await audit.record(conn, by, "user.removed", object_id=id, name=email)
    return ownerless


async def _end_invitations(conn: Connection, by: Actor | Principal, id: UUID) -> None:
    who = by.principal if isinstance(by, Actor) else by
    for organization_id, invitation_id, email in await conn.fetch(END_INVITATIONS, id):
        await outbox.drop(conn, subject_id=invitation_id)
        await audit.record(
            conn,
            who,
            "invitation.withdrawn",
            object_id=invitation_id,
            name=email,
            organization_id=organization_id,
        )


CHANGE = f"""
UPDATE users u SET name = $2, language = $3, time_zone = $4 WHERE id = $1 RETURNING {_COLUMNS}
"""


async def change(
    conn: Connection, by: Actor | Principal, *, id: UUID, name: str, language: str | None, time_zone: str | None
) -> User:
    """Change a person's own settings. `language`: one of LANGUAGES, None: the browser's. `time_zone`: an IANA name that
    the caller has checked, None: UTC. Raises Invalid, NotFound."""
    if language is not None and language not in LANGUAGES:
        raise Invalid(("language", "enum", f"`language` must be one of {', '.join(LANGUAGES)}"))
    name = checked_name(name)
    async with conn.transaction():
        before = await get(conn, id=id)
        row = await conn.fetchrow(CHANGE, id, name, language, time_zone)
        assert row is not None
        user = user_of(row)
        if user != before:
            await audit.record(
                conn,
                by,
                "user.changed",
                object_id=id,
                name=user.email,
                before=_audit_values(before),
                after=_audit_values(user),
            )
    return user


# No list has more columns than fit on a screen, so the stored value stays small.
CHOOSE_COLUMNS = """
UPDATE users SET columns = CASE WHEN cardinality($3::text[]) = 0 THEN columns - $2::text
                                ELSE columns || jsonb_build_object($2::text, to_jsonb($3::text[])) END
 WHERE id = $1
"""


async def choose_columns(conn: Connection, *, id: UUID, list: str, columns: Sequence[str]) -> None:
    """Store which columns of a list a person wants to see, in this order; empty: the default ones. The caller has
    checked the names of list and columns."""
    await conn.execute(CHOOSE_COLUMNS, id, list, columns)


SET_PASSWORD = "UPDATE users SET password = $2 WHERE id = $1"  # noqa: S105


async def set_password(
    pool: Pool, by: Actor | Principal, *, user: User, password: str, keep_session: UUID | None = None
) -> None:
    """Change a person's password, and end their links and their sessions except `keep_session`.

    No connection is held while the hash is computed. Raises Invalid, TooManyTries, TooManySignIns.
    """
    passwords.check_strength(password, email=user.email)
    async with pool.acquire() as conn:
        await tries.count(conn, account=f"password {user.id}")
    hashed = await passwords.hashed(password)
    async with pool.acquire() as conn, conn.transaction():
        await keep_password(conn, by, user=user, hashed=hashed)
        await sessions.end_all(conn, by, user_id=user.id, keep=keep_session)
        await operator_sessions.end_all(conn, by, user_id=user.id, keep=keep_session)


async def keep_password(conn: Connection, by: Actor | Principal, *, user: User, hashed: str) -> None:
    """Store the hash of a password whose strength was checked, in the caller's transaction. Links that sign the person
    in end: whoever has one may be the reason for changing the password."""
    await conn.execute(SET_PASSWORD, user.id, hashed)
    await links.end(conn, user_id=user.id)
    await outbox.drop(conn, subject_id=user.id, kind=links.KIND)
    await audit.record(conn, by, "user.password_changed", object_id=user.id, name=user.email)


def checked_email(text: str) -> str:
    """An e-mail address in lower case, trimmed. Raises Invalid."""
    email = text.strip().lower()
    if not _is_email(email) or not naming.is_visible(email):
        raise Invalid(("email", "format", "This is not an e-mail address, such as ana@example.com."))
    return email


def checked_name(text: str) -> str:
    """A person's name, trimmed. Raises Invalid."""
    return naming.checked(text, "name", longest=200, said=WRONG_NAME)


def user_of(row: asyncpg.Record) -> User:
    """A User from a row that has its columns."""
    return User(**{name: row[name] for name in User.__struct_fields__})


def _audit_values(user: User) -> dict[str, str | None]:
    return {"name": user.name, "language": user.language, "time_zone": user.time_zone}
