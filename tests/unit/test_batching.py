"""Group commit without a database: order, isolation of a bad item, callers that leave, failures of a whole batch."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.database.batching import Batcher


class Gone(Exception):
    """The database is down."""


class Work:
    """Doubles each number; refuses those in `bad` as PostgreSQL would, with the whole batch."""

    def __init__(self, bad: frozenset[int] = frozenset()) -> None:
        self.bad = bad
        self.batches: list[list[int]] = []
        self.done: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, items: list[int]) -> Sequence[int | BaseException]:
        self.batches.append(list(items))
        await self.gate.wait()
        if self.bad & set(items):
            raise ValueError("one of these")
        self.done += items
        return [ArithmeticError("zero") if item == 0 else item * 2 for item in items]


async def gather(batcher: Batcher[int, int], items: Sequence[int]) -> list[int | BaseException]:
    return await asyncio.gather(*(batcher.put(item) for item in items), return_exceptions=True)


@given(
    items=st.lists(st.integers(1, 30), max_size=60),
    bad=st.frozensets(st.integers(1, 30), max_size=4),
    limit=st.integers(1, 20),
)
def test_each_item_has_its_own_result_in_order_whatever_the_others_are(
    items: list[int], bad: frozenset[int], limit: int
) -> None:
    async def run() -> None:
        work = Work(bad)
        results = await gather(Batcher(work, limit=limit), items)
        for item, result in zip(items, results, strict=True):
            if item in bad:
                assert isinstance(result, ValueError)
            else:
                assert result == item * 2
        assert work.done == [item for item in items if item not in bad]
        assert all(len(batch) <= limit for batch in work.batches)

    asyncio.run(run())


async def test_a_lone_item_waits_for_nobody() -> None:
    work = Work()
    assert await Batcher(work).put(4) == 8
    assert work.batches == [[4]]


async def test_what_arrives_during_a_batch_is_the_next_one() -> None:
    work = Work()
    work.gate.clear()
    batcher = Batcher(work, limit=3)
    first = batcher.put(1)
    await asyncio.sleep(0)
    rest = [batcher.put(n) for n in range(2, 7)]
    assert batcher.waiting == 5
    work.gate.set()
    assert await asyncio.gather(first, *rest) == [2, 4, 6, 8, 10, 12]
    assert work.batches == [[1], [2, 3, 4], [5, 6]]


async def test_a_result_that_is_an_exception_is_raised_to_its_caller_alone() -> None:
    work = Work()
    one, zero = await gather(Batcher(work), [1, 0])
    assert one == 2
    assert isinstance(zero, ArithmeticError)
    assert work.batches == [[1, 0]]


async def test_one_bad_item_costs_few_batches() -> None:
    work = Work(frozenset({300}))
    results = await gather(Batcher(work, limit=512), range(1, 513))
    assert [n for n, result in enumerate(results, 1) if isinstance(result, ValueError)] == [300]
    assert len(work.batches) <= 2 * 9 + 1
    assert work.done == [n for n in range(1, 513) if n != 300]


async def test_a_failure_that_is_nobodys_fault_is_everybodys_answer() -> None:
    batches: list[list[int]] = []

    async def work(items: list[int]) -> list[int]:
        batches.append(items)
        raise Gone

    batcher = Batcher[int, int](work, indivisible=lambda error: isinstance(error, Gone))
    assert {type(one) for one in await gather(batcher, range(10))} == {Gone}
    assert len(batches) == 1


async def test_a_caller_that_leaves_takes_nothing_along() -> None:
    work = Work(frozenset({9}))
    work.gate.clear()
    batcher = Batcher(work)
    callers = [asyncio.ensure_future(batcher.put(n)) for n in (1, 2, 9, 3)]
    await asyncio.sleep(0)
    callers[1].cancel()
    callers[2].cancel()
    work.gate.set()
    assert await callers[0] == 2
    assert await callers[3] == 6
    assert work.done == [1, 2, 3]


async def test_drain_waits_for_all_that_was_put() -> None:
    work = Work()
    work.gate.clear()
    batcher = Batcher(work, limit=2)
    await batcher.drain()
    futures = [batcher.put(n) for n in range(1, 8)]
    drain = asyncio.create_task(batcher.drain())
    await asyncio.sleep(0)
    assert not drain.done()
    work.gate.set()
    await drain
    assert all(future.done() for future in futures)
    assert batcher.waiting == 0


async def test_it_works_on_after_a_failure() -> None:
    work = Work(frozenset({5}))
    batcher = Batcher(work)
    with pytest.raises(ValueError, match="one of these"):
        await batcher.put(5)
    assert await batcher.put(6) == 12


async def test_of_what_nobody_waits_for_the_end_is_told_at_once() -> None:
    told: list[tuple[list[int], str]] = []
    work = Work(bad=frozenset({13}))
    batcher: Batcher[int, int] = Batcher(
        work, limit=8, settled=lambda items, error: told.append((list(items), type(error).__name__))
    )
    waited_for = batcher.put(5)
    for item in (1, 2, 0, 13, 3):
        batcher.add(item)
    await batcher.drain()
    assert await waited_for == 10
    assert sorted(item for items, kind in told if kind == "NoneType" for item in items) == [1, 2, 3]
    assert ([0], "ArithmeticError") in told
    assert ([13], "ValueError") in told
    assert len(told) < 6  # many at once


async def test_of_what_nobody_waits_for_the_failure_of_all_is_told_once() -> None:
    told: list[tuple[list[int], str]] = []

    async def work(items: list[int]) -> Sequence[int]:
        raise Gone

    batcher: Batcher[int, int] = Batcher(
        work,
        indivisible=lambda error: isinstance(error, Gone),
        settled=lambda items, error: told.append((list(items), type(error).__name__)),
    )
    for item in range(5):
        batcher.add(item)
    await batcher.drain()
    assert told == [([0, 1, 2, 3, 4], "Gone")]


async def test_a_lone_item_is_processed_by_its_caller() -> None:
    work = Work(frozenset({5}))
    batcher = Batcher(work)
    made: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_task_factory(
        lambda loop, coroutine, **options: made.append(coroutine) or asyncio.Task(coroutine, loop=loop)
    )
    try:
        assert [await batcher.run(n) for n in (1, 2)] == [2, 4]
        with pytest.raises(ArithmeticError, match="zero"):
            await batcher.run(0)
        with pytest.raises(ValueError, match="one of these"):
            await batcher.run(5)
        assert await batcher.run(3) == 6
    finally:
        loop.set_task_factory(None)
    assert made == []
    assert work.batches == [[1], [2], [0], [5], [3]]
    assert batcher.is_idle


async def test_what_arrives_while_a_caller_processes_its_item_is_the_next_batch() -> None:
    work = Work()
    work.gate.clear()
    batcher = Batcher(work)
    callers = [asyncio.create_task(batcher.run(n)) for n in (1, 2, 3)]
    await asyncio.sleep(0)
    drain = asyncio.create_task(batcher.drain())
    await asyncio.sleep(0)
    assert batcher.waiting == 2
    assert not drain.done()
    work.gate.set()
    await drain
    assert [await caller for caller in callers] == [2, 4, 6]
    assert work.batches == [[1], [2, 3]]
    assert batcher.is_idle


async def test_after_a_batch_of_several_the_next_ones_wait_for_each_other() -> None:
    work = Work()
    batcher = Batcher(work)
    assert await gather(batcher, [1, 2]) == [2, 4]
    assert await asyncio.gather(*(batcher.run(n) for n in (3, 4))) == [6, 8]
    assert await batcher.run(5) == 10
    assert work.batches == [[1, 2], [3, 4], [5]]


async def test_a_caller_that_leaves_its_own_batch_leaves_those_who_wait() -> None:
    work = Work()
    work.gate.clear()
    batcher = Batcher(work)
    first, *others = (asyncio.create_task(batcher.run(n)) for n in (1, 2, 3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    work.gate.set()
    assert [await caller for caller in others] == [4, 6]
    assert work.done == [2, 3]
    assert batcher.is_idle


class Body:
    """An item with a client's text."""


async def refuses(items: Sequence[Body]) -> Sequence[BaseException]:
    return [ValueError("no") for _ in items]


async def fails(items: Sequence[Body]) -> Sequence[BaseException]:
    raise ValueError("no")


@pytest.mark.parametrize("work", [refuses, fails])
@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("ask", [Batcher.run, Batcher.put])
async def test_what_was_refused_does_not_wait_for_the_garbage_collector(
    work: Callable[[list[Body]], Awaitable[Sequence[BaseException]]],
    together: int,
    ask: Callable[[Batcher[Body, None], Body], Awaitable[None]],
) -> None:
    """The collector runs so rarely that refused texts would accumulate until then."""
    batcher: Batcher[Body, None] = Batcher(work)
    left: list[weakref.ref[Body]] = []

    async def one() -> None:
        body = Body()
        left.append(weakref.ref(body))
        try:
            await ask(batcher, body)
        except ValueError:
            return

    gc.collect()
    gc.disable()
    try:
        callers = [asyncio.create_task(one()) for _ in range(together)]
        await asyncio.wait(callers)
        del callers
        await batcher.drain()
        await asyncio.sleep(0)
        assert [body() for body in left] == [None] * together
    finally:
        gc.enable()
