"""Rules of retention: how long a room's tables keep what, as the room itself declares it. `heliograph/retention/`
applies them.

The rule nobody may break: every time here is the database's, and a statement touches a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Literal, Protocol
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection


class Bounds(msgspec.Struct, frozen=True):
    """What is older than these is past."""

    now: datetime
    #: Idempotency keys.
    keys: datetime
    #: Texts of messages, and what repeats them.
    text: datetime
    #: Messages themselves. A message's row makes the answer of its idempotency key again, so it outlives the key.
    metadata: datetime
    audit: datetime


Bound = Callable[[Bounds], datetime]


class Counted(msgspec.Struct, frozen=True):
    """How many rows were counted, and the key (organization, id) of the last one."""

    rows: int
    last: tuple[UUID, UUID]


class Count(Protocol):
    """Adds up to `limit` rows of a partition, after the key `after`, to the sums that will replace them; None: that was
    all. Runs in the caller's transaction, in which `after` is moved on."""

    async def __call__(
        self, conn: Connection, *, partition: str, month: date, after: tuple[UUID, UUID], limit: int
    ) -> Counted | None: ...


class Close(Protocol):
    """The sums replace the partition from now on. In the transaction that drops it."""

    async def __call__(self, conn: Connection, *, partition: str, month: date) -> None: ...


class IsReady(Protocol):
    """Whether nothing can be added to a month any more."""

    async def __call__(self, conn: Connection, *, month: date) -> bool: ...


class Sums(msgspec.Struct, frozen=True):
    """What replaces the rows of a month, so that balances add up forever."""

    count: Count
    close: Close
    is_ready: IsReady | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A partitioned table, whose partitions are dropped when they are past."""

    name: str
    #: A row's own time, to compare with what its id says.
    time: str
    bound: Bound
    by: Literal["month", "day"] = "month"
    #: The column with texts, which are erased long before their month is dropped.
    text: str | None = None
    #: A column with a later time, which then counts for the text: what waits for its time still needs it.
    later: str | None = None
    sums: Sums | None = None
    #: A statement around the deletion of rows in the default partition, for what has to follow from it.
    stray: Callable[[str], str] = lambda deletion: deletion
    #: Rows in the default partition stay.
    keeps_stray: bool = False


class Deletion(msgspec.Struct, frozen=True):
    """A statement that deletes up to $2 rows older than $1: a time, or the smallest id of that time."""

    name: str
    sql: str
    bound: Bound
    by: Literal["time", "id"] = "time"


class Rules(msgspec.Struct, frozen=True):
    """What a room lets retention delete, in this order."""

    tables: Sequence[Table] = ()
    deletions: Sequence[Deletion] = ()
