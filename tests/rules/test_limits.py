"""Rate windows: exact in one process, exact across several, and on the database's clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID

import pytest

from heliograph.accounts.requests import RateUnit
from heliograph.api.door.limits import AnonymousLimiter, Limiter, WindowState
from heliograph.api.shapes.refusals import RateLimited
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from tests.rate_windows import hold_windows, seconds_left


def limiter(pool: Pool, **changed: int) -> Limiter:
    return Limiter(pool, Settings(**({"rate_reads": 50} | changed)))  # type: ignore[arg-type]


async def test_places_are_given_out_once_across_processes(pool: Pool) -> None:
    one, other = limiter(pool), limiter(pool)
    organization, key = uuid7(), uuid7()
    assert (await one.take(organization, key, "reads")).place == 1
    await hold_windows(pool)
    left = await seconds_left(pool)
    standings: list[WindowState] = await asyncio.gather(
        *(each.take(organization, key, "reads") for _ in range(60) for each in (one, other))
    )
    let_through = sorted(standing.place for standing in standings if not standing.exceeded)
    assert let_through == list(range(2, 51))
    for standing in standings:
        headers = dict(standing.headers)
        assert headers[b"x-ratelimit-limit"] == b"50"
        assert headers[b"x-ratelimit-remaining"] == str(max(50 - standing.place, 0)).encode()
        assert 1 <= standing.retry_after <= left


async def test_keys_and_buckets_have_windows_of_their_own(pool: Pool) -> None:
    limits = limiter(pool)
    organization, key = uuid7(), uuid7()
    places = []
    for one, bucket in ((key, "reads"), (key, "mutations"), (uuid7(), "reads"), (key, "reads")):
        places.append((await limits.take(organization, one, bucket)).place)
        await hold_windows(pool)
    assert places == [1, 1, 1, 2]


async def test_many_keys_in_opposite_orders_do_not_deadlock(pool: Pool) -> None:
    one, other = limiter(pool), limiter(pool)
    organization = uuid7()
    keys = [uuid7() for _ in range(40)]
    for _ in range(10):
        await asyncio.gather(
            *(one.take(organization, key, "reads") for key in keys),
            *(other.take(organization, key, "reads") for key in reversed(keys)),
        )
    assert await pool.fetchval("SELECT count(*) FROM rate_windows") == 40


async def test_a_used_up_window_costs_no_query_and_ends_with_its_minute(pool: Pool) -> None:
    now = 1000.0
    limits = Limiter(pool, Settings(rate_reads=2), monotonic=lambda: now)
    organization, key = uuid7(), uuid7()
    assert not (await limits.take(organization, key, "reads")).exceeded
    await hold_windows(pool)
    places = [(await limits.take(organization, key, "reads")).exceeded for _ in range(3)]
    assert places == [False, True, True]
    assert await counted_requests(pool, key) == 2
    # The minute ends, here and in the database; this was the next one.
    await pool.execute("UPDATE rate_windows SET window_start = window_start - interval '2 minutes'")
    now += 121
    standing = await limits.take(organization, key, "reads")
    assert (standing.place, standing.exceeded) == (1, False)


async def test_a_limit_of_its_own_holds_from_the_next_request_on(pool: Pool) -> None:
    limits = limiter(pool, rate_reads=2)
    organization, key = uuid7(), uuid7()

    async def take(own: int | None) -> tuple[int, int, bool]:
        standing = await limits.take(organization, key, "reads", own)
        return standing.limit, standing.place, standing.exceeded

    assert await take(None) == (2, 1, False)
    await hold_windows(pool)
    assert [await take(None) for _ in range(2)] == [(2, 2, False), (2, 3, True)]
    # A window that was used up had room again, and this minute's third request was never counted.
    assert [await take(4) for _ in range(3)] == [(4, 3, False), (4, 4, False), (4, 5, True)]
    assert await take(None) == (2, 5, True)
    assert await take(3) == (3, 6, True)
    assert (await limits.take(organization, uuid7(), "reads")).limit == 2, "another key of whoever has none"


async def test_a_rate_unit_is_judged_by_the_limit_that_it_was_given(pool: Pool) -> None:
    limits = Limiter(pool, Settings(rate_sms_send=2), monotonic=lambda: 1000.0)
    organization, key = uuid7(), uuid7()
    unit = limits.rate_unit(organization, key, "sms_send", 7)
    assert isinstance(unit, RateUnit)
    assert unit.limit == 7
    unit.used, unit.at = 7, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    unit.window_start = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    standing = limits.window_state(unit, organization, "sms_send")
    assert (standing.limit, standing.place, standing.exceeded) == (7, 7, False)
    used_up = limits.rate_unit(organization, key, "sms_send", 7)
    assert isinstance(used_up, WindowState)
    assert (used_up.limit, used_up.exceeded) == (7, True)
    again = limits.rate_unit(organization, key, "sms_send", 8)
    assert isinstance(again, RateUnit), "there may be room under another limit"


async def test_a_late_statement_does_not_turn_a_window_back(pool: Pool) -> None:
    organization, key = uuid7(), uuid7()
    limits = limiter(pool)
    await limits.take(organization, key, "reads")
    await hold_windows(pool)
    assert (await limits.take(organization, key, "reads")).place == 2
    # The clock was an hour ahead, and has been set back: windows of that hour do not count.
    await pool.execute("UPDATE rate_windows SET window_start = window_start + interval '1 hour'")
    assert (await limits.take(organization, key, "reads")).place == 1
    await hold_windows(pool)
    assert (await limits.take(organization, key, "reads")).place == 2


async def test_failures_are_counted_by_address(pool: Pool) -> None:
    limits = limiter(pool, rate_failures=100)
    places = []
    for address in ("192.0.2.1", "192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "", ""):
        places.append((await limits.take_failure(address)).place)
        await hold_windows(pool)
    assert places == [1, 2, 1, 2, 1, 1, 2]


async def test_who_is_locked_out_is_known_without_asking(pool: Pool) -> None:
    now = 1000.0
    limits = Limiter(pool, Settings(rate_failures=2), monotonic=lambda: now)
    known = []
    for _ in range(3):
        known.append(limits.is_locked_out("2001:db8::1"))
        await limits.take_failure("2001:db8::1")
        await hold_windows(pool)
    assert known == [False, False, True]
    assert limits.is_locked_out("2001:db8::2")
    assert not limits.is_locked_out("192.0.2.1")
    now += 121
    assert not limits.is_locked_out("2001:db8::1")


def test_strangers_have_a_minute_of_their_own_by_address() -> None:
    now = 1000.0
    strangers = AnonymousLimiter(2, monotonic=lambda: now)

    for address in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "2001:db8::1", "2001:db8::2"):
        strangers.admit(address)
    for address in ("192.0.2.1", "2001:db8::3"):
        with pytest.raises(RateLimited) as refused:
            strangers.admit(address)
        assert refused.value.headers["retry-after"] == "60"
    strangers.admit("192.0.2.2")
    now += 60
    strangers.admit("192.0.2.1")


async def counted_requests(pool: Pool, key: UUID) -> int:
    number: int = await pool.fetchval("SELECT taken FROM rate_windows WHERE key_id = $1", key)
    return number
