"""Home: whether everything is well, what needs attention, what to do next."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from heliograph.accounts import quota
from heliograph.base.database import clock
from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Connection
from heliograph.campaigns.views import chart_events
from heliograph.dashboard.messaging import attention
from heliograph.dashboard.money import days
from heliograph.dashboard.sending import code
from heliograph.overview import checklist, figures, messages, usage
from heliograph.overview.figures import ARRIVED, DAY, PeriodComparison
from heliograph.overview.messages import Message
from heliograph.pages import cookies
from heliograph.pages.answers import Answer, Page, Redirect
from heliograph.pages.lists import ranges
from heliograph.pages.lists.ranges import Range
from heliograph.pages.pieces import charts
from heliograph.pages.pieces.charts import Chart
from heliograph.pages.pieces.parts import Parts
from heliograph.pages.requests import Request
from heliograph.people.roles import CONTENT, TEAM_CHANGE, USAGE
from heliograph.traffic import Failed
from heliograph.whatsapp.money import wallet
from heliograph.why.words import Kind

#: The default range.
USUAL = "24h"
#: Messages shown, and countries listed.
LATEST, COUNTRIES = 10, 8
#: Failure reasons shown.
REASONS = 8


#: The checklist's message: in test mode, the last four digits mean that it is delivered.
TRIED = {"to": "+258841230000", "message": "Hello from Heliograph"}


class Step(msgspec.Struct, frozen=True):
    """An item of the checklist."""

    text: str
    is_done: bool
    link: str = ""
    label: str = ""
    #: The item with a button that sends TRIED in test mode; a program can do it, too.
    is_tried: bool = False


class StatsSection(msgspec.Struct, frozen=True):
    """Figures from the roll-ups, as they are shown."""

    comparison: PeriodComparison
    charts: list[Chart]
    #: (title, figure, change, address of the list of its messages).
    cards: list[tuple[str, str, str, str]]
    #: (reason, kind that explains it, address of the list of these messages), the most common failures.
    reasons: list[tuple[Failed, Kind, str]]


async def show(request: Request) -> Answer:
    """Home, or a visitor's first page."""
    if request.session is None:
        return Page(template="door/visitor.html", values={"status": (await request.services.status())[0]})
    if request.person.organization_id is None:
        return Page(template="door/nowhere.html", values={})
    range = ranges.read(request, usual=USUAL)
    until = range.until or clock.now()
    since = range.since or until - ranges.LENGTHS[USUAL]
    actor, parts = request.actor, Parts(request)
    sees_messages, sees_usage = request.may("sms:read"), request.may(permission=USAGE)
    has_checklist = _wants_checklist(request)
    async with request.reading() as conn:
        shown = await parts.load("figures", _figures(conn, request, since=since, until=until), otherwise=None)
        comparison = None if shown is None else shown.comparison
        balance = (
            await parts.load("quota", quota.get(conn, actor.organization_id), otherwise=None) if sees_usage else None
        )
        spent = (
            await parts.load("spent", _spent(conn, request, _spent_days(request, range, comparison)), otherwise=[])
            if sees_usage and comparison
            else []
        )
        latest = await parts.load("latest", _latest(conn, request), otherwise=[]) if sees_messages else []
        running = await parts.load("campaigns", attention.campaigns(conn, request), otherwise=[])
        needed = attention.notices(conn, request, balance=balance, running=running, has_checklist=has_checklist)
        notices = await parts.load("attention", needed, otherwise=[])
        done = await parts.load("steps", checklist.steps(conn, actor), otherwise=None) if has_checklist else None
    if shown is not None and (file := charts.download(request, shown.charts)) is not None:
        return file
    values: dict[str, Any] = {
        "parts": parts,
        "range": range,
        "charts": [] if shown is None else shown.charts,
        "comparison": comparison,
        "cards": ([] if shown is None else shown.cards) + spent,
        "stretch": {} if comparison is None else _stretch(comparison),
        "arrived": ",".join(ARRIVED),
        "countries": [] if comparison is None else comparison.countries[:COUNTRIES],
        "reasons": [] if shown is None or not sees_messages else shown.reasons,
        "quota": balance,
        "notices": notices,
        "campaigns": running,
        "latest": latest,
        "sees_messages": sees_messages,
        "whole": request.may(permission=CONTENT),
        "steps": [] if done is None else _steps(request, done),
        "tried": TRIED,
        "snippets": [] if done is None or done.sent else code.snippets(request, "/v1/sms/send", TRIED),
    }
    return Page(template="messaging/home_live.html" if request.is_fragment else "messaging/home.html", values=values)


async def dismiss(request: Request) -> Answer:
    """Hide the checklist in this browser."""
    kept = cookies.preference(cookies.CHECKLIST, "gone", is_secure=request.is_secure)
    return Redirect(location=request.to("/"), cookies=[kept])


async def _figures(conn: Connection, request: Request, *, since: datetime, until: datetime) -> StatsSection:
    actor, sees_messages = request.actor, request.may("sms:read")
    comparison = await figures.compare_period(conn, actor, since=since, until=until)
    events = (
        await chart_events.between(conn, actor, since=comparison.since, until=comparison.until)
        if request.may("campaigns:read")
        else []
    )
    links = _links(request, comparison) if sees_messages else ()
    return StatsSection(
        comparison,
        charts.outcome_charts(request, comparison, links, charts.campaign_marks(request, events)),
        _cards(request, comparison),
        _reasons(request, comparison),
    )


async def _latest(conn: Connection, request: Request) -> list[Message]:
    found = await messages.list_page(conn, request.actor, filters=messages.Filters(), limit=LATEST)
    return found.messages[:LATEST]


def _wants_checklist(request: Request) -> bool:
    """Those who may create keys are building something; the others, and an operator who views, have nothing to tick
    off."""
    if request.person.reason is not None:
        return False
    return request.may("api_keys:read") and request.cookies.get(cookies.CHECKLIST) != "gone"


def _cards(request: Request, comparison: PeriodComparison) -> list[tuple[str, str, str, str]]:
    now, before = comparison.now, comparison.before
    locale, text = request.locale, request.text

    def change(new: float | None, old: float | None, digits: int, unit: str) -> str:
        if new is None or old is None:
            return ""
        gap = round(new - old, digits)
        if gap == 0:
            return text("as before")
        sign = "+" if gap > 0 else "−"
        return text("%(change)s compared with before", change=f"{sign}{locale.number(abs(gap), digits)}{unit}")

    rate, earlier = now.rate, before.rate
    link = request.to("/messages", **_stretch(comparison)) if request.may("sms:read") else ""
    arrived = link and request.to("/messages", status=",".join(ARRIVED), **_stretch(comparison))
    return [
        (
            locale.count_label("Accepted"),
            locale.number(now.accepted),
            change(now.accepted, before.accepted, 0, ""),
            link,
        ),
        (
            locale.count_label("Delivered"),
            "–" if rate is None else f"{locale.number(rate, 1)} %",
            change(rate, earlier, 1, f" {text('points')}"),
            "" if rate is None else arrived,
        ),
        (
            text("Half within"),
            "–" if now.p50 is None else locale.duration(now.p50),
            change(now.p50, before.p50, 1, " s"),
            "" if now.p50 is None else arrived,
        ),
        (
            text("95 of 100 within"),
            "–" if now.p95 is None else locale.duration(now.p95),
            change(now.p95, before.p95, 1, " s"),
            "" if now.p95 is None else arrived,
        ),
    ]


async def _spent(conn: Connection, request: Request, shown: tuple[date, date]) -> list[tuple[str, str, str, str]]:
    """Cards of the spending in these days. Test messages cost nothing."""
    if request.actor.mode != "live":
        return []
    since, until = shown
    count, actor, locale = (until - since).days, request.actor, request.locale
    stretch = {"from": f"{since}", "to": f"{until - timedelta(days=1)}"}
    used = await usage.spent(conn, actor, since=since, until=until)
    said = [locale.count("%(num)s segment", "%(num)s segments", used.segments)]
    if used.refunds:
        said.append(locale.count("after %(num)s refund", "after %(num)s refunds", used.refunds))
    said.append(_compared(request, since, until, locale.number(used.before)))
    cards = [
        (request.text("SMS spent"), locale.number(used.messages), " · ".join(said), request.to("/usage", **stretch))
    ]
    money = await wallet.show(conn, actor)
    if money.currency is not None and money.updated_at is not None:
        listed = await wallet.days(conn, actor, since=since - timedelta(days=count), until=until)
        now = sum(one.consumed for one in listed if one.day >= since)
        before = locale.money(sum(one.consumed for one in listed if one.day < since), money.currency)
        cards.append(
            (
                request.text("Wallet spent"),
                locale.money(now, money.currency),
                _compared(request, since, until, before),
                request.to("/wallet", **stretch),
            )
        )
    return cards


def _spent_days(request: Request, range: Range, comparison: PeriodComparison) -> tuple[date, date]:
    """(since, until): UTC days, since spending is summed by day. Those that the reader chose, as on the pages that the
    cards lead to; otherwise as many as the comparison is long, up to its last."""
    tomorrow = clock.now().date() + timedelta(days=1)
    if range.name == ranges.CUSTOM and range.since is not None:
        since, until = days.of_times(range.since, range.until or clock.now(), ZoneInfo(request.locale.zone))
        return since, max(min(until, tomorrow), since + timedelta(days=1))
    last = (comparison.until - timedelta(microseconds=1)).date()
    until = min(last + timedelta(days=1), tomorrow)
    return until - timedelta(days=max(1, round((comparison.until - comparison.since) / DAY))), until


def _compared(request: Request, since: date, until: date, before: str) -> str:
    """The days, and the spending in as many before them; not a difference, as the last day may not be over."""
    text, locale, count = request.text, request.locale, (until - since).days
    if count == 1:
        return f"{locale.whole_day(since)} UTC · {text('%(before)s on the day before', before=before)}"
    last = locale.whole_day(until - timedelta(days=1))
    earlier = text("%(before)s in the %(days)s days before", before=before, days=locale.number(count))
    return f"{locale.whole_day(since)} – {last} UTC · {earlier}"


def _links(request: Request, comparison: PeriodComparison) -> list[str]:
    return [
        request.to("/messages", **{"from": iso(at), "to": iso(at + comparison.step)}) for at, _ in comparison.intervals
    ]


def _stretch(comparison: PeriodComparison) -> dict[str, str]:
    """The figures' time range, as query parameters of the list."""
    return {"from": iso(comparison.since), "to": iso(comparison.until)}


def _reasons(request: Request, comparison: PeriodComparison) -> list[tuple[Failed, Kind, str]]:
    stretch = _stretch(comparison)
    return [
        (
            one,
            "sms_failure" if one.channel == "sms" else "whatsapp_failure",
            request.to("/messages", channel=one.channel, reason=one.reason, **stretch),
        )
        for one in comparison.reasons[:REASONS]
    ]


def _steps(request: Request, done: checklist.Steps) -> list[Step]:
    text = request.text
    listed = [
        Step(
            text("Create a test key"),
            done.key,
            "/keys/new?mode=test" if request.may("api_keys:write", mode="test") else "",
            text("Create"),
        ),
        Step(text("Send a first message with it"), done.sent, "/guide/api", text("How"), is_tried=True),
        Step(text("See it delivered"), done.delivered, "/messages?mode=test", text("View")),
        Step(
            text("Have outcomes sent to your program"),
            done.webhook,
            "/webhooks/catcher?mode=test" if request.may("webhooks:read", mode="test") else "",
            text("Use the built-in catcher"),
        ),
        Step(
            text("Get a sender ID approved"),
            done.sender,
            "/senders/new" if request.may("sender_ids:write", mode="live") else "",
            text("Request a sender ID"),
        ),
        Step(
            text("Invite a colleague"),
            done.team,
            "/team/invite" if request.may(permission=TEAM_CHANGE) else "",
            text("Invite"),
        ),
        Step(text("Turn on a second factor"), request.person.has_totp, "/account/factor", text("Turn on")),
        Step(
            text("Send a first live message"),
            done.live,
            "/send" if request.may("sms:send", mode="live") else "",
            text("Send"),
        ),
    ]
    return [] if all(one.is_done for one in listed) else listed
