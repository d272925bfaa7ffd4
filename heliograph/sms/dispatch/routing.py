"""Suppliers as their rows say, and when one is avoided for a while. Pure, apart from loading the table.

Who may carry a message, and in which order, is looked up in `routes/lookup.py`. A failing supplier is skipped
(a circuit breaker) and probed with single messages until one succeeds.

The rule nobody may break: routing never sends a message elsewhere while its last attempt may have reached somebody.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection


class Supplier(msgspec.Struct, frozen=True):
    """One account, as its row says. `secret` is still sealed."""

    id: UUID
    name: str
    kind: str
    settings: dict[str, Any]
    secret: bytes
    state: str
    #: E.164 digits without `+`; empty: everything.
    prefixes: tuple[str, ...]
    priority: int
    weight: int
    sessions: int
    parts: str
    created_at: datetime
    changed_at: datetime
    #: An operator holds whatever would go through it (`queue.holds`).
    held: bool = False
    #: Partial holds: of an organization, of ids below this one, or of both.
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
    """All suppliers that were not removed, by priority and name."""
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


async def carriage(conn: Connection, recipient: str | None) -> Literal["networks", "simulator", "nobody"]:
    """Who would carry a live message to a number, or to most numbers: real networks, a simulator, or nobody."""
    able = [one for one in serving(await load(conn)) if recipient is None or covers(one, recipient)]
    if not able:
        return "nobody"
    return "simulator" if all(one.simulated for one in able) else "networks"


def covers(supplier: Supplier, recipient: str) -> bool:
    """True if the supplier carries to this E.164 number."""
    return not supplier.prefixes or recipient[1:].startswith(supplier.prefixes)


def holds_back(supplier: Supplier, organization_id: UUID, message_id: UUID) -> bool:
    """True if an operator holds this message if it would go through this supplier."""
    return any(
        (organization is None or organization == organization_id) and (before is None or message_id < before)
        for organization, before in supplier.holds
    )


def serving(suppliers: Iterable[Supplier]) -> list[Supplier]:
    """Those that carry live messages: simulators only if there is nothing else, paused or not."""
    known = list(suppliers)
    return [one for one in known if not one.simulated] or known


def overlap(one: Supplier, other: Supplier) -> bool:
    """True if there are numbers that both cover."""
    if not one.prefixes or not other.prefixes:
        return True
    return any(a.startswith(b) or b.startswith(a) for a in one.prefixes for b in other.prefixes)


class Breaker:
    """Tracks a supplier's failures. Open after 20 failures in a row, or when over half of at least 20 answers within 60
    s failed; then one message every 15 s is let through, and the first success closes it. Messages that were already on
    their way when it opened no longer count: at a supplier that fails seven times in ten, some of them succeed."""

    IN_A_ROW = 20
    WINDOW = 60.0
    PROBE = 15.0
    #: After this long without a message, earlier unanswered ones no longer count.
    IDLE = 60.0
    #: An answer that takes longer than this is slow.
    SLOW = 5.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._row = 0
        self._answers: deque[tuple[float, bool]] = deque()
        self._failures = 0
        self._next_probe = 0.0
        # Whether a message is out, or was put off; since when nothing was accepted or refused; when the last one was
        # sent.
        self._waits = False
        self._since = self._asked = clock()
        self._put_off = -self.WINDOW
        self.open = False
        #: When it opened, by `clock`.
        self._opened = 0.0
        #: How often it has opened.
        self.openings = 0

    def usable(self) -> bool:
        """True if a message may go there now; in the open state, when it is time for a probe."""
        return not self.open or self._clock() >= self._next_probe

    def begin_probe(self) -> None:
        """A message is sent as a probe; the next one may follow after PROBE seconds."""
        self._next_probe = self._clock() + self.PROBE

    def record(self, *, ok: bool, sent_in: int | None = None) -> None:
        """An answer came, or did not. `sent_in`: `openings` when the message went out; None: just now."""
        if sent_in not in (None, self.openings):
            return
        at = self._clock()
        if ok:
            self._row = 0
            if self.open:
                self.open = False
                self._answers.clear()
                self._failures = 0
        else:
            self._row += 1
            self._failures += 1
        self._answers.append((at, ok))
        while self._answers and self._answers[0][0] < at - self.WINDOW:
            self._failures -= not self._answers.popleft()[1]
        if not self.open and (
            self._row >= self.IN_A_ROW
            or (len(self._answers) >= self.IN_A_ROW and self._failures * 2 > len(self._answers))
        ):
            self.trip()

    def trip(self) -> None:
        """Open the circuit."""
        self.open = True
        self._opened = self._clock()
        self.openings += 1
        self._next_probe = self._clock() + self.PROBE

    def open_for(self) -> float:
        """Seconds since it opened."""
        return self._clock() - self._opened

    def asked(self) -> None:
        """A message goes out."""
        at = self._clock()
        if not self._waits or at - self._asked > self.IDLE:
            self._waits, self._since = True, at
        self._asked = at

    def moved(self) -> None:
        """A message was accepted, or refused permanently: the supplier works."""
        self._waits = False

    def put_off(self) -> None:
        """It throttles, or its session is in trouble."""
        self._put_off = self._clock()

    def is_slow(self) -> bool:
        """True if it has recently put messages off, or has not answered for a while."""
        at = self._clock()
        return at - self._put_off < self.WINDOW or (self._waits and at - self._since > self.SLOW)

    def stalls(self, patience: float) -> bool:
        """True if for that many seconds it has only put messages off, or not answered."""
        return self._waits and self._clock() - self._since > patience


class Senders:
    """Senders that one supplier refuses individually, which says nothing about the supplier itself."""

    #: How many are remembered.
    MOST = 10_000

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: OrderedDict[str, Breaker] = OrderedDict()

    def refused(self, sender: str) -> None:
        """The sender, or a message from it, was refused."""
        breaker = self._breakers.setdefault(sender, Breaker(self._clock))
        self._breakers.move_to_end(sender)
        breaker.record(ok=False)
        if len(self._breakers) > self.MOST:
            self._breakers.popitem(last=False)

    def taken(self, sender: str) -> None:
        """A message from it was accepted."""
        if self._breakers:
            self._breakers.pop(sender, None)

    def avoided(self, sender: str) -> bool:
        """True while others should be asked first; one message every Breaker.PROBE seconds may still probe."""
        breaker = self._breakers.get(sender) if self._breakers else None
        if breaker is None or not breaker.open:
            return False
        if breaker.usable():
            breaker.begin_probe()
            return False
        return True
