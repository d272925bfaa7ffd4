"""The connector for suppliers over HTTP: exactly one outcome, room, rate, and the error of one that is unreachable."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import resource
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus
from uuid import UUID, uuid4

import msgspec
import pytest
from structlog.testing import capture_logs

from heliograph.http import client
from heliograph.http.answers import Failure
from heliograph.http.client_connection import ClientConnection
from heliograph.simulators.aggregators import profiles
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.simulators.http import Reply
from heliograph.suppliers import kinds, trial
from heliograph.suppliers.contract import (
    Account,
    InspectableConnector,
    LostUntil,
    Outcome,
    Scope,
    Submission,
    Verdict,
    WatchableConnector,
    never_lost,
)
from heliograph.suppliers.http import connector as http
from heliograph.suppliers.http.connector import HttpConnector, connect
from heliograph.suppliers.http.kind import HttpKind
from heliograph.suppliers.http.watching import shown
from tests.ports import held_port
from tests.rules.factories import until

#: The required settings of an account of each kind.
ACCOUNTS = {
    "africastalking": {"username": "acme"},
    "twilio": {"account_sid": "AC1"},
    "vonage": {"api_key": "k"},
}
SECRET = msgspec.json.encode({"secret": "s"}).decode()


def submission(to: str = "258841230106") -> Submission:
    return Submission(uuid4(), 1, to, "ACME", "hi", "gsm7", 1)


class Line:
    """A connector, and the outcomes of its submissions."""

    def __init__(
        self,
        base_url: str,
        *,
        kind: HttpKind = kinds.HTTP["africastalking"],
        lost_until: LostUntil = never_lost,
        **settings: Any,
    ) -> None:
        self.outcomes: dict[UUID, Outcome] = {}
        values = {"base_url": base_url, "username": "acme", **settings}
        account = Account(uuid4(), values, SECRET)
        self.connector: HttpConnector = connect(kind, account, self._heard, lost_until=lost_until)

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


def test_no_supplier_over_http_has_a_text_cut() -> None:
    one = submission()
    for kind in kinds.HTTP.values():
        account = Account(uuid4(), {"base_url": "http://127.0.0.1:1", **ACCOUNTS.get(kind.name, {})}, SECRET)
        made = connect(kind, account, lambda *_: None)
        assert made.parts(one) == 1
        kind.request(kinds.settings_from(kind.name, account.settings), {"secret": "s"}, http._message(one, ""))
    assert one.cut == ()
    assert (one.segments, one.cut) == ((b"hi",), (b"hi",))


async def test_no_more_requests_are_open_than_the_window_and_each_has_its_outcome(supplier: Aggregator) -> None:
    line = Line(supplier.base_url, window=3)
    await line.connector.start()
    assert (line.connector.ready(), line.connector.capacity()) == (False, 0)  # nothing may be open yet
    line.connector.set_sessions(2)
    assert (line.connector.capacity(), line.connector.health().sessions) == (6, 2)
    some = [submission() for _ in range(20)]
    for one in some:
        line.connector.submit(one)
    assert line.outcomes == {}  # never from within `submit`
    assert (line.connector.ready(), line.connector.capacity()) == (True, 0)  # full, but not down
    await until(lambda: len(line.outcomes) == 20)
    assert {one.verdict for one in line.outcomes.values()} == {Verdict.ACCEPTED}
    assert line.connector.capacity() == 6
    await line.connector.stop(grace=1.0)
    assert await line.send(submission()) == [Verdict.UNREACHABLE]


async def test_before_its_start_and_after_its_stop_nothing_leaves(supplier: Aggregator) -> None:
    """It used to raise before its start, and to count as ready after its stop, with all its sessions."""
    line = Line(supplier.base_url, requests_per_second=5.0)
    assert await line.send(submission()) == [Verdict.UNREACHABLE]
    line.connector.set_sessions(3)
    await line.connector.start()
    assert (line.connector.ready(), line.connector._bucket.rate) == (True, 15.0)
    await line.connector.stop(grace=1.0)
    assert (line.connector.ready(), line.connector.health().sessions) == (False, 0)
    assert await line.send(submission()) == [Verdict.UNREACHABLE]
    assert supplier.requests == 0


async def test_what_waits_for_a_full_window_looks_once_a_second_until_it_is_woken(supplier: Aggregator) -> None:
    """It used to wake up a thousand times a second."""
    supplier.options = msgspec.structs.replace(supplier.options, latency=0.1)
    loop = asyncio.get_running_loop()
    line = Line(supplier.base_url, window=1, queue_seconds=60.0)
    await line.connector.start()
    line.connector.set_sessions(1)
    fired: list[float] = []
    timer, pump = line.connector._timer, line.connector._timer._pump

    def count() -> None:
        fired.append(loop.time())
        pump()

    timer._pump = count
    began = loop.time()
    for one in [submission() for _ in range(2)]:
        line.connector.submit(one)
    await until(lambda: len(line.outcomes) == 2)
    assert len(fired) <= loop.time() - began + 1
    assert {one.verdict for one in line.outcomes.values()} == {Verdict.ACCEPTED}, "the answer has woken it"
    await line.connector.stop(grace=1.0)


async def test_what_waited_for_a_full_window_then_waits_for_its_token(supplier: Aggregator) -> None:
    """The window has room again before the rate allows the next request."""
    line = Line(supplier.base_url, window=1, queue_seconds=60.0, requests_per_second=5.0)
    await line.connector.start()
    line.connector.set_sessions(1)
    assert await line.send(*(submission() for _ in range(3))) == [Verdict.ACCEPTED] * 3
    await line.connector.stop(grace=1.0)


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
    assert await other.send(submission("258841230103")) == [Verdict.UNKNOWN]
    assert other.connector.health().last_error == "the connection ended before an answer"
    await other.connector.stop(grace=0.0)


async def test_the_body_of_an_answer_may_take_as_long_as_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some send the status at once and the body when they are done: one cut off after two seconds used to be
    unknown."""
    may_go_on = asyncio.Event()
    deadlines: list[tuple[float, float]] = []

    class Seen(ClientConnection):
        def data_received(self, data: bytes) -> None:
            before = self.deadline
            super().data_received(data)
            deadlines.append((before, self.deadline))
            may_go_on.set()

    monkeypatch.setattr(client, "ClientConnection", Seen)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 70\r\n\r\n")
        await may_go_on.wait()
        writer.write(b'{"SMSMessageData":{"Recipients":[{"statusCode":101,"messageId":"a"}]}}')
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    line = Line(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await line.connector.start()
    line.connector.set_sessions(1)
    assert await line.send(submission()) == [Verdict.ACCEPTED]
    before, after = deadlines[0]
    assert after == before, "the head leaves the body less time"
    await line.connector.stop(grace=1.0)
    server.close()


async def test_an_answer_that_is_not_understood_is_logged_with_its_message(supplier: Aggregator) -> None:
    def stumble(*_: Any) -> Outcome:
        raise KeyError("status")

    kind = msgspec.structs.replace(kinds.HTTP["africastalking"], answer=stumble)
    line = Line(supplier.base_url, kind=kind)
    await line.connector.start()
    line.connector.set_sessions(1)
    one = submission()
    with capture_logs() as logged:
        assert await line.send(one) == [Verdict.UNKNOWN]
    (said,) = [entry for entry in logged if entry["event"] == "supplier's answer not understood"]
    assert (said["message_id"], said["count"], said["error"]) == (str(one.message_id), 1, "KeyError")
    await line.connector.stop(grace=0.0)


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
    assert line.outcomes[second.message_id].scope is Scope.PROCESS, "the supplier has failed at nothing"


async def test_what_still_connects_at_the_end_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to have no outcome at all, and so counted as one that might have been sent."""
    monkeypatch.setattr(http, "_LAST", 0.01)
    arrived = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()  # and no TLS handshake
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    line = Line(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await line.connector.start()
    line.connector.set_sessions(1)
    one = submission()
    line.connector.submit(one)
    await arrived.wait()
    await line.connector.stop(grace=0.0)
    outcome = line.outcomes[one.message_id]
    assert (outcome.verdict, outcome.scope) == (Verdict.UNREACHABLE, Scope.PROCESS)
    server.close()


async def test_a_throttle_slows_the_account_and_costs_no_try(supplier: Aggregator) -> None:
    supplier.options = msgspec.structs.replace(supplier.options, always="throttled")
    line = Line(supplier.base_url)
    await line.connector.start()
    line.connector.set_sessions(1)
    one = submission()
    assert await line.send(one) == [Verdict.BUSY]
    assert line.outcomes[one.message_id].counts is False
    assert line.connector.health().throttles == 1
    supplier.options = msgspec.structs.replace(supplier.options, always="")
    began = asyncio.get_running_loop().time()
    assert await line.send(*(submission() for _ in range(3))) == [Verdict.ACCEPTED] * 3
    # From two a second on: it was throttled at the first.
    assert asyncio.get_running_loop().time() - began > 0.4
    await line.connector.stop(grace=1.0)


async def test_a_pause_that_another_worker_was_told_of_is_kept(supplier: Aggregator) -> None:
    line = Line(supplier.base_url)
    await line.connector.start()
    line.connector.set_sessions(1)
    assert line.connector.capacity() > 0
    line.connector.slow(60.0)
    assert line.connector.capacity() == 0
    assert 0 < line.connector.health().pause <= 60
    assert line.connector.health().throttles == 0, "it is not told on"
    await line.connector.stop(grace=0.0)


async def test_what_waits_too_long_for_a_request_goes_back(supplier: Aggregator) -> None:
    supplier.options = msgspec.structs.replace(supplier.options, latency=3.0)
    line = Line(supplier.base_url, window=1, queue_seconds=1.0)
    await line.connector.start()
    line.connector.set_sessions(1)
    some = [submission() for _ in range(3)]
    verdicts = await line.send(*some)
    assert verdicts == [Verdict.ACCEPTED, Verdict.BUSY, Verdict.BUSY]
    assert not line.outcomes[some[1].message_id].counts
    assert line.outcomes[some[1].message_id].scope is Scope.PROCESS
    assert line.connector.health().throttles == 0
    await line.connector.stop(grace=1.0)


async def test_what_another_worker_may_have_taken_over_is_given_back(supplier: Aggregator) -> None:
    """It used to be sent once more, unless it had waited for `queue_seconds`."""
    supplier.options = msgspec.structs.replace(supplier.options, latency=0.5)
    lost_until = -math.inf
    line = Line(supplier.base_url, window=1, queue_seconds=300, lost_until=lambda: lost_until)
    await line.connector.start()
    line.connector.set_sessions(1)
    first, *waiting = [submission() for _ in range(3)]
    for one in (first, *waiting):
        line.connector.submit(one)
    await until(lambda: len(supplier.taken) == 1)
    lost_until = time.monotonic()
    await until(lambda: len(line.outcomes) == 3)
    assert line.outcomes[first.message_id].verdict is Verdict.ACCEPTED
    found = {line.outcomes[one.message_id] for one in waiting}
    assert {(one.verdict, one.counts, one.scope) for one in found} == {(Verdict.BUSY, False, Scope.PROCESS)}
    # What comes afterwards is sent.
    assert await line.send(submission()) == [Verdict.ACCEPTED]
    assert len(supplier.taken) == 2
    await line.connector.stop(grace=1.0)


async def test_what_was_handed_over_just_before_its_lease_ended_is_given_back(supplier: Aggregator) -> None:
    """It had not begun to be sent."""
    lost_until = -math.inf
    line = Line(supplier.base_url, lost_until=lambda: lost_until)
    await line.connector.start()
    line.connector.set_sessions(1)
    some = [submission() for _ in range(3)]
    for one in some:
        line.connector.submit(one)
    lost_until = time.monotonic()
    await until(lambda: len(line.outcomes) == 3)
    assert {(one.verdict, one.counts, one.scope) for one in line.outcomes.values()} == {
        (Verdict.BUSY, False, Scope.PROCESS)
    }
    assert await line.send(submission()) == [Verdict.ACCEPTED]
    assert len(supplier.taken) == 1
    await line.connector.stop(grace=1.0)


@pytest.mark.parametrize("batch", [1, 3])
async def test_what_may_be_another_workers_once_its_connection_is_open_is_given_back(
    supplier: Aggregator, batch: int
) -> None:
    """The process stood still while it connected: the message used to be sent after that."""
    handed = 0.0

    def lost_until() -> float:
        return handed if line.connector.health().submitted else -math.inf

    line = Line(supplier.base_url, lost_until=lost_until, batch=batch)
    await line.connector.start()
    line.connector.set_sessions(1)
    some = [submission(f"25884123010{n}") for n in range(3)]
    for one in some:
        line.connector.submit(one)
    handed = time.monotonic()
    await until(lambda: len(line.outcomes) == 3)
    assert {(one.verdict, one.counts, one.scope) for one in line.outcomes.values()} == {
        (Verdict.BUSY, False, Scope.PROCESS)
    }
    assert not supplier.taken
    assert await line.send(submission()) == [Verdict.ACCEPTED]
    await line.connector.stop(grace=1.0)


async def test_what_may_be_another_workers_once_others_were_sent_is_given_back(supplier: Aggregator) -> None:
    """The process stood still between two requests that it began at once: the second one used to be sent after that."""
    asked = [-math.inf] * 100
    line = Line(supplier.base_url, lost_until=lambda: asked.pop() if asked else time.monotonic())
    await line.connector.start()
    line.connector._client._keep_alive = math.inf
    line.connector.set_sessions(1)
    assert await line.send(*[submission() for _ in range(3)]) == [Verdict.ACCEPTED] * 3  # their connections are kept
    some = [submission() for _ in range(3)]
    for one in some:
        line.connector.submit(one)
    asked[:] = [-math.inf] * 2  # for all that wait, and for the first of them
    await until(lambda: len(line.outcomes) == 6)
    found = [line.outcomes[one.message_id] for one in some]
    assert [one.verdict for one in found] == [Verdict.ACCEPTED, Verdict.BUSY, Verdict.BUSY]
    assert {(one.counts, one.scope) for one in found[1:]} == {(False, Scope.PROCESS)}
    assert len(supplier.taken) == 4
    await line.connector.stop(grace=1.0)


@pytest.mark.parametrize("after", [False, True])
async def test_without_a_session_of_its_own_nothing_waits(supplier: Aggregator, after: bool) -> None:
    """What waited for a request when the last session moved to another worker used to stay for `queue_seconds`."""
    supplier.options = msgspec.structs.replace(supplier.options, latency=0.5)
    line = Line(supplier.base_url, window=1, queue_seconds=300)
    await line.connector.start()
    line.connector.set_sessions(1)
    first, *waiting = [submission() for _ in range(3)]
    line.connector.submit(first)
    if not after:
        for one in waiting:
            line.connector.submit(one)
    await until(lambda: len(supplier.taken) == 1)
    line.connector.set_sessions(0)
    assert (line.connector.ready(), line.connector.capacity()) == (False, 0)
    if after:
        for one in waiting:
            line.connector.submit(one)
        assert line.outcomes == {}
    await until(lambda: len(line.outcomes) == 2)
    found = {line.outcomes[one.message_id] for one in waiting}
    assert {(one.verdict, one.counts, one.scope) for one in found} == {(Verdict.BUSY, False, Scope.PROCESS)}
    await until(lambda: len(line.outcomes) == 3)
    assert line.outcomes[first.message_id].verdict is Verdict.ACCEPTED, "what has been sent keeps its answer"
    await line.connector.stop(grace=1.0)


async def test_a_machine_without_sockets_is_not_the_suppliers_fault(supplier: Aggregator) -> None:
    """Each message used to count as a failure of the supplier, and twenty of them opened its circuit."""
    line = Line(supplier.base_url, requests_per_second=500.0)
    await line.connector.start()
    line.connector.set_sessions(1)
    one = submission()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        next_free = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    try:
        assert await line.send(one) == [Verdict.BUSY]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    outcome, health = line.outcomes[one.message_id], line.connector.health()
    assert (outcome.counts, outcome.scope) == (False, Scope.PROCESS)
    assert outcome.detail == health.last_error == "this machine is out of sockets or threads: Too many open files"
    assert (health.throttles, line.connector._bucket.rate) == (0, 500)
    assert await line.send(submission()) == [Verdict.ACCEPTED]
    await line.connector.stop(grace=1.0)


class BatchLine(Line):
    """A connector that sends several messages per request."""

    def __init__(self, supplier: Aggregator, **settings: Any) -> None:
        self.outcomes = {}
        kind = kinds.HTTP[supplier.options.profile]
        values = {"base_url": supplier.base_url, "batch": 10} | settings
        values |= {"username": "acme"} if kind.name == "africastalking" else {}
        self.connector = connect(kind, Account(uuid4(), values, SECRET), self._heard)


@pytest.fixture(params=["africastalking", "infobip"])
async def lister(request: Any) -> Any:
    made = Aggregator(Options(profile=request.param, secret="s"))
    await made.start()
    yield made
    await made.stop()


def _to(n: int, end: str = "") -> str:
    return f"25884{n:03d}{end or '0106'}"


async def test_several_messages_go_in_a_request_and_each_has_its_verdict(lister: Aggregator) -> None:
    line = BatchLine(lister, window=1)
    await line.connector.start()
    line.connector.set_sessions(1)
    assert line.connector.capacity() == 10
    some = [submission(_to(n)) for n in range(9)]
    refused = submission(_to(9, "0100"))
    some.insert(4, refused)
    assert await line.send(*some) == [Verdict.REFUSED if one is refused else Verdict.ACCEPTED for one in some]
    assert (lister.requests, len(lister.taken)) == (1, 9)
    ids = {one.submitted.to: (one.id, one.submitted.reference) for one in lister.taken}
    for one in some:
        if one is not refused:
            (part,) = line.outcomes[one.message_id].parts
            assert part.supplier_message_id in ids[one.to]
    # What does not fit into one request goes into the next; a recipient is never twice in one.
    more = [submission(_to(n)) for n in range(15)] + [submission(_to(14))]
    assert await line.send(*more) == [Verdict.ACCEPTED] * 16
    assert lister.requests == 1 + 3
    await line.connector.stop(grace=1.0)


@pytest.mark.parametrize(
    ("end", "verdict"), [("0103", Verdict.UNKNOWN), ("0107", Verdict.UNKNOWN), ("0101", Verdict.BUSY)]
)
async def test_what_is_said_of_a_request_holds_for_all_its_messages(
    lister: Aggregator, end: str, verdict: Verdict
) -> None:
    """If a response is lost or cannot be parsed, all messages are in doubt; if it is a throttle, none was sent."""
    line = BatchLine(lister)
    await line.connector.start()
    line.connector.set_sessions(1)
    some = [submission(_to(1)), submission(_to(2, end)), submission(_to(3))]
    assert await line.send(*some) == [verdict] * 3
    assert lister.requests == 1
    assert len(lister.taken) == (0 if verdict is Verdict.BUSY else 3)
    await line.connector.stop(grace=1.0)


def _not_several(bad: Submission) -> HttpKind:
    """A kind that cannot write one of the messages."""
    made = kinds.HTTP["africastalking"]
    assert made.batch is not None
    write, write_several = made.request, made.batch.request

    def request(settings: Any, secrets: Any, message: Any) -> Any:
        if message.to == bad.to:
            raise ValueError("its text")
        return write(settings, secrets, message)

    def several(settings: Any, secrets: Any, messages: Any) -> Any:
        if any(message.to == bad.to for message in messages):
            raise ValueError("a text")
        return write_several(settings, secrets, messages)

    batch = msgspec.structs.replace(made.batch, request=several)
    return msgspec.structs.replace(made, request=request, batch=batch)


async def test_messages_that_cannot_share_a_request_wait_for_requests_of_their_own(supplier: Aggregator) -> None:
    """All of them used to be sent at once, however small the window, and to be counted twice."""
    supplier.options = msgspec.structs.replace(supplier.options, latency=30.0)
    some = [submission(_to(n)) for n in range(10)]
    bad = some[3]
    line = Line(supplier.base_url, kind=_not_several(bad), batch=10, window=2)
    await line.connector.start()
    line.connector.set_sessions(1)
    for one in some:
        line.connector.submit(one)
    await until(lambda: len(supplier.taken) == 2)
    health = line.connector.health()
    assert (health.in_flight, health.window, health.submitted) == (2, 20, 2)
    assert line.connector.capacity() == 0
    await line.connector.stop(grace=0.0)
    await until(lambda: len(line.outcomes) == 10)
    verdicts = [line.outcomes[one.message_id].verdict for one in some]
    assert verdicts == [Verdict.UNKNOWN] * 2 + [Verdict.UNREACHABLE] * 8


async def test_only_the_message_that_cannot_be_written_is_refused(supplier: Aggregator) -> None:
    some = [submission(_to(n)) for n in range(12)]
    bad = some[3]
    line = Line(supplier.base_url, kind=_not_several(bad), batch=10, window=2)
    await line.connector.start()
    line.connector.set_sessions(1)
    assert await line.send(*some) == [Verdict.REFUSED if one is bad else Verdict.ACCEPTED for one in some]
    assert line.outcomes[bad.message_id].detail == "cannot be written: its text"
    # The two that were not in that request share one.
    assert (supplier.requests, line.connector.health().submitted) == (9 + 1, 11)
    await line.connector.stop(grace=1.0)


@pytest.mark.parametrize("batch", [1, 10])
async def test_a_module_that_fails_before_anything_has_left_leaves_no_message_in_doubt(
    supplier: Aggregator, batch: int
) -> None:
    """They used to be unknown: the grace period and the guarantee decided about messages that had never been sent."""

    def stumble(*_: Any) -> Any:
        raise KeyError("sender")

    made = kinds.HTTP["africastalking"]
    assert made.batch is not None
    kind = msgspec.structs.replace(made, request=stumble, batch=msgspec.structs.replace(made.batch, request=stumble))
    line = Line(supplier.base_url, kind=kind, batch=batch)
    await line.connector.start()
    line.connector.set_sessions(1)
    some = [submission(_to(n)) for n in range(3)]
    with capture_logs() as logged:
        assert await line.send(*some) == [Verdict.UNREACHABLE] * 3
    said = [entry for entry in logged if entry["event"] == "supplier's request not written"]
    assert [entry["count"] for entry in said] == ([1, 1, 1] if batch == 1 else [3])
    assert (said[0]["log_level"], said[0]["message_id"]) == ("error", str(some[0].message_id))
    assert line.connector.health().last_error == "cannot be written: KeyError"
    assert (line.connector.health().submitted, supplier.requests) == (0, 0)
    await line.connector.stop(grace=0.0)


@pytest.mark.parametrize("batch", [1, 10])
async def test_a_module_that_returns_no_request_keeps_no_place_in_the_window(supplier: Aggregator, batch: int) -> None:
    """Its messages used to have no outcome, and those behind them stayed where they were."""

    def nothing(*_: Any) -> Any:
        return None

    made = kinds.HTTP["africastalking"]
    assert made.batch is not None
    kind = msgspec.structs.replace(made, request=nothing, batch=msgspec.structs.replace(made.batch, request=nothing))
    line = Line(supplier.base_url, kind=kind, batch=batch, window=1)
    await line.connector.start()
    line.connector.set_sessions(1)
    assert await line.send(*(submission(_to(n)) for n in range(3))) == [Verdict.UNREACHABLE] * 3
    assert (line.connector.health().in_flight, line.connector.capacity()) == (0, batch)
    await line.connector.stop(grace=0.0)


async def test_a_mistake_while_a_request_is_written_leaves_its_outcome_open(
    supplier: Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes may have left: if it counted as unwritten, it would be sent again."""
    line = Line(supplier.base_url)
    await line.connector.start()
    line.connector.set_sessions(1)

    def fail(*_: Any) -> bool:
        raise RuntimeError("after the write")

    monkeypatch.setattr(line.connector._client, "post_now", fail)
    assert await line.send(submission(), submission("258841230107")) == [Verdict.UNKNOWN] * 2
    assert line.connector.health().in_flight == 0
    await line.connector.stop(grace=0.0)


@pytest.mark.parametrize(("is_stopping", "scope"), [(False, Scope.ACCOUNT), (True, Scope.PROCESS)])
def test_who_closed_a_connection_before_the_request(is_stopping: bool, scope: Scope) -> None:
    closed = Failure("closed", "the connection ended before the request", 0.0, is_sent=False)
    outcome = http._failed(closed, is_stopping=is_stopping)
    assert (outcome.verdict, outcome.scope) == (Verdict.UNREACHABLE, scope)


async def test_messages_that_a_module_cannot_compare_are_sent_alone(supplier: Aggregator) -> None:
    """They used to wait for ever, and all others of the account with them."""
    some = [submission(_to(n)) for n in range(6)]
    bad = {some[0].message_id, some[3].message_id}

    def alike(one: Submission) -> Any:
        if one.message_id in bad:
            raise KeyError("sender")
        return one.text

    made = kinds.HTTP["africastalking"]
    assert made.batch is not None
    kind = msgspec.structs.replace(made, batch=msgspec.structs.replace(made.batch, alike=alike))
    line = Line(supplier.base_url, kind=kind, batch=10)
    await line.connector.start()
    line.connector.set_sessions(1)
    with capture_logs() as logged:
        assert await line.send(*some) == [Verdict.ACCEPTED] * 6
    assert supplier.requests == 4, "0, 1 and 2, 3, 4 and 5"
    said = [entry for entry in logged if entry["event"] == "supplier's messages not compared"]
    assert {entry["message_id"] for entry in said} == {str(id) for id in bad}
    assert [(entry["log_level"], entry["error"]) for entry in said] == [("error", "KeyError")] * 2
    await line.connector.stop(grace=1.0)


@pytest.mark.parametrize("batch", [1, 10])
async def test_an_outcome_handler_that_raises_harms_nobody_else(supplier: Aggregator, batch: int) -> None:
    """The other messages of a request used to have no outcome, and a stop left the connections open."""
    seen: list[Verdict] = []

    def fails(_: Submission, outcome: Outcome) -> None:
        seen.append(outcome.verdict)
        raise RuntimeError("a bug")

    values = {"base_url": supplier.base_url, "username": "acme", "batch": batch, "window": 1, "queue_seconds": 0.5}
    connector = connect(kinds.HTTP["africastalking"], Account(uuid4(), values, SECRET), fails)
    await connector.start()
    connector.set_sessions(3)
    for n in range(3):
        connector.submit(submission(_to(n)))
    await until(lambda: len(seen) == 3)
    assert (set(seen), connector.capacity()) == ({Verdict.ACCEPTED}, 3 * batch)
    connector.set_sessions(1)
    # One is in flight, one has waited for too long, and one is still waiting at the end.
    supplier.options = msgspec.structs.replace(supplier.options, latency=30.0)
    asked = supplier.requests
    connector.submit(submission(_to(1)))
    connector.submit(submission(_to(1)))
    await until(lambda: len(seen) == 4)
    assert (seen[3], supplier.requests) == (Verdict.BUSY, asked + 1)
    connector.submit(submission(_to(1)))
    await connector.stop(grace=0.0)
    assert seen[4:] == [Verdict.UNREACHABLE, Verdict.UNKNOWN]
    connector.submit(submission())
    await until(lambda: len(seen) == 7)


async def test_nobody_there_is_unreachable_for_all(lister: Aggregator) -> None:
    with held_port() as port:
        line = BatchLine(lister, base_url=f"http://127.0.0.1:{port}")
        await line.connector.start()
        line.connector.set_sessions(1)
        assert await line.send(*(submission(_to(n)) for n in range(3))) == [Verdict.UNREACHABLE] * 3
        await line.connector.stop(grace=0.0)


async def test_what_is_open_at_the_end_is_unknown_whole_requests_of_it(lister: Aggregator) -> None:
    lister.options = msgspec.structs.replace(lister.options, latency=30.0)
    line = BatchLine(lister, window=1)
    await line.connector.start()
    line.connector.set_sessions(1)
    some = [submission(_to(n)) for n in range(12)]
    for one in some:
        line.connector.submit(one)
    await until(lambda: len(lister.taken) == 10)
    assert line.connector.health().in_flight == 10
    await line.connector.stop(grace=0.0)
    await until(lambda: len(line.outcomes) == 12)
    verdicts = [line.outcomes[one.message_id].verdict for one in some]
    assert verdicts == [Verdict.UNKNOWN] * 10 + [Verdict.UNREACHABLE] * 2


async def test_recipients_that_share_a_request_share_its_text_where_the_supplier_wants_it() -> None:
    supplier = Aggregator(Options(profile="africastalking", secret="s"))
    await supplier.start()
    line = BatchLine(supplier)
    await line.connector.start()
    line.connector.set_sessions(1)
    texts = ["a", "a", "b", "a"]
    some = [msgspec.structs.replace(submission(_to(n)), text=text) for n, text in enumerate(texts)]
    assert await line.send(*some) == [Verdict.ACCEPTED] * 4
    assert {one.submitted.to: one.submitted.text for one in supplier.taken} == {
        one.to: text for one, text in zip(some, texts, strict=True)
    }
    assert supplier.requests == 3
    await line.connector.stop(grace=1.0)
    await supplier.stop()


async def test_requests_are_seen_while_somebody_watches_and_never_a_number_or_a_text(supplier: Aggregator) -> None:
    line = Line(supplier.base_url)
    assert isinstance(line.connector, WatchableConnector)
    await line.connector.start()
    line.connector.set_sessions(1)
    await line.send(submission())
    assert line.connector.exchanged() == []
    line.connector.watch(True)
    one = submission()
    await line.send(one)
    asked, answered = line.connector.exchanged()
    assert (asked.is_sent, asked.command, answered.is_sent, answered.status) == (True, "POST", False, "201")
    assert asked.sequence == answered.sequence
    assert asked.fields["address"].startswith("/")
    assert min(asked.fields["octets"], answered.fields["octets"]) > 0
    assert answered.fields["milliseconds"] >= 0
    for hidden in (one.to[-9:], SECRET, supplier.base_url):
        assert hidden not in str((asked, answered))
    line.connector.watch(False)
    await line.send(submission())
    assert line.connector.exchanged() == []
    await line.connector.stop(grace=1.0)


def test_a_code_or_a_password_of_digits_is_no_number() -> None:
    url = "http://gateway.example/send?text=482913&pin=12345678&to=258841234567"
    assert shown(url, ["12345678", "482913"]) == "/send?text=(6)&pin=(8)&to=…4567"


async def test_its_last_request_and_how_long_answers_took_are_known_without_a_watch(supplier: Aggregator) -> None:
    line = Line(supplier.base_url)
    assert isinstance(line.connector, InspectableConnector)
    await line.connector.start()
    # Without a session there is nothing to observe.
    assert line.connector.wires() == []
    line.connector.set_sessions(2)
    (before,) = line.connector.wires()
    assert (before.sent_at, before.received_at) == (None, None)
    await line.send(submission(), submission())
    (seen,) = line.connector.wires()
    assert (seen.in_flight, seen.sent, seen.received) == (0, "POST", "201")
    assert seen.sent_at is not None
    assert seen.received_at is not None
    # Nothing has happened since, so the times stay.
    assert line.connector.wires() == [seen]
    assert sum(line.connector.answers()) == 2
    assert sum(line.connector.answers()) == 0
    await supplier.stop()
    await line.send(submission())
    (gone,) = line.connector.wires()
    assert gone.received in http.FAILURES
    assert gone.received_at is not None
    assert gone.received_at >= seen.received_at
    assert sum(line.connector.answers()) == 0, "a request that nobody answered is no answer"
    await line.connector.stop(grace=1.0)


@pytest.mark.parametrize(("code", "verdict"), [("taken", Verdict.ACCEPTED), ("bad", Verdict.REFUSED)])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_answer_may_say_id_and_code_in_headers(
    method: str, code: str, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accepted(asked: profiles.SubmittedMessage, id: str) -> Reply:
        return Reply(200, b"", "text/plain", headers=((b"Message-Id", id.encode()), (b"X-RESULT", code.encode())))

    def read(head: Any, body: bytes, secret: str) -> profiles.SubmittedMessage:
        return profiles.SubmittedMessage("258841230106", "ACME", "hi")

    plain = msgspec.structs.replace(profiles.PROFILES["plain"], accepted=accepted, read=read)
    monkeypatch.setitem(profiles.PROFILES, "plain", plain)  # type: ignore[arg-type]
    supplier = Aggregator(Options(profile="plain", secret="s"))
    await supplier.start()
    settings = {"base_url": supplier.base_url, "method": method, "path": "/send", "id_at": "header:message-ID"}
    settings |= {"code_at": "header:X-Result", "codes": {"taken": "accepted", "bad": "refused"}}
    line = Line(supplier.base_url)
    line.connector = connect(kinds.HTTP["http"], Account(uuid4(), settings, SECRET), line._heard)
    await line.connector.start()
    line.connector.set_sessions(1)
    one = submission()
    assert await line.send(one) == [verdict]
    ids = [part.supplier_message_id for part in line.outcomes[one.message_id].parts]
    assert ids == [taken.id for taken in supplier.taken if verdict is Verdict.ACCEPTED]
    await line.connector.stop(grace=1.0)
    await supplier.stop()


@pytest.mark.parametrize(
    ("answer", "id"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\nOK: 123456789012", "123456789012"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\nOK: 123456", None),
        (b"HTTP/1.0 200 OK\r\n\r\nOK: 123456789012", "123456789012"),
    ],
    ids=["whole", "cut", "until the end"],
)
async def test_an_answer_that_ends_early_has_no_id_if_that_may_be_cut(answer: bytes, id: str | None) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    line = Line(url)
    settings = {"base_url": url, "method": "GET", "path": "/send", "id_at": "regex:^OK: ([0-9]+)"}
    line.connector = connect(kinds.HTTP["http"], Account(uuid4(), settings, SECRET), line._heard)
    await line.connector.start()
    line.connector.set_sessions(1)
    one = submission()
    assert await line.send(one) == [Verdict.UNKNOWN if id is None else Verdict.ACCEPTED]
    ids = [part.supplier_message_id for part in line.outcomes[one.message_id].parts]
    assert ids == ([] if id is None else [id])
    await line.connector.stop(grace=1.0)
    server.close()


async def test_a_long_text_fits_into_an_address_and_a_longer_one_is_refused_alone() -> None:
    """From 2,048 characters on, the whole account counted as unreachable, and the message came back for ever."""
    lines: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
        writer.write(b"HTTP/1.0 202 Accepted\r\n\r\n0: Accepted for delivery")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    line = Line(url)
    settings = {"base_url": url, "method": "GET", "path": "/cgi-bin/sendsms?to={{to}}&text={{text}}"}
    line.connector = connect(kinds.HTTP["http"], Account(uuid4(), settings, SECRET), line._heard)
    await line.connector.start()
    line.connector.set_sessions(1)
    longest, longer = (msgspec.structs.replace(submission(), text="न" * n, encoding="ucs2") for n in (670, 900))
    longer = msgspec.structs.replace(longer, message_id=uuid4())
    assert await line.send(longest, longer) == [Verdict.ACCEPTED, Verdict.REFUSED]
    assert [one.count(quote("न").encode()) for one in lines] == [670]
    outcome = line.outcomes[longer.message_id]
    assert (outcome.scope, outcome.failover) == (Scope.MESSAGE, True)
    assert outcome.detail == "cannot be written: an address of more than 8000 characters"
    await line.connector.stop(grace=1.0)
    server.close()


@pytest.mark.parametrize(
    ("pack", "verdict"),
    [(gzip.compress, Verdict.ACCEPTED), (lambda body: gzip.compress(body)[:-20], Verdict.UNKNOWN)],
    ids=["whole", "damaged"],
)
async def test_an_answer_may_be_compressed_though_nobody_asked_for_it(
    pack: Callable[[bytes], bytes], verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it was not parsed, its message was sent once more. One that cannot be parsed leaves open whether the supplier
    has the message."""
    made = profiles.PROFILES["africastalking"]

    def accepted(wanted: profiles.SubmittedMessage, id: str) -> Reply:
        plain = made.accepted(wanted, id)
        packed = ((b"Content-Encoding", b"gzip"),)
        return msgspec.structs.replace(plain, body=pack(plain.body), headers=plain.headers + packed)

    changed = msgspec.structs.replace(made, accepted=accepted)
    monkeypatch.setitem(profiles.PROFILES, "africastalking", changed)  # type: ignore[arg-type]
    supplier = Aggregator(Options(profile="africastalking", secret="s"))
    await supplier.start()
    line = Line(supplier.base_url)
    await line.connector.start()
    line.connector.set_sessions(1)
    assert await line.send(submission()) == [verdict]
    await line.connector.stop(grace=1.0)
    await supplier.stop()


async def test_a_trial_shows_no_secret_however_the_answer_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some gateways echo the request in their response."""
    secret, basic = 'p@ss "w&rd', "dXM6cEBzcyAidyZyZA=="
    said = [secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret), basic, "/in/sms/1/t0ken/receipts"]

    def accepted(asked: profiles.SubmittedMessage, id: str) -> Reply:
        return Reply(200, "\n".join(said).encode(), "text/plain")

    def read(head: Any, body: bytes, secret: str) -> profiles.SubmittedMessage:
        return profiles.SubmittedMessage("258841230106", "ACME", "hi")

    plain = msgspec.structs.replace(profiles.PROFILES["plain"], accepted=accepted, read=read)
    monkeypatch.setitem(profiles.PROFILES, "plain", plain)  # type: ignore[arg-type]
    supplier = Aggregator(Options(profile="plain", secret="s"))
    await supplier.start()
    settings = {"base_url": supplier.base_url, "basic_user": "us", "body": '{"text":"{{text}}"}'}
    sealed = msgspec.json.encode({"secret": secret}).decode()
    account = Account(uuid4(), settings, sealed, "https://us.example/in/sms/1/t0ken")
    found = await trial.attempt("http", account, submission())
    await supplier.stop()
    assert found.outcome is not None
    assert found.outcome.verdict is Verdict.ACCEPTED
    shown = found.answers[0]["body"].split("\n")
    assert shown == [trial.HIDDEN] * 3 + [f'"{trial.HIDDEN}"', trial.HIDDEN, f"/in/sms/1/{trial.HIDDEN}/receipts"]
