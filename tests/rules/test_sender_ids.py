"""Sender IDs: decisions, the default, and their events, with concurrent decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.campaigns.channels import sms as sms_channel
from heliograph.campaigns.channels.sms import SmsCampaignSpec
from heliograph.sms.accepting import sender_choice, sender_ids, sender_questions
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.accepting.sender_choice import SenderBook
from heliograph.sms.accepting.sender_ids import (
    SenderId,
    SenderIdAlreadyExists,
    SenderIdNotApproved,
    TooManyPending,
)
from tests.rules.factories import SENDER, TO, message, organization, send, sender


async def test_one_default_however_many_are_approved_at_once(pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute("DELETE FROM sender_ids")
    ids = [await sender(pool, actor, f"ACME {n}", status="pending") for n in range(6)]

    async def approve(number: int) -> SenderId:
        async with pool.acquire() as conn:
            return await sender_ids.review(conn, actor, id=ids[number], status="approved")

    made = await asyncio.gather(*(approve(number) for number in range(6)))
    assert [one.is_default for one in made].count(True) == 1
    assert await pool.fetchval("SELECT count(*) FROM events WHERE kind = 'sender_id.approved'") == 6

    async def choose(number: int) -> SenderId:
        async with pool.acquire() as conn:
            return await sender_ids.set_default(conn, actor, id=ids[number])

    chosen = await asyncio.gather(*(choose(number) for number in range(6)))
    assert all(one.is_default for one in chosen)
    assert await pool.fetchval("SELECT count(*) FROM sender_ids WHERE is_default") == 1


async def test_only_an_approved_one_of_its_own_becomes_the_default(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    pending = await sender(pool, actor, "ACME", status="pending")
    foreign = await sender(pool, other, "OTHER")
    async with pool.acquire() as conn:
        with pytest.raises(SenderIdNotApproved):
            await sender_ids.set_default(conn, actor, id=pending)
        for unknown in (foreign, uuid7()):
            with pytest.raises(NotFound):
                await sender_ids.set_default(conn, actor, id=unknown)
            with pytest.raises(NotFound):
                await sender_ids.review(conn, actor, id=unknown, status="rejected")
        await sender_ids.review(conn, actor, id=pending, status="approved")
        assert (await sender_ids.set_default(conn, actor, id=pending)).is_default
        defaults = [one.value for one in await sender_ids.list_all(conn, actor) if one.is_default]
    assert defaults == ["ACME"]
    assert (await SenderBook(pool).resolve(actor, sender_id=None, sender_name=None)).value == "ACME"


async def test_a_suspended_default_leaves_none_and_nothing_is_sent_as_another(pool: Pool) -> None:
    actor = await organization(pool)
    await sender(pool, actor, "ACME")
    async with pool.acquire() as conn:
        default = next(one for one in await sender_ids.list_all(conn, actor) if one.is_default)
        assert default.value == SENDER
        suspended = await sender_ids.review(conn, actor, id=default.id, status="suspended", reason=" complaints ")
        assert (suspended.is_default, suspended.rejection_reason) == (False, "complaints")
        with pytest.raises(SenderIdNotApproved):
            await SenderBook(pool).resolve(actor, sender_id=None, sender_name=None)
        with pytest.raises(SenderIdAlreadyExists):
            await sender_ids.request(conn, actor, value=SENDER)
        again = await sender_ids.review(conn, actor, id=default.id, status="approved")
    # There was no default, so it becomes the default again.
    assert (again.is_default, again.rejection_reason) == (True, None)


async def test_reasons(pool: Pool) -> None:
    actor = await organization(pool)
    id = await sender(pool, actor, "ACME", status="pending")
    async with pool.acquire() as conn:
        for reason in ("", "  ", "x" * 501, "a\0b"):
            with pytest.raises(Invalid):
                await sender_ids.review(conn, actor, id=id, status="rejected", reason=reason)
        first = await sender_ids.review(conn, actor, id=id, status="rejected", reason="x" * 500)
        assert await sender_ids.review(conn, actor, id=id, status="rejected") == first
        other = await sender_ids.review(conn, actor, id=id, status="rejected", reason="better said")
    assert other.rejection_reason == "better said"
    assert await pool.fetchval("SELECT count(*) FROM events") == 1
    told = await pool.fetch("SELECT kind, name, facts FROM notices")
    assert told == [("sender.rejected", "ACME", f'{{"reason":"{"x" * 500}"}}')]


async def test_each_question_and_decision_is_told(pool: Pool) -> None:
    """The second question within an hour was not, and each waited for the other."""
    actor = await organization(pool)
    id = await sender(pool, actor, "ACME", status="pending")
    async with pool.acquire() as conn:
        for question in ("Which company is this?", "Where is it registered?"):
            await sender_questions.ask(conn, actor, id=id, question=question)
            await sender_questions.answer(conn, actor, id=id, answer="Acme")
        for status in ("approved", "suspended", "approved"):
            await sender_ids.review(conn, actor, id=id, status=status)
    told = [tuple(row) for row in await pool.fetch("SELECT kind, facts FROM notices ORDER BY id")]
    assert told == [
        ("sender.asked", '{"reason":"Which company is this?"}'),
        ("sender.asked", '{"reason":"Where is it registered?"}'),
        ("sender.approved", "{}"),
        ("sender.suspended", "{}"),
        ("sender.approved", "{}"),
    ]


async def undo(pool: Pool, actor: Actor, id: UUID) -> tuple[str, str]:
    """The result of an undo of the last decision, and the sender's status after it."""
    async with pool.acquire() as conn:
        at = await conn.fetchval("SELECT coalesce(reviewed_at, created_at) FROM sender_ids WHERE id = $1", id)
        undone = await sender_ids.reopen(conn, actor, id=id, reviewed_at=at)
        return undone, await conn.fetchval("SELECT status FROM sender_ids WHERE id = $1", id)


async def test_a_decision_is_undone_while_it_is_recent(pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute("DELETE FROM sender_ids")
    id = await sender(pool, actor, "ACME", status="pending")
    assert await undo(pool, actor, id) == ("late", "pending")
    for status in ("rejected", "approved"):
        async with pool.acquire() as conn:
            await sender_ids.review(conn, actor, id=id, status=status)
        assert await undo(pool, actor, id) == ("undone", "pending")
    # Its approval had made it the default.
    assert not await pool.fetchval("SELECT is_default FROM sender_ids")
    async with pool.acquire() as conn:
        await sender_ids.review(conn, actor, id=id, status="approved")
    await pool.execute("UPDATE sender_ids SET reviewed_at = reviewed_at - interval '21 seconds'")
    assert await undo(pool, actor, id) == ("late", "approved")


@pytest.mark.parametrize("use", ["default", "message", "campaign"])
async def test_an_approval_that_was_used_cannot_be_undone(pool: Pool, use: str) -> None:
    """The default that it had replaced was missing then, and its messages ended as `sender_not_approved`."""
    actor = await organization(pool)
    id = await sender(pool, actor, "ACME", status="pending")
    async with pool.acquire() as conn, conn.transaction():
        await sender_ids.review(conn, actor, id=id, status="approved")
        if use == "default":
            await sender_ids.set_default(conn, actor, id=id)
        elif use == "campaign":
            spec = SmsCampaignSpec(name="Sale", message_template="hello", recipients=[TO], sender_id=id)
            await sms_channel.create(conn, actor, spec=spec, request_id="req")
    if use == "message":
        await Acceptor(pool).accept(send(actor, sender_id=id))
    assert await undo(pool, actor, id) == ("used", "approved")
    async with pool.acquire() as conn:
        (default,) = [one.value for one in await sender_ids.list_all(conn, actor) if one.is_default]
    assert default == ("ACME" if use == "default" else SENDER)


async def test_what_others_send_hinders_no_undo(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    id = await sender(pool, actor, "ACME", status="pending")
    async with pool.acquire() as conn:
        await sender_ids.review(conn, actor, id=id, status="approved")
        await sender_ids.set_default(conn, other, id=await sender(pool, other, "OTHER"))
    await message(pool, actor)
    assert await undo(pool, actor, id) == ("undone", "pending")


async def test_fifty_may_wait_and_no_more_whoever_asks_at_once(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)

    async def ask(number: int) -> bool:
        async with pool.acquire() as conn:
            try:
                await sender_ids.request(conn, actor, value=f"ACME {number}")
            except TooManyPending:
                return False
            return True

    for begin in range(0, 48, 8):
        assert all(await asyncio.gather(*(ask(number) for number in range(begin, begin + 8))))
    assert sorted(await asyncio.gather(*(ask(number) for number in range(48, 56)))) == [False] * 6 + [True] * 2
    async with pool.acquire() as conn:
        pending = [one for one in await sender_ids.list_all(conn, actor) if one.status == "pending"]
        assert len(pending) == 50
        # A pending one stays as it is; and a rejected one would become pending again.
        assert await sender_ids.request(conn, actor, value=pending[0].value.lower()) == pending[0]
        await sender_ids.review(conn, actor, id=pending[0].id, status="rejected")
        await sender_ids.request(conn, actor, value="ONE MORE")
        with pytest.raises(TooManyPending) as refused:
            await sender_ids.request(conn, actor, value=pending[0].value)
        assert refused.value.details == {"limit": 50}
        await sender_ids.request(conn, other, value="THEIRS")


@pytest.mark.fresh_database
async def test_a_send_loads_the_senders_that_it_names_and_no_others(pool: Pool) -> None:
    """However many there are: approved and requested ones are kept."""
    actor = await organization(pool)
    acme = await sender(pool, actor, "Acme")
    await pool.execute(
        "INSERT INTO sender_ids (organization_id, id, value, created_at)"
        " SELECT $1, gen_random_uuid(), 'P ' || n, now() FROM generate_series(1, 5000) AS n",
        actor.organization_id,
    )
    book = SenderBook(pool)
    waiting = await pool.fetchval("SELECT id FROM sender_ids WHERE value = 'P 7'")
    for _ in range(2):
        assert (await book.resolve(actor, sender_id=None, sender_name=None)).value == SENDER
        assert (await book.resolve(actor, sender_id=acme, sender_name=None)).value == "Acme"
        assert (await book.resolve(actor, sender_id=acme, sender_name="ACME")).id == acme
        assert (await book.resolve(actor, sender_id=None, sender_name="aCME")).id == acme
        for id, name, refusal in (
            (None, "P 7", SenderIdNotApproved),
            (None, "nobody", SenderIdNotApproved),
            (waiting, None, SenderIdNotApproved),
            (uuid7(), None, Invalid),
            (acme, "P 7", Invalid),
            (acme, "nobody", Invalid),
            (uuid7(), "Acme", Invalid),
        ):
            with pytest.raises(refusal):
                await book.resolve(actor, sender_id=id, sender_name=name)
    assert len(book._fresh._values) == 4
    plan = "\n".join(
        row[0]
        for row in await pool.fetch(
            "EXPLAIN ANALYZE " + sender_choice.LOAD, [actor.organization_id] * 2, [acme, None], [None, "acme"]
        )
    )
    assert "Seq Scan" not in plan
    assert "Rows Removed" not in plan, plan


async def test_a_list_of_senders_is_bounded_and_hides_none_that_sends(pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO sender_ids (organization_id, id, value, status, created_at)"
        " SELECT $1, id, 'R ' || n, 'rejected', now() FROM unnest($2::uuid[]) WITH ORDINALITY AS made (id, n)",
        actor.organization_id,
        [uuid7() for _ in range(1500)],
    )
    async with pool.acquire() as conn:
        listed = await sender_ids.list_all(conn, actor)
    assert len(listed) == sender_ids.MOST_LISTED
    assert (listed[0].value, listed[1].value, listed[-1].value) == (SENDER, "R 502", "R 1500")


async def test_one_that_no_list_shows_is_found_and_decided_on(pool: Pool) -> None:
    """In an organization with a thousand approved sender IDs, no other could be approved by its value: the list in
    which it was looked up ended before it."""
    actor = await organization(pool)
    pending = await sender(pool, actor, "Padaria", status="pending")
    await pool.execute(
        "INSERT INTO sender_ids (organization_id, id, value, status, created_at)"
        " SELECT $1, id, 'Q ' || n, 'approved', now() FROM unnest($2::uuid[]) WITH ORDINALITY AS made (id, n)",
        actor.organization_id,
        [uuid7() for _ in range(sender_ids.MOST_LISTED)],
    )
    async with pool.acquire() as conn:
        listed = await sender_ids.list_all(conn, actor)
        assert len(listed) == sender_ids.MOST_LISTED
        assert pending not in [one.id for one in listed]
        # The default is the oldest, and the first one offered in a form.
        assert [one.value for one in listed if one.is_default] == [SENDER]
        for which in ("padaria", str(pending), str(pending).upper()):
            assert (await sender_ids.find(conn, actor, which=which)).id == pending
        for unknown in ("nobody", str(uuid7())):
            with pytest.raises(NotFound):
                await sender_ids.find(conn, actor, which=unknown)
        known = await sender_choice.identified(conn, actor, id=pending)
        assert known is not None
        assert known.value == "Padaria"
        assert await sender_choice.identified(conn, await organization(pool), id=pending) is None


async def test_pages_of_senders_show_each_once(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    for n in range(5):
        await sender(pool, actor, f"Shop {n}", status="pending")
    await sender(pool, other, "Shop 9")
    async with pool.acquire() as conn:
        first = await sender_ids.list_page(conn, actor, limit=4)
        rest = await sender_ids.list_page(conn, actor, after=first[-1].id, limit=4)
        found = await sender_ids.list_page(conn, actor, search="sHOP", after=first[0].id, limit=2)
    assert [one.value for one in first] == ["Shop 4", "Shop 3", "Shop 2", "Shop 1"]
    assert [one.value for one in rest] == ["Shop 0", SENDER]
    assert [one.value for one in found] == ["Shop 3", "Shop 2"]


@pytest.mark.fresh_database
async def test_lists_of_all_organizations_read_no_more_than_they_show(
    pool: Pool, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """The newest, those with a prefix, and those of one organization: each by its index."""
    actor, other = await organization(pool), await organization(pool)
    await sender(pool, other, "Padaria", status="pending")
    await pool.execute(
        "INSERT INTO sender_ids (organization_id, id, value, created_at)"
        " SELECT $1, id, 'Q ' || n, now() FROM unnest($2::uuid[]) WITH ORDINALITY AS made (id, n)",
        actor.organization_id,
        [uuid7() for _ in range(5000)],
    )
    await sender(pool, actor, "PADARIA 2")
    await as_owner("VACUUM ANALYZE sender_ids")
    async with pool.acquire() as conn:

        async def listed(limit: int = 5, **asked: Any) -> list[str]:
            found = await sender_ids.list_everywhere(
                conn, **{"organization_id": None, "status": None, "search": None} | asked, limit=limit
            )
            return [one.value for _, _, one in found]

        assert await listed(limit=2) == ["PADARIA 2", "Q 5000"]
        assert await listed(search="padar") == ["PADARIA 2", "Padaria"]
        assert await listed(search="padar", status="pending") == ["Padaria"]
        # Few match, among the oldest.
        await conn.execute("UPDATE sender_ids SET status = 'suspended' WHERE value IN ('Q 7', 'Q 8')")
        assert await listed(status="suspended") == ["Q 8", "Q 7"]
        assert await listed(status="suspended", search="q 8") == ["Q 8"]
        assert await listed(search="padar", organization_id=other.organization_id) == ["Padaria"]
        assert await listed(search="adaria") == await listed(search="padar%") == await listed(search="é") == []
        ((owner, name, _),) = await sender_ids.list_everywhere(conn, organization_id=None, search="padaria 2", limit=5)
        assert (owner, name) == (actor.organization_id, f"Acme {owner}")
    for sql, given in (
        (sender_ids.LIST_EVERYWHERE[False], (None, None, 5, None)),
        (sender_ids.LIST_EVERYWHERE[True], (None, "suspended", 5, None)),
        (sender_ids.SEARCH_EVERYWHERE[False], (None, None, 5, "padar")),
        (sender_ids.SEARCH_EVERYWHERE[True], (None, "suspended", 5, "q")),
        (sender_ids.LIST_ONE, (other.organization_id, None, 5, None)),
    ):
        plan = "\n".join(row[0] for row in await pool.fetch("EXPLAIN ANALYZE " + sql, *given))
        assert "Seq Scan on sender_ids" not in plan, plan
        assert "Rows Removed" not in plan, plan
