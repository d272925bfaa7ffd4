"""The worker process: everything behind the 202. Any number of them share one database.

Its work is listed in `CHANNELS`, and everything else in `Worker.__init__`: one part for each concern, with the loops
and timers that it runs (`queue.work`). What belongs to no concern (its heartbeat, retention, plans) is in `_timers`.

The rule nobody may break: a worker may end at any instant. On SIGTERM, or when an operator tells it to drain
(`queue.workers`), it stops claiming, lets open work finish for `drain_seconds`, records every answer, releases its
sessions and ends; after kill -9 others take over when its leases expire.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from uuid import UUID

import structlog

from heliograph import __version__, doctor, traffic
from heliograph.accounts import plans
from heliograph.base.database import clock, pulse
from heliograph.base.database.pool import Connection, Pool, is_down, open_pool
from heliograph.base.ids import uuid7
from heliograph.base.network.connecting import Connector
from heliograph.base.network.sockets import allow
from heliograph.base.process import crash, heartbeat
from heliograph.base.process.measures import Gauge
from heliograph.base.process.settings import Settings, current
from heliograph.base.standby.readers import Readers
from heliograph.campaigns import audience
from heliograph.campaigns.work import CampaignWork
from heliograph.consent.importing import OptOutImports
from heliograph.contacts.work import ContactWork
from heliograph.health import database as health
from heliograph.health import findings, keys, sizes
from heliograph.health.snapshots import Standbys
from heliograph.mail import outbox
from heliograph.mail.work import MailWork
from heliograph.metrics import database
from heliograph.metrics.exporting import Exporter, exported
from heliograph.notices import conditions
from heliograph.overview.exports import jobs
from heliograph.overview.exports.work import ExportWork
from heliograph.overview.installation import telling as operators_telling
from heliograph.pages.noticing import mail, operators, report
from heliograph.people.mailing import forgotten
from heliograph.people.noticing import telling
from heliograph.queue import timers, workers
from heliograph.queue.backlog import Backlog
from heliograph.queue.runner import every, listen, loop, once
from heliograph.queue.watch import Watch
from heliograph.queue.work import Loop, SharedTimer, Timer, Work
from heliograph.retention import forgetting, removing, shorter
from heliograph.sealing import text_keys
from heliograph.sms.received import inbox
from heliograph.sms.reports import daily
from heliograph.sms.work import SmsWork
from heliograph.traffic import reconciliation
from heliograph.webhooks.delivery.work import WebhookWork
from heliograph.webhooks.recording import traffic as webhook_traffic
from heliograph.webhooks.recording.handover import Deliveries
from heliograph.whatsapp.work import WhatsAppWork

log = structlog.get_logger()

#: Seconds to wait for the database at start.
PATIENCE = 60.0
#: Files that a worker may open, each connection to a supplier or receiver being one, if the system lets it.
FILES = 65_536
#: Makes a channel's part of a worker: (pool, settings, the worker's id, what delivers its events, the backlog).
MakesWork = Callable[[Pool, Settings, UUID, Deliveries, Backlog], Work]

CHANNELS: Mapping[str, MakesWork] = {"sms": SmsWork, "whatsapp": WhatsAppWork}


class Worker:
    """One worker process: its parts and their life cycle."""

    def __init__(self, settings: Settings, pool: Pool, *, channels: Mapping[str, MakesWork] = CHANNELS) -> None:
        self._settings = settings
        self._pool = pool
        self.id = uuid7()
        #: True if it was told to drain and stay idle: `work` waits, and continues with a new worker.
        self.stays = False
        self._fingerprints = keys.fingerprints(settings)
        self._stopping = asyncio.Event()
        self._asked = False
        #: Shared timers that this worker has taken, and whose work is not done.
        self._taken: set[str] = set()
        backlog = Backlog(cycle=settings.lease_seconds / 3, worker=self.id)
        webhooks = self._webhooks = WebhookWork(pool, settings, backlog)
        reader = partial(current, settings, "reader_database_url")
        made = {name: make(pool, settings, self.id, webhooks, backlog) for name, make in channels.items()}
        campaigns = CampaignWork(pool, {name: channel.queued for name, channel in made.items()})
        self._parts: Sequence[Work] = (
            *made.values(),
            webhooks,
            campaigns,
            ContactWork(pool, settings, {"opt_outs": OptOutImports()}),
            MailWork(pool, settings, {forgotten.ASKED: forgotten.answer}),
            ExportWork(
                pool,
                readers=Readers(settings.reader_database_url, current=reader, bound=settings.reader_wait_seconds),
            ),
        )
        self._watch = Watch(pool, backlog, every=settings.poll_seconds)
        self._loops: list[Loop] = [one for part in self._parts for one in part.loops()]
        for one in self._loops:
            if one.when is not None:
                self._watch.loop(one.when, one.wake.set, least=one.least)
        self._loops.append(Loop("watch", self._watch.step, self._watch.wake, poll=settings.poll_seconds))

    async def run(self, *, on_ready: Callable[[], None] = lambda: None) -> None:
        """Work until `stop`; returns after an orderly shutdown."""
        for part in self._parts:
            await part.start()
        # The database may become unavailable again before anything has started.
        await once("start", self._begin, stopping=self._stopping)
        tasks = [self._loop(one) for one in self._loops]
        tasks += [self._timer(one) for one in self._timers()]
        tasks += [asyncio.ensure_future(one) for part in self._parts for one in part.background()]
        # Notifications are sent to a session, which a pooler in transaction mode does not keep.
        direct = self._settings.direct_database
        notifier = Connector(getattr(self._settings, direct), current=partial(current, self._settings, direct))
        tasks.append(asyncio.create_task(listen(notifier, self._watch.wake.set)))
        clock.running()
        on_ready()
        await self._stopping.wait()
        await self._end(tasks)

    def gauges(self) -> Iterable[Gauge]:
        """The gauges of all parts."""
        for part in self._parts:
            yield from part.gauges()

    def stop(self) -> None:
        """Begin the orderly shutdown; a second call ends the process at once."""
        if self._asked:
            os._exit(1)
        self._asked = True
        self._halt()

    def _halt(self) -> None:
        self._stopping.set()
        for one in self._loops:
            one.wake.set()

    def _timers(self) -> list[Timer | SharedTimer]:
        return [
            Timer("beat", self._beat, heartbeat.BEAT),
            # One each: what fails or hangs in one part ends the leases of no other.
            *(Timer("renew", part.renew, self._settings.lease_seconds / 3) for part in self._parts),
            SharedTimer("keys", self._forget_keys, 600.0, in_steps=True),
            SharedTimer(traffic.TIMER, _fold, traffic.EVERY, when=_ANY_DELTAS, in_steps=True),
            SharedTimer(timers.FORGET, self._forget, 3600.0, in_steps=True),
            SharedTimer("plans", self._renew_plans, 30.0, in_steps=True),
            SharedTimer(conditions.TIMER, conditions.report, conditions.EVERY),
            SharedTimer(telling.TIMER, self._tell, telling.EVERY, when=telling.DUE),
            SharedTimer(daily.TIMER, self._report, daily.EVERY),
            SharedTimer(findings.TIMER, self._look, findings.EVERY, in_steps=True),
            SharedTimer(sizes.TIMER, self._sample, sizes.EVERY, in_steps=True),
            *(one for part in self._parts for one in part.timers()),
        ]

    async def _begin(self) -> None:
        shared = [one.name for one in self._timers() if isinstance(one, SharedTimer)]
        async with self._pool.acquire() as conn:
            for name in (*shared, inbox.TIMER):
                await timers.ensure(conn, name)
        await self._beat()
        for part in self._parts:
            await part.begin()

    async def _end(self, tasks: list[asyncio.Future[None]]) -> None:
        grace = self._settings.drain_seconds
        await asyncio.gather(*(part.stop(grace=grace) for part in self._parts), return_exceptions=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        is_drained = False
        try:
            async with asyncio.timeout(grace):
                # Together: one may wait for a lock. What the others have handed over follows.
                await asyncio.gather(*map(_drain, self._parts))
                await _drain(self._webhooks)
                for timer in self._taken:
                    await self._retry(timer)
                if not self.stays:
                    await workers.end(self._pool, self.id)
                is_drained = True
                await asyncio.gather(*(part.linger() for part in self._parts))
        except Exception as error:
            if is_drained:
                log.warning("stopped while answers waited for a locked row")
            else:
                log.warning("stopped without reaching the database", error=type(error).__name__)
        for part in self._parts:
            await part.close()

    def _loop(self, one: Loop) -> asyncio.Future[None]:
        return asyncio.create_task(loop(one.name, one.step, wake=one.wake, poll=one.poll, stopping=self._stopping))

    def _timer(self, one: Timer | SharedTimer) -> asyncio.Future[None]:
        if isinstance(one, Timer):
            return asyncio.create_task(every(one.name, one.step, seconds=one.seconds, stopping=self._stopping))
        wake = asyncio.Event()
        self._watch.timer(one.name, one.when, wake.set, every=one.seconds)
        shared = Loop(one.name, self._shared(one), wake)
        self._loops.append(shared)
        return self._loop(shared)

    def _shared(self, one: SharedTimer) -> Callable[[], Awaitable[int]]:
        """The step of a timer that is run by whichever worker takes it. Taking it is a commit of its own: a step that
        fails, or is cut off by a stop, waits for the timer's next time, but no longer than a minute."""

        async def step() -> int:
            try:
                async with self._pool.acquire() as conn:
                    if await timers.take(conn, one.name, every=one.seconds):
                        self._taken.add(one.name)
                        if one.in_steps:
                            await one.step(conn)
                        else:
                            async with conn.transaction():
                                await one.step(conn)
            except Exception:
                await self._retry(one.name)
                raise
            self._taken.discard(one.name)
            return 0

        return step

    async def _retry(self, timer: str) -> None:
        try:
            async with self._pool.acquire() as conn:
                await timers.retry(conn, timer)
        except Exception as error:
            if not is_down(error):
                raise

    async def _beat(self) -> None:
        told = await workers.beat(
            self._pool,
            self.id,
            name=heartbeat.name(),
            clock_ahead=clock.ahead(),
            version=__version__,
            secret_keys=self._fingerprints,
        )
        if told is not None and not self._stopping.is_set():
            log.info("drain requested", then=told)
            self.stays = told == "stay"
            self._halt()

    async def _tell(self, conn: Connection) -> None:
        await telling.tell(conn, box=outbox.of(self._settings), writes=mail.compose)

    async def _report(self, conn: Connection) -> None:
        writes = partial(report.compose, console=self._console())
        await daily.tell(conn, box=outbox.of(self._settings), writes=writes)

    def _console(self) -> str:
        """The console's address; "" if unknown."""
        known = self._settings
        address = (known.console_url or ("" if known.console_listen else known.public_url)).rstrip("/")
        return f"{address}/console" if address else ""

    async def _look(self, conn: Connection) -> None:
        checks = await doctor.examine(conn, self._settings, far=False)
        await findings.keep(conn, checks)
        writes = partial(operators.compose, console=self._console())
        async with conn.transaction():
            await operators_telling.tell(conn, checks, box=outbox.of(self._settings), writes=writes)

    async def _sample(self, conn: Connection) -> None:
        room = (await health.safety(conn, self._settings)).room
        await sizes.sample(conn, free=None if room is None else room.free)

    async def _renew_plans(self, conn: Connection) -> None:
        await plans.renew(conn)

    async def _forget_keys(self, conn: Connection) -> None:
        await forgetting.forget_keys(conn, self._settings)

    async def _forget(self, conn: Connection) -> None:
        steps = [
            forgetting.Step("recipients of campaigns", _forget_recipients),
            forgetting.Step("exports", jobs.forget),
            forgetting.Step("texts that are kept for a shorter time", shorter.forget),
            # After the texts: a message is removed once everything that repeats its text is gone.
            forgetting.Step(
                "messages that are kept for a shorter time", partial(removing.forget, settings=self._settings)
            ),
        ]
        if not await forgetting.forget(conn, self._settings, also=steps):
            await timers.hasten(conn, timers.FORGET)


async def _drain(part: Work) -> None:
    """Drain one part. That one fails, or waits for too long, loses none of another's answers, which exist only in this
    process."""
    try:
        await part.drain()
    except Exception as error:
        if is_down(error):
            log.warning("stopped without reaching the database", part=type(part).__name__, error=type(error).__name__)
        else:
            log.exception("part not drained", part=type(part).__name__)


_ANY_DELTAS = f"{traffic.ANY} OR {reconciliation.ANY} OR {webhook_traffic.ANY}"


async def _fold(conn: Connection) -> None:
    await traffic.fold(conn)
    await reconciliation.fold(conn)
    await webhook_traffic.fold(conn)


async def _forget_recipients(conn: Connection) -> bool:
    return await audience.forget(conn) < audience.MOST_FORGOTTEN


async def work(
    settings: Settings,
    *,
    stop: asyncio.Event,
    on_ready: Callable[[], None] = lambda: None,
    own_process: bool = True,
) -> None:
    """Run a worker until `stop` is set. Waits for the database at the start, and survives its outages.

    `own_process`: nothing else runs in this process, so its garbage collector is tuned. Raises ClockDiffers at the
    start.
    """

    def tune() -> None:
        if own_process:
            # Examining long-lived objects in every collection is a waste: 9–15 % of the time under load.
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 20)

    def begin() -> None:
        tune()
        on_ready()

    crash.arm(settings.crash_at)
    clock.arm(settings.clock_shift)
    text_keys.arm(settings)
    if own_process:
        allow(FILES)
    pool = await open_pool(
        settings.database_url,
        size=settings.database_pool,
        wait=PATIENCE,
        current=partial(current, settings, "database_url"),
        pooler=settings.pooler,
    )
    beating = asyncio.create_task(pulse.watch(pool))
    try:
        clock.demand()
        worker = Worker(settings, pool)

        async def watch() -> None:
            await stop.wait()
            worker.stop()

        watcher = asyncio.create_task(watch())
        exporter = Exporter(parts=lambda: worker.gauges(), database=partial(database.read, pool, Standbys()))
        try:
            async with exported(settings.metrics_listen, exporter):
                await worker.run(on_ready=begin)
                while worker.stays and await workers.stay(pool, worker.id, stop=stop):
                    log.info("resume requested")
                    worker = Worker(settings, pool)
                    await worker.run(on_ready=tune)
        finally:
            watcher.cancel()
    finally:
        beating.cancel()
        try:
            await asyncio.wait_for(pool.close(), 5.0)
        except Exception as error:
            if not is_down(error):
                raise
            pool.terminate()
