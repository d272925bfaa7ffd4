"""The mirror: due accounts are read from Meta, each by one worker at a time.

Numbers, their health and the credential are read about every ten minutes, all templates every half hour, individual
templates a little after an event about them. A claim advances an account's times by a lease, so that other workers take
over if one dies.

The rule nobody may break: no database connection is held while waiting for Meta.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec
import structlog

from heliograph.base import retry
from heliograph.base.crypto import Key, Unsealable
from heliograph.base.database.pool import Connection, Pool, is_down
from heliograph.queue.runner import note_unavailable
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from heliograph.whatsapp.mirror import accounts, apps, sync
from heliograph.whatsapp.mirror.apps import App
from heliograph.whatsapp.mirror.sync import Changed, Known, Reading

log = structlog.get_logger()

#: Accounts read concurrently by one worker.
AT_ONCE = 4
#: Seconds after which an unfinished claim passes to another worker; and the time limit of a reading.
LEASE, LONGEST = 300.0, 240.0
#: Maximum templates read individually at a time; beyond it, reading all is cheaper.
MOST_SINGLE = 20
#: If Meta advises a longer pause, the reading is postponed, seconds.
PATIENCE = 60.0

#: An SQL condition: an account is due.
ANY_DUE = "EXISTS (SELECT FROM whatsapp_accounts WHERE mirror_at <= now() AND state <> 'removed')"
# The due times are set to the end of the lease, earlier than the next regular reading and later than one requested by
# an event: so they show whether an event requested one meanwhile.
CLAIM = """
WITH due AS MATERIALIZED (
    SELECT organization_id, id, numbers_at <= now() AS numbers, templates_at <= now() AS templates
      FROM whatsapp_accounts WHERE mirror_at <= now() AND state <> 'removed'
     ORDER BY mirror_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE whatsapp_accounts a
   SET mirror_at = now() + make_interval(secs => $2),
       numbers_at = CASE WHEN due.numbers THEN now() + make_interval(secs => $2) ELSE numbers_at END,
       templates_at = CASE WHEN due.templates THEN now() + make_interval(secs => $2) ELSE templates_at END
  FROM due WHERE a.organization_id = due.organization_id AND a.id = due.id
RETURNING a.organization_id, a.id, a.app, a.waba_id, a.base_url, a.api_version, a.token, due.numbers, due.templates,
          a.mirror_at AS lease
"""
# A reading that is due within the lease stays due: an event has requested it, and this one may be too early for it.
TAKE = """
UPDATE whatsapp_accounts
   SET mirror_at = now() + make_interval(secs => $3),
       numbers_at = CASE WHEN $4 AND (numbers_at > now() AND numbers_at < now() + make_interval(secs => $3)) IS NOT TRUE
                         THEN now() + make_interval(secs => $3) ELSE numbers_at END,
       templates_at = CASE WHEN $5 AND (templates_at > now() AND templates_at < now() + make_interval(secs => $3))
                                IS NOT TRUE
                           THEN now() + make_interval(secs => $3) ELSE templates_at END
 WHERE organization_id = $1 AND id = $2 AND state <> 'removed'
RETURNING organization_id, id, app, waba_id, base_url, api_version, token, $4::boolean AS numbers,
          $5::boolean AS templates, mirror_at AS lease
"""
SINGLE = """
SELECT id, graph_id FROM whatsapp_templates
 WHERE organization_id = $1 AND account_id = $2 AND reread_at <= now() ORDER BY reread_at LIMIT $3
"""
KNOWN_TEMPLATES = """
SELECT id, graph_id, name, language FROM whatsapp_templates
 WHERE organization_id = $1 AND account_id = $2 AND status <> 'removed' ORDER BY missing_at NULLS FIRST, id
"""
KNOWN_NUMBERS = """
SELECT graph_id FROM whatsapp_numbers WHERE organization_id = $1 AND account_id = $2 AND state = 'active' ORDER BY id
"""
# A reading that was requested meanwhile is not.
PUT_OFF = """
UPDATE whatsapp_accounts
   SET mirror_at = CASE WHEN mirror_at = $6 THEN now() + make_interval(secs => $3) ELSE mirror_at END,
       mirror_detail = $4, failures = failures + $5,
       numbers_at = CASE WHEN numbers_at = $6 THEN now() + make_interval(secs => $3) ELSE numbers_at END,
       templates_at = CASE WHEN templates_at = $6 THEN now() + make_interval(secs => $3) ELSE templates_at END
 WHERE organization_id = $1 AND id = $2 AND state <> 'removed'
"""

# Whoever waits for a reading that was aborted has it from another worker, or the next start, at once. If it was stored
# just before, no time is its lease anymore.
GIVE_UP = """
UPDATE whatsapp_accounts
   SET mirror_at = now(), numbers_at = CASE WHEN numbers_at = $3 THEN now() ELSE numbers_at END,
       templates_at = CASE WHEN templates_at = $3 THEN now() ELSE templates_at END
 WHERE organization_id = $1 AND id = $2 AND $3 IN (mirror_at, numbers_at, templates_at) AND state <> 'removed'
"""


class _Due(msgspec.Struct, frozen=True):
    organization_id: UUID
    id: UUID
    app: UUID
    waba_id: str
    base_url: str
    api_version: str
    token: bytes
    numbers: bool
    templates: bool
    lease: datetime


class Mirror:
    """The readings of one process. Created and used inside one running event loop; `close` it."""

    def __init__(
        self,
        pool: Pool,
        *,
        key: Key,
        on_deliveries: Callable[[], None] = lambda: None,
        connect: Callable[[str, str], CloudClient] = CloudClient,
        chance: random.Random | None = None,
    ) -> None:
        """`key`: from `apps.seal_key`. `connect`: (base URL, version) → client."""
        self._pool = pool
        self._key = key
        self._on_deliveries = on_deliveries
        self._connect = connect
        self._chance = chance or random.Random()
        self._clients: dict[tuple[str, str], CloudClient] = {}
        self._tasks: dict[asyncio.Task[None], _Due] = {}

    async def step(self) -> int:
        """Begin to read due accounts, as many as there is capacity for; returns how many. The readings continue in the
        background."""
        room = AT_ONCE - len(self._tasks)
        due = await self._claim(room) if room > 0 else []
        for one in due:
            task = asyncio.create_task(self._guarded(one))
            self._tasks[task] = one
            task.add_done_callback(self._tasks.pop)
        return len(due)

    async def round(self) -> int:
        """`step`, and wait until all readings in progress have ended."""
        begun = await self.step()
        await asyncio.gather(*self._tasks)
        return begun

    async def sync(
        self, organization_id: UUID, account_id: UUID, *, numbers: bool = True, templates: bool = True
    ) -> tuple[Reading, Changed] | None:
        """Read one account now, whether or not it is due; None: there is no such account. Meta's advice to wait is
        heeded only within the reading. Raises Invalid if its token was sealed with another secret key."""
        row = await self._pool.fetchrow(TAKE, organization_id, account_id, LEASE, numbers, templates)
        with apps.opening():
            return None if row is None else await self._read(_Due(**row))

    async def close(self) -> None:
        """Abort readings in progress, make their accounts due again, and close the connections to Meta."""
        under_way = dict(self._tasks)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        try:
            for one in under_way.values():
                await self._pool.execute(GIVE_UP, one.organization_id, one.id, one.lease)
        except Exception as error:
            if not is_down(error):
                raise
            note_unavailable(error, loop="whatsapp mirror")  # the leases end
        finally:
            for client in self._clients.values():
                await client.close()
            self._clients.clear()

    async def _claim(self, room: int) -> list[_Due]:
        return [_Due(**row) for row in await self._pool.fetch(CLAIM, room, LEASE)]

    async def _guarded(self, due: _Due) -> None:
        """Read; a failure postpones only this account. Never raises."""
        try:
            await self._attempt(due)
        except Exception as error:
            # The lease ends, and the account is due again.
            if is_down(error):
                note_unavailable(error, loop="whatsapp mirror")
            else:
                log.exception("whatsapp sync failed", account_id=str(due.id))

    async def _attempt(self, due: _Due) -> None:
        try:
            wait = self._client(due).pause(accounts.open_token(self._key, due.id, due.token))
            if wait > PATIENCE:
                detail = f"Meta's rate limit is exhausted: next attempt in {wait:.0f} s"
                await self._put_off(due, wait, detail, failed=0)
                return
            async with asyncio.timeout(LONGEST):
                found, changed = await self._read(due)
        except TimeoutError:
            await self._put_off(due, retry.META_SYNC.first, "it timed out", failed=1)
            return
        except Unsealable as error:
            await self._put_off(due, retry.META_SYNC.longest, str(error), failed=1)
            return
        except Exception as error:
            if is_down(error):
                raise
            log.exception("whatsapp sync failed", account_id=str(due.id))
            await self._put_off(due, retry.META_SYNC.first, type(error).__name__, failed=1)
            return
        if found.problems:
            log.warning("whatsapp sync incomplete", account_id=str(due.id), problems=found.problems[:3])
        if changed.deliveries:
            self._on_deliveries()

    async def _read(self, due: _Due) -> tuple[Reading, Changed]:
        token = accounts.open_token(self._key, due.id, due.token)
        async with self._pool.acquire() as conn:
            app: App = await apps.get_app(conn, self._key, due.app)
            single = await self._single(conn, due)
            known = await self._known(conn, due)
        client = self._client(due)
        templates = due.templates or len(single) > MOST_SINGLE
        found = await sync.read(
            client,
            due.waba_id,
            token,
            app,
            numbers=due.numbers,
            templates=templates,
            single={} if templates else single,
            known=known,
        )
        async with self._pool.acquire() as conn:
            changed = await sync.store(
                conn,
                due.organization_id,
                due.id,
                found,
                lease=due.lease,
                spread=self._chance.uniform(0.75, 1.25),
                stretch=1.0 + client.pause(token) / 15.0,
            )
            await sync.wake_others(conn, due.organization_id, due.id, changed)
        return found, changed

    async def _single(self, conn: Connection, due: _Due) -> dict[UUID, str]:
        rows: list[asyncpg.Record] = await conn.fetch(SINGLE, due.organization_id, due.id, MOST_SINGLE + 1)
        return {row["id"]: row["graph_id"] for row in rows}

    async def _known(self, conn: Connection, due: _Due) -> Known:
        templates = await conn.fetch(KNOWN_TEMPLATES, due.organization_id, due.id)
        numbers = await conn.fetch(KNOWN_NUMBERS, due.organization_id, due.id)
        return Known(
            [row["graph_id"] for row in numbers],
            {row["id"]: (row["graph_id"], row["name"], row["language"]) for row in templates},
        )

    async def _put_off(self, due: _Due, seconds: float, detail: str, *, failed: int) -> None:
        await self._pool.execute(PUT_OFF, due.organization_id, due.id, seconds, detail, failed, due.lease)

    def _client(self, due: _Due) -> CloudClient:
        at = (due.base_url, due.api_version)
        client = self._clients.get(at)
        if client is None:
            client = self._clients[at] = self._connect(*at)
        return client
