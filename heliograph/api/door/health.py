"""The health check: queries the database at most every other second.

The probe needs no key, so any number of probes must cost the database the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.loading_cache import LoadingCache
from heliograph.base.process.heartbeat import IS_ALIVE
from heliograph.queue import backlog
from heliograph.queue.leases import sample
from heliograph.queue.workers import WORKS
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.mirror import warnings

#: Work overdue by more than this many seconds means that the queue is not keeping up.
QUEUE_LATE = 60
#: Due rows read, and, if there are more, organizations asked per kind of work.
LOOKED, PLACES = 5_000, 100
#: Maximum time to wait for the database, in seconds.
PATIENCE = 2.0
MAX_AGE = 2.0

Check = Literal["ok", "degraded", "down"]


class Checks(msgspec.Struct, frozen=True):
    """The result of each check. `whatsapp` concerns individual organizations' accounts and does not affect the
    service's status."""

    database: Annotated[
        Check,
        Meta(
            description=(
                "`down` when the database does not respond; `degraded` when it could not store the last message sent to"
                " this process, in the last five minutes, as when its disk is full."
            )
        ),
    ]
    queue: Annotated[Check, Meta(description="`degraded` when work has been overdue for more than a minute.")]
    worker: Annotated[Check, Meta(description="Whether a worker has been seen in the last 15 seconds.")]
    clock: Annotated[
        Check,
        Meta(
            description=(
                "`degraded` when the clock of this process or of a worker differs from the database's by 5 s or more."
            )
        ),
    ]
    whatsapp: Annotated[
        Check,
        Meta(
            description=(
                "`degraded` when Meta blocks or warns about a WhatsApp account or number; `heliograph "
                "doctor` names it. This does not affect `status`."
            )
        ),
    ] = "ok"

    @property
    def is_ok(self) -> bool:
        """True if the service is working."""
        return (self.database, self.queue, self.worker, self.clock) == ("ok", "ok", "ok", "ok")


DOWN = Checks("down", "down", "down", "down", "down")

# The age of the oldest due row that no worker holds. A row that was put back because its supplier had no room keeps the
# age of its place. Campaigns (lane 1) may legitimately wait for a long time if they are large, and a WhatsApp number's
# messages for as long as its organization's credential is invalid. What waits behind a receiver that fails is not late
# through our fault. Nor is work held by operators: otherwise a restored installation, which holds everything, would
# never be healthy.
#
# A sample, because a long queue must not cost more: reading the rows of a campaign of two million took longer than
# PATIENCE, and no process was ready any more. Kinds are found by skipping from one to the next.
CHECK = f"""
WITH RECURSIVE held AS MATERIALIZED ({holds.HELD}), kinds (kind) AS (
    (SELECT kind FROM queue ORDER BY kind LIMIT 1)
    UNION ALL
    SELECT next.kind FROM kinds CROSS JOIN LATERAL (
        SELECT kind FROM queue WHERE queue.kind > kinds.kind ORDER BY kind LIMIT 1) next
), {sample("kinds", looked="$2", most="$3")}
SELECT coalesce((SELECT extract(epoch FROM now() - min(coalesce(since, due_at))) FROM sample AS queue
                  WHERE NOT (kind = 'whatsapp' AND line = ANY (ARRAY(SELECT id FROM held)))
                    AND NOT ({backlog.HELD}) AND NOT {backlog.WAITS_FOR_RECEIVER}), 0)
           AS late,
       EXISTS (SELECT FROM workers WHERE {IS_ALIVE} AND {WORKS}) AS worker,
       EXISTS (SELECT FROM workers WHERE {IS_ALIVE} AND abs(clock_ahead) > $1) AS skewed,
       EXISTS (SELECT FROM held)
       OR EXISTS (SELECT FROM whatsapp_warnings w JOIN whatsapp_accounts a
                          ON a.organization_id = w.organization_id AND a.id = w.account_id
                   WHERE {warnings.IS_OPEN} AND a.state <> 'removed') AS troubled
"""


class HealthChecks:
    """One per process."""

    def __init__(self, pool: Pool, *, is_refusing: Callable[[], bool] = lambda: False) -> None:
        """`is_refusing`: whether the database could not store the last message. A probe writes nothing."""
        self._pool = pool
        self._is_refusing = is_refusing
        self._fresh: LoadingCache[str, Checks] = LoadingCache(self._load, max_age=MAX_AGE)
        #: How long the oldest work had been overdue at the last check, in seconds.
        self.late = 0.0

    async def read(self) -> Checks:
        """The current checks, at most MAX_AGE old. A database that is down is a result, not an exception."""
        return await self._fresh.get("checks") or DOWN

    async def _load(self, keys: Sequence[str]) -> dict[str, Checks]:
        try:
            async with asyncio.timeout(PATIENCE), self._pool.acquire() as conn:
                row = await conn.fetchrow(CHECK, clock.MOST, LOOKED, PLACES)
        except Exception as error:
            if not is_down(error):
                raise
            return dict.fromkeys(keys, DOWN)
        assert row is not None
        self.late = float(row["late"])
        database: Check = "degraded" if self._is_refusing() else "ok"
        queue: Check = "degraded" if row["late"] > QUEUE_LATE else "ok"
        right: Check = "degraded" if row["skewed"] or clock.differs() else "ok"
        whatsapp: Check = "degraded" if row["troubled"] else "ok"
        return dict.fromkeys(keys, Checks(database, queue, "ok" if row["worker"] else "down", right, whatsapp))
