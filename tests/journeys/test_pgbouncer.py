"""Behind PgBouncer in transaction mode, over verified TLS: from a send to its webhook, with few server connections."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from heliograph.base.database.pool import RoleUnset, open_pool
from heliograph.base.database.roles import RECONNECT
from heliograph.base.network.connecting import connect
from tests import sessions
from tests.judge import judge, until_settled
from tests.load import Client, Load
from tests.pgbouncer import Bouncer, bouncing, version
from tests.processes import PRODUCTION_LEASES, Program, installation, until
from tests.up import up

pytestmark = pytest.mark.lasts(15)


def verified(bouncer: Bouncer) -> str:
    return f"{bouncer.url}?sslmode=verify-full&sslrootcert={bouncer.authority.file}"


@pytest.mark.parametrize("prepared", [0, 200])
async def test_everything_works_behind_a_pooler(prepared: int, database_url: str, tmp_path: Path) -> None:
    if prepared and version() < (1, 21):
        pytest.skip("prepared statements behind PgBouncer need 1.21; this is an older one")
    async with (
        bouncing(database_url, prepared=prepared) as bouncer,
        installation(database_url, tmp_path, **PRODUCTION_LEASES) as made,
    ):
        made.environment |= {
            "HELIOGRAPH_DATABASE_URL": verified(bouncer),
            "HELIOGRAPH_DATABASE_DIRECT_URL": database_url,
            "HELIOGRAPH_DATABASE_POOLER_PREPARES": "true" if prepared else "false",
        }
        early = await Program.start("api", log=tmp_path / "early", environment=made.environment)
        assert await early.ended() != 0
        assert "heliograph migrate" in (tmp_path / "early.err").read_text()
        for said in ("RECONNECT", ""):
            log = tmp_path / f"migrate-{said}"
            migrating = await Program.start("migrate", log=log, environment=made.environment)
            assert await migrating.ended() == 0
            assert said in Path(f"{log}.err").read_text()
        await bouncer.reconnect()
        if not prepared:
            lying = made.environment | {"HELIOGRAPH_DATABASE_POOLER_PREPARES": "true"}
            early = await Program.start("worker", log=tmp_path / "lying", environment=lying)
            assert await early.ended() != 0
            assert "set max_prepared_statements there" in (tmp_path / "lying.err").read_text()
        await made.api()
        for worker in (await made.worker(), await made.worker()):
            await worker.ready()
        async with Load(made.base_url, made.key, senders=8) as load:
            await load.until_sent(300)
        await until_settled(made.url)
        verdict = await judge(made, load.ledger, in_flight=0)
        assert (verdict.unknown, verdict.repeated) == (0, 0)
        assert len(load.ledger) >= 300
        await until(lambda: len({one.id for one in made.receiver.events}) >= len(load.ledger))
        assert not made.complaints, made.complaints
        # All processes together used no more than PgBouncer allows, except for their listeners.
        conn = await asyncpg.connect(database_url)
        names = await conn.fetch(
            "SELECT query, application_name FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND usename = current_user AND pid <> ALL($1::int[])",
            sessions.processes_of(urlsplit(database_url).path[1:]),
        )
        await conn.close()
        assert len([one for one in names if "LISTEN" not in one["query"]]) <= 4 + 2, names


async def test_up_runs_behind_a_pooler(public_place: Path, database_url: str, owner_url: str) -> None:
    """It ended with `unsupported startup parameter`, as did a restore with one role."""
    async with bouncing(database_url) as bouncer:
        given = {
            "HELIOGRAPH_DATABASE_URL": bouncer.url,
            "HELIOGRAPH_DATABASE_DIRECT_URL": database_url,
            "HELIOGRAPH_OWNER_DATABASE_URL": owner_url,
        }
        said = public_place / "up-0.err"

        async def operate() -> None:
            await until(lambda: said.exists() and RECONNECT in said.read_text())
            await bouncer.reconnect()

        operating = asyncio.create_task(operate())
        try:
            async with up(public_place, **given) as ran, Client(ran.url, ran.credentials["live_key"]) as client:
                await client.send("+258843000000")
                await ran.stopped(signal.SIGTERM)
        finally:
            operating.cancel()
            await asyncio.gather(operating, return_exceptions=True)


async def test_a_role_brings_its_settings_and_names_are_verified(database_url: str) -> None:
    async with bouncing(database_url) as bouncer:
        with pytest.raises(RoleUnset):
            await open_pool(verified(bouncer), size=1, pooler="unprepared")
        # The certificate is for `localhost` alone, and from an unknown authority.
        for wrong in (
            verified(bouncer).replace("@localhost:", "@127.0.0.1:"),
            f"{bouncer.url}?sslmode=verify-full&sslrootcert=system",
        ):
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(wrong)


async def test_statements_without_names_survive_the_change_of_servers(database_url: str) -> None:
    """Clients that take turns on two server connections never run each other's statements."""
    async with bouncing(database_url, connections=2) as bouncer:
        conns = [await connect(bouncer.url, statement_cache_size=0) for _ in range(6)]

        async def ask(number: int) -> None:
            for turn in range(100):
                assert await conns[number].fetchval(f"SELECT $1::int * {number}", turn) == turn * number

        await asyncio.gather(*(ask(number) for number in range(6)))
        for conn in conns:
            await conn.close()
