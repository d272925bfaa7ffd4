"""The objects of the Graph API simulator, as in a setup file and in memory.

Every one of them can be written as JSON, which is what `heliograph simulate graph --config` reads and what the control
plane takes. Ids are text even where Meta writes them as integers, because some are larger than a float can hold.
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
    #: The portfolio, which the messaging limit belongs to.
    business: str = "770000000000001"
    #: Apps that are called back for it.
    subscribed: list[str] = []
    currency: str = "EUR"
    timezone_id: str = "1"
    account_review_status: str = "APPROVED"
    business_verification_status: str = "verified"
    template_namespace: str = "00000000_0000_0000_0000_000000000000"
    #: Sends of all its numbers are refused with this code; 0: they are not.
    refusal: int = 0
    #: RESTRICTED_BIZ_INITIATED_MESSAGING and the like.
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
    #: It is on the WhatsApp Business app as well, and may send 20 messages a second.
    is_on_biz_app: bool = False
    #: TIER_250, TIER_2K, …, TIER_UNLIMITED: what GETs say. What is enforced is the option `tier`.
    limit: str = "TIER_UNLIMITED"
    registered: bool = True
    #: Sends are refused with this code (131037, 131042, 131045, 131048 …); 0: they are not.
    refusal: int = 0
    #: Until then 131057, Unix seconds.
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
    #: How often it was paused for its quality.
    pauses: int = 0
    edited_at: float = 0.0


class Token(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A bearer token."""

    token: str
    app: str
    #: valid, expired or revoked.
    state: str = "valid"
    scopes: list[str] = msgspec.field(default_factory=lambda: list(SCOPES))
    #: The accounts that it may see; None: all.
    accounts: list[str] | None = None
    #: Unix seconds; 0: never.
    expires_at: int = 0
    #: What a send without the scope is refused with: 10, 200, 131005 or 3.
    denial: int = 10


class User(msgspec.Struct):
    """Somebody on WhatsApp."""

    wa_id: str
    user_id: str = ""
    name: str = "Amal Bén"
    username: str = ""
    #: Messages accepted for this user, and those that came to the phone.
    accepted: int = 0
    reached: int = 0

    @property
    def key(self) -> str:
        """What the user is known by: the phone, or the business-scoped id of somebody with a username only."""
        return self.wa_id or self.user_id


class Message(msgspec.Struct, gc=False):
    """A message that was accepted: the user gets it, unless its script says otherwise."""

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
    #: Statuses that happened, in their order.
    statuses: list[str]
    reached: bool = False


class SentMessage(msgspec.Struct, gc=False):
    """A request as it came, without its token."""

    at: float
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    #: What it was answered with; 0: with nothing.
    status: int
    #: Meta's code; 0: none.
    code: int
    fault: str


class Counters(msgspec.Struct):
    """Counters since the start or the last reset."""

    requests: int = 0
    #: Sends that were taken: each is a message of its own to a user.
    accepted: int = 0
    refused: int = 0
    #: Messages accepted beyond the first with the same biz_opaque_callback_data: what must stay 0.
    doubled: int = 0
    #: Messages that came to a phone.
    reached: int = 0
    #: Sends whose answer was withheld, cut or replaced by a fault.
    unanswered: int = 0
    statuses: int = 0
    inbound: int = 0
    events: int = 0
    #: Callbacks that were tried, those answered with 200, and updates in those.
    callbacks: int = 0
    callbacks_taken: int = 0
    items_taken: int = 0
    #: Updates that were sent again because their callback was not taken.
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
