"""What was sent to a number is looked for among the latest messages of all organizations, a bounded number of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import time_of, uuid7_floor
from heliograph.overview.searching import everywhere
from heliograph.overview.searching.everywhere import Hour, Wanted
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
    """Messages of one moment, counted as folding counts them. The last one is the newest."""
    first = uuid7_floor(at).int
    ids = [UUID(int=first + n) for n in range(count)]
    await pool.execute(MESSAGES, whose, ids, to, at)
    await pool.execute(TRAFFIC, whose, at, "MZ" if to.startswith("+258") else "PT", count)
    return ids


async def looked(pool: Pool, *, most: int, limit: int = 50) -> tuple[list[UUID], int]:
    """(what is found of a number by going on as far as it goes, how many looks that took)"""
    found: list[UUID] = []
    after, looks = None, 0
    async with pool.acquire() as conn:
        while looks == 0 or after is not None:
            listed = await everywhere.look(conn, Wanted(recipient=NUMBER), after=after, limit=limit, most=most)
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
        # A burst within one hour, denser than a look.
        (one, 3.5, 30, 30),
        (two, 90.0, 3, 3),
    ):
        at = now - timedelta(hours=hours, milliseconds=500)
        for count, step in ((before, 2), (after, 0)):
            if count:
                await sent(pool, whose, at + timedelta(milliseconds=step), to=OTHER, count=count)
        wanted += await sent(pool, whose, at + timedelta(milliseconds=1), to=NUMBER)
    # What goes to other countries is not looked at.
    await sent(pool, foreign, now - HOUR, to="+351912345678", count=most * 3)
    found, looks = await looked(pool, most=most)
    assert found == sorted(wanted, reverse=True)
    assert (looks == 1) == (most == 20_000), looks
    assert (await looked(pool, most=most, limit=1))[0] == found


async def test_what_was_sent_in_the_last_seconds_is_found(pool: Pool) -> None:
    one = (await organization(pool)).organization_id
    now = clock.now()
    (id,) = await sent(pool, one, now, to=NUMBER)
    # As the commit that accepts leaves it, before anybody folds it.
    await pool.execute(
        "INSERT INTO traffic_deltas SELECT organization_id, $1, 1, hour, channel, mode, country, sender,"
        " supplier_id, status, count, segments FROM traffic",
        id,
    )
    await pool.execute("DELETE FROM traffic")
    assert await looked(pool, most=100) == ([id], 1)


@pytest.mark.parametrize(
    ("hours", "until", "who", "lower"),
    [
        # All of it is less than a look.
        ([(NOON, [A], 10, 1), (NOON - HOUR, [B], 80, 1)], NOON + HOUR, [A, B], None),
        # As much of an hour as holds the rest of a look.
        ([(NOON, [A], 50, 1), (NOON - HOUR, [B], 100, 1), (NOON - 2 * HOUR, [C], 9, 1)], NOON + HOUR, [A, B],
         NOON - HOUR / 2),
        # The hour that runs holds what came until now.
        ([(NOON, [A], 1000, 1)], NOON + HOUR / 4, [A], NOON + HOUR / 4 - HOUR / 40),
        # An hour of which not all counts were read is left for the next look.
        ([(NOON, [A], 1, 10), (NOON - HOUR, [B], 1, everywhere.ROWS)], NOON + HOUR, [A], NOON + everywhere.AHEAD),
        # Each look goes on by a second.
        ([(NOON, [A], 10**9, 1)], NOON + HOUR, [A], NOON + HOUR - everywhere.AHEAD),
        ([], NOON, [], None),
    ],
)  # fmt: skip
def test_a_look_is_as_long_as_about_so_many_messages_took(
    hours: list[tuple[datetime, list[UUID], int, int]], until: datetime, who: list[UUID], lower: datetime | None
) -> None:
    known = [Hour(*one) for one in hours]
    whose, edge = everywhere.window(known, until=until, now=NOON + HOUR / 4 if until < NOON + HOUR else until, most=100)
    assert whose == who
    assert (None if edge is None else time_of(edge)) == lower


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
