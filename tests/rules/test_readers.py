"""Exports are read from a standby where there is one, and from the primary while there is none."""

from __future__ import annotations

import msgspec

from heliograph.base.actor import Actor, Who
from heliograph.base.database.pool import Pool, Readers
from heliograph.base.ids import uuid7
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.contacts.search import Filters
from heliograph.overview.exports import jobs
from heliograph.overview.exports.kinds import Contacts
from heliograph.overview.exports.work import ExportWork
from tests.database import Cluster
from tests.ports import held_port
from tests.rules.factories import organization


async def exported(pool: Pool, actor: Actor, readers: Readers) -> str:
    """The file, as a worker with these readers writes it."""
    user = uuid7()
    await pool.execute(
        "INSERT INTO users (id, email, name, created_at) VALUES ($1, $2, 'Ana', now())", user, f"{user}@example.com"
    )
    by = msgspec.structs.replace(actor, by=Who("person", user, name="Ana"))
    async with pool.acquire() as conn:
        id = await jobs.ask(conn, by, wanted=Contacts(form="csv", filters=Filters()))
    work = ExportWork(pool, readers=readers)
    while await work.round():
        pass
    await work.stop(grace=0)
    assert await pool.fetchval("SELECT state FROM exports WHERE id = $1", id) == "finished"
    chunks = await pool.fetch("SELECT bytes FROM export_chunks WHERE export_id = $1", id)
    return "".join(row["bytes"].decode() for row in chunks)


async def test_exports_are_read_from_the_standby_while_it_is_there(pool: Pool, database_server: Cluster) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await records.create_many(conn, actor, entries=[Entry("+258841234567", "On the primary")])
    assert "On the primary" in await exported(pool, actor, Readers(""))
    # What stands for the standby does not have the contact yet, like one that lags behind.
    async with database_server.database() as elsewhere:
        assert "On the primary" not in await exported(pool, actor, Readers(elsewhere))
    with held_port() as port:
        assert "On the primary" in await exported(pool, actor, Readers(f"postgresql://u:p@127.0.0.1:{port}/x"))
