"""The guard at acceptance and in a worker: suspicious messages wait, are shown, released or withdrawn; others pass."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations, spending
from heliograph.accounts.organizations import DestinationNotAllowed
from heliograph.accounts.spending import SpendLimitReached
from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from heliograph.guard import holds, rules, sharing
from heliograph.guard.book import ChallengeRequired, DestinationSuspicious
from heliograph.guard.judging import Judge, Outgoing
from heliograph.guard.sharing import Shared
from heliograph.privacy import erasure
from heliograph.queue import holds as queue_holds
from heliograph.queue.backlog import Backlog
from heliograph.queue.holds import Selection
from heliograph.queue.leases import BULK, GUARDED
from heliograph.queue.work import SharedTimer
from heliograph.sms import checks, conversions, timeline
from heliograph.sms.accepting import preview
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.dispatch import held
from heliograph.sms.work import SmsWork
from tests.rules.dispatching import Bench
from tests.rules.factories import endpoint, message, organization, send, status_of

#: A block of ten thousand, and one far from it.
BLOCK, ELSEWHERE = "25884123", "25886765"


async def organization_with_policy(pool: Pool, policy: str | None = "hold", safe: tuple[str, ...] = ()) -> Actor:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await rules.configure(conn, actor.organization_id, policy=policy, safe=safe)
    return actor


async def attack(pool: Pool, actor: Actor, count: int, *, first: int = 0, **values: Any) -> list[UUID]:
    """Messages to consecutive numbers."""
    return [await message(pool, actor, to=f"+{BLOCK}{first + n:04}", **values) for n in range(count)]


async def waiting(pool: Pool) -> set[UUID]:
    return {row["id"] for row in await pool.fetch("SELECT id FROM queue WHERE line = $1", GUARDED)}


# Move a message, and the hold that applies to it, into the past.
PASSED = """
WITH message AS (
    UPDATE messages SET accepted_at = accepted_at - $2::interval, expires_at = expires_at - $2::interval WHERE id = $1
), held AS (
    UPDATE guard_held SET held_at = held_at - $2::interval WHERE message_id = $1
)
UPDATE queue SET due_at = due_at - $2::interval WHERE id = $1
"""
DAY, TEN_MINUTES = timedelta(days=1), timedelta(minutes=10)


async def listed(pool: Pool) -> list[holds.Hold]:
    async with pool.acquire() as conn:
        return await holds.list_all(conn)


async def test_a_sequence_is_held_and_others_go_out(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    ids = await attack(pool, actor, 12)
    honest = [await message(pool, actor, to=f"+{ELSEWHERE}{n * 1111:04}") for n in range(4)]
    await bench.round(4)
    (hold,) = await listed(pool)
    assert (hold.range, hold.kind, hold.policy) == (BLOCK, "block", "hold")
    assert {"neighbours", "thousand_full"} <= set(hold.rules)
    assert hold.until - hold.begun_at == timedelta(minutes=15)
    stopped = await waiting(pool)
    assert stopped == set(ids[4:]), "the first four were not enough to tell"
    assert (hold.met, hold.waiting) == (8, 8)
    assert [await status_of(pool, id) for id in honest] == ["sent"] * 4
    assert {await status_of(pool, id) for id in stopped} == {"accepted"}
    # The next message meets the same hold, in another worker as well.
    bench.restart()
    (later,) = await attack(pool, actor, 1, first=700)
    await bench.round(2)
    assert later in await waiting(pool)
    assert len(await listed(pool)) == 1


async def test_what_is_held_while_its_organization_is_being_resumed_stays_held(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    await attack(pool, actor, 12)
    await bench.round(4)
    (later,) = await attack(pool, actor, 1, first=700)
    async with pool.acquire() as conn:
        await organizations.set_state(conn, id=actor.organization_id, state="suspended")
        async with conn.transaction():
            await organizations.resume(conn, id=actor.organization_id)
            await bench.round(2)
    assert later in await waiting(pool)
    assert await pool.fetchval("SELECT due_at > now() + interval '1 year' FROM queue WHERE id = $1", later)


async def test_it_is_seen_with_its_reason(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    ids = await attack(pool, actor, 6)
    await bench.round(2)
    async with pool.acquire() as conn:
        told = await timeline.of_message(conn, id=ids[-1])
        (entry,) = [entry for entry in told.entries if entry.what == "held"]
        assert "numbers of one block" in entry.detail["because"]
        assert entry.detail["range"] == BLOCK
        warned = [check for check in await checks.run(conn, Settings()) if check.check == "guard"]
        assert [check.state for check in warned] == ["warning"]


async def test_what_is_released_goes_out_and_its_range_is_left_alone(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    ids = await attack(pool, actor, 8)
    await bench.round(2)
    (hold,) = await listed(pool)
    async with pool.acquire() as conn:
        released, queued = await holds.release(conn, hold.id)
        assert (released.waiting, queued, released.released_at is not None) == (0, 4, True)
        with pytest.raises(NotFound):
            await holds.release(conn, UUID(int=5))
    bench.restart()
    ids += await attack(pool, actor, 5, first=500)
    await bench.round(4)
    assert {await status_of(pool, id) for id in ids} == {"sent"}
    assert len(await listed(pool)) == 1
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'guard.released'") == 1
    async with pool.acquire() as conn:
        told = [entry.what for entry in (await timeline.of_message(conn, id=ids[7])).entries]
        assert told.index("held") < told.index("released")


async def test_a_hold_is_released_in_steps(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million messages in one statement took longer than a statement may, so they could never be released."""
    monkeypatch.setattr(holds, "BATCH", 2)
    bench, actor = Bench(pool), await organization_with_policy(pool)
    ids = await attack(pool, actor, 9)
    await bench.round(2)
    assert len(await waiting(pool)) == 5
    (hold,) = await listed(pool)
    async with pool.acquire() as conn:
        ended, count = await holds.release(conn, hold.id, by=actor.principal)
        assert (ended.waiting, ended.released_at is not None, count) == (0, True, 5)
        assert await holds.release(conn, hold.id, by=actor.principal) == (ended, 0)
    said = await pool.fetch("SELECT after FROM audit_log WHERE action = 'guard.released' ORDER BY id")
    assert [msgspec.json.decode(row["after"])["messages"] for row in said] == [2, 2, 1, 0]
    assert await waiting(pool) == set()
    await bench.round(2)
    assert [await status_of(pool, id) for id in ids] == ["sent"] * 9


async def test_what_is_withdrawn_is_canceled_and_costs_nothing(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    ids = await attack(pool, actor, 9)
    await bench.round(2)
    used = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id)
    (hold,) = await listed(pool)
    async with pool.acquire() as conn:
        assert await held.withdraw(conn, hold.id, at=clock.now(), by=actor.principal) == 5
        assert (await holds.get(conn, hold.id)).waiting == 0
    assert [await status_of(pool, id) for id in ids] == ["sent"] * 4 + ["canceled"] * 5
    left = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id)
    assert left == used - 5


async def test_what_is_held_past_its_deadline_expires(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    await endpoint(pool, actor, "message.failed")
    ids = await attack(pool, actor, 7)
    (short,) = await attack(pool, actor, 1, first=7, expires_at=clock.now() + 6 * TEN_MINUTES)
    (code,) = await attack(pool, actor, 1, first=8, traffic_class="otp")
    await bench.round(2)
    stopped = await waiting(pool)
    assert {ids[-1], short, code} < stopped
    async with pool.acquire() as conn, conn.transaction():
        for id, after, early in ((ids[-1], DAY, TEN_MINUTES), (short, 6 * TEN_MINUTES, TEN_MINUTES)):
            await conn.execute(PASSED, id, after - early)
            assert await held.expire(conn) == 0
            await conn.execute(PASSED, id, early)
            assert await held.expire(conn) == 1
        assert await conn.fetchval(f"SELECT {held.ANY}")
        await conn.execute(PASSED, code, TEN_MINUTES - timedelta(minutes=1))
        assert await held.expire(conn) == 0
        await conn.execute(PASSED, code, timedelta(minutes=1))
        assert await held.expire(conn) == 1
    assert [await status_of(pool, id) for id in (ids[-1], short, code)] == ["expired"] * 3
    assert await waiting(pool) == stopped - {ids[-1], short, code}


# What a session has read is known at once only within its transaction.
READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::int FROM pg_stat_xact_user_tables
 WHERE relname = 'queue' OR relname = 'guard_held' OR relname LIKE 'messages\\_%'
"""


@pytest.mark.fresh_database
async def test_messages_whose_time_has_not_come_are_not_read_to_find_those_that_expire(pool: Pool) -> None:
    """Three hundred thousand held messages used to take two seconds of every five."""
    bench, actor = Bench(pool), await organization_with_policy(pool)
    past = (await attack(pool, actor, 60))[-1]
    await bench.round(2)
    assert len(await waiting(pool)) > 50
    async with pool.acquire() as conn, conn.transaction():
        before = await conn.fetchval(READ)
        await held.expire(conn)
        assert await conn.fetchval(READ) == before
        await conn.execute(PASSED, past, DAY)
        before = await conn.fetchval(READ)
        await held.expire(conn)
        assert await conn.fetchval(READ) - before < 20
    assert await status_of(pool, past) == "expired"


async def test_the_deliveries_of_what_expires_are_announced(pool: Pool) -> None:
    """Otherwise its webhook would wait until the queue is polled."""
    bench, actor, deliveries = Bench(pool), await organization_with_policy(pool), Announced()
    await endpoint(pool, actor, "message.failed")
    past = (await attack(pool, actor, 8))[-1]
    await bench.round(2)
    await pool.execute(PASSED, past, DAY)
    work = SmsWork(pool, Settings(), uuid7(), deliveries, Backlog())
    (timer,) = [each for each in work.timers() if each.name == "held"]
    assert isinstance(timer, SharedTimer)
    async with pool.acquire() as conn, conn.transaction():
        await timer.step(conn)
    assert deliveries.count == 1


class Announced:
    """Counts announcements."""

    count = 0

    def queued(self) -> None:
        self.count += 1

    def handover(self) -> None:
        return None


async def test_what_the_guard_held_before_a_restore_waits_for_the_operators_decision(pool: Pool) -> None:
    """It may have been released and sent after the backup was taken."""
    bench, actor = Bench(pool), await organization_with_policy(pool)
    past = (await attack(pool, actor, 8))[-1]
    await bench.round(2)
    await pool.execute(PASSED, past, DAY)
    async with pool.acquire() as conn:
        await queue_holds.hold(conn, Selection(), reason="restored", restored=True)
        await held.expire(conn)
        assert await status_of(pool, past) == "accepted"
        await queue_holds.release(conn, Selection())
        await held.expire(conn)
    assert await status_of(pool, past) == "expired"


async def test_a_new_organization_is_only_watched(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool, policy=None)
    ids = await attack(pool, actor, 8)
    await bench.round(2)
    assert {await status_of(pool, id) for id in ids} == {"sent"}
    (hold,) = await listed(pool)
    assert (hold.policy, hold.met, hold.waiting) == ("monitor", 4, 0)
    await pool.execute("UPDATE organizations SET created_at = now() - interval '15 days'")
    async with pool.acquire() as conn:
        now = await rules.rules_of(conn, actor.organization_id)
        assert (now.policy, now.by_default) == ("hold", True)
    (later,) = await attack(pool, actor, 1, first=300)
    await bench.round(2)
    assert await waiting(pool) == {later}


async def acquainted(pool: Pool, actor: Actor, numbers: Sequence[str]) -> None:
    """Make these numbers contacts."""
    await pool.execute(
        "INSERT INTO contacts (organization_id, id, name, phone, created_at, updated_at)"
        " SELECT $1, gen_random_uuid(), 'X', number, now(), now() FROM unnest($2::text[]) AS number",
        actor.organization_id,
        numbers,
    )


async def test_whom_the_organization_knows_is_never_held(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    await acquainted(pool, actor, [f"+{BLOCK}{n:04}" for n in range(12)])
    ids = await attack(pool, actor, 12)
    await bench.round(2)
    assert {await status_of(pool, id) for id in ids} == {"sent"}
    assert await listed(pool) == []
    # There are too many strangers in the same block now; the contacts among them still get their messages.
    strangers = await attack(pool, actor, 40, first=5000)
    bench.restart()
    ids = await attack(pool, actor, 3)
    await bench.round(4)
    assert {await status_of(pool, id) for id in ids} == {"sent"}
    assert await waiting(pool) < set(strangers)
    assert len(await waiting(pool)) > 30


async def test_whom_the_organization_knows_in_another_spelling_is_never_held(pool: Pool) -> None:
    """Clients send to numbers as they have them, such as without Brazil's ninth digit."""
    bench, actor = Bench(pool), await organization_with_policy(pool)
    await acquainted(pool, actor, [f"+551198123{n:04}" for n in range(12)])
    ids = [await message(pool, actor, to=f"+55118123{n:04}") for n in range(12)]
    await bench.round(2)
    assert {await status_of(pool, id) for id in ids} == {"sent"}
    assert await listed(pool) == []
    strangers = [await message(pool, actor, to=f"+55118123{n:04}") for n in range(5000, 5040)]
    bench.restart()
    ids = [await message(pool, actor, to=f"+55118123{n:04}") for n in range(3)]
    await bench.round(4)
    assert {await status_of(pool, id) for id in ids} == {"sent"}
    assert len(await waiting(pool) & {*strangers}) > 30
    async with pool.acquire() as conn:
        for number, is_known in (("+551181230000", True), ("+551181235000", False)):
            assert await holds.is_known(conn, actor.organization_id, number) == is_known
            met = await holds.of_number(conn, actor.organization_id, number, "otp")
            assert [policy for policy, _ in met] == ([] if is_known else ["hold"]), number


async def test_each_of_several_blocks_is_judged_by_its_own_people(pool: Pool) -> None:
    bench, actor, other = Bench(pool), await organization_with_policy(pool), await organization_with_policy(pool)
    await acquainted(pool, actor, [f"+{ELSEWHERE}{n:04}" for n in range(12)])
    known = [await message(pool, actor, to=f"+{ELSEWHERE}{n:04}") for n in range(12)]
    strangers = await attack(pool, actor, 12)
    # The first organization's contacts are not this one's.
    others = [await message(pool, other, to=f"+{ELSEWHERE}{n:04}") for n in range(12)]
    await bench.round(2)
    assert {await status_of(pool, id) for id in known} == {"sent"}
    held = await waiting(pool)
    assert held < {*strangers, *others}
    assert {(one.organization_id, one.range) for one in await listed(pool)} == {
        (actor.organization_id, BLOCK),
        (other.organization_id, ELSEWHERE),
    }


async def test_safe_ranges_campaigns_and_repetitions_of_one_message(pool: Pool) -> None:
    bench = Bench(pool)
    safe = await organization_with_policy(pool, safe=("+2588412",))
    ids = await attack(pool, safe, 12)
    lists = await organization_with_policy(pool)
    ids += [await message(pool, lists, to=f"+{BLOCK}{n:04}", lane=BULK) for n in range(12)]
    await bench.round(3)
    assert {await status_of(pool, id) for id in ids} == {"sent"}
    assert await listed(pool) == []
    async with pool.acquire() as conn:
        for wrong in ("258", "25884x", "2588412345678901"):
            with pytest.raises(Invalid):
                await rules.configure(conn, safe.organization_id, safe=[wrong])
        with pytest.raises(Invalid):
            await rules.configure(conn, safe.organization_id, policy="forget")
        kept = await rules.configure(conn, safe.organization_id, policy="refuse")
        assert (kept.policy, kept.safe) == ("refuse", ["2588412"])


async def test_a_range_that_comes_back_is_held_for_longer(pool: Pool) -> None:
    actor = await organization_with_policy(pool)
    found = [holds.Found(actor.organization_id, BLOCK, "block", ("thousand_full",), 70)]
    async with pool.acquire() as conn:
        for minutes in (15, 30, 60, 120, 240, 480, 720, 720):
            assert len(await holds.begin(conn, found)) == 1
            assert await holds.begin(conn, found) == {}, "it is held already"
            hold = (await holds.list_all(conn))[0]
            assert hold.until - hold.begun_at == timedelta(minutes=minutes)
            await conn.execute("UPDATE guard_holds SET until = now()")


async def test_what_was_found_before_the_clock_was_set_back_neither_stands_nor_keeps_it_from_being_found_again(
    pool: Pool,
) -> None:
    """A hold of a quarter of an hour used to last, or to leave its range alone, for as long as the clock was ahead."""
    actor, shared, ahead = await organization_with_policy(pool, "refuse"), Shared(), "+ interval '30 days'"
    found = [holds.Found(actor.organization_id, BLOCK, "block", ("thousand_full",), 70)]
    shared.saw(actor.organization_id, f"+{BLOCK}0001", "otp", 1)
    await shared.tell(pool)
    await pool.execute(
        "INSERT INTO guard_conversions (organization_id, message_id, recipient, mode, converted_at)"
        " VALUES ($1, gen_random_uuid(), '+258840000000', 'live', now())",
        actor.organization_id,
    )
    async with pool.acquire() as conn:

        async def known() -> list[bool]:
            return [
                bool(await holds.standing(conn)),
                bool(await holds.refusing(conn)),
                bool(await holds.of_number(conn, actor.organization_id, f"+{BLOCK}0001", "otp")),
                bool(await holds.converted(conn, since=None)),
                bool(await Shared().hear(conn)),
            ]

        await holds.begin(conn, found)
        assert await known() == [True] * 5
        await conn.execute(f"UPDATE guard_holds SET begun_at = begun_at {ahead}, until = until {ahead}")
        await conn.execute(f"UPDATE guard_conversions SET converted_at = converted_at {ahead}")
        await conn.execute(f"UPDATE guard_seen SET at = at {ahead}")
        assert await known() == [False] * 5
        assert not (await holds.list_all(conn))[0].stands
        assert len(await holds.begin(conn, found)) == 1
        assert await holds.begin(conn, found) == {}
        later, hold = sorted(await holds.list_all(conn), key=lambda one: one.begun_at, reverse=True)
        assert hold.until - hold.begun_at == timedelta(minutes=15)
        assert later.begun_at - hold.begun_at > timedelta(days=29)


async def test_a_worker_goes_on_reading_after_the_clock_was_set_back(pool: Pool) -> None:
    """What other workers saw, and what converted, used to pass it by for as long as the clock had been ahead: an attack
    spread over workers went out, and codes that were entered counted as if they were not."""
    actor, judge, other = await organization_with_policy(pool), Judge(), Shared()
    judge._converted_until = judge._shared._until = clock.now() + timedelta(hours=1)
    other.saw(actor.organization_id, f"+{BLOCK}0001", "otp", 1)
    await other.tell(pool)
    await pool.execute(
        "INSERT INTO guard_conversions (organization_id, message_id, recipient, mode, converted_at)"
        " VALUES ($1, gen_random_uuid(), '+258840000000', 'live', now())",
        actor.organization_id,
    )
    async with pool.acquire() as conn, conn.transaction():
        await judge.judge(conn, [], at=clock.now())
    assert len(judge._windows) == 1
    assert list(judge._conversions._of) == [actor.organization_id]


async def test_who_chose_so_is_refused_at_the_door(pool: Pool) -> None:
    for policy, refusal in (("refuse", DestinationSuspicious), ("ask", ChallengeRequired)):
        actor = await organization_with_policy(pool, policy=policy)
        other = await organization_with_policy(pool, policy="hold")
        async with pool.acquire() as conn:
            for organization_id in (actor.organization_id, other.organization_id):
                found = [holds.Found(organization_id, BLOCK, "block", ("thousand_full",), 70)]
                await holds.begin(conn, found)
            (hold,) = [one for one in await holds.list_all(conn) if one.organization_id == actor.organization_id]
        acceptor = Acceptor(pool)
        await acceptor._suspicious.read()
        used = await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id)
        with pytest.raises(refusal) as refused:
            await acceptor.accept(send(actor, to=f"+{BLOCK}9999", key_name="k"))
        assert refused.value.status == 403
        assert refused.value.details == {"until": clock.iso(hold.until)}
        assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id) == used
        assert (await acceptor.accept(send(actor, to=f"+{ELSEWHERE}9999", key_name="k"))).status == 202
        assert (await acceptor.accept(send(other, to=f"+{BLOCK}9999"))).status == 202
        async with pool.acquire() as conn:
            await rules.configure(conn, actor.organization_id, safe=[BLOCK])
        assert (await acceptor.accept(send(actor, to=f"+{BLOCK}9998"))).status == 202
        await acceptor.drain()


async def test_an_erased_person_is_in_no_hold(pool: Pool) -> None:
    actor = await organization_with_policy(pool, safe=(f"{BLOCK}0001", f"{BLOCK}0002"))
    async with pool.acquire() as conn:
        found = [holds.Found(actor.organization_id, f"{BLOCK}000{n}", "number", ("same_number",), 70) for n in (3, 4)]
        await holds.begin(conn, found)
        await erasure.erase(conn, actor, address=f"+{BLOCK}0001")
        await erasure.erase(conn, actor, address=f"+{BLOCK}0003")
        assert (await rules.rules_of(conn, actor.organization_id)).safe == [f"{BLOCK}0002"]
        assert [one.range for one in await holds.list_all(conn)] == [f"{BLOCK}0004"]


async def test_codes_that_nobody_enters_are_noticed(pool: Pool) -> None:
    """One message every two minutes to a block, none of which is converted, while most others are."""
    actor, judge, now = await organization_with_policy(pool), Judge(), clock.now()
    honest = [f"+25885{n * 37 % 1000:03}{n:04}" for n in range(120)]
    ids = [await message(pool, actor, to=to) for to in honest]
    async with pool.acquire() as conn, conn.transaction():

        async def judged(to: str, minutes: float) -> bool:
            at = now - timedelta(minutes=minutes)
            outgoing = Outgoing(actor.organization_id, uuid7(), to, "otp")
            return bool(await judge.judge(conn, [outgoing], at=at))

        await conversions.convert(conn, actor, id=ids[0])  # from the first report on, messages are remembered
        for n, to in enumerate(honest):
            assert not await judged(to, 55 - n / 120)
        for n in range(25):
            assert not await judged(f"+{BLOCK}{n * 1777 % 10_000:04}", 54 - 2 * n)
        assert not await judged(f"+{BLOCK}9999", 2), "nothing but the first was reported yet"
        for id in ids[::4] + ids[1::4] + ids[2::4]:
            first = await conversions.convert(conn, actor, id=id)
            assert await conversions.convert(conn, actor, id=id) == first
        for who in (msgspec.structs.replace(actor, mode="test"), await organization(pool)):
            with pytest.raises(NotFound):
                await conversions.convert(conn, who, id=ids[0])
        judge.refresh()
        assert await judged(f"+{BLOCK}9998", 0)
        (hold,) = await holds.list_all(conn)
        assert (hold.range, hold.rules) == (BLOCK, ["conversion"])
        assert not await judged(honest[0], 0)


async def test_conversions_are_read_up_to_the_latest_however_many_there_are(pool: Pool) -> None:
    """More than 5000 within the seconds that are read again used to keep a worker from all later ones."""
    actor, judge = await organization_with_policy(pool), Judge()

    async def converts(count: int, since: float) -> None:
        await pool.execute(
            "INSERT INTO guard_conversions (organization_id, message_id, recipient, mode, converted_at)"
            " SELECT $1, gen_random_uuid(), '+25884' || n, 'live', now() - make_interval(secs => $3 - n * 0.0001)"
            " FROM generate_series(1, $2::int) AS n",
            actor.organization_id,
            count,
            since,
        )

    async def last() -> Any:
        return await pool.fetchval("SELECT max(converted_at) FROM guard_conversions")

    async def read() -> Any:
        judge.refresh()
        async with pool.acquire() as conn, conn.transaction():
            await judge.judge(conn, [], at=clock.now())
        return judge._converted_until

    await converts(6000, 60)
    assert await read() == await last()
    await converts(6000, 59)
    assert await read() == await last()
    # It never goes back, even if the latest are erased.
    before = await last()
    await pool.execute("DELETE FROM guard_conversions WHERE converted_at > $1::timestamptz - interval '1 ms'", before)
    assert await read() == before
    async with pool.acquire() as conn:
        newest = await holds.converted(conn, since=None, limit=10)
    assert [at for *_, at in newest] == sorted(at for *_, at in newest)
    assert (len(newest), newest[-1][2]) == (10, await last())


async def test_messages_that_were_committed_together_are_several_to_their_number(pool: Pool) -> None:
    """A burst to one number shares its commits, and so its times of acceptance."""
    actor, bench, to = await organization_with_policy(pool), Bench(pool), f"+{ELSEWHERE}0001"
    ids = [await message(pool, actor, to=to) for _ in range(20)]
    await pool.execute("UPDATE messages SET accepted_at = (SELECT min(accepted_at) FROM messages)")
    await bench.round(3)
    (hold,) = await listed(pool)
    assert (hold.kind, hold.rules) == ("number", ["same_number"])
    assert await waiting(pool) == set(ids[9:])


async def test_workers_see_together_what_each_sees_a_part_of(pool: Pool) -> None:
    """A sequence whose numbers are divided between two workers, and the restart of one of them."""
    actor, first, second, now = await organization_with_policy(pool), Judge(), Judge(), clock.now()

    async def judged(judge: Judge, n: int) -> bool:
        judge.refresh()
        async with pool.acquire() as conn, conn.transaction():
            # Three apart: only the block of a thousand is unusual.
            outgoing = Outgoing(actor.organization_id, uuid7(), f"+{BLOCK}{n * 13:04}", "otp")
            held = bool(await judge.judge(conn, [outgoing], at=now))
        await judge.share(pool)
        return held

    found = [await judged((first, second)[n % 2], n) for n in range(12)]
    assert found == [False] * 9 + [True] * 3, "as one worker finds it that sees everything"
    (hold,) = await listed(pool)
    assert "thousand_full" in hold.rules
    assert await pool.fetchval("SELECT sum(cardinality(numbers)) FROM guard_seen") == 12

    other = await organization_with_policy(pool)
    actor = other
    assert not any([await judged(first, n) for n in range(9)])
    assert await judged(Judge(), 9), "one that starts knows what went out before"
    # If there is nothing to report, there is no statement, and no row.
    rows = await pool.fetchval("SELECT count(*) FROM guard_seen")
    await first.share(pool)
    assert await pool.fetchval("SELECT count(*) FROM guard_seen") == rows
    # What is older than the windows reports nothing, and is removed.
    await pool.execute("UPDATE guard_seen SET at = at - interval '12 minutes'")
    actor = await organization_with_policy(pool)
    assert not await judged(Judge(), 10)
    assert await pool.fetchval("SELECT count(*) FROM guard_seen") == 1


async def test_a_worker_hears_no_more_than_its_windows_hold(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MOST", 5)
    actor, first, second = await organization_with_policy(pool), Shared(), Shared()
    for n in range(4):
        for m in range(2):
            first.saw(actor.organization_id, f"+{BLOCK}{n}00{m}", "otp", n * 1000 + m)
        await first.tell(pool)
    async with pool.acquire() as conn:
        heard = [seen.to for seen in await second.hear(conn)]
        assert heard == [f"+{BLOCK}{n}00{m}" for n in (2, 3) for m in range(2)]
        assert await first.hear(conn) == []
    first.saw(actor.organization_id, f"+{BLOCK}9000", "otp", 1)
    await first.tell(pool)
    async with pool.acquire() as conn:
        assert f"+{BLOCK}9000" in [seen.to for seen in await second.hear(conn)]


async def test_an_erased_person_is_in_no_window(pool: Pool) -> None:
    actor, judge, now = await organization_with_policy(pool), Judge(), clock.now()
    async with pool.acquire() as conn, conn.transaction():
        outgoing = [Outgoing(actor.organization_id, uuid7(), f"+{BLOCK}{n:04}", "otp") for n in (1, 2)]
        await judge.judge(conn, outgoing, at=now)
    await judge.share(pool)
    async with pool.acquire() as conn:
        await erasure.erase(conn, actor, address=f"+{ELSEWHERE}0001")
        assert await conn.fetchval("SELECT count(*) FROM guard_seen") == 1
        await erasure.erase(conn, actor, address=f"+{BLOCK}0001")
        assert await conn.fetchval("SELECT count(*) FROM guard_seen") == 0


async def test_whose_challenge_was_passed_is_accepted_and_not_held(pool: Pool) -> None:
    for policy, passes in (("ask", True), ("hold", False), ("refuse", False)):
        actor, bench, acceptor = await organization_with_policy(pool, policy=policy), Bench(pool), Acceptor(pool)
        async with pool.acquire() as conn:
            await holds.begin(conn, [holds.Found(actor.organization_id, BLOCK, "block", ("thousand_full",), 70)])
        await acceptor._suspicious.read()
        asked = send(actor, to=f"+{BLOCK}9999", key_name="k", challenge_passed=True)
        if policy == "refuse":
            with pytest.raises(DestinationSuspicious):
                await acceptor.accept(asked)
            continue
        others = [send(actor, to=f"+{ELSEWHERE}{n:04}") for n in (1, 2)]
        answers = await acceptor.accept_many([asked, *others])
        assert {getattr(answer, "status", answer) for answer in answers} == {202}
        again = await acceptor.accept(send(actor, to=f"+{BLOCK}9999", key_name="k"))
        assert again.replayed, "with and without it, it is one send"
        await bench.round(2)
        (id,) = [row["id"] for row in await pool.fetch("SELECT id FROM messages WHERE recipient LIKE '%9999'")]
        assert (await status_of(pool, id), await waiting(pool)) == (("sent", set()) if passes else ("accepted", {id}))
        await acceptor.drain()
        await pool.execute("DELETE FROM messages")
        await pool.execute("DELETE FROM queue")


async def test_a_preview_says_what_the_guard_and_the_day_would(pool: Pool) -> None:
    actor, acceptor = await organization_with_policy(pool, policy="hold"), Acceptor(pool)
    wanted = send(actor, to=f"+{BLOCK}0007")

    async def seen(**values: Any) -> list[str]:
        async with pool.acquire() as conn:
            found = await preview.preview(conn, acceptor, msgspec.structs.replace(wanted, **values))
        return [warning.code for warning in found.warnings]

    assert "held" not in await seen()
    async with pool.acquire() as conn:
        await holds.begin(conn, [holds.Found(actor.organization_id, BLOCK, "block", ("thousand_full",), 70)])
    assert "held" in await seen()
    assert "held" not in await seen(to=f"+{ELSEWHERE}0007")
    assert "held" not in await seen(actor=msgspec.structs.replace(actor, mode="test"))
    for policy, refusal in (("refuse", DestinationSuspicious), ("ask", ChallengeRequired)):
        async with pool.acquire() as conn:
            await rules.configure(conn, actor.organization_id, policy=policy)
        with pytest.raises(refusal):
            await seen()
    assert "held" not in await seen(challenge_passed=True)
    async with pool.acquire() as conn:
        await rules.configure(conn, actor.organization_id, policy="monitor", safe=[BLOCK])
        await spending.limit(conn, actor.organization_id, segments=1)
    assert await seen() == []
    with pytest.raises(SpendLimitReached) as reached:
        await seen(text="x" * 161)
    with pytest.raises(SpendLimitReached) as sent:
        await acceptor.accept(msgspec.structs.replace(wanted, text="x" * 161))
    assert reached.value.details == sent.value.details
    await acceptor.drain()


async def test_premium_numbers_get_nothing(pool: Pool) -> None:
    actor, acceptor = await organization(pool), Acceptor(pool)
    for number in ("+19002345678", "+27860123456", "+351808123456", "+491371123456"):
        with pytest.raises(DestinationNotAllowed) as refused:
            await acceptor.accept(send(actor, to=number))
        assert refused.value.details == {"country": phones.country(number), "reason": "premium"}
    await acceptor.drain()


async def test_a_block_is_judged_more_strictly_where_there_is_far_more_than_usual(pool: Pool) -> None:
    """Five numbers of a thousand are 40 points; another 25 each if country and organization are far above usual."""
    actor, judge, now = await organization_with_policy(pool), Judge(), clock.now()
    await pool.execute("UPDATE organizations SET created_at = now() - interval '40 days'")

    async def usually(messages: int) -> None:
        await pool.execute("DELETE FROM traffic")
        await pool.execute(
            "INSERT INTO traffic (organization_id, hour, channel, mode, country, sender, supplier_id, status, count,"
            " segments, to_sent, to_delivered) SELECT $1, date_trunc('hour', now(), 'UTC') - n * interval '1 day',"
            " 'sms', 'live', 'MZ', 'A', '00000000-0000-0000-0000-000000000000', 'sent', $2, $2, '{}', '{}'"
            " FROM generate_series(1, 28) n",
            actor.organization_id,
            messages,
        )

    async def judged(judge: Judge, block: str, *, event: bool = False) -> bool:
        async with pool.acquire() as conn, conn.transaction():
            await rules.configure(
                conn, actor.organization_id, event_until=clock.now() + timedelta(days=1) if event else None
            )
            found = set()
            spread = [f"+25882{n * 37_003:07}" for n in range(200)]
            for to in (*spread, *(f"+{block}{n * 60:04}" for n in range(7))):
                if to.startswith(f"+{block}"):
                    judge.refresh()  # the usual volume is read once it matters
                found |= await judge.judge(conn, [Outgoing(actor.organization_id, uuid7(), to, "otp")], at=now)
        return bool(found)

    await usually(6_000)
    assert not await judged(Judge(), "25884010")
    await usually(60)
    async with pool.acquire() as open_session, open_session.transaction():
        await open_session.execute("LOCK TABLE traffic IN ACCESS EXCLUSIVE MODE")
        assert not await judged(Judge(), "25884015"), "nobody waits for who has locked it"
    assert not await judged(Judge(), "25884020", event=True), "it was announced"
    assert await judged(judge, "25884030")
    (hold,) = await listed(pool)
    assert {"thousand", "country_volume", "volume"} <= set(hold.rules)
    async with pool.acquire() as conn:
        with pytest.raises(Invalid) as refused:
            later = clock.now() + timedelta(days=15)
            await rules.configure(conn, actor.organization_id, policy="x", event_until=later, limits={"otp": 0})
        assert {one["field"] for one in refused.value.details["fields"]} == {"policy", "event_until", "limits.otp"}
        # One that was announced while the clock was ahead hinders no other change.
        await pool.execute("UPDATE guard_settings SET event_until = now() + interval '20 days'")
        assert (await rules.configure(conn, actor.organization_id, limits={"otp": 9})).limits == {"otp": 9}


async def test_beyond_its_limit_a_class_waits_and_the_others_go_out(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    async with pool.acquire() as conn:
        chosen = await rules.configure(conn, actor.organization_id, limits={"otp": 3, "marketing": 7})
        assert (chosen.policy, chosen.limits) == ("hold", {"otp": 3, "marketing": 7})
        chosen = await rules.configure(conn, actor.organization_id, limits={"marketing": None})
        assert chosen.limits == {"otp": 3}
        for wrong, field in (({"news": 3}, "limits"), ({"otp": 0}, "limits.otp")):
            with pytest.raises(Invalid) as refused:
                await rules.configure(conn, actor.organization_id, limits=wrong)
            assert [one["field"] for one in refused.value.details["fields"]] == [field]
    codes = [await message(pool, actor, to=f"+2588{n}{n * 711_117:07}", traffic_class="otp") for n in range(2, 8)]
    others = [await message(pool, actor, to=f"+2588{n}{n * 522_227:07}") for n in range(2, 8)]
    await bench.round(4)
    (hold,) = await listed(pool)
    assert (hold.range, hold.kind, hold.rules, hold.waiting) == ("otp", "class", ["class_limit"], 3)
    assert hold.until - hold.begun_at == timedelta(minutes=15)
    assert {await status_of(pool, id) for id in others} == {"sent"}
    stopped = await waiting(pool)
    assert stopped < set(codes)
    # An organization that chose to refuse has messages refused at acceptance, by class.
    async with pool.acquire() as conn:
        await rules.configure(conn, actor.organization_id, policy="refuse")
        told = (await timeline.of_message(conn, id=min(stopped))).entries
        assert "the organization's own limit" in next(one for one in told if one.what == "held").detail["because"]
    acceptor = Acceptor(pool)
    await acceptor._suspicious.read()
    with pytest.raises(DestinationSuspicious):
        await acceptor.accept(send(actor, to=f"+{ELSEWHERE}9999", traffic_class="otp"))
    assert (await acceptor.accept(send(actor, to=f"+{ELSEWHERE}9999"))).status == 202
    await acceptor.drain()
    async with pool.acquire() as conn:
        assert (await holds.release(conn, hold.id))[1] == 3
    bench.restart()
    await bench.round(4)
    assert {await status_of(pool, id) for id in codes} == {"sent"}


async def test_the_limit_of_a_class_counts_what_all_workers_send(pool: Pool) -> None:
    actor, judges, now = await organization_with_policy(pool), (Judge(), Judge()), clock.now()
    async with pool.acquire() as conn:
        await rules.configure(conn, actor.organization_id, limits={"otp": 5})
    found = []
    for n in range(8):
        judge = judges[n % 2]
        judge.refresh()
        async with pool.acquire() as conn, conn.transaction():
            outgoing = Outgoing(actor.organization_id, uuid7(), f"+2588{n}{n * 711_117:07}", "otp")
            found.append(bool(await judge.judge(conn, [outgoing], at=now)))
        await judge.share(pool)
    assert found == [False] * 5 + [True] * 3
