"""kill -9 of web process, worker and PostgreSQL while WhatsApp messages are sent and Meta's callbacks arrive in bursts:
each 202 results in one message to the user, one charge, one final state, one event.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from pathlib import Path

import pytest

from heliograph.base.database.migrate import migrate
from heliograph.simulators.graph.callbacks.scripts import Script
from tests.cloud import Cloud, CloudLoad, cloud, subscribe
from tests.embedded import Start
from tests.judge_whatsapp import judge, until_settled
from tests.load import Client
from tests.processes import LONG, PRODUCTION_LEASES, Installation, Program, installation, kill, until, until_true

KILLS = 100 if LONG else 6
#: Bursts of all past updates of some messages; a web process and a worker are killed during each.
STORMS = 10 if LONG else 1
#: The number of messages per burst, at most: about a thousand updates.
STORMY = 400
#: How often a web process ends at each point.
CRASHES = 10 if LONG else 1
#: Average number of seconds between two kills.
EVERY = 1.0
WORKERS = 2
#: How long a send whose response was lost waits for a status, in seconds. Longer than a web process or PostgreSQL is
#: ever down here: sending again is right only if a callback could have been received.
GRACE = 10.0
FAST = {
    "HELIOGRAPH_LEASE_SECONDS": "2",
    "HELIOGRAPH_WHATSAPP_UNCERTAIN_GRACE_SECONDS": str(GRACE),
    "HELIOGRAPH_RATE_MUTATIONS": "1000000",
}
#: Outcomes by the last two digits of a number; all other messages are sent, delivered and read.
FATES = {"01": "undeliverable", "02": "read_without_delivered", "05": "backwards", "06": "twice", "07": "early"}
FATES |= {"13": "dropped", "14": "priced_late"}
#: What customers see for messages that cannot be delivered.
FAILED = {"01": "recipient_unreachable"}
#: The first send breaks before Meta has it: an authentication code is given up, everything else is sent again.
BROKEN = ("22", "26")
#: Meta retries unacknowledged callbacks after growing pauses; here the pauses end as soon as somebody listens again, in
#: seconds.
PAUSES = 600.0


@pytest.mark.lasts(45)
@pytest.mark.timeout(KILLS * 8 + STORMS * 20 + 600)
async def test_random_kills_while_sending_and_amid_bursts_of_callbacks(
    cluster_home: Path, tmp_path: Path, embedded: Start
) -> None:
    seed = random.randrange(1_000_000)
    drill = Drill(random.Random(seed))
    victims = ["api", "worker", "postgres", *drill.chance.choices(["api", "worker"], k=KILLS - 3)]
    drill.chance.shuffle(victims)
    print(f"seed {seed}: {' '.join(victims)}")
    server = embedded(cluster_home, extra_settings={}, lock_timeout=5.0)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    async with (
        installation(server.url, tmp_path, **FAST) as made,
        # By Meta's newer rules, a number's replies beyond a thousand per month are charged, which a long run reaches.
        cloud(made, magic="", latency_ms=20.0, p99_ms=80.0, seed=seed, pricing_rules="2025-07") as sky,
    ):
        for ending, script in FATES.items():
            sky.graph.script(ending, script)
        for ending in BROKEN:
            sky.graph.script(ending, Script(answer="drop", lost=True, times=1))
        await subscribe(sky, ["message.received"])
        await drill.begin(made, sky)
        load = CloudLoad(sky)
        bursts = asyncio.create_task(drill.bursts())
        async with load:
            await load.until_sent(30)
            for victim in victims:
                await asyncio.sleep(drill.chance.uniform(0.3, 2 * EVERY - 0.3))
                if victim == "postgres":
                    at = time.monotonic()
                    await kill(server)
                    await drill.until_listening(since=at)
                else:
                    await drill.kill(victim)
            await load.until_sent(120)
        for _ in range(STORMS):
            await drill.repeat_everything()
        bursts.cancel()
        await drill.end_bursts()
        # The last lost response waits for several grace periods, if Meta has nothing more to report.
        await until_settled(sky, within=150)
        # Not only while nobody listened: a callback that was refused twice on a busy machine waits longer, too.
        waited = max(drill.longest, drill.lag + sky.graph.outbox().slowest)
        verdict = await judge(sky, load, fates=FAILED, callbacks_in_time=waited < GRACE / 2)
        print(verdict, f"unanswered: {load.unanswered}, without callbacks: {waited:.1f} s", sky.graph.counters)
        assert not made.complaints, made.stderr
        assert {program.status for program in drill.running} == {None}, "nothing ended by itself"


@pytest.mark.lasts(15)
@pytest.mark.timeout(CRASHES * 60 + 180)
async def test_a_web_process_that_ends_before_or_after_the_commit_of_a_send(database_url: str, tmp_path: Path) -> None:
    async with installation(database_url, tmp_path, **FAST | PRODUCTION_LEASES) as made, cloud(made, magic="") as sky:
        await subscribe(sky, ["message.received"])
        worker, api = await made.worker(), await made.api()
        await sky.ready()
        await api.kill()
        load = CloudLoad(sky, senders=3)
        async with load:
            for point in ["accept.before_commit", "accept.after_commit"] * CRASHES:
                api = await made.api(HELIOGRAPH_CRASH_AT=f"{point}:{random.randint(2, 8)}")
                assert await api.ended() == -signal.SIGKILL, api.err
                api = await made.api()
                await until_listening(made, sky)
                await load.until_sent(len(load.ledger) + 5)
                await api.kill()
            api = await made.api()
            await until_listening(made, sky)
            await load.until_sent(len(load.ledger) + 10)
        assert load.unanswered > 0
        await until_settled(sky)
        verdict = await judge(sky, load, fates={})
        assert (verdict.doubles, verdict.given_up, verdict.unknown) == (0, 0, 0)
        assert [api.status, worker.status] == [None, None]
        assert not made.complaints, made.stderr


class Drill:
    """Kills processes, and says how Meta behaves meanwhile."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        #: The longest time in which no callback was accepted, in seconds.
        self.longest = 0.0
        #: The longest delay of this process, and of the simulated Meta in it, in seconds.
        self.lag = 0.0
        self.running: list[Program] = []

    async def begin(self, made: Installation, sky: Cloud) -> None:
        """Start everything: a web process, and workers."""
        self._made, self._sky = made, sky
        self.running = [await made.api(), *[await made.worker() for _ in range(WORKERS)]]
        await sky.ready()

    async def kill(self, victim: str) -> None:
        """kill -9 of the web process or of a worker, and start another one in its place."""
        at = time.monotonic()
        if victim == "api":
            await self.running[0].kill()
            self.running[0] = await self._made.api()
            await self.until_listening(since=at)
        else:
            n = self.chance.randint(1, WORKERS)
            await self.running[n].kill()
            self.running[n] = await self._made.worker()

    async def until_listening(self, *, since: float) -> None:
        """Wait until callbacks are accepted again, which they were not since `since` (time.monotonic)."""
        await until_listening(self._made, self._sky)
        self.longest = max(self.longest, time.monotonic() - since)

    async def bursts(self) -> None:
        """Callbacks are held back and arrive all at once, in any order, some twice, in batches of all sizes."""
        graph, chance = self._sky.graph, self.chance
        while True:
            box = graph.outbox()
            box.hold()
            pause, at = chance.uniform(0.1, 0.7), time.monotonic()
            await asyncio.sleep(pause)
            self.lag = max(self.lag, time.monotonic() - at - pause)
            self._shuffle_callbacks(chance.choice([1, 7, 100, 1000]))
            box.release()
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            await box.repeat(2, last=3)

    async def repeat_everything(self) -> None:
        """Every past update of many messages is sent again, in the largest batches; web process and worker are killed
        during it."""
        graph = self._sky.graph
        for victim in ("api", "worker"):
            graph.outbox().hold()
            messages = list(graph.world.messages.values())
            for message in self.chance.sample(messages, min(STORMY, len(messages))):
                for status in list(message.statuses):
                    graph.status(message.id, status, code=131026 if status == "failed" else 0)
            self._shuffle_callbacks(1000)
            taken = graph.counters.items_taken
            graph.outbox().release()
            await until(lambda taken=taken: graph.counters.items_taken > taken)  # type: ignore[misc]
            await self.kill(victim)

    async def end_bursts(self) -> None:
        """Callbacks are sent as they come."""
        self._sky.graph.configure(duplicates=0.0, duplicate_items=0.0, batch=100)
        self._sky.graph.outbox().release()
        await self._sky.graph.clock.advance(PAUSES)

    def _shuffle_callbacks(self, batch: int) -> None:
        self._sky.graph.configure(
            batch=batch, grouping="mixed", shuffle=True, duplicates=0.2, duplicate_items=0.1, concurrency=16
        )


async def until_listening(made: Installation, sky: Cloud) -> None:
    """Wait until callbacks are accepted again, and have Meta retry the rest at once."""

    async def healthy() -> bool:
        return (await client.ask("GET", "/health"))[0] == 200

    async with Client(made.base_url, made.key) as client:
        await until_true(healthy, within=120)
    await sky.graph.clock.advance(PAUSES)
