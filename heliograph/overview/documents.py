"""A message and its events as JSON documents, spelled as in the API, for pages that show them raw.

The rule nobody may break: every field here exists in the API under the same name with the same value; a test compares
the two.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.base.database.clock import iso, iso_or_none
from heliograph.overview.messages import Message
from heliograph.webhooks.recording.feed import Recorded


def of_message(one: Message, *, text: str | None, whole: bool) -> dict[str, Any]:
    """The message as returned by `GET /v1/sms/messages/{id}` or `/v1/whatsapp/messages/{id}`; without number and text
    for those who may not see them."""
    found: dict[str, Any] = {"id": str(one.id), "clientReference": one.client_reference, "status": one.status}
    if one.channel == "sms":
        found |= {
            "channel": "sms",
            "to": one.recipient if whole else None,
            "sender": one.sender,
            "encoding": one.encoding,
            "segments": one.segments,
            "campaignId": None if one.campaign_id is None else str(one.campaign_id),
            "apiKeyId": None if one.key_id is None else str(one.key_id),
            "sendAt": iso_or_none(one.send_at),
            "expiresAt": iso_or_none(one.expires_at),
            "quietUntil": iso_or_none(one.quiet_until),
        }
        if whole:
            found["message"] = text
    else:
        found |= {"direction": one.direction, "recipient": one.recipient if whole else None}
    found |= {
        "acceptedAt": iso_or_none(one.accepted_at),
        "sentAt": iso_or_none(one.sent_at),
        "deliveredAt": iso_or_none(one.delivered_at),
    }
    if one.channel == "whatsapp":
        found["readAt"] = iso_or_none(one.read_at)
    return found | {"failedAt": iso_or_none(one.failed_at)}


def of_event(one: Recorded) -> dict[str, Any]:
    """An event as the body of its callbacks."""
    return {
        "id": str(one.id),
        "type": one.kind,
        "timestamp": iso(one.created_at),
        "requestId": one.request_id,
        "apiVersion": "v1",
        "data": msgspec.json.decode(one.data),
    }


def written(document: dict[str, Any]) -> str:
    """A document, indented for reading."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
