"""What the engine asks of a channel. Tables, status rules and suppliers' answers are the channel's own.

The rule nobody may break: a channel hands a message over only in `submit`, which the engine calls after the attempt is
committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.queue.leases import Lease, Postponed
from heliograph.sending.attempts import Attempt
from heliograph.sending.results import Writer


class Claimed(Protocol):
    """A claimed message with everything that decides about it, read on the connection that decides."""

    @property
    def lease(self) -> Lease: ...
    @property
    def at(self) -> datetime:
        """Now, by the database's clock."""

    @property
    def is_unsent(self) -> bool:
        """Not known to have been accepted by anybody."""

    @property
    def attempt_state(self) -> str | None:
        """How its last attempt ended; None: there was none."""

    @property
    def started_at(self) -> datetime | None:
        """When its last attempt began."""


Message = TypeVar("Message", bound=Claimed)
Report_contra = TypeVar("Report_contra", contravariant=True)


class End(msgspec.Struct, frozen=True, gc=False):
    """Nothing more is to be done for the message, apart from `move`."""

    move: Any = None


#: The next step for a claimed message: its work ends, it goes back into the queue, or out.
Step = End | Postponed | Attempt[Any]


class Found(msgspec.Struct, frozen=True):
    """What is known by now about attempts whose answers were lost."""

    #: Moves that follow.
    moves: list[Any] = msgspec.field(default_factory=list)
    #: By message id: nothing more is to be done (None), or the message as it is known to be now.
    known: Mapping[UUID, Any] = msgspec.field(default_factory=dict)


class Channel(Writer[Report_contra], Protocol[Message, Report_contra]):
    """One channel within one worker."""

    #: Seconds that an attempt without an answer waits for news of its message.
    grace: float
    #: The last round took all it could: freed capacity is worth another one.
    is_full: bool
    #: Set when another round may be worthwhile.
    wake: asyncio.Event

    async def before_round(self) -> None:
        """A round begins: find out what the connectors can take."""

    async def pick(self, conn: Connection, *, limit: int) -> list[Lease]:
        """Lock what the connectors can take of what is due, in the caller's transaction; at most `limit` rows of new
        work, which may be zero or negative."""

    async def load(self, conn: Connection, picked: Sequence[Lease]) -> list[Message]:
        """The picked messages, in their order. A separate statement, so that it sees the state after the locks were
        taken."""

    def home(self, lease: Lease) -> UUID:
        """The line for a message that is not meant for a particular connector."""

    async def find_lost(self, conn: Connection, lost: Sequence[Message]) -> Found:
        """Look for news of messages whose last answer was lost."""

    async def give_up(self, conn: Connection, lost: Sequence[Message]) -> Mapping[UUID, Step]:
        """The grace period is over without news: what happens to those that must not simply be sent again."""

    async def decide(self, conn: Connection, messages: Sequence[Message]) -> list[Step]:
        """What to do with these messages, in their order; none has an attempt that may still be answered."""

    async def move(self, conn: Connection, moves: Sequence[Any]) -> int:
        """Move messages to their new states. Returns the webhook deliveries that were queued."""

    async def begun(self, conn: Connection, attempts: Sequence[Attempt[Message]]) -> None:
        """These attempts are recorded, all moves are made, and both are about to be committed."""

    def submit(self, attempt: Attempt[Message]) -> None:
        """Hand it over. Never blocks and never raises: the outcome comes later."""

    def heard(self, attempt: Attempt[Message], outcome: Any) -> None:
        """A connector answered, before anything is recorded."""

    def after_round(self, picked: Collection[Lease]) -> bool:
        """The round is over. True if the next one should follow at once."""
