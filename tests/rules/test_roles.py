"""The application's role: it owns no table, cannot change what is recorded about anybody, and can make partitions all
the same."""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable
from datetime import UTC, timedelta

import asyncpg
import pytest

from heliograph.audit import recording
from heliograph.base.actor import SYSTEM
from heliograph.base.database import roles
from heliograph.base.database.migrate import make_days, make_partitions, migrate
from heliograph.base.database.pool import Pool
from heliograph.base.database.roles import STATISTICS_ROLE, RoleMissing
from heliograph.base.embedded.server import OWNER
from tests.database import Cluster
from tests.rules.factories import organization

AsOwner = Callable[[str], Awaitable[None]]


@pytest.fixture(autouse=True)
def two_roles(database_server: Cluster) -> None:
    if database_server.url == database_server.owner_url:
        pytest.skip("HELIOGRAPH_TEST_DATABASE_URL names one role, which is an administrator's")


OWNED = "SELECT relname FROM pg_class WHERE relowner = current_user::regrole"


async def test_the_application_owns_nothing(pool: Pool) -> None:
    assert await pool.fetch(OWNED) == []
    async with pool.acquire() as conn:
        assert not await roles.owns(conn)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await pool.execute("CREATE TABLE mine (id int)")


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_log SET who_name = 'somebody else'",
        "DELETE FROM audit_log",
        "TRUNCATE audit_log",
        "DROP TABLE audit_log",
        "ALTER TABLE audit_log RENAME TO elsewhere",
        "UPDATE {partition} SET who_name = 'somebody else'",
        "DELETE FROM {partition}",
        "DELETE FROM audit_log_rest",
        "DROP TABLE {partition}",
        "SELECT drop_partition('{partition}')",
        "SELECT id FROM audit_log FOR UPDATE",
        "UPDATE schema_migrations SET digest = ''",
    ],
)
async def test_what_is_recorded_cannot_be_changed(pool: Pool, statement: str) -> None:
    async with pool.acquire() as conn:
        await recording.record(conn, SYSTEM, "rates.imported", object_id="EUR")
    partition = await pool.fetchval("SELECT tableoid::regclass::text FROM audit_log")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await pool.execute(statement.format(partition=partition))
    assert await pool.fetchval("SELECT count(*) FROM audit_log") == 1


async def test_partitions_are_made_with_the_rights_of_their_table(pool: Pool) -> None:
    later = (await pool.fetchval("SELECT now()")).astimezone(UTC).date() + timedelta(days=400)
    async with pool.acquire() as conn:
        made = await make_partitions(conn, later, ahead=0) + await make_days(conn, later, ahead=0)
        assert f"audit_log_{later:%Y_%m}" in made
        for name in made:
            rights = {
                right
                for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
                if await conn.fetchval("SELECT has_table_privilege($1, $2)", name, right)
            }
            audited = name.startswith("audit_log")
            assert rights == {"SELECT", "INSERT"} | (set() if audited else {"UPDATE", "DELETE"}), name


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT make_partition('api_keys', 'api_keys_2031_01', '2031-01-01', '2031-02-01', NULL)",
        "SELECT make_partition('messages', 'organizations', 'a', 'b', NULL)",
        "SELECT make_partition('messages', 'messages_2031_01; DROP TABLE api_keys', 'a', 'b', NULL)",
        "SELECT drop_partition('api_keys')",
        "SELECT drop_partition('messages')",
        "SELECT drop_partition('messages_rest')",
        "SELECT drop_partition('nothing')",
    ],
)
async def test_only_partitions_of_ours_are_made_and_dropped(pool: Pool, statement: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="not a partition of ours"):
        await pool.execute(statement)


async def test_only_partitions_that_are_over_are_dropped(pool: Pool) -> None:
    today = (await pool.fetchval("SELECT now()")).astimezone(UTC).date()
    past, future = today - timedelta(days=62), today + timedelta(days=62)
    async with pool.acquire() as conn:
        for day in (past, future):
            await make_partitions(conn, day, ahead=0)
            await make_days(conn, day, ahead=0)
        for name in (f"messages_{future:%Y_%m}", f"requests_{future:%Y_%m_%d}"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="not over yet"):
                await conn.execute("SELECT drop_partition($1)", name)
        for name in (f"messages_{past:%Y_%m}", f"requests_{past:%Y_%m_%d}"):
            await conn.execute("SELECT drop_partition($1)", name)


async def test_a_past_month_of_the_log_can_be_dropped_after_thirteen_months(pool: Pool) -> None:
    today = (await pool.fetchval("SELECT now()")).astimezone(UTC).date().replace(day=15)
    async with pool.acquire() as conn:
        for months in (11, 16):
            day = today - timedelta(days=31 * months)
            await make_partitions(conn, day, ahead=0)
            drop = conn.execute("SELECT drop_partition($1)", f"audit_log_{day:%Y_%m}")
            if months == 11:
                with pytest.raises(asyncpg.InsufficientPrivilegeError, match="13 months"):
                    await drop
            else:
                await drop


async def test_migrating_makes_the_role_and_gives_it_what_is_new(
    pool: Pool, database_url: str, owner_url: str, as_owner: AsOwner, database_server: Cluster
) -> None:
    await as_owner("CREATE TABLE later (id int)")
    assert not await pool.fetchval("SELECT has_table_privilege('later', 'SELECT')")
    await migrate(owner_url, application=database_url)
    assert await pool.fetchval("SELECT has_table_privilege('later', 'SELECT, DELETE')")
    stranger = database_url.replace("://heliograph:", "://nobody-yet:")
    with pytest.raises(RoleMissing, match='CREATE ROLE "nobody-yet"'):
        await migrate(owner_url, application=stranger)
    assert await migrate(database_url) == [], "the application may say that nothing is pending"
    # An administrator may grant it.
    try:
        await migrate(database_server.as_administrator(database_url), application=stranger)
        assert await pool.fetchval("SELECT has_table_privilege('nobody-yet', 'messages', 'SELECT, DELETE')")
        assert not await pool.fetchval("SELECT has_table_privilege('nobody-yet', 'audit_log', 'DELETE')")
    finally:
        conn = await asyncpg.connect(database_server.as_administrator(database_url))
        await conn.execute('DROP OWNED BY "nobody-yet"; DROP ROLE "nobody-yet"')
        await conn.close()


async def test_a_role_that_may_read_gets_the_rest_wherever_the_url_names_it(
    database_url: str, owner_url: str, database_server: Cluster
) -> None:
    conn = await asyncpg.connect(database_server.as_administrator(database_url))
    try:
        await conn.execute("CREATE ROLE reporter LOGIN PASSWORD 'p'; GRANT pg_read_all_data TO reporter")
        try:
            parts = urllib.parse.urlsplit(database_url)
            query = "&".join(filter(None, (parts.query, "user=reporter&password=p")))
            named = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query).geturl()
            await migrate(owner_url, application=named)
            for table, least in (("messages", "SELECT INSERT UPDATE DELETE"), ("audit_log", "SELECT INSERT")):
                held = [
                    right
                    for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
                    if await conn.fetchval("SELECT has_table_privilege('reporter', $1, $2)", table, right)
                ]
                assert held == least.split(), table
        finally:
            await conn.execute("DROP OWNED BY reporter; DROP ROLE reporter")
    finally:
        await conn.close()


@pytest.mark.parametrize(("inherited", "sees"), [("FALSE", False), ("TRUE", True)])
async def test_the_right_to_see_all_is_left_out_if_the_owner_cannot_grant_it(
    database_url: str, owner_url: str, database_server: Cluster, inherited: str, sees: bool
) -> None:
    """As of PostgreSQL 16, GRANT ignores groups whose rights the owner does not inherit. Migrations do not need it."""
    stranger = database_url.replace("://heliograph:", "://newcomer:")
    conn = await asyncpg.connect(database_server.as_administrator(database_url))
    try:
        if await conn.fetchval("SELECT current_setting('server_version_num')::int") < 160000:
            pytest.skip("every member of a group inherits alike")
        await conn.execute(f"CREATE ROLE newcomer; CREATE ROLE team; GRANT {STATISTICS_ROLE} TO team WITH ADMIN OPTION")
        await conn.execute(f"GRANT team TO {OWNER} WITH INHERIT {inherited}")
        try:
            await migrate(owner_url, application=stranger)
            assert await conn.fetchval("SELECT has_table_privilege('newcomer', 'messages', 'SELECT, DELETE')")
            assert await conn.fetchval(f"SELECT pg_has_role('newcomer', '{STATISTICS_ROLE}', 'USAGE')") is sees
        finally:
            await conn.execute("DROP OWNED BY newcomer, team CASCADE; DROP ROLE IF EXISTS newcomer")
            await conn.execute("DROP ROLE team")
    finally:
        await conn.close()


async def test_what_the_application_does_needs_no_more(pool: Pool) -> None:
    """A missing right shows in every other test as well: they all run as the application."""
    await organization(pool)
    assert await pool.fetchval("SELECT current_user::text") != await pool.fetchval(
        "SELECT relowner::regrole::text FROM pg_class WHERE relname = 'organizations'"
    )
