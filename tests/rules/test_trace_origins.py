"""Traces of messages that no API request sends: those of campaigns, and automatic replies."""

from __future__ import annotations

from uuid import UUID

from heliograph.base.database.pool import Pool
from heliograph.base.process import spans
from heliograph.queue import timers
from heliograph.sms.received import inbox
from tests.rules.dispatching import Bench
from tests.rules.factories import organization, sender
from tests.rules.test_campaigns import create, number, run
from tests.rules.test_dispatch_isolation import rounds, stumble
from tests.rules.test_inbound import NUMBER, handset_message, receive_and_process, reply
from tests.tracing import Exporter, exporter, without_ids

__all__ = ["exporter"]


async def trace_ids(pool: Pool) -> dict[str, int]:
    """The trace of each message that has one."""
    rows = await pool.fetch("SELECT message_id, trace_id FROM message_traces")
    return {str(row["message_id"]): row["trace_id"].int for row in rows}


async def test_a_share_of_a_campaigns_messages_begins_traces(pool: Pool, exporter: Exporter) -> None:
    actor = await organization(pool)
    spans.use(exporter, ratio=1.0, most=3)
    campaign = await create(pool, actor, text="hello", recipients=[number(n) for n in range(50)])
    await run(pool)
    roots = exporter.roots()
    # A second may have ended meanwhile.
    assert 3 <= len(roots) < 50
    assert {one.name for one in roots.values()} == {"campaign message"}
    assert all(one.has_ended and one.said["campaign_id"] == str(campaign.id) for one in roots.values())
    assert await trace_ids(pool) == {id: one.context.trace for id, one in roots.items()}
    ids = [row["id"] for row in await pool.fetch("SELECT id FROM messages")]
    assert {str(id) for id in ids if spans.is_marked(id)} >= set(roots)
    # The following spans are its children.
    await Bench(pool).round()
    attempts = [one for one in exporter.steps if one.name == "sms attempt"]
    assert {one.said["message_id"]: one.parent for one in attempts} == {id: one.context for id, one in roots.items()}
    assert "258" not in without_ids(str([one.said for one in exporter.steps if one.name != "sms attempt"]))


async def test_a_message_that_is_set_aside_takes_no_other_one_out_of_its_trace(pool: Pool, exporter: Exporter) -> None:
    actor, bench = await organization(pool), Bench(pool)
    spans.use(exporter, ratio=1.0, most=100)
    await create(pool, actor, text="hello", recipients=[number(n) for n in range(8)])
    await run(pool)
    roots = exporter.roots()
    ids = [str(row["id"]) for row in await pool.fetch("SELECT id FROM messages ORDER BY id")]
    assert ids == sorted(roots)
    bad = UUID(ids[2])
    stumble(bench, "decide", bad)
    assert await rounds(bench, 2) == 1
    attempts = [one for one in exporter.steps if one.name == "sms attempt"]
    assert sorted(one.said["message_id"] for one in attempts) == [id for id in ids if id != str(bad)]


async def test_an_automatic_reply_begins_one(pool: Pool, exporter: Exporter) -> None:
    actor = await organization(pool)
    await sender(pool, actor, NUMBER)
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
    await receive_and_process(pool, handset_message("STOP"))
    await reply(pool)
    (id,) = [row["id"] for row in await pool.fetch("SELECT id FROM messages")]
    assert spans.is_marked(id)
    root = exporter.roots()[str(id)]
    assert (root.name, root.has_ended) == ("automatic reply", True)
    assert await trace_ids(pool) == {str(id): root.context.trace}


async def test_nothing_is_traced_where_no_collector_is(pool: Pool) -> None:
    actor = await organization(pool)
    await create(pool, actor, text="hello", recipients=[number(1)])
    await run(pool)
    assert await trace_ids(pool) == {}
