"""`python -m bench.rows`: what PostgreSQL does for one accepted SMS, without HTTP: processor time, WAL, rows and bytes.

Batches of a fixed size, one after the other, as the API commits them under load (32 at 64 connections). Rates are no
use on a machine that others use too; work done for a message is.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from uuid import UUID, uuid4

import asyncpg

from bench import machine
from bench.stage import Stage, real_disk, stage
from heliograph.accounts.requests import RateUnit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import open_pool
from heliograph.base.ids import uuid7
from heliograph.sms.accepting.accept import Acceptor, Send

TEXT = "Dear customer, your order 4711 has left our house and will reach you on Thursday between 9 and 12."
#: WAL so far, rows written so far, bytes of all tables with their indexes.
MARK = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 AS wal,
       (SELECT wal_fpi FROM pg_stat_wal)::float8 AS images,
       (SELECT sum(n_tup_ins) FROM pg_stat_user_tables)::float8 AS inserts,
       (SELECT sum(n_tup_upd) FROM pg_stat_user_tables)::float8 AS updates,
       (SELECT sum(n_tup_del) FROM pg_stat_user_tables)::float8 AS deletes,
       (SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r')::float8 AS bytes
"""


async def measure(made: Stage, *, messages: int, size: int, organizations: int) -> None:
    """Accept `messages` in batches of `size`, of that many organizations by turns, and say what each one cost."""
    pool = await open_pool(made.server.url, size=1)
    acceptor = Acceptor(pool)
    actors = [Actor(one, None, "live", frozenset(), "active") for one in await _organizations(made, organizations)]
    key_id, number = uuid4(), 0

    def sends() -> list[Send]:
        nonlocal number
        number += size
        return [
            Send(
                actor=actors[(number + n) % len(actors)],
                to=f"+25884{number + n:07d}",
                text=TEXT,
                client_reference=f"order {number + n}",
                request_id=f"req_{uuid7().hex}",
                key_hash=uuid4(),
                request_hash=uuid4().bytes + uuid4().bytes,
                rate_unit=RateUnit(key_id, 1_000_000_000),
            )
            for n in range(size)
        ]

    async def batch() -> None:
        for answer in await acceptor.accept_many(sends()):
            if isinstance(answer, Exception):
                raise answer

    for _ in range(100):  # plans, caches
        await batch()
    await made.checkpoint()
    async with made.connection() as conn:
        before, began = await _mark(conn), (time.process_time(), machine.processor_seconds(made.server.pid or 0))
        count = -(-messages // size)
        for _ in range(count):
            await batch()
        spent = time.process_time() - began[0], machine.processor_seconds(made.server.pid or 0) - began[1]
        after = await _mark(conn)
    await acceptor.drain()
    pool.terminate()
    each = {name: (after[name] - before[name]) / (count * size) for name in before}
    server, client = (seconds / (count * size) * 1e6 for seconds in (spent[1], spent[0]))
    print(
        f"batches of {size}: PostgreSQL {server:.1f} µs, client {client:.1f} µs,"
        f" WAL {each['wal']:.0f} B ({each['images']:.3f} page images), {each['inserts']:.2f} inserts,"
        f" {each['updates']:.2f} updates, {each['deletes']:.2f} deletes, {each['bytes']:.0f} B stored; a message"
    )


async def _mark(conn: asyncpg.Connection[asyncpg.Record]) -> dict[str, float]:
    await asyncio.sleep(1.2)  # backends report what they did once a second
    await conn.execute("SELECT pg_stat_clear_snapshot()")
    row = await conn.fetchrow(MARK)
    assert row is not None
    return dict(row.items())


async def _organizations(made: Stage, count: int) -> list[UUID]:
    found = [made.organization]
    async with made.connection() as conn:
        for number in range(1, count):
            id = uuid7()
            await conn.execute(
                "INSERT INTO organizations (id, name, created_at) VALUES ($1, $2, now())", id, f"Bench {number}"
            )
            await conn.execute("INSERT INTO quotas (organization_id, total) VALUES ($1, 1000000000)", id)
            await conn.execute(
                "INSERT INTO sender_ids (organization_id, id, value, status, is_default, created_at)"
                " VALUES ($1, $2, 'BENCH', 'approved', true, now())",
                id,
                uuid7(),
            )
            found.append(id)
    return found


async def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.rows", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--sizes", default="32,1", help="messages of a batch; several sizes with commas")
    parser.add_argument("--organizations", type=int, default=1)
    chosen = parser.parse_args()
    async with stage(lambda line: None, directory=real_disk()) as made:
        for size in chosen.sizes.split(","):
            messages = chosen.messages if int(size) > 1 else chosen.messages // 10
            await measure(made, messages=messages, size=int(size), organizations=chosen.organizations)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
