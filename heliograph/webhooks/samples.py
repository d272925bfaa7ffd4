"""What an event of each kind looks like: a sentence on when it is raised, and a sample of its `data`.

The ids in a sample are all zeros, so none is mistaken for a real one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.database import clock

#: When each kind is raised.
SUMMARIES: dict[str, str] = {
    "message.delivered": "A message was delivered",
    "message.failed": "A message was not delivered and will not be",
    "message.sent": "A supplier accepted a message",
    "message.read": "The user read a WhatsApp message",
    "message.received": "A message arrived at one of your numbers",
    "contact.opted_out": "A recipient opted out",
    "campaign.completed": "A campaign was completed",
    "sender_id.approved": "A sender ID was approved",
    "sender_id.rejected": "A sender ID was rejected",
    "whatsapp.template.updated": "A WhatsApp template was added, changed or removed",
    "whatsapp.phone_number.updated": "A WhatsApp number was added or changed",
    "notice.created": "Something needs somebody's attention: what the dashboard's bell reports",
    "webhook.test": "A test event was requested",
}


@cache
def samples() -> dict[str, dict[str, Any]]:
    """The `data` of an event of each kind."""
    found: dict[str, dict[str, Any]] = msgspec.json.decode(Path(__file__).with_name("samples.json").read_bytes())
    return found


def test_data(endpoint_id: UUID, subscribed: Sequence[str], at: datetime) -> str:
    """The data of a test event: the endpoint and its kinds, and a message in the same form as in real events."""
    return msgspec.json.encode(
        {
            "webhookEndpoint": {"id": endpoint_id, "subscribed_events": subscribed},
            "message": {
                "id": UUID(int=0),
                "clientReference": "example",
                "channel": "sms",
                "to": "+258841234567",
                "status": "delivered",
                "segments": 1,
                "acceptedAt": clock.iso(at),
                "sentAt": clock.iso(at),
                "deliveredAt": clock.iso(at),
                "failedAt": None,
                "failure": None,
            },
        }
    ).decode()
