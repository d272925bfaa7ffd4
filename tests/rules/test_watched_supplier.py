"""An operator watches a supplier: a real connector, a real SMSC, a real database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.actor import SYSTEM
from heliograph.base.crypto import derive_key
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.simulators.smsc.options import SmscOptions
from heliograph.simulators.smsc.simulator import Smsc
from heliograph.sms.dispatch import suppliers
from heliograph.sms.dispatch.supplier_pool import SupplierPool
from heliograph.sms.management import watching
from heliograph.sms.watched import hours, pdus, sessions
from heliograph.suppliers.contract import LAST, Account, Exchange, Submission
from heliograph.suppliers.smpp import connector as smpp
from heliograph.suppliers.smpp.connector import SmppConnector
from tests.processes import until_true
from tests.rules.test_locked_rows import locking

KEY = derive_key("a secret key of a test installation", "suppliers")
TEXT, TO, PASSWORD = "Hello Zacarias", "258841234567", "geheim"


async def _add(pool: Pool, **values: Any) -> UUID:
    async with pool.acquire() as conn:
        return await suppliers.add(
            conn, KEY, **{"name": "main", "kind": "smpp", "settings": {}, "secret": PASSWORD} | values
        )


async def test_what_goes_over_the_wire_is_seen_while_it_is_watched(pool: Pool) -> None:
    smsc = Smsc(SmscOptions(port=0, systems={"esme": PASSWORD}, receipts=False))
    await smsc.start()
    settings = {"host": "127.0.0.1", "port": smsc.port, "system_id": "esme", "tls": False, "enquire_seconds": 600}
    id = await _add(pool, settings=settings)
    outcomes: list[Any] = []

    async def received(_: UUID, __: Sequence[Any]) -> None:
        """Receipts do not matter here."""

    worker = uuid7()
    await pool.execute("INSERT INTO workers VALUES ($1, 'w', now(), now())", worker)
    fleet = SupplierPool(
        pool,
        worker,
        factories={"smpp": smpp.connect},
        account=lambda one: Account(one.id, one.settings, suppliers.open_secret(KEY, one)),
        on_outcome=lambda *told: outcomes.append(told),
        on_receipts=received,
        on_inbound=received,
    )

    def connector() -> SmppConnector:
        found = fleet.accounts()[id].connector
        assert isinstance(found, SmppConnector)
        return found

    async def bound() -> bool:
        await fleet.refresh(grace=1.0)
        return connector().health().sessions == 1

    async def send() -> None:
        known = len(outcomes)
        connector().submit(Submission(uuid7(), 1, TO, "ACME", TEXT, "gsm7", 1))

        async def ended() -> bool:
            return len(outcomes) > known

        await until_true(ended)

    def taps() -> set[bool]:
        return {
            link.connection.session.tap is not None
            for session in connector()._sessions
            for link in session
            if link.connection is not None
        }

    await fleet.start()
    try:
        await until_true(bound)
        await send()
        await fleet.refresh(grace=1.0)
        # Nobody watches: nothing is recorded, and sessions report to nobody.
        assert (await pool.fetchval("SELECT count(*) FROM supplier_pdus"), taps()) == (0, {False})
        # But the last error of each session is stored, with its first time.
        async with pool.acquire() as conn:
            (one,) = await watching.sessions(conn, id)
            assert one.wire is not None
            assert (one.number, one.is_bound, one.wire.in_flight) == (1, True, 0)
            assert (one.wire.sent, one.wire.received) == ("submit_sm", "submit_sm_resp")
            assert one.since is not None
            assert one.wire.sent_at is not None
            await fleet.refresh(grace=1.0)
            assert [one.wire for one in await watching.sessions(conn, id)] == [one.wire]
            # What was sampled every second is added to the hour, and nothing twice.
            await fleet.hours.store(conn)
            await fleet.hours.store(conn)
            at = clock.now()
            (hour,) = await hours.read(conn, id, since=at - timedelta(hours=2), until=at + timedelta(hours=1))
            assert (sum(hour.answers), hour.used, hour.room % 10) == (1, 0.0, 0)
            assert hour.room > 0
            half = hour.seconds(0.5)
            assert half is not None
            assert half < 60

        async with pool.acquire() as conn:
            found, until = await pdus.begin(conn, supplier="main", lasts=timedelta(minutes=5), by=SYSTEM)
        assert found == id
        await fleet.refresh(grace=1.0)
        assert taps() == {True}
        await send()

        async def is_kept() -> bool:
            await fleet.refresh(grace=1.0)
            async with pool.acquire() as conn:
                commands = {one.command for one in (await pdus.seen(conn, id)).kept}
            return {"submit_sm", "submit_sm_resp"} <= commands

        await until_true(is_kept)
        async with pool.acquire() as conn:
            seen = await pdus.seen(conn, id)
        assert seen.until == until
        submit = next(one for one in seen.kept if one.command == "submit_sm")
        answer = next(one for one in seen.kept if one.command == "submit_sm_resp")
        assert (submit.is_sent, submit.fields["destination_addr"], submit.fields["source_addr"]) == (
            True,
            "…4567",
            "ACME",
        )
        assert submit.fields["octets"] == len(TEXT)
        assert (answer.is_sent, answer.sequence, answer.status) == (False, submit.sequence, "")
        assert answer.fields["message_id"]
        assert [one.id for one in seen.kept] == sorted((one.id for one in seen.kept), reverse=True)
        stored = str(await pool.fetch("SELECT * FROM supplier_pdus"))
        for secret in (TO, "Zacarias", PASSWORD):
            assert secret not in stored

        # When it ends, so does its cost.
        await pool.execute("UPDATE supplier_watches SET until = now() - interval '1 second'")
        await fleet.refresh(grace=1.0)
        assert taps() == {False}
        await pool.execute("DELETE FROM supplier_pdus")
        await send()
        await fleet.refresh(grace=1.0)
        assert await pool.fetchval("SELECT count(*) FROM supplier_pdus") == 0
    finally:
        await fleet.stop(grace=0.5)
        await smsc.stop()


async def test_the_last_of_each_supplier_are_kept_for_an_hour(pool: Pool) -> None:
    one, two = await _add(pool), await _add(pool, name="other")

    def made(sequence: int) -> Exchange:
        return Exchange(clock.now(), True, "enquire_link", sequence, "", {})

    async with pool.acquire() as conn:
        await pdus.keep(conn, [(two, made(7))])
        for batch in range(3):
            await pdus.keep(conn, [(one, made(batch * 150 + number)) for number in range(150)])
        kept = (await pdus.seen(conn, one)).kept
        assert [found.sequence for found in kept] == list(range(449, 449 - LAST, -1))
        assert [found.sequence for found in (await pdus.seen(conn, two)).kept] == [7]
        assert await conn.fetchval("SELECT count(*) FROM supplier_pdus") == LAST + 1
        now = await conn.fetchval("SELECT now()")
        await conn.execute("UPDATE supplier_pdus SET at = $1 WHERE supplier_id = $2", now - 2 * pdus.KEPT, one)
        await conn.execute(pdus.DELETE, now - pdus.KEPT, 5000)
        assert await conn.fetchval("SELECT count(*) FROM supplier_pdus") == 1


async def test_a_worker_that_stands_still_while_it_stores_them_holds_up_no_other(pool: Pool, database_url: str) -> None:
    """The others' leases of their sessions ended meanwhile, and some were open twice."""
    id = await _add(pool)
    async with pool.acquire() as conn:
        await pdus.begin(conn, supplier="main", lasts=timedelta(minutes=1), by=SYSTEM)
    hasty = await open_pool(database_url, size=1, statement=2.0)
    try:
        async with locking(pool) as frozen, hasty.acquire() as conn:
            await frozen.execute(pdus.TURN, [id])
            await pdus.keep(conn, [(id, Exchange(clock.now(), True, "enquire_link", 1, "", {}))])
        assert await pool.fetchval("SELECT count(*) FROM supplier_pdus") == 0
    finally:
        hasty.terminate()


async def test_a_watch_that_cannot_be_is_refused_by_name(pool: Pool) -> None:
    await _add(pool, name="web", kind="twilio")
    await _add(pool)
    async with pool.acquire() as conn:
        with pytest.raises(NotFound):
            await pdus.begin(conn, supplier="nobody", lasts=timedelta(minutes=1), by=SYSTEM)
        for name, minutes in (("web", 0), ("main", 0), ("main", 16)):
            with pytest.raises(Invalid, match="minutes"):
                await pdus.begin(conn, supplier=name, lasts=timedelta(minutes=minutes), by=SYSTEM)
    assert await pool.fetchval("SELECT count(*) FROM supplier_watches") == 0
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'supplier.watched'") == 0


def test_a_rate_is_over_the_last_seconds_and_begins_anew_with_a_connection() -> None:
    rates, id = sessions.Rates(), UUID(int=1)
    assert rates.rate(id, 100, 0.0) == 0.0
    assert [rates.rate(id, 100 + 10 * second, float(second)) for second in range(1, 8)] == [10.0] * 7
    assert rates.rate(id, 170, 20.0) == 0.0
    assert rates.rate(id, 3, 21.0) == 0.0
    assert rates.rate(id, 8, 22.0) == 5.0
    rates.keep([])
    assert rates.rate(id, 50, 23.0) == 0.0
