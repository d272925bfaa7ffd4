"""Sender IDs: decisions, the default, and their events, whoever decides at the same time."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.base.db import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.sms import sender_ids
from heliograph.sms.sender_ids import SenderBook, SenderId, SenderIdAlreadyExists, SenderIdNotApproved
from tests.rules.making import SENDER, organization, sender


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
    # There was no default, so it is one again.
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
