"""A database that gets the files of a dropped one keeps nothing of it; one that cannot be dropped fails the run."""

from __future__ import annotations

import shutil
import urllib.parse
from pathlib import Path

import asyncpg
import pytest

from tests.database import Cluster
from tests.embedded import ask, execute
from tests.recycling import Recycling

TEMPLATE = "CREATE TABLE kept (word text); INSERT INTO kept VALUES ('first'); CREATE TABLE dropped (number integer)"
#: New and longer files, other files for the same table, other pages, and a setting, which is not in a file.
CHANGES = """
CREATE TABLE own AS SELECT repeat('x', 5000) AS text FROM generate_series(1, 5000);
DROP TABLE dropped;
UPDATE kept SET word = 'second';
ALTER TABLE kept ADD COLUMN own serial;
CREATE FUNCTION own() RETURNS integer LANGUAGE sql AS 'SELECT 1';
ALTER DATABASE recycled_1 SET work_mem = '5MB'
"""


async def test_nothing_of_a_database_is_left_to_the_next(database_server: Cluster) -> None:
    if database_server.url == database_server.owner_url:
        pytest.skip("the files of a server that was given are not at hand")

    def url_of(database: str) -> str:
        return database_server.as_administrator(database_server.url_of(database))

    connection = await asyncpg.connect(database_server.superuser_url)
    data = Path(await connection.fetchval("SELECT current_setting('data_directory')"))
    place = data.with_name("recycled")  # on the server's file system, which a directory for tests need not be
    recycling = Recycling(connection, data, place)

    async def create(name: str) -> Path:
        await recycling.create(name, "heliograph")
        return data / "base" / str(await connection.fetchval("SELECT oid FROM pg_database WHERE datname = $1", name))

    def files(directory: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in directory.iterdir()}

    try:
        await connection.execute("CREATE DATABASE recycled_template TEMPLATE template1")
        await execute(url_of("recycled_template"), TEMPLATE)
        await recycling.prepare("recycled_source", "recycled_template")
        await connection.execute("DROP DATABASE recycled_template")
        one = await create("recycled_1")
        before, identity, owner = files(one), one.stat().st_ino, one.owner()
        session = await asyncpg.connect(url_of("recycled_1"))
        await session.execute(CHANGES)
        await connection.execute("CHECKPOINT")
        assert files(one) != before
        await session.execute("UPDATE kept SET word = 'third'")  # which exists only in memory
        await recycling.drop("recycled_1")
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)):
            await session.execute("SELECT 1")
        two = await create("recycled_2")
        assert two.stat().st_ino == identity
        assert files(two) == before
        assert {path.owner() for path in two.iterdir()} == {owner}
        assert await ask(url_of("recycled_2"), "SELECT word FROM kept") == "first"
        assert await ask(url_of("recycled_2"), "SELECT count(*) FROM dropped") == 0
        assert await ask(url_of("recycled_2"), "SELECT to_regclass('own')") is None
        assert await ask(url_of("recycled_2"), "SHOW work_mem") != "5MB"
    finally:
        for name in await connection.fetch("SELECT datname FROM pg_database WHERE datname LIKE 'recycled_%'"):
            await connection.execute(f"DROP DATABASE {name[0]} WITH (FORCE)")
        await connection.close()
        shutil.rmtree(place, ignore_errors=True)


async def test_a_database_that_cannot_be_dropped_fails_the_run(
    database_server: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would only be in the way of later tests, and nobody would know why."""
    urls = database_server.url, database_server.owner_url, database_server.superuser_url
    cluster = Cluster(*urls, database_server._loop)

    async def nothing(*words: object, **options: object) -> None:
        """The template stays empty."""

    async def refuse(name: str, *, clone: bool) -> None:
        raise RuntimeError(f"{name} is in use")

    monkeypatch.setattr("tests.database.migrate", nothing)
    monkeypatch.setattr(cluster, "_simplify", nothing)
    monkeypatch.setattr(cluster, "_drop", refuse)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match=r"test_\w+_\d is in use")), cluster.prepared():
        async with cluster.database(template=False) as url:
            assert await ask(url, "SELECT 1") == 1
    name = urllib.parse.urlsplit(url).path[1:]
    left = f"SELECT count(*) FROM pg_database WHERE datname = '{name}'"
    assert await ask(database_server.superuser_url, left) == 0
