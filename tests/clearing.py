"""Resets a database after a test by deleting its rows. Databases changed in any other way are left to
`tests/recycling.py`, which restores every file.

A reused database keeps its sessions (`tests/sessions.py`), which have cached its tables and planned its statements.
"""

from __future__ import annotations

import asyncpg

#: After this many deleted rows a database is no longer reused: dead rows slow down sequential scans.
MOST_REMOVED = 3_000
#: Tables that tests do not write to; a database in which they differ is not reused.
LASTING = ("schema_migrations",)

#: The catalogs that define a database: if one has a row more or less, or a row written since, the database has changed.
CATALOGS = [
    "pg_class",
    "pg_attribute",
    "pg_attrdef",
    "pg_constraint",
    "pg_index",
    "pg_trigger",
    "pg_proc",
    "pg_type",
    "pg_namespace",
    "pg_policy",
    "pg_rewrite",
    "pg_inherits",
    "pg_statistic",
    "pg_statistic_ext",
    "pg_default_acl",
    "pg_event_trigger",
    "pg_extension",
    "pg_publication",
    "pg_largeobject_metadata",
    "pg_description",
]
#: Each row written since the template was made counts as a million.
COUNT = "(SELECT count(*) + 1000000 * count(*) FILTER (WHERE age(xmin) < age('{since}'::xid)) FROM {catalog})"
#: Vacuuming and analyzing update these counters in place.
COUNTED = "(SELECT (sum(reltuples) + sum(relpages))::bigint FROM pg_class WHERE relnamespace = 'public'::regnamespace)"
CONTENT = "(SELECT bit_xor(hashtextextended(rows::text, 0)) FROM {table} AS rows)"
TABLES = """
SELECT quote_ident(relname) FROM pg_class
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
 ORDER BY relname
"""
#: State that belongs to a database but is not stored in it, or is temporary.
BESIDE = """
(SELECT datconnlimit = -1 AND datallowconn FROM pg_database WHERE datname = current_database())
AND NOT EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
                 WHERE d.datname = current_database())
AND NOT EXISTS (SELECT FROM pg_prepared_xacts WHERE database = current_database())
AND NOT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                 WHERE d.datname = current_database() AND l.locktype = 'advisory')
"""
#: Plans are made once. Triggers and foreign keys are disabled.
SESSION = {"session_replication_role": "replica", "plan_cache_mode": "force_generic_plan", "jit": "off"}


class Untouched:
    """The state of an unused database."""

    def __init__(self, compare: str, remove: str) -> None:
        """Two statements: one that tells whether a database is unchanged except for rows, and one that deletes and
        counts them."""
        self.compare, self.remove = compare, remove

    @classmethod
    async def of(cls, url: str) -> Untouched:
        """Take the state from the template at `url`, a superuser's."""
        connection = await asyncpg.connect(url)
        try:
            since = await connection.fetchval("SELECT pg_current_xact_id()::text")
            tables = [row[0] for row in await connection.fetch(TABLES)]
            parts = [COUNT.format(since=since, catalog=catalog) for catalog in CATALOGS]
            parts += [COUNTED, *(CONTENT.format(table=table) for table in LASTING if table in tables)]
            state = f"ARRAY[{', '.join(parts)}]"
            found = await connection.fetchval(f"SELECT {state}::text")
        finally:
            await connection.close()
        emptied = [table for table in tables if table not in LASTING]
        removals = ", ".join(f"r{n} AS (DELETE FROM {table} RETURNING 1)" for n, table in enumerate(emptied))
        removed = " + ".join(f"(SELECT count(*) FROM r{n})" for n, _ in enumerate(emptied))
        return cls(f"SELECT {state} = '{found}'::bigint[] AND {BESIDE}", f"WITH {removals} SELECT {removed}")


class Clearing:
    """Clears one database, over a session of its own."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], untouched: Untouched) -> None:
        self._connection = connection
        self._untouched = untouched
        self._removed = 0

    @classmethod
    async def of(cls, url: str, untouched: Untouched) -> Clearing:
        """Connect to `url`, a superuser's."""
        return cls(await asyncpg.connect(url, server_settings=SESSION), untouched)

    @property
    def process(self) -> int:
        """The pid of its session's server process."""
        return self._connection.get_server_pid()

    async def clear(self, then: str) -> bool:
        """Delete all rows and run `then`; returns whether the database is as good as a new one."""
        if not await self._connection.fetchval(self._untouched.compare):
            return False
        self._removed += await self._connection.fetchval(self._untouched.remove)
        await self._connection.execute(then)
        return self._removed < MOST_REMOVED

    def end(self) -> None:
        """Close the session, because the database is about to be dropped."""
        self._connection.terminate()
