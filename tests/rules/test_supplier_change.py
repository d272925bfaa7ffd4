"""A supplier is changed while receipts are in flight: a real connector, a real SMSC, a real database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.crypto import derive_key
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.sending.dispatch import Dispatcher
from heliograph.sending.results import Results
from heliograph.simulators.smsc.options import SmscOptions
from heliograph.simulators.smsc.simulator import Smsc
from heliograph.sms.dispatch import suppliers
from heliograph.sms.dispatch.channel import SmsChannel
from heliograph.sms.dispatch.supplier_pool import SupplierPool
from heliograph.sms.reports.keys import ReceivedReceipt
from heliograph.suppliers.contract import Account, Receipt
from heliograph.suppliers.smpp import connector as smpp
from tests.rules.factories import message, organization, status_of

KEY = derive_key("a secret key of a test installation", "suppliers")


class Unwilling(Exception):
    """Receipts cannot be stored at the moment."""


async def test_receipts_of_what_was_sent_before_find_their_messages(pool: Pool) -> None:
    smsc = Smsc(SmscOptions(port=0, systems={"esme": "secret"}, redeliver_after=0.1))
    await smsc.start()
    settings: dict[str, Any] = {"host": "127.0.0.1", "port": smsc.port, "system_id": "esme", "tls": False}
    async with pool.acquire() as conn:
        id = await suppliers.add(conn, KEY, name="main", kind="smpp", settings=settings, secret="secret")
    willing = False

    async def received(supplier_id: UUID, some: Sequence[Receipt]) -> None:
        if not willing:
            raise Unwilling
        await results.report([ReceivedReceipt(supplier_id, one) for one in some])

    worker = uuid7()
    await pool.execute("INSERT INTO workers VALUES ($1, 'w', now(), now())", worker)
    fleet = SupplierPool(
        pool,
        worker,
        factories={"smpp": smpp.connect},
        account=lambda one: Account(one.id, one.settings, suppliers.open_secret(KEY, one)),
        on_outcome=lambda _, submission, outcome: dispatcher.answered(
            (submission.message_id, submission.attempt), outcome
        ),
        on_receipts=received,
        on_inbound=received,
    )
    channel = SmsChannel(pool, fleet.accounts, grace=90.0, patience=60.0)
    results: Results[ReceivedReceipt] = Results(pool, channel)
    dispatcher = Dispatcher(pool, channel, results, claim_limit=100, lease_seconds=60.0)

    async def bound(window: int) -> bool:
        await fleet.refresh(grace=1.0)
        account = fleet.accounts()[id]
        return account.supplier.settings.get("window") == window and account.connector.health().sessions == 1

    await fleet.start()
    try:
        settings["window"] = 10
        await _change(pool, settings=settings)
        await _until(lambda: bound(10))
        ids = [await message(pool, await organization(pool)) for _ in range(5)]
        await dispatcher.round()
        await _until(lambda: _are(pool, ids, "sent"))
        # A different window, the same password again, a new name: the same supplier.
        await _change(pool, settings=settings | {"window": 20}, name="best", secret="secret")
        await _until(lambda: bound(20))
        willing = True
        await _until(lambda: _are(pool, ids, "delivered"))
    finally:
        await fleet.stop(grace=0.5)
        await smsc.stop()
    assert smsc.counters.binds >= 2
    assert smsc.counters.accepted == 5


async def _change(pool: Pool, *, secret: str | None = None, **values: Any) -> None:
    async with pool.acquire() as conn, conn.transaction():
        before = await suppliers.lock(conn, supplier="main")
        await suppliers.change(conn, KEY, msgspec.structs.replace(before, **values), secret=secret)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1500):
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come true in time")


async def _are(pool: Pool, ids: list[UUID], status: str) -> bool:
    return {await status_of(pool, id) for id in ids} == {status}
