"""The locks in a migration plan are those that PostgreSQL takes: each kind of statement is run and observed."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from heliograph import migration_plan
from heliograph.base.database.migrate import ROOT, migrate, unapplied
from heliograph.migration_plan import MODES, locks_of, statements
from tests.rules.test_migrations import with_migration

#: The strongest lock mode that this session holds on the table, and the table's file.
HELD = """
SELECT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'trial'::regclass AND granted
"""
FILE = "SELECT pg_relation_filenode('trial')"
ORDER = ["AccessShareLock", "RowShareLock", *list(MODES)[1:]]

TRIAL = """
CREATE TABLE other (id int PRIMARY KEY);
INSERT INTO other SELECT generate_series(1, 1000);
CREATE TABLE trial (id int PRIMARY KEY, other int, text text NOT NULL DEFAULT 'x');
INSERT INTO trial (id, other) SELECT n, n FROM generate_series(1, 1000) AS n;
CREATE INDEX trial_other ON trial (other);
ALTER TABLE trial ADD CONSTRAINT later CHECK (id > 0) NOT VALID;
"""
STATEMENTS = [
    "CREATE INDEX trial_text ON trial (text)",
    "CREATE UNIQUE INDEX IF NOT EXISTS trial_both ON trial USING btree (id, other) WHERE other > 1",
    "ALTER TABLE trial VALIDATE CONSTRAINT later",
    "ALTER TABLE trial ADD CONSTRAINT refers FOREIGN KEY (other) REFERENCES other (id) NOT VALID",
    "ALTER TABLE trial ADD FOREIGN KEY (other) REFERENCES other (id)",
    "ALTER TABLE trial ADD CONSTRAINT positive CHECK (other > 0) NOT VALID",
    "ALTER TABLE trial ADD CHECK (other > 0)",
    "ALTER TABLE trial ADD CONSTRAINT one UNIQUE (other)",
    "ALTER TABLE trial ALTER COLUMN other SET NOT NULL",
    "ALTER TABLE trial ALTER other TYPE bigint",
    "ALTER TABLE trial ADD COLUMN made uuid DEFAULT gen_random_uuid()",
    "ALTER TABLE trial ADD sum int GENERATED ALWAYS AS (id + 1) STORED",
    "ALTER TABLE trial ADD COLUMN later text",
    "ALTER TABLE trial ADD COLUMN later int NOT NULL DEFAULT 7",
    "ALTER TABLE trial DROP COLUMN text",
    "ALTER TABLE trial RENAME COLUMN text TO words",
    "ALTER TABLE trial ALTER text SET DEFAULT 'y'",
    "ALTER TABLE trial ALTER text SET STATISTICS 500",
    "ALTER TABLE trial SET (fillfactor = 70)",
    "COMMENT ON TABLE trial IS 'tenant: a trial'",
    "COMMENT ON COLUMN trial.text IS 'words'",
    "UPDATE trial SET other = other + 1",
    "INSERT INTO trial (id) VALUES (5000)",
    "DELETE FROM trial WHERE id = 1",
    "DROP INDEX trial_other",
]
#: Statements that rewrite the whole table.
REWRITING = ("ALTER other TYPE", "gen_random_uuid", "GENERATED")


@pytest.fixture
async def trial(owner_url: str) -> asyncpg.Connection:
    conn = await asyncpg.connect(owner_url)
    await conn.execute(TRIAL)
    yield conn
    await conn.close()


@pytest.mark.parametrize("statement", STATEMENTS)
async def test_what_is_said_is_what_is_locked(trial: asyncpg.Connection, statement: str) -> None:
    (said,) = [one for one in await locks_of(trial, [("x.sql", statement + ";")]) if one.table == "trial"]
    assert not said.is_guess
    before = await trial.fetchval(FILE)
    transaction = trial.transaction()
    await transaction.start()
    await trial.execute(statement)
    held = [row["mode"] for row in await trial.fetch(HELD)]
    rewritten = await trial.fetchval(FILE) != before
    await transaction.rollback()
    assert max(held, key=ORDER.index) == said.mode
    assert rewritten == any(part in statement for part in REWRITING)
    if rewritten:
        assert said.seconds > migration_plan.BRIEF
        assert said.blocks == "reads and writes"


async def test_an_index_that_is_made_concurrently_keeps_nobody_from_writing(trial: asyncpg.Connection) -> None:
    (said,) = await locks_of(trial, [("x.sql", "CREATE INDEX CONCURRENTLY trial_text ON trial (text);")])
    assert said.blocks == "changes of definition"
    (said,) = await locks_of(trial, [("x.sql", "DROP INDEX CONCURRENTLY trial_other;")])
    assert (said.table, said.blocks) == ("trial", "changes of definition")


async def test_who_is_referred_to_waits_too(trial: asyncpg.Connection) -> None:
    (said,) = await locks_of(trial, [("x.sql", "CREATE TABLE fresh (id int REFERENCES other (id), n int);")])
    assert (said.table, said.blocks) == ("other", "writes")


async def test_what_is_not_known_is_taken_for_the_worst(trial: asyncpg.Connection) -> None:
    (said,) = await locks_of(trial, [("x.sql", "CLUSTER trial USING trial_other;")])
    assert said.is_guess
    assert said.blocks == "reads and writes"


async def test_the_larger_the_table_the_longer(trial: asyncpg.Connection) -> None:
    rewrite = [("x.sql", "ALTER TABLE trial ALTER other TYPE bigint;")]
    (small,) = await locks_of(trial, rewrite)
    await trial.execute("INSERT INTO trial (id, other) SELECT n, n FROM generate_series(10000, 60000) AS n")
    (large,) = await locks_of(trial, rewrite)
    assert large.bytes > 10 * small.bytes
    assert large.seconds > small.seconds


async def test_all_of_the_schema_is_understood_and_locks_nothing_where_nothing_is(empty_database_url: str) -> None:
    conn = await asyncpg.connect(empty_database_url)
    try:
        assert await migration_plan.plan(conn) == []
        scripts = [one for one in await unapplied(conn) if one.kind != "function"]
    finally:
        await conn.close()
    assert sum(len(list(statements(one.text))) for one in scripts) > 300


async def test_a_pending_migration_is_planned_and_a_migrated_database_has_none(owner_url: str, tmp_path: Path) -> None:
    root = with_migration(tmp_path, "0002_later.sql", "-- A column; and more.\nALTER TABLE messages ADD later text;")
    conn = await asyncpg.connect(owner_url)
    try:
        (said,) = await migration_plan.plan(conn, root=root)
        assert (said.file, said.table, said.blocks) == ("0002_later.sql", "messages", "reads and writes")
        # With all of its partitions.
        assert said.bytes > await conn.fetchval("SELECT pg_total_relation_size('messages')")
        assert await migration_plan.plan(conn) == []
    finally:
        await conn.close()
    assert await migrate(owner_url, root=root) == ["0002_later.sql"]
    assert ROOT.is_dir()


def test_statements_end_where_they_end() -> None:
    text = "SELECT ';' ; -- one; two\nCREATE FUNCTION f() AS $$ a; b; $$ LANGUAGE x;\n\n SELECT $q$;$q$\n  , 2"
    assert [one[:12] for one in statements(text)] == ["SELECT ';'", "CREATE FUNCT", "SELECT $q$;$"]
