"""Traffic roll-ups: whatever moves in whatever order, folded or not, they equal a count of the messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from heliograph import traffic
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Pool
from heliograph.base.histogram import LENGTH, bucket, percentile
from heliograph.base.ids import uuid7
from heliograph.overview import figures
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.accepting.bulk import Bulk, accept_bulk
from heliograph.sms.status import STATUSES, Move, move_many
from heliograph.traffic import reconciliation
from tests.rules import factories, whatsapp_factories
from tests.rules import test_whatsapp_accept as whatsapp
from tests.rules.factories import organization, send
from tests.rules.machines import Machine, run_machine
from tests.rules.test_whatsapp_status import move, says

SUPPLIERS = [UUID(int=7), UUID(int=8), None]

COUNTED = """
SELECT organization_id, hour, channel, mode, country, sender, supplier_id, status, sum(count)::int AS count,
       sum(segments)::int AS segments
  FROM (SELECT organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments FROM traffic
        UNION ALL
        SELECT organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments
          FROM traffic_deltas) one
 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8 HAVING sum(count) <> 0 OR sum(segments) <> 0
"""
OF_MESSAGES = """
SELECT organization_id, date_trunc('hour', accepted_at, 'UTC'), 'sms', mode, country, sender,
       CASE WHEN status IN ('accepted', 'sending') OR supplier_id IS NULL
            THEN '00000000-0000-0000-0000-000000000000' ELSE supplier_id END,
       CASE status WHEN 'sending' THEN 'accepted' ELSE status END, count(*)::int, sum(segments)::int
  FROM messages GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
UNION ALL
SELECT organization_id, date_trunc('hour', accepted_at, 'UTC'), 'whatsapp', mode, country, number_id::text,
       '00000000-0000-0000-0000-000000000000'::uuid, CASE status WHEN 'queued' THEN 'accepted' ELSE status END,
       count(*)::int, 0
  FROM whatsapp_messages WHERE direction = 'outbound' GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
"""
REASONS = """
SELECT organization_id, hour, channel, mode, country, reason, sum(count)::int AS count
  FROM (SELECT organization_id, hour, channel, mode, country, reason, count FROM failure_counts
        UNION ALL
        SELECT organization_id, hour, channel, mode, country, reason, count FROM traffic_deltas WHERE reason <> '') one
 GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(count) <> 0
"""
REASONS_OF_MESSAGES = """
SELECT organization_id, date_trunc('hour', accepted_at, 'UTC'), 'sms', mode, country,
       CASE status WHEN 'expired' THEN status ELSE failure_code END, count(*)::int
  FROM messages WHERE status = 'expired' OR status IN ('undelivered', 'failed', 'rejected') AND failure_code IS NOT NULL
 GROUP BY 1, 2, 3, 4, 5, 6
UNION ALL
SELECT organization_id, date_trunc('hour', accepted_at, 'UTC'), 'whatsapp', mode, country, failure_code, count(*)::int
  FROM whatsapp_messages WHERE direction = 'outbound' AND status = 'failed' AND failure_code IS NOT NULL
 GROUP BY 1, 2, 3, 4, 5, 6
"""
HISTOGRAMS = """
SELECT histogram_sum(to_sent) AS to_sent, histogram_sum(to_delivered) AS to_delivered
  FROM (SELECT to_sent, to_delivered FROM traffic UNION ALL SELECT to_sent, to_delivered FROM traffic_deltas) one
"""
RECONCILED = """
SELECT supplier_id, hour, country, what, sum(count)::int, sum(segments)::int
  FROM (SELECT supplier_id, hour, country, what, count, segments FROM reconciliation
        UNION ALL SELECT supplier_id, hour, country, what, count, segments FROM reconciliation_deltas) one
 WHERE what NOT IN ('late', 'recipient') GROUP BY 1, 2, 3, 4 HAVING sum(count) <> 0 OR sum(segments) <> 0
"""
TAKEN = """
SELECT supplier_id, date_trunc('hour', sent_at, 'UTC'), country, what, count(*)::int, sum(segments)::int
  FROM messages CROSS JOIN LATERAL (
       VALUES ('accepted'), (CASE status WHEN 'unknown' THEN 'never' ELSE status END)) AS counted (what)
 WHERE mode = 'live' AND supplier_id IS NOT NULL AND sent_at IS NOT NULL AND what <> 'sent' GROUP BY 1, 2, 3, 4
"""
TIMES = "SELECT accepted_at, send_at, sent_at, delivered_at FROM messages"


DAYS = """
SELECT organization_id, day, channel, mode, country, sender, status, sum(count)::int, sum(segments)::int,
       histogram_sum(to_sent), histogram_sum(to_delivered)
  FROM {} GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
"""
BY_ORGANIZATION = """
SELECT organization_id, day, status, sum(count)::int FROM {}
 GROUP BY 1, 2, 3 HAVING sum(count) <> 0 ORDER BY 1, 2, 3
"""
HOURS = "(SELECT (hour AT TIME ZONE 'UTC')::date AS day, * FROM traffic) one"


async def check(pool: Pool) -> None:
    assert await pool.fetch(DAYS.format("traffic_days")) == await pool.fetch(DAYS.format(HOURS))
    assert await pool.fetch(BY_ORGANIZATION.format("traffic_organizations")) == await pool.fetch(
        BY_ORGANIZATION.format("traffic_days WHERE mode = 'live'")
    )
    counted = {tuple(row) for row in await pool.fetch(COUNTED)}
    assert counted == {tuple(row) for row in await pool.fetch(OF_MESSAGES)}
    reasons = {tuple(row) for row in await pool.fetch(REASONS)}
    assert reasons == {tuple(row) for row in await pool.fetch(REASONS_OF_MESSAGES)}
    reconciled = {tuple(row) for row in await pool.fetch(RECONCILED)}
    assert reconciled == {tuple(row) for row in await pool.fetch(TAKEN)}


async def check_times(pool: Pool) -> None:
    expected: dict[str, Counter[int]] = {"sent": Counter(), "delivered": Counter()}
    for row in await pool.fetch(TIMES):
        begun = max(row["accepted_at"], row["send_at"] or row["accepted_at"])
        for name, counts in expected.items():
            if row[f"{name}_at"] is not None:
                counts[bucket((row[f"{name}_at"] - begun).total_seconds())] += 1
    found = await pool.fetchrow(HISTOGRAMS)
    assert found is not None
    for name, counts in expected.items():
        assert {n: count for n, count in enumerate(found[f"to_{name}"]) if count} == dict(counts), name


async def fold(pool: Pool) -> int:
    async with pool.acquire() as conn:
        await reconciliation.fold(conn)
        return await traffic.fold(conn)


class Rolled(Machine):
    """Messages of two organizations are accepted and move in any order, in batches, while deltas are folded."""

    tables = (
        "traffic", "traffic_days", "traffic_organizations", "traffic_deltas", "failure_counts",
        "reconciliation", "reconciliation_days", "reconciliation_deltas",
        "send_keys", "queue", "events", "messages", "usage_ledger",
        "sender_ids", "quotas", "organizations",
    )  # fmt: skip

    @initialize()
    def begin(self) -> None:
        self.actors = [self.run(organization(self.pool, quota=20)) for _ in range(2)]
        self.acceptor = Acceptor(self.pool)
        self.ids: list[tuple[UUID, UUID]] = []
        self.at = now()

    def later(self) -> datetime:
        """Each move has a time of its own."""
        self.at += timedelta(seconds=1.7)
        return self.at

    @rule(
        posts=st.lists(
            st.tuples(
                st.integers(0, 1),
                st.sampled_from(["live", "test"]),
                st.sampled_from(["+258841234567", "+351912345678"]),
                st.sampled_from(["hi", "x" * 200]),
                st.booleans(),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def accept(self, posts: list[tuple[int, str, str, str, bool]]) -> None:
        async def work() -> None:
            sends = []
            for who, mode, to, text, later in posts:
                values: dict[str, Any] = {"send_at": now() + timedelta(seconds=40)} if later else {}
                actor = msgspec.structs.replace(self.actors[who], mode=mode)
                sends.append(send(actor, text, to=to, **values))
            await asyncio.gather(*(self.acceptor.accept(one) for one in sends), return_exceptions=True)
            rows = await self.pool.fetch("SELECT organization_id, id FROM messages ORDER BY id")
            self.ids = [(row[0], row[1]) for row in rows]

        self.run(work())

    @rule(count=st.integers(1, 3), who=st.integers(0, 1), billed=st.booleans())
    def stage(self, count: int, who: int, billed: bool) -> None:
        organization_id = self.actors[who].organization_id

        async def work() -> None:
            async with self.pool.acquire() as conn:
                ids = [uuid7() for _ in range(count)]
                done = await accept_bulk(
                    conn,
                    Bulk(
                        organization_id=organization_id,
                        mode="live" if billed else "test",
                        campaign_id=uuid7(),
                        sender_id=uuid7(),
                        sender="BULK",
                        request_id="r",
                        ids=ids,
                        recipients=["+258840000001", "+258840000002", "+12015550123"][:count],
                        texts=[],
                        text="hi",
                        encodings=["gsm7"] * count,
                        segments=[1] * count,
                        due=[],
                    ),
                    at=now(),
                )
                if done is not None:
                    self.ids += [(organization_id, id) for id in ids]

        self.run(work())

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        if not self.ids:
            return
        drawn = data.draw(
            st.lists(
                st.tuples(
                    st.sampled_from(self.ids),
                    st.sampled_from(sorted(STATUSES)),
                    st.booleans(),
                    st.booleans(),
                    st.sampled_from(SUPPLIERS),
                    st.sampled_from([None, "undelivered", "destination_unreachable"]),
                ),
                min_size=1,
                max_size=6,
            )
        )
        moves = []
        for whose, status, unsent, sent_before, supplier_id, code in drawn:
            if sent_before:
                moves.append(Move(*whose, "sent", self.later(), supplier_id=supplier_id))
            moves.append(Move(*whose, status, self.later(), code, unsent, supplier_id=supplier_id))

        async def work() -> None:
            async with self.pool.acquire() as conn, conn.transaction():
                await move_many(conn, moves)

        self.run(work())

    @rule()
    def fold(self) -> None:
        self.run(fold(self.pool))
        assert self.run(self.pool.fetchval("SELECT count(*) FROM traffic_deltas")) == 0

    @invariant()
    def it_is_what_a_count_says(self) -> None:
        self.run(check(self.pool))
        self.run(check_times(self.pool))


async def test_roll_ups_are_a_count_over_messages(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Rolled, database_url)


async def test_whatsapp_is_counted_too(pool: Pool) -> None:
    """Statuses in any order, some of them repeated."""
    one = await whatsapp_factories.made(pool)
    acceptor = whatsapp.acceptor_of(pool)
    for n in range(4):
        await acceptor.accept(whatsapp.send(one, key_name=f"k{n}"))
    await check(pool)
    ids = [row["id"] for row in await pool.fetch("SELECT id FROM whatsapp_messages ORDER BY id")]
    for words in (("delivered", "sent"), ("read",), ("failed", "sent"), ("sent",)):
        await move(pool, *(says(one, id, word, 3.0) for id, word in zip(ids, words * 4, strict=False)))
        await check(pool)
        await fold(pool)
    await check(pool)
    row = await pool.fetchrow(HISTOGRAMS)
    assert row is not None
    times = await pool.fetchrow(
        "SELECT count(sent_at) AS sent, count(delivered_at) AS delivered FROM whatsapp_messages"
    )
    assert (sum(row["to_sent"]), sum(row["to_delivered"])) == tuple(times)


@pytest.mark.parametrize("workers", [3])
async def test_those_who_fold_at_once_count_each_delta_once(pool: Pool, workers: int) -> None:
    actor = await organization(pool)
    acceptor = Acceptor(pool)
    for n in range(40):
        await acceptor.accept(send(actor, f"n{n}"))
    assert sum(await asyncio.gather(*(fold(pool) for _ in range(workers)))) == 40
    await check(pool)
    assert await pool.fetchval("SELECT count FROM traffic") == 40


async def test_a_move_that_is_rolled_back_is_not_counted(pool: Pool) -> None:
    actor = await organization(pool)
    acceptor = Acceptor(pool)
    await acceptor.accept(send(actor))
    id = await pool.fetchval("SELECT id FROM messages")
    async with pool.acquire() as conn:
        transaction = conn.transaction()
        await transaction.start()
        await move_many(conn, [Move(actor.organization_id, id, "sent", now())])
        await transaction.rollback()
    await check(pool)


@given(st.floats(0, 3e6), st.floats(0, 1))
def test_a_percentile_lies_in_its_bucket(seconds: float, share: float) -> None:
    counts = [0] * LENGTH
    counts[bucket(seconds)] = 5
    found = percentile(counts, share)
    assert found is not None
    assert bucket(found * 0.999) <= bucket(seconds)
    assert percentile([0] * LENGTH, share) is None


def test_buckets_double() -> None:
    assert [bucket(ms / 1000) for ms in (0, 1, 2, 3, 4, 7, 8, 1023, 1024, 2**40)] == [0, 0, 1, 1, 2, 2, 3, 9, 10, 31]


SPREAD = """
INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                     to_sent, to_delivered)
SELECT $1, date_trunc('day', now(), 'UTC') - n * interval '1 hour', 'sms', 'live', 'MZ', 'A', $2, status, 1 + n, 2,
       CASE status WHEN 'sent' THEN ARRAY[n, 1] ELSE '{}' END,
       CASE status WHEN 'delivered' THEN ARRAY[1, n] ELSE '{}' END
  FROM generate_series(1, 96) AS n, (VALUES ('sent'), ('delivered')) AS of (status)
"""


@pytest.mark.parametrize(
    ("first", "last"), [(-96, 0), (-90, -2), (-72, -48), (-70, -50), (-70, -47), (-50, -49), (-49, -48), (-48, -47)]
)
async def test_days_are_the_sums_of_their_hours(pool: Pool, first: int, last: int) -> None:
    """Whatever part of them is requested: whole days come from separate sums."""
    actor = await organization(pool)
    for supplier in SUPPLIERS[:2]:
        await pool.execute(SPREAD, actor.organization_id, supplier)
    await pool.execute(factories.SUM_DAYS)
    midnight = now().replace(hour=0, minute=0, second=0, microsecond=0)
    asked = {"date_from": midnight + timedelta(hours=first), "date_to": midnight + timedelta(hours=last), "limit": 200}
    async with pool.acquire() as conn:
        hours, days = [
            await traffic.read(conn, actor, query=traffic.Query(interval=interval, **asked))
            for interval in ("hour", "day")
        ]
    assert len(hours) == last - first
    found = {point.at: (point.counts, point.segments, sum(point.to_sent), sum(point.to_delivered)) for point in days}
    for at, told in found.items():
        of = [point for point in hours if point.at.date() == at.date()]
        counts: Counter[str] = sum((Counter(point.counts) for point in of), Counter())
        assert told == (
            counts,
            sum(point.segments for point in of),
            sum(sum(point.to_sent) for point in of),
            sum(sum(point.to_delivered) for point in of),
        )
    assert found.keys() == {point.at.replace(hour=0) for point in hours}


TOOK = """
INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                     to_sent, to_delivered)
SELECT $1, date_trunc('hour', now()) - ago * interval '1 hour', channel, mode, 'MZ', 'A', $1, 'delivered', 1, 1, '{}',
       took
  FROM (VALUES (0, 'sms', 'live', '{0,5}'::bigint[]), (1, 'whatsapp', 'live', '{1}'), (0, 'sms', 'test', '{9,9}'),
               (2, 'sms', 'live', '{7,7}'), (1, 'sms', 'live', '{}')) AS of (ago, channel, mode, took)
"""


async def test_how_long_delivery_took_is_that_of_all_organizations_live_in_the_last_hours(pool: Pool) -> None:
    async with pool.acquire() as conn:
        since = await conn.fetchval("SELECT date_trunc('hour', now()) - interval '1 hour'")
        assert await traffic.delivered(conn, since=since) == []
        for _ in range(2):
            await conn.execute(TOOK, (await organization(pool)).organization_id)
        took = await traffic.delivered(conn, since=since)
        # The hour may have ended since the request.
        assert took in ([2, 10], [2, 10, *[0] * (len(took) - 2)])


async def test_a_long_period_of_many_countries_is_whole(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """More points than are read at once: countries used to lack the last days, without a word."""
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO traffic_days SELECT $1, '2026-01-10'::date + n, 'sms', 'live', country, 'ACME', 'delivered', 1, 1,"
        " '{}', '{}' FROM generate_series(0, 59) n, unnest(ARRAY['MZ', 'PT', 'ZA']) country",
        actor.organization_id,
    )
    since, until = datetime(2026, 1, 10, tzinfo=UTC), datetime(2026, 3, 11, tzinfo=UTC)
    found = []
    async with pool.acquire() as conn:
        for most in (figures.MOST, 100):
            monkeypatch.setattr(figures, "MOST", most)
            found.append(await figures.compare_period(conn, actor, since=since, until=until))
    for one in found:
        assert (one.now.accepted, len(one.intervals)) == (180, 60)
        assert [(country.region, country.figures.accepted) for country in one.countries] == [
            ("MZ", 60), ("PT", 60), ("ZA", 60),
        ]  # fmt: skip
    assert [one.countries[0].course for one in found] == [[1] * 60, [22, 28, 10]]
