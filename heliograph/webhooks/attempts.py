"""What the database knows of deliveries: the events and endpoints of claimed rows, and the record of every attempt.

The rule nobody may break: an attempt's row, the end of its queue row and what it says of its endpoint commit together,
a batch at a time. A result whose lease was lost is still a row, but its queue row belongs to the new holder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
import structlog

from heliograph.base import clock
from heliograph.base.batching import Batcher
from heliograph.base.crash import crash_point
from heliograph.base.db import Connection, Pool, is_down
from heliograph.queue import leases
from heliograph.queue.leases import Lease, Postponed
from heliograph.webhooks import endpoints

log = structlog.get_logger()

#: What an attempt came to, beside the kinds of `outbound.Failure`.
DELIVERED, REFUSED, GONE = "delivered", "refused", "gone"

#: What is kept of an answer that was no success, characters.
DETAIL = 200
#: Results in one transaction.
BATCH = 512
#: Pause before a batch is tried again while the database is gone; seconds. What a receiver answered exists only here.
RETRY = 0.5
#: A success of an endpoint that is known to be well is written to its row at most this often; seconds.
CALM = 1.0
#: Past so many endpoints, what is known of all is forgotten; each is then written once more.
REMEMBERED = 10_000


class Delivery(msgspec.Struct, gc=False):
    """An event on its way to an endpoint. The body is made once: every attempt of this claim sends the same."""

    lease: Lease
    event_id: str
    request_id: str
    body: bytes
    #: On the loop's clock.
    claimed_at: float = 0.0
    #: Another worker holds the row by now.
    lost: bool = False


class Destination(msgspec.Struct, frozen=True):
    """An active endpoint. `sealed`: its secrets, newest first, two or more while one is being replaced; each opens with
    `endpoints.open_secret`."""

    url: str
    sealed: list[bytes]
    consecutive_failures: int
    last_success_at: datetime | None


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One try. `status`: of the HTTP answer, if there was one. `detail`: for operators, made by `detail`."""

    started_at: datetime
    duration: float
    status: int | None
    result: str
    detail: str


def detail(text: str) -> str:
    """What others wrote, such that it can be stored: short, without NUL and lone surrogates."""
    return text[:DETAIL].replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


class Ended(msgspec.Struct, frozen=True, gc=False):
    """What became of a claimed row: done (`pause` None) or due again in `pause` seconds. `attempt` None: nothing was
    sent."""

    lease: Lease
    pause: float | None
    attempt: Attempt | None


LOAD = """
SELECT e.kind, e.request_id, e.data, e.created_at
  FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS item (organization_id, id, n)
  LEFT JOIN LATERAL (SELECT kind, request_id, data, created_at FROM events
                      WHERE organization_id = item.organization_id AND id = item.id) e ON true
 ORDER BY item.n
"""


async def load(conn: Connection, claimed: Sequence[Lease]) -> list[Delivery | None]:
    """The deliveries that claimed rows stand for, in order; None where the event is gone by retention."""
    rows = await conn.fetch(LOAD, [lease.organization_id for lease in claimed], [lease.id for lease in claimed])
    found: list[Delivery | None] = []
    for lease, (kind, request_id, data, created_at) in zip(claimed, rows, strict=True):
        if kind is None:
            found.append(None)
            continue
        event_id = str(lease.id)
        body = (
            f'{{"id":"{event_id}","type":"{kind}","timestamp":"{clock.iso(created_at)}",'
            f'"requestId":{_encode(request_id).decode()},"apiVersion":"v1","data":{data}}}'
        )
        found.append(Delivery(lease, event_id, request_id, body.encode()))
    return found


_encode = msgspec.json.Encoder().encode

DESTINATIONS = """
SELECT item.organization_id, item.id, e.url,
       ARRAY[e.secret] || ARRAY(SELECT old.sealed FROM unnest(e.old_secrets, e.old_secrets_until) AS old (sealed, until)
                                 WHERE old.until > now()),
       e.consecutive_failures, e.last_success_at
  FROM unnest($1::uuid[], $2::uuid[]) AS item (organization_id, id)
       CROSS JOIN LATERAL (SELECT * FROM webhook_endpoints
                            WHERE organization_id = item.organization_id AND id = item.id AND status = 'active') e
"""


async def destinations(conn: Connection, keys: Sequence[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], Destination]:
    """The active ones among endpoints given as (organization, id)."""
    rows = await conn.fetch(DESTINATIONS, [key[0] for key in keys], [key[1] for key in keys])
    return {(row[0], row[1]): Destination(*row[2:]) for row in rows}


INSERT = """
INSERT INTO webhook_attempts (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result,
                              detail)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::smallint[], $5::timestamptz[], $6::integer[],
                     $7::smallint[], $8::text[], $9::text[])
ON CONFLICT DO NOTHING
"""

# Attempts whose number is taken: the event was queued anew (a resend, a replay), or two workers held its row one after
# the other. They go on where the numbers end. One that was stored already, by a commit whose answer was lost, is known
# by the time of its beginning. Only a handful comes here, so the common INSERT need not look for the last
# number. (smallint ends at 32,767: who asks for more resends of one event gets them, without a row.)
INSERT_AGAIN = """
INSERT INTO webhook_attempts (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result,
                              detail)
SELECT item.organization_id, item.event_id, item.endpoint_id,
       least(known.last + row_number() OVER (PARTITION BY item.organization_id, item.event_id, item.endpoint_id
                                             ORDER BY item.started_at), 32767),
       item.started_at, item.duration_ms, item.status, item.result, item.detail
  FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::smallint[], $5::timestamptz[], $6::integer[], $7::smallint[],
              $8::text[], $9::text[])
       AS item (organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result, detail)
       CROSS JOIN LATERAL (
       SELECT max(attempt) AS last, bool_or(started_at = item.started_at) AS stored FROM webhook_attempts
        WHERE organization_id = item.organization_id AND event_id = item.event_id AND endpoint_id = item.endpoint_id
       ) known
 WHERE NOT known.stored
ON CONFLICT DO NOTHING
"""

# Why this batch disables an endpoint, or NULL.
_VERDICT = """CASE WHEN told.gone THEN $7::text
     WHEN NOT told.succeeded AND e.failing_since <= now() - make_interval(secs => $6) THEN $8::text END"""

# The endpoints come in the order of their ids, so that two workers do not wait for each other.
JUDGE = f"""
UPDATE webhook_endpoints e
   SET last_success_at = CASE WHEN told.succeeded THEN now() ELSE e.last_success_at END,
       consecutive_failures = told.failures + CASE WHEN told.succeeded THEN 0 ELSE e.consecutive_failures END,
       failing_since = CASE WHEN told.failures = 0 THEN NULL WHEN told.succeeded THEN now()
                            ELSE coalesce(e.failing_since, now()) END,
       status = CASE WHEN {_VERDICT} IS NULL THEN 'active' ELSE 'disabled' END,
       disabled_at = CASE WHEN {_VERDICT} IS NOT NULL THEN now() END,
       disabled_reason = {_VERDICT}
  FROM unnest($1::uuid[], $2::uuid[], $3::boolean[], $4::integer[], $5::boolean[])
       AS told (organization_id, id, succeeded, failures, gone)
 WHERE e.organization_id = told.organization_id AND e.id = told.id AND e.status = 'active'
RETURNING e.id, e.disabled_reason
"""


class Record:
    """Takes results and commits them in batches. `landed` is told of each batch that is done with, and with it of the
    endpoints that the batch disabled: id and reason."""

    def __init__(
        self, pool: Pool, *, disable_after: float, landed: Callable[[Sequence[Ended], dict[UUID, str]], None]
    ) -> None:
        """`disable_after`: seconds of nothing but failures."""
        self._pool = pool
        self._disable_after = disable_after
        self._landed = landed
        self._batcher: Batcher[Ended, None] = Batcher(self._commit, limit=BATCH, indivisible=is_down)
        #: When a success was last written, for endpoints whose row says that all is well.
        self._well: dict[UUID, float] = {}
        #: Held while rows are finished; whoever locks several of them takes it first, or two could deadlock.
        self.writing = asyncio.Lock()

    def put(self, ended: Ended) -> None:
        """Record this; `landed` will tell."""
        self._batcher.put(ended)

    @property
    def waiting(self) -> int:
        """Results not yet in a batch."""
        return self._batcher.waiting

    async def drain(self) -> None:
        """Wait until all is committed."""
        await self._batcher.drain()

    async def _commit(self, items: list[Ended]) -> list[None]:
        while True:
            try:
                async with self.writing:
                    crash_point("webhook.before_commit")
                    disabled = await self._write(items)
                    crash_point("webhook.after_commit")
                break
            except Exception as error:
                if is_down(error):
                    await asyncio.sleep(RETRY)
                elif len(items) > 1:
                    raise  # they come again one by one
                else:
                    # Its lease is no longer held up, so it ends, and the delivery is tried again.
                    log.exception("webhook result was not recorded")
                    disabled = {}
                    break
        self._landed(items, disabled)
        return [None] * len(items)

    async def _write(self, items: list[Ended]) -> dict[UUID, str]:
        tried = [(item.lease, item.attempt) for item in items if item.attempt is not None]
        done = [item.lease for item in items if item.pause is None]
        later = [
            Postponed(item.lease, item.pause, item.lease.line, counts=item.attempt is not None)
            for item in items
            if item.pause is not None
        ]
        now = asyncio.get_running_loop().time()
        standings = self._news(_standings(tried), now)
        async with self._pool.acquire() as conn, conn.transaction():
            if tried:
                await _insert(conn, tried)
            if done:
                await leases.finish(conn, done)
            if later:
                await leases.postpone(conn, later)
            disabled = await self._judge(conn, standings) if standings else {}
        for (_, id), standing in standings.items():
            if standing.failures or standing.gone:
                self._well.pop(id, None)
            else:
                self._well[id] = now
        return disabled

    async def _judge(self, conn: Connection, standings: dict[tuple[UUID, UUID], _Standing]) -> dict[UUID, str]:
        keys = sorted(standings)
        rows = await conn.fetch(
            JUDGE,
            [key[0] for key in keys],
            [key[1] for key in keys],
            [standings[key].succeeded for key in keys],
            [standings[key].failures for key in keys],
            [standings[key].gone for key in keys],
            self._disable_after,
            endpoints.GONE,
            endpoints.FAILING,
        )
        disabled = {id: reason for id, reason in rows if reason is not None}
        if disabled:
            await endpoints.forget_queued(conn, list(disabled))
        return disabled

    def _news(self, standings: dict[tuple[UUID, UUID], _Standing], now: float) -> dict[tuple[UUID, UUID], _Standing]:
        """Without the successes of endpoints that are known to be well: a busy one's row would be rewritten with
        every batch."""
        if len(self._well) > REMEMBERED:
            self._well.clear()
        return {
            key: standing
            for key, standing in standings.items()
            if standing.failures or standing.gone or now - self._well.get(key[1], -CALM) >= CALM
        }


class _Standing(msgspec.Struct):
    """What a batch says of an endpoint: whether anything succeeded, and the failures since."""

    succeeded: bool = False
    failures: int = 0
    gone: bool = False


def _standings(tried: Sequence[tuple[Lease, Attempt]]) -> dict[tuple[UUID, UUID], _Standing]:
    standings: dict[tuple[UUID, UUID], _Standing] = {}
    for lease, attempt in tried:
        key = (lease.organization_id, lease.line)
        standing = standings.get(key)
        if standing is None:
            standing = standings[key] = _Standing()
        if attempt.result == DELIVERED:
            standing.succeeded, standing.failures = True, 0
        else:
            standing.failures += 1
            standing.gone = standing.gone or attempt.result == GONE
    return standings


async def _insert(conn: Connection, tried: Sequence[tuple[Lease, Attempt]]) -> None:
    columns = (
        [lease.organization_id for lease, _ in tried],
        [lease.id for lease, _ in tried],
        [lease.line for lease, _ in tried],
        [lease.tries + 1 for lease, _ in tried],
        [attempt.started_at for _, attempt in tried],
        [round(attempt.duration * 1000) for _, attempt in tried],
        [attempt.status for _, attempt in tried],
        [attempt.result for _, attempt in tried],
        [attempt.detail for _, attempt in tried],
    )
    done = await conn.execute(INSERT, *columns)
    if int(done.rpartition(" ")[2]) < len(tried):
        await conn.execute(INSERT_AGAIN, *columns)
