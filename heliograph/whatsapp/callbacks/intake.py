"""Callbacks as Meta posts them: verified, sealed, stored, and only then answered. `processing` does the rest.

Meta repeats a callback for up to seven days until it is answered with 200, and cannot be asked for one that was missed.
So every genuine callback is stored whatever it says, and all that arrive during one commit share the next. The rule
nobody may break: nothing is stored unless its raw bytes were signed with a secret of its app; and nothing is answered
with 200 before it is committed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base import crypto
from heliograph.base.crypto import Key
from heliograph.base.database import clock
from heliograph.base.database.batching import Batcher, HeldConnection
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.base.errors import CallbackNotGenuine, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.process.crash import crash_point
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import challenge, verify_signature
from heliograph.whatsapp.mirror import apps
from heliograph.whatsapp.mirror.apps import App, AppBook

#: The kind of queue row that a stored callback has; its line is the app.
KIND = "whatsapp_in"
#: A callback belongs to no organization before it is parsed.
NOBODY = UUID(int=0)
#: Minimum time between updates of when an app was last heard from; decisions about lost answers depend on them.
MARK_EVERY = timedelta(seconds=1)
#: Minimum seconds between records that an app's callbacks are not signed: strangers decide how many arrive.
UNSIGNED_EVERY = 2.0
#: A change of a template, number or account counts as this many statuses, since it locks the account, for which sends
#: may wait; and so does a user's new number, which takes as long. Only a few callbacks with such changes share a batch.
HEAVY = 20
#: Bytes of bodies sent to the server in one statement.
PIECE = 4_000_000


class NotGenuine(CallbackNotGenuine):
    """This request was not signed with the app's secret, or does not carry its verify token."""


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A callback to be stored. `body` is sealed."""

    id: UUID
    app: UUID
    body: bytes
    #: What it costs to apply, in statuses.
    items: int
    #: Whether its app has not been heard from for a while.
    marks: bool


def context(id: UUID) -> str:
    """The context of a callback's seal."""
    return f"whatsapp_callbacks/{id}"


class CallbackIntake:
    """Takes callbacks; one per process. All methods raise asyncpg's errors while the database is unavailable."""

    def __init__(self, pool: Pool, apps: AppBook, key: Key) -> None:
        """`key`: from `apps.seal_key`."""
        self._pool = pool
        self._kept = HeldConnection(pool)
        self._apps = apps
        self._key = key
        self._batcher: Batcher[Stored, None] = Batcher(self._commit, limit=256, indivisible=is_down)
        #: When an unsigned callback was last recorded, by app: only existing apps, so there are few.
        self._unsigned: dict[UUID, float] = {}
        #: Set after each commit that put work into the queue; the code that wakes the workers clears it.
        self.stored = asyncio.Event()

    async def greet(self, app_id: UUID, query: Mapping[str, str], *, is_guess: bool = False) -> str:
        """Meta's verification of the callback URL; returns the text to answer with. Raises NotFound and NotGenuine.
        `is_guess`: see `AppBook.get`."""
        app = await self.app(app_id, is_guess=is_guess)
        answer = challenge(query, app.verify_token)
        if answer is None:
            raise NotGenuine
        if _is_old(app.verified_at):
            async with self._pool.acquire() as conn:
                await apps.record_verified(conn, app.id)
        return answer

    async def app(self, app_id: UUID, *, is_guess: bool = False) -> App:
        """The app with this callback URL. Raises NotFound. `is_guess`: see `AppBook.get`."""
        app = await self._apps.get(app_id, is_guess=is_guess)
        if app is None:
            raise NotFound("There is nothing at this path.", resource="path")
        return app

    async def take(self, app: App, body: bytes | bytearray, signature: bytes | None) -> None:
        """Store one callback; returns once it is committed. Raises NotGenuine."""
        if not verify_signature(app.secrets, body, signature):
            await self.refused(app)
            raise NotGenuine
        id = uuid7()
        sealed = crypto.seal(self._key, body, context(id))
        items = _cost(body)
        del body  # the sealed one is enough while it waits for its commit
        await self._batcher.put(Stored(id, app.id, sealed, items, _is_old(app.last_callback_at)))

    async def refused(self, app: App) -> None:
        """Record for operators that a callback of an app was not signed, at most once in UNSIGNED_EVERY seconds."""
        now = time.monotonic()
        if now - self._unsigned.get(app.id, -UNSIGNED_EVERY) < UNSIGNED_EVERY:
            return
        self._unsigned[app.id] = now
        async with self._pool.acquire() as conn:
            await apps.record_unsigned(conn, app.id)

    async def drain(self) -> None:
        """Wait until every batch is committed."""
        await self._batcher.drain()
        await self._kept.close()

    async def _commit(self, items: list[Stored]) -> list[None]:
        for piece in _pieces(items):
            await self._store(piece)
        return [None] * len(items)

    async def _store(self, items: Sequence[Stored]) -> None:
        heard = {item.app for item in items if item.marks}
        crash_point("callback.before_commit")
        async with self._kept.use() as conn:
            if heard:
                async with conn.transaction():
                    await _insert(conn, items)
                    await apps.record_callbacks(conn, list(heard))
            else:
                await _insert(conn, items)
        crash_point("callback.after_commit")
        self.stored.set()


# One statement, so that a callback and its place in the queue are one commit and one round trip.
STORE = """
WITH item AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bytea[], $4::integer[]) AS item (id, app, body, items)
), stored AS (
    INSERT INTO whatsapp_callbacks (id, app, body, items, received_at) SELECT id, app, body, items, now() FROM item
)
INSERT INTO queue (kind, line, organization_id, due_at, id) SELECT $5, app, $6, now(), id FROM item
"""


async def _insert(conn: Connection, items: Sequence[Stored]) -> None:
    await conn.execute(
        STORE,
        [item.id for item in items],
        [item.app for item in items],
        [item.body for item in items],
        [item.items for item in items],
        KIND,
        NOBODY,
    )


def _cost(body: bytes | bytearray) -> int:
    """Approximately, without parsing it: each status and message has a timestamp, and each change a field. Within a
    text, the quotation marks would be escaped."""
    others = max(body.count(b'"field"') - body.count(b'"messages"'), 0)
    others += body.count(b'"user_changed_') + body.count(b'"customer_changed_')
    return max(body.count(b'"timestamp"') + HEAVY * others, 1)


def _is_old(at: datetime | None) -> bool:
    """Whether the time of the last callback is out of date, also as one in times to come, from before the clock was set
    back."""
    return at is None or abs(clock.now() - at) > MARK_EVERY


def _pieces(items: Sequence[Stored]) -> Iterator[list[Stored]]:
    """Batches in order, each with as many items as PIECE allows, at least one."""
    piece: list[Stored] = []
    size = 0
    for item in items:
        if piece and size + len(item.body) > PIECE:
            yield piece
            piece, size = [], 0
        piece.append(item)
        size += len(item.body)
    if piece:
        yield piece
