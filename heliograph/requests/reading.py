"""Reading the request log: a list with filters, one request with its siblings, errors by code, and counts per hour.

The rule nobody may break: every query names the organization and the modes that the actor may see.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.bounded_scan import LOOK
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import time_of

#: Maximum groups of errors listed, and siblings of a request.
GROUPS, SIBLINGS = 50, 20
CLASSES = ("2xx", "3xx", "4xx", "5xx")


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its response."""

    id: UUID
    at: datetime
    mode: str
    #: The API key, or the person on the dashboard.
    key_id: UUID | None = None
    person_id: UUID | None = None
    method: str
    path: str
    operation: str
    status: int
    error_code: str = ""
    #: None for an accepted send: not known.
    duration_ms: int | None = None
    address: str = ""
    agent: str = ""
    request_id: str
    idempotency: str = ""
    key_hash: UUID | None = None
    body: str = ""
    answer: str = ""
    #: The message created by an accepted send.
    message_id: UUID | None = None


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Which requests are wanted; None matches all."""

    #: One of CLASSES.
    status_class: str | None = None
    status: int | None = None
    method: str | None = None
    #: This path and those below it.
    path: str | None = None
    error_code: str | None = None
    operation: str | None = None
    key_id: UUID | None = None
    request_id: str | None = None
    date_from: datetime | None = None
    date_to: datetime | None = None


class RequestPage(msgspec.Struct, frozen=True):
    """Up to `limit` + 1 requests, newest first. `seen`: the id at which the scan stopped before finding that many."""

    requests: list[LogEntry]
    seen: UUID | None


class Group(msgspec.Struct, frozen=True):
    """Refusals of one operation for one reason."""

    error_code: str
    operation: str
    status: int
    count: int
    first_at: datetime
    last_at: datetime


class Hour(msgspec.Struct, frozen=True):
    """Requests of an hour, by status class."""

    at: datetime
    fine: int
    refused: int
    failed: int


_COLUMNS = (
    "id, mode, key_id, person_id, method, path, operation, status, error_code, duration_ms, address, agent,"
    " request_id, idempotency, key_hash"
)
LIST = bounded_scan.statement(
    "requests",
    _COLUMNS,
    fits="""
           mode = ANY ($6) AND ($7::smallint IS NULL OR status / 100 = $7) AND ($8::text IS NULL OR error_code = $8)
           AND ($9::text IS NULL OR operation = $9) AND ($10::uuid IS NULL OR coalesce(key_id = $10, false))
           AND ($11::text IS NULL OR request_id = $11) AND ($12::text IS NULL OR method = $12)
           AND ($13::text IS NULL OR path = $13 OR starts_with(path, $13 || '/'))
           AND ($14::smallint IS NULL OR status = $14)""",
)


async def list_page(
    conn: Connection, actor: Actor, *, filters: Filters, after: UUID | None = None, limit: int = 50, look: int = LOOK
) -> RequestPage:
    """Requests older than `after`, newest first: up to `limit` + 1. Scans at most `look` of them."""
    none = timedelta()
    rows = await conn.fetch(
        LIST,
        actor.organization_id,
        # The time of a request is that of its id.
        *bounded_scan.bounds(after, date_from=filters.date_from, date_to=filters.date_to, slack=none, ahead=none),
        limit + 1,
        look,
        list(actor.modes),
        None if filters.status_class is None else int(filters.status_class[0]),
        filters.error_code,
        filters.operation,
        filters.key_id,
        filters.request_id,
        filters.method,
        filters.path,
        filters.status,
    )
    found, seen = bounded_scan.judged(rows, limit=limit, look=look)
    return RequestPage([_asked(row) for row in found], seen)


GET = f"""
SELECT {_COLUMNS}, body, answer FROM requests WHERE organization_id = $1 AND id = $2
UNION ALL
SELECT {_COLUMNS}, body, answer FROM (
    SELECT * FROM requests WHERE organization_id = $1 AND request_id = $3 AND request_id IS NOT NULL
     ORDER BY id DESC LIMIT 1) named
 LIMIT 1
"""


async def get(conn: Connection, actor: Actor, *, id: UUID) -> LogEntry:
    """A request by its id in the log, or by its `x-request-id`. Raises NotFound."""
    row = await conn.fetchrow(GET, actor.organization_id, id, str(id))
    if row is None or row["mode"] not in actor.modes:
        raise NotFound("There is no such request.", resource="request", id=str(id))
    return _asked(row)


NAMED = f"""
SELECT {_COLUMNS}, body, answer FROM requests WHERE organization_id = $1 AND request_id = $2 AND mode = ANY ($3)
 ORDER BY id DESC LIMIT 1
"""


async def by_request_id(conn: Connection, actor: Actor, *, request_id: str) -> LogEntry | None:
    """The latest request with this `x-request-id`."""
    row = await conn.fetchrow(NAMED, actor.organization_id, request_id, list(actor.modes))
    return None if row is None else _asked(row)


OF_KEY = f"""
SELECT {_COLUMNS} FROM requests WHERE organization_id = $1 AND key_hash = $2 AND key_hash IS NOT NULL
   AND mode = ANY ($3)
 ORDER BY id DESC LIMIT $4
"""


async def siblings(conn: Connection, actor: Actor, *, of: LogEntry) -> list[LogEntry]:
    """Other requests with the same idempotency key, newest first."""
    if of.key_hash is None:
        return []
    rows = await conn.fetch(OF_KEY, actor.organization_id, of.key_hash, list(actor.modes), SIBLINGS)
    return [_asked(row) for row in rows if row["id"] != of.id]


ERRORS = """
SELECT error_code, operation, status, sum(count)::bigint AS count, min(first_at) AS first_at, max(last_at) AS last_at
  FROM request_counts
 WHERE organization_id = $1 AND hour >= date_trunc('hour', $2::timestamptz) AND hour < $3 AND mode = ANY ($4)
   AND error_code <> ''
 GROUP BY error_code, operation, status ORDER BY count DESC, error_code, operation LIMIT $5
"""


async def errors(conn: Connection, actor: Actor, *, since: datetime, until: datetime) -> list[Group]:
    """Refusals grouped by reason and operation, most frequent first; partial hours count in full."""
    rows = await conn.fetch(ERRORS, actor.organization_id, since, until, list(actor.modes), GROUPS)
    return [Group(*row) for row in rows]


COURSE = """
SELECT hour, coalesce(sum(count) FILTER (WHERE status < 400), 0)::bigint,
       coalesce(sum(count) FILTER (WHERE status BETWEEN 400 AND 499), 0)::bigint,
       coalesce(sum(count) FILTER (WHERE status >= 500), 0)::bigint
  FROM request_counts
 WHERE organization_id = $1 AND hour >= date_trunc('hour', $2::timestamptz) AND hour < $3 AND mode = ANY ($4)
 GROUP BY hour ORDER BY hour
"""


async def course(conn: Connection, actor: Actor, *, since: datetime, until: datetime) -> list[Hour]:
    """Requests per hour; hours without any are omitted."""
    rows = await conn.fetch(COURSE, actor.organization_id, since, until, list(actor.modes))
    return [Hour(*row) for row in rows]


def _asked(row: asyncpg.Record) -> LogEntry:
    values = {name: row[name] for name in LogEntry.__struct_fields__ if name in row}
    return LogEntry(at=time_of(row["id"]), **values)
