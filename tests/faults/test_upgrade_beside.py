"""An upgrade under load: the schema of the next version comes while processes of this one work, which go on, are
restarted and killed beside it. Nothing is lost, and no request is refused for it.

The next version is a migration of every kind that there is: columns, a table, a constraint in two steps, an index made
concurrently, and a function whose text has changed. Before the first release there is no last version to run beside.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import asyncpg
import pytest

from heliograph import migration_plan
from heliograph.base.database.migrate import ROOT, migrate, pending
from tests.judge import judge, settled
from tests.load import Load
from tests.processes import LONG, WINDOW, installation

ROUNDS = 10 if LONG else 1
SESSIONS = 8
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
    """What the plan of the next version says would keep others from reading."""
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
            await load.reaches(50)
            assert set(await refused(owner_url, root)) == {"messages", "queue", "events"}
            applied = await migrate(owner_url, application=database_url, root=root)
            assert set(applied) == {"0002_later.sql", "0003_valid.sql", "0004_index.concurrently.sql", FUNCTION}
            # Those that were there go on, and an older program's migrations leave all of it as it is.
            await load.reaches(len(load.ledger) + 100)
            assert await migrate(owner_url, application=database_url) == []
            for _ in range(ROUNDS):
                # One after the other in order, then one of each without mercy.
                for n in range(2):
                    old = apis[n]
                    apis[n] = await made.api()
                    await load.reaches(len(load.ledger) + 20)
                    assert await old.stop() == 0
                    old = workers[n]
                    workers[n] = await made.worker()
                    assert await old.stop() == 0
                await workers[0].kill()
                await apis[0].kill()
                workers[0], apis[0] = await made.worker(), await made.api()
                await load.reaches(len(load.ledger) + 100)
        await settled(database_url)
        print(await judge(made, load.ledger, in_flight=ROUNDS * WINDOW * SESSIONS * 2))
        # 503 and the like are for a database that is away: a migration waits for a lock less long than a request does.
        statuses = {answer.status for answer in load.answers}
        assert statuses <= {202, 503}, statuses
        assert not made.complaints
    conn = await asyncpg.connect(owner_url)
    try:
        assert await conn.fetchval("SELECT count(*) FROM messages WHERE later IS NULL") == len(load.ledger)
        assert await pending(conn) == []
    finally:
        await conn.close()
