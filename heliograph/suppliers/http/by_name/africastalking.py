"""Africa's Talking: bulk SMS (POST /version1/messaging), delivery reports and incoming messages as forms.

Its codes are in the answer's body; the HTTP status says nothing about a message. It takes no reference, signs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from heliograph.suppliers.contract import Outcome, ReceiptState
from heliograph.suppliers.http.kind import (
    FORM,
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
    form,
    listed,
    text_of,
    value_at,
)
from heliograph.suppliers.http.reading import MessagePlaces, ReceiptPlaces, form_body, messages_from, receipts_from
from heliograph.suppliers.http.rulings import Ruling, by_status, each, outcome, ruled

RULINGS = {
    100: Ruling.ACCEPTED,
    101: Ruling.ACCEPTED,
    102: Ruling.ACCEPTED,
    401: Ruling.LATER,  # held for risk assessment
    402: Ruling.BAD_SENDER,
    403: Ruling.REFUSED,
    404: Ruling.ELSEWHERE,  # a type of number that it does not serve
    405: Ruling.NO_CREDIT,
    406: Ruling.OPTED_OUT,
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
RECEIPT = ReceiptPlaces(
    keys=("id",), state="status", recipient="phoneNumber", error="failureReason", network="networkCode"
)
MESSAGE = MessagePlaces(sender="from", recipient="to", text="text", key="id")


class Settings(BatchSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Africa's Talking. All messages of a request have the same text and sender."""

    base_url: Annotated[str, "Where the API is; the sandbox: https://api.sandbox.africastalking.com"] = (
        "https://api.africastalking.com"
    )
    username: Annotated[str, "Name of the application; of the sandbox: sandbox"]
    shared_sender: Annotated[str, "Sender ID for which the account's shared sender is used; empty: none"] = ""


def request_several(settings: Settings, secrets: Secrets, messages: Sequence[Message]) -> Request:
    """A list of recipients shares one text."""
    first = messages[0]
    sender = "" if first.sender == settings.shared_sender else first.sender
    to = ",".join(f"+{message.to}" for message in messages)
    values = {"username": settings.username, "to": to, "message": first.text, "from": sender}
    headers = {"apiKey": secrets[SECRET], "Accept": JSON, "Content-Type": FORM}
    return Request(f"{settings.base_url}/version1/messaging", form(values | {"bulkSMSMode": "1"}), headers)


def answer(settings: Settings, message: Message, answer: Answer) -> Outcome:
    """By the recipient's code; without a recipient, by the message above the list."""
    said = value_at(answer.json, "SMSMessageData")
    one = value_at(said, "Recipients", 0)
    if one is not None:
        return _meaning(answer, one)
    words = text_of(value_at(said, "Message"))
    return outcome(Ruling.BAD_SENDER, code=words) if words == "InvalidSenderId" else by_status(answer, detail=words)


def answer_several(settings: Settings, messages: Sequence[Message], answer_: Answer) -> list[Outcome]:
    """By the recipients' numbers; without any, the error of the request applies to each message."""
    recipients = listed(answer_.json, "SMSMessageData", "Recipients")
    said = {text_of(value_at(one, "number")).removeprefix("+"): one for one in recipients}
    return each(
        messages,
        said,
        known_by=lambda message: message.to,
        meaning=lambda one: _meaning(answer_, one),
        otherwise=lambda message: answer(settings, message, answer_),
    )


def _meaning(answer: Answer, one: Any) -> Outcome:
    id = text_of(value_at(one, "messageId"))
    code, detail = value_at(one, "statusCode"), text_of(value_at(one, "status"))
    return ruled(RULINGS, code, answer, id="" if id == "None" else id, detail=detail)


KIND = HttpKind(
    name="africastalking",
    title="Africa's Talking",
    settings=Settings,
    request=alone(request_several),
    answer=answer,
    receipts=receipts_from(form_body, RECEIPT, STATES),
    inbound=messages_from(form_body, MESSAGE),
    batch=Batch(
        request=request_several, answer=answer_several, alike=lambda submission: (submission.sender, submission.text)
    ),
    recipient_errors=frozenset(
        ("AbsentSubscriber", "UserAccountSuspended", "UserDoesNotExist", "UserInBlackList", "UserIsInactive")
    ),
)
