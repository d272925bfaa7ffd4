"""Group commit: one is a batch of one. Also values that nobody waits for, noted now and written later (`WriteBehind`).

Items that arrive while a batch is being processed go into the next one. There is no linger: an idle batcher
starts at once, so a lone item waits for nobody, and under load the batch grows to what the database needs. One batch is
in flight at a time; measured against two, that gave larger batches and more throughput.

The rule nobody may break: an item's future is resolved only after its batch has been committed, and a bad item never
fails its batch. If a whole batch fails, its halves are run again, and so on, until only the bad item gets the error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Generic, TypeVar

import asyncpg
import structlog

from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.process import measures

log = structlog.get_logger()

Item = TypeVar("Item")
Result = TypeVar("Result")
Key = TypeVar("Key")
Value = TypeVar("Value")


class Batcher(Generic[Item, Result]):
    """Collects items and hands them to `work` in batches of at most `limit`.

    `work` gets a list and returns as many results, in order; a result that is an exception is raised to its item's
    caller. If `work` itself raises, the halves of the batch are run separately, unless `indivisible(error)` says that
    no single item is at fault (the database is gone): then all items get the exception. So do all waiting items if
    the failure was a timeout: otherwise they would have to wait through another one.

    An item need not have a caller: for items passed to `add`, `settled` is called when they are done, many at once.
    """

    def __init__(
        self,
        work: Callable[[list[Item]], Awaitable[Sequence[Result | BaseException]]],
        *,
        name: str = "",
        limit: int = 512,
        indivisible: Callable[[BaseException], bool] = lambda error: False,
        settled: Callable[[Sequence[Item], BaseException | None], object] = lambda items, error: None,
        took: Callable[[float, int], object] = lambda seconds, items: None,
    ) -> None:
        """`name`: under which batches are measured; "": they are not. `settled`: gets items passed to `add`, and the
        error of their batch, or of one item by itself. `took`: gets, for each batch, the seconds since its first item
        arrived, and the number of items."""
        self._name = name
        self._took = took
        #: When the first waiting item arrived.
        self._since = 0.0
        self._settled = settled
        self._work = work
        self._limit = limit
        self._indivisible = indivisible
        self._waiting: deque[tuple[Item, asyncio.Future[Result] | None]] = deque()
        self._runner: asyncio.Task[None] | None = None

    def put(self, item: Item) -> asyncio.Future[Result]:
        """Add an item. The future resolves once its batch is done, even if its caller no longer waits."""
        # The runner is asked first: before Python 3.12, finding the running loop is a system call.
        loop = asyncio.get_running_loop() if self._runner is None else self._runner.get_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._take(item, future)
        return future

    def add(self, item: Item) -> None:
        """Add an item that nobody waits for: a future and a call for each would often cost more than processing the
        item."""
        self._take(item, None)

    @property
    def waiting(self) -> int:
        """The number of items not yet in a batch."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waiting or in a batch."""
        return self._runner is None

    async def drain(self) -> None:
        """Wait until all items added so far are done."""
        while self._runner is not None:
            await asyncio.shield(self._runner)

    def _take(self, item: Item, future: asyncio.Future[Result] | None) -> None:
        if not self._waiting:
            self._since = monotonic()
        self._waiting.append((item, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._waiting:
                since = self._since
                batch = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
                began = monotonic()
                await self._settle(batch)
                if self._name:
                    measures.BATCH_ITEMS.observe(len(batch), self._name)
                    measures.BATCH_SECONDS.observe(monotonic() - began, self._name)
                self._took(monotonic() - since, len(batch))
        finally:
            self._runner = None

    async def _settle(self, batch: list[tuple[Item, asyncio.Future[Result] | None]]) -> None:
        try:
            results = await self._work([item for item, _ in batch])
        except Exception as error:
            measures.BATCH_FAILURES.add(self._name)
            indivisible = self._indivisible(error)
            if indivisible and isinstance(error, TimeoutError):
                batch = [*batch, *self._waiting]
                self._waiting.clear()
            if indivisible or len(batch) == 1:
                for _, future in batch:
                    if future is not None and not future.done():
                        future.set_exception(error)
                        future.exception()  # marks it as retrieved: a cancelled caller will not do so
                if unheard := [item for item, future in batch if future is None]:
                    self._settled(unheard, error)
                return
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        done: list[Item] = []
        for (item, future), result in zip(batch, results, strict=True):
            if future is None:
                if isinstance(result, BaseException):
                    self._settled([item], result)
                else:
                    done.append(item)
                continue
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
                future.exception()
            else:
                future.set_result(result)
        if done:
            self._settled(done, None)


class WriteBehind(Generic[Key, Value]):
    """Values noted in memory, and all written a moment later in one statement. Noting waits for nothing, and neither
    memory nor rows grow with how often it is done. One per process."""

    def __init__(
        self,
        pool: Pool,
        write: Callable[[Connection, Mapping[Key, Value]], Awaitable[None]],
        *,
        every: float,
        most: int,
        merged: Callable[[Value, Value], Value],
        beyond: Callable[[Key], Key | None],
    ) -> None:
        """`every`: seconds between two writes. `merged`: (value noted for a key, new value) → both combined. `beyond`:
        the key to use in place of a new one once there are `most`; None: the value is dropped."""
        self._pool = pool
        self._write = write
        self._every = every
        self._most = most
        self._merged = merged
        self._beyond = beyond
        self._noted: dict[Key, Value] = {}

    def note(self, key: Key, value: Value) -> None:
        """Keep a value for the next write."""
        if key not in self._noted and len(self._noted) >= self._most:
            instead = self._beyond(key)
            if instead is None:
                return
            key = instead
        self._noted[key] = self._merged(self._noted[key], value) if key in self._noted else value

    async def run(self) -> None:
        """Write periodically until canceled. Values that fail are logged and dropped; later ones are written."""
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.write()
            except Exception:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # the error has taken the cancellation's place
                    raise
                log.exception("noted values not written")

    async def write(self) -> None:
        """Write the noted values. If the database is away, or another transaction wins, they are kept for the next
        time."""
        noted, self._noted = self._noted, {}
        if not noted:
            return
        try:
            async with self._pool.acquire() as conn:
                await self._write(conn, noted)
        except Exception as error:
            if not (is_down(error) or isinstance(error, asyncpg.DeadlockDetectedError)):
                raise
            later, self._noted = self._noted, noted
            for key, value in later.items():
                self.note(key, value)
