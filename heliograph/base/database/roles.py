"""Two roles: one owns every table and migrates, the other is the application's and owns none.

The application's role may read and write rows, except in two tables: it may only read the record of migrations, and
only read and add to the audit log. So neither a bug of ours nor somebody with the application's password can change
what is recorded there. The rule nobody may break: rights are granted by name, and the application is never granted what
it must not do.
"""

from __future__ import annotations

import urllib.parse

import asyncpg

from heliograph.base.database.pool import Connection

#: General attributes of the role: it may only log in.
LIMITS = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"
#: Tables with fewer rights; in all others the application may read, add, change and delete rows.
READ_ONLY, APPEND_ONLY = "schema_migrations", "audit_log"
#: The role that sees since when other roles' transactions have been open, which hold vacuum up. Who may not grant it
#: does without: `heliograph doctor` says so.
SEES = "pg_read_all_stats"

SELF = "SELECT current_user::text"
EXISTS = "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)"
# PostgreSQL itself quotes names and passwords in the statement.
CREATE = f"SELECT format('CREATE ROLE %I {LIMITS} PASSWORD %L', $1::text, $2::text)"
# Who may grant the role that sees all: a superuser, and who inherits the right to. A right that is not inherited is
# none for GRANT as of PostgreSQL 16.
WANTED = f"""
SELECT format('GRANT %s ON %I TO %I', wanted.what, relname, $1::text)
  FROM pg_class CROSS JOIN LATERAL (
       SELECT CASE WHEN relname = '{READ_ONLY}' OR relkind = 'v' THEN 'SELECT'
                   WHEN relname = '{APPEND_ONLY}' OR starts_with(relname, '{APPEND_ONLY}_') THEN 'SELECT, INSERT'
                   ELSE 'SELECT, INSERT, UPDATE, DELETE' END) AS wanted (what)
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
   AND pg_has_role(current_user, relowner, 'USAGE')
   AND NOT has_table_privilege($1::text, pg_class.oid, 'SELECT')
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
SELECT format('GRANT {SEES} TO %I', $1::text)
 WHERE NOT pg_has_role($1::text, '{SEES}', 'USAGE')
   AND (EXISTS (SELECT FROM pg_auth_members
                 WHERE roleid = '{SEES}'::regrole AND admin_option AND pg_has_role(current_user, member, 'USAGE'))
        OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))
"""
# The owner of the audit log may do anything with it.
OWNS = """
SELECT pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class
 WHERE oid = to_regclass('audit_log')
"""


class RoleMissing(Exception):
    """The application's role does not exist, and this one may not create it. The text says what to do."""


async def grant(owner: Connection, application: str) -> None:
    """Grant the role in the URL `application` what it needs on the tables that `owner` has migrated; the role is
    created if it is missing. Raises RoleMissing. Does nothing if it is the same role, or already has these rights.
    """
    parts = urllib.parse.urlsplit(application)
    role, password = urllib.parse.unquote(parts.username or ""), urllib.parse.unquote(parts.password or "")
    if not role or role == await owner.fetchval(SELF):
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
        for row in await owner.fetch(WANTED, role):
            await owner.execute(row[0])


async def owns(conn: Connection) -> bool:
    """Whether this role can change the audit log: it owns the table, or is a superuser."""
    return bool(await conn.fetchval(OWNS))
