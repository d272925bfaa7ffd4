"""Lists, reports and exports are read from a standby if it has what was committed, and from the primary otherwise: with
a real streaming standby."""

from __future__ import annotations

import contextlib
import itertools
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from heliograph import doctor
from heliograph.api.routes import OPERATIONS
from heliograph.base.actor import Actor, Principal
from heliograph.base.database.migrate import migrate
from heliograph.base.database.pool import Connection, Pool, open_pool
from heliograph.base.ids import uuid7
from heliograph.base.process.measures import STANDBY_PASSED_OVER
from heliograph.base.process.settings import Settings
from heliograph.base.standby import readers as module
from heliograph.base.standby.readers import Readers, StandbyUnreadable, reached
from heliograph.contacts import records
from heliograph.contacts.records import Entry
from heliograph.contacts.search import Filters
from heliograph.health.snapshots import Standbys
from heliograph.metrics import database as metrics
from heliograph.overview.exports import jobs
from heliograph.overview.exports.kinds import Contacts
from heliograph.overview.exports.work import ExportWork
from tests.api.conftest import make_tenant, running
from tests.database import Cluster
from tests.embedded import QUICK, Start, cluster_home, cluster_model, embedded, public_place
from tests.ports import held_port
from tests.processes import SECRET_KEY, Program, environment, until_true
from tests.rules.factories import organization
from tests.standby import PRIMARY, Standby, following

__all__ = ["cluster_home", "cluster_model", "embedded", "public_place"]

IN_RECOVERY = "SELECT pg_is_in_recovery()"


@contextlib.asynccontextmanager
async def pair(embedded: Start, cluster_home: Path) -> AsyncIterator[tuple[str, Pool, Standby]]:
    """A primary with our schema, and its standby."""
    server = embedded(cluster_home, extra_settings=QUICK | PRIMARY)
    await server.start()
    await migrate(server.owner_url, application=server.url)
    pool = await open_pool(server.url, size=4)
    try:
        async with following(server, cluster_home.parent / "standby") as standby:
            yield server.url, pool, standby
    finally:
        pool.terminate()


def passed_over(reason: str) -> float:
    return STANDBY_PASSED_OVER.values.get((reason,), 0)


async def exported(pool: Pool, actor: Actor, readers: Readers) -> str:
    """The file, as a worker with these readers writes it."""
    user = uuid7()
    await pool.execute(
        "WITH made AS (INSERT INTO users (id, email, name, created_at) VALUES ($1, $2, 'Ana', now()))"
        " INSERT INTO memberships (organization_id, user_id, role, created_at) VALUES ($3, $1, 'owner', now())",
        user,
        f"{user}@example.com",
        actor.organization_id,
    )
    by = msgspec.structs.replace(actor, by=Principal("person", user, name="Ana"))
    async with pool.acquire() as conn:
        id = await jobs.ask(conn, by, wanted=Contacts(form="csv", filters=Filters()))
    work = ExportWork(pool, readers=readers)
    while await work.round():
        pass
    await work.stop(grace=0)
    assert await pool.fetchval("SELECT state FROM exports WHERE id = $1", id) == "finished"
    chunks = await pool.fetch("SELECT bytes FROM export_chunks WHERE export_id = $1", id)
    return "".join(row["bytes"].decode() for row in chunks)


async def where(readers: Readers, pool: Pool) -> bool:
    """Whether a read goes to the standby; all three kinds of reads agree."""

    async def ask(conn: Connection) -> Any:
        return await conn.fetchval(IN_RECOVERY)

    answers = [await readers.run(pool, ask)]
    async with pool.acquire() as primary, readers.read(primary) as conn:
        answers.append(await ask(conn))
    async with readers.lend(pool) as conn:
        answers.append(await ask(conn))
    (found,) = set(answers)
    return bool(found)


@pytest.mark.lasts(8)
async def test_a_standby_is_read_while_it_has_what_was_committed(
    embedded: Start, cluster_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AVOID_UNREACHABLE", 0.0)
    monkeypatch.setattr(module, "AVOID_BEHIND", 0.0)
    async with pair(embedded, cluster_home) as (url, pool, standby):
        # A standby that is caught up is used, however long that takes here.
        readers = Readers(standby.url, bound=30.0)
        assert await where(readers, pool)
        settings = Settings(database_url=url, reader_database_url=standby.url, reader_wait_seconds=30.0)
        async with pool.acquire() as conn:
            (check,) = await doctor._standby(conn, settings)
            assert (check.check, check.state) == ("standby", "ok")
        actor = await organization(pool)
        async with pool.acquire() as conn:
            await records.create_many(conn, actor, entries=[Entry("+258841234567", "Just made")])
        assert "Just made" in await exported(pool, actor, Readers(standby.url, bound=30.0))

        # One that replays nothing lacks new rows: the primary is read, and the log says so.
        await standby.ask("SELECT pg_wal_replay_pause()")
        quick = Readers(standby.url, bound=0.05)
        await organization(pool)
        before = passed_over("behind")
        assert not await where(quick, pool)
        assert passed_over("behind") == before + 3
        up, lag = quick.gauges()
        assert (up.name, up.value, lag.value > 0) == ("heliograph_standby_up", 0, True)
        async with pool.acquire() as conn:
            (check,) = await doctor._standby(conn, msgspec.structs.replace(settings, reader_wait_seconds=0.05))
            assert (check.state, "behind" in check.detail) == ("warning", True)
        tenant = await make_tenant(pool)
        async with running(url, reader_database_url=standby.url, reader_wait_seconds=0.05) as api:
            body = {"name": "Her own", "phone": "+258841234569"}
            assert (await api.ask("POST", "/contacts", headers=tenant.headers, json=body))[0] == 200
            listed = await api.ask("GET", "/contacts", headers=tenant.headers)
            assert [one["name"] for one in listed[2]["items"]] == ["Her own"]

        # It catches up, and is used again.
        await standby.ask("SELECT pg_wal_replay_resume()")
        assert await where(readers, pool)
        async with running(url, reader_database_url=standby.url, reader_wait_seconds=30.0) as api:
            listed = await api.ask("GET", "/contacts", headers=tenant.headers)
            assert [one["name"] for one in listed[2]["items"]] == ["Her own"]
            said = (
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%FROM contacts%' AND pid <> pg_backend_pid()"
            )
            assert await standby.ask(said) == 1

            # It ends between two reads: nobody notices except the operator.
            await standby.stop()
            before = passed_over("away")
            listed = await api.ask("GET", "/contacts", headers=tenant.headers)
            assert [one["name"] for one in listed[2]["items"]] == ["Her own"]
            assert passed_over("away") > before
            assert not await where(readers, pool)
            async with pool.acquire() as conn:
                (check,) = await doctor._standby(conn, settings)
                assert check.state == "warning"
            await standby.start()
            await until_true(lambda: where(readers, pool))


def test_the_feed_stays_where_transactions_are_seen() -> None:
    """The feed ends before the oldest transaction that may still add an event; a standby knows none, and would skip
    it."""
    stays = {each.id for each in OPERATIONS if each.on_primary}
    assert stays == {"listEvents"}
    assert not any(each.is_list for each in OPERATIONS if each.id in stays or each.mutates)


@pytest.mark.lasts(8)
async def test_what_a_standby_still_reads_holds_vacuum_up(embedded: Start, cluster_home: Path) -> None:
    async with pair(embedded, cluster_home) as (_, pool, standby):
        for change in ("hot_standby_feedback = on", "wal_receiver_status_interval = '1s'"):
            await standby.ask(f"ALTER SYSTEM SET {change}")
        await standby.ask("SELECT pg_reload_conf()")
        moments = itertools.count()
        standbys = Standbys(monotonic=lambda: float(next(moments)))

        async def oldest() -> float:
            await pool.execute("SELECT txid_current()")  # as processes do every second
            (found,) = [
                one.value
                for one in await metrics.read(pool, standbys)
                if one.name == "heliograph_oldest_snapshot_seconds"
            ]
            return found

        async def is_old() -> bool:
            return await oldest() > 20

        async def is_new() -> bool:
            return await oldest() <= 1

        report = await asyncpg.connect(standby.url)
        try:
            await report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await report.execute("SELECT FROM organizations")
            await until_true(is_old)
        finally:
            await report.close()
        await until_true(is_new)


@pytest.mark.lasts(8)
async def test_a_standby_by_mistake_for_the_primary_is_told(
    embedded: Start, cluster_home: Path, tmp_path: Path
) -> None:
    async with pair(embedded, cluster_home) as (_, _, standby):
        known = environment(HELIOGRAPH_DATABASE_URL=standby.url, HELIOGRAPH_SECRET_KEY=SECRET_KEY)
        for number, (command, told) in enumerate(
            {
                ("org", "create", "Acme", "--country", "any"): "it can only be read: it is a standby",
                ("backup", "take", "--to", str(tmp_path / "backups")): "the database is a standby",
                ("doctor",): "database: Use the address of the primary.",
            }.items()
        ):
            program = await Program.start(*command, log=tmp_path / f"{number}", environment=known)
            assert await program.ended() != 0
            text = program.out + program.err
            assert told in text
            assert "Traceback" not in text
        assert list((tmp_path / "backups").iterdir()) == []


@pytest.mark.lasts(10)
async def test_a_standby_that_was_ahead_of_the_promoted_one_is_not_read(
    embedded: Start, cluster_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restore to an earlier time: it keeps what the primary never had, at positions that this has yet to
    reach, and never gets what is written there. One that follows the promoted one is read."""
    monkeypatch.setattr(module, "AVOID_UNREACHABLE", 0.0)
    server, place = embedded(cluster_home, extra_settings=QUICK | PRIMARY), cluster_home.parent
    await server.start()
    await migrate(server.owner_url, application=server.url)
    async with (
        following(server, place / "ahead") as ahead,
        following(server, place / "behind") as behind,
        following(server, place / "follower") as follower,
    ):
        at = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(behind.administrator).query))
        password = urllib.parse.urlsplit(behind.administrator).password
        source = f"host={at['host']} port={at['port']} user=postgres password={password}"
        await follower.ask(f"ALTER SYSTEM SET primary_conninfo = '{source}'")
        for one in (behind, follower):
            await one.stop()
        pool = await open_pool(server.url, size=1)
        try:
            await organization(pool)
            lost = await pool.fetchval("SELECT pg_current_wal_flush_lsn()::text")
        finally:
            pool.terminate()
        await until_true(lambda: ahead.ask(f"SELECT pg_last_wal_replay_lsn() >= '{lost}'"))
        await server.stop()
        await behind.start()
        assert await behind.ask("SELECT pg_promote()")
        pool = await open_pool(behind.url, size=4)
        try:
            assert await pool.fetchval("SELECT pg_current_wal_flush_lsn() < $1::text::pg_lsn", lost)
            assert await ahead.ask("SELECT count(*) FROM organizations") == 1
            assert not await where(Readers(ahead.url, bound=0.05), pool)
            async with pool.acquire() as conn:
                with pytest.raises(StandbyUnreadable, match="on timeline 00000001, and the primary on 00000002"):
                    async with reached(conn, ahead.url, bound=0.05):
                        pass
            await follower.start()
            readers = Readers(follower.url, bound=30.0)
            await until_true(lambda: where(readers, pool))
        finally:
            pool.terminate()


async def test_what_is_no_standby_of_this_primary_is_not_read(pool: Pool, database_server: Cluster) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await records.create_many(conn, actor, entries=[Entry("+258841234567", "On the primary")])
    assert "On the primary" in await exported(pool, actor, Readers(""))
    assert [*Readers("").gauges()] == []
    async with database_server.database() as elsewhere:
        assert "On the primary" in await exported(pool, actor, Readers(elsewhere))
        async with pool.acquire() as conn:
            with pytest.raises(StandbyUnreadable, match="not a standby"):
                async with reached(conn, elsewhere, bound=0.1):
                    pass
    with held_port() as port:
        assert "On the primary" in await exported(pool, actor, Readers(f"postgresql://u:p@127.0.0.1:{port}/x"))
