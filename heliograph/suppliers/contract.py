"""The seam to suppliers: what goes out (Submission), the closed set of what comes back (Outcome, Receipt, Inbound).

A supplier's peculiarities stay in its own module; nothing behind this interface knows SQL, and nothing in front of it
knows protocols. The rule nobody may break: `Unknown` is the only outcome for "the bytes may have been sent and no
verdict came". It is never guessed to be Refused or Unreachable: the first would lose a message, the second would
duplicate it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from heliograph.base.sentences import Sentence, quoted
from heliograph.suppliers.alphabets import segments

#: Characters that fit into a segment, even if each of them takes two units of UTF-16.
_SURELY_ONE = 35


class Submission(msgspec.Struct, frozen=True, gc=False):
    """One attempt to hand one message to a supplier. Its attempt row is committed before it gets here."""

    message_id: UUID
    attempt: int
    #: Recipient as digits without `+`.
    to: str
    sender: str
    #: Its text after all substitutions.
    text: str
    #: "gsm7" or "ucs2".
    encoding: str
    #: 16 bits: for suppliers that repeat it in receipts, and for handsets, which join segments by it.
    reference: int
    #: Seconds for which the message is still worth delivering; None: the supplier's default.
    validity_seconds: int | None = None
    #: Numbers of segments the supplier already has from an earlier attempt, under the same reference: not sent again.
    held: tuple[int, ...] = ()
    #: The recipient in the format this supplier requires; empty: as `to`.
    address: str = ""
    #: TON and NPI of recipient and sender (SMPP 3.4 §5.2.5, §5.2.6); None: the account's own.
    numbering: tuple[int, int] | None = None
    sender_numbering: tuple[int, int] | None = None
    #: 0: normal; 1: urgent.
    priority: int = 0
    #: Its segments, once they have been requested.
    cut: tuple[bytes, ...] = ()

    @property
    def segments(self) -> tuple[bytes, ...]:
        """User data of each segment: unpacked GSM-7 septets or UTF-16BE, without any header. Cut when a kind of
        supplier first asks, since most suppliers cut texts themselves. Raises ValueError if the encoding lacks a
        character of the text."""
        if not self.cut:
            msgspec.structs.force_setattr(self, "cut", segments.of(self.text, self.encoding))
        return self.cut

    @property
    def count(self) -> int:
        """The number of segments, without cutting a text that surely fits into one; 1 if the text cannot be encoded."""
        if len(self.text) <= _SURELY_ONE:
            return 1
        try:
            return len(self.segments)
        except ValueError:
            return 1


class Part(msgspec.Struct, frozen=True, gc=False):
    """The supplier's answer for one segment: `number` counts from 1."""

    number: int
    #: Normalized, as `Receipt.keys` are, so that the two can be compared; None: the supplier gave none.
    supplier_message_id: str | None
    #: Protocol status as the supplier wrote it, such as "0x00000000".
    status: str = ""


class Verdict(enum.StrEnum):
    """What a supplier did with a submission."""

    ACCEPTED = "accepted"  # the supplier has it; a receipt may follow
    REFUSED = "refused"  # a final no to this message (see Outcome.failover)
    BUSY = "busy"  # try later (throttled, queue full, temporary error, or no room in this process)
    UNREACHABLE = "unreachable"  # nothing left this machine, or no message of the account is taken: safe to send again
    UNKNOWN = "unknown"  # bytes may have left and no verdict came: not safe to send again


class Scope(enum.StrEnum):
    """What a verdict concerns."""

    MESSAGE = "message"  # its recipient, its text, its validity
    SENDER = "sender"  # its sender, or it is unclear whether the sender or the message
    ACCOUNT = "account"  # the account, its configuration, the supplier itself
    PROCESS = "process"  # this process, which returns the message unsent: the supplier was not asked


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt."""

    verdict: Verdict
    parts: tuple[Part, ...] = ()
    #: Protocol code for operators, such as "0x0000000B"; never shown to a customer.
    code: str = ""
    #: Text for operators; never shown to a customer.
    detail: str = ""
    #: REFUSED only: another supplier may be tried once.
    failover: bool = False
    #: BUSY only: seconds the supplier asked us to wait, when it did.
    retry_after: float | None = None
    #: Whether it uses up one of the message's tries; throttling and session trouble do not.
    counts: bool = True
    #: Whether an operator should look at it.
    alarm: bool = False
    #: Only verdicts about the account count for the supplier's circuit; one about a sender counts for the pair of both,
    #: and one about this process for nothing.
    scope: Scope = Scope.ACCOUNT
    #: Segments of the whole message as sent to this supplier; 0: as many as the submission has.
    total: int = 0
    #: UNKNOWN only: numbers of the segments that were written but not answered.
    doubtful: tuple[int, ...] = ()
    #: REFUSED only: the recipient asked this sender for no more messages, and told the supplier so.
    opted_out: bool = False


def returned(reason: str, *, total: int = 0) -> Outcome:
    """BUSY, for a message that this process returns unsent although the supplier may be fine: there is no room, no
    session is left to it, or the machine has no sockets left. It may go there again, and elsewhere if that takes too
    long."""
    return Outcome(Verdict.BUSY, detail=reason, counts=False, scope=Scope.PROCESS, total=total)


class ReceiptState(enum.StrEnum):
    """What a receipt says about a message."""

    DELIVERED = "delivered"
    EXPIRED = "expired"
    UNDELIVERED = "undelivered"
    REJECTED = "rejected"
    FAILED = "failed"
    PENDING = "pending"  # accepted, en route, buffered: not final
    UNKNOWN = "unknown"  # unmapped or UNKNOWN: not final


#: Stands for the state of a receipt that has none. A setting that says what states mean may name it.
NO_WORD = "(none)"


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A parsed delivery receipt, with its raw bytes as evidence."""

    #: Normalized id candidates in order of trust (TLV first, then text); empty when the receipt named none.
    keys: tuple[str, ...]
    state: ReceiptState
    #: The handset's number as the supplier wrote it (digits; may be national).
    recipient: str
    sender: str
    raw: bytes
    error: str = ""
    #: The submission's reference, if the supplier repeats it.
    reference: int | None = None
    #: `sub` and `dlvrd` of the text, when present.
    submitted: int | None = None
    delivered: int | None = None
    #: The part of its state that is not understood, NO_WORD if it has none: counted, and shown to operators.
    unknown_word: str = ""
    #: The recipient's network (MCC and MNC), as the supplier wrote it, if it named one.
    network: str = ""
    #: The error lies with the recipient: no such number, handset switched off, person has opted out.
    recipients: bool = False


#: What a supplier that acts on keywords itself can take a message for.
ASKED = frozenset({"stop", "start", "help"})


class Inbound(msgspec.Struct, frozen=True, gc=False):
    """A message from a handset (MO), or one part of it."""

    sender: str
    recipient: str
    #: Text of the message or part; None: no text, or unknown until its parts are joined.
    text: str | None
    raw: bytes
    #: (reference, total, number) of a concatenated message.
    concatenation: tuple[int, int, int] | None = None
    #: Types of number (SMPP 3.4 §5.2.5): 0 unknown, 1 international, 2 national, 5 alphanumeric …
    sender_ton: int = 0
    recipient_ton: int = 0
    #: Where `text` is None: the octets as received, and their form, by which their kind of supplier reads them once all
    #: parts have arrived (`kinds.read`). No other code interprets a form.
    body: bytes = b""
    form: str = ""
    #: The supplier's id for it, if it gives one: the same id from the same handset is the same message or part, however
    #: much later.
    key: str = ""
    #: What the supplier took it for (one of ASKED), if it acts on such words itself and says so: it has stopped sending
    #: to the handset, or resumed, and has answered.
    asked: str = ""


class Account(msgspec.Struct, frozen=True):
    """An account as passed to its connector."""

    id: UUID
    settings: dict[str, Any]
    #: Password, API key, token.
    secret: str
    #: The address of the supplier's callbacks, without its last part; empty: none.
    callback: str = ""


#: Called once per attempt, from the event loop, with the submission and its outcome; after UNKNOWN again for each late
#: answer. Must not block.
OnOutcome = Callable[[Submission, Outcome], None]


class PartlyStored(Exception):
    """Some of what a supplier delivered together could not be stored; the rest is, and may be acknowledged."""

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        """`errors`: by position."""
        super().__init__(f"{len(errors)} not stored")
        self.errors = errors


def demand(error: BaseException, reason: type[Exception]) -> None:
    """Raise what kept something from being stored, unless `reason` is all there was."""
    for one in error.errors.values() if isinstance(error, PartlyStored) else [error]:
        if not isinstance(one, reason):
            raise one from None


#: Stores receipts or inbound messages. They are acknowledged to the supplier only after it has returned. Raises
#: PartlyStored if that is true of some.
OnReceipts = Callable[[Sequence[Receipt]], Awaitable[None]]
#: Called with the positions of messages whose acknowledgement was written: the supplier has no reason to resend them.
OnAnswered = Callable[[Sequence[int]], None]
OnInbound = Callable[[Sequence[Inbound]], Awaitable[OnAnswered | None]]


class Health(msgspec.Struct, frozen=True):
    """A connector's report about itself, for routing, `heliograph supplier list` and metrics."""

    #: Sessions that can submit now.
    sessions: int
    in_flight: int
    since: datetime | None = None
    last_error: Sentence = quoted("")
    #: How often the supplier has throttled it, and for how many more seconds it takes no messages at all.
    throttles: int = 0
    pause: float = 0.0
    #: How many segments can be in flight with these sessions.
    window: int = 0
    #: Segments handed over since some point in time: only the difference between two readings is meaningful.
    submitted: int = 0
    #: How many of `sessions` also receive; None: all of them.
    receiving: int | None = None


#: Maximum exchanges with a supplier that are kept for an operator who watches it.
LAST = 200


class Exchange(msgspec.Struct, frozen=True):
    """One exchange on the wire, as shown to an operator who watches a supplier: without numbers, texts and secrets."""

    at: datetime
    #: Sent by us.
    is_sent: bool
    #: The protocol's name for it: `submit_sm_resp`.
    command: str
    sequence: int
    #: Empty: success.
    status: str
    fields: dict[str, Any]


class RebuiltRequest(msgspec.Struct, frozen=True):
    """The request sent to a supplier for one segment, reconstructed from stored data, in the protocol's terms."""

    number: int
    total: int
    #: Without phone numbers and text, and with them.
    masked: dict[str, Any]
    whole: dict[str, Any]
    #: In hex; octets that are not stored are "??".
    octets: str


class WireActivity(msgspec.Struct, frozen=True):
    """A bound session, or all requests of a process: the latest exchange in each direction, and the number of requests
    waiting for an answer."""

    in_flight: int
    #: In the protocol's terms; empty: nothing yet. Times are accurate to the interval between two readings.
    sent: str = ""
    sent_at: datetime | None = None
    received: str = ""
    received_at: datetime | None = None


@runtime_checkable
class InspectableConnector(Protocol):
    """A connector whose sessions can be inspected, one by one or as a whole."""

    def wires(self) -> list[WireActivity]:
        """The bound sessions, with what happened since the last call."""

    def answers(self) -> list[int]:
        """Response times of the answers since the last call, in buckets of `base.histogram`. A connector may time only
        some of the answers."""


@runtime_checkable
class WatchableConnector(Protocol):
    """A connector whose exchanges can be watched. It keeps none while it is not watched."""

    def watch(self, is_watched: bool) -> None:
        """Start or stop keeping the latest exchanges."""

    def exchanged(self) -> list[Exchange]:
        """Exchanges since the last call, oldest first, at most LAST."""


class Connector(Protocol):
    """One account at one supplier, inside one worker process."""

    async def start(self) -> None:
        """Connect in the background; returns at once. Losing the supplier is not an error: it reconnects."""

    def ready(self) -> bool:
        """Whether it can take messages at all, however many it has now. Messages are not kept waiting for a supplier
        that is not ready; what readiness requires, such as a session, is up to its protocol."""

    def capacity(self) -> int:
        """How many more segments can be submitted right now without waiting; 0 while it is not ready."""

    def parts(self, submission: Submission) -> int:
        """The number of segments of the whole message for this account: each gets its own id and receipt."""

    def billed(self, submission: Submission) -> int:
        """The number of segments its supplier charges for, even if it is handed a long text as a whole."""

    def submit(self, submission: Submission) -> None:
        """Hand over one message. Never blocks and never raises: the outcome arrives at `on_outcome`."""

    def set_sessions(self, count: int) -> None:
        """Open or close sessions until there are `count`: the account's limit is shared among worker processes. Without
        one, messages that still wait for room are returned."""

    def slow(self, pause: float) -> None:
        """Another worker was throttled: slow down too, and take no messages for `pause` seconds."""

    def health(self) -> Health:
        """The connector's current state."""

    async def stop(self, *, grace: float) -> None:
        """Submit nothing more, wait up to `grace` seconds for outstanding answers, unbind, close.

        Whatever is still unanswered then ends as UNKNOWN.
        """


#: Monotonic seconds: the lease of what was handed over by then may have ended. Another worker may have sent it, or be
#: about to, so nothing more of it may be sent.
LostUntil = Callable[[], float]


def never_lost() -> float:
    """The LostUntil of messages that no other process can take."""
    return -math.inf


#: Builds a connector for an account: (account, on_outcome, on_receipts, on_inbound). Raises SettingsError.
ConnectorFactory = Callable[[Account, OnOutcome, OnReceipts, OnInbound], Connector]
