"""PostgreSQL is restarted under load, gracefully and not: requests are refused only while it is unavailable."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from heliograph.base.database.migrate import migrate
from heliograph.base.embedded.server import Embedded
from tests.embedded import Start
from tests.judge import judge, until_settled
from tests.load import Client, Load
from tests.processes import LONG, WINDOW, installation, until, until_true

#: How PostgreSQL is stopped: a fast shutdown, an immediate one, and without any.
WAYS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill -9": signal.SIGKILL}
RESTARTS = 30 if LONG else 4
#: Seconds between two restarts.
EVERY = 60.0 if LONG else 2.0
#: Seconds until messages are accepted again, once the database accepts connections.
BACK = 5.0
SESSIONS = 4


@pytest.mark.lasts(17)
@pytest.mark.timeout(RESTARTS * (EVERY + 30) + 120)
async def test_restarts_of_the_database_under_load(public_place: Path, tmp_path: Path, embedded: Start) -> None:
    server = embedded(public_place / "postgres", extra_settings={}, lock_timeout=5.0)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    ways = [*WAYS.values(), *random.choices(list(WAYS.values()), k=RESTARTS - len(WAYS))]
    random.shuffle(ways)
    away: list[tuple[float, float]] = []
    async with installation(server.url, tmp_path, sessions=SESSIONS) as made:
        api, worker = await made.api(), await made.worker()
        await worker.ready()
        async with Client(made.base_url, made.key) as client:
            await until_true(partial(client.ask, "GET", "/health"))
        async with Load(made.base_url, made.key) as load:
            await load.until_sent(20)
            for way in ways:
                await asyncio.sleep(EVERY)
                from_, to = await restart(server, way)
                away.append((from_, to))
                await until(lambda to=to: any(one.status == 202 and one.asked > to for one in load.answers))
        assert [api.status, worker.status] == [None, None], "they live through it"
        await until_settled(server.url, within=120)
        verdict = await judge(made, load.ledger, in_flight=RESTARTS * WINDOW * SESSIONS)
        assert not made.complaints

        for answer in load.answers:
            if answer.status != 202:
                assert answer.retry_after is not None
                assert int(answer.retry_after) >= 1
                assert any(from_ <= answer.at and answer.asked <= to + BACK for from_, to in away), (
                    "refused, though the database was there"
                )
        for _, to in away:
            back = min(one.at for one in load.answers if one.status == 202 and one.asked > to)
            assert back - to < BACK
        refused = sum(one.status == 503 for one in load.answers)
        assert refused > 0
        print(verdict, f"refused: {refused}, unanswered: {load.unanswered}")


async def restart(server: Embedded, way: signal.Signals) -> tuple[float, float]:
    """Stop the server this way and start it again; returns when it went down and when it was back (time.monotonic)."""
    from_ = time.monotonic()
    assert server.pid is not None
    os.kill(server.pid, way)
    await server.wait()
    await asyncio.sleep(0.5)
    await server.start()
    return from_, time.monotonic()
