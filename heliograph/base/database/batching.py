"""Group commit: one is a batch of one. Also the connection that such batches keep (`HeldConnection`), and values that
nobody waits for, noted now and written later (`WriteBehind`).

Items that arrive while a batch is being processed go into the next one. There is no linger: an idle batcher
starts at once, so a lone item waits for nobody, and under load the batch grows to what the database needs. One batch is
in flight at a time; measured against two, that gave larger batches and more throughput.

The rule nobody may break: an item's future is resolved only after its batch has been committed, and a bad item never
fails its batch. If a whole batch fails, its halves are run again, and so on, until only the bad item gets the error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

import asyncpg
import structlog

from heliograph.base.database.pool import Connection, Pool, is_down, is_open
from heliograph.base.process import measures

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

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
        #: Whether a batch is in progress.
        self._is_busy = False
        self._runner: asyncio.Task[None] | None = None
        #: Whether the last batch had a single item.
        self._was_alone = True
        #: Resolved once nothing is waiting or in a batch; None: nobody waits for that.
        self._idle: asyncio.Future[None] | None = None
        #: Kept, because before Python 3.12, finding the running loop is a system call.
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, item: Item) -> asyncio.Future[Result]:
        """Add an item. The future resolves once its batch is done, even if its caller no longer waits."""
        future: asyncio.Future[Result] = self._find_loop().create_future()
        self._take(item, future)
        return future

    async def run(self, item: Item) -> Result:
        """The result of an item, once its batch is done.

        Like awaiting `put`, but if nothing is in progress, the caller runs the batch of one itself, without another
        task: that and two more turns of the event loop cost a lone item a tenth of its time. If the caller is
        cancelled, so is its batch of one. After a larger batch, items are probably arriving together, and the first of
        them waits for the others as in `put`.
        """
        if self._is_busy or not self._was_alone:
            return await self.put(item)
        self._is_busy = True
        future: asyncio.Future[Result] = self._find_loop().create_future()
        try:
            await self._process([(item, future)], monotonic())
        finally:
            if self._waiting:
                self._start()
            else:
                self._rest()
        try:
            return future.result()
        finally:
            # An error references this frame: with the item, both would stay until the collector runs, which is rare.
            del future

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
        return not self._is_busy

    async def drain(self) -> None:
        """Wait until all items added so far are done."""
        while self._is_busy:
            if self._idle is None:
                self._idle = self._find_loop().create_future()
            await asyncio.shield(self._idle)

    def _take(self, item: Item, future: asyncio.Future[Result] | None) -> None:
        if not self._waiting:
            self._since = monotonic()
        self._waiting.append((item, future))
        if not self._is_busy:
            self._start()

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _start(self) -> None:
        """Run batches until nothing is waiting, beginning with what is waiting in the loop's next turn."""
        self._is_busy = True
        self._runner = self._find_loop().create_task(self._run())

    def _rest(self) -> None:
        self._is_busy = False
        self._runner = None
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    async def _run(self) -> None:
        try:
            while self._waiting:
                since = self._since
                await self._process(
                    [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))], since
                )
        finally:
            self._rest()

    async def _process(self, batch: list[tuple[Item, asyncio.Future[Result] | None]], since: float) -> None:
        """One batch; `since`: when its first item arrived."""
        began, count = monotonic(), len(batch)
        try:
            await self._settle(batch)
        finally:
            del batch  # since Python 3.12, an error references this frame as well: see `run`
        self._was_alone = count == 1
        ended = monotonic()
        if self._name:
            measures.BATCH_ITEMS.observe(count, self._name)
            measures.BATCH_SECONDS.observe(ended - began, self._name)
        self._took(ended - since, count)

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
                self._fail(batch, error)
                del batch  # the error references this frame: see `run`
                return
        else:
            self._answer(batch, results)
            return
        middle = len(batch) // 2
        try:
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
        finally:
            del batch

    def _fail(self, batch: list[tuple[Item, asyncio.Future[Result] | None]], error: Exception) -> None:
        for _, future in batch:
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved: a cancelled caller will not do so
        if unheard := [item for item, future in batch if future is None]:
            self._settled(unheard, error)

    def _answer(
        self, batch: list[tuple[Item, asyncio.Future[Result] | None]], results: Sequence[Result | BaseException]
    ) -> None:
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


class HeldConnection:
    """A pooled connection held for one frequent user: acquiring one each time costs as much as a small query (30 µs).
    It goes back to the pool after a moment of disuse."""

    #: Seconds of disuse after which it is returned.
    IDLE = 0.05

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        #: Whether somebody is using it.
        self.is_busy = False
        self._connection: PoolConnectionProxy[asyncpg.Record] | None = None
        self._used = False
        self._timer: asyncio.TimerHandle | None = None
        self._returns: asyncio.Task[None] | None = None

    def use(self) -> _Use:
        """The held connection, or another one from the pool while it is in use; a context manager."""
        return _Use(self)

    async def take(self) -> Connection:
        """The held connection, until `leave`."""
        self.is_busy = self._used = True
        try:
            if self._connection is None or not is_open(self._connection):
                await self._give_back(self._let_go())
                self._connection = await self.pool.acquire()
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(self.IDLE, self._look)
            if self.pool.plans_are_old(self._connection):
                await self.pool.renew_plans(self._connection)
            return self._connection
        except BaseException:
            self.is_busy = False
            raise

    def leave(self) -> None:
        """The user that took it no longer needs it."""
        self.is_busy = False

    async def close(self) -> None:
        """Return the connection now, unless it is in use."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.is_busy:
            await self._give_back(self._let_go())

    def _look(self) -> None:
        if self.is_busy or self._used:
            self._used = self.is_busy
            self._timer = asyncio.get_running_loop().call_later(self.IDLE, self._look)
            return
        self._timer = None
        # Detached at this point: `use` may be called before the task runs.
        connection = self._let_go()
        # The pool has already taken back a lost one, and the loop may be about to close: a task would never begin.
        if connection is not None and is_open(connection):
            self._returns = asyncio.create_task(self._give_back(connection))

    def _let_go(self) -> PoolConnectionProxy[asyncpg.Record] | None:
        connection, self._connection = self._connection, None
        return connection

    async def _give_back(self, connection: PoolConnectionProxy[asyncpg.Record] | None) -> None:
        if connection is not None:
            await self.pool.release(connection)


class _Use:
    """The context of a use. As a generator it would take three times as long."""

    __slots__ = ("_held", "_other")

    def __init__(self, held: HeldConnection) -> None:
        self._held = held
        self._other: PoolConnectionProxy[asyncpg.Record] | None = None

    async def __aenter__(self) -> Connection:
        if not self._held.is_busy:
            return await self._held.take()
        self._other = await self._held.pool.acquire()
        return self._other

    async def __aexit__(self, *_: object) -> None:
        if self._other is None:
            self._held.leave()
        else:
            await self._held.pool.release(self._other)


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
        self._writes = Whole()

    def note(self, key: Key, value: Value) -> None:
        """Keep a value for the next write."""
        if key not in self._noted and len(self._noted) >= self._most:
            instead = self._beyond(key)
            if instead is None:
                return
            key = instead
        self._noted[key] = self._merged(self._noted[key], value) if key in self._noted else value

    async def run(self) -> None:
        """Write periodically until canceled."""
        while True:
            await asyncio.sleep(self._every)
            await self.write()

    async def write(self) -> None:
        """Write the noted values. If the database is away, or another transaction wins, they are kept for the next
        time; if they fail, that is logged and they are dropped."""
        await self._writes.run(self._write_noted)

    async def _write_noted(self) -> None:
        noted, self._noted = self._noted, {}
        if not noted:
            return
        try:
            async with self._pool.acquire() as conn:
                await self._write(conn, noted)
        except Exception as error:
            if is_down(error) or isinstance(error, asyncpg.DeadlockDetectedError):
                later, self._noted = self._noted, noted
                for key, value in later.items():
                    self.note(key, value)
            else:
                log.exception("noted values not written")


class Whole:
    """Runs writes one at a time, each to its end: one that is cancelled, as when its process ends, may have been
    committed, so that it could be neither repeated nor left out."""

    PATIENCE = 5.0  #: Seconds to wait for the last one.

    def __init__(self) -> None:
        self._running: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run `work`, which handles its errors, after the last one, for whose end it waits no longer than PATIENCE."""
        if self._running is not None:
            await asyncio.wait([self._running], timeout=self.PATIENCE)
        self._running = asyncio.create_task(work())
        await asyncio.shield(self._running)
