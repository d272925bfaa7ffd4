"""Why a message went to a supplier: an eight-byte number stored with the attempt, and the sentence it stands for.

There are few distinct decisions: the sentence of each, with its values, is one row of `route_decisions`, keyed by its
digest, which attempts reference. The rule nobody may break: the decision that an attempt references is committed with
the attempt, worded as of that moment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from uuid import UUID

from heliograph.base.database.pool import Connection
from heliograph.base.sentences import packed
from heliograph.routes import words
from heliograph.routes.lookup import Candidates

#: How many decisions a worker remembers; beyond that, it forgets all of them.
MOST = 10_000


class Decisions:
    """The decisions of one worker."""

    def __init__(
        self,
        names: Callable[[], Mapping[UUID, str]],
        facts: Callable[[Candidates], Mapping[UUID, str]] = lambda _: {},
    ) -> None:
        """`names`: the suppliers' current names. `facts`: what to add to candidates' names, such as price and quality;
        when these change, call `renew`."""
        self._names = names
        self._facts = facts
        #: Values hold a reference to the candidates: while it exists, no other object can have the same id().
        self._made: dict[tuple[int, tuple[tuple[UUID, str], ...]], tuple[Candidates, int]] = {}
        self._words: dict[int, str] = {}
        #: The day on which each was last stored, and those stored by a transaction that may still fail.
        self._stored: dict[int, date] = {}
        self._storing: dict[int, date] = {}

    def number(self, found: Candidates, skipped: tuple[tuple[UUID, str], ...] = ()) -> int:
        """The number of this decision. `skipped`: the candidates that were not tried, each with the reason."""
        known = self._made.get((id(found), skipped))
        if known is not None:
            return known[1]
        if len(self._made) >= MOST or len(self._words) >= MOST:
            self._made.clear()
            self._words.clear()
            self._stored.clear()
        sentence = words.explained(found, names=self._names(), facts=self._facts(found), skipped=dict(skipped))
        said = packed(sentence)
        number = int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "big", signed=True)
        self._made[id(found), skipped] = (found, number)
        self._words[number] = said
        return number

    def renew(self) -> None:
        """Recreate the wording of all decisions made from now on."""
        self._made.clear()

    def begin(self) -> None:
        """To be called before each transaction that may `store`: the last one may have failed."""
        self._storing = {}

    async def store(self, conn: Connection, numbers: Iterable[int | None], *, at: datetime) -> None:
        """Store the sentences that are not stored yet, or were last stored on an earlier day, in the transaction that
        begins their attempts. `at`: now, by the database's clock."""
        today = at.date()
        due = sorted({one for one in numbers if one is not None and self._stored.get(one) != today})
        due = [one for one in due if one in self._words]
        if due:
            await conn.execute(STORE, due, [self._words[one] for one in due], today)
            self._storing |= dict.fromkeys(due, today)

    def committed(self) -> None:
        """To be called once the transaction has committed."""
        self._stored |= self._storing


# Ordered, so that two workers that store the same ones cannot deadlock.
STORE = """
INSERT INTO route_decisions AS known (id, said, used_on)
SELECT id, said, $3 FROM unnest($1::bigint[], $2::text[]) AS item (id, said) ORDER BY id
ON CONFLICT (id) DO UPDATE SET used_on = greatest(known.used_on, excluded.used_on)
 WHERE known.used_on < excluded.used_on
"""
