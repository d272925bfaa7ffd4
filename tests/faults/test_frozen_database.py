"""PostgreSQL is frozen under load (SIGSTOP, every process): nobody is kept waiting, and everything recovers by
itself."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from heliograph.base.database.migrate import migrate
from heliograph.base.embedded.server import Embedded
from tests.embedded import Start
from tests.faults.bystanders import Bystanders
from tests.judge import judge, until_settled
from tests.load import Client, Load
from tests.processes import LONG, WINDOW, descendants, installation, until, until_true

#: The length of each freeze in seconds; 0: until somebody has been notified.
FREEZES = (20.0, 60.0, 20.0) if LONG else (0.0,)
#: In the long form, which has the machine to itself: how long a request may wait, and how soon messages are accepted
#: and reported again, in seconds.
WAIT, BACK = 4.0, 5.0
SESSIONS = 2


@pytest.mark.lasts(9)
@pytest.mark.timeout(sum(FREEZES) * 2 + 400)
async def test_a_database_that_is_frozen_under_load(public_place: Path, tmp_path: Path, embedded: Start) -> None:
    server = embedded(public_place / "postgres", extra_settings={}, lock_timeout=5.0)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    async with installation(server.url, tmp_path, sessions=SESSIONS) as made:
        api, worker = await made.api(), await made.worker()
        await worker.ready()
        async with Client(made.base_url, made.key) as client:
            await until_true(partial(client.ask, "GET", "/health"))
        async with Load(made.base_url, made.key) as load, Bystanders(made, load) as bystanders:
            await load.until_sent(20)
            for seconds in FREEZES:
                frozen = time.monotonic()
                signal_all(server, signal.SIGSTOP)
                try:
                    with bystanders.during_fault():
                        await until(
                            lambda frozen=frozen: any(one.status == 503 and one.asked > frozen for one in load.answers)
                        )
                        await asyncio.sleep(max(0.0, frozen + seconds - time.monotonic()))
                finally:
                    signal_all(server, signal.SIGCONT)
                thawed = time.monotonic()
                await until(lambda thawed=thawed: any(one.status == 202 and one.asked > thawed for one in load.answers))
                told = len(made.receiver.events)
                await until(lambda told=told: len(made.receiver.events) > told)
                if LONG:
                    assert (
                        min(one.at for one in load.answers if one.status == 202 and one.asked > thawed) < thawed + BACK
                    )
                    assert time.monotonic() < thawed + 2 * BACK
                    during = [one for one in load.answers if frozen < one.asked < thawed]
                    assert max(one.at - one.asked for one in during) < WAIT
                await bystanders.after_fault()
            bystanders.judge("a frozen database")
        assert [api.status, worker.status] == [None, None], "they live through it"
        await until_settled(server.url, within=120)
        verdict = await judge(made, load.ledger, in_flight=len(FREEZES) * WINDOW * SESSIONS)
        assert not made.complaints
        # Someone who is notified of warnings only, and was told of the problem, is told that it is over.
        for one in (api, worker):
            await until(lambda one=one: one.err.count("database is away") == one.err.count("database is back"))
        assert load.unanswered == 0
        assert all(one.retry_after for one in load.answers if one.status == 503)
        print(verdict, f"refused: {sum(one.status == 503 for one in load.answers)}")


def signal_all(server: Embedded, number: signal.Signals) -> None:
    """Signal the server and all of its processes: those it has before, and those after it can no longer create more."""
    assert server.pid is not None
    if number is signal.SIGSTOP:
        os.kill(server.pid, number)
    for process in descendants(server.pid):
        process.send_signal(number)
    if number is signal.SIGCONT:
        os.kill(server.pid, number)
