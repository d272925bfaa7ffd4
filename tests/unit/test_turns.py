"""Turns: no waiting organization is skipped, and none is served twice before all were served once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from heliograph.queue.turns import SHARE, Got, LineRequest, Turns

LINE = UUID(int=77)
START = datetime(2026, 1, 1, tzinfo=UTC)
Key = tuple[int, UUID]


class Table:
    """Rows of one line as the database would return them, and a worker's knowledge of them."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.rows: dict[Key, list[datetime]] = {}
        self.time = START

    def put(self, organization: int, count: int, *, lane: int = 0, known: bool = True) -> None:
        key = (lane, UUID(int=organization))
        places = [self.time + timedelta(seconds=n) for n in range(count)]
        self.time += timedelta(seconds=count)
        self.rows.setdefault(key, []).extend(places)
        if known and count:
            self.turns.add(LINE, lane, key[1], places[0], count)

    def take(self, organization: int, count: int, *, lane: int = 0) -> None:
        """Another worker takes the first rows."""
        del self.rows[lane, UUID(int=organization)][:count]

    def claim(self, places: int) -> Counter[Key]:
        """Like `Backlog.claim`."""
        taken: Counter[Key] = Counter()
        while not taken and (asks := self.turns.ask({LINE: places})):
            got = self.answer(asks)
            taken.update({(lane, organization): count for (_, lane, organization), (count, _) in got.items()})
            self.turns.took(asks, got)
        return taken

    def answer(self, asks: list[LineRequest]) -> dict[tuple[UUID, int, UUID], tuple[int, datetime]]:
        """Like the database: group after group, until the places are used up."""
        got: dict[tuple[UUID, int, UUID], tuple[int, datetime]] = {}
        for ask in asks:
            left = ask.free
            for one in ask.asked:
                key = (one.group.lane, one.group.organization_id)
                known = [place for place in sorted(self.rows.get(key, [])) if place >= one.place]
                rows = known[: min(one.most, left)]
                for place in rows:
                    self.rows[key].remove(place)
                if rows:
                    got[LINE, *key] = (len(rows), rows[-1])
                    left -= len(rows)
        return got

    def waiting(self) -> int:
        return sum(map(len, self.rows.values()))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Estimates may be wrong either way: rows that are not known, and rows that another worker has taken."""
    table = Table()
    for organization in range(1, draw(st.integers(1, 12)) + 1):
        lane = draw(st.integers(0, 1))
        count = draw(st.integers(1, 30))
        table.put(organization, count, lane=lane)
        table.put(organization, draw(st.integers(0, 5)), lane=lane, known=False)
        table.take(organization, draw(st.integers(0, count)), lane=lane)
    return table


@given(tables(), st.integers(1, 40))
def test_everything_is_taken_and_then_nobody_is_thought_to_wait(table: Table, places: int) -> None:
    """Also if others were faster with those whose turn it is: a claim finds something while anybody waits."""
    while waiting := table.waiting():
        assert 0 < table.claim(places).total() <= min(places, waiting)
    assert not table.claim(places)
    assert (bool(table.turns), table.turns.lines(10)) == (False, [])


@given(tables(), st.integers(1, 40))
def test_with_true_estimates_no_place_stays_empty(table: Table, places: int) -> None:
    while waiting := table.waiting():
        table.turns.clear()
        for (lane, organization), rows in table.rows.items():
            if rows:
                table.turns.add_all(LINE, lane, organization, rows[0], len(rows))
        assert table.claim(places).total() == min(places, waiting)


@given(st.lists(st.integers(1, 60), min_size=2, max_size=20), st.integers(1, 60), st.integers(1, 10))
def test_of_two_who_wait_neither_is_ahead_by_more_than_a_row_a_claim(
    counts: list[int], places: int, claims: int
) -> None:
    """Whatever their backlog; and if there are more of them than places, with a difference of one row at most."""
    table = Table()
    for organization, count in enumerate(counts, 1):
        table.put(organization, count)
    served: Counter[Key] = Counter()
    for _ in range(claims):
        served += table.claim(places)
    waiting = [served[key] for key, rows in table.rows.items() if rows]
    if waiting:
        assert max(waiting) - min(waiting) <= (1 if len(waiting) > places else claims)


@given(st.integers(1, 64), st.integers(1, 40))
def test_lane_1_gets_its_share_and_no_more_while_lane_0_waits(places: int, claims: int) -> None:
    table = Table()
    table.put(1, places * claims + 1)
    table.put(2, places * claims + 1, lane=1)
    lanes: Counter[int] = Counter()
    for _ in range(claims):
        for (lane, _), count in table.claim(places).items():
            lanes[lane] += count
    assert lanes.total() == places * claims
    assert abs(lanes[1] - places * claims / SHARE) <= 1


def test_what_is_not_claimed_after_all_waits_in_its_place() -> None:
    table = Table()
    table.put(1, 5)
    table.put(2, 1)
    asks = table.turns.ask({LINE: 10})
    table.turns.took(asks, {(LINE, 0, UUID(int=1)): (5, START), (LINE, 0, UUID(int=2)): (1, START)})
    assert not table.turns
    table.turns.give_back(asks)
    assert table.claim(10).total() == 6


def test_a_row_that_comes_at_an_earlier_place_while_a_claim_runs_is_asked_for_next() -> None:
    table = Table()
    table.put(1, 5)
    asks = table.turns.ask({LINE: 2})
    earlier = START - timedelta(hours=1)
    table.turns.add(LINE, 0, UUID(int=1), earlier, 1)
    table.turns.took(asks, {(LINE, 0, UUID(int=1)): (2, START + timedelta(seconds=1))})
    (ask,) = table.turns.ask({LINE: 2})
    assert [one.place for one in ask.asked] == [earlier]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)))),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), min_size=1, max_size=30),
)
def test_what_is_read_while_a_claim_runs_is_not_forgotten(
    claims: list[tuple[int, int, list[tuple[int, int]]]], first: list[tuple[int, int]]
) -> None:
    """The claim does not see what is committed after it began; the poll beside it does, wherever in the line it is."""
    table = Table()

    def come(rows: list[tuple[int, int]]) -> None:
        for organization, second in rows:
            place = START + timedelta(seconds=second)
            table.rows.setdefault((0, UUID(int=organization)), []).append(place)
            table.turns.add(LINE, 0, UUID(int=organization), place, 1)

    come(first)
    running: list[tuple[list[LineRequest], Got]] = []
    for at_once, places, rows in claims:
        for _ in range(at_once):
            asks = table.turns.ask({LINE: places})
            running.append((asks, table.answer(asks)))
        come(rows)
        while running:
            table.turns.took(*running.pop())
    while table.waiting():
        assert table.claim(50)


def test_of_many_lines_others_are_told_each_time() -> None:
    turns = Turns()
    lines = [UUID(int=n) for n in range(1, 8)]
    for line in lines:
        turns.add(line, 0, line, START, 1)
    told = [turns.lines(3) for _ in range(7)]
    assert Counter(line for some in told for line in some) == dict.fromkeys(lines, 3)
    assert turns.found() == lines
    assert turns.found() == []
    turns.add(lines[4], 1, lines[0], START, 1)
    assert turns.found() == [lines[4]]
