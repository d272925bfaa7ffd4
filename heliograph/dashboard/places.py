"""The frame around every screen: where one can go, by role, and what stands on the rail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from heliograph import __version__
from heliograph.notices.kinds import KINDS
from heliograph.pages import cookies
from heliograph.pages.requests import Request
from heliograph.people import roles

#: Of the dashboard's screens.
TEMPLATES = Path(__file__).with_name("templates")


class Place(msgspec.Struct, frozen=True):
    """An entry of the rail, for who holds its scope and permission."""

    path: str
    label: str
    icon: str
    scope: str | None = None
    permission: str | None = None


#: Groups of the rail with their headings.
GROUPS: tuple[tuple[str, tuple[Place, ...]], ...] = (
    (
        "",
        (
            Place("/", "Home", "house"),
            Place("/send", "Send", "send", scope="sms:send"),
            Place("/messages", "Messages", "messages", scope="sms:read"),
            Place("/inbox", "Inbox", "mail", scope="whatsapp:read"),
            Place("/campaigns", "Campaigns", "megaphone", scope="campaigns:read"),
            Place("/contacts", "Contacts", "contact", scope="contacts:read"),
            Place("/templates", "Templates", "book", scope="whatsapp:read"),
        ),
    ),
    (
        "Developers",
        (
            Place("/webhooks", "Webhooks", "webhook", scope="webhooks:read"),
            Place("/requests", "Requests", "monitor", scope="webhooks:read", permission=roles.DEVELOP),
            Place("/keys", "API keys", "key", scope="api_keys:read"),
            Place("/docs", "API reference", "book"),
        ),
    ),
    (
        "Account",
        (
            Place("/usage", "Usage", "chart", permission=roles.USAGE),
            Place("/wallet", "Wallet", "wallet", permission=roles.USAGE),
            Place("/senders", "Sender IDs", "tag", scope="sender_ids:read"),
            Place("/numbers", "WhatsApp numbers", "messages", scope="whatsapp:read"),
            Place("/team", "Team", "users", permission=roles.TEAM),
            Place("/audit", "Audit log", "history", permission=roles.AUDIT),
            Place("/settings", "Settings", "settings", permission=roles.SETTINGS),
        ),
    ),
)

#: What the palette offers beside the places: (label, path, scope).
ACTIONS = (
    ("Send a message", "/send", "sms:send"),
    ("Create an API key", "/keys/new", "api_keys:write"),
    ("Create a test key", "/keys/new?mode=test", "api_keys:write"),
    ("New campaign", "/campaigns/new", "campaigns:write"),
    ("New contact", "/contacts/new", "contacts:write"),
    ("Opt-outs", "/contacts/opt-outs", "contacts:read"),
    ("Exports", "/exports", None),
    ("Register a webhook endpoint", "/webhooks/new", "webhooks:write"),
    ("Switch to test mode", "/?mode=test", None),
    ("Switch to live mode", "/?mode=live", None),
    ("My account", "/account", None),
    ("Change my password", "/account/password", None),
)


def frame(request: Request) -> dict[str, Any]:
    """What the templates of the frame need."""
    groups = [
        (heading, [place for place in places if request.may(place.scope, place.permission)])
        for heading, places in GROUPS
    ]
    reached = [
        {"label": request.text(place.label), "path": request.to(place.path)} for _, places in groups for place in places
    ]
    reached += [
        {"label": request.text(label), "path": path}
        for label, path, scope in ACTIONS
        if scope is None or request.may(scope)
    ]
    # Of those that are counted, the ones that the reader's role is told of.
    known = [KINDS[name] for name in (request.person.unread if request.session else ()) if name in KINDS]
    unread = [one for one in known if request.may(one.scope, one.permission, mode="live")]
    return {
        "unread": len(unread),
        "palette": reached,
        "rail": [(heading, places) for heading, places in groups if places],
        "shortcuts": "off" if request.cookies.get(cookies.KEYS) == "off" else "on",
        "is_folded": request.cookies.get("hg-rail") == "folded",
        "version": __version__,
    }
