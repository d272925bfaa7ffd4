"""A worker's tasks for webhooks: deliveries, and replays of earlier events."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.base.database.pool import Connection, Pool
from heliograph.base.process.settings import Settings
from heliograph.http.client import HttpClient, webhook_rules
from heliograph.queue.backlog import Backlog
from heliograph.queue.work import Loop, SharedTimer, Timer, Work
from heliograph.webhooks import catcher, endpoints, replays
from heliograph.webhooks.delivery.delivery import Deliverer
from heliograph.webhooks.recording.handover import Handover


class WebhookWork(Work):
    """Webhooks within one worker. Implements `handover.Deliveries`."""

    def __init__(self, pool: Pool, settings: Settings, backlog: Backlog) -> None:
        self._settings = settings
        self._outbound = HttpClient(webhook_rules(settings))
        self._deliverer = Deliverer(
            pool, self._outbound, settings, seal_key=endpoints.seal_key(settings), backlog=backlog
        )
        backlog.on_work("webhook", self._deliverer.wake.set)

    def loops(self) -> Sequence[Loop]:
        return (Loop("webhooks", self._deliverer.round, self._deliverer.wake),)

    def timers(self) -> Sequence[Timer | SharedTimer]:
        return (
            Timer("webhook places", self._adapt, 0.5),
            SharedTimer("catchers", self._end_catchers, 5.0, when=catcher.ANY_PAST),
            SharedTimer("replays", self._replay, 1.0, when=replays.ANY_RUNNING, in_steps=True),
        )

    def queued(self) -> None:
        self._deliverer.wake.set()

    def handover(self) -> Handover:
        """A handover for one transaction of another part of the worker, whose events are delivered at once."""
        return self._deliverer.handover()

    async def stop(self, *, grace: float) -> None:
        await self._deliverer.drain(grace)

    async def drain(self) -> None:
        await self._deliverer.drain(0.0)  # deliveries handed over since

    async def linger(self) -> None:
        await self._deliverer.linger()

    async def renew(self) -> None:
        await self._deliverer.renew()

    async def close(self) -> None:
        await self._outbound.close()

    async def _adapt(self) -> None:
        self._deliverer.adapt()

    async def _end_catchers(self, conn: Connection) -> None:
        await catcher.end_past(conn)

    async def _replay(self, conn: Connection) -> None:
        if await replays.advance(conn):
            self._deliverer.wake.set()
