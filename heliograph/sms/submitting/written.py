"""Builds the submission for a supplier: in one place, for sending and for inspecting it later. Pure.

The rule nobody may break: it is built only from what is stored, so that it can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from heliograph.classes.kinds import CLASSES
from heliograph.senders.book import NumberRule
from heliograph.sms.accepting import encoding
from heliograph.suppliers.contract import Submission


def submission(
    id: UUID,
    attempt: int,
    *,
    recipient: str,
    sender: str,
    address: NumberRule | None,
    body: str,
    coding: str,
    traffic_class: str,
    reference: int,
    expires_at: datetime | None,
    at: datetime,
    held: Sequence[int] = (),
) -> Submission:
    """The submission of an attempt that begins at `at`. `recipient`: E.164. `sender`: according to the supplier's
    rules. `address`: the form of number that the supplier wants."""
    validity = None if expires_at is None else max(1, int((expires_at - at).total_seconds()))
    return Submission(
        message_id=id,
        attempt=attempt,
        to=recipient[1:],
        sender=sender,
        address=address.written(recipient[1:]) if address is not None else "",
        numbering=None if address is None else address.numbering,
        sender_numbering=None if address is None else address.sender_numbering,
        priority=CLASSES[traffic_class].priority,
        text=encoding.repeated(body, coding),
        encoding=coding,
        reference=reference,
        validity_seconds=validity,
        held=tuple(held),
    )
