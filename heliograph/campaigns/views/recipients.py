"""Who got a campaign, who did not, and why: read from its messages, in bounded scans.

Messages have no index by campaign; they lie between the campaign's start and end, and are scanned there. The rule
nobody may break: a scan that ended early says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database import bounded_scan
from heliograph.base.database.pool import Connection
from heliograph.campaigns import plan, record
from heliograph.campaigns.audience import MAX_RECIPIENTS
from heliograph.campaigns.record import Campaign
from heliograph.sms import messages as sms
from heliograph.whatsapp import messages as whatsapp

#: Statuses after which a recipient may be tried again, and the reasons that forbid it nevertheless.
WORTH_IT = {"sms": ("undelivered", "failed", "expired"), "whatsapp": ("failed",)}
FORBIDDEN = frozenset({"opted_out", "sender_not_approved"})
PAGE = 5_000
#: How many messages are scanned, from a campaign's start on, for one that still has its text.
EARLY = 1_000


class Reason(msgspec.Struct, frozen=True):
    """Messages that failed in one way in one country."""

    status: str
    code: str | None
    country: str
    count: int


class Reasons(msgspec.Struct, frozen=True):
    """Failures, most frequent first. `is_partial`: there may be older messages, which were not examined."""

    listed: list[Reason]
    is_partial: bool


def times(campaign: Campaign) -> tuple[datetime, datetime | None]:
    """The period in which all messages of a campaign were accepted; until None: until now. A canceled campaign, and one
    that waits for its last receipts, accept no further messages either."""
    begun, ended = campaign.started_at or campaign.created_at, campaign.drained_at or campaign.completed_at
    return begun, None if ended is None else ended + timedelta(minutes=1)


# Other messages lie among them: `looked` says whether the scan got to the end, even if it found no failures.
_FAILED = """
WITH looked_at AS MATERIALIZED (
    SELECT status, failure_code, country, campaign_id FROM {table}
     WHERE organization_id = $1 AND id < $2 AND id >= $3 ORDER BY id DESC LIMIT $4
), failed AS (
    SELECT status, failure_code, country, count(*)::int AS count FROM looked_at
     WHERE campaign_id = $5 AND status IN ('undelivered', 'failed', 'expired', 'rejected', 'unknown')
     GROUP BY status, failure_code, country ORDER BY count DESC, status, failure_code, country LIMIT 50
)
SELECT looked, failed.* FROM (SELECT count(*) AS looked FROM looked_at) scan LEFT JOIN failed ON true
 ORDER BY count DESC, status, failure_code, country
"""
FAILED = {
    "sms": _FAILED.format(table="messages"),
    "whatsapp": _FAILED.format(table="whatsapp_messages"),
}


async def reasons(conn: Connection, actor: Actor, *, campaign: Campaign, look: int = bounded_scan.LOOK) -> Reasons:
    """Why messages failed, among the latest `look` of its period."""
    begun, ended = times(campaign)
    bounds = bounded_scan.bounds(None, date_from=begun, date_to=ended)
    rows = await conn.fetch(FAILED[campaign.channel], actor.organization_id, *bounds, look, campaign.id)
    listed = [
        Reason(row["status"], row["failure_code"], row["country"], row["count"])
        for row in rows
        if row["count"] is not None
    ]
    return Reasons(listed, rows[0]["looked"] == look)


# A WhatsApp message whose answer was lost may have arrived, although it failed, unless Meta reported the failure. An
# SMS like that is `unknown`.
DOUBTFUL = """
SELECT m.id FROM unnest($2::uuid[]) AS one (id) CROSS JOIN LATERAL (
       SELECT id FROM whatsapp_messages
        WHERE organization_id = $1 AND id = one.id AND failure_evidence IS NULL LIMIT 1) m CROSS JOIN LATERAL (
       SELECT FROM attempts
        WHERE organization_id = $1 AND message_id = m.id AND state = 'unknown' LIMIT 1) lost
"""


# Messages of people who were erased have no text, although one before them still has its own: texts expire in the order
# of the times for which their messages are meant, and not while these wait. $3: from where on, $4: how many are scanned
# for one.
_ERASED = """
SELECT m.id FROM {table} m CROSS JOIN (
       SELECT id, at FROM (SELECT id, status, {text} AS text, {at} AS at FROM {table}
                            WHERE organization_id = $1 AND id >= $3 ORDER BY id LIMIT $4) early
        WHERE text IS NOT NULL AND status <> 'accepted' ORDER BY at, id LIMIT 1) kept
 WHERE m.organization_id = $1 AND m.id = ANY ($2) AND m.{text} IS NULL AND m.id > kept.id AND {at} >= kept.at
"""
ERASED = {
    "sms": _ERASED.format(table="messages", text="body", at="coalesce(send_at, accepted_at)"),
    "whatsapp": _ERASED.format(table="whatsapp_messages", text="content", at="accepted_at"),
}


async def again(conn: Connection, actor: Actor, *, campaign: Campaign, holds: bool = False) -> list[str]:
    """Numbers of recipients who did not get a campaign and may be tried again, at most as many as a campaign may list;
    without those whom a campaign already tries again, or has, and people who were erased while texts of that time are
    kept. `holds`: in a transaction, keep others from listing them until it ends."""
    if holds:
        await conn.fetchval(plan.LOCK, actor.organization_id, campaign.id)
    tried = await _tried_again(conn, actor, campaign)
    numbers: dict[str, None] = {}
    _, first = bounded_scan.bounds(None, date_from=times(campaign)[0], date_to=None)
    async for listed in _pages(conn, actor, campaign, WORTH_IT[campaign.channel]):
        whose = actor.organization_id, [one.id for one in listed]
        left_out = await conn.fetch(ERASED[campaign.channel], *whose, first, EARLY)
        left_out += await conn.fetch(DOUBTFUL, *whose) if campaign.channel == "whatsapp" else []
        ids = {row["id"] for row in left_out}
        numbers |= {
            one.recipient: None
            for one in listed
            if one.failure_code not in FORBIDDEN and one.id not in ids and phones.person(one.recipient) not in tried
        }
        if len(numbers) >= MAX_RECIPIENTS:
            break
    return list(numbers)[:MAX_RECIPIENTS]


AGAIN = "SELECT id, channel FROM campaigns WHERE organization_id = $1 AND again_of = $2 ORDER BY id"
LISTED = "SELECT phone FROM campaign_recipients WHERE organization_id = $1 AND campaign_id = $2"


async def _tried_again(conn: Connection, actor: Actor, campaign: Campaign) -> set[str]:
    """The people for whom other campaigns were made because they did not get this one: all recipients of those that are
    not over, and of the others those for whom a message was not canceled."""
    found: set[str] = set()
    for row in await conn.fetch(AGAIN, actor.organization_id, campaign.id):
        one = await record.get(conn, actor, id=row["id"], channel=row["channel"])
        if one.status in plan.UNDER_WAY:
            rows = await conn.fetch(LISTED, actor.organization_id, one.id)
            found |= {phones.person(row["phone"]) for row in rows}
            continue
        async for listed in _pages(conn, actor, one):
            found |= {phones.person(each.recipient) for each in listed if each.status != "canceled"}
    return found


async def _pages(
    conn: Connection, actor: Actor, campaign: Campaign, statuses: Sequence[str] | None = None
) -> AsyncIterator[Sequence[Any]]:
    """Its messages, of these statuses or of any, page by page."""
    begun, ended = times(campaign)
    read = sms.list_page if campaign.channel == "sms" else whatsapp.list_page
    filters = sms.Filters if campaign.channel == "sms" else whatsapp.Filters
    wanted: Any = filters(statuses=statuses, campaign_id=campaign.id, date_from=begun, date_to=ended)
    after: UUID | None = None
    while True:
        found = await read(conn, actor, filters=wanted, after=after, limit=PAGE, look=bounded_scan.LOOK)
        yield found.messages[:PAGE]
        after = found.messages[PAGE - 1].id if len(found.messages) > PAGE else found.seen
        if after is None:
            return
