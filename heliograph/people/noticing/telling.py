"""Mails and events for notices: a worker takes each new notice once, and queues what each person chose.

Notices taken together make one mail per person, with several of a kind in one line, so that three endpoints that fail
together are mentioned once. Repeats of one cause within an hour are suppressed where notices are recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.base.ids import uuid7
from heliograph.base.network.smtp import Mail
from heliograph.mail import outbox
from heliograph.mail.outbox import Outbox
from heliograph.notices.kinds import KINDS
from heliograph.notices.reading import Noticed
from heliograph.people import roles
from heliograph.people.noticing import choices
from heliograph.webhooks.recording import events
from heliograph.webhooks.recording.events import Event

#: The timer, and its interval in seconds: notices within it are sent together.
TIMER, EVERY = "telling", 20.0
#: SQL condition for the watch.
DUE = "EXISTS (SELECT FROM notices WHERE NOT is_told)"
#: Notices per run, and the maximum age of a notice: nobody wants last week's mails.
MOST, STALE = 500, timedelta(days=1)
#: How long mails are retried.
WITHIN = timedelta(hours=12)


class MailRecipient(msgspec.Struct, frozen=True):
    """The recipient of a mail, with their language and time zone."""

    email: str
    organization: str
    #: None: the installation's.
    language: str | None
    zone: str | None
    #: If they belong to several: which one links are about, since their session may look at another.
    organization_id: UUID | None


#: Writes a mail: (recipient, notices, newest first, address of the dashboard) → mail.
Writes = Callable[[MailRecipient, Sequence[Noticed], str], Mail]

TAKE = """
UPDATE notices SET is_told = true
 WHERE (organization_id, id) IN (SELECT organization_id, id FROM notices WHERE NOT is_told
                                  ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING organization_id, id, mode, kind, object, name, facts, user_id, created_at, created_at > now() - $2::interval
          AS is_fresh
"""
PEOPLE = """
SELECT o.id AS organization_id, o.name AS organization, o.notice_ways AS theirs, m.user_id, m.role,
       m.notice_ways AS own, u.email, u.language, coalesce(u.time_zone, o.time_zone) AS zone,
       EXISTS (SELECT FROM memberships other WHERE other.user_id = m.user_id AND other.organization_id <> o.id)
       AS is_elsewhere
  FROM organizations o JOIN memberships m ON m.organization_id = o.id
       CROSS JOIN LATERAL (SELECT * FROM users WHERE id = m.user_id LIMIT 1) u
 WHERE o.id = ANY ($1) ORDER BY o.id, m.created_at, m.user_id
"""
CHOSEN = "SELECT id, notice_ways FROM organizations WHERE id = ANY ($1)"


class PendingNotice(msgspec.Struct, frozen=True):
    """A notice of an organization, and the only person it is for, if any."""

    organization_id: UUID
    user_id: UUID | None
    notice: Noticed


async def tell(conn: Connection, *, box: Outbox | None, writes: Writes) -> int:
    """Queue mails and events for new notices, in the caller's transaction; returns how many notices there were. `box`:
    None if no mails are sent."""
    rows = await conn.fetch(TAKE, MOST, STALE)
    taken = [_taken(row) for row in sorted(rows, key=lambda row: row["id"]) if row["is_fresh"]]
    if taken:
        if box is not None:
            await _mail(conn, taken, box, writes)
        await _raise(conn, taken)
    return len(rows)


async def _mail(conn: Connection, taken: Sequence[PendingNotice], box: Outbox, writes: Writes) -> None:
    by_organization = defaultdict(list)
    for one in reversed(taken):
        by_organization[one.organization_id].append(one)
    mails = []
    for row in await conn.fetch(PEOPLE, list(by_organization)):
        chosen = choices.read(row["theirs"], row["own"])
        wanted = [
            one.notice
            for one in by_organization[row["organization_id"]]
            if one.user_id in (None, row["user_id"])
            and roles.sees(row["role"], one.notice.kind)
            and "mail" in chosen.ways(one.notice.kind)
        ]
        if wanted:
            id: UUID = row["organization_id"]
            named = id if row["is_elsewhere"] else None
            to = MailRecipient(row["email"], row["organization"], row["language"], row["zone"], named)
            mails.append((id, row["user_id"], writes(to, wanted, box.base_url)))
    if mails:
        await outbox.put_many(conn, box, mails, kind=outbox.NOTICES, within=WITHIN)


async def _raise(conn: Connection, taken: Sequence[PendingNotice]) -> None:
    open_ = [one for one in taken if not KINDS[one.notice.kind].is_personal]
    organizations = sorted({one.organization_id for one in open_})
    if not open_ or not (wanted := await events.wanted(conn, organizations, "notice.created")):
        return
    ways = {row["id"]: choices.read(row["notice_ways"]) for row in await conn.fetch(CHOSEN, organizations)}
    await events.record(
        conn,
        [
            _event(one)
            for one in open_
            if (one.organization_id, one.notice.mode) in wanted
            and "webhook" in ways[one.organization_id].ways(one.notice.kind)
        ],
    )


def _taken(row: asyncpg.Record) -> PendingNotice:
    known = {name: row[name] for name in ("id", "mode", "kind", "object", "name", "created_at")}
    facts = msgspec.json.decode(row["facts"], type=dict[str, str | int])
    return PendingNotice(row["organization_id"], row["user_id"], Noticed(**known, facts=facts, is_new=True))


def _event(one: PendingNotice) -> Event:
    return Event(
        organization_id=one.organization_id,
        id=uuid7(),
        kind="notice.created",
        request_id=f"notice-{one.notice.id}",
        data=msgspec.json.encode({"notice": shown(one.notice)}).decode(),
        created_at=one.notice.created_at,
        mode=one.notice.mode,
    )


def shown(one: Noticed) -> dict[str, object]:
    """A notice as events and the API show it."""
    return {
        "id": str(one.id),
        "kind": one.kind,
        "object": one.object,
        "name": one.name,
        "facts": dict(one.facts),
        "createdAt": iso(one.created_at),
    }
