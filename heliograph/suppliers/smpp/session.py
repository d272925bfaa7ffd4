"""One SMPP session as a state machine: bytes in → events out, commands in → bytes out. No I/O and no clock.

The owner passes the bytes it reads to `receive`, calls `tick` when `deadline` is reached, writes the bytes that `take`
returns, and gives the current time (seconds, monotonic) to each. `Closed` is the last event: the owner then drops the
connection and calls `abandon` for the open requests.

The rule nobody may break: a request is registered before its bytes can leave, and its context comes back exactly once:
in Answered, in TimedOut or from `abandon`; one that timed out may come back once more, in Late. A sequence number is
not reused while its answer may still come.

It has over 400 lines because every transition reads the same window and the same timers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import msgspec

from heliograph.base.histogram import LENGTH, bucket
from heliograph.base.sentences import Sentence, quoted, said
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.codec.pdu import Framer, Pdu, PduError, decode

MAX_SEQUENCE = 0x7FFFFFFF
#: Minimum seconds between two answers that are timed.
EACH = 0.01


class State(enum.Enum):
    """The states of a session (SMPP 3.4 §2.2)."""

    OPEN = "open"
    BINDING = "binding"
    BOUND = "bound"
    UNBINDING = "unbinding"
    CLOSED = "closed"


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    #: bind → its answer.
    bind: float = 15.0
    #: Nothing read for this long → enquire_link.
    enquire: float = 20.0
    #: enquire_link → any PDU from the peer.
    silence: float = 10.0
    #: submit → its answer.
    response: float = 60.0
    #: How much longer a late answer still counts; 0: it does not.
    late: float = 0.0
    #: The first octet of a PDU → its last.
    pdu: float = 10.0
    #: unbind → its answer; also how long the peer's unbind waits for the answers that either side still owes.
    unbind: float = 5.0
    #: After this many unanswered submits in a row no more are sent until a late answer arrives; if none does, the
    #: session is closed.
    max_timeouts: int = 5


class Bound(msgspec.Struct, gc=False):
    """The bind was accepted."""

    system_id: str


class BindRefused(msgspec.Struct, gc=False):
    """The bind was refused; Closed follows."""

    status: int


class Answered(msgspec.Struct, gc=False):
    """The answer to one of our requests: submit_sm_resp, or a generic_nack in its place."""

    context: Any
    status: int
    response: Pdu


class TimedOut(msgspec.Struct, gc=False):
    """A request that was not answered in time. Whether it was carried out is unknown."""

    context: Any


class Late(msgspec.Struct, gc=False):
    """The answer to a request that had timed out."""

    context: Any
    status: int
    response: Pdu


class Delivered(msgspec.Struct, gc=False):
    """A deliver_sm or data_sm, to be answered with `respond`; `body` is the PDU without its header."""

    pdu: p.DeliverSm | p.DataSm
    body: bytes


class Unreadable(msgspec.Struct, gc=False):
    """A deliver_sm or data_sm that cannot be decoded, and was refused for good."""

    command: str
    reason: str


class PeerUnbinds(msgspec.Struct, gc=False):
    """The peer unbinds: nothing more can be submitted; Closed follows once both sides have answered everything."""


class Closed(msgspec.Struct, gc=False):
    """The session is over. The bytes that `take` returns should still be written."""

    reason: Sentence


Tap = Callable[[Pdu, bool], None]
# Tuples: `A | B` would be built anew for each PDU.
_ANSWERS = (p.SubmitSmResp, p.DataSmResp)
_DELIVERIES = (p.DeliverSm, p.DataSm)
Event = Bound | BindRefused | Answered | TimedOut | Late | Delivered | Unreadable | PeerUnbinds | Closed


class Session:
    """One connection's worth of SMPP, seen from the ESME."""

    def __init__(
        self, *, window: int = 10, timers: Timers | None = None, sequence: int = 0, tap: Tap | None = None
    ) -> None:
        self.state = State.OPEN
        self.window = window
        #: Why it closed, if it did.
        self.reason = quoted("")
        #: Headers of the last PDUs sent and received; updated once per write and read, not per PDU.
        self.sent = self.received = b""
        # Response times (`base.histogram`): of answers read together only the first, and then none for EACH seconds, so
        # that timing costs almost nothing. Nothing is timed before `_untimed`.
        self._took, self._untimed = [0] * LENGTH, 0.0
        #: Called with each PDU, and whether it is sent, while somebody watches; otherwise None.
        self.tap = tap
        self._timers = timers or Timers()
        self._framer = Framer()
        self._sequence = sequence
        # Submits waiting for their answer, oldest first: sequence → (deadline, context, ordinal).
        self._pending: dict[int, tuple[float, Any, int]] = {}
        # Submits that timed out but whose answer would still count, oldest first: sequence → (until, context).
        self._late: dict[int, tuple[float, Any]] = {}
        # Ordinals of the newest submit, and of the newest returned by `take`.
        self._submitted = 0
        self._taken = 0
        self._out: list[bytes] = []
        self._submits = False
        self._bind_sequence = 0
        self._enquire_sequence = 0
        self._unbind_sequence = 0
        self._peer_unbind: int | None = None
        # Delivered PDUs without an answer.
        self._owed = 0
        self._timeouts = 0
        # Deadlines; infinity: not running.
        self._heard = 0.0
        self._enquired = _NEVER
        self._partial_since = _NEVER
        self._phase_deadline = _NEVER

    @property
    def room(self) -> int:
        """The number of submits that may be sent right now."""
        return self.window - len(self._pending) if self._submits and not self._stuck else 0

    @property
    def pending(self) -> int:
        """The number of submits waiting for their answer."""
        return len(self._pending)

    @property
    def unsent(self) -> int:
        """The number of PDUs not yet returned by `take`."""
        return len(self._out)

    def took(self) -> list[int]:
        """Response times of the answers since the last call."""
        taken, self._took = self._took, [0] * LENGTH
        return taken

    @property
    def submitted(self) -> int:
        """The number of submits so far."""
        return self._submitted

    # -- commands ------------------------------------------------------------------------------------------------------

    def bind(self, pdu: p.Bind, now: float) -> None:
        """Bind. Its class (receiver, transmitter, transceiver) decides whether messages can be submitted."""
        assert self.state is State.OPEN
        self.state = State.BINDING
        self._heard = now
        self._phase_deadline = now + self._timers.bind
        self._bind_sequence = pdu.sequence = self._next_sequence()
        self._bind_transmits = not isinstance(pdu, p.BindReceiver)
        self._put(pdu)

    def submit(self, pdu: p.SubmitSm | p.DataSm, context: Any, now: float) -> None:
        """Send a message; `context` comes back with its outcome. Only while there is room. Raises PduError, with
        nothing sent."""
        assert self.room
        pdu.sequence = self._next_sequence()
        encoded = pdu.encode()
        self._submitted += 1
        self._pending[pdu.sequence] = (now + self._timers.response, context, self._submitted)
        self._out.append(encoded)
        if self.tap is not None:
            self.tap(pdu, True)

    def respond(self, pdu: p.DeliverSm | p.DataSm, status: int, now: float) -> None:
        """Answer a Delivered."""
        kind = p.DeliverSmResp if isinstance(pdu, p.DeliverSm) else p.DataSmResp
        self._owed -= 1
        if self.state is not State.CLOSED:
            self._put(kind(pdu.sequence, status, ""))
            if self._may_follow_unbind:
                self._phase_deadline = now

    def drain(self) -> None:
        """Submit nothing more; answers are still received."""
        self._submits = False

    def unbind(self, now: float) -> None:
        """Unbind. Closed follows with the answer, or if none comes in time."""
        self._submits = False
        if self.state is State.BOUND:
            self.state = State.UNBINDING
            self._phase_deadline = now + self._timers.unbind
            self._unbind_sequence = self._next_sequence()
            self._put(p.Unbind(self._unbind_sequence))

    def take(self) -> bytes:
        """Everything to be written now. From then on its submits count as written."""
        self._taken = self._submitted
        if not self._out:
            return b""
        self.sent = self._out[-1][:16]
        data = b"".join(self._out) if len(self._out) > 1 else self._out[0]
        self._out.clear()
        return data

    def abandon(self) -> list[tuple[Any, bool]]:
        """The connection is gone: returns (context, was written) of each open submit."""
        self.state = State.CLOSED
        self._submits = False
        open_ = [(context, ordinal <= self._taken) for _, context, ordinal in self._pending.values()]
        self._pending.clear()
        self._late.clear()
        self._out.clear()
        return open_

    # -- events --------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Bytes from the peer."""
        events: list[Event] = []
        if self.state is State.CLOSED:
            return events
        framer = self._framer
        frames = framer.feed(data)
        if frames:
            self._heard = now
            self.received = frames[-1][:16]
            if now >= self._untimed:
                self._measure(frames[0], now)
            self._enquired = self._partial_since = _NEVER
        if framer.pending and self._partial_since == _NEVER:
            self._partial_since = now
        for frame in frames:
            try:
                pdu = decode(frame)
            except PduError as error:
                self._undecodable(error, events)
                continue
            if self.tap is not None:
                self.tap(pdu, False)
            # Most frequent first.
            if isinstance(pdu, _ANSWERS):
                self._answered(pdu, events)
            elif isinstance(pdu, _DELIVERIES):
                self._owed += 1
                events.append(Delivered(pdu, frame[16:]))
            else:
                self._other(pdu, now, events)
            if self.state is State.CLOSED:
                return events
        if framer.broken is not None:
            self._put(p.GenericNack(0, framer.broken.status))
            self._close(said("lost framing: %(why)s", why=str(framer.broken)), events)
        elif self._may_follow_unbind:
            self._follow_unbind(events)
        return events

    def tick(self, now: float) -> list[Event]:
        """Time has passed. Call it when `deadline` is reached; earlier does no harm."""
        events: list[Event] = []
        if self.state is State.CLOSED:
            return events
        while self._pending:
            sequence, (deadline, context, _) = next(iter(self._pending.items()))
            if deadline > now:
                break
            del self._pending[sequence]
            if self._timers.late:
                self._late[sequence] = (deadline + self._timers.late, context)
            events.append(TimedOut(context))
            self._timeouts += 1
        given_up = self._give_up_late(now)
        if self._stuck and (given_up or not self._late):
            self._close(said("%(count)s submits in a row without an answer", count=self._timeouts), events)
        elif now >= self._phase_deadline:
            if self._peer_unbind is not None:
                self._follow_unbind(events)
            else:
                what = "bind" if self.state is State.BINDING else "unbind"
                self._close(said("no answer to %(what)s", what=what), events)
        elif now >= self._partial_since + self._timers.pdu:
            self._close(said("a PDU was not completed in time"), events)
        elif now >= self._enquired + self._timers.silence:
            self._close(said("no answer to %(what)s", what="enquire_link"), events)
        elif self.state is State.BOUND and self._enquired == _NEVER and now >= self._heard + self._timers.enquire:
            self._enquired = now
            self._enquire_sequence = self._next_sequence()
            self._put(p.EnquireLink(self._enquire_sequence))
        return events

    @property
    def deadline(self) -> float:
        """The latest time to call `tick`; infinity: never."""
        if self.state is State.CLOSED:
            return _NEVER
        timers = self._timers
        soonest = min(self._phase_deadline, self._partial_since + timers.pdu, self._enquired + timers.silence)
        if self.state is State.BOUND and self._enquired == _NEVER:
            soonest = min(soonest, self._heard + timers.enquire)
        if self._pending:
            soonest = min(soonest, next(iter(self._pending.values()))[0])
        if self._late:
            soonest = min(soonest, next(iter(self._late.values()))[0])
        return soonest

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _measure(self, frame: bytes, now: float) -> None:
        found = self._pending.get(int.from_bytes(frame[12:16], "big")) if frame[4] & 0x80 else None
        if found is not None:
            self._untimed = now + EACH
            self._took[bucket(now - found[0] + self._timers.response)] += 1

    def _put(self, pdu: Pdu) -> None:
        self._out.append(pdu.encode())
        if self.tap is not None:
            self.tap(pdu, True)

    def _next_sequence(self) -> int:
        while True:
            self._sequence = self._sequence + 1 if self._sequence < MAX_SEQUENCE else 1
            if self._sequence not in self._pending and self._sequence not in self._late:
                return self._sequence

    @property
    def _stuck(self) -> bool:
        return self._timeouts >= self._timers.max_timeouts

    def _give_up_late(self, now: float) -> bool:
        """Forget submits whose late answer would no longer count; returns whether there was one."""
        given_up = False
        while self._late:
            sequence, (until, _) = next(iter(self._late.items()))
            if until > now:
                break
            del self._late[sequence]
            given_up = True
        return given_up

    def _answered(self, pdu: Pdu, events: list[Event]) -> bool:
        found = self._pending.pop(pdu.sequence, None)
        if found is None:
            late = self._late.pop(pdu.sequence, None)
            if late is None:
                return False  # unsolicited, or no longer awaited
            self._timeouts = 0
            events.append(Late(late[1], pdu.status, pdu))
            return True
        self._timeouts = 0
        events.append(Answered(found[1], pdu.status, pdu))
        return True

    def _other(self, pdu: Pdu, now: float, events: list[Event]) -> None:
        if isinstance(pdu, p.EnquireLink):
            self._put(p.EnquireLinkResp(pdu.sequence))
        elif isinstance(pdu, p.GenericNack):
            self._nacked(pdu, events)
        elif isinstance(pdu, p.BindResponse):
            if self.state is State.BINDING and pdu.sequence == self._bind_sequence:
                self._bind_answered(pdu.status, pdu.system_id or "", events)
        elif isinstance(pdu, p.Unbind):
            self._submits = False
            self._peer_unbind = pdu.sequence
            self._phase_deadline = now + self._timers.unbind
            events.append(PeerUnbinds())
        elif isinstance(pdu, p.UnbindResp):
            if self.state is State.UNBINDING:
                self._close(said("unbound"), events)
        elif not pdu.command & p.RESPONSE and not isinstance(pdu, p.AlertNotification | p.Outbind):
            self._put(p.GenericNack(pdu.sequence, 0x03))

    def _bind_answered(self, status: int, system_id: str, events: list[Event]) -> None:
        self._phase_deadline = _NEVER
        if status == 0:
            self.state = State.BOUND
            self._submits = self._bind_transmits
            events.append(Bound(system_id))
            return
        events.append(BindRefused(status))
        self._close(said("bind refused: %(status)s", status=f"0x{status:08X}"), events)

    def _nacked(self, pdu: Pdu, events: list[Event]) -> None:
        """A generic_nack answers the request it names; if it names none, framing is lost."""
        if self.state is State.BINDING and pdu.sequence == self._bind_sequence:
            self._bind_answered(pdu.status or 0xFF, "", events)
        elif self._answered(pdu, events):
            # The peer could not find the end of what we sent, so it may be lost in the stream.
            if pdu.status == 0x02:
                self._close(said("the peer lost framing"), events)
        elif pdu.sequence != self._enquire_sequence or pdu.sequence == 0:
            self._close(said("generic_nack without a request"), events)

    def _undecodable(self, error: PduError, events: list[Event]) -> None:
        if error.command & p.RESPONSE:
            return  # never answer an answer
        if error.command == p.Command.DELIVER_SM:
            self._put(p.DeliverSmResp(error.sequence, 0x66, ""))
            events.append(Unreadable("deliver_sm", str(error)))
        elif error.command == p.Command.DATA_SM:
            self._put(p.DataSmResp(error.sequence, 0x66, ""))
            events.append(Unreadable("data_sm", str(error)))
        else:
            self._put(p.GenericNack(error.sequence, error.status))

    @property
    def _may_follow_unbind(self) -> bool:
        return self._peer_unbind is not None and not self._pending and not self._owed

    def _follow_unbind(self, events: list[Event]) -> None:
        assert self._peer_unbind is not None
        self._put(p.UnbindResp(self._peer_unbind))
        self._close(said("the peer unbound"), events)

    def _close(self, reason: Sentence, events: list[Event]) -> None:
        self.state = State.CLOSED
        self._submits = False
        self.reason = reason
        events.append(Closed(reason))


_NEVER = float("inf")
