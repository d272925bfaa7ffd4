"""Look-ups of numbers: the queue of numbers to look up, the answers, and their cost.

A number's row belongs to the month of its request, and is deleted after 90 days with its partition. A worker about to
send to a number calls `ask` in the transaction that makes its message wait; any worker continues from there. The rule
nobody may break: a number has at most one look-up at a time, and an erased person's numbers are erased here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from uuid import UUID

import msgspec

from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, follow_clock
from heliograph.base.database.text import storable
from heliograph.networks.learned import KEPT

#: When to retry a look-up that failed, and one that found nothing.
FAILED, UNKNOWN = timedelta(hours=1), timedelta(days=7)
#: How long a worker has for the numbers that it took; then another worker looks them up, and they are paid for again.
#: It is longer than asking, the answer and storing it may take (`sms/lookups/asking.py`).
TAKEN = timedelta(minutes=7)
#: A look-up that is still waiting after this has failed: the supplier was paused or removed, or is too slow.
NOBODY = timedelta(minutes=10)
#: How many numbers may wait to be looked up; beyond that, messages are routed by the number's range.
MOST_OPEN = 1_000
#: SQL condition on a row: it may be taken. One that was requested in times to come, before the clock was set back,
#: would wait until that time comes again.
_DUE = f"(coalesce(taken_until, asked_at) <= now() OR (taken_until IS NULL AND asked_at > {clock.LATEST}))"
#: SQL condition: there are numbers to look up.
ANY = f"EXISTS (SELECT FROM number_lookups WHERE state = 'asked' AND {_DUE})"


class State(msgspec.Struct, frozen=True):
    """The last look-up of a number."""

    #: "asked", "found", "unknown" or "failed".
    state: str
    network: str
    #: Time since it was requested.
    age: timedelta

    @property
    def is_due(self) -> bool:
        """True if the number may be looked up again."""
        return self.state in ("failed", "unknown") and self.age > (FAILED if self.state == "failed" else UNKNOWN)


STATES = """
SELECT DISTINCT ON (number) number, state, network, now() - asked_at AS age FROM number_lookups
 WHERE number = ANY ($1) AND asked_on >= date_trunc('month', now() AT TIME ZONE 'UTC' - $2::interval)::date
   AND asked_at > now() - $2::interval
 ORDER BY number, asked_at DESC
"""


async def states(conn: Connection, numbers: Sequence[int]) -> dict[int, State]:
    """The last look-up of each number that had one within 90 days."""
    rows = await conn.fetch(STATES, numbers, KEPT)
    return {row["number"]: State(row["state"], row["network"], row["age"]) for row in rows}


OPEN = "SELECT count(*)::int FROM (SELECT FROM number_lookups WHERE state = 'asked' LIMIT $1) AS waiting"
# What was paid for rows that will belong to another supplier, or be counted in another currency, stays as it is, under
# a random number that nobody can have.
_KEEP_PAID = """
INSERT INTO number_lookups (number, asked_on, supplier_id, state, times, price, currency, asked_at)
SELECT -1 - floor(random() * 9e15)::bigint, asked_on, supplier_id, CASE state WHEN 'asked' THEN 'failed' ELSE state END,
       times, price, currency, asked_on::timestamp AT TIME ZONE 'UTC'
  FROM {rows} WHERE times > 0
    ON CONFLICT DO NOTHING
"""
# Ordered by key, so that two workers cannot deadlock. What is answered while this waits for a row has just been asked
# for by somebody else, and is left as it is.
ASK = f"""
WITH item AS MATERIALIZED (
    SELECT number, date_trunc('month', now() AT TIME ZONE 'UTC')::date AS asked_on, supplier_id
      FROM unnest($1::bigint[], $2::uuid[]) AS given (number, supplier_id)
), held AS MATERIALIZED (
    SELECT l.*, item.supplier_id AS other FROM (SELECT * FROM item ORDER BY number) item CROSS JOIN LATERAL (
           SELECT * FROM number_lookups
            WHERE number = item.number AND asked_on = item.asked_on AND state IN ('failed', 'unknown')
            LIMIT 1 FOR UPDATE) l
), moved AS MATERIALIZED (
    SELECT * FROM held WHERE supplier_id <> other
), paid AS ({_KEEP_PAID.format(rows="moved")})
INSERT INTO number_lookups AS known (number, asked_on, supplier_id, state, asked_at)
SELECT item.number, item.asked_on, item.supplier_id, 'asked', now()
  FROM item LEFT JOIN held USING (number, asked_on) ORDER BY item.number
    ON CONFLICT (number, asked_on) DO UPDATE
   SET supplier_id = excluded.supplier_id, state = 'asked', network = '', detail = '', asked_at = excluded.asked_at,
       taken_until = NULL, times = CASE known.supplier_id WHEN excluded.supplier_id THEN known.times ELSE 0 END,
       price = CASE known.supplier_id WHEN excluded.supplier_id THEN known.price ELSE 0 END,
       currency = CASE known.supplier_id WHEN excluded.supplier_id THEN known.currency ELSE '' END
 WHERE known.state IN ('failed', 'unknown') AND known.number IN (SELECT number FROM held)
"""


async def ask(conn: Connection, some: Mapping[int, UUID]) -> set[int]:
    """Queue numbers for look-up, each by its supplier; returns those queued, as far as there was room."""
    room = MOST_OPEN - await conn.fetchval(OPEN, MOST_OPEN)
    numbers = sorted(some)[: max(0, room)]
    if numbers:
        await conn.execute(ASK, numbers, [some[one] for one in numbers])
    return set(numbers)


TAKE = f"""
UPDATE number_lookups l SET taken_until = now() + $3::interval
  FROM (SELECT number, asked_on FROM number_lookups
         WHERE supplier_id = $1 AND state = 'asked' AND {_DUE} AND (taken_until IS NULL OR $4)
         ORDER BY asked_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS taken
 WHERE l.number = taken.number AND l.asked_on = taken.asked_on
RETURNING l.number
"""


async def take(conn: Connection, supplier_id: UUID, *, limit: int) -> list[int]:
    """Take numbers for a supplier to look up now. After the database's clock was set forward, only those that no worker
    has taken yet: others may be being asked for, and cost again."""
    await follow_clock(conn)
    again = clock.since_forward() > TAKEN.total_seconds()
    return [row["number"] for row in await conn.fetch(TAKE, supplier_id, limit, TAKEN, again)]


# Otherwise a paused supplier's numbers would take up the room of other suppliers'. Those that a worker has taken get an
# answer.
GIVE_UP = """
UPDATE number_lookups l SET state = 'failed', detail = 'nobody asked', taken_until = NULL
  FROM (SELECT number, asked_on FROM number_lookups WHERE state = 'asked' AND asked_at < now() - $1::interval
           AND coalesce(taken_until <= now(), true) ORDER BY number LIMIT 1000 FOR UPDATE SKIP LOCKED) AS old
 WHERE l.number = old.number AND l.asked_on = old.asked_on
"""


async def give_up(conn: Connection) -> None:
    """Fail look-ups that have waited too long to be useful for a message. After the database's clock was set forward,
    they have not waited as long as it seems: the answer to one that is under way is paid for."""
    await follow_clock(conn)
    if clock.since_forward() > NOBODY.total_seconds():
        await conn.execute(GIVE_UP, NOBODY)


# What was paid for a number that nobody waits for any more, because the person was erased or another worker has looked
# it up too, is kept in the same way, unless ($9) it may be what an earlier try has stored.
ANSWERED = f"""
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $7::int[]) AS given (number, state, network, times)
), held AS MATERIALIZED (
    SELECT * FROM number_lookups WHERE number = ANY ($1) AND state = 'asked' AND supplier_id = $8
     ORDER BY number FOR UPDATE
), moved AS MATERIALIZED (
    SELECT number, asked_on, supplier_id, state, times, price, currency FROM held WHERE currency <> $6
     UNION ALL
    SELECT number, date_trunc('month', now() AT TIME ZONE 'UTC')::date, $8::uuid, state, times, times * $5::bigint, $6
      FROM item WHERE NOT $9 AND number NOT IN (SELECT number FROM held)
), paid AS ({_KEEP_PAID.format(rows="moved")})
UPDATE number_lookups l
   SET state = item.state, network = item.network, detail = $4, answered_at = now(), taken_until = NULL,
       times = CASE l.currency WHEN $6 THEN l.times ELSE 0 END + item.times,
       price = CASE l.currency WHEN $6 THEN l.price ELSE 0 END + item.times * $5, currency = $6
  FROM held JOIN item USING (number)
 WHERE l.number = held.number AND l.asked_on = held.asked_on
RETURNING l.number
"""


async def answered(
    conn: Connection,
    numbers: Sequence[int],
    told: Mapping[int, str],
    *,
    supplier_id: UUID,
    error: str,
    price: int,
    currency: str,
    again: bool = False,
) -> set[int]:
    """Store the answers: networks by number ("643-04"), empty where the supplier knows none. A number without an answer
    has failed, and costs nothing. Returns the numbers that were still waiting: no other may be stored. `price`: per
    number, in millionths. `again`: an earlier try may have been committed."""
    ordered = sorted(numbers)
    states = ["failed" if one not in told else "found" if told[one] else "unknown" for one in ordered]
    networks = [told.get(one, "") for one in ordered]
    paid = [int(one in told) for one in ordered]
    detail = storable(error, 200)
    rows = await conn.fetch(ANSWERED, ordered, states, networks, detail, price, currency, paid, supplier_id, again)
    return {row["number"] for row in rows}


# By the month of the request, so that nothing is counted in two months.
SPENT = """
SELECT supplier_id, asked_on AS month, currency, count(*)::int AS numbers, sum(times)::int AS charged,
       count(*) FILTER (WHERE state = 'found')::int AS found, count(*) FILTER (WHERE state = 'unknown')::int AS unknown,
       count(*) FILTER (WHERE state = 'failed')::int AS failed, sum(price)::bigint AS price
  FROM number_lookups GROUP BY 1, 2, 3 ORDER BY 2 DESC, 1, 3
"""


class MonthlyLookups(msgspec.Struct, frozen=True):
    """Look-ups of a month."""

    supplier_id: UUID
    #: Its first day, in UTC.
    month: date
    currency: str
    numbers: int
    #: How many were answered, and therefore charged.
    charged: int
    found: int
    unknown: int
    failed: int
    #: Millionths.
    price: int


async def spent(conn: Connection) -> list[MonthlyLookups]:
    """The cost of look-ups by month and supplier, latest first, over 90 days."""
    return [MonthlyLookups(*row) for row in await conn.fetch(SPENT)]


FORGET = f"""
WITH gone AS (
    DELETE FROM number_lookups WHERE number = ANY ($1) RETURNING asked_on, supplier_id, state, times, price, currency
)
{_KEEP_PAID.format(rows="gone")}
"""


async def forget(conn: Connection, numbers: Iterable[str]) -> None:
    """Forget numbers (E.164), but not what was paid for them."""
    await conn.execute(FORGET, [int(one[1:]) for one in numbers])
