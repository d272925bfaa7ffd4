"""API keys: format, limits, who may grant what, and how soon a revocation takes effect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from heliograph.accounts import organizations
from heliograph.accounts.api_keys import authentication, issued, lifecycle, spelling
from heliograph.accounts.api_keys.authentication import Unauthorized
from heliograph.accounts.api_keys.issued import ApiKey
from heliograph.accounts.api_keys.keyring import MAX_AGE, Keyring
from heliograph.accounts.api_keys.lifecycle import TooManyActiveKeys
from heliograph.accounts.api_keys.scopes import SCOPES, ScopeRequired
from heliograph.base.actor import Actor
from heliograph.base.crypto import hash_secret
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.notices import conditions
from tests.rules.factories import organization


@pytest.fixture
async def operator(pool: Pool) -> Actor:
    async with pool.acquire() as conn:
        organization = await organizations.create(conn, name="Acme")
    return Actor(organization.id, None, "live", frozenset(), "active")


async def issue(pool: Pool, actor: Actor, **facts: object) -> tuple[ApiKey, str]:
    async with pool.acquire() as conn:
        return await lifecycle.issue(conn, actor, **({"name": "k", "profile": "sms_only"} | facts))  # type: ignore[arg-type]


def test_every_change_of_a_character_is_noticed() -> None:
    secret = spelling.new_secret("live")
    assert len(secret) == len("hg_live_") + 36
    assert spelling.is_well_formed(secret)
    for at in range(len(secret)):
        other = "B" if secret[at] != "B" else "C"
        assert not spelling.is_well_formed(secret[:at] + other + secret[at + 1 :])
    assert not spelling.is_well_formed(secret + "x")
    assert not spelling.is_well_formed("")
    assert not spelling.is_well_formed("\ud800" * 44)


async def test_only_the_hash_is_stored(pool: Pool, operator: Actor) -> None:
    key, secret = await issue(pool, operator, mode="test")
    assert secret.startswith("hg_test_")
    row = await pool.fetchrow("SELECT * FROM api_keys WHERE id = $1", key.id)
    assert row is not None
    assert row["secret_hash"] == hash_secret(secret)
    assert secret not in str(dict(row))
    assert (key.prefix, key.last4, key.scopes) == ("hg_test_", secret[-4:], ["sms:send"])


async def test_nobody_is_told_that_a_key_expires_which_nobody_can_use(pool: Pool, operator: Actor) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    kept, suspended, revoked = [(await issue(pool, operator, expires_at=soon))[0] for _ in range(3)]

    async def told() -> set[UUID]:
        return {UUID(row[0]) for row in await pool.fetch("SELECT object FROM notices WHERE kind = 'key.ending'")}

    async with pool.acquire() as conn:
        await conditions.report(conn)
        assert await told() == {kept.id, suspended.id, revoked.id}
        await lifecycle.suspend(conn, operator, id=suspended.id)
        await lifecycle.revoke(conn, operator, id=revoked.id)
        assert await told() == {kept.id}
        await lifecycle.resume(conn, operator, id=suspended.id)
        await conditions.report(conn)
        assert await told() == {kept.id, suspended.id}


async def test_five_active_keys_and_no_more_even_at_once(pool: Pool, operator: Actor) -> None:
    results = await asyncio.gather(*(issue(pool, operator) for _ in range(8)), return_exceptions=True)
    refused = [result for result in results if isinstance(result, TooManyActiveKeys)]
    made = [result for result in results if isinstance(result, tuple)]
    assert (len(made), len(refused)) == (5, 3)
    async with pool.acquire() as conn:
        revoked = await lifecycle.revoke(conn, operator, id=made[0][0].id)
        assert revoked.status == "revoked"
        assert await lifecycle.revoke(conn, operator, id=revoked.id) == revoked
    await issue(pool, operator)
    # A key past its expiry is not active.
    await pool.execute("UPDATE api_keys SET expires_at = now() - interval '1 second' WHERE id = $1", made[1][0].id)
    await issue(pool, operator)
    async with pool.acquire() as conn:
        statuses = sorted(key.status for key in await issued.list_all(conn, operator))
    assert statuses == ["active"] * 5 + ["expired", "revoked"]


async def test_a_key_grants_only_what_it_holds(pool: Pool, operator: Actor) -> None:
    key, _ = await issue(pool, operator, profile=None, scopes=["sms:send", "api_keys:write"])
    holder = Actor(operator.organization_id, key.id, "live", frozenset(key.scopes), "active")
    await issue(pool, holder, profile=None, scopes=["sms:send"])
    with pytest.raises(ScopeRequired) as refused:
        await issue(pool, holder, profile="sms")
    assert "sms:read" in refused.value.details["required"]
    _, _ = await issue(pool, operator, profile="full_access")


@pytest.mark.parametrize("ended", ["revoked", "suspended", "expired"])
async def test_a_key_that_has_ended_creates_no_other(pool: Pool, operator: Actor, ended: str) -> None:
    """For a second, others take it for active: one that leaked would take the place that its revocation has freed."""
    key, _ = await issue(pool, operator, profile="full_access")
    actor = Actor(operator.organization_id, key.id, "live", frozenset(key.scopes), "active")
    await issue(pool, actor)
    async with pool.acquire() as conn:
        if ended == "revoked":
            await lifecycle.revoke(conn, operator, id=key.id)
        elif ended == "suspended":
            await lifecycle.suspend(conn, operator, id=key.id)
        else:
            await conn.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", key.id)
    with pytest.raises(Unauthorized):
        await issue(pool, actor)
    assert await pool.fetchval("SELECT count(*) FROM api_keys") == 2


async def test_what_a_new_key_must_be(pool: Pool, operator: Actor) -> None:
    for wrong, field in (
        ({"name": " "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"profile": "nothing"}, "profile"),
        ({"profile": None}, "profile"),
        ({"scopes": ["sms:send"]}, "profile"),
        ({"profile": None, "scopes": []}, "scopes"),
        ({"profile": None, "scopes": ["sms:everything"]}, "scopes"),
        ({"mode": "demo"}, "mode"),
        ({"allowed_ips": ["10.0.0.300"]}, "allowed_ips"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expires_at"),
    ):
        with pytest.raises(Invalid) as refused:
            await issue(pool, operator, **wrong)
        assert refused.value.details["fields"][0]["field"] == field
    assert await pool.fetchval("SELECT count(*) FROM api_keys") == 0


async def test_a_key_of_another_organization_is_not_found(pool: Pool, operator: Actor) -> None:
    key, _ = await issue(pool, operator)
    async with pool.acquire() as conn:
        other = await organizations.create(conn, name="Other")
        stranger = Actor(other.id, None, "live", frozenset(), "active")
        with pytest.raises(NotFound):
            await lifecycle.revoke(conn, stranger, id=key.id)
        assert await issued.list_all(conn, stranger) == []


async def test_the_keyring_knows_an_actor_and_forgets_a_revoked_one(pool: Pool, operator: Actor) -> None:
    key, secret = await issue(pool, operator, profile="full_access")
    keyring = Keyring(pool)
    actor = await keyring.authenticate(secret, "127.0.0.1", operation="sendSms")
    assert (actor.organization_id, actor.key_id, actor.scopes) == (operator.organization_id, key.id, frozenset(SCOPES))
    # A key that is being changed is skipped.
    await keyring.close()
    async with pool.acquire() as conn:
        await lifecycle.revoke(conn, operator, id=key.id)
    await asyncio.sleep(MAX_AGE)
    with pytest.raises(Unauthorized):
        await keyring.authenticate(secret, "127.0.0.1")
    assert await pool.fetchval("SELECT last_used_at IS NOT NULL AND last_used_for = 'sendSms' FROM api_keys")


async def test_a_key_works_only_from_its_networks_and_until_its_date(pool: Pool, operator: Actor) -> None:
    _, bound = await issue(pool, operator, allowed_ips=["10.0.0.0/8", "2001:db8::1"])
    keyring = Keyring(pool)
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1"):
        await keyring.authenticate(bound, address)
    for address in ("11.0.0.1", "2001:db8::2", "", "unknown"):
        with pytest.raises(Unauthorized):
            await keyring.authenticate(bound, address)
    key, ending = await issue(pool, operator, expires_at=datetime.now(UTC) + timedelta(hours=1))
    await keyring.authenticate(ending, "10.0.0.1")
    await pool.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", key.id)
    with pytest.raises(Unauthorized):
        await Keyring(pool).authenticate(ending, "10.0.0.1")
    await keyring.close()


async def test_a_suspended_key_makes_place_and_comes_back_if_there_is_one(pool: Pool, operator: Actor) -> None:
    made = [await issue(pool, operator) for _ in range(5)]
    id = made[0][0].id
    async with pool.acquire() as conn:
        assert (await lifecycle.suspend(conn, operator, id=id)).status == "suspended"
        assert (await lifecycle.suspend(conn, operator, id=id)).status == "suspended"
        assert await authentication.authenticate_many(conn, [hash_secret(made[0][1])]) == [None]
        sixth, _ = await issue(pool, operator)
        with pytest.raises(TooManyActiveKeys):
            await lifecycle.resume(conn, operator, id=id)
        await lifecycle.revoke(conn, operator, id=sixth.id)
        assert [(await lifecycle.resume(conn, operator, id=id)).status for _ in range(2)] == ["active"] * 2
        for change in (lifecycle.suspend, lifecycle.resume):
            with pytest.raises(Invalid):
                await change(conn, operator, id=sixth.id)
            with pytest.raises(NotFound):
                await change(conn, operator, id=uuid7())


async def test_a_use_from_a_network_that_is_new_rings_the_bell(pool: Pool, operator: Actor) -> None:
    _, secret = await issue(pool, operator)

    async def used(address: str) -> int:
        keyring = Keyring(pool)
        await pool.execute("UPDATE api_keys SET last_used_at = last_used_at - interval '2 minutes'")
        await keyring.authenticate(secret, address)
        await keyring.close()
        told: int = await pool.fetchval("SELECT count(*) FROM notices WHERE kind = 'key.network'")
        return told

    # Nothing is reported about the first one, nor about a neighbour of it.
    assert [await used(one) for one in ("203.0.113.7", "203.0.113.99", "::ffff:203.0.113.1")] == [0, 0, 0]
    assert await used("2001:db8:1:2::3") == 1
    assert [await used(one) for one in ("2001:db8:1:ffff::1", "203.0.113.7")] == [1, 1]
    row = await pool.fetchrow("SELECT object, name, facts FROM notices WHERE kind = 'key.network'")
    assert row is not None
    assert '"network":"2001:db8:1::/48"' in row["facts"]
    assert await pool.fetchval("SELECT networks FROM api_keys") == ["2001:db8:1::/48", "203.0.113.0/24"]

    # Of those that are new within an hour, the fourth is reported after it, if it is still used.
    assert [await used(f"198.51.{n}.1") for n in (1, 2, 3, 3)] == [2, 3, 3, 3]
    await pool.execute("UPDATE notices SET created_at = created_at - interval '1 hour'")
    assert [await used("198.51.3.1") for _ in range(2)] == [4, 4]
    assert await pool.fetchval("SELECT networks[1] FROM api_keys") == "198.51.3.0/24"


async def test_the_last_use_is_written_once_a_minute_whichever_process_it_was(pool: Pool, operator: Actor) -> None:
    _, secret = await issue(pool, operator)
    clocks = [0.0, 0.0]
    keyrings = [Keyring(pool, monotonic=lambda n=n: clocks[n]) for n in range(2)]  # type: ignore[misc]

    async def used(number: int) -> datetime:
        await keyrings[number].authenticate(secret, "127.0.0.1")
        await keyrings[number].close()
        at: datetime = await pool.fetchval("SELECT last_used_at FROM api_keys")
        return at

    first = await used(0)
    assert [await used(number) for number in (0, 1, 1)] == [first] * 3
    clocks[:] = [100.0, 100.0]
    assert await used(0) == first
    # A minute later by the database's clock.
    await pool.execute("UPDATE api_keys SET last_used_at = last_used_at - interval '1 minute'")
    assert await used(0) < first
    clocks[:] = [200.0, 200.0]
    second = await used(1)
    assert second > first
    assert await used(0) == second
    # As after the clock was set back.
    await pool.execute("UPDATE api_keys SET last_used_at = now() + interval '1 day'")
    clocks[:] = [300.0, 300.0]
    assert await used(0) < second + timedelta(minutes=1)


async def test_a_list_holds_what_stands_and_what_ended_lately(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        standing, _ = await lifecycle.issue(conn, actor, name="stands", profile="sms")
        await pool.execute("UPDATE api_keys SET id = $1, created_at = now() - interval '9 years'", UUID(int=1))
        for status, days in (("revoked", 89), ("revoked", 91), ("expired", 89), ("expired", 91)):
            key, _ = await lifecycle.issue(conn, actor, name=f"{status} {days}", profile="sms")
            column = "revoked_at" if status == "revoked" else "expires_at"
            await pool.execute(
                f"UPDATE api_keys SET status = $2, {column} = now() - make_interval(days => $3) WHERE id = $1",
                key.id,
                status,
                days,
            )
        await pool.execute(
            "INSERT INTO api_keys (id, organization_id, name, prefix, last4, secret_hash, scopes, mode, status,"
            " created_at, revoked_at) SELECT gen_random_uuid(), $1, 'old', '', '', sha256(n::text::bytea), '{}',"
            " 'live', 'revoked', now(), now() - interval '1 day' - make_interval(secs => n)"
            " FROM generate_series(1, 600) AS n",
            actor.organization_id,
        )
        listed = await issued.list_all(conn, actor)
        assert len(listed) == 1 + issued.MOST_LISTED
        assert listed[-1].name == standing.name
        await pool.execute("DELETE FROM api_keys WHERE name = 'old'")
        listed = await issued.list_all(conn, actor)
        assert [one.name for one in listed] == ["expired 89", "revoked 89", "stands"]


async def test_a_key_that_has_expired_is_noted_as_such_when_the_next_one_is_made(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        made = [(await lifecycle.issue(conn, actor, name="a", profile="sms"))[0] for _ in range(lifecycle.MAX_ACTIVE)]
        await pool.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", made[0].id)
        assert (await issued.list_all(conn, actor))[-1].status == "expired"
        await lifecycle.issue(conn, actor, name="b", profile="sms")
        assert await pool.fetchval("SELECT status FROM api_keys WHERE id = $1", made[0].id) == "expired"
        assert len(await issued.list_all(conn, actor)) == 6


@pytest.mark.fresh_database
async def test_a_key_of_any_organization_is_found_without_reading_all(
    pool: Pool, operator: Actor, as_owner: Callable[[str], Awaitable[None]]
) -> None:
    """By the beginning of its name, in any case, and by its last characters."""
    other = await organization(pool)
    await pool.execute(
        "INSERT INTO api_keys (id, organization_id, name, prefix, last4, secret_hash, scopes, mode, status, created_at)"
        " SELECT made.id, $1, 'key ' || n, 'hg_live_', 'aaaa', sha256(n::text::bytea), '{}', 'live',"
        " CASE WHEN n % 2 = 0 THEN 'revoked' ELSE 'suspended' END, now()"
        " FROM unnest($2::uuid[]) WITH ORDINALITY AS made (id, n)",
        operator.organization_id,
        [uuid7() for _ in range(5000)],
    )
    mine, _ = await issue(pool, operator, name="Água")
    theirs, _ = await issue(pool, other, name="água 2")
    await as_owner("VACUUM ANALYZE api_keys")
    async with pool.acquire() as conn:

        async def listed(search: str | None, of: UUID | None = None, revoked: bool = False) -> list[str]:
            found = await issued.list_everywhere(conn, organization_id=of, revoked=revoked, search=search, limit=3)
            return [key.name for _, key in found]

        assert await listed(None) == ["água 2", "Água", "key 4999"]
        assert await listed("ÁGU") == ["água 2", "Água"]
        assert await listed("ÁGU", of=operator.organization_id) == ["Água"]
        assert await listed(f"hg_live_…{mine.last4}") == ["Água"]
        assert await listed(theirs.last4, of=operator.organization_id) == []
        assert await listed("gua") == await listed("key%") == []
        assert [await listed("key 200", revoked=one) for one in (False, True)] == [
            ["key 2005", "key 2003", "key 2001"],
            ["key 2001", "key 2000", "key 200"],
        ]
    # Most of the keys ever created are revoked.
    await pool.execute("UPDATE api_keys SET status = 'revoked', revoked_at = now() WHERE name LIKE 'key __%1'")
    await as_owner("VACUUM ANALYZE api_keys")
    for sql, given in (
        *((issued.LIST_EVERYWHERE[False, revoked], (None, revoked, 5)) for revoked in (True, False)),
        *(
            (issued.LIST_EVERYWHERE[True, revoked], (of, revoked, 5))
            for revoked in (True, False)
            for of in (operator.organization_id, other.organization_id)
        ),
        (issued.SEARCH_EVERYWHERE, (None, True, 5, "água")),
    ):
        plan = "\n".join(row[0] for row in await pool.fetch("EXPLAIN ANALYZE " + sql, *given))
        assert "Seq Scan on api_keys" not in plan, plan
        assert "Rows Removed" not in plan, plan
