"""Migrations and partitions on a real database: the same from zero each time, one at a time, and never half done."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import shutil
import signal
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest

from heliograph.base.actor import Actor
from heliograph.base.database import migrate as migrate_module
from heliograph.base.database.migrate import (
    DAILY,
    DAYS_AHEAD,
    PARTITIONED,
    ROOT,
    ForeignSchema,
    MigrationBlocked,
    MigrationChanged,
    MigrationError,
    day_name,
    make_partitions,
    migrate,
    pending,
)
from heliograph.base.database.pool import QUERY_SEMANTICS, Connection, Pool, open_pool, set_role
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.base.network.connecting import DEAD_PEER_TIMEOUTS
from heliograph.base.process.settings import Settings
from heliograph.cli.terminal.console import connection
from heliograph.migration_plan import plan
from heliograph.up import running
from tests.database import Cluster
from tests.rules.factories import organization

SHAPE = """
SELECT 'column', format('%s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       pg_get_expr(d.adbin, d.adrelid))
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
 WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT a.attisdropped
UNION ALL SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT 'check', format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint
 WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT 'function', CASE prokind WHEN 'a' THEN (SELECT format('%s %s %s', aggfnoid, aggtransfn, agginitval)
                                                           FROM pg_aggregate WHERE aggfnoid = pg_proc.oid)
                                          ELSE pg_get_functiondef(oid) END
  FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'comment', format('%s %s', objoid::regclass, description) FROM pg_description
 WHERE classoid = 'pg_class'::regclass AND objoid IN (SELECT oid FROM pg_class
 WHERE relnamespace = 'public'::regnamespace)
UNION ALL SELECT 'migration', format('%s %s', name, digest) FROM schema_migrations
 ORDER BY 1, 2
"""


def past() -> tuple[str, str]:
    """The bounds of partitions that are no longer needed: the tests' template has them if midnight has passed since."""
    today = datetime.now(UTC).date()
    return f"_{today - timedelta(days=1):%Y_%m_%d}", f"_{today - timedelta(days=today.day):%Y_%m}"


async def shape(url: str) -> list[tuple[str, str]]:
    # The template of tests has another default for it.
    left_out = ("organizations.quiet_hours", *past())
    conn = await asyncpg.connect(url)
    try:
        rows = await conn.fetch(SHAPE)
        return [(row[0], row[1]) for row in rows if not any(name in row[1] for name in left_out)]
    finally:
        await conn.close()


@pytest.fixture
async def database_url(owner_url: str, database_url: str) -> str:
    """Only the owner may migrate."""
    await migrate(owner_url, application=database_url)
    return owner_url


async def test_from_zero_twice_is_the_same_and_a_second_time_is_nothing(
    empty_database_url: str, database_url: str
) -> None:
    applied = await migrate(empty_database_url)
    assert applied[0] == "0001_schema.sql"
    assert "sms/accepting/accept.sql" in applied
    assert applied == sorted(applied[: len(applied) - 1]) + applied[-1:]
    first = await shape(empty_database_url)
    assert first == await shape(database_url)
    assert await migrate(empty_database_url) == []
    assert await shape(empty_database_url) == first


#: What may end a statement or a session, by the role.
LIMITS = "statement_timeout", "lock_timeout", "idle_session_timeout"


async def test_what_the_role_sets_changes_nothing(empty_database_url: str) -> None:
    conn = await asyncpg.connect(empty_database_url)
    try:
        await conn.execute("CREATE SCHEMA other")
        name = await conn.fetchval("SELECT quote_ident(current_database())")
        for setting in (
            "default_transaction_isolation = 'serializable'",
            "search_path = 'other'",
            "standard_conforming_strings = off",
            "TimeZone = 'Asia/Kathmandu'",
            "DateStyle = 'German, DMY'",
            "statement_timeout = '1ms'",  # building an index of a large table takes longer than an hour may
            "idle_session_timeout = '1ms'",  # as does a backup, whose command says at the end that it is there
            "lock_timeout = '1ms'",  # what waits for a lock, and may, would fail
            "quote_all_identifiers = on",  # partitions are found by their names
        ):
            await conn.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {name} SET {setting}")
        await migrate(empty_database_url)
        assert await conn.fetchval("SELECT to_regclass('public.messages') IS NOT NULL")
        assert await conn.fetchval("SELECT count(*) FROM pg_class WHERE relnamespace = 'other'::regnamespace") == 0
        pool = await open_pool(empty_database_url, size=1)
        try:
            shown = [await pool.fetchval(f"SELECT current_setting('{setting}')") for setting in QUERY_SEMANTICS]
            assert shown == list(QUERY_SEMANTICS.values())
            # Usage is listed by days as text; counts of requests are read from the beginning of an hour.
            assert await pool.fetchval("SELECT date '2027-01-31'::text") == "2027-01-31"
            hour = await pool.fetchval("SELECT date_trunc('hour', timestamptz '2027-01-31T11:45:00Z')")
            assert hour == datetime(2027, 1, 31, 11, tzinfo=UTC)
            assert await pool.fetchval("SELECT count(*) FROM organizations") == 0
            assert [await pool.fetchval(f"SHOW {limit}") for limit in LIMITS] == ["30s", "0", "0"]
        finally:
            pool.terminate()
        async with connection(empty_database_url) as command:
            assert [await command.fetchval(f"SHOW {limit}") for limit in LIMITS] == ["0", "0", "0"]
    finally:
        await conn.close()


async def test_no_transaction_timeout_of_the_role_ends_a_session(empty_database_url: str, tmp_path: Path) -> None:
    """PostgreSQL 17 has one. The transaction that changes a large table takes longer, or that locks a month's bill."""
    shown = "SELECT coalesce(current_setting('transaction_timeout', true), '0') AS value"
    root = with_migration(tmp_path, "0002_later.sql", f"-- Tests.\nCREATE TABLE later AS {shown};\n")
    conn = await asyncpg.connect(empty_database_url)
    try:
        name = await conn.fetchval("SELECT quote_ident(current_database())")
        for row in await conn.fetch("SELECT name FROM pg_settings WHERE name = 'transaction_timeout'"):
            await conn.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {name} SET {row['name']} = '1h'")
        await migrate(empty_database_url, root=root)
        assert await conn.fetchval("SELECT value FROM later") == "0"
        pool = await open_pool(empty_database_url, size=1)
        try:
            assert await pool.fetchval(shown) == "0"
        finally:
            pool.terminate()
        async with connection(empty_database_url) as command:
            assert await command.fetchval(shown) == "0"
        # Behind a pooler, the role brings it.
        assert await set_role(conn)
        there = await asyncpg.connect(empty_database_url)
        assert await there.fetchval(shown) == "0"
        await there.close()
        assert not await set_role(conn)
    finally:
        await conn.close()


async def test_a_database_that_cannot_hold_every_character_is_refused(database_server: Cluster) -> None:
    name = f"ascii_{secrets.token_hex(4)}"
    url = database_server.as_administrator(database_server.url_of(name))
    conn = await asyncpg.connect(database_server.superuser_url)
    try:
        await conn.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'"
        )
        with pytest.raises(MigrationError, match="encoding is SQL_ASCII: create one with ENCODING 'UTF8'"):
            await migrate(url)
        there = await asyncpg.connect(url)
        assert await there.fetchval("SELECT to_regclass('schema_migrations') IS NULL")
        await there.close()
    finally:
        await conn.execute(f"DROP DATABASE IF EXISTS {name}")
        await conn.close()


async def test_many_at_once_apply_each_file_once(empty_database_url: str, database_url: str) -> None:
    applied = await asyncio.gather(*(migrate(empty_database_url) for _ in range(4)))
    names = [name for some in applied for name in some]
    assert len(names) == len(set(names)) > 0
    assert await shape(empty_database_url) == await shape(database_url)


async def test_an_applied_migration_that_was_changed_is_refused(pool: Pool, database_url: str, tmp_path: Path) -> None:
    before = await shape(database_url)
    await pool.execute("INSERT INTO schema_migrations (name, digest, version) VALUES ('0002_later.sql', 'another', 1)")
    with pytest.raises(MigrationChanged, match="0002_later"):
        await migrate(database_url, root=with_migration(tmp_path, "0002_later.sql", "SELECT 1;"))
    await pool.execute("DELETE FROM schema_migrations WHERE name = '0002_later.sql'")
    assert await shape(database_url) == before


@pytest.mark.parametrize(
    "made", ["DELETE FROM schema_migrations", "UPDATE schema_migrations SET digest = 'of another text'"]
)
async def test_a_schema_that_is_not_ours_is_refused_and_left_alone(pool: Pool, database_url: str, made: str) -> None:
    await pool.execute(f"{made} WHERE name = '0001_schema.sql'")
    before = await shape(database_url)
    with pytest.raises(ForeignSchema, match="cannot be upgraded"):
        await migrate(database_url)
    async with pool.acquire() as conn:
        with pytest.raises(ForeignSchema, match="cannot be upgraded"):
            await pending(conn)
        with pytest.raises(ForeignSchema, match="cannot be upgraded"):
            await plan(conn)
    assert await shape(database_url) == before


async def test_a_function_whose_text_changed_is_put_in_place_again(pool: Pool, database_url: str) -> None:
    before = await shape(database_url)
    await pool.execute("UPDATE schema_migrations SET digest = 'old' WHERE name = 'sms/accepting/accept.sql'")
    async with pool.acquire() as conn:
        assert await pending(conn) == ["sms/accepting/accept.sql"]
    assert await migrate(database_url) == ["sms/accepting/accept.sql"]
    assert await shape(database_url) == before


async def test_what_is_pending_is_said(empty_database_url: str) -> None:
    conn = await asyncpg.connect(empty_database_url)
    try:
        waiting = await pending(conn)
        assert await migrate(empty_database_url) == waiting
        assert await pending(conn) == []
    finally:
        await conn.close()


async def test_an_older_program_leaves_what_a_newer_one_put_in_place(pool: Pool, database_url: str) -> None:
    before = await shape(database_url)
    # A function whose text says that it is the newer version.
    await pool.execute(
        "UPDATE schema_migrations SET digest = 'newer', version = 99 WHERE name = 'sms/accepting/accept.sql'"
    )
    newer = await shape(database_url)
    async with pool.acquire() as conn:
        assert await pending(conn) == []
    assert await migrate(database_url) == []
    assert await shape(database_url) == newer
    # Migrations that this version does not know.
    await pool.execute("UPDATE schema_migrations SET version = 1 WHERE name = 'sms/accepting/accept.sql'")
    await pool.execute("INSERT INTO schema_migrations VALUES ('9999_later.sql', 'x', 1)")
    async with pool.acquire() as conn:
        assert await pending(conn) == []
    assert await migrate(database_url) == []
    # `heliograph up`, too, says that it is the older one.
    said: list[str] = []
    await running._migrate(Settings(database_url=database_url), said.append)
    assert [line.partition(":")[0] for line in said] == [
        "The database was migrated by a later version (9999_later.sql)"
    ]
    await pool.execute("DELETE FROM schema_migrations WHERE name = '9999_later.sql'")
    assert await migrate(database_url) == ["sms/accepting/accept.sql"]
    assert await shape(database_url) == before


def with_migration(place: Path, name: str, text: str) -> Path:
    """A copy of the SQL files, with a later migration."""
    root = Path(str(ROOT))
    for file in root.rglob("*.sql"):
        copy = place / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    (place / "migrations" / name).write_text(text, "utf-8")
    return place


async def test_a_migration_that_waits_for_a_reader_lets_others_pass(
    pool: Pool, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.base.database.migrate.PATIENCE_MS", 100)
    monkeypatch.setattr("heliograph.base.database.migrate.PAUSE", 0.05)
    files = with_migration(tmp_path, "0002_later.sql", "ALTER TABLE workers ADD COLUMN later text;")
    waits: list[str] = []
    async with pool.acquire() as reader, reader.transaction():
        await reader.fetch("SELECT FROM workers")  # like a dump, for hours
        migrating = asyncio.create_task(migrate(database_url, on_wait=waits.append, root=files))
        async with asyncio.timeout(120):
            while not waits:
                await pool.fetch("SELECT FROM workers")
            for _ in range(20):
                await pool.fetch("SELECT FROM workers")
        assert not migrating.done()
    assert await migrating == ["0002_later.sql"]
    assert set(waits) == {"0002_later.sql is waiting for a table lock; it keeps retrying"}
    assert await pool.fetch("SELECT later FROM workers") == []


async def test_who_waits_for_another_migration_says_for_which(pool: Pool, database_url: str) -> None:
    """As while one is building an index, or its process has stopped: nothing was said, by `heliograph up` either."""
    said: list[str] = []
    async with pool.acquire() as other:
        assert await other.fetchval(migrate_module.LOCK, migrate_module.KEY)
        pid = await other.fetchval("SELECT pg_backend_pid()")
        migrating = asyncio.create_task(running._migrate(Settings(database_url=database_url), said.append))
        while not said:
            assert not migrating.done()
            await asyncio.sleep(0.01)
        await other.execute("SELECT pg_advisory_unlock_all()")
    await migrating
    assert said == [
        f"another migration of this database is running from 127.0.0.1 (process {pid} in pg_stat_activity); waiting"
        " until it ends"
    ]


async def test_a_lock_that_nobody_lets_go_ends_the_migration_with_a_word(
    pool: Pool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.base.database.migrate.PATIENCE_MS", 20)
    monkeypatch.setattr("heliograph.base.database.migrate.PAUSE", 0.0)
    monkeypatch.setattr("heliograph.base.database.migrate.TRIES", 3)
    async with pool.acquire() as holder, holder.transaction():
        await holder.execute("LOCK TABLE schema_migrations")
        with pytest.raises(MigrationBlocked, match="pg_stat_activity"):
            await migrate(database_url)


async def test_a_migration_whose_machine_is_gone_keeps_no_locks(database_url: str, tmp_path: Path) -> None:
    """Until TCP notices, after two hours, everything would have waited for them."""
    names = ", ".join(DEAD_PEER_TIMEOUTS)
    shown = f"SELECT name, current_setting(name) AS value FROM unnest(string_to_array('{names}', ', ')) AS name"
    root = with_migration(tmp_path, "0002_later.sql", f"-- Tests.\nCREATE TABLE later AS {shown};\n")
    assert await migrate(database_url, root=root) == ["0002_later.sql"]
    conn = await asyncpg.connect(database_url)
    try:
        assert dict(await conn.fetch("SELECT name, value FROM later")) == DEAD_PEER_TIMEOUTS
    finally:
        await conn.close()


LATER = "0002_later.concurrently.sql"
INDEX = "CREATE INDEX CONCURRENTLY messages_later{part} ON messages{part} (organization_id, sender)"


async def test_an_index_is_made_while_its_table_is_written_and_a_half_made_one_is_made_anew(
    pool: Pool, database_url: str, tmp_path: Path
) -> None:
    actor = await organization(pool)
    files = with_migration(tmp_path, LATER, f"-- Tests.\n{INDEX.format(part='')};\n")
    statement = INDEX.format(part="_rest")
    async with pool.acquire() as writer, writer.transaction():
        await put_message(writer, actor, UUID(int=1))
        killed = asyncio.create_task(pool.execute(statement))
        async with asyncio.timeout(120):
            while not await pool.fetchval("SELECT to_regclass('messages_later_rest') IS NOT NULL"):
                await pool.execute("SELECT pg_sleep(0.01)")
        await pool.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = $1 AND pid <> pg_backend_pid()",
            statement,
        )
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await killed
        assert not await pool.fetchval(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'messages_later_rest'::regclass"
        )
        migrating = asyncio.create_task(migrate(database_url, root=files))
        async with asyncio.timeout(120):
            # It waits for the writer, and nobody waits for it.
            while not await pool.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND query LIKE '%INDEX CONCURRENTLY messages_later_rest%')"
            ):
                await put_message(pool, actor, uuid7())
            await put_message(pool, actor, UUID(int=2))
        assert not migrating.done()
    assert await migrating == [LATER]
    # The index is valid as a whole, and each partition has its part.
    assert await pool.fetchval("SELECT indisvalid FROM pg_index WHERE indexrelid = 'messages_later'::regclass")
    parts, whole = await pool.fetchrow(
        "SELECT count(*), bool_and(indisvalid) FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid"
        " WHERE inhparent = 'messages_later'::regclass"
    ) or (0, False)
    assert whole
    assert parts == await pool.fetchval("SELECT count(*) FROM pg_inherits WHERE inhparent = 'messages'::regclass")


PROGRAM = "import asyncio, sys; from heliograph.base.database.migrate import migrate; asyncio.run(migrate(sys.argv[1]))"


async def test_one_that_is_killed_leaves_nothing_half(database_server: Cluster, database_url: str) -> None:
    chance = random.Random()
    target = await shape(database_url)
    for _ in range(3):
        async with database_server.database(template=False) as url:
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, url)
            conn = await asyncpg.connect(url)
            try:
                for _ in range(1000):  # it has begun: then it dies some time later, or has just finished
                    others = await conn.fetchval(
                        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                        " AND backend_type = 'client backend'"
                    )
                    if others > 1 or process.returncode is not None:
                        break
                    await asyncio.sleep(0.01)
                await asyncio.sleep(chance.random() * 0.2)
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
                await process.wait()
                tables = await conn.fetchval(
                    "SELECT count(*) FROM pg_class WHERE relname IN ('organizations', 'workers', 'messages_rest')"
                )
                assert tables in (0, 3)
            finally:
                await conn.close()
            await migrate(url)
            assert await shape(url) == target


async def test_every_table_says_what_class_it_is_of(pool: Pool) -> None:
    """tenant: organization_id leads the primary key. reference and control: shared."""
    rows = await pool.fetch(
        "SELECT c.relname, obj_description(c.oid) AS comment, a.attname AS first FROM pg_class c"
        " LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary"
        " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]"
        " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
    )
    assert len(rows) > 15
    for row in rows:
        assert re.match(r"(tenant|reference|control): \S", row["comment"] or ""), row["relname"]
        if row["comment"].startswith("tenant"):
            assert row["first"] == "organization_id", row["relname"]


async def test_the_schema_keeps_its_rules(pool: Pool) -> None:
    """No sequences, triggers, extensions or enum types; times have a zone; no index of a tenant leads elsewhere."""
    assert await pool.fetchval("SELECT count(*) FROM pg_class WHERE relkind = 'S'") == 0
    assert await pool.fetchval("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal") == 0
    assert [row[0] for row in await pool.fetch("SELECT extname FROM pg_extension")] == ["plpgsql"]
    assert await pool.fetchval("SELECT count(*) FROM pg_type WHERE typtype = 'e'") == 0
    bare = await pool.fetch(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        " AND data_type = 'timestamp without time zone'"
    )
    assert bare == []


# -- partitions --------------------------------------------------------------------------------------------------------


async def place_of(pool: Pool, table: str, column: str, id: UUID) -> str:
    place: str = await pool.fetchval(f"SELECT tableoid::regclass::text FROM {table} WHERE {column} = $1", id)
    return place


PUT = """
INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, encoding, segments, guarantee,
                      country, balance_after, request_id, accepted_at)
SELECT $1, $2, 'accepted', 'live', '1', '1', id, 'gsm7', 1, 'at_least_once', '001', 0, '', now() FROM sender_ids LIMIT 1
"""


async def put_message(conn: Pool | Connection, actor: Actor, id: UUID) -> None:
    await conn.execute(PUT, actor.organization_id, id)


async def put(pool: Pool, actor: Actor, id: UUID) -> str:
    """Store a message under `id`; returns the partition that contains it."""
    await put_message(pool, actor, id)
    return await place_of(pool, "messages", "id", id)


def month(ahead: int) -> datetime:
    today = datetime.now(UTC)
    index = today.year * 12 + today.month - 1 + ahead
    return datetime(index // 12, index % 12 + 1, 1, tzinfo=UTC)


async def test_ids_at_the_bounds_of_a_month_are_in_the_right_partition(pool: Pool) -> None:
    actor = await organization(pool)
    for ahead in range(3):
        start, end = month(ahead), month(ahead + 1)
        last = UUID(int=uuid7_floor(end).int - 1)
        for id in (uuid7_floor(start), UUID(int=uuid7_floor(start).int + 1), last):
            assert await put(pool, actor, id) == f"messages_{start:%Y_%m}"
    # This run's databases may have been made in a month that has ended meanwhile.
    before = UUID(int=uuid7_floor(month(-1)).int - 1)
    assert await put(pool, actor, before) == "messages_rest"
    assert await put(pool, actor, uuid7_floor(month(3))) == "messages_rest"


async def test_receipts_go_by_their_day(pool: Pool) -> None:
    for ahead in range(3):
        for day in (month(ahead).date(), month(ahead + 1).date() - timedelta(days=1)):
            id = uuid7()
            await pool.execute(
                "INSERT INTO receipts (received_on, supplier_id, fingerprint, keys, state, recipient, sender, error,"
                " received_at) VALUES ($1, $2, $2, '{}', 'delivered', '', '', '', now())",
                day,
                id,
            )
            assert await place_of(pool, "receipts", "supplier_id", id) == f"receipts_{month(ahead):%Y_%m}"


async def test_every_partitioned_table_has_its_months_and_a_net(pool: Pool) -> None:
    rows = await pool.fetch(
        "SELECT inhparent::regclass::text AS parent, inhrelid::regclass::text AS child FROM pg_inherits"
        " JOIN pg_class ON pg_class.oid = inhparent WHERE relkind = 'p'"
    )
    found = {(row["parent"], row["child"]) for row in rows}
    wanted = {(table, f"{table}_{month(ahead):%Y_%m}") for table in PARTITIONED for ahead in range(3)}
    today = datetime.now(UTC).date()
    wanted |= {(table, day_name(table, today + timedelta(days=n))) for table in DAILY for n in range(DAYS_AHEAD + 1)}
    wanted |= {(table, f"{table}_rest") for table in (*PARTITIONED, *DAILY)}
    assert wanted <= found
    assert all(child.endswith(past()) for _, child in found - wanted)


async def test_what_the_net_caught_moves_when_its_month_is_made(pool: Pool) -> None:
    """No worker made partitions for months: the rows of those months must not prevent them."""
    actor = await organization(pool)
    later = month(4)
    ids = [UUID(int=uuid7_floor(later).int + n) for n in range(5)]
    after = uuid7_floor(month(5))
    for id in (*ids, after):
        assert await put(pool, actor, id) == "messages_rest"
    async with pool.acquire() as conn:
        made = await make_partitions(conn, later.date(), ahead=0)
        assert {name for name in made if name.endswith(f"{later:%Y_%m}")} == {
            f"{table}_{later:%Y_%m}" for table in PARTITIONED
        }
        assert await make_partitions(conn, later.date(), ahead=0) == []
    assert {await place_of(pool, "messages", "id", id) for id in ids} == {f"messages_{later:%Y_%m}"}
    assert await place_of(pool, "messages", "id", after) == "messages_rest"
    options = await pool.fetchval("SELECT reloptions FROM pg_class WHERE relname = $1", f"messages_{later:%Y_%m}")
    assert options == ["fillfactor=75"]
    before = await pool.fetchval("SELECT count(*) FROM pg_indexes WHERE tablename = 'messages_rest'")
    assert (
        await pool.fetchval("SELECT count(*) FROM pg_indexes WHERE tablename = $1", f"messages_{later:%Y_%m}") == before
    )


async def test_what_is_being_written_moves_as_well(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine stood still for months: its first messages are stored while the partition of their month is made."""
    actor = await organization(pool)
    monkeypatch.setattr(migrate_module, "BRIEFLY_MS", 60_000)
    id = uuid7_floor(month(-4))
    blocked = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE '%make_partition%')"
    )
    async with pool.acquire() as writer, pool.acquire() as conn:
        writing = writer.transaction()
        await writing.start()
        await put_message(writer, actor, id)
        making = asyncio.create_task(make_partitions(conn, month(-4).date(), ahead=0))
        while not await pool.fetchval(blocked):
            assert not making.done()
        await writing.commit()
        await making
    assert await place_of(pool, "messages", "id", id) == f"messages_{month(-4):%Y_%m}"


@pytest.mark.parametrize("is_seen", [False, True])
async def test_a_partition_that_another_process_is_making_is_not_missed(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """Two rounds of retention at once, or one and a migration: the later one failed, and made none of the others.
    `is_seen`: it is made before this process asks for it, but after it has looked whether there is one."""
    monkeypatch.setattr(migrate_module, "BRIEFLY_MS", 60_000)
    name = "whatsapp_wamids_2031_12"
    other = "SELECT make_partition('whatsapp_wamids', $1, '2031-12-01', '2032-01-01', NULL)"

    class Late:
        """A connection whose first look at that partition is over before the other process commits."""

        def __init__(self, conn: Connection) -> None:
            self._conn, self._looked = conn, False

        async def fetchval(self, query: str, *arguments: object) -> object:
            found = await self._conn.fetchval(query, *arguments)
            if arguments == (name,) and not self._looked:
                self._looked = True
                await pool.execute(other, name)
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(self._conn, name)

    blocked = (
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE '%make_partition%')"
    )
    async with pool.acquire() as conn, pool.acquire() as process:
        if is_seen:
            made = await make_partitions(cast(Any, Late(conn)), date(2031, 12, 31), ahead=0)
        else:
            working = process.transaction()
            await working.start()
            await process.execute(other, name)
            making = asyncio.create_task(make_partitions(conn, date(2031, 12, 31), ahead=0))
            while not await pool.fetchval(blocked):
                assert not making.done()
            await working.commit()
            made = await making
    assert set(made) == {f"{table}_2031_12" for table in PARTITIONED} - {name}


async def test_partitions_of_december_end_in_january(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        made = await make_partitions(conn, date(2031, 12, 31), ahead=1)
    assert {name[-7:] for name in made} == {"2031_12", "2032_01"}
    id = UUID(int=uuid7_floor(datetime(2032, 1, 1, tzinfo=UTC)).int - 1)
    assert await put(pool, actor, id) == "messages_2031_12"
