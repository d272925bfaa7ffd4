"""The outcome of every WhatsApp message of a ledger, whatever happened to the processes meanwhile. The rule nobody may
break: it asserts what the platform promises: for each 202 one message to the user, one charge, one final state and one
event, and nothing left over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import asyncpg
import msgspec

from tests.cloud import PRICES, Cloud, CloudLoad
from tests.processes import until, until_true
from tests.rules.whatsapp_factories import check_wallets

#: Attempts of unknown outcome after which a message is given up (`whatsapp.dispatch`).
MOST_UNKNOWN = 3


class Verdict(msgspec.Struct, frozen=True):
    """The judge's counts."""

    messages: int
    #: Messages sent again although Meta had accepted them: only where its callbacks could not be received.
    doubles: int
    #: Messages that never reached Meta and were given up: authentication codes, and those with too many unknown
    #: attempts.
    given_up: int
    #: Attempts without a response.
    unknown: int


SETTLED = """
SELECT NOT EXISTS (SELECT FROM whatsapp_messages WHERE status IN ('accepted', 'sent'))
   AND NOT EXISTS (SELECT FROM queue) AND NOT EXISTS (SELECT FROM whatsapp_callbacks)
"""


async def until_settled(cloud: Cloud, *, within: float = 90.0) -> None:
    """Wait until Meta has reported everything, every message has ended, and the queue is empty."""
    box = cloud.graph.outbox()
    try:
        await until(lambda: not (box.waiting or cloud.graph.clock.waiting), within=within)
        await until_true(lambda: cloud.pool.fetchval(SETTLED), within=within)
        # Messages sent again meanwhile have statuses of their own.
        await until(lambda: not (box.waiting or cloud.graph.clock.waiting), within=within)
        await until_true(lambda: cloud.pool.fetchval(SETTLED), within=within)
    except TimeoutError:
        raise AssertionError(f"{box.waiting} callbacks wait; {await _leftovers(cloud)}") from None


async def judge(cloud: Cloud, load: CloudLoad, *, fates: Mapping[str, str], callbacks_in_time: bool = True) -> Verdict:
    """Assert everything that was promised for the messages in the load's ledger, which are all that were ever sent. The
    receiver subscribes to delivered, failed and received ones.

    `fates`: failure codes of messages that Meta accepted and could not deliver, by the last digits of their numbers.
    `callbacks_in_time`: callbacks were always received before the grace period ended.
    """
    pool, graph, ledger = cloud.pool, cloud.graph, load.ledger
    rows = {
        str(row["id"]): row
        for row in await pool.fetch(
            "SELECT m.*, (SELECT count(*) FROM attempts a WHERE a.organization_id = m.organization_id"
            " AND a.message_id = m.id AND a.state = 'unknown') AS unknown FROM whatsapp_messages m"
            " WHERE direction = 'outbound'"
        )
    }
    lost = {number for number, id in ledger.items() if id not in rows}
    assert not lost, f"lost: {lost}"
    assert len(set(ledger.values())) == len(ledger), "two requests have the same message"
    assert len(rows) == len(ledger), "a request made two messages"

    # Each message that Meta accepted is one on the user's phone, or one that fails there.
    sends = Counter(one.tracker for one in graph.world.messages.values())
    assert sum(sends.values()) == graph.counters.accepted, "the simulator keeps them all"
    assert set(sends) <= set(rows), "a message that nobody asked for"
    doubles = sum(sends.values()) - len(sends)
    assert doubles == 0 or not callbacks_in_time, graph.doubled
    codes = {id for number, id in ledger.items() if load.contents[number] is not None and _is_code(load, number)}
    assert all(sends[id] <= 1 for id in codes), "a code was sent twice"

    kinds = await pool.fetch(
        "SELECT message_id, kind FROM events WHERE kind IN ('message.delivered', 'message.failed')"
    )
    told = Counter((str(row["message_id"]), row["kind"]) for row in kinds)
    assert set(told.values()) <= {1}, "an event came twice"
    consumed, given_up = 0, 0
    for number, id in ledger.items():
        row = rows[id]
        assert row["recipient"] == number
        shown = (number, row["status"], row["failure_code"], row["charge"], row["consumed"], row["unknown"], sends[id])
        fate = next((code for ending, code in fates.items() if number.endswith(ending)), None)
        arrived = sends[id] and fate is None
        if arrived:
            price = 0 if row["type"] == "text" else PRICES[row["billing_category"]]
            assert (row["status"], row["charge"], row["consumed"]) == ("read", "consumed", price), shown
            consumed += price
        else:
            assert (row["status"], row["charge"], row["consumed"]) == ("failed", "released", 0), shown
            assert told[id, "message.failed"] == 1, shown
            if not sends[id]:
                # A code without a response is not sent again, and neither is a message that Meta never reported.
                assert row["failure_code"] == "unknown", shown
                assert id in codes or row["unknown"] >= MOST_UNKNOWN, shown
                given_up += 1
            else:
                assert row["failure_code"] == fate, shown
        assert told[id, "message.delivered"] == (1 if arrived else 0), shown

    balance = await pool.fetchrow("SELECT consumed, reserved FROM wallets")
    assert tuple(balance) == (consumed, 0)
    await check_wallets(pool, [cloud.made.actor.organization_id])

    inbound = await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE direction = 'inbound'")
    received = await pool.fetchval("SELECT count(*) FROM events WHERE kind = 'message.received'")
    assert inbound == received == load.written
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_dead_letters") == 0
    assert await pool.fetchval("SELECT count(*) FROM whatsapp_callbacks") == 0
    assert await pool.fetchval("SELECT count(*) FROM queue") == 0

    raised = {str(row[0]) for row in await pool.fetch("SELECT id FROM events WHERE kind LIKE 'message.%'")}
    arrivals = {event.id for event in cloud.made.receiver.events if 200 <= event.status < 300}
    assert arrivals == raised, "every event arrived at the receiver"
    unknown = sum(row["unknown"] for row in rows.values())
    return Verdict(len(rows), doubles, given_up, unknown)


def _is_code(load: CloudLoad, number: str) -> bool:
    content = load.contents[number]
    return isinstance(content, dict) and content["category"] == "authentication"


async def _leftovers(cloud: Cloud) -> str:
    try:
        messages = await cloud.pool.fetch(
            "SELECT m.id, m.recipient, m.status, array_agg(a.state ORDER BY attempt) AS attempts"
            "  FROM whatsapp_messages m LEFT JOIN attempts a ON a.message_id = m.id"
            " WHERE m.status IN ('accepted', 'sent') GROUP BY 1, 2, 3 LIMIT 10"
        )
        queue = await cloud.pool.fetch("SELECT *, now() AS at FROM queue LIMIT 10")
        held = await cloud.pool.fetch("SELECT held_until, held_reason, now() AS at FROM whatsapp_accounts")
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return repr(error)
    return "\n".join(str(dict(row)) for row in [*messages, *queue, *held])
