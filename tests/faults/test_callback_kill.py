"""Processes are killed while callbacks arrive and are processed: Meta repeats what was not acknowledged, and everything
is applied exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import random
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import aiohttp
import asyncpg
import pytest

from heliograph.base.database.pool import open_pool
from tests.database import Cluster
from tests.processes import LONG, Installation, installation, until, until_true
from tests.rules.callback_factories import Change, batch, message, status
from tests.rules.whatsapp_factories import APP_SECRET, SECRET_KEY, Made, check_wallets, made
from tests.rules.whatsapp_factories import message as outbound

pytestmark = pytest.mark.lasts(23)

#: Where a process ends: before a commit, after a commit, and for the last at any moment.
API = [{"HELIOGRAPH_CRASH_AT": "callback.before_commit"}, {"HELIOGRAPH_CRASH_AT": "callback.after_commit"}, {}]
WORKER = [{"HELIOGRAPH_CRASH_AT": "callbacks.before_commit"}, {"HELIOGRAPH_CRASH_AT": "callbacks.after_commit"}, {}]
CRASHES = 6 if LONG else 2
USERS, MESSAGES = 40, 40


class Meta:
    """Posts all updates in batches, and repeats those that were not answered with 200 in new batches. Repeats
    acknowledged updates, too, until it is told to finish."""

    def __init__(self, base_url: str, app: UUID, changes: list[Change]) -> None:
        self._address = f"{base_url}/in/whatsapp/{app}"
        self._changes = changes
        self._waiting = list(changes)
        self._chance = random.Random()
        self.finishing = False
        self.answered = self.unanswered = 0

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session:
            while self._waiting or not self.finishing:
                if not self._waiting:
                    self._waiting = self._chance.choices(self._changes, k=20)
                self._chance.shuffle(self._waiting)
                sent = [self._take() for _ in range(4)]
                await asyncio.gather(*(self._post(session, some) for some in sent))
                await asyncio.sleep(0.02)

    def _take(self) -> list[Change]:
        some = self._waiting[: self._chance.randint(1, 8)]
        del self._waiting[: len(some)]
        return some

    async def _post(self, session: aiohttp.ClientSession, some: list[Change]) -> None:
        body = batch(some)
        header = "sha256=" + hmac.new(APP_SECRET.encode(), body, hashlib.sha256).hexdigest()
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.post(self._address, data=body, headers={"x-hub-signature-256": header}) as answer:
                if answer.status == 200:
                    self.answered += 1
                    return
        self.unanswered += 1
        self._waiting += some


@pytest.mark.timeout(CRASHES * 120 + 120)
async def test_processes_that_end_lose_no_callback_and_apply_none_twice(
    database_server: Cluster, tmp_path: Path
) -> None:
    async def drill(n: int) -> None:
        (place := tmp_path / str(n)).mkdir()
        async with database_server.database() as url, installation(url, place, HELIOGRAPH_SECRET_KEY=SECRET_KEY) as one:
            await crash(one, API[n], WORKER[n])

    results = await asyncio.gather(*(drill(n) for n in range(len(API))), return_exceptions=True)
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise ExceptionGroup("drills failed", failed)


async def crash(one: Installation, api_setting: dict[str, str], worker_setting: dict[str, str]) -> None:
    pool = await open_pool(one.url, size=2)
    try:
        acme = await made(pool)
        ids = [await outbound(pool, acme, age=timedelta(minutes=1), queued=False) for _ in range(MESSAGES)]
        meta = Meta(one.base_url, acme.app, all_changes(acme, ids))
        posting = asyncio.create_task(meta.run())
        for _ in range(CRASHES):
            before = meta.answered
            api = await one.api(**_nth(api_setting))
            worker = await one.worker(**_nth(worker_setting))
            if not api_setting:
                await until(lambda before=before: meta.answered > before, within=120)
                await asyncio.sleep(random.uniform(0, 0.5))
                await api.kill()
                await worker.kill()
                continue
            assert await api.ended() == -signal.SIGKILL, api.err
            again = await one.api()
            assert await worker.ended() == -signal.SIGKILL, worker.err
            await again.kill()
        await one.api()
        last = await one.worker()
        meta.finishing = True
        await asyncio.wait_for(posting, 120)

        async def all_done() -> object:
            return await pool.fetchval("SELECT NOT EXISTS (SELECT FROM whatsapp_callbacks)")

        await until_true(all_done, within=120)
        await judge(pool, acme, ids)
        assert meta.unanswered > 0
        assert await last.stop() == 0
        assert not one.complaints
    finally:
        pool.terminate()


def all_changes(acme: Made, ids: list[UUID]) -> list[Change]:
    """Two inbound messages from each user and all statuses of each outbound message, unsorted."""
    changes = [message(acme, text, by=f"+2588412{n:05d}") for n in range(USERS) for text in ("hello", "STOP")]
    for id in ids:
        for word in ("sent", "delivered", "read"):
            changes.append(status(acme, f"wamid.{id}", word, biz_opaque_callback_data=str(id)))
    return changes


async def judge(pool: asyncpg.Pool[asyncpg.Record], acme: Made, ids: list[UUID]) -> None:
    """Everything was applied exactly once."""
    rows = await pool.fetch("SELECT kind FROM events WHERE kind <> 'sender_id.approved'")
    kinds = Counter(row[0] for row in rows)
    assert kinds == {
        "message.received": 2 * USERS,
        "contact.opted_out": USERS,
        "message.delivered": MESSAGES,
    }
    told = await pool.fetch("SELECT count(*) FROM events WHERE kind LIKE 'message.%' GROUP BY message_id")
    assert {row[0] for row in told} == {1}
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE direction = 'inbound'") == 2 * USERS
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_conversations WHERE expires_at > now()") == USERS
    read = await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE id = ANY ($1) AND status = 'read'", ids)
    assert read == MESSAGES
    assert await pool.fetchval("SELECT consumed FROM wallets") == MESSAGES * 10_000
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0
    assert await pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'whatsapp_in'") == 0
    await check_wallets(pool, [acme.organization_id])


def _nth(setting: dict[str, str]) -> dict[str, str]:
    return {name: f"{point}:{random.randint(1, 3)}" for name, point in setting.items()}
