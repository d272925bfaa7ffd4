"""The interface between the engine and a channel. Tables, status rules and the interpretation of suppliers' answers
belong to the channel.

The rule nobody may break: a channel hands a message over only in `submit`, which the engine calls after the attempt has
been committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.base.sentences import said
from heliograph.queue.leases import Lease, Postponed
from heliograph.sending.attempts import Attempt
from heliograph.sending.results import Writer

#: The reason recorded when a commit failed, or took too long, and had begun attempts nevertheless.
COMMIT_LOST = said("the database's answer was lost or came too late; nothing was sent")


class Claimed(Protocol):
    """A claimed message with everything needed to decide about it, read on the connection that decides."""

    @property
    def lease(self) -> Lease: ...
    @property
    def at(self) -> datetime:
        """Now, by the database's clock."""

    @property
    def organization_state(self) -> str: ...
    @property
    def is_unsent(self) -> bool:
        """True if it is not known to have been accepted by anybody."""

    @property
    def attempt_state(self) -> str | None:
        """How its last attempt ended; None: there was none."""

    @property
    def started_at(self) -> datetime | None:
        """When its last attempt began."""


Message = TypeVar("Message", bound=Claimed)
Report_contra = TypeVar("Report_contra", contravariant=True)


class Finish(msgspec.Struct, frozen=True, gc=False):
    """Nothing more needs to be done for the message, apart from `move`."""

    move: Any = None


#: The next step for a claimed message: it is done, goes back into the queue, or goes out.
Step = Finish | Postponed | Attempt[Any]


class LostResolution(msgspec.Struct, frozen=True):
    """What has been learned about attempts whose answers were lost."""

    #: Moves that follow from it.
    moves: list[Any] = msgspec.field(default_factory=list)
    #: By message id: None if nothing more needs to be done, otherwise the message as it is now known to be.
    known: Mapping[UUID, Any] = msgspec.field(default_factory=dict)


class Channel(Writer[Report_contra], Protocol[Message, Report_contra]):
    """One channel within one worker."""

    #: Seconds that an attempt without an answer waits for news about its message.
    grace: float
    #: True if the last round took as much as it could: another round is worthwhile once capacity is freed.
    is_full: bool
    #: Set when another round may be worthwhile.
    wake: asyncio.Event

    async def before_round(self) -> None:
        """Called when a round begins: find out how much the connectors can take."""

    async def pick(self, conn: Connection, *, limit: int) -> list[Lease]:
        """Lock as many due rows as the connectors can take, in the caller's transaction; at most `limit` rows of new
        work (which may be zero or negative)."""

    async def load(self, conn: Connection, picked: Sequence[Lease]) -> list[Message]:
        """The picked messages, in their order. A separate statement, so that it sees the state after the locks were
        taken."""

    def home(self, lease: Lease) -> UUID:
        """The line for a message that is not bound to a particular connector."""

    async def find_lost(self, conn: Connection, lost: Sequence[Message]) -> LostResolution:
        """Look for news about messages whose last answer was lost."""

    async def give_up(self, conn: Connection, lost: Sequence[Message]) -> Mapping[UUID, Step]:
        """The grace period has passed without news: decide what happens to those that must not simply be sent again."""

    async def decide(self, conn: Connection, messages: Sequence[Message]) -> list[Step]:
        """What to do with these messages, in their order; none has an attempt that may still be answered."""

    async def expire_one(self, conn: Connection, lease: Lease) -> int | None:
        """End a picked message about which no decision is possible and without an attempt under way, if it is past its
        validity and no longer waits for news. Returns the number of webhook deliveries queued; None: it was left
        alone."""

    async def move(self, conn: Connection, moves: Sequence[Any]) -> int:
        """Move messages to their new states. Returns the number of webhook deliveries queued."""

    async def begun(self, conn: Connection, attempts: Sequence[Attempt[Message]]) -> None:
        """Called when these attempts and all moves have been written and are about to be committed."""

    def rolled_back(self) -> None:
        """Called when what was decided in this round, or in a part of it, was not committed, as far as is known."""

    def submit(self, attempt: Attempt[Message]) -> None:
        """Hand it over. Never blocks and never raises: the outcome is reported later."""

    def unsent(self, attempt: Attempt[Message]) -> Any:
        """The outcome of an attempt that began but was never handed over, although nothing is wrong with its target."""

    def heard(self, attempt: Attempt[Message], outcome: Any) -> None:
        """Called when a connector has answered, before anything is recorded."""

    def after_round(self, picked: Collection[Lease]) -> bool:
        """Called when the round is over. Returns True if the next one should follow at once."""
