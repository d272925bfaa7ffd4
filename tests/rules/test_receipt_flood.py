"""More receipts than the database can store: the supplier waits, and none is refused, lost or buffered without
bound."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import cast

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Inbound, Receipt
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.connector import SmppConnector
from heliograph.suppliers.smpp.settings import settings_from
from tests.rules.dispatching import Bench
from tests.rules.factories import organization, sent, until

RECEIPTS, WINDOW = 20_000, 2_000
#: The most that one read from a socket can contain, in the shortest receipts.
CHUNK = 256 * 1024 // 100

# All like the first one, with ids and numbers of their own.
COPY_MESSAGES = """
INSERT INTO messages (organization_id, id, status, mode, recipient, sender, sender_id, encoding, segments, guarantee,
                      request_id, accepted_at, country, body, balance_after)
SELECT organization_id, made.id, status, mode, '+25884' || lpad(made.n::text, 7, '0'), sender, sender_id, encoding,
       segments, guarantee, request_id, accepted_at, country, body, balance_after
  FROM messages, unnest($2::uuid[]) WITH ORDINALITY AS made (id, n) WHERE messages.id = $1
"""
COPY_IDS = """
INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, supplier_message_id,
                      recipient_suffix)
SELECT organization_id, made.id, attempt, target_id, state, started_at, ended_at, made.n::text,
       right('+25884' || lpad(made.n::text, 7, '0'), 8)
  FROM attempts, unnest($2::uuid[]) WITH ORDINALITY AS made (id, n) WHERE message_id = $1
"""


class Flood(asyncio.Protocol):
    """An SMSC that writes all its receipts at once, as fast as the socket accepts them."""

    def __init__(self) -> None:
        self.framer = p.Framer()
        self.statuses: Counter[int] = Counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class

    def data_received(self, data: bytes) -> None:
        for frame in self.framer.feed(data):
            pdu = p.decode(frame)
            if isinstance(pdu, p.BindTransceiver):
                self.transport.write(p.BindTransceiverResp(pdu.sequence, 0, "flood").encode())
                self.transport.write(b"".join(_receipt(n).encode() for n in range(1, RECEIPTS + 1)))
            elif isinstance(pdu, p.DeliverSmResp):
                self.statuses[pdu.status] += 1
            elif isinstance(pdu, p.EnquireLink):
                self.transport.write(p.EnquireLinkResp(pdu.sequence).encode())
            elif isinstance(pdu, p.Unbind):
                self.transport.write(p.UnbindResp(pdu.sequence).encode())
                self.transport.close()


def _receipt(n: int) -> p.DeliverSm:
    text = f"id:{n} sub:001 dlvrd:001 submit date:2611220000 done date:2611220000 stat:DELIVRD err:000 text:".encode()
    return p.DeliverSm(n, source_addr=f"25884{n:07d}", destination_addr="ACME", esm_class=4, short_message=text)


async def test_a_flood_of_receipts_waits_for_a_slow_database(pool: Pool) -> None:
    bench = Bench(pool)
    supplier_id = bench.only_id
    first = await sent(pool, await organization(pool), supplier_id, "first")
    ids = [uuid7() for _ in range(RECEIPTS)]
    for copy in (COPY_MESSAGES, COPY_IDS):
        await pool.execute(copy, first, ids)

    most = 0

    async def store(receipts: Sequence[Receipt]) -> None:
        nonlocal most
        most = max(most, connector._receipts.waiting)
        await bench.results.report([ReceivedReceipt(supplier_id, one) for one in receipts])
        most = max(most, connector._receipts.waiting)

    async def inbound(messages: Sequence[Inbound]) -> None:
        raise AssertionError("these are receipts")

    flood = Flood()
    server = await asyncio.get_running_loop().create_server(lambda: flood, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = settings_from({"host": "127.0.0.1", "port": port, "system_id": "esme", "tls": False, "window": WINDOW})
    connector = SmppConnector(settings, "secret", lambda submission, outcome: None, store, inbound, sessions=1)
    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("LOCK TABLE messages")  # no batch is stored before this ends
        await connector.start()
        await until(lambda: connector._receipts.holds)
        assert not flood.statuses
        assert settings.receipts_queue <= connector._receipts.waiting <= settings.receipts_queue + CHUNK
    await until(lambda: flood.statuses.total() == RECEIPTS)
    assert flood.statuses == {0: RECEIPTS}
    assert 0 < most <= settings.receipts_queue + CHUNK
    left = await pool.fetchval("SELECT count(*) FROM messages WHERE status <> 'delivered'")
    assert left == 1  # the ones it was made of
    await connector.stop(grace=1.0)
    server.close()
