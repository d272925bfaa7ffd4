"""Webhook deliveries for tests: endpoints, events and a running deliverer on a real database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.http.client import HttpClient, webhook_rules
from heliograph.http.resolver import Lookup
from heliograph.queue.runner import every, loop
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery.delivery import Deliverer
from heliograph.webhooks.recording import events

KIND = "message.delivered"
DATA = '{"message":{"id":"0190aaaa-0000-7000-8000-000000000000","to":"+420777123456","status":"delivered"}}'


def settings(**given: Any) -> Settings:
    """Settings that allow loopback addresses, with a short schedule."""
    defaults: dict[str, Any] = {
        "secret_key": "a secret key for tests, long enough",
        "webhook_allow_http": True,
        "webhook_allow_networks": "127.0.0.0/8",
        "webhook_schedule": "0,0.05,0.05",
        "webhook_timeout_seconds": 5.0,
        "webhook_connect_seconds": 2.0,
        "poll_seconds": 0.05,
    }
    return Settings(**(defaults | given))


async def organization(pool: Pool) -> Actor:
    """The actor of a new organization."""
    id = uuid7()
    await pool.execute(
        "INSERT INTO organizations (id, name, created_at) VALUES ($1, 'Acme ' || $1::uuid, $2)", id, clock.now()
    )
    return Actor(organization_id=id, key_id=None, mode="live", scopes=frozenset(), state="active")


async def endpoint(
    pool: Pool, actor: Actor, url: str, *, kinds: Sequence[str] = (KIND,), under: Settings | None = None
) -> tuple[UUID, str]:
    """Create an endpoint; returns its id and secret."""
    rules = endpoints.rules(under or settings())
    async with pool.acquire() as conn:
        made, secret = await endpoints.create(conn, actor, url=url, subscribed_events=kinds, rules=rules)
    return made.id, secret


async def record(pool: Pool, actor: Actor, count: int = 1, *, kind: str = KIND, request_id: str = "req-1") -> list[str]:
    """Record and queue new events; returns their ids in order."""
    made = [events.Event(actor.organization_id, uuid7(), kind, request_id, DATA, clock.now()) for _ in range(count)]
    async with pool.acquire() as conn:
        await events.record(conn, made)
    return [str(event.id) for event in made]


@contextlib.asynccontextmanager
async def delivering(
    pool: Pool, under: Settings | None = None, *, lookup: Lookup | None = None
) -> AsyncIterator[Deliverer]:
    """A running deliverer, as in a worker process."""
    under = under or settings()
    outbound = HttpClient(webhook_rules(under), lookup=lookup)
    deliverer = Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under))
    stopping = asyncio.Event()
    tasks = [
        asyncio.create_task(
            loop("webhooks", deliverer.round, wake=deliverer.wake, poll=under.poll_seconds, stopping=stopping)
        ),
        asyncio.create_task(every("renew", deliverer.renew, seconds=under.lease_seconds / 3, stopping=stopping)),
    ]
    try:
        yield deliverer
    finally:
        stopping.set()
        deliverer.wake.set()
        await asyncio.gather(*tasks)
        await deliverer.drain(0.1)
        await outbound.close()


async def until(condition: Callable[[], Awaitable[bool]], *, within: float = 120.0) -> None:
    """Wait until `condition` holds. Raises TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110 (tables send no events)
            await asyncio.sleep(0.01)


ATTEMPTS = """
SELECT organization_id, event_id, endpoint_id, attempt, started_at, duration_ms, status, result, detail
  FROM webhook_attempts
UNION ALL
SELECT organization_id, one.*, 'delivered', '' FROM webhook_successes s CROSS JOIN LATERAL (
       SELECT event_id, s.endpoint_id, 1, s.started_from + ms * interval '1 millisecond', took, answer
         FROM unnest(s.events, s.started_ms, s.duration_ms, s.status) AS made (event_id, ms, took, answer)) one
 ORDER BY started_at, attempt
"""


async def attempts(pool: Pool) -> list[dict[str, Any]]:
    """All attempts, including first successes, in the order in which they began."""
    return [dict(row) for row in await pool.fetch(ATTEMPTS)]


async def attempted(pool: Pool, count: int) -> list[dict[str, Any]]:
    """Wait until there are `count` attempts and no leased queue row; returns the attempts."""

    async def there() -> bool:
        return len(await attempts(pool)) >= count and await leased(pool) == 0

    await until(there)
    return await attempts(pool)


async def queued(pool: Pool) -> int:
    """The number of queue rows."""
    number: int = await pool.fetchval("SELECT count(*) FROM queue")
    return number


async def leased(pool: Pool) -> int:
    """The number of leased queue rows."""
    number: int = await pool.fetchval("SELECT count(*) FROM queue WHERE lease_until IS NOT NULL")
    return number
