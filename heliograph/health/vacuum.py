"""Whether autovacuum removes dead rows: without it, statements on busy tables take ever longer, retention first."""

from __future__ import annotations

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, said

#: A table is behind if it has this many dead rows, and this many times its own threshold, and no vacuum has ended for
#: this many seconds. Autovacuum starts within a minute of the threshold, so a burst of changes comes nowhere near.
DEAD, TIMES, SINCE = 200_000, 10, 3600
#: Maximum tables named.
NAMED = 5

IS_OFF = """
SELECT name FROM unnest('{autovacuum,track_counts}'::text[]) WITH ORDINALITY AS asked (name, place)
 WHERE NOT current_setting(name)::boolean ORDER BY place
"""

# The statistics are read by the functions of pg_stat_all_tables, and of the tables that can be behind only: the view
# itself reads all of them, indexes too. A vacuum that began within SINCE may still end; who may not see which table it
# is about does not see it here either.
TABLES = """
WITH own AS (
    SELECT oid, relname::text AS name, reltuples,
           (SELECT jsonb_object_agg(option_name, option_value) FROM pg_options_to_table(reloptions)) AS option
      FROM pg_class
     WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND relpersistence = 'p'
), counted AS (
    SELECT oid, name, coalesce((option ->> 'autovacuum_enabled')::boolean, true) AS enabled,
           pg_stat_get_dead_tuples(oid) AS dead,
           coalesce(option ->> 'autovacuum_vacuum_threshold', current_setting('autovacuum_vacuum_threshold'))::float8
           + greatest(reltuples, 0) * coalesce(option ->> 'autovacuum_vacuum_scale_factor',
                                               current_setting('autovacuum_vacuum_scale_factor'))::float8 AS threshold
      FROM own
)
SELECT name, enabled, dead FROM counted
 WHERE NOT enabled
    OR dead > $1 AND dead > $2 * threshold
       AND greatest(pg_stat_get_last_autovacuum_time(oid), pg_stat_get_last_vacuum_time(oid), '-infinity')
           < now() - make_interval(secs => $3)
       AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum p JOIN pg_stat_activity a ON a.pid = p.pid
                        WHERE p.relid = counted.oid AND a.xact_start > now() - make_interval(secs => $3))
 ORDER BY dead DESC, name
"""


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """Whether autovacuum is on, for each table as well, and keeps up with the rows that are deleted and updated."""
    name = said("vacuum")
    if off := [row["name"] for row in await conn.fetch(IS_OFF)]:
        remedy = said(
            "Turn them on in postgresql.conf and reload: until then, dead rows are never removed, and retention and the"
            " queue become slower every hour."
        )
        return [Check(name, "warning", said("%(names)s off", names=", ".join(off)), remedy)]
    rows = await conn.fetch(TABLES, DEAD, TIMES, SINCE)
    if disabled := [row["name"] for row in rows if not row["enabled"]]:
        remedy = said(
            "As the role that owns them, run `ALTER TABLE … RESET (autovacuum_enabled)` for each: until then, their"
            " dead rows are never removed."
        )
        return [Check(name, "warning", said("autovacuum is off for %(names)s", names=_named(disabled)), remedy)]
    if rows:
        worst, others = rows[0], [row["name"] for row in rows[1:]]
        detail = said(
            "autovacuum has not finished with %(name)s for an hour, which has %(count)s dead rows",
            name=worst["name"],
            count=worst["dead"],
        )
        if others:
            detail = said("%(detail)s; nor with %(names)s", detail=detail, names=_named(others))
        remedy = said(
            "As the role that owns it, run `VACUUM (ANALYZE, VERBOSE) %(name)s`: it says what keeps it from removing"
            " them. If it helps, give autovacuum more workers, or a smaller cost delay.",
            name=worst["name"],
        )
        return [Check(name, "warning", detail, remedy)]
    return [Check(name, "ok", said("autovacuum keeps up"))]


def _named(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f", … ({len(names)})" if len(names) > NAMED else "")
