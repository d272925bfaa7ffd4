"""The frame around every screen of the console: the navigation rail, filtered by role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heliograph.console.engine.console_cache import cache_of
from heliograph.pages.pieces import places
from heliograph.pages.pieces.places import Action, Groups, Place
from heliograph.pages.requests import Request
from heliograph.people.operators import roles

#: Templates of the console's screens.
TEMPLATES = Path(__file__).with_name("templates")


#: Groups of the rail with their headings.
GROUPS: Groups = (
    (
        "",
        (
            Place("/console/now", "Now", "monitor", permission=roles.NOW, key="h"),
            Place("/console/approvals", "Approvals", "tag", permission=roles.APPROVALS, key="a"),
            Place("/console/organizations", "Organizations", "house", permission=roles.ORGANIZATIONS, key="o"),
            Place("/console/messages", "Messages", "messages", permission=roles.LOOK, key="m"),
        ),
    ),
    (
        "Traffic",
        (
            Place("/console/suppliers", "Suppliers", "send", permission=roles.TRAFFIC, key="s"),
            Place("/console/routes", "Routes", "filter", permission=roles.TRAFFIC, key="d"),
            Place("/console/lookups", "Look-ups", "search", permission=roles.TRAFFIC, key="k"),
            Place("/console/receipts", "Receipts", "check", permission=roles.TRAFFIC, key="r"),
            Place("/console/inbound", "Inbound", "mail", permission=roles.TRAFFIC, key="i"),
            Place("/console/guard", "Guard", "lock", permission=roles.TRAFFIC, key="v"),
            Place("/console/whatsapp", "WhatsApp", "contact", permission=roles.TRAFFIC, key="c"),
        ),
    ),
    (
        "System",
        (
            Place("/console/queue", "Queue and workers", "clock", permission=roles.TRAFFIC, key="q"),
            Place("/console/health", "Health", "shield", permission=roles.TRAFFIC, key="e"),
        ),
    ),
    (
        "Money",
        (
            Place("/console/plans", "Plans and quota", "chart", permission=roles.MONEY, key="u"),
            Place("/console/wallets", "Wallets", "wallet", permission=roles.MONEY, key="w"),
            Place("/console/rates", "Rates", "tag", permission=roles.MONEY, key="t"),
            Place("/console/billing", "Billing export", "download", permission=roles.MONEY, key="b"),
        ),
    ),
    (
        "Administration",
        (
            Place("/console/operators", "Operators", "users", permission=roles.OPERATORS, key="p"),
            Place("/console/settings", "Settings", "settings", permission=roles.SETTINGS, key="y"),
            Place("/console/audit", "Audit log", "history", permission=roles.AUDIT_OWN, key="l"),
        ),
    ),
)


#: What the palette offers in addition to the places.
ACTIONS = (
    Action("New organization", "/console/organizations/new", permission=roles.ORGANIZATIONS_CHANGE),
    Action("Add a route", "/console/routes/new", permission=roles.TRAFFIC_CHANGE),
    Action("Where would this go?", "/console/routes/explain", permission=roles.TRAFFIC),
    Action("Add an operator", "/console/operators/new", permission=roles.OPERATORS),
    Action("My account", "/console/account"),
)

#: The console's own keyboard shortcuts.
KEYS = (("f", "Full screen, on the page Now"), ("a x", "Approve and reject, on the page Approvals"))


def frame(request: Request) -> dict[str, Any]:
    """The values that the frame's templates need."""
    unread = cache_of(request).unread(request.operator) if request.session else 0
    return {"unread": unread, **places.frame(request, GROUPS, ACTIONS, KEYS)}
