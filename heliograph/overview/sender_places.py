"""Where an organization can send under a name, before it requests one.

The rule nobody may break: no supplier is named, and countries that the organization may not send to are omitted.
"""

from __future__ import annotations

from uuid import UUID

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.routes import rules
from heliograph.routes.lookup import Table
from heliograph.senders import loading, places
from heliograph.senders.places import STANDINGS, Standing
from heliograph.sms.dispatch import routing

#: Stands for the rest of a number: routes for a part of a country are ignored.
_REST = "000000000"


async def names(conn: Connection, actor: Actor, *, sender: str) -> dict[Standing, list[str]]:
    """ISO regions by what happens to a name there, as far as known; best first, without empty entries."""
    book = await loading.load(conn)
    table = Table(
        [one for one in routing.serving(await routing.load(conn)) if one.state == "active"], await rules.active(conn)
    )
    codes = {region: code for code, region in phones.REGIONS.items()}
    found: dict[Standing, list[str]] = {one: [] for one in STANDINGS}
    for country in sorted(book.countries | places.PUBLISHED.keys()):
        if actor.allowed_countries is not None and country not in actor.allowed_countries:
            continue
        carriers: frozenset[UUID] = frozenset(
            table.candidates(
                f"+{codes[country]}{_REST}",
                organization_id=actor.organization_id,
                sender=sender,
                traffic_class="transactional",
            ).suppliers
        )
        if known := places.standing(book, country, suppliers=carriers, sender=sender):
            found[known].append(country)
    return {one: countries for one, countries in found.items() if countries}
