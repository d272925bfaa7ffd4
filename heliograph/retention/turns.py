"""Taking turns: the budget of one round for organizations with a retention of their own.

Partitions are dropped for everybody, so rows that one organization deletes sooner are processed one by one, in the
order of their ids, which is chronological, from where the last round ended. Hundreds of organizations at once are
asked whether they have any such rows: most have none, and then they cost nothing more. The rule nobody may break: a
round reads and writes a bounded number of rows, and every organization gets its turn, however many there are and
however much data one of them has.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of, uuid7_floor

#: Maximum number of rows changed by one statement; of rows, statements and seconds per round.
STEP, ROWS, STATEMENTS, SECONDS = 2_000, 50_000, 500, 20.0
#: Longest and shortest time range of one statement.
LONGEST, SHORTEST = timedelta(days=1), timedelta(seconds=1)
#: A round begins this long before the end of the last one: ids are created before their rows are committed.
OVERLAP = timedelta(minutes=10)
#: After this time everything is scanned again, for rows that were not ready before.
AGAIN = timedelta(days=7)
#: Organizations that are asked at once whether they have anything to do.
AT_ONCE = 500
NIL, BEGINNING = UUID(int=0), datetime(1970, 1, 1, tzinfo=UTC)


class Budget:
    """The budget of a round."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + SECONDS
        self._rows, self._statements = ROWS, STATEMENTS

    def spend(self, rows: int) -> None:
        """Account for one statement, and the rows that it changed."""
        self._rows -= rows
        self._statements -= 1

    @property
    def is_spent(self) -> bool:
        """True if the round is over."""
        return self._rows <= 0 or self._statements <= 0 or time.monotonic() >= self._ends


#: Changes up to STEP rows between two times, at the budget's expense; returns how many it found.
Change = Callable[[datetime, datetime, Budget], Awaitable[int]]


class SweptRows(msgspec.Struct, frozen=True):
    """One organization's rows of a table, to be processed in the order of their ids."""

    #: Its name, or a query in parentheses, with the columns organization_id and id.
    table: str
    #: The name under which the last round's position is stored.
    name: str
    change: Change


class ExpiredRows(msgspec.Struct, frozen=True):
    """Rows that an organization deletes by a time of their own."""

    #: Follows FROM. {organization} and {until} stand for an organization and the time before which rows have expired.
    rows: str
    #: Deletes at most $3 of them. {rows} stands for the above.
    delete: str


class Turn(msgspec.Struct, frozen=True):
    """What one organization removes."""

    organization_id: UUID
    #: Rows younger than this stay.
    until: datetime
    #: In this order, and after them what else has expired.
    swept: Sequence[SweptRows]
    expired: Sequence[ExpiredRows]
    #: No rows before this are scanned; None: from the beginning.
    since: datetime | None = None


# The last organization that a round finished, and whether one before it has more.
TURN = """
SELECT (mark ->> 'last')::uuid AS last, (mark ->> 'more')::boolean AS more FROM retention_places WHERE name = $1
"""
PLACES = """
SELECT name, done_until, (mark ->> 'whole')::timestamptz AS whole,
       make_interval(secs => (mark ->> 'longest')::float8) AS longest
  FROM retention_places WHERE name = ANY ($1::text[])
"""
FIRST = "SELECT id FROM {table} one WHERE organization_id = $1 ORDER BY id LIMIT 1"
# Which of the organizations $1 have any rows between the ids $2 and $3; and which have any that expired before $2. The
# limit keeps each from being joined with the whole table.
ANY_SWEPT = """
SELECT asked.id FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS asked (id, first, past)
 CROSS JOIN LATERAL (
       SELECT FROM {table} one WHERE organization_id = asked.id AND one.id >= first AND one.id < past LIMIT 1) found
"""
ANY_EXPIRED = """
SELECT asked.id FROM unnest($1::uuid[], $2::timestamptz[]) AS asked (id, until)
 CROSS JOIN LATERAL (SELECT FROM {rows} LIMIT 1) found
"""
MOVE = """
INSERT INTO retention_places (name, done_until, mark) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET done_until = excluded.done_until, mark = excluded.mark
"""


async def in_turn(
    conn: Connection,
    name: str,
    organizations: str,
    turn: Callable[[asyncpg.Record, datetime], Turn],
) -> bool:
    """One round over the organizations that a statement returns after the id $1, in the order of their ids; `turn`
    makes the turn of one of them from its row, and the current time. Returns False if the round ended before everything
    was done.

    A round continues with the organization that the last one did not finish, and then the next ones.
    """
    budget = Budget()
    place = await conn.fetchrow(TURN, name)
    last, more = (place["last"], place["more"]) if place is not None else (NIL, False)
    now: datetime = await conn.fetchval("SELECT now()")
    turns = [turn(row, now) for row in await conn.fetch(organizations, last)]
    is_first = True
    for start in range(0, len(turns), AT_ONCE):
        some = turns[start : start + AT_ONCE]
        busy = await _busy(conn, some, now)
        budget.spend(0)
        for one in some:
            if one.organization_id in busy:
                try:
                    is_done = await _take(conn, one, now, budget)
                except Exception:
                    # Or the next round would fail here as well.
                    await _pass_on(conn, name, one.organization_id, more=True)
                    raise
                if not is_done:
                    if is_first:  # it had the whole round, and gets its next one after the others
                        last, more = one.organization_id, True
                    await _pass_on(conn, name, last, more=more)
                    return False
                is_first = False
            last = one.organization_id
        if budget.is_spent and start + AT_ONCE < len(turns):
            await _pass_on(conn, name, last, more=more)
            return False
    if place is not None:
        await _pass_on(conn, name, NIL, more=False)
    return not more


async def _pass_on(conn: Connection, name: str, last: UUID, *, more: bool) -> None:
    mark = msgspec.json.encode({"last": last, "more": more}).decode()
    await conn.execute(MOVE, name, await conn.fetchval("SELECT now()"), mark)


class _Position(msgspec.Struct, frozen=True):
    """Where the sweep of a table continues."""

    #: None: with the first row.
    start: datetime | None
    reached: datetime
    #: When everything was last scanned.
    whole: datetime
    longest: timedelta

    @classmethod
    def of(cls, place: asyncpg.Record | None, until: datetime, now: datetime) -> _Position:
        """From what the last round stored. A position ahead of `until`, or a scan ahead of now, was stored before the
        clock was set back."""
        if place is None or place["whole"] is None or not now - AGAIN < place["whole"] <= now:
            return cls(None, until, now, LONGEST)
        reached = min(place["done_until"], until)
        return cls(reached - OVERLAP, reached, place["whole"], place["longest"] or LONGEST)


async def _places(conn: Connection, names: Sequence[str]) -> Mapping[str, asyncpg.Record]:
    return {row["name"]: row for row in await conn.fetch(PLACES, names)}


async def _busy(conn: Connection, turns: Sequence[Turn], now: datetime) -> set[UUID]:
    """Those of these organizations that have anything to do."""
    places = await _places(conn, [swept.name for one in turns for swept in one.swept])
    found: set[UUID] = set()
    swept_of: defaultdict[str, list[tuple[UUID, UUID, UUID]]] = defaultdict(list)
    expired_of: defaultdict[str, list[tuple[UUID, datetime]]] = defaultdict(list)
    for one in turns:
        for swept in one.swept:
            place = places.get(swept.name)
            if place is not None and place["done_until"] > one.until:
                found.add(one.organization_id)  # which moves it back
            start = _Position.of(place, one.until, now).start
            first = max(start or BEGINNING, one.since or BEGINNING)
            swept_of[swept.table].append((one.organization_id, uuid7_floor(first), uuid7_floor(one.until)))
        for expired in one.expired:
            expired_of[expired.rows].append((one.organization_id, one.until))
    try:
        for table, asked in swept_of.items():
            sql = ANY_SWEPT.format(table=table)
            found.update(row["id"] for row in await conn.fetch(sql, *map(list, zip(*asked, strict=True))))
        for rows, due in expired_of.items():
            sql = ANY_EXPIRED.format(rows=rows.format(organization="asked.id", until="asked.until"))
            found.update(row["id"] for row in await conn.fetch(sql, *map(list, zip(*due, strict=True))))
    except asyncpg.QueryCanceledError:  # one of them has too much: each by itself
        return {one.organization_id for one in turns}
    return found


async def _take(conn: Connection, turn: Turn, now: datetime, budget: Budget) -> bool:
    """Process an organization; False: the round is over before that is done."""
    places = await _places(conn, [swept.name for swept in turn.swept])
    for swept in turn.swept:
        position = _Position.of(places.get(swept.name), turn.until, now)
        if not await _sweep(conn, turn, swept, position, budget):
            return False
    for expired in turn.expired:
        rows = expired.rows.format(organization="$1", until="$2")
        if not await _delete(conn, expired.delete.format(rows=rows), (turn.organization_id, turn.until), budget):
            return False
    return True


async def _sweep(conn: Connection, turn: Turn, swept: SweptRows, position: _Position, budget: Budget) -> bool:
    """Process an organization's ids in order, from where the last round ended; False: the round is over before that is
    done.

    The time range given to `change` grows while it finds little, and halves when it finds too much, or takes longer
    than a statement may because of what it does not find; the next rounds remember that.
    """
    start, reached, longest = position.start, position.reached, position.longest
    if start is None:
        first = await conn.fetchval(FIRST.format(table=swept.table), turn.organization_id)
        start = reached = turn.until if first is None else time_of(first)
    if turn.since is not None:
        start = max(start, turn.since)
    stretch = min(timedelta(hours=1), longest)
    while start < turn.until and not budget.is_spent:
        end = min(start + stretch, turn.until)
        try:
            done = await swept.change(start, end, budget)
        except asyncpg.QueryCanceledError:
            if stretch <= SHORTEST:
                raise
            done, longest = 0, max(stretch / 2, SHORTEST)
            stretch = longest
        else:
            if done < STEP:
                start, stretch = end, min(stretch * 2, longest)
            else:
                stretch = max(stretch / 2, SHORTEST)
        budget.spend(done)
        reached = max(start, reached)
        mark = {"whole": position.whole} | ({"longest": longest.total_seconds()} if longest < LONGEST else {})
        await conn.execute(MOVE, swept.name, reached, msgspec.json.encode(mark).decode())
    return start >= turn.until


async def _delete(conn: Connection, sql: str, arguments: Sequence[object], budget: Budget) -> bool:
    """Repeat a statement whose last parameter limits the number of rows that it deletes; False: the round is over
    before they are gone."""
    while not budget.is_spent:
        done = int((await conn.execute(sql, *arguments, STEP)).rpartition(" ")[2])
        budget.spend(done)
        if done < STEP:
            return True
    return False
