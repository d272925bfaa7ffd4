"""A long test message: of which of its parts receipts came, whether a handset joined them, and the settings that follow
from both. Pure.

The rule nobody may break: nothing is said of receipts before all that were waited for came, or were waited for in vain;
and what is set is what is computed here from what was kept, never what a form says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from heliograph.sms.management.following import Followed
from heliograph.suppliers import kinds

#: Three parts of 153 characters, to the last one: whoever reads it sees which numbers are missing, or out of order.
TEXT = "Heliograph: " + "".join(f"{n:03d} " for n in range(1, 112)) + "END"
#: Ways of joining parts, each with the one to try after it.
NEXT: Mapping[str, str] = {"udh8": "sar", "sar": "udh16", "udh16": "payload", "payload": "udh8"}

Seen = Literal["", "each", "whole", "summary", "first", "last", "some", "same", "failed"]


class Reported(msgspec.Struct, frozen=True):
    """What its receipts were of, with the setting of `parts` that fits them; empty: the present one does."""

    #: "whole": it has one id and one receipt; "summary": one receipt counts all parts; "same": all parts have one id;
    #: "failed": it did not arrive, so nothing follows. Empty: nothing is known.
    seen: Seen
    parts: str = ""
    #: Of how many parts, of how many.
    heard: int = 0
    of: int = 0


def reported(found: Followed, parts: str) -> Reported:
    """What came of it. `parts`: the setting that is in force, of whose receipts decide."""
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
    """The way of joining parts to try next; empty: they were joined, or it is the supplier that cuts texts."""
    if kind != kinds.SMPP or arrived not in ("apart", "cut"):
        return ""
    return NEXT[settings.get("long_messages", "udh8")]
