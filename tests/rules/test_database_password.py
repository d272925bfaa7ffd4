"""The database password changes while processes run: they read the new one from its file, without a restart."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from heliograph.base.database.pool import is_down, open_pool
from heliograph.base.process.settings import current, from_environment
from tests.database import Cluster


class Role:
    """The application's role, on a server for this test process alone."""

    def __init__(self, url: str, admin: asyncpg.Connection[asyncpg.Record], file: Path) -> None:
        self._url = urllib.parse.urlsplit(url)
        self.name, self.password = self._url.username or "", self._url.password or ""
        self.admin, self.file = admin, file

    def url(self, password: str) -> str:
        host = self._url.netloc.rpartition("@")[2]
        return self._url._replace(netloc=f"{self.name}:{password}@{host}").geturl()

    async def become(self, password: str) -> None:
        """The server's part of a change. Open connections would stay open, so they are ended here."""
        await self.admin.execute(f"ALTER ROLE {self.name} PASSWORD '{password}'")
        await self.admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE usename = $1 AND datname = current_database()",
            self.name,
        )


@pytest.fixture
async def role(database_url: str, database_server: Cluster, tmp_path: Path) -> AsyncIterator[Role]:
    if database_server.url == database_server.owner_url:
        pytest.skip("HELIOGRAPH_TEST_DATABASE_URL names a server that others use, too")
    admin = await asyncpg.connect(database_server.as_administrator(database_url))
    found = Role(database_url, admin, tmp_path / "url")
    try:
        yield found
    finally:
        await found.become(found.password)
        await admin.close()


async def test_a_changed_password_is_read_from_its_file(role: Role) -> None:
    role.file.write_text(role.url(role.password))
    environment = {"HELIOGRAPH_DATABASE_URL_FILE": str(role.file)}
    settings = from_environment(environment)
    now = partial(current, settings, "database_url", environment)
    pool = await open_pool(settings.database_url, size=2, current=now)
    try:
        assert await pool.fetchval("SELECT current_user") == role.name
        await role.become("second")
        # Between the two changes the database cannot be used, which clients are told with 503. A connection that the
        # server ends during a statement reports that in one of many ways, before a new one is refused.
        said: list[Any] = []
        while not said or not isinstance(said[-1], asyncpg.InvalidPasswordError):
            said += await asyncio.gather(pool.fetchval("SELECT 1"), return_exceptions=True)
            assert all(is_down(one) for one in said if isinstance(one, BaseException))
        role.file.write_text(role.url("second"))
        with capture_logs() as logs:
            assert await pool.fetchval("SELECT current_user") == role.name
        (told,) = [one for one in logs if one["event"] == "database URL changed"]
        assert "second" not in str(told)
        # A file that is being written, or that is wrong, changes nothing.
        for text in ("", "mysql://x", "postgresql://host/db?sslmode=nonsense"):
            role.file.write_text(text)
            await pool.expire_connections()
            assert await pool.fetchval("SELECT current_user") == role.name
        role.file.unlink()
        await pool.expire_connections()
        assert await pool.fetchval("SELECT current_user") == role.name
    finally:
        pool.terminate()


async def test_a_wrong_password_at_the_start_is_said_at_once(role: Role) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await open_pool(role.url("wrong"), size=1, wait=3600.0)
