"""Something changes between two statements: an answer shows what was true at one moment, and a decision holds."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from heliograph.accounts import usage
from heliograph.base.actor import Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.guard import holds, judging
from heliograph.overview import intervening
from heliograph.overview.installation import queued_work
from heliograph.people import invitations, memberships, users
from heliograph.people.roles import RoleRequired
from heliograph.queue import leases, timers
from heliograph.queue.holds import Selection, Withdrawn
from heliograph.queue.leases import GUARDED
from heliograph.sending import attempts as outcomes
from heliograph.sms import messages, timeline
from heliograph.sms.accepting import sender_ids
from heliograph.sms.intervening import whose
from heliograph.sms.received import inbound, inbox, unassigned
from heliograph.webhooks import timeline as webhooks
from heliograph.whatsapp import intervening as whatsapp
from heliograph.whatsapp import status
from heliograph.whatsapp.accepting import withdrawal
from heliograph.whatsapp.intervening import WhatsAppMessageNotEnded
from tests.meanwhile import DELIVERED, Meanwhile, after, before, begun
from tests.rules import whatsapp_factories
from tests.rules.dispatching import Bench, attempts, queued
from tests.rules.factories import check_ledger, endpoint, message, organization, receipt, status_of
from tests.rules.test_guard import BLOCK, attack, listed, organization_with_policy, waiting
from tests.rules.test_inbound import handset_message, receive_and_process
from tests.rules.test_intervening import UNKNOWN, UNREACHED, audit_entries, doubtful, give_up, two

OPERATOR = Principal("operator", name="Eva")


async def test_a_delivery_that_ends_while_a_timeline_is_read_is_queued_or_made(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the page of the message would show neither, and no longer be renewed."""
    actor = await organization(pool)
    await endpoint(pool, actor, "message.delivered")
    bench, id = Bench(pool), await message(pool, actor)
    await bench.round()
    await bench.receive(bench.only_id, receipt(f"{id}-1"))
    assert await status_of(pool, id) == "delivered"

    async def delivered() -> None:
        await pool.execute(DELIVERED)

    after(monkeypatch, webhooks, "tried", delivered)
    seen = []
    for _ in range(2):
        async with pool.acquire() as conn:
            found = await timeline.of_message(conn, id=id)
        seen.append((len(found.queued), [one.what for one in found.entries].count("webhook")))
    assert seen == [(1, 0), (0, 1)]


async def test_what_a_worker_takes_for_held_after_its_release_goes_out(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker reads holds once a second. Nobody would release what it put under one that has ended."""
    monkeypatch.setattr(judging, "FRESH", 1e9)
    bench, actor = Bench(pool), await organization_with_policy(pool)
    await attack(pool, actor, 6)
    await bench.round(2)
    (hold,) = await listed(pool)
    async with pool.acquire() as conn:
        await holds.release(conn, hold.id)
    later = await attack(pool, actor, 1, first=500)
    await bench.round(2)
    assert [await status_of(pool, id) for id in later] == ["sent"]
    assert await waiting(pool) == set()


async def test_a_release_waits_for_who_is_putting_a_message_under_the_hold(pool: Pool) -> None:
    bench, actor = Bench(pool), await organization_with_policy(pool)
    await attack(pool, actor, 6)
    await bench.round(2)
    (hold,) = await listed(pool)
    (later,) = await attack(pool, actor, 1, first=500)

    async def release() -> int:
        async with pool.acquire() as conn:
            return (await holds.release(conn, hold.id))[1]

    async with pool.acquire() as conn, conn.transaction():
        assert await holds.meet(conn, [(actor.organization_id, later, f"+{BLOCK}0500", hold.id)]) == {later}
        await conn.execute("UPDATE queue SET line = $2 WHERE id = $1", later, GUARDED)
        released = await begun(pool, release())
    assert await released == 3
    assert await waiting(pool) == set()


async def decide(pool: Pool, id: UUID, status: str) -> str:
    async with pool.acquire() as conn:
        return await intervening.decide(conn, OPERATOR, id=id, status=status, reason="their ticket 4711")


async def test_an_attempt_that_is_made_while_it_is_decided_counts(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a message that a supplier may have would be refunded as one that nobody was given."""
    actor = await organization(pool)
    id = await message(pool, actor)
    bench, one, other = await two(pool)
    for each in (one, other):
        bench.connectors[each].script = lambda _: UNREACHED
    await bench.round()

    async def again() -> None:
        for each in (one, other):
            bench.connectors[each].script = lambda _: UNKNOWN
        await bench.later(minutes=1)
        await bench.round()

    before(monkeypatch, leases, "withdraw", again)
    await decide(pool, id, "failed")
    assert (await attempts(pool, id))[-1] == (2, "accepted")
    assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id) == 1
    assert not await queued(pool, id)
    await check_ledger(pool, [actor.organization_id])


async def test_an_attempt_at_meta_that_fails_while_it_is_decided_counts(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a message that Meta never took would be charged as delivered."""
    who = await whatsapp_factories.made(pool)
    id = await whatsapp_factories.message(pool, who)
    await doubtful(pool, who.organization_id, id)

    async def failed() -> None:
        await pool.execute("UPDATE attempts SET state = 'busy' WHERE message_id = $1", id)

    before(monkeypatch, leases, "withdraw", failed)
    with pytest.raises(WhatsAppMessageNotEnded):
        await decide(pool, id, "delivered")
    assert await queued(pool, id, kind="whatsapp"), "what was refused changed nothing"
    await whatsapp_factories.check_wallets(pool, [who.organization_id])


async def test_what_meta_reports_while_it_is_withdrawn_does_not_fail(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a message that Meta has would be announced as failed, and its reservation released."""
    who = await whatsapp_factories.made(pool)
    id = await whatsapp_factories.message(pool, who)
    await doubtful(pool, who.organization_id, id)

    async def reported() -> None:
        async with pool.acquire() as conn, conn.transaction():
            await status.move_many(conn, [status.Move(who.organization_id, id, "sent", clock.now())], rates=None)
            await outcomes.mark_accepted(conn, "whatsapp", [(who.organization_id, id)], detail="")

    before(monkeypatch, leases, "withdraw", reported)
    which = Selection(kinds=("whatsapp",))
    async with pool.acquire() as conn:
        found = await queued_work.withdraw(conn, which, tried=True, by=OPERATOR)
    assert found == {"whatsapp": Withdrawn(left=1)}
    row = await pool.fetchrow("SELECT status, failure_code, charge FROM whatsapp_messages WHERE id = $1", id)
    assert tuple(row or ()) == ("sent", None, "reserved")
    assert await queued(pool, id, kind="whatsapp")
    await whatsapp_factories.check_wallets(pool, [who.organization_id])


async def admin(pool: Pool, actor: Actor) -> Actor:
    """A member of the actor's organization who may invite others, beside its owner."""
    async with pool.acquire() as conn:
        for name, role in (("ana", "owner"), ("rui", "admin")):
            user, _ = await users.ensure(conn, actor, email=f"{name}@example.com", name=name)
            await memberships.add(conn, actor, user_id=user.id, role=role)
    by = Principal("person", user.id, name="rui")
    return Actor(actor.organization_id, None, "live", frozenset(), "active", by=by)


async def invited(pool: Pool) -> list[str]:
    return [row["email"] for row in await pool.fetch("SELECT email FROM invitations")]


async def test_who_loses_a_role_leaves_no_invitation_behind(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    actor = await organization(pool)
    rui = await admin(pool, actor)
    assert rui.user_id is not None
    changes: list[asyncio.Future[Any]] = []

    async def demote() -> None:
        async with pool.acquire() as conn:
            await memberships.change_role(conn, actor, user_id=rui.user_id, role="viewer")  # type: ignore[arg-type]

    async def change() -> None:
        changes.append(await begun(pool, demote()))

    after(monkeypatch, memberships, "demand_team", change)
    async with pool.acquire() as conn:
        await invitations.invite(conn, rui, email="eva@example.com", role="developer")
        await changes[0]
        assert await invited(pool) == []
        with pytest.raises(RoleRequired):
            await invitations.invite(conn, rui, email="eva@example.com", role="developer")


async def test_an_invitation_that_is_withdrawn_while_it_is_renewed_is_gone(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = await organization(pool)
    ends: list[asyncio.Future[Any]] = []
    async with pool.acquire() as conn:
        id, _, _ = await invitations.invite(conn, actor, email="eva@example.com", role="developer")

        async def withdraw() -> None:
            async with pool.acquire() as other:
                await invitations.withdraw(other, actor, id=id)

        async def change() -> None:
            ends.append(await begun(pool, withdraw()))

        before(monkeypatch, invitations, "invite", change)
        await invitations.renew(conn, actor, id=id)
        await ends[0]
        assert await invited(pool) == []
        with pytest.raises(NotFound):
            await invitations.renew(conn, actor, id=id)


async def test_a_message_that_its_sender_cancels_first_is_not_given_up(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit log would name the operator."""
    actor = await organization(pool)
    id = await message(pool, actor)

    async def canceled() -> None:
        async with pool.acquire() as conn:
            await messages.cancel(conn, actor, id=id)

    after(monkeypatch, whose, "find", canceled)
    assert await give_up(pool, id) == "canceled"
    assert await audit_entries(pool, "message.given_up") == []
    await check_ledger(pool, [actor.organization_id])


async def test_a_whatsapp_message_that_its_sender_cancels_first_is_canceled(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = await whatsapp_factories.made(pool)
    id = await whatsapp_factories.message(pool, who)

    async def canceled() -> None:
        async with pool.acquire() as conn, conn.transaction():
            assert await withdrawal.withdraw(conn, [(who.actor.organization_id, id)], at=clock.now())

    after(monkeypatch, whatsapp, "_whose", canceled)
    assert await give_up(pool, id) == "canceled"
    assert await audit_entries(pool, "message.given_up") == []


async def test_two_operators_do_not_assign_one_number_to_two_organizations(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await organization(pool), await organization(pool)
    async with pool.acquire() as conn:
        await timers.ensure(conn, inbox.TIMER)
    await receive_and_process(pool, handset_message("x", to="258899999999"))
    second: list[asyncio.Future[Any]] = []

    async def assign(actor: Actor) -> int | None:
        async with pool.acquire() as conn:
            return await unassigned.assign(conn, actor, recipient="258899999999")

    async def meanwhile() -> None:
        second.append(await begun(pool, assign(other)))

    async def refused() -> None:
        # Until it is processed again, the message is unassigned.
        await asyncio.wait(second)

    before(monkeypatch, inbound, "retry", refused)
    before(monkeypatch, sender_ids, "review", meanwhile)
    assert await assign(one) == 1
    with pytest.raises(Invalid, match="suspend it there first"):
        await second[0]


async def test_a_message_that_its_sum_replaces_while_the_usage_list_is_read_is_listed_once(pool: Pool) -> None:
    """It was listed as both, or as neither where the list was read across the page's end."""
    actor = await organization(pool, quota=5)
    id = await message(pool, actor)

    async def replaced() -> None:
        await pool.execute(usage.stray("DELETE FROM messages WHERE id = $1"), id)

    async with pool.acquire() as conn:
        for times in range(2):
            page = await usage.list_page(Meanwhile(conn, usage.OTHERS, replaced, skips=times), actor)  # type: ignore[arg-type]
            assert sum(one.quantity for one in page.entries if one.type == "usage") == -1
            assert [one.message_id for one in page.entries if one.type == "usage"] == [None if times else id]
