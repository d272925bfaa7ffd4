"""Who asks. Every rule takes the actor second, so that the tenant is never forgotten."""

from __future__ import annotations

from uuid import UUID

import msgspec


class Actor(msgspec.Struct, frozen=True):
    """An organization, and the key that speaks for it, as they were at most a second ago."""

    organization_id: UUID
    #: The API key, or None when an operator acts from the command line.
    key_id: UUID | None
    #: "live" or "test": test sends reach no supplier and cost no quota.
    mode: str
    scopes: frozenset[str]
    #: organizations.state
    state: str
    #: Replace look-alike characters so that a text fits GSM-7.
    smart_encoding: bool = False
    #: ISO regions that may be sent to; None: all.
    allowed_countries: frozenset[str] | None = None
