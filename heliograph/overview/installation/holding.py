"""What is held, with the names of the suppliers and organizations that it is about: for whoever has to release it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.queue import holds
from heliograph.queue.holds import Hold


class Held(Hold, frozen=True):
    """A hold, and what it is about by name; None: it holds that of all of them."""

    supplier: str | None
    organization: str | None

    @classmethod
    def of(cls, hold: Hold, names: dict[UUID, str]) -> Self:
        """With its names; what has none any more has its id."""
        values = {name: getattr(hold, name) for name in hold.__struct_fields__}
        supplier, organization = (id and names.get(id, str(id)) for id in (hold.line, hold.organization_id))
        return cls(**values, supplier=supplier or None, organization=organization or None)


NAMES = """
SELECT id, name FROM suppliers WHERE id = ANY ($1) UNION ALL SELECT id, name FROM organizations WHERE id = ANY ($1)
"""


async def named(conn: Connection, held: Sequence[Hold]) -> list[Held]:
    """These holds with their names."""
    wanted = [id for one in held for id in (one.line, one.organization_id) if id is not None]
    names = {row["id"]: row["name"] for row in await conn.fetch(NAMES, wanted)} if wanted else {}
    return [Held.of(one, names) for one in held]


async def listed(conn: Connection) -> list[Held]:
    """All that is held, oldest first."""
    return await named(conn, await holds.list_all(conn))
