"""The billing export: a month of all organizations is locked once it is over, agrees with every usage list to the
message, and its file never changes."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import io
from datetime import date, datetime, timedelta

import pytest

from heliograph.accounts import organizations, quota
from heliograph.base.actor import Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7_floor
from heliograph.overview import usage
from heliograph.overview.installation import billing
from heliograph.sms.accepting.accept import Acceptor
from tests.rules.factories import send
from tests.rules.test_usage_months import granted_organization

#: Of the ledger itself: messages, grants, refunds, adjustments.
LEDGER = """
SELECT organization_id, channel, sum(quantity)::bigint AS quantity, coalesce(sum(segments), 0)::bigint AS segments
  FROM usage_entries WHERE created_at >= $1 AND created_at < $2 GROUP BY 1, 2
"""


def earlier() -> date:
    """The month before the last one: it is over, whenever this runs."""
    present = clock.now().date().replace(day=1)
    return (present - timedelta(days=32)).replace(day=1)


def bounds(month: date) -> tuple[datetime, datetime]:
    return clock.midnight(month), clock.midnight((month + timedelta(days=31)).replace(day=1))


async def age(pool: Pool) -> date:
    """Move everything that happened so far to the middle of an earlier month: messages, sums and deltas that are not
    folded yet."""
    month = earlier()
    start = clock.midnight(month) + timedelta(days=14)
    back = (clock.now() - start) // timedelta(hours=1) * timedelta(hours=1)
    rows = await pool.fetch("SELECT organization_id, id FROM messages WHERE accepted_at > $1", bounds(month)[1])
    for n, row in enumerate(rows):
        id = uuid7_floor(start + timedelta(seconds=n))
        await pool.execute(
            "UPDATE messages SET id = $3, accepted_at = accepted_at - $4::interval"
            " WHERE organization_id = $1 AND id = $2",
            *(row["organization_id"], row["id"], id, back),
        )
    rows = await pool.fetch("SELECT organization_id, id FROM usage_ledger WHERE created_at > $1", bounds(month)[1])
    for n, row in enumerate(rows):
        id = uuid7_floor(start + timedelta(seconds=n))
        await pool.execute("UPDATE usage_ledger SET id = $3 WHERE organization_id = $1 AND id = $2", *row, id)
    for statement in (
        "UPDATE usage_ledger SET created_at = created_at - $1::interval WHERE created_at > $2",
        "UPDATE traffic_deltas SET hour = hour - $1::interval WHERE hour > $2",
    ):
        await pool.execute(statement, back, bounds(month)[1])
    await pool.execute("UPDATE usage_counts SET month = $1 WHERE month > $1", month)
    await pool.execute("UPDATE usage_days SET day = $1 WHERE day >= $2", start.date(), bounds(month)[1].date())
    await pool.execute("UPDATE organizations SET created_at = created_at - $1::interval", back)
    return month


async def used(pool: Pool) -> tuple[date, list[Actor]]:
    """Two organizations with sends, refunds, corrections and grants in an earlier month."""
    actors = [await granted_organization(pool, amount=50) for _ in range(2)]
    acceptor = Acceptor(pool)
    for n, to, text in ((0, "+258841234567", "hi"), (0, "+351912345678", "x" * 200), (1, "+258841234567", "hi")):
        for _ in range(n + 2):
            await acceptor.accept(send(actors[n], text, to=to))
    async with pool.acquire() as conn, conn.transaction():
        (row, *_) = await conn.fetch("SELECT organization_id, id, segments FROM messages ORDER BY id")
        await quota.refund_many(conn, [tuple(row)], "canceled")
        await quota.adjust(conn, actors[1].organization_id, amount=-7, reason="entered twice")
    return await age(pool), actors


async def file_of(pool: Pool, month: date) -> bytes:
    async with pool.acquire() as conn:
        return b"".join([part async for part in billing.parts(conn, month=month)])


async def test_a_month_agrees_with_every_usage_list_to_the_message(pool: Pool) -> None:
    month, actors = await used(pool)
    async with pool.acquire() as conn:
        ledger = await billing.ledger(conn, month=month)
        locked = await billing.lock(conn, month=month, by=Principal("cli", name="eva"))
        assert await billing.lines(conn, month=month) == ledger == locked.sums
        assert await billing.verify(conn, month=month)
    assert (locked.sums.organizations, locked.sums.sms, locked.sums.segments) == (2, 7, 9)
    assert (locked.sums.refunds, locked.sums.adjustments, locked.sums.grants) == (1, -7, 100)
    assert locked.locked_by == "eva"
    text = await file_of(pool, month)
    assert hashlib.sha256(text).hexdigest() == locked.checksum
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    assert len(rows) == locked.lines
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        sums = found.setdefault((row["organization_id"], row["channel"]), [0, 0])
        sums[0] += int(row["quantity"])
        sums[1] += int(row["segments"]) if row["type"] == "usage" else 0
    known = await pool.fetch(LEDGER, *bounds(month))
    refunded = {str(actors[0].organization_id): 1}
    assert found == {(str(row[0]), row[1]): [row[2], row[3] - refunded.get(str(row[0]), 0)] for row in known}, (
        "the file and the usage lists"
    )
    async with pool.acquire() as conn:
        for actor in actors:
            bill = await usage.bill(conn, actor, month=month, by="sender")
            assert bill.quantity == found[str(actor.organization_id), "sms"][0]
    by_country = {
        row["country"]: int(row["quantity"]) for row in rows if row["type"] == "usage" and row["quantity"] == "-2"
    }
    assert set(by_country) == {"MZ", "PT"}


async def test_what_is_locked_stays_as_it_is(pool: Pool) -> None:
    month, actors = await used(pool)
    async with pool.acquire() as conn, pool.acquire() as other:
        one, two = await asyncio.gather(billing.lock(conn, month=month), billing.lock(other, month=month))
        assert one == two, "locked once, whoever asks"
        text = await file_of(pool, month)
        # A new name and new sums change nothing in it.
        await organizations.rename(conn, id=actors[0].organization_id, name="Another name")
        await pool.execute("UPDATE usage_counts SET quantity = quantity + 1 WHERE type = 'grant'")
        assert await billing.lock(conn, month=month) == one
        assert await file_of(pool, month) == text
        assert await billing.verify(conn, month=month)
        # The page shows that the ledger has different sums now.
        assert await billing.lines(conn, month=month) != await billing.ledger(conn, month=month)
        await pool.execute("UPDATE billing_lines SET quantity = quantity + 1 WHERE type = 'grant'")
        assert not await billing.verify(conn, month=month)
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'billing.locked'") == 1


async def test_months_of_years_ago_are_listed(pool: Pool) -> None:
    """After two years, those that were locked first were in no list."""
    actor = await granted_organization(pool, amount=1)
    async with pool.acquire() as conn:
        present = await conn.fetchval("SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date")
        first = present.replace(year=present.year - 5)
        await conn.execute(
            "UPDATE organizations SET created_at = $2 WHERE id = $1", actor.organization_id, clock.midnight(first)
        )
        listed = await billing.months(conn)
    assert (listed[-1].month, len({one.month for one in listed})) in {(first, 61), (first, 62)}


async def test_a_month_that_is_not_over_or_disagrees_is_not_locked(pool: Pool) -> None:
    month, actors = await used(pool)
    present = clock.now().date().replace(day=1)
    async with pool.acquire() as conn:
        listed = await billing.months(conn)
        assert [(one.month, one.is_over, one.locked) for one in listed][:1] == [(present, False, None)]
        assert {one.month for one in listed} >= {month}
        await pool.execute("UPDATE usage_counts SET quantity = quantity - 1 WHERE type = 'adjustment'")
        for wanted, reason in ((present, "open"), (month, "disagrees"), (date(2001, 1, 1), "empty")):
            with pytest.raises(Invalid) as refused:
                await billing.lock(conn, month=wanted)
            assert refused.value.details["fields"][0]["issue"] == reason
            assert (await billing.get(conn, month=wanted)).locked is None, "nothing is left of it"
        (name,) = await conn.fetchrow("SELECT name FROM organizations WHERE id = $1", actors[1].organization_id)
        with pytest.raises(Invalid, match="disagree") as refused:
            await billing.lock(conn, month=month)
        assert name in str(refused.value.details)
        with pytest.raises(NotFound):
            await billing.verify(conn, month=month)


async def test_pieces_of_a_file_are_the_whole_file(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    month, _ = await used(pool)
    async with pool.acquire() as conn:
        locked = await billing.lock(conn, month=month)
        whole = await file_of(pool, month)
        monkeypatch.setattr(billing, "PAGE", 2)
        monkeypatch.setattr(billing, "BATCH", 1)
        assert await file_of(pool, month) == whole
        await pool.execute("WITH gone AS (DELETE FROM billing_lines) DELETE FROM billing_exports")
        again = await billing.lock(conn, month=month)
    assert again.checksum == locked.checksum
