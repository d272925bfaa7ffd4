"""Usage: what was used, what is left and for how long, by month, and a month's bill as a file."""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.accounts import organizations, plans, quota
from heliograph.accounts import usage as ledger
from heliograph.accounts.plans import Subscription
from heliograph.accounts.quota import Quota
from heliograph.base.actor import Actor
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.dashboard import exporting, visibility
from heliograph.dashboard.money import days
from heliograph.dashboard.money.days import Days
from heliograph.overview import usage
from heliograph.overview.exports import references
from heliograph.overview.exports.kinds import Usage
from heliograph.overview.usage import Pace
from heliograph.pages import languages, words
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.forms import figures
from heliograph.pages.lists import pagination, ranges
from heliograph.pages.pieces import charts
from heliograph.pages.pieces.charts import DAY, Chart, Series
from heliograph.pages.pieces.parts import Parts
from heliograph.pages.requests import Request
from heliograph.people.roles import MONEY

#: Rows per table next to the chart.
TOP = 10
#: Tables next to the chart, in their order.
TABLES = ("sender", "country", "campaign", "key")
CHANNELS = {"sms": "SMS", "whatsapp": "WhatsApp"}


class Row(msgspec.Struct, frozen=True):
    """The usage of one value, as it is shown."""

    name: str
    #: Only if both channels have messages; otherwise empty.
    channel: str
    messages: int
    segments: int
    #: Percentage of the whole month; None: unknown.
    percent: int | None


class Period(msgspec.Struct, frozen=True):
    """The quota's current period. `level`: the alert threshold that this has passed."""

    quota: Quota
    level: int | None
    pace: Pace
    subscription: Subscription | None


async def show(request: Request) -> Answer:
    """The current period, and a month or range by day and by share."""
    shown, problem = days.read(request)
    return await _page(request, shown, None if problem is None else _form_refusal(problem))


async def export(request: Request) -> Answer:
    """Export a month's bill."""
    form = request.form
    today = clock.now().date()
    as_json = form.get("format") == "json"
    month = today.replace(day=1)
    try:
        month = usage.month_of(form.get("month", ""))
        by = form.get("by", "")
        if by == references.REFERENCE and (characters := form.get("characters", "").strip()):
            by = f"{by}:{characters}"
        by = references.checked_split(by)
    except Invalid as refusal:
        return await _page(request, days.of_month(month, ranges.read(request)), _form_refusal(refusal))
    wanted = Usage(form="json" if as_json else "csv", delimiter=exporting.separator(request), month=month, by=by)
    return await exporting.ask(request, request.acting("live"), wanted)


async def set_alert(request: Request) -> Answer:
    """Set or remove the alert for days with more messages than a given number."""
    wrong = Invalid(("above", "format", "Enter a number of messages such as 5000, or leave it empty."))
    try:
        above = figures.whole(request.form.get("above", ""), wrong)
        if above == 0:
            raise wrong
    except Invalid:
        month = clock.now().date().replace(day=1)
        return await _page(request, days.of_month(month, ranges.read(request)), wrong)
    actor = request.acting("live")

    async def work(conn: Connection) -> None:
        await quota.set_alert(conn, actor.organization_id, above=above, by=actor)

    await request.once(work)
    said = request.text("The alert is set.") if above else request.text("The alert is off.")
    return Redirect(location=request.to("/usage"), notice=said)


async def show_ledger(request: Request) -> Answer:
    """Every change to the quota, newest first."""
    size, actor = pagination.size(request), request.acting("live")
    async with request.reading() as conn:
        found = await ledger.list_page(conn, actor, after=pagination.after(request), limit=size)
        entries = found.entries[:size]
        campaigns = await visibility.campaigns(conn, request, [one.campaign_id for one in entries], mode="live")
    last = entries[-1].id if len(found.entries) > size else found.seen
    values = {
        "entries": entries,
        "campaigns": campaigns,
        "types": words.USAGE_ENTRIES,
        "sees_messages": request.may("sms:read", mode="live"),
        "sees_campaigns": request.may("campaigns:read", mode="live"),
        "looked_until": found.seen if found.seen is not None and len(found.entries) <= size else None,
        "pages": pagination.pages(request, last),
    }
    return Page(template="money/ledger.html", values=values)


async def _page(request: Request, shown: Days, problem: Invalid | None) -> Answer:
    actor, parts = request.acting("live"), Parts(request)
    since, until = shown.since, shown.until
    async with request.reading() as conn:
        period = await parts.load("period", _period(conn, actor), otherwise=None)
        above = await parts.load("alert", quota.alert(conn, actor.organization_id), otherwise=None)
        months = await parts.load("months", usage.months(conn, actor), otherwise=[])
        listed = await parts.load("days", usage.days(conn, actor, since=since, until=shown.shown_until), otherwise=[])
        tables = [
            (
                by,
                await parts.load(
                    by, usage.shares(conn, actor, by=by, since=since, until=until, limit=TOP), otherwise=[]
                ),
            )
            for by in TABLES
        ]
    month = shown.month or clock.now().date().replace(day=1)
    sms, whatsapp = sum(one.sms for one in listed), sum(one.whatsapp for one in listed)
    is_mixed = sms > 0 and whatsapp > 0
    chart = _chart(request, shown, listed)
    if (file := charts.download(request, [chart])) is not None:
        return file
    values: dict[str, Any] = {
        "parts": parts,
        "period": period,
        "no_quota": words.NO_QUOTA,
        "above": request.form.get("above", "" if above is None else str(above)),
        "may_change": request.may(permission=MONEY),
        "months": months,
        "total": usage.total(months),
        "month": month,
        "shown": shown,
        "has_messages": sms + whatsapp > 0,
        "chart": chart,
        "tables": [
            (
                by,
                words.USAGE_SPLITS[by],
                # Without those whose only change is the refund of an earlier message.
                [_row(request, by, one, sms + whatsapp, is_mixed=is_mixed) for one in rows if one.messages],
            )
            for by, rows in tables
        ],
        "splits": [(by, request.text(words.USAGE_SPLITS[by])) for by in references.SPLITS],
        "characters": request.form.get("characters", ""),
        "chosen": request.form.get("by", "sender"),
        "is_listed": any(one.month == month for one in months),
    }
    return Page(template="money/usage.html", values=values, status=422 if problem else 200, refusal=problem)


async def _period(conn: Connection, actor: Actor) -> Period:
    balance = await quota.get(conn, actor.organization_id)
    organization = await organizations.get(conn, id=actor.organization_id)
    return Period(
        quota=balance,
        level=usage.level(balance),
        pace=await usage.pace(conn, actor, balance),
        subscription=plans.subscription(organization),
    )


def _form_refusal(refusal: Invalid) -> Invalid:
    """The rule's refusal in the form's wording."""
    return Invalid(*((one["field"], one["issue"], words.USAGE_FORM[one["field"]]) for one in refusal.details["fields"]))


def _chart(request: Request, shown: Days, listed: list[usage.Day]) -> Chart:
    text, number, count = request.text, request.locale.number, request.locale.count
    if not any(one.sms or one.whatsapp or one.refunds for one in listed):
        title = text("Nothing was sent in this month.") if shown.month else text("Nothing was sent in this period.")
    else:
        title = text(
            "%(sms)s SMS in %(segments)s, %(whatsapp)s, %(refunds)s refunded.",
            sms=number(sum(one.sms for one in listed)),
            segments=count("%(num)s segment", "%(num)s segments", sum(one.segments for one in listed)),
            whatsapp=count(
                "%(num)s WhatsApp message", "%(num)s WhatsApp messages", sum(one.whatsapp for one in listed)
            ),
            refunds=number(sum(one.refunds for one in listed)),
        )
    series = [Series(text("SMS"), "good", [one.sms for one in listed])]
    if any(one.whatsapp for one in listed):
        series.append(Series(text("WhatsApp"), "way", [one.whatsapp for one in listed]))
    if any(one.refunds for one in listed):
        series.append(Series(text("Refunds"), "calm", [one.refunds for one in listed]))
    return Chart(
        id=f"usage-{shown.id}",
        title=title,
        unit=text("messages a day"),
        kind="bars",
        # Days are UTC for everybody.
        locale=languages.locale(request.locale.language),
        times=[clock.midnight(one.day) for one in listed],
        step=DAY,
        series=series,
    )


def _row(request: Request, by: str, one: usage.Share, sent: int, *, is_mixed: bool) -> Row:
    name = one.name or one.value
    if by == "country":
        name = request.locale.country(one.value)
    elif not one.value:
        name = request.text("None: sent by hand or by a campaign") if by == "key" else request.text("No campaign")
    channel = CHANNELS[one.channel] if is_mixed else ""
    return Row(name, channel, one.messages, one.segments, round(100 * one.messages / sent) if sent else None)
