"""UUIDv7: order, format, and the bounds of a period."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.ids import BACK, day_of, just_above, place_of, time_of, uuid7, uuid7_floor, uuid7_text

TIMES = st.integers(946_684_800_000, 7_258_118_400_000).map(
    lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
)


def test_ids_sort_by_the_order_they_were_made_in() -> None:
    ids = [uuid7() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_ids_of_one_process_have_places_in_their_order() -> None:
    places = [place_of(uuid7()) for _ in range(20_000)]
    assert places == sorted(set(places))
    assert max(places) < 2**63


def test_a_text_is_an_id_in_its_usual_form() -> None:
    texts = [uuid7_text() for _ in range(2_000)]
    assert texts == sorted(texts)
    assert all(str(UUID(text)) == text and UUID(text).version == 7 for text in texts)


def test_they_are_version_7_and_carry_their_time() -> None:
    ids = [uuid7() for _ in range(100)]
    now = datetime.now(UTC)
    for id in ids:
        assert (id.version, id.variant) == (7, RFC_4122)
        # Their clock is that of the database as known to this process, and they may be ahead of it by BACK.
        assert abs(time_of(id) - now) < timedelta(milliseconds=2 * BACK)


@given(TIMES)
def test_the_floor_of_a_time_is_the_first_id_of_its_millisecond(at: datetime) -> None:
    floor = uuid7_floor(at)
    assert (floor.version, floor.variant) == (7, RFC_4122)
    assert (time_of(floor), day_of(floor)) == (at, at.date())
    assert uuid7_floor(at - timedelta(milliseconds=1)) < floor < uuid7_floor(at + timedelta(milliseconds=1))
    assert floor.int & 0xFFF_3FFF_FFFF_FFFF_FFFF == 0


def test_no_id_is_older_than_1970() -> None:
    first = uuid7_floor(datetime(1970, 1, 1, tzinfo=UTC))
    assert uuid7_floor(datetime(569, 7, 16, tzinfo=UTC)) == uuid7_floor(datetime.min.replace(tzinfo=UTC)) == first


def test_an_id_lies_between_the_floors_around_it() -> None:
    at = datetime.now(UTC)
    assert uuid7_floor(at - timedelta(seconds=1)) < uuid7() < uuid7_floor(at + timedelta(seconds=60))


def test_the_last_id_has_none_above_it() -> None:
    last = UUID(int=2**128 - 1)
    assert [just_above(UUID(int=7)), just_above(last)] == [UUID(int=8), last]
