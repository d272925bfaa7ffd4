"""Sending again on a real database: resends, replays in steps, examples, attempt numbers, secret rotation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.queue import backlog, leases
from heliograph.queue.backlog import claim_once
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks import changing, endpoints, history, replays
from heliograph.webhooks.delivery import attempts, signing
from heliograph.webhooks.delivery.attempts import Attempt, Ended
from heliograph.webhooks.endpoints import EndpointDisabled, EndpointPaused
from heliograph.webhooks.recording import feed
from heliograph.webhooks.recording.results import Record
from heliograph.webhooks.replays import Replay, ReplayRunning
from tests.database import Cluster
from tests.hooks import DATA, KIND, attempted, delivering, endpoint, organization, queued, record, settings, until
from tests.hooks import attempts as all_attempts
from tests.meanwhile import after, before, begun
from tests.rules.factories import blocked

RULES = endpoints.rules(settings())
URL = "http://127.0.0.1:9/"
NUMBERS = itertools.count(1)


async def past(pool: Pool, actor: Actor, ago: Sequence[float], *, kind: str = KIND) -> list[UUID]:
    """Events recorded this many seconds ago, queued for nobody; returns their ids in the given order."""
    now = clock.now()
    made = [UUID(int=uuid7_floor(now - timedelta(seconds=one)).int + next(NUMBERS)) for one in ago]
    await pool.execute(
        "INSERT INTO events (organization_id, id, kind, request_id, data, created_at)"
        " SELECT $1, id, $3, 'r', $4, at FROM unnest($2::uuid[], $5::timestamptz[]) AS item (id, at)",
        actor.organization_id,
        made,
        kind,
        DATA,
        [now - timedelta(seconds=one) for one in ago],
    )
    return made


async def tried(pool: Pool, actor: Actor, endpoint_id: UUID, event_id: UUID, result: str, *, number: int = 1) -> None:
    await pool.execute(
        "INSERT INTO webhook_attempts VALUES ($1, $2, $3, $4, now(), 5, 200, $5, '')",
        actor.organization_id,
        event_id,
        endpoint_id,
        number,
        result,
    )


async def start(pool: Pool, actor: Actor, id: UUID, *, ago: float = 3600, **values: Any) -> Replay:
    async with pool.acquire() as conn:
        return await replays.replay(conn, actor, endpoint_id=id, from_at=clock.now() - timedelta(seconds=ago), **values)


async def advance(pool: Pool) -> int:
    async with pool.acquire() as conn:
        return await replays.advance(conn)


async def replay_of(pool: Pool, actor: Actor, id: UUID) -> Replay:
    async with pool.acquire() as conn:
        (found,) = await replays.list_replays(conn, actor, endpoint_id=id, limit=1)
    return found


#: Of those found waiting.
ITS_TURN = "UPDATE webhook_replays SET stepped_at = now() WHERE stepped_at > now()"


async def in_queue(pool: Pool, id: UUID) -> list[UUID]:
    return [row["id"] for row in await pool.fetch("SELECT id FROM queue WHERE line = $1 ORDER BY id", id)]


# ── One event ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_resend_keeps_the_event_and_goes_on_counting_attempts(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver(Options(status=500))
    await receiver.start()
    id, _ = await endpoint(pool, actor, receiver.url)
    (event_id,) = await record(pool, actor)
    async with delivering(pool):
        await attempted(pool, 3)
        await until(lambda: _empty(pool))
        # The schedule is over. A resend starts it again; two of its attempts fail.
        async with pool.acquire() as conn:
            await replays.resend(conn, actor, endpoint_id=id, event_id=UUID(event_id))
        # As it refuses the fifth: a query from the database may come after the sixth.
        await receiver.wait_for(lambda it: it.counters.requests == 5)
        receiver.options = Options()
        await attempted(pool, 6)
        await until(lambda: _empty(pool))
    await receiver.stop()
    made = await all_attempts(pool)
    assert [one["attempt"] for one in made] == [1, 2, 3, 4, 5, 6]
    assert [one["result"] for one in made] == ["refused"] * 5 + ["delivered"]
    assert {str(one["event_id"]) for one in made} == {event_id} == {event.id for event in receiver.events}
    assert len({event.body for event in receiver.events}) == 1


async def test_a_resend_of_what_waits_brings_its_next_attempt_forward(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    event_id = UUID((await record(pool, actor))[0])
    await pool.execute("UPDATE queue SET due_at = now() + interval '5 hours', tries = 6")
    async with pool.acquire() as conn:
        await replays.resend(conn, actor, endpoint_id=id, event_id=event_id)
        (lease,) = await claim_once(conn, "webhook", {id: 5}, seconds=60)
        assert (lease.id, lease.tries) == (event_id, 6)
        # It is in flight: another resend leaves it to its worker.
        await replays.resend(conn, actor, endpoint_id=id, event_id=event_id)
        assert await queued(pool) == 1
        assert await leases.finish(conn, [lease]) == 1


async def test_a_replay_that_waits_for_a_locked_row_lets_others_go_on(pool: Pool) -> None:
    """As the one that had waited longest, it was always next, and nobody's went on."""
    ids = []
    for _ in range(2):
        actor = await organization(pool)
        id, _ = await endpoint(pool, actor, URL)
        await record(pool, actor)
        await start(pool, actor, id)
        ids.append(id)
    states = "SELECT array_agg(status ORDER BY id) FROM webhook_replays"
    async with pool.acquire() as open_session, open_session.transaction():
        await open_session.execute("DELETE FROM queue WHERE line = $1", ids[0])
        await advance(pool)
        assert await pool.fetchval(states) == ["running", "completed"]
    await advance(pool)
    assert await pool.fetchval(states) == ["completed"] * 2
    assert await queued(pool) == 2


async def test_what_cannot_be_sent_again_is_refused(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    (id, _), (disabled, _) = await endpoint(pool, actor, URL), await endpoint(pool, actor, URL)
    (theirs, _), (event_id,) = await endpoint(pool, other, URL), await past(pool, actor, [60])
    (foreign,) = await past(pool, other, [60])
    async with pool.acquire() as conn:
        await changing.disable(conn, actor, id=disabled)
        for endpoint_id, event, refusal in (
            (uuid7(), event_id, NotFound),
            (theirs, event_id, NotFound),
            (id, uuid7(), NotFound),
            (id, foreign, NotFound),
            (disabled, event_id, EndpointDisabled),
        ):
            with pytest.raises(refusal):
                await replays.resend(conn, actor, endpoint_id=endpoint_id, event_id=event)
        at = clock.now() - timedelta(hours=1)
        for endpoint_id, refusal in ((theirs, NotFound), (disabled, EndpointDisabled)):
            with pytest.raises(refusal):
                await replays.replay(conn, actor, endpoint_id=endpoint_id, from_at=at)
            with pytest.raises(refusal):
                await replays.send_example(conn, actor, endpoint_id=endpoint_id, request_id="r")
            with pytest.raises(refusal):
                await endpoints.rotate_secret(conn, actor, id=endpoint_id, rules=RULES)
        with pytest.raises(NotFound):
            await replays.list_replays(conn, actor, endpoint_id=theirs, limit=5)
        with pytest.raises(NotFound):
            await history.attempts(conn, actor, endpoint_id=theirs)
    assert await queued(pool) == 0


async def test_attempts_of_one_row_held_twice_and_of_a_commit_asked_twice(pool: Pool) -> None:
    """The number is taken: another attempt gets the next one, the same attempt none."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await record(pool, actor)
    landed: list[int] = []
    ledger = Record(pool, disable_after=1e6, landed=lambda ended, _: landed.append(len(ended)))
    async with pool.acquire() as conn:
        (lease,) = await claim_once(conn, "webhook", {id: 1}, seconds=60)
    at = clock.now()
    both = [Ended(lease, 60.0, Attempt(at + timedelta(seconds=n), 0.1, 500, attempts.REFUSED, "")) for n in (0, 1)]
    for ended in (both[0], both[0], both[1], both[0], both[1]):
        ledger.put(ended)
        await ledger.drain()
    for ended in both:
        ledger.put(ended)
    await ledger.drain()
    assert sum(landed) == 7
    assert [(one["attempt"], one["started_at"]) for one in await all_attempts(pool)] == [
        (1, at),
        (2, at + timedelta(seconds=1)),
    ]


async def test_a_number_that_another_worker_is_taking_at_that_moment_costs_no_attempt(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    (event_id,) = [UUID(one) for one in await record(pool, actor)]
    await tried(pool, actor, id, event_id, "refused")
    ledger = Record(pool, disable_after=1e6, landed=lambda ended, disabled: None)
    async with pool.acquire() as conn:
        (lease,) = await claim_once(conn, "webhook", {id: 1}, seconds=60)
        async with conn.transaction():
            await conn.execute(
                "INSERT INTO webhook_attempts SELECT organization_id, event_id, endpoint_id, 2,"
                " started_at + interval '1 second', 5, 500, 'refused', '' FROM webhook_attempts"
            )
            at = clock.now() + timedelta(hours=1)
            ledger.put(Ended(lease, 60.0, Attempt(at, 0.1, 500, attempts.REFUSED, "")))
            await blocked(pool)
    await ledger.drain()
    assert [one["attempt"] for one in await all_attempts(pool)] == [1, 2, 3]


async def test_numbers_end_where_their_column_ends(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    (event_id,) = [UUID(one) for one in await record(pool, actor)]
    await tried(pool, actor, id, event_id, "refused")
    await tried(pool, actor, id, event_id, "refused", number=32767)
    ledger = Record(pool, disable_after=1e6, landed=lambda ended, disabled: None)
    async with pool.acquire() as conn:
        (lease,) = await claim_once(conn, "webhook", {id: 1}, seconds=60)
    ledger.put(Ended(lease, None, Attempt(clock.now(), 0.1, 200, attempts.DELIVERED, "")))
    await ledger.drain()
    assert await queued(pool) == 0


# ── A range of time ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_replay_queues_its_range_and_nothing_else(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    id, _ = await endpoint(pool, actor, URL, kinds=[KIND, "message.failed", "webhook.test"])
    before, first, last, after = await past(pool, actor, [7200, 3500, 3000, 60])
    (failed,) = await past(pool, actor, [3400], kind="message.failed")
    await past(pool, actor, [3300], kind="message.sent")
    await past(pool, actor, [3300], kind="webhook.test")
    await past(pool, other, [3300])
    begun = await start(pool, actor, id, to_at=clock.now() - timedelta(seconds=600))
    assert (begun.status, begun.queued, begun.kinds) == ("running", 0, [KIND, "message.failed"])
    assert await queued(pool) == 0
    assert await advance(pool) == 3
    assert await in_queue(pool, id) == sorted([first, failed, last])
    done = await replay_of(pool, actor, id)
    assert (done.status, done.queued) == ("completed", 3)
    assert done.completed_at is not None
    assert {before, after}.isdisjoint(await in_queue(pool, id))
    assert await advance(pool) == 0


async def test_a_replay_of_some_kinds(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL, kinds=[KIND, "message.failed"])
    await past(pool, actor, [100, 90])
    (failed,) = await past(pool, actor, [80], kind="message.failed")
    await start(pool, actor, id, kinds=["message.failed"])
    assert await advance(pool) == 1
    assert await in_queue(pool, id) == [failed]


async def test_all_that_is_wrong_with_a_replay_is_said_at_once(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    with pytest.raises(Invalid) as refused:
        await start(pool, actor, id, ago=31 * 86_400, kinds=["message.eaten"])
    assert [one["field"] for one in refused.value.details["fields"]] == ["from", "kinds"]


async def test_a_replay_of_what_failed_leaves_out_what_arrived(pool: Pool) -> None:
    actor = await organization(pool)
    (id, _), (elsewhere, _) = await endpoint(pool, actor, URL), await endpoint(pool, actor, URL)
    arrived, late, failed, never = await past(pool, actor, [100, 90, 80, 70])
    await tried(pool, actor, id, arrived, "delivered")
    await tried(pool, actor, id, late, "timeout")
    await tried(pool, actor, id, late, "delivered", number=2)
    await tried(pool, actor, id, failed, "refused")
    await tried(pool, actor, elsewhere, never, "delivered")
    await start(pool, actor, id, only_failed=True)
    assert await advance(pool) == 2
    assert await in_queue(pool, id) == [failed, never]


async def test_a_replay_goes_in_steps_and_waits_while_the_endpoint_is_behind(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    count = 2 * replays.BACKLOG + 500
    await past(pool, actor, [3600 - n / 10 for n in range(count)])
    (live,) = await record(pool, actor)
    await start(pool, actor, id, ago=4000)
    # It stops at the backlog, however often it is called.
    assert await advance(pool) + await advance(pool) == replays.BACKLOG
    running = await replay_of(pool, actor, id)
    assert (running.status, running.queued) == ("running", replays.BACKLOG)
    # New events go first.
    async with pool.acquire() as conn:
        (lease,) = await claim_once(conn, "webhook", {id: 1}, seconds=60)
        assert str(lease.id) == live
        total = replays.BACKLOG
        while (await replay_of(pool, actor, id)).status == "running":
            await conn.execute("DELETE FROM queue WHERE lane = 1")
            await conn.execute(ITS_TURN)
            total += await replays.advance(conn)
    assert total == count + 1  # the live one too: it was recorded before the replay began


FILL = """
INSERT INTO queue (kind, line, lane, organization_id, due_at, id)
SELECT 'webhook', id, 1, $2, now(), gen_random_uuid() FROM unnest($1::uuid[]) AS id, generate_series(1, $3)
"""


async def test_replays_that_wait_are_looked_at_a_few_at_a_time(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of endpoints that came back at once and are behind: all rows of all of them used to be counted each
    second, for as long as that took, and before each step of any other."""
    monkeypatch.setattr(replays, "BACKLOG", 10)
    monkeypatch.setattr(replays, "STEPS", 4)
    monkeypatch.setattr(replays, "FULL", 600.0)
    actor = await organization(pool)
    ids = [(await endpoint(pool, actor, f"{URL}{n}"))[0] for n in range(7)]
    await past(pool, actor, [100])
    for id in ids:
        await start(pool, actor, id)
    await pool.execute(FILL, ids[:6], actor.organization_id, 10)
    assert await advance(pool) == 0  # four that wait
    assert await advance(pool) == 1  # two more, and the one that does not
    states = {id: (await replay_of(pool, actor, id)).status for id in ids}
    assert states == dict.fromkeys(ids[:6], "running") | {ids[6]: "completed"}
    async with pool.acquire() as conn:
        assert not await conn.fetchval(f"SELECT {replays.ANY_RUNNING}")
        await conn.execute("DELETE FROM queue WHERE lane = 1")
        await conn.execute(ITS_TURN)
        assert await conn.fetchval(f"SELECT {replays.ANY_RUNNING}")
    assert await advance(pool) + await advance(pool) == 6


async def test_a_replay_goes_on_though_the_clock_was_set_back(pool: Pool) -> None:
    """It used to stop for as long as the clock had been ahead, and no other could be requested meanwhile."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await past(pool, actor, [60])
    await start(pool, actor, id)
    await pool.execute("UPDATE webhook_replays SET stepped_at = now() + interval '1 hour'")
    assert await pool.fetchval(f"SELECT {replays.ANY_RUNNING}")
    assert await advance(pool) == 1
    assert (await replay_of(pool, actor, id)).status == "completed"


async def test_what_waits_for_a_later_attempt_is_brought_forward(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    event_id = UUID((await record(pool, actor))[0])
    await pool.execute("UPDATE queue SET due_at = now() + interval '5 hours', tries = 4")
    await asyncio.sleep(0.002)  # the range ends before the present millisecond
    await start(pool, actor, id)
    assert await advance(pool) == 1
    row = await pool.fetchrow("SELECT id, tries, due_at <= now() AS due FROM queue")
    assert tuple(row) == (event_id, 4, True)


async def test_workers_share_the_steps(pool: Pool) -> None:
    actor = await organization(pool)
    ids = [(await endpoint(pool, actor, URL))[0] for _ in range(4)]
    await past(pool, actor, [100 + n for n in range(replays.STEP + 10)])
    for id in ids:
        await start(pool, actor, id)
    done = await asyncio.gather(*(advance(pool) for _ in range(4)))
    while left := await advance(pool):
        done.append(left)
    assert sum(done) == await queued(pool) == 4 * (replays.STEP + 10)
    assert {row["status"] for row in await pool.fetch("SELECT status FROM webhook_replays")} == {"completed"}


async def test_one_replay_at_a_time_also_under_parallel_requests(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    done = await asyncio.gather(*(start(pool, actor, id) for _ in range(5)), return_exceptions=True)
    begun = [one for one in done if isinstance(one, Replay)]
    refused = [one for one in done if isinstance(one, ReplayRunning)]
    assert (len(begun), len(refused)) == (1, 4)
    assert {one.details["id"] for one in refused} == {str(begun[0].id)}
    await advance(pool)
    assert (await start(pool, actor, id)).id != begun[0].id


async def test_a_replay_ends_with_its_endpoint(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    await past(pool, actor, [100])
    await start(pool, actor, id)
    async with pool.acquire() as conn:
        await changing.disable(conn, actor, id=id)
    assert await advance(pool) == 0
    assert (await replay_of(pool, actor, id)).status == "canceled"
    assert await queued(pool) == 0


@pytest.mark.parametrize(
    ("back", "to", "kinds", "fields"),
    [
        (31 * 86400, None, None, ["from"]),
        (-60, None, None, ["from"]),
        (60, 60, None, ["from"]),
        (60, 120, None, ["from"]),
        (60, None, ["message.failed"], ["kinds"]),
        (60, None, ["nothing"], ["kinds"]),
        (31 * 86400, 32 * 86400, ["nothing"], ["from", "kinds"]),
    ],
)
async def test_a_range_that_cannot_be_meant(
    pool: Pool, back: float, to: float | None, kinds: list[str] | None, fields: list[str]
) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    now = clock.now()
    to_at = None if to is None else now - timedelta(seconds=to)
    async with pool.acquire() as conn:
        with pytest.raises(Invalid) as refused:
            await replays.replay(
                conn, actor, endpoint_id=id, from_at=now - timedelta(seconds=back), to_at=to_at, kinds=kinds
            )
    assert [one["field"] for one in refused.value.details["fields"]] == fields


async def test_what_is_replayed_arrives_under_its_own_id(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver()
    await receiver.start()
    id, _ = await endpoint(pool, actor, receiver.url)
    made = await past(pool, actor, [100 + n for n in range(50)])
    await tried(pool, actor, id, made[0], "delivered")
    await start(pool, actor, id)
    async with delivering(pool):
        assert await advance(pool) == 50
        await receiver.wait_for(lambda it: it.counters.received == 50)
        await until(lambda: _empty(pool))
    await receiver.stop()
    assert {event.id for event in receiver.events} == {str(one) for one in made}
    numbers = {one["event_id"]: one["attempt"] for one in await all_attempts(pool)}
    assert numbers == {one: 2 if one == made[0] else 1 for one in made}


# ── An example, and a new secret ──────────────────────────────────────────────────────────────────────────────────


async def test_an_example_goes_to_one_endpoint_alone(pool: Pool) -> None:
    actor = await organization(pool)
    (id, _), (other, _) = await endpoint(pool, actor, URL), await endpoint(pool, actor, URL, kinds=["webhook.test"])
    async with pool.acquire() as conn:
        event_id = await replays.send_example(conn, actor, endpoint_id=id, request_id="req-7")
        row = await conn.fetchrow("SELECT kind, request_id, data FROM events WHERE id = $1", event_id)
    assert tuple(row)[:2] == ("webhook.test", "req-7")
    assert '"message"' in row["data"]
    assert await in_queue(pool, id) == [event_id]
    assert await in_queue(pool, other) == []


async def rotate(pool: Pool, actor: Actor, id: UUID) -> tuple[str, datetime]:
    async with pool.acquire() as conn:
        _, secret, until_at = await endpoints.rotate_secret(conn, actor, id=id, rules=RULES)
    return secret, until_at


async def test_both_secrets_sign_until_the_old_one_ends(pool: Pool) -> None:
    actor = await organization(pool)
    receiver = Receiver()
    await receiver.start()
    id, old = await endpoint(pool, actor, receiver.url)
    async with delivering(pool):
        await record(pool, actor)
        await receiver.wait_for(lambda it: it.counters.received == 1)
        new, until_at = await rotate(pool, actor, id)
        # Within half a second, every worker signs with both.
        await until(lambda: _signed_by(pool, actor, receiver, [new, old]))
        await pool.execute("UPDATE webhook_endpoints SET old_secrets_until = ARRAY[now()]")
        await until(lambda: _signed_by(pool, actor, receiver, [new]))
    await receiver.stop()
    assert timedelta(hours=23, minutes=59) < until_at - clock.now() < timedelta(hours=24, minutes=1)
    assert new != old


async def test_secrets_that_were_replaced_are_few_sealed_and_forgotten_in_time(pool: Pool) -> None:
    actor = await organization(pool)
    id, first = await endpoint(pool, actor, URL)
    secrets = [first]
    for _ in range(6):
        secrets.insert(0, (await rotate(pool, actor, id))[0])

    async def opened() -> list[str]:
        async with pool.acquire() as conn:
            found = await attempts.destinations(conn, [(actor.organization_id, id)])
        return [
            endpoints.open_secret(RULES.seal_key, organization_id=actor.organization_id, id=id, sealed=sealed)
            for sealed in found[(actor.organization_id, id)].sealed
        ]

    assert await opened() == secrets[: 1 + endpoints.MAX_OLD]
    row = await pool.fetchrow("SELECT * FROM webhook_endpoints")
    assert not any(secret.encode() in sealed for secret in secrets for sealed in [row["secret"], *row["old_secrets"]])
    await pool.execute("UPDATE webhook_endpoints SET old_secrets_until[2] = now() - interval '1 second'")
    await rotate(pool, actor, id)
    assert await pool.fetchval("SELECT cardinality(old_secrets) FROM webhook_endpoints") == endpoints.MAX_OLD
    assert [one for one in await opened() if one in secrets] == [*secrets[:2], *secrets[3:5]]


async def _signed_by(pool: Pool, actor: Actor, receiver: Receiver, secrets: list[str]) -> bool:
    """Whether the next event is signed with these: all in one header, the newest in the other."""
    before = len(receiver.events)
    await record(pool, actor)
    await receiver.wait_for(lambda it: len(it.events) > before)
    came = receiver.events[-1]
    headers = came.headers
    now = clock.now()
    signatures = [
        signing.sign_standard(secret, headers["webhook-id"], headers["webhook-timestamp"], came.body)
        for secret in secrets
    ]
    if headers["webhook-signature"] != " ".join(signatures):
        return False
    stamp, signature = headers["x-service-timestamp"], headers["x-service-signature"]
    return signing.verify(secrets[:1], timestamp=stamp, signature=signature, body=came.body, now=now) is None


# ── The feed ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def read(pool: Pool, actor: Actor, **values: Any) -> feed.Page:
    async with pool.acquire() as conn:
        return await feed.read(conn, actor, **({"limit": 50} | values))


async def test_the_feed_is_in_order_and_can_be_resumed(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    assert await read(pool, actor) == feed.Page([], feed.START, False)
    made = await past(pool, actor, [100 - n for n in range(10)])
    await past(pool, other, [50])
    page = await read(pool, actor, limit=4)
    assert ([one.id for one in page.events], page.position, page.more) == (made[:4], made[3], True)
    page = await read(pool, actor, limit=6, after=page.position)
    assert ([one.id for one in page.events], page.position, page.more) == (made[4:], made[9], False)
    assert await read(pool, actor, after=made[9]) == feed.Page([], made[9], False)
    later = await past(pool, actor, [20])
    assert [one.id for one in (await read(pool, actor, after=made[9])).events] == later


async def test_the_feed_by_dates_and_kind(pool: Pool) -> None:
    actor = await organization(pool)
    now = clock.now()
    made = await past(pool, actor, [100, 90, 80, 70])
    (failed,) = await past(pool, actor, [75], kind="message.failed")
    page = await read(pool, actor, date_from=now - timedelta(seconds=95), date_to=now - timedelta(seconds=72))
    assert [one.id for one in page.events] == [made[1], made[2], failed]
    page = await read(pool, actor, kind="message.failed")
    assert ([one.id for one in page.events], page.more) == ([failed], False)
    for at in (
        datetime.fromisoformat("0001-01-01T00:00:00+14:00"),
        datetime.fromisoformat("9999-12-31T23:59:59-14:00"),
    ):
        assert len((await read(pool, actor, date_from=at)).events) in (0, 5)
        assert len((await read(pool, actor, date_to=at)).events) in (0, 5)
    with pytest.raises(Invalid):
        await read(pool, actor, kind="message.eaten")


async def test_a_rare_kind_is_looked_for_in_steps(pool: Pool) -> None:
    actor = await organization(pool)
    await past(pool, actor, [3600 - n / 10 for n in range(feed.LOOK_FOR_KIND + 5)])
    (rare,) = await past(pool, actor, [10], kind="message.failed")
    first = await read(pool, actor, kind="message.failed")
    assert (first.events, first.more) == ([], True)
    second = await read(pool, actor, kind="message.failed", after=first.position)
    assert ([one.id for one in second.events], second.more) == ([rare], False)


async def test_the_feed_ends_before_what_may_still_be_committed(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = await organization(pool)
    await record(pool, actor)
    monkeypatch.setattr(feed, "SETTLING", 600.0)  # 3 s may pass before it is read on a loaded machine
    assert (await read(pool, actor)).events == []  # too fresh
    async with pool.acquire() as writer, pool.acquire() as reader:
        async with writer.transaction():
            begun_at = await writer.fetchval("SELECT now()")
            await writer.execute("DELETE FROM events")
            assert await reader.fetchval(feed.SETTLED, 0.0) == begun_at
            assert await reader.fetchval(feed.SETTLED, 5.0) == begun_at - timedelta(seconds=5)
            assert await writer.fetchval(feed.SETTLED, 0.0) == begun_at  # what it writes itself, it sees
        assert await reader.fetchval(feed.SETTLED, 0.0) > begun_at


async def test_transactions_that_only_read_hold_no_feed_up(pool: Pool) -> None:
    async with pool.acquire() as reader, pool.acquire() as conn, reader.transaction():
        begun_at = await reader.fetchval("SELECT now() FROM events RIGHT JOIN (SELECT) one ON true LIMIT 1")
        await asyncio.sleep(0.01)
        assert await conn.fetchval(feed.SETTLED, 0.0) > begun_at


async def test_what_others_write_holds_no_feed_up(pool: Pool, database_server: Cluster, database_url: str) -> None:
    """A role that sees the transactions of all roles waits only for its own."""
    if database_server.url == database_server.owner_url:
        pytest.skip("HELIOGRAPH_TEST_DATABASE_URL names one role")
    for other in (database_server.as_administrator(database_url), database_server.as_owner(database_url)):
        conn = await asyncpg.connect(other)
        try:
            await conn.execute("BEGIN")
            begun_at = await conn.fetchval("SELECT now() FROM txid_current()")
            seen = await pool.fetchval("SELECT xact_start FROM pg_stat_activity WHERE pid = $1", conn.get_server_pid())
            assert seen == begun_at
            assert await pool.fetchval(feed.SETTLED, 0.0) > begun_at
            assert await pool.fetchval(backlog.SETTLED) + timedelta(milliseconds=2) > begun_at
        finally:
            await conn.close()


# ── Looking back ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_attempts_come_in_pages_newest_first(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    made = await past(pool, actor, [100 - n for n in range(7)])
    at = clock.now()
    # Attempts that begin at the same instant are distinguished by event and number.
    await pool.executemany(
        "INSERT INTO webhook_attempts VALUES ($1, $2, $3, $4, $5, 5, 500, 'refused', 'x')",
        [
            (actor.organization_id, event_id, id, number, at + timedelta(seconds=n // 3))
            for n, event_id in enumerate(made)
            for number in (1, 2)
        ],
    )
    seen: list[tuple[datetime, UUID, int]] = []
    async with pool.acquire() as conn:
        while True:
            page = await history.attempts(conn, actor, endpoint_id=id, before=seen[-1] if seen else None, limit=3)
            if not page.attempts:
                break
            seen += [(one.started_at, one.event_id, one.attempt) for one in page.attempts]
    assert len(seen) == 14
    assert seen == sorted(set(seen), reverse=True)


async def _empty(pool: Pool) -> bool:
    return await queued(pool) == 0


async def test_an_endpoint_that_is_paused_while_a_replay_is_requested_holds_it(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be canceled by its first step."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    (missed,) = await past(pool, actor, [100])
    pausing: list[asyncio.Future[Any]] = []

    async def change(paused: bool) -> None:
        async with pool.acquire() as conn:
            await changing.change(conn, actor, id=id, changes=changing.Changes(paused=paused), rules=RULES)

    async def meanwhile() -> None:
        pausing.append(await begun(pool, change(True)))

    after(monkeypatch, endpoints, "active", meanwhile)
    await start(pool, actor, id)
    await pausing[0]
    assert await advance(pool) == 0
    assert (await replay_of(pool, actor, id)).status == "running"
    assert await pool.fetchval("SELECT held FROM webhook_replays")
    await change(False)
    assert await advance(pool) == 1
    assert await pool.fetchval("SELECT id FROM queue") == missed


@pytest.mark.parametrize("is_example", [False, True])
async def test_what_is_sent_again_while_the_endpoint_is_paused_is_refused(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, is_example: bool
) -> None:
    """A worker would drop it, and no replay brings back an event from before the pause, or an example."""
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    (event_id,) = await past(pool, actor, [100])

    async def pause() -> None:
        async with pool.acquire() as conn:
            await changing.change(conn, actor, id=id, changes=changing.Changes(paused=True), rules=RULES)

    before(monkeypatch, replays, "_queue", pause)
    async with pool.acquire() as conn:
        with pytest.raises(EndpointPaused):
            if is_example:
                await replays.send_example(conn, actor, endpoint_id=id, request_id="r")
            else:
                await replays.resend(conn, actor, endpoint_id=id, event_id=event_id)
    assert await in_queue(pool, id) == []


async def test_an_endpoint_that_is_paused_after_a_resend_drops_it(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, URL)
    (event_id,) = await past(pool, actor, [100])
    pausing: list[asyncio.Future[Any]] = []

    async def pause() -> None:
        async with pool.acquire() as conn:
            await changing.change(conn, actor, id=id, changes=changing.Changes(paused=True), rules=RULES)

    async def meanwhile() -> None:
        pausing.append(await begun(pool, pause()))

    after(monkeypatch, replays, "_staying", meanwhile)
    async with pool.acquire() as conn:
        await replays.resend(conn, actor, endpoint_id=id, event_id=event_id)
    await pausing[0]
    assert await in_queue(pool, id) == []
    assert await pool.fetchval("SELECT dropped FROM webhook_endpoints") == 1
