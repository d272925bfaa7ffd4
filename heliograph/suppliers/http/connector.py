"""One account over HTTP inside one worker: requests, rate, outcomes. Later reports arrive through our own callbacks.

A session is a number of concurrent requests (`window`). There is nothing to connect: an unreachable account shows in
the outcomes of its messages, and its circuit opens.

The rule nobody may break: every submission gets exactly one outcome, and `on_outcome` is never called from within
`submit`. A message that may have left and was not answered is UNKNOWN, whatever else is known about the supplier.

It has over 400 lines because requests for one message and for several share their rate, outcomes and error handling.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from heliograph.base.network.addresses import parse_networks
from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import Sentence, joined, quoted, said
from heliograph.http import answers as http
from heliograph.http.answers import READ_BYTES, Failure
from heliograph.http.client import ClientRules, HttpClient
from heliograph.suppliers.bucket import Bucket
from heliograph.suppliers.contract import (
    Account,
    Exchange,
    Health,
    LostUntil,
    OnOutcome,
    Outcome,
    Scope,
    Submission,
    Verdict,
    WireActivity,
    never_lost,
    returned,
)
from heliograph.suppliers.http import references
from heliograph.suppliers.http.kind import Answer, HttpKind, HttpSettings, Message, Request, secrets_of
from heliograph.suppliers.http.watching import ExchangeRecorder, RequestActivity
from heliograph.suppliers.pump_timer import LEASE_LOST, PumpTimer
from heliograph.suppliers.settings import checked

log = structlog.get_logger(__name__)

#: Maximum digits of a sender that is not a full phone number.
SHORT_CODE = 8
#: Maximum characters of a request's address: servers read 8 KiB, and the longest text that is accepted takes 6,000.
LONGEST_ADDRESS = 8_000
#: Seconds for requests still open when a worker stops, after its grace period.
_LAST = 1.0
_NEVER = float("inf")
#: Suppliers are chosen by operators, so they may be on this machine or behind a VPN.
_ANYWHERE = parse_networks("0.0.0.0/0,::/0")
#: Why there was no answer, by kind of `http.answers.Failure`.
FAILURES: Mapping[str, Sentence] = {
    "blocked": said("connections to this address are not allowed"),
    "busy": said("this machine is out of sockets or threads"),
    "dns": said("the name has no address"),
    "connect": said("cannot connect"),
    "tls": said("the TLS handshake failed"),
    "timeout": said("no answer in time"),
    "closed": said("the connection ended before an answer"),
    "protocol": said("the answer is not HTTP"),
    "withheld": LEASE_LOST,
}


def connect(
    kind: HttpKind, account: Account, on_outcome: OnOutcome, *, lost_until: LostUntil = never_lost
) -> HttpConnector:
    """A connector of this kind. Raises SettingsError (names the field)."""
    return HttpConnector(kind, checked(kind.settings, account.settings), account, on_outcome, lost_until=lost_until)


class _Waiting(msgspec.Struct, frozen=True, gc=False):
    """A message that waits for a request."""

    #: When it began to wait, seconds, monotonic.
    since: float
    submission: Submission
    #: See `HttpConnector._likeness`.
    like: Any


class HttpConnector:
    """Implements contract.Connector."""

    def __init__(
        self,
        kind: HttpKind,
        settings: HttpSettings,
        account: Account,
        on_outcome: OnOutcome,
        *,
        lost_until: LostUntil = never_lost,
    ) -> None:
        if not settings.base_url:
            raise SettingsError("base_url: is required")
        self._kind = kind
        self._settings = settings
        self._secrets = secrets_of(account.secret)
        self._callback = account.callback
        self._on_outcome = on_outcome
        self._lost_until = lost_until
        self._sessions = 0
        self._running = self._stopping = False
        self._waiting: deque[_Waiting] = deque()
        #: Messages sent and not yet answered, by request; requests are numbered by this connector.
        self._open: dict[int, tuple[Submission, ...]] = {}
        #: Maximum messages per request.
        self._most: int = getattr(settings, "batch", 1) if kind.batch is not None else 1
        self._begun = self._asked = 0
        #: Requests that had to wait for a connection.
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_ended = asyncio.Event()
        #: No requests before this time: the supplier asked for a pause.
        self._paused_until = 0.0
        #: How often it throttled us.
        self._throttles = 0
        self._last_error = quoted("")
        self._looks = RequestActivity()
        #: Set while an operator watches.
        self._tap: ExchangeRecorder | None = None

    # -- contract.Connector --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Nothing to connect yet; returns at once."""
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._bucket = Bucket(settings.requests_per_second * max(1, self._sessions), self._loop.time())
        self._timer = PumpTimer(self._loop, self._pump)
        rules = ClientRules(
            seconds=settings.response_seconds,
            connect_seconds=min(settings.connect_seconds, settings.response_seconds),
            per_destination=1 << 30,
            allow_http=True,
            networks=_ANYWHERE,
            kept=READ_BYTES,
            decodes=True,
            headers=frozenset(name.encode("latin-1", "replace") for name in self._kind.headers(settings)),
            # Unlike a receiver's, a supplier's status says little: its body has the id, and may follow long after.
            body_seconds=settings.response_seconds,
            longest_url=LONGEST_ADDRESS,
        )
        self._client = HttpClient(rules)
        self._running = True

    def set_sessions(self, count: int) -> None:
        """Set how many windows' worth of requests this process may have open."""
        if count != self._sessions and self._settings.requests_per_second and self._running:
            self._bucket.resize(self._settings.requests_per_second * max(1, count), self._loop.time())
        self._sessions = count
        if self._running:
            self._pump()

    def ready(self) -> bool:
        """True while requests may be open."""
        return self._running and self._sessions > 0

    def capacity(self) -> int:
        """Messages that can be sent now: room in the window or the rate, whichever is less."""
        if not self._running or self._stopping or self._loop.time() < self._paused_until:
            return 0
        return max(0, min((self._window - len(self._open)) * self._most, self._bucket.ahead) - len(self._waiting))

    def parts(self, submission: Submission) -> int:
        """Always 1: the supplier cuts the message itself, and reports on it as a whole."""
        return 1

    def billed(self, submission: Submission) -> int:
        """The number of segments into which the supplier will cut it."""
        return submission.count

    def submit(self, submission: Submission) -> None:
        """Hand over one message. Its outcome comes later, exactly once, whatever happens."""
        if not self._running or self._stopping:
            asyncio.get_running_loop().call_soon(self._report, submission, _STOPPED)
            return
        now = self._loop.time()
        self._waiting.append(_Waiting(now, submission, self._likeness(submission)))
        # Not called directly: an outcome could follow at once, before dispatch knows about the submission.
        self._timer.by(now)

    def slow(self, pause: float) -> None:
        """Another worker was throttled."""
        if self._running:
            now = self._loop.time()
            self._bucket.slow(now)
            self._paused_until = max(self._paused_until, now + pause)

    def health(self) -> Health:
        in_flight = sum(len(some) for some in self._open.values())
        pause = max(0.0, self._paused_until - self._loop.time()) if self._running else 0.0
        sessions = self._sessions if self._running else 0
        window = sessions * self._settings.window * self._most
        told, asked = self._throttles, self._asked
        return Health(sessions, in_flight, None, self._last_error, told, pause, window=window, submitted=asked)

    def wires(self) -> list[WireActivity]:
        """See contract.InspectableConnector. All requests of this process count as one: it has no sessions."""
        if not self.ready():
            return []
        return [self._looks.wire(sum(len(some) for some in self._open.values()))]

    def answers(self) -> list[int]:
        """See contract.InspectableConnector."""
        return self._looks.took()

    def watch(self, is_watched: bool) -> None:
        """See contract.WatchableConnector. While it is not watched, a request costs one attribute check."""
        if is_watched != (self._tap is not None):
            self._tap = ExchangeRecorder(self._secrets.values()) if is_watched else None

    def exchanged(self) -> list[Exchange]:
        """See contract.WatchableConnector."""
        return self._tap.take() if self._tap is not None else []

    async def stop(self, *, grace: float) -> None:
        """Return messages not yet begun, wait for outstanding answers, close. Requests still unanswered end as
        UNKNOWN."""
        if not self._running or self._stopping:
            return
        self._stopping = True
        self._timer.cancel()
        self._give_back(_STOPPED)
        await self._until_ended(grace)
        await self._client.close()  # ends open requests, each with its outcome
        await self._until_ended(_LAST)
        # The client has ended every request that was sent; the remaining ones are still connecting.
        for task in self._tasks:
            task.cancel()
        for number, some in list(self._open.items()):
            self._end(number, *[_STOPPED] * len(some))
        self._running = False

    # -- requests ------------------------------------------------------------------------------------------------------

    @property
    def _window(self) -> int:
        return self._sessions * self._settings.window

    def _pump(self) -> None:
        """Start as many requests as may be open."""
        if self._stopping:
            return
        now, longest = self._loop.time(), self._settings.queue_seconds
        if not self._sessions:
            self._give_back(_NO_SESSION)
        lost_until = self._lost_until()
        while self._waiting and self._waiting[0].since <= lost_until:
            self._report(self._waiting.popleft().submission, _LEASE_LOST)
        while self._waiting and self._waiting[0].since + longest <= now:
            self._report(self._waiting.popleft().submission, _NO_ROOM)
        while self._waiting and len(self._open) < self._window and now >= self._paused_until:
            tokens = self._bucket.available(now)
            if tokens <= 0:
                break
            self._begin(self._next(tokens))
        if self._waiting:
            # The end of a request, or another session, makes room in a full window, and pumps by itself.
            has_room = len(self._open) < self._window
            at = max(now + self._bucket.wait(now), self._paused_until) if has_room else _NEVER
            self._timer.by(min(at, self._waiting[0].since + longest))

    def _give_back(self, outcome: Outcome) -> None:
        """Return the messages that wait."""
        while self._waiting:
            self._report(self._waiting.popleft().submission, outcome)

    def _next(self, tokens: float) -> list[_Waiting]:
        """The messages for one request: as many waiting ones, in order, as it may hold."""
        first = self._waiting.popleft()
        some, recipients, most = [first], {first.submission.to}, min(self._most, int(tokens))
        while self._waiting and len(some) < most:
            one = self._waiting[0]
            # An answer identifies messages by their recipients.
            if one.submission.to in recipients or one.like != first.like:
                break
            some.append(self._waiting.popleft())
            recipients.add(one.submission.to)
        return some

    def _likeness(self, submission: Submission) -> Any:
        """Messages share a request only if this is equal; a new object for one that is to be sent alone."""
        if self._most <= 1 or self._kind.batch is None:
            return None
        try:
            return self._kind.batch.alike(submission)
        except Exception as error:
            log.exception(
                "supplier's messages not compared",
                kind=self._kind.name,
                error=type(error).__name__,
                message_id=str(submission.message_id),
            )
            return object()

    def _begin(self, some: list[_Waiting]) -> None:
        self._begun += 1
        number = self._begun
        self._open[number] = tuple([one.submission for one in some])
        try:
            if len(some) == 1:
                self._send(number, some[0])
            else:
                self._send_several(number, some)
        except Exception as error:
            self._loop.call_soon(self._end, number, *[self._not_written(number, error)] * len(some))

    async def _until_ended(self, seconds: float) -> None:
        if self._open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._all_ended.wait()

    def _send(self, number: int, one: _Waiting) -> None:
        """Send on an idle open connection, or have a task connect first."""
        try:
            message = _message(one.submission, self._callback)
            request: Request = _checked(self._kind.request(self._settings, self._secrets, message))
        except ValueError as error:
            refused = Outcome(
                Verdict.REFUSED,
                detail=_cannot_be_written(str(error)),
                failover=True,
                scope=Scope.MESSAGE,
                total=1,
            )
            self._loop.call_soon(self._end, number, refused)
            return
        self._ask(number, request, [message], partial(self._answered, number, message), since=one.since)

    def _send_several(self, number: int, some: list[_Waiting]) -> None:
        """One request for several messages."""
        assert self._kind.batch is not None
        try:
            messages = [_message(one.submission, self._callback) for one in some]
            request = _checked(self._kind.batch.request(self._settings, self._secrets, messages))
        except ValueError:
            # Each is sent alone, as the window allows, so that only the one that cannot be written is refused.
            del self._open[number]
            self._waiting.extendleft(_Waiting(one.since, one.submission, object()) for one in reversed(some))
            return
        answered = partial(self._answered_several, number, messages)
        self._ask(number, request, messages, answered, since=some[0].since)

    def _ask(
        self,
        number: int,
        request: Request,
        messages: Sequence[Message],
        answered: Callable[[http.Answer | Failure], None],
        *,
        since: float,
    ) -> None:
        """`since`: when the first of them began to wait."""
        if since <= self._lost_until():  # this process stood still while it sent others
            self._loop.call_soon(self._end, number, *[_LEASE_LOST] * len(messages))
            return
        self._bucket.take(len(messages))
        self._asked += len(messages)
        self._looks.asked(request.method)
        if self._tap is not None:
            answered = self._tap.asked(request, messages, answered)
        if _is_remembered(request):
            lines = "".join([f"{name}: {value}\r\n" for name, value in request.headers.items()])
            try:
                if self._client.post_now(request.url, request.body, lines, len(request.headers), answered):
                    return
            except Exception as error:  # its bytes may have left
                if number in self._open:
                    outcome = self._not_understood(number, error)
                    self._loop.call_soon(self._end, number, *[outcome] * len(messages))
                return
        task = self._loop.create_task(self._connect_and_send(number, request, answered, since))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect_and_send(
        self, number: int, request: Request, answered: Callable[[http.Answer | Failure], None], since: float
    ) -> None:
        ask = self._client.post if _is_remembered(request) else partial(self._client.request, request.method)
        try:
            found = await ask(request.url, request.body, request.headers, wanted=lambda: since > self._lost_until())
        except Exception as error:
            log.exception("request to a supplier failed", **self._told(number, error))
            found = Failure("protocol", type(error).__name__, 0.0)
        answered(found)

    def _answered(self, number: int, message: Message, found: http.Answer | Failure) -> None:
        self._looks.heard(found)
        try:
            outcome = self._outcome(message, found)
        except Exception as error:
            outcome = self._not_understood(number, error)
        self._end(number, outcome)

    def _answered_several(self, number: int, messages: list[Message], found: http.Answer | Failure) -> None:
        self._looks.heard(found)
        assert self._kind.batch is not None
        try:
            if isinstance(found, Failure):
                outcomes = [_failed(found, is_stopping=self._stopping)] * len(messages)
            else:
                outcomes = self._kind.batch.answer(self._settings, messages, _answer(found))
                pairs = zip(messages, outcomes, strict=True)
                outcomes = [_with_id(outcome, message) for message, outcome in pairs]
        except Exception as error:
            outcomes = [self._not_understood(number, error)] * len(messages)
        self._end(number, *outcomes)

    def _not_written(self, number: int, error: Exception) -> Outcome:
        """A supplier's module failed before there was a request: another supplier, or the corrected module, may send
        it."""
        log.exception("supplier's request not written", **self._told(number, error))
        return _unreachable(_cannot_be_written(type(error).__name__))

    def _not_understood(self, number: int, error: Exception) -> Outcome:
        """A supplier's module failed on an answer: the message may be on its way."""
        log.exception("supplier's answer not understood", **self._told(number, error))
        return Outcome(
            Verdict.UNKNOWN, detail=said("not understood: %(why)s", why=type(error).__name__), total=1, doubtful=(1,)
        )

    def _told(self, number: int, error: Exception) -> dict[str, object]:
        """Log fields of a request: its first message, and the number of messages."""
        some = self._open[number]
        return {
            "kind": self._kind.name,
            "error": type(error).__name__,
            "message_id": str(some[0].message_id),
            "count": len(some),
        }

    def _outcome(self, message: Message, found: http.Answer | Failure) -> Outcome:
        if isinstance(found, Failure):
            return _failed(found, is_stopping=self._stopping)
        outcome: Outcome = self._kind.answer(self._settings, message, _answer(found))
        return _with_id(outcome, message)

    def _end(self, number: int, *outcomes: Outcome) -> None:
        """A request has ended; `outcomes` of its messages, in order."""
        for submission, outcome in zip(self._open.pop(number), outcomes, strict=True):
            self._learn(outcome)
            self._report(submission, outcome)
        if self._stopping and not self._open:
            self._all_ended.set()
        if self._waiting:
            self._pump()

    def _learn(self, outcome: Outcome) -> None:
        """Apply what an outcome says about the account, beyond the message."""
        now = self._loop.time()
        if outcome.verdict is Verdict.ACCEPTED:
            self._bucket.accepted(now)
            self._last_error = quoted("")
        elif outcome.verdict is Verdict.BUSY and not outcome.counts and outcome.scope is not Scope.PROCESS:
            self._bucket.slow(now)
            self._throttles += 1
            if outcome.retry_after:
                self._paused_until = max(self._paused_until, now + min(outcome.retry_after, 60.0))
        if outcome.alarm or outcome.scope is Scope.PROCESS or outcome.verdict in (Verdict.UNREACHABLE, Verdict.UNKNOWN):
            self._last_error = joined([outcome.code, outcome.detail], " ")

    def _report(self, submission: Submission, outcome: Outcome) -> None:
        try:
            self._on_outcome(submission, outcome)
        except Exception:
            log.exception("outcome handler failed", message_id=str(submission.message_id))


def _checked(request: Request) -> Request:
    """The request. Raises ValueError if its address is too long: the text in it is at fault, not the account."""
    if len(request.url) > LONGEST_ADDRESS:
        raise ValueError(f"an address of more than {LONGEST_ADDRESS} characters")
    return request


def _is_remembered(request: Request) -> bool:
    """Whether the client may keep its address; an address with a query differs for each message."""
    return request.method == "POST" and "?" not in request.url


def _message(submission: Submission, callback: str) -> Message:
    reference = references.written(submission)
    sender = submission.sender
    return Message(
        to=submission.address or submission.to,
        sender=f"+{sender}" if sender.isdecimal() and len(sender) > SHORT_CODE else sender,
        text=submission.text,
        encoding=submission.encoding,
        reference=reference,
        callback=f"{callback}/receipts?ref={reference}" if callback else "",
        validity_seconds=submission.validity_seconds,
        priority=submission.priority,
    )


def _answer(found: http.Answer) -> Answer:
    return Answer(found.status, found.body, found.retry_after, found.headers, found.is_cut)


def _failed(found: Failure, *, is_stopping: bool) -> Outcome:
    """No answer: the message may be on its way, unless nothing was sent."""
    why = FAILURES[found.kind]
    if found.kind == "withheld":
        return _LEASE_LOST
    if found.detail != why:
        why = joined([why, found.detail], ": ")
    if not found.is_sent:
        if found.kind == "busy":
            return returned(why, total=1)
        # A connection that ends before the request was ended by the supplier, unless this connector is stopping.
        return _unreachable(why, Scope.PROCESS if found.kind == "closed" and is_stopping else Scope.ACCOUNT)
    return Outcome(Verdict.UNKNOWN, detail=why, total=1, doubtful=(1,))


def _with_id(outcome: Outcome, message: Message) -> Outcome:
    """Fill in our reference as the id: suppliers that give no ids name it in receipts."""
    if outcome.verdict is Verdict.ACCEPTED and outcome.parts[0].supplier_message_id is None:
        part = msgspec.structs.replace(outcome.parts[0], supplier_message_id=message.reference)
        return msgspec.structs.replace(outcome, parts=(part,))
    return outcome


def _cannot_be_written(why: str) -> Sentence:
    return said("cannot be written: %(why)s", why=why)


def _unreachable(reason: Sentence, scope: Scope = Scope.ACCOUNT) -> Outcome:
    """Nothing left this machine."""
    return Outcome(Verdict.UNREACHABLE, detail=reason, counts=False, scope=scope, total=1)


_STOPPED = _unreachable(said("stopped"), Scope.PROCESS)
_NO_SESSION = returned(said("no session"), total=1)
_LEASE_LOST = returned(LEASE_LOST, total=1)
_NO_ROOM = returned(said("no request slot became free in time"), total=1)
