"""Finds a message that an operator refers to by its id alone, and its organization."""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.base.actor import Actor, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound


class TargetMessage(msgspec.Struct, frozen=True):
    """A message, and the operator as an actor of its organization."""

    actor: Actor
    organization: str
    #: As stored: `accepted` also while it is being handed over.
    status: str
    sent: bool
    guarantee: str
    recipient: str
    sender: str
    traffic_class: str


# By id alone, one organization at a time: see `sending.timeline.by_id`.
WHOSE = """
SELECT o.id, o.state, o.name, found.*
  FROM organizations o
       CROSS JOIN LATERAL (SELECT mode, status, sent_at IS NOT NULL, guarantee, recipient, sender, class FROM messages
                            WHERE organization_id = o.id AND id = $1) found
 LIMIT 1
"""


async def find(conn: Connection, by: Principal, *, id: UUID) -> TargetMessage:
    """The SMS with an id. Raises NotFound."""
    row = await conn.fetchrow(WHOSE, id)
    if row is None:
        raise NotFound(resource="message", id=str(id))
    organization_id, state, name, mode, *rest = row
    return TargetMessage(Actor(organization_id, None, mode, frozenset(), state, by=by), name, *rest)
