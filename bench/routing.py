"""The cost of choosing a supplier: look-up and draw, with a thousand routes and fifty suppliers.

Also that of the supplier's rules for senders and numbers, of which there are a thousand, too.

Processor time of this process; no database is used, as in a worker.
"""

from __future__ import annotations

import gc
import random
import time
from uuid import UUID

import msgspec

from bench.accept import Lengths
from bench.figures import Report
from bench.stage import Stage
from heliograph.base import phones
from heliograph.base.ids import uuid7
from heliograph.routes.lookup import Choice, Route, Table
from heliograph.senders.book import Book, NumberRule, SenderRule

ROUTES, SUPPLIERS, ORGANIZATIONS, MESSAGES, RULES = 1_000, 50, 20, 100_000, 1_000
REGIONS = sorted(set(phones.REGIONS.values()) - {"001"})
CLASSES = ("otp", "transactional", "marketing")


class Carrier(msgspec.Struct, frozen=True):
    """A supplier for the benchmark."""

    id: UUID
    prefixes: tuple[str, ...] = ()
    priority: int = 10
    weight: int = 1


async def routing(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Microseconds per message, and milliseconds to compile the table."""
    random.seed(1)
    codes, carriers = list(phones.REGIONS), [Carrier(uuid7()) for _ in range(SUPPLIERS)]
    organizations = [uuid7() for _ in range(ORGANIZATIONS)]
    routes = [
        Route(
            id=uuid7(),
            name=str(number),
            prefix=random.choice(codes) + "".join(random.choices("0123456789", k=random.randrange(6))),
            organization_id=random.choice([None, None, None, *organizations[:3]]),
            traffic_class=random.choice([None, *CLASSES]),
            choices=tuple(Choice(one.id, 10, random.randrange(1, 4)) for one in random.sample(carriers, 3)),
        )
        for number in range(ROUTES)
    ]
    messages = [
        (
            "+" + random.choice(codes) + str(random.randrange(10**8, 10**9)),
            random.choice(organizations),
            random.choice(CLASSES),
            uuid7(),
        )
        for _ in range(MESSAGES)
    ]
    book = Book(
        [
            SenderRule(
                id=uuid7(),
                supplier_id=random.choice(carriers).id,
                country=random.choice(REGIONS),
                action=random.choice(["allow", "register"]),
                replacement=None,
            )
            for _ in range(RULES // 2)
        ],
        numbers=[
            NumberRule(id=uuid7(), supplier_id=random.choice(carriers).id, prefix=random.choice(codes), prepend="00")
            for _ in range(RULES // 2)
        ],
        owners={str(number): (random.choice(carriers).id,) for number in range(90_000, 90_000 + RULES)},
    )
    compiled, chosen, judged = [], [], []
    for _ in range(lengths.rounds):
        gc.collect()
        began = time.process_time()
        table = Table(carriers, routes)
        compiled.append((time.process_time() - began) * 1e3)
        for _ in range(2):  # at first nothing is cached
            began = time.process_time()
            for to, organization_id, traffic_class, id in messages:
                table.candidates(
                    to, organization_id=organization_id, sender="BENCH", traffic_class=traffic_class
                ).first(id)
            took = (time.process_time() - began) / MESSAGES * 1e6
        chosen.append(took)
        for _ in range(2):
            began = time.process_time()
            for to, organization_id, _, id in messages:
                supplier_id = carriers[id.int % SUPPLIERS].id
                book.owners("BENCH")
                book.spoken(supplier_id, to, organization_id=organization_id, sender="BENCH")
                book.address(supplier_id, to)
            ruled = (time.process_time() - began) / MESSAGES * 1e6
        judged.append(ruled)
        stage.say(f"  {took:.2f} µs a message, compiled in {compiled[-1]:.0f} ms; {ruled:.2f} µs for rules")
    report.add("routing", "routing, 1,000 routes, 50 suppliers", chosen, "µs/message")
    report.add("routing_rules", "senders and numbers, 1,000 rules, 50 suppliers", judged, "µs/message")
    report.add("routing_compiled", "compiling them", compiled, "ms")
