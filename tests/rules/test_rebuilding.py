"""Reconstructed submits, compared with what a simulated SMSC read from its socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.senders import loading, numbers
from heliograph.senders.book import NumberRule
from heliograph.sending.attempts import WORKER_DIED
from heliograph.simulators.smsc.options import SmscOptions
from heliograph.simulators.smsc.simulator import Smsc
from heliograph.sms import timeline
from heliograph.sms.dispatch import routing, suppliers
from heliograph.sms.dispatch.supplier_pool import PooledSupplier
from heliograph.sms.submitting import rebuilding
from heliograph.suppliers.contract import Account
from heliograph.suppliers.smpp import connector as smpp
from heliograph.webhooks.timeline import Entry
from tests.processes import until_true
from tests.rules.dispatching import Bench
from tests.rules.factories import message, organization, status_of

KEY = derive_key("a secret key of a test installation", "suppliers")
PASSWORD = "geheim"
TEXT, LONG = "Hello Zacarias", "Olá Zacarias, até amanhã! " * 12


@asynccontextmanager
async def wired(pool: Pool, smsc: Smsc, **settings: Any) -> AsyncIterator[tuple[Bench, UUID]]:
    """A dispatcher with one account over a real connection; and the account's id."""
    settings = {"host": "127.0.0.1", "port": smsc.port, "system_id": "esme", "tls": False} | settings
    async with pool.acquire() as conn:
        id = await suppliers.add(conn, KEY, name="main", kind="smpp", settings=settings, secret=PASSWORD)
        (row,) = await routing.load(conn)
    bench = Bench(pool, row)

    async def received(_: Sequence[Any]) -> None:
        """Receipts do not matter here."""

    made = smpp.connect(Account(id, settings, PASSWORD), bench.answer, received, received)
    before = bench.accounts[id]
    bench.accounts[id] = PooledSupplier(row, made, before.breaker, before.senders)
    await made.start()
    made.set_sessions(1)

    async def bound() -> bool:
        return made.ready()

    await until_true(bound)
    try:
        yield bench, id
    finally:
        await made.stop(grace=1)


async def sent(pool: Pool, bench: Bench, id: UUID) -> None:
    """Dispatch until the supplier has the message."""

    async def is_sent() -> bool:
        await bench.round()
        return await status_of(pool, id) == "sent"

    await until_true(is_sent)


async def submits(pool: Pool, id: UUID, *, whole: bool = True) -> list[Entry]:
    async with pool.acquire() as conn:
        found = await timeline.of_message(conn, id=id, with_text=whole)
    return [one for one in found.entries if one.what == "submit"]


def as_read(smsc: Smsc) -> list[str]:
    """The octets of each submit, except for the sequence number."""
    found = []
    for one in smsc.received:
        octets = one.pdu.encode()
        found.append(f"{octets[:12].hex(' ')} ?? ?? ?? ?? {octets[16:].hex(' ')}")
    return found


@pytest.fixture
async def smsc() -> AsyncIterator[Smsc]:
    made = Smsc(SmscOptions(port=0, systems={"esme": PASSWORD}, receipts=False, keep=100, magic=""))
    await made.start()
    yield made
    await made.stop()


FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"long_messages": "udh16", "user_message_reference": False},
    {"long_messages": "sar", "validity": "none", "service_type": "BULK"},
    {"long_messages": "payload", "registered_delivery": 17, "esm_class": 3},
    {"default_alphabet": "ascii", "vendor_tlvs": {"1401": "deal-7"}, "alphanumeric": [5, 1]},
    {"single_shift": ["portuguese"], "locking_shift": ["portuguese"], "priority": 2, "validity_seconds": 60},
)


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_each_octet_is_as_the_supplier_read_it(pool: Pool, smsc: Smsc, form: dict[str, Any]) -> None:
    actor = await organization(pool)
    async with wired(pool, smsc, **form) as (bench, _):
        texts: tuple[tuple[str, dict[str, Any]], ...] = (
            (TEXT, {}),
            (LONG, {"traffic_class": "otp", "encoding": "ucs2"}),
            ("{" * 200, {"expires_at": clock.now() + timedelta(minutes=42)}),
        )
        for text, values in texts:
            smsc.received.clear()
            id = await message(pool, actor, text=text, **values)
            await sent(pool, bench, id)
            found = await submits(pool, id)
            assert [one.detail["octets"] for one in found] == as_read(smsc), text
            assert [one.detail["part"] for one in found] == [f"{n}/{len(found)}" for n in range(1, len(found) + 1)]
            assert not any("doubt" in one.detail for one in found)


async def test_without_a_reason_neither_text_nor_number_is_in_it(pool: Pool, smsc: Smsc) -> None:
    async with wired(pool, smsc) as (bench, _):
        id = await message(pool, await organization(pool), text=TEXT)
        await sent(pool, bench, id)
    (one,) = await submits(pool, id, whole=False)
    number = (await pool.fetchval("SELECT recipient FROM messages"))[1:]
    assert f"destination_addr=…{number[-4:]}" in one.detail["written"]
    assert f"data_coding=0x00 sm_length={len(TEXT)} short_message=({len(TEXT)})" in one.detail["written"]
    shown = str(one)
    for hidden in (number, TEXT, TEXT.encode().hex(), "octets"):
        assert hidden not in shown, hidden
    (one,) = await submits(pool, id)
    assert f"destination_addr={number}" in one.detail["written"]
    assert f"short_message={TEXT.encode().hex()}" in one.detail["written"]


async def test_a_rule_for_numbers_is_followed_and_a_later_one_is_said(pool: Pool, smsc: Smsc) -> None:
    async with wired(pool, smsc) as (bench, supplier):
        rule = NumberRule(id=uuid7(), supplier_id=supplier, prefix="258", strip="258", prepend="0", numbering=(2, 1))
        async with pool.acquire() as conn:
            await numbers.put(conn, rule)
            bench.book = await loading.load(conn)
        await pool.execute("UPDATE sender_book SET numbers_at = numbers_at - interval '5 minutes'")
        id = await message(pool, await organization(pool), text=TEXT)
        await sent(pool, bench, id)
    (one,) = await submits(pool, id)
    assert [one.detail["octets"]] == as_read(smsc)
    assert "dest_addr_ton=2" in one.detail["written"]
    assert "doubt" not in one.detail
    async with pool.acquire() as conn:
        await numbers.remove(conn, (await numbers.load(conn))[0].id)
    (one,) = await submits(pool, id)
    assert one.detail["doubt"] == rebuilding.NUMBERS


async def test_what_may_have_been_otherwise_is_said(pool: Pool, smsc: Smsc) -> None:
    async with wired(pool, smsc) as (bench, _):
        id = await message(pool, await organization(pool), text=TEXT)
        await sent(pool, bench, id)
    async with pool.acquire() as conn:
        # A pause does not change what is written.
        await suppliers.set_state(conn, supplier="main", state="paused")
        assert ["doubt" in one.detail for one in await submits(pool, id)] == [False]
        (row,) = await routing.load(conn)
        await suppliers.change(conn, KEY, msgspec.structs.replace(row, settings=row.settings | {"priority": 3}))
    (one,) = await submits(pool, id)
    assert one.detail["doubt"] == rebuilding.SETTINGS
    # Its worker died before it could record the sender.
    await pool.execute("UPDATE attempts SET state = 'unknown', detail = $1", str(WORKER_DIED))
    (one,) = await submits(pool, id)
    assert one.detail["doubt"] == f"{rebuilding.SETTINGS}; {rebuilding.SENDER}"
    # Nothing left this machine.
    await pool.execute("UPDATE attempts SET state = 'unreachable'")
    assert await submits(pool, id) == []
    await pool.execute("UPDATE attempts SET state = 'accepted'")
    await pool.execute("UPDATE suppliers SET settings = '{}'")
    (one,) = await submits(pool, id)
    assert (one.detail["because"], "written" in one.detail) == (rebuilding.NO_SETTINGS, False)
    await pool.execute("UPDATE messages SET body = NULL")
    (one,) = await submits(pool, id)
    assert one.detail["because"] == rebuilding.NO_TEXT


async def test_of_an_attempt_that_goes_on_only_the_rest_is_written(pool: Pool, smsc: Smsc) -> None:
    async with wired(pool, smsc) as (bench, _):
        id = await message(pool, await organization(pool), text="x" * 400, segments=3)
        await sent(pool, bench, id)
    whole = [one.detail["octets"] for one in await submits(pool, id)]
    assert len(whole) == 3
    # As if the first attempt had lost its connection after its first segment, which the second one does not repeat.
    await pool.execute("UPDATE attempts SET state = 'busy', started_at = started_at - interval '1 hour'")
    await pool.execute(
        "UPDATE sms_parts SET created_at = created_at - CASE part WHEN 1 THEN interval '59 minutes' ELSE '0' END"
    )
    await pool.execute(
        "INSERT INTO attempts (organization_id, message_id, attempt, target_id, state, started_at, ended_at, reference,"
        " continues, parts) SELECT organization_id, message_id, 2, target_id, 'accepted',"
        " started_at + interval '1 hour', ended_at, reference, 1, parts FROM attempts"
    )
    found = await submits(pool, id)
    first, second = ([one for one in found if one.detail["attempt"] == n] for n in (1, 2))
    assert {one.detail["doubt"] for one in first} == {rebuilding.REST}
    assert [one.detail["part"] for one in second] == ["2/3", "3/3"]
    assert not any("doubt" in one.detail for one in second)
