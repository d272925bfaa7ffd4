"""What an operator looks at first: throughput, what is waiting and for how long, and which suppliers carry it.

Rates come from PostgreSQL's own row counters, which cost nothing to read, so messages are not counted: a reading is
compared with one a few seconds older. All other queries are bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph import traffic
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.process import heartbeat
from heliograph.base.process.heartbeat import Process
from heliograph.base.sentences import Sentence, unpacked
from heliograph.health import snapshots
from heliograph.overview.installation import approvals, queued_work, steps
from heliograph.overview.installation.queued_work import Held
from heliograph.overview.installation.steps import Facts
from heliograph.queue import holds
from heliograph.suppliers.slots import IS_HELD
from heliograph.traffic.reconciliation import hour_of

#: Minimum span of a rate if there are enough readings, and how long readings are kept, in seconds.
SPAN, KEPT = 8.0, 30.0
#: Maximum rows of a list, and how far rows are counted: a count of one more means that there are more.
MOST, COUNTED = 100, 10_000
#: What rarely changes is queried at this interval, in seconds; while something is missing, every time.
SELDOM = 30.0


class Rates(msgspec.Struct, frozen=True):
    """Each a second."""

    accepted: float
    handed_over: float
    receipts: float
    webhooks: float


class Worker(Process, frozen=True):
    """A worker seen within a minute."""

    #: What an operator told it to do once it holds nothing more ("end" or "stay"; None: nothing), and since when it has
    #: been staying.
    drain: str | None
    drained_at: datetime | None
    #: Sessions at suppliers that it holds.
    sessions: int

    @property
    def state(self) -> str:
        """Its state in a word: works, draining, drained, gone."""
        if self.drain is not None:
            return "draining" if self.drained_at is None else "drained"
        return "gone" if self.is_gone else "works"


class Supplier(msgspec.Struct, frozen=True):
    """A supplier, and its sessions: allowed, leased by workers, bound."""

    id: UUID
    name: str
    kind: str
    state: str
    is_simulated: bool
    allowed: int
    leased: int
    bound: int
    #: Submits without a response, as last reported by workers.
    in_flight: int
    #: Segments per second handed over to it, as last reported by workers.
    rate: float
    waiting: int
    #: Why it carries nothing, or less than it could; empty: no problem is known.
    error: Sentence


class Now(msgspec.Struct, frozen=True):
    """The state of the installation."""

    #: None: too soon to say.
    rates: Rates | None
    #: By kind of work, how long the oldest item that could be sent is overdue, in seconds.
    late: dict[str, float]
    #: Rows in the queue by kind, counted as far as COUNTED.
    queued: dict[str, int]
    workers: list[Worker]
    suppliers: list[Supplier]
    holds: list[Held]
    #: Callbacks stored but not processed, of both channels; receipts of the last day that match nothing.
    callbacks: int
    orphaned: int
    #: Sender IDs that wait for an operator's decision.
    approvals: int
    database_bytes: int
    #: Age of the oldest open snapshot in seconds, and rows of the queue that vacuum has not removed.
    snapshot: float
    dead_rows: int
    at: datetime
    facts: Facts
    #: 95th percentile of the delivery time of live messages of both channels, in seconds, over this hour and the
    #: previous one; None: none arrived.
    delivered_within: float | None


def only_simulated(suppliers: Sequence[Supplier]) -> bool:
    """True if live messages go to a simulator, because there is no other supplier."""
    return bool(suppliers) and all(one.is_simulated for one in suppliers)


# Row counters since the last reset of statistics. A webhook's first success is written to its event, others are
# attempts.
COUNTERS = """
SELECT coalesce(sum(n_tup_ins) FILTER (WHERE relname ~ '^(whatsapp_)?messages_'), 0)::bigint AS accepted,
       coalesce(sum(n_tup_ins) FILTER (WHERE relname ~ '^attempts'), 0)::bigint AS handed_over,
       coalesce(sum(n_tup_ins) FILTER (WHERE relname ~ '^receipts_|^whatsapp_callbacks'), 0)::bigint AS receipts,
       coalesce(sum(n_tup_upd) FILTER (WHERE relname ~ '^events_'), 0)::bigint
       + coalesce(sum(n_tup_ins) FILTER (WHERE relname ~ '^webhook_attempts_'), 0)::bigint AS webhooks
  FROM pg_stat_user_tables
"""
QUEUED = f"""
SELECT kind, (SELECT count(*) FROM (SELECT FROM queue q WHERE q.kind = asked.kind LIMIT {COUNTED + 1}) counted) AS rows
  FROM unnest($1::text[]) AS asked (kind)
"""
WORKERS = f"""
SELECT {heartbeat.COLUMNS}, drain, drained_at,
       (SELECT count(*) FROM supplier_sessions s WHERE s.worker_id = w.id AND {IS_HELD}) AS sessions
  FROM workers w
 WHERE {heartbeat.IS_LISTED} ORDER BY name, started_at LIMIT $1
"""
# The error that ended an SMPP session says nothing about the one bound now; an HTTP error remains until a message is
# accepted.
SUPPLIERS = f"""
SELECT s.id, s.name, s.kind, s.state, s.simulated AS is_simulated, s.sessions AS allowed,
       coalesce(held.leased, 0) AS leased, coalesce(held.bound, 0) AS bound, coalesce(held.in_flight, 0) AS in_flight,
       coalesce(held.rate, 0) AS rate, coalesce(held.detail, '') AS error,
       (SELECT count(*) FROM (SELECT FROM queue q WHERE q.kind = 'sms' AND q.line = s.id LIMIT {COUNTED + 1}) counted)
       AS waiting
  FROM suppliers s
       LEFT JOIN LATERAL (SELECT count(*) AS leased, count(*) FILTER (WHERE bound) AS bound,
                                 sum(in_flight)::int AS in_flight, sum(rate) AS rate,
                                 max(detail) FILTER (WHERE NOT (bound AND s.kind = 'smpp')) AS detail
                            FROM supplier_sessions WHERE supplier_id = s.id AND {IS_HELD}) held ON true
 WHERE s.state <> 'removed' ORDER BY s.priority, s.name LIMIT $1
"""
REST = f"""
SELECT (SELECT count(*) FROM (SELECT FROM whatsapp_callbacks LIMIT {COUNTED + 1}) waiting)
       + (SELECT count(*) FROM (SELECT FROM supplier_callbacks LIMIT {COUNTED + 1}) waiting) AS callbacks,
       (SELECT coalesce(sum(count), 0) FROM reconciliation
         WHERE day >= (now() AT TIME ZONE 'utc')::date - 1 AND hour > now() - interval '1 day'
           AND what = 'orphaned')::bigint AS orphaned,
       {snapshots.OLDEST} AS snapshot, {snapshots.HORIZON} AS horizon,
       (SELECT coalesce(max(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relname = 'queue') AS dead_rows,
       pg_database_size(current_database()) AS database_bytes, now() AS at
"""


async def workers(conn: Connection) -> list[Worker]:
    """Workers seen within a minute."""
    return [Worker(**row) for row in await conn.fetch(WORKERS, MOST)]


async def suppliers(conn: Connection) -> list[Supplier]:
    """All suppliers that were not removed, with what is waiting for each."""
    rows = await conn.fetch(SUPPLIERS, MOST)
    return [Supplier(**dict(row) | {"error": unpacked(row["error"])}) for row in rows]


class Watch:
    """One per process: keeps earlier readings of the counters."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = monotonic
        self._standbys = snapshots.Standbys(monotonic=monotonic)
        self._seen: deque[tuple[float, tuple[int, ...]]] = deque()
        self._facts: tuple[float, Facts] | None = None
        self._delivered: tuple[float, float | None] | None = None

    async def read(self, conn: Connection) -> Now:
        """The state of the installation now."""
        counters = await conn.fetchrow(COUNTERS)
        found = await conn.fetchrow(REST)
        assert counters is not None
        assert found is not None
        rest = dict(found)
        rest["snapshot"] = self._standbys.oldest(rest["snapshot"], rest.pop("horizon"))
        return Now(
            rates=self._rates(tuple(counters.values())),
            late={kind: await holds.late(conn, kind, without=()) for kind in holds.OUTGOING},
            queued={row["kind"]: row["rows"] for row in await conn.fetch(QUEUED, list(holds.OUTGOING))},
            workers=await workers(conn),
            suppliers=await suppliers(conn),
            holds=await queued_work.listed(conn),
            approvals=(await approvals.waits(conn)).count,
            facts=await self._look(conn),
            delivered_within=await self._within(conn),
            **rest,
        )

    async def _look(self, conn: Connection) -> Facts:
        if self._facts is None or not self._facts[1].setup.is_done or self._now() - self._facts[0] >= SELDOM:
            self._facts = (self._now(), await steps.read(conn))
        return self._facts[1]

    async def _within(self, conn: Connection) -> float | None:
        if self._delivered is None or self._now() - self._delivered[0] >= SELDOM:
            taken = await traffic.delivered(conn, since=hour_of(clock.now() - timedelta(hours=1)))
            self._delivered = (self._now(), traffic.percentile(taken, 0.95) if any(taken) else None)
        return self._delivered[1]

    def _rates(self, counters: tuple[int, ...]) -> Rates | None:
        at = self._now()
        while self._seen and at - self._seen[0][0] > KEPT:
            self._seen.popleft()
        # Counters that decreased were reset: earlier readings are meaningless.
        if self._seen and any(now < before for now, before in zip(counters, self._seen[-1][1], strict=True)):
            self._seen.clear()
        old = next((one for one in reversed(self._seen) if at - one[0] >= SPAN), self._seen[0] if self._seen else None)
        self._seen.append((at, counters))
        if old is None or at - old[0] < 1:
            return None
        took = at - old[0]
        return Rates(*((now - before) / took for now, before in zip(counters, old[1], strict=True)))
