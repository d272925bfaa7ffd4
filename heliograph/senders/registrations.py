"""The table `sender_registrations`: the state of registrations of organizations' senders with networks and suppliers.

Operators maintain it; the organization reads it, without suppliers' names. The rule nobody may break: a change and its
entry in the audit log are one commit.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base import phones
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.networks.plan import no_network
from heliograph.senders import versions
from heliograph.senders.book import STATES, Registration
from heliograph.senders.rules import MAX_NOTE

#: Stands for "with any supplier".
ANY = UUID(int=0)


class RegistrationRow(msgspec.Struct, frozen=True):
    """A registration as operators see it."""

    organization: str
    sender_id: UUID
    sender: str
    country: str
    #: MCC-MNC; empty: the whole country.
    network: str
    #: None: with any supplier.
    supplier: str | None
    state: str
    #: Shown to the organization.
    note: str
    asked_at: datetime
    changed_at: datetime


class Standing(msgspec.Struct, frozen=True):
    """A registration as its organization sees it: the most advanced one per country and network."""

    sender_id: UUID
    country: str
    network: str
    state: str
    note: str
    asked_at: datetime
    changed_at: datetime


LOAD = """
SELECT r.organization_id, s.value AS sender, r.country, r.network, nullif(r.supplier_id, $1) AS supplier_id, r.state
  FROM sender_registrations r JOIN sender_ids s ON s.organization_id = r.organization_id AND s.id = r.sender_id
"""


async def load(conn: Connection) -> list[Registration]:
    """All registrations."""
    return [Registration(*row.values()) for row in await conn.fetch(LOAD, ANY)]


PUT = """
WITH before AS (
    SELECT state, note FROM sender_registrations
     WHERE organization_id = $1 AND sender_id = $2 AND country = $3 AND network = $4 AND supplier_id = $5
)
INSERT INTO sender_registrations AS known (organization_id, sender_id, country, network, supplier_id, state, note,
                                           asked_at, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, now(), now())
ON CONFLICT (organization_id, sender_id, country, network, supplier_id) DO UPDATE
   SET state = excluded.state, note = excluded.note,
       asked_at = CASE excluded.state WHEN 'asked' THEN now() ELSE known.asked_at END, changed_at = now()
RETURNING (SELECT state FROM before), (SELECT note FROM before)
"""


def check(*, country: str, state: str, network: str = "", note: str = "") -> None:
    """Raises Invalid with everything that is wrong with what was typed about a registration."""
    wrong: list[tuple[str, str, str]] = []
    if said := phones.no_country(country):
        wrong.append(("country", "unknown", said))
    if state not in STATES:
        wrong.append(("state", "enum", f"a state is one of {', '.join(STATES)}"))
    if network and (said := no_network(network)):
        wrong.append(("network", "pattern", said))
    if len(note) > MAX_NOTE or not note.isprintable():
        wrong.append(("note", "length", f"`note` may have up to {MAX_NOTE} printable characters"))
    if wrong:
        raise Invalid(*wrong)


async def put(
    conn: Connection,
    *,
    organization_id: UUID,
    sender_id: UUID,
    sender: str,
    country: str,
    state: str,
    network: str = "",
    supplier_id: UUID | None = None,
    note: str = "",
    by: Principal = SYSTEM,
) -> None:
    """Set the state of a registration. `sender`: its value, for the audit log. Raises Invalid."""
    check(country=country, state=state, network=network, note=note)
    async with conn.transaction():
        await versions.move(conn)
        row = await conn.fetchrow(PUT, organization_id, sender_id, country, network, supplier_id or ANY, state, note)
        assert row is not None
        # Omits the supplier, because the organization reads this.
        place = {"country": country} | ({"network": network} if network else {})
        before = None if row[0] is None else place | {"state": row[0], "note": row[1]}
        await audit.record(
            conn,
            by,
            "sender_id.registered",
            object_id=sender_id,
            name=sender,
            organization_id=organization_id,
            before=before,
            after=place | {"state": state, "note": note},
        )


LIST = """
SELECT o.name AS organization, r.sender_id, s.value AS sender, r.country, r.network, p.name AS supplier, r.state,
       r.note, r.asked_at, r.changed_at
  FROM sender_registrations r
       JOIN organizations o ON o.id = r.organization_id
       JOIN sender_ids s ON s.organization_id = r.organization_id AND s.id = r.sender_id
       LEFT JOIN suppliers p ON p.id = r.supplier_id
 WHERE $1::uuid IS NULL OR r.organization_id = $1
 ORDER BY o.name, s.value, r.country, r.network, p.name NULLS FIRST LIMIT $2
"""


async def everywhere(conn: Connection, *, organization_id: UUID | None, limit: int = 1000) -> list[RegistrationRow]:
    """For operators: registrations of one organization, or of all (None)."""
    return [RegistrationRow(*row.values()) for row in await conn.fetch(LIST, organization_id, limit)]


# Several suppliers may register one sender; the organization sees the most advanced registration.
STANDING = """
SELECT DISTINCT ON (sender_id, country, network) sender_id, country, network, state, note, asked_at, changed_at
  FROM sender_registrations WHERE organization_id = $1 AND sender_id = ANY ($2)
 ORDER BY sender_id, country, network, array_position(ARRAY['registered', 'pending', 'asked', 'refused'], state),
          changed_at DESC
"""


async def standing(conn: Connection, *, organization_id: UUID, sender_ids: Collection[UUID]) -> list[Standing]:
    """The states of the registrations of an organization's senders."""
    return [Standing(*row.values()) for row in await conn.fetch(STANDING, organization_id, list(sender_ids))]
