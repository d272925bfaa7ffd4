"""The outcome of every message of a ledger. The rule nobody may break: it asserts what the platform promises, whatever
was done to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import asyncpg
import msgspec

from heliograph.sms.dispatch.uncertain import SHOWN
from tests.processes import GRANT, Installation, until_true


class Verdict(msgspec.Struct, frozen=True):
    """The judge's counts."""

    messages: int
    #: Submits accepted by a supplier beyond the first of each message.
    doubles: int
    #: Attempts without a response.
    unknown: int
    #: Callbacks beyond the first of each event.
    repeated: int


async def until_settled(url: str, *, within: float = 120.0) -> None:
    """Wait until every message has ended, and the queue is empty."""

    async def done() -> bool:
        conn = await asyncpg.connect(url)
        try:
            return bool(await conn.fetchval(SETTLED))
        finally:
            await conn.close()

    try:
        await until_true(done, within=within)
    except TimeoutError:
        raise AssertionError(await _leftovers(url)) from None


SETTLED = """
SELECT NOT EXISTS (SELECT FROM messages WHERE status IN ('accepted', 'sent'))
   AND NOT EXISTS (SELECT FROM queue)
"""


async def judge(made: Installation, ledger: Mapping[str, str], *, in_flight: int) -> Verdict:
    """Assert everything that was promised for the messages in `ledger`, which are all that were ever sent.

    `in_flight`: the most submits that can have been without a response at the moments when something was killed, in
    total.
    """
    conn = await asyncpg.connect(made.url)
    try:
        rows = await conn.fetch("SELECT id, status, recipient, client_reference, event_id FROM messages")
        attempts = Counter(
            {row[0]: row[1] for row in await conn.fetch("SELECT message_id, count(*) FROM attempts GROUP BY 1")}
        )
        # Including those for which a receipt later showed that they were accepted.
        unknown = await conn.fetchval("SELECT count(*) FROM attempts WHERE state = 'unknown' OR detail = $1", SHOWN)
        unended = await conn.fetchval("SELECT count(*) FROM queue WHERE begun_at IS NOT NULL")
        balance = await conn.fetchrow(
            "SELECT total - used AS remaining, (SELECT sum(quantity) FROM usage_entries) AS ledger,"
            " (SELECT count(*) FROM usage_entries WHERE type = 'usage') AS uses FROM quotas"
        )
        events = {
            row[0]: row[1] for row in await conn.fetch("SELECT id, message_id FROM events WHERE message_id IS NOT NULL")
        }
        queued = await conn.fetchval("SELECT count(*) FROM queue")
    finally:
        await conn.close()
    by_id = {str(row["id"]): row for row in rows}

    lost = {number for number, id in ledger.items() if id not in by_id}
    assert not lost, f"lost: {lost}"
    assert len(set(ledger.values())) == len(ledger), "two requests have the same message"
    assert len(rows) == len(ledger), "a request made two messages"
    assert all(by_id[id]["recipient"] == number for number, id in ledger.items())
    assert {row["status"] for row in rows} <= {"delivered"}, Counter(row["status"] for row in rows)

    # Submits that a supplier accepted, whether or not its response arrived.
    submits = Counter(f"+{one.destination}" for smsc in made.smscs for one in smsc.received if one.status == 0)
    submits += Counter(f"+{one.submitted.to}" for supplier in made.aggregators for one in supplier.taken)
    assert set(submits) == set(ledger), "every message reached the supplier"
    for number, id in ledger.items():
        assert submits[number] <= attempts[UUID(id)], f"{number} was submitted without an attempt's row"
    doubles = sum(submits.values()) - len(submits)
    assert doubles <= min(unknown, in_flight), (doubles, unknown, in_flight)
    assert unended == 0, "an attempt without an end"

    assert len(events) == len(rows), "one contract event a message"
    assert {row["event_id"] for row in rows} == set(events)
    received = [event for event in made.receiver.events if 200 <= event.status < 300]
    by_message: dict[str, set[str]] = {}
    for event in received:
        by_message.setdefault(event.message_id, set()).add(event.id)
    assert set(by_message) == set(by_id), "every message's event arrived"
    assert {len(ids) for ids in by_message.values()} <= {1}, "two events speak of one message"

    assert balance["remaining"] == GRANT - len(ledger) == balance["ledger"]
    assert balance["uses"] == len(ledger)
    assert queued == 0
    return Verdict(len(rows), doubles, unknown, len(received) - len(events))


async def _leftovers(url: str) -> str:
    conn = await asyncpg.connect(url)
    try:
        messages = await conn.fetch(
            "SELECT m.id, m.status, m.recipient, array_agg(a.state ORDER BY attempt) AS attempts FROM messages m"
            " LEFT JOIN attempts a ON a.message_id = m.id"
            " WHERE m.status IN ('accepted', 'sent') GROUP BY 1, 2, 3 LIMIT 10"
        )
        queue = await conn.fetch("SELECT *, now() AS at FROM queue LIMIT 10")
        slots = await conn.fetch("SELECT *, now() AS at FROM supplier_sessions")
    finally:
        await conn.close()
    return "\n".join(str(dict(row)) for row in [*messages, *queue, *slots])
