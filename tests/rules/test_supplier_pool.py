"""The supplier pool on a real database: connectors follow the suppliers table, with no more sessions than allowed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.crypto import derive_key, seal
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.process import measures
from heliograph.base.process.settings import Settings
from heliograph.base.sentences import Sentence, packed, said
from heliograph.overview.installation import now
from heliograph.sms import checks
from heliograph.sms.dispatch import suppliers, test_mode
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.dispatch.supplier_pool import SupplierPool
from heliograph.sms.management import watching
from heliograph.suppliers.contract import (
    Account,
    Inbound,
    OnInbound,
    OnOutcome,
    OnReceipts,
    Outcome,
    Receipt,
    Submission,
)
from heliograph.suppliers.failures import in_words
from heliograph.suppliers.slots import SLOT_LEASE
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.session import Session, Timers
from tests.rules.factories import Scripted, message, organization, receipt, until

SEAL = derive_key("k" * 32, "tests")


class Broken(Exception):
    """A configuration for which no connector can be created."""


class Ship:
    """A pool of scripted connectors, and what they reported."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        #: The pool's monotonic clock, in seconds.
        self.time = 0.0
        self.id = uuid7()
        self.made: list[tuple[dict[str, Any], str, Scripted]] = []
        self.outcomes: list[tuple[UUID, Submission, Outcome]] = []
        self.receipts: list[tuple[UUID, Sequence[Receipt]]] = []
        self.fleet = SupplierPool(
            pool,
            self.id,
            factories={"smpp": self.make},
            account=lambda one: Account(one.id, one.settings, suppliers.open_secret(SEAL, one)),
            on_outcome=lambda *outcome: self.outcomes.append(outcome),
            on_receipts=self.received,
            on_inbound=self.inbound,
            monotonic=lambda: self.time,
        )

    async def received(self, supplier_id: UUID, some: Sequence[Receipt]) -> None:
        self.receipts.append((supplier_id, some))

    async def inbound(self, supplier_id: UUID, some: Sequence[Inbound]) -> None:
        raise AssertionError("nobody wrote")

    def make(self, account: Account, on_outcome: OnOutcome, on_receipts: OnReceipts, _: OnInbound) -> Scripted:
        settings, secret = account.settings, account.secret
        if settings.get("broken"):
            raise Broken(settings["broken"])
        connector = Scripted()
        connector.sessions = 0
        connector.on_outcome = on_outcome
        connector.on_receipts = on_receipts
        self.made.append((settings, secret, connector))
        return connector

    async def sail(self) -> Ship:
        await self.pool.execute("INSERT INTO workers VALUES ($1, 'w', now(), now())", self.id)
        await self.fleet.start()
        await self.refresh()
        return self

    async def refresh(self, times: int = 1) -> None:
        for _ in range(times):
            await self.fleet.refresh(grace=0.1)
            await asyncio.sleep(0)

    def connector(self, id: UUID) -> Scripted:
        connector = self.fleet.accounts()[id].connector
        assert isinstance(connector, Scripted)
        return connector


async def add(pool: Pool, name: str = "one", **values: Any) -> UUID:
    async with pool.acquire() as conn:
        return await suppliers.add(
            conn, SEAL, **{"name": name, "kind": "smpp", "settings": {}, "secret": "pw", **values}
        )


async def set_state(pool: Pool, supplier: str, state: str) -> None:
    async with pool.acquire() as conn:
        await suppliers.set_state(conn, supplier=supplier, state=state)


# -- the table ---------------------------------------------------------------------------------------------------------


async def test_it_follows_the_table(pool: Pool) -> None:
    ship = await Ship(pool).sail()
    assert set(ship.fleet.accounts()) == {test_mode.SUPPLIER}
    id = await add(pool, settings={"host": "a"}, parts="last")
    await ship.refresh()
    settings, secret, connector = ship.made[0]
    assert (settings, secret, connector.started, connector.sessions) == ({"host": "a"}, "pw", True, 1)
    assert ship.fleet.policies()[id] == "last"

    await set_state(pool, "one", "paused")
    await ship.refresh()
    assert ship.fleet.accounts()[id].supplier.state == "paused"
    assert (connector.sessions, connector.stopped) == (0, False)

    await set_state(pool, "one", "active")
    await ship.refresh()
    assert connector.sessions == 1

    await set_state(pool, "one", "removed")
    await ship.refresh()
    assert id not in ship.fleet.accounts()
    await until(lambda: connector.stopped)
    assert len(ship.made) == 1


async def test_what_only_routing_asks_for_changes_without_a_new_connection(pool: Pool) -> None:
    ship = await Ship(pool).sail()
    id = await add(pool)
    await ship.refresh()
    await pool.execute("UPDATE suppliers SET prefixes = '{351}', priority = 3, weight = 7, changed_at = now()")
    await ship.refresh()
    row = ship.fleet.accounts()[id].supplier
    assert (row.prefixes, row.priority, row.weight) == (("351",), 3, 7)
    assert len(ship.made) == 1


async def test_a_secret_that_is_sealed_again_needs_no_new_connection(pool: Pool) -> None:
    ship = await Ship(pool).sail()
    id = await add(pool)
    await ship.refresh()
    again = "UPDATE suppliers SET secret = $2 WHERE id = $1"
    await pool.execute(again, id, seal(SEAL, b"pw", suppliers.context(id)))
    await ship.refresh(2)
    assert [secret for _, secret, _ in ship.made] == ["pw"]
    await pool.execute(again, id, seal(SEAL, b"pw2", suppliers.context(id)))
    await ship.refresh(2)
    assert [secret for _, secret, _ in ship.made] == ["pw", "pw2"]
    # What no key opens is not sent from: its operator is told why.
    await pool.execute(again, id, seal(derive_key("x" * 32, "tests"), b"pw2", suppliers.context(id)))
    await ship.refresh(2)
    assert len(ship.made) == 2
    assert not ship.fleet.accounts()[id].connector.ready()


async def test_new_settings_open_anew_once_the_old_sessions_are_closed(pool: Pool) -> None:
    ship = await Ship(pool).sail()
    id = await add(pool, settings={"host": "a"})
    await ship.refresh()
    old = ship.connector(id)
    old.may_stop.clear()
    async with pool.acquire() as conn:
        await suppliers.reconfigure(conn, SEAL, id=id, settings={"host": "b"}, secret="pw2")
    await ship.refresh(3)
    assert len(ship.made) == 1  # the account's only session is still open
    account = ship.fleet.accounts()[id]  # it is known all the same, so messages that only it carries wait
    assert (account.connector.ready(), account.connector.capacity()) == (False, 0)
    old.may_stop.set()
    await until(lambda: old.stopped)
    await ship.refresh()
    assert [(settings, secret) for settings, secret, _ in ship.made] == [({"host": "a"}, "pw"), ({"host": "b"}, "pw2")]
    assert ship.connector(id).sessions == 1


async def test_a_broken_configuration_does_not_stop_the_others(pool: Pool) -> None:
    ship = await Ship(pool).sail()
    broken = await add(pool, "broken", settings={"broken": "no such option"})
    unreadable = await add(pool, "unreadable")
    await pool.execute("UPDATE suppliers SET secret = 'sealed under another key' WHERE id = $1", unreadable)
    fine = await add(pool, "fine")
    await ship.refresh(2)
    assert ship.connector(fine).sessions == 1
    for id in (broken, unreadable):
        account = ship.fleet.accounts()[id]  # routing must know it: messages that only it covers wait, and do not fail
        assert (account.connector.ready(), account.connector.capacity()) == (False, 0)
    assert ship.fleet.accounts()[broken].connector.health().last_error == "no such option"
    assert await pool.fetchval("SELECT count(*) FROM supplier_sessions") == 1

    async with pool.acquire() as conn:
        await suppliers.reconfigure(conn, SEAL, id=broken, settings={}, secret="pw")
    await ship.refresh(2)
    assert ship.connector(broken).sessions == 1


async def test_the_work_of_a_removed_supplier_is_routed_anew(pool: Pool) -> None:
    ship = await Ship(pool).sail()
    removed, kept = await add(pool, "removed"), await add(pool, "kept")
    actor = await organization(pool)
    moves = [await message(pool, actor, line=removed) for _ in range(3)]
    stays = await message(pool, actor, line=kept)
    held = await message(pool, actor, line=removed)
    await pool.execute("UPDATE queue SET lease_until = now() + interval '1 minute' WHERE id = $1", held)
    await set_state(pool, "removed", "removed")
    await ship.refresh(2)
    lines = {row["id"]: row["line"] for row in await pool.fetch("SELECT id, line FROM queue")}
    assert lines == {**dict.fromkeys(moves, UUID(int=0)), stays: kept, held: removed}
    # A worker that did not know yet adds one there after the removal.
    await pool.execute("UPDATE queue SET lease_until = NULL")
    await ship.refresh()
    assert await pool.fetchval("SELECT line FROM queue WHERE id = $1", held) == UUID(int=0)


async def test_work_that_waits_where_it_belongs_is_not_written(pool: Pool) -> None:
    """New work waits in the line for work without a supplier: it was taken for that of a removed one, and all of it
    rewritten each second."""
    ship = await Ship(pool).sail()
    kept, actor = await add(pool, "kept"), await organization(pool)
    for line in (UUID(int=0), kept, test_mode.SUPPLIER):
        await message(pool, actor, line=line)
    versions = "SELECT array_agg(ctid::text || xmin::text ORDER BY id) FROM queue"
    before = await pool.fetchval(versions)
    await ship.refresh(2)
    assert await pool.fetchval(versions) == before


async def test_what_connectors_say_names_their_supplier(pool: Pool) -> None:
    ship = await Ship(pool).sail()
    one, two = await add(pool, "one"), await add(pool, "two")
    await ship.refresh()
    report = ship.connector(two).on_receipts
    assert report is not None
    await report([receipt("7")])
    assert [id for id, _ in ship.receipts] == [two]
    submission = Submission(uuid7(), 1, "258841234567", "X", "hi", "gsm7", 1)
    ship.connector(one).submit(submission)
    await until(lambda: bool(ship.outcomes))
    assert ship.outcomes[0][:2] == (one, submission)


async def test_sessions_without_a_receiver_are_told_until_they_have_one(pool: Pool) -> None:
    """They submit, so they count as bound; but neither receipts nor messages arrive."""
    ship = await Ship(pool).sail()
    id = await add(pool, sessions=3)
    await ship.refresh()

    async def told() -> tuple[int, str, str]:
        await ship.refresh()
        async with pool.acquire() as conn:
            deaf, held = await suppliers.deaf(conn), await suppliers.sessions(conn)
            (check,) = [one for one in await checks.run(conn, Settings(database_url="")) if one.check == "supplier one"]
        assert held[id][:2] == (3, 3)
        return deaf.get(id, 0), check.state, str(check.detail).partition(":")[0]

    assert await told() == (0, "ok", "3 of 3 sessions bound")
    ship.connector(id).receiving = 1
    assert await told() == (2, "failed", "2 of 3 sessions have no receiver")
    ship.connector(id).receiving = 3
    assert await told() == (0, "ok", "3 of 3 sessions bound")


BOUND = """
UPDATE supplier_sessions one SET bound = place <= $2, detail = $3
  FROM (SELECT slot, row_number() OVER (ORDER BY slot) AS place FROM supplier_sessions WHERE supplier_id = $1) of
 WHERE one.supplier_id = $1 AND one.slot = of.slot
"""


def silent(session: Session, deadlines: int) -> Sentence:
    """Why a session ends whose peer says nothing for so many of its deadlines."""
    for _ in range(deadlines):
        session.tick(session.deadline)
    return session.reason


def new_session(*, bound: bool, window: int = 1) -> Session:
    session = Session(window=window, timers=Timers(enquire=1.0, silence=1.0, response=0.5, max_timeouts=1))
    session.bind(p.BindTransceiver(system_id="esme", password="secret"), 0.0)
    if bound:
        session.receive(p.BindTransceiverResp(1, 0, "smsc").encode(), 0.0)
    return session


def unanswered_submits() -> Sentence:
    session = new_session(bound=True)
    session.submit(p.SubmitSm(destination_addr="258841234567"), None, 0.0)
    return silent(session, 1)


def half_a_pdu() -> Sentence:
    session = new_session(bound=True)
    session.receive(p.EnquireLink(1).encode()[:8], 0.0)
    return silent(session, 3)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (lambda: silent(new_session(bound=True), 2), "drops idle connections"),
        (unanswered_submits, "drops idle connections"),
        (half_a_pdu, "drops idle connections"),
        (lambda: silent(new_session(bound=False), 1), "the port is the one for SMPP"),
        (lambda: said("cannot connect: %(why)s", why=in_words(ConnectionRefusedError())), "which step fails"),
        (lambda: said("bind refused: %(status)s", status="0x0000000E ESME_RINVPASWD"), ""),
    ],
)
async def test_no_credentials_and_no_number_of_binds_are_blamed_for_silence(
    pool: Pool, error: Callable[[], Sentence], remedy: str
) -> None:
    """Doctor said to check the password of an account whose connection a firewall had dropped, or, if another session
    was bound, to reduce their number."""
    ship = await Ship(pool).sail()
    id = await add(pool, sessions=2)
    await ship.refresh()
    usual = {0: "credentials", 1: "how many binds"}
    for bound in (0, 1):
        await pool.execute(BOUND, id, bound, packed(error()))
        async with pool.acquire() as conn:
            (check,) = [one for one in await checks.run(conn, Settings(database_url="")) if one.check == "supplier one"]
        assert str(error()) in check.detail
        assert (remedy or usual[bound]) in check.remedy
        assert (usual[bound] in check.remedy) == (not remedy)


async def test_sessions_that_the_supplier_refuses_are_told_though_others_are_bound(pool: Pool) -> None:
    """An account that allows fewer binds than it has sessions carries less than it should, and keeps trying to bind."""
    ship = await Ship(pool).sail()
    id = await add(pool, sessions=3)
    await ship.refresh()
    refused = packed(said("bind refused: %(status)s", status="0x00000005 ESME_RALYBND"))
    for bound, state, detail in (
        (1, "warning", "1 of 3 sessions bound: bind refused: 0x00000005 ESME_RALYBND"),
        (3, "ok", "3 of 3 sessions bound"),
    ):
        await pool.execute(BOUND, id, bound, refused)
        async with pool.acquire() as conn:
            (check,) = [one for one in await checks.run(conn, Settings(database_url="")) if one.check == "supplier one"]
        assert (check.state, str(check.detail)) == (state, detail)


async def test_stopping_closes_all_and_gives_the_slots_back(pool: Pool) -> None:
    ship = await Ship(pool).sail()
    ids = [await add(pool, str(n), sessions=2) for n in range(3)]
    await ship.refresh()
    connectors = [ship.connector(id) for id in ids]
    await ship.fleet.stop(grace=0.1)
    await ship.fleet.give_back()
    assert all(one.stopped for one in connectors)
    assert await pool.fetchval("SELECT count(*) FROM supplier_sessions") == 0


# -- sessions ----------------------------------------------------------------------------------------------------------


def open_sessions(ships: Sequence[Ship], id: UUID) -> list[int]:
    return [ship.connector(id).sessions for ship in ships if id in ship.fleet.accounts()]


@pytest.mark.parametrize("sessions", [1, 2, 3, 5])
async def test_workers_share_an_accounts_sessions_evenly_and_never_exceed_them(pool: Pool, sessions: int) -> None:
    id = await add(pool, sessions=sessions)
    ships = [await Ship(pool).sail()]
    assert open_sessions(ships, id) == [sessions]
    ships.append(await Ship(pool).sail())
    chance = random.Random(sessions)
    for _ in range(12):
        await chance.choice(ships).refresh()
        assert sum(open_sessions(ships, id)) <= sessions
    for _ in range(2):
        for ship in ships:
            await ship.refresh()
    assert sum(open_sessions(ships, id)) == sessions
    assert max(open_sessions(ships, id)) == -(-sessions // 2)


async def test_workers_that_start_together_never_exceed_it(pool: Pool) -> None:
    id = await add(pool, sessions=3)
    ships = [Ship(pool) for _ in range(4)]
    await asyncio.gather(*(ship.sail() for ship in ships))
    for _ in range(4):
        assert sum(open_sessions(ships, id)) <= 3
        await asyncio.gather(*(ship.refresh() for ship in ships))
    assert sum(open_sessions(ships, id)) == 3


async def test_a_slot_goes_to_another_only_when_its_session_is_closed(pool: Pool) -> None:
    id = await add(pool, sessions=2)
    first = await Ship(pool).sail()
    connector = first.connector(id)
    connector.lingering = 2
    second = await Ship(pool).sail()
    await first.refresh()
    await second.refresh()
    assert connector.sessions == 1  # asked to close one, which takes a while
    assert second.connector(id).sessions == 0
    connector.lingering = 1
    await first.refresh()
    await second.refresh()
    assert second.connector(id).sessions == 1


async def test_sessions_are_kept_by_looking_in_time(pool: Pool) -> None:
    id = await add(pool, sessions=2)
    ship = await Ship(pool).sail()
    aged = "UPDATE supplier_sessions SET lease_until = now() + interval '3 seconds' RETURNING lease_until"
    before = await pool.fetchval(aged)
    await ship.refresh()
    assert await pool.fetchval("SELECT min(lease_until) FROM supplier_sessions") > before
    assert ship.connector(id).sessions == 2
    # Another worker's leases are not its own.
    await pool.execute("UPDATE supplier_sessions SET worker_id = $1, lease_until = now() + interval '50 s'", uuid7())
    before = await pool.fetchval("SELECT max(lease_until) FROM supplier_sessions")
    await ship.refresh()
    assert await pool.fetchval("SELECT min(lease_until) FROM supplier_sessions") == before
    assert ship.connector(id).sessions == 0


@pytest.mark.parametrize(
    ("moved", "waits"),
    [(-timedelta(minutes=1), 0.0), (timedelta(days=3), SLOT_LEASE)],
    ids=["expired", "clock set back"],
)
async def test_a_dead_workers_sessions_are_taken_over(pool: Pool, moved: timedelta, waits: float) -> None:
    id = await add(pool, sessions=2)
    await Ship(pool).sail()
    alive = await Ship(pool).sail()
    assert alive.connector(id).sessions == 0
    await pool.execute("UPDATE supplier_sessions SET lease_until = lease_until + $1::interval", moved)
    await pool.execute("UPDATE workers SET seen_at = now() + $2::interval WHERE id <> $1", alive.id, moved)
    await alive.refresh()
    assert alive.connector(id).sessions == (0 if waits else 2)
    alive.time += waits
    await alive.refresh()
    assert alive.connector(id).sessions == 2
    assert await pool.fetchval("SELECT max(lease_until) < now() + interval '1 minute' FROM supplier_sessions")


async def test_a_living_worker_keeps_its_sessions_when_the_clock_is_set_back(pool: Pool) -> None:
    id = await add(pool, sessions=2)
    ship = await Ship(pool).sail()
    await pool.execute("UPDATE supplier_sessions SET lease_until = lease_until + interval '3 days'")
    await ship.refresh()
    assert ship.connector(id).sessions == 2
    assert await pool.fetchval("SELECT max(lease_until) < now() + interval '1 minute' FROM supplier_sessions")


async def test_no_other_worker_takes_a_living_ones_sessions_when_the_clock_is_set_back(pool: Pool) -> None:
    """The supplier would have too many for a moment, and refuse one. Neither worker seems to have been seen
    recently."""
    id = await add(pool, sessions=2)
    first, second = await Ship(pool).sail(), await Ship(pool).sail()
    for ship in (first, second, first, second):
        await ship.refresh()
    assert open_sessions([first, second], id) == [1, 1]
    held = "SELECT slot, worker_id FROM supplier_sessions ORDER BY slot"
    before = await pool.fetch(held)
    for _ in range(2):  # as often as the clock is set back
        await pool.execute("UPDATE supplier_sessions SET lease_until = lease_until + interval '3 days'")
        await pool.execute("UPDATE workers SET seen_at = now() + interval '3 days'")
        await second.refresh()
        second.time += SLOT_LEASE - 1
        await second.refresh()
        assert open_sessions([first, second], id) == [1, 1]
        await first.refresh()
        second.time += SLOT_LEASE
        await second.refresh()
        assert open_sessions([first, second], id) == [1, 1]
        assert await pool.fetch(held) == before


async def test_no_other_worker_takes_a_living_ones_sessions_when_the_clock_is_set_forward(
    pool: Pool, set_forward: Callable[..., None]
) -> None:
    """The supplier would have too many for a moment, and refuse one. Neither worker seems to have been seen
    recently."""
    id = await add(pool, sessions=3)
    first, second = await Ship(pool).sail(), await Ship(pool).sail()
    for ship in (first, second, first, second):
        await ship.refresh()
    assert sorted(open_sessions([first, second], id)) == [1, 2]
    held = "SELECT slot, worker_id FROM supplier_sessions ORDER BY slot"
    before, open_before = await pool.fetch(held), open_sessions([first, second], id)
    set_forward(3600)
    await pool.execute("UPDATE supplier_sessions SET lease_until = lease_until - interval '1 hour'")
    await pool.execute("UPDATE workers SET seen_at = now() - interval '1 hour'")
    for ship in (second, first, second):
        await ship.refresh()
        assert open_sessions([first, second], id) == open_before
    assert await pool.fetch(held) == before
    # One that has died has not renewed its own a lease's time later.
    set_forward(3600, ago=SLOT_LEASE + 1)
    await pool.execute("UPDATE supplier_sessions SET lease_until = now() - interval '1 second'")
    await second.refresh()
    assert second.connector(id).sessions == 3


async def test_what_was_leased_before_the_clock_was_set_back_is_not_shown_as_held(pool: Pool) -> None:
    id = await add(pool, sessions=2)
    ship = await Ship(pool).sail()
    await ship.refresh()
    await pool.execute("UPDATE supplier_sessions SET receives = false")

    async def shown() -> list[Any]:
        async with pool.acquire() as conn:
            (supplier,) = await now.suppliers(conn)
            return [
                (await suppliers.sessions(conn)).get(id, suppliers.UNHELD)[:2],
                await suppliers.deaf(conn),
                [one.number for one in await watching.sessions(conn, id)],
                [one.sessions for one in await now.workers(conn)],
                (supplier.leased, supplier.bound),
            ]

    assert await shown() == [(2, 2), {id: 2}, [1, 2], [2], (2, 2)]
    await pool.execute("UPDATE supplier_sessions SET lease_until = lease_until + interval '3 days'")
    assert await shown() == [(0, 0), {}, [], [0], (0, 0)]


async def test_fewer_sessions_are_closed_and_a_paused_supplier_has_none(pool: Pool) -> None:
    id = await add(pool, sessions=4)
    ship = await Ship(pool).sail()
    await pool.execute("UPDATE suppliers SET sessions = 1")
    await ship.refresh()
    assert ship.connector(id).sessions == 1
    assert await pool.fetchval("SELECT count(*) FROM supplier_sessions") == 1
    await set_state(pool, "one", "paused")
    await ship.refresh()
    assert ship.connector(id).sessions == 0
    assert await pool.fetchval("SELECT count(*) FROM supplier_sessions") == 0


async def test_a_supplier_that_drains_keeps_its_sessions(pool: Pool) -> None:
    id = await add(pool, sessions=2)
    ship = await Ship(pool).sail()
    await ship.refresh()
    await set_state(pool, "one", "draining")
    await ship.refresh()
    assert ship.connector(id).sessions == 2
    assert ship.fleet.accounts()[id].supplier.state == "draining"
    assert await pool.fetchval("SELECT count(*) FROM supplier_sessions WHERE bound_at IS NOT NULL AND bound") == 2


async def test_operators_see_how_sessions_are(pool: Pool) -> None:
    id = await add(pool, sessions=3)
    ship = await Ship(pool).sail()
    await ship.refresh()
    async with pool.acquire() as conn:
        assert await suppliers.sessions(conn) == {id: (3, 3, "")}


def test_a_supplier_row_is_what_the_fleet_compares() -> None:
    """A new column of the table must be considered in `_needs_reconnect`."""
    assert set(Supplier.__struct_fields__) == {
        "id",
        "name",
        "kind",
        "settings",
        "secret",
        "state",
        "prefixes",
        "priority",
        "weight",
        "sessions",
        "parts",
        "simulated",
        "created_at",
        "changed_at",
        "held",
        "holds",
    }


async def test_each_worker_knows_what_the_others_have_bound_and_use(pool: Pool) -> None:
    one, all_ = await add(pool, "one", sessions=1), await add(pool, "all", sessions=2)
    first, second = await Ship(pool).sail(), await Ship(pool).sail()
    for _ in range(3):
        await first.refresh()
        await second.refresh()
    has, has_not = (first, second) if first.connector(one).sessions else (second, first)

    def known(ship: Ship, id: UUID) -> tuple[bool, bool]:
        account = ship.fleet.accounts()[id]
        return account.elsewhere, account.fed

    assert (known(has, one), known(has_not, one)) == ((False, True), (True, False))
    assert (known(has, all_), known(has_not, all_)) == ((True, False), (True, False))
    # It is not used there: then no worker that would use it has it.
    has.fleet.accounts()[one].breaker.trip()
    await has.refresh()
    await has_not.refresh()
    assert known(has_not, one) == (False, True)
    # A dead worker holds nothing.
    await pool.execute("UPDATE supplier_sessions SET ready = true")
    await has_not.refresh()
    assert known(has_not, one) == (True, False)
    await pool.execute("UPDATE supplier_sessions SET lease_until = now() - interval '1 s' WHERE worker_id = $1", has.id)
    await has_not.refresh()
    assert known(has_not, one)[0] is False


# -- what workers tell each other --------------------------------------------------------------------------------------


async def test_a_circuit_that_opens_in_one_worker_is_open_in_all_and_one_of_them_probes(pool: Pool) -> None:
    id = await add(pool, sessions=3)
    ships = [await Ship(pool).sail() for _ in range(3)]
    for _ in range(3):
        for ship in ships:
            await ship.refresh()
    first, second, third = (ship.fleet.accounts()[id].breaker for ship in ships)

    first.trip()
    for ship in ships:
        await ship.refresh()
    assert (first.open, second.open, third.open) == (True, True, True)
    assert not any(one.usable() for one in (first, second, third)), "it is not time for a probe"

    await probe_due(pool)
    for ship in reversed(ships):
        await ship.refresh()
    assert [one.usable() for one in (first, second, third)] == [False, False, True], "one of them may probe"
    third.begin_probe()
    assert not third.usable(), "once"
    third.record(ok=False, sent_in=third.openings)
    assert await pool.fetchval("SELECT opened_at IS NOT NULL FROM supplier_health")

    # A worker that does not use its turn loses it to the next.
    await probe_due(pool)
    for ship in ships:
        await ship.refresh()
    assert [one.usable() for one in (first, second, third)] == [True, False, False]
    await probe_due(pool)
    await ships[1].refresh()
    await ships[0].refresh()
    assert [one.usable() for one in (first, second, third)] == [False, True, False]

    # A message sent before it opened does not close it; a probe does, for all.
    second.record(ok=True, sent_in=second.openings - 1)
    assert second.open
    second.begin_probe()
    second.record(ok=True, sent_in=second.openings)
    for ship in reversed(ships):
        await ship.refresh(2)
    await ships[2].refresh()
    assert [one.open for one in (first, second, third)] == [False, False, False]
    assert await pool.fetchval("SELECT opened_at IS NULL FROM supplier_health")


async def probe_due(pool: Pool) -> None:
    await pool.execute("UPDATE supplier_health SET probe_at = now() - interval '1 second'")


async def test_a_worker_that_others_contradict_keeps_its_circuit_to_itself(pool: Pool) -> None:
    """The worker's own connection is at fault, not the supplier."""
    id = await add(pool, sessions=2)
    faulty, fine = await Ship(pool).sail(), await Ship(pool).sail()
    for ship in (faulty, fine) * 2:
        await ship.refresh()
    its, other = faulty.fleet.accounts()[id].breaker, fine.fleet.accounts()[id].breaker
    its.trip()
    await faulty.refresh()
    await fine.refresh()
    await probe_due(pool)
    await fine.refresh()
    other.begin_probe()
    other.record(ok=True, sent_in=other.openings)
    await fine.refresh()
    await faulty.refresh()
    assert (its.open, other.open) == (False, False)

    its.trip()
    await faulty.refresh()
    await fine.refresh()
    assert (its.open, other.open) == (True, False)


async def test_a_worker_that_starts_knows_what_is_avoided_and_a_changed_supplier_is_tried_at_once(pool: Pool) -> None:
    id = await add(pool)
    old = await Ship(pool).sail()
    old.fleet.accounts()[id].breaker.trip()
    await old.refresh()
    new = await Ship(pool).sail()
    assert new.fleet.accounts()[id].breaker.open
    assert new.fleet.accounts()[id].breaker.open_for() < 3600

    async with pool.acquire() as conn:
        await suppliers.set_state(conn, supplier="one", state="paused")
        await suppliers.set_state(conn, supplier="one", state="active")
    for ship in (old, new):
        await ship.refresh()
        assert not ship.fleet.accounts()[id].breaker.open


async def test_a_circuit_that_is_reset_closes_also_where_a_worker_keeps_it_to_itself(pool: Pool) -> None:
    id = await add(pool)
    ship = await Ship(pool).sail()
    account = ship.fleet.accounts()[id]
    account.breaker.trip()
    account.told.alone_until = float("inf")
    await ship.refresh()
    assert account.breaker.open
    assert await pool.fetchval("SELECT count(*) FROM supplier_health") == 0
    async with pool.acquire() as conn:
        await suppliers.reset_circuit(conn, supplier="one")
    await ship.refresh()
    assert not account.breaker.open


async def test_one_worker_is_told_to_slow_down_and_the_others_do(pool: Pool) -> None:
    id = await add(pool, sessions=2)
    told, other = await Ship(pool).sail(), await Ship(pool).sail()
    for ship in (told, other) * 2:
        await ship.refresh()
    throttled = dict(measures.THROTTLES.values)
    told.connector(id).throttles, told.connector(id).pause = 3, 20.0
    await told.refresh()
    await other.refresh()
    (pause,) = other.connector(id).slowed
    assert 0 < pause <= 20
    assert told.connector(id).slowed == []
    assert other.fleet.accounts()[id].breaker.is_slow()
    # It is reported once, and without news nothing is written.
    before = await pool.fetchval("SELECT xmin::text FROM supplier_health")
    for ship in (told, other) * 2:
        await ship.refresh()
    assert len(other.connector(id).slowed) == 1
    assert await pool.fetchval("SELECT xmin::text FROM supplier_health") == before
    # A worker that learned of it counts it once.
    name = told.fleet.accounts()[id].supplier.name
    assert measures.THROTTLES.values[name,] == throttled.get((name,), 0) + 3


async def test_what_is_taken_from_another_worker_does_not_stall(pool: Pool) -> None:
    id = await add(pool, sessions=2)
    one, other = await Ship(pool).sail(), await Ship(pool).sail()
    for ship in (one, other) * 2:
        await ship.refresh()
    one.fleet.accounts()[id].breaker.moved()
    await one.refresh()
    await other.refresh()
    assert other.fleet.accounts()[id].moves_elsewhere
    assert not one.fleet.accounts()[id].moves_elsewhere


async def test_a_simulator_that_stands_beside_others_is_no_matter_paused_or_not(pool: Pool) -> None:
    """Resuming it, the usual advice, would send nothing through it."""

    async def told() -> tuple[str, str]:
        async with pool.acquire() as conn:
            found = await checks.run(conn, Settings(database_url=""))
        (check,) = [one for one in found if one.check == "supplier one"]
        return check.state, str(check.detail)

    await add(pool)
    await pool.execute("UPDATE suppliers SET simulated = true, state = 'paused'")
    assert await told() == ("warning", "paused"), "it is the only one"
    await add(pool, "two")
    idle = ("ok", "a simulator: live messages go only to the other suppliers")
    assert await told() == idle
    await pool.execute("UPDATE suppliers SET state = 'active' WHERE simulated")
    assert await told() == idle
