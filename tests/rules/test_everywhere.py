"""Messages to a number are searched for among a bounded number of the latest messages of all organizations."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.database import clock
from heliograph.base.database.bounded_scan import AHEAD, SLACK
from heliograph.base.database.pool import Pool
from heliograph.base.ids import time_of, uuid7_floor
from heliograph.overview.searching import everywhere
from heliograph.overview.searching.everywhere import Counted, Hour, MessageQuery
from tests.rules.factories import organization

NUMBER, OTHER = "+258841234567", "+258841234568"
A, B, C = (UUID(int=n) for n in (1, 2, 3))
NOON = datetime.fromisoformat("2027-03-01T12:00:00+00:00")
HOUR = timedelta(hours=1)

MESSAGES = """
INSERT INTO messages (organization_id, id, mode, status, recipient, sender, sender_id, encoding, segments, guarantee,
                      country, request_id, balance_after, accepted_at)
SELECT $1, id, 'live', 'delivered', $3, 'ACME', $1, 'gsm7', 1, 'at_least_once', 'MZ', 'r', 0, $4
  FROM unnest($2::uuid[]) AS one (id)
"""
TRAFFIC = """
INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count, segments,
                     to_sent, to_delivered)
VALUES ($1, date_trunc('hour', $2::timestamptz, 'UTC'), 'sms', 'live', $3, 'ACME', $1, 'delivered', $4, $4, '{}', '{}')
ON CONFLICT (organization_id, hour, channel, mode, country, sender, supplier_id, status)
DO UPDATE SET count = traffic.count + excluded.count
"""


async def sent(pool: Pool, whose: UUID, at: datetime, *, to: str, count: int = 1) -> list[UUID]:
    """Messages of one moment, counted like folding counts them. The last one is the newest."""
    first = uuid7_floor(at).int
    ids = [UUID(int=first + n) for n in range(count)]
    await pool.execute(MESSAGES, whose, ids, to, at)
    await pool.execute(TRAFFIC, whose, at, "MZ" if to.startswith("+258") else "PT", count)
    return ids


async def search_to_the_end(
    pool: Pool, *, most: int, limit: int = 50, rows: int = everywhere.ROWS
) -> tuple[list[UUID], int]:
    """(what is found for a number by continuing to the end, the number of searches)"""
    found: list[UUID] = []
    after, looks = None, 0
    async with pool.acquire() as conn:
        while looks == 0 or after is not None:
            listed = await everywhere.search(
                conn, MessageQuery(recipient=NUMBER), after=after, limit=limit, most=most, rows=rows
            )
            assert after is None or listed.seen is None or listed.seen < after, "a look leads to itself"
            page = [one.id for one in listed.messages][:limit]
            found, looks = found + page, looks + 1
            after = page[-1] if len(listed.messages) > limit else listed.seen
    return found, looks


@pytest.mark.parametrize("most", [20_000, 40, 7])
async def test_each_message_to_a_number_is_found_once_however_small_a_look_is(pool: Pool, most: int) -> None:
    one, two, foreign = [(await organization(pool)).organization_id for _ in range(3)]
    now = clock.now()
    wanted: list[UUID] = []
    for whose, hours, before, after in (
        (one, 0.0, 5, 0),
        (two, 3.2, 0, 9),
        # A burst within one hour, denser than one search.
        (one, 3.5, 30, 30),
        (two, 90.0, 3, 3),
    ):
        at = now - timedelta(hours=hours, milliseconds=500)
        for count, step in ((before, 2), (after, 0)):
            if count:
                await sent(pool, whose, at + timedelta(milliseconds=step), to=OTHER, count=count)
        wanted += await sent(pool, whose, at + timedelta(milliseconds=1), to=NUMBER)
    # Messages to other countries are not scanned.
    await sent(pool, foreign, now - HOUR, to="+351912345678", count=most * 3)
    found, looks = await search_to_the_end(pool, most=most)
    assert found == sorted(wanted, reverse=True)
    assert (looks == 1) == (most == 20_000), looks
    assert (await search_to_the_end(pool, most=most, limit=1))[0] == found
    for rows in (1, 2, 4):
        assert (await search_to_the_end(pool, most=most, rows=rows))[0] == found, rows


DELTAS = """
INSERT INTO traffic_deltas
SELECT organization_id, gen_random_uuid(), 1, hour, channel, mode, country, sender, supplier_id, status, count, segments
  FROM traffic
"""


async def test_what_was_sent_in_the_last_seconds_is_found(pool: Pool) -> None:
    one = (await organization(pool)).organization_id
    (id,) = await sent(pool, one, clock.now(), to=NUMBER)
    # As the accepting commit leaves it, before it is folded.
    await pool.execute(DELTAS)
    await pool.execute("DELETE FROM traffic")
    assert await search_to_the_end(pool, most=100) == ([id], 1)


async def test_nobody_is_left_out_while_folding_is_behind(pool: Pool) -> None:
    now = clock.now()
    wanted = []
    for n in range(5):
        whose = (await organization(pool)).organization_id
        wanted += await sent(pool, whose, now - timedelta(minutes=40 * n), to=NUMBER)
    await pool.execute(DELTAS)
    await pool.execute("DELETE FROM traffic")
    for rows in (1, 3, 5):
        assert (await search_to_the_end(pool, most=100, rows=rows))[0] == sorted(wanted, reverse=True), rows


async def test_an_hour_with_more_rows_than_a_look_reads_is_read_whole_and_the_next_look_is_below_it(
    pool: Pool,
) -> None:
    whose = [(await organization(pool)).organization_id for _ in range(6)]
    at = clock.now().replace(minute=0, second=0, microsecond=0) - 2 * HOUR
    # One row in the newest hour, four in the one before it, whose last messages came at its end, and an old one.
    wanted = await sent(pool, whose[0], at + HOUR, to=NUMBER)
    for one in whose[1:5]:
        wanted += await sent(pool, one, at + HOUR - timedelta(minutes=1), to=NUMBER)
    wanted += await sent(pool, whose[5], at - 5 * HOUR, to=NUMBER)
    found, looks = await search_to_the_end(pool, most=1_000, rows=2)
    # The newest hour, the full one, and the rest.
    assert (found, looks) == (sorted(wanted, reverse=True), 3)


@pytest.mark.parametrize(
    ("hours", "until", "who", "lower"),
    [
        # All of it is less than one search.
        ([(NOON, [A], 10), (NOON - HOUR, [B], 80)], NOON + HOUR, [A, B], None),
        # The part of an hour that the rest of a search can scan.
        ([(NOON, [A], 50), (NOON - HOUR, [B], 100), (NOON - 2 * HOUR, [C], 9)], NOON + HOUR, [A, B], NOON - HOUR / 2),
        # The current hour contains what has arrived so far.
        ([(NOON, [A], 1000)], NOON + HOUR / 4, [A], NOON + HOUR / 4 - HOUR / 40),
        # Each search continues after a second.
        ([(NOON, [A], 10**9)], NOON + HOUR, [A], NOON + HOUR - AHEAD),
        # An id of an hour's first second may belong to a message that counts in the hour before.
        ([(NOON, [A], 10**9), (NOON - HOUR, [B], 1)], NOON + AHEAD, [A, B], NOON),
        ([], NOON, [], None),
    ],
)  # fmt: skip
def test_a_look_is_as_long_as_about_so_many_messages_took(
    hours: list[tuple[datetime, list[UUID], int]], until: datetime, who: list[UUID], lower: datetime | None
) -> None:
    known = Counted([Hour(*one) for one in hours])
    whose, edge = everywhere.window(known, until=until, now=NOON + HOUR / 4 if until < NOON + HOUR else until, most=100)
    assert whose == who
    assert (None if edge is None else time_of(edge)) == lower


def counted(hours: list[tuple[Hour, int]], until: datetime, rows: int) -> Counted:
    """What HOURS finds among hours with this many rows each."""
    below = [(one, count) for one, count in hours if one.begins < until + SLACK]
    each = [one.begins for one, count in below for _ in range(count)]
    reached = next((one.begins for one, _ in below if one.begins < until - AHEAD), None)
    since = None if len(each) <= rows or reached is None else min(reached, each[rows] + HOUR)
    since = since if since and any(one.begins < since for one, _ in hours) else None
    return Counted([one for one, _ in below if since is None or one.begins >= since], since)


@given(
    hours=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.sampled_from((0, 1, 50, 10**6))), max_size=6),
    rows=st.integers(1, 8),
    minutes=st.integers(0, 60),
)
def test_going_on_from_edge_to_edge_comes_to_an_end_past_every_hour(
    hours: list[tuple[int, int, int]], rows: int, minutes: int
) -> None:
    began = itertools.accumulate((gap for gap, _, _ in hours), initial=-1)
    next(began)
    known = [
        (Hour(NOON - ago * HOUR, [UUID(int=n)], count), filled)
        for n, (ago, (_, filled, count)) in enumerate(zip(began, hours, strict=True))
    ]
    now = until = NOON + timedelta(minutes=minutes)
    looked = set()
    # As many searches as an hour takes in parts; those of a second each are not all needed.
    for most in itertools.chain([100] * 20, itertools.repeat(10**6)):
        found = counted(known, until, rows)
        who, edge = everywhere.window(found, until=until, now=now, most=most)
        looked |= set(who)
        lower = datetime.min.replace(tzinfo=NOON.tzinfo) if edge is None else time_of(edge)
        assert lower < until
        for one, _ in known:
            # A message's id may be older or newer than the hour in which it counts.
            if one.begins - SLACK < until and one.begins + HOUR + AHEAD > lower:
                assert one.organizations[0] in who, (one.begins, lower, until)
        if edge is None:
            assert found.since is None
            break
        until = lower
    assert looked == {one.organizations[0] for one, _ in known}


async def test_who_knows_a_number_is_named(pool: Pool) -> None:
    one, two, other = [await organization(pool) for _ in range(3)]
    for mode in ("live", "test"):
        await pool.execute(
            "INSERT INTO contacts (organization_id, id, mode, name, phone, created_at, updated_at)"
            " VALUES ($1, gen_random_uuid(), $2, 'Ana', $3, now(), now())",
            one.organization_id, mode, NUMBER,
        )  # fmt: skip
    for whose, number in ((two, NUMBER), (other, OTHER)):
        await pool.execute(
            "INSERT INTO opt_outs (organization_id, recipient, since, source) VALUES ($1, $2, now(), 'operator')",
            whose.organization_id, number,
        )  # fmt: skip
    async with pool.acquire() as conn:
        found = await everywhere.knowing(conn, number=NUMBER)
    assert [known.id for known in found] == sorted([one.organization_id, two.organization_id], reverse=True)


async def test_a_number_is_found_however_it_is_written(pool: Pool) -> None:
    whose = (await organization(pool)).organization_id
    old, new = "+551181234567", "+5511981234567"
    at = clock.now() - timedelta(minutes=5)
    ids = await sent(pool, whose, at, to=old)
    await pool.execute("UPDATE traffic SET country = 'BR'")
    await pool.execute(
        "INSERT INTO contacts (organization_id, id, name, phone, created_at, updated_at)"
        " VALUES ($1, gen_random_uuid(), 'Ana', $2, now(), now())",
        whose, new,
    )  # fmt: skip
    async with pool.acquire() as conn:
        for number in (old, new):
            found = await everywhere.search(conn, MessageQuery(recipient=number))
            assert [one.id for one in found.messages] == ids, number
            assert [known.id for known in await everywhere.knowing(conn, number=number)] == [whose], number
