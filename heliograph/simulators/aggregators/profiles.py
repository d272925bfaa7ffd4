"""The wire formats of HTTP suppliers, from the supplier's side, each following its public documentation."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from heliograph.http.heads import RequestHead
from heliograph.simulators.http import Reply

_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_JSON = {"Content-Type": "application/json"}


class SubmittedMessage(msgspec.Struct, frozen=True):
    """A message submitted to the supplier."""

    #: Digits.
    to: str
    sender: str
    text: str
    #: Where its receipts go; if empty, to the account's URL.
    callback: str = ""
    #: The customer's own id for it.
    reference: str = ""


class Post(msgspec.Struct, frozen=True):
    """A callback."""

    url: str
    body: bytes
    headers: Mapping[str, str]
    method: str = "POST"


def _unsigned(post: Post, secret: str) -> Post:
    return post


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One supplier's API."""

    name: str
    #: (head, body, the account's secret); None if the secret is wrong or it is no send.
    read: Callable[[RequestHead, bytes, str], SubmittedMessage | None]
    accepted: Callable[[SubmittedMessage, str], Reply]
    refused: Callable[[SubmittedMessage], Reply]
    throttled: Callable[[SubmittedMessage], Reply]
    busy: Callable[[SubmittedMessage], Reply]
    unauthorized: Reply = msgspec.field(default_factory=lambda: _json(401, {"error": "unauthorized"}))
    #: (URL, message, id, "delivered", "undelivered", "expired" or "rejected").
    receipt: Callable[[str, SubmittedMessage, str, str], Post]
    #: (URL, from, to, text, id).
    inbound: Callable[[str, str, str, str, str], Post]
    sign: Callable[[Post, str], Post] = _unsigned
    #: Like `read`, for a request that may contain several; None if it always contains one.
    read_several: Callable[[RequestHead, bytes, str], list[SubmittedMessage]] | None = None
    #: Combines the responses to several messages into one.
    together: Callable[[list[Reply]], Reply] = lambda replies: replies[0]


def _json(status: int, content: Any) -> Reply:
    return Reply(status, json.dumps(content).encode())


def _header(head: RequestHead, name: bytes) -> str:
    return dict(head.headers).get(name, b"").decode("latin-1")


def _fields(body: bytes) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(body.decode(), keep_blank_values=True))


def _form(values: Mapping[str, str]) -> bytes:
    return urllib.parse.urlencode(values).encode()


# -- Africa's Talking --------------------------------------------------------------------------------------------------


def _at_read(head: RequestHead, body: bytes, secret: str) -> SubmittedMessage | None:
    fields = _fields(body)
    if head.method != "POST" or head.path != "/version1/messaging" or _header(head, b"apikey") != secret:
        return None
    if not fields.get("username") or not fields.get("to", "").startswith("+"):
        return None
    return SubmittedMessage(fields["to"][1:], fields.get("from", ""), fields["message"])


def _at_read_several(head: RequestHead, body: bytes, secret: str) -> list[SubmittedMessage]:
    first = _at_read(head, body, secret)
    if first is None:
        return []
    return [msgspec.structs.replace(first, to=to.removeprefix("+")) for to in first.to.split(",")]


def _at_together(replies: list[Reply]) -> Reply:
    recipients = [json.loads(one.body)["SMSMessageData"]["Recipients"][0] for one in replies]
    return _json(201, {"SMSMessageData": {"Message": "Sent", "Recipients": recipients}})


def _at_said(code: int, status: str, asked: SubmittedMessage, id: str = "None") -> Reply:
    one = {"statusCode": code, "status": status, "number": f"+{asked.to}", "cost": "KES 0.8000", "messageId": id}
    return _json(201, {"SMSMessageData": {"Message": "Sent to 1/1", "Recipients": [one]}})


_AT_STATES = {"delivered": "Success", "undelivered": "Failed", "expired": "Expired", "rejected": "Rejected"}

_AFRICASTALKING = Profile(
    name="africastalking",
    read=_at_read,
    read_several=_at_read_several,
    together=_at_together,
    accepted=lambda asked, id: _at_said(101, "Success", asked, id),
    refused=lambda asked: _at_said(403, "InvalidPhoneNumber", asked),
    throttled=lambda asked: _json(429, {}),
    busy=lambda asked: _at_said(500, "InternalServerError", asked),
    receipt=lambda url, asked, id, state: Post(
        url,
        _form({"id": id, "status": _AT_STATES[state], "phoneNumber": f"+{asked.to}", "networkCode": "63902"}),
        _FORM,
    ),
    inbound=lambda url, sender, recipient, text, id: Post(
        url,
        _form({"from": f"+{sender}", "to": recipient, "text": text, "date": "2026-01-01T00:00:00Z", "id": id}),
        _FORM,
    ),
)

# -- Clickatell --------------------------------------------------------------------------------------------------------


def _clickatell_read(head: RequestHead, body: bytes, secret: str) -> SubmittedMessage | None:
    if head.path != "/v1/message" or _header(head, b"authorization") != secret:
        return None
    one = json.loads(body)["messages"][0]
    return SubmittedMessage(one["to"], one.get("from", ""), one["content"], reference=one.get("clientMessageId", ""))


def _clickatell_error(status: int, code: int, words: str, asked: SubmittedMessage) -> Reply:
    error = {"code": code, "description": words}
    return _json(status, {"messages": [{"apiMessageId": None, "accepted": False, "to": asked.to, "error": error}]})


_CLICKATELL_STATES = {
    "delivered": (5, "DEVICE_ACK"),
    "undelivered": (23, "UNDELIVERED"),
    "expired": (20, "EXPIRED"),
    "rejected": (100, "ROUTING_ERROR"),
}


def _clickatell_event(url: str, name: str, one: Mapping[str, Any]) -> Post:
    return Post(url, json.dumps({"integrationId": "i", "event": {name: [one]}}).encode(), _JSON)


_CLICKATELL = Profile(
    name="clickatell",
    read=_clickatell_read,
    accepted=lambda asked, id: _json(
        202, {"messages": [{"apiMessageId": id, "accepted": True, "to": asked.to, "error": None}], "error": None}
    ),
    refused=lambda asked: _clickatell_error(207, 25, "Invalid recipient", asked),
    throttled=lambda asked: _clickatell_error(400, 43, "Too many requests", asked),
    busy=lambda asked: _clickatell_error(503, 19, "Unavailable", asked),
    receipt=lambda url, asked, id, state: _clickatell_event(
        url,
        "messageStatusUpdate",
        {
            "channel": "sms",
            "messageId": id,
            "clientMessageId": asked.reference,
            "statusCode": _CLICKATELL_STATES[state][0],
            "status": _CLICKATELL_STATES[state][1],
            "timestamp": 1_700_000_000_000,
        },
    ),
    inbound=lambda url, sender, recipient, text, id: _clickatell_event(
        url,
        "moText",
        {"channel": "sms", "messageId": id, "from": f"+{sender}", "to": recipient, "content": text, "timestamp": 1},
    ),
)

# -- Infobip -----------------------------------------------------------------------------------------------------------


def _infobip_read(head: RequestHead, body: bytes, secret: str) -> SubmittedMessage | None:
    return next(iter(_infobip_read_several(head, body, secret)), None)


def _infobip_read_several(head: RequestHead, body: bytes, secret: str) -> list[SubmittedMessage]:
    if head.path != "/sms/3/messages" or _header(head, b"authorization") != f"App {secret}":
        return []
    found = []
    for one in json.loads(body)["messages"]:
        place = one["destinations"][0]
        url = one.get("webhooks", {}).get("delivery", {}).get("url", "")
        found.append(
            SubmittedMessage(place["to"], one["sender"], one["content"]["text"], url, place.get("messageId", ""))
        )
    return found


def _infobip_together(replies: list[Reply]) -> Reply:
    return _json(200, {"bulkId": "b", "messages": [json.loads(one.body)["messages"][0] for one in replies]})


def _infobip_said(asked: SubmittedMessage, group: int, id: int, name: str) -> Reply:
    status = {"groupId": group, "groupName": "X", "id": id, "name": name}
    one = {"messageId": asked.reference, "destination": asked.to, "status": status}
    return _json(200, {"bulkId": "b", "messages": [one]})


_INFOBIP_STATES = {
    "delivered": (3, 5, "DELIVERED_TO_HANDSET"),
    "undelivered": (2, 9, "UNDELIVERABLE_NOT_DELIVERED"),
    "expired": (4, 15, "EXPIRED_EXPIRED"),
    "rejected": (5, 99, "REJECTED_ROUTE_NOT_AVAILABLE"),
}


def _infobip_receipt(url: str, asked: SubmittedMessage, id: str, state: str) -> Post:
    group, number, name = _INFOBIP_STATES[state]
    one = {
        "messageId": asked.reference,
        "to": asked.to,
        "sentAt": "2026-01-01T00:00:00.000+0000",
        "status": {"groupId": group, "id": number, "name": name},
        "error": {"id": 0, "name": "NO_ERROR", "permanent": False},
    }
    return Post(url, json.dumps({"results": [one]}).encode(), _JSON)


_INFOBIP = Profile(
    name="infobip",
    read=_infobip_read,
    read_several=_infobip_read_several,
    together=_infobip_together,
    accepted=lambda asked, id: _infobip_said(asked, 1, 26, "PENDING_ACCEPTED"),
    refused=lambda asked: _infobip_said(asked, 5, 6, "REJECTED_NETWORK"),
    throttled=lambda asked: _json(429, {"errorCode": "E429"}),
    busy=lambda asked: _infobip_said(asked, 5, 21, "REJECTED_SYSTEM_ERROR"),
    receipt=_infobip_receipt,
    inbound=lambda url, sender, recipient, text, id: Post(
        url,
        json.dumps(
            {"results": [{"messageId": id, "from": sender, "to": recipient, "text": text, "smsCount": 1}]}
        ).encode(),
        _JSON,
    ),
)

# -- Twilio ------------------------------------------------------------------------------------------------------------


def _twilio_read(head: RequestHead, body: bytes, secret: str) -> SubmittedMessage | None:
    if not head.path.startswith("/2010-04-01/Accounts/") or not head.path.endswith("/Messages.json"):
        return None
    name, _, given = base64.b64decode(_header(head, b"authorization").removeprefix("Basic ")).decode().partition(":")
    fields = _fields(body)
    if given != secret or not name or not fields["To"].startswith("+"):
        return None
    return SubmittedMessage(fields["To"][1:], fields.get("From", ""), fields["Body"], fields.get("StatusCallback", ""))


def _twilio_error(status: int, code: int, words: str) -> Reply:
    return _json(status, {"code": code, "message": words, "status": status})


def _twilio_sign(post: Post, secret: str) -> Post:
    text = post.url + "".join(name + value for name, value in sorted(_fields(post.body).items()))
    signature = base64.b64encode(hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()).decode()
    return msgspec.structs.replace(post, headers={**post.headers, "X-Twilio-Signature": signature})


_TWILIO_STATES = {"delivered": "delivered", "undelivered": "undelivered", "expired": "failed", "rejected": "failed"}

_TWILIO = Profile(
    name="twilio",
    read=_twilio_read,
    accepted=lambda asked, id: _json(201, {"sid": id, "status": "queued", "num_segments": "1", "error_code": None}),
    refused=lambda asked: _twilio_error(400, 21211, "Invalid 'To' phone number"),
    throttled=lambda asked: _twilio_error(429, 20429, "Too many requests"),
    busy=lambda asked: _twilio_error(
        400, 21611, "The 'From' number has exceeded the maximum number of queued messages"
    ),
    receipt=lambda url, asked, id, state: Post(
        url,
        _form({"MessageSid": id, "MessageStatus": _TWILIO_STATES[state], "To": f"+{asked.to}", "From": asked.sender}),
        _FORM,
    ),
    inbound=lambda url, sender, recipient, text, id: Post(
        url,
        _form({"MessageSid": id, "From": f"+{sender}", "To": recipient, "Body": text, "NumMedia": "0"}),
        _FORM,
    ),
    sign=_twilio_sign,
)

# -- Vonage ------------------------------------------------------------------------------------------------------------


def _vonage_read(head: RequestHead, body: bytes, secret: str) -> SubmittedMessage | None:
    fields = _fields(body)
    if head.path != "/sms/json" or fields.get("api_secret") != secret:
        return None
    return SubmittedMessage(
        fields["to"], fields["from"], fields["text"], fields.get("callback", ""), fields.get("client-ref", "")
    )


def _vonage_said(asked: SubmittedMessage, status: str, **more: str) -> Reply:
    return _json(200, {"message-count": "1", "messages": [{"to": asked.to, "status": status, **more}]})


def _vonage_sign(post: Post, secret: str) -> Post:
    fields = _fields(post.body)
    plain = {name: value.replace("&", "_").replace("=", "_") for name, value in fields.items()}
    text = "".join(f"&{name}={plain[name]}" for name in sorted(plain))
    signature = hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest().upper()
    return msgspec.structs.replace(post, body=_form(fields | {"sig": signature}))


_VONAGE_STATES = {"delivered": "delivered", "undelivered": "failed", "expired": "expired", "rejected": "rejected"}

_VONAGE = Profile(
    name="vonage",
    read=_vonage_read,
    accepted=lambda asked, id: _vonage_said(asked, "0", **{"message-id": id, "remaining-balance": "3.10"}),
    refused=lambda asked: _vonage_said(asked, "3", **{"error-text": "Invalid params"}),
    throttled=lambda asked: _vonage_said(asked, "1", **{"error-text": "Throughput Rate Exceeded"}),
    busy=lambda asked: _vonage_said(asked, "5", **{"error-text": "Internal error"}),
    receipt=lambda url, asked, id, state: Post(
        url,
        _form(
            {"msisdn": asked.to, "to": asked.sender, "messageId": id, "status": _VONAGE_STATES[state], "err-code": "0"}
        ),
        _FORM,
    ),
    inbound=lambda url, sender, recipient, text, id: Post(
        url, _form({"msisdn": sender, "to": recipient, "messageId": id, "text": text, "type": "text"}), _FORM
    ),
    sign=_vonage_sign,
)

# -- A generic supplier ------------------------------------------------------------------------------------------------


def _plain_read(head: RequestHead, body: bytes, secret: str) -> SubmittedMessage | None:
    """`GET /send?user=…&pass=…&to=…&from=…&text=…&dlr-url=…`, like Kannel's sendsms: it assigns no ids."""
    query = dict(urllib.parse.parse_qsl(head.query.decode(), keep_blank_values=True))
    if head.method != "GET" or head.path != "/send" or query.get("pass") != secret:
        return None
    return SubmittedMessage(query["to"].removeprefix("+"), query["from"], query["text"], query.get("dlr-url", ""))


_PLAIN_STATES = {"delivered": "1", "undelivered": "2", "expired": "2", "rejected": "16"}


def _plain_receipt(url: str, asked: SubmittedMessage, id: str, state: str) -> Post:
    return Post(f"{url}&status={_PLAIN_STATES[state]}", b"", {}, "GET")


def _plain_inbound(url: str, sender: str, recipient: str, text: str, id: str) -> Post:
    query = urllib.parse.urlencode({"from": f"+{sender}", "to": recipient, "text": text, "id": id})
    return Post(f"{url}?{query}", b"", {}, "GET")


def _plain_sign(post: Post, secret: str) -> Post:
    return msgspec.structs.replace(post, headers={**post.headers, "Token": secret})


_PLAIN = Profile(
    name="plain",
    read=_plain_read,
    accepted=lambda asked, id: Reply(202, b"0: Accepted for delivery", "text/plain"),
    refused=lambda asked: Reply(400, b"5: Invalid recipient", "text/plain"),
    throttled=lambda asked: Reply(429, b"", "text/plain"),
    busy=lambda asked: Reply(503, b"4: Temporal failure, try again later", "text/plain"),
    unauthorized=Reply(403, b"Authorization failed for sendsms", "text/plain"),
    receipt=_plain_receipt,
    inbound=_plain_inbound,
    sign=_plain_sign,
)

PROFILES: Mapping[str, Profile] = {
    one.name: one for one in (_AFRICASTALKING, _CLICKATELL, _INFOBIP, _TWILIO, _VONAGE, _PLAIN)
}
