"""What the bell rings for, who is told, and how."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

#: How somebody can be told. An event of a webhook goes to the organization's endpoints, not to a person.
Way = Literal["bell", "mail", "webhook"]
WAYS: tuple[Way, ...] = get_args(Way)
#: Those that a person chooses among.
OWN_WAYS: tuple[Way, ...] = ("bell", "mail")

_QUIETLY: tuple[Way, ...] = ("bell", "webhook")


class Kind(msgspec.Struct, frozen=True):
    """Who is told: holders of a scope of the contract, or of a page permission. Where: the page that shows more, with
    the object's id for `{object}`; of several, the page that lists them. How: unless somebody chose another way."""

    path: str
    scope: str | None = None
    permission: str | None = None
    ways: tuple[Way, ...] = _QUIETLY
    #: Told to a person alone, of an account, so no event tells of it.
    is_personal: bool = False

    @property
    def folded_path(self) -> str:
        """Where several of them are seen."""
        return self.path.removesuffix("/{object}")


#: All kinds. What their facts hold is said beside those that have some.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "campaign.completed": Kind("/campaigns/{object}", scope="campaigns:read"),
        # reason: as `campaigns` says it
        "campaign.paused": Kind("/campaigns/{object}", scope="campaigns:read", ways=WAYS),
        "campaign.approval": Kind("/campaigns/{object}", scope="campaigns:write", ways=WAYS),
        "campaign.failed": Kind("/campaigns/{object}", scope="campaigns:read", ways=WAYS),
        "webhook.failing": Kind("/webhooks/{object}", scope="webhooks:read"),
        # reason: as `webhooks` says it
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
        # rating: yellow or red
        "number.quality": Kind("/numbers", scope="whatsapp:read"),
        # left, total: messages; the object is the share that is used, in percent
        "quota.used": Kind("/usage", permission="usage", ways=WAYS),
        # messages, above: of the day, which is the object
        "usage.day": Kind("/usage", permission="usage"),
        # until: when, ISO 8601
        "key.ending": Kind("/keys", scope="api_keys:read", ways=WAYS),
        # network: from where it had not been used before
        "key.network": Kind("/keys", scope="api_keys:read", ways=WAYS),
        # of the person alone; address, device
        "sign_in.new": Kind("/account", ways=OWN_WAYS, is_personal=True),
        # of the person alone; address, tries, step: "password", or "code" after a password that was right
        "sign_in.failed": Kind("/account", ways=("bell",), is_personal=True),
        # to each owner but the one concerned; as above
        "member.sign_in_failed": Kind("/team", permission="team", ways=("bell",), is_personal=True),
        # role
        "member.joined": Kind("/team", permission="team"),
        # of whoever asked for it; rows
        "export.ready": Kind("/exports", scope="account:read"),
        "export.failed": Kind("/exports", scope="account:read"),
        # left, below: decimals in `currency`
        "wallet.low": Kind("/wallet", permission="usage", ways=WAYS),
    }
)
