"""Infobip: SMS API v3 (POST /sms/3/messages), delivery reports and incoming messages as JSON lists.

Our reference is the message's id, so a receipt can be matched even before the answer; a message sent twice is refused
as a duplicate. Callbacks may carry a password in HTTP authentication (RFC 7617), set in Infobip's profiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from heliograph.suppliers.contract import Outcome, ReceiptState
from heliograph.suppliers.http.kind import (
    JSON,
    SECRET,
    Answer,
    Batch,
    BatchSettings,
    HttpKind,
    Message,
    Request,
    Secrets,
    alone,
    by_password,
    listed,
    text_of,
    value_at,
)
from heliograph.suppliers.http.reading import MessagePlaces, ReceiptPlaces, json_list, messages_from, receipts_from
from heliograph.suppliers.http.rulings import Ruling, by_status, each, outcome, ruling_of

#: By the id of a status.
RULINGS: Mapping[Any, Ruling] = {
    **dict.fromkeys((3, 7, 26), Ruling.ACCEPTED),
    **dict.fromkeys((12, 17), Ruling.NO_CREDIT),
    **dict.fromkeys((11, 13), Ruling.BAD_SENDER),
    **dict.fromkeys((10, 14), Ruling.BLOCKED),
    **dict.fromkeys((6, 8, 18, 19, 51, 52, 25), Ruling.REFUSED),
    **dict.fromkeys((20, 21), Ruling.LATER),
    23: Ruling.ACCEPTED,  # duplicate id: our own earlier attempt, whose answer was lost
}
#: By the group, for ids not listed above.
GROUPS: Mapping[Any, Ruling] = {
    **dict.fromkeys((1, 3), Ruling.ACCEPTED),
    **dict.fromkeys((2, 4, 5), Ruling.ELSEWHERE),
}
STATES = {"2": ReceiptState.PENDING, "5": ReceiptState.DELIVERED, "29": ReceiptState.UNKNOWN}
GROUP_STATES = {
    "1": ReceiptState.PENDING,
    "2": ReceiptState.UNDELIVERED,
    "3": ReceiptState.DELIVERED,
    "4": ReceiptState.EXPIRED,
    "5": ReceiptState.REJECTED,
}
RECEIPT = ReceiptPlaces(
    keys=("messageId",),
    state=("status", "id"),
    word=("status", "name"),
    recipient="to",
    sender="from",
    error=("error", "id"),
    network="mccMnc",
)
MESSAGE = MessagePlaces(sender="from", recipient="to", text="text", key="messageId")


class Settings(BatchSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Infobip."""

    base_url: Annotated[str, "The account's own address, such as https://x1y2z3.api.infobip.com"]
    callback_user: Annotated[str, "User name that callbacks carry; empty: they carry none"] = ""


def request_several(settings: Settings, secrets: Secrets, messages: Sequence[Message]) -> Request:
    """Each message has its own id, address for reports and validity."""
    headers = {"Authorization": f"App {secrets[SECRET]}", "Content-Type": JSON, "Accept": JSON}
    body = msgspec.json.encode({"messages": [_written(message) for message in messages]})
    return Request(f"{settings.base_url}/sms/3/messages", body, headers)


def _written(message: Message) -> dict[str, Any]:
    one: dict[str, Any] = {
        "sender": message.sender.removeprefix("+"),
        "destinations": [{"to": message.to, "messageId": message.reference}],
        "content": {"text": message.text},
    }
    if message.callback:
        one["webhooks"] = {
            "delivery": {"url": message.callback, "intermediateReport": False},
            "contentType": JSON,
            "callbackData": message.reference,
        }
    if message.validity_seconds is not None:
        minutes = max(1, message.validity_seconds // 60)
        one["options"] = {"validityPeriod": {"amount": minutes, "timeUnit": "MINUTES"}}
    return one


def answer(settings: Settings, message: Message, answer: Answer) -> Outcome:
    """200 with a status for the message; errors of the whole request in `requestError` or only in the HTTP status."""
    one = value_at(answer.json, "messages", 0)
    if answer.status != 200 or one is None:
        words = text_of(value_at(answer.json, "requestError", "serviceException", "text"))
        return by_status(answer, detail=words or text_of(value_at(answer.json, "description")))
    return _meaning(answer, one)


def answer_several(settings: Settings, messages: Sequence[Message], answer_: Answer) -> list[Outcome]:
    """By the ids, which are ours; an error of the request as a whole applies to each message."""
    items = listed(answer_.json, "messages") if answer_.status == 200 else []
    return each(
        messages,
        {text_of(value_at(one, "messageId")): one for one in items},
        known_by=lambda message: message.reference,
        meaning=lambda one: _meaning(answer_, one),
        otherwise=lambda message: answer(settings, message, answer_),
    )


def _meaning(answer: Answer, one: Any) -> Outcome:
    status, id = value_at(one, "status"), text_of(value_at(one, "messageId"))
    number, group, name = value_at(status, "id"), value_at(status, "groupId"), text_of(value_at(status, "name"))
    ruling = ruling_of(RULINGS, number) or ruling_of(GROUPS, group) or Ruling.UNKNOWN
    return outcome(ruling, id=id, code=text_of(number), detail=name, retry_after=answer.retry_after)


def _state(one: Any) -> ReceiptState | None:
    status = value_at(one, "status")
    return STATES.get(text_of(value_at(status, "id"))) or GROUP_STATES.get(text_of(value_at(status, "groupId")))


KIND = HttpKind(
    name="infobip",
    title="Infobip",
    settings=Settings,
    secrets={SECRET: "API key", "callback_password": "Password that callbacks carry"},
    request=alone(request_several),
    answer=answer,
    receipts=receipts_from(json_list("results"), RECEIPT, _state),
    inbound=messages_from(json_list("results"), MESSAGE),
    is_genuine=by_password,
    batch=Batch(request=request_several, answer=answer_several),
    recipient_errors=frozenset(("1", "5", "6", "9", "11", "12", "13", "27", "31")),
)
