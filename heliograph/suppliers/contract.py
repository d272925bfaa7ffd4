"""The seam to suppliers: what goes out (Submission), the closed set of what comes back (Outcome, Receipt, Inbound).

A supplier's peculiarities stay in its own module; nothing behind this interface knows SQL, and nothing in front of it
knows protocols. The rule nobody may break: `Unknown` is the only outcome for "the bytes may have been sent and no
verdict came". It is never guessed to be Refused or Unreachable, because the first would lose a message and the second
would duplicate it.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Sequence
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
    #: What it says, with everything replaced that is to be.
    text: str
    #: "gsm7" or "ucs2".
    encoding: str
    #: Of 16 bits: for suppliers that repeat it in receipts, and for handsets that join segments by it.
    reference: int
    #: Seconds that the message is still worth delivering, or None for the supplier's default.
    validity_seconds: int | None = None
    #: Numbers of the segments that the supplier has from an earlier attempt, under the same reference: not sent again.
    held: tuple[int, ...] = ()
    #: Recipient as this supplier wants it written; empty: as `to`.
    address: str = ""
    #: TON and NPI of recipient and sender (SMPP 3.4 §5.2.5, §5.2.6); None: the account's own.
    numbering: tuple[int, int] | None = None
    sender_numbering: tuple[int, int] | None = None
    #: 0: as usual; 1: it is in a hurry.
    priority: int = 0
    #: Its segments, once somebody has asked for them.
    cut: tuple[bytes, ...] = ()

    @property
    def segments(self) -> tuple[bytes, ...]:
        """User data of each segment: unpacked GSM-7 septets or UTF-16BE, without any header. Cut when a kind of
        supplier first asks, since most of them cut it themselves. Raises ValueError for a text that its encoding lacks
        a character of."""
        if not self.cut:
            msgspec.structs.force_setattr(self, "cut", segments.of(self.text, self.encoding))
        return self.cut

    @property
    def count(self) -> int:
        """How many segments there are, without cutting what is surely one; 1 for what cannot be written."""
        if len(self.text) <= _SURELY_ONE:
            return 1
        try:
            return len(self.segments)
        except ValueError:
            return 1


class Part(msgspec.Struct, frozen=True, gc=False):
    """The supplier's answer for one segment: `number` counts from 1."""

    number: int
    #: Normalized, as `Receipt.keys` are, so that the two can be compared; None when it gave none.
    supplier_message_id: str | None
    #: Protocol status as the supplier wrote it, such as "0x00000000".
    status: str = ""


class Verdict(enum.StrEnum):
    """What a supplier did with a submission."""

    ACCEPTED = "accepted"  # it has it; a receipt may follow
    REFUSED = "refused"  # it said no, for good, for this message (see Outcome.failover)
    BUSY = "busy"  # it said: later (throttled, queue full, temporary error)
    UNREACHABLE = "unreachable"  # nothing left this machine: safe to send again
    UNKNOWN = "unknown"  # bytes may have left and no verdict came: not safe to send again


class Scope(enum.StrEnum):
    """What a verdict concerns."""

    MESSAGE = "message"  # its recipient, its text, its validity
    SENDER = "sender"  # its sender, or nobody knows whether that or the message
    ACCOUNT = "account"  # the account, its configuration, the supplier itself


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
    #: Throttling and session trouble do not use up one of the message's tries.
    counts: bool = True
    #: An operator should look at it.
    alarm: bool = False
    #: Only what is said of the account counts for the supplier's circuit; what is said of a sender counts for the two.
    scope: Scope = Scope.ACCOUNT
    #: Segments of the whole message as this supplier gets it; 0: as many as the submission has.
    total: int = 0
    #: UNKNOWN only: numbers of the segments that were written and not answered.
    doubtful: tuple[int, ...] = ()
    #: REFUSED only: the recipient asked this sender for no more messages, and told the supplier so.
    opted_out: bool = False


class ReceiptState(enum.StrEnum):
    """What a receipt says of a message."""

    DELIVERED = "delivered"
    EXPIRED = "expired"
    UNDELIVERED = "undelivered"
    REJECTED = "rejected"
    FAILED = "failed"
    PENDING = "pending"  # accepted, en route, buffered: not an end
    UNKNOWN = "unknown"  # unmapped or UNKNOWN: not an end


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """A delivery receipt as understood, with its raw bytes as evidence."""

    #: Normalized id candidates in order of trust (TLV first, then text); empty when the receipt named none.
    keys: tuple[str, ...]
    state: ReceiptState
    #: The handset's number as the supplier wrote it (digits; may be national).
    recipient: str
    sender: str
    raw: bytes
    error: str = ""
    #: That of the submission, when the supplier repeats it.
    reference: int | None = None
    #: `sub` and `dlvrd` of the text, when present.
    submitted: int | None = None
    delivered: int | None = None
    #: What it says of the state, as far as nobody knows what that means: counted, and shown to operators.
    unknown_word: str = ""
    #: The recipient's network (MCC and MNC), as the supplier wrote it, if it named one.
    network: str = ""
    #: Its error is the recipient's own affair: no such number, a handset that is off, a person who wants nothing more.
    recipients: bool = False


class Inbound(msgspec.Struct, frozen=True, gc=False):
    """A message from a handset (MO), or one part of it."""

    sender: str
    recipient: str
    #: What it says, or a part of it says; None: no text, or not known until its parts are joined.
    text: str | None
    raw: bytes
    #: (reference, total, number) of a concatenated message.
    concatenation: tuple[int, int, int] | None = None
    #: Types of number (SMPP 3.4 §5.2.5): 0 unknown, 1 international, 2 national, 5 alphanumeric …
    sender_ton: int = 0
    recipient_ton: int = 0
    #: Where `text` is None: octets as they came, and their form, by which their kind of supplier reads them once all
    #: parts are there (`kinds.read`). Nobody else knows what a form means.
    body: bytes = b""
    form: str = ""
    #: The supplier's id of it, where it gives one: the same again is the same message, however much later.
    key: str = ""


class Account(msgspec.Struct, frozen=True):
    """An account as its connector is given it."""

    id: UUID
    settings: dict[str, Any]
    #: Password, API key, token.
    secret: str
    #: The address that the supplier's callbacks come to, without the last part; empty: there is none.
    callback: str = ""


#: Called once per attempt, from the event loop, with the submission and its outcome; after UNKNOWN again with each
#: answer that comes late. Must not block.
OnOutcome = Callable[[Submission, Outcome], None]
#: Stores receipts or inbound messages. They are acknowledged to the supplier only after it returned.
OnReceipts = Callable[[Sequence[Receipt]], Awaitable[None]]
#: Called with the positions of those whose acknowledgement was written: the supplier has no reason to send them again.
OnAnswered = Callable[[Sequence[int]], None]
OnInbound = Callable[[Sequence[Inbound]], Awaitable[OnAnswered | None]]


class Health(msgspec.Struct, frozen=True):
    """What a connector says of itself, for routing, `heliograph supplier list` and metrics."""

    #: Sessions that can submit now.
    sessions: int
    in_flight: int
    since: datetime | None = None
    last_error: Sentence = quoted("")
    #: How often the supplier has told it to slow down, and for how many more seconds it wants nothing at all.
    throttles: int = 0
    pause: float = 0.0
    #: How many can be in flight with these sessions.
    window: int = 0
    #: Segments that were handed over, counted from some time on: what counts is the difference of two looks.
    submitted: int = 0


#: How many exchanges with a supplier are kept for who watches it.
LAST = 200


class Exchanged(msgspec.Struct, frozen=True):
    """What went over the wire once, as whoever watches a supplier sees it: without numbers, texts and secrets."""

    at: datetime
    #: By us.
    is_sent: bool
    #: In the protocol's words: `submit_sm_resp`.
    command: str
    sequence: int
    #: Empty: all is well.
    status: str
    fields: dict[str, Any]


class Rebuilt(msgspec.Struct, frozen=True):
    """What a supplier was given for one segment, written again from what is stored, in the protocol's words."""

    number: int
    total: int
    #: Without phone numbers and text, and with them.
    masked: dict[str, Any]
    whole: dict[str, Any]
    #: In hex; those that are kept nowhere are "??".
    octets: str


class Wire(msgspec.Struct, frozen=True):
    """A session that is bound, or all requests of a process: the last that went over it in each direction, and what
    waits for an answer."""

    in_flight: int
    #: In the protocol's words; empty: nothing yet. When: to within the time between two looks.
    sent: str = ""
    sent_at: datetime | None = None
    received: str = ""
    received_at: datetime | None = None


@runtime_checkable
class Wired(Protocol):
    """A connector whose sessions can be looked at one by one, or as one."""

    def wires(self) -> list[Wire]:
        """Those that are bound, since the last look."""

    def answers(self) -> list[int]:
        """How long answers took that came since the last call, in buckets of `base.histogram`: of those that were read
        together, the first."""


@runtime_checkable
class Watchable(Protocol):
    """A connector whose exchanges can be watched. It keeps none while nobody does."""

    def watch(self, is_watched: bool) -> None:
        """From now on it keeps its last exchanges, or does not."""

    def exchanged(self) -> list[Exchanged]:
        """Those since the last call, oldest first, at most LAST."""


class Connector(Protocol):
    """One account at one supplier, inside one worker process."""

    async def start(self) -> None:
        """Connect in the background; returns at once. Losing the supplier is not an error: it reconnects."""

    def ready(self) -> bool:
        """Whether it can be asked to take messages at all, however many it has now. A supplier that is not has nothing
        to wait for here; what that takes, such as a session, is its protocol's affair."""

    def capacity(self) -> int:
        """How many more segments can be submitted right now without waiting; 0 while it is not ready."""

    def parts(self, submission: Submission) -> int:
        """How many segments the whole message is for this account: each will have an id, and a receipt, of its own."""

    def billed(self, submission: Submission) -> int:
        """How many segments its supplier charges for: also one that is handed a long text as a whole."""

    def submit(self, submission: Submission) -> None:
        """Hand over one message. Never blocks and never raises: the outcome arrives at `on_outcome`."""

    def set_sessions(self, count: int) -> None:
        """Open or close sessions until there are `count`: the account's limit is shared among worker processes."""

    def slow(self, pause: float) -> None:
        """Another worker was told to slow down: so does this one, and asks for nothing for `pause` seconds."""

    def health(self) -> Health:
        """How it is doing."""

    async def stop(self, *, grace: float) -> None:
        """Submit nothing more, wait up to `grace` seconds for open answers, unbind, close.

        Whatever is still open then ends as UNKNOWN.
        """


#: Builds a connector for an account: (account, on_outcome, on_receipts, on_inbound). Raises SettingsError.
ConnectorFactory = Callable[[Account, OnOutcome, OnReceipts, OnInbound], Connector]
