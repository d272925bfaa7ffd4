"""Threads of the inbox: one for each person and line (a sender ID or WhatsApp number) that they wrote to.

A thread is a maintained row, so that the list can be read in the order of the latest messages without reading messages.
The rule nobody may break: it is updated in the transaction that stores the message, as one of its last statements and
in the order of the threads' keys. It has a few marks: who it is assigned to, whether it was seen, whether it is closed;
a new message reopens it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound
from heliograph.base.ids import uuid7_floor

#: Maximum number of threads scanned for one page.
LOOK = 2_000
_LAST = UUID(int=2**128 - 1)
#: The states by which a list can be filtered.
STATES = ("open", "mine", "closed", "all")


class InboundMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that somebody wrote to the organization."""

    organization_id: UUID
    channel: str
    #: The sender ID or WhatsApp number that it was sent to.
    line_id: UUID
    #: The author: E.164 with +, a user id, or in the supplier's form.
    peer: str
    message_id: UUID
    at: datetime
    #: The thread, if the channel has threads of its own; None: it follows from line and peer.
    thread_id: UUID | None = None


class Thread(msgspec.Struct, frozen=True):
    """A thread as its organization sees it."""

    id: UUID
    channel: str
    line_id: UUID
    peer: str
    #: The id of the last message that the peer wrote.
    message_id: UUID
    heard_at: datetime
    is_unread: bool
    assigned_to: UUID | None
    closed_at: datetime | None


def id_of(line_id: UUID, peer: str) -> UUID:
    """The id of the thread that an SMS belongs to."""
    return UUID(bytes=hashlib.sha256(f"{line_id} {peer}".encode()).digest()[:16])


# A last message with an id of times to come ($8) is from before the clock was set back: the others would not be seen
# until then. One that arrives late may be from an address that its author no longer has.
NOTE = """
INSERT INTO inbox_threads AS known (organization_id, id, channel, line_id, peer, message_id, heard_at)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[], $5::text[], $6::uuid[], $7::timestamptz[])
ON CONFLICT (organization_id, id) DO UPDATE
   SET peer = CASE WHEN known.heard_at > excluded.heard_at AND known.message_id <= $8 THEN known.peer
                   ELSE excluded.peer END,
       heard_at = CASE WHEN known.message_id <= $8 THEN greatest(known.heard_at, excluded.heard_at)
                       ELSE excluded.heard_at END,
       message_id = excluded.message_id, closed_at = NULL,
       seen_id = CASE WHEN known.seen_id < excluded.message_id THEN known.seen_id END
 WHERE known.message_id < excluded.message_id OR known.message_id > $8
"""


async def note(conn: Connection, heard: Sequence[InboundMessage]) -> None:
    """Record messages in their threads, in the caller's transaction."""
    newest: dict[tuple[int, int], tuple[UUID, InboundMessage]] = {}
    for one in heard:
        id = one.thread_id or id_of(one.line_id, one.peer)
        key = (one.organization_id.int, id.int)
        if key not in newest or newest[key][1].message_id < one.message_id:
            newest[key] = (id, one)
    if not newest:
        return
    rows = [newest[key] for key in sorted(newest)]
    await conn.execute(
        NOTE,
        [one.organization_id for _, one in rows],
        [id for id, _ in rows],
        [one.channel for _, one in rows],
        [one.line_id for _, one in rows],
        [one.peer for _, one in rows],
        [one.message_id for _, one in rows],
        [one.at for _, one in rows],
        uuid7_floor(clock.now() + clock.AHEAD),
    )


class PeerMoved(msgspec.Struct, frozen=True):
    """A peer's change of address."""

    organization_id: UUID
    thread_id: UUID
    #: E.164 with +, or a user id.
    peer: str
    at: datetime


# A peer who wrote later did so from an address that is newer still.
MOVE = """
UPDATE inbox_threads t SET peer = v.peer, heard_at = v.at
  FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::timestamptz[]) AS v (organization_id, id, peer, at)
 WHERE t.organization_id = v.organization_id AND t.id = v.id AND t.heard_at <= v.at
"""


async def move(conn: Connection, moved: Sequence[PeerMoved]) -> None:
    """Address replies to peers' new addresses, in the caller's transaction, after `note`. Each thread occurs once."""
    rows = sorted(moved, key=lambda one: (one.organization_id.int, one.thread_id.int))
    if rows:
        await conn.execute(
            MOVE,
            [one.organization_id for one in rows],
            [one.thread_id for one in rows],
            [one.peer for one in rows],
            [one.at for one in rows],
        )


COLUMNS = """
id, channel, line_id, peer, message_id, heard_at, seen_id IS NULL OR seen_id < message_id AS is_unread, assigned_to,
closed_at
"""
LIST = f"""
SELECT * FROM (
    SELECT {COLUMNS}, row_number() OVER (ORDER BY message_id DESC) AS place,
           CASE $4 WHEN 'closed' THEN closed_at IS NOT NULL WHEN 'mine' THEN closed_at IS NULL AND assigned_to = $5
                   WHEN 'all' THEN true ELSE closed_at IS NULL END AS fits
      FROM (SELECT * FROM inbox_threads WHERE organization_id = $1 AND message_id < $2
             ORDER BY message_id DESC LIMIT $3) looked_at
) judged
 WHERE fits OR place = $3
 ORDER BY message_id DESC LIMIT $6
"""


async def list_page(
    conn: Connection, actor: Actor, *, state: str = "open", after: UUID | None = None, limit: int = 50, look: int = LOOK
) -> tuple[list[Thread], UUID | None]:
    """Threads whose last message is older than `after`, newest first: up to `limit` + 1, and where the scan ended if it
    found fewer. `state`: one of STATES; "mine" means assigned to the actor. Test keys have no threads."""
    if actor.mode != "live":
        return [], None
    rows = await conn.fetch(LIST, actor.organization_id, after or _LAST, look, state, actor.user_id, limit + 1)
    found = [_thread(row) for row in rows if row["fits"]]
    ended = rows and rows[-1]["place"] == look and len(found) <= limit
    return found, rows[-1]["message_id"] if ended else None


ANY = "SELECT EXISTS (SELECT FROM inbox_threads WHERE organization_id = $1)"


async def any_at_all(conn: Connection, actor: Actor) -> bool:
    """Whether anybody has ever written."""
    found: bool = await conn.fetchval(ANY, actor.organization_id)
    return found


GET = f"SELECT {COLUMNS} FROM inbox_threads WHERE organization_id = $1 AND id = $2"


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Thread:
    """A thread. Raises NotFound."""
    row = None if actor.mode != "live" else await conn.fetchrow(GET, actor.organization_id, id)
    if row is None:
        raise NotFound("There is no such conversation.", resource="conversation", id=str(id))
    return _thread(row)


OF_PEERS = f"""
SELECT {COLUMNS} FROM inbox_threads WHERE organization_id = $1 AND peer = ANY ($2) ORDER BY message_id DESC LIMIT $3
"""


async def of_peers(conn: Connection, actor: Actor, *, peers: Collection[str], limit: int) -> list[Thread]:
    """The threads with these peers, most recent first."""
    if actor.mode != "live":
        return []
    return [_thread(row) for row in await conn.fetch(OF_PEERS, actor.organization_id, list(peers), limit)]


SEE = """
UPDATE inbox_threads SET seen_id = $3 WHERE organization_id = $1 AND id = $2 AND (seen_id IS NULL OR seen_id < $3)
"""


async def see(conn: Connection, actor: Actor, *, id: UUID, message_id: UUID) -> None:
    """Record that somebody who may answer has seen the thread up to a message."""
    await conn.execute(SEE, actor.organization_id, id, message_id)


# Of two people who take it at once, the second must not take it from the first unknowingly.
ASSIGN = """
UPDATE inbox_threads SET assigned_to = $3 WHERE organization_id = $1 AND id = $2 AND assigned_to IS NOT DISTINCT FROM $4
"""


async def assign(conn: Connection, actor: Actor, *, id: UUID, user_id: UUID | None, was: UUID | None) -> bool:
    """Assign it to somebody, or with None to nobody in particular. `was`: whom it was assigned to when the caller
    looked; False: it was assigned to somebody else meanwhile, and is left unchanged. Raises NotFound."""
    async with conn.transaction():
        before = await get(conn, actor, id=id)
        if before.assigned_to == user_id:
            return True
        if await conn.execute(ASSIGN, actor.organization_id, id, user_id, was) == "UPDATE 0":
            return False
        await audit.record(
            conn,
            actor,
            "conversation.assigned",
            object_id=id,
            before={"assigned_to": was},
            after={"assigned_to": user_id},
        )
        return True


# A message that nobody has seen keeps it open: closed threads are not looked at, and nobody would ever answer it.
CLOSE = """
UPDATE inbox_threads SET closed_at = now(), seen_id = message_id
 WHERE organization_id = $1 AND id = $2 AND message_id = $3
"""


async def close(conn: Connection, actor: Actor, *, id: UUID, seen: UUID | None) -> bool:
    """Close it. `seen`: the last message that the caller saw; False: they have written since, and it stays open. Raises
    NotFound."""
    async with conn.transaction():
        before = await get(conn, actor, id=id)
        if before.closed_at is not None:
            return True
        if await conn.execute(CLOSE, actor.organization_id, id, seen) == "UPDATE 0":
            return False
        await audit.record(conn, actor, "conversation.closed", object_id=id, after={"is_closed": True})
        return True


REOPEN = "UPDATE inbox_threads SET closed_at = NULL WHERE organization_id = $1 AND id = $2 AND closed_at IS NOT NULL"


async def reopen(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Open it again. Raises NotFound."""
    async with conn.transaction():
        await get(conn, actor, id=id)
        if await conn.execute(REOPEN, actor.organization_id, id) != "UPDATE 0":
            await audit.record(conn, actor, "conversation.closed", object_id=id, after={"is_closed": False})


# Newer threads keep their own marks. In the order of their keys, in which threads are always locked.
SPREAD = """
UPDATE inbox_threads t
   SET assigned_to = m.assigned_to, closed_at = m.closed_at,
       seen_id = CASE WHEN m.seen_id >= m.message_id THEN t.message_id ELSE t.seen_id END
  FROM inbox_threads m
 WHERE m.organization_id = $1 AND m.id = $2 AND t.organization_id = $1 AND t.message_id < m.message_id
   AND t.id = ANY (ARRAY(
       SELECT id FROM inbox_threads WHERE organization_id = $1 AND id = ANY ($3) ORDER BY id FOR UPDATE))
"""


async def spread(conn: Connection, actor: Actor, *, id: UUID, others: Collection[UUID]) -> None:
    """Give the marks of a thread to older ones of the same person."""
    await conn.execute(SPREAD, actor.organization_id, id, list(others))


def _thread(row: asyncpg.Record) -> Thread:
    return Thread(**{name: row[name] for name in Thread.__struct_fields__})
