"""`heliograph workers`, and the console's buttons: a worker finishes what it has claimed, and exits or stays idle."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Pool
from tests.journeys.test_cli import Cli
from tests.load import Client
from tests.processes import installation, until, until_true
from tests.rules.factories import status_of


async def test_a_worker_is_drained_and_resumed_and_ended(pool: Pool, database_url: str, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    # The supplier answers after seconds, so that the worker has something in flight when it is told.
    slow = {"latency": 3.0}
    async with (
        installation(database_url, tmp_path, smsc=slow, HELIOGRAPH_DRAIN_SECONDS="30") as made,
        made.serving(),
        Client(made.base_url, made.key) as client,
    ):
        program = await made.worker()
        await program.ready()
        (one,) = (await cli("workers", "list", "--json")).data
        assert one["state"] == "works"
        assert one["name"].endswith(f":{program.pid}")
        await until_true(lambda: _sessions(pool, 1))
        held = UUID(await client.send("+258841230001"))
        await until_true(lambda: _is(pool, held, "sending"))

        told = await cli("workers", "drain", one["name"], "--stay")
        assert "stays without work" in told.err
        await until_true(lambda: pool.fetchval("SELECT drained_at IS NOT NULL FROM workers"))
        # Its messages were sent, and the response recorded; the worker holds nothing any more.
        assert await pool.fetchval("SELECT state FROM attempts WHERE message_id = $1", held) == "accepted"
        assert await _sessions(pool, 0)
        waiting = UUID(await client.send("+258841230002"))
        checks = {row["check"]: row for row in msgspec.json.decode((await cli("doctor", "--json")).out)}
        assert checks["workers"]["state"] == "failed"
        assert "drained by an operator" in checks["workers"]["detail"]
        (one,) = (await cli("workers", "list", "--json")).data
        assert one["state"] == "drained"
        assert (await status_of(pool, waiting), program.status) == ("accepted", None)

        resumed = await cli("workers", "resume", one["name"], "-o", "tsv")
        assert (resumed.out, "takes work again" in resumed.err) == (f"name\t{one['name']}\ndrain\t-\n", True)
        await until_true(lambda: _is(pool, waiting, "delivered"))
        assert await status_of(pool, held) == "delivered"
        (again,) = (await cli("workers", "list", "--json")).data
        assert (again["state"], again["name"]) == ("works", one["name"]), "it is the same process"

        assert "ends" in (await cli("workers", "drain", again["id"])).err
        await until(lambda: program.status is not None)
        assert program.status == 0
        assert await pool.fetchval("SELECT count(*) FROM workers") == 0
        nobody = await cli("workers", "resume", again["name"])
        assert (nobody.status, "no such worker" in nobody.err) == (1, True)
        assert made.complaints == []
    acts = await pool.fetch("SELECT action, object_name, after FROM audit_log WHERE action LIKE 'worker.%' ORDER BY id")
    assert [(row["action"], msgspec.json.decode(row["after"])) for row in acts] == [
        ("worker.drained", {"drain": "stay"}),
        ("worker.resumed", {"drain": None}),
        ("worker.drained", {"drain": "end"}),
    ]
    assert {row["object_name"] for row in acts} == {one["name"]}


async def test_a_drained_worker_ends_when_it_is_stopped(pool: Pool, database_url: str, tmp_path: Path) -> None:
    cli = Cli(HELIOGRAPH_DATABASE_URL=database_url)
    async with installation(database_url, tmp_path) as made:
        program = await made.worker()
        await program.ready()
        (one,) = (await cli("workers", "list", "--json")).data
        await cli("workers", "drain", one["id"], "--stay")
        await until_true(lambda: pool.fetchval("SELECT drained_at IS NOT NULL FROM workers"))
        assert await program.stop() == 0
        assert await pool.fetchval("SELECT count(*) FROM workers") == 0


async def _is(pool: Pool, id: UUID, status: str) -> bool:
    return await status_of(pool, id) == status


async def _sessions(pool: Pool, count: int) -> bool:
    found: int = await pool.fetchval("SELECT count(*) FROM supplier_sessions WHERE bound AND lease_until > now()")
    return found == count
