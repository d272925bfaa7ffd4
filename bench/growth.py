"""Growth: accepts and pages on a database with millions of messages, compared with the same database without any.

The messages are generated in SQL as a month of traffic would have left them: ids of the last 30 days, half of them from
the organization that sends now, each with its text, idempotency record, attempt, supplier id, receipt and event;
`holdings` adds everything else. Loading writes no WAL (tables are truncated in the same transaction under
`wal_level = minimal`) and freezes rows, so that neither its vacuum nor its checkpoints are measured afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg

from bench import machine
from bench.accept import Lengths, once
from bench.dashboards import dashboards, fold
from bench.figures import Report
from bench.holdings import CAMPAIGN, ORGANIZATION, ORGANIZATIONS, SUPPLIER, SUPPLIERS, hold, organizations
from bench.load import TEXT
from bench.pages import pages
from bench.stage import BenchError, Stage
from heliograph.base.database.migrate import DAILY, day_name, make_days, make_partitions

DAYS = 30
#: Space of one message in all tables with their indexes, and of its helper row while it is generated; kB.
KB_EACH = 3.4
#: WAL is skipped only for tables that are filled in the transaction that truncates them.
MINIMAL = {"wal_level": "minimal", "max_wal_senders": "0"}

# n is a message's number, from old to new; everything else is derived from it. The ids are UUIDv7 of their time.
IDS = f"""
CREATE UNLOGGED TABLE bench_ids AS
SELECT n, at, md5('s' || n) AS hash, organization_id, n % 100 IN (6, 7) AS failed,
       CASE n % {SUPPLIERS} WHEN 0 THEN $5::uuid
            ELSE ('{SUPPLIER}' || lpad((n % {SUPPLIERS})::text, 12, '0'))::uuid
       END AS supplier_id,
       CASE WHEN n % 10 IN (4, 5) THEN {CAMPAIGN} END AS campaign_id,
       (head || '7' || substr(hash, 1, 3) || '8' || substr(hash, 4, 15))::uuid AS id,
       (head || '7' || substr(hash, 17, 3) || '9' || substr(hash, 12, 15))::uuid AS event_id
  FROM (SELECT n, at, md5(n::text) AS hash, lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') AS head,
               CASE n % 2 WHEN 0 THEN $1::uuid
                    ELSE ('{ORGANIZATION}' || lpad((1 + floor({ORGANIZATIONS - 1}
                             * power(('x' || left(md5('o' || n), 8))::bit(32)::bigint / 4294967296.0, 3))
                         )::text, 12, '0'))::uuid
               END AS organization_id
          FROM (SELECT n, $2::timestamptz + n * $3::interval / $4::int AS at
                  FROM generate_series(0, $4::int - 1) AS n) AS number
       ) AS timed
"""
#: Columns of each table, and their values derived from `bench_ids`.
ROWS = {
    "messages": (
        "organization_id, id, status, mode, recipient, sender, sender_id, supplier_id, network, encoding, segments,"
        " guarantee, request_id, campaign_id, accepted_at, sent_at, delivered_at, failed_at, failure_code, event_id,"
        " country, body, balance_after, receipt, receipt_attempt, receipt_state, receipt_error, receipt_at",
        "organization_id, id, CASE WHEN failed THEN 'undelivered' ELSE 'delivered' END, 'live',"
        " '+25884' || lpad((n % 10000000)::text, 7, '0'), 'HELIOGRAPH', '{sender}'::uuid, supplier_id, '643-01',"
        " 'gsm7', CASE n % 50 WHEN 2 THEN 2 ELSE 1 END::smallint, 'at_least_once', hash, campaign_id, at,"
        " at + interval '20 ms', CASE WHEN NOT failed THEN at + interval '3 s' END,"
        " CASE WHEN failed THEN at + interval '3 s' END, CASE WHEN failed THEN 'undelivered' END, event_id, 'MZ',"
        " '{text}', (1000000000 - n)::bigint, hash::uuid, 1::smallint,"
        " CASE WHEN failed THEN 'undelivered' ELSE 'delivered' END, '000', at + interval '3 s'",
    ),
    "send_keys": (
        "organization_id, key_hash, made_on, request_hash, message_id, created_at",
        "organization_id, hash::uuid, (at AT TIME ZONE 'UTC')::date, sha256(hash::bytea), id, at",
    ),
    "attempts": (
        "organization_id, message_id, attempt, target_id, reference, state, started_at, ended_at,"
        " supplier_message_id, recipient_suffix",
        "organization_id, id, 1::smallint, supplier_id, (n % 65536)::integer, 'accepted', at, at, n::text,"
        " lpad((n % 10000000)::text, 8, '4')",
    ),
    "events": (
        "organization_id, id, kind, message_id, request_id, data, created_at",
        "organization_id, event_id, CASE WHEN failed THEN 'message.failed' ELSE 'message.delivered' END, id, hash,"
        ' \'{{"message":{{"id":"\' || id ||'
        ' \'","clientReference":null,"channel":"sms","to":"+258840000000","status":"delivered",'
        '"segments":1,"acceptedAt":"2026-01-01T00:00:00.000Z","sentAt":"2026-01-01T00:00:00.000Z",'
        '"deliveredAt":"2026-01-01T00:00:00.000Z","failedAt":null,"failure":null}}}}\', at',
    ),
}
#: How long keys are kept; partitioned by day.
KEYS_KEPT = timedelta(days=3)
#: Tables partitioned by month.
MONTHLY = ("messages", "attempts", "events")


async def growth(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Accepts at 64 connections without stored messages, and with `lengths.growth` of them."""
    wanted = lengths.growth * KB_EACH / 2**20
    if machine.free_gb(stage.place) < wanted + 5:
        raise BenchError(f"growth needs {wanted + 5:.0f} GB in {stage.place}; choose a smaller --growth")
    await stage.start_api(lengths.api_processes)
    none = [(await once(stage, connections=64, seconds=lengths.window)).rate for _ in range(lengths.rounds)]
    apis = [name for name in stage.parts if name.startswith("api")]
    for name in apis:
        await stage.stop(name)
    await stage.empty()
    await stage.restart_database(MINIMAL)
    size = await fill(stage, lengths.growth)
    await stage.restart_database()
    await stage.start_api(lengths.api_processes)
    # Caches are empty after the restart, unlike in a running system.
    await once(stage, connections=64, seconds=lengths.window, empty=False)
    results = [await once(stage, connections=64, seconds=lengths.window, empty=False) for _ in range(lengths.rounds)]
    amount = f"{lengths.growth:,}".replace(",", " ")
    report.add("growth_size", f"database with {amount} messages", [size], "GB")
    report.add("growth_none", "accepted, 64 connections, nothing stored", none, "/s")
    report.add("growth_full", f"accepted, 64 connections, {amount} stored", [one.rate for one in results], "/s")
    report.ratio("growth_ratio", f"accepted with {amount} stored ÷ with none", "growth_full", "growth_none")
    report.costs["accept, grown"] = results[-1].costs(results[-1].accepted)
    await fold(stage)
    await pages(stage, report)
    await dashboards(stage, report, lengths)
    await stage.empty()


async def fill(stage: Stage, amount: int) -> float:
    """Store that many messages of the last DAYS days; returns the size of the database in GB."""
    start = datetime.now(UTC) - timedelta(days=DAYS, minutes=1)
    async with stage.connection() as conn:
        await make_partitions(conn, start.date())
        await make_days(conn, datetime.now(UTC).date() - KEYS_KEPT, ahead=KEYS_KEPT.days)
        sender = await conn.fetchval("SELECT id FROM sender_ids WHERE organization_id = $1", stage.organization)
        supplier = await conn.fetchval("SELECT id FROM suppliers ORDER BY id LIMIT 1")
        await organizations(conn, stage.organization)
        await conn.execute("DROP TABLE IF EXISTS bench_ids")
        await conn.execute(IDS, stage.organization, start, timedelta(days=DAYS), amount, supplier, timeout=3600)
        await conn.execute("CREATE INDEX ON bench_ids USING brin (at)", timeout=600)
    names = {"sender": sender, "text": TEXT}
    work: list[tuple[str, str, str]] = []
    for table, (columns, values) in ROWS.items():
        select = f"SELECT {values.format(**names)} FROM bench_ids"
        for target, condition in _targets(table, start):
            work.append((target, columns, f"{select} WHERE {condition}"))
    # The longest first, two at a time: one writes while another reads.
    slots = asyncio.Semaphore(2)

    async def one(target: str, columns: str, select: str) -> None:
        async with slots, stage.connection() as source, stage.connection() as sink:
            began = time.monotonic()
            await _pour(source, sink, target, columns, select)
            stage.say(f"  {target} filled in {time.monotonic() - began:.1f} s")

    async with asyncio.TaskGroup() as group:
        for target, columns, select in work:
            group.create_task(one(target, columns, select))
    await hold(stage, amount)
    async with stage.connection() as conn:
        await conn.execute("DROP TABLE bench_ids")
        # Messages are frozen, so this only records it: autovacuum then has nothing to do while we measure.
        await conn.execute("VACUUM (ANALYZE)", timeout=3600)
        size: int = await conn.fetchval("SELECT pg_database_size(current_database())")
    return size / 2**30


def _targets(table: str, start: datetime) -> list[tuple[str, str]]:
    """(table or partition, condition on bench_ids): COPY can freeze rows only in the partition itself."""
    if table in DAILY:
        days = [datetime.now(UTC).date() - timedelta(days=number) for number in range(KEYS_KEPT.days + 1)]
        return [(day_name(table, day), f"(at AT TIME ZONE 'UTC')::date = '{day}'") for day in days]
    if table not in MONTHLY:
        return [(table, "true")]
    first = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    months = []
    while first <= datetime.now(UTC):
        after = (first + timedelta(days=32)).replace(day=1)
        months.append((f"{table}_{first:%Y_%m}", f"at >= '{first.isoformat()}' AND at < '{after.isoformat()}'"))
        first = after
    return months


async def _pour(
    source: asyncpg.Connection[asyncpg.Record],
    sink: asyncpg.Connection[asyncpg.Record],
    target: str,
    columns: str,
    select: str,
) -> None:
    """Truncate a table and copy the rows of `select` into it, frozen."""
    chunks: asyncio.Queue[bytes | None] = asyncio.Queue(64)

    async def make() -> None:
        await source.copy_from_query(select, output=chunks.put, format="binary", timeout=3600)
        await chunks.put(None)

    async def taken() -> AsyncIterator[bytes]:
        while (chunk := await chunks.get()) is not None:
            yield chunk

    async with sink.transaction(), asyncio.TaskGroup() as group:
        await sink.execute(f"TRUNCATE {target}")
        group.create_task(make())
        await sink.copy_to_table(
            target, source=taken(), columns=columns.split(", "), format="binary", freeze=True, timeout=3600
        )
