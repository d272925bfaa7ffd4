"""What the API does not show of an organization's numbers: their holds, and how many people they reached."""

from __future__ import annotations

from datetime import datetime

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.suppliers.whatsapp_cloud.address import BASE_URL
from heliograph.suppliers.whatsapp_cloud.errors import CREDENTIAL_TITLES
from heliograph.whatsapp import reads
from heliograph.whatsapp.mirror.sync import REFUSED
from heliograph.whatsapp.reads import PhoneNumber


class NumberState(msgspec.Struct, frozen=True):
    """A number and its state."""

    number: PhoneNumber
    #: Until when nothing is sent from it, and whether its credential is the reason; None: no hold.
    held_until: datetime | None
    is_credential: bool
    #: People written to within 24 hours outside their windows (an upper bound); None: not counted.
    reached: int | None
    #: Whether it is connected to a simulator, so that messages reach no phone.
    is_simulated: bool


#: Reasons of a hold that the credential is to blame for: a reading's, and those of refused sends.
CREDENTIAL_REASONS = CREDENTIAL_TITLES | {REFUSED}

STATES = """
SELECT n.id, nullif(greatest(n.held_until, a.held_until, now()), now()) AS held_until,
       coalesce(a.held_until >= coalesce(n.held_until, a.held_until) AND a.held_reason = ANY ($2::text[]), false)
           AS is_credential,
       p.users AS reached, a.base_url
  FROM whatsapp_numbers n
  JOIN whatsapp_accounts a ON a.organization_id = n.organization_id AND a.id = n.account_id
  LEFT JOIN LATERAL (SELECT users FROM whatsapp_portfolios WHERE portfolio = a.portfolio) p ON true
 WHERE n.organization_id = $1 AND n.state = 'active' AND a.state <> 'removed'
"""


async def list_all(conn: Connection, actor: Actor) -> list[NumberState]:
    """The organization's numbers, oldest first."""
    found = await conn.fetch(STATES, actor.organization_id, sorted(CREDENTIAL_REASONS))
    rows = {row["id"]: row for row in found}
    return [
        NumberState(
            one,
            rows[one.id]["held_until"],
            rows[one.id]["is_credential"],
            rows[one.id]["reached"],
            rows[one.id]["base_url"] != BASE_URL,
        )
        for one in await reads.phone_numbers(conn, actor)
        if one.id in rows
    ]
