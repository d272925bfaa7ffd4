"""A state machine: two workers stage, send and lose the messages of campaigns while people and operators interfere."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from uuid import UUID

import pytest
from asyncpg import DeadlockDetectedError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from heliograph.accounts import quota
from heliograph.base.actor import Actor
from heliograph.base.errors import Refusal
from heliograph.campaigns import counting, plan
from heliograph.campaigns.staging import Stager
from heliograph.queue import holds
from heliograph.queue.holds import AlreadyAttempted, Selection
from heliograph.sms import messages
from heliograph.sms.accepting import withdrawal
from heliograph.sms.accepting.accept import Acceptor
from heliograph.sms.dispatch import held
from heliograph.suppliers.contract import Outcome, Submission, Verdict
from tests.rules.dispatching import Bench
from tests.rules.factories import accept_all, check_ledger, organization, receipt, send, supplier
from tests.rules.machines import BOUNDED, Machine, run_machine
from tests.rules.test_campaigns import create, number

GRACE, LEASE = 90.0, 60.0
#: What a supplier answers to a submission; None: nothing for now.
WORDS: dict[str, Callable[[Submission], Outcome | None]] = {
    "taken": accept_all,
    "busy": lambda submission: Outcome(Verdict.BUSY),
    "unreachable": lambda submission: Outcome(Verdict.UNREACHABLE),
    "refused": lambda submission: Outcome(Verdict.REFUSED),
    "unknown": lambda submission: Outcome(Verdict.UNKNOWN),
    "silent": lambda submission: None,
}
ENDED = ("completed", "canceled", "failed")
#: The actions, listed several times if they should be more frequent.
WHAT = (
    *["stage"] * 3, *["dispatch"] * 6, *["answer"] * 2, *["time"] * 2, *["pause"] * 2, *["resume"] * 3,
    *["release"] * 2, "kill", "count", "create", "cancel", "pace", "report", "send", "cancel one", "grant", "hold",
    "expire", "withdraw",
)  # fmt: skip
#: An action, a number that chooses its object and amount, and what suppliers answer meanwhile.
Step = tuple[str, int, str]
STEPS = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 99), st.sampled_from(sorted(WORDS))), min_size=1, max_size=3
)


class Campaigns(Machine):
    """Whatever happens at the same time: each recipient gets a campaign at most once, nothing is left behind, and
    everything is counted."""

    tables = (
        "timers", "queue_holds", "campaign_chunks", "campaign_minutes", "campaign_recipients", "campaign_skipped",
        "campaigns", "notices", "receipts", "receipt_bytes", "sms_parts", "attempts", "traffic_deltas", "usage_counts",
        "reconciliation_deltas", "send_keys", "queue", "events", "messages", "usage_ledger", "sender_ids", "quotas",
        "organizations",
    )  # fmt: skip

    @initialize(quota=st.integers(3, 20))
    def begin(self, quota: int) -> None:
        self.actor: Actor = self.run(organization(self.pool, quota=quota))
        self.supplier = supplier()
        self.made: list[UUID] = []
        #: By message: the submissions that its supplier accepted, or may have accepted.
        self.handed: Counter[UUID] = Counter()
        #: By message and attempt: what the supplier answered.
        self.ended: dict[tuple[UUID, int], str] = {}
        self.run(self.pool.execute("INSERT INTO timers (name, next_at) VALUES ($1, now())", held.TIMER))
        self.workers = [Worker(self), Worker(self)]
        for what in ("create", "stage", "stage", "stage"):
            self.run(self.do(what, 6, "taken"))

    @rule(steps=STEPS)
    def at_once(self, steps: list[Step]) -> None:
        async def work() -> None:
            found = await asyncio.gather(*(self.do(*one) for one in steps), return_exceptions=True)
            for one in found:
                # An action that was refused, came too late or lost a deadlock has done nothing.
                if isinstance(one, BaseException) and not isinstance(
                    one, (Refusal, AlreadyAttempted, DeadlockDetectedError)
                ):
                    raise one
            for worker in self.workers:
                await worker.bench.settle()

        self.run(work())

    async def do(self, what: str, which: int, word: str) -> None:
        worker = self.workers[which % 2]
        campaign = self.made[which % len(self.made)] if self.made else None
        match what:
            case "stage":
                await worker.stager.round()
            case "dispatch":
                await worker.dispatch(word)
            case "answer":
                worker.answer("taken" if word == "silent" else word)
            case "kill":
                self.workers[which % 2] = Worker(self)
            case "time":
                await self.pass_time((1.0, LEASE + 1, GRACE + 1)[which % 3])
            case "count":
                await self.count()
            case "create" if len(self.made) < 3:
                numbers = [number(n) for n in range(1 + which % 9)]
                pace = 600 if word == "busy" else None
                made = await create(self.pool, self.actor, recipients=numbers, messages_per_minute=pace)
                self.made.append(made.id)
            case "pause" | "resume" | "cancel" if campaign is not None:
                async with self.pool.acquire() as conn, conn.transaction():
                    await getattr(plan, what)(conn, self.actor, id=campaign)
            case "pace" if campaign is not None:
                async with self.pool.acquire() as conn, conn.transaction():
                    await plan.change_pace(conn, self.actor, id=campaign, messages_per_minute=6000)
            case "report":
                sent = await self.pool.fetch("SELECT id FROM messages WHERE status = 'sent' ORDER BY id")
                if sent:
                    one = sent[which % len(sent)]["id"]
                    await worker.bench.receive(self.supplier.id, receipt(f"{one}-1"))
            case "send":
                await Acceptor(self.pool).accept(send(self.actor, to=number(which), guarantee="at_least_once"))
            case "cancel one":
                if (id := await self.one(which)) is not None:
                    async with self.pool.acquire() as conn:
                        await messages.cancel(conn, self.actor, id=id)
            case "grant":
                async with self.pool.acquire() as conn:
                    await quota.adjust(conn, self.actor.organization_id, amount=which % 9 - 3 or 6, reason="test")
            case "hold":
                async with self.pool.acquire() as conn:
                    await holds.hold(conn, Selection(kinds=("sms",)), reason="test")
            case "release":
                async with self.pool.acquire() as conn:
                    await holds.release(conn, Selection())
            case "expire":
                async with self.pool.acquire() as conn, conn.transaction():
                    await held.expire_stalled(conn)
            case "withdraw":
                async with self.pool.acquire() as conn, conn.transaction():
                    rows = await holds.free(conn, "sms", Selection(kinds=("sms",)), limit=1 + which % 3)
                    if rows:
                        await withdrawal.withdraw_rows(conn, rows, tried=which < 50)

    async def pass_time(self, seconds: float) -> None:
        await self.workers[0].bench.later(seconds=seconds)
        await self.pool.execute("UPDATE campaigns SET step_at = now() WHERE step_at IS NOT NULL")

    async def one(self, which: int) -> UUID | None:
        rows = await self.pool.fetch("SELECT id FROM messages ORDER BY id")
        return rows[which % len(rows)]["id"] if rows else None

    async def count(self) -> None:
        await self.pool.execute("UPDATE campaign_chunks SET count_at = now()")
        async with self.pool.acquire() as conn, conn.transaction():
            await counting.count_due(conn)

    @invariant()
    def nothing_is_lost_doubled_or_miscounted(self) -> None:
        if not hasattr(self, "workers"):
            return
        self.run(self.check())

    async def check(self) -> None:
        await check_ledger(self.pool, [self.actor.organization_id])
        lost = await self.pool.fetch(
            "SELECT id FROM messages WHERE status = 'accepted'"
            " AND NOT EXISTS (SELECT FROM queue WHERE queue.id = messages.id AND kind = 'sms')"
        )
        assert not lost, "accepted, and in nobody's queue"
        twice = await self.pool.fetch(
            "SELECT campaign_id, recipient FROM messages WHERE campaign_id IS NOT NULL"
            " GROUP BY 1, 2 HAVING count(*) > 1"
        )
        assert not twice
        for row in await self.pool.fetch("SELECT * FROM campaigns"):
            parts = ("pending", "queued", "sent", "delivered", "failed", "unknown", "canceled", "opted_out", "invalid")
            assert row["total"] == sum(row[name] for name in parts), dict(row)
            assert min(row[name] for name in parts) >= 0, dict(row)
        rows = await self.pool.fetch("SELECT id, status, campaign_id FROM messages")
        for row in rows:
            took = sorted(state for (id, _), state in self.ended.items() if id == row["id"])
            if row["campaign_id"] is not None:
                assert self.handed[row["id"]] <= 1, took
            if row["status"] in ("canceled", "rejected", "expired"):
                assert not {"taken", "unknown", "silent"} & set(took), (row["status"], took)

    def teardown(self) -> None:
        if hasattr(self, "workers"):
            self.run(self.converge())
        super().teardown()

    async def converge(self) -> None:
        """Everybody continues: everything is sent, or ends, and is counted."""
        async with self.pool.acquire() as conn:
            await holds.release(conn, Selection())
            await quota.adjust(conn, self.actor.organization_id, amount=1000, reason="test")
        for id in self.made:
            with contextlib.suppress(Refusal):
                async with self.pool.acquire() as conn, conn.transaction():
                    await plan.resume(conn, self.actor, id=id)
        last = Worker(self)
        last.bench.only.room = 100
        for _ in range(40):
            while await last.stager.round():
                pass
            await last.dispatch("taken")
            await last.bench.settle()
            await self.check()
            await self.count()
            await self.pass_time(LEASE + 1)
            # A dispatcher polls its suppliers' lines again after a second, which does not pass here.
            last.bench.restart()
            left = await self.pool.fetchval("SELECT count(*) FROM queue WHERE kind = 'sms'")
            steps = await self.pool.fetchval("SELECT count(*) FROM campaigns WHERE step_at IS NOT NULL")
            if not left and not steps:
                break
        else:
            rows = await self.pool.fetch("SELECT * FROM queue")
            raise AssertionError(f"it never comes to rest: {rows}, {await self.pool.fetch('SELECT * FROM campaigns')}")
        await self.pool.execute("UPDATE campaigns SET drained_at = drained_at - interval '2 hours'")
        await self.count()
        for row in await self.pool.fetch("SELECT * FROM campaigns"):
            assert row["status"] in ENDED, dict(row)
            real = Counter(
                {
                    one["status"]: one["count"]
                    for one in await self.pool.fetch(
                        "SELECT status, count(*) FROM messages WHERE campaign_id = $1 GROUP BY 1", row["id"]
                    )
                }
            )
            assert row["queued"] == real["accepted"] == 0
            assert (row["sent"], row["delivered"], row["unknown"]) == (
                real["sent"],
                real["delivered"],
                real["unknown"],
            )
            assert row["failed"] == real["rejected"] + real["expired"] + real["failed"]
            never = row["total"] - real.total()
            assert row["canceled"] == real["canceled"] + (never if row["status"] == "canceled" else 0)


class Worker:
    """A worker, and what it has submitted without an answer."""

    def __init__(self, machine: Campaigns) -> None:
        self.machine = machine
        self.bench = Bench(machine.pool, machine.supplier, grace=GRACE, lease_seconds=LEASE)
        self.stager = Stager(machine.pool, chunk=3)
        self.word = "taken"
        self.silent: list[Submission] = []
        self.bench.only.script = self.script
        self.bench.only.room = 2

    def script(self, submission: Submission) -> Outcome | None:
        machine = self.machine
        machine.handed[submission.message_id] += self.word in ("taken", "unknown", "silent")
        machine.ended[submission.message_id, submission.attempt] = self.word
        if self.word == "silent":
            self.silent.append(submission)
        return WORDS[self.word](submission)

    async def dispatch(self, word: str) -> None:
        self.word = word
        await self.bench.dispatcher.round()

    def answer(self, word: str) -> None:
        if not self.silent:
            return
        submission = self.silent.pop(0)
        machine = self.machine
        machine.handed[submission.message_id] -= word not in ("taken", "unknown")
        machine.ended[submission.message_id, submission.attempt] = word
        outcome = WORDS[word](submission)
        assert outcome is not None
        self.bench.answer(submission, outcome)


@pytest.mark.lasts(10)
async def test_a_campaign_is_sent_once_and_counted_whatever_is_done_at_once(database_url: str) -> None:
    half = settings(BOUNDED, max_examples=-(-BOUNDED.max_examples // 2))  # each has many steps
    await asyncio.to_thread(run_machine, Campaigns, database_url, half)
