"""How a worker processes callbacks: it takes stored ones, and applies each of their items once.

A batch is callbacks of one app, about five hundred items, in one transaction: their rows are locked while it runs and
deleted by its commit. If a worker is killed, they are unchanged, and another one takes them at once.

    parse, route                    items and their owners (routing.py)
    apply                           all of them, or halves down to those that fail (applying.py)
    unparsable, or failing alone    whatsapp_dead_letters, sealed; `retries.py` retries them

The rule nobody may break: whatever happens to one item, the others of its batch are applied.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from time import monotonic
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base import crypto
from heliograph.base.crypto import Key
from heliograph.base.database.pool import BRIEFLY, ROW_LOCKED, Connection, Pool, is_down
from heliograph.base.process.crash import crash_point
from heliograph.base.process.logs import Sparse
from heliograph.base.sentences import said
from heliograph.queue.backlog import Backlog
from heliograph.sealing.text_keys import Sealing
from heliograph.suppliers.whatsapp_cloud.callbacks.items import (
    CallItem,
    Item,
    MessageItem,
    PoisonItem,
    StatusItem,
    UnknownItem,
)
from heliograph.suppliers.whatsapp_cloud.callbacks.webhooks import parse
from heliograph.webhooks.recording.handover import Handover, abandoned
from heliograph.whatsapp.callbacks import intake, matching, received
from heliograph.whatsapp.callbacks.dead_letters import UNKNOWN_NUMBER, DeadLetter, Readable, raw_of, store
from heliograph.whatsapp.callbacks.matching import NamedUsers
from heliograph.whatsapp.callbacks.processing.applying import TRANSIENT, apply, blames_item
from heliograph.whatsapp.callbacks.processing.routing import Work, moved, names_newly, route
from heliograph.whatsapp.callbacks.received import ReceivedItem
from heliograph.whatsapp.mirror import accounts, numbers
from heliograph.whatsapp.money.rates import RateBook

log = structlog.get_logger()

_locked = Sparse("callbacks wait for a locked row")

#: Limits of a batch: callbacks, and (approximately) items. More would lock wallets for longer than a send may wait.
CALLBACKS, ITEMS = 500, 500
#: Bytes from which a batch is parsed in a thread: whoever signs callbacks decides how long that takes.
LARGE = 262_144
#: Pause before a retry, seconds; and before another worker tries a callback that cannot be decrypted here.
AGAIN, LATER_SECONDS = 0.05, 60.0
#: The same for one that waits for a row that somebody keeps locked; and for how long after such a lock all are waited
#: for only briefly.
LOCKED_SECONDS, LOCKS_FOR = 15.0, 300.0
#: Minimum seconds between log lines about dropped items, and between updates of when a number was last heard from; and
#: between updates of when one of its messages was last sent.
SAY_EVERY = MARK_EVERY = 60.0
SENT_EVERY = 15.0
#: A status that arrived later than this after it was written proves nothing about the present.
NEWS = timedelta(seconds=60)
#: Why a message waits as a dead letter: it must be stored sealed, or not at all.
LOCKED = said("the key of its organization's texts cannot be opened")


class Inbox:
    """Processes callbacks; one per worker."""

    def __init__(
        self,
        pool: Pool,
        key: Key,
        rates: RateBook,
        *,
        on_deliveries: Callable[[], None],
        on_standing: Callable[[], None] = lambda: None,
        handover: Callable[[], Handover | None] = lambda: None,
        backlog: Backlog | None = None,
        named: NamedUsers | None = None,
    ) -> None:
        """`key`: from `apps.seal_key`. `on_deliveries`: called after webhook deliveries were queued; `on_standing`:
        called when a number or account may have been stopped or resumed. `handover`: from this worker's Deliverer, for
        events committed together. `backlog`: the worker's; None: its own. `named`: from this worker's channel."""
        self._handover = handover
        self._pool = pool
        self._key = key
        self._rates = rates
        self._sealing = Sealing()
        self._on_deliveries = on_deliveries
        self._on_standing = on_standing
        self._backlog = backlog or Backlog(cycle=0.0)
        self._named = named
        self._marked: dict[UUID, float] = {}
        self._sent: dict[UUID, float] = {}
        self._dropped: Counter[str] = Counter()
        self._said_at = monotonic()
        #: Of apps with callbacks that had to wait for a locked row: how many callbacks to take next, and until when
        #: locks are waited for only briefly, in monotonic seconds. And the callbacks of the current batch.
        self._most: dict[UUID, int] = {}
        self._locks_until: dict[UUID, float] = {}
        self._picked: list[UUID] = []
        #: Set when callbacks were stored.
        self.wake = asyncio.Event()

    async def round(self) -> int:
        """Process one batch of each app with callbacks; returns the number of callbacks taken."""
        async with self._pool.acquire() as conn:
            await self._backlog.look(conn, intake.KIND)
            done = 0
            for app in self._backlog.lines(intake.KIND):
                try:
                    done += await self._batch(conn, app)
                except ROW_LOCKED as error:  # callbacks of other apps continue
                    _locked.warn(log, str(app), app_id=str(app), error=type(error).__name__)
                    await self._leave_locked(conn, app)
                    done += 1
                except TRANSIENT as error:
                    log.info("callbacks retried after a lock conflict", error=type(error).__name__)
                    await asyncio.sleep(AGAIN)
                    done += 1
                except Exception as error:
                    if is_down(error):
                        raise
                    log.exception("callbacks failed", app_id=str(app))  # those of other apps continue
        self._say()
        return done

    async def _leave_locked(self, conn: Connection, app: UUID) -> None:
        """Find the callback that waits for a locked row, by a batch of one and then larger ones until the next one
        fails, and leave it in the queue for a while."""
        self._most[app], self._locks_until[app] = 1, monotonic() + LOCKS_FOR
        if len(self._picked) == 1:
            with contextlib.suppress(asyncpg.LockNotAvailableError):  # another worker has it
                async with conn.transaction():
                    await conn.execute(BRIEFLY)
                    await conn.execute(LATER, self._picked, app, LOCKED_SECONDS)

    async def _batch(self, conn: Connection, app: UUID) -> int:
        most, self._picked = self._most.get(app, CALLBACKS), []
        dropped: Counter[str] = Counter()
        rejected: list[DeadLetter] = []
        growing: set[tuple[UUID, UUID]] = set()
        handed: list[Handover] = []
        async with abandoned(handed), self._backlog.transaction(conn):
            if monotonic() < self._locks_until.get(app, 0.0):
                await conn.execute(BRIEFLY)
            picked = await self._backlog.pick(conn, intake.KIND, {app: most})
            self._picked = [one.id for one in picked]
            taken = await conn.fetch(TAKE, [one.id for one in picked], ITEMS) if picked else []
            if len(taken) < len(picked):
                self._backlog.leave(conn)
            if not taken:
                return 0
            opened = self._opened(taken)
            if len(opened) < len(taken):
                known = {id for id, _, _ in opened}
                await conn.execute(LATER, [row["id"] for row in taken if row["id"] not in known], app, LATER_SECONDS)
            # As much as possible is done before wallets are locked.
            await conn.execute(DONE, [id for id, _, _ in opened], app)
            await self._sealing.refresh(conn)
            works = await self._routed(conn, app, opened, rejected, dropped, growing)
            deliveries = await self._apply(conn, works, rejected, dropped, handed)
            await self._mark(conn, works)
            await store(conn, self._key, rejected)
            crash_point("callbacks.before_commit")
        crash_point("callbacks.after_commit")
        if app in self._most:
            self._most[app] = min(CALLBACKS, 2 * most)
        for one in handed:
            one.deliver()
        self._dropped += dropped
        if deliveries:
            self._on_deliveries()
        if any(one.trying or _stops(one.item) for one in works):
            self._on_standing()
        await self._wake_mirror(conn, growing)
        return len(taken)

    async def _wake_mirror(self, conn: Connection, growing: Collection[tuple[UUID, UUID]]) -> None:
        """Start a sync of accounts with numbers that are not known yet; without it, one follows within ten minutes.

        An account's row is locked before those of its numbers, so this runs after the batch's commit.
        """
        try:
            for organization_id, account_id in sorted(growing):
                await numbers.wake_mirror(conn, organization_id, account_id, numbers=True)
        except (*TRANSIENT, asyncpg.QueryCanceledError) as error:
            log.info("sync of unknown numbers not started", error=type(error).__name__)

    def _opened(self, rows: Sequence[asyncpg.Record]) -> list[tuple[UUID, datetime, bytes]]:
        """Id, time and bytes of each callback that can be decrypted. The others were sealed under another secret key,
        and are left to a worker that has it."""
        opened = []
        for id, body, received_at in rows:
            try:
                opened.append((id, received_at, crypto.unseal(self._key, body, intake.context(id))))
            except crypto.Unsealable:
                continue
        if len(opened) < len(rows):
            log.error("callbacks cannot be decrypted", count=len(rows) - len(opened))
        return opened

    async def _routed(
        self,
        conn: Connection,
        app: UUID,
        opened: Sequence[tuple[UUID, datetime, bytes]],
        rejected: list[DeadLetter],
        dropped: Counter[str],
        growing: set[tuple[UUID, UUID]],
    ) -> list[Work]:
        """The items that have an owner and can be stored. Others are dropped, except users' messages and calls, and
        unparsable items. `growing` gets the accounts (organization, account) that seem to have a number not known
        yet."""
        found: list[tuple[Readable, datetime]] = []
        is_large = sum(len(raw) for _, _, raw in opened) > LARGE
        for item, at in await asyncio.to_thread(_parsed, opened) if is_large else _parsed(opened):
            if isinstance(item, PoisonItem):
                rejected.append(DeadLetter(app, at, item.reason, item.raw))
            elif isinstance(item, UnknownItem):
                dropped["unknown field"] += 1
            else:
                found.append((item, at))
        routes = await accounts.routes(conn, list({item.waba_id for item, _ in found}))
        works: list[Work] = []
        locked: list[Work] = []
        strays: list[tuple[StatusItem, datetime]] = []
        for item, at in found:
            work = route(item, app, at, routes)
            if isinstance(work, Work):
                if names_newly(item, routes[item.waba_id]):
                    growing.add((work.organization_id, work.account_id))
                is_locked = isinstance(item, MessageItem) and self._sealing.is_locked(work.organization_id)
                (locked if is_locked else works).append(work)
            elif work == UNKNOWN_NUMBER and isinstance(item, (MessageItem, CallItem)):
                # Its number may be too new for the mirror: it is retried after the next sync (`retry_awaited`).
                found_in = routes[item.waba_id]
                growing.add((found_in.organization_id, found_in.account_id))
                rejected.append(DeadLetter(app, at, work, raw_of(item), found_in.organization_id))
            elif work == UNKNOWN_NUMBER and isinstance(item, StatusItem):
                strays.append((item, at))
            else:
                dropped[work] += 1
        if strays:
            works += await moved(conn, app, strays, routes, dropped, growing)
        return works + await self._bare(conn, locked, rejected)

    async def _bare(self, conn: Connection, locked: Sequence[Work], rejected: list[DeadLetter]) -> list[Work]:
        """Of messages that cannot be sealed now, those that must take effect at once. The others become dead letters,
        for an operator to retry."""
        heard = [
            ReceivedItem(one.organization_id, one.number_id, one.item, one.at)
            for one in locked
            if isinstance(one.item, MessageItem) and one.number_id is not None
        ]
        stops = await received.stops(conn, heard) if heard else []
        for one, is_stop in zip(locked, stops, strict=True):
            if not is_stop:
                rejected.append(DeadLetter(one.app, one.at, LOCKED, raw_of(one.item)))
        return [
            msgspec.structs.replace(one, is_bare=True) for one, is_stop in zip(locked, stops, strict=True) if is_stop
        ]

    async def _apply(
        self,
        conn: Connection,
        works: Sequence[Work],
        rejected: list[DeadLetter],
        dropped: Counter[str],
        handed: list[Handover],
    ) -> int:
        """Apply all items, or all but those that fail alone; returns the webhook deliveries queued besides `handed`."""
        if not works:
            return 0
        try:
            async with conn.transaction():
                counted: Counter[str] = Counter()
                handover = self._handover()
                deliveries = await apply(
                    conn,
                    works,
                    rates=self._rates,
                    sealing=self._sealing,
                    dropped=counted,
                    handover=handover,
                    named=self._named,
                )
            dropped += counted
            if handover is not None:  # nothing is handed over from a rolled-back transaction
                handed.append(handover)
            return deliveries
        except Exception as error:
            if not blames_item(error):
                raise
            if len(works) > 1:
                middle = len(works) // 2
                deliveries = await self._apply(conn, works[:middle], rejected, dropped, handed)
                return deliveries + await self._apply(conn, works[middle:], rejected, dropped, handed)
            (one,) = works
            # Never the error's text: a driver's message may quote what a user wrote.
            log.error("callback item failed", item=type(one.item).__name__, error=type(error).__name__)
            rejected.append(
                DeadLetter(
                    one.app,
                    one.at,
                    f"{type(one.item).__name__}: {type(error).__name__}",
                    raw_of(one.item),
                    one.organization_id,
                )
            )
            return 0

    async def _mark(self, conn: Connection, works: Sequence[Work]) -> None:
        """Record which numbers were heard from, and which of them had a message sent, no more often than necessary."""
        now = monotonic()
        heard: dict[UUID, tuple[UUID, bool]] = {}
        for one in works:
            id = one.number_id
            if id is None:
                continue
            sent = _proves(one) and now - self._sent.get(id, -SENT_EVERY) >= SENT_EVERY
            if sent or now - self._marked.get(id, -MARK_EVERY) >= MARK_EVERY:
                heard[id] = (one.organization_id, sent or (id in heard and heard[id][1]))
        if not heard:
            return
        ids = sorted(heard)
        await conn.execute(MARK, [heard[id][0] for id in ids], ids, [heard[id][1] for id in ids])
        self._marked.update(dict.fromkeys(ids, now))
        proven = [id for id in ids if heard[id][1]]
        if proven:
            self._sent.update(dict.fromkeys(proven, now))
            self._on_standing()

    def _say(self) -> None:
        if self._dropped and monotonic() - self._said_at > SAY_EVERY:
            log.warning("callback items dropped", **self._dropped)
            self._dropped.clear()
            self._said_at = monotonic()


def _proves(work: Work) -> bool:
    """Whether it shows that a message was just sent, which proves that the number and its account work."""
    item = work.item
    return (
        isinstance(item, StatusItem)
        and item.status != "failed"
        and item.status in matching.STATUSES
        and work.at - item.at < NEWS
    )


def _stops(item: Readable) -> bool:
    """Whether it is a failure that may concern more than its message."""
    return isinstance(item, StatusItem) and item.status == "failed" and matching.stops(item)


def _parsed(opened: Sequence[tuple[UUID, datetime, bytes]]) -> list[tuple[Item, datetime]]:
    """The items of these callbacks, each with the time at which its callback arrived."""
    return [(item, at) for _, at, raw in opened for item in parse(raw)]


# Its rows stay locked until the commit, which deletes them; rows locked by another worker are skipped, and a worker
# that hangs is terminated by the server (`base.network.connecting`). A callback's weight is its number of items, or its
# size in kilobytes.
TAKE = """
WITH sized AS MATERIALIZED (
    SELECT c.id, sum(c.weight) OVER (ORDER BY c.id) - c.weight AS before
      FROM unnest($1::uuid[]) AS due (id) CROSS JOIN LATERAL (
           SELECT id, greatest(items, octet_length(body) / 1000) AS weight FROM whatsapp_callbacks
            WHERE id = due.id) c
)
SELECT c.id, c.body, c.received_at FROM sized CROSS JOIN LATERAL (
       SELECT id, body, received_at FROM whatsapp_callbacks WHERE id = sized.id) c
 WHERE sized.before < $2 ORDER BY c.id
"""
DONE = """
WITH gone AS (DELETE FROM whatsapp_callbacks WHERE id = ANY ($1))
DELETE FROM queue WHERE id = ANY ($1) AND line IS NOT DISTINCT FROM $2
"""
LATER = """
UPDATE queue SET due_at = now() + make_interval(secs => $3) WHERE id = ANY ($1) AND line IS NOT DISTINCT FROM $2
"""
MARK = """
UPDATE whatsapp_numbers n
   SET last_callback_at = now(), last_sent_at = CASE WHEN item.sent THEN now() ELSE last_sent_at END
  FROM unnest($1::uuid[], $2::uuid[], $3::boolean[]) AS item (organization_id, id, sent)
 WHERE n.organization_id = item.organization_id AND n.id = item.id
"""
