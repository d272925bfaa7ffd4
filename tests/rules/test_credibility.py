"""Receipts that did not come from a handset: a supplier that reports everything as delivered is detected
statistically."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import msgspec
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7_floor
from heliograph.base.process.settings import Settings
from heliograph.console.engine.console_cache import COMPARED, ConsoleCache
from heliograph.sms import checks
from heliograph.sms.dispatch.routing import Supplier
from heliograph.traffic import credibility, reconciliation
from heliograph.traffic.reconciliation import Counted, Sums, add, hour_of
from tests.rules.dispatching import Bench
from tests.rules.factories import message, organization, receipt, supplier

SETTINGS = Settings(database_url="", public_url="https://us.example")
#: Buckets of receipts: those within a second, those after four seconds, and those after an hour or two.
SOON, LATER, LATE = [0] * 4 + [1], [0] * 12 + [1], [0] * 22 + [1]


async def stored(pool: Pool, *names: str) -> list[Supplier]:
    rows = [supplier(name, priority=n) for n, name in enumerate(names)]
    await pool.executemany(
        "INSERT INTO suppliers (id, name, kind, settings, secret, created_at, changed_at)"
        " VALUES ($1, $2, 'smpp', '{}', '', now(), now())",
        [(row.id, row.name) for row in rows],
    )
    return rows


async def findings(pool: Pool) -> list[tuple[str, str]]:
    """What doctor reports about receipts, by supplier."""
    async with pool.acquire() as conn:
        found = [*await checks.run(conn, SETTINGS), *await checks.compare(conn, SETTINGS)]
    return [(str(one.check), str(one.detail)) for one in found if str(one.check).startswith("receipts of ")]


async def counted(
    pool: Pool,
    row: Supplier,
    *,
    soon: int = 0,
    later: int = 0,
    late: int = 0,
    lost: int = 0,
    silent: int = 0,
    country: str = "MZ",
    hours: int = 3,
) -> None:
    """This many messages some hours ago, with receipts within a second, later receipts, and none."""
    sums: Sums = {}
    hour = hour_of(clock.now() - timedelta(hours=hours))
    for what, number, histogram in (
        ("accepted", soon + later + late + lost + silent, None),
        ("delivered", soon, SOON),
        ("delivered", later, LATER),
        ("delivered", late, LATE),
        ("undelivered", lost, LATER),
    ):
        if number:
            one = add(sums, Counted(row.id, hour, country, what, "643-04"), number, number)
            if histogram is not None:
                known = one.to_receipt or [0] * 32
                one.to_receipt = [
                    have + number * more
                    for have, more in zip(known, histogram + [0] * (32 - len(histogram)), strict=True)
                ]
    async with pool.acquire() as conn:
        await reconciliation.append(conn, sums)


async def test_a_supplier_that_says_delivered_to_everything_at_once_is_named(pool: Pool) -> None:
    liar, honest = await stored(pool, "liar", "honest")
    bench = Bench(pool, liar, claim_limit=500)
    bench.connectors[liar.id].room = 1000
    actor = await organization(pool)
    ids = [await message(pool, actor) for _ in range(credibility.MANY)]
    await bench.round()
    assert len(bench.connectors[liar.id].submitted) == len(ids)
    await bench.receive(liar.id, *[receipt(f"{id}-1") for id in ids])
    assert await pool.fetchval("SELECT count(*) FROM messages WHERE status = 'delivered'") == len(ids)
    assert await findings(pool) == [], "the last hours are still under way"
    await pool.execute("UPDATE reconciliation_deltas SET hour = hour - interval '3 hours'")
    await counted(pool, honest, soon=150, later=150)
    (found,) = await findings(pool)
    assert found == ("receipts of liar", "100% of 200 came within a second, faster than handsets answer")


@pytest.mark.parametrize(
    ("counts", "is_named"),
    [
        ({"soon": 96, "later": 4}, False),
        ({"soon": 195, "later": 5}, True),
        ({"soon": 190, "later": 10}, False),
        ({"soon": 195, "later": 5, "lost": 250}, False),
    ],
    ids=["few", "fast", "fast enough for a handset", "fast refusals"],
)
async def test_how_fast_receipts_may_be(pool: Pool, counts: dict[str, int], is_named: bool) -> None:
    (row,) = await stored(pool, "main")
    await counted(pool, row, **counts)
    assert bool(await findings(pool)) == is_named


async def test_nobody_delivers_everything_where_the_others_do_not(pool: Pool) -> None:
    perfect, other, third = await stored(pool, "perfect", "other", "third")
    await counted(pool, perfect, later=997, lost=3)
    assert await findings(pool) == [], "there is nobody to compare with"
    await counted(pool, other, later=360, lost=40)
    await counted(pool, third, later=1000, country="PT")
    assert await findings(pool) == [], "too few to compare with"
    await counted(pool, other, later=270, lost=30)
    assert await findings(pool) == [
        ("receipts of perfect", "99.7% to MZ are reported as delivered, of the other suppliers' 90.0%")
    ]
    await counted(pool, other, later=5000)
    assert await findings(pool) == [], "the others deliver well, too"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [((410, 1000), (576, 800), 13.1), ((72, 100), (76, 100), 0.6), ((0, 100), (0, 100), 0.0), ((5, 5), (5, 5), 0.0)],
)
def test_a_gap_between_two_shares_is_measured_in_deviations(
    first: tuple[int, int], second: tuple[int, int], expected: float
) -> None:
    assert round(credibility.deviations(*first, *second), 1) == expected


async def codes(
    pool: Pool,
    actor: Actor,
    row: Supplier,
    *,
    delivered: int,
    entered: int,
    message_class: str = "otp",
    ago: timedelta = timedelta(hours=1),
) -> None:
    """Messages that a supplier reports as delivered, this long ago."""
    for n in range(delivered):
        made = await message(pool, actor, status="delivered", queued=False, traffic_class=message_class)
        id = UUID(int=uuid7_floor(clock.now() - ago).int + (made.int & ((1 << 62) - 1)))
        await pool.execute("UPDATE messages SET id = $2, supplier_id = $3 WHERE id = $1", made, id, row.id)
        if n < entered:
            await pool.execute(
                "INSERT INTO guard_conversions (organization_id, message_id, recipient, mode, converted_at)"
                " SELECT organization_id, id, recipient, mode, now() FROM messages WHERE id = $1",
                id,
            )


async def test_codes_that_are_delivered_and_never_entered_tell_of_their_supplier(pool: Pool) -> None:
    liar, honest, sells = await stored(pool, "liar", "honest", "sells")
    actor = await organization(pool)
    await codes(pool, actor, liar, delivered=100, entered=41)
    await codes(pool, actor, honest, delivered=99, entered=71)
    # Nobody enters a message that is not a code, and the latest codes may still be entered.
    await codes(pool, actor, sells, delivered=110, entered=0, message_class="marketing")
    await codes(pool, actor, honest, delivered=110, entered=0, ago=timedelta(minutes=1))
    assert await findings(pool) == [], "too few to compare with"
    await codes(pool, actor, honest, delivered=1, entered=1)
    assert await findings(pool) == [
        (
            "receipts of liar",
            "of 100 codes to MZ that it reports as delivered, 41% were entered; of those of others, 72%",
        )
    ]


async def test_a_screen_that_looks_each_second_compares_messages_every_few_minutes(pool: Pool) -> None:
    liar, honest = await stored(pool, "liar", "honest")
    actor = await organization(pool)
    await codes(pool, actor, liar, delivered=100, entered=41)
    await codes(pool, actor, honest, delivered=100, entered=72)
    settings = msgspec.structs.replace(SETTINGS, database_url="postgresql://localhost/x")
    asked: list[str] = []
    times = [100.0]
    cache = ConsoleCache(monotonic=lambda: times[0])

    async def is_named() -> bool:
        with conn.query_logger(lambda query: asked.append(query.query)):
            found = await cache.look(conn, settings)
        return "receipts of liar" in [str(one.check.check) for one in found]

    async with pool.acquire() as conn:
        for _ in range(5):
            assert await is_named()
            times[0] += 1
        assert asked.count(credibility.CONVERTED) == 1
        await conn.execute("DELETE FROM guard_conversions")
        times[0] += COMPARED
        assert not await is_named()
        assert asked.count(credibility.CONVERTED) == 2


async def test_a_supplier_whose_receipts_stop_is_named_before_the_day_is_over(pool: Pool) -> None:
    stopped, slow, quiet, fine = await stored(pool, "stopped", "slow", "quiet", "fine")
    await counted(pool, stopped, later=40, hours=9)
    await counted(pool, slow, late=40, hours=9)
    for one in (quiet, fine):
        await counted(pool, one, later=40, hours=9)
    assert await findings(pool) == []
    # Since then: too few messages say nothing, and neither do those of a supplier whose receipts always take their
    # time.
    await counted(pool, stopped, silent=20)
    await counted(pool, slow, silent=20)
    await counted(pool, quiet, silent=19)
    await counted(pool, fine, silent=20, later=1)
    assert await findings(pool) == [
        (
            "receipts of stopped",
            "they have stopped: none for any of 20 messages of the last hours; before, most came within an hour",
        )
    ]
