"""What a supplier tells an attempt by that has no id of its own for it: in its own field, in the address of receipts.

It holds all that a receipt is matched by, so that one whose supplier says nothing else still finds an attempt whose
answer was lost.
"""

from __future__ import annotations

import re

import msgspec

from heliograph.suppliers.contract import Receipt, Submission

#: Digits of a recipient, which are compared of receipts.
SUFFIX = 8

_REFERENCE = re.compile(r"[0-9a-f]{32}-[0-9]{1,5}-([0-9a-f]{4})-([0-9]{1,8})")
#: As `connector` writes it into the address of receipts: none of its characters is escaped there.
_IN_ADDRESS = re.compile(rf"[?&]ref={_REFERENCE.pattern}(?:[&#]|$)")


def written(submission: Submission) -> str:
    """Of this attempt alone: message, attempt, our 16 bits, the recipient's last digits."""
    reference = submission.reference & 0xFFFF
    return f"{submission.message_id.hex}-{submission.attempt}-{reference:04x}-{submission.to[-SUFFIX:]}"


def completed(receipt: Receipt, url: str) -> Receipt:
    """A receipt with what our reference says, where the supplier says nothing of it. `url`: the address that it came
    to, which may hold it."""
    match = next((found for key in receipt.keys if (found := _REFERENCE.fullmatch(key)) is not None), None)
    match = match or _IN_ADDRESS.search(url)
    if match is None:
        return receipt
    return msgspec.structs.replace(receipt, recipient=receipt.recipient or match[2], reference=int(match[1], 16))
