"""Two database roles: one owns every table and runs migrations, the other is the application's and owns nothing.

The application's role may read and write rows, except in two tables: the record of migrations is read-only to it, and
the audit log append-only. So neither a bug of ours nor somebody with the application's password can change what is
recorded there. The rule nobody may break: privileges are granted by name, and the application is never granted what it
must not do.
"""

from __future__ import annotations

import asyncpg

from heliograph.base.database import url as database_url
from heliograph.base.database.pool import Connection

#: Attributes of the application's role: it may only log in.
ROLE_ATTRIBUTES = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"
#: Tables with fewer privileges; in all others the application may read, add, change and delete rows.
READ_ONLY, APPEND_ONLY = "schema_migrations", "audit_log"
#: Lets the application see how long other roles' transactions, which hold back vacuum, have been open. If the owner may
#: not grant it, `heliograph doctor` reports that it is missing.
STATISTICS_ROLE = "pg_read_all_stats"

#: What people are told once the role has been given what sessions behind a pooler need (`pool.set_role`).
RECONNECT = "The role has its settings for PgBouncer now: RECONNECT in PgBouncer's console, or restart it."

CURRENT_ROLE = "SELECT current_user::text"
EXISTS = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)"
# PostgreSQL itself quotes names and passwords in the statement.
CREATE = f"SELECT format('CREATE ROLE %I {ROLE_ATTRIBUTES} PASSWORD %L', $1::text, $2::text)"
# Each privilege is looked for: the role may have some of them otherwise, such as from pg_read_all_data, or because an
# administrator let it read.
# STATISTICS_ROLE can be granted by a superuser, and by a role that inherits its ADMIN OPTION. As of PostgreSQL 16,
# GRANT ignores one that is not inherited.
MISSING_GRANTS = f"""
SELECT format('GRANT %s ON %I TO %I', wanted.what, relname, $1::text)
  FROM pg_class CROSS JOIN LATERAL (
       SELECT CASE WHEN relname = '{READ_ONLY}' OR relkind = 'v' THEN 'SELECT'
                   WHEN relname = '{APPEND_ONLY}' OR starts_with(relname, '{APPEND_ONLY}_') THEN 'SELECT, INSERT'
                   ELSE 'SELECT, INSERT, UPDATE, DELETE' END) AS wanted (what)
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
   AND pg_has_role(current_user, relowner, 'USAGE')
   AND EXISTS (SELECT FROM unnest(string_to_array(wanted.what, ', ')) AS privilege
                WHERE NOT has_table_privilege($1::text, pg_class.oid, privilege))
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', pg_proc.oid::regprocedure, $1::text)
  FROM pg_proc
 WHERE pronamespace = 'public'::regnamespace AND pg_has_role(current_user, proowner, 'USAGE')
   AND NOT has_function_privilege($1::text, pg_proc.oid, 'EXECUTE')
UNION ALL
SELECT format('GRANT USAGE ON SCHEMA public TO %I', $1::text)
 WHERE NOT has_schema_privilege($1::text, 'public', 'USAGE')
UNION ALL
SELECT format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), $1::text)
 WHERE NOT has_database_privilege($1::text, current_database(), 'CONNECT')
UNION ALL
SELECT format('GRANT {STATISTICS_ROLE} TO %I', $1::text)
 WHERE NOT pg_has_role($1::text, '{STATISTICS_ROLE}', 'USAGE')
   AND (EXISTS (SELECT FROM pg_auth_members
                 WHERE roleid = '{STATISTICS_ROLE}'::regrole AND admin_option
                   AND pg_has_role(current_user, member, 'USAGE'))
        OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
"""
# The owner of the audit log may do anything with it.
OWNS_AUDIT_LOG = """
SELECT pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class
 WHERE oid = to_regclass('audit_log')
"""


class RoleMissing(Exception):
    """The application's role does not exist, and this one may not create it. The text says what to do."""


async def grant(owner: Connection, application: str) -> None:
    """Grant the role in the URL `application` the privileges that it needs on the tables that `owner` has migrated,
    creating the role if it is missing. Does nothing if both are the same role, or nothing is missing. Raises
    RoleMissing."""
    role, password = database_url.role_of(application)
    if not role or role == await owner.fetchval(CURRENT_ROLE):
        return
    if not await owner.fetchval(EXISTS, role):
        try:
            await owner.execute(await owner.fetchval(CREATE, role, password))
        except asyncpg.InsufficientPrivilegeError:
            raise RoleMissing(
                f"the role {role!r} of HELIOGRAPH_DATABASE_URL does not exist, and the owner's role may not create it:"
                f" run CREATE ROLE \"{role}\" LOGIN PASSWORD '…' as an administrator, and migrate again"
            ) from None
    async with owner.transaction():
        for row in await owner.fetch(MISSING_GRANTS, role):
            await owner.execute(row[0])


def owner_needed(error: asyncpg.InsufficientPrivilegeError, *, owner_url: str) -> str:
    """What to do about a migration that the role may not apply. `owner_url`: HELIOGRAPH_OWNER_DATABASE_URL, or ""."""
    if owner_url:
        advice = (
            "the role of HELIOGRAPH_OWNER_DATABASE_URL must own the database and its tables: give the URL of the role"
            " that does"
        )
    else:
        advice = "give the URL of the role that owns the tables in HELIOGRAPH_OWNER_DATABASE_URL"
    return f"the database cannot be migrated: {error}; {advice}"


async def owns(conn: Connection) -> bool:
    """Whether this role can change the audit log: it owns the table, or is a superuser."""
    return bool(await conn.fetchval(OWNS_AUDIT_LOG))
