"""Clickatell: One API (POST /v1/message), status notifications and incoming messages as JSON lists.

207 is a mixed answer; errors stand above the messages or at each. It signs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from heliograph.suppliers.contract import Inbound, Outcome, Receipt, ReceiptState
from heliograph.suppliers.http.kind import (
    JSON,
    SECRET,
    Answer,
    Callback,
    HttpKind,
    HttpSettings,
    Message,
    Request,
    Secrets,
    at,
    inbound_of,
    listed,
    text_of,
)
from heliograph.suppliers.http.rulings import Ruling, outcome, ruled

RULINGS: Mapping[Any, Ruling] = {
    **dict.fromkeys((1, 2, 3, 7, 38, 39), Ruling.CONFIG),
    **dict.fromkeys((18, 19), Ruling.LATER),
    20: Ruling.NO_CREDIT,
    **dict.fromkeys((21, 22, 23, 24, 40, 100), Ruling.ELSEWHERE),
    **dict.fromkeys((25, 27), Ruling.REFUSED),
    26: Ruling.BLOCKED,
    43: Ruling.THROTTLED,  # with HTTP 400
    **dict.fromkeys((44, 45), Ruling.BAD_SENDER),
}
STATES = {
    **dict.fromkeys((2, 3, 4), ReceiptState.PENDING),
    5: ReceiptState.DELIVERED,
    20: ReceiptState.EXPIRED,
    **dict.fromkeys((21, 22, 25, 26, 27, 28, 29, 100), ReceiptState.REJECTED),
    23: ReceiptState.UNDELIVERED,
    1: ReceiptState.UNKNOWN,
}


class Settings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Clickatell."""

    base_url: Annotated[str, "Where the API is"] = "https://platform.clickatell.com"
    with_sender: Annotated[bool, "Tell the sender: only for integrations with numbers of their own"] = False


def request(settings: Settings, secrets: Secrets, message: Message) -> Request:
    """One message a request."""
    one = {"channel": "sms", "to": message.to, "content": message.text, "clientMessageId": message.reference}
    if settings.with_sender:
        one["from"] = message.sender.removeprefix("+")
    headers = {"Authorization": secrets[SECRET], "Content-Type": JSON, "Accept": JSON}
    return Request(f"{settings.base_url}/v1/message", msgspec.json.encode({"messages": [one]}), headers)


def answer(settings: Settings, message: Message, answer: Answer) -> Outcome:
    """`messages[0].accepted`, or the error there or above it."""
    one = at(answer.json, "messages", 0)
    if at(one, "accepted") is True:
        return outcome(Ruling.ACCEPTED, id=text_of(at(one, "apiMessageId")))
    error = at(one, "error") or at(answer.json, "error")
    return ruled(RULINGS, at(error, "code"), answer, detail=text_of(at(error, "description")))


def receipts(settings: Settings, callback: Callback) -> list[Receipt]:
    """`event.messageStatusUpdate[]`."""
    found = []
    for one in listed(callback.json, "event", "messageStatusUpdate"):
        keys = tuple(key for key in (text_of(at(one, "messageId")), text_of(at(one, "clientMessageId"))) if key)
        if not keys:
            continue
        code = at(one, "statusCode")
        state = STATES.get(code)
        found.append(
            Receipt(
                keys=keys,
                state=state or ReceiptState.UNKNOWN,
                recipient=text_of(at(one, "to")).removeprefix("+"),
                sender="",
                raw=msgspec.json.encode(one),
                error="" if state in (ReceiptState.DELIVERED, ReceiptState.PENDING) else text_of(code),
                unknown_word="" if state else text_of(at(one, "status"))[:40],
            )
        )
    return found


def inbound(settings: Settings, callback: Callback) -> list[Inbound]:
    """`event.moText[]`."""
    return [
        inbound_of(
            sender=text_of(at(one, "from")),
            recipient=text_of(at(one, "to")),
            text=text_of(at(one, "content")),
            raw=msgspec.json.encode(one),
            key=text_of(at(one, "messageId")),
        )
        for one in listed(callback.json, "event", "moText")
        if at(one, "from") and at(one, "content") is not None
    ]


KIND = HttpKind(
    name="clickatell",
    title="Clickatell",
    settings=Settings,
    request=request,
    answer=answer,
    receipts=receipts,
    inbound=inbound,
)
