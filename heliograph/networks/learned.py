"""What was learned about single numbers from receipts and look-ups that name a network; kept for 90 days.

A number's row belongs to the month in which it was last learned, so that old rows are dropped with their partition. The
rule nobody may break: an erased person's numbers are deleted here too, in all their spellings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from heliograph.base import phones
from heliograph.base.database.pool import Connection, Pool
from heliograph.networks import plan

#: How long it remains valid; after that, the number may have been ported again.
KEPT = timedelta(days=90)
#: The same information is not rewritten before this.
RENEWED = timedelta(days=7)
#: Numbers per statement.
STEP = 20_000
#: First digits of mobile country codes (E.212); others belong to test networks.
_CONTINENTS = "234567"
RECEIPT, LOOKUP = "receipt", "lookup"


class LearnedNetwork(msgspec.Struct, frozen=True, gc=False):
    """What was learned about a number."""

    #: Its digits as a number: +258841234567 is 258841234567.
    number: int
    #: "643-04".
    network: str
    #: RECEIPT or LOOKUP.
    source: str


def network_of(text: str) -> str:
    """ "643-04", from a supplier's spelling of a network: "64304", "643-04" or "643 04"; empty if it is not one. Zeros
    that a program lost or added are corrected if exactly one network then matches: "6434", "643004"."""
    digits = text.replace("-", "").replace(" ", "")
    if not (digits.isascii() and digits.isdigit() and 4 <= len(digits) <= 6 and digits[0] in _CONTINENTS):
        return ""
    network = f"{digits[:3]}-{digits[3:]}"
    return plan.meant(network) or (network if len(digits) > 4 else "")


class Notes:
    """Networks named in receipts, collected by a worker until its timer stores them."""

    #: Maximum number collected; the rest is learned from later receipts.
    MOST = 20_000

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def add(self, number: str, network: str) -> None:
        """Note that a receipt for a number (digits, with or without +) named a network."""
        e164 = phones.parse(number)
        key = network_of(network)
        if e164 is not None and key and len(self._known) < self.MOST:
            self._known[int(e164[1:])] = key

    async def store(self, conn: Connection) -> None:
        """Store what was collected; if that fails, it is kept for the next time."""
        known, self._known = self._known, {}
        if not known:
            return
        try:
            await learn(conn, [LearnedNetwork(number, network, RECEIPT) for number, network in known.items()])
        except BaseException:  # also if this task is cancelled
            self._known = known | self._known
            raise


# Ordered by key, so that two workers cannot deadlock. Known and recent rows are not rewritten: the row of a number that
# gets ten messages a day is written once a week.
LEARN = """
INSERT INTO number_networks AS known (number, learned_on, network, source, learned_at)
SELECT number, date_trunc('month', now() AT TIME ZONE 'UTC')::date, network, source, now()
  FROM unnest($1::bigint[], $2::text[], $3::text[]) AS item (number, network, source) ORDER BY number
    ON CONFLICT (number, learned_on) DO UPDATE
   SET network = excluded.network, source = excluded.source, learned_at = excluded.learned_at
 WHERE known.network <> excluded.network OR known.learned_at < now() - $4::interval
"""


async def learn(conn: Connection, some: Iterable[LearnedNetwork]) -> None:
    """Store what was learned; the last entry for a number counts."""
    last = {one.number: one for one in some}
    ordered = [last[number] for number in sorted(last)]
    await conn.execute(
        LEARN,
        [one.number for one in ordered],
        [one.network for one in ordered],
        [one.source for one in ordered],
        RENEWED,
    )


# A number that was learned in two different months has two rows; the more recent one counts.
PAGE = """
SELECT DISTINCT ON (number) number, network, source FROM number_networks
 WHERE number > $1 AND learned_at > now() - $2::interval ORDER BY number, learned_at DESC LIMIT $3
"""


async def page(conn: Connection | Pool, *, after: int) -> list[LearnedNetwork]:
    """What is known about numbers above `after`: up to STEP of them, in order."""
    return [LearnedNetwork(*row) for row in await conn.fetch(PAGE, after, KEPT, STEP)]


# By number within the same time: a statement stores up to STEP numbers with one timestamp. Those of times to come are
# from before the clock was set back, and would be read again each time until then.
SINCE = """
SELECT number, network, source, learned_at FROM number_networks
 WHERE (learned_at, number) > ($1, $2) AND learned_at < now() + interval '5 seconds'
 ORDER BY learned_at, number LIMIT $3
"""


async def since(
    conn: Connection | Pool, at: datetime, number: int = 0
) -> tuple[list[LearnedNetwork], tuple[datetime, int]]:
    """What was learned after a place, which is a time and the last number of that time: up to STEP entries, in order,
    and the place to continue from."""
    rows = await conn.fetch(SINCE, at, number, STEP)
    place = (rows[-1]["learned_at"], rows[-1]["number"]) if rows else (at, number)
    return [LearnedNetwork(row["number"], row["network"], row["source"]) for row in rows], place


FORGET = """
WITH gone AS (DELETE FROM number_networks WHERE number = ANY ($1) RETURNING number) SELECT count(*)::int FROM gone
"""


async def forget(conn: Connection, numbers: Sequence[str]) -> int:
    """Delete numbers (E.164); returns how many were known. Processes that hold them in memory drop them within an
    hour."""
    count: int = await conn.fetchval(FORGET, [int(one[1:]) for one in numbers])
    return count
