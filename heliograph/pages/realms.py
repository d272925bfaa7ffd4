"""Realms: the dashboard for people and the console for operators. They share the kit, and nothing else.

The rule nobody may break: each realm has its own cookie and its own table of sessions, so that nothing that a browser
sends for one gives access to the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from heliograph.people import roles, sessions
from heliograph.people.operators import roles as operator_roles
from heliograph.people.operators import sessions as operator_sessions


class Realm(msgspec.Struct, frozen=True, kw_only=True):
    """One of them."""

    #: Also recorded with failed sign-ins, and used as the realm of links (`people.links`).
    name: str
    #: Name of its session's cookie.
    cookie: str
    #: Prefix of its sign-in paths; the front page is this, or `/`.
    prefix: str
    #: Path of the page where a second factor is set up.
    factor: str
    #: Functions that record a repeated authentication, and that end a session on signing out.
    prove: Callable[..., Awaitable[None]]
    end: Callable[..., Awaitable[None]]
    #: Names of the roles that hold a scope, a permission, or both, in a mode.
    holders: Callable[[str | None, str | None, str], list[str]]

    @property
    def home(self) -> str:
        """Its first page."""
        return self.prefix or "/"

    @property
    def sign_in(self) -> str:
        """Where visitors are redirected."""
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
