"""An organization's settings that its own people can change, such as its name and what it demands of members.

The rule nobody may break: permissions are checked against the database, not only against the session, and nobody can
demand of others what they do not have themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.accounts import organizations, send_defaults, spending
from heliograph.accounts.organizations import Organization
from heliograph.accounts.send_defaults import SendDefaults
from heliograph.accounts.spending import Limit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.guard import rules
from heliograph.guard.rules import Rules
from heliograph.people import memberships, roles, users


class ClosingEffects(msgspec.Struct, frozen=True):
    """What closing an organization stops, in numbers; MANY stands for that many or more."""

    keys: int
    endpoints: int
    campaigns: int
    members: int


#: Counting stops at this many of one kind.
MANY = 1000


async def rename(conn: Connection, actor: Actor, *, name: str) -> Organization:
    """Rename the organization. Raises Invalid, RoleRequired."""
    await memberships.demand(conn, actor, roles.SETTINGS)
    return await organizations.rename(conn, id=actor.organization_id, name=name, by=actor.principal)


async def configure(conn: Connection, actor: Actor, **changes: Any) -> Organization:
    """Change the organization's settings, those of `organizations.configure`. Only owners may decide what developers
    can do with live keys. Raises Invalid, RoleRequired."""
    await memberships.demand(conn, actor, roles.OWNERS if changes.get("developer_keys") is not None else roles.SETTINGS)
    if changes.get("factor_required") and actor.user_id is not None:
        person = await users.get(conn, id=actor.user_id)
        if not person.has_totp:
            raise Invalid(("factor_required", "own", "Turn on your own second factor first."))
    return await organizations.configure(conn, id=actor.organization_id, by=actor.principal, **changes)


async def change_defaults(conn: Connection, actor: Actor, **changes: Any) -> SendDefaults:
    """Change the defaults of sends, and how long texts are kept, as in `send_defaults.change`. Raises Invalid,
    RoleRequired."""
    await memberships.demand(conn, actor, roles.SETTINGS)
    return await send_defaults.change(conn, organization_id=actor.organization_id, by=actor.principal, **changes)


async def limit_spending(
    conn: Connection, actor: Actor, *, segments: int | None, key_id: UUID | None = None
) -> list[Limit]:
    """Set how much may be accepted in a day, as in `spending.limit`. Raises Invalid, NotFound, RoleRequired."""
    await memberships.demand(conn, actor, roles.SETTINGS)
    return await spending.limit(conn, actor.organization_id, segments=segments, key_id=key_id, by=actor.principal)


async def change_guard(
    conn: Connection, actor: Actor, *, policy: str | None, safe: Sequence[str], limits: Mapping[str, int | None]
) -> Rules:
    """Choose how suspicious messages are treated, which ranges are never held, and how many messages of a class may be
    sent in ten minutes before the rest is suspicious, as in `guard.rules.configure`.

    Raises Invalid, RoleRequired.
    """
    await memberships.demand(conn, actor, roles.SETTINGS)
    return await rules.configure(
        conn, actor.organization_id, policy=policy, safe=safe, limits=limits, by=actor.principal
    )


STOPS = """
SELECT (SELECT count(*) FROM (SELECT FROM api_keys WHERE organization_id = $1 AND status = 'active' LIMIT $2) one)
           AS keys,
       (SELECT count(*) FROM (
               SELECT FROM webhook_endpoints WHERE organization_id = $1 AND status = 'active' LIMIT $2) one)
           AS endpoints,
       (SELECT count(*) FROM (
               SELECT FROM campaigns WHERE organization_id = $1 AND step_at IS NOT NULL LIMIT $2) one) AS campaigns,
       (SELECT count(*) FROM (SELECT FROM memberships WHERE organization_id = $1 LIMIT $2) one) AS members
"""


async def stops(conn: Connection, actor: Actor) -> ClosingEffects:
    """What closing the organization would stop."""
    row = await conn.fetchrow(STOPS, actor.organization_id, MANY)
    assert row is not None
    return ClosingEffects(**row)


async def close(conn: Connection, actor: Actor) -> Organization:
    """Close the organization: nothing is sent or changed from then on, and only the operator can reopen it. Raises
    RoleRequired."""
    await memberships.demand(conn, actor, roles.OWNERS)
    return await organizations.set_state(conn, id=actor.organization_id, state="closed", by=actor.principal)
