"""An organization's own rate limits: changed by one rule, recorded in the audit log, and loaded with the key."""

from __future__ import annotations

from uuid import UUID

import pytest

from heliograph.accounts import rate_limits
from heliograph.accounts.api_keys import authentication, lifecycle
from heliograph.base.actor import Actor, Principal, RateLimits
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.base.process.settings import Settings
from tests.rules.factories import organization

BY = Principal("cli", name="ana")


async def audited(pool: Pool) -> list[tuple[str, str, str, UUID]]:
    rows = await pool.fetch(
        "SELECT who_name, before, after, organization_id FROM audit_log WHERE action = 'organization.configured'"
        " ORDER BY id"
    )
    return [tuple(row) for row in rows]


async def test_a_limit_is_set_and_given_back(pool: Pool) -> None:
    id = (await organization(pool)).organization_id
    async with pool.acquire() as conn:
        assert await rate_limits.get(conn, organization_id=id) == RateLimits()
        changed = await rate_limits.change(conn, organization_id=id, limits={"sms_send": 1, "reads": 1_000_000}, by=BY)
        assert changed == RateLimits(sms_send=1, reads=1_000_000) == await rate_limits.get(conn, organization_id=id)
        # What is left out stays as it is, and a change that changes nothing is not recorded.
        assert await rate_limits.change(conn, organization_id=id, limits={}, by=BY) == changed
        assert await rate_limits.change(conn, organization_id=id, limits={"reads": 1_000_000}, by=BY) == changed
        changed = await rate_limits.change(conn, organization_id=id, limits={"sms_send": None, "campaigns": 9}, by=BY)
        assert changed == RateLimits(campaigns=9, reads=1_000_000)
    settings = Settings(rate_sms_send=5, rate_campaigns=6, rate_mutations=7, rate_reads=8)
    assert rate_limits.in_force(settings, changed) == {
        "sms_send": 5,
        "campaigns": 9,
        "mutations": 7,
        "reads": 1_000_000,
    }
    assert await audited(pool) == [
        ("ana", '{"rate_sms_send":null,"rate_reads":null}', '{"rate_sms_send":1,"rate_reads":1000000}', id),
        ("ana", '{"rate_sms_send":1,"rate_campaigns":null}', '{"rate_sms_send":null,"rate_campaigns":9}', id),
    ]


@pytest.mark.parametrize("bucket", rate_limits.BUCKETS)
@pytest.mark.parametrize("limit", [0, -1, 1_000_001, 2**40])
async def test_what_is_out_of_bounds_is_named(pool: Pool, bucket: str, limit: int) -> None:
    id = (await organization(pool)).organization_id
    async with pool.acquire() as conn:
        with pytest.raises(Invalid, match=f"`{bucket}` must be from 1 to 1000000") as refused:
            await rate_limits.change(conn, organization_id=id, limits={"reads": 5, bucket: limit})
        assert [field["field"] for field in refused.value.details["fields"]] == [bucket]
        assert await rate_limits.get(conn, organization_id=id) == RateLimits()


async def test_an_unknown_organization_is_not_found(pool: Pool) -> None:
    async with pool.acquire() as conn:
        with pytest.raises(NotFound):
            await rate_limits.change(conn, organization_id=uuid7(), limits={"reads": 5})
        with pytest.raises(NotFound):
            await rate_limits.get(conn, organization_id=uuid7())


async def test_a_key_knows_the_limits_of_its_organization_alone(pool: Pool) -> None:
    one, other = [(await organization(pool)).organization_id for _ in range(2)]
    async with pool.acquire() as conn:
        secrets = [
            (await lifecycle.issue(conn, Actor(id, None, "live", frozenset(), "active"), name="a", profile="sms"))[1]
            for id in (one, other)
        ]
        await rate_limits.change(conn, organization_id=one, limits={"reads": 5})
        known = await authentication.authenticate_many(conn, [hash_secret(secret) for secret in secrets])
    mine, theirs = [each.actor for each in known if each is not None]
    assert [mine.own_rate_limit(bucket) for bucket in rate_limits.BUCKETS] == [None, None, None, 5]
    assert [theirs.own_rate_limit(bucket) for bucket in rate_limits.BUCKETS] == [None] * 4
    assert theirs.rate_limits is None


def test_the_installation_limits_each_bucket() -> None:
    assert tuple(rate_limits.of_installation(Settings())) == rate_limits.BUCKETS
