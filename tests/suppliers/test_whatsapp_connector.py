"""One number's connector: exactly one outcome for everything, whatever happens to it."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from heliograph.simulators.graph.simulator import GraphSimulator, quick
from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.bodies import text_body
from heliograph.suppliers.whatsapp_cloud.connector import CloudConnector
from heliograph.suppliers.whatsapp_cloud.contract import CloudOutcome, CloudSubmission, NumberConnector
from heliograph.suppliers.whatsapp_cloud.credential import credential
from heliograph.suppliers.whatsapp_cloud.errors import Kind
from heliograph.suppliers.whatsapp_cloud.graph import CloudClient
from tests.suppliers.graph_sockets import ACCEPTED, Act, Peer, always, answer, error, peer

OK = always(answer(ACCEPTED))
DEADLINE = 120.0


class Number:
    """A connector, everything it reported, and a clock that moves only when told to."""

    def __init__(
        self, client: CloudClient, *, rate: float = 1_000.0, concurrency: int = 64, token: str = "t", secret: str = "s"
    ) -> None:
        self.now = 1_000.0
        self.lost_until = -math.inf
        #: How often nothing is lost yet when it is asked.
        self.held = 0
        self.outcomes: dict[CloudSubmission, list[CloudOutcome]] = {}
        self.arrived = asyncio.Event()
        self.connector = CloudConnector(
            client,
            "555000111222333",
            credential(token, secret.encode()),
            self._came,
            rate=rate,
            concurrency=concurrency,
            lost_until=self._lost_until,
            clock=lambda: self.now,
        )
        self._submitting = False
        self._numbers = itertools.count(600_000_000)

    def _lost_until(self) -> float:
        self.held -= 1
        return self.lost_until if self.held < 0 else -math.inf

    def _came(self, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        assert not self._submitting
        self.outcomes[submission].append(outcome)
        self.arrived.set()

    def submit(self, to: str | None = None) -> CloudSubmission:
        to = to or f"+212{next(self._numbers)}"
        id = uuid4()
        submission = CloudSubmission(id, 1, to, text_body(to=to, text="Bonjour", opaque=str(id)))
        self.outcomes[submission] = []
        self._submitting = True
        self.connector.submit(submission)
        self._submitting = False
        return submission

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not done():
                self.arrived.clear()
                # The clock moves a little, so that the bucket fills while a message waits.
                self.now += 0.01
                try:
                    await asyncio.wait_for(self.arrived.wait(), 0.01)
                except TimeoutError:
                    continue

    async def outcome(self, submission: CloudSubmission) -> CloudOutcome:
        await self.until(lambda: bool(self.outcomes[submission]))
        (one,) = self.outcomes[submission]
        return one

    async def send(self, to: str | None = None) -> CloudOutcome:
        return await self.outcome(self.submit(to))

    @property
    def verdicts(self) -> Counter[Verdict]:
        assert all(len(came) == 1 for came in self.outcomes.values())
        return Counter(came[0].verdict for came in self.outcomes.values())


@asynccontextmanager
async def number(act: Act, *, rate: float = 1_000.0, concurrency: int = 64) -> AsyncIterator[tuple[Number, Peer]]:
    async with peer(act) as there:
        client = CloudClient(there.url)
        one = Number(client, rate=rate, concurrency=concurrency)
        await one.connector.start()
        try:
            yield one, there
        finally:
            await one.connector.stop(grace=0)
            await client.close()


def answers(*raws: bytes) -> Act:
    """One after the other; the last one repeats."""
    left = list(raws)

    async def act(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        return True

    return act


async def silence(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(DEADLINE)
    return False


async def test_it_is_a_connector_and_sends() -> None:
    async with number(OK) as (one, there):
        connector: NumberConnector = one.connector
        assert (await one.send()).wamid == "wamid.HBgM"
        assert connector.health().usable
        assert there.requests[0][0].startswith(b"POST /v25.0/555000111222333/messages?")


async def test_before_the_start_and_after_the_stop_nothing_leaves() -> None:
    async with peer(OK) as there:
        client = CloudClient(there.url)
        one = Number(client)
        assert one.connector.capacity() == 0
        assert (await one.send()).verdict is Verdict.UNREACHABLE
        await one.connector.start()
        await one.connector.stop(grace=1)
        assert (await one.send()).verdict is Verdict.UNREACHABLE
        assert there.requests == []
        await client.close()


async def test_everything_gets_one_outcome_whatever_comes_back() -> None:
    chance = random.Random(4)
    raws = [
        answer(ACCEPTED),
        answer(b"<html>", 502),
        error(131009),
        error(131000, 500),
        error(131026),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"",
    ]

    async def act(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        raw = chance.choice(raws)
        writer.write(raw)
        return raw.startswith(b"HTTP") and not raw.endswith(b"{")

    async with number(act) as (one, there):
        for _ in range(200):
            one.submit()
            if chance.random() < 0.1:
                await asyncio.sleep(0)
        await one.until(lambda: all(one.outcomes.values()))
        assert sum(one.verdicts.values()) == 200
        assert len(there.requests) == 200 - one.verdicts[Verdict.UNREACHABLE]


async def test_a_stop_ends_what_is_open_as_unknown_and_gives_the_rest_back() -> None:
    async with number(silence, concurrency=5) as (one, there):
        for _ in range(12):
            one.submit()
        await one.until(lambda: len(there.requests) == 5)
        await one.connector.stop(grace=0)
        assert one.verdicts == {Verdict.UNKNOWN: 5, Verdict.UNREACHABLE: 7}


async def test_a_stop_gives_back_what_has_no_connection_yet() -> None:
    """Nothing of it has left: as unknown, it waited for a status, and a one-time code failed."""
    async with number(OK) as (one, there):
        for _ in range(4):
            one.submit()
        await one.connector.stop(grace=0)
        assert one.verdicts == {Verdict.UNREACHABLE: 4}
        assert there.requests == []


async def test_a_stop_waits_for_answers() -> None:
    release = asyncio.Event()

    async def late(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        await release.wait()
        writer.write(answer(ACCEPTED))
        return True

    async with number(late) as (one, there):
        submission = one.submit()
        await one.until(lambda: len(there.requests) == 1)
        stopping = asyncio.create_task(one.connector.stop(grace=DEADLINE))
        await asyncio.sleep(0)
        assert one.connector.capacity() == 0
        release.set()
        await stopping
        assert one.outcomes[submission][0].verdict is Verdict.ACCEPTED


async def test_capacity_follows_rate_and_concurrency() -> None:
    async with number(silence, rate=80.0, concurrency=10) as (one, _):
        assert one.connector.capacity() == 10
        one.now += 1
        for _ in range(10):
            one.submit()
        assert one.connector.capacity() == 0
        one.connector.set_rate(20.0)
        assert one.connector.health().rate == 20.0
    async with number(OK, rate=80.0) as (one, _):
        # One token at first, and a quarter of a second's worth may wait inside.
        assert one.connector.capacity() == 21
        for _ in range(21):
            one.submit()
        assert one.connector.capacity() == 0
        assert one.connector.health().queued == 20
        await one.until(lambda: all(one.outcomes.values()))
        assert one.verdicts == {Verdict.ACCEPTED: 21}


@pytest.mark.parametrize(
    ("raw", "kind", "seconds"),
    [
        (error(190, 401), Kind.AUTH, 60.0),
        (error(131031, 403), Kind.ACCOUNT, 600.0),
        (error(131042), Kind.ACCOUNT, 600.0),
        (error(131048), Kind.RATE, 3600.0),
        (error(131057, 500), Kind.RETRY, 60.0),
        (error(4), Kind.RATE, 300.0),
    ],
)
async def test_trouble_of_the_number_stops_it_and_one_message_tries_again(
    raw: bytes, kind: Kind, seconds: float
) -> None:
    async with number(answers(raw, raw, answer(ACCEPTED)), concurrency=1) as (one, there):
        first, waiting = one.submit(), one.submit()
        assert (await one.outcome(first)).verdict is Verdict.BUSY
        # What was not sent is returned untouched.
        assert (await one.outcome(waiting)).verdict is Verdict.UNREACHABLE
        health = one.connector.health()
        assert (health.usable, health.reason, one.connector.capacity()) == (False, kind, 0)
        assert (await one.send()).verdict is Verdict.UNREACHABLE
        assert len(there.requests) == 1
        one.now += seconds
        assert one.connector.capacity() == 1
        again = one.submit()
        assert one.connector.capacity() == 0
        assert (await one.outcome(again)).verdict is Verdict.BUSY
        assert one.connector.capacity() == 0
        one.now += seconds
        assert (await one.send()).verdict is Verdict.ACCEPTED
        assert one.connector.health().usable
        assert one.connector.health().reason is None
        one.now += 1
        assert one.connector.capacity() == 1


async def test_a_new_token_ends_its_hold() -> None:
    async def act(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(answer(ACCEPTED) if b"Bearer new\r\n" in head else error(190, 401))
        return True

    async with number(act) as (one, _):
        assert (await one.send()).code == "190"
        one.connector.set_credential(credential("new", b"s"))
        assert (await one.send()).verdict is Verdict.ACCEPTED
        one.connector.hold(60.0, Kind.ACCOUNT)
        one.connector.set_credential(credential("newer", b"s"))
        assert one.connector.capacity() == 0
        one.connector.release()
        assert one.connector.capacity() > 0


@pytest.mark.parametrize("refusal", [error(190, 401), error(100, 400, 33)])
async def test_a_late_refusal_of_the_token_before_says_nothing_about_the_new_one(refusal: bytes) -> None:
    arrived, replaced = asyncio.Event(), asyncio.Event()

    async def act(there: Peer, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        if b"Bearer new\r\n" in head:
            writer.write(answer(ACCEPTED))
            return True
        arrived.set()
        await replaced.wait()
        writer.write(refusal)
        return True

    async with number(act) as (one, _):
        late = one.submit()
        async with asyncio.timeout(DEADLINE):
            await arrived.wait()
        one.connector.set_credential(credential("new", b"s"))
        replaced.set()
        outcome = await one.outcome(late)
        # Meta has not taken it, so it is sent again, with the new token.
        assert (outcome.verdict, outcome.code, outcome.fault) == (Verdict.UNREACHABLE, "credential replaced", None)
        assert one.connector.health().usable
        assert (await one.send()).verdict is Verdict.ACCEPTED


async def test_the_limit_of_an_app_holds_with_any_token() -> None:
    async with number(always(error(4))) as (one, _):
        first = one.submit()
        one.connector.set_credential(credential("new", b"s"))
        outcome = await one.outcome(first)
        assert (outcome.verdict, outcome.code, one.connector.health().reason) == (Verdict.BUSY, "4", Kind.RATE)


async def test_a_token_that_is_replaced_before_there_is_a_connection_is_the_one_that_was_sent() -> None:
    async with number(always(error(190, 401))) as (one, there):
        first = one.submit()
        one.connector.set_credential(credential("new", b"s"))
        # Otherwise a refusal of the new one would be ascribed to the one before, and hold nothing.
        assert (await one.outcome(first)).code == "credential replaced"
        assert [b"Bearer t\r\n" in head for head, _ in there.requests] == [True]
        assert (await one.send()).code == "190"
        assert not one.connector.health().usable


async def test_a_refusal_for_the_message_s_own_sake_shows_that_the_number_works() -> None:
    async with number(answers(error(190, 401), error(131026), answer(ACCEPTED))) as (one, _):
        await one.send()
        one.now += 60
        assert (await one.send()).verdict is Verdict.REFUSED
        assert one.connector.capacity() > 1


async def test_too_fast_halves_the_rate() -> None:
    async with number(answers(error(130429, 429), answer(ACCEPTED)), rate=80.0) as (one, _):
        outcome = await one.send()
        assert (outcome.verdict, outcome.counts) == (Verdict.BUSY, False)
        assert one.connector.health().rate == 40.0
        assert one.connector.health().usable


async def test_one_user_gets_no_more_than_meta_allows() -> None:
    async with number(OK) as (one, there):
        to = "+212600000017"
        for _ in range(45):
            assert one.connector.pair_wait(to) == 0
            one.submit(to)
        assert one.connector.pair_wait(to) > 0
        outcome = await one.send(to)
        assert (outcome.verdict, outcome.code, outcome.counts) == (Verdict.BUSY, "pair", False)
        assert outcome.retry_after is not None
        assert outcome.retry_after > 0
        assert (await one.send()).verdict is Verdict.ACCEPTED
        await one.until(lambda: all(one.outcomes.values()))
        assert len(there.requests) == 46


async def test_a_user_s_messages_from_other_workers_count() -> None:
    async with number(OK) as (one, _):
        assert one.connector.pair_wait("+212600000017", ahead=1, debt=43 * 6.0) == 0
        assert one.connector.pair_wait("+212600000017", ahead=2) > 0
        assert one.connector.pair_wait("+212600000018", ahead=2) == 0


async def test_meta_s_own_word_about_a_user() -> None:
    async with number(answers(error(131056), answer(ACCEPTED))) as (one, _):
        to = "+212600000017"
        outcome = await one.send(to)
        assert outcome.fault is not None
        assert outcome.fault.kind is Kind.PAIR
        assert one.connector.pair_wait(to) > 0
        assert one.connector.health().usable
        one.now += 1
        assert one.connector.pair_wait(to, ahead=44) == 0  # Meta did not count it either
        assert (await one.send(to)).verdict is Verdict.ACCEPTED


async def test_what_was_returned_unsent_does_not_use_up_a_user_s_pace() -> None:
    async with number(OK, rate=1.0) as (one, _):
        to = "+212600000017"
        first, *waiting = [one.submit(to) for _ in range(10)]
        one.connector.hold(60.0)
        assert [(await one.outcome(each)).code for each in waiting] == ["held"] * 9
        assert (await one.outcome(first)).verdict is Verdict.ACCEPTED
        assert one.connector.pair_wait(to, ahead=43) == 0
        assert one.connector.pair_wait(to, ahead=45) > 0


async def test_a_host_that_is_gone_is_not_hammered() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        client = CloudClient(f"http://127.0.0.1:{free.getsockname()[1]}")
        one = Number(client)
        await one.connector.start()
        for _ in range(3):
            assert (await one.send("+212600000017")).code == "connect"
        assert one.connector.capacity() == 0
        assert one.connector.pair_wait("+212600000017", ahead=44) == 0, "nothing was sent"
        assert one.connector.health().reason is Kind.RETRY
        one.now += 1
        assert one.connector.capacity() == 1
        assert (await one.send()).code == "connect"
        assert one.connector.health().held > 1
        await one.connector.stop(grace=0)
        await client.close()


async def test_one_lost_answer_stops_nobody() -> None:
    async with number(answers(answer(b"", 502), answer(b"", 502), answer(ACCEPTED))) as (one, _):
        assert [(await one.send()).verdict for _ in range(3)] == [Verdict.UNKNOWN, Verdict.UNKNOWN, Verdict.ACCEPTED]
        assert one.connector.health().usable


async def test_a_handler_that_fails_does_not_stop_the_others() -> None:
    async with peer(OK) as there:
        client = CloudClient(there.url)
        seen: list[CloudSubmission] = []
        all_seen = asyncio.Event()

        def fails(submission: CloudSubmission, outcome: CloudOutcome) -> None:
            seen.append(submission)
            if len(seen) == 5:
                all_seen.set()
            raise RuntimeError

        connector = CloudConnector(client, "555", credential("t", b"s"), fails, rate=1_000.0)
        await connector.start()
        for n in range(5):
            connector.submit(CloudSubmission(uuid4(), 1, f"+21260000000{n}", b"{}"))
        await asyncio.wait_for(all_seen.wait(), DEADLINE)
        await connector.stop(grace=DEADLINE)
        await client.close()


async def test_a_write_that_fails_leaves_its_message_open_and_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes may have left: it is not sent again. The other messages are sent."""
    async with number(OK) as (one, _):
        assert (await one.send()).verdict is Verdict.ACCEPTED
        send_now, calls = CloudClient.send_now, itertools.count()

        def failing(*arguments: Any) -> bool:
            sent = send_now(*arguments)
            if next(calls) == 0:
                raise RuntimeError("unable to perform operation on a closed handle")
            return sent

        monkeypatch.setattr(CloudClient, "send_now", failing)
        first, *others = [one.submit() for _ in range(3)]
        await one.until(lambda: all(one.outcomes.values()))
        assert [(await one.outcome(other)).verdict for other in others] == [Verdict.ACCEPTED] * 2
        assert ((await one.outcome(first)).verdict, (await one.outcome(first)).code) == (
            Verdict.UNKNOWN,
            "RuntimeError",
        )
        assert one.connector.health().in_flight == 0
        await one.connector.stop(grace=1)
        assert len(one.outcomes[first]) == 1


async def test_the_simulator_counts_each_message_once() -> None:
    async with GraphSimulator(quick(magic="")) as graph:
        client = CloudClient(graph.base_url)
        one = Number(client, token=graph.options.token, secret=graph.options.app_secret)
        await one.connector.start()
        graph.fault("drop", share=0.1)
        graph.fault("html", share=0.1, status=502)
        while len(one.outcomes) < 300:
            if one.connector.capacity():
                one.submit()
            else:
                one.now += 0.1
                await asyncio.sleep(0)
        await one.until(lambda: all(one.outcomes.values()))
        verdicts = one.verdicts
        assert sum(verdicts.values()) == 300
        assert verdicts[Verdict.ACCEPTED] <= graph.counters.accepted
        assert graph.counters.accepted <= verdicts[Verdict.ACCEPTED] + verdicts[Verdict.UNKNOWN]
        assert graph.doubled == {}
        await one.connector.stop(grace=0)
        await client.close()


async def test_what_another_worker_may_have_taken_over_is_given_back() -> None:
    async with number(OK, rate=1.0) as (one, there):
        first = one.submit()
        waiting = [one.submit() for _ in range(3)]
        await one.outcome(first)
        one.now += 20.0
        one.lost_until = one.now - 10.0
        assert (await one.send()).verdict is Verdict.ACCEPTED
        assert [(await one.outcome(each)).code for each in waiting] == ["held"] * 3
        assert len(there.requests) == 2


async def test_what_may_be_another_workers_once_others_were_sent_is_given_back() -> None:
    """The process stood still between two messages that it sent at once: the second one used to be sent after that."""
    async with number(OK) as (one, there):
        one.connector._client._sends._keep_alive = math.inf
        one.now += 1.0
        first = [one.submit() for _ in range(3)]  # their connections are kept
        assert [(await one.outcome(each)).verdict for each in first] == [Verdict.ACCEPTED] * 3
        one.connector.set_rate(1.0)
        one.now += 1.0
        await one.send()
        some = [one.submit() for _ in range(3)]
        one.lost_until = one.now
        one.connector.set_rate(1_000.0)
        one.now += 1.0
        one.held = 2  # asked for all that wait, and for the first of them
        one.connector.release()
        verdicts = [(await one.outcome(each)).verdict for each in some]
        assert verdicts == [Verdict.ACCEPTED, Verdict.UNREACHABLE, Verdict.UNREACHABLE]
        assert len(there.requests) == 5


async def test_what_may_be_another_workers_once_its_connection_is_open_is_given_back() -> None:
    """The process stood still while it connected: the message used to be sent after that."""
    async with number(OK) as (one, there):
        lost = [one.submit() for _ in range(4)]
        one.lost_until = one.now  # none of them has a connection yet
        assert [(await one.outcome(each)).code for each in lost] == ["held"] * 4
        assert not there.requests
        # It says nothing about Meta: the number does not rest.
        one.now += 1.0
        assert (await one.send()).verdict is Verdict.ACCEPTED
        assert len(there.requests) == 1
