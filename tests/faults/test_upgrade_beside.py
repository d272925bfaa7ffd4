"""An upgrade under load: the next version's schema is applied while processes of this version work; they continue, and
are restarted and killed meanwhile. Nothing is lost, and no request is refused because of it.

The next version is a migration with every kind of step: columns, a table, a constraint in two steps, an index built
concurrently, and a changed function; the programs on both sides of it are of this version.

Before the first release there is a single migration, which is changed in place, and no previous version to run beside.
The nearest thing is a commit of this repository: the last one before the schema was changed. Its programs run on their
own schema, which is then migrated to today's, and work on it beside today's programs.
"""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.parse
from collections.abc import Mapping
from pathlib import Path

import asyncpg
import pytest

from heliograph import migration_plan
from heliograph.base.database.migrate import ROOT, migrate, pending
from tests.database import Cluster
from tests.judge import judge, until_settled
from tests.load import Load
from tests.processes import LONG, WINDOW, environment, installation

ROUNDS = 10 if LONG else 1
SESSIONS = 8
HERE = Path(__file__).parents[2]
FIRST = "heliograph/migrations/0001_schema.sql"
LATER = """
ALTER TABLE messages ADD COLUMN later text;
ALTER TABLE queue ADD COLUMN later integer NOT NULL DEFAULT 7;
ALTER TABLE events ADD CONSTRAINT events_later CHECK (kind <> 'never') NOT VALID;
CREATE TABLE later (organization_id uuid NOT NULL, id uuid NOT NULL, PRIMARY KEY (organization_id, id));
COMMENT ON TABLE later IS 'tenant: of the next version';
"""
VALID = "ALTER TABLE events VALIDATE CONSTRAINT events_later;"
INDEX = "CREATE INDEX CONCURRENTLY messages_later ON messages (organization_id, later);"
FUNCTION = "sms/accepting/accept.sql"
_CONSTRAINT = re.compile(r"(CONSTRAINT|CHECK|UNIQUE|PRIMARY KEY|FOREIGN KEY|EXCLUDE)\b")


def next_version(place: Path) -> Path:
    """The SQL files of a version after this one."""
    root = Path(str(ROOT))
    for file in root.rglob("*.sql"):
        copy = place / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    (place / "migrations" / "0002_later.sql").write_text(LATER)
    (place / "migrations" / "0003_valid.sql").write_text(VALID)
    (place / "migrations" / "0004_index.concurrently.sql").write_text(INDEX)
    text = (place / FUNCTION).read_text()
    (place / FUNCTION).write_text(f"-- version 99\n-- Of the next version.\n{text}")
    return place


async def refused(url: str, root: Path) -> list[str]:
    """The tables that, by its plan, nobody can read while the next version is applied."""
    conn = await asyncpg.connect(url)
    try:
        return [one.table for one in await migration_plan.plan(conn, root=root) if one.blocks == "reads and writes"]
    finally:
        await conn.close()


@pytest.mark.lasts(20)
@pytest.mark.timeout(300 + ROUNDS * 60)
async def test_the_next_version_comes_beside_this_one(database_url: str, owner_url: str, tmp_path: Path) -> None:
    root = next_version(tmp_path / "next")
    (tmp_path / "logs").mkdir()
    async with installation(database_url, tmp_path / "logs", sessions=SESSIONS) as made:
        apis = [await made.api() for _ in range(2)]
        workers = [await made.worker() for _ in range(2)]
        async with Load(made.base_url, made.key) as load:
            await load.until_sent(50)
            assert set(await refused(owner_url, root)) == {"messages", "queue", "events"}
            applied = await migrate(owner_url, application=database_url, root=root)
            assert set(applied) == {"0002_later.sql", "0003_valid.sql", "0004_index.concurrently.sql", FUNCTION}
            # Running processes continue, and an older program's `migrate` leaves everything as it is.
            await load.until_sent(len(load.ledger) + 100)
            assert await migrate(owner_url, application=database_url) == []
            for _ in range(ROUNDS):
                # Restart one after the other gracefully, then kill one of each.
                for n in range(2):
                    old = apis[n]
                    apis[n] = await made.api()
                    await load.until_sent(len(load.ledger) + 20)
                    assert await old.stop() == 0
                    old = workers[n]
                    workers[n] = await made.worker()
                    assert await old.stop() == 0
                await workers[0].kill()
                await apis[0].kill()
                workers[0], apis[0] = await made.worker(), await made.api()
                await load.until_sent(len(load.ledger) + 100)
        await until_settled(database_url)
        print(await judge(made, load.ledger, in_flight=ROUNDS * WINDOW * SESSIONS * 2))
        # 503 and similar responses are for a database that is down: a migration waits for a lock for less time than a
        # request.
        statuses = {answer.status for answer in load.answers}
        assert statuses <= {202, 503}, statuses
        assert not made.complaints
    conn = await asyncpg.connect(owner_url)
    try:
        assert await conn.fetchval("SELECT count(*) FROM messages WHERE later IS NULL") == len(load.ledger)
        assert await pending(conn) == []
    finally:
        await conn.close()


def programs(place: Path) -> tuple[Path, Path]:
    """Two versions of the program, each a directory to import it from: the last commit before the schema was changed,
    and the present one, with what the schema gained since as a separate migration."""
    try:
        changed = _git("log", "-1", "--format=%H", "--", FIRST).decode().strip()
        archive = _git("archive", f"{changed}^", "heliograph")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"there is no repository here with the commit before the schema was changed: {error}")
    before, after = place / "before", place / "after"
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        # An archive of our own repository; Python 3.11.2 has no filter.
        files.extractall(before)  # noqa: S202
    shutil.copytree(HERE / "heliograph", after / "heliograph", ignore=shutil.ignore_patterns("__pycache__"))
    older, newer = ((tree / FIRST).read_text() for tree in (before, after))
    added = what_was_added(older, newer)
    if added is None:
        pytest.skip(f"{changed[:8]} changed the schema as no released migration does: more was done than adding to it")
    (after / FIRST).write_text(older)
    (after / FIRST).with_name("0002_added.sql").write_text(";\n".join([*added, ""]))
    return before, after


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(HERE), *words], check=True, capture_output=True).stdout


def what_was_added(older: str, newer: str) -> list[str] | None:
    """The statements that turn the older schema into the newer one; None if something was removed or changed."""
    had, has = older.split(";\n"), newer.split(";\n")
    tables = {name: parts for one in had for name, parts in _table(one)}
    added: list[str] = []
    kept = set()
    for one in (one for one in has if one not in set(had)):
        found = [(name, parts) for name, parts in _table(one) if name in tables]
        if not found:
            added.append(one)
        for name, parts in found:
            if not set(tables[name]) <= set(parts):
                return None
            kept.add(name)
            more = (part for part in parts if part not in tables[name])
            added += [f"ALTER TABLE {name} ADD {'' if _CONSTRAINT.match(part) else 'COLUMN '}{part}" for part in more]
    gone = [one for one in had if one not in set(has) and "COMMENT ON" not in one]
    return added if all(any(name in kept for name, _ in _table(one)) for one in gone) else None


def _table(statement: str) -> list[tuple[str, list[str]]]:
    """The table that a statement creates, with its columns and constraints; nothing if it creates none."""
    found = re.search(r"^CREATE TABLE (\w+) \((.*)\)", statement, re.DOTALL | re.MULTILINE)
    if found is None:
        return []
    parts, depth = [""], 0
    for sign in found[2]:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [(found[1], [" ".join(part.split()) for part in parts])]


async def applied_by(tree: Path, settings: Mapping[str, str]) -> str:
    """The migrations that a version's `heliograph migrate` says it has applied."""
    made = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "heliograph", "migrate", "--json"),
        cwd=tree,
        env={**environment(**settings), "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await made.communicate()
    assert made.returncode == 0, err.decode()
    return out.decode()


@pytest.mark.skipif(not LONG, reason="two versions, each started anew for minutes: HELIOGRAPH_FAULTS=long")
@pytest.mark.lasts(40)
@pytest.mark.timeout(600 + ROUNDS * 60)
async def test_two_versions_run_beside_each_other(
    database_server: Cluster, empty_database_url: str, tmp_path: Path
) -> None:
    """Programs of the last commit before a change to the schema, on its schema, and then beside today's programs on
    today's."""
    before, after = await asyncio.to_thread(programs, tmp_path)
    url = database_server.url_of(urllib.parse.urlsplit(empty_database_url).path[1:])
    urls = {"HELIOGRAPH_DATABASE_URL": url, "HELIOGRAPH_OWNER_DATABASE_URL": empty_database_url}
    assert "0001_schema.sql" in await applied_by(before, urls)
    (tmp_path / "logs").mkdir()
    async with installation(url, tmp_path / "logs", sessions=SESSIONS) as made:
        api, worker = await made.api(tree=before), await made.worker(tree=before)
        await worker.ready()
        async with Load(made.base_url, made.key) as load:
            await load.until_sent(50)
            # The new schema is applied while the older programs work, and they continue.
            applied = await applied_by(after, urls)
            assert "0002_added.sql" in applied
            assert "0001_schema.sql" not in applied
            await load.until_sent(len(load.ledger) + 100)
            # Work begun by one version is finished by the other: each sends what the other accepted, and each is
            # killed.
            for accepts, carries in [(after, before), (before, after)] * ROUNDS:
                later_api, later_worker = await made.api(tree=accepts), await made.worker(tree=carries)
                await later_worker.ready()
                await load.until_sent(len(load.ledger) + 20)
                await api.kill()
                await worker.kill()
                api, worker = later_api, later_worker
                await load.until_sent(len(load.ledger) + 100)
            # An older program's `migrate` changes nothing.
            assert "sql" not in await applied_by(before, urls)
        await until_settled(url)
        kills = 2 * 2 * ROUNDS
        print(f"{kills} kills:", await judge(made, load.ledger, in_flight=kills * WINDOW * SESSIONS))
        statuses = {answer.status for answer in load.answers}
        assert statuses <= {202, 503}, statuses
        assert not made.complaints
