"""Fixtures for all kinds of tests. `tests/database.py` documents where the databases come from, `tests/embedded.py` how
to get a server that may be damaged.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from heliograph.base.database.migrate import migrate
from heliograph.base.database.pool import Pool, open_pool
from tests import forks, scheduling, sessions, workers
from tests.bodies import events_are_as_documented
from tests.database import Cluster, cluster
from tests.embedded import cluster_home, cluster_model, embedded, execute, public_place
from tests.sealing import armed

# Timing belongs in the benchmark: how long an example takes depends on the machine's other load. Each run has the same
# examples, so that it is not left to chance whether it passes; HELIOGRAPH_FAULTS=long and HELIOGRAPH_EXAMPLES look for
# new ones.
settings.register_profile(
    "heliograph",
    deadline=None,
    derandomize=not {"HELIOGRAPH_FAULTS", "HELIOGRAPH_EXAMPLES"} & os.environ.keys(),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("heliograph")

__all__ = ["armed", "cluster_home", "cluster_model", "embedded", "public_place"]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Freeze what has been imported and collected: half a million objects that each full garbage collection would
    visit, 14 % of the processor time of page tests. Syntax trees of the project's code cost as much again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    scheduling.order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return scheduling.workers()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling.make(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    workers.fork_them(config, specs)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["forks"] = workers.commands()


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop that the product runs on. It also takes a quarter less processor time per test than asyncio's
    own."""
    return {"uvloop": sessions.new_loop}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the tasks that a test leaves behind in the shared loop, as a loop of its own would. The browser's tasks
    stay. A test's time begins once it may begin."""
    if (seconds := scheduling.seconds_until_it_may_begin(time.time())) > 0:
        time.sleep(seconds)
    before = sessions.tasks()
    result = yield
    if not _has_browser(item):
        sessions.end_tasks_but(before)
    return result


def _has_browser(item: pytest.Item) -> bool:
    return "browser" in item.path.parts


def pytest_unconfigure() -> None:
    sessions.end_threads()


def pytest_configure(config: pytest.Config) -> None:
    # A shell makes its background jobs ignore interrupts, and programs started by tests would inherit that.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sessions.share()
    if hasattr(config, "workerinput"):
        forks.share(config.workerinput["forks"])


@pytest.fixture(scope="session")
def database_server() -> Iterator[Cluster]:
    """This test process's PostgreSQL."""
    with cluster() as found:
        yield found


@pytest.fixture
async def database_url(database_server: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A migrated database for this test; the URL of the application's role, which owns none of its tables."""
    fresh = request.node.get_closest_marker("fresh_database") is not None
    later = "partitions_ahead" in request.fixturenames
    async with database_server.database(fresh=fresh, later=later) as url:
        before = asyncio.all_tasks()
        yield url
        if not _has_browser(request.node):  # they would write to the next test's database
            await sessions.end_others(before)


@pytest.fixture
async def partitions_ahead(owner_url: str, database_url: str) -> None:
    """Use a database with the partitions of later days and months, which every installation has and the template does
    not. They exist, unless a day has begun since."""
    await migrate(owner_url, application=database_url)


@pytest.fixture
def owner_url(database_server: Cluster, database_url: str) -> str:
    """The URL of `database_url` for the role that owns the tables."""
    return database_server.as_owner(database_url)


@pytest.fixture
def as_owner(owner_url: str) -> Callable[[str], Awaitable[None]]:
    """Runs statements that the application may not run."""
    return functools.partial(execute, owner_url)


@pytest.fixture
def as_administrator(database_server: Cluster, database_url: str) -> Callable[[str], Awaitable[None]]:
    """Runs statements that only an administrator may run, even in a database that accepts no other connections."""
    return functools.partial(execute, database_server.as_administrator(database_url))


@pytest.fixture
async def empty_database_url(database_server: Cluster) -> AsyncIterator[str]:
    """The owner's URL of an empty database for this test."""
    async with database_server.database(template=False) as url:
        yield url


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """A connection pool for `database_url`."""
    async with connections(database_url) as opened:
        yield opened


@asynccontextmanager
async def connections(database_url: str) -> AsyncIterator[Pool]:
    """The pool of `pool`. After the test, the recorded events are compared with their documentation."""
    opened = await open_pool(database_url, size=4)
    try:
        yield opened
        await events_are_as_documented(opened)
    finally:
        opened.terminate()
