"""Operators' actions on queued work: hold, release, hurry, resume, withdraw. (`waiting` counts it.)

A hold is a row that every claim checks (`backlog.HELD`), so it applies to every worker from its commit on,
survives restarts, and covers future work. Work that a worker has already claimed is still sent.

The rule nobody may break: a hold never loses work. Held rows stay in the queue as they are; only a channel's
`withdrawal` ends them, and records that in the message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import SYSTEM, Principal
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7, uuid7_floor
from heliograph.queue import leases
from heliograph.queue.backlog import FITS, HELD, WAITS_FOR_RECEIVER

#: Kinds of work that leave this installation: to suppliers, to Meta, to customers' endpoints.
OUTGOING = ("sms", "whatsapp", "webhook")


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects work; None matches everything."""

    kinds: tuple[str, ...] = OUTGOING
    #: A supplier, a WhatsApp number or a webhook endpoint.
    line: UUID | None = None
    organization_id: UUID | None = None
    #: Created before this: messages by their time of acceptance, webhook deliveries by that of their event.
    before: datetime | None = None

    @property
    def before_id(self) -> UUID | None:
        """Ids below this one were created before `before`."""
        return None if self.before is None else uuid7_floor(self.before)


class Hold(msgspec.Struct, frozen=True):
    """Work that is held until an operator releases it."""

    id: UUID
    kind: str
    line: UUID | None
    organization_id: UUID | None
    before: datetime | None
    reason: str
    #: Name of the operator, or of the shell user; "": created by a restore.
    made_by: str
    created_at: datetime
    #: It was restored from a backup: nothing of it expires while it is held.
    restored: bool


class Row(msgspec.Struct, frozen=True, gc=False):
    """A row that is not leased."""

    id: UUID
    line: UUID
    organization_id: UUID


class AlreadyAttempted(Exception):
    """A worker has meanwhile tried one of the messages to be withdrawn. The caller must roll back its transaction, and
    can then retry all of it."""


class Withdrawn(msgspec.Struct, frozen=True):
    """The outcome of a withdrawal."""

    #: Messages that cannot have reached anybody: canceled and refunded. Webhook deliveries: dropped.
    canceled: int = 0
    #: Tried, with unknown outcome: ended with that status.
    ended: int = 0
    #: Still in the queue: leased by a worker, or tried with unknown outcome, unless those were included.
    left: int = 0

    def __add__(self, other: Withdrawn) -> Withdrawn:
        return Withdrawn(self.canceled + other.canceled, self.ended + other.ended, self.left + other.left)


#: The longest age; far beyond it lie times that PostgreSQL can represent but Python cannot.
OLDEST_AGE = timedelta(days=3_650)
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def age(text: str) -> timedelta | None:
    """Parse an age such as `90s`, `15m`, `2h` or `3d`; None if it is not an age, or exceeds OLDEST_AGE."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    long = None if match is None else timedelta(**{UNITS[match[2]]: int(match[1])})
    return None if long is None or long > OLDEST_AGE else long


AGO = "SELECT now() - $1::interval"


async def ago(conn: Connection, age: timedelta) -> datetime:
    """The time `age` ago, by the database's clock."""
    at: datetime = await conn.fetchval(AGO, age)
    return at


_HOLD = "id, kind, line, organization_id, before, reason, made_by, created_at, restored"
PUT = """
INSERT INTO queue_holds (id, kind, line, organization_id, before, before_id, reason, made_by, restored)
SELECT item.id, item.kind, $2, $3, $4, $5, $6, $8, $9 FROM unnest($1::text[], $7::uuid[]) AS item (kind, id)
 WHERE NOT EXISTS (SELECT FROM queue_holds known WHERE known.kind = item.kind AND known.line IS NOT DISTINCT FROM $2
                       AND known.organization_id IS NOT DISTINCT FROM $3 AND known.before IS NOT DISTINCT FROM $4
                       AND known.restored = $9)
"""
LIST = f"SELECT {_HOLD} FROM queue_holds ORDER BY id"
# Reads the few rows with one id; a message has a single row of its kind.
HOLDING = f"""
SELECT h.reason FROM queue JOIN queue_holds h ON {FITS} WHERE queue.id = $1 AND queue.kind || '' = $2 ORDER BY h.id
"""
# From here on every claim sees the hold; earlier claims are counted.
LEASED = """
SELECT count(*) FROM queue WHERE kind = ANY ($1) AND lease_until > now() AND ($2::uuid IS NULL OR line = $2)
   AND ($3::uuid IS NULL OR organization_id = $3) AND ($4::uuid IS NULL OR id < $4)
"""


async def hold(
    conn: Connection, which: Selection, *, reason: str, restored: bool = False, by: Principal = SYSTEM
) -> tuple[list[Hold], int]:
    """Hold work. Idempotent. `restored`: it was restored from a backup, so it may have been sent since, and nothing of
    it expires while it is held.

    Returns all current holds, and how many rows of this work are claimed by workers: those are still sent.
    """
    values = (which.line, which.organization_id, which.before, which.before_id)
    async with conn.transaction():
        await conn.execute(PUT, list(which.kinds), *values, reason, [uuid7() for _ in which.kinds], by.name, restored)
        await _record(conn, by, "queue.held", which, reason=reason, told={"restored": True} if restored else None)
    leased: int = await conn.fetchval(LEASED, list(which.kinds), which.line, which.organization_id, which.before_id)
    return await list_all(conn), leased


async def list_all(conn: Connection) -> list[Hold]:
    """All holds, oldest first."""
    return [Hold(**row) for row in await conn.fetch(LIST)]


async def reasons(conn: Connection, *, id: UUID, kind: str) -> list[str] | None:
    """The reasons that operators gave for holding the work with this id; None: it is not held."""
    rows = await conn.fetch(HOLDING, id, kind)
    return [row["reason"] for row in rows if row["reason"]] if rows else None


RELEASE = f"""
DELETE FROM queue_holds
 WHERE kind = ANY ($1) AND ($2::uuid IS NULL OR line = $2) AND ($3::uuid IS NULL OR organization_id = $3)
   AND ($4::uuid IS NULL OR id = $4)
RETURNING {_HOLD}
"""


async def release(conn: Connection, which: Selection, *, id: UUID | None = None, by: Principal = SYSTEM) -> list[Hold]:
    """Release holds: a single one, or all of these kinds, limited to this line or organization if given. Returns the
    released ones."""
    async with conn.transaction():
        rows = await conn.fetch(RELEASE, list(which.kinds), which.line, which.organization_id, id)
        ended = [
            audit.Entry(
                action="queue.released",
                object_id=str(row["id"]),
                organization_id=row["organization_id"],
                before={name: row[name] for name in ("kind", "line", "before", "reason", "restored")},
            )
            for row in rows
        ]
        await audit.record_many(conn, by, ended)
    return [Hold(**row) for row in rows]


async def begin_withdrawal(conn: Connection, which: Selection, *, tried: bool, by: Principal = SYSTEM) -> None:
    """Record in the audit log that this work is about to be withdrawn, which takes many transactions."""
    await _record(conn, by, "queue.withdrawn", which, told={"tried": tried})


async def _record(
    conn: Connection,
    by: Principal,
    action: str,
    which: Selection,
    *,
    reason: str = "",
    told: dict[str, object] | None = None,
) -> None:
    after = {"kinds": which.kinds, "line": which.line, "before": which.before, **(told or {})}
    await audit.record(
        conn,
        by,
        action,
        object_id=which.line or which.organization_id or "everything",
        organization_id=which.organization_id,
        after=after,
        reason=reason,
    )


LATE = leases.OLDEST.format(counts=f"NOT ({HELD}) AND NOT {WAITS_FOR_RECEIVER}", **leases.OF_ALL)
LATE_BY_LINE = leases.OLDEST.format(counts=f"NOT ({HELD})", **leases.OF_EACH)


async def late(
    conn: Connection,
    kind: str,
    *,
    without: Collection[UUID],
    looked: int = leases.LOOKED,
    places: int = leases.PLACES,
) -> float:
    """Like `leases.oldest`, but without held work, and without what waits behind a receiver that fails."""
    age: float = await conn.fetchval(LATE, kind, list(without), looked, places)
    return age


async def late_by_line(
    conn: Connection, kind: str, *, looked: int = leases.LOOKED, places: int = leases.PLACES
) -> dict[UUID, float]:
    """Like `late`, for each line with overdue work; for kinds with few lines."""
    return {row["line"]: row["age"] for row in await conn.fetch(LATE_BY_LINE, kind, [], looked, places)}


HURRY = f"""
UPDATE queue SET due_at = now()
 WHERE id = $1 AND kind = ANY ($2) AND due_at > now() AND tries > 0 AND (lease_until IS NULL OR lease_until < now())
   AND {leases.NOT_PUT_OFF}
RETURNING kind, organization_id
"""


async def hurry(conn: Connection, *, id: UUID, by: Principal = SYSTEM) -> bool:
    """Make a message or event that waits for its next try due now; False: it waits for something else, or a worker has
    it. Holds and quiet hours still apply."""
    async with conn.transaction():
        rows = await conn.fetch(HURRY, id, list(OUTGOING))
        if rows:
            of = rows[0]["organization_id"]
            told = {"kinds": sorted({row["kind"] for row in rows})}
            await audit.record(conn, by, "queue.hurried", object_id=id, organization_id=of, after=told)
    return bool(rows)


#: Seconds after which a message of a suspended organization, or of a paused account, is examined again.
STOPPED_PAUSE = 60.0
#: The same for one that seems to be stopped, but is being resumed.
RESUMING = 1.0
#: Maximum messages that `resume` looks at: the others are due within STOPPED_PAUSE.
MOST_RESUMED = 5_000
# What was put back keeps its order. Scheduled messages and those of a campaign with a pace are due at their times, and
# so is what was tried before. The look-ups are scalar, so that no plan reads whole tables of messages.
RESUME = """
WITH stopped AS MATERIALIZED (
    SELECT ctid AS place FROM queue
     WHERE due_at > now() AND due_at <= now() + make_interval(secs => $4)
       AND organization_id = $1 AND kind = ANY ($2) AND ($3::uuid[] IS NULL OR line = ANY ($3))
     ORDER BY due_at LIMIT $5
), waiting AS MATERIALIZED (
    SELECT queue.ctid AS place FROM stopped JOIN queue ON queue.ctid = stopped.place
     WHERE attempt = 0 AND lease_token IS NULL
       AND (kind <> 'sms' OR coalesce((
            SELECT send_at FROM messages WHERE organization_id = queue.organization_id AND id = queue.id LIMIT 1),
            now()) <= now())
       AND (SELECT messages_per_minute FROM campaigns
             WHERE organization_id = queue.organization_id AND id = CASE kind
                   WHEN 'sms' THEN (SELECT campaign_id FROM messages
                                     WHERE organization_id = queue.organization_id AND id = queue.id LIMIT 1)
                   ELSE (SELECT campaign_id FROM whatsapp_messages
                          WHERE organization_id = queue.organization_id AND id = queue.id LIMIT 1) END) IS NULL
       FOR UPDATE OF queue SKIP LOCKED
)
UPDATE queue SET due_at = now(), since = queue.due_at - make_interval(secs => $4)
  FROM waiting WHERE queue.ctid = waiting.place
"""


async def resume(
    conn: Connection, organization_id: UUID, *, kinds: Collection[str], lines: Collection[UUID] | None = None
) -> None:
    """Make messages due that were put back while their organization, or the account of these lines, was stopped. Runs
    in the caller's transaction, which ends the stop."""
    lines = None if lines is None else list(lines)
    await conn.execute(RESUME, organization_id, list(kinds), lines, STOPPED_PAUSE, MOST_RESUMED)


# Keyset pagination: rows that `withdraw` cannot end stay, and must not be found again.
FREE = """
SELECT id, line, organization_id FROM queue
 WHERE (id, line) > ($1, $2) AND kind || '' = $3 AND (lease_until IS NULL OR lease_until < now())
   AND ($4::uuid IS NULL OR line = $4) AND ($5::uuid IS NULL OR organization_id = $5) AND ($6::uuid IS NULL OR id < $6)
 ORDER BY id, line LIMIT $7
"""
_FIRST = Row(UUID(int=0), UUID(int=0), UUID(int=0))


async def free(conn: Connection, kind: str, which: Selection, *, after: Row | None = None, limit: int) -> list[Row]:
    """Unleased rows of a kind, after a given row, oldest first."""
    begin = after or _FIRST
    rows = await conn.fetch(FREE, begin.id, begin.line, kind, which.line, which.organization_id, which.before_id, limit)
    return [Row(*row.values()) for row in rows]


DROP = """
DELETE FROM queue USING unnest($2::uuid[], $3::uuid[]) AS item (id, line)
 WHERE queue.id = item.id AND queue.line IS NOT DISTINCT FROM item.line AND queue.kind || '' = $1
   AND (queue.lease_until IS NULL OR queue.lease_until < now())
RETURNING queue.id
"""


async def drop(conn: Connection, kind: str, rows: Sequence[Row]) -> Withdrawn:
    """Delete rows that nothing else depends on, such as webhook deliveries."""
    dropped = await conn.fetch(DROP, kind, [row.id for row in rows], [row.line for row in rows])
    return Withdrawn(canceled=len(dropped), left=len(rows) - len(dropped))
