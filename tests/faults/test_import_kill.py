"""kill -9 of workers while they import an uploaded file: no row is left out or counted twice."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import asyncpg
import pytest

from heliograph.contacts.imports import drafts
from tests.database import Cluster
from tests.processes import LONG, installation, until_true
from tests.rules.test_contacts import APART

KILLS = 60 if LONG else 4
ROWS = 400_000 if LONG else 30_000
FAST = {"HELIOGRAPH_LEASE_SECONDS": "1"}
#: Where workers end, before others are killed at any moment.
POINTS = ({"HELIOGRAPH_CRASH_AT": "import.before_commit"}, {"HELIOGRAPH_CRASH_AT": "import.after_commit"})


@pytest.mark.lasts(25)
@pytest.mark.timeout(KILLS * 10 + 120)
async def test_random_kills_while_a_file_is_imported(database_server: Cluster, tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    lines = [f"+25884{n:07},Person {n},{'vip' if n % 3 else ''}" for n in range(ROWS)]
    lines[::100] = [f"bad {n},," for n in range(len(lines[::100]))]
    content = "\n".join(["phone,name,tags", *lines]).encode()
    async with database_server.database() as url, installation(url, tmp_path, **FAST) as made:
        conn = await asyncpg.connect(url)
        try:
            id = await drafts.begin(conn, made.actor, file="people.csv")
            for number in range(0, len(content), drafts.CHUNK):
                chunk = content[number : number + drafts.CHUNK]
                await drafts.put(conn, made.actor, id=id, number=number // drafts.CHUNK, chunk=chunk)
            draft = await drafts.uploaded(conn, made.actor, id=id, size=len(content), encoding="utf-8")
            await drafts.check(
                conn, made.actor, id=id, fields=draft.fields, country=None, tags=["all"], on_duplicate="update"
            )
            worker = await made.worker()

            async def reached(state: str, rows: int = 0) -> bool:
                found = await drafts.get(conn, made.actor, id=id)
                return found.state == state and found.rows >= rows

            await until_true(lambda: reached("checked"))
            await worker.kill()
            await drafts.run(conn, made.actor, id=id)
            for point in POINTS:
                ending = await made.worker(**point)
                assert await ending.ended() == -signal.SIGKILL, ending.err
            worker = await made.worker()
            for _ in range(KILLS):
                seen = (await drafts.get(conn, made.actor, id=id)).rows
                await until_true(lambda seen=seen: reached("running", seen + 1))
                await asyncio.sleep(chance.uniform(0, 0.05))
                await worker.kill()
                worker = await made.worker()
                if (await drafts.get(conn, made.actor, id=id)).rows >= ROWS - 10_000:
                    break
            await until_true(lambda: reached("finished"))
            found = await drafts.get(conn, made.actor, id=id)
            bad = len(lines[::100])
            assert (found.rows, found.created, found.updated, found.rejected) == (ROWS, ROWS - bad, 0, bad), seed
            assert await conn.fetchval("SELECT count(*) FROM contacts") == ROWS - bad
            assert await conn.fetchval("SELECT count(*) FROM contact_import_rejects") == bad
            assert await conn.fetchval(APART) == 0
        finally:
            await conn.close()
