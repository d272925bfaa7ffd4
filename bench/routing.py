"""What choosing a supplier costs: the look-up and the draw, with a thousand routes and fifty suppliers.

Processor time of this process; no database is asked, as no worker asks one.
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

ROUTES, SUPPLIERS, ORGANIZATIONS, MESSAGES = 1_000, 50, 20, 100_000
CLASSES = ("otp", "transactional", "marketing")


class Carrier(msgspec.Struct, frozen=True):
    """A supplier of the bench."""

    id: UUID
    prefixes: tuple[str, ...] = ()
    priority: int = 10
    weight: int = 1


async def routing(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Microseconds a message, and milliseconds to compile the table."""
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
    compiled, chosen = [], []
    for _ in range(lengths.rounds):
        gc.collect()
        began = time.process_time()
        table = Table(carriers, routes)
        compiled.append((time.process_time() - began) * 1e3)
        for _ in range(2):  # the first time, nothing is remembered
            began = time.process_time()
            for to, organization_id, traffic_class, id in messages:
                table.candidates(
                    to, organization_id=organization_id, sender="BENCH", traffic_class=traffic_class
                ).first(id)
            took = (time.process_time() - began) / MESSAGES * 1e6
        chosen.append(took)
        stage.say(f"  {took:.2f} µs a message, compiled in {compiled[-1]:.0f} ms")
    report.add("routing", "routing, 1,000 routes, 50 suppliers", chosen, "µs/message")
    report.add("routing_compiled", "compiling them", compiled, "ms")
