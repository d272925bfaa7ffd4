"""The list of exports: request, follow, stop, hand out, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.audit import exporting as audit_log
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import NotFound, Refusal
from heliograph.base.ids import time_of, uuid7
from heliograph.consent import exporting as opt_outs
from heliograph.contacts import exporting as contacts
from heliograph.overview.exports.kinds import (
    Audit,
    Cancel,
    Change,
    Contacts,
    Messages,
    OptOuts,
    Rejects,
    Skipped,
    Tag,
    Usage,
    Wanted,
)

#: Maximum unfinished exports per organization, and how many are listed.
MOST_OPEN, LISTED = 5, 50
#: How long a file is kept. Once an organization's files take up MOST_KEPT bytes, no other is written.
KEPT, MOST_KEPT = timedelta(days=7), 10 << 30
#: The refusal from then on.
FULL = "The exports of your organization take up 10 GB. Each is deleted a week after it was requested."


class TooManyExports(Refusal):
    """Five exports of your organization are being written. Wait until one is done, or stop one."""

    code, status = "too_many_exports", 409


class Export(msgspec.Struct, frozen=True):
    """An export and its progress."""

    id: UUID
    mode: str
    kind: str
    #: Who requested it: a person, or a key.
    user_id: UUID
    author: str
    wanted: Wanted
    #: "running", "finished", "stopped", "failed" or "erased".
    state: str
    #: Where the next page begins, in a form specific to its kind.
    place: str | None
    rows: int
    size: int
    chunks: int
    #: It ended at the maximum size of a file.
    is_cut: bool
    created_at: datetime
    finished_at: datetime | None

    @property
    def is_final(self) -> bool:
        """True if it will not change any more."""
        return self.state != "running"

    @property
    def is_change(self) -> bool:
        """True if it changes what it finds."""
        return isinstance(self.wanted, Change)

    @property
    def reached(self) -> datetime | None:
        """The time that it has reached, if its places are ids."""
        try:
            return None if self.place is None else time_of(UUID(self.place))
        except ValueError:
            return None

    @property
    def ends_at(self) -> datetime:
        """When it is deleted."""
        return self.created_at + KEPT

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.wanted.name}.{self.wanted.form}"


COLUMNS = "id, mode, kind, user_id, author, wanted, state, place, rows, size, chunks, is_cut, created_at, finished_at"
# The row lock comes first: two people must not both take the last place.
LOCK_ORGANIZATION = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
# What an export that ended otherwise has written is deleted within an hour or two.
KNOWN = """
SELECT count(*) FILTER (WHERE state = 'running') AS open,
       coalesce(sum(size) FILTER (
           WHERE state IN ('running', 'finished') OR finished_at > now() - interval '2 hours'), 0)::bigint AS size
  FROM exports WHERE organization_id = $1
"""
INSERT = """
INSERT INTO exports (organization_id, id, mode, kind, user_id, author, wanted, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, now())
"""


async def ask(conn: Connection, actor: Actor, *, wanted: Wanted) -> UUID:
    """Have a worker write a file for the acting person or key. The request itself is recorded in the audit log, even if
    the file is never fetched. Raises TooManyExports."""
    id = uuid7()
    async with conn.transaction():
        await conn.fetchval(LOCK_ORGANIZATION, actor.organization_id)
        known = await conn.fetchrow(KNOWN, actor.organization_id)
        assert known is not None
        if known["open"] >= MOST_OPEN:
            raise TooManyExports
        if known["size"] >= MOST_KEPT:
            raise TooManyExports(FULL)
        told = msgspec.json.encode(wanted).decode()
        author = actor.principal.name or "API"
        kind = type(wanted).__struct_config__.tag
        await conn.execute(INSERT, actor.organization_id, id, actor.mode, kind, _asker(actor), author, told)
        await _record(conn, actor, wanted)
    return id


async def _record(conn: Connection, actor: Actor, wanted: Wanted) -> None:
    is_json = wanted.form != "csv"
    match wanted:
        case Messages(filters=filters):
            after: dict[str, object] = {"format": wanted.form, "from": filters.date_from, "to": filters.date_to}
            after |= {"statuses": filters.statuses}
            if filters.campaign_id is None:
                await audit.record(conn, actor, "messages.exported", object_id=actor.organization_id, after=after)
            else:
                await audit.record(conn, actor, "campaign.exported", object_id=filters.campaign_id, after=after)
        case OptOuts():
            await opt_outs.begin(conn, actor, as_json=is_json)
        case Rejects(import_id=id):
            after = {"format": wanted.form, "import": str(id), "rejected": True}
            await audit.record(conn, actor, "contacts.exported", object_id=actor.organization_id, after=after)
        case Skipped(campaign_id=id, reason=reason):
            after = {"format": wanted.form, "skipped": reason}
            await audit.record(conn, actor, "campaign.exported", object_id=id, after=after)
        case Contacts():
            await contacts.begin(conn, actor, filters=wanted.filters, as_json=is_json)
        case Cancel(filters=filters):
            after = {"from": filters.date_from, "to": filters.date_to, "campaign": filters.campaign_id}
            await audit.record(conn, actor, "messages.canceling", object_id=actor.organization_id, after=after)
        case Tag():
            after = {"tag": wanted.value, "removed": wanted.is_removed, "tags": list(wanted.filters.tags)}
            await audit.record(conn, actor, "contacts.tagging", object_id=actor.organization_id, after=after)
        case Audit():
            await audit_log.begin(conn, actor, wanted.filters, as_json=is_json)
        case Usage():
            after = dict[str, object]({"month": f"{wanted.month:%Y-%m}", "by": wanted.by, "format": wanted.form})
            await audit.record(conn, actor, "usage.exported", object_id=actor.organization_id, after=after)


# One that is past its time is gone, even if retention has not deleted it yet.
LIST = f"""
SELECT {COLUMNS} FROM exports
 WHERE organization_id = $1 AND (user_id = $2 OR $3) AND created_at > now() - $4::interval
 ORDER BY id DESC LIMIT {LISTED}
"""
GET = f"SELECT {COLUMNS} FROM exports WHERE organization_id = $1 AND id = $2 AND created_at > now() - $3::interval"


async def list_all(conn: Connection, actor: Actor, *, of_everybody: bool) -> list[Export]:
    """The newest exports of the person or the key, or of everybody in the organization."""
    return [of_row(row) for row in await conn.fetch(LIST, actor.organization_id, _asker(actor), of_everybody, KEPT)]


async def get(conn: Connection, actor: Actor, *, id: UUID) -> Export:
    """An export requested by this person or key. Raises NotFound, also for exports of others."""
    row = await conn.fetchrow(GET, actor.organization_id, id, KEPT)
    if row is None or _asker(actor) is None or row["user_id"] != _asker(actor):
        raise NotFound("There is no such export.", resource="export", id=str(id))
    return of_row(row)


STOP = """
UPDATE exports SET state = 'stopped', finished_at = now(), lease_until = NULL
 WHERE organization_id = $1 AND id = $2 AND state = 'running'
"""


async def stop(conn: Connection, actor: Actor, *, id: UUID) -> None:
    """Stop an export. Idempotent. Raises NotFound."""
    await get(conn, actor, id=id)
    await conn.execute(STOP, actor.organization_id, id)


CHUNK = "SELECT bytes FROM export_chunks WHERE organization_id = $1 AND export_id = $2 AND number = $3"


async def hand_out(conn: Connection, actor: Actor, *, id: UUID) -> Export:
    """A finished export whose file is about to be read; the download is recorded. Raises NotFound."""
    async with conn.transaction():
        found = await get(conn, actor, id=id)
        if found.state != "finished":
            is_early = found.state == "running"
            said = "The file of this export is not finished yet." if is_early else "There is no file of this export."
            raise NotFound(said, resource="export", id=str(id))
        after = {"file": found.file, "rows": found.rows}
        await audit.record(conn, actor, "export.fetched", object_id=id, name=found.kind, after=after)
    return found


async def part(conn: Connection, actor: Actor, *, id: UUID, number: int) -> str:
    """A part of a finished export, as text; fetching the first one is recorded. Raises NotFound."""
    found = await (hand_out if number == 0 else get)(conn, actor, id=id)
    piece: bytes | None = None
    if found.state == "finished":
        piece = await conn.fetchval(CHUNK, actor.organization_id, id, number)
        if piece is None and number == 0 and not found.chunks:
            return ""
    if piece is None:
        raise NotFound("There is no such part of an export.", resource="export", id=str(id))
    return piece.decode()


def _asker(actor: Actor) -> UUID | None:
    """The only one who may fetch what they request: a person, or a key; None: an operator, who can only watch."""
    return actor.user_id or actor.key_id


async def pieces(
    connect: Callable[[], AbstractAsyncContextManager[Connection]], actor: Actor, *, export: Export
) -> AsyncIterator[bytes]:
    """The file, piece by piece; `connect` opens a connection for each. Raises NotFound if it is erased during that."""
    for number in range(export.chunks):
        async with connect() as conn:
            piece: bytes | None = await conn.fetchval(CHUNK, actor.organization_id, export.id, number)
        if piece is None:
            raise NotFound("There is no such export.", resource="export", id=str(export.id))
        yield piece


def of_row(row: Any) -> Export:
    """An Export from a row that has its columns."""
    values = {name: row[name] for name in Export.__struct_fields__}
    return Export(**values | {"wanted": msgspec.json.decode(row["wanted"], type=Wanted)})


# A chunk holds a thousand rows, so few are deleted at once. Chunks that nobody can fetch are deleted before their week.
FORGET_CHUNKS = """
DELETE FROM export_chunks WHERE (organization_id, export_id, number) IN (
    SELECT c.organization_id, c.export_id, c.number
      FROM exports e CROSS JOIN LATERAL (
           SELECT organization_id, export_id, number FROM export_chunks
            WHERE organization_id = e.organization_id AND export_id = e.id LIMIT $2) c
     WHERE e.created_at < now() - $1::interval OR e.state IN ('stopped', 'failed', 'erased') LIMIT $2)
"""
FORGET = """
DELETE FROM exports WHERE (organization_id, id) IN (
    SELECT organization_id, id FROM exports e
     WHERE created_at < now() - $1::interval AND NOT EXISTS (
           SELECT FROM export_chunks WHERE organization_id = e.organization_id AND export_id = e.id) LIMIT $2)
"""
#: Chunks or exports deleted per statement, and maximum rounds per call.
AT_ONCE, ROUNDS = 200, 50


async def forget(conn: Connection) -> bool:
    """Delete what has expired; False if there is more. Each statement is a commit."""
    for statement in (FORGET_CHUNKS, FORGET):
        for _ in range(ROUNDS):
            if not (await conn.execute(statement, KEPT, AT_ONCE)).endswith(f" {AT_ONCE}"):
                break
        else:
            return False
    return True
