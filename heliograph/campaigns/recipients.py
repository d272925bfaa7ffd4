"""Who got an SMS campaign, who did not, and why: read from its messages, in bounded looks.

Messages have no index by campaign; they lie between the campaign's start and its end, and are looked through there. The
rule nobody may break: a look that ended before all of them was seen says so.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from uuid import UUID

import msgspec

from heliograph.audit import recording as audit
from heliograph.base.actor import Actor
from heliograph.base.csv_files import Writer
from heliograph.base.database import bounded_scan
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.campaigns.audience import MAX_RECIPIENTS
from heliograph.campaigns.plan import Campaign
from heliograph.sms import messages
from heliograph.sms.messages import Filters, Found, Message

#: Statuses after which somebody may be tried again, and the reasons that forbid it all the same.
WORTH_IT = ("undelivered", "failed", "expired")
FORBIDDEN = frozenset({"opted_out", "sender_not_approved"})
COLUMNS = ("phone", "status", "reason", "segments", "accepted_at", "sent_at", "delivered_at", "failed_at", "id")
PAGE = 5_000


class Reason(msgspec.Struct, frozen=True):
    """Messages that failed in one way in one country."""

    status: str
    code: str | None
    country: str
    count: int


class Reasons(msgspec.Struct, frozen=True):
    """Failures, the most first. `is_partial`: there are older messages that were not looked at."""

    listed: list[Reason]
    is_partial: bool


def _filters(campaign: Campaign, status: str | None = None) -> Filters:
    begun = campaign.started_at or campaign.created_at
    ended = None if campaign.completed_at is None else campaign.completed_at + timedelta(minutes=1)
    return Filters(status=status, campaign_id=campaign.id, date_from=begun, date_to=ended)


async def page(
    conn: Connection, actor: Actor, *, campaign: Campaign, status: str | None, after: UUID | None, limit: int
) -> Found:
    """Up to `limit` + 1 of a campaign's messages, newest first."""
    return await messages.list_page(
        conn, actor, filters=_filters(campaign, status), after=after, limit=limit, look=bounded_scan.LOOK
    )


FAILED = """
SELECT status, failure_code, country, count(*)::int AS count FROM (
       SELECT status, failure_code, country, campaign_id FROM messages
        WHERE organization_id = $1 AND id < $2 AND id >= $3 ORDER BY id DESC LIMIT $4) looked_at
 WHERE campaign_id = $5 AND status IN ('undelivered', 'failed', 'expired', 'rejected', 'unknown')
 GROUP BY status, failure_code, country ORDER BY count DESC, status, failure_code, country LIMIT 50
"""


async def reasons(conn: Connection, actor: Actor, *, campaign: Campaign) -> Reasons:
    """Why messages failed, of the latest that one look takes."""
    found = _filters(campaign)
    bounds = bounded_scan.bounds(None, date_from=found.date_from, date_to=found.date_to)
    rows = await conn.fetch(FAILED, actor.organization_id, *bounds, bounded_scan.LOOK, campaign.id)
    is_partial = campaign.counts.total > bounded_scan.LOOK
    return Reasons([Reason(*row.values()) for row in rows], is_partial)


async def again(conn: Connection, actor: Actor, *, campaign: Campaign) -> list[str]:
    """Numbers of those who did not get a campaign and may be tried again, at most as many as a campaign may list."""
    numbers: dict[str, None] = {}
    for status in WORTH_IT:
        after: UUID | None = None
        while len(numbers) < MAX_RECIPIENTS:
            found = await messages.list_page(
                conn, actor, filters=_filters(campaign, status), after=after, limit=PAGE, look=bounded_scan.LOOK
            )
            listed = found.messages[:PAGE]
            numbers |= {one.recipient: None for one in listed if one.failure_code not in FORBIDDEN}
            after = listed[-1].id if len(found.messages) > PAGE else found.seen
            if after is None:
                break
    return list(numbers)[:MAX_RECIPIENTS]


async def begin_export(conn: Connection, actor: Actor, *, campaign: Campaign, status: str | None) -> None:
    """Record that the actor takes the recipients of a campaign away."""
    told = {"campaign": campaign.name, "status": status, "format": "csv"}
    await audit.record(conn, actor, "campaign.exported", object_id=campaign.id, name=campaign.name, after=told)


async def pieces(
    connect: Callable[[], AbstractAsyncContextManager[Connection]],
    actor: Actor,
    *,
    campaign: Campaign,
    status: str | None,
    as_json: bool,
    delimiter: str,
) -> AsyncIterator[tuple[int, str]]:
    """The recipients as a file, newest first, piece after piece. `connect` gives a connection for one piece."""
    file = io.StringIO()
    writer = None if as_json else Writer(file, COLUMNS, delimiter=delimiter)
    after: UUID | None = None
    while True:
        async with connect() as conn:
            found = await messages.list_page(
                conn, actor, filters=_filters(campaign, status), after=after, limit=PAGE, look=bounded_scan.LOOK
            )
        listed = found.messages[:PAGE]
        for one in listed:
            cells = _cells(one)
            if writer is None:
                file.write(msgspec.json.encode(dict(zip(COLUMNS, cells, strict=True))).decode() + "\n")
            else:
                writer.row(cells)
        yield len(listed), file.getvalue()
        file.seek(0)
        file.truncate()
        after = listed[-1].id if len(found.messages) > PAGE else found.seen
        if after is None:
            return


def _cells(one: Message) -> list[str]:
    times = (one.accepted_at, one.sent_at, one.delivered_at, one.failed_at)
    return [
        one.recipient,
        one.status,
        one.failure_code or "",
        str(one.segments),
        *("" if at is None else iso(at) for at in times),
        str(one.id),
    ]
