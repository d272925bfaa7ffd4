"""Classifies suppliers' answers: a dozen classes, into which each supplier's table sorts its codes.

The rule nobody may break: an answer that a supplier's module does not recognize never counts as accepted. A 2xx whose
body cannot be read is `unknown`: the supplier may have the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from heliograph.base.sentences import said, sentence
from heliograph.suppliers.contract import Outcome, Part, Scope, Verdict
from heliograph.suppliers.http.kind import Answer, Message


class Ruling(StrEnum):
    """What an answer means for the message."""

    ACCEPTED = "accepted"
    #: Never this message: its number or its text.
    REFUSED = "refused"
    #: Refused here; another supplier may take it.
    ELSEWHERE = "elsewhere"
    #: Nobody may message the recipient: a do-not-contact register, a bar, a number no longer in use.
    BLOCKED = "blocked"
    #: The recipient answered STOP, which the supplier did not pass on.
    OPTED_OUT = "opted_out"
    #: Never with this sender.
    BAD_SENDER = "bad_sender"
    #: Later, at this supplier.
    LATER = "later"
    #: We are too fast; the message loses none of its tries.
    THROTTLED = "throttled"
    #: The account has no credit, or is misconfigured (a wrong password, a wrong address): nothing is taken until an
    #: operator has looked, and until then the message goes elsewhere, or waits.
    NO_CREDIT = "no_credit"
    CONFIG = "config"
    UNKNOWN = "unknown"


_NUMBER = re.compile(r"[0-9]{1,9}").fullmatch
#: For several messages in one request.
UNNAMED = said("the answer does not name it")


def outcome(
    ruling: Ruling, *, id: str = "", code: str = "", detail: str = "", retry_after: float | None = None
) -> Outcome:
    """The end of an attempt. `id`: the supplier's id for an accepted message."""
    # Shortened as a Sentence, so that it can still be translated for operators.
    code, detail = code[:64], sentence(detail).short() if detail else ""
    match ruling:
        case Ruling.ACCEPTED:
            return Outcome(Verdict.ACCEPTED, (Part(1, id or None, code),), code, total=1)
        case Ruling.LATER:
            return Outcome(Verdict.BUSY, code=code, detail=detail, retry_after=retry_after, total=1)
        case Ruling.THROTTLED:
            return Outcome(Verdict.BUSY, code=code, detail=detail, retry_after=retry_after, counts=False, total=1)
        case Ruling.UNKNOWN:
            return Outcome(Verdict.UNKNOWN, code=code, detail=detail, total=1, doubtful=(1,))
        case Ruling.NO_CREDIT | Ruling.CONFIG:
            return Outcome(Verdict.UNREACHABLE, code=code, detail=detail, counts=False, alarm=True, total=1)
    return Outcome(
        Verdict.REFUSED,
        code=code,
        detail=detail,
        failover=ruling not in (Ruling.REFUSED, Ruling.BLOCKED, Ruling.OPTED_OUT),
        opted_out=ruling is Ruling.OPTED_OUT,
        scope=Scope.SENDER if ruling is Ruling.BAD_SENDER else Scope.MESSAGE,
        total=1,
    )


def by_status(answer: Answer, *, detail: str = "", code: str = "") -> Outcome:
    """By the HTTP status alone, if the body has nothing that the supplier's table knows (RFC 9110 §15). `code`: what
    the body has instead, for operators."""
    status, code = answer.status, f"HTTP {answer.status} {code}".rstrip()
    if status == 429:
        return outcome(Ruling.THROTTLED, code=code, detail=detail, retry_after=answer.retry_after)
    if status == 503:
        return outcome(Ruling.LATER, code=code, detail=detail, retry_after=answer.retry_after)
    # 301, 307 and 308 ask for the same request at another address (§15.4), so nothing was done at this one; 302 and 303
    # may be the page that follows a success.
    if status in (301, 307, 308, 401, 403, 404, 405):
        return outcome(Ruling.CONFIG, code=code, detail=detail)
    if status == 402:
        return outcome(Ruling.NO_CREDIT, code=code, detail=detail)
    if 400 <= status < 500:
        return outcome(Ruling.ELSEWHERE, code=code, detail=detail)
    # A failing gateway may already have passed the message on (Twilio says so about its 500).
    return outcome(Ruling.UNKNOWN, code=code, detail=detail)


def ruling_of(rulings: Mapping[Any, Ruling], code: Any) -> Ruling | None:
    """The ruling of a supplier's table for a code; None if it has none. A number may arrive as text, as it does in some
    versions of an API."""
    if isinstance(code, list | dict | bool):
        return None
    if (found := rulings.get(code)) is None and isinstance(code, str) and _NUMBER(code):
        found = rulings.get(int(code))
    return found


def ruled(rulings: Mapping[Any, Ruling], code: Any, answer: Answer, *, id: str = "", detail: str = "") -> Outcome:
    """By a supplier's table; by the status if the table does not know the code."""
    if isinstance(code, list | dict | bool):  # cannot be a code
        code = None
    ruling = ruling_of(rulings, code)
    if ruling is None:
        return by_status(answer, detail=detail, code="" if code is None else str(code))
    return outcome(ruling, id=id, code=str(code), detail=detail, retry_after=answer.retry_after)


def each(
    messages: Sequence[Message],
    said: Mapping[str, Any],
    known_by: Callable[[Message], str],
    meaning: Callable[[Any], Outcome],
    otherwise: Callable[[Message], Outcome],
) -> list[Outcome]:
    """The outcomes of several messages, in order, from one answer; unknown for a message that the answer does not name.
    An answer that names none applies to them all: `otherwise`."""
    if not said:
        return [otherwise(message) for message in messages]
    return [
        meaning(said[name]) if (name := known_by(message)) in said else outcome(Ruling.UNKNOWN, detail=UNNAMED)
        for message in messages
    ]
