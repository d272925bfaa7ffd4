"""What each role in an organization may do: the one table that pages, keys and tests rely on.

A role is a set of the contract's scopes, like those of an API key, for live and for test resources, and a set of page
permissions for whatever has no scope in the contract. The rule nobody may break: no other code decides by the name of a
role; it checks a scope or a permission.
"""

from __future__ import annotations

import msgspec

from heliograph.accounts.api_keys.scopes import SCOPES
from heliograph.base.errors import Invalid, Refusal
from heliograph.notices.kinds import KINDS

#: See whole phone numbers and texts; without it, only the last four digits and no text.
CONTENT = "content"
#: See the number and text of one message at a time, which is recorded.
REVEAL = "reveal"
#: See whole numbers and texts of conversations, as needed to answer them.
CONVERSE = "converse"
#: Export people as a file: contacts, opt-outs, a campaign's recipients. Members who message people see their numbers
#: one at a time; all of them at once are reserved for those responsible for the organization.
EXPORT = "export"
#: See the team and its invitations; change them; change owners as well.
TEAM, TEAM_CHANGE, OWNERS = "team", "team_change", "owners"
#: See quota, usage and wallet.
USAGE = "usage"
#: Change alerts of the wallet.
MONEY = "money"
#: See and change the organization's settings; closing it requires OWNERS.
SETTINGS = "settings"
#: See the audit log.
AUDIT = "audit"
#: See requests, events and webhook attempts.
DEVELOP = "develop"

PERMISSIONS = frozenset(
    {CONTENT, CONVERSE, REVEAL, EXPORT, TEAM, TEAM_CHANGE, OWNERS, USAGE, MONEY, SETTINGS, AUDIT, DEVELOP}
)


class RoleRequired(Refusal):
    """Your role does not allow this."""

    code, status = "role_required", 403


class Role(msgspec.Struct, frozen=True):
    """Scopes for live and for test resources, and page permissions."""

    name: str
    live: frozenset[str]
    test: frozenset[str]
    permissions: frozenset[str]
    #: Scopes beyond their own that live keys created by them may have.
    grants: frozenset[str] = frozenset()

    def scopes(self, mode: str) -> frozenset[str]:
        """The scopes for resources of a mode."""
        return self.live if mode == "live" else self.test


_ALL = frozenset(SCOPES)
_WEBHOOKS = frozenset({"webhooks:read", "webhooks:write"})
#: Scopes of everybody who sees messages.
_SEEN = frozenset({"sms:read", "whatsapp:read", "account:read", "contacts:read", "campaigns:read", "sender_ids:read"})
_DEVELOPER = _SEEN | _WEBHOOKS | {"api_keys:read"}
_SENDER = _SEEN | {"sms:send", "whatsapp:send", "contacts:write", "campaigns:write", "sender_ids:write"}

#: From most to least powerful, in the order in which they are offered.
ROLES: dict[str, Role] = {
    role.name: role
    for role in (
        Role("owner", _ALL, _ALL, PERMISSIONS),
        Role("admin", _ALL, _ALL, PERMISSIONS - {OWNERS}),
        # Can try everything with test keys and test sends; live keys are for owners and admins, and for developers if
        # an owner allows it (DEVELOPER_WITH_KEYS).
        Role("developer", _DEVELOPER, _ALL, frozenset({DEVELOP, USAGE, REVEAL})),
        Role("sender", _SENDER, _SENDER, frozenset({CONVERSE})),
        Role("viewer", _SEEN | {"webhooks:read"}, _SEEN | {"webhooks:read"}, frozenset({DEVELOP})),
        Role("billing", frozenset({"account:read"}), frozenset({"account:read"}), frozenset({USAGE, MONEY})),
    )
}

#: A developer if the organization's owner lets developers create live keys. Such a key may do what its creator may not
#: do by hand: send, and read what it sent. It cannot change the organization's settings, or create further keys.
DEVELOPER_WITH_KEYS = msgspec.structs.replace(
    ROLES["developer"],
    live=_DEVELOPER | {"api_keys:write"},
    grants=_ALL - {"account:write", "api_keys:write"},
)

#: The role of an operator who views as the organization (`operators.viewing`); it cannot be assigned. It can read
#: everything except texts, whole numbers and files.
VIEWING = Role(
    "viewing",
    frozenset(scope for scope in SCOPES if scope.endswith(":read")),
    frozenset(scope for scope in SCOPES if scope.endswith(":read")),
    frozenset({TEAM, USAGE, SETTINGS, AUDIT, DEVELOP}),
)


def held(name: str, *, developer_keys: bool = False) -> Role | None:
    """The role of a session, by its name and whether developers may create live keys."""
    if developer_keys and name == DEVELOPER_WITH_KEYS.name:
        return DEVELOPER_WITH_KEYS
    return VIEWING if name == VIEWING.name else ROLES.get(name)


def checked(name: str) -> Role:
    """The role of this name. Raises Invalid."""
    role = ROLES.get(name)
    if role is None:
        raise Invalid(("role", "enum", f"`role` must be one of {', '.join(ROLES)}"))
    return role


def holders(*, scope: str | None = None, permission: str | None = None, mode: str = "live") -> list[str]:
    """Names of the roles that hold a scope in a mode, or a permission."""
    return [
        role.name
        for role in ROLES.values()
        if (scope is None or scope in role.scopes(mode)) and (permission is None or permission in role.permissions)
    ]


def sees(role: str, kind: str) -> bool:
    """True if a role is notified of a kind of `notices` at all."""
    held, known = ROLES.get(role), KINDS[kind]
    return (
        held is not None
        and (known.scope is None or known.scope in held.live)
        and (known.permission is None or known.permission in held.permissions)
    )
