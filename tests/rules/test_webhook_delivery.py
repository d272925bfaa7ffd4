"""Deliveries from the queue to a receiver and into the record, over real sockets and a real database."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.http.client import HttpClient, webhook_rules
from heliograph.queue import leases
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks import changing, endpoints, history
from heliograph.webhooks.delivery import attempts as deliverer_attempts
from heliograph.webhooks.delivery import signing
from heliograph.webhooks.delivery.concurrency import EndpointQueue
from heliograph.webhooks.delivery.delivery import Deliverer
from heliograph.webhooks.recording import feed
from tests.hooks import (
    DATA,
    KIND,
    attempted,
    attempts,
    delivering,
    endpoint,
    leased,
    organization,
    queued,
    record,
    settings,
    until,
)
from tests.rules.factories import blocked


async def row_of(pool: Pool, id: object) -> dict[str, Any]:
    row = await pool.fetchrow("SELECT * FROM webhook_endpoints WHERE id = $1", id)
    assert row is not None
    return dict(row)


async def test_an_event_arrives_signed_and_is_recorded(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    id, secret = await endpoint(pool, actor, receiver.url)
    (event_id,) = await record(pool, actor, request_id="req-of-the-send")
    created_at = await pool.fetchval("SELECT created_at FROM events")
    async with delivering(pool):
        await receiver.wait_for(lambda it: it.counters.received == 1)
        (attempt,) = await attempted(pool, 1)
    (came,) = receiver.events
    headers = came.headers
    assert json.loads(came.body) == {
        "id": event_id,
        "type": KIND,
        "timestamp": clock.iso(created_at),
        "requestId": "req-of-the-send",
        "apiVersion": "v1",
        "data": json.loads(DATA),
    }
    assert (headers["x-service-event-id"], headers["x-request-id"]) == (event_id, "req-of-the-send")
    now = clock.now()
    assert (
        signing.verify(
            [secret],
            timestamp=headers["x-service-timestamp"],
            signature=headers["x-service-signature"],
            body=came.body,
            now=now,
        )
        is None
    )
    assert (
        signing.verify_standard(
            [secret],
            event_id=headers["webhook-id"],
            timestamp=headers["webhook-timestamp"],
            signature=headers["webhook-signature"],
            body=came.body,
            now=now,
        )
        is None
    )
    assert (str(attempt["event_id"]), attempt["endpoint_id"], attempt["attempt"]) == (event_id, id, 1)
    assert (attempt["status"], attempt["result"], attempt["detail"]) == (200, "delivered", "")
    assert attempt["duration_ms"] >= 0
    assert await queued(pool) == 0
    row = await row_of(pool, id)
    assert row["last_success_at"] is not None
    assert (row["consecutive_failures"], row["failing_since"]) == (0, None)


async def test_each_subscribed_endpoint_gets_an_event_once(pool: Pool) -> None:
    actor = await organization(pool)
    receivers = [Receiver() for _ in range(3)]
    for one in receivers:
        await one.start()
        await endpoint(pool, actor, one.url, kinds=[KIND] if one is not receivers[2] else ["message.failed"])
    async with delivering(pool):
        await record(pool, actor, 200)
        for one in receivers[:2]:
            await one.wait_for(lambda it: it.counters.received == 200)
        await until(lambda: _is_empty(pool))
    assert [one.counters.requests for one in receivers] == [200, 200, 0]
    assert len(await attempts(pool)) == 400
    for one in receivers:
        await one.stop()


async def test_an_attempt_that_ends_while_its_event_is_looked_up_is_shown_whole_or_not_at_all(
    pool: Pool, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the page of a delivery would say that it arrived, and that it is due again."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    (event_id,) = await record(pool, actor)
    opened = feed.opened

    async def meanwhile(*given: Any) -> Any:
        monkeypatch.setattr(feed, "opened", opened)
        async with delivering(pool):
            await attempted(pool, 1)
        return await opened(*given)

    monkeypatch.setattr(feed, "opened", meanwhile)
    seen = []
    for _ in range(2):
        async with pool.acquire() as conn:
            found = await history.delivery(conn, actor, endpoint_id=id, event_id=UUID(event_id))
        seen.append((len(found.attempts), found.next_at is None))
    assert seen == [(0, False), (1, True)]


async def test_a_retry_is_signed_afresh_under_the_same_event_id(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options(status=500))
    await receiver.start()
    id, secret = await endpoint(pool, actor, receiver.url)
    (event_id,) = await record(pool, actor)
    async with delivering(pool):
        await receiver.wait_for(lambda it: it.counters.requests == 2)
        receiver.options = Options(secrets=(secret,))
        await receiver.wait_for(lambda it: it.counters.received == 1)
        tried = await attempted(pool, 3)
    await receiver.stop()
    assert [attempt["attempt"] for attempt in tried] == [1, 2, 3]
    assert [attempt["status"] for attempt in tried] == [500, 500, 200]
    assert [attempt["result"] for attempt in tried] == ["refused", "refused", "delivered"]
    assert {event.id for event in receiver.events} == {event_id}
    stamps = [event.headers["x-service-timestamp"] for event in receiver.events]
    signatures = [event.headers["x-service-signature"] for event in receiver.events]
    assert len(set(stamps)) == 3
    for event, stamp, signature in zip(receiver.events, stamps, signatures, strict=True):
        assert signature == signing.sign(secret, stamp, event.body)
    row = await row_of(pool, id)
    assert (row["consecutive_failures"], row["failing_since"], row["status"]) == (0, None, "active")


async def test_the_end_of_the_schedule_ends_the_delivery(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options(status=400))
    await receiver.start()
    id, _ = await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    async with delivering(pool):
        await until(lambda: _is_empty(pool))
        tried = await attempts(pool)
    await receiver.stop()
    assert [(attempt["attempt"], attempt["result"]) for attempt in tried] == [(n, "refused") for n in (1, 2, 3)]
    row = await row_of(pool, id)
    assert (row["consecutive_failures"], row["status"]) == (3, "active")
    assert await pool.fetch("SELECT kind, object, name FROM notices") == [("webhook.failing", str(id), receiver.url)]
    assert row["failing_since"] is not None


async def test_no_value_becomes_a_header_of_its_own(pool: Pool, receiver: Receiver) -> None:
    """Neither on a new connection nor on an open one."""
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool, settings(webhook_schedule="0,3600")):
        await record(pool, actor, request_id="r\r\nx-more: 1")
        await attempted(pool, 1)
        await record(pool, actor)
        await attempted(pool, 2)
        await record(pool, actor, request_id="r\nx-more: 1")
        tried = await attempted(pool, 3)
    assert [attempt["result"] for attempt in tried] == ["protocol", "delivered", "protocol"]
    assert receiver.counters.requests == 1


@pytest.mark.parametrize("status", [204, 299])
async def test_any_2xx_is_a_success(pool: Pool, receiver: Receiver, status: int) -> None:
    receiver.options = Options(status=status)
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    async with delivering(pool):
        await until(lambda: _is_empty(pool))
    assert [attempt["result"] for attempt in await attempts(pool)] == ["delivered"]


@pytest.mark.parametrize("status", [301, 404, 500])
async def test_anything_else_is_not(pool: Pool, receiver: Receiver, status: int) -> None:
    receiver.options = Options(status=status)
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    async with delivering(pool, settings(webhook_schedule="0,3600")):
        (attempt,) = await attempted(pool, 1)
    assert (attempt["status"], attempt["result"]) == (status, "refused")
    assert await queued(pool) == 1


async def test_410_disables_the_endpoint_and_drops_what_is_queued_for_it(pool: Pool, receiver: Receiver) -> None:
    receiver.options = Options(status=410)
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    # More than are posted at once, however late the first result is recorded.
    await record(pool, actor, 1000)
    async with delivering(pool):
        await until(lambda: _is_empty(pool))
        row = await row_of(pool, id)
        assert (row["status"], row["disabled_reason"]) == ("disabled", "gone")
        assert row["disabled_at"] is not None
        came = receiver.counters.requests
        assert await record(pool, actor)
    assert 1 <= came < 1000
    assert {attempt["result"] for attempt in await attempts(pool)} == {"gone"}


async def test_410_from_an_earlier_address_disables_no_endpoint_that_has_moved(pool: Pool, receiver: Receiver) -> None:
    """Whoever moves an endpoint takes the old address away at that moment, and a worker may still post there."""
    receiver.options = Options(status=410)
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    async with delivering(pool, settings(webhook_schedule="0,3600")) as deliverer:
        deliverer._poster._destinations._max_age = 3600.0
        assert await deliverer._poster.destinations([(actor.organization_id, id)])
        await pool.execute("UPDATE webhook_endpoints SET url = url || 'moved'")
        await record(pool, actor)
        (attempt,) = await attempted(pool, 1)
    assert attempt["result"] == "gone"
    row = await row_of(pool, id)
    assert (row["status"], row["consecutive_failures"]) == ("active", 1)
    assert await queued(pool) == 1


async def test_an_endpoint_that_is_disabled_again_is_told_again(pool: Pool, receiver: Receiver) -> None:
    """Within an hour, nobody was told that what had just been put right was not."""
    receiver.options = Options(status=410)
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    async with delivering(pool):
        for told in (1, 2):
            await record(pool, actor)
            await until(lambda: _is_empty(pool))
            assert (await row_of(pool, id))["disabled_reason"] == "gone"
            assert await pool.fetchval("SELECT count(*) FROM notices WHERE kind = 'webhook.disabled'") == told
            async with pool.acquire() as conn:
                changes = changing.Changes(disabled=False)
                await changing.change(conn, actor, id=id, changes=changes, rules=endpoints.rules(settings()))


async def test_an_endpoint_that_only_failed_for_days_is_disabled(pool: Pool, receiver: Receiver) -> None:
    receiver.options = Options(status=500)
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    young, _ = await endpoint(pool, actor, receiver.url)
    await pool.execute(
        "UPDATE webhook_endpoints SET consecutive_failures = 9, failing_since = now() - make_interval(hours => $2)"
        " WHERE id = $1",
        id,
        121,
    )
    await pool.execute(
        "UPDATE webhook_endpoints SET consecutive_failures = 9, failing_since = now() - make_interval(hours => $2)"
        " WHERE id = $1",
        young,
        119,
    )
    await record(pool, actor)
    async with delivering(pool, settings(webhook_schedule="0,3600")):
        await attempted(pool, 2)
    row = await row_of(pool, id)
    assert (row["status"], row["disabled_reason"], row["consecutive_failures"]) == ("disabled", "failing", 10)
    assert (await row_of(pool, young))["status"] == "active"
    # The other one has been failing all the time, which was reported when it began.
    assert await pool.fetch("SELECT kind, object, facts FROM notices") == [
        ("webhook.disabled", str(id), '{"reason":"failing"}')
    ]
    assert await pool.fetchval("SELECT array_agg(line) FROM queue") == [young]


async def test_days_of_failing_at_an_earlier_address_disable_no_endpoint(pool: Pool, receiver: Receiver) -> None:
    """The first failure at the new one did."""
    receiver.options = Options(status=500)
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, "http://127.0.0.1:9/")
    long_ago = "now() - interval '121 hours'"
    await pool.execute(f"UPDATE webhook_endpoints SET consecutive_failures = 9, failing_since = {long_ago}")
    changes, rules = changing.Changes(url=receiver.url), endpoints.rules(settings())
    async with pool.acquire() as conn:
        await changing.change(conn, actor, id=id, changes=changes, rules=rules)
    await record(pool, actor)
    async with delivering(pool, settings(webhook_schedule="0,3600")):
        await attempted(pool, 1)
        row = await row_of(pool, id)
        assert (row["status"], row["consecutive_failures"]) == ("active", 10)
        # What it has missed since it began to fail is still known.
        assert await pool.fetchval(f"SELECT failing_since <= {long_ago} FROM webhook_endpoints")
        await pool.execute(f"UPDATE webhook_endpoints SET moved_at = {long_ago}")
        await record(pool, actor)
        await attempted(pool, 2)
    assert (await row_of(pool, id))["disabled_reason"] == "failing"


async def test_a_success_in_between_keeps_an_endpoint(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    await pool.execute(
        "UPDATE webhook_endpoints SET consecutive_failures = 9, failing_since = now() - interval '121 hours'"
    )
    await record(pool, actor)
    async with delivering(pool):
        await until(lambda: _is_empty(pool))
    row = await row_of(pool, id)
    assert (row["status"], row["consecutive_failures"], row["failing_since"]) == ("active", 0, None)


@pytest.mark.parametrize(
    ("status", "retry_after", "schedule", "least", "most"),
    [
        (429, 100, "0,5", 95, 101),
        (503, 100, "0,5", 95, 101),
        (503, 86400, "0,5", 3595, 3601),
        (429, 1, "0,1000", 795, 1201),
        (500, 100, "0,5", 3, 7),
    ],
)
async def test_retry_after_is_heeded(
    pool: Pool, receiver: Receiver, status: int, retry_after: int, schedule: str, least: float, most: float
) -> None:
    receiver.options = Options(status=status, retry_after=retry_after)
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    async with delivering(pool, settings(webhook_schedule=schedule)):
        await attempted(pool, 1)
    pause = await pool.fetchval("SELECT extract(epoch FROM due_at - now())::float8 FROM queue")
    assert least <= pause <= most


async def test_what_was_queued_for_a_disabled_endpoint_is_not_sent(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    await pool.execute("UPDATE webhook_endpoints SET status = 'disabled'")
    async with delivering(pool):
        await until(lambda: _is_empty(pool))
    assert receiver.counters.requests == 0
    assert await attempts(pool) == []


async def test_an_event_that_is_gone_by_retention_is_dropped(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor, 2)
    await pool.execute("DELETE FROM events WHERE id = (SELECT min(id::text)::uuid FROM events)")
    async with delivering(pool):
        await until(lambda: _is_empty(pool))
    assert receiver.counters.requests == 1


async def test_disabling_holds_within_a_second_for_a_deliverer_at_work(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    async with delivering(pool):
        await record(pool, actor)
        await receiver.wait_for(lambda it: it.counters.received == 1)
        await record(pool, actor)  # as yesterday's worker would have queued it
        async with pool.acquire() as conn:
            await changing.disable(conn, actor, id=id)
        await until(lambda: _is_empty(pool))
        came = receiver.counters.requests
        await pool.execute(
            "INSERT INTO queue (kind, line, organization_id, due_at, id)"
            " SELECT 'webhook', $1, organization_id, now() + interval '1 second', id FROM events",
            id,
        )
        await until(lambda: _is_empty(pool))
        assert receiver.counters.requests == came


async def test_a_lost_lease_is_recorded_but_leaves_the_row_to_its_new_holder(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options(hang=True))
    await receiver.start()
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    async with delivering(pool, settings(webhook_timeout_seconds=0.6)) as deliverer:
        async with deliverer._record.writing:  # the timeout is recorded afterwards
            await receiver.wait_for(lambda it: it.counters.requests == 1)
            theirs = "0190aaaa-0000-7000-8000-00000000ffff"
            await pool.execute(
                "UPDATE queue SET lease_token = $1, lease_until = now() + interval '1 hour', claims = 2", theirs
            )
        await until(lambda: _has(pool, 1))
    await receiver.stop()
    (row,) = await pool.fetch("SELECT lease_token, tries FROM queue")
    assert (str(row["lease_token"]), row["tries"]) == (theirs, 0)
    assert [attempt["result"] for attempt in await attempts(pool)] == ["timeout"]


async def test_a_long_attempt_keeps_its_lease(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    receiver.options = Options(hang=True)
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    under = settings(lease_seconds=600.0, webhook_timeout_seconds=60.0)
    outbound = HttpClient(webhook_rules(under))
    first, second = (Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under)) for _ in range(2))
    assert await first.round() == 1
    await receiver.wait_for(lambda it: it.counters.requests == 1)
    soon = await pool.fetchval("UPDATE queue SET lease_until = now() + interval '5 minutes' RETURNING lease_until")
    await first.renew()
    assert await pool.fetchval("SELECT lease_until FROM queue") == soon  # it is young
    for delivery in first._held.every():
        delivery.claimed_at -= under.lease_seconds / 2  # as if that much time had passed
    await first.renew()
    assert await pool.fetchval("SELECT lease_until FROM queue") > soon
    assert await second.round() == 0
    assert receiver.counters.requests == 1
    for deliverer in (first, second):
        await deliverer.drain(0.0)
    await outbound.close()


async def test_a_result_whose_record_is_the_victim_of_a_deadlock_is_recorded(pool: Pool, receiver: Receiver) -> None:
    """Otherwise its lease would end, and the event would be posted again."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    under = settings(lease_seconds=600.0)
    outbound = HttpClient(webhook_rules(under))
    deliverer = Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under))
    async with pool.acquire() as open_session:
        transaction = open_session.transaction()
        await transaction.start()
        await open_session.execute("SELECT FROM webhook_endpoints WHERE id = $1 FOR UPDATE", id)
        assert await deliverer.round() == 1
        await blocked(pool)
        with contextlib.suppress(asyncpg.DeadlockDetectedError):
            await open_session.execute("SELECT FROM queue FOR UPDATE")
        await transaction.rollback()
    await until(lambda: _holds_nothing(deliverer))
    assert await queued(pool) == 0
    assert [attempt["result"] for attempt in await attempts(pool)] == ["delivered"]
    assert receiver.counters.requests == 1
    await deliverer.drain(1.0)
    await outbound.close()


@pytest.mark.parametrize("lease", ["lasts", "has ended", "is another's"])
async def test_what_waits_while_an_open_session_has_locked_its_row_is_posted_once(
    pool: Pool, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, lease: str
) -> None:
    """Its lease could not be renewed: it was taken for lost, and finished without having been posted, or taken for its
    own by a worker whose lease had ended, and posted by another one as well."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    under = settings(lease_seconds=600.0)
    outbound = HttpClient(webhook_rules(under))
    deliverer, other = (Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under)) for _ in range(2))
    assert await deliverer.round() == 1
    await until(lambda: _is_empty(pool))
    may_begin, load, loads = asyncio.Event(), deliverer_attempts.destinations, itertools.count()

    async def loaded(*given: Any) -> Any:
        if next(loads) == 0:
            await may_begin.wait()
        return await load(*given)

    monkeypatch.setattr(deliverer_attempts, "destinations", loaded)
    deliverer._poster.forget(actor.organization_id, id)
    await record(pool, actor)
    assert await deliverer.round() == 1
    if lease != "lasts":
        await pool.execute("UPDATE queue SET lease_until = now() - interval '1 second'")
    async with pool.acquire() as open_session, open_session.transaction():
        await open_session.execute("SELECT FROM queue FOR UPDATE")
        for delivery in deliverer._held.every():
            delivery.claimed_at -= under.lease_seconds / 2  # as if that much time had passed
        await deliverer.renew()
    if lease == "is another's":
        await until(other.round)
        await until(lambda: _is_empty(pool))
    may_begin.set()
    await until(lambda: _holds_nothing(deliverer))
    if lease == "has ended":
        assert receiver.counters.requests == 1
        await until(deliverer.round)
    await until(lambda: _is_empty(pool))
    assert [attempt["result"] for attempt in await attempts(pool)] == ["delivered", "delivered"]
    assert receiver.counters.requests == 2
    for one in (deliverer, other):
        await one.drain(1.0)
    await outbound.close()


async def test_what_may_be_another_workers_once_its_connection_is_open_is_not_sent(
    pool: Pool, receiver: Receiver
) -> None:
    """The process stood still while it connected: it used to send the event after that."""
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url.replace("127.0.0.1", "receiver.example"))
    await record(pool, actor)
    under = settings(lease_seconds=600.0)
    freezes = [under.lease_seconds]

    def lookup(name: str) -> list[str]:
        deliverer._held._renewed_at -= freezes.pop() if freezes else 0.0
        return ["127.0.0.1"]

    outbound = HttpClient(webhook_rules(under), lookup=lookup)
    deliverer = Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under))
    assert await deliverer.round() == 1
    await until(lambda: _is_free(pool))
    assert (receiver.counters.requests, await attempts(pool)) == (0, [])
    # It was nobody else's.
    assert await deliverer.round() == 1
    await until(lambda: _is_empty(pool))
    assert [attempt["result"] for attempt in await attempts(pool)] == ["delivered"]
    await deliverer.drain(1.0)
    await outbound.close()


async def test_a_drain_lets_open_attempts_end_and_gives_back_the_rest(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options(latency=0.3))
    await receiver.start()
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor, 20)
    under = settings()
    outbound = HttpClient(webhook_rules(under))
    deliverer = Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under))
    assert await deliverer.round() > 0
    await receiver.wait_for(lambda it: it.counters.requests >= 1)
    assert deliverer.in_flight > 0
    await deliverer.drain(5.0)
    assert await deliverer.round() == 0
    done = len(await attempts(pool))
    assert done == receiver.counters.received >= 1
    assert await queued(pool) == 20 - done
    assert await leased(pool) == 0

    # A receiver that does not answer in time: the attempt is aborted, and the row is there for the next worker.
    receiver.options = Options(hang=True)
    second = Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under))
    assert await second.round() > 0
    await receiver.wait_for(lambda it: it.counters.requests > done)
    await second.drain(0.1)
    assert second.in_flight == 0
    assert (await queued(pool), await leased(pool)) == (20 - done, 0)
    await outbound.close()
    await receiver.stop()


async def test_a_worker_remembers_no_endpoint_that_it_claims_nothing_for(pool: Pool) -> None:
    """Of 300 endpoints that it does not know, all hanging, it claims as many as it can soon try, and skips the others
    each time."""
    receiver = Receiver(Options(hang=True))
    await receiver.start()
    for n in range(30):
        actor = await organization(pool)
        for m in range(10):
            await endpoint(pool, actor, f"{receiver.url}{n}/{m}")
        await record(pool, actor)
    under = settings(webhook_concurrency=8, claim_limit=12)
    outbound = HttpClient(webhook_rules(under))
    deliverer = Deliverer(pool, outbound, under, seal_key=endpoints.seal_key(under))
    # Those of other tests may still be there, and are kept, so that none of these has the id of one.
    others = [one for one in gc.get_objects() if isinstance(one, EndpointQueue)]
    assert [await deliverer.round() for _ in range(3)] == [6, 0, 0]
    found = [one for one in gc.get_objects() if isinstance(one, EndpointQueue)]
    assert len({id(one) for one in found} - {id(one) for one in others}) == 6
    assert await leased(pool) == 6
    await deliverer.drain(0.0)
    await outbound.close()
    await receiver.stop()


async def test_what_a_receiver_says_can_be_stored_whatever_it_is(pool: Pool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        body = b"no\0\xff\xed\xa0\x80" + b"x" * 5000
        writer.write(b"HTTP/1.1 500 \xff\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        writer.write(b"\0\xff\xed\xa0\x80\r\n\0\r\n\r\n")
        writer.close()

    actor = await organization(pool)
    ids = []
    servers = [await asyncio.start_server(behave, "127.0.0.1", 0) for behave in (answer, babble)]
    for server in servers:
        id, _ = await endpoint(pool, actor, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        ids.append(id)
    await record(pool, actor, 3)
    async with delivering(pool, settings(webhook_schedule="0,3600")):
        tried = await attempted(pool, 6)
    assert {row["endpoint_id"]: row["result"] for row in tried} == {ids[0]: "refused", ids[1]: "protocol"}
    assert all(len(row["detail"]) <= 200 for row in tried)
    for server in servers:
        server.close()


async def test_two_workers_share_a_backlog_without_doubles(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    await record(pool, actor, 500)
    async with delivering(pool), delivering(pool):
        await receiver.wait_for(lambda it: it.counters.received == 500)
        await until(lambda: _is_empty(pool))
    assert (receiver.counters.requests, receiver.counters.duplicates) == (500, 0)
    assert len(await attempts(pool)) == 500


async def test_a_busy_destination_costs_no_attempt(pool: Pool) -> None:
    """Several endpoints behind one origin meet the limit per destination: they wait, and no attempt is counted."""
    actor = await organization(pool)
    receiver = Receiver(Options(latency=0.01))
    await receiver.start()
    for n in range(10):
        await endpoint(pool, actor, f"{receiver.url}{n}")
    await record(pool, actor, 30)
    async with delivering(pool, settings(webhook_concurrency=24)):  # eight at once for one destination
        await receiver.wait_for(lambda it: it.counters.requests == 300, within=120)
        await until(lambda: _is_empty(pool))
    await receiver.stop()
    tried = await attempts(pool)
    assert len(tried) == 300
    assert {(attempt["attempt"], attempt["result"]) for attempt in tried} == {(1, "delivered")}


async def test_a_secret_that_does_not_open_is_an_attempt_that_says_so(pool: Pool, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url, under=settings(secret_key="another secret key, of another installation"))
    await record(pool, actor)
    with capture_logs() as logged:
        async with delivering(pool, settings(webhook_schedule="0,3600")):
            (attempt,) = await attempted(pool, 1)
    assert attempt["result"] == "secret"
    (said,) = [entry for entry in logged if entry["event"] == "webhook secret cannot be decrypted"]
    assert said["event_id"] == str(await pool.fetchval("SELECT id FROM events"))
    assert receiver.counters.requests == 0


async def test_a_new_secret_signs_although_the_old_one_does_not_open_any_more(pool: Pool, receiver: Receiver) -> None:
    """The secret key was lost; the old secret would sign, too, for another day."""
    actor = await organization(pool)
    lost = settings(secret_key="another secret key, which has been lost")
    id, _ = await endpoint(pool, actor, receiver.url, under=lost)
    rules = endpoints.rules(settings())
    async with pool.acquire() as conn:
        assert await endpoints.secrets(conn, actor, id=id, rules=rules) == []
        _, secret, _ = await endpoints.rotate_secret(conn, actor, id=id, rules=rules)
        assert await endpoints.secrets(conn, actor, id=id, rules=rules) == [secret]
    await record(pool, actor)
    async with delivering(pool):
        (attempt,) = await attempted(pool, 1)
    assert attempt["result"] == "delivered"


@pytest.mark.parametrize("address", ["10.0.0.7", "169.254.169.254", "::1", "fd00::1"])
async def test_a_name_that_leads_inside_is_not_connected_to(pool: Pool, receiver: Receiver, address: str) -> None:
    actor = await organization(pool)
    url = f"http://inside.example:{receiver.port}/"
    await endpoint(pool, actor, url)
    await record(pool, actor)
    strict = settings(webhook_allow_networks="", webhook_schedule="0,3600")
    async with delivering(pool, strict, lookup=lambda name: [address]):
        (attempt,) = await attempted(pool, 1)
    assert (attempt["result"], attempt["status"]) == ("blocked", None)
    assert receiver.counters.requests == 0


CRASH = """
import asyncio, sys
from heliograph.base.process import crash
from heliograph.base.database.pool import open_pool
from tests.hooks import delivering, settings

async def main(url, point):
    crash.arm(point)
    pool = await open_pool(url, size=3)
    async with delivering(pool, settings(lease_seconds=1.0)):
        await asyncio.sleep(30)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("point", "again"),
    [
        ("webhook.before_post", False),
        ("webhook.after_post", True),
        ("webhook.before_commit", True),
        ("webhook.after_commit", False),
    ],
)
async def test_a_killed_worker_loses_nothing(
    pool: Pool, database_url: str, receiver: Receiver, point: str, again: bool
) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    (event_id,) = await record(pool, actor)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CRASH,
        database_url,
        point,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.DEVNULL,
    )
    async with asyncio.timeout(120):
        assert await process.wait() == -signal.SIGKILL
    async with delivering(pool, settings(lease_seconds=1.0)):
        await receiver.wait_for(lambda it: it.counters.received + it.counters.duplicates == 1 + again)
        await until(lambda: _is_empty(pool))
    assert {event.id for event in receiver.events} == {event_id}
    assert [(row["attempt"], row["result"]) for row in await attempts(pool)] == [(1, "delivered")]


async def test_results_wait_for_a_database_that_is_away(pool: Pool, database_url: str, receiver: Receiver) -> None:
    actor = await organization(pool)
    await endpoint(pool, actor, receiver.url)
    async with delivering(pool, settings(lease_seconds=2.0)):  # a claim whose response was lost with its connection
        await record(pool, actor)
        await receiver.wait_for(lambda it: it.counters.received == 1)
        for _ in range(3):
            # A separate connection: one of the pool may have been ended a moment ago.
            own = await open_pool(database_url, size=1)
            await record(own, actor, 5)
            async with own.acquire() as conn:
                await conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE backend_type = 'client backend' AND datname = current_database()"
                    " AND usename = current_user AND pid <> pg_backend_pid()"
                )
            await own.close()
        await receiver.wait_for(lambda it: it.counters.received == 16, within=120)
        own = await open_pool(database_url, size=1)
        await until(lambda: _is_empty(own))
    assert {(row["attempt"], row["result"]) for row in await attempts(own)} == {(1, "delivered")}
    assert len(await attempts(own)) == 16
    await own.close()


async def test_a_row_put_back_comes_again_under_a_new_lease(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options(status=500))
    await receiver.start()
    id, _ = await endpoint(pool, actor, receiver.url)
    await record(pool, actor)
    async with delivering(pool, settings(webhook_schedule="0,0.2")):
        await attempted(pool, 1)
        async with pool.acquire() as conn:
            found, after = await leases.occupied(conn, "webhook")
        assert after == leases.UNROUTED
        assert found in ([], [id])
        await until(lambda: _is_empty(pool))
    await receiver.stop()
    assert [attempt["attempt"] for attempt in await attempts(pool)] == [1, 2]


async def _is_empty(pool: Pool) -> bool:
    return await queued(pool) == 0


async def _holds_nothing(deliverer: Deliverer) -> bool:
    return not deliverer._held.every()


async def _is_free(pool: Pool) -> bool:
    return await leased(pool) == 0


async def _has(pool: Pool, count: int) -> bool:
    return len(await attempts(pool)) >= count
