"""The feed: an organization's events in order, for clients that fetch what they missed.

The rule nobody may break: a client that continues from the position of the last event it read misses nothing. Ids are
created before their transactions commit, so an event may become visible after one with a higher id. The feed therefore
ends before the oldest transaction that may still add one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7_floor
from heliograph.webhooks.delivery.attempts import type_of
from heliograph.webhooks.recording import texts
from heliograph.webhooks.recording.events import KINDS
from heliograph.webhooks.recording.texts import Stored

#: An event is shown this many seconds after it was recorded. This covers the time between creating an id and the first
#: write of its transaction, and clock differences between machines.
SETTLING = 3.0
#: How many events one call scans, including those of the other mode: about 2 ms; and when filtering by kind: about
#: 10 ms. Rare kinds are found over several calls.
LOOK, LOOK_FOR_KIND = 2_000, 10_000

START = UUID(int=0)


class Recorded(msgspec.Struct, frozen=True):
    """One event. `data` is JSON."""

    id: UUID
    kind: str
    request_id: str
    data: str
    created_at: datetime


class Page(msgspec.Struct, frozen=True):
    """Events in order, and the position after them; `more`: there are more after it."""

    events: list[Recorded]
    position: UUID
    more: bool


# A separate statement, run before the one that reads, so that commits between the two are seen. Read-only transactions
# (a dump, a report) delay nothing. A transaction that waits for a lock may be about to write. Only sessions of roles
# whose rights this role has are ours: one that sees all sessions (`pg_read_all_stats`) must not wait for the others.
SETTLED = """
SELECT least(now(), min(xact_start)) - make_interval(secs => $1)
  FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND pg_has_role(usesysid, 'USAGE')
   AND (backend_xid IS NOT NULL OR wait_event_type = 'Lock')
"""

# `stopped`: where the scan ended because of its limit, or NULL.
READ = """
WITH looked AS MATERIALIZED (
    SELECT id, kind, mode, row_number() OVER (ORDER BY id) AS place FROM (
        SELECT id, kind, mode FROM events WHERE organization_id = $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $5) first
)
SELECT (SELECT id FROM looked WHERE place = $5) AS stopped, found.*
  FROM (SELECT) one LEFT JOIN LATERAL (
       SELECT event.* FROM (SELECT id FROM looked WHERE ($4::text IS NULL OR kind = $4) AND mode = ANY ($7)
                             ORDER BY id LIMIT $6) chosen
              CROSS JOIN LATERAL (
              SELECT id, kind, request_id, data, created_at FROM events
               WHERE organization_id = $1 AND id = chosen.id) event
        ORDER BY event.id) found ON true
"""


async def read(
    conn: Connection,
    actor: Actor,
    *,
    after: UUID | None = None,
    kind: str | None = None,
    date_from: datetime | None = None,
    date_to: datetime | None = None,
    limit: int,
) -> Page:
    """Up to `limit` events of the actor's mode after the position `after`, oldest first.

    `date_from` (inclusive) and `date_to` (exclusive) bound when they were recorded. A page may be short, or empty,
    though more events follow. Raises Invalid for an unknown kind.
    """
    if kind is not None and kind not in KINDS:
        raise Invalid(("kind", "enum", f"`kind` must be one of {', '.join(KINDS)}"))
    position = after or START
    if date_from is not None:
        position = max(position, UUID(int=uuid7_floor(date_from).int - 1))
    end = uuid7_floor(await conn.fetchval(SETTLED, SETTLING))
    if date_to is not None:
        end = min(end, uuid7_floor(date_to))
    look = LOOK if kind is None else LOOK_FOR_KIND
    # One extra row shows whether there are more.
    rows = await conn.fetch(READ, actor.organization_id, position, end, kind, look, limit + 1, actor.modes)
    stopped: UUID | None = rows[0]["stopped"]
    found = await opened(conn, actor, [Recorded(*event) for _, *event in rows if event[0] is not None])
    found = [msgspec.structs.replace(one, kind=type_of(one.kind)) for one in found]
    if len(found) > limit:
        return Page(found[:limit], found[limit - 1].id, True)
    if stopped is not None:
        return Page(found, stopped, True)
    return Page(found, found[-1].id if found else position, False)


GET = """
SELECT id, kind, request_id, data, created_at FROM events
 WHERE organization_id = $1 AND id = ANY ($2) AND mode = ANY ($3) ORDER BY id
"""


async def get_many(conn: Connection, actor: Actor, *, ids: Sequence[UUID]) -> list[Recorded]:
    """These events, oldest first; those not visible to the actor are omitted."""
    rows = await conn.fetch(GET, actor.organization_id, list(ids), list(actor.modes))
    return await opened(conn, actor, [Recorded(*row) for row in rows])


async def opened(conn: Connection, actor: Actor, events: Sequence[Recorded]) -> list[Recorded]:
    """Stored events of the actor's organization, with their texts opened."""
    stored = [Stored(actor.organization_id, one.id, one.kind, one.data) for one in events]
    data = await texts.opened(conn, stored)
    return [msgspec.structs.replace(one, data=said) for one, said in zip(events, data, strict=True)]
