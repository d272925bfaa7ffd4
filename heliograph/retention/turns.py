"""Taking turns: the budget of one round for organizations with a retention of their own.

Partitions are dropped for everybody, so rows that one organization deletes sooner are processed one by one, in the
order of their ids, which is chronological, from where the last round ended. The rule nobody may break: a round reads
and writes a bounded number of rows, and every organization gets its turn, however many there are and however much data
one of them has.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of

#: Maximum number of rows changed by one statement; of rows, statements and seconds per round.
STEP, ROWS, STATEMENTS, SECONDS = 2_000, 50_000, 500, 20.0
#: Longest and shortest time range of one statement.
LONGEST, SHORTEST = timedelta(days=1), timedelta(seconds=1)
#: A round begins this long before the end of the last one: ids are created before their rows are committed.
OVERLAP = timedelta(minutes=10)
#: After this time everything is scanned again, for rows that were not ready before.
AGAIN = timedelta(days=7)
NIL = UUID(int=0)


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


class SweptRows(msgspec.Struct, frozen=True):
    """One organization's rows of one kind."""

    organization_id: UUID
    #: The name under which the last round's position is stored.
    name: str
    #: A query for its first id; $1 is the organization.
    first: str
    #: Rows younger than this stay.
    until: datetime
    #: Nothing before this is scanned; None: from the beginning.
    since: datetime | None = None


#: Changes up to STEP rows between two times; returns how many it found.
Change = Callable[[datetime, datetime], Awaitable[int]]

# The last organization that a round finished, and whether one before it has more.
TURN = """
SELECT (mark ->> 'last')::uuid AS last, (mark ->> 'more')::boolean AS more FROM retention_places WHERE name = $1
"""
PLACE = """
SELECT done_until, (mark ->> 'whole')::timestamptz AS whole,
       make_interval(secs => (mark ->> 'longest')::float8) AS longest FROM retention_places WHERE name = $1
"""
MOVE = """
INSERT INTO retention_places (name, done_until, mark) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET done_until = excluded.done_until, mark = excluded.mark
"""


async def in_turn(
    conn: Connection,
    name: str,
    organizations: str,
    work: Callable[[asyncpg.Record, Budget], Awaitable[bool]],
) -> bool:
    """One round over the organizations that a statement returns after the id $1, in the order of their ids. `work`
    returns False if the round ended before it was done; so does this function, if there is more to do.

    A round continues with the organization that the last one did not finish, and then the next ones.
    """
    budget = Budget()
    place = await conn.fetchrow(TURN, name)
    last, more = (place["last"], place["more"]) if place is not None else (NIL, False)
    for number, row in enumerate(await conn.fetch(organizations, last)):
        try:
            is_done = await work(row, budget)
        except Exception:
            await _pass_on(conn, name, row["id"], more=True)  # or the next round would fail here as well
            raise
        if not is_done:
            if number == 0:  # it had the whole round, and gets its next one after the others
                last, more = row["id"], True
            await _pass_on(conn, name, last, more=more)
            return False
        last = row["id"]
    if place is not None:
        await _pass_on(conn, name, NIL, more=False)
    return not more


async def _pass_on(conn: Connection, name: str, last: UUID, *, more: bool) -> None:
    mark = msgspec.json.encode({"last": last, "more": more}).decode()
    await conn.execute(MOVE, name, await conn.fetchval("SELECT now()"), mark)


async def sweep(conn: Connection, swept: SweptRows, change: Change, budget: Budget) -> bool:
    """Process an organization's ids in order, from where the last round ended; False: the round is over before that is
    done. A position ahead of `until`, or a scan ahead of now, was stored before the clock was set back.

    The time range given to `change` grows while it finds little, and halves when it finds too much, or takes longer
    than a statement may because of what it does not find; the next rounds remember that.
    """
    now: datetime = await conn.fetchval("SELECT now()")
    place = await conn.fetchrow(PLACE, swept.name)
    longest = LONGEST
    if place is not None and place["whole"] is not None and now - AGAIN < place["whole"] <= now:
        reached, whole = min(place["done_until"], swept.until), place["whole"]
        start, longest = reached - OVERLAP, place["longest"] or LONGEST
    else:
        first = await conn.fetchval(swept.first, swept.organization_id)
        start, whole = (swept.until if first is None else time_of(first)), now
        reached = start
    if swept.since is not None:
        start = max(start, swept.since)
    stretch = min(timedelta(hours=1), longest)
    while start < swept.until and not budget.is_spent:
        end = min(start + stretch, swept.until)
        try:
            done = await change(start, end)
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
        mark = {"whole": whole} | ({"longest": longest.total_seconds()} if longest < LONGEST else {})
        await conn.execute(MOVE, swept.name, reached, msgspec.json.encode(mark).decode())
    return start >= swept.until


async def delete(conn: Connection, sql: str, arguments: Sequence[object], budget: Budget) -> bool:
    """Repeat a statement whose last parameter limits the number of rows that it deletes; False: the round is over
    before they are gone."""
    while not budget.is_spent:
        done = int((await conn.execute(sql, *arguments, STEP)).rpartition(" ")[2])
        budget.spend(done)
        if done < STEP:
            return True
    return False
