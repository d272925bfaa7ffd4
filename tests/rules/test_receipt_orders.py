"""Every order in which a response and receipts can arrive, one by one and batched: a message's final status follows
from the receipts alone, each receipt is on record once, and there is one event at most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple
from uuid import UUID

import pytest

from heliograph.base.database.pool import Pool
from heliograph.sms.status import BY_RECEIPT
from heliograph.suppliers.contract import Outcome, Part, ReceiptState, Verdict
from tests.rules.dispatching import Bench
from tests.rules.factories import endpoint, message, organization, receipt

STATES = (*BY_RECEIPT, ReceiptState.PENDING, ReceiptState.UNKNOWN)
ANSWER = None


class Word(NamedTuple):
    """The state that a receipt reports for a part."""

    part: int
    state: ReceiptState


class Course(NamedTuple):
    """What arrives, in this order; `cuts`: the steps after which a transaction ends."""

    parts: int
    steps: tuple[Word | None, ...]
    cuts: tuple[bool, ...]

    @property
    def batches(self) -> list[list[Word | None]]:
        found: list[list[Word | None]] = [[]]
        for step, cut in zip(self.steps, (*self.cuts, False), strict=True):
            found[-1].append(step)
            if cut:
                found.append([])
        return found

    @property
    def ends(self) -> set[str]:
        """The possible final statuses of the message. The first receipt of a part counts, except for a delivery after
        expiry."""
        said: dict[int, str] = {}
        for step in self.steps:
            word = BY_RECEIPT.get(step.state) if step is not ANSWER else None
            if step is not ANSWER and word is not None and (step.part not in said or _late(said[step.part], word)):
                said[step.part] = word
        if set(said.values()) == {"delivered"} and len(said) == self.parts:
            return {"delivered"}
        # Of several failed parts, whichever is reported first; one that was delivered after all failed first.
        heard = [
            step for step in self.steps if step is not ANSWER and BY_RECEIPT.get(step.state, "delivered") != "delivered"
        ]
        if all(word == "delivered" for word in said.values()):
            return {"sent", *(["expired"] if heard else [])}
        return {BY_RECEIPT[step.state] for step in heard} if self.parts > 1 else set(said.values())


def _late(old: str, new: str) -> bool:
    return old == "expired" and new == "delivered"


def courses(parts: int, receipts: int) -> Iterator[Course]:
    """All orders: the response at any place, batched in any way."""
    words = [Word(part, state) for part in range(1, parts + 1) for state in (STATES if parts == 1 else BY_RECEIPT)]
    for some in product(words, repeat=receipts):
        for at in range(receipts + 1):
            steps: tuple[Word | None, ...] = (*some[:at], ANSWER, *some[at:])
            # One by one, all at once; and what overtook the response at once.
            for cuts in {(True,) * receipts, (False,) * receipts, (False, *(True,) * (receipts - 1))}:
                yield Course(parts, steps, cuts)


@pytest.mark.parametrize(("parts", "receipts"), [(1, 2), (2, 2)])
async def test_whatever_the_order_it_ends_as_the_receipts_say(pool: Pool, parts: int, receipts: int) -> None:
    some = list(courses(parts, receipts))
    bench = Bench(pool, claim_limit=len(some))
    bench.only.script = lambda submission: None
    actor = await organization(pool)
    await endpoint(pool, actor, "message.delivered", "message.failed")
    for _ in some:
        await message(pool, actor, segments=parts)
    while await bench.round():
        pass
    taken = {one.message_id: one for one in bench.only.submitted}
    assert len(taken) == len(some)
    played = dict(zip(taken, some, strict=True))
    distinct: dict[UUID, set[Word]] = defaultdict(set)
    for number in range(receipts + 1):
        now: list[tuple[UUID, Sequence[Word | None]]] = [
            (id, course.batches[number]) for id, course in played.items() if number < len(course.batches)
        ]
        for id, steps in now:
            if ANSWER in steps:
                given = tuple(Part(part, f"{id}/{part}") for part in range(1, parts + 1))
                bench.answer(taken[id], Outcome(Verdict.ACCEPTED, given, total=parts))
        said = [(id, step) for id, steps in now for step in steps if step is not ANSWER]
        for id, step in said:
            distinct[id].add(step)
        await bench.receive(bench.only_id, *(receipt(f"{id}/{step.part}", state=step.state) for id, step in said))
        await bench.settle()
    # Everything again, from a supplier that got no acknowledgements: nothing changes.
    before = await pool.fetch("SELECT * FROM messages ORDER BY id")
    again = [receipt(f"{id}/{one.part}", state=one.state) for id, words in distinct.items() for one in words]
    await bench.receive(bench.only_id, *again)
    assert await pool.fetch("SELECT * FROM messages ORDER BY id") == before
    ended = {row["id"]: row for row in before}
    wrong = {
        str(course): ended[id]["status"] for id, course in played.items() if ended[id]["status"] not in course.ends
    }
    assert wrong == {}
    raised = dict(await pool.fetch("SELECT message_id, count(*) FROM events GROUP BY 1"))
    assert raised == {id: 1 for id, row in ended.items() if row["status"] != "sent"}
    kept = await pool.fetch(
        "SELECT id, (receipt IS NOT NULL)::int + (SELECT count(*) FROM receipts WHERE message_id = messages.id) AS n"
        "  FROM messages"
    )
    wrong = {str(played[row["id"]]): row["n"] for row in kept if row["n"] != len(distinct[row["id"]])}
    assert wrong == {}
    assert await pool.fetchval("SELECT count(*) FROM receipts WHERE message_id IS NULL") == 0
