"""Faults that arrive as a status: how little is sent before they are known, and how one message at a time probes."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.suppliers.whatsapp_cloud.connector import CloudConnector
from heliograph.suppliers.whatsapp_cloud.credential import Credential, credential
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from heliograph.whatsapp.dispatch import holds
from heliograph.whatsapp.dispatch.number_pool import NumberPool, live_workers
from heliograph.whatsapp.dispatch.probing import DOUBLES, DOUBLINGS, FEW, Probe
from heliograph.whatsapp.mirror.accounts import SendingNumber
from tests.meanwhile import begun
from tests.processes import until_true
from tests.rules.callback_factories import Change, Meta, status
from tests.rules.callback_factories import ago as at
from tests.rules.callback_factories import message as heard
from tests.rules.dispatching_whatsapp import UNKNOWN, Bench, Scripted, accept_all, attempts, fault, queued, status_of
from tests.rules.whatsapp_factories import Made, check_wallets, made, message, number

UNPAID = 131042
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE $1::int = ANY (pg_blocking_pids(pid))"
STANDING = "SELECT held_until, held_until > now() AS held, held_for_status, trying_id FROM whatsapp_accounts"


def status_update(who: Made, id: UUID, word: str, code: int = 0, attempt: int = 1) -> Change:
    """A status of one of our messages."""
    more: dict[str, Any] = {"errors": [{"code": code, "title": "x"}]} if code else {}
    return status(who, f"wamid.{id.hex}.{attempt}", word, biz_opaque_callback_data=str(id), **more)


class Workers:
    """Several workers on one queue."""

    def __init__(self, pool: Pool, benches: list[Bench]) -> None:
        self.pool = pool
        self.benches = benches

    async def round(self, times: int = 3) -> list[UUID]:
        """Every worker reads the tables and dispatches, a few times; returns what was sent meanwhile."""
        before = set(self.out)
        for _ in range(times):
            for one in self.benches:
                await one.refresh()
            await asyncio.gather(*(one.round() for one in self.benches))
        return [id for id in self.out if id not in before]

    async def later(self, seconds: float) -> None:
        await self.benches[0].later(seconds=seconds)
        for one in self.benches[1:]:
            one.seconds += seconds
            for connector in one.connectors.values():
                connector.held = False

    @property
    def out(self) -> list[UUID]:
        found = [one for bench in self.benches for at in bench.connectors.values() for one in at.submitted]
        return [one.message_id for one in found]


async def workers_of(pool: Pool, count: int) -> tuple[Made, Workers, Meta]:
    who = await made(pool)
    await pool.execute("UPDATE whatsapp_numbers SET last_sent_at = NULL")
    await pool.execute(
        "INSERT INTO workers (id, name, started_at, seen_at)"
        " SELECT gen_random_uuid(), n::text, now(), now() + interval '50 seconds' FROM generate_series(1, $1) n",
        count,
    )
    return who, Workers(pool, [await Bench(pool).start() for _ in range(count)]), Meta(pool)


@pytest.mark.parametrize("count", [1, 2])
async def test_an_account_that_cannot_pay_loses_a_few_messages_and_then_one_at_each_try(pool: Pool, count: int) -> None:
    """Meta accepts every message and fails it a second later, so no response ever shows that the account is blocked."""
    who, workers, meta = await workers_of(pool, count)
    for n in range(60):
        await message(pool, who, to=f"+2588400000{n:02}", lane=1)
    first = await workers.round()
    assert 0 < len(first) <= FEW
    await meta.say(who, *(status_update(who, id, "failed", UNPAID) for id in first))
    assert (await pool.fetchrow(STANDING))["held_for_status"]
    assert await workers.round() == []
    # Each time the hold is over, one message of all workers probes. That Meta accepts it says nothing.
    for _ in range(3):
        await workers.later(601)
        (tries,) = await workers.round(5)
        account = await pool.fetchrow(STANDING)
        assert (account["trying_id"], account["held_for_status"]) == (tries, True)
        await meta.say(who, status_update(who, tries, "failed", UNPAID))
        assert (await pool.fetchrow(STANDING))["held"]
        assert await workers.round() == []
    # The bill is paid.
    await workers.later(601)
    (tries,) = await workers.round(5)
    await meta.say(who, status_update(who, tries, "sent"))
    assert (await pool.fetchrow(STANDING))["held_until"] is None
    await workers.round(5)
    assert len(set(workers.out)) == len(workers.out) == 60
    failed = await pool.fetchval("SELECT count(*) FROM whatsapp_messages WHERE status = 'failed'")
    assert failed == len(first) + 3
    await check_wallets(pool, [who.organization_id])


@pytest.mark.parametrize("code", [UNPAID, 131048])
@pytest.mark.parametrize("lately", [False, True])
async def test_a_fault_that_a_status_reports_late_stops_nothing_for_longer_than_it_lasts(
    pool: Pool, code: int, lately: bool
) -> None:
    """Callbacks of a whole night come in the morning. A hold that would be over by now has one message probe at once;
    of several reports, the latest counts, in whatever order they come."""
    who, workers, meta = await workers_of(pool, 1)
    ids = [await message(pool, who, to=f"+25884000000{n}") for n in range(3)]
    assert len(await workers.round()) == 3
    times = [timedelta(hours=6), timedelta(seconds=50 if lately else 5 * 3600), timedelta(hours=7)]
    told = [
        status(who, f"wamid.{id.hex}.1", "failed", clock.now() - since, biz_opaque_callback_data=str(id),
               errors=[{"code": code}])
        for id, since in zip(ids, times, strict=True)
    ]  # fmt: skip
    await meta.say(who, *told)
    more = [await message(pool, who, to=f"+25884000001{n}") for n in range(3)]
    if lately:
        assert await workers.round() == []
        return
    (tries,) = await workers.round()
    await meta.say(who, status_update(who, tries, "sent"))
    assert {tries, *await workers.round()} == set(more)


async def test_a_hold_that_lasts_longer_keeps_its_reason(pool: Pool) -> None:
    """Pages gave its time with the reason of one that was over or shorter: a refused credential was not shown."""
    who = await made(pool)
    asked: list[tuple[str, float, datetime | None]] = [
        ("credential", 600.0, None),
        ("reported late", 900.0, at(hours=6)),
        ("shorter", 2.0, None),
        ("longer", 900.0, None),
    ]
    seen = []
    async with pool.acquire() as conn:
        for reason, seconds, since in asked:
            for hold, id in ((holds.hold_account, who.account_id), (holds.hold_number, who.number_id)):
                await hold(conn, who.organization_id, id, seconds=seconds, reason=reason, at=since)
            tables = ("whatsapp_accounts", "whatsapp_numbers")
            seen.append([await conn.fetchval(f"SELECT held_reason FROM {table}") for table in tables])
    assert seen == [["credential"] * 2] * 3 + [["longer"] * 2]


async def test_a_late_report_of_an_earlier_message_says_nothing_about_the_probe(pool: Pool) -> None:
    """Its status ended no hold then, and the account waited for another ten minutes."""
    who, workers, meta = await workers_of(pool, 1)
    first, second = [await message(pool, who, to=f"+25884000000{n}") for n in range(2)]
    assert len(await workers.round()) == 2
    await meta.say(who, status_update(who, first, "failed", UNPAID))
    tried = await message(pool, who, to="+258840000009")
    await workers.later(601)
    assert await workers.round(5) == [tried]
    late = status(who, f"wamid.{second.hex}.1", "failed", at(minutes=11), biz_opaque_callback_data=str(second),
                  errors=[{"code": UNPAID}])  # fmt: skip
    await meta.say(who, late)
    assert await status_of(pool, second) == ("failed", "payment", "released")
    assert (await pool.fetchrow(STANDING))["trying_id"] == tried
    await meta.say(who, status_update(who, tried, "sent"))
    assert (await pool.fetchrow(STANDING))["held_until"] is None


async def test_of_all_numbers_of_a_held_account_one_message_tries(pool: Pool) -> None:
    who, workers, _ = await workers_of(pool, 2)
    others = [(await number(pool, who.organization_id, who.account_id, proven=False))[0] for _ in range(3)]
    async with pool.acquire() as conn:
        await holds.hold_account(conn, who.organization_id, who.account_id, seconds=60, reason="test", by_status=True)
    for line in (who.number_id, *others):
        for n in range(4):
            id = await message(pool, who, to=f"+25884{n}{line.int % 1_000_000:06}", line=line)
            await pool.execute("UPDATE whatsapp_messages SET number_id = $2 WHERE id = $1", id, line)
    assert await workers.round() == []
    await workers.later(61)
    (tries,) = await workers.round(5)
    assert await pool.fetchval("SELECT trying_id FROM whatsapp_accounts") == tries


@pytest.mark.parametrize("what", ["answer", "status", "message"])
async def test_conversations_are_locked_before_the_accounts_and_numbers_whose_hold_a_probe_decides(
    pool: Pool, what: str
) -> None:
    """A batch of callbacks locks them in this order, or the two wait for each other."""
    who, workers, meta = await workers_of(pool, 1)
    (bench,) = workers.benches
    async with pool.acquire() as conn:
        await holds.hold_account(conn, who.organization_id, who.account_id, seconds=60, reason="test", by_status=True)
        await holds.hold_number(conn, who.organization_id, who.number_id, seconds=60, reason="test", by_status=True)
    await workers.round()
    id = await message(pool, who)
    await workers.later(61)
    bench.only.script = lambda submission: None
    assert await workers.round(5) == [id]
    (submission,) = bench.only.submitted
    if what != "answer":
        bench.answer(submission, accept_all(submission))
        await bench.settle()

    async def works() -> None:
        if what == "answer":
            bench.answer(submission, fault(131047))
            await bench.settle()
        elif what == "status":
            await meta.say(who, status_update(who, id, "failed", 131047))
        else:
            await meta.say(who, status_update(who, id, "sent"), heard(who))

    async with pool.acquire() as conn, conn.transaction():
        await conn.execute("SELECT FROM whatsapp_conversations FOR UPDATE")
        done = await begun(pool, works())
        assert not done.done()
        await conn.execute("SELECT FROM whatsapp_accounts FOR NO KEY UPDATE NOWAIT")
        await conn.execute("SELECT FROM whatsapp_numbers FOR NO KEY UPDATE NOWAIT")
    await done
    assert await pool.fetchval("SELECT trying_id FROM whatsapp_accounts") is None
    assert await pool.fetchval("SELECT trying_id FROM whatsapp_numbers") is None


async def test_a_round_that_waits_for_a_wallet_keeps_nobody_from_its_account(pool: Pool) -> None:
    """Recording locks a wallet before an account, and dispatch must do the same, or the two wait for each other."""
    other = await made(pool)
    who, workers, _ = await workers_of(pool, 1)
    async with pool.acquire() as conn:
        await holds.hold_account(conn, who.organization_id, who.account_id, seconds=60, reason="test", by_status=True)
    assert await workers.round() == []
    over = await message(pool, other, to="+258840000001", deadline=timedelta(seconds=30))
    tries = await message(pool, who, to="+258840000002")
    await workers.later(61)
    async with pool.acquire() as conn:
        async with conn.transaction():
            await conn.execute("SELECT FROM wallets FOR UPDATE")
            round = asyncio.create_task(workers.round(5))

            async def waits() -> bool:
                return bool(await pool.fetchval(WAITING, await conn.fetchval("SELECT pg_backend_pid()")))

            await until_true(waits)
            await conn.execute("SELECT FROM whatsapp_accounts FOR UPDATE NOWAIT")
        assert await round == [tries]
    assert await status_of(pool, over) == ("failed", "expired", "released")
    assert await pool.fetchval("SELECT trying_id FROM whatsapp_accounts WHERE id = $1", who.account_id) == tries


async def test_a_try_that_fails_for_its_own_sake_is_followed_by_the_next_at_once(pool: Pool) -> None:
    """Nor does one without any status block the account for ever."""
    who, workers, meta = await workers_of(pool, 1)
    async with pool.acquire() as conn:
        await holds.hold_number(conn, who.organization_id, who.number_id, seconds=60, reason="test", by_status=True)
    for n in range(6):
        await message(pool, who, to=f"+25884000000{n}")
    await workers.later(61)
    (first,) = await workers.round(4)
    await meta.say(who, status_update(who, first, "failed", 131026))
    (second,) = await workers.round(4)
    # The response refuses it, because of the message itself.
    bench = workers.benches[0]
    await workers.later(holds.UNHEARD + 1)
    bench.only.script = lambda submission: fault(131009)
    (third,) = await workers.round(1)
    bench.only.script = accept_all
    assert (await status_of(pool, third))[0] == "failed"
    (fourth,) = await workers.round(4)
    # A late status of an earlier one says nothing about now.
    await meta.say(who, status_update(who, second, "sent"))
    assert await workers.round(3) == []
    await meta.say(who, status_update(who, fourth, "read"))
    assert len(await workers.round(3)) == 2
    assert await pool.fetchval("SELECT held_until FROM whatsapp_numbers") is None


@pytest.mark.parametrize("by_status", [False, True])
async def test_a_try_whose_answer_is_lost_is_followed_by_the_next_in_ten_seconds(pool: Pool, by_status: bool) -> None:
    """The connection breaks once the message has been sent. The number must not be silent for as long as an accepted
    message's status may take."""
    who, workers, meta = await workers_of(pool, 1)
    async with pool.acquire() as conn:
        ids = who.organization_id, who.number_id
        await holds.hold_number(conn, *ids, seconds=60, reason="test", by_status=by_status)
    for n in range(6):
        await message(pool, who, to=f"+25884000000{n}")
    bench = workers.benches[0]
    bench.only.script = lambda submission: UNKNOWN
    await workers.later(61)
    (first,) = await workers.round(4)
    # A status of it may still arrive, so the next one is not sent at once.
    assert await pool.fetchval("SELECT trying_id FROM whatsapp_numbers") == first
    await workers.later(holds.UNUSED + 1)
    (second,) = await workers.round(4)
    await meta.say(who, status_update(who, second, "sent"))
    assert await pool.fetchval("SELECT held_until FROM whatsapp_numbers") is None
    bench.only.script = accept_all
    assert len(await workers.round(3)) == 4


async def test_a_hold_that_is_over_is_tried_though_the_clock_was_set_back(pool: Pool) -> None:
    """A try that had begun before used to stop all others for as long as the clock had been ahead."""
    who, workers, _ = await workers_of(pool, 1)
    async with pool.acquire() as conn:
        await holds.hold_number(conn, who.organization_id, who.number_id, seconds=60, reason="test")
    await workers.later(61)
    await pool.execute("UPDATE whatsapp_numbers SET trying_at = now() + interval '1 hour'")
    id = await message(pool, who)
    assert await workers.round(3) == [id]


async def test_a_fault_that_an_answer_told_is_over_when_an_answer_says_so(pool: Pool) -> None:
    who, workers, _ = await workers_of(pool, 1)
    bench = workers.benches[0]
    bench.only.script = lambda submission: fault(UNPAID)
    id = await message(pool, who)
    await workers.round(1)
    assert await queued(pool, id)
    await workers.later(601)
    bench.only.script = accept_all
    await workers.round(2)
    assert (await attempts(pool, id))[-1] == (2, "accepted")
    assert (await pool.fetchrow(STANDING))["held_until"] is None


async def test_a_number_whose_messages_are_sent_is_not_held_back(pool: Pool) -> None:
    who, workers, meta = await workers_of(pool, 1)
    for n in range(40):
        await message(pool, who, to=f"+2588400000{n:02}")
    first = await workers.round(2)
    assert len(first) == FEW
    await meta.say(who, status_update(who, first[0], "sent"))
    await workers.round(2)
    assert len(workers.out) == 40


async def test_a_hold_that_is_shortened_is_shortened_for_connectors_too(pool: Pool) -> None:
    """They never shorten one by themselves."""
    who = await made(pool)
    client = CloudClient("http://127.0.0.1:1")
    lines = NumberPool(
        pool,
        factory=lambda line, shown, ended: CloudConnector(client, line.graph_id, shown, ended),
        unseal=lambda line: credential("t", b"s"),
        on_outcome=lambda *_: None,
        on_early=lambda _: asyncio.sleep(0),
    )
    async with pool.acquire() as conn:
        await holds.hold_account(conn, who.organization_id, who.account_id, seconds=600, reason="test")
    await lines.refresh(grace=1.0)
    slot = lines.slots()[who.number_id]
    assert (slot.held, slot.capacity()) == (True, 0)
    await pool.execute("UPDATE whatsapp_accounts SET held_until = now()")
    await lines.refresh(grace=1.0)
    assert (slot.held, slot.capacity()) == (True, 1)
    # Also if it began and was shortened between two readings of the table.
    await pool.execute("UPDATE whatsapp_accounts SET held_until = NULL")
    await lines.refresh(grace=1.0)
    assert slot.connector.capacity() > 1
    slot.connector.hold(600)  # by an answer
    await pool.execute("UPDATE whatsapp_numbers SET held_until = now()")
    await lines.refresh(grace=1.0)
    assert (slot.held, slot.capacity()) == (True, 1)
    await lines.stop(grace=1.0)
    await client.close()


async def test_a_new_token_that_cannot_be_decrypted_stops_its_account_alone(pool: Pool) -> None:
    """Another worker may have the key with which it was sealed."""
    both = [await made(pool), await made(pool)]
    made_of: dict[bytes, Scripted] = {}

    def unseal(line: SendingNumber) -> Credential:
        if line.token == b"broken":
            raise ValueError("the secret key is another one")
        return credential(line.token.hex(), line.app_secret)

    lines = NumberPool(
        pool,
        factory=lambda line, shown, ended: made_of.setdefault(line.token, Scripted(ended)),
        unseal=unseal,
        on_outcome=lambda *_: None,
        on_early=lambda _: asyncio.sleep(0),
    )
    for n, who in enumerate(both):
        await pool.execute("UPDATE whatsapp_accounts SET token = $2 WHERE id = $1", who.account_id, b"old%d" % n)
    await lines.refresh(grace=1.0)
    await pool.execute("UPDATE whatsapp_accounts SET token = 'broken'")
    await pool.execute("UPDATE whatsapp_accounts SET token = 'new' WHERE id = $1", both[1].account_id)
    await lines.refresh(grace=1.0)
    assert set(lines.slots()) == {both[1].number_id}
    assert made_of[b"old1"].token == b"new".hex()
    await pool.execute("UPDATE whatsapp_accounts SET token = 'mended' WHERE id = $1", both[0].account_id)
    await lines.refresh(grace=1.0)
    assert set(lines.slots()) == {who.number_id for who in both}
    assert not made_of[b"mended"].stopped
    await lines.stop(grace=1.0)


async def test_a_worker_that_was_told_to_drain_or_is_gone_has_no_share_of_a_numbers_rate(pool: Pool) -> None:
    """Messages that it would not send are left to the others."""
    insert = (
        "INSERT INTO workers (id, name, started_at, seen_at, drain) VALUES ($1, $2, now(), now() - $3::interval, $4)"
    )
    for name, ago, drain in (("one", 0, None), ("two", 10, None), ("three", 0, "stay"), ("four", 20, None)):
        await pool.execute(insert, uuid7(), name, timedelta(seconds=ago), drain)
    async with pool.acquire() as conn:
        assert await live_workers(conn) == 2


async def test_what_an_operator_releases_begins_with_a_few(pool: Pool) -> None:
    who, workers, _ = await workers_of(pool, 1)
    async with pool.acquire() as conn:
        await holds.hold_number(conn, who.organization_id, who.number_id, seconds=60, reason="test", by_status=True)
        await holds.hold_account(conn, who.organization_id, who.account_id, seconds=600, reason="test", by_status=True)
    for n in range(10):
        await message(pool, who, to=f"+25884000000{n}")
    assert await workers.round() == []
    workers.benches[0].only.hold(3600)  # the connector may know of a fault that the table no longer has
    async with pool.acquire() as conn:
        assert await holds.release_account(conn, who.organization_id, who.account_id)
        assert not await holds.release_account(conn, who.organization_id, who.account_id)
        assert not await holds.release_number(conn, who.organization_id, who.number_id)
    assert len(await workers.round()) == FEW


def test_silence_stops_nobody_for_long() -> None:
    now = [0.0]
    probe = Probe(lambda: now[0])
    left = 0

    def send() -> int:
        count = 0
        while (room := probe.room(1)) is not None and room > 0:
            probe.took()
            count += 1
        return count

    for doubling in range(DOUBLINGS):
        left += send()
        assert left == FEW * 2**doubling
        now[0] += DOUBLES
    assert probe.room(1) is None
    probe.took()
    # After a pause, and after a success, it starts slowly again.
    now[0] += 61.0
    assert probe.room(1) == FEW
    probe.took()
    probe.heard()
    assert probe.room(1) == FEW
    assert probe.room(100) == 1
