"""The state of one submission, and the single outcome of its segments. Pure.

The rule nobody may break: a segment that was written but not answered makes the outcome UNKNOWN, unless another one was
permanently refused: that settles the message, because the supplier will never deliver it whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.base.sentences import Sentence, said
from heliograph.suppliers.contract import Outcome, Part, Scope, Submission, Verdict
from heliograph.suppliers.smpp.codec import pdu as p
from heliograph.suppliers.smpp.codec.statuses import Ruling
from heliograph.suppliers.smpp.link import Link

OK = "0x00000000"


class Attempt:
    """A submission without an outcome yet. `next` is the index of the first of `pdus` not yet handed to a session."""

    __slots__ = (
        "at",
        "cost",
        "detail",
        "doubtful",
        "ended",
        "failure",
        "in_flight",
        "link",
        "next",
        "numbers",
        "parts",
        "pdus",
        "stopped",
        "submission",
        "total",
        "unwritten",
    )

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.pdus: list[p.SubmitSm] = []
        #: Segment numbers of `pdus`, and the number of segments in the whole message.
        self.numbers: Sequence[int] = ()
        self.total = 0
        self.next = 0
        self.in_flight = 0
        self.parts: list[Part] = []
        #: The worst answer for a segment.
        self.failure: Outcome | None = None
        #: Nothing more of it will be sent.
        self.stopped = False
        #: Segments that were written but not answered, and why.
        self.doubtful: list[int] = []
        self.detail = ""
        self.unwritten = 0
        self.ended = False
        #: Tokens that each PDU costs.
        self.cost = 1
        self.link: Link | None = None
        #: When it began to wait, seconds, monotonic.
        self.at = 0.0

    def load(self, pdus: list[p.SubmitSm]) -> None:
        """Set the PDUs to send: those of the whole message that the supplier does not have yet."""
        self.total = len(pdus)
        self.pdus, self.numbers = pdus, range(1, self.total + 1)
        if self.submission.held:
            self.numbers = [number for number in self.numbers if number not in self.submission.held]
            self.pdus = [pdus[number - 1] for number in self.numbers]

    @property
    def sent(self) -> bool:
        """Whether nothing more of it will be sent."""
        return self.stopped or self.next == len(self.pdus)

    def accept(self, number: int, key: str, raw: str) -> None:
        """A segment was accepted; `key` is the id by which receipts are matched."""
        self.parts.append(Part(number, key or None, OK if key == raw else f"{OK} id:{raw}"))

    def refuse(self, number: int, ruling: Ruling, response: p.Pdu) -> None:
        """A segment was refused: the rest is not sent."""
        self.stopped = True
        if self.failure is None or ruling.verdict is Verdict.REFUSED:
            self.failure = Outcome(
                ruling.verdict,
                code=ruling.code,
                detail=self._of_segment(number, _in_words(ruling.detail, response)),
                failover=ruling.failover,
                counts=ruling.counts,
                alarm=ruling.alarm,
                scope=ruling.scope,
            )

    def lose(self, number: int, written: bool, reason: str) -> None:
        """A segment will not be answered: the rest is not sent."""
        self.stopped = True
        if written:
            self.doubtful.append(number)
            self.detail = self._of_segment(number, reason)
        else:
            self.unwritten += 1

    def outcome(self) -> Outcome:
        """The overall outcome, once nothing is in flight and nothing more will be sent.

        Its parts are exactly the segments that were accepted.
        """
        parts = tuple(self.parts)
        if len(parts) > 1:
            parts = tuple(sorted(parts, key=_number))
        failure = self.failure
        if failure is not None and (failure.verdict is Verdict.REFUSED or not self.doubtful):
            # With some of the segments, the supplier is to get the rest.
            took_some = parts and failure.verdict is Verdict.UNREACHABLE
            return Outcome(
                Verdict.BUSY if took_some else failure.verdict,
                parts,
                failure.code,
                failure.detail,
                failure.failover,
                failure.retry_after,
                failure.counts,
                failure.alarm,
                failure.scope,
                self.total,
            )
        if self.doubtful:
            doubtful = tuple(sorted(self.doubtful))
            return Outcome(Verdict.UNKNOWN, parts, detail=self.detail, total=self.total, doubtful=doubtful)
        if len(parts) == len(self.pdus):
            return Outcome(Verdict.ACCEPTED, parts, OK, total=self.total)
        if self.next == self.unwritten:
            return unreachable(said("the session was lost before anything was written"))
        some = said("only %(sent)s of %(total)s segments were sent", sent=len(parts), total=len(self.pdus))
        return Outcome(Verdict.BUSY, parts, detail=some, counts=False, total=self.total)

    def _of_segment(self, number: int, why: str) -> str:
        if self.total == 1:
            return why
        return said("segment %(number)s of %(total)s: %(why)s", number=number, total=self.total, why=why)


def unreachable(reason: Sentence, scope: Scope = Scope.ACCOUNT) -> Outcome:
    """Outcome if nothing left this machine."""
    return Outcome(Verdict.UNREACHABLE, detail=reason, counts=False, scope=scope)


def unwritable(error: p.PduError) -> Outcome:
    """The message cannot be encoded for this supplier; another supplier may be able to take it."""
    return Outcome(
        Verdict.REFUSED,
        detail=said("cannot be written as SMPP: %(why)s", why=str(error)),
        failover=True,
        scope=Scope.MESSAGE,
    )


def _number(part: Part) -> int:
    return part.number


def _in_words(detail: str, response: p.Pdu) -> str:
    """The detail with the supplier's own text, if it sent one (SMPP 3.4 §5.3.2.11)."""
    tlvs = getattr(response, "tlvs", p.NO_TLVS)
    said = tlvs.get(p.Tag.ADDITIONAL_STATUS_INFO_TEXT, b"").rstrip(b"\0").decode("latin-1")
    return f"{detail}: {said}" if said else detail
