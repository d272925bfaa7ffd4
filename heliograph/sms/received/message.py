"""A message from a handset, complete or with the parts received so far, and the organization that it is for."""

from __future__ import annotations

from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.consent.optouts import Pair
from heliograph.sms.received.assembly import Group


class Owner(msgspec.Struct, frozen=True, gc=False):
    """The organization that a number belongs to."""

    organization_id: UUID
    sender_id: UUID
    sender: str
    #: Its own words for STOP, folded.
    words: frozenset[str]
    country: str | None


class Message(msgspec.Struct, gc=False):
    """A complete message, and its owner."""

    group: Group
    owner: Owner
    text: str | None
    #: E.164; None: not a number in the supplier's format.
    phone: str | None
    #: It was shown before and is still incomplete: its text is extended, and nobody is notified.
    quiet: bool
    #: The supplier answers keywords itself.
    answered: bool
    #: Other organizations have this number too.
    shared: bool
    keyword: str | None = None
    word: str = ""

    @property
    def pair(self) -> Pair:
        assert self.phone is not None
        return self.owner.organization_id, self.phone

    @property
    def is_assignable(self) -> bool:
        """False for a message without a keyword to a number shared by several organizations: it could belong to any."""
        return self.keyword is not None or not self.shared

    @property
    def person(self) -> Pair:
        """The organization, and the number in the form shared by all its spellings."""
        organization_id, phone = self.pair
        return organization_id, phones.person(phone)
