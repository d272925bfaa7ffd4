"""kill -9 of random victims under load: nothing that was answered is lost, and nothing is done twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from heliograph.base.database.migrate import migrate
from tests.embedded import Start
from tests.judge import judge, settled
from tests.load import Load
from tests.processes import LONG, WINDOW, installation, kill

KILLS = 500 if LONG else 12
#: Seconds between two kills, on average.
EVERY = 1.5
WORKERS = 2
#: The sessions of a worker that was killed are free again after some seconds, so there are some for the next ones.
SESSIONS = 12


@pytest.mark.lasts(24)
@pytest.mark.timeout(KILLS * 5 + 180)
async def test_random_kills_lose_nothing_and_double_nothing(
    public_place: Path, tmp_path: Path, embedded: Start
) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    # As `heliograph up` runs it: nothing about its durability is relaxed.
    server = embedded(public_place / "postgres", extra_settings={}, lock_timeout=5.0)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    # Each of them at least once, whatever chance says.
    victims = ["api", "worker", "postgres", *chance.choices(["api", "worker", "postgres"], k=KILLS - 3)]
    chance.shuffle(victims)
    print(f"seed {seed}: {' '.join(victims)}")
    async with installation(server.url, tmp_path, sessions=SESSIONS) as made:
        api = await made.api()
        workers = [await made.worker() for _ in range(WORKERS)]
        async with Load(made.base_url, made.key) as load:
            await load.reaches(10)
            for victim in victims:
                await asyncio.sleep(chance.uniform(0.3, 2 * EVERY - 0.3))
                if victim == "api":
                    await api.kill()
                    api = await made.api()
                elif victim == "worker":
                    n = chance.randrange(WORKERS)
                    await workers[n].kill()
                    workers[n] = await made.worker()
                else:
                    await kill(server)
        await settled(server.url, within=120)
        print(await judge(made, load.ledger, in_flight=KILLS * WINDOW * SESSIONS), f"unanswered: {load.unanswered}")
        assert not made.complaints
        assert {program.status for program in (api, *workers)} == {None}, "nothing ended by itself"
