"""Figures of endpoints: whatever happens to deliveries, the roll-ups count each attempt once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import NotFound
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks import figures, replays
from heliograph.webhooks.recording import traffic
from tests.hooks import attempted, attempts, delivering, endpoint, organization, record, settings


async def fold(pool: Pool) -> None:
    async with pool.acquire() as conn:
        await traffic.fold(conn)


async def rolled_up(pool: Pool) -> Counter[Any]:
    """Attempts by endpoint and result, folded or not; every histogram contains as many durations as are counted."""
    found: Counter[Any] = Counter()
    for table in ("webhook_traffic", "webhook_traffic_deltas"):
        for row in await pool.fetch(f"SELECT endpoint_id, result, count, took FROM {table}"):
            assert sum(row["took"]) == row["count"]
            found[(row["endpoint_id"], row["result"])] += row["count"]
    return found


async def test_every_attempt_counts_once(pool: Pool) -> None:
    actor = await organization(pool)
    good, bad = Receiver(), Receiver(Options(status=500))
    await good.start()
    await bad.start()
    well, _ = await endpoint(pool, actor, good.url)
    failing, _ = await endpoint(pool, actor, bad.url)
    events = await record(pool, actor, 30)
    async with delivering(pool, settings(webhook_schedule="0,0.05")):
        await attempted(pool, 90)
        await fold(pool)
        async with pool.acquire() as conn:
            # Once more, to an endpoint that has it already: another attempt, numbered after the first.
            await replays.resend(conn, actor, endpoint_id=well, event_id=events[0])
        await attempted(pool, 91)
    told = Counter((one["endpoint_id"], one["result"]) for one in await attempts(pool))
    assert told == {(well, "delivered"): 31, (failing, "refused"): 60}
    assert await rolled_up(pool) == told
    await fold(pool)
    assert await rolled_up(pool) == told
    assert await pool.fetchval("SELECT count(*) FROM webhook_traffic_deltas") == 0
    async with pool.acquire() as conn:
        seen = {one.endpoint.id: one for one in await figures.overview(conn, actor)}
    assert (seen[well].state, seen[well].delivered, seen[well].failed, len(seen[well].hours)) == ("well", 31, 0, 24)
    assert (seen[failing].state, seen[failing].delivered, seen[failing].failed) == ("failing", 0, 60)
    assert seen[failing].failing_since is not None
    p50, p95 = seen[well].p50, seen[well].p95
    assert p50 is not None
    assert p95 is not None
    assert p50 <= p95
    assert seen[failing].p95 is None
    async with pool.acquire() as conn:
        # One of the 31 is a second attempt, which is stored elsewhere; refusals go nowhere.
        assert await figures.pace(conn, actor, id=well) == pytest.approx(31 / 5)
        assert await figures.pace(conn, actor, id=failing) == 0
        assert await figures.pace(conn, await organization(pool), id=well) == 0
        # If there are more rows than are read, the pace is computed from the time that those took.
        assert await figures.pace(conn, actor, id=well, look=1) > 0
    now = clock.now()
    async with pool.acquire() as conn:
        day = await figures.course(conn, actor, id=failing, since=now - timedelta(hours=24), until=now)
        month = await figures.course(conn, actor, id=well, since=now - timedelta(days=30), until=now)
        with pytest.raises(NotFound):
            await figures.course(conn, await organization(pool), id=well, since=now - timedelta(days=1), until=now)
    assert (day.step, day.results, day.p95) == (timedelta(hours=1), {"refused": 60}, None)
    assert len(day.intervals) in (24, 25)
    assert sum(one.results.get("refused", 0) for one in day.intervals) == 60
    assert (month.step, month.results, len(month.intervals)) == (timedelta(hours=24), {"delivered": 31}, 31)
    assert month.p50 == p50
    (busy,) = [one for one in month.intervals if one.results]
    assert busy.p95 == p95
    await good.stop()
    await bad.stop()


async def test_what_waits_is_counted_up_to_a_bound(pool: Pool) -> None:
    actor = await organization(pool)
    id, _ = await endpoint(pool, actor, "https://example.com/hooks")
    other = await organization(pool)
    await endpoint(pool, other, "https://example.com/hooks")
    await record(pool, other)
    events = await record(pool, actor, figures.MOST_WAITING + 20)
    async with pool.acquire() as conn:
        (one,) = await figures.overview(conn, actor)
        assert (one.endpoint.id, one.state, one.waiting) == (id, "new", figures.MOST_WAITING + 1)
        await pool.execute("DELETE FROM queue WHERE NOT id = ANY ($1::uuid[])", events[5:7])
        one = await figures.of(conn, actor, id=id)
    assert (one.waiting, str(one.oldest)) == (2, events[5])
    assert one.next_at is not None
