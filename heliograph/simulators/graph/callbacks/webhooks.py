"""The bytes of a callback: updates grouped into an envelope, escaped as Meta does, signed.

Pure: no clock and no socket. The rule nobody may break: the signature is made over the very bytes that are sent, which
are ASCII: every other character is a lower-case `\\uXXXX`, and a slash is `\\/`.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from heliograph.simulators.graph.options import Grouping, Signature

_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


class Item(msgspec.Struct, gc=False):
    """One update on its way. `kind` is the list in `value` that it belongs to (statuses, messages, errors), or empty
    for everything that does not concern a message: then `payload` is the whole value."""

    account: str
    field: str
    kind: str
    payload: Any
    #: `value.metadata` for an update about a message.
    metadata: dict[str, str] | None = None
    contact: dict[str, Any] | None = None
    #: Unix time of the event, for fields that have one.
    time: int = 0
    #: When it was first tried, on the simulator's clock; 0 if never.
    first: float = 0.0
    attempts: int = 0
    #: When it was put into the outbox, in real seconds (`time.monotonic`).
    put_at: float = 0.0
    #: Called once, when its first callback has finished.
    ended: Any = None


def envelope(items: Sequence[Item], grouping: Grouping, chance: random.Random) -> dict[str, Any]:
    """One body for these updates. `joined` groups those of a number into one value, as far as the format allows."""
    entries: list[dict[str, Any]] = []
    by_account: dict[tuple[str, int], dict[str, Any]] = {}
    values: dict[tuple[str, str, str], dict[str, Any]] = {}
    known: dict[tuple[str, str, str], set[str]] = {}
    for item in items:
        alone = grouping == "single" or (grouping == "mixed" and chance.random() < 0.5)
        place = (item.account, item.time if not item.kind else 0)
        entry = by_account.get(place)
        if entry is None or (grouping == "mixed" and alone and chance.random() < 0.5):
            entry = by_account[place] = {"id": item.account, "changes": []}
            if not item.kind:
                entry["time"] = item.time
            entries.append(entry)
        if not item.kind or item.metadata is None:
            value = {item.kind: [item.payload]} if item.kind else item.payload
            entry["changes"].append({"value": value, "field": item.field})
            continue
        key = (item.account, item.metadata["phone_number_id"], item.kind)
        value = values.get(key)
        if value is None or alone:
            value = {"messaging_product": "whatsapp", "metadata": item.metadata}
            entry["changes"].append({"value": value, "field": item.field})
            values[key], known[key] = value, set()
        contact = item.contact
        if contact is not None:
            who = contact.get("user_id") or contact.get("wa_id", "")
            if who not in known[key]:
                known[key].add(who)
                value.setdefault("contacts", []).append(contact)
        value.setdefault(item.kind, []).append(item.payload)
    return {"object": "whatsapp_business_account", "entry": entries}


def encode(body: Any) -> bytes:
    """JSON as Meta writes it: ASCII only, slashes escaped."""
    raw = msgspec.json.encode(body)
    if not raw.isascii():
        raw = _BEYOND_ASCII.sub(_escaped, raw.decode()).encode("ascii")
    # JSON has no slash outside of strings, and the encoder never writes an escaped one.
    return raw.replace(b"/", b"\\/")


def sign(body: bytes, secret: str, how: Signature = "good") -> tuple[bytes, dict[str, str]]:
    """The bytes to send (changed only by `tampered`) and the headers that sign them."""
    key = (secret + "x").encode() if how == "wrong_secret" else secret.encode()
    digest = hmac.new(key, body, hashlib.sha256).hexdigest()
    # A decoy, as in real traffic: checking this header is a mistake.
    headers = {"X-Hub-Signature": "sha1=" + hmac.new(key, body, hashlib.sha1).hexdigest()}
    if how == "upper":
        digest = digest.upper()
    elif how == "truncated":
        digest = digest[:40]
    if how == "unprefixed":
        headers["X-Hub-Signature-256"] = digest
    elif how != "missing":
        headers["X-Hub-Signature-256"] = "sha256=" + digest
    if how == "tampered":
        at = len(body) // 2
        body = body[:at] + bytes((body[at] ^ 1,)) + body[at + 1 :]
    return body, headers


def _escaped(found: re.Match[str]) -> str:
    point = ord(found[0])
    if point < 0x10000:
        return f"\\u{point:04x}"
    point -= 0x10000
    return f"\\u{0xD800 | point >> 10:04x}\\u{0xDC00 | point & 0x3FF:04x}"
