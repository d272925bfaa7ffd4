"""A long test message: which parts got receipts, whether a handset joined them, and the settings that follow from both.
Pure.

The rule nobody may break: no conclusion is drawn before all receipts have arrived, or the wait for them is over; and
the settings applied are those computed here from stored results, never those submitted in a form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from heliograph.sms.management.following import Followed
from heliograph.suppliers import kinds

#: Three parts of 153 characters, completely filled: a reader can see which numbers are missing or out of order.
TEXT = "Heliograph: " + "".join(f"{n:03d} " for n in range(1, 112)) + "END"
#: Ways of joining parts, each with the one to try after it.
NEXT: Mapping[str, str] = {"udh8": "sar", "sar": "udh16", "udh16": "payload", "payload": "udh8"}

Seen = Literal["", "each", "whole", "summary", "first", "last", "some", "same", "failed"]


class Reported(msgspec.Struct, frozen=True):
    """What its receipts refer to, with the setting of `parts` that fits; empty: the current one does."""

    #: "whole": it has one id and one receipt; "summary": one receipt counts all parts; "same": all parts have one id;
    #: "failed": it did not arrive, so nothing follows. Empty: unknown.
    seen: Seen
    parts: str = ""
    #: Number of parts with receipts, and of all parts.
    heard: int = 0
    of: int = 0


def reported(found: Followed, parts: str) -> Reported:
    """What its receipts show. `parts`: the current setting, which says which parts' receipts decide."""
    ids = found.ids
    final = [one for one in found.receipts if one.is_final]
    named = {number for number, id in enumerate(ids, 1) for one in final if id in one.ids}
    count = Reported("", heard=len(named), of=found.parts)
    if found.phase != "done" or not named or len(ids) < found.parts:
        return count
    if any(one.state != "delivered" for one in final):
        return msgspec.structs.replace(count, seen="failed")
    if found.parts == 1:
        return msgspec.structs.replace(count, seen="whole")
    if any(one.counted == found.parts for one in final):
        return msgspec.structs.replace(count, seen="summary")
    seen, wanted = _policy(len(set(ids)), named, found.parts)
    return msgspec.structs.replace(count, seen=seen, parts="" if wanted == parts else wanted)


def _policy(ids: int, named: set[int], parts: int) -> tuple[Seen, str]:
    if ids < parts:
        return "same", "any"
    if len(named) == parts:
        return "each", "all"
    if named == {1}:
        return "first", "first"
    return ("last", "last") if named == {parts} else ("some", "any")


def joining(kind: str, settings: Mapping[str, Any], arrived: str) -> str:
    """The way of joining parts to try next; empty: they were joined, or the supplier splits texts itself."""
    if kind != kinds.SMPP or arrived not in ("apart", "cut"):
        return ""
    return NEXT[settings.get("long_messages", "udh8")]
