"""Separate processes, as in production: several web processes and workers that share one database and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from heliograph.accounts import quota
from heliograph.accounts.api_keys import lifecycle
from heliograph.worker import FILES
from tests.judge import judge, until_settled
from tests.load import Client, Load
from tests.ports import held_port
from tests.processes import (
    GRANT,
    PRODUCTION_LEASES,
    Installation,
    Program,
    environment,
    installation,
    until,
    until_true,
)

pytestmark = pytest.mark.lasts(10)


async def test_two_of_each_and_workers_that_are_replaced_under_load(empty_database_url: str, tmp_path: Path) -> None:
    """Every message is requested twice, from both web processes at once, and reaches the supplier once: over its only
    session, which moves from worker to worker while they are replaced."""
    async with apart(empty_database_url, tmp_path) as (made, other):
        workers = [await made.worker(), await made.worker()]
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, made.smsc.bound)
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        async with (
            Load(made.base_url, made.key, senders=3) as here,
            Load(other, made.key, senders=3) as there,
        ):
            await here.until_sent(20)
            for n in (0, 1, 0):
                fresh = await made.worker()
                await fresh.ready()
                assert await workers[n].stop() == 0
                workers[n] = fresh
                at = len(made.smsc.received)
                await until(lambda at=at: len(made.smsc.received) > at + 20)
        common = here.ledger.keys() & there.ledger.keys()
        assert len(common) > 50
        assert {number: here.ledger[number] for number in common} == {number: there.ledger[number] for number in common}
        await until_settled(made.url)
        verdict = await judge(made, here.ledger | there.ledger, in_flight=0)
        assert (verdict.unknown, verdict.repeated) == (0, 0)
        conn = await asyncpg.connect(made.url)
        await until_true(lambda: conn.fetchval("SELECT bool_or(receipt_at IS NOT NULL) FROM supplier_health"))
        await conn.close()
        watching.cancel()
        assert most == 1, "the account allows one session"
        assert not made.complaints
        for worker in workers:
            assert await worker.stop() == 0
        assert made.smsc.bound == 0


async def test_the_last_of_the_quota_is_given_out_once(empty_database_url: str, tmp_path: Path) -> None:
    async with apart(empty_database_url, tmp_path) as (made, other):
        conn = await asyncpg.connect(made.url)
        left = await quota.grant(conn, made.actor.organization_id, amount=100 - GRANT, reason="test")
        assert left.remaining == 100
        async with Client(made.base_url, made.key) as here, Client(other, made.key) as there:

            async def send(client: Client, n: int) -> tuple[int, int]:
                body = {"to": f"+25884{n:07d}", "message": "Hello"}
                status, answer = await client.ask("POST", "/sms/send", json=body, headers={"idempotency-key": str(n)})
                if status == 409:
                    assert answer["error"]["code"] == "quota_exceeded"
                    return status, answer["error"]["details"]["remainingQuota"]
                return status, answer["remainingQuota"]

            answers = await asyncio.gather(*(send(here if n % 2 else there, n) for n in range(300)))
        assert Counter(status for status, _ in answers) == {202: 100, 409: 200}
        assert sorted(remaining for status, remaining in answers if status == 202) == list(range(100))
        assert {remaining for status, remaining in answers if status == 409} == {0}
        assert await conn.fetchval("SELECT sum(quantity) FROM usage_entries") == 0
        assert await conn.fetchval("SELECT count(*) FROM messages") == 100
        await conn.close()


async def test_a_revoked_key_is_refused_everywhere_within_a_second(empty_database_url: str, tmp_path: Path) -> None:
    async with apart(empty_database_url, tmp_path) as (made, other):
        conn = await asyncpg.connect(made.url)
        key, secret = await lifecycle.issue(conn, made.actor, name="another", profile="full_access", mode="live")
        await conn.close()
        answers: list[tuple[float, int]] = []
        async with Client(made.base_url, secret) as here, Client(other, secret) as there:

            async def ask_on(client: Client) -> None:
                while True:
                    asked = time.monotonic()
                    status, _ = await client.ask("GET", "/webhooks")
                    answers.append((asked, status))
                    # a hundred invalid requests a minute are answered with 401, and then no more
                    await asyncio.sleep(0.1)

            asking = [asyncio.create_task(ask_on(client)) for client in (here, there)]
            await until(lambda: len(answers) > 20)
            assert {status for _, status in answers} == {200}
            revoking = await Program.start(
                *("key", "revoke", str(key.id)), log=tmp_path / "revoke", environment=made.environment
            )
            assert await revoking.ended() == 0
            revoked = time.monotonic()

            def late() -> list[int]:
                return [status for asked, status in answers if asked > revoked + 1]

            await until(lambda: len(late()) > 10)
            for task in asking:
                task.cancel()
            assert set(late()) == {401}
            status, _ = await here.ask("GET", "/webhooks", headers={"authorization": f"Bearer {made.key}"})
            assert status == 200, "other keys go on"


@contextlib.asynccontextmanager
async def apart(url: str, place: Path) -> AsyncIterator[tuple[Installation, str]]:
    """An empty database migrated by `heliograph migrate`, an installation on it, and two web processes that share
    nothing else; yields the installation and the second one's address."""
    migrating = await Program.start(
        "migrate", log=place / "migrate", environment=environment(HELIOGRAPH_DATABASE_URL=url)
    )
    assert await migrating.ended() == 0, migrating.err
    with held_port() as port:
        async with installation(url, place, smsc={"max_binds": 1}, **PRODUCTION_LEASES) as made:
            other = f"http://127.0.0.1:{port}"
            await made.api()
            await made.api(port=port)
            for base_url in (made.base_url, other):
                async with Client(base_url, made.key) as client:
                    await until_true(partial(client.ask, "GET", "/health"))
            yield made, other


async def test_a_worker_may_open_more_files_than_usual(database_url: str, tmp_path: Path) -> None:
    """With the limit that shells and container engines begin with, its connections to receivers and suppliers were
    fewer than its settings say, though the system allowed more."""
    async with installation(database_url, tmp_path) as made:
        few = ("sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh")
        worker = await Program.start(
            "worker", "--json", log=tmp_path / "few", environment=made.environment, through=few
        )
        try:
            await worker.ready()
            soft, hard = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
            assert soft == (FILES if hard == resource.RLIM_INFINITY else min(FILES, hard))
        finally:
            await worker.kill()
