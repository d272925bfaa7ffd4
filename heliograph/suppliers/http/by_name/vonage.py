"""Vonage: SMS API (POST /sms/json), delivery receipts and incoming messages as signed forms, queries or JSON.

HTTP is always 200; each part of a long text has its own status. In receipts `msisdn` is the recipient. Incoming parts
arrive one by one, and we join them.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Literal

import msgspec

from heliograph.base.sentences import said
from heliograph.suppliers.contract import Outcome, Part, ReceiptState
from heliograph.suppliers.http.kind import (
    FORM,
    SECRET,
    Answer,
    Callback,
    HttpKind,
    HttpSettings,
    Message,
    Request,
    Secrets,
    form,
    is_same,
    listed,
    text_of,
    value_at,
)
from heliograph.suppliers.http.reading import MessagePlaces, ReceiptPlaces, any_fields, messages_from, receipts_from
from heliograph.suppliers.http.rulings import Ruling, by_status, outcome, ruled

RULINGS = {
    "0": Ruling.ACCEPTED,
    **dict.fromkeys(("1", "10"), Ruling.THROTTLED),
    "5": Ruling.LATER,
    **dict.fromkeys(("2", "3", "6", "12", "22", "23"), Ruling.ELSEWHERE),
    "29": Ruling.ELSEWHERE,  # a number that a demo account may not write to
    **dict.fromkeys(("4", "8", "11", "14", "32"), Ruling.CONFIG),
    **dict.fromkeys(("7", "33"), Ruling.BLOCKED),
    "9": Ruling.NO_CREDIT,
    "15": Ruling.BAD_SENDER,
}
STATES = {
    "delivered": ReceiptState.DELIVERED,
    "accepted": ReceiptState.PENDING,
    "buffered": ReceiptState.PENDING,
    "failed": ReceiptState.UNDELIVERED,
    "expired": ReceiptState.EXPIRED,
    "rejected": ReceiptState.REJECTED,
    "unknown": ReceiptState.UNKNOWN,
}
RECEIPT = ReceiptPlaces(
    keys=("messageId",), state="status", recipient="msisdn", sender="to", error="err-code", network="network-code"
)
MESSAGE = MessagePlaces(
    sender="msisdn",
    recipient="to",
    text="text",
    key="messageId",
    part=("concat-ref", "concat-total", "concat-part"),
    international=True,
)
#: Limits of `ttl`, in milliseconds.
SHORTEST, LONGEST = 20_000, 604_800_000
Method = Literal["none", "md5", "sha1", "sha256", "sha512"]


class Settings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Vonage."""

    base_url: Annotated[str, "Where the API is"] = "https://rest.nexmo.com"
    api_key: Annotated[str, "API key of the account"]
    signature_method: Annotated[Method, "How callbacks are signed, as HMAC; none: they are not"] = "none"


def request(settings: Settings, secrets: Secrets, message: Message) -> Request:
    """One message per request."""
    values = {
        "api_key": settings.api_key,
        "api_secret": secrets[SECRET],
        "from": message.sender.removeprefix("+"),
        "to": message.to,
        "text": message.text,
        "type": "text" if message.encoding == "gsm7" else "unicode",
        "client-ref": message.reference[:40],
        "callback": message.callback,
    }
    if message.validity_seconds is not None:
        values["ttl"] = str(min(max(message.validity_seconds * 1000, SHORTEST), LONGEST))
    return Request(f"{settings.base_url}/sms/json", form(values), {"Content-Type": FORM})


def answer(settings: Settings, message: Message, answer: Answer) -> Outcome:
    """By the status of the first part that was not accepted. Each part has its own id and receipt."""
    parts = listed(answer.json, "messages")
    if not parts:
        return by_status(answer)
    status = [text_of(value_at(one, "status")) for one in parts]
    bad = next((number for number, code in enumerate(status) if code != "0"), None)
    if bad is None:
        taken = outcome(Ruling.ACCEPTED, id=text_of(value_at(parts[0], "message-id")), code="0")
        ids = (text_of(value_at(one, "message-id")) or None for one in parts)
        each = tuple(Part(number, id, "0") for number, id in enumerate(ids, 1))
        return msgspec.structs.replace(taken, parts=each, total=len(parts))
    words = text_of(value_at(parts[bad], "error-text"))
    if bad:
        detail = said("part %(part)s of %(parts)s: %(why)s", part=bad + 1, parts=len(parts), why=words)
        return outcome(Ruling.UNKNOWN, code=status[bad], detail=detail)
    return ruled(RULINGS, status[0], answer, detail=words)


def is_genuine(settings: Settings, secrets: Secrets, callback: Callback) -> bool:
    """`sig`: HMAC over all other parameters, sorted, each as `&name=value`, with `_` for `&` and `=` in values."""
    if settings.signature_method == "none":
        return True
    fields, key = callback.fields, secrets.get("signature_secret", "")
    if not key:
        return False  # signed, but there is no key to verify it with
    given = fields.pop("sig", "").lower()
    fields.pop("ref", None)
    text = "".join(f"&{name}={value.translate(_PLAIN)}" for name, value in sorted(fields.items()))
    wanted = hmac.digest(key.encode(), text.encode(), getattr(hashlib, settings.signature_method))
    return is_same(given, wanted.hex())


_PLAIN = str.maketrans("&=", "__")


KIND = HttpKind(
    name="vonage",
    title="Vonage",
    settings=Settings,
    secrets={SECRET: "API secret", "signature_secret": "Signature secret, with which callbacks are signed"},
    request=request,
    answer=answer,
    receipts=receipts_from(any_fields, RECEIPT, STATES),
    inbound=messages_from(any_fields, MESSAGE),
    is_genuine=is_genuine,
    recipient_errors=frozenset(("2", "3", "4", "7", "9", "13")),
)
