"""The wallet as a state machine: two processes accept, messages end in any order and more than once, operators top
up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from heliograph.accounts.requests import Answer, IdempotencyConflict, IdempotencyInProgress
from heliograph.base.process.settings import Settings
from heliograph.whatsapp.accepting.accept import Acceptor, Send, TemplateSend, TextReply, WindowClosed
from heliograph.whatsapp.money import wallet
from heliograph.whatsapp.money.wallet import Movement, WalletInsufficientFunds
from tests.rules import factories, whatsapp_factories
from tests.rules.machines import Machine, run_machine
from tests.rules.whatsapp_factories import Made, check_wallets, made
from tests.wallets import settle

#: Contents with their prices at the machine's rates.
CONTENTS: list[tuple[TemplateSend | TextReply, int]] = [
    (TemplateSend("order_shipped", "en", "utility", ("Ana", "7")), 2),
    (TemplateSend("login_code", "en", "authentication", ("481920",)), 5),
    (TextReply("hello"), 3),
]
RATES = {("utility", "*"): 2, ("authentication", "*"): 5, ("service", "*"): 3}
#: A recipient who wrote recently, one who never did, one to whom all messages are free.
OPEN, NEVER, FREE = "+351910000001", "+351910000002", "+351910000003"


class Charge(msgspec.Struct):
    """The model's knowledge of one message."""

    organization_id: UUID
    reserved: int
    consumed: int = 0
    state: str = "reserved"
    seen: set[tuple[str, str]] = msgspec.field(default_factory=set)


class Money(Machine):
    tables = (
        "wallet_movements",
        "wallet_ledger",
        "send_keys",
        "queue",
        "whatsapp_messages",
        "whatsapp_aliases",
        "whatsapp_conversations",
        "whatsapp_templates",
        "whatsapp_numbers",
        "whatsapp_accounts",
        "whatsapp_apps",
        "whatsapp_rates",
        "wallets",
        "usage_ledger",
        "sender_ids",
        "quotas",
        "organizations",
    )

    @initialize(balances=st.lists(st.integers(0, 25), min_size=2, max_size=2))
    def begin(self, balances: list[int]) -> None:
        self.run(whatsapp_factories.rates(self.pool, prices=RATES))
        self.makes: list[Made] = []
        self.available: dict[UUID, int] = {}
        for balance in balances:
            one = self.run(made(self.pool, balance=balance))
            self.run(whatsapp_factories.conversation(self.pool, one, to=OPEN))
            self.run(whatsapp_factories.conversation(self.pool, one, to=FREE, free=timedelta(hours=2)))
            self.makes.append(one)
            self.available[one.organization_id] = balance
        self.total = dict(self.available)
        self.acceptors = [Acceptor(self.pool, settings=Settings()) for _ in range(2)]
        self.charges: dict[UUID, Charge] = {}
        self.keys: dict[tuple[UUID, str], tuple[int, str, bytes]] = {}

    @rule(
        posts=st.lists(
            st.tuples(
                st.integers(0, 1),
                st.integers(0, len(CONTENTS) - 1),
                st.sampled_from([OPEN, OPEN, NEVER, FREE]),
                st.sampled_from([None, None, "a", "b"]),
            ),
            min_size=1,
            max_size=8,
        ),
        process=st.integers(0, 1),
    )
    def accept(self, posts: list[tuple[int, int, str, str | None]], process: int) -> None:
        """Several at once: if one is refused, so is every later one that costs as much."""

        async def work() -> list[Answer | BaseException]:
            return await asyncio.gather(
                *(self.acceptors[process].accept(self.send(*post)) for post in posts), return_exceptions=True
            )

        outcomes = self.run(work())
        # In whatever order they came: stored messages only ever take from the wallet, so one that was refused earlier
        # would be refused later as well.
        judged = sorted(zip(posts, outcomes, strict=True), key=lambda one: not _is_new(one[1]))
        for post, outcome in judged:
            self.check(*post, outcome)

    def send(self, who: int, what: int, to: str, key: str | None) -> Send:
        one = self.makes[who]
        values = {}
        if key is not None:
            values = {"key_hash": factories.key(key), "request_hash": f"{what} {to}".encode().ljust(32)}
        return Send(actor=one.actor, to=to, number_id=one.number_id, content=CONTENTS[what][0], **values)  # type: ignore[arg-type]

    def check(self, who: int, what: int, to: str, key: str | None, outcome: Answer | BaseException) -> None:
        id = self.makes[who].organization_id
        price = 0 if to == FREE else CONTENTS[what][1]
        known = self.keys.get((id, key)) if key else None
        match outcome:
            case Answer(replayed=True):
                assert known == (what, to, outcome.body)
            case Answer():
                assert known is None
                assert self.available[id] >= price or price == 0, "accepting drove what is available below zero"
                self.available[id] -= price
                message_id = UUID(msgspec.json.decode(outcome.body)["message"]["id"])
                self.charges[message_id] = Charge(id, price)
                if key:
                    self.keys[id, key] = (what, to, outcome.body)
            case IdempotencyConflict():
                assert known is not None
                assert known[:2] != (what, to)
            case WindowClosed():
                assert to == NEVER
                assert isinstance(CONTENTS[what][0], TextReply)
            case WalletInsufficientFunds():
                assert price > max(self.available[id], 0)
            case IdempotencyInProgress():
                assert key is not None
            case _:
                raise AssertionError(outcome)

    @rule(
        drawn=st.lists(
            st.tuples(
                st.integers(0, 999),
                st.sampled_from(["consume", "release", "lower", "reprice"]),
                st.integers(0, 9),
                st.sampled_from(["p", "q"]),
            ),
            min_size=1,
            max_size=8,
        )
    )
    def settle(self, drawn: list[tuple[int, str, int, str]]) -> None:
        """Movements of some messages in one transaction: any kind, any order, repeatedly."""
        # Which of several concurrent sends is accepted varies, so random choices must not depend on it.
        ids = sorted(self.charges)
        if not ids:
            return
        chosen = [(ids[which % len(ids)], kind, amount, key) for which, kind, amount, key in drawn]
        movements = [
            Movement(self.charges[id].organization_id, id, kind, amount, key) for id, kind, amount, key in chosen
        ]  # type: ignore[arg-type]

        async def work() -> None:
            async with self.pool.acquire() as conn, conn.transaction():
                await settle(conn, movements)

        self.run(work())
        for movement in movements:
            self.model(movement)

    def model(self, movement: Movement) -> None:
        charge = self.charges[movement.message_id]
        before = charge.reserved + charge.consumed
        kind, key = movement.kind, movement.key
        if kind == "consume" and charge.state in ("reserved", "released"):
            charge.state, charge.reserved, charge.consumed = "consumed", 0, movement.amount
            charge.seen.add(("price", key))
        elif kind == "release" and charge.state == "reserved":
            charge.state, charge.reserved = "released", 0
        elif kind == "lower" and charge.state == "reserved" and movement.amount < charge.reserved:
            if ("lower", key) not in charge.seen:
                charge.reserved = movement.amount
                charge.seen.add(("lower", key))
        elif kind == "reprice" and charge.state == "consumed" and ("price", key) not in charge.seen:
            charge.consumed = movement.amount
            charge.seen.add(("price", key))
        self.available[charge.organization_id] += before - charge.reserved - charge.consumed

    @rule(which=st.integers(0, 999), copies=st.integers(2, 6))
    def delivered_at_once_by_many(self, which: int, copies: int) -> None:
        if not self.charges:
            return
        chosen = sorted(self.charges)[which % len(self.charges)]
        movement = Movement(self.charges[chosen].organization_id, chosen, "consume", 4, "p")

        async def one() -> None:
            async with self.pool.acquire() as conn, conn.transaction():
                await settle(conn, [movement])

        async def work() -> None:
            await asyncio.gather(*(one() for _ in range(copies)))

        self.run(work())
        self.model(movement)

    @rule(who=st.integers(0, 1), amount=st.integers(-10, 20).filter(bool))
    def adjust(self, who: int, amount: int) -> None:
        id = self.makes[who].organization_id

        async def work() -> None:
            async with self.pool.acquire() as conn:
                if amount > 10:
                    await wallet.top_up(conn, id, amount=amount)
                else:
                    await wallet.adjust(conn, id, amount=amount, reason="test")

        try:
            self.run(work())
        except WalletInsufficientFunds:
            assert amount < 0
            assert self.available[id] + amount < 0
        else:
            self.available[id] += amount
            self.total[id] += amount

    @rule(who=st.integers(0, 1))
    def exactly_what_is_there_is_spent(self, who: int) -> None:
        one = self.makes[who]
        fits = max(self.available[one.organization_id], 0) // 2

        async def work() -> list[Answer | BaseException]:
            return await asyncio.gather(
                *(self.acceptors[n % 2].accept(self.send(who, 0, NEVER, None)) for n in range(fits + 3)),
                return_exceptions=True,
            )

        outcomes = self.run(work())
        assert sum(isinstance(outcome, Answer) for outcome in outcomes) == fits, outcomes
        for outcome in outcomes:
            if isinstance(outcome, Answer):
                self.check(who, 0, NEVER, None, outcome)

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "charges"):
            return
        self.run(check_wallets(self.pool, self.available))
        rows = self.run(self.pool.fetch("SELECT organization_id, available, total FROM wallets"))
        assert {row["organization_id"]: row["available"] for row in rows} == self.available
        assert {row["organization_id"]: row["total"] for row in rows} == self.total
        stored = self.run(self.pool.fetch("SELECT id, charge, reserved, consumed FROM whatsapp_messages"))
        assert {row["id"]: tuple(row)[1:] for row in stored} == {
            id: (one.state, one.reserved, one.consumed) for id, one in self.charges.items()
        }


def _is_new(outcome: Answer | BaseException) -> bool:
    return isinstance(outcome, Answer) and not outcome.replayed


async def test_money_is_right_whatever_happens(database_url: str) -> None:
    await asyncio.to_thread(run_machine, Money, database_url)
