"""Our reference for an attempt, for suppliers that have no id of their own for it: in its own field and in the address
for receipts.

It contains everything that a receipt is matched by, so that a receipt with nothing else in it still finds its attempt,
even if the attempt's answer was lost.
"""

from __future__ import annotations

import re

import msgspec

from heliograph.suppliers import message_ids
from heliograph.suppliers.contract import Receipt, Submission

#: The number of final digits of a recipient that are compared with receipts.
SUFFIX = 8

_REFERENCE = re.compile(r"[0-9a-f]{32}-[0-9]{1,5}-([0-9a-f]{4})-([0-9]{1,8})")
#: As `connector` writes it into the address for receipts, where none of its characters needs escaping.
_IN_ADDRESS = re.compile(rf"[?&]ref={_REFERENCE.pattern}(?:[?&#]|$)")


def written(submission: Submission) -> str:
    """Unique to this attempt: message, attempt, our 16 bits, the recipient's last digits."""
    reference = submission.reference & 0xFFFF
    return f"{submission.message_id.hex}-{submission.attempt}-{reference:04x}-{submission.to[-SUFFIX:]}"


def id_key(id: str) -> str:
    """An id as it is stored and looked up: our reference, or the supplier's own id without what gateways change at will
    (`message_ids.id_key`)."""
    return id.lower() if _REFERENCE.fullmatch(id.lower()) else message_ids.id_key(id)


def completed(receipt: Receipt, url: str) -> Receipt:
    """The receipt, with data from our reference where the supplier gave none. `url`: the address that it was sent to,
    which may contain the reference."""
    match = next((found for key in receipt.keys if (found := _REFERENCE.fullmatch(key)) is not None), None)
    match = match or _IN_ADDRESS.search(url)
    if match is None:
        return receipt
    return msgspec.structs.replace(receipt, recipient=receipt.recipient or match[2], reference=int(match[1], 16))
