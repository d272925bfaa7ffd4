"""D7c Campaign: who received it, who did not and why; as a page of a table, and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from uuid import UUID

import msgspec

from heliograph.base.database.bounded_scan import PAGE_LOOK
from heliograph.base.database.pool import Connection
from heliograph.campaigns.record import Campaign
from heliograph.campaigns.views import recipients
from heliograph.consent import skipped
from heliograph.consent.skipped import REASONS, Skipped
from heliograph.dashboard import exporting, visibility
from heliograph.dashboard.audience.composing.form import found
from heliograph.overview import messages
from heliograph.overview.exports import kinds
from heliograph.overview.messages import Filters, Message
from heliograph.pages.answers import Answer
from heliograph.pages.lists import pagination
from heliograph.pages.requests import Request
from heliograph.sms import messages as sms
from heliograph.whatsapp import messages as whatsapp

#: Filters for a campaign's recipients.
STATUSES = {
    "sms": tuple(one for one in sms.SHOWN_STATUSES if one != "sending"),
    "whatsapp": tuple(one for one in whatsapp.SHOWN_STATUSES if one not in ("sending", "received")),
}


class Rows(msgspec.Struct, frozen=True):
    """Messages, or skipped people. `reasons`: why the campaign skipped people; `last`: the last row of the page;
    `seen`: how far the search got, if it ended before the page was full."""

    rows: list[Message] = []
    skipped: list[Skipped] = []
    reasons: list[str] = []
    last: UUID | None = None
    seen: UUID | None = None


def reason_in(fields: Mapping[str, str]) -> str:
    """The reason by which the page or the file selects skipped people; "": it lists messages."""
    asked = fields.get("skipped", "")
    return asked if asked in REASONS else ""


def filters(campaign: Campaign, status: str) -> Filters:
    """Filters for the campaign's messages with a status, or for all of them."""
    begun, ended = recipients.times(campaign)
    statuses = (status,) if status in STATUSES[campaign.channel] else None
    return Filters(channel=campaign.channel, statuses=statuses, campaign_id=campaign.id, date_from=begun, date_to=ended)


async def read(conn: Connection, request: Request, campaign: Campaign) -> Rows:
    """The requested page."""
    actor, limit, after = request.actor, pagination.size(request), pagination.after(request)
    reason, counts = reason_in(request.query), campaign.counts
    reasons = []
    if counts.opted_out or counts.recently_written or counts.invalid:
        reasons = await skipped.reasons(conn, actor, campaign_id=campaign.id)
    if reason:
        those = await skipped.list_page(conn, actor, campaign_id=campaign.id, reason=reason, after=after, limit=limit)
        last = those[limit - 1].id if len(those) > limit else None
        return Rows(skipped=those[:limit], reasons=reasons, last=last)
    wanted = filters(campaign, request.query.get("status", ""))
    found = await messages.list_page(conn, actor, filters=wanted, after=after, limit=limit, look=PAGE_LOOK)
    rows = found.messages[:limit]
    last = rows[-1].id if len(found.messages) > limit else found.seen
    return Rows(rows=rows, reasons=reasons, last=last, seen=found.seen)


async def export(request: Request) -> Answer:
    """Export its recipients, each with the outcome, or with the reason for which they were skipped."""
    form: Literal["csv", "jsonl"] = "jsonl" if request.form.get("format") == "json" else "csv"
    async with request.reading() as conn:
        campaign = await found(request, conn, request.id())
    delimiter, sees = exporting.separator(request), visibility.whose(request)
    wanted: kinds.Wanted
    if reason := reason_in(request.form):
        wanted = kinds.Skipped(form=form, delimiter=delimiter, campaign_id=campaign.id, reason=reason, sees=sees)
    else:
        chosen = filters(campaign, request.form.get("status", ""))
        wanted = kinds.Messages(form=form, delimiter=delimiter, filters=chosen, sees=sees)
    return await exporting.ask(request, request.actor, wanted)
