"""The interface between campaigns and channels: what staging, counting and withdrawing require of a channel.

A channel knows the content and cost of its messages, and how to store them. It knows nothing about audiences, cursors
or pacing, and the code for those knows nothing about channels. The rule nobody may break: whatever a channel stores for
a chunk, it stores in the caller's transaction, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import msgspec

from heliograph.base.database.bounded_scan import AHEAD
from heliograph.base.database.pool import Connection
from heliograph.base.ids import time_of
from heliograph.campaigns.audience import Recipient


class DueCampaign(msgspec.Struct, frozen=True):
    """A campaign whose step is due, with what every channel needs to know about it and its organization. Its row is
    locked."""

    organization_id: UUID
    id: UUID
    channel: str
    status: str
    status_reason: str | None
    mode: str
    audience_tags: list[str] | None
    audience_import: UUID | None
    audience_tag_match_mode: str
    excluded_tags: list[str]
    not_written_days: int | None
    with_names: bool
    messages_per_minute: int | None
    request_id: str
    gather_tag: int
    gather_after: UUID
    staged_to: str
    total: int
    due_at: datetime | None
    #: When its step began, by the database's clock.
    at: datetime
    state: str
    smart_encoding: bool
    replace_accents: bool
    allowed_countries: list[str] | None

    def accepted_at(self, ids: Sequence[UUID]) -> datetime:
        """When messages with these new ids are accepted: when the step began, but if it takes long, not much before
        they got them, since lists of a period look for its messages by their ids."""
        return max(self.at, time_of(ids[0]) - AHEAD / 2)

    @property
    def is_gathered(self) -> bool:
        """True if its recipients are gathered at its start, not listed."""
        return self.audience_tags is not None or self.audience_import is not None


class StagedMessage(msgspec.Struct, frozen=True, gc=False):
    """One recipient's message. Each channel adds its content."""

    #: Its cost: segments, or money of a wallet; 0 for a test message.
    cost: int


class StagingStop(msgspec.Struct, frozen=True):
    """Nothing can be staged now. The campaign continues by itself once the reason is gone, unless it fails."""

    reason: str
    fails: bool = False


class Batch(Protocol):
    """What is needed to create the messages of one step."""

    #: Equal keys produce equal messages.
    key: tuple[Any, ...]

    def make(self, recipient: Recipient) -> StagedMessage | None:
        """This recipient's message; None: not possible."""

    def short(self, messages: int, cost: int) -> str | None:
        """The limit that does not cover this many messages of this total cost: the reason why a campaign is paused
        before the first message that is not covered. None: all are covered."""

    async def accept(
        self, conn: Connection, ids: Sequence[UUID], recipients: Sequence[str], made: Sequence[Any], due: list[datetime]
    ) -> bool:
        """Store messages returned by `make`, and charge their cost; False: not all of them are covered any more, and
        nothing is stored.

        `due`: when each is due; empty: at once.
        """


class Channel(Protocol):
    """One way of sending campaigns."""

    name: str
    #: Maximum recipients staged per transaction: the organization's single sends may have to wait for it.
    most: int
    #: SQL that returns one row about the chunk `chunk`: how many of its messages are `queued_now`, `sent_now`, … (those
    #: of `counting.FATES`), and how many have ended but may still improve (`late_now`).
    counted: str

    async def open(self, conn: Connection, due: DueCampaign) -> Batch | StagingStop:
        """What is needed to stage part of a campaign now."""

    async def unsent(self, conn: Connection, due: DueCampaign, first_id: UUID, last_id: UUID) -> list[UUID]:
        """Ids of the campaign's messages within a range of ids that were not sent, in order."""

    async def withdraw(self, conn: Connection, due: DueCampaign, first_id: UUID, last_id: UUID) -> None:
        """Cancel the campaign's messages within a range of ids that no worker has taken yet, and refund their cost.
        Raises plan.StepOutdated."""
