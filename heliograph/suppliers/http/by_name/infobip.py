"""Infobip: SMS API v3 (POST /sms/3/messages), delivery reports and incoming messages as JSON lists.

A message has our reference as its id, so a receipt is known before the answer is; sent twice, it is refused as a
duplicate. Callbacks may carry a password of HTTP authentication (RFC 7617), which Infobip's profiles set.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from heliograph.suppliers.contract import Inbound, Outcome, Receipt, ReceiptState
from heliograph.suppliers.http.kind import (
    JSON,
    SECRET,
    Answer,
    Batch,
    Callback,
    HttpKind,
    HttpSettings,
    Message,
    Request,
    Secrets,
    at,
    basic,
    inbound_of,
    listed,
    text_of,
)
from heliograph.suppliers.http.rulings import Ruling, by_status, outcome, ruled
from heliograph.suppliers.settings import demand

#: By the id of a status.
RULINGS: Mapping[Any, Ruling] = {
    **dict.fromkeys((3, 7, 26), Ruling.ACCEPTED),
    **dict.fromkeys((12, 17), Ruling.NO_CREDIT),
    **dict.fromkeys((11, 13), Ruling.BAD_SENDER),
    **dict.fromkeys((10, 14), Ruling.BLOCKED),
    **dict.fromkeys((6, 8, 18, 19, 51, 52, 25), Ruling.REFUSED),
    **dict.fromkeys((20, 21), Ruling.LATER),
    23: Ruling.ACCEPTED,  # it has this id already: of our own attempt, whose answer was lost
}
#: By the group where the id is none of these.
GROUPS: Mapping[Any, Ruling] = {1: Ruling.ACCEPTED, 3: Ruling.ACCEPTED, 2: Ruling.ELSEWHERE, 4: Ruling.ELSEWHERE}
STATES = {2: ReceiptState.PENDING, 5: ReceiptState.DELIVERED, 29: ReceiptState.UNKNOWN}
GROUP_STATES = {
    1: ReceiptState.PENDING,
    2: ReceiptState.UNDELIVERED,
    3: ReceiptState.DELIVERED,
    4: ReceiptState.EXPIRED,
    5: ReceiptState.REJECTED,
}


#: Messages of a request. None is documented; a hundred are as many as a callback reports on.
MOST = 100


class Settings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Infobip."""

    base_url: Annotated[str, "The account's own address, such as https://x1y2z3.api.infobip.com"]
    callback_user: Annotated[str, "User name that callbacks carry; empty: they carry none"] = ""
    batch: Annotated[int, "Messages per request; if its answer is lost, all of them are in doubt"] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(1 <= self.batch <= MOST, "batch", f"must be 1 to {MOST}")
        demand(bool(self.base_url), "base_url", "must not be empty")


def request(settings: Settings, secrets: Secrets, message: Message) -> Request:
    """One message."""
    return request_several(settings, secrets, (message,))


def request_several(settings: Settings, secrets: Secrets, messages: Sequence[Message]) -> Request:
    """Each message with an id, a receiver of reports and a validity of its own."""
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
    """200 with a status for the message; errors of the request as a whole in `requestError` or by HTTP alone."""
    one = at(answer.json, "messages", 0)
    if answer.status != 200 or one is None:
        words = text_of(at(answer.json, "requestError", "serviceException", "text"))
        return by_status(answer, detail=words or text_of(at(answer.json, "description")))
    status, id = at(one, "status"), text_of(at(one, "messageId"))
    number, name = at(status, "id"), text_of(at(status, "name"))
    if number in RULINGS:
        return ruled(RULINGS, number, answer, id=id, detail=name)
    ruling = GROUPS.get(at(status, "groupId"), Ruling.ELSEWHERE if at(status, "groupId") == 5 else Ruling.UNKNOWN)
    return outcome(ruling, id=id, code=text_of(number), detail=name)


def answer_several(settings: Settings, messages: Sequence[Message], answer_: Answer) -> list[Outcome]:
    """By the ids, which are ours; an error of the request as a whole is that of each message."""
    if answer_.status != 200:
        return [answer(settings, message, answer_) for message in messages]
    said = {text_of(at(one, "messageId")): one for one in listed(answer_.json, "messages")}
    return [
        answer(settings, message, Answer(200, msgspec.json.encode({"messages": [said[message.reference]]})))
        if message.reference in said
        else outcome(Ruling.UNKNOWN, detail="the answer does not name it")
        for message in messages
    ]


def receipts(settings: Settings, callback: Callback) -> list[Receipt]:
    """`results[]`, up to a hundred of them."""
    found = []
    for one in listed(callback.json, "results"):
        id = text_of(at(one, "messageId"))
        if not id:
            continue
        number, group = at(one, "status", "id"), at(one, "status", "groupId")
        state = STATES.get(number) or GROUP_STATES.get(group)
        found.append(
            Receipt(
                keys=(id,),
                state=state or ReceiptState.UNKNOWN,
                recipient=text_of(at(one, "to")),
                sender=text_of(at(one, "from")),
                raw=msgspec.json.encode(one),
                error=text_of(at(one, "error", "id"))[:64],
                unknown_word="" if state else text_of(at(one, "status", "name"))[:40],
                network=text_of(at(one, "mccMnc")),
            )
        )
    return found


def inbound(settings: Settings, callback: Callback) -> list[Inbound]:
    """`results[]` of whole messages."""
    return [
        inbound_of(
            sender=text_of(at(one, "from")),
            recipient=text_of(at(one, "to")),
            text=text_of(at(one, "text")),
            raw=msgspec.json.encode(one),
            key=text_of(at(one, "messageId")),
        )
        for one in listed(callback.json, "results")
        if at(one, "from") and at(one, "text") is not None
    ]


def is_genuine(settings: Settings, secrets: Secrets, callback: Callback) -> bool:
    """By user name and password, where they were set."""
    wanted = basic(settings.callback_user, secrets.get("callback_password", ""))
    return not settings.callback_user or hmac.compare_digest(
        callback.headers.get("authorization", "").encode(), wanted.encode()
    )


KIND = HttpKind(
    name="infobip",
    title="Infobip",
    settings=Settings,
    secrets={SECRET: "API key", "callback_password": "Password that callbacks carry"},
    request=request,
    answer=answer,
    receipts=receipts,
    inbound=inbound,
    is_genuine=is_genuine,
    batch=Batch(request=request_several, answer=answer_several),
)
