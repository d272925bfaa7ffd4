"""Graph error codes: the class of each, and what the class means for a message, its number and the operator.

Meta asks clients to branch on `code` alone. HTTP status, subcode and title vary by source and year; the status is used
only if there is no Graph error to read, a subcode only where one code has two meanings, and the text only to recognize
WRONG_PROOF.

The rule nobody may break: a refusal counts only if Graph itself sent it. Anything without a readable Graph error (an
empty body, a proxy's page, no answer) is `unsure`: the message may be on its way.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from heliograph.base import retry
from heliograph.base.retry import Backoff
from heliograph.base.sentences import Sentence, kept, said


class Kind(enum.StrEnum):
    """What a code is about, and therefore how to react."""

    RETRY = "retry"  # trouble at Meta: retry with growing pauses
    RATE = "rate"  # too fast, or restricted: slow down, then retry
    PAIR = "pair"  # too fast for this one user
    WINDOW = "window"  # the service window is closed
    TEMPLATE = "template"  # reread the template; hold or fail the messages that use it
    RECIPIENT = "recipient"  # refused for this user
    REQUEST = "request"  # this body is refused: our mistake or the customer's
    MEDIA = "media"  # a file could not be fetched
    AUTH = "auth"  # the credential is refused: stop using it, keep the messages
    ACCOUNT = "account"  # the number or account is stopped: keep the messages, alert the operator


class Scope(enum.StrEnum):
    """What a hold applies to."""

    MESSAGE = "message"
    USER = "user"
    COUNTRY = "country"
    TEMPLATE = "template"
    NUMBER = "number"
    ACCOUNT = "account"
    CREDENTIAL = "credential"


#: Failure reasons that a customer may see.
FAILURES = frozenset(
    {
        "recipient_unreachable",
        "window_closed",
        "marketing_limit",
        "throttled",
        "spam_limited",
        "payment",
        "media_error",
        "expired",
        "unknown",
    }
)

#: `Fault.tries` for waiting on somebody or something else: the message loses none of its tries.
UNCOUNTED = None
#: A one-time code is worthless after this, seconds (the default lifetime of authentication templates).
CODE_LIFETIME = 600.0

_MINUTE, _HOUR = 60.0, 3600.0
#: A constant pause.
_STEADY = Backoff(0.0, growth=1.0)


class Fault(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The meaning of a code. `wait` decides what happens to the message."""

    code: int | None = None
    subcode: int | None = None
    kind: Kind
    #: For operators; never shown to a customer.
    title: str
    #: What the customer sees once the message has failed: one of FAILURES.
    failure: str = "unknown"
    #: Further tries that this code allows; 0: none; UNCOUNTED: as many as fit into the message's lifetime.
    tries: int | None = 0
    #: What `hold` applies to. Scope.MESSAGE: only this message waits.
    scope: Scope = Scope.MESSAGE
    #: The pauses between tries; the first is also how long the scope is held.
    backoff: Backoff = _STEADY
    #: The operator must be alerted.
    alarm: bool = False
    #: Halve the number's rate.
    slow: bool = False
    #: The message may have been accepted nevertheless: do not resend it before a status could have arrived.
    unsure: bool = False

    @property
    def hold(self) -> float:
        """Seconds for which the scope is held; for a retry of the message, the first pause."""
        return self.backoff.first

    @property
    def waits(self) -> bool:
        """Whether there may be another try (False: the message has failed)."""
        return self.tries is UNCOUNTED or self.tries > 0

    @property
    def counts(self) -> bool:
        """Whether a try that ended this way uses up one of the message's tries."""
        return self.tries is not UNCOUNTED

    def wait(self, tries: int, *, code: bool = False) -> float | None:
        """Seconds until the next try after `tries` (from 1) that ended with this fault; None: it has failed.

        `code`: the message is a one-time code, which a pause longer than its lifetime cannot help. A hold as long as
        that may end earlier.
        """
        if self.tries is not UNCOUNTED and tries > self.tries:
            return None
        pause = self.backoff.pause(tries - 1)
        if code and pause > CODE_LIFETIME:
            return None
        return pause


def classify(
    code: int | None, subcode: int | None = None, *, http_status: int | None = None, is_transient: bool = False
) -> Fault:
    """The meaning of an error from an answer (with its `http_status`) or from a status webhook (without one).

    `code` None: there was no Graph error in the answer, or no answer.
    """
    if code is None:
        return _THROTTLED_UNREAD if http_status == 429 else _UNREAD
    fault = _SUBCODES.get((code, subcode)) if subcode is not None else None
    fault = fault or FAULTS.get(code)
    if fault is None and 200 <= code <= 299:
        fault = _PERMISSION
    if fault is None:
        if http_status is not None and http_status >= 500:
            return msgspec.structs.replace(_UNREAD, code=code, subcode=subcode)
        fault = _UNLISTED
    if is_transient and fault.kind is Kind.REQUEST and not fault.waits:
        fault = msgspec.structs.replace(fault, kind=Kind.RETRY, tries=3, backoff=retry.META_TROUBLE)
    if fault.code != code or fault.subcode != subcode:
        fault = msgspec.structs.replace(fault, code=code, subcode=subcode)
    return fault


def meaning(code: str) -> Sentence | None:
    """The meaning of an answer's code, such as "131026" or "100/33"; None: it is not one of Meta's."""
    number, _, subcode = code.partition("/")
    if not (number.isascii() and number.isdigit()):
        return None
    fault = classify(int(number), int(subcode) if subcode.isascii() and subcode.isdigit() else None)
    if fault.title == _UNLISTED.title:
        return said("Meta's error %(code)s, about which nothing more is known here", code=code)
    return kept(fault.title)


def _from(first: float, backoff: Backoff = _STEADY) -> Backoff:
    """The same backoff with a different first pause."""
    return msgspec.structs.replace(backoff, first=first)


def _retry(title: str, tries: int | None, *, hold: float = retry.META_TROUBLE.first, **more: Any) -> Fault:
    return Fault(kind=Kind.RETRY, title=title, tries=tries, backoff=_from(hold, retry.META_TROUBLE), **more)


def _rate(
    title: str, scope: Scope, hold: float, *, failure: str = "throttled", longest: float = _HOUR, **more: Any
) -> Fault:
    backoff = msgspec.structs.replace(retry.META_THROTTLED, first=hold, longest=longest)
    return Fault(kind=Kind.RATE, title=title, tries=UNCOUNTED, scope=scope, backoff=backoff, failure=failure, **more)


def _auth(title: str, scope: Scope = Scope.CREDENTIAL) -> Fault:
    return Fault(kind=Kind.AUTH, title=title, tries=UNCOUNTED, scope=scope, backoff=_from(_MINUTE), alarm=True)


def _account(title: str, scope: Scope, *, hold: float = 10 * _MINUTE, failure: str = "unknown") -> Fault:
    return Fault(
        kind=Kind.ACCOUNT, title=title, tries=UNCOUNTED, scope=scope, backoff=_from(hold), failure=failure, alarm=True
    )


def _template(title: str, **more: Any) -> Fault:
    return Fault(kind=Kind.TEMPLATE, title=title, scope=Scope.TEMPLATE, **more)


def _recipient(title: str, failure: str = "recipient_unreachable", **more: Any) -> Fault:
    return Fault(kind=Kind.RECIPIENT, title=title, failure=failure, **more)


def _request(title: str, *, failure: str = "unknown", alarm: bool = True) -> Fault:
    return Fault(kind=Kind.REQUEST, title=title, failure=failure, alarm=alarm)


def _media(title: str) -> Fault:
    return Fault(kind=Kind.MEDIA, title=title, failure="media_error", tries=2, backoff=retry.META_TROUBLE)


_TABLE: dict[int, Fault] = {
    0: _auth("the app user could not be authenticated"),
    1: _retry("unknown API error", 3),
    2: _retry("the service is down or overloaded", UNCOUNTED),
    # Sent with HTTP 500, although it is about a permission.
    3: _auth("a capability or permission is missing"),
    4: _rate("too many calls of the app", Scope.CREDENTIAL, 5 * _MINUTE),
    10: _auth("a permission is absent or was removed"),
    # Messages wait until a reading shows the same, as for 100/33.
    33: _account("the number was deleted", Scope.NUMBER),
    # Graph's general codes for limits, which any call may get; the ones with five digits belong to WhatsApp alone.
    **dict.fromkeys((17, 32, 341, 613), _rate("too many calls of the app", Scope.CREDENTIAL, 5 * _MINUTE)),
    100: _request("a parameter is unknown, misspelled or too long"),
    # Graph's general code for a session or token that has ended.
    102: _auth("the token has expired or is invalid"),
    190: _auth("the token has expired or is invalid"),
    368: _account("blocked for policy violations", Scope.ACCOUNT),
    # The base URL or the version is wrong: no message is to blame.
    2500: _account("no such path", Scope.ACCOUNT),
    80007: _rate("too many calls for the account", Scope.ACCOUNT, 5 * _MINUTE),
    80008: _rate("too many calls for the account", Scope.ACCOUNT, 5 * _MINUTE),
    130403: _recipient("the business has blocked this user"),
    130429: _rate("the number's throughput is reached", Scope.NUMBER, 2.0, longest=_MINUTE, slow=True),
    130472: _recipient("the user is in a marketing experiment", "marketing_limit"),
    130497: _recipient("the business may not message this country", scope=Scope.COUNTRY, alarm=True),
    131000: _retry("unknown failure", 3),
    131005: _auth("access denied"),
    131008: _request("a required parameter is missing"),
    131009: _request("a parameter's value is invalid"),
    131016: _retry("service unavailable", UNCOUNTED),
    131021: _request("sender and recipient are the same", failure="recipient_unreachable", alarm=False),
    131026: _recipient("undeliverable"),
    131030: _request("not in the test number's list of recipients", failure="recipient_unreachable"),
    131031: _account("the account is locked", Scope.ACCOUNT),
    131037: _account("the number's display name is not approved", Scope.NUMBER),
    131042: _account("payment problem", Scope.ACCOUNT, failure="payment"),
    131043: _recipient("the message expired", "expired"),
    131045: _account("the number's registration or certificate is faulty", Scope.NUMBER),
    131047: Fault(kind=Kind.WINDOW, title="more than 24 h since the user's last message", failure="window_closed"),
    131048: _rate(
        "restricted for quality or spam", Scope.NUMBER, _HOUR, longest=6 * _HOUR, failure="spam_limited", alarm=True
    ),
    131049: _recipient("withheld for ecosystem health", "marketing_limit", scope=Scope.USER, backoff=_from(24 * _HOUR)),
    131050: _recipient("the user stopped marketing messages", "marketing_limit"),
    131051: _request("message type unsupported"),
    131052: _media("media download failed"),
    131053: _media("media upload failed"),
    131055: _request("method not allowed"),
    131056: Fault(
        kind=Kind.PAIR,
        title="too many messages to this user",
        failure="throttled",
        tries=UNCOUNTED,
        scope=Scope.USER,
        backoff=retry.META_USER,
    ),
    131057: _retry("the number is in maintenance", UNCOUNTED, hold=_MINUTE, scope=Scope.NUMBER),
    131062: _request("this message cannot go to a business-scoped user id", failure="recipient_unreachable"),
    131063: _template("marketing templates are switched off", alarm=True),
    # Lifted automatically.
    131064: _account("capped for misclassified templates", Scope.ACCOUNT, hold=_HOUR),
    132000: _template("the number of parameters differs from the template's"),
    # It may be under review, or Meta's servers may disagree: messages in doubt wait until it has been reread (`doubt`).
    132001: _template("no such template in this language, or not approved", tries=3, backoff=_from(_MINUTE)),
    132005: _request("a text is too long once filled", alarm=False),
    132007: _template("the template's content breaks policy", alarm=True),
    132008: _template("a parameter's format differs from the template's"),
    132012: _template("a parameter's format differs from the template's"),
    132015: _template("the template is paused", tries=UNCOUNTED, backoff=retry.META_TEMPLATE_PAUSED),
    132016: _template("the template is disabled for good", alarm=True),
    132018: _template("a parameter of the template is invalid"),
    132068: _template("the Flow is blocked", alarm=True),
    # Ten messages an hour.
    132069: _rate("the Flow is throttled", Scope.TEMPLATE, 6 * _MINUTE),
    133000: _retry("a former deregistration is incomplete", UNCOUNTED, hold=_MINUTE),
    133004: _retry("the server is temporarily down", UNCOUNTED),
    133005: _account("wrong two-step verification PIN", Scope.NUMBER),
    133006: _account("the number is not verified", Scope.NUMBER),
    133008: _account("too many guesses of the PIN", Scope.NUMBER),
    133009: _account("guesses of the PIN too fast", Scope.NUMBER),
    133010: _account("the number is not registered", Scope.NUMBER),
    133015: _retry("the number is being deleted", UNCOUNTED, hold=5 * _MINUTE, scope=Scope.NUMBER),
    133016: _account("too many registrations", Scope.NUMBER, hold=72 * _HOUR),
    134011: _account("terms of WhatsApp Payments are pending", Scope.ACCOUNT),
    135000: _request("an unspecified parameter is faulty"),
    137000: _recipient("the user's identity has changed"),
}

#: All codes; 200 to 299, which share one meaning, are handled by `classify`.
FAULTS: dict[int, Fault] = {code: msgspec.structs.replace(fault, code=code) for code, fault in _TABLE.items()}

_SUBCODES: dict[tuple[int, int], Fault] = {
    # The number was deleted, or the token may not see it. Another number of the same token may well work.
    (100, 33): _auth("the object is missing, or not visible to this token", Scope.NUMBER),
}

#: Code 100 about `appsecret_proof`, which no subcode distinguishes from a mistake in the body: the secret stored here
#: is not that of the token's app. No message is to blame.
WRONG_PROOF = msgspec.structs.replace(_auth("the app's secret is not that of the token's app"), code=100)
_PERMISSION = _auth("a permission is absent or was removed")
_UNLISTED = _request("an unknown code")
_UNREAD = _retry("no readable answer", 3, unsure=True)
#: A server that answers 429 has accepted nothing, even if it is only a proxy.
_THROTTLED_UNREAD = _rate("too many requests", Scope.NUMBER, 2.0, longest=_MINUTE, slow=True)

#: The titles of faults of a credential.
CREDENTIAL_TITLES = frozenset(
    one.title
    for one in (*FAULTS.values(), WRONG_PROOF, _PERMISSION)
    if one.kind is Kind.AUTH and one.scope is Scope.CREDENTIAL
)
