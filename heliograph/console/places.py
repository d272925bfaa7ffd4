"""The frame around every screen of the console: where an operator can go, by role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from heliograph import __version__
from heliograph.pages import cookies
from heliograph.pages.requests import Request
from heliograph.people.operators import roles

#: Of the console's screens.
TEMPLATES = Path(__file__).with_name("templates")


class Place(msgspec.Struct, frozen=True):
    """An entry of the rail, for who holds its permission."""

    path: str
    label: str
    icon: str
    permission: str


#: Groups of the rail with their headings.
GROUPS: tuple[tuple[str, tuple[Place, ...]], ...] = (
    (
        "",
        (
            Place("/console/now", "Now", "monitor", roles.NOW),
            Place("/console/approvals", "Approvals", "tag", roles.APPROVALS),
            Place("/console/organizations", "Organizations", "house", roles.ORGANIZATIONS),
            Place("/console/messages", "Messages", "messages", roles.LOOK),
        ),
    ),
    ("Carriage", (Place("/console/suppliers", "Suppliers", "send", roles.CARRIAGE),)),
    (
        "Engine",
        (
            Place("/console/queue", "Queue and workers", "clock", roles.CARRIAGE),
            Place("/console/health", "Health", "shield", roles.CARRIAGE),
        ),
    ),
    (
        "House",
        (
            Place("/console/operators", "Operators", "users", roles.OPERATORS),
            Place("/console/audit", "Audit log", "history", roles.AUDIT_OWN),
        ),
    ),
)


def frame(request: Request) -> dict[str, Any]:
    """What the templates of the frame need."""
    groups = [
        (heading, [one for one in places if request.may(permission=one.permission)]) for heading, places in GROUPS
    ]
    return {
        "rail": [(heading, places) for heading, places in groups if places],
        "is_folded": request.cookies.get(cookies.RAIL) == "folded",
        "version": __version__,
    }
