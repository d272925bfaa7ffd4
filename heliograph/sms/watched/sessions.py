"""A worker's report, each second, on the sessions that it holds: how fast messages leave, and the last PDU of each.

It is stored in the row of the session, as part of the report that workers write anyway when a session changes. The rule
nobody may break: this costs nothing per message; connectors are sampled once a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from uuid import UUID

import msgspec

from heliograph.suppliers.contract import Connector, InspectableConnector, WireActivity

#: Seconds over which a rate is measured.
SPAN = 5.0


class Rates:
    """Segments sent per second, by supplier."""

    def __init__(self) -> None:
        self._seen: dict[UUID, deque[tuple[float, int]]] = {}

    def rate(self, supplier_id: UUID, submitted: int, at: float) -> float:
        """The rate over the last SPAN seconds. `submitted`: the count so far; `at`: seconds, monotonic."""
        seen = self._seen.setdefault(supplier_id, deque())
        # A new connection starts counting again.
        if seen and submitted < seen[-1][1]:
            seen.clear()
        seen.append((at, submitted))
        while len(seen) > 2 and at - seen[1][0] >= SPAN:
            seen.popleft()
        took = at - seen[0][0]
        return round((submitted - seen[0][1]) / took, 1) if took > 0 else 0.0

    def keep(self, suppliers: Sequence[UUID]) -> None:
        """Forget all suppliers but these."""
        self._seen = {id: seen for id, seen in self._seen.items() if id in suppliers}


def written(connector: Connector) -> str:
    """A connector's report on its bound sessions, as a JSON list."""
    return msgspec.json.encode(connector.wires() if isinstance(connector, InspectableConnector) else []).decode()


def read(stored: str) -> WireActivity | None:
    """One session as stored in its row; None: it is not bound, or has no connection of its own."""
    return msgspec.json.decode(stored, type=WireActivity) if stored else None
