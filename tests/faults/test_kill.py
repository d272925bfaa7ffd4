"""kill -9 of random processes under load: nothing that was accepted is lost, and nothing is done twice, whichever
suppliers carry the messages: SMPP and HTTP suppliers share them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import msgspec
import pytest

from heliograph.base.database.migrate import migrate
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import suppliers
from tests.embedded import Start
from tests.judge import judge, until_settled
from tests.load import Load
from tests.processes import LONG, WINDOW, Installation, installation, kill
from tests.suppliers.test_http_whole_way import ACCOUNTS, SECRET

KILLS = 500 if LONG else 8
#: Average number of seconds between two kills.
EVERY = 1.5
WORKERS = 2
#: A killed worker's sessions are free again after some seconds, so there are spare ones for its successor.
SESSIONS = 12
#: HTTP suppliers besides the SMPP one: one that uses our reference as its id, one that returns its own id and does not
#: know ours, and one that has no ids.
PROFILES = ("infobip", "africastalking", "plain")


@contextlib.asynccontextmanager
async def aggregators(made: Installation) -> AsyncIterator[None]:
    """Simulated HTTP suppliers, which get the same share as the SMPP one."""
    made.environment["HELIOGRAPH_PUBLIC_URL"] = made.base_url
    settings = msgspec.structs.replace(made.settings, public_url=made.base_url)
    key = suppliers.seal_key(settings)
    async with contextlib.AsyncExitStack() as stack:
        conn = await asyncpg.connect(made.url)
        stack.push_async_callback(conn.close)
        for profile in PROFILES:
            # Numbers have no magic endings. A callback that finds nobody listening is repeated until somebody is.
            options = Options(
                profile=profile,
                secret=SECRET,
                latency=0.02,
                receipt_delay=0.05,
                redeliver_after=0.5,
                redeliveries=1000,
                always="delivered",
            )
            supplier = Aggregator(options)
            await supplier.start()
            stack.push_async_callback(supplier.stop)
            kind, values, secrets = ACCOUNTS[profile]
            id = await suppliers.add(
                conn,
                key,
                name=profile,
                kind=kind,
                settings={"base_url": supplier.base_url, "window": WINDOW, **values},
                secret=msgspec.json.encode({"secret": SECRET} | secrets).decode(),
                sessions=SESSIONS,
            )
            supplier.options = msgspec.structs.replace(options, callback=addresses.address(settings, id))
            made.aggregators.append(supplier)
        yield


@pytest.mark.lasts(18)
@pytest.mark.timeout(KILLS * 5 + 180)
async def test_random_kills_lose_nothing_and_double_nothing(
    public_place: Path, tmp_path: Path, embedded: Start
) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    # Like `heliograph up`: durability is not relaxed in any way.
    server = embedded(public_place / "postgres", extra_settings={}, lock_timeout=5.0)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    # Each process at least once, however the dice fall.
    victims = ["api", "worker", "postgres", *chance.choices(["api", "worker", "postgres"], k=KILLS - 3)]
    chance.shuffle(victims)
    print(f"seed {seed}: {' '.join(victims)}")
    async with installation(server.url, tmp_path, sessions=SESSIONS) as made, aggregators(made):
        api = await made.api()
        workers = [await made.worker() for _ in range(WORKERS)]
        async with Load(made.base_url, made.key) as load:
            await load.until_sent(10)
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
        await until_settled(server.url, within=120)
        print(await judge(made, load.ledger, in_flight=KILLS * WINDOW * SESSIONS * 4), f"unanswered: {load.unanswered}")
        carried = [len(one.taken) for one in made.aggregators] + [len(made.smsc.received)]
        assert min(carried) > 0, carried
        assert not made.complaints
        ended = [program.err[-2000:] for program in (api, *workers) if program.status is not None]
        assert not ended, "nothing ended by itself"
