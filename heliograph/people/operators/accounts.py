"""Who is an operator, and in which role.

The rule nobody may break: an installation that has a root keeps one. Every change to operators locks all their rows
first, in one order, so that two roots cannot remove each other.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound, Refusal
from heliograph.mail import outbox
from heliograph.people import factors, links, sessions
from heliograph.people.operators import noticing, roles
from heliograph.people.passkeys import keeping


class LastRoot(Refusal):
    """This is the last operator with the role root. Give it to somebody else first."""

    code, status = "last_root", 409


class ListedOperator(msgspec.Struct, frozen=True):
    """An operator as the others see them."""

    user_id: UUID
    email: str
    name: str
    role: str
    has_totp: bool
    has_passkey: bool
    has_factor: bool
    created_at: datetime
    signed_in_at: datetime | None
    #: Open sessions in the console, and when one of them was last used.
    sessions: int
    seen_at: datetime | None


LIST = """
SELECT o.user_id, u.email, u.name, o.role, o.created_at, u.signed_in_at,
       u.totp IS NOT NULL AS has_totp, keys.found AS has_passkey, u.totp IS NOT NULL OR keys.found AS has_factor,
       s.count AS sessions, s.seen_at
  FROM operators o
       CROSS JOIN LATERAL (SELECT * FROM users WHERE id = o.user_id LIMIT 1) u
       CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM passkeys WHERE user_id = o.user_id) AS found) keys
       CROSS JOIN LATERAL (SELECT count(*) AS count, max(seen_at) AS seen_at FROM operator_sessions
                            WHERE user_id = o.user_id AND ends_at > now()) s
 WHERE $1::uuid IS NULL OR o.user_id = $1
 ORDER BY u.name, u.email LIMIT $2
"""


async def list_all(conn: Connection, *, limit: int = 1000) -> list[ListedOperator]:
    """All operators, by name."""
    return [ListedOperator(**row) for row in await conn.fetch(LIST, None, limit)]


async def get(conn: Connection, *, user_id: UUID) -> ListedOperator:
    """One operator. Raises NotFound."""
    row = await conn.fetchrow(LIST, user_id, 1)
    if row is None:
        raise NotFound("There is no such operator.", resource="operator", id=str(user_id))
    return ListedOperator(**row)


LOCK_PERSON = "SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE"
IS_ONE = "SELECT EXISTS (SELECT FROM operators WHERE user_id = $1)"


async def is_one(conn: Connection, *, user_id: UUID) -> bool:
    """True if a person is an operator. Until the caller's transaction ends, `add` waits before it removes what the
    person signs in with, so that it also removes what this transaction adds."""
    await conn.execute(LOCK_PERSON, user_id)
    found: bool = await conn.fetchval(IS_ONE, user_id)
    return found


NO_PASSWORD = "UPDATE users SET password = NULL WHERE id = $1"  # noqa: S105
ADD = """
INSERT INTO operators (user_id, role, created_at) VALUES ($1, $2, now()) ON CONFLICT (user_id) DO NOTHING RETURNING true
"""


async def add(conn: Connection, by: Principal, *, user_id: UUID, email: str, role: str) -> None:
    """Make a user an operator; an existing operator keeps their role. Raises Invalid.

    The account's previous credentials are invalidated, and access begins with a link to the setup: an organization can
    invite any address and read the link, so the person who created the account need not own the address.
    """
    async with conn.transaction():
        if await conn.fetchval(ADD, user_id, roles.checked(role).name):
            await audit.record(conn, by, "operator.added", object_id=user_id, name=email, after={"role": role})
            await conn.execute(NO_PASSWORD, user_id)
            await keeping.remove_all(conn, user_id=user_id)
            await factors.disable(conn, by, user_id=user_id)
            await links.end(conn, user_id=user_id)
            await sessions.end_all(conn, by, user_id=user_id)


# In one order: concurrent changes to operators wait for each other, and cannot deadlock.
LOCK = "SELECT user_id, role FROM operators ORDER BY user_id FOR UPDATE"
CHANGE = "UPDATE operators SET role = $2 WHERE user_id = $1"
REMOVE = "DELETE FROM operators WHERE user_id = $1"


async def change_role(conn: Connection, by: Principal, *, user_id: UUID, email: str, role: str) -> None:
    """Give an operator another role, effective in all sessions within a second. Mails that wait for them and may be
    about what it does not show are withdrawn. Raises NotFound, LastRoot, Invalid."""
    roles.checked(role)
    async with conn.transaction():
        known = await _locked(conn, user_id)
        if role != "root":
            _demand_other_root(known, user_id)
        if known[user_id] != role:
            await conn.execute(CHANGE, user_id, role)
            before, after = {"role": known[user_id]}, {"role": role}
            await audit.record(
                conn, by, "operator.role_changed", object_id=user_id, name=email, before=before, after=after
            )
            if any(noticing.sees(known[user_id], kind) and not noticing.sees(role, kind) for kind in noticing.KINDS):
                await outbox.drop_notices(conn, user_id=user_id, organization_id=None)
            if role not in roles.holders(roles.TRAFFIC):
                await outbox.drop(conn, subject_id=noticing.report_subject(user_id))


async def remove(conn: Connection, by: Principal, *, user_id: UUID, email: str) -> None:
    """Revoke a person's access to the console, and end their sessions in it and the mails that wait for them as an
    operator; their account stays. Raises NotFound, LastRoot."""
    async with conn.transaction():
        known = await _locked(conn, user_id)
        _demand_other_root(known, user_id)
        await conn.execute(REMOVE, user_id)
        await outbox.drop_notices(conn, user_id=user_id, organization_id=None)
        await outbox.drop(conn, subject_id=noticing.report_subject(user_id))
        await audit.record(conn, by, "operator.removed", object_id=user_id, name=email, before={"role": known[user_id]})


# Uses the same clock as the times of causes, so that a cause seen is never newer than this.
MARK_NOTICES_SEEN = "UPDATE operators SET told_at = $2 WHERE user_id = $1"


async def mark_notices_seen(conn: Connection, *, user_id: UUID) -> None:
    """Record that an operator has seen everything that the bell shows up to now."""
    await conn.execute(MARK_NOTICES_SEEN, user_id, clock.now())


async def _locked(conn: Connection, user_id: UUID) -> dict[UUID, str]:
    known = {row["user_id"]: row["role"] for row in await conn.fetch(LOCK)}
    if user_id not in known:
        raise NotFound("There is no such operator.", resource="operator", id=str(user_id))
    return known


def _demand_other_root(known: dict[UUID, str], user_id: UUID) -> None:
    if known[user_id] == "root" and not any(role == "root" for id, role in known.items() if id != user_id):
        raise LastRoot
