"""Writing the request log: entries are collected in memory and written once a second, within fixed limits.

The rule nobody may break: the client has its response before anything here happens. Requests in excess of the limits
are still counted, and entries that a process holds when it is killed are lost: this is a log, not accounting.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from uuid import UUID

import msgspec
import structlog

from heliograph.base.database import clock
from heliograph.base.database.batching import Whole
from heliograph.base.database.pool import Pool
from heliograph.base.process import measures
from heliograph.requests import blanking

log = structlog.get_logger(__name__)

#: Seconds between two writes.
EVERY = 1.0
#: Maximum rows per write, rows per organization in it, and bytes of bodies waiting for it.
MOST, MOST_OF_ONE, MOST_BYTES = 2_000, 200, 2_000_000
#: Maximum distinct counters per write: organizations times operations times outcomes.
MOST_COUNTS = 20_000
#: Days that the log is kept.
DAYS = 30
#: Characters kept of a client's description of itself.
LONGEST_SAID = 200


class Entry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that has been answered."""

    organization_id: UUID
    #: UUIDv7 of the time of the request.
    id: UUID
    mode: str
    key_id: UUID | None = None
    #: Set for requests to the dashboard.
    person_id: UUID | None = None
    method: str
    #: Contains ids only, as returned by `blanking.path`.
    path: str
    operation: str
    status: int
    error_code: str = ""
    duration_ms: int
    address: str
    agent: str
    request_id: str
    #: "stored", "replayed", "conflict" or "".
    idempotency: str = ""
    key_hash: UUID | None = None
    #: As received and sent; redacted before they are written.
    body: bytes = b""
    answer: bytes = b""


# (organization, mode, operation, status, error code)
_Counter = tuple[UUID, str, str, int, str]

# Ordered by key, so that two processes that update the same counters cannot deadlock.
COUNT = """
INSERT INTO request_counts AS known (organization_id, hour, mode, operation, status, error_code, count, first_at,
                                     last_at)
SELECT organization_id, date_trunc('hour', now(), 'UTC'), mode, operation, status, error_code, count, first_at, last_at
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::smallint[], $5::text[], $6::bigint[], $7::timestamptz[],
              $8::timestamptz[])
       AS item (organization_id, mode, operation, status, error_code, count, first_at, last_at)
 ORDER BY organization_id, mode, operation, status, error_code
    ON CONFLICT (organization_id, hour, mode, operation, status, error_code) DO UPDATE
   SET count = known.count + excluded.count, first_at = least(known.first_at, excluded.first_at),
       last_at = greatest(known.last_at, excluded.last_at)
"""
STORE = """
INSERT INTO requests (organization_id, id, mode, key_id, person_id, method, path, operation, status, error_code,
                      duration_ms, address, agent, request_id, idempotency, key_hash, body, answer)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[], $5::uuid[], $6::text[], $7::text[], $8::text[],
                     $9::smallint[], $10::text[], $11::integer[], $12::text[], $13::text[], $14::text[], $15::text[],
                     $16::uuid[], $17::text[], $18::text[])
"""


class Log:
    """One per process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._writes = Whole()
        self._clear()

    def count(self, organization_id: UUID, mode: str, operation: str, status: int, error_code: str = "") -> None:
        """Count an answered request. This is all that an accepted send costs."""
        counter = (organization_id, mode, operation, status, error_code)
        try:
            self._counts[counter] += 1
        except KeyError:
            if len(self._counts) < MOST_COUNTS:
                self._counts[counter] = 1

    def note(self, entry: Entry) -> None:
        """Count a request and, if there is room, log it individually."""
        self.count(entry.organization_id, entry.mode, entry.operation, entry.status, entry.error_code)
        mine = self._of.get(entry.organization_id, 0)
        if len(self._entries) >= MOST or mine >= MOST_OF_ONE or self._bytes > MOST_BYTES:
            self._left_out += 1
            return
        # A body too long to be examined need not be held either.
        if len(entry.body) > blanking.LONGEST:
            entry = msgspec.structs.replace(entry, body=b"")
        self._entries.append(entry)
        self._of[entry.organization_id] = mine + 1
        self._bytes += len(entry.body) + len(entry.answer)

    async def run(self) -> None:
        """Write the accumulated entries and counts, periodically, until canceled."""
        while True:
            await asyncio.sleep(EVERY)
            await self.close()

    async def close(self) -> None:
        """Write the accumulated entries and counts; if the database does not accept them, they are lost, and a log line
        says how many."""
        await self._writes.run(self._write)

    async def _write(self) -> None:
        entries, counts, left_out, since = self._entries, self._counts, self._left_out, self._since
        self._clear()
        if not counts:
            return
        for (_, _, operation, status, code), count in counts.items():
            measures.REQUESTS.add(operation, str(status), code, by=count)
        if left_out:
            log.info("requests dropped from the request log", requests=left_out)
        try:
            async with self._pool.acquire() as conn:
                await conn.execute(COUNT, *_columns([(*key, n, since, clock.now()) for key, n in counts.items()]))
                if entries:
                    await conn.execute(STORE, *_columns([await _row(one) for one in entries]))
        except Exception as error:
            log.warning("request log not written", error=type(error).__name__, requests=sum(counts.values()))

    def _clear(self) -> None:
        self._entries: list[Entry] = []
        self._counts: dict[_Counter, int] = {}
        self._of: dict[UUID, int] = {}
        self._bytes = self._left_out = 0
        self._since: datetime = clock.now()


async def _row(one: Entry) -> tuple[object, ...]:
    # Yields, so that a request served in the meantime waits for one body at most.
    await asyncio.sleep(0)
    return (
        one.organization_id,
        one.id,
        one.mode,
        one.key_id,
        one.person_id,
        one.method,
        one.path,
        one.operation,
        one.status,
        one.error_code,
        one.duration_ms,
        one.address,
        _said(one.agent),
        _said(one.request_id),
        one.idempotency,
        one.key_hash,
        blanking.body(one.body).replace("\0", ""),
        blanking.answer(one.answer).replace("\0", ""),
    )


def _said(text: str) -> str:
    return "".join(letter for letter in text[:LONGEST_SAID] if letter.isprintable())


def _columns(rows: list[tuple[object, ...]]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)]
