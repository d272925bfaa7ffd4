"""Realms: whose pages they are. The dashboard's people and the console's operators share the kit, and nothing else.

The rule nobody may break: a realm has a cookie of its own and sessions in a table of its own, so that nothing that a
browser brings for one of them opens the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from heliograph.people import roles, sessions
from heliograph.people.operators import roles as operator_roles
from heliograph.people.operators import sessions as operator_sessions


class Realm(msgspec.Struct, frozen=True, kw_only=True):
    """One of them."""

    #: Also the door that failures to sign in name, and the realm of links (`people.links`).
    name: str
    #: Of its session's cookie.
    cookie: str
    #: Before the paths of its door; the front page is this, or `/`.
    prefix: str
    #: Of the page where a second factor is set up.
    factor: str
    #: Writes that the person of a session authenticated again, and ends one that signs out.
    prove: Callable[..., Awaitable[None]]
    end: Callable[..., Awaitable[None]]
    #: Names of the roles that hold a scope, a permission, or both, in a mode.
    holders: Callable[[str | None, str | None, str], list[str]]

    @property
    def front(self) -> str:
        """Its first page."""
        return self.prefix or "/"

    @property
    def sign_in(self) -> str:
        """Where visitors are sent."""
        return f"{self.prefix}/login"


DASHBOARD = Realm(
    name="dashboard",
    cookie="hg",
    prefix="",
    factor="/account/factor",
    prove=sessions.prove,
    end=sessions.end_token,
    holders=lambda scope, permission, mode: roles.holders(scope=scope, permission=permission, mode=mode),
)
CONSOLE = Realm(
    name="console",
    cookie="hgc",
    prefix="/console",
    factor="/console/setup/factor",
    prove=operator_sessions.prove,
    end=operator_sessions.end_token,
    holders=lambda scope, permission, mode: operator_roles.holders(permission or operator_roles.NOW),
)
