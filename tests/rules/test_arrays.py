"""Our codec for arrays and times reads and writes like asyncpg's own, including NULLs, bounds and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from heliograph.base.database import arrays
from heliograph.base.database.pool import open_pool
from tests.database import Cluster

AT = datetime(2026, 3, 1, 12, 0, 0, 123_456, UTC)
ONE = UUID("0191d2a0-0000-7000-8000-000000000001")

#: A type, and arrays that both codecs must store alike.
CASES: list[tuple[str, list[Any]]] = [
    ("uuid", [ONE, UUID(int=0), UUID(int=2**128 - 1)]),
    ("uuid", [ONE] * 5),
    ("uuid", [ONE, None, uuid4(), None]),
    ("uuid", [str(ONE), ONE]),
    ("text", ["", "a", "über", "😀", "x" * 2000, "a\nb\\\"{},'"]),
    ("text", ["sms"] * 7),
    ("text", [None] * 3),
    ("text", ["sms", None, "sms"]),
    ("smallint", [0, -1, 1, 1023, 1024, 32_767, -32_768]),
    ("smallint", [1, None]),
    ("integer", [0, -1, 2**31 - 1, -(2**31)]),
    ("integer", [None, 7]),
    ("bigint", [0, -1, 5000, 2**63 - 1, -(2**63)]),
    ("bigint", [5000, None, 2**40]),
    ("boolean", [True, False, True]),
    ("boolean", [None, True]),
    ("timestamptz", [AT, AT, AT + timedelta(microseconds=1), datetime(1999, 12, 31, 23, 59, 59, 999_999, UTC)]),
    ("timestamptz", [AT.astimezone(timezone(timedelta(hours=-5))), datetime(1, 1, 1, tzinfo=UTC), None]),
    ("timestamptz", [datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)]),
]
CASES += [
    ("bytea", [b"", b"\0\xff", b"x" * 3000]),
    ("bytea", [bytearray(b"a"), memoryview(b"b"), None]),
    ("float8", [0.0, -1.5, 1e300, 3, None]),
    ("date", [date(2026, 3, 1), date(1999, 12, 31), date.max, date.min, None]),
    ("interval", [timedelta(), timedelta(days=-3, seconds=5), timedelta(days=400, microseconds=1), None]),
]
REFUSED: list[tuple[str, Any]] = [
    ("smallint", [1, 32_768]),
    ("integer", [2**31]),
    ("bigint", [2**63]),
    ("integer", ["1"]),
    ("text", [1]),
    ("text", ["a", b"b"]),
    ("text", "abc"),
    ("text", ["\ud800"]),
    ("uuid", ["no uuid"]),
    ("uuid", [7]),
    ("boolean", ["yes"]),
    ("timestamptz", ["2026-03-01"]),
    ("bytea", ["text"]),
    ("float8", ["1.5"]),
    ("date", ["2026-03-01"]),
    ("interval", [5]),
    ("timestamptz", [AT, AT.replace(tzinfo=None)]),
    ("text", [["a"], ["b"]]),
]


@pytest.fixture
async def pair(database_server: Cluster) -> AsyncIterator[tuple[Any, Any]]:
    """asyncpg's own connection, and one with our arrays; nothing is stored through them."""
    plain, ours = await asyncpg.connect(database_server.url), await asyncpg.connect(database_server.url)
    arrays.use(ours)
    yield plain, ours
    await plain.close()
    await ours.close()


@pytest.mark.parametrize(("kind", "values"), CASES)
async def test_what_is_stored_and_read_is_the_same(pair: tuple[Any, Any], kind: str, values: list[Any]) -> None:
    plain, ours = pair
    stored = f"SELECT array_send($1::{kind}[]), $1::{kind}[]::text, array_ndims($1::{kind}[])"
    assert tuple(await ours.fetchrow(stored, values)) == tuple(await plain.fetchrow(stored, values))
    read = f"SELECT $1::{kind}[]"
    expected, found = await plain.fetchval(read, values), await ours.fetchval(read, values)
    assert found == expected
    assert [type(one) for one in found] == [type(one) for one in expected]


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in CASES}))
async def test_nulls_may_be_anywhere(pair: tuple[Any, Any], kind: str) -> None:
    plain, ours = pair
    value = next(values[0] for one, values in CASES if one == kind and values[0] is not None)
    stored = f"SELECT array_send($1::{kind}[])"
    for values in ([None], [None, None], [None, value], [value, None], [None, value, None], [value, None, value]):
        assert await ours.fetchval(stored, values) == await plain.fetchval(stored, values)


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in CASES}))
async def test_an_empty_array_and_none_at_all_are_not_the_same(pair: tuple[Any, Any], kind: str) -> None:
    for conn in pair:
        assert await conn.fetchval(f"SELECT $1::{kind}[]", []) == []
        assert await conn.fetchval(f"SELECT $1::{kind}[]", None) is None


@pytest.mark.parametrize(("kind", "values"), REFUSED)
async def test_what_does_not_fit_is_refused_before_it_is_sent(pair: tuple[Any, Any], kind: str, values: Any) -> None:
    ours = pair[1]
    with pytest.raises(asyncpg.DataError):
        await ours.fetchval(f"SELECT $1::{kind}[]", values)
    assert await ours.fetchval("SELECT 1") == 1


@pytest.mark.parametrize(
    "value",
    [
        AT,
        AT.astimezone(timezone(timedelta(hours=-5))),
        AT.replace(tzinfo=None),
        AT.date(),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
    ],
)
async def test_a_single_time_is_stored_and_read_alike(pair: tuple[Any, Any], value: Any) -> None:
    plain, ours = pair
    stored = "SELECT timestamptz_send($1), $1::timestamptz::text, $1::timestamptz"
    expected = tuple(await plain.fetchrow(stored, value))
    # The second time, it has been read before.
    for _ in range(2):
        found = tuple(await ours.fetchrow(stored, value))
        assert found == expected
        assert found[2].tzinfo is expected[2].tzinfo


@pytest.mark.parametrize("value", ["2026-03-01", 7])
async def test_what_is_no_time_is_refused(pair: tuple[Any, Any], value: Any) -> None:
    for conn in pair:
        with pytest.raises(asyncpg.DataError):
            await conn.fetchval("SELECT $1::timestamptz", value)


async def test_endless_times_are_read(pair: tuple[Any, Any]) -> None:
    query = "SELECT ARRAY['infinity', '-infinity']::timestamptz[]"
    assert await pair[1].fetchval(query) == await pair[0].fetchval(query)
    for text in ("infinity", "-infinity"):
        plain, ours = [await conn.fetchval(f"SELECT '{text}'::timestamptz") for conn in pair]
        assert ours == plain
        assert await pair[1].fetchval("SELECT $1::timestamptz::text", ours) == text


async def test_a_time_that_utc_cannot_represent_is_infinite(pair: tuple[Any, Any]) -> None:
    east, west = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))
    for value, text in (
        (datetime(1, 1, 1, tzinfo=east), "-infinity"),
        (datetime(9999, 12, 31, 23, 59, tzinfo=west), "infinity"),
    ):
        assert await pair[1].fetchval("SELECT $1::timestamptz::text", value) == text
        assert await pair[1].fetchval("SELECT $1::timestamptz[]::text", [value]) == f"{{{text}}}"


async def test_intervals_with_months_are_read_as_asyncpg_reads_them(pair: tuple[Any, Any]) -> None:
    query = "SELECT ARRAY['1 year 2 months 3 days 04:05:06', '-14 months', '-1 month 2 days', '-3 days']::interval[]"
    assert await pair[1].fetchval(query) == await pair[0].fetchval(query)


async def test_endless_days_are_read(pair: tuple[Any, Any]) -> None:
    query = "SELECT ARRAY['infinity', '-infinity']::date[]"
    assert await pair[1].fetchval(query) == await pair[0].fetchval(query)


async def test_any_iterable_is_written(pair: tuple[Any, Any]) -> None:
    for values in ((1, 2), {1: None, 2: None}.keys(), range(1, 3)):
        assert await pair[1].fetchval("SELECT $1::int[]", values) == [1, 2]


async def test_connections_of_the_pool_have_them(database_url: str) -> None:
    pool = await open_pool(database_url, size=1)
    try:
        async with pool.acquire() as conn:
            # asyncpg's own codec accepts arrays of several dimensions.
            with pytest.raises(asyncpg.DataError):
                await conn.fetchval("SELECT $1::text[]", [["a"], ["b"]])
    finally:
        pool.terminate()
