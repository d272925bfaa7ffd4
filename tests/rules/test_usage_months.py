"""Usage by month and by day: whatever happens in whatever order, folded or not, it adds up to the ledger."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from heliograph import traffic
from heliograph.accounts import organizations, quota
from heliograph.accounts import usage as ledger
from heliograph.accounts.quota import QuotaExceeded, Reset
from heliograph.accounts.requests import RateUnit
from heliograph.base.actor import Actor
from heliograph.base.database.clock import now
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.errors import Invalid
from heliograph.base.ids import uuid7
from heliograph.overview import usage
from heliograph.overview.exports import references
from heliograph.retention import removing
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.accepting.bulk import Bulk, accept_bulk
from tests.rules.factories import send, sender
from tests.rules.machines import Machine, run_machine

LEDGER = """
SELECT organization_id, type, sum(quantity)::bigint AS quantity, coalesce(sum(segments), 0)::bigint AS segments
  FROM usage_entries GROUP BY 1, 2
"""
CAMPAIGN = """
INSERT INTO campaigns (organization_id, id, channel, name, status, mode, message_template, sender_id, audience_tags,
                       audience_tag_match_mode, request_id, created_at)
VALUES ($1, $2, 'sms', 'Sale', 'running', 'live', 'hi', $2, $3, 'any', 'r', now())
"""
REMAINING = "SELECT organization_id, total - used FROM quotas"


async def granted_organization(pool: Pool, *, amount: int) -> Actor:
    """An organization whose quota was granted by the rule."""
    async with pool.acquire() as conn:
        one = await organizations.create(conn, name=f"Acme {uuid7()}")
        await quota.grant(conn, one.id, amount=amount, reason="first")
    actor = Actor(one.id, None, "live", frozenset({"sms:send"}), "active")
    await sender(pool, actor, "HELIOGRAPH", default=True)
    return actor


async def stage(conn: Connection, actor: Actor, count: int, campaign_id: UUID) -> None:
    await accept_bulk(
        conn,
        Bulk(
            organization_id=actor.organization_id,
            mode="live",
            campaign_id=campaign_id,
            sender_id=uuid7(),
            sender="BULK",
            request_id="r",
            ids=[uuid7() for _ in range(count)],
            recipients=["+258840000001", "+258840000002", "+12015550123"][:count],
            texts=[],
            text="hi",
            encodings=["gsm7"] * count,
            segments=[2] * count,
            due=[],
        ),
        at=now(),
    )


class Counted(Machine):
    """Messages of two organizations are accepted, refunded, granted and renewed, while deltas are folded."""

    tables = (
        "traffic", "traffic_deltas", "usage_days", "usage_counts", "send_keys", "queue", "events", "messages",
        "usage_ledger", "usage_months", "sender_ids", "quotas", "organizations",
    )  # fmt: skip

    @initialize()
    def begin(self) -> None:
        self.actors = [self.run(granted_organization(self.pool, amount=12)) for _ in range(2)]
        self.acceptor = Acceptor(self.pool)

    async def _with(self, work: Any, *values: Any, **named: Any) -> None:
        async with self.pool.acquire() as conn, conn.transaction():
            await work(conn, *values, **named)

    @rule(
        posts=st.lists(
            st.tuples(
                st.integers(0, 1),
                st.sampled_from(["live", "test"]),
                st.sampled_from(["+258841234567", "+351912345678"]),
                st.sampled_from(["hi", "x" * 200]),
            ),
            min_size=1,
            max_size=5,
        )
    )
    def accept(self, posts: list[tuple[int, str, str, str]]) -> None:
        async def work() -> None:
            sends = [
                send(msgspec.structs.replace(self.actors[n], mode=mode), text, to=to) for n, mode, to, text in posts
            ]
            await asyncio.gather(*(self.acceptor.accept(one) for one in sends), return_exceptions=True)

        self.run(work())

    @rule(who=st.integers(0, 1), count=st.integers(1, 3))
    def stage(self, who: int, count: int) -> None:
        self.run(self._with(stage, self.actors[who], count, uuid7()))

    @rule(share=st.integers(1, 4))
    def refund(self, share: int) -> None:
        async def work() -> None:
            rows = await self.pool.fetch("SELECT organization_id, id, segments FROM messages ORDER BY id")
            asked = [tuple(row) for row in rows][::share]
            if asked:
                await self._with(quota.refund_many, asked, "canceled")

        self.run(work())

    @rule(who=st.integers(0, 1), share=st.integers(1, 3))
    def remove(self, who: int, share: int) -> None:
        """Like retention for an organization that keeps its messages for a shorter time."""

        async def work() -> None:
            owner = self.actors[who].organization_id
            rows = await self.pool.fetch("SELECT id FROM messages WHERE organization_id = $1 ORDER BY id", owner)
            if ids := [row["id"] for row in rows][::share]:
                await self.pool.execute(removing.REMOVE_SMS, owner, ids, ids[0], ids[-1])

        self.run(work())

    @rule(who=st.integers(0, 1), amount=st.integers(-9, 9).filter(bool), corrects=st.booleans())
    def change(self, who: int, amount: int, corrects: bool) -> None:
        change = quota.adjust if corrects else quota.grant
        with contextlib.suppress(QuotaExceeded):
            self.run(self._with(change, self.actors[who].organization_id, amount=amount, reason="some"))

    @rule(allowance=st.integers(0, 9))
    def renew(self, allowance: int) -> None:
        resets = [Reset(one.organization_id, allowance, None) for one in self.actors]
        self.run(self._with(quota.reset_many, sorted(resets, key=lambda one: one.organization_id.int), reason="new"))

    @rule()
    def fold(self) -> None:
        self.run(self._with(traffic.fold))

    @invariant()
    def it_adds_up_to_the_usage_list(self) -> None:
        self.run(check(self.pool, self.actors))


async def check(pool: Pool, actors: list[Actor]) -> None:
    """To the message, in months and in every split of a bill."""
    entries: dict[UUID, dict[str, tuple[int, int]]] = {}
    for row in await pool.fetch(LEDGER):
        entries.setdefault(row[0], {})[row[1]] = (row[2], row[3])
    remaining = {row[0]: row[1] for row in await pool.fetch(REMAINING)}
    async with pool.acquire() as conn:
        for actor in actors:
            known = entries[actor.organization_id]
            listed = await usage.months(conn, actor)
            assert usage.total(listed) == remaining[actor.organization_id]
            kinds = {"usage": -1, "refund": 1, "adjustment": 1, "grant": 1}
            found = {
                "usage": sum(one.sent for one in listed),
                "refund": sum(one.refunds for one in listed),
                "adjustment": sum(one.adjustments for one in listed),
                "grant": sum(one.grants for one in listed),
            }
            assert found == {kind: sign * known.get(kind, (0, 0))[0] for kind, sign in kinds.items()}
            assert sum(one.segments for one in listed) == known.get("usage", (0, 0))[1]
            for by in (*references.SPLITS, "reference:3"):
                bills = [await references.bill(conn, actor, month=one.month, by=by) for one in listed]
                assert sum(one.quantity for one in bills) == remaining[actor.organization_id], by
                refunded = sum(line.segments for one in bills for line in one.lines if line.type == "refund")
                assert refunded == known.get("refund", (0, 0))[1], by


async def test_months_and_bills_add_up_to_the_usage_list(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Counted, database_url)


async def test_a_bill_by_references_is_counted_in_steps_and_adds_up(pool: Pool) -> None:
    actor, other = await granted_organization(pool, amount=100), await granted_organization(pool, amount=100)
    acceptor = Acceptor(pool)
    given = ["shop-1", "shop-2", "shop:3", "app/7", "plain", "-none", None, "x" * 70 + "-1", "éé-1"]
    for reference in given:
        await acceptor.accept(send(actor, client_reference=reference))
    await acceptor.accept(send(other, client_reference="shop-1"))
    await acceptor.accept(send(msgspec.structs.replace(actor, mode="test"), client_reference="shop-1"))
    first = await pool.fetchval(
        "SELECT id FROM messages WHERE client_reference = 'shop-1' AND mode = 'live' AND organization_id = $1",
        actor.organization_id,
    )
    async with pool.acquire() as conn:
        async with conn.transaction():
            await quota.refund_many(conn, [(actor.organization_id, first, 1)], "canceled")
        month = now().date()

        async def lines(by: str, look: int) -> set[tuple[str, str, int]]:
            counted, steps = references.Counted(), 1
            while (further := await references.step(conn, actor, counted, month=month, by=by, look=look)) is not None:
                # As stored between two steps.
                counted = msgspec.json.decode(msgspec.json.encode(further), type=references.Counted)
                steps += 1
            assert steps > len(given) / look
            bill = await references.billed(conn, actor, counted, month=month, by=by)
            assert bill.quantity == await pool.fetchval(
                "SELECT total - used FROM quotas WHERE organization_id = $1", actor.organization_id
            )
            return {(one.type, one.value, one.quantity) for one in bill.lines if one.type in ("usage", "refund")}

        for look in (2, 50):
            assert await lines("reference", look) == {
                ("usage", "shop", -3), ("usage", "app", -1), ("usage", "éé", -1), ("usage", "", -4),
                ("refund", "shop", 1),
            }  # fmt: skip
        by_one = await lines("reference:1", 3)
        assert {one for one in by_one if one[0] == "usage"} == {
            ("usage", "s", -3), ("usage", "a", -1), ("usage", "p", -1), ("usage", "-", -1), ("usage", "x", -1),
            ("usage", "é", -1), ("usage", "", -1),
        }  # fmt: skip
        for wrong in ("reference:0", "reference:100", "reference:x", "references"):
            with pytest.raises(Invalid):
                await references.bill(conn, actor, month=month, by=wrong)


async def test_a_bill_names_campaigns_keys_and_senders(pool: Pool) -> None:
    actor = await granted_organization(pool, amount=100)
    key, campaign = uuid7(), uuid7()
    await pool.execute(
        "INSERT INTO api_keys (id, organization_id, name, mode, scopes, prefix, last4, secret_hash, created_at)"
        " VALUES ($1, $2, '=shop', 'live', '{sms:send}', 'hg', 'abcd', sha256('x'), now())",
        key,
        actor.organization_id,
    )
    acceptor = Acceptor(pool)
    for _ in range(3):
        await acceptor.accept(send(actor, rate_unit=RateUnit(key, 60)))
    async with pool.acquire() as conn:
        async with conn.transaction():
            await stage(conn, actor, 2, campaign)
        month = now().date()
        by_key = await usage.bill(conn, actor, month=month, by="key")
        assert [(one.value, one.name, one.quantity) for one in by_key.lines if one.type == "usage"] == [
            (str(key), "=shop", -3),
            ("", "", -2),
        ]
        by_campaign = await usage.bill(conn, actor, month=month, by="campaign")
        assert {(one.value, one.quantity, one.segments) for one in by_campaign.lines if one.type == "usage"} == {
            ("", -3, 3),
            (str(campaign), -2, 4),
        }
        text = await usage.export(conn, actor, actor.principal, made=by_key, as_json=False, delimiter=";")
        assert f"{month:%Y-%m};usage;sms;key;{key};'=shop;-3;3" in text.splitlines()
        document = msgspec.json.decode(
            await usage.export(
                conn, actor, actor.principal, made=await usage.bill(conn, actor, month=month, by="sender"), as_json=True
            )
        )
        assert (document["quantity"], document["messages"], document["segments"]) == (95, 5, 7)
        assert sum(line["quantity"] for line in document["lines"]) == 95
    assert await pool.fetchval("SELECT count(*) FROM audit_log WHERE action = 'usage.exported'") == 2


async def test_a_bill_by_tag_has_each_message_once(pool: Pool) -> None:
    """Campaigns to the same tags are one line; messages without tags are a line too."""
    actor, other = await granted_organization(pool, amount=100), await granted_organization(pool, amount=100)
    both, again, one, listed, comma = (uuid7() for _ in range(5))
    for owner, id, tags in (
        (actor, both, ["maputo", "customers"]),
        (actor, again, ["customers", "maputo"]),
        (actor, one, ["customers"]),
        (actor, listed, None),
        # One tag, which is written as in files.
        (actor, comma, ["customers, maputo"]),
    ):
        await pool.execute(CAMPAIGN, owner.organization_id, id, tags)
    await Acceptor(pool).accept(send(actor))
    async with pool.acquire() as conn:
        for id, count in ((both, 3), (again, 1), (one, 2), (listed, 1), (comma, 1)):
            async with conn.transaction():
                await stage(conn, actor, count, id)
            await traffic.fold(conn)
        # Another organization's campaign with the same id is not read.
        async with conn.transaction():
            await stage(conn, other, 1, one)
        for owner, wanted in (
            (actor, [("customers, maputo", -4), ("", -2), ("customers", -2), ('"customers, maputo"', -1)]),
            (other, [("", -1)]),
        ):
            bill = await usage.bill(conn, owner, month=now().date(), by="tag")
            assert [(line.value, line.quantity) for line in bill.lines if line.type == "usage"] == wanted
            assert bill.quantity == (await quota.get(conn, owner.organization_id)).remaining


async def test_the_pace_says_when_the_quota_will_be_gone(pool: Pool) -> None:
    actor = await granted_organization(pool, amount=1000)
    async with pool.acquire() as conn:
        balance = await quota.get(conn, actor.organization_id)
        assert await usage.pace(conn, actor, balance) == usage.Pace(0, None)
        await conn.execute(
            "INSERT INTO usage_days"
            " SELECT $1, (now() AT TIME ZONE 'UTC')::date - 1, 'sms', 'MZ', 'X', $2, $2, 700, 700, 0, 0",
            actor.organization_id,
            UUID(int=0),
        )
        found = await usage.pace(conn, actor, balance)
        assert found.daily == 100
        assert found.gone_at is not None
        assert 9.9 < (found.gone_at - now()).total_seconds() / 86_400 < 10.1
        soon = msgspec.structs.replace(balance, resets_at=datetime.now(UTC))
        assert (await usage.pace(conn, actor, soon)).gone_at is None
    assert [usage.level(quota.Quota(100, used, None)) for used in (0, 79, 80, 95, 99, 100)] == [
        None, None, 80, 95, 95, 100,
    ]  # fmt: skip


async def test_months_stay_when_their_messages_go(pool: Pool) -> None:
    actor = await granted_organization(pool, amount=100)
    acceptor = Acceptor(pool)
    for n in range(3):
        await acceptor.accept(send(actor, "x" * 200 * (n + 1)))
    async with pool.acquire() as conn:
        before = await usage.months(conn, actor)
        month = now().date().replace(day=1)
        partition = f"messages_{month:%Y_%m}"
        async with conn.transaction():
            await ledger.count(conn, partition=partition, month=month, after=(UUID(int=0), UUID(int=0)), limit=100)
            await conn.execute("DELETE FROM messages")
            await ledger.close(conn, source=partition)
        assert await usage.months(conn, actor) == before
    await check(pool, [actor])


async def test_the_sum_of_removed_messages_has_the_balance_after_the_last_of_them(pool: Pool) -> None:
    """Those of a chunk were all accepted at the same time."""
    actor = await granted_organization(pool, amount=10)
    async with pool.acquire() as conn, conn.transaction():
        await stage(conn, actor, 3, uuid7())
    ids = [row["id"] for row in await pool.fetch("SELECT id FROM messages ORDER BY id")]
    await pool.execute(removing.REMOVE_SMS, actor.organization_id, ids, ids[0], ids[-1])
    async with pool.acquire() as conn:
        summed = (await ledger.list_page(conn, actor)).entries[0]
    assert (summed.quantity, summed.balance_after) == (-3, 7)
