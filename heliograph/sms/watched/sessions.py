"""What a worker tells each second of the sessions that it holds: how fast messages leave, and the last PDU of each.

It goes with the row of the session, in the report that workers write anyway when something of a session has changed.
The rule nobody may break: a message pays nothing for it; connectors are looked at once a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.suppliers.contract import Connector, Wire, Wired

#: A rate is over so many seconds.
SPAN = 5.0


class Rates:
    """How many segments left a second, by supplier."""

    def __init__(self) -> None:
        self._seen: dict[UUID, deque[tuple[float, int]]] = {}

    def rate(self, supplier_id: UUID, submitted: int, at: float) -> float:
        """Over the last SPAN seconds. `submitted`: counted so far; `at`: seconds, monotonic."""
        seen = self._seen.setdefault(supplier_id, deque())
        # A connection that is new counts anew.
        if seen and submitted < seen[-1][1]:
            seen.clear()
        seen.append((at, submitted))
        while len(seen) > 2 and at - seen[1][0] >= SPAN:
            seen.popleft()
        took = at - seen[0][0]
        return round((submitted - seen[0][1]) / took, 1) if took > 0 else 0.0

    def keep(self, suppliers: Sequence[UUID]) -> None:
        """Forget all but these."""
        self._seen = {id: seen for id, seen in self._seen.items() if id in suppliers}


def written(connector: Connector) -> str:
    """What it says of its sessions, as JSON: a list, of those that are bound."""
    return msgspec.json.encode(connector.wires() if isinstance(connector, Wired) else []).decode()


def read(stored: str) -> Wire | None:
    """One of them as its row has it; None: it is not bound, or has no wire of its own."""
    return msgspec.json.decode(stored, type=Wire) if stored else None
