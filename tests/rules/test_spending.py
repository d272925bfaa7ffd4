"""Daily limits: what exceeds one is refused, however it is accepted, and nothing else is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from heliograph.accounts import spending
from heliograph.accounts.api_keys import lifecycle
from heliograph.accounts.requests import Answer, RateUnit
from heliograph.accounts.spending import Limit, SpendLimitReached
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.status import Move, move_many
from heliograph.traffic import folding
from tests.rules.factories import organization, send

TWO = "a" * 200


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[Acceptor]:
    """Another process's acceptor, with a connection pool of its own."""
    pool = await open_pool(database_url, size=4)
    yield Acceptor(pool)
    await pool.close()


async def limited(pool: Pool, actor: Actor, segments: int | None, **which: Any) -> list[Limit]:
    async with pool.acquire() as conn:
        left = await spending.limit(conn, actor.organization_id, segments=segments, **which)
        # Accepting a single message relies on it.
        noted = await conn.fetchval("SELECT is_limited FROM quotas WHERE organization_id = $1", actor.organization_id)
        assert noted == bool(left)
        return left


async def used(pool: Pool, actor: Actor) -> list[int]:
    async with pool.acquire() as conn:
        return [one.used for one in await spending.limits(conn, actor.organization_id)]


@pytest.mark.parametrize(
    ("at", "seconds"),
    [("2028-02-29T00:00:00", 86_400), ("2028-02-29T23:59:40.400", 20), ("2028-12-31T23:59:59.999", 1)],
)
def test_nobody_is_told_to_return_before_midnight(monkeypatch: pytest.MonkeyPatch, at: str, seconds: int) -> None:
    """The header used to be rounded down, so that whoever obeyed it was refused a second time."""
    now = datetime.fromisoformat(at).replace(tzinfo=UTC)
    monkeypatch.setattr(clock, "now", lambda: now)
    refusal = spending.reached("key")
    assert refusal.headers == {"retry-after": str(seconds)}
    assert refusal.details["resetsAt"] == clock.iso(clock.midnight(now) + timedelta(days=1))


async def test_one_after_the_other_until_the_limit(pool: Pool) -> None:
    actor, other, acceptor = await organization(pool), await organization(pool), Acceptor(pool)
    await limited(pool, actor, 5)
    for n in range(2):
        assert (await acceptor.accept(send(actor, TWO, key_name=f"k{n}"))).status == 202
    with pytest.raises(SpendLimitReached) as refused:
        await acceptor.accept(send(actor, TWO, key_name="k2"))
    assert (refused.value.status, refused.value.details["scope"]) == (429, "organization")
    assert refused.value.details["resetsAt"].endswith("T00:00:00.000Z")
    assert int(refused.value.headers["retry-after"]) <= 86_400
    assert (await acceptor.accept(send(actor, "short"))).status == 202, "one segment is left"
    with pytest.raises(SpendLimitReached):
        await acceptor.accept(send(actor, "short"))
    again = await acceptor.accept(send(actor, TWO, key_name="k1"))
    assert again.replayed, "what was answered is answered"
    assert await used(pool, actor) == [5]
    assert await pool.fetchval("SELECT used FROM quotas WHERE organization_id = $1", actor.organization_id) == 3
    test = msgspec.structs.replace(actor, mode="test")
    assert (await acceptor.accept(send(test, TWO))).status == 202
    assert (await acceptor.accept(send(other, TWO))).status == 202
    await pool.execute("UPDATE spend_limits SET day = day - 1")
    assert (await acceptor.accept(send(actor, TWO, key_name="k2"))).status == 202
    assert await used(pool, actor) == [2]
    await limited(pool, actor, None)
    for _ in range(5):
        assert (await acceptor.accept(send(actor, TWO))).status == 202


async def test_whoever_began_before_midnight_does_not_undo_the_new_day(pool: Pool) -> None:
    """Another process, whose transaction began after midnight, had the organization's lock first."""
    actor, acceptor = await organization(pool), Acceptor(pool)
    await limited(pool, actor, 5)
    await pool.execute("UPDATE spend_limits SET day = day + 1, used = 4")
    with pytest.raises(SpendLimitReached):
        await acceptor.accept(send(actor, TWO))
    assert (await acceptor.accept(send(actor, "short"))).status == 202
    tomorrow = (clock.now() + timedelta(days=1)).date()
    assert tuple(await pool.fetchrow("SELECT used, day FROM spend_limits")) == (5, tomorrow)


async def test_a_day_from_before_the_clock_was_set_back_does_not_count(pool: Pool) -> None:
    actor, acceptor = await organization(pool), Acceptor(pool)
    await limited(pool, actor, 5)
    await pool.execute("UPDATE spend_limits SET day = day + 40, used = 5")
    assert await used(pool, actor) == [0]
    assert (await acceptor.accept(send(actor, TWO))).status == 202
    assert await used(pool, actor) == [2]


async def test_many_at_once_never_pass_it(pool: Pool, second: Acceptor) -> None:
    actor, first = await organization(pool), Acceptor(pool)
    await limited(pool, actor, 15)
    waiting = [one.accept_many([send(actor, TWO) for _ in range(20)]) for one in (first, second)]
    outcomes = [outcome for batch in waiting for outcome in await batch]
    stored = [one for one in outcomes if isinstance(one, Answer)]
    assert len(stored) == 7
    assert all(isinstance(one, SpendLimitReached) for one in outcomes if one not in stored)
    assert await used(pool, actor) == [14]
    assert await pool.fetchval("SELECT sum(segments) FROM messages") == 14


async def test_a_key_has_its_own(pool: Pool) -> None:
    actor, acceptor = await organization(pool), Acceptor(pool)
    async with pool.acquire() as conn:
        made = [await lifecycle.issue(conn, actor, name=name, profile="sms_only", mode="live") for name in ("a", "b")]
    keys = [msgspec.structs.replace(actor, key_id=key.id) for key, _ in made]
    await limited(pool, actor, 2, key_id=keys[0].key_id)
    await limited(pool, actor, 5)
    outcomes = await acceptor.accept_many([send(keys[n % 2]) for n in range(8)])
    scopes = [None if isinstance(one, Answer) else one.details["scope"] for one in outcomes]
    # The organization's limit is counted as if the key's had been stored too.
    assert scopes[:6] == [None, None, None, None, "key", "organization"]
    assert set(scopes[6:]) == {"organization"}
    assert await used(pool, actor) == [4, 2]
    assert (await acceptor.accept(send(keys[1]))).status == 202
    with pytest.raises(SpendLimitReached) as refused:
        await acceptor.accept(send(keys[0]))
    assert refused.value.details["scope"] in ("organization", "key")
    other = await organization(pool)
    with pytest.raises(NotFound):
        await limited(pool, other, 5, key_id=keys[0].key_id)


async def test_a_new_limit_counts_what_was_accepted_a_moment_ago(pool: Pool) -> None:
    """Before and after it is folded, and whatever has become of it."""
    actor, acceptor = await organization(pool), Acceptor(pool)
    async with pool.acquire() as conn:
        key, _ = await lifecycle.issue(conn, actor, name="a", profile="sms_only", mode="live")
    unit = RateUnit(key.id, 1000)
    sent = msgspec.structs.replace(actor, key_id=key.id)
    answer = await acceptor.accept(send(sent, TWO, rate_unit=unit))
    await acceptor.accept(send(actor, TWO))
    await acceptor.accept(send(msgspec.structs.replace(actor, mode="test"), TWO))
    id = UUID(msgspec.json.decode(answer.body)["message"]["id"])
    async with pool.acquire() as conn, conn.transaction():
        await move_many(conn, [Move(actor.organization_id, id, "sent", clock.now())])
    for _ in range(2):
        for which in (None, key.id):
            await limited(pool, actor, 5, key_id=which)
        assert await used(pool, actor) == [4, 2]
        for which in (None, key.id):
            await limited(pool, actor, None, key_id=which)
        async with pool.acquire() as conn:
            await folding.fold(conn)
    await limited(pool, actor, 5)
    with pytest.raises(SpendLimitReached):
        await acceptor.accept(send(actor, TWO))


async def test_what_was_sent_today_counts_from_the_start(pool: Pool) -> None:
    actor = await organization(pool)
    await pool.execute(
        "INSERT INTO usage_days (organization_id, day, channel, country, sender, campaign_id, key_id, messages,"
        " segments, refunds, refunded) SELECT $1, (now() AT TIME ZONE 'UTC')::date, 'sms', 'MZ', 'A',"
        " id, id, 4, 6, 0, 0"
        " FROM (SELECT '00000000-0000-0000-0000-000000000000'::uuid AS id) none",
        actor.organization_id,
    )
    assert await limited(pool, actor, 10) == [Limit(None, 10, 6, by_operator=True)]
    assert await limited(pool, actor, 8) == [Limit(None, 8, 6, by_operator=True)]
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'spend_limit.changed'") == 2
    for wrong in (0, -1, 10**13):
        with pytest.raises(Invalid):
            await limited(pool, actor, wrong)


async def test_the_key_that_replaces_another_has_its_limit(pool: Pool) -> None:
    """With today's usage, and just as firmly: rotating a key neither lifts its limit nor resets the day."""
    actor, acceptor = await organization(pool), Acceptor(pool)
    async with pool.acquire() as conn:
        old, _ = await lifecycle.issue(conn, actor, name="a", profile="sms_only", mode="live")
        unlimited, _ = await lifecycle.issue(conn, actor, name="b", profile="sms_only", mode="live")
    await limited(pool, actor, 3, key_id=old.id)
    await acceptor.accept(send(msgspec.structs.replace(actor, key_id=old.id), TWO))
    async with pool.acquire() as conn:
        new, _, _ = await lifecycle.rotate(conn, actor, id=old.id, overlap=timedelta(days=1))
        await lifecycle.rotate(conn, actor, id=unlimited.id, overlap=timedelta(days=1))
        found = {one.key_id: one for one in await spending.limits(conn, actor.organization_id)}
    assert found == {id: Limit(id, 3, 2, by_operator=True) for id in (old.id, new.id)}
    sent = msgspec.structs.replace(actor, key_id=new.id)
    with pytest.raises(SpendLimitReached):
        await acceptor.accept(send(sent, TWO))
    assert (await acceptor.accept(send(sent))).status == 202
