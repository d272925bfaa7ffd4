"""How somebody is notified of each kind of notice: the kind's default, unless their organization or they themselves
chose otherwise.

Events go to the organization's endpoints, so the organization chooses whether they are sent; a person chooses whether
their bell counts a notice, and whether they get a mail.
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
from heliograph.notices.ways import Chosen, audit_values, checked, decoded, encoded, merged
from heliograph.people import memberships, roles


class Choices(msgspec.Struct, frozen=True):
    """The choices of an organization and of one of its members."""

    organization: Chosen
    own: Chosen

    def ways(self, kind: str) -> frozenset[Way]:
        """How the member is notified of a kind; "webhook" depends on the organization alone."""
        theirs = frozenset(self.organization.get(kind, KINDS[kind].ways))
        own = self.own.get(kind)
        return theirs if own is None else frozenset(own) | (theirs - frozenset(OWN_WAYS))


def read(organization: str, own: str = "{}") -> Choices:
    """Choices from the columns `notice_ways`."""
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
    """The choices of the organization and of one of its members. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, user_id)
    if row is None:
        raise NotFound(resource="organization", id=str(actor.organization_id))
    return read(row["organization"], row["own"])


LOCK = "SELECT notice_ways FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
KEEP = "UPDATE organizations SET notice_ways = $2 WHERE id = $1"


def check_for_all(ways: Mapping[str, Collection[str] | None]) -> None:
    """Raises Invalid for ways that `choose_for_all` refuses."""
    checked(ways, _offered(WAYS))


async def choose_for_all(conn: Connection, actor: Actor, *, ways: Mapping[str, Collection[str] | None]) -> Chosen:
    """Set how the organization's people are notified unless they chose otherwise, by kind; None: the kind's default.
    Kinds not named are unchanged. Returns the resulting choices. Raises Invalid, RoleRequired."""
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
                before=audit_values(before),
                after=audit_values(after),
            )
    return after


LOCK_OWN = """
SELECT notice_ways FROM memberships WHERE organization_id = $1 AND user_id = $2 FOR NO KEY UPDATE
"""
KEEP_OWN = "UPDATE memberships SET notice_ways = $3 WHERE organization_id = $1 AND user_id = $2"


async def choose(
    conn: Connection, actor: Actor, *, user_id: UUID, ways: Mapping[str, Collection[str] | None]
) -> Chosen:
    """Set how a member is notified, by kind; None: as the organization chose. Kinds not named are unchanged. Returns
    the resulting choices. Raises Invalid, NotFound."""
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
                conn,
                actor,
                "member.notices_chosen",
                object_id=user_id,
                before=audit_values(before),
                after=audit_values(after),
            )
    return after


def _offered(ways: Sequence[Way]) -> dict[str, list[Way]]:
    """The `ways` available for each kind."""
    return {kind: [way for way in ways if way != "webhook" or not one.is_personal] for kind, one in KINDS.items()}
