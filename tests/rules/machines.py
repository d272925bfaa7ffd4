"""State machines of hypothesis over a real database: an event loop of their own, and an empty database for each run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from heliograph.base.database.pool import Pool, open_pool

Result = TypeVar("Result")

#: A dozen runs find most of what breaks within seconds; HELIOGRAPH_EXAMPLES=2000 is for an afternoon.
BOUNDED = settings(
    max_examples=int(os.environ.get("HELIOGRAPH_EXAMPLES", "12")),
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.generate],  # to make an example smaller takes minutes on a database
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


class Machine(RuleBasedStateMachine):
    """Rules call `self.run(coroutine)`; `self.pool` is a database whose `tables` were emptied."""

    tables: tuple[str, ...]
    loop: asyncio.AbstractEventLoop
    pool: Pool

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)


def run_machine(machine: type[Machine], url: str, how: settings = BOUNDED) -> None:
    """Run a machine on the database at `url`. Call it from a thread: it has a loop of its own."""
    loop = uvloop.new_event_loop()
    pool = loop.run_until_complete(open_pool(url, size=4))

    class Bound(machine):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            self.loop, self.pool = loop, pool
            loop.run_until_complete(pool.execute(";".join(f"DELETE FROM {table}" for table in machine.tables)))
            super().__init__()

    Bound.__name__ = machine.__name__
    try:
        run_state_machine_as_test(Bound, settings=how)
    finally:
        pool.terminate()
        loop.close()
