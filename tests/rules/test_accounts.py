"""Organizations, their quota and their plans."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.accounts import organizations, plans, quota
from heliograph.accounts.plans import Terms
from heliograph.accounts.quota import Quota, QuotaExceeded
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import uuid7
from heliograph.sms.accepting.accept import Acceptor
from tests.rules.factories import organization, send


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
        with pytest.raises(Invalid, match="at least one country"):
            await organizations.configure(conn, id=made.id, allowed_countries=[])
        other = await organizations.create(conn, name="Other")
        assert [each.id for each in await organizations.list_all(conn)] == [other.id, made.id]


@pytest.mark.parametrize("state", ["active", "trial", "past_due"])
async def test_a_stopped_organization_resumes_as_what_it_was(pool: Pool, state: str) -> None:
    async with pool.acquire() as conn:
        one = await organizations.create(conn, name="Acme", state=state)
        for stops in (["suspended"], ["closed"], ["suspended", "suspended", "closed", "suspended"]):
            for stop in stops:
                await organizations.set_state(conn, id=one.id, state=stop)
            assert (await organizations.resume(conn, id=one.id)).state == state, stops
        # Resumed a second time, or from a page loaded earlier, it stays as it is.
        assert (await organizations.resume(conn, id=one.id)).state == state
        await organizations.set_state(conn, id=one.id, state="closed")
        await organizations.set_state(conn, id=one.id, state="past_due")
        assert (await organizations.resume(conn, id=one.id)).state == "past_due"
        told = await conn.fetch("SELECT after FROM audit_log WHERE object_id = $1 ORDER BY id", str(one.id))
        assert len(told) == 1 + 2 + 2 + 5 + 2, "what changed nothing is not told"
        made = await organizations.create(conn, name="Beta", state="suspended")
        assert (await organizations.resume(conn, id=made.id)).state == "active", "it was in no other"


async def test_a_new_organization_sends_to_its_own_country(pool: Pool) -> None:
    async with pool.acquire() as conn:
        own = await organizations.create(conn, name="Own", country="mz")
        assert (own.country, own.allowed_countries) == ("MZ", ["MZ"])
        chosen = await organizations.create(conn, name="Chosen", country="MZ", allowed_countries=["ZA", "MZ", "ZA"])
        assert chosen.allowed_countries == ["ZA", "MZ"]
        all_of_them = await organizations.create(conn, name="All", country="MZ", allowed_countries=None)
        assert all_of_them.allowed_countries is None
        for wrong in ([], ["Portugal"]):
            with pytest.raises(Invalid) as refused:
                await organizations.create(conn, name="Wrong", country="MZ", allowed_countries=wrong)
            assert refused.value.details["fields"][0]["field"] == "allowed_countries"


async def test_a_name_belongs_to_one_organization_in_any_case(pool: Pool) -> None:
    async with pool.acquire() as conn:
        acme = await organizations.create(conn, name="Acme")
        beta = await organizations.create(conn, name="Beta")
        with pytest.raises(Invalid, match=f"already an organization named 'ACME': {acme.id}"):
            await organizations.create(conn, name=" ACME ")
        with pytest.raises(Invalid, match=f"already an organization named 'acme': {acme.id}"):
            await organizations.rename(conn, id=beta.id, name="acme")
        for name, said in (("", "1 to 200"), ("a\nb", "control characters"), ("x" * 201, "1 to 200")):
            with pytest.raises(Invalid, match=said):
                await organizations.rename(conn, id=beta.id, name=name)
        with pytest.raises(NotFound):
            await organizations.rename(conn, id=uuid7(), name="Gamma")
        assert (await organizations.rename(conn, id=acme.id, name="ACME")).name == "ACME", "its own in another case"
        assert (await organizations.rename(conn, id=beta.id, name="Gamma")).id == beta.id
        assert (await organizations.create(conn, name="Beta")).name == "Beta", "the old name is free again"


async def test_two_who_ask_for_one_name_at_once_make_one_organization(pool: Pool) -> None:
    async def create() -> str:
        async with pool.acquire() as conn:
            try:
                return (await organizations.create(conn, name="Acme")).name
            except Invalid as refusal:
                return str(refusal.details["fields"][0]["issue"])

    assert sorted(await asyncio.gather(*(create() for _ in range(5)))) == ["Acme", *["taken"] * 4]
    assert await pool.fetchval("SELECT count(*) FROM organizations") == 1


async def test_whoever_names_no_organization_or_a_wrong_one_is_told_which_there_are(pool: Pool) -> None:
    async with pool.acquire() as conn:
        with pytest.raises(NotFound, match="heliograph org create"):
            await organizations.find(conn, reference=None)
        acme = await organizations.create(conn, name="Acme")
        assert await organizations.find(conn, reference=None) == acme
        for number in range(11):
            await organizations.create(conn, name=f"Beta {number:02}")
        for reference in ("aCmE", str(acme.id).upper()):
            assert await organizations.find(conn, reference=reference) == acme
        with pytest.raises(Invalid, match=r"'Acme', 'Beta 00'.*'Beta 08', …"):
            await organizations.find(conn, reference=None)
        with pytest.raises(NotFound, match=r"no organization 'Akme'\. There are: 'Acme'"):
            await organizations.find(conn, reference="Akme")


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
        rows = await conn.fetch("SELECT type, quantity, balance_after, reason FROM usage_entries ORDER BY id")
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
            "SELECT quantity, balance_after, segments, message_id, reason FROM usage_entries"
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
    """The ledger's sum is the remaining quota, and its last row says so."""
    rows = await pool.fetch(
        "SELECT total - used AS remaining, sum(quantity) AS booked,"
        "       (array_agg(balance_after ORDER BY ledger.id DESC))[1] AS last"
        "  FROM quotas JOIN usage_entries ledger USING (organization_id) GROUP BY organization_id"
    )
    assert [row for row in rows if not row["remaining"] == row["booked"] == row["last"]] == []


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("anchor", "months", "now", "start", "end"),
    [
        ("2026-01-31", 1, "2026-01-31", "2026-01-31", "2026-02-28"),
        ("2026-01-31", 1, "2026-02-28", "2026-02-28", "2026-03-31"),
        ("2026-01-31T12:00", 1, "2026-02-28T11:59", "2026-01-31T12:00", "2026-02-28T12:00"),
        ("2024-02-29", 12, "2025-03-01", "2025-02-28", "2026-02-28"),
        ("2024-02-29", 12, "2028-02-29", "2028-02-29", "2029-02-28"),
        ("2025-11-15", 3, "2026-02-14", "2025-11-15", "2026-02-15"),
        ("2025-11-15", 3, "2026-02-15", "2026-02-15", "2026-05-15"),
    ],
)
def test_periods_by_the_calendar(anchor: str, months: int, now: str, start: str, end: str) -> None:
    assert plans.period(at(anchor), months, at(now)) == (at(start), at(end))


SPANS = st.timedeltas(timedelta(0), timedelta(days=15_000))


@given(since=SPANS, months=st.integers(1, 120), passed=SPANS)
def test_periods_follow_each_other_without_a_gap(since: timedelta, months: int, passed: timedelta) -> None:
    anchor = at("2020-01-01") + since
    now = anchor + passed
    start, end = plans.period(anchor, months, now)
    assert anchor <= start <= now < end
    assert plans.period(anchor, months, end)[0] == end
    assert plans.period(anchor, months, start) == (start, end)


async def test_a_plan_brings_its_quota_again_and_again(pool: Pool) -> None:
    now = at("2026-01-31T10:00")
    async with pool.acquire() as conn:
        id = (await organizations.create(conn, name="Acme")).id
        assert plans.subscription(await organizations.get(conn, id=id)) is None
        await quota.grant(conn, id, amount=30, reason="welcome")
        await plans.subscribe(conn, id, Terms(" business ", 100), now=now)
        await conn.execute("UPDATE quotas SET used = 40")
        await conn.execute(
            "INSERT INTO usage_ledger (organization_id, id, type, channel, quantity, balance_after, created_at)"
            " VALUES ($1, $2, 'adjustment', 'sms', -40, 60, now())",
            id,
            uuid7(),
        )
        assert await plans.renew(conn, now=at("2026-02-28T09:59")) == 0
        assert await plans.renew(conn, now=at("2026-02-28T10:00")) == 1
        assert await plans.renew(conn, now=at("2026-02-28T10:00")) == 0
        assert await quota.get(conn, id) == Quota(100, 0, at("2026-03-31T10:00"))
        await quota.grant(conn, id, amount=5, reason="more")
        # No worker was running in April.
        assert await plans.renew(conn, now=at("2026-05-05T00:00")) == 1
        subscribed = plans.subscription(await organizations.get(conn, id=id))
        assert subscribed == plans.Subscription("business", "active", at("2026-04-30T10:00"), at("2026-05-31T10:00"))
        assert await quota.get(conn, id) == Quota(100, 0, at("2026-05-31T10:00"))
        await organizations.set_state(conn, id=id, state="closed")
        assert await plans.renew(conn, now=at("2026-07-01T00:00")) == 0
        await organizations.set_state(conn, id=id, state="trial")
        await plans.unsubscribe(conn, id)
        assert await plans.renew(conn, now=at("2026-07-01T00:00")) == 0
        assert plans.subscription(await organizations.get(conn, id=id)) is None
        assert await quota.get(conn, id) == Quota(100, 0, None)
        rows = await conn.fetch("SELECT type, quantity, balance_after, reason FROM usage_entries ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("grant", 30, 30, "welcome"),
        ("adjustment", -30, 0, "plan business: remaining quota expired"),
        ("grant", 100, 100, "plan business"),
        ("adjustment", -40, 60, None),
        ("adjustment", -60, 0, "new period: remaining quota expired"),
        ("grant", 100, 100, "new period"),
        ("grant", 5, 105, "more"),
        ("adjustment", -105, 0, "new period: remaining quota expired"),
        ("grant", 100, 100, "new period"),
    ]
    await check_sums(pool)


async def test_a_plan_without_quota_leaves_it_alone(pool: Pool) -> None:
    async with pool.acquire() as conn:
        id = (await organizations.create(conn, name="Acme")).id
        await quota.grant(conn, id, amount=30, reason="bought")
        await plans.subscribe(conn, id, Terms("prepaid", None, 12), now=at("2026-01-01"))
        assert await plans.renew(conn, now=at("2028-06-01")) == 1
        assert await quota.get(conn, id) == Quota(30, 0, None)
        found = await organizations.get(conn, id=id)
        assert (found.period_start, found.period_end) == (at("2028-01-01"), at("2029-01-01"))
        for wanted, anchor in (
            (Terms(" ", None), None),
            (Terms("x" * 101, None), None),
            (Terms("p", None, 0), None),
            (Terms("p", -1), None),
            (Terms("p", None), at("2030-01-01")),
        ):
            with pytest.raises(Invalid):
                await plans.subscribe(conn, id, wanted, now=at("2026-01-01"), anchor=anchor)
        for change in (
            plans.unsubscribe(conn, uuid7()),
            plans.subscribe(conn, uuid7(), Terms("p", 1), now=at("2026-01-01")),
        ):
            with pytest.raises(NotFound):
                await change


async def test_a_period_begins_once_whoever_begins_it(pool: Pool) -> None:
    async with pool.acquire() as conn:
        for number in range(7):
            id = (await organizations.create(conn, name=f"Acme {number}")).id
            await plans.subscribe(conn, id, Terms("p", 10), now=at("2026-01-01"))

    async def renew() -> int:
        async with pool.acquire() as conn:
            return await plans.renew(conn, now=at("2026-02-01"))

    assert sum(await asyncio.gather(*(renew() for _ in range(4)))) == 7
    assert await pool.fetchval("SELECT count(*) FROM usage_entries WHERE type = 'grant'") == 14
    await check_sums(pool)


async def test_adjustments_say_so_and_need_a_reason(pool: Pool) -> None:
    async with pool.acquire() as conn:
        id = (await organizations.create(conn, name="Acme")).id
        assert (await quota.adjust(conn, id, amount=5, reason=" found ")).remaining == 5
        with pytest.raises(QuotaExceeded):
            await quota.adjust(conn, id, amount=-6, reason="lost")
        assert (await quota.adjust(conn, id, amount=-2, reason="lost")).remaining == 3
        for reason in ("", " ", "x" * 501, "a\0b"):
            with pytest.raises(Invalid):
                await quota.adjust(conn, id, amount=1, reason=reason)
        rows = await conn.fetch("SELECT type, quantity, reason FROM usage_entries ORDER BY id")
    assert [tuple(row) for row in rows] == [("adjustment", 5, "found"), ("adjustment", -2, "lost")]
