"""What the engine asks of a channel. Its tables, its status rules and its suppliers' answers are its own.

The rule nobody may break: a channel never hands a message over but in `submit`, which the engine calls after the
attempt is committed.
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
    """A claimed message with all that decides about it, read by the connection that decides."""

    @property
    def lease(self) -> Lease: ...
    @property
    def at(self) -> datetime:
        """Now, by the database's clock."""

    @property
    def is_unsent(self) -> bool:
        """Nobody is known to have taken it."""

    @property
    def attempt_state(self) -> str | None:
        """How its last attempt ended; None: there was none."""

    @property
    def started_at(self) -> datetime | None:
        """When its last attempt began."""


Message = TypeVar("Message", bound=Claimed)
Report_contra = TypeVar("Report_contra", contravariant=True)


class End(msgspec.Struct, frozen=True, gc=False):
    """Nothing more is to be done for the message, but for `move`."""

    move: Any = None


#: What becomes of a claimed message: its work ends, it goes back into the queue, or out.
Step = End | Postponed | Attempt[Any]


class Found(msgspec.Struct, frozen=True):
    """What is known by now of attempts whose answers were lost."""

    #: Moves that follow.
    moves: list[Any] = msgspec.field(default_factory=list)
    #: By message id: nothing more is to be done (None), or the message as it is known to be now.
    known: Mapping[UUID, Any] = msgspec.field(default_factory=dict)


class Channel(Writer[Report_contra], Protocol[Message, Report_contra]):
    """One channel within one worker."""

    #: Where its messages stand; open ones are `accepted` there until somebody has taken them.
    table: str
    #: Seconds that an attempt without an answer waits for news of its message.
    grace: float
    #: The last round took all it could: room that comes free is worth another one.
    is_full: bool
    #: Set when another round may be worth it.
    wake: asyncio.Event

    async def before_round(self) -> None:
        """A round begins: see what the connectors can take."""

    async def pick(self, conn: Connection, *, limit: int) -> list[Lease]:
        """Lock what the connectors can take of what is due, in the caller's transaction; at most `limit` rows of new
        work, which may be none or less."""

    async def load(self, conn: Connection, picked: Sequence[Lease]) -> list[Message]:
        """The picked messages, in their order. A statement of its own: what it reads is as of after the locks."""

    def home(self, lease: Lease) -> UUID:
        """The line in which a message waits that is meant for no connector in particular."""

    async def find_lost(self, conn: Connection, lost: Sequence[Message]) -> Found:
        """Look for news of messages whose last answer was lost."""

    async def give_up(self, conn: Connection, lost: Sequence[Message]) -> Mapping[UUID, Step]:
        """The grace is over and nothing was heard: what becomes of those that must not simply be sent again."""

    async def decide(self, conn: Connection, messages: Sequence[Message]) -> list[Step]:
        """What becomes of these messages, none of whose attempts may still be answered, in their order."""

    async def move(self, conn: Connection, moves: Sequence[Any]) -> int:
        """Move messages to their new states. Returns the webhook deliveries that were queued."""

    async def begun(self, conn: Connection, attempts: Sequence[Attempt[Message]]) -> None:
        """These attempts are written down and about to be committed."""

    def submit(self, attempt: Attempt[Message]) -> None:
        """Hand it over. Never blocks and never raises: the outcome comes later."""

    def heard(self, attempt: Attempt[Message], outcome: Any) -> None:
        """A connector answered, before anything is recorded."""

    def after_round(self, picked: Collection[Lease]) -> bool:
        """The round is over. True if the next one should follow at once."""
