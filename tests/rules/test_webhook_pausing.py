"""Pausing and resuming an endpoint: nothing is sent meanwhile, nothing is lost, and missed events are recovered."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import time_of, uuid7
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks import catcher, changing, endpoints, figures, replays
from heliograph.webhooks.changing import Changes
from heliograph.webhooks.endpoints import Endpoint, EndpointDisabled, EndpointPaused
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.events import Event
from heliograph.webhooks.replays import Replay
from tests.hooks import (
    DATA,
    KIND,
    attempted,
    attempts,
    delivering,
    endpoint,
    organization,
    queued,
    record,
    settings,
    until,
)

RULES = endpoints.rules(settings())
URL = "http://127.0.0.1:9/"
#: Like the condition in `replays.TAKE`.
WRITING = """
SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                  AND backend_xid IS NOT NULL AND xact_start <= $1 AND pg_has_role(usesysid, 'USAGE'))
"""


async def change(pool: Pool, actor: Actor, id: UUID, **asked: Any) -> Endpoint:
    async with pool.acquire() as conn:
        return await changing.change(conn, actor, id=id, changes=Changes(**asked), rules=RULES)


async def advance(pool: Pool) -> int:
    async with pool.acquire() as conn:
        return await replays.advance(conn)


async def settled(pool: Pool) -> None:
    """As if the time had passed after which a return is replayed."""
    at = await pool.fetchval("WITH one AS (UPDATE webhook_replays SET to_at = now()) SELECT now()")

    async def none_writes() -> bool:
        return not await pool.fetchval(WRITING, at)

    # Deliverers may be recording something at this moment.
    await until(none_writes)


async def replays_of(pool: Pool, actor: Actor, id: UUID) -> list[Replay]:
    async with pool.acquire() as conn:
        return await replays.list_replays(conn, actor, endpoint_id=id, limit=10)


async def recorded_before(pool: Pool, actor: Actor, count: int = 1) -> None:
    """Record events, and wait until the last one's millisecond is over."""
    await until_millisecond_over(pool, UUID((await record(pool, actor, count))[-1]))


async def until_millisecond_over(pool: Pool, id: UUID) -> None:
    """Wait until an event's millisecond is over, by the database's clock and by ours: times of events are no more
    exact."""
    while min(await pool.fetchval("SELECT clock_timestamp()"), clock.now()) < time_of(id) + timedelta(milliseconds=1):
        pass


async def test_nothing_goes_out_while_it_is_paused_and_everything_once_it_is_resumed(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options(status=500))
    await receiver.start()
    id, _ = await endpoint(pool, actor, receiver.url)
    await recorded_before(pool, actor)  # is in the queue when the endpoint is paused
    paused = await change(pool, actor, id, paused=True)
    assert (paused.status, paused.dropped, await queued(pool)) == ("paused", 1, 0)
    assert paused.paused_at is not None
    assert paused.waits_from is not None
    assert paused.waits_from < paused.paused_at
    await record(pool, actor, 3)
    assert await queued(pool) == 0
    async with pool.acquire() as conn:
        health = await figures.of(conn, actor, id=id)
    assert (health.state, health.waiting) == ("paused", 4)
    receiver.options = Options()
    async with delivering(pool):
        resumed = await change(pool, actor, id, paused=False)
        assert (resumed.status, resumed.paused_at, resumed.waits_from, resumed.dropped) == ("active", None, None, 0)
        assert await advance(pool) == 0  # not before workers know
        await settled(pool)
        assert await advance(pool) == 4
        await attempted(pool, 4)
    await receiver.stop()
    assert {row["result"] for row in await attempts(pool)} == {"delivered"}
    assert len({event.id for event in receiver.events}) == 4
    (done,) = await replays_of(pool, actor, id)
    assert (done.cause, done.status, done.queued, done.only_failed) == ("return", "completed", 4, True)


async def test_what_was_being_recorded_when_it_was_resumed_is_recovered_too(pool: Pool) -> None:
    """Its transaction saw a paused endpoint, and lasts longer than a return waits: its worker stopped for a while."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await change(pool, actor, id, paused=True)
    event = Event(actor.organization_id, uuid7(), KIND, "req-1", DATA, clock.now())
    async with pool.acquire() as conn, conn.transaction():
        await events.record(conn, [event])
        await change(pool, actor, id, paused=False)
        await until_millisecond_over(pool, event.id)
        await pool.execute("UPDATE webhook_replays SET to_at = now()")
        assert await advance(pool) == 0
    assert await advance(pool) == 1
    assert await queued(pool) == 1


async def test_what_was_taken_is_not_sent_again(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options())
    await receiver.start()
    id, _ = await endpoint(pool, actor, receiver.url)
    async with delivering(pool):
        await record(pool, actor, 2)
        await attempted(pool, 2)
        await change(pool, actor, id, paused=True)
        (missed,) = await record(pool, actor)
        await change(pool, actor, id, paused=False)
        await settled(pool)
        assert await advance(pool) == 1
        await attempted(pool, 3)
    await receiver.stop()
    assert [str(row["event_id"]) for row in await attempts(pool)].count(missed) == 1
    assert receiver.counters.duplicates == 0


async def test_what_happened_before_it_was_made_is_not_recovered(pool: Pool) -> None:
    actor = await organization(pool)
    await recorded_before(pool, actor, 2)
    id, _ = await endpoint(pool, actor, URL)
    (waiting,) = await record(pool, actor)
    paused = await change(pool, actor, id, paused=True)
    assert paused.waits_from is not None
    assert paused.created_at - timedelta(milliseconds=1) <= paused.waits_from
    await record(pool, actor)
    await change(pool, actor, id, paused=False)
    await settled(pool)
    assert await advance(pool) == 2
    queue = [str(row["id"]) for row in await pool.fetch("SELECT id FROM queue WHERE kind = 'webhook' ORDER BY id")]
    assert (len(queue), queue[0]) == (2, waiting)


async def test_a_paused_endpoint_takes_nothing_by_hand_but_may_get_a_new_secret(pool: Pool) -> None:
    actor = await organization(pool)
    id, secret = await endpoint(pool, actor, URL)
    await change(pool, actor, id, paused=True)
    (event_id,) = await record(pool, actor)
    async with pool.acquire() as conn:
        with pytest.raises(EndpointPaused):
            await replays.resend(conn, actor, endpoint_id=id, event_id=UUID(event_id))
        with pytest.raises(EndpointPaused):
            await replays.send_example(conn, actor, endpoint_id=id, request_id="r")
        with pytest.raises(EndpointPaused):
            await replays.replay(conn, actor, endpoint_id=id, from_at=clock.now() - timedelta(hours=1))
        changed, new, until_at = await endpoints.rotate_secret(conn, actor, id=id, rules=RULES)
    assert (changed.status, changed.old_secret_until) == ("paused", until_at)
    assert new != secret
    again = await change(pool, actor, id, paused=True, description="moved")
    assert (again.status, again.description) == ("paused", "moved")


async def test_it_keeps_its_place_among_the_ten(pool: Pool) -> None:
    actor = await organization(pool)
    made = [(await endpoint(pool, actor, URL))[0] for _ in range(endpoints.MAX_ACTIVE)]
    await change(pool, actor, made[0], paused=True)
    with pytest.raises(endpoints.TooManyEndpoints):
        await endpoint(pool, actor, URL)
    async with pool.acquire() as conn:
        listed = await endpoints.list_all(conn, actor)
    assert [one.status for one in listed].count("paused") == 1
    assert (await change(pool, actor, made[0], paused=False)).status == "active"


async def test_events_that_only_subscribers_cause_are_recorded_for_a_paused_one(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL, kinds=["message.sent"])
    await change(pool, actor, id, paused=True)
    wanting = await events.Subscriptions(pool).wanting([actor.organization_id], "message.sent")
    assert wanting == {(actor.organization_id, "live")}


async def test_a_replay_stands_still_and_loses_nothing_of_what_it_had_queued(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await record(pool, actor, 5)
    await pool.execute("DELETE FROM queue")
    async with pool.acquire() as conn:
        await replays.replay(conn, actor, endpoint_id=id, from_at=clock.now() - timedelta(hours=1))
    # A step that found only one of its rows: the others are still to come.
    await pool.execute("UPDATE webhook_replays SET to_at = clock_timestamp()")
    assert await advance(pool) == 5
    await pool.execute("UPDATE webhook_replays SET status = 'running', completed_at = NULL")
    await change(pool, actor, id, paused=True)
    assert (await queued(pool), await advance(pool)) == (0, 0)
    await change(pool, actor, id, paused=False)
    assert await advance(pool) == 5  # again from before the first that had left the queue
    causes = sorted((one.cause, one.status) for one in await replays_of(pool, actor, id))
    assert causes == [("request", "completed"), ("return", "running")]


async def test_paused_twice_before_it_has_caught_up_it_recovers_from_the_first_pause(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    first = await change(pool, actor, id, paused=True)
    await pool.execute("UPDATE webhook_endpoints SET waits_from = now() - interval '2 days'")
    await change(pool, actor, id, paused=False)
    again = await change(pool, actor, id, paused=True)
    assert first.waits_from is not None
    assert again.waits_from is not None
    assert again.waits_from < first.waits_from - timedelta(days=1)
    await change(pool, actor, id, paused=False)
    assert [one.status for one in await replays_of(pool, actor, id)] == ["running", "canceled"]


async def test_the_days_of_failing_stand_still(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await change(pool, actor, id, paused=True)
    await pool.execute(
        "UPDATE webhook_endpoints SET failing_since = now() - interval '100 hours', consecutive_failures = 7,"
        " paused_at = now() - interval '99 hours'"
    )
    resumed = await change(pool, actor, id, paused=False)
    failed_for = await pool.fetchval("SELECT now() - failing_since FROM webhook_endpoints")
    assert timedelta(minutes=59) < failed_for < timedelta(minutes=61)
    assert resumed.consecutive_failures == 7


async def test_the_days_at_an_address_stand_still_too(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    for same in ({"url": URL}, {"paused": True}, {"paused": False}):
        assert await change(pool, actor, id, **same)
        # After a pause, it counted as moved.
        assert await pool.fetchval("SELECT moved_at FROM webhook_endpoints") is None
    await change(pool, actor, id, url="https://example.com/moved")
    await pool.execute("UPDATE webhook_endpoints SET moved_at = now() - interval '5 hours'")
    await change(pool, actor, id, paused=True)
    for hours in (3, 9):  # the second time, it moved during the pause
        await pool.execute("UPDATE webhook_endpoints SET paused_at = now() - make_interval(hours => $1)", hours)
        await change(pool, actor, id, paused=False)
        at = await pool.fetchval(
            "SELECT round(extract(epoch FROM now() - moved_at) / 3600)::int FROM webhook_endpoints"
        )
        assert at == (2 if hours == 3 else 0)
        await change(pool, actor, id, paused=True)


async def test_a_disabled_endpoint_comes_back_with_or_without_what_it_missed(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await record(pool, actor, 2)
    async with pool.acquire() as conn:
        disabled = await changing.disable(conn, actor, id=id)
    assert (disabled.status, disabled.dropped, await queued(pool)) == ("disabled", 2, 0)
    with pytest.raises(EndpointDisabled):
        await change(pool, actor, id, paused=True)
    with pytest.raises(EndpointDisabled):
        await change(pool, actor, id, paused=False)
    await recorded_before(pool, actor)
    assert (await change(pool, actor, id, disabled=False)).status == "active"
    assert await replays_of(pool, actor, id) == []
    await change(pool, actor, id, disabled=True)
    await record(pool, actor)
    back = await change(pool, actor, id, disabled=False, recover=True)
    assert (back.status, back.dropped) == ("active", 0)
    await settled(pool)
    assert await advance(pool) == 1


@pytest.mark.parametrize("way", ["paused", "disabled", "enabled as paused"])
async def test_what_was_left_out_when_it_was_enabled_stays_left_out(pool: Pool, way: str) -> None:
    """It got new events only, as requested: being stopped once more within minutes does not bring the others back."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await pool.execute(
        "UPDATE webhook_endpoints SET failing_since = now() - interval '1 hour', consecutive_failures = 7"
    )
    await change(pool, actor, id, disabled=True)
    await recorded_before(pool, actor, 2)
    if way == "enabled as paused":
        enabled = await change(pool, actor, id, disabled=False, paused=True)
        assert enabled.consecutive_failures == 0
        await change(pool, actor, id, paused=False)
        await change(pool, actor, id, paused=True)
        owed: list[str] = []
    else:
        enabled = await change(pool, actor, id, disabled=False)
        assert enabled.waits_from is None
        owed = await record(pool, actor)
        await change(pool, actor, id, **{way: True})
    owed += await record(pool, actor)
    back = {"disabled": False, "recover": True} if way == "disabled" else {"paused": False}
    await change(pool, actor, id, **back)
    await settled(pool)
    assert await advance(pool) == len(owed)
    queue = [str(row["id"]) for row in await pool.fetch("SELECT id FROM queue WHERE kind = 'webhook' ORDER BY id")]
    assert queue == owed


async def test_what_was_recovered_when_it_was_enabled_is_still_owed_after_another_pause(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await change(pool, actor, id, disabled=True)
    owed = await record(pool, actor, 2)
    await change(pool, actor, id, disabled=False, recover=True)
    await settled(pool)
    assert await advance(pool) == 2
    await change(pool, actor, id, paused=True)
    owed += await record(pool, actor)
    await change(pool, actor, id, paused=False)
    await settled(pool)
    assert await advance(pool) == 3
    queue = [str(row["id"]) for row in await pool.fetch("SELECT id FROM queue WHERE kind = 'webhook' ORDER BY id")]
    assert queue == owed


async def test_a_pause_that_ends_with_disabling_counts_on(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await record(pool, actor, 2)
    paused = await change(pool, actor, id, paused=True)
    disabled = await change(pool, actor, id, disabled=True)
    assert (disabled.status, disabled.paused_at, disabled.dropped) == ("disabled", None, 2)
    assert disabled.waits_from == paused.waits_from
    told = await pool.fetch("SELECT after FROM audit_log WHERE action = 'webhook.changed' ORDER BY id")
    assert ['"status":"paused"' in row["after"] for row in told] == [True, False]


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"disabled": True, "paused": True}, "paused"), ({"recover": True}, "recover")],
)
async def test_what_contradicts_itself_is_refused(pool: Pool, asked: dict[str, bool], field: str) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    with pytest.raises(Invalid) as refused:
        await change(pool, actor, id, **asked)
    assert refused.value.details["fields"][0]["field"] == field


async def test_a_catcher_cannot_be_paused(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        made, _ = await catcher.open(conn, actor, rules=RULES)
    with pytest.raises(Invalid):
        await change(pool, actor, made.id, paused=True)


async def test_who_pauses_does_not_wait_for_a_worker_that_is_recording(pool: Pool) -> None:
    """The worker holds its queue row and then wants the endpoint; the pause holds the endpoint."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await record(pool, actor, 2)
    async with pool.acquire() as worker, worker.transaction():
        (held,) = await worker.fetch("SELECT id FROM queue ORDER BY id LIMIT 1 FOR UPDATE")
        paused = await asyncio.wait_for(change(pool, actor, id, paused=True), 120)
        await worker.execute("UPDATE webhook_endpoints SET last_success_at = now() WHERE id = $1", id)
    assert paused.dropped == 2
    # It stays for the worker that claims it, and is dropped then.
    assert [row["id"] for row in await pool.fetch("SELECT id FROM queue")] == [held["id"]]

    async def empty() -> bool:
        return await queued(pool) == 0

    async with delivering(pool):
        await until(empty)
    assert await attempts(pool) == []
    assert KIND in paused.subscribed_events


@pytest.mark.parametrize("change_back", [{"disabled": False}, {"paused": False}])
async def test_what_is_recorded_right_after_an_endpoint_came_back_is_sent_by_a_worker_that_takes_it_for_stopped(
    pool: Pool, receiver: Receiver, change_back: dict[str, bool]
) -> None:
    """An endpoint is read again after half a second; what is dropped meanwhile is not recovered if it was disabled."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, receiver.url)
    key = (actor.organization_id, id)
    async with delivering(pool) as deliverer:
        poster = deliverer._poster
        poster._destinations._max_age = 3600.0
        await change(pool, actor, id, **{name: not value for name, value in change_back.items()})
        assert await poster.destinations([key]) == [None]
        await change(pool, actor, id, **change_back)
        await record(pool, actor)
        await receiver.wait_for(lambda it: it.counters.received == 1)
