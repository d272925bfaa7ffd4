"""Retention rules: how long the tables of a room keep their rows, as the room itself declares. `heliograph/retention/`
applies them.

The rule nobody may break: every time here is the database's, and a statement touches a bounded number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Literal, Protocol
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection


class Bounds(msgspec.Struct, frozen=True):
    """Times before which rows have expired."""

    now: datetime
    #: Idempotency keys.
    keys: datetime
    #: Texts of messages, and copies of them.
    text: datetime
    #: Messages themselves. A message's row reproduces the answer for its idempotency key, so it outlives the key.
    metadata: datetime
    audit: datetime


Bound = Callable[[Bounds], datetime]


class Counted(msgspec.Struct, frozen=True):
    """The number of rows counted, and the key (organization, id) of the last one."""

    rows: int
    last: tuple[UUID, UUID]


class Count(Protocol):
    """Adds up to `limit` rows of a partition, after the key `after`, to the sums that will replace them; None: there
    were no more. Runs in the caller's transaction, which also advances `after`."""

    async def __call__(
        self, conn: Connection, *, partition: str, month: date, after: tuple[UUID, UUID], limit: int
    ) -> Counted | None: ...


class Close(Protocol):
    """Makes the sums replace the partition. Runs in the transaction that drops it."""

    async def __call__(self, conn: Connection, *, partition: str, month: date) -> None: ...


class IsReady(Protocol):
    """Whether nothing can be added to a month anymore."""

    async def __call__(self, conn: Connection, *, month: date) -> bool: ...


class Sums(msgspec.Struct, frozen=True):
    """Sums that replace the rows of a month, so that balances stay correct forever."""

    count: Count
    close: Close
    is_ready: IsReady | None = None


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A partitioned table whose partitions are dropped once they have expired."""

    name: str
    #: The column with a row's own time, to compare with that of its id.
    time: str
    bound: Bound
    by: Literal["month", "day"] = "month"
    #: The column with texts, which are erased long before their month is dropped.
    text: str | None = None
    #: What it becomes, the table's key, and a condition on rows whose texts are erased.
    erased: str = "NULL"
    key: str = "organization_id, id"
    holds_text: str = "true"
    #: A column with a later time, which then decides: rows that wait for that time stay, with their texts.
    later: str | None = None
    #: A condition on rows that may still be sent: they keep their texts, for up to `unsent_for` longer.
    unsent: str | None = None
    unsent_for: timedelta = timedelta(0)
    sums: Sums | None = None
    #: Wraps a statement that deletes rows of a partition one by one, for what must follow from it.
    stray: Callable[[str], str] = lambda deletion: deletion
    #: Whether rows in the default partition are kept.
    keeps_stray: bool = False


class Deletion(msgspec.Struct, frozen=True):
    """A statement that deletes up to $2 rows older than $1: a time, or the smallest id of that time."""

    name: str
    sql: str
    bound: Bound
    by: Literal["time", "id"] = "time"


class Rules(msgspec.Struct, frozen=True):
    """What retention deletes for a room, in this order."""

    tables: Sequence[Table] = ()
    deletions: Sequence[Deletion] = ()
