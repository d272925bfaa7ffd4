"""Clickatell: One API (POST /v1/message), status notifications and incoming messages as JSON lists.

207 is a mixed answer; errors appear above the messages or in each. It signs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from heliograph.suppliers.contract import Outcome, ReceiptState
from heliograph.suppliers.http.kind import (
    JSON,
    SECRET,
    Answer,
    HttpKind,
    HttpSettings,
    Message,
    Request,
    Secrets,
    text_of,
    value_at,
)
from heliograph.suppliers.http.reading import MessagePlaces, ReceiptPlaces, json_list, messages_from, receipts_from
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
    **dict.fromkeys(("2", "3", "4"), ReceiptState.PENDING),
    "5": ReceiptState.DELIVERED,
    "20": ReceiptState.EXPIRED,
    **dict.fromkeys(("21", "22", "25", "26", "27", "28", "29", "100"), ReceiptState.REJECTED),
    "23": ReceiptState.UNDELIVERED,
    "1": ReceiptState.UNKNOWN,
}
RECEIPT = ReceiptPlaces(
    keys=("messageId", "clientMessageId"), state="statusCode", word="status", recipient="to", error="statusCode"
)
MESSAGE = MessagePlaces(sender="from", recipient="to", text="content", key="messageId")


class Settings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Clickatell."""

    base_url: Annotated[str, "Where the API is"] = "https://platform.clickatell.com"
    with_sender: Annotated[bool, "Send the sender: only for integrations with their own numbers"] = False


def request(settings: Settings, secrets: Secrets, message: Message) -> Request:
    """One message per request."""
    one = {"channel": "sms", "to": message.to, "content": message.text, "clientMessageId": message.reference}
    if settings.with_sender:
        one["from"] = message.sender.removeprefix("+")
    headers = {"Authorization": secrets[SECRET], "Content-Type": JSON, "Accept": JSON}
    return Request(f"{settings.base_url}/v1/message", msgspec.json.encode({"messages": [one]}), headers)


def answer(settings: Settings, message: Message, answer: Answer) -> Outcome:
    """`messages[0].accepted`, or the error there or above it."""
    one = value_at(answer.json, "messages", 0)
    if value_at(one, "accepted") is True:
        return outcome(Ruling.ACCEPTED, id=text_of(value_at(one, "apiMessageId")))
    error = value_at(one, "error") or value_at(answer.json, "error")
    return ruled(RULINGS, value_at(error, "code"), answer, detail=text_of(value_at(error, "description")))


KIND = HttpKind(
    name="clickatell",
    title="Clickatell",
    settings=Settings,
    request=request,
    answer=answer,
    receipts=receipts_from(json_list("event", "messageStatusUpdate"), RECEIPT, STATES),
    inbound=messages_from(json_list("event", "moText"), MESSAGE),
)
