"""Africa's Talking: bulk SMS (POST /version1/messaging), delivery reports and incoming messages as forms.

Its codes stand in the answer's body; HTTP says nothing of a message. It takes no reference of ours and signs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from heliograph.suppliers.contract import Inbound, Outcome, Receipt, ReceiptState
from heliograph.suppliers.http.kind import (
    FORM,
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
    form,
    inbound_of,
    listed,
    text_of,
)
from heliograph.suppliers.http.rulings import Ruling, by_status, outcome, ruled, state_of
from heliograph.suppliers.settings import demand

RULINGS = {
    100: Ruling.ACCEPTED,
    101: Ruling.ACCEPTED,
    102: Ruling.ACCEPTED,
    401: Ruling.LATER,  # held for a look at its risk
    402: Ruling.BAD_SENDER,
    403: Ruling.REFUSED,
    404: Ruling.ELSEWHERE,  # a kind of number that it does not carry to
    405: Ruling.NO_CREDIT,
    406: Ruling.BLOCKED,
    407: Ruling.ELSEWHERE,  # no route
    409: Ruling.BLOCKED,
    500: Ruling.LATER,
    501: Ruling.LATER,
    502: Ruling.ELSEWHERE,
}
STATES = {
    "sent": ReceiptState.PENDING,
    "submitted": ReceiptState.PENDING,
    "buffered": ReceiptState.PENDING,
    "success": ReceiptState.DELIVERED,
    "failed": ReceiptState.UNDELIVERED,
    "rejected": ReceiptState.REJECTED,
    "expired": ReceiptState.EXPIRED,
}


#: Recipients of a request. No limit is documented.
MOST = 100


class Settings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Africa's Talking."""

    base_url: Annotated[str, "Where the API is; the sandbox: https://api.sandbox.africastalking.com"] = (
        "https://api.africastalking.com"
    )
    username: Annotated[str, "Name of the application; of the sandbox: sandbox"]
    shared_sender: Annotated[str, "Sender ID for which the account's shared sender is used; empty: none"] = ""

    batch: Annotated[
        int, "Messages of the same text and sender per request; if its answer is lost, all of them are in doubt"
    ] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(1 <= self.batch <= MOST, "batch", f"must be 1 to {MOST}")
        demand(bool(self.username), "username", "must not be empty")


def request(settings: Settings, secrets: Secrets, message: Message) -> Request:
    """One message."""
    return request_several(settings, secrets, (message,))


def request_several(settings: Settings, secrets: Secrets, messages: Sequence[Message]) -> Request:
    """Recipients of a list share a text."""
    first = messages[0]
    sender = "" if first.sender == settings.shared_sender else first.sender
    to = ",".join(f"+{message.to}" for message in messages)
    values = {"username": settings.username, "to": to, "message": first.text, "from": sender}
    headers = {"apiKey": secrets[SECRET], "Accept": JSON, "Content-Type": FORM}
    return Request(f"{settings.base_url}/version1/messaging", form(values | {"bulkSMSMode": "1"}), headers)


def answer(settings: Settings, message: Message, answer: Answer) -> Outcome:
    """By the code of the recipient; without a recipient, by the message above them."""
    said = at(answer.json, "SMSMessageData")
    one = at(said, "Recipients", 0)
    if one is None:
        words = text_of(at(said, "Message"))
        return outcome(Ruling.BAD_SENDER, code=words) if words == "InvalidSenderId" else by_status(answer, detail=words)
    id = text_of(at(one, "messageId"))
    return ruled(
        RULINGS, at(one, "statusCode"), answer, id="" if id == "None" else id, detail=text_of(at(one, "status"))
    )


def answer_several(settings: Settings, messages: Sequence[Message], answer_: Answer) -> list[Outcome]:
    """By the recipients' numbers; without any, what is said of the request is said of each message."""
    recipients = listed(answer_.json, "SMSMessageData", "Recipients")
    if not recipients:
        return [answer(settings, message, answer_) for message in messages]
    said = {text_of(at(one, "number")).removeprefix("+"): one for one in recipients}
    return [
        answer(settings, message, _alone(answer_, said[message.to]))
        if message.to in said
        else outcome(Ruling.UNKNOWN, detail="the answer does not name it")
        for message in messages
    ]


def _alone(answer: Answer, one: Any) -> Answer:
    body = msgspec.json.encode({"SMSMessageData": {"Recipients": [one]}})
    return Answer(answer.status, body, answer.retry_after)


def receipts(settings: Settings, callback: Callback) -> list[Receipt]:
    """`id`, `status`, `phoneNumber`, `networkCode`, `failureReason`."""
    fields = callback.form
    if not fields.get("id"):
        return []
    state, unknown = state_of(STATES, fields.get("status", ""))
    return [
        Receipt(
            keys=(fields["id"],),
            state=state,
            recipient=fields.get("phoneNumber", "").removeprefix("+"),
            sender="",
            raw=callback.body,
            error=fields.get("failureReason", "")[:64],
            unknown_word=unknown,
            network=fields.get("networkCode", ""),
        )
    ]


def inbound(settings: Settings, callback: Callback) -> list[Inbound]:
    """`from`, `to`, `text`, `id`."""
    fields = callback.form
    if not fields.get("from") or "text" not in fields:
        return []
    return [
        inbound_of(
            sender=fields["from"],
            recipient=fields.get("to", ""),
            text=fields["text"],
            raw=callback.body,
            key=fields.get("id", ""),
        )
    ]


KIND = HttpKind(
    name="africastalking",
    title="Africa's Talking",
    settings=Settings,
    request=request,
    answer=answer,
    receipts=receipts,
    inbound=inbound,
    batch=Batch(
        request=request_several, answer=answer_several, alike=lambda submission: (submission.sender, submission.text)
    ),
)
