"""Metrics that no process knows by itself: queue, holds, campaigns, findings, snapshots, partitions, retention, backup.

Every worker queries them every 15 s, in one read-only transaction of bounded statements: counts stop at `MOST`.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.base.database import migrate
from heliograph.base.database.pool import RANGE_PLANS, Connection, Pool
from heliograph.base.process.heartbeat import IS_ALIVE
from heliograph.base.process.measures import Gauge, database_up
from heliograph.health import findings, snapshots
from heliograph.health.snapshots import Standbys
from heliograph.queue import holds, timers, waiting
from heliograph.queue.workers import WORKS

#: Where counting the rows of a kind of work stops.
MOST = 100_000
#: Rows whose last attempt is examined.
PUT_BACK = 10_000
KINDS = (*holds.OUTGOING, "reply")
QUEUED = f"""
SELECT kind, (SELECT count(*) FROM (SELECT FROM queue q WHERE q.kind = asked.kind LIMIT {MOST}) counted)
  FROM unnest($1::text[]) AS asked (kind)
"""
OF_SUPPLIERS = f"""
SELECT s.id, s.name,
       (SELECT count(*) FROM (SELECT FROM queue q WHERE q.kind = 'sms' AND q.line = s.id LIMIT {MOST}) counted)
  FROM suppliers s WHERE s.state <> 'removed' ORDER BY s.name LIMIT 200
"""
# Work put back with an unknown outcome waits for the end of its grace period, among work waiting for another try: the
# first PUT_BACK of both together are examined.
UNKNOWN = f"""
SELECT (SELECT count(*) FROM (SELECT FROM queue WHERE begun_at < now() - interval '1 minute' LIMIT {MOST}) silent)
     + (SELECT count(*) FROM (SELECT organization_id, id, attempt FROM queue
                               WHERE attempt > 0 AND begun_at IS NULL LIMIT {PUT_BACK}) back
         WHERE EXISTS (SELECT FROM attempts a
                        WHERE a.organization_id = back.organization_id AND a.message_id = back.id
                          AND a.attempt = back.attempt AND a.state = 'unknown'))
"""
# A kind without holds yields zero: a series that ends looks like a failed exporter.
HELD = """
SELECT kind, (SELECT count(*) FROM queue_holds h WHERE h.kind = asked.kind) FROM unnest($1::text[]) AS asked (kind)
"""
CAMPAIGNS = """
SELECT asked.status, count(found.status)
  FROM unnest($1::text[]) AS asked (status)
       LEFT JOIN (SELECT status FROM campaigns WHERE status = ANY ($1)) found ON found.status = asked.status
 GROUP BY asked.status ORDER BY asked.status
"""
OPEN = ("scheduled", "staging", "running", "paused")
REST = f"""
SELECT (SELECT count(*) FROM (SELECT FROM whatsapp_callbacks LIMIT {MOST}) waiting) AS whatsapp_callbacks,
       (SELECT count(*) FROM (SELECT FROM supplier_callbacks LIMIT {MOST}) waiting) AS supplier_callbacks,
       (SELECT count(*) FROM workers WHERE {IS_ALIVE} AND {WORKS}) AS workers,
       (SELECT coalesce(extract(epoch FROM now() - max(done_until)), -1) FROM timers WHERE name = $1) AS retention,
       (SELECT coalesce(extract(epoch FROM now() - max(taken_at)), -1)
          FROM backups WHERE taken_at <= now()) AS backup,
       {snapshots.OLDEST} AS snapshot, {snapshots.HORIZON} AS horizon,
       (SELECT coalesce(max(n_dead_tup), 0) FROM pg_stat_user_tables WHERE relname = 'queue') AS dead,
       (SELECT pg_database_size(current_database())) AS bytes,
       (SELECT max(relname::text) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'send\\_keys\\_2%') AS last_day
"""


async def read(pool: Pool, standbys: Standbys) -> Sequence[Gauge]:
    """The current metrics from the database. Raises what asyncpg raises."""
    async with pool.acquire() as conn, conn.transaction(readonly=True):
        await conn.execute(RANGE_PLANS)
        return await _read(conn, standbys)


async def _read(conn: Connection, standbys: Standbys) -> list[Gauge]:
    found = [database_up(True)]
    for kind, count in await conn.fetch(QUEUED, list(KINDS)):
        found.append(
            Gauge("heliograph_queue_rows", f"Work in the queue, counted up to {MOST:,}", count, {"kind": kind})
        )
    late = await holds.late_by_line(conn, "sms")
    for kind in holds.OUTGOING:
        age = max(late.values(), default=0) if kind == "sms" else await holds.late(conn, kind, without=())
        found.append(Gauge("heliograph_queue_oldest_seconds", "Age of the oldest overdue work", age, {"kind": kind}))
    overdue = "How long the oldest SMS of a supplier's line is overdue"
    for id, name, count in await conn.fetch(OF_SUPPLIERS):
        found += (
            Gauge("heliograph_supplier_queue_rows", "SMS waiting in a supplier's line", count, {"supplier": name}),
            Gauge("heliograph_supplier_queue_oldest_seconds", overdue, late.get(id, 0), {"supplier": name}),
        )
    for kind, count in await conn.fetch(HELD, holds.OUTGOING):
        found.append(Gauge("heliograph_holds", "Holds placed by operators", count, {"kind": kind}))
    for status, count in await conn.fetch(CAMPAIGNS, OPEN):
        found.append(Gauge("heliograph_campaigns", "Campaigns that have not ended", count, {"status": status}))
    said = "Problems that checks of the installation have found, as in `heliograph doctor`"
    for name, state in await findings.since(conn):
        found.append(Gauge("heliograph_findings", said, 1, {"check": name, "state": state}))
    back = f"Messages put back again and again, because no supplier takes them, of the {waiting.LOOK:,} rows due next"
    for kind, count in (await waiting.deferred(conn)).items():
        found.append(Gauge("heliograph_queue_deferred_rows", back, count, {"kind": kind}))
    row = await conn.fetchrow(REST, timers.FORGET)
    assert row is not None
    oldest = standbys.oldest(row["snapshot"], row["horizon"])
    unknown = "Attempts without an answer: under way for over a minute, or ended as unknown and not decided yet"
    unprocessed = "Callbacks stored and not processed yet"
    forgotten = "Since the last round of retention that left nothing; -1: there was none"
    today = await conn.fetchval("SELECT (now() AT TIME ZONE 'utc')::date")
    ahead = -1 if row["last_day"] is None else (migrate.day_of(row["last_day"]) - today).days
    return [
        *found,
        Gauge("heliograph_unknown_attempts", unknown, await conn.fetchval(UNKNOWN)),
        Gauge("heliograph_callbacks_waiting", unprocessed, row["whatsapp_callbacks"], {"channel": "whatsapp"}),
        Gauge("heliograph_callbacks_waiting", unprocessed, row["supplier_callbacks"], {"channel": "sms"}),
        Gauge("heliograph_workers", "Workers seen in the last 15 s, except drained ones", row["workers"]),
        Gauge("heliograph_retention_age_seconds", forgotten, row["retention"]),
        Gauge("heliograph_backup_age_seconds", "Time since the last backup; -1: none was ever taken", row["backup"]),
        Gauge("heliograph_oldest_snapshot_seconds", "Age of the oldest snapshot that holds back vacuum", oldest),
        Gauge("heliograph_queue_dead_rows", "Rows of the queue that vacuum has not removed yet", row["dead"]),
        Gauge("heliograph_database_bytes", "Size of the database", row["bytes"]),
        Gauge("heliograph_partitions_ahead_seconds", "Time ahead for which partitions exist", ahead * 86_400),
    ]
