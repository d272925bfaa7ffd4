"""The objects of the Graph API simulator, as in a setup file and in memory.

Each can be written as JSON, which is what `heliograph simulate graph --config` reads and what the control plane takes.
Ids are text even where Meta writes them as integers, because some are larger than a float can represent.
"""

from __future__ import annotations

from typing import Any

import msgspec

MANAGEMENT, MESSAGING = "whatsapp_business_management", "whatsapp_business_messaging"
SCOPES = (MANAGEMENT, MESSAGING)


class App(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A Meta app, which signs its callbacks."""

    id: str
    secret: str
    verify_token: str
    webhook_url: str = ""
    name: str = "Simulated app"


class SimulatedAccount(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A WhatsApp Business Account."""

    id: str
    name: str = "Demo"
    #: The business portfolio, to which the messaging limit belongs.
    business: str = "770000000000001"
    #: Apps that receive its callbacks.
    subscribed: list[str] = []
    currency: str = "EUR"
    timezone_id: str = "1"
    account_review_status: str = "APPROVED"
    business_verification_status: str = "verified"
    template_namespace: str = "00000000_0000_0000_0000_000000000000"
    #: Sends from all its numbers are refused with this code; 0 means they are not.
    refusal: int = 0
    #: RESTRICTED_BIZ_INITIATED_MESSAGING and similar.
    restrictions: list[str] = []


class Number(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A sender."""

    id: str
    account: str
    digits: str
    verified_name: str = "Heliograph Demo"
    status: str = "CONNECTED"
    quality_rating: str = "GREEN"
    name_status: str = "APPROVED"
    code_verification_status: str = "VERIFIED"
    platform_type: str = "CLOUD_API"
    account_mode: str = "LIVE"
    #: STANDARD, HIGH or NOT_APPLICABLE.
    throughput: str = "STANDARD"
    #: Also used in the WhatsApp Business app, which limits it to 20 messages a second.
    is_on_biz_app: bool = False
    #: TIER_250, TIER_2K, …, TIER_UNLIMITED: what GETs report. The enforced limit is the option `tier`.
    limit: str = "TIER_UNLIMITED"
    registered: bool = True
    #: Sends are refused with this code (131037, 131042, 131045, 131048 …); 0 means they are not.
    refusal: int = 0
    #: Sends are refused with 131057 until this Unix time.
    maintenance_until: float = 0.0


class Template(msgspec.Struct, kw_only=True):
    """A message template in one language."""

    name: str
    language: str
    components: list[dict[str, Any]]
    category: str = "UTILITY"
    id: str = ""
    account: str = ""
    status: str = "APPROVED"
    parameter_format: str = "POSITIONAL"
    quality: str = "GREEN"
    rejected_reason: str = "NONE"
    previous_category: str | None = None
    correct_category: str | None = None
    message_send_ttl_seconds: int | None = None
    #: How many times it was paused because of its quality.
    pauses: int = 0
    edited_at: float = 0.0


class Token(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A bearer token."""

    token: str
    app: str
    #: valid, expired or revoked.
    state: str = "valid"
    scopes: list[str] = msgspec.field(default_factory=lambda: list(SCOPES))
    #: The accounts it may see; None means all.
    accounts: list[str] | None = None
    #: Unix time; 0 means never.
    expires_at: int = 0
    #: The error code for a send without the scope: 10, 200, 131005 or 3.
    denial: int = 10


class User(msgspec.Struct):
    """Somebody on WhatsApp."""

    wa_id: str
    user_id: str = ""
    name: str = "Amal Bén"
    username: str = ""
    #: Messages accepted for this user, and those that reached the phone.
    accepted: int = 0
    reached: int = 0

    @property
    def key(self) -> str:
        """The user's identity: the phone number, or the business-scoped id of a user with only a username."""
        return self.wa_id or self.user_id


class Message(msgspec.Struct, gc=False):
    """An accepted message: the user gets it, unless its script says otherwise."""

    id: str
    number: str
    account: str
    user: User
    type: str
    at: float
    tracker: str
    #: Lower case: utility, authentication, marketing or service.
    category: str
    free: str
    template: str
    content: Any
    to: str
    #: The statuses so far, in order.
    statuses: list[str]
    reached: bool = False


class SentMessage(msgspec.Struct, gc=False):
    """A request as received, without its token."""

    at: float
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    #: HTTP status of the response; 0 if there was none.
    status: int
    #: Meta's error code; 0 if none.
    code: int
    fault: str


class Counters(msgspec.Struct):
    """Counters since the start or the last reset."""

    requests: int = 0
    #: Accepted sends: each is a separate message to a user.
    accepted: int = 0
    refused: int = 0
    #: Messages accepted beyond the first with the same biz_opaque_callback_data: must stay 0.
    doubled: int = 0
    #: Messages that reached a phone.
    reached: int = 0
    #: Sends whose response was withheld, cut off or replaced by a fault.
    unanswered: int = 0
    statuses: int = 0
    inbound: int = 0
    events: int = 0
    #: Callbacks attempted, those answered with 200, and the updates in the latter.
    callbacks: int = 0
    callbacks_taken: int = 0
    items_taken: int = 0
    #: Updates sent again because their callback was not accepted.
    items_again: int = 0
    #: Updates given up after `retry_days`.
    items_lost: int = 0


class Setup(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The objects a simulator starts with."""

    apps: list[App] = []
    accounts: list[SimulatedAccount] = []
    numbers: list[Number] = []
    templates: list[Template] = []
    tokens: list[Token] = []
