"""How somebody is told of each kind of notice: as the kind has it, unless their organization, or they, chose
another way.

An event goes to the organization's endpoints, so that it is sent is for the organization to choose; a person chooses
whether their bell counts it, and whether they are mailed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.notices.kinds import KINDS, OWN_WAYS, WAYS, Way
from heliograph.notices.ways import Chosen, checked, decoded, encoded, merged, told
from heliograph.people import memberships, roles


class Choices(msgspec.Struct, frozen=True):
    """What an organization chose, and what a member of it did."""

    organization: Chosen
    own: Chosen

    def ways(self, kind: str) -> frozenset[Way]:
        """How the member is told of a kind; "webhook" is the organization's part."""
        theirs = frozenset(self.organization.get(kind, KINDS[kind].ways))
        own = self.own.get(kind)
        return theirs if own is None else frozenset(own) | (theirs - frozenset(OWN_WAYS))


def read(organization: str, own: str = "{}") -> Choices:
    """Of the columns `notice_ways`."""
    return Choices(decoded(organization, KINDS), decoded(own, KINDS))


def silent(organization: str, own: str) -> frozenset[str]:
    """The kinds for which a member's bell is silent."""
    if organization == own == "{}":
        return frozenset()
    choices = read(organization, own)
    return frozenset(kind for kind in KINDS if "bell" not in choices.ways(kind))


GET = """
SELECT o.notice_ways AS organization,
       coalesce((SELECT notice_ways FROM memberships WHERE organization_id = $1 AND user_id = $2), '{}') AS own
  FROM organizations o WHERE o.id = $1
"""


async def get(conn: Connection, actor: Actor, *, user_id: UUID | None = None) -> Choices:
    """What the organization chose, and what a member of it did. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, user_id)
    if row is None:
        raise NotFound(resource="organization", id=str(actor.organization_id))
    return read(row["organization"], row["own"])


LOCK = "SELECT notice_ways FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
KEEP = "UPDATE organizations SET notice_ways = $2 WHERE id = $1"


async def choose_for_all(conn: Connection, actor: Actor, *, ways: Mapping[str, Collection[str] | None]) -> Chosen:
    """How the organization's people are told, unless they chose otherwise, by kind; None: as the kind has it. Kinds
    that are not named stay as they are. Returns what is chosen now. Raises Invalid, RoleRequired."""
    changes = checked(ways, _offered(WAYS))
    async with conn.transaction():
        await memberships.demand(conn, actor, roles.SETTINGS)
        before = decoded(await conn.fetchval(LOCK, actor.organization_id) or "{}", KINDS)
        after = merged(before, changes, {kind: one.ways for kind, one in KINDS.items()})
        if after != before:
            await conn.execute(KEEP, actor.organization_id, encoded(after))
            await audit.record(
                conn,
                actor,
                "organization.notices_chosen",
                object_id=actor.organization_id,
                before=told(before),
                after=told(after),
            )
    return after


LOCK_OWN = """
SELECT notice_ways FROM memberships WHERE organization_id = $1 AND user_id = $2 FOR NO KEY UPDATE
"""
KEEP_OWN = "UPDATE memberships SET notice_ways = $3 WHERE organization_id = $1 AND user_id = $2"


async def choose(
    conn: Connection, actor: Actor, *, user_id: UUID, ways: Mapping[str, Collection[str] | None]
) -> Chosen:
    """How a member is told, by kind; None: as the organization has it. Kinds that are not named stay as they are.
    Returns what is chosen now. Raises Invalid, NotFound."""
    changes = checked(ways, _offered(OWN_WAYS))
    async with conn.transaction():
        known = await conn.fetchval(LOCK_OWN, actor.organization_id, user_id)
        if known is None:
            raise NotFound("There is no such member.", resource="member", id=str(user_id))
        before = decoded(known, KINDS)
        after = merged(before, changes, {})
        if after != before:
            await conn.execute(KEEP_OWN, actor.organization_id, user_id, encoded(after))
            await audit.record(
                conn, actor, "member.notices_chosen", object_id=user_id, before=told(before), after=told(after)
            )
    return after


def _offered(ways: Sequence[Way]) -> dict[str, list[Way]]:
    """Of each kind, those of `ways` that it can be told by."""
    return {kind: [way for way in ways if way != "webhook" or not one.is_personal] for kind, one in KINDS.items()}
