"""The connector of suppliers over HTTP: one outcome each, room, rate, and what is said of a supplier that is away."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import Account, Outcome, Submission, Verdict
from heliograph.suppliers.http.connector import HttpConnector, connect
from tests.ports import held_port
from tests.rules.factories import until

SECRET = msgspec.json.encode({"secret": "s"}).decode()


def submission(to: str = "258841230106") -> Submission:
    return Submission(uuid4(), 1, to, "ACME", (b"hi",), "gsm7", 1, "hi")


class Line:
    """A connector, and the outcomes of what it was given."""

    def __init__(self, base_url: str, **settings: Any) -> None:
        self.outcomes: dict[UUID, Outcome] = {}
        values = {"base_url": base_url, "username": "acme", **settings}
        account = Account(uuid4(), values, SECRET)
        self.connector: HttpConnector = connect(kinds.HTTP["africastalking"], account, self._heard)

    def _heard(self, one: Submission, outcome: Outcome) -> None:
        assert one.message_id not in self.outcomes
        self.outcomes[one.message_id] = outcome

    async def send(self, *some: Submission) -> list[Verdict]:
        for one in some:
            self.connector.submit(one)
        await until(lambda: all(one.message_id in self.outcomes for one in some))
        return [self.outcomes[one.message_id].verdict for one in some]


@pytest.fixture
async def supplier() -> Any:
    made = Aggregator(Options(profile="africastalking", secret="s"))
    await made.start()
    yield made
    await made.stop()


async def test_no_more_requests_are_open_than_the_window_and_each_has_its_outcome(supplier: Aggregator) -> None:
    line = Line(supplier.base_url, window=3)
    await line.connector.start()
    assert line.connector.capacity() == 0  # no session yet
    line.connector.set_sessions(2)
    assert (line.connector.capacity(), line.connector.health().sessions) == (6, 2)
    some = [submission() for _ in range(20)]
    for one in some:
        line.connector.submit(one)
    assert line.outcomes == {}  # never from within
    assert line.connector.capacity() == 0
    await until(lambda: len(line.outcomes) == 20)
    assert {one.verdict for one in line.outcomes.values()} == {Verdict.ACCEPTED}
    assert line.connector.capacity() == 6
    await line.connector.stop(grace=1.0)
    assert await line.send(submission()) == [Verdict.UNREACHABLE]


async def test_nobody_there_is_unreachable_and_no_answer_is_unknown(supplier: Aggregator) -> None:
    with held_port() as port:
        line = Line(f"http://127.0.0.1:{port}")
        await line.connector.start()
        line.connector.set_sessions(1)
        assert await line.send(submission()) == [Verdict.UNREACHABLE]
        assert "connect" in line.connector.health().last_error
        await line.connector.stop(grace=0.0)
    other = Line(supplier.base_url)
    await other.connector.start()
    other.connector.set_sessions(1)
    assert await other.send(submission("258841230103"), submission("258841230107"), submission()) == [
        Verdict.UNKNOWN,
        Verdict.UNKNOWN,
        Verdict.ACCEPTED,
    ]
    await other.connector.stop(grace=0.0)


async def test_what_is_still_open_at_the_end_is_unknown_and_what_has_not_begun_is_not(supplier: Aggregator) -> None:
    supplier.options = msgspec.structs.replace(supplier.options, latency=30.0)
    line = Line(supplier.base_url, window=1)
    await line.connector.start()
    line.connector.set_sessions(1)
    first, second = submission(), submission()
    line.connector.submit(first)
    line.connector.submit(second)
    await until(lambda: len(supplier.taken) == 1)
    await line.connector.stop(grace=0.0)
    await until(lambda: len(line.outcomes) == 2)
    verdicts = [line.outcomes[one.message_id].verdict for one in (first, second)]
    assert verdicts == [Verdict.UNKNOWN, Verdict.UNREACHABLE]


async def test_a_throttle_slows_the_account_and_costs_no_try(supplier: Aggregator) -> None:
    supplier.options = msgspec.structs.replace(supplier.options, always="throttled")
    line = Line(supplier.base_url)
    await line.connector.start()
    line.connector.set_sessions(1)
    one = submission()
    assert await line.send(one) == [Verdict.BUSY]
    assert line.outcomes[one.message_id].counts is False
    supplier.options = msgspec.structs.replace(supplier.options, always="")
    began = asyncio.get_running_loop().time()
    assert await line.send(*(submission() for _ in range(3))) == [Verdict.ACCEPTED] * 3
    # From two a second on: it was throttled at the first.
    assert asyncio.get_running_loop().time() - began > 0.4
    await line.connector.stop(grace=1.0)


async def test_what_waits_too_long_for_a_request_goes_back(supplier: Aggregator) -> None:
    supplier.options = msgspec.structs.replace(supplier.options, latency=1.0)
    line = Line(supplier.base_url, window=1, queue_seconds=0.2)
    await line.connector.start()
    line.connector.set_sessions(1)
    some = [submission() for _ in range(3)]
    verdicts = await line.send(*some)
    assert verdicts == [Verdict.ACCEPTED, Verdict.BUSY, Verdict.BUSY]
    assert not line.outcomes[some[1].message_id].counts
    await line.connector.stop(grace=1.0)
