"""Vonage: SMS API (POST /sms/json), delivery receipts and incoming messages as signed forms, queries or JSON.

HTTP is always 200; a status stands at each part of a long text. In receipts `msisdn` is the recipient. Incoming parts
come one by one, and are joined by us.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Annotated, Literal

from heliograph.suppliers.contract import Inbound, Outcome, Receipt, ReceiptState
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
    at,
    form,
    inbound_of,
    listed,
    text_of,
)
from heliograph.suppliers.http.rulings import Ruling, by_status, outcome, ruled, state_of
from heliograph.suppliers.settings import demand

RULINGS = {
    "0": Ruling.ACCEPTED,
    **dict.fromkeys(("1", "10"), Ruling.THROTTLED),
    "5": Ruling.LATER,
    **dict.fromkeys(("2", "3", "6", "12", "22", "23"), Ruling.ELSEWHERE),
    **dict.fromkeys(("4", "8", "11", "14", "32", "29"), Ruling.CONFIG),
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
#: Milliseconds of `ttl`.
SHORTEST, LONGEST = 20_000, 604_800_000
Method = Literal["none", "md5", "sha1", "sha256", "sha512"]


class Settings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Vonage."""

    base_url: Annotated[str, "Where the API is"] = "https://rest.nexmo.com"
    api_key: Annotated[str, "API key of the account"]
    signature_method: Annotated[Method, "How callbacks are signed, as HMAC; none: they are not"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(bool(self.api_key), "api_key", "must not be empty")


def request(settings: Settings, secrets: Secrets, message: Message) -> Request:
    """One message a request."""
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
    """By the status of the first part that was not taken. Its receipts come a part each; the last part's decides."""
    parts = listed(answer.json, "messages")
    if not parts:
        return by_status(answer)
    status = [text_of(at(one, "status")) for one in parts]
    bad = next((number for number, code in enumerate(status) if code != "0"), None)
    if bad is None:
        return outcome(Ruling.ACCEPTED, id=text_of(at(parts[-1], "message-id")), code="0")
    words = text_of(at(parts[bad], "error-text"))
    if bad:
        return outcome(Ruling.UNKNOWN, code=status[bad], detail=f"part {bad + 1} of {len(parts)}: {words}")
    return ruled(RULINGS, status[0], answer, detail=words)


def receipts(settings: Settings, callback: Callback) -> list[Receipt]:
    """`messageId`, `status`, `err-code`, `msisdn`, `to`; by GET, form or JSON as the account is set."""
    fields = _fields(callback)
    if not fields.get("messageId"):
        return []
    state, unknown = state_of(STATES, fields.get("status", ""))
    code = fields.get("err-code", "")
    return [
        Receipt(
            keys=(fields["messageId"],),
            state=state,
            recipient=fields.get("msisdn", ""),
            sender=fields.get("to", ""),
            raw=callback.body or callback.url.encode(),
            error="" if code == "0" else code[:64],
            unknown_word=unknown,
            network=fields.get("network-code", ""),
        )
    ]


def inbound(settings: Settings, callback: Callback) -> list[Inbound]:
    """`msisdn` wrote to `to`; a part of a long text names its reference, number and total."""
    fields = _fields(callback)
    if not fields.get("msisdn") or "text" not in fields:
        return []
    return [
        inbound_of(
            sender=f"+{fields['msisdn']}",
            recipient=fields.get("to", ""),
            text=fields["text"],
            raw=callback.body or callback.url.encode(),
            key=fields.get("messageId", ""),
            concatenation=_place(fields),
        )
    ]


def is_genuine(settings: Settings, secrets: Secrets, callback: Callback) -> bool:
    """`sig`: HMAC over all other parameters, sorted, each as `&name=value` with `&` and `=` in values as `_`."""
    if settings.signature_method == "none":
        return True
    fields, key = _fields(callback), secrets.get("signature_secret", "")
    if not key:
        return False  # signed, and nobody can tell by whom
    given = fields.pop("sig", "").lower()
    fields.pop("ref", None)
    text = "".join(f"&{name}={value.translate(_PLAIN)}" for name, value in sorted(fields.items()))
    wanted = hmac.new(key.encode(), text.encode(), getattr(hashlib, settings.signature_method))
    return hmac.compare_digest(wanted.hexdigest().encode(), given.encode())


_PLAIN = str.maketrans("&=", "__")


def _fields(callback: Callback) -> dict[str, str]:
    said = callback.json
    if isinstance(said, dict):
        return callback.query | {name: text_of(value) for name, value in said.items()}
    return callback.fields


def _place(fields: dict[str, str]) -> tuple[int, int, int] | None:
    if fields.get("concat") != "true":
        return None
    try:
        total, number = int(fields["concat-total"]), int(fields["concat-part"])
        reference = int(fields["concat-ref"])
    except (KeyError, ValueError):
        return None
    return (reference & 0xFFFF, total, number) if 1 <= number <= total <= 255 else None


KIND = HttpKind(
    name="vonage",
    title="Vonage",
    settings=Settings,
    secrets={SECRET: "API secret", "signature_secret": "Signature secret, with which callbacks are signed"},
    request=request,
    answer=answer,
    receipts=receipts,
    inbound=inbound,
    is_genuine=is_genuine,
)
