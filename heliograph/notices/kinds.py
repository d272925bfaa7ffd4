"""What the bell rings for, who is notified, and how."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

#: How somebody can be notified. Webhook events go to the organization's endpoints, not to a person.
Way = Literal["bell", "mail", "webhook"]
WAYS: tuple[Way, ...] = get_args(Way)
#: The ways that a person can choose from.
OWN_WAYS: tuple[Way, ...] = ("bell", "mail")

_QUIETLY: tuple[Way, ...] = ("bell", "webhook")


class Kind(msgspec.Struct, frozen=True):
    """Who is notified: holders of a scope of the contract, or of a page permission. Where: the page that shows more,
    with the object's id for `{object}`; for several, the page that lists them. How: by default."""

    path: str
    scope: str | None = None
    permission: str | None = None
    ways: tuple[Way, ...] = _QUIETLY
    #: Concerns a person's account and is for that person only, so there is no event for it.
    is_personal: bool = False

    @property
    def folded_path(self) -> str:
        """The page that lists several of them."""
        return self.path.removesuffix("/{object}")


#: All kinds. A comment lists the facts of those that have some. Those of campaigns have their channel, too.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "campaign.completed": Kind("/campaigns/{object}", scope="campaigns:read"),
        # reason: as given by `campaigns`
        "campaign.paused": Kind("/campaigns/{object}", scope="campaigns:read", ways=WAYS),
        "campaign.approval": Kind("/campaigns/{object}", scope="campaigns:write", ways=WAYS),
        # for its creator; by: the person who approved it
        "campaign.approved": Kind("/campaigns/{object}", scope="campaigns:read", ways=WAYS),
        # for its creator, if somebody else did it; by: the person, if it was one of the organization
        "campaign.canceled": Kind("/campaigns/{object}", scope="campaigns:read", ways=WAYS),
        "campaign.failed": Kind("/campaigns/{object}", scope="campaigns:read", ways=WAYS),
        "webhook.failing": Kind("/webhooks/{object}", scope="webhooks:read"),
        # reason: as given by `webhooks`
        "webhook.disabled": Kind("/webhooks/{object}", scope="webhooks:read", ways=WAYS),
        # created, updated, rejected: rows
        "import.finished": Kind("/contacts/imports/{object}", scope="contacts:write"),
        # reason: the operator's words, if any
        "sender.approved": Kind("/senders", scope="sender_ids:read"),
        "sender.rejected": Kind("/senders", scope="sender_ids:read", ways=WAYS),
        # reason: the question
        "sender.asked": Kind("/senders", scope="sender_ids:write", ways=WAYS),
        "sender.suspended": Kind("/senders", scope="sender_ids:read", ways=WAYS),
        "template.rejected": Kind("/templates", scope="whatsapp:read"),
        "template.paused": Kind("/templates", scope="whatsapp:read"),
        "template.disabled": Kind("/templates", scope="whatsapp:read"),
        "template.marketing": Kind("/templates", scope="whatsapp:read"),
        # rating: yellow or red
        "number.quality": Kind("/numbers", scope="whatsapp:read"),
        # left, total: messages; the object is the percentage used
        "quota.used": Kind("/usage", permission="usage", ways=WAYS),
        # messages, above: of the day, which is the object
        "usage.day": Kind("/usage", permission="usage"),
        # until: when, ISO 8601
        "key.ending": Kind("/keys", scope="api_keys:read", ways=WAYS),
        # network: the new one
        "key.network": Kind("/keys", scope="api_keys:read", ways=WAYS),
        # for the person only; address, device
        "sign_in.new": Kind("/account", ways=OWN_WAYS, is_personal=True),
        # for the person only; address, tries, step: "password", or "code" after a correct password
        "sign_in.failed": Kind("/account", ways=("bell",), is_personal=True),
        # for each owner except the person concerned; as above
        "member.sign_in_failed": Kind("/team", permission="team", ways=("bell",), is_personal=True),
        # role
        "member.joined": Kind("/team", permission="team"),
        # for the requester; rows
        "export.ready": Kind("/exports", scope="account:read"),
        "export.failed": Kind("/exports", scope="account:read"),
        # left, below: decimals in `currency`
        "wallet.low": Kind("/wallet", permission="usage", ways=WAYS),
    }
)
