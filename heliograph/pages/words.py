"""Words for what the code names: roles, statuses, modes. Each is looked up in the reader's language."""

from __future__ import annotations

from collections.abc import Mapping

ROLES: Mapping[str, str] = {
    "owner": "Owner",
    "admin": "Admin",
    "developer": "Developer",
    "sender": "Sender",
    "viewer": "Viewer",
    "billing": "Billing",
}
ROLES_EXPLAINED: Mapping[str, str] = {
    "owner": "Everything, other owners included.",
    "admin": "Everything but changing owners.",
    "developer": "Webhooks and requests, test keys and test sends. Reads live messages without texts and numbers.",
    "sender": "Sends messages and campaigns, keeps contacts.",
    "viewer": "Reads messages without texts and whole numbers.",
    "billing": "Usage and wallet, nothing else.",
}
STATUSES: Mapping[str, str] = {
    "accepted": "Accepted",
    "sending": "Sending",
    "sent": "Sent",
    "delivered": "Delivered",
    "read": "Read",
    "undelivered": "Undelivered",
    "failed": "Failed",
    "expired": "Expired",
    "rejected": "Rejected",
    "canceled": "Canceled",
    "unknown": "Unknown",
    "active": "Active",
    "suspended": "Suspended",
    "revoked": "Revoked",
    "pending": "Pending",
}
