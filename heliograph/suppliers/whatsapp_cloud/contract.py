"""The seam to WhatsApp: what goes out (CloudSubmission), the closed set of what comes back (CloudOutcome).

It mirrors `suppliers.contract`, whose verdicts it uses, with three differences: a body is built before it gets here,
Meta identifies a message by a wamid, and a fault says what a pause applies to.

The rule nobody may break is the same: UNKNOWN is the only answer to "the bytes may have left and no verdict came".
Graph has no idempotency key, so a second send is a second message, charged again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

import msgspec

from heliograph.suppliers.contract import Verdict
from heliograph.suppliers.whatsapp_cloud.errors import Fault, Kind

#: `CloudOutcome.code` of a message that our own pace for its user stopped before Meta did.
OWN_PACE = "pair"


class CloudSubmission(msgspec.Struct, frozen=True, gc=False):
    """One attempt to hand one message to Meta. Its attempt row is committed before it gets here."""

    message_id: UUID
    attempt: int
    #: E.164 or a user id, always written the same way: the key of the pair gate.
    recipient: str
    #: From `bodies`, with our id as biz_opaque_callback_data.
    body: bytes


class CloudOutcome(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt."""

    verdict: Verdict
    #: ACCEPTED only: Meta's id, the recipient as Meta writes it, the user id if Meta gave one.
    wamid: str | None = None
    wa_id: str | None = None
    user_id: str | None = None
    #: `accepted`, `held_for_quality_assessment` or `paused`, for templates.
    message_status: str | None = None
    #: REFUSED, BUSY and UNKNOWN: what the answer means. `fault.wait` says when to try again.
    fault: Fault | None = None
    #: For operators, such as "131047", "100/33", "http 502" or "closed"; never shown to a customer.
    code: str = ""
    #: Text for operators; never shown to a customer.
    detail: str = ""
    #: BUSY only: seconds that the answer asked us to wait, if it did.
    retry_after: float | None = None
    #: `fbtrace_id`, for Meta's support.
    trace: str = ""

    @property
    def counts(self) -> bool:
        """Whether it uses up one of the message's tries."""
        return self.verdict in (Verdict.REFUSED, Verdict.UNKNOWN) or (
            self.verdict is Verdict.BUSY and self.fault is not None and self.fault.counts
        )


class CloudHealth(msgspec.Struct, frozen=True):
    """A connector's report about itself, for dispatch, operators and metrics."""

    #: Whether it would send now.
    usable: bool
    in_flight: int
    queued: int
    #: The current rate, messages a second.
    rate: float
    #: Seconds until its hold ends, and the reason.
    held: float = 0.0
    reason: Kind | None = None
    last_error: str = ""


#: Called once per attempt, from the event loop, with the submission and its outcome. Must not block.
OnCloudOutcome = Callable[[CloudSubmission, CloudOutcome], None]


class NumberConnector(Protocol):
    """One WhatsApp number, inside one worker process."""

    async def start(self) -> None:
        """Ready to send; returns at once."""

    def capacity(self) -> int:
        """The number of messages that can be submitted now without waiting long (rate, concurrency, holds)."""

    def pair_wait(self, recipient: str, *, ahead: int = 0, debt: float = 0.0) -> float:
        """Seconds until this user may get another message after `ahead` others that were not submitted yet; asked
        before an attempt is begun. `debt`: seconds by which all processes together are known to be ahead of Meta's
        pace for this user."""

    def submit(self, submission: CloudSubmission) -> None:
        """Hand over one message. Never blocks and never raises: the outcome comes later, exactly once."""

    def hold(self, seconds: float, reason: Kind | None = None) -> None:
        """Send nothing for `seconds`; then one message probes first."""

    def release(self) -> None:
        """End a hold, after a new token, a successful check, or on an operator's request."""

    def health(self) -> CloudHealth:
        """The connector's current state."""

    async def stop(self, *, grace: float) -> None:
        """Submit nothing more, wait up to `grace` seconds for outstanding answers.

        Messages not yet sent end as UNREACHABLE, those still unanswered after that as UNKNOWN.
        """
