"""Viewing as an organization: an operator sees its dashboard as its people do, for a reason, and changes nothing.

It is a special session of the dashboard: it has the role `roles.VIEWING`, which can read everything except texts and
whole numbers; it is valid as long as its operator may look into messages and is signed in to the console; and every
form that it submits is refused (`pages.serving`). The rule nobody may break: its beginning is in the organization's
audit log, with the reason, before anything is shown.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from uuid import UUID

from heliograph.accounts import organizations
from heliograph.audit import reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import Principal
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.people.links import LinkUsed
from heliograph.people.session_keeping.rows import printable

#: It ends after IDLE without a request, and in any case after LONGEST; the link to it is valid once, for HANDED.
IDLE, LONGEST, HANDED = timedelta(minutes=30), timedelta(hours=2), timedelta(minutes=2)
#: Path below the address of the dashboard.
PATH = "/view"

# Until it is taken up, the session does not authenticate anybody: see `sessions.AUTHENTICATE`.
BEGIN = """
INSERT INTO sessions (token_hash, id, user_id, organization_id, created_at, seen_at, idle, ends_at, proved_at, address,
                      agent, reason)
SELECT $1, $2, user_id, $4, now(), now(), $5, now() + $6::interval, now(), $7, left($8, 300), $9
  FROM operators WHERE user_id = $3
"""
END_OTHERS = "DELETE FROM sessions WHERE user_id = $1 AND reason IS NOT NULL"


async def begin(conn: Connection, by: Principal, *, organization_id: UUID, reason: str) -> str:
    """A token that `take_up` turns into a session. An operator views as one organization at a time: a previous session
    ends.

    `by`: the operator. `reason`: 1 to 500 characters, shown to the organization. Raises Invalid, NotFound.
    """
    why = reasons.for_organization(reason)
    assert by.id is not None
    token = secrets.token_urlsafe(32)
    async with conn.transaction():
        one = await organizations.get(conn, id=organization_id)
        await conn.execute(END_OTHERS, by.id)
        await conn.execute(
            BEGIN,
            hash_secret(token),
            uuid7(),
            by.id,
            one.id,
            IDLE,
            LONGEST,
            by.address,
            printable(by.device),
            why,
        )
        await audit.record(
            conn, by, "organization.viewed", object_id=one.id, name=one.name, organization_id=one.id, reason=why
        )
    return token


TAKE_UP = """
UPDATE sessions SET token_hash = $2, seen_at = now() + interval '1 microsecond'
 WHERE token_hash = $1 AND reason IS NOT NULL AND seen_at = created_at AND created_at > now() - $3::interval
RETURNING id
"""


async def take_up(conn: Connection, *, token: str) -> str:
    """The session's own token, in exchange for one returned by `begin`, which is used up. Raises LinkUsed."""
    fresh = secrets.token_urlsafe(32)
    found = await conn.fetchval(TAKE_UP, hash_secret(token.strip()[:200]), hash_secret(fresh), HANDED)
    if found is None:
        raise LinkUsed
    return fresh


def address(base_url: str, token: str) -> str:
    """The link to the session. `base_url`: the dashboard's."""
    return f"{base_url.rstrip('/')}{PATH}#{token}"
