"""The secret key of `heliograph up`: an installation has one, however many starts create it at once."""

from __future__ import annotations

import asyncio
import errno
import fcntl
from pathlib import Path

import asyncpg
import pytest

from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.up import secret_keys
from heliograph.up.errors import UpError
from tests.rules.factories import organization


async def test_starts_at_the_same_time_have_the_same_key(empty_database_url: str, tmp_path: Path) -> None:
    """Each had its own, of which the file kept the last: what the other encrypted was lost with its process."""
    settings = Settings(database_url=empty_database_url)
    both = await asyncio.gather(*(secret_keys.ensured(settings, tmp_path) for _ in range(2)))
    assert {one.secret_key for one in both} == {(tmp_path / secret_keys.FILE).read_text().strip()}
    assert len(both[0].secret_key) == 64


async def test_a_used_database_is_known_whatever_its_role_sets(pool: Pool, database_url: str, tmp_path: Path) -> None:
    """Its tables were not found, and a new key was created, under which nothing of it can be opened."""
    await organization(pool)
    conn = await asyncpg.connect(database_url)
    try:
        name = await conn.fetchval("SELECT quote_ident(current_database())")
        await conn.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {name} SET search_path = 'other'")
    finally:
        await conn.close()
    with pytest.raises(UpError, match=r"is missing or empty, and the database in .* is encrypted"):
        await secret_keys.ensured(Settings(database_url=database_url), tmp_path)
    assert not (tmp_path / secret_keys.FILE).exists()


async def test_a_data_directory_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems: it was a traceback."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(UpError, match=r"secret_key\.lock: No locks available; choose another directory"):
        await secret_keys.ensured(Settings(database_url="postgresql://nobody@127.0.0.1:1/none"), tmp_path)
    assert not (tmp_path / secret_keys.FILE).exists()
