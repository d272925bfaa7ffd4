"""The oldest snapshot that keeps vacuum from removing dead rows, and whether it can be seen."""

from __future__ import annotations

import time
from collections.abc import Callable

from heliograph.base.database.pool import Connection
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Check, said

#: Seconds after which a snapshot is worth a warning; the alert HeliographOldSnapshot has the same.
OLD = 3600
#: An SQL expression: the age in seconds of the oldest snapshot that holds vacuum up in this database; 0 if there is
#: none, or only some younger than this transaction. Sessions of other databases hold vacuum up only there, and VACUUM
#: itself nowhere. From PostgreSQL 17 on, a replication slot shows since when it is unused. Standbys do not report the
#: age of their snapshots: see `Standbys`.
OLDEST = """
(SELECT extract(epoch FROM greatest(now() - min(since), '0'))::float8 FROM (
        SELECT xact_start FROM pg_stat_activity a
         WHERE datname = current_database() AND pid <> pg_backend_pid()
           AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
           AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum v WHERE v.pid = a.pid)
        UNION ALL
        SELECT prepared FROM pg_prepared_xacts WHERE database = current_database()
        UNION ALL
        SELECT (to_jsonb(s) ->> 'inactive_since')::timestamptz FROM pg_replication_slots s
         WHERE NOT active AND xmin IS NOT NULL) holding (since))
"""
#: An SQL expression: the oldest transaction that standbys (`hot_standby_feedback`) and replication slots may still see.
HORIZON = """
(SELECT xmin::text FROM (SELECT backend_xmin FROM pg_stat_replication UNION ALL SELECT xmin FROM pg_replication_slots)
        held (xmin) WHERE xmin IS NOT NULL ORDER BY age(xmin) DESC LIMIT 1)
"""
LOOK = f"""
SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all, quote_ident(current_user) AS role, {OLDEST} AS oldest
"""


class Standbys:
    """Remembers since when the standbys' horizon has not moved: it moves every few seconds unless a query is running
    there. One per process."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = monotonic
        self._horizon: str | None = None
        self._since = 0.0

    def oldest(self, known: float, horizon: str | None) -> float:
        """The age in seconds of the oldest snapshot, from the current results of OLDEST and HORIZON."""
        now = self._now()
        if horizon is None or horizon != self._horizon:
            self._horizon, self._since = horizon, now
        return max(known, now - self._since)


async def run(conn: Connection, settings: Settings) -> list[Check]:
    """Whether an old snapshot holds back vacuum, as far as this role can see."""
    row = await conn.fetchrow(LOOK)
    assert row is not None
    name = said("snapshots")
    if row["oldest"] > OLD:
        detail = said("a transaction has been open for %(minutes)s minutes", minutes=round(row["oldest"] / 60))
        remedy = said("End it: rows that it may still see cannot be removed, and the queue and the database grow.")
        return [Check(name, "warning", detail, remedy)]
    if not row["sees_all"]:
        remedy = said("As an administrator, run `GRANT pg_read_all_stats TO %(role)s`.", role=row["role"])
        return [Check(name, "warning", said("transactions of other roles cannot be seen"), remedy)]
    return [Check(name, "ok", said("the oldest is %(seconds)s s old", seconds=round(row["oldest"])))]
