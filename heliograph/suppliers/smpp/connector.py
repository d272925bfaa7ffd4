"""One SMPP account inside one worker: sessions, rate, segments, outcomes, receipts.

A refused segment stops the ones after it. Segments of one message stay on one session, in order, because the supplier
joins them there.

The rule nobody may break: every submission gets exactly one outcome, except that UNKNOWN is followed by another one if
an answer comes late; and `on_outcome` is never called from within `submit`.

It has over 400 lines because window, rate and segments share their counters.
"""

from __future__ import annotations

import asyncio
import random as randomness
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

import structlog

from heliograph.base.database import clock
from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import Sentence, quoted, said
from heliograph.http.resolver import Lookup, Resolver
from heliograph.suppliers.bucket import Bucket
from heliograph.suppliers.contract import (
    Account,
    Exchange,
    Health,
    Inbound,
    LostUntil,
    OnInbound,
    OnOutcome,
    OnReceipts,
    Outcome,
    Receipt,
    Scope,
    Submission,
    Verdict,
    WireActivity,
    never_lost,
    returned,
)
from heliograph.suppliers.failures import TlsFileUnusable
from heliograph.suppliers.message_ids import id_key
from heliograph.suppliers.pump_timer import LEASE_LOST, PumpTimer
from heliograph.suppliers.settings import SettingError
from heliograph.suppliers.smpp.attempt import Attempt, unreachable, unwritable
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.codec.statuses import classify
from heliograph.suppliers.smpp.intake import PduIntake
from heliograph.suppliers.smpp.link import Connection, Link
from heliograph.suppliers.smpp.receipts import ReceiptRules, parse
from heliograph.suppliers.smpp.session import Unreadable
from heliograph.suppliers.smpp.settings import SmppSettings, settings_from
from heliograph.suppliers.smpp.submits import Builder
from heliograph.suppliers.smpp.tls import TlsFiles
from heliograph.suppliers.smpp.watching import PduRecorder, SessionActivity

log = structlog.get_logger(__name__)

#: Seconds that a stop may take beyond its grace: for unbinding, and for receipts that are still being stored.
_PARTING = 3.0
#: Seconds between two checks of a session that is opening.
_POLL = 0.02
_NO_SESSION = said("no session")
#: Minimum seconds between two reports of what cannot be decoded.
_SAY_EVERY = 60.0


def connect(
    account: Account,
    on_outcome: OnOutcome,
    on_receipts: OnReceipts,
    on_inbound: OnInbound,
    *,
    late: float = 0.0,
    lost_until: LostUntil = never_lost,
    transmits_only: bool = False,
) -> SmppConnector:
    """The ConnectorFactory of SMPP. Opens no session before `set_sessions`. Raises SettingsError (names the field).

    `late`: seconds that the answer to a submit still counts after it timed out. `transmits_only`: bind sessions as
    transmitters, whatever the account says.
    """
    return SmppConnector(
        settings_from(account.settings),
        account.secret,
        on_outcome,
        on_receipts,
        on_inbound,
        late=late,
        lost_until=lost_until,
        transmits_only=transmits_only,
    )


class SmppConnector:
    """Implements contract.Connector.

    `sessions`: how many this process may open; `set_sessions` changes it while running. The account's own limit is
    divided among processes elsewhere, and its rate with it. `lookup`: resolves names in place of the system. The
    supplier_message_id of a Part is the key by which receipts are matched (receipts.id_key); if the supplier's own
    spelling differs, it follows the status: `0x00000000 id:00B8BE19`.
    """

    def __init__(
        self,
        settings: SmppSettings,
        secret: str,
        on_outcome: OnOutcome,
        on_receipts: OnReceipts,
        on_inbound: OnInbound,
        *,
        sessions: int = 0,
        late: float = 0.0,
        lost_until: LostUntil = never_lost,
        transmits_only: bool = False,
        lookup: Lookup | None = None,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._settings = settings
        self._secret = secret
        self._on_outcome = on_outcome
        self._late = late
        self._lost_until = lost_until
        self._transmits_only = transmits_only
        self._random = random
        # Operators choose the hosts, so any address is allowed.
        self._resolver = Resolver(lookup, lambda address: True)
        self._builder = Builder(settings)
        self._statuses = settings.status_classes
        self._rules = ReceiptRules(
            id_base=settings.dlr_id_base,
            tlv_id_base=settings.tlv_id_base,
            final_states={word.upper(): state for word, state in settings.final_states.items()},
            sniff=settings.dlr_sniff,
            alphabet=settings.default_alphabet,
            recipient_errors=frozenset(settings.recipient_errors),
        )
        self._wanted = sessions
        self._receipts: PduIntake[Receipt] = PduIntake(on_receipts, limit=settings.receipts_queue, name="receipts")
        self._inbound: PduIntake[Inbound] = PduIntake(on_inbound, limit=settings.receipts_queue, name="inbound")
        # One list of links per session: a transceiver, or a transmitter and a receiver.
        self._sessions: list[list[Link]] = []
        self._transmitters: list[Link] = []
        #: Surplus sessions that finish their window, by the task that closes them.
        self._leaving: dict[asyncio.Task[None], list[Link]] = {}
        self._queue: deque[Attempt] = deque()
        self._queued = 0  # segments in `_queue`
        self._started: list[Attempt] = []  # messages with segments both sent and unsent
        self._open = 0
        self._running = self._stopping = False
        self._since: datetime | None = None
        self._last_error = quoted("")
        #: How often the supplier has throttled it.
        self._throttles = 0
        #: How much could not be decoded since that was reported, and when.
        self._unreadable, self._reported_at = 0, -_NEVER
        self._tap: PduRecorder | None = None
        self._activity = SessionActivity()
        try:
            self._tls = TlsFiles(settings)
        except TlsFileUnusable as error:
            raise SettingError(error.words) from None
        try:
            bind = p.BindTransceiver(system_id=settings.system_id, password=secret, system_type=settings.system_type)
            bind.address_range = settings.address_range
            bind.encode()
        except p.PduError:
            raise SettingsError("system_id, system_type, address_range or the password cannot be written") from None

    # -- contract.Connector --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect in the background; returns at once."""
        self._loop = asyncio.get_running_loop()
        self._bucket = Bucket(self._settings.submits_per_second, self._loop.time())
        self._timer = PumpTimer(self._loop, self._pump)
        self._running = True
        self.set_sessions(self._wanted)

    def set_sessions(self, count: int) -> None:
        """Set how many sessions this process may have. Surplus sessions finish their window and unbind, unbound ones
        first."""
        self._wanted = count
        if not self._running or self._stopping:
            return
        if self._settings.submits_per_second:
            self._bucket.resize(self._settings.submits_per_second * max(1, count), self._loop.time())
        while len(self._sessions) < count:
            links = self._new_session()
            for link in links:
                link.watch(self._tap)
            self._sessions.append(links)
            self._transmitters.append(links[0])
            for link in links:
                link.start()
        while len(self._sessions) > count:
            # The newest of those with the most links down; max() takes the first of several.
            links = max(reversed(self._sessions), key=lambda links: sum(not link.bound for link in links))
            self._sessions.remove(links)
            self._transmitters.remove(links[0])
            task = self._loop.create_task(self._leave(links))
            self._leaving[task] = links
            task.add_done_callback(self._leaving.pop)
        if not self._sessions:
            self._give_back(returned(_NO_SESSION))

    def slow(self, pause: float) -> None:
        """Another worker was throttled. SMPP has no pause."""
        if self._running:
            self._bucket.slow(self._loop.time())

    def ready(self) -> bool:
        """True while a session that may submit is bound."""
        return any(link.bound for link in self._transmitters)

    def capacity(self) -> int:
        """Segments that can be submitted now: room in the windows or the rate, whichever is less."""
        if not self._running or self._stopping:
            return 0
        room = sum(link.room for link in self._transmitters)
        begun = sum(len(attempt.pdus) - attempt.next for attempt in self._started) if self._started else 0
        return max(0, min(room, self._bucket.ahead) - self._queued - begun)

    def parts(self, submission: Submission) -> int:
        """Segments of the whole message for this account; 1 for a message that cannot be encoded."""
        try:
            return self._builder.count(submission)
        except p.PduError:
            return 1

    def billed(self, submission: Submission) -> int:
        """See Connector; the supplier cuts a message that is sent as a whole."""
        try:
            return self._builder.segments(submission)
        except p.PduError:
            return 1

    def submit(self, submission: Submission) -> None:
        """Hand over one message. Its outcome always comes later, never from within this call."""
        attempt = Attempt(submission)
        self._open += 1
        if not self._running or self._stopping:
            self._end_soon(attempt, unreachable(said("stopped"), Scope.PROCESS))
            return
        try:
            attempt.load(self._builder.build(submission))
        except p.PduError as error:
            self._end_soon(attempt, unwritable(error))
            return
        except Exception as error:
            # Nothing has left: the message is not in doubt because of a mistake here.
            log.exception("message not written as SMPP", message_id=str(submission.message_id))
            self._end_soon(attempt, unreachable(said("cannot be written as SMPP: %(why)s", why=type(error).__name__)))
            return
        if not attempt.pdus:
            self._end_soon(attempt, attempt.outcome())
            return
        # An SMSC that cuts messages itself still counts every segment.
        attempt.cost = len(submission.segments) if attempt.total == 1 else 1
        attempt.at = self._loop.time()
        self._queue.append(attempt)
        self._queued += len(submission.segments)
        self._pump()
        if self._queue and not any(link.bound for link in self._transmitters):
            self._give_back(unreachable(self._error() or _NO_SESSION) if self._sessions else returned(_NO_SESSION))

    def health(self) -> Health:
        bound = sum(link.bound for link in self._transmitters)
        pending = sum(link.pending for link in self._transmitters)
        return Health(
            bound,
            pending,
            self._since,
            self._error(),
            throttles=self._throttles,
            window=bound * self._settings.window,
            submitted=sum(link.connection.session.submitted for link in self._transmitters if link.connection),
            receiving=sum(all(link.bound for link in links) for links in self._sessions),
        )

    async def opened(self) -> Health:
        """The health once a session has opened, every address has been tried in vain, or the time limits of the account
        for one have passed: for tests of an account."""
        until = self._loop.time() + self._settings.connect_seconds + self._settings.bind_seconds
        while not (health := self.health()).sessions and self._loop.time() < until:
            if health.last_error and not any(link.untried for link in self._transmitters):
                break
            await asyncio.sleep(_POLL)
        return health

    def wires(self) -> list[WireActivity]:
        """See contract.InspectableConnector."""
        bound = [links for links in self._sessions if links[0].bound]
        return self._activity.look([[link.connection.session for link in links if link.connection] for links in bound])

    def answers(self) -> list[int]:
        """See contract.InspectableConnector."""
        took = [link.connection.session.took() for link in self._transmitters if link.connection]
        return [sum(column) for column in zip(*took, strict=True)]

    def watch(self, is_watched: bool) -> None:
        """See contract.WatchableConnector. While it is not watched, each PDU costs one attribute check."""
        if is_watched != (self._tap is not None):
            self._tap = PduRecorder() if is_watched else None
            for link in [link for session in self._sessions for link in session]:
                link.watch(self._tap)

    def exchanged(self) -> list[Exchange]:
        """See contract.WatchableConnector."""
        return [] if self._tap is None else self._tap.take()

    async def stop(self, *, grace: float) -> None:
        """Return messages not yet begun, wait for outstanding answers, unbind, close. Takes at most _PARTING longer
        than the grace, even if the supplier says nothing and receipts cannot be stored."""
        if not self._running or self._stopping:
            return
        self._stopping = True
        self._all_ended = self._loop.create_future()
        until = self._loop.time() + grace
        self._give_back(unreachable(said("stopping"), Scope.PROCESS))
        if self._open:
            await asyncio.wait([self._all_ended], timeout=grace)
        await self._stored(until)
        # Those that are leaving have no more time than the others.
        links = [link for session in [*self._sessions, *self._leaving.values()] for link in session]
        if links:
            left = max(0.0, until - self._loop.time())
            await asyncio.gather(*(link.stop(left, parting=_PARTING) for link in links))
        if self._leaving:
            await asyncio.wait(self._leaving)
        await self._stored(until + _PARTING)
        self._timer.cancel()
        self._resolver.close()
        self._running = False

    # -- link.Owner ----------------------------------------------------------------------------------------------------

    def link_ready(self, link: Link) -> None:
        if sum(one.bound for one in self._transmitters) == 1:
            self._since = clock.now()
        log.info("SMPP bound", link=link.name)
        self._pump()

    def link_down(self, link: Link, reason: Sentence) -> None:
        self._last_error = reason
        for attempt in [one for one in self._started if one.link is link]:
            attempt.stopped = True
            self._settle(attempt)
        if not any(one.bound for one in self._transmitters):
            self._since = clock.now()
            self._give_back(unreachable(reason))

    def answered(self, link: Link, context: Any, status: int, response: p.Pdu) -> None:
        attempt, number = context
        attempt.in_flight -= 1
        self._judge(link, attempt, number, status, response)
        self._settle(attempt)

    def answered_late(self, link: Link, context: Any, status: int, response: p.Pdu) -> None:
        attempt, number = context
        # A refused segment has decided about the message, whatever the others are answered.
        was_unknown = attempt.outcome().verdict is Verdict.UNKNOWN
        attempt.doubtful.remove(number)
        self._judge(link, attempt, number, status, response)
        if attempt.ended and was_unknown:
            self._tell(attempt, attempt.outcome())

    def timed_out(self, link: Link, context: Any) -> None:
        attempt, number = context
        attempt.in_flight -= 1
        attempt.lose(number, True, said("no answer in time"))
        self._settle(attempt)

    def lost(self, link: Link, context: Any, written: bool) -> None:
        attempt, number = context
        attempt.in_flight -= 1
        attempt.lose(number, written, said("the session was lost before the answer"))
        self._settle(attempt)

    def delivered(self, connection: Connection, pdu: p.DeliverSm | p.DataSm, body: bytes) -> None:
        read = parse(pdu, body, self._rules)
        if isinstance(read, Receipt):
            self._receipts.put(read, connection, pdu)
        else:
            self._inbound.put(read, connection, pdu)

    def unreadable(self, link: Link, event: Unreadable) -> None:
        self._unreadable += 1
        if self._loop.time() - self._reported_at >= _SAY_EVERY:
            log.warning(
                "SMPP message unreadable",
                link=link.name,
                pdu=event.command,
                reason=event.reason,
                count=self._unreadable,
            )
            self._unreadable, self._reported_at = 0, self._loop.time()

    def handled(self, link: Link) -> None:
        if self._queue or self._started:
            self._pump()

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _judge(self, link: Link, attempt: Attempt, number: int, status: int, response: p.Pdu) -> None:
        """Apply the answer to a segment."""
        if status == 0 and isinstance(response, p.MessageResponse):
            raw = response.message_id or ""
            attempt.accept(number, id_key(raw, self._settings.resp_id_base), raw)
            self._bucket.accepted(self._loop.time())
            return
        ruling = classify(status or 0xFF, attempt=attempt.submission.attempt, overrides=self._statuses)
        attempt.refuse(number, ruling, response)
        if ruling.slow:
            self._bucket.slow(self._loop.time())
            self._throttles += 1
        if ruling.rebind and link.connection is not None:
            link.connection.unbind()

    def _new_session(self) -> list[Link]:
        kinds: tuple[type[p.Bind], ...] = (p.BindTransceiver,)
        if self._transmits_only:
            kinds = (p.BindTransmitter,)
        elif self._settings.bind == "pair":
            kinds = (p.BindTransmitter, p.BindReceiver)
        name = f"{self._settings.system_id}@{self._settings.hosts[0]}:{self._settings.port}"
        return [
            Link(
                self._settings,
                self._secret,
                self,
                name=name,
                bind=kind,
                tls=self._tls.context,
                late=self._late,
                resolve=self._resolver.resolve_all,
                random=self._random,
            )
            for kind in kinds
        ]

    async def _leave(self, links: list[Link]) -> None:
        await asyncio.gather(*(link.stop(self._settings.response_seconds, parting=_PARTING) for link in links))

    async def _stored(self, until: float) -> None:
        """Wait until everything received so far is stored and answered, but no longer than this."""
        left = max(0.0, until - self._loop.time())
        await asyncio.gather(*(intake.drain(left) for intake in (self._receipts, self._inbound)))

    def _error(self) -> Sentence:
        down = [link for session in self._sessions for link in session if not link.bound]
        return next((link.last_error for link in down if link.last_error), self._last_error)

    def _pump(self) -> None:
        """Send as much as window and rate allow: first the rest of messages already begun, then new ones."""
        now = self._loop.time()
        self._return_lost()
        while self._queue and self._queue[0].at + self._settings.queue_seconds <= now:
            self._return(returned(said("no room in the window")))
        tokens = self._bucket.available(now)
        if self._started:
            for attempt in list(self._started):
                tokens -= self._send(attempt, tokens)
                if attempt.sent:
                    self._started.remove(attempt)
        while self._queue and tokens > 0:
            link = self._roomiest()
            if link is None:
                break
            attempt = self._queue.popleft()
            self._queued -= len(attempt.submission.segments)
            attempt.link = link
            tokens -= self._send(attempt, tokens)
            if not attempt.sent:
                self._started.append(attempt)
        if self._queue or self._started:
            at = now + self._bucket.wait(now) if tokens <= 0 else _NEVER
            self._timer.by(min(at, self._queue[0].at + self._settings.queue_seconds) if self._queue else at)

    def _return_lost(self) -> None:
        """Return messages that another worker may have by now; those that have begun get no more segments."""
        until = self._lost_until()
        while self._queue and self._queue[0].at <= until:
            self._return(returned(LEASE_LOST))
        for attempt in [one for one in self._started if one.at <= until]:
            self._started.remove(attempt)
            self._stop_lost(attempt)

    def _stop_lost(self, attempt: Attempt) -> None:
        """Send no more of a message that another worker may have by now."""
        attempt.stopped, attempt.failure = True, attempt.failure or returned(LEASE_LOST)
        if not attempt.in_flight:
            self._end_soon(attempt, attempt.outcome())

    def _return(self, outcome: Outcome) -> None:
        """Return the message that has waited longest."""
        attempt = self._queue.popleft()
        self._queued -= len(attempt.submission.segments)
        self._end_soon(attempt, outcome)

    def _send(self, attempt: Attempt, tokens: int) -> int:
        """Send segments of a message on its session; returns the tokens spent."""
        assert attempt.link is not None
        connection = attempt.link.connection
        spent = 0
        while (
            connection is not None and attempt.next < len(attempt.pdus) and spent < tokens and connection.session.room
        ):
            if attempt.at <= self._lost_until():  # this process stood still while it sent others
                self._stop_lost(attempt)
                break
            pdu = attempt.pdus[attempt.next]
            attempt.next += 1
            try:
                connection.submit(pdu, (attempt, attempt.numbers[attempt.next - 1]))
            except p.PduError as error:
                attempt.stopped, attempt.failure = True, unwritable(error)
                if not attempt.in_flight:
                    self._end_soon(attempt, attempt.failure)
                break
            attempt.in_flight += 1
            spent += attempt.cost
        if spent:
            self._bucket.take(spent)
        return spent

    def _roomiest(self) -> Link | None:
        best, most = None, 0
        for link in self._transmitters:
            room = link.room
            if room > most:
                best, most = link, room
        return best

    def _give_back(self, outcome: Outcome) -> None:
        """Return the messages that have not begun."""
        while self._queue:
            self._end_soon(self._queue.popleft(), outcome)
        self._queued = 0

    def _settle(self, attempt: Attempt) -> None:
        """End a message if none of it is in flight and nothing more will be sent."""
        if attempt.stopped and attempt in self._started:
            self._started.remove(attempt)
        if not attempt.in_flight and attempt.sent:
            self._end(attempt, attempt.outcome())

    def _end_soon(self, attempt: Attempt, outcome: Outcome) -> None:
        self._loop_or_running().call_soon(self._end, attempt, outcome)

    def _loop_or_running(self) -> asyncio.AbstractEventLoop:
        return self._loop if self._running else asyncio.get_running_loop()

    def _end(self, attempt: Attempt, outcome: Outcome) -> None:
        if attempt.ended:
            return
        attempt.ended = True
        self._open -= 1
        if not self._open and self._stopping and not self._all_ended.done():
            self._all_ended.set_result(None)
        self._tell(attempt, outcome)

    def _tell(self, attempt: Attempt, outcome: Outcome) -> None:
        try:
            self._on_outcome(attempt.submission, outcome)
        except Exception:
            log.exception("outcome handler failed", message_id=str(attempt.submission.message_id))


_NEVER = float("inf")
