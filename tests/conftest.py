"""Fixtures that every kind of test may use. `tests/database.py` says where the databases come from, `tests/embedded.py`
how to get a server to hurt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from heliograph.base.database.pool import Pool, open_pool
from tests import scheduling
from tests.bodies import events_are_as_documented
from tests.database import Cluster, cluster
from tests.embedded import cluster_home, cluster_model, embedded, public_place

# Timing belongs into the benchmark: how long an example takes depends on what else this machine does.
settings.register_profile("heliograph", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("heliograph")

__all__ = ["cluster_home", "cluster_model", "embedded", "public_place"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    scheduling.order(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return scheduling.workers()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling.make(config, log)


@pytest.fixture(scope="session")
def database_server() -> Iterator[Cluster]:
    """This test process's PostgreSQL."""
    with cluster() as found:
        yield found


@pytest.fixture
async def database_url(database_server: Cluster) -> AsyncIterator[str]:
    """A migrated database of the test's own; the application's role owns it."""
    async with database_server.database() as url:
        yield url


@pytest.fixture
async def empty_database_url(database_server: Cluster) -> AsyncIterator[str]:
    """A database of the test's own with nothing in it."""
    async with database_server.database(template=False) as url:
        yield url


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """Connections to `database_url`."""
    opened = await open_pool(database_url, size=4)
    try:
        yield opened
        await events_are_as_documented(opened)
    finally:
        opened.terminate()
