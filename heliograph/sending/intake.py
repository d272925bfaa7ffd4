"""Accepting sends: batches, duplicates of an idempotency key, and organizations whose rows another transaction locks.

All channels accept messages through this module; what is stored for a batch is up to the channel (its `accept.py`). The
rule nobody may break: nothing is answered before it is committed, and a bad message never fails its batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import asyncpg

from heliograph.accounts.requests import Answer, IdempotencyConflict, IdempotencyInProgress
from heliograph.base.actor import Actor
from heliograph.base.database.batching import Batcher
from heliograph.base.database.pool import Connection, despite_deadlocks, is_down
from heliograph.base.errors import Refusal, Unavailable
from heliograph.base.ids import uuid7
from heliograph.base.process import measures, spans
from heliograph.base.process.crash import crash_point
from heliograph.base.process.spans import Context


class KeyedSend(Protocol):
    """Who is sending, and under which idempotency key."""

    @property
    def id(self) -> UUID | None: ...
    @property
    def trace(self) -> Context | None: ...

    @property
    def actor(self) -> Actor: ...
    @property
    def key_hash(self) -> UUID | None: ...
    @property
    def request_hash(self) -> bytes | None: ...


class Prepared(Protocol):
    """A send with everything needed to store it in a batch."""

    @property
    def id(self) -> UUID: ...
    @property
    def send(self) -> KeyedSend: ...


Item = TypeVar("Item", bound=Prepared)

#: Organizations, at most, whose sends are batched apart from those of others: each may hold a connection of the pool
#: for as long as accepting waits for a lock.
MOST_APART = 4
#: What is heard of a server that answers queries but has no room, or whose disk fails (SQLSTATE classes 53 and 58), or
#: hangs: a commit that takes too long, for its disk or a standby. Locks end sooner, and are one organization's.
CANNOT_STORE = (
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.QueryCanceledError,
    TimeoutError,
)
#: Seconds for which that counts unless another batch is stored: while nobody sends, nothing shows that it is over.
REFUSES_FOR = 300.0


class Intake(Generic[Item]):
    """Passes items to `store` in batches that contain each idempotency key once.

    `store` commits a batch and returns an Answer or a Refusal for each. If it raises LockNotAvailableError, because a
    lock was held for too long, the batch's organizations are stored separately, and the sends of the one whose rows
    are locked form batches of their own until one of them is stored: otherwise each batch, and everybody in it, would
    wait for the lock twice. After a DeadlockDetectedError nothing of the batch has been stored, and it is simply
    retried.
    """

    def __init__(
        self, store: Callable[[list[Item]], Awaitable[list[Answer | BaseException]]], *, name: str, limit: int = 512
    ) -> None:
        """`name`: the name under which batches are measured."""
        self._store = store
        self._name, self._limit = name, limit
        self._batcher = self._batches(self._commit)
        #: Of organizations whose rows were locked.
        self._apart_from: dict[UUID, Batcher[Item, Answer]] = {}
        #: Monotonic time of the failure if the last batch met CANNOT_STORE.
        self._failed_at: float | None = None

    @property
    def is_refusing(self) -> bool:
        """Whether the database had no room for the last batch, although it may answer queries."""
        return self._failed_at is not None and monotonic() - self._failed_at < REFUSES_FOR

    async def put(self, item: Item, *, with_others: bool = True) -> Answer:
        """The answer to the item, once it is committed. Raises its refusal, and Unavailable.

        `with_others`: others are put at the same time, so it waits until they are in its batch. If the caller is
        cancelled, the message is stored completely or not at all.
        """
        batcher = self._apart_from.get(item.send.actor.organization_id, self._batcher)
        try:
            # A cancelled caller cancels only its own item: a batch with others continues regardless.
            return await (batcher.put(item) if with_others else batcher.run(item))
        except Exception as error:
            if is_down(error):
                raise Unavailable from error
            raise

    async def drain(self) -> None:
        """Wait until every batch is committed."""
        for batcher in (self._batcher, *self._apart_from.values()):
            await batcher.drain()

    def _batches(
        self, commit: Callable[[list[Item]], Awaitable[list[Answer | BaseException]]]
    ) -> Batcher[Item, Answer]:
        return Batcher(commit, name=self._name, limit=self._limit, indivisible=is_down, took=measures.accepted)

    def _set_apart(self, organization: UUID) -> None:
        """The rows of this organization are locked: from now on, nobody else's sends wait with its own."""
        if organization in self._apart_from:
            return
        if len(self._apart_from) >= MOST_APART:
            idle = next((id for id, batcher in self._apart_from.items() if batcher.is_idle), None)
            if idle is not None:  # it has sent nothing since
                del self._apart_from[idle]
        if len(self._apart_from) < MOST_APART:
            self._apart_from[organization] = self._batches(partial(self._commit_apart, organization))

    async def _commit_apart(self, organization: UUID, items: list[Item]) -> list[Answer | BaseException]:
        results = await self._commit(items)
        batcher = self._apart_from.get(organization)
        if batcher is not None and not batcher.waiting and any(isinstance(one, Answer) for one in results):
            del self._apart_from[organization]
        return results

    async def _commit(self, items: list[Item]) -> list[Answer | BaseException]:
        """One batch. Duplicates (items with the same key) get the first one's outcome."""
        if len(items) == 1:
            return await self._apart(items)
        results: dict[int, Answer | BaseException] = {}
        duplicates = await self._lead(items, list(range(len(items))), results)
        if duplicates:
            # A refused mutation frees its key: the first of the duplicates with a different payload gets it now.
            duplicates = await self._lead(items, duplicates, results)
        # A client that sends many payloads under one key, all of them refused, must not delay others any further.
        results |= {index: IdempotencyInProgress() for index in duplicates}
        return [results[index] for index in range(len(items))]

    async def _lead(
        self, items: list[Item], indexes: list[int], results: dict[int, Answer | BaseException]
    ) -> list[int]:
        """Settle the first item of each key and those settled by its outcome; returns the others."""
        first: dict[tuple[UUID, UUID], int] = {}
        leaders: list[int] = []
        duplicates: list[tuple[int, int]] = []
        for index in indexes:
            send = items[index].send
            if send.key_hash is not None:
                leader = first.setdefault((send.actor.organization_id, send.key_hash), index)
                if leader != index:
                    duplicates.append((index, leader))
                    continue
            leaders.append(index)
        results.update(zip(leaders, await self._apart([items[index] for index in leaders]), strict=True))
        left: list[int] = []
        for index, leader in duplicates:
            outcome = results[leader]
            same = items[index].send.request_hash == items[leader].send.request_hash
            if isinstance(outcome, Answer):
                results[index] = Answer(outcome.status, outcome.body, True) if same else IdempotencyConflict()
            elif same:
                results[index] = outcome
            else:
                left.append(index)
        return left

    async def _once(self, items: list[Item]) -> list[Answer | BaseException]:
        crash_point("accept.before_commit")
        try:
            stored = await self._store(items)
        except Exception as error:
            if isinstance(error, CANNOT_STORE):
                self._failed_at = monotonic()
            raise
        self._failed_at = None
        crash_point("accept.after_commit")
        return stored

    async def _apart(self, items: list[Item]) -> list[Answer | BaseException]:
        """Store a batch without duplicates. Organizations whose rows another transaction keeps locked are left out."""
        try:
            return await despite_deadlocks(partial(self._once, items))
        except asyncpg.DeadlockDetectedError:
            return [Unavailable() for _ in items]
        except asyncpg.LockNotAvailableError:
            by_organization: dict[UUID, list[int]] = {}
            for index, item in enumerate(items):
                by_organization.setdefault(item.send.actor.organization_id, []).append(index)
            if len(by_organization) == 1:
                # Who holds the lock is unknown (a duplicate, a report, a migration); all that is certain is that
                # nothing was stored.
                self._set_apart(items[0].send.actor.organization_id)
                return [Unavailable() for _ in items]
            groups = list(by_organization.values())
            parts = await asyncio.gather(*(self._apart([items[index] for index in group]) for group in groups))
            found: dict[int, Answer | BaseException] = {}
            for group, some in zip(groups, parts, strict=True):
                found.update(zip(group, some, strict=True))
            return [found[index] for index in range(len(items))]


def senders_of(actors: Sequence[Actor]) -> list[UUID | None] | None:
    """The person who sent each item of a batch from the dashboard; None if all were sent with keys, so that such
    batches carry no list."""
    people = [actor.user_id for actor in actors]
    return people if any(people) else None


def new_id(send: KeyedSend) -> UUID:
    """The id of the message that a send creates; it encodes whether the message is traced."""
    if send.id is not None:
        return send.id
    return uuid7() if send.trace is None else spans.marked(uuid7())


def traced_of(items: Sequence[Prepared]) -> list[tuple[UUID, UUID, Context]]:
    """The traced messages of a batch: organization, message, context."""
    if not spans.on():
        return []
    return [(one.send.actor.organization_id, one.id, one.send.trace) for one in items if one.send.trace is not None]


@asynccontextmanager
async def both(conn: Connection, also: bool) -> AsyncIterator[None]:
    """Commit a batch together with what accompanies it; a batch on its own is already one commit."""
    if not also:
        yield
        return
    async with conn.transaction():
        yield


async def outcomes(accepts: Sequence[Awaitable[Answer]]) -> list[Answer | Refusal]:
    """The answer or refusal for each; raises anything that is neither."""
    results = await asyncio.gather(*accepts, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Refusal):
            raise result
    return [result for result in results if isinstance(result, Answer | Refusal)]
