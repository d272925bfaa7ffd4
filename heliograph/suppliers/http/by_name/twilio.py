"""Twilio: Programmable Messaging (POST …/Messages.json), status callbacks and incoming messages as signed forms.

The address for status callbacks is sent with each message and contains our reference, since Twilio takes none.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Annotated

from heliograph.suppliers.contract import Outcome, ReceiptState
from heliograph.suppliers.http.kind import (
    FORM,
    SECRET,
    Answer,
    Callback,
    HttpKind,
    HttpSettings,
    Message,
    Reply,
    Request,
    Secrets,
    basic,
    form,
    is_same,
    text_of,
    value_at,
)
from heliograph.suppliers.http.reading import MessagePlaces, ReceiptPlaces, form_body, messages_from, receipts_from
from heliograph.suppliers.http.rulings import Ruling, outcome, ruled

RULINGS = {
    20429: Ruling.THROTTLED,
    21211: Ruling.REFUSED,
    21612: Ruling.ELSEWHERE,
    21614: Ruling.REFUSED,
    21617: Ruling.REFUSED,
    21635: Ruling.REFUSED,
    21212: Ruling.BAD_SENDER,
    21601: Ruling.BAD_SENDER,
    21606: Ruling.BAD_SENDER,
    21659: Ruling.BAD_SENDER,
    21660: Ruling.BAD_SENDER,  # another account's number
    21661: Ruling.BAD_SENDER,
    21610: Ruling.OPTED_OUT,
    21408: Ruling.ELSEWHERE,  # the region is not enabled
    21608: Ruling.ELSEWHERE,  # a number that a trial account may not write to
    20003: Ruling.CONFIG,
    10001: Ruling.CONFIG,
    21701: Ruling.CONFIG,  # no such messaging service
    21705: Ruling.CONFIG,
    21611: Ruling.LATER,  # the sender's queue is full
}
STATES = {
    "accepted": ReceiptState.PENDING,
    "scheduled": ReceiptState.PENDING,
    "queued": ReceiptState.PENDING,
    "sending": ReceiptState.PENDING,
    "sent": ReceiptState.PENDING,
    "delivered": ReceiptState.DELIVERED,
    "read": ReceiptState.DELIVERED,
    "undelivered": ReceiptState.UNDELIVERED,
    "failed": ReceiptState.FAILED,
    "canceled": ReceiptState.REJECTED,
    "partially_delivered": ReceiptState.PENDING,  # some of its segments arrived: neither delivered nor failed
}
RECEIPT = ReceiptPlaces(keys=("MessageSid",), state="MessageStatus", recipient="To", sender="From", error="ErrorCode")
# With Advanced Opt-Out, Twilio blocks and answers, and says so: the account may have words of its own.
MESSAGE = MessagePlaces(sender="From", recipient="To", text="Body", key="MessageSid", asked="OptOutType")
#: Limits of ValidityPeriod, in seconds.
SHORTEST, LONGEST = 1, 36_000
#: Ports that the signed address may contain or leave out.
PORTS = {"https": ":443", "http": ":80"}


class Settings(HttpSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account at Twilio."""

    base_url: Annotated[str, "Where the API is"] = "https://api.twilio.com"
    account_sid: Annotated[str, "Account SID, which is also part of the URL"]
    api_key_sid: Annotated[str, "SID of an API key; empty: the secret is the account's auth token"] = ""
    messaging_service_sid: Annotated[str, "Messaging service that chooses the sender; empty: the message's own"] = ""


def request(settings: Settings, secrets: Secrets, message: Message) -> Request:
    """One message per request."""
    values = {"To": f"+{message.to}", "Body": message.text, "StatusCallback": message.callback}
    if settings.messaging_service_sid:
        values["MessagingServiceSid"] = settings.messaging_service_sid
    else:
        values["From"] = message.sender
    if message.validity_seconds is not None:
        values["ValidityPeriod"] = str(min(max(message.validity_seconds, SHORTEST), LONGEST))
    return Request(
        f"{settings.base_url}/2010-04-01/Accounts/{settings.account_sid}/Messages.json",
        form(values),
        {"Authorization": basic(settings.api_key_sid or settings.account_sid, secrets[SECRET]), "Content-Type": FORM},
    )


def answer(settings: Settings, message: Message, answer: Answer) -> Outcome:
    """201 with a `sid`; otherwise `code` and `message`. A message answered with 500 may have been sent nevertheless."""
    said = answer.json
    id = text_of(value_at(said, "sid"))
    if answer.status in (200, 201) and id:
        return outcome(Ruling.ACCEPTED, id=id, code=text_of(value_at(said, "status")))
    return ruled(RULINGS, value_at(said, "code"), answer, detail=text_of(value_at(said, "message")))


def is_genuine(settings: Settings, secrets: Secrets, callback: Callback) -> bool:
    """X-Twilio-Signature: base64 of HMAC-SHA1 over the address and the sorted fields, with or without the port."""
    token = secrets.get("auth_token") or secrets[SECRET]
    given = callback.headers.get("x-twilio-signature", "")
    fields = "".join(name + value for name, value in sorted(callback.form.items()))
    texts = ((url + fields).encode() for url in _spellings(callback.url))
    wanted = (base64.b64encode(hmac.digest(token.encode(), text, hashlib.sha1)).decode() for text in texts)
    return any(is_same(given, one) for one in wanted)


def _spellings(url: str) -> tuple[str, ...]:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    port = PORTS.get(scheme, "")
    other = host.removesuffix(port) if host.endswith(port) else host + port if ":" not in host else host
    return url, f"{scheme}://{other}{slash}{path}"


KIND = HttpKind(
    name="twilio",
    title="Twilio",
    settings=Settings,
    secrets={
        SECRET: "auth token, or secret of the API key",
        "auth_token": "Auth token, which signs callbacks, where the secret is an API key's",
    },
    request=request,
    answer=answer,
    receipts=receipts_from(form_body, RECEIPT, STATES),
    inbound=messages_from(form_body, MESSAGE),
    is_genuine=is_genuine,
    reply=lambda settings: Reply(b"<Response/>", "text/xml"),
    recipient_errors=frozenset(("30003", "30005", "30006")),
)
