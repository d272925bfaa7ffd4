"""How much work is waiting: every line is listed, and a partial figure is marked as such."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import time_of, uuid7_floor
from heliograph.overview.installation import queued_work
from heliograph.queue import holds, waiting
from heliograph.queue.backlog import claim_once
from heliograph.queue.holds import Selection
from heliograph.queue.leases import UNROUTED
from heliograph.queue.waiting import WaitingWork
from heliograph.sms.dispatch import claimed as sms
from heliograph.sms.dispatch.outcomes import deadline
from heliograph.whatsapp.dispatch import claimed as whatsapp
from tests.rules import whatsapp_factories
from tests.rules.factories import message, organization
from tests.rules.test_queue_holds import ALL, LINE, SMS, fill


async def summary(pool: Pool, which: Selection = ALL, *, limit: int = 100, **bounds: int) -> WaitingWork:
    async with pool.acquire() as conn:
        return await queued_work.backlog(conn, which, limit=limit, **bounds)


async def test_of_an_empty_queue_there_is_nothing_to_say(pool: Pool) -> None:
    assert await summary(pool) == WaitingWork([], True)


async def test_what_waits_for_a_template_is_listed_under_its_name(pool: Pool) -> None:
    acme = await whatsapp_factories.made(pool)
    await fill(pool, acme.actor.organization_id, kind="whatsapp", line=acme.template_id, count=2)
    (found,) = (await summary(pool)).waiting
    assert (found.line, found.rows, found.is_more) == ("template order_shipped", 2, False)


async def test_a_long_line_is_counted_as_far_as_the_look_goes_and_hides_no_other(pool: Pool) -> None:
    acme, beta = (await organization(pool)).organization_id, (await organization(pool)).organization_id
    await fill(pool, acme, count=200)
    await fill(pool, acme, kind="webhook", line=UUID(int=78), count=3)
    await fill(pool, beta, count=20)
    found = await summary(pool, look=60)
    # Each line has a share of 20; the 17 that the webhooks leave go to the one that has more.
    seen = [(one.kind, one.rows, one.is_more) for one in found.waiting]
    assert seen == [("sms", 38, True), ("sms", 20, False), ("webhook", 3, False)]
    assert found.is_whole
    whole = await summary(pool, look=1000)
    assert [(one.rows, one.is_more) for one in whole.waiting] == [(200, False), (20, False), (3, False)]
    assert [one.rows for one in (await summary(pool, limit=1)).waiting] == [200]


async def test_both_lanes_of_a_line_are_one_entry(pool: Pool) -> None:
    acme = (await organization(pool)).organization_id
    ids = await fill(pool, acme, count=5)
    await pool.execute("UPDATE queue SET lane = 1 WHERE id = ANY ($1)", ids[:2])
    await pool.execute("UPDATE queue SET due_at = now() + interval '1 hour' WHERE id = ANY ($1)", ids[:1])
    (one,) = (await summary(pool)).waiting
    assert (one.rows, one.later, one.is_more) == (5, 1, False)
    assert one.oldest_at == (await summary(pool, SMS)).waiting[0].oldest_at
    (few,) = (await summary(pool, look=2)).waiting
    assert (few.rows, few.is_more) == (4, True)


async def test_more_lines_than_are_looked_at_are_not_passed_over_in_silence(pool: Pool) -> None:
    acme = (await organization(pool)).organization_id
    for number in range(5):
        await fill(pool, acme, line=UUID(int=80 + number))
    assert len((found := await summary(pool, places=5)).waiting) == 5
    assert found.is_whole
    assert not (await summary(pool, places=4)).is_whole


async def test_only_what_is_meant_is_counted(pool: Pool) -> None:
    acme, beta = (await organization(pool)).organization_id, (await organization(pool)).organization_id
    other = UUID(int=78)
    await fill(pool, acme, count=4)
    await fill(pool, beta, count=9)
    await fill(pool, beta, line=other, count=2)
    await fill(pool, beta, kind="webhook", line=UUID(int=79), count=3)
    of_beta = Selection(organization_id=beta)
    assert [(one.kind, one.rows) for one in (await summary(pool, of_beta)).waiting] == [
        ("sms", 9),
        ("webhook", 3),
        ("sms", 2),
    ]
    assert [one.rows for one in (await summary(pool, Selection(kinds=("sms",), line=LINE))).waiting] == [9, 4]
    assert [one.rows for one in (await summary(pool, Selection(organization_id=acme, line=other))).waiting] == []
    async with pool.acquire() as conn:
        assert [await waiting.count(conn, which) for which in (ALL, SMS, of_beta)] == [18, 15, 14]


async def test_by_age_what_lies_behind_the_look_may_fit_as_well(pool: Pool) -> None:
    acme = (await organization(pool)).organization_id
    async with pool.acquire() as conn:
        before, long_ago = await holds.ago(conn, timedelta(minutes=1)), await holds.ago(conn, timedelta(hours=1))
    old = UUID(int=uuid7_floor(long_ago).int + 1)
    await fill(pool, acme, count=8)
    # It was tried, and comes after newer ones.
    await pool.execute(
        "INSERT INTO queue (kind, line, organization_id, due_at, id) VALUES ('sms', $1, $2, now() + '1 h', $3)",
        LINE,
        acme,
        old,
    )
    which = Selection(before=before)
    (one,) = (await summary(pool, which)).waiting
    assert (one.rows, one.later, one.is_more, one.oldest_at) == (1, 1, False, time_of(old))
    (few,) = (await summary(pool, which, look=5)).waiting
    assert (few.rows, few.is_more, few.oldest_at) == (0, True, None)


async def test_what_was_tried_and_waits_is_told_apart(pool: Pool) -> None:
    acme = (await organization(pool)).organization_id
    again, begun, _, taken = await fill(pool, acme, count=4)
    await pool.execute("UPDATE queue SET tries = 2, due_at = now() + interval '1 hour' WHERE id = $1", again)
    await pool.execute("UPDATE queue SET attempt = 1 WHERE id = $1", begun)
    await pool.execute("UPDATE queue SET tries = 1, lease_until = now() + interval '1 hour' WHERE id = $1", taken)
    (one,) = (await summary(pool)).waiting
    assert (one.rows, one.retrying, one.leased, one.later, one.expired) == (4, 2, 1, 1, 0)
    await pool.execute("UPDATE queue SET lease_until = now() - interval '1 second' WHERE id = $1", taken)
    (one,) = (await summary(pool)).waiting
    assert (one.retrying, one.leased) == (3, 0), "its worker is gone"


async def test_what_is_past_its_validity_is_what_a_worker_would_end(pool: Pool) -> None:
    """One counts in SQL, the other decides message by message."""
    acme = await whatsapp_factories.made(pool)
    now = clock.now()
    for age in (timedelta(0), timedelta(hours=23), timedelta(hours=25)):
        for validity in (None, timedelta(minutes=-1), timedelta(hours=1)):
            expires_at = None if validity is None else now + validity
            await message(pool, acme.actor, age=age, expires_at=expires_at)
    for category in ("utility", "marketing", "authentication"):
        for left in (timedelta(minutes=14), timedelta(minutes=16), timedelta(hours=23), timedelta(hours=25)):
            await whatsapp_factories.message(pool, acme, category=category, deadline=left)
    await fill(pool, acme.organization_id, kind="webhook", count=2)
    found = {one.kind: (one.rows, one.expired) for one in (await summary(pool)).waiting}
    assert found == {"sms": (9, 4), "whatsapp": (12, 7), "webhook": (2, 0)}
    async with pool.acquire() as conn:
        told = {row["id"] for row in await conn.fetch(f"SELECT id FROM queue WHERE {queued_work.EXPIRED}")}
        texts = await sms.load(conn, await claim_once(conn, "sms", {UNROUTED: 100}, seconds=60))
        others = await whatsapp.load(conn, await claim_once(conn, "whatsapp", {acme.number_id: 100}, seconds=60))
    ended = {one.lease.id for one in texts if one.at >= deadline(one.accepted_at, one.expires_at)}
    ended |= {one.lease.id for one in others if one.at >= one.expires_at}
    assert (len(texts), len(others)) == (9, 12)
    assert told == ended
    assert [one.expired for one in (await summary(pool)).waiting] == [0, 0, 0], "a worker has them"


async def test_rows_that_wait_for_another_try_are_shown_behind_thousands_that_are_due_before(pool: Pool) -> None:
    acme, beta = (await organization(pool)).organization_id, (await organization(pool)).organization_id
    await fill(pool, acme, count=30)
    tried = await fill(pool, acme, kind="webhook", line=UUID(int=78), count=2)
    (other,) = await fill(pool, beta, line=UUID(int=79))
    await pool.execute("UPDATE queue SET due_at = now() + interval '1 hour', lane = 1 WHERE kind = 'sms'")
    await pool.execute("UPDATE queue SET due_at = now() + interval '2 hours', tries = 3 WHERE id = ANY ($1)", tried)
    await pool.execute("UPDATE queue SET due_at = now() + interval '3 hours', tries = 1 WHERE id = $1", other)

    async def shown(which: Selection = ALL, **more: bool) -> list[UUID]:
        async with pool.acquire() as conn:
            return [one.id for one in await waiting.sample(conn, which, look=10, limit=5, **more)]

    assert set(await shown(only_tried=True)) == {*tried, other}
    assert (await shown(only_tried=True))[-1] == other, "what is due first comes first"
    assert set(await shown()).isdisjoint(tried)
    # Only of what was selected.
    assert set(await shown(Selection(kinds=("webhook",)))) == {*tried}
    assert await shown(Selection(organization_id=beta)) == [other]
    assert await shown(Selection(kinds=("sms",), line=UUID(int=79))) == [other]
    assert await shown(Selection(kinds=("sms",), before=time_of(other)), only_tried=True) == []
