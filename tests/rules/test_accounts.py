"""Organizations and their quota."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import organizations, quota
from heliograph.accounts.quota import Quota, QuotaExceeded
from heliograph.base.db import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.sms.accept import Acceptor
from tests.rules.making import organization, send


async def test_an_organization_lives(pool: Pool) -> None:
    async with pool.acquire() as conn:
        made = await organizations.create(conn, name="  Acme ")
        assert (made.name, made.state) == ("Acme", "active")
        assert await organizations.get(conn, id=made.id) == made
        suspended = await organizations.set_state(conn, id=made.id, state="suspended")
        assert suspended.state == "suspended"
        ruled = await organizations.configure(
            conn, id=made.id, smart_encoding=True, allowed_countries=["MZ"], opt_out_words=["PARAR"]
        )
        assert (ruled.smart_encoding, ruled.allowed_countries, ruled.opt_out_words) == (True, ["MZ"], ["PARAR"])
        assert (await organizations.configure(conn, id=made.id)) == ruled
        assert (await organizations.configure(conn, id=made.id, allowed_countries=None)).allowed_countries is None
        other = await organizations.create(conn, name="Other")
        assert [each.id for each in await organizations.list_all(conn)] == [other.id, made.id]


async def test_what_an_organization_must_be(pool: Pool) -> None:
    async with pool.acquire() as conn:
        for name in ("", " ", "x" * 201, "a\0b"):
            with pytest.raises(Invalid):
                await organizations.create(conn, name=name)
        with pytest.raises(Invalid):
            await organizations.create(conn, name="x", state="new")
        with pytest.raises(NotFound):
            await organizations.get(conn, id=uuid7())
        with pytest.raises(NotFound):
            await organizations.set_state(conn, id=uuid7(), state="active")


async def test_quota_is_granted_and_taken_back_never_below_what_is_used(pool: Pool) -> None:
    async with pool.acquire() as conn:
        organization = await organizations.create(conn, name="Acme")
        assert (await quota.get(conn, organization.id)).remaining == 0
        assert (await quota.grant(conn, organization.id, amount=100, reason="first")).remaining == 100
        await conn.execute("UPDATE quotas SET used = 40")
        with pytest.raises(QuotaExceeded) as refused:
            await quota.grant(conn, organization.id, amount=-61, reason="too much")
        assert refused.value.details == {"remainingQuota": 60, "requested": 61}
        assert (await quota.grant(conn, organization.id, amount=-60, reason="back")).remaining == 0
        for amount in (0, 10**16):
            with pytest.raises(Invalid):
                await quota.grant(conn, organization.id, amount=amount, reason="x")
        with pytest.raises(NotFound):
            await quota.grant(conn, uuid7(), amount=1, reason="x")
        rows = await conn.fetch("SELECT type, quantity, balance_after, reason FROM usage_ledger ORDER BY id")
    assert [tuple(row) for row in rows] == [("grant", 100, 100, "first"), ("adjustment", -60, 0, "back")]


async def test_a_refund_gives_back_what_was_paid_and_once(pool: Pool) -> None:
    one, other = await organization(pool, quota=5), await organization(pool, quota=5)
    acceptor = Acceptor(pool)
    paid = [(await acceptor.accept(send(who, "x" * 161))).body for who in (one, one, other)]
    free = (await acceptor.accept(send(await organization(pool, mode="test")))).body
    ids = [UUID(msgspec.json.decode(body)["message"]["id"]) for body in (*paid, free)]
    owners = await pool.fetch("SELECT organization_id, id FROM messages ORDER BY id")
    asked = [(row["organization_id"], row["id"], 2) for row in owners]
    async with pool.acquire() as conn:
        async with conn.transaction():
            assert await quota.refund_many(conn, asked + asked[:1], "canceled") == set(ids[:3])
        async with conn.transaction():
            assert await quota.refund_many(conn, asked, "canceled") == set()
            assert await quota.refund_many(conn, [], "canceled") == set()
            assert await quota.refund_many(conn, [(other.organization_id, ids[0], 2)], "not its own") == set()
        assert [(await quota.get(conn, who.organization_id)).used for who in (one, other)] == [0, 0]
        rows = await conn.fetch(
            "SELECT quantity, balance_after, segments, message_id, reason FROM usage_ledger"
            " WHERE type = 'refund' AND organization_id = $1 ORDER BY id",
            one.organization_id,
        )
    assert [tuple(row) for row in rows] == [(1, 4, 2, ids[0], "canceled"), (1, 5, 2, ids[1], "canceled")]
    await check_sums(pool)


async def test_a_refund_after_a_new_period_began(pool: Pool) -> None:
    actor = await organization(pool, quota=1)
    await Acceptor(pool).accept(send(actor))
    id = await pool.fetchval("SELECT id FROM messages")
    await pool.execute("UPDATE quotas SET used = 0, total = 0")
    async with pool.acquire() as conn, conn.transaction():
        assert await quota.refund_many(conn, [(actor.organization_id, id, 1)], "canceled") == {id}
        assert await quota.get(conn, actor.organization_id) == Quota(1, 0, None)
    await check_sums(pool)


async def check_sums(pool: Pool) -> None:
    """The ledger's sum is what remains, and its last row says so."""
    rows = await pool.fetch(
        "SELECT total - used AS remaining, sum(quantity) AS booked,"
        "       (array_agg(balance_after ORDER BY ledger.id DESC))[1] AS last"
        "  FROM quotas JOIN usage_ledger ledger USING (organization_id) GROUP BY organization_id"
    )
    assert [row for row in rows if not row["remaining"] == row["booked"] == row["last"]] == []
