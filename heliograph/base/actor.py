"""Actors. Every rule takes the actor as its second argument, so that the tenant is never forgotten."""

from __future__ import annotations

from uuid import UUID

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """The actor as recorded in the audit log, and what is known about the request."""

    #: "person", "key", "operator", "cli" (an operator at a shell), "system" (the service itself) or "unknown".
    kind: str
    #: The id of the person, operator or key.
    id: UUID | None = None
    #: The name of the person or operator, or the user of the shell.
    name: str = ""
    address: str = ""
    #: What the client claims to be.
    device: str = ""
    request_id: str = ""
    #: The reason given.
    reason: str = ""


#: The service, following its own rules: nobody requested it.
SYSTEM = Principal("system")


class RateLimits(msgspec.Struct, frozen=True):
    """Requests that each key of an organization may make in a minute, by the bucket in which they count; None: the
    installation's limit."""

    sms_send: int | None = None
    campaigns: int | None = None
    mutations: int | None = None
    reads: int | None = None


class Actor(msgspec.Struct, frozen=True):
    """An organization, and the key or person that acts for it; at most a second out of date."""

    organization_id: UUID
    #: The API key, or None when a person acts on a page or an operator from the command line.
    key_id: UUID | None
    #: "live" or "test", which is also the mode of what it creates: test sends reach no supplier and cost no quota.
    mode: str
    scopes: frozenset[str]
    #: organizations.state
    state: str
    #: Replace look-alike characters so that a text fits GSM-7.
    smart_encoding: bool = False
    #: Remove accents if that makes a text fit GSM-7; look-alikes are then replaced as well.
    replace_accents: bool = False
    #: Defaults for sends: what happens after an attempt with an unknown outcome, and a message's validity.
    guarantee: str = "at_least_once"
    validity_seconds: int | None = None
    #: ISO regions that may be sent to; None: all.
    allowed_countries: frozenset[str] | None = None
    #: The organization's own limits; None: it has none.
    rate_limits: RateLimits | None = None
    #: Scopes beyond `scopes` that the person may give to keys.
    grants: frozenset[str] = frozenset()
    #: Who acts, if more than the key is known.
    by: Principal | None = None

    @property
    def principal(self) -> Principal:
        """The actor as named in the audit log."""
        return self.by or (SYSTEM if self.key_id is None else Principal("key", self.key_id))

    @property
    def user_id(self) -> UUID | None:
        """The person who acts on a page; `scopes` are those of their role in `mode`."""
        return self.by.id if self.by is not None and self.by.kind == "person" else None

    @property
    def is_operator(self) -> bool:
        """Whether the actor is an operator of the installation, neither a key nor a person."""
        return self.key_id is None and self.user_id is None

    def own_rate_limit(self, bucket: str) -> int | None:
        """The organization's own limit for a bucket; None: the installation's applies."""
        if self.rate_limits is None:
            return None
        limit: int | None = getattr(self.rate_limits, bucket)
        return limit

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes whose resources the actor sees and changes: a key or page its own mode, an operator both."""
        return ("live", "test") if self.is_operator and self.mode == "live" else (self.mode,)
