"""Suppliers, as described by their rows. Pure, apart from loading the table.

Which suppliers may carry a message, and in which order, is looked up in `routes/lookup.py`; temporary avoidance of a
supplier is in `sms/circuits/`.

The rule nobody may break: routing never sends a message elsewhere while its last attempt may have reached somebody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.classes.kinds import CLASSES
from heliograph.routes.lookup import Candidates


class Supplier(msgspec.Struct, frozen=True):
    """One account, as described by its row. `secret` is still sealed."""

    id: UUID
    name: str
    kind: str
    settings: dict[str, Any]
    secret: bytes
    state: str
    #: E.164 digits without `+`; empty: all numbers.
    prefixes: tuple[str, ...]
    priority: int
    weight: int
    sessions: int
    parts: str
    created_at: datetime
    changed_at: datetime
    #: An operator holds everything that would go through it (`queue.holds`).
    held: bool = False
    #: Partial holds: by organization, by ids below this one, or by both.
    holds: tuple[tuple[UUID | None, UUID | None], ...] = ()
    #: A simulator: used only while there is no other supplier.
    simulated: bool = False


#: As `Supplier.holds`.
_Holds = tuple[tuple[UUID | None, UUID | None], ...]

LOAD = """
SELECT id, name, kind, settings::text, secret, state, prefixes, priority, weight, sessions, parts, simulated,
       created_at, changed_at,
       EXISTS (SELECT FROM queue_holds h WHERE h.kind = 'sms' AND h.line = suppliers.id AND h.before_id IS NULL
                                           AND h.organization_id IS NULL) AS held,
       (SELECT coalesce(json_agg(json_build_array(h.organization_id, h.before_id) ORDER BY h.id), '[]')::text
          FROM queue_holds h WHERE h.kind = 'sms' AND h.line = suppliers.id
           AND (h.organization_id IS NOT NULL OR h.before_id IS NOT NULL)) AS holds
  FROM suppliers WHERE state <> 'removed' ORDER BY priority, name
"""


async def load(conn: Connection) -> list[Supplier]:
    """All suppliers except removed ones, by priority and name."""
    return [
        Supplier(
            **{
                **dict(row.items()),
                "settings": msgspec.json.decode(row["settings"]),
                "prefixes": tuple(row["prefixes"]),
                "holds": msgspec.json.decode(row["holds"], type=_Holds),
            }
        )
        for row in await conn.fetch(LOAD)
    ]


SIMULATORS = "SELECT name FROM suppliers WHERE simulated"


async def simulators(conn: Connection) -> frozenset[str]:
    """Names of all simulators, including removed ones: names are never reused."""
    return frozenset(row["name"] for row in await conn.fetch(SIMULATORS))


async def carried_by(conn: Connection, recipient: str | None) -> Literal["networks", "simulator", "nobody", "nowhere"]:
    """Who would carry a live message to a number (None: to most numbers): real networks, a simulator, or nobody.
    "nowhere": nobody either, and it would fail at once, since there are suppliers, though only for other numbers."""
    known = serving(await load(conn))
    able = [one for one in known if recipient is None or covers(one, recipient)]
    if not able:
        return "nowhere" if known else "nobody"
    return "simulator" if all(one.simulated for one in able) else "networks"


async def waits_for_day(conn: Connection, traffic_class: str) -> bool:
    """Whether live messages of a class wait for the end of quiet hours: none does where only simulators carry."""
    return CLASSES[traffic_class].waits_for_day and await carried_by(conn, None) != "simulator"


def covers(supplier: Supplier, recipient: str) -> bool:
    """True if the supplier carries to this E.164 number."""
    return not supplier.prefixes or recipient[1:].startswith(supplier.prefixes)


def holds_back(supplier: Supplier, organization_id: UUID, message_id: UUID) -> bool:
    """True if this message would be on hold if it went through this supplier."""
    return any(
        (organization is None or organization == organization_id) and (before is None or message_id < before)
        for organization, before in supplier.holds
    )


def unchanged(supplier: Supplier, since: datetime, *, at: datetime) -> bool:
    """True if the supplier still splits messages as it did at `since`. `at`: now. A change of times to come was made
    before the clock was set back."""
    return supplier.changed_at < since or supplier.changed_at > at + clock.AHEAD


def serving(suppliers: Iterable[Supplier]) -> list[Supplier]:
    """The suppliers that carry live messages, paused or not: simulators only if there are no others."""
    known = list(suppliers)
    return [one for one in known if not one.simulated] or known


#: Failure codes of messages that no supplier may be given.
Unsendable = Literal["sender_not_approved", "destination_unreachable", "rejected"]


class Prospects(msgspec.Struct, frozen=True, gc=False):
    """The suppliers that carry to a message's recipient, and those of them that cannot have the message."""

    found: Candidates
    #: Those that do not accept its sender there.
    barred: frozenset[UUID]
    #: Those without a price for it, on a route that requires one.
    unrated: frozenset[UUID]
    #: If any has refused it: those that need not be tried any more.
    spent: frozenset[UUID]

    def may_have(self, id: UUID) -> bool:
        """True if this supplier may get the message, now or later."""
        return not (id in self.barred or id in self.unrated or id in self.spent)


def ending(
    suppliers: Collection[UUID],
    *,
    barred: Collection[UUID],
    unrated: Collection[UUID],
    refused: Collection[UUID] = (),
) -> tuple[str, Unsendable] | None:
    """The status and failure code with which a message ends at once, because none of these suppliers, which are all
    that carry to its number, may ever be given it; None: one of them may, now or later.

    `barred`: those that refuse its sender; `unrated`: those without a price on a route that requires one; `refused`:
    those that need not be tried any more.
    """
    if barred and len(barred) == len(suppliers):
        return "rejected", "sender_not_approved"
    if not all(id in barred or id in unrated or id in refused for id in suppliers):
        return None
    # Only what a supplier has refused is `rejected`, which by default is not refunded: a supplier may charge for it.
    is_refused = bool(refused) and len(unrated) < len(suppliers)
    return ("rejected", "rejected") if is_refused else ("failed", "destination_unreachable")


def overlap(one: Supplier, other: Supplier) -> bool:
    """True if there are numbers that both cover."""
    if not one.prefixes or not other.prefixes:
        return True
    return any(a.startswith(b) or b.startswith(a) for a in one.prefixes for b in other.prefixes)
