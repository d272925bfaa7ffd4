"""Sender IDs: the senders that an organization may use. Requested by the organization, approved by operators.

The rule nobody may break: only an approved sender ID can be used; this is checked at accept and again at dispatch.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec
from asyncpg import Record

from heliograph import notices
from heliograph.audit import reading, reasons
from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7, uuid7_floor, uuid_in
from heliograph.notices import Notice
from heliograph.sms.accepting import four_eyes
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.events import Event


class SenderIdNotApproved(Refusal):
    """This sender ID is not approved, so it cannot be used."""

    code, status = "sender_id_not_approved", 409


class SenderIdNotAllowed(Refusal):
    """This sender ID cannot be used for this country, or not until it is registered there."""

    code, status = "sender_id_not_allowed", 409


class SenderIdAlreadyExists(Refusal):
    """This sender ID already exists."""

    code, status = "sender_id_already_exists", 409


class TooManyPending(Refusal):
    """This organization already has 50 sender IDs pending review. Wait until some have been reviewed."""

    code, status = "sender_id_pending_limit_reached", 409


class SenderId(msgspec.Struct, frozen=True):
    """One sender ID as its organization sees it."""

    id: UUID
    value: str
    status: str
    is_default: bool
    rejection_reason: str | None
    created_at: datetime
    reviewed_at: datetime | None


#: 3–11 of these characters with a letter, or 3–15 digits (3GPP 23.040 §9.1.2.5 allows 11 septets).
VALUE = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9 ._&-]{3,11}|[0-9]{3,15}", re.ASCII)

#: Maximum number of an organization's pending sender IDs, and of those in a list.
MAX_PENDING, MOST_LISTED = 50, 1_000
#: The statuses of a sender ID: its organization requests it, operators decide.
STATUSES = ("pending", "approved", "rejected", "suspended")
#: The event that a decision raises.
EVENTS = {"approved": "sender_id.approved", "rejected": "sender_id.rejected"}

COLUMNS = "id, value, status, is_default, rejection_reason, created_at, reviewed_at"

# The default first, and then approved ones, so that the limit hides usable ones last. The parts are read in this order,
# each backwards by key, and only until the limit is reached: sorting thirty thousand took 0.1 s.
LIST = f"""
SELECT * FROM (
    (SELECT {COLUMNS} FROM sender_ids WHERE organization_id = $1 AND is_default LIMIT 1)
    UNION ALL
    (SELECT {COLUMNS} FROM sender_ids WHERE organization_id = $1 AND status = 'approved' AND NOT is_default
      ORDER BY id DESC LIMIT $2)
    UNION ALL
    (SELECT {COLUMNS} FROM sender_ids WHERE organization_id = $1 AND status <> 'approved' ORDER BY id DESC LIMIT $2)
    LIMIT $2
) listed ORDER BY id
"""


_EVERYWHERE = f"""
SELECT o.name AS organization, s.*
  FROM (SELECT organization_id, {COLUMNS} FROM sender_ids
         WHERE {{which}}
         ORDER BY {{order}} LIMIT $3) s
  JOIN organizations o ON o.id = s.organization_id
 ORDER BY s.id DESC
"""
# Each uses an index of its own and stops at the limit. Sender IDs are ASCII: `~` sorts after all their characters.
_ANY, _OF_STATUS = "$2::text IS NULL", "status = $2"
_NEWEST = "$1::uuid IS NULL AND $4::text IS NULL"
_BEGIN = """$1::uuid IS NULL AND (lower(value) COLLATE "C") >= lower($4::text)
           AND (lower(value) COLLATE "C") < lower($4::text) || '~'"""
_BY_VALUE = '(lower(value) COLLATE "C")'
#: Keyed by whether a status is requested.
LIST_EVERYWHERE = {
    False: _EVERYWHERE.format(which=f"{_NEWEST} AND {_ANY}", order="id DESC"),
    True: _EVERYWHERE.format(which=f"{_NEWEST} AND {_OF_STATUS}", order="id DESC"),
}
SEARCH_EVERYWHERE = {
    False: _EVERYWHERE.format(which=f"{_BEGIN} AND {_ANY}", order=_BY_VALUE),
    True: _EVERYWHERE.format(which=f"{_BEGIN} AND {_OF_STATUS}", order=_BY_VALUE),
}
LIST_ONE = _EVERYWHERE.format(
    which="organization_id = $1 AND ($4::text IS NULL OR starts_with(lower(value), lower($4)))"
    f" AND ({_ANY} OR {_OF_STATUS})",
    order="id DESC",
)


async def list_everywhere(
    conn: Connection,
    *,
    organization_id: UUID | None,
    status: str | None = None,
    search: str | None = None,
    limit: int,
) -> list[tuple[UUID, str, SenderId]]:
    """For operators: (organization, its name, sender ID), newest first, of one organization or all (None).

    `search`: the beginning of a value. If more than `limit` match among all organizations, the first ones by value.
    """
    of_all = LIST_EVERYWHERE if search is None else SEARCH_EVERYWHERE
    sql = LIST_ONE if organization_id is not None else of_all[status is not None]
    rows = await conn.fetch(sql, organization_id, status, limit, search)
    return [(owner, name, SenderId(*values)) for name, owner, *values in rows]


async def list_all(conn: Connection, actor: Actor) -> list[SenderId]:
    """The organization's sender IDs, oldest first: at most MOST_LISTED, preferring the default, approved ones, then
    later ones. For a single one, use `find`."""
    return [SenderId(*row.values()) for row in await conn.fetch(LIST, actor.organization_id, MOST_LISTED)]


# Backwards by key, from $2. A rare beginning makes it scan all of them: ten thousand take some 10 ms.
PAGE = f"""
SELECT {COLUMNS} FROM sender_ids
 WHERE organization_id = $1 AND ($2::uuid IS NULL OR id < $2) AND starts_with(lower(value), lower($4))
 ORDER BY id DESC LIMIT $3
"""


async def list_page(
    conn: Connection, actor: Actor, *, search: str = "", after: UUID | None = None, limit: int
) -> list[SenderId]:
    """The organization's sender IDs older than `after`, newest first. `search`: the beginning of a value."""
    return [SenderId(*row.values()) for row in await conn.fetch(PAGE, actor.organization_id, after, limit, search)]


ANY_APPROVED = "SELECT EXISTS (SELECT FROM sender_ids WHERE organization_id = $1 AND status = 'approved')"


async def any_approved(conn: Connection, actor: Actor) -> bool:
    """Whether the organization has an approved sender ID."""
    found: bool = await conn.fetchval(ANY_APPROVED, actor.organization_id)
    return found


# Two look-ups of one row: an organization may have more sender IDs than a list shows.
FIND = f"""
(SELECT {COLUMNS} FROM sender_ids WHERE organization_id = $1 AND lower(value) = lower($2) LIMIT 1)
UNION ALL
(SELECT {COLUMNS} FROM sender_ids WHERE organization_id = $1 AND id = $3 LIMIT 1)
"""


async def find(conn: Connection, actor: Actor, *, which: str) -> SenderId:
    """The organization's sender ID with this value (any case) or id. Raises NotFound."""
    row = await conn.fetchrow(FIND, actor.organization_id, which, uuid_in(which))
    if row is None:
        raise NotFound("There is no such sender ID.", sender_id=which)
    return SenderId(*row.values())


# The row lock comes first: two requests must not both take the last place among the pending ones.
LOCK_ORGANIZATION = "SELECT id FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
STANDING = """
SELECT (SELECT status FROM sender_ids WHERE organization_id = $1 AND lower(value) = lower($2)) AS status,
       (SELECT count(*) FROM sender_ids WHERE organization_id = $1 AND status = 'pending') AS pending
"""


# A new request for a rejected value makes it pending, in the new spelling; a pending one stays as it is.
REQUEST = f"""
INSERT INTO sender_ids AS known (organization_id, id, value, status, created_at) VALUES ($1, $2, $3, 'pending', $4)
ON CONFLICT (organization_id, lower(value)) DO UPDATE
   SET status = CASE known.status WHEN 'rejected' THEN 'pending' ELSE known.status END,
       value = CASE known.status WHEN 'rejected' THEN excluded.value ELSE known.value END,
       rejection_reason = CASE known.status WHEN 'rejected' THEN NULL ELSE known.rejection_reason END,
       first_by = CASE known.status WHEN 'rejected' THEN NULL ELSE known.first_by END,
       question = CASE known.status WHEN 'rejected' THEN NULL ELSE known.question END,
       answer = CASE known.status WHEN 'rejected' THEN NULL ELSE known.answer END,
       reviewed_at = CASE known.status WHEN 'rejected' THEN NULL ELSE known.reviewed_at END
RETURNING {COLUMNS}
"""


def check(value: str) -> None:
    """Raises Invalid for a value that networks do not carry."""
    if not VALUE.fullmatch(value) or value != value.strip() or "  " in value:
        said = "`value` must be 3–11 letters, digits, spaces or . - _ & with at least one letter, or 3–15 digits"
        raise Invalid(("value", "pattern", said))


async def request(conn: Connection, actor: Actor, *, value: str) -> SenderId:
    """Request a sender ID. If new or rejected, it becomes pending; if pending, the same record is returned.

    Raises Invalid for a value that networks do not carry, SenderIdAlreadyExists if it is approved or suspended, and
    TooManyPending.
    """
    check(value)
    async with conn.transaction():
        await conn.execute(LOCK_ORGANIZATION, actor.organization_id)
        standing = await conn.fetchrow(STANDING, actor.organization_id, value)
        assert standing is not None
        if standing["status"] in (None, "rejected") and standing["pending"] >= MAX_PENDING:
            raise TooManyPending(limit=MAX_PENDING)
        (row,) = await conn.fetch(REQUEST, actor.organization_id, uuid7(), value, clock.now())
        sender = SenderId(*row.values())
        if standing["status"] in (None, "rejected"):
            before = {"status": standing["status"]}
            await _record(conn, actor, "sender_id.requested", sender, before, {"status": sender.status})
    if sender.status in ("approved", "suspended"):
        raise SenderIdAlreadyExists(id=str(sender.id), status=sender.status)
    return sender


SELECT = f"SELECT {COLUMNS} FROM sender_ids WHERE organization_id = $1 AND id = $2"

# All rows of the organization, in a fixed order: two reviews must not both find that there is no default.
LOCK = f"""
SELECT id, value, status, {four_eyes.FIRST_BY} AS first_by
  FROM sender_ids WHERE organization_id = $1 ORDER BY id FOR NO KEY UPDATE
"""


async def lock(conn: Connection, actor: Actor) -> dict[UUID, Record]:
    """The organization's sender IDs, in the caller's transaction: nobody decides about one before it ends."""
    return {row["id"]: row for row in await conn.fetch(LOCK, actor.organization_id)}


# The first approved sender of an organization becomes its default: a first send should need no further step. A default
# that is no longer approved is not replaced: no organization should send under another name without noticing.
REVIEW = f"""
UPDATE sender_ids s
   SET status = $3, rejection_reason = $4, reviewed_at = $5, first_by = NULL,
       is_default = $3 = 'approved' AND (s.is_default OR NOT EXISTS (
           SELECT FROM sender_ids d WHERE d.organization_id = s.organization_id AND d.is_default))
 WHERE organization_id = $1 AND id = $2
RETURNING {COLUMNS}
"""


async def review(conn: Connection, actor: Actor, *, id: UUID, status: str, reason: str | None = None) -> SenderId:
    """An operator's decision: status "approved", "rejected" or "suspended". Raises NotFound, Invalid.

    `reason`: up to 500 characters, which the organization can read. A change to approved or rejected raises its event
    in the same transaction; repeating a decision changes nothing. If the installation requires two approvals, the first
    does not change the status.
    """
    if reason is not None and (reason := reasons.normalized(reason)) is None:
        raise Invalid(("reason", "length", f"`reason` must have 1 to {reasons.LONGEST} printable characters"))
    async with conn.transaction():
        known = await lock(conn, actor)
        if id not in known:
            raise NotFound(resource="sender_id", id=str(id))
        before = {id: known[id]["status"]}
        is_held = status == "approved" != before[id] and await four_eyes.holds(conn, actor, id=id, known=known[id])
        if is_held or (before[id] == status and reason is None):
            (row,) = await conn.fetch(SELECT, actor.organization_id, id)
            return SenderId(*row.values())
        at = clock.now()
        (row,) = await conn.fetch(REVIEW, actor.organization_id, id, status, reason, at)
        sender = SenderId(*row.values())
        changed: dict[str, object] = {"status": status, "rejection_reason": reason, "is_default": sender.is_default}
        await _record(conn, actor, "sender_id.reviewed", sender, {"status": before[id]}, changed)
        if before[id] != status:
            facts = {} if reason is None else {"reason": reason}
            notice = Notice(actor.organization_id, f"sender.{status}", str(id), sender.value, facts=facts)
            await notices.record(conn, notice, quiet=None)
        kind = EVENTS.get(status)
        if kind is not None and before[id] != status:
            data = msgspec.json.encode({"senderId": shown(sender)}).decode()
            event = Event(actor.organization_id, uuid7(), kind, str(uuid7()), data, at)
            await events.record(conn, [event])
    return sender


#: Seconds within which a decision can be undone: the page offers ten, the rest allows for latency.
UNDONE_FOR = 20
RECENT = f"""
SELECT status, reviewed_at FROM sender_ids
 WHERE organization_id = $1 AND id = $2 AND status IN ('approved', 'rejected')
   AND reviewed_at > $3::timestamptz - interval '{UNDONE_FOR} seconds'
"""
#: Use counts from this much before the decision: every process has its own clock.
CLOCKS = timedelta(minutes=1)
# By key: the organization's messages and campaigns of about a minute.
USED = """
SELECT EXISTS (SELECT FROM messages WHERE organization_id = $1 AND id >= $3 AND sender_id = $2 LIMIT 1)
    OR EXISTS (SELECT FROM campaigns WHERE organization_id = $1 AND id >= $3 AND sender_id = $2 LIMIT 1)
"""
# Its approval may have made it the default, which a pending one cannot be.
REOPEN = f"""
UPDATE sender_ids SET status = 'pending', rejection_reason = NULL, reviewed_at = NULL, first_by = NULL,
       is_default = false
 WHERE organization_id = $1 AND id = $2
RETURNING {COLUMNS}
"""


async def reopen(
    conn: Connection, actor: Actor, *, id: UUID, reviewed_at: datetime
) -> Literal["undone", "late", "used", "moved"]:
    """Undo an operator's decision of the last UNDONE_FOR seconds, unless another one followed it: the sender ID is
    pending again. An event already raised is corrected by that of the next decision.

    An approval stands once the organization has used it: messages and campaigns with this sender would fail, and the
    default that it replaced would be missing.
    """
    async with conn.transaction():
        await lock(conn, actor)
        recent = await conn.fetchrow(RECENT, actor.organization_id, id, clock.now())
        if recent is None:
            return "late"
        status, at = recent
        if at != reviewed_at:
            return "moved"
        if status == "approved" and await _is_used(conn, actor, id, at):
            return "used"
        (row,) = await conn.fetch(REOPEN, actor.organization_id, id)
        sender = SenderId(*row.values())
        await _record(conn, actor, "sender_id.reviewed", sender, {"status": status}, {"status": sender.status})
    return "undone"


async def _is_used(conn: Connection, actor: Actor, id: UUID, since: datetime) -> bool:
    """Whether the organization has sent from it, or made it its default, since it was approved."""
    chosen_at = await reading.last(conn, object_id=id, action="sender_id.default_changed")
    if chosen_at is not None and chosen_at >= since - CLOCKS:
        return True
    used: bool = await conn.fetchval(USED, actor.organization_id, id, uuid7_floor(since - CLOCKS))
    return used


# Two statements: a unique index checks each row as it is written.
CLEAR_DEFAULT = "UPDATE sender_ids SET is_default = false WHERE organization_id = $1 AND is_default AND id <> $2"
SET_DEFAULT = f"UPDATE sender_ids SET is_default = true WHERE organization_id = $1 AND id = $2 RETURNING {COLUMNS}"


async def set_default(conn: Connection, actor: Actor, *, id: UUID) -> SenderId:
    """Make this the default sender ID. Raises NotFound, SenderIdNotApproved."""
    async with conn.transaction():
        status = {known: row["status"] for known, row in (await lock(conn, actor)).items()}
        if id not in status:
            raise NotFound(resource="sender_id", id=str(id))
        if status[id] != "approved":
            raise SenderIdNotApproved(senderId=str(id), status=status[id], reason=None)
        await conn.execute(CLEAR_DEFAULT, actor.organization_id, id)
        (row,) = await conn.fetch(SET_DEFAULT, actor.organization_id, id)
        sender = SenderId(*row.values())
        await _record(conn, actor, "sender_id.default_changed", sender, {}, {"is_default": True})
    return sender


async def _record(
    conn: Connection,
    actor: Actor,
    action: str,
    sender: SenderId,
    before: dict[str, object],
    after: dict[str, object],
) -> None:
    await audit.record(conn, actor, action, object_id=sender.id, name=sender.value, before=before, after=after)


def shown(sender: SenderId) -> dict[str, object]:
    """The record as shown in responses."""
    return {
        "id": str(sender.id),
        "value": sender.value,
        "status": sender.status,
        "is_default": sender.is_default,
        "rejection_reason": sender.rejection_reason,
        "created_at": iso(sender.created_at),
        "reviewed_at": iso(sender.reviewed_at) if sender.reviewed_at else None,
    }
