"""The bell: one cause is reported once, lasting conditions are checked, and old notices are removed."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import msgspec
import pytest

from heliograph import notices
from heliograph.accounts import quota
from heliograph.accounts.api_keys import lifecycle
from heliograph.accounts.api_keys.issued import ApiKey
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool
from heliograph.base.process.settings import Settings
from heliograph.notices import DAYS, Notice, conditions, reading
from heliograph.notices.recording import QUIET
from heliograph.retention import forgetting
from heliograph.whatsapp.money import wallet
from tests.hooks import endpoint
from tests.meanwhile import before, begun
from tests.rules.factories import organization

URL = "http://127.0.0.1:9/"
KINDS = "SELECT kind, object FROM notices ORDER BY id"


async def tell(pool: Pool, *told: Notice) -> None:
    async with pool.acquire() as conn:
        await notices.record_many(conn, told)


async def look(pool: Pool) -> list[tuple[str, str]]:
    async with pool.acquire() as conn:
        await conditions.report(conn)
    return [tuple(row) for row in await pool.fetch(KINDS)]


async def test_one_cause_rings_once_within_an_hour(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    one = Notice(actor.organization_id, "webhook.failing", "a", "https://example.com")
    for _ in range(2):
        await tell(pool, one, Notice(actor.organization_id, "webhook.failing", "b"))
    await tell(pool, Notice(actor.organization_id, "webhook.disabled", "a"))
    await tell(pool, Notice(other.organization_id, "webhook.failing", "a"))
    assert [row["object"] for row in await pool.fetch(KINDS)] == ["a", "b", "a", "a"]
    await pool.execute("UPDATE notices SET created_at = created_at - $1::interval", QUIET)
    await tell(pool, one)
    assert await pool.fetchval("SELECT count(*) FROM notices") == 5


async def test_an_endpoint_that_fails_again_within_the_hour_rings_when_that_is_over(pool: Pool) -> None:
    """It was reported at its third failure only: not at all, if it had been reported, and had recovered, before."""
    actor = await organization(pool)
    failing, young, _ = [(await endpoint(pool, actor, URL))[0] for _ in range(3)]
    await tell(pool, Notice(actor.organization_id, "webhook.failing", str(failing), URL))
    for id, failures in ((failing, 4), (young, conditions.FAILURES - 1)):
        await pool.execute(
            "UPDATE webhook_endpoints SET failing_since = now(), consecutive_failures = $2 WHERE id = $1", id, failures
        )
    rang = ("webhook.failing", str(failing))
    await pool.execute("UPDATE notices SET created_at = created_at - 3 * $1::interval", QUIET)
    # It has failed all the time: `failing_since` moves when it is resumed after a pause.
    assert await look(pool) == [rang]
    await pool.execute("UPDATE webhook_endpoints SET last_success_at = now() - 9 * $1::interval", QUIET)
    assert await look(pool) == [rang]
    await pool.execute("UPDATE notices SET created_at = now() - $1::interval / 2", QUIET)
    await pool.execute("UPDATE webhook_endpoints SET last_success_at = now() - $1::interval / 4", QUIET)
    assert await look(pool) == [rang]
    await pool.execute("UPDATE notices SET created_at = created_at - $1::interval", QUIET)
    assert await look(pool) == [rang, rang]
    told = await pool.fetchrow("SELECT name, mode, facts FROM notices ORDER BY id DESC LIMIT 1")
    assert told == (URL, "live", "{}")
    # Once that is known, it is not reported again, however long it lasts.
    await pool.execute("UPDATE notices SET created_at = created_at - 2 * $1::interval", QUIET)
    await pool.execute(
        "UPDATE webhook_endpoints SET failing_since = failing_since - 3 * $1::interval,"
        " last_success_at = last_success_at - 3 * $1::interval",
        QUIET,
    )
    assert await look(pool) == [rang, rang]


async def test_a_cause_rings_though_it_rang_before_the_clock_was_set_back(pool: Pool) -> None:
    """It used to be silent for as long as the clock had been ahead."""
    actor = await organization(pool)
    some = [
        Notice(actor.organization_id, "webhook.failing", "a"),
        Notice(actor.organization_id, "wallet.low", "wallet"),
    ]
    await tell(pool, *some)
    await pool.execute("UPDATE notices SET created_at = created_at + interval '3 days'")
    for _ in range(2):
        await tell(pool, some[0])
    async with pool.acquire() as conn:
        await wallet.top_up(conn, actor.organization_id, amount=1, currency="USD")
        await wallet.set_alert(conn, actor.organization_id, below=5)
    for _ in range(2):
        await look(pool)
    found = await pool.fetch("SELECT object FROM notices WHERE created_at <= now() ORDER BY id")
    assert [row["object"] for row in found] == ["a", "wallet"]


async def test_what_is_withdrawn_may_have_been_recorded_by_a_later_transaction(pool: Pool) -> None:
    """As of a campaign that began to wait while whoever approved it waited for its row, or before the clock was set
    back: that it waits was said until it ended."""
    actor = await organization(pool)
    async with pool.acquire() as conn, conn.transaction():
        for object, ahead in (("a", timedelta()), ("b", timedelta(days=3))):
            await tell(pool, Notice(actor.organization_id, "campaign.approval", object))
            await pool.execute("UPDATE notices SET created_at = created_at + $1 WHERE object = $2", ahead, object)
            await notices.withdraw(conn, actor.organization_id, "campaign.approval", object)
    assert await pool.fetch(KINDS) == []


async def test_each_reads_for_themselves_and_only_their_kinds(pool: Pool) -> None:
    actor, other = await organization(pool), await organization(pool)
    first, second = uuid.uuid4(), uuid.uuid4()
    for number in range(3):
        await tell(pool, Notice(actor.organization_id, "campaign.completed", str(number), facts={"reason": "x"}))
    await tell(pool, Notice(actor.organization_id, "quota.used", "80"))
    await tell(pool, Notice(other.organization_id, "campaign.completed", "theirs"))
    async with pool.acquire() as conn:

        async def page(user_id: uuid.UUID, after: uuid.UUID | None = None) -> list[reading.Noticed]:
            kinds = ["campaign.completed"]
            return await reading.list_page(conn, actor, user_id=user_id, kinds=kinds, after=after, limit=2)

        found = await page(first)
        assert [(one.object, one.is_new, dict(one.facts)) for one in found] == [
            (object, True, {"reason": "x"}) for object in ("2", "1", "0")
        ]
        assert [one.object for one in await page(first, found[1].id)] == ["0"]
        await reading.read(conn, actor, user_id=first, up_to=found[1].id)
        assert [one.is_new for one in await page(first)] == [True, False, False]
        # A notice that was read does not become unread.
        await reading.read(conn, actor, user_id=first, up_to=found[2].id)
        assert [one.is_new for one in await page(first)] == [True, False, False]
        assert [one.is_new for one in await page(second)] == [True] * 3


@pytest.mark.parametrize(("used", "share"), [(79, None), (80, "80"), (94, "80"), (95, "95"), (99, "95"), (100, "100")])
async def test_quotas_ring_at_three_levels(pool: Pool, used: int, share: str | None) -> None:
    await organization(pool, quota=100)
    await pool.execute("UPDATE quotas SET used = $1", used)
    for _ in range(2):
        assert await look(pool) == ([] if share is None else [("quota.used", share)])
    assert await pool.fetchval("SELECT facts FROM notices") == (share and f'{{"left":{100 - used},"total":100}}')


async def test_wallets_and_keys_ring_once(pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO wallets (organization_id, currency, available, total, alert_below, updated_at)"
        " VALUES ($1, 'USD', 5, 5, 5, now())",
        actor.organization_id,
    )
    soon, later, gone = (uuid.uuid4() for _ in range(3))
    for id, within, status in ((soon, 6, "active"), (later, 8, "active"), (gone, 6, "revoked")):
        await pool.execute(
            "INSERT INTO api_keys (id, organization_id, name, mode, scopes, status, prefix, last4, secret_hash,"
            " created_at, expires_at) VALUES ($1, $2, 'shop', 'test', '{}', $3, 'x', 'x',"
            " sha256($1::uuid::text::bytea), now(), now() + make_interval(days => $4))",
            id,
            actor.organization_id,
            status,
            within,
        )
    assert await look(pool) == [("key.ending", str(soon))]
    await pool.execute("UPDATE wallets SET available = 4, total = 4")
    for _ in range(2):
        assert await look(pool) == [("key.ending", str(soon)), ("wallet.low", "wallet")]
    assert await pool.fetchval("SELECT mode FROM notices WHERE kind = 'key.ending'") == "test"


async def test_a_wallet_rings_again_only_after_it_was_above_its_alert(pool: Pool) -> None:
    actor = await organization(pool)
    async with pool.acquire() as conn:
        await wallet.top_up(conn, actor.organization_id, amount=10, currency="USD")
        await wallet.set_alert(conn, actor.organization_id, below=5)
        await wallet.top_up(conn, (await organization(pool)).organization_id, amount=1, currency="USD")

    async def rings(amount: int) -> int:
        """How often the bell rang, once the balance has changed by this much and everybody has looked twice."""
        async with pool.acquire() as conn:
            if amount:
                await wallet.adjust(conn, actor.organization_id, amount=amount, reason="a test")
        for _ in range(2):
            found = await look(pool)
        assert {kind for kind, _ in found} <= {"wallet.low"}
        return len(found)

    async def a_while_passes() -> None:
        await pool.execute("UPDATE notices SET created_at = created_at - $1::interval", QUIET)

    assert [await rings(-5), await rings(-1)] == [0, 1]
    facts = {"left": "0.000004", "below": "0.000005", "currency": "USD"}
    assert msgspec.json.decode(await pool.fetchval("SELECT facts FROM notices")) == facts
    # Still below, weeks later: it has been reported.
    await pool.execute("UPDATE notices SET created_at = created_at - interval '30 days'")
    assert [await rings(0), await rings(-1), await rings(1)] == [1, 1, 1]
    # Above, seen or not, and below again.
    assert [await rings(3), await rings(-3)] == [1, 2]
    await a_while_passes()
    async with pool.acquire() as conn:
        await wallet.top_up(conn, actor.organization_id, amount=3)
    assert await rings(-3) == 3
    # Within the hour nothing is reported, but it is not forgotten.
    assert [await rings(3), await rings(-3)] == [3, 3]
    await a_while_passes()
    assert await rings(0) == 4
    # Without an alert none is sent, and a wallet without one can still be topped up.
    async with pool.acquire() as conn:
        await wallet.set_alert(conn, actor.organization_id, below=None)
        await wallet.top_up(conn, actor.organization_id, amount=1)
    await a_while_passes()
    assert await rings(-1) == 4


async def test_what_is_old_is_forgotten(pool: Pool) -> None:
    actor = await organization(pool)
    await tell(
        pool, Notice(actor.organization_id, "quota.used", "80"), Notice(actor.organization_id, "wallet.low", "w")
    )
    await pool.execute(
        "UPDATE notices SET created_at = now() - $1::interval WHERE kind = 'quota.used'", timedelta(days=DAYS, hours=1)
    )
    async with pool.acquire() as conn:
        await forgetting.forget(conn, Settings(secret_key="a secret key for tests, long enough"))
    assert [row["kind"] for row in await pool.fetch(KINDS)] == ["wallet.low"]


async def test_a_key_that_is_suspended_while_keys_are_looked_at_leaves_no_notice(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said to expire for as long as notices are kept."""
    actor = await organization(pool)
    soon = clock.now() + timedelta(days=1)
    async with pool.acquire() as conn:
        key, _ = await lifecycle.issue(conn, actor, name="shop", mode="live", profile="sms", expires_at=soon)
    suspended: list[asyncio.Future[ApiKey]] = []

    async def suspend() -> ApiKey:
        async with pool.acquire() as conn:
            return await lifecycle.suspend(conn, actor, id=key.id)

    async def meanwhile() -> None:
        suspended.append(await begun(pool, suspend()))

    async def then() -> None:
        before(monkeypatch, conditions, "record_many", meanwhile)

    before(monkeypatch, conditions, "record_many", then)  # first of quotas and days, then of keys
    async with pool.acquire() as conn, conn.transaction():
        await conditions.report(conn)
    assert (await suspended[0]).status == "suspended"
    assert await pool.fetch(KINDS) == []


async def test_the_last_minutes_of_a_day_count_toward_its_alert(pool: Pool) -> None:
    """They were sent after the day's last check; and no day is reported long after it."""
    actor = await organization(pool)
    midnight = clock.midnight(clock.now())
    await pool.execute(
        "INSERT INTO usage_days VALUES ($1, $2, 'sms', 'MZ', 'ACME', $3, $3, 6, 6, 0, 0)",
        actor.organization_id,
        (midnight - timedelta(minutes=1)).date(),
        uuid.UUID(int=0),
    )
    async with pool.acquire() as conn:
        await quota.set_alert(conn, actor.organization_id, above=5)
        for minutes in (20, 4, 4):
            await conditions.report(conn, at=midnight + timedelta(minutes=minutes))
            found = [tuple(row) for row in await conn.fetch(KINDS)]
            assert found == (
                [] if minutes == 20 else [("usage.day", (midnight - timedelta(days=1)).date().isoformat())]
            )


async def test_a_day_rings_again_above_a_limit_that_was_raised_since(pool: Pool) -> None:
    actor = await organization(pool)
    noon = clock.midnight(clock.now()) + timedelta(hours=12)
    await pool.execute(
        "INSERT INTO usage_days VALUES ($1, $2, 'sms', 'MZ', 'ACME', $3, $3, 6, 6, 0, 0)",
        actor.organization_id,
        noon.date(),
        uuid.UUID(int=0),
    )
    async with pool.acquire() as conn:
        # Six messages; then nine.
        for above, more, rings in ((5, 0, 1), (8, 0, 1), (8, 3, 2), (8, 0, 2), (7, 0, 2)):
            await quota.set_alert(conn, actor.organization_id, above=above)
            await conn.execute("UPDATE usage_days SET messages = messages + $1", more)
            await conditions.report(conn, at=noon)
            assert await conn.fetchval("SELECT count(*) FROM notices") == rings, (above, more)
        told = await conn.fetch("SELECT facts FROM notices ORDER BY id")
    assert [row[0] for row in told] == ['{"messages":6,"above":5}', '{"messages":9,"above":8}']


async def test_keys_about_to_expire_are_found_without_reading_the_others(pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute(
        """
        INSERT INTO api_keys (id, organization_id, name, mode, scopes, prefix, last4, secret_hash, status, created_at,
                              expires_at)
        SELECT gen_random_uuid(), $1, 'key ' || n, 'live', '{}', 'x', 'x', sha256(n::text::bytea),
               CASE n % 3 WHEN 0 THEN 'revoked' ELSE 'active' END, now(),
               CASE n % 3 WHEN 1 THEN NULL ELSE now() + make_interval(days => n) END
          FROM generate_series(1, 900) AS n
        """,
        actor.organization_id,
    )
    rows = await pool.fetch("EXPLAIN ANALYZE " + conditions.KEYS, timedelta(days=6))
    plan = "\n".join(row[0] for row in rows)
    assert "Rows Removed" not in plan, plan
    found = await pool.fetch(conditions.KEYS, timedelta(days=6))
    assert sorted(row["name"] for row in found) == ["key 2", "key 5"]
