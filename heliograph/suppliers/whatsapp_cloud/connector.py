"""One WhatsApp number at Meta's Cloud API, inside one worker: rate, users' gates, holds, outcomes.

A hold stops the number: an invalid credential, an account in trouble, a restriction. Unsent messages are returned, and
when the hold ends, one message probes before the others follow.

The rule nobody may break: every submission gets exactly one outcome, and `on_outcome` is never called from within
`submit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable

import structlog

from heliograph.base.retry import META_SILENT
from heliograph.base.sentences import said
from heliograph.suppliers.contract import LostUntil, Verdict, never_lost
from heliograph.suppliers.whatsapp_cloud.contract import (
    OWN_PACE,
    CloudHealth,
    CloudOutcome,
    CloudSubmission,
    OnCloudOutcome,
)
from heliograph.suppliers.whatsapp_cloud.credential import Credential
from heliograph.suppliers.whatsapp_cloud.errors import Kind, Scope, classify
from heliograph.suppliers.whatsapp_cloud.graph import WITHHELD, CloudClient
from heliograph.suppliers.whatsapp_cloud.pacing import DEFAULT_RATE, NumberPacer, PairGate

log = structlog.get_logger(__name__)

#: Maximum concurrent sends of one number: 1,000 a second at 120 ms need 120, and a slow second more.
CONCURRENCY = 256

#: Scopes whose hold stops the whole number.
_STOPS = frozenset({Scope.NUMBER, Scope.ACCOUNT, Scope.CREDENTIAL})
#: 131056, for a user whom our own gate stops before Meta does.
_PAIR = classify(131056)
#: After this many consecutive sends without a readable answer, the number rests (META_SILENT).
_SILENCE = 3
#: Cancelled sends have this long to release their connections, seconds.
_LET_GO = 1.0


class CloudConnector:
    """Implements contract.NumberConnector. `clock` gives monotonic seconds, on which `lost_until` is as well."""

    def __init__(
        self,
        client: CloudClient,
        number_graph_id: str,
        credential: Credential,
        on_outcome: OnCloudOutcome,
        *,
        rate: float = DEFAULT_RATE,
        concurrency: int = CONCURRENCY,
        lost_until: LostUntil = never_lost,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._number = number_graph_id
        self._credential = credential
        self._on_outcome = on_outcome
        self._lost_until = lost_until
        self._concurrency = concurrency
        self._clock = clock
        self._pacer = NumberPacer(rate, clock)
        self._gate = PairGate(clock)
        #: (time of arrival, submission).
        self._queue: deque[tuple[float, CloudSubmission]] = deque()
        #: In flight, numbered by this connector, each with its credential; and the tasks of those that had to wait for
        #: a connection.
        self._flying: dict[int, tuple[CloudSubmission, Credential]] = {}
        self._begun = 0
        #: Of those in flight, the ones whose connection is not open yet: nothing of them has left.
        self._connecting: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Submissions without an outcome yet.
        self._open = 0
        self._running = self._stopping = False
        self._timer: asyncio.TimerHandle | None = None
        self._all_ended = asyncio.Event()
        self._held_until = float("-inf")
        self._reason: Kind | None = None
        #: A hold has begun or ended, and nothing has shown yet that its cause is gone.
        self._trying = False
        #: Sends since the last readable answer, and the number of rests because of that.
        self._silent = self._rests = 0
        self._last_error = ""

    # -- contract.NumberConnector --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Ready to send; returns at once. Connections are opened on demand."""
        self._loop = asyncio.get_running_loop()
        self._running = True

    def capacity(self) -> int:
        """Messages that can be submitted now: room in concurrency or the rate, whichever is less; 1 after a hold."""
        if not self._running or self._stopping or self._clock() < self._held_until:
            return 0
        if self._trying:
            return 0 if self._open else 1
        room = min(self._concurrency - len(self._flying), self._pacer.available() + self._pacer.ahead)
        return max(0, room - len(self._queue))

    def pair_wait(self, recipient: str, *, ahead: int = 0, debt: float = 0.0) -> float:
        """See NumberConnector."""
        if debt > 0:
            self._gate.learn(recipient, debt)
        return self._gate.wait(recipient, ahead=ahead)

    def submit(self, submission: CloudSubmission) -> None:
        """Hand over one message. Its outcome comes later, exactly once, whatever happens."""
        self._open += 1
        if not self._running or self._stopping:
            self._end_soon(submission, _unreachable("stopped"))
        elif self._clock() < self._held_until:
            self._end_soon(submission, _unreachable("held"))
        elif (wait := self._gate.wait(submission.recipient)) > 0:
            self._end_soon(
                submission, CloudOutcome(Verdict.BUSY, fault=_PAIR, code=OWN_PACE, retry_after=wait, detail=_PAIR.title)
            )
        else:
            # Counted from here on, so that two messages of one batch cannot both take the same room.
            self._gate.take(submission.recipient)
            self._queue.append((self._clock(), submission))
            self._pump()

    def hold(self, seconds: float, reason: Kind | None = None) -> None:
        """Send nothing for `seconds`; then one message probes first. Never shortens a hold."""
        self._held_until = max(self._held_until, self._clock() + seconds)
        self._reason = reason or self._reason
        self._trying = True
        while self._queue:
            self._return("held")

    def release(self) -> None:
        """End a hold, after a new token, a successful check, or on an operator's request."""
        self._held_until = float("-inf")
        self._reason = None
        self._trying = False
        self._pump()

    def health(self) -> CloudHealth:
        held = max(0.0, self._held_until - self._clock())
        usable = self._running and not self._stopping and not held
        return CloudHealth(
            usable, len(self._flying), len(self._queue), self._pacer.rate, held, self._reason, self._last_error
        )

    async def stop(self, *, grace: float) -> None:
        """Return messages not yet sent, wait for outstanding answers, return those that are still connecting, end the
        rest as UNKNOWN."""
        if not self._running or self._stopping:
            return
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        while self._queue:
            self._return("stopping")
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._all_ended.wait()
        late = {number: submission for number, (submission, _) in self._flying.items()}
        self._flying.clear()
        for number, submission in late.items():
            unknown = CloudOutcome(Verdict.UNKNOWN, fault=classify(None), code="stopped")
            self._end(submission, _unreachable("stopping") if number in self._connecting else unknown)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LET_GO)
        if self._open:
            await self._all_ended.wait()
        self._running = False

    # -- changes at run time -------------------------------------------------------------------------------------------

    def set_credential(self, credential: Credential) -> None:
        """A new credential. Ends a hold caused by the old one."""
        if credential == self._credential:
            return
        self._credential = credential
        if self._reason is Kind.AUTH:
            self.release()

    def set_rate(self, rate: float) -> None:
        """Messages a second of this process: the number's throughput, or this worker's share of it."""
        self._pacer.resize(rate)

    def slow(self) -> None:
        """Send more slowly for a while: a status has reported that the number is too fast."""
        self._pacer.slow()

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        if self._queue:
            lost_until = self._lost_until()
            while self._queue and self._queue[0][0] <= lost_until:
                self._return("held")
        if self._stopping or not self._queue:
            return
        free = min(self._concurrency - len(self._flying), len(self._queue), self._pacer.available())
        if free > 0:
            self._pacer.take(free)
            for _ in range(free):
                since, submission = self._queue.popleft()
                self._begun += 1
                self._flying[self._begun] = submission, self._credential
                self._send(self._begun, submission, self._credential, since)
        if self._queue and len(self._flying) < self._concurrency and self._timer is None:
            self._timer = self._loop.call_later(max(self._pacer.wait(), 0.001), self._tick)

    def _return(self, reason: str) -> None:
        """Return the message that has waited longest, unsent."""
        _, submission = self._queue.popleft()
        self._gate.give_back(submission.recipient)
        self._end_soon(submission, _unreachable(reason))

    def _tick(self) -> None:
        self._timer = None
        self._pump()

    def _send(self, number: int, submission: CloudSubmission, credential: Credential, since: float) -> None:
        answered = functools.partial(self._answered, number)
        if since <= self._lost_until():  # this process stood still while it sent others
            self._loop.call_soon(answered, _unreachable(WITHHELD))
            return
        try:
            if self._client.send_now(self._number, credential, submission.body, submission.message_id, answered):
                return
        except Exception as error:
            self._loop.call_soon(answered, _failed(submission, error))
            return
        self._connecting.add(number)
        task = self._loop.create_task(self._connect_and_send(number, submission, credential, since))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_and_send(
        self, number: int, submission: CloudSubmission, credential: Credential, since: float
    ) -> None:
        try:
            outcome = await self._client.send(
                self._number, credential, submission.body, wanted=functools.partial(self._begins, number, since)
            )
        except Exception as error:
            outcome = _failed(submission, error)
        self._answered(number, outcome)

    def _begins(self, number: int, since: float) -> bool:
        """Whether a message whose connection has just opened is to be sent; then it may have left."""
        if number not in self._flying or since <= self._lost_until():
            return False
        self._connecting.discard(number)
        return True

    def _answered(self, number: int, outcome: CloudOutcome) -> None:
        self._connecting.discard(number)
        flown = self._flying.pop(number, None)
        if flown is None:
            return  # stop() has ended it
        submission, credential = flown
        if outcome.fault is not None and outcome.fault.kind is Kind.AUTH and credential != self._credential:
            # It says nothing about the credential that has replaced it meanwhile.
            self._gate.give_back(submission.recipient)
            outcome = _unreachable("credential replaced")
        elif outcome.code == WITHHELD:  # its lease was lost while the connection was opened
            self._gate.give_back(submission.recipient)
            outcome = _unreachable("held")
        else:
            self._learn(submission, outcome)
        self._end(submission, outcome)
        self._pump()

    def _learn(self, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        """Apply what an answer says about the number and the user, beyond the message."""
        held = self._clock() < self._held_until
        fault = outcome.fault
        if outcome.verdict not in (Verdict.ACCEPTED, Verdict.UNKNOWN):
            self._gate.give_back(submission.recipient)
        if outcome.verdict in (Verdict.UNREACHABLE, Verdict.UNKNOWN):
            self._last_error = outcome.code
            self._silent += not held
            if self._silent >= _SILENCE and not held:
                self.hold(META_SILENT.pause(self._rests), Kind.RETRY)
                self._rests += 1
            return
        self._silent = self._rests = 0
        if fault is not None:
            self._last_error = outcome.code
            if fault.slow:
                self._pacer.slow()
            if fault.kind is Kind.PAIR:
                self._gate.shut(submission.recipient, outcome.retry_after or fault.hold)
            elif fault.scope in _STOPS and not fault.slow:
                self.hold(max(fault.hold, outcome.retry_after or 0.0), fault.kind)
                return
            elif fault.slow and outcome.retry_after:
                self.hold(outcome.retry_after, fault.kind)
                return
        # Accepted, or refused for reasons of its own: the number itself works.
        if not held and (outcome.verdict is not Verdict.BUSY or (fault is not None and fault.kind is Kind.PAIR)):
            self._reason, self._trying = None, False

    def _end_soon(self, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        loop = self._loop if self._running else asyncio.get_running_loop()
        loop.call_soon(self._end, submission, outcome)

    def _end(self, submission: CloudSubmission, outcome: CloudOutcome) -> None:
        self._open -= 1
        if self._stopping and not self._open:
            self._all_ended.set()
        try:
            self._on_outcome(submission, outcome)
        except Exception:
            log.exception("outcome handler failed", message_id=str(submission.message_id))


def _failed(submission: CloudSubmission, error: Exception) -> CloudOutcome:
    """Something of our own failed while a message was being sent: its bytes may have left."""
    log.exception("request to Meta failed", error=type(error).__name__, message_id=str(submission.message_id))
    return CloudOutcome(Verdict.UNKNOWN, fault=classify(None), code=type(error).__name__)


def _unreachable(reason: str) -> CloudOutcome:
    return CloudOutcome(Verdict.UNREACHABLE, code=reason, detail=said("nothing was sent"))
