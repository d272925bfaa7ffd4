"""Web processes: each writes a row about itself every few seconds, as workers do, including its times for accepting
messages.

The rule nobody may break: it costs a message nothing; times are counted per batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import structlog

from heliograph import __version__
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.histogram import percentile
from heliograph.base.ids import uuid7
from heliograph.base.process import heartbeat, measures, memory
from heliograph.base.process.heartbeat import Process

log = structlog.get_logger()

#: Seconds covered by the times for accepting.
SPAN = 60.0
#: Maximum processes listed.
MOST = 100


class WebProcess(Process, frozen=True):
    """A web process seen within a minute."""

    #: Address of its metrics for Prometheus; "": none.
    metrics: str
    #: Histogram of messages accepted or refused within SPAN, by the time that took.
    accepting: list[int]


BEATS = """
INSERT INTO web_processes (id, name, started_at, seen_at, version, memory, metrics, accepting, secret_keys)
VALUES ($1, $2, now(), now(), $3, $4, $5, $6, $7)
ON CONFLICT (id) DO UPDATE SET seen_at = now(), memory = excluded.memory, accepting = excluded.accepting
"""
LIST = f"""
SELECT {heartbeat.COLUMNS}, metrics, accepting
  FROM web_processes WHERE {heartbeat.IS_LISTED} ORDER BY name, started_at LIMIT $1
"""


async def listed(conn: Connection) -> list[WebProcess]:
    """Web processes seen within a minute."""
    return [WebProcess(**row) for row in await conn.fetch(LIST, MOST)]


def accepted_within(webs: Sequence[WebProcess], share: float) -> float | None:
    """Seconds within which `share` (0 to 1) of the messages of the last minute were accepted; None: there were none."""
    counts = [sum(column) for column in zip(*(one.accepting for one in webs if one.accepting), strict=True)]
    return percentile(counts, share) if counts else None


class Recent:
    """The increase of monotonic counts within the last SPAN seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, list[int]]] = deque()

    def added(self, counts: Sequence[int], at: float) -> list[int]:
        """The increase since the last reading that is SPAN old, or else since the first one."""
        self._seen.append((at, list(counts)))
        while len(self._seen) > 1 and at - self._seen[1][0] >= SPAN:
            self._seen.popleft()
        return [now - before for now, before in zip(counts, self._seen[0][1], strict=True)]


async def attend(pool: Pool, *, metrics: str, secret_keys: list[bytes]) -> None:
    """Report every few seconds that this process is alive, until cancelled. `metrics`: the address of its metrics;
    `secret_keys`: their fingerprints."""
    id, name, recent = uuid7(), heartbeat.name(), Recent()
    try:
        while True:
            accepting = recent.added(measures.ACCEPTING, time.monotonic())
            try:
                await pool.execute(BEATS, id, name, __version__, memory.resident(), metrics, accepting, secret_keys)
            except Exception as error:
                if not is_down(error):
                    raise
                log.debug("web process heartbeat not written", error=type(error).__name__)
            await asyncio.sleep(heartbeat.BEAT)
    finally:
        try:
            async with asyncio.timeout(1):
                await pool.execute("DELETE FROM web_processes WHERE id = $1", id)
        except Exception as error:
            log.debug("web process not deregistered", error=type(error).__name__)


FORGET = "DELETE FROM web_processes WHERE id IN (SELECT id FROM web_processes WHERE seen_at < $1 LIMIT $2)"
