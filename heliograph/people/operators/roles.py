"""What each role in the console may do: the one table that its pages and tests rely on.

The rule nobody may break: no other code decides by the name of a role; it checks a permission.
"""

from __future__ import annotations

import msgspec

from heliograph.base.errors import Invalid

#: See the state of the service; every operator may.
NOW = "now"
#: See what waits for a decision; decide, suspend and resume.
APPROVALS, APPROVE = "approvals", "approve"
#: See organizations; create and change them.
ORGANIZATIONS, ORGANIZATIONS_CHANGE = "organizations", "organizations_change"
#: Look into an organization's messages, reveal text or number with a reason, view as an organization.
LOOK = "look"
#: See suppliers, routes, queue and settings; change them.
TRAFFIC, TRAFFIC_CHANGE = "traffic", "traffic_change"
#: See quotas, plans, wallets and rates; change them.
MONEY, MONEY_CHANGE = "money", "money_change"
#: See the installation's settings; change them.
SETTINGS, SETTINGS_CHANGE = "settings", "settings_change"
#: See and change operators and their factors.
OPERATORS = "operators"
#: See the whole audit log; see only one's own actions.
AUDIT, AUDIT_OWN = "audit", "audit_own"

PERMISSIONS = frozenset(
    {
        NOW,
        APPROVALS,
        APPROVE,
        ORGANIZATIONS,
        ORGANIZATIONS_CHANGE,
        LOOK,
        TRAFFIC,
        TRAFFIC_CHANGE,
        MONEY,
        MONEY_CHANGE,
        SETTINGS,
        SETTINGS_CHANGE,
        OPERATORS,
        AUDIT,
        AUDIT_OWN,
    }
)


class Role(msgspec.Struct, frozen=True):
    """A named set of permissions."""

    name: str
    permissions: frozenset[str]


_SEEN = frozenset({NOW, ORGANIZATIONS, AUDIT_OWN})

#: From most to least powerful, in the order in which they are offered.
ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role("root", PERMISSIONS),
        Role(
            "operator",
            _SEEN
            | {APPROVALS, APPROVE, ORGANIZATIONS_CHANGE, LOOK, TRAFFIC, TRAFFIC_CHANGE, MONEY, MONEY_CHANGE, AUDIT}
            | {SETTINGS},
        ),
        Role("support", _SEEN | {LOOK, TRAFFIC}),
        Role("finance", _SEEN | {MONEY, MONEY_CHANGE}),
        Role("auditor", _SEEN | {APPROVALS, TRAFFIC, MONEY, SETTINGS, AUDIT}),
    )
}


def checked(name: str) -> Role:
    """The role of this name. Raises Invalid."""
    role = ROLES.get(name)
    if role is None:
        raise Invalid(("role", "enum", f"`role` must be one of {', '.join(ROLES)}"))
    return role


def holders(permission: str) -> list[str]:
    """Names of the roles that hold a permission."""
    return [role.name for role in ROLES.values() if permission in role.permissions]
