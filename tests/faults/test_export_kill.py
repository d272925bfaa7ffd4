"""kill -9 of workers while they write an export: every row is in the file once, in order."""

from __future__ import annotations

import asyncio
import csv
import io
import random
import signal
from pathlib import Path

import asyncpg
import msgspec
import pytest

from heliograph.base.actor import Principal
from heliograph.base.ids import uuid7
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.contacts.search import Filters
from heliograph.overview.exports import jobs
from heliograph.overview.exports.kinds import Contacts
from tests.database import Cluster
from tests.processes import installation, until_true

KILLS, ROWS = 4, 12_000
FAST = {"HELIOGRAPH_LEASE_SECONDS": "1"}
MEMBER = """
WITH made AS (INSERT INTO users (id, email, name, created_at) VALUES ($2, 'ana@example.com', 'Ana', now()))
INSERT INTO memberships (organization_id, user_id, role, created_at) VALUES ($1, $2, 'owner', now())
"""
POINTS = ({"HELIOGRAPH_CRASH_AT": "export.before_commit"}, {"HELIOGRAPH_CRASH_AT": "export.after_commit"})


@pytest.mark.lasts(25)
async def test_random_kills_while_a_file_is_written(database_server: Cluster, tmp_path: Path) -> None:
    chance = random.Random(seed := random.randrange(1_000_000))
    async with database_server.database() as url, installation(url, tmp_path, **FAST) as made:
        conn = await asyncpg.connect(url)
        try:
            entries = [Entry(f"+25884{n:07}", f"Person {n}") for n in range(ROWS)]
            for start in range(0, ROWS, 2_000):
                await records.create_many(conn, made.actor, entries=entries[start : start + 2_000])
            user = uuid7()
            await conn.execute(MEMBER, made.actor.organization_id, user)
            actor = msgspec.structs.replace(made.actor, by=Principal("person", user, name="Ana"))
            id = await jobs.ask(conn, actor, wanted=Contacts(form="csv", filters=Filters()))

            async def is_done() -> bool:
                return (await jobs.get(conn, actor, id=id)).is_final

            for point in POINTS:
                ending = await made.worker(**point)
                assert await ending.ended() == -signal.SIGKILL, ending.err
            for _ in range(KILLS):
                worker = await made.worker()
                await asyncio.sleep(chance.uniform(0, 0.1))
                await worker.kill()
            await made.worker()
            await until_true(is_done)
            found = await jobs.get(conn, actor, id=id)
            assert (found.state, found.rows) == ("finished", ROWS), seed
            chunks = await conn.fetch("SELECT number, bytes FROM export_chunks ORDER BY number")
            assert [one["number"] for one in chunks] == list(range(found.chunks))
            text = b"".join(one["bytes"] for one in chunks).decode().removeprefix("\ufeff")
            assert len(text.encode()) + len("\ufeff".encode()) == found.size
            rows = list(csv.DictReader(io.StringIO(text)))
            wanted = await conn.fetch("SELECT id::text FROM contacts ORDER BY id DESC")
            assert [row["id"] for row in rows] == [one["id"] for one in wanted], seed
        finally:
            await conn.close()
