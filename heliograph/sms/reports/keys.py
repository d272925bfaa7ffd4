"""Keys for matching receipts to messages: the supplier's id, address suffixes, a fingerprint.

A supplier's id is stored in the attempt that got it (`attempts.supplier_message_id`) or, for a message of several
parts, in one row of `sms_parts` per part. The rule nobody may break: every id that is compared has been normalized by
the same function, or stored ones would not be found.
"""

from __future__ import annotations

import hashlib
from datetime import date, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from heliograph.base.database.text import storable
from heliograph.base.ids import uuid7_floor, uuid_of
from heliograph.suppliers.contract import Receipt

#: Number of digits of an address that are compared: national and international forms have them in common, except in
#: small countries, whose national numbers are shorter.
SUFFIX = 8
#: Fewest digits of a national number that are compared.
SHORTEST = 5
#: By the length of a shorter national number, the digits that may precede it among the last SUFFIX of an international
#: one: the end of the calling code or, before seven, a 0 of the number itself. Those of countries whose mobile numbers
#: are that short; a test compares them with phonenumbers.
PRECEDING = {
    7: tuple("0123456789"),
    6: ("08", "27", "58", "72", "76", "81", "87", "88", "90", "98", "99"),
    5: ("27", "247", "290", "500", "677", "682", "690"),
}
#: Receipts arrive at most this long after the answer; networks send none after a week.
LATEST = timedelta(days=10)
#: Attempts are partitioned by their message's age: if a message was accepted longer than this before its answer, its id
#: is kept in `sms_parts`, so that receipts are searched for only among the attempts of a few days.
RECENT = timedelta(days=2)
#: The same in milliseconds.
_RECENT = RECENT.total_seconds() * 1000


class ReceivedReceipt(msgspec.Struct, frozen=True, gc=False):
    """A receipt and the account that it came from."""

    supplier_id: UUID
    receipt: Receipt
    #: When it arrived; None: now.
    at: datetime | None = None
    #: Its fingerprint if it is already in `receipts`; None: it has just come from the supplier.
    fingerprint: UUID | None = None


class PartId(NamedTuple):
    """The id that a supplier assigned to one part of a message."""

    supplier_id: UUID
    id_key: str
    message_id: UUID
    #: The first attempt of its series.
    attempt: int
    part: int
    parts: int
    organization_id: UUID
    recipient_suffix: str

    def is_in_attempt(self, answered_at: datetime) -> bool:
        """True if it is stored in the attempt's own row; otherwise it is in `sms_parts`."""
        made = self.message_id.int >> 80  # as `ids.time_of`, without the objects
        return self.parts == 1 and answered_at.timestamp() * 1000 - made < _RECENT


def suffix(address: str) -> str:
    """The part of an address that is compared: its last SUFFIX characters, without zeros in front of the number."""
    return address.lstrip("0")[-SUFFIX:]


def suffix_of(column: str) -> str:
    """`suffix` in SQL."""
    return f"right(ltrim({column}, '0'), {SUFFIX})"


def same_end(stored: str, given: str) -> str:
    """An SQL condition on two suffixes: the number of `stored`, in international form, ends with `given`, which is
    shorter if a supplier writes a short national number."""
    return f"right({stored}, greatest(length({given}), {SHORTEST})) = {given}"


def is_same(number: str, given: str) -> bool:
    """`same_end` of a number in international form and an address as given by a supplier."""
    end = suffix(given)
    return len(end) >= SHORTEST and suffix(number).endswith(end)


def weak_key(recipient: str) -> str:
    """Replaces the id of a submit that was accepted without one. `recipient`: in international form."""
    return f"to:{suffix(recipient)}"


def weak_keys(address: str) -> list[str]:
    """The values of `weak_key` for the numbers that an address in a receipt may stand for: several if it is short."""
    end = suffix(address)
    return [f"to:{before}{end}" for before in ("", *PRECEDING.get(len(end), ()))]


def id_of(supplier_message_id: str | None, recipient: str) -> str:
    """The id under which the answer to a submit is stored."""
    return storable(supplier_message_id or "") or weak_key(recipient)


def id_bounds(at: datetime) -> tuple[UUID, UUID, date, date]:
    """Where ids that a receipt of `at` may name are stored: the bounds of message ids in `attempts`, and of days in
    `sms_parts`. The upper bounds lie in the future, in case another clock is ahead."""
    ahead = timedelta(days=1)
    return uuid7_floor(at - LATEST - RECENT), uuid7_floor(at + ahead), (at - LATEST).date(), (at + 2 * ahead).date()


def ids(receipt: Receipt) -> tuple[str | None, str | None]:
    """The ids that a receipt names, most trusted first."""
    keys = receipt.keys
    return storable(keys[0]) if keys else None, storable(keys[1]) if len(keys) > 1 else None


def fingerprint(one: ReceivedReceipt, at: datetime) -> UUID:
    """A receipt's fingerprint: a repeated receipt has the same one; the day distinguishes recycled ids."""
    if one.fingerprint is not None:
        return one.fingerprint
    receipt = one.receipt
    text = "|".join([storable(receipt.recipient), receipt.state, *map(storable, receipt.keys[:2]), ""])
    day = at.toordinal().to_bytes(4, "big")
    digest = hashlib.blake2b(one.supplier_id.bytes + day + text.encode() + receipt.raw, digest_size=16)
    return uuid_of(digest.digest())
