"""Posting: one attempt of a delivery, from the endpoint's address and secrets to the meaning of its answer.

If the endpoint is cached and a connection to it is open, an attempt needs neither a task nor a future: the answer calls
back, and the freed place may begin the next attempt on the same connection. Otherwise a task does what is missing.

The rule nobody may break: every attempt that was begun is reported once, by `ended`, unless `close` came first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from heliograph import traces
from heliograph.base import retry
from heliograph.base.crypto import Key, Unsealable
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, is_down
from heliograph.base.loading_cache import LoadingCache
from heliograph.base.process import spans
from heliograph.base.process.crash import crash_point
from heliograph.base.process.settings import Settings
from heliograph.base.process.spans import Attributes, Context
from heliograph.http.answers import Answer, Failure
from heliograph.http.client import HttpClient
from heliograph.queue.leases import Lease
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery import attempts, catching, evidence, signing
from heliograph.webhooks.delivery.attempts import Attempt, Delivery, Destination, Ended, Evidence
from heliograph.webhooks.delivery.concurrency import Concurrency, EndpointQueue

log = structlog.get_logger()

#: Number of endpoints whose signing keys are cached, 1.5 kB each.
SIGNERS = 2_000
#: Pause before a delivery that could not be sent because too many others went to the same destination.
BUSY = 0.5
#: Pause before a delivery that we cannot prepare.
BROKEN = 60.0
#: Longest Retry-After that is honored, seconds.
RETRY_AFTER = 3600.0
#: Pause while the endpoints cannot be loaded, seconds.
DATABASE_AWAY = 0.5

_CONTENT_TYPE = "content-type: application/json\r\n"


class Poster:
    """Makes attempts. Their results go to `record`."""

    def __init__(
        self,
        pool: Pool,
        client: HttpClient,
        settings: Settings,
        *,
        seal_key: Key,
        chance: random.Random,
        places: Concurrency[Delivery],
        record: Callable[[Ended], None],
        ended: Callable[[EndpointQueue[Delivery]], None],
        is_overdue: Callable[[], bool],
    ) -> None:
        """`places`: informed of how endpoints respond. `record`: takes a result. `ended`: an attempt that `start` began
        is over, and its place may be given back. `is_overdue`: see Held."""
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._client = client
        self._seal_key = seal_key
        self._schedule = retry.webhook(settings.webhook_schedule)
        self._chance = chance
        self._places = places
        self._record = record
        self._ended = ended
        self._is_overdue = is_overdue
        self._destinations: LoadingCache[tuple[UUID, UUID], Destination] = LoadingCache(self._load, indivisible=is_down)
        #: With the sealed secrets that each was created from.
        self._signers: dict[UUID, tuple[list[bytes], signing.Signer]] = {}
        #: Deliveries waiting for their endpoint to be loaded.
        self._waiting: dict[tuple[UUID, UUID], list[tuple[EndpointQueue[Delivery], Delivery]]] = {}
        self._allowance = evidence.Allowance()
        self._catching = catching.Catching(pool)
        self._tick = 0
        self._at = datetime.fromtimestamp(0, UTC)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def destinations(self, keys: Sequence[tuple[UUID, UUID]]) -> list[Destination | None]:
        """Endpoints, by (organization, id). Raises the database's errors."""
        return list(await asyncio.gather(*[self._destinations.get(key) for key in keys]))

    def forget(self, organization_id: UUID, endpoint_id: UUID) -> None:
        """Drop an endpoint from the cache, since it has changed."""
        self._destinations.forget((organization_id, endpoint_id))

    def start(self, line: EndpointQueue[Delivery], delivery: Delivery) -> bool:
        """Start one attempt, in a place taken for `line`. False: it is already over, and `ended` will not be called."""
        if delivery.trace is None and spans.on() and spans.is_marked(delivery.lease.id):
            self._spawn(self._trace_and_start(line, delivery))
            return True
        return self._start(line, delivery)

    def _start(self, line: EndpointQueue[Delivery], delivery: Delivery) -> bool:
        key = (delivery.lease.organization_id, line.id)
        _, destination = self._destinations.peek(key)
        if destination is not None:
            return self._post(line, delivery, destination)
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [(line, delivery)]
            self._spawn(self._load_and_post(key))
        else:
            waiting.append((line, delivery))
        return True

    def _post(self, line: EndpointQueue[Delivery], delivery: Delivery, destination: Destination | None) -> bool:
        if self._is_overdue():  # this process stood still while its endpoint or its trace was looked up
            self._record(Ended(delivery.lease, 0.0, None, delivery.number))
            return False
        at = self._now()
        try:
            signer = self._signer(delivery, destination, at)
            if signer is None or destination is None:
                return False
            values = {"event_id": delivery.event_id, "request_id": delivery.request_id}
            lines = signer.lines(**values, body=delivery.body, at=at) + _CONTENT_TYPE
            count, traceparent = signing.LINES + 1, ""
            if delivery.trace is not None:
                traceparent = self._begin_span(line, delivery, delivery.trace)
                lines += f"{spans.HEADER}: {traceparent}\r\n"
                count += 1
            answered = partial(self._answered, line, delivery, at, (destination.url, lines))
            if destination.is_catcher:
                self._spawn(self._catch(line, delivery, lines, at, answered))
                return True
            crash_point("webhook.before_post")
            if not self._client.post_now(destination.url, delivery.body, lines, count, answered):
                headers = signer.headers(**values, body=delivery.body, at=at)
                headers["content-type"] = "application/json"
                if traceparent:
                    headers[spans.HEADER] = traceparent
                self._spawn(self._connect_and_post(line, delivery, destination.url, headers, answered))
        except Exception:
            self._broke_off(delivery)
            return False
        return True

    async def _trace_and_start(self, line: EndpointQueue[Delivery], delivery: Delivery) -> None:
        """Look up the trace of a delivery that seems to have one. If the database is unavailable, it is sent without
        one."""
        try:
            async with self._pool.acquire() as conn:
                delivery.trace = await traces.of_event(conn, delivery.lease.organization_id, delivery.body)
        except Exception as error:
            if not is_down(error):
                log.exception("trace context not read", **_ids(delivery))
        if not self._start(line, delivery):
            self._ended(line)

    def _begin_span(self, line: EndpointQueue[Delivery], delivery: Delivery, trace: Context) -> str:
        """Begin the span of a traced delivery's attempt; returns its `traceparent`."""
        number, event = delivery.lease.tries + 1, delivery.event_id
        said: Attributes = {"event_id": event, "endpoint_id": str(line.id), "attempt": number}
        delivery.span = spans.begin("webhook", trace, said, kind="client")
        return delivery.span.context.header

    def _end_span(self, delivery: Delivery, outcome: Answer | Failure | None) -> None:
        span, delivery.span = delivery.span, None
        if span is None:
            return
        said: dict[str, str | int] = {}
        if isinstance(outcome, Answer):
            said["http.response.status_code"] = outcome.status
        elif outcome is not None:
            said["error.type"] = outcome.kind
        span.end(said, failed=not isinstance(outcome, Answer) or not 200 <= outcome.status < 300)

    async def close(self) -> None:
        """Abort all attempts; they are no longer reported."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_and_post(self, key: tuple[UUID, UUID]) -> None:
        """Load an endpoint, and post the deliveries that wait for it, to this version however long loading took.

        If it has stopped, they are dropped. It may have come back before they were recorded, so that is decided by a
        look that began after they came.
        """
        waiting: list[tuple[EndpointQueue[Delivery], Delivery]] = []
        try:
            destination = await self._destination(key)
            waiting = self._waiting.pop(key)
            if destination is None:
                destination = await self._destination(key, bypass_cache=True)
        except Exception:
            for line, delivery in waiting or self._waiting.pop(key):
                self._broke_off(delivery)
                self._ended(line)
            return
        for line, delivery in waiting:
            if not self._post(line, delivery, destination):
                self._ended(line)

    async def _connect_and_post(
        self,
        line: EndpointQueue[Delivery],
        delivery: Delivery,
        url: str,
        headers: dict[str, str],
        answered: Callable[[Answer | Failure], None],
    ) -> None:
        try:
            outcome = await self._client.post(
                url, delivery.body, headers, wanted=lambda: not delivery.lost and not self._is_overdue()
            )
        except Exception:
            self._broke_off(delivery)
            self._ended(line)
            return
        answered(outcome)

    async def _catch(
        self,
        line: EndpointQueue[Delivery],
        delivery: Delivery,
        headers: str,
        at: datetime,
        answered: Callable[[Answer | Failure], None],
    ) -> None:
        lease = delivery.lease
        caught = catching.Caught(lease.organization_id, line.id, lease.id, at, headers, delivery.body.decode())
        try:
            outcome = await self._catching.take(caught)
        except Exception:
            self._broke_off(delivery)
            self._ended(line)
            return
        answered(outcome)

    def _broke_off(self, delivery: Delivery) -> None:
        """Record a failure that can only be our own."""
        log.exception("webhook attempt aborted", **_ids(delivery))
        self._end_span(delivery, None)
        self._record(Ended(delivery.lease, BROKEN, None, delivery.number))

    def _answered(
        self,
        line: EndpointQueue[Delivery],
        delivery: Delivery,
        at: datetime,
        sent: tuple[str, str],
        outcome: Answer | Failure,
    ) -> None:
        if delivery.span is not None:
            self._end_span(delivery, outcome)
        if self._closed:
            return
        crash_point("webhook.after_post")
        if isinstance(outcome, Failure) and outcome.kind == "busy" and line.in_flight > 1:
            # It is sent when one of the endpoint's own attempts ends.
            self._places.busy(line)
            line.waiting.appendleft(delivery)
        else:
            self._record(self._judge(line, delivery, at, sent, outcome))
        self._ended(line)

    def _judge(
        self,
        line: EndpointQueue[Delivery],
        delivery: Delivery,
        at: datetime,
        sent: tuple[str, str],
        outcome: Answer | Failure,
    ) -> Ended:
        now = self._loop.time()
        lease, number, duration = delivery.lease, delivery.number, outcome.duration
        if isinstance(outcome, Failure):
            if outcome.kind == "withheld":  # its lease may have ended while the connection was opened
                return Ended(lease, 0.0, None, number)
            if outcome.kind == "busy":
                self._places.busy(line)
                return Ended(lease, BUSY * self._chance.uniform(0.8, 1.2), None, number)
            self._places.failed(line, now, grave=outcome.kind == "timeout")
            kept = self._evidence(line, sent, outcome, now)
            attempt = Attempt(at, duration, None, outcome.kind, attempts.detail(outcome.detail), kept)
            return Ended(lease, self._pause(lease), attempt, number)
        status = outcome.status
        if 200 <= status < 300:
            self._places.succeeded(line, now, duration)
            kept = self._evidence(line, sent, outcome, now) if delivery.is_test else None
            return Ended(lease, None, Attempt(at, duration, status, attempts.DELIVERED, "", kept), number)
        self._places.failed(line, now, grave=False)
        detail = attempts.detail(outcome.body.decode("utf-8", "replace"))
        kept = self._evidence(line, sent, outcome, now)
        pause = self._pause(lease)
        if status == 410:  # if that disables the endpoint, the event leaves the queue with all others
            return Ended(lease, pause, Attempt(at, duration, status, attempts.GONE, detail, kept, sent[0]), number)
        if pause is not None and status in (429, 503) and outcome.retry_after is not None:
            # Neither sooner than requested nor sooner than scheduled: the attempts have to last for days.
            pause = max(pause, min(outcome.retry_after, RETRY_AFTER))
        return Ended(lease, pause, Attempt(at, duration, status, attempts.REFUSED, detail, kept), number)

    def _evidence(
        self, line: EndpointQueue[Delivery], sent: tuple[str, str], outcome: Answer | Failure, now: float
    ) -> Evidence | None:
        """The evidence of this attempt, if its endpoint's allowance permits."""
        found = evidence.of(*sent, outcome)
        return found if self._allowance.take(line.id, evidence.size(found), now) else None

    def _now(self) -> datetime:
        """The current time. Within a millisecond it is the same object, whose text is then formatted once."""
        tick = clock.milliseconds()
        if tick != self._tick:
            self._tick, self._at = tick, datetime.fromtimestamp(tick / 1000, UTC)
        return self._at

    def _pause(self, lease: Lease) -> float | None:
        return self._schedule.pause(lease.tries + 1, self._chance)

    async def _destination(self, key: tuple[UUID, UUID], *, bypass_cache: bool = False) -> Destination | None:
        while True:
            try:
                return await self._destinations.get(key, bypass_cache=bypass_cache)
            except Exception as error:
                if not is_down(error):
                    raise
                await asyncio.sleep(DATABASE_AWAY)

    async def _load(self, keys: Sequence[tuple[UUID, UUID]]) -> dict[tuple[UUID, UUID], Destination]:
        async with self._pool.acquire() as conn:
            return await attempts.destinations(conn, keys)

    def _signer(self, delivery: Delivery, destination: Destination | None, at: datetime) -> signing.Signer | None:
        """The endpoint's signer. None: nothing is sent, and the delivery is recorded accordingly."""
        lease, number = delivery.lease, delivery.number
        if destination is None or delivery.lost:
            # One whose lease was lost goes back to the queue, unless another worker has it.
            self._record(Ended(lease, 0.0 if delivery.lost else None, None, number))
            return None
        known = self._signers.get(lease.line)
        if known is not None and known[0] == destination.sealed:
            return known[1]
        try:
            secrets = endpoints.open_secrets(
                self._seal_key, organization_id=lease.organization_id, id=lease.line, sealed=destination.sealed
            )
        except Unsealable as error:
            log.error("webhook secret cannot be decrypted", endpoint_id=str(lease.line), event_id=str(lease.id))
            self._record(
                Ended(lease, self._pause(lease), Attempt(at, 0.0, None, attempts.UNSIGNED, str(error)), number)
            )
            return None
        if len(self._signers) >= SIGNERS:
            self._signers.clear()
        signer = signing.Signer(secrets)
        self._signers[lease.line] = (destination.sealed, signer)
        return signer


def _ids(delivery: Delivery) -> dict[str, str]:
    """Log fields of a delivery, which identify the request and trace that it comes from."""
    ids = {"event_id": delivery.event_id, "request_id": delivery.request_id, "endpoint_id": str(delivery.lease.line)}
    return ids if delivery.trace is None else ids | {"trace_id": f"{delivery.trace.trace:032x}"}
