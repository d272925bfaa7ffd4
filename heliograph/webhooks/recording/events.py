"""Events: recorded in the transaction that causes them, and queued for their subscribers.

The rule nobody may break: an event is one row with one id forever. Attempts, replays and late receipts never make a
second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal, Protocol, get_args
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.loading_cache import LoadingCache
from heliograph.webhooks.recording import texts
from heliograph.webhooks.recording.texts import Stored

#: Kinds that an endpoint may subscribe to; the first two are defined by the contract.
KINDS = (
    "message.delivered",
    "message.failed",
    "message.sent",
    "message.read",
    "message.received",
    "contact.opted_out",
    "campaign.completed",
    "sender_id.approved",
    "sender_id.rejected",
    "whatsapp.template.updated",
    "whatsapp.phone_number.updated",
    "notice.created",
    "webhook.test",
)
#: Kinds that occur with every message or often. Since each event is a row, they are recorded only for organizations
#: with an endpoint that subscribes to them, and the feed of events lists them only then.
OnRequest = Literal["message.sent", "message.read", "notice.created"]
ON_REQUEST: tuple[str, ...] = get_args(OnRequest)
#: Maximum characters of a user's text in an event: even if all are escaped, its body stays below 20 kB.
SHOWN_TEXT = 3_000


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event. `data` is the JSON object sent as `data`, under 20 kB."""

    organization_id: UUID
    id: UUID
    kind: str
    request_id: str
    data: str
    created_at: datetime
    message_id: UUID | None = None
    #: Only endpoints and keys of this mode receive it. Events about shared resources are live.
    mode: str = "live"


# A delivery is inserted already leased ($10, for $11 seconds) while its endpoint, one of $9, has room; $12 is the room
# of each. None is leased while any hold by an operator is in force: the claim checks which.
RECORD = """
WITH event AS MATERIALIZED (
    SELECT unnest($1::uuid[]) AS organization_id, unnest($2::uuid[]) AS id, unnest($3::text[]) AS kind,
           unnest($4::text[]) AS request_id, unnest($5::text[]) AS data, unnest($6::timestamptz[]) AS created_at,
           unnest($7::uuid[]) AS message_id, unnest($8::text[]) AS mode,
           generate_series(1, cardinality($1::uuid[])) AS n
), stored AS (
    INSERT INTO events (organization_id, id, kind, request_id, data, created_at, message_id, mode)
    SELECT organization_id, id, kind, request_id, data, created_at, message_id, mode FROM event
), delivery AS MATERIALIZED (
    SELECT event.n, event.organization_id, event.id, endpoint.id AS line,
           cardinality($9::uuid[]) > 0 AND NOT EXISTS (SELECT FROM queue_holds WHERE kind = 'webhook')
           AND row_number() OVER (PARTITION BY endpoint.id ORDER BY event.n)
               <= coalesce(($12::integer[])[array_position($9::uuid[], endpoint.id)], 0) AS ours
      FROM event CROSS JOIN LATERAL (
           SELECT id FROM webhook_endpoints
            WHERE organization_id = event.organization_id AND status = 'active' AND mode = event.mode
              AND event.kind = ANY (subscribed_events)
           OFFSET 0  -- otherwise the endpoints of all organizations might be scanned
           ) endpoint
), queued AS (
    INSERT INTO queue (kind, line, organization_id, due_at, id, claims, lease_until, lease_token)
    SELECT 'webhook', line, organization_id, now(), id, ours::int,
           CASE WHEN ours THEN now() + make_interval(secs => $11) END, CASE WHEN ours THEN $10::uuid END
      FROM delivery
)
SELECT line, count(*) FILTER (WHERE NOT ours) AS due, array_agg(n::integer) FILTER (WHERE ours) AS ours
  FROM delivery GROUP BY line
"""


class Leasing(Protocol):
    """A worker that delivers what it records (`handover.Handover`)."""

    token: UUID
    seconds: float

    def room(self, organizations: Collection[UUID]) -> dict[UUID, int]: ...

    def take(self, event: Event, endpoint_id: UUID) -> None: ...


async def record(conn: Connection, events: Sequence[Event], *, handover: Leasing | None = None) -> int:
    """Store events, sealing their texts where the organization wants that, and queue one delivery for each active
    subscribed endpoint of their mode; returns how many are due for claiming, not counting those that `handover` took.
    """
    if not events:
        return 0
    stored = await texts.sealed(conn, [Stored(one.organization_id, one.id, one.kind, one.data) for one in events])
    room = {} if handover is None else handover.room({event.organization_id for event in events})
    rows = await conn.fetch(
        RECORD,
        [event.organization_id for event in events],
        [event.id for event in events],
        [event.kind for event in events],
        [event.request_id for event in events],
        stored,
        [event.created_at for event in events],
        [event.message_id for event in events],
        [event.mode for event in events],
        list(room),
        handover.token if handover is not None and room else None,
        handover.seconds if handover is not None else 0.0,
        list(room.values()),
    )
    left = 0
    for endpoint_id, due, ours in rows:
        left += due
        if ours is not None and handover is not None:
            for n in ours:
                handover.take(events[n - 1], endpoint_id)
    return left


#: Subscribers of a kind ON_REQUEST: organization and mode.
Wanting = frozenset[tuple[UUID, str]]

WANTED = """
SELECT organization_id, mode, array_agg(DISTINCT kind) FROM webhook_endpoints, unnest(subscribed_events) AS kind
 WHERE organization_id = ANY ($1) AND status <> 'disabled' GROUP BY organization_id, mode
"""


async def wanted(conn: Connection, organizations: Collection[UUID], kind: OnRequest) -> Wanting:
    """The organizations subscribed to `kind` now, with the modes of the subscribed endpoints."""
    rows = await conn.fetch(WANTED, list(organizations))
    return frozenset((organization_id, mode) for organization_id, mode, kinds in rows if kind in kinds)


class Subscriptions:
    """A cache of the kinds that organizations subscribe to, at most half a second old.

    Contract events are always recorded; those ON_REQUEST only for subscribers.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        #: (mode, kind) pairs, by organization.
        self._fresh: LoadingCache[UUID, frozenset[tuple[str, str]]] = LoadingCache(self._load, indivisible=is_down)

    async def wanting(self, organizations: Sequence[UUID], kind: OnRequest) -> Wanting:
        """The organizations subscribed to `kind`, with the modes of the subscribed endpoints."""
        known: dict[UUID, frozenset[tuple[str, str]]] = {}
        stale: list[UUID] = []
        for one in set(organizations):
            fresh, subscribed = self._fresh.peek(one)
            if fresh:
                known[one] = subscribed or frozenset()
            else:
                stale.append(one)
        loaded = await asyncio.gather(*(self._fresh.get(one) for one in stale))
        known.update((one, subscribed or frozenset()) for one, subscribed in zip(stale, loaded, strict=True))
        return frozenset((one, mode) for one, subscribed in known.items() for mode, each in subscribed if each == kind)

    async def _load(self, organizations: Sequence[UUID]) -> dict[UUID, frozenset[tuple[str, str]]]:
        found: dict[UUID, set[tuple[str, str]]] = {}
        for organization_id, mode, kinds in await self._pool.fetch(WANTED, organizations):
            found.setdefault(organization_id, set()).update((mode, kind) for kind in kinds)
        return {organization_id: frozenset(subscribed) for organization_id, subscribed in found.items()}
