"""State machines: quota with idempotency, and the states of a message with its one event."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from uuid import UUID

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from heliograph.accounts import quota, requests, usage
from heliograph.accounts.quota import Reset
from heliograph.accounts.requests import Answer
from heliograph.base.actor import Actor
from heliograph.base.database.clock import now
from heliograph.base.database.migrate import make_partitions
from heliograph.base.database.pool import Pool
from heliograph.base.errors import Refusal
from heliograph.base.ids import uuid7_floor
from heliograph.consent.optouts import RecipientOptedOut
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.status import STATUSES, Move, guard, may_move, move_many
from tests.rules.factories import TO, check_ledger, message, organization, send
from tests.rules.machines import Machine, run_machine

KEYS = [None, "a", "b", "c"]
TEXTS = ["one", "two"]
SILENT = "+258840000009"


class Quota(Machine):
    """Two processes accept, replay, run out of quota and are granted more; a model knows what each response must be."""

    tables = (
        "usage_ledger",
        "usage_months",
        "usage_closed",
        "send_keys",
        "opt_outs",
        "queue",
        "messages",
        "sender_ids",
        "quotas",
        "organizations",
    )

    @initialize(quotas=st.lists(st.integers(0, 6), min_size=2, max_size=2))
    def begin(self, quotas: list[int]) -> None:
        self.actors = [self.run(organization(self.pool, quota=amount)) for amount in quotas]
        self.left = dict(zip((actor.organization_id for actor in self.actors), quotas, strict=True))
        self.known: dict[tuple[UUID, str], tuple[str, bytes]] = {}
        self.refunded: set[UUID] = set()
        #: Live messages of which only sums are left; the month to be dropped next, and how far it is counted.
        self.gone: dict[UUID, int] = dict.fromkeys(self.left, 0)
        self.month = date(2024, 1, 1)
        self.counted: tuple[UUID, UUID] | None = None
        self.acceptors = [Acceptor(self.pool), Acceptor(self.pool)]
        for actor in self.actors:
            self.run(
                self.pool.execute("INSERT INTO opt_outs VALUES ($1, $2, now(), 't')", actor.organization_id, SILENT)
            )

    @rule(
        posts=st.lists(
            st.tuples(
                st.integers(0, 1), st.sampled_from(KEYS), st.sampled_from(TEXTS), st.sampled_from([TO, TO, SILENT])
            ),
            min_size=1,
            max_size=8,
        ),
        process=st.integers(0, 1),
    )
    def post(self, posts: list[tuple[int, str | None, str, str]], process: int) -> None:
        """One batch: its items count in the order in which they came."""

        async def work() -> list[Answer | BaseException]:
            sends = [send(self.actors[who], text, key_name=key, to=to) for who, key, text, to in posts]
            return await asyncio.gather(*(self.acceptors[process].accept(one) for one in sends), return_exceptions=True)

        # The first item with a key decides about its twins; what those release is used after all the first ones.
        outcomes = self.run(work())
        for (who, key, text, to), outcome in zip(posts, outcomes, strict=True):
            self.check(self.actors[who], key, f"{to}|{text}", to, outcome)

    def check(self, actor: Actor, key: str | None, payload: str, to: str, outcome: Answer | BaseException) -> None:
        id = actor.organization_id
        known = self.known.get((id, key)) if key else None
        match outcome:
            case Answer(replayed=True):
                assert known is not None
                assert (payload, outcome.body) == known
            case Answer():
                assert known is None
                assert to != SILENT
                self.left[id] -= 1
                assert self.left[id] >= 0, "more was accepted than the quota allows"
                if key:
                    self.known[id, key] = (payload, outcome.body)
            case requests.IdempotencyConflict():
                assert known is not None
                assert known[0] != payload
            case RecipientOptedOut():
                assert to == SILENT
            case requests.IdempotencyInProgress() | quota.QuotaExceeded():
                assert isinstance(outcome, Refusal)
            case _:
                raise AssertionError(outcome)

    @rule(who=st.integers(0, 1), amount=st.integers(-3, 5).filter(bool))
    def grant(self, who: int, amount: int) -> None:
        id = self.actors[who].organization_id

        async def work() -> None:
            async with self.pool.acquire() as conn:
                await quota.grant(conn, id, amount=amount, reason="test")

        try:
            self.run(work())
        except quota.QuotaExceeded:
            assert self.left[id] + amount < 0
        else:
            self.left[id] += amount
            assert self.left[id] >= 0

    # Which of several concurrent sends is accepted varies, so random choices must not depend on it.
    @rule(which=st.lists(st.integers(0, 999), max_size=4))
    def refund(self, which: list[int]) -> None:
        """Messages that are never sent, some of them refunded before, in one transaction."""
        rows = self.run(self.pool.fetch("SELECT organization_id, id FROM messages WHERE mode = 'live' ORDER BY id"))
        chosen = [rows[n % len(rows)] for n in which] if rows else []

        async def work() -> set[UUID]:
            async with self.pool.acquire() as conn, conn.transaction():
                return await quota.refund_many(conn, [(row[0], row[1], 1) for row in chosen], "canceled")

        done = self.run(work())
        assert done == {row[1] for row in chosen} - self.refunded
        self.refunded |= done
        for row in rows:
            self.left[row[0]] += row[1] in done

    @rule(who=st.integers(0, 1), allowance=st.integers(0, 6))
    def begin_a_period(self, who: int, allowance: int) -> None:
        id = self.actors[who].organization_id

        async def work() -> None:
            async with self.pool.acquire() as conn, conn.transaction():
                await quota.reset_many(conn, [Reset(id, allowance, None)], reason="period")

        self.run(work())
        self.left[id] = allowance

    @rule(who=st.integers(0, 1))
    def exactly_what_is_left_can_be_sent(self, who: int) -> None:
        actor = self.actors[who]
        left = self.left[actor.organization_id]

        async def work() -> list[Answer | BaseException]:
            return await asyncio.gather(
                *(self.acceptors[n % 2].accept(send(actor)) for n in range(left + 2)), return_exceptions=True
            )

        outcomes = self.run(work())
        assert sum(isinstance(one, Answer) for one in outcomes) == left
        bodies = [msgspec.json.decode(one.body)["remainingQuota"] for one in outcomes if isinstance(one, Answer)]
        assert sorted(bodies) == list(range(left))
        self.left[actor.organization_id] = 0

    @precondition(lambda self: self.counted is None)
    @rule(which=st.sets(st.integers(0, 999), max_size=4))
    def time_passes(self, which: set[int]) -> None:
        """Some messages belong to the month to be dropped next; their keys expired long before."""
        rows = self.run(self.pool.fetch("SELECT organization_id, id FROM messages ORDER BY id"))
        chosen = [rows[n] for n in sorted({n % len(rows) for n in which})] if rows else []

        async def work() -> None:
            at = datetime(self.month.year, self.month.month, 2, tzinfo=UTC)
            async with self.pool.acquire() as conn:
                await make_partitions(conn, self.month, ahead=0)
            for organization_id, id in chosen:
                if id not in self.refunded:
                    old = UUID(int=uuid7_floor(at).int + id.int % 2**62)
                    await self.pool.execute(
                        "UPDATE messages SET id = $3, accepted_at = $4 WHERE organization_id = $1 AND id = $2",
                        organization_id,
                        id,
                        old,
                        at,
                    )
            await self.pool.execute("DELETE FROM send_keys")

        self.run(work())
        self.known.clear()

    @rule(limit=st.integers(1, 3))
    def count_some_of_the_month(self, limit: int) -> None:
        self.run(self.count(limit))

    @rule()
    def the_month_goes(self) -> None:
        """It is counted to its end and dropped in one commit; or the commit fails, and everything is as before."""

        async def work() -> None:
            while await self.count(2):
                pass
            partition = f"messages_{self.month:%Y_%m}"
            async with self.pool.acquire() as conn:
                await make_partitions(conn, self.month, ahead=0)
                lost = await conn.fetch(
                    f"SELECT organization_id, count(*) FROM {partition} WHERE mode = 'live' GROUP BY 1"
                )
                transaction = conn.transaction()
                await transaction.start()
                await conn.execute(f"DELETE FROM {partition}")
                await usage.close(conn, source=partition)
                await transaction.rollback()
                await check_ledger(self.pool, self.left, gone=self.gone)
                async with conn.transaction():
                    await conn.execute(f"DELETE FROM {partition}")
                    await usage.close(conn, source=partition)
            for organization_id, count in lost:
                self.gone[organization_id] += count

        self.run(work())
        self.month = date(self.month.year + self.month.month // 12, self.month.month % 12 + 1, 1)
        self.counted = None

    async def count(self, limit: int) -> bool:
        partition = f"messages_{self.month:%Y_%m}"
        async with self.pool.acquire() as conn, conn.transaction():
            await make_partitions(conn, self.month, ahead=0)
            after = self.counted or (UUID(int=0), UUID(int=0))
            done = await usage.count(conn, partition=partition, month=self.month, after=after, limit=limit)
        if done is not None:
            self.counted = done.last
        return done is not None

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "left"):
            return
        self.run(check_ledger(self.pool, self.left, gone=self.gone))
        rows = self.run(self.pool.fetch("SELECT organization_id, total - used AS remaining FROM quotas"))
        assert {row["organization_id"]: row["remaining"] for row in rows} == self.left
        assert self.run(self.pool.fetchval("SELECT count(*) FROM send_keys")) == len(self.known)


class Life(Machine):
    """Any moves in any order."""

    tables = ("queue", "events", "messages", "usage_ledger", "sender_ids", "quotas", "organizations")

    @initialize()
    def begin(self) -> None:
        self.actor = self.run(organization(self.pool))
        self.ids = [self.run(message(self.pool, self.actor, queued=False)) for _ in range(3)]
        self.status = dict.fromkeys(self.ids, "accepted")
        self.contract: dict[UUID, int] = dict.fromkeys(self.ids, 0)

    @rule(
        moves=st.dictionaries(
            st.integers(0, 2), st.tuples(st.sampled_from(sorted(STATUSES)), st.booleans(), st.booleans()), min_size=1
        )
    )
    def move(self, moves: dict[int, tuple[str, bool, bool]]) -> None:
        """For each of some messages one move, or `sent` and then that move, in one batch."""
        id = self.actor.organization_id
        wanted = []
        expected: dict[UUID, str] = {}
        for n, (status, unsent, sent_before) in moves.items():
            one, old = self.ids[n], self.status[self.ids[n]]
            if sent_before:
                wanted.append(Move(id, one, "sent", now()))
                if may_move(old, "sent"):
                    expected[one] = "sent"
            wanted.append(Move(id, one, status, now(), None, unsent))
            if sent_before and (unsent or not may_move("sent", status)):
                continue  # a supplier has it, so a claim that none has is out of date
            if may_move(old, status) and (not unsent or old == "accepted"):
                expected[one] = status

        async def work() -> set[UUID]:
            async with self.pool.acquire() as conn, conn.transaction():
                return (await move_many(conn, wanted)).ids

        assert self.run(work()) == set(expected)
        self.status |= expected
        for one, status in expected.items():
            if STATUSES[status].event:
                self.contract[one] = 1

    @invariant()
    def each_has_its_status_and_at_most_one_contract_event(self) -> None:
        rows = self.run(
            self.pool.fetch(
                "SELECT m.id, m.status, m.event_id, array_agg(e.id) FILTER (WHERE e.id IS NOT NULL) AS events"
                " FROM messages m LEFT JOIN events e ON e.message_id = m.id GROUP BY 1, 2, 3"
            )
        )
        for row in rows:
            assert row["status"] == self.status[row["id"]]
            events = row["events"] or []
            assert len(events) == self.contract[row["id"]]
            assert events == ([row["event_id"]] if row["event_id"] else [])


async def test_quota_and_idempotency_hold_whatever_is_posted(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Quota, database_url)


async def test_a_message_has_one_life_and_one_event(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Life, database_url)


async def test_the_guard_in_sql_is_the_table_in_python(pool: Pool) -> None:
    rows = await pool.fetch(
        f"SELECT o, n, {guard('o', 'n')} AS may FROM unnest($1::text[]) o, unnest($1::text[]) n", list(STATUSES)
    )
    assert {(row["o"], row["n"]): row["may"] for row in rows} == {
        (old, new): may_move(old, new) for old in STATUSES for new in STATUSES
    }


async def test_the_table_names_the_states_that_the_schema_allows(pool: Pool) -> None:
    check = await pool.fetchval(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid = 'sms_status'::regtype"
    )
    assert all(f"'{status}'" in check for status in STATUSES)
    assert check.count("'::text") == len(STATUSES)
