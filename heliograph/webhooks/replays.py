"""Resends and replays: one event, a time range, or a test event, to one endpoint.

The rule nobody may break: an event that is sent again keeps its id, and replayed events never go before new ones. A
resend is one row of the queue; a replay puts its rows into lane 1, a step at a time, and only while the endpoint
accepts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import BRIEFLY, Connection
from heliograph.base.errors import Invalid, NotFound, Problems, Refusal
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.attempts import TEST
from heliograph.webhooks.endpoints import Endpoint
from heliograph.webhooks.recording import successes
from heliograph.webhooks.samples import samples, test_data

#: How many days back a replay may reach: as long as attempts are kept, so that `only_failed` can be decided.
REPLAY_DAYS = 30
#: How many events one step reads: about 10 ms.
STEP = 1000
#: A replay waits while this many of its rows are due: the queue is no place to store a time range.
BACKLOG = 2000
#: Steps in a row, over all replays together.
STEPS = 20
#: Seconds until one that waits is looked at again: counting its rows takes as long as a step.
FULL = 2.0
#: Why a replay runs: somebody requested it, or its endpoint was paused or disabled and came back.
REQUEST, RETURN = "request", "return"
#: Recovery covers events up to this long after the endpoint's return: until then a worker may take it for stopped.
SETTLING = timedelta(seconds=5)
#: Lanes of the queue: new events, and replayed ones.
NOW, LATER = 0, 1


class ReplayRunning(Refusal):
    """A replay for this webhook endpoint is already running. Wait until it has completed."""

    code, status = "webhook_replay_running", 409


class Replay(msgspec.Struct, frozen=True):
    """One row of `webhook_replays`. `status`: running, completed or canceled; `queued`: deliveries so far; `cause`:
    REQUEST or RETURN."""

    id: UUID
    endpoint_id: UUID
    status: str
    from_at: datetime
    to_at: datetime
    kinds: list[str]
    only_failed: bool
    queued: int
    created_at: datetime
    completed_at: datetime | None
    cause: str


# An existing row stays: it is on its way. This never waits for a lock while holding one, and the endpoint is locked
# later: it cannot deadlock with a worker that finishes rows. They count as claimed: there may be earlier attempts.
QUEUE = """
INSERT INTO queue (kind, line, lane, organization_id, due_at, id, claims)
SELECT 'webhook', $2, $4, $1, now(), id, 1 FROM unnest($3::uuid[]) AS id
ON CONFLICT DO NOTHING
"""
# Existing rows waiting for a later attempt become due now.
HURRY = """
WITH held AS MATERIALIZED (
    SELECT waiting.place
      FROM unnest($2::uuid[]) AS item (id)
           CROSS JOIN LATERAL (
           SELECT ctid AS place FROM queue
            WHERE queue.id = item.id AND queue.line IS NOT DISTINCT FROM $1 AND lease_until IS NULL
              AND due_at - now() > interval '0'
              FOR UPDATE SKIP LOCKED) waiting
)
UPDATE queue SET due_at = now() WHERE ctid = ANY (ARRAY(SELECT place FROM held))
"""

KNOWN = "SELECT true FROM events WHERE organization_id = $1 AND id = $2 AND mode = $3"


async def resend(conn: Connection, actor: Actor, *, endpoint_id: UUID, event_id: UUID) -> None:
    """Deliver one event of the endpoint's mode to it again, whether it subscribes to that kind or not; its schedule of
    attempts starts over, or, if one is running, its next attempt becomes due now.

    Raises NotFound, EndpointDisabled, EndpointPaused.
    """
    endpoint = await endpoints.active(conn, actor, id=endpoint_id)
    if not await conn.fetchval(KNOWN, actor.organization_id, event_id, endpoint.mode):
        raise NotFound("There is no such event.", resource="event", id=str(event_id))
    async with conn.transaction():
        await _queue(conn, actor.organization_id, endpoint_id, [event_id], NOW)
        await _staying(conn, actor, endpoint_id)


RECORD_EXAMPLE = """
INSERT INTO events (organization_id, id, kind, request_id, data, created_at, mode)
VALUES ($1, $2, $3, $4, $5, $6, $7::text)
"""


async def send_example(conn: Connection, actor: Actor, *, endpoint_id: UUID, request_id: str, kind: str = TEST) -> UUID:
    """Record a `webhook.test` event, or an example of another kind, and deliver it to this endpoint alone, subscribed
    or not; returns its id. An example is marked as such in its data, is never replayed and goes to no other endpoint.

    Raises NotFound, EndpointDisabled, EndpointPaused and Invalid for an unknown kind.
    """
    endpoint = await endpoints.active(conn, actor, id=endpoint_id)
    endpoints.checked_kind(kind)
    id, at = uuid7(), clock.now()
    if kind == TEST:
        stored, data = TEST, test_data(endpoint_id, endpoint.subscribed_events, at)
    else:
        stored = f"{TEST}:{kind}"
        data = msgspec.json.encode({**samples()[kind], "example": True}).decode()
    async with conn.transaction():
        await conn.execute(RECORD_EXAMPLE, actor.organization_id, id, stored, request_id, data, at, endpoint.mode)
        await _queue(conn, actor.organization_id, endpoint_id, [id], NOW)
        await _staying(conn, actor, endpoint_id)
    return id


_COLUMNS = "id, endpoint_id, status, from_at, to_at, kinds, only_failed, queued, created_at, completed_at, cause"

START = f"""
INSERT INTO webhook_replays (organization_id, id, endpoint_id, from_at, to_at, kinds, only_failed, position, created_at,
                             stepped_at, cause)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, now(), $10)
ON CONFLICT (organization_id, endpoint_id, cause) WHERE status = 'running' DO NOTHING
RETURNING {_COLUMNS}
"""
STAYS = "SELECT id FROM webhook_endpoints WHERE organization_id = $1 AND id = $2 FOR SHARE"
RUNNING = """
SELECT id FROM webhook_replays
 WHERE organization_id = $1 AND endpoint_id = $2 AND status = 'running' AND cause = 'request'
"""


async def _staying(conn: Connection, actor: Actor, endpoint_id: UUID) -> Endpoint:
    """An active endpoint. Whoever stops it waits for this transaction, and finds what it queued. Raises as `active`."""
    await conn.execute(STAYS, actor.organization_id, endpoint_id)
    return await endpoints.active(conn, actor, id=endpoint_id)


async def replay(
    conn: Connection,
    actor: Actor,
    *,
    endpoint_id: UUID,
    from_at: datetime,
    to_at: datetime | None = None,
    kinds: Sequence[str] | None = None,
    only_failed: bool = False,
) -> Replay:
    """Deliver again the events recorded from `from_at` (within the last 30 days) to `to_at` (exclusive; None or a
    future time means now). A worker does it, step by step.

    `kinds`: some of those the endpoint subscribes to; None means all of them. Tests are not repeated. `only_failed`:
    only events that this endpoint never answered with a 2xx, including those never sent to it. Raises NotFound,
    EndpointDisabled, EndpointPaused, Invalid, ReplayRunning.
    """
    async with conn.transaction():
        # The first lock keeps other requests from starting a replay between the second and the third, under which
        # nobody may wait for a step (see LOCK).
        await conn.execute(endpoints.LOCK_ORGANIZATION, actor.organization_id)
        await lock(conn, actor, endpoint_id=endpoint_id)
        endpoint = await _staying(conn, actor, endpoint_id)
        now, wrong = clock.now(), Problems()
        # Events being recorded at this moment are delivered anyway: the endpoint is active.
        to_at = now if to_at is None else min(to_at, now)
        with wrong.gathering():
            check_range(from_at, to_at, now)
        with wrong.gathering():
            chosen = _chosen(kinds, endpoint.subscribed_events)
        wrong.report()
        row = await conn.fetchrow(
            START,
            actor.organization_id,
            uuid7(),
            endpoint_id,
            from_at,
            to_at,
            chosen,
            only_failed,
            _before(uuid7_floor(from_at)),
            now,
            REQUEST,
        )
        if row is None:
            raise ReplayRunning(id=str(await conn.fetchval(RUNNING, actor.organization_id, endpoint_id)))
        told = {"from": from_at, "to": to_at, "kinds": chosen, "only_failed": only_failed}
        await audit.record(conn, actor, "webhook.replayed", object_id=endpoint_id, after=told)
    return Replay(*row.values())


def check_range(from_at: datetime, to_at: datetime | None, now: datetime) -> None:
    """Raises Invalid for a time range that cannot be replayed at this time; None: up to now."""
    if from_at < now - timedelta(days=REPLAY_DAYS):
        raise Invalid(("from", "range", f"`from` must be within the last {REPLAY_DAYS} days"))
    if from_at >= (now if to_at is None else min(to_at, now)):
        raise Invalid(("from", "range", "`from` must be before `to`, and in the past"))


async def recover(conn: Connection, actor: Actor, *, endpoint: Endpoint, since: datetime) -> None:
    """Deliver what an endpoint that just came back missed within the last REPLAY_DAYS, in the caller's transaction.
    It begins SETTLING later, independently of a requested replay."""
    kinds, now = _chosen(None, endpoint.subscribed_events), clock.now()
    if not kinds:
        return
    from_at, to_at = max(since, now - timedelta(days=REPLAY_DAYS)), now + SETTLING
    position = _before(uuid7_floor(from_at))
    await conn.fetchrow(
        START, actor.organization_id, uuid7(), endpoint.id, from_at, to_at, kinds, True, position, now, RETURN
    )


# Waits for a step in progress. Code that stops an endpoint does this before locking the endpoint: the step may be
# waiting for a worker that records a result, and that worker for the endpoint.
LOCK = """
SELECT id FROM webhook_replays WHERE organization_id = $1 AND endpoint_id = $2 AND status = 'running'
 ORDER BY id FOR UPDATE
"""
HOLD = """
UPDATE webhook_replays SET held = true, position = least(position, $3)
 WHERE organization_id = $1 AND endpoint_id = $2 AND status = 'running' AND cause = 'request'
"""
CANCEL = """
UPDATE webhook_replays SET status = 'canceled', held = false, completed_at = now()
 WHERE organization_id = $1 AND endpoint_id = $2 AND status = 'running' AND cause = ANY ($3)
"""
RELEASE = """
UPDATE webhook_replays SET held = false
 WHERE organization_id = $1 AND endpoint_id = $2 AND status = 'running' AND held
"""


async def lock(conn: Connection, actor: Actor, *, endpoint_id: UUID) -> None:
    """Keep an endpoint's replays from advancing until the caller's transaction ends."""
    await conn.execute(LOCK, actor.organization_id, endpoint_id)


async def hold(conn: Connection, actor: Actor, *, endpoint_id: UUID, oldest: UUID | None) -> None:
    """The endpoint was paused: hold its requested replay, and move it back to before `oldest`, the first of its events
    that left the queue. A recovery replay ends: its endpoint's row records how far back it reached."""
    await conn.execute(HOLD, actor.organization_id, endpoint_id, None if oldest is None else _before(oldest))
    await conn.execute(CANCEL, actor.organization_id, endpoint_id, [RETURN])


async def release(conn: Connection, actor: Actor, *, endpoint_id: UUID) -> None:
    """The endpoint was resumed: continue held replays."""
    await conn.execute(RELEASE, actor.organization_id, endpoint_id)


async def cancel(conn: Connection, actor: Actor, *, endpoint_id: UUID) -> None:
    """The endpoint was disabled: cancel its replays."""
    await conn.execute(CANCEL, actor.organization_id, endpoint_id, [REQUEST, RETURN])


LIST = f"""
SELECT {_COLUMNS} FROM webhook_replays
 WHERE organization_id = $1 AND endpoint_id = $2 AND id < $3 ORDER BY id DESC LIMIT $4
"""
_LAST = UUID(int=2**128 - 1)


async def list_replays(
    conn: Connection, actor: Actor, *, endpoint_id: UUID, before: UUID | None = None, limit: int
) -> list[Replay]:
    """An endpoint's replays before the id `before`, newest first. Raises NotFound."""
    await endpoints.get(conn, actor, id=endpoint_id)
    rows = await conn.fetch(LIST, actor.organization_id, endpoint_id, before or _LAST, limit)
    return [Replay(*row.values()) for row in rows]


# A step far ahead is from before the clock was set back. Only a recovery replay waits for its end: that of a requested
# one is set by the requesting process's clock, which may be milliseconds ahead of the database's.
_ITS_TURN = "(stepped_at <= now() OR stepped_at > now() + interval '15 minutes')"
ANY_RUNNING = f"""
EXISTS (SELECT FROM webhook_replays WHERE status = 'running' AND NOT held AND {_ITS_TURN}
           AND (cause = 'request' OR to_at <= now()))
"""
# The one that has waited longest. A transaction that recorded an event while the endpoint was stopped may last longer
# than SETTLING, and its event would be skipped: a recovery replay waits for those that wrote before its end. Only
# sessions of roles whose rights this role has are ours.
TAKE = f"""
SELECT r.organization_id, r.id, r.endpoint_id, r.to_at, r.kinds, r.only_failed, r.position, e.status AS endpoint, e.mode
  FROM webhook_replays r
       JOIN webhook_endpoints e ON e.organization_id = r.organization_id AND e.id = r.endpoint_id
 WHERE r.status = 'running' AND NOT r.held AND {_ITS_TURN}
   AND (r.cause = 'request' OR r.to_at <= now() AND NOT EXISTS (
        SELECT FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xid IS NOT NULL
           AND xact_start <= r.to_at AND pg_has_role(usesysid, 'USAGE')))
 ORDER BY r.stepped_at LIMIT 1 FOR UPDATE OF r SKIP LOCKED
"""
# If $3 of its rows are due, it waits. `due_at` is written so that no index matches: a plan made while all work was put
# off would read everything that is due.
WAIT = """
UPDATE webhook_replays r SET stepped_at = now() + make_interval(secs => $4)
 WHERE organization_id = $1 AND id = $2
   AND (SELECT count(*) FROM (
           SELECT FROM queue WHERE kind = 'webhook' AND line = r.endpoint_id AND lane = 1
              AND organization_id = r.organization_id AND due_at - now() <= interval '0' LIMIT $3) waiting) = $3
RETURNING true
"""
# `looked` counts the rows scanned, of any kind, so that a range without the wanted kinds is crossed in steps. $9: the
# start of the second of $2. The endpoint is compared so that no index matches it (see `successes.HOLDING`).
LOOK = """
WITH looked AS MATERIALIZED (
    SELECT id, kind, mode FROM events WHERE organization_id = $1 AND id > $2 AND id < $3 ORDER BY id LIMIT $4
), taken AS MATERIALIZED (
    SELECT unnest(events) AS id FROM webhook_successes
     WHERE $6 AND organization_id = $1 AND endpoint_id IS NOT DISTINCT FROM $7
       AND first_event >= $9 AND first_event <= (SELECT id FROM looked ORDER BY id DESC LIMIT 1)
)
SELECT (SELECT count(*) FROM looked), (SELECT id FROM looked ORDER BY id DESC LIMIT 1),
       ARRAY(SELECT id FROM looked
              WHERE kind = ANY ($5) AND mode = $8 AND id NOT IN (SELECT id FROM taken)
                AND NOT ($6 AND EXISTS (
                    SELECT FROM webhook_attempts w
                     WHERE w.organization_id = $1 AND w.event_id = looked.id
                       AND w.endpoint_id IS NOT DISTINCT FROM $7
                       AND w.result = 'delivered'))
              ORDER BY id)
"""
STEPPED = """
UPDATE webhook_replays
   SET position = coalesce($3, position), queued = queued + $4, status = $5, stepped_at = clock_timestamp(),
       completed_at = CASE WHEN $5 <> 'running' THEN clock_timestamp() END
 WHERE organization_id = $1 AND id = $2
"""


async def advance(conn: Connection) -> int:
    """Advance running replays by up to STEPS steps, each a transaction; returns how many deliveries were queued.

    Several workers may do this at once; a replay is advanced by one of them at a time.
    """
    queued = 0
    for _ in range(STEPS):
        async with conn.transaction():
            taken = await conn.fetchrow(TAKE)
            if taken is None:
                break
            if not await conn.fetchval(WAIT, taken["organization_id"], taken["id"], BACKLOG, FULL):
                queued += await _step(conn, taken)
    return queued


async def _step(conn: Connection, taken: asyncpg.Record) -> int:
    organization_id, endpoint_id = taken["organization_id"], taken["endpoint_id"]
    if taken["endpoint"] != "active":
        await conn.execute(STEPPED, organization_id, taken["id"], None, 0, "canceled")
        return 0
    place = organization_id, taken["position"], uuid7_floor(taken["to_at"]), STEP
    kind = taken["kinds"], taken["only_failed"], endpoint_id, taken["mode"], successes.since(taken["position"])
    # A SELECT without FROM always returns a row.
    looked, reached, wanted = await conn.fetchrow(LOOK, *place, *kind)  # type: ignore[misc]
    if wanted:
        try:
            async with conn.transaction():
                await conn.execute(BRIEFLY)
                await _queue(conn, organization_id, endpoint_id, wanted, LATER)
        except asyncpg.LockNotAvailableError:  # as an open session has it: it is the others' turn
            await conn.execute(STEPPED, organization_id, taken["id"], None, 0, "running")
            return 0
    status = "running" if looked == STEP else "completed"
    await conn.execute(STEPPED, organization_id, taken["id"], reached, len(wanted), status)
    return len(wanted)


async def _queue(conn: Connection, organization_id: UUID, endpoint_id: UUID, ids: Sequence[UUID], lane: int) -> None:
    await conn.execute(QUEUE, organization_id, endpoint_id, ids, lane)
    await conn.execute(HURRY, endpoint_id, ids)


def _chosen(asked: Sequence[str] | None, subscribed: Sequence[str]) -> list[str]:
    if asked is not None and not set(asked) <= set(subscribed):
        raise Invalid(("kinds", "enum", f"`kinds` may list only subscribed kinds: {', '.join(subscribed)}"))
    # A test is meant for one endpoint; the range contains those of other endpoints too.
    return [kind for kind in subscribed if kind != TEST and (asked is None or kind in asked)]


def _before(id: UUID) -> UUID:
    return UUID(int=id.int - 1)
