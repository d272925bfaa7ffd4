"""`python -m bench.rows`: what PostgreSQL does for one SMS, without HTTP and SMPP: processor time, WAL, rows and bytes.

First accepting, in batches of a fixed size, one after the other, as the API commits them under load (32 at 64
connections); then answers and receipts, in batches of 256 as a busy worker records them. On a machine shared with
others rates mean little, but work per message does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg

from bench import machine
from bench.stage import BenchError, Stage, real_disk, stage
from heliograph.accounts.requests import RateUnit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import open_pool
from heliograph.base.ids import uuid7
from heliograph.queue.leases import UNROUTED, Lease
from heliograph.sending.attempts import Attempt
from heliograph.sending.results import AnsweredAttempt
from heliograph.sms.accepting.accept import Acceptor, Send
from heliograph.sms.dispatch.channel import SmsChannel
from heliograph.sms.dispatch.claimed import ClaimedMessage
from heliograph.sms.dispatch.selection import Chosen
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Outcome, Part, Receipt, ReceiptState, Submission, Verdict

TEXT = "Dear customer, your order 4711 has left our house and will reach you on Thursday between 9 and 12."
#: WAL so far, rows written so far, bytes of all tables with their indexes.
MARK = """
SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 AS wal,
       (SELECT wal_fpi FROM pg_stat_wal)::float8 AS images,
       (SELECT sum(n_tup_ins) FROM pg_stat_user_tables)::float8 AS inserts,
       (SELECT sum(n_tup_upd) FROM pg_stat_user_tables)::float8 AS updates,
       (SELECT sum(n_tup_hot_upd) FROM pg_stat_user_tables)::float8 AS hot,
       (SELECT sum(n_tup_del) FROM pg_stat_user_tables)::float8 AS deletes,
       (SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r')::float8 AS bytes
"""


async def measure(made: Stage, *, messages: int, size: int, organizations: int) -> None:
    """Accept `messages` in batches of `size`, from that many organizations in turn, and print the cost of each."""
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
    count = -(-messages // size)

    async def batches() -> None:
        for _ in range(count):
            await batch()

    await _say(made, f"accept in batches of {size}", count * size, batches)
    await acceptor.drain()
    pool.terminate()


# As if a worker had claimed and sent them.
BEGIN = """
UPDATE queue SET lease_until = now() + interval '1 hour', lease_token = $2, attempt = 1, begun_at = now(),
                 target_id = $3, reference = 1, claims = 1
 WHERE (id, line) IN (SELECT id, line FROM queue WHERE kind = 'sms' AND begun_at IS NULL LIMIT $1)
RETURNING organization_id, id, due_at, begun_at
"""
#: Messages in a batch of answers or receipts.
BATCH = 256


async def measure_reports(made: Stage, *, messages: int) -> None:
    """Record answers to previously accepted messages, then their receipts, and print the cost of each."""
    pool = await open_pool(made.server.url, size=1)
    supplier, token = uuid7(), uuid4()
    channel = SmsChannel(pool, dict, grace=90.0)
    async with made.connection() as conn:
        rows = await conn.fetch(BEGIN, messages, token, supplier, timeout=120)
        recipients = {
            row["id"]: row["recipient"]
            for row in await conn.fetch(
                "SELECT id, recipient FROM messages WHERE id = ANY ($1)", [row["id"] for row in rows]
            )
        }
    made_of = [_under_way(number, row, recipients[row["id"]], supplier, token) for number, row in enumerate(rows)]
    chunks = [made_of[start : start + BATCH] for start in range(0, len(made_of), BATCH)]

    async def write(answered: list[AnsweredAttempt], received: list[ReceivedReceipt]) -> None:
        async with pool.acquire() as conn, conn.transaction():
            await channel.write(conn, answered, received, frozenset(), None, alone=True)

    async def answers(some: list[list[tuple[AnsweredAttempt, ReceivedReceipt]]]) -> None:
        for chunk in some:
            await write([answered for answered, _ in chunk], [])

    async def receipts(some: list[list[tuple[AnsweredAttempt, ReceivedReceipt]]]) -> None:
        for chunk in some:
            await write([], [received for _, received in chunk])

    warm, cold = chunks[:10], chunks[10:]
    count = sum(map(len, cold))
    await answers(warm)
    await receipts(warm)
    await _say(made, f"answers in batches of {BATCH}", count, partial(answers, cold))
    await _say(made, f"receipts in batches of {BATCH}", count, partial(receipts, cold))
    async with made.connection() as conn:
        found = await conn.fetchval("SELECT count(*) FROM messages WHERE status = 'delivered'")
    pool.terminate()
    if found != len(rows):
        raise BenchError(f"{found} of {len(rows)} messages were delivered")


#: The circuit does not matter here.
_CHOSEN = Chosen(cast(Any, None), 0)


def _under_way(
    number: int, row: asyncpg.Record, recipient: str, supplier: UUID, token: UUID
) -> tuple[AnsweredAttempt, ReceivedReceipt]:
    """A supplier's answer and receipt for a message that was handed over."""
    lease = Lease("sms", token, UNROUTED, 0, row["organization_id"], row["id"], 0, False, row["due_at"])
    submission = Submission(row["id"], 1, recipient[1:], "BENCH", TEXT, "gsm7", 1)
    at = row["begun_at"]
    message = ClaimedMessage(
        lease, "accepted", "live", recipient, "BENCH", "gsm7", "transactional", "at_least_once", at, None, TEXT,
        "active", "approved", False, at, 0, None, None, None, None, 0, None, 1, None, None, None, None, False, "off",
    )  # fmt: skip
    attempt = Attempt(lease, 1, supplier, submission, message, context=_CHOSEN, reference=1)
    id = f"{number * 7919 % 1_000_000_007:010d}"
    text = f"id:{id} sub:001 dlvrd:001 submit date:2611220000 done date:2611220000 stat:DELIVRD err:000 text:Dear"
    receipt = Receipt((id,), ReceiptState.DELIVERED, recipient[1:], "BENCH", b"\0" * 40 + text.encode(), "000")
    outcome = Outcome(Verdict.ACCEPTED, (Part(1, id),), "0x00000000")
    return AnsweredAttempt(attempt, outcome), ReceivedReceipt(supplier, receipt)


async def _say(made: Stage, what: str, messages: int, work: Callable[[], Awaitable[None]]) -> None:
    """Run it, and print the cost per message."""
    await made.checkpoint()
    async with made.connection() as conn:
        before, began = await _mark(conn), (time.process_time(), machine.processor_seconds(made.server.pid or 0))
        await work()
        spent = time.process_time() - began[0], machine.processor_seconds(made.server.pid or 0) - began[1]
        after = await _mark(conn)
    each = {name: (after[name] - before[name]) / messages for name in before}
    server, client = (seconds / messages * 1e6 for seconds in (spent[1], spent[0]))
    print(
        f"{what}: PostgreSQL {server:.1f} µs, client {client:.1f} µs,"
        f" WAL {each['wal']:.0f} B ({each['images']:.3f} page images), {each['inserts']:.2f} inserts,"
        f" {each['updates']:.2f} updates ({each['hot']:.2f} HOT), {each['deletes']:.2f} deletes,"
        f" {each['bytes']:.0f} B stored; a message",
        flush=True,
    )


async def _mark(conn: asyncpg.Connection[asyncpg.Record]) -> dict[str, float]:
    await asyncio.sleep(1.2)  # backends report their statistics once a second
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
    parser.add_argument("--reports", type=int, default=25_000, help="answers and receipts; 0: none")
    chosen = parser.parse_args()
    async with stage(lambda line: None, directory=real_disk()) as made:
        for size in chosen.sizes.split(","):
            messages = chosen.messages if int(size) > 1 else chosen.messages // 10
            await measure(made, messages=messages, size=int(size), organizations=chosen.organizations)
        if chosen.reports:
            await measure_reports(made, messages=chosen.reports)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
