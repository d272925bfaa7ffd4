"""Sessions of the console: browsers in which an operator is signed in.

As in the dashboard, a token is 256 random bits of which the table holds the SHA-256; but these sessions have their own
table, are shorter, are never kept for a month, and allow nothing until the operator has a second factor.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.crypto import hash_secret
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.people.operators import noticing, roles
from heliograph.people.session_keeping.rows import Rows, printable
from heliograph.people.sessions import PROVED, SIGNED_IN, demand_password

#: A session ends after IDLE without a request, and in any case after LONGEST: a shift.
IDLE, LONGEST = timedelta(hours=2), timedelta(hours=14)
#: The rows, and the operations that both realms share.
ROWS = Rows("operator_sessions", f"interval '{IDLE.total_seconds():.0f} seconds'", "operator.sessions_ended")
touch, prove, end_token = ROWS.touch, ROWS.prove, ROWS.end_token
end, end_all, list_all, FORGET = ROWS.end, ROWS.end_all, ROWS.list_all, ROWS.forget


class Operator(msgspec.Struct, frozen=True):
    """A session and its operator, at most half a second old."""

    id: UUID
    user_id: UUID
    email: str
    name: str
    language: str | None
    time_zone: str | None
    has_password: bool
    has_totp: bool
    #: An authenticator app or a passkey: without one, only the setup is available.
    has_factor: bool
    role: str
    #: Until when the operator has seen what the bell shows; None: never.
    told_at: datetime | None
    created_at: datetime
    seen_at: datetime
    ends_at: datetime
    #: True if the person authenticated within PROVED, by signing in or since.
    is_proved: bool
    #: Kinds of notices that their bell does not count.
    silent: frozenset[str] = frozenset()

    @property
    def lacks_factor(self) -> bool:
        """True if the session allows nothing but setting up a second factor."""
        return not self.has_factor

    @property
    def zone(self) -> str | None:
        """The time zone in which they see times."""
        return self.time_zone

    def may(self, scope: str | None, permission: str | None, mode: str) -> bool:
        """True if the role has a permission. Scopes belong to organizations: no operator holds one."""
        role = roles.ROLES.get(self.role)
        return scope is None and role is not None and (permission is None or permission in role.permissions)


OPEN = """
INSERT INTO operator_sessions (token_hash, id, user_id, created_at, seen_at, ends_at, proved_at, address, agent)
SELECT $1, $2, user_id, now(), now(), now() + $4::interval, now(), $5, left($6, 300) FROM operators WHERE user_id = $3
RETURNING id
"""


async def open_for(
    conn: Connection,
    *,
    user_id: UUID,
    address: str,
    agent: str,
    how: str,
    request_id: str = "",
    hashed: str | None = None,
) -> str:
    """Begin a session for an operator who has authenticated; returns its token, which is stored nowhere.

    `how`: how they authenticated, "code", "passkey" or "link". `hashed`: as for `demand_password`. Raises NotFound for
    somebody who is not an operator, and WrongSignIn.
    """
    token = secrets.token_urlsafe(32)
    async with conn.transaction():
        if await conn.fetchval(OPEN, hash_secret(token), uuid7(), user_id, LONGEST, address, printable(agent)) is None:
            raise NotFound("There is no such operator.", resource="operator", id=str(user_id))
        user = await conn.fetchrow(SIGNED_IN, user_id)
        assert user is not None
        demand_password(user, hashed)
        who = Principal("operator", user_id, name=user["name"], address=address, device=agent, request_id=request_id)
        after = {"by": how}
        await audit.record(conn, who, "operator.signed_in", object_id=user_id, name=user["email"], after=after)
    return token


# What was read or proved in times to come was before the clock was set back.
AUTHENTICATE = f"""
SELECT s.token_hash, s.id, s.user_id, u.email, u.name, u.language, u.time_zone, u.password IS NOT NULL AS has_password,
       u.totp IS NOT NULL AS has_totp,
       u.totp IS NOT NULL OR EXISTS (SELECT FROM passkeys p WHERE p.user_id = s.user_id) AS has_factor,
       o.role, o.notice_ways, CASE WHEN o.told_at < {clock.LATEST} THEN o.told_at END AS told_at,
       s.created_at, s.seen_at, s.ends_at,
       s.proved_at BETWEEN now() - $2::interval AND {clock.LATEST} AS is_proved
  FROM unnest($1::bytea[]) AS asked (token_hash)
       CROSS JOIN LATERAL (SELECT * FROM operator_sessions WHERE token_hash = asked.token_hash LIMIT 1) s
       CROSS JOIN LATERAL (SELECT * FROM operators WHERE user_id = s.user_id LIMIT 1) o
       CROSS JOIN LATERAL (SELECT * FROM users WHERE id = s.user_id LIMIT 1) u
 WHERE s.ends_at > now() AND s.seen_at > now() - $3::interval
"""


async def authenticate_many(conn: Connection, hashes: Sequence[bytes]) -> dict[bytes, Operator]:
    """Sessions by the SHA-256 of their tokens; unknown and ended ones are omitted."""
    return {
        row["token_hash"]: Operator(
            **{name: row[name] for name in Operator.__struct_fields__ if name != "silent"},
            silent=noticing.silent(row["notice_ways"]),
        )
        for row in await conn.fetch(AUTHENTICATE, list(hashes), PROVED, IDLE)
    }
