"""Number bases of message ids: which other settings would make an account's receipts match its answers? Pure.

A supplier may write an id in hex in submit_sm_resp and in decimal in the receipt. The rule nobody may break: this only
advises. Nothing is matched by a guess, since decimal 10 is not hexadecimal 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from heliograph.suppliers.message_ids import Base, id_key

#: Setting → base.
Way = dict[str, Base]

_BASES: tuple[Base, ...] = ("text", "hex", "dec")


def ways(settings: Mapping[str, Any]) -> list[Way]:
    """All combinations, the current one first, then by number of changes."""
    now: dict[str, Base] = {name: settings.get(name) or "text" for name in ("resp_id_base", "dlr_id_base")}
    if settings.get("tlv_id_base"):  # otherwise it follows the text's
        now["tlv_id_base"] = settings["tlv_id_base"]
    every = [dict(zip(now, bases, strict=True)) for bases in product(_BASES, repeat=len(now))]
    return sorted(every, key=lambda way: sum(way[name] != now[name] for name in now))


def stored(keys: Sequence[str], now: Way, way: Way) -> list[str]:
    """Keys of answers that a receipt with these keys would match if the settings were `way`; all keys are as under
    `now`."""
    found = []
    for place, key in enumerate(keys):
        base = "tlv_id_base" if "tlv_id_base" in now and len(keys) == 2 and place == 0 else "dlr_id_base"
        named = id_key(_written(key, now[base]), way[base])
        if way["resp_id_base"] == "text" or (named.isascii() and named.isdigit()):
            found.append(id_key(_written(named, way["resp_id_base"]), now["resp_id_base"]))
    return found


def _written(key: str, base: Base) -> str:
    """An id as written, except for leading zeros and capitals, from its key."""
    return f"{int(key):x}" if base == "hex" and key.isascii() and key.isdigit() else key
