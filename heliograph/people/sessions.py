"""Sessions: browsers in which somebody is signed in.

A session's token is 256 random bits known only to the browser; the table holds its SHA-256. The rule nobody may break:
an ended session is refused by every process within a second, whoever ended it (`session_keeping.book` caches for less).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph import notices
from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.crypto import hash_secret
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7
from heliograph.notices import Notice
from heliograph.notices.reading import first_to_come
from heliograph.people import roles
from heliograph.people.noticing.choices import silent
from heliograph.people.operators import roles as operator_roles
from heliograph.people.session_keeping.rows import Rows, printable
from heliograph.people.tries import WrongSignIn

#: A session ends after this long without a request; "keep me signed in" makes it LONGEST.
IDLE = timedelta(hours=12)
#: Maximum duration, counted from the sign-in.
LONGEST = timedelta(days=30)
#: How long dangerous actions are allowed after authentication.
PROVED = timedelta(minutes=10)
#: Maximum unread notices counted; a bell that shows this many may have more.
UNREAD = 20
#: Organizations in the menu, which is part of every page. The account's page lists all of them.
MOST_IN_MENU = 50
#: The rows, and the operations that both realms share.
ROWS = Rows("sessions", "idle", "user.sessions_ended")
touch, prove, end_token = ROWS.touch, ROWS.prove, ROWS.end_token
end, end_all, list_all, FORGET = ROWS.end, ROWS.end_all, ROWS.list_all, ROWS.forget


class SignedInUser(msgspec.Struct, frozen=True):
    """A session and its person, at most half a second old."""

    id: UUID
    user_id: UUID
    email: str
    name: str
    language: str | None
    time_zone: str | None
    #: The columns that they chose, by list, as JSON.
    columns: str
    has_password: bool
    has_totp: bool
    #: The current organization; None: the person belongs to none.
    organization_id: UUID | None
    organization: str | None
    state: str | None
    smart_encoding: bool
    replace_accents: bool
    guarantee: str
    validity_seconds: int | None
    allowed_countries: list[str] | None
    #: The organization's settings: a second factor is required, single messages may be revealed, developers may create
    #: live keys; and its time zone.
    factor_required: bool
    reveals: bool
    developer_keys: bool
    organization_zone: str | None
    role: str | None
    #: (id, name) of the organizations that the person belongs to, at most MOST_IN_MENU, and whether there are more.
    organizations: list[tuple[UUID, str]]
    has_more_organizations: bool
    created_at: datetime
    seen_at: datetime
    ends_at: datetime
    #: Kinds of the latest unread notices, at most UNREAD.
    unread: list[str]
    #: Kinds for which the person or their organization turned the bell off.
    silent: frozenset[str]
    #: True if the person authenticated within PROVED, by signing in or since.
    is_proved: bool
    #: Why an operator views as the organization, without changing anything; None: a member's own session.
    reason: str | None

    @property
    def lacks_factor(self) -> bool:
        """True if the organization requires a second factor that the person does not have."""
        return self.factor_required and not self.has_totp and self.reason is None

    @property
    def zone(self) -> str | None:
        """The time zone in which they see times: their own, or else the organization's."""
        return self.time_zone or self.organization_zone

    @property
    def held(self) -> roles.Role | None:
        """Their role; None without an organization."""
        return None if self.role is None else roles.held(self.role, developer_keys=self.developer_keys)

    def may(self, scope: str | None, permission: str | None, mode: str) -> bool:
        """True if the person's role has a scope in a mode, and a page permission."""
        role = self.held
        if role is None:
            return False
        # A role that sees all texts anyway does not need to reveal any.
        if permission == roles.REVEAL and not self.reveals and roles.CONTENT not in role.permissions:
            return False
        return (scope is None or scope in role.scopes(mode)) and (permission is None or permission in role.permissions)


OPEN = """
INSERT INTO sessions (token_hash, id, user_id, organization_id, created_at, seen_at, idle, ends_at, proved_at, address,
                      agent)
VALUES ($1, $2, $3, coalesce($4, (SELECT organization_id FROM memberships WHERE user_id = $3
                                   ORDER BY created_at, organization_id LIMIT 1)),
        now(), now(), $5, now() + $6::interval, now(), $7, left($8, 300))
RETURNING organization_id
"""
SIGNED_IN = """
UPDATE users u SET signed_in_at = now() FROM (SELECT signed_in_at FROM users WHERE id = $1 FOR NO KEY UPDATE) known
 WHERE u.id = $1 RETURNING u.name, u.email, u.password, known.signed_in_at IS NOT NULL AS was_here
"""


def demand_password(user: Any, hashed: str | None) -> None:
    """Check what SIGNED_IN returned, in the transaction that begins a session. Raises WrongSignIn.

    `hashed`: the hash of the password that was verified, if one was. Whoever changes it ends all sessions, so one that
    began with the former password must not follow. The row stays locked, so a change that comes later finds the session
    and ends it.
    """
    if hashed not in (None, user["password"]):
        raise WrongSignIn


async def open_for(
    conn: Connection,
    *,
    user_id: UUID,
    address: str,
    agent: str,
    how: str,
    organization_id: UUID | None = None,
    is_kept: bool = False,
    request_id: str = "",
    is_known: bool = True,
    hashed: str | None = None,
) -> str:
    """Begin a session for somebody who has authenticated; returns its token, which is stored nowhere.

    `how`: how they authenticated, "password", "code", "passkey", "link" or "invitation". `organization_id`: the current
    one, which they belong to; None: the first. `is_kept`: stay signed in for LONGEST. `is_known`: they have signed in
    with this browser before; if not, and this is not their first sign-in at all, the bell notifies them. `hashed`: as
    for `demand_password`. Raises WrongSignIn.
    """
    token = secrets.token_urlsafe(32)
    idle = LONGEST if is_kept else IDLE
    async with conn.transaction():
        looked_at = await conn.fetchval(
            OPEN, hash_secret(token), uuid7(), user_id, organization_id, idle, LONGEST, address, printable(agent)
        )
        user = await conn.fetchrow(SIGNED_IN, user_id)
        assert user is not None
        demand_password(user, hashed)
        await audit.record(
            conn,
            Principal("person", user_id, name=user["name"], address=address, device=agent, request_id=request_id),
            "user.signed_in",
            object_id=user_id,
            name=user["email"],
            organization_id=looked_at,
            after={"by": how},
        )
        if looked_at is not None and user["was_here"] and not is_known:
            facts = {"address": address, "device": printable(agent)[:300]}
            # Another address or device is another cause: that of a stranger is told even right after their own.
            cause = f"{user_id}/{hash_secret(' '.join(facts.values())).hex()[:16]}"
            await notices.record(conn, Notice(looked_at, "sign_in.new", cause, address, facts=facts, user_id=user_id))
    return token


# If the membership has ended, the session has no organization. A session of an operator who views as the organization
# is valid once taken up, while they are permitted to and are signed in to the console; then it is over, and not one of
# a person without an organization. What was proved in times to come was before the clock was set back.
AUTHENTICATE = f"""
SELECT s.token_hash, s.id, s.user_id, u.email, u.name, u.language, u.time_zone, u.columns,
       u.password IS NOT NULL AS has_password,
       u.totp IS NOT NULL AS has_totp, m.organization_id, m.role, o.name AS organization, o.state,
       coalesce(o.smart_encoding, false) AS smart_encoding, coalesce(o.replace_accents, false) AS replace_accents,
       coalesce(o.guarantee, 'at_least_once') AS guarantee, o.validity_seconds,
       o.allowed_countries, coalesce(o.factor_required, false) AS factor_required, coalesce(o.reveals, true) AS reveals,
       coalesce(o.developer_keys, false) AS developer_keys,
       o.time_zone AS organization_zone, s.created_at, s.seen_at, s.ends_at,
       s.proved_at BETWEEN now() - $2::interval AND {clock.LATEST} AS is_proved, s.reason,
       coalesce(o.notice_ways, '{{}}') AS theirs, coalesce(m.notice_ways, '{{}}') AS chosen,
       ARRAY(SELECT kind FROM notices
              WHERE organization_id = m.organization_id
                AND (notices.user_id IS NULL OR notices.user_id = s.user_id)
                AND id < $7
                AND id > coalesce((SELECT read_to FROM notice_reads
                                    WHERE organization_id = m.organization_id AND user_id = s.user_id
                                      AND read_to < $7 LIMIT 1), '00000000-0000-0000-0000-000000000000')
              ORDER BY id DESC LIMIT $3) AS unread,
       ARRAY(SELECT other.organization_id FROM memberships other WHERE other.user_id = s.user_id
              ORDER BY other.created_at, other.organization_id LIMIT $6) AS ids,
       ARRAY(SELECT named.name FROM memberships other CROSS JOIN LATERAL (
                    SELECT name FROM organizations WHERE id = other.organization_id LIMIT 1) named
              WHERE other.user_id = s.user_id ORDER BY other.created_at, other.organization_id LIMIT $6) AS names
  FROM unnest($1::bytea[]) AS asked (token_hash)
       CROSS JOIN LATERAL (SELECT * FROM sessions WHERE token_hash = asked.token_hash LIMIT 1) s
       CROSS JOIN LATERAL (SELECT * FROM users WHERE id = s.user_id LIMIT 1) u
       LEFT JOIN LATERAL (SELECT organization_id, role, notice_ways FROM memberships
                           WHERE organization_id = s.organization_id AND user_id = s.user_id AND s.reason IS NULL
                          UNION ALL
                          SELECT s.organization_id, $4, '{{}}' FROM operators
                           WHERE user_id = s.user_id AND role = ANY ($5) AND s.reason IS NOT NULL
                             AND EXISTS (SELECT FROM operator_sessions open
                                          WHERE open.user_id = s.user_id AND open.ends_at > now()) LIMIT 1) m ON true
       LEFT JOIN LATERAL (SELECT * FROM organizations WHERE id = m.organization_id LIMIT 1) o ON true
 WHERE s.ends_at > now() AND s.seen_at + s.idle > now()
   AND (s.reason IS NULL OR (s.seen_at > s.created_at AND m.organization_id IS NOT NULL))
   AND (o.session_hours IS NULL OR s.seen_at + make_interval(hours => o.session_hours) > now())
"""


async def authenticate_many(conn: Connection, hashes: Sequence[bytes]) -> dict[bytes, SignedInUser]:
    """Sessions by the SHA-256 of their tokens; unknown and ended ones are omitted."""
    found = {}
    lookers = operator_roles.holders(operator_roles.LOOK)
    for row in await conn.fetch(
        AUTHENTICATE, list(hashes), PROVED, UNREAD, roles.VIEWING.name, lookers, MOST_IN_MENU + 1, first_to_come()
    ):
        made = ("organizations", "has_more_organizations", "silent")
        values = {name: row[name] for name in SignedInUser.__struct_fields__ if name not in made}
        own = list(zip(row["ids"], row["names"], strict=True)) if row["reason"] is None else []
        found[row["token_hash"]] = SignedInUser(
            organizations=own[:MOST_IN_MENU],
            has_more_organizations=len(own) > MOST_IN_MENU,
            silent=silent(row["theirs"], row["chosen"]),
            **values,
        )
    return found


BELONG = """
SELECT o.id, o.name FROM memberships m CROSS JOIN LATERAL (
       SELECT id, name FROM organizations WHERE id = m.organization_id LIMIT 1) o
 WHERE m.user_id = $1 ORDER BY lower(o.name), o.id
"""


async def organizations_of(conn: Connection, *, user_id: UUID) -> list[tuple[UUID, str]]:
    """(id, name) of all organizations that a person belongs to, by name."""
    return [(row["id"], row["name"]) for row in await conn.fetch(BELONG, user_id)]


SWITCH = """
UPDATE sessions s SET organization_id = m.organization_id FROM memberships m
 WHERE s.id = $1 AND s.reason IS NULL AND s.user_id = $2 AND m.user_id = $2 AND m.organization_id = $3
RETURNING s.id
"""


async def switch(conn: Connection, *, id: UUID, user_id: UUID, organization_id: UUID) -> None:
    """Switch to another organization that the person belongs to. Raises NotFound."""
    if await conn.fetchval(SWITCH, id, user_id, organization_id) is None:
        raise NotFound(resource="organization", id=str(organization_id))
