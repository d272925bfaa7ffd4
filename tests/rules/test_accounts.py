"""Organizations and their quota."""

from __future__ import annotations

import pytest

from heliograph.accounts import organizations, quota
from heliograph.accounts.quota import QuotaExceeded
from heliograph.base.db import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7


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
