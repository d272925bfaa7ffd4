"""What the bell rings for, and who is told."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Kind(msgspec.Struct, frozen=True):
    """Who is told: holders of a scope of the contract, or of a page permission. Where: the page that shows more, with
    the object's id for `{object}`."""

    path: str
    scope: str | None = None
    permission: str | None = None


#: All kinds. What their facts hold is said beside those that have some.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "campaign.completed": Kind("/campaigns/{object}", scope="campaigns:read"),
        # reason: as `campaigns` says it
        "campaign.paused": Kind("/campaigns/{object}", scope="campaigns:read"),
        "campaign.failed": Kind("/campaigns/{object}", scope="campaigns:read"),
        "webhook.failing": Kind("/webhooks/{object}", scope="webhooks:read"),
        # reason: as `webhooks` says it
        "webhook.disabled": Kind("/webhooks/{object}", scope="webhooks:read"),
        # created, updated, rejected: rows
        "import.finished": Kind("/contacts/imports/{object}", scope="contacts:write"),
        # reason: the operator's words, if any
        "sender.approved": Kind("/senders", scope="sender_ids:read"),
        "sender.rejected": Kind("/senders", scope="sender_ids:read"),
        "sender.suspended": Kind("/senders", scope="sender_ids:read"),
        "template.rejected": Kind("/templates", scope="whatsapp:read"),
        "template.paused": Kind("/templates", scope="whatsapp:read"),
        "template.disabled": Kind("/templates", scope="whatsapp:read"),
        # rating: yellow or red
        "number.quality": Kind("/numbers", scope="whatsapp:read"),
        # left, total: messages; the object is the share that is used, in percent
        "quota.used": Kind("/usage", permission="usage"),
        # messages, above: of the day, which is the object
        "usage.day": Kind("/usage", permission="usage"),
        # until: when, ISO 8601
        "key.ending": Kind("/keys", scope="api_keys:read"),
        # network: from where it had not been used before
        "key.network": Kind("/keys", scope="api_keys:read"),
        # of the person alone; address, device
        "sign_in.new": Kind("/account"),
        # role
        "member.joined": Kind("/team", permission="team"),
        # of whoever asked for it; rows
        "export.ready": Kind("/exports", scope="account:read"),
        "export.failed": Kind("/exports", scope="account:read"),
        "wallet.low": Kind("/wallet", permission="usage"),
    }
)
