"""D7a Campaigns: the list. D7c Campaign: its progress, why it is stalled, who received it and who did not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.base.ids import time_of
from heliograph.campaigns import filling, plan, record
from heliograph.campaigns.approval import approving
from heliograph.campaigns.approval.approving import CampaignApprovalByAnother
from heliograph.campaigns.approval.rule import CampaignApprovalRequired
from heliograph.campaigns.channels import sms
from heliograph.campaigns.plan import CampaignNotCancelable, CampaignNotPausable
from heliograph.campaigns.record import Campaign
from heliograph.campaigns.views import progress, recipients
from heliograph.campaigns.views.progress import Progress
from heliograph.dashboard import listing
from heliograph.dashboard.audience import campaign_recipients as table
from heliograph.dashboard.audience import lists, words
from heliograph.dashboard.audience.composing import drafts as campaign_drafts
from heliograph.dashboard.audience.composing.form import found
from heliograph.dashboard.sending import template
from heliograph.pages.answers import Answer, Page, Redirect, refused
from heliograph.pages.forms import figures, leaving
from heliograph.pages.lists import pagination, ranges
from heliograph.pages.pieces import charts
from heliograph.pages.pieces.charts import Chart, Mark, Series
from heliograph.pages.pieces.parts import Parts
from heliograph.pages.requests import Request
from heliograph.pages.words import GUARD_CLASSES
from heliograph.people.roles import CONTENT, SETTINGS, USAGE
from heliograph.whatsapp import library
from heliograph.why.words import why

WRITE = "campaigns:write"
HERE = "/campaigns"
CHANNELS = ("sms", "whatsapp")
#: Campaigns in progress that are listed above the others.
FIRST = 50

#: Where to fix what keeps a campaign from sending, by reason: the page, its name on the rail, and the scope and
#: permission that give access to it.
CURES: Mapping[str, tuple[str, str, str | None, str | None]] = {
    "quota_exceeded": ("/usage", "Usage", None, USAGE),
    "spend_limit_reached": ("/settings/limits", "Limits", None, SETTINGS),
    "wallet_insufficient_funds": ("/wallet", "Wallet", None, USAGE),
    "sender_id_not_approved": ("/senders", "Sender IDs", "sender_ids:read", None),
    **dict.fromkeys(
        (
            "whatsapp_phone_number_unavailable",
            "whatsapp_account_paused",
            "whatsapp_number_held",
            "whatsapp_messaging_limit_reached",
        ),
        ("/numbers", "WhatsApp numbers", "whatsapp:read", None),
    ),
    **dict.fromkeys(
        (
            "whatsapp_template_not_approved",
            "whatsapp_template_not_utility",
            "whatsapp_template_not_sendable",
            "whatsapp_template_parameter_mismatch",
            "whatsapp_template_unconfirmed",
        ),
        ("/templates", "Templates", "whatsapp:read", None),
    ),
}


class Line(msgspec.Struct, frozen=True):
    """A campaign and its pace."""

    campaign: Campaign
    #: What can be done with it, apart from approving it.
    acts: frozenset[plan.Action]
    #: Current messages per minute; and when the last one will have been handed over at that pace.
    rate: float | None
    ends_at: datetime | None


async def show_list(request: Request) -> Answer:
    """A page of campaigns of a channel, newest first; the first page begins with those in progress."""
    channel = request.query.get("channel", "sms")
    channel = channel if channel in CHANNELS else "sms"
    limit, range, after = pagination.size(request), ranges.read(request), pagination.after(request)
    period = {"date_from": range.since, "date_to": range.until}
    async with request.reading() as conn:
        first = await record.under_way(conn, request.actor, channel=channel, limit=FIRST, **period)
        above = {one.id for one in first}
        listed = await record.list_page(
            conn, request.actor, after=after, limit=limit + 1 + len(first), channel=channel, **period
        )
        found = [one for one in listed if one.id not in above]
        rows = [*(first if after is None else []), *found[:limit]]
        rates = await progress.rates(conn, request.actor, campaigns=rows)
        kept = [] if request.is_fragment or not request.may(WRITE) else await campaign_drafts.values(request, conn)
    values = {
        "lines": [_line(one, rates.get(one.id)) for one in rows],
        "channel": channel,
        "range": range,
        "columns": listing.columns(request, "campaigns"),
        "drafts": kept,
        "pages": pagination.pages(request, found[limit - 1].id if len(found) > limit else None),
        "may_write": request.may(WRITE),
        "is_live": any(one.status in plan.UNDER_WAY for one in rows),
    }
    return Page(
        template="audience/campaigns_rows.html" if request.is_fragment else "audience/campaigns.html", values=values
    )


async def show(request: Request) -> Answer:
    """One campaign."""
    async with request.reading() as conn:
        campaign = await find(request, conn)
        values = await _values(request, conn, campaign)
    if values["chart"] is not None and (file := charts.download(request, [values["chart"]])) is not None:
        return file
    # Its creator waits for somebody else, who is asked to approve it.
    return Page(
        template="audience/campaign_live.html" if request.is_fragment else "audience/campaign.html",
        values=values,
        is_own=values["approval"].above is not None,
    )


async def pause(request: Request) -> Answer:
    """Stop it until somebody resumes it."""
    return await _act(
        request, plan.pause, request.text("The campaign is paused. Messages already handed over are still sent.")
    )


async def resume(request: Request) -> Answer:
    """Continue from where it stopped."""
    return await _act(request, plan.resume, request.text("The campaign is resumed."), status="running")


async def approve(request: Request) -> Answer:
    """Approve it, as the second person that the organization requires."""
    return await _act(request, approving.approve, request.text("The campaign is approved."))


async def change_pace(request: Request) -> Answer:
    """Change its pace, from now on; one that was left as it was shown stays as it is by now."""
    async with request.reading() as conn:
        campaign = await find(request, conn)
    text = leaving.typed(request.form, ("pace",), _pace(campaign))["pace"].strip()
    wrong = Invalid(("pace", "range", words.CAMPAIGN_FORM["pace.range"]))
    try:
        pace = figures.within(text, wrong, least=1, most=plan.MAX_PACE)
    except Invalid:
        async with request.reading() as conn:
            values = await _values(request, conn, campaign)
        return refused("audience/campaign.html", wrong, values | {"pace": text})

    async def act(conn: Connection, actor: Actor, *, id: UUID, channel: str) -> Campaign:
        return await plan.change_pace(conn, actor, id=id, messages_per_minute=pace, channel=channel)

    return await _act(request, act, request.text("Messages still waiting are sent at this pace."))


async def show_cancel(request: Request) -> Answer:
    """What canceling would do, in numbers; back to the campaign if it has ended meanwhile."""
    async with request.reading() as conn:
        campaign = await find(request, conn)
    if "cancel" not in plan.acts(campaign):
        said = request.text(CampaignNotCancelable().message)
        return Redirect(location=request.to(f"{HERE}/{campaign.id}"), notice=said, is_refusal=True)
    return Page(template="audience/campaign_cancel.html", values={"campaign": campaign})


async def cancel(request: Request) -> Answer:
    """Cancel it for good."""
    return await _act(request, plan.cancel, request.text("The campaign is canceled; messages not sent are refunded."))


async def find(request: Request, conn: Connection) -> Campaign:
    """The campaign in the address, of either channel. Raises NotFound."""
    return await found(request, conn, request.id())


async def _act(request: Request, act: Any, said: str, *, status: str = "") -> Answer:
    """Do it, and show the notice. `status`: which it has to have for that; otherwise why it does not resume yet."""
    id: UUID = request.id()
    channel, is_refusal = "sms", False

    async def work(conn: Any) -> tuple[str, str, str]:
        nonlocal channel
        channel = (await find(request, conn)).channel
        after: Campaign = await act(conn, request.actor, id=id, channel=channel)
        return channel, after.status, after.status_reason or ""

    try:
        # A repeated form does not run `work` again, so only the stored result tells the channel.
        channel, reached, reason = await request.once(work)
        if status and reached != status:
            known = why("campaign", reason)
            said = request.text(
                "The campaign resumes automatically as soon as it can. %(reason)s",
                reason="" if known is None else known.words(request.locale.language).customer,
            ).strip()
            is_refusal = True
    except (
        CampaignNotPausable,
        CampaignNotCancelable,
        CampaignApprovalRequired,
        CampaignApprovalByAnother,
    ) as refusal:
        said, is_refusal = request.text(refusal.message), True
    back = request.to(f"{HERE}/{id}")
    if request.form.get("back") == "list":
        back = request.to(HERE, channel=channel if channel != "sms" else None)
    return Redirect(location=back, notice=said, is_refusal=is_refusal)


async def _values(request: Request, conn: Any, campaign: Campaign) -> dict[str, Any]:
    actor, parts = request.actor, Parts(request)
    counts, status = campaign.counts, request.query.get("status", "")
    listed, reasons = table.Rows(), None
    if campaign.started_at is not None:
        listed = await parts.load("rows", table.read(conn, request, campaign), otherwise=listed)
        if counts.failed or counts.unknown:
            looked = recipients.reasons(conn, actor, campaign=campaign)
            reasons = await parts.load("reasons", looked, otherwise=None)
    approval = await approving.standing(conn, actor, campaign=campaign)
    rates = await parts.load("rate", progress.rates(conn, actor, campaigns=[campaign]), otherwise={})
    course = await parts.load("course", progress.read(conn, actor, campaign_id=campaign.id), otherwise=None)
    shown: list[tuple[str, str]] = []
    if not request.is_fragment:  # it is beside what is renewed
        shown = await parts.load("template", _shown(conn, actor, campaign), otherwise=shown)
    return {
        "parts": parts,
        "chart": None if course is None else _chart(request, course),
        "pace": _pace(campaign)["pace"],
        "was": leaving.written(_pace(campaign)),
        "line": _line(campaign, rates.get(campaign.id)),
        "canceled": None if course is None else course.canceled,
        "missing": "" if course is None else _missing(request, campaign, course),
        "campaign": campaign,
        "import_page": await lists.import_page(request, conn, campaign.audience_import),
        "shown": shown,
        "class_name": GUARD_CLASSES[campaign.content.get("class", sms.USUAL_CLASS)]
        if campaign.channel == sms.SmsChannel.name
        else None,
        "is_final": campaign.status not in plan.UNDER_WAY and not counts.queued and not counts.sent,
        "acts": plan.acts(campaign, needs_approval=approval.above is not None),
        "cure": _cure(request, campaign),
        "approval": approval,
        "may_write": request.may(WRITE),
        "whole": request.may(permission=CONTENT) or request.may("contacts:write"),
        "rows": listed.rows,
        "skipped": listed.skipped,
        "skipped_for": table.reason_in(request.query),
        "skips": [(one, request.text(words.CAMPAIGN_SKIPPED[one])) for one in listed.reasons],
        "skip_words": words.CAMPAIGN_SKIPPED,
        "seen": None if listed.seen is None else time_of(listed.seen),
        "pages": pagination.pages(request, listed.last),
        "status": status if status in table.STATUSES[campaign.channel] else "",
        "filters": table.STATUSES[campaign.channel],
        "steps": words.CAMPAIGN_STEPS,
        "funnel": _funnel(campaign),
        "is_unstaged": _is_unstaged(campaign),
        "reasons": reasons,
        "may_send_again": request.may(WRITE)
        and counts.failed > 0
        and campaign.status in ("completed", "canceled", "failed"),
    }


def _pace(campaign: Campaign) -> dict[str, str]:
    """The field of the form that changes it."""
    return {"pace": str(campaign.messages_per_minute or "")}


async def _shown(conn: Connection, actor: Actor, campaign: Campaign) -> list[tuple[str, str]]:
    """The current content of its template, with the source of each value; empty for SMS, or if the template is gone."""
    if campaign.channel == sms.SmsChannel.name:
        return []
    try:
        entry = await library.get(conn, actor, id=campaign.content["template_id"])
    except NotFound:
        return []
    return template.filled(entry, filling.places(campaign.content["parameters"]))


def _cure(request: Request, campaign: Campaign) -> tuple[str, str] | None:
    """(name, path) of the page on which the reader can fix what keeps it from sending."""
    known = CURES.get(campaign.status_reason or "")
    if known is None or not request.may(known[2], known[3]):
        return None
    path, label = known[:2]
    if path == "/templates":
        path += f"/{campaign.content['template_id']}"
    return request.text(label), request.to(path)


def _missing(request: Request, campaign: Campaign, course: Progress) -> str:
    """How many reports are missing once everything is handed over, and when the messages will count as unknown; "":
    some are not handed over yet, or no report is missing."""
    counts, count = campaign.counts, request.locale.count
    if not counts.sent or counts.queued or counts.pending or campaign.status in ("scheduled", "staging"):
        return ""
    said = count(
        "All are handed over; %(num)s report is missing.",
        "All are handed over; %(num)s reports are missing.",
        counts.sent,
    )
    last = max((one.at for one in course.intervals if one.sent), default=None)
    if campaign.channel != "sms" or last is None:
        return said
    hours = request.services.settings.receipt_deadline_hours
    until = last + timedelta(minutes=course.step, hours=hours)
    later = request.text("What is not reported by %(time)s counts as unknown.", time=request.locale.moment(until))
    return f"{said} {later}"


def _chart(request: Request, course: Progress) -> Chart:
    text, locale = request.text, request.locale
    counted = course.intervals
    sent, delivered = sum(one.sent for one in counted), sum(one.delivered for one in counted)
    refused = sum(one.never_sent for one in counted)
    title = text(
        "%(sent)s sent, %(delivered)s delivered.", sent=locale.number(sent), delivered=locale.number(delivered)
    )
    series = [
        Series(locale.count_label("Sent"), "way", [one.sent for one in counted]),
        Series(locale.count_label("Delivered"), "good", [one.delivered for one in counted]),
    ]
    if refused:
        title += " " + locale.count(
            "%(num)s failed before it was sent.", "%(num)s failed before they were sent.", refused
        )
        series.append(Series(text("Failed before it was sent"), "bad", [one.never_sent for one in counted]))
    marks = [
        Mark(one.at, text("a pause") if one.status == "paused" else text("in progress"))
        for one in course.moves
        if counted and one.at >= counted[0].at
    ]
    return Chart(
        id="course",
        title=title,
        unit=text("messages a minute")
        if course.step == 1
        else text("messages in %(minutes)s minutes", minutes=locale.number(course.step)),
        kind="bars",
        locale=locale,
        times=[one.at for one in counted],
        step=course.step * 60,
        series=series,
        marks=marks,
    )


def _is_unstaged(campaign: Campaign) -> bool:
    """Nobody in its audience has been looked at: who has opted out is found when their message is staged."""
    counts = campaign.counts
    return counts.pending + counts.canceled + counts.invalid == counts.total


def _funnel(campaign: Campaign) -> list[tuple[str, int]]:
    """From everybody found down to those who read it: (step, how many reached it)."""
    counts = campaign.counts
    tried = counts.sent + counts.reached + counts.missed
    return [
        ("audience", counts.total),
        *([] if _is_unstaged(campaign) else [("allowed", counts.total - counts.skipped)]),
        ("queued", counts.queued + tried),
        ("sent", tried - campaign.never_sent),
        ("delivered", counts.reached),
        *([("read", counts.read)] if counts.read else []),
    ]


def _line(campaign: Campaign, rate: float | None) -> Line:
    counts, reason = campaign.counts, campaign.status_reason
    # The rate is that of the minutes before it stalled; but where it is day, messages still leave.
    if reason not in (None, "quiet_hours"):
        rate = None
    waiting = counts.pending + counts.queued
    ends_at = clock.now() + timedelta(minutes=waiting / rate) if waiting and rate and reason is None else None
    return Line(
        campaign=campaign,
        acts=plan.acts(campaign),
        rate=rate,
        ends_at=ends_at,
    )
