"""What an event of each kind looks like: a sentence on when it is raised, and a sample of its `data`.

The ids in a sample are all zeros, so none is mistaken for a real one.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

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
